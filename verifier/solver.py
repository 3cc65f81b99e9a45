"""Satisfiability of formulas over integers, by Z3.

A question goes to Z3 twice: with each product taken for one unknown (linear, decidable), then as it is. `unknown`
counts as not refuted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import z3

from graphopt.base.session import current_session, memoized
from graphopt.expr.integers import (
    NO_SYMBOLS,
    And,
    Atom,
    BooleanAtom,
    Comparison,
    Formula,
    Monomial,
    Or,
    Polynomial,
    Size,
    conjuncts,
    ge,
    in_creation_order,
    interned_count,
    literals,
)
from graphopt.expr.substitution import IntegerEvaluation, defining_formulas


@dataclass(slots=True)
class _TranslatedFormula:
    """A formula for Z3, with what has to be said beside it."""

    formula: Any
    axioms: tuple[Formula, ...]
    products: frozenset[Monomial]


class _Translation:
    """To Z3. Linear: each product of unknowns is one unknown. Quotients come with what defines them."""

    def __init__(self, home: z3.Context, *, linear: bool) -> None:
        self.z3_context = home
        self.linear = linear
        self._atoms: dict[Atom, Any] = {}
        self._facts: dict[Any, Any] = {}
        self._products: dict[Monomial, Any] = {}
        self._done: dict[Formula, _TranslatedFormula] = {}

    def translate(self, part: Formula) -> _TranslatedFormula:
        if part not in self._done:
            composites, products = _vocabulary(part)
            axioms = tuple(axiom for atom in in_creation_order(composites) for axiom in defining_formulas(atom))
            inner = frozenset(m for axiom in axioms for m in _vocabulary(axiom)[1])
            self._done[part] = _TranslatedFormula(self._formula(part), axioms, products | inner)
        return self._done[part]

    def formulas(self, parts: Iterable[Formula]) -> list[Any]:
        """Return the formulas, with the definitions of what they speak of."""
        all_ = {axiom: None for part in parts for axiom in (part, *self.translate(part).axioms)}
        return [self.translate(part).formula for part in all_]

    def numbers(self, model: z3.ModelRef, parts: Iterable[Formula]) -> dict[Any, int]:
        """Return the values that a model gives to the unknowns of some formulas, and to the facts among these."""
        facts = (p.subject for part in parts for p in literals(part) if isinstance(p, BooleanAtom))
        truths = {subject: int(z3.is_true(model.eval(self._facts[subject], True))) for subject in facts}
        symbols = sorted(NO_SYMBOLS.union(*(part.free_symbols for part in parts)))
        return truths | {symbol: model.eval(self.atom(symbol), True).as_long() for symbol in symbols}

    def size(self, size: Size) -> Any:
        if isinstance(size, int):
            return z3.IntVal(size, self.z3_context)
        parts = [self._scaled(m, c) if m else z3.IntVal(c, self.z3_context) for m, c in size.terms.items()]
        return parts[0] if len(parts) == 1 else z3.Sum(parts)

    def _scaled(self, monomial: Monomial, coefficient: int) -> Any:
        return self._monomial(monomial) if coefficient == 1 else self._monomial(monomial) * coefficient

    def _monomial(self, monomial: Monomial) -> Any:
        if len(monomial) == 1:
            return self.atom(monomial[0])
        if monomial not in self._products:
            unknown = z3.FreshInt(ctx=self.z3_context) if self.linear else z3.Product([self.atom(a) for a in monomial])
            self._products[monomial] = unknown
        return self._products[monomial]

    def atom(self, atom: Atom) -> Any:
        if atom not in self._atoms:
            self._atoms[atom] = self._new(atom)
        return self._atoms[atom]

    def _new(self, atom: Atom) -> Any:
        if atom.kind != "choice":
            return z3.Int(str(atom.serial), self.z3_context)
        condition, then, otherwise = atom.args
        return z3.If(self._formula(condition), self.size(then), self.size(otherwise))

    def _formula(self, part: Formula) -> Any:
        match part:
            case And(parts):
                return z3.And([self._formula(p) for p in in_creation_order(parts)], self.z3_context)
            case Or(parts):
                return z3.Or([self._formula(p) for p in in_creation_order(parts)], self.z3_context)
            case BooleanAtom(subject, holds):
                truth = self._facts.setdefault(subject, z3.Bool(f"fact{len(self._facts)}", self.z3_context))
                return truth if holds else z3.Not(truth)
        poly = self.size(part.poly)
        return poly >= 0 if part.kind == "ge" else poly == 0 if part.kind == "eq" else poly != 0


def _vocabulary(subject: Size | Formula) -> tuple[frozenset[Atom], frozenset[Monomial]]:
    """Return the atoms that have a definition, and the products of unknowns, that something speaks of, however deep."""
    composites: set[Atom] = set()
    choices: set[Atom] = set()
    products: set[Monomial] = set()
    todo: list[Any] = [subject]
    while todo:
        match todo.pop():
            case And(parts) | Or(parts):
                todo.extend(in_creation_order(parts))
            case Comparison(_, poly):
                todo.append(poly)
            case Polynomial() as size:
                products.update(m for m in size.terms if len(m) > 1)
                for atom in size.atoms:
                    if atom.kind == "choice" and atom not in choices:
                        choices.add(atom)
                        todo.extend(atom.args)
                    elif atom.kind == "choice":
                        continue
                    elif atom.kind != "symbol" and atom not in composites:
                        composites.add(atom)
                        todo.extend(defining_formulas(atom))
    return frozenset(composites), frozenset(products)


SEEDS = 8
"""Attempts at a hard question: its time is mostly chance, and each attempt is another search."""
TIMEOUT_MS = 60_000
"""The limit of one search by the clock, for what Z3 does not count: far off, as a busy machine may stand still."""


STEPS_PER_SECOND = 15_000
"""A quick machine does about 10,000. The dearest built-in rule takes 47,000: a third of the ten seconds of the gate."""
STEPS_OF_INSTANCE = 5
RLIMIT_PER_STEP = 100
"""Z3's resource count of one step."""
CLOCK_FACTOR = 5
"""The clock is read as well, for what no step counts: where a proof takes this many times its seconds, it ends."""


