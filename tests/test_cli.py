"""The command line, as a user types it. Most run in process; what concerns the process itself runs in one."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import Result

from graphopt.base.option_values import SETTINGS
from graphopt.cli.option_flags import COMMANDS
from graphopt.report.report import Report
from graphopt.runtime.measure import TimingSamples
from tests.commands import run
from tests.text import parse


def optimize(*args: object) -> Result:
    """Without search and timing, which have tests of their own."""
    return run(*args, "--cost", "none")


def process(*args: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "graphopt", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Conv + BatchNormalization + Dropout + Identity, with an open batch."""
    made = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[batch,3,8,8] image) => (float[batch,4,6,6] scores) {
            a = Conv(image, w)
            b = BatchNormalization(a, scale, shift, mean, var)
            c = Dropout(b)
            scores = Identity(c)
        }
    """)
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)), "scale": np.arange(1, 5), "shift": np.ones(4), "mean": np.ones(4)}
    for name, array in (weights | {"var": np.full(4, 2)}).items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    path = tmp_path / "net.onnx"
    onnx.save(made, path)
    return path


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


# -- optimize ----------------------------------------------------------------------------------------------------------


def test_optimize(model: Path, tmp_path: Path) -> None:
    done = optimize("optimize", model, tmp_path / "fast.onnx")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert operators(tmp_path / "fast.onnx") == ["Conv"]
    assert re.search(r"BatchNormalization +1 +0\n", done.stdout)
    assert re.search(r"fuse_bn_into_conv +1 +proved, reassociates(, finite)?\n", done.stdout)
    assert "equal: " in done.stdout


def test_optimize_may_be_left_out(model: Path, tmp_path: Path) -> None:
    assert optimize(model, tmp_path / "fast.onnx").exit_code == 0
    assert optimize("--quiet", model, tmp_path / "fast2.onnx").exit_code == 0
    assert operators(tmp_path / "fast.onnx") == operators(tmp_path / "fast2.onnx") == ["Conv"]


def test_a_model_may_be_optimized_in_place(model: Path) -> None:
    assert optimize(model, model).exit_code == 0
    assert operators(model) == ["Conv"]


def test_quiet_says_nothing(model: Path, tmp_path: Path) -> None:
    done = optimize(model, tmp_path / "fast.onnx", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_json_instead_of_a_table_and_in_a_file(model: Path, tmp_path: Path) -> None:
    done = optimize(model, tmp_path / "fast.onnx", "--json", "--report", tmp_path / "report.json")
    printed, written = Report.from_json(done.stdout), Report.from_json((tmp_path / "report.json").read_text())
    assert printed == written
    assert printed.before.ops["BatchNormalization"] == 1
    assert printed.after.file_bytes == (tmp_path / "fast.onnx").stat().st_size


@pytest.mark.parametrize(
    "form",
    [
        ["--skip", "fuse_bn_into_conv", "--skip", "eliminate_nop_dropout"],
        ["--skip", "fuse_bn_into_conv,eliminate_nop_dropout"],
        ["--skip", "fuse_bn_into_conv eliminate_nop_dropout"],
        ["--skip", "fuse_bn_into_conv", "eliminate_nop_dropout"],
        ["--skip=fuse_bn_into_conv", "--skip=eliminate_nop_dropout"],
    ],
)
@pytest.mark.parametrize("options_first", [True, False])
def test_rules_may_be_listed_in_any_form(model: Path, tmp_path: Path, form: list[str], options_first: bool) -> None:
    files = [model, tmp_path / "fast.onnx"]
    done = optimize(*(["optimize", *form, *files] if options_first else [*files, *form]))
    assert done.exit_code == 0, done.output
    assert operators(tmp_path / "fast.onnx")[:3] == ["Conv", "BatchNormalization", "Dropout"]


def test_decisions_are_told_where_that_is_wanted(model: Path, tmp_path: Path) -> None:
    told = optimize(model, tmp_path / "fast.onnx", "--verbose").stderr
    assert re.search(r"^graphopt: fuse_bn_into_conv: .*BatchNormalization.* -> Conv, at \S+$", told, re.MULTILINE)
    assert told.startswith("graphopt: load, ")
    assert re.search(r"^graphopt: check, \d\.\d s$", told, re.MULTILINE)
    told = optimize(model, tmp_path / "fast.onnx", "--debug").stderr
    assert "graphopt: eliminate_identity: Identity -> nothing\n" in told
    assert "\n\n" not in told


def test_only_one_rule(model: Path, tmp_path: Path) -> None:
    optimize(model, tmp_path / "fast.onnx", "--only", "fuse_bn_into_conv")
    assert operators(tmp_path / "fast.onnx") == ["Conv", "Dropout", "Identity"]


@pytest.mark.parametrize(
    "form",
    [
        ["--input-shape", "image:2,3,8,8"],
        ["--input-shape", "2,3,8,8"],
        ["--input-shape", "image:[2,?,8,-1]"],
        ["--overwrite-input-shape", "image:2,3,8,8"],
        ["--dim", "batch=2"],
    ],
)
def test_sizes_may_be_fixed(model: Path, tmp_path: Path, form: list[str]) -> None:
    done = optimize(model, tmp_path / "fast.onnx", *form)
    assert done.exit_code == 0, done.output
    shape = onnx.load(tmp_path / "fast.onnx").graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [2, 3, 8, 8]


def test_shapes_of_several_inputs_may_follow_one_flag(tmp_path: Path) -> None:
    path, out = tmp_path / "add.onnx", tmp_path / "out.onnx"
    text = "g (float[A,2] x, float[B,2] y) => (float[C,2] z) { z = Add(x, y) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), path)
    assert optimize(path, out, "--input-shape", "x:3,2", "y:1,2").exit_code == 0
    shapes = [value.type.tensor_type.shape for value in onnx.load(out).graph.input]
    assert [[dim.dim_value for dim in shape.dim] for shape in shapes] == [[3, 2], [1, 2]]


def test_the_check_may_use_given_inputs(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((5, 3, 8, 8), np.float32))
    done = optimize(model, tmp_path / "fast.onnx", "--input", f"image:{tmp_path / 'image.npy'}", "--json")
    found = Report.from_json(done.stdout).comparison
    assert found is not None
    assert found.bindings == ({"batch": 5},)


def test_the_check_may_be_left_out(model: Path, tmp_path: Path) -> None:
    done = optimize(model, tmp_path / "fast.onnx", "--no-check")
    assert done.exit_code == 0
    assert "check    not made" in done.stdout


def test_the_seed_is_the_checks(model: Path, tmp_path: Path) -> None:
    found = Report.from_json(optimize(model, tmp_path / "fast.onnx", "--seed", 7, "--json").stdout).comparison
    assert found is not None
    assert found.seeds[0] == 7


def test_weights_may_lie_beside_the_model(model: Path, tmp_path: Path) -> None:
    assert optimize(model, tmp_path / "fast.onnx", "--external-data").exit_code == 0
    assert (tmp_path / "fast.onnx.data").exists()
    assert run("compare", model, tmp_path / "fast.onnx").exit_code == 0


RULES = """
from graphopt.rule import Rule, op, tensor
x = tensor("x", "*a")
RULES = (Rule("turn_neg_into_abs", op.Neg(op.Neg(x)), op.Abs(x), why="This is wrong."),)
"""


@pytest.fixture
def wrong(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and a file with a rule that changes what it computes."""
    path, rules = tmp_path / "neg.onnx", tmp_path / "wrong.py"
    text = "g (float[9] x) => (float[9] z) { a = Neg(x) z = Neg(a) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), path)
    rules.write_text(RULES)
    return path, rules


