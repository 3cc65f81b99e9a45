"""One run of discovery: terms are grown, equations among them asked about unless derivable, and proved ones kept.

Sizes come one after the other, in each the worlds. Questions are asked in canonical order, in batches; a question that
another one of the batch may derive waits. So the result does not depend on who answers, nor when.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from graphopt.base.errors import OutputError
from graphopt.base.executors import Executor
from graphopt.discover.derivation import Derivation, WorldTerms
from graphopt.discover.equation_proving import EquationAnswer, EquationStatus, EquationTask, prove_equation
from graphopt.discover.equivalence_classes import EqualTerms, EquivalenceClasses
from graphopt.discover.generalization import canonical_text, drop_axes
from graphopt.discover.worlds import WORLDS, World
from graphopt.language.proof import Proof
from graphopt.language.rule import Rule
from graphopt.language.terms import holes
from graphopt.operators.operator_classes import DISCOVERY_OPERATORS
from graphopt.rewrite import gate

log = logging.getLogger(__name__)

BATCH_SIZE = 64
"""Questions that are asked together. The larger a batch, the more of its questions turn out to be derivable."""


@dataclass(frozen=True)
class Plan:
    """Scope of a run: sizes, operators, worlds, and the time for a proof."""

    size: int = 2
    operators: tuple[str, ...] = DISCOVERY_OPERATORS
    seed: int = 0
    timeout: float = 2.0
    files: tuple[Path, ...] = ()
    worlds: tuple[World, ...] = WORLDS


@dataclass
class Stage:
    """Counts of one world at one size."""

    world: str
    size: int
    terms: int = 0
    classes: int = 0
    equal_count: int = 0
    """Terms that are equal to an earlier one, up to names."""
    question_count: int = 0
    """Equal terms that no kept rule derives."""
    fates: Counter[EquationStatus] = field(default_factory=Counter)
    rules: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = [f"{count:,} {fate}" for fate, count in sorted(self.fates.items())]
        return (
            f"{self.world}, {self.size} operator{'s' * (self.size > 1)}: {self.terms:,} terms, {self.classes:,} values,"
            f" {self.equal_count:,} equal, {self.question_count:,} asked: {', '.join(told) or 'none'};"
            f" {self.rules:,} rules, {self.seconds:.1f} s"
        )


@dataclass
class DiscoveredRule:
    """A rule with its proof."""

    rule: Rule
    proof: Proof
    world: str


@dataclass
class DiscoveryResult:
    """All rules that a run found, and the counts of its stages."""

    rules: list[DiscoveredRule] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    open_questions: list[tuple[EquationTask, EquationAnswer]] = field(default_factory=list)
    """Equations that were not proved."""


class _WorldState:
    """The terms of a world, and the equations derived among them."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.choices = world.choices(plan.operators)
        self.classes = EquivalenceClasses(world, self.choices, plan.seed, plan.size)
        self.terms = WorldTerms(world, self.choices, self.classes.evaluators[0])
        self.derivation = Derivation(self.terms)

    def questions(self) -> list[EqualTerms]:
        """Return the equal terms of the next size, those that say the most first."""

        def rank(equal: EqualTerms) -> tuple[object, ...]:
            sides = equal.term, equal.other
            named = {hole.name for side in sides for hole in holes(side)}
            orders = [self.terms.order(side) for side in sides]
            return sum(order[0] for order in orders), -len(named), *orders

        return sorted(self.classes.grow(), key=rank)


