"""Operators side by side: several that read one value, or parts of one, become one operator, and one becomes
several."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from graphopt.rule import (
    App,
    Rule,
    Term,
    TermLike,
    Var,
    attributes,
    binary,
    const,
    fn,
    integer,
    integers,
    op,
    pointwise,
    real,
    tensor,
    tensors,
)
from graphopt.rules.branches import pad_kernel
from graphopt.rules.convolution import geometry

# Axes: N batch, C input channels, *s space, *k kernel; *b batch, M rows, K contracted, W output channels or columns.
# What operators side by side do not share has a number: W0, W1 …
axis, sizes = integer("axis"), integers("sizes")
rest = attributes("rest")


def lengths(name: str, count: int) -> App:
    return fn.sizes(" ".join(f"{name}{i}" for i in range(count)))


# -- several operators that read one value -------------------------------------------------------------------------


class LinearOperator(NamedTuple):
    """An operator with constant weights, given as a function of them and the bias."""

    name: str
    x: Var
    weights: str
    """The axes of the weights; `W` is the one that belongs to the results."""
    apply: Callable[[Term, Term | None], App]
    bias: Callable[[str, str], Var] | None = None
    """Makes the hole of the bias from a name and its axis; None where there is no bias."""
    result_axis: int = -1
    weights_axis: int = -1
    when: tuple[Term, ...] = ()
    split_when: tuple[Term, ...] = ()

    def with_number(self, number: str) -> tuple[Var, Var | None]:
        """Return the holes of the weights and of the bias."""
        own = f"W{number}"
        return const(f"w{number}", self.weights.replace("W", own)), self.bias and self.bias(f"b{number}", own)


def required(name: str, axes: str) -> Var:
    return const(name, axes)


def optional(name: str, axes: str) -> Var:
    return const(name, axes, default=0)


image, rows, matrix = tensor("x", "N C *s"), tensor("x", "*b M K"), tensor("x", "M K")
alpha, beta = real("alpha"), real("beta")
numbers = (fn.is_float(fn.dtype(rows)),)


def apply_conv(weights: Term, bias: Term | None) -> App:
    return op.Conv(image, weights, bias, group=1, **geometry)


def apply_matmul(weights: Term, bias: Term | None) -> App:
    return rows @ weights if bias is None else (rows @ weights) + bias


def apply_gemm(transposed: int) -> Callable[[Term, Term | None], App]:
    return lambda weights, bias: op.Gemm(matrix, weights, bias, alpha=alpha, beta=beta, transB=transposed)


LINEAR = (
    LinearOperator("conv", image, "W C *k", apply_conv, optional, 1, 0, split_when=(fn.lt(0, sizes),)),
    LinearOperator("matmul", rows, "K W", apply_matmul, when=numbers),
    LinearOperator("matmul_add", rows, "K W", apply_matmul, required, when=numbers),
    LinearOperator("gemm", matrix, "K W", apply_gemm(0), optional),
    LinearOperator("transposed_gemm", matrix, "W K", apply_gemm(1), optional, weights_axis=0),
)


def build_merge_rule(this: LinearOperator, count: int) -> Rule:
    """Return the rule that makes `count` operators, each with weights of its own, one with all weights and a Split."""
    holes = [this.with_number(str(i)) for i in range(count)]
    weights = op.Concat(*(w for w, _ in holes), axis=this.weights_axis)
    bias = op.Concat(*(b for _, b in holes), axis=0) if this.bias else None
    return Rule(
        f"merge_{count}_parallel_{this.name}s",
        tuple(this.apply(w, b) for w, b in holes),
        op.Split.split(count, this.apply(weights, bias), lengths("W", count), axis=this.result_axis),
        when=this.when,
        why="Operators that read one value are one with all their weights: larger, and one to start.",
    )


def build_split_rule(this: LinearOperator, count: int) -> Rule:
    """Return the rule that makes an operator with a split result one operator for each part."""
    weights, bias = this.with_number("")
    x_rank = fn.rank(this.x)
    parts = op.Split.split(count, weights, sizes, axis=this.weights_axis)
    biases = (None,) * count if bias is None else op.Split.split(count, bias, sizes, axis=0)
    return Rule(
        f"split_{this.name}_of_split_{count}",
        op.Split.split(count, this.apply(weights, bias), sizes, axis=axis),
        tuple(this.apply(w, b) for w, b in zip(parts, biases, strict=True)),
        when=(
            fn.eq(fn.normalize_indices(axis, x_rank), fn.normalize_indices(this.result_axis, x_rank)),
            *this.when,
            *this.split_when,
        ),
        why="Parts that are wanted alone are computed alone, and not copied.",
    )


MERGED = tuple(build_merge_rule(this, count) for this in LINEAR for count in (2, 3))
APART = tuple(build_split_rule(this, count) for this in LINEAR for count in (2, 3, 4))

# -- elementwise operators on the parts of a value -----------------------------------------------------------------

x, y = tensor("x"), tensor("y")
f, g = pointwise("f"), binary("g")
parts_of = {count: op.Split.split(count, x, sizes, axis=axis) for count in (2, 3)}

axis_y = integer("axis_y")
ON_PARTS = tuple(
    rule
    for count, parts in parts_of.items()
    for each, whole in ((tuple(map(f, parts)), op.Split.split(count, f(x), sizes, axis=axis)),)
    for others in (op.Split.split(count, y, sizes, axis=axis_y),)
    for rule in (
        Rule(
            f"merge_pointwise_of_split_{count}",
            each,
            whole,
            why="An operator on all parts is one pass over the whole, and can be fused into what made it.",
        ),
        Rule(
            f"split_pointwise_before_split_{count}",
            whole,
            each,
            why="An operator on a part can be fused into what makes the part.",
        ),
        Rule(
            f"merge_binary_of_splits_{count}",
            tuple(map(g, parts, others)),
            op.Split.split(count, g(x, y), sizes, axis=axis),
            when=(
                fn.eq(fn.shape(x), fn.shape(y)),
                fn.eq(fn.normalize_indices(axis, fn.rank(x)), fn.normalize_indices(axis_y, fn.rank(x))),
            ),
            why="An operator on all parts is one pass over the whole.",
        ),
    )
)

length = fn.item(fn.shape(x), axis)
EVEN = tuple(
    Rule(
        f"give_sizes_to_even_split_{count}",
        op.Split.split(count, x, axis=axis, num_outputs=count),
        op.Split.split(count, x, fn.repeat(fn.floordiv(length, count), count), axis=axis),
        when=fn.eq(fn.mod(length, count), 0),
        why="A split into parts of known sizes is what the other rules are about.",
    )
    for count in (2, 3, 4)
)

# -- the same on what is joined ------------------------------------------------------------------------------------


def build_joined_convs_rule(count: int) -> Rule:
    conv = next(this for this in LINEAR if this.name == "conv")
    holes = [conv.with_number(str(i)) for i in range(count)]
    return Rule(
        f"merge_concat_of_{count}_convs",
        op.Concat(*(conv.apply(w, b) for w, b in holes), axis=1),
        conv.apply(op.Concat(*(w for w, _ in holes), axis=0), op.Concat(*(b for _, b in holes if b), axis=0)),
        why="Convolutions of one input whose results are joined are one with all their weights, and nothing is copied.",
    )


operands = tensors("operands")
JOINED = (
    Rule(
        "merge_pointwise_of_concat",
        op.Concat(f(operands), axis=axis),
        f(op.Concat(*operands, axis=axis)),
        why="An operator on all parts is one pass over the whole.",
    ),
    *(build_joined_convs_rule(count) for count in (2, 3, 4)),
)

# -- a convolution of joined channels ------------------------------------------------------------------------------


def channels(count: int) -> tuple[Var, ...]:
    return tuple(tensor(f"x{i}", f"N C{i} *s") for i in range(count))


def conv_of(value: Term, weights: Term, bias: Term | None = None, **more: TermLike) -> App:
    return op.Conv(value, weights, bias, **{"group": 1, **geometry, **more})


def by_input(count: int) -> Rule:
    """Return the rule that makes a convolution of a Concat the sum of one for each part; the first keeps the bias."""
    w, b = const("w", "W C *k"), optional("b", "W")
    weights = op.Split.split(count, w, lengths("C", count), axis=1)
    convs = [
        conv_of(part, own, b if i == 0 else None)
        for i, (part, own) in enumerate(zip(channels(count), weights, strict=True))
    ]
    return Rule(
        f"split_conv_of_concat_{count}",
        conv_of(op.Concat(*channels(count), axis=1), w, b),
        list(accumulate(convs, op.Add))[-1],
        when=fn.lt(0, lengths("C", count)),  # no convolution reads no channel
        why="A sum of convolutions needs no copy of the joined channels, and an Add is fused into a convolution.",
    )


left, right = channels(2)
w, v, b, d = const("w", "W C0 *k"), const("v", "W C1 *k"), optional("b", "W"), optional("d", "W")
SUM_OF_CONVS = Rule(
    "merge_sum_of_convs_of_two_inputs",
    conv_of(left, w, b) + conv_of(right, v, d),
    conv_of(op.Concat(left, right, axis=1), op.Concat(w, v, axis=1), b + d),
    why="A sum of convolutions is one convolution of the joined channels.",
)
CHANNELS = (*(by_input(count) for count in (2, 3, 4)), SUM_OF_CONVS)

# -- groups of channels --------------------------------------------------------------------------------------------

whole, in_groups = tensor("x", "N C *s"), const("w", "M I *k")


def build_merged_convs_rule(count: int) -> Rule:
    """Return the rule that makes convolutions of equal parts one convolution in groups."""
    parts = op.Split.split(count, whole, sizes, axis=1)
    weights = [const(f"w{i}", "W I *k") for i in range(count)]
    biases = [optional(f"b{i}", "W") for i in range(count)]
    return Rule(
        f"merge_convs_of_split_{count}_into_groups",
        op.Concat(*map(conv_of, parts, weights, biases), axis=1),
        conv_of(whole, op.Concat(*weights, axis=0), op.Concat(*biases, axis=0), group=count),
        why="Equal parts that are convolved apart and joined are one convolution in groups.",
    )


def build_dense_conv_rule(count: int) -> Rule:
    """Return the rule that makes convolutions of parts one convolution with zeros for the channels of other parts."""
    widths = [fn.size(f"C{i}") for i in range(count)]
    parts = op.Split.split(count, whole, sizes, axis=1)
    weights = [const(f"w{i}", f"W{i} C{i} *k") for i in range(count)]
    biases = [optional(f"b{i}", f"W{i}") for i in range(count)]
    spread = [
        op.Pad(w, fn.concat(fn.sum(fn.concat(*widths[:i])), fn.sum(fn.concat(*widths[i + 1 :]))), None, (1,))
        for i, w in enumerate(weights)
    ]
    return Rule(
        f"merge_convs_of_split_{count}_into_dense_conv",
        op.Concat(*map(conv_of, parts, weights, biases), axis=1),
        conv_of(whole, op.Concat(*spread, axis=0), op.Concat(*biases, axis=0)),
        why="Weights that are zero for the channels of other parts cost less than to cut channels and to join them.",
    )


parts = op.Split.split(2, whole, fn.sizes("I I"), axis=1)
halves = op.Split.split(2, in_groups, axis=0, num_outputs=2)
half_biases = op.Split.split(2, optional("b", "M"), axis=0, num_outputs=2)
GROUPS = (
    *(build_merged_convs_rule(count) for count in (2, 4)),
    Rule(
        "split_conv_of_2_groups",
        conv_of(whole, in_groups, optional("b", "M"), group=2),
        op.Concat(*map(conv_of, parts, halves, half_biases), axis=1),
        why="Convolutions without groups have faster kernels.",
    ),
)

# -- kernels of several sizes ----------------------------------------------------------------------------------------
# Nets with mixed kernels (MixNet, CoAT) cut the channels into parts, one for each size. The parts often fill no blocks
# of channels, so that the convolutions run in slow kernels, between copies. Axes: C0, C1 … the channels of the parts;
# K0 × L0, K1 × L1 … their kernels.


def build_mixed_kernels_rule(count: int) -> Rule:
    """Return the rule that makes depthwise convolutions of parts one with the largest of their kernels."""
    numbers = range(count)
    pixels, weights = tensor("x", "N C H W"), [const(f"w{i}", f"C{i} 1 K{i} L{i}") for i in numbers]
    biases = [optional(f"b{i}", f"C{i}") for i in numbers]
    groups, strides = [integer(f"group{i}") for i in numbers], geometry["strides"]
    kernels, pads = [fn.sizes(f"K{i} L{i}") for i in numbers], [integers(f"pads{i}") for i in numbers]
    missing = [list(accumulate(kernels, fn.maximum))[-1] - kernel for kernel in kernels]
    zeros = [(lack // 2, lack - lack // 2) for lack in missing]
    wide = [pad_kernel(w, *around) for w, around in zip(weights, zeros, strict=True)]
    padded = pads[0] + fn.concat(*zeros[0])
    convs = (
        op.Conv(part, w, b, group=group, strides=strides, pads=own)
        for part, w, b, group, own in zip(
            op.Split.split(count, pixels, sizes, axis=1), weights, biases, groups, pads, strict=True
        )
    )
    return Rule(
        f"merge_depthwise_convs_of_split_{count}",
        op.Concat(*convs, axis=1),
        op.Conv(
            pixels,
            op.Concat(*wide, axis=0),
            op.Concat(*biases, axis=0),
            group=fn.size("C"),
            strides=strides,
            pads=padded,
        ),
        when=(
            fn.lt(0, sizes),
            *(fn.eq(group, fn.size(f"C{i}")) for i, group in enumerate(groups)),
            *(fn.eq(own, padded - fn.concat(*around)) for own, around in zip(pads[1:], zeros[1:], strict=True)),
        ),
        why="Zeros around a smaller kernel cost less than to cut the channels into parts and to join them again.",
    )


MIXED = tuple(map(build_mixed_kernels_rule, (2, 3, 4, 5)))
DENSE = tuple(map(build_dense_conv_rule, (2, 3, 4)))

RULES: tuple[Rule, ...] = ()
TRADES = (*MERGED, *APART, *ON_PARTS, *EVEN, *JOINED, *CHANNELS, *GROUPS, *MIXED, *DENSE)
SWEEPS = {
    "sums of convolutions as one": (SUM_OF_CONVS,),
    "kernels of one size": MIXED,
    "convolutions of all channels": DENSE,
    "parts of products apart": (*EVEN, *APART, *(rule for rule in ON_PARTS if rule.name.startswith("split_pointwise"))),
}
