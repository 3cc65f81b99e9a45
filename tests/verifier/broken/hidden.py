"""Wrong rules that hide it: in a term that vanishes, at a rank that was not tried, in an attribute that is ignored."""

from __future__ import annotations

from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, op, tensor
from graphopt.language.terms import App, Term, TermLike
from tests.versions import has_operator

x, y, z, c, d = tensor("x"), tensor("y"), tensor("z"), const("c", ""), const("d", "")
row, plane, image = tensor("x", "N"), tensor("x", "M N"), tensor("x", "N C H W")
kernel, scale, p = const("w", "M C K L"), const("s", "N"), integers("p")
line = tensor("x", "N C L")
query, keys, values = tensor("q", "B H L E"), tensor("k", "B H S E"), tensor("v", "B H S F")
relu, t, to = op.Relu, integer("t"), integer("to")
first, second, third = tensor("x", "N"), tensor("y", "N"), tensor("z", "N")
summed, regrouped = (first + second) + third, first + (second + third)
norms = tuple(const(name, "C") for name in ("a", "b", "e", "f"))
length, entropy, each = op.ReduceL2(plane, (-1,)), op.ReduceLogSumExp(plane, (-1,)), tensor("y", "M 1")
divisor, is_above = tensor("y", "M N"), op.Greater(tensor("y", "M N"), 0.0)
below, columns = op.Exp(plane - op.ReduceMax(plane, (-1,))), tensor("y", "N L")

VANISHING = (
    Rule("quotient_times_zero", x * 0.0, (1.0 / x) * 0.0),
    Rule("reciprocal_times_zero", x * 0.0, op.Reciprocal(x) * 0.0),
    Rule("remainder_times_zero", x * 0.0, op.Mod(x, 0.0, fmod=1) * 0.0),
    Rule("root_times_zero", relu(y) + x * 0.0, relu(y) + op.Sqrt(x) * 0.0),
    Rule("logarithm_times_zero", relu(y) + x * 0.0, relu(y) + op.Log(x) * 0.0),
    Rule("weights_of_nothing_divided_later", op.Softmax(plane) @ columns,
         (below @ columns) / op.ReduceSum(below, (-1,))),
    Rule("length_of_nothing_divided_by_later", (plane / length) @ columns, (plane @ columns) / length),
    Rule("logarithm_of_nothing_later", (plane * entropy) @ columns, (plane @ columns) * entropy),
    Rule("number_of_nothing_divided_by_later", op.ReduceSum(plane / each, (-1,)), op.ReduceSum(plane, (-1,)) / each),
    Rule("root_less_itself", x - x, op.Sqrt(x) - op.Sqrt(x)),
    Rule("arcus_sine_less_itself", x * 0.0, op.Asin(x) - op.Asin(x)),
    Rule("area_cosine_times_zero", x * 0.0, op.Acosh(x) * 0.0),
    Rule("area_tangent_times_zero", x * 0.0, op.Atanh(x) * 0.0),
    Rule("half_power_times_zero", x * 0.0, op.Pow(x, 0.5) * 0.0),
    Rule("negative_power_times_zero", x * 0.0, op.Pow(x, -3.0) * 0.0),
    Rule("divides_where_another_does", y / z + relu(relu(x)), y / z + relu(x * x / x)),
    Rule("divides_beside_another", y / z + x, y / z + x * x / x),
    Rule("reciprocal_beside_another", op.Reciprocal(z) + x, op.Reciprocal(z) + x * x * op.Reciprocal(x)),
    Rule("divides_beside_softmax", op.Softmax(plane) + plane * plane,
         op.Softmax(plane) + plane * plane * plane / plane),
    Rule("divides_beside_sigmoid", op.Sigmoid(y) + x, op.Sigmoid(y) + x * x / x),
    Rule("root_of_product_is_product_of_roots", op.Sqrt(x * y), op.Sqrt(x) * op.Sqrt(y)),
    Rule("logarithm_of_product_is_sum", op.Log(x * y), op.Log(x) + op.Log(y)),
    Rule("logarithm_of_square_is_twice", op.Log(x * x), op.Log(x) * 2.0),
    Rule("logarithm_of_quotient_is_difference", op.Log(x / y), op.Log(x) - op.Log(y)),
    Rule("root_of_quotient_is_quotient_of_roots", op.Sqrt(x / y), op.Sqrt(x) / op.Sqrt(y)),
)  # fmt: skip

