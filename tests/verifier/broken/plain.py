"""Rules that are wrong: the bugs of this field, and near misses of rules that are right. None may be proved."""

from __future__ import annotations

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.language.terms import App, TermLike

x, y, z = tensor("x"), tensor("y"), tensor("z")
a, b, w, s = const("a"), const("b"), const("w", "K N"), const("s", "N")
m = tensor("m", "*b M K")
p, q, axes, more = integers("p"), integers("q"), integers("axes"), integers("more")
rest = attributes("rest")

image, kernel, bias = tensor("x", "N C *s"), const("w", "M I *k"), const("b", "M")
other = const("v", "L I *k")
per_filter, per_channel = const("c", "M 1*k"), const("c", "C 1*k")
scale, shift, mean, var = (const(n, "M") for n in ("scale", "shift", "mean", "var"))
left, right, third = tensor("l", "M K"), tensor("r", "K N"), tensor("t", "N L")


def wide(value: TermLike, axes_: str) -> App:
    return op.Reshape(value, fn.sizes(axes_))


def bn_folded(factor: TermLike, offset: TermLike) -> App:
    return op.Conv(image, kernel * wide(factor, "M 1 1*k"), offset, rest)


normal = op.BatchNormalization(op.Conv(image, kernel, bias, rest), scale, shift, mean, var, epsilon=real("eps"))
factor = scale / op.Sqrt(var + real("eps"))

ELEMENTWISE = (
    Rule("sub_commutes", x - y, y - x),
    Rule("div_commutes", x / y, y / x),
    Rule("div_associates", (x / y) / z, x / (y / z)),
    Rule("sub_associates", (x - y) - z, x - (y - z)),
    Rule("distribute_too_far", x * (y + z), x * y + z),
    Rule("square_of_sum", (x + y) * (x + y), x * x + y * y),
    Rule("exp_of_sum", op.Exp(x + y), op.Exp(x) + op.Exp(y)),
    Rule("exp_of_product", op.Exp(x * y), op.Exp(x) * op.Exp(y)),
    Rule("log_of_sum", op.Log(x + y), op.Log(x) + op.Log(y)),
    Rule("sqrt_of_sum", op.Sqrt(x * x + y * y), op.Abs(x) + op.Abs(y)),
    Rule("sqrt_of_square", op.Sqrt(x * x), x),
    Rule("abs_of_sum", op.Abs(x + y), op.Abs(x) + op.Abs(y)),
    Rule("abs_is_nothing", op.Abs(x), x),
    Rule("relu_of_sum", op.Relu(x + y), op.Relu(x) + op.Relu(y)),
    Rule("relu_of_neg", op.Relu(op.Neg(x)), op.Neg(op.Relu(x))),
    Rule("relu_scaled", op.Relu(x * a), op.Relu(x) * a),
    Rule("relu_scaled_without_sign", op.Relu(x * a), op.Relu(x) * a, when=fn.is_nonzero(a)),
    Rule("max_is_min", op.Max(x, y), op.Min(x, y)),
    Rule("max_plus", op.Max(x, y) + z, op.Max(x, y + z)),
    Rule("min_of_max", op.Min(op.Max(x, y), z), op.Max(op.Min(x, z), y)),
    Rule("clip_order", op.Clip(op.Clip(x, 0.0, 1.0), -1.0, 0.5), op.Clip(x, -1.0, 0.5)),
    Rule("clip_is_relu", op.Clip(x, 0.0, 1.0), op.Relu(x), when=fn.is_float(fn.dtype(x))),
    Rule("swish_without_x", x * op.Sigmoid(x), op.Sigmoid(x)),
    Rule("sigmoid_odd", op.Sigmoid(op.Neg(x)), op.Neg(op.Sigmoid(x))),
    Rule("tanh_even", op.Tanh(op.Neg(x)), op.Tanh(x)),
    Rule("erf_even", op.Erf(op.Neg(x)), op.Erf(x)),
    Rule("gelu_without_half", x * (op.Erf(x / 1.4142135623730951) + 1.0), op.Gelu(x)),
    Rule("gelu_wrong_root", x * (op.Erf(x / 1.5) + 1.0) * 0.5, op.Gelu(x)),
    Rule("hard_swish_wrong_shift", x * op.Clip(x + 2.0, 0.0, 6.0) / 6.0, op.HardSwish(x)),
    Rule("leaky_relu_any_slope", op.Max(x, x * real("k")), op.LeakyRelu(x, alpha=real("k"))),
    Rule(
        "clip_by_a_sum_of_bounds",
        op.Clip(op.Clip(x, None, real("k")), None, 6.0),
        op.Clip(x, None, real("k") + 6.0 - fn.maximum(real("k"), 0.0)),
    ),
    Rule("pow_adds", op.Pow(op.Pow(x, 2.0), 2.0), op.Pow(x, 5.0)),
    Rule("add_one", x + 1.0, x),
    Rule("mul_two", x * 2.0, x),
    Rule("almost_one", x * 1.00001, x),
    Rule("add_any_constant", x + a, x),
    Rule("mul_zero_is_x", x * a, x, when=fn.is_zero(a)),
    Rule("add_zero_may_broadcast", x + a, x, when=fn.is_zero(a)),
    Rule("where_swapped", op.Where(tensor("c"), x, y), op.Where(tensor("c"), y, x)),
    Rule("where_not", op.Where(op.Not(tensor("c")), x, y), op.Where(tensor("c"), x, y)),
    Rule("not_of_and", op.Not(op.And(x, y)), op.And(op.Not(x), op.Not(y))),
    Rule("less_flipped", op.Less(x, y), op.Less(y, x)),
    Rule("not_less_is_greater", op.Not(op.Less(x, y)), op.Greater(x, y)),
    Rule("cast_there_and_back", op.Cast(op.Cast(x, to=int(DType.INT32)), to=int(DType.FLOAT)), op.Identity(x)),
    Rule("cast_changes_type", op.Cast(x, to=integer("to")), op.Identity(x)),
    Rule("casts_that_lose", op.Cast(op.Cast(x, to=integer("t")), to=integer("to")), op.Cast(x, to=integer("to"))),
)

