"""Wrong rules on what tensors say when a model runs: lists of sizes and places, indices, and what is found there."""

from __future__ import annotations

from graphopt.language.rule import Rule, fn, integer, integers, op, tensor
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, TermLike

x, y, i = tensor("x"), tensor("y"), tensor("i")
row, rows, more = tensor("x", "N"), tensor("x", "M K"), tensor("y", "L K")
first, last, asked, times, pads = tensor("starts"), tensor("ends"), tensor("shape"), integers("times"), integers("pads")


def backwards(value: TermLike) -> App:
    return op.Slice(value, (-1,), (-MAX_AXIS_SIZE - 1,), (0,), (-1,))


LISTS = (
    Rule("slice_as_it_runs_from_end_to_start", op.Relu(op.Slice(x, first, last)), op.Slice(op.Relu(x), last, first)),
    Rule("slice_as_it_runs_forgotten", op.Relu(op.Slice(x, first, last)), op.Relu(x)),
    Rule("slice_as_it_runs_twice", op.Slice(op.Slice(x, first, last), first, last), op.Slice(x, first, last)),
    Rule("reshape_as_it_runs_forgotten", op.Relu(op.Reshape(x, asked)), op.Relu(x)),
    Rule("reshape_as_it_runs_copies_zeros", op.Relu(op.Reshape(x, asked)), op.Relu(op.Reshape(x, asked, allowzero=1))),
    Rule("reshapes_as_they_run_copy_zeros", op.Reshape(op.Reshape(x, times), asked), op.Reshape(x, asked)),
    Rule("reshape_as_it_runs_by_another", op.Relu(op.Reshape(x, first)), op.Relu(op.Reshape(x, first + first))),
    Rule("expand_as_it_runs_forgotten", op.Relu(op.Expand(x, asked)), op.Relu(x)),
    Rule("expand_as_it_runs_is_reshape", op.Relu(op.Expand(x, asked)), op.Relu(op.Reshape(x, asked))),
    Rule("tile_as_it_runs_is_expand", op.Relu(op.Tile(x, asked)), op.Relu(op.Expand(x, asked))),
    Rule("pad_of_exp_as_it_runs", op.Exp(op.Pad(x, asked)), op.Pad(op.Exp(x), asked)),
    Rule("pad_of_cos", op.Cos(op.Pad(x, pads)), op.Pad(op.Cos(x), pads)),
)

ROWS = (
    Rule("reversed_concat_keeps_its_order", backwards(op.Concat(rows, more, axis=0)),
         op.Concat(backwards(rows), backwards(more), axis=0)),
    Rule("reverse_of_pad_as_it_was", backwards(op.Pad(row, pads)), op.Pad(backwards(row), pads)),
    Rule("slice_to_less_than_the_longest_end", op.Slice(x, (0,), (MAX_AXIS_SIZE - 1,), (0,)), x),
    Rule("concat_twice_is_tile_of_three", op.Concat(row, row, axis=0), op.Tile(row, (3,))),
    Rule("second_half_of_concat_twice", op.Slice(op.Concat(row, row, axis=0), (1,), (MAX_AXIS_SIZE,), (0,)), row),
    Rule("concat_twice_is_every_other", op.Concat(rows, rows, axis=0),
         op.Reshape(op.Concat(rows, rows, axis=1), (-1, 3)), when=fn.eq(fn.size("K"), 3)),
    Rule("greatest_of_tile_that_may_be_empty", op.ReduceMax(op.Tile(row, times)), op.ReduceMax(row)),
    Rule("product_of_tile", op.ReduceProd(op.Tile(row, times)), op.ReduceProd(row), when=fn.le(1, times)),
    Rule("sum_of_tile", op.ReduceSum(op.Tile(row, times)), op.ReduceSum(row), when=fn.le(1, times)),
    Rule("product_of_expand", op.ReduceProd(op.Expand(tensor("x", "N 1"), times), (1,)), tensor("x", "N 1"),
         when=(fn.eq(fn.length(times), 2), fn.eq(fn.item(times, 0), 1), fn.le(1, times))),
    Rule("sums_of_reshaped_rows", op.ReduceSum(op.Reshape(rows, fn.sizes("K M"), allowzero=1), (1,), keepdims=0),
         op.ReduceSum(rows, (0,), keepdims=0)),
    Rule("gather_of_sum_forgets_a_row", op.Gather(rows + tensor("y", "M K"), i),
         op.Gather(rows, i) + tensor("y", "M K")),
    Rule("gather_of_rows_plus_their_heads", op.Gather(rows + tensor("y", "M 1"), i),
         op.Gather(rows, i) + tensor("y", "M 1")),
    Rule("gather_of_product_by_columns", op.Gather(rows @ tensor("y", "K N"), i, axis=1),
         op.Gather(rows, i, axis=1) @ tensor("y", "K N")),
    Rule("gather_of_sum_of_columns", op.Gather(op.ReduceSum(rows, (0,)), i), op.ReduceSum(op.Gather(rows, i), (0,))),
    Rule("gather_of_cumulated", op.Gather(op.CumSum(rows, 0), i), op.CumSum(op.Gather(rows, i), 0)),
    Rule("gather_at_relu", op.Gather(row, op.Relu(i)), op.Gather(row, i)),
    Rule("gather_of_padded", op.Gather(op.Pad(row, (0, 1)), i), op.Gather(row, i)),
    Rule("where_of_either_is_both", op.Where(op.Or(i, y), x, tensor("z")),
         op.Where(i, op.Where(y, x, tensor("z")), tensor("z"))),
    Rule("where_of_sums_swapped", op.Where(i, x + y, tensor("z") + y), op.Where(i, tensor("z"), x) + y),
)  # fmt: skip

