"""`plan`: how a model is best run on described devices, from its file to a table of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from graphopt.base.errors import UsageError
from graphopt.base.session import current_session
from graphopt.io.onnx_io import ModelSource
from graphopt.ir.graph import Graph
from graphopt.partition.execution import simulate_plan
from graphopt.partition.node_times import node_times, profile_or_feeds
from graphopt.partition.plan import compare_plans, splits_of
from graphopt.partition.plan_report import PlanReport, PlanRequest
from graphopt.partition.sharding import MAX_SHARDS, ShardedGraph, shard_graph
from graphopt.partition.simplification import load_typed, simplify_before_split
from graphopt.partition.workload import NodeSeconds, Workload, measure_workload, training_names
from graphopt.rewrite.gate import Gate
from graphopt.runtime.session_setting import model_label
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes


def plan_model(
    model: ModelSource, request: PlanRequest, progress: Callable[[str, float], None] | None = None
) -> PlanReport:
    """Compare data, tensor and pipeline parallelism for a model on some devices, alone and together.

    Args:
        model: a path or a model in memory; one that `graphopt grad` made is planned as training.
        request: the devices, and how node times are known.
        progress: called with the stage and the share of it that is done.

    Raises:
        ModelError: the model is not legal.
        UsageError: it has no such dim or input, or several sizes of one are asked for.
        MemoryBudgetError: it does not fit into the devices, however it is split.
    """
    report = progress or (lambda stage, done: None)
    if any(len(sizes) > 1 for sizes in (request.dims or {}).values()):
        raise UsageError("a plan is for one size of each dim: give one")
    with current_session().child():
        report("load", 0.0)
        loaded = load_typed(model)
        notes: list[str] = []
        report("time", 0.0)
        feeds, profile = profile_or_feeds(model, request, notes)
        gate = Gate(is_cpu=request.setting.is_cpu)
        graph = simplify_before_split(with_static_shapes(loaded.graph, input_shapes(feeds)), gate)
        seconds = node_times(graph, profile)
        workloads = dict(_workloads(graph, request, seconds, gate, notes, partial(report, "split")))
        comparison = compare_plans(workloads, request.cluster, request.micro_batches)
        label = model_label(model)
        winner = comparison.require_fit(label, len(request.cluster.devices))
        report("simulate", 0.0)
        simulated = simulate_plan(
            winner, workloads[winner.split.shards], request.cluster.link, request.micro_batches
        ).seconds
        times = "estimated" if profile is None else f"measured, {request.setting}"
        return PlanReport(label, request, workloads, times, comparison, simulated, tuple(notes))


def _workloads(
    graph: Graph,
    request: PlanRequest,
    seconds: NodeSeconds,
    gate: Gate,
    notes: list[str],
    progress: Callable[[float], None],
) -> Iterator[tuple[int, Workload]]:
    """Yield the workload of each number of shards that splits something; notes say what is left out."""
    yield 1, measure_workload(ShardedGraph(graph, 1, {}, {}, {}), seconds)
    counts = sorted({split.shards for split in splits_of(len(request.cluster.devices))} - {1})
    if counts and training_names(graph) is not None:
        notes.append("no plan shards operators of a training graph: the rules are for weights that are constant")
        return
    for done, count in enumerate(counts):
        progress(done / len(counts))
        if count > MAX_SHARDS:
            notes.append(f"no plan shards operators among more than {MAX_SHARDS} devices")
            return
        sharded = shard_graph(graph, count, gate)
        if sharded.is_split:
            yield count, measure_workload(sharded, seconds)
        else:
            notes.append(f"no proved rule shards an operator among {count} devices")
