"""The values of tensors on their way into messages and files.

Knows of single tensors and their initializers only; `onnx_io` puts the pieces together.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, TensorProto

from graphopt.base.errors import ModelError
from graphopt.ir.graph import Node
from graphopt.ir.tensor import Tensor
from graphopt.operators import proto_conversion

if sys.platform != "win32":
    import fcntl

MIN_EXTERNAL_BYTES = 1024
"""Bytes below which a tensor stays in the model file also when the others move out."""

VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
"""The fields of a tensor that may hold its values."""

PlaceTensor: TypeAlias = Callable[[Tensor, str, TensorProto], object]
"""Function that writes a tensor of a name into an empty message."""


def is_large(tensor: TensorProto) -> bool:
    """Return whether a tensor holds many values itself."""
    return tensor.data_location != TensorProto.EXTERNAL and prod(tensor.dims) > MIN_EXTERNAL_BYTES


def serialize_without_values(model: memoryview) -> bytes | memoryview:
    """Return a serialized model without the bytes of large initializers; as it is where it cannot be taken apart."""
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
        into.CopyFrom(_declaration(tensor, name))
        into.raw_data = b"".join(proto_conversion.raw_chunks(tensor))
    else:
        proto_conversion.tensor_to_proto(tensor, name, into)


def place_without_values(tensor: Tensor, name: str, into: TensorProto) -> None:
    """Write a tensor without its values, if they are many and in no file that is named already."""
    if tensor.size <= MIN_EXTERNAL_BYTES or isinstance(tensor.source, proto_conversion.ExternalData):
        proto_conversion.tensor_to_proto(tensor, name, into)
    else:
        into.CopyFrom(_declaration(tensor, name))


class InitializerEntry(NamedTuple):
    """An initializer in the wire format: all up to its bytes, and how many these are."""

    name: str
    tensor: Tensor
    head: bytes
    payload: int

    @staticmethod
    def for_node(name: str, node: Node) -> InitializerEntry:
        assert node.data is not None, name
        proto = TensorProto()
        if _is_raw(node.data):
            put_initializer(proto, name, node, _place_declaration)
            payload = node.data.nbytes
            inner = (
                proto.SerializeToString() + field_tag(TensorProto, "raw_data") + proto_conversion.encode_varint(payload)
            )
        else:
            put_initializer(proto, name, node, proto_conversion.tensor_to_proto)
            payload, inner = 0, proto.SerializeToString()
        head = field_tag(GraphProto, "initializer") + proto_conversion.encode_varint(len(inner) + payload) + inner
        return InitializerEntry(name, node.data, head, payload)


def _is_raw(tensor: Tensor) -> bool:
    """Return whether the tensor's bytes will be raw data: not strings, nor numbers that came in a list."""
    declared = proto_conversion.original_proto(tensor)
    if declared is None or isinstance(tensor.source, proto_conversion.ExternalData):
        return tensor.dtype.bits > 0
    return bool(declared.HasField("raw_data")) and tensor.dtype.bits > 0


def _place_declaration(tensor: Tensor, name: str, into: TensorProto) -> None:
    into.CopyFrom(_declaration(tensor, name))


def _declaration(tensor: Tensor, name: str) -> TensorProto:
    """Return the declaration of a tensor without its values and their place."""
    proto = TensorProto(data_type=tensor.dtype, dims=tensor.shape, name=name)
    declared = proto_conversion.original_proto(tensor)
    if declared is not None:
        proto.doc_string = declared.doc_string
        proto.metadata_props.extend(declared.metadata_props)
        proto.MergeFromString(proto_conversion.unknown_fields(declared))
    return proto


def field_tag(message: type[Message], field_name: str) -> bytes:
    """Return what stands before a field of bytes or of a message in the wire format."""
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
    """Return whether bytes that are left out read as zeros: not in a device, nor where each write goes to the end."""
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
        """Write a tensor of some size here, and to the message where; the file has no name yet."""
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
        into.CopyFrom(_declaration(tensor, name))
        into.data_location = TensorProto.EXTERNAL
        for entry, text in {"location": "", "offset": offset, "length": tensor.nbytes}.items():
            into.external_data.add(key=entry, value=str(text))
