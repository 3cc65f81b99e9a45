"""A model is cut into stages: by an estimate at first, then by the time that they are measured to take.

Devices may share a stage: its operators are split among them by rules that are proved.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any

from graphopt.base import files
from graphopt.base.errors import GraphoptError, MemoryBudgetError, ModelError, UsageError
from graphopt.base.limits import format_bytes
from graphopt.io import onnx_io
from graphopt.ir.graph import Value
from graphopt.partition.balance import (
    Cuts,
    CutSpace,
    MeasuredCuts,
    NoCutsError,
    balance,
    choose_cuts,
    thin_positions,
)
from graphopt.partition.cut import CuttableGraph, can_be_sent
from graphopt.partition.devices import Cluster, Device, weakest_device
from graphopt.partition.model_trial import load_live_nodes, try_model, with_sizes
from graphopt.partition.sharding import MAX_SHARDS
from graphopt.partition.shards import Shards, shard_model
from graphopt.partition.stage_timing import StageTimer
from graphopt.partition.stages import ModelStage, extract_stages
from graphopt.runtime.sample_inputs import Feeds
from graphopt.runtime.session_setting import SessionSetting, model_label
from graphopt.search.analytic_cost import AnalyticCost

log = logging.getLogger(__name__)

COPIED_SHARE = 0.01
"""Part of the weights from which on it is said that they are copied."""
NOISE = 0.05
"""Part by which stages have to be faster than copies of the model to be called so: they do the same work."""
MAX_STAGES = 256
TIMINGS = 8
"""Timings that the seconds of a run are shared among."""


@dataclass(frozen=True, eq=False)
class ModelPartition:
    """A model with its cuts, and what is known of the stages between them."""

    source: onnx_io.ModelSource
    loaded: onnx_io.LoadedModel
    whole: CuttableGraph
    stages: tuple[ModelStage, ...]
    shards: tuple[Shards | None, ...]
    """Shards of each stage; None for one that a single device runs."""
    devices: tuple[Device, ...]
    """The device of each stage; where several share it, one that stands for them."""
    is_described: bool
    """True where the devices were described, and are not that of the machine."""
    found: MeasuredCuts
    """Cuts, with the seconds of each stage: estimates where nothing was run."""
    setting: SessionSetting
    feeds: Feeds
    """Inputs on which it was measured; empty where none could be made up."""
    sizes: Mapping[str, int]
    """Sizes of open dims at which it was measured."""
    nbytes: Mapping[str, int]
    """Bytes of the values between stages, where they were met."""
    whole_seconds: float | None
    notes: tuple[str, ...]

    @property
    def is_measured(self) -> bool:
        return bool(self.nbytes)

    @property
    def speeds(self) -> tuple[float, ...]:
        return tuple(device.speed for device in self.devices)

    def transferred_bytes(self, value: Value) -> int:
        """Return the bytes of a value between stages: as met, or as its sizes say."""
        return self.nbytes.get(self.loaded.graph.value_name(value), self.whole.nbytes(value))

    def bytes_behind(self, stage: ModelStage) -> int:
        """Return the bytes that cross the cut behind a stage."""
        return sum(map(self.transferred_bytes, self.whole.values_across(stage.end)))


@dataclass(frozen=True, kw_only=True)
class PartitionRequest:
    """Request for a partition: a number of stages or devices, and how it is measured.

    Raises:
        UsageError: neither or both are given, there are fewer than two or too many, they cannot be grouped as is asked,
            or a number is negative.
    """

    stages: int | None = None
    cluster: Cluster | None = None
    tensor_parallel: int = 1
    """Number of devices that share each stage."""
    max_transfer: int | None = None
    """Most bytes that may cross a cut."""
    setting: SessionSetting
    seconds: float = 30.0
    """About how long the timings may take together."""
    dims: Mapping[str, int | Sequence[int]] | None = None
    inputs: Mapping[str, Any] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.stages is None) == (self.cluster is None):
            raise UsageError("say how many stages there are to be, or name a file of devices: one of the two")
        if self.stages is not None and self.stages > MAX_STAGES:
            raise UsageError(f"a model is cut into {MAX_STAGES:,} stages at most, not {self.stages:,}")
        if self.setting.threads < 0:
            raise UsageError(f"threads cannot be {self.setting.threads}: it is 0 or more")
        if not self.seconds >= 0:
            raise UsageError(f"seconds cannot be {self.seconds}: it is 0 or more")
        if not 1 <= self.tensor_parallel <= MAX_SHARDS:
            raise UsageError(f"{self.tensor_parallel} devices cannot share a stage: 1 to {MAX_SHARDS} can")
        if self.cluster is not None and len(self.cluster.devices) % self.tensor_parallel:
            raise UsageError(
                f"{len(self.cluster.devices)} devices cannot be taken {self.tensor_parallel} at a time, as each stage"
                " needs them"
            )
        if len(self.devices) * self.tensor_parallel < 2:
            raise UsageError("a model is cut into two stages or more, or shared by devices, and there is one device")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The device of each stage, which is as slow and as small as any of those that share it; those of an unnamed
        machine have no bound of memory."""
        if self.cluster is not None:
            own = self.cluster.devices
            groups = (own[at : at + self.tensor_parallel] for at in range(0, len(own), self.tensor_parallel))
            return tuple(map(_common_device, groups))
        return tuple(Device(f"stage {number}", 0) for number in range(1, (self.stages or 0) + 1))


