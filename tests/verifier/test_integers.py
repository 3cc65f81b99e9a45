"""What is known of integers: whatever is simplified or proved is true of numbers for which the facts hold."""

from __future__ import annotations

from random import Random

import pytest

from graphopt.expr.integers import (
    TRUE,
    Atom,
    Formula,
    Polynomial,
    Size,
    conjunction,
    disjunction,
    eq,
    ge,
    if_then_else,
    negate,
    quotient,
    remainder,
    symbol,
)
from graphopt.expr.substitution import IntegerEvaluation, single_symbol
from graphopt.verifier.context import get_context
from graphopt.verifier.solver import SolverSession

NAMES = "abcd"


def a_size(random: Random, depth: int = 2) -> Size:
    """A polynomial with quotients, remainders and choices in it; what is divided by is a product of symbols."""
    a, b = symbol(random.choice(NAMES)), symbol(random.choice(NAMES))
    if not depth:
        return random.choice((a, b, random.randrange(-2, 4)))
    one, other = a_size(random, depth - 1), a_size(random, depth - 1)
    match random.randrange(6):
        case 0:
            return quotient(one, a * b)
        case 1:
            return remainder(one, a)
        case 2:
            return if_then_else(ge(a, b), one, other)
        case 3:
            return one * other
    return one + other


def a_fact(random: Random, numbers: dict[Atom, int]) -> Formula:
    """A comparison, or an alternative, that holds for the numbers."""
    one, other = a_size(random), a_size(random)
    gap = IntegerEvaluation(numbers).integer(one) - IntegerEvaluation(numbers).integer(other)
    fact = random.choice((eq(one, other + gap), ge(one, other + gap), ge(one, other + gap - 1)))
    return fact if random.random() < 0.7 else disjunction(fact, eq(one))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shown_is_true(seed: int) -> None:
    random = Random(seed)
    numbers = {single_symbol(symbol(name)): random.randrange(1, 5) for name in NAMES}
    facts = [ge(symbol(name), 1) for name in NAMES] + [a_fact(random, numbers) for _ in range(3)]
    known = get_context(facts, SolverSession(steps=2_000))
    further = known.assuming(a_fact(random, numbers))
    assert further.possible
    for _ in range(3):
        size, goal = a_size(random), ge(a_size(random), a_size(random))
        for here in (known, further):
            assert IntegerEvaluation(numbers).integer(here.simplify(size)) == IntegerEvaluation(numbers).integer(size)
            assert IntegerEvaluation(numbers).holds(goal) or not here.proves(goal)
            assert not IntegerEvaluation(numbers).holds(goal) or not here.proves(negate(goal))


def test_equal_polynomials_are_one_object() -> None:
    a, b = symbol("a"), symbol("b")
    assert (a + b) * (a - b) is a * a - b * b
    assert ge(a + 1, b) is negate(ge(b, a + 2))
    assert conjunction(ge(a), TRUE, ge(a)) is ge(a)


def test_a_tighter_bound_is_known_without_the_solver() -> None:
    effort = SolverSession()
    a, b = symbol("a"), symbol("b")
    known = get_context([ge(a * b, 2), ge(a), ge(b)], effort)
    assert known.simplify(if_then_else(eq(a * b, 1), 0, a)) is a
    assert effort.question_count == 0


def test_an_equation_replaces_a_choice_and_stays_known() -> None:
    a, b = symbol("a"), symbol("b")
    larger = if_then_else(ge(a, b), a, b)
    assert isinstance(larger, Polynomial)
    known = get_context([eq(larger, 5), ge(a), ge(b)], SolverSession())
    assert known.simplify(larger * a) == 5 * a
    assert known.proves(ge(5, a))
    assert not known.proves(eq(a, 5))
