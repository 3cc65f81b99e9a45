"""`ModelProto` <-> `Graph`: load a model, write it as a message, save it to a file.

The only file of the compiler that touches model protobufs. Everything that a model says is carried: what graphopt does
not interpret stays in `Model.shell`, `Graph.extra` and `Node.extra`, serialized as it came.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import onnx
import onnx.inliner
from google.protobuf.message import DecodeError, Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)
from onnx.helper import find_min_ir_version_for

from graphopt.base import files
from graphopt.base.errors import ModelError, OutputError
from graphopt.base.types import OpaqueType, TensorType, Type
from graphopt.io import opsets, payload, weightfiles
from graphopt.io.legal import demand_legal, domain_of, label
from graphopt.ir import ops
from graphopt.ir.graph import CAPTURE, CONSTANT, INPUT, INTERNAL, Attribute, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators import protos
from graphopt.operators.protos import Folders

_LIMIT = 1 << 31
"""Bytes that no protobuf has."""
INLINE_LIMIT = 1_900_000_000
"""Bytes of weights above which a model is saved with its weights in a file of their own; protobuf ends at 2 GiB."""

Source: TypeAlias = "str | os.PathLike[str] | ModelProto | Any"
"""A path, a ModelProto, an `onnx_ir.Model` or what `torch.onnx.export` returns (neither is imported here)."""


@dataclass(eq=False)
class Model:
    """A loaded model: its graph, and everything else that the file says."""

    graph: Graph
    shell: ModelProto
    """The model without its graph: versions, producer, metadata, local functions that were kept, training info."""
    path: Path | None = None
    """Where it was loaded from."""
    folders: Folders = ()
    """Where external data is looked for."""

    @property
    def ir_version(self) -> int:
        return self.shell.ir_version

    @property
    def functions_digest(self) -> str:
        """Identifies the local functions that were kept: the graph has their names only."""
        functions = (function.SerializeToString(deterministic=True) for function in self.shell.functions)
        return sha256(b"".join(functions)).hexdigest()


# -- load --------------------------------------------------------------------------------------------------------------


def load(source: Source, *, inline_functions: bool = True, folder: str | os.PathLike[str] | None = None) -> Model:
    """Read a model. Weights stay where they are; a ModelProto is referenced and never changed.

    Args:
        source: a path, or a model in memory.
        inline_functions: replace calls of the model's local functions by their bodies.
        folder: where the external data of a model in memory lies.

    Raises:
        ModelError: it cannot be read, is not ONNX or contradicts itself; one line says what and where.
    """
    path = None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        proto = parse(path)
        folders = folders_of(path)
    else:
        proto, own_folder = as_proto(source)
        chosen = folder or own_folder
        folders = (Path(chosen),) if chosen else ()
    if inline_functions and proto.functions:
        proto = _inlined(proto)
    try:
        return _read(proto, path, folders)
    except ModelError as error:
        raise ModelError(f"{path}: {error}" if path else str(error)) from error.__cause__


def folders_of(path: Path) -> Folders:
    """Where the external data of a model file is looked for."""
    return tuple(dict.fromkeys((path.parent, path.resolve().parent)))


def parse(path: Path, *, weights: bool = True) -> ModelProto:
    """The message in a file; its external data is not looked at. Raises ModelError.

    Without `weights`, large initializers have no values, and none of them is read.
    """
    proto, start = ModelProto(), b""
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder, not a model")
        if path.exists() and not path.is_file():  # to open a pipe would be to wait for who writes into it
            raise ModelError(f"{path} is no ordinary file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError(f"{path} is empty")
            if size >= _LIMIT:
                raise ModelError(f"{path} is larger than 2 GiB: no ONNX file can be, without its weights in another")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
                start = raw[:512]
                with memoryview(raw) as view:
                    proto.ParseFromString(view if weights else payload.skimmed(view))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise ModelError(f"{path} is {_looks_like(start)}") from error
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError(f"{path} is {_looks_like(start)}")
    try:
        demand_legal(proto)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    return proto


def _looks_like(start: bytes) -> str:
    if start[4:8] == b"ORTM":
        return "a model in ONNX Runtime's own format: give the ONNX model that it was made from"
    if all(byte in b"\t\n\r\f" or 32 <= byte < 127 for byte in start):
        return "a text file, not an ONNX model"
    return "not an ONNX model, or it is cut short"


def data_files(path: Path) -> set[Path]:
    """Return the files beside a model that its weights lie in; none where there is no model, or none that is legal."""
    if not path.is_file():
        return set()
    try:
        places = {protos.location(tensor) for tensor in protos.external_tensors(parse(path, weights=False))}
    except ModelError:  # to be overwritten it need not be a model, and to be read it will be parsed again
        return set()
    return {folder / place for folder in folders_of(path) for place in places if "\0" not in place}


def as_proto(source: object) -> tuple[ModelProto, str | None]:
    """A model in memory as a ModelProto, and the folder of its external data if it states one. Raises ModelError."""
    proto, folder = _as_proto(source)
    demand_legal(proto)
    return proto, folder


def _as_proto(source: object) -> tuple[ModelProto, str | None]:
    if isinstance(source, ModelProto):
        return source, None
    if type(source).__module__.partition(".")[0] == "onnx_ir":
        from onnx_ir import serde

        values: Any = getattr(source, "graph").initializers.values()  # noqa: B009 - its type is not known here
        folders = (getattr(value.const_value, "base_dir", None) for value in values)
        return serde.serialize_model(source), next((str(folder) for folder in folders if folder), None)
    proto = getattr(source, "model_proto", None)
    if isinstance(proto, ModelProto):
        return proto, None
    raise ModelError(f"a model is a path, an onnx.ModelProto, an onnx_ir.Model or an ONNXProgram, not {type(source)}")


def _inlined(proto: ModelProto) -> ModelProto:
    """The model with its local functions inlined. The inliner serializes it, so it gets the weights' names only."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    light = ModelProto()
    _copy_fields(proto, light, without=("graph",))
    _copy_fields(proto.graph, light.graph, without=("initializer",))
    light.graph.initializer.extend(TensorProto(name=name, data_type=1, dims=[0]) for name in weights)
    try:
        inlined = onnx.inliner.inline_local_functions(light)
    except Exception as error:  # the inliner is C++: it has no error type of its own
        raise ModelError(f"the model's local functions cannot be inlined: {error}") from error
    if not _import_domains(inlined, proto.functions):
        return proto
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(weights.values())
    return inlined


