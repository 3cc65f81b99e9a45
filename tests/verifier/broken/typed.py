"""Wrong rules that forget an element type: of a mask, an exponent, a text; or what has become one number in a float."""

from __future__ import annotations

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.language.terms import App, Term, TermLike

x, y, z = tensor("x"), tensor("y"), tensor("z")
q, k, v = tensor("q", "B H S D"), tensor("k", "B H L D"), tensor("v", "B H L V")
mask, image = tensor("m", "P Q S L"), tensor("x", "N C H W")
rows, columns, weights = tensor("x", "M N"), tensor("y", "M N"), const("s", "N")
scale, bias, mean, variance = (tensor(name, "C") for name in ("s", "b", "e", "v"))
BOOL, FLOAT, DOUBLE, HALF, INT32, INT64 = map(int, (DType.BOOL, 1, DType.DOUBLE, DType.FLOAT16, DType.INT32, 7))
TEXT, UINT8, perm = int(DType.STRING), int(DType.UINT8), integers("p")


def to(value: TermLike, dtype: TermLike) -> App:
    return op.Cast(value, to=dtype)


def of(dtype: int, *values: Term) -> tuple[Term, ...]:
    return tuple(fn.eq(fn.dtype(value), dtype) for value in values)


def masked(given: Term, **attributes: TermLike) -> App:
    return op.Attention(q, k, v, given, **attributes)


def in_double(*values: Term) -> tuple[App, ...]:
    return tuple(to(value, DOUBLE) for value in values)


fits = (
    *(fn.lt(0, fn.size(axis)) for axis in "BHSLDV"),
    fn.any_of(fn.eq(fn.size("P"), 1), fn.eq(fn.size("P"), fn.size("B"))),
    fn.any_of(fn.eq(fn.size("Q"), 1), fn.eq(fn.size("Q"), fn.size("H"))),
)

MASKS = (
    Rule("mask_of_truths_added", masked(to(mask, FLOAT)), masked(mask), when=(*fits, *of(BOOL, mask), *of(FLOAT, q))),
    Rule("scaled_mask_of_truths_added", masked(to(mask, FLOAT), scale=1.0), masked(mask, scale=1.0),
         when=(*fits, *of(BOOL, mask), *of(FLOAT, q))),
    Rule("mask_of_truths_added_in_half", masked(to(mask, HALF)), masked(mask),
         when=(*fits, *of(BOOL, mask), *of(FLOAT, q))),
    Rule("mask_like_the_queries", masked(op.CastLike(mask, q)), masked(mask),
         when=(*fits, *of(BOOL, mask), *of(FLOAT, q))),
    Rule("mask_of_numbers_hides", masked(mask), masked(to(mask, BOOL)), when=(*fits, *of(FLOAT, mask, q))),
)  # fmt: skip

POWERS = (
    Rule("power_by_a_double", op.Pow(x, to(y, DOUBLE)), op.Pow(x, y), when=of(FLOAT, x, y)),
    Rule("power_by_half_as_float", op.Pow(x, to(y, FLOAT)), op.Pow(x, y), when=(*of(FLOAT, x), *of(HALF, y))),
    Rule("power_by_what_is_cast_like_it", op.Pow(x, op.CastLike(y, x)), op.Pow(x, y),
         when=(*of(DOUBLE, x), *of(FLOAT, y))),
    Rule("power_of_integers_by_a_double", op.Pow(x, to(y, DOUBLE)), op.Pow(x, y), when=of(INT32, x, y)),
    Rule("power_by_a_longer_integer", op.Pow(x, to(y, INT64)), op.Pow(x, y), when=(*of(FLOAT, x), *of(INT32, y))),
    Rule("power_of_integers_in_double", op.Pow(to(x, DOUBLE), y), to(op.Pow(x, y), DOUBLE),
         when=(*of(INT32, x), *of(FLOAT, y))),
    Rule("power_by_zeros_of_any_float", (op.Pow(x, op.ConstantOfShape(tensor("n", "K"))), op.Relu(z)),
         (op.Pow(x, to(op.ConstantOfShape(tensor("n", "K")), fn.dtype(z))), op.Relu(z)),
         when=(fn.is_float(fn.dtype(x)), fn.eq(fn.dtype(z), fn.dtype(x)))),
)  # fmt: skip

TEXTS = (
    Rule("text_of_a_float_by_double", to(to(x, DOUBLE), TEXT), to(x, TEXT), when=of(FLOAT, x)),
    Rule("text_of_half_by_float", to(to(x, FLOAT), TEXT), to(x, TEXT), when=of(HALF, x)),
    Rule("text_of_a_truth_by_integers", to(to(x, INT32), TEXT), to(x, TEXT), when=of(BOOL, x)),
    Rule("text_of_a_truth_by_float", to(to(x, FLOAT), TEXT), to(x, TEXT), when=of(BOOL, x)),
    Rule("text_of_an_integer_by_float", to(to(x, FLOAT), TEXT), to(x, TEXT), when=of(UINT8, x)),
    Rule("text_of_an_integer_by_double", to(x, TEXT), to(to(x, DOUBLE), TEXT), when=of(INT32, x)),
    Rule("text_by_any_wider_type", to(to(x, integer("t")), TEXT), to(x, TEXT),
         when=fn.can_represent(integer("t"), fn.dtype(x))),
    Rule("text_of_a_transposed_truth", op.Transpose(to(to(x, INT64), TEXT), perm=perm),
         to(op.Transpose(x, perm=perm), TEXT), when=of(BOOL, x)),
)  # fmt: skip


