"""Wrong neighbours of rules that users write: windows of windows, the first of the greatest, masks, counts, updates."""

from __future__ import annotations

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, TermLike

line, plane = tensor("x", "N C L"), tensor("x", "N C H W")
row, rows, part, two = tensor("x", "N"), tensor("x", "N M"), tensor("u", "K"), tensor("u", "2")
x, m, s = tensor("x"), tensor("m"), tensor("s")
k, p = integers("k"), integers("p")
single = {hole: fn.eq(fn.dtype(hole), DType.FLOAT) for hole in (x, line, plane, rows)}


def pooled(value: TermLike, size: int, rank: int = 1, pad: int = 0, **more: TermLike) -> App:
    return op.MaxPool(value, kernel_shape=(size,) * rank, pads=(pad,) * (2 * rank), **more)


def averaged(value: TermLike, size: int, pad: int) -> App:
    return op.AveragePool(value, kernel_shape=(size,), pads=(pad, pad))


WINDOWS = (
    Rule("five_is_three_once", pooled(plane, 5, 2, 2), pooled(plane, 3, 2, 1)),
    Rule("seven_is_three_twice", pooled(pooled(plane, 3, 2, 1), 3, 2, 1), pooled(plane, 7, 2, 3)),
    Rule("means_of_means", averaged(averaged(line, 3, 1), 3, 1), averaged(line, 5, 2)),
    Rule("mean_of_greatest", averaged(pooled(line, 3, pad=1), 3, 1), pooled(line, 5, pad=2)),
    Rule("windows_with_gaps", pooled(pooled(line, 2, strides=(3,)), 2), pooled(line, 5, strides=(3,))),
    Rule("dilated_with_gaps", pooled(pooled(line, 2), 2, dilations=(3,)), pooled(line, 5)),
    Rule("pads_moved", pooled(pooled(line, 3, pad=1), 3, pad=1), op.MaxPool(line, kernel_shape=(5,), pads=(1, 3))),
    Rule("pads_of_zeros", pooled(op.Pad(pooled(line, 3), (0, 0, 1, 0, 0, 1)), 3), pooled(line, 5, pad=1),
         when=single[line]),
    Rule("along_one_axis_twice", op.MaxPool(op.MaxPool(plane, kernel_shape=(3, 1), pads=(1, 0, 1, 0)),
         kernel_shape=(3, 1), pads=(1, 0, 1, 0)), pooled(plane, 3, 2, 1)),
    Rule("relu_between", pooled(op.Relu(pooled(line, 3, pad=1)), 3, pad=1), pooled(line, 5, pad=2)),
    Rule("negated_between", pooled(-pooled(line, 3, pad=1), 3, pad=1), -pooled(line, 5, pad=2), when=single[line]),
    Rule("one_too_many", op.MaxPool(op.MaxPool(line, kernel_shape=k), kernel_shape=p),
         op.MaxPool(line, kernel_shape=k + p)),
    Rule("greatest_but_for_the_end", op.GlobalMaxPool(pooled(line, 2, strides=(2,))), op.GlobalMaxPool(line)),
    Rule("sum_of_windows", op.ReduceSum(pooled(pooled(line, 2), 2), (2,)), op.ReduceSum(pooled(line, 4), (2,)),
         when=single[line]),
    Rule("places_of_windows", op.MaxPool.split(2, pooled(line, 3, pad=1), kernel_shape=(3,), pads=(1, 1))[1],
         op.MaxPool.split(2, line, kernel_shape=(5,), pads=(2, 2))[1]),
)  # fmt: skip


def best(value: TermLike, along: int, count: int = 1, **more: TermLike) -> tuple[App, ...]:
    return op.TopK.split(2, value, (count,), axis=along, **more)


