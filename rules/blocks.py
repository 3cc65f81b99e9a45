"""What keeps images in ONNX Runtime's blocks of channels.

Its blocked kernels know pools, and sums and products of two images of one shape, but no broadcasting and no ReduceMean:
each of these turns an image into rows and back. One alone gains nothing where the other is beside it, as in squeeze and
excitation (https://arxiv.org/abs/1709.01507).
"""

from graphopt.rule import Rule, fn, integers, op, tensor
from graphopt.term import App, Term

image, factors, axes = tensor("x", "N C H W"), tensor("y", "N C 1 1"), integers("axes")
has_pixels = tuple(fn.lt(0, fn.size(axis)) for axis in "NCHW")
is_larger = fn.lt(1, fn.size("H") * fn.size("W"))
# The pool adds up one pixel after the other, in single precision: of 112 × 112 it is 3.5e-6 off, with columns first
# 3e-7, in the same time.
columns = op.AveragePool(image, kernel_shape=fn.join(fn.size("H"), 1))
mean = op.GlobalAveragePool(columns)


def enlarged(y: Term) -> App:
    """Return each element as often as the image has pixels: the blocked kernels have a Resize, and no Expand."""
    copies = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return op.Resize(y, None, None, fn.sizes("N C H W"), **copies)


BLOCKED = (
    Rule(
        "enlarge_factors_of_channels",
        image * factors,
        image * enlarged(factors),
        when=(*has_pixels, is_larger),
        why="Two images of one shape are multiplied in blocks.",
    ),
    Rule(
        "enlarge_summands_of_channels",
        image + factors,
        image + enlarged(factors),
        when=(*has_pixels, is_larger),
        why="Two images of one shape are added in blocks.",
    ),
    Rule(
        "replace_reduce_mean_with_global_average_pool",
        op.ReduceMean(image, axes, keepdims=1),
        mean,
        when=(fn.eq(fn.sorted(fn.normalized(axes, 4)), fn.join(2, 3)), *has_pixels, fn.is_float(fn.dtype(image))),
        why="The mean over an image is a pool, which runs in blocks.",
    ),
)

RULES: tuple[Rule, ...] = ()
TRADES = BLOCKED
SWEEPS = {"images in blocks of channels": BLOCKED}
