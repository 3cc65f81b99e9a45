"""A node and the known facts about its inputs, for inference and for the passes that read operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.broadcasting import broadcast_shapes, broadcast_sizes
from graphopt.expr.dims import Dim, as_minimum, lower_bound
from graphopt.ir.graph import Attribute, Graph, Node
from graphopt.ir.types import Shape
from graphopt.operators.node_facts import get_attribute

MAX_SHAPE_ELEMENTS = 256
"""Elements above which a tensor is no shape, and its contents are not tracked."""

PartialShape: TypeAlias = "tuple[Dim | None, ...]"
"""A shape, some sizes of which may be unknown."""

MAX_SCALES = 16
"""Elements up to which a constant of floats may be a list of scales."""


@dataclass(frozen=True, slots=True)
class NodeOperands:
    """A node and the known facts about its inputs."""

    graph: Graph
    node: Node

    def __len__(self) -> int:
        return len(self.node.inputs)

    def is_present(self, index: int) -> bool:
        return index < len(self) and self.node.inputs[index] is not None

    def dtype(self, index: int) -> DType | None:
        found = self.graph.tensor_type(self.node.inputs[index]) if index < len(self) else None
        return None if found is None else found.dtype

    def shape(self, index: int) -> Shape | None:
        return self.graph.shape(self.node.inputs[index]) if index < len(self) else None

    def contents(self, index: int) -> tuple[Dim, ...] | None:
        """Return the elements of an integer or boolean tensor of rank <= 1."""
        value = self.node.inputs[index] if index < len(self) else None
        constant = self.graph.constant(value)
        if constant is not None and constant.dtype is DType.BOOL and len(constant.shape) <= 1 and constant.is_small:
            return tuple(int(element) for element in constant.numpy().ravel())
        return self.graph.known_contents(value)

    def float_contents(self, index: int) -> tuple[float, ...] | None:
        """Return the elements of a short constant of floats, if all are finite."""
        constant = self.graph.constant(self.node.inputs[index])
        if (
            constant is None
            or not constant.dtype.is_float
            or not constant.size <= MAX_SCALES
            or len(constant.shape) > 1
        ):
            return None
        found = tuple(float(element) for element in constant.numpy().ravel())
        return found if all(map(isfinite, found)) else None

    def int_contents(self, index: int) -> tuple[int, ...] | None:
        """Return the elements of an input if they are plain numbers."""
        return static_sizes(self.contents(index))

    def optional_int_contents(self, index: int, default: Sequence[int]) -> tuple[int, ...] | None:
        """Return the elements of an input that may be absent."""
        return self.int_contents(index) if self.is_present(index) else tuple(default)

    def attribute(self, name: str) -> Attribute | None:
        return get_attribute(self.node, self.graph, name)

    def int_attribute(self, name: str, default: int = 0) -> int:
        found = self.attribute(name)
        return found if isinstance(found, int) else default


def static_sizes(elements: Iterable[Dim | None] | None) -> tuple[int, ...] | None:
    """Return the sizes if all are plain numbers."""
    elements = None if elements is None else tuple(elements)
    if elements is None or not all(isinstance(element, int) for element in elements):
        return None
    return tuple(element for element in elements if isinstance(element, int))


def broadcast_dim(a: Dim | None, b: Dim | None) -> Dim | None:
    """Return the size of an axis that two operands share, None where it depends on which of them is 1."""
    return broadcast_sizes(_join_dims, a, b)


def _join_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    for one, other in ((a, b), (b, a)):
        if one is not None and (lower_bound(one) or 0) >= 2:
            return one
        if one == 0:
            return 0
        parts = as_minimum(other)
        if parts and one in parts and (lower_bound(parts[one == parts[0]]) or 0) >= 1:
            return one  # n with min(n, c), c >= 1: equal; or n > c, which goes together only for c = 1
    return None


def broadcast_partial_shapes(shapes: Sequence[PartialShape]) -> PartialShape:
    """Return the shape of an elementwise operator's result."""
    return broadcast_shapes(shapes, _join_dims)


def normalize_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis
