"""Profile of a run by phase and by kind of work, sampled from its stack.

``python -m benchmarks search_time MODEL.onnx...`` writes ``benchmarks/results/search-time.jsonl`` and
``search-time.md``: for each model the seconds of each phase by what was done in them, and how many regions, graphs and
timings they brought. Each model is optimized in a process of its own, with one thread and without the check.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_stack

from benchmarks.environment import job, made
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows

INTERVAL = 0.005
"""Seconds between two samples."""
GIVEN_UP = 900.0
"""Seconds after which a model is given up."""

PHASES = {
    "second race": ("_confirm", "_rematch"),
    "races of sweeps": ("race_sweeps",),
    "first race": ("choose",),
    "making sweeps": ("_make_sweeps",),
    "the bound": ("_light_kernel_share",),
    "the machine": ("_cost_model",),
    "regions": ("_explore",),
    "the original": ("_prepare_original", "measure_pace"),
    "simplify": ("simplify_graph",),
    "load": ("loaded_model",),
    "rules": ("_installed_modules",),
}
"""Functions of graphopt that a phase is in."""
WORK = {
    "profiles": ("estimate_gain", "end_with_kernels"),
    "timed runs": ("seconds",),
    "warming up": ("for_run",),
    "opening": ("open", "open_session"),
    "writing": ("save_model",),
    "inputs": ("random_feeds",),
    "digests": ("_dump_digest", "graph_digest", "kernels_digest"),
    "matching": ("find_trade_matches",),
    "simplifying": ("run",),
    "building": ("apply_move",),
    "estimating": ("_static_graphs", "estimate_seconds"),
}
"""Functions that some work is done in."""
OTHER = "other"


def run(models: Sequence[str], seconds: float, path: Path) -> Path:
    """Optimize each model; the file and the page have it as soon as it is done."""
    rows: list[Row] = []
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for model in models:
        found = job("benchmarks.search_time", model, str(seconds), limit=GIVEN_UP)
        rows.append({"model": Path(model).stem, "limit": seconds, **found, "made": conditions})
        print(json.dumps(rows[-1]))
        write_rows(path, rows, markdown(rows))
    return path


def work(path: str, seconds: str) -> Row:
    """Return where the seconds of one run go, in this process."""
    samples: Counter[tuple[str, str]] = Counter()
    is_done = threading.Event()
    observer = threading.Thread(target=_observe, args=(threading.get_ident(), samples, is_done))
    start = time.perf_counter()
    observer.start()
    import graphopt

    try:
        result = graphopt.optimize(path, threads=1, seconds=float(seconds), check=False, fresh=True)
    finally:
        is_done.set()
        observer.join()
    passed, timing = time.perf_counter() - start, result.report.timing
    parts = {f"{phase}: {what}": round(count * passed / samples.total(), 2) for (phase, what), count in samples.items()}
    found = {} if timing is None else {"regions": timing.regions, "states": timing.states, "trials": timing.trials}
    speedup = timing.speedup.median if timing is not None and timing.speedup is not None else None
    return {"seconds": round(passed, 1), "parts": parts, **found, "speedup": speedup}


def _observe(thread: int, samples: Counter[tuple[str, str]], is_done: threading.Event) -> None:
    while not is_done.wait(INTERVAL):
        names = _running_functions(thread)
        samples[_first(PHASES, names), _first(WORK, names)] += 1


def _running_functions(thread: int) -> list[str]:
    """Return the functions of graphopt on a thread's stack, the innermost first. No frame is held any longer: it would
    keep alive what is to be closed in it."""
    stack = walk_stack(sys._current_frames()[thread])
    return [frame.f_code.co_name for frame, _ in stack if frame.f_globals.get("__name__", "").startswith("graphopt.")]


def _first(kinds: dict[str, tuple[str, ...]], names: Sequence[str]) -> str:
    """Return the first kind of which a function is on the stack."""
    return next((kind for kind, own in kinds.items() if any(name in own for name in names)), OTHER)


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: a table of phases, and one of the work in them."""
    lines = [
        "# Seconds of a run by phase",
        "",
        f"One run a model with `--seconds {rows[0]['limit']:g}`, one thread, without the check: seconds by phase, and",
        "then by what was done in them, sampled from the stack.",
        "",
    ]
    for place, kinds in enumerate(((*PHASES, OTHER), (*WORK, OTHER))):
        head = ("model", "seconds", *kinds) if place else ("model", "speedup", "regions", "graphs", "timings", *kinds)
        lines += [*table(head, [_cells(row, place, kinds) for row in rows if "parts" in row]), ""]
    lines += [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    return (
        "\n".join([*lines, *circumstances(rows), "", "`python -m benchmarks search_time MODEL...` makes this page."])
        + "\n"
    )


def _cells(row: Row, place: int, kinds: Sequence[str]) -> list[str]:
    """Return the seconds of each kind, of the phases or of the work."""
    sums: Counter[str] = Counter()
    for part, seconds in row["parts"].items():
        sums[part.split(": ")[place]] += seconds
    speedup = "" if row["speedup"] is None else f"{row['speedup']:.3f}"
    first = (
        [f"{row['seconds']:g}"] if place else [speedup, *(str(row.get(n, "")) for n in ("regions", "states", "trials"))]
    )
    return [row["model"], *first, *(f"{sums[kind]:.1f}" for kind in kinds)]


if __name__ == "__main__":
    print(json.dumps(work(*sys.argv[1:])))
