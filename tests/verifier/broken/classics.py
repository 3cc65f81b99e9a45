"""Wrong rules that look like right ones: near misses of the classics, and bugs that users of optimizers reported."""

from __future__ import annotations

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, integer, integers, op, real, tensor
from graphopt.language.terms import App, TermLike

x, y = tensor("x"), tensor("y")
line, plane = tensor("x", "N C L"), tensor("x", "N C H W")
w, v = const("w", "M C K"), const("v", "M C K")
strides, pads, dilations, around = (integers(name) for name in ("strides", "pads", "dilations", "around"))
M, C, H, W, K = (fn.size(axis) for axis in "MCHWK")
eps, slope = real("eps"), real("k")
unit = const("w", "M C 1")
own_sizes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def flat(value: TermLike, *sizes: TermLike) -> App:
    return op.Reshape(value, fn.concat(*sizes), allowzero=1)


def eye(size: TermLike) -> App:
    return op.EyeLike(op.Expand(0.0, fn.concat(size, size)))


def item(numbers: TermLike, position: int) -> App:
    return fn.item(numbers, position)


blocks, groups = const("w", "G O I K"), fn.size("G")
diagonal = op.Unsqueeze(blocks, (2,)) * flat(eye(groups), groups, 1, groups, 1, 1)
query, keys, values = tensor("q", "B H L E"), tensor("k", "B H S E"), tensor("v", "B H S F")
scores = query @ op.Transpose(keys, perm=(0, 1, 3, 2))
row = tensor("x", "*b M K")
centred = row - op.ReduceMean(row, (-1,))

image = tensor("x", "N C H W")

