"""Branches that run beside a convolution and are added to it, or subtracted: they become part of its weights.

So networks are trained (RepVGG, MobileOne, FastViT, RepViT); what they compute is one convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, TermLike, const, fn, integer, integers, op, tensor
from graphopt.rules.affine import NOTHING, affine
from graphopt.rules.convolution import geometry, mix_filters, reshape_to_axes

# Axes: N batch, C input channels, M output channels, I = C / group, *s space, *k kernel, *p the smaller kernel.
x = tensor("x", "N C *s")
w, b = const("w", "M I *k"), const("b", "M", default=0)
v, d = const("v", "M I *k"), const("d", "M", default=0)
strides, pads, dilations, group = integers("strides"), integers("pads"), integers("dilations"), integer("group")
kernel = fn.sizes("*k")
along_both = fn.concat(dilations, dilations)
grouped: Mapping[str, TermLike] = {**geometry, "group": group}
dense: Mapping[str, TermLike] = {**geometry, "group": 1}


def pad_kernel(weights: Term, before: TermLike, after: TermLike) -> App:
    """Return a kernel with zeros around it."""
    return op.Pad(weights, fn.concat(0, 0, before, 0, 0, after))


class BranchSign(NamedTuple):
    """Way in which a branch joins the convolution, with its effect on weights and biases.

    The convolution's come first: what is computed has the element type of the first operand.
    """

    name: str
    join: Callable[[Term, Term], App]
    weights: Callable[[Term, Term], App]
    bias_alone: Callable[[Term], Term]
    """Bias where the branch has none."""


ADD = BranchSign("add", op.Add, op.Add, lambda bias: bias)
SUB = BranchSign("sub", op.Sub, op.Sub, lambda bias: bias)
RSUB = BranchSign("rsub", lambda conv, branch: branch - conv, lambda own, other: -(own - other), lambda bias: -bias)
SIGNS = (ADD, SUB, RSUB)

# -- two convolutions ----------------------------------------------------------------------------------------------

ALIKE = tuple(
    Rule(
        f"fuse_{sign.name}_of_convs",
        sign.join(op.Conv(x, w, b, **grouped), op.Conv(x, v, d, **grouped)),
        op.Conv(x, sign.weights(w, v), sign.weights(b, d), **grouped),
        why="Convolutions of one input that are joined are one convolution with joined weights.",
    )
    for sign in (ADD, SUB)
)

smaller = const("v", "M I *p")
own = integers("own")
axes = fn.length(kernel)
missing = pads - own
before, after = fn.slice(missing, 0, axes), fn.slice(missing, axes, fn.length(missing))

pointwise = const("v", "M I 1*k")
half = fn.floordiv(kernel - 1, 2)
other_half = kernel - 1 - half
around = fn.concat(half, other_half)

SMALLER = (
    *(
        Rule(
            f"fuse_{sign.name}_of_conv_and_smaller_conv",
            sign.join(
                op.Conv(x, w, b, strides=strides, pads=pads, group=group),
                op.Conv(x, smaller, d, strides=strides, pads=own, group=group),
            ),
            op.Conv(
                x,
                sign.weights(w, pad_kernel(smaller, before, after)),
                sign.weights(b, d),
                strides=strides,
                pads=pads,
                group=group,
            ),
            when=(fn.le(own, pads), fn.eq(kernel, fn.sizes("*p") + before + after)),
            why="A smaller kernel is a larger one with zeros around it: the wider convolution computes both.",
        )
        for sign in SIGNS
    ),
    *(
        Rule(
            f"fuse_{sign.name}_of_dilated_conv_and_pointwise_conv",
            sign.join(
                op.Conv(x, w, b, strides=strides, pads=pads, dilations=dilations, group=group),
                op.Conv(x, pointwise, d, strides=strides, pads=own, dilations=integers("any"), group=group),
            ),
            op.Conv(
                x,
                sign.weights(w, pad_kernel(pointwise, half, other_half)),
                sign.weights(b, d),
                strides=strides,
                pads=pads,
                dilations=dilations,
                group=group,
            ),
            when=fn.eq(own + around * along_both, pads),
            why="A pointwise kernel is the middle of a larger one: the wider convolution computes both.",
        )
        for sign in SIGNS
    ),
)

# -- two convolutions in a row ---------------------------------------------------------------------------------------
# So adapters of low rank (LoRA) are exported beside the convolution that they change.

full, down, up = const("w", "M C *k"), const("u", "L C *k"), const("v", "M L 1*k")
mix, narrow = reshape_to_axes(up, "M L"), const("c", "L", default=0)

LOW_RANK = Rule(
    "fuse_add_of_conv_and_low_rank",
    op.Conv(x, full, b, **dense) + op.Conv(op.Conv(x, down, narrow, **dense), up, d),
    op.Conv(x, full + mix_filters(mix, down, "M C *k"), b + ((mix @ narrow) + d), **dense),
    why="Mixed filters are filters, and convolutions of one input that are added are one.",
)

# -- branches without a convolution --------------------------------------------------------------------------------
# They are convolutions with a kernel that is 1 in the middle, for the channel of its filter.

square, bias = const("w", "C I *k"), const("b", "C", default=0)
keeps_size = (fn.eq(strides, 1), fn.eq(around * along_both, pads))


def eye(weights: Term, size: TermLike) -> App:
    """Return the unit matrix of so many rows, of the element type of some weights."""
    one = op.Slice(op.Flatten(weights), (0, 0), (1, 1), (0, 1))
    return op.EyeLike(op.Expand(one, fn.concat(size, size)))


def per_filter(value: Term) -> App:
    """Return one number for each filter in the shape of the weights."""
    return op.Reshape(value, fn.sizes("C 1 1*k"))


def identity_kernel() -> App:
    """Return the pointwise weights that give each channel back, in any number of groups."""
    units = op.Tile(eye(square, fn.size("I")), fn.concat(group, 1))
    return op.Reshape(units, fn.sizes("C I 1*k"))


factor, _, _, bn = affine("C", "1*k")
BRANCHES = {"input": NOTHING, "input_mul": factor, "bn": bn}

BESIDE = tuple(
    Rule(
        f"fuse_{sign.name}_of_conv_and_{name}",
        sign.join(op.Conv(x, square, bias, **grouped), this.apply(x)),
        op.Conv(
            x,
            sign.weights(square, pad_kernel(this.weights(identity_kernel(), per_filter), half, other_half)),
            sign.bias_alone(bias) if this.shift is None else sign.weights(bias, this.shift),
            **grouped,
        ),
        when=(*keeps_size, *this.when(x)),
        why=f"Beside a convolution, {this.what} is one more number in the middle of each of its kernels.",
    )
    for name, this in BRANCHES.items()
    for sign in SIGNS
)

RULES = (*ALIKE, *SMALLER, LOW_RANK, *BESIDE)
