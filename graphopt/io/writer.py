"""Graphs as messages: a `Model` is written as a `ModelProto`, under names that are free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    ValueInfoProto,
)

from graphopt.io import opset_conversion, tensor_payload
from graphopt.io.reader import copy_fields
from graphopt.ir.graph import CAPTURE, CONSTANT, IDENTITY, INPUT, Graph, Node, Value
from graphopt.ir.types import OpaqueType, TensorType, Type
from graphopt.operators import proto_conversion


@dataclass(frozen=True)
class _ValueNames:
    """What each value of a graph is called in the file, and the outputs that need an Identity to be called so."""

    graph: Graph
    renamed: Mapping[Value, str]
    outputs: Sequence[str]
    output_copies: Sequence[tuple[Value, str]]

    def __call__(self, value: Value | None) -> str:
        return "" if value is None else self.renamed.get(value) or self.graph.value_name(value)


@dataclass(frozen=True)
class GraphWriter:
    """Writes the graphs of one model, and changes none of them."""

    ir_version: int
    place_tensor: tensor_payload.PlaceTensor
    used_names: set[str] = field(default_factory=set)
    """Names that were made up while writing."""

    def write_graph(self, graph: Graph, into: GraphProto, captured: Sequence[str] | None) -> list[tuple[str, Node]]:
        """Write a graph; its initializers are returned. `captured` are the names of what a body captures."""
        declared = GraphProto()
        declared.ParseFromString(graph.unknown_fields)
        copy_fields(declared, into, without=("input", "output", "value_info", "sparse_initializer"))
        if graph.name:
            into.name = graph.name
        if graph.doc:
            into.doc_string = graph.doc
        for key, text in graph.metadata.items():
            into.metadata_props.add(key=key, value=text)
        names = self._assign_names(graph, captured)
        nodes = {v: graph[v] for v in graph.topological_order() if not graph[v].is_internal}
        nodes = {v: opset_conversion.downgraded(node, graph) for v, node in nodes.items()}
        initializers = _ordered_initializers(graph, nodes, names)
        self._write_nodes(nodes, names, declared, into)
        self._write_inputs(names, declared, into, initializers, is_body=captured is not None)
        self._write_values(names, declared, into)
        return initializers

    def write_body(self, graph: Graph, captured: Sequence[str]) -> GraphProto:
        """Return a graph among the attributes of a node. Before IR version 4 its constants cannot be initializers."""
        into = GraphProto()
        constants = []
        for name, node in self.write_graph(graph, into, captured):
            if self.ir_version >= 4 or any(info.name == name for info in into.input):
                tensor_payload.put_initializer(into.initializer.add(), name, node, self.place_tensor)
            else:
                constant = NodeProto(op_type=CONSTANT, output=[name])
                attribute = constant.attribute.add(name="value", type=AttributeProto.TENSOR)
                tensor_payload.put_initializer(attribute.t, name, node, self.place_tensor)
                constants.append(constant)
        if constants:
            nodes = [*constants, *into.node]
            del into.node[:]
            into.node.extend(nodes)
        return into

    # -- names

    def _assign_names(self, graph: Graph, captured: Sequence[str] | None) -> _ValueNames:
        outside = captured or ()
        renamed = {
            Value(v): outside[graph[v].capture_index] for v in graph.vertices_with_op(CAPTURE) if graph[v].is_internal
        }
        own = _ValueNames(graph, renamed, (), ())
        outputs = [
            self._fresh_name(graph, name) if name in outside and own(value) != name else name
            for value, name in zip(graph.outputs, graph.output_names, strict=True)
        ]
        wanted = list(zip(graph.outputs, outputs, strict=True))
        settled = {value: name for value, name in wanted if own(value) == name}
        copies = []
        for value, name in dict.fromkeys(wanted):
            if settled.get(value) == name:
                continue
            if value in settled or graph[value.vertex].is_graph_input:
                copies.append((value, name))
            else:
                settled[value] = renamed[value] = name
        taken = {*outputs, *renamed.values()} if graph.outputs else set()
        for vertex, node in graph.vertices_and_nodes() if taken else ():
            for index, name in enumerate(node.names):
                value = Value(vertex, index)
                if name in taken and value not in renamed and value not in settled:
                    renamed[value] = self._fresh_name(graph, name)
        return _ValueNames(graph, renamed, outputs, copies)

    def _fresh_name(self, graph: Graph, base: str) -> str:
        for number in count(1):
            name = f"{base}_{number}"
            if name not in graph.names and name not in self.used_names:
                self.used_names.add(name)
                return name
        raise AssertionError("numbers do not end")

    # -- parts of a graph

    def _write_nodes(
        self, nodes: Mapping[int, Node], names: _ValueNames, declared: GraphProto, into: GraphProto
    ) -> None:
        sparse = {entry.values.name: entry for entry in declared.sparse_initializer}
        for vertex, node in nodes.items():
            outputs = [names(Value(vertex, index)) if name else "" for index, name in enumerate(node.names)]
            if node.op == CONSTANT and "sparse_value" in node.attrs and outputs[0] in sparse:
                into.sparse_initializer.append(sparse[outputs[0]])
                continue
            captured = [names(value) for value in node.captures]
            inputs = [names(value) for value in node.inputs]
            into.node.append(
                proto_conversion.node_to_proto(node, inputs, outputs, partial(self.write_body, captured=captured))
            )
        for value, name in names.output_copies:
            label = self._fresh_name(names.graph, f"{name}_copy")
            into.node.add(op_type=IDENTITY, name=label, input=[names(value)], output=[name])

    def _write_inputs(
        self,
        names: _ValueNames,
        declared: GraphProto,
        into: GraphProto,
        initializers: Iterable[tuple[str, Node]],
        *,
        is_body: bool,
    ) -> None:
        """Write inputs as they were declared. Initializers that were among them are again; before IR version 4 all
        are."""
        graph = names.graph
        present = {graph.value_name(Value(v)): (names(Value(v)), graph[v].types[0]) for v in graph.inputs}
        constants = {name: (name, node.types[0]) for name, node in initializers if node.op == CONSTANT}
        old = {info.name: info for info in declared.input}
        if self.ir_version >= 4 and not is_body:
            constants = {}  # an input with a value could be overridden
        added = constants if self.ir_version < 4 and not is_body else {}
        for key in dict.fromkeys((*old, *present, *added)):
            if key in present or key in constants:
                name, type_ = present[key] if key in present else constants[key]
                _write_declaration(into.input.add(), old.get(key), name, type_)

    def _write_values(self, names: _ValueNames, declared: GraphProto, into: GraphProto) -> None:
        """Write outputs, and the types of the inner values that were declared and are still there."""
        graph = names.graph
        old = {info.name: info for info in declared.output}
        for name, key, type_ in zip(names.outputs, graph.output_names, graph.output_types, strict=True):
            _write_declaration(into.output.add(), old.get(key), name, type_)
        if not declared.value_info:
            return
        types = {
            names(Value(v, i)): type_ for v, node in graph.vertices_and_nodes() for i, type_ in enumerate(node.types)
        }
        for info in declared.value_info:
            known = types.get(info.name)
            if known is not None or (info.name in types and proto_conversion.type_from_proto(info.type) is None):
                _write_declaration(into.value_info.add(), info, info.name, known)


def _ordered_initializers(graph: Graph, nodes: Mapping[int, Node], names: _ValueNames) -> list[tuple[str, Node]]:
    """Defaults of inputs and constants, in their order; not the constants that only became inputs of raised nodes."""
    read = {value for node in nodes.values() for value in node.operands} | set(graph.outputs)
    return [
        (names(Value(vertex)), node)
        for vertex, node in sorted(graph.vertices_and_nodes())
        if node.is_internal and node.data is not None
        if node.op == INPUT or Value(vertex) in read or not list(graph.readers(vertex))
    ]


def _write_declaration(into: ValueInfoProto, declared: ValueInfoProto | None, name: str, type_: Type | None) -> None:
    """Write the declaration of a value: as it was, with what is known of its type now."""
    if declared is not None:
        into.CopyFrom(declared)
    into.name = name
    match type_:
        case TensorType() if into.type.WhichOneof("value") == "tensor_type":
            into.type.tensor_type.elem_type = type_.dtype
            if type_.shape is not None:
                proto_conversion.shape_to_proto(type_.shape, into.type.tensor_type.shape)
        case TensorType():
            into.type.CopyFrom(proto_conversion.type_to_proto(type_))
        case OpaqueType():
            into.type.ParseFromString(type_.proto)
