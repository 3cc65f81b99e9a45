"""The simplify phase: passes and rules to a fixpoint, without search.

A rule is applied only where it makes the measure smaller, so the phase ends whatever the rules are. The measure is the
sum of the operators' weights; at equal weights the number of elements that nodes compute, and then that of constants.
A canonical rule leaves the measure as it is, and is applied to each value once. Every change is a `Step` that can be
undone. The last section says which rules were not applied, though they are true.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from graphopt.ir.graph import IDENTITY, Graph, Node, Patch
from graphopt.ir.schemas import memoized_by_schema
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule
from graphopt.language.terms import operator_applications
from graphopt.operators.magnitude_analysis import invalidate_analysis, mark_bodies
from graphopt.operators.node_facts import node_weight
from graphopt.rewrite.build import (
    RefusalFunction,
    RewriteRefused,
    build_patch,
    describe_missing_operator,
)
from graphopt.rewrite.folded_constants import ReportedReason
from graphopt.rewrite.matching import Match, pattern_depth, root_operators_of
from graphopt.rewrite.passes import Pass, written_by_patch
from graphopt.rewrite.profitability import min_measure_decrease, repeats_heavy_work
from graphopt.rewrite.rewrite_memory import RewriteMemory
from graphopt.rewrite.sites import Site

log = logging.getLogger(__name__)

MAX_ROUNDS = 50
"""Rounds of passes and rules after which something is wrong; real models take three or four."""


MANY_READERS = 64
"""Readers of one value from which on they do not count as near it: a later round finds what became possible there."""


class Cause(Protocol):
    """A find or sweep, which a search takes or leaves as a whole, with all steps that are made for it."""

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that it uses."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change that was made: the rule or pass, the graph, and the patch that was applied."""

    name: str
    graph: Graph
    patch: Patch
    is_rule: bool
    cause: Cause | None = None
    """Find or sweep that the search made it for; None for a simplification, which is made wherever it pays."""

    def undo(self) -> None:
        self.graph.apply(self.patch.inverse)

    def redo(self) -> None:
        self.graph.apply(self.patch)


def undo_steps(steps: Iterable[Step]) -> None:
    """Undo steps, the last first."""
    for step in reversed(list(steps)):
        step.undo()


class DeadlineExceededError(Exception):
    """Time ran out for what was begun."""


