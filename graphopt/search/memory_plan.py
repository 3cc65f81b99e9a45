"""Parts in which a model is computed so that a run takes less memory: what is cut, along which axis, until it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import App
from graphopt.rewrite.simplify import Step, undo_steps
from graphopt.search.buffer_plan import Buffer, LivenessPeak, liveness_peak, value_bytes
from graphopt.search.moves import Move, MoveNotApplicableError, SearchSpace, apply_move, find_matches_at
from graphopt.search.policy import SearchPolicy
from graphopt.search.row_tiles import RowTiler


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

    def _peak_bytes(self, graph: Graph) -> float:
        peak = self._peak(graph)
        return 0 if peak is None else peak.nbytes

    def _lower(self, graph: Graph, peak: LivenessPeak) -> list[Step]:
        """Cut the values of one of the largest buffers of a peak, or of all that are as large, in the first way that
        lowers it; return no steps where none does. Tiles of rows, of which some are computed twice, come last."""
        for buffer in peak.buffers:
            if buffer.nbytes < self.policy.least_buffer_share * peak.nbytes:
                break
            enough = peak.nbytes - self.policy.least_buffer_share * buffer.nbytes
            chosen = buffer.values, peak.alike[buffer.nbytes]
            for rules, values in product(self._partitions, chosen):
                steps = self._cut_all(graph, values, partial(self._cut_along, rules))
                if steps and self._peak_bytes(graph) <= enough:
                    return steps
                undo_steps(steps)
            if steps := self._tile_all(graph, peak, buffer, enough):
                return steps
        return []

    def _tile_all(self, graph: Graph, peak: LivenessPeak, buffer: Buffer, enough: float) -> list[Step]:
        """Cut the values of a buffer, or of all that are about as large, as tiles are that were cut before, into tiles
        of rows, in the way that lowers the peak most; return no steps where it stays above what is enough."""
        sizes = [nbytes for nbytes in peak.alike if 0.9 < nbytes / buffer.nbytes < 1.1]
        near = [value for nbytes in sizes for value in peak.alike[nbytes]]
        chosen = [buffer.values] if near == buffer.values else [buffer.values, near]
        best, least = None, enough + 1
        for cut, values in product(self._tilings, chosen):
            steps = self._cut_all(graph, values, cut, is_partial=True)
            if steps and (nbytes := self._peak_bytes(graph)) < least:
                best, least = (values, cut), nbytes
            undo_steps(steps)
        return [] if best is None else self._cut_all(graph, *best, is_partial=True)

    @cached_property
    def _tilings(self) -> list[Callable[[Graph, Value], list[Step]]]:
        """The ways to compute a value in tiles of rows, in place."""
        rows = [rule for rule in self.space.trades if rule.name.startswith("compute_rows_of_")]
        tilers = [RowTiler(self.space, tiles, rows, self.static) for tiles in self._rules_along("tiles")]
        return [partial(self._tile, tiler, end) for tiler, end in product(tilers, range(self.policy.tile_ends))]

    def _cut_along(self, rules: Sequence[Rule], graph: Graph, value: Value) -> list[Step]:
        region = self._region(graph, self.static(graph), value.vertex, rules)
        return self._cut(graph, region) if region else []

    def _tile(self, tiler: RowTiler, number: int, graph: Graph, value: Value) -> list[Step]:
        limit = self.policy.kept_part_of_tiles * value_bytes(self.static(graph), value)
        return tiler.tile(graph, value, number, limit)

    def _cut_all(
        self,
        graph: Graph,
        values: Sequence[Value],
        cut: Callable[[Graph, Value], list[Step]],
        *,
        is_partial: bool = False,
    ) -> list[Step]:
        """Cut values, in place; unless it `is_partial`, return no steps, and leave the graph, where one stays whole."""
        steps: list[Step] = []
        operators = {value: graph[value.vertex].op for value in values}
        for value in values:
            if value.vertex not in graph or not graph.has_uses(value) or graph[value.vertex].op != operators[value]:
                continue  # it was cut with another
            made = cut(graph, value)
            if not made and not is_partial and graph[value.vertex].op != self._joining_operator:
                undo_steps(steps)
                return []
            steps += made
        if steps:
            steps += self.space.simplifier.run(graph, steps).steps
        return steps

    @cached_property
    def _joining_operator(self) -> str:
        """The operator that joins parts; its result stays whole."""
        return next(app.op for rule in self.space.trades for app in rule.right if isinstance(app, App))

    @cached_property
    def _partitions(self) -> list[list[Rule]]:
        """The rules that cut along one axis into one number of parts, the fewest parts first."""
        return self._rules_along("examples", "heads", "rows")

    def _rules_along(self, *axes: str) -> list[list[Rule]]:
        """Return the rules that cut along each of the axes into each number of parts, the fewest parts first."""
        found: dict[tuple[str, str], list[Rule]] = {}
        for rule in self.space.trades:
            axis, _, count = rule.name.partition("_by_")[2].replace("channels", "heads").partition("_in_")
            if axis in axes:
                found.setdefault((count, axis), []).append(rule)
        return [found[key] for key in sorted(found)]

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
