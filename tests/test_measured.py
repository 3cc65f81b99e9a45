"""What graphs cost as it is measured, once for each machine, and the machine itself."""

import logging
import sqlite3
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession

from graphopt.base.cache import Cache
from graphopt.base.errors import ModelError, OutputError, UsageError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch
from graphopt.operators.inference import infer_graph
from graphopt.runtime.cost_model import (
    CostModel,
    NoTimeToMeasureError,
    NotMeasurableError,
    TemporarilyNotMeasurableError,
    open_cost_cache,
)
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import FastestRun, TimingPolicy, TimingSamples, TimingSchedule, TimingVerdict
from graphopt.runtime.profile import ProfiledSession
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.policy import SearchPolicy
from graphopt.search.racers import FAILED_SPEEDUP, SAME_SPEEDUP, LocalRacer
from tests.graphs import IMAGE, OTHER, SAME_SIZE, graph, image, weight
from tests.text import parse

POLICY = SearchPolicy()


class Timer:
    """In the place of `time_interleaved`: the second is twice as fast as the first, that after it three times."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        """How many runs took turns, each time."""

    def __call__(
        self, runs: Sequence[Callable[[], object]], schedule: TimingSchedule, **_: object
    ) -> tuple[TimingSamples, ...]:
        self.asked.append(len(runs))
        return tuple(TimingSamples((1 / place,) * schedule.rounds[1]) for place in range(1, len(runs) + 1))


class BusyTimer(Timer):
    """Rounds are far apart, and say of no run that it is faster."""

    def __call__(
        self,
        runs: Sequence[Callable[[], object]],
        schedule: TimingSchedule,  # noqa: ARG002
        **_: object,
    ) -> tuple[TimingSamples, ...]:
        self.asked.append(len(runs))
        return tuple(TimingSamples((1.0, 1.0 + place, 1 / (1.0 + place)) * 20) for place in range(len(runs)))


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    made = Timer()
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", made)
    monkeypatch.setattr("graphopt.runtime.machine.time_interleaved", made)
    return made


def measured(path: Path, setting: SessionSetting | None = None, policy: SearchPolicy = POLICY) -> MeasuredCost:
    return MeasuredCost(LocalRacer(setting or SessionSetting(), policy), machine=Machine(), cache=Cache(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "costs.sqlite"


def vector(body: str) -> Graph:
    return graph("float[64] x", body, "float[64] y")


EXP, SINE, ROOT = vector("y = Exp(x)"), vector("y = Sin(x)"), vector("y = Sqrt(x)")
REFUSED = vector("a = Exp(x); y = Reshape(a, [3,3])")


def test_both_are_cost_models(path: Path) -> None:
    models: tuple[CostModel, ...] = (AnalyticCost(), measured(path))
    assert [model.name for model in models] == ["analytic", "measured"]
    assert models[0].estimate_seconds(SINE) == models[1].estimate_seconds(SINE) > models[0].estimate_seconds(ROOT) > 0


@pytest.mark.slow
def test_graphs_that_cost_the_same_are_measured_as_such(path: Path) -> None:
    inputs, outputs = "float[128,128] x, float[128] z", "float[128,128] y"
    before, after = (graph(inputs, f"a = {body}; y = Tanh(a)", outputs) for body in ("Mul(x, z)", "Mul(z, x)"))
    (found,) = measured(path, policy=SearchPolicy(pair_seconds=0.1)).measure_speedups(before, [after])
    assert found.rounds >= POLICY.region_rounds[0]
    assert 0 < found.low <= found.median <= found.high
    assert found.minimum > 0


def test_candidates_are_timed_together_and_each_once(path: Path, timer: Timer) -> None:
    found = measured(path).measure_speedups(EXP, [SINE, ROOT, SINE])
    assert [speedup.median for speedup in found] == [2, 3, 2]
    assert timer.asked == [3]
    assert measured(path).measure_speedups(EXP, []) == []


def test_with_a_warm_cache_nothing_is_run_and_the_answers_are_the_same(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [SINE, REFUSED, ROOT, EXP]
    found = measured(path).measure_speedups(EXP, candidates)
    monkeypatch.delattr(SessionSetting, "open")
    assert measured(path).measure_speedups(EXP, candidates) == found
    assert timer.asked == [3]


@pytest.mark.parametrize(("kind", "is_steady"), [(Timer, True), (BusyTimer, False)])
def test_what_a_busy_machine_leaves_open_is_told_and_not_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Timer], is_steady: bool
) -> None:
    timer = kind()
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", timer)
    for _ in range(2):
        model = measured(path)
        model.measure_speedups(EXP, [SINE])
        assert model.is_steady is is_steady
    assert len(timer.asked) == (1 if is_steady else 2)


def test_only_what_the_cache_lacks_is_measured(path: Path, timer: Timer) -> None:
    measured(path).measure_speedups(EXP, [SINE])
    measured(path).measure_speedups(EXP, [SINE, ROOT])
    measured(path).measure_speedups(ROOT, [SINE])
    assert timer.asked == [2, 2, 2]


@pytest.mark.parametrize(
    "other",
    [
        SessionSetting("AzureExecutionProvider"),
        SessionSetting(threads=2),
        SessionSetting(spinning=not SessionSetting().spinning),
    ],
)
def test_under_another_setting_it_is_measured_anew(path: Path, timer: Timer, other: SessionSetting) -> None:
    """The Azure provider comes with every onnxruntime, and leaves all to the CPU."""
    measured(path).measure_speedups(EXP, [SINE])
    measured(path, other).measure_speedups(EXP, [SINE])
    assert timer.asked == [2, 2]


@pytest.mark.parametrize(
    ("module", "name", "other"),
    [
        ("graphopt.runtime.machine", "processor", lambda: "another"),
        ("graphopt.runtime.machine", "usable_cores", lambda: 1000),
        ("graphopt.runtime.machine", "CACHE_FORMAT", 0),
        ("onnxruntime", "__version__", "0"),
    ],
)
def test_on_another_machine_or_version_it_is_measured_anew(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch, module: str, name: str, other: object
) -> None:
    measured(path).measure_speedups(EXP, [SINE])
    monkeypatch.setattr(sys.modules[module], name, other)
    measured(path).measure_speedups(EXP, [SINE])
    assert timer.asked == [2, 2]


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_on_another_device_it_is_measured_anew(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Which of them are visible is nothing to the CPU."""
    elsewhere = SessionSetting("AzureExecutionProvider")
    for devices in ("0", "1", "0"):
        monkeypatch.setenv(name, devices)
        measured(path).measure_speedups(EXP, [SINE])
        measured(path, elsewhere).measure_speedups(EXP, [SINE])
    assert timer.asked == [2] * 3