def test_a_rule_of_ones_own(wrong: tuple[Path, Path]) -> None:
    _, rules = wrong
    text = run("rules", "turn_neg_into_abs", "--rules", rules).stdout
    assert 'Rule(\n    "turn_neg_into_abs",\n' in text and '    why="This is wrong.",\n)\n' in text
    assert "    no proof yet; `graphopt verify` makes one\n" in text


def test_a_wrong_rule_is_refused_with_its_counterexample(wrong: tuple[Path, Path], tmp_path: Path) -> None:
    path, rules = wrong
    done = optimize(path, tmp_path / "out.onnx", "--rules", rules)
    assert (done.exit_code, done.stdout) == (3, "")
    first, name, *example = done.stderr.splitlines()
    assert first.startswith("graphopt: error: a rule that is not proved is not applied")
    assert name == "turn_neg_into_abs  REFUTED"
    assert example
    assert all(line.startswith("    ") for line in example)
    assert not (tmp_path / "out.onnx").exists()


def test_a_wrong_trade_is_refused_as_a_wrong_rule_is(wrong: tuple[Path, Path], tmp_path: Path) -> None:
    path, rules = wrong
    rules.write_text(RULES.replace("RULES =", "TRADES ="))
    done = optimize(path, tmp_path / "out.onnx", "--rules", rules)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "turn_neg_into_abs  REFUTED" in done.stderr
    assert "pays in some models only" in run("rules", "--rules", rules).stdout.split("turn_neg_into_abs")[1]


