"""Some index under which a term reads what another reads, where there are many: the bounds are solved one by one.

A window of a window reads an element in several ways, and one of them is enough for a greatest element. Which one is
derived here, by the elimination of Fourier and Motzkin, and proved by whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import gcd

from graphopt.base.integers import (
    Atom,
    Comparison,
    Formula,
    Int,
    Size,
    choice,
    conjuncts,
    divide,
    ge,
    ordered,
    polynomial,
    quotient,
    symbols,
)
from graphopt.base.rebuilding import Substitution, rebuild, solve
from graphopt.base.symbolic import Binders
from graphopt.verifier.bijections import Map
from graphopt.verifier.context import Context

MOST_BOUNDS = 64
"""The most bounds at once for which an index is looked for."""


def covering_index(
    equations: Iterable[tuple[Size, Size]], unknowns: Binders, bounds: Formula, known: Context
) -> Map | None:
    """Return values of the unknowns for which the equations and the bounds hold, if there are plain ones.

    Equations give what they can; each unknown that is left is the largest of its lower bounds, those included that
    follow from what the others need.
    """
    open_ = [atom for atom, _ in unknowns]
    todo = [_primitive(difference) for a, b in equations if isinstance(difference := b - a, Int)]
    limits = [part.poly for part in ordered(conjuncts(bounds)) if isinstance(part, Comparison) and part.kind == "ge"]
    found: list[tuple[Atom, Size]] = []
    while (step := _solved(todo, open_)) is not None:
        found.append(step)
        open_.remove(step[0])
        todo, limits = ([new for old in polys if (new := _put(old, *step)) is not None] for polys in (todo, limits))
    if not open_:
        return None  # what equations alone give is derived elsewhere
    for atom in open_:
        lower, upper, limits = _parted(limits, atom)
        if not lower or len(lower) * len(upper) + len(limits) > MOST_BOUNDS:
            return None
        found.append((atom, _largest([quotient(-rest + by - 1, by) for by, rest in lower], known)))
        limits += [
            both
            for by, rest in lower
            for other, remaining in upper
            if isinstance(both := other * rest + by * remaining, Int)
        ]
    values: dict[Atom, Size] = {}
    for atom, size in reversed(found):
        values[atom] = known.simplify(rebuild(size, Substitution(values)))
    return values


def _primitive(poly: Int) -> Int:
    """Return a polynomial without the factor that all its terms have in common."""
    first, *others = poly.terms
    shared = [atom for atom in dict.fromkeys(first) if all(atom in monomial for monomial in others)]
    smaller = divide(poly, polynomial({tuple(shared): gcd(*poly.terms.values())}))
    return smaller if isinstance(smaller, Int) else poly


def _solved(equations: Sequence[Int], unknowns: Sequence[Atom]) -> tuple[Atom, Size] | None:
    """Return an unknown that an equation gives, by what is given and by other unknowns."""
    for poly in equations:
        for atom in poly.atoms:
            if atom in unknowns and (solution := solve(poly, atom)) is not None:
                return atom, solution
    return None


def _put(poly: Int, atom: Atom, size: Size) -> Int | None:
    new = rebuild(poly, Substitution({atom: size}))
    return new if isinstance(new, Int) else None


def _parted(limits: Iterable[Int], atom: Atom) -> tuple[list[tuple[int, Size]], list[tuple[int, Size]], list[Int]]:
    """Return what bounds an unknown from below, and from above, as a multiple and the rest; and what does not.

    A bound in which the unknown is multiplied with a size, or divided, is left out: what is derived is proved.
    """
    lower: list[tuple[int, Size]] = []
    upper: list[tuple[int, Size]] = []
    others = []
    for poly in limits:
        by = poly.terms.get((atom,), 0)
        rest = poly - Int({(atom,): by}) if by else poly
        if atom in symbols(rest):
            continue
        if by:
            (lower if by > 0 else upper).append((abs(by), rest))
        else:
            others.append(poly)
    return lower, upper, others


def _largest(sizes: Iterable[Size], known: Context) -> Size:
    """Return the largest of some sizes, without those that are plainly no larger than another."""
    largest: list[Size] = []
    for size in dict.fromkeys(map(known.simplify, sizes)):
        if any(known.proves(ge(other, size)) for other in largest):
            continue
        largest = [other for other in largest if not known.proves(ge(size, other))] + [size]
    return reduce(lambda a, b: choice(ge(a, b), a, b), largest)
