"""The rewrites of a run as a report tells them: with their causes, their proofs, and the nodes that they changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from graphopt.ir.graph import Graph, Node
from graphopt.language.rule import Rule
from graphopt.report.node_changes import NodeNumbers, kept_nodes, nodes_of_steps
from graphopt.report.report import Report, Rewrite, RuleText
from graphopt.rewrite.passes import PASSES
from graphopt.search.model_tuner import TuningResult


def with_rewrites(
    report: Report,
    original: Graph,
    tuned: TuningResult,
    describe_proof: Callable[[str], str | None],
    rules: Iterable[Rule],
) -> Report:
    """Return a report with the rewrites, their rules, and the nodes that stayed.

    Args:
        report: the report on a run.
        original: the graph that was loaded.
        tuned: the result, with its steps from there.
        describe_proof: says the status of a rule by its name, such as `proved, exact`.
        rules: the rules that may have been applied.
    """
    before, after = (NodeNumbers.from_graph(graph) for graph in (original, tuned.candidate.graph))
    nodes = nodes_of_steps(before, after, tuned.candidate)
    rewrites = tuple(
        Rewrite(
            name=step.name,
            is_rule=step.is_rule,
            graph=step.graph.name,
            removed=_node_texts(step.patch.before, step.patch.after),
            added=_node_texts(step.patch.after, step.patch.before),
            proof=describe_proof(step.name) if step.is_rule else None,
            cause=None if step.cause is None else tuned.group_of[step.cause],
            weight_bytes=step.patch.added_weight_bytes,
            original_nodes=own.before,
            result_nodes=own.after,
        )
        for step, own in zip(tuned.candidate.steps, nodes, strict=True)
    )
    names = dict.fromkeys(rewrite.name for rewrite in rewrites)
    texts = {pass_.name: RuleText(pass_.why) for pass_ in PASSES}
    texts |= {
        rule.name: RuleText(rule.why, str(rule), json.dumps(rule.to_json(), ensure_ascii=False))
        for rule in rules
        if rule.name in names
    }
    applied = {name: texts.get(name, RuleText("")) for name in names}
    return replace(report, rewrites=rewrites, rules=applied, kept_nodes=kept_nodes(before, after))


def _node_texts(nodes: Mapping[int, Node], others: Mapping[int, Node]) -> tuple[str, ...]:
    """Return the nodes on one side of a patch that are no nodes on the other, by operator and name."""
    gone = (node for vertex, node in nodes.items() if vertex not in others or others[vertex].is_internal)
    return tuple(f"{node.op} {node.label}".strip() for node in gone if not node.is_internal)
