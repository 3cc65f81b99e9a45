"""The commands of the benchmark, and the tools that it compares."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import graphopt
from benchmarks import __main__ as commands
from benchmarks import run, scaling, tools
from benchmarks.models import QUICK
from benchmarks.run import Done, Plan
from benchmarks.tools import ALL, PLAIN, Task, applies
from tests.test_benchmarks import NET

# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Those that are run, which nobody does."""
    found = list[Plan]()

    def noted(plan: Plan, _: Path) -> Done:
        found.append(plan)
        return Done(1.0, 2.0, {name: {} for name in plan.models})

    monkeypatch.setattr(run, "run", noted)
    return found


@pytest.mark.parametrize(
    ("options", "seconds", "limit"),
    [([], 60.0, None), (["--quick"], 4.0, 30.0), (["--quick", "--search-seconds", "3"], 3.0, 30.0)],
)
def test_a_search_and_a_quick_run_have_limits(
    options: list[str], seconds: float, limit: float | None, plans: list[Plan], tmp_path: Path
) -> None:
    commands.main(["run", "--output", str(tmp_path / "out.json"), *options])
    assert [(plan.search, plan.limit) for plan in plans] == [(seconds, limit)]


def test_each_run_measures_its_noise_and_says_what_it_took(
    plans: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.main(["run", "--output", str(tmp_path / "out.json"), "--tools", "graphopt"])
    assert plans[0].tools == [PLAIN, "graphopt"]
    said = capsys.readouterr().out
    assert "exports: 1 s; measuring: 2 s" in said and f"`python -m benchmarks report {tmp_path / 'out.json'}`" in said


def test_an_architecture_is_all_its_exports(plans: list[Plan], tmp_path: Path) -> None:
    commands.main(["run", "--output", str(tmp_path / "out.json"), "--models", "yolo", "resnet50.dynamo"])
    assert plans[0].models == ["yolo.dynamo", "yolo.torchscript", "resnet50.dynamo"]


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        (
            {NET: {"error": "export: no"}, QUICK[1]: {"error": "other"}},
            1,
            f"no model could be measured; {NET}: export: no",
        ),
        ({NET: {"error": "export: no"}, QUICK[1]: {}}, 0, f"1 of 2 models could not be measured; {NET}: export: no"),
        ({NET: {"tools": {"onnxsim": {"wrong": "no"}}}, QUICK[1]: {}}, 0, "1 outcomes failed or are wrong"),
    ],
    ids=["all", "one", "outcome"],
)
def test_a_run_says_what_failed(
    rows: dict[str, Any],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "run", lambda plan, path: Done(1.0, 2.0, rows))
    arguments = ["run", "--output", str(tmp_path / "out.json"), "--models", NET, QUICK[1], "--tools", "onnxsim"]
    if code:
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
        assert ended.value.code == code
    else:
        commands.main(arguments)
    assert said in "".join(capsys.readouterr())


def test_without_a_name_the_file_that_was_written_last_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "RESULTS", tmp_path)
    head = dict.fromkeys(("machine", "onnxruntime", "provider", "spinning", "date"), "")
    for age, name in enumerate(("cpu-quick.json", "cpu.json", "cuda.json")):
        (tmp_path / name).write_text(json.dumps({**head, "models": {}}))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "scaling.json").write_text("{}")
    assert commands._latest(readme=False).name == "cpu-quick.json"
    assert commands._latest(readme=True).name == "cpu.json"


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
        (["run", "--threads", "-1"], "argument --threads: -1 is not a number of at least 0"),
        (["scaling", "--sizes", "0"], "argument --sizes: 0 is not a number of at least 1"),
        (["compare", "missing.json", "missing.json"], "error: missing.json cannot be read: "),
        (["compare", "foreign.json", "foreign.json"], "error: foreign.json is not a result file"),
        (["report", "text.json"], "error: text.json cannot be read: "),
        (["report", "rows.json"], "error: rows.json is not a result file"),
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
    Path("foreign.json").write_text("{}")
    Path("text.json").write_text("hello")
    head = dict.fromkeys(("machine", "onnxruntime", "provider", "spinning", "date"), "")
    Path("rows.json").write_text(json.dumps({**head, "models": {"net": {}}}))
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
    cell = tools.run(task)
    assert cell["seconds"] > 0 and 50 < cell["memory_mb"] < 1000
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) <= 12
    assert ("search" in cell) is (tool == "graphopt")
    if tool == "graphopt":
        assert cell["search"].get("stop") or cell["search"]["notes"]  # why it ended, or was not begun


