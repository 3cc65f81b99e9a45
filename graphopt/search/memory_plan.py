"""Parts in which a model is computed so that a run takes less memory: what is cut, along which axis, until it fits.

The estimate is the liveness of values: those that lie in memory while a node runs, in the order in which ONNX Runtime
runs a graph. What kernels take inside and what the arena leaves unused it does not know, so the result is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product

from graphopt.ir.graph import Graph, Node, Value
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule
from graphopt.language.terms import App
from graphopt.operators.operator_classes import extra_operands, lookup_operator
from graphopt.rewrite.simplify import Step, undo_steps
from graphopt.search.moves import Move, MoveNotApplicableError, SearchSpace, apply_move, find_matches_at
from graphopt.search.policy import SearchPolicy

# -- how much memory a run takes ---------------------------------------------------------------------------------------


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
    alike: Mapping[int, Sequence[Value]]
    """The values of all buffers of the graph, by the size of the buffer: equal layers have equal peaks."""

    def describe(self, graph: Graph) -> str:
        """Name the node and the value that takes the most."""
        node, value = graph[self.vertex], self.buffers[0].values[0]
        return f"{node.op} '{node.name}', beside a buffer of '{graph.value_name(value)}'"


def value_bytes(graph: Graph, value: Value) -> int:
    """Return the bytes of a tensor of known sizes; 0 for other values."""
    type_ = graph.tensor_type(value)
    return type_.size * type_.dtype.bits // 8 if isinstance(type_, TensorType) and isinstance(type_.size, int) else 0


def execution_order(graph: Graph) -> list[int]:
    """Return the nodes in the order in which ONNX Runtime runs them: from the outputs back, depth first, of the nodes
    that one reads the one first that stands last in the file."""
    places = {vertex: place for place, vertex in enumerate(graph.topological_order())}
    order: list[int] = []
    seen: set[int] = set()
    leaves = [vertex for vertex, _ in graph.nodes() if not graph.fan_out(vertex)]
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
    owner, last = _lifetimes(graph, order)
    buffers: list[Buffer] = []
    lying: dict[Value, Buffer] = {}
    free: dict[int, list[Buffer]] = {}
    for place, vertex in enumerate(order):
        node = graph[vertex]
        for value in (Value(vertex, i) for i in range(len(node.names))):
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


def _lifetimes(graph: Graph, order: Sequence[int]) -> tuple[dict[Value, Value], dict[Value, int]]:
    """Return what each view looks at, and the place at which each value is read last."""
    places = set(order)
    owner: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for place, vertex in enumerate(order):
        node = graph[vertex]
        for value in node.operands:
            last[owner.get(value, value)] = place
        first = node.inputs[0] if node.inputs else None
        if first is not None and lookup_operator(node.op, node.domain).is_view and first.vertex in places:
            owner[Value(vertex)] = owner.get(first, first)
    for value in graph.outputs:
        last[owner.get(value, value)] = len(order)
    return owner, last


def _may_overwrite(node: Node) -> bool:
    return extra_operands(node.op, node.domain) is not None or node.op in OVERWRITING_KERNELS


def liveness_peak(graph: Graph, *, is_reusing: bool = True) -> LivenessPeak | None:
    """Return where a run takes the most memory; None for a graph without nodes. Inputs and weights do not count: they
    lie in memory all the time."""
    order = execution_order(graph)
    if not order:
        return None
    buffers = plan_buffers(graph, order, is_reusing=is_reusing)
    changes = [0] * (len(order) + 2)
    for buffer in buffers:
        changes[buffer.first] += buffer.nbytes
        changes[buffer.last + 1] -= buffer.nbytes
    totals = list(accumulate(changes))
    place = max(range(len(order)), key=totals.__getitem__)
    live = (buffer for buffer in buffers if buffer.first <= place <= buffer.last)
    largest = tuple(sorted(live, key=lambda buffer: buffer.nbytes, reverse=True))
    alike: dict[int, list[Value]] = {}
    for buffer in buffers:
        alike.setdefault(buffer.nbytes, []).extend(buffer.values)
    return LivenessPeak(order[place], totals[place], largest, alike)


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlanner:
    """Computes parts of a graph one after the other, until it fits into a number of bytes."""

    space: SearchSpace
    """Its trades are the rules that compute operators in parts."""
    static: Callable[[Graph], Graph]
    """Give a graph with all sizes known, of the same vertices."""
    is_reusing: bool = True
    """False for a session that reuses no buffers."""
    policy: SearchPolicy = SearchPolicy()

    def fit(self, graph: Graph, target: float) -> tuple[list[Step], LivenessPeak | None]:
        """Cut what takes the most memory, in place, until the estimate is no more than the target, or nothing can be
        cut that lowers it.

        Returns:
            The steps, and the peak that is left.
        """
        steps: list[Step] = []
        peak = self._peak(graph)
        while peak is not None and peak.nbytes > target:
            made = self._lower(graph, peak)
            if not made:
                return steps, peak
            steps += made
            peak = self._peak(graph)
        return steps, peak

    def _peak(self, graph: Graph) -> LivenessPeak | None:
        return liveness_peak(self.static(graph), is_reusing=self.is_reusing)

    def _lower(self, graph: Graph, peak: LivenessPeak) -> list[Step]:
        """Cut the values of one of the largest buffers of a peak, or of all that are as large, in the first way that
        lowers it; return no steps where none does."""
        for buffer in peak.buffers:
            if buffer.nbytes < self.policy.least_buffer_share * peak.nbytes:
                break
            for rules, values in product(self._partitions, (buffer.values, peak.alike[buffer.nbytes])):
                steps = self._cut_all(graph, values, rules)
                if not steps:
                    continue
                lowered = self._peak(graph)
                least = self.policy.least_buffer_share * buffer.nbytes
                if lowered is not None and lowered.nbytes <= peak.nbytes - least:
                    return steps
                undo_steps(steps)
        return []

    def _cut_all(self, graph: Graph, values: Sequence[Value], rules: Sequence[Rule]) -> list[Step]:
        """Cut the values of a buffer, in place; return no steps, and leave the graph, where one of them stays whole."""
        steps: list[Step] = []
        for value in values:
            if value.vertex not in graph or self._is_in_parts(graph, value):
                continue
            region = self._region(graph, self.static(graph), value.vertex, rules)
            made = self._cut(graph, region) if region else []
            if not made:
                undo_steps(steps)
                return []
            steps += made
        if steps:
            steps += self.space.simplifier.run(graph, steps).steps
        return steps

    def _is_in_parts(self, graph: Graph, value: Value) -> bool:
        """Return whether a value was cut with another of its buffer: nothing is left of it, or what joins its parts."""
        return not graph.has_uses(value) or graph[value.vertex].op == self._joining_operator

    @cached_property
    def _joining_operator(self) -> str:
        return next(app.op for rule in self.space.trades for app in rule.right if isinstance(app, App))

    @property
    def _partitions(self) -> list[list[Rule]]:
        """The rules that cut along one axis into one number of parts, the fewest parts first."""
        found: dict[str, list[Rule]] = {}
        for rule in self.space.trades:
            found.setdefault(rule.name.partition("_by_")[2].replace("channels", "heads"), []).append(rule)
        return [found[name] for name in sorted(found, key=lambda name: (name.partition("_in_")[2], name))]

    def _region(self, graph: Graph, sized: Graph, seed: int, rules: Sequence[Rule]) -> dict[int, Rule]:
        """Return the nodes to compute in the same parts as one of them, each with its rule; none where that leaves the
        value of one of them whole."""
        largest = max(value_bytes(sized, Value(seed, i)) for i in range(len(graph[seed].names)))
        limit = self.policy.kept_part * largest
        found: dict[int, Rule] = {}
        pending = [seed]
        while pending:
            vertex = pending.pop()
            if vertex in found:
                continue
            rule = next((rule for rule in rules if find_matches_at(graph, rule, vertex, self.space)), None)
            if rule is None:
                return {}
            found[vertex] = rule
            if value_bytes(sized, Value(vertex)) > limit:
                if any(value.vertex == vertex for value in graph.outputs):
                    return {}
                pending += graph.readers(vertex)
            for value in self._cut_operands(sized, vertex):
                is_splittable = any(find_matches_at(graph, rule, value.vertex, self.space) for rule in rules)
                if value_bytes(sized, value) > limit and is_splittable:
                    pending.append(value.vertex)
        return found

    def _cut_operands(self, sized: Graph, vertex: int) -> Iterator[Value]:
        """Yield the computed operands of the shape of the result, which are cut as it is."""
        shape = sized.shape(Value(vertex))
        for value in sized[vertex].operands:
            if not sized[value.vertex].is_internal and sized.shape(value) == shape:
                yield value

    def _cut(self, graph: Graph, region: Mapping[int, Rule]) -> list[Step]:
        """Compute the nodes of a region in parts, in place."""
        steps: list[Step] = []
        for vertex in (vertex for vertex in graph.topological_order() if vertex in region):
            try:
                made = apply_move(graph, Move(region[vertex].name, ((Value(vertex),),), simplified=False), self.space)
            except MoveNotApplicableError:
                undo_steps(steps)
                return []
            steps += made.steps
        return steps
