"""Memory of a search: where rules match, right sides that were built, and constants that were computed.

A search makes hundreds of graphs that are alike but for a few nodes, and a model has dozens of layers that are alike
but for their weights. What was found out about a place in one of them holds wherever it looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from graphopt.base.dtype import DType
from graphopt.ir.graph import Attribute, Graph, Node, Value, attribute_key
from graphopt.ir.tensor import Tensor
from graphopt.language.binding import AxisSizes, Binding, ConstantBinding
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Var
from graphopt.rewrite.built_rewrites import BuildMemory
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


class KnownMatches:
    """Matches of rules at places, remembered by what a match looks at: the nodes upwards from there.

    Places are alike if their nodes are but for names and for the values of weights, and if they are wired alike. A rule
    matches at all of them in the same way, or at none; where the values of weights were asked, at all with these
    weights. Where others than these nodes were asked, as for the readers of a value, nothing is remembered.
    """

    def __init__(self) -> None:
        self._rules: dict[int, _KnownRule] = {}
        """Rules by their identity: two may have one name."""
        self._rule_sets: dict[tuple[int, int], _RuleSet] = {}
        """Rules that are asked for together, by their identity and by their least distance."""
        self._kinds: dict[int, _Kind] = {}
        """Kinds of nodes, as a match tells them apart, by their serial numbers."""
        self._numbers: dict[object, int] = {}
        """Numbers of kinds and of places."""
        self._failed: dict[_Place, int] = {}
        """Sets of rules, as bits, that do not match at a place."""
        self._matched: dict[_Place, int] = {}
        """Sets of rules, as bits, of which the matches at a place are known."""
        self._outlines: dict[tuple[_Place, int], tuple[_MatchOutline, ...]] = {}
        """The matches of a rule, by its bit, at a place."""
        self._weights: WeakKeyDictionary[Tensor, int] = WeakKeyDictionary()
        """Numbers of weights."""
        self._count = count()

    def find(self, graph: Graph, vertex: int, rules: Sequence[Rule], distance: int = 0) -> Iterator[tuple[Rule, Match]]:
        """Yield the matches of rules that end at a vertex, as `find_matches` does, while the graph stays as it is; of
        those rules alone whose patterns reach nodes at this distance, or that follow indices. What admits a rule at a
        place may depend on nodes that are farther: where these change, it is not tried again."""
        near, made_by, asked = _Surroundings(self, graph, vertex), set[str](), self._rules_within(rules, distance)
        near.look_for(asked)
        for known in asked.rules:
            rule = known.rule
            if near.failed & known.flag:
                continue
            matches = near.known_matches(known)
            if matches is not None:
                yield from ((rule, match) for match in matches)
                continue
            made_by = made_by or node_producer_kinds(graph, graph[vertex])
            if not any(needed <= made_by for needed in known.producers):
                self._failed[near.place(1)] = self.failing_at(near.place(1)) | known.flag
                continue
            if known.siblings > 1 and not _has_siblings(graph, vertex, known.siblings):
                continue
            matcher = Matcher(graph, rule)
            if len(rule.left) == 1:
                found = [*matcher.matches_ending_at(vertex)]
                if matcher.is_local:
                    self._note(near, matcher, known, found)
                yield from ((rule, match) for match in found)
                continue
            is_empty = True
            for match in matcher.matches_ending_at(vertex):  # there may be many, for many readers
                is_empty = False
                yield rule, match
            if is_empty and matcher.is_local:
                self._note(near, matcher, known, [])

    def _note(self, near: _Surroundings, matcher: Matcher, known: _KnownRule, matches: Sequence[Match]) -> None:
        """Remember how a rule matches at a place."""
        self._limit()
        place = near.place(matcher.height, with_weights=matcher.reads_weights)
        outlines = [near.outline(match, matcher.height) for match in matches]
        if not outlines:
            self._failed[place] = self._failed.get(place, 0) | known.flag
        elif None not in outlines:
            self._matched[place] = self._matched.get(place, 0) | known.flag
            self._outlines[place, known.flag] = tuple(outline for outline in outlines if outline is not None)

    def failing_at(self, place: _Place) -> int:
        """Return the rules that do not match at a place."""
        return self._failed.get(place, 0)

    def matching_at(self, place: _Place) -> int:
        """Return the rules of which the matches at a place are known."""
        return self._matched.get(place, 0)

    def outlines_at(self, place: _Place, flag: int) -> tuple[_MatchOutline, ...] | None:
        """Return the matches of a rule at a place; None where none are known."""
        return self._outlines.get((place, flag))

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
        remembered: tuple[Sized, ...] = self._numbers, self._kinds, self._failed, self._matched, self._outlines
        if sum(map(len, remembered)) >= MAX_REMEMBERED_PLACES:
            self._numbers.clear()
            self._kinds.clear()
            self._failed.clear()
            self._matched.clear()
            self._outlines.clear()

    def _rules_within(self, rules: Sequence[Rule], distance: int) -> _RuleSet:
        """Return those of some rules whose patterns reach nodes at a distance, or that follow indices."""
        known = self._rule_sets.get((id(rules), distance))
        if known is not None:
            return known
        every = (self._rules.get(id(rule)) or self._number_rule(rule) for rule in rules)
        near = tuple(known for known in every if known.height >= distance or known.rule.arange_conditions)
        flags, height = sum(known.flag for known in near), max((known.height for known in near), default=0)
        made = _RuleSet(rules, near, flags, height)
        if isinstance(rules, tuple):  # which are asked for again, and do not change
            self._rule_sets[id(rules), distance] = made
        return made

    def _number_rule(self, rule: Rule) -> _KnownRule:
        producers = tuple(map(producer_kinds, rule.left))
        siblings = len(rule.left) if _has_parallel_sides(rule) else 1
        known = _KnownRule(rule, 1 << len(self._rules), pattern_depth(rule) + 1, producers, siblings)
        self._rules[id(rule)] = known
        return known

    def _describe_node(self, node: Node) -> _Kind:
        keys = {name: _attribute_key(attribute) for name, attribute in node.attrs.items()}
        data = None if node.data is None else (node.data.dtype, node.data.shape, _values_key(node.data))
        weight = None
        if node.data is not None and data is not None and data[-1] is None:
            weight = self._weights.setdefault(node.data, next(self._count))
        key: object = node.serial  # a node with bodies is like no other
        if None not in keys.values():
            outputs = tuple(map(bool, node.names)), node.types, node.contents
            operands = len(node.inputs), len(node.captures)
            key = (node.op, node.domain, node.version, *outputs, *operands, *sorted(keys.items()), data)
        kind = self._kinds[node.serial] = _Kind(self.number(key), weight, is_filled_tensor(node))
        return kind


class _KnownRule(NamedTuple):
    rule: Rule
    flag: int
    """Its bit in a set of rules."""
    height: int
    """Number of nodes above the last one that a match looks at, at most."""
    producers: tuple[frozenset[str], ...]
    """For each left side the operators that must be among the producers of its root's inputs."""
    siblings: int
    """Number of readers that some input of a root must have."""