PRODUCTS = (
    Rule("scale_on_wrong_axis", (m @ w) * s, m @ (w * wide(const("s", "N"), "N 1"))),
    Rule(
        "scale_rows",
        (tensor("m", "M K") @ const("w", "K M")) * const("d", "M"),
        tensor("m", "M K") @ (const("w", "K M") * wide(const("d", "M"), "M 1")),
    ),
    Rule("matmul_commutes", tensor("l", "K K") @ tensor("r", "K K"), tensor("r", "K K") @ tensor("l", "K K")),
    Rule("forgotten_bias", m @ w + s, m @ w),
    Rule("bias_scaled_twice", (m @ w + s) * const("d", "N"), m @ (w * const("d", "N")) + s),
    Rule(
        "transpose_of_product",
        op.Transpose(left @ right, perm=(1, 0)),
        op.Transpose(left, perm=(1, 0)) @ op.Transpose(right, perm=(1, 0)),
    ),
    Rule(
        "square_transposed",
        op.Transpose(tensor("l", "K K") @ tensor("r", "K K"), perm=(1, 0)),
        op.Transpose(tensor("l", "K K"), perm=(1, 0)) @ op.Transpose(tensor("r", "K K"), perm=(1, 0)),
    ),
    Rule("gemm_ignores_alpha", op.Gemm(left, right, alpha=real("al")), left @ right),
    Rule(
        "gemm_ignores_trans",
        op.Gemm(tensor("l", "K K"), tensor("r", "K K"), transB=1),
        tensor("l", "K K") @ tensor("r", "K K"),
    ),
    Rule("product_of_sums", left @ right + left @ tensor("u", "K N"), left @ (right * tensor("u", "K N"))),
    Rule(
        "sum_on_wrong_side",
        left @ right + tensor("u", "M K") @ tensor("v", "K N"),
        (left + tensor("u", "M K")) @ (right + tensor("v", "K N")),
    ),
    Rule(
        "concat_on_wrong_axis",
        left @ right + tensor("u", "M K") @ tensor("v", "K N"),
        op.Concat(left, tensor("u", "M K"), axis=0) @ op.Concat(right, tensor("v", "K N"), axis=1),
    ),
    Rule("relu_in_between", op.Relu(left @ right) @ third, op.Relu(left @ (right @ third))),
)

