"""Where the command line puts its result: stdout, devices, links; and signals while it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import onnx
import pytest
from typer.testing import CliRunner
from typer.testing import Result as Run

from graphopt import onnx_io
from graphopt.cli import app
from graphopt.pipeline import Result
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


# -- what the report says of files ------------------------------------------------------------------------------------


def test_the_size_of_a_result_is_that_of_both_its_files(tmp_path: Path) -> None:
    from tests.test_files import version

    target = tmp_path / "out.onnx"
    for number in (1, 2):  # the second has a name of its own
        onnx_io.save(onnx_io.load(version(number)), tmp_path / "in.onnx")
        done = run(tmp_path / "in.onnx", target, "--external-data", "--json")
        assert done.exit_code == 0, done.stderr
        size = sum(path.stat().st_size for path in tmp_path.glob("out.onnx*"))
        assert f'"file_bytes": {size}' in done.stdout


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
