"""The simplify phase: passes and rules to a fixpoint, without search.

A rule is applied only where it makes the measure smaller, so the phase ends whatever the rules are: `ops.weight`,
summed over the nodes; where that stays as it is, the elements that they compute, and then those of constants. Every
change is a `Step` that can be undone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeAlias

from graphopt.base.types import TensorType
from graphopt.ir.graph import IDENTITY, Graph, Node, Patch
from graphopt.ir.tensor import Tensor
from graphopt.language.rule import Rule, depth
from graphopt.operators.facts import weight
from graphopt.operators.infinities import mark_bodies, reconsider
from graphopt.rewrite.build import Refusal, Refused, build, lacking
from graphopt.rewrite.folded import Noted
from graphopt.rewrite.gain import gain_at_least, repeats
from graphopt.rewrite.match import Match, find, makers, producers, roots
from graphopt.rewrite.passes import Pass, written
from graphopt.rewrite.sites import Site

log = logging.getLogger(__name__)

ROUNDS = 50
"""Rounds of passes and rules after which something is wrong; real models take three or four."""


MANY = 64
"""Readers of one value from which on they are not near it: a later round sees what has become possible there."""


class Cause(Protocol):
    """What a search takes or leaves as a whole, with all steps that are made for it."""

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rules that it uses."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change that was made: by which rule or pass, in which graph, and the patch that was applied."""

    name: str
    graph: Graph
    patch: Patch
    is_rule: bool
    cause: Cause | None = None
    """What the search made it for; None for a simplification, which is made wherever it pays."""

    def undo(self) -> None:
        self.graph.apply(self.patch.inverse)

    def redo(self) -> None:
        self.graph.apply(self.patch)


def undone(steps: Iterable[Step]) -> None:
    """Undo steps, the last first."""
    for step in reversed(list(steps)):
        step.undo()


class TimeUp(Exception):
    """There is no time for what was begun."""


@dataclass(frozen=True)
class Simplification:
    """The steps in the order in which they were made, and why rules that matched were not applied."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...]


Allows: TypeAlias = Callable[[Site], bool]
"""Whether a rule may be applied at a place."""


def simplify_graph(
    graph: Graph,
    rules: Sequence[Rule],
    passes: Sequence[Pass],
    *,
    allows: Allows | None = None,
    refusal: Refusal | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Simplification:
    """Simplify a graph and the bodies in it, in place.

    `allows` is asked before a rule is applied; without it the rules are taken at their word. `refusal` is asked about
    each patch, of passes too. `progress` is told a stage and how much of it is done, 0 to 1. Ctrl-C leaves the graph
    legal and equal.
    """
    return Simplifier(rules, passes, allows, refusal, progress).run(graph)


Opsets: TypeAlias = "tuple[tuple[str, int], ...]"


def _opsets(graph: Graph) -> Opsets:
    return tuple(sorted(graph.opsets.items()))


Candidates = Mapping[str, tuple[tuple[Rule, frozenset[str]], ...]]
"""By root operator: the rules, with the operators that must be among those that make the root's inputs."""