CONVOLUTIONS = (
    Rule("bn_without_bias", normal, bn_folded(factor, (mean - mean) * factor + shift)),
    Rule("bn_mean_added", normal, bn_folded(factor, (bias + mean) * factor + shift)),
    Rule("bn_without_root", normal, bn_folded(scale / (var + real("eps")), (bias - mean) * factor + shift)),
    Rule("bn_without_epsilon", normal, bn_folded(scale / op.Sqrt(var), (bias - mean) * (scale / op.Sqrt(var)) + shift)),
    Rule(
        "conv_scale_without_bias",
        op.Conv(image, kernel, bias, rest) * per_filter,
        op.Conv(image, kernel * wide(per_filter, "M 1 1*k"), bias, rest),
    ),
    Rule(
        "shift_into_padded_conv",
        op.Conv(image + per_channel, const("w", "M C *k"), bias, rest, group=1),
        op.Conv(
            image,
            const("w", "M C *k"),
            bias
            + op.ReduceSum(
                const("w", "M C *k") * per_channel,
                fn.add(fn.range(fn.sub(fn.rank(const("w", "M C *k")), 1)), 1),
                keepdims=0,
            ),
            rest,
            group=1,
        ),
    ),
    Rule(
        "convs_of_different_strides",
        op.Conv(image, kernel, strides=integers("s1")) + op.Conv(image, const("v", "M I *k"), strides=integers("s2")),
        op.Conv(image, kernel + const("v", "M I *k"), strides=integers("s1")),
    ),
    Rule(
        "merge_grouped_convs",
        op.Concat(op.Conv(image, kernel, group=2), op.Conv(image, other, group=2), axis=1),
        op.Conv(image, op.Concat(kernel, other, axis=0), group=2),
    ),
    Rule(
        "merge_convs_swapped",
        op.Concat(op.Conv(image, kernel), op.Conv(image, other), axis=1),
        op.Conv(image, op.Concat(other, kernel, axis=0)),
    ),
    Rule(
        "pad_value_ignored",
        op.Conv(op.Pad(tensor("x", "N C H"), (0, 0, 1, 0, 0, 1), 1.0), const("w", "M C K")),
        op.Conv(tensor("x", "N C H"), const("w", "M C K"), pads=(1, 1)),
    ),
    Rule(
        "pad_on_one_side",
        op.Conv(op.Pad(tensor("x", "N C H"), (0, 0, 1, 0, 0, 0)), const("w", "M C K")),
        op.Conv(tensor("x", "N C H"), const("w", "M C K"), pads=(0, 1)),
    ),
    Rule(
        "pad_into_max_pool",
        op.MaxPool(op.Pad(tensor("x", "N C H"), (0, 0, 1, 0, 0, 1)), kernel_shape=(3,)),
        op.MaxPool(tensor("x", "N C H"), kernel_shape=(3,), pads=(1, 1)),
    ),
    Rule(
        "pad_into_average_pool",
        op.AveragePool(op.Pad(tensor("x", "N C H"), (0, 0, 1, 0, 0, 1)), kernel_shape=(3,)),
        op.AveragePool(tensor("x", "N C H"), kernel_shape=(3,), pads=(1, 1)),
    ),
    Rule(
        "enlarge_kernel_same_upper",
        op.Conv(tensor("x", "N C H"), const("w", "M C 1"), auto_pad="SAME_UPPER", strides=(2,)),
        op.Conv(
            tensor("x", "N C H"), op.Pad(const("w", "M C 1"), (0, 0, 1, 0, 0, 1)), auto_pad="SAME_UPPER", strides=(2,)
        ),
    ),
    Rule(
        "enlarge_kernel_without_pads",
        op.Conv(tensor("x", "N C H"), const("w", "M C K"), pads=(1, 1)),
        op.Conv(tensor("x", "N C H"), op.Pad(const("w", "M C K"), (0, 0, 1, 0, 0, 1)), pads=(1, 1)),
    ),
    Rule(
        "same_upper_is_lower",
        op.Conv(image, kernel, auto_pad="SAME_UPPER"),
        op.Conv(image, kernel, auto_pad="SAME_LOWER"),
    ),
    Rule(
        "pointwise_after_padded_conv",
        op.Conv(op.Conv(tensor("x", "N C H"), const("w", "M C 1"), const("b", "M")), const("v", "L M K"), pads=(1, 1)),
        op.Conv(
            tensor("x", "N C H"),
            op.Reshape(
                op.Transpose(
                    op.MatMul(
                        op.Transpose(const("v", "L M K"), perm=(0, 2, 1)),
                        op.Reshape(const("w", "M C 1"), fn.sizes("M C")),
                    ),
                    perm=(0, 2, 1),
                ),
                fn.sizes("L C K"),
            ),
            op.ReduceSum(
                op.MatMul(
                    op.Transpose(const("v", "L M K"), perm=(0, 2, 1)), op.Reshape(const("b", "M"), fn.sizes("M 1"))
                ),
                (1, 2),
                keepdims=0,
            ),
            pads=(1, 1),
        ),
    ),
)

