"""Sessions of ONNX Runtime under one setting, with all its optimizations or none, and calls that run a model once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, parser

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, UsageError, did_you_mean
from graphopt.base.hardware import usable_cores
from graphopt.base.limits import RunLimits
from graphopt.base.ort import custom_op_libraries, make_session_options, require_onnxruntime
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.ir.types import TensorType
from graphopt.runtime import crash_probe
from graphopt.runtime.oracle import RunFailedError, RunnableModel

Source: TypeAlias = "onnx_io.ModelSource | onnx_io.LoadedModel | bytes"
"""A model as `onnx_io.load` takes or returns it, or as it lies in a file."""

_PROVIDER_NAMES = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_GPU_INSTALL_HINT = 'pip install "graphopt[gpu]" in an environment without onnxruntime'
_INSTALL_HINTS = {
    "CUDAExecutionProvider": _GPU_INSTALL_HINT,
    "DmlExecutionProvider": "pip install onnxruntime-directml in the place of onnxruntime",
    "OpenVINOExecutionProvider": "pip install onnxruntime-openvino in the place of onnxruntime",
    "TensorrtExecutionProvider": f"{_GPU_INSTALL_HINT}, and NVIDIA's TensorRT",
}


def available_providers() -> tuple[str, ...]:
    """Return the providers that this onnxruntime has, by their short names: `cpu`, then the others in its order."""
    found = map(short_provider_name, require_onnxruntime().get_available_providers())
    return tuple(sorted((name for name in found if name in _PROVIDER_NAMES), key=lambda short: short != "cpu"))


def short_provider_name(name: str) -> str:
    """Return the one name of a provider that has several: `cpu` for `CPU` and `CPUExecutionProvider`."""
    if name.lower() in _PROVIDER_NAMES:
        return name.lower()
    return next((short for short, full in _PROVIDER_NAMES.items() if full == name), name)


def is_provider_name(name: str) -> bool:
    """Return whether a name may be a provider's: a short name, or one of the form that ONNX Runtime has."""
    return short_provider_name(name) in _PROVIDER_NAMES or name.endswith("ExecutionProvider")


