"""Plans as programs of their devices, for the simulator that knows only messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphopt.partition.collectives import Group, Operation, fastest
from graphopt.partition.devices import Link
from graphopt.partition.plan import DevicePlan
from graphopt.partition.schedule import passes
from graphopt.partition.simulator import Compute, Instruction, Program, Receive, Send, Simulation, simulate
from graphopt.partition.workload import Collective, Workload


def simulate_plan(plan: DevicePlan, workload: Workload, link: Link, micro_batches: int) -> Simulation:
    """Run a plan message by message: each device computes, takes part in collective operations, and sends what the next
    stage reads."""
    programs = [
        _DeviceProgram(plan, workload, link, micro_batches, copy, stage, shard).run()
        for copy in range(plan.split.copies)
        for stage in range(plan.split.stages)
        for shard in range(plan.split.shards)
    ]
    return simulate(programs, link)


class _DeviceProgram:
    """Program of one device in a plan."""

    def __init__(
        self, plan: DevicePlan, workload: Workload, link: Link, micro_batches: int, copy: int, stage: int, shard: int
    ) -> None:
        self.plan, self.workload, self.link, self.micro_batches = plan, workload, link, micro_batches
        self.copy, self.stage, self.shard = copy, stage, shard
        self.own = plan.copies[copy][stage]
        self.speed = self.own.devices[shard].speed

    def run(self) -> Program:
        split, zero = self.plan.split, self.plan.zero
        for each in passes(self.plan.schedule, self.stage, split.stages, self.micro_batches):
            before, after = (self.stage + 1, self.stage - 1) if each.is_backward else (self.stage - 1, self.stage + 1)
            if 0 <= before < split.stages:
                yield Receive(self._number(self.copy, before, self.shard))
            if zero == 3:
                yield from self._among_copies(Operation.ALL_GATHER, self._state()[0])
            yield from self._compute(is_backward=each.is_backward)
            if 0 <= after < split.stages:
                border = self.plan.copies[self.copy][min(self.stage, after)]
                yield Send(self._number(self.copy, after, self.shard), border.sent_bytes)
        if self.workload.is_training:
            yield from self._update()

    def _number(self, copy: int, stage: int, shard: int) -> int:
        split = self.plan.split
        return (copy * split.stages + stage) * split.shards + shard

    def _state(self) -> tuple[int, int, int]:
        return self.workload.model_state(self.own.start, self.own.end)

    def _compute(self, *, is_backward: bool) -> Iterator[Instruction]:
        """Compute one pass, and take part in the operations on its way."""
        seconds = self.workload.backward if is_backward else self.workload.forward
        pending = 0.0
        for place in range(self.own.start, self.own.end):
            pending += seconds[place] / self.speed
            collective = None if is_backward else self.workload.collectives.get(place)
            if collective is not None:
                yield Compute(pending)
                pending = 0.0
                members = [self._number(self.copy, self.stage, shard) for shard in range(self.plan.split.shards)]
                yield from _run_collective(collective, members, self.shard, self.link)
        yield Compute(pending)

    def _update(self) -> Iterator[Instruction]:
        _, gradients, _ = self._state()
        zero, copies = self.plan.zero, self.plan.split.copies
        yield from self._among_copies(Operation.REDUCE_SCATTER if zero else Operation.ALL_REDUCE, gradients)
        seconds = sum(self.workload.update[self.own.start : self.own.end]) / self.speed
        yield Compute(seconds / (copies if zero else 1))
        if zero in (1, 2):
            yield from self._among_copies(Operation.ALL_GATHER, gradients)

    def _among_copies(self, operation: Operation, nbytes: int) -> Iterator[Instruction]:
        """Take part in an operation with the devices that do the same in other copies."""
        members = [self._number(copy, self.stage, self.shard) for copy in range(self.plan.split.copies)]
        if nbytes:
            yield from _run_collective(Collective(operation, nbytes), members, self.copy, self.link)


def _run_collective(collective: Collective, members: Sequence[int], rank: int, link: Link) -> Iterator[Instruction]:
    count = len(members)
    if count > 1:
        algorithm = fastest(collective.operation, count, collective.nbytes, link)
        value: Any = np.ones(count)  # one number for each part: the bytes are said beside it
        yield from algorithm.program(Group(rank, tuple(members), collective.nbytes), value)
