"""Conversions of single protobuf messages to graphopt's data and back: types, tensors, attributes, nodes.

Knows nothing of whole graphs or models; `io` puts the pieces together.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import FileIO
from itertools import chain
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.expr.dims import Dim, SymbolicDim
from graphopt.ir.chunks import iter_chunks
from graphopt.ir.graph import Attribute, AttributeScalar, Graph, Node, OpaqueAttribute
from graphopt.ir.schemas import decode_string
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import OpaqueType, Shape, TensorType, Type

COPY_CHUNK_BYTES = 1 << 24
"""Bytes that are in memory at once when a tensor is copied from file to file."""
ZERO_CHUNK = bytes(COPY_CHUNK_BYTES)

ModelFolders: TypeAlias = tuple[Path, ...]
"""Folder of the model file, then that of the file which it links to.

The second may be a store, as in the caches of model hubs: a model in `snapshots` links to a file in `blobs`, and so do
its weights. A link to weights may lead out of the model's own folder into such a store, and nowhere else: the model is
a link itself, and the weights lie in the very folder that it leads to.
"""

# -- types -------------------------------------------------------------------------------------------------------------


NO_SIZES: Mapping[str, SymbolicDim] = {}


def type_from_proto(proto: TypeProto, sizes: Mapping[str, SymbolicDim] = NO_SIZES) -> Type | None:
    """Return the type that a proto states, None if it has no element type.

    `sizes` are those that `type_to_proto` wrote under other names than the model's.
    """
    match proto.WhichOneof("value"):
        case None:
            return None
        case "tensor_type":
            tensor = proto.tensor_type
        case _:
            return OpaqueType(proto.SerializeToString())
    if not tensor.elem_type:
        return None
    if tensor.elem_type not in _KNOWN_DTYPES:
        return OpaqueType(proto.SerializeToString())
    if not tensor.HasField("shape"):
        return TensorType(DType(tensor.elem_type))
    return TensorType(DType(tensor.elem_type), tuple(_dim_from_proto(dim, sizes) for dim in tensor.shape.dim))


_KNOWN_DTYPES = frozenset(int(dtype) for dtype in DType)


def _dim_from_proto(proto: onnx.TensorShapeProto.Dimension, sizes: Mapping[str, SymbolicDim]) -> Dim:
    if proto.HasField("dim_value"):
        return proto.dim_value if proto.dim_value >= 0 else SymbolicDim.fresh()  # some exporters write -1 for "unknown"
    name = dim_name(proto)
    return sizes.get(proto.dim_param) or (SymbolicDim.named(name) if name else SymbolicDim.fresh())


def dim_name(proto: onnx.TensorShapeProto.Dimension) -> str:
    """Return the name of a dim without a size, empty if exporters write it for several unknown sizes."""
    return "" if proto.dim_param.startswith("?") or proto.dim_param in ("-1", "*", "None") else proto.dim_param


def type_to_proto(type_: Type | None, named: Callable[[SymbolicDim], str] | None = None) -> TypeProto:
    """Return the proto of a type; sizes without a name stay unnamed; `named` gives all of them names."""
    proto = TypeProto()
    if isinstance(type_, OpaqueType):
        proto.ParseFromString(type_.proto)
        return proto
    if type_ is None:
        return proto
    proto.tensor_type.elem_type = type_.dtype
    if type_.shape is not None:
        shape_to_proto(type_.shape, proto.tensor_type.shape, named)
    return proto


def shape_to_proto(
    shape: Shape, proto: onnx.TensorShapeProto, named: Callable[[SymbolicDim], str] | None = None
) -> None:
    """Write sizes into a proto; other properties of its dims, such as denotations, stay if the rank does."""
    proto.SetInParent()
    if len(proto.dim) != len(shape):
        del proto.dim[:]
        for _ in shape:
            proto.dim.add()
    for dim, size in zip(proto.dim, shape, strict=True):
        if isinstance(size, int):
            dim.dim_value = size
        elif named:
            dim.dim_param = named(size)
        elif not size.is_anonymous:
            dim.dim_param = str(size)
        elif dim.HasField("dim_value") and dim.dim_value >= 0:
            dim.ClearField("dim_value")


# -- tensors -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The `source` of a tensor whose bytes lie in a file of their own."""

    path: Path
    offset: int
    length: int
    proto: TensorProto
    """The tensor as the model declares it: name, doc string and location."""
    file_identity: tuple[int, ...]
    """Identity of the file when the model was loaded: it must not change since then."""


