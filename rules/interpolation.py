"""Interpolation and Fourier transforms as products with constant matrices, of which ONNX Runtime has fast kernels.

Along one axis either is a product with the matrix that it makes of the identity. Of transforms ONNX Runtime computes
those whose length is no power of 2 by longer ones, an order of magnitude slower than the product and with errors of
1e-4.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, const, fn, integer, integers, op, string, tensor

# -- interpolation -------------------------------------------------------------------------------------------------

# Axes: N images, C channels, H rows, W columns.
image, sizes = tensor("x", "N C H W"), integers("sizes")
mode: Mapping[str, TermLike] = {
    "mode": string("mode"),
    "coordinate_transformation_mode": string("where"),
    "nearest_mode": string("nearest"),
}
is_interpolated = fn.not_(fn.eq(string("mode"), "nearest"))
# ONNX Runtime keeps the shares of pixels in single precision, in DOUBLE, too.
is_single = fn.is_in(fn.dtype(image), (int(DType.FLOAT),))


def matrix(size: Term, to: Term) -> App:
    """Return the matrix that a row of so many pixels is multiplied by to have another size."""
    identity = op.EyeLike(op.Expand(1.0, fn.concat(size, size)), dtype=int(DType.FLOAT))
    return op.Resize(identity, None, None, fn.concat(size, to), **mode)


def of_products(height: Term, width: Term) -> App:
    return op.Transpose(matrix(fn.size("H"), height), perm=(1, 0)) @ (image @ matrix(fn.size("W"), width))


def pixel(position: int) -> Term:
    return fn.compose(sizes, fn.concat(position))


INTERPOLATED = (
    Rule(
        "replace_resize_with_products",
        op.Resize(image, None, None, sizes, **mode),
        of_products(pixel(2), pixel(3)),
        when=(fn.eq(fn.slice(sizes, 0, 2), fn.sizes("N C")), is_single),
        pays=is_interpolated,
        why="ONNX Runtime computes each pixel by itself, and a product of matrices in blocks.",
    ),
    Rule(
        "replace_doubling_with_products",
        op.Resize(image, None, (1.0, 1.0, 2.0, 2.0), **mode),
        of_products(fn.size("H") * 2, fn.size("W") * 2),
        when=is_single,
        pays=is_interpolated,
        why="ONNX Runtime computes each pixel by itself, and a product of matrices in blocks.",
    ),
)

# -- Fourier transforms --------------------------------------------------------------------------------------------

# Axes: *b batch, N elements of a signal, M others, C parts of a number: the real one, or that and the imaginary one.
signal, plane = tensor("x", "*b N C"), tensor("x", "B N M C")
axis, last, part = integer("axis"), integer("last"), integer("part")
direction, sides = integer("inverse"), integer("onesided")


def transform(value: Term, along: TermLike) -> App:
    return op.DFT(value, None, along, inverse=direction, onesided=sides)


def part_of(value: Term) -> App:
    """Return the real or the imaginary parts of numbers."""
    return op.Gather(value, part, axis=last)


def swap(value: Term) -> App:
    """Return a plane with its axes swapped."""
    return op.Transpose(value, perm=(0, 2, 1, 3))


def is_last(position: Term, rank: TermLike) -> App:
    return fn.eq(fn.normalize_indices(position, rank), fn.sub(rank, 1))


is_complex = fn.any_of(fn.eq(direction, 0), fn.eq(sides, 0))
"""The result is not that of an inverse to real numbers, which has one part."""
numbers, made = fn.size("N") * fn.size("C"), fn.size("N") // (sides + 1) + sides
identity = op.EyeLike(op.Expand(1.0, fn.concat(numbers, numbers)), dtype=int(DType.FLOAT))
coefficients = transform(op.Reshape(identity, fn.concat(numbers, fn.sizes("N C"))), 1)
"""Coefficients of a transform, which it makes of each number alone: numbers by elements by parts."""
rows = op.Reshape(signal, fn.concat(fn.sizes("*b"), numbers))
along_signal = (
    is_complex,
    fn.eq(fn.normalize_indices(axis, fn.rank(signal)), fn.rank(signal) - 2),
    fn.lt(0, fn.sizes("*b")),
    fn.is_in(fn.dtype(signal), (int(DType.FLOAT),)),
)
is_first = fn.eq(fn.normalize_indices(axis, 4), 1)
is_single_plane = fn.is_in(fn.dtype(plane), (int(DType.FLOAT),))
is_short = (fn.size("N") <= 1024, fn.any_of(fn.size("N") <= 128, fn.ne(fn.mod(1024, fn.size("N")), 0)))
"""The matrix takes 16 MB at most; transforms of larger powers of 2 are faster than products."""
why = "One product takes less time, and is more exact, than a transform whose length is no power of 2."

TRANSFORMS = (
    Rule(
        "replace_part_of_dft_with_product",
        part_of(transform(signal, axis)),
        rows @ op.Gather(coefficients, part, axis=2),
        when=(*along_signal, is_last(last, fn.rank(signal))),
        pays=is_short,
        why="Where only the real parts are wanted, only they are computed.",
    ),
    Rule(
        "replace_dft_with_product",
        transform(signal, axis),
        op.Reshape(rows @ op.Flatten(coefficients), fn.concat(fn.sizes("*b"), made, 2)),
        when=along_signal,
        pays=is_short,
        why=why,
    ),
    Rule(
        "transpose_part_of_dft_to_last_axis",
        part_of(transform(plane, axis)),
        op.Transpose(op.Gather(transform(swap(plane), 2), part, axis=3), perm=(0, 2, 1)),
        when=(is_complex, is_first, is_last(last, 4)),
        pays=(*is_short, is_single_plane),
        why=why,
    ),
    Rule(
        "transpose_dft_to_last_axis",
        transform(plane, axis),
        swap(transform(swap(plane), 2)),
        when=(is_complex, is_first),
        pays=(*is_short, is_single_plane),
        why=why,
    ),
)

real, zeros = tensor("x", "*b N 1"), const("zeros", "*b N 1")
RULES = (
    Rule(
        "eliminate_zero_imaginary_part_of_dft",
        transform(op.Concat(real, zeros, axis=last), axis),
        transform(real, axis),
        when=(is_complex, fn.is_zero(zeros), is_last(last, fn.rank(real))),
        why="A transform takes real numbers as they are.",
    ),
)
TRADES = (*INTERPOLATED, *TRANSFORMS)
SWEEPS = {"interpolation as products": INTERPOLATED, "Fourier transforms as products": TRANSFORMS}
