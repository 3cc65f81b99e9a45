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

from graphopt.base.session import current_session
from graphopt.expr.integers import (
    FALSE,
    NO_SYMBOLS,
    TRUE,
    And,
    Atom,
    BooleanAtom,
    Comparison,
    Formula,
    Or,
    Polynomial,
    Replacement,
    Size,
    conjunction,
    conjuncts,
    fresh_symbol,
    negate,
    polynomial_of_atom,
)
from graphopt.expr.partial_calls import record_call, recording_partial_calls, under_guard
from graphopt.expr.substitution import Substitution, replace_atoms, replace_in_formula, single_symbol

Index: TypeAlias = "tuple[Size, ...]"
Binders: TypeAlias = "tuple[tuple[Atom, Size], ...]"
Factor: TypeAlias = "TensorElement | IntegerValue | Call | Fold | OpaqueElement"
T = TypeVar("T")


def _cached_hash(cls: type[T]) -> type[T]:
    """Have each object compute its hash once: expressions are keys everywhere."""
    plain = cls.__hash__

    def remembered(self: Any) -> int:
        known = self.__dict__
        if "hash" not in known:
            known["hash"] = plain(self)
        found: int = known["hash"]
        return found

    cls.__hash__ = remembered  # type: ignore[method-assign]
    return cls


class _HasFreeSymbols:
    """An object with symbols of integers in its fields, or in the fields of its parts."""

    @property
    def bound_symbols(self) -> frozenset[Atom]:
        """The symbols that it gives a meaning of their own."""
        return NO_SYMBOLS

    @cached_property
    def mentioned_symbols(self) -> frozenset[Atom]:
        """All symbols, and whether there is more than symbols, as `Polynomial.mentioned_symbols`."""
        return self.bound_symbols.union(*(part.mentioned_symbols for part in _symbolic_parts(self._components)))

    @cached_property
    def free_symbols(self) -> frozenset[Atom]:
        """The symbols that are free in it."""
        return NO_SYMBOLS.union(*(part.free_symbols for part in _symbolic_parts(self._components))) - self.bound_symbols

    @property
    def _components(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]


def _symbolic_parts(parts: Iterable[Any]) -> Iterator[Polynomial | Formula | _HasFreeSymbols]:
    """Yield the parts that may have symbols, also those in tuples."""
    for part in parts:
        if isinstance(part, tuple):
            yield from _symbolic_parts(part)
        elif isinstance(part, _SYMBOLIC_TYPES):
            yield part


_SYMBOLIC_TYPES = (_HasFreeSymbols, Polynomial, Comparison, BooleanAtom, And, Or)


@_cached_hash
@dataclass(frozen=True)
class TensorElement(_HasFreeSymbols):
    """An element of a tensor that is given."""

    tensor: str
    index: Index

    def replace_atoms(self, change: Replacement) -> TensorElement:
        if not change.may_change(self.mentioned_symbols):
            return self
        return TensorElement(self.tensor, tuple(replace_atoms(i, change) for i in self.index))

    def __str__(self) -> str:
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"


@_cached_hash
@dataclass(frozen=True)
class IntegerValue(_HasFreeSymbols):
    """A size or an index, as a real number."""

    integer: Polynomial

    def replace_atoms(self, change: Replacement) -> Expr | IntegerValue:
        if not change.may_change(self.mentioned_symbols):
            return self
        return integer_value(replace_atoms(self.integer, change))

    def __str__(self) -> str:
        return f"real({self.integer})"


@_cached_hash
@dataclass(frozen=True)
class Call(_HasFreeSymbols):
    """A call of a function of which only the name is known: equal for equal arguments."""

    function: str
    args: tuple[Expr, ...]
    params: tuple[Any, ...] = ()

    def replace_atoms(self, change: Replacement) -> Expr | Call:
        if not change.may_change(self.mentioned_symbols):
            return self
        return call_function(
            self.function,
            *(arg.replace_atoms(change) for arg in self.args),
            params=_replace_in_params(self.params, change),
        )

    def __str__(self) -> str:
        params = (param.name if isinstance(param, Enum) else param for param in self.params)
        return f"{self.function}({', '.join(map(str, (*self.args, *params)))})"


