"""Operators that move or rename axes and compute nothing: Transpose, Reshape, Flatten, Squeeze, Unsqueeze."""

from collections.abc import Mapping

from graphopt.rule import App, Rule, Term, attributes, binary, fn, integer, integers, op, pointwise, tensor
from graphopt.rules.names import snake_case

x, y, z = tensor("x"), tensor("y"), tensor("z")
perm, first, second = integers("perm"), integers("first"), integers("second")
axes, more = integers("axes"), integers("more")
shape, target = integers("shape"), integers("target")
axis, other_axis, block = integer("axis"), integer("other_axis"), integer("block")
rest, inner = attributes("rest"), attributes("inner")
both = fn.compose(first, second)
undone = fn.is_identity(both)
rank = fn.rank(x)


def is_nonempty(positions: Term) -> App:
    """Return the condition that a list of axes is not empty: ONNX Runtime takes an empty one for "all"."""
    return fn.lt(0, fn.length(positions))


# -- Transpose -----------------------------------------------------------------------------------------------------

TRANSPOSES = (
    Rule(
        "eliminate_nop_transpose",
        op.Transpose(x, perm=perm),
        x,
        when=fn.is_identity(perm),
        why="A transposition that keeps every axis in its place copies its input.",
    ),
    Rule(
        "fuse_consecutive_transposes",
        op.Transpose(op.Transpose(x, perm=first), perm=second),
        op.Transpose(x, perm=both),
        why="Two transpositions are one.",
    ),
)

# A transposition in which only an axis of size 1 changes places moves no element. `from_end` is where that axis is.
SOURCES = {1: "*b 1", 2: "*b 1 N", 3: "*b 1 M N", 4: "*b 1 L M N"}


def without_moving(from_end: int, declared: str) -> tuple[Rule, Rule]:
    """Return the rules that replace a Transpose that moves an axis of size 1: past axes of known sizes, or past axes of
    which one is of any size."""
    thin = tensor("x", declared)
    source, last = fn.rank(thin) - from_end, fn.rank(thin) - 1
    goal = fn.item(fn.inverse(perm), source)
    start, stop = fn.minimum(source, goal), fn.maximum(source, goal)
    others = fn.delete(fn.shape(thin), source)
    passed = fn.slice(others, start, stop)
    behind = [fn.repeat(0, last - stop)] if from_end > 1 else []

    def reshaped(sizes: Term) -> App:
        return op.Reshape(thin, fn.insert(fn.concat(fn.repeat(0, start), sizes, *behind), goal, 1))

    is_move = fn.is_sorted(fn.delete(perm, goal))
    name = f"replace_transpose_that_moves_one_{from_end}"
    why = "Moving an axis of size 1 moves no element, and a Reshape does not even copy."
    return (
        Rule(name, op.Transpose(thin, perm=perm), reshaped(passed), when=(is_move, fn.le(1, passed)), why=why),
        Rule(
            f"{name}_past_an_open_axis",
            op.Transpose(thin, perm=perm),
            reshaped(fn.concat(-1)),
            when=(is_move, fn.eq(stop, start + 1), fn.le(1, fn.delete(others, start))),
            why=why,
        ),
    )


MOVES = tuple(rule for from_end, declared in SOURCES.items() for rule in without_moving(from_end, declared))

# -- Transpose and another operator --------------------------------------------------------------------------------

inserted = fn.normalize_indices(axes, fn.rank(x) + fn.length(axes))
squeezed_first = fn.delete(first, axes)
NEW_PLACES, LAST_PLACES = fn.compose(fn.inverse(perm), inserted), fn.compose(fn.inverse(second), inserted)

