"""Kernels of a user's own, in a shared library that ONNX Runtime registers: checked, timed, asked what they compute."""

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import graphopt
from graphopt import Options
from graphopt.base import ort
from graphopt.base.errors import ProofError, UsageError
from graphopt.base.executors import ProcessPool
from graphopt.rule import Operators, Rule, define, op, real, tensor
from graphopt.runtime.bench import run_benchmark
from graphopt.runtime.machine import environment_key
from graphopt.runtime.session_setting import SessionSetting
from graphopt.verifier.prove import prove
from tests.commands import run

SOURCE = Path(__file__).parent / "data" / "squared_relu.c"
kernels = Operators("tests.kernels")
x, scale = tensor("x"), real("scale")
SQUARED = op.Relu(x) * op.Relu(x)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests.kernels.SquaredRelu(x, scale=1), which is scale * max(x, 0)²."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = tmp_path_factory.mktemp("library") / "squared_relu.so"
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", SOURCE, "-o", path], check=True)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    body = "b = Relu(a) c = Mul(b, b) t = Constant <value_float = 2.0> () d = Mul(c, t)"
    return saved(tmp_path / "model.onnx", body)


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    return saved(tmp_path / "fused.onnx", "d = tests.kernels.SquaredRelu <scale = 2.0> (a)")


def saved(path: Path, body: str) -> Path:
    opsets = '"": 20, "tests.kernels": 1'
    text = f"<ir_version: 10, opset_import: [{opsets}]> g (float[n, 64] a) => (float[n, 64] d) {{ {body} }}"
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.fixture
def defined() -> Rule:
    define(kernels.SquaredRelu(x, scale=scale), SQUARED * scale, scale=1.0)
    return Rule("fuse_squared_relu", SQUARED * 2.0, kernels.SquaredRelu(x, scale=2.0))


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


# -- optimize ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rule_writes_a_kernel_of_the_user_s_own_and_the_check_runs_it(
    model: Path, library: Path, defined: Rule
) -> None:
    result = graphopt.optimize(model, rules=[defined], custom_ops=[library], cost="none")
    assert result.ok and operators(result.model) == ["SquaredRelu"]


def test_without_its_kernel_an_operator_is_not_written(model: Path, defined: Rule) -> None:
    result = graphopt.optimize(model, rules=[defined], cost="none")
    assert operators(result.model) == ["Relu", "Mul", "Mul"]
    said = "ONNX Runtime does not know tests.kernels.SquaredRelu of tensor(float) in opset 1; --custom-ops"
    assert any(said in note for note in result.report.notes)


def test_a_model_of_custom_operators_is_optimized_around_them(fused: Path, library: Path) -> None:
    proto = onnx.load(fused)
    proto.graph.node[0].output[0] = "e"
    proto.graph.node.append(onnx.helper.make_node("Identity", ["e"], ["d"]))
    result = graphopt.optimize(proto, custom_ops=[library], cost="none")
    assert result.ok and operators(result.model) == ["SquaredRelu"]


@pytest.mark.parametrize("dims", [None, {"n": 4}])
def test_what_reads_a_custom_operator_stops_neither_the_search_nor_fixed_sizes(
    library: Path, dims: dict[str, int] | None
) -> None:
    """What it makes has no type that is known, so the onnx package cannot infer the Reshape."""
    body = "h = tests.kernels.SquaredRelu(a) s = Constant <value_ints = [-1, 32]> () u = Reshape(h, s) d = Neg(u)"
    opsets = '"": 20, "tests.kernels": 1'
    text = f"<ir_version: 10, opset_import: [{opsets}]> g (float[n, 64] a) => (float[m, 32] d) {{ {body} }}"
    result = graphopt.optimize(parser.parse_model(text), custom_ops=[library], dims=dims, seconds=3)
    assert result.ok and not any("cannot be" in note for note in result.report.notes)


def test_a_definition_that_the_library_s_kernel_contradicts_is_refused_with_an_instance(
    model: Path, library: Path
) -> None:
    other = Operators("tests.kernels").SquaredRelu
    define(other(x, scale=scale, power=3), op.Relu(x) * SQUARED * scale, scale=1.0)  # it knows no power
    rule = Rule("fuse_cubed_relu", op.Relu(x) * SQUARED, other(x, power=3))
    assert graphopt.optimize(model, rules=[rule], cost="none").ok  # nobody can be asked
    with pytest.raises(ProofError, match=r"tests.kernels.SquaredRelu is not what its definition says: values differ"):
        graphopt.optimize(model, rules=[rule], custom_ops=[library], cost="none")