ATTRIBUTES = (
    Rule("lengths_and_a_number_of_parts", op.Split.split(2, row, (1, 1), axis=0),
         op.Split.split(2, row, (1, 1), axis=0, num_outputs=2)),
    Rule("antialias_beside_nearest", op.Resize(plane, None, None, fn.sizes("M N")),
         op.Resize(plane, None, None, fn.sizes("M N"), antialias=1)),
    Rule("outside_excluded_beside_linear", op.Identity(plane),
         op.Resize(plane, None, (1.0, 1.0), exclude_outside=1, mode="linear")),
    Rule("no_such_order_of_storage", op.MaxPool(image, kernel_shape=(2, 2)),
         op.MaxPool(image, kernel_shape=(2, 2), storage_order=7)),
    Rule("no_such_way_to_round", op.Cast(x, to=1), op.Cast(x, to=1, round_mode="nonsense")),
    Rule("not_saturated_beside_half", op.Cast(x, to=10), op.Cast(x, to=10, saturate=0)),
    Rule("heads_that_are_an_axis_and_a_number", op.Attention(query, keys, values),
         op.Attention(query, keys, values, q_num_heads=7, kv_num_heads=3)),
    Rule("bundle_that_is_like_a_hole",
         op.LogSoftmax(op.Softmax(x, axis=integer("rest_axis")), attributes("rest")),
         op.LogSoftmax(op.Softmax(x, axis=integer("rest_axis")), axis=integer("rest_axis"))),
    Rule("letters_that_are_none", op.Transpose(plane, perm=(1, 0)), op.Einsum(plane, equation="äb->bä")),
    Rule("axis_named_like_a_hole", op.Gather(row, integer("N"), axis=0), op.Gather(row, fn.size("N") - 1, axis=0)),
)  # fmt: skip


def chosen(one: TermLike, other: TermLike) -> TermLike:
    return fn.choose(fn.is_float(fn.dtype(x)), one, other)


REFUTED = (
    *VANISHING,
    *ATTRIBUTES,
    Rule("pads_a_cast_value_at_some_ranks", op.Pad(x, p, op.Cast(op.Cast(c, to=t), to=1)), op.Pad(x, p, c),
         when=fn.any_of(fn.lt(2, fn.length(p)), fn.eq(p, 0))),
    Rule("casts_at_some_ranks", op.Cast(op.Cast(x, to=t), to=to), op.Cast(x, to=to),
         when=fn.any_of(fn.can_represent(t, fn.dtype(x)), fn.le(2, fn.rank(x)))),
)  # fmt: skip

UNPROVED = (
    Rule("softmax_that_overflows", op.Softmax(plane), op.Exp(plane) / op.ReduceSum(op.Exp(plane), (-1,))),
    Rule("softplus_that_overflows", op.Softplus(x), op.Log(op.Exp(x) + 1.0)),
    Rule("softplus_of_a_magnitude_that_overflows", op.Softplus(x),
         op.Log(op.Exp(op.Abs(x)) + 1.0) + op.Clip(x, None, 0.0)),
    Rule("softplus_by_sigmoid_of_a_magnitude", op.Softplus(x), op.Relu(x) - op.Log(op.Sigmoid(op.Abs(x)))),
    Rule("logarithm_of_what_vanishes", op.Neg(op.Abs(x)), op.Log(op.Exp(op.Neg(op.Abs(x)))),
         when=fn.is_float(fn.dtype(x))),
    Rule("logarithm_of_little_more_than_what_vanishes", op.Log(op.Sigmoid(x) + 0.5),
         op.Log(op.Exp(op.Neg(op.Abs(x))) * 0.0 + (op.Sigmoid(x) + 0.5))),
    Rule("log_softmax_that_overflows", op.LogSoftmax(plane), plane - op.Log(op.ReduceSum(op.Exp(plane), (-1,)))),
    Rule("log_sum_that_overflows", op.ReduceLogSumExp(plane, (1,)), op.Log(op.ReduceSum(op.Exp(plane), (1,)))),
    Rule("exponential_in_two_factors", op.Exp(x + y), op.Exp(x) * op.Exp(y)),
    Rule("exponential_over_another", op.Exp(x - y), op.Exp(x) / op.Exp(y)),
    Rule("elu_that_overflows", op.Elu(x), op.Where(op.Greater(x, 0.0), x, op.Exp(x) - 1.0)),
    Rule("elu_of_a_large_bound", op.Elu(x), op.Where(op.Greater(x, 0.0), x, op.Exp(op.Clip(x, None, 100.0)) - 1.0)),
    Rule("exponent_regrouped", op.Pow(tensor("a", "N"), (row + tensor("b", "N")) + scale),
         op.Pow(tensor("a", "N"), row + (tensor("b", "N") + scale))),
    Rule("unit_vector_regrouped", op.LpNormalization(summed), op.LpNormalization(regrouped)),
    Rule("quotient_no_longer_guarded", op.Where(is_above, plane / divisor, 0.0),
         op.Where(is_above, plane, 0.0) / divisor),
    Rule("quotient_beside_that_which_is_guarded", op.Where(is_above, plane / divisor, 0.0),
         op.Where(is_above, plane / divisor, 0.0) + plane / divisor * 0.0),
    Rule("logarithm_of_nothing_uncovered",
         op.Where(op.Greater(plane, 0.0), plane * op.ReduceLogSum(op.Relu(plane), (1,)), 0.0),
         op.Relu(plane) * op.ReduceLogSum(op.Relu(plane), (1,)), when=fn.eq(fn.dtype(plane), 1)),
    Rule("place_looked_up", op.Gather(tensor("v", "K"), op.ArgMax(summed, axis=0, keepdims=0), axis=0),
         op.Gather(tensor("v", "K"), op.ArgMax(regrouped, axis=0, keepdims=0), axis=0)),
    Rule("place_cast", op.Cast(op.ArgMax(summed, axis=0), to=1), op.Cast(op.ArgMax(regrouped, axis=0), to=1)),
    Rule("place_compared", op.Equal(op.ArgMin(summed, axis=0), 0), op.Equal(op.ArgMin(regrouped, axis=0), 0)),
    Rule("statistics_in_another_type", op.LayerNormalization(plane, scale),
         op.LayerNormalization(plane, scale, stash_type=11)),
    Rule("squares_in_another_type", op.RMSNormalization(plane, scale),
         op.RMSNormalization(plane, scale, stash_type=16)),
    *((Rule("channels_in_another_order", op.Identity(op.SpaceToDepth(image, blocksize=2)),
            op.SpaceToDepth(image, blocksize=2, mode="CRD")),) if has_operator("SpaceToDepth", "mode") else ()),
    Rule("cast_to_no_type", op.Cast(op.Identity(x), to=1), op.Cast(x, to=99)),
)  # fmt: skip
"""No small instance differs: of rounding, overflow, and attributes that ONNX Runtime does not read."""