def spoiled(path: Path, text: str) -> None:
    """All entries of the file become this."""
    with closing(sqlite3.connect(path)) as connection:
        keys = [key for (key,) in connection.execute("SELECT key FROM kept")]
    Cache(path).put(dict.fromkeys(keys, text))


RATIOS = '{"minimum": %s, "median": 9, "low": 9, "high": 9, "rounds": 9, "confidence": 0.95, "noise": 0.02}'
NO_NUMBERS = ("NaN", "-1", "Infinity", '"9"', "null", "[9]", "1" + "0" * 400)


@pytest.mark.parametrize("text", ["", "[]", "7", '{"median": 1}', "[" * 100_000, *(RATIOS % n for n in NO_NUMBERS)])
def test_an_entry_that_makes_no_sense_is_measured_anew(path: Path, timer: Timer, text: str) -> None:
    measured(path).measure_speedups(EXP, [SINE])
    spoiled(path, text)
    assert measured(path).measure_speedups(EXP, [SINE])[0].median == 2
    assert timer.asked == [2, 2]


def test_what_onnx_runtime_makes_the_same_is_not_timed(path: Path, timer: Timer) -> None:
    kernel, normal = weight(32, 32, 3, 3), weight(32)
    apart = image(f"c = Conv{SAME_SIZE}(x, w); y = BatchNormalization(c, p, p, p, q)", w=kernel, p=normal, q=normal**2)
    folded = image(f"y = Conv{SAME_SIZE}(x, w, p)", w=kernel, p=normal)
    assert measured(path).measure_speedups(apart, [folded]) == [SAME_SPEEDUP]
    assert SAME_SPEEDUP.verdict is TimingVerdict.SAME
    assert timer.asked == []