VIEWS_OF_TRANSPOSES = (
    Rule(
        "fuse_transpose_into_squeeze",
        op.Squeeze(op.Transpose(x, perm=perm), axes),
        op.Squeeze(x, fn.compose(perm, axes)),
        when=(is_nonempty(axes), fn.is_sorted(fn.delete(perm, axes))),
        why="Where only axes of size 1 were moved, and are dropped, no element moves.",
    ),
    Rule(
        "fuse_unsqueeze_into_transpose",
        op.Transpose(op.Unsqueeze(x, axes), perm=perm),
        op.Unsqueeze(x, NEW_PLACES),
        when=fn.is_sorted(fn.delete(perm, NEW_PLACES)),
        why="Where only new axes are moved, they can be made where they belong.",
    ),
    Rule(
        "fuse_transposes_around_squeeze",
        op.Transpose(op.Squeeze(op.Transpose(x, perm=first), axes), perm=second),
        op.Transpose(
            op.Squeeze(x, fn.compose(first, axes)), perm=fn.compose(fn.inverse(fn.inverse(squeezed_first)), second)
        ),
        when=is_nonempty(axes),
        why="Two transpositions are one, also where axes of size 1 are dropped in between.",
    ),
    Rule(
        "fuse_transposes_around_unsqueeze",
        op.Transpose(op.Unsqueeze(op.Transpose(x, perm=first), axes), perm=second),
        op.Unsqueeze(x, LAST_PLACES),
        when=(
            fn.eq(fn.length(axes), 1),
            fn.is_sorted(fn.delete(fn.compose(fn.insert(first, axes, 0), second), LAST_PLACES)),
        ),
        why="Two transpositions that undo each other, but for an axis of size 1 that is made in between, do nothing.",
    ),
)


f, g = pointwise("f"), binary("g")
starts, ends, steps = integers("starts"), integers("ends"), integers("steps")
TRANSPOSES_AROUND = (
    Rule(
        "fuse_transposes_around_pointwise",
        op.Transpose(f(op.Transpose(x, perm=first)), perm=second),
        f(op.Transpose(x, perm=both)),
        why="Each element is treated alike, so the transpositions before and after it meet.",
    ),
    *(
        Rule(
            f"fuse_transposes_around_{snake_case(name)}",
            op.Transpose(getattr(op, name)(op.Transpose(x, perm=first), axis=axis), perm=second),
            getattr(op, name)(x, axis=fn.item(first, axis)),
            when=undone,
            why=f"{name} runs along an axis, whichever its place.",
        )
        for name in ("Softmax", "LogSoftmax")
    ),
    *(
        Rule(
            f"push_transpose_above_{snake_case(name)}",
            op.Transpose(getattr(op, name)(x, axis=axis), perm=perm),
            getattr(op, name)(op.Transpose(x, perm=perm), axis=-1),
            when=fn.eq(fn.item(fn.inverse(perm), axis), rank - 1),
            pays=fn.ne(fn.item(perm, -1), rank - 1),
            why=f"Along another axis than the last, ONNX Runtime's {name} transposes twice by itself.",
            canonical=True,
        )
        for name in ("Softmax", "LogSoftmax")
    ),
    Rule(
        "fuse_transposes_around_slice",
        op.Transpose(op.Slice(op.Transpose(x, perm=first), starts, ends, axes, steps), perm=second),
        op.Slice(x, starts, ends, fn.compose(first, axes), steps),
        when=undone,
        why="A slice is taken along an axis, whichever its place.",
    ),
    Rule(
        "hoist_transposes_over_binary",
        g(op.Transpose(x, perm=perm), op.Transpose(y, perm=perm)),
        op.Transpose(g(x, y), perm=perm),
        why="One transposition of the result replaces one of each operand.",
    ),
    *(
        Rule(
            f"hoist_transposes_over_concat_{len(parts)}",
            op.Concat(*(op.Transpose(part, perm=perm) for part in parts), axis=axis),
            op.Transpose(op.Concat(*parts, axis=fn.item(perm, axis)), perm=perm),
            why="One transposition of the result replaces one of each part.",
        )
        for parts in ((x, y), (x, y, z))
    ),
)

# -- Reshape -------------------------------------------------------------------------------------------------------

# A 0 in a Reshape's target means "as it is", which after another view may be another axis. `kept` has a 0 for each
# axis of the first view's result that is the axis of x in that place; the target may have zeros only there.
squeeze, unsqueeze = op.Squeeze(x, axes), op.Unsqueeze(x, axes)
VIEWS: Mapping[str, tuple[App, App | tuple[int, ...] | Term]] = {
    "reshapes": (op.Reshape(x, shape), shape),
    "literal_reshapes": (op.Reshape(x, shape, allowzero=1), ()),
    "flatten_and_reshape": (op.Flatten(x), (0,)),
    "other_flatten_and_reshape": (op.Flatten(x, axis=axis), ()),
    "squeeze_and_reshape": (squeeze, fn.repeat(0, fn.item(fn.sorted(fn.normalize_indices(axes, rank)), 0))),
    "unsqueeze_and_reshape": (unsqueeze, fn.repeat(0, fn.item(fn.sorted(inserted), 0))),
}
LITERALLY = {
    "reshapes": op.Reshape(x, shape, inner),
    "flatten_and_reshape": op.Flatten(x, inner),
    "squeeze_and_reshape": squeeze,
    "unsqueeze_and_reshape": unsqueeze,
}
fewer, longer = fn.delete(shape, axes), fn.insert(shape, axes, 1)
trailing = fn.slice(shape, 1, fn.length(shape))