def _import_domains(model: ModelProto, functions: Iterable[FunctionProto]) -> bool:
    """Import what only inlined functions imported; False where they do not agree on a version."""
    versions = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    kept = {(function.domain, function.name, function.overload) for function in model.functions}
    for function in functions:
        if (function.domain, function.name, function.overload) in kept:
            continue
        for entry in function.opset_import:
            domain = domain_of(entry.domain)
            if domain not in versions:
                versions[domain] = entry.version
                model.opset_import.append(entry)
            elif versions[domain] != entry.version:
                return False
    return True


def _copy_fields(source: Message, target: Message, without: Iterable[str]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name in without:
            continue
        if isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).extend(value)
    target.MergeFromString(protos.unknown_fields(source))


def _read(proto: ModelProto, path: Path | None, folders: Folders) -> Model:
    shell = ModelProto()
    _copy_fields(proto, shell, without=("graph",))
    imports = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
    if not imports:
        if proto.ir_version >= 3:
            raise ModelError("the model states no opset")
        imports = {"": 1}
    functions = frozenset((domain_of(function.domain), function.name) for function in proto.functions)
    graph = _Reader(imports, functions, proto.ir_version, folders).graph(proto.graph, None)
    opsets.raise_declared(graph)
    return Model(graph, shell, path, folders)


@dataclass(eq=False)
class _Scope:
    """What a name means while a graph is read."""

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

    def find(self, name: str) -> Value | None:
        """The value of a name: an own one, or one of an enclosing graph, which then becomes a capture here."""
        if name in self.values or self.outer is None:
            return self.values.get(name)
        outside = self.outer.find(name)
        if outside is None:
            return None
        if outside not in self.captures:
            self.captures.append(outside)
        self.types[name] = self.outer.types.get(name)
        vertex = self.graph.new_vertex()
        self.nodes[vertex] = Node(
            CAPTURE,
            (),
            (name,),
            (self.types[name],),
            {"index": self.captures.index(outside)},
            INTERNAL,
        )
        self.values[name] = Value(vertex)
        return self.values[name]


