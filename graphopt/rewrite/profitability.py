"""Estimates of what a rewrite takes off the measure, before anything is built."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.language.terms import SCALAR, App, Term
from graphopt.operators import node_facts
from graphopt.operators.operator import HEAVY_WEIGHT
from graphopt.operators.operator_classes import lookup_operator
from graphopt.rewrite.build import dead_after_rewrite, is_constant_term, reused_vertices
from graphopt.rewrite.matching import Match


def min_measure_decrease(graph: Graph, match: Match) -> int:
    """Return a lower bound of the decrease of the measure, before anything is computed."""
    removed = sum(node_facts.node_weight(graph[vertex]) for vertex in dead_after_rewrite(graph, match))
    return removed - sum(_emitted_weights(match))


def repeats_heavy_work(graph: Graph, match: Match) -> bool:
    """Return whether a rewrite computes something heavy though a heavy part of the match stays, for others read it.

    The measure counts operators alone: by it, one dense product is less than two of low rank. So where others read a
    product, no second one is computed beside it from folded weights, even if that would be no larger.
    """
    if all(weight < HEAVY_WEIGHT for weight in _emitted_weights(match)):
        return False
    stays = match.vertices - dead_after_rewrite(graph, match) - reused_vertices(match)
    return any(node_facts.node_weight(graph[vertex]) >= HEAVY_WEIGHT for vertex in stays)


def emitted_operators(match: Match) -> set[App]:
    """Return the operators that the right side emits, one application for each node."""
    return set[App]().union(*(_emitted_applications(side, match.terms.keys()) for side in match.rule.right))


def _emitted_weights(match: Match) -> list[int]:
    return [lookup_operator(app.op, app.domain).weight for app in emitted_operators(match)]


def _emitted_applications(term: Term, shared: Iterable[App]) -> set[App]:
    if not isinstance(term, App) or term.domain == SCALAR or is_constant_term(term) or term in shared:
        return set()
    return {term.node}.union(*(_emitted_applications(arg, shared) for arg in term.operands))
