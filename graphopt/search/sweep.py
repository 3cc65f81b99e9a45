"""Sweeps: rules that pay only together, and only everywhere, such as those that turn stacks of matrices into matrices.

A search looks at one part of a model at a time, and there the views that such rules add cost as much as they save. So
each sweep is made on the whole model, and timed as a whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node, Value
from graphopt.language.rule import Rule
from graphopt.operators.operator_classes import extra_operands, lookup_operator
from graphopt.rewrite.build import dead_after_rewrite, reused_vertices
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.matching import Match
from graphopt.rewrite.simplify import DeadlineExceededError, Step
from graphopt.search.moves import (
    Move,
    MoveNotApplicableError,
    SearchSpace,
    apply_move,
    find_trade_matches,
    match_digests,
)
from graphopt.search.policy import SearchPolicy

log = logging.getLogger(__name__)

SweepRules = Mapping[str, Sequence[Rule]]
"""Rules of each sweep, by its purpose, in the order in which they are applied."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rules that were applied wherever they match, as the cause of steps."""

    name: str
    rules: tuple[str, ...]
    """Rules that matched somewhere."""
    losing_places: tuple[str, ...] = ()
    """Digests of the nodes at the places that were left as they are, for there it costs more than it saves."""


def apply_sweep(
    start: Candidate,
    name: str,
    rules: Sequence[Rule],
    space: SearchSpace,
    policy: SearchPolicy,
    losing_places: Collection[str] = (),
) -> Candidate | None:
    """Apply rules that trade wherever they match until none does, then simplify, as often as that brings about matches.

    Return None where none matched, the rules undo each other, time is up, or the result has the same operators. What
    was refused is noted among the refusals of the `space`. Places whose nodes have one of the digests `losing_places`
    stay as they are.
    """
    only = SearchSpace(rules, space.simplifier, space.allows, space.refusals)

    def change(graph: Graph) -> Iterator[Step]:
        used: dict[str, None] = {}
        steps = _apply_sweep_rules(graph, found, only, used, policy.sweep_rounds, losing_places)
        made = Sweep(name, tuple(used), tuple(sorted(losing_places)))
        return (replace(step, cause=made) for step in steps)

    try:
        found = _sweepable_matches(start.graph, only, losing_places)
        result = start.derive(change) if found else start
    except DeadlineExceededError:
        log.info("there is no time for the sweep '%s'", name)
        return None
    except _EndlessSweepError:
        log.warning("the sweep '%s' did not come to an end and is left", name)
        return None
    if result is start:
        return None
    before, after = start.graph, result.graph
    if len(after) >= len(before) and _have_same_operators(before, after):
        return None  # only views and slicing operators are others: there is nothing to time
    return result


def _sweepable_matches(graph: Graph, space: SearchSpace, losing_places: Collection[str]) -> dict[Rule, list[Match]]:
    """Return the matches of a sweep's rules, without those whose nodes have one of the digests of `losing_places`."""
    found = find_trade_matches(graph, space)
    if not losing_places:
        return found
    kept: dict[Rule, list[Match]] = {}
    for rule, matches in found.items():
        digests = match_digests(graph, matches)
        kept[rule] = [each for each, digest in zip(matches, digests, strict=True) if digest not in losing_places]
    return kept


def _have_same_operators(one: Graph, other: Graph) -> bool:
    """Return whether two graphs have as many nodes of each kind, but for views and slicing operators."""
    sides = [(graph, [*_computing_nodes(graph)]) for graph in (one, other)]
    for kind_of in (_operator_of, _kind_of):  # most graphs differ in their operators already
        first, second = (Counter(kind_of(graph, node) for node in nodes) for graph, nodes in sides)
        if first != second:
            return False
    return True


def _computing_nodes(graph: Graph) -> Iterator[Node]:
    operators = ((node, lookup_operator(node.op, node.domain)) for _, node in graph.nodes())
    return (node for node, operator in operators if not (operator.is_view or operator.is_slicing))


def _operator_of(_: Graph, node: Node) -> tuple[str, ...]:
    return node.domain, node.op


def _kind_of(graph: Graph, node: Node) -> tuple[str, ...]:
    """Return the kind of a node: its operator and attributes, and the types that it has."""
    operands = [graph.tensor_type(value) for value in node.operands]
    return node.domain, node.op, *map(str, (node.types, operands, node.attrs))


def _without_outside_readers(graph: Graph, matches: Sequence[Match]) -> Sequence[Match]:
    """Return the matches inside of which no value is read by others than these matches: its rewrite would have it
    computed twice."""
    while True:
        dead = dead_after_rewrite(graph, *matches)
        found = [match for match in matches if _inner_computations(graph, match) <= dead | reused_vertices(match)]
        if len(found) == len(matches):
            return found
        matches = found  # what those that are left out read stays


def _inner_computations(graph: Graph, match: Match) -> set[int]:
    """Return the vertices inside a match that compute something.

    A Transpose that moves below an elementwise operator may be read by others, as in x * Sigmoid(x): it moves below
    these, too.
    """
    is_elementwise = all(
        side.domain in (schemas.ANY_POINTWISE, schemas.ANY_BINARY) for side in match.rule.generalized.left
    )
    inner = match.vertices - {root.vertex for root in match.roots}
    return {
        vertex
        for vertex in inner
        if not (is_elementwise and graph[vertex].op == "Transpose" and _is_read_elementwise(graph, vertex))
        and not lookup_operator(graph[vertex].op, graph[vertex].domain).is_view
    }


def _is_read_elementwise(graph: Graph, vertex: int) -> bool:
    """Return whether all readers of a vertex, or of views of it, are elementwise."""
    return all(
        _is_read_elementwise(graph, reader)
        if lookup_operator(graph[reader].op, graph[reader].domain).is_view
        else extra_operands(graph[reader].op, graph[reader].domain) is not None
        for reader in graph.readers(vertex)
    )


class _EndlessSweepError(Exception):
    """The rules of a sweep undo each other."""


def _apply_sweep_rules(
    graph: Graph,
    found: Mapping[Rule, Sequence[Match]],
    space: SearchSpace,
    used: dict[str, None],
    rounds: int,
    losing_places: Collection[str],
) -> list[Step]:
    """Make the steps, in place, from the first matches on; note the rules that were used.

    To simplify takes longest, so that is done where no rule matches any more; it may bring about further matches.
    """
    done: list[Step] = []
    pending: list[Step] = []
    stuck: set[tuple[Rule, tuple[Value, ...]]] = set()
    for _ in range(rounds + len(graph)):
        for rule in space.trades:
            able = [match for match in found.get(rule, ()) if (rule, match.roots) not in stuck]
            places = tuple(match.roots for match in _without_outside_readers(graph, able))
            try:
                pending += apply_move(graph, Move(rule.name, places, simplified=False), space).steps
            except MoveNotApplicableError:  # nothing was changed, so the matches still hold
                stuck |= {(rule, roots) for roots in places}
            else:
                used[rule.name] = None
                break
        else:
            if not pending:
                return done
            done += [*pending, *space.simplifier.run(graph, pending).steps]
            pending = []
        found = _sweepable_matches(graph, space, losing_places)
    raise _EndlessSweepError
