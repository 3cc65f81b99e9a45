"""What the table of operators says of a node of a graph."""

from __future__ import annotations

from graphopt.ir import ops
from graphopt.ir.graph import Attribute, Graph, Node
from graphopt.operators.classes import entry
from graphopt.operators.implied import Implied, Numbers
from graphopt.operators.operator import Operator


def of_node(node: Node) -> Operator:
    """Return what is known of a node's operator."""
    return entry(node.op, node.domain)


def weight(node: Node) -> int:
    """Return the node's share of the measure; inputs and constants weigh nothing."""
    return 0 if node.is_internal else of_node(node).weight


def default(node: Node, graph: Graph, name: str) -> Attribute | None:
    """Return the value that an absent attribute has, None where it has none or it cannot be known."""
    schema = ops.schema_of(node)
    if schema is None or name not in schema.attributes:
        return None
    implied = of_node(node).implied.get(name)
    return ops.default(node, name) if implied is None else _numbers(implied, node, graph)


def attribute(node: Node, graph: Graph, name: str) -> Attribute | None:
    """Return the value of an attribute, its default where the node does not give it; None where neither is known."""
    return ops.stated(node, name) if name in node.attrs else default(node, graph, name)


def implied_input(node: Node, graph: Graph, position: int) -> Numbers:
    """Return the numbers that an absent optional input stands for, None where that cannot be said or known."""
    implied = of_node(node).implied.get(position)
    return _numbers(implied, node, graph) if implied else None


def _numbers(implied: Implied, node: Node, graph: Graph) -> Numbers:
    value = node.inputs[implied.position] if implied.position < len(node.inputs) else None
    if value is None or (implied.unless and ops.stated(node, implied.unless)):
        return None
    sizes = graph.known_contents(value) if implied.by_elements else graph.shape(value)
    return None if sizes is None else implied.numbers(sizes)
