"""Facts about integers that hold at a place in a value, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from graphopt.base.session import memoized
from graphopt.expr.index_lists import cancel_inverse
from graphopt.expr.integers import (
    COMPOSITE,
    FALSE,
    NO_SYMBOLS,
    TRUE,
    And,
    Atom,
    Comparison,
    Formula,
    Or,
    Polynomial,
    Size,
    conjunction,
    conjuncts,
    divide_monomial,
    divide_with_remainder,
    eq,
    exact_quotient,
    ge,
    in_creation_order,
    in_range,
    negate,
    polynomial,
    polynomial_of_atom,
    quotient,
    remainder,
    symbol,
    terms_of,
)
from graphopt.expr.substitution import (
    IntegerEvaluation,
    Substitution,
    replace_atoms,
    replace_in_atom,
    replace_in_formula,
    single_symbol,
    solve_for_atom,
)
from graphopt.verifier.solver import SolverSession, are_satisfied, is_unsatisfiable


@dataclass(eq=False)
class ProofContext:
    """The facts that are known at a place: those of an instance and, further in, the guards passed on the way."""

    facts: frozenset[Formula]
    effort: SolverSession
    solutions: Mapping[Atom, Size] = field(default_factory=dict)
    _proved: dict[Formula, bool] = field(default_factory=dict)
    _inner: dict[Formula, ProofContext] = field(default_factory=dict)
    domains: dict[Any, ProofContext | None] = field(default_factory=dict)
    """Contexts of the terms that were met here, by what they sum over; None where no more is known there."""
    tensor_equalities: dict[Any, bool] = field(default_factory=dict)
    """Equality of the elements of two tensors here."""
    value_equalities: dict[Any, bool] = field(default_factory=dict)
    """Equality of two values here, inner ones included: of nested functions each pair is met often."""
    normal_forms: dict[Any, Any] = field(default_factory=dict)
    """The terms of values, in normal form under what is known here."""
    _simplified: dict[Size | Formula, Any] = field(default_factory=dict)
    _replaced: dict[Atom, Size | None] = field(default_factory=dict)
    _bounds: dict[Size, int] | None = None
    """Least summand that makes a polynomial non-negative, by polynomial."""
    _connected: list[tuple[frozenset[Atom], list[Formula]]] | None = None
    _possible: bool | None = None
    witness: Mapping[Atom, int] | None = None
    """Numbers for which all facts hold, where some were found without effort."""

    def assuming(self, *parts: Formula) -> ProofContext:
        """Return a context with further facts."""
        new = conjunction(*(self.simplify_formula(part) for part in parts))
        if new == TRUE or conjuncts(new) <= self.facts:
            return self
        if new not in self._inner:
            facts = self.facts | conjuncts(new)
            self._inner[new] = _build_solved_context(facts, dict(self.solutions), self.effort, self.witness or {})
        return self._inner[new]

    @property
    def possible(self) -> bool:
        """False if the facts certainly contradict each other."""
        if self._possible is None:
            plainly = self.witness is not None
            self._possible = plainly or (FALSE not in self.facts and not is_unsatisfiable(self.facts, self.effort))
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
        parts = [part for part in in_creation_order(conjuncts(goal)) if not self.holds_trivially(part)]
        if len(parts) != 1:
            return all(map(self.proves, parts))
        if self.witness is not None and _fails(parts, self.witness):
            return False
        if self._congruent(parts[0]):
            return True
        denied = negate(conjunction(*parts))
        relevant = self._relevant(denied)
        near = [fact for fact in relevant if fact.free_symbols <= denied.free_symbols]
        if len(near) < len(relevant) and is_unsatisfiable([*near, denied], self.effort):
            return True  # few facts make a question that other instances ask too
        return is_unsatisfiable([*relevant, denied], self.effort)

    def _congruent(self, goal: Formula) -> bool:
        """Return whether the goal equates two quotients (or remainders) of equal numbers by equal divisors."""
        if not isinstance(goal, Comparison) or goal.kind != "eq" or sorted(goal.poly.terms.values()) != [-1, 1]:
            return False
        one, other = goal.poly.terms
        if not len(one) == len(other) == 1 or one[0].kind != other[0].kind or one[0].kind in ("symbol", "choice"):
            return False
        return all(self.proves(eq(a, b)) for a, b in zip(one[0].args, other[0].args, strict=True))

    def holds_trivially(self, goal: Formula) -> bool:
        """Return whether a formula is a fact, is weaker than a fact, or says that a sum of products of nonnegative
        numbers is nonnegative."""
        if goal in self.facts:
            return True
        if not isinstance(goal, Comparison) or goal.kind == "eq":
            return False
        if goal.kind == "ne":
            return any(
                self._bounded(side, 1) for side in (goal.poly, Polynomial({m: -c for m, c in goal.poly.terms.items()}))
            )
        return self._bounded(goal.poly, 0) or self._plainly_not_negative(goal.poly)

    def _bounded(self, poly: Polynomial, least: int) -> bool:
        """Return whether a fact says that `poly >= least`: it bounds the same, constants aside, at least as tightly."""
        if self._bounds is None:
            self._bounds = {}
            for fact in self.facts:
                if isinstance(fact, Comparison) and fact.kind == "ge":
                    body, constant = _without_constant(fact.poly)
                    self._bounds[body] = min(constant, self._bounds.get(body, constant))
        body, constant = _without_constant(poly)
        return body in self._bounds and self._bounds[body] <= constant - least

    def _plainly_not_negative(self, poly: Polynomial) -> bool:
        signs = {atom for m in poly.terms for atom in m if Comparison("ge", polynomial_of_atom(atom)) in self.facts}
        return all(c >= 0 and signs.issuperset(m) for m, c in poly.terms.items())

    def _relevant(self, goal: Formula) -> list[Formula]:
        """Return the facts that share unknowns with the goal, directly or through other facts."""
        if self._connected is None:
            self._connected = _connected(self.facts)
        reached = goal.free_symbols
        return [f for names, facts in self._connected if not names or not names.isdisjoint(reached) for f in facts]

    def simplify(self, size: Size) -> Size:
        """Return an equal size in a normal form: sizes that are known to be equal mostly become the same object."""
        if isinstance(size, int):
            return size
        if size not in self._simplified:
            self._simplified[size] = _recombine_division(replace_atoms(size, self))
        simple: Size = self._simplified[size]
        return simple

    @cached_property
    def _solved_for(self) -> frozenset[Atom]:
        """A set keeps the hashes of what is in it: to look for one in a dictionary asks for each anew."""
        return frozenset(self.solutions)

    def may_change(self, names: frozenset[Atom]) -> bool:
        return COMPOSITE in names or not names.isdisjoint(self._solved_for)

    def replace(self, atom: Atom) -> Size | None:
        if atom.kind == "symbol" or atom in self.solutions:
            return self.solutions.get(atom)
        if atom not in self._replaced:
            self._replaced[atom] = self._replacement(atom)
        return self._replaced[atom]

    def _replacement(self, atom: Atom) -> Size | None:
        inner = replace_in_atom(atom, self)
        if inner is not None:
            return self.simplify(inner)
        match atom.kind:
            case "choice":
                return self._choose(atom)
            case "select" | "rank" | "representative":
                within, where = cancel_inverse(atom) or (None, FALSE)
                return self.simplify(within) if within is not None and self.proves(where) else None
        return self._divide(atom)

    def _choose(self, atom: Atom) -> Size | None:
        """Return a choice that is plainly made: one that takes the solver to make is left to the solver."""
        condition, then, otherwise = atom.args
        if all(map(self.holds_trivially, conjuncts(condition))):
            return self.simplify(then)
        return self.simplify(otherwise) if all(map(self.holds_trivially, conjuncts(negate(condition)))) else None

    def _divide(self, atom: Atom) -> Size | None:
        """Mixed radix: for 0 <= r < B, (q·B + r) // (A·B) is q // A and (q·B + r) % (A·B) is (q % A)·B + r."""
        over, by = atom.args
        whole = atom.kind == "quotient"
        if isinstance(over, Polynomial) and any(part.kind == "choice" for part in over.atoms):
            return None  # as with choices: what takes the solver to make is left to the solver
        if self.proves(in_range(over, by)):
            return 0 if whole else self.simplify(over)
        if isinstance(by, int):
            return None
        for unit in _proper_divisors(by):
            first, rest = divide_with_remainder(over, unit)
            fewer = exact_quotient(by, unit)
            if first != 0 and fewer is not None and self.proves(conjunction(in_range(rest, unit), ge(fewer))):
                simple = quotient(first, fewer) if whole else remainder(first, fewer) * unit + rest
                return self.simplify(simple)
        return None

    def multiple_equations(self) -> list[Formula]:
        """Return equations that write symbols which are known to be multiples of a positive number as such multiples.

        Each equation names the quotient, one for each value of the symbol, so the facts may not mention bound symbols.
        """
        told = [found for fact in in_creation_order(self.facts) if (found := _multiple(fact)) is not None]
        named = dict(
            sorted(told, key=lambda found: isinstance(found[1], Polynomial))
        )  # of a number only where of no size
        new = [
            eq(polynomial_of_atom(over), by * symbol(f"({over})/({by})"))
            for over, by in named.items()
            if self.proves(ge(by, 1))
        ]
        return [*new, *self.assuming(*new).multiple_equations()] if new else []

    def simplify_formula(self, part: Formula) -> Formula:
        if part not in self._simplified:
            self._simplified[part] = replace_in_formula(part, self)
        simple: Formula = self._simplified[part]
        return simple


