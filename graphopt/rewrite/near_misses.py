"""Nearest misses: where rules are almost applied, how far their patterns match, and what fails first.

The matcher itself says why it does not match (`matching.Mismatch`), and the simplifier and the gate why a match is not
rewritten. Places that fail alike are one miss, which counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property, partial
from itertools import chain
from typing import TypeAlias

from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, holes, operator_applications
from graphopt.operators.magnitude_analysis import invalidate_analysis
from graphopt.operators.node_facts import node_weight
from graphopt.operators.operator_classes import lookup_operator
from graphopt.rewrite.build import (
    RefusalFunction,
    RewriteRefused,
    build_patch,
    dead_after_rewrite,
    describe_missing_operator,
    reused_vertices,
)
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import (
    Match,
    Mismatch,
    PartialMatch,
    find_inner_matches,
    find_matches,
    root_operators_of,
)
from graphopt.rewrite.mismatches import (
    PlaceNames,
    article,
    describe_bindings,
    describe_mismatch,
    label_node,
    quote_term,
)
from graphopt.rewrite.profitability import emitted_operators
from graphopt.rewrite.simplify import Objection, Obstacle, Simplifier, Step, measure_decrease
from graphopt.rewrite.sites import Site


class MissKind(StrEnum):
    """Kind of reason why a rule was not applied."""

    PATTERN = "pattern"
    CONDITION = "condition"
    PROOF = "proof"
    OPSET = "opset"
    REFUSED = "refused"
    """The right side cannot be built there, or its nodes cannot run."""
    PROFIT = "profit"
    """It would make nothing smaller."""
    TRADE = "trade"
    """It is applied only where it is measured to pay."""
    TAKEN = "taken"
    """Its nodes took part in another rewrite."""
    LEFT_OUT = "left_out"
    """The run is without it."""
    APPLIED = "applied"
    """A canonical rule that was applied to the value already."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A place where a rule is almost applied, and others that are like it."""

    rule: str
    kind: MissKind
    node: str
    """Name of the node at which the match ends, as far as it goes."""
    operator: str
    graph: str
    matched: int
    """Operators and holes of the pattern that are bound."""
    parts: int
    """Operators and holes that the pattern has."""
    reason: str
    """Reason in words, with what the rule says and what the model has."""
    bindings: Mapping[str, str] = field(default_factory=dict)
    """Nodes, values and numbers that the terms and holes of the pattern are bound to."""
    places: int = 1
    """Number of places that fail alike."""

    @property
    def share(self) -> float:
        """Part of the pattern that matches."""
        return self.matched / self.parts

    @property
    def priority(self) -> tuple[float, bool, int, int]:
        """Key by which the nearest misses sort first; what needs more than another model comes last."""
        return (-self.share, self.kind is MissKind.CONDITION, -self.matched, -self.places)


ExplainPlace: TypeAlias = Callable[[PlaceNames], tuple[MissKind, str]]
"""Function that words why a rule is not applied at a place, with the names of its graph."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A miss that is not worded yet, as most never are."""

    rule: Rule
    graph: Graph
    vertex: int
    state: PartialMatch | Match
    alike: object
    """Key that places which fail alike share, beside the rule and how far it matched."""
    explain: ExplainPlace
    is_pattern: bool = False
    """True if the pattern does not match, or a condition does not hold."""
    failed_parts: int = 0
    """Parts that are bound in the state, and do not match all the same."""

    @property
    def matched(self) -> int:
        return self.state.bound_parts - self.failed_parts

    @property
    def parts(self) -> int:
        return max(count_parts(self.rule), self.matched)

    @property
    def share(self) -> float:
        """Part of the pattern that matches."""
        return self.matched / self.parts

    @property
    def key(self) -> object:
        return (self.rule.name, self.matched, self.graph[self.vertex].op, self.alike)

    def worded(self) -> tuple[NearMiss, object]:
        """Return the miss, and a key that tells it from others but for names and places."""
        names, node = PlaceNames(self.graph), self.graph[self.vertex]
        kind, reason = self.explain(names)
        key = (self.rule.name, kind, self.matched, names.outline(reason))
        return NearMiss(
            self.rule.name,
            kind,
            node.name or node.names[0],
            node.op,
            self.graph.name,
            self.matched,
            self.parts,
            reason,
            describe_bindings(self.state.terms, self.state.holes, names),
        ), key


