"""The rewrites that a verifier of tensor programs is measured by: proved for all sizes, strides, pads and kernels."""

from __future__ import annotations

import pytest

from graphopt.base.dtype import DType
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, TermLike
from graphopt.verifier.prove import prove
from tests.verifier.broken.classics import eye, flat
from tests.verifier.broken.placed import backwards
from tests.versions import has_operator

x, y = tensor("x", "N C *s"), tensor("y", "N D *s")
w, v = const("w", "M C *k"), const("v", "M C *k")
wg, vg = const("w", "M I *k"), const("v", "M I *k")  # in any number of groups
b = const("b", "M")
rest = attributes("rest")
strides, pads, dilations = integers("strides"), integers("pads"), integers("dilations")
start, stop = integers("start"), integers("stop")
eps, around, wide, kernel = real("eps"), integers("around"), integers("wide"), integers("kernel")
group, block = integer("group"), integer("block")
scale, shift, mean, var = (const(n, "M") for n in ("scale", "shift", "mean", "var"))
factor = scale / op.Sqrt(var + eps)

# Space and kernels of one and two dimensions, where a rule has to name them.
line, plane = tensor("x", "N C L"), tensor("x", "N C H W")
wl, wp = const("w", "M C K"), const("w", "M C K J")
grouped = {"strides": strides, "pads": pads, "dilations": dilations}


def shaped(value: TermLike, axes: str) -> App:
    return op.Reshape(value, fn.sizes(axes))


def padded(value: TermLike, before: TermLike, after: TermLike) -> App:
    """The last axes of a kernel padded by zeros."""
    return op.Pad(value, fn.concat(0, 0, before, 0, 0, after))


def ends(numbers: TermLike, axes: int) -> tuple[App, App]:
    """The first half of the pads of so many axes, and the second."""
    return fn.slice(numbers, 0, axes), fn.slice(numbers, axes, 2 * axes)


N, C, M, L, K = (fn.size(axis) for axis in "NCMLK")
H, W, G, P = (fn.size(axis) for axis in "HWGP")
into, outof = fn.size("I"), fn.size("O")  # the channels of a group
twice = fn.mul(L, 2)
doubled = (1, 1, 1, 2)


m, n = tensor("m", "*b M K"), tensor("n", "*b K N")
vec = tensor("x", "*b M K")
dilated = fn.mul(fn.concat(dilations, dilations), fn.concat(fn.item(around, 2), fn.item(around, 5)))
centred = vec - op.ReduceMean(vec, (-1,))
grouped_line, gain, offset = tensor("x", "N G D L"), const("g", "G D 1"), const("h", "G D 1")
centred_groups = grouped_line - op.ReduceMean(grouped_line, (2, 3))
channels = fn.mul(fn.size("G"), fn.size("D"))
turned, angles = tensor("x", "B H L E"), [op.Unsqueeze(tensor(name, "B L D"), (1,)) for name in ("cos", "sin")]
even, odd = op.Split.split(2, turned, fn.sizes("D D"), axis=-1)
q, k, val = tensor("q", "*b L E"), tensor("k", "*b S E"), tensor("v", "*b S F")
weights = op.Exp(q @ k)
queries, keys, values = tensor("q", "B H L E"), tensor("k", "B H S E"), tensor("v", "B H S F")
mask, attention_scale = tensor("mask", "B H L S"), real("scale")
scores = queries @ op.Transpose(keys, perm=(0, 1, 3, 2))
own, both_ways = {"strides": strides, "dilations": dilations}, {"strides": strides, "pads": pads}
nearest = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
blocks = const("w", "G O I K")
diagonal = op.Unsqueeze(blocks, (2,)) * flat(eye(G), G, 1, G, 1, 1)
missing = [wider - own_pad for wider, own_pad in zip(ends(wide, 1), ends(pads, 1), strict=True)]
mix = shaped(const("v", "P M 1"), "P M")
single = fn.eq(fn.dtype(line), DType.FLOAT)  # as EyeLike makes of a number
not_empty = tuple(fn.le(1, size) for size in (C, M, L))
attended = tuple(fn.le(1, fn.size(axis)) for axis in "BHLSEF")

