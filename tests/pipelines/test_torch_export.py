"""What `torch.onnx.export` returns goes in, and comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from tests.pipelines.packages import IGNORE_WARNINGS, example, needs
from tests.text import parse

pytestmark = [needs("torch", "onnxscript"), IGNORE_WARNINGS]


@pytest.fixture(scope="module")
def exported() -> tuple[Any, Any, Any]:
    """A net, an input, and its export."""
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    program = torch.onnx.export(net, (x,), dynamo=True, verbose=False, dynamic_shapes=({0: "batch"},))
    return net, x, program


def test_the_program_of_the_result_is_called_as_the_exported_one(exported: tuple[Any, Any, Any]) -> None:
    import torch

    net, _, program = exported
    before = [node.op_type for node in program.model.graph]
    result = graphopt.optimize(program, cost="none")
    assert type(result.program) is type(program)
    assert [node.op_type for node in result.program.model.graph] == ["Gemm", "Relu", "Gemm"]
    assert [node.op_type for node in program.model.graph] == before, "the caller's program was changed"
    for rows in (3, 7):
        more = torch.randn(rows, 8)
        torch.testing.assert_close(result.program(more)[0], net(more), rtol=1e-4, atol=1e-5)
    assert result.program.exported_program is program.exported_program


def test_the_program_of_the_result_is_saved(exported: tuple[Any, Any, Any], tmp_path: Path) -> None:
    result = graphopt.optimize(exported[2], cost="none")
    result.program.save(tmp_path / "fast.onnx", external_data=True)
    onnx.checker.check_model(tmp_path / "fast.onnx")


def test_other_sources_have_no_program() -> None:
    result = graphopt.optimize(parse("float[2] x", "y = Relu(x)", {}, outputs="float[2] y"), cost="none")
    with pytest.raises(graphopt.UsageError, match=r"has a program: use result\.model"):
        _ = result.program


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("pipelines", "torch.onnx.export"), {})
    assert Path("fast.onnx").exists()
