"""Memory of a search: matches that failed, right sides that were built, and constants that were computed.

A search makes hundreds of graphs that are alike but for a few nodes, and a model has dozens of layers that are alike
but for their weights. What was found out about a place in one of them holds wherever it looks the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias

from graphopt.base.dtype import DType
from graphopt.ir.graph import Attribute, Graph, Node, attribute_key
from graphopt.ir.tensor import Tensor
from graphopt.language.rule import Rule
from graphopt.rewrite.built_rewrites import BuiltRewrites
from graphopt.rewrite.constant_operands import is_filled_tensor
from graphopt.rewrite.folded_constants import FoldedValues
from graphopt.rewrite.matching import (
    MAX_KEYED_ELEMENTS,
    Match,
    Matcher,
    node_producer_kinds,
    pattern_depth,
    producer_kinds,
)

MAX_REMEMBERED_PLACES = 400_000
"""Places, and nodes in them, that are remembered at once; with more, all are forgotten."""


class FailedMatches:
    """The rules that do not match at a place, remembered by what a match looks at: the nodes upwards from there.

    Places are alike if their nodes are but for names and for the values of weights, and if they are wired alike. What
    does not match at one of them matches at none; where the values of weights were asked, at none with these weights.
    Where others than these nodes were asked, as for the readers of a value, nothing is remembered.
    """

    def __init__(self) -> None:
        self._rules: dict[int, _KnownRule] = {}
        """Rules by their identity: two may have one name."""
        self._kinds: dict[int, _Kind] = {}
        """Kinds of nodes, as a match tells them apart, by their serial numbers."""
        self._numbers: dict[object, int] = {}
        """Numbers of kinds and of places."""
        self._failed: dict[_Place, int] = {}
        """Sets of rules, as bits, that do not match at a place."""
        self._count = count()

    def find(self, graph: Graph, vertex: int, rules: Iterable[Rule], distance: int = 0) -> Iterator[tuple[Rule, Match]]:
        """Yield the matches of rules that end at a vertex, as `find_matches` does, while the graph stays as it is; of
        those rules alone whose patterns reach nodes at this distance, or that follow indices. What admits a rule at a
        place may depend on nodes that are farther: where these change, it is not tried again."""
        near, made_by = _Surroundings(self, graph, vertex), set[str]()
        for rule in rules:
            known = self._rules.get(id(rule)) or self._number_rule(rule)
            is_far = known.height < distance and not rule.arange_conditions
            if is_far or near.failed & known.flag or near.are_known_to_fail(known):
                continue
            made_by = made_by or node_producer_kinds(graph, graph[vertex])
            if not any(needed <= made_by for needed in known.producers):
                self._note(near.place(1), known)
                continue
            matcher, is_empty = Matcher(graph, rule), True
            for match in matcher.matches_ending_at(vertex):
                is_empty = False
                yield rule, match
            if is_empty and matcher.is_local:
                self._note(near.place(matcher.height, with_weights=matcher.reads_weights), known)

    def _note(self, place: _Place, known: _KnownRule) -> None:
        """Remember that a rule does not match at a place."""
        self._limit()
        self._failed[place] = self._failed.get(place, 0) | known.flag

    def at(self, place: _Place) -> int:
        """Return the rules that do not match at a place."""
        return self._failed.get(place, 0)

    def kind_of(self, node: Node) -> _Kind:
        """Return what a node is to a match."""
        return self._kinds.get(node.serial) or self._describe_node(node)

    def number(self, key: object) -> int:
        """Return the number of a kind or place, which no other has."""
        found = self._numbers.get(key)
        if found is None:
            self._limit()
            found = self._numbers[key] = next(self._count)
        return found

    def _limit(self) -> None:
        """Forget all where too much is remembered."""
        if len(self._numbers) + len(self._kinds) + len(self._failed) >= MAX_REMEMBERED_PLACES:
            self._numbers.clear()
            self._kinds.clear()
            self._failed.clear()

    def _number_rule(self, rule: Rule) -> _KnownRule:
        producers = tuple(map(producer_kinds, rule.left))
        known = _KnownRule(rule, 1 << len(self._rules), pattern_depth(rule) + 1, producers)
        self._rules[id(rule)] = known
        return known

    def _describe_node(self, node: Node) -> _Kind:
        keys = {name: _attribute_key(attribute) for name, attribute in node.attrs.items()}
        data = None if node.data is None else (node.data.dtype, node.data.shape, _values_key(node.data))
        is_weight = data is not None and data[-1] is None
        key: object = node.serial  # a node with bodies is like no other
        if None not in keys.values():
            outputs = tuple(map(bool, node.names)), node.types, node.contents
            operands = len(node.inputs), len(node.captures)
            key = (node.op, node.domain, node.version, *outputs, *operands, *sorted(keys.items()), data)
        kind = self._kinds[node.serial] = _Kind(self.number(key), is_weight, is_filled_tensor(node))
        return kind


class _KnownRule(NamedTuple):
    rule: Rule
    flag: int
    """Its bit in a set of rules."""
    height: int
    """Number of nodes above the last one that a match looks at, at most."""
    producers: tuple[frozenset[str], ...]
    """For each left side the operators that must be among the producers of its root's inputs."""


