"""What a search need not work out twice, and what it has to: all that may have changed."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from graphopt.ir.edit import replace_node, replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor, tensors_equal
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.operators.inference import infer_node
from graphopt.rewrite import build
from graphopt.rewrite.build import build_patch, dead_after_rewrite
from graphopt.rewrite.built_rewrites import NodeNotes, ingredients
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.folded_constants import ENTRY_BYTES, FoldedValues, RewriteRefused
from graphopt.rewrite.matching import Match, Matcher, find_matches
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.regions import NodeText, graph_digest
from graphopt.rewrite.rewrite_memory import KnownMatches, RewriteMemory
from graphopt.rewrite.simplify import Simplifier
from graphopt.rules import RULES, SWEEPS, TRADES
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.moves import SearchSpace
from graphopt.search.policy import SearchPolicy
from graphopt.search.sweep import apply_sweep
from tests import zoo
from tests.test_search import LIBRARY, layers, load, weight
from tests.test_sweep import MATRICES, block
from tests.text import parse

x = tensor("x")
NEGATED_TWICE = Rule("negated_twice", op.Neg(op.Neg(x)), x)
RELU_OF_DOUBLE = Rule("relu_of_double", op.Relu(x * 2.0), op.Relu(x) * 2.0)
EXPORTS = (
    "bert-dynamo-dynamic",
    "efficientnet-dynamo",
    "gpt2-dynamo",
    "resnet18-dynamo-raw",
    "swin-dynamo",
    "vit-dynamo",
)


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
    graph, memory = graph_of("b = Mul(a, 0.5); y = Relu(b)"), KnownMatches()
    y = vertex_of(graph, "y")
    for each in (graph, graph.copy()):
        assert not [*memory.find(each, y, [RELU_OF_DOUBLE])]
    assert looked_at == [("relu_of_double", y)]


def test_other_producers_than_a_pattern_has_are_told_without_a_close_look(looked_at: list[tuple[str, int]]) -> None:
    graph, memory = graph_of("b = Abs(a); y = Relu(b)"), KnownMatches()
    assert not [*memory.find(graph, vertex_of(graph, "y"), [RELU_OF_DOUBLE])]
    assert looked_at == []


def test_what_does_not_match_is_not_looked_at_in_a_layer_that_is_alike(looked_at: list[tuple[str, int]]) -> None:
    layers = "b = MatMul(a, w); c = Mul(b, 0.5); d = Relu(c); e = MatMul(d, v); f = Mul(e, 0.5); y = Relu(f)"
    graph, memory = graph_of(layers), KnownMatches()
    for name in ("d", "y"):
        assert not [*memory.find(graph, vertex_of(graph, name), [RELU_OF_DOUBLE])]
    assert looked_at == [("relu_of_double", vertex_of(graph, "d"))]


def test_where_weights_tell_those_of_each_layer_are_asked() -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    positive = Rule("positive", op.Relu(rows @ w), op.Abs(rows @ w), when=fn.is_positive(w))
    large = np.abs(weight(64, 64)) + 1
    given = parse(
        "float[2,64] a",
        "b = MatMul(a, w); c = Relu(b); d = MatMul(c, v); y = Relu(d)",
        {"w": -large, "v": large},
        outputs="float[2,64] y",
    )
    graph, memory = load(given).graph, KnownMatches()
    c, y = vertex_of(graph, "c"), vertex_of(graph, "y")
    for _ in range(2):
        assert [len([*memory.find(graph, vertex, [positive])]) for vertex in (c, y)] == [0, 1]


def test_a_match_is_told_at_all_places_that_are_alike_with_the_weights_there(looked_at: list[tuple[str, int]]) -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    negated = Rule("negated", op.Neg(rows @ w), rows @ -w)
    body = "b = MatMul(a, w); c = Neg(b); d = MatMul(c, v); e = Neg(d); f = MatMul(e, w); y = Neg(f)"
    weights = {"w": weight(64, 64), "v": weight(64, 64, seed=1)}
    graph, memory = load(parse("float[2,64] a", body, weights, outputs="float[2,64] y")).graph, KnownMatches()
    places = [vertex_of(graph, name) for name in ("e", "y")]
    found = [match for vertex in places for _, match in memory.find(graph, vertex, [negated])]
    assert looked_at == [("negated", places[0])]
    assert found == [match for vertex in places for match in find_matches(negated, graph, vertex)]


def test_rules_that_merge_branches_are_not_looked_at_where_nothing_branches(looked_at: list[tuple[str, int]]) -> None:
    w, v = const("w", "K N"), const("v", "K M")
    merged = Rule("merged", (x @ w, x @ v), (x @ v, x @ w))
    graph, memory = graph_of("b = MatMul(a, w); c = Abs(b); y = MatMul(c, v)"), KnownMatches()
    for name in ("b", "y"):
        assert not [*memory.find(graph, vertex_of(graph, name), [merged])]
    assert looked_at == []


def test_only_rules_that_look_so_far_are_tried() -> None:
    graph, memory = graph_of("b = Neg(a); y = Neg(b)"), KnownMatches()
    y = vertex_of(graph, "y")
    assert [len([*memory.find(graph, y, [NEGATED_TWICE], distance)]) for distance in (0, 3, 4)] == [1, 1, 0]


def test_it_is_looked_at_again_where_a_node_above_has_changed() -> None:
    graph, memory = graph_of("b = Abs(a); y = Neg(b)"), KnownMatches()
    y, b = vertex_of(graph, "y"), vertex_of(graph, "b")
    assert not [*memory.find(graph, y, [NEGATED_TWICE])]
    patch = replace_node(graph, b, replace(graph[b], op="Neg"))
    graph.apply(patch)
    assert len([*memory.find(graph, y, [NEGATED_TWICE])]) == 1
    graph.apply(patch.inverse)
    assert not [*memory.find(graph, y, [NEGATED_TWICE])]


def test_what_a_match_asks_of_readers_is_asked_each_time() -> None:
    rows, w, v = tensor("x", "B K"), const("w", "K N"), const("v", "K M")
    pair = Rule("pair", (rows @ w, rows @ v), (rows @ v, rows @ w))
    graph, memory = graph_of("b = MatMul(a, w); c = Abs(a); d = MatMul(c, v); y = Add(b, d)"), KnownMatches()
    b, c = vertex_of(graph, "b"), vertex_of(graph, "c")
    assert not [*memory.find(graph, b, [pair])]
    graph.apply(replace_values(graph, {Value(c): graph[c].inputs[0] or Value(c)}))
    assert len([*memory.find(graph, b, [pair])]) == 2  # each side may be the first


def test_the_matches_are_those_without_a_memory() -> None:
    body = "b = MatMul(a, w); c = Mul(b, 2.0); d = Div(c, 2.0); e = Transpose(d); f = Transpose(e); g = MatMul(f, v)"
    graph, memory = graph_of(f"{body}; h = Add(g, 1.0); i = Add(h, b); y = Identity(i)"), KnownMatches()
    for vertex, _ in [*graph.nodes()] * 2:
        for rule in RULES:
            expected = [(rule, match) for match in find_matches(rule, graph, vertex)]
            assert [*memory.find(graph, vertex, [rule])] == expected, rule.name


class NoMemory(KnownMatches):
    """Looks at everything closely, each time."""

    def find(self, graph: Graph, vertex: int, rules: Sequence[Rule], distance: int = 0) -> Iterator[tuple[Rule, Match]]:
        del distance
        yield from ((rule, match) for rule in rules for match in find_matches(rule, graph, vertex))


def made_graphs(model: onnx.ModelProto, memory: RewriteMemory) -> dict[str, object]:
    """What a search makes of a model with a memory: the steps that simplify it, the graphs of its sweeps and the
    solutions of its regions."""
    simplifier = Simplifier(RULES, PASSES, memory=memory)
    graph = load(model).graph
    made: dict[str, object] = {"steps": [step.name for step in simplifier.run(graph).steps]}
    space = replace(LIBRARY, simplifier=simplifier)
    for name, rules in SWEEPS.items():
        swept = apply_sweep(Candidate(graph), name, rules, space, SearchPolicy())
        made[name] = swept and (swept.key, [step.name for step in swept.steps])
    explored = explore_regions(graph, space, AnalyticCost(), policy=replace(SearchPolicy(), states=15))
    return made | {"solutions": [each.result for each in explored.solutions], "states": explored.states}


def no_memory() -> RewriteMemory:
    return replace(RewriteMemory.of_one_run(), known_matches=NoMemory())


def test_a_search_makes_the_same_with_and_without_a_memory() -> None:
    made = made_graphs(block("2,4"), RewriteMemory())
    assert made == made_graphs(block("2,4"), no_memory())
    assert made[MATRICES] is not None
    assert made["states"] != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_of_an_export_a_search_makes_the_same_with_and_without_a_memory(name: str) -> None:
    model = zoo.load(name)
    assert made_graphs(model, RewriteMemory()) == made_graphs(model, no_memory())


def rewritten_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield the graphs that one rewrite makes of a graph."""
    for rule in (*RULES, *TRADES):
        for match in find_matches(rule, graph):
            made = graph.copy()
            with suppress(RewriteRefused):
                made.apply(build_patch(made, match))
                yield made


