"""The explore phase: rules that pay in some models only, tried best first on each distinct part of a model.

A part is cut out where few values cross, solved in a small graph of its own and carried over to all its copies, so that
a model of 24 equal layers takes the search of one. Moves that pay only together are found as well, as long as none of
them costs more than the slack.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, count
from math import exp, inf, log
from statistics import fmean
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.ir.graph import Graph, Value
from graphopt.ir.types import TensorType, Type
from graphopt.operators.fixed_sizes import fix_inputs
from graphopt.rewrite.matching import Match
from graphopt.rewrite.regions import (
    BlockSizes,
    NodeText,
    Region,
    cut_into_blocks,
    extract_region,
    graph_digest,
    portable_digest,
    with_input_types,
)
from graphopt.rewrite.simplify import DeadlineExceededError, Step
from graphopt.runtime.cost_model import CostModel, NotMeasurableError, PredictedGain
from graphopt.runtime.measure import Speedup, TimingVerdict, geometric_mean_speedup
from graphopt.search.moves import (
    Move,
    MoveNotApplicableError,
    SearchSpace,
    Solution,
    apply_move,
    enumerate_moves,
    find_trade_matches,
    replay_moves,
)
from graphopt.search.policy import SearchPolicy
from graphopt.search.stopping import RegionStop, SearchStop, StopReason

logger = logging.getLogger(__name__)

InputShapes = Mapping[str, Sequence[int]]
"""Sizes of the inputs of a model, by name."""


@dataclass(frozen=True)
class Exploration:
    """Result of a search."""

    solutions: tuple[Solution, ...]
    """The one from which most is hoped first."""
    stop: StopReason
    regions: int = 0
    """Distinct parts in which some rule matched."""
    copies: int = 0
    """Parts in all."""
    states: int = 0
    """Graphs looked at."""
    trials: int = 0
    """Graphs measured, or asked for."""
    notes: tuple[str, ...] = ()
    is_steady: bool = True
    """False where the machine was too busy to rely on this another time."""


# -- one region --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _SearchState:
    """A graph that a region can be turned into."""

    start: Graph
    """The region, or a copy of it that allows the moves."""
    moves: tuple[Move, ...]
    operator_counts: tuple[tuple[str, int], ...]
    """Counts of its operators."""
    estimate: float
    """Estimated cost, as a multiple of the region's."""
    digest: str
    predicted_gains: Sequence[PredictedGain] = ()
    """Gains over the region at each set of sizes, as they are predicted; none of the region itself."""
    unpaid_move: _UnpaidMove | None = None
    """Last move, if it did not pay."""
    cached_graph: Graph | None = None
    """The graph, or None to be made anew: many of them would fill the memory."""
    speedup: Speedup | None = None

    def rank(self, noise: float) -> tuple[int, int, float]:
        """Return a sort key: cheaper states come first, and of states that cost the same but for noise, those that took
        fewer moves."""
        return round(log(self.estimate) / log(1 + noise)), len(self.moves), self.estimate


@dataclass(eq=False)
class _UnpaidMove:
    """A move that did not pay. The next move has to build on it; one that does not can be made without it."""

    rule: str
    new: frozenset[int]
    """The vertices that it put in."""
    touched: frozenset[int]
    """These, and those that it changed."""

    @staticmethod
    def from_steps(move: Move, steps: Sequence[Step]) -> _UnpaidMove:
        after = {vertex: node for step in steps for vertex, node in step.patch.after.items() if not node.is_internal}
        before = {vertex for step in steps for vertex in step.patch.before}
        return _UnpaidMove(move.rule, frozenset(after.keys() - before), frozenset(after))

    def allows(self, graph: Graph, match: Match) -> bool:
        """Return whether a match may follow: a rule is not applied to its own result, which could make ever larger
        kernels."""
        looked_at = match.vertices.union(*(graph.sources(vertex) for vertex in match.vertices))
        if match.rule.name == self.rule and not match.vertices.isdisjoint(self.new):
            return False
        return not looked_at.isdisjoint(self.touched)


