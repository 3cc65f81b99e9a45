"""Constraints between shapes, as many operators require them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphopt.expr.broadcasting import broadcast_shapes, broadcast_sizes
from graphopt.expr.expressions import Expr, Index
from graphopt.expr.integers import Size, disjunction, eq, if_then_else, quotient, remainder
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.operators.op_context import OpContext, SymbolicShape, UndefinedOperatorError


def require_common_shape(node: OpContext, shapes: Sequence[SymbolicShape]) -> SymbolicShape:
    """Return the shape of an elementwise result, and ask that the shapes fit."""
    return broadcast_shapes(shapes, partial(_join_sizes, node))


def require_common_size(node: OpContext, a: Size, b: Size) -> Size:
    """Return the size of an axis that two operands share, and ask that theirs fit."""
    return broadcast_sizes(partial(_join_sizes, node), a, b)


def _join_sizes(node: OpContext, a: Size, b: Size) -> Size:
    node.require(disjunction(eq(a, b), eq(a, 1), eq(b, 1)), "the sizes of an axis differ and none is 1")
    return b if isinstance(b, int) else node.broadcast_size(a, b)


def require_broadcast(node: OpContext, shape: SymbolicShape, wanted: SymbolicShape, reason: str) -> None:
    """Ask that a shape broadcasts to the one that is wanted, and does not change it."""
    if len(shape) > len(wanted):
        raise UndefinedOperatorError(f"{node.op}: {reason}")
    for size, full in zip(shape[::-1], wanted[::-1], strict=False):
        node.require(disjunction(eq(size, full), eq(size, 1)), reason)


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
