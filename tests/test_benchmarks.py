"""The benchmarks' own parts that need neither torch nor time: tables, comparison of two files, synthetic graphs."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from benchmarks import report, scaling
from benchmarks.models import FIXTURES, MODELS, QUICK, SUITE
from benchmarks.tools import ALL, applies, run
from tests import zoo


def results(**ratios: float) -> dict[str, Any]:
    """A result file of one model, with these ratios of tools and intervals of two hundredths."""
    return {
        "machine": "a machine",
        "versions": {"onnxruntime": "1.31"},
        "date": "2026-11-21",
        "models": {
            "net": {
                "family": "Net",
                "nodes": 10,
                "bytes": 1000,
                "original": {"cpu-1": {"minimum_ms": 2.0, "median_ms": 2.1, "spread": 0.1, "headroom": 1.5}},
                "tools": {tool: cell(ratio) for tool, ratio in ratios.items()},
            }
        },
    }


def cell(ratio: float) -> dict[str, Any]:
    timing: dict[str, Any] = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01, "load": 1.0}
    timing["verdict"] = "faster" if ratio > 1.02 else "slower" if ratio < 0.98 else "no difference"
    return {
        "seconds": 1.0, "memory_mb": 100, "nodes": 9, "bytes": 900, "difference": 1e-7, "timings": {"cpu-1": timing}
    }  # fmt: skip


def test_the_suite_has_36_models_of_12_families_and_a_quick_part() -> None:
    assert len(SUITE) >= 36 and len({MODELS[name].architecture.family for name in SUITE}) >= 12
    assert set(QUICK) < set(SUITE)
    assert sorted(FIXTURES) == sorted(zoo.names())


def test_no_gain_a_gain_and_a_loss_are_shown_as_such() -> None:
    page = report.markdown(results(onnxsim=1.0, OnnxSlim=0.9, graphopt=1.2), Path("cpu.json"))
    assert "| net | 1.50 | 2.00 | 1.00 (0.99–1.01) | ▼ 0.90 (0.89–0.91) | ▲ 1.20 (1.19–1.21) |" in page
    assert "| graphopt | 1 | 1.200 | 1.20 | 1.20 | 1 | 0 | 0 |" in page


def test_failures_and_wrong_outputs_are_shown_with_their_reason() -> None:
    found = results(graphopt=1.2)
    found["models"]["net"]["tools"] |= {"onnxsim": {"error": "crashed"}, "OnnxSlim": {"wrong": "outputs differ by 3"}}
    page = report.markdown(found, Path("cpu.json"))
    assert "- net, onnxsim: crashed" in page and "- net, OnnxSlim: outputs differ by 3" in page
    assert "| net | 1.50 | 2.00 | fails | wrong | ▲ 1.20 (1.19–1.21) |" in page


def test_two_files_are_compared_cell_by_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ratio in (("old", 1.0), ("new", 1.2)):
        (tmp_path / name).write_text(json.dumps(results(graphopt=ratio, onnxsim=1.0)))
    report.compare(tmp_path / "old", tmp_path / "new")
    printed = capsys.readouterr().out
    assert "net, graphopt: cpu-1: 1.00 -> 1.20" in printed and "net, onnxsim:" not in printed
    assert "graphopt, CPU, 1 thread, 1 models: 1.000 -> 1.200" in printed


def test_a_change_within_the_intervals_is_none() -> None:
    assert list(report.changes(results(graphopt=1.0), results(graphopt=1.01))) == []


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_synthetic_graphs_are_valid_and_leave_something_to_do(kind: str) -> None:
    model = scaling.KINDS[kind](100)
    onnx.checker.check_model(model, full_check=True)
    assert 100 <= len(model.graph.node) < 160
    assert len(graphopt.optimize(model, cost="none").model.graph.node) < 0.8 * len(model.graph.node)


def test_the_exponent_of_linear_growth_is_1() -> None:
    rows = [{"nodes": n, "seconds": {"load": n * 1e-4}} for n in (100, 1000, 10000)]
    assert scaling.exponent(rows, "load") == pytest.approx(1)


def test_a_tool_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    onnx.save(scaling.convolutional(12), tmp_path / "in.onnx")
    cell = run("graphopt", tmp_path / "in.onnx", tmp_path / "out.onnx", "")
    assert cell["seconds"] > 0 and 50 < cell["memory_mb"] < 1000
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) < 12


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"no model")
    assert "DecodeError" in run("graphopt", tmp_path / "in.onnx", tmp_path / "out.onnx", "")["error"]


def test_tools_for_some_families_are_left_out_for_the_others() -> None:
    assert applies("ort-transformers", "BERT") and not applies("ort-transformers", "ResNet")
    assert all(applies(tool, "ResNet") for tool in ALL if tool != "ort-transformers")
