"""Oracles run a model exactly as it is written: `compare` trusts them. Values are converted to their types and back.

ONNX Runtime runs with all its optimizations off, for its default level has rewrites, and bugs, of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, numpy_helper

from graphopt.base import files, ort
from graphopt.base.dtype import DType
from graphopt.base.errors import OutputError
from graphopt.base.limits import TIME_HINT, LimitError
from graphopt.base.ort import require_onnxruntime
from graphopt.base.session import current_session
from graphopt.io import onnx_io, reader
from graphopt.ir import schemas
from graphopt.operators import proto_conversion
from graphopt.operators.node_evaluation import INVALID_MODEL_ERRORS
from graphopt.operators.operator_classes import lookup_kernel
from graphopt.runtime import crash_probe, model_sketch, sample_inputs

MAX_IN_MEMORY_BYTES = 1 << 24
"""Bytes of weights up to which a message is handed over as it is: a large one would be in memory three times."""


class RunnableModel:
    """A model that can be run: a path, a message in memory, or what `onnx_io` made of either. Copies no weights."""

    def __init__(
        self,
        source: onnx_io.ModelSource | onnx_io.LoadedModel,
        folder: str | os.PathLike[str] | None = None,
        *,
        packs: bool = False,
    ) -> None:
        self.packs_weights = packs
        """True if kernels pack large weights, as they do for users, at the price of a copy: it changes bits."""
        self.path: Path | None = None
        self._loaded_model = source if isinstance(source, onnx_io.LoadedModel) else None
        self._load_message: Callable[[], ModelProto]
        if isinstance(source, onnx_io.LoadedModel):
            self._load_message, self._folders = partial(onnx_io.to_proto, source), source.folders
        elif isinstance(source, str | os.PathLike):
            self.path = Path(source)
            self._load_message, self._folders = partial(onnx_io.parse_file, self.path), onnx_io.model_folders(self.path)
        else:
            given, own_folder = onnx_io.to_model_proto(source)
            chosen = folder or own_folder
            self._load_message, self._folders = lambda: given, (Path(chosen),) if chosen else ()

    @cached_property
    def outline(self) -> ModelProto:
        """The message without the values of large weights."""
        if self._loaded_model is not None:
            return onnx_io.model_outline(self._loaded_model)
        if self.path is not None:
            skimmed = onnx_io.parse_file(self.path, weights=False)
            if not reader.overridable_names(skimmed) & {tensor.name for tensor in skimmed.graph.initializer}:
                return onnx_io.proto_outline(skimmed)
        return onnx_io.proto_outline(self._load_message())

    @property
    def weight_bytes(self) -> int:
        return sum(map(model_sketch.tensor_proto_bytes, self.outline.graph.initializer))

    @cached_property
    def is_quantized(self) -> bool:
        """True if ONNX Runtime may run it with kernels for integers where others are written."""
        if self._loaded_model is None:
            operators = model_sketch.iter_operators(self.outline)
        else:
            inside = (node.op for graph in self._loaded_model.graph.graphs() for _, node in graph.nodes())
            operators = chain(inside, model_sketch.iter_operators(self._loaded_model.shell))
        return any(lookup_kernel(name).may_compute_narrower for name in operators)

    @cached_property
    def may_crash_on_load(self) -> bool:
        """True if ONNX Runtime may end the process that optimizes it."""
        return self.is_quantized or self.may_crash_on_run

    @cached_property
    def may_crash_on_run(self) -> bool:
        """True if ONNX Runtime may end the process that runs it."""
        return model_sketch.may_trap_on_division(self.outline)

    def resolve_external_data(self) -> tuple[ModelProto, Path | None]:
        """Return the message, and the folder of its external data, links followed, if it has any."""
        message = self._load_message()
        if next(proto_conversion.external_tensors(message), None) is None:
            return message, None
        own = ModelProto()
        own.CopyFrom(message)
        return own, proto_conversion.resolve_external_paths(own, self._folders)

    def with_external_data(self) -> ModelProto:
        """Return the message with its external data in it."""
        message, folder = self.resolve_external_data()
        if folder is not None:
            onnx_io.load_external_data(message, (folder,))
        return message

    def write(self, path: Path) -> None:
        """Write the model to a file, with its weights in another beside it, which ONNX Runtime maps.

        Raises:
            OSError, OutputError: there is no room.
        """
        if self._loaded_model is not None:
            onnx_io.write_scratch(self._loaded_model, path)
            return
        try:
            onnx_io.write_beside(*self.resolve_external_data(), path)
        except EncodeError:  # weights in bodies and attributes made it too large
            made = onnx_io.load_model(self._load_message(), folder=self._folders[0] if self._folders else None)
            onnx_io.write_scratch(made, path)

    @property
    def has_node_names(self) -> bool:
        return all(node.name for node in self.outline.graph.node)

    def with_node_names(self) -> RunnableModel:
        """Return the model with every nameless node named after its first output."""
        message = ModelProto()
        message.CopyFrom(self.with_external_data())
        for node in message.graph.node:
            node.name = node.name or next(filter(None, node.output), "")
        return RunnableModel(message)

    def perturbed(self, amount: float, seed: int, fixed: Container[str] = ()) -> RunnableModel:
        """Return the model with every float weight but those that are `fixed` changed by up to `amount` of its size.

        Single numbers, such as exponents, stay.
        """
        message = ModelProto()
        message.CopyFrom(self.with_external_data())
        # functions may use a name again
        for place, (name, tensor) in enumerate(proto_conversion.model_tensors(message)):
            if tensor.data_type in _PERTURBED_DTYPES and prod(tensor.dims) > 1 and name not in fixed:
                changed = sample_inputs.perturb_array(numpy_helper.to_array(tensor), amount, seed, f"{name} {place}")
                tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
        return RunnableModel(message)


_PERTURBED_DTYPES = {DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16}


class RunFailedError(Exception):
    """A model cannot be loaded or run. The text follows the model's name in a sentence; `kind` is the class of the
    error."""

    def __init__(self, stage: str, error: Exception) -> None:
        self.reason = _plain_message(error)
        self.kind = type(error).__name__
        super().__init__(f"{stage}: {self.reason}")

    @property
    def is_unknown_operator(self) -> bool:
        """True if ONNX Runtime does not know an operator, or has no kernel for it: no defect of the model."""
        if (unregistered := _UNREGISTERED_MESSAGE.search(str(self))) is not None:
            domain, name, version = unregistered[1], unregistered[2], int(unregistered[3])
            return version > onnx.defs.onnx_opset_version() or schemas.schema(name, domain, version) is not None
        return any(text in str(self) for text in NO_KERNEL_MESSAGES)

    @property
    def is_invalid_model(self) -> bool:
        """True if ONNX Runtime calls the model invalid: another type, attribute or shape than ONNX allows there."""
        is_refused = self.kind in INVALID_MODEL_ERRORS or any(text in str(self) for text in _INVALID_MODEL_MESSAGES)
        return is_refused and not self.is_unknown_operator


_OUT_OF_MEMORY = re.compile(
    r"bad.alloc|fail\w* to allocate|out of memory|ALLOC_FAILED|smaller than requested", re.IGNORECASE
)
"""Messages by which ONNX Runtime, its providers and the C++ library say that memory ran out."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, which another time there may be enough of."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)) is not None