@memoized
def _without_constant(poly: Polynomial) -> tuple[Size, int]:
    constant = poly.terms.get((), 0)
    return poly - constant, constant


def _connected(facts: Iterable[Formula]) -> list[tuple[frozenset[Atom], list[Formula]]]:
    """Facts in groups that share no unknowns, with the unknowns of each."""
    groups: list[tuple[frozenset[Atom], list[Formula]]] = []
    for fact in facts:
        apart = [group for group in groups if group[0].isdisjoint(fact.free_symbols)]
        touched = [group for group in groups if not group[0].isdisjoint(fact.free_symbols)]
        names = fact.free_symbols.union(*(names for names, _ in touched))
        groups = [*apart, (names, [fact, *(f for _, inner in touched for f in inner)])]
    return groups


def _recombine_division(size: Size) -> Size:
    """Return (a // b)·b + a % b is a, also with a common factor."""
    for atom in size.atoms if isinstance(size, Polynomial) else ():
        if atom.kind == "remainder" and isinstance(size, Polynomial):
            over, by = atom.args
            part = quotient(over, by) * by
            for monomial, coefficient in size.terms.items():
                if monomial.count(atom) == 1 and isinstance(part, Polynomial):
                    shared = polynomial({divide_monomial(monomial, (atom,)) or (): coefficient})
                    shorter = size - part * shared - Polynomial({monomial: coefficient}) + shared * over
                    if atom not in getattr(shorter, "atoms", ()) and len(list(terms_of(shorter))) < len(size.terms):
                        return _recombine_division(shorter)
    return size


