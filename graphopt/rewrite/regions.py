"""Regions: parts of a graph as small graphs of their own, cut where few values cross, and identified by digests.

What is found out about a region once holds for all its copies: a change is made in the copy's own small graph, with its
own weights, and carried over from there, patch by patch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, NamedAtom, SymbolicDim, UnknownAtom, replace_dim_atoms
from graphopt.ir.chunks import iter_chunks
from graphopt.ir.edit import remove_unread, replace_values
from graphopt.ir.graph import CONSTANT, IDENTITY, INPUT, INTERNAL_DOMAIN, Attribute, Graph, Node, Patch, Value
from graphopt.ir.schemas import is_deterministic
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.operators.fixed_sizes import substitute_in_type
from graphopt.operators.inference import infer_graph
from graphopt.operators.magnitude_analysis import Magnitude, is_finiteness_observed, may_have_magnitude
from graphopt.operators.node_facts import get_default_attribute, operator_of_node
from graphopt.operators.operator_classes import UNKNOWN_OPERATOR


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Sizes of the blocks that a graph is cut into, in nodes."""

    min_nodes: int = 6
    """Fewest nodes of a block, unless the next one is long: neighbours decide what an operator costs."""
    max_nodes: int = 64
    """Most nodes of a block: longer ones are cut where the fewest values cross."""
    crossing_window: int = 80
    """Nodes after which a value that is still read no longer counts as crossing, as a mask or a skip connection."""


# -- where to cut ------------------------------------------------------------------------------------------------------


def cut_into_blocks(graph: Graph, sizes: BlockSizes = BlockSizes()) -> list[list[int]]:
    """Return the vertices of the ONNX nodes in topological order, cut into runs that hand on one value.

    Left out are Identities that only an output reads: they stay in the model, which needs them to give one value two
    names. So are nodes that no output depends on: a region would not know that they read what it replaces.
    """
    dead = remove_unread(graph)
    apart = {v for v in graph.vertices_with_op(IDENTITY) if not graph.fan_out(v)} | (
        dead.before.keys() if dead else set()
    )
    order = [vertex for vertex in graph.topological_order() if not graph[vertex].is_internal and vertex not in apart]
    crossing = _crossing_counts(graph, order, sizes.crossing_window)
    found: list[list[int]] = []
    start = 0
    for position, vertex in enumerate(order):
        alone = not is_extractable(graph[vertex])
        if alone and start < position:
            found += _halve(order[start:position], crossing[start:position], sizes.max_nodes)
            start = position
        is_long = position + 1 - start >= sizes.min_nodes
        if alone or position + 1 == len(order) or (crossing[position] <= 1 and is_long):
            found += _halve(order[start : position + 1], crossing[start : position + 1], sizes.max_nodes)
            start = position + 1
    return found


def _crossing_counts(graph: Graph, order: Sequence[int], reach: int) -> list[int]:
    """Return, for each position, the number of values made before it and read within `reach` nodes after it."""
    place = {vertex: position for position, vertex in enumerate(order)}
    change = [0] * (len(order) + 1)
    for vertex in order:
        last: dict[int, int] = {}
        for reader in filter(place.__contains__, graph.readers(vertex)):
            for value in graph[reader].operands:
                if value.vertex == vertex:
                    last[value.output] = max(last.get(value.output, 0), place[reader])
        for end in last.values():
            if end - place[vertex] <= reach:
                change[place[vertex]] += 1
                change[end] -= 1
    crossing, open_now = [], 0
    for position in range(len(order)):
        open_now += change[position]
        crossing.append(open_now)
    return crossing


