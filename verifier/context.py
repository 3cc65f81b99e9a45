"""What is known of integers at a place, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphopt.base.integers import (
    COMPOSITE,
    FALSE,
    NOTHING,
    TRUE,
    And,
    Atom,
    Comparison,
    Formula,
    Int,
    Or,
    Size,
    alone,
    conj,
    conjuncts,
    divide,
    divided,
    eq,
    ge,
    inside,
    negate,
    ordered,
    polynomial,
    quotient,
    remainder,
    symbol,
    terms_of,
    without,
)
from graphopt.base.places import undone
from graphopt.base.rebuilding import Substitution, only_symbol, rebuild, rebuild_formula, remake, solve, truth_of
from graphopt.base.session import memoized
from graphopt.verifier.solver import Effort, hold, refuted


@dataclass(eq=False)
class Context:
    """What is known at a place: the facts of an instance and, further in, the guards passed on the way."""

    facts: frozenset[Formula]
    effort: Effort
    equal: Mapping[Atom, Size] = field(default_factory=dict)
    _proved: dict[Formula, bool] = field(default_factory=dict)
    _inner: dict[Formula, Context] = field(default_factory=dict)
    domains: dict[Any, Context | None] = field(default_factory=dict)
    """Contexts of the terms that were met here, by what they sum over; None where no more is known there."""
    agreed: dict[Any, bool] = field(default_factory=dict)
    """Whether the elements of two tensors agree here."""
    equated: dict[Any, bool] = field(default_factory=dict)
    """Whether two values are equal here, those inside of others, too: of nested functions each pair is met often."""
    settled: dict[Any, Any] = field(default_factory=dict)
    """The terms of values, in normal form under what is known here."""
    _simplified: dict[Size | Formula, Any] = field(default_factory=dict)
    _replaced: dict[Atom, Size | None] = field(default_factory=dict)
    _bounds: dict[Size, int] | None = None
    """What is at most added to which polynomials for them not to be negative."""
    _connected: list[tuple[frozenset[Atom], list[Formula]]] | None = None
    _possible: bool | None = None
    witness: Mapping[Atom, int] | None = None
    """Numbers for which all facts hold, where some were found without effort."""

    def knowing(self, *parts: Formula) -> Context:
        """Return the same with more known."""
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
            self._possible = plainly or (FALSE not in self.facts and not refuted(self.facts, self.effort))
        return self._possible

    def proves(self, goal: Formula) -> bool:
        """Return whether the goal follows from the facts, for all integers."""
        goal = self.simplify_formula(goal)
        if goal not in self._proved:
            self._proved[goal] = self._prove(goal)
        return self._proved[goal]

    def _prove(self, goal: Formula) -> bool:
        if FALSE in self.facts:
            return True
        parts = [part for part in ordered(conjuncts(goal)) if not self.plain(part)]
        if len(parts) != 1:
            return all(map(self.proves, parts))
        if self.witness is not None and _fails(parts, self.witness):
            return False
        if self._congruent(parts[0]):
            return True
        denied = negate(conj(*parts))
        relevant = self._relevant(denied)
        near = [fact for fact in relevant if fact.symbols <= denied.symbols]
        if len(near) < len(relevant) and refuted([*near, denied], self.effort):
            return True  # few facts make a question that other instances ask too
        return refuted([*relevant, denied], self.effort)

    def _congruent(self, goal: Formula) -> bool:
        """Return whether the goal equates two quotients (or remainders) of equal numbers by equal divisors."""
        if not isinstance(goal, Comparison) or goal.kind != "eq" or sorted(goal.poly.terms.values()) != [-1, 1]:
            return False
        one, other = goal.poly.terms
        if not len(one) == len(other) == 1 or one[0].kind != other[0].kind or one[0].kind in ("symbol", "choice"):
            return False
        return all(self.proves(eq(a, b)) for a, b in zip(one[0].args, other[0].args, strict=True))

    def plain(self, goal: Formula) -> bool:
        """Return whether a formula is a fact, weaker than one, or one of sums and products of what is not negative."""
        if goal in self.facts:
            return True
        if not isinstance(goal, Comparison) or goal.kind == "eq":
            return False
        if goal.kind == "ne":
            return any(self._bounded(side, 1) for side in (goal.poly, Int({m: -c for m, c in goal.poly.terms.items()})))
        return self._bounded(goal.poly, 0) or self._plainly_not_negative(goal.poly)

    def _bounded(self, poly: Int, least: int) -> bool:
        """Return whether a fact says that `poly >= least`: it bounds the same, constants aside, at least as tightly."""
        if self._bounds is None:
            self._bounds = {}
            for fact in self.facts:
                if isinstance(fact, Comparison) and fact.kind == "ge":
                    body, constant = _without_constant(fact.poly)
                    self._bounds[body] = min(constant, self._bounds.get(body, constant))
        body, constant = _without_constant(poly)
        return body in self._bounds and self._bounds[body] <= constant - least

    def _plainly_not_negative(self, poly: Int) -> bool:
        signs = {atom for m in poly.terms for atom in m if Comparison("ge", alone(atom)) in self.facts}
        return all(c >= 0 and signs.issuperset(m) for m, c in poly.terms.items())

    def _relevant(self, goal: Formula) -> list[Formula]:
        """Return the facts that share unknowns with the goal, directly or through other facts."""
        if self._connected is None:
            self._connected = _connected(self.facts)
        reached = goal.symbols
        return [f for names, facts in self._connected if not names or not names.isdisjoint(reached) for f in facts]

    def simplify(self, size: Size) -> Size:
        """Return the same number, in the form in which equal numbers are most often equal objects."""
        if isinstance(size, int):
            return size
        if size not in self._simplified:
            self._simplified[size] = _whole(rebuild(size, self))
        simple: Size = self._simplified[size]
        return simple

    @cached_property
    def _solved_for(self) -> frozenset[Atom]:
        """A set keeps the hashes of what is in it: to look for one in a dictionary asks for each anew."""
        return frozenset(self.equal)

    def touches(self, names: frozenset[Atom]) -> bool:
        return COMPOSITE in names or not names.isdisjoint(self._solved_for)

    def replacement(self, atom: Atom) -> Size | None:
        if atom.kind == "symbol" or atom in self.equal:
            return self.equal.get(atom)
        if atom not in self._replaced:
            self._replaced[atom] = self._replacement(atom)
        return self._replaced[atom]

    def _replacement(self, atom: Atom) -> Size | None:
        inner = remake(atom, self)
        if inner is not None:
            return self.simplify(inner)
        match atom.kind:
            case "choice":
                return self._choose(atom)
            case "nth" | "order" | "alike":
                within, where = undone(atom) or (None, FALSE)
                return self.simplify(within) if within is not None and self.proves(where) else None
        return self._divide(atom)

    def _choose(self, atom: Atom) -> Size | None:
        """Return a choice that is plainly made: one that takes the solver to make is left to the solver."""
        condition, then, otherwise = atom.args
        if all(map(self.plain, conjuncts(condition))):
            return self.simplify(then)
        return self.simplify(otherwise) if all(map(self.plain, conjuncts(negate(condition)))) else None

    def _divide(self, atom: Atom) -> Size | None:
        """Mixed radix: for 0 <= r < B, (q·B + r) // (A·B) is q // A and (q·B + r) % (A·B) is (q % A)·B + r."""
        over, by = atom.args
        whole = atom.kind == "quotient"
        if isinstance(over, Int) and any(part.kind == "choice" for part in over.atoms):
            return None  # as with choices: what takes the solver to make is left to the solver
        if self.proves(inside(over, by)):
            return 0 if whole else self.simplify(over)
        if isinstance(by, int):
            return None
        for unit in _units(by):
            first, rest = divided(over, unit)
            fewer = divide(by, unit)
            if first != 0 and fewer is not None and self.proves(conj(inside(rest, unit), ge(fewer))):
                simple = quotient(first, fewer) if whole else remainder(first, fewer) * unit + rest
                return self.simplify(simple)
        return None

    def multiples(self) -> list[Formula]:
        """Return equations: symbols that are known to be multiples of something positive are so many times that.

        This names a number of which there is one for each value of the symbol: so the facts may be of no bound symbols.
        """
        told = [found for fact in ordered(self.facts) if (found := _multiple(fact)) is not None]
        named = dict(sorted(told, key=lambda found: isinstance(found[1], Int)))  # of a number only where of no size
        new = [eq(alone(over), by * symbol(f"({over})/({by})")) for over, by in named.items() if self.proves(ge(by, 1))]
        return [*new, *self.knowing(*new).multiples()] if new else []

    def simplify_formula(self, part: Formula) -> Formula:
        if part not in self._simplified:
            self._simplified[part] = rebuild_formula(part, self)
        simple: Formula = self._simplified[part]
        return simple


