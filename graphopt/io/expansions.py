"""What becomes of the nodes of a model that is converted, where no newest spelling of theirs can be written.

`ways` leads from one spelling of a node to another. A node that cannot be raised to the newest is raised as far as the
opset that is wanted; one that has no spelling there becomes several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto

from graphopt.base.errors import ModelError
from graphopt.base.sizes import Dim
from graphopt.base.types import DType, TensorType
from graphopt.io import opsets
from graphopt.io.spellings import MASK
from graphopt.io.ways import type_text
from graphopt.ir import ops
from graphopt.ir.edit import Draft, constant_node, replace_node, replace_values
from graphopt.ir.graph import Attribute, Graph, Node, Opaque, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators import protos
from graphopt.operators.infer import infer_node
from graphopt.operators.protos import Folders


def expansions(graph: Graph, opset: int, folders: Folders) -> Iterator[Patch]:
    """Yield the patches that bring nodes without a newest spelling to an opset, some of them as several nodes.

    Raises:
        ModelError: a sparse constant, which the opset does not have, holds other data than it says, or too much.
    """
    for vertex, node in [*graph.nodes()]:
        patch = None
        if is_sparse(node) and not _has_sparse(graph, node, opset):
            patch = replace_node(graph, vertex, _dense(node, opset, folders))
        elif (node.op, node.version) in FLATTENING and opset >= SINGLE_AXIS and not node.domain:
            patch = _flattened(graph, vertex, opset)
        elif (node.op, node.version) == ("Attention", 23) and opset >= PADDED_MASK and not node.domain:
            patch = _with_wide_mask(graph, vertex, opset)
        elif node.op == "Resize" and opset in NEEDS_REGION and not node.domain and _has_no_region(node):
            patch = _with_region(graph, vertex)
        elif node.version and not node.domain:
            patch = _raised(graph, vertex, opset)
        if patch is not None:
            yield patch


def _raised(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return a node that has no newest spelling in the newest that an opset has; None where it has that already."""
    node = graph[vertex]
    schema = ops.schema(node.op, "", opset)
    if schema is None or schema.deprecated or schema.since_version <= node.version:
        return None
    newer = opsets.raised(node, graph, graph, schema.since_version)
    return None if newer is node else replace_node(graph, vertex, newer)


class _Expansion:
    """New nodes, of which the last takes the vertex of the one whose meaning they have together."""

    def __init__(self, graph: Graph, vertex: int) -> None:
        self.graph, self.vertex, self.node = graph, vertex, graph[vertex]
        self.draft = Draft(graph)

    def add(self, op: str, *inputs: Value | Sequence[int], **attrs: Attribute) -> Value:
        """Add a node in the newest spelling of its operator, and return its output; numbers become a constant."""
        name = self.graph.new_name(f"{self._base}/{op}")
        label = self.graph.new_name(f"{self.node.name}/{op}") if self.node.name else ""
        return self._put(Node(op, self._values(inputs, op), (name,), (None,), attrs, "", ops.newest(op), label))

    def like(self, *inputs: Value, **attrs: Attribute) -> Value:
        """Add a node of the same operator, in its newest spelling, that has the label of the old one."""
        extra = NodeProto()
        extra.ParseFromString(self.node.extra)
        del extra.input[:], extra.attribute[:]
        name = self.graph.new_name(f"{self._base}/{self.node.op}")
        newest = replace(
            self.node, inputs=inputs, names=(name,), types=(None,), attrs=attrs, version=ops.newest(self.node.op)
        )
        return self._put(replace(newest, extra=bytes(extra.SerializeToString())))

    def end(self, op: str, *inputs: Value | Sequence[int], **attrs: Attribute) -> Patch:
        """Return the patch that puts a last node, and all before it, in the place of the old one."""
        label = self.graph.new_name(f"{self.node.name}/{op}") if self.node.name else ""
        names, types, values = self.node.names, self.node.types, self._values(inputs, op)
        return self.with_last(Node(op, values, names, types, attrs, "", ops.newest(op), label))

    def with_last(self, node: Node) -> Patch:
        return replace_values(self.graph, {}, {**self.draft.new, self.vertex: node})

    def _values(self, inputs: Sequence[Value | Sequence[int]], op: str) -> tuple[Value, ...]:
        return tuple(value if isinstance(value, Value) else self._constant(value, op) for value in inputs)

    def _constant(self, numbers: Sequence[int], op: str) -> Value:
        array: NDArray[np.int64] = np.array(numbers, np.int64)
        vertex = self.graph.new_vertex()
        self.draft.new[vertex] = constant_node(Tensor.of(array), self.graph.new_name(f"{self._base}/{op}_const"))
        return Value(vertex)

    def _put(self, node: Node) -> Value:
        vertex = self.graph.new_vertex()
        self.draft.new[vertex] = infer_node(self.draft, node)
        return Value(vertex)

    @property
    def _base(self) -> str:
        return next(filter(None, self.node.names), self.node.op)