@cache
def count_parts(rule: Rule) -> int:
    """Return the number of operators and holes on the left side of a rule."""
    apps = {app.node for side in rule.left for app in operator_applications(side)}
    return len(apps) + len({hole.name for side in rule.left for hole in holes(side)})


MOST_WORDED = 200
"""Most places that fail at the same term of which the reasons are compared: a trade is built for its reason."""


@dataclass(frozen=True)
class MissFinder:
    """Finds the nearest misses of rules in a simplified graph, and in the graph as it was loaded."""

    simplified: Candidate
    gate: Gate
    refusal: RefusalFunction | None = None
    rules: Sequence[Rule] = ()
    """Rules that the simplification applies."""
    trades: Sequence[Rule] = ()
    """Rules that only a search applies."""
    is_wanted: Callable[[Node], bool] = lambda node: True
    """Only places are looked at that have such a node."""

    def nearest(self, rules: Sequence[Rule], count: int) -> list[NearMiss]:
        """Return the nearest misses of some rules, best first; places that fail alike are one miss.

        Also looked at is the graph as it was loaded, in which other rewrites took the places of these.
        """
        graphs = self._changed_graphs()
        late = self._late_places(rules)
        late += [place for graph in graphs for rule in rules for place in _rootless_places(graph, rule)]
        best: dict[str, int] = {}
        for place in late:
            best[place.rule.name] = max(best.get(place.rule.name, 0), place.matched)
        found = _worded(filter(self._is_here, late), count)
        with self.simplified.graph_after(0):
            early = [place for graph in self._changed_graphs() for place in self._early_places(graph, rules, best)]
            found += _worded(filter(self._is_here, early), count)
        self._changed_graphs()
        return _merged(found)[:count]

    def nearest_of_all(self, count: int) -> list[NearMiss]:
        """Return the nearest misses of all rules in the simplified graph, and all trades that match.

        Patterns of which no more than a node matches are left out: there are thousands. So is, at each node, what is
        further than others there, and all but one of the rules that write the same operators. A rule that fails at the
        same term at several nodes is one miss, told by the values at the first.
        """
        trades, others = list[_Place](), list[_Place]()
        for place in filter(self._is_here, self._late_places((*self.rules, *self.trades))):
            if place.rule.name in self._trade_names and not place.is_pattern:
                trades.append(place)
            elif len(place.state.terms) > 1:
                others.append(place)
        nearest = _nearest_at_each_node(others)
        return [*_merged(_worded(nearest, count, most_worded=1)), *_merged(_worded(trades, len(trades), most_worded=1))]

    def _late_places(self, rules: Sequence[Rule]) -> list[_Place]:
        return [place for graph in self._changed_graphs() for place in self._places(graph, rules)]

    def describe_absence(self, rule: Rule) -> str:
        """Return which operators of a rule's pattern the simplified model lacks."""
        present = set(chain.from_iterable(graph.operator_counts() for graph in self.simplified.graph.graphs()))
        wanted = (app for side in rule.left for app in operator_applications(side))
        names = dict.fromkeys(app.op for app in wanted if app.domain not in schemas.CLASS_SCHEMAS)
        missing = [name for name in names if name not in present]
        return f"the simplified model has no {' and no '.join(missing)}" if missing else "nothing like it is there"

    def _changed_graphs(self) -> list[Graph]:
        """Return the graph and its bodies, and forget what is known of them as they were."""
        graphs = list(self.simplified.graph.graphs())
        for graph in graphs:
            invalidate_analysis(graph)
        return graphs

    def _is_here(self, place: _Place) -> bool:
        """Return whether a place has a node that is wanted."""
        nodes = {place.vertex, *(value.vertex for value in place.state.terms.values())}
        return any(self.is_wanted(place.graph[vertex]) for vertex in nodes)

    # -- places --------------------------------------------------------------------------------------------------------

    def _places(self, graph: Graph, rules: Sequence[Rule]) -> Iterator[_Place]:
        """Yield where rules match and are not applied, and where they match in part."""
        seen: set[tuple[str, frozenset[Value]]] = set()
        for vertex, rule in _roots(graph, rules):
            misses: list[Mismatch] = []
            matches = list(find_matches(rule, graph, vertex, misses.append))
            for match in matches:
                roots = (rule.name, frozenset(match.roots))
                if roots not in seen:
                    seen.add(roots)
                    yield from self._judged(graph, match)
            if misses and not matches:
                yield _mismatched(max(misses, key=lambda miss: miss.state.bound_parts), rule, graph, vertex)

    def _judged(self, graph: Graph, match: Match) -> Iterator[_Place]:
        """Yield the place of a match if the rule is not applied there."""
        rule = match.rule.generalized
        place = partial(_Place, rule, graph, match.roots[0].vertex, match)
        if rule.name not in self._names:
            left = (MissKind.LEFT_OUT, "it is left out of this run, by --skip, --only or --target")
            yield place(left, lambda names: left)
            return
        if rule.name in self._trade_names:
            yield place(Obstacle.PROOF, lambda names: self._explain_trade(match, names))
            return
        found = self._simplifier.improving_patch(graph, match)
        if isinstance(found, Objection):
            site, alike = Site.from_match(graph, match), (found.obstacle, found.reason)
            yield place(alike, lambda names: self._explain_objection(found, match, site, names))
        elif rule.canonical:
            done = (MissKind.APPLIED, "it was applied to this value already, and a canonical rule is applied once")
            yield place(Obstacle.IS_CANONICAL, lambda names: done)

    @cached_property
    def _simplifier(self) -> Simplifier:
        """A simplifier that judges matches, and changes nothing."""
        return Simplifier((), (), lambda site: not self.gate.objection(site), self.refusal)

    @cached_property
    def _trade_names(self) -> frozenset[str]:
        return frozenset(rule.name for rule in self.trades)

    @cached_property
    def _names(self) -> frozenset[str]:
        return self._trade_names.union(rule.name for rule in self.rules)

    def _explain_trade(self, match: Match, names: PlaceNames) -> tuple[MissKind, str]:
        if missing := describe_missing_operator(match.rule.generalized, names.graph.opsets):
            return MissKind.OPSET, f"needs {missing}"
        if reason := self.gate.objection(Site.from_match(names.graph, match)):
            return MissKind.PROOF, reason
        try:
            build_patch(names.graph, match, self.refusal)
        except RewriteRefused as refused:
            return MissKind.REFUSED, str(refused)
        return MissKind.TRADE, "a trade: applied only where it measures faster"

    def _explain_objection(self, found: Objection, match: Match, site: Site, names: PlaceNames) -> tuple[MissKind, str]:
        match found.obstacle:
            case Obstacle.PROOF:
                return MissKind.PROOF, self.gate.objection(site)
            case Obstacle.NO_DECREASE | Obstacle.REPEATED_WORK | Obstacle.COPIED_OUTPUTS:
                return MissKind.PROFIT, describe_loss(found, match, names)
        return (MissKind.OPSET if found.obstacle is Obstacle.OPSET else MissKind.REFUSED), found.reason

    # -- the graph as it was loaded ------------------------------------------------------------------------------------

    def _early_places(self, graph: Graph, rules: Sequence[Rule], best: Mapping[str, int]) -> Iterator[_Place]:
        """Yield where rules match in the graph as it was loaded, and their nodes took part in another rewrite; of rules
        that were applied nowhere also where they match further than in the simplified graph."""
        fired = {step.name for step in self.simplified.steps}
        for place in self._places(graph, [rule for rule in rules if rule.name not in fired]):
            step = self._first_taker(graph, (value.vertex for value in place.state.terms.values()))
            if step is not None and place.matched > best.get(place.rule.name, 0):
                yield replace(place, explain=_in_loaded_model(place, step))
        for vertex, rule in _roots(graph, rules):
            for match in find_matches(rule, graph, vertex):
                step = self._first_taker(graph, match.vertices)
                patch = self._simplifier.improving_patch(graph, match) if step and step.name != rule.name else None
                if step is not None and isinstance(patch, Patch):
                    yield _Place(rule, graph, vertex, match, step.name, _taken_by(step, match))

    def _first_taker(self, graph: Graph, vertices: Iterable[int]) -> Step | None:
        """Return the first step that took out one of some nodes, or made another of it."""
        wanted = frozenset(vertices)
        steps = (step for step in self.simplified.steps if step.graph is graph)
        return next((step for step in steps if any(True for _ in _lost_nodes(step, wanted))), None)