CLASSICS = (
    Rule(
        "conv_batch_norm",
        op.BatchNormalization(op.Conv(x, wg, b, rest), scale, shift, mean, var, epsilon=eps),
        op.Conv(x, wg * shaped(factor, "M 1 1*k"), (b - mean) * factor + shift, rest),
        when=(fn.eq(fn.dtype(scale), fn.dtype(x)), fn.eq(fn.dtype(mean), fn.dtype(x))),
    ),
    Rule(
        "convs_sharing_an_input",
        (op.Conv(x, w, b, rest, group=1), op.Conv(x, const("v", "L C *k"), const("d", "L"), rest, group=1)),
        op.Split.split(
            2,
            op.Conv(
                x,
                op.Concat(w, const("v", "L C *k"), axis=0),
                op.Concat(b, const("d", "L"), axis=0),
                rest,
                group=1,
            ),
            fn.concat(fn.size("M"), fn.size("L")),
            axis=1,
        ),
    ),
    Rule("sum_of_convs", op.Conv(x, wg, rest) + op.Conv(x, vg, rest), op.Conv(x, wg + vg, rest)),
    Rule(
        "sum_of_convs_of_different_kernels",
        op.Conv(line, wl, **both_ways) + op.Conv(line, const("v", "M C J"), strides=strides, pads=wide),
        op.Conv(line, padded(wl, *missing) + const("v", "M C J"), strides=strides, pads=wide),
        when=(fn.le(pads, wide), fn.eq(fn.size("J"), K + fn.sum(wide) - fn.sum(pads))),
    ),
    Rule(
        "kernel_enlarged_by_any_zeros",
        op.Conv(line, op.Pad(wl, around), pads=pads, **own),
        op.Conv(line, wl, pads=pads - dilated, **own),
        when=(
            *(fn.eq(fn.item(around, i), 0) for i in (0, 1, 3, 4)),
            fn.le(0, around),
            fn.le(dilated, pads),
            *(fn.le(1, size) for size in (M, C, K)),
        ),
    ),
    Rule(
        "enlarge_kernel",
        op.Conv(line, wl, strides=strides, pads=pads),
        op.Conv(line, op.Pad(wl, (0, 0, 1, 0, 0, 1)), strides=strides, pads=fn.add(pads, 1)),
    ),
    Rule(
        "enlarge_plane_kernel",
        op.Conv(plane, wp, strides=strides, pads=pads),
        op.Conv(plane, op.Pad(wp, (0, 0, 1, 2, 0, 0, 1, 2)), strides=strides, pads=fn.add(pads, (1, 2, 1, 2))),
    ),
    Rule(
        "identity_is_pointwise_conv",
        op.Identity(line),
        op.Conv(line, op.Unsqueeze(op.EyeLike(op.Expand(0.0, fn.sizes("C C"))), (2,))),
        when=(fn.le(1, fn.size("C")), fn.le(1, fn.size("L")), fn.eq(fn.dtype(line), DType.FLOAT)),
    ),
    Rule(
        "identity_is_wide_conv",
        op.Identity(line),
        op.Conv(
            line,
            op.Pad(op.Unsqueeze(op.EyeLike(op.Expand(0.0, fn.sizes("C C"))), (2,)), (0, 0, 2, 0, 0, 2)),
            pads=(2, 2),
        ),
        when=(fn.le(1, fn.size("C")), fn.le(1, fn.size("L")), fn.eq(fn.dtype(line), DType.FLOAT)),
    ),
    Rule(
        "identity_branch_beside_conv_of_any_width",
        op.Conv(line, const("w", "C C K"), pads=pads) + line,
        op.Conv(line, const("w", "C C K") + padded(op.Unsqueeze(eye(C), (2,)), *ends(pads, 1)), pads=pads),
        when=(fn.le(1, C), fn.le(1, L), fn.le(0, pads), fn.eq(K, fn.sum(pads) + 1), single),
    ),
    Rule(
        "identity_branch_beside_plane_conv",
        op.Conv(plane, const("w", "C C K J"), pads=pads) + plane,
        op.Conv(plane, const("w", "C C K J") + padded(op.Unsqueeze(eye(C), (2, 3)), *ends(pads, 2)), pads=pads),
        when=(
            *(fn.le(1, size) for size in (C, H, W)),
            fn.le(0, pads),
            fn.eq(fn.sizes("K J"), fn.add(ends(pads, 2)[0], ends(pads, 2)[1]) + 1),
            fn.eq(fn.dtype(plane), DType.FLOAT),
        ),
    ),
    Rule(
        "sum_of_convs_of_two_inputs",
        op.Conv(x, w, **grouped) + op.Conv(y, const("v", "M D *k"), **grouped),
        op.Conv(op.Concat(x, y, axis=1), op.Concat(w, const("v", "M D *k"), axis=1), **grouped),
    ),
    Rule(
        "grouped_conv_is_block_diagonal",
        op.Conv(op.Concat(x, y, axis=1), op.Concat(w, const("v", "M C *k"), axis=0), group=2, **grouped),
        op.Concat(op.Conv(x, w, **grouped), op.Conv(y, const("v", "M C *k"), **grouped), axis=1),
        when=fn.eq(fn.size("C"), fn.size("D")),
    ),
    Rule(
        "grouped_conv_is_conv_with_block_diagonal_weights",
        op.Conv(line, flat(blocks, G * outof, into, K), group=G, **grouped),
        op.Conv(line, flat(diagonal, G * outof, G * into, K), **grouped),
        when=single,
    ),
    Rule(
        "pad_into_conv",
        op.Conv(op.Pad(line, around), wl, strides=strides, pads=pads),
        op.Conv(line, wl, strides=strides, pads=fn.add(pads, fn.concat(fn.item(around, 2), fn.item(around, 5)))),
        when=(*(fn.eq(fn.item(around, i), 0) for i in (0, 1, 3, 4)), fn.le(0, around)),
    ),
    Rule(
        "average_pool_is_depthwise_conv",
        op.AveragePool(x, kernel_shape=kernel, count_include_pad=1, **both_ways),
        op.Conv(x, op.Expand(fn.truediv(1, fn.product(kernel)), fn.concat(C, 1, kernel)), group=C, **both_ways),
        when=fn.le(1, fn.size("C")),
    ),
    Rule(
        "pointwise_conv_is_matmul",
        op.Conv(tensor("x", "N C L"), const("w", "M C 1")),
        shaped(const("w", "M C 1"), "M C") @ tensor("x", "N C L"),
    ),
    Rule(
        "pointwise_plane_conv_is_matmul",
        op.Conv(plane, const("w", "M C 1 1")),
        flat(shaped(const("w", "M C 1 1"), "M C") @ flat(plane, N, C, H * W), N, M, H, W),
    ),
    Rule(
        "matmul_is_pointwise_conv",
        const("w", "M C") @ line,
        op.Conv(line, op.Unsqueeze(const("w", "M C"), (2,))),
        when=(*not_empty, single),
    ),
    Rule(
        "pointwise_conv_after_conv",
        op.Conv(op.Conv(line, wl, b, **grouped), const("v", "P M 1"), const("d", "P")),
        op.Conv(line, flat(mix @ flat(wl, M, C * K), P, C, K), mix @ b + const("d", "P"), **grouped),
    ),
    Rule("matmul_associates", (m @ n) @ tensor("o", "*b N P"), m @ (n @ tensor("o", "*b N P"))),
    Rule(
        "sum_of_products",
        m @ n + tensor("o", "*b M L") @ tensor("p", "*b L N"),
        op.Concat(m, tensor("o", "*b M L"), axis=-1) @ op.Concat(n, tensor("p", "*b L N"), axis=-2),
    ),
    Rule(
        "transpose_of_product",
        op.Transpose(tensor("m", "M K") @ tensor("n", "K N"), perm=(1, 0)),
        op.Transpose(tensor("n", "K N"), perm=(1, 0)) @ op.Transpose(tensor("m", "M K"), perm=(1, 0)),
    ),
    Rule(
        "transpose_of_products",
        op.Transpose(tensor("m", "B M K") @ tensor("n", "B K N"), perm=(0, 2, 1)),
        op.Transpose(tensor("n", "B K N"), perm=(0, 2, 1)) @ op.Transpose(tensor("m", "B M K"), perm=(0, 2, 1)),
    ),
    Rule(
        "line_conv_is_plane_conv",
        op.Conv(line, const("w", "M I K"), b, group=group, **grouped),
        op.Squeeze(
            op.Conv(
                op.Unsqueeze(line, (2,)),
                op.Unsqueeze(const("w", "M I K"), (2,)),
                b,
                group=group,
                strides=fn.concat(1, strides),
                dilations=fn.concat(1, dilations),
                pads=fn.concat(0, fn.item(pads, 0), 0, fn.item(pads, 1)),
            ),
            (2,),
        ),
    ),
    Rule(
        "softmax_shift",
        op.Softmax(tensor("x", "*b K") + tensor("c", "*b 1")),
        op.Softmax(tensor("x", "*b K")),
    ),
    Rule(
        "log_softmax_shift",
        op.LogSoftmax(tensor("x", "*b K") + tensor("c", "*b 1")),
        op.LogSoftmax(tensor("x", "*b K")),
    ),
    Rule(
        "layer_norm",
        centred / op.Sqrt(op.ReduceMean(centred * centred, (-1,)) + eps) * const("g", "K") + const("h", "K"),
        op.LayerNormalization(vec, const("g", "K"), const("h", "K"), axis=-1, epsilon=eps),
        when=(fn.le(1, fn.size("K")), fn.eq(fn.dtype(vec), DType.FLOAT)),
    ),
    Rule(
        "group_norm",
        centred_groups / op.Sqrt(op.ReduceMean(centred_groups * centred_groups, (2, 3)) + eps) * gain + offset,
        flat(
            op.GroupNormalization(
                flat(grouped_line, N, channels, L), flat(gain, channels), flat(offset, channels),
                num_groups=fn.size("G"), epsilon=eps,
            ),
            N, fn.size("G"), fn.size("D"), L,
        ),
        when=(*(fn.le(1, fn.size(axis)) for axis in "NGDL"), fn.eq(fn.dtype(grouped_line), DType.FLOAT)),
    ),
    Rule(
        "rms_norm",
        vec / op.Sqrt(op.ReduceMean(vec * vec, (-1,)) + eps) * const("g", "K"),
        op.RMSNormalization(vec, const("g", "K"), axis=-1, epsilon=eps),
        when=(fn.le(1, fn.size("K")), fn.eq(fn.dtype(vec), DType.FLOAT)),
    ),
    Rule(
        "rotary_embedding",
        op.Concat(even * angles[0] - odd * angles[1], even * angles[1] + odd * angles[0], axis=-1),
        op.RotaryEmbedding(turned, tensor("cos", "B L D"), tensor("sin", "B L D")),
        when=(fn.le(1, fn.size("D")), fn.eq(fn.dtype(turned), DType.FLOAT)),
    ),
    Rule(
        "attention_of_scores",
        (weights / op.ReduceSum(weights, (-1,))) @ val,
        op.Softmax(q @ k, axis=-1) @ val,
    ),
    Rule(
        "attention_with_mask",
        op.Softmax(scores * attention_scale + mask, axis=-1) @ values,
        op.Attention(queries, keys, values, mask, scale=attention_scale),
        when=(*attended, fn.lt(0.0, attention_scale), fn.eq(fn.dtype(queries), DType.FLOAT)),
    ),
    Rule(
        "attention_with_its_own_scale",
        op.Softmax(scores / fn.sqrt(fn.size("E")), axis=-1) @ values,
        op.Attention(queries, keys, values),
        when=attended,
    ),
    Rule(
        "slice_of_product",
        op.Slice(tensor("m", "M K") @ tensor("n", "K N"), start, stop, (0,)),
        op.Slice(tensor("m", "M K"), start, stop, (0,)) @ tensor("n", "K N"),
    ),
    Rule(
        "slice_of_elementwise",
        op.Slice(op.Tanh(tensor("x", "A B")), start, stop, integers("along"), integers("step")),
        op.Tanh(op.Slice(tensor("x", "A B"), start, stop, integers("along"), integers("step"))),
    ),
    Rule(
        "slice_of_pointwise_conv",
        op.Slice(op.Conv(line, const("w", "M C 1")), start, stop, (2,), integers("step")),
        op.Conv(
            op.Slice(line, start, stop, (2,), integers("step")),
            const("w", "M C 1"),
        ),
        when=(fn.le(0, start), fn.lt(start, stop), fn.le(stop, fn.size("L")), fn.le(1, integers("step"))),
    ),
    Rule(
        "reshapes",
        op.Reshape(op.Reshape(tensor("x", "A B C"), fn.concat(fn.size("A"), -1)), fn.sizes("A C B"), allowzero=1),
        op.Reshape(tensor("x", "A B C"), fn.sizes("A C B"), allowzero=1),
        when=fn.le(1, fn.size("A")),
    ),
    Rule(
        "transposes",
        op.Transpose(op.Transpose(tensor("x"), perm=integers("p")), perm=integers("q")),
        op.Transpose(tensor("x"), perm=fn.compose(integers("p"), integers("q"))),
    ),
    Rule(
        "transpose_of_split_heads",
        op.Transpose(op.Transpose(tensor("x", "B L H E"), perm=(0, 2, 1, 3)), perm=(0, 2, 1, 3)),
        op.Identity(tensor("x", "B L H E")),
    ),
    Rule(
        "upsample_commutes_with_pointwise_conv",
        op.Conv(flat(op.Expand(op.Unsqueeze(line, (3,)), doubled), N, C, twice), const("w", "M C 1")),
        flat(op.Expand(op.Unsqueeze(op.Conv(line, const("w", "M C 1")), (3,)), doubled), N, M, twice),
    ),
    Rule(
        "nearest_upsampling_commutes_with_pointwise_conv",
        op.Conv(op.Resize(plane, None, (1.0, 1.0, 2.0, 3.0), **nearest), const("w", "M C 1 1")),
        op.Resize(op.Conv(plane, const("w", "M C 1 1")), None, (1.0, 1.0, 2.0, 3.0), **nearest),
    ),
    Rule(
        "space_to_depth_pointwise_conv",
        op.Conv(op.SpaceToDepth(plane, blocksize=block), const("w", "M D 1 1")),
        op.Conv(
            plane,
            op.Transpose(flat(const("w", "M D 1 1"), M, block, block, C), perm=(0, 3, 1, 2)),
            strides=fn.concat(block, block),
        ),
        when=(fn.le(1, H), fn.le(1, W)),
    ),
    Rule(
        "space_to_depth_conv",
        op.Conv(op.SpaceToDepth(plane, blocksize=2), const("w", "M D K J"), pads=pads),
        op.Conv(
            plane,
            flat(
                op.Transpose(flat(const("w", "M D K J"), M, 2, 2, C, K, fn.size("J")), perm=(0, 3, 4, 1, 5, 2)),
                M, C, K * 2, fn.size("J") * 2,
            ),
            strides=(2, 2),
            pads=fn.mul(pads, 2),
        ),
        when=(fn.le(1, H), fn.le(1, W)),
    ),
)  # fmt: skip

