"""The graph: a `networkx.DiGraph` whose vertices are ints and whose payloads are frozen `Node`s.

All change goes through one door, `Graph.apply(patch)`, which returns the patch that undoes it. Knows no protobuf, no
rule and no operator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import networkx as nx

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.expr.dims import Dim
from graphopt.ir.tensor import Tensor, tensors_equal
from graphopt.ir.types import Shape, TensorType, Type

INTERNAL_DOMAIN = "graphopt"
"""Domain of the vertices that are no ONNX nodes: the three operators below."""
INPUT = "Input"  # a graph input; `data` holds the default of an overridable initializer
CONSTANT = "Constant"  # an initializer or the value of an ONNX node of that name, in `data`
CAPTURE = "Capture"  # in the graph of a body: a value of the enclosing graph; `index` into the outer node's captures


IDENTITY = "Identity"
"""The ONNX operator that gives a value another name, for which the format has no other means."""


class Value(NamedTuple):
    """One output of a vertex."""

    vertex: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class OpaqueAttribute:
    """An attribute that is carried, never looked into: a serialized `onnx.AttributeProto`."""

    proto: bytes


AttributeScalar: TypeAlias = int | float | str | bytes
Attribute: TypeAlias = (
    "AttributeScalar | tuple[AttributeScalar, ...] | Tensor | Graph | tuple[Graph, ...] | OpaqueAttribute"
)
NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})
NO_METADATA: Mapping[str, str] = MappingProxyType({})


def attributes_equal(left: object, right: object) -> bool:
    """Return whether two attributes are of one type and equal: -0.0 is not 0.0, and a NaN equals a NaN."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return tensors_equal(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return repr(left) == repr(right)
    return type(left) is type(right) and left == right