class _Frontier:
    """States to expand: alternately the best of all, and the best of the kind that had the fewest turns.

    States of one kind have the same operators. Without kinds, the search would be lost among the many states that cost
    hardly more than the best, and never expand one that costs more.
    """

    def __init__(self, noise: float) -> None:
        """States whose estimates differ less than the `noise` cost the same."""
        self.noise = noise
        self._kinds: dict[tuple[tuple[str, int], ...], list[tuple[tuple[int, int, float], int, _SearchState]]] = {}
        self._turns: Counter[tuple[tuple[str, int], ...]] = Counter()
        self._order = count()
        self._fair = False

    def push(self, state: _SearchState) -> None:
        heappush(self._kinds.setdefault(state.operator_counts, []), (state.rank(self.noise), next(self._order), state))

    def pop(self) -> _SearchState | None:
        """Return the state whose turn it is; None where none is left."""
        if not self._kinds:
            return None
        kind = min(self._kinds, key=lambda kind: (self._turns[kind] if self._fair else 0, self._kinds[kind][0][:2]))
        self._fair = not self._fair
        self._turns[kind] += 1
        _, _, state = heappop(self._kinds[kind])
        if not self._kinds[kind]:
            del self._kinds[kind]
        return state


_InputFlow = tuple[tuple[Type | None, ...], tuple[tuple[int, ...] | None, ...]]
"""Types of a part's inputs, and their elements where these are known."""


@dataclass(eq=False)
class _RegionCopy:
    """A part of the model, and the types and contents of its inputs at each set of sizes."""

    vertices: tuple[int, ...]
    region: Region
    flows: tuple[_InputFlow, ...]

    @property
    def key(self) -> tuple[str, tuple[_InputFlow, ...]]:
        """A key that parts share if they are alike."""
        return graph_digest(self.region.graph), self.flows

    @cached_property
    def static_graphs(self) -> Sequence[Graph]:
        """The part's graph at each set of sizes. Raises ModelError where it cannot work on one."""
        return [with_input_types(self.region.graph, *flow) for flow in self.flows]


