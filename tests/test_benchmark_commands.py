"""The commands of the benchmark, and the tools that it compares."""

import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from benchmarks import __main__ as commands
from benchmarks import environment, pipelines, scaling, tools
from benchmarks.models import QUICK
from benchmarks.results import Results, Row, read_rows
from benchmarks.run import LIMIT, Plan
from benchmarks.tools import ALL, PLAIN, Task
from tests.test_benchmarks import NET
from tests.text import parse

# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Those that are run, which nobody does."""
    found = list[Plan]()

    def noted(plan: Plan, _: Path) -> Results:
        found.append(plan)
        return Results(())

    monkeypatch.setattr(commands, "run", noted)
    return found


@pytest.mark.parametrize(
    ("options", "seconds", "limit"),
    [([], float("inf"), 900.0), (["--quick"], 4.0, 30.0), (["--quick", "--search-seconds", "3"], 3.0, 30.0)],
)
def test_a_search_and_a_quick_run_have_limits(
    options: list[str], seconds: float, limit: float, plans: list[Plan], tmp_path: Path
) -> None:
    commands.main(["run", "--output", str(tmp_path / "out.jsonl"), *options])
    assert [(plan.search, plan.limit) for plan in plans] == [(seconds, limit)]


def test_a_run_measures_its_noise_and_all_exports_of_an_architecture(
    plans: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    commands.main(
        [
            "run",
            "--output",
            str(path),
            "--tools",
            "graphopt",
            "--models",
            "mobilenetv3",
            "resnet50.dynamo",
            "own/net.onnx",
            "--threads",
            "2",
        ]
    )
    assert plans[0].tools == [PLAIN, "graphopt"] and [setting.threads for setting in plans[0].settings] == [2]
    rest = ["resnet50.dynamo", "own/net.onnx"]
    assert plans[0].models == ["mobilenetv3.dynamo", "mobilenetv3.opset11", "mobilenetv3.open", *rest]
    said = capsys.readouterr().out
    assert said.startswith("5 models, 2 tools, 1 settings: at most 0.1 hours")
    assert f"`python -m benchmarks report {path}`" in said


def failed(model: str, tool: str, **why: str) -> Row:
    return {"model": model, "tool": tool, "setting": "cpu-1", "made": {}, **why}


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        (
            [failed(NET, "original", error="export: no"), failed(QUICK[1], "original", error="other")],
            1,
            f"no model could be measured; {NET}: export: no",
        ),
        ([failed(NET, "original", error="export: no")], 0, f"1 of 2 models could not be measured; {NET}: export: no"),
        (
            [failed(NET, "onnxsim", wrong="no"), failed(NET, "removed-tool", error="no")],
            0,
            "1 outcomes failed or are wrong",
        ),
    ],
    ids=["all", "one", "outcome"],
)
def test_a_run_says_what_failed(
    rows: list[Row],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "run", lambda plan, path: Results(tuple(rows)))
    arguments = ["run", "--output", str(tmp_path / "out.jsonl"), "--models", NET, QUICK[1], "--tools", "onnxsim"]
    if code:
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
        assert ended.value.code == code
    else:
        commands.main(arguments)
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "--provider", "nonsense"], "error: this onnxruntime has no nonsense, only "),
        (
            ["run", "--models", "resnet5.dynamo"],
            "error: there is no model 'resnet5.dynamo'; did you mean 'resnet50.dynamo'?",
        ),
        (["run", "--tools", "onnxsmi"], "error: there is no tool 'onnxsmi'; did you mean 'onnxsim'?"),
        (["run", "--seconds", "0"], "argument --seconds: 0 is not a number above 0"),
        (["run", "--threads", "-1"], "argument --threads: -1 is not a number above -1"),
        (["scaling", "--sizes", "0"], "argument --sizes: 0 is not a number above 0"),
        (["compare", "missing.jsonl", "missing.jsonl"], "error: missing.jsonl does not exist"),
        (["compare", "foreign.jsonl", "foreign.jsonl"], "error: foreign.jsonl is not a result file"),
        (["report", "text.jsonl"], "error: text.jsonl cannot be read: "),
    ],
)
def test_what_a_user_did_wrong_is_one_line(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("foreign.jsonl").write_text("{}")
    Path("text.jsonl").write_text("hello")
    with pytest.raises(SystemExit) as ended:
        commands.main(arguments)
    said = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and reason in said[-1]
    assert len(said) == 1 or said[0].startswith("usage: ")


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["graphopt-simplify", "graphopt"])
def test_a_tool_runs_in_a_process_of_its_own(tool: str, tmp_path: Path) -> None:
    onnx.save(scaling.convolutional(12), tmp_path / "in.onnx")
    task = Task(tool, str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), threads=1, seconds=1.0)
    cell = tools.run(task, LIMIT)
    assert cell["seconds"] > 0 and 50 < cell["memory_mb"] < 1000
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) <= 12
    assert ("search" in cell) is (tool == "graphopt")
    if tool == "graphopt":
        assert cell["search"].get("stop") or cell["search"]["notes"]  # why it ended, or was not begun