def _proper_divisors(by: Polynomial) -> Iterator[Size]:
    """Proper divisors of a divisor, largest first."""
    if len(by.terms) != 1:
        return
    ((monomial, coefficient),) = by.terms.items()
    if abs(coefficient) != 1:
        yield Polynomial({monomial: 1})
    for position in range(len(monomial) if len(monomial) > 1 else 0):
        yield polynomial({monomial[:position] + monomial[position + 1 :]: coefficient})
    if len(monomial) > 2:
        yield from (polynomial_of_atom(atom) for atom in monomial)


def get_context(parts: Iterable[Formula], effort: SolverSession) -> ProofContext:
    """Return a context with these formulas as facts."""
    parts = tuple(parts)
    if parts not in effort.contexts:
        facts = frozenset(p for part in parts for p in conjuncts(part))
        if facts not in effort.contexts:
            effort.contexts[facts] = _build_solved_context(
                conjuncts(conjunction(*in_creation_order(facts))), {}, effort, {}
            )
        effort.contexts[parts] = effort.contexts[facts]
    found: ProofContext = effort.contexts[parts]
    return found


def _build_solved_context(
    facts: frozenset[Formula], equal: dict[Atom, Size], effort: SolverSession, near: Mapping[Atom, int]
) -> ProofContext:
    """Facts, with what an equation gives replaced wherever it occurs.

    A symbol is then used up, and so is its equation. A quotient, a remainder or a choice has a meaning of its own:
    its equation stays.
    """
    while (found := _solvable(facts, equal)) is not None:
        fact, atom, size = found
        change = Substitution({atom: size})
        equal = {_substitute_in_atom(a, change): replace_atoms(s, change) for a, s in equal.items()} | {atom: size}
        kept = () if atom.kind == "symbol" else (fact,)
        facts = conjuncts(
            conjunction(*kept, *(replace_in_formula(f, change) for f in in_creation_order(facts) if f not in kept))
        )
    facts = _resolve_choices(facts)
    return ProofContext(facts, effort, equal, witness=_witness(facts, near))


