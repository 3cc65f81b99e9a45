"""The rules as they were before holes for operators and operands: none of what they did is lost.

`python -m tests.before` tries all of them, `python -m tests.before NAME …` some; a few are tried by `test_before.py`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onnx import ModelProto

from graphopt.discover.library_lookup import read_graph
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.operators.operator_classes import lookup_operator
from graphopt.rewrite.build import RewriteRefused, build_patch
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import Simplifier
from graphopt.rules import RULES, TRADES
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import sample_instances
from graphopt.verifier.sampling_scope import ANY, SamplingScope

PATH = Path(__file__).parent / "data" / "rules_of_before.jsonl"
SCOPES = (SamplingScope(sizes=(2, 3, 3, 4, 5, 6)), ANY)
"""Without axes of one element, which make views of what is none; with them where a rule applies to nothing else."""
DEGENERATE = ("eliminate_nop_", "replace_transpose_that_moves_one_")
"""Rules that apply where a number is 0 or 1 or an axis has one element."""
TRIED = 4
"""Instances that are drawn for one at which the old rule applies."""

LIBRARY = Simplifier(RULES, PASSES)
ONLY_PASSES = Simplifier((), PASSES)


@dataclass(frozen=True)
class Before:
    """A rule of before, and whether it was a trade."""

    rule: Rule
    is_trade: bool

    def __str__(self) -> str:
        return self.rule.name


@cache
def lines() -> tuple[str, ...]:
    """A line for each of them, in their order."""
    return tuple(PATH.read_text().splitlines())


def read(line: str) -> Before:
    ((part, said),) = json.loads(line).items()
    return Before(Rule.from_json({**said, "why": ""}), part == "trades")


UNDONE = {
    "fuse_consecutive_min": "a bound that is a number becomes a Clip first, which takes no vector",
    "fuse_factors_of_matmul_transposed": "the transposition goes into a Gemm first, which reads it as it lies",
    "fuse_3_slices_into_split": "two of three slices may be a Split before the third is seen",
}
"""Rules that another one kept from applying before, too."""


def loss(before: Before) -> str:
    """Say what the library of today leaves heavier than a rule of before did; nothing where it does as much."""
    if before.rule.name in UNDONE:
        return ""
    for scope, count in zip(SCOPES, (TRIED, 10 * TRIED), strict=True):
        for instance in sample_instances(before.rule, count=count, scope=scope):
            left, _ = build_models(before.rule, instance)
            lost = _lost_trade(before.rule, left) if before.is_trade else _lost(before.rule, left)
            if lost is not None:
                return lost and f"{lost} at {instance}"
    return "it applies to none of its instances"


def _operators(graph: Graph) -> Counter[str]:
    """How many there are of each, but for the copies by which examples name their outputs."""
    return Counter({op: count for op, count in graph.operator_counts().items() if op != "Identity"})


def _left_over(model: ModelProto, simplifier: Simplifier) -> Counter[str]:
    graph = read_graph(model)
    simplifier.run(graph)
    return _operators(graph)


def _weight(operators: Counter[str]) -> int:
    return sum(count * lookup_operator(op).weight for op, count in operators.items())


def _lost(rule: Rule, left: ModelProto) -> str | None:
    """What the rules of today leave that is heavier than what the rule alone does.

    None where it does not apply, or where another applies to what is no longer its pattern: to a number that is 0. And
    where a divisor is 0, which has no reciprocal: a model that divides by it computes nothing.
    """
    graph = read_graph(left)
    if next(find_matches(rule, graph), None) is None or _divides_by_zero(graph):
        return None
    steps = LIBRARY.run(graph).steps
    goal, now = _left_over(left, Simplifier([rule], PASSES)), _operators(graph)
    if _weight(now) <= _weight(goal):
        return ""
    degenerate = any(step.name.startswith(DEGENERATE) for step in steps)
    return None if degenerate else f"{dict(now)} instead of {dict(goal)}"


def _lost_trade(rule: Rule, left: ModelProto) -> str | None:
    """What no trade or rule of today makes of a model; None where the rule itself does not apply."""
    goal = next(_made(rule, left, read_graph), None)
    if goal is None:
        return None
    simplified = _simplified(left)
    if _operators(simplified) == goal:
        return ""
    for start in (read_graph, _simplified):
        graph = start(left)
        for each in (*TRADES, *RULES):
            if next(find_matches(each, graph), None) is not None and any(
                made == goal for made in _made(each, left, start)
            ):
                return ""
    return f"nothing makes {dict(goal)} of {dict(read_graph(left).operator_counts())}"


def _simplified(model: ModelProto) -> Graph:
    """What a search begins with."""
    graph = read_graph(model)
    LIBRARY.run(graph)
    return graph


def _made(rule: Rule, model: ModelProto, start: Callable[[ModelProto], Graph]) -> Iterator[Counter[str]]:
    """What is left where a rule is applied once, and then what is constant or dead is gone."""
    for position in range(len(list(find_matches(rule, start(model))))):
        graph = start(model)
        match = list(find_matches(rule, graph))[position]
        try:
            graph.apply(build_patch(graph, match))
        except RewriteRefused:
            continue
        ONLY_PASSES.run(graph)
        yield _operators(graph)


def _divides_by_zero(graph: Graph) -> bool:
    """Whether a constant that something is divided by has a 0 in it."""
    divisors = (graph.constant(node.inputs[1]) for _, node in graph.nodes() if node.op == "Div")
    return any(divisor is not None and not divisor.numpy().all() for divisor in divisors)


def main(names: list[str]) -> int:
    """Try rules by name, or all; print what is lost."""
    lost = 0
    for before in map(read, lines()):
        if not names or before.rule.name in names:
            found = loss(before)
            lost += bool(found)
            if found:
                sys.stdout.write(f"{before}: {found}\n")
    sys.stdout.write(f"{lost} of {len(names) or len(lines())} lost something\n")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
