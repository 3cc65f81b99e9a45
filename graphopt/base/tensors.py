"""Tensors as functions of indices: what denotations are written in.

An element of a tensor is a value (`symbolic.py`): a sum, a choice, a fold, at an index that is symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.base.integers import TRUE, Fact, Formula, Size, conj, disj, fresh, inside, negate
from graphopt.base.notes import in_case, running_over
from graphopt.base.rebuilding import only_symbol
from graphopt.base.symbolic import (
    Binders,
    Index,
    Monoid,
    Number,
    Piece,
    Term,
    Value,
    Whole,
    call,
    collected,
    fold,
    guarded,
    number,
)
from graphopt.base.types import DType

Where: TypeAlias = "Callable[[Index], Formula]"


@dataclass(frozen=True, eq=False)
class Tensor:
    """A shape, and the element at each index. Outside of its shape a tensor has no elements: who reads guards."""

    shape: tuple[Size, ...]
    at: Callable[[Index], Value]
    dtype: DType = DType.UNDEFINED
    values: DType = DType.UNDEFINED
    """A type that holds all its elements, narrower than its own after a cast that loses nothing."""
    view_of: Tensor | None = None
    """A tensor that has the same elements in the same (row-major) order, where this one is another view of it."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def base(self) -> Tensor:
        """The tensor that it is a view of, or itself."""
        return self.view_of or self

    def typed(self, dtype: DType, values: DType = DType.UNDEFINED) -> Tensor:
        """Return the same of an element type, with one that holds all elements if that is said."""
        return Tensor(self.shape, self.at, dtype, values or self.values or dtype, self.view_of)

    def whole(self) -> Whole:
        """As an argument of an operator that is not looked into."""
        index, binders = bind(self.shape, "i")
        with running_over(binders):
            return Whole(self.shape, tuple(map(only_symbol, index)), self.at(index))


def within(index: Index, shape: Sequence[Size]) -> Formula:
    """Return the condition that an index is one of the shape."""
    return conj(*(inside(i, extent) for i, extent in zip(index, shape, strict=True)))


def bind(extents: Sequence[Size], name: str = "k") -> tuple[Index, Binders]:
    """Return new binders that run below the extents: as indices, and as binders."""
    index = tuple(fresh(name) for _ in extents)
    return index, tuple((only_symbol(i), extent) for i, extent in zip(index, extents, strict=True))


def total(
    extents: Sequence[Size], body: Callable[[Index], Value], where: Callable[[Index], Formula] | None = None
) -> Value:
    """Σ of `body` over all indices below the extents (for which `where` holds)."""
    index, binders = bind(extents)
    counts = where(index) if where else TRUE
    with running_over(binders), in_case(counts):
        return summed(guarded(counts, body(index)), binders)


def summed(value: Value, binders: Binders) -> Value:
    """Σ of a value over what is free in it."""
    return collected(Term(t.coefficient, t.factors, binders + t.binders, t.guard) for t in value.terms)


def folded(
    monoid: Monoid, extents: Sequence[Size], body: Callable[[Index], Value], where: Where | None = None
) -> Value:
    """Return the greatest (least, product) of `body` over all indices below the extents (for which `where` holds)."""
    index, binders = bind(extents)
    counts = where(index) if where else TRUE
    with running_over(binders), in_case(counts):
        return fold(monoid, [Piece(binders, counts, body(index))])


def select(condition: Formula, then: Value, otherwise: Value) -> Value:
    """`then` where the condition holds, else `otherwise`."""
    return guarded(condition, then) + guarded(negate(condition), otherwise)


def boolean(condition: Formula) -> Value:
    """Return a truth value: 1 where the condition holds, else 0."""
    return guarded(condition, number(1))


def truth(value: Value) -> Formula:
    """Return the condition of which a value is the truth value."""
    plain = all(t.coefficient == 1 and not t.factors and not t.binders for t in value.terms)
    if plain:
        return disj(*(term.guard for term in value.terms))
    return Fact(call("NotZero", value), True)


def as_size(value: Value) -> Size | None:
    """Return the integer that a value is, where it is made of sizes and indices alone; the inverse of `integer`."""
    total: Size = 0
    for term in value.terms:
        plain = term.guard == TRUE and not term.binders and term.coefficient.denominator == 1
        if not plain or not all(isinstance(factor, Number) for factor in term.factors):
            return None
        part: Size = int(term.coefficient)
        for factor in term.factors:
            part = (factor.of if isinstance(factor, Number) else 1) * part
        total = part + total
    return total
