"""Where the command line puts its result: stdout, devices, links; and signals while it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner
from typer.testing import Result as Run

from graphopt.base.errors import OutputError
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.operators.proto_conversion import COPY_CHUNK_BYTES
from graphopt.result import Result
from tests.text import parse


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parse("float[2] x", "a = Identity(x); y = Relu(a)"), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def run(*args: object) -> Run:
    return CliRunner().invoke(app, [*map(str, args), "--cost", "none", "--no-check"])


def operators(content: bytes) -> list[str]:
    return [node.op_type for node in onnx.ModelProto.FromString(content).graph.node]


# -- stdout ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_model_goes_to_stdout_and_its_table_to_stderr(model: Path, name: str) -> None:
    done = run(model, name)
    assert done.exit_code == 0, done.stderr
    assert operators(done.stdout_bytes) == ["Relu"]
    assert "Identity" in done.stderr


def test_a_quiet_run_writes_nothing_but_the_model(model: Path, tmp_path: Path) -> None:
    done = run(model, "-", "--quiet", "--report", tmp_path / "report.json")
    assert operators(done.stdout_bytes) == ["Relu"]
    assert done.stderr == ""
    assert (tmp_path / "report.json").exists()


def test_a_report_goes_to_stdout(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "out.onnx", "--quiet", "--report", "-")
    assert done.stdout.startswith("{")
    assert done.exit_code == 0
    assert not Path("-").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--json"], "stdout is for the model: --report FILE writes the report to a file"),
        (["--report", "-"], "stdout is for the model"),
        (["--external-data"], "--external-data needs a model in a file"),
    ],
)
def test_what_does_not_go_with_stdout(model: Path, options: list[str], line: str) -> None:
    done = run(model, "-", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_terminal_gets_no_model(model: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "graphopt", str(model), "-", "--cost", "none"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert "a model is nothing for a terminal" in done.stderr


@pytest.mark.slow
def test_a_pipe_through_stdout(model: Path) -> None:
    command = f"{sys.executable} -m graphopt {model} /dev/stdout --cost none --quiet | cat"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert operators(done.stdout) == ["Relu"]


def test_what_is_no_file_is_refused_before_the_work(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", os.devnull):
        done = run(model, target)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "cannot be written: it is no ordinary file (- is stdout)" in done.stderr


# -- what is in the way ------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model whose weights lie beside it, mostly zeros."""
    made = parse("float[4096] x", "y = Mul(x, w)")
    values = np.zeros(4096, np.float32)
    values[0] = 2
    made.graph.initializer.append(numpy_helper.from_array(values, "w"))
    path = tmp_path / "large.onnx"
    onnx_io.save_model(onnx_io.load_model(made), path, external=True)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.exists()}


