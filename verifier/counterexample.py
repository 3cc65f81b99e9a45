"""Counterexamples: an instance of a rule as two small models whose outputs differ when ONNX Runtime runs them.

What could not be proved is tried: a difference that is run is the only thing that makes a rule REFUTED.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from graphopt.example import Instance, instances, models
from graphopt.rule import Rule

Array: TypeAlias = NDArray[Any]
Run: TypeAlias = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Array]]
TOLERANCE = {2: 2e-2, 4: 1e-3, 8: 1e-6}
"""By bytes of an element, relative to the largest: operands are small and sums short, what is wrong is so by more."""
TRIES = 300


def find(rule: Rule, seconds: float = 4.0) -> str:
    """The smallest of a few counterexamples in words; "" where none was found in time."""
    start, found = time.process_time(), list[tuple[int, str]]()
    for tried, instance in enumerate(instances(rule, seed=1, count=TRIES)):
        if time.process_time() - start > seconds or len(found) == 5 or (found and tried > TRIES // 4):
            break
        try:
            text = difference(rule, instance)
        except Exception:  # this instance of the right side cannot be written as a model: no number fits its type
            continue
        if text:
            size = sum(v.size for v in instance.values.values() if isinstance(v, np.ndarray))
            found.append((size, f"{instance}: {text}"))
    return min(found)[1] if found else ""


def difference(rule: Rule, instance: Instance) -> str:
    """How the two sides of a rule differ at an instance, "" where they agree or the left side does not run."""
    left, right = models(rule, instance)
    feeds = instance.feeds(rule)
    for name, run in (("ONNX Runtime", _onnxruntime), ("onnx.reference", _reference)):
        before = _outcome(run, left, feeds)
        if isinstance(before, str):
            continue
        after = _outcome(run, right, feeds)
        if isinstance(after, str):
            if name == "onnx.reference":
                return f"the right side is not defined ({name}: {after})"
            continue
        return next(filter(None, map(_gap, before, after)), "")
    return ""


def _outcome(run: Run, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array] | str:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return run(model, feeds)
    except Exception as error:  # what a runtime raises has no common base
        return " ".join(str(error).split())[:120]


def _onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, dict(feeds))]


def _gap(before: Array, after: Array) -> str:
    """How two outputs differ; where the first is infinite or no number, the second may be anything."""
    if before.dtype != after.dtype:
        return f"element type {before.dtype} becomes {after.dtype}"
    if before.shape != after.shape:
        return f"shape {list(before.shape)} becomes {list(after.shape)}"
    if before.dtype.kind in "OSU":
        return "" if np.array_equal(before, after) else "texts differ"
    one, other = before.astype(np.float64), after.astype(np.float64)
    finite = np.isfinite(one)
    inexact = before.dtype.kind not in "biu"
    allowed = TOLERANCE[before.itemsize] * float(np.abs(one[finite]).max(initial=0.1)) if inexact else 0.0
    with np.errstate(invalid="ignore"):
        wrong = finite & ~(np.abs(other - one) <= allowed)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"at {list(place)} {one[place]:.6g} becomes {other[place]:.6g}"
