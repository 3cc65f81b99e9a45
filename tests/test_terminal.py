"""What is said at the terminal while something takes long."""

import re
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from graphopt.cli.main import app
from graphopt.cli.terminal import Progress, set_up_logging
from tests.text import parse


def test_a_stage_that_takes_long_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "PATIENCE", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    def shown(stage: str) -> bool:
        with Progress(enabled=True) as progress:
            progress(stage, 0.0)
            end = time.monotonic() + 20.0  # to import what draws a bar takes a while
            while stage == "slow" and progress.bar is None and time.monotonic() < end:
                time.sleep(0.01)
            progress(stage, 0.5)
            return progress.bar is not None

    assert shown("slow")
    assert not shown("quick")


def test_a_line_with_seconds_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Progress, "PATIENCE", 0.05)
    set_up_logging(verbose=False, debug=False)
    for enabled in (True, False):
        with Progress(enabled=enabled) as progress:
            progress("simplify", 0.0)
            progress("search", 0.5)
            assert progress.timer is None
            time.sleep(0.06)
            progress("search", 0.9)
    assert re.fullmatch(r"graphopt: search, 0\.\d s\n", capsys.readouterr().err)


def test_every_stage_is_told_where_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(verbose=True, debug=False)
    with Progress(enabled=True) as progress:
        progress("simplify", 0.0)
        progress("check", 0.0)
    assert re.fullmatch(r"graphopt: simplify, 0\.0 s\ngraphopt: check, 0\.0 s\n", capsys.readouterr().err)


def test_an_error_ends_the_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Progress, "PATIENCE", 0.0)
    set_up_logging(verbose=False, debug=False)
    progress = Progress(enabled=True)
    progress("check", 0.0)
    progress.__exit__(ValueError, ValueError("no model"), None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        ("optimize", "model.onnx", "fast.onnx", "--cost", "none", "--verbose"),
        ("optimize", "model.onnx", "fast.onnx", "--cost", "none", "--dim", "nothing=1"),
        ("inspect", "model.onnx"),
        ("explain", "model.onnx", "--verbose"),
        ("compare", "model.onnx", "model.onnx"),
    ],
)
def test_names_of_a_model_do_not_command_the_terminal(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An escape, a carriage return and the one-byte form of an escape sequence, in all kinds of names."""
    body = "a = Neg(x); b = Neg(a); p = MatMul(b, u); y = Mul(p, s)"
    model = parse("float[n,3] x, float[3,4] u", body, {"s": np.ones(4, np.float32) * 2})
    bad = "\x1b[2J\r\x9b31m"
    for number, node in enumerate(model.graph.node):
        node.name = f"{number}{bad}"
        node.input[:] = [f"{name}{bad}" for name in node.input]
        node.output[:] = [f"{name}{bad}" for name in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name += bad
    model.graph.name += bad
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param += bad
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    done = CliRunner().invoke(app, list(command))
    said = done.stdout + done.stderr
    assert done.exit_code == 2 * ("nothing" in " ".join(command)), said
    assert not {"\x1b", "\r", "\x9b"} & {*said}
    assert "\\x1b[2J" in said.replace("\n", "")
