"""Rewrites compared on their own: what they took out with what they put in."""

import tracemalloc

import numpy as np
import pytest

from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.patch_models import compare_region, patch_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.edit import constant_node, replace_node, replace_values
from graphopt.ir.graph import Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators.inference import infer_graph
from tests.test_compare import model

CHAIN = """
g (float[batch,4] x) => (float[batch,4] z) {
    a = acme.Before(x)
    b = Add(a, c)
    d = Mul(b, s)
    z = acme.After(d)
}
"""


def chain() -> onnx_io.LoadedModel:
    weights = {"c": np.arange(4, dtype=np.float32), "s": np.full(4, 2, np.float32)}
    made = model(CHAIN, **weights)
    for name in ("a", "b", "d"):
        info = made.graph.value_info.add(name=name)
        info.type.CopyFrom(made.graph.input[0].type)
    return onnx_io.load_model(made)


@pytest.mark.parametrize(("shift", "verdict"), [(2, EqualityVerdict.EQUAL), (3, EqualityVerdict.DIFFERENT)])
def test_a_rewrite_among_custom_operators_is_checked_on_its_own(shift: int, verdict: EqualityVerdict) -> None:
    """(a + c)·s = a·s + 2c, with c = 0, 1, 2, 3 and s = 2."""
    graph = chain().graph
    (old,) = graph.vertices_with_op("Mul")
    (add,) = graph.vertices_with_op("Add")
    source, scale = graph[add].inputs[0], graph[old].inputs[1]
    product, constant = graph.new_vertex(), graph.new_vertex()
    folded = Tensor.from_array(np.arange(4, dtype=np.float32) * shift)
    new = {
        constant: constant_node(folded, graph.new_name("c2")),
        product: Node("Mul", (source, scale), (graph.new_name("p"),), graph[old].types, version=14),
    }
    total = graph.new_vertex()
    new[total] = Node("Add", (Value(product), Value(constant)), (graph.new_name("t"),), graph[old].types, version=14)
    patch = replace_values(graph, {Value(old): Value(total)}, new)
    before = compare_models(*patch_models(graph, patch))
    graph.apply(patch)
    after = compare_models(*patch_models(graph, patch))
    assert before.verdict is verdict, before
    assert after == before


def merged(text: str) -> tuple[onnx_io.LoadedModel, Patch]:
    """The model, and the patch that puts its value `a` in the place of `b`."""
    loaded = onnx_io.load_model(model(text))
    values = {node.names[0]: Value(vertex) for vertex, node in loaded.graph.vertices_and_nodes()}
    infer_graph(loaded.graph)
    return loaded, replace_values(loaded.graph, {values["b"]: values["a"]})


def test_what_holds_only_for_values_that_occur_is_checked_with_what_computes_them() -> None:
    """Neg(x) and Neg(x) are equal, which shows only with the first of them in the region."""
    loaded, patch = merged(
        "g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Neg(x) y = Abs(a) z = Relu(b) }"
    )
    alone = compare_models(*patch_models(loaded.graph, patch))
    assert alone.verdict is EqualityVerdict.DIFFERENT
    assert compare_region(loaded.graph, patch, any_values=False).verdict is EqualityVerdict.EQUAL


WEIGHT = np.arange(1 << 18, dtype=np.float32)
"""1 MB."""