LAYOUT = (
    Rule(
        "transposes_composed_backwards",
        op.Transpose(op.Transpose(x, perm=p), perm=q),
        op.Transpose(x, perm=fn.compose(q, p)),
    ),
    Rule("transpose_is_nothing", op.Transpose(x, perm=p), op.Identity(x)),
    Rule("transpose_twice_is_nothing", op.Transpose(op.Transpose(x, perm=p), perm=p), op.Identity(x)),
    Rule(
        "reshape_is_transpose",
        op.Reshape(tensor("x", "A B"), fn.sizes("B A")),
        op.Transpose(tensor("x", "A B"), perm=(1, 0)),
    ),
    Rule("squeezes_added", op.Squeeze(op.Squeeze(x, axes), more), op.Squeeze(x, fn.concat(axes, more))),
    Rule("concat_swapped", op.Concat(x, y, axis=integer("axis")), op.Concat(y, x, axis=integer("axis"))),
    Rule("split_swapped", op.Split.split(2, x, (1, 1), axis=0), op.Split.split(2, x, (1, 1), axis=0)[::-1]),
    Rule(
        "slices_forget_the_first",
        op.Slice(op.Slice(x, (1,), (9,), (0,)), (1,), (9,), (0,)),
        op.Slice(x, (1,), (9,), (0,)),
    ),
    Rule("slice_backwards_twice", op.Slice(x, (-1,), (-9,), (0,), (-1,)), op.Identity(x)),
    Rule("pads_multiplied", op.Pad(op.Pad(tensor("x", "A"), (1, 1)), (1, 1)), op.Pad(tensor("x", "A"), (1, 1))),
    Rule("edge_is_constant", op.Pad(tensor("x", "A"), (1, 1), mode="edge"), op.Pad(tensor("x", "A"), (1, 1))),
    Rule("flatten_any_axis", op.Flatten(tensor("x", "A B C"), axis=1), op.Flatten(tensor("x", "A B C"), axis=2)),
    Rule(
        "depth_to_space_modes",
        op.DepthToSpace(tensor("x", "N 8 H W"), blocksize=2, mode="DCR"),
        op.DepthToSpace(tensor("x", "N 8 H W"), blocksize=2, mode="CRD"),
    ),
    Rule(
        "space_and_back_without_mode",
        op.DepthToSpace(op.SpaceToDepth(x, blocksize=2), blocksize=2, mode="CRD"),
        op.Identity(x),
    ),
    Rule("tile_is_expand", op.Tile(tensor("x", "A"), (2,)), op.Concat(tensor("x", "A"), axis=0)),
    Rule(
        "gather_off_by_one", op.Gather(tensor("x", "A B"), (1,), axis=0), op.Slice(tensor("x", "A B"), (0,), (1,), (0,))
    ),
)

