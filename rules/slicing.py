"""Operators that take, join, repeat or pad parts: Slice, Concat, Split, Gather, Expand, Tile, Pad, Resize."""

from itertools import pairwise

from graphopt.rule import App, Rule, Term, attributes, binary, const, fn, integer, integers, op, string, tensor, tensors

x, y, z = tensor("x"), tensor("y"), tensor("z")
axis, other_axis = integer("axis"), integer("other_axis")
axes, other_axes = integers("axes"), integers("other_axes")
starts, ends, steps = integers("starts"), integers("ends"), integers("steps")
starts2, ends2, steps2 = integers("starts2"), integers("ends2"), integers("steps2")
sizes, repeats, more = integers("sizes"), integers("repeats"), integers("more")
rest = attributes("rest")
rank, shape = fn.rank(x), fn.shape(x)


def axis_from_front(position: Term) -> App:
    """Return an axis of x, counted from the front."""
    return fn.normalize_indices(position, rank)


def axis_length(value: Term, position: Term) -> App:
    return fn.item(fn.shape(value), position)


def numbered_tensors(count: int) -> tuple[Term, ...]:
    return tuple(tensor(f"x{i}") for i in range(count))


# -- Slice ---------------------------------------------------------------------------------------------------------

lengths = fn.compose(shape, axes)
from_front, to_end = (
    fn.maximum(fn.normalize_indices(starts, lengths), 0),
    fn.maximum(fn.normalize_indices(ends, lengths), 0),
)
LARGE, LONGEST = 2**31 - 1, 2**63 - 1

inner_slice = op.Slice(x, starts, ends, axes, steps)
SLICES = (
    Rule(
        "eliminate_nop_slice",
        inner_slice,
        x,
        when=(fn.eq(steps, 1), fn.le(fn.normalize_indices(starts, lengths), 0), fn.le(lengths, ends)),
        why="A slice from the first element to the last is all of it.",
    ),
    Rule(
        "fuse_consecutive_slices",
        op.Slice(inner_slice, starts2, ends2, other_axes, steps2),
        op.Slice(
            x,
            fn.concat(starts, starts2),
            fn.concat(ends, ends2),
            fn.concat(axis_from_front(axes), axis_from_front(other_axes)),
            fn.concat(steps, steps2),
        ),
        when=fn.eq(
            fn.length(fn.delete(fn.range(rank), fn.concat(axis_from_front(axes), axis_from_front(other_axes)))),
            rank - fn.length(axes) - fn.length(other_axes),
        ),
        why="Slices along different axes are one.",
    ),
    Rule(
        "fuse_consecutive_slices_along_the_same_axes",
        op.Slice(inner_slice, starts2, ends2, other_axes, steps2),
        op.Slice(x, from_front + starts2, fn.minimum(to_end, from_front + ends2), axes, steps2),
        when=(
            fn.eq(axis_from_front(axes), axis_from_front(other_axes)),
            fn.eq(steps, 1),
            fn.lt(0, steps2),
            fn.le(0, starts2),
            fn.le(0, ends2),
            fn.le(from_front + starts2, LARGE),
        ),
        why="A slice of a slice is a slice: it is counted from where the first begins.",
    ),
)

# The same for slices that share some of their axes: each is told for all axes of x, and is all of it along the others.
# Axes are counted from the front, and one of the two slices has a single one, as exporters do: from the back, and with
# all pairs of lists, would be eight times the proof.
every = fn.range(rank)


def per_axis_values(numbers: Term, along: Term, otherwise: int) -> App:
    """Return numbers for all axes of x, given those of some axes and one for the others."""
    return fn.add(fn.scatter(fn.sub(numbers, otherwise), along, rank), otherwise)


first, last = per_axis_values(starts, axes, 0), per_axis_values(ends, axes, LONGEST)
first2, last2, stride = (
    per_axis_values(starts2, other_axes, 0),
    per_axis_values(ends2, other_axes, LONGEST),
    per_axis_values(steps2, other_axes, 1),
)
OVERLAPPING_SLICES = Rule(
    "fuse_consecutive_slices_along_some_of_the_same_axes",
    op.Slice(inner_slice, starts2, ends2, other_axes, steps2),
    op.Slice(x, first + first2, fn.minimum(last, first + last2), every, stride),
    when=(
        fn.any_of(fn.eq(fn.length(axes), 1), fn.eq(fn.length(other_axes), 1)),
        *(fn.le(0, numbers) for numbers in (axes, other_axes, starts, ends, starts2, ends2)),
        fn.eq(steps, 1),
        fn.lt(0, steps2),
        fn.le(first + first2, LARGE),
    ),
    why="A slice of a slice is a slice, axis by axis.",
)