def tensor_from_proto(proto: TensorProto, folders: ModelFolders = ()) -> Tensor:
    """Return a tensor whose values are read when asked for; `proto` is referenced, not copied.

    External data lies in the first of `folders`; a symbolic link there may point into any of them.

    Raises:
        ModelError: its data is missing, too short or outside the folder.
    """
    dtype, shape = DType(proto.data_type), tuple(proto.dims)
    if proto.data_location == TensorProto.EXTERNAL:
        source = _parse_external_data(proto, Tensor(dtype, shape, _no_data).nbytes, folders)
        return Tensor(dtype, shape, lambda: _read_external(source, dtype, shape), source)
    return Tensor(dtype, shape, lambda: _read_tensor(proto, dtype, shape), proto)


def _no_data() -> NDArray[Any]:
    raise AssertionError("a tensor without values")


def _read_tensor(proto: TensorProto, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype is DType.STRING:
        return _read_strings(proto, shape)
    try:
        return numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise ModelError(f"tensor '{proto.name}' {dtype.name}{list(shape)} holds other data: {error}") from error


def _read_strings(proto: TensorProto, shape: tuple[int, ...]) -> NDArray[Any]:
    texts = np.empty(len(proto.string_data), object)
    texts[:] = [decode_string(raw) for raw in proto.string_data]
    if texts.size != prod(shape):
        raise ModelError(f"tensor '{proto.name}' STRING{list(shape)} holds {texts.size} strings")
    return texts.reshape(shape)


def _parse_external_data(proto: TensorProto, nbytes: int, folders: ModelFolders) -> ExternalData:
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    if not folders:
        raise ModelError(
            f"the data of tensor '{proto.name}' is in the file '{location}', of a folder that the model does not state:"
            " load the model by its path"
        )
    path = _checked_data_path(proto.name, location, folders)
    if path.exists() and not path.is_file():
        raise ModelError(f"the data of tensor '{proto.name}' is said to be in {path}, which is no ordinary file")
    try:
        stamp = _file_identity(path.stat())
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or nbytes)
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise ModelError(f"the data of tensor '{proto.name}' cannot be read from {path}: {reason}") from error
    except ValueError as error:
        raise ModelError(f"tensor '{proto.name}' states a wrong place in {path}: {error}") from error
    if length != nbytes or proto.data_type == DType.STRING:
        raise ModelError(f"tensor '{proto.name}' needs {nbytes} bytes, but states {length} bytes of {path}")
    if offset < 0 or offset + length > stamp[0]:
        raise ModelError(
            f"tensor '{proto.name}' needs bytes {offset} to {offset + length} of {path}, which has only {stamp[0]}"
        )
    return ExternalData(path, offset, length, proto, stamp)


def _file_identity(stat: os.stat_result) -> tuple[int, ...]:
    """Return the size first, and other properties that change when another file takes its place."""
    return (stat.st_size, stat.st_mtime_ns, stat.st_ino, stat.st_dev)


@cache
def _resolve_path(path: Path) -> Path:
    return path.resolve()


def _checked_data_path(name: str, location: str, folders: ModelFolders) -> Path:
    """Return the path of a data file; refuses one outside the model's folder, but for a link into its store."""
    parts = PurePosixPath(location.replace("\\", "/").replace("\0", "/../")).parts
    path = folders[0].joinpath(*parts)
    target = path.resolve()
    is_inside = target.is_relative_to(_resolve_path(folders[0])) or target.parent == _resolve_path(folders[-1])
    if not parts or ".." in parts or not is_inside:
        raise ModelError(f"the data of tensor '{name}' is said to be in '{location}', outside the model's folder")
    return path


def resolve_external_paths(model: ModelProto, folders: ModelFolders) -> Path | None:
    """Write the real paths, with links followed, of all external data, relative to one folder, which is returned.

    ONNX Runtime follows no link out of the folder that a model in memory comes with. None: there are no such data.

    Raises:
        ModelError: some lie outside the model's folder.
    """
    tensors = list(external_tensors(model)) if folders else []
    paths = [_checked_data_path(tensor.name, external_location(tensor), folders).resolve() for tensor in tensors]
    if not paths:
        return None
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    for tensor, path in zip(tensors, paths, strict=True):
        set_external_location(tensor, path.relative_to(folder).as_posix())
    return folder


