"""Two arithmetics on whole batches: a prime field in which nothing is rounded, and floats that know an order."""

from fractions import Fraction

import numpy as np
import pytest

from graphopt.discover.batch_arithmetic import BatchArithmetic, Field, P, Q, Reals

FIELD, REALS = Field(), Reals()


def drawn(arithmetic: BatchArithmetic, name: str) -> np.ndarray:
    return arithmetic.draw_tensors((name,), (5, 3))


def test_the_moduli_are_primes_of_which_one_divides_the_order_of_the_other() -> None:
    for number in (P, Q):
        assert all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    assert (P - 1) % Q == 0 and P < 2**31


@pytest.mark.parametrize("arithmetic", [FIELD, REALS], ids=["field", "reals"])
def test_a_quotient_undoes_a_product(arithmetic: BatchArithmetic) -> None:
    x, y = drawn(arithmetic, "x"), drawn(arithmetic, "y")
    back = arithmetic.multiply(arithmetic.multiply(x, y), arithmetic.call("Inverse", (), [y]))
    assert (arithmetic.fingerprints(back) == arithmetic.fingerprints(x)).all()
    assert (arithmetic.fingerprints(y) != arithmetic.fingerprints(x)).all()


@pytest.mark.parametrize("arithmetic", [FIELD, REALS], ids=["field", "reals"])
def test_exponentials_make_products_of_sums(arithmetic: BatchArithmetic) -> None:
    x, y = drawn(arithmetic, "x"), drawn(arithmetic, "y")
    of_sum = arithmetic.call("Exp", (), [arithmetic.add(x, y)])
    product = arithmetic.multiply(arithmetic.call("Exp", (), [x]), arithmetic.call("Exp", (), [y]))
    assert (arithmetic.fingerprints(of_sum) == arithmetic.fingerprints(product)).all()


def test_functions_of_which_only_the_name_is_known_are_random_ones() -> None:
    x, y = drawn(FIELD, "x"), drawn(FIELD, "y")
    assert (FIELD.call("Tanh", (), [x]) == FIELD.call("Tanh", (), [x])).all()
    assert (FIELD.call("Tanh", (), [x]) != FIELD.call("Erf", (), [x])).all()
    of_sum, sums = FIELD.call("Tanh", (), [FIELD.add(x, y)]), (FIELD.call("Tanh", (), [z]) for z in (x, y))
    assert (of_sum != FIELD.add(*sums)).any()


def test_only_the_real_numbers_know_that_a_positive_factor_keeps_the_greatest() -> None:
    """In a field no number is positive by itself."""

    def same(arithmetic: BatchArithmetic) -> bool:
        x, three = drawn(arithmetic, "x"), arithmetic.constant(Fraction(3)).reshape(arithmetic.parts, 1, 1)
        asked = np.ones((1, 5, 3), bool)
        greatest = arithmetic.fold("max", x, asked)
        scaled = arithmetic.fold("max", arithmetic.multiply(x, three), asked)
        return bool((scaled == arithmetic.multiply(greatest, three[..., 0])).all())

    assert same(REALS) and not same(FIELD)


def test_what_has_no_value_has_no_fingerprint() -> None:
    root = REALS.call("Sqrt", (), [np.full((1, 2, 3), -1.0)])
    assert (REALS.fingerprints(root) == 0).all()
    assert (REALS.fingerprints(np.zeros((1, 2, 3))) != 0).all() and (
        FIELD.fingerprints(np.zeros((2, 2, 3), int)) != 0
    ).all()