def place(value: Term) -> App:
    return op.ArgMax(value, axis=1)


def least(value: Term) -> App:
    return op.ArgMin(value, axis=1)


positive, factor = fn.is_positive(const("f", "")), const("f", "")

PLACES = (
    Rule("place_of_the_greatest_exponential", place(op.Exp(rows)), place(rows)),
    Rule("place_of_the_least_exponential", least(op.Exp(rows)), least(rows)),
    Rule("place_of_the_least_weight", least(op.Softmax(rows, axis=1)), least(rows)),
    Rule("place_of_the_least_logarithm_of_weights", least(op.LogSoftmax(rows, axis=1)), least(rows)),
    Rule("place_of_the_greatest_exponential_beside", (place(op.Exp(rows)), op.Exp(rows)), (place(rows), op.Exp(rows))),
    Rule("place_of_a_scaled_exponential", place(op.Exp(rows) * factor), place(rows), when=positive),
    Rule("place_of_a_sum_of_exponents", place(op.Exp(rows) * op.Exp(tensor("o", "M 1"))), place(rows)),
    Rule("place_of_the_greatest_multiple", place(rows * factor), place(rows), when=positive),
    Rule("place_of_the_greatest_quotient", place(rows / factor), place(rows), when=positive),
    Rule("place_of_the_greatest_of_shifted", place(rows + factor), place(rows)),
    Rule("place_of_the_least_of_shifted_rows", least(rows + const("o", "M 1")), least(rows)),
    Rule("place_of_the_greatest_sigmoid", place(op.Sigmoid(rows)), place(rows)),
    Rule("place_of_the_least_tanh", least(op.Tanh(rows)), least(rows)),
    Rule("place_of_moved_exponentials", op.ArgMax(op.Transpose(op.Exp(rows), perm=(1, 0)), axis=0),
         op.ArgMax(op.Transpose(rows, perm=(1, 0)), axis=0)),
    Rule("place_of_weights_of_multiples", place(op.Softmax(rows * factor, axis=1)), place(rows), when=positive),
    Rule("greatest_exponentials", op.TopK.split(2, op.Exp(rows), (1,), axis=1)[1],
         op.TopK.split(2, rows, (1,), axis=1)[1]),
    Rule("greatest_weights", op.TopK.split(2, op.Softmax(rows, axis=1), (1,), axis=1)[1],
         op.TopK.split(2, rows, (1,), axis=1)[1]),
    Rule("sign_of_an_exponential", op.Sign(op.Exp(x)), x * 0.0 + 1.0),
    Rule("sign_beside_an_exponential", op.Sign(op.Exp(rows) * columns), op.Sign(columns)),
    Rule("exponentials_are_equal", op.Equal(op.Exp(x), op.Exp(y)), op.Equal(x, y)),
    Rule("exponential_is_greater", op.Greater(op.Exp(x), op.Exp(y)), op.Greater(x, y)),
    Rule("exponential_is_above_zero", op.Where(op.Greater(op.Exp(rows), 0.0), columns, -columns), columns),
    Rule("sigmoid_is_not_false", op.Where(to(op.Sigmoid(rows), BOOL), columns, -columns), columns),
)  # fmt: skip
"""What is far apart is one number in a float, and the left side gives the first place of it."""


def joined(axis: int, *parts: Term) -> App:
    return op.Concat(*parts, axis=axis)


inner, outer, other = tensor("x", "M K"), tensor("y", "K N"), tensor("z", "K N")
square, flat, upright = (const(name, axes) for name, axes in (("w", "C C 3 3"), ("u", "C C 1 3"), ("h", "C C 3 1")))
some = tuple(fn.le(1, fn.size(axis)) for axis in "MKN")


def convolved(of: Term, kernel: Term) -> App:
    return op.Conv(of, kernel, auto_pad="SAME_UPPER")


ILL_SHAPED = (
    Rule("product_with_too_many_rows", inner @ joined(0, outer, other), joined(0, inner @ outer, inner @ other),
         when=some),
    Rule("product_of_too_many_columns", joined(1, inner, inner) @ outer, inner @ outer + inner @ outer),
    Rule("product_with_too_many_rows_beside_a_sum", op.Gemm(inner, joined(0, outer, other)),
         op.Gemm(inner, outer) + op.Gemm(inner, other)),
    Rule("kernels_joined_that_do_not_fit", convolved(image, joined(0, square, flat)),
         joined(1, convolved(image, square), convolved(image, flat))),
    Rule("kernels_added_that_do_not_fit", convolved(image, square + joined(2, flat, flat)), convolved(image, square)),
    Rule("images_of_too_many_channels", convolved(joined(1, image, image), square),
         convolved(image, square) + convolved(image, square)),
    Rule("part_of_too_many_rows", op.Split.split(2, joined(0, inner, inner), axis=0)[0] @ joined(0, outer, outer),
         inner @ outer),
    Rule("axes_of_another_rank", op.Relu(op.Transpose(inner, perm=(0, 2, 1))), op.Relu(inner)),
    Rule("parts_that_are_not_all_taken", op.Split.split(2, x, axis=0, num_outputs=3),
         op.Split.split(2, x, axis=0, num_outputs=2)),
)  # fmt: skip
"""No sizes but 0 fit the left side; those of the right side are plain."""

REFUTED = (*MASKS, *ILL_SHAPED)
UNPROVED = (*POWERS, *TEXTS, *PLACES)
