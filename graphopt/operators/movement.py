"""Denotations of operators that move data, repeat it or leave some of it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import mul
from typing import Any

from graphopt.base.integers import (
    FALSE,
    TRUE,
    Atom,
    Formula,
    Int,
    Size,
    choice,
    conj,
    disj,
    divide,
    eq,
    fresh,
    ge,
    inside,
    le,
    lt,
    negate,
    product,
    quotient,
    remainder,
    symbols,
)
from graphopt.base.places import is_listed
from graphopt.base.symbolic import (
    Call,
    Element,
    Factor,
    Index,
    Term,
    Value,
    Whole,
    call,
    guarded,
    integer,
    lift,
    multiplied,
    number,
)
from graphopt.base.tensors import Tensor, as_size, boolean, select, total
from graphopt.ir.tensor import Tensor as Constant
from graphopt.operators.broadcasting import broadcast, stretched
from graphopt.operators.elementwise import positive
from graphopt.operators.node import Body, Node, OneOf, Shape, Symbols, Undefined, Unsupported, subsets
from graphopt.operators.opaque import opaque


def Concat(node: Node) -> Tensor:
    """One after the other along `axis`."""
    parts: list[Tensor] = []
    for i in range(node.count):
        parts.append(node.input(i))
        if parts[i].rank != parts[0].rank:  # asked at once: the ranks of the others do not matter then
            raise Undefined("Concat of different ranks")
    if not parts:
        raise Undefined("Concat of nothing")
    rank = parts[0].rank
    axis = node.axis("axis", rank)
    for part in parts:
        for i in range(rank):
            if i != axis:
                node.require(eq(part.shape[i], parts[0].shape[i]), "the other axes differ")
    sizes = [part.shape[axis] for part in parts]
    starts = [sum_of(sizes[:i]) for i in range(len(parts))]

    def at(index: Index) -> Value:
        i = index[axis]
        begun = (TRUE, *(ge(i, start) for start in starts[1:]), FALSE)
        result = number(0)
        for part, start, (here, beyond) in zip(parts, starts, pairwise(begun), strict=True):
            element = part.at((*index[:axis], i - start, *index[axis + 1 :]))
            result = result + guarded(conj(here, negate(beyond)), element)
        return result

    return Tensor((*parts[0].shape[:axis], sum_of(sizes), *parts[0].shape[axis + 1 :]), at)


def sum_of(sizes: Any) -> Size:
    result: Size = 0
    for size in sizes:
        result = size + result
    return result


def Split(node: Node) -> tuple[Tensor, ...]:
    """Parts along `axis`, of the sizes that the second input says, or equal ones (the last may be smaller)."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    count = node.outputs
    size = x.shape[axis]
    if node.has(1):
        node.not_beside("num_outputs", "lengths")
        lengths = node.list(1, lambda: _propose_lengths(count))
        if len(lengths) != count:
            raise Undefined("Split into another number of parts")
        for length in lengths:
            node.require(ge(length), "a part has no negative size")
        node.require(eq(sum_of(lengths), size), "the parts do not add up")
    else:
        each = quotient(size + count - 1, count)
        lengths = (*(each,) * (count - 1), size - each * (count - 1))
        if node.attribute("num_outputs", lambda: OneOf((count,))) != count:
            raise Undefined("Split with neither lengths nor as many num_outputs as there are")
        node.require(ge(lengths[-1]), "the last part has no negative size")
    starts = [sum_of(lengths[:i]) for i in range(count)]

    def part(start: Size, length: Size) -> Tensor:
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return Tensor(shape, lambda index: x.at((*index[:axis], index[axis] + start, *index[axis + 1 :])))

    return tuple(part(start, length) for start, length in zip(starts, lengths, strict=True))


def _propose_lengths(count: int) -> tuple[Size, ...]:
    return tuple(fresh("part") for _ in range(count))


def Slice(node: Node) -> Tensor:
    """Elements start, start + step, … before end of each axis; negative numbers count from the end, all are clamped."""
    x = node.input(0)
    if not x.rank:
        raise Undefined("Slice of a scalar")
    starts, ends = (_slice_numbers(node, i, x.rank) for i in (1, 2))
    count = len(starts)
    axes = node.axes(3, x.rank, count) if node.has(3) else tuple(range(count))
    steps = _slice_numbers(node, 4, x.rank) if node.has(4) else (1,) * count
    if not len(ends) == len(axes) == len(steps) == count or count > x.rank:
        raise Undefined("Slice: lists of different lengths")
    cuts = dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))
    runs = {axis: _run(node, x.shape[axis], *cut) for axis, cut in cuts.items()}
    shape = tuple(runs[i][1] if i in runs else size for i, size in enumerate(x.shape))

    def at(index: Index) -> Value:
        return x.at(tuple(runs[a][0] + i * runs[a][2] if a in runs else i for a, i in enumerate(index)))

    return Tensor(shape, at)


