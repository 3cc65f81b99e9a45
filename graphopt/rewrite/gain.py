"""What a rewrite takes off the measure, before anything is built."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.language.term import SCALAR, App, Term
from graphopt.operators import facts
from graphopt.operators.classes import entry
from graphopt.operators.operator import HEAVY
from graphopt.rewrite.build import doomed, is_constant, staying
from graphopt.rewrite.match import Match


def gain_at_least(graph: Graph, match: Match) -> int:
    """Return a lower bound of what a rewrite takes off the measure, before anything is computed."""
    removed = sum(facts.weight(graph[vertex]) for vertex in doomed(graph, match))
    return removed - sum(_weights(match))


def repeats(graph: Graph, match: Match) -> bool:
    """Return whether a rewrite computes something heavy though a heavy part of the match stays, for others read it.

    The measure counts operators alone: by it a dense product is less than two of low rank. Beside one that others read
    no product is added to its weights, then, also where that would be as large.
    """
    if all(weight < HEAVY for weight in _weights(match)):
        return False
    stays = match.vertices - doomed(graph, match) - staying(match)
    return any(facts.weight(graph[vertex]) >= HEAVY for vertex in stays)


def _weights(match: Match) -> list[int]:
    """Return what each operator weighs that the right side emits."""
    emitted = set[App]().union(*(_emitted(side, match.terms.keys()) for side in match.rule.right))
    return [entry(app.op, app.domain).weight for app in emitted]


def _emitted(term: Term, shared: Iterable[App]) -> set[App]:
    if not isinstance(term, App) or term.domain == SCALAR or is_constant(term) or term in shared:
        return set()
    return {term.node}.union(*(_emitted(arg, shared) for arg in term.operands))
