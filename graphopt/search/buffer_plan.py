"""Estimate of the memory of a run: the buffers that ONNX Runtime plans for values, and where they peak.

The estimate is the liveness of values: those that lie in memory while a node runs, in the order in which ONNX Runtime
runs a graph. What kernels take inside and what the arena leaves unused it does not know, so the result is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from graphopt.ir.graph import Graph, Node, Value
from graphopt.operators.operator_classes import extra_operands, lookup_operator

OVERWRITING_KERNELS = frozenset({"Softmax", "LogSoftmax"})
"""Operators beside the elementwise ones whose kernels write their result over what they read."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that ONNX Runtime plans for values of one size, one after the other.

    It stays allocated from the first of them to the last: so the scores of the first layer of a transformer lie in
    memory, unused, until the last layer has had its own there.
    """

    nbytes: int
    first: int
    """Place in the order of execution at which it is allocated."""
    last: int
    """Place of the last node that reads it."""
    values: list[Value]


@dataclass(frozen=True, slots=True)
class LivenessPeak:
    """The node of a graph at which the buffers in memory are the largest together."""

    vertex: int
    nbytes: int
    buffers: tuple[Buffer, ...]
    """The buffers that lie in memory while it runs, the largest first."""
    planned: Sequence[Buffer]
    """All buffers of the graph."""
    totals: Sequence[int]
    """Bytes in memory at each node, in the order of execution."""

    def values_alike(self, buffer: Buffer, above: float, *, margin: float = 0.0) -> list[Value]:
        """Return the values of all buffers of about the size of one, up to a margin as a part of it, that lie in memory
        where there are more than some bytes in all: equal layers have equal peaks."""
        crowded = [0, *accumulate(total > above for total in self.totals)]
        return [
            value
            for each in self.planned
            if abs(each.nbytes - buffer.nbytes) <= margin * buffer.nbytes
            and crowded[min(each.last + 1, len(self.totals))] > crowded[each.first]
            for value in each.values
        ]


def value_bytes(graph: Graph, value: Value) -> int:
    """Return the bytes of a tensor of known sizes; 0 for other values."""
    type_ = graph.tensor_type(value)
    return type_.size * type_.dtype.bits // 8 if type_ is not None and isinstance(type_.size, int) else 0


def sum_over_spans(spans: Iterable[tuple[int, int, int]], count: int) -> list[int]:
    """Return the sum at each of `count` places of numbers that each count from a first place to a last."""
    changes = [0] * (count + 1)
    for number, first, last in spans:
        changes[first] += number
        changes[min(last + 1, count)] -= number
    return list(accumulate(changes))[:count]


def execution_order(graph: Graph) -> list[int]:
    """Return the nodes in the order in which ONNX Runtime runs them: from the outputs back, depth first, of the nodes
    that one reads the one first that stands last in the file."""
    places = {vertex: place for place, vertex in enumerate(graph.topological_order())}
    order: list[int] = []
    seen: set[int] = set()
    leaves = (vertex for vertex, _ in graph.nodes() if not graph.fan_out(vertex))
    stack = [(vertex, False) for vertex in sorted(leaves, key=places.__getitem__)]
    while stack:
        vertex, is_ready = stack.pop()
        if is_ready:
            order.append(vertex)
        elif vertex not in seen:
            seen.add(vertex)
            stack.append((vertex, True))
            sources = (source for source in graph.sources(vertex) if not graph[source].is_internal)
            stack += [(source, False) for source in sorted(sources, key=places.__getitem__) if source not in seen]
    return order


def plan_buffers(graph: Graph, order: Sequence[int], *, is_reusing: bool = True) -> list[Buffer]:
    """Return the memory that ONNX Runtime plans for the values that nodes make.

    A view lies where what it looks at lies; some kernels write over an operand of the same size that nothing reads
    after them; and a value takes a free buffer of its size, whose lifetime that extends, unless the session is told to
    reuse none (`enable_mem_reuse`).
    """
    owner = view_owners(graph, order, set(order))
    last = {value: places[-1] for value, places in read_places(graph, order, owner).items()}
    buffers: list[Buffer] = []
    lying: dict[Value, Buffer] = {}
    free: dict[int, list[Buffer]] = {}
    for place, vertex in enumerate(order):
        node = graph[vertex]
        for value in graph.values_of(vertex):
            if value in owner:
                continue
            nbytes, end = value_bytes(graph, value), last.get(value, place)
            operands = (owner.get(each, each) for each in node.operands) if _may_overwrite(node) else iter(())
            over = next((each for each in operands if each in lying and last[each] == place), None)
            if over is not None and lying[over].nbytes == nbytes:
                buffer = lying.pop(over)
            elif is_reusing and free.get(nbytes):
                buffer = free[nbytes].pop()
            else:
                buffer = Buffer(nbytes, place, end, [])
                buffers.append(buffer)
            buffer.values.append(value)
            buffer.last = max(buffer.last, end)
            lying[value] = buffer
        for value in [value for value in lying if last.get(value, place) <= place]:
            buffer = lying.pop(value)
            free.setdefault(buffer.nbytes, []).append(buffer)
    return buffers


def view_owners(graph: Graph, order: Sequence[int], owners: Collection[int] | None = None) -> dict[Value, Value]:
    """Return the values that views look at, through other views, too; only those of some vertices if they are given."""
    found: dict[Value, Value] = {}
    for vertex, node in ((vertex, graph[vertex]) for vertex in order):
        first = node.inputs[0] if node.inputs and lookup_operator(node.op, node.domain).is_view else None
        if first is not None and (owners is None or first.vertex in owners):
            found[Value(vertex)] = found.get(first, first)
    return found


def read_places(graph: Graph, order: Sequence[int], owners: Mapping[Value, Value]) -> dict[Value, list[int]]:
    """Return the places at which each value is read, in order, as it is or through a view; outputs are read last."""
    found: dict[Value, list[int]] = {}
    for place, vertex in enumerate(order):
        for value in graph[vertex].operands:
            found.setdefault(owners.get(value, value), []).append(place)
    for value in graph.outputs:
        found.setdefault(owners.get(value, value), []).append(len(order))
    return found


def _may_overwrite(node: Node) -> bool:
    return extra_operands(node.op, node.domain) is not None or node.op in OVERWRITING_KERNELS


def liveness_peak(graph: Graph, *, is_reusing: bool = True) -> LivenessPeak | None:
    """Return where a run takes the most memory; None for a graph without nodes. Inputs and weights do not count: they
    lie in memory all the time."""
    order = execution_order(graph)
    if not order:
        return None
    buffers = plan_buffers(graph, order, is_reusing=is_reusing)
    totals = sum_over_spans(((each.nbytes, each.first, each.last) for each in buffers), len(order))
    place = totals.index(max(totals))
    live = (buffer for buffer in buffers if buffer.first <= place <= buffer.last)
    largest = tuple(sorted(live, key=lambda buffer: buffer.nbytes, reverse=True))
    return LivenessPeak(order[place], totals[place], largest, buffers, totals)
