"""Quantized models: what ONNX Runtime needs to see to compute in integers, in the integers for which it has kernels.

A value in such a model is quantized and dequantized on the spot (QuantizeLinear, DequantizeLinear), and a runtime puts
an operator on integers in the place of one that stands between the two. All of this is exact, but for NaN: what is made
of it when it is quantized is not defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

from graphopt.base.dtype import DType
from graphopt.rule import (
    App,
    Rule,
    Term,
    TermLike,
    attributes,
    binary,
    const,
    define,
    fn,
    integer,
    microsoft,
    op,
    real,
    tensor,
)
from graphopt.rules.names import snake_case

x, y, q = tensor("x"), tensor("y", ""), tensor("q")
scale, zero = const("s", ""), const("z", "")
other = const("t", "")
beside = binary("g")
rest, inner = attributes("rest"), attributes("inner")


def has_type(dtype: DType, *terms: Term) -> tuple[Term, ...]:
    return tuple(fn.is_in(fn.dtype(term), (int(dtype),)) for term in terms)


USUAL = (fn.is_scale(scale), *has_type(DType.FLOAT, scale))
"""Scales with which integers of 16 bits come back as they were."""

# -- operators of ONNX Runtime on integers -----------------------------------------------------------------------------
# Between two that ONNX defines they hide of what type the integers are, if nothing is known of them.


def quantized_operand(name: str) -> tuple[Term, Term, Term]:
    """Return integers, and the scale and zero point by which they stand for numbers."""
    return tensor(name), *quantization_parameters(name)


def quantization_parameters(name: str) -> tuple[Term, Term]:
    return tensor(f"{name}_scale", ""), tensor(f"{name}_zero", "")


one, two, made = quantized_operand("a"), quantized_operand("b"), quantization_parameters("y")
image = tensor("a", "N C *s"), *quantization_parameters("a")
slope, axis = real("slope"), integer("axis")
added = tensor("c", "N")


def quantize(value: App) -> App:
    return op.QuantizeLinear(value, *made)


def dequantize_operand(operand: tuple[Term, Term, Term]) -> App:
    return op.DequantizeLinear(*operand)


define(microsoft.QLinearAdd(*one, *two, *made), quantize(dequantize_operand(one) + dequantize_operand(two)))
define(microsoft.QLinearSigmoid(*one, *made), quantize(op.Sigmoid(dequantize_operand(one))))
define(
    microsoft.QLinearLeakyRelu(*one, *made, alpha=slope),
    quantize(op.LeakyRelu(dequantize_operand(one), alpha=slope)),
    alpha=0.01,
)
define(
    microsoft.QLinearGlobalAveragePool(*image, *made, channels_last=0),
    quantize(op.GlobalAveragePool(dequantize_operand(image))),
    channels_last=0,
)


def transpose_if(value: Term, is_turned: int) -> Term:
    return op.Transpose(value, perm=(1, 0)) if is_turned else value


# The kernel adds up in 32 bits, the bias, too: a Gemm of floats would not wrap around.
for across, down in product((0, 1), repeat=2):
    rows, columns = tensor("a", "K M" if across else "M K"), tensor("b", "N K" if down else "K N")
    usual: Mapping[str, TermLike] = {name: said for name, said in (("transA", across), ("transB", down)) if not said}
    total = op.MatMulInteger(transpose_if(rows, across), transpose_if(columns, down), one[2], two[2])
    for given, summed in ((None, total), (added, total + added)):
        define(
            microsoft.QGemm(rows, *one[1:], columns, *two[1:], given, *made, alpha=1.0, transA=across, transB=down),
            quantize(op.DequantizeLinear(summed, one[1] * two[1])),
            (),
            alpha=1.0,
            **usual,
        )
for count in (2, 3, 4):
    joined = [quantized_operand(f"x{place}") for place in range(count)]
    define(
        microsoft.QLinearConcat(*made, *(part for operand in joined for part in operand), axis=axis),
        quantize(op.Concat(*map(dequantize_operand, joined), axis=axis)),
    )

# -- what is quantized again comes back --------------------------------------------------------------------------------


def dequantize(value: Term) -> App:
    return op.DequantizeLinear(value, scale, zero, inner)


BACK = (
    Rule(
        "eliminate_quantize_after_dequantize",
        op.QuantizeLinear(dequantize(q), scale, zero, rest),
        q,
        when=USUAL,
        why="So many steps of a scale are so many steps.",
    ),
    Rule(
        "eliminate_nan_guard_after_dequantize",
        op.Where(op.IsNaN(dequantize(q)), y, dequantize(q)),
        dequantize(q),
        when=USUAL,
        why="No integer stands for NaN.",
    ),
    Rule(
        "eliminate_relu_before_quantize",
        op.QuantizeLinear(op.Relu(x), scale, zero, rest),
        op.QuantizeLinear(x, scale, zero, rest),
        when=(fn.is_scale(scale), fn.is_zero(zero), fn.is_in(fn.dtype(zero), (int(DType.UINT8), int(DType.UINT16)))),
        why="What is below the zero point is cut off by the type.",
    ),
)

# -- the integers for which there are kernels --------------------------------------------------------------------------
# On x86, ONNX Runtime computes with activations that have no sign and weights that have one: of others its operators
# between Q and DQ stay floats, or run on slower kernels.

SIGN = 128


def to_unsigned(integers_: Term) -> App:
    """8-bit integers, shifted so that none is negative."""
    return op.Cast(op.Cast(integers_, to=int(DType.INT32)) + SIGN, to=int(DType.UINT8))


def to_signed(integers_: Term) -> App:
    return op.Cast(op.Cast(integers_, to=int(DType.INT32)) - SIGN, to=int(DType.INT8))


weights, filters = const("w"), const("w", "M I *k")
weight_scale, weight_zero = const("ws", ""), const("wz", "")


def dequantize_weights(weights: Term, shifted: Callable[[Term], Term] = lambda integers: integers) -> App:
    """Return what quantized weights stand for, if these and their zero point are shifted alike."""
    return op.DequantizeLinear(shifted(weights), weight_scale, shifted(weight_zero), rest)


ACTIVATIONS = (
    Rule(
        "quantize_without_sign",
        op.DequantizeLinear(op.QuantizeLinear(x, scale, zero, rest), other, zero, inner),
        op.DequantizeLinear(op.QuantizeLinear(x, scale, to_unsigned(zero), rest), other, to_unsigned(zero), inner),
        when=(*has_type(DType.INT8, zero), *has_type(DType.FLOAT, x, scale, other)),
        why="The same steps are counted from another number; some runtimes have kernels for one kind of integers only.",
    ),
    Rule(
        "move_relu_behind_quantize",
        op.QuantizeLinear(op.Relu(x), scale, zero, rest),
        op.Clip(op.QuantizeLinear(x, scale, zero, rest), zero),
        when=(fn.is_scale(scale), *has_type(DType.FLOAT, x, scale)),
        why="What stands before can be computed in integers, if it is quantized at once.",
    ),
    Rule(
        "quantize_constants_without_sign",
        beside(x, op.DequantizeLinear(weights, scale, zero, rest)),
        beside(x, op.DequantizeLinear(to_unsigned(weights), scale, to_unsigned(zero), rest)),
        when=(*has_type(DType.INT8, weights), *has_type(DType.FLOAT, x, scale)),
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
            f"give_weights_of_{snake_case(name)}_a_sign",
            apply(dequantize_weights(given)),
            apply(dequantize_weights(given, to_signed)),
            when=has_type(DType.UINT8, given),
            why=QUICKEST,
        )
        for name, apply in PRODUCTS.items()
        for given in (filters if name.startswith("Conv") else weights,)
    ),
    *(
        Rule(
            f"give_weights_of_qlinear_conv{without}_a_sign",
            op.QLinearConv(x, scale, zero, filters, weight_scale, weight_zero, other, y, *more, rest),
            op.QLinearConv(
                x, scale, zero, to_signed(filters), weight_scale, to_signed(weight_zero), other, y, *more, rest
            ),
            when=has_type(DType.UINT8, x, y, filters),
            why=QUICKEST,
        )
        for without, more in (("", (biases,)), ("_without_bias", ()))
    ),
    Rule(
        "give_weights_of_qlinear_matmul_a_sign",
        op.QLinearMatMul(x, scale, zero, weights, weight_scale, weight_zero, other, y),
        op.QLinearMatMul(x, scale, zero, to_signed(weights), weight_scale, to_signed(weight_zero), other, y),
        when=(*has_type(DType.UINT8, x, y, weights), *has_type(DType.FLOAT, scale)),
        why=QUICKEST,
    ),
    Rule(
        "give_weights_of_matmul_integer_a_sign",
        op.MatMulInteger(x, weights, y, weight_zero),
        op.MatMulInteger(x, to_signed(weights), y, to_signed(weight_zero)),
        when=has_type(DType.UINT8, x, weights),
        why=QUICKEST,
    ),
    Rule(
        "give_weights_of_conv_integer_a_sign",
        op.ConvInteger(x, filters, y, weight_zero, rest),
        op.ConvInteger(x, to_signed(filters), y, to_signed(weight_zero), rest),
        when=has_type(DType.UINT8, x, filters),
        why=QUICKEST,
    ),
)

# -- integers without a sign between operators on integers ------------------------------------------------------------
# Each product is given such ones and makes such ones. Between two of them, what one puts on the other takes off.

OF_INTEGERS: Mapping[str, Callable[[Term, Term, Term], App]] = {
    "qlinear_conv": lambda x, zero, made: op.QLinearConv(
        x, scale, zero, filters, weight_scale, weight_zero, other, made, biases, rest
    ),
    "qlinear_conv_without_bias": lambda x, zero, made: op.QLinearConv(
        x, scale, zero, filters, weight_scale, weight_zero, other, made, rest
    ),
    "qlinear_matmul": lambda x, zero, made: op.QLinearMatMul(
        x, scale, zero, weights, weight_scale, weight_zero, other, made
    ),
}
made_zero = const("yz", "")
single = has_type(DType.FLOAT, scale)
SIGNLESS = (
    *(
        Rule(
            f"compute_{name}_without_sign",
            apply(x, zero, made_zero),
            to_signed(apply(to_unsigned(x), to_unsigned(zero), to_unsigned(made_zero))),
            when=(*has_type(DType.INT8, x, zero, made_zero), *single),
            why="The same steps are counted from another number, of which products are tens of times as quick.",
        )
        for name, apply in OF_INTEGERS.items()
    ),
    *(
        Rule(
            f"eliminate_sign_before_{name}",
            apply(to_unsigned(to_signed(x)), zero, made_zero),
            apply(x, zero, made_zero),
            when=(*has_type(DType.UINT8, x, zero), *single),
            why="What is taken off was put on by the operator before.",
        )
        for name, apply in OF_INTEGERS.items()
    ),
    Rule(
        "quantize_to_integers_without_sign",
        to_unsigned(op.QuantizeLinear(x, scale, zero, rest)),
        op.QuantizeLinear(x, scale, to_unsigned(zero), rest),
        when=(*has_type(DType.INT8, zero), *has_type(DType.FLOAT, x, scale)),
        why="It is quantized to the type that is read.",
    ),
    Rule(
        "dequantize_integers_without_sign",
        op.DequantizeLinear(to_signed(x), scale, zero, rest),
        op.DequantizeLinear(x, scale, to_unsigned(zero), rest),
        when=(*has_type(DType.UINT8, x), *single),
        why="They stand for the same numbers, counted from another zero point.",
    ),
)

RULES = BACK
TRADES = (*ACTIVATIONS, *WEIGHTS, *SIGNLESS)
SWEEPS = {
    "integers for which there are kernels": (*ACTIVATIONS, *WEIGHTS),
    "integers without a sign between products": SIGNLESS,
}