def attribute_key(attribute: object) -> object:
    """Return a key that numbers, texts and lists of them have in common if they are equal, and of one type: 1 is not
    1.0; None for anything else."""
    if isinstance(attribute, int | float | str | bytes):
        return type(attribute), repr(attribute)
    is_list = isinstance(attribute, tuple) and not any(isinstance(item, Graph | Tensor) for item in attribute)
    return (tuple, repr(attribute)) if is_list else None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """The payload of a vertex. Frozen: a change is a new Node in the same vertex.

    `inputs` and `names`/`types` are positional as in ONNX; an omitted optional input is None, an omitted optional
    output has the name "". `version` is the `since_version` of the schema that gives the operator its meaning, after
    `opset_conversion.upgraded`; 0 where no schema is known. `captures` are the outer values that its bodies read.
    """

    op: str
    inputs: tuple[Value | None, ...]
    names: tuple[str, ...]
    types: tuple[Type | None, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=lambda: NO_ATTRIBUTES)
    domain: str = ""
    version: int = 0
    name: str = ""
    captures: tuple[Value, ...] = ()
    data: Tensor | None = None
    contents: tuple[tuple[Dim, ...] | None, ...] = ()
    """Per output: the elements of an integer tensor of rank <= 1, as far as `infer` knows them; () where unknown."""
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: NO_METADATA)
    unknown_fields: bytes = b""
    """Fields of the NodeProto that graphopt does not interpret, serialized."""
    serial: int = field(default_factory=count().__next__, init=False, repr=False)
    """Number of the node, unique in this process: a key for what is known of it."""

    @property
    def label(self) -> str:
        """Name of the node, or of the first value that it makes, as messages name it; empty if neither has one."""
        return self.name or next(filter(None, self.names), "")

    @property
    def is_internal(self) -> bool:
        return self.domain == INTERNAL_DOMAIN

    @property
    def is_constant(self) -> bool:
        return self.op == CONSTANT and self.domain == INTERNAL_DOMAIN

    @property
    def is_graph_input(self) -> bool:
        """True if it comes from outside the graph, which then does not choose its name."""
        return self.domain == INTERNAL_DOMAIN and self.op in (INPUT, CAPTURE)

    @property
    def capture_index(self) -> int:
        """The index of a capture among those of the node that has the body."""
        index = self.attrs["index"]
        assert isinstance(index, int)
        return index

    @property
    def operands(self) -> Iterator[Value]:
        """Every value that it reads: the inputs that are present, then the captures."""
        for value in self.inputs:
            if value is not None:
                yield value
        yield from self.captures

    @property
    def bodies(self) -> Iterator[Graph]:
        """The graphs among its attributes."""
        for attribute in self.attrs.values():
            if isinstance(attribute, Graph):
                yield attribute
            elif isinstance(attribute, tuple) and isinstance(next(iter(attribute), None), Graph):
                yield from (item for item in attribute if isinstance(item, Graph))

    @property
    def has_bodies(self) -> bool:
        for attribute in self.attrs.values():
            first = attribute[0] if isinstance(attribute, tuple) and attribute else attribute
            if isinstance(first, Graph):
                return True
        return False

    @property
    def weight_bytes(self) -> int:
        """Bytes of its data and of the weights in its bodies."""
        own = 0 if self.data is None else self.data.nbytes
        return own + sum(body.weight_bytes for body in self.bodies)

    def is_same_operation(self, other: Node) -> bool:
        """Return whether two nodes do the same with what they read: inputs and captures may be other values."""
        present = [[value is None for value in node.inputs] for node in (self, other)]
        same = (self.op, self.domain, self.version) == (other.op, other.domain, other.version)
        return same and self.attrs == other.attrs and present[0] == present[1]

    def with_inputs_replaced(self, mapping: Mapping[Value, Value]) -> Node:
        """Return the same node with the values that it reads replaced."""
        return replace(
            self,
            inputs=tuple(value if value is None else mapping.get(value, value) for value in self.inputs),
            captures=tuple(mapping.get(value, value) for value in self.captures),
        )


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of one graph: each vertex touched with its node before and after, and the outputs if they move."""

    before: Mapping[int, Node]
    after: Mapping[int, Node]
    outputs: tuple[tuple[Value, ...], tuple[Value, ...]] | None = None
    """The graph's output values before and after."""

    @property
    def inverse(self) -> Patch:
        return Patch(self.after, self.before, self.outputs and (self.outputs[1], self.outputs[0]))

    @property
    def removed(self) -> list[Node]:
        return [node for vertex, node in self.before.items() if vertex not in self.after]

    @property
    def added(self) -> list[Node]:
        return [node for vertex, node in self.after.items() if vertex not in self.before]

    @property
    def added_weight_bytes(self) -> int:
        """Bytes by which the constants grow; negative where they shrink."""
        after, before = (
            sum(node.data.nbytes for node in nodes.values() if node.data is not None)
            for nodes in (self.after, self.before)
        )
        return after - before


