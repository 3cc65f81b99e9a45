"""Replacing values and dropping what nobody reads."""

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphopt
from graphopt.base.dtype import DType
from graphopt.ir.edit import constant_node, needs_copy, remove_unread, replace_node, replace_values
from graphopt.ir.graph import CAPTURE, INPUT, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType

FLOAT = TensorType(DType.FLOAT, (2,))


def build(text: str) -> tuple[Graph, Callable[[str], Value]]:
    """A graph from lines `name = Op(arguments)`; what is not assigned is an input, `return` names the outputs."""
    graph = Graph()
    found: dict[str, Value] = {}

    def value(name: str) -> Value:
        if name not in found:
            found[name] = Value(graph.add(Node(INPUT, (), (name,), (FLOAT,), domain=INTERNAL_DOMAIN)))
            graph.inputs.append(found[name].vertex)
        return found[name]

    for line in text.strip().splitlines():
        left, _, right = line.strip().partition(" = ")
        op, _, arguments = right.rstrip(")").partition("(")
        if left == "return":
            graph.outputs = tuple(value(name) for name in right.split(", "))
            graph.output_names = tuple(right.split(", "))
            graph.output_types = (FLOAT,) * len(graph.outputs)
        elif op == "Constant":
            found[left] = Value(graph.add(constant_node(Tensor.from_array(np.zeros(2, np.float32)), left)))
        else:
            names = left.split(", ")
            operands = tuple(value(name) for name in arguments.split(", ") if name)
            vertex = graph.add(Node(op, operands, tuple(names), (FLOAT,) * len(names), version=1))
            found.update((name, Value(vertex, index)) for index, name in enumerate(names))
    return graph, found.__getitem__


def text(graph: Graph) -> list[str]:
    lines = []
    for vertex in graph.topological_order():
        node = graph[vertex]
        if not node.is_internal:
            arguments = ", ".join(graph.value_name(value) for value in node.operands)
            lines.append(f"{', '.join(node.names)} = {node.op}({arguments})")
    return [*lines, f"return = {', '.join(map(graph.value_name, graph.outputs))}"]


def applied(graph: Graph, patch: Patch) -> list[str]:
    """The graph after the patch, having seen that the inverse restores it."""
    before, nodes = text(graph), dict(graph.vertices_and_nodes())
    inverse = graph.apply(patch)
    graph.check_invariants()
    after = text(graph)
    graph.apply(inverse)
    graph.check_invariants()
    assert (text(graph), dict(graph.vertices_and_nodes())) == (before, nodes)
    graph.apply(patch)
    return after


def test_a_value_takes_the_place_of_another_and_what_only_it_read_goes() -> None:
    graph, value = build(
        """
        w = Constant()
        a = Add(x, w)
        b = Relu(a)
        c = Mul(b, b)
        return = c
        """
    )
    assert applied(graph, replace_values(graph, {value("b"): value("x")})) == ["c = Mul(x, x)", "return = c"]
    assert value("w").vertex not in graph


def test_an_output_of_the_graph_may_be_replaced() -> None:
    graph, value = build(
        """
        h = Neg(x)
        b = Relu(h)
        return = b
        """
    )
    assert applied(graph, replace_values(graph, {value("b"): value("h")})) == ["h = Neg(x)", "return = h"]


@pytest.mark.parametrize("by", ["x", "b"])
def test_an_output_whose_value_becomes_an_input_or_another_output_is_a_copy_of_it(by: str) -> None:
    """As in a file, which has no other way to give a value two names; the copy is called what it replaces."""
    graph, value = build(
        """
        a = Neg(x)
        b = Relu(x)
        return = a, b
        """
    )
    assert needs_copy(graph, value("a"), value(by))
    assert applied(graph, replace_values(graph, {value("a"): value(by)})) == [
        "b = Relu(x)",
        f"a = Identity({by})",
        "return = a, b",
    ]


def test_a_node_with_another_output_in_use_stays() -> None:
    graph, value = build(
        """
        a, b = Split(x)
        c = Add(a, b)
        return = c
        """
    )
    patch = replace_values(graph, {value("a"): value("x")})
    assert applied(graph, patch) == ["a, b = Split(x)", "c = Add(x, b)", "return = c"]


def test_a_new_node_may_read_the_value_it_replaces() -> None:
    graph, value = build(
        """
        a = Relu(x)
        b = Exp(a)
        c = Neg(a)
        return = b, c, a
        """
    )
    vertex = graph.new_vertex()
    new = Node("Sqrt", (value("a"),), ("s",), (FLOAT,), version=1)
    patch = replace_values(graph, {value("a"): Value(vertex)}, {vertex: new})
    assert applied(graph, patch) == ["a = Relu(x)", "s = Sqrt(a)", "b = Exp(s)", "c = Neg(s)", "return = b, c, s"]


