"""Nodes of a model that is converted to another opset, where their newest spelling cannot be written.

`version_paths` leads from one spelling of a node to another. A node that cannot be upgraded to the newest version is
upgraded as far as the wanted opset allows; one that has no spelling there is expanded into several nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.io import opset_conversion
from graphopt.io.version_paths import schema_type_text
from graphopt.io.version_tables import MASK_INPUT
from graphopt.ir import schemas
from graphopt.ir.edit import DraftGraph, constant_node, replace_node, replace_values
from graphopt.ir.graph import Attribute, Graph, Node, OpaqueAttribute, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.operators import proto_conversion
from graphopt.operators.inference import infer_node
from graphopt.operators.proto_conversion import ModelFolders


def expand_nodes(graph: Graph, opset: int, folders: ModelFolders) -> Iterator[Patch]:
    """Yield the patches that bring nodes without a newest spelling to an opset, some of them as several nodes.

    Raises:
        ModelError: a sparse constant, which the opset does not have, holds other data than it says, or too much.
    """
    for vertex, node in [*graph.nodes()]:
        patch = None
        if is_sparse_constant(node) and not _supports_sparse_constant(graph, node, opset):
            patch = replace_node(graph, vertex, _densify(node, opset, folders))
        elif (node.op, node.version) in FLATTENING_OPERATORS and opset >= SINGLE_AXIS_OPSET and not node.domain:
            patch = _expand_flattening(graph, vertex, opset)
        elif (node.op, node.version) == ("Attention", 23) and opset >= PADDED_MASK_OPSET and not node.domain:
            patch = _widen_mask(graph, vertex, opset)
        elif node.op == "Resize" and opset in REGION_REQUIRED_OPSETS and not node.domain:
            patch = _add_region(graph, vertex) or _upgraded(graph, vertex, opset)
        elif node.version and not node.domain:
            patch = _upgraded(graph, vertex, opset)
        if patch is not None:
            yield patch


def _upgraded(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return the patch that brings a node without a newest spelling to the newest one that an opset has; None where it
    has that."""
    node = graph[vertex]
    schema = schemas.schema(node.op, "", opset)
    if schema is None or schema.deprecated or schema.since_version <= node.version:
        return None
    newer = opset_conversion.upgraded(node, graph, graph, schema.since_version)
    return None if newer is node else replace_node(graph, vertex, newer)


class _NodeExpansion:
    """Nodes that together mean what one did; the last of them takes its vertex."""

    def __init__(self, graph: Graph, vertex: int) -> None:
        self.graph, self.vertex, self.node = graph, vertex, graph[vertex]
        self.draft = DraftGraph(graph)

    def add(self, op: str, *inputs: Value | Sequence[int], **attrs: Attribute) -> Value:
        """Add a node in the newest spelling of its operator, and return its output; numbers become a constant."""
        name = self.graph.new_name(f"{self._name_base}/{op}")
        label = self.graph.new_name(f"{self.node.name}/{op}") if self.node.name else ""
        return self._add_node(
            Node(op, self._as_values(inputs, op), (name,), (None,), attrs, "", schemas.newest_version(op), label)
        )

    def add_same_operator(self, *inputs: Value, **attrs: Attribute) -> Value:
        """Add a node of the same operator, in its newest spelling, that has the label of the old one."""
        extra: NodeProto = NodeProto.FromString(self.node.unknown_fields)
        del extra.input[:], extra.attribute[:]
        name = self.graph.new_name(f"{self._name_base}/{self.node.op}")
        newest = replace(
            self.node,
            inputs=inputs,
            names=(name,),
            types=(None,),
            attrs=attrs,
            version=schemas.newest_version(self.node.op),
        )
        return self._add_node(replace(newest, unknown_fields=bytes(extra.SerializeToString())))

    def finish(self, op: str, *inputs: Value | Sequence[int], **attrs: Attribute) -> Patch:
        """Return the patch that puts a last node, and all before it, in the place of the old one."""
        label = self.graph.new_name(f"{self.node.name}/{op}") if self.node.name else ""
        names, types, values = self.node.names, self.node.types, self._as_values(inputs, op)
        return self.finish_with_node(Node(op, values, names, types, attrs, "", schemas.newest_version(op), label))

    def finish_with_node(self, node: Node) -> Patch:
        return replace_values(self.graph, {}, {**self.draft.drafts, self.vertex: node})

    def _as_values(self, inputs: Sequence[Value | Sequence[int]], op: str) -> tuple[Value, ...]:
        return tuple(
            value if isinstance(value, Value) else self.add_constant(np.array(value, np.int64), f"{op}_const")
            for value in inputs
        )

    def add_constant(self, array: NDArray[Any], name: str) -> Value:
        """Add a constant of a name beside the old node's, and return its value."""
        vertex, name = self.graph.new_vertex(), self.graph.new_name(f"{self._name_base}/{name}")
        self.draft.drafts[vertex] = constant_node(Tensor.from_array(array), name)
        return Value(vertex)

    def _add_node(self, node: Node) -> Value:
        vertex = self.graph.new_vertex()
        self.draft.drafts[vertex] = infer_node(self.draft, node)
        return Value(vertex)

    @property
    def _name_base(self) -> str:
        return next(filter(None, self.node.names), self.node.op)


