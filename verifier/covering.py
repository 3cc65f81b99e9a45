"""An index at which one term reads the element that another term reads, where there are several such indices.

Overlapping windows read an element more than once, and one occurrence is enough for a maximum. The index is derived
here, by Fourier–Motzkin elimination of the bounds; the caller proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import gcd

from graphopt.expr.expressions import Binders
from graphopt.expr.integers import (
    Atom,
    Comparison,
    Formula,
    Polynomial,
    Size,
    conjuncts,
    exact_quotient,
    free_symbols,
    ge,
    if_then_else,
    in_creation_order,
    polynomial,
    quotient,
)
from graphopt.expr.substitution import Substitution, replace_atoms, solve_for_atom
from graphopt.verifier.bijections import BinderMap
from graphopt.verifier.context import ProofContext

MOST_BOUNDS = 64
"""The most bounds at once for which an index is looked for."""


def covering_index(
    equations: Iterable[tuple[Size, Size]], unknowns: Binders, bounds: Formula, known: ProofContext
) -> BinderMap | None:
    """Return values of the unknowns that satisfy the equations and the bounds; None if no simple ones are found.

    Equations are solved first. Each unknown that remains becomes the largest of its lower bounds, those included that
    follow from the bounds of the others.
    """
    open_ = [atom for atom, _ in unknowns]
    todo = [_primitive(difference) for a, b in equations if isinstance(difference := b - a, Polynomial)]
    limits = [
        part.poly for part in in_creation_order(conjuncts(bounds)) if isinstance(part, Comparison) and part.kind == "ge"
    ]
    found: list[tuple[Atom, Size]] = []
    while (step := _solve_next(todo, open_)) is not None:
        found.append(step)
        open_.remove(step[0])
        todo, limits = (
            [new for old in polys if (new := _substitute(old, *step)) is not None] for polys in (todo, limits)
        )
    if not open_:
        return None  # what equations alone give is derived elsewhere
    for atom in open_:
        lower, upper, limits = _split_bounds(limits, atom)
        if not lower or len(lower) * len(upper) + len(limits) > MOST_BOUNDS:
            return None
        found.append((atom, _largest([quotient(-rest + by - 1, by) for by, rest in lower], known)))
        limits += [
            both
            for by, rest in lower
            for other, remaining in upper
            if isinstance(both := other * rest + by * remaining, Polynomial)
        ]
    values: dict[Atom, Size] = {}
    for atom, size in reversed(found):
        values[atom] = known.simplify(replace_atoms(size, Substitution(values)))
    return values


def _primitive(poly: Polynomial) -> Polynomial:
    """Return a polynomial without the factor that all its terms have in common."""
    first, *others = poly.terms
    shared = [atom for atom in dict.fromkeys(first) if all(atom in monomial for monomial in others)]
    smaller = exact_quotient(poly, polynomial({tuple(shared): gcd(*poly.terms.values())}))
    return smaller if isinstance(smaller, Polynomial) else poly


def _solve_next(equations: Sequence[Polynomial], unknowns: Sequence[Atom]) -> tuple[Atom, Size] | None:
    """Return an unknown that an equation gives, by what is given and by other unknowns."""
    for poly in equations:
        for atom in poly.atoms:
            if atom in unknowns and (solution := solve_for_atom(poly, atom)) is not None:
                return atom, solution
    return None


def _substitute(poly: Polynomial, atom: Atom, size: Size) -> Polynomial | None:
    new = replace_atoms(poly, Substitution({atom: size}))
    return new if isinstance(new, Polynomial) else None


def _split_bounds(
    limits: Iterable[Polynomial], atom: Atom
) -> tuple[list[tuple[int, Size]], list[tuple[int, Size]], list[Polynomial]]:
    """Return what bounds an unknown from below, and from above, as a multiple and the rest; and what does not.

    A bound in which the unknown is multiplied with a size, or divided, is left out: what is derived is proved.
    """
    lower: list[tuple[int, Size]] = []
    upper: list[tuple[int, Size]] = []
    others = []
    for poly in limits:
        by = poly.terms.get((atom,), 0)
        rest = poly - Polynomial({(atom,): by}) if by else poly
        if atom in free_symbols(rest):
            continue
        if by:
            (lower if by > 0 else upper).append((abs(by), rest))
        else:
            others.append(poly)
    return lower, upper, others


def _largest(sizes: Iterable[Size], known: ProofContext) -> Size:
    """Return the largest of some sizes, without those that are plainly no larger than another."""
    largest: list[Size] = []
    for size in dict.fromkeys(map(known.simplify, sizes)):
        if any(known.proves(ge(other, size)) for other in largest):
            continue
        largest = [other for other in largest if not known.proves(ge(size, other))] + [size]
    return reduce(lambda a, b: if_then_else(ge(a, b), a, b), largest)