@memoized
def _without_constant(poly: Int) -> tuple[Size, int]:
    constant = poly.terms.get((), 0)
    return poly - constant, constant


def _connected(facts: Iterable[Formula]) -> list[tuple[frozenset[Atom], list[Formula]]]:
    """Facts in groups that share no unknowns, with the unknowns of each."""
    groups: list[tuple[frozenset[Atom], list[Formula]]] = []
    for fact in facts:
        apart = [group for group in groups if group[0].isdisjoint(fact.symbols)]
        touched = [group for group in groups if not group[0].isdisjoint(fact.symbols)]
        names = fact.symbols.union(*(names for names, _ in touched))
        groups = [*apart, (names, [fact, *(f for _, inner in touched for f in inner)])]
    return groups


def _whole(size: Size) -> Size:
    """Return (a // b)·b + a % b is a, also with a common factor."""
    for atom in size.atoms if isinstance(size, Int) else ():
        if atom.kind == "remainder" and isinstance(size, Int):
            over, by = atom.args
            part = quotient(over, by) * by
            for monomial, coefficient in size.terms.items():
                if monomial.count(atom) == 1 and isinstance(part, Int):
                    shared = polynomial({without(monomial, (atom,)) or (): coefficient})
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
        yield from (alone(atom) for atom in monomial)


