"""Executors of many independent tasks: in this process, in processes of this machine, or on a Dask cluster.

An answer comes with the place of its task, in whatever order answers are made. A worker that dies loses nothing: its
task is given to another.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Protocol, TypeVar

from graphopt.base import ort
from graphopt.base.errors import GraphoptError, UsageError
from graphopt.base.limits import trim_memory
from graphopt.base.session import current_session

Task = TypeVar("Task")
Answer = TypeVar("Answer")

MAX_WORKER_DEATHS = 3
"""Workers that a task may lose: one that needs more memory than there is kills each."""


SCHEDULER_TIMEOUT = 10.0
"""Seconds in which the scheduler of a cluster has to answer."""


class Executor(Protocol):
    """Runs one function on many tasks. The function and the tasks have to be such that pickle knows them."""

    def imap_unordered(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        """Yield the answers as they are made, each with the place of its task."""
        ...

    def __enter__(self) -> Executor: ...
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...


class InProcess(AbstractContextManager["InProcess"]):
    """This process, one task after the other."""

    def imap_unordered(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        for place, task in enumerate(tasks):
            yield place, _run_and_trim(function, task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


class ProcessPool(AbstractContextManager["ProcessPool"]):
    """Processes of this machine. They are started fresh: a fork would copy a solver's state and threads' locks."""

    def __init__(self, count: int, prepare: Callable[[], None] | None = None) -> None:
        """`prepare` is called in each process when it begins."""
        self.count, self.prepare = count, prepare
        self._pool: ProcessPoolExecutor | None = None

    def imap_unordered(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        left, deaths = dict(enumerate(tasks)), 0
        while left:
            if self._pool is None:
                fresh = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.count, fresh, _initialize_worker, (self.prepare,))
            pool = self._pool
            running: dict[Future[bytes], int] = {
                pool.submit(_run_in_worker, pickle.dumps((function, task)), ort.custom_op_libraries()): place
                for place, task in left.items()
            }
            try:
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        place = running.pop(future)
                        answer = pickle.loads(future.result())
                        del left[place]
                        yield place, answer
            except BrokenProcessPool as error:
                deaths += 1
                self._terminate()
                if deaths > MAX_WORKER_DEATHS:
                    raise GraphoptError(
                        f"{deaths} worker processes have died; there may not be enough memory"
                    ) from error

    def _terminate(self) -> None:
        """End the processes, whatever they do."""
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
            self._pool = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._terminate()  # also on Ctrl-C: do not wait for what is being worked on


def _run_and_trim(function: Callable[[Task], Answer], task: Task) -> Answer:
    """Do a task, and give back the memory that it needed."""
    try:
        return function(task)
    finally:
        trim_memory()


def _run_in_worker(asked: bytes, custom: Sequence[str]) -> bytes:
    """Do a task as a worker: in a session of its own, with libraries of custom operators.

    The task is unpickled inside that session: rules define operators in the session that they are read in.
    """
    with current_session().child(), ExitStack() as stack:
        try:
            stack.enter_context(ort.registered_custom_ops(custom))
        except UsageError as error:
            raise UsageError(f"on the worker {platform.node()}: {error}") from error
        return pickle.dumps(_run_and_trim(*pickle.loads(asked)))


def _initialize_worker(prepare: Callable[[], None] | None) -> None:
    """Make a worker: Ctrl-C is for the process that started it, and when that is gone, so is the worker."""

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)  # what it works on is wanted by no one

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    if prepare is not None:
        prepare()


class DaskCluster(AbstractContextManager["DaskCluster"]):
    """The workers of a Dask cluster, which takes care of those that are lost."""

    def __init__(self, address: str) -> None:
        """Connect to the scheduler at an address like `tcp://host:8786`.

        Raises:
            UsageError: Dask is not installed, or nothing answers at the address.
        """
        try:
            import distributed
        except ImportError as error:
            raise UsageError('--dask needs Dask: pip install "graphopt[dask]"') from error
        logging.getLogger("distributed").setLevel(logging.WARNING)
        connect: Any = distributed.Client
        try:
            self._client = connect(address, timeout=SCHEDULER_TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"no Dask scheduler answers at {address}: {error}") from error

    def imap_unordered(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        import distributed

        as_completed: Any = distributed.as_completed
        custom = ort.custom_op_libraries()
        futures = {
            self._client.submit(_run_in_worker, pickle.dumps((function, task)), custom, pure=False): place
            for place, task in enumerate(tasks)
        }
        lost: Any = (distributed.KilledWorker, CancelledError, distributed.comm.core.CommClosedError)
        for future in as_completed(list(futures), loop=self._client.loop):
            try:
                answer = pickle.loads(future.result())
            except lost as error:
                raise GraphoptError(f"the Dask cluster is gone, or its workers die of a task: {error}") from error
            yield futures[future], answer

    def run_on_workers(self, function: Callable[[Task], Answer], task: Task) -> list[Answer]:
        """Return what each worker answers."""
        answers = self._client.run(_run_in_worker, pickle.dumps((function, task)), ort.custom_op_libraries()).values()
        return [pickle.loads(answer) for answer in answers]

    def worker_threads(self) -> dict[str, int]:
        """Return how many tasks each worker has in hand at once."""
        return dict(self._client.nthreads())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


def make_executor(workers: int = 1, dask: str | None = None, prepare: Callable[[], None] | None = None) -> Executor:
    """Return the executor of tasks: a Dask cluster if one is named, else so many processes.

    Raises:
        UsageError: both are asked for, or there is no such cluster.
    """
    if dask is not None:
        if workers > 1:
            raise UsageError("--workers are processes of this machine, and --dask is a cluster: name one of them")
        return DaskCluster(dask)
    return ProcessPool(workers, prepare) if workers > 1 else InProcess()
