"""Places where a graph can be cut in two: the order of its nodes, what crosses between two, and the weights they read.

A cut is a number of nodes of the order: those before it are computed first. What is computed from weights alone belongs
to no side: like a weight, it is wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from graphopt.ir.graph import Graph, Value
from graphopt.ir.schemas import is_deterministic
from graphopt.ir.types import TensorType, Type
from graphopt.search.buffer_plan import liveness_peak, sum_over_spans, value_bytes

SENT_SHARE = 0.01
"""Part of the bytes of the weights that it is computed from up to which a value is sent, rather than computed again."""


@dataclass(frozen=True, eq=False)
class CuttableGraph:
    """A graph whose nodes have an order in which they can be cut into stages; an output depends on each of them."""

    graph: Graph
    sized: Graph
    """The same vertices with numbers for the open sizes at which it is measured."""

    @cached_property
    def rank(self) -> dict[int, int]:
        """The place of each vertex in the order of the file."""
        return {vertex: place for place, vertex in enumerate(self.graph.topological_order())}

    @cached_property
    def copied(self) -> frozenset[int]:
        """The nodes that are computed from weights alone, in each stage that reads them; not those that make little of
        large weights: what these make is sent."""
        weights: dict[int, frozenset[int]] = {}
        for vertex in self.rank:
            node = self.graph[vertex]
            if node.is_constant:
                weights[vertex] = frozenset([vertex])
            elif not node.is_internal and is_deterministic(node) and all(v.vertex in weights for v in node.operands):
                read = frozenset[int]().union(*(weights[value.vertex] for value in node.operands))
                made = sum(map(self.nbytes, self.graph.values_of(vertex)))
                if made > SENT_SHARE * sum(self.graph[each].weight_bytes for each in read):
                    weights[vertex] = read
        return frozenset(vertex for vertex in weights if not self.graph[vertex].is_constant)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The nodes that each belong to one stage, producers first, otherwise as in the file."""
        return tuple(v for v in self.rank if not self.graph[v].is_internal and v not in self.copied)

    def __len__(self) -> int:
        """Return the number of nodes that are spread over stages."""
        return len(self.order)

    @cached_property
    def place(self) -> dict[int, int]:
        """The place in the order of each node that is in it."""
        return {vertex: place for place, vertex in enumerate(self.order)}

    @cached_property
    def last_reader(self) -> dict[Value, int]:
        """The place of the last node that reads a value, for values made by nodes of the order."""
        found: dict[Value, int] = {}
        for place, vertex in enumerate(self.order):
            for value in self.graph[vertex].operands:
                if value.vertex in self.place:
                    found[value] = place
        return found

    def nbytes(self, value: Value) -> int:
        """Return the bytes of a tensor of known sizes; 0 for other values."""
        return value_bytes(self.sized, value)

    @cached_property
    def values_peak(self) -> int:
        """Bytes that the values of a run take at most, weights aside, by an estimate."""
        peak = liveness_peak(self.sized)
        return 0 if peak is None else peak.nbytes

    def values_across(self, cut: int) -> list[Value]:
        """Return the values that are made before a cut and read behind it, in the order in which they are made."""
        across = (value for value, last in self.last_reader.items() if self.place[value.vertex] < cut <= last)
        return sorted(across, key=lambda value: (self.place[value.vertex], value.output))

    @cached_property
    def bytes_across(self) -> list[int]:
        """Bytes of the values that cross each cut, from 0 to the number of nodes; unknown sizes count 0."""
        return self._sum_across(self.nbytes)

    @cached_property
    def possible_cuts(self) -> list[int]:
        """Cuts with nodes on both sides, across which only tensors go that NumPy knows."""
        hindrances = self._sum_across(lambda value: not can_be_sent(self.graph.value_type(value)))
        return [cut for cut in range(1, len(self)) if not hindrances[cut]]

    def _sum_across(self, number: Callable[[Value], int]) -> list[int]:
        """Return the sum over the values that cross each cut."""
        spans = ((number(value), self.place[value.vertex] + 1, last) for value, last in self.last_reader.items())
        return sum_over_spans(spans, len(self) + 1)

    def sources_of(self, vertices: Iterable[int]) -> set[int]:
        """Return the weights, and the nodes that are computed from them alone, that some nodes need."""
        found: set[int] = set()
        stack = [*vertices]
        while stack:
            for source in self.graph.sources(stack.pop()):
                if source not in found and (self.graph[source].is_constant or source in self.copied):
                    found.add(source)
                    stack.append(source)
        return found

    def weight_bytes(self, vertices: Iterable[int]) -> int:
        """Return the bytes of weights that some nodes need, each counted once, and of those in their bodies."""
        own = {*vertices}
        nodes = [self.graph[vertex] for vertex in own | self.sources_of(own)]
        return sum(node.weight_bytes for node in nodes)

    @cached_property
    def all_weight_bytes(self) -> int:
        """Bytes of the weights that nodes of the order need."""
        return self.weight_bytes(self.order)

    def running_weight_bytes(self, start: int) -> list[int]:
        """Return the bytes of weights that the first 0, 1, 2, … nodes behind a cut need together."""
        totals, held = [0], set[int]()
        for vertex in self.order[start:]:
            new = self.sources_of([vertex]) - held
            held |= new
            totals.append(totals[-1] + sum(self.graph[each].weight_bytes for each in (vertex, *new)))
        return totals


def can_be_sent(type_: Type | None) -> bool:
    """Return whether a value is a tensor of a type that NumPy has itself."""
    return isinstance(type_, TensorType) and type_.dtype != 0 and type_.dtype.numpy.isbuiltin == 1