def _slice_numbers(node: Node, position: int, rank: int) -> tuple[Size, ...]:

    def propose() -> Any:
        earlier, name = node.used.get("input1"), ("", "start", "end", "", "step")[position]
        if isinstance(earlier, tuple):
            return tuple(fresh(name) for _ in earlier)
        return Symbols(name, range(rank + 1))

    return node.list(position, propose)


def _run(node: Node, size: Size, start: Size, end: Size, step: Size) -> tuple[Size, Size, Size]:
    """First index, number of elements and step of a slice of one axis."""
    node.require(negate(eq(step)), "the step is not 0")
    forward = ge(step, 1)
    most = choice(forward, size, size - 1)
    first = _clamped(_from_start(start, size), 0, most)
    stop = _clamped(_from_start(end, size), choice(forward, 0, -1), most)
    stop = choice(conj(lt(step, 0), disj(*(eq(end - other) for other in ENDLESS))), -1, stop)
    span = choice(forward, stop - first, first - stop)
    span = choice(ge(span), span, 0)
    by = choice(forward, step, -step)
    return first, span if step == 1 else quotient(span + by - 1, by), step


ENDLESS = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime takes for "to the end" also where a slice goes backwards, against the ONNX text."""


def _from_start(position: Size, size: Size) -> Size:
    if is_listed(position):
        return position
    return choice(ge(position), position, position + size)


def _clamped(value: Size, least: Size, most: Size) -> Size:
    raised = choice(le(least, value), value, least)
    return choice(le(raised, most), raised, most)


def Gather(node: Node) -> Tensor:
    """out[…, i…, …] = data[…, indices[i…], …] along `axis`; negative indices count from the end."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    size = x.shape[axis]
    if not node.is_number(1):
        return _gather_tensor(node, x, node.input(1), axis)
    indices = node.numbers(1, lambda: Symbols("index", range(node.most_indices() + 1)))
    numbers = indices if isinstance(indices, tuple) else (indices,)
    for i in numbers:
        node.require(conj(ge(i, -1 * size), lt(i, size)), "an index is out of range")
    inner = (len(numbers),) if isinstance(indices, tuple) else ()

    def at(index: Index) -> Value:
        outer, rest = index[:axis], index[axis + len(inner) :]
        if not inner:
            return x.at((*outer, _from_start(numbers[0], size), *rest))
        result = number(0)
        for position, i in enumerate(numbers):
            here = eq(index[axis], position)
            result = result + guarded(here, x.at((*outer, _from_start(i, size), *rest)))
        return result

    return Tensor((*x.shape[:axis], *inner, *x.shape[axis + 1 :]), at)