@pytest.mark.usefixtures("timer")
def test_a_candidate_that_onnx_runtime_refuses_is_slower(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "graphopt.search.racers")
    (vertex,) = EXP.vertices_with_op("Exp")
    custom, nonsense = EXP.copy(), EXP.copy()
    custom.apply(Patch({vertex: custom[vertex]}, {vertex: replace(custom[vertex], domain="my", version=0)}))
    nonsense.apply(Patch({vertex: nonsense[vertex]}, {vertex: replace(nonsense[vertex], op="Nonsense")}))
    found = measured(path).measure_speedups(EXP, [REFUSED, SINE, custom, nonsense])
    assert found[0] == found[2] == found[3] == FAILED_SPEEDUP
    assert FAILED_SPEEDUP.verdict is TimingVerdict.SLOWER
    assert found[1].median == 2
    assert "the graph cannot be run" in caplog.text
    assert "the graph cannot be loaded" in caplog.text
    assert "Nonsense 'y' cannot be written" in caplog.text


ALLOCATION = "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9"


@pytest.mark.parametrize("call", ["__init__", "run"])
@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), RuntimeError(ALLOCATION)])
def test_a_candidate_for_which_memory_ran_out_is_tried_again(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch, error: Exception, call: str
) -> None:
    """Of the graphs that are loaded and run, the second is refused, once; the first is loaded twice, for it is too
    small for a profile, which one more run tells."""
    original, calls = getattr(InferenceSession, call), count()
    refused = 3 if call == "run" else 2

    def called(*arguments: Any, **more: Any) -> Any:
        if next(calls) == refused:
            raise error
        return original(*arguments, **more)

    monkeypatch.setattr(InferenceSession, call, called)
    once = SearchPolicy(timing=TimingPolicy(compared_bytes=-1))  # each is loaded once
    model = measured(path, policy=once)
    assert [found.median for found in model.measure_speedups(EXP, [SINE, ROOT])] == [0, 2]
    assert not model.is_steady, "a search that lacked memory is not kept"
    assert [found.median for found in model.measure_speedups(EXP, [SINE, ROOT])] == [2, 2]
    assert timer.asked == [2, 2]


@pytest.mark.usefixtures("timer")
@pytest.mark.parametrize(("left", "found"), [(1000.0, [2, 3]), (18.5, [2, 0])])
def test_candidates_are_timed_while_there_is_time(
    path: Path, monkeypatch: pytest.MonkeyPatch, left: float, found: list[float]
) -> None:
    """A run takes a second, and a race seven of each graph and of the original."""
    model = MeasuredCost(
        LocalRacer(SessionSetting()), machine=Machine(), cache=Cache(path), end=100 + left, clock=lambda: 100.0
    )
    monkeypatch.setattr(model, "estimate_seconds", lambda graph: 1.0)
    assert [speedup.median for speedup in model.measure_speedups(EXP, [SINE, ROOT])] == found
    assert model.is_steady == (0 not in found), "a search that lacked time is not kept"
    model.end = 113.9
    with pytest.raises(NoTimeToMeasureError, match=r"^to time it takes 14.0 s, and 13.9 s are left$"):
        model.measure_speedups(SINE, [EXP])
    for end in (113.9, 100.0, 90.0):
        model.end = end
        assert [speedup.median for speedup in model.measure_speedups(EXP, [SINE])] == [2], "what is known takes no time"
        assert [speedup.median for speedup in model.measure_speedups(EXP, [SINE, REFUSED])] == [2, 0]


def test_a_graph_that_cannot_be_run_cannot_be_a_base(path: Path, timer: Timer) -> None:
    with pytest.raises(NotMeasurableError, match=r"the graph cannot be run: .*Reshape"):
        measured(path).measure_speedups(REFUSED, [EXP])
    assert timer.asked == []


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(KeyboardInterrupt, KeyboardInterrupt), (MemoryError("out of memory"), TemporarilyNotMeasurableError)],
)
def test_what_ends_a_timing_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, seen: type[BaseException]
) -> None:
    """The first graph runs three times before they take turns, the other once."""
    original, calls = InferenceSession.run, count()

    def run(*arguments: Any, **more: Any) -> Any:
        if next(calls) == 4:
            raise raised
        return original(*arguments, **more)

    monkeypatch.setattr(InferenceSession, "run", run)
    with pytest.raises(seen):
        measured(path).measure_speedups(EXP, [SINE])
    assert not path.exists()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutputError("0.onnx cannot be written: no space left on device")

    monkeypatch.setattr(onnx_io, "save_model", full)


@pytest.mark.usefixtures("timer", "full_disk")
def test_a_full_disk_is_no_fault_of_a_candidate(path: Path) -> None:
    with pytest.raises(TemporarilyNotMeasurableError, match="no space"):
        measured(path).measure_speedups(EXP, [SINE])
    assert not path.exists()


