"""Rules that are right and that users write: each is proved, with neighbours of its kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphopt.base.dtype import DType
from graphopt.language.proof import Verdict
from graphopt.language.rule import Rule, const, fn, integer, integers, op, tensor
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, Term, TermLike
from graphopt.verifier.prove import prove
from tests.tiers import sampled
from tests.verifier.broken.neighbours import scattered, updated

x, m, s = tensor("x"), tensor("m"), tensor("s")
line, plane, video = tensor("x", "N C L"), tensor("x", "N C H W"), tensor("x", "N C D H W")
row, rows, part, parts = tensor("x", "N"), tensor("x", "N M"), tensor("u", "K"), tensor("u", "K M")
k, j, p, q, strides = (integers(name) for name in ("k", "j", "p", "q", "strides"))
axis, perm, axes, shape = integer("axis"), integers("perm"), integers("axes"), integers("shape")
single = {hole: fn.eq(fn.dtype(hole), DType.FLOAT) for hole in (x, s, line, plane, rows)}


def pooled(value: TermLike, size: int, rank: int = 2, pad: int = 0, **more: TermLike) -> App:
    return op.MaxPool(value, kernel_shape=(size,) * rank, pads=(pad,) * (2 * rank), **more)


def chained(value: Term, *sizes: int) -> Term:
    """One pool after the other, each of which keeps the size."""
    for size in sizes:
        value = pooled(value, size, pad=size // 2)
    return value


WINDOWS = (
    Rule("five_is_three_twice", pooled(plane, 5, pad=2), chained(plane, 3, 3)),
    Rule("three_twice_is_five", chained(plane, 3, 3), pooled(plane, 5, pad=2)),
    Rule("seven_is_three_thrice", chained(plane, 3, 3, 3), pooled(plane, 7, pad=3)),
    Rule("seven_is_three_of_five", chained(plane, 5, 3), pooled(plane, 7, pad=3)),
    Rule("pyramid", (pooled(plane, 5, pad=2), pooled(plane, 9, pad=4)), (chained(plane, 5), chained(plane, 5, 5))),
    Rule("in_one_dimension", pooled(pooled(line, 2, 1), 2, 1), pooled(line, 3, 1)),
    Rule("in_three_dimensions", pooled(video, 5, 3, 2), pooled(pooled(video, 3, 3, 1), 3, 3, 1)),
    Rule("of_any_size", op.MaxPool(op.MaxPool(plane, kernel_shape=k, pads=p), kernel_shape=j, pads=q),
         op.MaxPool(plane, kernel_shape=k + j - 1, pads=p + q)),
    Rule("by_any_stride", op.MaxPool(op.MaxPool(line, kernel_shape=k, pads=p), kernel_shape=j, pads=q, strides=strides),
         op.MaxPool(line, kernel_shape=k + j - 1, pads=p + q, strides=strides)),
    Rule("strides_of_both", pooled(pooled(line, 3, 1, strides=(2,)), 3, 1, strides=(2,)),
         pooled(line, 7, 1, strides=(4,))),
    Rule("dilated", pooled(pooled(line, 2, 1), 2, 1, dilations=(2,)), pooled(line, 4, 1)),
    Rule("both_dilated", pooled(pooled(line, 3, 1, dilations=(2,)), 3, 1, dilations=(2,)),
         pooled(line, 5, 1, dilations=(2,))),
    Rule("apart", pooled(plane, 3, pad=1),
         op.MaxPool(op.MaxPool(plane, kernel_shape=(3, 1), pads=(1, 0, 1, 0)), kernel_shape=(1, 3), pads=(0, 1, 0, 1))),
    Rule("padded_as_it_comes", *(op.MaxPool(op.MaxPool(plane, kernel_shape=(3, 3), auto_pad="SAME_UPPER"),
         kernel_shape=(3, 3), auto_pad="SAME_UPPER"), op.MaxPool(plane, kernel_shape=(5, 5), auto_pad="SAME_UPPER"))),
    Rule("greatest_of_windows", op.GlobalMaxPool(chained(plane, 3)), op.GlobalMaxPool(plane)),
)  # fmt: skip


def best(value: TermLike, along: TermLike, count: TermLike = (1,), **more: TermLike) -> tuple[App, ...]:
    return op.TopK.split(2, value, count, axis=along, **more)


GREATEST = (
    Rule("first_of_the_greatest", best(x, axis), (op.ReduceMax(x, fn.concat(axis)), op.ArgMax(x, axis=axis)),
         when=single[x]),
    Rule("first_of_the_least", best(x, axis, largest=0), (op.ReduceMin(x, fn.concat(axis)), op.ArgMin(x, axis=axis)),
         when=single[x]),
    Rule("first_in_any_order", best(x, axis, sorted=0), (op.ReduceMax(x, fn.concat(axis)), op.ArgMax(x, axis=axis)),
         when=single[x]),
    Rule("head_of_more", op.Slice(best(rows, 1, (3,))[0], (0,), (1,), (1,)), op.ReduceMax(rows, (1,)),
         when=single[rows]),
    Rule("place_at_the_head", op.Gather(best(rows, 1, k)[1], (0,), axis=1), op.ArgMax(rows, axis=1),
         when=(single[rows], fn.le(1, k))),
    Rule("of_a_relu", op.Squeeze(best(op.Relu(rows), 1)[0], (1,)), op.ReduceMax(op.Relu(rows), (1,), keepdims=0),
         when=single[rows]),
    Rule("as_one_of_the_greatest", op.ReduceMax(rows, (1,)), best(rows, 1)[0],
         when=(single[rows], fn.le(1, fn.size("M")))),
    *(Rule(f"looked_up_at_the_{name}", op.GatherElements(rows, getattr(op, arg)(rows, axis=1), axis=1),
           getattr(op, reduced)(rows, (1,)), when=single[rows])
      for name, arg, reduced in (("greatest", "ArgMax", "ReduceMax"), ("least", "ArgMin", "ReduceMin"))),
    Rule("last_of_the_greatest", op.GatherElements(rows, op.ArgMax(rows, axis=1, select_last_index=1), axis=1),
         op.ReduceMax(rows, (1,)), when=single[rows]),
)  # fmt: skip

truths = fn.eq(fn.dtype(m), DType.BOOL)
scored = truths, single[s]


def cast(value: TermLike, to: DType = DType.FLOAT) -> App:
    return op.Cast(value, to=to)


hidden = (1.0 - cast(m)) * -10000.0
MASKS = (
    Rule("mask_is_a_choice", hidden, op.Where(m, 0.0, -10000.0), when=truths),
    Rule("mask_of_what_is_not", hidden, cast(op.Not(m)) * -10000.0, when=truths),
    Rule("mask_spread", hidden, cast(m) * 10000.0 - 10000.0, when=truths),
    Rule("mask_of_a_difference", (cast(m) - 1.0) * 10000.0, cast(m) * 10000.0 - 10000.0, when=truths),
    Rule("mask_added", s + hidden, op.Where(m, s, s - 10000.0), when=scored),
    Rule("mask_added_as_a_choice", s + hidden, s + op.Where(m, 0.0, -10000.0), when=scored),
    Rule("mask_taken_off", s - (1.0 - cast(m)) * 10000.0, s + op.Where(m, 0.0, -10000.0), when=scored),
    Rule("mask_of_the_other", s + cast(m) * -10000.0, op.Where(m, s - 10000.0, s), when=scored),
    Rule("mask_mixed", s * cast(m) + hidden, op.Where(m, s, -10000.0), when=scored),
    Rule("mask_with_more_axes", op.Unsqueeze(hidden, (0,)) + op.Unsqueeze(s, (0,)),
         op.Unsqueeze(op.Where(m, s, s - 10000.0), (0,)), when=scored),
)  # fmt: skip

one = const("one", "")
ones = fn.is_one(one), fn.eq(fn.dtype(one), DType.INT64)
counted, size = op.Expand(one, op.Shape(row)), op.Squeeze(op.Shape(row))


def size_of(axis: int) -> App:
    return op.Squeeze(op.Slice(op.Shape(rows), (axis,), (axis + 1,)))


COUNTS = (
    Rule("iota_by_sums", op.CumSum(counted, 0, exclusive=1), op.Range(0, size, 1), when=ones),
    Rule("iota_less_one", op.CumSum(counted, 0) - one, op.Range(0, size, 1), when=ones),
    Rule("iota_along_any_axis", op.CumSum(counted, axis, exclusive=1), op.Range(0, size, 1), when=ones),
    Rule("iota_backwards", op.CumSum(counted, 0, reverse=1), op.Range(size, 0, -1), when=ones),
    Rule("iota_of_ones_that_are_cast", op.CumSum(cast(op.Expand(1.0, op.Shape(row)), DType.INT64), 0, exclusive=1),
         op.Range(0, size, 1)),
    Rule("iota_of_columns", op.CumSum(op.Expand(one, op.Shape(rows)), 1, exclusive=1),
         op.Expand(op.Range(0, size_of(1), 1), op.Shape(rows)), when=ones),
    Rule("iota_of_rows", op.CumSum(op.Expand(one, op.Shape(rows)), 0, exclusive=1),
         op.Expand(op.Unsqueeze(op.Range(0, size_of(0), 1), (1,)), op.Shape(rows)), when=ones),
    Rule("looked_up_in_order", op.Gather(row, op.CumSum(counted, 0, exclusive=1)), row, when=ones),
)  # fmt: skip

start, stop = integer("start"), integer("stop")
inner = fn.le(0, start), fn.eq(stop, start + fn.size("K"))
two, places = tensor("u", "2"), op.Range(start, stop, 1)


wide = tensor("x", "P N")


def first_column(height: str) -> App:
    return fn.first_index("K", const("i", f"{height} K"))


def columns_exist(height: str) -> tuple[App, App]:
    return fn.le(0, first_column(height)), fn.le(1, fn.size(height))


def scattered_columns(height: str) -> App:
    axes = f"{height} K"
    return op.ScatterElements(wide, const("i", axes), tensor("u", axes), axis=1)


def updated_columns(value: Term, height: str) -> App:
    """Columns of a matrix around an update."""
    first = first_column(height)
    before = op.Slice(value, (0,), fn.concat(first), (1,))
    after = op.Slice(value, fn.concat(first + fn.size("K")), (MAX_AXIS_SIZE,), (1,))
    return op.Concat(before, tensor("u", f"{height} K"), after, axis=1)


between = fn.concat(start), fn.concat(stop)
cuts = fn.eq(fn.length(p), 1), fn.eq(fn.length(q), 1), fn.le(0, p), fn.le(q, fn.size("N"))
as_long = fn.eq(fn.item(q, 0), fn.item(p, 0) + fn.size("K"))
UPDATES = (
    Rule("update_is_a_concat", scattered(row, places, part), updated(row, part, *between), when=inner),
    Rule("update_of_rows", scattered(rows, places, parts), updated(rows, parts, *between), when=inner),
    Rule("update_of_elements", op.ScatterElements(row, places, part), updated(row, part, *between), when=inner),
    Rule("update_of_columns", scattered_columns("P"), updated_columns(wide, "P"), when=columns_exist("P")),
    Rule("update_of_columns_of_some_rows", scattered_columns("Q"),
         op.Concat(updated_columns(op.Slice(wide, (0,), fn.sizes("Q"), (0,)), "Q"),
                   op.Slice(wide, fn.sizes("Q"), (MAX_AXIS_SIZE,), (0,)), axis=0), when=columns_exist("Q")),
    Rule("concat_is_an_update", updated(row, part, p, q),
         scattered(row, op.Range(fn.item(p, 0), fn.item(q, 0), 1), part), when=(*cuts, as_long)),
    Rule("update_read_back", op.Gather(scattered(row, places, part), places), part, when=inner),
    Rule("update_of_an_update", scattered(scattered(row, places, tensor("v", "K")), places, part),
         scattered(row, places, part), when=inner),
    Rule("update_by_itself", scattered(row, places, op.Gather(row, places)), row, when=fn.le(0, start)),
    Rule("update_of_some", scattered(row, (1, 2), two), updated(row, two, (1,), (3,))),
    Rule("update_of_the_last", scattered(row, (-2, -1), two), op.Concat(op.Slice(row, (0,), (-2,), (0,)), two, axis=0)),
    Rule("update_over_the_end", scattered(row, (-1, 0), two), op.Concat(op.Slice(two, (1,), (2,), (0,)),
         op.Slice(row, (1,), (-1,), (0,)), op.Slice(two, (0,), (1,), (0,)), axis=0), when=fn.le(2, fn.size("N"))),
    Rule("window_read_back", op.Slice(updated(row, part, p, q), p, q, (0,)), part, when=(*cuts, as_long)),
    Rule("window_written_twice", updated(updated(row, tensor("v", "K"), p, q), part, p, q), updated(row, part, p, q),
         when=(*cuts, as_long)),
)  # fmt: skip

number, index = tensor("c", ""), tensor("i", "")
SCALARS = (
    Rule("lookup_in_one_number", op.Gather(op.Expand(number, op.Shape(x)), m, axis=axis),
         op.Expand(number, op.Shape(op.Gather(x, m, axis=axis)))),
    Rule("lookup_by_one_index", op.Gather(row, op.Expand(index, shape)), op.Expand(op.Gather(row, index), shape),
         when=fn.le(1, shape)),
    Rule("lookup_of_rows_by_one_index", op.Gather(rows, op.Expand(index, op.Shape(tensor("y", "L")))),
         op.Expand(op.Gather(rows, index), op.Concat(op.Shape(tensor("y", "L")), fn.sizes("M"), axis=0)),
         when=fn.le(1, fn.size("L"))),
    Rule("turned_number", op.Transpose(op.Expand(number, shape), perm=perm),
         op.Expand(number, fn.compose(shape, perm))),
    Rule("number_in_another_shape", op.Reshape(op.Expand(number, shape), k, allowzero=1), op.Expand(number, k),
         when=fn.le(0, k)),
    Rule("numbers_joined", op.Concat(op.Expand(number, (2,)), op.Expand(number, (3,)), axis=0),
         op.Expand(number, (5,))),
)  # fmt: skip

turned = op.Transpose(x, perm=perm)
TURNED = tuple(
    Rule(f"turned_{name.lower()}", reduced(turned, axes),
         op.Transpose(reduced(x, fn.compose(perm, axes)), perm=perm), when=fn.is_float(fn.dtype(x)))
    for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceProd", "ReduceLogSumExp")
    for reduced in [getattr(op, name)]
)  # fmt: skip

ALL = (*WINDOWS, *GREATEST, *MASKS, *COUNTS, *UPDATES, *SCALARS, *TURNED)


@pytest.mark.parametrize("rule", sampled(ALL, 8, lambda rule: rule.name))
def test_it_is_proved(rule: Rule) -> None:
    proof = prove(rule, timeout=10, refute=False)
    assert proof.verdict is Verdict.PROVED, proof


def gelu(factor: TermLike) -> Term:
    return 0.5 * x * (1.0 + op.Tanh(factor * (x + 0.044715 * x * x * x)))


@pytest.mark.parametrize(
    ("spelled", "right", "near"),
    [
        (gelu, op.Gelu(x, approximate="tanh"), 0.7978845608028654),
        (lambda factor: 0.5 * x * (1.0 + op.Erf(x * factor)), op.Gelu(x), 0.7071067811865476),
        (lambda factor: 0.5 * x * (1.0 + op.Erf(x / factor)), op.Gelu(x), 1.4142135623730951),
    ],
    ids=["tanh", "times", "over"],
)
def test_a_root_is_written_with_all_digits(spelled: Callable[[float], Term], right: Term, near: float) -> None:
    assert prove(Rule("gelu", spelled(near), right, when=single[x]), refute=False).holds
    assert not prove(Rule("gelu", spelled(round(near, 9)), right, when=single[x]), refute=False).holds
