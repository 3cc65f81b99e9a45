"""Integers that stand for sizes and indices, and formulas over them.

A `Polynomial` has symbols, quotients, remainders, choices and elements of index lists (`index_lists.py`) as atoms.
Equal polynomials are equal objects, so most questions need no solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from math import gcd
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from graphopt.base.session import current_session, memoized

Size: TypeAlias = "int | Polynomial"
Monomial: TypeAlias = "tuple[Atom, ...]"
NO_SYMBOLS: frozenset[Any] = frozenset()


class Replacement(Protocol):
    """Replacement of atoms by integers."""

    def replace(self, atom: Atom) -> Size | None:
        """Return what takes the place of an atom; None where it stays."""
        ...

    def may_change(self, names: frozenset[Atom]) -> bool:
        """Return False only if an integer with these symbols stays as it is."""
        ...


class _Serialized:
    """An interned object, numbered in the order of creation.

    The number is its hash as well: with addresses for hashes, sets would be ordered differently in each process, and so
    would proofs.
    """

    __slots__ = ()
    serial: int

    def __hash__(self) -> int:
        return self.serial

    def __lt__(self, other: _Serialized) -> bool:
        return self.serial < other.serial


N = TypeVar("N", bound=_Serialized)
_BY_SERIAL = attrgetter("serial")


def in_creation_order(parts: Iterable[N]) -> list[N]:
    """Return the parts in the order of their creation, for loops over sets whose own order must not matter."""
    return sorted(parts, key=_BY_SERIAL)


@dataclass(frozen=True, eq=False, slots=True)
class Atom(_Serialized):
    """An unknown integer, or a function of integers that is no polynomial. Interned: equal atoms are one object."""

    kind: Literal["symbol", "quotient", "remainder", "choice", "select", "rank", "representative"]
    args: tuple[Any, ...]
    serial: int

    def __str__(self) -> str:
        match self.kind, self.args:
            case "symbol", (name,):
                return str(name)
            case "quotient", (a, b):
                return f"(({a})//({b}))"
            case "remainder", (a, b):
                return f"(({a})%({b}))"
            case "select" | "rank" | "representative", (name, _, _, subject):
                return f"{self.kind}({name}, {subject})"
        return f"{'if' if self.kind == 'choice' else self.kind}({', '.join(map(str, self.args))})"


COMPOSITE = Atom("symbol", (), -1)
"""Stands among the names of what has a function of integers in it: a quotient, a remainder, a choice, …"""


@memoized
def make_atom(kind: Any, *args: Any) -> Atom:
    return Atom(kind, args, next(current_session().interner.serials))


class _Interned(type):
    """Equal objects are one object: to compare them and to hash them takes no time."""

    def __call__(cls, *args: Any) -> Any:
        interner, key = current_session().interner, (cls, *args)
        found = interner.table.get(key)
        if found is None:
            found = interner.table[key] = super().__call__(*args)
            object.__setattr__(found, "serial", next(interner.serials))
        return found


def reset_fresh_names() -> None:
    """Let names be used again, between instances whose integers never meet."""
    current_session().interner.fresh_names = count()


@contextmanager
def isolated_interner() -> Iterator[None]:
    """Begin with no integers, and drop those that were made at the end, as for one rule or one question."""
    with current_session().with_fresh_integers():
        yield


def interned_count() -> int:
    """Return the number of polynomials and formulas in the session, a measure of work."""
    return len(current_session().interner.table)


@memoized
def symbol(name: str) -> Polynomial:
    """Return the unknown integer of that name."""
    return polynomial_of_atom(make_atom("symbol", name))


def fresh_symbol(name: str) -> Polynomial:
    """Return an unknown integer that differs from all others."""
    return symbol(f"{name}'{next(current_session().interner.fresh_names)}")


class Polynomial(_Serialized):
    """A polynomial with integer coefficients that is not a constant: constants are plain `int`s. Equal ones are one."""

    __slots__ = ("_atoms", "_names", "_symbols", "serial", "terms")
    terms: Mapping[Monomial, int]
    _atoms: tuple[Atom, ...] | None
    _names: frozenset[Atom] | None
    _symbols: frozenset[Atom] | None

    def __new__(cls, terms: Mapping[Monomial, int]) -> Polynomial:
        key = frozenset(terms.items())
        interner = current_session().interner
        found: Polynomial | None = interner.table.get(key)
        if found is None:
            found = interner.table[key] = super().__new__(cls)
            found.terms, found._atoms, found._names, found._symbols = terms, None, None, None
            found.serial = next(interner.serials)
        return found

    def __add__(self, other: Size) -> Size:
        return _linear_combination(self, 1, other)

    def __mul__(self, other: Size) -> Size:
        return _product(self, other)

    def __neg__(self) -> Size:
        return _product(self, -1)

    def __sub__(self, other: Size) -> Size:
        return _linear_combination(self, -1, other)

    def __rsub__(self, other: int) -> Size:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return quotient(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return quotient(other, self)

    def __mod__(self, other: Size) -> Size:
        return remainder(self, other)

    def __rmod__(self, other: Size) -> Size:
        return remainder(other, self)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms of its monomials (not those inside other atoms), each once."""
        if self._atoms is None:
            self._atoms = tuple(dict.fromkeys(chain.from_iterable(self.terms)))
        return self._atoms

    @property
    def mentioned_symbols(self) -> frozenset[Atom]:
        """All symbols, wherever they are, and COMPOSITE if they are not all."""
        if self._names is None:
            self._names = NO_SYMBOLS.union(*map(_mentioned_symbols, chain.from_iterable(self.terms)))
        return self._names

    @property
    def free_symbols(self) -> frozenset[Atom]:
        """All symbols, wherever they are."""
        if self._symbols is None:
            self._symbols = (
                self.mentioned_symbols - {COMPOSITE} if COMPOSITE in self.mentioned_symbols else self.mentioned_symbols
            )
        return self._symbols

    def __str__(self) -> str:
        shown = ("*".join([*([str(c)] if c != 1 or not m else []), *map(str, m)]) for m, c in self.terms.items())
        return "+".join(shown).replace("+-", "-")

    __repr__ = __str__


