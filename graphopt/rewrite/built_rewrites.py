"""Right sides that were built, by what they were built of: another time they only get numbers and names.

A search applies a rule hundreds of times to the same values, in graphs that differ elsewhere. What is built depends on
the match, on what is known of the values that it binds and on the constants among them, and on nothing else of the
graph but its opsets and the open sizes of its inputs. Names, and what was noted at the nodes that go, are taken over
anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from weakref import ReferenceType, ref

from graphopt.expr.dims import SymbolicDim
from graphopt.ir.graph import NO_METADATA, Graph, Node, Value, attribute_key
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.language.binding import Binding, ConstantBinding, DefaultBinding
from graphopt.rewrite.constant_operands import is_filled_tensor
from graphopt.rewrite.folded_constants import FoldedValues
from graphopt.rewrite.matching import Match

MAX_REMEMBERED_REWRITES = 4096
"""Right sides that are remembered at once; with more, all are forgotten."""


class Ingredients(NamedTuple):
    """All that a right side is built of."""

    key: Hashable
    """Equal for what is built alike, as long as the constants live."""
    vertices: tuple[int, ...]
    """The vertices that the match binds, and inputs with open sizes; in the same order for equal keys."""
    names: tuple[str, ...]
    """The names of the nodes that match and of what they make, and those of constants."""
    constants: tuple[Tensor, ...]
    """The constants among the vertices, which the key knows by identity."""


class NewName(NamedTuple):
    """A name that was reserved for a new node or value."""

    stem: str
    """The name that it is made of."""
    suffix: str
    name: str

    @staticmethod
    def reserve(graph: Graph, stem: str, suffix: str) -> NewName:
        """Reserve a name; of what was folded before, the suffix is not repeated."""
        short = (_FOLDED_SUFFIX.sub("", stem) or "constant") if suffix == FOLDED else stem
        return NewName(stem, suffix, graph.new_name(short + suffix))


FOLDED = "_folded"
"""Suffix of the names of constants that were computed."""
_FOLDED_SUFFIX = re.compile(r"(?:_folded(?:_\d+)?)+$")


class NodeNotes(NamedTuple):
    """Documentation and metadata of nodes, as a file holds them."""

    doc: str
    metadata: Mapping[str, str]


class NewNodes(NamedTuple):
    """Nodes of a right side, in new vertices of a graph."""

    roots: tuple[Value, ...]
    """The values in the places of the roots."""
    nodes: dict[int, Node]
    heirs: frozenset[int]
    """The vertices of those that take over what was noted at the nodes that go."""
    names: list[NewName]
    """The names that were reserved for them, in order."""


def ingredients(graph: Graph, match: Match, dead: Iterable[int]) -> Ingredients | None:
    """Return what the right side of a match is built of; None where that is not known in full.

    `dead` are the matched vertices that nothing needs any more, whose names are taken over.
    """
    numbers: dict[int, int] = {}
    names: dict[str, int] = {"": 0}

    def number(vertex: int) -> int:
        return numbers.setdefault(vertex, len(numbers))

    def facts(node: Node, *, is_matched: bool) -> Hashable:
        """Return what is known of the values of a node, and which names of it may be taken over."""
        if not is_matched and not node.is_constant:
            return node.types, node.contents
        labels = tuple(names.setdefault(name, len(names)) for name in (*node.names, node.name))
        return (id(node.data), labels) if node.is_constant else (node.types, node.contents, node.op, labels)

    terms = tuple((id(app), number(vertex), output) for app, (vertex, output) in match.terms.items())
    matched = len(numbers)
    bound = tuple((name, _binding_key(each, number)) for name, each in match.holes.items())
    if any(key is None for _, key in bound):
        return None
    roots = tuple((number(vertex), output) for vertex, output in match.roots)
    inputs = tuple(number(vertex) for vertex in graph.inputs if _has_open_size(graph, vertex))
    gone = tuple(map(number, sorted(dead)))
    nodes = [graph[vertex] for vertex in numbers]
    if any(map(is_filled_tensor, nodes)):
        return None
    known = tuple(facts(node, is_matched=place < matched) for place, node in enumerate(nodes))
    constants = tuple(node.data for node in nodes if node.is_constant and node.data is not None)
    circumstances = tuple(sorted(graph.opsets.items())), graph.positive_sizes
    key = (id(match.rule), terms, bound, tuple(match.axes.items()), roots, inputs, gone, known, circumstances)
    return Ingredients(key, tuple(numbers), tuple(names), constants)


def _has_open_size(graph: Graph, vertex: int) -> bool:
    """Return whether a size of an input is known only when the model runs."""
    type_ = graph.tensor_type(Value(vertex))
    return type_ is None or not type_.is_static


def _binding_key(bound: Binding, number: Callable[[int], int]) -> Hashable:
    """Return what tells a binding from others; None where nothing does."""
    match bound:
        case Value(vertex, output):
            return number(vertex), output
        case ConstantBinding():
            return number(bound.value.vertex), bound.value.output, bound.shape, bound.is_reciprocal
        case DefaultBinding():
            return repr(bound.default), bound.shape, bound.dtype
        case SymbolicDim():
            return SymbolicDim, bound
        case Mapping():
            keys = tuple((name, attribute_key(bound[name])) for name in sorted(bound))
            return keys if all(key is not None for _, key in keys) else None
    return attribute_key(bound)


@dataclass(frozen=True, slots=True)
class _BuiltRewrite:
    """A right side as it was built for one match, with its numbers and names there."""

    pattern: tuple[object, ...]
    """The rule and the terms, which the key knows by identity."""
    used: tuple[ReferenceType[Tensor], ...]
    """The constants that it was built of."""
    vertices: tuple[int, ...]
    names: tuple[str, ...]
    made: NewNodes
    """The nodes that were built; constants without their values."""
    values: Mapping[int, ReferenceType[Tensor]]
    """The values of its constants, as long as they are in use or remembered as folded."""

    def rebuild(self, graph: Graph, made_of: Ingredients, noted: NodeNotes) -> NewNodes | None:
        """Return the same of other ingredients; None where values were forgotten."""
        data = {vertex: value() for vertex, value in self.values.items()}
        if any(value() is None for value in self.used) or None in data.values():
            return None
        place = dict(zip(self.vertices, made_of.vertices, strict=True))
        label = dict(zip(self.names, made_of.names, strict=True))
        names = [NewName.reserve(graph, label.get(each.stem, each.stem), each.suffix) for each in self.made.names]
        label |= {old.name: new.name for old, new in zip(self.made.names, names, strict=True)}
        place |= {vertex: graph.new_vertex() for vertex in self.made.nodes}
        nodes = {
            place[vertex]: replace(
                node,
                inputs=tuple(value and Value(place[value.vertex], value.output) for value in node.inputs),
                names=tuple(label.get(name, name) for name in node.names),
                name=label.get(node.name, node.name),
                data=data.get(vertex),
                doc=noted.doc if vertex in self.made.heirs else "",
                metadata=noted.metadata if vertex in self.made.heirs else NO_METADATA,
            )
            for vertex, node in self.made.nodes.items()
        }
        heirs = frozenset(map(place.__getitem__, self.made.heirs))
        return NewNodes(tuple(Value(place[vertex], output) for vertex, output in self.made.roots), nodes, heirs, names)


class BuiltRewrites:
    """Right sides that were built, by their ingredients.

    Their constants are held no longer than others hold them. What has a size that nobody named is not remembered: it
    would be taken for the same size elsewhere.
    """

    def __init__(self) -> None:
        self._built: dict[Hashable, _BuiltRewrite] = {}

    def rebuild(self, graph: Graph, made_of: Ingredients, noted: NodeNotes) -> NewNodes | None:
        """Return new nodes like those that were built of the same before; None where there are none."""
        known = self._built.get(made_of.key)
        return None if known is None else known.rebuild(graph, made_of, noted)

    def note(self, match: Match, made_of: Ingredients, made: NewNodes) -> None:
        """Remember what was built for a match."""
        if any(map(_has_unnamed_size, made.nodes.values())):
            return
        if len(self._built) >= MAX_REMEMBERED_REWRITES:
            self._built.clear()
        values = {vertex: ref(node.data) for vertex, node in made.nodes.items() if node.data is not None}
        bare = {vertex: replace(node, data=None) for vertex, node in made.nodes.items()}
        self._built[made_of.key] = _BuiltRewrite(
            (match.rule, *match.terms),
            tuple(map(ref, made_of.constants)),
            made_of.vertices,
            made_of.names,
            made._replace(nodes=bare),
            values,
        )


def _has_unnamed_size(node: Node) -> bool:
    """Return whether a size of a node's values, or a number that they hold, has no name."""
    sizes = [size for type_ in node.types if isinstance(type_, TensorType) for size in type_.shape or ()]
    sizes += [number for elements in node.contents for number in elements or ()]
    return any(isinstance(size, SymbolicDim) and size.is_anonymous for size in sizes)


@dataclass(frozen=True, slots=True)
class BuildMemory:
    """Memory of what was built and computed for matches, in the same session."""

    folded_values: FoldedValues = field(default_factory=FoldedValues)
    built_rewrites: BuiltRewrites | None = field(default_factory=BuiltRewrites)
    """Right sides that were built; None where none is remembered."""
