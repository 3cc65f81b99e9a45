"""Denotations of operators that find and place elements where a tensor says, and of those that say where."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphopt.base.integers import (
    Int,
    Size,
    choice,
    conj,
    disj,
    eq,
    fresh,
    ge,
    inside,
    le,
    negate,
    quotient,
    symbol,
    symbols,
)
from graphopt.base.rebuilding import only_symbol
from graphopt.base.symbolic import Element, Index, Value, call, integer, lift
from graphopt.base.tensors import Tensor, as_size, boolean, folded, select, summed, truth
from graphopt.operators.broadcasting import fits
from graphopt.operators.elementwise import nonzero
from graphopt.operators.movement import looked_up
from graphopt.operators.node import Node, OneOf, Undefined, Unsupported
from graphopt.operators.opaque import of_shape
from graphopt.operators.reductions import PLACES


def Range(node: Node) -> Tensor:
    """start, start + delta, ... before limit."""
    numbers = [node.input(i) for i in range(3)]
    if any(tensor.rank for tensor in numbers):
        raise Undefined("Range of a list")
    node.ignored("stash_type")
    start, limit, delta = (tensor.at(()) for tensor in numbers)
    count = _steps(node, start, limit, delta)
    return Tensor((count,), lambda index: start + integer(index[0]) * delta)


def _steps(node: Node, start: Value, limit: Value, delta: Value) -> Size:
    """How many there are: where the step is not known it is some number, the same for the same three."""
    first, last, step = map(as_size, (start, limit, delta))
    if step is not None:
        node.require(negate(eq(step)), "the step is not 0")
    if first is None or last is None or not isinstance(step, int):
        return node.some_size(call("size of a Range", start, limit, delta, params=(node.dtype,)))
    distance, by = (last - first, step) if step > 0 else (first - last, -step)
    return quotient(choice(ge(distance), distance, 0) + by - 1, by)


def is_of_integers(node: Node) -> bool:
    """Return whether a Range is of integers, between ends that are known: each of them lies between these."""
    *ends, step = (as_size(node.input(i).at(())) for i in range(3))
    return node.dtype.is_integer and None not in ends and isinstance(step, int)


NEXT = {1: "next greatest", 0: "next least"}
FIRST = {1: PLACES["ArgMax"], 0: PLACES["ArgMin"]}


def TopK(node: Node) -> tuple[Tensor, ...]:
    """Return the k greatest (least) elements along an axis and where they are: of equal ones the first, in order if
    `sorted`.

    The first is the greatest, at the place that ArgMax says. In which order several come that are not sorted is left to
    the runtime: a function of the whole tensor.
    """
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    node.used["axis"] = axis
    largest, in_order = node.flag("largest"), node.flag("sorted")
    asked = node.list(1, lambda: (fresh("k"),))
    if len(asked) != 1:
        raise Undefined("TopK: k is one number")
    (k,) = asked
    node.require(ge(k), "k is not negative")
    node.require(le(k, x.shape[axis]), "k is at most the size of the axis")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if not in_order and k != 1:
        return tuple(of_shape(node, position, shape) for position in range(2))

    def row(index: Index, j: Index) -> Value:
        return x.at((*index[:axis], *j, *index[axis + 1 :]))

    def rank(index: Index) -> Size:
        return 0 if k == 1 else index[axis]

    def place(index: Index) -> Value:
        along = Tensor((x.shape[axis],), partial(row, index)).whole()
        if rank(index) == 0:
            return lift(Element(FIRST[largest], (0,), (along,), ()))
        return lift(Element(NEXT[largest], (), (along,), (rank(index),)))

    def value(index: Index) -> Value:
        if rank(index) == 0:
            return folded("max" if largest else "min", (x.shape[axis],), partial(row, index))
        return looked_up(x.shape[axis], partial(row, index), place(index))

    return Tensor(shape, value, values=x.values), Tensor(shape, place)


def OneHot(node: Node) -> Tensor:
    """Return the second of two values where an index along the new axis is the one that is asked for, else the first.

    Negative indices count from the end; those that are out of range are nowhere. Floats are rounded towards 0.
    """
    asked, values = node.input(0), node.input(2)
    depth = node.numbers(1, lambda: fresh("depth"))
    if isinstance(depth, tuple):
        if len(depth) != 1:
            raise Undefined("OneHot: depth is one number")
        (depth,) = depth
    node.require(ge(depth, 1), "depth is at least 1")
    fits(node, values.shape, (2,), "there are two values")
    axis = node.axis("axis", asked.rank + 1)

    def at(index: Index) -> Value:
        where, i = asked.at((*index[:axis], *index[axis + 1 :])), index[axis]
        if asked.dtype.is_float:
            where = call("Cast", where, params=("truncated", "INT64"))
        hits = disj(*(negate(nonzero(where - integer(place))) for place in (i, i - depth)))
        return select(hits, values.at((1,)), values.at((0,)))

    return Tensor((*asked.shape[:axis], depth, *asked.shape[axis:]), at)


def NonZero(node: Node) -> Tensor:
    """Where the elements are that are not 0, in order: one row per axis, as many columns as there are."""
    x = node.input(0)
    if not x.rank:
        raise Unsupported("NonZero of a scalar")
    index = tuple(symbol(f"#{axis}") for axis in range(x.rank))  # always the same names: equal counts are one number
    binders = tuple(zip(map(only_symbol, index), x.shape, strict=True))
    count = node.some_size(summed(boolean(truth(x.at(index))), binders))
    return of_shape(node, 0, (x.rank, count))


def GatherElements(node: Node) -> Tensor:
    """out[…, i, …] = data[…, indices[…, i, …], …] along `axis`."""
    x, indices = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    _not_larger(node, indices, x, axis)
    node.require_indices(indices, x.shape[axis])

    def at(index: Index) -> Value:
        return looked_up(x.shape[axis], lambda k: x.at((*index[:axis], *k, *index[axis + 1 :])), indices.at(index))

    return Tensor(indices.shape, at, values=x.values)


def _not_larger(node: Node, indices: Tensor, x: Tensor, axis: int) -> None:
    """There are no more indices along the other axes than elements."""
    if indices.rank != x.rank:
        raise Undefined(f"{node.op}: indices of another rank")
    for i in range(x.rank):
        if i != axis:
            node.require(le(indices.shape[i], x.shape[i]), "more indices than elements along another axis")


def GatherND(node: Node) -> Tensor:
    """out[b…, i…, …] = data[b…, *indices[b…, i…, :], …], after `batch_dims` axes that both have."""
    x, indices = node.input(0), node.input(1)
    least = min(x.rank, indices.rank)
    batch = node.attribute("batch_dims", lambda: OneOf(range(least)))
    if not isinstance(batch, int) or not 0 <= batch < least:
        raise Undefined(f"GatherND: batch_dims {batch}")
    count = _index_length(node, indices, x.rank - batch)
    for i in range(batch):
        node.require(eq(x.shape[i], indices.shape[i]), "the batches differ")
    outer = indices.shape[:-1]
    for c in range(count):
        node.require_indices(_component(indices, c), x.shape[batch + c])

    def at(index: Index) -> Value:
        where, rest = index[: len(outer)], index[len(outer) :]
        return _found(x, where[:batch], [_component(indices, c).at(where) for c in range(count)], rest)

    return Tensor((*outer, *x.shape[batch + count :]), at, values=x.values)


def _component(indices: Tensor, c: int) -> Tensor:
    """Return the c-th number of each index."""
    return Tensor(indices.shape[:-1], lambda index: indices.at((*index, c)), indices.dtype)


def _found(x: Tensor, before: Index, places: Sequence[Value], rest: Index) -> Value:
    """Return the element at some places along the axes between `before` and the rest."""
    if not places:
        return x.at((*before, *rest))
    return looked_up(x.shape[len(before)], lambda k: _found(x, (*before, *k), places[1:], rest), places[0])


def _index_length(node: Node, indices: Tensor, most: int) -> int:
    """How many numbers an index has: as many as the last axis of the indices."""
    count = node.simplified(indices.shape[-1])
    if isinstance(count, Int):
        raise Unsupported(f"{node.op} whose indices have a number of axes that is not known")
    if not 1 <= count <= most:
        raise Undefined(f"{node.op}: indices of {count} axes")
    return count


REDUCTIONS = ("none", "add", "mul", "max", "min")
FEW = 16
"""So many indices are looked at one by one."""


def ScatterElements(node: Node) -> Tensor:
    """Put updates into `data` where the indices say along `axis`: a function of all of them.

    Where an element is updated twice the order is not defined; it is the runtime's, and the same on both sides.
    """
    x, indices, updates = (node.input(i) for i in range(3))
    axis = node.axis("axis", x.rank)
    node.used["axis"] = axis
    reduction = node.text("reduction", REDUCTIONS)
    _not_larger(node, indices, x, axis)
    fits(node, updates.shape, indices.shape, "not one update per index")
    node.require_indices(indices, x.shape[axis])
    unseen = of_shape(node, 0, x.shape)
    return unseen if reduction != "none" or x.rank != 1 else _window(node, x, indices, updates, unseen)


def ScatterND(node: Node) -> Tensor:
    """Put updates into `data` at the indices, each the numbers along the last axis: a function of all of them."""
    x, indices, updates = (node.input(i) for i in range(3))
    reduction = node.text("reduction", REDUCTIONS)
    if not indices.rank:
        raise Undefined("ScatterND at a scalar")
    count = _index_length(node, indices, x.rank)
    fits(node, updates.shape, (*indices.shape[:-1], *x.shape[count:]), "not one update per index")
    for c in range(count):
        node.require_indices(_component(indices, c), x.shape[c])
    unseen = of_shape(node, 0, x.shape)
    is_row = reduction == "none" and count == 1 and indices.rank == 2
    return _window(node, x, _component(indices, 0), updates, unseen) if is_row else unseen


def _window(node: Node, x: Tensor, places: Tensor, updates: Tensor, unseen: Tensor) -> Tensor:
    """Return the tensor with updates along its first axis at places that follow each other, if they plainly do.

    Negative ones count from the end. What is updated twice, by a place and by one from the end, is not looked into.
    """
    (count,), size = places.shape, x.shape[0]
    first = _first_of_row(node, places)
    if first is None:
        return unseen
    if node.assuming:  # as the indices are in range
        node.require(disj(eq(count), conj(ge(first, -size), le(first + count, size))), "an index is out of range")

    def at(index: Index) -> Value:
        from_start, from_end = index[0] - first, index[0] - size - first
        one, other = inside(from_start, count), inside(from_end, count)
        either = select(one, updates.at((from_start, *index[1:])), updates.at((from_end, *index[1:])))
        updated = select(conj(one, other), unseen.at(index), either)
        return select(disj(one, other), updated, x.at(index))

    return Tensor(x.shape, at)


def _first_of_row(node: Node, places: Tensor) -> Size | None:
    """Return the first of some places, if each is one more than that before it."""
    count = node.simplified(places.shape[0])
    if isinstance(count, int) and count <= FEW:
        found = [as_size(places.at((i,))) for i in range(count)]
        first = found[0] if found else None
        return first if first is not None and all(place == first + i for i, place in enumerate(found)) else None
    i = fresh("i")
    place = as_size(places.at((i,)))
    first = None if place is None else place - i
    return None if first is None or only_symbol(i) in symbols(first) else first
