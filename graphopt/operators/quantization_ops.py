"""Denotations of quantization: integers q that stand for (q - zero point) · scale, and products of them.

ONNX rounds to the nearest number, ties to even, and saturates; it does not define the result for NaN. Products are
added up in integers of 32 bits, which wrap around: the sum is exact only if the sizes rule out an overflow. A scale and
a zero point apply to the whole tensor (a scalar, or a list of one) or to each index of an axis; those of blocks are not
denoted.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Expr, Index, call_function, constant
from graphopt.expr.integers import Size, disjunction, eq, if_then_else, le, product
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.operators.elementwise_ops import maximum, minimum
from graphopt.operators.op_context import OneOf, OpContext, UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.reduction_ops import matrix_product
from graphopt.operators.window_ops import convolution

ElementParameter: TypeAlias = "Callable[[Index], Expr]"
"""The scale or zero point of the element at an index."""


def QuantizeLinear(node: OpContext) -> SymbolicTensor:
    """saturate(round(x / scale) + zero point)."""
    x, scale, zero = node.input(0), node.input(1), node.optional_input(2)
    for name, usual in (("saturate", 1), ("precision", 0)):  # of floats of 8 bits, and of the division
        _require_usual_attribute(node, name, usual)
    made = _output_dtype(node, DType.UINT8 if zero is None else zero.dtype)
    types = (x.dtype, scale.dtype)

    def steps(x: Expr, scale: Expr) -> Expr:
        return call_function("Steps", x, scale, params=types) if node.is_exact else call_function("Round", x / scale)

    return _quantized_elementwise(node, x, scale, zero, lambda x, scale, zero: saturate(steps(x, scale), zero, made))


def DequantizeLinear(node: OpContext) -> SymbolicTensor:
    """(x - zero point) · scale."""
    x, scale, zero = node.input(0), node.input(1), node.optional_input(2)
    types = (scale.dtype, _output_dtype(node, scale.dtype))

    def scaled(integer: Expr, scale: Expr) -> Expr:
        return call_function("Scaled", integer, scale, params=types) if node.is_exact else integer * scale

    is_wide = x.dtype is ACCUMULATOR_DTYPE and zero is not None

    def shifted(x: Expr, zero: Expr) -> Expr:
        return wrap_accumulator(x - zero) if is_wide else x - zero

    return _quantized_elementwise(node, x, scale, zero, lambda x, scale, zero: scaled(shifted(x, zero), scale))


def _output_dtype(node: OpContext, implied: DType) -> DType:
    """Return the element type of the output, which `output_dtype` may state."""
    said = node.attribute("output_dtype", lambda: OneOf((0,)))
    return DType(said) if isinstance(said, int) and said else implied


def _require_usual_attribute(node: OpContext, name: str, usual: int) -> None:
    """Require that an attribute has its usual value, the only one that is denoted."""
    if node.attribute(name, lambda: OneOf((usual,))) != usual:
        raise UnsupportedOperatorError(f"{node.op} with another {name} than {usual}")


def _quantized_elementwise(
    node: OpContext,
    x: SymbolicTensor,
    scale: SymbolicTensor,
    zero: SymbolicTensor | None,
    function: Callable[[Expr, Expr, Expr], Expr],
) -> SymbolicTensor:
    """Return a function of each element, its scale and its zero point."""
    _require_usual_attribute(node, "block_size", 0)
    axis = (
        node.read_unmodeled_attribute("axis")
        if not scale.rank
        else node.attribute("axis", lambda: OneOf(range(-x.rank, x.rank)))
    )
    if zero is not None:
        _require_equal_shapes(node, scale, zero)
    scales, zeros = _per_axis_parameter(node, scale, x, axis), _zero_point(node, zero, x, axis)
    return SymbolicTensor(x.shape, lambda index: function(x.element(index), scales(index), zeros(index)))


def _require_equal_shapes(node: OpContext, scale: SymbolicTensor, zero: SymbolicTensor) -> None:
    if scale.rank != zero.rank:
        raise UndefinedOperatorError(f"{node.op}: the scale and the zero point have different ranks")
    for one, other in zip(scale.shape, zero.shape, strict=True):
        node.require(eq(one, other), "the scale and the zero point have different sizes")


def _per_axis_parameter(node: OpContext, given: SymbolicTensor, of: SymbolicTensor, axis: Size) -> ElementParameter:
    """Return a parameter of a tensor, or of each index of one of its axes."""
    if not given.rank:
        return lambda _: given.element(())
    if given.rank > 1:
        raise UndefinedOperatorError(f"{node.op} by blocks, which is not denoted")
    (count,) = given.shape
    if count == 1:
        return lambda _: given.element((0,))
    place = node.normalize_axis(axis, of.rank)
    node.require(disjunction(eq(count, of.shape[place]), eq(count, 1)), "there are more or fewer scales than indices")
    return lambda index: given.element((if_then_else(eq(count, 1), 0, index[place]),))


def _zero_point(node: OpContext, given: SymbolicTensor | None, of: SymbolicTensor, axis: Size) -> ElementParameter:
    """Return a zero point, which is 0 where there is none."""
    return (lambda _: constant(0)) if given is None else _per_axis_parameter(node, given, of, axis)


def saturate(steps: Expr, zero: Expr, made: DType) -> Expr:
    """Return a number of steps from the zero point, clamped to the range of an integer type."""
    if not made.is_integer:
        raise UnsupportedOperatorError(f"quantization to {made.name}")
    low, high = made.limits
    return minimum(maximum(steps, low - zero), high - zero) + zero


# -- sums in 32 bits ---------------------------------------------------------------------------------------------------

ACCUMULATOR_DTYPE = DType.INT32
"""Type in which kernels add up products of quantized numbers."""


def wrap_accumulator(number_: Expr) -> Expr:
    """Return an integer as an accumulator holds it: wrapped if it is out of range."""
    return call_function("Wrapped", number_, params=(ACCUMULATOR_DTYPE,))


def _accumulate(
    node: OpContext, exact: SymbolicTensor, count: Size, *factors: tuple[SymbolicTensor, SymbolicTensor | None]
) -> SymbolicTensor:
    """Return sums of so many products as an accumulator computes them: exact if the sizes rule out an overflow."""
    each = prod(_max_distance(x, zero) for x, zero in factors)
    fits = le(count * each, ACCUMULATOR_DTYPE.limits[1])
    return SymbolicTensor(
        exact.shape, lambda index: exact.element(index) if node.proves(fits) else wrap_accumulator(exact.element(index))
    )


def _max_distance(x: SymbolicTensor, zero: SymbolicTensor | None) -> int:
    """Return the greatest distance of an integer from its zero point of the same type, or from 0 without one."""
    if not x.dtype.is_integer:  # it is not known
        return MAX_AXIS_SIZE
    low, high = x.dtype.limits
    return high - low if zero is not None else max(high, -low)


# -- products ----------------------------------------------------------------------------------------------------------


def MatMulInteger(node: OpContext) -> SymbolicTensor:
    """Multiply a less its zero point by b less its zero points, of which each column may have its own."""
    a, b, a_zero, b_zero = node.input(0), node.input(1), node.optional_input(2), node.optional_input(3)
    exact = _centered_product(node, a, a_zero, b, b_zero)
    return _accumulate(node, exact, a.shape[-1], (a, a_zero), (b, b_zero))


def _centered_product(
    node: OpContext, a: SymbolicTensor, a_zero: SymbolicTensor | None, b: SymbolicTensor, b_zero: SymbolicTensor | None
) -> SymbolicTensor:
    """Return the product of two tensors, less their zero points."""
    zero = _per_tensor_parameter(node, a_zero)
    return matrix_product(
        node,
        _subtract_zero_points(a, lambda _: zero),
        _subtract_zero_points(b, _per_column_parameter(node, b_zero, b, b)),
    )


def QLinearMatMul(node: OpContext) -> SymbolicTensor:
    """Return the quantized product of two quantized tensors; the second may have a scale for each column."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    _require_equal_shapes(node, b_scale, b_zero)
    exact = _centered_product(node, a, a_zero, b, b_zero)
    scales = _per_column_parameter(node, b_scale, b, exact)
    return _requantize(node, exact, a_scale, scales, y_scale, y_zero)


