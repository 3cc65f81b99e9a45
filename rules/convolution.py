"""Convolutions: what scales or shifts per channel, before or after them, goes into their weights and bias."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.rule import App, Rule, Term, TermLike, attributes, const, fn, integer, integers, op, string, tensor
from graphopt.rules.affine import affine

# Axes: N batch, C input channels, M output channels, I = C / group, O = M / group, *s space, *k kernel.
x = tensor("x", "N C *s")
w, b = const("w", "M I *k"), const("b", "M", default=0)
g = integer("g")
rest = attributes("rest")
geometry: Mapping[str, TermLike] = {
    "strides": integers("strides"),
    "pads": integers("pads"),
    "dilations": integers("dilations"),
}


def reshape_to_axes(value: Term, axes: str) -> App:
    """Return a constant in the shape that these axes have."""
    return op.Reshape(value, fn.sizes(axes))


BLOCK = 16
"""Channels that ONNX Runtime convolves at once, where a processor has AVX-512; 8 elsewhere."""


def by_group(value: Term, outer: str, inner: str) -> App:
    """One number for each channel of the side that the weights list by group, in the shape of the weights.

    The weights' first axis `outer` is cut into groups; group i uses the i-th run of numbers along `inner`.
    """
    runs = op.Reshape(value, fn.concat(g, 1, fn.size(inner)))
    repeated = op.Expand(runs, fn.concat(g, fn.floordiv(fn.size(outer), g), fn.size(inner)))
    return reshape_to_axes(repeated, f"{outer} {inner} 1*k")


def sum_over_filters(weights: Term, each: Term) -> App:
    """Return what each filter makes of a constant per channel: the sum over all axes of the weights but the
    filters'."""
    return op.ReduceSum(weights * each, fn.add(fn.range(fn.sub(fn.rank(weights), 1)), 1), keepdims=0)


# -- after a convolution -------------------------------------------------------------------------------------------

AFTER_CONV = tuple(
    Rule(
        "fuse_add_bias_into_conv" if this.name == "add" else f"fuse_{this.name}_into_conv",
        this.apply(op.Conv(x, w, b, rest)),
        op.Conv(x, this.weights(w, lambda v: reshape_to_axes(v, "M 1 1*k")), this.bias(b), rest),
        when=this.when(x),
        why=f"After a convolution, {this.what} per channel goes into its weights and bias.",
    )
    for this in affine("M", "1*k")
)

# -- a convolution after a convolution -----------------------------------------------------------------------------
# A pointwise one mixes what the other one filters: the filters can be mixed, where that multiplies no more numbers.

filters, mixing = const("w", "M C *k"), const("v", "P M 1*k")
M, P, in_window = fn.size("M"), fn.size("P"), fn.mul(fn.size("C"), fn.product(fn.sizes("*k")))
mix = reshape_to_axes(mixing, "P M")


def mix_filters(mix: Term, filters: Term, axes: str) -> App:
    """Return filters that are mixed by a matrix, in the shape that these axes have."""
    return reshape_to_axes(mix @ op.Flatten(filters), axes)


# The other way round pixels are mixed first, and a shift of them is not one of the zeros around them.
pixels, sights = const("v", "M C 1*k"), const("w", "P M *k")
shift, last = const("b", "M"), const("d", "P", default=0)
C, in_sight = fn.size("C"), fn.mul(P, fn.product(fn.sizes("*k")))
seen_through = reshape_to_axes(
    op.Transpose(reshape_to_axes(pixels, "M C"), perm=(1, 0)) @ op.Reshape(sights, fn.concat(P, M, -1)), "P C *k"
)

