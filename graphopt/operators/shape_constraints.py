"""Constraints between shapes, as many operators require them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from graphopt.expr.expressions import Expr, Index
from graphopt.expr.integers import Size, disjunction, eq, if_then_else, quotient, remainder
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.operators.op_context import OpContext, SymbolicShape, UndefinedOperatorError


def broadcast_shapes(node: OpContext, shapes: Sequence[SymbolicShape]) -> SymbolicShape:
    """Return the common shape: sizes of an axis, counted from the right, are equal or 1 (ONNX's Broadcasting.md)."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(reduce(lambda a, b: require_common_size(node, a, b), sizes) for sizes in zip(*padded, strict=True))


def require_common_size(node: OpContext, a: Size, b: Size) -> Size:
    node.require(disjunction(eq(a, b), eq(a, 1), eq(b, 1)), "the sizes of an axis differ and none is 1")
    if b == 1:
        return a
    return b if isinstance(b, int) else node.broadcast_size(a, b)


def broadcast_element(tensor: SymbolicTensor, shape: SymbolicShape, index: Index) -> Expr:
    """Return the element of a tensor that is broadcast to a shape."""
    own = index[len(index) - tensor.rank :]
    sizes = zip(own, tensor.shape, shape[len(shape) - tensor.rank :], strict=True)
    return tensor.element(tuple(i if size == full else if_then_else(eq(size, 1), 0, i) for i, size, full in sizes))


def require_shape(node: OpContext, shape: SymbolicShape, wanted: SymbolicShape, reason: str) -> None:
    """Require that a shape is the one wanted."""
    if len(shape) != len(wanted):
        raise UndefinedOperatorError(f"{node.op}: {reason}")
    for size, own in zip(shape, wanted, strict=True):
        node.require(eq(size, own), reason)


def divide_exactly(node: OpContext, dividend: Size, divisor: Size, reason: str) -> Size:
    """Return the quotient of a division, required to leave no remainder."""
    node.require(eq(remainder(dividend, divisor)), reason)
    return quotient(dividend, divisor)
