"""What is said at the terminal while something takes long."""

import sys
import time

import pytest

from graphopt.terminal import Progress


def test_a_stage_that_takes_long_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "PATIENCE", 0.05)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    def shown(stage: str) -> bool:
        with Progress(enabled=True) as progress:
            progress(stage, 0.0)
            time.sleep(0.15 if stage == "slow" else 0.0)
            progress(stage, 0.5)
            return progress.bar is not None

    assert shown("slow")
    assert not shown("quick")


def test_no_bar_where_nobody_watches() -> None:
    with Progress(enabled=True) as progress:
        progress("check", 0.5)
        assert progress.timer is None
