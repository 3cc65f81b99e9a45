"""Indices that count: exporters spell a view of a mask as a gather at indices that are all of its positions.

A `Grid` is what an integer tensor holds if its elements grow evenly along every axis: `Range`, and what views,
broadcasts, sums and products make of it, as their denotations say. Which count 0, 1, 2, … in the order of their own
elements, rules ask (`fn.is_arange`); which conditions on them always hold, a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul

import numpy as np

from graphopt.base import symbolic, tensors
from graphopt.base.integers import fresh_integers
from graphopt.base.rebuilding import Substitution, only_symbol, rebuild
from graphopt.base.sizes import Dim, lower_bound, product
from graphopt.base.translation import NotKnown
from graphopt.base.types import DType, Shape, TensorType
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators.classes import beside, entry
from graphopt.operators.elementwise import Beside
from graphopt.operators.known import ModelNode, Numbered, question_of
from graphopt.operators.node import Undefined, Unsupported
from graphopt.operators.operands import Operands, broadcast, normalised
from graphopt.operators.semantics import denote

LARGEST = 1 << 20
"""Elements of a constant above which it is not looked at."""
DEEPEST = 32
"""Operators that are looked through: more are not found between the positions and their use."""


@dataclass(frozen=True, slots=True)
class Grid:
    """An integer tensor whose element at index `i` is `start + Σ steps[a]·i[a]`."""

    shape: Shape
    start: Dim
    steps: tuple[Dim, ...]

    @property
    def is_uniform(self) -> bool:
        return all(step == 0 for step in self.steps)

    @property
    def counts(self) -> bool:
        """Whether its elements are 0, 1, 2, … in their order."""
        if self.start != 0:
            return False
        expected: Dim = 1
        for size, step in zip(reversed(self.shape), reversed(self.steps), strict=True):
            if size != 1 and step != expected:
                return False
            expected = size * expected
        return True

    @property
    def is_not_negative(self) -> bool:
        return all(map(_is_natural, (self.start, *self.steps)))

    def lies_within(self, size: Dim) -> bool:
        """Whether its elements are indices of so many elements."""
        largest = self.start + sum(step * (length - 1) for step, length in zip(self.steps, self.shape, strict=True))
        return self.is_not_negative and _is_natural(size - 1 - largest)

    def moved(self, axes: Sequence[int | None], shape: Shape) -> Grid:
        """With other axes: each an axis of this grid, or None for a new one along which nothing changes."""
        return Grid(shape, self.start, tuple(0 if axis is None else self.steps[axis] for axis in axes))


def _is_natural(number: Dim) -> bool:
    least = lower_bound(number)
    return least is not None and least >= 0


def grid(graph: Graph, value: Value | None, depth: int = DEEPEST) -> Grid | None:
    """Return the grid that a value is; None where it is not known to be one."""
    shape, dtype = graph.shape(value), graph.dtype(value)
    if value is None or shape is None or not dtype.is_integer or depth == 0:
        return None
    elements = graph.known_contents(value)
    if elements is not None and len(elements) == 1:
        return Grid(shape, elements[0], (0,) * len(shape))
    constant = graph.constant(value)
    if constant is not None:
        return _of_constant(constant)
    node = graph[value.vertex]
    operator = entry(node.op, node.domain)
    if not operator.is_denoted or value.output or dtype is not DType.INT64:  # others may wrap around
        return None
    if operator.is_view:
        return _view(grid(graph, node.inputs[0], depth - 1), shape)
    return _computed(graph, node, shape, depth - 1)


def _of_constant(tensor: Tensor) -> Grid | None:
    if not 0 < tensor.size <= LARGEST:
        return None
    array = tensor.numpy().astype(np.int64)
    rank, start = array.ndim, int(array.flat[0])
    steps = tuple(
        int(np.moveaxis(array, axis, 0)[min(1, array.shape[axis] - 1)].flat[0]) - start for axis in range(rank)
    )
    even = np.full(array.shape, start)
    for axis, (size, step) in enumerate(zip(array.shape, steps, strict=True)):
        even += step * np.arange(size).reshape([-1 if a == axis else 1 for a in range(rank)])
    return Grid(tensor.shape, start, steps) if np.array_equal(array, even) else None


def _view(own: Grid | None, shape: Shape) -> Grid | None:
    """Return the grid of a view, the same elements in their order: axes of size 1 come and go."""
    if own is None:
        return None
    kept = [axis for axis, size in enumerate(own.shape) if size != 1]
    if [own.shape[axis] for axis in kept] != [size for size in shape if size != 1]:
        return None
    rest = iter(kept)
    return own.moved([None if size == 1 else next(rest) for size in shape], shape)


@dataclass(frozen=True)
class _OnGrids(ModelNode):
    """What a denotation sees of a node that reads grids."""

    grids: Sequence[Grid | None] = ()
    names: Numbered = field(default_factory=Numbered)

    def input(self, position: int) -> tensors.Tensor:
        given, own = super().input(position), self.grids[position]
        if own is None:
            raise Unsupported(f"{self.op} of what is no grid")
        start, *steps = (self.translation.inward(self.names.there(number)) for number in (own.start, *own.steps))
        return replace(given, at=lambda index: symbolic.integer(sum(map(mul, index, steps), start)))

    def evenly(self, output: tensors.Tensor, shape: Shape) -> Grid | None:
        """Return the grid that an output is, if its elements grow evenly."""
        index, _ = tensors.bind(output.shape)
        element = tensors.as_size(output.at(index))
        if element is None:
            return None
        places = [only_symbol(i) for i in index]
        at_zero = Substitution(dict.fromkeys(places, 0))
        start = rebuild(element, at_zero)
        steps = [rebuild(element, Substitution({**dict.fromkeys(places, 0), place: 1})) - start for place in places]
        if element - sum(map(mul, index, steps), start) != 0:
            return None
        first, *others = (self.names.back(self.translation.outward(number)) for number in (start, *steps))
        return Grid(shape, first, tuple(others))


def _computed(graph: Graph, node: Node, shape: Shape, depth: int) -> Grid | None:
    """Return the grid that a denotation makes of grids."""
    names = Numbered()
    question = question_of(Operands(graph, node), names)
    grids = [grid(graph, value, depth) for value in node.inputs]
    with fresh_integers():
        asked = _OnGrids(question, grids=grids, names=names)
        try:
            return asked.evenly(denote(asked)[0], shape)
        except (NotKnown, Undefined, Unsupported, ZeroDivisionError):
            return None


# -- indices that count ------------------------------------------------------------------------------------------------


def counts(graph: Graph, value: Value, sizes: Shape | None = None) -> bool:
    """Return whether a value that is computed is known to count, as `fn.is_arange` says."""
    if sizes is None:
        found = grid(graph, value)
        return found is not None and found.counts
    columns = _columns(graph, value)
    if len(columns) != len(sizes) or not all(
        column.lies_within(size) for column, size in zip(columns, sizes, strict=True)
    ):
        return False
    found = _combined(columns, sizes)
    return found.counts and product(found.shape) == product(sizes)


def _columns(graph: Graph, value: Value) -> list[Grid]:
    """Return the places that a Concat joins along its last axis, a grid for each number; none where one is no grid."""
    node, rank = graph[value.vertex], len(graph.shape(value) or ())
    if (node.op, node.domain) != ("Concat", "") or not rank:
        return []
    parts = [grid(graph, part) for part in node.inputs]
    known = [part for part in parts if part is not None and part.shape[-1] == 1]
    if len(known) < len(parts) or normalised(Operands(graph, node).integer("axis"), rank) != rank - 1:
        return []
    return [Grid(part.shape[:-1], part.start, part.steps[:-1]) for part in known]


def _combined(columns: Sequence[Grid], sizes: Sequence[Dim]) -> Grid:
    """Coordinates as positions in the flattened data."""
    start: Dim = 0
    steps: tuple[Dim, ...] = (0,) * len(columns[0].steps)
    for column, size in zip(columns, sizes, strict=True):
        start = start * size + column.start
        steps = tuple(step * size + more for step, more in zip(steps, column.steps, strict=True))
    return Grid(columns[0].shape, start, steps)


# -- conditions that always hold ---------------------------------------------------------------------------------------


def eliminate_true_conditions(graph: Graph) -> Iterator[Patch]:
    """Drop what always holds from an And, also where it broadcasts the other operand, if those who read it do that."""
    for vertex in sorted(graph.with_op("And")):
        if vertex not in graph or graph[vertex].domain != "":
            continue
        left, right = graph[vertex].inputs
        for always, other in ((left, right), (right, left)):
            patch = _replaced(graph, vertex, other) if other is not None and _always_holds(graph, always) else None
            if patch is not None:
                yield patch
                break


def _always_holds(graph: Graph, value: Value | None) -> bool:
    constant = graph.constant(value)
    if constant is not None:
        return constant.size <= LARGEST and bool(constant.numpy().all())
    node = None if value is None else graph[value.vertex]
    if node is None or node.domain != "" or node.op not in ("GreaterOrEqual", "LessOrEqual"):
        return False
    larger, smaller = node.inputs if node.op == "GreaterOrEqual" else node.inputs[::-1]
    above, below = grid(graph, larger), grid(graph, smaller)
    if above is None or below is None or not below.is_uniform:
        return False
    return Grid((), above.start - below.start, above.steps).is_not_negative


def _replaced(graph: Graph, vertex: int, other: Value) -> Patch | None:
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
                new[reader] = replace(node.reading(mapping), types=(TensorType(result.dtype, shape),), contents=())
                waiting.append(reader)
    return replace_values(graph, mapping, new)


def _broadcast_shape(graph: Graph, node: Node, shapes: Mapping[Value, Shape]) -> Shape | None:
    """Return the shape of what an elementwise operator makes of values of which some have another shape now."""
    if beside(node.op, node.domain) is not Beside.EQUALS:
        return None
    operands: list[Shape] = []
    for value in node.inputs:
        shape = graph.shape(value)
        if value is None or shape is None:
            return None
        operands.append(shapes.get(value, shape))
    found = broadcast(operands)
    known = tuple(size for size in found if size is not None)
    return known if len(known) == len(found) else None