@_cached_hash
@dataclass(frozen=True)
class FoldBranch(_HasFreeSymbols):
    """Values that a fold runs over: `body` for all values of the binders for which the guard holds."""

    binders: Binders
    guard: Formula
    body: Expr

    @property
    def bound_symbols(self) -> frozenset[Atom]:
        return frozenset(b for b, _ in self.binders)

    @property
    def is_unconditional(self) -> bool:
        """True if its body is one value, which always counts."""
        return not self.binders and self.guard == TRUE

    def __str__(self) -> str:
        over = f" for {_format_binders(self.binders)}" if self.binders else ""
        return f"{self.body}{over}" if self.guard == TRUE else f"{self.body}{over} if {self.guard}"


@_cached_hash
@dataclass(frozen=True)
class Fold(_HasFreeSymbols):
    """The greatest, the least or the product of what its pieces run over."""

    monoid: Monoid
    branches: tuple[FoldBranch, ...]

    def replace_atoms(self, change: Replacement) -> Expr | Fold:
        if not change.may_change(self.mentioned_symbols):
            return self
        pieces = (
            FoldBranch(
                tuple((b, replace_atoms(e, change)) for b, e in piece.binders),
                replace_in_formula(piece.guard, change),
                piece.body.replace_atoms(change),
            )
            for piece in self.branches
        )
        return fold(self.monoid, pieces)

    def __str__(self) -> str:
        return f"{self.monoid}({'; '.join(map(str, self.branches))})"


@_cached_hash
@dataclass(frozen=True)
class TensorArgument(_HasFreeSymbols):
    """A tensor as an argument: its shape, and its element at the index that the symbols stand for."""

    shape: tuple[Size, ...]
    index: tuple[Atom, ...]
    body: Expr

    @property
    def bound_symbols(self) -> frozenset[Atom]:
        return frozenset(self.index)


@_cached_hash
@dataclass(frozen=True)
class OpaqueElement(_HasFreeSymbols):
    """An element of the result of an opaque operator on whole tensors."""

    operator: str
    params: tuple[Any, ...]
    operands: tuple[TensorArgument | None, ...]
    index: Index

    def replace_atoms(self, change: Replacement) -> OpaqueElement:
        if not change.may_change(self.mentioned_symbols):
            return self
        operands = tuple(
            w
            and TensorArgument(tuple(replace_atoms(s, change) for s in w.shape), w.index, w.body.replace_atoms(change))
            for w in self.operands
        )
        index = tuple(replace_atoms(i, change) for i in self.index)
        return OpaqueElement(self.operator, _replace_in_params(self.params, change), operands, index)

    def __str__(self) -> str:
        return f"{self.operator}(…)[{', '.join(map(str, self.index))}]"


Monoid: TypeAlias = Literal["max", "min", "prod"]


@_cached_hash
@dataclass(frozen=True)
class Term(_HasFreeSymbols):
    """coefficient · Σ over the binders, where the guard holds, of the product of the factors."""

    coefficient: Fraction
    factors: tuple[Factor, ...] = ()
    binders: Binders = ()
    guard: Formula = TRUE

    @property
    def bound_symbols(self) -> frozenset[Atom]:
        return frozenset(b for b, _ in self.binders)

    def __str__(self) -> str:
        text = "·".join([*([str(self.coefficient)] if self.coefficient != 1 else []), *map(str, self.factors)]) or "1"
        text = text if self.guard == TRUE else f"[{self.guard}]{text}"
        return f"Σ({_format_binders(self.binders)}) {text}" if self.binders else text


@_cached_hash
@dataclass(frozen=True)
class Expr(_HasFreeSymbols):
    """A sum of terms: an element of a tensor, or a number."""

    terms: tuple[Term, ...]

    def __add__(self, other: Operand) -> Expr:
        return add_terms((*self.terms, *constant(other).terms))

    def __mul__(self, other: Operand) -> Expr:
        other = constant(other)
        arithmetic: ExtendedArithmetic | None = current_session().arithmetic
        if arithmetic is None or (arithmetic.is_finite(self) and arithmetic.is_finite(other)):
            return multiply(self, other)
        return arithmetic.product(self, other)

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Operand) -> Expr:
        return self + -constant(other)

    def __rsub__(self, other: Operand) -> Expr:
        return constant(other) - self

    def __truediv__(self, other: Operand) -> Expr:
        return self * reciprocal(constant(other))

    def __rtruediv__(self, other: Operand) -> Expr:
        return constant(other) * reciprocal(self)

    __radd__ = __add__
    __rmul__ = __mul__

    def replace_atoms(self, change: Replacement) -> Expr:
        if not change.may_change(self.mentioned_symbols):
            return self
        total: list[Term] = []
        for term in self.terms:
            if change.may_change(term.mentioned_symbols):
                total += _replace_in_term(term, change)
            else:
                total.append(term)
        return add_terms(total)

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