a, bb, z = tensor("a"), tensor("b"), tensor("z")
any_, other, indices = tensor("x"), tensor("y"), tensor("i")
of_floats = fn.eq(fn.dtype(any_), DType.FLOAT)
scored, classes = tensor("x", "N C"), tensor("i", "N")
row, rows, more = tensor("x", "N"), tensor("x", "M K"), tensor("y", "L K")
times, at = integers("times"), integer("at")
first, last, asked = tensor("starts"), tensor("ends"), tensor("shape")


best = op.TopK.split(2, any_, times)
recurrent, enlarged = (tensor("w", "D V I"), tensor("r", "D V H")), (1.0, 1.0, 1.5, 1.5)


TEXTBOOK = (
    Rule("reverse_of_concat", backwards(op.Concat(rows, more, axis=0)),
         op.Concat(backwards(more), backwards(rows), axis=0)),
    Rule("reverse_of_pad", backwards(op.Pad(row, pads)),
         op.Pad(backwards(row), fn.concat(fn.item(pads, 1), fn.item(pads, 0))), when=fn.le(0, pads)),
    Rule("slice_to_the_longest_end", op.Slice(any_, (0,), (MAX_AXIS_SIZE,), (0,)), any_),
    Rule("pad_of_relu", op.Pad(op.Relu(any_), pads), op.Relu(op.Pad(any_, pads))),
    Rule("concat_twice_is_tile", op.Concat(row, row, axis=0), op.Tile(row, (2,))),
    Rule("tile_is_concat", op.Tile(rows, (1, 3)), op.Concat(rows, rows, rows, axis=1)),
    Rule("sum_of_reshape", op.ReduceSum(op.Reshape(any_, times), keepdims=0), op.ReduceSum(any_, keepdims=0)),
    Rule("greatest_of_reshape", op.ReduceMax(op.Reshape(any_, times), keepdims=0), op.ReduceMax(any_, keepdims=0)),
    Rule("mean_of_flatten", op.ReduceMean(op.Flatten(any_, axis=at), keepdims=0), op.ReduceMean(any_, keepdims=0)),
    Rule("greatest_of_expand", op.ReduceMax(op.Expand(tensor("x", "N 1"), times), (1,), keepdims=0),
         op.Squeeze(tensor("x", "N 1"), (1,)),
         when=(fn.eq(fn.length(times), 2), fn.eq(fn.item(times, 0), 1), fn.le(1, times))),
    Rule("greatest_of_tile", op.ReduceMax(op.Tile(row, times)), op.ReduceMax(row), when=fn.le(1, times)),
    Rule("where_of_sums", op.Where(a, any_ + z, other + z), op.Where(a, any_, other) + z),
    Rule("where_of_both", op.Where(op.And(a, bb), any_, other), op.Where(a, op.Where(bb, any_, other), other)),
    Rule("where_of_either", op.Where(op.Or(a, bb), any_, other), op.Where(a, any_, op.Where(bb, any_, other))),
    Rule("gather_of_relu", op.Gather(op.Relu(any_), indices, axis=at), op.Relu(op.Gather(any_, indices, axis=at))),
    Rule("gather_of_sum", op.Gather(rows + tensor("y", "M K"), indices),
         op.Gather(rows, indices) + op.Gather(tensor("y", "M K"), indices)),
    Rule("gather_of_rows_scaled", op.Gather(rows * tensor("y", "K"), indices),
         op.Gather(rows, indices) * tensor("y", "K")),
    Rule("gather_of_product", op.Gather(rows @ tensor("y", "K N"), indices),
         op.Gather(rows, indices) @ tensor("y", "K N")),
    Rule("slice_of_relu_as_it_runs", op.Relu(op.Slice(any_, first, last)), op.Slice(op.Relu(any_), first, last)),
    Rule("reshape_of_relu_as_it_runs", op.Relu(op.Reshape(any_, asked)), op.Reshape(op.Relu(any_), asked)),
    Rule("expand_of_relu_as_it_runs", op.Expand(op.Relu(any_), asked), op.Relu(op.Expand(any_, asked))),
    Rule("reshapes_as_they_run", op.Reshape(op.Reshape(any_, times), asked, allowzero=1),
         op.Reshape(any_, asked, allowzero=1)),
    Rule("convs_in_as_many_groups",
         op.Conv(line, const("w", "M I K"), group=group) + op.Conv(line, const("v", "M I K"), group=block),
         op.Conv(line, const("w", "M I K") + const("v", "M I K"), group=group), when=fn.eq(group, block)),
    Rule("greatest_are_found_at_their_places", best[0], op.GatherElements(any_, best[1], axis=-1)),
    Rule("places_of_negated_twice", op.TopK.split(2, op.Neg(op.Neg(any_)), times)[1], best[1]),
    Rule("hardmax_of_negated_twice", op.Hardmax(op.Neg(op.Neg(rows))), op.Hardmax(rows)),
    Rule("global_norm_is_root_of_squares", op.GlobalLpPool(plane),
         op.Sqrt(op.ReduceSum(op.Abs(plane) * op.Abs(plane), (2, 3)))),
    Rule("one_hot_of_identity", op.OneHot(op.Neg(op.Neg(indices)), block, tensor("v", "2")),
         op.OneHot(indices, block, tensor("v", "2"))),
    Rule("elements_of_relu", op.GatherElements(op.Relu(any_), indices, axis=at),
         op.Relu(op.GatherElements(any_, indices, axis=at))),
    Rule("nd_of_rows_is_gather", op.GatherND(rows, tensor("i", "L 1")),
         op.Gather(rows, op.Squeeze(tensor("i", "L 1"), (1,)))),
    Rule("scatter_counts_axes_from_either_end", op.ScatterElements(rows, indices, z, axis=-1),
         op.ScatterElements(rows, indices, z, axis=1)),
    Rule("scatter_nd_of_negated_twice", op.ScatterND(op.Neg(op.Neg(rows)), tensor("i", "L 1"), z),
         op.ScatterND(rows, tensor("i", "L 1"), z)),
    Rule("nonzero_of_negated_twice", op.NonZero(op.Neg(op.Neg(rows))), op.NonZero(rows)),
    Rule("range_of_negated_twice", op.Range(op.Neg(op.Neg(tensor("a", ""))), tensor("b", ""), tensor("c", "")),
         op.Range(tensor("a", ""), tensor("b", ""), tensor("c", ""))),
    *(Rule(f"{name.lower()}_of_negated_twice",
           getattr(op, name)(op.Neg(op.Neg(tensor("x", "S B I"))), *recurrent, hidden_size=fn.size("H")),
           getattr(op, name)(tensor("x", "S B I"), *recurrent, hidden_size=fn.size("H")))
      for name in ("LSTM", "GRU", "RNN")),
    *(Rule(f"leaky_relu_asks_{name}", which, op.LeakyRelu(any_, alpha=0.25), when=of_floats)
      for name, which in (("less", op.Where(any_ < 0.0, 0.25 * any_, any_)),
                          ("greater", op.Where(any_ > 0.0, any_, 0.25 * any_)),
                          ("not_less", op.Where(any_ >= 0.0, any_, 0.25 * any_)))),
    *(Rule(f"elu_asks_{name}", which, op.Elu(any_), when=of_floats)
      for name, which in (("less", op.Where(any_ < 0.0, op.Exp(any_) - 1.0, any_)),
                          ("greater", op.Where(any_ > 0.0, any_, op.Exp(any_) - 1.0)),
                          ("nothing", op.Max(any_, 0.0) + op.Min(op.Exp(any_) - 1.0, 0.0)))),
    Rule("celu_of_one_is_elu", op.Celu(any_), op.Elu(any_)),
    Rule("celu_is_at_most_relu", op.Max(op.Celu(any_, alpha=real("a")), op.Relu(any_)), op.Relu(any_)),
    Rule("mean_variance_of_negated", op.MeanVarianceNormalization(-plane), -op.MeanVarianceNormalization(plane)),
    *((Rule("swiglu_is_a_gate", op.SwiGLU(scored, op.Neg(op.Neg(scored))), scored * op.Sigmoid(scored) * scored),)
      if has_operator("SwiGLU") else ()),
    Rule("entropy_is_loss_of_log_softmax",
         op.SoftmaxCrossEntropyLoss(scored, classes),
         op.NegativeLogLikelihoodLoss(op.LogSoftmax(scored, axis=1), classes)),
    Rule("resize_of_negated_twice", op.Resize(op.Neg(op.Neg(plane)), None, enlarged, mode="cubic"),
         op.Resize(plane, None, enlarged, mode="cubic")),
)  # fmt: skip
"""What a reader expects to be provable."""


@pytest.mark.parametrize("rule", TEXTBOOK, ids=lambda rule: rule.name)
def test_it_is_proved_at_once(rule: Rule) -> None:
    proof = prove(rule, timeout=10, refute=False)
    assert proof.verdict is Verdict.PROVED, proof


@pytest.mark.slow
@pytest.mark.parametrize("rule", CLASSICS, ids=lambda rule: rule.name)
def test_it_is_proved(rule: Rule) -> None:
    proof = prove(rule, timeout=10)
    assert proof.verdict is Verdict.PROVED, proof
