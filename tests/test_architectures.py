"""Real exports: optimized, equal, and no more nodes left than onnxsim or OnnxSlim leave."""

import json
from pathlib import Path

import pytest

import graphopt
from tests import zoo

FEWEST = Path(__file__).parent / "fixtures" / "nodecounts.json"
"""The nodes that onnxsim 0.8.1 or OnnxSlim 0.1.98 leave of each fixture, whichever leaves fewer, without constants."""


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_exported_architectures(name: str) -> None:
    model = zoo.load(name)
    before = model.SerializeToString(deterministic=True)

    result = graphopt.optimize(model, cost="none")

    assert result.ok, result.report.comparison
    assert model.SerializeToString(deterministic=True) == before, "the caller's model was changed"
    best = json.loads(FEWEST.read_text(encoding="utf-8"))[name]
    assert result.report.after.nodes <= best
