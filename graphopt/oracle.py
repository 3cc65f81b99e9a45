"""Run a model exactly as it is written: the judges that `compare` trusts, and the way in and out of their types.

ONNX Runtime runs with all its optimizations off, for its default level has rewrites, and bugs, of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import load_external_data_for_model

from graphopt import onnx_io, samples
from graphopt.errors import UsageError
from graphopt.types import DType

LARGE = 1_900_000_000
"""Bytes of weights above which a model is handed over as a file: a protobuf ends at 2 GB."""


class Runnable:
    """A model that can be run: a path, a message in memory, or what `onnx_io` made of either."""

    def __init__(self, source: onnx_io.Source | onnx_io.Model) -> None:
        self.path = Path(source) if isinstance(source, str | os.PathLike) else None
        self.folder: Path | None = None
        """Where the external data of a message lies."""
        if isinstance(source, onnx_io.Model):
            self.proto = onnx_io.to_proto(source)
            self.folder = source.folders[0] if source.folders else None
        elif self.path is not None:
            self.proto = onnx_io.parse(self.path)
        else:
            self.proto, folder = onnx_io.as_proto(source)
            self.folder = Path(folder) if folder else None

    def perturbed(self, amount: float, seed: int) -> Runnable:
        """The model with every float weight changed by up to `amount` of its size; numbers, such as exponents, stay."""
        proto = ModelProto()
        proto.CopyFrom(self.proto)
        copy = Runnable(proto)
        copy.folder = self.folder if self.path is None else self.path.parent
        for tensor in proto.graph.initializer:
            if tensor.data_type in _PERTURBED and prod(tensor.dims) > 1:
                array = numpy_helper.to_array(tensor, str(copy.folder or ""))
                changed = samples.jittered(array, amount, seed, tensor.name)
                tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
        return copy


_PERTURBED = {DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16}


class FailedError(Exception):
    """A model cannot be loaded or run: says so in words that follow its name. `kind` is the class of the error."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(f"{stage}: {_plain(error)}")
        self.kind = type(error).__name__


def _plain(error: Exception) -> str:
    """`[ONNXRuntimeError] : 1 : FAIL : Load model from x.onnx failed: …` without all that the user knows already."""
    text = " ".join(str(error).split())
    text = text.rpartition("[ONNXRuntimeError] : ")[2].partition(" : ")[2].partition(" : ")[2] or text or repr(error)
    return re.sub(r"^Load model from .*? failed: ?", "", text)


class Session(Protocol):
    """A loaded model."""

    name: str
    """Of the oracle, for the report."""
    overridable: frozenset[str]
    """The initializers that may be fed."""

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs, in the model's order; bfloat16 and its like as ml_dtypes has them."""


Found = TypeVar("Found")

Oracle: TypeAlias = Callable[[Runnable], AbstractContextManager[Session]]
"""Opens a session in a `with`; raises FailedError."""


# -- ONNX Runtime ------------------------------------------------------------------------------------------------------