REDUCTIONS = (
    Rule("mean_is_sum", op.ReduceMean(x, axes), op.ReduceSum(x, axes)),
    Rule("keepdims_forgotten", op.ReduceSum(x, axes, keepdims=1), op.ReduceSum(x, axes, keepdims=0)),
    Rule("sum_of_product", op.ReduceSum(x * y, (0,)), op.ReduceSum(x, (0,)) * op.ReduceSum(y, (0,))),
    Rule("max_of_sum", op.ReduceMax(tensor("x", "A") + tensor("y", "A"), (0,)),
         op.ReduceMax(tensor("x", "A"), (0,)) + op.ReduceMax(tensor("y", "A"), (0,))),
    Rule("reduce_axes_unshifted", op.ReduceSum(op.ReduceSum(x, (0,), keepdims=0), (0,), keepdims=0),
         op.ReduceSum(x, (0,), keepdims=0)),
    Rule("softmax_axis", op.Softmax(tensor("x", "A B"), axis=0), op.Softmax(tensor("x", "A B"), axis=1)),
    Rule("softmax_scale", op.Softmax(x * 2.0), op.Softmax(x)),
    Rule("softmax_shift_along_axis", op.Softmax(tensor("x", "A B") + tensor("y", "B")), op.Softmax(tensor("x", "A B"))),
    Rule("softmax_twice", op.Softmax(op.Softmax(x)), op.Softmax(x)),
    Rule("layer_norm_without_epsilon", op.LayerNormalization(tensor("x", "A B"), const("g", "B"), epsilon=0.5),
         op.LayerNormalization(tensor("x", "A B"), const("g", "B"), epsilon=0.1)),
    Rule("rms_is_layer_norm", op.LayerNormalization(tensor("x", "A B"), const("g", "B")),
         op.RMSNormalization(tensor("x", "A B"), const("g", "B"))),
)  # fmt: skip

peak = op.ReduceMax(tensor("x", "A B"), (1,))
weights = op.Exp(tensor("x", "A B"))
three = op.Clip(x + 3.0, 0.0, 6.0)

CASES = (
    Rule("hard_sigmoid_other_slope", three / 6.0, op.HardSigmoid(x, alpha=0.2, beta=0.5)),
    Rule("hard_swish_without_bound", x * op.Relu(x + 3.0) / 6.0, op.HardSwish(x)),
    Rule("leaky_relu_from_min", op.Min(x, x * real("k")), op.LeakyRelu(x, alpha=real("k"))),
    Rule("steep_leaky_relu_from_max", op.Max(x, x * real("k")), op.LeakyRelu(x, alpha=real("k")),
         when=fn.le(real("k"), 2.0)),
    Rule("relu_of_abs_is_relu", op.Relu(op.Abs(x)), op.Relu(x)),
    Rule("abs_of_min_is_min", op.Abs(op.Min(x, y)), op.Min(op.Abs(x), op.Abs(y))),
    Rule("sign_times_abs_is_abs", op.Sign(x) * op.Abs(x), op.Abs(x)),
    Rule("log_softmax_shifted_once", (tensor("x", "A B") - peak) - op.Log(op.ReduceSum(weights, (1,))),
         op.LogSoftmax(tensor("x", "A B"))),
    Rule("softmax_by_other_sum", weights / op.ReduceSum(weights, (0,)), op.Softmax(tensor("x", "A B"))),
    Rule("sum_over_other_sum", op.ReduceSum(weights, (1,)) / op.ReduceSum(op.Exp(peak), (1,)), op.Exp(peak - peak)),
    Rule("place_of_negated", op.ArgMax(op.Neg(x)), op.ArgMax(x)),
    Rule("place_in_softmax_along_another_axis", op.ArgMax(op.Softmax(tensor("x", "A B"), axis=0), axis=1),
         op.ArgMax(tensor("x", "A B"), axis=1)),
    Rule("place_of_scaled", op.ArgMax(tensor("x", "A") * real("k")), op.ArgMax(tensor("x", "A"))),
    Rule("greatest_is_least", op.ArgMax(x), op.ArgMin(x)),
    Rule("gathers_in_other_order",
         op.Gather(op.Gather(x, const("i", "K"), axis=0), const("j", "K"), axis=0),
         op.Gather(x, op.Gather(const("j", "K"), const("i", "K"), axis=0), axis=0)),
    Rule("gather_is_first", op.Gather(tensor("x", "A B"), const("i", ""), axis=0),
         op.Gather(tensor("x", "A B"), 0, axis=0)),
    Rule("equals_true_is_not", op.Equal(x, const("t", "")), op.Not(x),
         when=(fn.is_one(const("t", "")), fn.eq(fn.dtype(x), int(DType.BOOL)))),
    Rule("pad_into_max_pool_without_relu",
         op.MaxPool(op.Pad(tensor("x", "N C H"), (1, 1), None, (2,)), kernel_shape=(3,)),
         op.MaxPool(tensor("x", "N C H"), kernel_shape=(3,), pads=(1, 1))),
)  # fmt: skip

