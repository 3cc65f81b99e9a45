"""Workers that each hold the sessions of a stage: in a thread, in a process of this machine, or on a Dask cluster.

Each takes requests without waiting and answers with a `Future`. One that is lost says so on all requests that it had;
the next request starts another in its place.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import IO, Any, Protocol, TypeAlias

from graphopt.base import ort
from graphopt.base.child_process import child_command, open_answers
from graphopt.base.errors import StageError
from graphopt.partition.stage_session import run_stage, stage_digest, stage_files
from graphopt.runtime.oracle import RunFailedError
from graphopt.runtime.session_setting import SessionSetting

Values: TypeAlias = "dict[str, Any]"

MAX_DEATHS = 10
"""Workers of a stage that may be lost one after the other without an answer between: what it is asked kills them."""


class WorkerLostError(Exception):
    """A worker is gone, with what it was asked: that is to be asked again."""


def _deaths_error() -> StageError:
    return StageError(f"cannot be run: {MAX_DEATHS} workers died of it, perhaps for memory")


class StageWorker(Protocol):
    """Runs requests of one stage, or of the part that one device has of it."""

    @property
    def replaced(self) -> int:
        """Number of workers that were lost and replaced."""
        ...

    def submit(self, file: str, feeds: Values) -> Future[Values]:
        """Return at once what will hold the outputs of a file of the stage, a StageError or a WorkerLostError."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class StageSpec:
    """Task of a worker, all that it knows of its stage; it goes to other processes."""

    name: str
    """Name in errors: `stage 2`."""
    folder: Path
    files: Mapping[str, str]
    """The digests of the models that it runs, by their names in the folder."""
    setting: SessionSetting
    custom_ops: tuple[str, ...] = ()

    def open(self) -> dict[str, Any]:
        """Return its sessions by file. Raises ModelError or UsageError."""
        with ort.registered_custom_ops(self.custom_ops):
            return {name: self.setting.open_path(str(self.folder / name)) for name in self.files}

    @property
    def changed_file(self) -> Path | None:
        """The first of its files that is not there, or is another; None if all are as they were."""
        paths = ((self.folder / name, digest) for name, digest in self.files.items())
        return next((path for path, digest in paths if not path.is_file() or stage_digest(path) != digest), None)


def answer(session: Any, feeds: Mapping[str, Any]) -> Values:
    """Return the outputs of a stage.

    Raises:
        StageError: ONNX Runtime cannot run it on these inputs.
    """
    try:
        return run_stage(session, feeds)
    except Exception as error:  # the classes that onnxruntime raises share no base
        raise StageError(str(RunFailedError("cannot be run", error))) from error


# -- threads -----------------------------------------------------------------------------------------------------------


class ThreadWorker:
    """A thread of this process."""

    replaced = 0

    def __init__(self, spec: StageSpec) -> None:
        self._sessions = spec.open()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=spec.name)

    def submit(self, file: str, feeds: Values) -> Future[Values]:
        return self._thread.submit(answer, self._sessions[file], feeds)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


# -- processes ---------------------------------------------------------------------------------------------------------