def test_a_node_is_replaced_in_its_vertex() -> None:
    graph, value = build(
        """
        a = Relu(x)
        b = Add(a, a)
        c = Neg(b)
        return = c
        """
    )
    patch = replace_node(graph, value("b").vertex, Node("Exp", (value("x"),), ("b",), (FLOAT,), version=1))
    assert applied(graph, patch) == ["b = Exp(x)", "c = Neg(b)", "return = c"]


def test_chains_of_replacements_are_followed() -> None:
    graph, value = build(
        """
        a = Relu(x)
        b = Relu(a)
        c = Relu(b)
        return = c
        """
    )
    patch = replace_values(graph, {value("c"): value("b"), value("b"): value("a")})
    assert applied(graph, patch) == ["a = Relu(x)", "return = a"]


def test_a_rewritten_reader_that_dies_itself_keeps_nothing_alive() -> None:
    graph, value = build(
        """
        a = Relu(x)
        b = Relu(x)
        c = Exp(a)
        d = Exp(b)
        e = Add(c, d)
        return = e
        """
    )
    patch = replace_values(graph, {value("b"): value("a"), value("d"): value("c")})
    assert applied(graph, patch) == ["a = Relu(x)", "c = Exp(a)", "e = Add(c, c)", "return = e"]
    assert value("d").vertex not in patch.after


def test_a_circle_of_replacements_is_refused() -> None:
    graph, value = build(
        """
        a = Relu(x)
        b = Relu(x)
        c = Add(a, b)
        return = c
        """
    )
    with pytest.raises(AssertionError, match="circle"):
        replace_values(graph, {value("a"): value("b"), value("b"): value("a")})


def test_captures_follow() -> None:
    graph, value = build(
        """
        a = Identity(x)
        b = Relu(a)
        return = b
        """
    )
    body = Graph()
    inner = body.add(Node(CAPTURE, (), ("a",), (FLOAT,), {"index": 0}, domain=INTERNAL_DOMAIN))
    body.outputs = (Value(body.add(Node("Neg", (Value(inner),), ("n",), (FLOAT,), version=1))),)
    loop = graph.add(Node("Loop", (), ("l",), (FLOAT,), {"body": body}, version=1, captures=(value("a"),)))
    graph.outputs = (*graph.outputs, Value(loop))
    patch = replace_values(graph, {value("a"): value("x")})
    assert applied(graph, patch) == ["b = Relu(x)", "l = Loop(x)", "return = b, l"]


def test_what_no_output_depends_on_is_dropped_but_not_inputs() -> None:
    graph, value = build(
        """
        a = Relu(x)
        w = Constant()
        b = Add(y, w)
        c = Neg(b)
        return = a
        """
    )
    patch = remove_unread(graph)
    assert patch is not None
    assert applied(graph, patch) == ["a = Relu(x)", "return = a"]
    assert value("y").vertex in graph
    assert remove_unread(graph) is None


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    lines, names = [], ["x", "y"]
    for index in range(draw(st.integers(1, 12))):
        arguments = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))
        outputs = [f"n{index}_{k}" for k in range(draw(st.integers(1, 2)))]
        lines.append(f"{', '.join(outputs)} = Op({', '.join(arguments)})")
        names += outputs
    returned = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    return build("\n".join([*lines, f"return = {', '.join(returned)}"]))[0]


@pytest.mark.slow
@given(random_graphs(), st.data())
def test_replacing_leaves_no_new_dead_nodes_and_can_be_undone(graph: Graph, data: st.DataObject) -> None:
    first = remove_unread(graph)
    if first is not None:
        graph.apply(first)
    values = [Value(v, k) for v in graph.topological_order() for k in range(len(graph[v].names))]
    earlier, later = sorted(data.draw(st.lists(st.sampled_from(values), min_size=2, max_size=2)))
    if earlier.vertex == later.vertex:
        return
    patch = replace_values(graph, {later: earlier})
    applied(graph, patch)
    assert remove_unread(graph) is None


def test_the_bodies_of_a_copy_share_its_names() -> None:
    """A name that the copy has given in its outer graph is not given again in a body."""
    body = Graph("body")
    value = body.add(Node("Relu", (), ("r",), (None,)))
    body.outputs = (Value(value),)
    graph = Graph("outer")
    graph.add(Node("Loop", (), ("y",), (None,), {"body": body}))
    twin = graph.copy()
    (inner,) = [g for g in twin.graphs() if g.name == "body"]
    assert twin.new_name("fresh") != inner.new_name("fresh")
    assert inner.new_name("y") != "y"


def test_an_output_that_is_listed_twice_is_made_once() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y, float[2] y) { a = Relu(x) y = Relu(a) }"""
    model = onnx.parser.parse_model(text)
    simplified = graphopt.optimize(model, cost="none", check=False).model
    assert [(node.op_type, [*node.output]) for node in simplified.graph.node] == [("Relu", ["y"])]
    assert [value.name for value in simplified.graph.output] == ["y", "y"]
