"""Rotary positions by constant tables: queries and keys are rotated, each element times a cosine and its partner times
a sine.

Tokens in front of the others that have no position (of a class, registers) are exported with two copies more, which
cut them off and join them again. An angle of zero leaves them as they are.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, const, fn, integer, integers, op, tensor

# Axes: *b batch and heads, L all tokens, P those in front, N those that are rotated, H heads, D size of a head, *c axes
# before the last; E, F the parts of an axis.
high, low, factors = tensor("high", "*b E"), tensor("low", "*b F"), const("c", "*c D")
axis, cut, joined = integer("axis"), integer("cut"), integer("joined")
along, swapped = integer("along"), integer("swapped")
tokens, halves = integers("tokens"), integers("halves")


def negated_part(position: int) -> Rule:
    """Return the rule for two parts, of which the one in this position is negated."""
    joins = fn.eq(fn.normalize_indices(axis, fn.rank(high)), fn.rank(high) - 1)
    parts, own = [high, low], list(op.Split.split(2, factors, fn.sizes("E F"), axis=-1))
    negated = [op.Neg(part) if i == position else part for i, part in enumerate(parts)]
    signed = [op.Neg(part) if i == position else part for i, part in enumerate(own)]
    return Rule(
        f"fuse_neg_of_{('first', 'second')[position]}_part_into_factor",
        op.Concat(*negated, axis=axis) * factors,
        op.Concat(*parts, axis=axis) * op.Concat(*signed, axis=-1),
        when=(joins, fn.eq(fn.size("D"), fn.size("E") + fn.size("F"))),
        why="The sign goes into the constant that the parts are multiplied by.",
    )


def swap_halves(value: Term, *sizes: Term, **evenly: int) -> App:
    """Return the last axis with its second half in front of the first."""
    first, second = op.Split.split(2, value, *sizes, axis=along, **evenly)
    return op.Concat(second, first, axis=swapped)


HALVES: Mapping[str, Callable[[Term], App]] = {
    "": lambda value: swap_halves(value, halves),
    "_of_even_halves": lambda value: swap_halves(value, num_outputs=2),
}


class Layout(NamedTuple):
    """Where the tokens lie."""

    name: str
    axes: str
    """The axes of queries or keys."""
    table: str
    """The axes of a table."""
    place: int
    """The place of the tokens' axis, counted from the back."""


LAYOUTS = (Layout("tokens", "*b L D", "1*k N D", -2), Layout("tokens_before_heads", "*b L H D", "1*k N 1 D", -3))


def rotate_all(layout: Layout, kind: str) -> Rule:
    """Return the rule for tokens of which the first ones are cut off, while the others are rotated."""
    x, cosines, sines = tensor("x", layout.axes), const("cos", layout.table), const("sin", layout.table)
    unrotated, rotated = op.Split.split(2, x, tokens, axis=cut)
    swap, rank, unrotated_tokens = HALVES[kind], fn.rank(x), fn.item(tokens, 0)

    def prepended(values: Term, value: float) -> App:
        return op.Pad(values, fn.concat(unrotated_tokens, 0), value, (layout.place,))

    def is_axis(axis: Term, place: int) -> App:
        return fn.eq(fn.normalize_indices(axis, rank), rank + place)

    return Rule(
        f"rotate_all_{layout.name}{kind}",
        op.Concat(unrotated, rotated * cosines + swap(rotated) * sines, axis=joined),
        x * prepended(cosines, 1.0) + swap(x) * prepended(sines, 0.0),
        when=(
            is_axis(cut, layout.place),
            is_axis(joined, layout.place),
            is_axis(along, -1),
            is_axis(swapped, -1),
            fn.eq(fn.item(tokens, 1), fn.size("N")),
        ),
        pays=unrotated_tokens <= fn.item(tokens, 1),
        why="An angle of zero rotates nothing, and costs less than to cut tokens off and to join them again.",
    )


RULES = (
    *(negated_part(position) for position in (0, 1)),
    *(rotate_all(layout, kind) for layout in LAYOUTS for kind in HALVES),
)
