"""Arithmetic on real numbers, infinities and NaN: what of the algebra of `expressions` holds for these, too.

Sums and products may be reordered and regrouped, and a finite factor may be multiplied into a sum. Nothing cancels
(inf - inf is NaN), nothing is dropped that is multiplied with 0, and no factor that may be infinite is multiplied into
a sum or taken out of one. The sign of 0 is not known of a sum, so one is not divided by. Terms that may be infinite
have a positive coefficient: a minus is a factor of its own, and two terms never cancel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction

from graphopt.base.session import current_session
from graphopt.expr import expressions
from graphopt.expr.expressions import (
    ONE,
    Call,
    Expr,
    Factor,
    Fold,
    IntegerValue,
    OpaqueElement,
    TensorElement,
    Term,
    expr_of_factor,
)
from graphopt.expr.integers import TRUE, Formula, conjunction, ge

MINUS = Call("Minus^", ())
FINITE = frozenset(
    {"Abs", "Asinh", "Atan", "Cast", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "NotZero", "Positive", "Round"}
    | {"Sign", "Sin", "Sinh", "Tanh", "Wrapped"}
)
"""Functions that are finite for all finite numbers: too large a result is rounding."""

POSITIVE = frozenset({"is_positive", "is_one"})
NONNEGATIVE_PROPERTIES = POSITIVE | {"is_nonnegative"}
NOT_ZERO = frozenset({"is_nonzero", "is_positive", "is_negative", "is_one"})


class InvalidForInfinities(Exception):
    """A step that does not hold for infinities."""


@dataclass(frozen=True)
class ExtendedReals:
    """The arithmetic of one rule: the tensors whose elements may be infinite, and the properties of its constants."""

    infinite: frozenset[str]
    properties: Mapping[str, frozenset[str]]
    variances: frozenset[str] = frozenset()
    """The constants that the left side normalizes by, and what is added to them: their sums are positive."""
    _known: dict[Expr, bool] = field(default_factory=dict)

    def is_finite(self, value: Expr) -> bool:
        """Return whether a value is a finite number: made of constants, sizes and numbers of the rule alone."""
        if value not in self._known:
            self._known[value] = all(self._is_finite(factor) for term in value.terms for factor in term.factors)
        return self._known[value]

    def _is_finite(self, factor: Factor) -> bool:
        match factor:
            case TensorElement():
                return factor.tensor not in self.infinite
            case IntegerValue():
                return True
            case Call("Inverse", (value,)):
                return self.is_finite(value) and self._is_not_zero(value)
            case Call("Sqrt", (value,)):
                return self._is_deviation(value)
            case Call("Log", (value,)):
                return self._has(value, POSITIVE)
            case Call(name, arguments):
                return name in FINITE and all(map(self.is_finite, arguments))
            case Fold():
                return all(self.is_finite(piece.body) for piece in factor.branches)
        return False

    def _is_not_zero(self, value: Expr) -> bool:
        """Return whether a finite value is known not to be 0; a deviation of the left side is not."""
        if value.constant is not None:
            return bool(value.constant)
        match [factor for term in value.terms for factor in term.factors]:
            case [TensorElement(tensor=name)]:
                return bool(self.properties.get(name, frozenset()) & NOT_ZERO)
            case [IntegerValue()] | [Call("Exp")]:
                return True
            case [Call("Sqrt", (root,))]:
                return self._has(root, POSITIVE) or self._is_variance(root)
        return False

    def _is_deviation(self, value: Expr) -> bool:
        """Return whether a value is known to have a root: it is a number or a variance of the left side, or their
        sum."""
        return self._has(value, NONNEGATIVE_PROPERTIES) or self._is_variance(value)

    def _is_variance(self, value: Expr) -> bool:
        """Return whether a value is a sum of variances of the left side and positive numbers."""
        return bool(value.terms) and all(
            term.coefficient > 0
            and all(isinstance(f, TensorElement) and f.tensor.partition("'")[0] in self.variances for f in term.factors)
            for term in value.terms
        )

    def _has(self, value: Expr, properties: frozenset[str]) -> bool:
        """Return whether a value is an element of a constant with one of some properties."""
        match [factor for term in value.terms for factor in term.factors]:
            case [TensorElement(tensor=name)]:
                return all(t.coefficient > 0 for t in value.terms) and not properties.isdisjoint(
                    self.properties.get(name, ())
                )
        return False

    def product(self, left: Expr, right: Expr) -> Expr:
        """Return the product of two values of which one at least may be infinite."""
        result = expressions.ZERO
        for condition, (a, b) in expressions.split_cases(left, right):
            result = result + expressions.guard_expr(condition, self._product(a, b))
        return result

    def _product(self, left: Expr, right: Expr) -> Expr:
        if self.is_finite(left) and self.is_finite(right):
            return expressions.multiply(left, right)
        left, right = (self._as_factor(side) if self.is_finite(side) else side for side in (left, right))
        if not (self.is_finite(left) or self.is_finite(right)):
            left, right = self._as_factor(left), self._as_factor(right)
        return self.normalize_signs(expressions.multiply(left, right))

    def _as_factor(self, value: Expr) -> Expr:
        """Return the value as one product: a sum, and 0, as a function of which nothing is known."""
        return value if _is_product(value) else expr_of_factor(Call("Sum^", (value,)))

    def normalize_signs(self, value: Expr) -> Expr:
        """Return the terms that may be infinite with a positive coefficient: two minuses are none."""
        terms = []
        for term in value.terms:
            if self.is_finite(Expr((term,))):
                terms.append(term)
                continue
            minus = (term.coefficient < 0) != (sum(factor == MINUS for factor in term.factors) % 2 == 1)
            factors = (*(factor for factor in term.factors if factor != MINUS), *([MINUS] if minus else []))
            terms.append(replace(term, coefficient=abs(term.coefficient), factors=factors))
        return expressions.add_terms(terms)

    def nan_condition(self, value: Expr) -> tuple[Formula, Expr]:
        """Return what says whether a value is NaN: it is NaN exactly where the condition holds and what is returned is
        NaN.

        A row of a softmax is NaN as a whole, or all of it is finite: it is NaN exactly if it reads +inf, NaN, or
        nothing but -inf. So its first element tells of each other, and of a sum of them times finite numbers.
        """
        (term,) = value.terms if len(value.terms) == 1 else (Term(ONE),)
        rows = [factor for factor in term.factors if isinstance(factor, OpaqueElement) and factor.operator == "Softmax"]
        finite = all(factor in rows or self._is_finite(factor) for factor in term.factors)
        if len(rows) != 1 or not finite or term.guard != TRUE:
            return TRUE, value
        first = _first_of_row(rows[0])
        if not first.free_symbols.isdisjoint(symbol for symbol, _ in term.binders):
            return TRUE, value
        return conjunction(*(ge(extent, 1) for _, extent in term.binders)), expr_of_factor(first)

    def reciprocal(self, value: Expr) -> Expr:
        """1 over a value that may be infinite.

        Raises:
            InvalidForInfinities: it is a sum, and so may be 0 with either sign.
        """
        result = expressions.ZERO
        for condition, (inner,) in expressions.split_cases(value):
            if not _is_product(inner):
                raise InvalidForInfinities("a sum that may be 0 is divided by")
            (term,) = inner.terms
            kept = expressions.constant(Fraction(1) / term.coefficient)
            for factor in term.factors:
                kept = expressions.multiply(kept, _inverse(factor))
            result = result + expressions.guard_expr(condition, kept)
        return result


def _first_of_row(element: OpaqueElement) -> OpaqueElement:
    """Return the element of a softmax at the start of the row of another."""
    axis = next(value for name, value in filter(_is_named, element.params) if name == "axis") % len(element.index)
    return replace(element, index=tuple(0 if own == axis else i for own, i in enumerate(element.index)))


def _is_named(param: object) -> bool:
    return isinstance(param, tuple)


def _inverse(factor: Factor) -> Expr:
    if factor == MINUS:
        return expr_of_factor(MINUS)
    if isinstance(factor, Call) and factor.function == "Inverse":
        return factor.args[0]
    return expr_of_factor(Call("Inverse", (expr_of_factor(factor),)))


def _is_product(value: Expr) -> bool:
    if len(value.terms) != 1:
        return False
    (term,) = value.terms
    return not term.binders and term.guard == TRUE


@contextmanager
def use_extended_reals(arithmetic: ExtendedReals) -> Iterator[None]:
    """Compute with infinities: the operators of `Expr` mean this arithmetic until the end."""
    assert current_session().arithmetic is None
    with current_session().replace(arithmetic=arithmetic):
        yield