def _gather_tensor(node: Node, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """With indices that are not known. Where the operator is defined they can only be 0 along an axis of size 1."""
    node.require_indices(indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    single = x.shape[axis] == 1 and node.assuming

    def at(index: Index) -> Value:
        outer, rest = index[:axis], index[axis + indices.rank :]
        if single:
            return x.at((*outer, 0, *rest))
        where = indices.at(index[axis : axis + indices.rank])
        return looked_up(x.shape[axis], lambda k: x.at((*outer, *k, *rest)), where)

    return Tensor(shape, at)


def looked_up(size: Size, row: Body, where: Value) -> Value:
    """Return the element of a row at an index that is itself an element of a tensor: an opaque function of both, unless
    the tensor counts.

    Of a row that is computed element by element, what is looked up is computed of what is looked up in its operands.
    """
    if (known := as_size(where)) is not None:
        return row((_from_start(known, size),))
    chosen = Tensor((size,), row).whole()
    (place,) = chosen.index

    def at_place(value: Value) -> Value:
        if place not in value.symbols:
            return value
        if any(place in _bound_by(term) for term in value.terms):
            return lift(_lookup(replace(chosen, body=value), where))
        found = number(0)
        for term in value.terms:
            product_ = Value((replace(term, factors=()),))
            for factor in term.factors:
                product_ = multiplied(product_, of_factor(factor))
            found = found + product_
        return found

    def of_factor(factor: Factor) -> Value:
        match factor:
            case Call(function, args, params) if all(place not in symbols(p) for p in params if isinstance(p, Int)):
                return call(function, *map(at_place, args), params=params)
            case Element("Gather", (), (Whole() as source, Whole() as place_)) if place not in source.symbols:
                return lift(_lookup(source, at_place(place_.body)))
        return lift(_lookup(replace(chosen, body=lift(factor)), where)) if place in factor.symbols else lift(factor)

    return at_place(chosen.body)


def _bound_by(term: Term) -> frozenset[Atom]:
    """Return what the range of a term depends on."""
    return term.guard.symbols.union(*(symbols(extent) for _, extent in term.binders))


def _lookup(row: Whole, where: Value) -> Element:
    return Element("Gather", (), (row, Whole((), (), where)), ())


def Expand(node: Node) -> Tensor:
    """Broadcast to the common shape of the input and the second input."""
    x = node.input(0)
    asked = node.list(1, node.any_sizes)
    for size in asked:
        node.require(ge(size), "a size is not negative")
    shape = broadcast(node, [x.shape, asked])
    return Tensor(shape, lambda index: stretched(x, shape, index))


def Tile(node: Node) -> Tensor:
    """Each axis repeated."""
    x = node.input(0)

    def propose() -> tuple[Size, ...]:
        return tuple(fresh("repeat") for _ in range(x.rank))

    repeats = node.list(1, propose)
    if len(repeats) != x.rank:
        raise Undefined("Tile: not one number per axis")
    for repeat in repeats:
        node.require(ge(repeat), "repeats are not negative")
    shape = tuple(s * r for s, r in zip(x.shape, repeats, strict=True))

    def at(index: Index) -> Value:
        parts = zip(index, x.shape, repeats, strict=True)
        return x.at(tuple(i if r == 1 else remainder(i, s) if s != 0 else 0 for i, s, r in parts))

    return Tensor(shape, at)


def Pad(node: Node) -> Tensor:
    """Put `pads` elements before and after each axis, constant, repeated (edge), mirrored (reflect) or in turn
    (wrap)."""
    x = node.input(0)
    mode = node.text("mode", ("constant", "edge", "reflect", "wrap"))
    axes = node.axes(3, x.rank) if node.has(3) else tuple(range(x.rank))

    def propose() -> tuple[Size, ...]:
        return tuple(fresh("pad") for _ in range(2 * len(axes)))

    pads = node.list(1, propose)
    if len(pads) != 2 * len(axes):
        raise Undefined("Pad: not two numbers per axis")
    value = node.input(2).at(()) if node.has(2) and node.input(2).rank == 0 else _one_element(node)
    begin = {axis: pads[i] for i, axis in enumerate(axes)}
    end = {axis: pads[len(axes) + i] for i, axis in enumerate(axes)}
    shape = tuple(s + begin.get(a, 0) + end.get(a, 0) for a, s in enumerate(x.shape))
    for axis in axes:
        node.require(ge(shape[axis]), "the result has no negative size")
        if mode != "constant":
            node.require(conj(ge(begin[axis]), ge(end[axis])), "negative pads in another mode than constant")
            for pad in (begin[axis], end[axis]):
                least = pad + 1 if mode == "reflect" else 1
                node.require(disj(eq(pad), ge(x.shape[axis], least)), "the input is too small to be repeated")

    def at(index: Index) -> Value:
        moved = tuple(i - begin.get(a, 0) for a, i in enumerate(index))
        if mode == "constant":
            inner = conj(*(inside(i, x.shape[a]) for a, i in enumerate(moved) if a in begin))
            return select(inner, x.at(moved), value)
        return x.at(tuple(_mirrored(mode, i, x.shape[a]) if a in begin else i for a, i in enumerate(moved)))

    return Tensor(shape, at)


def _one_element(node: Node) -> Value:
    if not node.has(2):
        return number(0)
    value = node.input(2)
    if value.rank != 1:
        raise Undefined("Pad: the value is no scalar")
    node.require(eq(value.shape[0], 1), "the value has one element")
    return value.at((0,))


def _mirrored(mode: str, i: Size, size: Size) -> Size:
    if mode == "edge":
        return _clamped(i, 0, size - 1)
    if mode == "wrap":
        return remainder(i, size) if size != 0 else 0
    return choice(ge(i), choice(lt(i, size), i, 2 * (size - 1) - i), -1 * i)


EVEN = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate modes in which an axis that keeps its size keeps its elements."""


REPEATS = {("asymmetric", "floor")}
REPEATS |= {(where, f"round_prefer_{way}") for where in EVEN[:3] for way in ("floor", "ceil")}
"""Coordinate modes and roundings in which the nearest neighbour of index i, enlarged k times, is i // k."""


ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


PLAIN = {"antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0}
"""Attributes of a Resize, as they are left out: of others it is not looked into what lies between elements."""


def Resize(node: Node) -> Tensor:
    """Return elements repeated a whole number of times, by nearest neighbour; axes that keep their size; or weighted
    means of all elements.

    Y[o] = X[0] + Σ over i of share(o, i) · (X[i] - X[0]), axis by axis: shares add up to 1. What they are rests on how
    floats are rounded and is not looked into. By scales that are no whole numbers shares are not of one axis alone, for
    where no axis gets another size ONNX Runtime copies.
    """
    x = node.input(0)
    mode = node.text("mode", ("nearest", "linear", "cubic"))
    where = node.text("coordinate_transformation_mode", EVEN)
    rounding = node.text("nearest_mode", ROUNDINGS) if mode == "nearest" else ""
    if mode != "nearest":
        node.ignored("nearest_mode")
    is_plain = [node.ignored(name) for name in PLAIN] == list(PLAIN.values())
    axes = _resized(node, x.rank)
    new, is_told = _enlarged(node, [x.shape[axis] for axis in axes])
    if len(new) != len(axes) or len(set(axes)) < len(axes):
        raise Undefined("Resize: not one size per axis")
    sizes = dict(zip(axes, new, strict=True))
    shape = tuple(sizes.get(axis, size) for axis, size in enumerate(x.shape))
    if mode != "nearest":
        node.require(_has_kernel(mode, x.shape, shape), f"there is a kernel that is {mode} along these axes")

    whole = opaque(node, 0, Tensor(shape, x.at))

    def source(i: Size, size: Size, own: Size) -> Size | None:
        if node.same(size, own):
            return i
        times = divide(size, own)
        return None if times is None or (where, rounding) not in REPEATS else quotient(i, times)

    def share(o: Size, i: Size, axis: int) -> Value:
        return call("share", *map(integer, (o, i, x.shape[axis], shape[axis])), params=(mode, where, rounding))

    def at(index: Index) -> Value:
        if not is_told:
            return whole.at(index)
        places = list(map(source, index, shape, x.shape))
        if None in places and (node.is_exact or not is_plain):
            return whole.at(index)
        return _mean(x, places, lambda axis, i: share(index[axis], i, axis))

    return Tensor(shape, at)


def _resized(node: Node, rank: int) -> Sequence[int]:
    """Return the axes that a Resize speaks of."""
    asked = node.attribute("axes", lambda: OneOf((None, *subsets(rank))))
    if not isinstance(asked, tuple | None):
        raise Undefined(f"Resize along {asked}, which is no list")
    return range(rank) if asked is None else [node.counted(axis, rank) for axis in asked]


def _has_kernel(mode: str, old: Shape, new: Shape) -> Formula:
    """Return whether ONNX Runtime interpolates along the axes that get another size: of a matrix, of an image in either
    layout, and, if linearly, of three axes and of a volume; not of a list."""
    kept = tuple(map(eq, new, old))
    match mode, len(old):
        case ("linear", 2 | 3) | ("cubic", 2):
            return TRUE
        case "cubic", 4:
            return conj(kept[0], disj(kept[1], conj(kept[3], *map(ge, new[1:3], old[1:3]))))
        case _, 4:
            return conj(kept[0], disj(kept[1], kept[3]))
        case "linear", 5:
            return conj(*kept[:2])
    return FALSE


def _mean(x: Tensor, places: Sequence[Size | None], share: Callable[[int, Size], Value]) -> Value:
    """Return the mean of all elements along the axes without a place, by the share of each along each of them."""
    open_ = [axis for axis, place in enumerate(places) if place is None]

    def element(inner: Index) -> Value:
        along = dict(zip(open_, inner, strict=True))
        return x.at(tuple(along[axis] if place is None else place for axis, place in enumerate(places)))

    def part(inner: Index) -> Value:
        return reduce(mul, map(share, open_, inner), element(inner) - first)

    first = element((0,) * len(open_))
    return first + total([x.shape[axis] for axis in open_], part) if open_ else first


def _enlarged(node: Node, sizes: Sequence[Size]) -> tuple[Sequence[Size], bool]:
    """Return the sizes that a Resize asks for, or makes of scales, and whether they tell by what it enlarges: by scales
    that are no whole numbers, sizes are rounded."""
    if node.has(3):
        node.text("keep_aspect_ratio_policy", ("stretch",))
        asked: Sequence[Size] = node.list(3, lambda: tuple(fresh("size") for _ in sizes))
        for size, own in zip(asked, sizes, strict=False):
            of_some, of_none = conj(ge(size, 1), ge(own, 1)), conj(eq(size, 0), eq(own, 0))
            node.require(disj(of_some, of_none), "a size is at least 1, that of an empty axis 0")
        return asked, True
    node.ignored("keep_aspect_ratio_policy")
    scales = node.input(2)
    if scales.rank != 1:
        raise Undefined("Resize: scales are a list")
    node.require(eq(scales.shape[0], len(sizes)), "not one scale per axis")
    factors = [scales.at((i,)) for i in range(len(sizes))]
    numbers = [factor.constant for factor in factors]
    if any(factor is not None and factor <= 0 for factor in numbers):
        raise Undefined("Resize: a scale is positive")
    whole = [int(factor) for factor in numbers if factor is not None and factor.denominator == 1]
    if len(whole) == len(sizes):
        return [size * factor for size, factor in zip(sizes, whole, strict=True)], True
    return [node.scaled(size, factor) for size, factor in zip(sizes, factors, strict=True)], False


def Trilu(node: Node) -> Tensor:
    """Return the upper (or lower) triangle of the last two axes, from the k-th diagonal on; 0 elsewhere."""
    x = node.input(0)
    if x.rank < 2:
        raise Undefined("Trilu of a vector")

    k = node.numbers(1, lambda: fresh("k")) if node.has(1) else 0
    upper = node.flag("upper")

    def at(index: Index) -> Value:
        row, column = index[-2:]
        return guarded(ge(column, row + k) if upper else le(column, row + k), x.at(index))

    return Tensor(x.shape, at)


def EyeLike(node: Node) -> Tensor:
    """1 on the k-th diagonal, 0 elsewhere."""
    x = node.input(0)
    if x.rank != 2:
        raise Undefined("EyeLike of another rank than 2")
    k = node.integer("k")
    node.attribute("dtype", lambda: fresh("dtype"))
    return Tensor(x.shape, lambda index: boolean(eq(index[1], index[0] + k)))


def ConstantOfShape(node: Node) -> Tensor:
    """Zeros, or copies of a value, of the shape that the input says."""
    sizes = node.list(0, node.any_sizes)
    value = node.attribute("value", lambda: OneOf((None,)))
    numbers = (0,) if value is None else value.ints() if isinstance(value, Constant) else None
    for size in sizes:
        node.require(ge(size), "a size is not negative")

    def at(_: Index) -> Value:
        if numbers is None:
            raise Unsupported(f"ConstantOfShape with value={value}")
        return number(numbers[0])

    return Tensor(sizes, at)


def Shape_(node: Node) -> Tensor:
    """Return the sizes as a vector, from axis `start` to before `end`."""
    x = node.input(0)
    everywhere = range(-x.rank - 1, x.rank + 2)
    start = node.attribute("start", lambda: OneOf(everywhere))
    end = node.attribute("end", lambda: OneOf((None, *everywhere)))
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise Unsupported("Shape from a symbol")
    sizes = x.shape[start:end]

    def at(index: Index) -> Value:
        result = number(0)
        for position, size in enumerate(sizes):
            result = result + guarded(eq(index[0], position), integer(size))
        return result

    return Tensor((len(sizes),), at)


def Size_(node: Node) -> Tensor:
    x = node.input(0)
    return Tensor((), lambda _: integer(product(x.shape)))


def Dropout(node: Node) -> tuple[Tensor, ...]:
    """At inference nothing is dropped, nor is it with a ratio of 0."""
    x = node.input(0)
    no_ratio, no_training = _is_zero(node, 1), not node.has(2) or _is_zero(node, 2)
    if node.has(1) and not no_ratio:  # its kernel asks so of all
        ratio = node.input(1).at(())
        node.require(conj(negate(positive(-ratio)), positive(1 - ratio)), "a ratio is at least 0, and less than 1")
    if not (no_ratio or no_training):
        raise Unsupported("Dropout that may be in training")
    node.ignored("seed")
    mask = Tensor(x.shape, lambda _: boolean(TRUE))
    return (x, mask)[: node.outputs]


def _is_zero(node: Node, position: int) -> bool:
    given = node.optional(position)
    if given is not None and given.rank:
        raise Undefined("Dropout by a list")
    return given is not None and given.at(()).constant == 0
