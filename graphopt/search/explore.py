"""The explore phase: rules that pay in some models only, tried best first on each distinct part of a model.

A part is cut out where few values cross, solved in a small graph of its own and carried over to all its copies, so that
a model of 24 equal layers costs one layer. A sequence whose first step costs and whose later steps pay is found, as
long as no step costs more than the slack.
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

from graphopt.base.errors import ModelError
from graphopt.base.types import DType, TensorType, Type
from graphopt.ir.graph import Graph, Value
from graphopt.operators.fixing import fix_inputs
from graphopt.rewrite.fixpoint import Step, TimeUp
from graphopt.rewrite.match import Match
from graphopt.rewrite.regions import BlockSizes, Region, at_sizes, blocks, cut_out, digest
from graphopt.runtime.cost import CostModel, NotMeasurable
from graphopt.runtime.measure import Speedup, Verdict, together
from graphopt.search.moves import Advance, Move, Solution, Space, Stuck, advance, arranged, matches, replay
from graphopt.search.policy import SearchPolicy
from graphopt.search.stopping import RegionStop, SearchStop, StopReason

logger = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]
"""Sizes of the inputs of a model, by name."""


@dataclass(frozen=True)
class Exploration:
    """What a search found."""

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
class _State:
    """A graph that a region can be turned into."""

    start: Graph
    """The region, or a copy of it that allows the moves."""
    moves: tuple[Move, ...]
    kind: tuple[tuple[str, int], ...]
    """Its operators."""
    estimate: float
    """How many times as dear as the region it is thought to be."""
    identity: str
    debt: _Debt | None = None
    """What the last move made if it did not pay."""
    held: Graph | None = None
    """The graph, or None to be made anew: many of them would fill the memory."""
    speedup: Speedup | None = None

    def rank(self, noise: float) -> tuple[int, int, float]:
        """Return the cheaper first; of those that differ less than the noise, the ones that took fewer moves."""
        return round(log(self.estimate) / log(1 + noise)), len(self.moves), self.estimate


@dataclass(eq=False)
class _Debt:
    """A move that did not pay. The next one has to have to do with it: else it may be made without it."""

    rule: str
    new: frozenset[int]
    """The vertices that it put in."""
    touched: frozenset[int]
    """These, and those that it changed."""

    @staticmethod
    def of(move: Move, steps: Sequence[Step]) -> _Debt:
        after = {vertex: node for step in steps for vertex, node in step.patch.after.items() if not node.is_internal}
        before = {vertex for step in steps for vertex in step.patch.before}
        return _Debt(move.rule, frozenset(after.keys() - before), frozenset(after))

    def allows(self, graph: Graph, match: Match) -> bool:
        """Return whether a match may follow: a rule does not go on with what it has made itself, such as larger and
        larger kernels."""
        looked_at = match.vertices.union(*(graph.sources(vertex) for vertex in match.vertices))
        if match.rule.name == self.rule and not match.vertices.isdisjoint(self.new):
            return False
        return not looked_at.isdisjoint(self.touched)


class _Frontier:
    """States to go on from: by turns the first of all, and the first of the kind that had its turn least often.

    States of one kind have the same operators. Without the kinds, the search would be lost among the many states that
    cost next to nothing more, and never go on from one that costs more.
    """

    def __init__(self, noise: float) -> None:
        """States whose estimates differ less than the `noise` cost the same."""
        self.noise = noise
        self._kinds: dict[tuple[tuple[str, int], ...], list[tuple[tuple[int, int, float], int, _State]]] = {}
        self._turns: Counter[tuple[tuple[str, int], ...]] = Counter()
        self._order = count()
        self._fair = False

    def push(self, state: _State) -> None:
        heappush(self._kinds.setdefault(state.kind, []), (state.rank(self.noise), next(self._order), state))

    def pop(self) -> _State | None:
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


_Flow = tuple[tuple[Type | None, ...], tuple[tuple[int, ...] | None, ...]]
"""What flows into a part: the types of its inputs, and their elements where these are known."""


@dataclass(eq=False)
class _Copy:
    """One part of the model, and what flows into it at each set of sizes."""

    vertices: tuple[int, ...]
    region: Region
    flows: tuple[_Flow, ...]

    @property
    def key(self) -> tuple[str, tuple[_Flow, ...]]:
        """The same for parts that are alike."""
        return digest(self.region.graph), self.flows

    @cached_property
    def numbers(self) -> Sequence[Graph]:
        """The part's graph at each set of sizes. Raises ModelError where it cannot work on one."""
        return [at_sizes(self.region.graph, *flow) for flow in self.flows]


