"""Outlines of graphs: what a picture needs of a model, without its weights. Nodes in bodies are among the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from graphopt.ir.graph import CONSTANT, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.types import TensorType
from graphopt.rewrite.regions import cut_into_blocks

GraphPath: TypeAlias = "tuple[tuple[int, int], ...]"
"""Place of a body: from the whole graph inwards, the vertex that has it, and the number of the body in it."""


Scope: TypeAlias = "tuple[str, ...]"
"""Modules in each other, the outermost first."""


class NodePlace(NamedTuple):
    """Identity of a node from the graph that was loaded to the result: vertices are never used for another."""

    graph: GraphPath
    vertex: int


def list_nodes(graph: Graph) -> list[tuple[NodePlace, Node]]:
    """Return the nodes of a graph and of the bodies in it, producers first, as they are written to a file.

    Their positions in this order are the numbers by which a report refers to nodes. Constant nodes have none; nodes of
    a body come directly before the node that has it.
    """
    found: list[tuple[NodePlace, Node]] = []
    _append_nodes(graph, (), found)
    return found


def _append_nodes(graph: Graph, path: GraphPath, found: list[tuple[NodePlace, Node]]) -> None:
    for vertex in graph.topological_order():
        node = graph[vertex]
        if not node.is_internal:
            for index, body in enumerate(node.bodies):
                _append_nodes(body, (*path, (vertex, index)), found)
            found.append((NodePlace(path, vertex), node))


class ValueRef(NamedTuple):
    """A value of an outline."""

    source: int
    """Number of the node that computes it; of an input, -1 minus its position among the inputs."""
    output: int = 0


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """A node, as it is drawn."""

    op: str
    """Operator, with its domain unless that is ONNX's own."""
    name: str
    """Name of the node; of its first output where it has none."""
    scope: Scope
    """Modules that it belongs to, the outermost first, as its exporter noted them or its neighbours' modules tell."""
    types: str
    """Types of its outputs."""
    inputs: tuple[ValueRef, ...]
    """Values that it reads, constants left out; a node with bodies also reads what these return."""


@dataclass(frozen=True, slots=True)
class GraphOutline:
    """Nodes of a graph and of the bodies in it, in the order of `list_nodes`."""

    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    """Names of the inputs of the graph and of its bodies."""
    outputs: tuple[tuple[str, ValueRef], ...]
    """Names and values of the graph's outputs; constants left out."""
    blocks: tuple[int, ...]
    """For each node, the run of nodes it belongs to that hands on one value, numbered in their order."""
    has_scopes: bool
    """True where enough nodes say which module they belong to."""

    @staticmethod
    def from_graph(graph: Graph) -> GraphOutline:
        """Return the outline of a graph, as it is now."""
        reader = _OutlineReader()
        values = reader.read_graph(graph, None)
        outputs = [(name, values.get(value)) for name, value in zip(graph.output_names, graph.outputs, strict=True)]
        return GraphOutline(
            tuple(replace(node, scope=scope) for node, scope in zip(reader.nodes, reader.filled_scopes(), strict=True)),
            tuple(reader.inputs),
            tuple((name, ref) for name, ref in outputs if ref is not None),
            tuple(_block_numbers(graph)),
            sum(map(bool, reader.scopes)) > MIN_SCOPED_SHARE * len(reader.scopes),
        )


class _BodyContext(NamedTuple):
    """Context in which a body is read."""

    scope: Scope
    """Modules of the node that has the body, and the body itself."""
    captures: list[ValueRef | None]
    """Outer values that it reads; None for constants."""


