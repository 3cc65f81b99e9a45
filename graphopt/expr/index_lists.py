"""Ascending lists of indices below an extent, of which nothing else is known: not even how many there are.

A list stands for functions of integers: `select` gives the index at a position, `rank` the position of an index. Where
it holds the first index of each class of equal elements, `representative` gives the position of the one that stands for
an index.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.expr.integers import (
    Atom,
    Formula,
    Polynomial,
    Size,
    disjunction,
    ge,
    in_range,
    le,
    lt,
    make_atom,
    negate,
    polynomial_of_atom,
)

INDEX_LIST_KINDS = ("select", "rank", "representative")
_INVERSES = (("select", "rank"), ("select", "representative"), ("rank", "select"))
"""Pairs of functions of which the one undoes the other, the inner one first."""


@dataclass(frozen=True)
class IndexList:
    """An ascending list of places, each below an extent."""

    name: Polynomial
    """Tells it from others: it is no number, and nothing is known of it."""
    extent: Size
    count: Size
    """Number of indices in the list."""

    def select(self, position: Size) -> Polynomial:
        """Return the place at a position; 0 where there is none."""
        return polynomial_of_atom(make_atom("select", self.name, self.extent, self.count, position))

    def rank(self, place: Size) -> Polynomial:
        """Return the position of a place; of one that is not in the list, how many there are."""
        return polynomial_of_atom(make_atom("rank", self.name, self.extent, self.count, place))

    def representative(self, place: Size) -> Polynomial:
        """Return the position of the place that stands for a place: its own where it is in the list."""
        return polynomial_of_atom(make_atom("representative", self.name, self.extent, self.count, place))

    def contains(self, place: Size) -> Formula:
        """Return the condition that a place is in the list."""
        return lt(self.rank(place), self.count)

    def __str__(self) -> str:
        return str(self.name)

    @property
    def facts(self) -> tuple[Formula, ...]:
        return ge(self.count), le(self.count, self.extent)


def is_index_list_atom(size: Size) -> bool:
    """Return whether a size is a place of a list, or a position in it, which is never negative."""
    if not isinstance(size, Polynomial) or len(size.atoms) != 1:
        return False
    (atom,) = size.atoms
    return atom.kind in INDEX_LIST_KINDS and size == polynomial_of_atom(atom)


def index_list_of(atom: Atom) -> tuple[IndexList, Size]:
    """Return the list of which an atom tells, and the position or the place that it tells of."""
    name, extent, count, subject = atom.args
    return IndexList(name, extent, count), subject


def index_bounds(atom: Atom) -> tuple[Formula, ...]:
    """Return how large an atom may be."""
    places, subject = index_list_of(atom)
    own = polynomial_of_atom(atom)
    if atom.kind == "select":
        return ge(own), disjunction(negate(in_range(subject, places.count)), lt(own, places.extent))
    if atom.kind == "representative":
        return (
            ge(own),
            le(own, places.count),
            disjunction(negate(in_range(subject, places.extent)), lt(own, places.count)),
        )
    return ge(own), le(own, places.count), disjunction(ge(own, places.count), in_range(subject, places.extent))


def cancel_inverse(atom: Atom) -> tuple[Size, Formula] | None:
    """Return what undoes itself in an atom, and where: the order of the nth place is n, and the other way round.

    The nth place stands for itself, too, but a place is only alike to the one that stands for it.
    """
    places, subject = index_list_of(atom)
    if not isinstance(subject, Polynomial) or len(subject.atoms) != 1 or subject.terms.get(subject.atoms) != 1:
        return None
    (inner,) = subject.atoms
    if len(subject.terms) != 1 or (inner.kind, atom.kind) not in _INVERSES:
        return None
    others, within = index_list_of(inner)
    if others != places:
        return None
    return within, places.contains(within) if atom.kind == "select" else in_range(within, places.count)


def evaluate_for_prefix(atom: Atom, extent: int, count: int, subject: int) -> int:
    """Return what an atom is where the list is of the first places, and the very first stands for all others.

    An example, of which all that is known holds.
    """
    if 0 <= subject < count:
        return subject
    return 0 if atom.kind == "select" or (atom.kind == "representative" and 0 <= subject < extent) else count
