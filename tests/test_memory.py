"""Memory: what a run takes, which options lower it, and budgets that are kept by computing in parts."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import graphopt
from graphopt.base.errors import UsageError
from graphopt.base.limits import LimitError, RunLimits
from graphopt.base.option_values import parse_bytes
from graphopt.base.session import current_session
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.language.rule_library import load_library
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import Simplifier
from graphopt.runtime.memory import (
    VARIANTS,
    WITHOUT_PATTERN,
    MemoryBound,
    MemoryReport,
    MemoryVariant,
    SessionMemory,
    measure_memory,
)
from graphopt.runtime.memory_probe import MemoryOptions, MemoryProbe, Resident
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.buffer_plan import execution_order, liveness_peak, plan_buffers
from graphopt.search.memory_budget import BudgetFit, BudgetFitter
from graphopt.search.memory_plan import MemoryPlanner
from graphopt.search.moves import SearchSpace
from graphopt.search.search_report import MemoryOutcome, MemoryUse
from tests.graphs import graph
from tests.text import parse

HEADS = "float[1,4,1024,8] q, float[1,4,8,1024] k, float[1,4,1024,8] v"
ATTENTION = "s = MatMul(q, k); w = Softmax<axis=-1>(s); y = MatMul(w, v)"
SCORES = 4 * 1024 * 1024 * 4
"""Bytes of the scores of all heads."""
TWO_LAYERS = f"{ATTENTION.replace('y =', 'z =')}; t = MatMul(z, k); u = Softmax<axis=-1>(t); y = MatMul(u, v)"


def run(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    return done.exit_code, done.output


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    path = tmp_path / "attention.onnx"
    onnx.save(parse(HEADS, ATTENTION, outputs="float[1,4,1024,8] y"), path)
    return path


# -- what a run takes --------------------------------------------------------------------------------------------------


def test_the_bound_is_where_the_scores_lie_in_memory(attention: Path) -> None:
    found = measure_memory(attention, SessionSetting(), variants=(WITHOUT_PATTERN,))
    assert SCORES <= found.bound.activations < 1.2 * SCORES
    assert found.usual.running.peak > SCORES
    assert found.bound.values[0].nbytes == SCORES
    assert f"{found.bound.node} is the bound: 17 MB" in str(found)
    (plain,) = json.loads(json.dumps(found.to_json()))["variants"]
    assert plain["options"] == "no memory pattern"


def test_advice_is_lines_to_paste() -> None:
    shrunk = MemoryVariant(
        "no pattern, shrunk",
        MemoryOptions({"enable_mem_pattern": False}, {"session.key": "1"}, {"memory.key": "cpu:0"}),
    )
    report = MemoryReport(
        "m.onnx",
        SessionSetting(),
        5_000_000,
        MemoryBound("Conv 'c'", 90_000_000, 0, ()),
        SessionMemory(MemoryVariant("defaults"), Resident(30_000_000, 20_000_000), Resident(400_000_000, 400_000_000)),
        (
            SessionMemory(shrunk, Resident(30_000_000, 20_000_000), Resident(200_000_000, 30_000_000), 1.01),
            SessionMemory(WITHOUT_PATTERN, Resident(30_000_000, 20_000_000), Resident(399_000_000, 399_000_000)),
        ),
    )
    assert report.unused_bytes == 290_000_000
    assert report.code.splitlines() == [
        "# no pattern, shrunk: running 200 MB instead of 400 MB, held 30 MB instead of 400 MB, at 1.01 of the time",
        "options.enable_mem_pattern = False",
        "options.add_session_config_entry('session.key', '1')",
        "run_options = onnxruntime.RunOptions()",
        "run_options.add_run_config_entry('memory.key', 'cpu:0')",
        "outputs = session.run(None, inputs, run_options)",
    ]
    options = onnxruntime.SessionOptions()
    shrunk.options.configure(options)
    assert not options.enable_mem_pattern


def test_each_variant_of_a_session_is_measured_once() -> None:
    said = [(*each.code_lines("m.onnx"), each.name) for each in VARIANTS]
    assert len({lines[:-1] for lines in said}) == len({name for *_, name in said}) == len(VARIANTS)


def test_a_run_that_never_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "endless.onnx"
    body = "y = Loop(9000000000000000000, yes, x) <body = b (int64 i, bool c, float[4] a) => (bool d, float[4] r)"
    body += " {d = Identity(c); r = Sin(a)}>"
    onnx.save(parse("float[4] x", f"yes = Equal(1, 1); {body}", outputs="float[4] y"), path)
    feeds = {"x": np.zeros(4, np.float32)}
    with (
        current_session().replace(limits=RunLimits(seconds=0.5)),
        MemoryProbe(path, SessionSetting(), feeds) as probe,
        pytest.raises(LimitError, match=r"a run takes more than 0\.5 s"),
    ):
        probe.run()


def test_no_memory_is_measured_behind_a_deadline(attention: Path) -> None:
    with pytest.raises(TimeoutError):
        MemoryProbe(attention, SessionSetting(), {}, deadline=time.monotonic())


def test_the_report_says_what_keeps_a_budget() -> None:
    line = "options.enable_mem_pattern = False"
    usual, lower = MemoryUse(400_000_000, 300_000_000, 90_000_000), MemoryUse(200_000_000, 0, 90_000_000, (line,), 1.01)
    kept = MemoryOutcome(usual, 210_000_000, lower, 4)
    assert str(kept) == (
        "a run takes 200 MB of the 210 MB budget instead of 400 MB, at 1.01 of the time: 4 operators are computed in"
        f" parts; that needs {line}"
    )
    assert kept.option_lines == (line,) and MemoryOutcome(usual, None, lower).option_lines == ()
    assert str(MemoryOutcome(usual, None, lower)) == (
        f"a run takes 400 MB, loading 90 MB; with {line} a run takes 200 MB, at 1.01 of the time"
    )
    assert "loading takes 90 MB" in str(MemoryOutcome(MemoryUse(40_000_000, 0, 90_000_000), 50_000_000))
    assert line in SessionSetting().python_code("small.onnx", kept.option_lines)


def test_a_model_that_is_not_there_is_one_line() -> None:
    code, said = run("bench", "missing.onnx", "--memory")
    assert code == 1
    assert "missing.onnx" in said and len(said.splitlines()) == 1


# -- the estimate ------------------------------------------------------------------------------------------------------


def test_onnxruntime_runs_the_last_branch_first() -> None:
    found = graph("float[4] x", "a = Neg(x); b = Abs(x); y = Concat<axis=0>(a, b)", "float[8] y")
    assert [found[vertex].op for vertex in execution_order(found)] == ["Abs", "Neg", "Concat"]


def test_equal_values_share_a_buffer_that_stays_from_the_first_to_the_last() -> None:
    found = graph(HEADS, TWO_LAYERS, "float[1,4,1024,8] y")
    (scores,) = [each for each in plan_buffers(found, execution_order(found)) if each.nbytes == SCORES]
    assert [found.value_name(value) for value in scores.values] == ["s", "w", "t", "u"]
    peak = liveness_peak(found)
    assert peak is not None and peak.nbytes < 1.1 * SCORES


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "body", "share", "wanted"),
    [
        (HEADS, ATTENTION, 0.6, "by_heads_in_2"),
        (HEADS, TWO_LAYERS, 0.6, "by_heads_in_2"),
        (HEADS.replace("[1,4,", "[1,1,"), ATTENTION, 0.6, "by_rows_in_2"),
        (HEADS, ATTENTION.replace("w =", "p = Mul(s, 0.5); w =").replace("(s);", "(p);"), 0.6, "by_heads_in_2"),
    ],
)
def test_the_largest_buffer_is_computed_in_parts(inputs: str, body: str, share: float, wanted: str) -> None:
    model = parse(inputs, body, outputs=inputs.partition(" q")[0] + " y")
    loaded = onnx_io.load_model(model)
    infer_graph(loaded.graph)
    before = liveness_peak(loaded.graph)
    assert before is not None
    library, gate = load_library(), Gate()
    space = SearchSpace(library.parts, Simplifier(library.rules, PASSES, gate.allows), gate.allows)
    steps, peak = MemoryPlanner(space, lambda each: each).fit(loaded.graph, share * before.nbytes)
    assert peak is not None and peak.nbytes <= share * before.nbytes
    assert any(wanted in step.name for step in steps)
    assert_equal_results(model, onnx_io.to_proto(loaded))


def test_convolutions_are_computed_in_tiles_of_rows() -> None:
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32) / 10
        for name, shape in (("v", (16, 2, 3, 3)), ("w", (16, 16, 3, 3)), ("u", (1, 16, 3, 3)))
    }
    around = "<pads=[1,1,1,1]>"
    body = f"a = Conv{around}(x, v); b = Relu(a); c = Conv{around}(b, w); d = Relu(c); y = Conv<strides=[2,2]>(d, u)"
    model = parse("float[1,2,127,96] x", body, weights, outputs="float[1,1,63,47] y")
    loaded = onnx_io.load_model(model)
    infer_graph(loaded.graph)
    before = liveness_peak(loaded.graph, is_reusing=False)
    assert before is not None
    library, gate = load_library(), Gate()
    space = SearchSpace(library.parts, Simplifier(library.rules, PASSES, gate.allows), gate.allows)
    steps, peak = MemoryPlanner(space, lambda each: each, is_reusing=False).fit(loaded.graph, 0.6 * before.nbytes)
    assert peak is not None and peak.nbytes <= 0.6 * before.nbytes
    assert {step.name for step in steps} >= {"compute_rows_of_conv", "compute_rows_of_pointwise"}
    assert_equal_results(model, onnx_io.to_proto(loaded))


def test_planning_ends_in_time_and_leaves_the_graph() -> None:
    loaded = onnx_io.load_model(parse(HEADS, ATTENTION, outputs="float[1,4,1024,8] y"))
    infer_graph(loaded.graph)
    before = [node for _, node in loaded.graph.nodes()]
    library, gate = load_library(), Gate()
    space = SearchSpace(library.parts, Simplifier(library.rules, PASSES, gate.allows), gate.allows)
    planner = MemoryPlanner(space, lambda each: each, seconds=0.0)
    steps, peak = planner.fit(loaded.graph, 0.0)
    assert not steps and peak is not None
    assert planner.seconds < 0 and [node for _, node in loaded.graph.nodes()] == before


def test_values_are_alike_only_where_too_much_is_in_memory() -> None:
    found = graph("float[64] x", "a = Neg(x); s = Concat<axis=0>(a, x); b = CumSum(s, 0)", "float[128] b")
    peak = liveness_peak(found)
    assert peak is not None
    largest = peak.buffers[0]
    assert peak.values_alike(largest, 0.0)
    assert not peak.values_alike(largest, peak.nbytes)


def assert_equal_results(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Run two models on the same random inputs."""
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        for value in one.graph.input
    }
    first, second = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, feeds)[0] for each in (one, other)
    )
    np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.slow
