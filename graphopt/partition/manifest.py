"""The file `pipeline.json` of a partitioned model: its stages, what goes between them, and how long they take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError
from graphopt.base.limits import format_bytes
from graphopt.base.records import DECODE_ERRORS, from_json, to_json
from graphopt.partition.collectives import Join
from graphopt.runtime.bench import format_ms, format_table

MANIFEST = "pipeline.json"
"""Name of the file in the folder of the stages."""
SCHEMA_VERSION = 1
"""Version of the form of the file."""


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output of the model or of a stage."""

    name: str
    type: str
    """Element type as ONNX names it, such as FLOAT; empty for what is no tensor."""
    dims: tuple[int | str | None, ...] | None
    """Each size as a number or by its name, None where it has neither; None where not even the rank is known."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value that a stage makes and others read."""

    value: TensorSignature
    nbytes: int
    """Bytes at the sizes of the measurement."""
    source: int
    """Number of the stage that makes it."""
    targets: tuple[int, ...]
    """Numbers of the stages that read it."""
    passed_by: tuple[int, ...] = ()
    """Numbers of the stages between these that do not read it: it goes past them, beside what they read."""


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Work of one of the devices that share a stage between two collective operations: a model beside this
    file."""

    device: int
    """Number of the device within the stage, from 1."""
    file: str
    digest: str
    weight_bytes: int
    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Work of the devices that share a stage at once, and the collective operations that follow."""

    shards: tuple[ShardRecord, ...]
    joins: tuple[Join, ...]


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage: a model of its own, beside this file, or several that devices run together."""

    file: str
    """Name of the file of the model; empty where devices share the stage."""
    digest: str
    """SHA-256 of the file, and of its weights where they lie in another."""
    nodes: int
    weight_bytes: int
    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    received: tuple[str, ...]
    """Its inputs that earlier stages make; all others are inputs of the model."""
    returned: tuple[str, ...]
    """Its outputs that are outputs of the model."""
    bytes_out: int
    """Bytes that later stages read of what this one and those before it make: what crosses the cut behind it."""
    seconds: float
    """Time of a run on a device of speed 1: measured, or estimated where nothing could be run."""
    device: str = ""
    """Name of the device that it is for."""
    speed: float = 1.0
    provider: str = "cpu"
    segments: tuple[SegmentRecord, ...] = ()
    """Segments of a stage that devices share, one after the other."""
    results: dict[str, str] = field(default_factory=dict)
    """The value of the segments that is an output of the stage, by the output's name."""

    @property
    def files(self) -> Mapping[str, str]:
        """The digests of its files, by name."""
        if not self.segments:
            return {self.file: self.digest}
        return {shard.file: shard.digest for segment in self.segments for shard in segment.shards}

    @property
    def device_count(self) -> int:
        """The number of devices that work on it."""
        return max((shard.device for segment in self.segments for shard in segment.shards), default=1)


@dataclass(frozen=True, slots=True)
class PipelineManifest:
    """All stages of a model, in their order; numbers of stages begin with 1."""

    model: str
    """File of the model that was cut."""
    digest: str
    """SHA-256 of that file."""
    inputs: tuple[TensorSignature, ...]
    """Inputs of the model; those with a default may be left out."""
    optional: tuple[str, ...]
    """The inputs that have a default."""
    outputs: tuple[TensorSignature, ...]
    stages: tuple[StageRecord, ...]
    transfers: tuple[Transfer, ...]
    is_measured: bool
    """False where the times of the stages are estimates."""
    threads: int
    """Threads of each session when it was measured."""
    sizes: dict[str, int]
    """Sizes of open dims at which it was measured."""
    onnxruntime: str
    whole_seconds: float | None = None
    """Time of a run of the whole model beside the stages; None where that was not measured."""
    imbalance: float = 1.0
    """Time of the largest stage on its device over that of all if they took the same."""
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
    """Version of this form; it is raised where a field goes or changes its meaning."""

    def to_json(self) -> str:
        return to_json(self, indent=2)

    def __str__(self) -> str:
        has_devices = any(stage.device for stage in self.stages)
        rows = [("stage", "nodes", "weights", "ms", "sends", "device")]
        rows += [
            (
                str(number),
                str(stage.nodes),
                format_bytes(stage.weight_bytes),
                format_ms(stage.seconds / stage.speed),
                format_bytes(stage.bytes_out) if number < len(self.stages) else "",
                stage.device,
            )
            for number, stage in enumerate(self.stages, start=1)
        ]
        table = format_table([row if has_devices else row[:-1] for row in rows], left=(5,))
        how = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.is_measured else "estimated"
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        count = len(self.stages)
        largest = f"{count} stages, the largest {self.imbalance:.3f} of the mean" if count > 1 else "1 stage"
        head = f"{self.model}: {largest} ({how}{sizes})"
        return "\n".join([head, "", table, *(["", *self.notes] if self.notes else [])])


@dataclass(frozen=True, slots=True)
class ShardCall:
    """A model that one device of a stage runs."""

    stage: int
    """Number of the stage, from 1."""
    device: int
    """Number of the device within the stage, from 1."""
    file: str
    inputs: tuple[str, ...]
    """Names of the values that it reads."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """Part of a request that is done at once: a stage, or a segment of one that devices share."""

    calls: tuple[ShardCall, ...]
    joins: tuple[Join, ...] = ()
    """The operations that follow."""
    results: Mapping[str, str] = field(default_factory=dict)
    """Other names of values that are there in the end."""

    @property
    def reads(self) -> set[str]:
        """The names of all values that it needs of those before it."""
        names = {name for call in self.calls for name in call.inputs}
        return names.union(*(join.parts for join in self.joins), self.results.values())

    def finish(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what there is after it, given the values before it and those that its calls have made."""
        found = dict(values)
        found |= {join.result: join.of(values) for join in self.joins}
        return found | {name: found[value] for name, value in self.results.items()}


def iter_steps(manifest: PipelineManifest) -> Iterator[PipelineStep]:
    """Yield what is done for a request, in order."""
    for number, stage in enumerate(manifest.stages, start=1):
        if not stage.segments:
            yield PipelineStep((ShardCall(number, 1, stage.file, _names(stage.inputs)),))
        for place, segment in enumerate(stage.segments, start=1):
            calls = (ShardCall(number, shard.device, shard.file, _names(shard.inputs)) for shard in segment.shards)
            yield PipelineStep(tuple(calls), segment.joins, stage.results if place == len(stage.segments) else {})


def _names(signatures: tuple[TensorSignature, ...]) -> tuple[str, ...]:
    return tuple(each.name for each in signatures)


def read_manifest(folder: Path) -> PipelineManifest:
    """Read the file of a partitioned model.

    Raises:
        UsageError: there is none, it is of another version, or a stage is missing; says which.
    """
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"it has version {version}, not {SCHEMA_VERSION}")
        found = from_json(PipelineManifest, text)
    except OSError as error:
        raise UsageError(f"{folder} holds no pipeline: {path} cannot be read: {error.strerror}") from error
    except DECODE_ERRORS as error:
        raise UsageError(f"{path} describes no pipeline: {error}") from error
    for name in (name for stage in found.stages for name in stage.files):
        if Path(name).name != name or not (folder / name).is_file():
            raise UsageError(f"{path} names the stage {name}, which is not beside it")
    if not found.stages:
        raise UsageError(f"{path} has no stages")
    return found
