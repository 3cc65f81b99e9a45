"""Equality of real values by case analysis: the last resort where terms do not cancel.

Max, Min, Abs, Sign and comparisons are replaced by their definitions; sums over indices and all other functions become
unknowns, one for equal arguments. Z3 decides the rest: polynomials over the real numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from typing import Any, Protocol

import z3

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Call, Expr, Factor, Fold, Term
from graphopt.expr.integers import TRUE, And, BooleanAtom, Comparison, Formula, Or, in_creation_order, literals, negate
from graphopt.verifier.context import ProofContext
from graphopt.verifier.value_signs import SignAnalysis

_BY_CASES = frozenset({"Abs", "Sign"})


class FactorEquality(Protocol):
    """Proves that two factors are the same number."""

    @property
    def signs(self) -> SignAnalysis: ...

    def proves_factors_equal(self, left: Factor, right: Factor, known: ProofContext) -> bool: ...


def has_cases(terms: Iterable[Term]) -> bool:
    """Return whether the cases of some factor, or of several conditions, may show what cancelling does not."""
    plain = [term for term in terms if not term.binders]
    factors = (factor for term in plain for factor in term.factors)
    compared = {part.subject for term in plain for part in literals(term.guard) if isinstance(part, BooleanAtom)}
    return len(compared) > 1 or any(
        _is_unconditional_extremum(f) or (isinstance(f, Call) and f.function in _BY_CASES) for f in factors
    )


def add_up_to_zero(terms: Iterable[Term], known: ProofContext, equality: FactorEquality) -> bool:
    """Return whether terms sum to zero for all values of the unknowns."""
    numbers = _RealEncoding(known, equality)
    total = numbers.total(terms)
    facts = [numbers.truth(fact) for fact in in_creation_order(known.facts) if isinstance(fact, BooleanAtom)]
    differ, effort = (*facts, *numbers.axioms, total != 0), known.effort
    found = effort.answer(_with_assertions(z3.SimpleSolver(ctx=effort.z3_context), differ), steps=QUICK_STEPS, seeds=1)
    if found == z3.unknown:
        found = effort.answer(_with_assertions(z3.SolverFor("QF_NRA", ctx=effort.z3_context), differ))
    return bool(found == z3.unsat)


QUICK_STEPS = 20_000
"""The steps in which almost every question is answered without the procedure for polynomials, which takes as long to
set up as ten answers."""


def _with_assertions(solver: z3.Solver, formulas: Iterable[Any]) -> z3.Solver:
    solver.add(*formulas)
    return solver


def _is_unconditional_extremum(factor: Factor) -> bool:
    """Return whether it is the greatest or the least of some numbers, none of them under a condition."""
    if not isinstance(factor, Fold) or factor.monoid == "prod":
        return False
    return all(branch.is_unconditional for branch in factor.branches)


@dataclass
class _RealEncoding:
    """Values as real numbers of Z3, with what is known of those that have no definition."""

    known: ProofContext
    equality: FactorEquality
    axioms: list[Any] = field(default_factory=list)
    _factor_constants: list[tuple[Factor, Any]] = field(default_factory=list)
    _sums: dict[Term, Any] = field(default_factory=dict)
    _conditions: dict[Formula, Any] = field(default_factory=dict)

    @property
    def z3_context(self) -> z3.Context:
        return self.known.effort.z3_context

    def _number(self, number: int) -> Any:
        return z3.RealVal(number, self.z3_context)

    def total(self, terms: Iterable[Term]) -> Any:
        return z3.Sum([self._number(0), *map(self._term, terms)])

    def _value(self, value: Expr) -> Any:
        return self.total(value.terms)

    def _term(self, term: Term) -> Any:
        coefficient = z3.Q(term.coefficient.numerator, term.coefficient.denominator, self.z3_context)
        if term.binders:
            alone = replace(term, coefficient=Fraction(1))
            return coefficient * self._sums.setdefault(alone, z3.FreshReal(ctx=self.z3_context))
        body = reduce(lambda a, b: a * b, map(self._factor, term.factors), coefficient)
        return body if term.guard == TRUE else z3.If(self.truth(term.guard), body, 0)

    def truth(self, part: Formula) -> Any:
        """Return a condition in Z3's terms; a comparison of integers becomes a Boolean unknown."""
        match part:
            case And(parts):
                return z3.And([self.truth(p) for p in in_creation_order(parts)], self.z3_context)
            case Or(parts):
                return z3.Or([self.truth(p) for p in in_creation_order(parts)], self.z3_context)
            case BooleanAtom(subject, holds):
                return (self._value(subject) != 0) == holds
        assert isinstance(part, Comparison)
        if (denied := self._conditions.get(negate(part))) is not None:
            return z3.Not(denied)
        return self._conditions.setdefault(part, z3.FreshBool(ctx=self.z3_context))

    def _factor(self, factor: Factor) -> Any:
        match factor:
            case Call("Abs", (x,)):
                number = self._value(x)
                return z3.If(number >= 0, number, -number)
            case Call("Sign", (x,)):
                number = self._value(x)
                return z3.If(number > 0, self._number(1), z3.If(number < 0, self._number(-1), self._number(0)))
            case Call("Positive", (x,)):
                return z3.If(self._value(x) > 0, self._number(1), self._number(0))
            case Call("NotZero", (x,)):
                return z3.If(self._value(x) != 0, self._number(1), self._number(0))
            case Fold(monoid, pieces) if _is_unconditional_extremum(factor):
                greatest = monoid == "max"
                return reduce(
                    lambda a, b: z3.If((a >= b) if greatest else (a <= b), a, b), (self._value(p.body) for p in pieces)
                )
        return self._some_number(factor)

    def _some_number(self, factor: Factor) -> Any:
        for other, number in self._factor_constants:
            if self.equality.proves_factors_equal(factor, other, self.known):
                return number
        number = z3.FreshReal(ctx=self.z3_context)
        self._factor_constants.append((factor, number))
        self.axioms += self._factor_axioms(factor, number)
        return number

    def _factor_axioms(self, factor: Factor, number: Any) -> Iterator[Any]:
        signs = self.equality.signs
        match factor:
            case Call("OfType", _, (DType() as dtype,)):
                low, high = dtype.limits
                yield from (number >= low, number <= high)
        if signs.is_positive(factor, self.known):
            yield number > 0
        elif signs.is_nonnegative(factor, self.known):
            yield number >= 0
        elif signs.is_nonzero(factor, self.known):
            yield number != 0
        match factor:
            case Call("Exp", (x,)):
                power = self._value(x)
                yield from ((number > 1) == (power > 0), (number < 1) == (power < 0), number >= 1 + power)
            case Call("Inverse", (x,)):
                of = self._value(x)
                yield z3.Or(of == 0, of * number == 1)
            case Call("Sqrt", (x,)):
                of = self._value(x)
                yield z3.Or(of < 0, number * number == of)
