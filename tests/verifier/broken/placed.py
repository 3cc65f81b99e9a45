"""Wrong rules on what tensors say when a model runs: lists of sizes and places, indices, and what is found there."""

from __future__ import annotations

from graphopt.rule import Rule, fn, integers, op, tensor
from graphopt.scalar import LONGEST
from graphopt.term import App, Operand

x, y, i = tensor("x"), tensor("y"), tensor("i")
row, rows, more = tensor("x", "N"), tensor("x", "M K"), tensor("y", "L K")
first, last, asked, times, pads = tensor("starts"), tensor("ends"), tensor("shape"), integers("times"), integers("pads")


def backwards(value: Operand) -> App:
    return op.Slice(value, (-1,), (-LONGEST - 1,), (0,), (-1,))


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
    Rule("reverse_of_concat_in_order", backwards(op.Concat(rows, more, axis=0)),
         op.Concat(backwards(rows), backwards(more), axis=0)),
    Rule("reverse_of_pad_as_it_was", backwards(op.Pad(row, pads)), op.Pad(backwards(row), pads)),
    Rule("slice_to_less_than_the_longest_end", op.Slice(x, (0,), (LONGEST - 1,), (0,)), x),
    Rule("concat_twice_is_tile_of_three", op.Concat(row, row, axis=0), op.Tile(row, (3,))),
    Rule("second_half_of_concat_twice", op.Slice(op.Concat(row, row, axis=0), (1,), (LONGEST,), (0,)), row),
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

UNPROVED = (*LISTS, *ROWS)
