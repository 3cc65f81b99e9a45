"""Whatever happens to a run: signals at bad moments, a damaged cache, no room. No wrong result and no crash."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import onnx
import pytest

import graphopt
from graphopt.base.errors import ModelError, UsageError
from graphopt.base.limits import LimitError, RunLimits
from graphopt.base.session import current_session
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.candidates import Candidate
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.oracle import run_interruptibly
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.model_tuner import Tuner, TuningOptions
from graphopt.search.race_series import RaceSeries
from graphopt.search.stopping import StopReason
from tests.test_contests import entered
from tests.test_tune import DOUBLE, GIVEN, ONE_THREAD
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")

LISTENING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from graphopt.cli.main import main
main()
"""
"""Hears signals also where a shell or `nohup` has started the tests and ignores them."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "model.onnx"
    for folder in ("in", "out", "scratch"):
        (tmp_path / folder).mkdir()
    onnx.save(parse("float[64,64] x", "h = Tanh(x); y = Relu(h)"), path)
    return path


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"run_limit": math.nan}, {"memory_limit": math.nan}, {"run_limit": 0.0}])
def test_a_limit_is_more_than_nothing(model: Path, limits: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="a limit of time or memory is more than 0"):
        graphopt.optimize(model, cost="none", **limits)  # type: ignore[arg-type]


def test_a_short_run_keeps_to_the_limit_of_memory_too(model: Path) -> None:
    said = r"the process, before a run, takes \d\.\d GB, and the limit is 10 MB \(--memory-limit sets another\)"
    with pytest.raises(ModelError, match=said):
        graphopt.optimize(model, cost="none", memory_limit=0.01)


def test_memory_is_looked_at_after_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([0, 2_000_000_000])
    monkeypatch.setattr("graphopt.base.limits.resident_bytes", lambda: next(taken))
    with (
        current_session().replace(limits=RunLimits(gigabytes=1.0)),
        pytest.raises(LimitError, match=r"a run takes 2\.0 GB, and the limit is 1"),
    ):
        run_interruptibly(lambda _: None)


# -- signals -----------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_the_thread_of_a_run_is_started_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left alone, it would still be in native code when the interpreter ends, which aborts the process."""
    start, ended = threading.Thread.start, threading.Event()

    def interrupted(self: threading.Thread) -> None:
        start(self)
        raise KeyboardInterrupt

    def run(options: Any) -> None:
        while not options.terminate:
            time.sleep(0.001)
        ended.set()

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(run)
    assert ended.is_set()


def signalled(model: Path, number: signal.Signals) -> tuple[int, str]:
    """The exit code and the errors of a run that gets a signal while it measures; what it leaves behind is checked."""
    home = model.parent.parent
    command = [sys.executable, "-c", LISTENING, str(model), str(home / "out" / "o.onnx")]
    env = {**os.environ, "TMPDIR": str(home / "scratch")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as running:
        while not any((home / "scratch").glob("graphopt-*/*.onnx")):
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        _, complaint = running.communicate(timeout=60)
    assert not any((home / "scratch").glob("graphopt-*"))
    return running.returncode, complaint


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_is_terminated_while_it_measures_leaves_nothing(
    model: Path, number: signal.Signals, code: int
) -> None:
    assert signalled(model, number) == (code, "graphopt: terminated\n")
    assert not any((model.parent.parent / "out").iterdir())


@pytest.mark.slow
def test_a_run_that_is_interrupted_while_it_measures_leaves_a_whole_model_or_none(model: Path) -> None:
    """Which of the two depends on what is measured at that moment, the machine or a version of the model."""
    found = signalled(model, signal.SIGINT)
    left = list((model.parent.parent / "out").iterdir())
    assert found == ((0, "") if left else (130, "graphopt: interrupted\n"))
    assert all(compare_models(model, path).verdict is EqualityVerdict.EQUAL for path in left)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.25, 0.4, 0.7])
def test_an_interrupt_while_modules_are_loaded_is_one_line(model: Path, delay: float) -> None:
    """Python itself takes a tenth of a second to start, in which nobody hears."""
    output = model.parent.parent / "out" / "o.onnx"
    code = LISTENING.replace("graphopt.cli.main", "graphopt.__main__")
    with subprocess.Popen([sys.executable, "-c", code, str(model), str(output)], stderr=subprocess.PIPE) as running:
        time.sleep(delay)
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=60)
    assert b"Traceback" not in complaint or b"graphopt" not in complaint
    assert running.returncode in (130, 0)
    assert complaint in (b"graphopt: interrupted\n", b"")


