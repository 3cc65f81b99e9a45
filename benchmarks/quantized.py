"""Quantized forms of models: as onnxruntime.quantization makes them, and as training for TensorRT leaves them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

Array: TypeAlias = NDArray[Any]
Feeds: TypeAlias = Mapping[str, Array]

PRODUCTS = ("Conv", "Gemm", "MatMul")


def quantize(path: Path, form: str, feeds: Feeds) -> None:
    """Put a quantized form of a model in its place; `feeds` show what ranges its values have."""
    with _quiet():
        onnx.save(FORMS[form](path, feeds), path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of models that were not preprocessed."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def static(
    path: Path, feeds: Feeds, activations: str = "QInt8", weights: str = "QInt8", operators: str = "QDQ"
) -> onnx.ModelProto:
    """Return what `quantize_static` makes; by default activations and weights are integers with a sign."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [dict(feeds)]

        def get_next(self) -> dict[str, Array] | None:
            return self._left.pop() if self._left else None

    types = {"activation_type": QuantType[activations], "weight_type": QuantType[weights]}
    quantize_static(path, path, Reader(), quant_format=QuantFormat[operators], **types)
    return onnx.load(path)


def on_integers(path: Path, feeds: Feeds) -> onnx.ModelProto:
    """Return what `quantize_static` makes of operators on integers, which have no sign."""
    return static(path, feeds, "QUInt8", "QUInt8", "QOperator")


def dynamic(path: Path, _feeds: Feeds) -> onnx.ModelProto:
    """Return what `quantize_dynamic` makes with weights that have no sign."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, path, weight_type=QuantType.QUInt8)
    return onnx.load(path)


def trained(path: Path, feeds: Feeds) -> onnx.ModelProto:
    """Return the model with Q and DQ before what products read, weights by channel, and no zero point but 0."""
    model = onnx.load(path)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in PRODUCTS and node.input[1] in weights]
    read = dict.fromkeys(node.input[0] for node in products)
    seen = _values(model, [*read], feeds)
    made: dict[str, list[NodeProto]] = {}
    constants: dict[str, Array] = {}
    for name in read:
        made[name] = _pair(name, np.array(np.abs(seen[name]).max() / 127, np.float32), {}, constants)
    for node in products:
        values = numpy_helper.to_array(weights[node.input[1]])
        axis = _channels(node)
        others = tuple(each for each in range(values.ndim) if each != axis)
        scale = np.maximum(np.abs(values).max(others) / 127, 1e-8).astype(np.float32)
        made[node.input[1]] = _pair(node.input[1], scale, {"axis": axis}, constants)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        if node.op_type in PRODUCTS and node.input[1] in weights:
            for place in (0, 1):
                nodes += made.pop(node.input[place], [])
                node.input[place] = f"{node.input[place]}_dequantized"
        nodes.append(node)
    del model.graph.node[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return model


def _values(model: onnx.ModelProto, names: list[str], feeds: Feeds) -> dict[str, Array]:
    """Return what a model computes under some names."""
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    computed = [name for name in names if name not in feeds]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    return {**feeds, **dict(zip(computed, session.run(computed, dict(feeds)), strict=True))}


def _channels(node: NodeProto) -> int:
    """Return the axis of the weights along which each number of an output has its own."""
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if node.op_type == "Conv" or transposed else 1


def _pair(name: str, scale: Array, attrs: dict[str, Any], constants: dict[str, Array]) -> list[NodeProto]:
    """Return a Q and a DQ; their scale and zero point become constants."""
    given = [f"{name}_scale", f"{name}_zero"]
    constants |= dict(zip(given, (scale, np.zeros(scale.shape, np.int8)), strict=True))
    return [
        helper.make_node("QuantizeLinear", [name, *given], [f"{name}_quantized"], **attrs),
        helper.make_node("DequantizeLinear", [f"{name}_quantized", *given], [f"{name}_dequantized"], **attrs),
    ]


FORMS: Mapping[str, Callable[[Path, Feeds], onnx.ModelProto]] = {
    "static": static,
    "dynamic": dynamic,
    "trained": trained,
    "qoperator": on_integers,
}