def test_an_unverified_rule_is_marked_in_the_report(wrong: tuple[Path, Path], tmp_path: Path) -> None:
    path, rules = wrong
    options = ("--rules", rules, "--unverified", "--only", "turn_neg_into_abs")
    done = optimize(path, tmp_path / "out.onnx", *options, "--no-check")
    assert done.exit_code == 0, done.stderr
    assert re.search(r"turn_neg_into_abs +1 +not proved: refuted\n", done.stdout)


def test_a_wrong_result_is_found_traced_and_nothing_written(wrong: tuple[Path, Path], tmp_path: Path) -> None:
    path, rules = wrong
    out = tmp_path / "out.onnx"
    given = (path, out, "--rules", rules, "--unverified", "--only", "turn_neg_into_abs")
    done = optimize(*given, "--strict")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert "turn_neg_into_abs" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not out.exists()
    done = optimize(*given)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"note +the rule 'turn_neg_into_abs' was left out", done.stdout)
    assert re.match(r"graphopt: warning: the rule 'turn_neg_into_abs' was left out at 'z', 'a': with it, ", done.stderr)
    assert operators(out) == operators(path)


def test_exact_changes_no_bit(model: Path, tmp_path: Path) -> None:
    done = optimize(model, tmp_path / "fast.onnx", "--exact")
    assert done.exit_code == 0, done.output
    assert operators(tmp_path / "fast.onnx") == ["Conv", "BatchNormalization"]
    assert "equal: the same in every bit" in done.stdout


# -- optimize, with a search -------------------------------------------------------------------------------------------


@pytest.fixture
def negated(tmp_path: Path) -> Path:
    """A model of which ONNX Runtime does not make what graphopt does."""
    path = tmp_path / "negated.onnx"
    onnx.save(parse("float[batch,64] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[batch,64] y"), path)
    return path


def test_where_onnx_runtime_makes_the_same_of_both_there_is_nothing_to_time(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "fast.onnx", "--threads", 1, "--json")
    timing = Report.from_json(done.stdout).timing
    assert timing is not None and timing.speedup is None and not timing.is_gain
    assert timing.untimed == "no gain: ONNX Runtime makes the same of both models, so there is nothing to time"
    assert operators(tmp_path / "fast.onnx") == ["Conv"]


def test_the_result_is_timed(negated: Path, tmp_path: Path) -> None:
    done = run(negated, tmp_path / "fast.onnx", "--seconds", 20, "--threads", 1, "--json")
    assert done.exit_code == 0, done.output
    report = Report.from_json(done.stdout)
    assert json.loads(report.to_json()) == json.loads(done.stdout)
    assert report.timing is not None
    assert (report.timing.provider, report.timing.threads) == ("CPUExecutionProvider", 1)
    if operators(tmp_path / "fast.onnx") == ["Exp"]:  # else it was slower by noise, and the original came back
        assert report.timing.speedup is not None
        assert report.timing.speedup.rounds >= 7
        assert [latency.sizes for latency in report.timing.latencies] == [{"batch": 1}]


