"""The one place where the two algebras of sizes meet: those of a model, and those that denotations compute with.

A size of a model (`sizes.Dim`) is kept as long as the model; an integer of a denotation (`integers.Size`) only while
one question is answered, for it is interned, in a session of that question.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.base.integers import And, Atom, Comparison, Fact, Formula, Int, Or, Size, choice, ge, le, symbol
from graphopt.base.integers import quotient as quotient_of
from graphopt.base.integers import remainder as remainder_of
from graphopt.base.rebuilding import Substitution, rebuild, rebuild_formula, solve
from graphopt.base.sizes import Atom as SizeAtom
from graphopt.base.sizes import Dim, Made, Sym, least, lower_bound, product

ENDLESS = 2**31 - 1
"""What exporters write for "to the end", or more: no axis is that long."""


class NotKnown(Exception):
    """What cannot be told of a size, whatever its names stand for."""


class Translation:
    """The sizes of one question, by the symbols that stand for them."""

    def __init__(self) -> None:
        self._symbols: dict[SizeAtom, Int] = {}
        self._sizes: dict[Atom, Dim] = {}

    def inward(self, dim: Dim) -> Size:
        """Return a size as denotations compute with it."""
        if not isinstance(dim, Sym):
            return dim
        total: Size = 0
        for atoms, coefficient in dim.terms:
            part: Size = coefficient
            for atom in atoms:
                part = self._atom_inward(atom) * part
            total = part + total
        return total

    def _atom_inward(self, atom: SizeAtom) -> Size:
        if not isinstance(atom, Made):
            if atom not in self._symbols:
                new = self._symbols[atom] = symbol(f"size {len(self._symbols)}")
                self._sizes[new.atoms[0]] = Sym((((atom,), 1),))
            return self._symbols[atom]
        left, right = self.inward(atom.left), self.inward(atom.right)
        if atom.operation == "min":
            return choice(le(left, right), left, right)
        return quotient_of(left, right) if atom.operation == "//" else remainder_of(left, right)

    def means(self, unknown: Int, dim: Dim) -> None:
        """Say what stands for a symbol that a denotation made."""
        self._sizes[unknown.atoms[0]] = dim

    def outward(self, size: Size) -> Dim:
        """Return an integer of a denotation as a size.

        Raises:
            NotKnown: a part of it has no name, or depends on what names stand for in a way that sizes cannot say.
        """
        if isinstance(size, int):
            return size
        total: Dim = 0
        for monomial, coefficient in size.terms.items():
            total = product([coefficient, *map(self._atom_outward, monomial)]) + total
        return total

    def _atom_outward(self, atom: Atom) -> Dim:
        if atom not in self._sizes:
            self._sizes[atom] = self._made(atom)
        return self._sizes[atom]

    def _made(self, atom: Atom) -> Dim:
        match atom.kind:
            case "symbol":
                raise NotKnown
            case "choice":
                return self._chosen(*atom.args)
            case "nth" | "order" | "alike":  # of a constant's contents: sizes of models are made of sizes
                raise NotKnown
        over, by = map(self.outward, atom.args)
        if (not isinstance(by, int) or by <= 0) and not (is_not_negative(over) and is_not_negative(by)):
            raise NotKnown  # which way it is rounded
        return over // by if atom.kind == "quotient" else over % by

    def _chosen(self, condition: Formula, then: Size, otherwise: Size) -> Dim:
        """Return what a choice is: one of the two, the smaller or the greater one, or what both are."""
        decided = self.decide(condition)
        if decided is not None:
            return self.outward(then if decided else otherwise)
        if not isinstance(condition, Comparison):
            raise NotKnown
        gap = then - otherwise
        if condition.kind == "ge" and isinstance(gap, Int):
            for sign in (1, -1):
                if _same_sign(condition.poly, gap * sign):
                    below = smaller(self.outward(then), self.outward(otherwise))
                    return below if sign < 0 else self.outward(then) + self.outward(otherwise) - below
        if condition.kind == "eq" and (same := _at_zero(condition.poly, gap)) is not None and same == 0:
            return self.outward(otherwise)
        raise NotKnown

    def decide(self, condition: Formula) -> bool | None:
        """Return whether a condition holds whatever the names stand for, None where that depends on it."""
        match condition:
            case And(parts):
                return every(map(self.decide, parts))
            case Or(parts):
                none = every(None if one is None else not one for one in map(self.decide, parts))
                return None if none is None else not none
            case Fact():
                return None
        try:
            size = self.outward(condition.poly)
        except NotKnown:
            return None
        return _compared(condition.kind, size)

    def follows(self, condition: Formula) -> bool:
        """Return whether a condition holds, also by cases: of alternatives, one where another does not hold."""
        if self.decide(condition):
            return True
        match condition:
            case And(parts):
                return all(map(self.follows, parts))
            case Or(parts):
                return any(self._follows_else(part, parts - {part}) for part in parts)
        return False

    def _follows_else(self, denied: Formula, others: frozenset[Formula]) -> bool:
        """Return whether one of the others holds where `denied`, that a size is not 0, does not."""
        if not isinstance(denied, Comparison) or denied.kind != "ne":
            return False
        for atom in denied.poly.atoms:
            if (value := solve(denied.poly, atom)) is not None:
                change = Substitution({atom: value})
                return any(self.decide(rebuild_formula(other, change)) for other in others)
        return False


def every(parts: Iterable[bool | None]) -> bool | None:
    """Return whether all hold, None where that is not known."""
    found = set(parts)
    return False if False in found else None if None in found else True


def is_not_negative(dim: Dim) -> bool:
    """Return whether a size is known to be at least 0."""
    bound = lower_bound(dim)
    return bound is not None and bound >= 0


def _compared(kind: str, dim: Dim) -> bool | None:
    """Return whether a size is at least 0 ("ge"), is 0 ("eq") or is not ("ne"); None where that is not known."""
    if isinstance(dim, Sym):
        far = next((c for atoms, c in dim.terms if not atoms), 0)
        if abs(far) >= ENDLESS - 1:
            dim = far
    above, below = lower_bound(dim), lower_bound(-dim)
    if kind == "ge":
        return True if above is not None and above >= 0 else False if below is not None and below >= 1 else None
    if dim == 0:
        return kind == "eq"
    differs = (above is not None and above >= 1) or (below is not None and below >= 1)
    return kind == "ne" if differs else None


def smaller(one: Dim, other: Dim) -> Dim:
    """Return the smaller one of two integers, made of minima of what is not negative."""
    if is_not_negative(one) and is_not_negative(other):
        return least(one, other)
    gap = one - other
    if isinstance(gap, int):
        return one if gap <= 0 else other
    above = sum_of_terms(gap, 1)
    below = above - gap
    return one - above + least(above, below)


def sum_of_terms(dim: Dim, sign: int) -> Dim:
    """Return the terms of a size whose coefficients have a sign."""
    total: Dim = 0
    for atoms, coefficient in dim.terms if isinstance(dim, Sym) else (((), dim),):
        if coefficient * sign > 0:
            total = (Sym(((atoms, coefficient),)) if atoms else coefficient) + total
    return total


def _same_sign(one: Int, other: Size) -> bool:
    """Return whether `one >= 0` says the same as `other >= 0`, up to where `other` is 0."""
    return any(ge(other, bound) == Comparison("ge", one) for bound in (0, 1))


def _at_zero(poly: Int, size: Size) -> Size | None:
    """Return a size where a polynomial is 0."""
    for atom in poly.atoms:
        if (value := solve(poly, atom)) is not None:
            return rebuild(size, Substitution({atom: value}))
    return None
