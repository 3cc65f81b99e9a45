"""Rules that are wrong at the edges of a proof: what is enumerated, assumed or typed. None may be proved."""

from __future__ import annotations

from math import inf

from graphopt.language.rule import Rule, const, fn, integer, integers, op, real, tensor
from graphopt.language.terms import App, TermLike

x, y = tensor("x"), tensor("y")
v, r, g, img = tensor("v", "N"), tensor("r", "M N"), tensor("g", "A B C"), tensor("i", "N C H W")
idx, more, p, q = (integers(n) for n in ("idx", "more", "p", "q"))
k, al, be, a, b, c_ = integer("k"), real("al"), real("be"), const("a"), const("b"), tensor("c_")
x3, w3 = tensor("x", "B C H"), const("w", "M C K")
b1, lo0, hi0 = const("b", "M", default=1), const("lo", "", default=0), const("hi", "", default=0)
i_, j_ = tensor("i_"), tensor("j_", "J")
N = fn.size("N")
same = op.Identity


def picked(positions: TermLike) -> App:
    return op.Gather(x, positions, axis=0)


SYMBOLS = (
    Rule("sorted_gather", same(picked(idx)), picked(fn.sorted(idx))),
    Rule(
        "is_sorted_gather",
        op.Gather(op.Gather(x, idx, axis=0), k, axis=0),
        op.Gather(x, fn.item(idx, 0), axis=0),
        when=(fn.is_sorted(idx), fn.lt(0, fn.length(idx))),
    ),
    Rule("if_sorted_tautology", op.Relu(op.Relu(picked(idx))), op.Abs(picked(idx)), when=fn.is_sorted(idx)),
    Rule("inverse", same(picked(idx)), picked(fn.inverse(idx))),
    Rule("inverse_twice", same(picked(idx)), picked(fn.inverse(fn.inverse(idx)))),
    Rule("spread", same(op.Pad(v, idx)), op.Pad(v, fn.scatter(fn.repeat(0, 2), idx, 2))),
    Rule("without", same(picked(idx)), picked(fn.delete(idx, idx))),
    Rule("without1", same(op.Gather(picked(idx), k, axis=0)), op.Gather(picked(fn.delete(idx, k)), k, axis=0)),
    Rule("inserted", same(op.Gather(picked(idx), k, axis=0)), op.Gather(picked(fn.insert(idx, k, 0)), k, axis=0)),
    Rule("compose", same(picked(idx)), picked(fn.compose(idx, idx))),
    Rule("item", same(picked(idx)), picked(fn.repeat(fn.item(idx, fn.item(idx, 0)), fn.length(idx)))),
    Rule("part", same(picked(idx)), picked(fn.slice(idx, 0, fn.item(idx, 0)))),
    Rule("repeat", same(op.Expand(v, p)), op.Expand(v, fn.repeat(1, fn.item(p, 0)))),
    Rule("range", same(picked(idx)), picked(fn.range(fn.item(idx, 0)))),
    Rule("is_identity", same(picked(idx)), x, when=fn.is_identity(idx)),
    Rule("is_identity_id", same(op.Gather(v, idx, axis=0)), v, when=fn.is_identity(idx)),
    Rule("sorted_slice_starts", same(op.Slice(r, p, q, (0, 1))), op.Slice(r, fn.sorted(p), q, (0, 1))),
    Rule("sorted_pads", same(op.Pad(v, p)), op.Pad(v, fn.sorted(p))),
    Rule("sorted_tile", same(op.Tile(r, p)), op.Tile(r, fn.sorted(p))),
    Rule("sorted_reshape", same(op.Reshape(x, p)), op.Reshape(x, fn.sorted(p))),
    Rule("sorted_expand", same(op.Expand(v, p)), op.Expand(v, fn.sorted(p))),
    Rule("reshape_sorted_sizes", op.Reshape(r, fn.sizes("N M")), op.Reshape(r, fn.sorted(fn.sizes("M N")))),
    Rule(
        "strides_sorted",
        op.Conv(img, const("w", "O C K L"), strides=p),
        op.Conv(img, const("w", "O C K L"), strides=fn.sorted(p)),
    ),
    Rule(
        "strides_inverse",
        op.MaxPool(img, kernel_shape=p, strides=q),
        op.MaxPool(img, kernel_shape=fn.sorted(p), strides=q),
    ),
    Rule(
        "pads_sorted",
        op.MaxPool(img, kernel_shape=(3, 3), pads=p),
        op.MaxPool(img, kernel_shape=(3, 3), pads=fn.sorted(p)),
    ),
    Rule(
        "dil",
        op.MaxPool(img, kernel_shape=(3, 3), dilations=p),
        op.MaxPool(img, kernel_shape=(3, 3), dilations=fn.sorted(p)),
    ),
    Rule("split_sorted", op.Split.split(2, v, p, axis=0), tuple(op.Split.split(2, v, fn.sorted(p), axis=0))),
    Rule(
        "resize_sorted",
        op.Resize(r, None, None, p, mode="nearest"),
        op.Resize(r, None, None, fn.sorted(p), mode="nearest"),
    ),
    Rule(
        "without_sizes",
        op.Reshape(g, fn.sizes("A B C")),
        op.Reshape(g, fn.concat(fn.delete(fn.sizes("A B C"), fn.size("A")), -1)),
    ),
    Rule("smaller", same(picked(idx)), picked(fn.minimum(idx, fn.item(idx, 0)))),
    Rule("lp_norm_sym", op.LpNormalization(r, p=2), op.LpNormalization(r, p=N)),
    Rule("lp_norm_7", op.LpNormalization(r, p=2), op.LpNormalization(r, p=7)),
    Rule(
        "lp_norm_k", op.LpNormalization(op.Gather(r, k, axis=0), p=2), op.LpNormalization(op.Gather(r, k, axis=0), p=k)
    ),
    Rule("lppool_p", op.LpPool(img, kernel_shape=(2, 2), p=k), op.LpPool(img, kernel_shape=(2, 2), p=2)),
    Rule("trilu_k", op.Trilu(r, k), op.Trilu(r, fn.item(fn.sorted(fn.concat(k, 0)), 0))),
    Rule("dropped", picked(idx), picked(fn.sorted(idx)), when=fn.lt(fn.length(idx), 3)),
    Rule("among", same(picked(idx)), picked(fn.sorted(idx)), when=fn.is_in(0, idx)),
    Rule(
        "sorted_eq",
        op.Concat(picked(idx), picked(more), axis=0),
        op.Concat(picked(more), picked(idx), axis=0),
        when=fn.eq(fn.sorted(idx), fn.sorted(more)),
    ),
    Rule("length_part", same(picked(idx)), picked(fn.slice(fn.sorted(idx), 0, 99))),
    Rule(
        "sorted_join_single",
        same(op.Reshape(r, fn.concat(fn.size("N"), fn.size("M")))),
        op.Reshape(r, fn.sorted(fn.concat(N, fn.size("M")))),
    ),
    Rule(
        "inverse_perm_of_syms",
        same(op.Reshape(r, fn.concat(N, fn.size("M")))),
        op.Reshape(r, fn.compose(fn.concat(N, fn.size("M")), fn.inverse(fn.concat(N, fn.size("M"))))),
    ),
    Rule(
        "choose_text",
        op.MaxPool(img, kernel_shape=(2, 2), auto_pad="VALID"),
        op.MaxPool(img, kernel_shape=(2, 2), auto_pad=fn.choose(fn.eq(N, 1), "VALID", "SAME_UPPER")),
    ),
    Rule(
        "choose_flag", op.Gemm(r, const("w", "N K")), op.Gemm(r, const("w", "N K"), transB=fn.choose(fn.eq(N, 1), 0, 1))
    ),
    Rule(
        "sort_real",
        op.Clip(x, al, be),
        op.Clip(x, fn.item(fn.sorted(fn.concat(al, be)), 0), fn.item(fn.sorted(fn.concat(al, be)), 1)),
    ),
    Rule("sort_real_is", op.Clip(op.Clip(x, al, be), al, be), op.Clip(x, be, al), when=fn.is_sorted(fn.concat(al, be))),
    Rule(
        "gather_normalized_sorted",
        same(op.Gather(v, idx, axis=0)),
        op.Gather(v, fn.sorted(fn.normalize_indices(idx, N)), axis=0),
    ),
    Rule("without_real", op.Clip(x, al, be), op.Clip(x, al, fn.item(fn.delete(fn.concat(al, be), al), 0))),
)
"""Numbers that are not known in the hands of scalar functions, and of operators that take one of a few."""

