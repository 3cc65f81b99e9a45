"""Elements of denotations as sizes of a model: the arithmetic on shapes that exporters leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import product as tuples
from math import lcm
from typing import Protocol, TypeAlias

from graphopt.expr.dim_translation import DimTranslation, UndecidedError, is_nonnegative_dim, kleene_all
from graphopt.expr.dims import Dim, divide_dim, lower_bound, min_dim
from graphopt.expr.expressions import (
    Binders,
    Call,
    Expr,
    Factor,
    Fold,
    FoldBranch,
    IntegerValue,
    TensorElement,
    Term,
    split_cases,
)
from graphopt.expr.integers import And, Atom, BooleanAtom, Formula, Or, Size
from graphopt.expr.substitution import Substitution, replace_atoms, replace_in_formula

Elements: TypeAlias = "tuple[Dim, ...]"

MAX_UNROLLED_TERMS = 256
"""Longest sum of numbers that is computed."""


class ElementSource(Protocol):
    """Where elements come from."""

    @property
    def translation(self) -> DimTranslation: ...

    def element(self, position: int, place: int) -> Dim: ...


def evaluate_element(given: ElementSource, value: Expr) -> Dim:
    """Return what an element is.

    Raises:
        UndecidedError: it depends on what names stand for, or on an element that is not known.
    """
    return _ElementEvaluator(given).evaluate(value)


@dataclass(frozen=True)
class _ElementEvaluator:
    """Elements under what binders are."""

    source: ElementSource
    binder_values: Mapping[Atom, int] = field(default_factory=dict)

    def evaluate(self, value: Expr) -> Dim:
        found = {
            self._evaluate_sum(part) for condition, (part,) in split_cases(value) if self.decide(condition) is not False
        }
        if len(found) != 1:
            raise UndecidedError
        return found.pop()

    def _evaluate_sum(self, value: Expr) -> Dim:
        """Return what terms add up to of which none has a condition, but on what it runs over."""
        scale, total = lcm(*(term.coefficient.denominator for term in value.terms)), self.evaluate_size(0)
        for term in value.terms:
            for inner in self._iterate_binders(term.binders, term.guard):
                total = inner.evaluate_product(term) * int(term.coefficient * scale) + total
        return _require_known(divide_dim(total, scale))

    def evaluate_product(self, term: Term) -> Dim:
        result: Dim = 1
        for factor in term.factors:
            result = self._evaluate_factor(factor) * result
        return result

    def _iterate_binders(self, binders: Binders, guard: Formula) -> Iterator[_ElementEvaluator]:
        """Under all values of binders for which a condition holds; they run over few numbers."""
        extents = [self.evaluate_size(extent) for _, extent in binders]
        numbers = [extent for extent in extents if isinstance(extent, int) and extent <= MAX_UNROLLED_TERMS]
        if len(numbers) < len(extents):
            raise UndecidedError
        for values in tuples(*map(range, numbers)):
            bound = {b: value for (b, _), value in zip(binders, values, strict=True)}
            inner = _ElementEvaluator(self.source, {**self.binder_values, **bound}) if bound else self
            holds = inner.decide(guard)
            if holds is None:
                raise UndecidedError
            if holds:
                yield inner

    def evaluate_size(self, size: Size) -> Dim:
        return self.source.translation.to_dim(replace_atoms(size, Substitution(self.binder_values)))

    def _evaluate_factor(self, factor: Factor) -> Dim:
        match factor:
            case IntegerValue(of):
                return self.evaluate_size(of)
            case TensorElement(position, index) if position.isdigit():
                place = self.evaluate_size(index[0]) if index else 0
                return _require_known(self.source.element(int(position), place) if isinstance(place, int) else None)
            case Fold(monoid, pieces):
                found = [*self._evaluate_branches(pieces)]
                if not found and monoid not in NEUTRAL_ELEMENTS:
                    raise UndecidedError  # the least or the greatest number of the type, or an infinity
                return reduce(MONOID_OPERATIONS[monoid], found) if found else NEUTRAL_ELEMENTS[monoid]
            case Call(function, args, params) if function in INTEGER_FUNCTIONS:
                return INTEGER_FUNCTIONS[function](*map(self.evaluate, args), *params)
        raise UndecidedError

    def _evaluate_branches(self, pieces: Iterable[FoldBranch]) -> Iterator[Dim]:
        for piece in pieces:
            for inner in self._iterate_binders(piece.binders, piece.guard):
                yield inner.evaluate(piece.body)

    def decide(self, condition: Formula) -> bool | None:
        """Return whether a condition holds, None where that is not known."""
        match condition:
            case And(parts):
                return kleene_all(map(self.decide, parts))
            case Or(parts):
                none = kleene_all(None if one is None else not one for one in map(self.decide, parts))
                return None if none is None else not none
            case BooleanAtom(subject, positive):
                try:
                    return (self.evaluate(subject) != 0) == positive
                except UndecidedError:
                    return None
        return self.source.translation.decide(replace_in_formula(condition, Substitution(self.binder_values)))


def _require_known(found: Dim | None) -> Dim:
    if found is None:
        raise UndecidedError
    return found


# -- functions ---------------------------------------------------------------------------------------------------------


def _is_positive(a: Dim) -> Dim:
    if (lower_bound(a) or 0) >= 1:
        return 1
    return _require_known(0 if is_nonnegative_dim(-a) else None)


def _is_nonzero(a: Dim) -> Dim:
    if isinstance(a, int):
        return int(a != 0)
    return _require_known(1 if (lower_bound(a) or 0) >= 1 or (lower_bound(-a) or 0) >= 1 else None)


def _quotient(a: Dim, b: Dim) -> Dim:
    """Integer division as ONNX Runtime does it: towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return _require_known(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else None)
    exact = divide_dim(a, b)
    if exact is None and is_nonnegative_dim(a) and is_nonnegative_dim(b) and b != 0:
        return a // b
    return _require_known(exact)


def _remainder(a: Dim, b: Dim) -> Dim:
    """Mod with the sign of the divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return _require_known(a % b if b else None)
    if divide_dim(a, b) is not None:
        return 0
    return _require_known(a % b if is_nonnegative_dim(a) and is_nonnegative_dim(b) and b != 0 else None)


def _fmod(a: Dim, b: Dim) -> Dim:
    """Mod with the sign of the dividend, as in C."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return abs(a) % abs(b) * (-1 if a < 0 else 1)
    return _remainder(a, b)


def _magnitude(a: Dim) -> Dim:
    if is_nonnegative_dim(a):
        return a
    return _require_known(-a if is_nonnegative_dim(-a) else None)


def _minimum(a: Dim, b: Dim) -> Dim:
    found = min_dim(a, b)
    return _require_known(found if found in (a, b) or (is_nonnegative_dim(a) and is_nonnegative_dim(b)) else None)


def _maximum(a: Dim, b: Dim) -> Dim:
    return a + b - _minimum(a, b)


def _cast(a: Dim, kind: str, _to: str) -> Dim:
    """Return an integer that the type holds, which is asked of what comes out."""
    return _require_known(a if kind == "wrapped" else None)


INTEGER_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "Abs": _magnitude,
    "Cast": _cast,
    "FMod": _fmod,
    "Mod": _remainder,
    "NotZero": _is_nonzero,
    "Positive": _is_positive,
    "Quotient": _quotient,
}
"""The functions of integers among those that denotations name."""

NEUTRAL_ELEMENTS: Mapping[str, Dim] = {"prod": 1}
"""Result of a monoid over nothing."""

MONOID_OPERATIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "max": _maximum,
    "min": _minimum,
    "prod": lambda a, b: a * b,
}