GREATEST = (
    Rule("first_is_last", best(rows, 1)[1], op.ArgMax(rows, axis=1, select_last_index=1), when=single[rows]),
    Rule("least_is_greatest", best(rows, 1, largest=0)[1], op.ArgMax(rows, axis=1), when=single[rows]),
    Rule("least_value_is_greatest", best(rows, 1, largest=0)[0], op.ReduceMax(rows, (1,)), when=single[rows]),
    Rule("greatest_of_columns", best(rows, 0)[0], op.ReduceMax(rows, (1,)), when=single[rows]),
    Rule("second_is_first", op.Gather(best(rows, 1, 2)[0], (1,), axis=1), op.ReduceMax(rows, (1,)), when=single[rows]),
    Rule("any_of_three_is_first", op.Gather(best(rows, 1, 3, sorted=0)[0], (2,), axis=1), op.ReduceMax(rows, (1,)),
         when=single[rows]),
    Rule("greatest_of_nothing", op.ReduceMax(rows, (1,)), best(rows, 1)[0], when=single[rows]),
    Rule("looked_up_at_the_greatest_of_others", op.GatherElements(rows, op.ArgMax(tensor("y", "N M"), axis=1), axis=1),
         op.ReduceMax(rows, (1,)), when=single[rows]),
    Rule("looked_up_at_the_wrong_end", op.GatherElements(rows, op.ArgMin(rows, axis=1), axis=1),
         op.ReduceMax(rows, (1,)), when=single[rows]),
    Rule("place_of_negated_is_kept", best(-rows, 1)[1], op.ArgMax(rows, axis=1), when=single[rows]),
)  # fmt: skip
EXPONENTIAL = (
    Rule("place_where_exp_is_zero", best(op.Exp(rows), 1)[1], op.ArgMax(rows, axis=1), when=single[rows]),
    Rule("place_of_what_is_rounded", best(rows * 3.0, 1)[1], op.ArgMax(rows, axis=1), when=single[rows]),
)

truths = fn.eq(fn.dtype(m), DType.BOOL)
scored = truths, fn.eq(fn.dtype(s), DType.FLOAT)


def cast(value: TermLike, to: DType = DType.FLOAT) -> App:
    return op.Cast(value, to=to)


hidden, large = s + (1.0 - cast(m)) * -10000.0, cast(m) * 1000000.0
MASKS = (
    Rule("mask_of_the_others", hidden, op.Where(m, s - 10000.0, s), when=scored),
    Rule("mask_by_another_number", hidden, op.Where(m, s, s - 1000.0), when=scored),
    Rule("mask_taken_off_again", op.Abs(s) + cast(m) * 0.0, (op.Abs(s) + cast(m) * 10000.0) - cast(m) * 10000.0,
         when=scored),
    Rule("square_of_a_mask_taken_off", cast(m) * 3.0, (cast(m) * 3.0 + large * large) - large * large, when=truths),
    Rule("large_multiples_taken_off", op.Abs(x), op.Abs(x) * 100001.0 - op.Abs(x) * 100000.0, when=single[x]),
)  # fmt: skip
ROUNDED = (
    Rule("mask_forgets_the_score", hidden, op.Where(m, s, -10000.0), when=scored),
    Rule("mask_of_numbers_spread", (1.0 - x) * -10000.0, x * 10000.0 - 10000.0, when=single[x]),
    Rule("mask_of_halves_taken_off", cast(m, DType.FLOAT16) * 3.0, (cast(m, DType.FLOAT16) * 3.0 + 4096.0) - 4096.0,
         when=truths),
    Rule("choice_of_halves_taken_off", cast(m, DType.FLOAT16),
         (cast(m, DType.FLOAT16) + op.Where(m, 4096.0, 2048.0)) - op.Where(m, 4096.0, 2048.0), when=truths),
    Rule("sum_of_what_was_masked", op.ReduceSum(tensor("v", "1 N") * 1.0, (0,)),
         op.ReduceSum(op.Concat(tensor("v", "1 N") + 10000.0, op.Expand(-10000.0, fn.sizes("1 N")), axis=0), (0,)),
         when=fn.eq(fn.dtype(tensor("v", "1 N")), DType.FLOAT)),
    Rule("last_digit", x * 0.7071067811865475, x * 0.7071067811865476),
    Rule("root_in_nine_digits", op.Relu(x) * 0.707106781, op.Relu(x) * fn.sqrt(0.5)),
)  # fmt: skip

one = const("one", "")
counted = op.Expand(one, op.Shape(row))
size, width = op.Squeeze(op.Shape(row)), op.Squeeze(op.Slice(op.Shape(rows), (1,), (2,)))


