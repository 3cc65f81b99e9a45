"""Elements of denotations as sizes of a model: the arithmetic on shapes that exporters leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import product as tuples
from math import lcm
from typing import Protocol, TypeAlias

from graphopt.base.integers import And, Atom, Fact, Formula, Or, Size
from graphopt.base.rebuilding import Substitution, rebuild, rebuild_formula
from graphopt.base.sizes import Dim, divide, least, lower_bound
from graphopt.base.symbolic import Binders, Call, Factor, Fold, Number, Piece, Read, Term, Value, cases
from graphopt.base.translation import NotKnown, Translation, every, is_not_negative

Elements: TypeAlias = "tuple[Dim, ...]"

UNROLLED = 256
"""How many numbers a sum runs over that is computed."""


class Given(Protocol):
    """Where elements come from."""

    @property
    def translation(self) -> Translation: ...

    def element(self, position: int, place: int) -> Dim: ...


def element(given: Given, value: Value) -> Dim:
    """Return what an element is.

    Raises:
        NotKnown: it depends on what names stand for, or on an element that is not known.
    """
    return _Reading(given).element(value)


@dataclass(frozen=True)
class _Reading:
    """Elements under what binders are."""

    given: Given
    bound: Mapping[Atom, int] = field(default_factory=dict)

    def element(self, value: Value) -> Dim:
        found = {self._sum(part) for condition, (part,) in cases(value) if self.holds(condition) is not False}
        if len(found) != 1:
            raise NotKnown
        return found.pop()

    def _sum(self, value: Value) -> Dim:
        """Return what terms add up to of which none has a condition, but on what it runs over."""
        scale, total = lcm(*(term.coefficient.denominator for term in value.terms)), self.size(0)
        for term in value.terms:
            for inner in self._where(term.binders, term.guard):
                total = inner.product(term) * int(term.coefficient * scale) + total
        return _known(divide(total, scale))

    def product(self, term: Term) -> Dim:
        result: Dim = 1
        for factor in term.factors:
            result = self._factor(factor) * result
        return result

    def _where(self, binders: Binders, guard: Formula) -> Iterator[_Reading]:
        """Under all values of binders for which a condition holds; they run over few numbers."""
        extents = [self.size(extent) for _, extent in binders]
        numbers = [extent for extent in extents if isinstance(extent, int) and extent <= UNROLLED]
        if len(numbers) < len(extents):
            raise NotKnown
        for values in tuples(*map(range, numbers)):
            bound = {b: value for (b, _), value in zip(binders, values, strict=True)}
            inner = _Reading(self.given, {**self.bound, **bound}) if bound else self
            holds = inner.holds(guard)
            if holds is None:
                raise NotKnown
            if holds:
                yield inner

    def size(self, size: Size) -> Dim:
        return self.given.translation.outward(rebuild(size, Substitution(self.bound)))

    def _factor(self, factor: Factor) -> Dim:
        match factor:
            case Number(of):
                return self.size(of)
            case Read(position, index) if position.isdigit():
                place = self.size(index[0]) if index else 0
                return _known(self.given.element(int(position), place) if isinstance(place, int) else None)
            case Fold(monoid, pieces):
                found = [*self._pieces(pieces)]
                if not found and monoid not in NEUTRAL:
                    raise NotKnown  # the least or the greatest number of the type, or an infinity
                return reduce(MONOIDS[monoid], found) if found else NEUTRAL[monoid]
            case Call(function, args, params) if function in FUNCTIONS:
                return FUNCTIONS[function](*map(self.element, args), *params)
        raise NotKnown

    def _pieces(self, pieces: Iterable[Piece]) -> Iterator[Dim]:
        for piece in pieces:
            for inner in self._where(piece.binders, piece.guard):
                yield inner.element(piece.body)

    def holds(self, condition: Formula) -> bool | None:
        """Return whether a condition holds, None where that is not known."""
        match condition:
            case And(parts):
                return every(map(self.holds, parts))
            case Or(parts):
                none = every(None if one is None else not one for one in map(self.holds, parts))
                return None if none is None else not none
            case Fact(subject, positive):
                try:
                    return (self.element(subject) != 0) == positive
                except NotKnown:
                    return None
        return self.given.translation.decide(rebuild_formula(condition, Substitution(self.bound)))


def _known(found: Dim | None) -> Dim:
    if found is None:
        raise NotKnown
    return found


# -- functions ---------------------------------------------------------------------------------------------------------


def _is_positive(a: Dim) -> Dim:
    if (lower_bound(a) or 0) >= 1:
        return 1
    return _known(0 if is_not_negative(-a) else None)


def _is_not_zero(a: Dim) -> Dim:
    if isinstance(a, int):
        return int(a != 0)
    return _known(1 if (lower_bound(a) or 0) >= 1 or (lower_bound(-a) or 0) >= 1 else None)


def _quotient(a: Dim, b: Dim) -> Dim:
    """Integer division as ONNX Runtime does it: towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return _known(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None)
    exact = divide(a, b)
    if exact is None and is_not_negative(a) and is_not_negative(b) and b != 0:
        return a // b
    return _known(exact)


def _remainder(a: Dim, b: Dim) -> Dim:
    """Mod with the sign of the divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return _known(a % b if b else None)
    if divide(a, b) is not None:
        return 0
    return _known(a % b if is_not_negative(a) and is_not_negative(b) and b != 0 else None)


def _remainder_of_c(a: Dim, b: Dim) -> Dim:
    """Mod with the sign of the dividend, as in C."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) % abs(b) * (-1 if a < 0 else 1)
    return _remainder(a, b)


def _magnitude(a: Dim) -> Dim:
    if is_not_negative(a):
        return a
    return _known(-a if is_not_negative(-a) else None)


def _least(a: Dim, b: Dim) -> Dim:
    found = least(a, b)
    return _known(found if found in (a, b) or (is_not_negative(a) and is_not_negative(b)) else None)


def _greatest(a: Dim, b: Dim) -> Dim:
    return a + b - _least(a, b)


def _cast(a: Dim, kind: str, _to: str) -> Dim:
    """Return an integer that the type holds, which is asked of what comes out."""
    return _known(a if kind == "wrapped" else None)


FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "Abs": _magnitude,
    "Cast": _cast,
    "FMod": _remainder_of_c,
    "Mod": _remainder,
    "NotZero": _is_not_zero,
    "Positive": _is_positive,
    "Quotient": _quotient,
}
"""The functions of integers among those that denotations name."""

NEUTRAL: Mapping[str, Dim] = {"prod": 1}
"""What a monoid makes of nothing."""

MONOIDS: Mapping[str, Callable[[Dim, Dim], Dim]] = {"max": _greatest, "min": _least, "prod": lambda a, b: a * b}
