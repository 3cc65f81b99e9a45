"""What a scalar function says of symbols is what it says of the numbers that they stand for, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

import pytest

from graphopt.base.dtype import DType
from graphopt.expr.dims import SymbolicDim, substitute_names
from graphopt.expr.integers import Polynomial, fresh_symbol
from graphopt.expr.substitution import IntegerEvaluation, single_symbol
from graphopt.language.scalar_functions import (
    PYTHON_LOGIC,
    SCALAR_FUNCTIONS,
    UndecidedScalarError,
    apply_scalar_function,
)
from graphopt.operators.op_context import UnsupportedOperatorError
from graphopt.verifier.symbolic_logic import SYMBOLIC_LOGIC, to_formula

ARGUMENTS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod"), ((3, 2), ((3, 1), 2), (3, (1, 2)), ((3, 1), (1, 2)))),
    **dict.fromkeys(("maximum", "minimum"), ((3, 2), ((3, 1), 2), ((3, 1), (1, 2)))),
    **dict.fromkeys(("eq", "ne", "le", "lt"), ((3, 2), ((3, 1), 2), ((3, 1), (1, 2)), ((3, 1), (3,)))),
    "neg": ((3,), ((1, 2),)),
    "concat": (((1, 2), 3), (1, (2, 3), ())),
    "item": (((1, 2, 3), 1), ((1, 2, 3), -1)),
    "length": (((1, 2),),),
    "slice": (((1, 2, 3), 1, 3), ((1, 2, 3), 0, 1)),
    "repeat": ((2, 3), (0, 1)),
    "sum": (((1, 2, 3),), ((),)),
    "product": (((1, 2, 3),), ((),)),
    "delete": (((5, 6, 7), (1,)), ((5, 6, 7), (2, 0)), ((5, 6), 1)),
    "insert": (((5, 6), (1,), 9), ((5, 6), (3, 0), 1)),
    "scatter": (((5, 6), (2, 0), 3), ((5,), (1,), 2)),
    "compose": (((2, 0, 1), (1, 2, 0)), ((5, 6), (1, 1))),
    "inverse": (((2, 0, 1),), ((1, 0),)),
    "is_identity": (((0, 1, 2),), ((1, 0),), ((0,),)),
    "is_sorted": (((1, 2, 3),), ((2, 1),), ((),)),
    "sorted": (((3, 1, 2),), ((1, 2),), ((2, 2, 1),)),
    "normalize_indices": ((-1, 3), ((-1, 0, 2), 3), ((-1, 1), (2, 3))),
    "range": ((3,), (0,)),
    "broadcast": (((3, 1), (1, 2)), ((2,), (1,)), ((1, 2, 3), (3,))),
    "is_in": ((2, (1, 2)), (3, ())),
    "is_noop_reshape": (((0, -1), (2, 3)), ((2, 3), (2, 3)), ((2,), (2, 3))),
    "zeros_subset": (((0, 1), (0, 2)), ((0, 1), (1,)), ((1, 1), ())),
    "all_of": ((True, False),),
    "any_of": ((True, False),),
    "not_": ((True,),),
    "choose": ((True, 1, 2), (False, (1, 2), (3, 4))),
}
CONCRETE = {"is_float", "is_integer", "can_represent", "truediv", "sqrt"}
"""Of element types, which are concrete in both worlds, and of real numbers."""
NUMBERS = (0, 1, 2, 3, -1)
"""What the symbols stand for, in turn."""


Some = tuple[tuple[int, ...], ...]
"""Places of numbers among arguments."""


def places(arguments: tuple[Any, ...]) -> list[tuple[int, ...]]:
    """Where the whole numbers are."""
    found: list[tuple[int, ...]] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, tuple):
            found += [(position, inner) for inner in range(len(argument))]
        elif not isinstance(argument, bool):
            found.append((position,))
    return found


def put(arguments: tuple[Any, ...], at: Mapping[tuple[int, ...], Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(at.get((i, j), item) for j, item in enumerate(argument))
        if isinstance(argument, tuple)
        else at.get((i,), argument)
        for i, argument in enumerate(arguments)
    )


def cases(name: str) -> Iterator[tuple[tuple[Any, ...], Some]]:
    """A function with symbols in each position, in each two and in all."""
    for arguments in ARGUMENTS[name]:
        where = places(arguments)
        chosen = [*combinations(where, 1), *combinations(where, 2), tuple(where)]
        yield from ((arguments, some) for some in dict.fromkeys(chosen) if some)


def test_every_function_is_walked() -> None:
    assert ARGUMENTS.keys() | CONCRETE == SCALAR_FUNCTIONS.keys()


def with_numbers(name: str, arguments: tuple[Any, ...], some: Some, chosen: tuple[int, ...]) -> Any:
    """What a function gives of numbers; None where that has no value, or two shapes do not fit, which means nothing."""
    given = put(arguments, dict(zip(some, chosen, strict=True)))
    try:
        expected = apply_scalar_function(name, PYTHON_LOGIC, *given)
    except UndecidedScalarError:
        return None
    fits = name != "broadcast" or all(
        a == b or 1 in (a, b) for a, b in zip(given[0][::-1], given[1][::-1], strict=False)
    )
    return expected if fits else None


def choices(count: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Numbers for so many symbols: all of them for up to two, else a few."""
    if count < 3:
        yield from product(numbers, repeat=count)
    else:
        yield from ((*numbers, *numbers)[i : i + count] for i in range(len(numbers)))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_verifier_says_of_symbols_what_is_true_of_numbers(name: str) -> None:
    for arguments, some in cases(name):
        symbols = [fresh_symbol("n") for _ in some]
        try:
            found = apply_scalar_function(name, SYMBOLIC_LOGIC, *put(arguments, dict(zip(some, symbols, strict=True))))
        except (UnsupportedOperatorError, UndecidedScalarError):
            continue
        for chosen in choices(len(some), NUMBERS):
            expected = with_numbers(name, arguments, some, chosen)
            if expected is not None:
                known = {single_symbol(s): n for s, n in zip(symbols, chosen, strict=True)}
                assert in_numbers(found, known) == expected, (arguments, some, chosen)


