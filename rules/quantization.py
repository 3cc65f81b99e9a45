"""Quantized models: what ONNX Runtime needs to see to compute in integers, in the integers for which it has kernels.

A value in such a model is quantized and dequantized on the spot (QuantizeLinear, DequantizeLinear), and a runtime puts
an operator on integers in the place of one that stands between the two. All of this is exact, but for NaN: what is made
of it when it is quantized is not defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.base.types import DType
from graphopt.rule import Rule, attributes, binary, const, fn, op, tensor
from graphopt.rules.names import snake
from graphopt.term import App, Term

x, y, q = tensor("x"), tensor("y", ""), tensor("q")
scale, zero = const("s", ""), const("z", "")
other = const("t", "")
beside = binary("g")
rest, inner = attributes("rest"), attributes("inner")


def of_type(dtype: DType, *terms: Term) -> tuple[Term, ...]:
    return tuple(fn.among(fn.dtype(term), (int(dtype),)) for term in terms)


USUAL = (fn.is_scale(scale), *of_type(DType.FLOAT, scale))
"""Scales with which integers of 16 bits come back as they were."""

# -- what is quantized again comes back --------------------------------------------------------------------------------


def dequantized(value: Term) -> App:
    return op.DequantizeLinear(value, scale, zero, inner)


BACK = (
    Rule(
        "eliminate_quantize_after_dequantize",
        op.QuantizeLinear(dequantized(q), scale, zero, rest),
        q,
        when=USUAL,
        why="So many steps of a scale are so many steps.",
    ),
    Rule(
        "eliminate_nan_guard_after_dequantize",
        op.Where(op.IsNaN(dequantized(q)), y, dequantized(q)),
        dequantized(q),
        when=USUAL,
        why="No integer stands for NaN.",
    ),
    Rule(
        "eliminate_relu_before_quantize",
        op.QuantizeLinear(op.Relu(x), scale, zero, rest),
        op.QuantizeLinear(x, scale, zero, rest),
        when=(fn.is_scale(scale), fn.is_zero(zero), fn.among(fn.dtype(zero), (int(DType.UINT8), int(DType.UINT16)))),
        why="What is below the zero point is cut off by the type.",
    ),
)

# -- the integers for which there are kernels --------------------------------------------------------------------------
# On x86, ONNX Runtime computes with activations that have no sign and weights that have one: of others its operators
# between Q and DQ stay floats, or run on slower kernels.

SIGN = 128


def without_sign(integers_: Term) -> App:
    """8-bit integers, shifted so that none is negative."""
    return op.Cast(op.Cast(integers_, to=int(DType.INT32)) + SIGN, to=int(DType.UINT8))


def with_sign(integers_: Term) -> App:
    return op.Cast(op.Cast(integers_, to=int(DType.INT32)) - SIGN, to=int(DType.INT8))


weights, filters = const("w"), const("w", "M I *k")
weight_scale, weight_zero = const("ws", ""), const("wz", "")


def floats(weights: Term, shifted: Callable[[Term], Term] = lambda integers: integers) -> App:
    """Return what quantized weights stand for, if these and their zero point are shifted alike."""
    return op.DequantizeLinear(shifted(weights), weight_scale, shifted(weight_zero), rest)


ACTIVATIONS = (
    Rule(
        "quantize_without_sign",
        op.DequantizeLinear(op.QuantizeLinear(x, scale, zero, rest), other, zero, inner),
        op.DequantizeLinear(op.QuantizeLinear(x, scale, without_sign(zero), rest), other, without_sign(zero), inner),
        when=(*of_type(DType.INT8, zero), *of_type(DType.FLOAT, x, scale, other)),
        why="The same steps are counted from another number; some runtimes have kernels for one kind of integers only.",
    ),
    Rule(
        "move_relu_behind_quantize",
        op.QuantizeLinear(op.Relu(x), scale, zero, rest),
        op.Clip(op.QuantizeLinear(x, scale, zero, rest), zero),
        when=(fn.is_scale(scale), *of_type(DType.FLOAT, x, scale)),
        why="What stands before can be computed in integers, if it is quantized at once.",
    ),
    Rule(
        "quantize_constants_without_sign",
        beside(x, op.DequantizeLinear(weights, scale, zero, rest)),
        beside(x, op.DequantizeLinear(without_sign(weights), scale, without_sign(zero), rest)),
        when=(*of_type(DType.INT8, weights), *of_type(DType.FLOAT, x, scale)),
        why="The other operand has none, and some runtimes have kernels for two of a kind only.",
    ),
)
QUICKEST = "Products of integers without a sign by such with one have the quickest instructions."
bias, others = tensor("b"), attributes("others")
biases = tensor("b", "M")
PRODUCTS: Mapping[str, Callable[[Term], App]] = {
    "MatMul": lambda weights: x @ weights,
    "Gemm": lambda weights: op.Gemm(x, weights, bias, others),
    "Gemm_without_bias": lambda weights: op.Gemm(x, weights, others),
    "Conv": lambda filters: op.Conv(x, filters, biases, others),
    "Conv_without_bias": lambda filters: op.Conv(x, filters, others),
}
WEIGHTS = (
    *(
        Rule(
            f"give_weights_of_{snake(name)}_a_sign",
            apply(floats(given)),
            apply(floats(given, with_sign)),
            when=of_type(DType.UINT8, given),
            why=QUICKEST,
        )
        for name, apply in PRODUCTS.items()
        for given in (filters if name.startswith("Conv") else weights,)
    ),
    Rule(
        "give_weights_of_qlinear_conv_a_sign",
        op.QLinearConv(x, scale, zero, filters, weight_scale, weight_zero, other, y, biases, rest),
        op.QLinearConv(
            x, scale, zero, with_sign(filters), weight_scale, with_sign(weight_zero), other, y, biases, rest
        ),
        when=of_type(DType.UINT8, x, y, filters),
        why=QUICKEST,
    ),
    Rule(
        "give_weights_of_qlinear_matmul_a_sign",
        op.QLinearMatMul(x, scale, zero, weights, weight_scale, weight_zero, other, y),
        op.QLinearMatMul(x, scale, zero, with_sign(weights), weight_scale, with_sign(weight_zero), other, y),
        when=(*of_type(DType.UINT8, x, y, weights), *of_type(DType.FLOAT, scale)),
        why=QUICKEST,
    ),
    Rule(
        "give_weights_of_matmul_integer_a_sign",
        op.MatMulInteger(x, weights, y, weight_zero),
        op.MatMulInteger(x, with_sign(weights), y, with_sign(weight_zero)),
        when=of_type(DType.UINT8, x, weights),
        why=QUICKEST,
    ),
    Rule(
        "give_weights_of_conv_integer_a_sign",
        op.ConvInteger(x, filters, y, weight_zero, rest),
        op.ConvInteger(x, with_sign(filters), y, with_sign(weight_zero), rest),
        when=of_type(DType.UINT8, x, filters),
        why=QUICKEST,
    ),
)

RULES = BACK
TRADES = (*ACTIVATIONS, *WEIGHTS)
SWEEPS = {"integers for which there are kernels": TRADES}
