"""Sizes: polynomials with integer coefficients over atoms, so that `2*batch*seq` is itself however a model computes it.

An atom is a size that the model names, one of which nothing is known, or a quotient, remainder or minimum that
arithmetic made and that does not come out even. What an atom means is in it: there is no table beside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from graphopt.base.session import current_session

Dim: TypeAlias = "int | SymbolicDim"


@dataclass(frozen=True, slots=True)
class NamedAtom:
    """A size that the model names."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class UnknownAtom:
    """A size of which nothing is known: it is equal to nothing but itself."""

    serial: int
    """The order in which they were made."""

    def __str__(self) -> str:
        return f"?{self.serial:06d}"  # of equal length: printed, they are in the order in which they were made


@dataclass(frozen=True, slots=True)
class DerivedAtom:
    """A quotient, a remainder or a minimum of two sizes; whoever makes one sees to it that it is not negative."""

    left: Dim
    operation: Literal["//", "%", "min"]
    right: Dim

    def __str__(self) -> str:
        operation = f" {self.operation} " if self.operation == "min" else self.operation
        return f"({_parenthesised(self.left)}{operation}{_parenthesised(self.right)})"


DimAtom: TypeAlias = NamedAtom | UnknownAtom | DerivedAtom
DimMonomial: TypeAlias = tuple[DimAtom, ...]


