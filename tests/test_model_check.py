"""`graphopt check`: a model against another, by its exit code, its table and its report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from graphopt.base import files
from graphopt.check.verdict import EqualityVerdict, ModelComparison
from graphopt.cli.main import app
from graphopt.report.model_check import ModelCheck
from graphopt.runtime.bench import Benchmark
from graphopt.runtime.measure import Speedup
from graphopt.runtime.session_setting import SessionSetting
from tests.text import parse

ROOT = Path(__file__).parent.parent
WEIGHTS = {"w": np.full((64, 64), 0.01, np.float32), "zero": np.array(0, np.float32)}
BODIES = {
    "base": "i = Identity(x); m = MatMul(i, w); y = Relu(m)",
    "same": "m = MatMul(x, w); y = Relu(m)",
    "other": "m = MatMul(x, w); y = Neg(m)",
    # what it computes beside is never taken, and ONNX Runtime cannot know that
    "slow": (
        f"m0 = MatMul(x, w); {'; '.join(f's{i} = Sin(m{i}); m{i + 1} = Add(m{i}, s{i})' for i in range(40))}; "
        "r = Relu(m0); c = Less(r, zero); y = Where(c, m40, r)"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, body in BODIES.items():
        onnx.save(parse("float[n,64] x", body, WEIGHTS, outputs="float[n,64] y"), tmp_path / f"{name}.onnx")
    return tmp_path


def check(folder: Path, model: str, *options: str) -> Result:
    paths = [str(folder / f"{model}.onnx"), "--against", str(folder / "base.onnx")]
    fast = ["--seconds", "0.3", "--threads", "1", "--report", str(folder / "r.json")]
    return CliRunner().invoke(app, ["check", *paths, *fast, *options])


def test_an_equal_model_passes_with_its_speedup(folder: Path) -> None:
    done = check(folder, "same", "--require-speedup", "0.2")
    assert done.exit_code == 0, done.output
    assert "verdict    equal" in done.stdout and "median ms" in done.stdout
    report = json.loads((folder / "r.json").read_text())
    assert (report["ok"], report["verdict"], report["required_speedup"]) == (True, "equal", 0.2)
    assert report["speedup"]["low"] <= report["speedup"]["median"] <= report["speedup"]["high"]
    assert report["comparison"]["outputs"][0]["output"] == "y"
    assert [each["model"] for each in report["benchmark"]["cases"][0]["timings"]] == [
        str(folder / "base.onnx"),
        str(folder / "same.onnx"),
    ]


def test_a_model_that_differs_is_not_timed(folder: Path) -> None:
    done = check(folder, "other", "--json")
    assert done.exit_code == 3
    assert "differ: " in done.stderr and len(done.stderr.splitlines()) == 1
    report = json.loads(done.stdout)
    assert (report["ok"], report["verdict"], report["benchmark"]) == (False, "different", None)
    assert json.loads((folder / "r.json").read_text()) == report


def test_a_model_that_is_slower_fails(folder: Path) -> None:
    done = check(folder, "slow", "--require-speedup", "1", "--dim", "n=64")
    assert done.exit_code == 4, done.output
    assert "slow.onnx: the speedup over " in done.stderr and done.stderr.endswith("; 1 is required\n")
    assert json.loads((folder / "r.json").read_text())["speedup_missed"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["same.onnx"], 2, "--against"),
        (["none.onnx", "--against", "base.onnx"], 1, "none.onnx does not exist"),
        (["same.onnx", "--against", "base.onnx", "--report", "base.onnx"], 2, "is what the report is made of"),
        (["same.onnx", "--against", "base.onnx", "--report", "no/r.json"], 1, "is missing"),
        (["same.onnx", "--against", "base.onnx", "--require-speedup", "-1"], 2, "'--require-speedup'"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["check", *options])
    assert (done.exit_code, said in done.stderr, len(done.stderr.splitlines())) == (code, True, 1), done.stderr


@pytest.mark.parametrize(
    ("low", "high", "required", "is_missed"),
    [(0.97, 1.01, 1.0, False), (0.95, 0.99, 1.0, True), (1.05, 1.15, 1.1, False), (0.5, 0.6, None, False)],
)
def test_a_speedup_is_missed_where_its_whole_interval_is_below(
    monkeypatch: pytest.MonkeyPatch, low: float, high: float, required: float | None, is_missed: bool
) -> None:
    median = (low + high) / 2
    ratio = Speedup(minimum=median, median=median, low=low, high=high, rounds=50)
    monkeypatch.setattr(Benchmark, "overall_speedups", (None, ratio))
    timed = Benchmark(("base", "model"), SessionSetting(), 0, ())
    found = ModelCheck("model", "base", ModelComparison(EqualityVerdict.EQUAL), required, timed)
    assert bool(found.speedup_missed) == is_missed


# -- where it runs -----------------------------------------------------------------------------------------------------


def test_the_hook_runs_as_the_documentation_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed, which pre-commit brings")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    page = (ROOT / "docs" / "ci.md").read_text()
    asked, workflow = (yaml.safe_load(text.partition("```")[0]) for text in page.split("```yaml\n")[1:])
    (used,) = asked["repos"][0]["hooks"]
    assert used["id"] == hook["id"] == "graphopt-check" and not hook["pass_filenames"]
    words: list[str] = [*hook["entry"].split(), *used["args"]]
    monkeypatch.chdir(folder)
    (folder / "same.onnx").rename("fast.onnx")
    (folder / "base.onnx").rename("model.onnx")
    assert words[0] == "graphopt" and CliRunner().invoke(app, [*words[1:], "--threads", "1"]).exit_code in (0, 4)
    steps = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "graphopt check" in step.get("run", "")]
    assert len(steps) == 1 and steps[0].split()[2:5] == ["fast.onnx", "--against", "model.onnx"]


@pytest.mark.slow
def test_a_home_that_cannot_be_written_costs_a_warning(folder: Path) -> None:
    named = ("GRAPHOPT_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in named}
    environment |= {"HOME": os.devnull, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "graphopt", "optimize", "base.onnx", "fast.onnx", "--seconds", "1"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and (folder / "fast.onnx").is_file(), done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "costs.sqlite cannot be used" in line]
    assert warning.endswith("; GRAPHOPT_CACHE names another folder")
    assert {path.name for path in folder.iterdir()} == {*(f"{name}.onnx" for name in BODIES), "fast.onnx"}


def test_a_user_without_a_home_gets_no_folder_called_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.delenv("GRAPHOPT_CACHE", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: Path("~/.cache/graphopt"))
    assert files.cache_folder().is_absolute()
