"""Who judges a model: ONNX Runtime, `onnx.reference` where that has no kernel, and nobody where it is invalid."""

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.cli.main import app
from graphopt.report.report import Report


def model(text: str, inputs: str = "float[b,3,4,4] x", output: str = "float[b,c,h,w] y") -> ModelProto:
    """A model whose node that matters has no name, behind one that `optimize` removes."""
    head = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]>'
    return onnx.parser.parse_model(f"{head} g ({inputs}) => ({output}) {{ v = Identity(x) {text} }}")


def constant(value: str, type_: str, sizes: str = "") -> str:
    return f"k = Constant<value = {type_}{sizes} {{{value}}}>()"


BRANCHES = """y = If(c) <then_branch = t () => (float[b,3,4,4] p) {{ p = Neg(v) }},
    else_branch = e () => ({0} q) {{ q = Cast<to = {1}>(v) }}>"""
BODY = """y = Loop(n, , v) <body = l (int64 i, bool c, float[b,3,4,4] s) => (bool d, float16[b,3,4,4] r)
    { d = Identity(c) r = Cast<to = 10>(s) }>"""
HALF = "float16[b,3,4,4] x"

INVALID = {
    "scales of Resize in half precision": (
        model(
            f"{constant('1, 1, 2, 2', 'float16', '[4]')} y = Resize(v, , k)", inputs=HALF, output="float16[b,3,8,8] y"
        ),
        "parameter (k) of operator (Resize) in node (y)",
    ),
    "a bound of Clip in half precision": (model(f"{constant('0', 'float16')} y = Clip(v, k)"), "Optype (Clip)"),
    "a bound of Clip that is an integer": (model(f"{constant('0', 'int64')} y = Clip(v, k)"), "Optype (Clip)"),
    "Gemm of bytes": (model("y = Gemm(v, v)", inputs="int8[4,4] x", output="int8[4,4] y"), "(Gemm) in node (y)"),
    "Conv of floats by halves": (
        model(f"{constant('1, 2, 3', 'float16', '[1,3,1,1]')} y = Conv(v, k)"),
        "Optype (Conv)",
    ),
    "axes of 32 bits": (
        model(f"{constant('1', 'int32', '[1]')} y = ReduceSum(v, k)"),
        "operator (ReduceSum) in node (y)",
    ),
    "a condition that is an integer": (model("y = Where(n, v, v)", inputs="int64 n, float[b,3,4,4] x"), "(Where)"),
    "branches of two types": (
        model(BRANCHES.format("float16[b,3,4,4]", 10), inputs="bool c, float[b,3,4,4] x"),
        "Node (y) Op (If)",
    ),
    "a loop that changes the type": (model(BODY, inputs="int64 n, float[b,3,4,4] x"), "Node (y) Op (Loop)"),
    "an attribute that there is not": (model("y = Relu<alpha = 2>(v)"), "Unrecognized attribute: alpha"),
    "an operator that is no more": (
        model(f"{constant('1, 1, 2, 2', 'float', '[4]')} y = Upsample(v, k)"),
        "Upsample is deprecated",
    ),
    "an operator that is not yet": (model("y = Gelu(v)"), "No Op registered for Gelu"),
    "a sum of other sizes": (
        model(f"{constant('1, 2, 3', 'float', '[3]')} y = Add(v, k)"),
        "Node (y) Op (Add) [ShapeInferenceError]",
    ),
}


@pytest.mark.parametrize(("given", "reason"), INVALID.values(), ids=INVALID)
def test_what_no_onnxruntime_loads_is_refused(given: ModelProto, reason: str) -> None:
    found = compare_models(given, given)
    assert not found.legal and reason in found.reason and not found.oracle
    for strict in (False, True):
        with pytest.raises(ModelError) as error:
            graphopt.optimize(given, cost="none", strict=strict)
        assert reason in str(error.value) and "\n" not in str(error.value)
    assert graphopt.optimize(given, cost="none", check=False).report.comparison is None


def test_an_invalid_model_is_named_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    path, written = tmp_path / "half.onnx", tmp_path / "out.onnx"
    onnx.save(INVALID["scales of Resize in half precision"][0], path)
    done = CliRunner().invoke(app, ["optimize", str(path), str(written), "--cost", "none", "--quiet"])
    assert done.exit_code == 1 and not written.exists()
    (line,) = done.stderr.splitlines()
    assert "half.onnx: ONNX Runtime refuses the model: This is an invalid model" in line
    assert line.endswith(". --no-check (check=False) writes it unchecked")