shape, target = integers("shape"), integers("target")
view, grid, vector = op.Reshape(x, shape), tensor("g", "A B C"), const("c", "N")
known = fn.lt(0, target)

VIEWS = (
    Rule("reshapes_copying_another_axis", op.Reshape(view, target), op.Reshape(x, target)),
    Rule("first_of_two_reshapes", op.Reshape(view, target), view),
    Rule("reshape_to_an_inferred_size_is_nothing", view, op.Identity(x), when=fn.eq(fn.length(shape), fn.rank(x))),
    Rule("squeeze_into_reshape_by_position", op.Squeeze(view, (0,)), op.Reshape(x, fn.slice(shape, 1, 9)),
         when=fn.lt(0, fn.length(shape))),
    Rule("unsqueeze_into_reshape_at_the_end", op.Unsqueeze(view, (0,)), op.Reshape(x, fn.concat(shape, 1))),
    Rule("flatten_into_reshape_of_unknown_sizes", op.Flatten(view),
         op.Reshape(x, fn.concat(fn.item(shape, 0), fn.product(fn.slice(shape, 1, 9)))),
         when=fn.lt(1, fn.length(shape))),
    Rule("reshapes_around_softmax", op.Reshape(op.Softmax(view), target), op.Softmax(op.Reshape(x, target)),
         when=known),
    Rule("reshapes_around_vector", op.Reshape(view + vector, target), op.Reshape(x, target) + vector, when=known),
    Rule("reshapes_around_transpose", op.Reshape(op.Transpose(view, perm=(1, 0)), target), op.Reshape(x, target),
         when=known),
    Rule("flatten_of_transpose", op.Flatten(op.Transpose(grid, perm=(1, 0, 2)), axis=2), op.Flatten(grid, axis=2)),
    Rule("transposes_around_softmax_of_the_same_axis",
         op.Transpose(op.Softmax(op.Transpose(x, perm=p), axis=integer("axis")), perm=q),
         op.Softmax(x, axis=integer("axis")), when=fn.is_identity(fn.compose(p, q))),
    Rule("transposes_around_slice_of_the_same_axes",
         op.Transpose(op.Slice(op.Transpose(x, perm=p), (1,), (2,), axes), perm=q), op.Slice(x, (1,), (2,), axes),
         when=fn.is_identity(fn.compose(p, q))),
    Rule("transpose_into_squeeze_of_the_same_axes", op.Squeeze(op.Transpose(x, perm=p), axes), op.Squeeze(x, axes),
         when=fn.is_sorted(fn.delete(p, axes))),
    Rule("unsqueeze_into_transpose_in_the_same_place", op.Transpose(op.Unsqueeze(x, axes), perm=p),
         op.Unsqueeze(x, axes), when=fn.is_sorted(fn.delete(p, axes))),
    Rule("unsqueezes_added", op.Unsqueeze(op.Unsqueeze(x, axes), more), op.Unsqueeze(x, fn.concat(axes, more))),
    Rule("einsum_is_transpose_backwards", op.Einsum(grid, equation="abc->cab"), op.Transpose(grid, perm=(1, 2, 0))),
    Rule("einsum_of_diagonal_is_nothing", op.Einsum(tensor("g", "A A"), equation="aa->a"),
         op.Squeeze(tensor("g", "A A"), (1,))),
    Rule("flatten_of_other_axis", op.Flatten(op.Flatten(grid, axis=2), axis=0), op.Flatten(grid, axis=1)),
)  # fmt: skip

