"""Tensors as functions of indices: a value is a sum of guarded sums of products, an element of a tensor is a value.

The normal form does most of a proof. Addition joins lists of terms, multiplication pairs them, padding and joining
tensors add guards, moving data shifts indices; what is not linear is an opaque call of a named function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from math import isinf
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from graphopt.base.integers import (
    FALSE,
    NOTHING,
    TRUE,
    And,
    Atom,
    Change,
    Comparison,
    Fact,
    Formula,
    Int,
    Or,
    Size,
    alone,
    conj,
    conjuncts,
    fresh,
    negate,
)
from graphopt.base.notes import in_case, note, noting
from graphopt.base.rebuilding import Substitution, only_symbol, rebuild, rebuild_formula
from graphopt.base.session import current

Index: TypeAlias = "tuple[Size, ...]"
Binders: TypeAlias = "tuple[tuple[Atom, Size], ...]"
Factor: TypeAlias = "Read | Number | Call | Fold | Element"
T = TypeVar("T")


def _hashed_once(cls: type[T]) -> type[T]:
    """Values are keys everywhere: each works out its hash once."""
    plain = cls.__hash__

    def remembered(self: Any) -> int:
        known = self.__dict__
        if "hash" not in known:
            known["hash"] = plain(self)
        found: int = known["hash"]
        return found

    cls.__hash__ = remembered  # type: ignore[method-assign]
    return cls


class _Spoken:
    """What speaks of integers, in its fields or in those of what it is made of."""

    @property
    def bound(self) -> frozenset[Atom]:
        """The symbols that it gives a meaning of their own."""
        return NOTHING

    @cached_property
    def names(self) -> frozenset[Atom]:
        """All symbols, and whether there is more than symbols, as `Int.names`."""
        return self.bound.union(*(part.names for part in _speaking(self._fields)))

    @cached_property
    def symbols(self) -> frozenset[Atom]:
        """The symbols that are free in it."""
        return NOTHING.union(*(part.symbols for part in _speaking(self._fields))) - self.bound

    @property
    def _fields(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]


def _speaking(parts: Iterable[Any]) -> Iterator[Int | Formula | _Spoken]:
    """Yield what speaks of integers, also what lies in tuples."""
    for part in parts:
        if isinstance(part, tuple):
            yield from _speaking(part)
        elif isinstance(part, _SPEAKING):
            yield part


_SPEAKING = (_Spoken, Int, Comparison, Fact, And, Or)


@_hashed_once
@dataclass(frozen=True)
class Read(_Spoken):
    """An element of a tensor that is given."""

    tensor: str
    index: Index

    def rebuild(self, change: Change) -> Read:
        if not change.touches(self.names):
            return self
        return Read(self.tensor, tuple(rebuild(i, change) for i in self.index))

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@_hashed_once
@dataclass(frozen=True)
class Number(_Spoken):
    """A size or an index, as a real number."""

    of: Int

    def rebuild(self, change: Change) -> Value | Number:
        if not change.touches(self.names):
            return self
        return integer(rebuild(self.of, change))

    def __str__(self) -> str:
        return f"real({self.of})"


@_hashed_once
@dataclass(frozen=True)
class Call(_Spoken):
    """A function of values of which only its name is known: equal for equal arguments."""

    function: str
    args: tuple[Value, ...]
    params: tuple[Any, ...] = ()

    def rebuild(self, change: Change) -> Value | Call:
        if not change.touches(self.names):
            return self
        return call(self.function, *(arg.rebuild(change) for arg in self.args), params=_params(self.params, change))

    def __str__(self) -> str:
        params = (param.name if isinstance(param, Enum) else param for param in self.params)
        return f"{self.function}({', '.join(map(str, (*self.args, *params)))})"


@_hashed_once
@dataclass(frozen=True)
class Piece(_Spoken):
    """What a fold runs over: `body` for all values of the binders for which the guard holds."""

    binders: Binders
    guard: Formula
    body: Value

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(b for b, _ in self.binders)

    def __str__(self) -> str:
        over = f" for {_shown(self.binders)}" if self.binders else ""
        return f"{self.body}{over}" if self.guard == TRUE else f"{self.body}{over} if {self.guard}"


@_hashed_once
@dataclass(frozen=True)
class Fold(_Spoken):
    """The greatest, the least or the product of what its pieces run over."""

    monoid: Monoid
    pieces: tuple[Piece, ...]

    def rebuild(self, change: Change) -> Value | Fold:
        if not change.touches(self.names):
            return self
        pieces = (
            Piece(
                tuple((b, rebuild(e, change)) for b, e in piece.binders),
                rebuild_formula(piece.guard, change),
                piece.body.rebuild(change),
            )
            for piece in self.pieces
        )
        return fold(self.monoid, pieces)

    def __str__(self) -> str:
        return f"{self.monoid}({'; '.join(map(str, self.pieces))})"


@_hashed_once
@dataclass(frozen=True)
class Whole(_Spoken):
    """A tensor as an argument: its shape, and its element at the index that the symbols stand for."""

    shape: tuple[Size, ...]
    index: tuple[Atom, ...]
    body: Value

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(self.index)


@_hashed_once
@dataclass(frozen=True)
class Element(_Spoken):
    """An element of what an operator that is not looked into makes of whole tensors."""

    operator: str
    params: tuple[Any, ...]
    operands: tuple[Whole | None, ...]
    index: Index

    def rebuild(self, change: Change) -> Element:
        if not change.touches(self.names):
            return self
        operands = tuple(
            w and Whole(tuple(rebuild(s, change) for s in w.shape), w.index, w.body.rebuild(change))
            for w in self.operands
        )
        index = tuple(rebuild(i, change) for i in self.index)
        return Element(self.operator, _params(self.params, change), operands, index)

    def __str__(self) -> str:
        return f"{self.operator}(…)[{', '.join(map(str, self.index))}]"


Monoid: TypeAlias = Literal["max", "min", "prod"]


@_hashed_once
@dataclass(frozen=True)
class Term(_Spoken):
    """coefficient · Σ over the binders, where the guard holds, of the product of the factors."""

    coefficient: Fraction
    factors: tuple[Factor, ...] = ()
    binders: Binders = ()
    guard: Formula = TRUE

    @property
    def bound(self) -> frozenset[Atom]:
        return frozenset(b for b, _ in self.binders)

    def __str__(self) -> str:
        text = "·".join([*([str(self.coefficient)] if self.coefficient != 1 else []), *map(str, self.factors)]) or "1"
        text = text if self.guard == TRUE else f"[{self.guard}]{text}"
        return f"Σ({_shown(self.binders)}) {text}" if self.binders else text


@_hashed_once
@dataclass(frozen=True)
class Value(_Spoken):
    """A sum of terms: an element of a tensor, or a number."""

    terms: tuple[Term, ...]

    def __add__(self, other: Operand) -> Value:
        return collected((*self.terms, *number(other).terms))

    def __mul__(self, other: Operand) -> Value:
        other = number(other)
        arithmetic: Arithmetic | None = current().arithmetic
        if arithmetic is None or (arithmetic.is_finite(self) and arithmetic.is_finite(other)):
            return multiplied(self, other)
        return arithmetic.product(self, other)

    def __neg__(self) -> Value:
        return self * -1

    def __sub__(self, other: Operand) -> Value:
        return self + -number(other)

    def __rsub__(self, other: Operand) -> Value:
        return number(other) - self

    def __truediv__(self, other: Operand) -> Value:
        return self * inverse(number(other))

    def __rtruediv__(self, other: Operand) -> Value:
        return number(other) * inverse(self)

    __radd__ = __add__
    __rmul__ = __mul__

    def rebuild(self, change: Change) -> Value:
        if not change.touches(self.names):
            return self
        total: list[Term] = []
        for term in self.terms:
            if change.touches(term.names):
                total += _rebuilt(term, change)
            else:
                total.append(term)
        return collected(total)

    @property
    def constant(self) -> Fraction | None:
        """The number that it is, where it plainly is one."""
        if not self.terms:
            return Fraction(0)
        first = self.terms[0]
        plain = len(self.terms) == 1 and not first.factors and not first.binders and first.guard == TRUE
        return first.coefficient if plain else None

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms)) or "0"


Operand: TypeAlias = "Value | int | float | Fraction"
ZERO = Value(())
ONE = Fraction(1)


class Arithmetic(Protocol):
    """What products and quotients are where values may be infinite (`extended.py`)."""

    def is_finite(self, value: Value) -> bool: ...
    def product(self, left: Value, right: Value) -> Value: ...
    def inverse(self, value: Value) -> Value: ...
    def telling(self, value: Value) -> tuple[Formula, Value]: ...


def _shown(binders: Binders) -> str:
    return ", ".join(f"{b}<{e}" for b, e in binders)


def _params(params: tuple[Any, ...], change: Change) -> tuple[Any, ...]:
    return tuple(rebuild(p, change) if isinstance(p, Int) else p for p in params)


def _rebuilt(term: Term, change: Change) -> tuple[Term, ...]:
    """Return a product of factors each of which may become a sum."""
    binders = tuple((b, rebuild(extent, change)) for b, extent in term.binders)
    new = Value((Term(term.coefficient, (), binders, rebuild_formula(term.guard, change)),))
    for factor in term.factors:
        new = multiplied(new, lift(factor.rebuild(change)))
    return new.terms


# -- building ------------------------------------------------------------------------------------------------------


def number(subject: Operand) -> Value:
    """Return a number as a value. Of an infinity nothing is known but its name."""
    if isinstance(subject, Value):
        return subject
    if isinstance(subject, float) and isinf(subject):
        return lift(Call("Infinity", (), (str(subject),)))
    return Value((Term(Fraction(subject)),)) if subject else ZERO


def integer(size: Size) -> Value:
    """Return a size or an index as a real number."""
    if isinstance(size, int):
        return number(size)
    terms = (Term(Fraction(c), tuple(Number(alone(atom)) for atom in monomial)) for monomial, c in size.terms.items())
    return Value(tuple(terms))


def lift(factor: Factor | Value) -> Value:
    return factor if isinstance(factor, Value) else Value((Term(ONE, (factor,)),))


def multiplied(left: Value, right: Value) -> Value:
    """Each term of one value times each of the other."""
    return collected(_times(t, u) for t in left.terms for u in right.terms)


def collected(terms: Iterable[Term]) -> Value:
    """Return the sum of some terms, equal ones added up."""
    total: dict[tuple[Any, ...], Term] = {}
    for term in terms:
        if term.guard is not FALSE:
            key = (term.factors, term.binders, term.guard)
            found = total.get(key)
            total[key] = term if found is None else Term(found.coefficient + term.coefficient, *key)
    return Value(tuple(term for term in total.values() if term.coefficient))


def _times(left: Term, right: Term) -> Term:
    if not left.bound.isdisjoint(right.bound):
        right = renamed(right)
    return Term(
        left.coefficient * right.coefficient,
        left.factors + right.factors,
        left.binders + right.binders,
        conj(left.guard, right.guard),
    )


def renamed(term: Term) -> Term:
    """Return the same sum over new binders."""
    change, binders = _new_binders(term.binders)
    with noting():  # which is nothing: what was computed gets another name
        factors = tuple(_same_kind(factor.rebuild(change)) for factor in term.factors)
    return Term(term.coefficient, factors, binders, rebuild_formula(term.guard, change))


def _same_kind(rebuilt: Factor | Value) -> Factor:
    """Return the one factor that a factor stays when symbols are renamed."""
    if not isinstance(rebuilt, Value):
        return rebuilt
    ((factor,),) = (term.factors for term in rebuilt.terms)
    return factor


def _new_binders(binders: Binders) -> tuple[Change, Binders]:
    new = {b: fresh(str(b.args[0]).partition("'")[0]) for b, _ in binders}
    change = Substitution(new)
    return change, tuple((only_symbol(new[b]), rebuild(extent, change)) for b, extent in binders)


def _own_names(value: Value) -> Value:
    """Return the value with binders of its own, so that no name is bound inside and outside of a function."""
    return Value(tuple(renamed(term) if term.binders else term for term in value.terms))


def guarded(condition: Formula, value: Value) -> Value:
    """`value` where the condition holds, else 0."""
    if condition == TRUE:
        return value
    return collected(Term(t.coefficient, t.factors, t.binders, conj(condition, t.guard)) for t in value.terms)


def fold(monoid: Monoid, pieces: Iterable[Piece]) -> Value:
    """Return a fold in normal form: each piece of one form, no fold of the same kind inside, a least of greatest
    ones."""
    flat = [part for piece in pieces for part in _parts(monoid, piece)]
    flat = list(dict.fromkeys(flat)) if monoid != "prod" else flat
    flat = _one_number(monoid, flat)
    if len(flat) == 1 and not flat[0].binders and flat[0].guard == TRUE:
        return flat[0].body
    below = next((p for p in flat if monoid == "max" and _is_plain(p) and _plain_minimum(p.body)), None)
    if below is not None:
        rest = [p for p in flat if p is not below]
        inner = _plain_minimum(below.body)
        return fold("min", [Piece((), TRUE, fold("max", [*map(_fresh, rest), p])) for p in inner])
    return lift(Fold(monoid, tuple(flat)))


def _parts(monoid: Monoid, piece: Piece) -> Iterator[Piece]:
    """Yield a piece, by the cases of its body, folds of the same kind laid open."""
    for condition, (body,) in cases(piece.body):
        guard = conj(piece.guard, condition)
        inner = only_factor(body)
        if guard == FALSE:
            continue
        if isinstance(inner, Fold) and inner.monoid == monoid:
            for part in map(_fresh, inner.pieces):
                yield _fresh(Piece(piece.binders + part.binders, conj(guard, part.guard), part.body))
        else:
            yield _fresh(Piece(piece.binders, guard, _own_names(body)))


def _is_plain(piece: Piece) -> bool:
    return not piece.binders and piece.guard == TRUE


def _plain_minimum(body: Value) -> tuple[Piece, ...]:
    inner = only_factor(body)
    if isinstance(inner, Fold) and inner.monoid == "min" and all(map(_is_plain, inner.pieces)):
        return inner.pieces
    return ()


def _one_number(monoid: Monoid, pieces: list[Piece]) -> list[Piece]:
    """Of several plain numbers, the one that counts."""
    numbers = [p.body.constant for p in pieces if _is_plain(p) and p.body.constant is not None]
    if monoid == "prod" or len(numbers) < 2:
        return pieces
    best = (max if monoid == "max" else min)(n or Fraction(0) for n in numbers)
    others = [p for p in pieces if not (_is_plain(p) and p.body.constant is not None)]
    return [*others, Piece((), TRUE, number(best))]


def _fresh(piece: Piece) -> Piece:
    change, binders = _new_binders(piece.binders)
    with noting():  # as above
        return Piece(binders, rebuild_formula(piece.guard, change), piece.body.rebuild(change)) if binders else piece


def only_factor(value: Value) -> Factor | None:
    """Return the factor that a value is, None where it is a number, a product or a sum."""
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and term.guard == TRUE and len(term.factors) == 1
    return term.factors[0] if plain else None


def inverse(value: Value) -> Value:
    """1 / value. 1 / 0 is a number of which nothing is known but 1 / (a·b) = (1 / a)·(1 / b) and 1 / (1 / a) = a."""
    arithmetic: Arithmetic | None = current().arithmetic
    if arithmetic is not None and not arithmetic.is_finite(value):
        return arithmetic.inverse(value)
    return by_cases(_inverse, value)


def _inverse(value: Value) -> Value:
    if value.constant:
        return number(1 / value.constant)
    if len(value.terms) != 1:
        return _noted(Call("Inverse", (_own_names(value),)))
    (term,) = value.terms
    result = number(1 / term.coefficient)
    for factor in term.factors:
        if not factor.symbols & term.bound:
            result = result * _inverse_of_factor(factor)
    if term.binders:
        inner = tuple(f for f in term.factors if f.symbols & term.bound)
        rest = Value((Term(Fraction(1), inner, term.binders, term.guard),))
        result = result * _noted(Call("Inverse", (_own_names(rest),)))
    return result


def _inverse_of_factor(factor: Factor) -> Value:
    match factor:
        case Call("Inverse", (inner,)):
            return inner
        case Call("Sqrt", (inner,)) if inner.constant is not None and inner.constant > 0:
            return lift(factor) * number(1 / inner.constant)
    return _noted(Call("Inverse", (lift(factor),)))


def call(function: str, *args: Operand, params: tuple[Any, ...] = ()) -> Value:
    """Return a named function of values, case by case, simplified by the lemmas on it (`lemmas.py`)."""
    if function == "Inverse":
        return inverse(number(args[0]))
    return by_cases(lambda *values: _call(function, values, params), *map(number, args))


def _call(function: str, values: tuple[Value, ...], params: tuple[Any, ...]) -> Value:
    from graphopt.base.lemmas import EXACT_LEMMAS, LEMMAS, TYPED_LEMMAS

    known = TYPED_LEMMAS[function](params, *values) if function in TYPED_LEMMAS else None
    if known is None:
        lemmas = EXACT_LEMMAS if function.endswith("!") else LEMMAS
        known = lemmas[function](*values) if function in lemmas else None
    return _noted(Call(function, tuple(map(_own_names, values)), params)) if known is None else known


def _noted(made: Call) -> Value:
    note(made)
    return lift(made)


def by_cases(function: Callable[..., Value], *values: Value) -> Value:
    """f([g]·a + [not g]·b) is [g]·f(a) + [not g]·f(b), for guards that do not depend on what the terms sum over."""
    result = ZERO
    for condition, parts in cases(*values):
        with in_case(condition):
            result = result + guarded(condition, function(*parts))
    return result


def cases(*values: Value) -> Iterator[tuple[Formula, tuple[Value, ...]]]:
    """Yield the conditions under which values differ in form, and the values under each."""
    guard = next((g for v in values for t in v.terms if (g := _outer(t)) != TRUE), None)
    if guard is None:
        yield TRUE, values
        return
    for side, denied in ((guard, NOTHING), (negate(guard), conjuncts(guard))):
        for condition, parts in cases(*(_under(v, side, denied) for v in values)):
            if (both := conj(side, condition)) != FALSE:
                yield both, parts


def _outer(term: Term) -> Formula:
    """Return the part of a term's guard that does not depend on its binders."""
    return conj(*(part for part in conjuncts(term.guard) if not part.symbols & term.bound))


def _under(value: Value, known: Formula, denied: frozenset[Formula]) -> Value:
    """Return the value where a condition holds, and where some parts of guards do not hold together."""
    return collected(
        Term(t.coefficient, t.factors, t.binders, conj(*(conjuncts(t.guard) - conjuncts(known))))
        for t in value.terms
        if not (denied and denied <= conjuncts(t.guard)) and conj(t.guard, known) != FALSE
    )