@pytest.mark.parametrize(
    ("output", "report", "line"),
    [
        ("out.onnx", "large.onnx", "large.onnx is the model: the report needs another name"),
        ("out.onnx", "link.onnx", "link.onnx is the model"),
        ("out.onnx", "large.onnx.data", "large.onnx.data is a file of weights of"),
        ("-", "large.onnx.data", "large.onnx.data is a file of weights of"),
        ("out.onnx", "out.onnx", "out.onnx is the output"),
        ("out.onnx", "out-link.onnx", "out-link.onnx is the output"),
        ("out.onnx", "out.onnx.data", "out.onnx.data is where weights of"),
        ("old.onnx", "old.weights", "old.weights is a file of weights of"),
        ("large.onnx.data", "report.json", "large.onnx.data holds weights of"),
    ],
)
def test_no_file_of_the_run_takes_the_place_of_another(large: Path, output: str, report: str, line: str) -> None:
    folder = large.parent
    (folder / "link.onnx").symlink_to("large.onnx")
    (folder / "out-link.onnx").symlink_to("out.onnx")
    old = onnx.load(large)
    onnx.save(old, folder / "old.onnx", save_as_external_data=True, location="old.weights")
    before = contents(folder)
    done = run(large, output if output == "-" else folder / output, "--report", f"{folder}/{report}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize("options", [["--external-data"], []])
def test_weights_beside_a_link_elsewhere_are_refused_before_the_work(
    large: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """As in the cache of a hub. They are asked for, or too large for the file of the model."""
    link = large.parent / "snapshot" / "link.onnx"
    link.parent.mkdir()
    link.symlink_to(large)
    monkeypatch.setattr(onnx_io, "MAX_INLINE_WEIGHT_BYTES", 10_000)
    monkeypatch.setattr("graphopt.pipeline.optimize", lambda *_, **__: pytest.fail("worked before it refused"))
    done = run(link, link, *options)
    assert done.exit_code == 1
    assert "its weights would be missed beside the link: give a file in another folder" in done.stderr


# -- what is no file ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the system has no files for open ones")
def test_a_report_goes_into_a_pipe(model: Path, tmp_path: Path) -> None:
    """What a shell makes of `--report >(cat)`."""
    read, write = os.pipe()
    done = run(model, tmp_path / "out.onnx", "--quiet", "--report", f"/dev/fd/{write}")
    os.close(write)
    with open(read) as pipe:
        assert pipe.read().startswith("{")
    assert done.exit_code == 0, done.stderr


def test_a_device_takes_a_model(large: Path) -> None:
    with open(os.devnull, "r+b") as device:
        onnx_io.write_model(onnx_io.load_model(large), device)


def test_a_model_is_appended_whole(tmp_path: Path) -> None:
    """Holes cannot be left where each write goes to the end of the file."""
    made = parse("float[n] x", "y = Add(x, w)")
    values = np.zeros(COPY_CHUNK_BYTES // 2, np.float32)
    values[-1] = 2
    made.graph.initializer.append(numpy_helper.from_array(values, "w"))
    onnx_io.save_model(onnx_io.load_model(made), tmp_path / "model.onnx", external=True)
    with open(tmp_path / "appended", "ab") as file:
        file.write(b"before")
        onnx_io.write_model(onnx_io.load_model(tmp_path / "model.onnx"), file)
    whole = onnx.ModelProto.FromString((tmp_path / "appended").read_bytes().removeprefix(b"before"))
    (again,) = map(numpy_helper.to_array, whole.graph.initializer)
    assert np.array_equal(again, values)


@pytest.mark.parametrize("path", ["-", Path("-")])
def test_a_model_is_not_saved_to_a_file_that_looks_like_stdout(
    model: Path, path: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="'-', which is stdout on the command line only"):
        onnx_io.save_model(onnx_io.load_model(model), path)


# -- what the report says of files ------------------------------------------------------------------------------------


def test_the_size_of_a_result_is_that_of_both_its_files(tmp_path: Path) -> None:
    from tests.test_files import version

    target = tmp_path / "out.onnx"
    for number in (1, 2):  # the second has a name of its own
        onnx_io.save_model(onnx_io.load_model(version(number)), tmp_path / "in.onnx")
        done = run(tmp_path / "in.onnx", target, "--external-data", "--json")
        assert done.exit_code == 0, done.stderr
        size = sum(path.stat().st_size for path in tmp_path.glob("out.onnx*"))
        assert f'"file_bytes": {size}' in done.stdout


# -- failures after the model was written ------------------------------------------------------------------------------


def test_a_failure_that_comes_after_the_model_was_written_says_so(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "out.onnx", "--quiet", "--report", "/dev/full")
    assert done.exit_code == 1
    assert done.stderr.endswith("/dev/full cannot be written: No space left on device; the model was written\n")
    assert operators((tmp_path / "out.onnx").read_bytes()) == ["Relu"]


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_table_that_cannot_be_printed_is_missed_when_the_model_is_there(
    model: Path, tmp_path: Path, form: list[str]
) -> None:
    options = ["--cost", "none", "--no-check", *form]
    command = [sys.executable, "-m", "graphopt", str(model), str(tmp_path / "out.onnx"), *options]
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert gone.returncode == 141, gone.stderr
    assert "error" not in gone.stderr
    (tmp_path / "out.onnx").unlink()
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert "error: stdout cannot be written: No space left on device; the model was written\n" in done.stderr
    assert operators((tmp_path / "out.onnx").read_bytes()) == ["Relu"]


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("signal", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
@pytest.mark.parametrize("is_written", [False, True])
def test_only_a_run_that_wrote_nothing_ends_as_interrupted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: BaseException, code: int, is_written: bool
) -> None:
    save, target = Result.save, tmp_path / "out.onnx"
    target.write_bytes(b"an older result")

    def interrupted(*args: Any, **options: Any) -> NoReturn:
        if is_written:
            save(*args, **options)
        raise signal

    monkeypatch.setattr(Result, "save", interrupted)
    done = run(model, target)
    if is_written:
        assert done.exit_code == 1
        assert f"error: interrupted when {target} was written already" in done.stderr
        assert operators(target.read_bytes()) == ["Relu"]
    else:
        assert done.exit_code == code
        assert target.read_bytes() == b"an older result"
