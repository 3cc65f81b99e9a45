"""A file of one's own operators and rules, as its author uses it: proved, applied, checked, told, or refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.text import parse

MY_OPS = """
from onnx import parser
from graphopt.rule import Operators, Rule, define, define_function, microsoft, op, real, tensor

mine = Operators("my.domain")
x, b, y = tensor("x", "*b N"), tensor("b", "N"), tensor("y")

define(microsoft.BiasGelu(x, b), op.Gelu(x + b))
define(mine.Softcap(y, cap=real("cap")), op.Tanh(y / real("cap")) * real("cap"), cap=30.0)
define_function(parser.parse_function(
    '<domain: "my.domain", opset_import: ["": 20]> TwiceRelu (v) => (r) { a = Relu(v) r = Relu(a) }'
))

RULES = (
    Rule("fuse_bias_gelu", op.Gelu(x + b), microsoft.BiasGelu(x, b)),
    Rule("fuse_softcap", op.Tanh(y / 30.0) * 30.0, mine.Softcap(y)),
    Rule("once_is_enough", mine.TwiceRelu(y), op.Relu(y)),
)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_ops.py").write_text(MY_OPS)
    weights: dict[str, NDArray[Any]] = {"b": np.arange(8, dtype=np.float32) / 8, "t": np.array(30, np.float32)}
    body = "a = Add(x, b); g = Gelu(a); d = Div(g, t); h = Tanh(d); y = Mul(h, t)"
    onnx.save(parse("float[n,8] x", body, weights, outputs="float[n,8] y", opset=20), tmp_path / "model.onnx")
    return tmp_path


def graphopt(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, for what a file defines is known for good."""
    command = [sys.executable, "-m", "graphopt", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


OPTIMIZE = ("optimize", "model.onnx", "fast.onnx", "--rules", "my_ops.py", "--cost", "none")


@pytest.mark.slow
def test_own_operators_are_proved(folder: Path) -> None:
    done = graphopt(folder, "verify", "my_ops.py")
    assert done.returncode == 0 and "3 rules: 3 proved" in done.stdout, done.stderr
    assert "com.microsoft.BiasGelu(x, b)  =  Gelu(x + b)\n    ONNX Runtime's kernel computes the same" in done.stdout


@pytest.mark.slow
def test_own_operators_are_listed_as_they_were_read(folder: Path) -> None:
    shown = graphopt(folder, "rules", "my_ops.py").stdout
    softcap = 'define(Operators("my.domain").Softcap(y, cap=cap), op.Tanh(y / cap) * cap, cap=30.0)'
    assert f"\n\nmy.domain.Softcap  (a definition)\n    {softcap}\n" in shown
    listed = json.loads(graphopt(folder, "rules", "my_ops.py", "--json").stdout)
    assert "define(microsoft.BiasGelu(x, b), op.Gelu(x + b))" in [each["algebra"] for each in listed]


@pytest.mark.slow
def test_own_operators_are_not_called_unknown(folder: Path) -> None:
    model = parse("float[n,8] x", "y = my.domain.Softcap(x)", outputs="float[n,8] y", opset=20)
    model.opset_import.add(domain="my.domain", version=1)
    onnx.save(model, folder / "capped.onnx")
    found = [
        json.loads(graphopt(folder, "inspect", "capped.onnx", "--json", *more).stdout)["unknown"]
        for more in ((), ("--rules", "my_ops.py"))
    ]
    assert found == [["my.domain.Softcap"], []]


@pytest.mark.slow
def test_what_has_a_kernel_is_written_and_checked_and_told(folder: Path) -> None:
    done = graphopt(folder, *OPTIMIZE, "--target", "onnxruntime", "--report", "report.json")
    assert done.returncode == 0, done.stderr
    assert "fuse_bias_gelu" in done.stdout
    report = json.loads((folder / "report.json").read_text())
    assert report["comparison"]["verdict"] == "equal"
    assert any("ONNX Runtime does not know my.domain.Softcap" in note for note in report["notes"])
    model = onnx.load(folder / "fast.onnx")
    first = model.graph.node[0]
    assert (first.domain, first.op_type) == ("com.microsoft", "BiasGelu")
    assert {entry.domain for entry in model.opset_import} == {"", "com.microsoft"}


@pytest.mark.slow
def test_the_standard_target_has_no_operators_of_onnx_runtime(folder: Path) -> None:
    assert graphopt(folder, *OPTIMIZE).returncode == 0
    assert {node.domain for node in onnx.load(folder / "fast.onnx").graph.node} == {""}


@pytest.mark.slow
def test_an_operator_of_a_function_is_replaced_by_what_it_means(folder: Path) -> None:
    model = parse("float[n,8] x", "y = TwiceRelu(x)", outputs="float[n,8] y", opset=20)
    model.graph.node[0].domain = "my.domain"
    model.opset_import.add(domain="my.domain", version=1)
    onnx.save(model, folder / "model.onnx")
    done = graphopt(folder, *OPTIMIZE)
    assert done.returncode == 0, done.stderr
    assert [node.op_type for node in onnx.load(folder / "fast.onnx").graph.node] == ["Relu"]


WRONG = """
m = tensor("m", "A N")
define(microsoft.Trilu(m), op.Relu(m))
RULES = (*RULES, Rule("fuse_trilu", op.Relu(m), microsoft.Trilu(m)))
"""


@pytest.mark.slow
def test_a_wrong_definition_is_refused_with_an_instance(folder: Path) -> None:
    (folder / "my_ops.py").write_text(MY_OPS + WRONG)
    for command in (("verify", "my_ops.py"), (*OPTIMIZE, "--target", "onnxruntime")):
        done = graphopt(folder, *command)
        assert done.returncode == 3
        said = done.stdout + done.stderr
        assert "com.microsoft.Trilu is not what its definition says: values differ" in said
        assert "m: float" in said, "the instance"
    assert not (folder / "fast.onnx").exists()


@pytest.mark.slow
def test_what_the_library_defines_otherwise_is_refused(folder: Path) -> None:
    (folder / "my_ops.py").write_text(MY_OPS.replace("op.Gelu(x + b)", "op.Gelu(x - b)"))
    done = graphopt(folder, "verify", "my_ops.py")
    assert done.returncode == 2
    assert "is defined otherwise already" in done.stderr and "Gelu(x + b)" in done.stderr
