"""Wrong rules that are true of the real numbers: floats have no such value, lose it, or it is computed in integers."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, integers, op, pointwise, real, tensor
from graphopt.language.terms import App, Term

v, u, s, t = tensor("v", "N"), tensor("u", "K"), tensor("s", ""), tensor("t")
a, b, c, d, e = (tensor(name, "") for name in "abcde")
x, y, z, i, rows = tensor("x", "M N"), tensor("y", "M N"), tensor("z", "M N"), tensor("i", "K N"), tensor("r", "K N")
f, g, h = (tensor(name, "N C L") for name in "fgh")
q, r, w = (tensor(name, "2") for name in "qrw")
pads, k, mask, image = integers("p"), integer("k"), tensor("mask", "N"), tensor("image", "A B")

one, other, perm, al, be = pointwise("f"), pointwise("h"), integers("perm"), real("al"), real("be")
left, right, added = tensor("A", "M K"), tensor("B", "K N"), tensor("C", "M N")
half = op.Sigmoid(t)
steep = real("steep")
big = fn.mul(100000.0, 100000.0)
video = tensor("video", "A B C D")
turn, swap = (2, 3, 0, 1), (0, 1, 3, 2)
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
    Rule("pole_at_one", op.Atanh((half + half) * (half * 0.5) + 1.0), op.Atanh(1.0 + half * half)),
    Rule("softplus_by_sigmoid", op.Softplus(t), op.Neg(op.Log(op.Sigmoid(op.Neg(t))))),
    Rule("log_softmax_apart", op.LogSoftmax(x, axis=1), op.Log(op.Softmax(x, axis=1))),
    Rule("computed_number_is_lost", half, (half + big) - big),
    Rule("number_behind_an_operator_is_lost", half, (half + op.Identity(1000000.0)) - op.Identity(1000000.0)),
    Rule("number_of_an_attribute_is_lost", op.LeakyRelu(x, alpha=steep),
         (op.LeakyRelu(x, alpha=steep) + steep) - steep),
    Rule("lost_beside_a_multiple", x + y, (x + y * 1000000.0) - y * 999999.0),
    Rule("lost_in_shrink", op.Abs(x),
         op.Shrink(op.Shrink(op.Abs(x), lambd=0.0, bias=-1000000.0), lambd=0.0, bias=1000000.0),
         when=fn.eq(fn.dtype(x), 1)),
    Rule("lost_beside_a_maximum", half, (half + op.Max(half, 100000.0)) - op.Max(half, 100000.0)),
    Rule("lost_beside_a_power", half, (half + op.Pow(30.0, 4.0)) - op.Pow(30.0, 4.0)),
    Rule("lost_in_gemm", (left @ right) * 2.0 + added,
         (op.Gemm(left, right, added, beta=100000.0) + op.Gemm(left, right, added, beta=-100000.0)) + added),
    Rule("twice_an_attribute_is_lost", op.LeakyRelu(x, alpha=steep),
         (op.LeakyRelu(x, alpha=steep) + fn.mul(steep, 2.0)) - fn.mul(steep, 2.0)),
    Rule("exp_over_itself", op.Exp(x) + y, op.Exp(x) + y * (op.Exp(x) / op.Exp(x))),
    Rule("log_of_exp", op.Exp(x) + x, op.Exp(x) + op.Log(op.Exp(x))),
    Rule("exp_by_pow", op.Exp(t), op.Pow(op.Sigmoid(op.Neg(t)), -1.0) - 1.0),
    Rule("log_softmax_by_sum", op.LogSoftmax(x, axis=1),
         op.ReduceLogSum(op.Unsqueeze(op.Softmax(x, axis=1), (2,)), (2,), keepdims=0)),
    Rule("softmax_beside_its_exponentials", (op.Softmax(x, axis=1), op.Exp(x)),
         (op.Exp(x) / op.ReduceSum(op.Exp(x), (1,)), op.Exp(x))),
    Rule("place_beside_a_sum", (op.ArgMax(x, axis=1), x + tensor("o", "M 1")),
         (op.ArgMax(x + tensor("o", "M 1"), axis=1), x + tensor("o", "M 1"))),
)  # fmt: skip
"""Numbers that are far apart become one."""

JUMPS = (
    Rule("number_first", op.Where(op.Less(0.0, (x + y) + z), x, y), op.Where(op.Less(0.0, x + (y + z)), x, y)),
    Rule("mod_of_a_number", op.Mod(1.0, (x + y) + z, fmod=1), op.Mod(1.0, x + (y + z), fmod=1)),
    Rule("sign_of_a_norm", op.Sign(op.MeanVarianceNormalization(video)),
         op.Transpose(op.Sign(op.MeanVarianceNormalization(op.Transpose(video, perm=swap))), perm=swap)),
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
         when=(fn.any_of(fn.eq(be, 0), fn.ne(fn.mul(fn.truediv(1, 49), 49), 1)), fn.eq(fn.dtype(left), 1))),
)  # fmt: skip
"""What is computed when the rule is applied is rounded otherwise than what the model computes, or than real numbers."""

NARROWER = (
    Rule("reduced_in_half", op.ReduceSum(op.Cast(x, to=1), (0,)), op.Cast(op.ReduceSum(x, (0,)), to=1),
         when=fn.eq(fn.dtype(x), 10)),
    Rule("reduced_in_single", op.ReduceSum(op.Cast(x, to=11), (0,)), op.Cast(op.ReduceSum(x, (0,)), to=11),
         when=fn.eq(fn.dtype(x), 1)),
    Rule("reduced_in_single_beside_single", (op.ReduceSum(op.Cast(x, to=11), (0,)), op.Sigmoid(x)),
         (op.Cast(op.ReduceSum(x, (0,)), to=11), op.Sigmoid(x)), when=fn.eq(fn.dtype(x), 1)),
    Rule("sigmoids_reduced_in_single", op.ReduceSum(op.Cast(op.Sigmoid(x), to=11), (0,)),
         op.Cast(op.ReduceSum(op.Sigmoid(x), (0,)), to=11), when=fn.eq(fn.dtype(x), 1)),
    Rule("product_in_half", op.Cast(left, to=1) @ op.Cast(right, to=1), op.Cast(left @ right, to=1),
         when=(fn.eq(fn.dtype(left), 10), fn.eq(fn.dtype(right), 10))),
)  # fmt: skip
"""What a model widens is computed in the narrower type."""

KERNELS = (
    Rule("row_by_the_number_of_a_type", op.Gather(x, 0, axis=0),
         op.Gather(x, fn.choose(fn.lt(fn.dtype(x), 8), 0, -1), axis=0), when=fn.is_float(fn.dtype(x))),
    Rule("type_is_an_index", op.Gather(x, k, axis=0), op.Gather(x, 1, axis=0),
         when=(fn.eq(fn.dtype(x), k), fn.is_float(fn.dtype(x)))),
    Rule("type_as_an_operand", op.Gather(x, 1, axis=0), op.Gather(x, fn.dtype(x), axis=0),
         when=fn.is_float(fn.dtype(x))),
    Rule("resized_list", op.Neg(v), op.Resize(op.Neg(v), None, (1.0,), mode="linear")),
    Rule("dropout_of_twice", half, op.Dropout(half, 2.0)),
    Rule("resized_rows",
         op.Transpose(op.Resize(op.Transpose(video, perm=turn), None, (1.0, 1.0, 2.0, 2.0), mode="linear"), perm=turn),
         op.Resize(video, None, (2.0, 2.0, 1.0, 1.0), mode="linear")),
    Rule("mean_of_four_axes", op.ReduceMean(tensor("x", "N C A B D E"), (2, 3, 4, 5)),
         op.GlobalAveragePool(tensor("x", "N C A B D E")),
         when=(fn.is_float(fn.dtype(tensor("x", "N C A B D E"))), *(fn.lt(0, fn.size(n)) for n in "CABDE"))),
)  # fmt: skip
"""The kernel refuses the right side, or element types are told apart by their number."""

UNPROVED = (*KERNELS, *COMPUTED, *NARROWER, *PARTIAL, *LOST, *JUMPS, *INTEGERS)
