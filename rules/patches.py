"""Images that are cut into patches before they are convolved or multiplied: a convolution with strides cuts itself.

YOLOv5 and YOLOX call it Focus (four Slices and a Concat), torch PixelUnshuffle, vision transformers patch embedding.
"""

from __future__ import annotations

from graphopt.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.term import App, Operand, Term

# Axes: N batch, C channels, H W space, D channels of a patch, M output channels, K L kernel.
x = tensor("x", "N C H W")
w, b = const("w", "M D K L"), const("b", "M", default=0)
strides, pads, block = integers("strides"), integers("pads"), integer("block")
C, M, K, L, H, W = (fn.size(axis) for axis in "CMKLHW")


def spread(sizes: Operand, perm: tuple[int, ...], rows: Operand, columns: Operand) -> App:
    """Return kernels over patches as kernels over their pixels."""
    return op.Reshape(op.Transpose(op.Reshape(w, sizes), perm=perm), fn.join(M, C, K * rows, L * columns))


# -- operators that cut ---------------------------------------------------------------------------------------------

ends = integers("ends")
halves = fn.le(fn.sizes("H W"), ends)
"""Where a size is odd, corners differ in size and are not joined."""
first, second, third, fourth = op.Split.split(4, w, fn.repeat(C, 4), axis=1)


def corner(row: int, column: int) -> App:
    """Return every second pixel of every second row."""
    return op.Slice(x, (row, column), ends, (2, 3), (2, 2))


OPERATORS = (
    Rule(
        "replace_focus_with_space_to_depth",
        op.Concat(corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1), axis=1),
        op.SpaceToDepth(x, blocksize=2),
        when=halves,
        why="Every second pixel of every second row, four times, are patches of 2 by 2.",
    ),
    Rule(
        "replace_focus_with_space_to_depth_before_conv",
        op.Conv(
            op.Concat(corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1), axis=1),
            w,
            b,
            strides=strides,
            pads=pads,
        ),
        op.Conv(
            op.SpaceToDepth(x, blocksize=2),
            op.Concat(first, third, second, fourth, axis=1),
            b,
            strides=strides,
            pads=pads,
        ),
        when=halves,
        why="The same with the corners in another order, in which the weights are put instead.",
    ),
    Rule(
        "fuse_space_to_depth_into_conv",
        op.Conv(op.SpaceToDepth(x, blocksize=block), w, b, strides=strides, pads=pads),
        op.Conv(
            x,
            spread(fn.join(M, block, block, C, K, L), (0, 3, 4, 1, 5, 2), block, block),
            b,
            strides=strides * block,
            pads=pads * block,
        ),
        why="A convolution of patches is one of their pixels, with larger kernels and strides.",
    ),
)

# -- views that cut -------------------------------------------------------------------------------------------------

cut, flat = integers("cut"), integers("flat")
down, rows, along, columns = (fn.item(cut, place) for place in (2, 3, 4, 5))
in_patch = C * rows * columns
are_patches = (
    fn.asks_for(fn.part(cut, 0, 1), fn.sizes("N")),
    fn.eq(fn.item(cut, 1), C),
    *(number > 0 for number in (down, rows, along, columns)),
    fn.eq(down * rows, H),
    fn.eq(along * columns, W),
)


def patches(perm: tuple[int, ...]) -> App:
    return op.Reshape(op.Transpose(op.Reshape(x, cut), perm=perm), flat)


def flattened(*sizes: Term) -> tuple[App, ...]:
    """Return the conditions that what is cut gets these sizes, behind the batch."""
    count = len(sizes) + 1
    return (
        fn.asks_for(fn.part(flat, 0, 1), fn.sizes("N")),
        fn.eq(fn.part(flat, 1, count), fn.join(*sizes)),
    )


top, left, bottom, right = (fn.item(pads, side) for side in range(4))
VIEWS = tuple(
    Rule(
        f"fuse_patches_with_channels_{order}_into_conv",
        op.Conv(patches(perm), w, b, strides=strides, pads=pads),
        op.Conv(
            x,
            spread(sizes, back, rows, columns),
            b,
            strides=strides * fn.join(rows, columns),
            pads=pads * fn.join(rows, columns, rows, columns),
        ),
        when=(
            *are_patches,
            *flattened(in_patch, down, along),
            C > 0,
            # follows from the same of patches, which the solver does not multiply
            fn.le(K * rows, H + (top + bottom) * rows),
            fn.le(L * columns, W + (left + right) * columns),
        ),
        why="A convolution of patches is one of their pixels, with larger kernels and strides.",
    )
    for order, perm, sizes, back in (
        ("first", (0, 1, 3, 5, 2, 4), fn.join(M, C, rows, columns, K, L), (0, 1, 4, 2, 5, 3)),
        ("last", (0, 3, 5, 1, 2, 4), fn.join(M, rows, columns, C, K, L), (0, 3, 4, 1, 5, 2)),
    )
)

matrix = const("w", "D M")
EMBEDDINGS = tuple(
    Rule(
        f"replace_product_of_patches_with_channels_{order}_with_conv",
        patches(perm) @ matrix,
        op.Transpose(
            op.Reshape(
                op.Conv(x, op.Transpose(op.Reshape(matrix, sizes), perm=back), strides=fn.join(rows, columns)),
                fn.join(fn.sizes("N M"), down * along),
            ),
            perm=(0, 2, 1),
        ),
        when=(
            *are_patches,
            *flattened(down * along, in_patch),
            fn.eq(fn.length(flat), 3),
            fn.eq(fn.size("D"), in_patch),
            fn.is_float(fn.dtype(x)),
            M > 0,
            C > 0,
        ),
        why="Patches that do not overlap, multiplied by weights, are a convolution whose strides are its kernel.",
    )
    for order, perm, sizes, back in (
        ("first", (0, 2, 4, 1, 3, 5), fn.join(C, rows, columns, M), (3, 0, 1, 2)),
        ("last", (0, 2, 4, 3, 5, 1), fn.join(rows, columns, C, M), (3, 2, 0, 1)),
    )
)

RULES = (*OPERATORS, *VIEWS)
TRADES = EMBEDDINGS
