"""A partitioned model at work: requests go from stage to stage, several at once, and answers come in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from graphopt.base import ort
from graphopt.base.errors import StageError, UsageError, did_you_mean, quoted_list
from graphopt.base.hardware import usable_cores
from graphopt.partition.manifest import (
    MANIFEST,
    PipelineManifest,
    PipelineStep,
    ShardCall,
    iter_steps,
    read_manifest,
)
from graphopt.partition.workers import (
    DaskWorker,
    ProcessWorker,
    StageSpec,
    StageWorker,
    ThreadWorker,
    Values,
    WorkerLostError,
)
from graphopt.runtime.session_setting import SessionSetting

KINDS = ("threads", "processes")

REQUESTS_PER_STAGE = 2
"""Requests in the pipeline for each of its stages: one that runs, and one that waits for it."""


class Pipeline:
    """The stages of a partitioned model, each with sessions of its own. Close it, or use it as a context.

    Several threads may use it at once.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        workers: Any = "threads",
        *,
        threads: int | None = None,
        in_flight: int | None = None,
        custom_ops: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """Open the stages.

        Args:
            folder: what `graphopt partition` has written.
            workers: `threads` of this process, `processes` of this machine, or the `Client` of a Dask cluster, on whose
                workers the stages are actors.
            threads: of ONNX Runtime in each stage; by default the cores are shared evenly.
            in_flight: most requests that are in the pipeline at once; by default two for each stage.
            custom_ops: libraries of custom operators.

        Raises:
            UsageError: the folder holds no pipeline, or one whose files were changed; the arguments do not fit.
            ModelError: ONNX Runtime does not open a stage (with threads; else the first request says so).
            StageError: no process can be started.
        """
        self._folder = Path(folder)
        self.manifest: PipelineManifest = read_manifest(self._folder)
        """The contents of `pipeline.json`."""
        self._steps: tuple[PipelineStep, ...] = tuple(iter_steps(self.manifest))
        if in_flight is not None and in_flight < 1:
            raise UsageError(f"in_flight cannot be {in_flight}: it is 1 or more")
        self._depth = in_flight or REQUESTS_PER_STAGE * len(self.manifest.stages)
        self._room = threading.Semaphore(self._depth)
        self._is_closed = False
        with ort.registered_custom_ops(custom_ops):
            libraries = ort.custom_op_libraries()
        files: dict[tuple[int, int], list[str]] = {}
        for call in (call for step in self._steps for call in step.calls):
            files.setdefault((call.stage, call.device), []).append(call.file)
        own = threads if threads is not None else max(1, usable_cores() // len(files))
        specs = {place: self._spec(*place, names, own, libraries) for place, names in files.items()}
        last_readers = {name: place for place, step in enumerate(self._steps) for name in step.reads}
        self._last_step = last_readers | {each.name: len(self._steps) for each in self.manifest.outputs}
        """The place of the last step that reads a value; the one behind all for outputs of the model."""
        self._workers: dict[tuple[int, int], StageWorker] = {}
        """The workers, by the numbers of the stage and of its device."""
        try:
            placed: dict[str, str] = {}
            for place, spec in specs.items():
                self._workers[place] = _start(spec, workers, placed)
        except BaseException:
            self.close()
            raise

    def _spec(
        self, number: int, device: int, files: Sequence[str], threads: int, libraries: tuple[str, ...]
    ) -> StageSpec:
        """Return what the worker of a device has to know. Raises UsageError: a file was changed."""
        stage = self.manifest.stages[number - 1]
        digests = {name: stage.files[name] for name in files}
        name = f"stage {number}{f', device {device}' if stage.segments else ''}"
        spec = StageSpec(name, self._folder.resolve(), digests, SessionSetting(stage.provider, threads), libraries)
        if (changed := spec.changed_file) is not None:
            raise UsageError(f"{changed} is not the file that {self._folder / MANIFEST} describes: it was changed")
        return spec

    @property
    def replaced_workers(self) -> int:
        """Number of workers that were lost and replaced."""
        return sum(worker.replaced for worker in self._workers.values())

    @property
    def worker_pids(self) -> list[int]:
        """The processes of the stages that are processes of this machine."""
        return [worker.pid for worker in self._workers.values() if isinstance(worker, ProcessWorker)]

    # -- requests

    def run(self, inputs: Mapping[str, Any], *, micro_batch: int | None = None) -> Values:
        """Return the outputs of the model, by name.

        Args:
            inputs: arrays by the names of the inputs.
            micro_batch: examples that go through the stages together: the batch, the first axis of inputs and outputs
                if its size is open, is split into such, so that all stages work on it at once.

        Raises:
            UsageError: an input is missing or unknown, or there is no such axis.
            StageError: a stage cannot be run; names it.
        """
        if micro_batch is None:
            return self._submit(inputs).result()
        parts = list(self.stream(_split_batch(self.manifest, inputs, micro_batch)))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> Iterator[Values]:
        """Yield the outputs for each request, in their order.

        A request is taken when there is room for it, so neither requests nor answers have to fit into memory together.
        Its arrays are not copied: they may be changed when it was answered.

        Raises:
            UsageError, StageError: as `run` does, in the place of the answer; what was asked after it is not answered.
        """
        waiting: deque[Future[Values]] = deque()
        for inputs in requests:
            if len(waiting) == self._depth:
                yield waiting.popleft().result()
            waiting.append(self._submit(inputs))
        while waiting:
            yield waiting.popleft().result()

    def _submit(self, inputs: Mapping[str, Any]) -> Future[Values]:
        self._check_inputs(inputs)
        self._room.acquire()
        request = _Request(dict(inputs))
        self._advance(request)
        return request.answer

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        if not isinstance(inputs, Mapping):
            raise UsageError(f"a request is arrays by the names of inputs, not {type(inputs).__name__}")
        known = [each.name for each in self.manifest.inputs]
        for name in inputs:
            if name not in known:
                raise UsageError(
                    f"there is no input '{name}'{did_you_mean(name, known) or f'; there is {quoted_list(known)}'}"
                )
        missing = [name for name in known if name not in inputs and name not in self.manifest.optional]
        if missing:
            raise UsageError(f"nothing is given for {quoted_list(missing)}")

    def _advance(self, request: _Request) -> None:
        """Give a request to its next step, or end it behind the last one."""
        if request.step == len(self._steps):
            self._end(request, {each.name: request.values[each.name] for each in self.manifest.outputs})
            return
        calls = self._steps[request.step].calls
        request.open_calls = len(calls)
        for call in calls:
            self._ask(request, call)

    def _ask(self, request: _Request, call: ShardCall) -> None:
        feeds = {name: request.values[name] for name in call.inputs if name in request.values}
        try:
            if self._is_closed:
                raise StageError("the pipeline is closed")
            made = self._workers[call.stage, call.device].submit(call.file, feeds)
        except Exception as error:  # whatever it is: who waits has to be told
            self._end(request, self._named(call, error))
        else:
            made.add_done_callback(partial(self._receive, request, call))

    def _receive(self, request: _Request, call: ShardCall, made: Future[Values]) -> None:
        """Take what a worker has made of a request; one whose worker was lost is asked again."""
        try:
            found = made.result()
            if request.has_all_with(found):
                self._finish_step(request)
        except WorkerLostError:
            self._ask(request, call)
        except Exception as error:  # as above; also that the worker was closed
            self._end(request, self._named(call, error))

    def _finish_step(self, request: _Request) -> None:
        """Join what the devices of a step have made, and go on."""
        values = self._steps[request.step].finish(request.values | request.made)
        request.values = {name: value for name, value in values.items() if self._last_step.get(name, -1) > request.step}
        request.made = {}
        request.step += 1
        self._advance(request)

    def _named(self, call: ShardCall, error: Exception) -> StageError:
        """Return an error that names the stage in which it occurred."""
        if self._is_closed:
            return StageError("the pipeline is closed")
        said = str(error) if isinstance(error, StageError) else f"cannot be run: {type(error).__name__}: {error}"
        named = StageError(f"stage {call.stage} ({call.file}) {said}")
        named.__cause__ = error
        return named

    def _end(self, request: _Request, found: Values | BaseException) -> None:
        """Answer a request, unless another of its devices has failed before."""
        if not request.claim_end():
            return
        self._room.release()
        if isinstance(found, BaseException):
            request.answer.set_exception(found)
        else:
            request.answer.set_result(found)

    # -- the end

    def close(self) -> None:
        """End all workers; what they still work on is not answered."""
        self._is_closed = True
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False)
class _Request:
    """One request on its way."""

    values: Values
    """Values that this step or later ones read."""
    step: int = 0
    """Number of steps that it has behind it."""
    made: Values = field(default_factory=dict)
    """Values that the devices have made in this step."""
    open_calls: int = 0
    """Number of devices that have not answered in this step."""
    answer: Future[Values] = field(default_factory=Future)
    _is_ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def has_all_with(self, found: Values) -> bool:
        """Add what a device has made; return whether it was the last."""
        with self._lock:
            self.made |= found
            self.open_calls -= 1
            return not self.open_calls

    def claim_end(self) -> bool:
        """Return whether the request had not ended yet; now it has."""
        with self._lock:
            was_ended, self._is_ended = self._is_ended, True
            return not was_ended


