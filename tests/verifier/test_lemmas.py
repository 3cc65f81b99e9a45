"""The lemmas on real functions hold for numbers, and the cases of greatest, least and magnitudes are theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.expr.expressions import (
    Call,
    Expr,
    FoldBranch,
    TensorElement,
    call_function,
    constant,
    expr_of_factor,
    fold,
)
from graphopt.expr.integers import TRUE, Formula, ge, symbol
from graphopt.expr.lemmas import EXACT_LEMMAS, LEMMAS, integer_bounds
from graphopt.expr.substitution import single_symbol
from graphopt.expr.symbolic_tensors import sum_over
from graphopt.verifier.context import get_context
from graphopt.verifier.equality import Equality
from graphopt.verifier.solver import SolverSession
from graphopt.verifier.value_signs import SignAnalysis
from tests.tiers import sampled
from tests.verifier.concrete import FUNCTIONS, Grid

n = symbol("n")
x, y = (expr_of_factor(TensorElement(name, ())) for name in "xy")
PARTS = sum_over((n,), lambda k: call_function("Exp", expr_of_factor(TensorElement("z", k))) * call_function("Exp", x))

ARGUMENTS = (
    *(constant(c) for c in (0, 1, 4, 0.25, -2)),
    *(x, -x, x * 2, x * -3, x * y, x / y, x + y, -x - y, x * x),
    *(call_function(f, v) for f in ("Exp", "Abs", "Sign", "Floor", "Ceil", "Round") for v in (x, x * -2)),
    *(
        call_function("Exp", x) * y,
        call_function("Exp", x + y),
        call_function("Exp", x - y),
        1 / call_function("Exp", x),
        call_function("Sqrt", call_function("Abs", x)),
    ),
    *(call_function("Log", call_function("Exp", x) * call_function("Abs", y)), PARTS, 1 / PARTS),
    *(call_function("Log", call_function("Exp", v) + 1) for v in (x, -x, x + y)),
    *(call_function("Exp", v) + 1 for v in (x, -x, call_function("Abs", x), -call_function("Abs", x))),
    *(fold(kind, [FoldBranch((), TRUE, v) for v in (x, y * 2, constant(0))]) for kind in ("max", "min")),
)


def exponents(base: Expr) -> tuple[tuple[Expr, ...], ...]:
    powers = ((constant(2),), (constant(3),), (constant(0.5),), (constant(0.75),), (constant(-1),), (constant(-2),))
    return powers if base.constant != 0 else powers[:4]


DRAWN = np.random.default_rng(7).normal(size=(4, 2)).tolist()
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-30, -30.0)


@pytest.mark.parametrize("numbers", sampled([*DRAWN, *product(SPECIAL, repeat=2)], 8, str))
def test_what_a_lemma_makes_of_a_call_is_the_same_number(numbers: Sequence[float]) -> None:
    """Wherever it is finite and so is what it is made of: the real model knows no infinity."""
    arrays = {"x": np.array(numbers[0]), "y": np.array(numbers[1]), "z": np.random.default_rng(7).normal(size=3)}
    grid = Grid(arrays=arrays, symbols={single_symbol(n): 3})
    for function in LEMMAS:
        compare(function, grid)


def compare(function: str, grid: Grid) -> None:
    for argument in ARGUMENTS:
        for more in exponents(argument) if function == "Pow" else ((),):
            with np.errstate(all="ignore"):
                given = grid.value(argument)
                expected = FUNCTIONS[function](given, *map(grid.value, more))
                found = grid.value(call_function(function, argument, *more))
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
    function, plain = EXACTLY[name.rstrip("!")], expr_of_factor(TensorElement("x", ()))
    arrays = [INTEGERS] if name == "BitwiseNot!" else [FLOATS]
    two = name[:-1] in ("Mul", "Div", "Sub", "Pow", "Max", "Min")
    others = (plain, constant(0), constant(1))
    for arguments in [(plain, other) for other in others] if two else [(plain,), (call_function(name, plain),)]:
        found = EXACT_LEMMAS[name](*arguments)
        for array in arrays if found is not None else ():
            with np.errstate(all="ignore"):
                expected = function(*(exactly(argument, array) for argument in arguments))
            same = exactly(found, array)
            np.testing.assert_array_equal(expected, same, err_msg=f"{name}{arguments}")
            np.testing.assert_array_equal(np.signbit(expected), np.signbit(same), err_msg=f"{name}{arguments}")


def exactly(value: Expr | None, array: NDArray[Any]) -> NDArray[Any]:
    """The element, a number, or a function of the element, in the array's own type."""
    assert value is not None
    if value.constant is not None:
        return np.full_like(array, float(value.constant))
    (factor,) = value.terms[0].factors
    if isinstance(factor, TensorElement):
        return array
    assert isinstance(factor, Call)
    with np.errstate(all="ignore"):
        return np.asarray(EXACTLY[factor.function.rstrip("!")](*(exactly(arg, array) for arg in factor.args)))


SCALES = (*np.random.default_rng(7).uniform(0, 1, 60) * 2.0 ** -(np.arange(60) % 14), 2.0**-24, 2.0**-100, 128.0)
HALF, SINGLE = DType.FLOAT16, DType.FLOAT
QUANTA = [(HALF, DType.INT8), (HALF, DType.UINT8), (SINGLE, DType.INT8), (SINGLE, DType.UINT16)]


def stepped(dtype: DType, of: DType) -> Expr:
    """The steps of a scale, of an element less its zero point times the scale."""
    usual, types = call_function("Scale", expr_of_factor(TensorElement("s", ()))), (dtype, dtype)
    q, z = (call_function("OfType", expr_of_factor(TensorElement(name, ())), params=(of,)) for name in ("q", "z"))
    return call_function("Steps", call_function("Scaled", q - z, usual, params=types), usual, params=types)