class _Solver:
    """Finds the fastest graph for one region, in turns; `best` is the fastest so far.

    A first move that the weights of one copy refuse is tried in the others. What follows stays with that copy.
    """

    def __init__(
        self, space: Space, cost: CostModel, policy: SearchPolicy, weight: float, copies: Sequence[_Copy]
    ) -> None:
        self.space, self.cost, self.policy, self.weight, self.copies = space, cost, policy, weight, copies
        self.region = copies[0]
        self.dear = [max(cost.seconds(graph), 1e-9) for graph in self.region.numbers]
        identity = digest(self.region.region.graph)
        self.starts = [_State(copy.region.graph, (), (), 1.0, identity, held=copy.region.graph) for copy in copies]
        self.begun = Counter[tuple[str, tuple[tuple[Value, ...], ...]]]()
        self.seen = {identity}
        self.frontier, self.pool, self.holding = _Frontier(policy.timing.noise), list[_State](), list[_State]()
        self.frontier.push(self.starts[0])
        self.walk = self._walk()
        self.best: _State | None = None
        self.stop, self.trials = RegionStop(policy), 0
        self.is_explored = self.is_done = False

    def take_turn(self, is_over: Callable[[], bool]) -> None:
        """Look at some more graphs, until it is over, and measure those that promise most.

        Raises:
            NotMeasurable: the region cannot be timed.
        """
        self._explore(is_over)
        fastest = self._judge()
        self.best = fastest or self.best
        is_left = bool(self.pool) or not self.is_explored
        self.is_done = self.stop.is_done(is_better=fastest is not None, is_left=is_left)
        for state in self.holding:
            state.held = None
        self.holding.clear()

    def _explore(self, is_over: Callable[[], bool]) -> None:
        """Put some new states into the pool."""
        known, before = len(self.pool), len(self.seen)

        def is_round_over() -> bool:
            return is_over() or self.stop.is_round_over(len(self.seen) - before, len(self.pool) - known)

        while not (self.is_explored or is_round_over()):
            self.is_explored = next(self.walk, True) or self.stop.is_enough(len(self.seen))

    def _walk(self) -> Iterator[bool]:
        """Make one move after the other, best first; False after each, for there may be more."""
        while (state := self.frontier.pop()) is not None:
            for each in [state] if state.moves else self.starts:
                graph = self._graph(each)
                for move in self._moves(each, graph):
                    try:
                        self._try(each, graph, move)
                    except (Stuck, ModelError) as reason:  # of this move: what others led to stands
                        logger.debug("%s leads nowhere: %s", move.rule, reason)
                    yield False

    def _moves(self, state: _State, graph: Graph) -> Iterator[Move]:
        """Yield the moves from a state; from the region itself, those that no copy before has made, or too many
        refused."""
        found, debt = matches(graph, self.space), state.debt
        if debt is not None:
            found = {rule: [match for match in sites if debt.allows(graph, match)] for rule, sites in found.items()}
        for move in arranged(found):
            if state.moves or self.begun[move.rule, move.sites] < self.policy.refusing_copies:
                yield move

    def _try(self, state: _State, before: Graph, move: Move) -> None:
        """See what a move leads to, where the search has not been yet.

        Raises:
            Stuck: it cannot be made.
        """
        self.begun[move.rule, move.sites] += not state.moves
        graph, made, identity = self._after(before, move)
        if identity == state.identity:
            move = replace(move, simplified=False)
            graph, made, identity = self._after(before, move)
        if made.is_whole and not state.moves:
            self.begun[move.rule, move.sites] = self.policy.refusing_copies
        if identity in self.seen:
            return
        self.seen.add(identity)
        seconds = map(self.cost.seconds, self._numbers(graph))
        estimate = _mean([known / dear for known, dear in zip(seconds, self.dear, strict=True)])
        if estimate <= self.policy.slack:
            debt = None if estimate < state.estimate else _Debt.of(move, made.steps)
            kind = tuple(sorted(graph.ops().items()))
            child = _State(state.start, (*state.moves, move), kind, estimate, identity, debt, graph)
            self.frontier.push(child)
            self.pool.append(child)
            self.holding.append(child)

    def _after(self, before: Graph, move: Move) -> tuple[Graph, Advance, str]:
        graph = before.copy()
        made = advance(graph, move, self.space)
        return graph, made, digest(graph)

    def _graph(self, state: _State) -> Graph:
        if state.held is None:
            graph = state.start.copy()
            for move in state.moves:
                advance(graph, move, self.space)
            state.held = graph
            self.holding.append(state)
        return state.held

    def _numbers(self, graph: Graph) -> list[Graph]:
        """Return a graph that came of the region, at each set of sizes."""
        return [_as(graph, self.region.region.graph, known) for known in self.region.numbers]

    def _judge(self) -> _State | None:
        """Measure the most promising states of the pool; the fastest if it beats the best known."""
        if not self.pool:
            return None
        self.pool.sort(key=lambda state: state.estimate)
        enough = self.policy.measure_within * (self.best.estimate if self.best is not None else 1.0)
        chosen = [state for state in self.pool[: self.policy.measured_per_round] if state.estimate <= enough]
        if not chosen:
            return None
        after = zip(*(self._numbers(self._graph(state)) for state in chosen), strict=True)
        found = []
        for before, graphs in zip(self.region.numbers, after, strict=True):
            self.space.simplifier.check()
            found.append(self.cost.speedups(before, graphs))
        self.trials += len(chosen)
        for state, speedups in zip(chosen, zip(*found, strict=True), strict=True):
            state.speedup = together(speedups)
            self.pool.remove(state)
        fastest = max(filter(_is_faster, chosen), key=_known, default=None)
        return fastest if _known(fastest) > _known(self.best) else None