class Simplifier:
    """Simplifies one graph after the other with the same rules and passes, as `simplify_graph` does."""

    def __init__(
        self,
        rules: Sequence[Rule],
        passes: Sequence[Pass],
        allows: Allows | None = None,
        refusal: Refusal | None = None,
        progress: Callable[[str, float], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called often, and ends the work by raising TimeUp."""
        self.rules, self.passes, self.refusal, self.check = rules, passes, refusal, check
        self.allows = allows or (lambda *_: True)
        self.progress = progress or (lambda stage, done: None)
        self.steps: list[Step] = []
        self.notes: set[str] = set()
        self.missing: dict[tuple[Opsets, str], str] = {}
        """What a rule needs, by name, that graphs of some opsets do not have."""
        self.reach = max(map(_depth, rules), default=0)
        self._by_opsets: dict[Opsets, tuple[Candidates, Candidates]] = {}
        self._settled: set[Graph] = set()
        """The bodies in which there is nothing left to do, until they are told of something new."""

    def run(self, graph: Graph) -> Simplification:
        """Simplify a graph and the bodies in it, in place.

        Raises:
            TimeUp: the check does; then the graph is legal and equal, but not settled.
        """
        self.steps, self.notes, self._settled = [], set(), set()
        for inner in graph.graphs():
            reconsider(inner)
        self._settle(graph)
        return Simplification(tuple(self.steps), tuple(sorted(self.notes)))

    def _settle(self, graph: Graph) -> None:
        """Apply passes, then rules, then settle the bodies, until nothing changes."""
        (alone, merging), before = self._candidates(graph), 0
        for _ in range(ROUNDS):
            before = len(self.steps)
            reconsider(graph)
            self._pass(graph, late=False)
            self._rewrite(graph, alone)
            self._rewrite(graph, merging)
            self._pass(graph, late=True)
            for vertex, node in list(graph.nodes()):
                self._settled -= self._inform(graph, vertex, node)
                for body in node.bodies:
                    if body not in self._settled:
                        self._settle(body)
                        self._settled.add(body)
            if len(self.steps) == before:
                return
        last = ", ".join(dict.fromkeys(step.name for step in self.steps[before:]))
        self.notes.add(f"the graph '{graph.name}' did not settle in {ROUNDS} rounds: {last} go on for ever")
        log.warning("the graph '%s' did not settle in %d rounds: %s go on for ever", graph.name, ROUNDS, last)

    def _pass(self, graph: Graph, *, late: bool) -> None:
        for pass_ in self.passes:
            self.check()
            if pass_.late == late:
                for patch in pass_.run(graph):
                    if self.refusal is not None and (reason := self.refusal(graph, patch)):
                        if not isinstance(reason, Noted):
                            self.notes.add(f"pass {pass_.name} left something as it was: {reason}")
                        continue
                    self._apply_pass(pass_, graph, patch)

    def _apply_pass(self, pass_: Pass, graph: Graph, patch: Patch) -> None:
        if foreign := written(patch) - pass_.writes:
            raise ValueError(f"pass {pass_.name} writes {', '.join(sorted(foreign))}, which only rules may")
        self._apply(pass_.name, graph, patch, is_rule=False)

    def _inform(self, graph: Graph, vertex: int, node: Node) -> set[Graph]:
        """Tell the bodies of a node what is known of the values that flow into them; return those to which it is
        new."""
        told = set(mark_bodies(graph, vertex))
        for pass_ in self.passes:
            for body, patch in pass_.inform(graph, node) if pass_.inform else ():
                self._apply_pass(pass_, body, patch)
                told.add(body)
        return told

    def _candidates(self, graph: Graph) -> tuple[Candidates, Candidates]:
        """Return the rules by the operators that their left sides end in; notes which of them the opset cannot express.

        Those that merge branches come after the others, which may need a branch as it was: a Concat of all slices of
        a value is the value, and no Split of two of them.
        """
        opsets = _opsets(graph)
        if opsets not in self._by_opsets:
            for rule in self.rules:
                missing = lacking(rule, graph.opsets)
                if missing:
                    self.missing[opsets, rule.name] = missing
            alone, merging = ([r for r in self.rules if (len(r.left) > 1) is many] for many in (False, True))
            self._by_opsets[opsets] = by_root(alone), by_root(merging)
        return self._by_opsets[opsets]

    def _rewrite(self, graph: Graph, by_op: Candidates) -> None:
        """Apply rules until none matches, looking again only where something changed."""
        queue = deque(vertex for vertex in graph.topological() if graph[vertex].op in by_op)
        queued, total = set(queue), len(queue)
        while queue:
            self.check()
            vertex = queue.popleft()
            queued.discard(vertex)
            if vertex not in graph:
                continue
            patch = self._rewrite_at(graph, vertex, by_op.get(graph[vertex].op, ()))
            if patch is None:
                continue
            for near in self._near(graph, patch):
                if near not in queued and graph[near].op in by_op:
                    queued.add(near)
                    queue.append(near)
            self.progress("rules", max(0.0, 1 - len(queue) / max(total, 1)))

    def _rewrite_at(self, graph: Graph, vertex: int, rules: Iterable[tuple[Rule, frozenset[str]]]) -> Patch | None:
        made_by = makers(graph, graph[vertex])
        for rule, needed in rules:
            for match in find(rule, graph, vertex) if needed <= made_by else ():
                patch = self._improvement(graph, match)
                if patch is not None:
                    return self._apply(rule.name, graph, patch, is_rule=True)
        return None

    def _improvement(self, graph: Graph, match: Match) -> Patch | None:
        """Return the patch of a match where it makes the measure smaller."""
        if gain_at_least(graph, match) < 0 and not match.rule.forgets:
            return None
        if repeats(graph, match):
            return None
        if missing := self.missing.get((_opsets(graph), match.rule.name)):
            self.notes.add(f"rule {match.rule.name} needs {missing}, which the model's opset does not have")
            return None
        if not self.allows(Site.of(graph, match)):
            return None
        try:
            patch = build(graph, match, self.refusal)
        except Refused as refused:
            where = graph.value_name(match.roots[0])
            if not refused.is_noted:
                self.notes.add(f"rule {match.rule.name} was not applied at '{where}': {refused}")
            return None
        return patch if gain(patch) > (0, 0, 0) and not _is_more_copies(patch) else None

    def _apply(self, name: str, graph: Graph, patch: Patch, *, is_rule: bool) -> Patch:
        graph.apply(patch)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s", name, _told(patch))
        self.steps.append(Step(name, graph, patch, is_rule))
        return patch

    def _near(self, graph: Graph, patch: Patch) -> Iterator[int]:
        """Where a match may have become possible: what changed, what lost a reader, and what they lead to."""
        changed = [vertex for vertex in patch.after if vertex in graph]
        operands = {value.vertex for node in (*patch.before.values(), *patch.after.values()) for value in node.operands}
        level = dict.fromkeys([*changed, *(vertex for vertex in operands if vertex in graph)])
        seen: dict[int, None] = {}
        for _ in range(self.reach + 1):
            seen |= level
            few = [vertex for vertex in level if graph.fan_out(vertex) <= MANY]
            level = dict.fromkeys(r for v in few for r in graph.readers(v) if r not in seen)
            if len(level) > MANY:
                break
        yield from seen


_depth = cache(depth)


def by_root(rules: Iterable[Rule]) -> Candidates:
    """Return the rules by the operators that their left sides may end in."""
    by_op: dict[str, dict[tuple[Rule, frozenset[str]], None]] = {}
    for rule in rules:
        for side in rule.left:
            for op in roots(side):
                by_op.setdefault(op, {})[rule, producers(side)] = None
    return {op: tuple(found) for op, found in by_op.items()}


def gain(patch: Patch) -> tuple[int, int, int]:
    """Return what a patch takes off the measure: weights before elements, and those that are computed before constants.

    A constant that others read is not taken off.
    """
    return _taken(patch, weight), _taken(patch, _elements), _taken(patch, _stored)


def _is_more_copies(patch: Patch) -> bool:
    """Return whether there are more nodes for the names of outputs: what is an input, or another output, is copied."""
    outputs = {value.vertex for value in (patch.outputs[1] if patch.outputs else ())}  # a copy is a new one
    new = {vertex: node for vertex, node in patch.after.items() if vertex not in patch.before and not node.is_internal}
    copies = [vertex for vertex, node in new.items() if node.op == IDENTITY and vertex in outputs]
    return bool(copies) and len(new) > sum(not node.is_internal for node in patch.removed)


def _taken(patch: Patch, share: Callable[[Node], int]) -> int:
    return sum(map(share, patch.before.values())) - sum(map(share, patch.after.values()))


def _elements(node: Node) -> int:
    """Return how many elements a node computes, an open size taken as 1."""
    if node.is_internal:
        return 0
    return sum(type_.known_size for type_ in node.types if isinstance(type_, TensorType))


def _stored(node: Node) -> int:
    return node.data.size if isinstance(node.data, Tensor) else 0


def _told(patch: Patch) -> str:
    """Return what a patch does, in operators: `Conv, BatchNormalization -> Conv`."""
    sides = ([node.op for node in nodes if not node.is_internal] for nodes in (patch.removed, patch.added))
    before, after = (", ".join(side) for side in sides)
    if before or after:
        return f"{before or 'nothing'} -> {after or 'nothing'}"
    return f"changes {len(patch.after.keys() & patch.before.keys())} nodes in place"
