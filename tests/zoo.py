"""The fixtures: real exports with their weights reduced to recipes, so that tests need neither torch nor large files.

``names()`` lists them, ``load(name)`` restores one, ``inputs(model)`` makes a realistic feed for it. They are written
by ``python -m tests.fixture_models``. A recipe is JSON in the doc string of a tensor that has dims and a type but no
values: ``{"seed": 7, "normal": [mean, deviation]}``, ``{"seed": 7, "uniform": [low, high]}`` or ``{"fill": value}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

FIXTURES = Path(__file__).parent / "fixtures"
CLASSIC_BERT = Path(__file__).parent / "data" / "classic-bert.onnx"
"""BERT as transformers 4 exported it, in which ONNX Runtime's optimizer of transformers finds three attentions;
`python -m benchmarks.classic_bert` writes it."""

Array = NDArray[np.generic]

SIZES: Mapping[str, int] = {"batch": 2, "sequence": 16, "height": 64, "width": 96}
"""What an open dimension of a feed is unless the caller binds it; others are 2."""

_VOCABULARY = 16
"""Integers are drawn below this where the graph does not show what they index."""


def names() -> list[str]:
    """All fixtures, in alphabetical order."""
    return sorted(path.stem for path in FIXTURES.glob("*.onnx"))


def load(name: str) -> onnx.ModelProto:
    """The fixture with its weights: the same values on every call, and equal where they were equal in the export."""
    return restore(FIXTURES / f"{name}.onnx")


def restore(path: Path) -> onnx.ModelProto:
    """The model of a file, whose recipes are followed."""
    model = onnx.load(path)
    for tensor in tensors(model.graph):
        if tensor.doc_string.startswith("{"):
            _restore(tensor)
    return model


def inputs(model: onnx.ModelProto, seed: int = 0, bindings: Mapping[str, int] | None = None) -> dict[str, Array]:
    """A feed: tokens that the embedding knows, masks of ones, positions in order, other floats normal.

    ``bindings`` says what open dimensions are, by name; see ``SIZES`` for the others.
    """
    sizes = {**SIZES, **(bindings or {})}
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    return {
        value.name: _feed(value, model.graph, sizes, rng) for value in model.graph.input if value.name not in constants
    }


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor stored in a graph: initializers and attributes, those of bodies too."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        for body in (attribute.g, *attribute.graphs):
            yield from tensors(body)


def values(recipe: Mapping[str, object], shape: Iterable[int], dtype: np.dtype[np.generic]) -> Array:
    """The array that a recipe describes."""
    match recipe:
        case {"seed": int(seed), "normal": [float(mean), float(deviation)]}:
            drawn = _generator(seed).standard_normal(tuple(shape), np.float32) * np.float32(deviation) + np.float32(
                mean
            )
        case {"seed": int(seed), "uniform": [float(low), float(high)]}:
            drawn = _generator(seed).random(tuple(shape), np.float32) * np.float32(high - low) + np.float32(low)
        case {"fill": float(value)}:
            drawn = np.full(tuple(shape), value, np.float32)
        case _:
            raise ValueError(f"not a recipe for a tensor: {recipe}")
    return drawn.astype(dtype, copy=False)


def _generator(seed: int) -> np.random.Generator:
    """SFC64 is the fastest of numpy's bit generators: a test spends its time elsewhere."""
    return np.random.Generator(np.random.SFC64(seed))


def _restore(tensor: onnx.TensorProto) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.raw_data = values(json.loads(tensor.doc_string), tensor.dims, dtype).tobytes()
    tensor.doc_string = ""


def _feed(
    value: onnx.ValueInfoProto, graph: onnx.GraphProto, sizes: Mapping[str, int], rng: np.random.Generator
) -> Array:
    """Values for one input of the graph."""
    declared = value.type.tensor_type
    shape = tuple(sizes.get(dim.dim_param, 2) if dim.dim_param else dim.dim_value for dim in declared.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(declared.elem_type)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if "mask" in value.name or dtype.kind == "b":
        return np.ones(shape, dtype)
    if "position" in value.name:
        return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
    return rng.integers(0, _indexed(value.name, graph), shape).astype(dtype)


def _indexed(name: str, graph: onnx.GraphProto) -> int:
    """The number of rows of the smallest table that an input indexes, also through nodes that pass its values on."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    same, found = {name}, [math.inf]
    for node in graph.node:
        if node.op_type == "Gather" and node.input[1] in same:
            found.append(rows.get(node.input[0], math.inf))
        elif node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and node.input[0] in same:
            same.add(node.output[0])
    return int(min(found)) if math.isfinite(min(found)) else _VOCABULARY
