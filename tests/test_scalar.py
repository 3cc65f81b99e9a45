"""Scalar functions, as they compute when a rule is applied: right for large, tiny and infinite numbers too."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf

import numpy as np
import pytest

from graphopt.language.scalar_functions import PYTHON_LOGIC, SCALAR_FUNCTIONS, UndecidedScalarError, has_property

LARGEST, TINY = 3.4028235e38, 5e-324
NUMBERS = (-inf, -LARGEST, -1e17, -6.0, -0.1, -TINY, 0.0, TINY, 0.1, 6.0, 1e17, LARGEST, inf)


@pytest.mark.parametrize(("name", "expected"), [("minimum", min), ("maximum", max)])
def test_the_smaller_and_the_larger_are_one_of_the_two(name: str, expected: Callable[[float, float], float]) -> None:
    function = SCALAR_FUNCTIONS[name]
    for left, right in product(NUMBERS, NUMBERS):
        assert function(PYTHON_LOGIC, left, right) == expected(left, right)
    assert function(PYTHON_LOGIC, NUMBERS, 0.1) == tuple(expected(number, 0.1) for number in NUMBERS)
    assert function(PYTHON_LOGIC, NUMBERS, NUMBERS[::-1]) == tuple(map(expected, NUMBERS, NUMBERS[::-1]))


def test_comparisons_order_all_numbers() -> None:
    for (i, left), (j, right) in product(enumerate(NUMBERS), enumerate(NUMBERS)):
        found = tuple(SCALAR_FUNCTIONS[name](PYTHON_LOGIC, left, right) for name in ("eq", "ne", "le", "lt"))
        assert found == (i == j, i != j, i <= j, i < j)
        assert SCALAR_FUNCTIONS["choose"](PYTHON_LOGIC, left <= right, left, right) == min(left, right)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_sign_changes_nothing_else(number: float) -> None:
    assert SCALAR_FUNCTIONS["neg"](PYTHON_LOGIC, number) == -number
    assert SCALAR_FUNCTIONS["normalize_indices"](PYTHON_LOGIC, abs(number), 4) == abs(number)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(
            (name, arguments)
            for name in ("floordiv", "mod", "truediv")
            for arguments in ((1, 0), (1.0, 0.0), ((1, 2), 0))
        ),
        ("truediv", (10**400, 3)),
        ("sqrt", (-1.0,)),
        ("sqrt", (-inf,)),
    ],
)
def test_what_has_no_value_is_not_known(name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(UndecidedScalarError):
        SCALAR_FUNCTIONS[name](PYTHON_LOGIC, *arguments)


@pytest.mark.parametrize("name", ["is_zero", "is_nonnegative"])
def test_a_negative_zero_is_no_zero(name: str) -> None:
    assert has_property(name, np.array([0.0, 0.0], np.float32))
    assert not has_property(name, np.array([0.0, -0.0], np.float32))


def test_what_counts_has_its_numbers_or_its_places_in_their_order() -> None:
    numbers = np.arange(6).reshape(2, 3)
    places = np.stack(np.unravel_index(numbers, (2, 3)), -1)
    assert has_property("is_arange", numbers)
    assert not has_property("is_arange", numbers.T)
    assert has_property("is_arange", places, (2, 3))
    assert not has_property("is_arange", places[::-1], (2, 3))
    with pytest.raises(UndecidedScalarError, match=r"the places in a tensor of sizes \(3, 3\)"):
        has_property("is_arange", places, (3, 3))


def test_a_negative_zero_is_finite() -> None:
    assert has_property("is_finite", np.array([0.0, -0.0], np.float32))
    assert not has_property("is_finite", np.array([0.0, np.inf], np.float32))
