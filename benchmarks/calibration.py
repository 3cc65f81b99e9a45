"""Error rates of decisions: a model against its copy, and against itself with a planted loss, quiet and beside load.

``python -m benchmarks calibration MODEL...`` writes ``benchmarks/results/calibration.jsonl`` and ``calibration.md``.
A decision is made as graphopt makes it: what one race says, in which the original's session was opened first, a second
one has to say, too, in which it is opened last, and of a small gain a third one, in which it is opened first again.
Every race has sessions of its own and ends as those of graphopt do. Of a model and its copy neither is faster, so that
each verdict but "no difference" is an error; a planted gain is the original that spins for a part of its time after
each run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from benchmarks.environment import made
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.measure import FastestRun, RaceTimes, Speedup, TimingSchedule, TimingVerdict, time_race
from graphopt.runtime.session_setting import SessionSetting, make_runner
from graphopt.search.policy import SearchPolicy

PLANTED = (0.0, 0.03)
"""Planted gains: none, and one that is to be detected."""
LIMIT = 20.0
"""Seconds of a race, at most."""
SETTING = SessionSetting(threads=1)


def run(models: Sequence[str], loops: Sequence[int], decisions: int, path: Path) -> Path:
    """Decide, beside each number of busy loops; half as often with a planted gain. The file grows with each kind."""
    rows: list[Row] = []
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for model, beside, gain in product(models, loops, PLANTED):
        with _busy_loops(beside):
            found = [_decide(model, gain) for _ in range(decisions // 2 if gain else decisions)]
        what = {"model": Path(model).stem, "loops": beside, "gain": gain, "decisions": found, "made": conditions}
        rows.append(what)
        write_rows(path, rows, markdown(rows))
        print(" | ".join(_cells(what)))
    return path


def _decide(model: str, gain: float) -> Row:
    """Return what graphopt would say of a model and its copy: that they differ only if all races say so."""
    start = time.perf_counter()
    times, races = list[RaceTimes](), list[Speedup]()
    while not races or (races[-1].verdict is races[0].verdict and len(races) < _races_needed(races)):
        times.append(_race(model, gain, original_is_first=len(races) % 2 == 0))
        races += times[-1].speedups()
    last = races[-1]
    return {
        "ratio": round(last.median, 4),
        "between": [round(last.low, 4), round(last.high, 4)],
        "rounds": sum(race.rounds for race in races),
        "races": len(races),
        "verdict": str(last.verdict if last.verdict is races[0].verdict else TimingVerdict.SAME),
        "seconds": round(time.perf_counter() - start, 2),
        "milliseconds": round(times[-1].original.median * 1e3, 3),
    }


def _races_needed(races: Sequence[Speedup]) -> int:
    """Return how many races have to agree, after those that did."""
    last = races[-1]
    match last.verdict:
        case TimingVerdict.SAME:
            return 1
        case TimingVerdict.SLOWER:
            return 2
        case TimingVerdict.FASTER:
            is_small = last.low < 1 + SearchPolicy().session_margin
            return 3 if len(races) > 1 and is_small else 2


def _race(model: str, gain: float, *, original_is_first: bool) -> RaceTimes:
    """Let a copy of a model race with the model, which may have a planted loss."""
    ready = prepare_models([model, model], SETTING)
    own, copy = ready.sessions if original_is_first else reversed(ready.sessions)
    original, candidate = (make_runner(session, ready.trials[0].feeds, SETTING) for session in (own, copy))
    policy = SearchPolicy()
    open_runs = FastestRun(policy.timing, tells_gains=True)
    schedule = TimingSchedule(seconds=LIMIT, rounds=policy.race_rounds, open_runs=open_runs)
    return time_race(_slower(original, gain), [candidate], schedule, meter=SETTING.timer, policy=policy.timing)


def _slower(call: Callable[[], object], part: float) -> Callable[[], object]:
    """Return a call that takes longer by a part of its time."""
    if not part:
        return call
    spans = []
    for _ in range(20):
        start = time.thread_time()
        call()
        spans.append(time.thread_time() - start)
    extra = statistics.median(spans) * part

    def slow() -> None:
        call()
        end = time.thread_time() + extra
        while time.thread_time() < end:
            pass

    return slow


@contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    """Let so many processes compute beside what is done."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table: how many decisions said what, and what they took."""
    decisions, wanted = row["decisions"], {"faster"} if row["gain"] else {"no difference"}
    called = [each for each in decisions if each["verdict"] != "no difference"]
    large = [each for each in called if abs(each["ratio"] - 1) > 0.02]
    right = sum(each["verdict"] in wanted for each in decisions)
    return (
        str(row["model"]),
        f"{statistics.median(each['milliseconds'] for each in decisions):.3g}",
        str(row["loops"]),
        f"{row['gain']:.0%}" if row["gain"] else "none",
        f"{right} of {len(decisions)}",
        str(len(called)),
        str(len(large)),
        f"{statistics.median(each['rounds'] for each in decisions):g}",
        f"{statistics.median(each['seconds'] for each in decisions):.1f}",
        f"{max(each['seconds'] for each in decisions):.1f}",
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    head = (
        *("model", "ms", "busy loops", "gain", "right", "called different", "by over 2 %", "rounds", "seconds"),
        "longest",
    )
    lines = [
        "# Error rates of decisions",
        "",
        "Decisions between a model and a copy of it, with one thread and its processor time: what one race says a",
        "second one has to say, too, in new sessions, that of the original opened last, and of a small gain a third",
        "one. With a gain the original spins for that part of its time. Rounds and seconds, of all races of a",
        "decision, are medians.",
        "",
        *table(head, map(_cells, rows)),
        "",
        *circumstances(rows),
        "",
        "`python -m benchmarks calibration MODEL...` makes this page.",
    ]
    return "\n".join(lines) + "\n"