NO_KERNEL_MESSAGES = ("is not a registered function/op", "Could not find an implementation")
"""Messages by which ONNX Runtime says that it does not know an operator."""
_UNREGISTERED_MESSAGE = re.compile(
    r'In Node, \(".*", \w+, "([^"]*)", .* No Op registered for (\w+) with domain_version of (\d+)'
)
"""The same of one that ONNX may have, in an opset that a newer ONNX Runtime supports."""
_INVALID_MODEL_MESSAGES = (
    "Type Error: ",
    "[TypeInferenceError]",
    "[ShapeInferenceError]",
    "This is an invalid model",
    "No opset import for domain",
    "No opset registered for domain",
    "Invalid model",
)
"""The same of a model that is none, where the class of the error is `Fail`, as it is of much else."""


def _plain_message(error: Exception) -> str:
    """Return `[ONNXRuntimeError] : 1 : FAIL : Load model from x.onnx failed: …` without what the user knows already."""
    text = " ".join(str(error).split())
    text = text.rpartition("[ONNXRuntimeError] : ")[2].partition(" : ")[2].partition(" : ")[2] or text or repr(error)
    return re.sub(r"^Load model from .*? failed: ?", "", text)


class OracleSession(Protocol):
    """A loaded model."""

    name: str
    """The name of the oracle, for the report."""
    overridable: frozenset[str]
    """The initializers that may be fed."""

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs, in the model's order; bfloat16 and its like as ml_dtypes has them."""


T = TypeVar("T")

Oracle: TypeAlias = Callable[[RunnableModel], AbstractContextManager[OracleSession]]
"""Opens a session in a `with`; raises RunFailedError."""


# -- ONNX Runtime ------------------------------------------------------------------------------------------------------


def onnxruntime_unoptimized(model: RunnableModel) -> AbstractContextManager[OracleSession]:
    """Open a model in ONNX Runtime on the CPU, with all graph optimizations off."""
    return _onnxruntime(model, optimize=False)


