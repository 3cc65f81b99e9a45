"""Requests for plans, and reports on them: a table, and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.base.errors import UsageError
from graphopt.base.limits import format_bytes, format_megabytes
from graphopt.partition.devices import Cluster
from graphopt.partition.plan import DevicePlan, PlanComparison
from graphopt.partition.schedule import DEFAULT_MICRO_BATCHES
from graphopt.partition.workload import Workload
from graphopt.runtime.bench import format_ms, format_table
from graphopt.runtime.session_setting import SessionSetting

COSTS = ("measured", "analytic")
"""Sources of node times."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Request for plans.

    Raises:
        UsageError: a number is not positive.
    """

    cluster: Cluster
    micro_batches: int = DEFAULT_MICRO_BATCHES
    """Number of runs that follow each other, or of which one step of training consists, in each copy."""
    is_measured: bool = True
    """Run the model here under the profiler; else its times are estimates."""
    setting: SessionSetting
    dims: Mapping[str, int | Sequence[int]] | None = None
    inputs: Mapping[str, Any] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise UsageError(f"micro_batches cannot be {self.micro_batches}: it is 1 or more")


@dataclass(frozen=True)
class PlanReport:
    """Plans for a model, and what they rest on."""

    model: str
    """Its name."""
    request: PlanRequest
    workloads: Mapping[int, Workload]
    """Work of a run, by the number of devices that share an operator."""
    times: str
    """Source of the times, in words."""
    comparison: PlanComparison
    simulated: float
    """Seconds of the winner in a simulation message by message."""
    notes: tuple[str, ...]

    @property
    def winner(self) -> DevicePlan:
        """The plan that has the highest throughput; reports are made only where one fits."""
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


def _describe_bound(plan: DevicePlan) -> str:
    if plan.missing:
        return f"memory: {format_bytes(plan.missing)} too much"
    return f"{plan.binds} {plan.shares[plan.binds]:.0%}"


def _plan_json(plan: DevicePlan) -> dict[str, Any]:
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