def _halve(run: Sequence[int], crossing: Sequence[int], most: int) -> list[list[int]]:
    """Return a run, cut near its middle where the fewest values cross if it is too long."""
    if len(run) <= most:
        return [list(run)]
    low, high = len(run) // 4, 3 * len(run) // 4
    cut = min(range(low, high), key=lambda position: (crossing[position], abs(position - len(run) // 2)))
    return _halve(run[: cut + 1], crossing[: cut + 1], most) + _halve(run[cut + 1 :], crossing[cut + 1 :], most)


# -- cutting out, and putting back -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Region:
    """A part of a graph as a graph of its own: values read from outside are its inputs, those read outside its
    outputs."""

    whole: Graph
    graph: Graph
    outer_values: dict[Value, Value] = field(default_factory=dict)
    """Values of the whole graph for the inputs and constants of the region."""
    outer_vertices: dict[int, int] = field(default_factory=dict)
    """Vertices of the whole graph for those of the region."""

    def carry_patch(self, patch: Patch) -> Patch:
        """Return a patch of the region as one of the whole graph. Patches are carried in their order, each once."""
        for vertex in patch.after:
            if vertex not in self.outer_vertices:
                self.outer_vertices[vertex] = self.whole.new_vertex()
        outputs = zip(*patch.outputs, strict=True) if patch.outputs else ()
        mapping = {self._value_in_whole(old): self._value_in_whole(new) for old, new in outputs if old != new}
        nodes = {
            self.outer_vertices[vertex]: node.with_inputs_replaced(
                {value: self._value_in_whole(value) for value in node.operands}
            )
            for vertex, node in patch.after.items()
        }
        return self._with_fresh_names(replace_values(self.whole, mapping, nodes))

    def _value_in_whole(self, value: Value) -> Value:
        return self.outer_values.get(value) or Value(self.outer_vertices[value.vertex], value.output)

    def _with_fresh_names(self, patch: Patch) -> Patch:
        """Return the same patch with names that are new in the whole graph; nodes keep those of what they replace."""
        free = {name for node in patch.before.values() for name in (*node.names, node.name)}
        after = {}
        for vertex, node in patch.after.items():
            taken = (self.whole.new_name(name) if name and name not in free else name for name in node.names)
            own = self.whole.new_name(node.name) if node.name and node.name not in free else node.name
            after[vertex] = replace(node, names=tuple(taken), name=own)
        return Patch(patch.before, after, patch.outputs)


def extract_region(whole: Graph, vertices: Sequence[int]) -> Region | None:
    """Return the region of these ONNX nodes, given in topological order; None where one of them cannot leave its graph.

    Vertices are numbered by a walk from the outputs, so that those of equal regions have equal numbers. What leads to
    no output is left out.
    """
    inside = frozenset(vertices)
    if any(not is_extractable(whole[vertex]) for vertex in vertices):
        return None
    graph = Graph("region", whole.opsets, is_region=True)
    region = Region(whole, graph)
    known: dict[Value, Value] = {}
    outputs = [value for vertex in vertices for value in _outside_operands(whole, vertex, inside)]
    for vertex in _walk_from_outputs(whole, outputs, inside):
        for value in whole[vertex].operands:
            if value.vertex not in inside and value not in known:
                known[value] = _add_border_value(region, value)
        place = graph.add(whole[vertex].with_inputs_replaced(known))
        region.outer_vertices[place] = vertex
        known |= {Value(vertex, index): Value(place, index) for index in range(len(whole[vertex].names))}
    graph.outputs = tuple(known[value] for value in outputs)
    graph.output_names = tuple(graph.new_name(f"output_{index}") for index in range(len(outputs)))
    graph.output_types = tuple(whole.value_type(value) for value in outputs)
    graph.finiteness_requested = frozenset(
        place for place, value in enumerate(outputs) if is_finiteness_observed(whole, value.vertex)
    )
    return region


def is_extractable(node: Node) -> bool:
    """Return whether a node computes the same elsewhere: it captures nothing and draws no random numbers."""
    return not node.captures and not node.has_bodies and is_deterministic(node)


def _add_border_value(region: Region, value: Value) -> Value:
    """Return a value from outside as an input of the region; a constant stays one."""
    node = region.whole[value.vertex]
    if node.is_constant:
        place = region.graph.add(node)
        region.outer_vertices[place] = value.vertex
    else:
        contents = (region.whole.known_contents(value),)
        name, type_ = node.names[value.output], node.types[value.output]
        place = region.graph.add(Node(INPUT, (), (name,), (type_,), domain=INTERNAL_DOMAIN, contents=contents))
        region.graph.inputs.append(place)
        if may_have_magnitude(region.whole, [value]):
            region.graph.possibly_infinite |= {place}
        if may_have_magnitude(region.whole, [value], Magnitude.HUGE):
            region.graph.possibly_huge |= {place}
        region.outer_values[Value(place)] = value
    return Value(place)


def _outside_operands(whole: Graph, vertex: int, inside: Collection[int]) -> Iterator[Value]:
    readers = [reader for reader in whole.readers(vertex) if reader not in inside]
    outside = {value for reader in readers for value in whole[reader].operands}
    for index in range(len(whole[vertex].names)):
        value = Value(vertex, index)
        if value in outside or value in whole.outputs:
            yield value


# -- with sizes as numbers ---------------------------------------------------------------------------------------------


def with_input_types(graph: Graph, inputs: Sequence[Type | None], contents: Sequence[tuple[int, ...] | None]) -> Graph:
    """Return a region's graph with these types of its inputs, and all else with the types that follow; a copy, if need
    be.

    Inputs whose elements are known, such as the target of a Reshape, become constants: made-up ones would fit nothing.
    """
    own = [graph.value_type(Value(vertex)) for vertex in graph.inputs]
    if own == [*inputs] and all(elements is None for elements in contents):
        return graph
    twin = graph.copy()
    sizes = _bound_sizes(graph, inputs)
    changed: dict[int, Node] = {}
    for vertex, node in twin.vertices_and_nodes():
        types = tuple(substitute_in_type(type_, sizes) for type_ in node.types)
        if types != node.types and not node.is_constant:
            changed[vertex] = replace(node, types=types, contents=())
    for vertex, type_, elements in zip(graph.inputs, inputs, contents, strict=True):
        given = replace(twin[vertex], types=(type_,), contents=())
        if elements is not None:
            assert isinstance(type_, TensorType), "elements are known of tensors only"
            array = np.array(elements, type_.dtype.numpy).reshape([len(elements)] if type_.shape else [])
            data = Tensor.from_array(array)
            given = replace(given, op=CONSTANT, types=(TensorType(data.dtype, data.shape),), data=data)
        changed[vertex] = given
    twin.inputs = [vertex for vertex in twin.inputs if not changed[vertex].is_constant]
    twin.apply(Patch({vertex: twin[vertex] for vertex in changed}, changed))
    twin.output_types = tuple(substitute_in_type(type_, sizes) for type_ in twin.output_types)
    infer_graph(twin)
    return twin


def _bound_sizes(graph: Graph, inputs: Sequence[Type | None]) -> dict[str, int]:
    """Return the numbers behind the names of sizes, read off the types of inputs."""
    found: dict[str, int] = {}
    for vertex, type_ in zip(graph.inputs, inputs, strict=True):
        own = graph.shape(Value(vertex))
        if own is not None and isinstance(type_, TensorType) and type_.shape is not None:
            found |= {str(a): b for a, b in zip(own, type_.shape, strict=True) if isinstance(b, int)}
    return {name: size for name, size in found.items() if not name.isdecimal()}


# -- identity ----------------------------------------------------------------------------------------------------------


def graph_digest(
    graph: Graph, tell: Callable[[Tensor], Any] | None = None, node_texts: dict[int, NodeText] | None = None
) -> str:
    """Identify what a graph computes and on which shapes, names and the values of its weights left out.

    An attribute that has its default is as one that is absent. Vertices are numbered by a walk from the outputs, so
    that it does not matter in what order they were made.

    Args:
        graph: what is identified.
        tell: says what identifies a tensor.
        node_texts: what digests of other graphs, by the same `tell`, said of nodes, by their serial numbers; what this
            one says is added.
    """
    tell = tell or _describe_tensor
    node_texts = {} if node_texts is None else node_texts
    numbers: dict[int, int] = {}
    said = []
    places = {vertex: place for place, vertex in enumerate(graph.inputs)}
    for vertex in canonical_order(graph):
        numbers[vertex] = len(numbers)
        node = graph[vertex]
        described = node_texts.get(node.serial) or _describe_node(node, graph, tell)
        if not node.has_bodies:  # which may change
            node_texts[node.serial] = described
        inputs, captures = (
            [None if value is None else (numbers[value.vertex], value.output) for value in values]
            for values in (node.inputs, node.captures)
        )
        said.append(f"({places.get(vertex)}, {described.operator}, {inputs}, {captures}, {described.details})")
    said.append(repr([(numbers[vertex], output) for vertex, output in graph.outputs]))
    said.append(repr(sorted(graph.opsets.items())))
    said += (
        [repr(sorted(places[vertex] for vertex in graph.possibly_infinite if vertex in places))]
        if graph.possibly_infinite
        else []
    )
    said += (
        [f"huge {sorted(places[vertex] for vertex in graph.possibly_huge if vertex in places)}"]
        if graph.possibly_huge
        else []
    )
    said += [f"asked {sorted(graph.finiteness_requested)}"] if graph.finiteness_requested else []
    names: dict[str, str] = {}  # sizes that nothing is known about are named anew in each copy
    text = _ANONYMOUS_SIZE.sub(lambda match: names.setdefault(match[0], f"?{len(names)}"), "\n".join(said))
    return hashlib.sha256(text.encode()).hexdigest()


def portable_digest(graph: Graph) -> str:
    """Identify a graph as other exports of its model have it; bodies in it, as `graph_digest` does.

    Beside names and the values of weights this leaves out the names of sizes, opsets and versions of operators, and
    the values of single floats, which may be learned.
    """
    twin, order = graph.copy(), list(canonical_order(graph))
    sizes = _renumbered_sizes(dim for vertex in order for type_ in graph[vertex].types for dim in _dims(type_))
    alike = {}
    for vertex in order:
        types = tuple(substitute_in_type(type_, sizes) for type_ in twin[vertex].types)
        attributes = _given_attributes(graph[vertex], graph)  # without a version nothing has a default
        alike[vertex] = replace(twin[vertex], types=types, attrs=attributes, version=0)
    twin.apply(Patch({vertex: twin[vertex] for vertex in order}, alike))
    twin.opsets = {}
    return graph_digest(twin, _describe_without_floats)


def nodes_digest(graph: Graph, vertices: Sequence[int]) -> str:
    """Identify nodes, given in topological order, by `portable_digest`; empty where they cannot be cut out of their
    graph."""
    region = extract_region(graph, vertices)
    return "" if region is None else portable_digest(region.graph)


def _dims(type_: Type | None) -> Iterator[Dim]:
    if isinstance(type_, TensorType):
        yield from type_.shape or ()


def _renumbered_sizes(dims: Iterable[Dim]) -> dict[str, Dim]:
    """Return new names for the sizes that the model names, in the order in which they occur, by themselves first."""
    names: dict[str, Dim] = {}

    def number(atom: NamedAtom | UnknownAtom) -> None:
        if isinstance(atom, NamedAtom):
            names.setdefault(atom.name, SymbolicDim.named(f"size_{len(names)}"))

    met = [dim for dim in dims if isinstance(dim, SymbolicDim)]
    for dim in sorted(met, key=lambda dim: dim.atom is None):
        replace_dim_atoms(dim, number)
    return names


def weights_digest(graph: Graph) -> str:
    """Identify the values of weights, which `graph_digest` leaves out: denormal numbers make kernels slow."""
    said = hashlib.sha256()
    for tensor in _weight_tensors(graph):
        if tensor.dtype is not DType.STRING:
            for piece in iter_chunks(tensor.numpy()):
                said.update(piece.view(np.uint8).data)
    return said.hexdigest()


def _weight_tensors(graph: Graph) -> Iterator[Tensor]:
    """Yield the tensors of a graph and of its bodies, those in attributes too."""
    for vertex in canonical_order(graph):
        node = graph[vertex]
        if node.data is not None:
            yield node.data
        yield from (attribute for attribute in node.attrs.values() if isinstance(attribute, Tensor))
        for body in node.bodies:
            yield from _weight_tensors(body)


def speed_digest(graph: Graph) -> str | None:
    """Identify all that decides how long a graph takes, where that does not depend on the values of weights: else None.

    It does where sizes follow from values; where there are bodies, which may run as often as values say; where nothing
    is known of an operator; and where weights are so small that results may be denormal, which makes kernels slow.
    Wider integers count by value, as they may be indices.
    """
    nodes = [graph[vertex] for vertex in canonical_order(graph)]
    given = frozenset(_atoms_of(type_ for vertex in graph.inputs for type_ in graph[vertex].types))
    if any(node.has_bodies or not _has_sizes_of(given, node) for node in nodes):
        return None
    if any(operator_of_node(node) is UNKNOWN_OPERATOR for node in nodes if not node.is_internal):
        return None
    if any(map(_has_tiny_numbers, _weight_tensors(graph))):
        return None
    return graph_digest(graph, _describe_all_but_weights)


def _has_sizes_of(given: Collection[NamedAtom | UnknownAtom], node: Node) -> bool:
    """Return whether all values of a node are tensors of known sizes, or of such as follow from those that are given;
    a size that a model names otherwise may follow from values."""
    made = [type_ for name, type_ in zip(node.names, node.types, strict=True) if name]
    is_known = all(isinstance(type_, TensorType) and type_.shape is not None for type_ in made)
    return is_known and all(atom in given for atom in _atoms_of(made))


def _atoms_of(types: Iterable[Type | None]) -> list[NamedAtom | UnknownAtom]:
    """Return the atoms of all sizes in some types, however deep."""
    found: list[NamedAtom | UnknownAtom] = []
    for type_ in types:
        for dim in _dims(type_):
            replace_dim_atoms(dim, found.append)
    return found


def _has_tiny_numbers(tensor: Tensor) -> bool:
    """Return whether numbers are so small that a product with them may be denormal. In half precision many are, but
    ONNX Runtime's kernels for x86 compute with them in single precision, and other processors are not slow with them.
    """
    if tensor.dtype not in _LEAST_BITS:
        return False
    kind, least = _LEAST_BITS[tensor.dtype]
    without_sign = (1 << (8 * kind.itemsize - 1)) - 1
    magnitudes = (piece.view(kind) & without_sign for piece in iter_chunks(tensor.numpy()))
    return any(bool((magnitude - 1 < least - 1).any()) for magnitude in magnitudes)  # 0 - 1 is the greatest number


_LEAST_BITS: dict[DType, tuple[np.dtype[Any], int]] = {
    DType.BFLOAT16: (np.dtype(np.uint16), (127 - 100) << 7),
    DType.FLOAT: (np.dtype(np.uint32), (127 - 100) << 23),
    DType.DOUBLE: (np.dtype(np.uint64), (1023 - 1000) << 52),
}
"""Bits of 2^-100, or 2^-1000 in double precision, as integers by type: of greater numbers, products with ordinary ones
are not denormal."""


_ANONYMOUS_SIZE = re.compile(r"\?\d+")


def canonical_order(graph: Graph) -> Iterator[int]:
    """Yield the vertices that the outputs of a graph depend on, producers first, in an order that depends on the wiring
    alone."""
    return _walk_from_outputs(graph, graph.outputs, graph)


def _walk_from_outputs(graph: Graph, outputs: Sequence[Value], inside: Collection[int] | Graph) -> Iterator[int]:
    """Yield the vertices that some outputs depend on, producers first, in an order that depends on the wiring alone."""
    done: set[int] = set()
    stack = [(value.vertex, False) for value in reversed(outputs)]
    while stack:
        vertex, ready = stack.pop()
        if vertex in done or vertex not in inside:
            continue
        if ready:
            done.add(vertex)
            yield vertex
        else:
            stack.append((vertex, True))
            stack += [(value.vertex, False) for value in reversed(list(graph[vertex].operands))]


class NodeText(NamedTuple):
    """Text of a node in a digest, without its operands."""

    operator: str
    details: str
    """Its attributes, types and data."""


def _describe_node(node: Node, graph: Graph, tell: Callable[[Tensor], Any]) -> NodeText:
    held = None if node.data is None else tell(node.data)
    types = [str(type_) for type_ in node.types]
    attributes = describe_attributes(_given_attributes(node, graph), tell)
    return NodeText(f"{node.op!r}, {node.domain!r}, {node.version!r}", f"{attributes!r}, {types!r}, {held!r}")


def _given_attributes(node: Node, graph: Graph) -> Mapping[str, Attribute]:
    """Return the attributes of a node that differ from their defaults."""
    return {name: value for name, value in node.attrs.items() if not _is_default(node, graph, name, value)}


def _is_default(node: Node, graph: Graph, name: str, value: Attribute) -> bool:
    is_plain = isinstance(value, int | float | bytes | str) or (
        isinstance(value, tuple) and len(value) < _LONGEST_DEFAULT
    )
    return is_plain and repr(value) == repr(get_default_attribute(node, graph, name))


_LONGEST_DEFAULT = 64
"""Length of a list from which on it is not compared: no default is so long."""


def describe_given_attributes(node: Node, graph: Graph) -> list[tuple[str, Any]]:
    """Return the attributes of a node that differ from their defaults, for their `repr`."""
    return describe_attributes(_given_attributes(node, graph), _describe_tensor)


def describe_attributes(attrs: Mapping[str, Attribute], tell: Callable[[Tensor], Any]) -> list[tuple[str, Any]]:
    """Return the attributes of a node for their `repr`, which tells them apart by type: 1 is not 1.0, nor 0.0 -0.0."""

    def told(attribute: Attribute) -> Any:
        match attribute:
            case Tensor():
                return tell(attribute)
            case Graph():
                return graph_digest(attribute, tell)
            case tuple():
                return tuple(map(told, attribute))
        return attribute

    return [(name, told(attrs[name])) for name in sorted(attrs)]


def _describe_without_floats(tensor: Tensor) -> Any:
    """Return integers as `_describe_tensor` does, and floats by the shape alone."""
    return (int(tensor.dtype), tensor.shape, None) if tensor.dtype.is_float else _describe_tensor(tensor)


def _describe_all_but_weights(tensor: Tensor) -> Any:
    """Return what `_describe_tensor` does, and the values of wider integers, which may be indices."""
    is_told = tensor.dtype in (DType.INT32, DType.INT64, DType.UINT32, DType.UINT64, DType.BOOL)
    values = hashlib.sha256(np.ascontiguousarray(tensor.numpy()).data).hexdigest() if is_told else None
    return (*_describe_tensor(tensor), values)


def _describe_tensor(tensor: Tensor) -> Any:
    """Return numbers and small lists of integers by value, as rules look at them; weights by the shape alone."""
    is_told = tensor.size == 1 or tensor.int_values() is not None
    return (int(tensor.dtype), tensor.shape, tensor.numpy().tolist() if is_told else None)
