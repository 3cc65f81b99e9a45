"""The fixtures are what other tests take them for: valid, deterministic models with ordinary values."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import zoo


def _run(model: onnx.ModelProto, feed: dict[str, zoo.Array]) -> list[zoo.Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[zoo.Array] = session.run(None, feed)
    return outputs


def _open_dims(model: onnx.ModelProto) -> set[str]:
    shapes = (value.type.tensor_type.shape for value in model.graph.input)
    return {dim.dim_param for shape in shapes for dim in shape.dim if dim.dim_param}


@pytest.mark.parametrize("name", zoo.names())
def test_runs_on_ordinary_values(name: str) -> None:
    model = zoo.load(name)
    onnx.checker.check_model(model)

    for seed, bindings in enumerate([{}, {"batch": 3, "sequence": 7, "height": 96}] if _open_dims(model) else [{}]):
        for output in _run(model, zoo.inputs(model, seed, bindings)):
            assert np.isfinite(output).all()
            assert 1e-3 < output.std() < 1e3, "a network whose output is constant or huge tests nothing"


@pytest.mark.parametrize("name", zoo.names())
def test_variances_are_positive(name: str) -> None:
    graph = zoo.load(name).graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            assert onnx.numpy_helper.to_array(weights[node.input[4]]).min() > 0


def test_loads_the_same_values_twice() -> None:
    name = zoo.names()[0]
    assert zoo.load(name) == zoo.load(name)


def test_the_families_of_both_exporters_are_there() -> None:
    families = ("resnet18", "mobilenetv3", "efficientnet", "swin", "vit", "bert", "gpt2", "llama")
    wanted = {f"{family}-{exporter}" for family in families for exporter in ("dynamo", "torchscript")}
    assert wanted <= set(zoo.names())
