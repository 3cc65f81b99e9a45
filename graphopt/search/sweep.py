"""Sweeps: rules that pay only together, and only everywhere, such as those that turn stacks of matrices into matrices.

A search looks at one part of a model at a time, and on a part their views cost as much as they bring. So each sweep is
made on the whole model, and timed as a whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.ir import ops
from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.operators.classes import entry
from graphopt.rewrite.build import doomed, staying
from graphopt.rewrite.fixpoint import Step, TimeUp
from graphopt.rewrite.match import Match
from graphopt.rewrite.variant import Variant
from graphopt.search.moves import Move, Space, Stuck, advance, matches

log = logging.getLogger(__name__)

Sweeps = Mapping[str, Sequence[Rule]]
"""By what they are for: rules, those first which are to be applied first."""

ROUNDS = 40
"""After so many, and one for each node, a sweep is given up: its rules undo each other, or what simplifies undoes
them."""

TAKES_PARTS = frozenset({"Gather", "Slice"})
"""Operators of which one in the place of another is no gain by itself."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Rules that were applied wherever they match, and what came of it."""

    name: str
    rules: tuple[str, ...]
    """Those that matched somewhere."""
    result: Variant


def sweep(start: Variant, name: str, rules: Sequence[Rule], space: Space) -> Sweep | None:
    """Apply rules that trade wherever they match until none does; simplify after each.

    None where none matched, there was no end or no time, or nothing came of it but other words.
    """
    used: dict[str, None] = {}
    only = Space(rules, space.simplifier, space.allows)
    try:
        result = start.then(lambda graph: _swept(graph, only, used))
    except TimeUp:
        log.info("there is no time for the sweep '%s'", name)
        return None
    except _Endless:
        log.warning("the sweep '%s' did not come to an end and is left", name)
        return None
    if result is start or _is_idle(start.graph, result.graph):
        return None
    return Sweep(name, tuple(used), result)


def _is_idle(before: Graph, after: Graph) -> bool:
    """Return whether parts are only taken by other operators, and views are others: there is nothing to time."""
    return len(after) >= len(before) and _beside_parts(before) == _beside_parts(after)


def _beside_parts(graph: Graph) -> Counter[tuple[str, ...]]:
    """Return how many nodes there are of each kind: of the same operator and attributes, on the same types."""
    nodes = (node for _, node in graph.nodes() if not entry(node.op, node.domain).is_view)
    return Counter(
        (node.op, str(node.types), str([graph.tensor_type(value) for value in node.operands]), str(node.attrs))
        for node in nodes
        if node.op not in TAKES_PARTS
    )


def _once(graph: Graph, found: Mapping[Rule, Sequence[Match]]) -> dict[Rule, list[Match]]:
    """Return the matches but those that replace what is computed for others, too: there it would be computed twice."""
    kept = {rule: [match for match in sites if not _is_shared(graph, match)] for rule, sites in found.items()}
    return {rule: sites for rule, sites in kept.items() if sites}


def _is_shared(graph: Graph, match: Match) -> bool:
    """Return whether others read what a match computes inside.

    A Transpose that goes below an elementwise operator may be read by others, as in x * Sigmoid(x): it follows there.
    """
    is_elementwise = all(side.domain in (ops.ANY_POINTWISE, ops.ANY_BINARY) for side in match.rule.family.left)
    inner = match.vertices - {root.vertex for root in match.roots}
    computed = {
        vertex
        for vertex in inner
        if not (is_elementwise and graph[vertex].op == "Transpose")
        and not entry(graph[vertex].op, graph[vertex].domain).is_view
    }
    return not computed <= doomed(graph, match) | staying(match)


class _Endless(Exception):
    """The rules of a sweep undo each other."""


def _swept(graph: Graph, space: Space, used: dict[str, None]) -> list[Step]:
    """Make the steps, in place; note the rules that were used."""
    done: list[Step] = []
    stuck: set[tuple[Rule, tuple[Value, ...]]] = set()
    for _ in range(ROUNDS + len(graph)):
        found = _once(graph, matches(graph, space))
        for rule in space.trades:
            places = tuple(match.roots for match in found.get(rule, ()) if (rule, match.roots) not in stuck)
            if places:
                break
        else:
            return done
        try:
            done += advance(graph, Move(rule.name, places), space).steps
            used[rule.name] = None
        except Stuck:
            stuck |= {(rule, roots) for roots in places}
    raise _Endless
