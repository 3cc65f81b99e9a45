"""Elements of denotations as sizes of a model: the arithmetic on shapes that exporters leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import product as tuples
from math import lcm
from typing import Any, Protocol, Self, TypeAlias

from graphopt.expr.dim_translation import DimTranslation, UndecidedError, is_nonnegative_dim, kleene_all
from graphopt.expr.dims import Dim, dim_product, divide_dim, lower_bound, min_dim
from graphopt.expr.expr_evaluation import Accumulation, Branches, ExprAlgebra
from graphopt.expr.expressions import Binders, Expr, OpaqueElement, TensorElement, split_cases
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
    return _ElementEvaluator(given).value(value)


@dataclass(frozen=True)
class _ElementEvaluator(ExprAlgebra[Dim]):
    """Elements under what binders are."""

    source: ElementSource
    binder_values: Mapping[Atom, int] = field(default_factory=dict)

    def value(self, value: Expr) -> Dim:
        """Return what an expression is in all cases."""
        evaluate = super().value
        found = {evaluate(part) for condition, (part,) in split_cases(value) if self.decide(condition) is not False}
        if len(found) != 1:
            raise UndecidedError
        return found.pop()

    def linear_combination(self, parts: Sequence[tuple[Fraction, Dim]]) -> Dim:
        scale, total = lcm(*(coefficient.denominator for coefficient, _ in parts)), self.integer(0)
        for coefficient, part in parts:
            total = part * int(coefficient * scale) + total
        return _require_known(divide_dim(total, scale))

    def product(self, factors: Sequence[Dim]) -> Dim:
        return dim_product(factors)

    def accumulate(self, monoid: Accumulation, branches: Branches[Self, Dim]) -> Dim:
        found = [body(inner) for binders, guard, body in branches for inner in self._iterate_binders(binders, guard)]
        if not found and monoid not in NEUTRAL_ELEMENTS:
            raise UndecidedError  # the least or the greatest number of the type, or an infinity
        return reduce(MONOID_OPERATIONS[monoid], found) if found else NEUTRAL_ELEMENTS[monoid]

    def _iterate_binders(self, binders: Binders, guard: Formula) -> Iterator[Self]:
        """Under all values of binders for which a condition holds; they run over few numbers."""
        extents = [self.integer(extent) for _, extent in binders]
        numbers = [extent for extent in extents if isinstance(extent, int) and extent <= MAX_UNROLLED_TERMS]
        if len(numbers) < len(extents):
            raise UndecidedError
        for values in tuples(*map(range, numbers)):
            bound = {b: value for (b, _), value in zip(binders, values, strict=True)}
            inner = replace(self, binder_values={**self.binder_values, **bound}) if bound else self
            holds = inner.decide(guard)
            if holds is None:
                raise UndecidedError
            if holds:
                yield inner

    def integer(self, size: Size) -> Dim:
        return self.source.translation.to_dim(replace_atoms(size, Substitution(self.binder_values)))

    def read(self, element: TensorElement) -> Dim:
        if not element.tensor.isdigit():
            raise UndecidedError
        place = self.integer(element.index[0]) if element.index else 0
        return _require_known(self.source.element(int(element.tensor), place) if isinstance(place, int) else None)

    def call(self, function: str, args: Sequence[Dim], params: tuple[Any, ...]) -> Dim:
        if function not in INTEGER_FUNCTIONS:
            raise UndecidedError
        return INTEGER_FUNCTIONS[function](*args, *params)

    def opaque(self, _element: OpaqueElement) -> Dim:
        raise UndecidedError

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
                    return (self.value(subject) != 0) == positive
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

NEUTRAL_ELEMENTS: Mapping[str, Dim] = {"sum": 0, "prod": 1}
"""Result of a monoid over nothing."""

MONOID_OPERATIONS: Mapping[str, Callable[[Dim, Dim], Dim]] = {
    "max": _maximum,
    "min": _minimum,
    "sum": lambda a, b: b + a,
    "prod": lambda a, b: a * b,
}