def test_no_room_for_what_onnx_runtime_writes_is_no_fault_either(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SessionSetting.open

    def opening(self: SessionSetting, model: Path, *, configure: Callable[[Any], None] | None = None) -> Any:
        wanted = SimpleNamespace()
        if configure is not None:
            configure(wanted)
        if hasattr(wanted, "optimized_model_filepath"):
            raise ModelError("Protobuf serialization failed")
        return original(self, model, configure=configure)

    monkeypatch.setattr(SessionSetting, "open", opening)
    assert measured(path).measure_speedups(EXP, [SINE, EXP])[0].median == 2
    assert timer.asked == [3]


@pytest.mark.parametrize(("size", "is_profiled"), [(320, True), (4, False)])
def test_kernels_that_differ_tell_of_a_region_whose_kernels_take_long(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_profiled: bool
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(ProfiledSession, "interrupted_runs", lambda *_: frozenset())  # as on a quiet machine

    def products(body: str) -> Graph:
        return graph(f"float[{size},{size}] x", body, f"float[{size},{size}] y", w=weight(size, size))

    before = products("a = MatMul(x, w); b = MatMul(a, w); y = Mul(b, x)")
    same, one = (
        products("a = MatMul(x, w); b = MatMul(a, w); y = Mul(x, b)"),
        products("a = MatMul(x, w); y = Mul(a, x)"),
    )
    policy = SearchPolicy(pair_seconds=0.1, profiled_pair_seconds=0.1)
    equal, faster = measured(path, policy=policy).measure_speedups(before, [same, one])
    assert (equal.is_by_kernels, faster.is_by_kernels) == (is_profiled, is_profiled)
    if is_profiled:
        assert (equal.low, equal.median, equal.high) == (1, 1, 1), "whatever the sessions take"
        assert faster.median > 1.2
        assert faster.rounds <= policy.undisturbed_region_rounds
    assert not [*folder.iterdir()], "no profile is left"


def test_whole_runs_tell_of_graphs_whose_profiles_are_alike_and_whose_attributes_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile tells operators and shapes: of a convolution, not how far apart the pixels are that it reads."""
    monkeypatch.setattr(ProfiledSession, "interrupted_runs", lambda *_: frozenset())

    def dilated(count: int, name: str = "a") -> Graph:
        body = f"{name} = Conv<dilations = [{count},{count}], pads = [{count},{count},{count},{count}]>(x, w)"
        return graph("float[1,16,64,64] x", f"{body}; y = Exp({name})", "float[1,16,64,64] y", w=weight(16, 16, 3, 3))

    other, same = measured(path).measure_speedups(dilated(1), [dilated(2), dilated(1, "b")])
    assert not other.is_by_kernels
    assert other.rounds > 0
    assert same == SAME_SPEEDUP


def test_rounds_under_the_profiler_go_on_until_enough_of_them_are_undisturbed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other round is interrupted."""

    def every_other(session: ProfiledSession, span: slice) -> frozenset[int]:
        return frozenset(range(1, len(range(session.runs)[span]), 2))

    monkeypatch.setattr(ProfiledSession, "interrupted_runs", every_other)
    monkeypatch.setattr(FastestRun, "__call__", lambda _, found: range(len(found)))
    wide, narrow = (
        graph("float[320,320] x", body, "float[320,320] y", w=weight(320, 320))
        for body in ("a = MatMul(x, w); y = MatMul(a, w)", "y = MatMul(x, w)")
    )
    policy = SearchPolicy(profiled_pair_seconds=60.0)
    (found,) = measured(path, policy=policy).measure_speedups(wide, [narrow])
    assert found.is_by_kernels
    assert found.rounds == policy.undisturbed_region_rounds


@pytest.mark.usefixtures("timer")
def test_no_room_for_a_folder_is_no_fault_of_the_graphs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(path.parent / "missing"))
    with pytest.raises(TemporarilyNotMeasurableError, match="there can be no temporary folder: No such file"):
        measured(path).measure_speedups(EXP, [SINE])


def test_a_provider_that_is_missing_is_an_error_at_once(path: Path) -> None:
    with pytest.raises(UsageError, match="no CUDAExecutionProvider"):
        measured(path, SessionSetting("cuda"))


@pytest.mark.usefixtures("timer")
def test_sessions_are_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Any]] = []
    original = SessionSetting.open

    def opening(self: SessionSetting, *arguments: Any, **options: Any) -> Any:
        session = original(self, *arguments, **options)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(SessionSetting, "open", opening)
    measured(path).measure_speedups(EXP, [SINE, REFUSED])
    assert [reference() for reference in opened] == [None] * 4