@dataclass(eq=False)
class Graph:
    """A graph of values. `inputs` are vertices; `outputs` are values, under the names in `output_names`.

    A name belongs to what produces the value (`Node.names`); the names of the graph's own inputs and outputs are
    frozen, so an output has a name of its own that may differ from its producer's until the model is saved.
    """

    name: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    output_names: tuple[str, ...] = ()
    output_types: tuple[Type | None, ...] = ()
    doc: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    """Every value and node name in use, in bodies and enclosing graphs too (one shared set): new names avoid them."""
    unknown_fields: bytes = b""
    """Fields of the GraphProto that graphopt does not interpret, serialized."""
    possibly_infinite: frozenset[int] = frozenset()
    """Inputs and captures of a body or part that may hold an infinity, as `magnitude_analysis` marked them."""
    possibly_huge: frozenset[int] = frozenset()
    """Inputs and captures that may hold a number near the largest of its type."""
    finiteness_requested: frozenset[int] = frozenset()
    """Outputs of a body or part whose finiteness is observed outside, as `magnitude_analysis` marked them."""
    positive_sizes: frozenset[str] = frozenset()
    """Names of sizes that are not 0 wherever the model as it was given can be run (see `operators.inference`)."""
    is_region: bool = False
    """Outputs may be inputs, or share a value: they are no names in a file, but what is read elsewhere."""
    nx: nx.DiGraph[int] = field(default_factory=nx.DiGraph)
    _by_op: dict[str, set[int]] = field(default_factory=dict)
    _outputs: tuple[tuple[Value, ...], frozenset[Value]] = ((), frozenset())
    """The outputs as a set, with the tuple that it was made of."""
    _order: list[int] | None = None
    """The topological order, until a node changes."""
    _next_vertex: int = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of ONNX nodes, without those in bodies."""
        internal = (self[v].is_internal for op in (INPUT, CONSTANT, CAPTURE) for v in self._by_op.get(op, ()))
        return sum(map(len, self._by_op.values())) - sum(internal)

    # The five that follow are asked millions of times. They look into the dictionaries of networkx, whose own methods
    # and views take three times as long: a tenth of the time in which a model is simplified.

    def __contains__(self, vertex: int) -> bool:
        return vertex in self.nx._node

    def __getitem__(self, vertex: int) -> Node:
        node: Node = self.nx._node[vertex]["node"]
        return node

    def __iter__(self) -> Iterator[int]:
        return iter(self.nx)

    def vertices_and_nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield vertices and nodes in no particular order."""
        pairs: Iterator[tuple[int, Node]] = iter(self.nx.nodes(data="node"))
        return pairs

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield the ONNX nodes (no inputs, constants, captures), in no particular order."""
        return ((vertex, node) for vertex, node in self.vertices_and_nodes() if node.domain != INTERNAL_DOMAIN)

    def graphs(self) -> Iterator[Graph]:
        """Yield the graph itself, then all bodies in it, however deep."""
        stack = [self]
        while stack:
            graph = stack.pop()
            yield graph
            stack += reversed([body for _, node in graph.nodes() for body in node.bodies])

    @property
    def weight_bytes(self) -> int:
        """Bytes of its constants and of the defaults of its inputs, in bodies too."""
        return sum(node.weight_bytes for _, node in self.vertices_and_nodes())

    def values_of(self, vertex: int) -> list[Value]:
        """Return the values that a vertex makes."""
        return [Value(vertex, output) for output in range(len(self[vertex].names))]

    def value_type(self, value: Value) -> Type | None:
        return self[value.vertex].types[value.output]

    def tensor_type(self, value: Value | None) -> TensorType | None:
        """Return the type of a dense tensor; None for an absent value, an unknown or another type."""
        found = None if value is None else self.value_type(value)
        return found if isinstance(found, TensorType) else None

    def shape(self, value: Value | None) -> Shape | None:
        """Return the shape of a dense tensor; None where not even its rank is known."""
        type_ = self.tensor_type(value)
        return None if type_ is None else type_.shape

    def dtype(self, value: Value | None) -> DType:
        """Return the element type of a dense tensor; UNDEFINED where that is not known."""
        type_ = self.tensor_type(value)
        return DType.UNDEFINED if type_ is None else type_.dtype

    def value_name(self, value: Value) -> str:
        return self[value.vertex].names[value.output]

    def constant(self, value: Value | None) -> Tensor | None:
        """Return the tensor where the value is a known constant (not an overridable initializer)."""
        node = None if value is None else self[value.vertex]
        return node.data if node is not None and node.is_constant else None

    def vertices_with_op(self, op: str) -> frozenset[int]:
        """Return the vertices of an operator, whatever its domain."""
        return frozenset(self._by_op.get(op, ()))

    def operator_counts(self) -> Mapping[str, int]:
        """Return the number of nodes by ONNX operator, named with its domain unless that is ONNX's own; no bodies."""
        return Counter(f"{node.domain}.{node.op}" if node.domain else node.op for _, node in self.nodes())

    def readers(self, vertex: int) -> Iterator[int]:
        """Yield the vertices that read any output of `vertex`, each once."""
        return iter(self.nx._succ[vertex])

    def fan_out(self, vertex: int) -> int:
        """Return the number of vertices that read any output of `vertex`."""
        return len(self.nx._succ[vertex])

    def known_contents(self, value: Value | None) -> tuple[Dim, ...] | None:
        """Return the elements of an integer tensor of rank <= 1, constant or symbolic; None where they are not
        known."""
        if value is None:
            return None
        node = self[value.vertex]
        if node.is_constant and node.data is not None:
            return node.data.int_values() if len(node.data.shape) <= 1 else None
        return node.contents[value.output] if node.contents else None

    def sources(self, vertex: int) -> Iterator[int]:
        """Yield the vertices whose outputs `vertex` reads, each once."""
        return iter(self.nx._pred[vertex])

    def use_count(self, value: Value) -> int:
        """Return how many times a value is read: input slots, captures and graph outputs all count."""
        inside = sum(sum(v == value for v in self[reader].operands) for reader in self.readers(value.vertex))
        return inside + self.outputs.count(value)

    def is_output(self, value: Value) -> bool:
        """Return whether a value is an output of the graph; quick also where there are thousands."""
        if self._outputs[0] is not self.outputs:
            self._outputs = self.outputs, frozenset(self.outputs)
        return value in self._outputs[1]

    def has_uses(self, value: Value) -> bool:
        """Return whether anything reads a value, or it is an output."""
        if self.is_output(value) or len(self[value.vertex].names) == 1:
            return self.is_output(value) or self.fan_out(value.vertex) > 0
        return any(value in self[reader].operands for reader in self.readers(value.vertex))

    def topological_order(self) -> list[int]:
        """Return the vertices, producers first, otherwise in the order of creation. Raises ModelError for a cycle.

        Constants and the like come first, however late they were made, so that what reads them keeps its place.
        Worked out anew only after a change.
        """
        if self._order is None:
            self._order = self._sorted_vertices()
        return [*self._order]

    def _sorted_vertices(self) -> list[int]:
        """Return the topological order, by Kahn's algorithm; networkx's lexicographical sort gives the same order in
        four times the time."""
        waiting, readers = dict(self.nx.in_degree), dict(self.nx.adjacency())
        order = sorted(vertex for vertex, node in self.vertices_and_nodes() if node.is_internal)
        for vertex in order:
            for reader in readers[vertex]:
                waiting[reader] -= 1
        ready = [vertex for vertex, count in waiting.items() if count == 0 and not self[vertex].is_internal]
        heapify(ready)
        while ready:
            vertex = heappop(ready)
            order.append(vertex)
            for reader in readers[vertex]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heappush(ready, reader)
        if len(order) < len(waiting):
            cycle = " -> ".join(self._label(edge[0]) for edge in nx.find_cycle(self.nx))
            raise ModelError(f"the graph '{self.name}' has a cycle: {cycle}")
        return order

    def _label(self, vertex: int) -> str:
        node = self[vertex]
        return f"{node.op} '{node.label}'"

    def copy(self, names: set[str] | None = None) -> Graph:
        """Return a copy of the graph with the same vertices and nodes, bodies copied too; tensors are shared.

        `names` are those of the whole model, where this is the copy of a body: all graphs of a model share one set.
        """
        names = {*self.names} if names is None else names
        twin = Graph(
            self.name, self.opsets, [*self.inputs], self.outputs, self.output_names, self.output_types,
            self.doc, self.metadata, names, self.unknown_fields, self.possibly_infinite, self.possibly_huge,
            self.finiteness_requested, self.positive_sizes, self.is_region,
            _next_vertex=self._next_vertex,
        )  # fmt: skip
        source, target = self.nx, twin.nx
        for vertex, node in self.vertices_and_nodes():  # as networkx copies, without its checks of each edge
            if node.has_bodies:
                attrs = {name: _copy_bodies(attribute, names) for name, attribute in node.attrs.items()}
                node = replace(node, attrs=attrs)
            target._node[vertex] = {"node": node}
            target._succ[vertex] = {**source._succ[vertex]}
            target._pred[vertex] = {**source._pred[vertex]}
        twin._by_op = {op: {*vertices} for op, vertices in self._by_op.items()}
        twin._order = self._order
        return twin

    # -- changing --------------------------------------------------------------------------------------------------

    def new_vertex(self) -> int:
        """Return a vertex number that was never used in this graph."""
        self._next_vertex += 1
        return self._next_vertex - 1

    def new_name(self, base: str) -> str:
        """Return a name that nothing in the model has, `base` itself if that is free; it is reserved from now on.

        The number after a name that is taken is found by bisection: thousands of values may share the name.
        """

        def is_free(number: int) -> bool:
            return f"{base}_{number}" not in self.names

        name = base
        if name in self.names or not name:
            end = 1
            while not is_free(end):
                end *= 2
            name = f"{base}_{end // 2 + 1 + bisect_left(range(end // 2 + 1, end), True, key=is_free)}"
        self.names.add(name)
        return name

    def add(self, node: Node) -> int:
        """Put a node in a vertex of its own while a graph is being built; later changes are patches."""
        vertex = self.new_vertex()
        self._set_nodes({vertex: node})
        self.names.update(name for name in (*node.names, node.name) if name)
        return vertex

    def apply(self, patch: Patch) -> Patch:
        """Make the change in place and return the patch that undoes it.

        Raises:
            AssertionError: the graph is not what the patch was made for.
        """
        for vertex, node in patch.before.items():
            assert self[vertex] is node, f"patch is stale at {self._label(vertex)}"
        assert patch.outputs is None or self.outputs == patch.outputs[0], "patch is stale at the outputs"
        for vertex in patch.before.keys() - patch.after.keys():
            self._remove_vertex(vertex)
            self.nx.remove_node(vertex)
        self._set_nodes(patch.after)
        if patch.outputs is not None:
            self.outputs = patch.outputs[1]
        return patch.inverse

    def _set_nodes(self, nodes: Mapping[int, Node]) -> None:
        self._order = None
        for vertex, node in nodes.items():
            if vertex in self.nx:
                self._remove_vertex(vertex)
                self.nx.remove_edges_from([(source, vertex) for source in self.nx.pred[vertex]])
            self.nx.add_node(vertex, node=node)
            self._by_op.setdefault(node.op, set()).add(vertex)
        for vertex, node in nodes.items():  # producers may be among them: edges come last
            self.nx.add_edges_from((value.vertex, vertex) for value in node.operands)

    def _remove_vertex(self, vertex: int) -> None:
        self._order = None
        self._by_op[self[vertex].op].discard(vertex)

    def check_invariants(self) -> None:
        """Assert the invariants: every operand exists, edges mirror operands, the operator index is exact."""
        for vertex, node in self.vertices_and_nodes():
            assert len(node.names) == len(node.types), self._label(vertex)
            sources = {value.vertex for value in node.operands}
            assert sources == set(self.nx.pred[vertex]), f"edges of {self._label(vertex)} do not mirror its inputs"
            assert all(value.output < len(self[value.vertex].names) for value in node.operands), self._label(vertex)
            assert vertex in self._by_op[node.op], f"{self._label(vertex)} is not in the operator index"
        assert sum(map(len, self._by_op.values())) == len(self.nx), "the operator index holds a dropped vertex"
        assert all(value.output < len(self[value.vertex].names) for value in self.outputs), "dangling output"
        assert all(self[vertex].op == INPUT for vertex in self.inputs), "an input is no input"
        order = self._sorted_vertices()  # raises for a cycle
        assert self._order in (None, order), "the order that is kept is of another graph"


def _copy_bodies(attribute: Attribute, names: set[str]) -> Attribute:
    match attribute:
        case Graph():
            return attribute.copy(names)
        case (Graph(), *_):
            return tuple(body.copy(names) for body in attribute if isinstance(body, Graph))
    return attribute