@dataclass(frozen=True, slots=True)
class SessionSetting:
    """Conditions of a session: the provider as the user says it, and the number of threads (0: one a core)."""

    provider: str = "cpu"
    threads: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    """Options for the provider."""
    spinning: bool = False
    """Threads keep their cores busy while they wait for work. ONNX Runtime does so by default; here sessions take
    turns, and the idle one would take the cores of the one that runs: four sessions of one model on two cores were
    seen to differ by 20 %, and took twice as long."""
    affinity: str = ""
    """The processors of each thread but the first, as ONNX Runtime writes them: `2;3` or `3,4;5,6`. Empty: any."""

    def __str__(self) -> str:
        many = f"{self.thread_count} thread{'s' * (self.thread_count != 1)}{'' if self.threads else ' (one a core)'}"
        given = "".join(f", {key}={value}" for key, value in self.options.items())
        waiting = f"{', spinning' * self.spinning}{f', pinned to {self.affinity}' if self.affinity else ''}"
        return f"{self.provider_name}{given}, {many}{waiting}"

    @property
    def provider_name(self) -> str:
        """The name of the provider in ONNX Runtime.

        Raises:
            UsageError: this onnxruntime has no such provider; says which it has, and what to install.
        """
        name = self.runtime_name
        available = require_onnxruntime().get_available_providers()
        if name not in available:
            meant = did_you_mean(name, _PROVIDER_NAMES) or "; another build of onnxruntime may have it"
            hint = f"; {_INSTALL_HINTS[name]}" if name in _INSTALL_HINTS else meant
            raise UsageError(f"this onnxruntime has no {name}, only {', '.join(available)}{hint}")
        return name

    @property
    def runtime_name(self) -> str:
        """The name that the provider would have in ONNX Runtime."""
        return _PROVIDER_NAMES.get(self.provider.lower(), self.provider)

    @property
    def is_cpu(self) -> bool:
        return self.runtime_name == "CPUExecutionProvider"

    @property
    def thread_count(self) -> int:
        """The threads that a session really gets."""
        return self.threads or usable_cores()

    @property
    def provider_config(self) -> tuple[str, dict[str, str]]:
        """The provider with its options, as a session takes it.

        Raises:
            UsageError: this onnxruntime has no such provider.
        """
        # OpenVINO has threads of its own, whatever a session is given
        name = self.provider_name
        threads = {"num_of_threads": str(self.thread_count)} if name == "OpenVINOExecutionProvider" else {}
        return name, threads | {**self.options}

    def python_code(self, path: str, option_lines: Iterable[str] = ()) -> str:
        """Return the Python that opens a session of the model at a path under this setting, with the libraries of
        custom operators that are registered now, and with lines that set further options.

        Its threads spin, as they do by default: that is faster for a session that has the cores for itself.
        """
        name, options = self.provider_config
        provider = f"({name!r}, {options!r})" if options else repr(name)
        lines = [
            "import onnxruntime",
            "options = onnxruntime.SessionOptions()",
            f"options.intra_op_num_threads = {self.thread_count}",
            *option_lines,
            *(f"options.register_custom_ops_library({library!r})" for library in custom_op_libraries()),
            "session = onnxruntime.InferenceSession(",
            f"    {path!r},",
            "    options,",
            f"    providers=[{provider}],",
            ")",
        ]
        return "\n".join(lines)

    @property
    def timer(self) -> Callable[[], float]:
        """The clock that times runs: the processor time of the calling thread where it does all the work.

        That does not count what other processes take. With more threads it would miss that they wait for each other.
        """
        is_alone = self.is_cpu and self.thread_count == 1 and hasattr(time, "CLOCK_THREAD_CPUTIME_ID")  # not on Windows
        return time.thread_time if is_alone else time.perf_counter

    @property
    def device(self) -> tuple[str, int]:
        """The memory in which the provider wants its inputs to lie, as ONNX Runtime names it."""
        on_gpu = "CUDA" in self.provider_name or "Tensorrt" in self.provider_name
        return ("cuda", int(self.options.get("device_id", 0))) if on_gpu else ("cpu", 0)

    def open(
        self,
        model: Source,
        *,
        optimize: bool = True,
        folder: str | os.PathLike[str] | None = None,
        configure: Callable[[Any], None] | None = None,
    ) -> Any:
        """Return a session, with all of ONNX Runtime's optimizations or with none.

        Args:
            model: a path (the only way for models over 2 GB), the bytes of a file, or a model in memory.
            optimize: ORT_ENABLE_ALL, else ORT_DISABLE_ALL.
            folder: where the external data of a model that is no path lies.
            configure: sets what else is wanted on the `SessionOptions`.

        Raises:
            UsageError: the provider is missing or does not start.
            ModelError: ONNX Runtime refuses the model.
        """
        _ = self.provider_name  # a missing provider is reported before the model is read
        is_risky = optimize and _may_crash_on_load(model)
        if isinstance(model, onnx_io.LoadedModel) and self.is_cpu and not is_risky:
            return self._open_with_weights(model, optimize, configure)
        loadable, folder = _loadable(model, folder)
        if is_risky:
            try:
                crash_probe.CRASH_PROBE.check_load_survives(loadable, folder)
            except (crash_probe.ProcessEndedError, OSError) as error:
                raise ModelError(f"{model_label(model)} {RunFailedError('cannot be loaded', error)}") from error
        return self._open(loadable, model_label(model), self._session_options(optimize, folder), configure)

    def _open_with_weights(
        self, model: onnx_io.LoadedModel, optimize: bool, configure: Callable[[Any], None] | None
    ) -> Any:
        """Return a session that is given the model's weights as they lie in memory: to write and to parse 350 MB of
        them takes as long as four runs of a ViT-B. The arguments and errors are those of `open`."""
        message, weights = onnx_io.to_proto_and_weights(model, LEAST_SHARED_BYTES)
        arrays = {name: tensor.aligned_array() for name, tensor in weights.items()}
        options, runtime = self._session_options(optimize, None), require_onnxruntime()
        try:
            values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
            options.add_external_initializers([*arrays], values)
        except RuntimeError as error:  # of a type that it has no tensors of
            raise ModelError(f"{model_label(model)} {RunFailedError('cannot be loaded', error)}") from error
        try:
            serialized = message.SerializeToString()
        except (EncodeError, ValueError) as error:
            raise ModelError("a model in memory cannot be over 2 GB: save it, and give the path") from error
        session = self._open(serialized, model_label(model), options, configure)
        session.held_arrays = arrays  # it reads them where they lie
        return session

    def open_path(self, path: str, *, configure: Callable[[Any], None] | None = None) -> Any:
        """Return a session of a file that is known to load, with all of ONNX Runtime's optimizations: nothing but the
        session reads it. The arguments and errors are those of `open`."""
        return self._open(path, path, self._session_options(True, None), configure)

    def _open(self, loadable: str | bytes, label: str, options: Any, configure: Callable[[Any], None] | None) -> Any:
        runtime, (name, provider_options) = require_onnxruntime(), self.provider_config
        if not self.is_cpu and hasattr(runtime, "preload_dlls"):
            runtime.preload_dlls()
        if configure is not None:
            configure(options)
        try:
            session = runtime.InferenceSession(
                loadable, options, providers=[(name, provider_options)], enable_fallback=0
            )
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise ModelError(f"{label} {RunFailedError('cannot be loaded', error)}") from error
        if name not in session.get_providers():
            raise UsageError(f"{name} is installed but does not start: its libraries or its device are missing")
        return session

    def check_starts(self) -> None:
        """Open a session of the smallest model.

        Raises:
            UsageError: the provider is missing or does not start.
            ModelError: it refuses even that model, as one does that lacks a library.
        """
        self.open(smallest_model())

    def _session_options(self, optimize: bool, folder: str | os.PathLike[str] | None) -> Any:
        options = make_session_options(optimize=optimize, threads=self.thread_count)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spinning)))
        if self.affinity:
            options.add_session_config_entry("session.intra_op_thread_affinities", self.affinity)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        return options