def in_numbers(found: Any, known: Mapping[Any, int]) -> Any:
    """What an answer of the verifier's is when its symbols are numbers."""
    if isinstance(found, tuple):
        return tuple(in_numbers(item, known) for item in found)
    if isinstance(found, int | Polynomial) and not isinstance(found, bool):
        return IntegerEvaluation(known).integer(found)
    return IntegerEvaluation(known).holds(to_formula(found))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_matcher_says_of_named_sizes_what_is_true_of_numbers(name: str) -> None:
    for arguments, some in cases(name):
        names = [f"n{i}" for i in range(len(some))]
        try:
            found = apply_scalar_function(
                name, PYTHON_LOGIC, *put(arguments, dict(zip(some, map(SymbolicDim.named, names), strict=True)))
            )
        except UndecidedScalarError:
            continue
        for chosen in choices(len(some), NUMBERS[:-1]):
            expected = with_numbers(name, arguments, some, chosen)
            if found is not None and expected is not None:
                assert in_sizes(found, dict(zip(names, chosen, strict=True))) == expected, (arguments, some, chosen)


def in_sizes(found: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(found, tuple):
        return tuple(in_sizes(item, sizes) for item in found)
    return substitute_names(found, sizes) if isinstance(found, SymbolicDim) else found


@pytest.mark.parametrize("name", ["is_float", "is_integer"])
def test_an_element_type_is_no_symbol(name: str) -> None:
    assert apply_scalar_function(name, SYMBOLIC_LOGIC, DType.FLOAT) is (name == "is_float")
    with pytest.raises(UndecidedScalarError):
        apply_scalar_function(name, SYMBOLIC_LOGIC, fresh_symbol("n"))
