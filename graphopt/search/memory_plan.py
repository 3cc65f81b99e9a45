"""Parts in which a model is computed so that a run takes less memory: what is cut, along which axis, until it fits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import App
from graphopt.rewrite.simplify import DeadlineExceededError, Step, undo_steps
from graphopt.search.buffer_plan import Buffer, LivenessPeak, liveness_peak, value_bytes
from graphopt.search.moves import SearchSpace
from graphopt.search.policy import SearchPolicy
from graphopt.search.row_tiles import RowTiler, apply_rule_at, first_matching_rule

logger = logging.getLogger(__name__)


@dataclass
class MemoryPlanner:
    """Computes parts of a graph one after the other, until it fits into a number of bytes."""

    space: SearchSpace
    """Its trades are the rules that compute operators in parts."""
    static: Callable[[Graph], Graph]
    """Give a graph with all sizes known, of the same vertices."""
    is_reusing: bool = True
    """False for a session that reuses no buffers."""
    policy: SearchPolicy = SearchPolicy()
    seconds: float = math.inf
    """Seconds that are left to it, of all graphs together; below 0 where it has given up looking for more to cut."""
    _deadline: float = field(default=math.inf, init=False, repr=False)

    def fit(self, graph: Graph, target: float) -> tuple[list[Step], LivenessPeak | None]:
        """Cut what takes the most memory, in place, until the estimate is no more than the target, nothing can be cut
        that lowers it, or time is over.

        Returns:
            The steps, and the peak that is left.
        """
        steps: list[Step] = []
        peak, self._deadline = self._peak(graph), time.monotonic() + self.seconds
        try:
            while peak is not None and peak.nbytes > target and (made := self._lower(graph, peak)):
                steps += made
                peak = self._peak(graph)
        except DeadlineExceededError:
            logger.debug("no time is left to look for more to compute in parts")
        self.seconds = self._deadline - time.monotonic()
        return steps, peak

    def _peak(self, graph: Graph) -> LivenessPeak | None:
        return liveness_peak(self.static(graph), is_reusing=self.is_reusing)

    def peak_bytes(self, graph: Graph) -> int:
        """Return the most bytes that values take at once, by the estimate."""
        peak = self._peak(graph)
        return 0 if peak is None else peak.nbytes

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise DeadlineExceededError

    def _lower(self, graph: Graph, peak: LivenessPeak) -> list[Step]:
        """Cut the values of one of the largest buffers of a peak in a way that lowers it; return no steps where none
        does. Tiles of rows, of which some are computed twice, come last."""
        large = _of_share(peak, self.policy.least_buffer_share)
        larger = _of_share(peak, self.policy.least_tiled_share)
        return self._partition_one(graph, peak, large) or self._tile_one(graph, peak, larger)

    def _partition_one(self, graph: Graph, peak: LivenessPeak, buffers: Sequence[Buffer]) -> list[Step]:
        """Cut the values of the first buffer for which that pays, or of all that are as large, in the first way that
        lowers the peak."""
        for buffer in buffers:
            enough = peak.nbytes - self.policy.least_buffer_share * buffer.nbytes
            chosen = buffer.values, peak.values_alike(buffer, enough)
            for rules, values in product(self._partitions, chosen):
                self._check_time()
                steps = self._cut_all(graph, values, partial(self._cut_along, rules))
                if steps and self.peak_bytes(graph) <= enough:
                    return steps
                undo_steps(steps)
        return []

    def _tile_one(self, graph: Graph, peak: LivenessPeak, buffers: Sequence[Buffer]) -> list[Step]:
        """Cut the values of the first buffer for which that pays, and where that is not enough those that are about as
        large, as tiles are that were cut before, into tiles of rows, in the way that lowers the peak most."""
        tried = set[Value]()
        for buffer in buffers:
            if tried.issuperset(buffer.values):
                continue
            enough = peak.nbytes - self.policy.least_saving_of_tiles * buffer.nbytes
            near = peak.values_alike(buffer, enough, margin=0.1)
            if best := self._best_tiling(graph, buffer.values, near, enough):
                for step in best:
                    step.redo()
                return best
            tried.update(buffer.values, near)
        return []

    def _best_tiling(self, graph: Graph, values: Sequence[Value], near: Sequence[Value], enough: float) -> list[Step]:
        """Return the steps, undone, that cut values into tiles, and those near them where they have to, in the way that
        lowers the peak most, to what is enough at least; none where no way does."""
        best, least = list[Step](), math.inf
        operators = {value: graph[value.vertex].op for value in (*values, *near)}
        for tiler in self._tilers:
            for end in range(self.policy.tile_ends):
                self._check_time()
                cut, steps, nbytes = partial(self._tile, tiler, end), list[Step](), math.inf
                for chosen in (values, near):
                    whole = [
                        each for each in chosen if each.vertex in graph and graph[each.vertex].op == operators[each]
                    ]
                    made = self._cut_all(graph, whole, cut, is_partial=True)
                    steps += made
                    nbytes = self.peak_bytes(graph) if made else math.inf
                    if not made or nbytes <= enough:
                        break
                undo_steps(steps)
                if not steps:  # what cannot be computed up to a near end cannot up to a further one
                    break
                if nbytes <= enough and nbytes < least:
                    best, least = steps, nbytes
        return best

    @cached_property
    def _tilers(self) -> list[RowTiler]:
        """The ways to compute a value in tiles of rows, by the number of tiles."""
        rows = [rule for rule in self.space.trades if rule.name.startswith("compute_rows_of_")]
        return [RowTiler(self.space, tiles, rows, self.static) for tiles in self._rules_along("tiles")]

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
        largest = max(value_bytes(sized, value) for value in graph.values_of(seed))
        limit = self.policy.kept_part * largest
        found: dict[int, Rule] = {}
        pending = [seed]
        while pending:
            vertex = pending.pop()
            if vertex in found:
                continue
            rule = first_matching_rule(rules, graph, vertex, self.space)
            if rule is None:
                return {}
            found[vertex] = rule
            if value_bytes(sized, Value(vertex)) > limit:
                if any(value.vertex == vertex for value in graph.outputs):
                    return {}
                pending += graph.readers(vertex)
            for value in self._cut_operands(sized, vertex):
                is_large = value_bytes(sized, value) > limit
                if is_large and first_matching_rule(rules, graph, value.vertex, self.space):
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
            made = apply_rule_at(graph, region[vertex], vertex, self.space)
            if not made:
                undo_steps(steps)
                return []
            steps += made
        return steps


def _of_share(peak: LivenessPeak, share: float) -> list[Buffer]:
    """Return the buffers that have at least some share in a peak, the largest first."""
    return [buffer for buffer in peak.buffers if buffer.nbytes >= share * peak.nbytes]