def _known(state: _State | None) -> float:
    return state.speedup.median if state is not None and state.speedup is not None else 1.0


def _is_faster(state: _State) -> bool:
    return state.speedup is not None and state.speedup.verdict is Verdict.FASTER


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def _as(graph: Graph, region: Graph, numbers: Graph) -> Graph:
    """Return a graph that came of a region, with the sizes and contents that flow into the region in `numbers`."""
    types: list[Type | None] = []
    contents: list[tuple[int, ...] | None] = []
    for vertex in region.inputs:
        types.append(numbers[vertex].types[0])
        data = numbers[vertex].data
        contents.append(None if data is None else data.ints())
    return at_sizes(graph, types, contents)


# -- the whole model ---------------------------------------------------------------------------------------------------


def explore(
    graph: Graph,
    space: Space,
    cost: CostModel,
    shapes: Sequence[Shapes] = ({},),
    policy: SearchPolicy = SearchPolicy(),
    *,
    seconds: float = inf,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Exploration:
    """Find out what to do with the parts of a graph, which is not changed; `apply` does it.

    Ctrl-C ends the search; what was found until then is returned.

    Args:
        graph: simplified already.
        shapes: of the inputs at which costs are taken, each set counting the same.
        seconds: for the search, about, at most.

    Raises:
        ModelError: the graph cannot work on these shapes.
        UsageError: the graph has no such inputs, or says something else of them.
    """
    stop = SearchStop(policy, seconds, clock)
    search = _Search(space, cost, policy, stop, progress or (lambda stage, done: None))
    try:
        search.run(graph, shapes)
    except TimeUp:
        stop.is_late = True
    except KeyboardInterrupt:
        stop.is_interrupted = True
    return search.outcome()


@dataclass(eq=False)
class _Search:
    """Solves the parts of a graph by turns."""

    space: Space
    cost: CostModel
    policy: SearchPolicy
    stop: SearchStop
    progress: Callable[[str, float], None]
    waiting: list[_Solver] = field(default_factory=list)
    """Those that are not done."""
    total: float = 0.0
    """Seconds of one run that all parts are estimated to take."""
    solutions: list[Solution] = field(default_factory=list)
    regions: int = 0
    copies: int = 0
    states: int = 0
    trials: int = 0
    notes: list[str] = field(default_factory=list)

    def run(self, graph: Graph, shapes: Sequence[Shapes]) -> None:
        classes = _classes(graph, self.space, self.cost, shapes, self.policy)
        self.regions, self.copies = len(classes), sum(len(copies) for _, copies in classes)
        self.waiting = [_Solver(self.space, self.cost, self.policy, weight, copies) for weight, copies in classes]
        self.total = sum(weight for weight, _ in classes)
        while self.waiting and not self.stop.is_over():
            self._round()

    def _round(self) -> None:
        """Give each part a turn, the dearest first. What a turn leaves of its share of the time goes to the others."""
        left = sum(solver.weight for solver in self.waiting)
        for solver in sorted(self.waiting, key=lambda solver: -solver.weight):
            open_ = sum(waiting.weight for waiting in self.waiting)
            self.progress("search", min(1.0, max(1 - open_ / self.total, self.stop.passed)))
            self._turn(solver, self.stop.turn_end(solver.weight / left))
            left -= solver.weight

    def _turn(self, solver: _Solver, until: float) -> None:
        try:
            solver.take_turn(lambda: self.stop.is_over(until))
        except NotMeasurable as error:
            solver.is_done = True
            self.stop.refuse(error)
            what = "left as it is" if solver.best is None else "not searched further"
            self.notes.append(f"a part of {len(solver.region.vertices)} nodes was {what}: {error}")
        if solver.is_done:
            remaining = self._settle(solver)
            self.waiting.remove(solver)
            if remaining:
                weight = solver.weight * len(remaining) / len(solver.copies)
                self.waiting.append(_Solver(self.space, self.cost, self.policy, weight, remaining))

    def _settle(self, solver: _Solver) -> list[_Copy]:
        """Note what was found; returns the copies whose weights do not allow it: they need a solution of their own."""
        self.states += len(solver.seen)
        self.trials += solver.trials
        best, copies = solver.best, solver.copies
        if best is None or best.speedup is None:
            return []
        remaining = [copy for copy in copies if not self._allows(copy, best)]
        able = tuple(copy.vertices for copy in copies if copy not in remaining)
        weight = solver.weight * len(able) / len(copies)
        self.solutions.append(Solution(able, best.moves, best.speedup, weight, best.identity))
        return remaining

    def _allows(self, copy: _Copy, best: _State) -> bool:
        """Return whether a part can be turned into the best graph of one that is alike but for its weights.

        Without time it is taken to be so: to carry the solution over will show it.
        """
        if copy.region.graph is best.start or self.stop.is_interrupted:
            return True
        try:
            replay(copy.region.graph.copy(), best.moves, best.identity, self.space)
        except TimeUp:
            return True
        except Stuck:
            return False
        return True

    def outcome(self) -> Exploration:
        for solver in self.waiting:
            self._settle(solver)
        solutions = sorted(self.solutions, key=lambda solution: -solution.saved)
        counts = self.regions, self.copies, self.states, self.trials
        is_steady = self.stop.is_steady and self.cost.is_steady
        reason = self.stop.reason(is_waiting=bool(self.waiting))
        return Exploration(tuple(solutions), reason, *counts, tuple(self.notes), is_steady)


def _classes(
    graph: Graph, space: Space, cost: CostModel, shapes: Sequence[Shapes], policy: SearchPolicy
) -> list[tuple[float, list[_Copy]]]:
    """Return the parts in which some rule matches, equal ones together, with what they take in all; the dearest
    first."""
    known = [_at_shapes(graph, each) for each in shapes]
    classes: dict[tuple[str, tuple[_Flow, ...]], list[_Copy]] = {}
    for vertices in _parts(graph, space, policy.blocks):
        space.simplifier.check()
        copy = _copy(graph, vertices, known)
        if copy is not None:
            classes.setdefault(copy.key, []).append(copy)
    weighed = []
    for copies in classes.values():
        space.simplifier.check()
        try:
            seconds = _mean([max(cost.seconds(numbers), 1e-9) for numbers in copies[0].numbers])
        except ModelError as error:
            logger.info("a part of %d nodes is left as it is: %s", len(copies[0].vertices), error)
        else:
            weighed.append((seconds * len(copies), copies))
    return sorted(weighed, key=lambda pair: -pair[0])


def _at_shapes(graph: Graph, shapes: Shapes) -> Graph:
    """Return the graph with numbers for all sizes of its inputs, and all else with the sizes that follow; a copy, if
    need be.

    Raises:
        ModelError: it cannot work on these sizes.
    """
    if not shapes:
        return graph
    twin = graph.copy()
    fix_inputs(twin, shapes, {})
    return twin


def _copy(graph: Graph, vertices: Sequence[int], known: Sequence[Graph]) -> _Copy | None:
    """Return a part of the model, ready to be explored; None where it cannot be cut out or its sizes are not known."""
    region = cut_out(graph, vertices)
    if region is None:
        return None
    flows = tuple(_flow(whole, region) for whole in known)
    return _Copy(tuple(vertices), region, flows) if all(_is_plain(t) for types, _ in flows for t in types) else None


def _flow(whole: Graph, region: Region) -> _Flow:
    values = [region.places[Value(vertex)] for vertex in region.graph.inputs]
    return tuple(map(whole.type, values)), tuple(_ints(whole.known_contents(value)) for value in values)


def _ints(contents: Sequence[object] | None) -> tuple[int, ...] | None:
    if contents is None:
        return None
    numbers = tuple(item for item in contents if isinstance(item, int))
    return numbers if len(numbers) == len(contents) else None


def _is_plain(type_: Type | None) -> bool:
    """Return whether it is a tensor of a known type and size."""
    if not isinstance(type_, TensorType) or type_.dtype is DType.UNDEFINED or type_.shape is None:
        return False
    return all(isinstance(size, int) for size in type_.shape)


def _parts(graph: Graph, space: Space, sizes: BlockSizes) -> list[list[int]]:
    """Return the blocks of the graph in which some rule matches; those that a match spans are one."""
    found = blocks(graph, sizes)
    where = {vertex: index for index, block in enumerate(found) for vertex in block}
    touched: set[int] = set()
    bridged: set[int] = set()
    for match in chain.from_iterable(matches(graph, space).values()):
        spanned = sorted({where[vertex] for vertex in match.vertices if vertex in where})
        touched.update(spanned)
        bridged.update(range(spanned[0] + 1, spanned[-1] + 1) if spanned else ())
    parts: list[list[int]] = []
    for index, block in enumerate(found):
        if index in bridged and len(parts[-1]) + len(block) <= sizes.most:
            parts[-1] += block
        else:
            parts.append([*block])
    return [part for part in parts if not touched.isdisjoint(where[vertex] for vertex in part)]
