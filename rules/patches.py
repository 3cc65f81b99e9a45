"""Images that are cut into patches, or into windows that overlap.

A convolution with strides cuts patches itself. YOLOv5 and YOLOX call it Focus (four Slices and a Concat), torch
PixelUnshuffle, ONNX SpaceToDepth.
"""

from __future__ import annotations

from graphopt.rule import App, Rule, const, fn, integer, integers, op, tensor

# Axes: N batch, C channels, H W space, D channels of a patch, M output channels, K L kernel.
x = tensor("x", "N C H W")
w, b = const("w", "M D K L"), const("b", "M", default=0)
strides, pads, block = integers("strides"), integers("pads"), integer("block")
C, M, K, L = (fn.size(axis) for axis in "CMKL")

ends = integers("ends")
halves = fn.le(fn.sizes("H W"), ends)
"""Condition on odd sizes: corners of different sizes are not joined."""
first, second, third, fourth = op.Split.split(4, w, fn.repeat(C, 4), axis=1)


def corner(row: int, column: int) -> App:
    """Return every second pixel of every second row."""
    return op.Slice(x, (row, column), ends, (2, 3), (2, 2))


# kernels over patches, as kernels over their pixels
by_pixel = op.Transpose(op.Reshape(w, fn.concat(M, block, block, C, K, L)), perm=(0, 3, 4, 1, 5, 2))
over_pixels = op.Reshape(by_pixel, fn.concat(M, C, K * block, L * block))

of_pixels = "A convolution of patches is one of their pixels, with larger kernels and strides."

# PixelUnshuffle, as torch exports it: rows and columns are cut in two each (P of 2, Q of 2), moved and joined.
joined = integers("joined")


def unshuffle(size: int) -> Rule:
    """Return the rule for patches with sides of so many pixels."""
    cut = tensor("x", f"N C P {size} Q {size}")
    rows, columns = fn.size("P"), fn.size("Q")
    unshuffled = op.Reshape(op.Transpose(cut, perm=(0, 1, 3, 5, 2, 4)), joined)
    apart = op.Transpose(op.Reshape(w, fn.concat(M, C, size, size, K, L)), perm=(0, 1, 4, 2, 5, 3))
    return Rule(
        f"fuse_pixel_unshuffle_{size}_into_conv",
        op.Conv(unshuffled, w, b, strides=strides, pads=pads),
        op.Conv(
            op.Reshape(cut, fn.concat(0, C, rows * size, columns * size)),
            op.Reshape(apart, fn.concat(M, C, K * size, L * size)),
            b,
            strides=strides * size,
            pads=pads * size,
        ),
        when=(
            fn.is_noop_reshape(joined, fn.concat(fn.size("N"), C * size * size, rows, columns)),
            fn.not_(fn.is_in(0, fn.slice(joined, 1, 4))),
            fn.lt(0, fn.sizes("C P Q")),
        ),
        why=of_pixels,
    )


RULES = (
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
            over_pixels,
            b,
            strides=strides * block,
            pads=pads * block,
        ),
        why=of_pixels,
    ),
    *(unshuffle(size) for size in (2, 4)),
)

# -- windows that overlap ------------------------------------------------------------------------------------------
# As torch's unfold makes them: two Gathers and a Transpose. ONNX Runtime gathers one element after the other
# along the last axis, and moves elements one by one where that moves. With channels last, all of a pixel move at once.
# Axes: N image, P Q windows, K L pixels of a window, C channels.
value, places = tensor("x"), tensor("i", "_ _")
perm, shape, axis = integers("perm"), integers("shape"), integer("axis")
rank = fn.rank(value)
border = const("value", "", default=0)

gathered = fn.item(perm, axis)
# Each axis keeps its place among the others, and beside the one that is gathered from there is one more: of doubled
# numbers, the inverse of the inverse counts how many are smaller.
around = fn.inverse(fn.inverse(fn.insert(perm * 2, fn.concat(axis + 1), gathered * 2 + 1)))
before, after = (fn.compose(fn.slice(pads, *ends), fn.inverse(perm)) for ends in ((0, rank), (rank, rank * 2)))

BELOW = (
    Rule(
        "push_transpose_below_pad",
        op.Pad(op.Transpose(value, perm=perm), pads, border),
        op.Transpose(op.Pad(value, fn.concat(before, after), border), perm=perm),
        why="A border is put around an image in whichever order its axes lie.",
    ),
    Rule(
        "push_transpose_below_gather_of_windows",
        op.Gather(op.Transpose(value, perm=perm), places, axis=axis),
        op.Transpose(op.Gather(value, places, axis=gathered), perm=around),
        when=axis >= 0,
        pays=fn.eq(fn.item(perm, 1), rank - 1),
        why="With channels last, windows are gathered with all channels of a pixel at once.",
    ),
)

windows = tensor("x", "N K P L Q C")
heads, depth = fn.item(shape, 1), fn.item(shape, 2)
inside, across = fn.size("K") * fn.size("L"), fn.size("P") * fn.size("Q")
in_heads = op.Reshape(
    op.Transpose(op.Reshape(windows, fn.concat(fn.sizes("N K P L Q"), heads, depth)), perm=(0, 5, 2, 4, 1, 3, 6)),
    fn.concat(fn.size("N"), heads, across, inside, depth),
)
HEADS = tuple(
    Rule(
        f"fuse_transposes_of_{name}_in_heads",
        op.Transpose(op.Reshape(op.Transpose(windows, perm=(0, 5, 1, 3, 2, 4)), shape), perm=order),
        result,
        when=(
            fn.eq(shape, fn.concat(fn.size("N"), heads, depth, inside, across)),
            fn.eq(heads * depth, fn.size("C")),
            fn.lt(0, shape),
        ),
        why="The channels of a head are moved together, once.",
    )
    for name, order, result in (
        ("windows", (0, 1, 4, 3, 2), in_heads),
        ("transposed_windows", (0, 1, 4, 2, 3), op.Transpose(in_heads, perm=(0, 1, 2, 4, 3))),
    )
)

# -- products that lie the other way -------------------------------------------------------------------------------

left, right = tensor("x", "*b M K"), tensor("y", "*b K N")
swapped = fn.concat(fn.range(fn.rank(left) - 2), fn.rank(left) - 1, fn.rank(left) - 2)
moved = fn.compose(swapped, perm)
all_but_last = fn.rank(left) - 1
PRODUCTS = (
    Rule(
        "push_transpose_above_matmul",
        op.Transpose(left @ right, perm=perm),
        op.Transpose(op.Transpose(right, perm=swapped) @ op.Transpose(left, perm=swapped), perm=moved),
        when=fn.is_float(fn.dtype(left)),
        pays=(fn.is_sorted(fn.slice(moved, 0, all_but_last)), fn.not_(fn.is_sorted(fn.slice(perm, 0, all_but_last)))),
        why="ONNX Runtime multiplies transposed matrices at no cost, and moves one axis faster than two.",
    ),
)

TRADES = (*BELOW, *HEADS, *PRODUCTS)
SWEEPS = {"windows with channels last": TRADES}
