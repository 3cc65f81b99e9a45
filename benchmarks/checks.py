"""Difference of an outcome from its original: ``python -m benchmarks.checks`` measures it in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from benchmarks.environment import one_line
from graphopt.runtime.input_sizes import usual_sizes
from graphopt.runtime.measure import TimingSchedule, time_interleaved
from graphopt.runtime.model_sketch import sketch_model
from graphopt.runtime.sample_inputs import NORMAL, make_feeds
from graphopt.runtime.session_setting import SessionSetting

Outputs: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by the names of a model's outputs."""

TOLERANCE = 1e-4
"""Largest accepted `difference` on the CPU."""

DEVICE_TOLERANCE = 2e-2
"""The same on devices: CUDA multiplies in TF32, of which each number has an error of up to 5e-4."""

FLOOR = 0.1
"""Least scale of a difference, as a part of the largest magnitude: with TOLERANCE, 1e-5 of it is rounding."""

INSENSITIVE = 10 * TOLERANCE * FLOOR
"""Outputs that move by a smaller part of their magnitude, from input to input, cannot show a wrong outcome."""

QUANTA = 2
"""Accepted differences beyond the tolerance, as a multiple of how far ONNX Runtime's own optimization takes the
original: each step of a quantized model rounds to a quantum, and where one differs, all that follow do. Deep nets of
random weights make much of rounding, too: EfficientNet-B0 at 224 pixels is 5e-5 off its values in double precision."""

SEEDS = (0, 1, 2)
LOADS = 3
"""Sessions that are made of either model to measure loading: the processor time of a single one is chance."""

_TINY = 1e-30
"""Scale in the place of zero."""


def difference(expected: Outputs, actual: Outputs, movement: Mapping[str, float]) -> float:
    """Return the largest difference, relative to how far outputs move; infinity for other names, shapes and NaN."""
    if expected.keys() != actual.keys() or any(expected[name].shape != actual[name].shape for name in expected):
        return float("inf")
    gaps = [0.0]
    for name, wanted in expected.items():
        left, right = wanted.astype(np.float64), actual[name].astype(np.float64)
        scale = max(movement[name], FLOOR * _magnitude(left), _TINY)
        gaps.append(float(np.abs(left - right).max(initial=0.0)) / scale)
    return float("inf") if any(np.isnan(gaps)) else max(gaps)


def movement(outputs: Sequence[Outputs]) -> dict[str, float]:
    """Return how far each output moves between inputs: the root mean square of the largest change."""
    return {
        name: max((_deviation(left[name], right[name]) for left, right in combinations(outputs, 2)), default=0.0)
        for name in outputs[0]
    }


def is_insensitive(outputs: Sequence[Outputs]) -> bool:
    """Return whether no output moves beyond rounding from input to input."""
    moved = movement(outputs)
    return all(moved[name] <= INSENSITIVE * max(_magnitude(found[name]) for found in outputs) for name in moved)


def _magnitude(values: np.ndarray[Any, Any]) -> float:
    return float(np.abs(values.astype(np.float64)).max(initial=0.0))


def _deviation(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Return the root mean square of the difference; outputs of two shapes have moved by their magnitude."""
    if left.shape != right.shape:
        return max(_magnitude(left), _magnitude(right))
    gap = left.astype(np.float64) - right.astype(np.float64)
    return float(np.sqrt(np.mean(gap**2))) if gap.size else 0.0


def load_inputs(folder: str) -> dict[str, np.ndarray[Any, Any]] | None:
    """Return the inputs that are kept in a folder; None if there is no such folder."""
    return {path.stem: np.load(path) for path in Path(folder).glob("*.npy")} if os.path.isdir(folder) else None


def feeds(source: str, folder: str, seed: int) -> Mapping[str, Any]:
    """Return inputs of a model: those kept in the folder, or ordinary ones.

    These are normal numbers, tokens in range, open sizes as in use.
    """
    kept = load_inputs(f"{folder}/inputs-{seed}")
    if kept is not None:
        return kept
    wanted = sketch_model(onnx.load(source))
    return make_feeds(wanted, usual_sizes(wanted, {})[0], seed=seed, style=NORMAL)


def computed(session: Any, source: str, folder: str, seed: int) -> dict[str, Any]:
    """Return what a session computes of the inputs of a model."""
    found = session.run(None, feeds(source, folder, seed))
    return dict(zip([output.name for output in session.get_outputs()], found, strict=True))


def reference(source: str, folder: str) -> dict[str, Any]:
    """Keep what the original computes on the CPU, not optimized; return the error if that cannot be compared with."""
    try:
        session = SessionSetting().open(source, optimize=False)
        found = [computed(session, source, folder, seed) for seed in SEEDS]
    except Exception as error:  # whatever stops the original from running is the row's result
        return {"error": f"the original does not run: {one_line(error)}"}
    if any(not np.isfinite(values.astype(np.float64)).all() for outputs in found for values in outputs.values()):
        return {"error": "the original computes numbers that are not finite"}
    if is_insensitive(found):
        return {"error": "insensitive: the outputs are the same for all inputs"}
    for seed, outputs in zip(SEEDS, found, strict=True):
        np.savez(Path(folder) / f"expected-{seed}.npz", *outputs.values())  # by position: names may be no file names
    return {}


def check(source: str, target: str, folder: str, provider: str, threads: int) -> dict[str, Any]:
    """Return how far the outcome, optimized by ONNX Runtime as when it is timed, is from `reference`, and its loading.

    Loading is the processor time of making a session, as a multiple of the original's.
    """
    setting = SessionSetting(provider, threads)
    names = [output.name for output in onnx.load(source).graph.output]
    expected = []
    for seed in SEEDS:
        with np.load(Path(folder) / f"expected-{seed}.npz") as held:
            expected.append({name: held[f"arr_{number}"] for number, name in enumerate(names)})
    try:
        session = setting.open(target)
        actual = [computed(session, source, folder, seed) for seed in SEEDS]
    except Exception as error:  # whatever stops the outcome from running is its result
        return {"error": f"does not run: {one_line(error)}"}
    if list(actual[0]) != names:
        return {"wrong": "the outputs have other names"}
    moved = movement(expected)

    def gap_of(found: Sequence[Outputs]) -> float:
        return max(difference(*pair, moved) for pair in zip(expected, found, strict=True))

    gap, accepted = gap_of(actual), TOLERANCE if setting.is_cpu else DEVICE_TOLERANCE
    if accepted < gap < float("inf"):
        optimized = setting.open(source)
        own = QUANTA * gap_of([computed(optimized, source, folder, seed) for seed in SEEDS])
        accepted += own if own < 1 else 0.0  # beyond, it tells no more than another input does
    if not gap <= accepted:
        return {"wrong": f"outputs differ by {gap:.2g} of how far they move"}
    runs = [lambda path=path: setting.open(path) for path in (source, target)]
    before, after = time_interleaved(runs, TimingSchedule(seconds=0, rounds=(LOADS, LOADS)), meter=time.process_time)
    return {"difference": gap, "loading": round(after.minimum / before.minimum, 3)}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    print(json.dumps(check(**arguments) if sys.argv[1] == "check" else reference(**arguments)))
