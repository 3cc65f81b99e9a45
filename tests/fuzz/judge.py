"""Optimizes drawn legal models in every mode, and judges: right, runnable, no larger, the same when done again.

``python -m tests.fuzz.judge --seconds 600 --start 0`` draws many, and ends with exit code 1 where there is a fault, or
where many models were judged and none of them had one of the traits that are wanted. ``python -m tests.fuzz.judge
17:none 18:exact`` runs single ones again and keeps their files. With ``--shapes`` the models compute with sizes.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

import graphopt
from graphopt.base.errors import GraphoptError
from graphopt.runtime.sample_inputs import NONFINITE
from graphopt.search.stopping import StopReason
from tests.fuzz import drawing, legal, shapes
from tests.fuzz.traits import graphs, has_huge_weights, is_half, traits, wanted

log = logging.getLogger(__name__)

Array: TypeAlias = NDArray[Any]
Found: TypeAlias = Iterable[tuple[str, str]]
"""Kinds of faults, and what is to be said of them."""

MODES: Mapping[str, Mapping[str, Any]] = {
    "none": {"cost": "none"},
    "exact": {"cost": "analytic", "exact": True},
    "analytic": {"cost": "analytic"},
    "opset": {"cost": "none"},
    "keep_nonfinite": {"cost": "analytic", "keep_nonfinite": True},
    "unchecked": {"cost": "analytic", "check": False},
    "strict": {"cost": "analytic", "strict": True},
    "measured": {"cost": "measured", "seconds": 0.5, "threads": 1},
}
"""How models are optimized; each model in one of them, the search with measured costs in few.

A search by estimate ends long before its time is up: what it finds is the same on a busy machine.
"""

UNLOADABLE = "with ONNX Runtime's optimizations on, the original runs, but the optimized model cannot be loaded"
"""From opset 21, ONNX Runtime 1.32 may copy a QuantizeLinear with another type of integers than its `output_dtype`."""

KEEPING = ("exact", "keep_nonfinite")
"""Modes that promise infinities and NaN in their places; the others promise nothing where some were fed."""

CLOSE, HALF_CLOSE = 1e-4, 1e-2
"""Elements may be apart by this much of the largest finite one; by the second where the model has half precision."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run."""

    seed: int
    mode: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.seed}:{self.mode} {self.kind}: {self.detail}"


@dataclass(frozen=True)
class Judged:
    """What became of one model."""

    outcome: str
    faults: tuple[Fault, ...] = ()
    traits: frozenset[str] = frozenset()
    """What there was to get wrong; nothing where the model was not optimized."""


ENOUGH = 1000
"""Models of which some have each of the traits that are wanted."""


