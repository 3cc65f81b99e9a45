"""Graphs as they are split among devices: simplified, and with queries, keys and values apart."""

from __future__ import annotations

from collections.abc import Iterable

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.language.rule_library import load_rules
from graphopt.rewrite.build import RewriteRefused, build_patch
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import simplify_graph
from graphopt.rewrite.sites import Site


def simplify_before_split(graph: Graph, gate: Gate) -> Graph:
    """Return a copy of a graph, simplified as `optimize` does it, in which queries, keys and values are products of
    their own: the rules know little of what exporters write around operators."""
    from graphopt.rules import attention, parallel

    twin = graph.copy()
    simplify_graph(twin, load_rules(), PASSES, allows=gate.allows)
    products = (each for each in parallel.LINEAR if each.name != "conv")
    apart = [*attention.UNPACKED, *(parallel.build_split_rule(each, count) for each in products for count in (2, 3))]
    applied = [_apply_first(twin, apart, vertex, gate) for vertex in sorted(twin.vertices_with_op("Split"))]
    if any(applied):
        simplify_graph(twin, load_rules(), PASSES, allows=gate.allows)
    return twin


def _apply_first(graph: Graph, rules: Iterable[Rule], vertex: int, gate: Gate) -> bool:
    """Apply the first of some rules that matches at a vertex, in place; return whether one does."""
    for rule in rules:
        for match in find_matches(rule, graph, vertex):
            if gate.allows(Site.from_match(graph, match)):
                try:
                    graph.apply(build_patch(graph, match))
                except RewriteRefused:
                    continue
                return True
    return False