class ProcessWorker:
    """A process of this machine, started anew when it was lost. It ends when this process does."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec, self._lock, self._is_closed = spec, threading.Lock(), False
        self._start()

    def _start(self, number: int = 0, deaths: int = 0) -> None:
        """Start the process. It is told to end when the worker is no longer referred to, should nobody close it.

        Raises:
            StageError: the system starts none.
        """
        try:
            self._process = _StageProcess(self._spec, number, deaths)
        except OSError as error:
            raise StageError(f"cannot be run: no process can be started: {error.strerror or error}") from error
        self._end_process = weakref.finalize(self, self._process.close)

    @property
    def replaced(self) -> int:
        return self._process.number

    @property
    def pid(self) -> int:
        """The process that answers now."""
        return self._process.pid

    def submit(self, file: str, feeds: Values) -> Future[Values]:
        with self._lock:
            if self._process.is_lost and not self._is_closed:
                lost = self._process
                if lost.deaths > MAX_DEATHS:
                    lost.deaths = 0
                    return _failed(_deaths_error())
                self._end_process.detach()
                self._start(lost.number + 1, lost.deaths)
            return self._process.submit(file, feeds)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._end_process()


def _failed(error: Exception) -> Future[Values]:
    future: Future[Values] = Future()
    future.set_exception(error)
    return future


_SERVER_CODE = "from graphopt.partition.workers import serve_stage; serve_stage()"
CLOSING_SECONDS = 2.0
"""Seconds in which a process that is told so has to end."""


class _StageProcess:
    """One process: a thread writes what it is asked, another reads what it answers, until it is gone."""

    def __init__(self, spec: StageSpec, number: int = 0, deaths: int = 0) -> None:
        self.number = number
        self.deaths = deaths
        """Processes that were lost since the last answer."""
        self.is_lost = False
        self._pending: dict[int, Future[Values]] = {}
        self._keys = itertools.count()
        self._lock = threading.Lock()
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        command = child_command(_SERVER_CODE)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self._process.pid
        self._outbox.put(message_parts(spec))
        for work in (self._write, self._read):
            threading.Thread(target=work, name=f"{spec.name}, {work.__name__}", daemon=True).start()

    def submit(self, file: str, feeds: Values) -> Future[Values]:
        future: Future[Values] = Future()
        key = next(self._keys)
        message = message_parts((key, file, feeds))
        with self._lock:
            if self.is_lost:
                return _failed(WorkerLostError())
            self._pending[key] = future
        self._outbox.put(message)
        return future

    def close(self) -> None:
        self._outbox.put(None)
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone, as the reader is told, too
            while (parts := self._outbox.get()) is not None:
                write_parts(self._process.stdin, parts)
        with suppress(OSError):
            self._process.stdin.close()

    def _read(self) -> None:
        try:
            self._take_answers()
        finally:
            self._process.kill()
            self._process.wait()
            self._outbox.put(None)
            with self._lock:
                self.is_lost = True
                self.deaths += 1
                lost, self._pending = self._pending, {}
            for future in lost.values():
                future.set_exception(WorkerLostError())

    def _take_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            while (message := read_message(answers)) is not None:
                self._settle(*message)

    def _settle(self, key: int, made: Values, complaint: str) -> None:
        """Answer a request; the thread keeps nothing of it, so that a pipeline that is forgotten can go."""
        with self._lock:
            self.deaths = 0
            future = self._pending.pop(key)
        if complaint:
            future.set_exception(StageError(complaint))
        else:
            future.set_result(made)


_SIZE = struct.Struct("<Q")


def message_parts(message: Any) -> list[memoryview]:
    """Return an object as bytes to be written; arrays are not copied, but lie where they did."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return [memoryview(head), *(buffer.raw() for buffer in buffers)]


def write_parts(file: IO[bytes], parts: Sequence[memoryview]) -> None:
    """Write what `message_parts` made, so that `read_message` returns the object."""
    file.write(_SIZE.pack(len(parts)) + b"".join(_SIZE.pack(part.nbytes) for part in parts))
    file.writelines(parts)
    file.flush()


def read_message(file: IO[bytes]) -> Any:
    """Return the next object; None at the end, also where that comes in the middle of one."""
    try:
        (count,) = _SIZE.unpack(_read_exactly(file, _SIZE.size))
        sizes = [_SIZE.unpack(_read_exactly(file, _SIZE.size))[0] for _ in range(count)]
        head, *buffers = [_read_exactly(file, size) for size in sizes]
    except EOFError:
        return None
    return pickle.loads(head, buffers=buffers)


