"""The benchmarks' own parts that need neither torch nor time: runs, tools, synthetic graphs."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import graphopt
from benchmarks import __main__ as commands
from benchmarks import run, scaling, tools
from benchmarks.models import FIXTURES, MODELS, QUICK, SUITE
from benchmarks.run import Outcome, Plan
from benchmarks.tools import ALL, Task, applies
from graphopt.measure import Setting
from graphopt.profile import Profile, Row
from tests import zoo

SETTINGS = (Setting(threads=1), Setting(threads=0))


def cell(ratio: float, column: str = "cpu-1") -> dict[str, Any]:
    timing: dict[str, Any] = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "load": 1.0}
    timing["verdict"] = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "no difference"
    return {
        "seconds": 1.0, "memory_mb": 100, "nodes": 9, "bytes": 900, "difference": 1e-7, "timings": {column: timing}
    }  # fmt: skip


def test_the_suite_has_36_models_of_12_families_and_a_quick_part() -> None:
    assert len(SUITE) >= 36 and len({MODELS[name].architecture.family for name in SUITE}) >= 12
    assert set(QUICK) < set(SUITE)
    assert sorted(FIXTURES) == sorted(zoo.names())


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What a run asks for, which nobody then does: each task and the tools in each timing."""
    source, found = tmp_path / "net.onnx", list[Any]()
    onnx.save(scaling.convolutional(3), source)

    def optimize(task: Task) -> dict[str, Any]:
        found.append((task.tool, task.threads, task.seconds))
        onnx.save(scaling.convolutional(3), task.target)
        return {"seconds": 1.0, "memory_mb": 100}

    def job(kind: str, job: Any) -> dict[str, Any]:
        if kind == "check":
            return {"difference": 0.0}
        found.append((job["threads"], sorted(job["outcomes"])))
        return {"original": {"headroom": 1.0}, "outcomes": {tool: cell(1.0)["timings"]["cpu-1"] for tool in ALL}}

    monkeypatch.setattr(run, "export", lambda name: source)
    monkeypatch.setattr(tools, "run", optimize)
    monkeypatch.setattr(run, "_job", job)
    return found


def test_a_tool_that_searches_is_run_and_timed_in_each_setting(asked: list[Any]) -> None:
    row = run.measure("resnet50.dynamo", Plan([], ["onnxsim", "graphopt"], SETTINGS, 1.0, search=5.0), {})
    assert asked == [
        ("onnxsim", 1, 5.0),
        ("graphopt", 1, 5.0),
        ("graphopt", 0, 5.0),
        (1, ["graphopt", "onnxsim"]),
        (0, ["graphopt", "onnxsim"]),
    ]
    assert row["tools"]["onnxsim"]["timings"].keys() == {"cpu-1", "cpu-all"}
    parts = row["tools"]["graphopt"]["settings"]
    assert {column: list(part["timings"]) for column, part in parts.items()} == {
        "cpu-1": ["cpu-1"],
        "cpu-all": ["cpu-all"],
    }


def test_what_is_known_is_not_measured_again(asked: list[Any]) -> None:
    plan = Plan([], ["onnxsim", "graphopt"], SETTINGS, 1.0)
    row = run.measure("resnet50.dynamo", plan, {})
    asked.clear()
    assert run.measure("resnet50.dynamo", plan, row) == row and asked == []
    del row["tools"]["graphopt"]["settings"]["cpu-all"]
    run.measure("resnet50.dynamo", plan, row)
    assert [what[0] for what in asked] == ["graphopt", 0]


def test_what_is_named_is_measured_again(asked: list[Any], tmp_path: Path) -> None:
    plan = Plan(["resnet50.dynamo"], ["onnxsim", "OnnxSlim"], SETTINGS, 1.0)
    first = run.run(plan, tmp_path / "cpu.json")
    asked.clear()
    again = run.run(Plan(["resnet50.dynamo"], ["onnxsim"], SETTINGS, 1.0, again=True), tmp_path / "cpu.json")
    assert [what[0] for what in asked] == ["onnxsim", 1, 0]
    assert again["models"]["resnet50.dynamo"]["tools"].keys() == first["models"]["resnet50.dynamo"]["tools"].keys()


