"""Small graphs in ONNX Runtime: written, fed, loaded, and run in turns. A failure is a `NotMeasurableError`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from onnx import ModelProto

from graphopt.base.errors import GraphoptError, ModelError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.rewrite.regions import describe_given_attributes, graph_digest
from graphopt.runtime import model_sketch, sample_inputs
from graphopt.runtime.cost_model import NotMeasurableError, TemporarilyNotMeasurableError, cache_key
from graphopt.runtime.measure import TimingPolicy
from graphopt.runtime.oracle import RunFailedError, is_out_of_memory
from graphopt.runtime.profile import ProfiledSession
from graphopt.runtime.session_setting import SessionSetting, make_runner

log = logging.getLogger(__name__)


def random_feeds(graph: Graph, seed: int) -> sample_inputs.Feeds:
    """Return ordinary values: no denormals, indices within what they index, masks that leave something.

    Raises:
        NotMeasurableError: an input has a type for which there are none.
    """
    try:
        sketch = model_sketch.sketch_model(onnx_io.to_proto(model_of_graph(graph)))
        binding = sample_inputs.candidate_bindings(sketch.inputs, 0, {})[0]
        return sample_inputs.make_feeds(sketch, binding, seed=seed, style=sample_inputs.NORMAL)
    except GraphoptError as error:
        raise NotMeasurableError(f"no inputs can be made up: {error}") from error


def _measurement_error(text: str, error: BaseException) -> NotMeasurableError:
    """Return the error that says why a graph cannot be measured."""
    return TemporarilyNotMeasurableError(text) if is_out_of_memory(error) else NotMeasurableError(text)


class LoadedGraph(NamedTuple):
    """A graph in ONNX Runtime."""

    run: Callable[[], object]
    """Runs it once; holds the session. Raises TemporarilyNotMeasurableError if that fails, for it went well once."""
    optimized_digest: str | None
    """Identifies what ONNX Runtime has made of it; None where it was not asked."""
    attributes_digest: str | None = None
    """Identifies the operators of that with their attributes, however they are wired."""
    profiled: ProfiledSession | None = None
    """The session, where it is under the profiler."""


def load_graph(
    graph: Graph,
    path: Path,
    feeds: sample_inputs.Feeds,
    setting: SessionSetting,
    policy: TimingPolicy = TimingPolicy(),
    *,
    is_profiled: bool = False,
) -> LoadedGraph:
    """Load a graph and run it once, under the profiler if that is asked for. It goes through a file, so its weights,
    which lie in files themselves, may be of any size.

    Raises:
        NotMeasurableError: it cannot be written as a model, or ONNX Runtime refuses it.
        TemporarilyNotMeasurableError: there is not enough memory.
        OutputError: the file cannot be written.
        UsageError: the provider does not start.
    """
    is_compared = setting.is_cpu and graph.weight_bytes <= policy.compared_bytes
    dump = path.with_suffix(".optimized.onnx") if is_compared else None
    try:
        onnx_io.save_model(model_of_graph(graph), path)
        session = _open_session(path, dump, setting, is_profiled=is_profiled)
    except ModelError as error:
        raise _measurement_error(str(error).replace(str(path), "the graph"), error.__cause__ or error) from error
    with ExitStack() as failing:
        if is_profiled:
            failing.callback(session.stop_profiling)
        try:
            run = make_runner(session, feeds, setting)
            run()
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise _measurement_error(f"the graph {RunFailedError('cannot be run', error)}", error) from error
        failing.pop_all()
    digests = (None, None) if dump is None else _dump_digests(dump)
    return LoadedGraph(_as_temporary_failure(run), *digests, session if is_profiled else None)


def _as_temporary_failure(run: Callable[[], object]) -> Callable[[], object]:
    """Return a run that went well once; where it fails now, the model is hardly the reason."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise TemporarilyNotMeasurableError(f"the graph {RunFailedError('cannot be run again', error)}") from error

    return guarded


def _open_session(path: Path, dump: Path | None, setting: SessionSetting, *, is_profiled: bool) -> Any:
    """Return a session of the file, which writes to `dump` what ONNX Runtime makes of it, where that can be written.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """

    def configure(options: Any) -> None:
        options.optimized_model_filepath = str(dump)

    def opened(configure: Callable[[Any], None] | None) -> Any:
        return ProfiledSession(path, setting, configure) if is_profiled else setting.open(path, configure=configure)

    if dump is not None:
        try:
            return opened(configure)
        except ModelError as error:  # of the model, or of a disk that is full
            log.debug("%s is loaded again without writing what becomes of it: %s", path, error)
            dump.unlink(missing_ok=True)
    return opened(None)


def _dump_digests(dump: Path) -> tuple[str | None, str | None]:
    """Return what identifies ONNX Runtime's graph, and its operators with their attributes; None where it cannot be
    read."""
    try:
        graph = onnx_io.load_model(dump).graph
    except ModelError as error:  # it may hold what only ONNX Runtime knows
        log.debug("what ONNX Runtime makes of a graph is not looked at: %s", error)
        return None, None
    told = sorted(f"{node.domain} {node.op} {describe_given_attributes(node, graph)}" for _, node in graph.nodes())
    return graph_digest(graph), cache_key(*told)


def model_of_graph(graph: Graph) -> onnx_io.LoadedModel:
    """Return a graph as a model of its own."""
    shell = ModelProto(ir_version=10)
    for domain, version in graph.opsets.items():
        shell.opset_import.add(domain=domain, version=version)
    return onnx_io.LoadedModel(graph, shell)
