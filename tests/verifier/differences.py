"""What is proved is run: both sides of a rule on one instance, in ONNX Runtime, are to be the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from graphopt.base.dtype import COMPUTE_DTYPES, DType
from graphopt.io import onnx_io
from graphopt.language.coverage import covers
from graphopt.language.proof import Proof, ProofModel
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import walk_term
from graphopt.language.type_inference import NoInstance
from graphopt.operators.inference import infer_graph
from graphopt.operators.operator_classes import depends_on_dtype
from graphopt.rewrite.gate import deviating_dtypes, prove_instance
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.sites import Site
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.instance_models import build_models
from tests.verifier.running import Failure, Run, run

Array = NDArray[Any]

TOLERANCE = {2: 5e-2, 4: 2e-3, 8: 1e-6}
"""By bytes of an element, relative to the largest number on the way."""


@dataclass(frozen=True)
class Difference:
    """A rule that is proved, and an instance at which its sides differ."""

    rule: Rule
    proof: Proof
    instance: ConcreteInstance
    what: str

    @property
    def is_within(self) -> bool:
        """Whether the instance is one of those that the proof enumerated: ranks and lists to 4."""
        arrays = (value.ndim for value in self.instance.values.values() if isinstance(value, np.ndarray))
        lists = (len(value) for value in self.instance.values.values() if isinstance(value, tuple))
        return max((*arrays, *lists), default=0) <= 4

    def __str__(self) -> str:
        place = "within what was enumerated" if self.is_within else "BEYOND what was enumerated"
        return f"{self.proof.model} {self.rule}\n    {place}: {self.what}\n    {self.instance}"


def difference(rule: Rule, proof: Proof, instance: ConcreteInstance, rng: np.random.Generator) -> str | None:
    """Return how the sides differ in what the proof claims, "" where they agree, None where it claims nothing.

    Half precision is not compared by bits: ONNX Runtime computes it in single precision by casts, and leaves those out
    that meet, which depends on what stands beside them. An index out of range is undefined, though a kernel that looks
    nothing up may not look at it.
    """
    instance = with_integer_extremes(rule, instance, rng)
    if proof.model is not ProofModel.REAL:
        instance = _with_specials(rule, proof, instance, rng)
    try:
        left, right = (_with_all_outputs(side) for side in build_models(rule, instance))
        before = run(left, instance.feeds(rule))
    except (NoInstance, UndecidedScalarError, Failure):
        return None
    if not (_as_inferred(left, before) and _is_licensed(rule, proof, instance, before)):
        return None
    try:
        after = run(right, instance.feeds(rule))
    except Failure as failure:
        unseen = "out of data bounds" in str(failure) and not any(array.size for array in before.outputs)
        return None if failure.lacks or unseen else f"the right side is refused: {failure}"
    arrays = [*instance.feeds(rule).values(), *before.outputs, *before.inside]
    if not _can_be_cast(rule, arrays):
        return None
    if proof.model is ProofModel.REAL and not all(map(_all_finite, arrays)):
        return None
    arrays += after.inside
    as_bits = (
        proof.model is ProofModel.EXACT
        and not deviating_dtypes(rule)
        and not any(a.dtype == np.float16 for a in arrays)
    )
    return _gap(before, after, _same_bits if as_bits else partial(_close, _largest(arrays)))


def is_applied(rule: Rule, proof: Proof, instance: ConcreteInstance) -> bool:
    """Whether the gate lets the rule be applied there: the instance is covered, or is proved when it is met."""
    graph = onnx_io.load_model(build_models(rule, instance)[0]).graph
    infer_graph(graph)
    answers = [Site.from_match(graph, match).answer for match in find_matches(rule, graph)]
    return any(covers(proof.coverage, answer) or not prove_instance(rule, proof, answer).failure for answer in answers)


def _gap(before: Run, after: Run, same: Callable[[Array, Array], bool]) -> str:
    for one, other in zip(before.outputs, after.outputs, strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{one.dtype}{list(one.shape)} becomes {other.dtype}{list(other.shape)}"
        if not same(one, other):
            return f"{one.tolist()} becomes {other.tolist()}"[:600]
    return ""


def _is_licensed(rule: Rule, proof: Proof, instance: ConcreteInstance, found: Run) -> bool:
    """Whether the gate lets a rule be applied where its left side computes these element types."""
    own = {DType.from_numpy(array.dtype) for array in found.outputs}
    computed = own | {DType.from_numpy(array.dtype) for array in found.inside} - {DType.BOOL}
    read = {DType.from_numpy(v.dtype) for v in instance.values.values() if isinstance(v, np.ndarray)}
    if depends_on_dtype(rule) and not computed | read <= set(COMPUTE_DTYPES):
        return False
    if any(not dtype.is_float for dtype in deviating_dtypes(rule) & computed):
        return False
    return all(map(proof.licenses, computed))


def _as_inferred(model: onnx.ModelProto, found: Run) -> bool:
    """Whether the outputs have the sizes that ONNX gives them: Max and Min of empty tensors have not."""
    declared = ([d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.output)
    sizes = zip(declared, found.outputs, strict=False)
    return all(d == n for dims, array in sizes for d, n in zip(dims, array.shape, strict=False) if d)


def _can_be_cast(rule: Rule, arrays: Sequence[Array]) -> bool:
    """Whether no float is cast to an integer type that does not hold it: what comes of it then, ONNX leaves open."""
    if not depends_on_dtype(rule):
        return True
    floats = [array.astype(np.float64) for array in arrays if array.dtype.kind == "f"]
    ranges = [np.iinfo(array.dtype) for array in arrays if array.dtype.kind in "iu"]
    return all(bool(np.all((array >= r.min) & (array <= r.max))) for array in floats for r in ranges)


def _with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """With the values inside as outputs, too, after its own."""
    known = {value.name for value in model.graph.output}
    inside = [name for node in model.graph.node for name in node.output if name not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inside)
    return model


def _with_specials(rule: Rule, proof: Proof, instance: ConcreteInstance, rng: np.random.Generator) -> ConcreteInstance:
    """With infinities, NaN and zeros of both signs in some places; constants only where bits are claimed."""
    asserted = {part for condition in rule.conditions for part in walk_term(condition)}
    values = dict(instance.values)
    for name, hole in rule.holes.items():
        array = values[name]
        fed = hole.kind == "tensor" or proof.model is ProofModel.EXACT
        if (
            fed
            and hole not in asserted
            and isinstance(array, np.ndarray)
            and array.dtype.kind == "f"
            and array.size
            and rng.random() < 0.6
        ):
            changed = array.copy()
            places = rng.integers(0, array.size, max(1, array.size // 4))
            changed.flat[places] = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], array.dtype), len(places))
            values[name] = changed
    return ConcreteInstance(instance.dims, values)


def with_integer_extremes(rule: Rule, instance: ConcreteInstance, rng: np.random.Generator) -> ConcreteInstance:
    """Replace half of the integer inputs by the least numbers of their type, the greatest, or both by turns.

    Kernels wrap there, and only there, where integers are added up.
    """
    values = dict(instance.values)
    for name, hole in rule.holes.items():
        array = values[name]
        if hole.kind == "tensor" and isinstance(array, np.ndarray) and array.dtype.kind in "iu" and rng.random() < 0.5:
            limits = np.iinfo(array.dtype)
            numbers = ((limits.min,), (limits.max,), (limits.min, limits.max))[rng.integers(3)]
            values[name] = np.resize(np.array(numbers, array.dtype), array.shape)
    return ConcreteInstance(instance.dims, values, instance.stored_shapes)


def _all_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _largest(arrays: Sequence[Array]) -> float:
    finite = (
        float(np.abs(a[np.isfinite(a)].astype(np.float64)).max(initial=0.0)) for a in arrays if a.dtype.kind == "f"
    )
    return max([1.0, *finite])


def _same_bits(one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return bool((one == other).all())
    unsigned = np.dtype(f"u{one.dtype.itemsize}")
    nan = np.isnan(one) & np.isnan(other)
    return bool((nan | (np.ascontiguousarray(one).view(unsigned) == np.ascontiguousarray(other).view(unsigned))).all())


def _close(largest: float, one: Array, other: Array) -> bool:
    if one.dtype.kind != "f":
        return bool((one == other).all())
    a, b = one.astype(np.float64), other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= TOLERANCE[one.dtype.itemsize] * largest
    return bool(np.where(np.isfinite(a), near, (a == b) | (np.isnan(a) & np.isnan(b))).all())
