"""Bad input, a bad disk, an impatient user: one clear line, the right exit code, nothing half-written, no traceback."""

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser
from typer.testing import CliRunner

from graphopt.cli.main import app
from graphopt.io import onnx_io


def model(graph: str, weights: Mapping[str, np.ndarray] | None = None, **options: str) -> ModelProto:
    imports = options.get("imports", '"" : 17')
    made = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]> {graph}")
    for name, array in (weights or {}).items():
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


GOOD = "g (float[batch,4] x) => (float[batch,4] z) { a = Add(x, w) z = Identity(a) }"
WEIGHTS = {"w": np.ones(4, np.float32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for outputs, beside `good.onnx`."""
    onnx.save(model(GOOD, WEIGHTS), tmp_path / "good.onnx")
    (tmp_path / "out").mkdir()
    return tmp_path


def refused(folder: Path, *args: object, code: int, line: str) -> None:
    """The command ends in this exit code and this line on stderr, and leaves nothing behind."""
    before = sorted(folder.rglob("*"))
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert re.fullmatch(f"graphopt: error: .*{line}.*\n", done.stderr), done.stderr
    assert sorted(folder.rglob("*")) == before


# -- files -------------------------------------------------------------------------------------------------------------

FILES: Mapping[str, tuple[bytes, str]] = {
    "an empty file": (b"", "is empty"),
    "a text": (b"dear diary,\n", "is a text file, not an ONNX model"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01", "is not an ONNX model, or it is cut short"),
    "a zip archive": (b"PK\x03\x04\x14\0\0\0\x08\0", "is not an ONNX model, or it is cut short"),
}


@pytest.mark.parametrize(("data", "line"), FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("command", ["optimize", "inspect", "compare"])
def test_what_is_no_model(folder: Path, command: str, data: bytes, line: str) -> None:
    path = folder / "bad.onnx"
    path.write_bytes(data)
    rest = {"optimize": [folder / "out/o.onnx"], "inspect": [], "compare": [folder / "good.onnx"]}
    refused(folder, command, path, *rest[command], code=1, line=f"bad.onnx {line}")


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_truncated_model(folder: Path, part: float) -> None:
    whole = (folder / "good.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(whole[: int(len(whole) * part)])
    refused(
        folder, folder / "cut.onnx", folder / "out/o.onnx", code=1, line="cut.onnx is not an ONNX model, or it is cut"
    )


def test_a_missing_file(folder: Path) -> None:
    refused(folder, folder / "nope.onnx", folder / "out/o.onnx", code=1, line="nope.onnx does not exist")


def test_a_folder_instead_of_a_file(folder: Path) -> None:
    refused(folder, "compare", folder, folder, code=1, line="is a folder, not a model")
    refused(folder, "optimize", folder / "out", folder / "o.onnx", code=2, line="there is no .onnx file in")


def external(folder: Path) -> Path:
    """A model whose weights lie in `big.onnx.data`."""
    made = model("g (float[1,64] x) => (float[1,64] z) { z = MatMul(x, w) }", {"w": np.eye(64, dtype=np.float32)})
    onnx_io.save_model(onnx_io.load_model(made), folder / "big.onnx", external=True)
    return folder / "big.onnx"


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 1000)


@pytest.mark.parametrize(("damage", "line"), [(remove, "No such file"), (cut, "which has only 1000")])
def test_damaged_external_data(folder: Path, damage: Callable[[Path], None], line: str) -> None:
    path = external(folder)
    damage(path.with_name("big.onnx.data"))
    refused(folder, path, folder / "out/o.onnx", code=1, line=f"tensor 'w' .*big.onnx.data.*{line}")


def test_external_data_that_leaves_the_folder(folder: Path) -> None:
    path = external(folder)
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data[0].value = "../secret"
    onnx.save(made, path)
    refused(folder, path, folder / "out/o.onnx", code=1, line="'../secret', outside the model's folder")


# -- graphs ------------------------------------------------------------------------------------------------------------

GRAPHS: Mapping[str, tuple[str, str]] = {
    "a cycle": (
        "g (float[2] x) => (float[2] z) { a = Add(x, b) b = Neg(a) z = Neg(b) }",
        "cycle: .*Add 'a' -> .*Neg 'b'|cycle: .*Neg 'b' -> .*Add 'a'",
    ),
    "an operand from nowhere": (
        "g (float[2] x) => (float[2] z) { z = Add(x, nowhere) }",
        "node Add 'z' reads 'nowhere', which nothing defines",
    ),
    "an output from nowhere": (
        "g (float[2] x) => (float[2] z, float[2] y) { z = Neg(x) }",
        "output 'y' is defined by no node",
    ),
    "a name that is used twice": (
        "g (float[2] x) => (float[2] z) { z = Neg(x) z = Abs(x) }",
        "node Abs 'z' defines 'z' a second time",
    ),
    "operands of two types": (
        "g (float[2] x, int64[2] y) => (float[2] z) { z = Add(x, y) }",
        "ONNX Runtime refuses the model: .*Add",
    ),
    "shapes that do not fit": (
        "g (float[2,3] x, float[4,5] y) => (float[2,5] z) { z = MatMul(x, y) }",
        "ONNX Runtime refuses the model: .*MatMul",
    ),
    "a type that the operator does not take": (
        "g (string[2] x) => (string[2] z) { z = Neg(x) }",
        "ONNX Runtime refuses the model: .*Neg",
    ),
    "strides of another rank than the window": (
        "g (float[1,1,5,5] x) => (float[1,1,3,3] z) { z = MaxPool<ceil_mode=1, kernel_shape=[2,2], strides=[2]>(x) }",
        "ONNX Runtime refuses the model: .*MaxPool",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("graph", "line"), GRAPHS.values(), ids=GRAPHS.keys())
def test_a_graph_that_contradicts_itself(folder: Path, graph: str, line: str) -> None:
    onnx.save(model(graph), folder / "bad.onnx")
    refused(folder, folder / "bad.onnx", folder / "out/o.onnx", code=1, line=f"bad.onnx.*({line})")


def test_a_model_without_an_opset(folder: Path) -> None:
    made = model(GOOD, WEIGHTS)
    del made.opset_import[:]
    onnx.save(made, folder / "bad.onnx")
    refused(folder, folder / "bad.onnx", folder / "out/o.onnx", code=1, line="bad.onnx: the model states no opset")


# -- options -----------------------------------------------------------------------------------------------------------

OPTIONS: Mapping[str, tuple[list[str], str]] = {
    "a shape that contradicts the model": (["--input-shape", "x:2,5"], "axis 1 of input 'x' is 4 in the model"),
    "a shape of another rank": (["--input-shape", "x:2,4,1"], "input 'x'"),
    "a shape of no input": (["--input-shape", "y:2,4"], "the model has no input 'y'; it has 'x'"),
    "a shape that is none": (["--input-shape", "x:2,,4"], "'2,,4' is not of the form name:1,3,224,224"),
    "a dim that is none": (["--dim", "batch=many"], "'batch=many' is not of the form batch=1"),
    "a dim without a size": (["--dim", "batch"], "'batch' is not of the form batch=1"),
    "a dim that the model does not have": (["--dim", "bach=2"], "no size named 'bach'; they have .*batch"),
    "an unknown rule": (["--skip", "fuse_bn_into_cov"], "'fuse_bn_into_cov'; did you mean 'fuse_bn_into_conv'"),
    "an unknown rule that is like none": (["--only", "xyzzy"], "no rule or pass 'xyzzy'; `graphopt rules` lists them"),
    "an opset that is none": (["--target-opset", "new"], "'new' is no opset: give a number, latest or auto"),
    "a file of rules that is missing": (["--rules", "nope.py"], "nope.py: no such file of rules"),
    "an input that is missing": (["--input", "x:nope.npy"], "nope.npy holds no array for input 'x'"),
    "an option that does not exist": (["--fast"], "No such option"),
    "a seed that is no number": (["--seed", "x"], "Invalid value for '--seed'"),
    "a third file": (["third.onnx"], "unexpected extra argument"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "line"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_that_cannot_be(folder: Path, options: list[str], line: str) -> None:
    refused(folder, folder / "good.onnx", folder / "out/o.onnx", *options, code=2, line=line)


def test_a_shape_without_a_name_needs_a_single_input(folder: Path) -> None:
    onnx.save(model("g (float[2] x, float[2] y) => (float[2] z) { z = Add(x, y) }"), folder / "two.onnx")
    line = r"the model has 2 inputs: say which, as in x:1,3,224,224"
    refused(folder, folder / "two.onnx", folder / "out/o.onnx", "--input-shape", "2", code=2, line=line)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("broken.py", "RULES = (", "broken.py: SyntaxError"),
        ("empty.py", "", "empty.py: no RULES"),
        ("broken.jsonl", '{"name": "half"', "broken.jsonl:1: "),
        ("rules.txt", "", "rules are in a .py file with RULES, or a .jsonl file"),
    ],
)
def test_rules_that_are_none(folder: Path, name: str, text: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as where no variable says so
    (folder / name).write_text(text)
    refused(folder, folder / "good.onnx", folder / "out/o.onnx", "--rules", folder / name, code=2, line=line)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["optimise", "in.onnx", "out.onnx"], "there is no command 'optimise'; did you mean 'optimize'?"),
        (["frobnicate"], "there is no command 'frobnicate'; there is optimize, check, compare"),
        (["optimize"], "Missing argument 'MODEL|FOLDER'"),
        (["demo", "resnet"], "there is no model 'resnet'; did you mean 'resnet50'?"),
        (["rules", "fuse_bn"], "there is no rule or pass 'fuse_bn'; did you mean "),
    ],
)
def test_commands_that_cannot_be(folder: Path, args: list[str], line: str) -> None:
    refused(folder, *args, code=2, line=re.escape(line))


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("nowhere/o.onnx", "nowhere is missing"),
        ("good.onnx/o.onnx", "good.onnx is no folder"),
        ("out", "it is a folder"),
        ("é" * 116 + ".onnx", "its name has more than 236 bytes"),
        ("n" * 300, "its name has more than 236 bytes"),
    ],
)
def test_an_output_that_cannot_be(folder: Path, target: str, line: str) -> None:
    refused(folder, folder / "good.onnx", folder / target, code=1, line=f"{target} cannot be written: .*{line}")


def test_a_report_that_cannot_be_is_refused_before_the_work(folder: Path) -> None:
    options = ["--report", folder / "nowhere/r.json"]
    refused(folder, folder / "good.onnx", folder / "out/o.onnx", *options, code=1, line="nowhere is missing")


def small_files_only() -> None:
    """In the child: files end at 10 KB, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--external-data"]])
def test_a_full_disk(folder: Path, options: list[str]) -> None:
    graph = "g (float[1,64] x) => (float[1,64] z) { a = Identity(x) z = MatMul(a, w) }"
    onnx.save(model(graph, {"w": np.ones((64, 64), np.float32)}), folder / "big.onnx")
    target = folder / "out/o.onnx"
    target.write_bytes(b"an older result")
    command = [sys.executable, "-m", "graphopt", str(folder / "big.onnx"), str(target), "--quiet", *options]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python's own files would be cut short, too
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, preexec_fn=small_files_only)
    assert done.returncode == 1
    *warnings, last = done.stderr.splitlines()
    assert re.fullmatch(r"graphopt: error: .*o.onnx cannot be written: File too large", last)
    assert all(re.fullmatch(r"graphopt: warning: .*\.sqlite cannot be used, .*", line) for line in warnings)
    assert target.read_bytes() == b"an older result"
    assert sorted(path.name for path in target.parent.iterdir()) == ["o.onnx"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("args", "end"),
    [
        (["rules"], ""),
        (["optimize", "good.onnx", "o.onnx", "--quiet", "--report", "/dev/full"], "; the model was written"),
    ],
)
def test_a_full_device(folder: Path, args: list[str], end: str) -> None:
    command = [sys.executable, "-m", "graphopt", *args]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=folder)
    assert done.returncode == 1
    assert re.fullmatch(f"graphopt: error: .* cannot be written: No space left on device{end}\n", done.stderr)
    assert Path("/dev/full").is_char_device()


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lengthy(tmp_path: Path) -> Path:
    """A model that takes some minutes to run, too long to be timed: a loop of ten million rounds."""
    graph = """g (float[64,64] x) => (float[64,64] z) {
        n = Constant<value = int64 {10000000}>()
        c = Constant<value = bool {1}>()
        a = Neg(x)
        m = Neg(a)
        z = Loop(n, c, m) <body = b (int64 i, bool p, float[64,64] s) => (bool q, float[64,64] t) {
            q = Identity(p)
            u = MatMul(s, s)
            t = Tanh(u)
        }>
    }"""
    onnx.save(model(graph), tmp_path / "lengthy.onnx")
    (tmp_path / "out").mkdir()
    return tmp_path / "lengthy.onnx"