@dataclass
class Tally:
    """What became of the models that were drawn."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    traits: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    """Models that were optimized."""

    def add(self, mode: str, judged: Judged) -> None:
        self.outcomes[f"{mode}: {judged.outcome}"] += 1
        self.faults += judged.faults
        self.traits.update(judged.traits)
        self.judged += bool(judged.traits)

    def absent(self, modes: Iterable[str]) -> list[str]:
        """Return the traits that none of many models had: what was found says nothing about them."""
        return [trait for trait in wanted(modes) if not self.traits[trait]] if self.judged >= ENOUGH else []

    def __str__(self) -> str:
        shares = [f"{count / self.judged:6.1%}  {trait}" for trait, count in sorted(self.traits.items())]
        outcomes = [f"{count:6d}  {outcome}" for outcome, count in sorted(self.outcomes.items())]
        kinds = [f"{count:6d}  {kind}" for kind, count in Counter(fault.kind for fault in self.faults).most_common()]
        return "\n".join([*map(str, self.faults), f"of {self.judged} models", *shares, "", *outcomes, *kinds])


def mode_of(seed: int) -> str:
    """Return the mode in which a seed is tried: a tenth of them with a search by measured cost."""
    others = [mode for mode in MODES if mode != "measured"]
    return "measured" if seed % 10 == 9 else others[seed % len(others)]


def options(seed: int, mode: str) -> dict[str, Any]:
    """Return the arguments of `graphopt.optimize` for a seed."""
    target = {"target_opset": drawing.OPSETS[seed // len(MODES) % len(drawing.OPSETS)]} if mode == "opset" else {}
    return {**MODES[mode], **target}


def judge(seed: int, mode: str, draw: Callable[[int], drawing.Model] = legal.draw) -> Judged:
    """Optimize one drawn model and say what became of it, with all that is wrong."""
    drawn = draw(seed)
    before = _session(drawn.proto)
    if before is None:
        return Judged("not runnable as it is")
    chosen = options(seed, mode)
    try:
        result = graphopt.optimize(drawn.proto, **chosen)
        again = graphopt.optimize(result.model, **chosen)
    except GraphoptError as error:
        if mode == "opset" and "opset" in str(error):
            return Judged("refused: the opset cannot express it")
        if mode == "opset" and UNLOADABLE in str(error) and "No rewrite made the difference" in str(error):
            return Judged("refused: ONNX Runtime's optimizer fails in that opset")
        if mode == "strict" and f"{NONFINITE} values" in str(error):
            return Judged("refused: infinities that were fed are lost")
        if mode == "strict" and has_huge_weights(drawn.proto) and "NaN or infinite in one model only" in str(error):
            return Judged("refused: sums of huge weights overflow elsewhere")  # what is folded adds in another order
        return Judged("fault", (Fault(seed, mode, type(error).__name__, str(error)),))
    except Exception:  # whatever it is: that is what is looked for
        return Judged("fault", (Fault(seed, mode, "traceback", traceback.format_exc()),))
    found = (*_sizes(drawn.proto, result, again, mode), *_values(drawn, before, result.model, mode))
    faults = tuple(Fault(seed, mode, kind, detail) for kind, detail in found)
    return Judged("fault" if faults else "right", faults, traits(drawn, result, mode, chosen))


def _sizes(given: onnx.ModelProto, result: graphopt.Result, again: graphopt.Result, mode: str) -> Found:
    """More nodes than before, and what a second run changes."""
    before, after = count(given.graph), count(result.model.graph)
    if after > before and mode != "opset" and not _is_searched(result):
        yield "more nodes", f"{before} became {after} by {_steps(result)}"
    once, twice = (found.model.SerializeToString(deterministic=True) for found in (result, again))
    if once != twice and not (_may_find_more(result) and _is_searched(again)) and not _is_left_out(result, again):
        yield "not idempotent", f"{_steps(again)} after {_steps(result)}"


def _steps(result: graphopt.Result) -> str:
    return " ".join(dict.fromkeys(rewrite.name for rewrite in result.report.rewrites)) or "nothing"


def _is_left_out(result: graphopt.Result, again: graphopt.Result) -> bool:
    """Whether the second run takes what the check refused in the first: its inputs, and what it is near to, differ."""
    notes = " ".join(note for note in result.report.notes if ": with it, the model is" in note)
    return any(f"'{rewrite.name}' was left out" in notes for rewrite in again.report.rewrites)


def _may_find_more(result: graphopt.Result) -> bool:
    """Whether the report says that a search was cut short, or rests on what was measured."""
    timing = result.report.timing
    return timing is not None and (timing.cost == "measured" or timing.stop == StopReason.TIME)


def _is_searched(result: graphopt.Result) -> bool:
    """Whether the report shows a find that was taken."""
    timing = result.report.timing
    return timing is not None and any(group.is_taken for group in timing.groups)


def count(graph: onnx.GraphProto) -> int:
    """Return the number of nodes of a graph and of its bodies, without constants."""
    return sum(node.op_type != "Constant" for each in graphs(graph) for node in each.node)


def _values(drawn: drawing.Model, before: Any, after: onnx.ModelProto, mode: str) -> Found:
    """Differences between the two in ONNX Runtime, which rewrites neither, on plain and on special inputs."""
    session = _session(after)
    if session is None:
        yield "unrunnable", ""
        return
    kinds = [(), drawing.NONFINITE if mode in KEEPING else drawing.TINY]
    rounding = CLOSE
    if is_half(drawn.proto) and mode != "exact":
        kinds, rounding = [()], HALF_CLOSE  # where two casts meet ONNX Runtime leaves one out, and its overflow
    may_overflow = mode != "exact" and has_huge_weights(drawn.proto)
    for seed, (numbers, sizes) in enumerate(itertools.product(kinds, (drawing.SIZES, drawing.OTHER_SIZES))):
        feeds = drawn.feeds(seed, numbers, sizes)
        wanted = _run(before, feeds)
        if wanted is None:
            continue
        found = _run(session, feeds)
        if found is None:
            yield "unrunnable", f"on inputs {seed}"
            return
        for output, a, b in zip(before.get_outputs(), wanted, found, strict=True):
            judged = _without_overflow(a, b) if may_overflow else b
            detail = difference(a, judged, 0.0 if mode == "exact" else rounding)
            if detail and is_half(drawn.proto) and _agree_in_half(drawn.proto, after, feeds, output.name):
                continue
            if detail and (mode == "exact" or not _is_excused(before, session, feeds, output.name, a, b)):
                yield ("wrong on special values" if numbers else "wrong"), f"{output.name}, inputs {seed}: {detail}"
                return


def _without_overflow(a: Array, b: Array) -> Array:
    """Return the second with the first's elements where these have overflown.

    Rounding in another order may keep them finite: no proof says anything of overflow but that there is none anew.
    """
    alike = a.dtype == b.dtype and a.shape == b.shape and a.dtype.kind == "f"
    return np.where(np.isfinite(a), b, a) if alike else b


def difference(a: Array, b: Array, rounding: float) -> str:
    """Return what differs by more than so much of the largest element, without rounding in any bit; "" for nothing."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{a.shape} became {b.dtype}{b.shape}"
    same = _close(a, b, rounding) if rounding and a.dtype.kind == "f" else _equal(a, b)
    wrong = np.argwhere(~np.asarray(same))
    if not len(wrong):
        return ""
    first = tuple(wrong[0])
    return f"{a[first]!r} became {b[first]!r} at {[int(i) for i in first]}, {len(wrong)} of {a.size}"


