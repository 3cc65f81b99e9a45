"""Integers that stand for sizes and indices, formulas over them, and what is known of them; the only user of z3.

An `Int` is a polynomial over symbols, quotients, remainders and choices; equal polynomials are equal objects, so most
questions need no solver. The others go to Z3 twice: with each product taken for one unknown (linear, decidable), then
as they are. `unknown` counts as not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from math import gcd
from typing import Any, Literal, Protocol, TypeAlias

import z3

Size: TypeAlias = "int | Int"
Monomial: TypeAlias = "tuple[Atom, ...]"
Rebuild: TypeAlias = "Callable[[Atom], Size | None]"


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """An unknown integer, or a function of integers that is no polynomial. Interned: equal atoms are one object."""

    kind: Literal["symbol", "quotient", "remainder", "choice"]
    args: tuple[Any, ...]
    serial: int

    def __lt__(self, other: Atom) -> bool:
        return self.serial < other.serial

    def __str__(self) -> str:
        match self.kind, self.args:
            case "symbol", (name,):
                return str(name)
            case "quotient", (a, b):
                return f"(({a})//({b}))"
            case "remainder", (a, b):
                return f"(({a})%({b}))"
        return f"if({', '.join(map(str, self.args))})"


_SERIAL = count()


@cache
def _atom(kind: Any, *args: Any) -> Atom:
    return Atom(kind, args, next(_SERIAL))


def forget() -> None:
    """Let go of all interned atoms: called between rules, whose integers never meet."""
    _atom.cache_clear()
    _symbols_of.cache_clear()
    _definition.cache_clear()
    negate.cache_clear()


def symbol(name: str) -> Int:
    """The unknown integer of that name."""
    return Int({(_atom("symbol", name),): 1})


def fresh(name: str) -> Int:
    """An unknown integer that differs from all others."""
    return symbol(f"{name}'{next(_SERIAL)}")


class Int:
    """A polynomial with integer coefficients that is not a constant: constants are plain `int`s."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Int) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Size) -> Size:
        total = dict(self.terms)
        for monomial, coefficient in terms_of(other):
            total[monomial] = total.get(monomial, 0) + coefficient
        return polynomial(total)

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            return Int({monomial: c * other for monomial, c in self.terms.items()}) if other else 0
        total: dict[Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                monomial = tuple(sorted(a + b)) if a and b else a or b
                total[monomial] = total.get(monomial, 0) + x * y
        return polynomial(total)

    def __neg__(self) -> Size:
        return Int({monomial: -c for monomial, c in self.terms.items()})

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __rsub__(self, other: Size) -> Size:
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
    def atoms(self) -> frozenset[Atom]:
        """The atoms of its monomials (not those inside other atoms)."""
        return frozenset(atom for monomial in self.terms for atom in monomial)

    def __str__(self) -> str:
        shown = ("*".join([*([str(c)] if c != 1 or not m else []), *map(str, m)]) for m, c in self.terms.items())
        return "+".join(shown).replace("+-", "-")

    __repr__ = __str__


def polynomial(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    return kept[()] if len(kept) == 1 and () in kept else Int(kept)


def terms_of(size: Size) -> Iterable[tuple[Monomial, int]]:
    return size.terms.items() if isinstance(size, Int) else (((), size),) if size else ()


def product(sizes: Iterable[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        result = size * result
    return result


def _split(dividend: Size, divisor: Size) -> tuple[Size, Size]:
    """Polynomial division: (q, r) with dividend = divisor·q + r, as much as possible in q."""
    lead, factor = max(terms_of(divisor), key=lambda term: (len(term[0]), term[0]))
    quotients: Size = 0
    rest: Size = 0
    while terms := list(terms_of(dividend)):
        monomial, coefficient = max(terms, key=lambda term: (len(term[0]), term[0]))
        taken = _over(monomial, lead)
        if taken is None or coefficient % factor:
            part = polynomial({monomial: coefficient})
            rest, dividend = part + rest, dividend - part
        else:
            part = polynomial({taken: coefficient // factor})
            quotients, dividend = part + quotients, dividend - part * divisor
    return quotients, rest


def _over(monomial: Monomial, lead: Monomial) -> Monomial | None:
    rest = list(monomial)
    for atom in lead:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide(dividend: Size, divisor: Size) -> Size | None:
    """The quotient where the polynomial divides evenly, else None."""
    if divisor == 0:
        return None
    whole, rest = _split(dividend, divisor)
    return whole if rest == 0 else None


def quotient(dividend: Size, divisor: Size) -> Size:
    """Rounded down, as Python does. By zero it is some number; who divides asks that it is not."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    if divisor == 0:
        raise ZeroDivisionError
    whole, rest = _split(dividend, divisor)
    return whole if rest == 0 else Int({(_atom("quotient", rest, divisor),): 1}) + whole


def remainder(dividend: Size, divisor: Size) -> Size:
    """With the divisor's sign, as Python does."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    if divisor == 0:
        raise ZeroDivisionError
    _, rest = _split(dividend, divisor)
    return 0 if rest == 0 or divisor == 1 else Int({(_atom("remainder", rest, divisor),): 1})


# -- formulas ------------------------------------------------------------------------------------------------------


_KINDS = {"ge": 0, "eq": 0x5555, "ne": 0x3333}


@dataclass(frozen=True, slots=True)
class Comparison:
    """`poly >= 0`, `poly == 0` or `poly != 0`."""

    kind: Literal["ge", "eq", "ne"]
    poly: Int

    def __hash__(self) -> int:
        return hash(self.poly) ^ _KINDS[self.kind]

    def __str__(self) -> str:
        return f"{self.poly} {'>=' if self.kind == 'ge' else '==' if self.kind == 'eq' else '!='} 0"


@dataclass(frozen=True, slots=True)
class And:
    parts: frozenset[Formula]

    def __str__(self) -> str:
        return "(" + " and ".join(sorted(map(str, self.parts))) + ")" if self.parts else "true"


@dataclass(frozen=True, slots=True)
class Or:
    parts: frozenset[Formula]

    def __str__(self) -> str:
        return "(" + " or ".join(sorted(map(str, self.parts))) + ")" if self.parts else "false"


class Subject(Protocol):
    """A truth value that is no comparison of integers: an element of a boolean tensor, a comparison of reals."""

    def rebuild(self, change: Rebuild) -> Any: ...
    def symbols(self) -> frozenset[Atom]: ...


@dataclass(frozen=True, slots=True)
class Fact:
    """`subject` is true, or is not."""

    subject: Any  # a Subject, hashable
    holds: bool = True

    def __str__(self) -> str:
        return str(self.subject) if self.holds else f"not {self.subject}"


Basic: TypeAlias = "Comparison | Fact"
Formula: TypeAlias = "Comparison | Fact | And | Or"
TRUE = And(frozenset())
FALSE = Or(frozenset())


def ge(left: Size, right: Size = 0) -> Formula:
    difference = left - right
    if isinstance(difference, int):
        return TRUE if difference >= 0 else FALSE
    shared = gcd(*(c for m, c in difference.terms.items() if m))
    if shared > 1:  # all integers: 2a + 1 >= 0 says a >= 0
        difference = polynomial({m: c // shared for m, c in difference.terms.items()})
        assert isinstance(difference, Int)
    return Comparison("ge", difference)


def le(left: Size, right: Size) -> Formula:
    return ge(right, left)


def lt(left: Size, right: Size) -> Formula:
    return ge(right, left + 1)


def eq(left: Size, right: Size = 0) -> Formula:
    difference = left - right
    if isinstance(difference, int):
        return FALSE if difference else TRUE
    if max(difference.terms.items())[1] < 0:
        difference = -difference
        assert isinstance(difference, Int)
    return Comparison("eq", difference)


def conj(*parts: Formula) -> Formula:
    flat = frozenset(p for part in parts for p in (part.parts if isinstance(part, And) else (part,)))
    flat = _propagated(flat) if any(isinstance(p, Or) for p in flat) else flat
    if FALSE in flat or _contradict(flat):
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else And(flat)


def _contradict(parts: frozenset[Formula]) -> bool:
    """Whether one of the parts is the negation of another: `p >= 0` and `-p - 1 >= 0`, a fact and its denial."""
    basic = [p for p in parts if isinstance(p, Comparison | Fact)]
    return len(basic) > 1 and any(negate(p) in parts for p in basic)


def _propagated(parts: frozenset[Formula]) -> frozenset[Formula]:
    """Within each alternative, what the other parts deny is dropped."""
    denied = frozenset(negate(p) for p in parts if not isinstance(p, Or))
    kept = (disj(*(p.parts - denied)) if isinstance(p, Or) and not p.parts & parts else p for p in parts)
    return frozenset(p for p in kept if not (isinstance(p, Or) and p.parts & parts))


def disj(*parts: Formula) -> Formula:
    flat = frozenset(p for part in parts for p in (part.parts if isinstance(part, Or) else (part,)))
    if TRUE in flat or _contradict(flat):
        return TRUE
    return next(iter(flat)) if len(flat) == 1 else Or(flat)


@cache
def negate(part: Formula) -> Formula:
    match part:
        case And(parts):
            return disj(*map(negate, parts))
        case Or(parts):
            return conj(*map(negate, parts))
        case Fact(subject, holds):
            return Fact(subject, not holds)
        case Comparison("ge", poly):
            return ge(-poly, 1)
        case Comparison("eq", poly):
            return Comparison("ne", poly)
    return Comparison("eq", part.poly)


def inside(index: Size, extent: Size) -> Formula:
    """0 <= index < extent."""
    return conj(ge(index), lt(index, extent))


def literals(part: Formula) -> Iterator[Basic]:
    if isinstance(part, Comparison | Fact):
        yield part
    else:
        for inner in part.parts:
            yield from literals(inner)


def conjuncts(part: Formula) -> frozenset[Formula]:
    return part.parts if isinstance(part, And) else frozenset({part})


def choice(condition: Formula, then: Size, otherwise: Size) -> Size:
    if condition == TRUE or then == otherwise:
        return then
    return otherwise if condition == FALSE else Int({(_atom("choice", condition, then, otherwise),): 1})


# -- rebuilding ----------------------------------------------------------------------------------------------------


def rebuild(size: Size, change: Rebuild) -> Size:
    """The polynomial with each atom replaced by what `change` gives for it (None: it stays)."""
    if isinstance(size, int):
        return size
    changed = {atom: new for atom in size.atoms if (new := change(atom)) is not None}
    if not changed:
        return size
    total: Size = 0
    for monomial, coefficient in size.terms.items():
        total = product([coefficient, *(changed.get(a, Int({(a,): 1})) for a in monomial)]) + total
    return total


def rebuild_formula(part: Formula, change: Rebuild) -> Formula:
    match part:
        case And(parts):
            return conj(*(rebuild_formula(p, change) for p in parts))
        case Or(parts):
            return disj(*(rebuild_formula(p, change) for p in parts))
        case Fact(subject, holds):
            new = subject.rebuild(change)
            return part if new == subject else Fact(new, holds)
    poly = rebuild(part.poly, change)
    if poly is part.poly:
        return part
    return ge(poly) if part.kind == "ge" else eq(poly) if part.kind == "eq" else negate(eq(poly))


def substitution(mapping: Mapping[Atom, Size]) -> Rebuild:
    """Replaces symbols, also inside quotients, remainders and choices."""
    memo: dict[Atom, Size | None] = {}

    def change(atom: Atom) -> Size | None:
        if atom in mapping:
            return mapping[atom]
        if atom.kind == "symbol":
            return None
        if atom not in memo:
            memo[atom] = remake(atom, change)
        return memo[atom]

    return change


def remake(atom: Atom, change: Rebuild) -> Size | None:
    """A composite atom with its parts rebuilt; None where nothing changes."""
    if atom.kind == "choice":
        condition, then, otherwise = atom.args
        parts = (rebuild_formula(condition, change), rebuild(then, change), rebuild(otherwise, change))
        return None if parts == atom.args else choice(*parts)
    over, by = rebuild(atom.args[0], change), rebuild(atom.args[1], change)
    if (over, by) == atom.args:
        return None
    if by == 0:
        return None  # no number: whoever divides is asked to show that it never happens
    return quotient(over, by) if atom.kind == "quotient" else remainder(over, by)


def symbols(subject: Size | Formula) -> frozenset[Atom]:
    """All symbols, wherever they are."""
    if isinstance(subject, int):
        return frozenset()
    if isinstance(subject, Int):
        return frozenset(s for atom in subject.atoms for s in _symbols_of(atom))
    if isinstance(subject, Comparison):
        return symbols(subject.poly)
    if isinstance(subject, Fact):
        found: frozenset[Atom] = subject.subject.symbols()
        return found
    return frozenset(s for part in subject.parts for s in symbols(part))


@cache
def _symbols_of(atom: Atom) -> frozenset[Atom]:
    if atom.kind == "symbol":
        return frozenset({atom})
    return frozenset(s for arg in atom.args for s in symbols(arg))


def value_of(size: Size, known: Mapping[Any, int]) -> int:
    """The number that a polynomial is, all symbols known."""
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


# -- Z3 ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Translated:
    """A formula for Z3, with what has to be said beside it."""

    formula: Any
    axioms: frozenset[Formula]
    products: frozenset[Monomial]


class _Translation:
    """To Z3. Linear: each product of unknowns is one unknown. Quotients come with what defines them."""

    def __init__(self, *, linear: bool) -> None:
        self.linear = linear
        self._atoms: dict[Atom, Any] = {}
        self._facts: dict[Any, Any] = {}
        self._products: dict[Monomial, Any] = {}
        self._done: dict[Formula, _Translated] = {}

    def translated(self, part: Formula) -> _Translated:
        if part not in self._done:
            composites, products = _vocabulary(part)
            axioms = frozenset(axiom for atom in composites for axiom in _definition(atom))
            inner = frozenset(m for axiom in axioms for m in _vocabulary(axiom)[1])
            self._done[part] = _Translated(self._formula(part), axioms, products | inner)
        return self._done[part]

    def formulas(self, parts: Iterable[Formula]) -> list[Any]:
        """The formulas, with the definitions of what they speak of."""
        all_ = {axiom: None for part in parts for axiom in (part, *self.translated(part).axioms)}
        return [self.translated(part).formula for part in all_]

    def size(self, size: Size) -> Any:
        if isinstance(size, int):
            return z3.IntVal(size)
        parts = [self._scaled(m, c) if m else z3.IntVal(c) for m, c in size.terms.items()]
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def _scaled(self, monomial: Monomial, coefficient: int) -> Any:
        return self._monomial(monomial) if coefficient == 1 else self._monomial(monomial) * coefficient

    def _monomial(self, monomial: Monomial) -> Any:
        if len(monomial) == 1:
            return self.atom(monomial[0])
        if monomial not in self._products:
            linear = self.linear
            self._products[monomial] = z3.FreshInt() if linear else z3.Product([self.atom(a) for a in monomial])
        return self._products[monomial]

    def atom(self, atom: Atom) -> Any:
        if atom not in self._atoms:
            self._atoms[atom] = self._new(atom)
        return self._atoms[atom]

    def _new(self, atom: Atom) -> Any:
        if atom.kind != "choice":
            return z3.Int(str(atom.serial))
        condition, then, otherwise = atom.args
        return z3.If(self._formula(condition), self.size(then), self.size(otherwise))

    def _formula(self, part: Formula) -> Any:
        match part:
            case And(parts):
                return z3.And([self._formula(p) for p in parts])
            case Or(parts):
                return z3.Or([self._formula(p) for p in parts])
            case Fact(subject, holds):
                truth = self._facts.setdefault(subject, z3.Bool(f"fact{len(self._facts)}"))
                return truth if holds else z3.Not(truth)
        poly = self.size(part.poly)
        return poly >= 0 if part.kind == "ge" else poly == 0 if part.kind == "eq" else poly != 0


def _vocabulary(subject: Size | Formula) -> tuple[frozenset[Atom], frozenset[Monomial]]:
    """The quotients and remainders, and the products of unknowns, that something speaks of, however deep."""
    composites: set[Atom] = set()
    products: set[Monomial] = set()
    todo: list[Any] = [subject]
    while todo:
        match todo.pop():
            case And(parts) | Or(parts):
                todo.extend(parts)
            case Comparison(_, poly):
                todo.append(poly)
            case Int() as size:
                products.update(m for m in size.terms if len(m) > 1)
                for atom in size.atoms:
                    if atom.kind == "choice":
                        todo.extend(atom.args)
                    elif atom.kind != "symbol" and atom not in composites:
                        composites.add(atom)
                        todo.extend(_definition(atom))
    return frozenset(composites), frozenset(products)


@cache
def _definition(atom: Atom) -> tuple[Formula, ...]:
    """What makes an atom the quotient or the remainder of its parts; nothing for a divisor of zero."""
    over, by = atom.args
    own = Int({(atom,): 1})
    rest = over - own * by if atom.kind == "quotient" else own
    small = disj(ge(-by), inside(rest, by))
    negative = disj(ge(by), conj(ge(-rest), ge(rest, by + 1)))
    if atom.kind == "quotient":
        return small, negative
    whole = Int({(_atom("quotient", over, by),): 1})
    return small, negative, disj(eq(by), eq(over, whole * by + own))


@dataclass(slots=True)
class Effort:
    """How hard the solver may try: milliseconds for one question, and until when."""

    milliseconds: int = 400
    deadline: Callable[[], bool] = lambda: False
    asked: int = 0
    linear: _Translation = field(default_factory=lambda: _Translation(linear=True))
    exact: _Translation = field(default_factory=lambda: _Translation(linear=False))


class OutOfTime(Exception):
    """The time for this rule is used up."""


_ANSWERS: dict[Any, bool] = {}
"""Questions that were asked, whatever their unknowns were called: the axes of a tensor ask the same ones."""


def _refuted(parts: Iterable[Formula], effort: Effort) -> bool:
    """Whether the formulas cannot hold together. False also where the solver does not know."""
    parts = list(parts)
    question = _question(parts)
    if question not in _ANSWERS:
        if effort.deadline():
            raise OutOfTime
        effort.asked += 1
        _ANSWERS[question] = _ask(parts, effort)
    return _ANSWERS[question]


def _ask(parts: list[Formula], effort: Effort) -> bool:
    products = frozenset(m for part in parts for m in effort.linear.translated(part).products)
    known = (p for part in parts for p in conjuncts(part) if isinstance(p, Comparison))
    if _unsatisfiable(effort.linear.formulas([*parts, *_products(known, products)]), effort):
        return True
    return bool(products) and _unsatisfiable(effort.exact.formulas(parts), effort)


def _question(parts: Iterable[Formula]) -> Any:
    """The formulas with their unknowns numbered in the order in which they came to be."""
    parts = list(parts)
    unknowns = sorted({s for part in parts for s in symbols(part)})
    return frozenset(_numbered(part, {s: i for i, s in enumerate(unknowns)}) for part in parts)


def _numbered(part: Any, numbers: Mapping[Atom, int]) -> Any:
    match part:
        case Comparison(kind, poly):
            return kind, _numbered(poly, numbers)
        case And(parts):
            return "and", frozenset(_numbered(p, numbers) for p in parts)
        case Or(parts):
            return "or", frozenset(_numbered(p, numbers) for p in parts)
        case Fact():
            return part
        case Int():
            return frozenset((_numbered_product(m, numbers), c) for m, c in part.terms.items())
        case Atom(kind="symbol"):
            return numbers[part]
        case Atom(kind=kind, args=args):
            return kind, *(_numbered(arg, numbers) for arg in args)
    return part


def _numbered_product(monomial: Monomial, numbers: Mapping[Atom, int]) -> Any:
    atoms = [_numbered(atom, numbers) for atom in monomial]
    return frozenset((atom, atoms.count(atom)) for atom in atoms)


def _unsatisfiable(formulas: list[Any], effort: Effort) -> bool:
    solver = z3.SimpleSolver()
    solver.set("timeout", effort.milliseconds)
    solver.add(formulas)
    return bool(solver.check() == z3.unsat)


def _products(known: Iterable[Comparison], wanted: frozenset[Monomial]) -> Iterator[Formula]:
    """Products of known inequalities with known non-negative unknowns, where they speak of the wanted products."""
    known = [fact for fact in known if fact.kind == "ge"]
    signs = {atom for fact in known for atom in _not_negative(fact.poly)}
    for monomial in wanted:
        if signs.issuperset(monomial):
            yield Comparison("ge", Int({monomial: 1}))
        for position, atom in enumerate(monomial):
            rest = monomial[:position] + monomial[position + 1 :]
            if not signs.issuperset(rest):
                continue
            for fact in known:
                if (atom,) in fact.poly.terms and len(fact.poly.terms) <= 4:
                    yield ge(fact.poly * Int({rest: 1}))


def _not_negative(poly: Int) -> Iterator[Atom]:
    """The atom that `poly >= 0` says to be non-negative."""
    terms = {m: c for m, c in poly.terms.items() if m}
    if len(terms) == 1 and poly.terms.get((), 0) <= 0:
        ((monomial, coefficient),) = terms.items()
        if len(monomial) == 1 and coefficient > 0:
            yield monomial[0]


def models(parts: Iterable[Formula], effort: Effort, variables: Iterable[Atom]) -> Iterator[dict[Atom, int]]:
    """Numbers for which the formulas hold, each time others; it ends where the solver finds no more."""
    solver = z3.Solver()
    solver.set("timeout", effort.milliseconds * 3)
    solver.add(effort.exact.formulas(parts))
    unknowns = {atom: effort.exact.atom(atom) for atom in variables}
    while not effort.deadline() and solver.check() == z3.sat:
        model = solver.model()
        found = {atom: model.eval(unknown, model_completion=True).as_long() for atom, unknown in unknowns.items()}
        yield found
        if not found:
            return
        solver.add(z3.Or([unknowns[atom] != number for atom, number in found.items()]))


# -- what is known -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Context:
    """What is known at a place: the facts of an instance and, further in, the guards passed on the way."""

    facts: frozenset[Formula]
    effort: Effort
    equal: Mapping[Atom, Size] = field(default_factory=dict)
    _proved: dict[Formula, bool] = field(default_factory=dict)
    _inner: dict[Formula, Context] = field(default_factory=dict)
    domains: dict[Any, Context] = field(default_factory=dict)
    """Contexts of the terms that were met here, by what they sum over."""
    _simplified: dict[Size | Formula, Any] = field(default_factory=dict)
    _possible: bool | None = None
    witness: Mapping[Atom, int] | None = None
    """Numbers for which all facts hold, where some were found without effort."""

    def knowing(self, *parts: Formula) -> Context:
        """The same with more known."""
        new = conj(*(self.simplify_formula(part) for part in parts))
        if new == TRUE or conjuncts(new) <= self.facts:
            return self
        if new not in self._inner:
            facts = self.facts | conjuncts(new)
            self._inner[new] = _solved(facts, dict(self.equal), self.effort, self.witness or {})
        return self._inner[new]

    @property
    def possible(self) -> bool:
        """False where the facts contradict each other for certain."""
        if self._possible is None:
            plainly = self.witness is not None
            self._possible = plainly or (FALSE not in self.facts and not _refuted(self.facts, self.effort))
        return self._possible

    def proves(self, goal: Formula) -> bool:
        """Whether the goal follows from the facts, for all integers."""
        goal = self.simplify_formula(goal)
        if goal not in self._proved:
            self._proved[goal] = self._prove(goal)
        return self._proved[goal]

    def _prove(self, goal: Formula) -> bool:
        if FALSE in self.facts:
            return True
        parts = [part for part in conjuncts(goal) if not self.plain(part)]
        if len(parts) != 1:
            return all(map(self.proves, parts))
        if self.witness is not None and _fails(parts, self.witness):
            return False
        denied = negate(conj(*parts))
        return _refuted([*self._relevant(denied), denied], self.effort)

    def plain(self, goal: Formula) -> bool:
        """Whether a formula is a fact, or one of sums and products of what is known not to be negative."""
        if goal in self.facts:
            return True
        return isinstance(goal, Comparison) and goal.kind == "ge" and self._plainly_not_negative(goal.poly)

    def _plainly_not_negative(self, poly: Int) -> bool:
        signs = {atom for m in poly.terms for atom in m if Comparison("ge", Int({(atom,): 1})) in self.facts}
        return all(c >= 0 and signs.issuperset(m) for m, c in poly.terms.items())

    def _relevant(self, goal: Formula) -> list[Formula]:
        """The facts that share unknowns with the goal, directly or through other facts."""
        reached, chosen = set(symbols(goal)), set[Formula]()
        while found := [f for f in self.facts if f not in chosen and (not symbols(f) or symbols(f) & reached)]:
            chosen.update(found)
            reached.update(s for f in found for s in symbols(f))
        return list(chosen)

    def simplify(self, size: Size) -> Size:
        """The same number, in the form in which equal numbers are most often equal objects."""
        if isinstance(size, int):
            return size
        if size not in self._simplified:
            self._simplified[size] = _whole(rebuild(size, self.change))
        simple: Size = self._simplified[size]
        return simple

    def change(self, atom: Atom) -> Size | None:
        if atom.kind == "symbol":
            return self.equal.get(atom)
        inner = remake(atom, self.change)
        if inner is not None:
            return self.simplify(inner)
        return self._choose(atom) if atom.kind == "choice" else self._divide(atom)

    def _choose(self, atom: Atom) -> Size | None:
        """A choice that is plainly made: one that takes the solver to make is left to the solver."""
        condition, then, otherwise = atom.args
        if all(map(self.plain, conjuncts(condition))):
            return self.simplify(then)
        return self.simplify(otherwise) if all(map(self.plain, conjuncts(negate(condition)))) else None

    def _divide(self, atom: Atom) -> Size | None:
        """Mixed radix: for 0 <= r < B, (q·B + r) // (A·B) is q // A and (q·B + r) % (A·B) is (q % A)·B + r."""
        over, by = atom.args
        whole = atom.kind == "quotient"
        if self.proves(inside(over, by)):
            return 0 if whole else self.simplify(over)
        if isinstance(by, int):
            return None
        for unit in _units(by):
            first, rest = _split(over, unit)
            fewer = divide(by, unit)
            if first != 0 and fewer is not None and self.proves(conj(inside(rest, unit), ge(fewer))):
                simple = quotient(first, fewer) if whole else remainder(first, fewer) * unit + rest
                return self.simplify(simple)
        return None

    def simplify_formula(self, part: Formula) -> Formula:
        if part not in self._simplified:
            self._simplified[part] = rebuild_formula(part, self.change)
        simple: Formula = self._simplified[part]
        return simple


def _whole(size: Size) -> Size:
    """(a // b)·b + a % b is a, also with a common factor."""
    for atom in size.atoms if isinstance(size, Int) else ():
        if atom.kind == "remainder" and isinstance(size, Int):
            over, by = atom.args
            part = quotient(over, by) * by
            for monomial, coefficient in size.terms.items():
                if monomial.count(atom) == 1 and isinstance(part, Int):
                    shared = polynomial({_over(monomial, (atom,)) or (): coefficient})
                    shorter = size - part * shared - Int({monomial: coefficient}) + shared * over
                    if atom not in getattr(shorter, "atoms", ()) and len(list(terms_of(shorter))) < len(size.terms):
                        return _whole(shorter)
    return size


def _units(by: Int) -> Iterator[Size]:
    """Proper divisors of a divisor, largest first."""
    if len(by.terms) != 1:
        return
    ((monomial, coefficient),) = by.terms.items()
    if abs(coefficient) != 1:
        yield Int({monomial: 1})
    for position in range(len(monomial) if len(monomial) > 1 else 0):
        yield polynomial({monomial[:position] + monomial[position + 1 :]: coefficient})
    if len(monomial) > 2:
        yield from (Int({(atom,): 1}) for atom in monomial)


def context(parts: Iterable[Formula], effort: Effort) -> Context:
    """A context in which these formulas are known."""
    return _solved(frozenset(p for part in parts for p in conjuncts(part)), {}, effort, {})


def _solved(facts: frozenset[Formula], equal: dict[Atom, Size], effort: Effort, near: Mapping[Atom, int]) -> Context:
    """Facts, with each equation that gives a symbol used up: the symbol is replaced wherever it occurs."""
    while (found := _solvable(facts)) is not None:
        atom, size = found
        change = substitution({atom: size})
        equal = {a: rebuild(s, change) for a, s in equal.items()} | {atom: size}
        facts = conjuncts(conj(*(rebuild_formula(fact, change) for fact in facts)))
    facts = _chosen(facts)
    return Context(facts, effort, equal, witness=_witness(facts, near))


def _chosen(facts: frozenset[Formula]) -> frozenset[Formula]:
    """Facts without the choices that other facts make plainly."""

    def change(atom: Atom) -> Size | None:
        if atom.kind == "choice":
            condition, then, otherwise = atom.args
            if conjuncts(condition) <= facts:
                return rebuild(then, change)
            if conjuncts(negate(condition)) <= facts:
                return rebuild(otherwise, change)
        return None if atom.kind == "symbol" else remake(atom, change)

    if not any(atom.kind == "choice" for fact in facts for atom in _inner_atoms(fact)):
        return facts
    kept = frozenset(fact for fact in facts if not _inner_atoms(fact))
    return conjuncts(conj(*kept, *(rebuild_formula(fact, change) for fact in facts - kept)))


def _inner_atoms(fact: Formula) -> frozenset[Atom]:
    """The atoms of a fact that are no symbols."""
    polys = [part.poly for part in literals(fact) if isinstance(part, Comparison)]
    return frozenset(atom for poly in polys for atom in poly.atoms if atom.kind != "symbol")


def _witness(facts: frozenset[Formula], near: Mapping[Atom, int]) -> Mapping[Atom, int] | None:
    """Numbers for which the facts hold, among a few that often do: sizes of 2 and more, indices of 0."""
    unknowns = frozenset(s for fact in facts for s in symbols(fact))
    new = sorted(unknowns - near.keys())
    for numbers in ((0,), (2, 3, 5, 4), (1,), (1, 0)) if new else ((0,),):
        guess = {**near, **{atom: numbers[i % len(numbers)] for i, atom in enumerate(new)}}
        if _holds(facts, guess):
            return guess
    return None


def _holds(parts: Iterable[Formula], witness: Mapping[Atom, int]) -> bool:
    """Whether formulas hold for these numbers; what speaks of something else holds nowhere, as far as is known."""
    try:
        return all(truth_of(part, witness) for part in parts)
    except (KeyError, ZeroDivisionError):
        return False


def _fails(parts: Iterable[Formula], witness: Mapping[Atom, int]) -> bool:
    """Whether one of the formulas is false for these numbers for certain."""
    try:
        return not all(truth_of(part, witness) for part in parts)
    except (KeyError, ZeroDivisionError):
        return False


def _solvable(facts: frozenset[Formula]) -> tuple[Atom, Size] | None:
    for fact in facts:
        if isinstance(fact, Comparison) and fact.kind == "eq":
            for atom in sorted(fact.poly.atoms, reverse=True):
                solution = solve(fact.poly, atom)
                if solution is not None:
                    return atom, solution
    return None


def only_symbol(size: Size) -> Atom:
    assert isinstance(size, Int)
    (atom,) = size.atoms
    return atom


def solve(poly: Int, atom: Atom) -> Size | None:
    """The value of a symbol that makes `poly` zero, where it occurs once, with coefficient 1 or -1."""
    coefficient = poly.terms.get((atom,), 0)
    if atom.kind != "symbol" or abs(coefficient) != 1:
        return None
    rest = polynomial({m: c for m, c in poly.terms.items() if m != (atom,)})
    return None if atom in symbols(rest) else rest * -coefficient


def formula(part: Any) -> Formula:
    """A truth value of either kind as a formula."""
    if isinstance(part, bool):
        return TRUE if part else FALSE
    assert isinstance(part, Comparison | Fact | And | Or)
    return part