def _per_column_parameter(
    node: OpContext, given: SymbolicTensor | None, b: SymbolicTensor, of: SymbolicTensor
) -> ElementParameter:
    """Return a parameter of the second operand of a product, for the elements of a tensor with its columns."""
    if given is not None and b.rank > 1:
        return _per_axis_parameter(node, given, of, -1)
    value = _per_tensor_parameter(node, given)
    return lambda _: value


def ConvInteger(node: OpContext) -> SymbolicTensor:
    """Return the convolution of x by filters, both less their zero points; each filter may have its own."""
    x, w, x_zero, w_zero = node.input(0), node.input(1), node.optional_input(2), node.optional_input(3)
    zero = _per_tensor_parameter(node, x_zero)
    exact = convolution(
        node, _subtract_zero_points(x, lambda _: zero), _subtract_zero_points(w, _zero_point(node, w_zero, w, 0)), None
    )
    return _accumulate(node, exact, product(w.shape[1:]), (x, x_zero), (w, w_zero))


def QLinearConv(node: OpContext) -> SymbolicTensor:
    """Return the quantized convolution of quantized tensors; each filter may have its own scale."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    _require_equal_shapes(node, w_scale, w_zero)
    zero = _per_tensor_parameter(node, x_zero)
    filters = _subtract_zero_points(w, _per_axis_parameter(node, w_zero, w, 0))
    exact = convolution(node, _subtract_zero_points(x, lambda _: zero), filters, node.optional_input(8))
    scales = _per_axis_parameter(node, w_scale, exact, 1)
    return _requantize(node, exact, x_scale, scales, y_scale, y_zero)


def _per_tensor_parameter(node: OpContext, given: SymbolicTensor | None) -> Expr:
    """Return a parameter that all elements share."""
    if given is None:
        return constant(0)
    if given.rank > 1:
        raise UndefinedOperatorError(f"{node.op}: a scale or zero point of something else than a whole tensor")
    for size in given.shape:
        node.require(eq(size, 1), "one scale or zero point is for a whole tensor")
    return given.element((0,) * given.rank)


def _subtract_zero_points(x: SymbolicTensor, zeros: ElementParameter) -> SymbolicTensor:
    """Return a tensor less its zero points."""
    return SymbolicTensor(x.shape, lambda index: x.element(index) - zeros(index), x.dtype)


def _requantize(
    node: OpContext,
    exact: SymbolicTensor,
    one: SymbolicTensor,
    scales: ElementParameter,
    wanted: SymbolicTensor,
    zero: SymbolicTensor,
) -> SymbolicTensor:
    """Return an accumulated sum of products in steps of another scale; its rounding is opaque."""
    factor, step, shift = (
        _per_tensor_parameter(node, one),
        _per_tensor_parameter(node, wanted),
        _per_tensor_parameter(node, zero),
    )
    types = (one.dtype, wanted.dtype)

    def at(index: Index) -> Expr:
        total, own = wrap_accumulator(exact.element(index)), scales(index)
        if node.is_exact:
            return saturate(call_function("Requantized", total, factor, own, step, params=types), shift, zero.dtype)
        return saturate(call_function("Round", total * factor * own / step), shift, zero.dtype)

    return SymbolicTensor(exact.shape, at)