def ones(to: DType) -> tuple[App, App]:
    return fn.is_one(one), fn.eq(fn.dtype(one), to)


COUNTS = (
    Rule("iota_from_one", op.CumSum(counted, 0), op.Range(0, size, 1), when=ones(DType.INT64)),
    Rule("iota_along_the_other_axis", op.CumSum(op.Expand(one, op.Shape(rows)), 0, exclusive=1),
         op.Expand(op.Range(0, width, 1), op.Shape(rows)), when=ones(DType.INT64)),
    Rule("iota_is_the_same_backwards", op.CumSum(counted, 0, reverse=1), op.Range(1, size + 1, 1),
         when=ones(DType.INT64)),
    Rule("iota_of_what_is_positive", op.CumSum(counted, 0, exclusive=1), op.Range(0, size, 1),
         when=(fn.is_positive(one), fn.eq(fn.dtype(one), DType.INT64))),
    Rule("iota_of_some_ones", op.CumSum(op.Concat(counted, op.Expand(one * 2, (1,)), axis=0), 0, exclusive=1),
         op.Range(1, size + 2, 1), when=ones(DType.INT64)),
)  # fmt: skip
WRAPPED = (
    Rule("iota_that_wraps", op.CumSum(counted, 0, exclusive=1), cast(op.Range(0, size, 1), DType.INT32),
         when=ones(DType.INT32)),
    Rule("iota_in_bytes", op.CumSum(counted, 0) - one, op.CumSum(counted, 0, exclusive=1), when=ones(DType.INT32)),
    Rule("sum_that_wraps", op.Relu(op.CumSum(counted, 0) + (MAX_AXIS_SIZE - 1)),
         op.CumSum(counted, 0) + (MAX_AXIS_SIZE - 1),
         when=ones(DType.INT64)),
)  # fmt: skip

start, stop = integer("start"), integer("stop")
inner = fn.le(0, start), fn.eq(stop, start + fn.size("K"))
places = op.Range(start, stop, 1)


def updated(value: TermLike, update: TermLike, first: TermLike, last: TermLike) -> App:
    """Slices of a tensor around an update."""
    before, after = op.Slice(value, (0,), first, (0,)), op.Slice(value, last, (MAX_AXIS_SIZE,), (0,))
    return op.Concat(before, update, after, axis=0)


def scattered(value: TermLike, at: TermLike, update: TermLike, **more: TermLike) -> App:
    return op.ScatterND(value, op.Unsqueeze(at, (1,)), update, **more)


between = fn.concat(start), fn.concat(stop)
first, second = (op.Slice(two, (i,), (i + 1,), (0,)) for i in range(2))
UPDATES = (
    Rule("update_before_the_start", scattered(row, places, part), updated(row, part, *between), when=inner[1]),
    Rule("update_in_another_order", scattered(row, (2, 1), two), updated(row, two, (1,), (3,))),
    Rule("update_with_a_gap", scattered(row, (1, 3), two), updated(row, two, (1,), (3,))),
    Rule("first_update_stays", scattered(row, (1, 1), two), scattered(row, (1,), first)),
    Rule("update_over_the_end_of_one", scattered(row, (-1, 0), two),
         op.Concat(second, op.Slice(row, (1,), (-1,), (0,)), first, axis=0)),
    Rule("update_is_added", scattered(row, places, part, reduction="add"), updated(row, part, *between),
         when=(*inner, fn.eq(fn.dtype(row), DType.FLOAT))),
    Rule("update_read_over_the_end", op.Gather(scattered(row, places, part), places), part, when=inner[1]),
    Rule("update_of_columns", op.ScatterElements(rows, op.Unsqueeze(places, (1,)), tensor("u", "K M"), axis=0), rows,
         when=inner),
    Rule("lookup_by_one_index_of_nothing", op.Gather(row, op.Expand(tensor("i", ""), op.Shape(tensor("y", "L")))),
         op.Expand(op.Gather(row, tensor("i", "")), op.Shape(tensor("y", "L")))),
)  # fmt: skip

REFUTED = (*WINDOWS, *GREATEST, *MASKS, *COUNTS, *UPDATES)
UNPROVED = (*EXPONENTIAL, *ROUNDED, *WRAPPED)
