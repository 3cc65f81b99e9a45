"""A process of its own that opens one session, runs it as asked, and says how much memory that takes.

What a process has loaded and freed before would be used again, and hide what the session takes.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from graphopt.base import ort
from graphopt.base.child_process import child_command, open_answers
from graphopt.base.errors import ModelError
from graphopt.base.limits import TIME_HINT, LimitError, return_freed_memory
from graphopt.base.session import current_session
from graphopt.runtime.oracle import RunFailedError
from graphopt.runtime.session_setting import SessionSetting, make_runner

_SERVER_CODE = "from graphopt.runtime.memory_probe import serve_memory_probe; serve_memory_probe()"


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Options of a session that change the memory it takes, beside ONNX Runtime's defaults."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of `SessionOptions`."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Config entries of `SessionOptions`."""
    run_entries: Mapping[str, str] = field(default_factory=dict)
    """Config entries of `RunOptions`."""

    def configure(self, options: Any) -> None:
        """Set them on `SessionOptions`."""
        for name, value in self.attributes.items():
            setattr(options, name, value)
        for name, value in self.entries.items():
            options.add_session_config_entry(name, value)

    def run_options(self) -> Any:
        """Return the `RunOptions` with them; None where there are none."""
        if not self.run_entries:
            return None
        options = ort.require_onnxruntime().RunOptions()
        for name, value in self.run_entries.items():
            options.add_run_config_entry(name, value)
        return options


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of memory that a process has in the machine's main memory, above what it had before the session."""

    peak: int
    """Most of it since the last time that it was asked; since the process began where the system cannot forget that."""
    held: int


class MemoryProbe:
    """A session in a process of its own. Close it, or use it as a context."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        setting: SessionSetting,
        feeds: Mapping[str, Any],
        options: MemoryOptions = MemoryOptions(),
        deadline: float = math.inf,
    ) -> None:
        """Start the process, and open the session.

        Args:
            path: the model.
            setting: provider and threads.
            feeds: the inputs of all runs.
            options: options of the session that change the memory it takes.
            deadline: when the process is to end at the latest, by `time.monotonic`.

        Raises:
            ModelError: there can be no such process, ONNX Runtime refuses the model, or the process ends.
            TimeoutError: the deadline is over.
        """
        self.path, self.setting, self.feeds, self._deadline = os.fspath(path), setting, feeds, deadline
        command = child_command(_SERVER_CODE)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise ModelError(f"no process can be started to measure memory in: {error.strerror or error}") from error
        try:
            request = os.path.abspath(path), setting, dict(feeds), options, ort.custom_op_libraries()
            self.loading: Resident = self._ask(request, math.inf)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> MemoryProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, count: int = 1) -> tuple[Resident, Sequence[float]]:
        """Run the model, and return what the process took meanwhile, and the seconds of each run.

        Raises:
            ModelError: the model cannot be run, or the process ends.
            LimitError: a run takes longer than any may.
            TimeoutError: the deadline is over.
        """
        resident, seconds = self._ask(count, count * current_session().limits.seconds)
        return resident, seconds

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, question: object, limit: float) -> Any:
        """Return the answer to a question, within a limit in seconds and before the deadline."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        left = self._deadline - time.monotonic()
        try:
            with _killing(self._process, min(limit, left)):
                pickle.dump(question, self._process.stdin)
                self._process.stdin.flush()
                answer = pickle.load(self._process.stdout)  # of the process that was started here
        except TimeoutError as error:
            if left <= limit:
                raise
            seconds = current_session().limits.seconds
            raise LimitError(f"{self.path}: a run takes more than {seconds:g} s{TIME_HINT}") from error
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:
            reason = f"the process ended (exit code {self._process.wait()}), as where memory is short"
            raise ModelError(f"{self.path}: its memory cannot be measured: {reason}") from error
        if isinstance(answer, str):
            raise ModelError(f"{self.path} {answer}")
        return answer


@contextmanager
def _killing(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """End a process that still works after some seconds.

    Raises:
        TimeoutError: it was ended.
    """
    is_late = threading.Event()

    def kill() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), kill)
    timer.start()
    try:
        yield
    except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:
        if is_late.is_set():
            raise TimeoutError(f"not done after {seconds:.2g} s") from error
        raise
    finally:
        timer.cancel()


def serve_memory_probe() -> None:
    """Open a session and run it as asked: the other process of `MemoryProbe` runs this."""
    with open_answers() as answers:
        for answer in _answers(sys.stdin.buffer):
            pickle.dump(answer, answers)
            answers.flush()


def _answers(questions: Any) -> Iterator[object]:
    """Yield the answer to each question: what it takes to load the model, then what runs take, or what went wrong."""
    path, setting, feeds, options, libraries = pickle.load(questions)  # of the process that started this one
    with ort.registered_custom_ops(libraries):
        setting.check_starts()  # what all sessions share is loaded with the first
        return_freed_memory()  # of imports; what is left of it would decide where the session has its own
        before = resident_since_reset()
        _reset_peak()
        try:
            session = setting.open_path(path, configure=options.configure)
        except ModelError as error:
            yield str(error).removeprefix(f"{path} ")
            return
        yield _above(before)
        run, chosen = make_runner(session, feeds, setting), options.run_options()
        while True:
            try:
                count = pickle.load(questions)
            except EOFError:
                return
            _reset_peak()
            seconds = []
            for _ in range(count):
                start = setting.timer()
                try:
                    run(chosen)
                except Exception as error:  # the classes that onnxruntime raises share no base
                    yield str(RunFailedError("cannot be run", error))
                    return
                seconds.append(setting.timer() - start)
            yield _above(before), seconds


def _above(before: Resident) -> Resident:
    now = resident_since_reset()
    return Resident(max(0, now.peak - before.held), max(0, now.held - before.held))


def resident_since_reset() -> Resident:
    """Return the memory of this process: its resident set, and the most of it."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "VmRSS:")}
        return Resident(max(sizes["VmHWM:"], sizes["VmRSS:"]), sizes["VmRSS:"])
    memory = psutil.Process().memory_info()
    return Resident(max(_lifetime_peak(memory), memory.rss), memory.rss)


def _lifetime_peak(memory: Any) -> int:
    """Return the largest resident set in bytes where there is no /proc: of macOS or Windows."""
    if hasattr(memory, "peak_wset"):
        return int(memory.peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    """Let the system forget the peak so far, where it can: Linux does, unless a sandbox forbids it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