def _equal(a: Array, b: Array) -> Array:
    """Where two arrays are equal in every bit; one NaN is as good as another."""
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    return np.asarray(((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b)))


def _close(a: Array, b: Array, rounding: float) -> Array:
    """Return where two arrays agree but for rounding."""
    usable = np.isfinite(a)
    wide, other = a.astype(np.float64), b.astype(np.float64)
    largest = np.abs(wide[usable]).max(initial=1e-3)
    with np.errstate(all="ignore"):
        near = np.abs(wide - other) <= rounding * largest
    special = (wide == other) | (np.isnan(wide) & np.isnan(other))
    return np.asarray(np.where(usable, near, special))


def _is_excused(before: Any, after: Any, feeds: Mapping[str, Array], output: str, a: Array, b: Array) -> bool:
    return a.shape == b.shape and (
        _is_unsteady(before, feeds, output, a, b)
        or _turns_on_zeros(after, feeds, output, a, b)
        or _overflows(before, after, feeds, output, a, b)
    )


def _agree_in_half(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], output: str) -> bool:
    """Whether two models agree where all their values of half precision are outputs, and so are rounded.

    ONNX Runtime has few half kernels: beside a cast, it may compute with numbers that were never rounded to half.
    """
    sessions = [_session(_with_half_outputs(proto)) for proto in (before, after)]
    one, other = ([] if session is None else session.run([output], dict(feeds)) for session in sessions)
    return bool(one and other) and not difference(one[0], other[0], HALF_CLOSE)


def _with_half_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    listed = {value.name for value in shown.graph.output}
    for value in onnx.shape_inference.infer_shapes(proto).graph.value_info:
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16 and value.name not in listed:
            shown.graph.output.append(value)
    return shown


LARGE = 1e15
"""Finite inputs beyond this are cut off to see whether a model without the largest numbers still overflows."""


def _overflows(before: Any, after: Any, feeds: Mapping[str, Array], output: str, a: Array, b: Array) -> bool:
    """Whether both differ only where the original is infinite, and agree where inputs are not the largest of a type.

    Products that are computed in another order overflow elsewhere; only `exact` computes them in the same.
    """
    if a.dtype.kind != "f" or not np.all(_close(a, b, CLOSE) | (np.isinf(a) & np.isfinite(b))):
        return False
    smaller = {name: _without_largest(array) for name, array in feeds.items()}
    return not difference(before.run([output], smaller)[0], after.run([output], smaller)[0], CLOSE)


def _without_largest(array: Array) -> Array:
    return np.where(np.isfinite(array), np.clip(array, -LARGE, LARGE), array) if array.dtype == np.float32 else array