# -- Concat --------------------------------------------------------------------------------------------------------


before, within, after = tensors("before"), tensors("within"), tensors("after")


def adjoining_slices(count: int) -> tuple[list[App], tuple[App, ...]]:
    """Return adjoining slices of x along one axis, the first from `cut0`, and the conditions that they adjoin."""
    cuts = [integers(f"cut{i}") for i in range(count + 1)]
    slices = [op.Slice(x, cuts[i], cuts[i + 1], axes, steps) for i in range(count)]
    ordered = [fn.le(a, b) for a, b in pairwise(cuts[:-1])]
    inside = fn.all_of(fn.le(cuts[-2], lengths), fn.le(cuts[-2], cuts[-1]))
    return slices, (fn.eq(fn.length(axes), 1), fn.eq(steps, 1), fn.le(0, cuts[0]), *ordered, inside)


def split_by_slices(count: int) -> Rule:
    slices, adjoin = adjoining_slices(count)
    cuts = [fn.item(integers(f"cut{i}"), 0) for i in range(count)]
    along = fn.item(axes, 0)
    parts = [b - a for a, b in zip(cuts, (*cuts[1:], axis_length(x, along)), strict=True)]
    return Rule(
        f"fuse_{count}_slices_into_split",
        tuple(slices),
        op.Split.split(count, x, fn.concat(*parts), axis=along),
        when=(*adjoin, fn.eq(integers("cut0"), 0), fn.le(lengths, integers(f"cut{count}"))),
        why="Slices that together are all of a value are its parts: one Split reads it once.",
    )


two, adjoin = adjoining_slices(2)
begin = fn.extent(before)
end = begin + axis_length(x, axis)

CONCATS = (
    Rule("eliminate_nop_concat", op.Concat(x, axis=axis), x, why="A single part, joined to nothing, is the whole."),
    Rule(
        "fuse_consecutive_concats",
        op.Concat(*before, op.Concat(*within, axis=other_axis), *after, axis=axis),
        op.Concat(*before, *within, *after, axis=axis),
        when=fn.eq(fn.normalize_indices(axis, fn.rank(within)), fn.normalize_indices(other_axis, fn.rank(within))),
        why="Parts that are joined along one axis can be joined at once.",
    ),
    Rule(
        "fuse_concat_of_adjoining_slices",
        op.Concat(*before, *two, *after, axis=axis),
        op.Concat(*before, op.Slice(x, integers("cut0"), integers("cut2"), axes, steps), *after, axis=axis),
        when=(*adjoin, fn.eq(axis_from_front(axes), axis_from_front(fn.concat(axis)))),
        why="Slices that adjoin are one when they are joined.",
    ),
    Rule(
        "eliminate_slice_of_concat",
        op.Slice(op.Concat(*before, x, *after, axis=axis), starts, ends, axes, steps),
        x,
        when=(
            fn.eq(steps, 1),
            fn.eq(axis_from_front(axes), axis_from_front(fn.concat(axis))),
            fn.eq(starts, begin),
            fn.any_of(fn.eq(ends, end), fn.all_of(fn.eq(fn.extent(after), 0), fn.le(end, ends))),
        ),
        why="The slice is one of the parts that were joined.",
    ),
)

# -- Split ---------------------------------------------------------------------------------------------------------


def build_split_of_concat_rule(count: int) -> Rule:
    """Return a Split of a Concat into what was joined."""
    parts = numbered_tensors(count)
    return Rule(
        f"eliminate_split_of_concat_{count}",
        op.Split.split(count, op.Concat(*parts, axis=axis), sizes, axis=other_axis),
        parts,
        when=(
            fn.eq(fn.normalize_indices(axis, fn.rank(parts[0])), fn.normalize_indices(other_axis, fn.rank(parts[0]))),
            *(
                fn.eq(fn.item(sizes, i), axis_length(part, axis)) for i, part in enumerate(parts[:-1])
            ),  # the last one is left
        ),
        why="The pieces are the parts that were joined.",
    )


