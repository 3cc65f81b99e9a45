"""Wrong rules of a hostile author: each looks right to somebody who overlooks one thing.

None may be proved. Most differ in few places of large instances, or in numbers that are rarely drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule, const, fn, integer, integers, op, pointwise, reduction, tensor, tensors
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, Term, TermLike

FLOAT, DOUBLE, BOOL, INT8, UINT8, INT32, INT64 = (
    DType[name] for name in ("FLOAT", "DOUBLE", "BOOL", "INT8", "UINT8", "INT32", "INT64")
)
x, y, z, m = tensor("x"), tensor("y"), tensor("z"), tensor("m")
rows, row, part, mask = tensor("x", "M N"), tensor("r", "N"), tensor("u", "K"), tensor("k", "M N")
a, b, line, image = tensor("a", "M K"), tensor("b", "K N"), tensor("x", "N C L"), tensor("x", "N C H W")
s, t, zero, one = const("s", ""), const("t", ""), const("o", ""), const("one", "")
kernel, pads, dilations, strides, axes = (integers(name) for name in ("kernel", "pads", "dilations", "strides", "axes"))
some = fn.lt(0, fn.size("N"))


def cast(value: Term, to: DType) -> App:
    return op.Cast(value, to=int(to))


def of(dtype: DType, *terms: Term) -> tuple[App, ...]:
    return tuple(fn.eq(fn.dtype(term), int(dtype)) for term in terms)


def among(term: Term, *dtypes: DType) -> App:
    return fn.is_in(fn.dtype(term), tuple(map(int, dtypes)))


# -- places among weights of which all may be 0, or one number --------------------------------------------------------

PARTS: Mapping[str, Callable[[Term], App]] = {
    "slice": lambda value: op.Slice(value, (0,), (2,), (1,)),
    "end": lambda value: op.Slice(value, (-2,), (MAX_AXIS_SIZE,), (1,)),
    "half": lambda value: op.Split.split(2, value, axis=1, num_outputs=2)[1],
    "turned_slice": lambda value: op.Transpose(
        op.Slice(op.Transpose(value, perm=(1, 0)), (1,), (3,), (0,)), perm=(1, 0)
    ),
}
PLACED = tuple(
    Rule(f"greatest_of_a_{name}_of_a_{kind}".lower(), op.ArgMax(of_it(getattr(op, kind)(rows, axis=1)), axis=1),
         op.ArgMax(of_it(rows), axis=1), when=(*of(FLOAT, rows), fn.lt(3, fn.size("N"))))
    for name, of_it in PARTS.items()
    for kind in ("Softmax", "LogSoftmax")
)  # fmt: skip

# -- what is lost beside a large number that is exact by itself --------------------------------------------------------

truths, far = cast(mask, FLOAT), 1_000_000.0
ADDED_UP: Mapping[str, Callable[[Term], App]] = {
    "sum": lambda value: op.ReduceSum(value, (1,)),
    "mean": lambda value: op.ReduceMean(value, (1,)),
    "running_sum": lambda value: op.CumSum(value, 1),
    "product": lambda value: value @ tensor("b", "N P"),
    "turned_sum": lambda value: op.ReduceSum(op.Transpose(-value, perm=(1, 0)), (0,)),
}
LOST = (
    *(Rule(f"{name}_of_large_numbers_taken_off", reduced(truths), reduced(truths + far) - reduced(truths * 0.0 + far),
           when=of(BOOL, mask)) for name, reduced in ADDED_UP.items()),
    *(Rule(f"normalized_{name}", op.LayerNormalization(moved(truths), row, axis=-1),
           op.LayerNormalization(moved(truths + far), row, axis=-1), when=(*of(BOOL, mask), some))
      for name, moved in (("beside_a_large_number", op.Identity), ("as_a_multiple", lambda value: value * 1.0))),
)  # fmt: skip

# -- products of exponentials ------------------------------------------------------------------------------------------

exp = op.Exp(x)
floats = of(FLOAT, x, y, z)
OVERFLOWING = (
    Rule("fourth_root_of_a_fourth_power", op.Relu(exp), op.Sqrt(op.Sqrt(exp * exp * exp * exp)), when=floats[:1]),
    Rule("root_of_a_square", op.Abs(exp), op.ReduceL2(op.Unsqueeze(exp, (0,)), (0,), keepdims=0), when=floats[:1]),
    Rule("scaled_by_one_after_the_other", x * (op.Exp(y) * op.Exp(z)), (x * op.Exp(y)) * op.Exp(z), when=floats),
    Rule("hyperbolic_one_after_the_other", op.Sinh(x) * (op.Cosh(y) * z), (op.Sinh(x) * op.Cosh(y)) * z, when=floats),
    Rule("exponentials_multiplied_first", (op.Exp(a) * s) @ op.Exp(b), (op.Exp(a) @ op.Exp(b)) * s,
         when=of(FLOAT, a, b, s)),
    Rule("exponentials_added_up_first", op.ReduceSum(op.Exp(rows) * op.Exp(row), (0,)),
         op.ReduceSum(op.Exp(rows), (0,)) * op.Exp(row), when=of(FLOAT, rows)),
)  # fmt: skip

# -- windows that see nothing ------------------------------------------------------------------------------------------


def pooled(value: Term, **more: TermLike) -> App:
    return op.MaxPool(value, **more)


WIDE: Mapping[str, dict[str, TermLike]] = {
    "any_window": {"kernel_shape": kernel, "pads": pads, "dilations": dilations},
    "a_window_of_two": {"kernel_shape": (2,), "pads": (1, 1), "dilations": (4,)},
    "a_window_in_steps": {"kernel_shape": (2,), "pads": (1, 1), "dilations": (3,), "strides": strides},
    "a_window_rounded_up": {"kernel_shape": kernel, "pads": pads, "dilations": dilations, "ceil_mode": 1},
}
NOTHING = (
    *(Rule(f"{name}_in_doubles", pooled(cast(line, DOUBLE), **wide), cast(pooled(line, **wide), DOUBLE),
           when=of(FLOAT, line)) for name, wide in WIDE.items()),
    *(Rule(f"{name}_without_what_is_below_zero", pooled(op.Relu(line), **wide), op.Relu(pooled(line, **wide)),
           when=of(FLOAT, line)) for name, wide in WIDE.items()),
)  # fmt: skip

# -- integers that are computed in floats ------------------------------------------------------------------------------

WRAPPING = (
    Rule("sum_of_integers_in_doubles", op.ReduceSum(cast(rows, DOUBLE), (1,)), cast(op.ReduceSum(rows, (1,)), DOUBLE),
         when=among(rows, DOUBLE, INT32)),
    Rule("sum_of_long_integers", op.ReduceSum(cast(rows, DOUBLE), (1,)), cast(op.ReduceSum(rows, (1,)), DOUBLE),
         when=among(rows, DOUBLE, INT64)),
    Rule("mean_of_integers", op.ReduceMean(cast(rows, FLOAT), (1,)), cast(op.ReduceMean(rows, (1,)), FLOAT),
         when=among(rows, FLOAT, INT32)),
    Rule("square_of_bytes", cast(x, FLOAT) * cast(x, FLOAT), cast(x * x, FLOAT), when=among(x, FLOAT, INT8)),
    Rule("no_sum_of_bytes", cast(x, FLOAT) + cast(x, FLOAT), cast(x + x, FLOAT), when=among(x, UINT8, FLOAT)),
    Rule("minus_a_byte", -cast(x, FLOAT), cast(-x, FLOAT), when=among(x, FLOAT, INT8)),
    Rule("product_of_integers", cast(rows, DOUBLE) @ cast(rows, DOUBLE), cast(rows @ rows, DOUBLE),
         when=among(rows, DOUBLE, INT32)),
    Rule("square_cast_like_another", op.CastLike(x, z) * op.CastLike(x, z), op.CastLike(x * x, z),
         when=(among(z, FLOAT, DOUBLE), among(x, FLOAT, INT8))),
    Rule("compared_by_their_negatives", op.Where(op.Less(x, y), m, m + 1.0), op.Where(op.Less(-y, -x), m, m + 1.0),
         when=(among(x, FLOAT, INT32), *of(FLOAT, m))),
    Rule("there_and_back_in_any_integers", op.CastLike(op.CastLike(x, y), x), x,
         when=(fn.is_integer(fn.dtype(x)), fn.is_integer(fn.dtype(y)))),
)  # fmt: skip

# -- and others, by what is overlooked ---------------------------------------------------------------------------------


def integers_of(dtype: DType) -> tuple[Rule, ...]:
    """Return rules that are right of numbers, but for integers of a type without a sign."""
    given, name = of(dtype, x, y, z), dtype.name.lower()
    return (
        Rule(f"distance_in_{name}", op.Max(x - y, y - x), op.Max(x, y) - op.Min(x, y), when=given[:2]),
        Rule(f"average_in_{name}", (x + y) / 2, x + (y - x) / 2, when=given[:2]),
        Rule(f"mean_of_halves_in_{name}", (x + y) / 2, x / 2 + y / 2, when=given[:2]),
        Rule(f"remainder_in_{name}", op.Mod(x - y, z), op.Mod(op.Mod(x, z) - op.Mod(y, z), z), when=given),
        Rule(f"smaller_than_a_sum_in_{name}", op.Min(x + y, x), x, when=given[:2]),
    )


count = op.Squeeze(op.Shape(row))
whole = fn.eq(fn.size("K"), fn.size("N"))


is_one = fn.is_one(one), *of(INT64, one)


def ones(like: Term) -> App:
    return op.Expand(one, op.Shape(like))


def scattered(places: Term | tuple[int, ...], **more: str) -> App:
    return op.ScatterND(row, op.Unsqueeze(places, (1,)), part, **more)


ARITHMETIC = (
    *(rule for dtype in (UINT8, DType.UINT32) for rule in integers_of(dtype)),
    Rule("remainder_of_what_is_below_zero", op.Mod(x, y), x - (x / y) * y, when=of(INT32, x, y)),
    Rule("quotient_of_a_quotient", (x / y) / z, x / (y * z), when=of(INT32, x, y, z)),
    Rule("least_of_squares", op.ArgMin(rows * rows, axis=1), op.ArgMin(op.Abs(rows), axis=1),
         when=(*of(INT32, rows), some)),
    Rule("last_of_running_sums", cast(op.Gather(op.CumSum(rows, 1), (-1,), axis=1), INT64),
         op.ReduceSum(cast(rows, INT64), (1,)), when=(*of(INT32, rows), some)),
    Rule("zero_less_the_least", op.Relu(op.Range(0, 1, 1) - (-MAX_AXIS_SIZE - 1)),
         op.Range(0, 1, 1) - (-MAX_AXIS_SIZE - 1)),
    Rule("positions_further_on", op.Range(x + m, y + m, z), op.Range(x, y, z) + m, when=of(INT32, x, y, z, m)),
    Rule("equal_in_doubles", op.Equal(cast(x, DOUBLE) + cast(y, DOUBLE), cast(z, DOUBLE)), op.Equal(x + y, z),
         when=of(INT64, x, y, z)),
    Rule("places_shortened", op.Gather(row, cast(cast(x, INT8), INT64)), op.Gather(row, x), when=of(INT64, x)),
)  # fmt: skip
PLACES = (
    Rule("last_place_from_the_end", op.ArgMax(op.Slice(rows, (-1,), (-MAX_AXIS_SIZE,), (1,), (-1,)), axis=1),
         fn.size("N") - 1 - op.ArgMax(rows, axis=1), when=some),
    Rule("update_backwards", scattered(op.Range(count - 1, -1, -1)), part, when=whole),
    Rule("update_with_gaps", scattered(op.Range(0, count, 2)), op.Concat(part, row, axis=0)),
    Rule("update_twice_around", scattered(op.Range(-count, count, 1)), op.Slice(part, (0,), op.Shape(row), (0,)),
         when=fn.eq(fn.size("K"), 2 * fn.size("N"))),
    *(Rule(f"update_by_{how}", scattered(op.Range(0, count, 1), reduction=how), part, when=whole)
      for how in ("add", "mul", "max", "min")),
    Rule("iota_that_goes_down", op.Gather(row, op.CumSum(ones(row), 0, exclusive=1, reverse=1)), row, when=is_one),
    Rule("rows_for_columns", op.CumSum(ones(rows), 1), op.CumSum(ones(rows), 0), when=is_one),
)  # fmt: skip


def halved(value: Term) -> App:
    return op.MaxPool(value, kernel_shape=(2,), strides=(2,), auto_pad="SAME_LOWER")


WINDOWS = (
    Rule("windows_rounded_up_and_down", pooled(pooled(line, kernel_shape=(2,), strides=(2,), ceil_mode=1),
         kernel_shape=(2,), strides=(2,)), pooled(line, kernel_shape=(4,), strides=(4,))),
    Rule("windows_in_steps_at_the_edge", pooled(pooled(line, kernel_shape=(2,), strides=(2,)), kernel_shape=(2,),
         strides=(2,), pads=(1, 1)), pooled(line, kernel_shape=(4,), strides=(4,), pads=(1, 1))),
    Rule("windows_of_the_same_size_in_steps", halved(halved(line)), op.MaxPool(line, kernel_shape=(4,), strides=(4,),
         auto_pad="SAME_LOWER")),
    Rule("mean_of_rounded_windows", op.GlobalAveragePool(op.AveragePool(line, kernel_shape=(2,), strides=(2,))),
         op.GlobalAveragePool(line)),
    Rule("norms_that_overlap", op.LpPool(op.LpPool(line, kernel_shape=(2,)), kernel_shape=(2,)),
         op.LpPool(line, kernel_shape=(3,)), when=of(FLOAT, line)),
    Rule("one_more_beside_padding", op.AveragePool(line + 1.0, kernel_shape=(3,), pads=(1, 1), count_include_pad=1),
         op.AveragePool(line, kernel_shape=(3,), pads=(1, 1), count_include_pad=1) + 1.0, when=of(FLOAT, line)),
)  # fmt: skip
keep, along_none = integer("keep"), fn.eq(fn.length(axes), 0)
f, r, xs, ys = pointwise("f"), reduction("r"), tensors("xs"), tensors("ys")
q, k, v = tensor("q", "B H S E"), tensor("k", "B H L E"), tensor("v", "B H L F")
attended = (*(fn.lt(0, fn.size(axis)) for axis in "BHSLEF"), *of(FLOAT, q, k, v))
D, Q = op.DequantizeLinear, op.QuantizeLinear
scaled = (fn.is_scale(s), *of(FLOAT, s))
OTHERS = (
    *(Rule(f"along_nothing_{name.lower()}", getattr(op, name)(x, axes, noop_with_empty_axes=1, keepdims=keep), x,
           when=along_none) for name in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum")),
    *(Rule(f"along_all_{name.lower()}", getattr(op, name)(x, axes, noop_with_empty_axes=0, keepdims=keep), x,
           when=along_none) for name in ("ReduceSum", "ReduceMax")),
    Rule("any_of_what_is_padded", op.Pad(f(row), (1, 1)), f(op.Pad(row, (1, 1)))),
    Rule("any_where_else", op.Where(m, f(x), f(y)), f(op.Where(op.Not(m), x, y))),
    Rule("any_reduction_along_the_next", r(r(tensor("c", "A B C"), (1,), keepdims=0), (1,), keepdims=0),
         r(tensor("c", "A B C"), (1, 2), keepdims=0)),
    Rule("mean_of_all_twice", op.ReduceMean(op.Concat(*xs, *xs, *ys, axis=0), (0,)),
         op.ReduceMean(op.Concat(*xs, *ys, axis=0), (0,))),
    Rule("first_of_all", op.ArgMax(op.Concat(*xs, *xs, axis=0), axis=0, select_last_index=1),
         op.ArgMax(op.Concat(*xs, axis=0), axis=0, select_last_index=1)),
    Rule("greatest_score_seen_last", op.Gather(op.Attention(q, k, v, is_causal=1), (-1,), axis=2),
         op.Attention(op.Gather(q, (-1,), axis=2), k, v, is_causal=1), when=attended),
    Rule("more_where_nothing_is_seen", op.Attention(q, k, v + 1.0, tensor("w", "S L")),
         op.Attention(q, k, v, tensor("w", "S L")) + 1.0, when=(*attended, *of(BOOL, tensor("w", "S L")))),
    Rule("cap_before_the_mask", op.Attention(q, k, v, softcap=5.0, scale=2.0),
         op.Attention(q * 2.0, k, v, softcap=10.0, scale=1.0), when=attended),
    Rule("one_step_further", Q(x + s, s, zero), Q(x, s, zero) + 1, when=(*scaled, *of(FLOAT, x), *of(UINT8, zero))),
    Rule("half_rounded_up", Q(x, s, zero), cast(op.Clip(op.Floor(x / s + 0.5) + cast(zero, FLOAT), 0.0, 255.0), UINT8),
         when=(*scaled, *of(FLOAT, x), *of(UINT8, zero))),
    Rule("greatest_byte_of_nothing", op.ReduceMax(D(rows, s, zero), (1,)), D(op.ReduceMax(rows, (1,)), s, zero),
         when=(*scaled, *of(UINT8, rows, zero))),
    Rule("scale_by_axis_of_another", op.Slice(D(image, const("c", "C")), (0,), (1,), (1,)),
         D(op.Slice(image, (0,), (1,), (1,)), const("c", "C")), when=of(UINT8, image)),
)  # fmt: skip

UNPROVED = (*PLACED, *LOST, *OVERFLOWING, *NOTHING, *WRAPPING, *ARITHMETIC, *PLACES, *WINDOWS, *OTHERS)
