"""Wrong rules on the places at which constants are equal: of other constants, along other axes, added up otherwise."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, op, tensor
from graphopt.language.terms import App, Term, TermLike
from graphopt.rules.branches import eye

x, image = tensor("x", "M K"), tensor("i", "N I H W")
w, b, v, u = const("w", "K C"), const("b", "C"), const("v", "C P"), const("u", "K C")
filters, single, readers = const("f", "C I 1 1"), const("d", "C 1 1 1"), const("g", "P C 1 1")
square, offsets = const("s", "C D"), const("o", "C", default=0)
made, with_bias, read = fn.unique_indices("C", w), fn.unique_indices("C", w, b), fn.unique_indices("C", v)
of_b, of_u, by_four = fn.unique_indices("C", b), fn.unique_indices("C", u), fn.unique_indices("C", 4, w)


in_order = fn.inverse_indices("C", w)


def kept(value: TermLike, axis: int, places: Term = made) -> App:
    return op.Gather(value, places, axis=axis)


def added(value: Term, places: App = made, alike: Term = in_order, axis: int = 1) -> App:
    return op.Gather(eye(value, fn.length(places)), alike, axis=axis) @ value


def some_of(places: Term) -> tuple[App, ...]:
    return fn.lt(0, fn.length(places)), fn.lt(fn.length(places), fn.size("C")), fn.lt(0, fn.size("P"))


def flat(value: Term) -> App:
    return op.Reshape(value, fn.sizes("P C"))


def summed(places: App, alike: Term) -> App:
    """The readers of channels with those of equal ones added."""
    units = op.Gather(eye(readers, fn.length(places)), alike, axis=0)
    return op.Reshape(flat(readers) @ units, fn.concat(fn.size("P"), fn.length(places), 1, 1))


of_filters = fn.unique_indices("C", filters)
some, fewer = some_of(made), some_of(of_filters)

REFUTED = (
    Rule("equal_features_read_once", (x @ w) @ v, (x @ kept(w, 1)) @ kept(v, 0), when=some),
    Rule("equal_but_for_the_bias", (x @ w + b) @ v, (x @ kept(w, 1) + kept(b, 0)) @ added(v), when=some),
    Rule("equal_where_they_are_read", (x @ w) @ v, (x @ kept(w, 1, read)) @ added(v, read, fn.inverse_indices("C", v)),
         when=some_of(read)),
    Rule("alike_in_another_constant", (x @ u, (x @ w) @ v),
         (x @ u, (x @ kept(w, 1, of_u)) @ added(v, of_u, fn.inverse_indices("C", u))), when=some_of(of_u)),
    Rule("alike_in_a_list_of_another_multiple", (x @ w) @ v,
         (x @ kept(w, 1, by_four)) @ added(v, by_four), when=some_of(by_four)),
    Rule("alike_in_a_list_of_more_constants", (x @ w + b) @ v, (x @ kept(w, 1, with_bias) + kept(b, 0, with_bias))
         @ added(v, with_bias), when=some_of(with_bias)),
    Rule("positions_for_places", op.Identity(w), op.Gather(w, fn.inverse_indices("C", w), axis=1)),
    Rule("order_does_not_matter", (x @ w) @ v, (x @ op.Gather(w, fn.inverse_indices("C", w), axis=1)) @ v),
    Rule("places_of_the_first_for_the_first", op.Identity(w), op.Gather(kept(w, 1), made, axis=1)),
    Rule("none_are_equal", op.Identity(w), kept(w, 1)),
    Rule("equal_along_another_axis", op.Identity(square),
         op.Gather(kept(square, 0, fn.unique_indices("C", square)), fn.inverse_indices("C", square), axis=1)),
    Rule("sum_of_the_first", op.ReduceSum(w, (1,)), op.ReduceSum(kept(w, 1), (1,)), when=some[:1]),
    Rule("mean_of_the_first", op.ReduceMean(w, (1,)), op.ReduceMean(kept(w, 1), (1,)), when=some[:1]),
    Rule("product_of_the_first", op.ReduceProd(w, (1,)), op.ReduceProd(kept(w, 1), (1,)), when=some[:1]),
    Rule("softmax_of_the_first", op.Softmax(x @ w) @ v, op.Softmax(x @ kept(w, 1)) @ added(v), when=some),
    Rule("greatest_of_equal_readers", (x @ w) @ v, (x @ kept(w, 1)) @ op.ReduceMax(op.Unsqueeze(
         op.Gather(eye(v, fn.length(made)), in_order, axis=1), (2,)) * op.Unsqueeze(v, (0,)), (1,), keepdims=0),
         when=some),
    Rule("filters_equal_but_for_the_bias", op.Conv(op.Conv(image, filters, offsets), readers),
         op.Conv(op.Conv(image, kept(filters, 0, of_filters), kept(offsets, 0, of_filters)),
                 summed(of_filters, fn.inverse_indices("C", filters))), when=fewer),
    Rule("filters_equal_but_for_those_of_each",
         op.Conv(op.Conv(op.Conv(image, filters), single, group=integer("group")), readers),
         op.Conv(op.Conv(op.Conv(image, kept(filters, 0, of_filters)), kept(single, 0, of_filters),
                         group=fn.length(of_filters)), summed(of_filters, fn.inverse_indices("C", filters))),
         when=(fn.eq(integer("group"), fn.size("C")), *fewer)),
    Rule("number_of_the_first_is_a_size", op.Identity(b), op.Slice(b, (0,), fn.concat(fn.length(of_b)), (0,))),
)  # fmt: skip
UNPROVED = (
    Rule("equal_features_of_whole_numbers", (x @ w) @ v, (x @ kept(w, 1)) @ added(v),
         when=(fn.is_integer(fn.dtype(x)), *some)),
    Rule("units_the_other_way_round", (x @ w) @ v, (x @ kept(w, 1)) @ added(v, axis=0), when=some),
    Rule("number_of_features_divides", (x @ w) @ v, (x @ kept(w, 1)) @ added(v) * fn.floordiv(1, fn.length(made)),
         when=some[2]),
    Rule("convolution_of_no_channels_that_are_equal", op.Conv(op.Conv(image, filters), readers),
         op.Conv(op.Conv(image, kept(filters, 0, of_filters)), summed(of_filters, fn.inverse_indices("C", filters))),
         when=fewer[1:]),
)  # fmt: skip
