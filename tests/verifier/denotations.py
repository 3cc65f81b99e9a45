"""Mutants of the denotations: each with one thing made wrong, mechanically. Tests that let one live see too little.

A mutant is a place in the source of a denotation and another text there: an operator for its opposite, a number moved
by one, operands or branches swapped, a condition or a requirement dropped, a function for its sibling. It is put in the
place of the original in a process of its own, and the cases that run through this place are asked again: drawn ones in
both models, those that ONNX Runtime refuses, and the rules of `LAWS`. What is in `EQUIVALENT` computes the same.

`python -m tests.verifier.denotations` tries all; see `--help` for fewer.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from types import CodeType, FrameType
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from graphopt.language.proof import ProofLedger
from graphopt.language.rule import Rule
from graphopt.operators.elementwise_ops import ElementwiseDenotation
from graphopt.operators.op_context import Denotation, UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.semantics import OPERATORS
from graphopt.rewrite import gate
from graphopt.verifier.prove import prove
from tests.verifier.broken import REFUTED, UNPROVED
from tests.verifier.cases import CASES_OF, answers, application, evaluation, free_sizes, is_mode, opened
from tests.verifier.concrete import Evaluation, Known
from tests.verifier.denotation_mutants import HOME, MODULES, Mutant, install, mutants, mutated
from tests.verifier.draw import Draw
from tests.verifier.equivalents import REASONS
from tests.verifier.evaluators import Case
from tests.verifier.laws import COVERED, LAWS, Law, is_covered, operators_of
from tests.verifier.mutants import LIBRARY
from tests.verifier.refused import BEYOND, DIVIDED, REFUSE, UNDEFINED, is_refused, spoilt

QUICK = 0.15
"""How many seconds a right rule may take."""
TABLES = 4
"""How many questions about each operator are asked where a table is changed."""
FEW = 12
"""Of how many operators those that are alive are asked the rest: what more of them use has been asked enough."""
SECONDS = 2
"""For a question, beyond what the original needs: a mutant that then has no answer runs forever, and is killed."""


@dataclass(frozen=True)
class Reach:
    """How many cases of each operator are asked, and how many rules of it, right and wrong ones."""

    real: range
    exact: range
    refused: range
    open: range
    """With attributes left open: of which of them there is a denotation."""
    rules: int


FIRST = Reach(range(24), range(6), range(10), range(2), 4)
REST = Reach(range(24, 200), range(6, 20), range(10, 40), range(2, 8), 40)
"""What those mutants are asked that the first questions left alive: as many as the tests of the suite ask."""

# -- mutants -----------------------------------------------------------------------------------------------------------
# -- what is asked of them ---------------------------------------------------------------------------------------------


@dataclass
class Probe:
    """A question about an operator, or a rule, that has one answer."""

    of: str
    ask: Callable[[], bool]
    """Whether the answer is right."""
    lines: frozenset[tuple[str, int]] = frozenset()
    """Which lines of the denotations it runs through."""
    seconds: float = 0.0
    """How long the original takes at most."""


def probes(operators: Collection[str], reach: Reach) -> Iterator[Probe]:
    """What mutants are asked about some operators; the answers come from the two evaluators, once."""
    for name in sorted(CASES_OF.keys() & set(operators)):
        yield from _drawn(name, reach)
        yield from _spoilt(name, reach) if name in REFUSE else ()
        for seed in reach.open:
            yield Probe(name, partial(_is_claimed, name, seed, _claims(name, seed)))
    for rule in _rules(operators, reach.rules):
        yield Probe(rule.name, partial(_is_judged, rule, _judged(rule)))


def fixed_probes(operators: Collection[str]) -> Iterator[Probe]:
    """What is on record about some operators."""
    for name, case in (*UNDEFINED, *BEYOND):
        if name in operators:
            yield Probe(name, partial(_is_undefined, name, case))
    for name, case in DIVIDED:
        if name in operators:
            yield Probe(name, partial(_is_undefined, name, case, exact=True))
    for law in LAWS:
        if law.operators & set(operators):
            yield Probe(law.rule.name, partial(Law.holds, law))
    for name in sorted(COVERED.keys() & set(operators)):
        yield Probe(name, partial(is_covered, name))


def _rules(operators: Collection[str], many: int) -> Iterable[Rule]:
    """Of each operator a few rules of the library that are proved soon, and a few wrong ones."""
    seconds = {proof.rule: proof.seconds for proof in ProofLedger.load(gate.ledger_path())}
    quick = [rule for rule in LIBRARY if seconds.get(rule.name, QUICK) < QUICK]
    found: dict[str, Rule] = {}
    for rules in (sorted(quick, key=lambda rule: seconds[rule.name]), (*UNPROVED, *REFUTED)):
        seen = Counter[str]()
        for rule in rules:
            said = operators_of(rule) & set(operators)
            if any(seen[name] < many for name in said):
                seen.update(said)
                found[rule.name] = rule
    return found.values()


def _judged(rule: Rule) -> tuple[object, ...]:
    """What a proof says, of which cases."""
    proof = prove(rule, timeout=1, refute=False)
    return proof.verdict, proof.model, proof.coverage


def _is_judged(rule: Rule, before: tuple[object, ...]) -> bool:
    return _judged(rule) == before


def _drawn(name: str, reach: Reach) -> Iterator[Probe]:
    for seed in reach.real:
        case = CASES_OF[name](Draw(random.Random(f"{name}/{seed}")))
        wanted = answers(name, case)
        if wanted:
            for exact in (False, True) if seed in reach.exact else (False,):
                yield Probe(name, partial(_is_answered, name, case, wanted, seed, exact))


def _spoilt(name: str, reach: Reach) -> Iterator[Probe]:
    for seed in reach.refused:
        d = Draw(random.Random(f"{name}/{seed}/spoilt"))
        case = CASES_OF[name](d)
        changed, before = spoilt(case, d), answers(name, case)
        if before and is_refused(before, answers(name, changed)):
            yield Probe(name, partial(_is_undefined, name, changed))


def _is_answered(name: str, case: Case, wanted: Mapping[str, Any], seed: int, exact: bool) -> bool:
    chosen = random.Random(seed)
    known = Known()
    app = application(name, case, known, lambda: chosen.random() < 0.5)
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    free = free_sizes(name, case) if chosen.random() < 0.7 else frozenset()
    found, _ = Evaluation(app, feeds, known, free, exact).run()
    return len(found) >= case.outputs and all(
        one.shape == other.shape and np.allclose(other, one.astype(np.float64), rtol=1e-5, atol=1e-5, equal_nan=True)
        for arrays in wanted.values()
        for one, other in zip(arrays, found, strict=False)
    )


Claims: TypeAlias = "set[frozenset[tuple[str, Any]]]"


def _claims(name: str, seed: int) -> Claims:
    """The attributes for which there is a denotation of a case, of all that are proposed where they are left open."""
    case, known = CASES_OF[name](Draw(random.Random(f"{name}/{seed}"))), Known()
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    app = opened(application(name, case, known, lambda: False))
    claims = Evaluation(app, feeds, known, free_sizes(name, case)).claims()
    return {frozenset((key, value) for key, value in claim.items() if is_mode(value)) for claim in claims}


def _is_claimed(name: str, seed: int, before: Claims) -> bool:
    return _claims(name, seed) == before


def _is_undefined(name: str, case: Case, *, exact: bool = False) -> bool:
    for symbols in (False, True):
        try:
            evaluation(name, case, symbols=symbols, exact=exact).run()
        except (UndefinedOperatorError, UnsupportedOperatorError):
            continue
        return False
    return True


def traced(probe: Probe) -> Probe:
    """The probe with the lines it runs through; it has to be answered well by the original."""
    lines: set[tuple[str, int]] = set()
    names = {str(import_module(f"graphopt.operators.{module}").__file__): module for module in MODULES}

    def local(frame: FrameType, _event: str, _value: Any) -> Any:
        lines.add((names[frame.f_code.co_filename], frame.f_lineno))
        return local

    def entered(frame: FrameType, event: str, value: Any) -> Any:
        return local(frame, event, value) if frame.f_code.co_filename in names else None

    for module in MODULES:  # what another question had computed is computed anew, on the lines that do
        for value in list(vars(import_module(f"graphopt.operators.{module}")).values()):
            getattr(value, "cache_clear", lambda: None)()
    begun = time.process_time()
    sys.settrace(entered)
    try:
        right = probe.ask()
    finally:
        sys.settrace(None)
    assert right, f"the original fails: {probe}"
    return Probe(probe.of, probe.ask, frozenset(lines), time.process_time() - begun)


class Questions:
    """Probes that the original answers well, found by the lines that they run through."""

    def __init__(self, asked: Iterable[Probe]) -> None:
        with np.errstate(all="ignore"):
            self.probes = [traced(probe) for probe in asked]
        self._at: Mapping[tuple[str, int], list[int]] = defaultdict(list)
        for number, probe in enumerate(self.probes):
            for place in probe.lines:
                self._at[place].append(number)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # a process with fewer pages is forked sooner
        gc.freeze()

    def about(self, mutant: Mutant) -> Sequence[Probe]:
        """Those that run through the lines of a mutant, the quick ones first, in an order that mixes operators."""
        found = {number for line in mutant.lines for number in self._at.get((mutant.module, line), ())}
        if mutant.operator in OPERATORS:
            found |= {number for number, probe in enumerate(self.probes) if probe.of == mutant.operator}
        if mutant.function.isupper() and not found:  # a table that only other tables say, or requirements of types
            seen = Counter[str]()
            for number, probe in enumerate(self.probes):
                seen[probe.of] += 1
                found |= {number} if seen[probe.of] <= TABLES else set()
        mixed = sorted(found, key=lambda number: (self.probes[number].seconds > QUICK, (number * 7919) % 10007))
        return [self.probes[number] for number in mixed]


class Court:
    """Tries mutants: each is asked in a process of its own until it gives a wrong answer."""

    def __init__(self, operators: Collection[str] = frozenset(CASES_OF)) -> None:
        warnings.simplefilter("ignore")
        self.first = Questions(chain(probes(operators, FIRST), fixed_probes(operators)))
        self._rest: dict[str, Questions] = {}
        self._told: Mapping[str, Counter[int]] = defaultdict(Counter)
        """How many mutants of a function were told from it by which question."""

    def fate(self, mutant: Mutant) -> str:
        """Killed if a question that runs through its lines has another answer; senseless where it is no program.

        One that no question tells from the original is equivalent where there is a reason for it, else alive.
        """
        code = mutated(mutant)
        if code is None:
            return "senseless"
        asked = self.first.about(mutant)
        if self._tells(mutant, code, asked):
            return "killed"
        operators = sorted({probe.of for probe in asked} & CASES_OF.keys())
        few = operators if len(operators) <= FEW else ()
        if any(self._tells(mutant, code, self.rest(name).about(mutant)) for name in few):
            return "killed"
        return "equivalent" if mutant.key in REASONS else "alive"

    def _tells(self, mutant: Mutant, code: CodeType, asked: Sequence[Probe]) -> bool:
        """Whether a question tells it; those that told others of the function are asked first."""
        told = self._told[mutant.function]
        asked = sorted(asked, key=lambda probe: -told[id(probe)])
        right = _right_answers(mutant, code, asked)
        told.update(id(probe) for probe in asked[right : right + 1])
        return right < len(asked)

    def rest(self, operator: str) -> Questions:
        """The other questions about an operator, of which the answers are sought when they are wanted."""
        if operator not in self._rest:
            self._rest[operator] = Questions(probes({operator}, REST))
        return self._rest[operator]


def _right_answers(mutant: Mutant, code: CodeType, asked: Sequence[Probe]) -> int:
    """How many questions a mutant, in a process of its own, answers as the original; -1 if it cannot be imported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 2)
        try:
            install(mutant, code)
            for probe in asked:
                os.write(writer, b".")
                signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS + probe.seconds)  # whose signal ends the process
                if not probe.ask():
                    os._exit(0)
            os.write(writer, b".")
        finally:
            os._exit(0)  # any failure is a wrong answer
    os.close(writer)
    with open(reader, "rb") as said:
        begun = len(said.read())
    os.waitpid(child, 0)
    return begun - 1


