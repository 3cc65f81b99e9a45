"""Denotations of operators that move data, repeat it or leave some of it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from graphopt.expr.expressions import (
    Call,
    Expr,
    Factor,
    Index,
    OpaqueElement,
    TensorArgument,
    Term,
    call_function,
    constant,
    expr_of_factor,
    guard_expr,
    integer_value,
    multiply,
)
from graphopt.expr.index_lists import is_index_list_atom
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    Atom,
    Formula,
    Polynomial,
    Size,
    conjunction,
    disjunction,
    eq,
    exact_quotient,
    free_symbols,
    fresh_symbol,
    ge,
    if_then_else,
    in_range,
    le,
    lt,
    negate,
    product,
    quotient,
    remainder,
    sum_sizes,
)
from graphopt.expr.symbolic_tensors import SymbolicTensor, as_integer, select_expr, sum_over, truth_value
from graphopt.ir.tensor import Tensor as Constant
from graphopt.operators.elementwise_ops import is_positive
from graphopt.operators.op_context import (
    ElementBody,
    OneOf,
    OpContext,
    SymbolicShape,
    SymbolLists,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    axis_subsets,
)
from graphopt.operators.opaque_ops import opaque_output
from graphopt.operators.shape_constraints import broadcast_element, require_common_shape


def Concat(node: OpContext) -> SymbolicTensor:
    """Join the operands along `axis`."""
    parts: list[SymbolicTensor] = []
    for i in range(node.input_count):
        parts.append(node.input(i))
        if parts[i].rank != parts[0].rank:  # asked at once: the ranks of the others do not matter then
            raise UndefinedOperatorError("Concat of different ranks")
    if not parts:
        raise UndefinedOperatorError("Concat of nothing")
    rank = parts[0].rank
    axis = node.axis("axis", rank)
    for part in parts:
        for i in range(rank):
            if i != axis:
                node.require(eq(part.shape[i], parts[0].shape[i]), "the other axes differ")
    sizes = [part.shape[axis] for part in parts]
    starts = [sum_sizes(sizes[:i]) for i in range(len(parts))]

    def at(index: Index) -> Expr:
        i = index[axis]
        begun = (TRUE, *(ge(i, start) for start in starts[1:]), FALSE)
        result = constant(0)
        for part, start, (here, beyond) in zip(parts, starts, pairwise(begun), strict=True):
            element = part.element((*index[:axis], i - start, *index[axis + 1 :]))
            result = result + guard_expr(conjunction(here, negate(beyond)), element)
        return result

    return SymbolicTensor((*parts[0].shape[:axis], sum_sizes(sizes), *parts[0].shape[axis + 1 :]), at)


def Split(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """Parts along `axis`, of the sizes that the second input says, or equal ones (the last may be smaller)."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    count = node.output_count
    size = x.shape[axis]
    if node.has_input(1):
        node.require_absent_beside("num_outputs", "lengths")
        lengths = node.integer_list(1, lambda: tuple(fresh_symbol("part") for _ in range(count)))
        if len(lengths) != count:
            raise UndefinedOperatorError("Split into another number of parts")
        for length in lengths:
            node.require(ge(length), "a part has no negative size")
        node.require(eq(sum_sizes(lengths), size), "the parts do not add up")
    else:
        each = quotient(size + count - 1, count)
        lengths = (*(each,) * (count - 1), size - each * (count - 1))
        if node.attribute("num_outputs", lambda: OneOf((count,))) != count:
            raise UndefinedOperatorError("Split with neither lengths nor as many num_outputs as there are")
        node.require(ge(lengths[-1]), "the last part has no negative size")
    starts = [sum_sizes(lengths[:i]) for i in range(count)]

    def part(start: Size, length: Size) -> SymbolicTensor:
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        return SymbolicTensor(shape, lambda index: x.element((*index[:axis], index[axis] + start, *index[axis + 1 :])))

    return tuple(part(start, length) for start, length in zip(starts, lengths, strict=True))


