"""Memory of a search: matches that failed, and constants that were computed.

A search makes hundreds of graphs that are alike but for a few nodes. Their nodes and tensors are shared, and neither
ever changes: what was found out about them in one graph holds in the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from graphopt.ir.graph import Graph, Node
from graphopt.language.rule import Rule
from graphopt.rewrite.constant_operands import is_filled_tensor
from graphopt.rewrite.folded_constants import FoldedValues
from graphopt.rewrite.matching import Match, Matcher, pattern_depth

MAX_REMEMBERED_PLACES = 200_000
"""Places whose failed matches are remembered at once; with more, all are forgotten."""


class FailedMatches:
    """The rules that do not match at a place, remembered by what a match looks at: the nodes upwards from there.

    What does not match in one graph matches in none in which these nodes are the same. Where others than these were
    asked, as for the readers of a value, nothing is remembered.
    """

    def __init__(self) -> None:
        self._rules: dict[int, _KnownRule] = {}
        """Rules by their identity: two may have one name."""
        self._failed: dict[_Place, int] = {}
        """Sets of rules, as bits, that do not match at a place."""

    def around(self, graph: Graph, vertex: int) -> LocalMatches:
        """Return the matches that end at a vertex, to be asked for rule by rule while the graph stays as it is."""
        return LocalMatches(self, graph, vertex)

    def known_rule(self, rule: Rule) -> _KnownRule:
        """Return a rule with its bit and height, computed once."""
        known = self._rules.get(id(rule))
        if known is None:
            known = self._rules[id(rule)] = _KnownRule(rule, 1 << len(self._rules), pattern_depth(rule) + 1)
        return known

    def at(self, place: _Place) -> int:
        """Return the rules that do not match at a place."""
        return self._failed.get(place, 0)

    def note(self, place: _Place, flag: int) -> None:
        """Remember that a rule does not match."""
        if len(self._failed) >= MAX_REMEMBERED_PLACES:
            self._failed.clear()
        self._failed[place] = self._failed.get(place, 0) | flag


class _KnownRule(NamedTuple):
    rule: Rule
    flag: int
    """Its bit in a set of rules."""
    height: int
    """Number of nodes above the last one that a match looks at, at most."""


_Place: TypeAlias = "tuple[object, ...]"
"""A vertex, the sizes that are known not to be 0, and the serial numbers of the nodes upwards to some height."""


class LocalMatches:
    """The matches that end at one vertex of a graph."""

    def __init__(self, failed: FailedMatches, graph: Graph, vertex: int) -> None:
        self.failed, self.graph, self.vertex = failed, graph, vertex
        node = graph[vertex]
        self._met, self._highest = {vertex}, [node]
        self._places: list[_Place] = [(vertex, graph.positive_sizes, node.serial)]
        """Places as far as they are looked at: the nodes up to each height."""
        self._failed_at = [failed.at(self._places[0])]
        """The rules that do not match, as far as that height tells."""

    def find(self, rule: Rule) -> Iterator[Match]:
        """Yield the matches of a rule, as `find_matches` does."""
        known = self.failed.known_rule(rule)
        for height in range(known.height + 1):
            if self._failed_up_to(height) & known.flag:
                return
        matcher, is_empty = Matcher(self.graph, rule), True
        for match in matcher.matches_ending_at(self.vertex):
            is_empty = False
            yield match
        if is_empty and matcher.is_local:
            self.failed.note(self._places[matcher.height], known.flag)

    def _failed_up_to(self, height: int) -> int:
        """Return the rules of which the nodes up to a height tell that they do not match."""
        while len(self._places) <= height:
            self._highest = [*self._nodes_above()]
            self._places.append((*self._places[-1], *(node.serial for node in self._highest)))
            self._failed_at.append(self._failed_at[-1] | self.failed.at(self._places[-1]))
        return self._failed_at[height]

    def _nodes_above(self) -> Iterator[Node]:
        """Yield the nodes that make what the highest ones read, each once; with a ConstantOfShape, which is as good as
        a constant, the sizes that it reads."""
        waiting = [value.vertex for node in self._highest for value in node.operands]
        for vertex in waiting:
            if vertex not in self._met:
                self._met.add(vertex)
                node = self.graph[vertex]
                yield node
                if is_filled_tensor(node):
                    waiting += [value.vertex for value in node.operands]


@dataclass(frozen=True, slots=True)
class RewriteMemory:
    """Memory of earlier work with the same rules, in the same session."""

    failed_matches: FailedMatches = field(default_factory=FailedMatches)
    folded_values: FoldedValues = field(default_factory=FoldedValues)

    @staticmethod
    def of_one_run() -> RewriteMemory:
        """Return a memory for work that computes no constant twice, so that none is kept."""
        return RewriteMemory(folded_values=FoldedValues(max_bytes=0))