Operand: TypeAlias = "Expr | int | float | Fraction"
ZERO = Expr(())
ONE = Fraction(1)


class ExtendedArithmetic(Protocol):
    """Products and reciprocals for values that may be infinite (`verifier/extended_reals.py`)."""

    def is_finite(self, value: Expr) -> bool: ...
    def product(self, left: Expr, right: Expr) -> Expr: ...
    def reciprocal(self, value: Expr) -> Expr: ...
    def nan_condition(self, value: Expr) -> tuple[Formula, Expr]: ...


def _format_binders(binders: Binders) -> str:
    return ", ".join(f"{b}<{e}" for b, e in binders)


def _replace_in_params(params: tuple[Any, ...], change: Replacement) -> tuple[Any, ...]:
    return tuple(replace_atoms(p, change) if isinstance(p, Polynomial) else p for p in params)


def _replace_in_term(term: Term, change: Replacement) -> tuple[Term, ...]:
    """Return the terms of a term with its atoms replaced; each factor may become a sum."""
    binders = tuple((b, replace_atoms(extent, change)) for b, extent in term.binders)
    new = Expr((Term(term.coefficient, (), binders, replace_in_formula(term.guard, change)),))
    for factor in term.factors:
        new = multiply(new, expr_of_factor(factor.replace_atoms(change)))
    return new.terms


# -- building ------------------------------------------------------------------------------------------------------


def constant(subject: Operand) -> Expr:
    """Return a number as a value. Of an infinity nothing is known but its name."""
    if isinstance(subject, Expr):
        return subject
    if isinstance(subject, float) and isinf(subject):
        return expr_of_factor(Call("Infinity", (), (str(subject),)))
    return Expr((Term(Fraction(subject)),)) if subject else ZERO


def integer_value(size: Size) -> Expr:
    """Return a size or an index as a real number."""
    if isinstance(size, int):
        return constant(size)
    terms = (
        Term(Fraction(c), tuple(IntegerValue(polynomial_of_atom(atom)) for atom in monomial))
        for monomial, c in size.terms.items()
    )
    return Expr(tuple(terms))


def expr_of_factor(factor: Factor | Expr) -> Expr:
    return factor if isinstance(factor, Expr) else Expr((Term(ONE, (factor,)),))


def multiply(left: Expr, right: Expr) -> Expr:
    """Multiply each term of one value by each of the other."""
    return add_terms(_multiply_terms(t, u) for t in left.terms for u in right.terms)


def add_terms(terms: Iterable[Term]) -> Expr:
    """Return the sum of some terms, equal ones added up."""
    total: dict[tuple[Any, ...], Term] = {}
    for term in terms:
        if term.guard is not FALSE:
            key = (term.factors, term.binders, term.guard)
            found = total.get(key)
            total[key] = term if found is None else Term(found.coefficient + term.coefficient, *key)
    return Expr(tuple(term for term in total.values() if term.coefficient))


def _multiply_terms(left: Term, right: Term) -> Term:
    if not left.bound_symbols.isdisjoint(right.bound_symbols):
        right = rename_binders(right)
    return Term(
        left.coefficient * right.coefficient,
        left.factors + right.factors,
        left.binders + right.binders,
        conjunction(left.guard, right.guard),
    )


def rename_binders(term: Term) -> Term:
    """Return the same sum over new binders."""
    change, binders = _new_binders(term.binders)
    with recording_partial_calls():  # which is nothing: what was computed gets another name
        factors = tuple(_as_factor(factor.replace_atoms(change)) for factor in term.factors)
    return Term(term.coefficient, factors, binders, replace_in_formula(term.guard, change))


def _as_factor(rebuilt: Factor | Expr) -> Factor:
    """Return the single factor that a renamed factor is: renaming never makes it a sum."""
    if not isinstance(rebuilt, Expr):
        return rebuilt
    ((factor,),) = (term.factors for term in rebuilt.terms)
    return factor