def Slice(node: OpContext) -> SymbolicTensor:
    """Elements start, start + step, … before end of each axis; negative numbers count from the end, all are clamped."""
    x = node.input(0)
    if not x.rank:
        raise UndefinedOperatorError("Slice of a scalar")
    starts, ends = (_slice_numbers(node, i, x.rank) for i in (1, 2))
    count = len(starts)
    axes = node.axes(3, x.rank, count) if node.has_input(3) else tuple(range(count))
    steps = _slice_numbers(node, 4, x.rank) if node.has_input(4) else (1,) * count
    if not len(ends) == len(axes) == len(steps) == count or count > x.rank:
        raise UndefinedOperatorError("Slice: lists of different lengths")
    cuts = dict(zip(axes, zip(starts, ends, steps, strict=True), strict=True))
    runs = {axis: _slice_range(node, x.shape[axis], *cut) for axis, cut in cuts.items()}
    shape = tuple(runs[i][1] if i in runs else size for i, size in enumerate(x.shape))

    def at(index: Index) -> Expr:
        return x.element(tuple(runs[a][0] + i * runs[a][2] if a in runs else i for a, i in enumerate(index)))

    return SymbolicTensor(shape, at)


def _slice_numbers(node: OpContext, position: int, rank: int) -> tuple[Size, ...]:

    def propose() -> Any:
        earlier, name = node.read_values.get("input1"), ("", "start", "end", "", "step")[position]
        if isinstance(earlier, tuple):
            return tuple(fresh_symbol(name) for _ in earlier)
        return SymbolLists(name, range(rank + 1))

    return node.integer_list(position, propose)


def _slice_range(node: OpContext, size: Size, start: Size, end: Size, step: Size) -> tuple[Size, Size, Size]:
    """Return first index, number of elements and step of a slice of one axis."""
    node.require(negate(eq(step)), "the step is not 0")
    forward = ge(step, 1)
    most = if_then_else(forward, size, size - 1)
    first = _clamp(_normalize_index(start, size), 0, most)
    stop = _clamp(_normalize_index(end, size), if_then_else(forward, 0, -1), most)
    stop = if_then_else(conjunction(lt(step, 0), disjunction(*(eq(end - other) for other in ENDLESS_ENDS))), -1, stop)
    span = if_then_else(forward, stop - first, first - stop)
    span = if_then_else(ge(span), span, 0)
    by = if_then_else(forward, step, -step)
    return first, span if step == 1 else quotient(span + by - 1, by), step


ENDLESS_ENDS = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime takes for "to the end" also where a slice goes backwards, against the ONNX text."""


def _normalize_index(position: Size, size: Size) -> Size:
    if is_index_list_atom(position):
        return position
    return if_then_else(ge(position), position, position + size)


def _clamp(value: Size, least: Size, most: Size) -> Size:
    raised = if_then_else(le(least, value), value, least)
    return if_then_else(le(raised, most), raised, most)


def Gather(node: OpContext) -> SymbolicTensor:
    """out[…, i…, …] = data[…, indices[i…], …] along `axis`; negative indices count from the end."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    size = x.shape[axis]
    if not node.is_number(1):
        return _gather_with_unknown_indices(node, x, node.input(1), axis)
    indices = node.numbers(1, lambda: SymbolLists("index", range(node.max_index_count() + 1)))
    numbers = indices if isinstance(indices, tuple) else (indices,)
    for i in numbers:
        node.require(conjunction(ge(i, -1 * size), lt(i, size)), "an index is out of range")
    inner = (len(numbers),) if isinstance(indices, tuple) else ()

    def at(index: Index) -> Expr:
        outer, rest = index[:axis], index[axis + len(inner) :]
        if not inner:
            return x.element((*outer, _normalize_index(numbers[0], size), *rest))
        result = constant(0)
        for position, i in enumerate(numbers):
            here = eq(index[axis], position)
            result = result + guard_expr(here, x.element((*outer, _normalize_index(i, size), *rest)))
        return result

    return SymbolicTensor((*x.shape[:axis], *inner, *x.shape[axis + 1 :]), at)