same_axis = fn.eq(axis_from_front(axis), axis_from_front(other_axis))
SPLITS = (
    Rule("eliminate_nop_split", op.Split(x, sizes, axis=axis), x, why="A split into one part is the whole."),
    Rule(
        "eliminate_nop_split_evenly",
        op.Split(x, axis=axis, num_outputs=1),
        x,
        why="A split into one part is the whole.",
    ),
    *(
        Rule(
            f"eliminate_concat_of_split_{count}",
            op.Concat(*op.Split.split(count, x, sizes, axis=axis), axis=other_axis),
            x,
            when=same_axis,
            why="Parts that are joined again in their order are the whole.",
        )
        for count in (2, 3, 4)
    ),
    *(
        Rule(
            f"eliminate_concat_of_even_split_{count}",
            op.Concat(*op.Split.split(count, x, axis=axis, num_outputs=count), axis=other_axis),
            x,
            when=same_axis,
            why="Parts that are joined again in their order are the whole.",
        )
        for count in (2, 3, 4)
    ),
    *(build_split_of_concat_rule(count) for count in (2, 3)),
    *(split_by_slices(count) for count in (2, 3)),
)

# -- Gather --------------------------------------------------------------------------------------------------------

chosen, again, single, only = const("i", "K"), const("j"), const("i", ""), integer("i")
row, table, looked_up = tensor("i", "K"), tensor("x", "V D"), tensor("j")
# The mask of attention as it is exported: its axes are set apart by indices that are computed.
mask, places, numbers = tensor("x", "N S"), tensor("i", "N 1*k S 2"), tensor("i", "N 1*k S")

GATHERS = (
    Rule(
        "eliminate_nop_gather",
        op.Gather(x, row, axis=axis),
        x,
        when=(fn.is_arange(row), fn.eq(fn.size("K"), axis_length(x, axis))),
        why="All elements, taken in their order, are the whole.",
    ),
    Rule(
        "replace_gather_nd_in_order_by_unsqueeze",
        op.GatherND(mask, places),
        op.Unsqueeze(mask, fn.range(fn.rank(places) - 3) + 1),
        when=fn.is_arange(places, fn.sizes("N S")),
        why="All elements, taken in their order, are a view of the whole.",
    ),
    Rule(
        "replace_gather_in_order_by_unsqueeze",
        op.Gather(op.Flatten(mask, axis=2), numbers, axis=0),
        op.Unsqueeze(mask, fn.concat(fn.range(fn.rank(numbers) - 2) + 1, fn.rank(numbers))),
        when=fn.is_arange(numbers),
        why="All elements, taken in their order, are a view of the whole.",
    ),
    Rule(
        "fuse_consecutive_gathers",
        op.Gather(op.Gather(x, chosen, axis=axis), again, axis=other_axis),
        op.Gather(x, op.Gather(chosen, again, axis=0), axis=axis),
        when=same_axis,
        why="What is chosen among the chosen is known when the model is compiled.",
    ),
    Rule(
        "replace_gather_of_only_element_by_squeeze",
        op.Gather(x, only, axis=axis),
        op.Squeeze(x, fn.concat(axis)),
        when=fn.eq(axis_length(x, axis), 1),
        why="The only element along an axis is the whole, without that axis.",
    ),
    Rule(
        "fuse_unsqueeze_into_gather",
        op.Unsqueeze(op.Gather(x, only, axis=axis), axes),
        op.Gather(x, fn.concat(only), axis=axis),
        when=fn.eq(fn.normalize_indices(axes, rank), fn.normalize_indices(fn.concat(axis), rank)),
        why="A list of one index leaves the axis that a single index removes.",
    ),
    Rule(
        "push_unsqueeze_above_gather",
        op.Unsqueeze(op.Gather(table, looked_up, axis=0), axes),
        op.Gather(table, op.Unsqueeze(looked_up, axes), axis=0),
        when=(fn.eq(fn.length(axes), 1), fn.le(0, axes), fn.le(axes, fn.rank(looked_up))),
        why="The indices of an embedding are fewer than what is looked up, and may have been made without the axis.",
    ),
    Rule(
        "eliminate_gather_of_unsqueeze",
        op.Gather(op.Unsqueeze(x, axes), single, axis=axis),
        x,
        when=fn.eq(fn.normalize_indices(axes, rank + 1), fn.normalize_indices(fn.concat(axis), rank + 1)),
        why="The only element along an axis that was just made is the whole.",
    ),
)

