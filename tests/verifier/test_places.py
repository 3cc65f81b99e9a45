"""Lists of places of which nothing is known but that they ascend: what is simplified is true of any such list."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random

import pytest

from graphopt.base.integers import And, Atom, Comparison, Formula, Int, Or, Size, eq, inside, symbol
from graphopt.base.places import Places, definition_of, listed
from graphopt.base.rebuilding import only_symbol
from graphopt.language.proof import Model, Verdict
from graphopt.language.rule import Rule, const, fn, op
from graphopt.verifier.context import context
from graphopt.verifier.prove import prove
from graphopt.verifier.solver import Effort

i, j, extent, count = (symbol(name) for name in ("i", "j", "extent", "count"))
ONE, OTHER = (Places(symbol(name), extent, count) for name in ("one", "other"))


def worth(size: Size, numbers: Mapping[Int, int], lists: Mapping[Int, list[int]]) -> int:
    """What a size is for these numbers and lists."""
    terms = {(): size} if isinstance(size, int) else size.terms
    return sum(c * prod(worth_of(atom, numbers, lists) for atom in monomial) for monomial, c in terms.items())


def worth_of(atom: Atom, numbers: Mapping[Int, int], lists: Mapping[Int, list[int]]) -> int:
    if atom.kind == "symbol":
        return next(number for known, number in numbers.items() if only_symbol(known) == atom)
    places, subject = listed(atom)
    listing, at = lists[places.name], worth(subject, numbers, lists)
    if atom.kind == "nth":
        return listing[at] if 0 <= at < len(listing) else 0
    return listing.index(at) if at in listing else len(listing)


def holds(part: Formula, numbers: Mapping[Int, int], lists: Mapping[Int, list[int]]) -> bool:
    match part:
        case And(parts):
            return all(holds(inner, numbers, lists) for inner in parts)
        case Or(parts):
            return any(holds(inner, numbers, lists) for inner in parts)
        case Comparison(kind, poly):
            value = worth(poly, numbers, lists)
            return {"ge": value >= 0, "eq": value == 0, "ne": value != 0}[kind]
    raise AssertionError(part)


def a_place(random: Random, depth: int) -> Size:
    if not depth:
        return random.choice((i, j, i + 1, 2))
    tell = random.choice((ONE, ONE, OTHER))
    return random.choice((tell.nth, tell.order))(a_place(random, depth - 1))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_simplified_is_the_same_for_any_lists(seed: int) -> None:
    random = Random(seed)
    length = random.randrange(1, 6)
    lists = {each.name: sorted(random.sample(range(7), length)) for each in (ONE, OTHER)}
    for _ in range(20):
        numbers = {i: random.randrange(7), j: random.randrange(7), extent: 7, count: length}
        said = [
            *ONE.facts, inside(i, count), inside(j, extent), ONE.has(i), OTHER.has(j), eq(ONE.nth(i), j), eq(i, j)
        ]  # fmt: skip
        known = context([fact for fact in said if holds(fact, numbers, lists)], Effort())
        size = a_place(random, random.randrange(1, 5))
        assert isinstance(size, Int)
        assert worth(known.simplify(size), numbers, lists) == worth(size, numbers, lists)
        assert all(holds(part, numbers, lists) for part in definition_of(size.atoms[0]))


def test_places_and_their_order_undo_each_other_where_they_are_in_the_list() -> None:
    anywhere, within = context(ONE.facts, Effort()), context([*ONE.facts, inside(i, count), ONE.has(j)], Effort())
    assert within.simplify(ONE.order(ONE.nth(i))) == i
    assert within.simplify(ONE.nth(ONE.order(j))) == j
    assert within.proves(inside(ONE.nth(i), extent)) and within.proves(inside(j, extent))
    assert anywhere.simplify(ONE.order(ONE.nth(i))) != i and anywhere.simplify(ONE.nth(ONE.order(j))) != j
    assert not anywhere.proves(inside(ONE.nth(i), extent + 1)) and not anywhere.proves(inside(j, extent))


def test_lists_of_equal_length_are_not_the_same() -> None:
    known = context([*ONE.facts, inside(i, count), ONE.has(j), OTHER.has(j), eq(count, 3)], Effort())
    assert not known.proves(eq(ONE.nth(i), OTHER.nth(i)))
    assert known.simplify(OTHER.order(ONE.nth(i))) != i


def test_what_is_zero_adds_nothing_to_sums_of_finite_numbers() -> None:
    """An infinity times zero is NaN, which a sum without the product lacks."""
    v = const("v", "C P")
    proof = prove(Rule("sum_of_what_lives", op.ReduceSum(v, (0,)), op.ReduceSum(op.Gather(v, fn.live("C", v)), (0,))))
    assert (proof.verdict, proof.model) == (Verdict.PROVED, Model.REAL), proof
