"""One search, with its seconds by phase and by kind of work, sampled from its stack; printed as JSON.

``python -P benchmarks/search_sampler.py MODEL.onnx SECONDS`` takes graphopt from ``PYTHONPATH``, so that a search of
another revision can be sampled, too: hence this file imports nothing of the benchmarks.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from traceback import walk_stack
from typing import Any

INTERVAL = 0.005
"""Seconds between two samples."""

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
    "digests": ("_dump_digests", "graph_digest", "kernels_digest"),
    "matching": ("find_trade_matches",),
    "simplifying": ("run",),
    "building": ("apply_move",),
    "estimating": ("_static_graphs", "estimate_seconds"),
}
"""Functions that some work is done in."""
OTHER = "other"


def work(path: str, seconds: str) -> dict[str, Any]:
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
    counted = ("regions", "states", "trials", "stop")
    found = {} if timing is None else {name: getattr(timing, name) for name in counted}
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


if __name__ == "__main__":
    print(json.dumps(work(*sys.argv[1:])))
