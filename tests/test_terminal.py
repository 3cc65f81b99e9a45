"""What is said at the terminal while something takes long."""

import re
import sys
import time

import pytest

from graphopt.cli.terminal import Progress, set_up_logging


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
