"""Index tensors whose elements grow evenly: exporters spell a view of a mask as a gather at all of its positions.

`AffineIndices` describes an integer tensor whose elements grow evenly along every axis: `Range`, and the views,
broadcasts, sums and products of such tensors, as their denotations say. Rules ask which of them count 0, 1, 2, … in the
order of their elements (`fn.is_arange`), and a pass asks which conditions on them always hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr import expressions, symbolic_tensors
from graphopt.expr.dim_translation import UndecidedError
from graphopt.expr.dims import Dim, dim_product, is_nonnegative_dim
from graphopt.expr.integers import isolated_interner
from graphopt.expr.substitution import Substitution, replace_atoms, single_symbol
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape, TensorType
from graphopt.operators.elementwise_ops import ExtraOperands
from graphopt.operators.node_operands import NodeOperands, broadcast_partial_shapes, normalize_axis
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.operator_classes import extra_operands, lookup_operator
from graphopt.operators.semantics import denote
from graphopt.operators.symbolic_shapes import ModelOpContext, UnknownRenaming, build_query

MAX_GRID_ELEMENTS = 1 << 20
"""Elements of a constant above which it is not looked at."""
MAX_GRID_DEPTH = 32
"""Operators that are looked through: more are not found between the positions and their use."""


@dataclass(frozen=True, slots=True)
class AffineIndices:
    """An integer tensor whose element at index `i` is `start + Σ steps[a]·i[a]`."""

    shape: Shape
    start: Dim
    strides: tuple[Dim, ...]

    @property
    def is_uniform(self) -> bool:
        return all(step == 0 for step in self.strides)

    @property
    def is_arange(self) -> bool:
        """True if its elements are 0, 1, 2, … in their order."""
        if self.start != 0:
            return False
        expected: Dim = 1
        for size, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and step != expected:
                return False
            expected = size * expected
        return True

    @property
    def is_nonnegative(self) -> bool:
        return all(map(is_nonnegative_dim, (self.start, *self.strides)))

    def is_within(self, size: Dim) -> bool:
        """Return whether all elements are indices of an axis of this size."""
        largest = self.start + sum(step * (length - 1) for step, length in zip(self.strides, self.shape, strict=True))
        return self.is_nonnegative and is_nonnegative_dim(size - 1 - largest)

    def rearranged(self, axes: Sequence[int | None], shape: Shape) -> AffineIndices:
        """Return the grid with other axes: each an axis of this grid, or None for a new one along which nothing
        changes."""
        return AffineIndices(shape, self.start, tuple(0 if axis is None else self.strides[axis] for axis in axes))


def find_affine_indices(graph: Graph, value: Value | None, depth: int = MAX_GRID_DEPTH) -> AffineIndices | None:
    """Return the grid that describes a value; None where none is known."""
    shape, dtype = graph.shape(value), graph.dtype(value)
    if value is None or shape is None or not dtype.is_integer or depth == 0:
        return None
    elements = graph.known_contents(value)
    if elements is not None and len(elements) == 1:
        return AffineIndices(shape, elements[0], (0,) * len(shape))
    constant = graph.constant(value)
    if constant is not None:
        return _affine_from_constant(constant)
    node = graph[value.vertex]
    operator = lookup_operator(node.op, node.domain)
    if not operator.is_denoted or value.output or dtype is not DType.INT64:  # others may wrap around
        return None
    if operator.is_view:
        return _affine_view(find_affine_indices(graph, node.inputs[0], depth - 1), shape)
    return _denoted_indices(graph, node, shape, depth - 1)


def _affine_from_constant(tensor: Tensor) -> AffineIndices | None:
    if not 0 < tensor.size <= MAX_GRID_ELEMENTS:
        return None
    array = tensor.numpy().astype(np.int64)
    rank, start = array.ndim, int(array.flat[0])
    steps = tuple(
        int(np.moveaxis(array, axis, 0)[min(1, array.shape[axis] - 1)].flat[0]) - start for axis in range(rank)
    )
    even = np.full(array.shape, start)
    for axis, (size, step) in enumerate(zip(array.shape, steps, strict=True)):
        even += step * np.arange(size).reshape([-1 if a == axis else 1 for a in range(rank)])
    return AffineIndices(tensor.shape, start, steps) if np.array_equal(array, even) else None


def _affine_view(own: AffineIndices | None, shape: Shape) -> AffineIndices | None:
    """Return the grid of a view, which has the same elements in the same order: axes of size 1 come and go."""
    if own is None:
        return None
    kept = [axis for axis, size in enumerate(own.shape) if size != 1]
    if [own.shape[axis] for axis in kept] != [size for size in shape if size != 1]:
        return None
    rest = iter(kept)
    return own.rearranged([None if size == 1 else next(rest) for size in shape], shape)


@dataclass(frozen=True)
class _AffineContext(ModelOpContext):
    """A node that reads grids, as a denotation sees it."""

    operand_indices: Sequence[AffineIndices | None] = ()
    renaming: UnknownRenaming = field(default_factory=UnknownRenaming)

    def input(self, position: int) -> symbolic_tensors.SymbolicTensor:
        given, own = super().input(position), self.operand_indices[position]
        if own is None:
            raise UnsupportedOperatorError(f"{self.op} of what is no grid")
        start, *steps = (
            self.translation.to_int(self.renaming.canonicalize(number)) for number in (own.start, *own.strides)
        )
        return replace(given, element=lambda index: expressions.integer_value(sum(map(mul, index, steps), start)))

    def output_indices(self, output: symbolic_tensors.SymbolicTensor, shape: Shape) -> AffineIndices | None:
        """Return the grid of an output, None where its elements do not grow evenly."""
        index, _ = symbolic_tensors.bind_indices(output.shape)
        element = symbolic_tensors.as_integer(output.element(index))
        if element is None:
            return None
        places = [single_symbol(i) for i in index]
        at_zero = Substitution(dict.fromkeys(places, 0))
        start = replace_atoms(element, at_zero)
        steps = [
            replace_atoms(element, Substitution({**dict.fromkeys(places, 0), place: 1})) - start for place in places
        ]
        if element - sum(map(mul, index, steps), start) != 0:
            return None
        first, *others = (self.renaming.restore(self.translation.to_dim(number)) for number in (start, *steps))
        return AffineIndices(shape, first, tuple(others))


def _denoted_indices(graph: Graph, node: Node, shape: Shape, depth: int) -> AffineIndices | None:
    """Return the grid that a denotation computes from grids."""
    names = UnknownRenaming()
    question = build_query(NodeOperands(graph, node), names)
    grids = [find_affine_indices(graph, value, depth) for value in node.inputs]
    with isolated_interner():
        asked = _AffineContext(question, operand_indices=grids, renaming=names)
        try:
            return asked.output_indices(denote(asked)[0], shape)
        except (UndecidedError, UndefinedOperatorError, UnsupportedOperatorError, ZeroDivisionError):
            return None


# -- indices that count ------------------------------------------------------------------------------------------------


def is_known_arange(graph: Graph, value: Value, sizes: Shape | None = None) -> bool:
    """Return whether a computed value is known to count, as `fn.is_arange` says."""
    if sizes is None:
        found = find_affine_indices(graph, value)
        return found is not None and found.is_arange
    columns = _index_columns(graph, value)
    if len(columns) != len(sizes) or not all(
        column.is_within(size) for column, size in zip(columns, sizes, strict=True)
    ):
        return False
    found = _flat_indices(columns, sizes)
    return found.is_arange and dim_product(found.shape) == dim_product(sizes)


def _index_columns(graph: Graph, value: Value) -> list[AffineIndices]:
    """Return the index columns that a Concat joins along its last axis, one grid for each; none if one is no grid."""
    node, rank = graph[value.vertex], len(graph.shape(value) or ())
    if (node.op, node.domain) != ("Concat", "") or not rank:
        return []
    parts = [find_affine_indices(graph, part) for part in node.inputs]
    known = [part for part in parts if part is not None and part.shape[-1] == 1]
    if len(known) < len(parts) or normalize_axis(NodeOperands(graph, node).int_attribute("axis"), rank) != rank - 1:
        return []
    return [AffineIndices(part.shape[:-1], part.start, part.strides[:-1]) for part in known]


def _flat_indices(columns: Sequence[AffineIndices], sizes: Sequence[Dim]) -> AffineIndices:
    """Return coordinates as positions in the flattened data."""
    start: Dim = 0
    steps: tuple[Dim, ...] = (0,) * len(columns[0].strides)
    for column, size in zip(columns, sizes, strict=True):
        start = start * size + column.start
        steps = tuple(step * size + more for step, more in zip(steps, column.strides, strict=True))
    return AffineIndices(columns[0].shape, start, steps)


# -- conditions that always hold ---------------------------------------------------------------------------------------


def eliminate_true_conditions(graph: Graph) -> Iterator[Patch]:
    """Drop operands of an And that always hold; one that broadcasts the other operand, only if all readers broadcast,
    too."""
    for vertex in sorted(graph.vertices_with_op("And")):
        if vertex not in graph or graph[vertex].domain != "":
            continue
        left, right = graph[vertex].inputs
        for always, other in ((left, right), (right, left)):
            patch = (
                _replace_by_operand(graph, vertex, other)
                if other is not None and _is_always_true(graph, always)
                else None
            )
            if patch is not None:
                yield patch
                break


def _is_always_true(graph: Graph, value: Value | None) -> bool:
    constant = graph.constant(value)
    if constant is not None:
        return constant.size <= MAX_GRID_ELEMENTS and bool(constant.numpy().all())
    node = None if value is None else graph[value.vertex]
    if node is None or node.domain != "" or node.op not in ("GreaterOrEqual", "LessOrEqual"):
        return False
    larger, smaller = node.inputs if node.op == "GreaterOrEqual" else node.inputs[::-1]
    above, below = find_affine_indices(graph, larger), find_affine_indices(graph, smaller)
    if above is None or below is None or not below.is_uniform:
        return False
    return AffineIndices((), above.start - below.start, above.strides).is_nonnegative


def _replace_by_operand(graph: Graph, vertex: int, other: Value) -> Patch | None:
    """Return the patch that puts a value in the place of a vertex that has its elements, perhaps broadcast.

    None where the broadcasting shows: not each of those who read the vertex broadcasts to the shape that it had.
    """
    own = graph.shape(other)
    if own is None:
        return None
    mapping = {Value(vertex): other}
    shapes: dict[Value, Shape] = {Value(vertex): own}
    new: dict[int, Node] = {}
    waiting = [vertex]
    while waiting:
        changed = waiting.pop()
        if graph.shape(Value(changed)) in (None, shapes[Value(changed)]):
            continue
        if Value(changed) in graph.outputs:
            return None
        for reader in graph.readers(changed):
            node = graph[reader]
            result = graph.tensor_type(Value(reader))
            shape = _broadcast_shape(graph, node, shapes)
            if result is None or shape is None or len(node.names) != 1:
                return None
            if shapes.get(Value(reader)) != shape:
                shapes[Value(reader)] = shape
                new[reader] = replace(
                    node.with_inputs_replaced(mapping), types=(TensorType(result.dtype, shape),), contents=()
                )
                waiting.append(reader)
    return replace_values(graph, mapping, new)


def _broadcast_shape(graph: Graph, node: Node, shapes: Mapping[Value, Shape]) -> Shape | None:
    """Return the shape of an elementwise result, given new shapes for some of the operands."""
    if extra_operands(node.op, node.domain) is not ExtraOperands.MULTIDIRECTIONAL:
        return None
    operands: list[Shape] = []
    for value in node.inputs:
        shape = graph.shape(value)
        if value is None or shape is None:
            return None
        operands.append(shapes.get(value, shape))
    found = broadcast_partial_shapes(operands)
    known = tuple(size for size in found if size is not None)
    return known if len(known) == len(found) else None