class Run:
    """A run of discovery."""

    def __init__(
        self,
        plan: Plan,
        engine: Executor,
        journal: Journal,
        progress: Callable[[str, float], None] = lambda *_: None,
        tell: Callable[[Stage], None] = lambda _: None,
    ) -> None:
        """`progress` is told the current stage and its fraction done, 0 to 1; `tell` the result of each stage."""
        self.plan, self.engine, self.journal, self.progress, self.tell = plan, engine, journal, progress, tell
        self.outcome = DiscoveryResult()
        self._worlds = [_WorldState(world, plan) for world in plan.worlds if world.choices(plan.operators)]
        self._seen: set[str] = set()

    def run(self) -> DiscoveryResult:
        """Return all rules that are found."""
        for size in range(1, self.plan.size + 1):
            for each in self._worlds:
                stage = self._stage(each, size)
                self.outcome.stages.append(stage)
                self.tell(stage)
        return self.outcome

    def _stage(self, each: _WorldState, size: int) -> Stage:
        start, before = time.monotonic(), len(self.outcome.rules)
        name = f"{each.world.name}, size {size}"
        self.progress(f"evaluate {name}", 0.0)
        terms, classes = each.classes.evaluated_count, each.classes.count
        equal = each.questions()
        stage = Stage(
            each.world.name, size, each.classes.evaluated_count - terms, each.classes.count - classes, len(equal)
        )
        waiting = deque(equal)
        while waiting:
            self.progress(f"prove {name}", 1 - len(waiting) / len(equal))
            batch = self._batch(each, waiting)
            stage.question_count += len(batch)
            for question, settled in self._answer_questions(
                [EquationTask(each.world.name, e, self.plan.timeout, self.plan.files) for e in batch]
            ):
                stage.fates[settled.fate] += 1
                self._record_answer(each, question, settled)
        stage.rules = len(self.outcome.rules) - before
        stage.seconds = time.monotonic() - start
        return stage

    def _batch(self, each: _WorldState, waiting: deque[EqualTerms]) -> list[EqualTerms]:
        """Take the next questions that are not derivable; those that one of the batch might derive stay for later."""
        batch, later, tentative = list[EqualTerms](), list[EqualTerms](), Derivation(each.terms)
        while waiting and len(batch) < BATCH_SIZE:
            equal = waiting.popleft()
            if each.derivation.is_reducible(equal.term):
                continue
            if tentative.is_reducible(equal.term):
                later.append(equal)
                continue
            batch.append(equal)
            tentative.add_equal(drop_axes(equal.term), drop_axes(equal.other))
        waiting.extendleft(reversed(later))
        return batch

    def _answer_questions(self, questions: Sequence[EquationTask]) -> Iterator[tuple[EquationTask, EquationAnswer]]:
        """Yield the answers in the order of the questions."""
        missing = [question for question in questions if question.key not in self.journal.answers]
        for place, settled in self.engine.imap_unordered(prove_equation, missing):
            self.journal.add(missing[place].key, settled.to_json())
        for question in questions:
            yield question, EquationAnswer.from_json(self.journal.answers[question.key])

    def _record_answer(self, each: _WorldState, question: EquationTask, settled: EquationAnswer) -> None:
        """Keep what is proved; undecided equations count in derivations, but are not written."""
        for rule, proof in settled.rules:
            self._keep_rule(rule, proof, each.world.name)
        if settled.fate is EquationStatus.UNKNOWN:
            for other in self._worlds:
                for rule in settled.narrowest:
                    other.derivation.add(rule)
        if settled.fate is EquationStatus.UNWRITTEN:
            each.derivation.add_equal(question.equation.term, question.equation.other)
        if settled.fate is not EquationStatus.PROVED:
            self.outcome.open_questions.append((question, settled))

    def _keep_rule(self, rule: Rule, proof: Proof, world: str) -> None:
        text = canonical_text((*rule.left, *rule.right, *rule.conditions))
        if text in self._seen:
            return
        self._seen.add(text)
        self.outcome.rules.append(DiscoveredRule(rule, proof, world))
        gate.cache_proof(proof)
        for each in self._worlds:
            each.derivation.add(rule)


# -- the journal -------------------------------------------------------------------------------------------------------


@cache
def get_source_digest() -> str:
    """Identify the source that asks and answers."""
    digest = sha256(gate.prover_digest().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


class Journal(AbstractContextManager["Journal"]):
    """Answers by question, in a file: a run that was killed goes on from there.

    One answer a line, each on the disk before the next question counts as answered. A line that was cut off is left
    out; so are answers of another source, for it may ask and prove otherwise.
    """

    def __init__(self, path: Path, *, keep: bool) -> None:
        """`keep` it when the run is done; one that was not done keeps it in any case.

        Raises:
            OutputError: it cannot be written.
        """
        self.path, self.keep = path, keep
        self.answers: dict[str, Mapping[str, Any]] = {}
        whole = self._read()
        try:
            self._file = path.open("ab")
            self._file.truncate(whole)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        if not whole:
            self._write({"source": get_source_digest()})

    def _read(self) -> int:
        """Take over the answers that the file has; return where the last whole line ends, 0 where none counts."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise OutputError(f"{self.path} cannot be read: {error.strerror}") from error
        end = 0
        for number, line in enumerate(lines):
            said = _parse_line(line)
            if said is None or (number == 0 and said != {"source": get_source_digest()}):
                break
            end += len(line)
            if number:
                self.answers[said["question"]] = said["answer"]
        if lines and not end:
            log.warning("%s is of another version of graphopt, and begun anew", self.path)
        elif self.answers:
            log.warning("%s: %d questions are answered already", self.path, len(self.answers), extra={"plain": True})
        return end

    def add(self, question: str, answer: Mapping[str, Any]) -> None:
        """Keep the answer to a question."""
        self.answers[question] = answer
        self._write({"question": question, "answer": answer})

    def _write(self, said: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(said, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None and not self.keep:
            with suppress(OSError):
                self.path.unlink()


def _parse_line(line: bytes) -> Any:
    """Return the content of a line, None for one that is incomplete."""
    try:
        said = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return (
        said
        if isinstance(said, dict) and (said.keys() == {"source"} or said.keys() == {"question", "answer"})
        else None
    )
