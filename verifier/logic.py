"""What the scalar functions of a rule are to the prover: formulas over integers, and values."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from graphopt.base.integers import FALSE, TRUE, Formula, Int, Truth, choice, conj, disj, eq, le, negate
from graphopt.base.rebuilding import formula
from graphopt.base.symbolic import Value, call
from graphopt.base.tensors import select, truth
from graphopt.language.scalar import PYTHON
from graphopt.operators.node import Unsupported, real


class Z3Logic:
    """The `Logic` of the scalar functions: truth is a formula, also about real numbers."""

    def eq(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth(call("NotZero", real(left) - real(right))))
        if isinstance(left, str) or isinstance(right, str):
            return TRUE if left == right else FALSE
        return eq(left, right)

    def le(self, left: Any, right: Any) -> Formula:
        if is_real(left) or is_real(right):
            return negate(truth(call("Positive", real(left) - real(right))))
        return le(left, right)

    def all(self, parts: Iterable[Any]) -> Formula:
        return conj(*map(truth_value, parts))

    def any(self, parts: Iterable[Any]) -> Formula:
        return disj(*map(truth_value, parts))

    def negate(self, part: Any) -> Formula:
        return negate(truth_value(part))

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        decides = truth_value(condition)
        if decides in (TRUE, FALSE):
            return then if decides == TRUE else otherwise
        if isinstance(then, Truth) and isinstance(otherwise, Truth):
            return disj(conj(decides, formula(then)), conj(negate(decides), formula(otherwise)))
        if is_real(then) or is_real(otherwise):
            return select(decides, real(then), real(otherwise))
        if isinstance(then, int | Int) and isinstance(otherwise, int | Int):
            return choice(decides, then, otherwise)
        if then != otherwise:
            raise Unsupported(f"whether it is {then} or {otherwise}")
        return then

    def known(self, number_: Any) -> int:
        if isinstance(number_, Int | Value):
            raise Unsupported(f"which number {number_} is")
        return PYTHON.known(number_)


LOGIC = Z3Logic()


def truth_value(part: Any) -> Formula:
    """Return a truth value as a formula.

    Raises:
        Unsupported: it is none.
    """
    if not isinstance(part, Truth):
        raise Unsupported(f"{part} where a truth value is needed")
    return formula(part)


def is_real(value: Any) -> bool:
    """Return whether it is a real number, not an integer."""
    return isinstance(value, Value | float) or type(value) is Fraction  # an abstract class: `isinstance` is slow
