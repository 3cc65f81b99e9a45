"""What a search need not work out twice, and what it has to: all that may have changed."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from graphopt.ir.edit import replace_node, replace_values
from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule, const, op, tensor
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.folded_constants import ENTRY_BYTES, FoldedValues, RewriteRefused
from graphopt.rewrite.matching import Match, Matcher, find_matches
from graphopt.rewrite.rewrite_memory import FailedMatches
from graphopt.rules import RULES
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.moves import SearchSpace
from graphopt.search.policy import SearchPolicy
from tests.test_search import LIBRARY, layers, load, weight
from tests.text import parse

x = tensor("x")
NEGATED_TWICE = Rule("negated_twice", op.Neg(op.Neg(x)), x)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Rules and vertices that are looked at closely, as that happens."""
    places: list[tuple[str, int]] = []
    ending_at = Matcher.matches_ending_at

    def told(matcher: Matcher, vertex: int) -> Iterator[Match]:
        places.append((matcher.rule.name, vertex))
        return ending_at(matcher, vertex)

    monkeypatch.setattr(Matcher, "matches_ending_at", told)
    return places


def graph_of(body: str, outputs: str = "float[2,4] y") -> Graph:
    weights = {"w": weight(4, 4), "v": weight(4, 4, seed=1)}
    return load(parse("float[2,4] a", body, weights, outputs=outputs)).graph


def vertex_of(graph: Graph, name: str) -> int:
    return next(vertex for vertex, node in graph.nodes() if name in node.names)


def test_what_does_not_match_is_not_looked_at_again_in_a_copy(looked_at: list[tuple[str, int]]) -> None:
    graph, failed = graph_of("b = Abs(a); y = Neg(b)"), FailedMatches()
    y = vertex_of(graph, "y")
    for each in (graph, graph.copy()):
        assert not [*failed.around(each, y).find(NEGATED_TWICE)]
    assert looked_at == [("negated_twice", y)]


def test_it_is_looked_at_again_where_a_node_above_has_changed() -> None:
    graph, failed = graph_of("b = Abs(a); y = Neg(b)"), FailedMatches()
    y, b = vertex_of(graph, "y"), vertex_of(graph, "b")
    assert not [*failed.around(graph, y).find(NEGATED_TWICE)]
    patch = replace_node(graph, b, replace(graph[b], op="Neg"))
    graph.apply(patch)
    assert len([*failed.around(graph, y).find(NEGATED_TWICE)]) == 1
    graph.apply(patch.inverse)
    assert not [*failed.around(graph, y).find(NEGATED_TWICE)]


def test_what_a_match_asks_of_readers_is_asked_each_time() -> None:
    rows, w, v = tensor("x", "B K"), const("w", "K N"), const("v", "K M")
    pair = Rule("pair", (rows @ w, rows @ v), (rows @ v, rows @ w))
    graph, failed = graph_of("b = MatMul(a, w); c = Abs(a); d = MatMul(c, v); y = Add(b, d)"), FailedMatches()
    b, c = vertex_of(graph, "b"), vertex_of(graph, "c")
    assert not [*failed.around(graph, b).find(pair)]
    graph.apply(replace_values(graph, {Value(c): graph[c].inputs[0] or Value(c)}))
    assert len([*failed.around(graph, b).find(pair)]) == 2  # each side may be the first


def test_the_matches_are_those_without_a_memory() -> None:
    body = "b = MatMul(a, w); c = Mul(b, 2.0); d = Div(c, 2.0); e = Transpose(d); f = Transpose(e); g = MatMul(f, v)"
    graph, failed = graph_of(f"{body}; h = Add(g, 1.0); i = Add(h, b); y = Identity(i)"), FailedMatches()
    for vertex, _ in [*graph.nodes()] * 2:
        around = failed.around(graph, vertex)
        for rule in RULES:
            assert [*around.find(rule)] == [*find_matches(rule, graph, vertex)], rule.name


# -- constants ---------------------------------------------------------------------------------------------------------


def test_a_constant_is_computed_once_for_all_graphs() -> None:
    rows, w, v = tensor("x", "B K"), const("w", "K N"), const("v", "N M")
    rule = Rule("one_product", (rows @ w) @ v, rows @ (w @ v))
    graph, folded = graph_of("b = MatMul(a, w); y = MatMul(b, v)"), FoldedValues()
    made = []
    for each in (graph.copy(), graph.copy()):
        patch = build_patch(each, next(find_matches(rule, each)), None, folded)
        made += [node.data for node in patch.added if node.is_constant]
    assert len(made) == 2
    assert made[0] is made[1]
    assert made[0] is not None
    assert np.allclose(made[0].numpy(), weight(4, 4) @ weight(4, 4, seed=1), atol=1e-6)


def test_constants_are_forgotten_where_they_take_too_much() -> None:
    folded, computed = FoldedValues(max_bytes=2 * (ENTRY_BYTES + 40)), []

    def value(origin: str, size: int = 5) -> NDArray[np.float64]:
        def compute() -> NDArray[np.float64]:
            computed.append(origin)
            return np.zeros(size)

        return folded.get(origin, compute)

    for origin in ("a", "b", "a", "c", "a", "b"):
        value(origin)
    assert computed == ["a", "b", "c", "b"]
    value("larger than all", size=1000)
    value("a")
    assert computed[4:] == ["larger than all"]
    folded.clear()
    value("a")
    assert computed[5:] == ["a"]


def test_what_has_no_origin_or_is_refused_is_computed_each_time() -> None:
    folded, computed = FoldedValues(), []

    def refuse() -> NDArray[np.float64]:
        computed.append("refused")
        raise RewriteRefused("too large")

    for _ in range(2):
        with pytest.raises(RewriteRefused):
            folded.get("a", refuse)
        assert folded.get(None, lambda: np.zeros(len(computed))).size == len(computed)
    assert len(computed) == 2


def test_a_search_finds_the_same_whatever_it_keeps() -> None:
    layer = "y{i} = MatMul(x{i}, w); z{i} = MatMul(y{i}, v); x{j} = Relu(z{i})"
    model = load(layers(2, layer, w=weight(4, 4), v=weight(4, 4)))

    def found(policy: SearchPolicy) -> Exploration:
        space = SearchSpace(LIBRARY.trades, LIBRARY.simplifier, LIBRARY.allows)
        return explore_regions(model.graph, space, AnalyticCost(), policy=policy)

    few = replace(SearchPolicy(), states=40, states_per_round=5)
    all_kept, none_kept = found(few), found(replace(few, held_graphs=0))
    assert all_kept.states == none_kept.states > 0
    assert [each.result for each in all_kept.solutions] == [each.result for each in none_kept.solutions]
