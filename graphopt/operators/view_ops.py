"""Denotations of views: the elements stay, the axes change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import permutations

from graphopt.expr.expressions import Expr, Index
from graphopt.expr.integers import (
    FALSE,
    Formula,
    Polynomial,
    Size,
    conjunction,
    disjunction,
    eq,
    ge,
    lt,
    negate,
    product,
    quotient,
    remainder,
)
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.operators.op_context import (
    OneOf,
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    axis_subsets,
)
from graphopt.operators.shape_constraints import divide_exactly


def Transpose(node: OpContext) -> SymbolicTensor:
    """Output axis i is input axis perm[i]; without `perm` all axes are reversed."""
    x = node.input(0)
    backwards = tuple(reversed(range(x.rank)))
    perm = node.attribute("perm", lambda: OneOf(_permutations(x.rank)), backwards)
    if not isinstance(perm, tuple) or not all(isinstance(p, int) for p in perm):
        raise UnsupportedOperatorError(f"Transpose by {perm}")
    if sorted(perm) != list(range(x.rank)):
        raise UndefinedOperatorError(f"Transpose by {perm} of rank {x.rank}")

    def at(index: Index) -> Expr:
        return x.element(tuple(index[perm.index(axis)] for axis in range(x.rank)))

    return SymbolicTensor(tuple(x.shape[p] for p in perm), at)


@cache
def _permutations(rank: int) -> list[tuple[int, ...]]:
    return list(permutations(range(rank)))


def reshape_elements(node: OpContext, x: SymbolicTensor, shape: SymbolicShape) -> SymbolicTensor:
    """Return the elements of x in order, in another shape with as many elements."""
    base = x.base

    def at(index: Index) -> Expr:
        return base.element(
            reshape_index(node.is_known_equal, index, node.simplify_shape(shape), node.simplify_shape(base.shape))
        )

    return SymbolicTensor(shape, at, view_of=base)


def reshape_index(same: Callable[[Size, Size], bool], index: Index, shape: SymbolicShape, into: SymbolicShape) -> Index:
    """Return the index in one shape of an element given its index in another; equal outer axes are kept."""
    axes = [(i, size) for i, size in zip(index, shape, strict=True) if not same(size, 1)]
    goals = [(axis, size) for axis, size in enumerate(into) if not same(size, 1)]
    result: list[Size] = [0] * len(into)
    for end in (0, -1):
        while axes and goals and same(axes[end][1], goals[end][1]):
            result[goals.pop(end)[0]] = axes.pop(end)[0]
    flat: Size = 0
    for i, size in axes:
        flat = flat * size + i
    for axis, size in reversed(goals[1:]):
        result[axis] = remainder(flat, size) if size != 0 else 0
        flat = quotient(flat, size) if size != 0 else 0
    if goals:
        result[goals[0][0]] = flat
    return tuple(result)


def Reshape(node: OpContext) -> SymbolicTensor:
    """To the shape that the second input asks for: -1 is inferred, 0 is copied unless `allowzero`."""
    x = node.input(0)
    literal = node.flag("allowzero")
    asked = node.integer_list(1, node.propose_sizes)
    shape = _resolve_reshape(node, x, asked, literal)
    for condition, reason in _reshape_conditions(x, asked, shape, literal):
        node.require(condition, reason)
    return reshape_elements(node, x, shape)


def _resolve_reshape(node: OpContext, x: SymbolicTensor, asked: SymbolicShape, literal: bool) -> SymbolicShape:
    """Return the sizes that are asked for: unknowns on the left side, on the right those of the left or what is asked
    for.

    No other sizes can meet what `_reshape_conditions` says, so it does not matter where they come from.
    """
    count = product(x.base.shape)
    shape: list[Size] = []
    for position, size in enumerate(asked):
        if isinstance(size, Polynomial):
            shape.append(node.reshape_size(size, count))
        elif size == 0 and not literal:
            if position >= x.rank:
                raise UndefinedOperatorError("Reshape: 0 copies an axis that there is not")
            shape.append(x.shape[position])
        else:
            shape.append(size)
    if -1 in asked:
        position = asked.index(-1)
        others = product((*shape[:position], *shape[position + 1 :]))
        if others == 0:
            raise UndefinedOperatorError("Reshape with -1 beside 0")
        shape[position] = divide_exactly(node, count, others, "the elements do not fill the shape")
    return tuple(shape)


def _reshape_conditions(
    x: SymbolicTensor, asked: SymbolicShape, shape: SymbolicShape, literal: bool
) -> Iterator[tuple[Formula, str]]:
    """Yield the conditions that the resulting shape meets: at most one shape does."""
    if -1 not in asked:
        yield eq(product(shape), product(x.base.shape)), "the number of elements changes"
    for position, (size, own) in enumerate(zip(asked, shape, strict=True)):
        others = product((*shape[:position], *shape[position + 1 :]))
        alone = conjunction(_sizes_differ(others, 0), *(_sizes_differ(other, -1) for other in asked[position + 1 :]))
        yield disjunction(_sizes_differ(size, -1), alone), "-1 twice, or beside a size of 0"
        if size != -1:
            zero = eq(own) if literal else eq(own, x.shape[position]) if position < x.rank else FALSE
            yield conjunction(ge(size, -1), ge(own)), "a size is negative"
            yield disjunction(lt(size, 1), eq(own, size)), "another size than is asked for"
            yield disjunction(_sizes_differ(size, 0), zero), "0 copies another axis, or one that there is not"


def _sizes_differ(one: Size, other: Size) -> Formula:
    return negate(eq(one, other))


def Flatten(node: OpContext) -> SymbolicTensor:
    """Merge axes into two: all before `axis`, and all from it on."""
    x = node.input(0)
    axis = node.attribute("axis", lambda: OneOf(range(-x.rank, x.rank + 1)))
    if not isinstance(axis, int):
        raise UnsupportedOperatorError("Flatten along a symbol")
    if not -x.rank <= axis <= x.rank:
        raise UndefinedOperatorError("Flatten: axis")
    return reshape_elements(node, x, (product(x.shape[:axis]), product(x.shape[axis:])))


def Squeeze(node: OpContext) -> SymbolicTensor:
    """Remove axes of size 1."""
    x = node.input(0)
    if not node.has_input(1) and not all(isinstance(size, int) for size in x.shape):
        raise UnsupportedOperatorError("Squeeze of all axes of size 1: the rank depends on sizes")
    axes = node.axes(1, x.rank) if node.has_input(1) else tuple(i for i, size in enumerate(x.shape) if size == 1)
    if node.has_input(1) and not axes:
        raise UndefinedOperatorError("Squeeze of no axis: ONNX Runtime takes it for all of size 1")
    for axis in axes:
        node.require(eq(x.shape[axis], 1), "an axis to be dropped has not size 1")
    kept = [i for i in range(x.rank) if i not in axes]

    def at(index: Index) -> Expr:
        outer = dict(zip(kept, index, strict=True))
        return x.element(tuple(outer.get(i, 0) for i in range(x.rank)))

    return SymbolicTensor(tuple(x.shape[i] for i in kept), at, view_of=x.base)


def Unsqueeze(node: OpContext) -> SymbolicTensor:
    """Add axes of size 1 at the positions `axes` of the output."""
    x = node.input(0)

    asked = node.integer_list(1, lambda: OneOf(_propose_unsqueeze_axes(x.rank, node.max_rank + 1)))
    rank = x.rank + len(asked)
    axes = [node.normalize_axis(axis, rank) for axis in asked]
    if len(set(axes)) < len(axes):
        raise UndefinedOperatorError("Unsqueeze: an axis twice")
    kept = [i for i in range(rank) if i not in axes]
    sizes = dict(zip(kept, x.shape, strict=True))
    shape = tuple(sizes.get(i, 1) for i in range(rank))
    return SymbolicTensor(shape, lambda index: x.element(tuple(index[i] for i in kept)), view_of=x.base)


@cache
def _propose_unsqueeze_axes(rank: int, most: int) -> list[tuple[int, ...]]:
    """Up to two new axes of a tensor, as far as it then has `most` axes at most; up to three with one axis fewer."""
    counts = [count for count in range(4) if not count or rank + count <= most - (count > 2)]
    return [axes for count in counts for axes in axis_subsets(rank + count, count)]


def DepthToSpace(node: OpContext) -> SymbolicTensor:
    """Turn blocks of channels into blocks of space: b, b, C' (DCR) or C', b, b (CRD)."""
    x = node.input(0)
    if x.rank != 4:
        raise UndefinedOperatorError("DepthToSpace of another rank than 4")
    b = node.integer("blocksize", least=1)
    mode = node.text("mode", ("DCR", "CRD"))
    N, C, H, W = x.shape
    depth = divide_exactly(node, C, b * b, "the channels do not divide into blocks")

    def at(index: Index) -> Expr:
        n, c, y, z = index
        row, column = remainder(y, b), remainder(z, b)
        channel = (row * b + column) * depth + c if mode == "DCR" else c * b * b + row * b + column
        return x.element((n, channel, quotient(y, b), quotient(z, b)))

    return SymbolicTensor((N, depth, H * b, W * b), at)


def SpaceToDepth(node: OpContext) -> SymbolicTensor:
    """Turn blocks of space into channels: b, b, C."""
    x = node.input(0)
    if x.rank != 4:
        raise UndefinedOperatorError("SpaceToDepth of another rank than 4")
    b = node.integer("blocksize", least=1)
    node.text("mode", ("DCR",), "DCR")  # onnx 1.22 does not have the attribute
    N, C, H, W = x.shape
    height, width = (divide_exactly(node, s, b, "space does not divide into blocks") for s in (H, W))

    def at(index: Index) -> Expr:
        n, channel, y, z = index
        block, c = (quotient(channel, C), remainder(channel, C)) if C != 0 else (0, 0)
        return x.element((n, c, y * b + quotient(block, b), z * b + remainder(block, b)))

    return SymbolicTensor((N, C * b * b, height, width), at)
