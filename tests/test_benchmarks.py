"""Runs of the benchmarks: what is measured and kept, checks, timings in several processes.

What is shown of them is in test_report_benchmarks.py, the models are in test_models.py.
"""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from benchmarks import __main__ as commands
from benchmarks import checks, engine, environment, models, open_sizes, run, scaling, tools
from benchmarks.models import QUICK, Model
from benchmarks.results import ORIGINAL, Results, Row, write_rows
from benchmarks.run import PROCESSES, Plan
from benchmarks.tools import PLAIN, Task
from graphopt.base.errors import UsageError
from graphopt.base.ort import require_onnxruntime
from graphopt.runtime.measure import Speedup
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.stopping import StopReason
from tests.text import parse

NET = "resnet50.dynamo"
SETTINGS = (SessionSetting(threads=1), SessionSetting(threads=0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", scaling.KINDS)
def test_synthetic_graphs_are_valid_and_leave_something_to_do(kind: str) -> None:
    model = scaling.KINDS[kind](100)
    onnx.checker.check_model(model, full_check=True)
    assert 100 <= len(model.graph.node) < 160
    assert len(graphopt.optimize(model, cost="none").model.graph.node) < 0.8 * len(model.graph.node)


# -- a run -------------------------------------------------------------------------------------------------------------


def ratio(median: float = 1.0, rounds: int = 15) -> Row:
    """What `graphopt bench --json` says of a model beside another."""
    found = Speedup(median, median, median, median, rounds)
    return asdict(found) | {"verdict": str(found.verdict)}


KERNELS = [{"operator": "FusedConv", "count": 2, "seconds": 8e-4}, {"operator": "Softmax", "count": 1, "seconds": 2e-4}]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, source: Path) -> list[Any]:
    """What a run asks for, which nobody then does: each task, and the setting and files of each timing."""
    found = list[Any]()

    def optimize(task: Task, limit: float) -> Row:
        assert limit > 0
        if task.tool != PLAIN:
            found.append((task.tool, task.threads, task.seconds))
        made = scaling.convolutional(3)
        made.producer_name = task.tool
        onnx.save(made, task.target)
        return {"seconds": 1.0, "memory_mb": 100}

    def job(module: str, *arguments: str, limit: float) -> Row:
        assert limit > 0
        if module == "benchmarks.checks":
            return {"difference": 0.0, "loading": 1.0} if arguments[0] == "check" else {}
        if module == "benchmarks.engine":
            found.append(("openvino", json.loads(arguments[0])["seconds"]))
            return {"seconds": 1.0, "memory_mb": 100, "difference": 0.0, "speedup": ratio(1.5)}
        paths = [Path(argument).stem.rpartition("-cpu-")[0] for argument in arguments if argument.endswith(".onnx")][1:]
        if "--profile" in arguments:
            return {"profiles": [{"rows": KERNELS}] * (1 + len(paths))}
        found.append((arguments[arguments.index("--threads") + 1], sorted(paths)))
        times = {"minimum": 0.002, "median": 0.002, "spread": 0.1}
        return {"cases": [{"timings": [times, *({**times, "speedup": ratio()} for _ in paths)]}]}

    monkeypatch.setattr(models, "export", lambda model: source)
    monkeypatch.setattr(tools, "run", optimize)
    monkeypatch.setattr(run, "job", job)
    return found


def measured(plan: Plan, path: Path) -> Results:
    """What a run leaves in its file."""
    run.run(plan, path)
    return Results.read(path)


def test_a_run_times_each_outcome_in_each_setting_several_times(asked: list[Any], tmp_path: Path) -> None:
    plan = Plan([NET], [PLAIN, "onnxsim", "graphopt"], SETTINGS, 1.0, search=5.0)
    found = measured(plan, tmp_path / "cpu.jsonl")
    one = [("onnxsim", 1, 0.0), ("graphopt", 1, 5.0), *[("1", ["graphopt", "onnxsim", PLAIN])] * PROCESSES]
    assert asked == [
        *one,
        ("onnxsim", 0, 0.0),
        ("graphopt", 0, 5.0),
        *[("0", ["graphopt", "onnxsim", PLAIN])] * PROCESSES,
    ]
    assert found.settings == ["cpu-1", "cpu-all"] and found.tools == ["onnxsim", "graphopt"]
    original, row = found.get(NET, ORIGINAL, "cpu-1"), found.get(NET, "graphopt", "cpu-1")
    assert (original["family"], original["minimum_ms"], original["headroom"]) == ("ResNet", 2.0, 1.25)
    assert (row["nodes"], row["difference"], row["timing"]["rounds"]) == (7, 0.0, 30)
    assert row["made"]["search"] == 5.0 and row["made"]["sources"] and row["made"]["versions"]["graphopt"]
    assert row["made"]["machine"] == environment.machine() and "search" not in found.get(NET, PLAIN, "cpu-1")["made"]


def test_each_search_is_as_long_as_its_column_says_unless_a_shorter_one_ended(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = ["graphopt-5s", "graphopt-15s", "graphopt", "graphopt-ort"]
    plan = Plan([NET], searches, SETTINGS[:1], 1.0)
    measured(plan, tmp_path / "all.jsonl")
    assert asked[:4] == [
        ("graphopt-5s", 1, 5.0),
        ("graphopt-15s", 1, 15.0),
        ("graphopt", 1, 60.0),
        ("graphopt-ort", 1, 15.0),
    ]
    asked.clear()
    optimize = tools.run
    done = {"search": {"stop": str(StopReason.DONE), "timed": False}}
    monkeypatch.setattr(tools, "run", lambda task, limit: optimize(task, limit) | done)
    measured(plan, tmp_path / "untimed.jsonl")
    assert [what[0] for what in asked][:4] == searches, "with more time it may be timed"
    asked.clear()
    done["search"]["timed"] = True
    found = measured(plan, tmp_path / "done.jsonl")
    assert [what[0] for what in asked] == ["graphopt-5s", "graphopt-ort", *["1"] * PROCESSES], (
        "of another target it is another"
    )
    assert [found.get(NET, tool, "cpu-1")["made"]["search"] for tool in searches] == [5.0, 15.0, 60.0, 15.0]


def test_outcomes_with_the_same_bytes_are_timed_once(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    def copy(task: Task, limit: float) -> Row:
        shutil.copyfile(source, task.target)
        return {"seconds": limit, "memory_mb": 100}

    monkeypatch.setattr(tools, "run", copy)
    found = measured(Plan([NET], [PLAIN, "onnxsim", "OnnxSlim"], SETTINGS[:1], 1.0), tmp_path / "cpu.jsonl")
    assert asked == [("1", [PLAIN])] * PROCESSES
    assert found.get(NET, "OnnxSlim", "cpu-1")["timing"] == found.get(NET, PLAIN, "cpu-1")["timing"]


def test_another_engine_is_timed_in_processes_of_its_own(asked: list[Any], tmp_path: Path) -> None:
    found = measured(Plan([NET], [PLAIN, "openvino"], SETTINGS[:1], 3.0), tmp_path / "cpu.jsonl")
    assert asked == [*[("1", [PLAIN])] * PROCESSES, *[("openvino", 1.5)] * PROCESSES]
    row = found.get(NET, "openvino", "cpu-1")
    assert (row["timing"]["median"], row["timing"]["rounds"]) == (1.5, 30) and "nodes" not in row


def test_openvino_computes_what_onnx_runtime_does(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    onnx.save(model("a = Mul(x, w); y = Tanh(a)"), tmp_path / "source.onnx")
    found = engine.measure(str(tmp_path / "source.onnx"), str(tmp_path), 1, 0.0)
    assert found["difference"] < 1e-4 and found["speedup"]["median"] > 0


def test_what_is_known_is_not_measured_again(asked: list[Any], tmp_path: Path) -> None:
    path, plan = tmp_path / "cpu.jsonl", Plan([NET], [PLAIN, "onnxsim", "OnnxSlim"], SETTINGS, 1.0)
    known = measured(plan, path)
    asked.clear()
    assert measured(plan, path) == known and asked == []
    write_rows(path, [row for row in known.rows if (row["tool"], row["setting"]) != ("onnxsim", "cpu-all")])
    assert measured(plan, path) == known
    assert asked == [("onnxsim", 0, 0.0), *[("0", ["onnxsim", PLAIN])] * PROCESSES], "a copy takes part in each timing"
    asked.clear()
    measured(replace(plan, tools=["OnnxSlim"], settings=SETTINGS[:1], again=True), path)
    assert [what[0] for what in asked] == ["OnnxSlim", *["1"] * PROCESSES], "of what is named alone"


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"date": "2020-01-01", "graphopt": "another-commit"}, False),
        ({"sources": "other"}, True),
        ({"file": "other"}, True),
        ({"versions": {"onnxruntime": "1.0"}}, True),
        ({"seconds": 9.0}, True),
        ({"search": 9.0}, True),
    ],
)
def test_what_was_made_under_other_circumstances_is_measured_again(
    change: Row, again: bool, asked: list[Any], tmp_path: Path, source: Path
) -> None:
    path, plan = tmp_path / "cpu.jsonl", Plan([NET], ["graphopt"], SETTINGS[:1], 1.0)
    original, row = measured(plan, path).rows
    write_rows(path, [original, row | {"made": row["made"] | change}])
    asked.clear()
    found = measured(plan, path)
    assert bool(asked) is again
    assert found.get(NET, "graphopt", "cpu-1")["made"]["file"] == environment.file_digest(source)


