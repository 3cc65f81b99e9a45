"""Products of tokens in windows: what is added to fill the last windows is not multiplied.

Attention in windows (Swin, https://arxiv.org/abs/2103.14030, ViTDet, https://arxiv.org/abs/2203.16527, and SAM) pads an
image to whole windows, and crops it afterwards. The products of tokens with weights stand between, where up to three
times as many rows are multiplied as the image has pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, TermLike, const, fn, integers, op, tensor
from graphopt.rules.linear import has_float_type

# Axes: B images, H rows and W columns of pixels, K features read, N features made, Q windows of S tokens.

w, bias = const("w", "K N"), const("c", "N")
image, pads = tensor("x", "B H W K"), integers("pads")
cut, joined = integers("cut"), integers("joined")
into_windows = (0, 1, 3, 2, 4, 5)
"""Permutation of images, rows of windows, rows in a window, columns of windows, columns in a window, and features."""

B, K, N = map(fn.size, "BKN")
rows, height, columns, width = (fn.item(cut, position) for position in (1, 2, 3, 4))
has_elements = fn.lt(0, fn.sizes("B K N"))

# -- the image becomes windows -------------------------------------------------------------------------------------

pads_pixels = (
    fn.eq(fn.length(pads), 8),
    fn.eq(fn.concat(fn.item(pads, 0), fn.item(pads, 3), fn.item(pads, 4), fn.item(pads, 7)), 0),
)
fills_windows = (
    fn.le(1, cut),
    fn.eq(rows * height, fn.size("H") + fn.item(pads, 1) + fn.item(pads, 5)),
    fn.eq(columns * width, fn.size("W") + fn.item(pads, 2) + fn.item(pads, 6)),
)


def regroup_pixels(pixels: Term, split: TermLike, joined: TermLike) -> App:
    """Return images cut into windows, or windows merged into images: the same two axes change places."""
    return op.Reshape(op.Transpose(op.Reshape(pixels, split), perm=into_windows), joined)


def window_grid(features: Term) -> Term:
    """Return the sizes of images whose rows and columns are split into windows and their pixels."""
    return fn.concat(B, rows, height, columns, width, features)


down_parts, across_parts = integers("down_parts"), integers("across_parts")


def shift_pixels(pixels: Term) -> App:
    """Return images whose first rows and columns are moved to the end, as every second attention has its windows."""
    top, below = op.Split.split(2, pixels, down_parts, axis=1)
    left, right = op.Split.split(2, op.Concat(below, top, axis=1), across_parts, axis=2)
    return op.Concat(right, left, axis=2)


class Shift(NamedTuple):
    """Change of an image before it is cut into windows, or after it is put together."""

    name: str
    apply: Callable[[Term], Term]
    when: tuple[Term, ...] = ()


SHIFTS = (
    Shift("windows", lambda pixels: pixels),
    Shift("shifted_windows", shift_pixels, (fn.le(0, down_parts), fn.le(0, across_parts))),
)

TOKENS: Mapping[str, Term] = {"tokens": height * width, "images": fn.concat(height, width)}
"""Forms of the pixels of a window: one axis, or two."""

PADDED = tuple(
    Rule(
        f"push_matmul_above_padding_of_{name}_in_{shift.name}",
        regroup_pixels(shift.apply(op.Pad(image, pads)), cut, joined) @ w,
        regroup_pixels(shift.apply(op.Pad(image @ w, pads)), window_grid(N), fn.concat(B * rows * columns, pixels, N)),
        when=(
            *shift.when,
            *pads_pixels,
            *fills_windows,
            has_elements,
            fn.eq(cut, window_grid(K)),
            fn.any_of(fn.eq(joined, fn.concat(B * rows * columns, pixels, K)), fn.eq(joined, fn.concat(-1, pixels, K))),
            has_float_type(image),
        ),
        pays=fn.lt(0, fn.sum(pads)),
        why="Of zeros that fill windows nothing needs to be computed: they are filled in after the product.",
    )
    for shift in SHIFTS
    for name, pixels in TOKENS.items()
)

# -- windows become the image --------------------------------------------------------------------------------------
# A Slice that crops is written as a Pad of negative amounts, which clamps no bounds.

grid, merged, ends = integers("grid"), integers("merged"), integers("ends")
across, down, tall, wide = (fn.item(grid, position) for position in (1, 2, 3, 4))
size = fn.sizes("H W")


def windows_of(features: TermLike) -> Term:
    """Return the sizes of windows, on axes for the images, their rows and their columns of windows."""
    return fn.concat(fn.item(grid, 0), across, down, tall, wide, features)


def images_of(features: TermLike) -> Term:
    """Return the sizes of whole images."""
    return fn.concat(fn.item(grid, 0), across * tall, down * wide, features)


def ends_of(items: Term) -> Term:
    """Return the first and the last element of a list."""
    return fn.concat(fn.item(items, 0), fn.item(items, -1))


CROPPED = (
    Rule(
        "replace_crop_with_pad",
        op.Slice(image, (0, 0), ends, (1, 2), (1, 1)),
        op.Pad(image, fn.concat(0, 0, 0, 0, 0, ends - size, 0)),
        when=(fn.le(0, ends), fn.le(ends, size)),
        why="What is cut off may be cut off before a product.",
    ),
    *(
        Rule(
            f"push_matmul_below_cropping_of_{name}_in_{shift.name}",
            op.Pad(shift.apply(regroup_pixels((windows @ w) + bias, grid, merged)), pads),
            (op.Pad(shift.apply(regroup_pixels(windows, windows_of(K), images_of(K))), pads) @ w) + bias,
            when=(
                *shift.when,
                *pads_pixels,
                fn.le(pads, 0),
                fn.eq(fn.concat(fn.length(grid), fn.length(merged)), (6, 4)),
                fn.le(1, fn.slice(grid, 0, 5)),
                fn.lt(0, fn.sizes("K N Q")),
                fn.lt(0, fn.size("S")),
                fn.eq(fn.item(grid, 0) * across * down, fn.size("Q")),
                pixels,
                fn.any_of(fn.eq(grid, windows_of(N)), fn.eq(grid, windows_of(-1))),
                fn.eq(fn.slice(merged, 1, 3), fn.concat(across * tall, down * wide)),
                fn.any_of(
                    *(
                        fn.eq(ends_of(merged), outer)
                        for outer in (fn.concat(fn.item(grid, 0), N), fn.concat(fn.item(grid, 0), -1), fn.concat(-1, N))
                    )
                ),
                has_float_type(windows),
            ),
            why="Of what filled windows nothing needs to be computed: it is cut off before the product.",
        )
        for shift in SHIFTS
        for name, windows, pixels in (
            ("tokens", tensor("x", "Q S K"), fn.eq(tall * wide, fn.size("S"))),
            ("images", tensor("x", "Q R S K"), fn.eq(fn.concat(tall, wide), fn.sizes("R S"))),
        )
    ),
)

TRADES = (*PADDED, *CROPPED)
RULES: tuple[Rule, ...] = ()
SWEEPS = {"products without padding of windows": TRADES}
