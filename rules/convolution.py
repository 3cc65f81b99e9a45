"""Convolutions: what scales or shifts per channel, before or after them, goes into their weights and bias."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.rule import Rule, attributes, const, fn, integer, integers, op, string, tensor
from graphopt.rules.affine import AFFINE, SCALINGS, SHIFTS, normalization
from graphopt.term import App, Operand, Term, Var

# Axes: N batch, C input channels, M output channels, I = C / group, O = M / group, *s space, *k kernel.
x = tensor("x", "N C *s")
w, b = const("w", "M I *k"), const("b", "M", default=0)
g = integer("g")
rest = attributes("rest")


def along(value: Term, axes: str) -> App:
    """A constant in the shape that these axes have."""
    return op.Reshape(value, fn.sizes(axes))


def by_group(value: Term, outer: str, inner: str) -> App:
    """One number for each channel of the side that the weights list by group, in the shape of the weights.

    The weights' first axis `outer` is cut into groups; group i uses the i-th run of numbers along `inner`.
    """
    runs = op.Reshape(value, fn.join(g, 1, fn.size(inner)))
    repeated = op.Expand(runs, fn.join(g, fn.div(fn.size(outer), g), fn.size(inner)))
    return along(repeated, f"{outer} {inner} 1*k")


# -- after a convolution -------------------------------------------------------------------------------------------

per_filter = const("c", "M 1*k")  # beside [N, M, …]: one number for each output channel, or one for all
bn = normalization("M")

AFTER_CONV = (
    *(
        Rule(
            "fuse_add_bias_into_conv" if this.name == "add" else f"fuse_{this.name}_into_conv",
            this.apply(op.Conv(x, w, b, rest), per_filter),
            op.Conv(
                x,
                this.weights(w, along(per_filter, "M 1 1*k")),
                this.bias(b, along(per_filter, "M")),
                rest,
            ),
            when=this.when(per_filter),
            why=f"After a convolution, {this.what} per channel goes into its weights and bias.",
        )
        for this in AFFINE
    ),
    Rule(
        "fuse_bn_into_conv",
        bn.apply(op.Conv(x, w, b, rest)),
        op.Conv(x, w * along(bn.factor, "M 1 1*k"), (b - bn.mean) * bn.factor + bn.offset, rest),
        when=bn.uniform(x),
        why="A batch normalization after a convolution is folded into its weights and bias.",
    ),
)

# -- a convolution after a convolution -----------------------------------------------------------------------------
# A pointwise one mixes what the other one filters: the filters can be mixed, where that multiplies no more numbers.

filters, mixing = const("w", "M C *k"), const("v", "P M 1*k")
geometry: dict[str, Operand] = {
    "strides": integers("strides"),
    "pads": integers("pads"),
    "dilations": integers("dilations"),
}
M, P, in_window = fn.size("M"), fn.size("P"), fn.mul(fn.size("C"), fn.product(fn.sizes("*k")))
mix = along(mixing, "P M")

AFTER_EACH_OTHER = (
    Rule(
        "fuse_pointwise_conv_into_conv",
        op.Conv(op.Conv(x, filters, b, group=1, **geometry), mixing, const("d", "P", default=0)),
        op.Conv(
            x,
            along(mix @ op.Reshape(filters, fn.join(M, in_window)), "P C *k"),
            (mix @ b) + const("d", "P", default=0),
            group=1,
            **geometry,
        ),
        when=fn.le(fn.mul(P, in_window), fn.add(fn.mul(M, in_window), fn.mul(P, M))),
        why="A pointwise convolution of filtered channels is a convolution with mixed filters.",
    ),
)

# -- before a convolution ------------------------------------------------------------------------------------------
# A scale commutes with padding by zeros; a shift does not, so it needs a convolution that pads nothing.

per_channel = const("c", "C 1*k")
bn_in = normalization("C")
pads, auto_pad = integers("pads"), string("auto_pad")
unpadded = (fn.eq(pads, 0), fn.either(fn.eq(auto_pad, "NOTSET"), fn.eq(auto_pad, "VALID")))
padding: dict[str, Operand] = {"pads": pads, "auto_pad": auto_pad}
no_padding: dict[str, Operand] = {"pads": pads, "auto_pad": "NOTSET"}


def seen(weights: Var, shift: Term) -> App:
    """What each filter makes of a constant per channel: the sum over all axes of the weights but the filters'."""
    return op.ReduceSum(weights * shift, fn.add(fn.range(fn.sub(fn.rank(weights), 1)), 1), keepdims=0)


GROUPS: tuple[tuple[str, Var, Callable[[Term], App], dict[str, Operand]], ...] = (
    # (suffix, weights, the constant as the weights need it, attributes)
    ("", const("w", "M C *k"), lambda c: along(c, "C 1*k"), {"group": 1}),
    ("_grouped", w, lambda c: by_group(c, "M", "I"), {"group": g}),
)