def _is_unsteady(session: Any, feeds: Mapping[str, Array], output: str, a: Array, b: Array) -> bool:
    """Whether the original itself is as far off where its inputs change by a few roundings."""
    with np.errstate(all="ignore"):
        off = np.abs(b.astype(np.float64) - a.astype(np.float64))
        excused = (off == 0) | (np.isnan(a) & np.isnan(b))
        for seed in range(8):
            moved = {name: _moved(array, seed) for name, array in feeds.items()}
            other = session.run([output], moved)[0]
            if other.shape != a.shape:
                return True
            excused |= np.abs(other.astype(np.float64) - a.astype(np.float64)) * 10 >= off
            excused |= np.isfinite(other) != np.isfinite(a)
    return bool(np.all(excused))


def _turns_on_zeros(session: Any, feeds: Mapping[str, Array], output: str, a: Array, b: Array) -> bool:
    """Whether a result becomes the original's where zeros among the inputs have another sign.

    Only `exact` promises that sign: ONNX Runtime's Where makes 0 of -0, and what is divided by it another infinity.
    """
    alike = _close(a, b, CLOSE)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        turned = {name: _with_signs(array, rng) for name, array in feeds.items()}
        other = session.run([output], turned)[0]
        alike |= other.shape == a.shape and _close(a, other, CLOSE)
    return bool(np.all(alike))


def _with_signs(array: Array, rng: np.random.Generator) -> Array:
    """Return an array whose zeros have signs that are drawn."""
    if array.dtype.kind != "f":
        return array
    return np.where(array == 0, rng.choice(np.array([0.0, -0.0], array.dtype), array.shape), array)


def _moved(array: Array, seed: int) -> Array:
    """An array of floats with each element changed by a few roundings up or down, or not at all."""
    if array.dtype.kind != "f":
        return array
    by = np.random.default_rng(seed).choice([-1, 0, 1], array.shape) * (1e-3 if array.dtype == np.float16 else 3e-6)
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + by), array.dtype)


def _session(proto: onnx.ModelProto) -> Any:
    """A session that runs a model as it is written; None where there is no kernel for some node."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level, settings.intra_op_num_threads = 4, 1
    try:
        return onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    except Exception:  # its errors share no base
        return None


def _run(session: Any, feeds: Mapping[str, Array]) -> list[Array] | None:
    try:
        found: list[Array] = session.run(None, dict(feeds))
    except Exception:  # its errors share no base
        return None
    return found


def soak(cases: Iterable[tuple[int, str]], seconds: float, draw: Callable[[int], drawing.Model] = legal.draw) -> Tally:
    """Judge cases until they or the seconds are used up, or Ctrl-C."""
    tally, end = Tally(), time.monotonic() + seconds
    with suppress(KeyboardInterrupt), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed, mode in cases:
            if time.monotonic() > end:
                break
            judged = judge(seed, mode, draw)
            tally.add(mode, judged)
            for fault in judged.faults:
                log.warning("%s", fault)
    return tally


def _again(cases: Iterable[str], draw: Callable[[int], drawing.Model]) -> int:
    """Judge single cases and keep their files; return the exit code."""
    folder, faulty = Path(tempfile.mkdtemp(prefix="drawn-")), 0
    for case in cases:
        seed, mode = case.split(":")
        path = folder / f"{seed}.onnx"
        onnx.save(draw(int(seed)).proto, path)
        judged = judge(int(seed), mode, draw)
        print(f"{case} {judged.outcome}: {path}", *judged.faults, sep="\n  ")
        faulty |= bool(judged.faults)
    return faulty


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.judge", description=__doc__)
    parser.add_argument("cases", nargs="*", help="SEED:MODE, to run again")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--modes", default="", help="all in these modes, with commas between them")
    parser.add_argument("--shapes", action="store_true", help="models that compute with sizes")
    given = parser.parse_args()
    draw = shapes.draw if given.shapes else legal.draw
    if given.cases:
        return _again(given.cases, draw)
    modes = [mode for mode in given.modes.split(",") if mode]
    cases = ((n, modes[n % len(modes)] if modes else mode_of(n)) for n in itertools.count(given.start))
    tally = soak(cases, given.seconds, draw)
    absent = [] if given.shapes else tally.absent(modes or MODES)
    print(tally, *(f"no model was {trait}" for trait in absent), sep="\n")
    return int(bool(tally.faults or absent))


if __name__ == "__main__":
    sys.exit(main())
