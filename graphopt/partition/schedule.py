"""Schedules of pipelines: in which order a stage works on micro-batches, and how long all of them take.

GPipe (Huang et al. 2019) runs all forward passes, then all backward passes. 1F1B (PipeDream-flush; Narayanan et al.
2021) begins with backward passes as soon as it can, so that no more runs are in flight than there are stages behind.
Both leave a device idle for a part (p-1)/(m+p-1) of the time, with p equal stages and m micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

DEFAULT_MICRO_BATCHES = 8


class Schedule(StrEnum):
    """Order of the passes of micro-batches."""

    FORWARD = "forward"
    """There is no backward pass."""
    GPIPE = "GPipe"
    ONE_FORWARD_ONE_BACKWARD = "1F1B"


class StagePass(NamedTuple):
    """One pass of a micro-batch through a stage."""

    batch: int
    is_backward: bool


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds of the stages of a pipeline for one micro-batch."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """Zeros where there is no backward pass."""
    transfers: tuple[float, ...]
    """Seconds in which a message goes from each stage but the last to the next, or back."""


def in_flight(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> int:
    """Return how many micro-batches wait for their backward pass in a stage, at most."""
    match schedule:
        case Schedule.FORWARD:
            return 0
        case Schedule.GPIPE:
            return micro_batches
        case Schedule.ONE_FORWARD_ONE_BACKWARD:
            return min(micro_batches, stages - stage)


def passes(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> Iterator[StagePass]:
    """Yield the passes of a stage in order."""
    warm_up = micro_batches
    if schedule is Schedule.ONE_FORWARD_ONE_BACKWARD:
        warm_up = min(micro_batches, stages - stage - 1)
    yield from (StagePass(batch, False) for batch in range(warm_up))
    if schedule is Schedule.FORWARD:
        return
    for batch in range(warm_up, micro_batches):
        yield StagePass(batch, False)
        yield StagePass(batch - warm_up, True)
    yield from (StagePass(batch, True) for batch in range(micro_batches - warm_up, micro_batches))


def stage_ends(times: PipelineTimes, schedule: Schedule, micro_batches: int) -> list[float]:
    """Return the time at which each stage has done all its passes.

    A pass begins when the one before it in its stage and the message that it needs are there. Forward passes alone take
    the sum of the times of stages and links, and for each further micro-batch the largest of them.
    """
    stages = len(times.forward)
    left = [deque(passes(schedule, stage, stages, micro_batches)) for stage in range(stages)]
    ends = [0.0] * stages
    link_ends: dict[tuple[int, bool], float] = {}
    """The time at which a link is free again, by the stage before it and whether it goes back."""
    arrivals = {(0, StagePass(batch, False)): 0.0 for batch in range(micro_batches)}
    while any(left):
        for stage, own in enumerate(left):
            while own and (stage, own[0]) in arrivals:
                done = own.popleft()
                seconds = times.backward if done.is_backward else times.forward
                ends[stage] = max(ends[stage], arrivals.pop((stage, done))) + seconds[stage]
                after = stage - 1 if done.is_backward else stage + 1
                if after == stages:
                    arrivals[stage, StagePass(done.batch, True)] = ends[stage]
                elif after >= 0:
                    link = min(stage, after), done.is_backward
                    sent = max(ends[stage], link_ends.get(link, 0.0)) + times.transfers[link[0]]
                    link_ends[link] = arrivals[after, done] = sent
    return ends


def pipeline_seconds(times: PipelineTimes, schedule: Schedule, micro_batches: int) -> float:
    """Return the time until all stages have done all passes."""
    return max(stage_ends(times, schedule, micro_batches))