# -- Softmax over all axes from one on ---------------------------------------------------------------------------------

SINGLE_AXIS = 13
"""The opset from which on Softmax and its like run along one axis."""
FLATTENING = frozenset((op, version) for op in ("Softmax", "LogSoftmax", "Hardmax") for version in (1, 11))
NO_COPIES = 14
"""The opset from which on a size of 0 in the target of a Reshape may mean no element."""


def _flattened(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return the operator along the one axis that the axes become which it ran over; None for an axis beyond them.

    Where their sizes are known, those before stay as they are, open or not. A Flatten takes all others, whose sizes are
    read when the model runs.
    """
    several, node = _Expansion(graph, vertex), graph[vertex]
    x, axis = node.inputs[0], node.attrs.get("axis", 1)
    assert x is not None, "the data of a Softmax"
    shape = graph.shape(x)
    if not isinstance(axis, int) or (shape is not None and not -len(shape) <= axis < len(shape)):
        return None
    first = 0 if shape is None else axis % len(shape)
    sizes = [size for size in (shape or ())[first:] if isinstance(size, int)]
    if shape is None or len(sizes) < len(shape) - first:
        flat = several.like(several.add("Flatten", x, axis=axis), axis=-1)
        return _reshaped_like(several, flat, x, opset)
    if 0 in sizes:  # what has no elements is what it becomes
        return several.end("Identity", x)
    kept = [size if isinstance(size, int) else 0 for size in shape[:first]]  # 0 is read as "copy"
    made = several.like(several.add("Reshape", x, [*kept, prod(sizes)]), axis=-1)
    return several.end("Reshape", made, [*kept, *sizes])


def _reshaped_like(several: _Expansion, flat: Value, x: Value, opset: int) -> Patch:
    """Return the patch that ends with a Reshape to the sizes of another value, of which some may be 0."""
    sizes = several.add("Shape", x)
    if opset >= NO_COPIES:
        return several.end("Reshape", flat, sizes, allowzero=1)
    is_empty = several.add("Equal", sizes, [0])
    return several.end("Reshape", flat, several.add("Where", is_empty, [-1], sizes))


# -- regions of Resize -------------------------------------------------------------------------------------------------

NEEDS_REGION = range(11, 13)
"""The opsets in which Resize needs its second input, the region of interest, also where no region is cut out."""


def _has_no_region(node: Node) -> bool:
    return node.version >= NEEDS_REGION.start and len(node.inputs) > 2 and node.inputs[1] is None


def _with_region(graph: Graph, vertex: int) -> Patch:
    """Return a Resize with a region of no elements, which says as much as none."""
    node, region = graph[vertex], graph.new_vertex()
    empty: NDArray[np.float32] = np.zeros(0, np.float32)
    name = graph.new_name(f"{next(filter(None, node.names), node.op)}/roi")
    inputs = (node.inputs[0], Value(region), *node.inputs[2:])
    new = {region: constant_node(Tensor.of(empty), name), vertex: replace(node, inputs=inputs)}
    return replace_values(graph, {}, new)


# -- masks of Attention ------------------------------------------------------------------------------------------------

PADDED_MASK = 24
"""The opset from which on a mask that is shorter than the keys hides the rest of them: one of size 1 does not
broadcast."""


def _with_wide_mask(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return an Attention whose mask is as wide as there are keys, whatever its sizes are called; None where it has no
    mask, or another reason to stay."""
    several, node = _Expansion(graph, vertex), graph[vertex]
    present: tuple[Value | None, ...] = (*node.inputs, None, None)
    keys, mask, past = present[1], present[MASK], present[MASK + 1]
    schema = ops.schema(node.op, "", opset)
    if mask is None or keys is None or schema is None or any(node.names[3:]):
        return None
    columns, counts = (graph.shape(mask) or (1,))[-1], [_rows(graph, value) for value in (keys, past) if value]
    known = [size for size in counts if isinstance(size, int)]
    if isinstance(columns, int) and columns != 1 and len(known) == len(counts) and sum(known) != columns:
        return None  # it does not broadcast
    count = several.add("Shape", keys, start=-2, end=-1)
    if past is not None:
        count = several.add("Add", count, several.add("Shape", past, start=-2, end=-1))
    inputs = [*node.inputs]
    inputs[MASK] = several.add("Expand", mask, count)
    return several.with_last(replace(node, inputs=tuple(inputs), version=schema.since_version))


def _rows(graph: Graph, value: Value) -> Dim | None:
    shape = graph.shape(value)
    return None if shape is None or len(shape) < 2 else shape[-2]


# -- sparse constants --------------------------------------------------------------------------------------------------

SPARSE = 11
"""The opset from which on a Constant may be sparse."""
LARGEST_DENSE = 1 << 31
"""Bytes from which on a sparse constant is not made dense."""


def is_sparse(node: Node) -> bool:
    """Return whether a node is a sparse constant, as sparse initializers are read, too."""
    return node.op == "Constant" and not node.domain and "sparse_value" in node.attrs


def _has_sparse(graph: Graph, node: Node, opset: int) -> bool:
    """Return whether an opset has a Constant of such values; sparse initializers are not a matter of the opset."""
    declared = GraphProto()
    declared.ParseFromString(graph.extra)
    if any(sparse.values.name == node.names[0] for sparse in declared.sparse_initializer):
        return True
    schema = ops.schema("Constant", "", opset)
    text = type_text(TensorType(DType(_sparse(node).values.data_type)))
    return schema is not None and opset >= SPARSE and text in schema.outputs[0].types


def _sparse(node: Node) -> SparseTensorProto:
    attribute, value = AttributeProto(), node.attrs["sparse_value"]
    assert isinstance(value, Opaque), "a sparse tensor is carried, not read"
    attribute.ParseFromString(value.proto)
    return attribute.sparse_tensor


def _dense(node: Node, opset: int, folders: Folders) -> Node:
    """Return a sparse constant as an ordinary one, whose values are made when they are read."""
    sparse = _sparse(node)
    values, indices = (protos.tensor_from_proto(part, folders) for part in (sparse.values, sparse.indices))
    shape, where = tuple(sparse.dims), f"the sparse constant '{node.names[0]}'"
    places = _places(indices.numpy(), shape)
    if values.shape != places.shape or not np.all((places >= 0) & (places < prod(shape))):
        raise ModelError(f"{where} of shape {list(shape)} says of {values.size} values that they are at other places")

    def read() -> NDArray[Any]:
        nothing = "" if values.dtype is DType.STRING else 0
        array: NDArray[Any] = np.full(prod(shape), nothing, values.dtype.numpy)
        array[places] = values.numpy()
        return array.reshape(shape)

    dense = Tensor(values.dtype, shape, read)
    if dense.nbytes >= LARGEST_DENSE:
        raise ModelError(f"{where} cannot be written in opset {opset}: dense it takes {dense.nbytes / 1e9:.1f} GB")
    return replace(constant_node(dense, node.names[0]), name=node.name, doc=node.doc, metadata=node.metadata)


def _places(indices: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return where values are in the flattened tensor: indices are that already, or one for each axis."""
    if indices.ndim == 1:
        return indices.astype(np.int64)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    outside = np.any((indices < 0) | (indices >= np.array(shape)), axis=-1)
    return np.where(outside, -1, indices @ np.array(strides, np.int64))