def test_what_a_kernel_makes_of_nan_is_asked_of_it(library: Path, defined: Rule) -> None:
    assert prove(defined).claim_text == "proved, reassociates"
    with ort.registered_custom_ops([library]):  # it makes 0 of NaN, and Relu does not
        assert prove(defined).claim_text == "proved, reassociates, finite"


# -- other commands ----------------------------------------------------------------------------------------------------


def test_models_with_custom_operators_are_timed_and_profiled(model: Path, fused: Path, library: Path) -> None:
    with ort.registered_custom_ops([library]):
        (case,) = run_benchmark([model, fused], SessionSetting(), dims={"n": 8}, seconds=0.0).cases
    assert len(case.timings) == 2
    done = run("inspect", fused, "--profile", "--custom-ops", library)
    assert done.exit_code == 0 and "SquaredRelu" in done.stdout, done.output


def test_models_with_custom_operators_are_compared(model: Path, fused: Path, library: Path) -> None:
    assert run("compare", model, fused, "--custom-ops", library).exit_code == 0
    assert run("compare", model, fused).exit_code == 3


def test_verify_asks_the_kernels_of_a_library(tmp_path: Path, library: Path) -> None:
    rules = tmp_path / "wrong.py"
    rules.write_text(
        "from graphopt.rule import Operators, Rule, define, op, tensor\n"
        "x, wrong = tensor('x'), Operators('tests.kernels').SquaredRelu\n"
        "define(wrong(x, power=5), op.Relu(x) * 3.0)\n"
        "RULES = (Rule('fuse_wrong', op.Relu(x) * 3.0, wrong(x, power=5)),)\n"
    )
    assert run("verify", rules, "--quiet").exit_code == 0
    done = run("verify", rules, "--custom-ops", library)
    assert done.exit_code == 3 and "is not what its definition says" in done.stdout, done.output


# -- libraries ---------------------------------------------------------------------------------------------------------


def test_what_is_timed_with_a_library_is_kept_by_what_is_in_it(library: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.so", tmp_path / "other.so"
    shutil.copy(library, copy)
    other.write_bytes(library.read_bytes() + b"\0")
    found = []
    for given in ((), (library,), (copy,), (copy, library), (other,)):
        with ort.registered_custom_ops(given):
            found.append(environment_key(SessionSetting()))
    without, own, copied, both, another = found
    assert own == copied == both and len({without, own, another}) == 3


@pytest.mark.slow
def test_workers_have_the_libraries_of_the_process_that_asks_them(library: Path, fused: Path) -> None:
    feeds = {"a": np.full((1, 64), 3, np.float32)}
    with ort.registered_custom_ops([library]), ProcessPool(1) as workers:
        ((_, (found,)),) = workers.imap_unordered(partial(_ran, feeds=feeds), [str(fused)])
    assert (found == 18).all()


def _ran(path: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(ort.make_cpu_session(path).run(None, feeds))


def test_what_is_no_library_is_said_in_one_line(model: Path, library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(library.read_bytes() + b"\0")
    for given, said in (
        ([tmp_path / "absent.so"], r"absent.so is no library of custom operators: No such file"),
        ([SOURCE], r"squared_relu.c is no library of custom operators: Failed to load library .* header"),
        ([library, other], r"squared_relu.so, .*other.so cannot be used together: .*Conflicting"),
    ):
        options = [word for path in given for word in ("--custom-ops", path)]
        with pytest.raises(UsageError, match=said):
            graphopt.optimize(model, custom_ops=given)
        done = run("optimize", model, tmp_path / "out.onnx", *options)
        assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1 and not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("given", ["libmy.so", Path("libmy.so"), [b"libmy.so"], [None]])
def test_libraries_are_a_list_of_paths(given: Any) -> None:
    with pytest.raises(UsageError, match="custom_ops is a list of paths"):
        Options(custom_ops=given)


def test_the_code_that_opens_a_session_registers_the_libraries(library: Path) -> None:
    code = SessionSetting(threads=1).python_code("fast.onnx")
    assert "register_custom_ops_library" not in code
    with ort.registered_custom_ops([library]):
        assert f"options.register_custom_ops_library({str(library.resolve())!r})\n" in SessionSetting().python_code("a")