class _RuleSet(NamedTuple):
    given: Sequence[Rule]
    """The rules that were asked for, which live as long as their identity is known."""
    rules: tuple[_KnownRule, ...]
    flags: int
    """Their bits."""
    height: int
    """The greatest of their heights."""


class _Kind(NamedTuple):
    number: int
    """Equal for nodes that are alike to a match."""
    weight: int | None
    """Number of a constant whose values do not count; None for any other node."""
    is_filled: bool
    """True if it is as good as a constant, by the sizes that it reads."""


_Place: TypeAlias = "int | tuple[int, ...]"
"""The number of what the nodes upwards to some height are; where weights were asked, with their numbers."""


class _Surroundings:
    """The nodes upwards from a vertex of a graph, looked at as far as is needed."""

    __slots__ = ("_counts", "_graph", "_highest", "_memory", "_places", "_vertices", "_weights", "failed", "matched")

    def __init__(self, memory: KnownMatches, graph: Graph, vertex: int) -> None:
        node = graph[vertex]
        self._memory, self._graph, self._highest = memory, graph, [node]
        self._vertices = {vertex: 0}
        """The vertices that were met, with their places among them."""
        place = memory.number((graph.positive_sizes, memory.kind_of(node).number))
        self._places: list[int] = [place]
        """The numbers of what the nodes up to each height are."""
        self._weights: list[tuple[int, ...]] = [()]
        """The numbers of the weights up to each height."""
        self._counts = [1]
        """The number of vertices that were met up to each height."""
        self.failed = memory.failing_at(place)
        """The rules that do not match, as far as was looked."""
        self.matched = memory.matching_at(place)
        """The rules of which the matches are known, as far as was looked."""

    def look_for(self, asked: _RuleSet) -> None:
        """Look as high as it takes to know how rules match, or as they look."""
        while len(self._places) <= asked.height and asked.flags & ~(self.failed | self.matched):
            self._look_higher()

    def known_matches(self, known: _KnownRule) -> Iterator[Match] | None:
        """Return the matches of a rule that are known; None where they are not."""
        if not self.matched & known.flag:
            return None
        vertices = [*self._vertices]
        for height in range(len(self._places)):
            for with_weights in (False, True):
                outlines = self._memory.outlines_at(self.place(height, with_weights=with_weights), known.flag)
                if outlines is not None:
                    return (outline.match_in(self._graph, vertices) for outline in outlines)
        return None

    def outline(self, match: Match, height: int) -> _MatchOutline | None:
        """Return the outline of a match; None where it binds what lies above a height, or is no constant of its own."""
        bound = [each for each in match.holes.values() if isinstance(each, Value)]
        weights = [each.value for each in match.holes.values() if isinstance(each, ConstantBinding)]
        places = {value.vertex: self._vertices.get(value.vertex) for value in (*match.terms.values(), *bound, *weights)}
        if any(place is None or place >= self._counts[height] for place in places.values()):
            return None
        if any(self._graph.constant(value) is None for value in weights):
            return None

        def at(value: Value) -> Value:
            return Value(places[value.vertex] or 0, value.output)

        holes = {
            name: _ConstantOutline(at(each.value), each.shape, each.is_reciprocal)
            if isinstance(each, ConstantBinding)
            else at(each)
            if isinstance(each, Value)
            else each
            for name, each in match.holes.items()
        }
        terms = {app: at(value) for app, value in match.terms.items()}
        return _MatchOutline(match.rule, tuple(map(at, match.roots)), holes, match.axes, terms, match.is_reordered)

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
                if kind.weight is not None:
                    weights.append(kind.weight)
                if kind.is_filled:
                    waiting.append(producer)
        self._highest = fresh
        place = memory.number(tuple(key))
        self._places.append(place)
        self._weights.append(tuple(weights))
        self._counts.append(len(met))
        for each in (place, (place, *weights)) if weights else (place,):
            self.failed |= memory.failing_at(each)
            self.matched |= memory.matching_at(each)