def require_onnxruntime() -> Any:
    """The module, imported only now."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            'running a model needs onnxruntime: pip install "graphopt[cpu]", or "graphopt[gpu]" for NVIDIA GPUs'
            " (optimize --cost none --no-check does without)"
        ) from error
    return onnxruntime


@contextmanager
def onnxruntime_unoptimized(model: Runnable) -> Iterator[Session]:
    """ONNX Runtime on the CPU with all graph optimizations off."""
    runtime = require_onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # what fails is raised, too
    if model.folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.folder))
    with _loadable(model) as loadable:
        try:
            native = runtime.InferenceSession(loadable, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise FailedError("cannot be loaded", error) from error
        yield _Runtime(runtime, native)


@contextmanager
def _loadable(model: Runnable) -> Iterator[str | bytes]:
    """A path or bytes; a large message is written to a file for as long as it is needed."""
    if model.path is not None:
        yield str(model.path)
        return
    message = _serialized(model.proto)
    if message is not None:
        yield message
        return
    with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
        path = Path(folder) / "model.onnx"
        onnx_io.save(onnx_io.load(model.proto, folder=model.folder), path, external=True)
        yield str(path)


def _serialized(proto: ModelProto) -> bytes | None:
    inside = (t for t in proto.graph.initializer if t.data_location != TensorProto.EXTERNAL)
    if sum(map(samples.nbytes, inside)) > LARGE:
        return None
    try:
        message: bytes = proto.SerializeToString()
        return message
    except EncodeError:  # weights in bodies and attributes made it too large
        return None


def interruptible(run: Callable[[Any], Found], limit: float | None = None) -> Found:
    """Run a session, with `RunOptions`, in a thread of its own: Ctrl-C is heard at once.

    It ends the run after the operator in progress, and so do `limit` seconds.

    Raises:
        TimeoutError: the limit was reached.
    """
    options = require_onnxruntime().RunOptions()
    options.log_severity_level = 4
    outputs: list[Found] = []
    errors: list[Exception] = []
    done = threading.Event()  # not Thread.join: interrupted once, it does not wait again (CPython issue 90882)

    def work() -> None:
        try:
            outputs.append(run(options))
        except Exception as error:  # raised again below, in the caller's thread
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work)  # no daemon: one that is still in native code at the end aborts the process
    try:
        thread.start()  # waits, too, and may be interrupted
        if not done.wait(limit):
            raise TimeoutError(f"a run takes more than {limit:.2g} s")
    except BaseException:
        options.terminate = True
        if thread.ident is not None:
            done.wait()
        raise
    if errors:
        raise errors[0]
    return outputs[0]


class _Runtime:
    """A session of ONNX Runtime."""

    def __init__(self, runtime: Any, native: Any) -> None:
        self.name = f"onnxruntime {runtime.__version__}, all its optimizations off"
        self.overridable = frozenset(given.name for given in native.get_overridable_initializers())
        self._runtime, self._native = runtime, native
        declared = (*native.get_inputs(), *native.get_overridable_initializers())
        self._types = {given.name: _dtype(given.type) for given in declared}
        self._exotic = any(_dtype(made.type) in _EXOTIC for made in native.get_outputs())

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            given = {name: self._fed(name, value) for name, value in feeds.items()}
            return interruptible(lambda options: self._outputs(given, options))
        except Exception as error:
            raise FailedError("cannot be run", error) from error

    def _fed(self, name: str, value: Any) -> Any:
        dtype = self._types.get(name)
        if dtype not in _EXOTIC:
            return value
        raw = np.ascontiguousarray(value).view(f"u{dtype.numpy.itemsize}")
        return self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))

    def _outputs(self, feeds: Mapping[str, Any], options: Any) -> list[Any]:
        if not self._exotic:
            outputs: list[Any] = self._native.run(None, feeds, options)
            return outputs
        values = {name: self._as_value(value) for name, value in feeds.items()}
        return [_numpy(value) for value in self._native.run_with_ort_values(None, values, options)]

    def _as_value(self, value: Any) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value


def _dtype(text: str) -> DType | None:
    """`tensor(bfloat16)` as ONNX Runtime prints it; None for sequences, maps and the like."""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return DType[name] if name in DType.__members__ else None


PACKED = frozenset({DType.INT2, DType.UINT2, DType.INT4, DType.UINT4, DType.FLOAT4E2M1})
"""Types of which ONNX Runtime takes no numpy array as an input."""
_EXOTIC = PACKED | {DType.BFLOAT16} | {dtype for dtype in DType if dtype.name.startswith("FLOAT8")}
"""Types that ONNX Runtime does not hand out as numpy arrays."""


def _numpy(value: Any) -> NDArray[Any]:
    """The elements of a native value, copied."""
    dtype = DType(value.element_type())
    if dtype not in _EXOTIC:
        plain: NDArray[Any] = value.numpy()
        return plain
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    shape = tuple(value.shape())
    return numpy_helper.to_array(TensorProto(data_type=dtype, dims=shape, raw_data=raw))


# -- onnx.reference ----------------------------------------------------------------------------------------------------


@contextmanager
def reference(model: Runnable) -> Iterator[Session]:
    """The evaluator of the onnx package: every operator of the standard, slowly."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(str(model.path) if model.path else _whole(model))
    except Exception as error:  # whatever an operator's Python code raises
        raise FailedError("cannot be loaded", error) from error
    yield _Reference(evaluator)


def _whole(model: Runnable) -> ModelProto:
    """The message with its external data in it."""
    if model.folder is None:
        return model.proto
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    load_external_data_for_model(proto, str(model.folder))
    return proto


class _Reference:
    """A session of `onnx.reference`."""

    def __init__(self, evaluator: Any) -> None:
        self.name = f"onnx.reference {onnx.__version__}"
        self.overridable: frozenset[str] = frozenset()
        self._evaluator = evaluator

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                outputs: list[Any] = self._evaluator.run(None, dict(feeds))
                return outputs
            except Exception as error:
                raise FailedError("cannot be run", error) from error