@memoized
def polynomial_of_atom(atom: Atom) -> Polynomial:
    """Return the polynomial that is one atom."""
    return Polynomial({(atom,): 1})


@memoized
def _linear_combination(left: Polynomial, factor: int, right: Size) -> Size:
    """left + factor·right."""
    total = dict(left.terms)
    for monomial, coefficient in terms_of(right):
        new = total.get(monomial, 0) + factor * coefficient
        if new:
            total[monomial] = new
        else:
            del total[monomial]
    return _canonical(total)


@memoized
def _product(left: Polynomial, right: Size) -> Size:
    if isinstance(right, int):
        return Polynomial({monomial: c * right for monomial, c in left.terms.items()}) if right else 0
    total: dict[Monomial, int] = {}
    for a, x in left.terms.items():
        for b, y in right.terms.items():
            monomial = tuple(sorted(a + b)) if a and b else a or b
            total[monomial] = total.get(monomial, 0) + x * y
    return polynomial(total)


def polynomial(terms: Mapping[Monomial, int]) -> Size:
    return _canonical({m: c for m, c in terms.items() if c})


def _canonical(terms: Mapping[Monomial, int]) -> Size:
    """Return the polynomial of terms none of which is zero."""
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else Polynomial(terms)


def terms_of(size: Size) -> Iterable[tuple[Monomial, int]]:
    return size.terms.items() if isinstance(size, Polynomial) else (((), size),) if size else ()


def sum_sizes(sizes: Iterable[Size]) -> Size:
    result: Size = 0
    for size in sizes:
        result = size + result
    return result


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = size * result
    return result