@dataclass(frozen=True)
class _Reader:
    """Reads the graphs of one model."""

    opsets: Mapping[str, int]
    functions: frozenset[tuple[str, str]]
    ir_version: int
    folders: Folders
    names: set[str] = field(default_factory=set)

    def graph(self, proto: GraphProto, outer: _Scope | None, captures: list[Value] | None = None) -> Graph:
        graph = Graph(
            proto.name,
            self.opsets,
            doc=proto.doc_string,
            metadata=_metadata(proto),
            names=self.names,
            extra=_skeleton(proto),
        )
        scope = _Scope(graph, outer, [] if captures is None else captures)
        for info in (*proto.output, *proto.value_info, *proto.input):
            known = protos.type_from_proto(info.type)
            if known is not None or info.name not in scope.types:
                scope.types[info.name] = known
        self._inputs(proto, scope)
        vertices = [graph.new_vertex() for _ in proto.node]
        for vertex, node in zip(vertices, proto.node, strict=True):
            for index, name in enumerate(node.output):
                if name:
                    scope.define(name, Value(vertex, index), label(node))
        for vertex, node in zip(vertices, proto.node, strict=True):
            scope.nodes[vertex] = self._node(node, scope)
        graph.outputs = tuple(self._output(info, scope) for info in proto.output)
        graph.output_names = tuple(info.name for info in proto.output)
        graph.output_types = tuple(protos.type_from_proto(info.type) for info in proto.output)
        for made in scope.nodes.values():
            self.names.update((*made.names, made.name))
        self.names.update(graph.output_names)
        self.names.discard("")
        graph.apply(Patch({}, scope.nodes))
        graph.topological()  # refuses cycles
        return graph

    def _inputs(self, proto: GraphProto, scope: _Scope) -> None:
        """Inputs and initializers. An initializer that is an input too is its default, where it can be overridden."""
        graph = scope.graph
        initializers = {tensor.name: tensor for tensor in proto.initializer}  # of two with one name, the last counts
        overridable = self.ir_version >= 4 and scope.outer is None
        for info in proto.input:
            data = None
            if info.name in initializers:
                if not overridable:
                    continue
                data = protos.tensor_from_proto(initializers.pop(info.name), self.folders)
            vertex = graph.new_vertex()
            graph.inputs.append(vertex)
            scope.define(info.name, Value(vertex), f"input '{info.name}'")
            scope.nodes[vertex] = Node(INPUT, (), (info.name,), (scope.types[info.name],), domain=INTERNAL, data=data)
        for name, tensor in initializers.items():
            self._constant(name, protos.tensor_from_proto(tensor, self.folders), scope)
        for sparse in proto.sparse_initializer:
            attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse)
            node = NodeProto(op_type="Constant", output=[sparse.values.name], attribute=[attribute])
            vertex = graph.new_vertex()
            scope.define(sparse.values.name, Value(vertex), f"sparse initializer '{sparse.values.name}'")
            scope.nodes[vertex] = self._node(node, scope)

    def _constant(self, name: str, tensor: Tensor, scope: _Scope) -> None:
        vertex = scope.graph.new_vertex()
        scope.define(name, Value(vertex), f"initializer '{name}'")
        scope.types[name] = TensorType(tensor.dtype, tensor.shape)
        scope.nodes[vertex] = Node(CONSTANT, (), (name,), (scope.types[name],), domain=INTERNAL, data=tensor)

    def _node(self, proto: NodeProto, scope: _Scope) -> Node:
        domain = domain_of(proto.domain)
        inputs: list[Value | None] = []
        for name in proto.input:
            value = scope.find(name) if name else None
            if name and value is None:
                raise ModelError(f"{label(proto)} reads '{name}', which nothing defines")
            inputs.append(value)
        captures: list[Value] = []
        attrs = {attribute.name: self._attribute(attribute, scope, captures) for attribute in proto.attribute}
        names = tuple(proto.output)
        if domain == "" and proto.op_type == "Constant" and not inputs:
            tensor = _constant_value(attrs)
            if tensor is not None and len(names) == 1:
                types = (TensorType(tensor.dtype, tensor.shape),)
                return Node(
                    CONSTANT, (), names, types, domain=INTERNAL, name=proto.name, data=tensor,
                    doc=proto.doc_string, metadata=_metadata(proto),
                )  # fmt: skip
        known = (domain, proto.op_type) not in self.functions and not (domain == "" and proto.op_type == "Constant")
        return Node(
            proto.op_type,
            tuple(inputs),
            names,
            tuple(scope.types.get(name) for name in names),
            attrs,
            domain,
            opsets.version(proto.op_type, domain, self.opsets) if known else 0,
            proto.name,
            tuple(captures),
            doc=proto.doc_string,
            metadata=_metadata(proto),
            extra=_extra(proto, attrs),
        )

    def _attribute(self, proto: AttributeProto, scope: _Scope, captures: list[Value]) -> Attribute:
        if not proto.ref_attr_name:
            match protos.attribute_kind(proto):
                case AttributeProto.GRAPH:
                    return self.graph(proto.g, scope, captures)
                case AttributeProto.GRAPHS if proto.graphs:
                    return tuple(self.graph(graph, scope, captures) for graph in proto.graphs)
        return protos.attribute_from_proto(proto, self.folders)

    def _output(self, info: ValueInfoProto, scope: _Scope) -> Value:
        value = scope.find(info.name)
        if value is None:
            raise ModelError(f"the output '{info.name}' is defined by no node of the graph '{scope.graph.name}'")
        return value