class StepBudget:
    """How much work a rule may take, counted in steps and not timed: the same verdicts on each machine, however busy.

    A step is an integer or formula that is new; instances and what Z3 counts are as many steps as they take time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.instances = 0
        self._searched = 0
        self._end = time.thread_time() + CLOCK_FACTOR * seconds

    def count(self, solver: z3.Solver, before: int) -> int:
        """Add what Z3 has counted since `before`; returns its count by now."""
        statistics = solver.statistics()
        keys = statistics.keys()
        after: int = statistics.get_key_value("rlimit count") if "rlimit count" in keys else before
        self._searched += after - before
        return after

    @property
    def steps(self) -> int:
        """The work until now."""
        return interned_count() + self.instances * STEPS_OF_INSTANCE + self._searched // RLIMIT_PER_STEP

    @property
    def is_spent(self) -> bool:
        return self.steps > self.seconds * STEPS_PER_SECOND or time.thread_time() > self._end


@dataclass
class SolverSession:
    """How hard the solver may try: steps for one search, as Z3 counts them, and for all of a rule.

    What Z3 answers hangs on what it was told before and in which order, so each rule has a Z3 of its own.
    """

    steps: int = 500_000
    """The hardest question of a built-in rule that has to be refuted takes about as many, the next a tenth."""
    budget: StepBudget = field(default_factory=lambda: StepBudget(float("inf")))
    question_count: int = 0
    rlimit_used: int = 0
    """Z3's resource count of these questions."""
    contexts: dict[Any, Any] = field(default_factory=dict)
    """Contexts by set of facts: instances that know the same share what follows from it."""
    answers: dict[Any, bool] = field(default_factory=dict)
    """Questions that were asked, whatever their unknowns were called: the axes of a tensor ask the same ones."""
    recent_models: list[Mapping[Any, int]] = field(default_factory=list)
    """Numbers for which the formulas of questions hold together, the latest ones first."""

    @cached_property
    def z3_context(self) -> z3.Context:
        """The Z3 context, made when first asked for: many rules ask nothing, and making one takes as long as proving
        them."""
        home = z3.Context()
        z3.Z3_enable_concurrent_dec_ref(home.ref())  # another thread may collect the garbage
        return home

    @cached_property
    def linear(self) -> _Translation:
        return _Translation(self.z3_context, linear=True)

    @cached_property
    def exact(self) -> _Translation:
        return _Translation(self.z3_context, linear=False)

    def answer(self, solver: z3.Solver, *, steps: int | None = None, seeds: int = SEEDS) -> z3.CheckSatResult:
        """Return what a solver finds, the same on each machine: it gives up after a number of steps."""
        for seed in range(seeds):
            solver.set(random_seed=seed, rlimit=steps or self.steps, timeout=TIMEOUT_MS)
            found = solver.check()
            self.rlimit_used = self.budget.count(solver, self.rlimit_used)
            if found != z3.unknown or self.budget.is_spent:
                return found
        return z3.unknown


class OutOfTime(Exception):
    """The steps that a rule may take are used up."""