@pytest.mark.parametrize("name", ["a block", pytest.param("efficientnet-dynamo", marks=pytest.mark.slow)])
def test_estimates_and_digests_of_graphs_are_those_of_each_alone(name: str) -> None:
    graph = load(block("2,4") if name == "a block" else zoo.load(name)).graph
    cost, texts = AnalyticCost(), dict[int, NodeText]()
    made = [graph, *rewritten_graphs(graph)]
    assert len(made) > 1
    for each in made:
        each.copy().check_invariants()
        assert cost.estimate_seconds(each) == AnalyticCost().estimate_seconds(each)
        assert graph_digest(each, node_texts=texts) == graph_digest(each)


# -- right sides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("", "node"), ("node", ""), ("c", "node")])
def test_a_right_side_is_built_again_behind_a_node_of_any_name(names: tuple[str, str]) -> None:
    """What the rule only reads is named in one place and not in the other, or as its value is."""
    graph = load(parse("float[2,4] a", "b = Sin(a); c = Neg(b); d = Exp(c); e = Neg(d); y = Abs(e)")).graph
    values = {name: vertex for vertex, node in graph.nodes() for name in node.names}
    for value, name in zip("bd", names, strict=True):
        graph.apply(replace_node(graph, values[value], replace(graph[values[value]], name=name)))
    rule, memory = Rule("neg_is_difference", op.Neg(x), op.Sub(op.Mul(x, 0.0), x)), RewriteMemory()
    for value in "ce":
        (match,) = find_matches(rule, graph, values[value])
        assert told(build_patch(graph.copy(), match, memory=memory)) == told(build_patch(graph.copy(), match))