@pytest.mark.slow
def test_a_search_is_for_the_setting_of_the_task(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    said = list[Any]()
    optimize = graphopt.optimize

    def noted(model: Any, **options: Any) -> graphopt.Result:
        said.append(options)
        return optimize(model, cost="none")

    monkeypatch.setattr(graphopt, "optimize", noted)
    task = Task("graphopt", str(source), "", provider="cuda", threads=3, seconds=5.0)
    for tool in ("graphopt", "graphopt-ort"):
        assert ALL[tool].call(task)[1]["timed"] is False
    ALL["graphopt-simplify"].call(task)
    own = {"provider": "cuda", "threads": 3, "seconds": 5.0, "target": "onnx", "inputs": None, "fresh": True}
    assert said == [own, own | {"target": "onnxruntime"}, {"cost": "none"}]


@pytest.mark.slow
def test_a_copy_has_the_bytes_of_the_original(source: Path, tmp_path: Path) -> None:
    task = Task(PLAIN, str(source), str(tmp_path / "out.onnx"))
    assert tools.run(task, LIMIT).keys() == {"seconds", "memory_mb"}
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()


def test_a_revision_follows_the_sources_and_proofs(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("benchmarks/cpu.json", "graphopt/code.py", "rules/r.json", "verifier/v.py")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("{}")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *command], check=True)
    first = environment.revision(tmp_path)
    paths[0].write_text("[]")
    assert environment.revision(tmp_path) == first and "dirty" not in first["graphopt"]
    found = {first["sources"]}
    for path in paths[1:]:
        path.write_text("[]")
        changed = environment.revision(tmp_path)
        assert changed["graphopt"] == f"{first['graphopt']}-dirty"
        found.add(changed["sources"])
    assert len(found) == 4


@pytest.mark.slow
def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"no model")
    task = Task("graphopt-simplify", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"))
    assert "DecodeError" in tools.run(task, LIMIT)["error"]


def test_tools_say_what_they_call_and_search_longer_from_column_to_column() -> None:
    assert all(tool.text for tool in ALL.values()) and next(iter(ALL)) == PLAIN
    assert [ALL[tool].search for tool in ("graphopt-5s", "graphopt-15s", "graphopt")] == [5.0, 15.0, 60.0]


def test_pipelines_are_told_in_a_table() -> None:
    row = {"model": "net", "stages": 2, "times": [0.01, 0.02], "bytes": [5000], "imbalance": 4 / 3, "whole": 0.029}
    served = {"served": 45.0, "allowed": 50.0}
    failed = {"model": "net", "stages": 4, "error": "not done after 900 s", "made": {}}
    page = pipelines.markdown([{**row, **served, "made": {}}, {**row, "made": {}}, failed])
    assert "| net | 2 | 10.0, 20.0 | 1.333 | 5 | 29.0 | 45.0 | 0.90 |" in page
    assert "| net | 2 | 10.0, 20.0 | 1.333 | 5 | 29.0 |  |  |" in page
    assert "- net, 4 stages: not done after 900 s" in page


@pytest.mark.slow
def test_a_pipeline_is_measured(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    body = "a = Relu(x); b = Exp(a); c = Neg(b); y = Tanh(c)"
    onnx.save(parse("float[2,64] x", body, outputs="float[2,64] y"), model)
    path = pipelines.run([str(model)], [2], 0.3, tmp_path / "found.jsonl")
    (row,) = read_rows(path)
    assert "error" not in row and len(row["times"]) == 2 and path.with_suffix(".md").exists()
