"""Seconds of each node of a model: measured here, operator by operator, or estimated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from graphopt.ir.graph import Graph
from graphopt.partition.workload import NodeSeconds
from graphopt.runtime.profile import Profile
from graphopt.search.analytic_cost import AnalyticCost


def node_times(graph: Graph, profile: Profile | None) -> NodeSeconds:
    """Return estimates; with a profile of the whole graph, scaled for each operator to what that says.

    Operators that ONNX Runtime fuses share the time that is left.
    """
    cost = AnalyticCost()
    if profile is None:
        return cost.node_seconds
    estimated: defaultdict[str, float] = defaultdict(float)
    for vertex, seconds in cost.node_seconds(graph).items():
        estimated[graph[vertex].op] += seconds
    measured = {row.operator.rpartition(".")[2]: row.seconds for row in profile.rows}
    known = {op: measured[op] / total for op, total in estimated.items() if total > 0 and op in measured}
    left = sum(total for op, total in estimated.items() if op not in known)
    rest = profile.seconds - sum(measured[op] for op in known)
    if left <= 0 or rest <= 0:
        known, rest, left = {}, profile.seconds, sum(estimated.values()) or 1.0
    other = rest / left

    def node_seconds(part: Graph) -> Mapping[int, float]:
        return {
            vertex: seconds * known.get(part[vertex].op, other) for vertex, seconds in cost.node_seconds(part).items()
        }

    return node_seconds
