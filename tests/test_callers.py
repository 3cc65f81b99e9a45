"""What callers do with their own things: models that they go on to change, sizes of numpy, files of any name."""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import UsageError
from graphopt.cli.main import app
from graphopt.io import onnx_io
from tests.text import parse


def scaled() -> onnx.ModelProto:
    return parse("float[n,4] x", "a = Identity(x); y = Mul(a, w)", {"w": np.full(4, 3, np.float32)})


def test_a_model_may_be_changed_once_it_is_optimized() -> None:
    model = scaled()
    result = graphopt.optimize(model, cost="none")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(9, np.float64), "w"))
    (weight,) = map(numpy_helper.to_array, result.model.graph.initializer)
    assert (weight == 3).all() and len(weight) == 4


def test_sizes_may_be_numbers_of_numpy() -> None:
    result = graphopt.optimize(scaled(), cost="none", input_shapes={"x": list(np.array([2, 4]))})
    (given,) = result.model.graph.input
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [2, 4]
    with pytest.raises(UsageError, match=r"input 'x' has 2\.5 in it, which is no size"):
        graphopt.optimize(scaled(), cost="none", input_shapes={"x": [2.5, 4]})  # type: ignore[list-item]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are texts there")
def test_a_name_that_is_no_utf_8_is_escaped_in_the_report(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.onnx"))
    onnx.save(scaled(), str(path))
    report = tmp_path / "report.json"
    done = CliRunner().invoke(
        app, ["optimize", str(path), str(tmp_path / "o.onnx"), "--cost", "none", "--report", str(report)]
    )
    assert done.exit_code == 0, done.output
    assert r"caf\udce9.onnx" in report.read_text()


def test_an_attribute_of_another_operator_that_is_called_as_an_element_type_may_be_any_number() -> None:
    model = parse("float[4] x", "y = Move<to = 100>(x)")
    model.graph.node[0].domain = "acme"
    model.opset_import.add(domain="acme", version=1)
    assert graphopt.optimize(model, cost="none").model.graph.node[0].attribute[0].i == 100


def test_the_values_of_a_sparse_constant_go_along(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "w.bin").write_bytes(np.array([5, 7], np.float32).tobytes())
    values = TensorProto(name="v", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    values.external_data.add(key="location", value="w.bin")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 3]), "i"), [4])
    model = parse("float[4] x", "y = Add(x, w)")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    onnx.save(model, tmp_path / "from" / "m.onnx")
    onnx_io.save_model(onnx_io.load_model(tmp_path / "from" / "m.onnx"), tmp_path / "to" / "m.onnx")
    node = onnx.load(tmp_path / "to" / "m.onnx", load_external_data=False).graph.node[0]
    kept = node.attribute[0].sparse_tensor.values
    assert numpy_helper.to_array(kept, str(tmp_path / "to")).tolist() == [5, 7]


def test_a_check_on_which_nothing_runs_looks_at_each_rewrite() -> None:
    """A table that inputs which are made up do not hit."""
    weights = {"lut": np.arange(17, dtype=np.float32), "k": np.array(1e6, np.float32)}
    body = "i = Identity(x); a = Mul(i, k); f = Floor(a); p = Cast<to = 7>(f); y = Gather(lut, p)"
    result = graphopt.optimize(parse("float[3,32] x", body, weights, outputs="float[3,32] y"), cost="none")
    assert result.report.comparison is not None
    assert "1 of 1 rewrites were compared on their own" in str(result.report.comparison)
