"""Runs of the benchmarks: what is measured and kept, checks, timings in several processes, tools, commands.

What is shown of them is in test_report_benchmarks.py, the models are in test_models.py.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from benchmarks import __main__ as commands
from benchmarks import checks, run, scaling, tools, trials
from benchmarks.models import FIXTURES, MODELS, QUICK, SUITE
from benchmarks.run import Outcome, Plan
from benchmarks.tools import PLAIN, Task
from graphopt.base.engine import Here
from graphopt.base.errors import UsageError
from graphopt.base.ort import require_onnxruntime
from graphopt.runtime.profile import Profile, Row
from graphopt.runtime.sessions import Setting
from tests import zoo
from tests.text import parse

NET, SECOND = "resnet50.dynamo", "resnet50.torchscript"
SETTINGS = (Setting(threads=1), Setting(threads=0))


def test_the_suite_has_36_models_of_12_families_and_a_quick_part() -> None:
    assert len(SUITE) >= 36 and len({MODELS[name].architecture.family for name in SUITE}) >= 12
    assert set(QUICK) < set(SUITE)
    assert sorted(FIXTURES) == sorted(zoo.names())


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_synthetic_graphs_are_valid_and_leave_something_to_do(kind: str) -> None:
    model = scaling.KINDS[kind](100)
    onnx.checker.check_model(model, full_check=True)
    assert 100 <= len(model.graph.node) < 160
    assert len(graphopt.optimize(model, cost="none").model.graph.node) < 0.8 * len(model.graph.node)


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, source: Path) -> list[Any]:
    """What a run asks for, which nobody then does: each task and the tools in each timing."""
    found = list[Any]()

    def optimize(task: Task, limit: float) -> dict[str, Any]:
        assert limit > 0
        if task.tool != PLAIN:
            found.append((task.tool, task.threads, task.seconds))
        onnx.save(scaling.convolutional(3), task.target)
        return {"seconds": 1.0, "memory_mb": 100}

    def job(kind: str, job: Any, limit: float) -> dict[str, Any]:
        assert limit > 0
        if kind != "time":
            return {"difference": 0.0} if kind == "check" else {}
        if job["number"] == 0:
            found.append((job["threads"], sorted(job["outcomes"])))
        names = ["", *job["outcomes"]]
        return {"samples": dict.fromkeys(names, [1.0] * 9), "loads": dict.fromkeys(names, 1.0), "headroom": 1.0}

    monkeypatch.setattr(run, "export", lambda name: source)
    monkeypatch.setattr(tools, "run", optimize)
    monkeypatch.setattr(run, "_job", job)
    return found


def test_a_tool_that_searches_is_run_and_timed_in_each_setting(asked: list[Any], source: Path) -> None:
    row = run.measure(NET, source, Plan([], ["onnxsim", "graphopt"], SETTINGS, 1.0, search=5.0), {})
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


def test_what_is_known_is_not_measured_again(asked: list[Any], source: Path) -> None:
    plan = Plan([], ["onnxsim", "graphopt"], SETTINGS, 1.0)
    row = run.measure(NET, source, plan, {})
    asked.clear()
    assert run.measure(NET, source, plan, row) == row and asked == []
    del row["tools"]["graphopt"]["settings"]["cpu-all"]
    run.measure(NET, source, plan, row)
    assert [what[0] for what in asked] == ["graphopt", 0]


def test_the_original_takes_turns_with_its_copy_in_each_timing(asked: list[Any], source: Path) -> None:
    plan = Plan([], [PLAIN, "onnxsim", "OnnxSlim"], SETTINGS[:1], 1.0)
    row = run.measure(NET, source, plan, {})
    del row["tools"]["onnxsim"]
    asked.clear()
    run.measure(NET, source, plan, row)
    assert asked == [("onnxsim", 1, 60.0), (1, ["onnxsim", PLAIN])]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda made: made.update(date="2020-01-01", graphopt="another-commit"), False),
        (lambda made: made.update(sources="other"), True),
        (lambda made: made.update(model="other"), True),
        (lambda made: made["versions"].update(onnxruntime="1.0"), True),
        (lambda made: made.update(seconds=9.0), True),
        (lambda made: made.update(search=9.0), True),
    ],
)
def test_what_was_made_under_other_circumstances_is_measured_again(
    change: Callable[[dict[str, Any]], None], again: bool, asked: list[Any], source: Path
) -> None:
    plan = Plan([], ["graphopt"], SETTINGS[:1], 1.0)
    row = run.measure(NET, source, plan, {})
    asked.clear()
    change(row["tools"]["graphopt"]["settings"]["cpu-1"]["made"])
    after = run.measure(NET, source, plan, row)
    assert bool(asked) is again
    made = after["tools"]["graphopt"]["settings"]["cpu-1"]["made"]
    assert made["model"] == after["model"] == run.digest(source) and made["sources"]


def test_a_reason_names_no_folder_of_its_run(asked: list[Any], source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Task, _: float) -> dict[str, Any]:
        return {"error": f"{task.target} cannot be written"}

    monkeypatch.setattr(tools, "run", fail)
    row = run.measure(NET, source, Plan([], ["onnxsim"], SETTINGS[:1], 1.0), {})
    assert row["tools"]["onnxsim"]["error"] == "onnxsim.onnx cannot be written" and asked == [(1, [])]


def test_another_export_drops_the_numbers_of_its_row(asked: list[Any], source: Path) -> None:
    plan = Plan([], ["onnxsim"], SETTINGS[:1], 1.0)
    row = json.loads(json.dumps(run.measure(NET, source, plan, {})))
    onnx.save(scaling.convolutional(30), source)
    asked.clear()
    after = run.measure(NET, source, plan, row)
    assert len(asked) == 2 and after["nodes"] > row["nodes"] and after["model"] != row["model"]
    assert after["original"]["cpu-1"]["made"]["model"] == after["model"]


def test_what_is_named_is_measured_again(asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    run.run(Plan([NET], ["onnxsim", "OnnxSlim"], SETTINGS, 1.0), path)
    first = run.read(path)
    asked.clear()
    run.run(Plan([NET], ["onnxsim"], SETTINGS, 1.0, again=True), path)
    assert [what[0] for what in asked] == ["onnxsim", 1, 0]
    assert run.read(path)["models"][NET]["tools"].keys() == first["models"][NET]["tools"].keys()


class Cluster(Here):
    """Stands for two workers, which export for themselves and say what machines they are."""

    def __init__(self, *machines: str) -> None:
        self.machines = machines

    def each(self, function: Any, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for place, answer in reversed(list(super().each(function, tasks))):
            if isinstance(answer, tuple):
                answer[0]["machine"] = self.machines[place % len(self.machines)]
            else:
                answer["machine"] = self.machines[0]
            yield place, answer


def test_a_cluster_of_equal_machines_measures_a_model_each(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan([NET, SECOND], ["onnxsim"], SETTINGS[:1], 1.0, dask="tcp://host:8786")
    monkeypatch.setattr(run, "engine", lambda dask: Cluster("a board", "a board"))
    run.run(plan, tmp_path / "alike.json")
    found = run.read(tmp_path / "alike.json")
    assert found["machine"] == "a board" and list(found["models"]) == [NET, SECOND] and len(asked) == 4
    monkeypatch.setattr(run, "engine", lambda dask: Cluster("a board", "a phone"))
    with pytest.raises(UsageError, match="the workers are not alike"):
        run.run(plan, tmp_path / "others.json")


def test_other_settings_are_not_measured_again(asked: list[Any], tmp_path: Path) -> None:
    path, plan = tmp_path / "cpu.json", Plan([NET], ["graphopt"], SETTINGS, 1.0)
    run.run(plan, path)
    first = run.read(path)["models"][NET]["tools"]["graphopt"]["settings"]
    asked.clear()
    run.run(replace(plan, settings=SETTINGS[:1], again=True), path)
    assert [what[:2] for what in asked] == [("graphopt", 1), (1, ["graphopt"])]
    assert run.read(path)["models"][NET]["tools"]["graphopt"]["settings"]["cpu-all"] == first["cpu-all"]


def test_what_failed_is_measured_again_on_request(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = tmp_path / "cpu.json", Plan([NET], ["onnxsim", "OnnxSlim"], SETTINGS[:1], 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(
            tools, "run", lambda task, limit: {"error": "not done"} if task.tool == "onnxsim" else {"error": ""}
        )
        run.run(plan, path)
    assert run.read(path)["models"][NET]["tools"]["onnxsim"]["error"] == "not done"
    asked.clear()
    run.run(plan, path)
    assert asked == []
    run.run(replace(plan, failed=True), path)
    assert ("onnxsim", 1, 60.0) in asked
    assert "error" not in run.read(path)["models"][NET]["tools"]["onnxsim"]


def test_without_the_exporters_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def export(_: str) -> Path:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(run, "export", export)
    with pytest.raises(UsageError, match=r"torch is missing.*pip install -e '\.\[cpu,bench\]'"):
        run.run(Plan([NET], ["onnxsim"], SETTINGS, 1.0), tmp_path / "cpu.json")
    assert not (tmp_path / "cpu.json").exists()


def test_a_device_that_does_not_start_ends_the_run(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise UsageError("CUDAExecutionProvider does not start")

    monkeypatch.setattr(Setting, "is_cpu", False)
    monkeypatch.setattr(Setting, "open", fail)
    with pytest.raises(UsageError, match="does not start"):
        run.run(Plan([NET], ["onnxsim"], SETTINGS[:1], 1.0), tmp_path / "cpu.json")
    assert asked == [] and not (tmp_path / "cpu.json").exists()


def test_the_date_is_that_of_the_last_measurement(asked: list[Any], tmp_path: Path) -> None:
    path, plan = tmp_path / "cpu.json", Plan([NET], ["onnxsim"], SETTINGS[:1], 1.0)
    run.run(plan, path)
    path.write_text(json.dumps(run.read(path) | {"date": "2020-01-01"}))
    run.run(plan, path)
    assert run.read(path)["date"] == "2020-01-01"
    asked.clear()
    run.run(Plan([NET], ["onnxsim"], SETTINGS[:1], 2.0), path)
    assert run.read(path)["date"] > "2020-01-01" and asked


def test_a_file_that_was_made_elsewhere_is_not_added_to(asked: list[Any], tmp_path: Path) -> None:
    path, plan = tmp_path / "cpu.json", Plan([NET], ["onnxsim"], SETTINGS, 1.0)
    run.run(plan, path)
    assert run.read(path)["machine"] == checks.machine() and run.read(path)["spinning"] is False
    path.write_text(json.dumps(run.read(path) | {"machine": "another"}))
    asked.clear()
    with pytest.raises(UsageError, match=r"has another machine, another and not .*; name another with --output"):
        run.run(plan, path)
    assert asked == []


def test_an_export_that_fails_is_an_error_of_the_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def export(name: str) -> Path:
        raise ValueError(f"no {name}")

    monkeypatch.setattr(run, "export", export)
    run.run(Plan([NET], ["onnxsim"], SETTINGS, 1.0), tmp_path / "cpu.json")
    row = run.read(tmp_path / "cpu.json")["models"][NET]
    assert row == {"family": "ResNet", "error": f"export: ValueError: no {NET}"}


def test_an_interrupted_run_keeps_what_is_done_and_goes_on(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, measure = tmp_path / "cpu.json", run.measure
    arguments = ["run", "--models", *QUICK[:2], "--tools", "onnxsim", "--threads", "1", "--output", str(path)]

    def interrupted(name: str, *others: Any) -> dict[str, Any]:
        if name == QUICK[1]:
            raise KeyboardInterrupt
        return measure(name, *others)

    with monkeypatch.context() as patched:
        patched.setattr(run, "measure", interrupted)
        with pytest.raises(SystemExit) as ended:
            commands.main(arguments)
    assert ended.value.code == 130 and "interrupted" in capsys.readouterr().err
    assert list(run.read(path)["models"]) == [QUICK[0]]
    asked.clear()
    commands.main(arguments)
    assert list(run.read(path)["models"]) == list(QUICK[:2])
    assert [what[0] for what in asked] == ["onnxsim", 1], "the first model is not measured again"


# -- checks ------------------------------------------------------------------------------------------------------------


def model(body: str) -> onnx.ModelProto:
    """From `x` to `y`; `w` is a weight."""
    return parse("float[4,8] x", body, {"w": np.full(8, 0.5, np.float32)}, outputs="float[4,8] y")


def checked(folder: Path, original: str, outcome: str | onnx.ModelProto, provider: str = "cpu") -> dict[str, Any]:
    """What is found of an outcome, or of the original."""
    onnx.save(model(original), folder / "source.onnx")
    onnx.save(model(outcome) if isinstance(outcome, str) else outcome, folder / "target.onnx")
    paths = {"source": str(folder / "source.onnx"), "target": str(folder / "target.onnx"), "folder": str(folder)}
    return trials.reference(paths) or trials.check({**paths, "provider": provider, "threads": 1})


def test_what_computes_the_same_is_right(tmp_path: Path) -> None:
    found = checked(tmp_path, "a = Mul(x, w); y = Tanh(a)", "a = Mul(w, x); y = Tanh(a)")
    assert found == {"difference": pytest.approx(0, abs=1e-6)}


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
    computed = trials._computed
    shifts = {True: {"source.onnx": own, "target.onnx": outcome}, False: {"source.onnx": 0.0}}

    def opened(setting: Setting, path: str, optimize: bool = True) -> tuple[Any, float]:
        return opening(setting, path, optimize=optimize), shifts[optimize][Path(path).name]

    def shifted(session: tuple[Any, float], source: str, seed: int) -> dict[str, Any]:
        return {name: values + session[1] for name, values in computed(session[0], source, seed).items()}

    opening = Setting.open
    monkeypatch.setattr(Setting, "open", opened)
    monkeypatch.setattr(trials, "_computed", shifted)
    assert ("wrong" in checked(tmp_path, "y = Tanh(x)", "y = Tanh(x)")) is is_wrong


def test_an_original_that_ignores_its_input_cannot_be_checked(tmp_path: Path) -> None:
    same = "a = Mul(x, 0.0); y = Add(a, w)"
    assert checked(tmp_path, same, same) == {
        "error": "insensitive: the outputs are the same for all inputs",
        "insensitive": True,
    }


def unknown() -> onnx.ModelProto:
    """A model that ONNX Runtime refuses."""
    found = model("y = Tanh(x)")
    found.graph.node[-1].op_type = "Nothing"
    return found


def test_what_does_not_run_is_an_error_and_not_wrong(tmp_path: Path) -> None:
    found = checked(tmp_path, "y = Tanh(x)", unknown())
    assert found["error"].startswith("does not run: ModelError") and "wrong" not in found


def test_an_original_that_does_not_run_is_an_error_of_the_row(tmp_path: Path) -> None:
    onnx.save(unknown(), tmp_path / "source.onnx")
    found = trials.reference({"source": str(tmp_path / "source.onnx"), "folder": str(tmp_path)})
    assert found["error"].startswith("the original does not run: ModelError")


def test_outputs_of_other_names_are_wrong(tmp_path: Path) -> None:
    renamed = parse("float[4,8] x", "z = Tanh(x)", outputs="float[4,8] z")
    assert checked(tmp_path, "y = Tanh(x)", renamed) == {"wrong": "the outputs have other names"}


def test_differences_are_relative_to_how_far_outputs_move() -> None:
    still = {"y": np.ones(100)}
    moved = [{"y": np.ones(100) + shift} for shift in (0.0, 0.5, 2.0)]
    assert checks.movement(moved) == {"y": pytest.approx(2.0)}
    assert checks.difference(still, {"y": still["y"] + 0.1}, {"y": 2.0}) == pytest.approx(0.05)
    assert checks.difference(still, {"y": still["y"] + 1e-6}, {"y": 0.0}) == pytest.approx(1e-5)  # rounding
    assert checks.is_insensitive([still, {"y": still["y"] + 1e-7}]) and not checks.is_insensitive(moved)


def test_outputs_of_other_shapes_and_nans_differ_without_end() -> None:
    one = {"y": np.ones(3)}
    for other in ({"y": np.ones(4)}, {"z": np.ones(3)}, {"y": np.full(3, np.nan)}):
        assert checks.difference(one, other) == float("inf")
    assert checks.difference({"y": np.ones(0)}, {"y": np.ones(0)}) == 0


# -- timings -----------------------------------------------------------------------------------------------------------


def part(*ratios: float) -> dict[str, Any]:
    """What one process finds of an outcome, with these ratios in its rounds."""
    times = {"": list(ratios), "tool": [1.0] * len(ratios)}
    return {"samples": times, "loads": {"": 2.0, "tool": 1.0}, "headroom": 1.5}


def test_an_interval_holds_what_each_process_found() -> None:
    timing = run.pooled([part(*[1.1] * 30), part(*[1.2] * 30), part(*[1.06] * 3)])["outcomes"]["tool"]
    assert (timing["low"], timing["high"]) == (1.06, 1.2)
    assert timing["processes"] == [1.1, 1.2, 1.06] and timing["rounds"] == 63 and timing["loading"] == 0.5


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [
        ((1.1, 1.2, 1.05), "faster"),
        ((0.9, 0.8, 0.95), "slower"),
        ((1.2, 1.2, 0.99), "no difference"),
        ((1.2, 1.2, 1.01), "no difference"),
        ((0.9, 0.9, 0.99), "no difference"),
    ],
)
def test_faster_is_what_is_faster_in_each_process(medians: tuple[float, ...], verdict: str) -> None:
    found = run.pooled([part(*[ratio] * 9) for ratio in medians])
    assert found["outcomes"]["tool"]["verdict"] == verdict


@pytest.mark.slow
def test_an_outcome_that_crashes_takes_no_other_timing_along(source: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    good = Outcome("onnxsim", source, SETTINGS[:1], {}, {})
    bad = Outcome("OnnxSlim", tmp_path / "bad.onnx", SETTINGS[:1], {}, {})
    row: dict[str, Any] = {"original": {}}
    run._time(row, [good, bad], source, SETTINGS[0], Plan([], [], SETTINGS[:1], 0.01), {"date": "today"})
    assert "error" not in row and row["original"]["cpu-1"]["made"] == {"date": "today"}
    timing = good.cell["timings"]["cpu-1"]
    assert timing["rounds"] >= 21 and len(timing["processes"]) == 3
    assert bad.cell["error"].startswith("timing: ") and "timings" not in bad.cell


@pytest.mark.slow
def test_an_original_that_cannot_be_timed_is_an_error_of_the_row(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    row: dict[str, Any] = {"original": {}}
    onnx.save(model("y = Relu(x)"), tmp_path / "good.onnx")
    good = Outcome("onnxsim", tmp_path / "good.onnx", SETTINGS[:1], {}, {})
    run._time(row, [good], tmp_path / "bad.onnx", SETTINGS[0], Plan([], [], SETTINGS[:1], 0.01), {})
    assert row["error"].startswith("timing, cpu-1: ") and row["original"] == {}
    assert good.cell == {}, "no tool is to be blamed"


def test_a_job_that_takes_too_long_is_given_up(source: Path) -> None:
    assert run._job("time", {"source": str(source)}, 0.01) == {"error": "not done after 0 s"}


def test_headroom_is_what_is_not_in_heavy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("FusedConv", 2, 3.0, 0.6), Row("Softmax", 1, 1.0, 0.2), Row("Gemm", 1, 1.0, 0.2))
    found = Profile("net", "CPUExecutionProvider", 20, 5.5, rows, {}, {})
    monkeypatch.setattr(trials, "profile", lambda source, setting, feeds: found)
    assert trials._headroom("net", SETTINGS[0], {}) == 1.25


def test_a_model_without_heavy_kernels_has_no_headroom_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Profile("net", "CPUExecutionProvider", 20, 5.5, (Row("Softmax", 1, 1.0, 1.0),), {}, {})
    monkeypatch.setattr(trials, "profile", lambda source, setting, feeds: found)
    assert trials._headroom("net", SETTINGS[0], {}) is None


# -- other providers ---------------------------------------------------------------------------------------------------

OTHER = "AzureExecutionProvider"
needs_another = pytest.mark.skipif(
    OTHER not in require_onnxruntime().get_available_providers(), reason="this onnxruntime has the CPU's provider only"
)


@needs_another
def test_outcomes_are_checked_and_timed_with_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[str, bool]]()
    plain_open = Setting.open

    def noted(self: Setting, model: Any, **options: Any) -> Any:
        opened.append((self.provider, options.get("optimize", True)))
        return plain_open(self, model, **options)

    monkeypatch.setattr(Setting, "open", noted)
    assert "difference" in checked(tmp_path, "y = Tanh(x)", "y = Tanh(x)", provider=OTHER)
    assert opened == [("cpu", False), (OTHER, True)]
    paths = {"source": str(tmp_path / "source.onnx"), "outcomes": {"onnxsim": str(tmp_path / "target.onnx")}}
    found = trials.timed({**paths, "provider": OTHER, "threads": 1, "seconds": 0.01, "number": 0})
    assert found["samples"].keys() == {"", "onnxsim"} and found["headroom"] is None


@needs_another
def test_a_device_has_its_name_in_the_head_and_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "gpu", lambda: "a processor")
    settings = commands._settings(OTHER, None, quick=False)
    assert settings == [Setting(OTHER, 1)]
    head = run._head(Plan([], [], settings, 1.0))
    assert head["gpu"] == "a processor" and head["provider"] == OTHER
    assert "gpu" not in run._head(Plan([], [], SETTINGS, 1.0))
    with pytest.raises(UsageError, match="--threads takes one number"):
        commands._settings(OTHER, [1, 2], quick=False)


def test_ort_fuses_for_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[Any]()

    def optimize_model(_: str, **options: Any) -> SimpleNamespace:
        said.append(options)
        return SimpleNamespace(model=scaling.convolutional(3))

    optimizer = SimpleNamespace(optimize_model=optimize_model)
    monkeypatch.setitem(sys.modules, "onnxruntime.transformers", SimpleNamespace(optimizer=optimizer))
    for provider in ("cpu", "cuda"):
        tools.optimized(Task("ort-transformers", "in.onnx", "", family="BERT", provider=provider))
    assert said == [{"model_type": "bert", "use_gpu": False}, {"model_type": "bert", "use_gpu": True}]