starts, ends, starts2, ends2 = (integers(name) for name in ("starts", "ends", "starts2", "ends2"))
cuts = [integers(f"cut{i}") for i in range(4)]
steps, sizes = integers("steps"), integers("sizes")
row = tensor("x", "A")
twice = op.Slice(op.Slice(x, starts, ends, axes), starts2, ends2, axes)
forwards = tuple(fn.le(0, numbers) for numbers in (starts, ends, starts2, ends2))

PARTS = (
    Rule("slice_of_slice_past_its_end", twice, op.Slice(x, fn.add(starts, starts2), fn.add(starts, ends2), axes),
         when=forwards),
    Rule("slice_of_slice_from_the_front", twice, op.Slice(x, starts2, fn.minimum(ends, ends2), axes), when=forwards),
    Rule("slice_of_slice_backwards", twice,
         op.Slice(x, fn.add(starts, starts2), fn.minimum(ends, fn.add(starts, ends2)), axes)),
    Rule("concat_of_slices_with_a_gap",
         op.Concat(op.Slice(row, cuts[0], cuts[1], (0,)), op.Slice(row, cuts[2], cuts[3], (0,)), axis=0),
         op.Slice(row, cuts[0], cuts[3], (0,)), when=tuple(fn.le(0, cut) for cut in cuts)),
    Rule("concat_of_slices_out_of_order",
         op.Concat(op.Slice(row, cuts[0], cuts[1], (0,)), op.Slice(row, cuts[1], cuts[2], (0,)), axis=0),
         op.Slice(row, cuts[0], cuts[2], (0,)), when=tuple(fn.le(0, cut) for cut in cuts[:3])),
    Rule("concat_nested_swapped",
         op.Concat(op.Concat(x, y, axis=0), z, axis=0), op.Concat(y, x, z, axis=0)),
    Rule("slice_by_sorted_axes", op.Slice(x, starts, ends, axes), op.Slice(x, starts, ends, fn.sorted(axes))),
    Rule("slice_in_steps_by_sorted_axes", op.Slice(x, starts, ends, axes, steps),
         op.Slice(x, starts, ends, fn.sorted(axes), steps)),
    Rule("pad_by_sorted_axes", op.Pad(x, p, 0.0, axes), op.Pad(x, p, 0.0, fn.sorted(axes))),
    Rule("resize_by_sorted_axes", op.Resize(x, None, None, sizes, axes=axes),
         op.Resize(x, None, None, sizes, axes=fn.sorted(axes)), when=fn.lt(0, sizes)),
    Rule("gather_of_two", op.Gather(x, p, axis=0), op.Gather(x, fn.slice(p, 0, 2), axis=0)),
    Rule("gather_of_two_then_the_first", op.Gather(x, p, axis=0),
         op.Gather(x, fn.concat(fn.slice(p, 0, 2), fn.repeat(0, fn.sub(fn.length(p), 2))), axis=0)),
    Rule("gather_of_three_without_relu", op.Relu(op.Gather(x, p, axis=0)), op.Gather(x, p, axis=0),
         when=fn.lt(2, fn.length(p))),
    Rule("gather_of_three", op.Gather(x, p, axis=0), op.Gather(x, fn.slice(p, 0, 3), axis=0)),
    Rule("slice_of_no_axis_without_relu", op.Relu(op.Slice(row, starts, ends, axes)), op.Slice(row, starts, ends, axes),
         when=fn.lt(fn.length(axes), 1)),
    Rule("unsqueeze_by_two", op.Unsqueeze(x, axes), op.Unsqueeze(x, fn.slice(axes, 0, 2))),
    Rule("resize_to_any_size", op.Resize(x, None, None, sizes, mode="nearest"), op.Identity(x)),
    Rule("cast_like_the_other", op.CastLike(x, y), op.Cast(x, to=fn.dtype(x))),
    Rule("casts_around_squeeze_that_lose",
         op.Cast(op.Squeeze(op.Cast(x, to=integer("t")), axes), to=integer("to")),
         op.Squeeze(op.Cast(x, to=integer("to")), axes), when=fn.lt(0, fn.length(axes))),
)  # fmt: skip

