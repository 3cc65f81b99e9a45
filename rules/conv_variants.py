"""Other forms of the same convolution: wider kernels, fewer groups, more channels, another number of axes."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.rule import Rule, TermLike, const, fn, integer, integers, op, tensor
from graphopt.rules.branches import eye, pad_kernel
from graphopt.rules.code_motion import SQUEEZED
from graphopt.rules.convolution import BLOCK, geometry

# Axes: N batch, C input channels, M output channels, I = C / group, *s space, *k kernel.
x = tensor("x", "N C *s")
w, b = const("w", "M I *k"), const("b", "M", default=0)
strides, pads, dilations, group = integers("strides"), integers("pads"), integers("dilations"), integer("group")
kernel = fn.sizes("*k")

# -- wider kernels -------------------------------------------------------------------------------------------------
# Any kernel may be wider. It pays beside a convolution with which it can then be one; elsewhere a search has no end.

smaller, its_bias, own_pads = const("v", "W I *p"), const("d", "W", default=0), integers("own_pads")
missing = pads - own_pads
before, after = fn.slice(missing, 0, fn.length(kernel)), fn.slice(missing, fn.length(kernel), fn.length(missing))
larger = op.Conv(x, w, b, strides=strides, pads=pads, group=group)

WIDENED = (
    Rule(
        "widen_conv_beside_larger_conv",
        (larger, op.Conv(x, smaller, its_bias, strides=strides, pads=own_pads, group=group)),
        (larger, op.Conv(x, pad_kernel(smaller, before, after), its_bias, strides=strides, pads=pads, group=group)),
        when=(
            fn.le(own_pads, pads),
            fn.ne(own_pads, pads),
            fn.eq(kernel, fn.sizes("*p") + before + after),
        ),
        why="With a kernel as large as that of a convolution of the same input, the two can be one.",
    ),
)

# -- fewer groups --------------------------------------------------------------------------------------------------

M, channels = fn.size("M"), fn.size("I")
ones = fn.repeat(1, fn.length(kernel))
blocks = op.Reshape(w, fn.concat(group, fn.floordiv(M, group), 1, channels, kernel))
diagonal = op.Reshape(eye(w, group), fn.concat(group, 1, group, 1, ones))

GROUPS = (
    Rule(
        "replace_grouped_conv_with_dense_conv",
        op.Conv(x, w, b, **geometry, group=group),
        op.Conv(
            x, op.Reshape(blocks * diagonal, fn.concat(M, fn.mul(group, channels), kernel)), b, **geometry, group=1
        ),
        when=fn.lt(1, group),
        why="Convolutions without groups have the fastest kernels, which may be worth computing with zeros.",
    ),
)


def build_merged_groups_rule(count: int) -> Rule:
    """Return the rule that makes each `count` groups one, whose weights for channels of other groups are zero."""
    apart = op.Reshape(w, fn.concat(group // count, count, M // group, 1, channels, kernel))
    own = op.Reshape(eye(w, count), fn.concat(1, count, 1, count, 1, ones))
    together = op.Reshape(apart * own, fn.concat(M, count * channels, kernel))
    return Rule(
        f"merge_{count}_groups_of_conv",
        op.Conv(x, w, b, **geometry, group=group),
        op.Conv(x, together, b, **geometry, group=group // count),
        when=(
            fn.eq(channels, BLOCK // count),
            fn.eq(group % count, 0),
            fn.eq(fn.size("C") % BLOCK, 0),
            fn.eq(M % BLOCK, 0),
        ),
        why="Groups of a whole block of channels are convolved so much faster that they may hold zeros.",
    )


MERGED = tuple(map(build_merged_groups_rule, (2, 4)))

# -- more channels -------------------------------------------------------------------------------------------------

dense, own = const("w", "M C *k"), const("b", "M", default=0)
y = tensor("y", "N M *s")
half = fn.floordiv(kernel - 1, 2)
other_half = kernel - 1 - half
keeps_size = (fn.eq(strides, 1), fn.eq(fn.concat(half, other_half) * fn.concat(dilations, dilations), pads))
unit = op.Reshape(eye(dense, fn.size("M")), fn.sizes("M M 1*k"))

CHANNELS = (
    Rule(
        "absorb_add_into_conv",
        op.Conv(x, dense, own, **geometry, group=1) + y,
        op.Conv(
            op.Concat(x, y, axis=1),
            op.Concat(dense, pad_kernel(unit, half, other_half), axis=1),
            own,
            **geometry,
            group=1,
        ),
        when=keeps_size,
        why="A convolution adds up its channels: more of them can be what was added to it.",
    ),
)

# -- two axes of space in the place of one -------------------------------------------------------------------------

line, kernels = tensor("x", "N C L"), const("w", "M I K")
turned = const("w", "C O K")
in_plane: Mapping[str, TermLike] = {
    "strides": fn.concat(1, strides),
    "dilations": fn.concat(1, dilations),
    "pads": fn.concat(0, fn.item(pads, 0), 0, fn.item(pads, 1)),
}

PLANES = (
    Rule(
        "replace_conv1d_with_conv2d",
        op.Conv(line, kernels, b, group=group, **geometry),
        op.Squeeze(op.Conv(op.Unsqueeze(line, (2,)), op.Unsqueeze(kernels, (2,)), b, group=group, **in_plane), (2,)),
        why="Runtimes compute convolutions over two axes in blocked layouts, and those over one axis not.",
    ),
    Rule(
        "replace_conv_transpose1d_with_conv_transpose2d",
        op.ConvTranspose(line, turned, const("b", "P", default=0), group=group, **geometry),
        op.Squeeze(
            op.ConvTranspose(
                op.Unsqueeze(line, (2,)),
                op.Unsqueeze(turned, (2,)),
                const("b", "P", default=0),
                group=group,
                **in_plane,
            ),
            (2,),
        ),
        why="Among convolutions over two axes it needs no other view of its input.",
    ),
)

AS_IMAGES = (*PLANES, *SQUEEZED)

RULES: tuple[Rule, ...] = ()
TRADES = (*WIDENED, *GROUPS, *MERGED, *CHANNELS, *PLANES)
SWEEPS = {"signals as images": AS_IMAGES}