rows = tensor("x", "N *s")
ones = fn.length(target) - fn.rank(rows)
RESHAPES = (
    Rule(
        "replace_reshapes_by_unsqueeze",
        op.Reshape(op.Reshape(rows, (-1,)), target),
        op.Unsqueeze(rows, fn.range(ones) + 1),
        when=(fn.lt(0, ones), fn.eq(target, fn.concat(fn.size("N"), fn.repeat(1, ones), fn.sizes("*s")))),
        why="A view that has only axes of size 1 more needs no sizes.",
    ),
    Rule(
        "eliminate_nop_reshape",
        op.Reshape(x, shape),
        x,
        when=fn.is_noop_reshape(shape, fn.shape(x)),
        why="A Reshape to the shape that the value has already is the identity.",
    ),
    Rule(
        "eliminate_nop_reshape_literal",
        op.Reshape(x, shape, allowzero=1),
        x,
        when=fn.any_of(
            fn.eq(shape, fn.shape(x)), fn.all_of(fn.is_noop_reshape(shape, fn.shape(x)), fn.not_(fn.is_in(0, shape)))
        ),
        why="A Reshape to the shape that the value has already is the identity.",
    ),
    *(
        Rule(
            f"fuse_consecutive_{name}",
            op.Reshape(view, target),
            op.Reshape(x, target),
            when=fn.zeros_subset(target, kept),
            why="Only the last of two views counts.",
        )
        for name, (view, kept) in VIEWS.items()
    ),
    *(
        Rule(
            f"fuse_consecutive_{name}_literally",
            op.Reshape(view, target, allowzero=1),
            op.Reshape(x, target, allowzero=1),
            why="Only the last of two views counts.",
        )
        for name, view in LITERALLY.items()
    ),
    Rule(
        "fuse_squeeze_into_reshape",
        op.Squeeze(op.Reshape(x, shape, rest), axes),
        op.Reshape(x, fewer, rest),
        when=(is_nonempty(axes), fn.eq(fn.compose(shape, axes), 1), fn.zeros_subset(fewer, shape)),
        why="Axes of size 1 that are dropped again need not be made.",
    ),
    Rule(
        "fuse_unsqueeze_into_reshape",
        op.Unsqueeze(op.Reshape(x, shape, rest), axes),
        op.Reshape(x, longer, rest),
        when=fn.zeros_subset(longer, shape),
        why="A Reshape can make the new axes itself.",
    ),
    Rule(
        "fuse_flatten_into_reshape",
        op.Flatten(op.Reshape(x, shape, rest)),
        op.Reshape(x, fn.concat(fn.item(shape, 0), fn.product(trailing)), rest),
        when=fn.le(1, trailing),
        why="Only the last of two views counts.",
    ),
    Rule(
        "fuse_reshapes_around_pointwise",
        op.Reshape(f(op.Reshape(x, shape)), target),
        f(op.Reshape(x, target)),
        when=fn.zeros_subset(target, shape),
        why="Each element is treated alike, so the Reshapes before and after it meet.",
    ),
)

# -- a stack of matrices -------------------------------------------------------------------------------------------

# This is how the keys of attention are exported: the stacks become one, and several again.
stack, grouped = tensor("x", "A B M N"), tensor("x", "A B C M N")


def is_one_stack(sizes: str) -> App:
    """Return whether `shape` asks for all axes but the last two as one."""
    matrices, all_of_them = fn.sizes("M N"), fn.product(fn.sizes(sizes))
    return fn.any_of(fn.eq(shape, fn.concat(-1, matrices)), fn.eq(shape, fn.concat(all_of_them, matrices)))