@dataclass(frozen=True)
class Simplification:
    """The steps in the order in which they were made, and the reasons why rules that matched were not applied."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...]


class Obstacle(Enum):
    """Reason why a rule is not applied where it matches."""

    IS_CANONICAL = "it was applied to this value already"
    NO_DECREASE = "the measure would not fall"
    REPEATED_WORK = "heavy work would be done twice"
    OPSET = "the opset lacks an operator"
    PROOF = "the gate does not allow it"
    REFUSED = "the right side cannot be built"
    COPIED_OUTPUTS = "outputs would have to be copied"


@dataclass(frozen=True, slots=True)
class Objection:
    """The obstacle to a rule at one place."""

    obstacle: Obstacle
    reason: str = ""
    """Reason in words, where whoever objected gave one."""
    patch: Patch | None = None
    """Patch that would be no improvement; None where it was not built."""


SitePredicate: TypeAlias = Callable[[Site], bool]
"""Predicate that says if a rule may be applied at a place."""


def simplify_graph(
    graph: Graph,
    rules: Sequence[Rule],
    passes: Sequence[Pass],
    *,
    allows: SitePredicate | None = None,
    refusal: RefusalFunction | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Simplification:
    """Simplify a graph and the bodies in it, in place.

    `allows` is asked before a rule is applied; without it the rules are taken at their word. `refusal` is asked about
    each patch, of passes too. `progress` is told a stage and how much of it is done, 0 to 1. Ctrl-C leaves the graph
    legal and equal.
    """
    return Simplifier(rules, passes, allows, refusal, progress).run(graph)


RulesByRoot = Mapping[str, tuple[Rule, ...]]
"""Rules by root operator."""


class Simplifier:
    """Simplifies one graph after the other with the same rules and passes, as `simplify_graph` does."""

    def __init__(
        self,
        rules: Sequence[Rule],
        passes: Sequence[Pass],
        allows: SitePredicate | None = None,
        refusal: RefusalFunction | None = None,
        progress: Callable[[str, float], None] | None = None,
        check: Callable[[], None] = lambda: None,
        memory: RewriteMemory | None = None,
    ) -> None:
        """`check` is called often, and ends the work by raising DeadlineExceededError; `memory` is shared with other
        work."""
        self.rules, self.passes, self.refusal, self.check = rules, passes, refusal, check
        self.memory = memory or RewriteMemory.of_one_run()
        self.allows = allows or (lambda *_: True)
        self.progress = progress or (lambda stage, done: None)
        self.steps: list[Step] = []
        self.notes: set[str] = set()
        self._rules_in_order = _order_rules(tuple(rules))
        self._unvisited: dict[bool, dict[int, int]] | None = None
        """Vertices at which rules are yet to be tried, by whether a rule merges branches, each with its distance from
        what changed; None for all."""
        self._canonicalized: set[tuple[str, Graph, str]] = set()
        """Canonical rules that were applied, each with the graph and the name of the value: none is applied again."""
        self._settled_at: dict[tuple[Graph, str], int] = {}
        """The number of steps after which a pass last found nothing to do in a graph."""
        self._converged_bodies: set[Graph] = set()
        """Bodies in which nothing is left to do, until they are told of something new."""

    def run(self, graph: Graph, since: Sequence[Step] | None = None) -> Simplification:
        """Simplify a graph and the bodies in it, in place.

        Args:
            graph: what is simplified.
            since: what was done to a graph that was simplified already: rules are tried only near that, and near what
                they do themselves. In a graph with bodies they are tried everywhere all the same.

        Raises:
            DeadlineExceededError: the check does; then the graph is legal and equal, but not settled.
        """
        self.steps, self.notes, self._converged_bodies, self._unvisited = [], set(), set(), None
        self._canonicalized, self._settled_at = set(), {}
        inner = list(graph.graphs())
        for each in inner:
            invalidate_analysis(each)
        if since is not None and len(inner) == 1:
            self._unvisited = {False: {}, True: {}}
            for step in since:
                self._note_affected(graph, step.patch)
        self._run_to_fixpoint(graph)
        return Simplification(tuple(self.steps), tuple(sorted(self.notes)))

    def _run_to_fixpoint(self, graph: Graph) -> None:
        """Apply passes, then rules, then settle the bodies, until nothing changes."""
        ordered, before = self._rules_in_order, 0
        for _ in range(MAX_ROUNDS):
            before = len(self.steps)
            invalidate_analysis(graph)
            self._run_passes(graph, late=False)
            self._apply_rules(graph, ordered.alone, merging=False)
            self._apply_rules(graph, ordered.merging, merging=True)
            self._run_passes(graph, late=True)
            for vertex, node in [(vertex, node) for vertex, node in graph.nodes() if node.has_bodies]:
                self._converged_bodies -= self._refine_bodies(graph, vertex, node)
                for body in node.bodies:
                    if body not in self._converged_bodies:
                        self._run_to_fixpoint(body)
                        self._converged_bodies.add(body)
            if len(self.steps) == before:
                return
        last = ", ".join(dict.fromkeys(step.name for step in self.steps[before:]))
        self.notes.add(f"the graph '{graph.name}' did not settle in {MAX_ROUNDS} rounds: {last} go on for ever")
        log.warning("the graph '%s' did not settle in %d rounds: %s go on for ever", graph.name, MAX_ROUNDS, last)

    def _run_passes(self, graph: Graph, *, late: bool) -> None:
        for pass_ in self.passes:
            self.check()
            before = len(self.steps)
            if pass_.runs_late != late or self._settled_at.get((graph, pass_.name)) == before:
                continue
            is_idle = True
            for patch in pass_.run(graph):
                is_idle = False
                if self.refusal is not None and (reason := self.refusal(graph, patch)):
                    if not isinstance(reason, ReportedReason):
                        self.notes.add(f"pass {pass_.name} left something as it was: {reason}")
                    continue
                self._apply_pass(pass_, graph, patch)
            if is_idle:
                self._settled_at[graph, pass_.name] = before

    def _apply_pass(self, pass_: Pass, graph: Graph, patch: Patch) -> None:
        if foreign := written_by_patch(patch) - pass_.written_operators:
            raise ValueError(f"pass {pass_.name} writes {', '.join(sorted(foreign))}, which only rules may")
        self._apply(pass_.name, graph, patch, is_rule=False)
        self._note_affected(graph, patch)

    def _refine_bodies(self, graph: Graph, vertex: int, node: Node) -> set[Graph]:
        """Tell the bodies of a node what is known of the values that flow into them; return those to which it is
        new."""
        told = set(mark_bodies(graph, vertex))
        for pass_ in self.passes:
            for body, patch in pass_.refine_bodies(graph, node) if pass_.refine_bodies else ():
                self._apply_pass(pass_, body, patch)
                told.add(body)
        return told

    def _apply_rules(self, graph: Graph, by_op: RulesByRoot, *, merging: bool) -> None:
        """Apply rules until none matches, looking again only where something changed."""
        queued = {vertex: 0 for vertex in graph.topological_order() if graph[vertex].op in by_op}
        if self._unvisited is not None:
            near = self._unvisited[merging]
            queued = {vertex: near[vertex] for vertex in queued if vertex in near}
            near.clear()
        queue, total = deque(queued), len(queued)
        while queue:
            self.check()
            vertex = queue.popleft()
            distance = queued.pop(vertex)
            if vertex not in graph:
                continue
            patch = self._apply_rules_at(graph, vertex, by_op.get(graph[vertex].op, ()), distance)
            if patch is None:
                continue
            near = self._affected_vertices(graph, patch)
            self._note_unvisited(near)
            for other, distance in near.items():
                if other in queued:
                    queued[other] = min(queued[other], distance)
                elif graph[other].op in by_op:
                    queued[other] = distance
                    queue.append(other)
            self.progress("rules", max(0.0, 1 - len(queue) / max(total, 1)))

    def _apply_rules_at(self, graph: Graph, vertex: int, rules: Sequence[Rule], distance: int) -> Patch | None:
        for rule, match in self.memory.known_matches.find(graph, vertex, rules, distance):
            patch = self.improving_patch(graph, match)
            if isinstance(patch, Patch):
                if rule.canonical:
                    self._canonicalized.add((rule.name, graph, graph.value_name(match.roots[0])))
                return self._apply(rule.name, graph, patch, is_rule=True)
        return None

    def improving_patch(self, graph: Graph, match: Match) -> Patch | Objection:
        """Return the patch of a match if it makes the measure smaller or, for a canonical rule, if the rule was not
        applied to this value yet; else what keeps the rule from being applied there."""
        rule = match.rule
        if rule.canonical:
            if (rule.name, graph, graph.value_name(match.roots[0])) in self._canonicalized:
                return Objection(Obstacle.IS_CANONICAL)
        elif min_measure_decrease(graph, match) < 0 and not rule.drops_inputs:
            return Objection(Obstacle.NO_DECREASE)
        if repeats_heavy_work(graph, match):
            return Objection(Obstacle.REPEATED_WORK)
        if missing := describe_missing_operator(rule.generalized, graph.opsets):
            reason = f"needs {missing}"
            self.notes.add(f"rule {rule.name} {reason}")
            return Objection(Obstacle.OPSET, reason)
        if not self.allows(Site.from_match(graph, match)):
            return Objection(Obstacle.PROOF)
        try:
            patch = build_patch(graph, match, self.refusal, self.memory)
        except RewriteRefused as refused:
            where = graph.value_name(match.roots[0])
            if not refused.is_reported:
                self.notes.add(f"rule {rule.name} was not applied at '{where}': {refused}")
            return Objection(Obstacle.REFUSED, str(refused))
        if not is_improvement(rule, patch):
            return Objection(Obstacle.NO_DECREASE, patch=patch)
        return Objection(Obstacle.COPIED_OUTPUTS) if _adds_identities(patch) else patch

    def _apply(self, name: str, graph: Graph, patch: Patch, *, is_rule: bool) -> Patch:
        graph.apply(patch)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s", name, _describe_patch(patch))
        self.steps.append(Step(name, graph, patch, is_rule))
        return patch

    def _note_affected(self, graph: Graph, patch: Patch) -> None:
        if self._unvisited is not None:
            self._note_unvisited(self._affected_vertices(graph, patch))

    def _note_unvisited(self, near: Mapping[int, int]) -> None:
        for unvisited in (self._unvisited or {}).values():
            for vertex, distance in near.items():
                unvisited[vertex] = min(unvisited.get(vertex, distance), distance)

    def _affected_vertices(self, graph: Graph, patch: Patch) -> dict[int, int]:
        """Return where a match may have become possible: what changed, what lost a reader, and what they lead to, each
        with its distance from there."""
        changed = [vertex for vertex in patch.after if vertex in graph]
        operands = {value.vertex for node in (*patch.before.values(), *patch.after.values()) for value in node.operands}
        level = dict.fromkeys([*changed, *(vertex for vertex in operands if vertex in graph)])
        seen: dict[int, int] = {}
        for distance in range(self._rules_in_order.pattern_depth + 1):
            seen |= dict.fromkeys(level, distance)
            few = [vertex for vertex in level if graph.fan_out(vertex) <= MANY_READERS]
            level = dict.fromkeys(r for v in few for r in graph.readers(v) if r not in seen)
            if len(level) > MANY_READERS:
                break
        return seen


class _OrderedRules(NamedTuple):
    """Rules in the order in which they are tried, by the operators that they end in.

    Those that merge branches come after the others, which may need a branch as it was: a Concat of all slices of a
    value is the value, and no Split of two of them.
    """

    alone: RulesByRoot
    merging: RulesByRoot
    pattern_depth: int
    """The greatest depth of a pattern."""


@memoized_by_schema
def _order_rules(rules: tuple[Rule, ...]) -> _OrderedRules:
    """Return the rules in order, worked out once for all simplifiers of a search."""
    alone, merging = ([rule for rule in rules if (len(rule.left) > 1) is many] for many in (False, True))
    return _OrderedRules(rules_by_root(alone), rules_by_root(merging), max(map(pattern_depth, rules), default=0))


def rules_by_root(rules: Iterable[Rule]) -> RulesByRoot:
    """Return the rules by the operators that their left sides may end in; the same objects for the same rules, by which
    memories know them."""
    return _sort_by_root(tuple(rules))


@memoized_by_schema
def _sort_by_root(rules: tuple[Rule, ...]) -> RulesByRoot:
    by_op: dict[str, dict[Rule, None]] = {}
    for rule in rules:
        for side in rule.left:
            for op in root_operators_of(side):
                by_op.setdefault(op, {})[rule] = None
    return {op: tuple(found) for op, found in by_op.items()}


def measure_decrease(patch: Patch) -> tuple[int, int, int]:
    """Return the decrease of the measure by a patch: in weights, in elements computed, and in elements of constants.

    A constant that others read is not taken off.
    """
    return (
        _decrease_of(patch, node_weight),
        _decrease_of(patch, _computed_elements),
        _decrease_of(patch, lambda node: node.data.size if isinstance(node.data, Tensor) else 0),
    )


def is_improvement(rule: Rule, patch: Patch) -> bool:
    """Return whether a patch of a rule makes the measure smaller, or of a canonical one adds no node to the graph."""
    if not rule.canonical:
        return measure_decrease(patch) > (0, 0, 0)
    removed, added = (sum(not node.is_internal for node in nodes) for nodes in (patch.removed, patch.added))
    return 0 < added <= removed


def _adds_identities(patch: Patch) -> bool:
    """Return whether there are more nodes only to name outputs: an input, or another output, has to be copied."""
    outputs = {value.vertex for value in (patch.outputs[1] if patch.outputs else ())}  # a copy is a new one
    new = {vertex: node for vertex, node in patch.after.items() if vertex not in patch.before and not node.is_internal}
    copies = [vertex for vertex, node in new.items() if node.op == IDENTITY and vertex in outputs]
    return bool(copies) and len(new) > sum(not node.is_internal for node in patch.removed)


def _decrease_of(patch: Patch, share: Callable[[Node], int]) -> int:
    return sum(map(share, patch.before.values())) - sum(map(share, patch.after.values()))


def _computed_elements(node: Node) -> int:
    """Return the number of elements that a node computes, an open size taken as 1."""
    if node.is_internal:
        return 0
    return sum(type_.static_dims_product for type_ in node.types if isinstance(type_, TensorType))


def _describe_patch(patch: Patch) -> str:
    """Return what a patch does, in operators: `Conv, BatchNormalization -> Conv`."""
    sides = ([node.op for node in nodes if not node.is_internal] for nodes in (patch.removed, patch.added))
    before, after = (", ".join(side) for side in sides)
    if before or after:
        return f"{before or 'nothing'} -> {after or 'nothing'}"
    return f"changes {len(patch.after.keys() & patch.before.keys())} nodes in place"


# -- notes on rules that are proved and yet not applied ----------------------------------------------------------------


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
