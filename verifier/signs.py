"""What is known of the signs of real values: enough to cancel a·(1/a), √a·√a and |a|."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from graphopt.verifier.integers import Context, eq, ge, negate
from graphopt.verifier.symbolic import ZERO, Call, Factor, Number, Read, Term, Value, lift, number


class Equal(Protocol):
    def equal(self, left: Value, right: Value, known: Context) -> bool: ...


@dataclass(frozen=True)
class Signs:
    """Properties of constants by name, and of what follows from them."""

    properties: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def replaced(self, value: Value) -> Value:
        """A value in which elements of constants that are all 0 or all 1 are that."""
        if not self.properties:
            return value
        total = ZERO
        for term in value.terms:
            result = Value((replace(term, factors=()),))
            for factor in term.factors:
                result = result * self._element(factor)
            total = total + result
        return total

    def _element(self, factor: Factor) -> Value:
        known = self.properties.get(factor.tensor, ()) if isinstance(factor, Read) else ()
        return number(0) if "is_zero" in known else number(1) if "is_one" in known else lift(factor)

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
            case Read(tensor=name) if "is_not_negative" in self.properties.get(name, ()):
                return True
            case Number(of=size):
                return known.proves(ge(size))
            case Call("Abs" | "Sqrt"):
                return True
        return self.positive(factor, known)

    def not_zero(self, factor: Factor, known: Context) -> bool:
        match factor:
            case Read(tensor=name) if "is_negative" in self.properties.get(name, ()):
                return True
            case Number(of=size):
                return known.proves(negate(eq(size)))
        return self.positive(factor, known)

    def all_positive(self, value: Value, known: Context) -> bool:
        """No term is negative and one without conditions is positive."""
        if not all(t.coefficient > 0 and all(self.not_negative(f, known) for f in t.factors) for t in value.terms):
            return False
        return any(
            not t.binders and known.proves(t.guard) and all(self.positive(f, known) for f in t.factors)
            for t in value.terms
        )

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

    def _undoes(self, inverse: Call, other: Factor, known: Context, equality: Equal) -> bool:
        of = inverse.args[0]
        if not self.not_zero(other, known):
            return False
        return of == lift(other) or (type(_single(of)) is type(other) and equality.equal(of, lift(other), known))


def _single(value: Value) -> Factor | None:
    return value.terms[0].factors[0] if len(value.terms) == 1 and len(value.terms[0].factors) == 1 else None