transposed = fn.sizes("A B N M")
REGROUPED = {
    "behind": fn.concat(fn.size("A"), fn.product(fn.sizes("B C"))),
    "in_front": fn.concat(fn.product(fn.sizes("A B")), fn.size("C")),
}
STACKS = (
    Rule(
        "fuse_reshapes_around_transpose_of_matrices",
        op.Reshape(op.Transpose(op.Reshape(stack, shape), perm=(0, 2, 1)), target),
        op.Transpose(stack, perm=(0, 1, 3, 2)),
        when=(
            is_one_stack("A B"),
            fn.any_of(
                fn.all_of(fn.eq(target, transposed), fn.le(1, fn.slice(target, 1, 3))),
                fn.all_of(
                    fn.is_noop_reshape(target, transposed), fn.not_(fn.is_in(0, target)), fn.le(1, fn.sizes("N M"))
                ),
            ),
        ),
        why="Matrices are transposed alike, in a stack of stacks too.",
    ),
    *(
        Rule(
            f"fuse_reshapes_around_transpose_of_matrices_grouped_{where}",
            op.Reshape(op.Transpose(op.Reshape(grouped, shape), perm=(0, 2, 1)), target),
            op.Transpose(op.Reshape(grouped, fn.concat(stacks, fn.sizes("M N"))), perm=(0, 1, 3, 2)),
            when=(
                is_one_stack("A B C"),
                fn.eq(target, fn.concat(stacks, fn.sizes("N M"))),
                fn.le(1, target),
            ),
            why="Matrices are transposed alike, in a stack of stacks too.",
        )
        for where, stacks in REGROUPED.items()
    ),
)

# -- Flatten, Squeeze, Unsqueeze -----------------------------------------------------------------------------------

matrix = tensor("x", "M N")
full = rank + fn.length(axes)  # the rank after Unsqueeze
final = full + fn.length(more)
late = fn.normalize_indices(more, final)

AXES = (
    Rule(
        "eliminate_nop_flatten",
        op.Flatten(matrix, axis=axis),
        matrix,
        when=fn.eq(fn.normalize_indices(axis, 2), 1),
        why="A matrix is flat already.",
    ),
    Rule(
        "eliminate_squeeze_of_unsqueeze",
        op.Squeeze(op.Unsqueeze(x, axes), more),
        x,
        when=fn.eq(fn.sorted(fn.normalize_indices(axes, full)), fn.sorted(fn.normalize_indices(more, full))),
        why="The axes that are dropped are those that were just made.",
    ),
    Rule(
        "eliminate_unsqueeze_of_squeeze",
        op.Unsqueeze(op.Squeeze(x, axes), more),
        x,
        when=(
            is_nonempty(axes),
            fn.eq(fn.sorted(fn.normalize_indices(axes, rank)), fn.sorted(fn.normalize_indices(more, rank))),
        ),
        why="The axes that are made are those that were just dropped.",
    ),
    Rule(
        "fuse_consecutive_squeezes",
        op.Squeeze(op.Squeeze(x, axes), more),
        op.Squeeze(
            x, fn.sorted(fn.concat(fn.normalize_indices(axes, rank), fn.compose(fn.delete(fn.range(rank), axes), more)))
        ),
        when=(is_nonempty(axes), is_nonempty(more)),
        why="One Squeeze drops all axes; those of the second are counted without those of the first.",
    ),
    Rule(
        "fuse_consecutive_unsqueezes",
        op.Unsqueeze(op.Unsqueeze(x, axes), more),
        op.Unsqueeze(x, fn.sorted(fn.concat(late, fn.compose(fn.delete(fn.range(final), late), axes)))),
        why="One Unsqueeze makes all axes; those of the first move to make room for those of the second.",
    ),
)

# -- blocks --------------------------------------------------------------------------------------------------------

image = tensor("x", "N C H W")
BLOCKS = (
    Rule(
        "eliminate_space_to_depth_of_depth_to_space",
        op.SpaceToDepth(op.DepthToSpace(image, blocksize=block), blocksize=block),
        image,
        why="Blocks that are taken apart and put together again are where they were.",
    ),
    Rule(
        "eliminate_depth_to_space_of_space_to_depth",
        op.DepthToSpace(op.SpaceToDepth(image, blocksize=block), blocksize=block),
        image,
        when=(fn.eq(fn.mod(fn.size("H"), block), 0), fn.eq(fn.mod(fn.size("W"), block), 0)),
        why="Blocks that are put together and taken apart again are where they were.",
    ),
    *(
        Rule(
            f"eliminate_nop_{snake_case(name)}",
            getattr(op, name)(x, rest, blocksize=1),
            x,
            why="Blocks of one element stay where they are.",
        )
        for name in ("DepthToSpace", "SpaceToDepth")
    ),
)

RULES = (*TRANSPOSES, *MOVES, *VIEWS_OF_TRANSPOSES, *TRANSPOSES_AROUND, *RESHAPES, *STACKS, *AXES, *BLOCKS)