LEAST_SHARED_BYTES = 1 << 16
"""Bytes from which on a weight is given to a session where it lies: smaller ones are parsed with the model."""


def smallest_model() -> ModelProto:
    """Return a model of one node."""
    return parser.parse_model('<ir_version: 8, opset_import: ["": 17]> one (float[1] x) => (float[1] y) {y = Neg(x)}')


def common_timer(one: SessionSetting, other: SessionSetting) -> Callable[[], float]:
    """Return the clock for sessions under two settings: that on the wall, unless the settings are the same."""
    return one.timer if one == other else time.perf_counter


def model_label(model: Source, number: int | None = None) -> str:
    """Return what a model is called in tables and errors: its path, if it has one."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return "the model" if number is None else f"model {number + 1}"


_DataFolder: TypeAlias = "str | os.PathLike[str] | None"


def _loadable(model: Source, folder: _DataFolder) -> tuple[str | bytes, _DataFolder]:
    """Return the path or bytes for a session, and the folder of external data for bytes."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model), None
    if isinstance(model, bytes):
        return model, folder
    try:
        message, folder = RunnableModel(model, folder).resolve_external_data()
        return message.SerializeToString(), folder
    except (EncodeError, ValueError) as error:
        raise ModelError("a model in memory cannot be over 2 GB: save it, and give the path") from error


def make_runner(session: Any, feeds: Mapping[str, Any], setting: SessionSetting) -> Callable[..., object]:
    """Return a call that runs the model once, to its end, with `RunOptions` if they are given.

    On a device, inputs lie there and outputs stay there. On the CPU nothing is bound: OpenVINO's provider (1.24) ends
    the process when it runs with an `IOBinding`.
    """
    types = [value.type for value in (*session.get_inputs(), *session.get_outputs())]
    are_tensors = all(text.startswith("tensor(") and "string" not in text for text in types)
    are_numpys = all(dtype is None or dtype.numpy.isbuiltin == 1 for dtype in map(DType.from_type_text, types))
    if not are_tensors or (setting.device[0] == "cpu" and are_numpys):
        return lambda options=None: session.run(None, feeds, options)
    binding = bind_io(session, feeds, setting.device)

    def run(options: Any = None) -> None:
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()

    return run


def bind_io(session: Any, feeds: Mapping[str, Any], device: tuple[str, int]) -> Any:
    """Return the inputs, copied to a device, and the outputs, to be made there, as an `IOBinding`."""
    runtime, binding = require_onnxruntime(), session.io_binding()
    for name, value in feeds.items():
        array, dtype = np.ascontiguousarray(value), DType.from_numpy(np.asarray(value).dtype)
        if dtype.numpy.isbuiltin == 1:
            held = runtime.OrtValue.ortvalue_from_numpy(array, *device)
        else:  # ONNX Runtime knows numpy's own types only, and takes others from where numpy has them
            raw = array.view(f"u{dtype.numpy.itemsize}")
            held = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))
        binding.bind_ortvalue_input(name, held)
    for output in session.get_outputs():
        binding.bind_output(output.name, *device)
    binding.synchronize_inputs()
    return binding


def _may_crash_on_load(model: Source) -> bool:
    """Return whether a model may end the process in which ONNX Runtime optimizes it."""
    try:
        if isinstance(model, str | os.PathLike):
            stat = os.stat(model)
            return _file_may_crash_on_load(os.fspath(model), stat.st_size, stat.st_mtime_ns)
        return RunnableModel(parse_model(model) if isinstance(model, bytes) else model).may_crash_on_load
    except (ModelError, OSError):  # ONNX Runtime says what is wrong with it
        return False


@lru_cache(16)
def _file_may_crash_on_load(path: str, _size: int, _changed: int) -> bool:
    """Return the same for a file, which is read again when it has changed: each session of the original asks."""
    return RunnableModel(path).may_crash_on_load


def parse_model(model: Source) -> ModelProto:
    """Return the message, without the values of large weights. Raises ModelError."""
    if not isinstance(model, bytes):
        return RunnableModel(model).outline
    try:
        proto: ModelProto = ModelProto.FromString(model)
        return proto
    except DecodeError as error:
        raise ModelError("these bytes are not an ONNX model, or it is cut short") from error


def check_value_sizes(graph: Graph, limits: RunLimits, model: str) -> None:
    """Raise a LimitError for a value that a run makes, and that is larger than all memory."""
    for inner in graph.graphs():
        for _, node in inner.nodes():
            for name, type_ in zip(node.names, node.types, strict=True):
                if isinstance(type_, TensorType) and isinstance(type_.size, int) and node.data is None:
                    limits.check_allocation(
                        type_.size * type_.dtype.bits // 8, f"{model}: '{name}' of node {node.op}, {type_},"
                    )
