"""Models without a download, with random weights: one made here, and the architectures that come with the onnx package.

The package ships nine image classifiers whose weights are left out: each is a ConstantOfShape. Here they are drawn,
seeded and scaled so that activations stay finite, and stored as initializers, as in the models that users have. All
of them are of an age in which models were exported as they run; MOBILEONE is made as such nets are trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError, did_you_mean
from graphopt.ir.types import TensorType
from graphopt.operators.proto_conversion import type_to_proto

MOBILEONE = "mobileone"
DESCRIPTIONS = {
    MOBILEONE: "MobileOne as it is trained: layers of several branches become convolutions.",
    "resnet50": "ResNet-50: ONNX Runtime itself does most of this when it loads a model.",
}
"""Line that a demonstration shows of each model, and why it is shown."""
SECONDS = {MOBILEONE: 5.0, "resnet50": 11.0}
"""Seconds of search and timing, by model: all of a demonstration takes less than half a minute."""


def demo_model_names() -> list[str]:
    """Return the names of all models."""
    return [MOBILEONE, *_onnx_light_models()]


def build_demo_model(name: str) -> onnx.ModelProto:
    """Return the model of a name.

    Raises:
        UsageError: there is none of that name.
    """
    if name == MOBILEONE:
        return _mobileone()
    known = _onnx_light_models()
    if name not in known:
        hint = did_you_mean(name, demo_model_names()) or f"; there is {', '.join(demo_model_names())}"
        raise UsageError(f"there is no model '{name}'{hint}")
    return _with_weights(known[name])


def _onnx_light_models() -> dict[str, Path]:
    """Return the architectures of the onnx package, by name.

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


def _with_weights(path: Path) -> onnx.ModelProto:
    """Return the model with its weights drawn; what is stored already stays."""
    model = onnx.load(path)
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    norms = [node for node in graph.node if node.op_type == "BatchNormalization"]
    ranges = {name: (0.5, 1.5) for node in norms for name in node.input[2:]}
    ranges |= {node.input[1]: (0.1, 0.5) for node in norms}  # scales below 1 keep residual sums from growing
    rng = np.random.default_rng(0)
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
    """Draw parameters of a batch normalization within bounds, filters by fan-in (He et al., 2015), the rest small."""
    if bounds is not None:
        return rng.uniform(*bounds, shape).astype(np.float32)
    scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 2 else 0.01
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float32)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop the shapes from which the weights would have been made."""
    read = {name for node in graph.node for name in node.input}
    for items in (graph.initializer, graph.input):
        kept = [item for item in items if item.name in read]
        del items[:]
        items.extend(kept)


# -- a net as it is trained --------------------------------------------------------------------------------------------

_STAGES = ((64, 2), (128, 4), (256, 6), (512, 1))
"""Channels and blocks; the first block of each halves the sides."""
_BRANCHES = 4


def _mobileone() -> onnx.ModelProto:
    """Return MobileOne (Vasu et al., 2022) as it is trained: each layer adds up several convolutions of its input.

    Each branch ends in a batch normalization, whose statistics are drawn: those of a net that was trained.
    """
    net = _Net(np.random.default_rng(0))
    value, before = net.layer("image", 3, 48, width=3, stride=2), 48
    for channels, blocks in _STAGES:
        for block in range(blocks):
            value = net.layer(value, before, before, width=3, groups=before, stride=1 if block else 2)
            value, before = net.layer(value, before, channels, width=1), channels
    net.weights["classes"] = _draw([before, 1000], None, net.rng)
    lines = [
        *net.lines,
        f"pooled = GlobalAveragePool({value})",
        "flat = Flatten(pooled)",
        "scores = MatMul(flat, classes)",
    ]
    head = f'<ir_version: 8, opset_import: ["" : 17]> {MOBILEONE} (float[1,3,128,128] image)'
    model = onnx.parser.parse_model(f"{head} => (float[1,1000] scores) {{ {' '.join(lines)} }}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in net.weights.items())
    return model


@dataclass
class _Net:
    """A net as far as it is written: its nodes as text, and their weights."""

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list)
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def layer(self, value: str, before: int, after: int, *, width: int, groups: int = 1, stride: int = 1) -> str:
        """Add the branches of a layer, their sum and a Relu; return its name."""
        name = f"layer{sum(' = Relu' in line for line in self.lines)}"
        widths = [width] * _BRANCHES + [1] * (width > 1)
        branches = [
            self._add_conv(value, f"{name}_{number}", [after, before // groups, width, width], groups, stride)
            for number, width in enumerate(widths)
        ]
        if before == after and stride == 1:
            branches.append(self._add_normalization(value, f"{name}_same", after))
        for number, branch in enumerate(branches[1:]):
            branches[0] = self._add(f"{name}_sum{number}", f"Add({branches[0]}, {branch})")
        return self._add(name, f"Relu({branches[0]})")

    def _add_conv(self, value: str, name: str, shape: list[int], groups: int, stride: int) -> str:
        self.weights[f"{name}_w"] = _draw(shape, None, self.rng)
        pads, strides = [shape[-1] // 2] * 4, [stride] * 2
        attributes = f"<pads = {pads}, strides = {strides}, group = {groups}>"
        return self._add_normalization(
            self._add(f"{name}_conv", f"Conv {attributes} ({value}, {name}_w)"), name, shape[0]
        )

    def _add_normalization(self, value: str, name: str, channels: int) -> str:
        bounds = {"scale": (0.1, 0.4), "shift": (-0.1, 0.1), "mean": (-0.1, 0.1), "var": (0.5, 1.5)}
        parameters = {f"{name}_{what}": _draw([channels], ends, self.rng) for what, ends in bounds.items()}
        self.weights.update(parameters)
        return self._add(name, f"BatchNormalization({value}, {', '.join(parameters)})")

    def _add(self, name: str, made: str) -> str:
        self.lines.append(f"{name} = {made}")
        return name