class _RegionSolver:
    """Finds the fastest graph for one region, in turns; `best` is the fastest so far.

    A first move that the weights of one copy do not allow is tried in the others; later moves are made in the same
    copy.
    """

    def __init__(
        self,
        space: SearchSpace,
        cost: CostModel,
        policy: SearchPolicy,
        share: float,
        weight: float,
        copies: Sequence[_RegionCopy],
    ) -> None:
        """Take the seconds of all copies in one run (`weight`), and their part of the model's (`share`)."""
        self.space, self.cost, self.policy, self.weight, self.copies = space, cost, policy, weight, copies
        self.share = share
        saved = min(policy.least_saving / max(share, 1e-9), policy.most_saving)
        self.least_gain = saved / (1 - saved)
        """Gain of the region below which nothing is seen in the model."""
        self.region = copies[0]
        self.dear = [max(cost.estimate_seconds(graph), 1e-9) for graph in self.region.static_graphs]
        self.node_texts: dict[int, NodeText] = {}
        """Texts of nodes in digests."""
        identity = graph_digest(self.region.region.graph, node_texts=self.node_texts)
        self.starts = [
            _SearchState(copy.region.graph, (), (), 1.0, identity, cached_graph=copy.region.graph) for copy in copies
        ]
        self.begun = Counter[tuple[str, tuple[tuple[Value, ...], ...]]]()
        self.seen = {identity}
        self.frontier, self.pool, self.holding = (
            _Frontier(policy.timing.noise),
            list[_SearchState](),
            list[_SearchState](),
        )
        self.frontier.push(self.starts[0])
        self.walk = self._expand_states()
        self.best: _SearchState | None = None
        self.stop, self.trials = RegionStop(policy), 0
        self.is_explored = self.is_done = False

    def take_turn(self, is_over: Callable[[], bool]) -> None:
        """Make some more graphs, until it is over, and measure the most promising.

        Raises:
            NotMeasurableError: the region cannot be timed.
        """
        self._explore(is_over)
        fastest = self._measure_pool()
        self.best = fastest or self.best
        is_left = bool(self.pool) or not self.is_explored
        self.is_done = self.stop.is_done(is_better=fastest is not None, is_left=is_left)
        self._release()

    def _release(self) -> None:
        """Drop graphs that may be made anew, but for the most promising ones, as far as there is room for their new
        weights."""
        held = {weight for copy in self.copies for weight in _weight_sizes(copy.region.graph)}
        room, kept = self.policy.held_bytes, list[_SearchState]()
        for state in sorted(self.holding, key=lambda state: state.estimate):
            assert state.cached_graph is not None, "a state is held for its graph"
            sizes = _weight_sizes(state.cached_graph)
            needed = sum(size for weight, size in sizes.items() if weight not in held)
            if needed <= room and len(kept) < self.policy.held_graphs:
                kept.append(state)
                held.update(sizes)
                room -= needed
            else:
                state.cached_graph = None
        self.holding = kept

    def _explore(self, is_over: Callable[[], bool]) -> None:
        """Put some new states into the pool."""
        known, before = len(self.pool), len(self.seen)

        def is_round_over() -> bool:
            return is_over() or self.stop.is_round_over(len(self.seen) - before, len(self.pool) - known)

        while not (self.is_explored or is_round_over()):
            self.is_explored = next(self.walk, True) or self.stop.has_enough_states(len(self.seen))

    def _expand_states(self) -> Iterator[bool]:
        """Make one move after the other, best first; yield False after each: there may be more."""
        while (state := self.frontier.pop()) is not None:
            for each in [state] if state.moves else self.starts:
                graph = self._graph_of(each)
                for move, found in self._moves(each, graph):
                    try:
                        self._try(each, graph, move, found)
                    except (MoveNotApplicableError, ModelError) as reason:  # the graphs that other moves led to stand
                        logger.debug("%s leads nowhere: %s", move.rule, reason)
                    yield False

    def _moves(self, state: _SearchState, graph: Graph) -> Iterator[tuple[Move, Sequence[Match]]]:
        """Yield the moves from a state, with their matches; from a copy of the region itself, not those that an earlier
        copy has made, or too many have refused."""
        found, debt = find_trade_matches(graph, self.space), state.unpaid_move
        if debt is not None:
            found = {rule: [match for match in sites if debt.allows(graph, match)] for rule, sites in found.items()}
        for move, matches in enumerate_moves(found):
            if state.moves or self.begun[move.rule, move.sites] < self.policy.refusing_copies:
                yield move, matches

    def _try(self, state: _SearchState, before: Graph, move: Move, found: Sequence[Match]) -> None:
        """Make a move, and keep the graph that it leads to if that is new.

        Raises:
            MoveNotApplicableError: it cannot be made.
        """
        self.begun[move.rule, move.sites] += not state.moves
        bare = before.copy()
        made = apply_move(bare, replace(move, simplified=False), self.space, found)
        graph = bare.copy()
        steps = [*made.steps, *self.space.simplifier.run(graph, made.steps).steps]
        identity = graph_digest(graph, node_texts=self.node_texts)
        if identity == state.digest:  # simplifying has undone the move
            move, graph, steps, identity = (
                replace(move, simplified=False),
                bare,
                made.steps,
                graph_digest(bare, node_texts=self.node_texts),
            )
        if made.is_complete and not state.moves:
            self.begun[move.rule, move.sites] = self.policy.refusing_copies
        if identity in self.seen:
            return
        self.seen.add(identity)
        static = self._static_graphs(graph)
        seconds = map(self.cost.estimate_seconds, static)
        estimate = _geometric_mean([known / dear for known, dear in zip(seconds, self.dear, strict=True)])
        if estimate <= self.policy.slack:
            debt = None if estimate < state.estimate else _UnpaidMove.from_steps(move, steps)
            kind = tuple(sorted(graph.operator_counts().items()))
            gains = [*map(self.cost.predict_gain, self.region.static_graphs, static)]
            child = _SearchState(state.start, (*state.moves, move), kind, estimate, identity, gains, debt, graph)
            self.frontier.push(child)
            self.pool.append(child)
            self.holding.append(child)

    def _graph_of(self, state: _SearchState) -> Graph:
        if state.cached_graph is None:
            graph = state.start.copy()
            for move in state.moves:
                apply_move(graph, move, self.space)
            state.cached_graph = graph
            self.holding.append(state)
        return state.cached_graph

    def _static_graphs(self, graph: Graph) -> list[Graph]:
        """Return a graph made from the region, at each set of sizes."""
        return [_at_region_sizes(graph, self.region.region.graph, known) for known in self.region.static_graphs]

    def _measure_pool(self) -> _SearchState | None:
        """Measure the most promising states of the pool; return the fastest if it beats the best known."""
        if not self.pool:
            return None
        self.pool = [state for state in self.pool if self._is_worth_measuring(state)]
        self.pool.sort(key=lambda state: state.estimate)
        chosen = self.pool[: self.policy.measured_per_round]
        if not chosen:
            return None
        after = zip(*(self._static_graphs(self._graph_of(state)) for state in chosen), strict=True)
        found = []
        for before, graphs in zip(self.region.static_graphs, after, strict=True):
            self.space.simplifier.check()
            found.append(self.cost.measure_speedups(before, graphs, self.least_gain))
        self.trials += len(chosen)
        faster = []
        for state, speedups in zip(chosen, zip(*found, strict=True), strict=True):
            state.speedup = geometric_mean_speedup(speedups)
            self.pool.remove(state)
            if state.speedup.verdict is TimingVerdict.FASTER:
                faster.append(state)
        fastest = max(faster, key=_known_speedup, default=None)
        return fastest if _known_speedup(fastest) > _known_speedup(self.best) else None

    def _is_worth_measuring(self, state: _SearchState) -> bool:
        """Return whether a graph is expected to save something of the model's time, beyond the best one known."""
        saved, error = 1 - 1 / _known_speedup(self.best), self.policy.fusion_error
        improvement = fmean(each.expected_improvement(saved, error) for each in state.predicted_gains)
        return self.share * improvement >= self.policy.least_improvement


