"""The lemmas on real functions hold for numbers, and the cases of greatest, least and magnitudes are theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphopt.base.integers import TRUE, Formula, ge, symbol
from graphopt.base.lemmas import EXACT_LEMMAS, LEMMAS, bounds
from graphopt.base.rebuilding import only_symbol
from graphopt.base.symbolic import Call, Piece, Read, Value, call, fold, lift, number
from graphopt.base.tensors import total
from graphopt.base.types import DType
from graphopt.verifier.context import context
from graphopt.verifier.equality import Equality
from graphopt.verifier.signs import Signs
from graphopt.verifier.solver import Effort
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


DRAWN = np.random.default_rng(7).normal(size=(4, 2)).tolist()
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-30, -30.0)


@pytest.mark.parametrize("numbers", [*DRAWN, *product(SPECIAL, repeat=2)], ids=str)
def test_what_a_lemma_makes_of_a_call_is_the_same_number(numbers: Sequence[float]) -> None:
    """Wherever it is finite and so is what it is made of: the real model knows no infinity."""
    arrays = {"x": np.array(numbers[0]), "y": np.array(numbers[1]), "z": np.random.default_rng(7).normal(size=3)}
    grid = Grid(arrays, symbols={only_symbol(n): 3})
    for function in LEMMAS:
        compare(function, grid)


def compare(function: str, grid: Grid) -> None:
    for argument in ARGUMENTS:
        for more in exponents(argument) if function == "Pow" else ((),):
            with np.errstate(all="ignore"):
                given = grid.value(argument)
                expected = FUNCTIONS[function](given, *map(grid.value, more))
                found = grid.value(call(function, argument, *more))
            if np.isfinite(given) and np.isfinite(expected):
                assert found == pytest.approx(float(expected)), f"{function}({argument})"


FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 3e38, np.inf, -np.inf, np.nan], np.float32)
INTEGERS = np.array([0, 1, -1, 2, 2**31 - 1, -(2**31)], np.int32)
EXACTLY: Mapping[str, Callable[..., Any]] = {
    "Mul": np.multiply,
    "Div": np.divide,
    "Sub": np.subtract,
    "Pow": np.power,
    "Max": np.maximum,
    "Min": np.minimum,
    "Abs": np.abs,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.round,
    "Sign": np.sign,
    "Neg": np.negative,
    "Relu": lambda a: np.maximum(a, 0),
    "BitwiseNot": np.invert,
    "IsNaN": np.isnan,
}


@pytest.mark.parametrize("name", EXACT_LEMMAS)
def test_an_exact_lemma_holds_bit_for_bit(name: str) -> None:
    """Of what each makes of the element a, beside 0 and 1 and inside itself; infinities and NaN included."""
    function, plain = EXACTLY[name.rstrip("!")], lift(Read("x", ()))
    arrays = [INTEGERS] if name == "BitwiseNot!" else [FLOATS]
    two = name[:-1] in ("Mul", "Div", "Sub", "Pow", "Max", "Min")
    others = (plain, number(0), number(1))
    for arguments in [(plain, other) for other in others] if two else [(plain,), (call(name, plain),)]:
        found = EXACT_LEMMAS[name](*arguments)
        for array in arrays if found is not None else ():
            with np.errstate(all="ignore"):
                expected = function(*(exactly(argument, array) for argument in arguments))
            same = exactly(found, array)
            np.testing.assert_array_equal(expected, same, err_msg=f"{name}{arguments}")
            np.testing.assert_array_equal(np.signbit(expected), np.signbit(same), err_msg=f"{name}{arguments}")


def exactly(value: Value | None, array: NDArray[Any]) -> NDArray[Any]:
    """The element, a number, or a function of the element, in the array's own type."""
    assert value is not None
    if value.constant is not None:
        return np.full_like(array, float(value.constant))
    (factor,) = value.terms[0].factors
    if isinstance(factor, Read):
        return array
    assert isinstance(factor, Call)
    with np.errstate(all="ignore"):
        return np.asarray(EXACTLY[factor.function.rstrip("!")](*(exactly(arg, array) for arg in factor.args)))


