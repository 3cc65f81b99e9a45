"""Wrong rules that are true of the real numbers: floats have no such value, lose it, or it is computed in integers."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, integers, op, pointwise, real, tensor
from graphopt.language.term import App, Term

v, u, s, t = tensor("v", "N"), tensor("u", "K"), tensor("s", ""), tensor("t")
a, b, c, d, e = (tensor(name, "") for name in "abcde")
x, y, i, rows = tensor("x", "M N"), tensor("y", "M N"), tensor("i", "K N"), tensor("r", "K N")
f, g, h = (tensor(name, "N C L") for name in "fgh")
q, r, w = (tensor(name, "2") for name in "qrw")
pads, k, mask, image = integers("p"), integer("k"), tensor("mask", "N"), tensor("image", "A B")

one, other, perm, al, be = pointwise("f"), pointwise("h"), integers("perm"), real("al"), real("be")
left, right, added = tensor("A", "M K"), tensor("B", "K N"), tensor("C", "M N")
half = op.Sigmoid(t)
normal = op.LayerNormalization(x, const("scale", "N"), epsilon=0.0)
picked = op.Abs(op.Gather(v, k, axis=0))
padded = op.Pad(op.Expand(s, (1,)), (2, 0), 1.0)


def total(value: Term) -> App:
    return op.ReduceSum(value, (0,))


def nothing(value: Term) -> App:
    """Zero, or NaN where the value is negative."""
    return op.Log(value) - op.Log(value)


def place(value: Term) -> App:
    return op.MaxPool.split(2, value, kernel_shape=(2,))[1]


def reciprocals(chosen: Term) -> App:
    return total(op.Reciprocal(op.Where(chosen, c, d)))


PARTIAL = (
    Rule("nothing_over_nothing_beside_a_pad", v / op.Pad(v, (0, 0)), v / op.Pad(v, (0, 0)) + (v - v) / (v - v)),
    Rule("case_beyond_the_sum", total(op.Reciprocal(op.Slice(padded, (0,), (2,), (0,)))),
         total(op.Reciprocal(op.Slice(padded, (0,), (2,), (0,)))) + total(op.Reciprocal(padded)) * 0.0),
    Rule("reciprocal_of_some_excuses_all", reciprocals(op.Slice(mask, (0,), (1,), (0,))),
         reciprocals(op.Slice(mask, (0,), (1,), (0,))) + (reciprocals(mask) - reciprocals(mask))),
    Rule("in_the_number_of_a_pad", op.Pad(v, pads, op.Sigmoid(c)), op.Pad(v, pads, op.Sigmoid(c) + nothing(c))),
    Rule("in_what_is_scattered", op.ScatterElements(op.Sigmoid(x), i, rows),
         op.ScatterElements(op.Sigmoid(x) + nothing(x), i, rows)),
    Rule("in_the_start_of_a_range", op.Range(op.Sigmoid(a), b, d), op.Range(op.Sigmoid(a) + nothing(a), b, d)),
    Rule("norm_of_zeros", op.LpNormalization(x, axis=1, p=2), x / op.ReduceL2(x, (1,))),
    Rule("sum_of_zeros", op.LpNormalization(x, axis=1, p=1), x / op.ReduceL1(x, (1,))),
    Rule("mask_of_layer_norm_gone", op.Where(tensor("o", "M N"), normal, y),
         op.Where(tensor("o", "M N"), normal, y) + normal * 0.0),
)  # fmt: skip
"""The right side computes what has no value, where the left side does not."""

LOST = (
    Rule("whole_number_is_lost", half, (half + 100000000) - 100000000),
    Rule("lost_in_small_steps", half, ((half * 2.0**-20 * 2.0**-20 + 1.0) - 1.0) * 2.0**20 * 2.0**20),
    Rule("lost_beside_one", half, ((half * 2.0**-20 + 1.0) - 1.0) * 2.0**20),
    Rule("least_of_softmax", op.ArgMin(x, axis=1), op.ArgMin(op.Softmax(x, axis=1), axis=1),
         when=fn.is_float(fn.dtype(x))),
    Rule("exp_by_sigmoid", op.Exp(t), 1.0 / op.Sigmoid(op.Neg(t)) - 1.0),
    Rule("softplus_by_sigmoid", op.Softplus(t), op.Neg(op.Log(op.Sigmoid(op.Neg(t))))),
    Rule("log_softmax_apart", op.LogSoftmax(x, axis=1), op.Log(op.Softmax(x, axis=1))),
)  # fmt: skip
"""Numbers that are far apart become one."""

JUMPS = (
    Rule("limit_regrouped", op.Range(a, (b + c) + e, d), op.Range(a, b + (c + e), d)),
    Rule("scales_regrouped", op.Resize(image, None, (q + r) + w), op.Resize(image, None, q + (r + w))),
    Rule("place_in_a_window_looked_up", op.Gather(u, place((f + g) + h), axis=0),
         op.Gather(u, place(f + (g + h)), axis=0)),
)  # fmt: skip
"""What is rounded otherwise decides on a size, or on what is looked up."""

INTEGERS = (
    Rule("half_of_one_is_positive", picked, op.Where(op.Less(0, op.Div(k, 2)), picked, 0.0),
         when=(fn.le(1, k), fn.is_float(fn.dtype(v)))),
)  # fmt: skip
"""Numbers of the rule are divided as integers are."""

COMPUTED = (
    Rule("two_operators_of_a_constant", op.Transpose(one(other(const("w"))), perm=perm),
         one(other(op.Transpose(const("w"), perm=perm)))),
    Rule("two_operators_of_a_constant_part", one(other(op.Concat(t, const("w"), axis=0))),
         op.Concat(one(other(t)), one(other(const("w"))), axis=0)),
    Rule("absorbed_by_the_larger", op.Gemm(left, right, added, alpha=al, beta=be),
         op.Gemm(left, right, added, alpha=al, beta=fn.choose(fn.eq(be, 0), be, al)),
         when=(fn.eq(al + be, al), fn.eq(fn.dtype(left), 1))),
    Rule("divided_and_multiplied", op.Gemm(left, right, added, alpha=al, beta=be),
         op.Gemm(left, right, added, alpha=al, beta=fn.choose(fn.eq(be, 0), be, al)),
         when=(fn.either(fn.eq(be, 0), fn.ne(fn.mul(fn.divide(1, 49), 49), 1)), fn.eq(fn.dtype(left), 1))),
)  # fmt: skip
"""What is computed when the rule is applied is rounded otherwise than what the model computes, or than real numbers."""

NARROWER = (
    Rule("reduced_in_half", op.ReduceSum(op.Cast(x, to=1), (0,)), op.Cast(op.ReduceSum(x, (0,)), to=1),
         when=fn.eq(fn.dtype(x), 10)),
    Rule("reduced_in_single", op.ReduceSum(op.Cast(x, to=11), (0,)), op.Cast(op.ReduceSum(x, (0,)), to=11),
         when=fn.eq(fn.dtype(x), 1)),
    Rule("product_in_half", op.Cast(left, to=1) @ op.Cast(right, to=1), op.Cast(left @ right, to=1),
         when=(fn.eq(fn.dtype(left), 10), fn.eq(fn.dtype(right), 10))),
)  # fmt: skip
"""What a model widens is computed in the narrower type."""

UNPROVED = (*COMPUTED, *NARROWER, *PARTIAL, *LOST, *JUMPS, *INTEGERS)