def test_an_outcome_without_a_search_is_none_of_a_tool_that_searches(asked: list[Any], tmp_path: Path) -> None:
    row = {"family": "Net", "tools": {"graphopt": cell(1.0)}}
    (outcome,) = run.outcomes(row, Plan([], ["graphopt"], SETTINGS[:1], 1.0), tmp_path)
    assert outcome == Outcome("graphopt", tmp_path / "graphopt-cpu-1.onnx", SETTINGS[:1], {}) and asked == []


def test_a_file_is_not_added_to_by_a_search_of_another_length(asked: list[Any], tmp_path: Path) -> None:
    found = run.run(Plan([], ["graphopt"], SETTINGS, 1.0, search=5.0), tmp_path / "cpu.json")
    assert found["search"] == {"seconds": 5.0, "cache": "no times of earlier runs"} and found["spinning"] is False
    (tmp_path / "cpu.json").write_text(json.dumps(found))
    with pytest.raises(SystemExit, match="another search"):
        run.run(Plan([], ["graphopt"], SETTINGS, 1.0, search=6.0), tmp_path / "cpu.json")
    assert asked == []


@pytest.mark.parametrize(
    ("options", "seconds"), [([], 60.0), (["--quick"], 4.0), (["--quick", "--search-seconds", "3"], 3.0)]
)
def test_a_search_has_a_limit(
    options: list[str], seconds: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = list[Plan]()
    monkeypatch.setattr(run, "run", lambda plan, path: plans.append(plan))
    commands.main(["run", "--output", str(tmp_path / "out.json"), *options])
    assert [plan.search for plan in plans] == [seconds]


def test_headroom_is_what_is_not_in_heavy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("FusedConv", 2, 3.0, 0.6), Row("Softmax", 1, 1.0, 0.2), Row("Gemm", 1, 1.0, 0.2))
    found = Profile("net", "CPUExecutionProvider", 20, 5.5, rows, {}, {})
    monkeypatch.setattr(run, "profile", lambda source, setting, feeds: found)
    assert run._headroom("net", SETTINGS[0], {}) == 1.25


def test_headroom_has_no_end_where_nothing_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Profile("net", "CPUExecutionProvider", 20, 5.5, (Row("Softmax", 1, 1.0, 1.0),), {}, {})
    monkeypatch.setattr(run, "profile", lambda source, setting, feeds: found)
    assert run._headroom("net", SETTINGS[0], {}) == float("inf")


# -- synthetic graphs and tools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_synthetic_graphs_are_valid_and_leave_something_to_do(kind: str) -> None:
    model = scaling.KINDS[kind](100)
    onnx.checker.check_model(model, full_check=True)
    assert 100 <= len(model.graph.node) < 160
    assert len(graphopt.optimize(model, cost="none").model.graph.node) < 0.8 * len(model.graph.node)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["graphopt-simplify", "graphopt"])
def test_a_tool_runs_in_a_process_of_its_own(tool: str, tmp_path: Path) -> None:
    onnx.save(scaling.convolutional(12), tmp_path / "in.onnx")
    task = Task(tool, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), threads=1, seconds=1.0)
    cell = tools.run(task)
    assert cell["seconds"] > 0 and 50 < cell["memory_mb"] < 1000
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) <= 12


def test_a_search_is_for_the_setting_of_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = list[Any]()

    def optimize(model: onnx.ModelProto, **options: Any) -> graphopt.Result:
        said.append(options)
        return graphopt.optimize(model, cost="none", check=False)

    onnx.save(scaling.convolutional(3), tmp_path / "in.onnx")
    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(optimize=optimize))
    tools.optimized(Task("graphopt", str(tmp_path / "in.onnx"), "", provider="cuda", threads=3, seconds=5.0))
    tools.optimized(Task("graphopt-simplify", str(tmp_path / "in.onnx"), ""))
    assert said == [
        {"check": False, "provider": "cuda", "threads": 3, "seconds": 5.0},
        {"check": False, "cost": "none"},
    ]


def test_a_search_finds_no_times_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))
    (tmp_path / "costs.sqlite").touch()
    with tools._without_times() as folder:
        assert [path.name for path in Path(folder).iterdir()] == ["proofs"]
        assert (Path(folder) / "proofs").resolve() == tmp_path / "proofs"


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"no model")
    task = Task("graphopt-simplify", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"))
    assert "DecodeError" in tools.run(task)["error"]


def test_tools_for_some_families_are_left_out_for_the_others() -> None:
    assert applies("ort-transformers", "BERT") and not applies("ort-transformers", "ResNet")
    assert all(applies(tool, "ResNet") for tool in ALL if tool != "ort-transformers")
