"""Sizes: polynomials over names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.types import Dim, Sym, least, lower_bound, substitute

a, b = Sym.of("a"), Sym.of("b")


def test_a_size_prints_as_it_is_read() -> None:
    assert str(2 * a * b + a - 3) == "2*a*b+a-3"
    assert str((a + 1) // 2) == "((a+1)//2)"
    assert str(7 // a) == "(7//a)"
    assert str(least(a, 512)) == "(512 min a)"


@pytest.mark.parametrize(
    ("size", "bound"),
    [(7, 7), (-2, -2), (a, 0), (a + 3, 3), (2 * a * b + b + 1, 1), (a - 1, -1), (3 - a, None), (a - b, None)],
)
def test_lower_bounds(size: Dim, bound: int | None) -> None:
    assert lower_bound(size) == bound


def test_the_least_of_two_is_known_where_their_difference_has_a_sign() -> None:
    assert least(3, 5) == 3
    assert least(a, a + 2) == a
    assert least(a + 2, a) == a
    assert least(0, a) == 0
    assert least(a, b) == least(b, a) != a
    assert least(a, least(a, 5)) == least(a, 5)
    assert least(a, (a + 1) // 2 + 1) != a
    assert least(a, a // 2) == a // 2


def test_quotients_have_one_form() -> None:
    assert (2 * a + 1) // 2 == a
    assert (a - 3) // 2 + 1 == (a + 1) // 2 - 1
    assert (6 * a + 5) % 3 == 2
    assert (a - 1) % 4 == (a + 3) % 4


SIZES = st.recursive(
    st.integers(0, 9) | st.sampled_from([a, b, Sym.of("c")]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: least(*p)),
        st.tuples(inner, inner).map(lambda p: p[0] - least(*p)),
        st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0] // p[1]),
        st.tuples(inner, st.integers(1, 5)).map(lambda p: p[0] % p[1]),
    ),
    max_leaves=8,
)
BINDINGS = st.fixed_dictionaries({name: st.integers(0, 12) for name in "abc"})


@given(SIZES, SIZES, BINDINGS)
def test_arithmetic_on_names_is_arithmetic_on_what_they_stand_for(x: Dim, y: Dim, sizes: dict[str, int]) -> None:
    def at(size: Dim) -> Dim:
        return substitute(size, sizes)

    assert at(x + y) == at(x) + at(y)
    assert at(x * y) == at(x) * at(y)
    assert at(x - y) == at(x) - at(y)
    assert at((x - y) // 3) == (at(x) - at(y)) // 3
    assert at((x - y) % 3) == (at(x) - at(y)) % 3
    assert at(least(x, y)) == least(at(x), at(y))
    for size in (x, x - y):
        bound, value = lower_bound(size), at(size)
        assert isinstance(value, int)
        assert bound is None or value >= bound


@given(SIZES, BINDINGS)
def test_names_may_be_replaced_by_names(x: Dim, sizes: dict[str, int]) -> None:
    primed: dict[str, Dim] = {name: Sym.of(name + "'") for name in sizes}
    values: dict[str, Dim] = {name + "'": size for name, size in sizes.items()}
    assert substitute(substitute(x, primed), values) == substitute(x, dict(sizes))