BEFORE_CONV = (
    *(
        Rule(
            f"fuse_{this.name}_before{suffix}_conv",
            op.Conv(this.apply(x, per_channel), weights, b, rest, **group),
            op.Conv(x, this.weights(weights, spread(per_channel)), b, rest, **group),
            when=this.when(per_channel),
            why=f"Before a convolution, {this.what} per channel goes into its weights; padding stays zero.",
        )
        for this in SCALINGS
        for suffix, weights, spread, group in GROUPS
    ),
    *(
        Rule(
            f"fuse_{this.name}_before{suffix}_conv",
            op.Conv(this.apply(x, per_channel), weights, b, rest, **group, **padding),
            op.Conv(
                x,
                this.weights(weights, spread(per_channel)),
                (op.Sub if this.name == "sub" else op.Add)(b, seen(weights, spread(per_channel))),
                rest,
                **group,
                **no_padding,
            ),
            when=unpadded,
            why=f"Before a convolution without padding, {this.what} per channel goes into its bias.",
        )
        for this in SHIFTS
        for suffix, weights, spread, group in GROUPS
    ),
    *(
        Rule(
            f"fuse_bn_before{suffix}_conv",
            op.Conv(bn_in.apply(x), weights, b, rest, **group, **padding),
            op.Conv(
                x,
                weights * spread(bn_in.factor),
                b + seen(weights, spread(bn_in.shift)),
                rest,
                **group,
                **no_padding,
            ),
            when=(*unpadded, *bn_in.uniform(x)),
            why="A batch normalization before a convolution without padding is folded into its weights and bias.",
        )
        for suffix, weights, spread, group in GROUPS
    ),
)

# -- ConvTranspose: the weights list input channels first ----------------------------------------------------------

wt, bt = const("w", "C O *k"), const("b", "O", default=0)
per_output = const("c", "O 1*k")
bn_out = normalization("O")
grouped = fn.eq(fn.size("M"), fn.mul(fn.size("O"), g))

CONV_TRANSPOSE = (
    *(
        Rule(
            f"fuse_{this.name}_into_conv_transpose",
            this.apply(op.ConvTranspose(x, wt, bt, rest, group=1), per_output),
            op.ConvTranspose(x, this.weights(wt, per_output), this.bias(bt, along(per_output, "O")), rest, group=1),
            when=this.when(per_output),
            why=f"After a transposed convolution, {this.what} per channel goes into its weights and bias.",
        )
        for this in AFFINE
    ),
    *(
        Rule(
            f"fuse_{this.name}_into_grouped_conv_transpose",
            this.apply(op.ConvTranspose(x, wt, b, rest, group=g), per_filter),
            op.ConvTranspose(
                x,
                this.weights(wt, by_group(along(per_filter, "M"), "C", "O")),
                this.bias(b, along(per_filter, "M")),
                rest,
                group=g,
            ),
            when=(grouped, *this.when(per_filter)),
            why=f"After a grouped transposed convolution, {this.what} per channel goes into its weights and bias.",
        )
        for this in AFFINE
    ),
    *(
        Rule(
            f"fuse_{this.name}_before_conv_transpose",
            op.ConvTranspose(this.apply(x, per_channel), wt, b, rest),
            op.ConvTranspose(x, this.weights(wt, along(per_channel, "C 1 1*k")), b, rest),
            when=this.when(per_channel),
            why=f"Before a transposed convolution, {this.what} per channel goes into its weights.",
        )
        for this in SCALINGS
    ),
    Rule(
        "fuse_bn_into_conv_transpose",
        bn_out.apply(op.ConvTranspose(x, wt, bt, rest, group=1)),
        op.ConvTranspose(
            x, wt * along(bn_out.factor, "O 1*k"), (bt - bn_out.mean) * bn_out.factor + bn_out.offset, rest, group=1
        ),
        when=bn_out.uniform(x),
        why="A batch normalization after a transposed convolution is folded into its weights and bias.",
    ),
    Rule(
        "fuse_bn_into_grouped_conv_transpose",
        bn.apply(op.ConvTranspose(x, wt, b, rest, group=g)),
        op.ConvTranspose(x, wt * by_group(bn.factor, "C", "O"), (b - bn.mean) * bn.factor + bn.offset, rest, group=g),
        when=(grouped, *bn.uniform(x)),
        why="A batch normalization after a grouped transposed convolution is folded into its weights and bias.",
    ),
)

RULES = (*AFTER_CONV, *AFTER_EACH_OTHER, *BEFORE_CONV, *CONV_TRANSPOSE)
