"""What drawn models have that is easily got wrong, and what many of them have to have for a run to mean something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import graphopt
from tests.fuzz import drawing

SEARCHLESS = ("none", "opset")
"""Modes without a search."""


def wanted(modes: Iterable[str]) -> list[str]:
    """Return the traits that some of many models have, in these modes."""
    modes = list(modes)
    targets = drawing.OPSETS if "opset" in modes else ()
    return [
        *(f"with a body of {op}" for op in ("If", "Loop")),
        *("with open sizes", "with infinite or NaN constants", "with half precision", "rewritten"),
        *(["tried by a search"] if set(modes).difference(SEARCHLESS) else ()),
        *(f"in mode {mode}" for mode in modes),
        *(f"of opset {number:2d}" for number in drawing.OPSETS),
        *(f"to opset {number:2d}" for number in targets),
    ]


def traits(drawn: drawing.Model, result: graphopt.Result, mode: str, options: Mapping[str, Any]) -> frozenset[str]:
    """Return what is to be said of a model that was optimized."""
    own = _of_model(drawn), _of_result(result)
    target = [f"to opset {options['target_opset']:2d}"] if "target_opset" in options else []
    return frozenset(chain(*own, [f"in mode {mode}"], target))


def _of_model(drawn: drawing.Model) -> Iterator[str]:
    yield f"of opset {drawn.proto.opset_import[0].version:2d}"
    if any(isinstance(size, str) for given in drawn.inputs for size in given.shape):
        yield "with open sizes"
    if is_half(drawn.proto):
        yield "with half precision"
    if any(map(_is_special, constants(drawn.proto))):
        yield "with infinite or NaN constants"
    for graph in graphs(drawn.proto.graph):
        for node in graph.node:
            if any(attribute.HasField("g") for attribute in node.attribute):
                yield f"with a body of {node.op_type}"


def is_half(model: onnx.ModelProto) -> bool:
    """Return whether some of a model is computed in half precision."""
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    to = [attribute.i for node in nodes if node.op_type == "Cast" for attribute in node.attribute]
    return drawing.HALF in (*to, *(given.type.tensor_type.elem_type for given in model.graph.input))


HUGE = 1e18
"""The product of two such numbers is more than single precision holds."""


def has_huge_weights(model: onnx.ModelProto) -> bool:
    """Return whether sums and products of weights may overflow."""
    arrays = (numpy_helper.to_array(constant) for constant in constants(model))
    floats = (array[np.isfinite(array)] for array in arrays if array.dtype.kind == "f")
    return any((np.abs(array.astype(np.float64)) > HUGE).any() for array in floats)


def constants(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a model, those in bodies, too."""
    for graph in graphs(model.graph):
        yield from graph.initializer
        yield from (a.t for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def _is_special(tensor: onnx.TensorProto) -> bool:
    return not np.all(np.isfinite(numpy_helper.to_array(tensor)))


def _of_result(result: graphopt.Result) -> Iterator[str]:
    report = result.report
    if report.rewrites:
        yield "rewritten"
    if report.timing is not None:
        yield from ["tried by a search"] if report.timing.states > report.timing.regions else []
        yield from ["changed by a search"] if any(group.is_taken for group in report.timing.groups) else []
    if any(": with it, the model is" in note for note in report.notes):
        yield "with a rewrite that the check refused"