def _common_device(group: Sequence[Device]) -> Device:
    """Return a device that stands for some. Raises UsageError: their providers differ."""
    names = ", ".join(device.name for device in group)
    if len({device.provider for device in group}) > 1:
        raise UsageError(f"{names} cannot share a stage: their providers differ")
    return weakest_device(names, group)


def find_partition(
    model: onnx_io.ModelSource, request: PartitionRequest, *, progress: Callable[[str, float], None] | None = None
) -> ModelPartition:
    """Return cuts of a model that balance the measured times of its stages.

    Where the model cannot be run here, the stages are balanced by an estimate, and a note says so.

    Raises:
        ModelError: the model is not legal, or no tensor of a known type separates its nodes.
        UsageError: there cannot be so many stages, or none that send so little; sizes or inputs do not fit; no operator
            can be shared.
        MemoryBudgetError: the model does not fit into the devices, however it is cut.
    """
    report = progress or (lambda stage, done: None)
    report("load", 0.0)
    loaded, notes = load_live_nodes(model)
    trial = try_model(model, loaded.graph, request.setting, request.dims or {}, request.inputs or {}, request.seed)
    label = model_label(model)
    whole = CuttableGraph(loaded.graph, with_sizes(loaded.graph, trial.feeds))
    estimates = AnalyticCost().node_seconds(whole.sized)
    seconds = [max(estimates[vertex], 1e-9) for vertex in whole.order]
    space = _cut_space(whole, request, seconds, label)
    with files.scratch_folder() as folder:
        timer = StageTimer(
            loaded, whole, request.setting, trial.feeds, folder, request.seconds / TIMINGS, trial.session
        )
        try:
            if trial.session is None:
                found = _estimated(space, seconds)
            else:
                found = _measured(space, seconds, timer, request.seconds, report)
        except NoCutsError:
            raise _refusal(whole, request, label) from None
    stages = tuple(extract_stages(whole, found.cuts))
    report("share", 0.0)
    shards, shared = _share_stages(stages, loaded, request, label)
    partition = ModelPartition(
        model, loaded, whole, stages, shards, request.devices, request.cluster is not None,
        found, request.setting, trial.feeds, trial.sizes, timer.nbytes, timer.whole_seconds, (),
    )  # fmt: skip
    _check_memory_of_shards(partition, label)
    return replace(partition, notes=(*trial.notes, *notes, *shared, *_notes(partition, request)))