def _metadata(proto: NodeProto | GraphProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _skeleton(proto: GraphProto) -> bytes:
    """The graph without nodes and weights: how its inputs, outputs and values are declared, and what is not read."""
    skeleton = GraphProto()
    _copy_fields(proto, skeleton, without=("node", "initializer", "name", "doc_string", "metadata_props"))
    return bytes(skeleton.SerializeToString())


def _extra(proto: NodeProto, attrs: Mapping[str, Attribute]) -> bytes:
    """What of a node is not in `Node`'s own fields; its attributes where they are spelled in an unusual way."""
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
    extra.MergeFromString(protos.unknown_fields(proto))
    if not any(map(_holds_graphs, attrs.values())) and not all(
        _plainly_spelled(attribute) for attribute in proto.attribute
    ):
        extra.input.extend([""] * len(proto.input))
        extra.attribute.extend(proto.attribute)
    return bytes(extra.SerializeToString())


def _holds_graphs(attribute: Attribute) -> bool:
    return isinstance(attribute, Graph) or (isinstance(attribute, tuple) and isinstance(attribute[0], Graph))


def _plainly_spelled(proto: AttributeProto) -> bool:
    """Whether it says its name, type and value, and nothing else."""
    return bool(proto.type) and len(proto.ListFields()) == 3 and not protos.unknown_fields(proto)


def _constant_value(attrs: Mapping[str, Attribute]) -> Tensor | None:
    """The tensor of a Constant node; None for a sparse one."""
    if len(attrs) != 1:
        return None
    ((name, attribute),) = attrs.items()
    match name, attribute:
        case "value", Tensor():
            return attribute
        case (("value_int" | "value_ints"), (int() | tuple())):
            return Tensor.of(np.array(attribute, np.int64))
        case (("value_float" | "value_floats"), (float() | tuple())):
            return Tensor.of(np.array(attribute, np.float32))
        case (("value_string" | "value_strings"), (str() | bytes() | tuple())):
            return Tensor.of(np.array(attribute, np.object_))
    return None


# -- write -------------------------------------------------------------------------------------------------------------


def to_proto(model: Model) -> ModelProto:
    """The model as a message. Weights that were loaded from external files still lie there."""
    proto = ModelProto()
    proto.CopyFrom(model.shell)
    for name, node in _Writer(model.ir_version, protos.tensor_to_proto).graph(model.graph, proto.graph, None):
        payload.put_initializer(proto.graph.initializer.add(), name, node, protos.tensor_to_proto)
    return proto


@dataclass(frozen=True)
class _Names:
    """What each value of a graph is called in the file, and the outputs that need an Identity to be called so."""

    graph: Graph
    renamed: Mapping[Value, str]
    outputs: Sequence[str]
    copies: Sequence[tuple[Value, str]]

    def __call__(self, value: Value | None) -> str:
        return "" if value is None else self.renamed.get(value) or self.graph.value_name(value)


@dataclass(frozen=True)
class _Writer:
    """Writes the graphs of one model, and changes none of them."""

    ir_version: int
    place: payload.Place
    used: set[str] = field(default_factory=set)
    """Names that were made up while writing."""

    def graph(self, graph: Graph, into: GraphProto, captured: Sequence[str] | None) -> list[tuple[str, Node]]:
        """Write a graph; its initializers are returned. `captured` are the names of what a body captures."""
        declared = GraphProto()
        declared.ParseFromString(graph.extra)
        _copy_fields(declared, into, without=("input", "output", "value_info", "sparse_initializer"))
        if graph.name:
            into.name = graph.name
        if graph.doc:
            into.doc_string = graph.doc
        for key, text in graph.metadata.items():
            into.metadata_props.add(key=key, value=text)
        names = self._names(graph, captured)
        nodes = {v: graph[v] for v in graph.topological() if not graph[v].is_internal}
        nodes = {v: opsets.lowered(node, graph) for v, node in nodes.items()}
        initializers = _initializers(graph, nodes, names)
        self._put_nodes(nodes, names, declared, into)
        self._put_inputs(names, declared, into, initializers, is_body=captured is not None)
        self._put_values(names, declared, into)
        return initializers

    def body(self, graph: Graph, captured: Sequence[str]) -> GraphProto:
        """A graph among the attributes of a node. Before IR version 4 its constants cannot be initializers."""
        into = GraphProto()
        constants = []
        for name, node in self.graph(graph, into, captured):
            if self.ir_version >= 4 or any(info.name == name for info in into.input):
                payload.put_initializer(into.initializer.add(), name, node, self.place)
            else:
                constant = NodeProto(op_type="Constant", output=[name])
                attribute = constant.attribute.add(name="value", type=AttributeProto.TENSOR)
                payload.put_initializer(attribute.t, name, node, self.place)
                constants.append(constant)
        if constants:
            nodes = [*constants, *into.node]
            del into.node[:]
            into.node.extend(nodes)
        return into

    # -- names

    def _names(self, graph: Graph, captured: Sequence[str] | None) -> _Names:
        outside = captured or ()
        renamed = {Value(v): outside[_index(graph[v])] for v in graph.with_op(CAPTURE) if graph[v].is_internal}
        own = _Names(graph, renamed, (), ())
        outputs = [
            self._fresh(graph, name) if name in outside and own(value) != name else name
            for value, name in zip(graph.outputs, graph.output_names, strict=True)
        ]
        wanted = list(zip(graph.outputs, outputs, strict=True))
        settled = {value: name for value, name in wanted if own(value) == name}
        copies = []
        for value, name in dict.fromkeys(wanted):
            if settled.get(value) == name:
                continue
            if value in settled or graph[value.vertex].is_given:
                copies.append((value, name))
            else:
                settled[value] = renamed[value] = name
        taken = {*outputs, *renamed.values()} if graph.outputs else set()
        for vertex, node in graph.items() if taken else ():
            for index, name in enumerate(node.names):
                value = Value(vertex, index)
                if name in taken and value not in renamed and value not in settled:
                    renamed[value] = self._fresh(graph, name)
        return _Names(graph, renamed, outputs, copies)

    def _fresh(self, graph: Graph, base: str) -> str:
        for number in count(1):
            name = f"{base}_{number}"
            if name not in graph.names and name not in self.used:
                self.used.add(name)
                return name
        raise AssertionError("numbers do not end")

    # -- parts of a graph

    def _put_nodes(self, nodes: Mapping[int, Node], names: _Names, declared: GraphProto, into: GraphProto) -> None:
        sparse = {entry.values.name: entry for entry in declared.sparse_initializer}
        for vertex, node in nodes.items():
            outputs = [names(Value(vertex, index)) if name else "" for index, name in enumerate(node.names)]
            if node.op == "Constant" and "sparse_value" in node.attrs and outputs[0] in sparse:
                into.sparse_initializer.append(sparse[outputs[0]])
                continue
            captured = [names(value) for value in node.captures]
            inputs = [names(value) for value in node.inputs]
            into.node.append(protos.node_to_proto(node, inputs, outputs, partial(self.body, captured=captured)))
        for value, name in names.copies:
            label = self._fresh(names.graph, f"{name}_copy")
            into.node.add(op_type="Identity", name=label, input=[names(value)], output=[name])

    def _put_inputs(
        self,
        names: _Names,
        declared: GraphProto,
        into: GraphProto,
        initializers: Iterable[tuple[str, Node]],
        *,
        is_body: bool,
    ) -> None:
        """Inputs as they were declared. Initializers that were among them are again; before IR version 4 all are."""
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
                _declare(into.input.add(), old.get(key), name, type_)

    def _put_values(self, names: _Names, declared: GraphProto, into: GraphProto) -> None:
        """Outputs, and the types of the inner values that were declared and are still there."""
        graph = names.graph
        old = {info.name: info for info in declared.output}
        for name, key, type_ in zip(names.outputs, graph.output_names, graph.output_types, strict=True):
            _declare(into.output.add(), old.get(key), name, type_)
        if not declared.value_info:
            return
        types = {names(Value(v, i)): type_ for v, node in graph.items() for i, type_ in enumerate(node.types)}
        for info in declared.value_info:
            known = types.get(info.name)
            if known is not None or (info.name in types and protos.type_from_proto(info.type) is None):
                _declare(into.value_info.add(), info, info.name, known)


def _index(capture: Node) -> int:
    index = capture.attrs["index"]
    assert isinstance(index, int), "a capture without an index"
    return index


def _initializers(graph: Graph, nodes: Mapping[int, Node], names: _Names) -> list[tuple[str, Node]]:
    """Defaults of inputs and constants, in their order; not the constants that only became inputs of raised nodes."""
    read = {value for node in nodes.values() for value in node.operands} | set(graph.outputs)
    return [
        (names(Value(vertex)), node)
        for vertex, node in sorted(graph.items())
        if node.is_internal and node.data is not None
        if node.op == INPUT or Value(vertex) in read or not list(graph.readers(vertex))
    ]


def _declare(into: ValueInfoProto, declared: ValueInfoProto | None, name: str, type_: Type | None) -> None:
    """Write the declaration of a value: as it was, with what is known of its type now."""
    if declared is not None:
        into.CopyFrom(declared)
    into.name = name
    match type_:
        case TensorType() if into.type.WhichOneof("value") == "tensor_type":
            into.type.tensor_type.elem_type = type_.dtype
            if type_.shape is not None:
                protos.shape_to_proto(type_.shape, into.type.tensor_type.shape)
        case TensorType():
            into.type.CopyFrom(protos.type_to_proto(type_))
        case OpaqueType():
            into.type.ParseFromString(type_.proto)


def overridable(proto: ModelProto) -> set[str]:
    """The names that may be those of inputs and of initializers too, whose values then are defaults."""
    return {info.name for info in proto.graph.input} if proto.ir_version >= 4 else set()


def outline(proto: ModelProto) -> ModelProto:
    """The message without the values of large weights, in memory of its own; defaults of inputs stay."""
    defaults = overridable(proto)
    bare = [payload.is_large(tensor) and tensor.name not in defaults for tensor in proto.graph.initializer]
    if not any(bare):
        return proto
    copy = ModelProto()
    _copy_fields(proto, copy, without=("graph",))
    _copy_fields(proto.graph, copy.graph, without=("initializer",))
    for tensor, is_bare in zip(proto.graph.initializer, bare, strict=True):
        _copy_fields(tensor, copy.graph.initializer.add(), without=payload.VALUES if is_bare else ())
    return copy


# -- another opset -----------------------------------------------------------------------------------------------------


def converted(model: Model, target_opset: int) -> Model:
    """The model in another opset of the ONNX operators: every node keeps its meaning. Changes `model`'s graph.

    Raises:
        ModelError: the opset is not known, or cannot express a node; the graph is as before.
    """
    if not 1 <= target_opset <= ops.OPSET:
        raise ModelError(f"opset {target_opset} is not known here: the newest is {ops.OPSET}")
    opsets.raise_nodes(model.graph)  # more types may be known than when it was loaded
    graphs = list(model.graph.graphs())
    before = [graph.opsets for graph in graphs]
    target = {**model.graph.opsets, "": target_opset}
    for graph in graphs:
        graph.opsets = target
    try:
        _check_expressible(graphs)
    except ModelError:
        for graph, old in zip(graphs, before, strict=True):
            graph.opsets = old
        raise
    shell = ModelProto()
    shell.CopyFrom(model.shell)
    for entry in [*shell.opset_import]:
        if domain_of(entry.domain) == "":
            shell.opset_import.remove(entry)
    shell.opset_import.insert(0, OperatorSetIdProto(version=target_opset))
    shell.ir_version = max(shell.ir_version, find_min_ir_version_for(shell.opset_import, True))
    return replace(model, shell=shell)


def _check_expressible(graphs: Iterable[Graph]) -> None:
    """Raise ModelError for the first node that its graph's opset cannot express."""
    for graph in graphs:
        for _, node in graph.nodes():
            if node.domain == "" and not node.version and ops.newest(node.op):
                raise ModelError(f"{node.op} '{node.name}' is of a version whose meaning is not known")
            opsets.lowered(node, graph)


# -- save --------------------------------------------------------------------------------------------------------------


def save(model: Model, path: str | os.PathLike[str], *, external: bool | None = None) -> int:
    """Write a model to a file and return its size. It appears under its name when it is complete, or not at all.

    A file of weights is never written over: whoever reads the model that was there finds its weights or none. A new
    model's are in `<path>.data`; those that differ from what lies there, or replace a model, in
    `<path>.<digest>.data`, named by their content. Those that the replaced model had are removed, if they have such a
    name and no other file of the folder mentions it. A link is followed, and its target written.

    Args:
        model: stays as it is.
        path: may be the file that the model was loaded from. `-`, on the command line stdout, is refused.
        external: weights go to a file of their own; None: only if they are too large for one file.

    Returns:
        The bytes of the file, and of that of its weights.

    Raises:
        OutputError: the file cannot be written; nothing is left behind, and an old file stays as it was.
    """
    if os.fspath(path) == "-":
        raise OutputError("a model is not saved to '-', which is stdout on the command line only: name a file")
    path = Path(path)
    if external is None:
        external = model.graph.weight_bytes > INLINE_LIMIT
    target = files.real(path)
    if target.exists() and not target.is_file():
        raise OutputError(f"{path} cannot be written: it is no ordinary file")
    if external:
        weightfiles.check(path)
    with files.writing(path):
        return _save_external(model, target) if external else _save_inline(model, target)


def _save_inline(model: Model, target: Path) -> int:
    with files.part_of(target) as part:
        write(model, part)
        files.flush(part)
        size = os.fstat(part.fileno()).st_size
        with files.exclusive(target.parent):
            files.sweep(weightfiles.plain(target))
            stale = weightfiles.superseded(target, "")
            with files.undisturbed():
                files.put(part, target)
                weightfiles.remove(stale)
    return size


def _save_external(model: Model, target: Path) -> int:
    with files.part_of(weightfiles.plain(target)) as data, files.part_of(target) as part:
        proto = _proto_beside(model, data)
        files.flush(data)
        with files.exclusive(target.parent):
            place = weightfiles.place(target, data)
            for tensor in protos.external_tensors(proto):
                protos.put_location(tensor, place.name)
            part.write(proto.SerializeToString())
            files.flush(part)
            size = sum(os.fstat(file.fileno()).st_size for file in (data, part))
            stale = weightfiles.superseded(target, place.name)
            with files.undisturbed():
                if not place.exists():
                    files.put(data, place, like=target)
                files.put(part, target)
                weightfiles.remove(stale)
    return size


def write(model: Model, file: BinaryIO) -> None:
    """Write a model in one piece. The initializers, last in the graph, follow one by one: memory holds no second copy.

    Raises:
        OutputError: it is too large for one file.
    """
    proto = ModelProto()
    proto.CopyFrom(model.shell)
    initializers = _Writer(model.ir_version, payload.place_inline).graph(model.graph, proto.graph, None)
    entries = [payload.Entry.of(name, node) for name, node in initializers]
    take_in(proto, model.folders)
    graph = proto.graph.SerializeToString()
    size = len(graph) + sum(len(entry.head) + entry.payload for entry in entries)
    if size >= _LIMIT:
        raise OutputError(f"a model of {size / 1e9:.1f} GB is too large for one file: its weights need another")
    proto.ClearField("graph")
    file.write(proto.SerializeToString())
    file.write(payload.tag(ModelProto, "graph") + protos.varint(size))
    file.write(graph)
    for entry in entries:
        file.write(entry.head)
        if entry.payload:
            payload.copy(file, entry.tensor, entry.payload, entry.name)


def _proto_beside(model: Model, data: BinaryIO) -> ModelProto:
    """The message of a model whose weights, those of some size, are written to a file that has no name yet."""
    proto, store = ModelProto(), payload.Store(data)
    proto.CopyFrom(model.shell)
    for name, node in _Writer(model.ir_version, store.put).graph(model.graph, proto.graph, None):
        payload.put_initializer(proto.graph.initializer.add(), name, node, store.put)
    take_in(proto, model.folders)
    return proto


def take_in(proto: ModelProto, folders: Folders) -> None:
    """Read the tensors into a message that it says lie in a file; not those whose file has no name yet."""
    for tensor in protos.external_tensors(proto):
        if protos.location(tensor):
            loaded = protos.tensor_from_proto(tensor, folders)
            payload.place_inline(loaded, tensor.name, tensor)