NEAR_THE_BEST = 0.9
"""Part of the share of the nearest miss at a node that another one has to have there, to be told beside it."""


def _nearest_at_each_node(places: Iterable[_Place]) -> list[_Place]:
    """Return the nearest miss at each node of each idea, which is what operators a rule writes; none that is further
    than the nearest there."""
    best: dict[tuple[Graph, int], float] = {}
    nearest: dict[tuple[Graph, int, frozenset[str]], _Place] = {}
    for place in places:
        idea = (place.graph, place.vertex, _written_operators(place.rule))
        best[idea[:2]] = max(best.get(idea[:2], 0.0), place.share)
        if idea not in nearest or place.share > nearest[idea].share:
            nearest[idea] = place
    return [place for idea, place in nearest.items() if place.share >= NEAR_THE_BEST * best[idea[:2]]]


@cache
def _written_operators(rule: Rule) -> frozenset[str]:
    return frozenset(app.op for side in rule.right for app in operator_applications(side))


def _lost_nodes(step: Step, vertices: Iterable[int]) -> Iterator[int]:
    """Yield those of some nodes that a step takes out, or of which it makes others."""
    before, after = step.patch.before, step.patch.after
    for vertex in vertices:
        if vertex in before and (vertex not in after or not before[vertex].is_same_operation(after[vertex])):
            yield vertex


