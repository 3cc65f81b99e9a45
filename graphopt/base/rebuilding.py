"""Integers and formulas with their atoms replaced, evaluated or solved for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.base.integers import (
    COMPOSITE,
    FALSE,
    NOTHING,
    TRUE,
    And,
    Atom,
    Change,
    Fact,
    Formula,
    Int,
    Or,
    Size,
    alone,
    choice,
    conj,
    disj,
    eq,
    ge,
    inside,
    made,
    negate,
    ordered,
    polynomial,
    product,
    quotient,
    remainder,
)
from graphopt.base.places import LISTED, definition_of, of_the_first
from graphopt.base.session import memoized


def rebuild(size: Size, change: Change) -> Size:
    """Return the polynomial with its atoms replaced."""
    if isinstance(size, int) or not change.touches(size.names):
        return size
    changed = {atom: new for atom in size.atoms if (new := change.replacement(atom)) is not None}
    if not changed:
        return size
    total: Size = polynomial({m: c for m, c in size.terms.items() if changed.keys().isdisjoint(m)})
    for monomial, coefficient in size.terms.items():
        if not changed.keys().isdisjoint(monomial):
            total = product([coefficient, *(changed.get(a, alone(a)) for a in monomial)]) + total
    return total


def rebuild_formula(part: Formula, change: Change) -> Formula:
    if not change.touches(part.names):
        return part
    match part:
        case And(parts):
            return conj(*(rebuild_formula(p, change) for p in ordered(parts)))
        case Or(parts):
            return disj(*(rebuild_formula(p, change) for p in ordered(parts)))
        case Fact(subject, holds):
            new = subject.rebuild(change)
            return part if new == subject else Fact(new, holds)
    poly = rebuild(part.poly, change)
    if poly is part.poly:
        return part
    return ge(poly) if part.kind == "ge" else eq(poly) if part.kind == "eq" else negate(eq(poly))


class Substitution:
    """Replaces symbols, also inside quotients, remainders, choices and places of lists."""

    def __init__(self, mapping: Mapping[Atom, Size]) -> None:
        self._mapping = mapping
        self._names = {atom if atom.kind == "symbol" else COMPOSITE for atom in mapping}
        self._memo: dict[Atom, Size | None] = {}

    def touches(self, names: frozenset[Atom]) -> bool:
        return not names.isdisjoint(self._names)

    def replacement(self, atom: Atom) -> Size | None:
        if atom.kind == "symbol" or atom in self._mapping:
            return self._mapping.get(atom)
        if atom not in self._memo:
            self._memo[atom] = remake(atom, self)
        return self._memo[atom]


def remake(atom: Atom, change: Change) -> Size | None:
    """Return a composite atom with its parts rebuilt; None where nothing changes."""
    if atom.kind == "choice":
        condition, then, otherwise = atom.args
        parts = (rebuild_formula(condition, change), rebuild(then, change), rebuild(otherwise, change))
        return None if parts == atom.args else choice(*parts)
    if atom.kind in LISTED:
        rebuilt = tuple(rebuild(arg, change) for arg in atom.args)
        return None if rebuilt == atom.args else alone(made(atom.kind, *rebuilt))
    over, by = rebuild(atom.args[0], change), rebuild(atom.args[1], change)
    if (over, by) == atom.args:
        return None
    if by == 0:
        return None  # no number: whoever divides is asked to show that it never happens
    return quotient(over, by) if atom.kind == "quotient" else remainder(over, by)


def value_of(size: Size, known: Mapping[Any, int]) -> int:
    """Return the number that a polynomial is, all symbols known."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms.items():
        for atom in monomial:
            coefficient *= _value(atom, known)
        total += coefficient
    return total


def _value(atom: Atom, known: Mapping[Any, int]) -> int:
    match atom.kind:
        case "symbol":
            return known[atom]
        case "choice":
            condition, then, otherwise = atom.args
            return value_of(then if truth_of(condition, known) else otherwise, known)
        case "nth" | "order" | "alike":
            _, extent, count, subject = atom.args
            return of_the_first(atom, *(value_of(arg, known) for arg in (extent, count, subject)))
    over, by = (value_of(arg, known) for arg in atom.args)
    return over // by if atom.kind == "quotient" else over % by


def truth_of(part: Formula, known: Mapping[Any, int]) -> bool:
    match part:
        case And(parts):
            return all(truth_of(p, known) for p in parts)
        case Or(parts):
            return any(truth_of(p, known) for p in parts)
        case Fact(subject, holds):
            return bool(known[subject]) == holds
    value = value_of(part.poly, known)
    return value >= 0 if part.kind == "ge" else (value == 0) == (part.kind == "eq")


def only_symbol(size: Size) -> Atom:
    assert isinstance(size, Int)
    (atom,) = size.atoms
    return atom


def solve(poly: Int, atom: Atom) -> Size | None:
    """Return the value of an atom that makes `poly` zero, where it occurs once, with coefficient 1 or -1."""
    coefficient = poly.terms.get((atom,), 0)
    if abs(coefficient) != 1:
        return None
    rest = polynomial({m: c for m, c in poly.terms.items() if m != (atom,)})
    names = NOTHING if isinstance(rest, int) else rest.names
    return None if atom in names or (atom.kind != "symbol" and COMPOSITE in names) else rest * -coefficient


@memoized
def definition(atom: Atom) -> tuple[Formula, ...]:
    """Return what is known of an atom by its parts: which quotient or remainder it is, or how large a place may be.

    By zero nothing is divided.
    """
    if atom.kind in LISTED:
        return definition_of(atom)
    over, by = atom.args
    own = alone(atom)
    rest = over - own * by if atom.kind == "quotient" else own
    small = disj(ge(-by), inside(rest, by))
    negative = disj(ge(by), conj(ge(-rest), ge(rest, by + 1)))
    if atom.kind == "quotient":
        return small, negative
    whole = alone(made("quotient", over, by))
    return small, negative, disj(eq(by), eq(over, whole * by + own))


def formula(part: bool | Formula) -> Formula:
    """Return a truth value of either kind as a formula."""
    if isinstance(part, bool):
        return TRUE if part else FALSE
    return part
