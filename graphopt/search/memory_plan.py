"""Parts in which a model is computed so that a run takes less memory: what is cut, along which axis, until it fits.

The estimate is the liveness of values: those that lie in memory while a node runs, in the order in which ONNX Runtime
runs a graph. What kernels take inside and what the arena leaves unused it does not know, so the result is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph, Node, Value
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule
from graphopt.operators.operator_classes import extra_operands, lookup_operator
from graphopt.rewrite.simplify import Step
from graphopt.search.moves import Move, MoveNotApplicableError, SearchSpace, apply_move, find_matches_at

KEPT_PART = 0.5
"""A value smaller than this part of the one that is to be cut may stay whole."""


# -- how much memory a run takes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LivenessPeak:
    """The node of a graph at which the values in memory are the largest together."""

    vertex: int
    nbytes: int
    values: tuple[Value, ...]
    """The values that lie in memory while it runs, the largest first."""

    def describe(self, graph: Graph) -> str:
        """Name the node and the largest of the values."""
        node = graph[self.vertex]
        return f"{node.op} '{node.name}', beside the value '{graph.value_name(self.values[0])}'"


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


def liveness_peak(graph: Graph) -> LivenessPeak | None:
    """Return where a run takes the most memory; None for a graph without nodes.

    A view lies where what it looks at lies, and an elementwise operator or a softmax writes over an operand of the same
    size that nothing reads after it. Inputs and weights are not counted: they lie in memory all the time.
    """
    order = execution_order(graph)
    places = {vertex: place for place, vertex in enumerate(order)}
    last: Counter[Value] = Counter()
    owner: dict[Value, Value] = {}
    for place, vertex in enumerate(order):
        node = graph[vertex]
        for value in node.operands:
            last[owner.get(value, value)] = place
        first = node.inputs[0] if node.inputs else None
        if first is not None and lookup_operator(node.op, node.domain).is_view and first.vertex in places:
            owner[Value(vertex)] = owner.get(first, first)
    for value in graph.outputs:
        last[owner.get(value, value)] = len(order)
    live: dict[Value, int] = {}
    total, best = 0, None
    for place, vertex in enumerate(order):
        node = graph[vertex]
        made = [value for i in range(len(node.names)) if (value := Value(vertex, i)) not in owner]
        reused = _overwritten_operand(graph, node, vertex, live, last, owner, place)
        if reused is not None:
            total -= live.pop(reused)
        for value in made:
            live[value] = value_bytes(graph, value)
            total += live[value]
        if best is None or total > best.nbytes:
            best = LivenessPeak(vertex, total, tuple(live))
        for value in [value for value in live if last[value] <= place]:
            total -= live.pop(value)
    if best is None:
        return None
    largest = sorted(best.values, key=lambda value: value_bytes(graph, value), reverse=True)
    return LivenessPeak(best.vertex, best.nbytes, tuple(largest))


def _overwritten_operand(
    graph: Graph,
    node: Node,
    vertex: int,
    live: Mapping[Value, int],
    last: Mapping[Value, int],
    owner: Mapping[Value, Value],
    place: int,
) -> Value | None:
    """Return the operand whose memory the result of a node takes."""
    if extra_operands(node.op, node.domain) is None and not lookup_operator(node.op, node.domain).is_row_wise:
        return None
    size = value_bytes(graph, Value(vertex))
    roots = (owner.get(value, value) for value in node.operands)
    return next((root for root in roots if live.get(root) == size and last[root] == place), None)


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlanner:
    """Computes parts of a graph one after the other, until it fits into a number of bytes."""

    space: SearchSpace
    """Its trades are the rules that compute operators in parts."""
    static: Callable[[Graph], Graph]
    """Give a graph with all sizes known, of the same vertices."""

    def fit(self, graph: Graph, target: float) -> tuple[list[Step], LivenessPeak | None]:
        """Cut what takes the most memory, in place, until the estimate is no more than the target, or nothing can be
        cut that lowers it.

        Returns:
            The steps, and the peak that is left.
        """
        steps: list[Step] = []
        peak = liveness_peak(self.static(graph))
        while peak is not None and peak.nbytes > target:
            made = self._lower(graph, peak)
            if not made:
                return steps, peak
            steps += made
            peak = liveness_peak(self.static(graph))
        return steps, peak

    def _lower(self, graph: Graph, peak: LivenessPeak) -> list[Step]:
        """Cut one of the largest values of a peak in the way that leaves the lowest peak around it; return no steps
        where none helps."""
        sized = self.static(graph)
        for value in peak.values:
            if value_bytes(sized, value) < peak.nbytes / 8:
                return []
            for rules in self._partitions:
                region = self._region(graph, sized, value.vertex, rules)
                if region and (steps := self._cut(graph, region)):
                    lowered = liveness_peak(self.static(graph))
                    if lowered is not None and (lowered.nbytes, lowered.vertex) != (peak.nbytes, peak.vertex):
                        if lowered.nbytes <= peak.nbytes:
                            return steps
                    for step in reversed(steps):
                        step.undo()
        return []

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
        limit = KEPT_PART * max((value_bytes(sized, Value(seed, i)) for i in range(len(graph[seed].names))), default=0)
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
                for step in reversed(steps):
                    step.undo()
                return []
            steps += made.steps
        return [*steps, *self.space.simplifier.run(graph, steps).steps]
