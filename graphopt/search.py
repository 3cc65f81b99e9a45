"""The explore phase: rules that pay in some models only, tried best first on each distinct part of a model.

A part is cut out where few values cross, solved in a small graph of its own and carried over to all its copies, so that
a model of 24 equal layers costs one layer. A sequence whose first step costs and whose later steps pay is found, as
long as no step costs more than the slack.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush
from itertools import count
from math import exp, inf, log

from graphopt.cost import CostModel, NotMeasurable
from graphopt.errors import ModelError
from graphopt.fixpoint import Allows, Simplifier, Step, computed_types, read_types
from graphopt.graph import Graph, Value
from graphopt.infer import fix_inputs
from graphopt.match import Match, find, producers
from graphopt.measure import Speedup, Verdict, together
from graphopt.regions import MOST, Region, at_sizes, blocks, cut_out, digest
from graphopt.rewrite import Refused, build, lacking
from graphopt.rule import Rule
from graphopt.types import DType, TensorType, Type

logger = logging.getLogger(__name__)

Shapes = Mapping[str, Sequence[int]]
"""Sizes of the inputs of a model, by name."""


class StopReason(StrEnum):
    """Why a search came to its end."""

    DONE = "nothing was left to try"
    TIME = "the time was up"
    INTERRUPTED = "it was interrupted"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to leave off."""

    seconds: float = 60.0
    states: int = 150
    """Graphs looked at for one region."""
    trials: int = 6
    """Graphs measured beside a region in one go."""
    slack: float = 1.6
    """How many times as dear as the region a step on the way may be, by estimate."""
    doubt: float = 1.25
    """How many times as dear as the best known a graph may be, by estimate, to be measured."""
    patience: int = 2
    """Goes without an improvement after which a region is left."""


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at some places of a region, in turn; then the region is simplified."""

    rule: Rule
    sites: tuple[tuple[Value, ...], ...]
    """The roots of each match, as values of the region at that point."""
    simplified: bool = True
    """False where simplifying would have undone it."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What to do with a part of the model, and with all its copies."""

    copies: tuple[tuple[int, ...], ...]
    """The vertices of each copy."""
    moves: tuple[Move, ...]
    speedup: Speedup
    """Of the part alone."""
    weight: float
    """What the copies were estimated to take, in seconds of one run."""

    @property
    def saved(self) -> float:
        """Seconds of one run that are hoped for."""
        return self.weight * (1 - 1 / self.speedup.median)

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that it uses, in order."""
        return tuple(dict.fromkeys(move.rule.name for move in self.moves))


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


@dataclass(frozen=True)
class Space:
    """What a search may do: the rules that trade, what it tidies up with, and which rules are admitted."""

    trades: Sequence[Rule]
    simplifier: Simplifier
    allows: Allows


# -- moves -------------------------------------------------------------------------------------------------------------


class Stuck(Exception):
    """A move cannot be made here."""


def advance(graph: Graph, move: Move, space: Space) -> list[Step]:
    """Make a move in a region's graph, in place, and return what was done.

    Raises:
        Stuck: none of its places matches.
    """
    steps = []
    for site in move.sites:
        match = _at(graph, move.rule, site)
        patch = None
        if match is not None:
            try:
                patch = build(graph, match)
            except Refused as refused:
                logger.debug("%s: %s", move.rule.name, refused)
        if patch is not None:
            graph.apply(patch)
            steps.append(Step(move.rule.name, graph, patch, is_rule=True))
    if not steps:
        raise Stuck
    if move.simplified:
        steps += space.simplifier.run(graph).steps
    return steps


def _at(graph: Graph, rule: Rule, site: tuple[Value, ...]) -> Match | None:
    """The match of a rule with these roots."""
    if any(value.vertex not in graph for value in site):
        return None
    return next((match for match in find(rule, graph, site[0].vertex) if match.roots == site), None)


def matches(graph: Graph, space: Space) -> dict[Rule, list[tuple[Value, ...]]]:
    """Where the rules that trade may be applied: the roots of their matches, by rule, producers first."""
    found: dict[Rule, dict[frozenset[Value], tuple[Value, ...]]] = {}
    by_op = _by_op(space.trades, graph.opsets)
    for vertex in graph.topological():
        made_by = {graph[source].op for source in graph.sources(vertex)}
        for rule, needed in by_op.get(graph[vertex].op, ()):
            for match in find(rule, graph, vertex) if needed <= made_by else ():
                if space.allows(rule, computed_types(graph, match), read_types(graph, match)):
                    found.setdefault(rule, {}).setdefault(frozenset(match.roots), match.roots)
    return {rule: list(sites.values()) for rule, sites in found.items()}


def _by_op(trades: Iterable[Rule], opsets: Mapping[str, int]) -> Mapping[str, Sequence[tuple[Rule, frozenset[str]]]]:
    by_op: dict[str, dict[tuple[Rule, frozenset[str]], None]] = {}
    for rule in trades:
        for side in rule.left if lacking(rule, opsets) is None else ():
            by_op.setdefault(side.op, {})[rule, producers(side)] = None
    return {op: tuple(found) for op, found in by_op.items()}


def moves(graph: Graph, space: Space) -> Iterator[Move]:
    """Each rule wherever it matches, then at each place alone."""
    found = matches(graph, space)
    for rule, sites in found.items():
        if len(sites) > 1:
            yield Move(rule, tuple(sites))
    for rule, sites in found.items():
        for site in sites:
            yield Move(rule, (site,))


# -- one region --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _State:
    """A graph that a region can be turned into."""

    graph: Graph
    moves: tuple[Move, ...]
    numbers: Sequence[Graph]
    """The graph at each set of sizes."""
    estimate: float
    """How many times as dear as the region it is thought to be."""
    speedup: Speedup | None = None


@dataclass(eq=False)
class _Copy:
    """One part of the model, and what flows into it at each set of sizes."""

    vertices: tuple[int, ...]
    region: Region
    numbers: Sequence[Graph]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(map(digest, (self.region.graph, *self.numbers)))


class _Solver:
    """Finds the fastest graph for one region."""

    def __init__(self, space: Space, cost: CostModel, limits: Limits, over: Callable[[], bool]) -> None:
        self.space, self.cost, self.limits, self.over = space, cost, limits, over
        self.states = self.trials = 0

    def solve(self, copy: _Copy) -> tuple[tuple[Move, ...], Speedup] | None:
        """The moves to the fastest graph and what they bring; None where nothing is faster."""
        self.region = copy
        self.dear = [max(self.cost.seconds(graph), 1e-9) for graph in copy.numbers]
        start = _State(copy.region.graph, (), copy.numbers, 1.0)
        self.seen = {_identity(start)}
        order, frontier, pool = count(), [(1.0, 0, start)], list[_State]()
        best, idle = start, 0
        while frontier and idle < self.limits.patience and len(self.seen) < self.limits.states and not self.over():
            for _ in range(self.limits.trials):
                if not frontier or self.over():
                    break
                for child in self._children(heappop(frontier)[2]):
                    heappush(frontier, (child.estimate, next(order) + 1, child))
                    pool.append(child)
            improved = self._judge(pool, best)
            idle = 0 if improved is not None else idle + 1
            best = improved or best
        self.states += len(self.seen)
        return None if best is start or best.speedup is None else (best.moves, best.speedup)

    def _children(self, state: _State) -> Iterator[_State]:
        for move in moves(state.graph, self.space):
            if len(self.seen) >= self.limits.states or self.over():
                return
            for simplified in (True, False):
                child = self._child(state, replace(move, simplified=simplified))
                if child is not None and _identity(child) not in self.seen:
                    self.seen.add(_identity(child))
                    if child.estimate <= self.limits.slack:
                        yield child
                    break

    def _child(self, state: _State, move: Move) -> _State | None:
        graph = state.graph.copy()
        try:
            advance(graph, move, self.space)
        except Stuck:
            return None
        numbers = [_as(graph, self.region.region.graph, known) for known in self.region.numbers]
        ratios = [self.cost.seconds(known) / dear for known, dear in zip(numbers, self.dear, strict=True)]
        return _State(graph, (*state.moves, move), numbers, _mean(ratios))

    def _judge(self, pool: list[_State], best: _State) -> _State | None:
        """Measure the most promising states of the pool; the fastest if it beats the best known."""
        pool.sort(key=lambda state: state.estimate)
        cheapest = pool[0].estimate if pool else inf
        promising = [state for state in pool if state.estimate <= self.limits.doubt * max(cheapest, best.estimate)]
        chosen = promising[: self.limits.trials]
        if not chosen:
            return None
        found = [
            self.cost.speedups(before, [state.numbers[index] for state in chosen])
            for index, before in enumerate(self.region.numbers)
        ]
        self.trials += len(chosen)
        for state, speedups in zip(chosen, zip(*found, strict=True), strict=True):
            state.speedup = together(speedups)
            pool.remove(state)
        fastest = max(chosen, key=_known)
        return fastest if _is_faster(fastest) and _known(fastest) > _known(best) else None


def _known(state: _State) -> float:
    return state.speedup.median if state.speedup is not None else 1.0


def _is_faster(state: _State) -> bool:
    return state.speedup is not None and state.speedup.verdict is Verdict.FASTER


def _identity(state: _State) -> str:
    return digest(state.graph)


def _mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def _as(graph: Graph, region: Graph, numbers: Graph) -> Graph:
    """A graph that came of a region, with the sizes and contents that flow into the region in `numbers`."""
    types: list[Type | None] = []
    contents: list[tuple[int, ...] | None] = []
    for vertex in region.inputs:
        types.append(numbers[vertex].types[0])
        data = numbers[vertex].data
        contents.append(None if data is None else data.ints())
    return at_sizes(graph, types, contents)


# -- the whole model ---------------------------------------------------------------------------------------------------


@dataclass
class _Progress:
    states: int = 0
    trials: int = 0
    notes: list[str] = field(default_factory=list)


def explore(
    graph: Graph,
    space: Space,
    cost: CostModel,
    shapes: Sequence[Shapes] = ({},),
    limits: Limits = Limits(),
    *,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Exploration:
    """Find out what to do with the parts of a graph, which is not changed; `apply` does it.

    Ctrl-C ends the search; what was found until then is returned.

    Args:
        graph: simplified already.
        shapes: of the inputs at which costs are taken, each set counting the same.
    """
    tell = progress or (lambda stage, done: None)
    start = clock()
    classes = _classes(graph, space, cost, shapes)
    done = _Progress()
    solutions: list[Solution] = []
    stop = StopReason.DONE
    left = sum(weight for weight, _ in classes)
    try:
        for number, (weight, copies) in enumerate(classes):
            tell("search", number / len(classes))
            now = clock() - start
            if now >= limits.seconds:
                stop = StopReason.TIME
                break
            share = now + max((limits.seconds - now) * weight / left, limits.seconds / 20)
            until = start + min(share, limits.seconds)
            left -= weight
            solver = _Solver(space, cost, limits, lambda until=until: clock() >= until)  # type: ignore[misc]
            found = _solved(solver, copies[0], done)
            if found is not None:
                solutions.append(Solution(tuple(copy.vertices for copy in copies), *found, weight))
            done.states += solver.states
            done.trials += solver.trials
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPTED
    solutions.sort(key=lambda solution: -solution.saved)
    count_ = sum(len(copies) for _, copies in classes)
    return Exploration(tuple(solutions), stop, len(classes), count_, done.states, done.trials, tuple(done.notes))


def _solved(solver: _Solver, copy: _Copy, done: _Progress) -> tuple[tuple[Move, ...], Speedup] | None:
    try:
        return solver.solve(copy)
    except NotMeasurable as error:
        done.notes.append(f"a part of {len(copy.vertices)} nodes was left as it is: {error}")
        return None


def _classes(graph: Graph, space: Space, cost: CostModel, shapes: Sequence[Shapes]) -> list[tuple[float, list[_Copy]]]:
    """The parts in which some rule matches, equal ones together, with what they take in all; the dearest first."""
    known = [_at_shapes(graph, each) for each in shapes]
    classes: dict[tuple[str, ...], list[_Copy]] = {}
    for vertices in _parts(graph, space):
        copy = _copy(graph, vertices, known)
        if copy is not None:
            classes.setdefault(copy.key, []).append(copy)
    weighed = [
        (_mean([max(cost.seconds(numbers), 1e-9) for numbers in copies[0].numbers]) * len(copies), copies)
        for copies in classes.values()
    ]
    return sorted(weighed, key=lambda pair: -pair[0])


def _at_shapes(graph: Graph, shapes: Shapes) -> Graph:
    """A copy of the graph whose inputs have numbers for all their sizes, and all else the sizes that follow.

    Raises:
        ModelError: it cannot work on these sizes.
    """
    twin = graph.copy()
    if shapes:
        fix_inputs(twin, shapes, {})
    return twin


def _copy(graph: Graph, vertices: Sequence[int], known: Sequence[Graph]) -> _Copy | None:
    """A part of the model, ready to be explored; None where it cannot be cut out or its sizes are not known."""
    region = cut_out(graph, vertices)
    if region is None:
        return None
    numbers = []
    for whole in known:
        types = [whole.type(region.places[Value(vertex)]) for vertex in region.graph.inputs]
        contents = [_ints(whole.known_contents(region.places[Value(vertex)])) for vertex in region.graph.inputs]
        if not all(map(_is_plain, types)):
            return None
        try:
            numbers.append(at_sizes(region.graph, types, contents))
        except ModelError as error:
            logger.info("a part of %d nodes is left as it is: %s", len(vertices), error)
            return None
    return _Copy(tuple(vertices), region, numbers)


def _ints(contents: Sequence[object] | None) -> tuple[int, ...] | None:
    if contents is None:
        return None
    numbers = tuple(item for item in contents if isinstance(item, int))
    return numbers if len(numbers) == len(contents) else None


def _is_plain(type_: Type | None) -> bool:
    """A tensor of a known type and size."""
    if not isinstance(type_, TensorType) or type_.dtype is DType.UNDEFINED or type_.shape is None:
        return False
    return all(isinstance(size, int) for size in type_.shape)


def _parts(graph: Graph, space: Space) -> list[list[int]]:
    """The blocks of the graph in which some rule matches; those that a match spans are one."""
    found = blocks(graph)
    where = {vertex: index for index, block in enumerate(found) for vertex in block}
    touched: set[int] = set()
    bridged: set[int] = set()
    for rule, sites in matches(graph, space).items():
        for site in sites:
            spanned = {where[vertex] for vertex in _spanned(graph, rule, site) if vertex in where}
            touched |= spanned
            bridged.update(range(min(spanned) + 1, max(spanned) + 1))
    parts: list[list[int]] = []
    for index, block in enumerate(found):
        if index in bridged and len(parts[-1]) + len(block) <= MOST:
            parts[-1] += block
        else:
            parts.append([*block])
    return [part for part in parts if not touched.isdisjoint(where[vertex] for vertex in part)]


def _spanned(graph: Graph, rule: Rule, site: tuple[Value, ...]) -> Iterable[int]:
    """The vertices that a match reaches: those that it takes away and those that it starts from."""
    match = _at(graph, rule, site)
    return match.vertices if match is not None else ()


# -- doing it ----------------------------------------------------------------------------------------------------------


def apply(graph: Graph, solution: Solution, space: Space) -> list[Step]:
    """Carry a solution over to every copy, in place; a copy whose own weights do not allow it stays as it is."""
    steps: list[Step] = []
    for vertices in solution.copies:
        region = cut_out(graph, vertices) if all(vertex in graph for vertex in vertices) else None
        if region is None:
            logger.info("a copy of the part is no longer there")
            continue
        try:
            made = [step for move in solution.moves for step in advance(region.graph, move, space)]
        except Stuck:
            logger.info("%s cannot be done in a copy of the part", ", ".join(solution.rules))
            continue
        for step in made:
            patch = region.carry(step.patch)
            graph.apply(patch)
            steps.append(Step(step.name, graph, patch, step.is_rule))
    return steps
