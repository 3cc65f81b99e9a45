"""Small graphs in ONNX Runtime: written, fed, loaded, and run in turns. What cannot be is `NotMeasurable`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from onnx import ModelProto

from graphopt.base.errors import GraphoptError, ModelError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.rewrite.regions import digest
from graphopt.runtime import samples, steps
from graphopt.runtime.cost import NotMeasurable, NotNow
from graphopt.runtime.measure import TimingPolicy
from graphopt.runtime.oracle import FailedError
from graphopt.runtime.sessions import Setting, runner

log = logging.getLogger(__name__)


def made_up_feeds(graph: Graph, seed: int) -> samples.Feeds:
    """Ordinary values: no denormals, indices within what they index, masks that leave something.

    Raises:
        NotMeasurable: an input has a type for which there are none.
    """
    try:
        sketch = steps.sketch(onnx_io.to_proto(as_model(graph)))
        binding = samples.bindings(sketch.inputs, 0, {})[0]
        return samples.feeds(sketch, binding, seed=seed, style=samples.NORMAL)
    except GraphoptError as error:
        raise NotMeasurable(f"no inputs can be made up: {error}") from error


_NO_ROOM = re.compile(r"bad.alloc|fail\w* to allocate|out of memory|ALLOC_FAILED|smaller than requested", re.IGNORECASE)
"""How ONNX Runtime, its providers and the C++ library say it."""


def _refusal(text: str, error: BaseException) -> NotMeasurable:
    """Why a graph cannot be measured, as an error."""
    is_no_room = isinstance(error, MemoryError) or _NO_ROOM.search(str(error))
    return NotNow(text) if is_no_room else NotMeasurable(text)


class Loaded(NamedTuple):
    """A graph in ONNX Runtime."""

    run: Callable[[], object]
    """Runs it once; holds the session. Raises NotNow where it fails, for it went well once."""
    simplified: str | None
    """Identifies what ONNX Runtime has made of it; None where it was not asked."""


def loaded(
    graph: Graph, path: Path, feeds: samples.Feeds, setting: Setting, policy: TimingPolicy = TimingPolicy()
) -> Loaded:
    """Load a graph and run it once. In a file, it may have weights of any size, which lie in files themselves.

    Raises:
        NotMeasurable: it cannot be written as a model, or ONNX Runtime refuses it; `NotNow` where that is for want of
            memory.
        OutputError: the file cannot be written.
        UsageError: the provider does not start.
    """
    is_compared = setting.is_cpu and graph.weight_bytes <= policy.compared_bytes
    dump = path.with_suffix(".optimized.onnx") if is_compared else None
    try:
        onnx_io.save(as_model(graph), path)
        run = runner(_session(path, dump, setting), feeds, setting)
    except ModelError as error:
        raise _refusal(str(error).replace(str(path), "the graph"), error.__cause__ or error) from error
    try:
        run()
    except Exception as error:  # the classes that onnxruntime raises share no base
        raise _refusal(f"the graph {FailedError('cannot be run', error)}", error) from error
    return Loaded(_guarded(run), None if dump is None else _identified(dump))


def _guarded(run: Callable[[], object]) -> Callable[[], object]:
    """Return a run that went well once: where it fails now, the model is hardly the reason."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise NotNow(f"the graph {FailedError('cannot be run again', error)}") from error

    return guarded


def _session(path: Path, dump: Path | None, setting: Setting) -> Any:
    """Return the file in ONNX Runtime, which writes to `dump` what it makes of it; where that cannot be, it goes
    without.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """

    def configure(options: Any) -> None:
        options.optimized_model_filepath = str(dump)

    if dump is not None:
        try:
            return setting.open(path, configure=configure)
        except ModelError as error:  # of the model, or of a disk that is full
            log.debug("%s is loaded again without writing what becomes of it: %s", path, error)
            dump.unlink(missing_ok=True)
    return setting.open(path)


def _identified(dump: Path) -> str | None:
    try:
        return digest(onnx_io.load(dump).graph)
    except ModelError as error:  # it may hold what only ONNX Runtime knows
        log.debug("what ONNX Runtime makes of a graph is not looked at: %s", error)
        return None


def as_model(graph: Graph) -> onnx_io.Model:
    """Return a graph as a model of its own."""
    shell = ModelProto(ir_version=10)
    for domain, version in graph.opsets.items():
        shell.opset_import.add(domain=domain, version=version)
    return onnx_io.Model(graph, shell)