a, b, c, u, values = tensor("a", ""), tensor("b", ""), tensor("c", ""), tensor("u"), tensor("v", "2")
k, ks, axis = integer("k"), integers("ks"), integer("axis")
sequence, cells, weights, states = (
    tensor("x", "S B I"),
    tensor("h", "D B H"),
    tensor("w", "D W I"),
    tensor("r", "D W H"),
)
image, small = tensor("x", "N C H W"), tensor("x", "2 2")
best, worst = op.TopK.split(2, x, ks, axis=axis), op.TopK.split(2, x, ks, axis=axis, largest=0)


def lstm(of: TermLike, **attributes: TermLike) -> App:
    return op.LSTM(of, weights, states, hidden_size=fn.size("H"), **attributes)


PLACES = (
    Rule("range_from_limit_to_start", op.Neg(op.Range(a, b, c)), op.Neg(op.Range(b, a, c))),
    Rule("range_shifted", op.Range(a, b, c) + c, op.Identity(op.Range(a + c, b, c))),
    Rule("range_to_its_limit", op.Identity(op.Range(0, 5, 2)), op.Identity(op.Range(0, 4, 2))),
    Rule("greatest_are_the_least", op.Neg(best[0]), op.Neg(worst[0])),
    Rule("places_of_the_greatest_are_those_of_the_least", op.Identity(best[1]), op.Identity(worst[1])),
    Rule("greatest_in_any_order", op.Identity(op.TopK.split(2, x, ks, axis=axis, sorted=0)[0]),
         op.Identity(best[0])),
    Rule("greatest_along_another_axis", op.Identity(op.TopK.split(2, rows, ks, axis=0)[0]),
         op.Identity(op.TopK.split(2, rows, ks, axis=1)[0])),
    Rule("k_greatest_of_negated", op.TopK.split(2, op.Neg(x), ks)[0], op.Neg(op.TopK.split(2, x, ks)[0])),
    Rule("places_of_rounded", op.TopK.split(2, x * 3.0, ks)[1], op.TopK.split(2, x, ks)[1]),
    Rule("one_greatest_less", op.Shape(best[0]), op.Shape(op.TopK.split(2, x, fn.add(ks, -1), axis=axis)[0])),
    Rule("one_hot_cold", op.Identity(op.OneHot(i, k, values)),
         op.OneHot(i, k, op.Slice(values, (-1,), (-MAX_AXIS_SIZE - 1,), (0,), (-1,)))),
    Rule("one_hot_deeper", op.Identity(op.OneHot(i, k, values)), op.Identity(op.OneHot(i, k + 1, values))),
    Rule("one_hot_of_negated", op.OneHot(op.Neg(i), k, values), op.OneHot(i, k, values)),
    Rule("one_hot_of_the_next", op.OneHot(op.Add(i, 1), k, values), op.OneHot(i, k, values)),
    Rule("one_hot_in_front", op.OneHot(row, k, values), op.OneHot(row, k, values, axis=0)),
    Rule("nonzero_of_square", op.NonZero(op.Sub(x, x)), op.NonZero(x)),
    Rule("nonzero_of_other", op.NonZero(op.Neg(x + y)), op.NonZero(x)),
    Rule("as_many_nonzero_as_elements", op.Shape(op.NonZero(row)), op.Shape(op.Unsqueeze(row, (0,)))),
    Rule("nonzero_of_sum_in_another_order", op.NonZero((x + y) + tensor("z")), op.NonZero(x + (y + tensor("z")))),
    Rule("elements_along_another_axis", op.Identity(op.GatherElements(rows, i, axis=0)),
         op.GatherElements(rows, i, axis=1)),
    Rule("elements_are_rows", op.Identity(op.GatherElements(rows, i)), op.Gather(rows, i)),
    Rule("elements_of_sum", op.GatherElements(x + y, i), op.GatherElements(x, i) + y),
    Rule("elements_where_they_are", op.GatherElements(row, tensor("i", "N")), row),
    Rule("nd_is_gather", op.Identity(op.GatherND(rows, tensor("i", "L 1"))), op.Gather(rows, tensor("i", "L 1"))),
    Rule("nd_batches_ignored", op.GatherND(tensor("x", "B M K"), tensor("i", "B 1"), batch_dims=1),
         op.GatherND(tensor("x", "B M K"), tensor("i", "B 1"))),
    Rule("nd_transposed", op.GatherND(tensor("x", "M M"), tensor("i", "L 2")),
         op.GatherND(op.Transpose(tensor("x", "M M"), perm=(1, 0)), tensor("i", "L 2"))),
    Rule("scatter_forgets_updates", op.Identity(op.ScatterElements(x, i, u)), op.Identity(x)),
    Rule("scatter_is_addition", op.ScatterElements(x, i, u), op.ScatterElements(x, i, u, reduction="add")),
    Rule("scatter_along_another_axis", op.ScatterElements(rows, i, u, axis=0), op.ScatterElements(rows, i, u, axis=1)),
    Rule("scatter_twice_swapped", op.ScatterElements(op.ScatterElements(x, i, u), y, tensor("z")),
         op.ScatterElements(op.ScatterElements(x, y, tensor("z")), i, u)),
    Rule("scatter_of_softmax", op.Softmax(op.ScatterElements(x, i, u)),
         op.ScatterElements(op.Softmax(x), i, op.Softmax(u))),
    Rule("scatter_nd_forgets_updates", op.Identity(op.ScatterND(rows, tensor("i", "L 1"), u)), op.Identity(rows)),
    Rule("scatter_nd_of_rows", op.ScatterND(rows, tensor("i", "L 1"), u),
         op.ScatterElements(rows, tensor("i", "L 1"), u)),
    Rule("scatter_nd_greatest_is_least", op.ScatterND(rows, tensor("i", "L 1"), u, reduction="max"),
         op.ScatterND(rows, tensor("i", "L 1"), u, reduction="min")),
)  # fmt: skip

