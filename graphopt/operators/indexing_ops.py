"""Denotations of operators that read or write elements at given positions, and of those that return positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphopt.expr.expressions import Expr, Index, OpaqueElement, call_function, expr_of_factor, integer_value
from graphopt.expr.integers import (
    Formula,
    Polynomial,
    Size,
    conjunction,
    disjunction,
    eq,
    free_symbols,
    fresh_symbol,
    ge,
    if_then_else,
    in_range,
    le,
    negate,
    quotient,
    symbol,
)
from graphopt.expr.substitution import single_symbol
from graphopt.expr.symbolic_tensors import (
    SymbolicTensor,
    as_integer,
    fold_over,
    select_expr,
    sum_over_binders,
    truth_condition,
    truth_value,
)
from graphopt.operators.elementwise_ops import is_nonzero
from graphopt.operators.movement_ops import lookup_element
from graphopt.operators.op_context import OneOf, OpContext, UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.opaque_ops import output_of_shape
from graphopt.operators.reduction_ops import ARG_FUNCTIONS
from graphopt.operators.shape_constraints import require_shape


def Range(node: OpContext) -> SymbolicTensor:
    """start, start + delta, ... before limit."""
    numbers = [node.input(i) for i in range(3)]
    if any(tensor.rank for tensor in numbers):
        raise UndefinedOperatorError("Range of a list")
    node.read_unmodeled_attribute("stash_type")
    start, limit, delta = (tensor.element(()) for tensor in numbers)
    count = _range_length(node, start, limit, delta)
    return SymbolicTensor((count,), lambda index: start + integer_value(index[0]) * delta)


def _range_length(node: OpContext, start: Expr, limit: Expr, delta: Expr) -> Size:
    """Return the number of elements; an unknown one, equal for equal operands, where the step is not known."""
    first, last, step = map(as_integer, (start, limit, delta))
    if step is not None:
        node.require(negate(eq(step)), "the step is not 0")
    if first is None or last is None or not isinstance(step, int):
        return node.size_from_elements(call_function("size of a Range", start, limit, delta, params=(node.dtype,)))
    distance, by = (last - first, step) if step > 0 else (first - last, -step)
    return quotient(if_then_else(ge(distance), distance, 0) + by - 1, by)


def is_integer_range(node: OpContext) -> bool:
    """Return whether a Range is of integers between known ends, which bound each of its elements."""
    *ends, step = (as_integer(node.input(i).element(())) for i in range(3))
    return node.dtype.is_integer and None not in ends and isinstance(step, int)


NEXT_PLACE = {1: "next greatest", 0: "next least"}
FIRST_PLACE = {1: ARG_FUNCTIONS["ArgMax"], 0: ARG_FUNCTIONS["ArgMin"]}


def TopK(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """Return the k greatest (least) elements along an axis, and their positions: the first of equal ones; or unsorted.

    The first is the greatest, at the position of ArgMax. The order of several that are not sorted is left to the
    runtime: a function of the whole tensor.
    """
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    node.read_values["axis"] = axis
    largest, in_order = node.flag("largest"), node.flag("sorted")
    asked = node.integer_list(1, lambda: (fresh_symbol("k"),))
    if len(asked) != 1:
        raise UndefinedOperatorError("TopK: k is one number")
    (k,) = asked
    node.require(ge(k), "k is not negative")
    node.require(le(k, x.shape[axis]), "k is at most the size of the axis")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if not in_order and k != 1:
        return tuple(output_of_shape(node, position, shape) for position in range(2))

    def row(index: Index, j: Index) -> Expr:
        return x.element((*index[:axis], *j, *index[axis + 1 :]))

    def rank(index: Index) -> Size:
        return 0 if k == 1 else index[axis]

    def place(index: Index) -> Expr:
        along = SymbolicTensor((x.shape[axis],), partial(row, index)).as_argument()
        if rank(index) == 0:
            return expr_of_factor(OpaqueElement(FIRST_PLACE[largest], (0,), (along,), ()))
        return expr_of_factor(OpaqueElement(NEXT_PLACE[largest], (), (along,), (rank(index),)))

    def value(index: Index) -> Expr:
        if rank(index) == 0:
            return fold_over("max" if largest else "min", (x.shape[axis],), partial(row, index))
        return lookup_element(x.shape[axis], partial(row, index), place(index))

    return SymbolicTensor(shape, value, value_dtype=x.value_dtype), SymbolicTensor(shape, place)


def OneHot(node: OpContext) -> SymbolicTensor:
    """Return the second of two values at the index along the new axis that is asked for, and the first elsewhere.

    Negative indices count from the end; those out of range match nowhere. Floats are rounded towards 0.
    """
    asked, values = node.input(0), node.input(2)
    depth = node.numbers(1, lambda: fresh_symbol("depth"))
    if isinstance(depth, tuple):
        if len(depth) != 1:
            raise UndefinedOperatorError("OneHot: depth is one number")
        (depth,) = depth
    node.require(ge(depth, 1), "depth is at least 1")
    require_shape(node, values.shape, (2,), "there are two values")
    axis = node.axis("axis", asked.rank + 1)

    def at(index: Index) -> Expr:
        where, i = asked.element((*index[:axis], *index[axis + 1 :])), index[axis]
        if asked.dtype.is_float:
            where = call_function("Cast", where, params=("truncated", "INT64"))
        hits = disjunction(*(negate(is_nonzero(where - integer_value(place))) for place in (i, i - depth)))
        return select_expr(hits, values.element((1,)), values.element((0,)))

    return SymbolicTensor((*asked.shape[:axis], depth, *asked.shape[axis:]), at)


def NonZero(node: OpContext) -> SymbolicTensor:
    """Positions of the elements that are not 0, in order: one row per axis, one column per element."""
    x = node.input(0)
    if not x.rank:
        raise UnsupportedOperatorError("NonZero of a scalar")
    index = tuple(symbol(f"#{axis}") for axis in range(x.rank))  # always the same names: equal counts are one number
    binders = tuple(zip(map(single_symbol, index), x.shape, strict=True))
    count = node.size_from_elements(sum_over_binders(truth_value(truth_condition(x.element(index))), binders))
    return output_of_shape(node, 0, (x.rank, count))


def GatherElements(node: OpContext) -> SymbolicTensor:
    """out[…, i, …] = data[…, indices[…, i, …], …] along `axis`."""
    x, indices = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    _require_index_shape(node, indices, x, axis)
    node.require_indices(indices, x.shape[axis])

    def at(index: Index) -> Expr:
        return lookup_element(
            x.shape[axis], lambda k: x.element((*index[:axis], *k, *index[axis + 1 :])), indices.element(index)
        )

    return SymbolicTensor(indices.shape, at, value_dtype=x.value_dtype)


def _require_index_shape(node: OpContext, indices: SymbolicTensor, x: SymbolicTensor, axis: int) -> None:
    """Require that indices are no more than elements along all other axes."""
    if indices.rank != x.rank:
        raise UndefinedOperatorError(f"{node.op}: indices of another rank")
    for i in range(x.rank):
        if i != axis:
            node.require(le(indices.shape[i], x.shape[i]), "more indices than elements along another axis")


def GatherND(node: OpContext) -> SymbolicTensor:
    """out[b…, i…, …] = data[b…, *indices[b…, i…, :], …], after `batch_dims` axes that both have."""
    x, indices = node.input(0), node.input(1)
    least = min(x.rank, indices.rank)
    batch = node.attribute("batch_dims", lambda: OneOf(range(least)))
    if not isinstance(batch, int) or not 0 <= batch < least:
        raise UndefinedOperatorError(f"GatherND: batch_dims {batch}")
    count = _index_size(node, indices, x.rank - batch)
    for i in range(batch):
        node.require(eq(x.shape[i], indices.shape[i]), "the batches differ")
    outer = indices.shape[:-1]
    for c in range(count):
        node.require_indices(_index_component(indices, c), x.shape[batch + c])

    def at(index: Index) -> Expr:
        where, rest = index[: len(outer)], index[len(outer) :]
        return _element_at_places(
            x, where[:batch], [_index_component(indices, c).element(where) for c in range(count)], rest
        )

    return SymbolicTensor((*outer, *x.shape[batch + count :]), at, value_dtype=x.value_dtype)


def _index_component(indices: SymbolicTensor, c: int) -> SymbolicTensor:
    """Return the c-th number of each index."""
    return SymbolicTensor(indices.shape[:-1], lambda index: indices.element((*index, c)), indices.dtype)


def _element_at_places(x: SymbolicTensor, before: Index, places: Sequence[Expr], rest: Index) -> Expr:
    """Return the element at given positions along the axes after `before`."""
    if not places:
        return x.element((*before, *rest))
    return lookup_element(
        x.shape[len(before)], lambda k: _element_at_places(x, (*before, *k), places[1:], rest), places[0]
    )


def _index_size(node: OpContext, indices: SymbolicTensor, most: int) -> int:
    """Return the length of an index, which is the size of the last axis of the indices."""
    count = node.simplify(indices.shape[-1])
    if isinstance(count, Polynomial):
        raise UnsupportedOperatorError(f"{node.op} whose indices have a number of axes that is not known")
    if not 1 <= count <= most:
        raise UndefinedOperatorError(f"{node.op}: indices of {count} axes")
    return count


SCATTER_REDUCTIONS = ("none", "add", "mul", "max", "min")
MAX_LISTED_INDICES = 16
"""Most indices that are looked at one by one."""


def ScatterElements(node: OpContext) -> SymbolicTensor:
    """Put updates into `data` at the indices along `axis`: a function of all of them.

    ONNX does not define the order in which an element is updated twice; it is the runtime's, and the same on both
    sides.
    """
    x, indices, updates = (node.input(i) for i in range(3))
    axis = node.axis("axis", x.rank)
    node.read_values["axis"] = axis
    reduction = node.text("reduction", SCATTER_REDUCTIONS)
    _require_index_shape(node, indices, x, axis)
    require_shape(node, updates.shape, indices.shape, "not one update per index")
    node.require_indices(indices, x.shape[axis])
    unseen = output_of_shape(node, 0, x.shape)
    if reduction != "none":
        return unseen
    return _update_consecutive(node, x, indices, updates, axis, unseen, disjunction(*map(eq, indices.shape)))


def ScatterND(node: OpContext) -> SymbolicTensor:
    """Put updates into `data` at the indices, which lie along the last axis: a function of all of them."""
    x, indices, updates = (node.input(i) for i in range(3))
    reduction = node.text("reduction", SCATTER_REDUCTIONS)
    if not indices.rank:
        raise UndefinedOperatorError("ScatterND at a scalar")
    count = _index_size(node, indices, x.rank)
    require_shape(node, updates.shape, (*indices.shape[:-1], *x.shape[count:]), "not one update per index")
    for c in range(count):
        node.require_indices(_index_component(indices, c), x.shape[c])
    unseen = output_of_shape(node, 0, x.shape)
    if reduction != "none" or count != 1 or indices.rank != 2:
        return unseen
    rows = _index_component(indices, 0)
    places = SymbolicTensor((*rows.shape, *x.shape[1:]), lambda index: rows.element(index[:1]), indices.dtype)
    return _update_consecutive(node, x, places, updates, 0, unseen, eq(*rows.shape))


def _update_consecutive(
    node: OpContext,
    x: SymbolicTensor,
    places: SymbolicTensor,
    updates: SymbolicTensor,
    axis: int,
    unseen: SymbolicTensor,
    nothing: Formula,
) -> SymbolicTensor:
    """Return the tensor with updates at consecutive positions along an axis, what is not looked into unless they
    plainly are so; `nothing` is the condition that there is no position.

    Negative positions count from the end. A position given twice, once from either end, is not looked into.
    """
    count, size = places.shape[axis], x.shape[axis]
    first = _first_consecutive_place(node, places, axis)
    if first is None:
        return unseen
    if node.assumes_defined:  # as the indices are in range
        node.require(
            disjunction(nothing, conjunction(ge(first, -size), le(first + count, size))), "an index is out of range"
        )
    shorter = [i for i in range(x.rank) if i != axis and places.shape[i] != x.shape[i]]

    def at(index: Index) -> Expr:
        from_start, from_end = index[axis] - first, index[axis] - size - first
        one, other = in_range(from_start, count), in_range(from_end, count)
        start, end = (updates.element((*index[:axis], place, *index[axis + 1 :])) for place in (from_start, from_end))
        updated = select_expr(conjunction(one, other), unseen.element(index), select_expr(one, start, end))
        beside = conjunction(*(in_range(index[i], places.shape[i]) for i in shorter))
        return select_expr(conjunction(beside, disjunction(one, other)), updated, x.element(index))

    return SymbolicTensor(x.shape, at)


def _first_consecutive_place(node: OpContext, places: SymbolicTensor, axis: int) -> Size | None:
    """Return the first of some places, if each is one more than that before it along an axis, and as those beside it
    along all others."""
    count = node.simplify(places.shape[axis])
    others = [fresh_symbol("i") for _ in places.shape]

    def place_at(i: Size) -> Size | None:
        return as_integer(places.element((*others[:axis], i, *others[axis + 1 :])))

    if isinstance(count, int) and count <= MAX_LISTED_INDICES:
        found = [place_at(i) for i in range(count)]
        first = found[0] if found else None
        if first is None or any(place != first + i for i, place in enumerate(found)):
            return None
    else:
        place = place_at(others[axis])
        first = None if place is None else place - others[axis]
    return None if first is None or free_symbols(first) & set(map(single_symbol, others)) else first
