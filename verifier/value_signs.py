"""What is known of the signs of real values: enough to cancel a·(1/a), √a·√a and |a|."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

from graphopt.expr.expressions import Call, Expr, Factor, IntegerValue, TensorElement, Term, expr_of_factor
from graphopt.expr.integers import TRUE, Atom, Formula, conjunction, conjuncts, eq, free_symbols, ge, negate
from graphopt.expr.substitution import Substitution, replace_in_formula
from graphopt.verifier.context import ProofContext


class ValueEquality(Protocol):
    def proves_equal(self, left: Expr, right: Expr, known: ProofContext) -> bool: ...


@dataclass(frozen=True)
class SignAnalysis:
    """Signs of values, as they follow from properties of constants."""

    properties: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def exp_of_log(self, factor: Call, known: ProofContext) -> Expr:
        """Return a for exp(log(a)) where a is positive, other factors as they are."""
        inner = _single(factor.args[0])
        is_plain = inner is not None and expr_of_factor(inner) == factor.args[0]
        if is_plain and isinstance(inner, Call) and inner.function == "Log" and self.all_positive(inner.args[0], known):
            return inner.args[0]
        return expr_of_factor(factor)

    def is_positive(self, factor: Factor, known: ProofContext) -> bool:
        match factor:
            case TensorElement(tensor=name):
                return "is_positive" in self.properties.get(name, ())
            case IntegerValue(integer=size):
                return known.proves(ge(size, 1))
            case Call("Exp"):
                return True
            case Call("Inverse" | "Sqrt", (inner,)):
                return self.all_positive(inner, known)
        return False

    def is_nonnegative(self, factor: Factor, known: ProofContext) -> bool:
        match factor:
            case TensorElement(tensor=name) if "is_nonnegative" in self.properties.get(name, ()):
                return True
            case IntegerValue(integer=size):
                return known.proves(ge(size))
            case Call("Abs" | "Sqrt"):
                return True
        return self.is_positive(factor, known)

    def is_nonzero(self, factor: Factor, known: ProofContext) -> bool:
        match factor:
            case TensorElement(tensor=name) if not {"is_negative", "is_nonzero"}.isdisjoint(
                self.properties.get(name, ())
            ):
                return True
            case IntegerValue(integer=size):
                return known.proves(negate(eq(size)))
        return self.is_positive(factor, known)

    def all_positive(self, value: Expr, known: ProofContext) -> bool:
        """Return whether a sum is positive: no term is negative, and one without conditions is positive."""
        if not all(t.coefficient > 0 and all(self.is_nonnegative(f, known) for f in t.factors) for t in value.terms):
            return False
        return any(
            known.proves(_nonempty_condition(t)) and all(self.is_positive(f, known) for f in t.factors)
            for t in value.terms
        )

    def cancel_inverses(self, term: Term, known: ProofContext, equality: ValueEquality) -> Term:
        """Cancel a·(1/a) where a is not zero, and √a·√a to a where a is not negative."""
        for position, factor in enumerate(term.factors):
            if not isinstance(factor, Call) or factor.function != "Inverse":
                continue
            for other_position, other in enumerate(term.factors):
                if other_position != position and self._undoes(factor, other, known, equality):
                    kept = (f for i, f in enumerate(term.factors) if i not in (position, other_position))
                    return self.cancel_inverses(replace(term, factors=tuple(kept)), known, equality)
        return term

    def strip_monotone_maps(self, value: Expr, along: Atom, known: ProofContext) -> Expr:
        """Return numbers in the same order along an index: without shifts, positive factors and exp."""
        terms = tuple(term for term in value.terms if along in term.free_symbols)
        if len(terms) != 1 or terms[0].binders or terms[0].guard != TRUE:
            return Expr(terms)
        (term,) = terms
        kept = tuple(f for f in term.factors if along in f.free_symbols)
        scale = (f for f in term.factors if along not in f.free_symbols)
        if term.coefficient < 0 or not all(self.is_positive(f, known) for f in scale):
            return value
        match kept:
            case (Call("Exp", (x,)),):
                return self.strip_monotone_maps(x, along, known)
        return Expr((Term(Fraction(1), kept),))

    def cancel_sum_over_itself(self, term: Term, known: ProofContext, equality: ValueEquality) -> Term:
        """Cancel (Σ a)·(1 / Σ a) where Σ a is positive, and so not empty; `known` are the facts around the term."""
        bound = {binder for binder, _ in term.binders}
        inverses = (f for f in term.factors if isinstance(f, Call) and f.function == "Inverse")
        for inverse in inverses if bound else ():
            if not inverse.free_symbols & bound:
                inner = tuple(f for f in term.factors if f.free_symbols & bound)
                within = conjunction(*(part for part in conjuncts(term.guard) if free_symbols(part) & bound))
                around = conjunction(*(conjuncts(term.guard) - conjuncts(within)))
                summed = Expr((Term(Fraction(1), inner, term.binders, within),))
                here = known.assuming(around)
                if self.all_positive(summed, here) and equality.proves_equal(inverse.args[0], summed, here):
                    others = tuple(f for f in term.factors if f is not inverse and f not in inner)
                    return Term(term.coefficient, others, (), around)
        return term

    def _undoes(self, inverse: Call, other: Factor, known: ProofContext, equality: ValueEquality) -> bool:
        of = inverse.args[0]
        if not self.is_nonzero(other, known):
            return False
        return of == expr_of_factor(other) or (
            type(_single(of)) is type(other) and equality.proves_equal(of, expr_of_factor(other), known)
        )


def _single(value: Expr) -> Factor | None:
    return value.terms[0].factors[0] if len(value.terms) == 1 and len(value.terms[0].factors) == 1 else None


def _nonempty_condition(term: Term) -> Formula:
    """Says that a term has something to add up: at 0."""
    change = Substitution({binder: 0 for binder, _ in term.binders})
    return conjunction(replace_in_formula(term.guard, change), *(ge(extent, 1) for _, extent in term.binders))