def _taken_by(step: Step, match: Match) -> ExplainPlace:
    def explain(names: PlaceNames) -> tuple[MissKind, str]:
        nodes = " and ".join(map(names.node, sorted(_lost_nodes(step, match.vertices))))
        return MissKind.TAKEN, f"{nodes} took part in {step.name} before; --skip {step.name} leaves it to other rules"

    return explain


def _in_loaded_model(place: _Place, step: Step) -> ExplainPlace:
    def explain(names: PlaceNames) -> tuple[MissKind, str]:
        kind, reason = place.explain(names)
        return kind, f"{reason}; that was before {step.name} was applied there"

    return explain


def _roots(graph: Graph, rules: Sequence[Rule]) -> Iterator[tuple[int, Rule]]:
    """Yield the vertices of a graph with the rules whose left sides may end there."""
    by_root: dict[str, dict[Rule, None]] = {}
    for rule in rules:
        for op in chain.from_iterable(map(root_operators_of, rule.left)):
            by_root.setdefault(op, {})[rule] = None
    for vertex in graph.topological_order():
        yield from ((vertex, rule) for rule in by_root.get(graph[vertex].op, ()))


def _mismatched(found: Mismatch, rule: Rule, graph: Graph, vertex: int) -> _Place:
    kind = MissKind.CONDITION if found.step == "conditions" else MissKind.PATTERN
    alike = (found.step, found.pattern, found.attribute)
    return _Place(
        rule,
        graph,
        vertex,
        found.state,
        alike,
        lambda names: (kind, describe_mismatch(found, names)),
        is_pattern=True,
        failed_parts=int(found.step == "constant"),  # which waits, bound, until all axes are known
    )


