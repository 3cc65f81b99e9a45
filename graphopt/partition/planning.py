"""`plan`: how a model is best run on described devices, from its file to a table of plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from graphopt.base.errors import UsageError
from graphopt.base.session import current_session
from graphopt.io.onnx_io import ModelSource, load_typed_model
from graphopt.ir.graph import Graph
from graphopt.partition.devices import read_devices
from graphopt.partition.execution import simulate_plan
from graphopt.partition.model_trial import try_model
from graphopt.partition.node_times import node_times
from graphopt.partition.plan import compare_plans, splits_of
from graphopt.partition.plan_report import COSTS, PlanReport, PlanRequest
from graphopt.partition.schedule import DEFAULT_MICRO_BATCHES
from graphopt.partition.sharding import MAX_SHARDS, shard_graph
from graphopt.partition.simplification import simplify_before_split
from graphopt.partition.workload import NodeSeconds, Workload, measure_workload, training_names
from graphopt.rewrite.gate import Gate
from graphopt.runtime.profile import profile_model
from graphopt.runtime.session_setting import SessionSetting, model_label
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes


def plan_model(
    model: ModelSource,
    devices: str | os.PathLike[str],
    *,
    micro_batches: int = DEFAULT_MICRO_BATCHES,
    cost: Literal["measured", "analytic"] = "measured",
    dims: Mapping[str, int | Sequence[int]] | None = None,
    threads: int = 0,
) -> PlanReport:
    """Compare data, tensor and pipeline parallelism for a model on described devices, alone and together.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns; one that `graphopt.grad`
            made is planned as training.
        devices: a TOML file of the devices and the link between them.
        micro_batches: runs that follow each other, or of which one step of training consists, in each copy.
        cost: `measured`, here and under the profiler, or `analytic`: an estimate, for which nothing is run.
        dims: sizes of open dims; others get a usual one.
        threads: of ONNX Runtime while the model is measured; 0: one a core.

    Raises:
        ModelError: the model is not legal.
        UsageError: the file of devices or an argument is wrong.
        MemoryBudgetError: the model does not fit into the devices, however it is split.
    """
    if cost not in COSTS:
        raise UsageError(f"cost is {' or '.join(COSTS)}, not {cost!r}")
    request = PlanRequest(
        cluster=read_devices(devices),
        micro_batches=micro_batches,
        is_measured=cost == "measured",
        setting=SessionSetting(threads=threads),
        dims=dims,
    )
    return find_plan(model, request)


def find_plan(
    model: ModelSource, request: PlanRequest, *, progress: Callable[[str, float], None] | None = None
) -> PlanReport:
    """Compare the plans for a model.

    Args:
        model: as `plan_model` takes it.
        request: the devices, and how node times are known.
        progress: called with the stage and the share of it that is done.

    Raises:
        ModelError: the model is not legal.
        UsageError: it has no such dim or input, or several sizes of one are asked for.
        MemoryBudgetError: it does not fit into the devices, however it is split.
    """
    report = progress or (lambda stage, done: None)
    with current_session().child():
        report("load", 0.0)
        loaded = load_typed_model(model)
        report("time", 0.0)
        trial = try_model(
            model,
            loaded.graph,
            request.setting,
            request.dims or {},
            request.inputs or {},
            request.seed,
            is_run=request.is_measured,
        )
        profile = None if trial.session is None else profile_model(model, request.setting, trial.feeds)
        notes = [*trial.notes]
        gate = Gate(is_cpu=request.setting.is_cpu)
        graph = simplify_before_split(with_static_shapes(loaded.graph, input_shapes(trial.feeds)), gate)
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
    yield 1, measure_workload(shard_graph(graph, 1), seconds)
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
