"""Real models without a download: the architectures that come with the onnx package, with random weights.

The package ships nine image classifiers whose weights are left out: each is a ConstantOfShape. Here they are drawn,
seeded and scaled so that activations stay finite, and stored as initializers, as in the models that users have.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from graphopt.errors import UsageError
from graphopt.protos import type_to_proto
from graphopt.types import DType, TensorType


def models() -> dict[str, Path]:
    """The architectures by name.

    Raises:
        UsageError: the installed onnx package comes without them.
    """
    spec = find_spec("onnx")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "backend" / "test" / "data" / "light"
    found = {path.stem.removeprefix("light_"): path for path in sorted(folder.glob("light_*.onnx"))}
    if not found:
        raise UsageError("the installed onnx package comes without models")
    return found


def with_weights(path: Path, seed: int = 0) -> onnx.ModelProto:
    """The model with its weights drawn; what is stored already stays."""
    model = onnx.load(path)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    ranges = {name: (0.5, 1.5) for node in norms for name in node.input[2:]}
    ranges |= {node.input[1]: (0.1, 0.5) for node in norms}  # scales below 1 keep residual sums from growing
    rng = np.random.default_rng(seed)
    for node in list(graph.node):
        if node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape = [int(size) for size in onnx.numpy_helper.to_array(stored[node.input[0]])]
            values = _draw(shape, ranges.get(node.output[0]), rng)
            graph.initializer.append(onnx.numpy_helper.from_array(values, node.output[0]))
            if model.ir_version < 4:  # then every initializer is listed as an input, too
                type_ = type_to_proto(TensorType(DType.FLOAT, tuple(shape)))
                graph.input.append(onnx.ValueInfoProto(name=node.output[0], type=type_))
            graph.node.remove(node)
    _drop_unread(graph)
    return model


def _draw(shape: list[int], bounds: tuple[float, float] | None, rng: np.random.Generator) -> NDArray[np.float32]:
    """Parameters of a batch normalization within bounds; filters by fan-in (He et al., 2015); the rest small."""
    if bounds is not None:
        return rng.uniform(*bounds, shape).astype(np.float32)
    scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 2 else 0.01
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop the shapes from which the weights would have been made."""
    read = set(_read(graph))
    for field in (graph.initializer, graph.input):
        kept = [item for item in field if item.name in read]
        del field[:]
        field.extend(kept)


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
