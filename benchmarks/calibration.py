"""Error rates of races: a model against its copy, and against itself with a planted loss, quiet and beside load.

``python -m benchmarks calibration MODEL...`` writes ``benchmarks/results/calibration.jsonl`` and ``calibration.md``.
Every race has two sessions of its own and ends as those of graphopt do. Of a model and its copy neither is faster, so
that each verdict but "no difference" is an error; a planted gain is the original that spins for a part of its time
after each run.
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
from graphopt.runtime.measure import FastestRun, TimingSchedule, time_race
from graphopt.runtime.session_setting import SessionSetting, make_runner
from graphopt.search.policy import SearchPolicy

PLANTED = (0.0, 0.03)
"""Planted gains: none, and one that is to be detected."""
LIMIT = 20.0
"""Seconds of a race, at most."""
SETTING = SessionSetting(threads=1)


def run(models: Sequence[str], loops: Sequence[int], races: int, path: Path) -> Path:
    """Race, beside each number of busy loops; half as many races have a planted gain. The file grows with each kind."""
    rows: list[Row] = []
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for model, beside, gain in product(models, loops, PLANTED):
        with _busy_loops(beside):
            found = [_race(model, gain) for _ in range(races // 2 if gain else races)]
        what = {"model": Path(model).stem, "loops": beside, "gain": gain, "races": found, "made": conditions}
        rows.append(what)
        write_rows(path, rows, markdown(rows))
        print(" | ".join(_cells(what)))
    return path


def _race(model: str, gain: float) -> Row:
    """Return what a race says of a model and its copy, which is opened second, as candidates are."""
    ready = prepare_models([model, model], SETTING)
    own, copy = (make_runner(session, ready.trials[0].feeds, SETTING) for session in ready.sessions)
    policy = SearchPolicy()
    open_runs = FastestRun(policy.timing, tells_gains=True)
    schedule = TimingSchedule(seconds=LIMIT, rounds=policy.race_rounds, open_runs=open_runs)
    start = time.perf_counter()
    times = time_race(_slower(own, gain), [copy], schedule, meter=SETTING.timer, policy=policy.timing)
    (ratio,) = times.speedups()
    return {
        "ratio": round(ratio.median, 4),
        "between": [round(ratio.low, 4), round(ratio.high, 4)],
        "rounds": ratio.rounds,
        "verdict": str(ratio.verdict),
        "seconds": round(time.perf_counter() - start, 2),
        "milliseconds": round(times.original.median * 1e3, 3),
    }


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
    """Return a row of the table: how many races were called what, and what they took."""
    races, wanted = row["races"], {"faster"} if row["gain"] else {"no difference"}
    called = [race for race in races if race["verdict"] != "no difference"]
    large = [race for race in called if abs(race["ratio"] - 1) > 0.02]
    right = sum(race["verdict"] in wanted for race in races)
    return (
        str(row["model"]),
        f"{statistics.median(race['milliseconds'] for race in races):.3g}",
        str(row["loops"]),
        f"{row['gain']:.0%}" if row["gain"] else "none",
        f"{right} of {len(races)}",
        str(len(called)),
        str(len(large)),
        f"{statistics.median(race['rounds'] for race in races):g}",
        f"{statistics.median(race['seconds'] for race in races):.1f}",
        f"{max(race['seconds'] for race in races):.1f}",
    )


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    head = (
        *("model", "ms", "busy loops", "gain", "right", "called different", "by over 2 %", "rounds", "seconds"),
        "longest",
    )
    lines = [
        "# Error rates of races",
        "",
        "Races of a model with a copy of it, each in sessions of its own, with one thread and its processor time; with",
        "a gain the original spins for that part of its time. Rounds and seconds are medians.",
        "",
        *table(head, map(_cells, rows)),
        "",
        *circumstances(rows),
        "",
        "`python -m benchmarks calibration MODEL...` makes this page.",
    ]
    return "\n".join(lines) + "\n"
