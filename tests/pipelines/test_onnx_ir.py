"""graphopt as a pass of onnx_ir."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import zoo
from tests.pipelines.packages import IGNORE_WARNINGS, example, needs

pytestmark = [needs("onnx_ir"), IGNORE_WARNINGS]


def loaded() -> Any:
    """A ResNet whose batch norms are nodes, as an `onnx_ir.Model`."""
    import onnx_ir

    return onnx_ir.from_proto(zoo.load("resnet18-torchscript-bn"))


def operators(model: Any) -> list[str]:
    return [node.op_type for node in model.graph]


def run(model: Any) -> list[Any]:
    """What a model computes."""
    import onnx_ir
    import onnxruntime

    proto = onnx_ir.to_proto(model)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, zoo.inputs(proto))
    return outputs


def test_a_pass_changes_its_model_in_place() -> None:
    from graphopt.onnx_ir import GraphoptPass

    model, pass_ = loaded(), GraphoptPass(cost="none")
    expected = run(model)
    done = pass_(model)
    assert done.modified and done.model is model
    assert "BatchNormalization" not in operators(model)
    assert pass_.result is not None and pass_.result.ok
    np.testing.assert_allclose(run(model)[0], expected[0], rtol=1e-3, atol=1e-4)
    assert not pass_(model).modified, "nothing is left to do"


def test_it_is_one_of_several_passes() -> None:
    import onnx_ir
    from onnx_ir.passes import common

    from graphopt.onnx_ir import GraphoptPass

    model = loaded()
    passes = onnx_ir.passes.Sequential(
        common.IdentityEliminationPass(), GraphoptPass(cost="none"), common.ClearMetadataAndDocStringPass()
    )
    assert passes(model).modified
    assert "BatchNormalization" not in operators(model)
    onnx.checker.check_model(onnx_ir.to_proto(model))


def test_functionalized_it_leaves_its_model() -> None:
    import onnx_ir

    from graphopt.onnx_ir import GraphoptPass

    model = loaded()
    done = onnx_ir.passes.functionalize(GraphoptPass(cost="none"))(model)
    assert "BatchNormalization" in operators(model)
    assert "BatchNormalization" not in operators(done.model)


def test_external_weights_are_found_again(tmp_path: Path) -> None:
    import onnx_ir

    from graphopt.onnx_ir import GraphoptPass

    onnx.save(zoo.load("resnet18-torchscript-bn"), tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    model = onnx_ir.load(tmp_path / "m.onnx")
    GraphoptPass(cost="none", check=False)(model)
    onnx_ir.save(model, tmp_path / "n.onnx", external_data="n.data")
    assert (tmp_path / "n.data").stat().st_size > 1 << 20
    written = onnx_ir.from_proto(onnx.load(tmp_path / "n.onnx"))
    assert "BatchNormalization" not in operators(written)
    np.testing.assert_allclose(run(written)[0], run(loaded())[0], rtol=1e-3, atol=1e-4)


def test_other_changes_count_as_changes() -> None:
    from graphopt.onnx_ir import GraphoptPass

    model = loaded()
    GraphoptPass(cost="none", check=False)(model)
    opset = model.graph.opset_imports[""]
    assert GraphoptPass(cost="none", check=False, target_opset=opset + 1)(model).modified
    assert model.graph.opset_imports[""] == opset + 1


def test_a_pass_is_printed_as_it_was_made() -> None:
    from graphopt.onnx_ir import GraphoptPass

    assert repr(GraphoptPass(cost="none", exact=True)) == "GraphoptPass(cost='none', exact=True)"


def test_an_unknown_option_is_refused() -> None:
    from graphopt.onnx_ir import GraphoptPass

    with pytest.raises(TypeError, match=r"GraphoptPass\(\) has no option 'exat'; did you mean 'exact'\?"):
        GraphoptPass(exat=True)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(zoo.load("resnet18-torchscript-bn"), "model.onnx")
    exec(example("pipelines", "GraphoptPass"), {})
    assert len(onnx.load("fast.onnx").graph.node) < len(onnx.load("model.onnx").graph.node)
