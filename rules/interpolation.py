"""Interpolation as products with constant matrices, of which ONNX Runtime has fast kernels.

Along one axis an image of another size is a product with the matrix that the interpolation makes of the identity.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, fn, integers, op, string, tensor

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


TRADES = (
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
RULES: tuple[Rule, ...] = ()
SWEEPS = {"interpolation as products": TRADES}