def _rootless_places(graph: Graph, rule: Rule) -> Iterator[_Place]:
    """Yield where an inner operator of a pattern matches, and no reader of its value is what the pattern goes on
    with; once where both operands of that are alike."""
    seen: set[tuple[App, Value]] = set()
    for outer in (app for side in rule.left for app in operator_applications(side) if not rule.is_family):
        for inner in outer.operands:
            if not isinstance(inner, App) or inner.domain == SCALAR:
                continue
            for state in find_inner_matches(rule, graph, inner):
                value = state.terms[inner]
                is_read = any(graph[reader].op in root_operators_of(outer) for reader in _readers(graph, value))
                if not is_read and (outer, value) not in seen:
                    seen.add((outer, value))
                    explain = _read_by_another(outer, value)
                    yield _Place(rule, graph, value.vertex, state, outer, explain, is_pattern=True)


def _readers(graph: Graph, value: Value) -> list[int]:
    """Return the nodes that read a value, which may be one of several that its node makes."""
    return sorted(reader for reader in graph.readers(value.vertex) if value in graph[reader].operands)


def _read_by_another(outer: App, value: Value) -> ExplainPlace:
    def explain(names: PlaceNames) -> tuple[MissKind, str]:
        graph = names.graph
        readers = " and ".join(map(names.node, _readers(graph, value)))
        uses = [f"is read by {readers}"] * bool(readers) + ["is a graph output"] * graph.is_output(value)
        here = f"{names.value(value)} {' and '.join(uses) or 'is read by no node'}"
        return MissKind.PATTERN, f"{here}; the pattern has {article(outer.op)} {outer.op} there, {quote_term(outer)}"

    return explain


# -- misses ------------------------------------------------------------------------------------------------------------


def _worded(places: Iterable[_Place], count: int, most_worded: int = MOST_WORDED) -> list[tuple[NearMiss, object]]:
    """Return the misses of the nearest places, each with what tells it from others.

    Of places that fail at the same term so many are worded; the rest are taken to be like the first.
    """
    groups: dict[object, list[_Place]] = {}
    for place in places:
        groups.setdefault(place.key, []).append(place)

    def nearness(group: list[_Place]) -> tuple[float, int, int]:
        place = group[0]
        return (-place.share, -place.matched, -len(group))

    found: list[tuple[NearMiss, object]] = []
    for group in sorted(groups.values(), key=nearness)[:count]:
        worded = [place.worded() for place in group[:most_worded]]
        rest = len(group) - len(worded)
        found += [(replace(miss, places=1 + rest * (not place)), key) for place, (miss, key) in enumerate(worded)]
    return found


def _merged(found: Iterable[tuple[NearMiss, object]]) -> list[NearMiss]:
    """Return misses that are alike as one, with the number of their places, nearest first."""
    misses: dict[object, NearMiss] = {}
    for miss, key in found:
        known = misses.get(key)
        misses[key] = miss if known is None else replace(known, places=known.places + miss.places)
    return sorted(misses.values(), key=lambda miss: miss.priority)


