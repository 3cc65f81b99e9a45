"""The two edits that every rewrite is made of: replace a value by another, and drop nodes that nobody reads.

They return a `Patch` and change nothing; their cost is proportional to the nodes that the patch touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from graphopt.ir import schemas
from graphopt.ir.graph import CONSTANT, IDENTITY, INPUT, INTERNAL_DOMAIN, NO_ATTRIBUTES, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type


class DraftGraph(Graph):
    """A read-only view of a graph with nodes that are not in it yet, or that take the place of some of its own."""

    def __init__(self, graph: Graph, new: Mapping[int, Node] | None = None) -> None:
        super().__init__(opsets=graph.opsets, positive_sizes=graph.positive_sizes, nx=graph.nx)
        self.base = graph
        self.drafts = dict(new or {})
        self._last_vertex: int = graph._last_vertex if isinstance(graph, DraftGraph) else 0

    def add_draft(self, node: Node) -> int:
        """Add a node and return its vertex, which neither the graph has nor a draft below."""
        self._last_vertex -= 1
        self.drafts[self._last_vertex] = node
        return self._last_vertex

    def __getitem__(self, vertex: int) -> Node:
        return self.drafts.get(vertex) or self.base[vertex]


def constant_node(tensor: Tensor, name: str) -> Node:
    """Return a vertex that holds a known tensor under a name, which the caller has taken from `Graph.new_name`."""
    return Node(CONSTANT, (), (name,), (TensorType(tensor.dtype, tensor.shape),), domain=INTERNAL_DOMAIN, data=tensor)


def replace_values(graph: Graph, mapping: Mapping[Value, Value], new: Mapping[int, Node] | None = None) -> Patch:
    """Return the patch after which every reader of a key of `mapping` reads its value instead, graph outputs included.

    `new` holds nodes in new vertices, or in the place of present ones; they are taken literally, so that a new node may
    read a value that it replaces. A chain in `mapping` (a -> b, b -> c) is followed to its end. Vertices that lose
    their last reader go too, with all that only they read; inputs of the graph stay.

    An output whose value is to be an input or another output becomes an Identity of it, as in a file.
    """
    new = new or {}
    mapping = {old: _resolve_chain(mapping, old) for old in mapping}
    near = dict.fromkeys(reader for value in mapping for reader in graph.readers(value.vertex))
    after = {
        reader: graph[reader].with_inputs_replaced(mapping)
        for reader in near
        if reader not in new and any(value in mapping for value in graph[reader].operands)
    }
    after.update(new)
    outputs = _replaced_outputs(graph, mapping, after)
    replaced = [graph[vertex] for vertex in new if vertex in graph]
    suspects = [value.vertex for value in mapping]
    suspects += [value.vertex for node in replaced for value in node.operands]
    dead = _dead_vertices(graph, after, outputs, suspects)
    before = {vertex: graph[vertex] for vertex in (*after, *dead) if vertex in graph}
    after = {vertex: node for vertex, node in after.items() if vertex not in dead}
    return Patch(before, after, (graph.outputs, outputs) if outputs != graph.outputs else None)


def replace_node(graph: Graph, vertex: int, node: Node) -> Patch:
    """Return the patch that puts a node in the place of another; vertices that only the old one read go."""
    return replace_values(graph, {}, {vertex: node})


def with_ancestors(graph: Graph, vertices: Iterable[int]) -> set[int]:
    """Return some vertices and all that they depend on."""
    found = {*vertices}
    waiting = [*found]
    while waiting:
        new = set(graph.sources(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def needed_vertices(graph: Graph) -> set[int]:
    """Return the vertices that outputs depend on."""
    return with_ancestors(graph, (value.vertex for value in graph.outputs))


def remove_unread(graph: Graph) -> Patch | None:
    """Return the patch that drops every vertex no output depends on; None where there is none."""
    alive = needed_vertices(graph)
    dead = {vertex: node for vertex, node in graph.vertices_and_nodes() if vertex not in alive and not _is_input(node)}
    return Patch(dead, {}) if dead else None


def needs_copy(graph: Graph, value: Value, by: Value) -> bool:
    """Return whether an Identity stays where a value takes the place of another: both are outputs, or it is an
    input."""
    if graph.is_region or not graph.is_output(value):
        return False
    return graph.is_output(by) or graph[by.vertex].is_graph_input


def _replaced_outputs(graph: Graph, mapping: Mapping[Value, Value], after: dict[int, Node]) -> tuple[Value, ...]:
    """Return the outputs after the change; puts the Identities that these need among the nodes `after` it."""
    if not any(map(graph.is_output, mapping)):
        return graph.outputs
    outputs = [mapping.get(value, value) for value in graph.outputs]
    taken = {value for value in graph.outputs if value not in mapping}
    made: dict[str, Value] = {}
    for place, (name, old, value) in enumerate(zip(graph.output_names, graph.outputs, outputs, strict=True)):
        if old == value or graph.is_region:
            continue
        if name in made:  # one output that is listed twice
            outputs[place] = made[name]
            continue
        node = after.get(value.vertex) or graph[value.vertex]
        if value in taken or node.is_graph_input:
            outputs[place] = Value(graph.new_vertex())
            after[outputs[place].vertex] = _identity_copy(graph, old, value, node.types[value.output])
        taken.add(outputs[place])
        made[name] = outputs[place]
    return tuple(outputs)


def _identity_copy(graph: Graph, old: Value, value: Value, type_: Type | None) -> Node:
    """Return an Identity of a value, with the name of the node that it replaces, unless that has other outputs."""
    node = graph[old.vertex]
    alone = len(node.names) == 1
    label = node.name if alone else graph.new_name(f"{node.names[old.output]}_copy")
    return Node(
        IDENTITY, (value,), (node.names[old.output],), (type_ or node.types[old.output],), NO_ATTRIBUTES, "",
        schemas.newest_version(IDENTITY), label,
    )  # fmt: skip


def _resolve_chain(mapping: Mapping[Value, Value], start: Value) -> Value:
    value, steps = mapping[start], 0
    while value in mapping and mapping[value] != value:
        value, steps = mapping[value], steps + 1
        assert steps <= len(mapping), f"values replace each other in a circle: {start}"
    return value


def _dead_vertices(
    graph: Graph, after: Mapping[int, Node], outputs: Iterable[Value], suspects: Iterable[int]
) -> dict[int, Node]:
    """Return the vertices among the suspects, and among what dead ones read, that nothing reads after the change."""
    dead: dict[int, Node] = {}
    kept = {value.vertex for value in outputs}
    reads = Counter(value.vertex for node in after.values() for value in node.operands)
    stack = [*suspects]
    while stack:
        vertex = stack.pop()
        if vertex in dead or vertex in kept or reads[vertex]:
            continue
        own = [graph[vertex]] if vertex in graph else []
        if any(_is_input(node) for node in own):
            continue
        if own and any(reader not in after and reader not in dead for reader in graph.readers(vertex)):
            continue
        if vertex in after:
            reads.subtract(value.vertex for value in after[vertex].operands)
            own.append(after[vertex])
        dead[vertex] = own[0]
        stack += [value.vertex for node in own for value in node.operands]
    return dead


def _is_input(node: Node) -> bool:
    return node.op == INPUT and node.domain == INTERNAL_DOMAIN
