"""Graphs as messages, under names that are free, and tensors on their way into messages and files.

`onnx_io` puts the pieces together.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import prod
from typing import BinaryIO, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.base.errors import ModelError
from graphopt.io import opset_conversion
from graphopt.io.reader import copy_fields
from graphopt.ir.graph import CAPTURE, CONSTANT, IDENTITY, INPUT, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import OpaqueType, TensorType, Type
from graphopt.operators import proto_conversion

if sys.platform != "win32":
    import fcntl

PlaceTensor: TypeAlias = Callable[[Tensor, str, TensorProto], object]
"""Function that writes a tensor of a name into an empty message."""


# -- graphs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ValueNames:
    """Names of the values of a graph in the file, and the outputs that need an Identity to have theirs."""

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
    place_tensor: PlaceTensor
    used_names: set[str] = field(default_factory=set)
    """Names that were made up while writing."""

    def write_graph(self, graph: Graph, into: GraphProto, captured: Sequence[str] | None) -> list[tuple[str, Node]]:
        """Write a graph and return its initializers. `captured` are the names of what a body captures."""
        declared: GraphProto = GraphProto.FromString(graph.unknown_fields)
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
                put_initializer(into.initializer.add(), name, node, self.place_tensor)
            else:
                constant = NodeProto(op_type=CONSTANT, output=[name])
                attribute = constant.attribute.add(name="value", type=AttributeProto.TENSOR)
                put_initializer(attribute.t, name, node, self.place_tensor)
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
        for vertex, node in graph.vertices_and_nodes():
            for index, name in enumerate(node.names):
                value = Value(vertex, index)
                if value in renamed or value in settled:
                    continue
                if name in taken or (_ORT_INITIALIZER.fullmatch(name) and not node.is_graph_input):
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
        """Write inputs as they were declared. Initializers that were among the inputs are so again; before IR version 4
        all are."""
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
    """Return defaults of inputs and constants, in their order; not constants that only became inputs of upgraded
    nodes."""
    read = {value for node in nodes.values() for value in node.operands} | set(graph.outputs)
    return [
        (names(Value(vertex)), node)
        for vertex, node in sorted(graph.vertices_and_nodes())
        if node.is_internal and node.data is not None
        if node.op == INPUT or Value(vertex) in read or not graph.fan_out(vertex)
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


_ORT_INITIALIZER = re.compile(r"(gemm_input_shape|gemm_output_shape|squeeze_axes)(_token_\d+)?")
"""Names that the fusions of MatMul and Add, and of several Gather, in ONNX Runtime give to new initializers: it looks
only whether a node is called so (`GenerateNodeName`), and refuses a model in which a value is."""


# -- tensors -----------------------------------------------------------------------------------------------------------

MIN_EXTERNAL_BYTES = 1024
"""Bytes below which a tensor stays in the model file also when the others move out."""

VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
"""The fields of a tensor that may hold its values."""


def is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor holds many values itself."""
    return tensor.data_location != TensorProto.EXTERNAL and prod(tensor.dims) > MIN_EXTERNAL_BYTES


def serialize_without_values(model: memoryview) -> bytes | memoryview:
    """Return a serialized model without the bytes of large initializers; unchanged where it cannot be taken apart."""
    path = (ModelProto, "graph"), (GraphProto, "initializer"), (TensorProto, "raw_data")
    numbers = [message.DESCRIPTOR.fields_by_name[name].number for message, name in path]
    try:
        return proto_conversion.prune_large_fields(model, numbers, MIN_EXTERNAL_BYTES)
    except DecodeError:
        return model


def put_initializer(into: TensorProto, name: str, node: Node, place: PlaceTensor) -> None:
    """Write an initializer of a name into an empty message."""
    assert node.data is not None, name
    place(node.data, name, into)
    if node.doc:
        into.doc_string = node.doc
    for key, text in node.metadata.items():
        into.metadata_props.add(key=key, value=text)


def place_inline(tensor: Tensor, name: str, into: TensorProto) -> None:
    """Write a tensor with its values, also one that lies in a file."""
    if isinstance(tensor.source, proto_conversion.ExternalData):
        _place_without_data(tensor, name, into)
        into.raw_data = b"".join(proto_conversion.raw_chunks(tensor))
    else:
        proto_conversion.tensor_to_proto(tensor, name, into)


def place_without_values(tensor: Tensor, name: str, into: TensorProto) -> None:
    """Write a tensor without its values, if these are many and lie in no named file."""
    if tensor.size <= MIN_EXTERNAL_BYTES or isinstance(tensor.source, proto_conversion.ExternalData):
        proto_conversion.tensor_to_proto(tensor, name, into)
    else:
        _place_without_data(tensor, name, into)


