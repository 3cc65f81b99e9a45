"""A model as it is loaded to be cut, and tried on inputs: does it run, and which sizes follow from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.base.errors import GraphoptError, ModelError, UsageError
from graphopt.base.limits import LimitError
from graphopt.io import onnx_io
from graphopt.ir.edit import remove_unread
from graphopt.ir.graph import Graph
from graphopt.runtime.bench import make_up_inputs, prepare_models
from graphopt.runtime.sample_inputs import Feeds
from graphopt.runtime.session_setting import SessionSetting, parse_model
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes

log = logging.getLogger(__name__)


def load_live_nodes(model: onnx_io.ModelSource) -> tuple[onnx_io.LoadedModel, list[str]]:
    """Return a model with the types of its values, without nodes on which no output depends, and a note on these.

    Raises:
        ModelError: the model is not legal.
    """
    loaded = onnx_io.load_typed_model(model)
    dead = remove_unread(loaded.graph)
    if dead is None:
        return loaded, []
    loaded.graph.apply(dead)
    count = sum(not node.is_internal for node in dead.removed)
    return loaded, [f"{count} nodes on which no output depends are left out"] if count else []


@dataclass(frozen=True, eq=False)
class ModelTrial:
    """Inputs of a model, and its session if it runs on them."""

    session: Any
    sizes: Mapping[str, int]
    feeds: Feeds
    notes: tuple[str, ...] = ()


def try_model(
    model: onnx_io.ModelSource,
    graph: Graph,
    setting: SessionSetting,
    dims: Mapping[str, int | Sequence[int]],
    inputs: Mapping[str, Any],
    seed: int,
    *,
    is_run: bool = True,
) -> ModelTrial:
    """Return a trial of a model; one without a session, and a note, where ONNX Runtime does not run it here.

    `graph` is that of the model, with types. Unless it `is_run`, inputs are only made up, of sizes that it takes.

    Raises:
        UsageError: sizes or inputs do not fit.
        ModelError: it is not run, and no sizes are found that fit.
        LimitError: a run takes too long, or too much memory.
    """
    if any(not isinstance(sizes, int) and len(sizes) > 1 for sizes in dims.values()):
        raise UsageError("times are known for one size of each dim: give one")
    if not is_run:
        return ModelTrial(None, {}, _make_up_feeds(model, graph, dims, inputs))
    try:
        ready = prepare_models([model], setting, dims=dims, inputs=inputs, seed=seed)
    except LimitError:
        raise
    except ModelError as error:
        why = f"not measured, but estimated: {error}"
        try:
            feeds = _make_up_feeds(model, graph, dims, inputs)
        except ModelError as second:
            log.debug("no inputs can be made up: %s", second)
            feeds = {}
        return ModelTrial(None, {}, feeds, (why,))
    first, *others = ready.trials
    notes = ("measured at the first of several usual sizes: --dim names others",) if others else ()
    return ModelTrial(ready.sessions[0], dict(first.sizes), first.feeds, notes)


def with_sizes(graph: Graph, feeds: Feeds) -> Graph:
    """Return a graph with the sizes of some inputs; the graph itself where it does not work on them."""
    try:
        return with_static_shapes(graph, input_shapes(feeds))
    except GraphoptError as error:
        log.debug("sizes are not known everywhere: %s", error)
        return graph


def _make_up_feeds(
    model: onnx_io.ModelSource,
    graph: Graph,
    dims: Mapping[str, int | Sequence[int]],
    inputs: Mapping[str, Any],
) -> Feeds:
    """Return inputs of usual sizes, or of others where inference finds that the graph does not work on these.

    Raises:
        ModelError: it works on none that are tried.
    """

    def refusal(feeds: Feeds) -> str:
        try:
            with_static_shapes(graph, input_shapes(feeds))
        except GraphoptError as error:
            return str(error)
        return ""

    return make_up_inputs(parse_model(model), dims, inputs, refusal)[0]