def test_a_dim_with_several_sizes_stays_open_and_is_timed_at_each(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "fast.onnx", "--seconds", 2, "--dim", "batch=1,4", "--json")
    assert done.exit_code == 0, done.output
    timing = Report.from_json(done.stdout).timing
    assert timing is not None
    assert [latency.sizes for latency in timing.latencies] in ([{"batch": 1}, {"batch": 4}], [])
    assert onnx.load(tmp_path / "fast.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.slow
def test_what_was_timed_is_timed_again_where_that_is_asked_for(
    negated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine and versions of the model: all that is timed takes turns."""
    timed: list[int] = []

    def interleaved(runs: Sequence[object], *_: object, **__: object) -> tuple[TimingSamples, ...]:
        timed.append(len(runs))
        return (TimingSamples((1.0,) * 15),) * len(runs)

    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    monkeypatch.setattr("graphopt.runtime.machine.time_interleaved", interleaved)
    asked = []
    for options in ([], [], ["--fresh"], ["--cached"]):
        done = run(negated, tmp_path / "fast.onnx", "--no-check", *options)
        assert done.exit_code == 0, done.output
        asked.append(len(timed))
        timed.clear()
    assert asked == [asked[0], 0, asked[0], 0]
    assert asked[0] > 3


def test_an_estimate_runs_nothing(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "fast.onnx", "--cost", "analytic", "--no-check")
    assert done.exit_code == 0, done.output
    assert "not measured: chosen by an estimate" in " ".join(done.stdout.split())


def test_a_speedup_that_is_required_and_missed_writes_nothing(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(model, tmp_path / "fast.onnx", "--seconds", 1, "--require-speedup", 1000, "--report", report)
    assert done.exit_code == 4
    assert Report.from_json(report.read_text()).counts["fuse_bn_into_conv"] == 1
    assert re.fullmatch(r"graphopt: error: .*net\.onnx: .*speedup .*1000 is required.*\n", done.stderr)
    assert not (tmp_path / "fast.onnx").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--require-speedup", "1.1", "--cost", "none"], "--require-speedup needs --cost measured"),
        (["--cost", "guessed"], "'guessed' is not one of 'measured', 'analytic', 'none'"),
        (["--provider", "cuda"], "this onnxruntime has no CUDAExecutionProvider"),
        (["--provider", "gpu"], "this onnxruntime has no gpu, only "),
        (["--provider", "gpu"], "; did you mean 'cuda'?"),
        (["--dim", "batch=0"], "'batch=0': a size is 1 or more"),
        (["--dim", "batch=1,0"], "'batch=1,0': a size is 1 or more"),
        (["--dim", "bach=1,2"], "there is no open dim 'bach'; did you mean 'batch'?"),
        (["--seconds", "-1"], "--seconds"),
        (["--seconds", "0"], "a search needs more than 0 seconds (cost none: no search and no timing)"),
        (["--provider-option", "=b"], "'=b' is not of the form key=value"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_searches_that_cannot_be(model: Path, tmp_path: Path, options: list[str], line: str) -> None:
    done = run(model, tmp_path / "fast.onnx", *options)
    assert done.exit_code == 2, done.output
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "fast.onnx").exists()


def test_a_value_of_an_option_of_the_provider_may_have_an_equals_sign() -> None:
    assert SETTINGS.parse(["flags=a=b", "level=3"]) == {"flags": "a=b", "level": "3"}


# -- the other commands ------------------------------------------------------------------------------------------------


def test_compare_agrees(model: Path) -> None:
    done = run("compare", model, model)
    assert done.exit_code == 0
    assert re.search(r"scores +FLOAT +0 +0 .* ok\n", done.stdout)
    assert "run        seed 1, wide values, batch=3\n" in done.stdout


def test_compare_differs(model: Path, tmp_path: Path) -> None:
    other = onnx.load(model)
    other.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.zeros(4, np.float32), "shift"))
    onnx.save(other, tmp_path / "other.onnx")
    done = run("compare", model, tmp_path / "other.onnx")
    assert done.exit_code == 3
    assert "DIFFERENT" in done.stdout
    assert re.fullmatch(r"graphopt: error: .*net.onnx and .*other.onnx differ: output 'scores': .*\n", done.stderr)


@pytest.mark.parametrize(
    ("option", "before", "after"),
    [
        ("--exact", "y = Mul(x, 0.1)", "y = Div(x, 10.0)"),
        ("--keep-nonfinite", "y = Clip(x)", "y = Identity(x)"),
    ],
)
def test_compare_takes_what_optimize_promises(tmp_path: Path, option: str, before: str, after: str) -> None:
    for name, body in (("before.onnx", before), ("after.onnx", after)):
        onnx.save(parse("float[8] x", body, outputs="float[8] y"), tmp_path / name)
    assert run("compare", tmp_path / "before.onnx", tmp_path / "after.onnx").exit_code == 0
    assert run("compare", tmp_path / "before.onnx", tmp_path / "after.onnx", option).exit_code == 3


def test_compare_cannot_tell(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[2] x) => (float[2] z) { z = acme.Magic(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "custom.onnx")
    done = run("compare", tmp_path / "custom.onnx", tmp_path / "custom.onnx")
    assert done.exit_code == 1
    assert "cannot be compared: the original cannot be loaded" in done.stderr
    assert done.stderr.endswith("; --custom-ops registers a library of kernels\n")


def test_compare_as_json(model: Path) -> None:
    data = json.loads(run("compare", model, model, "--json", "--dim", "batch=4").stdout)
    assert data["verdict"] == "equal"
    assert data["cases"][0] == {"seed": 0, "binding": {"batch": 4}, "values": "normal", "overridden": []}


def test_inspect(model: Path) -> None:
    done = run("inspect", model)
    assert done.exit_code == 0
    assert "input   image  FLOAT[batch,3,8,8]\n" in done.stdout
    assert re.search(r"BatchNormalization +1\n", done.stdout)
    assert "weights     124 parameters in 5 initializers, 496 B\n" in done.stdout
    data = json.loads(run("inspect", model, "--json").stdout)
    assert data["model"]["ops"]["Conv"] == 1
    assert data["unknown"] == []


def test_rules_are_listed_with_algebra_and_reason() -> None:
    text = run("rules").stdout
    assert (
        "replace_max_with_clip  (proved, reassociates, finite)\n    op.Max(x, low)  ->  op.Clip(x, low)  when=" in text
    )
    assert "fold_constants  (a pass)\n    What depends on constants alone" in text


def test_a_rule_in_full() -> None:
    text = run("rules", "fuse_bn_into_conv").stdout
    assert '\nw = const("w", "M I *k")\n' in text
    assert "    w  a constant [M I *k]\n" in text
    assert "\n    after\n    Conv  …\n    ├─ x [N C *s]\n    ├─ = w * Reshape(" in text
    proved = r"    fuse_bn_into_conv: proved, reassociates.*, for all sizes; ranks \d–\d, .*; \d+ cases, [\d.]+ s\n"
    assert re.search(proved, text)
    data = json.loads(run("rules", "fuse_bn_into_conv", "--json").stdout)
    assert (data["name"], data["proof"]["verdict"]) == ("fuse_bn_into_conv", "PROVED")


def test_the_rules_of_a_file_are_listed_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    rule = 'Rule("thrice", op.Neg(op.Neg(op.Neg(x))), op.Neg(x), why="One is enough.")'
    path.write_text(f"from graphopt.rule import Rule, op, tensor\nx = tensor('x')\nRULES = ({rule},)\n")
    shown = run("rules", path).stdout
    assert shown == "thrice  (no proof yet)\n    op.Neg(op.Neg(op.Neg(x)))  ->  op.Neg(x)\n    One is enough.\n"
    (listed,) = json.loads(run("rules", path, "--json").stdout)
    assert (listed["name"], listed["proof"]) == ("thrice", "no proof yet")
    missing = run("rules", tmp_path / "none.py")
    assert missing.exit_code == 2 and "none.py" in missing.stderr


def test_a_rule_without_a_reason_states_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    rule = 'Rule("thrice", op.Neg(op.Neg(op.Neg(x))), op.Neg(x))'
    path.write_text(f"from graphopt.rule import Rule, op, tensor\nx = tensor('x')\nRULES = ({rule},)\n")
    declared = 'x = tensor("x")\nRule(\n    "thrice",\n    op.Neg(op.Neg(op.Neg(x))),\n    op.Neg(x),\n)\n\n'
    assert run("rules", "thrice", "--rules", path).stdout.startswith(declared)


def test_rules_as_json() -> None:
    listed = json.loads(run("rules", "--json").stdout)
    assert {"name": "fold_constants", "algebra": None} in [{k: item[k] for k in ("name", "algebra")} for item in listed]
    assert all(item["why"] for item in listed)


def test_the_demo_names_its_models() -> None:
    names = run("demo", "--list").stdout.split()
    assert names[0] == "mobileone"
    assert {"resnet50", "squeezenet"} <= set(names)


@pytest.mark.slow
def test_the_demo_optimizes_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.cli.demo.SECONDS", {"squeezenet": 1.0})
    done = run("demo", "squeezenet", tmp_path / "out.onnx")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.onnx").exists()
    assert "equal: " in done.stdout


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["--help"], [], *[[command, "--help"] for command in COMMANDS]])
def test_help(args: list[str]) -> None:
    done = run(*args)
    assert done.exit_code == 0
    assert "Usage: graphopt" in done.stdout
    assert "…" not in done.stdout


def test_version() -> None:
    done = process("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"graphopt \d+\.\d+\.\d+\n", done.stdout)


def test_that_there_is_no_model_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom graphopt.cli.main import app\ntry:\n    app(['optimize', 'none.onnx', 'o.onnx'])\n"
        "finally:\n    print([name for name in ('onnx', 'onnxruntime', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "graphopt: error: none.onnx does not exist\n")
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_help_is_quick() -> None:
    code = """if True:
        import sys
        from graphopt.cli.main import main
        sys.argv[1:] = ["--help"]
        try:
            main()
        finally:
            print(*sys.modules, file=sys.stderr)
    """
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "graphopt.cli.main" in loaded
    assert not {"onnx", "numpy", "networkx", "onnxruntime", "rich", "z3", "graphopt.ir.graph"} & set(loaded)


@pytest.mark.slow
def test_a_pipe_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m graphopt rules | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.slow
def test_a_terminal_without_greek_gets_question_marks(model: Path) -> None:
    done = process("compare", model, model, env={"PYTHONIOENCODING": "ascii", "PATH": ""})
    assert done.returncode == 0, done.stderr
    assert "4?(???(16+L)" in done.stdout
