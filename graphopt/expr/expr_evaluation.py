"""The values of expressions: one fold over their sums, products and folds, with an algebra that says what these are.

Elements of small tensors are computed with it as sizes of a model, kernels of operators are compiled with it, and tests
put numbers in. What looks at the form of arguments, as the signs of values do, is no such fold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from graphopt.expr.expressions import (
    Binders,
    Call,
    Expr,
    Factor,
    Fold,
    IntegerValue,
    Monoid,
    OpaqueElement,
    TensorElement,
    Term,
)
from graphopt.expr.integers import Formula, Polynomial

A = TypeVar("A")
V = TypeVar("V")
Accumulation: TypeAlias = Monoid | Literal["sum"]
Branches: TypeAlias = "Sequence[tuple[Binders, Formula, Callable[[A], V]]]"
"""Binders, a guard, and a function of the algebra under the values of the binders for which the guard holds."""


class ExprAlgebra(ABC, Generic[V]):
    """Operations on the values of expressions, and the values of the symbols that are free in them."""

    @abstractmethod
    def linear_combination(self, parts: Sequence[tuple[Fraction, V]]) -> V: ...

    @abstractmethod
    def product(self, factors: Sequence[V]) -> V: ...

    @abstractmethod
    def accumulate(self, monoid: Accumulation, branches: Branches[Self, V]) -> V:
        """Return the sum, the product, the greatest or the least of all that branches run over."""

    @abstractmethod
    def read(self, element: TensorElement) -> V: ...

    @abstractmethod
    def integer(self, size: Polynomial) -> V: ...

    @abstractmethod
    def call(self, function: str, args: Sequence[V], params: tuple[Any, ...]) -> V: ...

    @abstractmethod
    def opaque(self, element: OpaqueElement) -> V: ...

    def value(self, value: Expr) -> V:
        """Return the value of an expression."""
        return self.linear_combination([(term.coefficient, self.term(term)) for term in value.terms])

    def term(self, term: Term) -> V:
        def product(inner: Self) -> V:
            return inner.product([inner.factor(factor) for factor in term.factors])

        return self.accumulate("sum", [(term.binders, term.guard, product)])

    def factor(self, factor: Factor) -> V:
        match factor:
            case TensorElement():
                return self.read(factor)
            case IntegerValue(integer=size):
                return self.integer(size)
            case Call(function=function, args=args, params=params):
                return self.call(function, [self.value(arg) for arg in args], params)
            case Fold(monoid=monoid, branches=branches):
                return self.accumulate(monoid, [(b.binders, b.guard, partial(_body, b.body)) for b in branches])
            case OpaqueElement():
                return self.opaque(factor)


def _body(body: Expr, inner: ExprAlgebra[V]) -> V:
    return inner.value(body)
