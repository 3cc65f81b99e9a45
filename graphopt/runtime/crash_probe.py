"""Trials of models that may end the process: ONNX Runtime does so with some, and another process tries these first.

That was seen (1.32) where a body reads what a Transpose, a Reshape or a Slice makes of a DequantizeLinear: behind that
operator ONNX Runtime quantizes and dequantizes once more, and looks for the captured value among the inputs of the If
or Loop. An assertion fails, which nothing within the process can catch. Nor can it be caught where the least integer is
divided by -1, when a model is run or such constants are folded.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from graphopt.base import ort
from graphopt.base.child_process import child_command, open_answers
from graphopt.base.session import current_session

_SERVER_CODE = "from graphopt.runtime.crash_probe import serve_probe; serve_probe()"


class ProcessEndedError(Exception):
    """A process that opens a model ends, or there can be no such process."""


class CrashProbe:
    """A process that opens one model after another, started when it is first wanted and when it was lost."""

    def __init__(self, code: str = _SERVER_CODE) -> None:
        self.server_code = code
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        """Who started it: a fork of this process needs one of its own."""
        self._lock = threading.Lock()
        self._exit_names: dict[str, str] = {}
        """Ways in which the process ended that opened a model, by its digest; empty where it did not end."""

    def check_load_survives(self, model: str | bytes, folder: str | os.PathLike[str] | None = None) -> None:
        """Open a model with ONNX Runtime's optimizations in the other process, if none like it was opened before.

        Weights in files of their own are taken to make no difference. A model that is refused counts as survived.

        Args:
            model: a path, or what is in a file.
            folder: where the external data of the latter lies.

        Raises:
            ProcessEndedError: the process ended, or did not begin.
            OSError: the file cannot be read.
        """
        if isinstance(model, bytes):
            digest = sha256(model)
        else:
            with Path(model).open("rb") as file:
                digest = file_digest(file, "sha256")
        key = f"{digest.hexdigest()} {ort.custom_ops_digest()}"
        with self._lock:
            if key not in self._exit_names:
                self._exit_names[key] = self._try(model, folder)
            ended = self._exit_names[key]
        if ended:
            raise ProcessEndedError(f"ONNX Runtime's optimizations of it end the process ({ended})")

    def check_run_survives(self, model: str | bytes, feeds: Mapping[str, Any]) -> None:
        """Run a model as it is written in the other process. One that fails counts as survived.

        Raises:
            ProcessEndedError: the process ended, or did not begin.
        """
        with self._lock:
            ended = self._try(model, None, feeds)
        if ended:
            raise ProcessEndedError(f"it ends the process ({ended}), as an integer division without a result does")

    def terminate(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _try(
        self, model: str | bytes, folder: str | os.PathLike[str] | None, feeds: Mapping[str, Any] | None = None
    ) -> str:
        """Return how the process ended; nothing if it did not."""
        process = self._process
        if process is None or self._owner != os.getpid():
            process = self._start()
        try:
            if _ask(process, model, folder, feeds):
                return ""
            code = process.wait()
        except BaseException:  # Ctrl-C: the answer would be taken for that to the next question
            self.terminate()
            raise
        self.terminate()
        return _exit_name(code)

    def _start(self) -> subprocess.Popen[bytes]:
        """Return a process that has said that it is ready. Raises ProcessEndedError."""
        command = child_command(self.server_code)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise ProcessEndedError(f"no process can be started to try it in: {error.strerror or error}") from error
        self._process, self._owner = process, os.getpid()
        try:
            if not _read_answer(process):
                raise ProcessEndedError(f"the process ended in which it was to be tried ({_exit_name(process.wait())})")
        except BaseException:
            self.terminate()
            raise
        return process


CRASH_PROBE = CrashProbe()
"""The probe of this process."""
atexit.register(CRASH_PROBE.terminate)


def _ask(
    process: subprocess.Popen[bytes],
    model: str | bytes,
    folder: str | os.PathLike[str] | None,
    feeds: Mapping[str, Any] | None,
) -> bytes:
    """Have a model opened, or run where there are feeds, and return the answer; nothing if the process ends."""
    assert process.stdin is not None
    path, data = (os.path.abspath(model), b"") if isinstance(model, str) else ("", model)
    external = "" if folder is None else os.path.abspath(folder)
    fed = b"" if feeds is None else pickle.dumps((dict(feeds), current_session().limits))
    question = {
        "path": path,
        "size": len(data),
        "folder": external,
        "libraries": ort.custom_op_libraries(),
        "fed": len(fed),
    }
    with suppress(BrokenPipeError):  # then there is no answer either
        process.stdin.write(json.dumps(question).encode() + b"\n")
        process.stdin.write(data + fed)
        process.stdin.flush()
    return _read_answer(process)


def _read_answer(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _exit_name(code: int) -> str:
    """Name what ended a process."""
    try:
        return signal.Signals(-code).name
    except ValueError:  # of Windows, or an exit code
        return f"exit code {code}"


def serve_probe() -> None:
    """Open or run models as asked, and answer with a line each: the other process of `CrashProbe` runs this."""
    with open_answers(buffering=0) as answers:
        ort.require_onnxruntime()
        answers.write(b"\n")
        for line in sys.stdin.buffer:
            question = json.loads(line)
            model = question["path"] or sys.stdin.buffer.read(question["size"])
            fed = sys.stdin.buffer.read(question["fed"])
            # who asks opens it next, and is told
            with suppress(Exception), ort.registered_custom_ops(question["libraries"]):
                if fed:
                    _run_model(model, fed)
                else:
                    _load_model(model, question["folder"])
            answers.write(b"\n")


def _load_model(model: str | bytes, folder: str) -> None:
    options = ort.make_session_options(optimize=True, threads=1)
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    ort.require_onnxruntime().InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run_model(model: str | bytes, fed: bytes) -> None:
    from graphopt.runtime.oracle import run_natively

    feeds, limits = pickle.loads(fed)  # of the process that started this one
    with current_session().replace(limits=limits):
        run_natively(model, feeds)
