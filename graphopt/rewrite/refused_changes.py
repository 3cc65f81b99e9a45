"""Changes that the check refused, so that they are not made again: known by names in one run, and in other exports of
the model by the nodes that make the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from graphopt.ir.graph import Graph, Node, Patch
from graphopt.rewrite.build import RefusalFunction
from graphopt.rewrite.folded_constants import ReportedReason
from graphopt.rewrite.regions import canonical_order, nodes_digest

# -- in one run --------------------------------------------------------------------------------------------------------

PatchKey: TypeAlias = "tuple[frozenset[tuple[str, ...]], tuple[str, ...]]"
"""The values that go or are computed otherwise, by the operator that made them; and the operators that come."""


def patch_key(patch: Patch) -> PatchKey:
    """Return a key for what a patch does and where, which another attempt at the model may share."""
    return frozenset((node.op, *node.names) for node in replaced_nodes(patch).values()), _added_operators(patch)


def replaced_nodes(patch: Patch) -> dict[int, Node]:
    """Return the nodes that a patch removes or replaces; if there are none, those whose inputs it changes."""
    gone = {}
    for vertex, node in patch.before.items():
        now = patch.after.get(vertex)
        is_rewired_only = now and (node.op, node.domain, node.attrs) == (now.op, now.domain, now.attrs)
        if not node.is_constant and not is_rewired_only:
            gone[vertex] = node
    return gone or {vertex: node for vertex, node in patch.before.items() if vertex in patch.after}


def _added_operators(patch: Patch) -> tuple[str, ...]:
    gone = replaced_nodes(patch)
    new = (n for v, n in patch.after.items() if not n.is_internal and (v in gone or v not in patch.before))
    return tuple(sorted(node.op for node in new))


def format_replaced_values(patch: Patch) -> str:
    """Return the values that a patch replaces, by name."""
    names = [name for node in replaced_nodes(patch).values() for name in node.names if name]
    return ", ".join(f"'{name}'" for name in names[:3]) + (" …" if len(names) > 3 else "")


# -- in other exports of the model -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class LoadedNode:
    """A node of a model as it was loaded."""

    digest: str
    """Digest of the node, on its shapes."""
    number: int
    """Number of such nodes before it, in an order that depends on the wiring alone."""


@dataclass(frozen=True, slots=True)
class PortableChange:
    """A patch, as other exports of the model have it."""

    removed: tuple[str, ...]
    """Operators of the nodes that it removes or replaces."""
    added: tuple[str, ...]
    """Operators of the nodes that come."""
    places: tuple[LoadedNode, ...]
    """Nodes that made the values of the removed ones when the model was loaded."""


@dataclass(frozen=True, slots=True)
class RefusedRewrite:
    """A rewrite that the check refused."""

    name: str
    """Name of the rule or pass."""
    is_rule: bool = True
    values: str = ""
    """Values that it replaced, as messages name them."""
    change: PortableChange | None = None
    """The change; None where it replaced only what other rewrites had made: the check has to refuse it again."""
    is_everywhere: bool = False
    """True where the rule or pass was left out everywhere."""
    difference: str = ""
    """Difference that the check found with it."""

    @property
    def label(self) -> str:
        """Name of the rule or pass, as messages have it: `the rule 'fuse_relu'`."""
        return f"the {'rule' if self.is_rule else 'pass'} '{self.name}'"

    @property
    def where(self) -> str:
        """Place where it was made, as messages have it: ` at 'y'`, or nothing."""
        return "" if self.is_everywhere else f" at {self.values}"

    def __str__(self) -> str:
        return f"{self.label}{self.where}"


class LoadedPlaces:
    """The nodes of a model as it was loaded, by the names of their values."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._places: dict[str, dict[tuple[Graph, int], LoadedNode]] = {}

    @cached_property
    def _makers(self) -> Mapping[str, tuple[Graph, int]]:
        return {
            name: (graph, vertex)
            for graph in self._graph.graphs()
            for vertex, node in graph.nodes()
            for name in node.names
            if name
        }

    def change(self, patch: Patch) -> PortableChange | None:
        """Return a patch as other exports have it; None where the loaded model has no value that it replaces."""
        names = [name for node in replaced_nodes(patch).values() for name in node.names]
        makers = dict.fromkeys(self._makers[name] for name in names if name in self._makers)
        places = sorted(place for graph, vertex in makers if (place := self._place(graph, vertex)) is not None)
        return PortableChange(*_operators(patch), tuple(places)) if places else None

    def _place(self, graph: Graph, vertex: int) -> LoadedNode | None:
        """Return the place of a node; None of one that no output depends on."""
        op = graph[vertex].op
        if op not in self._places:
            self._places[op] = self._numbered(op)
        return self._places[op].get((graph, vertex))

    def _numbered(self, op: str) -> dict[tuple[Graph, int], LoadedNode]:
        found, counts = dict[tuple[Graph, int], LoadedNode](), Counter[str]()
        for graph in self._graph.graphs():
            for vertex in canonical_order(graph):
                if graph[vertex].op == op:
                    digest = nodes_digest(graph, [vertex]) or op
                    found[graph, vertex] = LoadedNode(digest, counts[digest])
                    counts[digest] += 1
        return found


def _operators(patch: Patch) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(sorted(node.op for node in replaced_nodes(patch).values())), _added_operators(patch)


# -- refusal -----------------------------------------------------------------------------------------------------------

EXCLUDED_REASON = ReportedReason("the check found a difference there")
"""Reason why a change is refused in a later attempt, which is noted where it is left out."""


@dataclass
class ChangeRefusal:
    """A function that refuses changes which the check refused, in this run or when a recipe was made, and all that is
    refused anyway."""

    refusal: RefusalFunction
    places: LoadedPlaces
    excluded: Collection[PatchKey] = frozenset()
    foreseen: Mapping[PortableChange, RefusedRewrite] = field(default_factory=dict)
    met: dict[PortableChange, RefusedRewrite] = field(default_factory=dict)
    """Rewrites of a recipe that were refused here, with the values that each would have replaced."""

    def __call__(self, graph: Graph, patch: Patch) -> str:
        if self.excluded and patch_key(patch) in self.excluded:
            return EXCLUDED_REASON
        if self.foreseen and (change := self._foreseen_change(patch)) is not None:
            self.met.setdefault(change, replace(self.foreseen[change], values=format_replaced_values(patch)))
            return EXCLUDED_REASON
        return self.refusal(graph, patch)

    def _foreseen_change(self, patch: Patch) -> PortableChange | None:
        if _operators(patch) not in self._foreseen_operators:
            return None
        change = self.places.change(patch)
        return change if change in self.foreseen else None

    @cached_property
    def _foreseen_operators(self) -> frozenset[tuple[tuple[str, ...], tuple[str, ...]]]:
        return frozenset((change.removed, change.added) for change in self.foreseen)