@dataclass
class _OutlineReader:
    """Reads a graph and, at the nodes that have them, its bodies."""

    nodes: list[OutlineNode] = field(default_factory=list)
    scopes: list[Scope | None] = field(default_factory=list)
    """For each node the modules that it names itself; None where it names none."""
    inputs: list[str] = field(default_factory=list)

    def read_graph(self, graph: Graph, outer: _BodyContext | None) -> Mapping[Value, ValueRef]:
        """Add the nodes of a graph, or of a body in its context, and return its values that are no constants."""
        values: dict[Value, ValueRef] = {}
        for vertex in graph.topological_order():
            node = graph[vertex]
            if node.is_graph_input:
                captured = None if outer is None or vertex in graph.inputs else outer.captures[node.capture_index]
                if vertex in graph.inputs:
                    self.inputs.append(node.names[0])
                    captured = ValueRef(-len(self.inputs))
                if captured is not None:
                    values[Value(vertex)] = captured
            if node.is_internal:
                continue
            read = [values[value] for value in node.inputs if value in values]
            scope = node_scope(node)
            if outer is not None:
                own = scope or ()  # in a body, it may begin with what is around it
                scope = (*outer.scope, *own[len(_shared_scope(outer.scope, own)) :])
            for index, body in enumerate(node.bodies):
                inner = (*(scope or ()), f"{node.op} {node.label}, body {index + 1}")
                found = self.read_graph(body, _BodyContext(inner, [values.get(value) for value in node.captures]))
                read += [found[value] for value in body.outputs if value in found]
            number = len(self.nodes)
            values |= {Value(vertex, output): ValueRef(number, output) for output in range(len(node.names))}
            types = ", ".join(str(type_) for type_ in node.types if isinstance(type_, TensorType))
            self.nodes.append(OutlineNode(qualified_op(node), node.label, (), types, tuple(read)))
            self.scopes.append(scope)
        return values

    def filled_scopes(self) -> list[Scope]:
        """Return the scopes of all nodes; one that names none belongs with what it reads or with what reads it."""
        sources = [[ref.source for ref in node.inputs if ref.source >= 0] for node in self.nodes]
        above, below = [*self.scopes], [*self.scopes]
        for number, read in enumerate(sources):
            if above[number] is None and read:
                above[number] = above[max(read)]
        for number in reversed(range(len(sources))):
            if (scope := below[number]) is not None:
                for source in sources[number]:
                    if self.scopes[source] is None:
                        below[source] = _shared_scope(below[source] or scope, scope)
        return [_inner_scope(up, down) for up, down in zip(above, below, strict=True)]


def _inner_scope(above: Scope | None, below: Scope | None) -> Scope:
    """Return the scope of a node between what it reads and what reads it: the outer of both where one is in the other,
    else that of the readers, as at the first node of a layer."""
    if above is None or below is None:
        return above or below or ()
    return above if _shared_scope(above, below) == above else below


def qualified_op(node: Node) -> str:
    """Return the operator of a node, with its domain unless that is ONNX's own."""
    return f"{node.domain}.{node.op}" if node.domain else node.op


def _block_numbers(graph: Graph) -> Iterator[int]:
    """Yield the block of each node; nodes in bodies belong to that of the node that has them."""
    numbers = {vertex: number for number, block in enumerate(cut_into_blocks(graph)) for vertex in block}
    last = 0
    for (path, vertex), _ in list_nodes(graph):
        last = numbers.get(path[0][0] if path else vertex, last)
        yield last


_EMPTY_CONSTANT = Node(CONSTANT, (), ("",), (None,), domain=INTERNAL_DOMAIN)


def without_weights(graph: Graph) -> Graph:
    """Return a copy of a graph that can be outlined, and whose constants are empty."""
    twin = graph.copy()
    constants = {vertex: node for vertex, node in twin.vertices_and_nodes() if node.is_constant}
    twin.apply(Patch(constants, dict.fromkeys(constants, _EMPTY_CONSTANT)))
    return twin


# -- scopes ------------------------------------------------------------------------------------------------------------

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata in which PyTorch's exporter lists the modules of a node, from the model's own to the node."""

MIN_SCOPED_SHARE = 0.2
"""Share of nodes that name their modules from which on these are the blocks of a picture: a quantizer adds three or
four nodes without a module for each that has one."""

MAX_SCOPE_DEPTH = 24
"""Modules in each other that are told apart; a name of more parts is one of a generator, or of an enemy."""


def node_scope(node: Node) -> Scope | None:
    """Return the modules of a node by PyTorch's metadata, or by a name with slashes; None where it has neither."""
    listed = re.findall(r"'((?:[^'\\]|\\.)*)'", node.metadata.get(NAME_SCOPES, ""))
    if listed:
        return tuple(_relative_names(listed[:-1]))[:MAX_SCOPE_DEPTH]
    if "/" not in node.name:
        return None
    return tuple(part for part in node.name.split("/")[:-1] if part)[:MAX_SCOPE_DEPTH]


def _relative_names(scopes: list[str]) -> Iterator[str]:
    """Yield `encoder`, `layer.0` for the modules `encoder` and `encoder.layer.0`; the model itself has no name."""
    outer = ""
    for scope in filter(None, scopes):
        yield scope.removeprefix(f"{outer}.") if outer else scope
        outer = scope


def _shared_scope(one: Scope, other: Scope) -> Scope:
    """Return the modules that two scopes have in common."""
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