def context(parts: Iterable[Formula], effort: Effort) -> Context:
    """Return a context in which these formulas are known."""
    parts = tuple(parts)
    if parts not in effort.contexts:
        facts = frozenset(p for part in parts for p in conjuncts(part))
        if facts not in effort.contexts:
            effort.contexts[facts] = _solved(conjuncts(conj(*ordered(facts))), {}, effort, {})
        effort.contexts[parts] = effort.contexts[facts]
    found: Context = effort.contexts[parts]
    return found


def _solved(facts: frozenset[Formula], equal: dict[Atom, Size], effort: Effort, near: Mapping[Atom, int]) -> Context:
    """Facts, with what an equation gives replaced wherever it occurs.

    A symbol is then used up, and so is its equation. A quotient, a remainder or a choice has a meaning of its own:
    its equation stays.
    """
    while (found := _solvable(facts, equal)) is not None:
        fact, atom, size = found
        change = Substitution({atom: size})
        equal = {_renewed(a, change): rebuild(s, change) for a, s in equal.items()} | {atom: size}
        kept = () if atom.kind == "symbol" else (fact,)
        facts = conjuncts(conj(*kept, *(rebuild_formula(f, change) for f in ordered(facts) if f not in kept)))
    facts = _chosen(facts)
    return Context(facts, effort, equal, witness=_witness(facts, near))


@dataclass(frozen=True)
class _Chosen:
    """Replaces the choices that facts make plainly."""

    facts: frozenset[Formula]
    _memo: dict[Atom, Size | None] = field(default_factory=dict, compare=False)

    def touches(self, names: frozenset[Atom]) -> bool:
        return COMPOSITE in names

    def replacement(self, atom: Atom) -> Size | None:
        if atom not in self._memo:
            self._memo[atom] = self._replacement(atom)
        return self._memo[atom]

    def _replacement(self, atom: Atom) -> Size | None:
        if atom.kind == "choice":
            condition, then, otherwise = atom.args
            if conjuncts(condition) <= self.facts:
                return rebuild(then, self)
            if conjuncts(negate(condition)) <= self.facts:
                return rebuild(otherwise, self)
        return None if atom.kind == "symbol" else remake(atom, self)