def _read_external(source: ExternalData, dtype: DType, shape: tuple[int, ...]) -> NDArray[Any]:
    with _open_external(source) as file:
        if source.length == 0:
            return np.empty(shape, dtype.numpy)
        raw = np.memmap(file, np.uint8, "r", source.offset, (source.length,))
    if dtype.bits % 8:
        packed = TensorProto(dims=shape, data_type=dtype, raw_data=raw.tobytes())
        return numpy_helper.to_array(packed)
    return raw.view(np.ndarray).view(dtype.numpy).reshape(shape)


@contextmanager
def _open_external(source: ExternalData) -> Iterator[FileIO]:
    """Yield the file of a tensor.

    Raises:
        ModelError: it is another one than when the model was loaded, or cannot be read.
    """
    try:
        with source.path.open("rb", buffering=0) as file:
            if _file_identity(os.fstat(file.fileno())) != source.file_identity:
                raise FileNotFoundError
            yield file
    except FileNotFoundError:
        raise ModelError(f"{source.path} has changed since the model was loaded: load the model again") from None
    except OSError as error:
        raise ModelError(f"{source.path} cannot be read: {error.strerror}") from error


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model that lies in a file."""
    return (tensor for _, tensor in model_tensors(model) if tensor.data_location == TensorProto.EXTERNAL)


def model_tensors(model: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield every tensor of a model: initializers, and those in attributes, bodies and functions.

    Each comes with its name; one in an attribute has that of the first output, for most are in Constants.
    """
    nodes = chain(model.graph.node, *(function.node for function in model.functions))
    return chain(_initializer_tensors(model.graph), chain.from_iterable(map(_node_tensors, nodes)))


def _initializer_tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for sparse in graph.sparse_initializer:
        yield from ((tensor.name, tensor) for tensor in (sparse.values, sparse.indices))


def _node_tensors(node: NodeProto) -> Iterator[tuple[str, TensorProto]]:
    name = next(iter(node.output), "")
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield name, attribute.t
        alone = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for sparse in (*alone, *attribute.sparse_tensors):
            yield from ((name, tensor) for tensor in (sparse.values, sparse.indices))
        yield from ((name, tensor) for tensor in attribute.tensors)
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield from _initializer_tensors(graph)
            yield from chain.from_iterable(map(_node_tensors, graph.node))


def external_location(tensor: TensorProto) -> str:
    """Return the file that a tensor states for its data."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def set_external_location(tensor: TensorProto, file: str) -> None:
    """State another file for the data of a tensor, at the same offset."""
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = file


def raw_chunks(tensor: Tensor) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tensor as ONNX stores them, in chunks if they lie in a file or are computed."""
    source = tensor.source
    if isinstance(source, ExternalData):
        with _open_external(source) as file:
            yield from file_chunks(file, source.offset, source.offset + source.length)
    elif isinstance(source, TensorProto) and source.HasField("raw_data"):
        yield source.raw_data
    else:
        array, bits = np.asarray(tensor.numpy()), tensor.dtype.bits
        is_plain = sys.byteorder == "little" and bits and bits % 8 == 0
        # chunks of packed elements are of whole bytes
        for piece in iter_chunks(array if is_plain else np.ascontiguousarray(array), COPY_CHUNK_BYTES):
            yield piece.view(np.uint8).data if is_plain else numpy_helper.from_array(piece).raw_data


def file_chunks(file: FileIO, start: int, end: int) -> Iterator[bytes]:
    """Yield a part of a file in chunks: zeros for a hole, unread; less than the part if the file ends in it."""
    while start < end:
        hole = _next_data_offset(file, start, end) - start
        if hole:
            chunk = ZERO_CHUNK[:hole]
        else:
            file.seek(start)
            chunk = file.read(min(COPY_CHUNK_BYTES, end - start))
        if not chunk:
            return
        yield chunk
        start += len(chunk)


def _next_data_offset(file: FileIO, start: int, end: int) -> int:
    """Return the first offset from `start` on at which a file has data; `start`, if the system knows of no holes."""
    if not hasattr(os, "SEEK_DATA"):
        return start
    try:
        return min(end, os.lseek(file.fileno(), start, os.SEEK_DATA))
    except OSError as error:
        return end if error.errno == errno.ENXIO else start  # there is no more data