class _Kind(NamedTuple):
    number: int
    """Equal for nodes that are alike to a match."""
    is_weight: bool
    """True if it is a constant whose values do not count."""
    is_filled: bool
    """True if it is as good as a constant, by the sizes that it reads."""


_Place: TypeAlias = "int | tuple[int, ...]"
"""The number of what the nodes upwards to some height are; where weights were asked, with their serial numbers."""


class _Surroundings:
    """The nodes upwards from a vertex of a graph, looked at as far as is needed."""

    __slots__ = ("_graph", "_highest", "_memory", "_places", "_vertices", "_weights", "failed")

    def __init__(self, memory: FailedMatches, graph: Graph, vertex: int) -> None:
        node = graph[vertex]
        self._memory, self._graph, self._highest = memory, graph, [node]
        self._vertices = {vertex: 0}
        """The vertices that were met, with their places among them."""
        place = memory.number((graph.positive_sizes, memory.kind_of(node).number))
        self._places: list[int] = [place]
        """The numbers of what the nodes up to each height are."""
        self._weights: list[tuple[int, ...]] = [()]
        """The serial numbers of the weights up to each height."""
        self.failed = memory.at(place)
        """The rules that do not match, as far as was looked."""

    def are_known_to_fail(self, known: _KnownRule) -> bool:
        """Return whether a rule is known not to match here."""
        while len(self._places) <= known.height:
            self._look_higher()
            if self.failed & known.flag:
                return True
        return False

    def place(self, height: int, *, with_weights: bool = False) -> _Place:
        """Return what the nodes up to a height are."""
        place = self._places[height]
        return (place, *self._weights[height]) if with_weights and self._weights[height] else place

    def _look_higher(self) -> None:
        """Look at the nodes that make what the highest ones read; with a ConstantOfShape, which is as good as a
        constant, at the sizes that it reads."""
        memory, graph, met = self._memory, self._graph, self._vertices
        key, weights, fresh = [self._places[-1]], [*self._weights[-1]], list[Node]()
        waiting = [*self._highest]
        for node in waiting:
            for value in (*node.inputs, *node.captures):
                if value is None:
                    key.append(-1)
                    continue
                vertex, output = value
                key.append(output)
                if vertex in met:
                    key.append(-2 - met[vertex])
                    continue
                met[vertex] = len(met)
                producer = graph[vertex]
                kind = memory.kind_of(producer)
                key.append(kind.number)
                fresh.append(producer)
                if kind.is_weight:
                    weights.append(producer.serial)
                if kind.is_filled:
                    waiting.append(producer)
        self._highest = fresh
        place = memory.number(tuple(key))
        self._places.append(place)
        self._weights.append(tuple(weights))
        self.failed |= memory.at(place)
        if weights:
            self.failed |= memory.at((place, *weights))


def _attribute_key(attribute: Attribute) -> object:
    """Return what tells an attribute from others, by its type, too; None where nothing does."""
    if isinstance(attribute, Tensor):
        values = _values_key(attribute)
        return values if values is None else (attribute.dtype, attribute.shape, values)
    return attribute_key(attribute)


def _values_key(tensor: Tensor) -> object:
    """Return the values of a constant that a match looks at freely; None for a weight."""
    is_keyed = tensor.size <= MAX_KEYED_ELEMENTS and tensor.dtype is not DType.STRING
    return tensor.numpy().tobytes() if is_keyed else tensor.int_values()


@dataclass(frozen=True, slots=True)
class RewriteMemory:
    """Memory of earlier work with the same rules, in the same session."""

    failed_matches: FailedMatches = field(default_factory=FailedMatches)
    folded_values: FoldedValues = field(default_factory=FoldedValues)
    built_rewrites: BuiltRewrites | None = field(default_factory=BuiltRewrites)
    """None where none is remembered."""

    @staticmethod
    def of_one_run() -> RewriteMemory:
        """Return a memory for work that builds nothing twice, so that neither constants nor nodes are kept."""
        return RewriteMemory(folded_values=FoldedValues(max_bytes=0), built_rewrites=None)
