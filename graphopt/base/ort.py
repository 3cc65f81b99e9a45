"""ONNX Runtime, imported when it is first needed, and the options of its sessions, which are made only here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError
from graphopt.base.session import CustomOpLibrary, current_session


def require_onnxruntime() -> Any:
    """Return the module, imported only now."""
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C, heard by a module in C++ while it was loaded
            raise KeyboardInterrupt from error
        raise UsageError(
            'running a model needs onnxruntime: pip install "graphopt[cpu]", or "graphopt[gpu]" for NVIDIA GPUs'
            " (optimize --cost none --no-check does without)"
        ) from error
    return onnxruntime


def make_session_options(*, optimize: bool = False, threads: int = 0) -> Any:
    """Return options with all of ONNX Runtime's optimizations or none, threads (0: one a core), and the custom
    operators in use. Nothing is logged: errors are raised, too."""
    runtime = require_onnxruntime()
    levels = runtime.GraphOptimizationLevel
    options = runtime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for path in custom_op_libraries():
        options.register_custom_ops_library(path)
    return options


def make_cpu_session(model: str | bytes, *, optimize: bool = False, threads: int = 0, is_mapped: bool = False) -> Any:
    """Return a session of a file, or of the bytes of one, on the processor.

    One that `is_mapped` reads its weights where the file lies: it makes no copies in an order that is quicker to read,
    and keeps no memory between runs.
    """
    options = make_session_options(optimize=optimize, threads=threads)
    if is_mapped:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
    return require_onnxruntime().InferenceSession(model, options, providers=["CPUExecutionProvider"])


# -- custom operators --------------------------------------------------------------------------------------------------


def custom_op_libraries() -> tuple[str, ...]:
    """Return the paths of the libraries of custom operators that sessions register now."""
    return tuple(str(library.path) for library in current_session().libraries)


def custom_ops_digest() -> str:
    """Identify what is in these libraries; nothing where there are none."""
    return " ".join(library.digest for library in current_session().libraries)


@contextmanager
def registered_custom_ops(paths: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Have sessions register shared libraries of custom operators, too, for as long as the context lasts.

    Raises:
        UsageError: there is no such file, ONNX Runtime cannot load it, or two of them define the same operator.
    """
    found = {library.digest: library for library in (*current_session().libraries, *map(_load_library, paths))}
    with current_session().replace(libraries=tuple(found.values())):
        if len(found) > 1:
            _check_compatible()
        yield


def _load_library(given: str | os.PathLike[str]) -> CustomOpLibrary:
    """Return a library, by an absolute path without links. Raises UsageError."""
    name, path = os.fspath(given), Path(given).resolve()
    try:
        stat = path.stat()
        digest = _digest(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise UsageError(f"{name} is no library of custom operators: {error.strerror}") from error
    try:
        require_onnxruntime().SessionOptions().register_custom_ops_library(str(path))
    except Exception as error:  # the classes that onnxruntime raises share no base
        raise UsageError(f"{name} is no library of custom operators: {_error_reason(error)}") from error
    return CustomOpLibrary(path, digest)


@cache
def _digest(path: Path, _size: int, _changed: int) -> str:
    """Return the digest of a file, read again when its size or time has changed: each task of an executor asks."""
    return sha256(path.read_bytes()).hexdigest()


def _check_compatible() -> None:
    """Raise UsageError where libraries exclude each other, which shows only when a session is made."""
    from onnx import ModelProto, OperatorSetIdProto

    model = ModelProto(ir_version=8, opset_import=[OperatorSetIdProto(version=17)])
    model.graph.name = "nothing"
    try:
        make_cpu_session(model.SerializeToString())
    except Exception as error:  # as above
        raise UsageError(
            f"{', '.join(custom_op_libraries())} cannot be used together: {_error_reason(error)}"
        ) from error


def _error_reason(error: Exception) -> str:
    return " ".join(str(error).split()).rpartition(" : FAIL : ")[2]
