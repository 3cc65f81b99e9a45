"""Pad before a window: zeros around an image belong to the convolution or pooling that reads it."""

from __future__ import annotations

from graphopt.rule import App, Rule, Term, TermLike, attributes, const, fn, integer, integers, op, string, tensor

image = tensor("x", "N C *s")
axes, pads = integers("axes"), integers("pads")
own, auto_pad = integers("own"), string("auto_pad")  # of the operator that reads the padded value
rest = attributes("rest")

zero = const("zero", "", default=0)  # what is not said is 0


def pad_axes(data: Term) -> App:
    """Return a Pad along the axes that it lists."""
    return op.Pad(data, pads, zero, axes)


def expand_to_all_axes(amounts: Term, rank: TermLike) -> App:
    """Return amounts of padding for all axes, given those of some: the amounts before the data, then those after it."""
    count = fn.length(axes)
    before, after = fn.slice(amounts, 0, count), fn.slice(amounts, count, fn.mul(2, count))
    return fn.concat(fn.scatter(before, axes, rank), fn.scatter(after, axes, rank))


rank = fn.rank(image)
around = expand_to_all_axes(pads, rank)
spatial = fn.concat(fn.slice(around, 2, rank), fn.slice(around, fn.add(rank, 2), fn.mul(2, rank)))
only_space = (
    fn.is_zero(zero),
    fn.is_sorted(axes),  # as exporters list them: other orders would only be more to prove
    fn.eq(fn.slice(around, 0, 2), 0),
    fn.eq(fn.slice(around, rank, fn.add(rank, 2)), 0),
    fn.le(0, pads),
)
explicit = fn.any_of(fn.eq(auto_pad, "NOTSET"), fn.all_of(fn.eq(auto_pad, "VALID"), fn.eq(own, 0)))
asked: dict[str, TermLike] = {"pads": own, "auto_pad": auto_pad}
given: dict[str, TermLike] = {"pads": fn.add(own, spatial), "auto_pad": "NOTSET"}

w, b = tensor("w", "M I *k"), const("b", "M", default=0)
kernel = integers("kernel")

INTO_WINDOWS = (
    Rule(
        "fuse_pad_into_conv",
        op.Conv(pad_axes(image), w, b, rest, **asked),
        op.Conv(image, w, b, rest, **given),
        when=(*only_space, explicit),
        why="A convolution pads by itself, without a copy.",
    ),
    Rule(
        "fuse_pad_into_average_pool",
        op.AveragePool(
            pad_axes(image), rest, kernel_shape=kernel, count_include_pad=integer("count"), ceil_mode=0, **asked
        ),
        op.AveragePool(image, rest, kernel_shape=kernel, count_include_pad=1, ceil_mode=0, **given),
        when=(
            *only_space,
            explicit,
            # zeros that the pooling adds itself count only if it says so
            fn.any_of(fn.eq(integer("count"), 1), fn.eq(own, 0)),
            # runtimes refuse paddings as wide as the kernel, and to pool an image without elements
            fn.lt(fn.add(own, spatial), fn.concat(kernel, kernel)),
            fn.le(1, fn.sizes("*s")),
        ),
        why="Average pooling pads by itself, and can count the zeros.",
    ),
)

# After a Relu zeros are no larger than what they stand beside, and each window that a kernel without dilation wider
# than the padding on both sides reads has something to stand beside.
dilations = integers("dilations")
rectified = op.Relu(image)
padding, count = fn.add(own, spatial), fn.length(kernel)
both_sides = fn.add(fn.slice(padding, 0, count), fn.slice(padding, count, fn.mul(2, count)))

INTO_MAX_POOL = Rule(
    "fuse_pad_after_relu_into_max_pool",
    op.MaxPool(pad_axes(rectified), rest, kernel_shape=kernel, dilations=dilations, ceil_mode=0, **asked),
    op.MaxPool(rectified, rest, kernel_shape=kernel, dilations=dilations, ceil_mode=0, **given),
    when=(
        *only_space,
        explicit,
        fn.eq(dilations, 1),
        fn.lt(both_sides, kernel),
    ),
    why="Zeros after a Relu are never the only maximum: the pooling may pad by itself.",
)

RULES = (*INTO_WINDOWS, INTO_MAX_POOL)