AT_WORK = """
import signal, time
signal.signal(2, signal.default_int_handler)
from graphopt import pipeline
from graphopt.cli import main as cli
def work(*_, **__):
    print("at work", flush=True)
    while True:
        time.sleep(0.01)
pipeline.optimize = work
cli.main()
"""
"""Runs the command line, and says when it is at work, which never ends."""


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.001, 0.01])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_at_once_end_the_run_as_one(model: Path, second: signal.Signals, pause: float) -> None:
    """The first that is heard, with its line. When Python has put its handlers away the second ends the process."""
    command = [sys.executable, "-c", AT_WORK, str(model), str(model.parent.parent / "out" / "o.onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "at work\n"
        running.send_signal(signal.SIGTERM)
        time.sleep(pause)
        running.send_signal(second)
        _, complaint = running.communicate(timeout=60)
    heard = [(143, "terminated"), (-second, "terminated")]
    heard += [(130, "interrupted")] if second is signal.SIGINT else []  # of two that wait Python hears that one first
    assert (running.returncode, complaint) in [(code, f"graphopt: {line}\n") for code, line in heard]


# -- closed streams ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("inspect {model} >&-", 0, ""),
        ("inspect {model} <&-", 0, ""),
        ("inspect {model} >&- 2>&-", 0, ""),
        ("--version >&-", 0, ""),
        ("--help >&-", 0, ""),
        ("optimize {model} {output} --cost none >&-", 0, ""),
        ("optimize nowhere.onnx {output} 2>&-", 1, ""),
        ("optimize nowhere.onnx {output} >&-", 1, "graphopt: error: nowhere.onnx does not exist\n"),
        ("inspect {model} | true", 141, ""),
        ("rules --json | true", 141, ""),
        ("--help | true", 141, ""),
        ("rules | head -1 >&2", 141, None),
        ("inspect {model} > /dev/full", 1, "graphopt: error: the output cannot be written: No space left on device\n"),
    ],
)
def test_closed_streams_are_no_reason_for_a_traceback(model: Path, command: str, code: int, said: str | None) -> None:
    output = model.parent.parent / "out" / "o.onnx"
    line = f"{sys.executable} -m graphopt {command.format(model=model, output=output)}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, check=False)
    assert done.returncode == code or (code == 141 and done.returncode == 0), done.stderr  # the reader may be late
    complaint = "".join(part for part in done.stderr.splitlines(keepends=True) if "is not of this verifier" not in part)
    assert said is None or complaint == said
    assert "Traceback" not in complaint
    assert "internal error" not in complaint
    if "--cost none" in command:
        assert compare_models(model, output).verdict is EqualityVerdict.EQUAL


# -- the cache ---------------------------------------------------------------------------------------------------------

RATIO = '{"minimum": 2, "median": %s, "low": 2, "high": 2, "rounds": 9, "confidence": 0.95, "noise": 0.02}'
KEPT = f'[{{"speedup": {RATIO}, "gain": {RATIO % 1}, "latencies": %s}}]'


SIZES = '[{"sizes": %s, "before": {}, "after": {}}]'
TIMES = '{"minimum": 1, "median": 1, "spread": 0}'
NO_RATIO = f'[{{"sizes": {{"n": 2}}, "before": {TIMES}, "after": {TIMES}}}]'
"""As an earlier version kept them."""


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[{}, {}]", '[{"speedup": 2, "gain": 2, "latencies": []}]'),
        *(KEPT % ("NaN", "[]"), KEPT % ('"x"', "[]"), KEPT % (2, 3)),
        *(KEPT % (2, SIZES % sizes) for sizes in ('["n"]', '{"n": "x"}', '{"n": Infinity}')),
        KEPT % (2, NO_RATIO),
    ],
)
def test_a_verdict_that_makes_no_sense_is_reached_anew(text: str) -> None:
    contest, _ = entered()
    open_cost_cache().put({contest._race_key(["key"]): text})
    assert entered()[0].recorded_outcomes(["key"]) is None


# -- the last word -----------------------------------------------------------------------------------------------------


def test_versions_that_cannot_run_in_turn_end_their_race(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise MemoryError("no room")

    contest, model = entered()
    session = contest.open_session(model)
    monkeypatch.setattr("graphopt.search.race_series.make_runner", lambda *_: failing)
    with pytest.raises(ModelError, match="the model cannot be run: no room"):
        contest.time_models(["key"], [session], 0.0)
    assert contest.recorded_outcomes(["key"]) is None


@pytest.mark.parametrize(
    "place",
    [
        "search.race_series.onnx_io.to_proto_and_weights",
        "runtime.measure.time_interleaved",
        "runtime.measure.compute_speedup",
    ],
)
def test_a_mistake_of_ours_is_not_blamed_on_the_runtime(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def failing(*_: object, **__: object) -> NoReturn:
        raise IndexError("a mistake")

    contest, model = entered()
    monkeypatch.setattr(f"graphopt.{place}", failing)
    with pytest.raises(IndexError, match="a mistake"):
        contest.time_models(["key"], [contest.open_session(model)], 0.0)


def test_a_provider_that_does_not_start_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> NoReturn:
        raise UsageError("its libraries are missing")

    contest, model = entered()
    monkeypatch.setattr(SessionSetting, "open", failing)
    with pytest.raises(UsageError, match="its libraries are missing"):
        contest.open_session(model)


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupt_before_the_search_leaves_it_out(monkeypatch: pytest.MonkeyPatch, presses: int) -> None:
    """It comes while the simplified model and a sweep of it take turns with the original."""
    race, left = RaceSeries.time_models, [*range(presses)]

    def interrupted(*args: Any) -> Any:
        if left:
            left.pop()
            raise KeyboardInterrupt
        return race(*args)

    def searched(*_: object) -> NoReturn:
        pytest.fail("the search was begun")

    monkeypatch.setattr(RaceSeries, "time_models", interrupted)
    monkeypatch.setattr(Tuner, "_explore", searched)
    model = onnx_io.load_model(GIVEN)
    infer_graph(model.graph)
    tuning, sweeps = TuningOptions(setting=ONE_THREAD), {"doubles": [DOUBLE]}
    tuner = Tuner(GIVEN, model, Candidate(model.graph), [], [DOUBLE], [], lambda *_: True, tuning, sweeps=sweeps)
    if presses == 2:
        with pytest.raises(KeyboardInterrupt):
            tuner.tune()
        return
    timing = tuner.tune().timing
    assert timing is not None
    assert timing.stop == StopReason.INTERRUPTED
