"""The one place where the two algebras of sizes meet: those of a model, and those that denotations compute with.

A size of a model (`dims.Dim`) is kept as long as the model; an integer of a denotation (`integers.Size`) only while
one question is answered, for it is interned, in a session of that question.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.expr.dims import DerivedAtom, Dim, SymbolicDim, dim_product, is_nonnegative_dim, lower_bound, min_dim
from graphopt.expr.dims import DimAtom as SizeAtom
from graphopt.expr.integers import (
    And,
    Atom,
    BooleanAtom,
    Comparison,
    Formula,
    Or,
    Polynomial,
    Size,
    ge,
    if_then_else,
    le,
    symbol,
)
from graphopt.expr.integers import quotient as quotient_of
from graphopt.expr.integers import remainder as remainder_of
from graphopt.expr.substitution import Substitution, replace_atoms, replace_in_formula, solve_for_atom

SLICE_TO_END = 2**31 - 1
"""Value from which on exporters mean "to the end": no axis is that long."""


class UndecidedError(Exception):
    """A question about a size whose answer depends on what its names stand for."""


class DimTranslation:
    """The sizes of one question, by the symbols that stand for them."""

    def __init__(self) -> None:
        self._symbols: dict[SizeAtom, Polynomial] = {}
        self._sizes: dict[Atom, Dim] = {}

    def to_int(self, dim: Dim) -> Size:
        """Return a size as denotations compute with it."""
        if not isinstance(dim, SymbolicDim):
            return dim
        total: Size = 0
        for atoms, coefficient in dim.terms:
            part: Size = coefficient
            for atom in atoms:
                part = self._atom_to_int(atom) * part
            total = part + total
        return total

    def _atom_to_int(self, atom: SizeAtom) -> Size:
        if not isinstance(atom, DerivedAtom):
            if atom not in self._symbols:
                new = self._symbols[atom] = symbol(f"size {len(self._symbols)}")
                self._sizes[new.atoms[0]] = SymbolicDim((((atom,), 1),))
            return self._symbols[atom]
        left, right = self.to_int(atom.left), self.to_int(atom.right)
        if atom.operation == "min":
            return if_then_else(le(left, right), left, right)
        return quotient_of(left, right) if atom.operation == "//" else remainder_of(left, right)

    def bind(self, unknown: Polynomial, dim: Dim) -> None:
        """Say what stands for a symbol that a denotation made."""
        self._sizes[unknown.atoms[0]] = dim

    def to_dim(self, size: Size) -> Dim:
        """Return an integer of a denotation as a size.

        Raises:
            UndecidedError: a part of it has no name, or depends on what names stand for in a way that sizes cannot say.
        """
        if isinstance(size, int):
            return size
        total: Dim = 0
        for monomial, coefficient in size.terms.items():
            total = dim_product([coefficient, *map(self._atom_to_dim, monomial)]) + total
        return total

    def _atom_to_dim(self, atom: Atom) -> Dim:
        if atom not in self._sizes:
            self._sizes[atom] = self._unbound_atom_to_dim(atom)
        return self._sizes[atom]

    def _unbound_atom_to_dim(self, atom: Atom) -> Dim:
        match atom.kind:
            case "symbol":
                raise UndecidedError
            case "choice":
                return self._choice_to_dim(*atom.args)
            case "select" | "rank" | "representative":  # of a constant's contents: sizes of models are made of sizes
                raise UndecidedError
        over, by = map(self.to_dim, atom.args)
        if (not isinstance(by, int) or by <= 0) and not (is_nonnegative_dim(over) and is_nonnegative_dim(by)):
            raise UndecidedError  # which way it is rounded
        return over // by if atom.kind == "quotient" else over % by

    def _choice_to_dim(self, condition: Formula, then: Size, otherwise: Size) -> Dim:
        """Return a choice as a size: one of the two, the smaller or the greater one, or the value that both have."""
        decided = self.decide(condition)
        if decided is not None:
            return self.to_dim(then if decided else otherwise)
        if not isinstance(condition, Comparison):
            raise UndecidedError
        gap = then - otherwise
        if condition.kind == "ge" and isinstance(gap, Polynomial):
            for sign in (1, -1):
                if _have_same_sign(condition.poly, gap * sign):
                    below = min_signed_dim(self.to_dim(then), self.to_dim(otherwise))
                    return below if sign < 0 else self.to_dim(then) + self.to_dim(otherwise) - below
        if condition.kind == "eq" and (same := _substitute_zero(condition.poly, gap)) is not None and same == 0:
            return self.to_dim(otherwise)
        raise UndecidedError

    def decide(self, condition: Formula) -> bool | None:
        """Return whether a condition holds whatever the names stand for, None where that depends on it."""
        match condition:
            case And(parts):
                return kleene_all(map(self.decide, parts))
            case Or(parts):
                none = kleene_all(None if one is None else not one for one in map(self.decide, parts))
                return None if none is None else not none
            case BooleanAtom():
                return None
        try:
            size = self.to_dim(condition.poly)
        except UndecidedError:
            return None
        return _compare_to_zero(condition.kind, size)

    def is_implied(self, condition: Formula) -> bool:
        """Return whether a condition holds, also by cases: of alternatives, one where another does not hold."""
        if self.decide(condition):
            return True
        match condition:
            case And(parts):
                return all(map(self.is_implied, parts))
            case Or(parts):
                return any(self._is_implied_by_cases(part, parts - {part}) for part in parts)
        return False

    def _is_implied_by_cases(self, denied: Formula, others: frozenset[Formula]) -> bool:
        """Return whether one of the others holds where `denied`, that a size is not 0, does not."""
        if not isinstance(denied, Comparison) or denied.kind != "ne":
            return False
        for atom in denied.poly.atoms:
            if (value := solve_for_atom(denied.poly, atom)) is not None:
                change = Substitution({atom: value})
                return any(self.decide(replace_in_formula(other, change)) for other in others)
        return False


def kleene_all(parts: Iterable[bool | None]) -> bool | None:
    """Return whether all hold, None where that is not known."""
    found = set(parts)
    return False if False in found else None if None in found else True


def _compare_to_zero(kind: str, dim: Dim) -> bool | None:
    """Return whether a size is at least 0 ("ge"), is 0 ("eq") or is not ("ne"); None where that is not known."""
    if isinstance(dim, SymbolicDim):
        far = next((c for atoms, c in dim.terms if not atoms), 0)
        if abs(far) >= SLICE_TO_END - 1:
            dim = far
    above, below = lower_bound(dim), lower_bound(-dim)
    if kind == "ge":
        return True if above is not None and above >= 0 else False if below is not None and below >= 1 else None
    if dim == 0:
        return kind == "eq"
    differs = (above is not None and above >= 1) or (below is not None and below >= 1)
    return kind == "ne" if differs else None


def min_signed_dim(one: Dim, other: Dim) -> Dim:
    """Return the smaller one of two integers, made of minima of what is not negative."""
    if is_nonnegative_dim(one) and is_nonnegative_dim(other):
        return min_dim(one, other)
    gap = one - other
    if isinstance(gap, int):
        return one if gap <= 0 else other
    above = terms_with_sign(gap, 1)
    below = above - gap
    return one - above + min_dim(above, below)


def terms_with_sign(dim: Dim, sign: int) -> Dim:
    """Return the terms of a size whose coefficients have a sign."""
    total: Dim = 0
    for atoms, coefficient in dim.terms if isinstance(dim, SymbolicDim) else (((), dim),):
        if coefficient * sign > 0:
            total = (SymbolicDim(((atoms, coefficient),)) if atoms else coefficient) + total
    return total


def _have_same_sign(one: Polynomial, other: Size) -> bool:
    """Return whether `one >= 0` says the same as `other >= 0`, up to where `other` is 0."""
    return any(ge(other, bound) == Comparison("ge", one) for bound in (0, 1))


def _substitute_zero(poly: Polynomial, size: Size) -> Size | None:
    """Return a size where a polynomial is 0."""
    for atom in poly.atoms:
        if (value := solve_for_atom(poly, atom)) is not None:
            return replace_atoms(size, Substitution({atom: value}))
    return None
