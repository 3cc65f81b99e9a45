"""What a rule gains: on large tensors, and in the parts of models that the library has simplified."""

from pathlib import Path

from graphopt.base.cache import Cache
from graphopt.discover.gain_estimation import GainEstimator, ModelGain
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.language.rule_library import RuleLibrary, RuleModule
from graphopt.language.terms import op, tensor
from graphopt.runtime.cost_model import CostModel
from graphopt.runtime.machine import Machine
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.policy import SearchPolicy
from graphopt.search.racers import LocalRacer
from tests.graphs import graph

x, y = tensor("x", "M K"), tensor("y", "K N")
EARLY = Rule("rows_first", op.ReduceSum(x @ y, (-2,), keepdims=1), op.ReduceSum(x, (-2,), keepdims=1) @ y)
UNDO = Rule("undo", op.Neg(op.Neg(tensor("x"))), tensor("x"))
"""Stands for the library."""


def reduced(by: str, columns: str = "256") -> Graph:
    """A product that is negated twice, and then reduced."""
    body = f"p = MatMul(x, y); q = Neg(p); r = Neg(q); z = {by}<keepdims=1>(r, [-2])"
    return graph(f"float[256,256] x, float[256,{columns}] y", body, f"float[1,{columns}] z")


def gains(cost: CostModel, **models: Graph) -> GainEstimator:
    return GainEstimator(cost, RuleLibrary((RuleModule("undo", (UNDO,)),)), models)


def test_a_rule_gains_on_large_tensors_what_the_cost_model_says() -> None:
    gain = gains(AnalyticCost()).on_large_tensors(EARLY)
    assert gain is not None and gain > 3


def test_a_rule_gains_in_models_beside_the_library() -> None:
    found = gains(
        AnalyticCost(), plain=reduced("ReduceSum"), open=reduced("ReduceSum", "N"), other=reduced("ReduceMax")
    )
    places = found.in_models(EARLY)
    for name in ("plain", "open"):
        gain = places[name].gain
        assert places[name].matches == 1 and gain is not None and gain > 1.5
    assert places["other"] == ModelGain(0, None)


def test_gains_are_measured(tmp_path: Path) -> None:
    cost = MeasuredCost(
        LocalRacer(SessionSetting(), SearchPolicy(pair_seconds=1.0)),
        machine=Machine(),
        cache=Cache(tmp_path / "costs.sqlite"),
    )
    found = gains(cost, plain=reduced("ReduceSum"))
    assert found.on_large_tensors(EARLY) is not None
    assert (found.in_models(EARLY)["plain"].gain or 0.0) > 1
