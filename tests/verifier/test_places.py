"""Lists of places of which nothing is known but that they ascend: what is simplified is true of any such list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import pytest

from graphopt.expr.index_lists import IndexList, index_bounds, index_list_of
from graphopt.expr.integers import Atom, Polynomial, Size, eq, in_range, symbol
from graphopt.expr.substitution import IntegerEvaluation, single_symbol
from graphopt.language.proof import ProofModel, Verdict
from graphopt.language.rule import Rule, const, fn, op
from graphopt.verifier.context import get_context
from graphopt.verifier.prove import prove
from graphopt.verifier.solver import SolverSession


class Two(NamedTuple):
    """Two lists of places, as long as each other; made anew for each test, for proofs let go of all integers."""

    i: Polynomial
    j: Polynomial
    extent: Polynomial
    length: Polynomial
    one: IndexList
    other: IndexList


@pytest.fixture
def two() -> Two:
    i, j, extent, count = (symbol(name) for name in ("i", "j", "extent", "count"))
    one, other = (IndexList(symbol(name), extent, count) for name in ("one", "other"))
    return Two(i, j, extent, count, one, other)


@dataclass(frozen=True)
class Listed(IntegerEvaluation):
    """Numbers put in for symbols, and lists for those of which nothing is known."""

    lists: Mapping[Polynomial, list[int]] = field(default_factory=dict)

    def atom(self, atom: Atom) -> Any:
        if atom.kind == "symbol":
            return next(number for known, number in self.symbols.items() if single_symbol(known) == atom)
        places, subject = index_list_of(atom)
        listing, at = self.lists[places.name], self.integer(subject)
        if atom.kind == "select":
            return listing[at] if 0 <= at < len(listing) else 0
        if atom.kind == "representative" and at not in listing:  # any position would do
            return at % len(listing) if 0 <= at < self.integer(places.extent) else len(listing)
        return listing.index(at) if at in listing else len(listing)


def a_place(random: Random, two: Two, depth: int) -> Size:
    if not depth:
        return random.choice((two.i, two.j, two.i + 1, 2))
    tell = random.choice((two.one, two.one, two.other))
    return random.choice((tell.select, tell.rank, tell.representative))(a_place(random, two, depth - 1))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_simplified_is_the_same_for_any_lists(seed: int, two: Two) -> None:
    i, j, extent, count, one, other = two
    random = Random(seed)
    length = random.randrange(1, 6)  # of no places none stands for the others
    lists = {each.name: sorted(random.sample(range(7), length)) for each in (one, other)}
    for _ in range(20):
        numbers = {i: random.randrange(-2, 9), j: random.randrange(-2, 9), extent: 7, count: length}
        said = [
            *one.facts, in_range(i, count), in_range(j, extent), one.contains(i), other.contains(j),
            eq(one.select(i), j), eq(i, j)
        ]  # fmt: skip
        listed = Listed(numbers, lists)
        known = get_context([fact for fact in said if listed.holds(fact)], SolverSession())
        size = a_place(random, two, random.randrange(1, 5))
        assert isinstance(size, Polynomial)
        assert listed.integer(known.simplify(size)) == listed.integer(size)
        assert all(listed.holds(part) for part in index_bounds(size.atoms[0]))


def test_places_and_their_order_undo_each_other_where_they_are_in_the_list(two: Two) -> None:
    i, j, extent, count, one, _ = two
    anywhere, within = (
        get_context(one.facts, SolverSession()),
        get_context([*one.facts, in_range(i, count), one.contains(j)], SolverSession()),
    )
    assert within.simplify(one.rank(one.select(i))) == i
    assert within.simplify(one.select(one.rank(j))) == j
    assert within.proves(in_range(one.select(i), extent)) and within.proves(in_range(j, extent))
    assert anywhere.simplify(one.rank(one.select(i))) != i and anywhere.simplify(one.select(one.rank(j))) != j
    assert not anywhere.proves(in_range(one.select(i), extent + 1)) and not anywhere.proves(in_range(j, extent))


def test_lists_of_equal_length_are_not_the_same(two: Two) -> None:
    i, j, _, count, one, other = two
    known = get_context(
        [*one.facts, in_range(i, count), one.contains(j), other.contains(j), eq(count, 3)], SolverSession()
    )
    assert not known.proves(eq(one.select(i), other.select(i)))
    assert known.simplify(other.rank(one.select(i))) != i


def test_what_is_zero_adds_nothing_to_sums_of_finite_numbers() -> None:
    """An infinity times zero is NaN, which a sum without the product lacks."""
    v = const("v", "C P")
    proof = prove(
        Rule("sum_of_what_lives", op.ReduceSum(v, (0,)), op.ReduceSum(op.Gather(v, fn.nonzero_indices("C", v)), (0,)))
    )
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.REAL), proof


def test_a_place_is_alike_to_the_one_that_stands_for_it_and_need_not_be_it(two: Two) -> None:
    i, j, extent, count, one, other = two
    known = get_context([*one.facts, in_range(i, count), in_range(j, extent)], SolverSession())
    assert known.simplify(one.representative(one.select(i))) == i and known.proves(
        in_range(one.representative(j), count)
    )
    assert known.simplify(one.select(one.representative(j))) != j and not known.proves(
        eq(one.select(one.representative(j)), j)
    )
    assert not known.proves(eq(one.representative(j), one.rank(j))) and not known.proves(
        eq(one.representative(j), other.representative(j))
    )
    assert not get_context(one.facts, SolverSession()).proves(in_range(one.representative(j), count))


def test_what_is_equal_is_what_stands_for_it_in_sums_of_finite_numbers() -> None:
    w = const("w", "K C")
    again = op.Gather(op.Gather(w, fn.unique_indices("C", w), axis=1), fn.inverse_indices("C", w), axis=1)
    proof = prove(Rule("each_by_the_first_that_is_equal", op.Identity(w), again))
    assert (proof.verdict, proof.model) == (Verdict.PROVED, ProofModel.REAL), proof