def _read_exactly(file: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    return data


def serve_stage() -> None:
    """Run a stage as asked: the process of `_StageProcess` does this. It reads ahead, and answers behind."""
    answers = open_answers()
    spec: StageSpec = read_message(sys.stdin.buffer)
    inbox: Queue[Any] = Queue(2)
    outbox: Queue[Any] = Queue(2)

    def read_ahead() -> None:
        try:
            while (message := read_message(sys.stdin.buffer)) is not None:
                inbox.put(message)
        finally:
            os._exit(0)  # who asked is gone, or wants nothing more

    def write_behind() -> None:
        try:
            while True:
                write_parts(answers, message_parts(outbox.get()))
        finally:
            os._exit(1)

    sessions: dict[str, Any] = {}
    complaint = ""
    for work in (read_ahead, write_behind):
        threading.Thread(target=work, daemon=True).start()
    try:
        sessions = spec.open()
    except Exception as error:  # whatever it is, who asks is told
        complaint = f"cannot be opened: {error}"
    while True:
        key, file, feeds = inbox.get()
        made: Values = {}
        said = complaint
        if not complaint:
            try:
                made = answer(sessions[file], feeds)
            except StageError as error:
                said = str(error)
        outbox.put((key, made, said))


# -- a Dask cluster ----------------------------------------------------------------------------------------------------

POLL_SECONDS = 0.5
"""Seconds after which it is asked whether the worker that has not answered still exists."""
PLACING_SECONDS = 60.0
"""Seconds in which a cluster has to have a worker."""
REQUESTS_AHEAD = 2
"""Requests that a worker of a cluster has at once: one that it runs, and one that it has received."""


class MissingStageError(Exception):
    """The file of a stage is not where a worker looks for it, or is another."""


class StageActor:
    """A stage on a worker of a Dask cluster."""

    def __init__(self, spec: StageSpec, contents: Mapping[str, bytes] | None = None) -> None:
        """Open the session; `contents` are the files of the stage by name, where the worker does not have them.

        Raises:
            MissingStageError: it does not have them, and is not given them.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="graphopt-")
        if contents is not None:
            for name, data in contents.items():
                (Path(self._folder.name) / name).write_bytes(data)
            spec = replace(spec, folder=Path(self._folder.name))
        elif (changed := spec.changed_file) is not None:
            raise MissingStageError(f"{changed} is not the stage that is meant")
        self._sessions = spec.open()

    def run(self, file: str, feeds: Mapping[str, Any]) -> tuple[Values, str]:
        """Return the outputs, and why there are none; what else is raised has to do with the cluster."""
        try:
            return answer(self._sessions[file], feeds), ""
        except StageError as error:
            return {}, str(error)


@dataclass(eq=False)
class DaskWorker:
    """An actor on a worker of a Dask cluster, placed on another when that one was lost."""

    spec: StageSpec
    client: Any
    placed: dict[str, str]
    """Addresses of the workers that have stages of the pipeline, by the names of these: shared by all."""
    replaced: int = 0
    _actor: Any = None
    _handle: Any = None
    """The future of the actor, which lives as long as that is held."""
    _deaths: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(REQUESTS_AHEAD, thread_name_prefix=self.spec.name)

    def submit(self, file: str, feeds: Values) -> Future[Values]:
        return self._threads.submit(self._run, file, feeds)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._actor = self._handle = None

    def _run(self, file: str, feeds: Values) -> Values:
        actor = self._placed_actor()
        try:
            answered: tuple[Values, str] = self._wait_for(actor.run(file, feeds), self.placed.get(self.spec.name))
        except WorkerLostError:
            self._forget(actor)
            raise
        except Exception as error:  # the stage tells its own errors: what is raised here is a worker that is gone
            self._forget(actor)
            raise WorkerLostError from error
        self._deaths = 0
        made, complaint = answered
        if complaint:
            raise StageError(complaint)
        return made

    def _wait_for(self, future: Any, address: str | None) -> Any:
        """Return the result of a future. Raises WorkerLostError: the worker at the address is gone."""
        while True:
            try:
                return future.result(timeout=POLL_SECONDS)
            except TimeoutError:
                if address not in self._workers():
                    raise WorkerLostError from None

    def _forget(self, actor: Any) -> None:
        with self._lock:
            if self._actor is actor:
                self._actor = self._handle = None
                self.placed.pop(self.spec.name, None)
                self.replaced += 1
                self._deaths += 1

    def _placed_actor(self) -> Any:
        """Return the actor, placed on the worker with the fewest stages unless it has a place.

        Raises:
            StageError: the cluster has no worker, or none that can open the stage.
            WorkerLostError: the worker was lost meanwhile.
        """
        with self._lock:
            if self._deaths > MAX_DEATHS:
                self._deaths = 0
                raise _deaths_error()
            if self._actor is None:
                address = self._free_worker()
                self.placed[self.spec.name] = address
                try:
                    self._actor = self._place(address)
                except (StageError, WorkerLostError):
                    self.placed.pop(self.spec.name, None)
                    raise
            return self._actor

    def _place(self, address: str) -> Any:
        try:
            return self._create(address, None)
        except MissingStageError:
            paths = (path for name in self.spec.files for path in stage_files(self.spec.folder / name))
            return self._create(address, {path.name: path.read_bytes() for path in paths})

    def _create(self, address: str, contents: Mapping[str, bytes] | None) -> Any:
        import distributed

        handle = self.client.submit(
            StageActor, self.spec, contents, actor=True, workers=[address], allow_other_workers=False, pure=False
        )
        lost = (WorkerLostError, OSError, distributed.KilledWorker, distributed.client.FutureCancelledError)
        try:
            actor = self._wait_for(handle, address)
        except MissingStageError:
            raise
        except lost as error:
            self._deaths += 1
            raise WorkerLostError from error
        except Exception as error:  # whatever opening the stage raises there
            raise StageError(f"cannot be opened on {address}: {error}") from error
        self._handle = handle
        return actor

    def _free_worker(self) -> str:
        end = time.monotonic() + PLACING_SECONDS
        while not (workers := self._workers()):
            if time.monotonic() > end:
                raise StageError("cannot be run: the Dask cluster has no workers")
            time.sleep(POLL_SECONDS)
        taken = [*self.placed.values()]
        return min(workers, key=taken.count)

    def _workers(self) -> list[str]:
        return [*self.client.scheduler_info(n_workers=-1)["workers"]]