def _new_binders(binders: Binders) -> tuple[Replacement, Binders]:
    new = {b: fresh_symbol(str(b.args[0]).partition("'")[0]) for b, _ in binders}
    change = Substitution(new)
    return change, tuple((single_symbol(new[b]), replace_atoms(extent, change)) for b, extent in binders)


def _with_fresh_binders(value: Expr) -> Expr:
    """Return the value with binders of its own, so that no name is bound inside and outside of a function."""
    return Expr(tuple(rename_binders(term) if term.binders else term for term in value.terms))


def guard_expr(condition: Formula, value: Expr) -> Expr:
    """`value` where the condition holds, else 0."""
    if condition == TRUE:
        return value
    return add_terms(Term(t.coefficient, t.factors, t.binders, conjunction(condition, t.guard)) for t in value.terms)


def fold(monoid: Monoid, pieces: Iterable[FoldBranch]) -> Expr:
    """Return a fold in normal form: each piece of one form, no fold of the same kind inside, a least of greatest
    ones."""
    flat = [part for piece in pieces for part in _flatten_branch(monoid, piece)]
    flat = list(dict.fromkeys(flat)) if monoid != "prod" else flat
    flat = _merge_constants(monoid, flat)
    if len(flat) == 1 and not flat[0].binders and flat[0].guard == TRUE:
        return flat[0].body
    below = next((p for p in flat if monoid == "max" and p.is_unconditional and _as_plain_minimum(p.body)), None)
    if below is not None:
        rest = [p for p in flat if p is not below]
        inner = _as_plain_minimum(below.body)
        return fold("min", [FoldBranch((), TRUE, fold("max", [*map(_rename_branch_binders, rest), p])) for p in inner])
    return expr_of_factor(Fold(monoid, tuple(flat)))


def _flatten_branch(monoid: Monoid, piece: FoldBranch) -> Iterator[FoldBranch]:
    """Yield a piece, by the cases of its body, folds of the same kind laid open."""
    for condition, (body,) in split_cases(piece.body):
        guard = conjunction(piece.guard, condition)
        inner = single_factor(body)
        if guard == FALSE:
            continue
        if isinstance(inner, Fold) and inner.monoid == monoid:
            for part in map(_rename_branch_binders, inner.branches):
                yield _rename_branch_binders(
                    FoldBranch(piece.binders + part.binders, conjunction(guard, part.guard), part.body)
                )
        else:
            yield _rename_branch_binders(FoldBranch(piece.binders, guard, _with_fresh_binders(body)))


def _as_plain_minimum(body: Expr) -> tuple[FoldBranch, ...]:
    inner = single_factor(body)
    if isinstance(inner, Fold) and inner.monoid == "min" and all(branch.is_unconditional for branch in inner.branches):
        return inner.branches
    return ()


def _merge_constants(monoid: Monoid, pieces: list[FoldBranch]) -> list[FoldBranch]:
    """Replace several plain numbers by their greatest or least."""
    numbers = [p.body.constant for p in pieces if p.is_unconditional and p.body.constant is not None]
    if monoid == "prod" or len(numbers) < 2:
        return pieces
    best = (max if monoid == "max" else min)(n or Fraction(0) for n in numbers)
    others = [p for p in pieces if not (p.is_unconditional and p.body.constant is not None)]
    return [*others, FoldBranch((), TRUE, constant(best))]


def _rename_branch_binders(piece: FoldBranch) -> FoldBranch:
    change, binders = _new_binders(piece.binders)
    with recording_partial_calls():  # as above
        return (
            FoldBranch(binders, replace_in_formula(piece.guard, change), piece.body.replace_atoms(change))
            if binders
            else piece
        )


def walk_factors(value: Expr) -> Iterator[Factor]:
    """Yield the factors of a value and of what is inside of calls and folds, outermost first."""
    for factor in (factor for term in value.terms for factor in term.factors):
        yield factor
        inner = factor.args if isinstance(factor, Call) else ()
        for part in (piece.body for piece in factor.branches) if isinstance(factor, Fold) else inner:
            yield from walk_factors(part)


def single_factor(value: Expr) -> Factor | None:
    """Return the factor that a value is, None where it is a number, a product or a sum."""
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and term.guard == TRUE and len(term.factors) == 1
    return term.factors[0] if plain else None


