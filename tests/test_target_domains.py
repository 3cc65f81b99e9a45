"""Operators for another runtime: written though this machine has no kernel, and checked by their definitions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

import graphopt
from graphopt.base.errors import ModelError, RuleError, UsageError
from graphopt.base.session import current_session
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.operators import inference
from graphopt.rewrite.definition_expansion import replace_by_definitions
from graphopt.rule import Operators, Rule, define, op, real, tensor
from tests.text import parse

PLUGINS = """
from graphopt.rule import Operators, Rule, define, op, real, tensor

npu = Operators("my.npu")
y = tensor("y")
define(npu.Softcap(y, cap=real("cap")), op.Tanh(y / real("cap")) * real("cap"), cap=30.0)
define(npu.Capped(y), npu.Softcap(op.Relu(y), cap=30.0))
RULES = (
    Rule("fuse_softcap", op.Tanh(y / 30.0) * 30.0, npu.Softcap(y)),
    Rule("fuse_capped", npu.Softcap(op.Relu(y)), npu.Capped(y)),
)
"""
CAPPED: dict[str, NDArray[Any]] = {"t": np.array(30, np.float32)}


def model(body: str = "d = Div(x, t); h = Tanh(d); m = Mul(h, t); y = Neg(m)") -> onnx.ModelProto:
    return parse("float[n,8] x", body, CAPPED, outputs="float[n,8] y")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plugins.py").write_text(PLUGINS)
    onnx.save(model(), tmp_path / "model.onnx")
    return tmp_path


def run(folder: Path, *options: str) -> Result:
    with current_session().child():
        paths = [str(folder / name) for name in ("model.onnx", "npu.onnx")]
        rules = ["--rules", str(folder / "plugins.py"), "--report", str(folder / "report.json")]
        return CliRunner().invoke(app, ["optimize", *paths, *rules, *options])


def operators(path: Path) -> list[str]:
    return [f"{node.domain}.{node.op_type}".lstrip(".") for node in onnx.load(path).graph.node]


def test_an_operator_of_a_target_domain_is_written_and_its_definition_checked(folder: Path) -> None:
    done = run(folder, "--target-domain", "my.npu")
    assert done.exit_code == 0, done.output
    assert operators(folder / "npu.onnx") == ["my.npu.Softcap", "Neg"]
    assert {"my.npu": 1}.items() <= {
        each.domain: each.version for each in onnx.load(folder / "npu.onnx").opset_import
    }.items()
    said = " ".join(done.stdout.split())
    assert "my.npu.Softcap by definition" in said
    assert "my.npu.Softcap: no kernel here, so its definition was run in its place" in said
    assert "not searched and not timed: this machine has no kernel for my.npu.Softcap" in said
    report = json.loads((folder / "report.json").read_text())
    assert (report["comparison"]["verdict"], report["comparison"]["replaced"]) == ("equal", ["my.npu.Softcap"])
    assert report["timing"] is None


def test_a_file_of_rules_may_name_the_domain(folder: Path) -> None:
    (folder / "plugins.py").write_text(f'{PLUGINS}\nTARGET_DOMAINS = ("my.npu",)\n')
    onnx.save(model("r = Relu(x); d = Div(r, t); h = Tanh(d); y = Mul(h, t)"), folder / "model.onnx")
    assert run(folder).exit_code == 0
    assert operators(folder / "npu.onnx") == ["my.npu.Capped"], "defined by another operator of that domain"
    assert json.loads((folder / "report.json").read_text())["comparison"]["verdict"] == "equal"


def test_without_the_domain_the_note_says_how_to_write_it(folder: Path) -> None:
    assert run(folder, "--cost", "none").exit_code == 0
    assert "my.npu.Softcap" not in operators(folder / "npu.onnx")
    (note,) = [each for each in json.loads((folder / "report.json").read_text())["notes"] if "fuse_softcap" in each]
    assert "--target-domain my.npu writes it for another runtime" in note


@pytest.mark.parametrize(
    ("rules", "options", "code", "said"),
    [
        (PLUGINS, ["--target-domain", "my.cpu"], 2, "of the domain 'my.cpu'; did you mean 'my.npu'?"),
        (PLUGINS, ["--target-domain", "ai.onnx"], 2, "ai.onnx is the domain of ONNX itself"),
        (PLUGINS, ["--target-domain", "my.npu", "--require-speedup", "1.1"], 4, "no speedup was measured"),
        (PLUGINS, ["--target-domain", "my.npu", "--memory-budget", "1GB"], 2, "has no kernel for my.npu.Softcap"),
        (f"{PLUGINS}\nTARGET_DOMAINS = 'my.npu'\n", [], 2, "TARGET_DOMAINS is no tuple of names of domains"),
        (
            "\n".join(line for line in PLUGINS.splitlines() if not line.startswith("define(")),
            ["--target-domain", "my.npu"],
            2,
            "nothing says what 'my.npu.Softcap' computes; say it before the rule, as in define(",
        ),
        (PLUGINS.replace("30.0) * 30.0", "30.0) * 20.0"), ["--target-domain", "my.npu"], 3, "REFUTED"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_clear_line(folder: Path, rules: str, options: list[str], code: int, said: str) -> None:
    (folder / "plugins.py").write_text(rules)
    done = run(folder, *options)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert not (folder / "npu.onnx").exists()


def test_a_wrong_rewrite_into_such_an_operator_is_found_by_the_check() -> None:
    """One that nobody proved: the definition that is run in its place differs."""
    y, npu = tensor("y"), Operators("tests.npu")
    with current_session().child():
        define(npu.Double(y, by=real("by")), y * real("by"), by=2.0)
        wrong = Rule("wrong", op.Tanh(op.Tanh(y)), npu.Double(y))
        result = graphopt.optimize(
            model("a = Tanh(x); y = Tanh(a)"), rules=[wrong], unverified=True, target_domains=["tests.npu"], cost="none"
        )
    assert [node.op_type for node in result.model.graph.node] == ["Tanh", "Tanh"]
    assert any("the rule 'wrong' was left out" in note for note in result.report.notes)


def test_an_operator_without_a_fitting_definition_cannot_be_replaced() -> None:
    y, npu = tensor("y"), Operators("tests.npu")
    with current_session().child():
        define(npu.Twice(y), y + y)
        given = parse("float[n,8] x", "y = tests.npu.Twice<k = 1>(x)", outputs="float[n,8] y")
        given.opset_import.add(domain="tests.npu", version=1)
        graph = onnx_io.load_model(given).graph
        inference.infer_graph(graph)
        with pytest.raises(ModelError, match=r"Twice 'y' cannot be replaced by its definition: no definition of tests"):
            replace_by_definitions(graph, {("Twice", "tests.npu")})


def test_target_domains_are_a_list() -> None:
    with pytest.raises(UsageError, match=r"target_domains is a list of names of domains, not 'my\.npu'"):
        graphopt.Options(target_domains="my.npu")
    with pytest.raises(RuleError, match=r"nothing says what 'my\.other\.Op' computes"):
        Rule("other", op.Relu(tensor("y")), Operators("my.other").Op(tensor("y")))