@pytest.mark.parametrize(("dtype", "of"), QUANTA, ids=str)
def test_so_many_steps_of_a_scale_are_so_many_steps(dtype: DType, of: DType) -> None:
    """Computed in the floats of the model, for all differences of two integers, and scales over their range."""
    low, high = of.limits
    differences = np.arange(low - high, high - low + 1)
    for scale in filter(None, map(dtype.numpy.type, SCALES)):
        scaled = differences.astype(dtype.numpy) * scale
        np.testing.assert_array_equal(np.round(scaled / scale), differences, err_msg=str(scale))
    q, z = (expr_of_factor(Call("OfType", (expr_of_factor(TensorElement(name, ())),), (of,))) for name in "qz")
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
    byte = call_function("OfType", x, params=(DType.UINT8,))
    assert call_function("Sub~", byte, constant(128), params=(DType.INT32,)) == byte - 128
    assert call_function("Cast", byte - 128, params=("wrapped", "INT8")) == byte - 128
    assert call_function("Cast", byte - 127, params=("wrapped", "INT8")) != byte - 127
    assert call_function("Add~", byte, byte, params=(DType.UINT8,)) != byte * 2


def test_what_is_kept_within_a_type_is_of_that_type() -> None:
    """With the zero point that is taken off the limits, and put on again."""
    zero, steps = call_function("OfType", y, params=(DType.UINT8,)), call_function("Round", x)
    kept = of("min", of("max", steps, -zero), 255 - zero) + zero
    assert integer_bounds(kept) == (0, 255)
    assert call_function("Cast", kept - 128, params=("wrapped", "INT8")) == kept - 128
    assert call_function("Cast", kept - 127, params=("wrapped", "INT8")) != kept - 127
    assert integer_bounds(of("min", of("max", steps, -zero), 255 - zero)) == (-255, 255)
    assert integer_bounds(of("max", steps, constant(3))) == (3, inf)
    assert integer_bounds(of("max", steps, constant(3)) * 2) is None
    sometimes = FoldBranch((), ge(n, 1), constant(9))
    assert integer_bounds(fold("min", [FoldBranch((), TRUE, zero), sometimes])) == (-inf, 255)


def test_rounding_to_steps_keeps_the_order() -> None:
    usual, types = call_function("Scale", y), (DType.FLOAT,) * 2
    found = call_function("Steps", call_function("Relu!", x, params=types[:1]), usual, params=types)
    assert found == of("max", call_function("Steps", x, usual, params=types), constant(0))
    assert "Relu" in str(call_function("Steps", call_function("Relu!", x, params=types[:1]), y, params=types)), (
        "of any scale"
    )


def of(monoid: str, *values: Expr) -> Expr:
    return fold("max" if monoid == "max" else "min", [FoldBranch((), TRUE, value) for value in values])


def are_equal(left: Expr, right: Expr, *facts: Formula) -> bool:
    return Equality(SignAnalysis()).proves_equal(left, right, get_context(facts, SolverSession()))


EQUAL: tuple[tuple[Expr, Expr], ...] = (
    (of("max", x, y) + of("min", x, y), x + y),
    (of("max", x, y) * 2, x + y + call_function("Abs", x - y)),
    (of("max", x, -x), call_function("Abs", x)),
    (of("max", x * 3, constant(6)) / 3, of("max", x, constant(2))),
    (-of("max", x, y), of("min", -x, -y)),
    (call_function("Sign", x) * call_function("Abs", x), x),
    (call_function("Abs", of("max", x, constant(0))), of("max", x, constant(0))),
    (of("min", of("max", x, constant(0)), constant(1)), of("max", of("min", x, constant(1)), constant(0))),
)
DIFFERENT: tuple[tuple[Expr, Expr], ...] = (
    (of("max", x, y), x),
    (of("max", x, y) * of("min", x, y), x * x),
    (of("max", x * y, constant(0)), of("max", x, constant(0)) * y),
    (call_function("Abs", x + y), call_function("Abs", x) + call_function("Abs", y)),
    (call_function("Sign", x) * call_function("Sign", x), constant(1)),
    (of("max", x, 1 / x) * x, of("max", x * x, constant(1))),
)


@pytest.mark.parametrize(("left", "right"), EQUAL, ids=str)
def test_values_with_equal_cases_are_equal(left: Expr, right: Expr) -> None:
    assert are_equal(left, right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT, ids=str)
def test_values_that_differ_somewhere_are_not_equal(left: Expr, right: Expr) -> None:
    assert not are_equal(left, right)


def test_a_sum_over_itself_is_one_unless_it_may_be_empty() -> None:
    share = PARTS / sum_over((n,), lambda k: call_function("Exp", expr_of_factor(TensorElement("z", k))))
    assert are_equal(share, call_function("Exp", x), ge(n, 1))
    assert not are_equal(share, call_function("Exp", x), ge(n))


def test_numbers_in_the_same_order_are_shifted_scaled_by_a_positive_number_or_raised() -> None:
    along, known = symbol("k"), get_context((), SolverSession())
    z = expr_of_factor(TensorElement("z", (along,)))

    def in_order(value: Expr) -> Expr:
        return SignAnalysis().strip_monotone_maps(value, single_symbol(along), known)

    assert in_order(call_function("Exp", z - y) / call_function("Exp", x)) == z
    assert in_order(z - x * y) == z
    assert in_order(z * x) == z * x
    assert in_order(-z) == -z
    assert isinstance(in_order(call_function("Sin", z)).terms[0].factors[0], Call)
