"""Entries of the table of operators, looked up for nodes of a graph."""

from __future__ import annotations

from graphopt.ir import schemas
from graphopt.ir.graph import Attribute, Graph, Node
from graphopt.operators.implied_defaults import ImpliedDefault, ImpliedNumbers
from graphopt.operators.operator import Operator
from graphopt.operators.operator_classes import lookup_operator


def operator_of_node(node: Node) -> Operator:
    """Return the entry of a node's operator."""
    return lookup_operator(node.op, node.domain)


def node_weight(node: Node) -> int:
    """Return the node's share of the measure; inputs and constants weigh nothing."""
    return 0 if node.is_internal else operator_of_node(node).weight


def get_default_attribute(node: Node, graph: Graph, name: str) -> Attribute | None:
    """Return the default of an attribute, None if it has none or it is not known."""
    schema = schemas.schema_of(node)
    if schema is None or name not in schema.attributes:
        return None
    implied = operator_of_node(node).implied_defaults.get(name)
    return schemas.attribute_default(node, name) if implied is None else _evaluate_implied(implied, node, graph)


def get_attribute(node: Node, graph: Graph, name: str) -> Attribute | None:
    """Return the value of an attribute, its default where the node does not give it; None where neither is known."""
    return schemas.attribute_or_default(node, name) if name in node.attrs else get_default_attribute(node, graph, name)


def get_implied_input(node: Node, graph: Graph, position: int) -> ImpliedNumbers:
    """Return the numbers that an absent optional input stands for, None where they are not known."""
    implied = operator_of_node(node).implied_defaults.get(position)
    return _evaluate_implied(implied, node, graph) if implied else None


def _evaluate_implied(implied: ImpliedDefault, node: Node, graph: Graph) -> ImpliedNumbers:
    value = node.inputs[implied.input_position] if implied.input_position < len(node.inputs) else None
    if value is None or (
        implied.overriding_attribute and schemas.attribute_or_default(node, implied.overriding_attribute)
    ):
        return None
    sizes = graph.known_contents(value) if implied.reads_elements else graph.shape(value)
    return None if sizes is None else implied.compute(sizes)