ABSENT = (
    Rule(
        "conv_default1_scale",
        op.Conv(x3, w3, b1) + const("s", "M 1"),
        op.Conv(x3, w3, b1 + op.Reshape(const("s", "M 1"), fn.sizes("M"))),
    ),
    Rule(
        "gemm_default1",
        op.Gemm(r, const("w", "N K"), const("b", "K", default=1)),
        r @ const("w", "N K") + const("b", "K", default=1),
    ),
    Rule("clip_low0_relu", op.Clip(x, lo0), op.Max(x, lo0)),
    Rule("clip_hi0", op.Clip(x, None, hi0), op.Min(x, hi0)),
    Rule("clip_lo_hi", op.Clip(x, lo0, hi0), op.Min(op.Max(x, lo0), hi0)),
    Rule("clip_positive", op.Abs(op.Clip(x, lo0)), op.Clip(x, lo0), when=fn.is_nonnegative(lo0)),
    Rule(
        "ln_default1",
        op.LayerNormalization(r, const("s", "N"), const("b", "N", default=1)),
        op.LayerNormalization(r, const("s", "N")) + const("b", "N", default=1),
    ),
    Rule(
        "pad_default1",
        op.Pad(v, p, const("f", "", default=1)),
        op.Concat(
            op.Expand(const("f", "", default=1), fn.slice(p, 0, 1)),
            v,
            op.Expand(const("f", "", default=1), fn.slice(p, 1, 2)),
            axis=0,
        ),
        when=fn.le(0, p),
    ),
    Rule("property_default", op.Conv(x3, w3, b1), op.Conv(x3, w3) + 1.0, when=fn.is_one(b1)),
)
"""Defaults that are not what an absent input means."""