def test_a_budget_is_kept_by_parts_that_compute_the_same(attention: Path, tmp_path: Path) -> None:
    code, said = run("optimize", attention, tmp_path / "small.onnx", "--memory-budget", "16MB", "--cost", "none")
    assert code == 0, said
    assert "compute_matmul_by_heads_in_2_parts" in said and "of the 16 MB budget" in " ".join(said.split())
    assert_equal_results(onnx.load(attention), onnx.load(tmp_path / "small.onnx"))


@pytest.mark.slow
def test_a_budget_that_cannot_be_kept_names_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "exp.onnx"
    onnx.save(parse("float[4000000] x", "a = Exp(x); y = CumSum(a, 0)", outputs="float[4000000] y"), path)
    code, said = run("optimize", path, tmp_path / "out.onnx", "--memory-budget", "1MB", "--cost", "none")
    assert code == 4
    assert "a memory budget of 1 MB cannot be kept" in said and "is the bound" in said
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("text", ["much", "-1MB", "0", "1TB", ""])
def test_a_budget_is_a_size(text: str) -> None:
    with pytest.raises(UsageError, match="no size of memory"):
        graphopt.Options(memory_budget=text)


@pytest.mark.parametrize(("text", "nbytes"), [("120MB", 120_000_000), ("1.5 GiB", 3 << 29), ("64", 64), (64, 64)])
def test_sizes_have_units(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"cost": "analytic"}, "needs cost measured or none"), ({"provider": "cuda"}, "on the CPU only")],
)
def test_a_budget_has_to_be_measurable(options: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        graphopt.Options(memory_budget="1MB", **options)  # type: ignore[arg-type]


OUTCOME = MemoryOutcome(MemoryUse(3_000, 2_000, 1_000), 2_500, MemoryUse(2_000, 2_000, 1_000, (), 1.0), 2)


def test_a_speed_that_was_measured_before_the_model_was_cut_is_not_reported(
    own_cache: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two negations that cancel are taken out and timed; then the budget makes another model of it."""

    def fit(_: BudgetFitter, candidate: Candidate, budget: int) -> BudgetFit:  # noqa: ARG001
        return BudgetFit(replace(candidate), OUTCOME)

    monkeypatch.setattr(BudgetFitter, "fit", fit)
    model = parse("float[64,64] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[64,64] y")
    report = graphopt.optimize(model, seconds=8, threads=1, memory_budget="1GB").report
    assert report.timing is not None
    assert (report.timing.speedup, report.timing.latencies) == (None, ())
    assert report.timing.untimed == ("not timed: it is computed in parts, for the memory budget, since it was timed")
    assert report.memory == OUTCOME


def test_the_seconds_of_a_memory_budget_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(_: BudgetFitter, candidate: Candidate, budget: int) -> BudgetFit:  # noqa: ARG001
        time.sleep(0.3)
        return BudgetFit(candidate, OUTCOME)

    monkeypatch.setattr(BudgetFitter, "fit", fit)
    report = graphopt.optimize(parse("float[4] x", "y = Exp(x)"), cost="none", memory_budget="1GB").report
    assert 0.3 <= report.seconds["memory"] < 0.6


def test_where_no_memory_was_measured_there_is_no_such_stage() -> None:
    seconds = graphopt.optimize(parse("float[4] x", "y = Exp(x)"), cost="none").report.seconds
    assert "memory" not in seconds and "simplify" in seconds
