"""Images that are cut into patches before they are convolved: a convolution with strides cuts them itself.

YOLOv5 and YOLOX call it Focus (four Slices and a Concat), torch PixelUnshuffle, ONNX SpaceToDepth.
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
    """Return the rule for patches of so many pixels a side."""
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
