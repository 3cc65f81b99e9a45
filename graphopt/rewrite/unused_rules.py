"""Rules that are not applied though they are true, which whoever wrote one is to know.

Those that are not proved, or not for some place, the gate names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import operator_applications
from graphopt.rewrite.build import RefusalFunction, RewriteRefused, build_patch, missing_operator
from graphopt.rewrite.matching import Match, find_matches, node_producer_kinds
from graphopt.rewrite.profitability import min_measure_decrease, repeats_heavy_work
from graphopt.rewrite.simplify import SitePredicate, rules_by_root
from graphopt.rewrite.sites import Site


def notes_on_unprofitable_rules(
    graph: Graph, rules: Sequence[Rule], allows: SitePredicate, refusal: RefusalFunction | None = None
) -> Iterator[str]:
    """Yield a note for each rule that matches in a simplified graph, where it makes nothing smaller."""
    matches = [
        (inner, match) for inner in (graph.graphs() if rules else ()) for match in _distinct_matches(inner, rules)
    ]
    counts = Counter(
        match.rule.generalized.name for inner, match in matches if _would_apply(inner, match, allows, refusal)
    )
    for name, count in sorted(counts.items()):
        what = f"rule {name} matches at {count} place{'s' * (count > 1)} and makes nothing smaller there"
        yield f"{what}: list it in TRADES, and the search times it"


def _distinct_matches(graph: Graph, rules: Iterable[Rule]) -> Iterable[Match]:
    """Return where the rules match, one match for each set of roots."""
    by_op = rules_by_root(rule for rule in rules if missing_operator(rule, graph.opsets) is None)
    found: dict[tuple[str, frozenset[Value]], Match] = {}
    for vertex in graph.topological_order():
        made_by = node_producer_kinds(graph, graph[vertex])
        for rule, needed in by_op.get(graph[vertex].op, ()):
            for match in find_matches(rule, graph, vertex) if needed <= made_by else ():
                found.setdefault((rule.name, frozenset(match.roots)), match)
    return found.values()


def _would_apply(graph: Graph, match: Match, allows: SitePredicate, refusal: RefusalFunction | None) -> bool:
    """Return whether nothing is against a match but that it gains nothing."""
    if not allows(Site.from_match(graph, match)):
        return False
    if min_measure_decrease(graph, match) < 0 or repeats_heavy_work(graph, match):
        return True
    try:
        build_patch(graph, match, refusal)
    except RewriteRefused:  # which is said already
        return False
    return True


def notes_on_function_operators(
    graph: Graph, rules: Sequence[Rule], functions: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Yield a note for each rule on an operator that is a function of the model, by domain and name: what the function
    computes is not what was declared."""
    nodes = (node for inner in graph.graphs() for _, node in inner.nodes())
    called = {(node.domain, node.op) for node in nodes} & {*functions}
    for rule in rules:
        named = {(app.domain, app.op) for side in rule.left for app in operator_applications(side)}
        for domain, name in sorted(named & called):
            yield (
                f"rule {rule.name} was not applied: {domain}.{name} is a function of the model, which may compute"
                " something else; without --keep-functions its body is in the place of its calls"
            )
