"""Tolerances: how far two equal models may be apart because they round elsewhere and add in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.operators.operator import ResultDtypeSource, SummationLength
from graphopt.runtime.model_sketch import FlatNode, ModelSketch

ACCUMULATOR_EPSILON = 2.0**-23
"""Sums of half-precision numbers are kept in single precision."""
ASSUMED_TERMS = 256
"""Length that is assumed of a sum whose length no weight tells."""


_EPSILON: Mapping[DType, float] = {
    DType.BFLOAT16: 2.0**-7,
    DType.FLOAT16: 2.0**-10,
    DType.FLOAT: 2.0**-23,
    DType.DOUBLE: 2.0**-52,
}


def output_tolerances(
    model: ModelSketch, *, alike: bool = False, paths: Mapping[str, ValuePath] | None = None
) -> dict[str, tuple[float, str]]:
    """Return how far each output of two equal models may be apart, relative to its largest magnitude; and why.

    Rewrites round elsewhere and add in another order. Each rounding to the coarsest float type on the way to the output
    errs by up to ε, independently: √L of it over the L operators on the longest path. The sum of K terms errs by about
    √K of the precision that it is kept in. L gets a few operators more for the approximations of exp, tanh and erf, and
    everything a factor of four: 4·(ε·√(16+L) + ε₃₂·√K). ONNX Runtime's own optimizations stay 3 to 50 times below it on
    the models in `tests/fixtures`. Where many numbers are `alike`, they are rounded alike: the errors add up, and there
    is no root. `paths` are those of the model, where they are known.
    """
    paths = value_paths(model) if paths is None else paths
    return {
        name: _output_tolerance(paths.get(name, ValuePath()), model.types.get(name), alike) for name in model.outputs
    }


def _output_tolerance(path: ValuePath, own: DType | None, alike: bool) -> tuple[float, str]:
    dtype = path.dtype or (own if own in _EPSILON else None) or DType.FLOAT
    epsilon = _EPSILON[dtype]
    length, terms = (16 + path.length, path.terms) if alike else (sqrt(16 + path.length), sqrt(path.terms))
    found = 4 * (epsilon * length + min(epsilon, ACCUMULATOR_EPSILON) * terms)
    return found, (
        f"{'4·(ε·(16+L) + ε₃₂·K)' if alike else '4·(ε·√(16+L) + ε₃₂·√K)'} of the largest element: ε = {epsilon:.1e}"
        f" ({dtype.name}, the coarsest type in which something on the way to it is computed),"
        f" L = {path.length} operators in a row, K = {path.terms} terms in a sum"
    )


@dataclass(frozen=True, slots=True)
class ValuePath:
    """All ways from inputs and weights to a value, summed up."""

    dtype: DType | None = None
    """The coarsest float type in which something is computed."""
    length: int = 0
    """Operators in a row, on the longest of them."""
    terms: int = 1
    """Terms of the longest sum, as the weights tell."""

    @staticmethod
    def merge(paths: Sequence[ValuePath]) -> ValuePath:
        return ValuePath(
            _coarsest_dtype(path.dtype for path in paths),
            max((path.length for path in paths), default=0),
            max((path.terms for path in paths), default=1),
        )


def _coarsest_dtype(types: Iterable[DType | None]) -> DType | None:
    floats = [dtype for dtype in types if dtype is not None and dtype in _EPSILON]
    return max(floats, key=_EPSILON.__getitem__, default=None)


def value_paths(model: ModelSketch) -> dict[str, ValuePath]:
    """Return the paths to each value. Steps come in order; one name may be made in two branches."""
    paths: dict[str, ValuePath] = {}
    types: dict[str, DType | None] = dict(model.types)
    for step in model.nodes:
        read = [types.get(name) for name in step.inputs]
        for slot, name in enumerate(step.outputs):
            types.setdefault(name, _output_dtype(step, slot, read))
        made = [types[name] for name in step.outputs]
        before = [paths[name] for name in step.inputs if name in paths and not step.operator.reads_shape_only]
        shapes = [model.shapes.get(name) for name in step.inputs]
        computed = made if step.operator.is_casting else [*read, *made]
        own = ValuePath(
            None if step.operator.is_movement else _coarsest_dtype(computed),
            1 + max((path.length for path in before), default=0),
            _term_count(step, shapes),
        )
        for name in step.outputs:
            paths[name] = ValuePath.merge([*before, own, *([paths[name]] if name in paths else [])])
    return paths


def _output_dtype(step: FlatNode, slot: int, read: Sequence[DType | None]) -> DType | None:
    """Return the type that the node states, or its schema; of an operator without one, the coarsest of its inputs."""
    stated = next((attribute.i for attribute in step.node.attribute if attribute.name == "to"), 0)
    schema = schemas.schema(step.op, step.node.domain)
    if step.operator.result_dtype_source is ResultDtypeSource.TARGET and stated in set(DType):
        return DType(stated)
    if schema is None or not schema.outputs:
        return _coarsest_dtype(read)
    variable = schema.outputs[min(slot, len(schema.outputs) - 1)].type_str
    if (fixed := DType.from_type_text(variable)) is not None:
        return fixed
    formals = [schema.inputs[min(place, len(schema.inputs) - 1)].type_str for place in range(len(read))]
    same = (dtype for dtype, formal in zip(read, formals, strict=True) if formal == variable and dtype is not None)
    return next(same, None) or _coarsest_dtype(read)


def _term_count(step: FlatNode, shapes: Sequence[tuple[int, ...] | None]) -> int:
    """Return the number of terms that a step adds up, as the weights tell."""
    summation = step.operator.summation_length
    weight = shapes[1] if len(shapes) > 1 else None
    if weight is None:
        return 1 if summation is SummationLength.NONE else ASSUMED_TERMS
    match summation:
        case SummationLength.NONE:
            return 1
        case SummationLength.MATRIX if len(weight) >= 2:
            transposed = any(a.name == "transB" and a.i for a in step.node.attribute)
            return weight[-1 if transposed else -2]
        case SummationLength.CONVOLUTION:
            return prod(weight[1:])
        case SummationLength.TRANSPOSED_CONVOLUTION:
            return prod(weight) // max(weight[1], 1)
        case SummationLength.RECURRENT:
            return weight[-1]
    return ASSUMED_TERMS
