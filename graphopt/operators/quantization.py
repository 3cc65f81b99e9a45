"""Denotations of quantization: integers q that stand for (q - zero point) · scale, and products of them.

The text of ONNX rounds to the nearest number, of two the even one, and saturates. What becomes of NaN it does not say.
Products are added up in integers of 32 bits, and wrap around: what they make is the number itself only where the sizes
leave no room for more.
A scale and a zero point are of the whole tensor (a scalar, or a list of one) or one for each index of an axis; those of
blocks are not denoted.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from graphopt.base.integers import Size, choice, disj, eq, le, product
from graphopt.base.symbolic import Index, Value, call, number
from graphopt.base.tensors import Tensor
from graphopt.base.types import DType
from graphopt.language.scalar import LONGEST
from graphopt.operators.elementwise import largest, least
from graphopt.operators.node import Node, OneOf, Undefined, Unsupported
from graphopt.operators.reductions import matrix_product
from graphopt.operators.windows import convolution

Parameter: TypeAlias = "Callable[[Index], Value]"
"""The scale or zero point of the element at an index."""


def QuantizeLinear(node: Node) -> Tensor:
    """saturate(round(x / scale) + zero point)."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    for name, usual in (("saturate", 1), ("precision", 0)):  # of floats of 8 bits, and of the division
        _only(node, name, usual)
    made = _element_type(node, DType.UINT8 if zero is None else zero.dtype)
    types = (x.dtype, scale.dtype)

    def steps(x: Value, scale: Value) -> Value:
        return call("Steps", x, scale, params=types) if node.is_exact else call("Round", x / scale)

    return _elementwise(node, x, scale, zero, lambda x, scale, zero: saturated(steps(x, scale), zero, made))


def DequantizeLinear(node: Node) -> Tensor:
    """(x - zero point) · scale."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    types = (scale.dtype, _element_type(node, scale.dtype))

    def scaled(integer: Value, scale: Value) -> Value:
        return call("Scaled", integer, scale, params=types) if node.is_exact else integer * scale

    is_wide = x.dtype is ACCUMULATOR and zero is not None

    def shifted(x: Value, zero: Value) -> Value:
        return wrapped(x - zero) if is_wide else x - zero

    return _elementwise(node, x, scale, zero, lambda x, scale, zero: scaled(shifted(x, zero), scale))


def _element_type(node: Node, implied: DType) -> DType:
    """Return the element type of the output, which `output_dtype` may say."""
    said = node.attribute("output_dtype", lambda: OneOf((0,)))
    return DType(said) if isinstance(said, int) and said else implied


def _only(node: Node, name: str, usual: int) -> None:
    """Ask that an attribute has its usual value, for which alone it is denoted."""
    if node.attribute(name, lambda: OneOf((usual,))) != usual:
        raise Unsupported(f"{node.op} with another {name} than {usual}")


def _elementwise(
    node: Node, x: Tensor, scale: Tensor, zero: Tensor | None, function: Callable[[Value, Value, Value], Value]
) -> Tensor:
    """Return a function of each element, its scale and its zero point."""
    _only(node, "block_size", 0)
    axis = node.ignored("axis") if not scale.rank else node.attribute("axis", lambda: OneOf(range(-x.rank, x.rank)))
    if zero is not None:
        _alike(node, scale, zero)
    scales, zeros = _along(node, scale, x, axis), _zeros(node, zero, x, axis)
    return Tensor(x.shape, lambda index: function(x.at(index), scales(index), zeros(index)))


def _alike(node: Node, scale: Tensor, zero: Tensor) -> None:
    if scale.rank != zero.rank:
        raise Undefined(f"{node.op}: the scale and the zero point have different ranks")
    for one, other in zip(scale.shape, zero.shape, strict=True):
        node.require(eq(one, other), "the scale and the zero point have different sizes")


def _along(node: Node, given: Tensor, of: Tensor, axis: Size) -> Parameter:
    """Return a parameter of a tensor, or of each index of an axis of it."""
    if not given.rank:
        return lambda _: given.at(())
    if given.rank > 1:
        raise Undefined(f"{node.op} by blocks, which is not denoted")
    (count,) = given.shape
    if count == 1:
        return lambda _: given.at((0,))
    place = node.counted(axis, of.rank)
    node.require(disj(eq(count, of.shape[place]), eq(count, 1)), "there are more or fewer scales than indices")
    return lambda index: given.at((choice(eq(count, 1), 0, index[place]),))


def _zeros(node: Node, given: Tensor | None, of: Tensor, axis: Size) -> Parameter:
    """Return a zero point, which is 0 where there is none."""
    return (lambda _: number(0)) if given is None else _along(node, given, of, axis)


def saturated(steps: Value, zero: Value, made: DType) -> Value:
    """So many steps from the zero point, or as near as an integer type allows."""
    if not made.is_integer:
        raise Unsupported(f"quantization to {made.name}")
    low, high = made.limits
    return least(largest(steps, low - zero), high - zero) + zero


# -- sums in 32 bits ---------------------------------------------------------------------------------------------------

ACCUMULATOR = DType.INT32
"""The type in which kernels add up products of quantized numbers."""


def wrapped(number_: Value) -> Value:
    """Return the number that an accumulator has in the place of an integer: another one where that is out of range."""
    return call("Wrapped", number_, params=(ACCUMULATOR,))


def _accumulated(node: Node, exact: Tensor, count: Size, *factors: tuple[Tensor, Tensor | None]) -> Tensor:
    """Return what an accumulator makes of sums of so many products: the sums themselves, where the sizes leave no room
    for more than it holds."""
    each = prod(_distance(x, zero) for x, zero in factors)
    fits = le(count * each, ACCUMULATOR.limits[1])
    return Tensor(exact.shape, lambda index: exact.at(index) if node.proves(fits) else wrapped(exact.at(index)))


def _distance(x: Tensor, zero: Tensor | None) -> int:
    """Return how far an integer may be from its zero point, which is of its type; without one from 0."""
    if not x.dtype.is_integer:  # it is not known
        return LONGEST
    low, high = x.dtype.limits
    return high - low if zero is not None else max(high, -low)


# -- products ----------------------------------------------------------------------------------------------------------


def MatMulInteger(node: Node) -> Tensor:
    """Multiply (a - its zero point) · (b - its zero points), of which b may have one for each column."""
    a, b, a_zero, b_zero = node.input(0), node.input(1), node.optional(2), node.optional(3)
    exact = _product_of(node, a, a_zero, b, b_zero)
    return _accumulated(node, exact, a.shape[-1], (a, a_zero), (b, b_zero))


def _product_of(node: Node, a: Tensor, a_zero: Tensor | None, b: Tensor, b_zero: Tensor | None) -> Tensor:
    """Return the product of two tensors less their zero points."""
    zero = _of_all(node, a_zero)
    return matrix_product(node, _shifted(a, lambda _: zero), _shifted(b, _by_column(node, b_zero, b, b)))


def QLinearMatMul(node: Node) -> Tensor:
    """Return the product of what two tensors stand for, quantized; the second may have a scale for each column."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    _alike(node, b_scale, b_zero)
    exact = _product_of(node, a, a_zero, b, b_zero)
    scales = _by_column(node, b_scale, b, exact)
    return _requantized(node, exact, a_scale, scales, y_scale, y_zero)


