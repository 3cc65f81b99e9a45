"""Lists of places below an extent, in ascending order, of which nothing else is known: not even how many there are.

Such a list is functions of integers: which place is the `nth`, and in which `order` a place comes. Where it is of the
first places of classes, and maybe of others, there is a third: at which position a place comes that is `alike`.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.base.integers import Atom, Formula, Int, Size, alone, disj, ge, inside, le, lt, made, negate

LISTED = ("nth", "order", "alike")
_UNDOING = (("nth", "order"), ("nth", "alike"), ("order", "nth"))
"""Of which functions the one undoes what the other does, the inner one first."""


@dataclass(frozen=True)
class Places:
    """An ascending list of places, each below an extent."""

    name: Int
    """Tells it from others: it is no number, and nothing is known of it."""
    extent: Size
    count: Size
    """How many there are."""

    def nth(self, position: Size) -> Int:
        """Return the place at a position; 0 where there is none."""
        return alone(made("nth", self.name, self.extent, self.count, position))

    def order(self, place: Size) -> Int:
        """Return the position of a place; of one that is not in the list, how many there are."""
        return alone(made("order", self.name, self.extent, self.count, place))

    def alike(self, place: Size) -> Int:
        """Return the position of the place that stands for a place: its own where it is in the list."""
        return alone(made("alike", self.name, self.extent, self.count, place))

    def has(self, place: Size) -> Formula:
        """Return the condition that a place is in the list."""
        return lt(self.order(place), self.count)

    def __str__(self) -> str:
        return str(self.name)

    @property
    def facts(self) -> tuple[Formula, ...]:
        return ge(self.count), le(self.count, self.extent)


def is_listed(size: Size) -> bool:
    """Return whether a size is a place of a list, or a position in it, which is never negative."""
    if not isinstance(size, Int) or len(size.atoms) != 1:
        return False
    (atom,) = size.atoms
    return atom.kind in LISTED and size == alone(atom)


def listed(atom: Atom) -> tuple[Places, Size]:
    """Return the list of which an atom tells, and the position or the place that it tells of."""
    name, extent, count, subject = atom.args
    return Places(name, extent, count), subject


def definition_of(atom: Atom) -> tuple[Formula, ...]:
    """Return how large an atom may be."""
    places, subject = listed(atom)
    own = alone(atom)
    if atom.kind == "nth":
        return ge(own), disj(negate(inside(subject, places.count)), lt(own, places.extent))
    if atom.kind == "alike":
        return ge(own), le(own, places.count), disj(negate(inside(subject, places.extent)), lt(own, places.count))
    return ge(own), le(own, places.count), disj(ge(own, places.count), inside(subject, places.extent))


def undone(atom: Atom) -> tuple[Size, Formula] | None:
    """Return what undoes itself in an atom, and where: the order of the nth place is n, and the other way round.

    The nth place stands for itself, too, but a place is only alike to the one that stands for it.
    """
    places, subject = listed(atom)
    if not isinstance(subject, Int) or len(subject.atoms) != 1 or subject.terms.get(subject.atoms) != 1:
        return None
    (inner,) = subject.atoms
    if len(subject.terms) != 1 or (inner.kind, atom.kind) not in _UNDOING:
        return None
    others, within = listed(inner)
    if others != places:
        return None
    return within, places.has(within) if atom.kind == "nth" else inside(within, places.count)


def of_the_first(atom: Atom, extent: int, count: int, subject: int) -> int:
    """Return what an atom is where the list is of the first places, and the very first stands for all others.

    An example, of which all that is known holds.
    """
    if 0 <= subject < count:
        return subject
    return 0 if atom.kind == "nth" or (atom.kind == "alike" and 0 <= subject < extent) else count
