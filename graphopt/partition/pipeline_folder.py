"""The folder of a partitioned model: a file for each stage and `pipeline.json`, complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.base import files
from graphopt.base.dtype import DType
from graphopt.base.errors import DifferenceError, quoted_list
from graphopt.base.option_values import parse_bytes
from graphopt.base.ort import require_onnxruntime
from graphopt.check.compare import MIN_COMPARED_MAGNITUDE
from graphopt.check.tolerance import output_tolerances
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Value
from graphopt.ir.types import TensorType, Type
from graphopt.partition.devices import read_devices
from graphopt.partition.manifest import (
    MANIFEST,
    PipelineManifest,
    SegmentRecord,
    ShardRecord,
    StageRecord,
    TensorSignature,
    Transfer,
    iter_steps,
)
from graphopt.partition.partitioning import ModelPartition, PartitionRequest, find_partition
from graphopt.partition.stage_session import run_stage, stage_digest
from graphopt.runtime.model_sketch import sketch_model
from graphopt.runtime.oracle import RunnableModel
from graphopt.runtime.session_setting import SessionSetting, model_label


def partition_model(
    model: onnx_io.ModelSource,
    folder: str | os.PathLike[str],
    stages: int | None = None,
    *,
    devices: str | os.PathLike[str] | None = None,
    tensor_parallel: int = 1,
    max_transfer: int | str | None = None,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    threads: int = 0,
    seconds: float = 30.0,
    check: bool = True,
) -> PipelineManifest:
    """Cut a model into stages that take the same time, and return what `pipeline.json` says of them.

    `graphopt.Pipeline(folder)` runs them.

    Args:
        model: a path, `onnx.ModelProto`, `onnx_ir.Model` or what `torch.onnx.export` returns.
        folder: a new one, for a file for each stage and `pipeline.json`; it is complete or absent.
        stages: number of them; not with `devices`.
        devices: a TOML file of devices, one for each stage, and the link between them.
        tensor_parallel: number of devices that share each stage: its operators are split among them.
        max_transfer: most bytes that go from one stage to the next, as 2_000_000 or `2MB`.
        dims: sizes of open dims at which stages are timed; others get a usual one.
        threads: of ONNX Runtime while stages are timed; 0: one a core.
        seconds: about how long the timings may take together.
        check: run stages and model without ONNX Runtime's optimizations: every bit is to be the same, or of shared
            stages all but the rounding.

    Raises:
        ModelError, UsageError, MemoryBudgetError: as `partitioning.find_partition`.
        OutputError, DifferenceError: as `write_partition`.
    """
    files.check_new_folder(Path(folder))
    request = PartitionRequest(
        stages=stages,
        cluster=None if devices is None else read_devices(devices),
        tensor_parallel=tensor_parallel,
        max_transfer=None if max_transfer is None else parse_bytes(max_transfer),
        setting=SessionSetting(threads=threads),
        dims=dims,
        seconds=seconds,
    )
    return write_partition(find_partition(model, request), Path(folder), check=check)


def write_partition(partition: ModelPartition, folder: Path, *, check: bool = True) -> PipelineManifest:
    """Write the stages of a model into a new folder, and return what its `pipeline.json` says.

    Args:
        partition: the stages.
        folder: must not be there yet; it appears when all is in it.
        check: run model and stages as they are written, without ONNX Runtime's optimizations, where they can be run:
            every bit is to be the same, unless devices share a stage and add up in another order, or half precision
            goes between stages: that may be rounded more often.

    Raises:
        OutputError: the folder is there, or cannot be written; nothing is left behind.
        DifferenceError: the stages compute something else.
    """
    files.check_new_folder(folder)
    with files.naming_write_errors(folder), files.temporary_folder_for(folder) as part:
        made = describe_partition(partition)
        made = replace(
            made, stages=tuple(_write_stage(partition, place, each, part) for place, each in enumerate(made.stages))
        )
        if check and partition.is_measured:
            made = replace(made, notes=(*made.notes, *_check_stages(partition, made, part)))
        files.write_text(part / MANIFEST, f"{made.to_json()}\n")
    return made


def _write_stage(partition: ModelPartition, place: int, record: StageRecord, folder: Path) -> StageRecord:
    """Write the model of a stage, or those of the devices that share it; return its record with the files."""
    shards = partition.shards[place]
    if shards is None:
        path = folder / f"stage-{place + 1}.onnx"
        onnx_io.save_model(partition.stages[place].model(partition.loaded), path)
        return replace(record, file=path.name, digest=stage_digest(path))
    segments = tuple(
        SegmentRecord(
            tuple(
                _write_shard(model, device, folder / f"stage-{place + 1}-device-{device}-part-{number}.onnx")
                for device, model in enumerate(segment.models, start=1)
                if model.graph.outputs
            ),
            segment.joins,
        )
        for number, segment in enumerate(shards.segments, start=1)
    )
    return replace(record, segments=segments, results=dict(shards.outputs))


def _write_shard(model: onnx_io.LoadedModel, device: int, path: Path) -> ShardRecord:
    onnx_io.save_model(model, path)
    graph = model.graph
    return ShardRecord(
        device, path.name, stage_digest(path), graph.weight_bytes, _input_signatures(graph), _output_signatures(graph)
    )


# -- pipeline.json -----------------------------------------------------------------------------------------------------


def describe_partition(partition: ModelPartition) -> PipelineManifest:
    """Return what there is to say of stages before they are written: they have no names of files or digests."""
    graph, source = partition.loaded.graph, partition.loaded.path
    seconds = partition.found.seconds
    transfers = tuple(_transfers(partition))
    return PipelineManifest(
        model=model_label(partition.source),
        digest="" if source is None else stage_digest(source),
        inputs=_input_signatures(graph),
        optional=tuple(graph[vertex].names[0] for vertex in graph.inputs if graph[vertex].data is not None),
        outputs=_output_signatures(graph),
        stages=tuple(
            StageRecord(
                file="",
                digest="",
                nodes=len(stage.graph),
                weight_bytes=stage.weight_bytes,
                inputs=_input_signatures(stage.graph),
                outputs=_output_signatures(stage.graph),
                received=tuple(map(graph.value_name, stage.received)),
                returned=tuple(name for name in stage.graph.output_names if name in graph.output_names),
                bytes_out=partition.bytes_behind(stage),
                seconds=time,
                device=device.name if partition.is_described else "",
                speed=device.speed,
                provider=device.provider if partition.is_described else partition.setting.provider,
            )
            for stage, time, device in zip(partition.stages, seconds, partition.devices, strict=True)
        ),
        transfers=transfers,
        is_measured=partition.is_measured,
        threads=partition.setting.thread_count,
        sizes=dict(partition.sizes),
        onnxruntime=require_onnxruntime().__version__ if partition.is_measured else "",
        whole_seconds=partition.whole_seconds,
        imbalance=partition.found.imbalance(partition.speeds),
        notes=(*partition.notes, *_passing_notes(transfers)),
    )


def _transfers(partition: ModelPartition) -> Iterator[Transfer]:
    """Yield the values between stages, with those that do not read them but stand in between."""
    graph = partition.loaded.graph
    readers: dict[Value, list[int]] = {}
    for number, stage in enumerate(partition.stages, start=1):
        for value in stage.received:
            readers.setdefault(value, []).append(number)
    for number, stage in enumerate(partition.stages, start=1):
        for value in stage.sent:
            targets = readers[value]
            between = tuple(each for each in range(number + 1, targets[-1]) if each not in targets)
            signature = _signature(graph.value_name(value), graph.value_type(value))
            yield Transfer(signature, partition.transferred_bytes(value), number, tuple(targets), between)


def _passing_notes(transfers: Iterable[Transfer]) -> list[str]:
    """Return a line for each stage past which values go that it does not read."""
    past: dict[int, list[str]] = {}
    for transfer in transfers:
        for number in transfer.passed_by:
            past.setdefault(number, []).append(transfer.value.name)
    return [
        f"{quoted_list(names[:4])}{f' and {len(names) - 4} others' if len(names) > 4 else ''} go past stage {number},"
        " which does not read them"
        for number, names in sorted(past.items())
    ]


def _input_signatures(graph: Graph) -> tuple[TensorSignature, ...]:
    return tuple(_signature(graph[vertex].names[0], graph[vertex].types[0]) for vertex in graph.inputs)


def _output_signatures(graph: Graph) -> tuple[TensorSignature, ...]:
    return tuple(map(_signature, graph.output_names, graph.output_types))


def _signature(name: str, type_: Type | None) -> TensorSignature:
    if not isinstance(type_, TensorType):
        return TensorSignature(name, "", None)
    if type_.shape is None:
        return TensorSignature(name, type_.dtype.name, None)
    dims = (dim if isinstance(dim, int) else None if str(dim).startswith("?") else str(dim) for dim in type_.shape)
    return TensorSignature(name, type_.dtype.name, tuple(dims))


# -- the stages together are the model ---------------------------------------------------------------------------------


def _check_stages(partition: ModelPartition, made: PipelineManifest, folder: Path) -> list[str]:
    """Return a note where outputs of stages and model differ by rounding, which they may where half precision is sent,
    or devices share a stage.

    ONNX Runtime computes half precision in single where a provider has no kernel for it, and rounds where a stage ends.

    Raises:
        DifferenceError: the stages, as they are written, give another bit than the model, or another number.
    """
    setting = replace(partition.setting, threads=1)
    original = setting.open(partition.source, optimize=False)
    names = [output.name for output in original.get_outputs()]
    expected, again = (original.run(names, partition.feeds) for _ in range(2))
    del original
    values: dict[str, Any] = dict(partition.feeds)
    for step in iter_steps(made):
        found = [run_stage(setting.open(folder / call.file, optimize=False), values) for call in step.calls]
        values = step.finish(reduce(or_, found, values))
    tolerances = _rounding(partition)
    rounded = []
    for name, one, other in zip(names, expected, again, strict=True):
        if not have_same_bits(one, other) or have_same_bits(one, values[name]):  # random numbers differ anyway
            continue
        if not tolerances or not _differ_by_rounding(one, values[name], tolerances[name]):
            kind = "bits of" if not tolerances else "values of"
            raise DifferenceError(f"the stages make other {kind} output '{name}' than the model; nothing was written")
        rounded.append(name)
    why = "devices add up in another order" if any(partition.shards) else "half precision goes between stages"
    return [f"{quoted_list(rounded)} may be rounded otherwise: {why}"] if rounded else []


HALF_ROUNDING = 0.02
"""Difference, as a part of the largest number, that half precision makes in a deep model."""


def _rounding(partition: ModelPartition) -> dict[str, float]:
    """Return how far each output may be from the model's, as a part of the largest number; empty if every bit is to be
    the same."""
    graph = partition.loaded.graph
    is_half = any(graph.dtype(value) is DType.FLOAT16 for stage in partition.stages for value in stage.sent)
    if not is_half and not any(partition.shards):
        return {}
    found = output_tolerances(sketch_model(RunnableModel(partition.loaded).outline)) if any(partition.shards) else {}
    return {name: max(found.get(name, (0.0, ""))[0], HALF_ROUNDING * is_half) for name in graph.output_names}


def _differ_by_rounding(one: Any, other: Any, tolerance: float) -> bool:
    if not isinstance(one, np.ndarray) or one.dtype.kind not in "fiu" or one.shape != other.shape:
        return False
    finite = np.abs(one[np.isfinite(one)].astype(np.float64))
    scale = max(float(finite.max(initial=0.0)), MIN_COMPARED_MAGNITUDE)
    return np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=0, atol=tolerance * scale, equal_nan=True)


def have_same_bits(one: Any, other: Any) -> bool:
    """Return whether two outputs are the same, NaNs and zeros with signs included; tensors, or lists of them."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(have_same_bits, one, other))
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