def is_unsatisfiable(parts: Iterable[Formula], effort: SolverSession) -> bool:
    """Return whether the formulas cannot hold together; False, too, if the solver does not know."""
    parts = in_creation_order(parts)
    question = _question(parts)
    if question not in effort.answers:
        if effort.budget.is_spent:
            raise OutOfTime
        effort.question_count += 1
        effort.answers[question] = _ask(parts, effort)
    return effort.answers[question]


TRIAL_ASSIGNMENTS = (
    (2, 3, 5, 4),
    (1, 0),
    (1,),
    (4, 5, 3, 2),
    (2,),
    (6, 2, 3, 1),
    (3, 1, 2),
    (2, 0),
    (1, 2, 3),
    (1, 1, 5),
    (0,),
)
"""Values that are tried for the unknowns, in turn, before Z3 is asked: most questions that it would answer with a
model."""


def _ask(parts: list[Formula], effort: SolverSession) -> bool:
    products = frozenset(m for part in parts for m in effort.linear.translate(part).products)
    if _hold_for_some(parts) or _hold_for_an_earlier_one(parts, effort):
        return False
    known = (p for part in parts for p in in_creation_order(conjuncts(part)) if isinstance(p, Comparison))
    found = _numbers_for([*parts, *_products(known, products)], parts, effort.linear, effort)
    if (
        products and found is not None and not are_satisfied(parts, found)
    ):  # a product is no more than a number to this solver
        cases = _cases(parts)
        if cases and all(is_unsatisfiable(case, effort) for case in cases):
            return True
        found = _numbers_for(parts, parts, effort.exact, effort)
    if found and are_satisfied(parts, found):
        effort.recent_models = [found, *effort.recent_models[: MAX_RECENT_MODELS - 1]]
    return found is None


def _cases(parts: Sequence[Formula]) -> list[list[Formula]]:
    """Return each alternative of the one formula that has some, with what speaks of the same unknowns; nothing where
    that is everything.

    Most alternatives are plainly wrong, and for Z3 those about products are hard enough without the others. What is
    left of a hard one is often the same in many questions.
    """
    several = [part for part in parts if isinstance(part, Or)]
    if len(several) != 1:
        return []
    others = [part for part in parts if part is not several[0]]
    cases = [[*_connected(others, each.free_symbols), *conjuncts(each)] for each in in_creation_order(several[0].parts)]
    return cases if any(len(case) < len(parts) for case in cases) else []


def _connected(parts: Iterable[Formula], unknowns: frozenset[Atom]) -> list[Formula]:
    """Return what speaks of some unknowns, directly or through others that do."""
    found: list[Formula] = []
    left = list(parts)
    while near := [part for part in left if not unknowns.isdisjoint(part.free_symbols)]:
        found += near
        left = [part for part in left if unknowns.isdisjoint(part.free_symbols)]
        unknowns = unknowns.union(*(part.free_symbols for part in near))
    return found


MAX_RECENT_MODELS = 24
"""Recent models that are tried: questions come in runs that differ little, and a model of one often fits the next."""


def _hold_for_an_earlier_one(parts: Sequence[Formula], effort: SolverSession) -> bool:
    unknowns = sorted(NO_SYMBOLS.union(*(part.free_symbols for part in parts)))
    for position, example in enumerate(effort.recent_models):
        if are_satisfied(parts, {**dict.fromkeys(unknowns, 1), **example}):
            effort.recent_models.insert(0, effort.recent_models.pop(position))
            return True
    return False


def _hold_for_some(parts: Sequence[Formula]) -> bool:
    unknowns = sorted(NO_SYMBOLS.union(*(part.free_symbols for part in parts)))
    return any(
        are_satisfied(parts, {a: numbers[i % len(numbers)] for i, a in enumerate(unknowns)})
        for numbers in TRIAL_ASSIGNMENTS
    )


def are_satisfied(parts: Iterable[Formula], numbers: Mapping[Atom, int]) -> bool:
    """Return whether formulas hold for these numbers; what speaks of something else holds nowhere, as far as is
    known."""
    try:
        return all(map(IntegerEvaluation(numbers).holds, parts))
    except (KeyError, ZeroDivisionError):
        return False


def _question(parts: Iterable[Formula]) -> Any:
    """Return the formulas with their unknowns numbered, those that are named alike in the order in which they came to
    be."""
    forms = [_form(part) for part in parts]
    numbers = {s: i for i, s in enumerate(sorted({s for _, unknowns in forms for s in unknowns}, key=_by_name))}
    return frozenset((form, tuple(numbers[s] for s in unknowns)) for form, unknowns in forms)


