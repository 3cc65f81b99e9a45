"""Wrong rules on every scalar function: taken for its neighbour, or a condition that says less than it should."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, integers, op, real, tensor
from graphopt.language.terms import App, TermLike

x, y = tensor("x"), tensor("y")
row, plane, grid = tensor("x", "N"), tensor("x", "M N"), tensor("x", "A B C")
p, q, idx, axes, shape = (integers(name) for name in ("p", "q", "idx", "axes", "shape"))
k, n, to, through = (integer(name) for name in ("k", "n", "to", "through"))
low, high = real("low"), real("high")
M, N = fn.size("M"), fn.size("N")
reshaped = op.Reshape(x, shape)


def picked(positions: TermLike) -> App:
    return op.Gather(row, positions, axis=0)


NUMBERS = (
    Rule("quotient_rounded_up", op.Slice(row, (0,), (9,), (0,), (2,)),
         op.Slice(row, (0,), fn.floordiv(N, 2), (0,), (2,))),
    Rule("quotient_is_half_of_all", op.Slice(row, (0,), fn.concat(fn.floordiv(N, 2)), (0,)), op.Identity(row)),
    Rule("remainder_is_quotient", op.Expand(row, fn.concat(fn.mod(7, 4), N)),
         op.Expand(row, fn.concat(fn.floordiv(7, 4), N))),
    Rule("remainder_of_negative", op.Expand(row, fn.concat(2, N)), op.Expand(row, fn.concat(fn.mod(-7, 4), N))),
    Rule("quotient_not_rounded", x * 0.5, x * fn.truediv(1, 3)),
    Rule("quotient_upside_down", op.Clip(x, low), op.Clip(x, fn.truediv(low, 2.0))),
    Rule("negative_of_bound", op.Clip(x, low), op.Clip(x, fn.neg(low))),
    Rule("negative_positions", picked(idx), picked(fn.neg(idx))),
    Rule("total_is_product", op.Expand(row, fn.concat(fn.sum((2, 3)), N)),
         op.Expand(row, fn.concat(fn.product((2, 3)), N))),
    Rule("total_of_list_is_an_item", op.Tile(plane, p), op.Tile(plane, fn.concat(fn.sum(p), 1)),
         when=fn.eq(fn.item(p, 1), 1)),
    Rule("product_of_sizes_is_their_sum", op.Reshape(plane, (-1,)),
         op.Reshape(plane, fn.concat(fn.sum(fn.sizes("M N"))))),
    Rule("larger_is_smaller", op.Clip(op.Clip(x, low), high), op.Clip(x, fn.minimum(low, high))),
    Rule("smaller_is_larger", op.Clip(op.Clip(x, None, low), None, high), op.Clip(x, None, fn.maximum(low, high))),
    Rule("root_of_bound", op.Clip(x, 4.0), op.Clip(x, fn.sqrt(4.0))),
    Rule("chosen_the_other_way", op.Clip(x, low), op.Clip(x, fn.choose(fn.lt(low, 0.0), 0.0, low))),
    Rule("last_item_is_first", op.Gather(row, fn.item((1, 0), -1), axis=0), op.Gather(row, fn.item((1, 0), 0), axis=0)),
    Rule("length_is_rank", op.Slice(x, p, q), op.Identity(x), when=fn.eq(fn.length(p), fn.rank(x))),
    Rule("sum_of_starts", op.Slice(row, (1,), (3,), (0,)), op.Slice(row, fn.add((1,), 1), (3,), (0,))),
    Rule("difference_of_ends", op.Slice(row, (0,), (3,), (0,)), op.Slice(row, (0,), fn.sub((3,), 1), (0,))),
    Rule("product_of_repeats", op.Tile(op.Tile(row, p), q), op.Tile(row, fn.add(p, q))),
)  # fmt: skip

LISTS = (
    Rule("join_the_other_way", op.Concat(picked(p), picked(q), axis=0), picked(fn.concat(q, p))),
    Rule("part_from_the_start", op.Slice(picked(idx), (1,), (9,), (0,)), picked(fn.slice(idx, 0, 9))),
    Rule("repeat_once_more", op.Concat(picked((0,)), picked((0,)), axis=0), picked(fn.repeat(0, 3))),
    Rule("range_is_one_short", op.Identity(plane), op.Gather(plane, fn.range(M - 1), axis=0), when=fn.eq(M, 3)),
    Rule("range_backwards", op.Slice(row, (-1,), (-9,), (0,), (-1,)), picked(fn.range(N)), when=fn.eq(N, 3)),
    Rule("without_the_other", op.Gather(row, (1, 0), axis=0), op.Gather(row, fn.delete((0, 1), (0,)), axis=0)),
    Rule("inserted_in_another_place", op.Unsqueeze(op.Reshape(x, (2, 3)), (0,)),
         op.Reshape(x, fn.insert((2, 3), (1,), 1))),
    Rule("spread_in_another_place", op.Pad(plane, (0, 1), 0.0, (1,)), op.Pad(plane, fn.scatter((0, 1), (0, 2), 4))),
    Rule("sorted_axes_of_transpose", op.Transpose(grid, perm=p), op.Transpose(grid, perm=fn.sorted(p))),
    Rule("composed_with_itself", op.Transpose(op.Transpose(grid, perm=p), perm=p),
         op.Transpose(grid, perm=fn.inverse(p))),
    Rule("inverse_is_itself", op.Transpose(grid, perm=p), op.Transpose(grid, perm=fn.inverse(p))),
    Rule("composed_with_its_inverse", op.Transpose(grid, perm=p),
         op.Transpose(grid, perm=fn.compose(p, fn.inverse(p)))),
    Rule("broadcast_of_both_is_of_one", x + y, op.Expand(x, fn.broadcast(fn.shape(x), fn.shape(y)))),
    Rule("broadcast_forgets_one", op.Shape(x + y), op.Shape(op.Expand(x, fn.broadcast(fn.shape(x), fn.shape(x))))),
)  # fmt: skip

TRUTHS = (
    Rule("same_lengths_are_same_lists", op.Transpose(op.Transpose(grid, perm=p), perm=q), op.Identity(grid),
         when=fn.eq(fn.length(p), fn.length(q))),
    Rule("other_lists_are_inverses", op.Transpose(op.Transpose(grid, perm=p), perm=q), op.Identity(grid),
         when=fn.ne(p, q)),
    Rule("at_most_one_is_one", op.Tile(row, p), op.Identity(row), when=fn.le(fn.item(p, 0), 2)),
    Rule("below_three_is_nothing", op.Slice(row, p, (2**31,), (0,)), op.Identity(row), when=fn.lt(fn.item(p, 0), 3)),
    Rule("one_of_two_flags", op.Gemm(tensor("x", "N N"), const("w", "N N"), transA=k, transB=n),
         op.Gemm(tensor("x", "N N"), const("w", "N N")), when=fn.any_of(fn.eq(k, 0), fn.eq(n, 0))),
    Rule("both_but_too_few", op.Pad(row, p), op.Identity(row), when=fn.all_of(fn.eq(fn.item(p, 0), 0), fn.le(0, p))),
    Rule("not_reversed_is_in_order", op.Transpose(grid, perm=p), op.Identity(grid), when=fn.not_(fn.eq(p, (2, 1, 0)))),
    Rule("not_sorted_is_reversed", op.Transpose(grid, perm=p), op.Transpose(grid, perm=(2, 1, 0)),
         when=fn.not_(fn.is_sorted(p))),
    Rule("zero_among_them_is_all_zero", op.Pad(row, p), op.Identity(row), when=fn.is_in(0, p)),
    Rule("identity_of_another_list", op.Transpose(op.Transpose(grid, perm=p), perm=q), op.Transpose(grid, perm=p),
         when=fn.is_identity(p)),
    Rule("asked_for_the_other", op.Reshape(plane, shape), op.Identity(plane),
         when=fn.is_noop_reshape(shape, fn.sizes("N M"))),
    Rule("asked_for_as_many", op.Reshape(x, shape), op.Identity(x),
         when=fn.not_(fn.is_noop_reshape(shape, fn.shape(x)))),
    Rule("zeros_that_copy_other_sizes", op.Reshape(reshaped, integers("target")), op.Reshape(x, integers("target")),
         when=fn.zeros_subset(shape, integers("target"))),
    Rule("zeros_of_the_other_list", op.Reshape(reshaped, integers("target")), op.Reshape(x, integers("target")),
         when=fn.not_(fn.zeros_subset(integers("target"), shape))),
    Rule("floats_are_kept", op.Cast(op.Cast(x, to=through), to=1), op.Identity(x),
         when=(fn.eq(fn.dtype(x), 1), fn.not_(fn.is_float(through)))),
    Rule("floor_of_floats_is_nothing", op.Floor(x), op.Identity(x), when=fn.is_float(fn.dtype(x))),
    Rule("negative_integers_are_kept", op.Abs(x), op.Identity(x), when=fn.is_integer(fn.dtype(x))),
    Rule("holds_the_other_way", op.Cast(op.Cast(x, to=through), to=to), op.Identity(x),
         when=(fn.eq(fn.dtype(x), to), fn.can_represent(to, through))),
    Rule("holds_no_values_of_it", op.Cast(op.Cast(x, to=through), to=to), op.Cast(x, to=to),
         when=fn.can_represent(through, to)),
)  # fmt: skip

PROPERTIES = (
    Rule("zero_is_one", x * const("c", ""), op.Identity(x), when=fn.is_nonnegative(const("c", ""))),
    Rule("positive_is_one", x * const("c", ""), op.Identity(x), when=fn.is_positive(const("c", ""))),
    Rule("negative_is_minus_one", x * const("c", ""), op.Neg(x), when=fn.is_negative(const("c", ""))),
    Rule("relu_times_negative", op.Relu(x * const("c", "")), op.Relu(x) * const("c", ""),
         when=fn.is_negative(const("c", ""))),
    Rule("greatest_times_not_zero", op.Max(x * const("c", ""), y * const("c", "")), op.Max(x, y) * const("c", ""),
         when=fn.is_nonzero(const("c", ""))),
    Rule("one_more_is_nothing", x + const("c", ""), op.Identity(x), when=fn.is_one(const("c", ""))),
    Rule("abs_times_not_negative", op.Abs(x * const("c", "")), x * const("c", ""),
         when=fn.is_nonnegative(const("c", ""))),
    Rule("some_in_order_are_all", op.Gather(plane, tensor("i", "K"), axis=0), op.Identity(plane),
         when=fn.is_arange(tensor("i", "K"))),
    Rule("places_in_the_order_of_columns", op.GatherND(tensor("x", "N N"), tensor("i", "N N 2")),
         op.Transpose(tensor("x", "N N"), perm=(1, 0)), when=fn.is_arange(tensor("i", "N N 2"), fn.sizes("N N"))),
)  # fmt: skip

UNPROVED = (
    Rule(
        "normalized_to_another_length",
        op.Gather(plane, idx, axis=0),
        op.Gather(plane, fn.normalize_indices(idx, N), axis=0),
    ),
    Rule(
        "sorted_is_equal",
        picked(idx),
        picked(fn.repeat(fn.item(idx, 0), fn.length(idx))),
        when=(fn.is_sorted(idx), fn.lt(0, fn.length(idx))),
    ),
)
"""Wrong for indices that are rarely drawn."""

REFUTED = (*NUMBERS, *LISTS, *TRUTHS, *PROPERTIES)