scores, seen, asking = tensor("x", "M K"), tensor("v", "K N"), tensor("u", "L M")
weights, other = op.Softmax(scores, axis=-1), op.Softmax(scores, axis=-2)
finite = fn.is_finite(seen)


def guarded(value: Term, instead: float = 0.0) -> App:
    return op.Where(op.IsNaN(value), instead, value)


GUARDS = (
    Rule("guard_below_product_with_infinities", guarded(weights) @ seen, guarded(weights @ seen)),
    Rule("guard_below_product_of_columns", guarded(other) @ seen, guarded(other @ seen), when=finite),
    Rule("guard_below_product_from_the_left", asking @ guarded(weights), guarded(asking @ weights),
         when=fn.is_finite(asking)),
    Rule("guard_by_one_below_product", guarded(weights, 1.0) @ seen, guarded(weights @ seen, 1.0), when=finite),
    Rule("guard_of_logarithms_below_product", guarded(op.LogSoftmax(scores, axis=-1)) @ seen,
         guarded(op.LogSoftmax(scores, axis=-1) @ seen), when=finite),
    Rule("guard_of_exponentials_below_product", guarded(op.Exp(scores)) @ seen, guarded(op.Exp(scores) @ seen),
         when=finite),
    Rule("guard_of_two_softmaxes_below_product", guarded(weights + other) @ seen, guarded((weights + other) @ seen),
         when=finite),
    Rule("guard_dropped", guarded(weights) @ seen, weights @ seen, when=finite),
    Rule("guard_by_scores", guarded(weights), op.Where(op.IsNaN(scores), 0.0, weights)),
    Rule("guard_by_another_row", guarded(weights),
         op.Where(op.IsNaN(op.ReduceSum(weights, (0,), keepdims=1)), 0.0, weights)),
)  # fmt: skip
"""A row of a softmax is NaN as a whole; a column, and what is made of rows by other functions, is not."""

REAL_ONLY = (
    Rule("root_of_a_constant_cancels", (x + op.Sqrt(c)) - op.Sqrt(c), op.Identity(x)),
    Rule("logarithm_of_a_constant_cancels", (x + op.Log(c)) - op.Log(c), op.Identity(x)),
    Rule("difference_of_logarithms", x + (op.Log(c) - op.Log(c)), op.Identity(x)),
    Rule("power_of_a_constant_cancels", (x + op.Pow(c, d)) - op.Pow(c, d), op.Identity(x)),
    Rule("area_tangent_of_a_constant_cancels", (x + op.Atanh(c)) - op.Atanh(c), op.Identity(x)),
    Rule("permutation_by_type", op.Identity(op.Transpose(x, perm=p)),
         op.Transpose(x, perm=chosen(p, fn.sorted(p)))),
    Rule("ends_by_type", op.Slice(x, (0,), (2,), (0,)), op.Slice(x, (0,), fn.concat(chosen(2, 1)), (0,))),
)  # fmt: skip
"""True of finite floats, or of floats, and of nothing else: no stronger model may prove them."""