AFTER_EACH_OTHER = (
    Rule(
        "fuse_pointwise_conv_into_conv",
        op.Conv(op.Conv(x, filters, b, group=1, **geometry), mixing, last),
        op.Conv(x, mix_filters(mix, filters, "P C *k"), (mix @ b) + last, group=1, **geometry),
        pays=fn.le(fn.mul(P, in_window), fn.add(fn.mul(M, in_window), fn.mul(P, M))),
        why="A pointwise convolution of filtered channels is a convolution with mixed filters.",
    ),
    *(
        Rule(
            f"fuse_pointwise_conv_before_{name}",
            op.Conv(op.Conv(x, pixels, first), sights, last, group=1, **around),
            op.Conv(x, seen_through, bias, group=1, **around),
            pays=fn.le(fn.mul(C, in_sight), fn.add(fn.mul(C, M), fn.mul(M, in_sight))),
            why="A convolution of mixed channels is one with filters that mix them.",
        )
        for name, first, bias, around in (
            ("conv", None, last, geometry),
            (
                "unpadded_conv",
                shift,
                sum_over_filters(sights, reshape_to_axes(shift, "1 M 1*k")) + last,
                {name: part for name, part in geometry.items() if name != "pads"},
            ),
        )
    ),
)

# -- before a convolution ------------------------------------------------------------------------------------------
# A scale commutes with padding by zeros; a shift does not, so it needs a convolution that pads nothing.

pads, auto_pad = integers("pads"), string("auto_pad")
unpadded = (fn.eq(pads, 0), fn.any_of(fn.eq(auto_pad, "NOTSET"), fn.eq(auto_pad, "VALID")))
scale, *shifting = affine("C", "1*k")


def per_input(v: Term) -> App:
    """Return one number for each input channel in the shape of the weights."""
    return by_group(v, "M", "I")


BEFORE_CONV = (
    Rule(
        "fuse_mul_before_conv",
        op.Conv(scale.apply(x), w, b, rest, group=g),
        op.Conv(x, scale.weights(w, per_input), b, rest, group=g),
        why="Before a convolution, a factor per channel goes into its weights; padding stays zero.",
    ),
    *(
        Rule(
            f"fuse_{this.name}_before_conv",
            op.Conv(this.apply(x), w, b, rest, group=g, pads=pads, auto_pad=auto_pad),
            op.Conv(
                x,
                this.weights(w, per_input),
                this.carry_bias(b, lambda shift: sum_over_filters(w, per_input(shift))),
                rest,
                group=g,
                pads=pads,
                auto_pad="NOTSET",
            ),
            when=(*unpadded, *this.when(x)),
            why=f"Before a convolution without padding, {this.what} per channel goes into its weights and bias.",
        )
        for this in shifting
    ),
)

# -- ConvTranspose: the weights list input channels first ----------------------------------------------------------

wt = const("w", "C O *k")
GROUPS: tuple[tuple[str, str, Callable[[Term], App], TermLike, tuple[Term, ...]], ...] = (
    # what the name says, the axis of the results, how it is spread over the weights, how many groups, and when
    ("", "O", lambda v: reshape_to_axes(v, "O 1*k"), 1, ()),
    ("_grouped", "M", lambda v: by_group(v, "C", "O"), g, (fn.eq(fn.size("M"), fn.mul(fn.size("O"), g)),)),
)

CONV_TRANSPOSE = (
    *(
        Rule(
            f"fuse_{this.name}_into{grouped}_conv_transpose",
            this.apply(op.ConvTranspose(x, wt, const("b", axis, default=0), rest, group=group)),
            op.ConvTranspose(x, this.weights(wt, spread), this.bias(const("b", axis, default=0)), rest, group=group),
            when=(*when, *this.when(x)),
            why=f"After a transposed convolution, {this.what} per channel goes into its weights and bias.",
        )
        for grouped, axis, spread, group, when in GROUPS
        for this in affine(axis, "1*k")
    ),
    Rule(
        "fuse_mul_before_conv_transpose",
        op.ConvTranspose(scale.apply(x), wt, b, rest),
        op.ConvTranspose(x, scale.weights(wt, lambda v: reshape_to_axes(v, "C 1 1*k")), b, rest),
        why="Before a transposed convolution, a factor per channel goes into its weights.",
    ),
)

RULES = (*AFTER_CONV, *AFTER_EACH_OTHER, *BEFORE_CONV, *CONV_TRANSPOSE)
