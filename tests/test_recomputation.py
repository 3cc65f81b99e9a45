"""Values that are computed again: what the integer program chooses, what is written, and what a step then takes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from typer.testing import CliRunner

import graphopt
from graphopt.cli.main import app
from graphopt.io import onnx_io
from graphopt.operators import inference
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.recomputation import Recomputer, Timeline, visit_shallow_outputs_first
from graphopt.search.recomputation_budget import MemoryBudget
from graphopt.search.recomputation_program import plan_recomputation
from tests.text import parse

pytest.importorskip("highspy", reason="HiGHS is in the extra [remat]")
LAYERS, ROWS, WIDTH = 6, 512, 64


def deep_model(rows: int = ROWS) -> onnx.ModelProto:
    """Layers of a product and an activation whose derivative needs what is cheap to compute again."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32) for i in range(LAYERS)}
    body, value = [], "x"
    for i in range(LAYERS):
        body.append(f"p{i} = MatMul({value}, w{i}); s{i} = Sigmoid(p{i}); h{i} = Mul(p{i}, s{i})")
        value = f"h{i}"
    return parse(
        f"float[{rows},{WIDTH}] x",
        f"{'; '.join(body)}; y = Identity({value})",
        weights,
        outputs=f"float[{rows},{WIDTH}] y",
        opset=17,
    )


def step_graph() -> onnx_io.LoadedModel:
    loaded = onnx_io.load_model(graphopt.grad(deep_model(), "mse", check=False).model)
    inference.infer_graph(loaded.graph)
    return loaded


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for name in ("x", "target")}
    found: list[np.ndarray] = session.run(None, feeds)
    return found


def test_less_lies_in_memory_and_the_result_is_the_same() -> None:
    loaded = step_graph()
    before = outputs(onnx_io.to_proto(loaded))
    timeline = Timeline(loaded.graph)
    plan = plan_recomputation(timeline, AnalyticCost().node_seconds(loaded.graph), 0.75, 60.0)
    assert plan.is_reaching
    assert plan.values
    Recomputer(loaded.graph, timeline, plan.values).run()
    loaded.graph.check_invariants()
    after = max(Timeline(loaded.graph).live_bytes())
    assert after <= 0.8 * max(timeline.live_bytes())
    for one, other in zip(before, outputs(onnx_io.to_proto(loaded)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_products_are_not_computed_again_while_cheaper_values_suffice() -> None:
    graph = step_graph().graph
    plan = plan_recomputation(Timeline(graph), AnalyticCost().node_seconds(graph), 0.8, 60.0)
    assert {graph[value.vertex].op for value in plan.values} <= {"Sigmoid", "Mul", "Sub", "Transpose"}


def test_what_cannot_be_reached_is_said() -> None:
    graph = step_graph().graph
    plan = plan_recomputation(Timeline(graph), AnalyticCost().node_seconds(graph), 0.01, 60.0)
    assert not plan.is_reaching
    assert plan.after < plan.before


def test_random_values_are_not_computed_again() -> None:
    body = "d = Dropout(x, ratio, mode); a = Exp(d); b = Exp(a); c = Exp(b); y = Add(c, d)"
    model = parse(
        "float[64,64] x",
        body,
        {"ratio": np.array(0.5, np.float32), "mode": np.array(True)},
        outputs="float[64,64] y",
        opset=17,
    )
    loaded = onnx_io.load_model(model)
    inference.infer_graph(loaded.graph)
    timeline = Timeline(loaded.graph)
    kinds = {loaded.graph[each.value.vertex].op: each.is_recomputable for each in timeline.lifetimes.values()}
    assert kinds == {"Dropout": False, "Exp": True, "Add": False}


def test_weights_are_updated_as_soon_as_their_gradients_are_known() -> None:
    graph = step_graph().graph
    visit_shallow_outputs_first(graph)
    places = Timeline(graph).places
    updates = {name: places[value.vertex] for name, value in zip(graph.output_names, graph.outputs, strict=True)}
    assert sorted(range(LAYERS), key=lambda i: -updates[f"w{i}.next"]) == list(range(LAYERS))
    assert updates["loss"] < min(updates[f"w{i}.next"] for i in range(LAYERS))


def test_a_step_keeps_a_budget() -> None:
    model = deep_model(8192)
    made = graphopt.grad(model, "mse", memory_budget=MemoryBudget("76MB", threads=1))
    found = graphopt.grad(model, "mse", memory_budget=MemoryBudget("1GB", threads=1), check=False)
    assert "values are computed again" in made.memory
    assert found.memory.endswith("of the 1,000 MB budget")


def test_a_budget_that_cannot_be_kept_names_the_bound(tmp_path: Path) -> None:
    onnx.save(deep_model(), tmp_path / "model.onnx")
    source, target = str(tmp_path / "model.onnx"), tmp_path / "train.onnx"
    done = CliRunner().invoke(app, ["grad", source, str(target), "--loss", "mse", "--memory-budget", "100KB"])
    assert done.exit_code == 4
    assert "is the bound" in done.stderr
    assert not target.exists()


@pytest.mark.parametrize("size", ["many", "0MB"])
def test_a_budget_that_is_no_size_is_refused(size: str) -> None:
    with pytest.raises(graphopt.UsageError, match="is no size of memory"):
        graphopt.grad(deep_model(), "mse", memory_budget=size)


def test_a_missing_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(graphopt.UsageError, match=r'pip install "graphopt\[remat\]"'):
        graphopt.grad(deep_model(), "mse", memory_budget="1MB", check=False)