def _gather_with_unknown_indices(
    node: OpContext, x: SymbolicTensor, indices: SymbolicTensor, axis: int
) -> SymbolicTensor:
    """Return a Gather with unknown indices; where it is defined, they can only be 0 along an axis of size 1."""
    node.require_indices(indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    single = x.shape[axis] == 1 and node.assumes_defined

    def at(index: Index) -> Expr:
        outer, rest = index[:axis], index[axis + indices.rank :]
        if single:
            return x.element((*outer, 0, *rest))
        where = indices.element(index[axis : axis + indices.rank])
        return lookup_element(x.shape[axis], lambda k: x.element((*outer, *k, *rest)), where)

    return SymbolicTensor(shape, at)


def lookup_element(size: Size, row: ElementBody, where: Expr) -> Expr:
    """Return the element of a row at an index that is itself an element of a tensor: an opaque function of both, unless
    the tensor counts.

    Of a row that is computed element by element, what is looked up is computed of what is looked up in its operands.
    """
    if (known := as_integer(where)) is not None:
        return row((_normalize_index(known, size),))
    chosen = SymbolicTensor((size,), row).as_argument()
    (place,) = chosen.index

    def at_place(value: Expr) -> Expr:
        if place not in value.free_symbols:
            return value
        if any(place in _range_symbols(term) for term in value.terms):
            return expr_of_factor(_opaque_lookup(replace(chosen, body=value), where))
        found = constant(0)
        for term in value.terms:
            product_ = Expr((replace(term, factors=()),))
            for factor in term.factors:
                product_ = multiply(product_, of_factor(factor))
            found = found + product_
        return found

    def of_factor(factor: Factor) -> Expr:
        match factor:
            case Call(function, args, params) if all(
                place not in free_symbols(p) for p in params if isinstance(p, Polynomial)
            ):
                return call_function(function, *map(at_place, args), params=params)
            case OpaqueElement("Gather", (), (TensorArgument() as source, TensorArgument() as place_)) if (
                place not in source.free_symbols
            ):
                return expr_of_factor(_opaque_lookup(source, at_place(place_.body)))
        return (
            expr_of_factor(_opaque_lookup(replace(chosen, body=expr_of_factor(factor)), where))
            if place in factor.free_symbols
            else expr_of_factor(factor)
        )

    return at_place(chosen.body)


def _range_symbols(term: Term) -> frozenset[Atom]:
    """Return the symbols on which the range of a term depends."""
    return term.guard.free_symbols.union(*(free_symbols(extent) for _, extent in term.binders))


def _opaque_lookup(row: TensorArgument, where: Expr) -> OpaqueElement:
    return OpaqueElement("Gather", (), (row, TensorArgument((), (), where)), ())


def Expand(node: OpContext) -> SymbolicTensor:
    """Broadcast to the common shape of the input and the second input."""
    x = node.input(0)
    asked = node.integer_list(1, node.propose_sizes)
    for size in asked:
        node.require(ge(size), "a size is not negative")
    shape = require_common_shape(node, [x.shape, asked])
    return SymbolicTensor(shape, lambda index: broadcast_element(x, shape, index))


def Tile(node: OpContext) -> SymbolicTensor:
    """Each axis repeated."""
    x = node.input(0)

    def propose() -> tuple[Size, ...]:
        return tuple(fresh_symbol("repeat") for _ in range(x.rank))

    repeats = node.integer_list(1, propose)
    if len(repeats) != x.rank:
        raise UndefinedOperatorError("Tile: not one number per axis")
    for repeat in repeats:
        node.require(ge(repeat), "repeats are not negative")
    shape = tuple(s * r for s, r in zip(x.shape, repeats, strict=True))

    def at(index: Index) -> Expr:
        parts = zip(index, x.shape, repeats, strict=True)
        return x.element(tuple(i if r == 1 else remainder(i, s) if s != 0 else 0 for i, s, r in parts))

    return SymbolicTensor(shape, at)


def Pad(node: OpContext) -> SymbolicTensor:
    """Put `pads` elements before and after each axis, constant, repeated (edge), mirrored (reflect) or in turn
    (wrap)."""
    x = node.input(0)
    mode = node.text("mode", ("constant", "edge", "reflect", "wrap"))
    axes = node.axes(3, x.rank) if node.has_input(3) else tuple(range(x.rank))

    def propose() -> tuple[Size, ...]:
        return tuple(fresh_symbol("pad") for _ in range(2 * len(axes)))

    pads = node.integer_list(1, propose)
    if len(pads) != 2 * len(axes):
        raise UndefinedOperatorError("Pad: not two numbers per axis")
    value = node.input(2).element(()) if node.has_input(2) and node.input(2).rank == 0 else _padding_value(node)
    begin = {axis: pads[i] for i, axis in enumerate(axes)}
    end = {axis: pads[len(axes) + i] for i, axis in enumerate(axes)}
    shape = tuple(s + begin.get(a, 0) + end.get(a, 0) for a, s in enumerate(x.shape))
    for axis in axes:
        node.require(ge(shape[axis]), "the result has no negative size")
        if mode != "constant":
            node.require(conjunction(ge(begin[axis]), ge(end[axis])), "negative pads in another mode than constant")
            for pad in (begin[axis], end[axis]):
                least = pad + 1 if mode == "reflect" else 1
                node.require(disjunction(eq(pad), ge(x.shape[axis], least)), "the input is too small to be repeated")

    def at(index: Index) -> Expr:
        moved = tuple(i - begin.get(a, 0) for a, i in enumerate(index))
        if mode == "constant":
            inner = conjunction(*(in_range(i, x.shape[a]) for a, i in enumerate(moved) if a in begin))
            return select_expr(inner, x.element(moved), value)
        return x.element(
            tuple(_pad_source_index(mode, i, x.shape[a]) if a in begin else i for a, i in enumerate(moved))
        )

    return SymbolicTensor(shape, at)


def _padding_value(node: OpContext) -> Expr:
    if not node.has_input(2):
        return constant(0)
    value = node.input(2)
    if value.rank != 1:
        raise UndefinedOperatorError("Pad: the value is no scalar")
    node.require(eq(value.shape[0], 1), "the value has one element")
    return value.element((0,))


def _pad_source_index(mode: str, i: Size, size: Size) -> Size:
    if mode == "edge":
        return _clamp(i, 0, size - 1)
    if mode == "wrap":
        return remainder(i, size) if size != 0 else 0
    return if_then_else(ge(i), if_then_else(lt(i, size), i, 2 * (size - 1) - i), -1 * i)


SIZE_PRESERVING_MODES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Coordinate modes in which an axis that keeps its size keeps its elements."""


REPEATING_MODES = {("asymmetric", "floor")}
REPEATING_MODES |= {(where, f"round_prefer_{way}") for where in SIZE_PRESERVING_MODES[:3] for way in ("floor", "ceil")}
"""Coordinate modes and roundings in which the nearest neighbour of index i, enlarged k times, is i // k."""


ROUNDING_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


DEFAULT_RESIZE_ATTRIBUTES = {"antialias": 0, "cubic_coeff_a": -0.75, "exclude_outside": 0, "extrapolation_value": 0.0}
"""Attributes of a Resize with their defaults: interpolation with others is not denoted."""


def Resize(node: OpContext) -> SymbolicTensor:
    """Return elements repeated a whole number of times, by nearest neighbour; axes that keep their size; or weighted
    means of all elements.

    Y[o] = X[0] + Σ over i of share(o, i) · (X[i] - X[0]), along one axis after the other: shares add up to 1. What they
    are rests on how floats are rounded and is not looked into. By scales that are no whole numbers shares are not of
    one axis alone, for where no axis gets another size ONNX Runtime copies.
    """
    x = node.input(0)
    mode = node.text("mode", ("nearest", "linear", "cubic"))
    where = node.text("coordinate_transformation_mode", SIZE_PRESERVING_MODES)
    rounding = node.text("nearest_mode", ROUNDING_MODES) if mode == "nearest" else ""
    if mode != "nearest":
        node.read_unmodeled_attribute("nearest_mode")
    is_plain = [node.read_unmodeled_attribute(name) for name in DEFAULT_RESIZE_ATTRIBUTES] == list(
        DEFAULT_RESIZE_ATTRIBUTES.values()
    )
    axes = _resized_axes(node, x.rank)
    new, is_told = _requested_sizes(node, [x.shape[axis] for axis in axes])
    if len(new) != len(axes) or len(set(axes)) < len(axes):
        raise UndefinedOperatorError("Resize: not one size per axis")
    sizes = dict(zip(axes, new, strict=True))
    shape = tuple(sizes.get(axis, size) for axis, size in enumerate(x.shape))
    if mode != "nearest":
        node.require(_has_resize_kernel(mode, x.shape, shape), f"there is a kernel that is {mode} along these axes")

    whole = opaque_output(node, 0, SymbolicTensor(shape, x.element))

    def source(i: Size, size: Size, own: Size) -> Size | None:
        if node.is_known_equal(size, own):
            return i
        times = exact_quotient(size, own)
        return None if times is None or (where, rounding) not in REPEATING_MODES else quotient(i, times)

    def share(o: Size, i: Size, axis: int) -> Expr:
        return call_function(
            "share", *map(integer_value, (o, i, x.shape[axis], shape[axis])), params=(mode, where, rounding)
        )

    def at(index: Index) -> Expr:
        if not is_told:
            return whole.element(index)
        places = list(map(source, index, shape, x.shape))
        if None in places and (node.is_exact or not is_plain):
            return whole.element(index)
        return _weighted_mean(x, places, lambda axis, i: share(index[axis], i, axis))

    return SymbolicTensor(shape, at)


def _resized_axes(node: OpContext, rank: int) -> Sequence[int]:
    """Return the axes that a Resize is about."""
    asked = node.attribute("axes", lambda: OneOf((None, *axis_subsets(rank))))
    if not isinstance(asked, tuple | None):
        raise UndefinedOperatorError(f"Resize along {asked}, which is no list")
    return range(rank) if asked is None else [node.normalize_axis(axis, rank) for axis in asked]


def _has_resize_kernel(mode: str, old: SymbolicShape, new: SymbolicShape) -> Formula:
    """Return whether ONNX Runtime interpolates along the axes whose size changes: of a matrix, of an image in either
    layout, and, if linearly, of three axes and of a volume; not of a list."""
    kept = tuple(map(eq, new, old))
    match mode, len(old):
        case ("linear", 2 | 3) | ("cubic", 2):
            return TRUE
        case "cubic", 4:
            return conjunction(kept[0], disjunction(kept[1], conjunction(kept[3], *map(ge, new[1:3], old[1:3]))))
        case _, 4:
            return conjunction(kept[0], disjunction(kept[1], kept[3]))
        case "linear", 5:
            return conjunction(*kept[:2])
    return FALSE


def _weighted_mean(x: SymbolicTensor, places: Sequence[Size | None], share: Callable[[int, Size], Expr]) -> Expr:
    """Return the mean of all elements along the axes without a place, the last axis first, by the share of each."""

    def mean(axis: int, index: Index) -> Expr:
        """Return the mean over the axes from this one on, at an index of those before."""
        if axis == len(places):
            return x.element(index)
        place = places[axis]
        if place is not None:
            return mean(axis + 1, (*index, place))
        first = mean(axis + 1, (*index, 0))
        return first + sum_over(
            (x.shape[axis],), lambda inner: share(axis, inner[0]) * (mean(axis + 1, (*index, *inner)) - first)
        )

    return mean(0, ())


def _requested_sizes(node: OpContext, sizes: Sequence[Size]) -> tuple[Sequence[Size], bool]:
    """Return the sizes that a Resize asks for, or computes from scales, and whether they determine the factors: with
    scales that are not whole, sizes are rounded."""
    if node.has_input(3):
        node.text("keep_aspect_ratio_policy", ("stretch",))
        asked: Sequence[Size] = node.integer_list(3, lambda: tuple(fresh_symbol("size") for _ in sizes))
        for size, own in zip(asked, sizes, strict=False):
            of_some, of_none = conjunction(ge(size, 1), ge(own, 1)), conjunction(eq(size, 0), eq(own, 0))
            node.require(disjunction(of_some, of_none), "a size is at least 1, that of an empty axis 0")
        return asked, True
    node.read_unmodeled_attribute("keep_aspect_ratio_policy")
    scales = node.input(2)
    if scales.rank != 1:
        raise UndefinedOperatorError("Resize: scales are a list")
    node.require(eq(scales.shape[0], len(sizes)), "not one scale per axis")
    factors = [scales.element((i,)) for i in range(len(sizes))]
    numbers = [factor.constant for factor in factors]
    if any(factor is not None and factor <= 0 for factor in numbers):
        raise UndefinedOperatorError("Resize: a scale is positive")
    whole = [int(factor) for factor in numbers if factor is not None and factor.denominator == 1]
    if len(whole) == len(sizes):
        return [size * factor for size, factor in zip(sizes, whole, strict=True)], True
    return [node.scale_size(size, factor) for size, factor in zip(sizes, factors, strict=True)], False


def Trilu(node: OpContext) -> SymbolicTensor:
    """Return the upper (or lower) triangle of the last two axes, from the k-th diagonal on; 0 elsewhere."""
    x = node.input(0)
    if x.rank < 2:
        raise UndefinedOperatorError("Trilu of a vector")

    k = node.numbers(1, lambda: fresh_symbol("k")) if node.has_input(1) else 0
    upper = node.flag("upper")

    def at(index: Index) -> Expr:
        row, column = index[-2:]
        return guard_expr(ge(column, row + k) if upper else le(column, row + k), x.element(index))

    return SymbolicTensor(x.shape, at)


def EyeLike(node: OpContext) -> SymbolicTensor:
    """1 on the k-th diagonal, 0 elsewhere."""
    x = node.input(0)
    if x.rank != 2:
        raise UndefinedOperatorError("EyeLike of another rank than 2")
    k = node.integer("k")
    node.attribute("dtype", lambda: fresh_symbol("dtype"))
    return SymbolicTensor(x.shape, lambda index: truth_value(eq(index[1], index[0] + k)))


def ConstantOfShape(node: OpContext) -> SymbolicTensor:
    """Zeros, or copies of a value, of the shape that the input says."""
    sizes = node.integer_list(0, node.propose_sizes)
    value = node.attribute("value", lambda: OneOf((None,)))
    numbers = (0,) if value is None else value.int_values() if isinstance(value, Constant) else None
    for size in sizes:
        node.require(ge(size), "a size is not negative")

    def at(_: Index) -> Expr:
        if numbers is None:
            raise UnsupportedOperatorError(f"ConstantOfShape with value={value}")
        return constant(numbers[0])

    return SymbolicTensor(sizes, at)


def Shape_(node: OpContext) -> SymbolicTensor:
    """Return the sizes as a vector, from axis `start` to before `end`."""
    x = node.input(0)
    everywhere = range(-x.rank - 1, x.rank + 2)
    start = node.attribute("start", lambda: OneOf(everywhere))
    end = node.attribute("end", lambda: OneOf((None, *everywhere)))
    if not isinstance(start, int) or not isinstance(end, int | None):
        raise UnsupportedOperatorError("Shape from a symbol")
    sizes = x.shape[start:end]

    def at(index: Index) -> Expr:
        result = constant(0)
        for position, size in enumerate(sizes):
            result = result + guard_expr(eq(index[0], position), integer_value(size))
        return result

    return SymbolicTensor((len(sizes),), at)


def Size_(node: OpContext) -> SymbolicTensor:
    x = node.input(0)
    return SymbolicTensor((), lambda _: integer_value(product(x.shape)))


def Dropout(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """Return the input unchanged: at inference, or with a ratio of 0, nothing is dropped."""
    x = node.input(0)
    no_ratio, no_training = _is_zero_input(node, 1), not node.has_input(2) or _is_zero_input(node, 2)
    if node.has_input(1) and not no_ratio:  # its kernel asks so of all
        ratio = node.input(1).element(())
        node.require(
            conjunction(negate(is_positive(-ratio)), is_positive(1 - ratio)),
            "a ratio is at least 0, and less than 1",
        )
    if not (no_ratio or no_training):
        raise UnsupportedOperatorError("Dropout that may be in training")
    node.read_unmodeled_attribute("seed")
    mask = SymbolicTensor(x.shape, lambda _: truth_value(TRUE))
    return (x, mask)[: node.output_count]


def _is_zero_input(node: OpContext, position: int) -> bool:
    given = node.optional_input(position)
    if given is not None and given.rank:
        raise UndefinedOperatorError("Dropout by a list")
    return given is not None and given.element(()).constant == 0
