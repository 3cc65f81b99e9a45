"""Rules that keep images in ONNX Runtime's blocks of channels.

Its blocked kernels know pools, and sums and products of two images of one shape, but no broadcasting and no ReduceMean:
each of these turns an image into rows and back. One alone gains nothing where the other is beside it, as in squeeze and
excitation (https://arxiv.org/abs/1709.01507). A factor and a shift per channel are a batch normalization.

They convolve blocks of 8 or 16 channels. Depthwise convolutions, and images that are read, of a number of channels that
is no multiple of 4 are not computed in blocks, nor are groups of fewer channels than a block: zeros fill both up.
"""

from graphopt.rule import App, Rule, Term, attributes, const, fn, integer, integers, op, tensor
from graphopt.rules import pruning
from graphopt.rules.conv_variants import MERGED
from graphopt.rules.convolution import BLOCK
from graphopt.rules.pruning import (
    CLIP,
    ERF_GELU,
    GELU,
    HARD_SWISH,
    NOTHING,
    RELU,
    SILU,
    Activation,
    three_convs,
    two_convs,
)

image, factors, axes = tensor("x", "N C H W"), tensor("y", "N C 1 1"), integers("axes")
factor, shift = const("c", "C 1 1"), const("d", "C 1 1")
has_pixels = tuple(fn.lt(0, fn.size(axis)) for axis in "NCHW")
is_larger = fn.lt(1, fn.size("H") * fn.size("W"))
along_image = fn.eq(fn.sorted(fn.normalize_indices(axes, 4)), fn.concat(2, 3))


def mean_of(pixels: Term) -> App:
    """Return the mean over images, columns first.

    The pool adds up one pixel after the other, in single precision: of 112 × 112 it is 3.5e-6 off, with columns first
    3e-7, in the same time.
    """
    return op.GlobalAveragePool(op.AveragePool(pixels, kernel_shape=fn.concat(fn.size("H"), 1)))


def enlarge_to_image(y: Term) -> App:
    """Return each element as often as the image has pixels: the blocked kernels have a Resize, and no Expand."""
    copies = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return op.Resize(y, None, None, fn.sizes("N C H W"), **copies)


def by_channel(constant: Term) -> App:
    """Return one number for each channel."""
    return op.Reshape(constant, fn.sizes("C"))


zeros, ones = (op.Expand(number, fn.sizes("C")) for number in (0.0, 1.0))


BLOCKED = (
    Rule(
        "replace_factor_and_shift_with_batch_normalization",
        image * factor + shift,
        op.BatchNormalization(image, *map(by_channel, (factor, shift)), zeros, ones, epsilon=0.0),
        when=fn.is_float(fn.dtype(image)),
        why="A batch normalization runs in blocks, as a depthwise convolution, and is one pass instead of two.",
    ),
    Rule(
        "enlarge_factors_of_channels",
        image * factors,
        image * enlarge_to_image(factors),
        when=(*has_pixels, is_larger),
        why="Two images of one shape are multiplied in blocks.",
    ),
    Rule(
        "enlarge_summands_of_channels",
        image + factors,
        image + enlarge_to_image(factors),
        when=(*has_pixels, is_larger),
        why="Two images of one shape are added in blocks.",
    ),
    Rule(
        "replace_reduce_mean_with_global_average_pool",
        op.ReduceMean(image, axes, keepdims=1),
        mean_of(image),
        when=(along_image, *has_pixels, fn.is_float(fn.dtype(image))),
        why="The mean over an image is a pool, which runs in blocks.",
    ),
    Rule(
        "replace_reduce_l2_with_global_average_pool",
        op.ReduceL2(image, axes, keepdims=1),
        op.Sqrt(mean_of(image * image) * (fn.size("H") * fn.size("W"))),
        when=(along_image, *has_pixels, fn.is_float(fn.dtype(image))),
        why="A sum over an image is a pool but for a factor, which runs in blocks, as squares do.",
    ),
)

# -- channels that fill no block -----------------------------------------------------------------------------------
# Axes: C channels between two convolutions.

filters, bias, rest = const("w", "M C *k"), const("b", "M", default=0), attributes("rest")
missing = (-fn.size("C")) % BLOCK
fills_none = fn.ne(fn.size("C") % 4, 0)
filling = "More channels are convolved faster where they fill blocks; of those that are added nothing is read."


def fill_channels(weights: Term, axis: int = 0) -> App:
    """Return weights with zeros for the channels that are missing."""
    return op.Pad(weights, fn.concat(0, missing), None, (axis,))


def fill_around_depthwise(before: Activation, after: Activation) -> Rule:
    """Return the rule for the channels of a depthwise convolution between two others."""
    makers, group = (pruning.filters, pruning.bias, pruning.single, pruning.single_bias), pruning.group
    return Rule(
        f"fill_channels_of{before.name}_depthwise_conv{after.name}",
        three_convs(before, after, *makers, pruning.readers, count=group),
        three_convs(
            before, after, *map(fill_channels, makers), fill_channels(pruning.readers, 1), count=fn.size("C") + missing
        ),
        when=(fn.eq(group, fn.size("C")), fills_none),
        why=filling,
    )


def fill_between_convs(what: Activation) -> Rule:
    """Return the rule for the channels between two convolutions; of a few it would take longer to compute more."""
    makers = pruning.filters, pruning.bias
    return Rule(
        f"fill_channels_between_convs{what.name}",
        two_convs(what, *makers, pruning.readers),
        two_convs(what, *map(fill_channels, makers), fill_channels(pruning.readers, 1)),
        when=(fills_none, fn.size("C") > BLOCK),
        why=filling,
    )