def test_an_invalid_original_is_not_repaired_in_silence() -> None:
    given = INVALID["a bound of Clip that is an integer"][0]
    found = compare_models(given, model("y = Relu(v)"))
    assert found.verdict is EqualityVerdict.SKIPPED and not found.legal and not found.ok


UNIMPORTED = {
    "a node": "g (float[2] x) => (float[2] y) { y = bar.Foo(x) }",
    "one that is dead": "g (float[2] x) => (float[2] y) { d = bar.Foo(x) y = Neg(x) }",
    "one beside what is rewritten": "g (float[2] x) => (float[2] y) { i = Identity(x) y = bar.Foo(i) }",
    "two of two domains": "g (float[2] x) => (float[2] y) { a = bar.Foo(x) y = baz.Foo(a) }",
    "one in a branch": """g (float[2] x, bool c) => (float[2] y) { y = If(c) <then_branch = t () => (float[2] p)
        { p = bar.Foo(x) }, else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
    "one in a loop": """g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x) <body = b
        (int64 i, bool c, float[2] s) => (bool d, float[2] r) { d = Identity(c) r = bar.Foo(s) }> }""",
    "one in a function": """g (float[2] x) => (float[2] y) { y = own.F(x) }
        <domain: "own", opset_import: ["": 20]> F (x) => (y) { y = bar.Foo(x) }""",
    "a function": """g (float[2] x) => (float[2] y) { y = bar.F(x) }
        <domain: "bar", opset_import: ["": 20]> F (x) => (y) { y = Relu(x) }""",
}


@pytest.mark.parametrize("inline", [True, False], ids=["inlined", "kept"])
@pytest.mark.parametrize("text", UNIMPORTED.values(), ids=UNIMPORTED)
def test_a_domain_that_is_not_imported_makes_a_model_invalid(text: str, inline: bool) -> None:
    given = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "own" : 1]> {text}')
    assert not compare_models(given, given).legal
    with pytest.raises(ModelError, match=r"No opset (import for|registered for) domain '?ba[rz]"):
        graphopt.optimize(given, cost="none", inline_functions=inline)


MISSING = {
    "integers of 16 bits": model("y = Relu(v)", inputs="int16[3] x", output="int16[3] y"),
    "a mean of unsigned integers": model("y = ReduceMean(v)", inputs="uint64[3] x", output="uint64[1] y"),
    "complex numbers": model("y = Identity(v)", inputs="complex64[3] x", output="complex64[3] y"),
    "a layout that the kernel lacks": model(
        "w = Constant<value = float[1,2,1] {1, 2}>() r = Constant<value = float[1,2,2] {1, 2, 3, 4}>()"
        " y = RNN<layout = 1, hidden_size = 2>(v, w, r)",
        inputs="float[1,2,1] x",
        output="float[1,2,1,2] y",
    ),
}


@pytest.mark.parametrize("given", MISSING.values(), ids=MISSING)
def test_the_reference_judges_where_a_kernel_is_missing_and_is_named(given: ModelProto) -> None:
    result = graphopt.optimize(given, cost="none")
    found = result.report.comparison
    assert result.ok and found is not None and found.legal
    assert found.oracle.startswith("onnx.reference ")
    assert "as in ONNX Runtime the original cannot be loaded: " in found.oracle
    assert Report.from_json(result.report.to_json()).comparison == found


def test_what_is_only_not_known_is_not_called_invalid() -> None:
    found = compare_models(model("y = own.Magic(v)"), model("y = own.Magic(v)"))
    assert found.verdict is EqualityVerdict.SKIPPED and found.legal


def test_inputs_that_cannot_be_fed_do_not_make_a_model_legal() -> None:
    head = '<ir_version: 10, opset_import: ["" : 21]> g (int4[3] x) => (float[3] y)'
    text = "{{ f = Cast<to = 1>(x) h = Cast<to = 10>(x) y = Add({}, f) }}"
    legal, invalid = (onnx.parser.parse_model(f"{head} {text.format(name)}") for name in "fh")
    assert compare_models(legal, legal).oracle.endswith(", as ONNX Runtime takes no input of INT4")
    assert not compare_models(invalid, invalid).legal