# -- Expand and Tile -----------------------------------------------------------------------------------------------

g = binary("g")
expanded, tiled = op.Expand(x, sizes), op.Tile(x, repeats)
together = fn.broadcast(shape, fn.shape(y))
NEEDLESS = {
    "expand": (expanded, (fn.eq(together, fn.broadcast(fn.broadcast(shape, sizes), fn.shape(y))),)),
    "tile": (
        tiled,
        (fn.eq((shape - 1) * (repeats - 1), 0), fn.eq(together, fn.broadcast(shape * repeats, fn.shape(y)))),
    ),
}
"""Operators that repeat x along axes of size 1 only, beside a y that is as long: broadcasting does the same."""

EXPANSIONS = (
    Rule(
        "eliminate_nop_expand",
        expanded,
        x,
        when=fn.eq(fn.broadcast(shape, sizes), shape),
        why="An Expand to the shape that the value has already is the identity.",
    ),
    Rule(
        "fuse_consecutive_expands",
        op.Expand(expanded, more),
        op.Expand(x, fn.broadcast(sizes, more)),
        why="Two expansions are one.",
    ),
    Rule(
        "eliminate_nop_tile",
        tiled,
        x,
        when=fn.eq(repeats, 1),
        why="One repetition is the value itself.",
    ),
    Rule(
        "fuse_consecutive_tiles",
        op.Tile(tiled, more),
        op.Tile(x, repeats * more),
        why="Repetitions of repetitions are repetitions.",
    ),
    *(
        Rule(
            f"eliminate_{what}_before_binary",
            g(repeated, y),
            g(x, y),
            when=when,
            why="Operators on two operands broadcast them themselves.",
        )
        for what, (repeated, when) in NEEDLESS.items()
    ),
)

# -- Pad and Resize ------------------------------------------------------------------------------------------------

pads, more_pads = integers("pads"), integers("more_pads")
value = const("value", "", default=0)

PADS = (
    Rule(
        "eliminate_nop_pad",
        op.Pad(x, pads, value, axes, rest),
        x,
        when=fn.eq(pads, 0),
        why="Padding by nothing on every side is the identity.",
    ),
    Rule(
        "fuse_consecutive_pads",
        op.Pad(op.Pad(x, pads, value, axes), more_pads, value, axes),
        op.Pad(x, pads + more_pads, value, axes),
        when=(fn.le(0, pads), fn.le(0, more_pads)),
        why="Two borders of one value are one.",
    ),
)

scales, roi = const("scales", "R"), const("roi", "0")
where, nearest, mode = string("where"), string("nearest"), string("mode")
MODES = ("nearest", "linear", "cubic")
FAITHFUL = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
one = (fn.is_one(scales), fn.eq(fn.size("R"), rank))


def is_one_of(text: Term, texts: tuple[str, ...]) -> App:
    return fn.any_of(*(fn.eq(text, each) for each in texts))


RESIZES = tuple(
    Rule(
        f"eliminate_nop_resize{name}",
        op.Resize(x, *inputs, mode=mode, coordinate_transformation_mode=where, nearest_mode=nearest),
        x,
        when=(is_one_of(mode, MODES), is_one_of(where, FAITHFUL), *conditions),
        why="At scale 1 every sample falls on an element.",
    )
    for name, inputs, conditions in (
        ("", (None, scales), one),
        ("_with_empty_roi", (roi, scales), one),
        ("_to_size", (None, None, sizes), (fn.eq(sizes, shape),)),
    )
)

RULES = (*SLICES, OVERLAPPING_SLICES, *CONCATS, *SPLITS, *GATHERS, *EXPANSIONS, *PADS, *RESIZES)