def told(patch: Patch) -> tuple[object, ...]:
    """Return all that a patch says, but for the values of weights."""
    after = {
        vertex: (node.op, node.inputs, node.names, node.types, dict(node.attrs), node.name, node.doc, node.metadata)
        for vertex, node in patch.after.items()
    }
    return {*patch.before}, after, patch.outputs


def test_what_was_built_before_is_built_the_same_with_other_names() -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    negated = Rule("negated", op.Relu(op.Neg(rows @ w)), op.Relu(rows @ -w))
    body = "b = MatMul(a, w); c = Neg(b); d = Relu(c); e = MatMul(d, w); f = Neg(e); y = Relu(f)"
    graph, memory = graph_of(body), RewriteMemory()
    for name in ("d", "y"):
        match = next(find_matches(negated, graph, vertex_of(graph, name)))
        given, from_memory, without = graph.copy(), graph.copy(), graph.copy()
        build_patch(given, match, None, memory)
        patch, alone = build_patch(from_memory, match, None, memory), build_patch(without, match)
        assert told(patch) == told(alone)
        for made, own in zip(patch.added, alone.added, strict=True):
            assert (made.data is None) == (own.data is None)
            assert made.data is None or own.data is None or tensors_equal(made.data, own.data)


def test_a_right_side_is_built_once_for_all_places_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    negated = Rule("negated", op.Neg(rows @ w), rows @ -w)
    emitted: list[str] = []

    def inferred(graph: Graph, node: Node) -> Node:
        emitted.append(node.op)
        return infer_node(graph, node)

    monkeypatch.setattr(build, "infer_node", inferred)
    body = "b = MatMul(a, w); c = Neg(b); d = MatMul(c, w); e = Neg(d); f = MatMul(e, v); y = Neg(f)"
    graph, memory = graph_of(body), RewriteMemory()
    for name in ("c", "e", "y"):
        graph.apply(build_patch(graph, next(find_matches(negated, graph, vertex_of(graph, name))), None, memory))
    graph.check_invariants()
    assert len(emitted) == 2  # with the weights w, and with v


