"""Laws that hold for any model and any choice of rules: patches keep the graph valid and can be undone."""

from random import Random

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Node, Patch
from graphopt.language.rule_library import load_rules
from graphopt.operators import inference
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import simplify_graph
from tests import zoo

SMALL = [name for name in zoo.names() if name.startswith(("resnet18", "vit", "bert", "gpt2"))]
RULES = load_rules()


def structure(graph: Graph) -> tuple[dict[int, Node], object]:
    """All that a graph holds; nodes are frozen, so the same objects mean the same graph."""
    return dict(graph.vertices_and_nodes()), graph.outputs


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SMALL), st.integers(0, 99))
def test_undo_after_apply_is_the_identity(name: str, seed: int) -> None:
    graph = onnx_io.load_model(zoo.load(name)).graph
    inference.infer_graph(graph)
    before = structure(graph)
    draw = Random(seed)
    rules = [rule for rule in RULES if draw.random() < 0.5]

    steps = simplify_graph(graph, rules, PASSES).steps

    after = structure(graph)
    for step in reversed(steps):
        step.undo()
        step.graph.check_invariants()
    assert structure(graph) == before
    for step in steps:
        step.redo()
        step.graph.check_invariants()
    assert structure(graph) == after


@pytest.mark.slow
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SMALL))
def test_a_model_that_is_not_changed_comes_back_as_it_was(name: str) -> None:
    model = zoo.load(name)
    back = onnx_io.to_proto(onnx_io.load_model(model))
    kept = [node for node in model.graph.node if node.op_type != "Constant"]
    assert [node.SerializeToString(deterministic=True) for node in back.graph.node] == [
        node.SerializeToString(deterministic=True) for node in kept
    ]
    for field in ("input", "output"):
        assert getattr(back.graph, field) == getattr(model.graph, field)
    assert list(back.opset_import) == list(model.opset_import)


def test_a_stale_patch_is_refused() -> None:
    graph = onnx_io.load_model(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Relu(x) }')
    ).graph
    ((vertex, node),) = graph.nodes()
    patch = Patch({vertex: node}, {vertex: node.with_inputs_replaced({})})
    graph.apply(patch)
    with pytest.raises(AssertionError, match="stale"):
        graph.apply(patch)
