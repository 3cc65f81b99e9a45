"""Wrong rules on the places at which constants are not zero: of other constants, along other axes, the first few."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.language.terms import App, Term, TermLike

x, image, m = tensor("x", "M K"), tensor("i", "N I H W"), tensor("m", "K C")
w, b, v, u = const("w", "K C"), const("b", "C"), const("v", "C P"), const("u", "C P")
filters, readers, square = const("f", "C I 1 1"), const("g", "P C 1 1"), const("s", "C D")
live, made = fn.nonzero_indices("C", v), fn.nonzero_indices("C", w)
fewer = fn.lt(fn.length(live), fn.size("C"))
some = (fn.lt(0, fn.length(live)), fewer)


def kept(value: TermLike, axis: int, places: Term = live) -> App:
    return op.Gather(value, places, axis=axis)


def first(value: TermLike, axis: int) -> App:
    return op.Slice(value, (0,), fn.concat(fn.length(live)), (axis,))


REFUTED = (
    Rule("zero_but_for_the_bias", (x @ w + b) @ v, (x @ kept(w, 1, made) + kept(b, 0, made)) @ kept(v, 0, made)),
    Rule("zero_before_a_sigmoid", op.Sigmoid(x @ w) @ v, op.Sigmoid(x @ kept(w, 1, made)) @ kept(v, 0, made)),
    Rule("zero_before_a_cosine", op.Cos(x @ w) @ v, op.Cos(x @ kept(w, 1, made)) @ kept(v, 0, made)),
    Rule("live_places_are_the_first", (x @ w) @ v, (x @ first(w, 1)) @ first(v, 0)),
    Rule("live_in_another_constant", ((x @ w) @ u, (x @ w) @ v),
         ((x @ kept(w, 1)) @ kept(u, 0), (x @ kept(w, 1)) @ kept(v, 0))),
    Rule("sum_of_another_constant", op.ReduceSum(u, (0,)) + op.ReduceSum(v, (0,)),
         op.ReduceSum(kept(u, 0), (0,)) + op.ReduceSum(v, (0,))),
    Rule("product_without_zeros", op.ReduceProd(v, (0,)), op.ReduceProd(kept(v, 0), (0,)), when=some),
    Rule("greatest_without_zeros", op.ReduceMax(v, (0,)), op.ReduceMax(kept(v, 0), (0,)), when=some),
    Rule("mean_without_zeros", op.ReduceMean(v, (0,)), op.ReduceMean(kept(v, 0), (0,)), when=some),
    Rule("exponentials_without_zeros", op.ReduceSum(op.Sigmoid(v), (0,)), op.ReduceSum(op.Sigmoid(kept(v, 0)), (0,))),
    Rule("none_is_dead", op.Identity(v), kept(v, 0)),
    Rule("each_its_own_places", (x @ w) @ v, (x @ kept(w, 1, made)) @ kept(v, 0)),
    Rule("lists_of_other_multiples", (x @ w) @ v, (x @ kept(w, 1, fn.nonzero_indices("C", 4, v))) @ kept(v, 0)),
    Rule("places_among_places", (x @ w) @ v, (x @ kept(w, 1)) @ kept(kept(v, 0), 0)),
    Rule("places_of_another_axis", op.ReduceSum(square, (1,)),
         op.ReduceSum(kept(square, 1, fn.nonzero_indices("C", square)), (1,))),
    Rule("number_of_places_is_a_size", op.Identity(v), op.Slice(v, (0,), fn.concat(fn.length(live)), (0,))),
)  # fmt: skip
UNPROVED = (
    Rule("zero_over_zero_beside_what_lives", m / w, m / w + (m - m) / (m - m),
         when=fn.eq(fn.length(made), fn.size("C"))),
    Rule("logarithm_of_nothing_beside_what_lives", op.Log(b) + m, op.Log(b) + m + op.Log(m - m) * 0.0,
         when=fn.eq(fn.length(fn.nonzero_indices("C", b)), fn.size("C"))),
    Rule("convolution_of_no_channels", op.Conv(op.Conv(image, filters), readers),
         op.Conv(op.Conv(image, kept(filters, 0, fn.nonzero_indices("C", readers))),
                 kept(readers, 1, fn.nonzero_indices("C", readers))),
         when=fn.lt(fn.length(fn.nonzero_indices("C", readers)), fn.size("C"))),
    Rule("whole_numbers_are_not_pruned", (x @ w) @ v, (x @ kept(w, 1)) @ kept(v, 0),
         when=(fn.is_integer(fn.dtype(x)), *some)),
)  # fmt: skip