def all_mutants() -> list[Mutant]:
    return [mutant for module in MODULES for mutant in mutants(module)]


def denoted_by(names: Collection[str]) -> frozenset[str]:
    """The operators whose denotation has one of these names, or is in or uses a module that has, or a helper of it."""
    functions = {name: _function(operator.denotation) for name, operator in OPERATORS.items()}
    named = {name for name, function in functions.items() if function in names}
    helpers = set(names).difference(functions[name] for name in named)
    changed = {mutant.module for mutant in all_mutants() if helpers & {mutant.module, mutant.function}}
    if changed & {"opaque", "semantics"}:  # which every operator goes through
        return frozenset(OPERATORS)
    users = {user for user in MODULES for module in changed if user == module or _imports(user, module)}
    using = {name for name, operator in OPERATORS.items() if operator.denotation.__module__.rpartition(".")[2] in users}
    return frozenset(named | using)


def _function(denotation: Denotation) -> str:
    """What a denotation is called, or what it takes of each element."""
    return str(
        getattr(
            denotation.element_function if isinstance(denotation, ElementwiseDenotation) else denotation, "__name__", ""
        )
    )


def _imports(user: str, module: str) -> bool:
    return f"from graphopt.operators.{module} import" in (HOME / f"{user}.py").read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="mutants of these modules or functions, and cases of what is denoted there",
    )
    parser.add_argument("--sample", type=int, default=0, help="so many, drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further mutant after that")
    options = parser.parse_args()
    console, begun = Console(soft_wrap=True, highlight=False, markup=False), time.monotonic()
    tried = [m for m in all_mutants() if not options.only or {m.module, m.function} & set(options.only)]
    if not tried:
        parser.error(f"no denotation is a function of that name, nor a module: {', '.join(options.only)}")
    if options.sample:
        tried = random.Random(options.seed).sample(tried, min(options.sample, len(tried)))
    court = Court(denoted_by(options.only) or frozenset(OPERATORS))
    console.print(f"{len(court.first.probes)} questions, asked of the original in {time.monotonic() - begun:.0f} s")
    fates: Counter[str] = Counter()
    for mutant in tried:
        if time.monotonic() - begun > options.seconds:
            break
        fates[fate := court.fate(mutant)] += 1
        if fate == "alive":
            console.print(str(mutant))
    console.print(f"{dict(fates)} of {len(tried)} mutants in {time.monotonic() - begun:.0f} s")
    sys.exit(bool(fates["alive"]))


if __name__ == "__main__":
    main()
