"""The lemmas on real functions hold for numbers, and the cases of greatest, least and magnitudes are theirs."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.verifier.context import context
from graphopt.verifier.equality import Equality
from graphopt.verifier.integers import TRUE, Formula, ge, only_symbol, symbol
from graphopt.verifier.lemmas import LEMMAS
from graphopt.verifier.signs import Signs
from graphopt.verifier.solver import Effort
from graphopt.verifier.symbolic import Call, Piece, Read, Value, call, fold, lift, number, total
from tests.verifier.concrete import FUNCTIONS, Grid

n = symbol("n")
x, y = (lift(Read(name, ())) for name in "xy")
PARTS = total((n,), lambda k: call("Exp", lift(Read("z", k))) * call("Exp", x))

ARGUMENTS = (
    *(number(c) for c in (0, 1, 4, 0.25, -2)),
    *(x, -x, x * 2, x * -3, x * y, x / y, x + y, -x - y, x * x),
    *(call(f, v) for f in ("Exp", "Abs", "Sign", "Floor", "Ceil", "Round") for v in (x, x * -2)),
    *(call("Exp", x) * y, call("Exp", x + y), call("Exp", x - y), 1 / call("Exp", x), call("Sqrt", call("Abs", x))),
    *(call("Log", call("Exp", x) * call("Abs", y)), PARTS, 1 / PARTS),
)


def exponents(base: Value) -> tuple[tuple[Value, ...], ...]:
    powers = ((number(2),), (number(3),), (number(0.5),), (number(-1),), (number(-2),))
    return powers if base.constant != 0 else powers[:3]


@pytest.mark.parametrize("function", LEMMAS)
def test_what_a_lemma_makes_of_a_call_is_the_same_number(function: str) -> None:
    random = np.random.default_rng(7)
    numbers = {"x": np.array(random.normal()), "y": np.array(random.normal()), "z": random.normal(size=3)}
    grid = Grid(numbers, symbols={only_symbol(n): 3})
    for argument in ARGUMENTS:
        for more in exponents(argument) if function == "Pow" else ((),):
            with np.errstate(all="ignore"):
                expected = FUNCTIONS[function](grid.value(argument), *map(grid.value, more))
                found = grid.value(call(function, argument, *more))
            if np.isfinite(expected):
                assert found == pytest.approx(float(expected)), f"{function}({argument})"


def of(monoid: str, *values: Value) -> Value:
    return fold("max" if monoid == "max" else "min", [Piece((), TRUE, value) for value in values])


def are_equal(left: Value, right: Value, *facts: Formula) -> bool:
    return Equality(Signs()).equal(left, right, context(facts, Effort()))


EQUAL: tuple[tuple[Value, Value], ...] = (
    (of("max", x, y) + of("min", x, y), x + y),
    (of("max", x, y) * 2, x + y + call("Abs", x - y)),
    (of("max", x, -x), call("Abs", x)),
    (of("max", x * 3, number(6)) / 3, of("max", x, number(2))),
    (-of("max", x, y), of("min", -x, -y)),
    (call("Sign", x) * call("Abs", x), x),
    (call("Abs", of("max", x, number(0))), of("max", x, number(0))),
    (of("min", of("max", x, number(0)), number(1)), of("max", of("min", x, number(1)), number(0))),
)
DIFFERENT: tuple[tuple[Value, Value], ...] = (
    (of("max", x, y), x),
    (of("max", x, y) * of("min", x, y), x * x),
    (of("max", x * y, number(0)), of("max", x, number(0)) * y),
    (call("Abs", x + y), call("Abs", x) + call("Abs", y)),
    (call("Sign", x) * call("Sign", x), number(1)),
    (of("max", x, 1 / x) * x, of("max", x * x, number(1))),
)


@pytest.mark.parametrize(("left", "right"), EQUAL, ids=str)
def test_values_with_equal_cases_are_equal(left: Value, right: Value) -> None:
    assert are_equal(left, right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=str)
def test_values_that_differ_somewhere_are_not_equal(left: Value, right: Value) -> None:
    assert not are_equal(left, right)


def test_a_sum_over_itself_is_one_unless_it_may_be_empty() -> None:
    share = PARTS / total((n,), lambda k: call("Exp", lift(Read("z", k))))
    assert are_equal(share, call("Exp", x), ge(n, 1))
    assert not are_equal(share, call("Exp", x), ge(n))


def test_numbers_in_the_same_order_are_shifted_scaled_by_a_positive_number_or_raised() -> None:
    along, known = symbol("k"), context((), Effort())
    z = lift(Read("z", (along,)))

    def in_order(value: Value) -> Value:
        return Signs().in_order(value, only_symbol(along), known)

    assert in_order(call("Exp", z - y) / call("Exp", x)) == z
    assert in_order(z - x * y) == z
    assert in_order(z * x) == z * x
    assert in_order(-z) == -z
    assert isinstance(in_order(call("Sin", z)).terms[0].factors[0], Call)
