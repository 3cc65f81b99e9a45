"""Wrong rules on channels that are filled up with zeros, and on groups of a convolution that are merged."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, integer, op, tensor
from graphopt.language.terms import App, Term, TermLike

image, x = tensor("x", "N I H W"), tensor("x", "N C H W")
w, b, v = const("w", "C I 1 1"), const("b", "C"), const("v", "M C 1 1")
each, group = const("w", "M I 1 1"), integer("group")
inner, made = fn.size("I"), fn.size("M")


def filled(value: Term, axis: int = 0, by: TermLike = 0.0, missing: TermLike = 2) -> App:
    return op.Pad(value, fn.concat(0, missing), by, (axis,))


def merged(together: Term, count: TermLike, *conditions: Term, name: str) -> Rule:
    when = (fn.lt(1, inner), fn.lt(1, group), *conditions)
    return Rule(name, op.Conv(x, each, group=group), op.Conv(x, together, group=count), when=when)


def on_diagonal(diagonal: Term) -> App:
    """Return the weights of each two groups as those of one, times what is on the diagonal."""
    apart = op.Reshape(each, fn.concat(group // 2, 2, made // group, 1, inner, 1, 1))
    return op.Reshape(apart * op.Reshape(diagonal, (1, 2, 1, 2, 1, 1, 1)), fn.concat(made, inner * 2, 1, 1))


even = fn.eq(group % 2, 0)
one = op.Slice(op.Flatten(each), (0, 0), (1, 1), (0, 1))
unit = op.EyeLike(op.Expand(one, (2, 2)))

REFUTED = (
    Rule("filled_channels_are_read", op.Conv(op.Sigmoid(op.Conv(image, w, b)), v),
         op.Conv(op.Sigmoid(op.Conv(image, filled(w), filled(b))), filled(v, 1, 1.0))),
    Rule("filled_bias_is_read", op.Conv(op.Conv(image, w, b), v),
         op.Conv(op.Conv(image, filled(w), filled(b, 0, 1.0)), filled(v, 1, 1.0))),
    Rule("filled_in_front", op.Conv(op.Conv(image, w, b), v),
         op.Conv(op.Conv(image, op.Pad(w, (2, 0), 0.0, (0,)), filled(b)), filled(v, 1))),
    Rule("filled_results", op.Conv(image, w, b), op.Conv(image, filled(w), filled(b))),
    merged(on_diagonal(op.Expand(one * 0.0 + 1.0, (2, 2))), group // 2, even, name="merged_without_zeros"),
    merged(on_diagonal(op.Expand(one, (2, 2)) * 0.0 + 1.0 - unit), group // 2, even, name="merged_off_diagonal"),
)  # fmt: skip
UNPROVED = (
    merged(on_diagonal(unit), group // 2, name="merged_whether_or_not_groups_are_even"),
    merged(on_diagonal(unit), group, even, name="merged_weights_in_as_many_groups"),
    Rule("multiple_of_twice_as_much", op.Conv(x, each, group=group),
         op.Reshape(op.Reshape(op.Conv(x, each, group=group), fn.concat(0, group * 2, made // (group * 2), -1)),
                    fn.shape(x)), when=(fn.lt(1, group), fn.eq(made, fn.size("C")))),
    Rule("filled_or_cut_off", op.Conv(op.Conv(image, w, b), v),
         op.Conv(op.Conv(image, filled(w, missing=-1), filled(b, missing=-1)), filled(v, 1, missing=-1))),
)  # fmt: skip
