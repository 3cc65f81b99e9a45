"""Proofs of equations between two terms: the most general rules that are proved, or why there is none.

Each equation is a task of its own: it knows no other, so it may be answered anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from graphopt.discover.batch_arithmetic import Field, Reals
from graphopt.discover.equivalence_classes import EqualTerms
from graphopt.discover.evaluation import Evaluator
from graphopt.discover.generalization import (
    GeneralizationLadder,
    build_ladders,
    find_runtime_difference,
    partition_instances,
    repair_rule,
)
from graphopt.discover.horizontal_fusion import merge_branches
from graphopt.discover.worlds import WORLDS
from graphopt.language import rule_library
from graphopt.language.proof import Proof, Verdict
from graphopt.language.rule import Rule
from graphopt.rewrite import gate

REPAIRS = 6
"""Conditions that are tried for a rule that lacks one."""


class EquationStatus(StrEnum):
    """Outcome of an equation between two terms."""

    PROVED = "proved"
    UNKNOWN = "not decided"
    REFUTED = "refuted"
    ACCIDENT = "equal by accident of a shape"
    UNWRITTEN = "no rule: one side has no holes of the other"


@dataclass(frozen=True)
class EquationTask:
    """Two equal terms of a world, and the seconds that a proof may take."""

    world: str
    equation: EqualTerms
    timeout: float = 2.0
    files: tuple[Path, ...] = ()
    """Files of rules that define operators which ONNX does not."""

    @property
    def key(self) -> str:
        return f"{self.world}: {self.equation.term} = {self.equation.other}"


@dataclass(frozen=True)
class EquationAnswer:
    """The answer: rules with their proofs, from the first step of a ladder in which some were proved."""

    fate: EquationStatus
    rules: tuple[tuple[Rule, Proof], ...] = ()
    narrowest: tuple[Rule, ...] = ()
    """Rules that were not proved, in their narrowest form."""
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "fate": str(self.fate),
            "rules": [{"rule": rule.to_json(), "proof": proof.to_json()} for rule, proof in self.rules],
            "narrowest": [rule.to_json() for rule in self.narrowest],
            "detail": self.detail,
            "seconds": self.seconds,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EquationAnswer:
        rules = tuple((Rule.from_json(each["rule"]), Proof.from_json(each["proof"])) for each in data["rules"])
        narrowest = tuple(map(Rule.from_json, data["narrowest"]))
        return EquationAnswer(EquationStatus(data["fate"]), rules, narrowest, data["detail"], data["seconds"])


@cache
def evaluators() -> tuple[Evaluator, ...]:
    """Return the evaluators that compare terms in this process: what is equal in one arithmetic may be a rule."""
    return Evaluator(Field()), Evaluator(Reals())


def prove_equation(question: EquationTask) -> EquationAnswer:
    """Return the most general rules of two equal terms that are proved, in each direction."""
    start = time.thread_time()
    rule_library.read_rules(question.files)  # and with them what their operators compute
    (world,) = (world for world in WORLDS if world.name == question.world)
    found = build_ladders(question.equation, world, evaluators())
    if found is None:
        return EquationAnswer(EquationStatus.ACCIDENT, seconds=_since(start))
    if not found:
        return EquationAnswer(EquationStatus.UNWRITTEN, seconds=_since(start))
    single = [pair for ladder in found for pair in _highest(ladder, question.timeout)]
    joined = (
        (rule, gate.prove_now(rule, question.timeout, refute=False))
        for rule in merge_branches(rule for rule, _ in single)
    )
    proved = (*single, *((rule, proof) for rule, proof in joined if proof.holds))
    wrong = next(filter(None, (find_runtime_difference(*pair) for pair in proved)), "")
    if wrong:
        return EquationAnswer(EquationStatus.REFUTED, detail=wrong, seconds=_since(start))
    if proved:
        return EquationAnswer(EquationStatus.PROVED, proved, seconds=_since(start))
    narrowest = tuple(ladder.narrowest for ladder in found)
    proof = gate.prove_now(narrowest[0], question.timeout)
    fate = EquationStatus.REFUTED if proof.verdict is Verdict.REFUTED else EquationStatus.UNKNOWN
    return EquationAnswer(fate, (), narrowest, proof.counterexample or proof.detail, _since(start))


def _since(start: float) -> float:
    return round(time.thread_time() - start, 3)


def _highest(ladder: GeneralizationLadder, timeout: float) -> list[tuple[Rule, Proof]]:
    """Return the rules of the first step in which some are proved."""
    for step in ladder.steps:
        patience = timeout if step is ladder.steps[-1] else timeout / 8  # what holds for all ranks is soon shown
        proved = [pair for rule in step if (pair := _prove_with_repair(rule, patience)) is not None]
        if proved:
            return proved
    return []


def _prove_with_repair(rule: Rule, timeout: float) -> tuple[Rule, Proof] | None:
    """Return a rule with its proof: as it is, or with a condition that separates where it holds from where it does
    not."""
    for candidate in _candidates(rule):
        proof = gate.prove_now(candidate, timeout, refute=False)
        if proof.holds:
            return candidate, proof
        if proof.detail.startswith("out of time"):
            return None
    return None


def _candidates(rule: Rule) -> Iterator[Rule]:
    good, bad = partition_instances(rule, evaluators())
    if not bad:
        yield rule
    if good:
        for number, candidate in enumerate(repair_rule(rule, good, bad)):
            if number == REPAIRS:
                return
            yield candidate