def _weight_sizes(graph: Graph) -> dict[int, int]:
    """Return the bytes of each tensor of a graph, by its identity: graphs share tensors."""
    tensors = (node.data for _, node in graph.vertices_and_nodes() if node.data is not None)
    return {id(tensor): tensor.nbytes for tensor in tensors}


def _known_speedup(state: _SearchState | None) -> float:
    return state.speedup.median if state is not None and state.speedup is not None else 1.0


def _geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _at_region_sizes(graph: Graph, region: Graph, numbers: Graph) -> Graph:
    """Return a graph made from a region, with the types and contents that the region's inputs have in `numbers`."""
    types: list[Type | None] = []
    contents: list[tuple[int, ...] | None] = []
    for vertex in region.inputs:
        types.append(numbers[vertex].types[0])
        data = numbers[vertex].data
        contents.append(None if data is None else data.int_values())
    return with_input_types(graph, types, contents)


# -- the whole model ---------------------------------------------------------------------------------------------------


def explore_regions(
    graph: Graph,
    space: SearchSpace,
    cost: CostModel,
    shapes: Sequence[InputShapes] = ({},),
    policy: SearchPolicy = SearchPolicy(),
    *,
    seconds: float = inf,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Exploration:
    """Search the parts of a graph for faster ones; `apply_solution` puts them in, the graph itself is not changed.

    Ctrl-C ends the search; what was found until then is returned.

    Args:
        graph: simplified already.
        shapes: of the inputs at which costs are taken, each set counting the same.
        seconds: roughly the longest that the search may take.

    Raises:
        ModelError: the graph cannot work on these shapes.
        UsageError: the graph has no such inputs, or declares other sizes for them.
    """
    stop = SearchStop(policy, seconds, clock)
    search = _Search(space, cost, policy, stop, progress or (lambda stage, done: None))
    try:
        search.run(graph, shapes)
    except DeadlineExceededError:
        stop.is_late = True
    except KeyboardInterrupt:
        stop.is_interrupted = True
    return search.outcome()


@dataclass(eq=False)
class _Search:
    """Solves the parts of a graph by turns."""

    space: SearchSpace
    cost: CostModel
    policy: SearchPolicy
    stop: SearchStop
    progress: Callable[[str, float], None]
    pending: list[_RegionSolver] = field(default_factory=list)
    """Solvers that are not done."""
    total: float = 0.0
    """Seconds of one run that all parts are estimated to take."""
    solutions: list[Solution] = field(default_factory=list)
    regions: int = 0
    copies: int = 0
    states: int = 0
    trials: int = 0
    notes: list[str] = field(default_factory=list)

    def run(self, graph: Graph, shapes: Sequence[InputShapes]) -> None:
        static = [with_static_shapes(graph, each) for each in shapes]
        classes = _region_classes(graph, static, self.space, self.cost, self.policy)
        self.regions, self.copies = len(classes), sum(len(copies) for _, copies in classes)
        model = _model_seconds(self.cost, static, classes)
        self.pending = [
            _RegionSolver(self.space, self.cost, self.policy, weight / model, weight, copies)
            for weight, copies in classes
            if weight / model * self.policy.most_saving >= self.policy.least_saving
        ]
        self.total = sum(solver.weight for solver in self.pending)
        while self.pending and not self.stop.is_over():
            self._run_round()

    def _run_round(self) -> None:
        """Give each part a turn, the most expensive first; time that a turn does not use goes to the others."""
        left = sum(solver.weight for solver in self.pending)
        for solver in sorted(self.pending, key=lambda solver: -solver.weight):
            open_ = sum(waiting.weight for waiting in self.pending)
            self.progress("search", min(1.0, max(1 - open_ / self.total, self.stop.elapsed_share)))
            self._give_turn(solver, self.stop.turn_end(solver.weight / left))
            left -= solver.weight

    def _give_turn(self, solver: _RegionSolver, until: float) -> None:
        try:
            solver.take_turn(lambda: self.stop.is_over(until))
        except NotMeasurableError as error:
            solver.is_done = True
            self.stop.record_refusal(error)
            what = "left as it is" if solver.best is None else "not searched further"
            self.notes.append(f"a part of {len(solver.region.vertices)} nodes was {what}: {error}")
        if solver.is_done:
            remaining = self._record_solution(solver)
            self.pending.remove(solver)
            if remaining:
                weight = solver.weight * len(remaining) / len(solver.copies)
                share = solver.share * len(remaining) / len(solver.copies)
                self.pending.append(_RegionSolver(self.space, self.cost, self.policy, share, weight, remaining))

    def _record_solution(self, solver: _RegionSolver) -> list[_RegionCopy]:
        """Note what was found; return the copies whose weights do not allow it: they need a solution of their own."""
        self.states += len(solver.seen)
        self.trials += solver.trials
        best, copies = solver.best, solver.copies
        if best is None or best.speedup is None:
            return []
        remaining = [copy for copy in copies if not self._is_applicable(copy, best)]
        able = tuple(copy.vertices for copy in copies if copy not in remaining)
        weight = solver.weight * len(able) / len(copies)
        self.solutions.append(Solution(able, best.moves, best.speedup, weight, best.digest))
        return remaining

    def _is_applicable(self, copy: _RegionCopy, best: _SearchState) -> bool:
        """Return whether the best graph of a part can be made of a copy too, which may have other weights.

        If there is no time to try, it is assumed: carrying the solution over will show it.
        """
        if copy.region.graph is best.start or self.stop.is_interrupted:
            return True
        try:
            replay_moves(copy.region.graph.copy(), best.moves, best.digest, self.space)
        except DeadlineExceededError:
            return True
        except MoveNotApplicableError:
            return False
        return True

    def outcome(self) -> Exploration:
        for solver in self.pending:
            self._record_solution(solver)
        solutions = sorted(self.solutions, key=lambda solution: -solution.saved_seconds)
        counts = self.regions, self.copies, self.states, self.trials
        is_steady = self.stop.is_steady and self.cost.is_steady
        reason = self.stop.reason(is_waiting=bool(self.pending))
        return Exploration(tuple(solutions), reason, *counts, tuple(self.notes), is_steady)


_RegionClass: TypeAlias = tuple[float, list[_RegionCopy]]
"""Seconds that equal parts take in one run, and the parts."""


def _region_classes(
    graph: Graph, static: Sequence[Graph], space: SearchSpace, cost: CostModel, policy: SearchPolicy
) -> list[_RegionClass]:
    """Return the parts of a graph in which some rule matches, grouped by equality, the most expensive group first.

    `static` is the graph at each set of sizes.
    """
    classes: dict[tuple[str, tuple[_InputFlow, ...]], list[_RegionCopy]] = {}
    for vertices in _matching_blocks(graph, space, policy.blocks):
        space.simplifier.check()
        copy = _region_copy(graph, vertices, static)
        if copy is not None:
            classes.setdefault(copy.key, []).append(copy)
    weighed = []
    for copies in classes.values():
        space.simplifier.check()
        try:
            seconds = _estimated_seconds(cost, copies[0].static_graphs)
        except ModelError as error:
            logger.info("a part of %d nodes is left as it is: %s", len(copies[0].vertices), error)
        else:
            weighed.append((seconds * len(copies), copies))
    return sorted(weighed, key=lambda pair: -pair[0])


def _model_seconds(cost: CostModel, static: Sequence[Graph], classes: Sequence[_RegionClass]) -> float:
    """Return the estimate of a whole graph, at least that of its parts; the latter where it has no estimate."""
    parts = sum((seconds for seconds, _ in classes), 1e-9)
    try:
        return max(parts, _estimated_seconds(cost, static)) if classes else parts
    except ModelError as error:
        logger.info("of the model there is no estimate: %s", error)
        return parts


def _estimated_seconds(cost: CostModel, graphs: Sequence[Graph]) -> float:
    """Return the estimate of one graph at each set of sizes, as a geometric mean."""
    return _geometric_mean([max(cost.estimate_seconds(graph), 1e-9) for graph in graphs])


def with_static_shapes(graph: Graph, shapes: InputShapes) -> Graph:
    """Return the graph with static sizes of its inputs, and of all values computed from them; the graph itself where
    there is nothing to fix.

    Raises:
        ModelError: it cannot work on these sizes.
    """
    if not shapes:
        return graph
    twin = graph.copy()
    fix_inputs(twin, shapes, {})
    return twin


def _region_copy(graph: Graph, vertices: Sequence[int], known: Sequence[Graph]) -> _RegionCopy | None:
    """Return a part of the model, ready to be explored; None where it cannot be cut out or its sizes are unknown."""
    region = extract_region(graph, vertices)
    if region is None:
        return None
    flows = []
    for whole in known:
        values = [region.outer_values[Value(vertex)] for vertex in region.graph.inputs]
        types = tuple(map(whole.value_type, values))
        for type_ in types:
            if not isinstance(type_, TensorType) or type_.dtype is DType.UNDEFINED or not type_.is_static:
                return None
        flows.append((types, tuple(_static_contents(whole.known_contents(value)) for value in values)))
    return _RegionCopy(tuple(vertices), region, tuple(flows))


def _static_contents(contents: Sequence[object] | None) -> tuple[int, ...] | None:
    """Return the elements of a tensor; None where they are unknown or one of them is symbolic."""
    numbers = tuple(item for item in contents or () if isinstance(item, int))
    return numbers if contents is not None and len(numbers) == len(contents) else None


def blocks_by_digest(graph: Graph, space: SearchSpace, sizes: BlockSizes) -> dict[str, list[tuple[int, ...]]]:
    """Return the blocks in which some rule matches by `portable_digest`, those that are alike in topological order."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for block in _matching_blocks(graph, space, sizes):
        region = extract_region(graph, block)
        if region is not None:
            found.setdefault(portable_digest(region.graph), []).append(tuple(block))
    return found


def _matching_blocks(graph: Graph, space: SearchSpace, sizes: BlockSizes) -> list[list[int]]:
    """Return the blocks of the graph in which some rule matches; those that a match spans are one."""
    found = cut_into_blocks(graph, sizes)
    where = {vertex: index for index, block in enumerate(found) for vertex in block}
    touched: set[int] = set()
    bridged: set[int] = set()
    for match in chain.from_iterable(find_trade_matches(graph, space).values()):
        spanned = sorted({where[vertex] for vertex in match.vertices if vertex in where})
        touched.update(spanned)
        bridged.update(range(spanned[0] + 1, spanned[-1] + 1) if spanned else ())
    parts: list[list[int]] = []
    for index, block in enumerate(found):
        if index in bridged and len(parts[-1]) + len(block) <= sizes.max_nodes:
            parts[-1] += block
        else:
            parts.append([*block])
    return [part for part in parts if not touched.isdisjoint(where[vertex] for vertex in part)]
