"""Moves: rules of the search at places of a graph, applied and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import Var, operator_applications
from graphopt.rewrite.build import RewriteRefused, build_patch, missing_operator
from graphopt.rewrite.matching import Match, find_matches
from graphopt.rewrite.regions import Region, extract_region, graph_digest, nodes_digest
from graphopt.rewrite.simplify import RulesByRoot, Simplifier, SitePredicate, Step, rules_by_root, undo_steps
from graphopt.rewrite.sites import Site
from graphopt.runtime.measure import Speedup

logger = logging.getLogger(__name__)

OperatorKind: TypeAlias = tuple[str, str, int]
"""Domain and name of an operator, and how many operands it has."""


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at some places of a region, in turn; then the region is simplified."""

    rule: str
    """Name of the rule."""
    sites: tuple[tuple[Value, ...], ...]
    """The roots of each match, as values of the region at that point."""
    simplified: bool = True
    """False where simplifying would have undone it."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Moves that make a part of the model, and all its copies, faster."""

    copies: tuple[tuple[int, ...], ...]
    """The vertices of each copy."""
    moves: tuple[Move, ...]
    speedup: Speedup
    """Speedup of the part alone."""
    estimated_seconds: float
    """Estimated seconds of the copies in one run."""
    result: str
    """The digest of what each copy becomes."""

    @property
    def saved_seconds(self) -> float:
        """Estimated saving in one run, in seconds."""
        return self.estimated_seconds * (1 - 1 / self.speedup.median)

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that it uses, in order."""
        return tuple(dict.fromkeys(move.rule for move in self.moves))

    def changed_copies(self, steps: Iterable[Step]) -> list[tuple[int, ...]]:
        """Return the copies in which some of these steps was made for it; the weights of others did not allow it."""
        touched = {vertex for step in steps if step.cause is self for vertex in step.patch.before}
        return [copy for copy in self.copies if not touched.isdisjoint(copy)]


@dataclass(frozen=True)
class SearchSpace:
    """Moves open to a search: the rules that trade, the simplifier that tidies up after each, and the admitted sites.

    Long work calls the simplifier's `check`, which ends it by raising DeadlineExceededError.
    """

    trades: Sequence[Rule]
    simplifier: Simplifier
    allows: SitePredicate
    refusals: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """Reasons for which rules were not applied where they match, by rule and by the name of what they would replace."""
    _by_opsets: dict[tuple[tuple[str, int], ...], RulesByRoot] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def by_name(self) -> Mapping[str, Rule]:
        return {rule.name: rule for rule in self.trades}

    def candidates(self, opsets: Mapping[str, int]) -> RulesByRoot:
        """Return the rules that these opsets can express, by the operators that their left sides end in."""
        key = tuple(sorted(opsets.items()))
        if key not in self._by_opsets:
            self._by_opsets[key] = rules_by_root(rule for rule in self.trades if missing_operator(rule, opsets) is None)
        return self._by_opsets[key]


def rules_beside_trades(rules: Iterable[Rule], trades: Iterable[Rule]) -> list[Rule]:
    """Return the rules that leave what trades write: those by which to simplify takes no trade back, as they rewrite no
    operator that a trade writes whatever its operands are."""
    written = {kind for trade in trades for kind in _written_kinds(trade)}
    return [rule for rule in rules if _kind_taken_anywhere(rule) not in written]


def _kind_taken_anywhere(rule: Rule) -> OperatorKind | None:
    """Return what a rule rewrites whatever its operands are; None where they matter, or attributes or conditions do."""
    taken = rule.left[0]
    takes_any = all(isinstance(operand, Var) for operand in taken.args) and len({*taken.args}) == len(taken.args)
    if not takes_any or taken.attrs or rule.conditions or len(rule.left) > 1:
        return None
    return taken.domain, taken.op, len(taken.args)


def _written_kinds(trade: Rule) -> Iterator[OperatorKind]:
    """Yield the operators without attributes that only the right side has."""
    kept, written = ({*chain.from_iterable(map(operator_applications, side))} for side in (trade.left, trade.right))
    return ((app.domain, app.op, len(app.args)) for app in written - kept if not app.attrs)


class MoveNotApplicableError(Exception):
    """A move cannot be made here."""


class AppliedMove(NamedTuple):
    """A move that was made."""

    steps: list[Step]
    is_complete: bool
    """False if the weights at some site did not allow it; another copy's may."""


def apply_move(graph: Graph, move: Move, space: SearchSpace, found: Sequence[Match] = ()) -> AppliedMove:
    """Make a move in a region's graph, in place.

    `found` are the admitted matches at its places, where they are known of this graph or one that it is a copy of.

    Raises:
        MoveNotApplicableError: none of its places matches.
        DeadlineExceededError: the simplifier's check does; then the graph is left partly rewritten.
    """
    steps: list[Step] = []
    is_whole = _apply_rule_at_sites(graph, move, space, steps, found)
    if move.simplified:
        steps += space.simplifier.run(graph, steps).steps
    return AppliedMove(steps, is_whole)