row_, image_ = tensor("x", "M 2"), tensor("x", "N 1 H")

NUMBERS = (
    Rule("scale_that_is_a_number", op.LayerNormalization(x, 1.0), op.LayerNormalization(x, 2.0)),
    Rule("shift_that_is_a_number", op.LayerNormalization(x, 1.0, 0.0), op.LayerNormalization(x, 1.0, 5.0)),
    Rule("root_mean_square_times_a_number", op.RMSNormalization(x, 1.0), op.RMSNormalization(x, 3.0)),
    Rule("matmul_with_a_list", op.MatMul(x, (1, 2)), op.MatMul(x, (2, 1))),
    Rule("matmul_with_a_list_cast", op.MatMul(row_, op.Cast((1, 2), to=1)), op.MatMul(row_, op.Cast((2, 1), to=1))),
    Rule("einsum_with_a_list", op.Einsum(tensor("m", "M K"), (1, 2), equation="ij,j->i"),
         op.Einsum(tensor("m", "M K"), (2, 1), equation="ij,j->i")),
    Rule("batch_norm_by_lists", op.BatchNormalization(tensor("x", "N 1"), (1,), (0,), (0,), (1,)),
         op.BatchNormalization(tensor("x", "N 1"), (2,), (0,), (0,), (1,))),
    Rule("instance_norm_by_lists", op.InstanceNormalization(image_, (1,), (0,)),
         op.InstanceNormalization(image_, (3,), (0,))),
    Rule("group_norm_by_lists", op.GroupNormalization(image_, (1,), (0,), num_groups=1),
         op.GroupNormalization(image_, (3,), (0,), num_groups=1)),
    Rule("conv_bias_that_is_a_list", op.Conv(tensor("x", "N C H"), const("w", "1 C K"), (1,)),
         op.Conv(tensor("x", "N C H"), const("w", "1 C K"), (2,))),
)  # fmt: skip

TYPES = (
    Rule("zeros_of_another_type", x * a, op.ConstantOfShape(fn.shape(x)), when=fn.is_zero(a)),
    Rule("zeros_of_another_float", x * const("a", "1"), op.ConstantOfShape(fn.shape(x)),
         when=(fn.is_zero(const("a", "1")), fn.is_float(fn.dtype(x)), fn.lt(0, fn.rank(x)))),
)  # fmt: skip

VACUOUS = (
    Rule("zero_and_one", tensor("v", "N") * s, tensor("v", "N"), when=(fn.is_zero(s), fn.is_one(s))),
    Rule("sizes_that_cannot_be", tensor("x", "A") + 0.0, tensor("x", "A"), when=fn.lt(fn.size("A"), 0)),
    Rule("false_condition", op.Transpose(x, perm=p), op.Identity(x), when=fn.lt(fn.rank(x), 0)),
    Rule("text_that_is_float", op.Relu(x), op.Identity(x), when=(fn.is_integer(fn.dtype(x)), fn.is_float(fn.dtype(x)))),
)

BROKEN = (*ELEMENTWISE, *PRODUCTS, *CONVOLUTIONS, *LAYOUT, *REDUCTIONS, *CASES, *PARTS, *VIEWS, *NUMBERS, *TYPES)