# -- where cuts may be -------------------------------------------------------------------------------------------------


def _cut_space(whole: CuttableGraph, request: PartitionRequest, seconds: Sequence[float], label: str) -> CutSpace:
    """Return the cuts that there may be.

    Raises:
        ModelError, UsageError: there are too few; says why.
    """
    count, possible = len(request.devices), whole.possible_cuts
    if len(whole) < count:
        raise UsageError(f"{label} has {len(whole)} nodes, which cannot be {count} stages")
    if len(possible) < count - 1:
        raise ModelError(
            f"{label} cannot be cut into {count} stages: only tensors of a known type that NumPy has go from one to"
            f" another, and there are {len(possible)} such cuts"
        )
    if request.max_transfer is not None:
        narrow = [cut for cut in possible if whole.bytes_across[cut] <= request.max_transfer]
        if len(narrow) < count - 1:
            least = sorted(whole.bytes_across[cut] for cut in possible)[count - 2]
            raise UsageError(
                f"{label} cannot be cut into {count} stages that send {format_bytes(request.max_transfer)} at most:"
                f" {format_bytes(least)} would do"
            )
        possible = narrow
    space = CutSpace(
        node_count=len(whole),
        positions=thin_positions(possible, whole.bytes_across, seconds, count),
        bytes_across=whole.bytes_across,
        speeds=[device.speed for device in request.devices],
    )
    if request.cluster is None:
        return space
    weights = cache(whole.running_weight_bytes)

    def fits(stage: int, start: int, end: int) -> bool:
        """Return whether a device holds its part of the weights, and the most that values of the whole model take."""
        held = weights(start)[end - start] / request.tensor_parallel
        return held + whole.values_peak <= request.devices[stage].memory

    return replace(space, seconds_to_send=request.cluster.link.seconds, fits=fits)


def _refusal(whole: CuttableGraph, request: PartitionRequest, label: str) -> GraphoptError:
    """Return the error that says why there are no such cuts."""
    weights, values = format_bytes(whole.all_weight_bytes), format_bytes(whole.values_peak)
    memory = format_bytes(sum(device.memory for device in request.devices))
    return MemoryBudgetError(
        f"{label} does not fit into the {len(request.devices)} devices, in their order, however it is cut: its weights"
        f" take {weights} and its values {values} at most, and the devices have {memory} together; nothing was written"
    )


# -- shared by devices -------------------------------------------------------------------------------------------------


def _share_stages(
    stages: Sequence[ModelStage], loaded: onnx_io.LoadedModel, request: PartitionRequest, label: str
) -> tuple[tuple[Shards | None, ...], list[str]]:
    """Return how the devices share each stage, and notes on that.

    Raises:
        UsageError: they can share none.
    """
    count, found, notes = request.tensor_parallel, list[Shards | None](), list[str]()
    if count == 1:
        return (None,) * len(stages), notes
    for number, stage in enumerate(stages, start=1):
        try:
            shards = shard_model(stage.model(loaded), count)
            _check_joins(shards)
        except UsageError as error:
            found.append(None)
            notes.append(f"stage {number} is run by one device: {error}")
        else:
            found.append(shards)
            joins = Counter(str(join.operation) for segment in shards.segments for join in segment.joins)
            said = ", ".join(f"{times} {operation}" for operation, times in sorted(joins.items()))
            weights = format_bytes(max(shards.weight_bytes))
            notes.append(f"stage {number} is shared by {count} devices, with {weights} of weights each: {said}")
    if not any(found):
        raise UsageError(f"{label} cannot be shared by {count} devices: {notes[0].partition(': ')[2]}")
    return tuple(found), notes


def _check_joins(shards: Shards) -> None:
    """Raise UsageError where devices would exchange what NumPy does not know."""
    for segment in shards.segments:
        for graph in (model.graph for model in segment.models):
            for name, type_ in zip(graph.output_names, graph.output_types, strict=True):
                if not can_be_sent(type_):
                    raise UsageError(f"'{name}' is of a type that does not go from one device to another")