def _start(spec: StageSpec, workers: Any, placed: dict[str, str]) -> StageWorker:
    if workers == "threads":
        return ThreadWorker(spec)
    if workers == "processes":
        return ProcessWorker(spec)
    if isinstance(workers, str) or not hasattr(workers, "scheduler_info"):
        raise UsageError(f"workers are {' or '.join(KINDS)}, or the client of a Dask cluster, not {workers!r}")
    return DaskWorker(spec, workers, placed)


def _split_batch(manifest: PipelineManifest, inputs: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the inputs of a batch in parts of so many examples.

    Raises:
        UsageError: not all outputs have the open first axis of the inputs, or these have several sizes there.
    """
    if size < 1:
        raise UsageError(f"micro_batch cannot be {size}: it is 1 or more")
    firsts = {each.name: each.dims[0] for each in manifest.inputs if each.dims and isinstance(each.dims[0], str)}
    axis = next((dim for name, dim in firsts.items() if name in inputs), None)
    batched = [name for name, dim in firsts.items() if dim == axis and name in inputs]
    if axis is None or any(not each.dims or each.dims[0] != axis for each in manifest.outputs):
        raise UsageError("micro_batch needs inputs and outputs whose first axis is the same one, of open size")
    lengths = {len(inputs[name]) for name in batched}
    if len(lengths) > 1 or 0 in lengths:
        raise UsageError(f"the inputs {quoted_list(batched)} have batches of {sorted(lengths)} examples")
    (length,) = lengths
    return [
        {name: value[start : start + size] if name in batched else value for name, value in inputs.items()}
        for start in range(0, length, size)
    ]
