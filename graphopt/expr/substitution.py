"""Integers and formulas with their atoms replaced, evaluated or solved for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from graphopt.base.session import memoized
from graphopt.expr.index_lists import INDEX_LIST_KINDS, evaluate_for_prefix, index_bounds
from graphopt.expr.integers import (
    COMPOSITE,
    FALSE,
    NO_SYMBOLS,
    TRUE,
    And,
    Atom,
    BooleanAtom,
    Formula,
    Or,
    Polynomial,
    Replacement,
    Size,
    conjunction,
    disjunction,
    eq,
    ge,
    if_then_else,
    in_creation_order,
    in_range,
    make_atom,
    negate,
    polynomial,
    polynomial_of_atom,
    product,
    quotient,
    remainder,
)


def replace_atoms(size: Size, change: Replacement) -> Size:
    """Return the polynomial with its atoms replaced."""
    if isinstance(size, int) or not change.may_change(size.mentioned_symbols):
        return size
    changed = {atom: new for atom in size.atoms if (new := change.replace(atom)) is not None}
    if not changed:
        return size
    total: Size = polynomial({m: c for m, c in size.terms.items() if changed.keys().isdisjoint(m)})
    for monomial, coefficient in size.terms.items():
        if not changed.keys().isdisjoint(monomial):
            total = product([coefficient, *(changed.get(a, polynomial_of_atom(a)) for a in monomial)]) + total
    return total


def replace_in_formula(part: Formula, change: Replacement) -> Formula:
    if not change.may_change(part.mentioned_symbols):
        return part
    match part:
        case And(parts):
            return conjunction(*(replace_in_formula(p, change) for p in in_creation_order(parts)))
        case Or(parts):
            return disjunction(*(replace_in_formula(p, change) for p in in_creation_order(parts)))
        case BooleanAtom(subject, holds):
            new = subject.replace_atoms(change)
            return part if new == subject else BooleanAtom(new, holds)
    poly = replace_atoms(part.poly, change)
    if poly is part.poly:
        return part
    return ge(poly) if part.kind == "ge" else eq(poly) if part.kind == "eq" else negate(eq(poly))


class Substitution:
    """Replaces symbols, also inside quotients, remainders, choices and places of lists."""

    def __init__(self, mapping: Mapping[Atom, Size]) -> None:
        self._mapping = mapping
        self._names = {atom if atom.kind == "symbol" else COMPOSITE for atom in mapping}
        self._memo: dict[Atom, Size | None] = {}

    def may_change(self, names: frozenset[Atom]) -> bool:
        return not names.isdisjoint(self._names)

    def replace(self, atom: Atom) -> Size | None:
        if atom.kind == "symbol" or atom in self._mapping:
            return self._mapping.get(atom)
        if atom not in self._memo:
            self._memo[atom] = replace_in_atom(atom, self)
        return self._memo[atom]


def replace_in_atom(atom: Atom, change: Replacement) -> Size | None:
    """Return a composite atom with its parts rebuilt; None where nothing changes."""
    if atom.kind == "choice":
        condition, then, otherwise = atom.args
        parts = (replace_in_formula(condition, change), replace_atoms(then, change), replace_atoms(otherwise, change))
        return None if parts == atom.args else if_then_else(*parts)
    if atom.kind in INDEX_LIST_KINDS:
        rebuilt = tuple(replace_atoms(arg, change) for arg in atom.args)
        return None if rebuilt == atom.args else polynomial_of_atom(make_atom(atom.kind, *rebuilt))
    over, by = replace_atoms(atom.args[0], change), replace_atoms(atom.args[1], change)
    if (over, by) == atom.args:
        return None
    if by == 0:
        return None  # no number: whoever divides is asked to show that it never happens
    return quotient(over, by) if atom.kind == "quotient" else remainder(over, by)


@dataclass(frozen=True)
class IntegerEvaluation:
    """Integers and formulas with numbers put in for their symbols."""

    symbols: Mapping[Any, Any] = field(default_factory=dict)

    def integer(self, size: Size) -> Any:
        """Return the number that a polynomial is."""
        if isinstance(size, int):
            return size
        return sum(c * prod(map(self.atom, monomial)) for monomial, c in size.terms.items())

    def atom(self, atom: Atom) -> Any:
        match atom.kind:
            case "symbol":
                return self.symbols[atom]
            case "choice":
                return self.choose(*atom.args)
            case "select" | "rank" | "representative":
                return evaluate_for_prefix(atom, *map(self.integer, atom.args[1:]))
        over, by = map(self.integer, atom.args)
        return over // by if atom.kind == "quotient" else over % by

    def choose(self, condition: Formula, then: Size, otherwise: Size) -> Any:
        return self.integer(then if self.holds(condition) else otherwise)

    def holds(self, part: Formula) -> Any:
        """Return whether a formula holds."""
        match part:
            case And(parts):
                return self.all_hold(parts)
            case Or(parts):
                return self.any_holds(parts)
            case BooleanAtom():
                return self.value_holds(part)
        number = self.integer(part.poly)
        return number >= 0 if part.kind == "ge" else (number == 0) == (part.kind == "eq")

    def all_hold(self, parts: Iterable[Formula]) -> Any:
        return all(map(self.holds, parts))

    def any_holds(self, parts: Iterable[Formula]) -> Any:
        return any(map(self.holds, parts))

    def value_holds(self, atom: BooleanAtom) -> Any:
        return bool(self.symbols[atom.subject]) == atom.holds


def single_symbol(size: Size) -> Atom:
    assert isinstance(size, Polynomial)
    (atom,) = size.atoms
    return atom


def solve_for_atom(poly: Polynomial, atom: Atom) -> Size | None:
    """Return the value of an atom that makes `poly` zero, where it occurs once, with coefficient 1 or -1."""
    coefficient = poly.terms.get((atom,), 0)
    if abs(coefficient) != 1:
        return None
    rest = polynomial({m: c for m, c in poly.terms.items() if m != (atom,)})
    names = NO_SYMBOLS if isinstance(rest, int) else rest.mentioned_symbols
    return None if atom in names or (atom.kind != "symbol" and COMPOSITE in names) else rest * -coefficient


@memoized
def defining_formulas(atom: Atom) -> tuple[Formula, ...]:
    """Return what is known of an atom by its parts: which quotient or remainder it is, or how large a place may be.

    By zero nothing is divided.
    """
    if atom.kind in INDEX_LIST_KINDS:
        return index_bounds(atom)
    over, by = atom.args
    own = polynomial_of_atom(atom)
    rest = over - own * by if atom.kind == "quotient" else own
    small = disjunction(ge(-by), in_range(rest, by))
    negative = disjunction(ge(by), conjunction(ge(-rest), ge(rest, by + 1)))
    if atom.kind == "quotient":
        return small, negative
    whole = polynomial_of_atom(make_atom("quotient", over, by))
    return small, negative, disjunction(eq(by), eq(over, whole * by + own))


def as_formula(part: bool | Formula) -> Formula:
    """Return a truth value of either kind as a formula."""
    if isinstance(part, bool):
        return TRUE if part else FALSE
    return part
