"""Work grows with the graph, not with its square: counted by how often a node is looked at, not timed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Node
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import simplify_graph
from graphopt.rules import RULES
from tests.text import parse

BODIES: dict[str, Callable[[int], str]] = {
    "a chain of Identities": lambda n: "; ".join(f"v{i + 1} = Identity(v{i})" for i in range(n)) + f"; y = Relu(v{n})",
    "a chain of additions": lambda n: "; ".join(f"v{i + 1} = Add(v{i},1.0)" for i in range(n)) + f"; y = Relu(v{n})",
    "equal nodes": lambda n: (
        "; ".join(f"w{i} = Relu(v0)" for i in range(n)) + f"; y = Concat<axis=0>({','.join(f'w{i}' for i in range(n))})"
    ),
    "equal chains": lambda n: (
        "; ".join(f"a{i + 1} = Exp(a{i}); b{i + 1} = Exp(b{i})" for i in range(n // 2)).replace("(a0)", "(v0)")
        + f"; y = Add(a{n // 2},b{n // 2})"
    ).replace("(b0)", "(v0)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
def test_simplifying_twice_as_many_nodes_looks_at_about_twice_as_many(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (looks(BODIES[body](n), monkeypatch) for n in (150, 300))
    assert many < 2.5 * few


def looks(body: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often operands and nodes are read while a model is simplified."""
    graph = onnx_io.load_model(parse("float[4] v0", body)).graph
    infer_graph(graph)
    count = 0
    get, operands = Graph.__getitem__, vars(Node)["operands"].fget

    def counted(self: Graph, vertex: int) -> Node:
        nonlocal count
        count += 1
        return get(self, vertex)

    def read(self: Node) -> object:
        nonlocal count
        found = list(operands(self))
        count += len(found)
        return iter(found)

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "__getitem__", counted)
        patch.setattr(Node, "operands", property(read))
        simplify_graph(graph, RULES, PASSES)
    return count
