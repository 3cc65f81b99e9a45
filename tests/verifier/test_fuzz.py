"""A few of the rules that the fuzzer draws: none is proved that ONNX Runtime finds to differ."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_what_is_proved_of_drawn_rules_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.verifier.fuzz", "--seed", "1", "--batches", "4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert " PROVED" in done.stdout and " 0 differences" in done.stdout, done.stdout