def _apply_rule_at_sites(
    graph: Graph, move: Move, space: SearchSpace, steps: list[Step], found: Sequence[Match]
) -> bool:
    """Apply the rule of a move at its places; False where weights refused it at some place.

    Raises:
        MoveNotApplicableError: none of its places matches.
    """
    is_whole = True
    for place, site in enumerate(move.sites):
        if found and not steps:
            match = found[place]
        elif (other := match_at(graph, space.by_name[move.rule], site, space)) and _is_allowed(graph, other, space):
            match = other
        else:  # a rewrite at another place took it
            continue
        try:
            simplifier = space.simplifier
            patch = build_patch(graph, match, simplifier.refusal, simplifier.memory)
        except RewriteRefused as refused:
            logger.debug("%s: %s", move.rule, refused)
            if not refused.is_reported:
                space.refusals.setdefault(move.rule, {})[graph.value_name(match.roots[0])] = str(refused)
            is_whole = False
        else:
            graph.apply(patch)
            steps.append(Step(move.rule, graph, patch, is_rule=True))
        space.simplifier.check()
    if not steps:
        raise MoveNotApplicableError
    return is_whole


def replay_moves(
    graph: Graph,
    moves: Sequence[Move],
    result: str,
    space: SearchSpace,
    digest: Callable[[Graph], str] = graph_digest,
) -> list[Step]:
    """Make moves that were found in one copy of a part in another, in place.

    Raises:
        MoveNotApplicableError: its own weights do not allow them, or lead to another graph than the one with this
            digest, of which nothing is known.
    """
    steps = [step for move in moves for step in apply_move(graph, move, space).steps]
    if digest(graph) != result:
        raise MoveNotApplicableError
    return steps


def match_digests(graph: Graph, matches: Iterable[Match]) -> list[str]:
    """Identify the nodes of each match by `portable_digest`; empty where they cannot be cut out of their graph."""
    places = {vertex: place for place, vertex in enumerate(graph.topological_order()) if not graph[vertex].is_internal}
    return [nodes_digest(graph, sorted(match.vertices & places.keys(), key=places.__getitem__)) for match in matches]


def match_at(graph: Graph, rule: Rule, site: tuple[Value, ...], space: SearchSpace) -> Match | None:
    """Return the match of a rule with these roots."""
    if any(value.vertex not in graph for value in site):
        return None
    found = space.simplifier.memory.known_matches.find(graph, site[0].vertex, [rule])
    return next((match for _, match in found if match.roots == site), None)


def _is_allowed(graph: Graph, match: Match, space: SearchSpace) -> bool:
    return space.allows(Site.from_match(graph, match))


def find_matches_at(graph: Graph, rule: Rule, vertex: int, space: SearchSpace) -> list[Match]:
    """Return the admitted matches of a rule that end in a vertex."""
    if graph[vertex].is_internal or missing_operator(rule, graph.opsets) is not None:
        return []
    return [match for match in find_matches(rule, graph, vertex) if _is_allowed(graph, match, space)]


def find_trade_matches(graph: Graph, space: SearchSpace) -> dict[Rule, list[Match]]:
    """Return the matches of the rules that trade, producers first; one match for each set of roots."""
    found: dict[Rule, dict[frozenset[Value], Match]] = {}
    by_op = space.candidates(graph.opsets)
    for vertex in graph.topological_order():
        space.simplifier.check()
        rules = by_op.get(graph[vertex].op, ())
        for rule, match in space.simplifier.memory.known_matches.find(graph, vertex, rules) if rules else ():
            if _is_allowed(graph, match, space):
                found.setdefault(rule, {}).setdefault(frozenset(match.roots), match)
    return {rule: list(sites.values()) for rule, sites in found.items()}


def enumerate_moves(found: Mapping[Rule, Sequence[Match]]) -> Iterator[tuple[Move, Sequence[Match]]]:
    """Yield each rule at all places where it matches, then at each place alone; with the matches."""
    for rule, sites in found.items():
        if len(sites) > 1:
            yield Move(rule.name, tuple(match.roots for match in sites)), sites
    for rule, sites in found.items():
        for match in sites:
            yield Move(rule.name, (match.roots,)), [match]


def apply_solution(
    graph: Graph, solution: Solution, space: SearchSpace, digest: Callable[[Graph], str] = graph_digest
) -> list[Step]:
    """Carry a solution over to every copy, in place; a copy whose weights do not allow it stays as it is.

    `digest` is what identifies the result.

    Raises:
        DeadlineExceededError: the simplifier's check does; then the graph is left partly rewritten.
    """
    steps: list[Step] = []
    for vertices in solution.copies:
        region = extract_region(graph, vertices) if all(vertex in graph for vertex in vertices) else None
        if region is None:
            logger.debug("a copy of the part is no longer there")
            continue
        try:
            made = replay_moves(region.graph, solution.moves, solution.result, space, digest)
        except MoveNotApplicableError:
            logger.debug("%s cannot be done in a copy of the part", ", ".join(solution.rules))
            continue
        steps += _carry_steps(region, made, solution, space)
    return steps


def _carry_steps(region: Region, made: Iterable[Step], solution: Solution, space: SearchSpace) -> list[Step]:
    """Carry the steps of a part over to the whole; none of them where one patch is refused there."""
    steps: list[Step] = []
    for step in made:
        patch = region.carry_patch(step.patch)
        if space.simplifier.refusal is not None and (reason := space.simplifier.refusal(region.whole, patch)):
            logger.debug("%s is left out in a copy of the part: %s", step.name, reason)
            undo_steps(steps)
            return []
        region.whole.apply(patch)
        steps.append(Step(step.name, region.whole, patch, step.is_rule, solution))
    return steps
