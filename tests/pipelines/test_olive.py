"""graphopt as a pass of Olive, in a workflow of Olive's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest

from tests import zoo
from tests.pipelines.packages import IGNORE_WARNINGS, example, needs

pytestmark = [needs("olive", "requests"), IGNORE_WARNINGS]

OLIVE = "import sys; from olive.cli.launcher import main; sys.argv[0] = 'olive'; main()"
"""What the command `olive` does."""


def command(*arguments: str, folder: Path, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_a_workflow_of_the_page_optimizes_and_quantizes(tmp_path: Path) -> None:
    onnx.save(zoo.load("resnet18-torchscript-bn"), tmp_path / "model.onnx")
    (tmp_path / "workflow.json").write_text(example("pipelines", "GraphoptOptimizer", "json"))
    write, run = example("pipelines", "graphopt.olive", "text").splitlines()
    assert write.split()[0] == "python" and run.split()[0] == "olive"
    command(*write.split()[1:], folder=tmp_path)
    command("-c", OLIVE, *run.split()[1:], "--disable_telemetry", folder=tmp_path)
    (made,) = (tmp_path / "result").glob("*.onnx")
    counts = Counter(node.op_type for node in onnx.load(made).graph.node)
    assert counts["ConvInteger"] + counts["MatMulInteger"] == 21
    assert not counts["BatchNormalization"]


def test_the_options_are_those_of_graphopt() -> None:
    from olive.hardware import DEFAULT_CPU_ACCELERATOR

    from graphopt.olive import GraphoptOptimizer
    from graphopt.options import Options

    params = GraphoptOptimizer.default_config(DEFAULT_CPU_ACCELERATOR)
    assert {"cost", "seconds", "skip", "before", "dims", "target_opset", "exact"} <= params.keys()
    assert not {"provider", "inputs", "progress"} & params.keys()
    Options(**{name: param.default_value for name, param in params.items()})


def test_the_configuration_has_olive_s_own_passes_too(tmp_path: Path) -> None:
    command("-m", "graphopt.olive", "package.json", folder=tmp_path)
    passes = json.loads((tmp_path / "package.json").read_text())["passes"]
    assert passes["GraphoptOptimizer"]["module_path"] == "graphopt.olive.GraphoptOptimizer"
    assert "OnnxDynamicQuantization" in passes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--help"], "usage: python -m graphopt.olive [package.json]"), (["no/where.json"], "no/where.json cannot be")],
)
def test_a_wrong_call_is_told_in_a_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert said in command("-m", "graphopt.olive", *arguments, folder=tmp_path, code=1)