def place_in_file(tensor: Tensor, name: str, into: TensorProto, location: str, offset: int) -> None:
    """Write the location of a tensor's values in an external file."""
    _place_without_data(tensor, name, into)
    into.data_location = TensorProto.EXTERNAL
    for entry, text in {"location": location, "offset": offset, "length": tensor.nbytes}.items():
        into.external_data.add(key=entry, value=str(text))


class InitializerEntry(NamedTuple):
    """An initializer in the wire format: all up to its bytes, and how many these are."""

    name: str
    tensor: Tensor
    head: bytes
    payload: int

    @staticmethod
    def for_node(name: str, node: Node) -> InitializerEntry:
        assert node.data is not None, name
        proto, declared = TensorProto(), proto_conversion.original_proto(node.data)
        came_in_list = (
            declared is not None
            and not isinstance(node.data.source, proto_conversion.ExternalData)
            and not declared.HasField("raw_data")
        )
        if node.data.dtype.bits > 0 and not came_in_list:  # strings have no bits
            put_initializer(proto, name, node, _place_without_data)
            payload = node.data.nbytes
            inner = (
                proto.SerializeToString() + field_tag(TensorProto, "raw_data") + proto_conversion.encode_varint(payload)
            )
        else:
            put_initializer(proto, name, node, proto_conversion.tensor_to_proto)
            payload, inner = 0, proto.SerializeToString()
        head = field_tag(GraphProto, "initializer") + proto_conversion.encode_varint(len(inner) + payload) + inner
        return InitializerEntry(name, node.data, head, payload)


def _place_without_data(tensor: Tensor, name: str, into: TensorProto) -> None:
    """Write a tensor without its values and the place where they lie."""
    proto = TensorProto(data_type=tensor.dtype, dims=tensor.shape, name=name)
    declared = proto_conversion.original_proto(tensor)
    if declared is not None:
        proto.doc_string = declared.doc_string
        proto.metadata_props.extend(declared.metadata_props)
        proto.MergeFromString(proto_conversion.unknown_fields(declared))
    into.CopyFrom(proto)  # which may be the message that was declared


def field_tag(message: type[Message], field_name: str) -> bytes:
    """Return the tag that precedes a field of bytes or of a message in the wire format."""
    return proto_conversion.encode_varint(message.DESCRIPTOR.fields_by_name[field_name].number << 3 | 2)


def append_tensor(file: BinaryIO, tensor: Tensor, size: int, name: str) -> None:
    """Append the bytes of a tensor. Long runs of zeros become holes, where the file system has such."""
    written, has_holes = 0, _supports_holes(file)
    for chunk in proto_conversion.raw_chunks(tensor):
        written += len(chunk)
        if has_holes and len(chunk) >= _PAGE and chunk == proto_conversion.ZERO_CHUNK[: len(chunk)]:
            file.seek(len(chunk), os.SEEK_CUR)
        else:
            file.write(chunk)
    if has_holes:
        file.truncate()
    if written != size:
        raise ModelError(f"tensor '{name}' holds {written} bytes, its shape needs {size}")


_PAGE = 4096


def _supports_holes(file: BinaryIO) -> bool:
    """Return whether bytes that are skipped read as zeros: not in a device, nor in a file opened for appending."""
    try:
        handle = file.fileno()
    except OSError:  # in memory
        return file.seekable()
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        return False
    return sys.platform == "win32" or not fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_APPEND


@dataclass(frozen=True)
class WeightFileWriter:
    """A file of weights that is being written. What lies in one place already is written once."""

    file: BinaryIO
    offsets: dict[object, tuple[int, Tensor]] = field(default_factory=dict)
    """Offsets by source, or by identity: a tensor is kept, for the next one could have the identity of one that is
    gone."""

    def place(self, tensor: Tensor, name: str, into: TensorProto) -> None:
        """Write a tensor of some size to this file, and its place to the message; the file has no name yet."""
        if tensor.nbytes < MIN_EXTERNAL_BYTES:
            place_inline(tensor, name, into)
            return
        source = tensor.source
        key = (
            (source.path, source.offset, source.length)
            if isinstance(source, proto_conversion.ExternalData)
            else id(tensor)
        )
        if key not in self.offsets:
            self.file.seek(-self.file.tell() % _PAGE, os.SEEK_CUR)
            self.offsets[key] = self.file.tell(), tensor
            append_tensor(self.file, tensor, tensor.nbytes, name)
        offset, _ = self.offsets[key]
        place_in_file(tensor, name, into, "", offset)
