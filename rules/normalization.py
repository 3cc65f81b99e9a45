"""Normalizations: written out in primitive operators they become one operator, and what follows goes into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.rules.affine import affine, batch_normalization

# Axes: N batch, C channels, *s space; *n the axes that a layer normalization normalizes.
rest = attributes("rest")

# -- batch normalization -------------------------------------------------------------------------------------------

x, bn = tensor("x", "N C *s"), batch_normalization("C", "_first")
per_channel = affine("C", "1*s")
tokens, to_channels, back = tensor("x", "N *s C"), integers("to_channels"), integers("back")

BATCH = (
    *(
        Rule(
            "fuse_consecutive_bn" if this.name == "bn" else f"fuse_{this.name}_into_bn",
            this.apply(bn.apply(x)),
            bn.apply(x, scale=this.weights(bn.scale, lambda v: v), offset=this.bias(bn.offset)),
            when=(*bn.same_type_conditions(x), *this.when(x)),
            why=f"After a batch normalization, {this.what} per channel goes into its scale and offset.",
        )
        for this in per_channel
    ),
    *(
        Rule(
            f"fuse_{this.name}_before_bn",
            bn.apply(this.apply(x)),
            bn.apply(
                x,
                scale=this.weights(bn.scale, lambda v: v),
                offset=this.carry_bias(bn.shift, lambda v: v * bn.factor),
                mean=bn.mean * 0,
            ),
            when=bn.same_type_conditions(x),
            why=f"Before a batch normalization, {this.what} per channel goes into its scale and offset.",
        )
        for this in per_channel
        if this.name != "bn"
    ),
    Rule(
        "replace_bn_of_last_axis_with_factor_and_shift",
        op.Transpose(bn.apply(op.Transpose(tokens, perm=to_channels)), perm=back),
        tokens * bn.factor + bn.shift,
        when=(
            fn.is_identity(fn.compose(to_channels, back)),
            fn.eq(fn.item(to_channels, 1), fn.rank(tokens) - 1),
            *bn.same_type_conditions(tokens),
        ),
        why="Channels that lie last are scaled and shifted where they lie.",
    ),
)

# -- layer and RMS normalization, written out ----------------------------------------------------------------------

y, axes, epsilon = tensor("x", "*b N"), integers("axes"), real("epsilon")
last_axis = fn.eq(fn.normalize_indices(axes, fn.rank(y)), fn.concat(fn.sub(fn.rank(y), 1)))
# The operators compute mean and deviation in single precision, whatever the type: too little for DOUBLE.
floats = fn.is_in(fn.dtype(y), (int(DType.FLOAT), int(DType.FLOAT16), int(DType.BFLOAT16)))
not_empty = fn.le(1, fn.size("N"))  # else ONNX Runtime refuses to run the operators
scale, offset = const("scale", "N"), const("offset", "N")
ones = op.Expand(1.0, fn.sizes("N"))


def mean_over_axes(value: Term) -> App:
    return op.ReduceMean(value, axes, keepdims=1)


SQUARES: Mapping[str, Callable[[Term], App]] = {"pow": lambda v: op.Pow(v, 2), "mul": lambda v: v * v}
"""In opsets without the normalization, ONNX Runtime makes it of powers alone."""
centred = y - mean_over_axes(y)


def deviation(squares: Term) -> App:
    """Return the divisor of a normalization: the square root of a mean of squares."""
    return op.Sqrt(mean_over_axes(squares) + epsilon)


WRITTEN_OUT = tuple(
    rule
    for name, square in SQUARES.items()
    for factored in (scale / deviation(square(centred)),)
    for rule in (
        Rule(
            f"fuse_layer_normalization_{name}",
            centred / deviation(square(centred)),
            op.LayerNormalization(y, ones, axis=-1, epsilon=epsilon),
            when=(floats, last_axis, not_empty),
            why="Runtimes have one fast kernel for layer normalization, and know few of the ways to write it out.",
        ),
        Rule(
            f"fuse_rms_normalization_{name}",
            y / deviation(square(y)),
            op.RMSNormalization(y, ones, axis=-1, epsilon=epsilon),
            when=(floats, last_axis, not_empty),
            why="Runtimes have one fast kernel for RMS normalization, and know few of the ways to write it out.",
        ),
        Rule(
            f"fuse_factored_layer_normalization_{name}",
            y * factored + (offset - mean_over_axes(y) * factored),
            op.LayerNormalization(y, scale, offset, axis=-1, epsilon=epsilon),
            when=(floats, last_axis, not_empty),
            why="TensorFlow multiplies the scale into the deviation first; it is the same layer normalization.",
        ),
    )
)

SPELLINGS = (
    Rule(
        "write_mean_of_squares_with_power",
        mean_over_axes(y * y),
        mean_over_axes(op.Pow(y, 2.0)),
        when=floats,
        pays=last_axis,
        why="In this form ONNX Runtime fuses layer and RMS normalizations where the opset has no such operator.",
        canonical=True,
    ),
)

# -- what follows a layer or RMS normalization ---------------------------------------------------------------------

weights, bias, k = const("w", "N"), const("b", "N", default=0), const("c", "N")
axis = integer("axis")
last = fn.eq(fn.normalize_indices(axis, fn.rank(y)), fn.sub(fn.rank(y), 1))
layer = op.LayerNormalization(y, weights, bias, rest, axis=axis)
rms = op.RMSNormalization(y, weights, rest, axis=axis)
same_weights = fn.eq(fn.dtype(weights), fn.dtype(y))

FOLLOWED = (
    Rule(
        "fuse_mul_into_layer_normalization",
        layer * k,
        op.LayerNormalization(y, weights * k, bias * k, rest, axis=axis),
        when=(last, same_weights),
        why="A factor after a layer normalization goes into its scale and bias.",
    ),
    Rule(
        "fuse_add_into_layer_normalization",
        layer + k,
        op.LayerNormalization(y, weights, bias + k, rest, axis=axis),
        when=(last, same_weights),
        why="A shift after a layer normalization is its bias.",
    ),
    Rule(
        "fuse_mul_into_rms_normalization",
        rms * k,
        op.RMSNormalization(y, weights * k, rest, axis=axis),
        when=(last, same_weights),
        why="A factor after an RMS normalization goes into its scale.",
    ),
)

# -- additions before a layer normalization ------------------------------------------------------------------------
# ONNX Runtime fuses both into SkipLayerNormalization when it loads a model. On a processor its kernel takes several
# times as long as those of the two: 249 us against 40 us for 128 x 384 floats on one thread. Sum is not fused.

first, second, gain, shift = tensor("x", "*b N"), tensor("y", "*b N"), tensor("gain", "N"), tensor("shift", "N")
added, summed = first + second, op.Sum(first, second)
floats_added = fn.is_in(fn.dtype(first), (int(DType.FLOAT), int(DType.FLOAT16), int(DType.BFLOAT16)))


def sum_before(name: str, normalized: Callable[[Term], App]) -> Rule:
    return Rule(
        f"replace_add_before_{name}_with_sum",
        normalized(added),
        normalized(summed),
        when=floats_added,
        why="ONNX Runtime fuses an Add, but no Sum, into the normalization; on processors they run faster apart.",
    )


TRADES = (
    sum_before("layer_normalization", lambda total: op.LayerNormalization(total, gain, shift, rest, axis=axis)),
    sum_before("unshifted_layer_normalization", lambda total: op.LayerNormalization(total, gain, rest, axis=axis)),
    sum_before("written_out_layer_normalization", lambda total: total - mean_over_axes(total)),
)

RULES = (*BATCH, *WRITTEN_OUT, *SPELLINGS, *FOLLOWED)
SWEEPS = {"additions apart from normalizations": TRADES}
