"""What PyTorch's exporter says of weights decides which initializers are trained."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import graphopt
from graphopt.io.torch_export import read_exported_weights
from tests.text import parse

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = """
# inputs
p_linear_weight: PARAMETER target='linear.weight'
p_scale: PARAMETER target='scale'
b_table: BUFFER target='table' persistent=True
x: USER_INPUT
"""


def exported() -> onnx.ModelProto:
    """A model as the exporter writes it: the weight transposed, a scale of one number, and a table that it computed."""
    ones = np.ones((3, 3), np.float32)
    weights = {"val_1": ones, "scale": np.array(2, np.float32), "table": ones, "cos": ones}
    body = "a = MatMul(x, val_1); b = Mul(a, scale); c = Add(b, table); y = Add(c, cos)"
    model = parse("float[3,3] x", body, weights, outputs="float[3,3] y")
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNATURE)
    said = {
        "val_1": {FOLDED: "['linear.weight']"},
        "scale": {KIND: "PARAMETER"},
        "table": {KIND: "BUFFER"},
        "cos": {FOLDED: "['table', 'val_0']"},
    }
    for name, metadata in said.items():
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(weights[name].shape))
        helper.set_metadata_props(info, metadata)
        model.graph.value_info.append(info)
    return model


def test_parameters_are_trained_and_buffers_are_not(caplog: pytest.LogCaptureFixture) -> None:
    made = graphopt.grad(exported(), "mse", check=False)
    assert set(made.gradients) == {"val_1", "scale"}
    note = "1 of the parameters of the PyTorch model are in the file in another form, as 'linear.weight' in 'val_1'"
    assert note in caplog.text
    assert note in "".join(made.result.report.notes)


def test_what_is_named_is_differentiated_whatever_the_exporter_says(caplog: pytest.LogCaptureFixture) -> None:
    made = graphopt.grad(exported(), "mse", ["table"], "none", check=False)
    assert (set(made.gradients), caplog.text) == ({"table"}, "")


def test_without_a_signature_all_initializers_with_axes_are_weights() -> None:
    model = exported()
    del model.graph.metadata_props[:]
    read = read_exported_weights(model)
    assert read.trainable == {"val_1", "table", "cos"}
    assert read.note == ""