def test_what_was_built_is_no_longer_known_without_its_constants() -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    negated = Rule("negated", op.Neg(rows @ w), rows @ -w)
    graph, memory = graph_of("b = MatMul(a, w); y = Neg(b)"), RewriteMemory()
    match = next(find_matches(negated, graph, vertex_of(graph, "y")))
    assert memory.built_rewrites is not None
    made_of = ingredients(graph, match, dead_after_rewrite(graph, match))
    assert made_of is not None
    patch = build_patch(graph, match, None, memory)
    noted = NodeNotes("", {})
    assert memory.built_rewrites.rebuild(graph, made_of, noted) is not None
    del patch
    memory.folded_values.clear()
    gc.collect()
    assert memory.built_rewrites.rebuild(graph, made_of, noted) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTS)
def test_all_that_is_built_in_an_export_is_built_the_same_from_memory(name: str) -> None:
    graph, memory = load(zoo.load(name)).graph, RewriteMemory()
    for rule in (*RULES, *TRADES):
        for match in find_matches(rule, graph):
            patches = []
            for each in (memory, memory, None):
                try:
                    patches.append(told(build_patch(graph.copy(), match, None, each)))
                except RewriteRefused as refused:
                    patches.append((str(refused),))
            assert patches[0] == patches[1] == patches[2], rule.name


# -- constants ---------------------------------------------------------------------------------------------------------


def test_a_constant_is_computed_once_for_all_graphs() -> None:
    rows, w, v = tensor("x", "B K"), const("w", "K N"), const("v", "N M")
    rule = Rule("one_product", (rows @ w) @ v, rows @ (w @ v))
    graph, folded = graph_of("b = MatMul(a, w); y = MatMul(b, v)"), FoldedValues()
    made = []
    for each in (graph.copy(), graph.copy()):
        patch = build_patch(each, next(find_matches(rule, each)), None, RewriteMemory(folded_values=folded))
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


def test_equal_constants_are_one_as_long_as_it_is_in_use() -> None:
    def tensor_of(first: float) -> Tensor:
        return Tensor.from_array(np.array([first, *range(200)], np.float32))

    folded, zero = FoldedValues(), tensor_of(0.0)
    assert folded.shared(zero) is zero
    assert folded.shared(tensor_of(0.0)) is zero
    negative = tensor_of(-0.0)
    assert folded.shared(negative) is negative
    assert FoldedValues(max_bytes=0).shared(other := tensor_of(0.0)) is other
    del zero
    gc.collect()
    again = tensor_of(0.0)
    assert folded.shared(again) is again


def test_rules_that_undo_each_other_come_back_to_the_weights() -> None:
    rows, w = tensor("x", "B K"), const("w", "K N")
    negated = Rule("negated", op.Neg(rows @ w), rows @ -w)
    graph, memory = graph_of("b = MatMul(a, w); c = Neg(b); y = Neg(c)"), RewriteMemory()
    given = graph.constant(graph[vertex_of(graph, "b")].inputs[1])
    for name in ("c", "y"):
        graph.apply(build_patch(graph, next(find_matches(negated, graph, vertex_of(graph, name))), None, memory))
    assert graph.constant(graph[vertex_of(graph, "y")].inputs[1]) is given


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