UNDEFINED = (
    Rule(
        "size_gather",
        op.Size(op.Gather(op.Relu(op.Relu(x)), i_)),
        op.Size(op.Gather(op.Slice(x, (0,), (1,), (0,)), i_)),
    ),
    Rule(
        "shape_gather",
        op.Shape(op.Gather(op.Relu(op.Relu(r)), i_)),
        op.Shape(op.Gather(op.Slice(r, (0,), (1,), (0,)), i_)),
    ),
    Rule(
        "gather_mul0",
        op.Gather(op.Relu(op.Relu(r)), i_, axis=0) * 0.0,
        op.Gather(op.Relu(op.Slice(r, (0,), (1,), (0,))), i_, axis=0) * 0.0,
    ),
    Rule(
        "gather_of_gather_unknown",
        same(op.Expand(op.Gather(tensor("t", "1 N"), j_, axis=0), (1, 1))),
        op.Expand(op.Gather(tensor("t", "1 N"), j_ + 1, axis=0), (1, 1)),
    ),
    Rule("gather_size1", op.Gather(tensor("t", "1 N"), j_, axis=0), op.Gather(tensor("t", "1 N"), j_ * 2, axis=0)),
    Rule("gather_shape_only", op.Shape(op.Gather(r, j_)), op.Shape(op.Gather(r, j_ + 1))),
    Rule(
        "gather_const",
        op.ConstantOfShape(op.Shape(op.Gather(r, j_))),
        op.ConstantOfShape(op.Shape(op.Gather(r, j_ * 2))),
    ),
    Rule("cast_wh", op.Size(op.Gather(r, op.Relu(j_))), op.Size(op.Gather(r, j_))),
    Rule(
        "gather_axis_move",
        op.Size(op.Gather(tensor("t", "M M"), j_, axis=0)),
        op.Size(op.Gather(tensor("t", "M M"), op.Neg(j_), axis=0)),
    ),
    Rule(
        "gather_concat",
        op.Size(op.Concat(op.Gather(r, j_), op.Gather(r, j_), axis=0)),
        op.Size(op.Gather(r, op.Concat(j_, j_ + 7, axis=0))),
    ),
    Rule(
        "avgpool_wide",
        op.Concat(
            op.Slice(op.AveragePool(tensor("x", "B C H"), kernel_shape=(1,), count_include_pad=1), (0,), (0,), (2,)),
            tensor("x", "B C H"),
            axis=2,
        ),
        op.Slice(
            op.AveragePool(tensor("x", "B C H"), kernel_shape=(1,), pads=(1, 1), count_include_pad=1), (1,), (-1,), (2,)
        ),
    ),
    Rule(
        "pad_avg",
        op.AveragePool(op.Pad(tensor("x", "B C H"), (0, 0, 1, 0, 0, 1)), kernel_shape=(1,)),
        op.AveragePool(tensor("x", "B C H"), kernel_shape=(1,), pads=(1, 1), count_include_pad=1),
    ),
    Rule(
        "pad_lp",
        op.LpPool(op.Pad(tensor("x", "B C H"), q), kernel_shape=p),
        op.LpPool(tensor("x", "B C H"), kernel_shape=p, pads=fn.concat(fn.item(q, 2), fn.item(q, 5))),
        when=(fn.le(0, q), fn.eq(fn.slice(q, 0, 2), 0), fn.eq(fn.slice(q, 3, 5), 0)),
    ),
    Rule("argmax_size", op.Size(op.ReduceMax(r, (1,), keepdims=0)), op.Size(op.ArgMax(r, axis=1, keepdims=0))),
    Rule("unsq", op.Shape(op.Reshape(r, (-1,))), op.Shape(op.Reshape(r, (-1, 1)))),
    Rule("mod_float", op.Mod(op.Relu(x), 2.0, fmod=1), op.Mod(op.Relu(x), 2.0)),
    Rule("mod", same(op.Mod(x, y, fmod=1)), op.Mod(x, y, fmod=0)),
    Rule("einsum", op.Size(r), op.Size(op.Einsum(r, equation="ab->ba"))),
    Rule("einsum_rep", op.Size(tensor("t", "M M")), op.Size(op.Einsum(tensor("t", "M M"), equation="ab->ab"))),
    Rule("einsum_dup_out", op.Size(v), op.Size(op.Einsum(v, equation="a->a"))),
    Rule("einsum_unknown_letter", op.Unsqueeze(v, (0,)), op.Einsum(v, equation="a->ba")),
    Rule(
        "pad_avg_p",
        op.AveragePool(op.Pad(tensor("x", "B C H"), q), kernel_shape=p),
        op.AveragePool(
            tensor("x", "B C H"), kernel_shape=p, pads=fn.concat(fn.item(q, 2), fn.item(q, 5)), count_include_pad=1
        ),
        when=(fn.le(0, q), fn.eq(fn.slice(q, 0, 2), 0), fn.eq(fn.slice(q, 3, 5), 0)),
    ),
    Rule(
        "resize0", op.Shape(op.Pad(r, (0, 0, 1, 0))), op.Shape(op.Resize(r, None, None, fn.concat(fn.size("M") + 1, N)))
    ),
)
"""Right sides that do not run where the left side does."""