WHOLES = (
    Rule("hardmax_of_negated", op.Hardmax(op.Neg(x)), op.Hardmax(x)),
    Rule("hardmax_is_softmax", op.Hardmax(x), op.Softmax(x)),
    Rule("hardmax_along_another_axis", op.Hardmax(rows, axis=0), op.Hardmax(rows, axis=1)),
    Rule("hardmax_of_magnitudes", op.Hardmax(op.Abs(rows)), op.Hardmax(rows)),
    Rule("global_norm_of_another_power", op.GlobalLpPool(image, p=1), op.GlobalLpPool(image, p=2)),
    Rule("global_norm_is_mean", op.GlobalLpPool(image, p=1), op.GlobalAveragePool(image)),
    Rule("lstm_backwards", lstm(sequence), lstm(sequence, direction="reverse")),
    Rule("lstm_of_scaled", lstm(sequence * 2.0), lstm(sequence) * 2.0),
    Rule("lstm_that_clips", lstm(sequence), lstm(sequence, clip=1.0)),
    Rule("lstm_coupled", lstm(sequence), lstm(sequence, input_forget=1)),
    Rule("lstm_ignores_its_state", op.LSTM(sequence, weights, states, None, None, cells, hidden_size=fn.size("H")),
         lstm(sequence)),
    Rule("gru_reset_before", op.GRU(sequence, weights, states, hidden_size=fn.size("H")),
         op.GRU(sequence, weights, states, hidden_size=fn.size("H"), linear_before_reset=1)),
    Rule("gru_of_swapped", op.GRU(sequence, weights, states, hidden_size=fn.size("H")),
         op.GRU(op.Neg(sequence), weights, states, hidden_size=fn.size("H"))),
    Rule("rnn_backwards", op.RNN(sequence, weights, states, hidden_size=fn.size("H")),
         op.RNN(sequence, weights, states, hidden_size=fn.size("H"), direction="reverse")),
    Rule("resize_rounded_otherwise", op.Resize(image, None, (1.0, 1.0, 1.5, 1.5), nearest_mode="floor"),
         op.Resize(image, None, (1.0, 1.0, 1.5, 1.5), nearest_mode="ceil")),
    Rule("resize_of_other_factors", op.Resize(image, None, (1.0, 1.0, 1.5, 1.5)),
         op.Resize(image, None, (1.0, 1.0, 1.5, 1.25))),
    Rule("resize_linear_of_relu", op.Resize(op.Relu(image), None, (1.0, 1.0, 1.5, 1.5), mode="cubic"),
         op.Relu(op.Resize(image, None, (1.0, 1.0, 1.5, 1.5), mode="cubic"))),
    Rule("resize_forgotten", op.Relu(op.Resize(image, None, (1.0, 1.0, 1.5, 1.5))), op.Relu(image)),
    Rule("resize_of_integers_between_them",
         op.Cast(op.Cast(op.Resize(op.Cast(small, to=1), None, (1.5, 1.5), mode="linear"), to=3), to=1),
         op.Resize(op.Cast(small, to=1), None, (1.5, 1.5), mode="linear"), when=fn.eq(fn.dtype(small), 3)),
)  # fmt: skip

UNPROVED = (*LISTS, *ROWS, *PLACES, *WHOLES)