def notes_on_unapplied_rules(finder: MissFinder, rules: Sequence[Rule]) -> Iterator[str]:
    """Yield a note for each rule that was applied nowhere, with its nearest miss.

    Of what the gate and the builder refuse there are notes already, and the search says what it tried.
    """
    for rule in rules:
        missed = finder.nearest([rule], 1)
        if not missed:
            yield f"rule {rule.name} was applied nowhere: {finder.describe_absence(rule)}"
            continue
        (miss,) = missed
        match miss.kind:
            case MissKind.PROFIT:
                places = f"matches at {miss.places} place{'s' * (miss.places > 1)} and makes nothing smaller there"
                yield f"rule {rule.name} {places} ({miss.reason}): list it in TRADES, and the search times it"
            case MissKind.PATTERN | MissKind.CONDITION | MissKind.TAKEN:
                where = f"at {label_node(miss.node, miss.operator)}"
                others = miss.places - 1
                where += f" and {others} place{'s' * (others > 1)} like it" if others else ""
                yield (
                    f"rule {rule.name} was applied nowhere: {miss.reason}"
                    f" (nearest {where}, where {miss.matched} of {miss.parts} parts of its pattern match)"
                )
            case MissKind.PROOF if rule.name not in finder.gate.withheld.keys() | finder.gate.unproved.keys():
                yield f"rule {rule.name} was not applied: {miss.reason}"


# -- matches that gain nothing -----------------------------------------------------------------------------------------


def describe_loss(found: Objection, match: Match, names: PlaceNames) -> str:
    """Return why a rewrite makes nothing smaller: what stays because it is read elsewhere, and what is measured."""
    if found.obstacle is Obstacle.COPIED_OUTPUTS:
        return "outputs would have to be copied by more nodes than the rewrite takes out"
    graph = names.graph
    dead = dead_after_rewrite(graph, match)
    kept = match.vertices - dead - reused_vertices(match) - {root.vertex for root in match.roots}
    uses = {vertex: _describe_use(vertex, match, names) for vertex in sorted(kept)}
    stays = [f"{names.node(vertex)} {use}" for vertex, use in uses.items() if use]
    dying = [graph[vertex].op for vertex in sorted(dead)]
    weights = sum(node_weight(graph[vertex]) for vertex in dead)
    emitted = emitted_operators(match)
    added = sum(lookup_operator(app.op, app.domain).weight for app in emitted)
    if found.obstacle is Obstacle.REPEATED_WORK:
        measured = f"heavy work would be done twice, as {_count_operators(app.op for app in emitted)} would be added"
    elif found.patch is None or added != weights:
        measured = (
            f"weight would not fall: the nodes that go ({_count_operators(dying)}) weigh {weights},"
            f" those that come ({_count_operators(app.op for app in emitted)}) {added}"
        )
    else:
        measured = f"weight stays {weights}, and {_describe_elements(found.patch)}"
    return "; ".join([*stays, measured])


def _describe_use(vertex: int, match: Match, names: PlaceNames) -> str:
    """Return who needs a matched node beside the match, `is read by Add_7 as well`; empty if only the match does."""
    graph = names.graph
    others = [names.node(reader) for reader in sorted(graph.readers(vertex)) if reader not in match.vertices]
    if others:
        return f"is read by {' and '.join(others)} as well"
    is_output = any(graph.is_output(Value(vertex, output)) for output in range(len(graph[vertex].names)))
    return "is a graph output" if is_output else ""


def _count_operators(operators: Iterable[str]) -> str:
    counts = Counter(operators)
    return ", ".join(f"{count} {op}" if count > 1 else op for op, count in counts.items()) or "none"


def _describe_elements(patch: Patch) -> str:
    """Return what the measure says of a patch that changes no weight."""
    _, computed, stored = measure_decrease(patch)
    if computed:
        return f"{_count_elements(computed)} computed"
    return f"{_count_elements(stored)} stored in constants" if stored else "no fewer elements are computed or stored"


def _count_elements(decrease: int) -> str:
    """Return `3 fewer elements are`, or `1 more element is` where the decrease is negative."""
    number, which = abs(decrease), "fewer" if decrease > 0 else "more"
    return f"{number} {which} element is" if number == 1 else f"{number} {which} elements are"