def test_a_failure_is_a_result_that_names_no_folder_of_its_run(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = tmp_path / "cpu.jsonl", Plan([NET], ["onnxsim", "OnnxSlim"], SETTINGS[:1], 1.0)
    optimize = tools.run

    def fail(task: Task, limit: float) -> Row:
        return {"error": f"{task.target} cannot be written"} if task.tool == "onnxsim" else optimize(task, limit)

    monkeypatch.setattr(tools, "run", fail)
    found = measured(plan, path)
    assert found.get(NET, "onnxsim", "cpu-1")["error"] == "onnxsim-cpu-1.onnx cannot be written"
    asked.clear()
    assert measured(plan, path) == found and asked == []


@pytest.mark.usefixtures("asked")
def test_a_file_is_measured_as_it_is(tmp_path: Path, source: Path) -> None:
    found = measured(Plan([str(source), NET], ["onnxsim"], SETTINGS[:1], 1.0), tmp_path / "cpu.jsonl")
    assert list(found.models) == [NET, str(source)], "behind those of the suite"
    original = found.models[str(source)]
    assert (original["family"], original["exporters"], original["nodes"]) == ("net", {}, 7)
    measured(Plan(["missing.onnx"], ["onnxsim"], SETTINGS[:1], 1.0), tmp_path / "other.jsonl")
    assert Results.read(tmp_path / "other.jsonl").rows[0]["error"].startswith("the file: FileNotFoundError")


def test_a_file_that_was_made_elsewhere_is_not_added_to(asked: list[Any], tmp_path: Path) -> None:
    path, plan = tmp_path / "cpu.jsonl", Plan([NET], ["onnxsim"], SETTINGS[:1], 1.0)
    write_rows(path, [row | {"made": row["made"] | {"machine": "another"}} for row in measured(plan, path).rows])
    asked.clear()
    with pytest.raises(UsageError, match=r"is of another machine, another and not .*; name another with --output"):
        run.run(plan, path)
    assert asked == []


def test_without_the_exporters_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def export(_: Model) -> Path:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(models, "export", export)
    with pytest.raises(UsageError, match=r"torch is missing.*pip install -e '\.\[cpu,bench\]'"):
        run.run(Plan([NET], ["onnxsim"], SETTINGS, 1.0), tmp_path / "cpu.jsonl")
    assert not (tmp_path / "cpu.jsonl").exists()


def test_an_export_that_fails_is_an_error_of_the_original(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def export(model: Model) -> Path:
        raise ValueError(f"no {model.name}")

    monkeypatch.setattr(models, "export", export)
    rows = measured(Plan([NET], ["onnxsim"], SETTINGS, 1.0), tmp_path / "cpu.jsonl").rows
    assert [(row["tool"], row["setting"]) for row in rows] == [(ORIGINAL, "cpu-1"), (ORIGINAL, "cpu-all")]
    assert rows[0]["family"] == "ResNet" and rows[0]["error"] == f"export: ValueError: no {NET}"


def test_a_device_that_does_not_start_ends_the_run(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise UsageError("CUDAExecutionProvider does not start")

    monkeypatch.setattr(SessionSetting, "is_cpu", False)
    monkeypatch.setattr(SessionSetting, "open", fail)
    with pytest.raises(UsageError, match="does not start"):
        run.run(Plan([NET], ["onnxsim"], SETTINGS[:1], 1.0), tmp_path / "cpu.jsonl")
    assert asked == [] and not (tmp_path / "cpu.jsonl").exists()


def test_an_interrupted_run_keeps_what_is_done_and_goes_on(
    asked: list[Any],
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "cpu.jsonl"
    arguments = ["run", "--models", *QUICK[:2], "--tools", "onnxsim", "--threads", "1", "--output", str(path)]

    def interrupted(model: Model) -> Path:
        if model.name == QUICK[1]:
            raise KeyboardInterrupt
        return source

    with monkeypatch.context() as patched:
        patched.setattr(models, "export", interrupted)
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err
    assert list(Results.read(path).models) == [QUICK[0]]
    asked.clear()
    commands.main(arguments)
    assert list(Results.read(path).models) == list(QUICK[:2])
    assert [what[0] for what in asked] == ["onnxsim", *["1"] * PROCESSES], "the first model is not measured again"


def test_a_model_with_open_sizes_is_timed_at_each(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[tuple[str, ...]]()

    def job(module: str, *arguments: str, limit: float) -> Row:
        assert module == "graphopt" and limit > 0
        said.append(arguments)
        cases = [
            {"sizes": {"n": n}, "timings": [{"median": 0.002}, {"speedup": ratio(1.0 + n / 10)}]} for n in (1, 2, 4)
        ]
        return {"cases": cases}

    monkeypatch.setattr(open_sizes, "job", job)
    monkeypatch.setattr(open_sizes, "locate_source", lambda name: source)
    monkeypatch.setattr(open_sizes, "OPEN", {"net.open": {"n": [1, 2, 4]}})
    page = open_sizes.run(["net.open"], 3.0, tmp_path / "open.jsonl").with_suffix(".md").read_text()
    assert [arguments[0] for arguments in said] == ["optimize", "bench"]
    assert all("--dim=n=1,2,4" in arguments for arguments in said)
    assert "| net | n: 1: 2.00 ms, ▲ 1.10 (1.10–1.10) | n: 2: 2.00 ms, ▲ 1.20" in page


# -- checks ------------------------------------------------------------------------------------------------------------


def model(body: str) -> onnx.ModelProto:
    """From `x` to `y`; `w` is a weight."""
    return parse("float[4,8] x", body, {"w": np.full(8, 0.5, np.float32)}, outputs="float[4,8] y")


def checked(folder: Path, original: str, outcome: str | onnx.ModelProto, provider: str = "cpu") -> Row:
    """What is found of an outcome, or of the original."""
    onnx.save(model(original), folder / "source.onnx")
    onnx.save(model(outcome) if isinstance(outcome, str) else outcome, folder / "target.onnx")
    source, target = str(folder / "source.onnx"), str(folder / "target.onnx")
    return checks.reference(source, str(folder)) or checks.check(source, target, str(folder), provider, 1)


def test_what_computes_the_same_is_right(tmp_path: Path) -> None:
    found = checked(tmp_path, "a = Mul(x, w); y = Tanh(a)", "a = Mul(w, x); y = Tanh(a)")
    assert found["difference"] == pytest.approx(0, abs=1e-6) and found["loading"] > 0


@pytest.mark.parametrize("offset", ["0.0", "1.0", "100.0"])
def test_an_outcome_that_ignores_its_input_is_wrong(offset: str, tmp_path: Path) -> None:
    """However small what the input decides is beside the rest."""
    found = checked(
        tmp_path, f"a = Mul(x, w); y = Add(a, {offset})", f"z = Mul(x, 0.0); a = Mul(z, w); y = Add(a, {offset})"
    )
    assert "of how far they move" in found["wrong"]


@pytest.mark.parametrize(
    ("outcome", "own", "is_wrong"),
    [(0.35, 0.3, False), (0.65, 0.3, True), (0.95, 0.6, True), (9.0, float("nan"), True), (9.0, 9.0, True)],
)
def test_an_outcome_may_differ_twice_as_far_as_the_runtime_itself(
    outcome: float, own: float, is_wrong: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of quantized models, where a number that is rounded otherwise is another quantum.

    What the runtime itself makes of a model excuses nothing where it is as far away as what it makes of other inputs.
    """
    computed = checks.computed
    shifts = {True: {"source.onnx": own, "target.onnx": outcome}, False: {"source.onnx": 0.0}}

    def opened(setting: SessionSetting, path: str, optimize: bool = True) -> tuple[Any, float]:
        return opening(setting, path, optimize=optimize), shifts[optimize][Path(path).name]

    def shifted(session: tuple[Any, float], *arguments: Any) -> dict[str, Any]:
        return {name: values + session[1] for name, values in computed(session[0], *arguments).items()}

    opening = SessionSetting.open
    monkeypatch.setattr(SessionSetting, "open", opened)
    monkeypatch.setattr(checks, "computed", shifted)
    assert ("wrong" in checked(tmp_path, "y = Tanh(x)", "y = Tanh(x)")) is is_wrong


def unknown() -> onnx.ModelProto:
    """A model that ONNX Runtime refuses."""
    found = model("y = Tanh(x)")
    found.graph.node[-1].op_type = "Nothing"
    return found


def test_what_cannot_be_checked_says_why(tmp_path: Path) -> None:
    same = "a = Mul(x, 0.0); y = Add(a, w)"
    assert checked(tmp_path, same, same) == {"error": "insensitive: the outputs are the same for all inputs"}
    found = checked(tmp_path, "y = Tanh(x)", unknown())
    assert found["error"].startswith("does not run: ModelError") and "wrong" not in found
    onnx.save(unknown(), tmp_path / "source.onnx")
    found = checks.reference(str(tmp_path / "source.onnx"), str(tmp_path))
    assert found["error"].startswith("the original does not run: ModelError")
    renamed = parse("float[4,8] x", "z = Tanh(x)", outputs="float[4,8] z")
    assert checked(tmp_path, "y = Tanh(x)", renamed) == {"wrong": "the outputs have other names"}


def test_differences_are_relative_to_how_far_outputs_move() -> None:
    still = {"y": np.ones(100)}
    moved = [{"y": np.ones(100) + shift} for shift in (0.0, 0.5, 2.0)]
    assert checks.movement(moved) == {"y": pytest.approx(2.0)}
    assert checks.difference(still, {"y": still["y"] + 0.1}, {"y": 2.0}) == pytest.approx(0.05)
    assert checks.difference(still, {"y": still["y"] + 1e-6}, {"y": 0.0}) == pytest.approx(1e-5)  # rounding
    assert checks.is_insensitive([still, {"y": still["y"] + 1e-7}]) and not checks.is_insensitive(moved)
    for other in ({"y": np.ones(4)}, {"z": np.ones(100)}, {"y": np.full(100, np.nan)}):
        assert checks.difference(still, other, {"y": 1.0}) == float("inf")
    assert checks.difference({"y": np.ones(0)}, {"y": np.ones(0)}, {"y": 1.0}) == 0


# -- timings -----------------------------------------------------------------------------------------------------------


def test_an_interval_holds_what_each_process_found() -> None:
    timing = run.pooled([ratio(1.1, 30), ratio(1.2, 30), ratio(1.06, 7)])
    assert (timing["low"], timing["high"]) == (1.06, 1.2)
    assert timing["processes"] == [1.1, 1.2, 1.06] and timing["rounds"] == 67


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [
        ((1.1, 1.2, 1.05), "faster"),
        ((0.9, 0.8, 0.95), "slower"),
        ((1.2, 1.2, 1.005), "no difference"),
        ((0.9, 0.9, 0.995), "no difference"),
    ],
)
def test_faster_is_what_is_faster_in_each_process(medians: tuple[float, ...], verdict: str) -> None:
    assert run.pooled([ratio(median) for median in medians])["verdict"] == verdict


@pytest.mark.slow
def test_an_outcome_that_crashes_takes_no_other_timing_along(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an original that cannot be timed is an error of its own: no tool is to be blamed."""

    def optimize(task: Task, _: float) -> Row:
        onnx.save(unknown() if task.tool == "OnnxSlim" else onnx.load(source), task.target)
        return {"seconds": 1.0, "memory_mb": 100}

    monkeypatch.setattr(models, "export", lambda model: source)
    monkeypatch.setattr(tools, "run", optimize)
    monkeypatch.setattr(run._Run, "check", lambda self, kind, arguments: {})
    plan = Plan([NET], ["onnxsim", "OnnxSlim"], SETTINGS[:1], 0.01)
    found = measured(plan, tmp_path / "cpu.jsonl")
    timing = found.get(NET, "onnxsim", "cpu-1")["timing"]
    assert (
        timing["rounds"] >= 11 * PROCESSES
        and len(timing["processes"]) == PROCESSES
        and "error" not in found.models[NET]
    )
    bad = found.get(NET, "OnnxSlim", "cpu-1")
    assert bad["error"].startswith("timing: ") and "timing" not in bad
    monkeypatch.setattr(run, "job", lambda *arguments, limit: {"error": "no"})
    broken = measured(replace(plan, again=True, settings=SETTINGS[1:]), tmp_path / "other.jsonl")
    assert [(row["tool"], row["error"]) for row in broken.rows] == [(ORIGINAL, "timing, cpu-all: no")]


@pytest.mark.slow
def test_a_process_that_takes_too_long_or_crashes_has_an_error() -> None:
    assert environment.job("timeit", "-n", "1", "import time; time.sleep(9)", limit=0.01) == {
        "error": "not done after 0 s"
    }
    assert environment.job("benchmarks.checks", "check", "{}", limit=60)["error"].startswith("TypeError: check() miss")


def test_where_no_heavy_kernel_is_known_there_is_no_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    some = run._Run(NET, Plan([], [], SETTINGS, 1.0), SETTINGS[0], Results(()), Path())
    for told in ({"profiles": [{"rows": KERNELS[1:]}]}, {"error": "crashed"}):
        monkeypatch.setattr(run, "job", lambda *arguments, limit, told=told: told)
        assert some.headroom(Path("net.onnx")) == {"headroom": None}


# -- other providers ---------------------------------------------------------------------------------------------------

OTHER = "AzureExecutionProvider"


@pytest.mark.skipif(
    OTHER not in require_onnxruntime().get_available_providers(), reason="this onnxruntime has the CPU's provider only"
)
def test_outcomes_are_checked_with_the_provider_in_one_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[str, bool]]()
    plain_open = SessionSetting.open

    def noted(self: SessionSetting, model: Any, **options: Any) -> Any:
        opened.append((self.provider, options.get("optimize", True)))
        return plain_open(self, model, **options)

    monkeypatch.setattr(SessionSetting, "open", noted)
    assert "difference" in checked(tmp_path, "y = Tanh(x)", "y = Tanh(x)", provider=OTHER)
    assert opened[:2] == [("cpu", False), (OTHER, True)]
    assert commands._settings(OTHER, None) == [SessionSetting(OTHER, 1)]
    with pytest.raises(UsageError, match="--threads takes one number"):
        commands._settings(OTHER, [1, 2])
    monkeypatch.setattr(run, "gpu", lambda: "a processor")
    some = run._Run(NET, Plan([], [], [], 1.0), SessionSetting(OTHER, 1), Results(()), tmp_path)
    assert some.circumstances(PLAIN, "")["gpu"] == "a processor"