TELLING = """
import signal, sys
from graphopt.cli import main as cli
from graphopt.cli import terminal

def told(progress, stage, done, tell=terminal.Progress.__call__):
    tell(progress, stage, done)
    print("at", stage, file=sys.stderr, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
terminal.Progress.__call__ = told
cli.main()
"""
"""Says where it is, and hears Ctrl-C also where a shell has started the tests in the background, which ignores it."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["rules", "time", "check"])
def test_an_interrupt(lengthy: Path, stage: str) -> None:
    target = lengthy.parent / "out/o.onnx"
    command = [sys.executable, "-c", TELLING, str(lengthy), str(target), "--seconds", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stdout is not None
        assert f"at {stage}\n" in running.stderr  # reads up to that line
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
        assert running.wait(timeout=30) == 130
        assert rest.endswith("graphopt: interrupted\n")
        assert "Traceback" not in rest
        assert running.stdout.read() == ""
    assert list(target.parent.iterdir()) == []


# -- with --debug ------------------------------------------------------------------------------------------------------


def test_debug_shows_where_it_happened(folder: Path) -> None:
    done = CliRunner().invoke(app, ["inspect", str(folder / "nope.onnx"), "--debug"])
    assert done.exit_code == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.endswith("nope.onnx does not exist\n")


@pytest.mark.parametrize("error", [KeyError("lost"), EOFError("lost")], ids=["KeyError", "EOFError"])
def test_a_fault_of_ours_is_called_one(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(onnx_io, "load_model", broken)
    done = CliRunner().invoke(app, ["inspect", str(folder / "good.onnx")])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == (
        f"graphopt: internal error: {type(error).__name__}: {error}; --debug shows where, and a report of it is welcome"
    )
