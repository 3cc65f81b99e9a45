"""Tensors as functions of indices, in which denotations are written.

An element of a tensor is a value (`expressions.py`): a sum, a choice, a fold, at an index that is symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.expressions import (
    Binders,
    Expr,
    FoldBranch,
    Index,
    IntegerValue,
    Monoid,
    TensorArgument,
    Term,
    add_terms,
    call_function,
    constant,
    fold,
    guard_expr,
)
from graphopt.expr.integers import (
    TRUE,
    BooleanAtom,
    Formula,
    Size,
    conjunction,
    disjunction,
    fresh_symbol,
    in_range,
    negate,
)
from graphopt.expr.partial_calls import under_binders, under_guard
from graphopt.expr.substitution import single_symbol

IndexCondition: TypeAlias = "Callable[[Index], Formula]"


@dataclass(frozen=True, eq=False)
class SymbolicTensor:
    """A shape, and the element at each index. Outside of its shape a tensor has no elements: who reads guards."""

    shape: tuple[Size, ...]
    element: Callable[[Index], Expr]
    dtype: DType = DType.UNDEFINED
    value_dtype: DType = DType.UNDEFINED
    """A type that holds all its elements, narrower than its own after a cast that loses nothing."""
    view_of: SymbolicTensor | None = None
    """A tensor that has the same elements in the same (row-major) order, where this one is another view of it."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def base(self) -> SymbolicTensor:
        """The tensor that it is a view of, or itself."""
        return self.view_of or self

    def with_dtype(self, dtype: DType, values: DType = DType.UNDEFINED) -> SymbolicTensor:
        """Return the same of an element type, with one that holds all elements if that is said."""
        return SymbolicTensor(self.shape, self.element, dtype, values or self.value_dtype or dtype, self.view_of)

    def as_argument(self) -> TensorArgument:
        """Return it as an argument of an opaque operator."""
        index, binders = bind_indices(self.shape, "i")
        with under_binders(binders):
            return TensorArgument(self.shape, tuple(map(single_symbol, index)), self.element(index))


def in_bounds(index: Index, shape: Sequence[Size]) -> Formula:
    """Return the condition that an index is one of the shape."""
    return conjunction(*(in_range(i, extent) for i, extent in zip(index, shape, strict=True)))


def bind_indices(extents: Sequence[Size], name: str = "k") -> tuple[Index, Binders]:
    """Return new binders that run below the extents: as indices, and as binders."""
    index = tuple(fresh_symbol(name) for _ in extents)
    return index, tuple((single_symbol(i), extent) for i, extent in zip(index, extents, strict=True))


def sum_over(
    extents: Sequence[Size], body: Callable[[Index], Expr], where: Callable[[Index], Formula] | None = None
) -> Expr:
    """Σ of `body` over all indices below the extents (for which `where` holds)."""
    index, binders = bind_indices(extents)
    counts = where(index) if where else TRUE
    with under_binders(binders), under_guard(counts):
        return sum_over_binders(guard_expr(counts, body(index)), binders)


def sum_over_binders(value: Expr, binders: Binders) -> Expr:
    """Σ of a value over what is free in it."""
    return add_terms(Term(t.coefficient, t.factors, binders + t.binders, t.guard) for t in value.terms)


def fold_over(
    monoid: Monoid, extents: Sequence[Size], body: Callable[[Index], Expr], where: IndexCondition | None = None
) -> Expr:
    """Return the greatest (least, product) of `body` over all indices below the extents (for which `where` holds)."""
    index, binders = bind_indices(extents)
    counts = where(index) if where else TRUE
    with under_binders(binders), under_guard(counts):
        return fold(monoid, [FoldBranch(binders, counts, body(index))])


def select_expr(condition: Formula, then: Expr, otherwise: Expr) -> Expr:
    """`then` where the condition holds, else `otherwise`."""
    return guard_expr(condition, then) + guard_expr(negate(condition), otherwise)


def truth_value(condition: Formula) -> Expr:
    """Return a truth value: 1 where the condition holds, else 0."""
    return guard_expr(condition, constant(1))


def truth_condition(value: Expr) -> Formula:
    """Return the condition of which a value is the truth value."""
    plain = all(t.coefficient == 1 and not t.factors and not t.binders for t in value.terms)
    if plain:
        return disjunction(*(term.guard for term in value.terms))
    return BooleanAtom(call_function("NotZero", value), True)


def as_integer(value: Expr) -> Size | None:
    """Return the integer that a value is, where it is made of sizes and indices alone; the inverse of `integer`."""
    total: Size = 0
    for term in value.terms:
        plain = term.guard == TRUE and not term.binders and term.coefficient.denominator == 1
        if not plain or not all(isinstance(factor, IntegerValue) for factor in term.factors):
            return None
        part: Size = int(term.coefficient)
        for factor in term.factors:
            part = (factor.integer if isinstance(factor, IntegerValue) else 1) * part
        total = part + total
    return total
