"""Activations: written out in primitive operators they become one operator, in the form that runtimes fuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from math import pi, sqrt
from typing import NamedTuple

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, const, fn, op, real, tensor

x, y = tensor("x"), tensor("y")
a, b, low, high = real("a"), real("b"), real("low"), real("high")
floats = fn.is_float(fn.dtype(x))
# A number that is an attribute is kept in single precision: too little in DOUBLE.
single = fn.is_in(fn.dtype(x), (int(DType.FLOAT), int(DType.FLOAT16), int(DType.BFLOAT16)))

# -- clamps: Relu, Clip, Min and Max with numbers ------------------------------------------------------------------


class Clamp(NamedTuple):
    """min(max(x, low), high), without the bound that is None."""

    name: str
    low: TermLike | None
    high: TermLike | None

    def apply(self, value: Term) -> App:
        if self.low == 0 and self.high is None:
            return op.Relu(value)
        return op.Clip(value, *((self.low,) if self.high is None else (self.low, self.high)))


def clamps(low: Term, high: Term) -> tuple[Clamp, ...]:
    return Clamp("relu", 0, None), Clamp("floor", low, None), Clamp("ceiling", None, high), Clamp("clip", low, high)


def _compose_clamps(inner: Clamp, outer: Clamp) -> Clamp:
    """min(max(min(max(x, a), b), c), d) = min(max(x, max(a, c)), min(max(b, c), d))."""
    lows = [bound for bound in (inner.low, outer.low) if bound is not None]
    ceiling = inner.high
    if ceiling is not None and outer.low is not None:
        ceiling = fn.maximum(ceiling, outer.low)
    highs = [bound for bound in (ceiling, outer.high) if bound is not None]
    lowest = None if not lows else lows[0] if len(set(lows)) == 1 else fn.maximum(*lows)
    return Clamp("", lowest, None if not highs else highs[0] if len(highs) == 1 else fn.minimum(*highs))


CLAMPS = (
    Rule(
        "replace_clip_with_relu",
        op.Clip(x, 0.0),
        op.Relu(x),
        when=floats,
        why="Relu is fused into the convolution or product before it.",
    ),
    Rule(
        "replace_max_with_clip",
        op.Max(x, low),
        op.Clip(x, low),
        when=floats,
        why="Clip is fused into the convolution before it, and merges with other clamps.",
    ),
    Rule(
        "replace_min_with_clip",
        op.Min(x, high),
        op.Clip(x, None, high),
        when=floats,
        why="Clip is fused into the convolution before it, and merges with other clamps.",
    ),
    *(
        Rule(
            f"fuse_{inner.name}_then_{outer.name}",
            outer.apply(inner.apply(x)),
            _compose_clamps(inner, outer).apply(x),
            when=floats,
            why="Two clamps are one.",
        )
        for inner, outer in product(clamps(a, b), clamps(low, high))
    ),
)

# -- HardSigmoid and HardSwish -------------------------------------------------------------------------------------

relu6 = op.Clip(x + 3.0, 0.0, 6.0)
sixth: Term = fn.truediv(1.0, 6.0)
hard_sigmoid = op.HardSigmoid(x, alpha=sixth, beta=0.5)

HARD_SWISHES = (("_sixth_last", (x * relu6) * sixth), ("_sixth_first", (x * sixth) * relu6))
"""HardSwish written out, by where the division is."""

HARD = (
    Rule(
        "fuse_hard_sigmoid",
        relu6 * sixth,
        hard_sigmoid,
        when=single,
        why="HardSigmoid is one pass, and is fused into the convolution before it.",
    ),
    Rule(
        "fuse_hard_sigmoid_affine",
        op.Clip(x * a + b, 0.0, 1.0),
        op.HardSigmoid(x, alpha=a, beta=b),
        when=single,
        why="HardSigmoid is one pass, and is fused into the convolution before it.",
    ),
    *(
        Rule(
            f"fuse_hard_swish{order}",
            written_out,
            op.HardSwish(x),
            when=single,
            why="HardSwish is fused into the convolution before it, and does not leave its blocked layout.",
        )
        for order, written_out in (("", x * hard_sigmoid), *HARD_SWISHES)
    ),
    *(
        Rule(
            f"fuse_hard_sigmoid{order}",
            written_out,
            x * hard_sigmoid,
            when=single,
            why="In opsets without HardSwish this is what does not leave the blocked layout of convolutions.",
        )
        for order, written_out in HARD_SWISHES
    ),
)

# -- Gelu ----------------------------------------------------------------------------------------------------------

HALVES: tuple[tuple[str, Callable[[Term, App], App]], ...] = (
    # x · ½ · (1 + t), in every order
    ("half_last", lambda v, t: (v * (t + 1.0)) * 0.5),
    ("half_first", lambda v, t: (v * 0.5) * (t + 1.0)),
    ("half_inner", lambda v, t: v * ((t + 1.0) * 0.5)),
    ("half_spread", lambda v, t: v * (t * 0.5 + 0.5)),
)
COEFFICIENT = 0.044715
root = sqrt(2 / pi)
CUBICS: tuple[tuple[str, App], ...] = (
    # √(2/π) · (x + 0.044715 x³)
    ("pow", (x + op.Pow(x, 3.0) * COEFFICIENT) * root),
    ("mul", (x + (x * x * x) * COEFFICIENT) * root),
    ("left_mul", (x + (x * COEFFICIENT * x) * x) * root),
    ("factored", (x * root) * ((x * x) * COEFFICIENT + 1.0)),
    ("factored_left", (x * root) * ((x * COEFFICIENT) * x + 1.0)),
    ("factored_pow", (x * root) * (op.Pow(x, 2.0) * COEFFICIENT + 1.0)),
    ("root_last", (x * ((x * x) * COEFFICIENT + 1.0)) * root),
)

GELU = (
    *(
        Rule(
            f"fuse_gelu_{order}",
            halved(x, op.Erf(x * fn.truediv(1.0, fn.sqrt(2.0)))),
            op.Gelu(x),
            when=floats,
            why="Runtimes have one fast kernel for Gelu, and know few of the ways to write it out.",
        )
        for order, halved in HALVES
    ),
    *(
        Rule(
            f"fuse_gelu_tanh_{spelling}_{order}",
            halved(x, op.Tanh(cubic)),
            op.Gelu(x, approximate="tanh"),
            when=single,
            why="Runtimes have one fast kernel for Gelu, and know few of the ways to write it out.",
        )
        for (spelling, cubic), (order, halved) in product(CUBICS, HALVES)
    ),
)

# In opsets without Gelu, ONNX Runtime makes it of these forms: erf of a quotient, tanh of one cubic. It fuses a half
# that comes last, too, but a factor that follows may be folded into that, and one form is enough for other rules.
GELU_AS_FUSED: Mapping[str, Callable[[Term], App]] = {
    "": lambda v: (v * 0.5) * (op.Erf(v / sqrt(2)) + 1.0),
    "_tanh": lambda v: (v * 0.5) * (op.Tanh((v + op.Pow(v, 3.0) * COEFFICIENT) * root) + 1.0),
}
GELU_SPELLINGS = tuple(
    Rule(
        f"reorder_gelu{kind}_{spelling}_{order}",
        halved(x, inner),
        fused(x),
        when=floats,
        why="ONNX Runtime fuses this order of the operators into one fast kernel.",
        canonical=True,
    )
    for (kind, fused), inners in zip(
        GELU_AS_FUSED.items(),
        (
            (("div", op.Erf(x / sqrt(2))), ("mul", op.Erf(x * sqrt(1 / 2)))),
            tuple((spelling, op.Tanh(cubic)) for spelling, cubic in CUBICS),
        ),
        strict=True,
    )
    for spelling, inner in inners
    for order, halved in HALVES
    if (spelling, order) not in {("div", "half_first"), ("pow", "half_first")}  # those are the forms
)

# -- others --------------------------------------------------------------------------------------------------------

at_most_one = fn.le(a, 1.0)
exponential = op.Exp(op.Neg(x))

OTHERS = (
    Rule(
        "replace_prelu_with_leaky_relu",
        op.PRelu(x, a),
        op.LeakyRelu(x, alpha=a),
        when=single,
        why="With one slope for all it is LeakyRelu, which is fused into the convolution before it.",
    ),
    Rule(
        "fuse_leaky_relu_from_max",
        op.Max(x, x * a),
        op.LeakyRelu(x, alpha=a),
        when=(single, at_most_one),
        why="LeakyRelu is one pass, and is fused into the convolution before it.",
    ),
    Rule(
        "fuse_leaky_relu_from_where",
        op.Where(op.Greater(x, 0.0), x, x * a),
        op.LeakyRelu(x, alpha=a),
        when=single,
        why="LeakyRelu is one pass, and is fused into the convolution before it.",
    ),
    Rule(
        "replace_swish_with_sigmoid",
        op.Swish(x, alpha=1.0),
        x * op.Sigmoid(x),
        when=floats,
        why="Runtimes fuse the two operators, and have no kernel for Swish.",
    ),
    Rule(
        "replace_scaled_swish_with_sigmoid",
        op.Swish(x, alpha=a),
        x * op.Sigmoid(x * a),
        when=single,
        why="Runtimes fuse these operators, and have no kernel for Swish.",
    ),
    Rule(
        "fuse_sigmoid_from_reciprocal",
        op.Reciprocal(exponential + 1.0),
        op.Sigmoid(x),
        when=floats,
        why="Sigmoid is one pass, and is fused into what is before it.",
    ),
    Rule(
        "fuse_sigmoid_from_div",
        1.0 / (exponential + 1.0),
        op.Sigmoid(x),
        when=floats,
        why="Sigmoid is one pass, and is fused into what is before it.",
    ),
    Rule(
        "fuse_softsign",
        x / (op.Abs(x) + 1.0),
        op.Softsign(x),
        when=floats,
        why="Softsign is one pass.",
    ),
)

# -- PRelu ---------------------------------------------------------------------------------------------------------

slope = const("slope")
image, of_channel = tensor("image", "N C *s"), const("slope", "C 1*s")

PRELU = (
    Rule(
        "replace_prelu_with_relu",
        op.PRelu(image, of_channel),
        image * op.Unsqueeze(of_channel, (0,)) + op.Relu(image) * op.Unsqueeze(1.0 - of_channel, (0,)),
        when=fn.is_float(fn.dtype(image)),
        why="Runtimes have no PRelu in the blocked layout of convolutions, but Relu, sums, and products by channel.",
    ),
    Rule(
        "replace_prelu_with_clamps",
        op.PRelu(x, slope),
        op.Relu(x) + op.Min(x, 0.0) * slope,
        when=floats,
        why="Runtimes compute PRelu one element after the other, and these operators several at once.",
    ),
)

RULES = (*CLAMPS, *HARD, *GELU, *GELU_SPELLINGS, *OTHERS)
TRADES = PRELU