LITERALS = (
    Rule("pow", op.Cast(x * x, to=1), op.Cast(op.Pow(x, 2), to=1)),
    Rule("less_types", op.Less(x, y), op.Less(x - y, 0)),
    Rule("shape_gather_of_relu", op.Gather(op.Shape(x), 0), op.Gather(op.Shape(op.Relu(x)), 0)),
    Rule("add_list", x + y, x + y + op.Cast((0,), to=1)),
    Rule("tile", op.Concat(v, v, axis=0), op.Tile(v, 2)),
    Rule("split", op.Concat(v, axis=0), op.Split(v, N, axis=0)),
    Rule("unsq_scalar", op.Reshape(v, fn.concat(1, N)), op.Unsqueeze(v, 0)),
    Rule("squeeze_scalar", op.Reshape(op.Unsqueeze(v, (0,)), fn.concat(N)), op.Squeeze(op.Unsqueeze(v, (0,)), 0)),
    Rule("reduce_scalar_axis", op.ReduceSum(r, (0,)), op.ReduceSum(r, 0)),
    Rule("reshape_scalar", op.Reshape(r, (-1,)), op.Reshape(r, -1)),
    Rule("expand_scalar", op.Expand(v, (3,)), op.Expand(v, 3)),
    Rule("slice_scalar", op.Slice(v, (0,), (2,), (0,)), op.Slice(v, 0, 2, 0)),
    Rule("pow2", x * x, op.Pow(x, 2)),
    Rule("onlylit", x * 2, x * (1 + op.Cast(1.0, to=1))),
)
"""Numbers of the right side in a type or a shape that the operator does not take."""