def test_an_error_of_graphopts_own_is_not_taken_for_a_graph_that_cannot_be_timed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", wrong)
    with pytest.raises(AssertionError):
        measured(path).measure_speedups(EXP, [SINE])


def test_large_weights_are_not_all_in_memory_at_once(path: Path, timer: Timer) -> None:
    policy = SearchPolicy(loaded_bytes=4 * 32 * 32)
    candidates = [image(f"a = Conv(x, w); y = {op}(a)", w=weight(32, 32, 1, 1)) for op in ("Exp", "Sin", "Cos")]
    found = measured(path, policy=policy).measure_speedups(image("y = Conv(x, w)", w=weight(32, 32, 1, 1)), candidates)
    assert [speedup.median for speedup in found] == [2, 2, 2]
    assert timer.asked == [2, 2, 2]


@pytest.mark.usefixtures("timer")
def test_weights_in_files_of_their_own_come_along(path: Path, tmp_path: Path) -> None:
    model = parse(IMAGE, "a = Conv(x, w); y = Exp(a)", {"w": weight(32, 32, 1, 1)}, outputs=OTHER)
    onnx_io.save_model(onnx_io.load_model(model), tmp_path / "model.onnx", external=True)
    lying = onnx_io.load_model(tmp_path / "model.onnx").graph
    infer_graph(lying)
    assert measured(path).measure_speedups(lying, [image("y = Conv(x, w)", w=weight(32, 32, 1, 1))])[0].median == 2


@pytest.mark.usefixtures("timer")
def test_inputs_are_what_their_readers_take(path: Path) -> None:
    inputs, outputs = "int64[9] tokens, bool[9,16] mask", "float[9,16] y"
    body = "e = Gather(table, tokens); a = Where(mask, e, z); y = {}(a)"
    weights: dict[str, Any] = {"table": weight(3, 16), "z": np.zeros((), np.float32)}
    before, after = (graph(inputs, body.format(op), outputs, **weights) for op in ("Exp", "Sin"))
    assert measured(path).measure_speedups(before, [after])[0].median == 2


def test_where_there_can_be_no_folder_the_run_goes_on(
    tmp_path: Path, timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = measured(tmp_path / "file" / "costs.sqlite")
    assert model.measure_speedups(EXP, [SINE]) == model.measure_speedups(EXP, [SINE])
    assert timer.asked == [2]
    assert len(caplog.messages) == 1


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))
    assert open_cost_cache().path == tmp_path / "costs.sqlite"
    monkeypatch.delenv("GRAPHOPT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert "graphopt" in open_cost_cache().path.parts


# -- the machine -------------------------------------------------------------------------------------------------------


def test_the_machine_is_timed_once(path: Path, timer: Timer) -> None:
    """All that the clock says is a second a run."""
    found = Machine.calibrate(SessionSetting(), Cache(path))
    assert found == Machine(2 * 512**3, 12 << 20, 1 / 256, found.block)
    assert found.block in (8, 16)
    assert timer.asked == [1, 1, 1]
    assert Machine.calibrate(SessionSetting(), Cache(path)) == found
    assert timer.asked == [1, 1, 1]
    Machine.calibrate(SessionSetting(threads=2), Cache(path))
    assert len(timer.asked) == 6


@pytest.mark.parametrize("rate", ["0", *NO_NUMBERS])
def test_a_machine_that_cannot_be_is_timed_anew(path: Path, timer: Timer, rate: str) -> None:
    found = Machine.calibrate(SessionSetting(), Cache(path))
    spoiled(path, f'{{"flops_per_second": {rate}, "bytes_per_second": 1, "launch_seconds": 1, "block": 8}}')
    assert Machine.calibrate(SessionSetting(), Cache(path)) == found
    assert len(timer.asked) == 6


@pytest.mark.usefixtures("timer", "full_disk")
def test_a_machine_that_cannot_be_timed_is_taken_for_an_ordinary_one(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Machine.calibrate(SessionSetting(), Cache(path)) == Machine()
    assert "an ordinary one is assumed: 0.onnx cannot be written" in caplog.text
    assert not path.exists()
