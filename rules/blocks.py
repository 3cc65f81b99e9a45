"""What keeps images in ONNX Runtime's blocks of channels.

Its blocked kernels know pools, and sums and products of two images of one shape, but no broadcasting and no ReduceMean:
each of these turns an image into rows and back. One alone gains nothing where the other is beside it, as in squeeze and
excitation (https://arxiv.org/abs/1709.01507).

They convolve blocks of 8 or 16 channels. Depthwise convolutions, and images that are read, of a number of channels that
is no multiple of 4 are not computed in blocks, nor are groups of fewer channels than a block: zeros fill both up.
"""

from graphopt.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.rules.branches import eye
from graphopt.rules.pruning import BLOCK, CLIP, GELU, HARD_SWISH, NOTHING, RELU, SILU, Activation, geometry
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

# -- channels that fill no block -----------------------------------------------------------------------------------
# Axes: N batch, I channels that are read, C those between, M those that are made, *s space, *k *r *q kernels.

x = tensor("x", "N I *s")
filters, bias = const("w", "C I *k"), const("b", "C", default=0)
single, single_bias = const("d", "C 1 *r"), const("e", "C", default=0)
readers, last = const("v", "M C *q"), const("c", "M", default=0)
missing = (-fn.size("C")) % BLOCK
fills_none = fn.ne(fn.size("C") % 4, 0)
filling = "More channels are convolved faster where they fill blocks; of those that are added nothing is read."


def filled(weights: Term, axis: int = 0) -> App:
    """Return weights with zeros for the channels that are missing."""
    return op.Pad(weights, fn.join(0, missing), None, (axis,))


def around_depthwise(before: Activation, after: Activation) -> Rule:
    """Return the rule for the channels of a depthwise convolution between two others."""

    def conv(made: tuple[Term, Term], filtered: tuple[Term, Term], count: Term, readers: Term) -> App:
        y = before.of(op.Conv(x, *made, group=1, **geometry("first")))
        y = after.of(op.Conv(y, *filtered, group=count, **geometry("single")))
        return op.Conv(y, readers, last, group=1, **geometry("last"))

    return Rule(
        f"fill_channels_of{before.name}_depthwise_conv{after.name}",
        conv((filters, bias), (single, single_bias), integer("group"), readers),
        conv(
            (filled(filters), filled(bias)),
            (filled(single), filled(single_bias)),
            fn.size("C") + missing,
            filled(readers, 1),
        ),
        when=(fn.eq(integer("group"), fn.size("C")), fills_none),
        why=filling,
    )


def between_convs(what: Activation) -> Rule:
    """Return the rule for the channels between two convolutions; of a few it would take longer to compute more."""

    def conv(filters: Term, bias: Term, readers: Term) -> App:
        made = op.Conv(x, filters, bias, group=1, **geometry("first"))
        return op.Conv(what.of(made), readers, last, group=1, **geometry("last"))

    return Rule(
        f"fill_channels_between_convs{what.name}",
        conv(filters, bias, readers),
        conv(filled(filters), filled(bias), filled(readers, 1)),
        when=(fills_none, fn.size("C") > BLOCK),
        why=filling,
    )


FILLED = (
    *(
        around_depthwise(before, after)
        for before, after in ((RELU, NOTHING), (NOTHING, NOTHING), (RELU, RELU), (CLIP, CLIP), (NOTHING, RELU))
    ),
    *map(between_convs, (NOTHING, RELU, CLIP, HARD_SWISH, SILU, GELU)),
)

# -- groups of fewer channels than a block -------------------------------------------------------------------------
# Axes: M channels that are made, I channels of each group.

image, weights, each = tensor("x", "N C *s"), const("w", "M I *k"), const("b", "M", default=0)
groups, geometry_of_all = integer("group"), {name: integers(name) for name in ("strides", "pads", "dilations")}


def merged(count: int) -> Rule:
    """Return the rule that makes one group of so many, whose weights for channels of another are 0."""
    inner, kernel = fn.size("I"), fn.sizes("*k")
    apart = op.Reshape(weights, fn.join(groups // count, count, fn.size("M") // groups, 1, inner, kernel))
    own = op.Reshape(eye(weights, count), fn.join(1, count, 1, count, 1, fn.repeat(1, fn.length(kernel))))
    together = op.Reshape(apart * own, fn.join(fn.size("M"), count * inner, kernel))
    return Rule(
        f"merge_{count}_groups_of_conv",
        op.Conv(image, weights, each, **geometry_of_all, group=groups),
        op.Conv(image, together, each, **geometry_of_all, group=groups // count),
        when=(
            fn.lt(1, inner),
            fn.eq((count * inner) % BLOCK, 0),
            fn.ne((count // 2 * inner) % BLOCK, 0),
            fn.eq(groups % count, 0),
        ),
        why="Groups of a whole block of channels are convolved so much faster that they may hold zeros.",
    )


MERGED = tuple(map(merged, (2, 4)))

RULES: tuple[Rule, ...] = ()
TRADES = (*BLOCKED, *FILLED, *MERGED)
SWEEPS = {"images in blocks of channels": BLOCKED, "channels in whole blocks": (*FILLED, *MERGED)}
