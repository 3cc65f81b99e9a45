"""The rewrites of a run as a report tells them: with their causes, their proofs, and the nodes that they changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.ir.graph import Graph, Node
from graphopt.language.rule import Rule
from graphopt.report.node_changes import NodeNumbers, StepNodes, kept_nodes, nodes_of_steps
from graphopt.report.report import Report, Rewrite, RuleText
from graphopt.rewrite.passes import PASSES
from graphopt.search.model_tuner import TuningResult


@dataclass(frozen=True, eq=False)
class RewriteHistory:
    """The steps that led from an original to a result."""

    original: Graph
    """The graph that was loaded."""
    tuned: TuningResult
    """The result, with its steps from there."""
    describe_proof: Callable[[str], str | None]
    """Status of a rule by its name, such as `proved, exact`."""
    rules: Sequence[Rule]
    """Rules that may have been applied."""

    def add_to(self, report: Report) -> Report:
        """Return a report with the rewrites, their rules, and the nodes that stayed."""
        before, after = (NodeNumbers.from_graph(graph) for graph in (self.original, self.tuned.candidate.graph))
        rewrites = tuple(self._rewrites(nodes_of_steps(before, after, self.tuned.candidate)))
        texts = self._rule_texts(dict.fromkeys(rewrite.name for rewrite in rewrites))
        return replace(report, rewrites=rewrites, rules=texts, kept_nodes=kept_nodes(before, after))

    def _rewrites(self, nodes: Iterable[StepNodes]) -> Iterable[Rewrite]:
        for step, own in zip(self.tuned.candidate.steps, nodes, strict=True):
            yield Rewrite(
                name=step.name,
                is_rule=step.is_rule,
                graph=step.graph.name,
                removed=_node_texts(step.patch.before, step.patch.after),
                added=_node_texts(step.patch.after, step.patch.before),
                proof=self.describe_proof(step.name) if step.is_rule else None,
                cause=None if step.cause is None else self.tuned.group_of[step.cause],
                weight_bytes=step.patch.added_weight_bytes,
                original_nodes=own.before,
                result_nodes=own.after,
            )

    def _rule_texts(self, names: Iterable[str]) -> dict[str, RuleText]:
        rules = {rule.name: rule for rule in self.rules}
        reasons = {pass_.name: pass_.why for pass_ in PASSES}
        return {name: _rule_text(rules[name]) if name in rules else RuleText(reasons.get(name, "")) for name in names}


def _rule_text(rule: Rule) -> RuleText:
    return RuleText(rule.why, str(rule), json.dumps(rule.to_json(), ensure_ascii=False))


def _node_texts(nodes: Mapping[int, Node], others: Mapping[int, Node]) -> tuple[str, ...]:
    """Return the nodes on one side of a patch that are no nodes on the other, by operator and name."""
    gone = (node for vertex, node in nodes.items() if vertex not in others or others[vertex].is_internal)
    return tuple(f"{node.op} {node.label}".strip() for node in gone if not node.is_internal)