def _chosen(facts: frozenset[Formula]) -> frozenset[Formula]:
    """Facts without the choices that other facts make plainly."""
    composite = (fact for fact in facts if COMPOSITE in fact.names)
    with_choices = [fact for fact in composite if any(_is_made(condition, facts) for condition in _conditions(fact))]
    if not with_choices:
        return facts
    chosen = _Chosen(facts)
    made = (rebuild_formula(fact, chosen) for fact in ordered(with_choices))
    return conjuncts(conj(*facts.difference(with_choices), *made))


def _is_made(condition: Formula, facts: frozenset[Formula]) -> bool:
    return conjuncts(condition) <= facts or conjuncts(negate(condition)) <= facts


@memoized
def _conditions(part: Formula) -> frozenset[Formula]:
    """Return what the choices in a formula hang on, however deep."""
    found: set[Formula] = set()
    seen: set[Any] = set()
    todo: list[Any] = [part]
    while todo:
        subject = todo.pop()
        if subject in seen:
            continue
        seen.add(subject)
        match subject:
            case And(parts) | Or(parts):
                todo.extend(parts)
            case Comparison(_, poly):
                todo.append(poly)
            case Int():
                todo.extend(arg for atom in subject.atoms if atom.kind != "symbol" for arg in atom.args)
                found.update(atom.args[0] for atom in subject.atoms if atom.kind == "choice")
    return frozenset(found)


def _witness(facts: frozenset[Formula], near: Mapping[Atom, int]) -> Mapping[Atom, int] | None:
    """Numbers for which the facts hold, among a few that often do: sizes of 2 and more, indices of 0."""
    unknowns = NOTHING.union(*(fact.symbols for fact in facts))
    new = sorted(unknowns - near.keys())
    for numbers in ((0,), (2, 3, 5, 4), (1,), (1, 0)) if new else ((0,),):
        guess = {**near, **{atom: numbers[i % len(numbers)] for i, atom in enumerate(new)}}
        if hold(facts, guess):
            return guess
    return None


def _fails(parts: Iterable[Formula], witness: Mapping[Atom, int]) -> bool:
    """Return whether one of the formulas is false for these numbers for certain."""
    try:
        return not all(truth_of(part, witness) for part in parts)
    except (KeyError, ZeroDivisionError):
        return False


def _solvable(facts: frozenset[Formula], equal: Mapping[Atom, Size]) -> tuple[Formula, Atom, Size] | None:
    """Return an equation that gives an atom: a choice (a quotient) by symbols, else a symbol by anything."""
    equations = [fact for fact in ordered(facts) if isinstance(fact, Comparison) and fact.kind == "eq"]
    for fact in equations:
        composite = [atom for atom in fact.poly.atoms if atom.kind != "symbol"]
        if len(composite) == 1 and composite[0] not in equal:
            solution = solve(fact.poly, composite[0])
            if solution is not None:
                return fact, composite[0], solution
    for fact in equations:
        for atom in sorted(fact.poly.atoms, reverse=True):
            solution = solve(fact.poly, atom) if atom.kind == "symbol" else None
            if solution is not None:
                return fact, atom, solution
    return None


def _multiple(fact: Formula) -> tuple[Atom, Size] | None:
    """Return the symbol of which a fact says that it is a multiple, and of what."""
    match fact:
        case Comparison(
            kind="eq", poly=Int(atoms=(Atom(kind="remainder", args=(Int() as dividend, by)) as atom,)) as poly
        ):
            symbols = [over for over in dividend.atoms if over.kind == "symbol" and dividend == alone(over)]
            is_told = poly in (alone(atom), -alone(atom)) and symbols
            return (symbols[0], by) if is_told and not (isinstance(by, Int) and symbols[0] in by.names) else None
    return None


def _renewed(atom: Atom, change: Substitution) -> Atom:
    """Return a quotient, a remainder or a choice after a substitution; itself where that is no longer one."""
    new = remake(atom, change) if atom.kind != "symbol" else None
    plain = isinstance(new, Int) and len(new.atoms) == 1 and new.terms == {(*new.atoms,): 1}
    return only_symbol(new) if plain and new is not None else atom
