"""Sweeps: rules that pay only together, and only everywhere, such as those that turn stacks of matrices into matrices.

A search looks at one part of a model at a time, and on a part their views cost as much as they bring. So each sweep is
made on the whole model, and timed as a whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.ir import ops
from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.operators.classes import beside, entry
from graphopt.rewrite.build import doomed, staying
from graphopt.rewrite.candidate import Candidate
from graphopt.rewrite.fixpoint import Step, TimeUp
from graphopt.rewrite.match import Match
from graphopt.search.moves import Move, Space, Stuck, advance, matches
from graphopt.search.policy import SearchPolicy

log = logging.getLogger(__name__)

Sweeps = Mapping[str, Sequence[Rule]]
"""By what they are for: rules, those first which are to be applied first."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rules that were applied wherever they match: the cause of the steps that were made."""

    name: str
    rules: tuple[str, ...]
    """Those that matched somewhere."""


def sweep(start: Candidate, name: str, rules: Sequence[Rule], space: Space, policy: SearchPolicy) -> Candidate | None:
    """Apply rules that trade wherever they match until none does; simplify after each.

    None where none matched, there was no end or no time, or nothing came of it but other words.
    """
    only = Space(rules, space.simplifier, space.allows)

    def change(graph: Graph) -> Iterator[Step]:
        used: dict[str, None] = {}
        steps = _swept(graph, only, used, policy.sweep_rounds)
        made = Sweep(name, tuple(used))
        return (replace(step, cause=made) for step in steps)

    try:
        result = start.then(change)
    except TimeUp:
        log.info("there is no time for the sweep '%s'", name)
        return None
    except _Endless:
        log.warning("the sweep '%s' did not come to an end and is left", name)
        return None
    if result is start or _is_idle(start.graph, result.graph):
        return None
    return result


def _is_idle(before: Graph, after: Graph) -> bool:
    """Return whether parts are only taken by other operators, and views are others: there is nothing to time."""
    return len(after) >= len(before) and _beside_parts(before) == _beside_parts(after)


def _beside_parts(graph: Graph) -> Counter[tuple[str, ...]]:
    """Return how many nodes there are of each kind: of the same operator and attributes, on the same types."""
    nodes = (node for _, node in graph.nodes() if not entry(node.op, node.domain).is_view)
    return Counter(
        (
            node.domain,
            node.op,
            *map(str, (node.types, [graph.tensor_type(value) for value in node.operands], node.attrs)),
        )
        for node in nodes
        if not entry(node.op, node.domain).takes_parts
    )


def _is_shared(graph: Graph, match: Match) -> bool:
    """Return whether others read what a match computes inside: with its rewrite, that would be computed twice.

    A Transpose that goes below an elementwise operator may be read by others, as in x * Sigmoid(x): it follows there.
    """
    is_elementwise = all(side.domain in (ops.ANY_POINTWISE, ops.ANY_BINARY) for side in match.rule.family.left)
    inner = match.vertices - {root.vertex for root in match.roots}
    computed = {
        vertex
        for vertex in inner
        if not (is_elementwise and graph[vertex].op == "Transpose" and _is_read_by_elements(graph, vertex))
        and not entry(graph[vertex].op, graph[vertex].domain).is_view
    }
    return not computed <= doomed(graph, match) | staying(match)


def _is_read_by_elements(graph: Graph, vertex: int) -> bool:
    """Return whether all that read an output of a vertex, or a view of it, compute each element by itself."""
    return all(
        _is_read_by_elements(graph, reader)
        if entry(graph[reader].op, graph[reader].domain).is_view
        else beside(graph[reader].op, graph[reader].domain) is not None
        for reader in graph.readers(vertex)
    )


class _Endless(Exception):
    """The rules of a sweep undo each other."""


def _swept(graph: Graph, space: Space, used: dict[str, None], rounds: int) -> list[Step]:
    """Make the steps, in place; note the rules that were used."""
    done: list[Step] = []
    stuck: set[tuple[Rule, tuple[Value, ...]]] = set()
    for _ in range(rounds + len(graph)):
        found = matches(graph, space)
        for rule in space.trades:
            able = [match for match in found.get(rule, ()) if (rule, match.roots) not in stuck]
            places = tuple(match.roots for match in able if not _is_shared(graph, match))
            try:
                done += advance(graph, Move(rule.name, places), space).steps
            except Stuck:  # nothing was done, so what was found still holds
                stuck |= {(rule, roots) for roots in places}
            else:
                used[rule.name] = None
                break
        else:
            return done
    raise _Endless