INFINITIES = (
    Rule("max_inf_prod", op.Max(x * -inf, y), y),
    Rule("pow0", op.Pow(x, 0.0), x / x),
    Rule("pow_neg", op.Pow(x, -1.0) * x, op.Pow(x, 0.0)),
    Rule("pow_half", op.Pow(x, 0.5) * op.Pow(x, 0.5), x),
    Rule("sigmoid_inf", op.Sigmoid(op.Where(c_, x, -inf) * y), op.Where(c_, op.Sigmoid(x * y), 0.0)),
    Rule("exp_inf", op.Exp(x * -inf), op.Exp(x) * 0.0),
    Rule("exp_inf2", op.Exp(x * -inf), x * 0.0),
    Rule("exp_inf3", op.Exp(op.Neg(x) * inf), x * 0.0),
    Rule("softmax_inf", op.Softmax(x * -inf), op.Softmax(x * 0.0)),
    Rule("inf_minus_inf", x + inf - inf, x),
    Rule("inf_times0", x + inf * op.Abs(x) * 0.0, x),
    Rule("div_inf_sq", (x / inf) * inf, x),
    Rule("inf_inf", x + inf, x + inf + inf),
    Rule("where_inf_scaled", op.Exp(op.Where(c_, x, -inf) * y), op.Where(c_, op.Exp(x * y), 0.0)),
    Rule("where_inf_scaled_al", op.Exp(op.Where(c_, x, -inf) * al), op.Where(c_, op.Exp(x * al), 0.0)),
    Rule("where_inf_neg", op.Exp(op.Neg(op.Where(c_, x, inf)) * y), op.Where(c_, op.Exp(op.Neg(x) * y), 0.0)),
    Rule("round_inf", op.Floor(x * inf), x * inf),
    Rule("mask_inf", op.Softmax(op.Where(c_, x, -inf)), op.Softmax(op.Where(c_, x, -1e9))),
    Rule("sqrt_abs", op.Sqrt(x) * op.Sqrt(x), x),
)
"""Real functions beyond the real numbers, or outside of their domains."""

HOSTILE = (*SYMBOLS, *ABSENT, *UNDEFINED, *LITERALS, *INFINITIES)