def reciprocal(value: Expr) -> Expr:
    """1 / value. 1 / 0 is a number of which nothing is known but 1 / (a·b) = (1 / a)·(1 / b) and 1 / (1 / a) = a."""
    arithmetic: ExtendedArithmetic | None = current_session().arithmetic
    if arithmetic is not None and not arithmetic.is_finite(value):
        return arithmetic.reciprocal(value)
    return apply_by_cases(_reciprocal_of_sum, value)


def _reciprocal_of_sum(value: Expr) -> Expr:
    if value.constant:
        return constant(1 / value.constant)
    if len(value.terms) != 1:
        return _recorded_call(Call("Inverse", (_with_fresh_binders(value),)))
    (term,) = value.terms
    result = constant(1 / term.coefficient)
    for factor in term.factors:
        if not factor.free_symbols & term.bound_symbols:
            result = result * _reciprocal_of_factor(factor)
    if term.binders:
        inner = tuple(f for f in term.factors if f.free_symbols & term.bound_symbols)
        rest = Expr((Term(Fraction(1), inner, term.binders, term.guard),))
        result = result * _recorded_call(Call("Inverse", (_with_fresh_binders(rest),)))
    return result


def _reciprocal_of_factor(factor: Factor) -> Expr:
    match factor:
        case Call("Inverse", (inner,)):
            return inner
        case Call("Sqrt", (inner,)) if inner.constant is not None and inner.constant > 0:
            return expr_of_factor(factor) * constant(1 / inner.constant)
    return _recorded_call(Call("Inverse", (expr_of_factor(factor),)))


def call_function(function: str, *args: Operand, params: tuple[Any, ...] = ()) -> Expr:
    """Return a named function of values, case by case, simplified by the lemmas on it (`lemmas.py`)."""
    if function == "Inverse":
        return reciprocal(constant(args[0]))
    return apply_by_cases(lambda *values: _simplified_call(function, values, params), *map(constant, args))


def _simplified_call(function: str, values: tuple[Expr, ...], params: tuple[Any, ...]) -> Expr:
    from graphopt.expr.lemmas import EXACT_LEMMAS, LEMMAS, TYPED_LEMMAS

    known = TYPED_LEMMAS[function](params, *values) if function in TYPED_LEMMAS else None
    if known is None:
        lemmas = EXACT_LEMMAS if function.endswith("!") else LEMMAS
        known = lemmas[function](*values) if function in lemmas else None
    return _recorded_call(Call(function, tuple(map(_with_fresh_binders, values)), params)) if known is None else known


def _recorded_call(made: Call) -> Expr:
    record_call(made)
    return expr_of_factor(made)


def apply_by_cases(function: Callable[..., Expr], *values: Expr) -> Expr:
    """f([g]·a + [not g]·b) is [g]·f(a) + [not g]·f(b), for guards that do not depend on what the terms sum over."""
    result = ZERO
    for condition, parts in split_cases(*values):
        with under_guard(condition):
            result = result + guard_expr(condition, function(*parts))
    return result


def split_cases(*values: Expr) -> Iterator[tuple[Formula, tuple[Expr, ...]]]:
    """Yield the conditions under which values differ in form, and the values under each."""
    guard = next((g for v in values for t in v.terms if (g := _binder_free_guard(t)) != TRUE), None)
    if guard is None:
        yield TRUE, values
        return
    for side, denied in ((guard, NO_SYMBOLS), (negate(guard), conjuncts(guard))):
        for condition, parts in split_cases(*(_assume(v, side, denied) for v in values)):
            if (both := conjunction(side, condition)) != FALSE:
                yield both, parts


def _binder_free_guard(term: Term) -> Formula:
    """Return the part of a term's guard that does not depend on its binders."""
    return conjunction(*(part for part in conjuncts(term.guard) if not part.free_symbols & term.bound_symbols))


def _assume(value: Expr, known: Formula, denied: frozenset[Formula]) -> Expr:
    """Return the value where a condition holds, and where some parts of guards do not hold together."""
    return add_terms(
        Term(t.coefficient, t.factors, t.binders, conjunction(*(conjuncts(t.guard) - conjuncts(known))))
        for t in value.terms
        if not (denied and denied <= conjuncts(t.guard)) and conjunction(t.guard, known) != FALSE
    )
