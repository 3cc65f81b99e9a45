"""Plans: how a model is best run on several devices, by copies, by shards of its operators, by stages, or by all three.

What a run costs comes from node times and the α–β model of the links. Every way to write the number of devices as
copies times shards times stages is a plan; devices are taken in the order in which they are described: the shards of a
stage stand side by side, then the stages of a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf
from typing import NamedTuple

from graphopt.base.errors import MemoryBudgetError
from graphopt.base.limits import format_bytes
from graphopt.partition.balance import CutSpace, NoCutsError, choose_cuts, thin_positions
from graphopt.partition.collectives import Operation, collective_seconds
from graphopt.partition.devices import Cluster, Device, weakest_device
from graphopt.partition.schedule import PipelineTimes, Schedule, in_flight, pipeline_seconds, stage_ends
from graphopt.partition.workload import Workload

TIE = 1e-3
"""Relative difference of throughput up to which the simpler plan is taken."""


class DeviceSplit(NamedTuple):
    """Numbers whose product is that of the devices in use."""

    copies: int
    shards: int
    stages: int

    def __str__(self) -> str:
        parts = [f"{count} {name}" for name, count in zip(self._fields, self, strict=True) if count > 1]
        return " × ".join(parts) or "one device"


def splits_of(count: int) -> Iterator[DeviceSplit]:
    """Yield all splits of a number of devices, copies first."""
    divisors = [each for each in range(1, count + 1) if count % each == 0]
    for copies in reversed(divisors):
        for shards in divisors:
            if (count // copies) % shards == 0:
                yield DeviceSplit(copies, shards, count // copies // shards)


@dataclass(frozen=True)
class PlannedStage:
    """A stage of one copy of the model: what its devices do, each a shard of it."""

    devices: tuple[Device, ...]
    start: int
    end: int
    """Places of the workload, from the first to behind the last."""
    forward: float
    """Seconds of one forward pass, with its collective operations."""
    backward: float
    update: float
    """Seconds of an update of its parameters."""
    communication: float
    """Seconds that collective operations take in one forward and one backward pass."""
    synchronization: float
    """Seconds in which the copies exchange gradients and parameters, once per step."""
    sent_bytes: int
    """Bytes of the message to the next stage for one run; 0 from the last."""
    weights: int
    """Bytes of weights on each device; those below, too."""
    gradients: int
    optimizer_state: int
    activations: int

    @property
    def memory(self) -> int:
        """Bytes on each device."""
        return self.weights + self.gradients + self.optimizer_state + self.activations

    @property
    def missing(self) -> int:
        """Bytes that the smallest of its devices lacks."""
        return max(0, self.memory - min(device.memory for device in self.devices))


@dataclass(frozen=True)
class DevicePlan:
    """One way to run a model on devices."""

    split: DeviceSplit
    schedule: Schedule
    zero: int
    """Stage of ZeRO (Rajbhandari et al. 2020): 1 spreads the optimizer's state over the copies, 2 the gradients, too,
    3 all."""
    copies: tuple[tuple[PlannedStage, ...], ...]
    """The stages of each copy."""
    seconds: float
    """Seconds until all micro-batches are done; in training with the update."""
    throughput: float
    """Runs per second; in training, of micro-batches."""
    latency: float
    """Seconds of a single run through the fastest copy; in training of a step."""
    shares: Mapping[str, float]
    """Parts of the time: `compute` and `link` of the busiest stage, and the `bubble` in which it waits."""

    @property
    def stages(self) -> Iterator[PlannedStage]:
        for copy in self.copies:
            yield from copy

    @property
    def memory(self) -> int:
        """Bytes on the device that needs the most."""
        return max(stage.memory for stage in self.stages)

    @property
    def missing(self) -> int:
        """Bytes that are missing where the most are missing; 0 where it fits."""
        return max(stage.missing for stage in self.stages)

    @property
    def binds(self) -> str:
        """Limit that keeps it from being better: memory, or what takes the largest part of the time."""
        return "memory" if self.missing else max(self.shares, key=self.shares.__getitem__)


@dataclass(frozen=True)
class PlanComparison:
    """Plans for one model and some devices."""

    plans: tuple[DevicePlan, ...]
    """The best for each split, and one for a single device; those that fit first, the fastest first."""

    @property
    def winner(self) -> DevicePlan | None:
        """The plan of the highest throughput; None where none fits."""
        fitting = [plan for plan in self.plans if not plan.missing]
        best = max((plan.throughput for plan in fitting), default=0.0)
        good = (plan for plan in fitting if plan.throughput >= best * (1 - TIE))
        return min(good, key=lambda plan: (plan.split.shards * plan.split.stages, plan.split), default=None)

    def require_fit(self, label: str, count: int) -> DevicePlan:
        """Return the winner.

        Raises:
            MemoryBudgetError: no plan fits; says what is missing in the one that needs the least more.
        """
        if self.winner is not None:
            return self.winner
        nearest = min(self.plans, key=lambda plan: plan.missing)
        stage = max(nearest.stages, key=lambda each: each.missing)
        device = min(stage.devices, key=lambda each: each.memory)
        raise MemoryBudgetError(
            f"{label} does not fit into the {count} device{'s' * (count != 1)}, however it is split: {nearest.split}"
            f" needs {format_bytes(stage.memory)} on '{device.name}', which has {format_bytes(device.memory)}; "
            f"{format_bytes(stage.missing)} are missing ({describe_memory(stage)})"
        )


def describe_memory(stage: PlannedStage) -> str:
    """Return the memory of a stage by what it is for, in one line."""
    parts = {
        "weights": stage.weights,
        "gradients": stage.gradients,
        "optimizer state": stage.optimizer_state,
        "values": stage.activations,
    }
    return ", ".join(f"{format_bytes(nbytes)} {name}" for name, nbytes in parts.items() if nbytes)


def compare_plans(workloads: Mapping[int, Workload], cluster: Cluster, micro_batches: int) -> PlanComparison:
    """Compare all plans for some devices.

    Args:
        workloads: what a run asks of each device, by the number of shards; 1 is among them.
        cluster: the devices, in the order in which they are used.
        micro_batches: number of runs that follow each other, or of which one step of training consists, in each copy.
    """
    count, plans = len(cluster.devices), list[DevicePlan]()
    for split in splits_of(count):
        workload = workloads.get(split.shards)
        if workload is not None and split.stages <= len(workload.possible_cuts) + 1:
            plans.append(_best_variant(workload, cluster, micro_batches, split))
    if count > 1:
        fastest = max(cluster.devices, key=lambda device: device.speed)
        alone = Cluster((fastest,), cluster.link)
        plans.append(_best_variant(workloads[1], alone, micro_batches, DeviceSplit(1, 1, 1)))
    plans.sort(key=lambda plan: (plan.missing, -plan.throughput))
    return PlanComparison(tuple(plans))


def _best_variant(workload: Workload, cluster: Cluster, micro_batches: int, split: DeviceSplit) -> DevicePlan:
    """Return the best plan for a split: of those that fit the fastest, with as little of ZeRO and memory as does."""
    plans = [
        PlanMaker(workload, cluster, micro_batches, split, schedule, zero).plan()
        for schedule, zero in _variants(workload, split)
    ]
    missing = min(plan.missing for plan in plans)
    nearest = [plan for plan in plans if plan.missing == missing]
    best = max(plan.throughput for plan in nearest)
    fast = (plan for plan in nearest if plan.throughput >= best * (1 - TIE))
    return min(fast, key=lambda plan: (plan.zero, plan.memory))


def _variants(workload: Workload, split: DeviceSplit) -> Iterable[tuple[Schedule, int]]:
    """Return the schedules and stages of ZeRO that make a difference to a split."""
    if not workload.is_training:
        return [(Schedule.FORWARD, 0)]
    pipelines = (Schedule.GPIPE, Schedule.ONE_FORWARD_ONE_BACKWARD)
    return product(pipelines if split.stages > 1 else pipelines[1:], range(4 if split.copies > 1 else 1))


@dataclass(frozen=True, eq=False)
class PlanMaker:
    """Makes the plan of one way to run a workload."""

    workload: Workload
    cluster: Cluster
    micro_batches: int
    split: DeviceSplit
    schedule: Schedule
    zero: int

    def plan(self) -> DevicePlan:
        """Return the plan, cut where its stages take the same time on their devices."""
        devices, (_, shards, stages) = self.cluster.devices, self.split
        groups = [devices[i : i + shards] for i in range(0, len(devices), shards)]
        own = [groups[i : i + stages] for i in range(0, len(groups), stages)]
        weakest = [tuple(weakest_device("", group) for group in copy) for copy in own]
        if self.workload.is_training:  # copies exchange the gradients of equal stages
            weakest = [tuple(weakest_device("", same) for same in zip(*weakest, strict=True))] * len(own)
        ends = {each: self._cut(each) for each in set(weakest)}
        copies = tuple(tuple(self._stages(copy, ends[each])) for copy, each in zip(own, weakest, strict=True))
        return self._assess(copies)

    def _cut(self, devices: Sequence[Device]) -> list[int]:
        """Return the ends of the stages; where no cuts keep to the memory of the devices, those that share the time."""
        count, workload, stages = len(self.workload), self.workload, self.split.stages
        if stages == 1:
            return [0, count]

        def fits(stage: int, start: int, end: int) -> bool:
            return sum(self._memory(stage, start, end)) <= devices[stage].memory

        space = CutSpace(
            node_count=count,
            positions=thin_positions(workload.possible_cuts, workload.bytes_across, workload.seconds, stages),
            bytes_across=workload.bytes_across,
            speeds=[device.speed for device in devices],
            seconds_to_send=self.cluster.link.seconds,
        )
        try:
            cuts = choose_cuts(replace(space, fits=fits), workload.seconds)
        except NoCutsError:
            cuts = choose_cuts(space, workload.seconds)
        return [0, *cuts, count]

    def _memory(self, stage: int, start: int, end: int) -> tuple[int, int, int, int]:
        """Return the bytes of weights, gradients, optimizer state and values on each device of a stage."""
        weights, gradients, state = self.workload.model_state(start, end)
        held = in_flight(self.schedule, stage, self.split.stages, self.micro_batches)
        spread = [-(-nbytes // self.split.copies) for nbytes in (weights, gradients, state)]
        return (
            spread[0] if self.zero >= 3 else weights,
            spread[1] if self.zero >= 2 else gradients,
            spread[2] if self.zero >= 1 else state,
            self.workload.activations(start, end, held),
        )

    def _stages(self, groups: Sequence[Sequence[Device]], ends: Sequence[int]) -> Iterator[PlannedStage]:
        workload, copies = self.workload, self.split.copies
        for number, (group, (start, end)) in enumerate(zip(groups, pairwise(ends), strict=True)):
            speed = min(device.speed for device in group)
            weights, gradients, _ = workload.model_state(start, end)
            gathering = self._collective(Operation.ALL_GATHER, copies, weights) if self.zero == 3 else 0.0
            collectives = sum(
                self._collective(each.operation, self.split.shards, each.nbytes)
                for each in workload.collectives_between(start, end)
            )
            yield PlannedStage(
                tuple(group),
                start,
                end,
                sum(workload.forward[start:end]) / speed + collectives + gathering,
                sum(workload.backward[start:end]) / speed + gathering,
                sum(workload.update[start:end]) / speed / (copies if self.zero else 1),
                collectives + gathering + gathering,
                self._synchronization(gradients),
                workload.bytes_across[end] if end < len(workload) else 0,
                *self._memory(number, start, end),
            )

    def _collective(self, operation: Operation, count: int, nbytes: int) -> float:
        return collective_seconds(operation, count, nbytes, self.cluster.link)

    def _synchronization(self, gradients: int) -> float:
        """Return the seconds in which copies add up their gradients, and hand round what each updates."""
        copies = self.split.copies
        if not gradients:
            return 0.0
        if self.zero == 0:
            return self._collective(Operation.ALL_REDUCE, copies, gradients)
        scattering = self._collective(Operation.REDUCE_SCATTER, copies, gradients)
        gathering = self._collective(Operation.ALL_GATHER, copies, gradients) if self.zero < 3 else 0.0
        return scattering + gathering

    def _assess(self, copies: tuple[tuple[PlannedStage, ...], ...]) -> DevicePlan:
        schedule, count = self.schedule, self.micro_batches
        times = [self._times(stages) for stages in copies]
        if self.workload.is_training:
            ends = stage_ends(_slowest(times), schedule, count)
            seconds = latency = max(
                end + stage.synchronization + stage.update
                for stages in copies
                for end, stage in zip(ends, stages, strict=True)
            )
            throughput = self.split.copies * count / seconds
        else:
            all_seconds = [pipeline_seconds(each, schedule, count) for each in times]
            seconds, throughput = max(all_seconds), sum(count / each for each in all_seconds)
            latency = min(pipeline_seconds(each, schedule, 1) for each in times)
        shares = self._shares(copies, times, seconds)
        return DevicePlan(self.split, schedule, self.zero, copies, seconds, throughput, latency, shares)

    def _times(self, stages: Sequence[PlannedStage]) -> PipelineTimes:
        return PipelineTimes(
            tuple(stage.forward for stage in stages),
            tuple(stage.backward for stage in stages),
            tuple(self.cluster.link.seconds(stage.sent_bytes) for stage in stages[:-1]),
        )

    def _shares(
        self, copies: Sequence[Sequence[PlannedStage]], times: Sequence[PipelineTimes], seconds: float
    ) -> dict[str, float]:
        """Return what the time of the copy that takes the longest is spent on, in its busiest stage."""
        count = self.micro_batches
        stage = max((stage for stages in copies for stage in stages), key=lambda each: each.forward + each.backward)
        compute = count * (stage.forward + stage.backward - stage.communication) + stage.update
        link = count * stage.communication + stage.synchronization
        sending = count * max((each for own in times for each in own.transfers), default=0.0)
        if sending > compute + link:  # the busiest is no stage, but a link
            compute, link = 0.0, sending
        total = seconds or inf
        return {"compute": compute / total, "link": link / total, "bubble": max(0.0, 1 - (compute + link) / total)}


def _slowest(times: Sequence[PipelineTimes]) -> PipelineTimes:
    """Return the times of the slowest copy at each stage: in training, all copies wait for each other."""
    return PipelineTimes(
        tuple(map(max, zip(*(each.forward for each in times), strict=True))),
        tuple(map(max, zip(*(each.backward for each in times), strict=True))),
        tuple(map(max, zip(*(each.transfers for each in times), strict=True))),
    )
