"""The normal form of operators: the newest spelling of a meaning inside, the model's own opset in files."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt import ops
from graphopt.graph import Attribute, Graph, Node


def version(op: str, domain: str, opsets: Mapping[str, int], attrs: Mapping[str, Attribute]) -> int:
    """The `since_version` of the schema that gives a node its meaning; 0 where none is known."""
    if domain not in opsets:
        return 0
    found = ops.schema(op, domain, opsets[domain])
    return found.since_version if found and not found.deprecated else 0


def raise_nodes(graph: Graph) -> None:
    pass


def lowered(node: Node, graph: Graph) -> Node:
    return node