def onnxruntime_single_threaded(model: RunnableModel) -> AbstractContextManager[OracleSession]:
    """Open a model in ONNX Runtime without optimizations and with one thread, so that the order of work is fixed."""
    return _onnxruntime(model, optimize=False, threads=1)


def onnxruntime_optimized(model: RunnableModel) -> AbstractContextManager[OracleSession]:
    """Open a model in ONNX Runtime on the CPU, with all graph optimizations on, as models are run."""
    return _onnxruntime(model, optimize=True)


@contextmanager
def _onnxruntime(
    model: RunnableModel, *, optimize: bool, threads: int = 0, is_run: bool = True
) -> Iterator[OracleSession]:
    runtime = require_onnxruntime()
    with _loadable_source(model) as loadable:
        try:
            if optimize and model.may_crash_on_load:
                crash_probe.CRASH_PROBE.check_load_survives(loadable)
            is_large = model.weight_bytes > MAX_IN_MEMORY_BYTES
            is_mapped = is_large and not (is_run and (optimize or model.is_quantized or model.packs_weights))
            with _small_allocations_returned() if is_large else nullcontext():
                native = ort.make_cpu_session(loadable, optimize=optimize, threads=threads, is_mapped=is_mapped)
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise RunFailedError("cannot be loaded", error) from error
        setting = f"all its optimizations {'on' if optimize else 'off'}"
        tried = loadable if model.may_crash_on_run else None
        session = _OnnxRuntimeSession(runtime, native, str(model.path or "the model"), setting, tried)
        del native
        try:
            yield session
        finally:
            session.release()


def check_loads_optimized(model: RunnableModel) -> None:
    """Open a model in ONNX Runtime on the CPU with all graph optimizations on, and close it again.

    Large weights stay in their file, and are not packed, as they are not multiplied.

    Raises:
        RunFailedError: ONNX Runtime refuses it.
    """
    with _onnxruntime(model, optimize=True, is_run=False):
        pass


def check_survives(model: RunnableModel, feeds: Mapping[str, Any]) -> None:
    """Run a model in another process first, if the run may end the process.

    Raises:
        RunFailedError: it does, or the model cannot be handed over.
    """
    if model.may_crash_on_run:
        with _loadable_source(model) as loadable:
            try:
                crash_probe.CRASH_PROBE.check_run_survives(loadable, feeds)
            except crash_probe.ProcessEndedError as error:
                raise RunFailedError("cannot be run", error) from error


def run_natively(model: str | bytes, feeds: Mapping[str, Any]) -> None:
    """Run a model as it is written, whatever that does to the process."""
    run_session(ort.make_cpu_session(model), feeds)


def run_session(session: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs of a session, of whatever provider, as `OracleSession.run` does.

    Raises:
        RunFailedError: ONNX Runtime refuses to run it.
    """
    return _OnnxRuntimeSession(require_onnxruntime(), session, "the model", "").run(feeds)


@contextmanager
def _loadable_source(model: RunnableModel) -> Iterator[str | bytes]:
    """Yield a path or bytes; a large message is written to a temporary file, if there is room for one."""
    if model.path is not None:
        yield str(model.path)
        return
    with ExitStack() as stack:
        path = _write_temporary(model, stack) if model.weight_bytes > MAX_IN_MEMORY_BYTES else None
        if path is not None:
            yield str(path)
            return
        try:
            message: bytes = model.with_external_data().SerializeToString()
        except EncodeError as error:
            raise RunFailedError("cannot be loaded", error) from error
        yield message


def _write_temporary(model: RunnableModel, stack: ExitStack) -> Path | None:
    """Return the model in a temporary file; None where there is no room."""
    with suppress(OSError, OutputError):
        path = stack.enter_context(files.scratch_folder()) / "model.onnx"
        model.write(path)
        return path
    return None


@contextmanager
def _small_allocations_returned() -> Iterator[None]:
    """Have the blocks that are allocated meanwhile returned to the system when they are freed.

    glibc keeps blocks below 32 MB once it has seen some: three times the weights of a model with many small ones.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "mallopt"):  # musl
        yield
        return
    libc.malloc_trim(0)
    libc.mallopt(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)


_MMAP_THRESHOLD = -3
"""The name of the option in `malloc.h`."""