@memoized
def _by_name(atom: Atom) -> tuple[str, int]:
    """Sizes of one tensor are named alike, as are the numbers of one list: x0'7 and x1'8."""
    name, _, serial = str(atom).rpartition("'")
    return (name.rstrip("0123456789"), int(serial)) if serial.isdigit() else (str(atom), 0)


@memoized
def _form(part: Formula) -> tuple[Any, tuple[Atom, ...]]:
    """Return a formula whatever its unknowns are called, and the unknowns in order."""
    unknowns = tuple(sorted(part.free_symbols, key=_by_name))
    return _numbered(part, {s: i for i, s in enumerate(unknowns)}), unknowns


def _numbered(part: Any, numbers: dict[Atom, Any]) -> Any:
    """Return a formula or a size with numbers for atoms; those of composite ones are found on the way."""
    match part:
        case Comparison("ge", poly):
            return "ge", _numbered(poly, numbers)
        case Comparison(kind, poly):  # of p = 0 and -p = 0 the one that is written depends on names
            form = _numbered(poly, numbers)
            return kind, frozenset({form, frozenset((monomial, -c) for monomial, c in form)})
        case And(parts):
            return "and", frozenset(_numbered(p, numbers) for p in parts)
        case Or(parts):
            return "or", frozenset(_numbered(p, numbers) for p in parts)
        case BooleanAtom():
            return part
        case Polynomial():
            return frozenset((_numbered_product(m, numbers), c) for m, c in part.terms.items())
        case Atom(kind=kind, args=args):
            if part not in numbers:
                shape = kind, *(_numbered(arg, numbers) for arg in args)
                shapes = current_session().interner.composite_numbers  # each once: they are often nested and shared
                numbers[part] = "composite", shapes.setdefault(shape, len(shapes))
            return numbers[part]
    return part


def _numbered_product(monomial: Monomial, numbers: dict[Atom, Any]) -> Any:
    atoms = [_numbered(atom, numbers) for atom in monomial]
    return frozenset((atom, atoms.count(atom)) for atom in atoms)


def _numbers_for(
    asked: Iterable[Formula], parts: Iterable[Formula], translation: _Translation, effort: SolverSession
) -> Mapping[Any, int] | None:
    """Return the unknowns in `parts` as numbers for which what is asked holds, none where it takes too long to find
    them; None where there are no such numbers."""
    solver = z3.SimpleSolver(ctx=effort.z3_context)
    solver.add(translation.formulas(asked))
    match effort.answer(solver):
        case z3.unsat:
            return None
        case z3.sat:
            return translation.numbers(solver.model(), parts)
    return {}


def _products(known: Iterable[Comparison], wanted: frozenset[Monomial]) -> Iterator[Formula]:
    """Products of known inequalities with known non-negative unknowns, where they speak of the wanted products."""
    known = [fact for fact in known if fact.kind == "ge"]
    signs = {atom for fact in known for atom in _not_negative(fact.poly)}
    for monomial in sorted(wanted):
        if signs.issuperset(monomial):
            yield Comparison("ge", Polynomial({monomial: 1}))
        for position, atom in enumerate(monomial):
            rest = monomial[:position] + monomial[position + 1 :]
            if not signs.issuperset(rest):
                continue
            for fact in known:
                if (atom,) in fact.poly.terms and len(fact.poly.terms) <= 4:
                    yield ge(fact.poly * Polynomial({rest: 1}))


def _not_negative(poly: Polynomial) -> Iterator[Atom]:
    """Yield the atom that `poly >= 0` says to be non-negative."""
    terms = {m: c for m, c in poly.terms.items() if m}
    if len(terms) == 1 and poly.terms.get((), 0) <= 0:
        ((monomial, coefficient),) = terms.items()
        if len(monomial) == 1 and coefficient > 0:
            yield monomial[0]


def enumerate_assignments(
    parts: Iterable[Formula], effort: SolverSession, variables: Iterable[Atom]
) -> Iterator[dict[Atom, int]]:
    """Yield assignments for which the formulas hold, each a different one, until the solver finds no more."""
    solver = z3.Solver(ctx=effort.z3_context)
    solver.add(effort.exact.formulas(parts))
    unknowns = {atom: effort.exact.atom(atom) for atom in variables}
    while not effort.budget.is_spent and effort.answer(solver) == z3.sat:
        model = solver.model()
        found = {atom: model.eval(unknown, model_completion=True).as_long() for atom, unknown in unknowns.items()}
        yield found
        if not found:
            return
        solver.add(z3.Or([unknowns[atom] != number for atom, number in found.items()], effort.z3_context))