class _ConstantOutline(NamedTuple):
    """A hole for a constant, without the constant."""

    value: Value
    shape: tuple[int, ...]
    is_reciprocal: bool


class _MatchOutline(NamedTuple):
    """A match at all places that are alike; its values tell the places of vertices in the order in which they are met
    there."""

    rule: Rule
    roots: tuple[Value, ...]
    holes: Mapping[str, Binding | _ConstantOutline]
    axes: AxisSizes
    terms: Mapping[App, Value]
    is_reordered: bool

    def match_in(self, graph: Graph, vertices: Sequence[int]) -> Match:
        """Return the match at a place with these vertices."""

        def at(value: Value) -> Value:
            return Value(vertices[value.vertex], value.output)

        def binding(outline: Binding | _ConstantOutline) -> Binding:
            if isinstance(outline, _ConstantOutline):
                value = at(outline.value)
                tensor = graph.constant(value)
                assert tensor is not None, "places that are alike have constants in the same places"
                return ConstantBinding(value, tensor, outline.shape, outline.is_reciprocal)
            return at(outline) if isinstance(outline, Value) else outline

        holes = {name: binding(outline) for name, outline in self.holes.items()}
        terms = {app: at(value) for app, value in self.terms.items()}
        return Match(self.rule, tuple(map(at, self.roots)), holes, self.axes, terms, self.is_reordered)


def _has_parallel_sides(rule: Rule) -> bool:
    """Return whether all left sides are nodes of their own that begin with the same tensor."""
    first = rule.left[0].args[:1]
    is_shared = bool(first) and isinstance(first[0], Var) and first[0].kind == "tensor"
    return is_shared and all(side.args[:1] == first and side.outputs == 1 for side in rule.left)


def _has_siblings(graph: Graph, vertex: int, count: int) -> bool:
    """Return whether so many nodes read an input of a node: other left sides are found through it."""
    return any(graph.fan_out(source) >= count for source in graph.sources(vertex))


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
class RewriteMemory(BuildMemory):
    """Memory of earlier work with the same rules, in the same session."""

    known_matches: KnownMatches = field(default_factory=KnownMatches)

    @staticmethod
    def of_one_run() -> RewriteMemory:
        """Return a memory for work that builds nothing twice, so that neither constants nor nodes are kept."""
        return RewriteMemory(FoldedValues(max_bytes=0), built_rewrites=None)