# -- Softmax over all axes from one on ---------------------------------------------------------------------------------

SINGLE_AXIS_OPSET = 13
"""The opset from which on Softmax and its like run along one axis."""
FLATTENING_OPERATORS = frozenset((op, version) for op in ("Softmax", "LogSoftmax", "Hardmax") for version in (1, 11))
ALLOWZERO_OPSET = 14
"""The opset from which on a size of 0 in the target of a Reshape may mean no element."""


def _expand_flattening(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return the operator along a single axis, which the axes that it ran over are flattened into; None where its axis
    is out of range.

    Where the sizes of these axes are known, a Reshape leaves those before as they are, open or not. Else a Flatten
    takes all axes, and their sizes are read when the model runs.
    """
    several, node = _NodeExpansion(graph, vertex), graph[vertex]
    x, axis = node.inputs[0], node.attrs.get("axis", 1)
    assert x is not None, "the data of a Softmax"
    shape = graph.shape(x)
    if not isinstance(axis, int) or (shape is not None and not -len(shape) <= axis < len(shape)):
        return None
    first = 0 if shape is None else axis % len(shape)
    sizes = [size for size in (shape or ())[first:] if isinstance(size, int)]
    if shape is None or len(sizes) < len(shape) - first:
        flat = several.add_same_operator(several.add("Flatten", x, axis=axis), axis=-1)
        return _reshape_like(several, flat, x, opset)
    if 0 in sizes:  # what has no elements is what it becomes
        return several.finish("Identity", x)
    kept = [size if isinstance(size, int) else 0 for size in shape[:first]]  # 0 is read as "copy"
    made = several.add_same_operator(several.add("Reshape", x, [*kept, prod(sizes)]), axis=-1)
    return several.finish("Reshape", made, [*kept, *sizes])


def _reshape_like(several: _NodeExpansion, flat: Value, x: Value, opset: int) -> Patch:
    """Return the patch that ends with a Reshape to the sizes of another value, of which some may be 0."""
    sizes = several.add("Shape", x)
    if opset >= ALLOWZERO_OPSET:
        return several.finish("Reshape", flat, sizes, allowzero=1)
    is_empty = several.add("Equal", sizes, [0])
    return several.finish("Reshape", flat, several.add("Where", is_empty, [-1], sizes))


# -- regions of Resize -------------------------------------------------------------------------------------------------

REGION_REQUIRED_OPSETS = range(11, 13)
"""The opsets in which Resize needs its second input, the region of interest, also where no region is cut out."""


def _add_region(graph: Graph, vertex: int) -> Patch | None:
    """Return a Resize with a region of no elements, which says as much as none; None where nothing lacks it."""
    node = graph[vertex]
    if node.version < REGION_REQUIRED_OPSETS.start or len(node.inputs) < 3 or node.inputs[1] is not None:
        return None
    several = _NodeExpansion(graph, vertex)
    region = several.add_constant(np.zeros(0, np.float32), "roi")
    return several.finish_with_node(replace(node, inputs=(node.inputs[0], region, *node.inputs[2:])))


# -- masks of Attention ------------------------------------------------------------------------------------------------

PADDED_MASK_OPSET = 24
"""The opset from which on a mask that is shorter than the keys hides the rest of them: one of size 1 does not
broadcast."""


def _widen_mask(graph: Graph, vertex: int, opset: int) -> Patch | None:
    """Return an Attention whose mask is as wide as there are keys, whatever names its sizes have; None where it has no
    mask, or another reason to stay."""
    several, node = _NodeExpansion(graph, vertex), graph[vertex]
    present: tuple[Value | None, ...] = (*node.inputs, None, None)
    keys, mask, past = present[1], present[MASK_INPUT], present[MASK_INPUT + 1]
    schema = schemas.schema(node.op, "", opset)
    if mask is None or keys is None or schema is None or any(node.names[3:]):
        return None
    columns, shapes = (graph.shape(mask) or (1,))[-1], [graph.shape(value) for value in (keys, past) if value]
    counts = [shape[-2] if shape is not None and len(shape) > 1 else None for shape in shapes]
    known = [size for size in counts if isinstance(size, int)]
    if isinstance(columns, int) and columns != 1 and len(known) == len(counts) and sum(known) != columns:
        return None  # it does not broadcast
    count = several.add("Shape", keys, start=-2, end=-1)
    if past is not None:
        count = several.add("Add", count, several.add("Shape", past, start=-2, end=-1))
    inputs = [*node.inputs]
    inputs[MASK_INPUT] = several.add("Expand", mask, count)
    return several.finish_with_node(replace(node, inputs=tuple(inputs), version=schema.since_version))


# -- sparse constants --------------------------------------------------------------------------------------------------

SPARSE_OPSET = 11
"""The opset from which on a Constant may be sparse."""
MAX_DENSE_BYTES = 1 << 31
"""Bytes from which on a sparse constant is not made dense."""


def is_sparse_constant(node: Node) -> bool:
    """Return whether a node is a sparse constant, as sparse initializers are read, too."""
    return node.op == "Constant" and not node.domain and "sparse_value" in node.attrs


def _supports_sparse_constant(graph: Graph, node: Node, opset: int) -> bool:
    """Return whether an opset has a Constant of such values; sparse initializers are not a matter of the opset."""
    declared: GraphProto = GraphProto.FromString(graph.unknown_fields)
    if any(sparse.values.name == node.names[0] for sparse in declared.sparse_initializer):
        return True
    schema = schemas.schema("Constant", "", opset)
    text = schema_type_text(TensorType(DType(_sparse_proto(node).values.data_type)))
    return schema is not None and opset >= SPARSE_OPSET and text in schema.outputs[0].types


def _sparse_proto(node: Node) -> SparseTensorProto:
    value = node.attrs["sparse_value"]
    assert isinstance(value, OpaqueAttribute), "a sparse tensor is carried, not read"
    attribute: AttributeProto = AttributeProto.FromString(value.proto)
    return attribute.sparse_tensor


def _densify(node: Node, opset: int, folders: ModelFolders) -> Node:
    """Return a sparse constant as an ordinary one, whose values are made when they are read."""
    sparse = _sparse_proto(node)
    values, indices = (proto_conversion.tensor_from_proto(part, folders) for part in (sparse.values, sparse.indices))
    shape, where = tuple(sparse.dims), f"the sparse constant '{node.names[0]}'"
    places = _flat_indices(indices.numpy(), shape)
    if values.shape != places.shape or not np.all((places >= 0) & (places < prod(shape))):
        raise ModelError(f"{where} of shape {list(shape)} says of {values.size} values that they are at other places")

    def read() -> NDArray[Any]:
        nothing = "" if values.dtype is DType.STRING else 0
        array: NDArray[Any] = np.full(prod(shape), nothing, values.dtype.numpy)
        array[places] = values.numpy()
        return array.reshape(shape)

    dense = Tensor(values.dtype, shape, read)
    if dense.nbytes >= MAX_DENSE_BYTES:
        raise ModelError(f"{where} cannot be written in opset {opset}: dense it takes {dense.nbytes / 1e9:.1f} GB")
    return replace(constant_node(dense, node.names[0]), name=node.name, doc=node.doc, metadata=node.metadata)


def _flat_indices(indices: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the places of values in the flattened tensor: indices are those already, or one number for each axis."""
    if indices.ndim == 1:
        return indices.astype(np.int64)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    outside = np.any((indices < 0) | (indices >= np.array(shape)), axis=-1)
    return np.where(outside, -1, indices @ np.array(strides, np.int64))