def tensor_to_proto(tensor: Tensor, name: str, into: TensorProto | None = None) -> TensorProto:
    """Return the proto of a tensor under a name, in an empty message if one is given. External data stays external."""
    proto = TensorProto() if into is None else into
    original = original_proto(tensor)
    if original is not None:
        proto.CopyFrom(original)
    else:
        proto.data_type = tensor.dtype
        proto.dims.extend(tensor.shape)
        if tensor.dtype is DType.STRING:
            proto.string_data.extend(numpy_helper.from_array(np.asarray(tensor.numpy())).string_data)
        else:
            proto.raw_data = b"".join(raw_chunks(tensor))
    if name or proto.name:
        proto.name = name
    return proto


def original_proto(tensor: Tensor) -> TensorProto | None:
    """Return the message that a tensor was loaded from; None for one that was computed."""
    proto = tensor.source.proto if isinstance(tensor.source, ExternalData) else tensor.source
    if not isinstance(proto, TensorProto):
        return None
    assert (proto.data_type, tuple(proto.dims)) == (tensor.dtype, tensor.shape), f"{proto.name} is not its source"
    return proto


# -- attributes and nodes ----------------------------------------------------------------------------------------------


def attribute_from_proto(proto: AttributeProto, folders: ModelFolders = ()) -> Attribute:
    """Return the attribute as data. Kinds other than plain data, tensors and graphs are carried unchanged."""
    kinds = AttributeProto
    if proto.ref_attr_name:
        return OpaqueAttribute(proto.SerializeToString())
    value: Attribute | None = None
    match attribute_kind(proto):
        case kinds.INT:
            value = int(proto.i)
        case kinds.FLOAT:
            value = float(proto.f)
        case kinds.STRING:
            value = decode_string(proto.s)
        case kinds.INTS:
            value = tuple(proto.ints) or None
        case kinds.FLOATS:
            value = tuple(proto.floats) or None
        case kinds.STRINGS:
            value = tuple(decode_string(raw) for raw in proto.strings) or None
        case kinds.TENSOR:
            value = tensor_from_proto(proto.t, folders)
    return OpaqueAttribute(proto.SerializeToString()) if value is None else value


def attribute_kind(proto: AttributeProto) -> int:
    """Return the kind of an attribute; in the oldest models, which do not state it, that of the field that is set."""
    if proto.type != AttributeProto.UNDEFINED:
        return proto.type
    fields = {field.name for field, _ in proto.ListFields()}
    return next((kind for field, kind in _ATTRIBUTE_KINDS.items() if field in fields), AttributeProto.UNDEFINED)


_ATTRIBUTE_KINDS = {
    "f": AttributeProto.FLOAT,
    "i": AttributeProto.INT,
    "s": AttributeProto.STRING,
    "t": AttributeProto.TENSOR,
    "g": AttributeProto.GRAPH,
    "floats": AttributeProto.FLOATS,
    "ints": AttributeProto.INTS,
    "strings": AttributeProto.STRINGS,
    "graphs": AttributeProto.GRAPHS,
}


def attribute_to_proto(
    name: str, attribute: Attribute, body: Callable[[Graph], GraphProto] | None = None
) -> AttributeProto:
    """Return the proto of an attribute; `body` writes the graphs among them."""
    proto = AttributeProto(name=name)
    match attribute:
        case OpaqueAttribute():
            proto.ParseFromString(attribute.proto)
        case Tensor():
            proto.type = AttributeProto.TENSOR
            original = original_proto(attribute)
            tensor_to_proto(attribute, original.name if original else "", proto.t)
        case Graph():
            assert body is not None, f"attribute '{name}' is a graph"
            proto.type = AttributeProto.GRAPH
            proto.g.CopyFrom(body(attribute))
        case tuple() if attribute and isinstance(attribute[0], Graph):
            assert body is not None, f"attribute '{name}' holds graphs"
            proto.type = AttributeProto.GRAPHS
            proto.graphs.extend(map(body, attribute))
        case tuple():
            _set_list(proto, cast("tuple[AttributeScalar, ...]", attribute))
        case _:
            _set_scalar(proto, attribute)
    return proto