def test_a_search_is_for_the_setting_of_the_task(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    said = list[Any]()

    def optimize(model: Any, **options: Any) -> graphopt.Result:
        said.append(options)
        return graphopt.optimize(model, cost="none")

    monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(optimize=optimize))
    _, told = tools.optimized(Task("graphopt", str(source), "", provider="cuda", threads=3, seconds=5.0))
    assert told["search"]["timed"] is False
    assert tools.optimized(Task("graphopt-simplify", str(source), ""))[1] == {}
    assert tools.optimized(Task("graphopt-ort", str(source), "", seconds=5.0))[1]["search"]["timed"] is False
    own = {"provider": "cuda", "threads": 3, "seconds": 5.0, "target": "onnx"}
    assert said == [own, {"cost": "none"}, {"provider": "cpu", "threads": 0, "seconds": 5.0, "target": "onnxruntime"}]


def test_a_copy_has_the_bytes_of_the_original(source: Path, tmp_path: Path) -> None:
    tools.main(Task(PLAIN, str(source), str(tmp_path / "out.onnx")))
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()


def test_the_digest_of_graphopt_follows_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "graphopt", "rules", "verifier"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tools, "__file__", str(tmp_path / "benchmarks" / "tools.py"))
    (tmp_path / "rules" / "proofs.json").write_text("{}")
    before = tools.revision()["sources"]
    assert tools.revision()["sources"] == before
    (tmp_path / "rules" / "proofs.json").write_text("[]")
    proved = tools.revision()["sources"]
    (tmp_path / "graphopt" / "room").mkdir()
    (tmp_path / "graphopt" / "room" / "code.py").write_text("")
    assert len({before, proved, tools.revision()["sources"]}) == 3


def test_only_changed_sources_make_a_revision_dirty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "__file__", str(tmp_path / "benchmarks" / "tools.py"))
    paths = [tmp_path / name for name in ("benchmarks/cpu.json", "graphopt/code.py", "rules/r.py", "verifier/v.py")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("{}")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "First"]):
        subprocess.run([*git, *command], check=True)
    paths[0].write_text("[]")
    clean = tools.revision()["graphopt"]
    assert clean and "dirty" not in clean
    paths[1].write_text("[]")
    assert tools.revision()["graphopt"] == f"{clean}-dirty"


def test_every_tool_says_how_it_is_called() -> None:
    assert all(tool.text for tool in ALL.values()) and next(iter(ALL)) == PLAIN


def test_a_search_finds_no_times_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))
    (tmp_path / "costs.sqlite").touch()
    with tools._without_times() as folder:
        assert [path.name for path in Path(folder).iterdir()] == ["proofs"]
        assert (Path(folder) / "proofs").resolve() == tmp_path / "proofs"


def test_ctrl_c_leaves_no_tool_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        wait = process.wait

        def interrupted(limit: float | None = None) -> int:
            if limit is not None:
                raise KeyboardInterrupt
            return wait()

        monkeypatch.setattr(process, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tools._waited(process, 60.0)
        assert process.returncode == -9


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"no model")
    task = Task("graphopt-simplify", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"))
    assert "DecodeError" in tools.run(task)["error"]


def test_tools_for_some_families_are_left_out_for_the_others() -> None:
    assert applies("ort-transformers", "BERT") and not applies("ort-transformers", "ResNet")
    assert applies("timm", "RepVGG") and not applies("timm", "ResNet")
    assert all(applies(tool, "ResNet") for tool in ALL if tool not in ("ort-transformers", "timm"))
