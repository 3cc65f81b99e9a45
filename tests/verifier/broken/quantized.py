"""Wrong rules about quantization: other scales and zero points, ranges and precisions forgotten. None may be proved."""

from __future__ import annotations

from collections.abc import Callable

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.language.terms import App, Term

x, y, q = tensor("x"), tensor("y"), tensor("q")
s, t, z, u = const("s", ""), const("t", ""), const("z", ""), const("u", "")
rows, image, matrix = const("s", "N"), tensor("x", "B C H"), tensor("q", "N N")
a, b, w = tensor("a", "M K"), tensor("b", "K N"), const("w", "O C K")
one, other = tensor("v", ""), tensor("e", "")
MINE = (fn.is_scale(s), fn.eq(fn.dtype(s), int(DType.FLOAT)))


def quantize(value: Term, scale: Term = s, zero: Term = z) -> App:
    return op.QuantizeLinear(value, scale, zero)


def dequantize(value: Term, scale: Term = s, zero: Term = z) -> App:
    return op.DequantizeLinear(value, scale, zero)


def is_type(term: Term, *types: DType) -> App:
    return fn.is_in(fn.dtype(term), tuple(map(int, types)))


def shifted(by: int, to: DType) -> Callable[[Term], App]:
    return lambda integers: op.Cast(op.Cast(integers, to=int(DType.INT32)) + by, to=int(to))


less = shifted(127, DType.UINT8)
SIGNED, UNSIGNED = is_type(z, DType.INT8), is_type(z, DType.UINT8)
there = dequantize(quantize(x))

REFUTED = (
    Rule("what_is_quantized_comes_back", there, x, when=MINE),
    Rule("quantize_by_another_scale", quantize(dequantize(q), t), q, when=(*MINE, fn.is_scale(t))),
    Rule("quantize_by_another_zero_point", quantize(dequantize(q), s, u), q, when=MINE),
    Rule("quantize_once", quantize(dequantize(quantize(x)), t, u), quantize(x, t, u), when=MINE),
    Rule("no_relu_before_signed", quantize(op.Relu(x)), quantize(x), when=(*MINE, SIGNED, fn.is_zero(z))),
    Rule("no_relu_before_zero_point", quantize(op.Relu(x)), quantize(x), when=(*MINE, UNSIGNED)),
    Rule("relu_as_upper_bound", quantize(op.Relu(x)), op.Min(quantize(x), z), when=MINE),
    Rule("relu_of_integers", op.Relu(dequantize(q)), dequantize(op.Relu(q)), when=(*MINE, SIGNED)),
    Rule("guard_of_any", op.Where(op.IsNaN(x), dequantize(q), x), x),
    Rule(
        "turned_along_the_same_axis",
        op.Transpose(dequantize(matrix, rows, const("z", "N")), perm=(1, 0)),
        op.DequantizeLinear(op.Transpose(matrix, perm=(1, 0)), rows, const("z", "N")),
    ),
    Rule(
        "joined_by_the_first_scale", op.Concat(quantize(x), quantize(y, t), axis=0), quantize(op.Concat(x, y, axis=0))
    ),
    Rule(
        "sum_of_integers",
        dequantize(op.Cast(q + q, to=int(DType.INT8))),
        dequantize(q) + dequantize(q),
        when=(*MINE, is_type(q, DType.INT8)),
    ),
    Rule("no_zero_points", op.MatMulInteger(a, b, one, other), op.MatMulInteger(a, b)),
    Rule("zero_point_of_the_other", op.MatMulInteger(a, a, one, other), op.MatMulInteger(a, a, other, one)),
    Rule("no_zero_point_of_an_image", op.ConvInteger(image, w, one), op.ConvInteger(image, w)),
    Rule(
        "product_by_another_scale", op.QLinearMatMul(a, s, z, b, t, u, s, z), op.QLinearMatMul(a, s, z, b, t, u, t, z)
    ),
    Rule(
        "no_bias",
        op.QLinearConv(image, s, z, w, t, u, s, z, const("b", "O")),
        op.QLinearConv(image, s, z, w, t, u, s, z),
    ),
    Rule(
        "dynamic_of_what_is_positive",
        op.DynamicQuantizeLinear.split(3, x)[0],
        op.DynamicQuantizeLinear.split(3, op.Relu(x))[0],
    ),
    Rule("steps_of_any_scale", quantize(dequantize(q)), q, when=fn.eq(fn.dtype(s), int(DType.FLOAT))),
    Rule("integers_of_any_size", op.QuantizeLinear(op.DequantizeLinear(q, s), s, z), q, when=MINE),
    Rule("no_relu_by_any_scale", quantize(op.Relu(x)), quantize(x), when=(UNSIGNED, fn.is_zero(z))),
    Rule("pool_by_any_scale", op.GlobalMaxPool(dequantize(q)), dequantize(op.GlobalMaxPool(q))),
)

UNPROVED = (
    Rule(
        "less_without_sign",
        there,
        dequantize(quantize(x, s, less(z)), s, less(z)),
        when=(*MINE, SIGNED, *(is_type(v, DType.FLOAT) for v in (x, s))),
    ),
    Rule("steps_in_eight_digits", quantize(dequantize(q)), q, when=(fn.is_scale(s), is_type(s, DType.BFLOAT16))),
    Rule("words_in_halves", quantize(dequantize(q)), q, when=(fn.is_scale(s), is_type(s, DType.FLOAT16))),
    Rule("no_guard_by_any_scale", op.Where(op.IsNaN(dequantize(q)), one, dequantize(q)), dequantize(q)),
)
"""ONNX Runtime has no kernels for these types, or nothing that is drawn shows it."""