def run_interruptibly(run: Callable[[Any], T], limit: float | None = None) -> T:
    """Run a session, with `RunOptions`, in a thread of its own, so that Ctrl-C is heard at once.

    The run ends after the operator in progress on Ctrl-C, after `limit` seconds, or at the limits of the session.

    Raises:
        TimeoutError: `limit` was reached.
        LimitError: the run takes longer, or more memory, than any may.
    """
    current_session().limits.check_memory("the process, before a run,")
    options = require_onnxruntime().RunOptions()
    options.log_severity_level = 4
    outputs: list[T] = []
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
        _wait_within_limits(done, limit)
    except BaseException:
        options.terminate = True
        if thread.ident is not None:
            done.wait()
        raise
    if errors:
        raise errors[0]
    return outputs[0]


POLL_SECONDS = 0.1
"""Seconds between two looks at what a run takes."""


def _wait_within_limits(done: threading.Event, limit: float | None) -> None:
    """Wait for the end of a run, within its limits."""
    limits, start = current_session().limits, time.monotonic()
    allowed = limits.seconds if limit is None else min(limit, limits.seconds)
    while not done.wait(min(POLL_SECONDS, max(0.0, start + allowed - time.monotonic()))):
        if time.monotonic() - start >= allowed:
            if allowed == limit:
                raise TimeoutError(f"a run takes more than {limit:.2g} s")
            raise LimitError(f"a run takes more than {allowed:g} s{TIME_HINT}")
        limits.check_memory("a run")
    limits.check_memory("a run")


class _OnnxRuntimeSession:
    """A session of ONNX Runtime."""

    def __init__(self, runtime: Any, native: Any, model: str, setting: str, tried: str | bytes | None = None) -> None:
        self.model, self.probed_model = model, tried
        self.name = f"onnxruntime {runtime.__version__}, {setting}"
        self.overridable = frozenset(given.name for given in native.get_overridable_initializers())
        self._runtime, self._native = runtime, native
        declared = (*native.get_inputs(), *native.get_overridable_initializers())
        self._types = {given.name: DType.from_type_text(given.type) for given in declared}
        self._has_non_numpy_outputs = any(
            DType.from_type_text(made.type) in _NON_NUMPY_DTYPES for made in native.get_outputs()
        )

    def release(self) -> None:
        """Give the memory back, whoever may still hold this."""
        self._native = None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        try:
            if self.probed_model is not None:
                crash_probe.CRASH_PROBE.check_run_survives(self.probed_model, feeds)
            given = {name: self._to_feed(name, value) for name, value in feeds.items()}
            return run_interruptibly(lambda options: self._outputs(given, options))
        except LimitError as error:
            raise LimitError(f"{self.model}: {error}") from error
        except Exception as error:
            raise RunFailedError("cannot be run", error) from error

    def _to_feed(self, name: str, value: Any) -> Any:
        dtype = self._types.get(name)
        if dtype not in _NON_NUMPY_DTYPES:
            return value
        raw = np.ascontiguousarray(value).view(f"u{dtype.numpy.itemsize}")
        return self._runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))

    def _outputs(self, feeds: Mapping[str, Any], options: Any) -> list[Any]:
        if not self._has_non_numpy_outputs:
            outputs: list[Any] = self._native.run(None, feeds, options)
            return outputs
        made = self._runtime.OrtValue.ortvalue_from_numpy
        values = {name: made(value) if isinstance(value, np.ndarray) else value for name, value in feeds.items()}
        return [_to_numpy(value) for value in self._native.run_with_ort_values(None, values, options)]


SUBBYTE_DTYPES = frozenset({DType.INT2, DType.UINT2, DType.INT4, DType.UINT4, DType.FLOAT4E2M1})
"""Types of which ONNX Runtime takes no numpy array as an input."""
_NON_NUMPY_DTYPES = SUBBYTE_DTYPES | {DType.BFLOAT16} | {dtype for dtype in DType if dtype.name.startswith("FLOAT8")}
"""Types that ONNX Runtime does not hand out as numpy arrays."""


def _to_numpy(value: Any) -> NDArray[Any]:
    """Return the elements of a native value, copied."""
    dtype = DType(value.element_type())
    if dtype not in _NON_NUMPY_DTYPES:
        plain: NDArray[Any] = value.numpy()
        return plain
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    shape = tuple(value.shape())
    return numpy_helper.to_array(TensorProto(data_type=dtype, dims=shape, raw_data=raw))


# -- onnx.reference ----------------------------------------------------------------------------------------------------


@contextmanager
def onnx_reference(model: RunnableModel) -> Iterator[OracleSession]:
    """Yield the evaluator of the onnx package: every operator of the standard, slowly."""
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(model.with_external_data())
    except Exception as error:  # whatever an operator's Python code raises
        raise RunFailedError("cannot be loaded", error) from error
    yield _ReferenceSession(evaluator)


class _ReferenceSession:
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
                raise RunFailedError("cannot be run", error) from error