@pytest.mark.parametrize(("last", "verdict"), [(WEIGHT[-1], EqualityVerdict.EQUAL), (0, EqualityVerdict.DIFFERENT)])
def test_equal_weights_are_compared_where_they_lie(last: float, verdict: EqualityVerdict) -> None:
    """Two models that hand them over held them some twenty times."""
    other = WEIGHT.copy()
    other[-1] = last
    text = "g (float[262144] x) => (float[262144] z) { a = Add(x, w) z = Add(a, v) }"
    graph = onnx_io.load_model(model(text, w=WEIGHT, v=other)).graph
    w, v = (next(Value(place) for place, node in graph.vertices_and_nodes() if node.names == (name,)) for name in "wv")
    patch = replace_values(graph, {v: w})
    tracemalloc.start()
    found = compare_region(graph, patch, any_values=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.verdict is verdict
    assert verdict is EqualityVerdict.DIFFERENT or peak < 4 * WEIGHT.nbytes


def test_what_readers_do_not_mind_is_checked_with_them() -> None:
    """The mask of ones may as well be a single one: Mul broadcasts it."""
    loaded, patch = merged("""g (float[2] x, bool c) => (float[2] z) {
        n = Constant<value = int64[1] {2}>()
        o = Constant<value = int64[1] {1}>()
        t = Cast<to = 1>(c)
        b = Expand(t, n)
        a = Expand(t, o)
        z = Mul(x, b)
    }""")
    assert compare_models(*patch_models(loaded.graph, patch)).verdict is EqualityVerdict.DIFFERENT
    assert compare_region(loaded.graph, patch, any_values=True).verdict is EqualityVerdict.EQUAL


def test_a_difference_of_a_rule_counts_and_that_of_a_pass_may_not_occur() -> None:
    loaded, patch = merged("g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Abs(x) y = Abs(a) z = Abs(b) }")
    assert compare_region(loaded.graph, patch, any_values=True).verdict is EqualityVerdict.EQUAL  # |-x| = ||x||
    loaded, patch = merged("g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) b = Abs(x) y = Abs(a) z = Neg(b) }")
    assert compare_region(loaded.graph, patch, any_values=True).verdict is EqualityVerdict.DIFFERENT
    unsure = compare_region(loaded.graph, patch, any_values=False)
    assert unsure.verdict is EqualityVerdict.SKIPPED
    assert "differs on values that may not occur" in unsure.reason


def test_a_region_that_leaves_a_value_alone_gives_it_through() -> None:
    """Identity(x) -> x."""
    made = model("g (float[2] x) => (float[2] z) { a = Identity(x) z = Neg(a) }")
    graph = onnx_io.load_model(made).graph
    (old,) = graph.vertices_with_op("Identity")
    patch = replace_values(graph, {Value(old): graph[old].inputs[0] or Value(0)})
    graph_types = graph[old].types
    assert graph_types is not None
    original, optimized = patch_models(graph, patch)
    assert compare_models(original, optimized).verdict is EqualityVerdict.EQUAL


def test_an_operator_replaced_in_place_is_compared_by_its_outputs() -> None:
    graph = onnx_io.load_model(model("g (float[2] x) => (float[2] z) { a = Neg(x) z = Relu(a) }")).graph
    (old,) = graph.vertices_with_op("Relu")
    wrong = replace_node(graph, old, Node("Abs", graph[old].inputs, graph[old].names, graph[old].types, version=13))
    for node in wrong.after.values():
        assert node.op == "Abs"
    with pytest.raises(ModelError, match="the type of 'a' is not known"):
        patch_models(graph, wrong)


def test_what_a_body_captures_is_an_input_of_the_excerpt() -> None:
    """A pass that puts a constant in the place of a captured value takes the capture out."""
    loaded = onnx_io.load_model(
        model("""
        g (float[1,4] x, bool c) => (float[4] y) {
            axes = Constant<value = int64[1] {0}>()
            y = If(c) <
                then_branch = t () => (float[4] p) { p = Squeeze(x, axes) },
                else_branch = e () => (float[4] q) { q = Squeeze(x, axes) }
            >
        }""")
    )
    infer_graph(loaded.graph)
    body = next(graph for graph in loaded.graph.graphs() if graph.name == "t")
    (squeeze,) = body.vertices_with_op("Squeeze")
    axes = body[squeeze].inputs[1]
    assert axes is not None
    patch = replace_values(body, {axes: Value(own := body.new_vertex())}, {
        own: constant_node(Tensor.from_array(np.zeros(1, np.int64)), body.new_name("axes"))
    })  # fmt: skip
    dead = Patch({axes.vertex: body[axes.vertex], **patch.before}, patch.after)
    for _ in ("before the patch", "after it"):
        assert compare_region(body, dead, any_values=True).verdict is EqualityVerdict.EQUAL
        body.apply(dead) if axes.vertex in body else None
