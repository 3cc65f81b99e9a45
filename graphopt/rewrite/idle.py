"""Rules that are not applied though they are true, which whoever wrote one is to know.

Those that are not proved, or not for some place, the gate names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.language.term import applications
from graphopt.rewrite.build import Refusal, Refused, build, lacking
from graphopt.rewrite.fixpoint import Allows, by_root
from graphopt.rewrite.gain import gain_at_least, repeats
from graphopt.rewrite.match import Match, find
from graphopt.rewrite.sites import Site


def without_gain(graph: Graph, rules: Sequence[Rule], allows: Allows, refusal: Refusal | None = None) -> Iterator[str]:
    """Yield a note for each rule that matches in a simplified graph, where it makes nothing smaller."""
    for rule in rules:
        places = sum(_places(inner, rule, allows, refusal) for inner in graph.graphs())
        if places:
            where = f"{places} place{'s' * (places > 1)}"
            what = f"rule {rule.name} matches at {where} and makes nothing smaller there"
            yield f"{what}: list it in TRADES, and the search times it"


def _places(graph: Graph, rule: Rule, allows: Allows, refusal: Refusal | None) -> int:
    """Return at how many places a rule could be applied."""
    if lacking(rule, graph.opsets):
        return 0
    by_op = by_root([rule])
    found: dict[frozenset[Value], Match] = {}
    for vertex in graph.topological():
        for match in find(rule, graph, vertex) if graph[vertex].op in by_op else ():
            found.setdefault(frozenset(match.roots), match)
    return sum(_is_able(graph, match, allows, refusal) for match in found.values())


def _is_able(graph: Graph, match: Match, allows: Allows, refusal: Refusal | None) -> bool:
    if not allows(Site.of(graph, match)):
        return False
    if gain_at_least(graph, match) < 0 or repeats(graph, match):
        return True
    try:
        build(graph, match, refusal)
    except Refused:  # which is said already
        return False
    return True


def of_functions(graph: Graph, rules: Sequence[Rule], functions: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield a note for each rule on an operator that is a function of the model, by domain and name: what the function
    computes is not what was declared."""
    nodes = (node for inner in graph.graphs() for _, node in inner.nodes())
    called = {(node.domain, node.op) for node in nodes} & {*functions}
    for rule in rules:
        named = {(app.domain, app.op) for side in rule.left for app in applications(side)}
        for domain, name in sorted(named & called):
            yield (
                f"rule {rule.name} was not applied: {domain}.{name} is a function of the model, which may compute"
                " something else; without --keep-functions its body is in the place of its calls"
            )