@memoized
def divide_with_remainder(dividend: Size, divisor: Size) -> tuple[Size, Size]:
    """Polynomial division: (q, r) with dividend = divisor·q + r, as much as possible in q."""
    lead, factor = max(terms_of(divisor), key=lambda term: (len(term[0]), term[0]))
    quotients: Size = 0
    rest: Size = 0
    while terms := list(terms_of(dividend)):
        monomial, coefficient = max(terms, key=lambda term: (len(term[0]), term[0]))
        taken = divide_monomial(monomial, lead)
        if taken is None or coefficient % factor:
            part = polynomial({monomial: coefficient})
            rest, dividend = part + rest, dividend - part
        else:
            part = polynomial({taken: coefficient // factor})
            quotients, dividend = part + quotients, dividend - part * divisor
    return quotients, rest


def divide_monomial(monomial: Monomial, lead: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in lead:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def exact_quotient(dividend: Size, divisor: Size) -> Size | None:
    """Return the quotient where the polynomial divides evenly, else None."""
    if divisor == 0:
        return None
    whole, rest = divide_with_remainder(dividend, divisor)
    return whole if rest == 0 else None


def quotient(dividend: Size, divisor: Size) -> Size:
    """Return the quotient, rounded down, as Python does. By zero it is some number; who divides asks that it is not."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    if divisor == 0:
        raise ZeroDivisionError
    whole, rest = divide_with_remainder(dividend, divisor)
    return whole if rest == 0 else polynomial_of_atom(make_atom("quotient", rest, divisor)) + whole


def remainder(dividend: Size, divisor: Size) -> Size:
    """Return the remainder with the divisor's sign, as in Python."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    if divisor == 0:
        raise ZeroDivisionError
    _, rest = divide_with_remainder(dividend, divisor)
    return 0 if rest == 0 or divisor == 1 else polynomial_of_atom(make_atom("remainder", rest, divisor))


# -- formulas ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Comparison(_Serialized, metaclass=_Interned):
    """`poly >= 0`, `poly == 0` or `poly != 0`."""

    kind: Literal["ge", "eq", "ne"]
    poly: Polynomial
    serial: int = field(init=False)

    @property
    def mentioned_symbols(self) -> frozenset[Atom]:
        return self.poly.mentioned_symbols

    @property
    def free_symbols(self) -> frozenset[Atom]:
        return self.poly.free_symbols

    def __str__(self) -> str:
        return f"{self.poly} {'>=' if self.kind == 'ge' else '==' if self.kind == 'eq' else '!='} 0"


@dataclass(frozen=True, eq=False)
class _Connective(_Serialized, metaclass=_Interned):
    parts: frozenset[Formula]
    serial: int = field(init=False)

    @cached_property
    def mentioned_symbols(self) -> frozenset[Atom]:
        return NO_SYMBOLS.union(*(part.mentioned_symbols for part in self.parts))

    @cached_property
    def free_symbols(self) -> frozenset[Atom]:
        return NO_SYMBOLS.union(*(part.free_symbols for part in self.parts))


J = TypeVar("J", bound=_Connective)


@dataclass(frozen=True, eq=False)
class And(_Connective):
    def __str__(self) -> str:
        return "(" + " and ".join(sorted(map(str, self.parts))) + ")" if self.parts else "true"


@dataclass(frozen=True, eq=False)
class Or(_Connective):
    def __str__(self) -> str:
        return "(" + " or ".join(sorted(map(str, self.parts))) + ")" if self.parts else "false"


@dataclass(frozen=True, eq=False, slots=True)
class BooleanAtom(_Serialized, metaclass=_Interned):
    """A truth value that is no comparison of integers (an element, a comparison of reals) is true, or is not."""

    subject: Any  # an `expressions.Expr`
    holds: bool
    serial: int = field(init=False)

    @property
    def mentioned_symbols(self) -> frozenset[Atom]:
        found: frozenset[Atom] = self.subject.mentioned_symbols
        return found

    @property
    def free_symbols(self) -> frozenset[Atom]:
        found: frozenset[Atom] = self.subject.free_symbols
        return found

    def __str__(self) -> str:
        return str(self.subject) if self.holds else f"not {self.subject}"


FormulaLiteral: TypeAlias = "Comparison | BooleanAtom"
Formula: TypeAlias = "Comparison | BooleanAtom | And | Or"
Truth = bool | Comparison | BooleanAtom | And | Or
"""A truth value of either kind."""


def _empty_connective(kind: type[J], serial: int) -> J:
    """Return the conjunction or disjunction of nothing, which is the same in all sessions."""
    found: J = type.__call__(kind, NO_SYMBOLS)
    object.__setattr__(found, "serial", serial)
    return found


TRUE = _empty_connective(And, 0)
FALSE = _empty_connective(Or, 1)


def ge(left: Size, right: Size = 0) -> Formula:
    difference = left - right
    if isinstance(difference, int):
        return TRUE if difference >= 0 else FALSE
    return _at_least_zero(difference)


@memoized
def _at_least_zero(poly: Polynomial) -> Formula:
    shared = gcd(*(c for m, c in poly.terms.items() if m))
    if shared > 1:  # all integers: 2a + 1 >= 0 says a >= 0
        poly = Polynomial({m: c // shared for m, c in poly.terms.items() if c // shared})
    return Comparison("ge", poly)


def le(left: Size, right: Size) -> Formula:
    return ge(right, left)


def lt(left: Size, right: Size) -> Formula:
    return ge(right, left + 1)


def eq(left: Size, right: Size = 0) -> Formula:
    difference = left - right
    if isinstance(difference, int):
        return FALSE if difference else TRUE
    return _equal_to_zero(difference)


@memoized
def _equal_to_zero(poly: Polynomial) -> Formula:
    backwards = max(poly.terms.items())[1] < 0
    return Comparison("eq", Polynomial({m: -c for m, c in poly.terms.items()}) if backwards else poly)


def conjunction(*parts: Formula) -> Formula:
    parts = tuple(part for part in parts if part is not TRUE)
    return _flat_conjunction(parts) if len(parts) > 1 else parts[0] if parts else TRUE


@memoized
def _flat_conjunction(parts: tuple[Formula, ...]) -> Formula:
    flat = frozenset(p for part in parts for p in (part.parts if isinstance(part, And) else (part,)))
    if any(isinstance(p, Or) for p in flat):
        told = _propagate_units(flat)
        if any(not isinstance(p, Or) for p in told - flat):  # an alternative that is left alone may tell more
            return conjunction(*in_creation_order(told))
        flat = told
    if FALSE in flat or _contradict(flat):
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else And(flat)


def _contradict(parts: frozenset[Formula]) -> bool:
    """Return whether one of the parts is the negation of another: `p >= 0` and `-p - 1 >= 0`, a fact and its denial."""
    basic = [p for p in parts if isinstance(p, Comparison | BooleanAtom)]
    return len(basic) > 1 and any(negate(p) in parts for p in basic)


def _propagate_units(parts: frozenset[Formula]) -> frozenset[Formula]:
    """Drop from each alternative what the other parts deny."""
    denied = frozenset(negate(p) for p in in_creation_order(parts) if not isinstance(p, Or))
    kept = (
        disjunction(*(p.parts - denied)) if isinstance(p, Or) and not p.parts & parts else p
        for p in in_creation_order(parts)
    )
    return frozenset(p for p in kept if not (isinstance(p, Or) and p.parts & parts))


@memoized
def disjunction(*parts: Formula) -> Formula:
    flat = frozenset(p for part in parts for p in (part.parts if isinstance(part, Or) else (part,)))
    if TRUE in flat or _contradict(flat):
        return TRUE
    return next(iter(flat)) if len(flat) == 1 else Or(flat) if flat else FALSE


@memoized
def negate(part: Formula) -> Formula:
    match part:
        case And(parts):
            return disjunction(*map(negate, in_creation_order(parts)))
        case Or(parts):
            return conjunction(*map(negate, in_creation_order(parts)))
        case BooleanAtom(subject, holds):
            return BooleanAtom(subject, not holds)
        case Comparison("ge", poly):
            return ge(-poly, 1)
        case Comparison("eq", poly):
            return Comparison("ne", poly)
    return Comparison("eq", part.poly)


def in_range(index: Size, extent: Size) -> Formula:
    """0 <= index < extent."""
    return conjunction(ge(index), lt(index, extent))


def literals(part: Formula) -> Iterator[FormulaLiteral]:
    if isinstance(part, Comparison | BooleanAtom):
        yield part
    else:
        for inner in in_creation_order(part.parts):
            yield from literals(inner)


def conjuncts(part: Formula) -> frozenset[Formula]:
    return part.parts if isinstance(part, And) else frozenset({part})


def if_then_else(condition: Formula, then: Size, otherwise: Size) -> Size:
    if condition == TRUE or then == otherwise:
        return then
    return otherwise if condition == FALSE else polynomial_of_atom(make_atom("choice", condition, then, otherwise))


# -- rebuilding ----------------------------------------------------------------------------------------------------


def free_symbols(subject: Size | Formula) -> frozenset[Atom]:
    """All symbols, wherever they are."""
    return NO_SYMBOLS if isinstance(subject, int) else subject.free_symbols


@memoized
def _mentioned_symbols(atom: Atom) -> frozenset[Atom]:
    if atom.kind == "symbol":
        return frozenset({atom})
    inner = (arg.mentioned_symbols for arg in atom.args if not isinstance(arg, int))
    return NO_SYMBOLS.union({COMPOSITE}, *inner)
