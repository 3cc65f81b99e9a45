"""One check or one timing of outcomes, each in a process of its own, which is given JSON and prints its result last."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import tools as peers
from benchmarks.checks import DEVICE_TOLERANCE, TOLERANCE, Outputs, difference, is_insensitive, movement
from graphopt.runtime.inputs import default_sizes
from graphopt.runtime.measure import Schedule, TimingPolicy, interleaved
from graphopt.runtime.profile import HEAVY, profile
from graphopt.runtime.samples import NORMAL
from graphopt.runtime.samples import feeds as sample_feeds
from graphopt.runtime.sessions import Setting, runner
from graphopt.runtime.steps import sketch

SEEDS = (0, 1, 2)

ROUNDS = (7, 60)
"""Fewest and most rounds of a timing."""

LOADS = 3
"""Turns in which each process of a timing makes a session of each outcome: of one alone the time is chance."""

QUANTA = 2
"""So many times as far from the original as ONNX Runtime's own optimization takes it, an outcome may be, beyond the
tolerance: of quantized models each step rounds to a quantum, and where the integers are multiplied otherwise, all that
follow differ. Deep nets of random weights make much of rounding, too: double precision gives of EfficientNet-B0, at 224
pixels, what is 5e-5 of how far outputs move off the original, and 7e-5 off graphopt's outcome."""


def _feeds(source: str, seed: int) -> dict[str, Any]:
    """Ordinary values: normal numbers, token ids in range, masks with something in every row; open dims as in use."""
    wanted = sketch(onnx.load(source))
    return sample_feeds(wanted, default_sizes(wanted, {}), seed=seed, style=NORMAL)


def _computed(session: Any, source: str, seed: int) -> dict[str, Any]:
    """What a session computes, by output name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, _feeds(source, seed)), strict=True))


def _expected(folder: str, seed: int) -> Path:
    """Where the original's outputs lie."""
    return Path(folder) / f"expected-{seed}.npz"


def _loaded(path: Path, names: Sequence[str]) -> dict[str, Any]:
    with np.load(path) as held:
        return {name: held[f"arr_{number}"] for number, name in enumerate(names)}


def reference(job: Mapping[str, Any]) -> dict[str, Any]:
    """Leave what the original computes on the CPU as it stands; why outcomes cannot be compared with it, if so."""
    try:
        session = Setting().open(job["source"], optimize=False)
        found = [_computed(session, job["source"], seed) for seed in SEEDS]
    except Exception as error:  # whatever stops the original from running is the row's result
        return {"error": f"the original does not run: {peers.one_line(error)}"}
    if any(not np.isfinite(values.astype(np.float64)).all() for outputs in found for values in outputs.values()):
        return {"error": "the original computes numbers that are not finite"}
    if is_insensitive(found):
        return {"error": "insensitive: the outputs are the same for all inputs", "insensitive": True}
    for seed, outputs in zip(SEEDS, found, strict=True):
        np.savez(_expected(job["folder"], seed), *outputs.values())
    return {}


def check(job: Mapping[str, Any]) -> dict[str, Any]:
    """The largest difference of the outcome, as ORT optimizes it where it is timed, from the original as it stands."""
    setting = Setting(job["provider"], job["threads"])
    names = [output.name for output in onnx.load(job["source"]).graph.output]
    expected = [_loaded(_expected(job["folder"], seed), names) for seed in SEEDS]
    try:
        session = setting.open(job["target"])
        actual = [_computed(session, job["source"], seed) for seed in SEEDS]
    except Exception as error:  # whatever stops the outcome from running is its result
        return {"error": f"does not run: {peers.one_line(error)}"}
    if list(actual[0]) != names:
        return {"wrong": "the outputs have other names"}
    moved = movement(expected)

    def gap_of(found: Sequence[Outputs]) -> float:
        return max(difference(*pair, moved) for pair in zip(expected, found, strict=True))

    gap, accepted = gap_of(actual), TOLERANCE if setting.is_cpu else DEVICE_TOLERANCE
    if accepted < gap < float("inf"):
        plain = setting.open(job["source"])
        own = gap_of([_computed(plain, job["source"], seed) for seed in SEEDS])
        excused = QUANTA * own
        accepted += excused if excused < 1 else 0.0  # beyond, it tells no more than another input does
    return {"difference": gap} if gap <= accepted else {"wrong": f"outputs differ by {gap:.2g} of how far they move"}


def timed(job: Mapping[str, Any]) -> dict[str, Any]:
    """The original and the outcomes, interleaved: seconds of each round; sessions are made in an order of chance."""
    setting, number = Setting(job["provider"], job["threads"]), job["number"]
    feeds = _feeds(job["source"], SEEDS[0])
    paths = {"": job["source"], **job["outcomes"]}
    order = random.Random(number).sample(list(paths), len(paths))
    sessions = {tool: setting.open(paths[tool]) for tool in order}
    runs = [runner(sessions[tool], feeds, setting) for tool in paths]
    samples = interleaved(
        runs, Schedule(seconds=job["seconds"], rounds=ROUNDS, width=TimingPolicy().interval_width), seed=number
    )
    return {
        "samples": {tool: found.seconds for tool, found in zip(paths, samples, strict=True)},
        "loads": _loads(paths, setting),
        "headroom": _headroom(job["source"], setting, feeds) if setting.is_cpu and number == 0 else None,
    }


def _loads(paths: Mapping[str, str], setting: Setting) -> dict[str, float]:
    """Processor seconds of making a session, the least of some turns."""
    runs = [lambda path=path: setting.open(path) for path in paths.values()]
    found = interleaved(runs, Schedule(seconds=0, rounds=(LOADS, LOADS)), meter=time.process_time)
    return {tool: samples.minimum for tool, samples in zip(paths, found, strict=True)}


def _headroom(source: str, setting: Setting, feeds: Mapping[str, Any]) -> float | None:
    """ONNX Runtime's time in all kernels over its time in those of Conv, Gemm and MatMul, of the original."""
    found = profile(source, setting, feeds)
    heavy = sum(row.seconds for row in found.rows if row.operator in HEAVY)
    return round(found.kernels / heavy, 3) if heavy else None


def main(arguments: Iterable[str]) -> None:
    """A job, given as JSON; its result is the last line of the output."""
    kind, job = arguments
    found = {"reference": reference, "check": check, "time": timed}[kind](json.loads(job))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