@cache
def _sort_key(atom: DimAtom) -> tuple[str, str]:
    """Return the sort key of an atom: its text, and its type, as a model may name a size like a formula's text."""
    return str(atom), type(atom).__name__


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A size that is not a plain number: a sum of `coefficient × product of atoms`, in canonical order.

    Atoms stand for non-negative integers. Built by `SymbolicDim.named` and arithmetic, which returns an `int` as soon
    as no atom is left.
    """

    terms: tuple[tuple[DimMonomial, int], ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    @cache
    def named(name: str) -> SymbolicDim:
        """Return the size that the model calls so."""
        return _of_atom(NamedAtom(name))

    @staticmethod
    def fresh() -> SymbolicDim:
        """Return a size that is equal to nothing but itself."""
        return _of_atom(UnknownAtom(next(current_session().unknown_sizes)))

    @property
    def atoms(self) -> frozenset[DimAtom]:
        """The atoms that it is made of, without those inside of them."""
        return frozenset(atom for atoms, _ in self.terms for atom in atoms)

    @property
    def atom(self) -> DimAtom | None:
        """The atom that it is; None where it is a sum, a product or a multiple."""
        ((atoms, coefficient), *more) = self.terms
        return atoms[0] if not more and coefficient == 1 and len(atoms) == 1 else None

    @property
    def is_anonymous(self) -> bool:
        """True where a part of it was never named by the model: such a size is not written to files."""
        return any(not isinstance(atom, NamedAtom) for atom in self.atoms)

    @property
    def factors(self) -> tuple[Dim, ...]:
        """The sizes whose product it is: itself, where it is a sum."""
        if len(self.terms) > 1:
            return (self,)
        ((atoms, coefficient),) = self.terms
        return (*(() if coefficient == 1 else (coefficient,)), *map(_of_atom, atoms))

    @property
    def has_unknown(self) -> bool:
        """True if there is something in it of which nothing is known, however deep."""
        return _has_unknown(self)

    def __add__(self, other: Dim) -> Dim:
        return _polynomial([*self.terms, *_terms_of(other)])

    def __mul__(self, other: Dim) -> Dim:
        return _polynomial([(_sorted_monomial(a + b), x * y) for a, x in self.terms for b, y in _terms_of(other)])

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return other + self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if (exact := divide_dim(self, other)) is not None:
            return exact
        if isinstance(other, SymbolicDim) or other <= 0:
            return _of_atom(DerivedAtom(self, "//", other))
        whole, rest = _extract_multiple(self, other)
        return whole + (_of_atom(DerivedAtom(rest, "//", other)) if isinstance(rest, SymbolicDim) else 0)

    def __rfloordiv__(self, other: int) -> Dim:
        return _of_atom(DerivedAtom(other, "//", self)) if other else 0

    def __mod__(self, other: Dim) -> Dim:
        if divide_dim(self, other) is not None:
            return 0
        if isinstance(other, SymbolicDim) or other <= 0:
            return _of_atom(DerivedAtom(self, "%", other))
        rest = _extract_multiple(self, other)[1]
        return _of_atom(DerivedAtom(rest, "%", other)) if isinstance(rest, SymbolicDim) else rest

    def __rmod__(self, other: int) -> Dim:
        return _of_atom(DerivedAtom(other, "%", self)) if other else 0

    def __str__(self) -> str:
        parts = (([str(c)] if c != 1 or not atoms else []) + [str(atom) for atom in atoms] for atoms, c in self.terms)
        return "+".join(map("*".join, parts)).replace("+-", "-")


@cache
def _has_unknown(dim: Dim) -> bool:
    return isinstance(dim, SymbolicDim) and any(
        isinstance(atom, UnknownAtom)
        or (isinstance(atom, DerivedAtom) and (_has_unknown(atom.left) or _has_unknown(atom.right)))
        for atom in dim.atoms
    )


def _of_atom(atom: DimAtom) -> SymbolicDim:
    return SymbolicDim((((atom,), 1),))


def _sorted_monomial(atoms: Iterable[DimAtom]) -> DimMonomial:
    return tuple(sorted(atoms, key=_sort_key))


def _extract_multiple(dividend: SymbolicDim, divisor: int) -> tuple[Dim, Dim]:
    """Return a multiple of the divisor taken out, so that what is left has coefficients from 0 to below the divisor."""
    whole = _polynomial((atoms, coefficient // divisor) for atoms, coefficient in dividend.terms)
    rest = _polynomial((atoms, coefficient % divisor) for atoms, coefficient in dividend.terms)
    return whole, rest


def _parenthesised(dim: Dim) -> str:
    return f"({dim})" if isinstance(dim, SymbolicDim) and len(dim.terms) > 1 else str(dim)


def _terms_of(dim: Dim) -> tuple[tuple[DimMonomial, int], ...]:
    return dim.terms if isinstance(dim, SymbolicDim) else (((), int(dim)),)


def _polynomial(terms: Iterable[tuple[DimMonomial, int]]) -> Dim:
    total: dict[DimMonomial, int] = {}
    for atoms, coefficient in terms:
        total[atoms] = total.get(atoms, 0) + coefficient
    kept = [(atoms, coefficient) for atoms, coefficient in total.items() if coefficient]
    if not kept or (len(kept) == 1 and not kept[0][0]):
        return kept[0][1] if kept else 0
    if len(kept) > 1:
        kept.sort(key=lambda term: (-len(term[0]), [_sort_key(atom) for atom in term[0]]))
    return SymbolicDim(tuple(kept))


def divide_dim(dividend: Dim, divisor: Dim) -> Dim | None:
    """Return the quotient where it comes out even whatever the atoms stand for, by a divisor of one term; else None."""
    parts = _terms_of(divisor)
    if len(parts) != 1 or parts[0][1] == 0:
        return 1 if dividend == divisor and isinstance(divisor, SymbolicDim) else None
    ((atoms, coefficient),) = parts
    quotient: list[tuple[DimMonomial, int]] = []
    for own, number in _terms_of(dividend):
        rest = list(own)
        for atom in atoms:
            if atom not in rest:
                return None
            rest.remove(atom)
        if number % coefficient:
            return None
        quotient.append((tuple(rest), number // coefficient))
    return _polynomial(quotient)


@cache
def lower_bound(dim: Dim) -> int | None:
    """Return a number that the size never falls below, whatever the atoms stand for; None where none can be told."""
    if not isinstance(dim, SymbolicDim):
        return dim
    rising = {atom for atoms, coefficient in dim.terms if coefficient > 0 for atom in atoms}
    falling = {atom for atoms, coefficient in dim.terms if coefficient < 0 for atom in atoms}
    if not falling:
        return sum(coefficient for atoms, coefficient in dim.terms if not atoms)
    made = min((atom for atom in falling - rising if isinstance(atom, DerivedAtom)), key=_sort_key, default=None)
    bounds = [lower_bound(_replace_factor(dim, made, larger)) for larger in _upper_bounds(made)] if made else []
    return max((bound for bound in bounds if bound is not None), default=None)


def is_nonnegative_dim(dim: Dim) -> bool:
    """Return whether a size is known to be at least 0."""
    bound = lower_bound(dim)
    return bound is not None and bound >= 0


def count_from_one(dim: Dim, positive: Collection[str]) -> Dim:
    """Return the size with one more in the place of each of these names, which stand for what is above 1 then."""
    return replace_dim_atoms(dim, lambda atom: _of_atom(atom) + 1 if str(atom) in positive else None)


def _upper_bounds(made: DerivedAtom) -> tuple[Dim, ...]:
    """Return sizes that a quotient, remainder or minimum never exceeds."""
    if made.operation == "min":
        return made.left, made.right
    if isinstance(made.right, SymbolicDim) or made.right <= 0:
        return ()
    return (made.left,) if made.operation == "//" else (made.left, made.right - 1)


def _replace_factor(dim: SymbolicDim, atom: DimAtom, by: Dim) -> Dim:
    """Return the size with an atom replaced where it is a factor of a term, not inside of others."""
    total: Dim = 0
    for atoms, coefficient in dim.terms:
        total = dim_product([by if own == atom else _of_atom(own) for own in atoms]) * coefficient + total
    return total


def min_dim(a: Dim, b: Dim) -> Dim:
    """Return the smaller of two sizes, an atom of its own where that depends on what the atoms stand for."""
    for one, other in ((a, b), (b, a)):
        gap = lower_bound(other - one)
        if gap is not None and gap >= 0:
            return one
    first, second = sorted((a, b), key=str)
    return _of_atom(DerivedAtom(first, "min", second))


def as_minimum(dim: Dim | None) -> tuple[Dim, Dim] | None:
    """Return the two sizes of which this one is the least, as `min_dim` made it; else None."""
    atom = dim.atom if isinstance(dim, SymbolicDim) else None
    return (atom.left, atom.right) if isinstance(atom, DerivedAtom) and atom.operation == "min" else None


def substitute_names(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Return the size with what names stand for, by name, also inside of quotients, remainders and minima."""
    return replace_dim_atoms(dim, lambda atom: sizes.get(str(atom)))


def replace_dim_atoms(dim: Dim, new: Callable[[NamedAtom | UnknownAtom], Dim | None]) -> Dim:
    """Return the size with what stands for its atoms, None for those that stay."""
    if not isinstance(dim, SymbolicDim):
        return dim
    if dim.atom is not None:
        return _replace_in_atom(dim.atom, new)
    total: Dim = 0
    for atoms, coefficient in dim.terms:
        total = dim_product([_replace_in_atom(atom, new) for atom in atoms]) * coefficient + total
    return total


def _replace_in_atom(atom: DimAtom, new: Callable[[NamedAtom | UnknownAtom], Dim | None]) -> Dim:
    if not isinstance(atom, DerivedAtom):
        found = new(atom)
        return _of_atom(atom) if found is None else found
    left, right = replace_dim_atoms(atom.left, new), replace_dim_atoms(atom.right, new)
    if atom.operation == "//":
        return left // right
    return left % right if atom.operation == "%" else min_dim(left, right)


def dim_product(dims: Iterable[Dim]) -> Dim:
    """Return the number of elements of a shape."""
    result: Dim = 1
    for dim in dims:
        result = dim * result
    return result