CLASSICS = (
    Rule(
        "enlarge_dilated_kernel",
        op.Conv(line, w, dilations=(2,), pads=pads),
        op.Conv(line, op.Pad(w, (0, 0, 1, 0, 0, 1)), dilations=(2,), pads=fn.add(pads, 1)),
    ),
    Rule(
        "enlarge_plane_kernel_with_pads_in_wrong_order",
        op.Conv(plane, const("w", "M C K J"), pads=pads),
        op.Conv(plane, op.Pad(const("w", "M C K J"), (0, 0, 1, 0, 0, 0, 1, 0)), pads=fn.add(pads, (1, 1, 0, 0))),
    ),
    Rule(
        "sum_of_convs_of_other_pads",
        op.Conv(line, w, pads=(1, 0)) + op.Conv(line, v, pads=(0, 1)),
        op.Conv(line, w + v, pads=(1, 0)),
    ),
    Rule(
        "convs_sharing_no_input",
        (op.Conv(line, w), op.Conv(tensor("y", "N C L"), v)),
        op.Split.split(2, op.Conv(line, op.Concat(w, v, axis=0)), fn.concat(M, M), axis=1),
    ),
    Rule(
        "convs_sharing_an_input_split_at_wrong_point",
        (op.Conv(line, w), op.Conv(line, const("v", "P C K"))),
        op.Split.split(2, op.Conv(line, op.Concat(w, const("v", "P C K"), axis=0)), fn.concat(fn.size("P"), M), axis=1),
    ),
    Rule(
        "identity_branch_off_centre",
        op.Conv(line, const("w", "C C 3"), pads=(1, 1)) + line,
        op.Conv(line, const("w", "C C 3") + op.Pad(op.Unsqueeze(eye(C), (2,)), (0, 0, 0, 0, 0, 2)), pads=(1, 1)),
        when=(fn.le(1, C), fn.is_float(fn.dtype(line))),
    ),
    Rule(
        "identity_is_conv_of_ones",
        op.Identity(line),
        op.Conv(line, op.Expand(1.0, fn.concat(C, C, 1))),
        when=(fn.le(1, C), fn.le(1, fn.size("L")), fn.is_float(fn.dtype(line))),
    ),
    Rule(
        "concat_of_inputs_but_sum_of_weights",
        op.Conv(line, w) + op.Conv(tensor("y", "N C L"), v),
        op.Conv(line + tensor("y", "N C L"), w + v),
    ),
    Rule(
        "grouped_conv_is_dense",
        op.Conv(op.Concat(line, tensor("y", "N C L"), axis=1), op.Concat(w, v, axis=0), group=2),
        op.Conv(op.Concat(line, tensor("y", "N C L"), axis=1), op.Concat(w, v, axis=1)),
    ),
    Rule(
        "blocks_of_outputs_interleaved",
        op.Conv(line, flat(blocks, groups * fn.size("O"), fn.size("I"), K), group=groups),
        op.Conv(
            line,
            flat(
                op.Transpose(diagonal, perm=(1, 0, 2, 3, 4)),
                groups * fn.size("O"),
                groups * fn.size("I"),
                K,
            ),
        ),
        when=fn.is_float(fn.dtype(line)),
    ),
    Rule(
        "edge_pad_into_conv",
        op.Conv(op.Pad(line, (0, 0, 1, 0, 0, 1), mode="edge"), w),
        op.Conv(line, w, pads=(1, 1)),
    ),
    Rule(
        "pad_of_channels_into_conv",
        op.Conv(op.Pad(line, around), const("w", "M D K")),
        op.Conv(line, const("w", "M D K"), pads=fn.concat(item(around, 2), item(around, 5))),
        when=(fn.eq(item(around, 0), 0), fn.eq(item(around, 3), 0), fn.le(0, around)),
    ),
    Rule(
        "average_pool_without_pads_is_conv",
        op.AveragePool(line, kernel_shape=(3,), strides=strides, pads=pads, count_include_pad=0),
        op.Conv(line, op.Expand(1.0 / op.Identity(3.0), fn.concat(C, 1, 3)), strides=strides, pads=pads, group=C),
        when=fn.le(1, C),
    ),
    Rule(
        "average_pool_is_dense_conv",
        op.AveragePool(line, kernel_shape=(3,), count_include_pad=1),
        op.Conv(line, op.Expand(1.0 / op.Identity(3.0), fn.concat(C, C, 3))),
        when=fn.le(1, C),
    ),
    Rule(
        "average_pool_of_last_windows_is_conv",
        op.AveragePool(line, kernel_shape=(3,), strides=(2,), ceil_mode=1, count_include_pad=1),
        op.Conv(line, op.Expand(1.0 / op.Identity(3.0), fn.concat(C, 1, 3)), strides=(2,), group=C),
        when=fn.le(1, C),
    ),
    Rule(
        "mean_is_that_of_padded_columns",
        op.ReduceMean(image, (2, 3), keepdims=1),
        op.GlobalAveragePool(op.AveragePool(image, kernel_shape=fn.concat(fn.size("H"), 1), pads=(1, 0, 0, 0))),
        when=(fn.lt(1, fn.size("H")), fn.lt(0, fn.size("W")), fn.le(1, C)),
    ),
    Rule(
        "pool_without_its_kernel",
        op.GlobalAveragePool(image),
        op.GlobalAveragePool(op.AveragePool(image)),
        when=(fn.lt(0, fn.size("H")), fn.lt(0, fn.size("W")), fn.le(1, C)),
    ),
    Rule(
        "mean_is_that_of_windows_of_which_the_last_is_cut",
        op.ReduceMean(tensor("x", "N C 3"), (2,), keepdims=1),
        op.GlobalAveragePool(op.AveragePool(tensor("x", "N C 3"), kernel_shape=(2,), strides=(2,), ceil_mode=1)),
        when=fn.le(1, C),
    ),
    Rule(
        "strided_pointwise_conv_is_matmul",
        op.Conv(line, unit, strides=strides),
        op.Reshape(unit, fn.sizes("M C")) @ line,
    ),
    Rule(
        "pointwise_conv_after_conv_without_its_bias",
        op.Conv(op.Conv(line, w, const("b", "M")), const("v", "P M 1")),
        op.Conv(
            line, flat(op.Reshape(const("v", "P M 1"), fn.sizes("P M")) @ flat(w, M, C * K), fn.size("P"), C, K)
        ),
    ),
    Rule("matmul_associates_and_commutes", (tensor("m", "K K") @ tensor("n", "K K")) @ tensor("o", "K K"),
         tensor("m", "K K") @ (tensor("o", "K K") @ tensor("n", "K K"))),
    Rule(
        "line_conv_is_plane_conv_across",
        op.Conv(line, w, pads=pads),
        op.Squeeze(
            op.Conv(
                op.Unsqueeze(line, (2,)), op.Unsqueeze(w, (2,)), pads=fn.concat(item(pads, 0), 0, item(pads, 1), 0)
            ),
            (2,),
        ),
    ),
    Rule(
        "space_to_depth_conv_channels_first",
        op.Conv(op.SpaceToDepth(plane, blocksize=2), const("w", "M D 1 1")),
        op.Conv(plane, flat(const("w", "M D 1 1"), M, C, 2, 2), strides=(2, 2)),
        when=(fn.le(1, H), fn.le(1, W)),
    ),
    Rule(
        "upsampling_commutes_with_wide_conv",
        op.Conv(op.Resize(line, None, (1.0, 1.0, 2.0), **own_sizes), const("w", "M C 3"), pads=(1, 1)),
        op.Resize(op.Conv(line, const("w", "M C 3"), pads=(1, 1)), None, (1.0, 1.0, 2.0), **own_sizes),
    ),
    Rule("softmax_of_scaled_row", op.Softmax(row * tensor("c", "*b 1")), op.Softmax(row)),
    Rule(
        "layer_norm_with_epsilon_outside",
        centred / (op.Sqrt(op.ReduceMean(centred * centred, (-1,))) + eps) * const("g", "K"),
        op.LayerNormalization(row, const("g", "K"), axis=-1, epsilon=eps),
    ),
    Rule(
        "layer_norm_of_other_axis",
        (row - op.ReduceMean(row, (-2,))) / op.Sqrt(op.ReduceMean(centred * centred, (-1,)) + eps) * const("g", "K"),
        op.LayerNormalization(row, const("g", "K"), axis=-1, epsilon=eps),
    ),
    Rule("attention_without_scale", op.Softmax(scores, axis=-1) @ values, op.Attention(query, keys, values)),
    Rule(
        "attention_over_queries",
        op.Softmax(scores / fn.sqrt(fn.size("E")), axis=-2) @ values,
        op.Attention(query, keys, values),
    ),
    Rule(
        "attention_with_scaled_mask",
        op.Softmax((scores + tensor("mask", "B H L S")) / fn.sqrt(fn.size("E")), axis=-1) @ values,
        op.Attention(query, keys, values, tensor("mask", "B H L S")),
    ),
    Rule(
        "slice_of_contracted_axis",
        op.Slice(tensor("m", "M K"), (0,), (1,), (1,)) @ op.Slice(tensor("n", "K N"), (0,), (1,), (0,)),
        tensor("m", "M K") @ tensor("n", "K N"),
    ),
    Rule(
        "slice_of_wide_conv",
        op.Slice(op.Conv(line, const("w", "M C 3"), pads=(1, 1)), (0,), (2,), (2,)),
        op.Conv(op.Slice(line, (0,), (2,), (2,)), const("w", "M C 3"), pads=(1, 1)),
    ),
    Rule(
        "slice_before_softmax",
        op.Slice(op.Softmax(tensor("x", "A B")), (0,), (2,), (1,)),
        op.Softmax(op.Slice(tensor("x", "A B"), (0,), (2,), (1,))),
    ),
    Rule(
        "reshape_before_transpose",
        op.Reshape(op.Transpose(tensor("x", "A B C"), perm=(1, 0, 2)), fn.sizes("A B C")),
        op.Identity(tensor("x", "A B C")),
    ),
    Rule(
        "heads_joined_without_transpose",
        op.Reshape(op.Transpose(tensor("x", "B L H E"), perm=(0, 2, 1, 3)), fn.concat(fn.size("B"), H, -1)),
        op.Reshape(tensor("x", "B L H E"), fn.concat(fn.size("B"), H, -1)),
    ),
)  # fmt: skip

