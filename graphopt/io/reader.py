"""Messages as graphs: a `ModelProto` is read, one `Graph` for each body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from graphopt.base.errors import ModelError
from graphopt.io import opset_conversion
from graphopt.io.model_validation import proto_label
from graphopt.ir import schemas
from graphopt.ir.graph import CAPTURE, CONSTANT, INPUT, INTERNAL_DOMAIN, Attribute, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.operators import declared_operators, proto_conversion
from graphopt.operators.proto_conversion import ModelFolders


def copy_fields(source: Message, target: Message, without: Iterable[str]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name in without:
            continue
        if isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).extend(value)
    target.MergeFromString(proto_conversion.unknown_fields(source))


@dataclass(eq=False)
class _Scope:
    """The meaning of each name while a graph is read."""

    graph: Graph
    outer: _Scope | None
    captures: list[Value]
    """The outer values that are read here; shared by the bodies of one node."""
    values: dict[str, Value] = field(default_factory=dict)
    types: dict[str, Type | None] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)

    def define(self, name: str, value: Value, node: str) -> None:
        if name in self.values:
            raise ModelError(f"{node} defines '{name}' a second time")
        self.values[name] = value

    def add(self, node: Node, label: str) -> int:
        """Add a node that defines one name, and return its vertex; errors call it by the label."""
        vertex = self.graph.new_vertex()
        self.define(node.names[0], Value(vertex), label)
        self.nodes[vertex] = node
        return vertex

    def find(self, name: str) -> Value | None:
        """Return the value of a name: an own one, or one of an enclosing graph, which then becomes a capture here."""
        if name in self.values or self.outer is None:
            return self.values.get(name)
        outside = self.outer.find(name)
        if outside is None:
            return None
        if outside not in self.captures:
            self.captures.append(outside)
        self.types[name] = self.outer.types.get(name)
        node = Node(CAPTURE, (), (name,), (self.types[name],), {"index": self.captures.index(outside)}, INTERNAL_DOMAIN)
        self.add(node, f"capture '{name}'")
        return self.values[name]


@dataclass(frozen=True)
class GraphReader:
    """Reads the graphs of one model."""

    opsets: Mapping[str, int]
    functions: frozenset[tuple[str, str]]
    ir_version: int
    folders: ModelFolders
    names: set[str] = field(default_factory=set)

    def read_graph(self, proto: GraphProto, outer: _Scope | None, captures: list[Value] | None = None) -> Graph:
        declarations = GraphProto()  # of inputs, outputs and values; and what is not read
        copy_fields(proto, declarations, without=("node", "initializer", "name", "doc_string", "metadata_props"))
        graph = Graph(
            proto.name,
            self.opsets,
            doc=proto.doc_string,
            metadata=_metadata_props(proto),
            names=self.names,
            unknown_fields=bytes(declarations.SerializeToString()),
        )
        scope = _Scope(graph, outer, [] if captures is None else captures)
        for info in (*proto.output, *proto.value_info, *proto.input):
            known = proto_conversion.type_from_proto(info.type)
            if known is not None or info.name not in scope.types:
                scope.types[info.name] = known
        self._inputs(proto, scope)
        vertices = [graph.new_vertex() for _ in proto.node]
        for vertex, node in zip(vertices, proto.node, strict=True):
            for index, name in enumerate(node.output):
                if name:
                    scope.define(name, Value(vertex, index), proto_label(node))
        for vertex, node in zip(vertices, proto.node, strict=True):
            scope.nodes[vertex] = self._node(node, scope)
        outputs = []
        for info in proto.output:
            value = scope.find(info.name)
            if value is None:
                raise ModelError(f"the output '{info.name}' is defined by no node of the graph '{graph.name}'")
            outputs.append(value)
        graph.outputs = tuple(outputs)
        graph.output_names = tuple(info.name for info in proto.output)
        graph.output_types = tuple(proto_conversion.type_from_proto(info.type) for info in proto.output)
        for made in scope.nodes.values():
            self.names.update((*made.names, made.name))
        self.names.update(graph.output_names)
        self.names.discard("")
        graph.apply(Patch({}, scope.nodes))
        graph.topological_order()  # refuses cycles
        return graph

    def _inputs(self, proto: GraphProto, scope: _Scope) -> None:
        """Read inputs and initializers. An initializer that is an input too is its default, where it can be
        overridden."""
        initializers = {tensor.name: tensor for tensor in proto.initializer}  # of two with one name, the last counts
        overridable = self.ir_version >= 4 and scope.outer is None
        for info in proto.input:
            data = None
            if info.name in initializers:
                if not overridable:
                    continue
                data = proto_conversion.tensor_from_proto(initializers.pop(info.name), self.folders)
            node = Node(INPUT, (), (info.name,), (scope.types[info.name],), domain=INTERNAL_DOMAIN, data=data)
            scope.graph.inputs.append(scope.add(node, f"input '{info.name}'"))
        for name, initializer in initializers.items():
            tensor = proto_conversion.tensor_from_proto(initializer, self.folders)
            type_ = scope.types[name] = TensorType(tensor.dtype, tensor.shape)
            node = Node(CONSTANT, (), (name,), (type_,), domain=INTERNAL_DOMAIN, data=tensor)
            scope.add(node, f"initializer '{name}'")
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
            constant = NodeProto(op_type=CONSTANT, output=[name], attribute=[attribute])
            scope.add(self._node(constant, scope), f"sparse initializer '{name}'")

    def _node(self, proto: NodeProto, scope: _Scope) -> Node:
        domain = schemas.normalize_domain(proto.domain)
        inputs: list[Value | None] = []
        for name in proto.input:
            value = scope.find(name) if name else None
            if name and value is None:
                raise ModelError(f"{proto_label(proto)} reads '{name}', which nothing defines")
            inputs.append(value)
        captures: list[Value] = []
        attrs = {attribute.name: self._attribute(attribute, scope, captures) for attribute in proto.attribute}
        names = tuple(proto.output)
        if domain == "" and proto.op_type == CONSTANT and not inputs:
            tensor = _constant_value(attrs)
            if tensor is not None and len(names) == 1:
                types = (TensorType(tensor.dtype, tensor.shape),)
                return Node(
                    CONSTANT, (), names, types, domain=INTERNAL_DOMAIN, name=proto.name, data=tensor,
                    doc=proto.doc_string, metadata=_metadata_props(proto),
                )  # fmt: skip
        known = (domain, proto.op_type) not in self.functions and not (domain == "" and proto.op_type == CONSTANT)
        node = Node(
            proto.op_type,
            tuple(inputs),
            names,
            tuple(scope.types.get(name) for name in names),
            attrs,
            domain,
            opset_conversion.schema_version(proto.op_type, domain, self.opsets) if known else 0,
            proto.name,
            tuple(captures),
            doc=proto.doc_string,
            metadata=_metadata_props(proto),
            unknown_fields=_unknown_node_fields(proto, attrs),
        )
        undefined = (
            schemas.is_defined_operator(node.op, node.domain)
            and declared_operators.instantiate_node_definition(node) is None
        )
        return replace(node, version=0) if undefined else node

    def _attribute(self, proto: AttributeProto, scope: _Scope, captures: list[Value]) -> Attribute:
        if not proto.ref_attr_name:
            match proto_conversion.attribute_kind(proto):
                case AttributeProto.GRAPH:
                    return self.read_graph(proto.g, scope, captures)
                case AttributeProto.GRAPHS if proto.graphs:
                    return tuple(self.read_graph(graph, scope, captures) for graph in proto.graphs)
        return proto_conversion.attribute_from_proto(proto, self.folders)


def _metadata_props(proto: NodeProto | GraphProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _unknown_node_fields(proto: NodeProto, attrs: Mapping[str, Attribute]) -> bytes:
    """Return the parts of a node that `Node` has no fields for, and its attributes where they are spelled in an unusual
    way."""
    extra = NodeProto()
    if proto.overload:
        extra.overload = proto.overload
    if proto.domain == "ai.onnx":
        extra.domain = proto.domain
    for text in ("domain", "name", "doc_string"):
        if not getattr(proto, text) and proto.HasField(text):  # some exporters write the empty text out
            setattr(extra, text, "")
    if proto.device_configurations:
        extra.device_configurations.extend(proto.device_configurations)
    extra.MergeFromString(proto_conversion.unknown_fields(proto))
    holds_graphs = any(isinstance(value[0] if isinstance(value, tuple) else value, Graph) for value in attrs.values())
    are_plain = (  # say their name, type and value, and nothing else
        attribute.type and len(attribute.ListFields()) == 3 and not proto_conversion.unknown_fields(attribute)
        for attribute in proto.attribute
    )
    if not holds_graphs and not all(are_plain):
        extra.input.extend([""] * len(proto.input))
        extra.attribute.extend(proto.attribute)
    return bytes(extra.SerializeToString())


def _constant_value(attrs: Mapping[str, Attribute]) -> Tensor | None:
    """Return the tensor of a Constant node; None for a sparse one."""
    if len(attrs) != 1:
        return None
    ((name, attribute),) = attrs.items()
    match name, attribute:
        case "value", Tensor():
            return attribute
        case (("value_int" | "value_ints"), (int() | tuple())):
            return Tensor.from_array(np.array(attribute, np.int64))
        case (("value_float" | "value_floats"), (float() | tuple())):
            return Tensor.from_array(np.array(attribute, np.float32))
        case (("value_string" | "value_strings"), (str() | bytes() | tuple())):
            return Tensor.from_array(np.array(attribute, np.object_))
    return None


def overridable_names(proto: ModelProto) -> set[str]:
    """Return the names that inputs and initializers may share; the values of these are defaults."""
    return {info.name for info in proto.graph.input} if proto.ir_version >= 4 else set()