SCALES = (*np.random.default_rng(7).uniform(0, 1, 60) * 2.0 ** -(np.arange(60) % 14), 2.0**-24, 2.0**-100, 128.0)
HALF, SINGLE = DType.FLOAT16, DType.FLOAT
QUANTA = [(HALF, DType.INT8), (HALF, DType.UINT8), (SINGLE, DType.INT8), (SINGLE, DType.UINT16)]


def stepped(dtype: DType, of: DType) -> Value:
    """The steps of a scale, of an element less its zero point times the scale."""
    usual, types = call("Scale", lift(Read("s", ()))), (dtype, dtype)
    q, z = (call("OfType", lift(Read(name, ())), params=(of,)) for name in ("q", "z"))
    return call("Steps", call("Scaled", q - z, usual, params=types), usual, params=types)


@pytest.mark.parametrize(("dtype", "of"), QUANTA, ids=str)
def test_so_many_steps_of_a_scale_are_so_many_steps(dtype: DType, of: DType) -> None:
    """Computed in the floats of the model, for all differences of two integers, and scales over their range."""
    low, high = of.limits
    differences = np.arange(low - high, high - low + 1)
    for scale in filter(None, map(dtype.numpy.type, SCALES)):
        scaled = differences.astype(dtype.numpy) * scale
        np.testing.assert_array_equal(np.round(scaled / scale), differences, err_msg=str(scale))
    q, z = (lift(Call("OfType", (lift(Read(name, ())),), (of,))) for name in "qz")
    assert stepped(dtype, of) == q - z


@pytest.mark.parametrize(("dtype", "of"), [(DType.BFLOAT16, DType.INT8), (HALF, DType.INT16)], ids=str)
def test_steps_that_floats_cannot_tell_apart_are_not_taken_for_the_same(dtype: DType, of: DType) -> None:
    assert "Steps" in str(stepped(dtype, of))
    low, high = of.limits
    integers = np.arange(low, high + 1)
    scales = (dtype.numpy.type(scale) for scale in (0.3, 0.7, 0.9))
    back = [np.round((integers.astype(dtype.numpy) * scale / scale).astype(np.float64)) for scale in scales]
    assert (np.array(back) != integers).any()


def test_integers_within_their_type_are_added_as_numbers() -> None:
    byte = call("OfType", x, params=(DType.UINT8,))
    assert call("Sub~", byte, number(128), params=(DType.INT32,)) == byte - 128
    assert call("Cast", byte - 128, params=("wrapped", "INT8")) == byte - 128
    assert call("Cast", byte - 127, params=("wrapped", "INT8")) != byte - 127
    assert call("Add~", byte, byte, params=(DType.UINT8,)) != byte * 2


def test_what_is_kept_within_a_type_is_of_that_type() -> None:
    """With the zero point that is taken off the limits, and put on again."""
    zero, steps = call("OfType", y, params=(DType.UINT8,)), call("Round", x)
    kept = of("min", of("max", steps, -zero), 255 - zero) + zero
    assert bounds(kept) == (0, 255)
    assert call("Cast", kept - 128, params=("wrapped", "INT8")) == kept - 128
    assert call("Cast", kept - 127, params=("wrapped", "INT8")) != kept - 127
    assert bounds(of("min", of("max", steps, -zero), 255 - zero)) == (-255, 255)
    assert bounds(of("max", steps, number(3))) == (3, inf)
    assert bounds(of("max", steps, number(3)) * 2) is None
    sometimes = Piece((), ge(n, 1), number(9))
    assert bounds(fold("min", [Piece((), TRUE, zero), sometimes])) == (-inf, 255)


def test_rounding_to_steps_keeps_the_order() -> None:
    usual, types = call("Scale", y), (DType.FLOAT,) * 2
    found = call("Steps", call("Relu!", x, params=types[:1]), usual, params=types)
    assert found == of("max", call("Steps", x, usual, params=types), number(0))
    assert "Relu" in str(call("Steps", call("Relu!", x, params=types[:1]), y, params=types)), "of any scale"


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