def _check_memory_of_shards(partition: ModelPartition, label: str) -> None:
    """Raise MemoryBudgetError where devices do not hold what they share, or one of them what it runs alone."""
    if not partition.is_described:
        return
    for stage, shards, device in zip(partition.stages, partition.shards, partition.devices, strict=True):
        held = stage.weight_bytes if shards is None else max(shards.weight_bytes)
        needed = held + partition.whole.values_peak
        if needed > device.memory:
            raise MemoryBudgetError(
                f"{label} does not fit: its part on {device.name} takes {format_bytes(needed)}, and there are"
                f" {format_bytes(device.memory)}; nothing was written"
            )


# -- measured ----------------------------------------------------------------------------------------------------------


def _estimated(space: CutSpace, seconds: Sequence[float]) -> MeasuredCuts:
    cuts, before = choose_cuts(space, seconds), [0.0, *accumulate(seconds)]
    return MeasuredCuts(cuts, tuple(before[end] - before[start] for start, end in pairwise((0, *cuts, len(seconds)))))


def _measured(
    space: CutSpace,
    seconds: Sequence[float],
    timer: StageTimer,
    limit: float,
    report: Callable[[str, float], None],
) -> MeasuredCuts:
    """Return the most even cuts, timed once more beside the whole model if others were timed after them."""
    end = time.monotonic() + limit
    known: list[Cuts] = []

    def measure(cuts: Cuts) -> list[float]:
        report("time", max(0.0, 1 - (end - time.monotonic()) / limit) if limit else 1.0)
        found = timer(cuts)
        known.append(cuts)
        log.info("cuts behind nodes %s: %s ms", cuts, ", ".join(f"{each * 1e3:.3g}" for each in found))
        return found

    found = balance(space, seconds, measure, lambda: time.monotonic() < end)
    return found if known[-1] == found.cuts else MeasuredCuts(found.cuts, tuple(measure(found.cuts)))


def _notes(partition: ModelPartition, request: PartitionRequest) -> list[str]:
    """Return what is worth knowing beside the table."""
    notes = []
    whole_bytes = partition.whole.all_weight_bytes
    copied = sum(stage.weight_bytes for stage in partition.stages) - whole_bytes
    if copied > COPIED_SHARE * whole_bytes:
        notes.append(f"{format_bytes(copied)} of weights are copied, as several stages read them")
    if request.max_transfer is not None:
        wide = [stage for stage in partition.stages if partition.bytes_behind(stage) > request.max_transfer]
        notes += [f"{len(wide)} cuts send more than was known before they were run"] if wide else []
    return [*notes, *_copies_note(partition)]


def _copies_note(partition: ModelPartition) -> list[str]:
    """Compare the stages with copies of the whole model, where it fits into the devices."""
    needed = partition.whole.all_weight_bytes + partition.whole.values_peak
    able = [device for device in partition.devices if not partition.is_described or needed <= device.memory]
    if not able:
        return []
    said = f"the whole model fits into {'each' if len(able) == len(partition.devices) else len(able)} of the devices"
    said = said if partition.is_described else "the whole model runs on this machine"
    if partition.whole_seconds is None or any(partition.shards):
        return [f"{said}: copies of it serve more requests than stages, unless they need too much memory"]
    copies = sum(device.speed for device in able) / partition.whole_seconds
    times = zip(partition.found.seconds, partition.speeds, strict=True)
    stages = 1 / max(seconds / speed for seconds, speed in times)
    rates = [f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in (copies, stages)]
    verdict = f"{len(able)} copies of it serve {rates[0]} requests a second, these stages {rates[1]} at most"
    winner = "the stages win" if stages > (1 + NOISE) * copies else "copies win, and send nothing"
    return [f"{said}: {verdict}: {winner}"]
