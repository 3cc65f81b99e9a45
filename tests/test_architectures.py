"""Real exports: optimized, equal, and no more nodes left than onnxsim or OnnxSlim leave."""

import json
from pathlib import Path

import pytest

import graphopt
from tests import zoo

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "nodecounts.json"
PEERS = ("onnxsim", "OnnxSlim")


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_exported_architectures(name: str) -> None:
    model = zoo.load(name)
    before = model.SerializeToString(deterministic=True)

    result = graphopt.optimize(model, cost="none")

    assert result.ok, result.report.comparison
    assert model.SerializeToString(deterministic=True) == before, "the caller's model was changed"
    reached = json.loads(RESULTS.read_text(encoding="utf-8"))["models"][name]["tools"]
    best = min(reached[peer]["nodes"] for peer in PEERS if "nodes" in reached[peer])
    assert result.report.after.nodes <= best
