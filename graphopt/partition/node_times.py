"""Seconds of each node of a model: measured here, operator by operator, or estimated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from graphopt.base.errors import ModelError
from graphopt.base.limits import LimitError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.partition.plan_report import PlanRequest
from graphopt.partition.workload import NodeSeconds
from graphopt.runtime.bench import make_up_inputs, prepare_models
from graphopt.runtime.profile import Profile, profile_model
from graphopt.runtime.sample_inputs import Feeds
from graphopt.runtime.session_setting import parse_model
from graphopt.search.analytic_cost import AnalyticCost


def profile_or_feeds(
    model: onnx_io.ModelSource, request: PlanRequest, notes: list[str]
) -> tuple[Feeds, Profile | None]:
    """Return made-up inputs, and how long the operators take on them; None, with a note, where it is not run here."""
    if request.is_measured:
        try:
            ready = prepare_models(
                [model], request.setting, dims=request.dims, inputs=request.inputs, seed=request.seed
            )
            if len(ready.trials) > 1:
                notes.append("planned for the first of several usual sizes: --dim names others")
            return ready.trials[0].feeds, profile_model(model, request.setting, ready.trials[0].feeds)
        except LimitError:
            raise
        except ModelError as error:
            notes.append(f"not measured, but estimated: {error}")
    return make_up_inputs(parse_model(model), request.dims or {}, request.inputs or {})[0], None


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
