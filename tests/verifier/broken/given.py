"""Wrong rules on what an operator is given beside its operands: attributes without meaning, lists, places, shapes."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integers, op, tensor
from graphopt.language.terms import App

plane, image = tensor("r", "M N"), tensor("x", "N C H W")
left, right, kernel = tensor("a", "M K"), tensor("b", "K N"), const("w", "M C K L")
ids, pair = tensor("ids", "I"), const("pair", "2")
relu = op.Relu(plane)
doubled = (2.0, 2.0)


def parts(axis: int) -> tuple[App, ...]:
    return op.Split.split(2, plane, integers("l"), axis=axis)


RESIZED = (
    Rule("nearest_is_linear", op.Resize(relu, None, doubled), op.Resize(relu, None, doubled, mode="linear")),
    Rule("linear_of_relu", op.Relu(op.Resize(plane, None, doubled, mode="linear")),
         op.Resize(relu, None, doubled, mode="linear")),
    Rule("linear_of_whole_numbers", op.Resize(plane, None, (2.0, 1.0), mode="linear") * 2,
         op.Resize(plane * 2, None, (2.0, 1.0), mode="linear"), when=fn.is_integer(fn.dtype(plane))),
    Rule("linear_of_product",
         op.Resize(plane, None, doubled, mode="linear") * op.Resize(relu, None, doubled, mode="linear"),
         op.Resize(plane * relu, None, doubled, mode="linear")),
    Rule("linear_of_two_shifts", op.Resize(plane + 1.0, None, doubled, mode="linear"),
         op.Resize(plane, None, doubled, mode="linear") + 2.0),
    Rule("linear_from_another_place", op.Resize(plane, None, doubled, mode="linear") + 1.0,
         op.Resize(plane + 1.0, None, doubled, mode="linear", coordinate_transformation_mode="align_corners")),
    Rule("linear_along_each_axis_alone", op.Resize(plane, None, doubled, mode="linear"),
         op.Resize(op.Resize(plane, None, (2.0, 1.0), mode="linear"), None, (1.0, 3.0), mode="linear")),
    Rule("linear_by_a_scale_that_keeps_four_rows", op.Resize(plane, None, (1.2, 2.0), mode="linear"),
         op.Resize(op.Resize(plane, None, (1.2, 1.0), mode="linear"), None, (1.0, 2.0), mode="linear")),
    Rule("smoothed_where_it_shrinks", op.Resize(plane, None, None, (2, 2), mode="linear", antialias=1),
         op.Resize(plane, None, None, (2, 2), mode="linear")),
    Rule("scales_of_another_axis", op.Resize(relu, None, (2.0, 1.0)), op.Resize(relu, None, (1.0, 2.0))),
    Rule("sizes_as_an_aspect_ratio", op.Resize(relu, None, None, (4, 6)),
         op.Resize(relu, None, None, (4, 6), keep_aspect_ratio_policy="not_larger")),
    Rule("rounded_places", op.Resize(relu, None, (3.0, 1.0), coordinate_transformation_mode="asymmetric"),
         op.Resize(relu, None, (3.0, 1.0))),
)  # fmt: skip

SHAPES = (
    Rule("parts_joined_along_another_axis", op.Concat(*parts(0), axis=0), op.Concat(*parts(0), axis=1)),
    Rule("parts_of_another_axis", parts(0), parts(1)),
    Rule("transposed_factors_not_swapped", op.Transpose(left @ right, perm=(1, 0)),
         op.Transpose(left, perm=(1, 0)) @ op.Transpose(right, perm=(1, 0))),
    Rule("transpose_of_one_factor", op.Transpose(left @ right, perm=(1, 0)), op.Transpose(right, perm=(1, 0)) @ left),
    Rule("transpose_forgotten", op.Transpose(relu, perm=(1, 0)), relu),
    Rule("conv_without_its_padding", op.Conv(image, const("w", "M C 3 3"), pads=(1, 1, 1, 1)),
         op.Conv(image, const("w", "M C 3 3"))),
    Rule("valid_is_same", op.Conv(image, kernel, auto_pad="VALID"), op.Conv(image, kernel, auto_pad="SAME_UPPER")),
    Rule("pool_without_its_padding", op.MaxPool(image, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
         op.MaxPool(image, kernel_shape=(3, 3))),
    Rule("products_joined_along_inner_axis", op.Concat(left @ right, left @ tensor("c", "K N"), axis=1),
         left @ op.Concat(right, tensor("c", "K N"), axis=0)),
    Rule("sums_joined_along_another_axis",
         op.Concat(plane, tensor("s", "M N"), axis=0) + op.Concat(tensor("t", "M N"), tensor("u", "M N"), axis=0),
         op.Concat(plane + tensor("t", "M N"), tensor("s", "M N") + tensor("u", "M N"), axis=1)),
    Rule("filters_joined_along_channels",
         op.Concat(op.Conv(image, kernel), op.Conv(image, const("v", "M C K L")), axis=1),
         op.Conv(image, op.Concat(kernel, const("v", "M C K L"), axis=1))),
    Rule("reduced_axis_dropped", op.ReduceSum(relu, (1,)), op.ReduceSum(relu, (1,), keepdims=0)),
)  # fmt: skip

PLACES = (
    Rule("hot_along_another_axis", op.OneHot(ids, 5, pair, axis=0), op.OneHot(ids, 5, pair)),
    Rule("hot_modulo", op.OneHot(ids, 5, pair), op.OneHot(op.Mod(ids, 5), 5, pair)),
    Rule("hot_turned", op.OneHot(ids, 3, (0, 1)), op.OneHot(ids, 3, (1, 0))),
    Rule("hot_product_looks_up", op.OneHot(ids, fn.size("M"), pair) @ plane, op.Gather(plane, ids, axis=0)),
    Rule("greatest_of_another_axis", op.TopK.split(2, relu, (1,), axis=0)[0], op.TopK.split(2, relu, (1,), axis=1)[0]),
    Rule("place_of_the_greatest_positive", op.TopK.split(2, relu, (1,))[1], op.TopK.split(2, plane, (1,))[1]),
    Rule("greatest_scaled_down", op.TopK.split(2, plane * -2.0, (1,))[0], op.TopK.split(2, plane, (1,))[0] * -2.0),
    Rule("elements_of_another_axis", op.GatherElements(relu, tensor("i", "M N"), axis=0),
         op.GatherElements(relu, tensor("i", "M N"), axis=1)),
    Rule("elements_of_a_shorter_row", op.GatherElements(plane + tensor("c", "M 1"), tensor("i", "J K"), axis=1),
         op.GatherElements(plane, tensor("i", "J K"), axis=1) + tensor("c", "M 1")),
    Rule("pairs_of_places_swapped", op.GatherND(plane, tensor("i", "I 2")),
         op.GatherND(op.Transpose(plane, perm=(1, 0)), tensor("i", "I 2"))),
    Rule("first_of_the_greatest_positive", op.Hardmax(relu), op.Hardmax(plane)),
    Rule("first_of_the_least", op.Hardmax(plane * -2.0), op.Hardmax(plane)),
    Rule("last_of_the_greatest", op.Hardmax(plane),
         op.OneHot(op.ArgMax(plane, axis=1, keepdims=0, select_last_index=1), fn.size("N"), (0.0, 1.0))),
    Rule("places_of_the_transpose", op.NonZero(op.Transpose(plane, perm=(1, 0))), op.NonZero(plane)),
    Rule("places_of_the_positive", op.NonZero(relu), op.NonZero(plane)),
    Rule("gathered_backwards_twice", op.Gather(tensor("v", "N"), integers("p"), axis=0),
         op.Gather(op.Gather(tensor("v", "N"), fn.sub(fn.size("N"), integers("p")), axis=0), integers("p"), axis=0)),
)  # fmt: skip

line = tensor("v", "N")
below, held = op.Less(line, 0.0), op.Slice(line, (0,), (2,), (0,))


def total(value: App) -> App:
    return op.ReduceSum(value, (0,))


rows, pairs, one = tensor("x", "N C L"), const("w", "C M 2"), tensor("x", "N 1 L")
queries, keys, values = tensor("q", "B H L E"), tensor("k", "B H S E"), tensor("v", "B H S F")
scores = queries @ op.Transpose(keys, perm=(0, 1, 3, 2))

RUN = (
    Rule("attention_of_no_keys", op.Softmax(scores / fn.sqrt(fn.size("E")), axis=-1) @ values,
         op.Attention(queries, keys, values)),
    Rule("pads_of_an_empty_axis_pooled", op.AveragePool(op.Pad(rows, (0, 0, 2, 0, 0, 2)), kernel_shape=(3,)),
         op.AveragePool(rows, kernel_shape=(3,), pads=(2, 2), count_include_pad=1)),
    Rule("one_group_of_an_empty_batch", op.InstanceNormalization(one, const("s", "1"), const("b", "1")),
         op.GroupNormalization(one, const("s", "1"), const("b", "1"), num_groups=1)),
    Rule("more_output_than_there_are_strides", op.ConvTranspose(op.Relu(rows), pairs, dilations=(2,)),
         op.Slice(op.ConvTranspose(op.Relu(rows), pairs, dilations=(2,), output_padding=(1,)), (0,), (-1,), (2,))),
)  # fmt: skip
"""Their right sides are the same where they run; ONNX Runtime refuses to run some."""

UNPROVED = (
    Rule("valid_beside_written_pads", op.Conv(image, kernel, auto_pad="VALID"),
         op.Conv(image, kernel, auto_pad="VALID", pads=(0, 0, 0, 0))),
    Rule("mask_of_a_logarithm_gone", op.Where(below, 0.0, op.Log(line)) * 0.0, op.Log(line) * 0.0),
    Rule("mask_of_a_root_gone", op.Where(below, 0.0, op.Sqrt(line)) * 0.0, op.Sqrt(line) * 0.0),
    Rule("mask_of_a_quotient_gone", op.Where(below, 0.0, 1.0 / line) * 0.0, (1.0 / line) * 0.0),
    Rule("logarithms_of_some_of_a_row", total(op.Log(held)) * 0.0, total(op.Log(line)) * 0.0),
    Rule("quotients_of_some_of_a_row", total(op.Reciprocal(held)) * 0.0, total(op.Reciprocal(line)) * 0.0),
    Rule("roots_of_what_precedes", op.CumSum(op.Sqrt(line), 0, exclusive=1) * 0.0, op.CumSum(op.Sqrt(line), 0) * 0.0),
)  # fmt: skip
"""No small instance whose values are all finite differs, or the same rule may write no pads."""

REFUTED = (*RESIZED, *SHAPES, *PLACES, *RUN)