low, high, lower, higher = (real(name) for name in ("low", "high", "lower", "higher"))
first, second = integers("first"), integers("second")
step, zero = const("s", ""), const("z", "")

REPORTED = (
    Rule("squeezes_joined_without_renumbering", op.Squeeze(op.Squeeze(x, (0,)), (1,)), op.Squeeze(x, (0, 1))),
    Rule("unsqueezes_joined_from_the_end", op.Unsqueeze(op.Unsqueeze(x, (-1,)), (0,)), op.Unsqueeze(x, (-1, 0, 1))),
    Rule("reshape_keeps_sizes_of_the_first", op.Reshape(op.Reshape(x, first), second), op.Reshape(x, second)),
    Rule("reshape_of_as_many_is_nothing", op.Reshape(tensor("x", "A B"), fn.sizes("B A")),
         op.Identity(tensor("x", "A B"))),
    Rule("slices_joined_without_the_end", op.Slice(op.Slice(x, (1,), (3,), (0,)), (1,), (2,), (0,)),
         op.Slice(x, (2,), (2,), (0,))),
    Rule("slice_with_step_is_nothing", op.Slice(x, (0,), (2**31,), (0,), (2,)), op.Identity(x)),
    Rule("shape_of_some_is_shape_of_all", op.Shape(x, start=1), op.Shape(x)),
    Rule("clips_of_disjoint_ranges_joined", op.Clip(op.Clip(x, low, high), lower, higher),
         op.Clip(x, fn.maximum(low, lower), fn.minimum(high, higher)),
         when=(fn.le(low, high), fn.le(lower, higher), fn.is_float(fn.dtype(x)))),
    Rule("relu_dropped_before_clip", op.Clip(op.Relu(x), -1.0, 1.0), op.Clip(x, -1.0, 1.0)),
    Rule("concats_along_other_axes", op.Concat(op.Concat(x, y, axis=0), tensor("z"), axis=1),
         op.Concat(x, y, tensor("z"), axis=0)),
    Rule("gelu_by_tanh_is_gelu", op.Gelu(x, approximate="tanh"), op.Gelu(x)),
    Rule("quantized_and_back_is_nothing",
         op.DequantizeLinear(op.QuantizeLinear(x, step, zero), step, zero), op.Identity(x),
         when=fn.eq(fn.dtype(zero), int(DType.UINT8))),
    Rule("expand_of_same_rank_is_nothing", op.Expand(x, first), op.Identity(x),
         when=fn.eq(fn.length(first), fn.rank(x))),
    Rule("tiles_added", op.Tile(op.Tile(x, first), second), op.Tile(x, fn.add(first, second))),
    Rule("resize_of_corners_is_of_cells",
         op.Resize(line, None, (1.0, 1.0, 3.0), mode="nearest", coordinate_transformation_mode="align_corners"),
         op.Resize(line, None, (1.0, 1.0, 3.0), **own_sizes)),
    Rule("gemm_bias_scaled_by_alpha", op.Gemm(tensor("m", "M K"), tensor("n", "K N"), const("b", "N"), alpha=slope),
         (tensor("m", "M K") @ tensor("n", "K N") + const("b", "N")) * slope),
    Rule("gather_after_transpose_along_same_axis",
         op.Gather(op.Transpose(tensor("x", "A B"), perm=(1, 0)), (0,), axis=0),
         op.Transpose(op.Gather(tensor("x", "A B"), (0,), axis=0), perm=(1, 0))),
)  # fmt: skip

# What the prover once proved: no scalar can be squeezed, and it had looked at scalars only.
ONCE_PROVED = (
    Rule(
        "casts_that_lose_around_squeeze",
        op.Cast(op.Squeeze(op.Cast(x, to=integer("through")), first), to=integer("to")),
        op.Squeeze(op.Cast(x, to=integer("to")), first),
        when=fn.lt(0, fn.length(first)),
    ),
    Rule(
        "casts_that_lose_around_transpose_of_three_axes",
        op.Cast(op.Transpose(op.Cast(tensor("x"), to=integer("through")), perm=(2, 0, 1)), to=integer("to")),
        op.Transpose(op.Cast(tensor("x"), to=integer("to")), perm=(2, 0, 1)),
    ),
)

NEIGHBOURS = (*CLASSICS, *REPORTED, *ONCE_PROVED)