FILLED = (
    *(
        fill_around_depthwise(before, after)
        for before, after in ((RELU, NOTHING), (NOTHING, NOTHING), (RELU, RELU), (CLIP, CLIP), (NOTHING, RELU))
    ),
    *map(fill_between_convs, (NOTHING, RELU, CLIP, HARD_SWISH, SILU, GELU, ERF_GELU)),
)

FILL_BEFORE_CONV = Rule(
    "fill_channels_before_conv",
    op.Conv(image, filters, bias, rest, group=1),
    op.Conv(
        op.Pad(image, fn.concat(0, 0, 0, 0, 0, missing, 0, 0)),
        fill_channels(filters, 1),
        bias,
        rest,
        group=1,
    ),
    when=fills_none,
    pays=fn.size("C") > BLOCK,
    why=filling,
)
"""For an image that no convolution has made; not in the sweep, for the copy may cost what blocks gain, which only the
timing of the place by itself can weigh."""

single_filters, single_bias, group = const("w", "C 1 *k"), const("b", "C", default=0), integer("group")
FILL_AROUND_DEPTHWISE_CONV = Rule(
    "fill_channels_around_depthwise_conv",
    op.Conv(image, single_filters, single_bias, rest, group=group),
    op.Slice(
        op.Conv(
            op.Pad(image, fn.concat(0, 0, 0, 0, 0, missing, 0, 0)),
            fill_channels(single_filters),
            fill_channels(single_bias),
            rest,
            group=fn.size("C") + missing,
        ),
        (0,),
        fn.concat(fn.size("C")),
        (1,),
    ),
    when=fills_none,
    pays=fn.size("C") > BLOCK,
    why="Depthwise convolutions in blocks are up to twelve times as fast, which is worth two copies.",
)
"""For one that no convolution stands before, or none behind, whose weights could be filled instead. It is in the sweep,
for what it gains is far more than the copies cost."""

# -- groups that fill no block -------------------------------------------------------------------------------------
# Groups of a half or a quarter of a block are merged to whole blocks (`MERGED`) where their number allows: groups of
# zeros make it so. Axes: C channels that are convolved in groups of J.

grouped, grouped_bias, deep = const("d", "C J *r"), const("e", "C", default=0), tensor("x", "N D H W")
of_groups = (fn.is_in(fn.size("J"), (BLOCK // 2, BLOCK // 4)), fn.ne(fn.size("C") % BLOCK, 0))
of_single_channels = (fn.eq(fn.size("J"), 1), fills_none)
more_groups = group + missing // fn.size("J")


def drop_filling(value: Term) -> App:
    """Return the channels that are not filled up."""
    return op.Slice(value, (0,), fn.concat(fn.size("C")), (1,))


def fill_groups_behind_conv(before: Activation, after: Activation, what: str, when: tuple[Term, ...]) -> Rule:
    """Return the rule for a convolution in groups behind another, whose filters are filled up."""

    def convs(count: Term, *weights: Term) -> Term:
        filters, bias, grouped, grouped_bias = weights
        made = before.apply(op.Conv(pruning.image, filters, bias, group=1, **pruning.geometry("first")))
        return after.apply(op.Conv(made, grouped, grouped_bias, group=count, **pruning.geometry("last")))

    weights = (pruning.filters, pruning.bias, grouped, grouped_bias)
    return Rule(
        f"fill_{what}_behind_conv{before.name}{after.name and '_before'}{after.name}",
        convs(group, *weights),
        drop_filling(convs(more_groups, *map(fill_channels, weights))),
        when=when,
        pays=fn.size("J") < fn.size("C"),
        why="Whole blocks are computed several times as fast, and the channels before cost a few filters of zeros, no"
        " copy.",
    )


FILLED_GROUPS = (
    *(
        fill_groups_behind_conv(before, after, "groups_of_conv", of_groups)
        for before, after in ((RELU, RELU), (SILU, NOTHING), (NOTHING, NOTHING), (RELU, NOTHING), (CLIP, CLIP))
    ),
    Rule(
        "fill_groups_of_conv",
        op.Conv(image, grouped, grouped_bias, rest, group=group),
        drop_filling(
            op.Conv(
                op.Pad(image, fn.concat(0, 0, 0, 0, 0, missing, 0, 0)),
                fill_channels(grouped),
                fill_channels(grouped_bias),
                rest,
                group=more_groups,
            )
        ),
        when=of_groups,
        pays=fn.size("C") > BLOCK,
        why="Whole blocks are computed several times as fast, which is worth two copies.",
    ),
    Rule(
        "read_past_slice_of_channels",
        op.Conv(op.Slice(deep, (0,), integers("ends"), (1,)), filters, bias, rest, group=1),
        op.Conv(deep, op.Pad(filters, fn.concat(0, fn.size("D") - fn.size("C")), None, (1,)), bias, rest, group=1),
        pays=fn.size("D") < fn.size("C") + BLOCK,
        why="A few channels that are multiplied by zero cost less than a copy without them.",
    ),
)

FILLED_SINGLE = tuple(
    fill_groups_behind_conv(before, NOTHING, "depthwise_conv", of_single_channels)
    for before in (RELU, SILU, GELU, NOTHING)
)
"""For what the rules for channels between convolutions do not match, as no third convolution reads them: a Split does,
or a product with factors of channels."""

RULES: tuple[Rule, ...] = ()
TRADES = (*BLOCKED, *FILLED, *FILLED_SINGLE, FILL_BEFORE_CONV, FILL_AROUND_DEPTHWISE_CONV, *FILLED_GROUPS)
SWEEPS = {
    "images in blocks of channels": BLOCKED,
    "channels in whole blocks": (*FILLED, *FILLED_SINGLE, FILL_AROUND_DEPTHWISE_CONV, *FILLED_GROUPS, *MERGED),
}
