"""A node and what is known of the values that it reads, for inference and for the passes that read operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import TypeAlias

from graphopt.base.sizes import Dim, least, lower_bound, minimum_of
from graphopt.base.types import DType, Shape
from graphopt.ir import ops
from graphopt.ir.graph import Attribute, Graph, Node

LIMIT = 256
"""Longer tensors are not shapes, and are left alone."""

Open: TypeAlias = "tuple[Dim | None, ...]"
"""A shape with sizes that are not known."""

FEW = 16
"""Elements up to which a constant of floats may be a list of scales."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A node and what is known of the values it reads."""

    graph: Graph
    node: Node

    def __len__(self) -> int:
        return len(self.node.inputs)

    def present(self, index: int) -> bool:
        return index < len(self) and self.node.inputs[index] is not None

    def dtype(self, index: int) -> DType | None:
        found = self.graph.tensor_type(self.node.inputs[index]) if index < len(self) else None
        return None if found is None else found.dtype

    def shape(self, index: int) -> Shape | None:
        found = self.graph.tensor_type(self.node.inputs[index]) if index < len(self) else None
        return None if found is None else found.shape

    def contents(self, index: int) -> tuple[Dim, ...] | None:
        """The elements of an integer or boolean tensor of rank <= 1."""
        value = self.node.inputs[index] if index < len(self) else None
        constant = self.graph.constant(value)
        if constant is not None and constant.dtype is DType.BOOL and len(constant.shape) <= 1 and constant.is_small:
            return tuple(int(element) for element in constant.numpy().ravel())
        return self.graph.known_contents(value)

    def reals(self, index: int) -> tuple[float, ...] | None:
        """The elements of a constant of floats with few of them, where all are finite."""
        constant = self.graph.constant(self.node.inputs[index])
        if constant is None or not constant.dtype.is_float or not constant.size <= FEW or len(constant.shape) > 1:
            return None
        found = tuple(float(element) for element in constant.numpy().ravel())
        return found if all(map(isfinite, found)) else None

    def ints(self, index: int) -> tuple[int, ...] | None:
        """The elements where they are plain numbers."""
        return plain(self.contents(index))

    def optional_ints(self, index: int, default: Sequence[int]) -> tuple[int, ...] | None:
        """The elements of an input that may be absent."""
        return self.ints(index) if self.present(index) else tuple(default)

    def attribute(self, name: str) -> Attribute | None:
        return ops.attribute(self.node, self.graph, name)

    def integer(self, name: str, default: int = 0) -> int:
        found = self.attribute(name)
        return found if isinstance(found, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        found = self.attribute(name)
        return tuple(i for i in found if isinstance(i, int)) if isinstance(found, tuple) else None


def plain(elements: Iterable[Dim | None] | None) -> tuple[int, ...] | None:
    """The sizes if all are plain numbers."""
    elements = None if elements is None else tuple(elements)
    if elements is None or not all(isinstance(element, int) for element in elements):
        return None
    return tuple(element for element in elements if isinstance(element, int))


def broadcast_size(a: Dim | None, b: Dim | None) -> Dim | None:
    """The size of an axis that two operands share, None where it depends on which of them is 1."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    for one, other in ((a, b), (b, a)):
        if one is not None and (lower_bound(one) or 0) >= 2:
            return one
        if one == 0:
            return 0
        parts = minimum_of(other)
        if parts and one in parts and (lower_bound(parts[one == parts[0]]) or 0) >= 1:
            return one  # n with min(n, c), c >= 1: equal; or n > c, which goes together only for c = 1
    return None


def broadcast(shapes: Sequence[Open]) -> Open:
    """The shape of an elementwise operator's result."""
    result: Open = ()
    for shape in shapes:
        pairs = zip_longest(reversed(result), reversed(shape), fillvalue=1)
        result = tuple(reversed([broadcast_size(a, b) for a, b in pairs]))
    return result


def normalised(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """The indices that Slice takes of an axis; unlike in Python, a start before the first one is the first one.

    As in ONNX Runtime, an end in `ENDLESS` is beyond the axis in either direction.
    """
    end = -size - 1 if step < 0 and end in ENDLESS else end
    start, end = normalised(start, size), normalised(end, size)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def slice_size(size: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """How many indices Slice takes of an axis; None where that cannot be told."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(slice_range(size, start, end, step))
    if step < 0:
        backwards = start == -1 and isinstance(end, int) and (end <= -_ENDLESS or end in ENDLESS)
        return (size + (-step - 1)) // -step if backwards else None
    first, last = _clamped(start, size), _clamped(end, size)
    if first is None or last is None:
        return None
    return (last - least(last, first) + (step - 1)) // step


ENDLESS = (2**31 - 1, 2**63 - 1)
"""Ends of Slice that ONNX Runtime takes for "to the end" also where it goes backwards, against the ONNX text."""
_ENDLESS = 2**31 - 1
"""What exporters write for "to the end", or more: no axis is that long."""


def _clamped(index: Dim, size: Dim) -> Dim | None:
    """An index of Slice, counted from the front and kept within the axis."""
    if isinstance(index, int) and abs(index) >= _ENDLESS:
        return size if index > 0 else 0
    bound = lower_bound(index)
    if bound is not None and bound >= 0:
        return least(index, size)
    if (lower_bound(-index) or 0) >= 1:
        return size - least(size, -index)
    return None


def slices(k: Operands) -> list[tuple[int, Dim, Dim, int]] | None:
    """Axis, start, end and step of every axis that a Slice names; None where they are not known."""
    shape, starts, ends = k.shape(0), k.contents(1), k.contents(2)
    if shape is None or starts is None or ends is None:
        return None
    axes = k.optional_ints(3, range(len(starts)))
    steps = k.optional_ints(4, (1,) * len(starts))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):  # a node that cannot be
        return None
    return [(normalised(a, len(shape)), s, e, t) for a, s, e, t in zip(axes, starts, ends, steps, strict=True)]