@dataclass(frozen=True)
class _ChoiceResolver:
    """Replaces the choices that facts make plainly."""

    facts: frozenset[Formula]
    _memo: dict[Atom, Size | None] = field(default_factory=dict, compare=False)

    def may_change(self, names: frozenset[Atom]) -> bool:
        return COMPOSITE in names

    def replace(self, atom: Atom) -> Size | None:
        if atom not in self._memo:
            self._memo[atom] = self._replacement(atom)
        return self._memo[atom]

    def _replacement(self, atom: Atom) -> Size | None:
        if atom.kind == "choice":
            condition, then, otherwise = atom.args
            if conjuncts(condition) <= self.facts:
                return replace_atoms(then, self)
            if conjuncts(negate(condition)) <= self.facts:
                return replace_atoms(otherwise, self)
        return None if atom.kind == "symbol" else replace_in_atom(atom, self)


def _resolve_choices(facts: frozenset[Formula]) -> frozenset[Formula]:
    """Facts without the choices that other facts make plainly."""
    composite = (fact for fact in facts if COMPOSITE in fact.mentioned_symbols)
    with_choices = [fact for fact in composite if any(_is_decided(condition, facts) for condition in _conditions(fact))]
    if not with_choices:
        return facts
    chosen = _ChoiceResolver(facts)
    made = (replace_in_formula(fact, chosen) for fact in in_creation_order(with_choices))
    return conjuncts(conjunction(*facts.difference(with_choices), *made))


def _is_decided(condition: Formula, facts: frozenset[Formula]) -> bool:
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
            case Polynomial():
                todo.extend(arg for atom in subject.atoms if atom.kind != "symbol" for arg in atom.args)
                found.update(atom.args[0] for atom in subject.atoms if atom.kind == "choice")
    return frozenset(found)


def _witness(facts: frozenset[Formula], near: Mapping[Atom, int]) -> Mapping[Atom, int] | None:
    """Numbers for which the facts hold, among a few that often do: sizes of 2 and more, indices of 0."""
    unknowns = NO_SYMBOLS.union(*(fact.free_symbols for fact in facts))
    new = sorted(unknowns - near.keys())
    for numbers in ((0,), (2, 3, 5, 4), (1,), (1, 0)) if new else ((0,),):
        guess = {**near, **{atom: numbers[i % len(numbers)] for i, atom in enumerate(new)}}
        if are_satisfied(facts, guess):
            return guess
    return None


def _fails(parts: Iterable[Formula], witness: Mapping[Atom, int]) -> bool:
    """Return whether one of the formulas is false for these numbers for certain."""
    try:
        return not all(map(IntegerEvaluation(witness).holds, parts))
    except (KeyError, ZeroDivisionError):
        return False


def _solvable(facts: frozenset[Formula], equal: Mapping[Atom, Size]) -> tuple[Formula, Atom, Size] | None:
    """Return an equation that gives an atom: a choice (a quotient) by symbols, else a symbol by anything."""
    equations = [fact for fact in in_creation_order(facts) if isinstance(fact, Comparison) and fact.kind == "eq"]
    for fact in equations:
        composite = [atom for atom in fact.poly.atoms if atom.kind != "symbol"]
        if len(composite) == 1 and composite[0] not in equal:
            solution = solve_for_atom(fact.poly, composite[0])
            if solution is not None:
                return fact, composite[0], solution
    for fact in equations:
        for atom in sorted(fact.poly.atoms, reverse=True):
            solution = solve_for_atom(fact.poly, atom) if atom.kind == "symbol" else None
            if solution is not None:
                return fact, atom, solution
    return None


def _multiple(fact: Formula) -> tuple[Atom, Size] | None:
    """Return the symbol of which a fact says that it is a multiple, and of what."""
    match fact:
        case Comparison(
            kind="eq",
            poly=Polynomial(atoms=(Atom(kind="remainder", args=(Polynomial() as dividend, by)) as atom,)) as poly,
        ):
            symbols = [
                over for over in dividend.atoms if over.kind == "symbol" and dividend == polynomial_of_atom(over)
            ]
            is_told = poly in (polynomial_of_atom(atom), -polynomial_of_atom(atom)) and symbols
            return (
                (symbols[0], by)
                if is_told and not (isinstance(by, Polynomial) and symbols[0] in by.mentioned_symbols)
                else None
            )
    return None


def _substitute_in_atom(atom: Atom, change: Substitution) -> Atom:
    """Return a quotient, a remainder or a choice after a substitution; itself where that is no longer one."""
    new = replace_in_atom(atom, change) if atom.kind != "symbol" else None
    plain = isinstance(new, Polynomial) and len(new.atoms) == 1 and new.terms == {(*new.atoms,): 1}
    return single_symbol(new) if plain and new is not None else atom
