"""Indices that count: exporters spell a view of a mask as a gather at indices that are all of its positions.

A `Grid` is what an integer tensor holds if its elements grow evenly along every axis: `Range`, and what views,
broadcasts, sums and products make of it, as their denotations say. A Gather at a grid that counts 0, 1, 2, … in the
order of its own elements copies its data in their order, so it is a view; and views of views are one Unsqueeze or
Squeeze, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import mul

import numpy as np

from graphopt.base import symbolic, tensors
from graphopt.base.integers import forget
from graphopt.base.rebuilding import Substitution, only_symbol, rebuild
from graphopt.base.sizes import Dim, lower_bound, product
from graphopt.base.translation import NotKnown
from graphopt.base.types import DType, Shape, TensorType
from graphopt.ir import ops
from graphopt.ir.edit import constant_node, replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators.classes import UNKNOWN, beside, entry
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
        return all((lower_bound(number) or 0) >= 0 and lower_bound(number) is not None for number in self._numbers)

    @property
    def _numbers(self) -> tuple[Dim, ...]:
        return self.start, *self.steps

    def moved(self, axes: Sequence[int | None], shape: Shape) -> Grid:
        """With other axes: each an axis of this grid, or None for a new one along which nothing changes."""
        return Grid(shape, self.start, tuple(0 if axis is None else self.steps[axis] for axis in axes))


def grid(graph: Graph, value: Value | None, depth: int = DEEPEST) -> Grid | None:
    """Return the grid that a value is; None where it is not known to be one."""
    type_ = graph.tensor_type(value)
    if value is None or type_ is None or type_.shape is None or not type_.dtype.is_integer or depth == 0:
        return None
    elements = graph.known_contents(value)
    if elements is not None and len(elements) == 1:
        return Grid(type_.shape, elements[0], (0,) * len(type_.shape))
    constant = graph.constant(value)
    if constant is not None:
        return _of_constant(constant)
    node = graph[value.vertex]
    operator = entry(node.op, node.domain)
    if operator is UNKNOWN or value.output or type_.dtype is not DType.INT64:  # others may wrap around
        return None
    if operator.is_view:
        return _view(grid(graph, node.inputs[0], depth - 1), type_.shape)
    return _computed(graph, node, type_.shape, depth - 1)


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
    forget()
    asked = _OnGrids(question, grids=grids, names=names)
    try:
        return asked.evenly(denote(asked)[0], shape)
    except (NotKnown, Undefined, Unsupported, ZeroDivisionError):
        return None


# -- views -------------------------------------------------------------------------------------------------------------


def simplify_views(graph: Graph) -> Iterator[Patch]:
    """Put one Unsqueeze or Squeeze in the place of gathers that keep the order, and of views of them.

    Equal wherever the gather is defined: an index that counts is never out of range where it counts to the end.
    """
    order = graph.topological()
    bases = _bases(graph, order)
    for vertex in reversed(order):  # what is changed here is the base of nothing that comes before it
        if vertex in bases and vertex in graph:
            patch = _as_view(graph, vertex, bases[vertex])
            if patch is not None:
                yield patch


def _bases(graph: Graph, order: Sequence[int]) -> dict[int, Value]:
    """Return what vertices are views of, where a gather that keeps the order lies in between."""
    sources: dict[int, Value] = {}
    gathered: dict[int, Value] = {}
    for vertex in order:
        node = graph[vertex]
        gather = node.op in ("Gather", "GatherND") and node.domain == "" and _keeps_order(graph, node)
        view = entry(node.op, node.domain).is_view
        source = node.inputs[0] if gather or view else None
        if source is not None:
            sources[vertex] = sources.get(source.vertex, source)
            if gather or source.vertex in gathered:
                gathered[vertex] = sources[vertex]
    return gathered


def _keeps_order(graph: Graph, node: Node) -> bool:
    """Return whether a Gather or GatherND takes all elements in their order."""
    k = Operands(graph, node)
    data, indices, axis = k.shape(0), node.inputs[1], k.integer("axis")
    if data is None:
        return False
    if node.op == "Gather":
        if not -len(data) <= axis < len(data):
            return False
        found = grid(graph, indices)
        taken: Sequence[Dim] = (data[axis],)
    else:
        columns = _columns(graph, indices) if not k.integer("batch_dims") else None
        if columns is None or len(columns) > len(data) or not all(column.is_not_negative for column in columns):
            return False
        taken = data[: len(columns)]
        found = _combined(columns, taken)
    return found is not None and found.counts and product(found.shape) == product(taken)


def _columns(graph: Graph, indices: Value | None) -> list[Grid] | None:
    """Return the coordinates that GatherND reads along the last axis of its indices, a grid for each."""
    type_, constant = graph.tensor_type(indices), graph.constant(indices)
    if indices is None or type_ is None or not type_.shape:
        return None
    columns: list[Grid | None]
    if constant is not None:
        if constant.size > LARGEST:
            return None
        columns = [_of_constant(Tensor.of(part)) for part in np.moveaxis(constant.numpy(), -1, 0)]
    else:
        node = graph[indices.vertex]
        rank = len(type_.shape)
        if (
            node.op != "Concat"
            or node.domain != ""
            or normalised(Operands(graph, node).integer("axis"), rank) != rank - 1
        ):
            return None
        parts = [grid(graph, value) for value in node.inputs]
        columns = [
            None if part is None or part.shape[-1] != 1 else Grid(part.shape[:-1], part.start, part.steps[:-1])
            for part in parts
        ]
    known = [column for column in columns if column is not None]
    return known if known and len(known) == len(columns) else None


def _combined(columns: Sequence[Grid], sizes: Sequence[Dim]) -> Grid:
    """Coordinates as positions in the flattened data."""
    start: Dim = 0
    steps: tuple[Dim, ...] = (0,) * len(columns[0].steps)
    for column, size in zip(columns, sizes, strict=True):
        start = start * size + column.start
        steps = tuple(step * size + more for step, more in zip(steps, column.steps, strict=True))
    return Grid(columns[0].shape, start, steps)


def _as_view(graph: Graph, vertex: int, base: Value) -> Patch | None:
    """Return the patch that makes a vertex what it is a view of, with axes of size 1 made or dropped."""
    own, other = graph.tensor_type(Value(vertex)), graph.tensor_type(base)
    if own is None or other is None or own.shape is None or other.shape is None:
        return None
    if own.shape == other.shape:
        return replace_values(graph, {Value(vertex): base})
    longer, shorter = sorted((own.shape, other.shape), key=len, reverse=True)
    axes = _extra_ones(longer, shorter)
    if axes is None:
        return None
    op = "Unsqueeze" if longer == own.shape else "Squeeze"
    fresh = graph.new_vertex()
    node = graph[vertex]
    constant = constant_node(Tensor.of(np.array(axes, np.int64)), graph.new_name(f"{node.names[0]}/axes"))
    view = replace(node, op=op, version=ops.newest(op), inputs=(base, Value(fresh)), attrs={})
    return replace_values(graph, {}, {vertex: view, fresh: constant})


def _extra_ones(longer: Shape, shorter: Shape) -> list[int] | None:
    """Return the axes of size 1 that the longer shape has more than the shorter; None if that is not the difference."""
    extra: list[int] = []
    rest = list(shorter)
    for axis, size in enumerate(longer):
        if rest and rest[0] == size:
            rest.pop(0)
        elif size == 1:
            extra.append(axis)
        else:
            return None
    return extra if not rest and extra else None


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
    type_ = graph.tensor_type(other)
    if type_ is None or type_.shape is None:
        return None
    mapping = {Value(vertex): other}
    shapes: dict[Value, Shape] = {Value(vertex): type_.shape}
    new: dict[int, Node] = {}
    waiting = [vertex]
    while waiting:
        changed = waiting.pop()
        old = graph.tensor_type(Value(changed))
        if old is None or old.shape is None or old.shape == shapes[Value(changed)]:
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
        type_ = graph.tensor_type(value)
        if value is None or type_ is None or type_.shape is None:
            return None
        operands.append(shapes.get(value, type_.shape))
    found = broadcast(operands)
    known = tuple(size for size in found if size is not None)
    return known if len(known) == len(found) else None
