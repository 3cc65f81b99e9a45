"""`plan`: how a model is best run on described devices, from its file to a table of plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphopt.base.errors import ModelError, UsageError
from graphopt.base.limits import LimitError, format_bytes, format_megabytes
from graphopt.base.session import current_session
from graphopt.io import onnx_io, opset_conversion
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from graphopt.partition.devices import Cluster
from graphopt.partition.execution import simulate_plan
from graphopt.partition.plan import MAX_SHARDS, Comparison, Plan, compare_plans, splits_of
from graphopt.partition.schedule import DEFAULT_MICRO_BATCHES
from graphopt.partition.tensor_parallel import ShardedGraph, shard_graph, simplify_before_split
from graphopt.partition.workload import NodeSeconds, Workload, measure_workload, training_names
from graphopt.rewrite.gate import Gate
from graphopt.runtime.bench import format_ms, format_table, make_up_inputs, prepare_models
from graphopt.runtime.profile import Profile, profile_model
from graphopt.runtime.sample_inputs import Feeds
from graphopt.runtime.session_setting import SessionSetting, model_label, parse_model
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What plans are made for."""

    cluster: Cluster
    micro_batches: int = DEFAULT_MICRO_BATCHES
    """Number of runs that follow each other, or of which one step of training consists, in each copy."""
    is_measured: bool = True
    """Run the model here under the profiler; else its times are estimates."""
    setting: SessionSetting
    dims: Mapping[str, Sequence[int]] | None = None
    inputs: Mapping[str, Any] | None = None
    seed: int = 0


@dataclass(frozen=True)
class PlanReport:
    """Plans for a model, and what they rest on."""

    model: str
    """Its name."""
    request: PlanRequest
    workloads: Mapping[int, Workload]
    """By the number of devices that share an operator."""
    times: str
    """Where the times come from."""
    comparison: Comparison
    simulated: float
    """Seconds of the winner in a simulation message by message."""
    notes: tuple[str, ...]

    @property
    def winner(self) -> Plan:
        """The plan of the highest throughput: reports are made only where one fits."""
        winner = self.comparison.winner
        assert winner is not None
        return winner

    @property
    def conclusion(self) -> str:
        """The winner in words, with what the time of the simulation says of its estimate."""
        winner, what = self.winner, "step" if self.workloads[1].is_training else "run"
        text = f"{winner.split}: {winner.throughput:,.4g} runs/s, {format_ms(winner.latency)} ms a {what}"
        if winner.split.shards * winner.split.stages == 1 and len(self.request.cluster.devices) > 1:
            copies = "copies of it win" if winner.split.copies > 1 else "further devices gain nothing"
            text += f"; the model fits into one device, and {copies}"
        return f"{text}. Simulated message by message, it takes {self.simulated / winner.seconds:.3f} of that time."

    def to_json(self) -> dict[str, Any]:
        """Return plain data: seconds, bytes, and numbers of devices."""
        whole = self.workloads[1]
        weights, gradients, state = whole.model_state(0, len(whole))
        return {
            "model": self.model,
            "times": self.times,
            "seconds": sum(whole.seconds),
            "weights": weights,
            "gradients": gradients,
            "optimizer_state": state,
            "micro_batches": self.request.micro_batches,
            "winner": _plan_json(self.winner),
            "simulated": self.simulated,
            "plans": [_plan_json(plan) for plan in self.comparison.plans],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        whole = self.workloads[1]
        weights, gradients, state = whole.model_state(0, len(whole))
        parts = {"weights": weights, "gradients": gradients, "optimizer state": state}
        sizes = ", ".join(f"{format_megabytes(nbytes)} {name}" for name, nbytes in parts.items() if nbytes)
        head = (
            f"{self.model}: {format_ms(sum(whole.seconds))} ms a run on one device of speed 1 ({self.times}); {sizes}"
        )
        return "\n".join([head, "", format_table(self._rows()), "", self.conclusion, *self.notes])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        is_training = self.workloads[1].is_training
        latency = "ms a step" if is_training else "ms a run"
        yield ("plan", "runs/s", latency, "memory", *(("schedule", "ZeRO") if is_training else ()), "bound by")
        for plan in self.comparison.plans:
            schedule = (plan.schedule if plan.split.stages > 1 else "", str(plan.zero)) if is_training else ()
            figures = f"{plan.throughput:,.4g}", format_ms(plan.latency), format_megabytes(plan.memory)
            yield (f"{plan.split}{' *' * (plan is self.winner)}", *figures, *schedule, _describe_bound(plan))


def _describe_bound(plan: Plan) -> str:
    if plan.missing:
        return f"memory: {format_bytes(plan.missing)} too much"
    return f"{plan.binds} {plan.shares[plan.binds]:.0%}"


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        **plan.split._asdict(),
        "schedule": str(plan.schedule),
        "zero": plan.zero,
        "throughput": plan.throughput,
        "latency": plan.latency,
        "seconds": plan.seconds,
        "memory": plan.memory,
        "missing": plan.missing,
        "bound_by": plan.binds,
        "shares": dict(plan.shares),
        "placement": [
            [
                {
                    "devices": [device.name for device in stage.devices],
                    "nodes": [stage.start, stage.end],
                    "forward": stage.forward,
                    "backward": stage.backward,
                    "communication": stage.communication,
                    "sent": stage.sent_bytes,
                    "weights": stage.weights,
                    "gradients": stage.gradients,
                    "optimizer_state": stage.optimizer_state,
                    "values": stage.activations,
                }
                for stage in copy
            ]
            for copy in plan.copies
        ],
    }


def plan_model(
    model: onnx_io.ModelSource, request: PlanRequest, progress: Callable[[str, float], None] | None = None
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
        loaded = onnx_io.load_model(onnx_io.copy_source(model))
        with onnx_io.naming_file_in_errors(loaded.path):
            infer_graph(loaded.graph)
            opset_conversion.upgrade_nodes(loaded.graph)
        notes: list[str] = []
        report("time", 0.0)
        feeds, profile = _profile(model, request, notes)
        gate = Gate(is_cpu=request.setting.is_cpu)
        graph = simplify_before_split(with_static_shapes(loaded.graph, input_shapes(feeds)), gate)
        seconds = AnalyticCost().node_seconds if profile is None else _calibrated(graph, profile)
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


def _profile(model: onnx_io.ModelSource, request: PlanRequest, notes: list[str]) -> tuple[Feeds, Profile | None]:
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


def _calibrated(graph: Graph, profile: Profile) -> NodeSeconds:
    """Return estimates that are scaled, for each operator, to what the profile of the whole graph says.

    Operators that ONNX Runtime fuses share the time that is left.
    """
    cost = AnalyticCost()
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
