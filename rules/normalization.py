"""Normalizations: written out in primitive operators they become one operator, and what follows goes into them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

from graphopt.base.types import DType
from graphopt.rule import Rule, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.rules.affine import normalization
from graphopt.term import App, Term

# Axes: N batch, C channels, *s space; *n the axes that a layer normalization normalizes.
rest = attributes("rest")

# -- batch normalization -------------------------------------------------------------------------------------------

x, c = tensor("x", "N C *s"), const("c", "C 1*s")
bn, after = normalization("C"), normalization("C", "_after")
each = op.Reshape(c, fn.sizes("C"))
same_type = bn.uniform(x)

BATCH = (
    Rule(
        "fuse_mul_into_bn",
        bn.apply(x) * c,
        bn.apply(x, scale=bn.scale * each, offset=bn.offset * each),
        when=same_type,
        why="A factor per channel after a batch normalization goes into its scale and offset.",
    ),
    Rule(
        "fuse_div_into_bn",
        bn.apply(x) / c,
        bn.apply(x, scale=bn.scale / each, offset=bn.offset / each),
        when=(*same_type, fn.is_not_zero(c)),
        why="A divisor per channel after a batch normalization goes into its scale and offset.",
    ),
    Rule(
        "fuse_add_into_bn",
        bn.apply(x) + c,
        bn.apply(x, offset=bn.offset + each),
        when=same_type,
        why="A shift per channel after a batch normalization goes into its offset.",
    ),
    Rule(
        "fuse_sub_into_bn",
        bn.apply(x) - c,
        bn.apply(x, offset=bn.offset - each),
        when=same_type,
        why="A shift per channel after a batch normalization goes into its offset.",
    ),
    Rule(
        "fuse_add_before_bn",
        bn.apply(x + c),
        bn.apply(x, mean=bn.mean - each),
        when=same_type,
        why="A shift per channel before a batch normalization goes into its mean.",
    ),
    Rule(
        "fuse_sub_before_bn",
        bn.apply(x - c),
        bn.apply(x, mean=bn.mean + each),
        when=same_type,
        why="A shift per channel before a batch normalization goes into its mean.",
    ),
    Rule(
        "fuse_mul_before_bn",
        bn.apply(x * c),
        bn.apply(x, scale=bn.scale * each, offset=bn.shift, mean=bn.mean * 0),
        when=same_type,
        why="A factor per channel before a batch normalization goes into its scale, its mean into its offset.",
    ),
    Rule(
        "fuse_consecutive_bn",
        after.apply(bn.apply(x)),
        bn.apply(x, scale=bn.scale * after.factor, offset=(bn.offset - after.mean) * after.factor + after.offset),
        when=(*same_type, *after.uniform(x)),
        why="Two batch normalizations are one.",
    ),
)

# -- layer and RMS normalization, written out ----------------------------------------------------------------------

y, axes, epsilon = tensor("x", "*b N"), integers("axes"), real("epsilon")
last_axis = fn.eq(fn.normalized(axes, fn.rank(y)), fn.join(fn.sub(fn.rank(y), 1)))
# The operators compute mean and deviation in single precision, whatever the type: too little for DOUBLE.
floats = fn.among(fn.dtype(y), (int(DType.FLOAT), int(DType.FLOAT16), int(DType.BFLOAT16)))
not_empty = fn.le(1, fn.size("N"))  # else ONNX Runtime refuses to run the operators
scale, offset = const("scale", "N"), const("offset", "N")
ones = op.Expand(1.0, fn.sizes("N"))


def mean(value: Term) -> App:
    return op.ReduceMean(value, axes, keepdims=1)


class _Spelling(NamedTuple):
    name: str
    of: Callable[..., App]


SQUARES = (
    _Spelling("pow", lambda v: op.Pow(v, 2)),
    _Spelling("mul", lambda v: v * v),
)
BY_ROOT = (
    # how a value is divided by the square root of another
    _Spelling("div", lambda v, square: v / op.Sqrt(square)),
    _Spelling("reciprocal", lambda v, square: v * op.Reciprocal(op.Sqrt(square))),
    _Spelling("inverse", lambda v, square: v * (1.0 / op.Sqrt(square))),
    _Spelling("power", lambda v, square: v * op.Pow(square, -0.5)),
)
centred = y - mean(y)

WRITTEN_OUT = tuple(
    rule
    for square, by_root in product(SQUARES, BY_ROOT)
    for rule in (
        Rule(
            f"fuse_layer_normalization_{square.name}_{by_root.name}",
            by_root.of(centred, mean(square.of(centred)) + epsilon),
            op.LayerNormalization(y, ones, axis=-1, epsilon=epsilon),
            when=(floats, last_axis, not_empty),
            why="Runtimes have one fast kernel for layer normalization, and know few of the ways to write it out.",
        ),
        Rule(
            f"fuse_rms_normalization_{square.name}_{by_root.name}",
            by_root.of(y, mean(square.of(y)) + epsilon),
            op.RMSNormalization(y, ones, axis=-1, epsilon=epsilon),
            when=(floats, last_axis, not_empty),
            why="Runtimes have one fast kernel for RMS normalization, and know few of the ways to write it out.",
        ),
    )
)


def _factored(square: _Spelling, by_root: _Spelling) -> App:
    """TensorFlow's form: x * f + (offset - mean * f), where f is the scale over the deviation."""
    factor = by_root.of(scale, mean(square.of(centred)) + epsilon)
    return y * factor + (offset - mean(y) * factor)


FACTORED = tuple(
    Rule(
        f"fuse_factored_layer_normalization_{square.name}_{by_root.name}",
        _factored(square, by_root),
        op.LayerNormalization(y, scale, offset, axis=-1, epsilon=epsilon),
        when=(floats, last_axis, not_empty),
        why="TensorFlow multiplies the scale into the deviation first; it is the same layer normalization.",
    )
    for square, by_root in product(SQUARES, BY_ROOT)
)

# -- what follows a layer or RMS normalization ---------------------------------------------------------------------

weights, bias, k = const("w", "N"), const("b", "N", default=0), const("c", "N")
axis = integer("axis")
last = fn.eq(fn.normalized(axis, fn.rank(y)), fn.sub(fn.rank(y), 1))
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
        "fuse_div_into_layer_normalization",
        layer / k,
        op.LayerNormalization(y, weights / k, bias / k, rest, axis=axis),
        when=(last, same_weights, fn.is_not_zero(k)),
        why="A divisor after a layer normalization goes into its scale and bias.",
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

RULES = (*BATCH, *WRITTEN_OUT, *FACTORED, *FOLLOWED)
