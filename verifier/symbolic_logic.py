"""What the scalar functions of a rule are to the prover: formulas over integers, and values."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from graphopt.expr.expressions import Expr, call_function
from graphopt.expr.integers import (
    FALSE,
    TRUE,
    Formula,
    Polynomial,
    Truth,
    conjunction,
    disjunction,
    eq,
    if_then_else,
    le,
    negate,
)
from graphopt.expr.substitution import as_formula
from graphopt.expr.symbolic_tensors import select_expr, truth_condition
from graphopt.language.scalar_functions import PYTHON_LOGIC
from graphopt.operators.op_context import UnsupportedOperatorError, to_real


class SymbolicLogic:
    """The `Logic` of the scalar functions: truth is a formula, also about real numbers."""

    def eq(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth_condition(call_function("NotZero", to_real(left) - to_real(right))))
        if isinstance(left, str) or isinstance(right, str):
            return TRUE if left == right else FALSE
        return eq(left, right)

    def le(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth_condition(call_function("Positive", to_real(left) - to_real(right))))
        return le(left, right)

    def all(self, parts: Iterable[Any]) -> Formula:
        return conjunction(*map(to_formula, parts))

    def any(self, parts: Iterable[Any]) -> Formula:
        return disjunction(*map(to_formula, parts))

    def negate(self, part: Any) -> Formula:
        return negate(to_formula(part))

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        decides = to_formula(condition)
        if decides in (TRUE, FALSE):
            return then if decides == TRUE else otherwise
        if isinstance(then, Truth) and isinstance(otherwise, Truth):
            return disjunction(
                conjunction(decides, as_formula(then)), conjunction(negate(decides), as_formula(otherwise))
            )
        if is_real(then) or is_real(otherwise):
            return select_expr(decides, to_real(then), to_real(otherwise))
        if isinstance(then, int | Polynomial) and isinstance(otherwise, int | Polynomial):
            return if_then_else(decides, then, otherwise)
        if then != otherwise:
            raise UnsupportedOperatorError(f"whether it is {then} or {otherwise}")
        return then

    def concrete_int(self, number_: Any) -> int:
        if isinstance(number_, Polynomial | Expr):
            raise UnsupportedOperatorError(f"which number {number_} is")
        return PYTHON_LOGIC.concrete_int(number_)


SYMBOLIC_LOGIC = SymbolicLogic()


def to_formula(part: Any) -> Formula:
    """Return a truth value as a formula.

    Raises:
        UnsupportedOperatorError: it is none.
    """
    if not isinstance(part, Truth):
        raise UnsupportedOperatorError(f"{part} where a truth value is needed")
    return as_formula(part)


def is_real(value: Any) -> bool:
    """Return whether it is a real number, not an integer."""
    return isinstance(value, Expr | float) or type(value) is Fraction  # an abstract class: `isinstance` is slow