def _by_column(node: Node, given: Tensor | None, b: Tensor, of: Tensor) -> Parameter:
    """Return a parameter of the second operand of a product, for the elements of a tensor with its columns."""
    if given is not None and b.rank > 1:
        return _along(node, given, of, -1)
    value = _of_all(node, given)
    return lambda _: value


def ConvInteger(node: Node) -> Tensor:
    """Return the convolution of x less its zero point, by filters less theirs, of which each may have its own."""
    x, w, x_zero, w_zero = node.input(0), node.input(1), node.optional(2), node.optional(3)
    zero = _of_all(node, x_zero)
    exact = convolution(node, _shifted(x, lambda _: zero), _shifted(w, _zeros(node, w_zero, w, 0)), None)
    return _accumulated(node, exact, product(w.shape[1:]), (x, x_zero), (w, w_zero))


def QLinearConv(node: Node) -> Tensor:
    """Return the convolution of what two tensors stand for, quantized; each filter may have its own scale."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    _alike(node, w_scale, w_zero)
    zero = _of_all(node, x_zero)
    filters = _shifted(w, _along(node, w_zero, w, 0))
    exact = convolution(node, _shifted(x, lambda _: zero), filters, node.optional(8))
    scales = _along(node, w_scale, exact, 1)
    return _requantized(node, exact, x_scale, scales, y_scale, y_zero)


def _of_all(node: Node, given: Tensor | None) -> Value:
    """Return a parameter that all elements have."""
    if given is None:
        return number(0)
    if given.rank > 1:
        raise Undefined(f"{node.op}: a scale or zero point of something else than a whole tensor")
    for size in given.shape:
        node.require(eq(size, 1), "one scale or zero point is for a whole tensor")
    return given.at((0,) * given.rank)


def _shifted(x: Tensor, zeros: Parameter) -> Tensor:
    """Return a tensor less its zero points."""
    return Tensor(x.shape, lambda index: x.at(index) - zeros(index), x.dtype)


def _requantized(node: Node, exact: Tensor, one: Tensor, scales: Parameter, wanted: Tensor, zero: Tensor) -> Tensor:
    """Return a sum of products, as it is accumulated, in steps of another scale: how that is rounded is not known."""
    factor, step, shift = _of_all(node, one), _of_all(node, wanted), _of_all(node, zero)
    types = (one.dtype, wanted.dtype)

    def at(index: Index) -> Value:
        total, own = wrapped(exact.at(index)), scales(index)
        if node.is_exact:
            return saturated(call("Requantized", total, factor, own, step, params=types), shift, zero.dtype)
        return saturated(call("Round", total * factor * own / step), shift, zero.dtype)

    return Tensor(exact.shape, at)
