"""How far two equal models may be apart because they round elsewhere and add in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

from graphopt.samples import Sketch, Step
from graphopt.types import DType

ACCUMULATOR = 2.0**-23
"""Sums of half-precision numbers are kept in single precision."""
UNKNOWN_TERMS = 256
"""Length that is assumed of a sum whose length no weight tells."""


def tolerance(model: Sketch) -> tuple[float, str]:
    """How far two equal models may be apart, relative to the largest magnitude of an output; and why.

    Rewrites round elsewhere and add in another order. Each rounding to the coarsest float type in use errs by up to ε,
    independently: √L of it over the L operators on the longest path. The sum of K terms errs by about √K of the
    precision that it is kept in. L gets a few operators more for the approximations of exp, tanh and erf, and all of it
    a factor of four: 4·(ε·√(16+L) + ε₃₂·√K). ONNX Runtime's own optimizations stay 3 to 50 times below it on the models
    in `tests/fixtures`.
    """
    dtype = max(model.dtypes & _EPSILON.keys(), key=lambda d: _EPSILON[d], default=DType.FLOAT)
    epsilon, length, terms = _EPSILON[dtype], _longest_path(model), _most_terms(model)
    found = 4 * (epsilon * sqrt(16 + length) + min(epsilon, ACCUMULATOR) * sqrt(terms))
    return found, (
        f"4·(ε·√(16+L) + ε₃₂·√K) of the largest element: ε = {epsilon:.1e} ({dtype.name}),"
        f" L = {length} operators in a row, K = {terms} terms in a sum"
    )


_EPSILON: Mapping[DType, float] = {
    DType.BFLOAT16: 2.0**-7,
    DType.FLOAT16: 2.0**-10,
    DType.FLOAT: 2.0**-23,
    DType.DOUBLE: 2.0**-52,
}


def _longest_path(model: Sketch) -> int:
    depth: dict[str, int] = {}
    for step in model.steps:
        longest = 1 + max((depth.get(name, 0) for name in step.inputs), default=0)
        depth.update(dict.fromkeys(step.outputs, longest))
    return max(depth.values(), default=0)


def _most_terms(model: Sketch) -> int:
    """The number of terms in the longest sum, as the weights tell."""
    terms = [_terms(step, [model.shapes.get(name) for name in step.inputs]) for step in model.steps]
    return max(terms, default=1)


def _terms(step: Step, shapes: Sequence[tuple[int, ...] | None]) -> int:
    weight = shapes[1] if len(shapes) > 1 else None
    match step.op:
        case "MatMul" | "Gemm" if weight is not None and len(weight) >= 2:
            transposed = any(a.name == "transB" and a.i for a in step.node.attribute)
            return weight[-1 if transposed else -2]
        case "Conv" if weight is not None:
            return prod(weight[1:])
        case "ConvTranspose" if weight is not None:
            return prod(weight) // max(weight[1], 1)
        case "LSTM" | "GRU" | "RNN" if weight is not None:
            return weight[-1]
        case "MatMul" | "Gemm" | "Conv" | "ConvTranspose" | "Einsum" | "Softmax" | "LayerNormalization":
            return UNKNOWN_TERMS
    return UNKNOWN_TERMS if step.op.startswith(("Reduce", "GlobalAverage", "CumSum", "LSTM", "GRU", "RNN")) else 1
