"""What is known of the signs of real values: enough to cancel a·(1/a), √a·√a and |a|."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

from graphopt.base.integers import TRUE, Atom, Formula, conj, conjuncts, eq, ge, negate, symbols
from graphopt.base.rebuilding import Substitution, rebuild_formula
from graphopt.base.symbolic import Call, Factor, Number, Read, Term, Value, lift
from graphopt.verifier.context import Context


class Equal(Protocol):
    def equal(self, left: Value, right: Value, known: Context) -> bool: ...


@dataclass(frozen=True)
class Signs:
    """Properties of constants by name, and of what follows from them."""

    properties: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def exp_of_log(self, factor: Call, known: Context) -> Value:
        """exp(log(a)) is a where a is positive."""
        inner = _single(factor.args[0])
        is_plain = inner is not None and lift(inner) == factor.args[0]
        if is_plain and isinstance(inner, Call) and inner.function == "Log" and self.all_positive(inner.args[0], known):
            return inner.args[0]
        return lift(factor)

    def positive(self, factor: Factor, known: Context) -> bool:
        match factor:
            case Read(tensor=name):
                return "is_positive" in self.properties.get(name, ())
            case Number(of=size):
                return known.proves(ge(size, 1))
            case Call("Exp"):
                return True
            case Call("Inverse" | "Sqrt", (inner,)):
                return self.all_positive(inner, known)
        return False

    def not_negative(self, factor: Factor, known: Context) -> bool:
        match factor:
            case Read(tensor=name) if "is_nonnegative" in self.properties.get(name, ()):
                return True
            case Number(of=size):
                return known.proves(ge(size))
            case Call("Abs" | "Sqrt"):
                return True
        return self.positive(factor, known)

    def not_zero(self, factor: Factor, known: Context) -> bool:
        match factor:
            case Read(tensor=name) if not {"is_negative", "is_nonzero"}.isdisjoint(self.properties.get(name, ())):
                return True
            case Number(of=size):
                return known.proves(negate(eq(size)))
        return self.positive(factor, known)

    def all_positive(self, value: Value, known: Context) -> bool:
        """No term is negative and one without conditions is positive."""
        if not all(t.coefficient > 0 and all(self.not_negative(f, known) for f in t.factors) for t in value.terms):
            return False
        return any(known.proves(_somewhere(t)) and all(self.positive(f, known) for f in t.factors) for t in value.terms)

    def cancelled(self, term: Term, known: Context, equality: Equal) -> Term:
        """a·(1/a) is 1 where a is not zero, √a·√a is a where a is not negative."""
        for position, factor in enumerate(term.factors):
            if not isinstance(factor, Call) or factor.function != "Inverse":
                continue
            for other_position, other in enumerate(term.factors):
                if other_position != position and self._undoes(factor, other, known, equality):
                    kept = (f for i, f in enumerate(term.factors) if i not in (position, other_position))
                    return self.cancelled(replace(term, factors=tuple(kept)), known, equality)
        return term

    def in_order(self, value: Value, along: Atom, known: Context) -> Value:
        """Numbers in the same order along an index: less a shift, divided by a positive factor, exp undone."""
        terms = tuple(term for term in value.terms if along in term.symbols)
        if len(terms) != 1 or terms[0].binders or terms[0].guard != TRUE:
            return Value(terms)
        (term,) = terms
        kept = tuple(f for f in term.factors if along in f.symbols)
        scale = (f for f in term.factors if along not in f.symbols)
        if term.coefficient < 0 or not all(self.positive(f, known) for f in scale):
            return value
        match kept:
            case (Call("Exp", (x,)),):
                return self.in_order(x, along, known)
        return Value((Term(Fraction(1), kept),))

    def over_itself(self, term: Term, known: Context, equality: Equal) -> Term:
        """(Σ a)·(1 / Σ a) is 1 where Σ a is positive, so not where it is empty: `known` is what is known around it."""
        bound = {binder for binder, _ in term.binders}
        inverses = (f for f in term.factors if isinstance(f, Call) and f.function == "Inverse")
        for inverse in inverses if bound else ():
            if not inverse.symbols & bound:
                inner = tuple(f for f in term.factors if f.symbols & bound)
                within = conj(*(part for part in conjuncts(term.guard) if symbols(part) & bound))
                around = conj(*(conjuncts(term.guard) - conjuncts(within)))
                summed = Value((Term(Fraction(1), inner, term.binders, within),))
                here = known.knowing(around)
                if self.all_positive(summed, here) and equality.equal(inverse.args[0], summed, here):
                    others = tuple(f for f in term.factors if f is not inverse and f not in inner)
                    return Term(term.coefficient, others, (), around)
        return term

    def _undoes(self, inverse: Call, other: Factor, known: Context, equality: Equal) -> bool:
        of = inverse.args[0]
        if not self.not_zero(other, known):
            return False
        return of == lift(other) or (type(_single(of)) is type(other) and equality.equal(of, lift(other), known))


def _single(value: Value) -> Factor | None:
    return value.terms[0].factors[0] if len(value.terms) == 1 and len(value.terms[0].factors) == 1 else None


def _somewhere(term: Term) -> Formula:
    """Says that a term has something to add up: at 0."""
    change = Substitution({binder: 0 for binder, _ in term.binders})
    return conj(rebuild_formula(term.guard, change), *(ge(extent, 1) for _, extent in term.binders))
