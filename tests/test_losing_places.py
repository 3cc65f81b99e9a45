"""Places at which a sweep costs more than it saves, by the estimate."""

from collections.abc import Sequence

import numpy as np
import pytest

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.regions import BlockSizes
from graphopt.rewrite.simplify import Simplifier
from graphopt.runtime.cost_model import PredictedGain
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.losing_places import SweptParts
from graphopt.search.moves import SearchSpace, find_trade_matches, match_digests
from graphopt.search.policy import SearchPolicy
from graphopt.search.sweep import Sweep, apply_sweep
from tests.test_search import DOUBLE
from tests.text import parse

POLICY = SearchPolicy(blocks=BlockSizes(min_nodes=3))
SPACE = SearchSpace([DOUBLE], Simplifier([], []), lambda *_: True)

GAIN, LOSS = PredictedGain(1.0, 0.2, 0.1), PredictedGain(1.0, -0.2, 0.1)


def small_and_large(size: int = 9) -> Graph:
    """Two parts of three nodes, each with a product that the sweep makes a sum; the second has as many rows."""
    body = "a = Mul(x, 2.0); b = Exp(a); c = Tile(b, r); d = Mul(c, 2.0); e = Sin(d); y = Abs(e)"
    model = onnx_io.load_model(parse("float[1,8] x", body, {"r": np.array([size, 1])}, outputs=f"float[{size},8] y"))
    infer_graph(model.graph)
    return model.graph


def swept(graph: Graph, losing_places: Sequence[str] = ()) -> Candidate:
    made = apply_sweep(Candidate(graph), "sums", [DOUBLE], SPACE, POLICY, losing_places)
    assert made is not None
    return made


def losing(graph: Graph, gains: Sequence[PredictedGain]) -> list[bool]:
    """Tell of each product whether it is at a place that the sweep is to leave."""
    matches = find_trade_matches(graph, SPACE)[DOUBLE]
    found = SweptParts.of(swept(graph), POLICY.blocks).losing_places(matches, gains, POLICY)
    return [digest in found for digest in match_digests(graph, matches)]


def gains(*parts: PredictedGain) -> PredictedGain:
    return PredictedGain(2.0, 0.0, 0.0, parts)


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ([gains(GAIN, LOSS)], [False, True]),
        ([gains(GAIN, LOSS), gains(LOSS, LOSS)], [False, True]),
        ([gains(GAIN, LOSS), gains(GAIN, GAIN)], [False, False]),
        ([gains(GAIN, LOSS._replace(error=0.2))], [False, False]),
        ([gains(GAIN, PredictedGain(1.0, -0.005, 0.0))], [False, False]),
        ([gains(PredictedGain(1.0, 0.0, 0.0), LOSS)], [False, False]),
        ([], [False, False]),
    ],
    ids=["loss", "at-all-sizes", "at-one-size", "uncertain", "within-noise", "no-gain", "unknown"],
)
def test_a_part_that_surely_loses_while_others_gain_is_left(found: Sequence[PredictedGain], left: list[bool]) -> None:
    assert losing(small_and_large(), found) == left


def test_places_that_are_alike_are_not_left_where_one_gains() -> None:
    assert losing(small_and_large(1), [gains(GAIN, LOSS)]) == [False, False]


def test_what_is_left_stays_as_it_is() -> None:
    graph = small_and_large()
    first, second = match_digests(graph, find_trade_matches(graph, SPACE)[DOUBLE])
    made = swept(graph, [second])
    assert made.causes == (Sweep("sums", (DOUBLE.name,), (second,)),)
    kept = [made.graph.tensor_type(node.inputs[0]) for _, node in made.graph.nodes() if node.op == "Mul"]
    assert [type_.shape for type_ in kept if type_ is not None] == [(9, 8)]
    assert apply_sweep(Candidate(graph), "sums", [DOUBLE], SPACE, POLICY, [first, second]) is None


def test_the_gains_of_parts_are_those_of_what_became_of_them() -> None:
    """A sum reads its input twice, so it costs more by the estimate, and in the larger part more than in the other."""
    graph = small_and_large(1000)
    made = swept(graph)
    parts = SweptParts.of(made, POLICY.blocks).parts
    assert [len(after) for _, after in parts] == [len(before) for before, _ in parts] == [3, 3]
    found = AnalyticCost().predict_gain(graph, made.graph, parts)
    small, large = found.parts
    assert sum(part.saved for part in found.parts) == pytest.approx(found.saved)
    assert large.saved < 100 * small.saved < 0