def _set_scalar(proto: AttributeProto, value: AttributeScalar) -> None:
    match value:
        case int():
            proto.type, proto.i = AttributeProto.INT, value
        case float():
            proto.type, proto.f = AttributeProto.FLOAT, value
        case _:
            proto.type, proto.s = AttributeProto.STRING, _to_bytes(value)


def _set_list(proto: AttributeProto, values: tuple[AttributeScalar, ...]) -> None:
    """Write a list. An empty one is one of integers: other empty lists are carried, not built."""
    if any(isinstance(value, str | bytes) for value in values):
        proto.type = AttributeProto.STRINGS
        proto.strings.extend(_to_bytes(value) for value in values)
    elif any(isinstance(value, float) for value in values):
        proto.type = AttributeProto.FLOATS
        proto.floats.extend(float(value) for value in values)
    else:
        proto.type = AttributeProto.INTS
        proto.ints.extend(int(value) for value in values)


def _to_bytes(value: AttributeScalar) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def node_to_proto(
    node: Node,
    inputs: Sequence[str],
    outputs: Sequence[str],
    body: Callable[[Graph], GraphProto] | None = None,
) -> NodeProto:
    """Return the proto of a node with these names of inputs and outputs."""
    proto = NodeProto()
    proto.ParseFromString(node.unknown_fields)
    del proto.input[:], proto.attribute[:]  # how the node was spelled before `opset_conversion.upgraded`
    proto.input.extend(inputs)
    proto.output.extend(outputs)
    if node.name:
        proto.name = node.name
    proto.op_type = node.op
    if node.domain and not proto.domain:
        proto.domain = node.domain
    if node.doc:
        proto.doc_string = node.doc
    proto.attribute.extend(attribute_to_proto(name, value, body) for name, value in node.attrs.items())
    for key, value in node.metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return proto


# -- fields that nobody here knows -------------------------------------------------------------------------------------


def unknown_fields(proto: Message) -> bytes:
    """Return the fields of a message, nested ones aside, that its schema lacks, serialized."""
    return _encode_fields(UnknownFieldSet(proto))


def _encode_fields(fields: Any) -> bytes:  # Any: protobuf's types do not tell what a wire type holds
    wire = b""
    for field in fields:
        wire += encode_varint(field.field_number << 3 | field.wire_type)
        match field.wire_type:
            case 0:
                wire += encode_varint(field.data)
            case 1:
                wire += field.data.to_bytes(8, "little")
            case 2:
                wire += encode_length_delimited(field.data)
            case 3:
                wire += _encode_fields(field.data) + encode_varint(field.field_number << 3 | 4)
            case 5:
                wire += field.data.to_bytes(4, "little")
    return wire


def encode_length_delimited(payload: bytes) -> bytes:
    """Return bytes as protobuf writes them into a field: their length first."""
    return encode_varint(len(payload)) + payload


def encode_varint(number: int) -> bytes:
    """Return a number in protobuf's encoding."""
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


# -- messages that are not read whole ----------------------------------------------------------------------------------


def prune_large_fields(wire: memoryview, path: Sequence[int], larger: int) -> bytes:
    """Return a serialized message without fields over some size, found by a path of field numbers.

    Raises:
        DecodeError: it is none, or cut short.
    """
    kept = bytearray()
    for number, start, body, end in _wire_fields(wire):
        if number != path[0] or end - body <= larger:
            kept += wire[start:end]
        elif len(path) > 1:
            kept += encode_varint(number << 3 | 2) + encode_length_delimited(
                prune_large_fields(wire[body:end], path[1:], larger)
            )
    return bytes(kept)


def _wire_fields(wire: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield each field of a serialized message: its number, and the offsets of its start, its content and its end."""
    at, size = 0, len(wire)
    while at < size:
        start = at
        key, at = _decode_varint(wire, at)
        body = at
        match key & 7:
            case 0:
                _, at = _decode_varint(wire, at)
            case 1:
                at += 8
            case 2:
                length, body = _decode_varint(wire, at)
                at = body + length
            case 5:
                at += 4
            case _:
                raise DecodeError("a group, which ONNX has none of")
        if at > size:
            raise DecodeError("cut short")
        yield key >> 3, start, body, at


def _decode_varint(wire: memoryview, at: int) -> tuple[int, int]:
    """Return a number in protobuf's encoding, and the offset of its end."""
    number = 0
    for place, byte in enumerate(wire[at : at + 10]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise DecodeError("a number without an end")
