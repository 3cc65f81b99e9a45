"""Tensor parallelism: a graph computed by several devices at once, split by rules that are proved.

Each rule replaces an operator by one part for each device, which a Concat joins (all-gather) or a Sum adds up
(all-reduce). Where the operator that reads the result is split in the same way, the parts are passed on, and the
collective operation goes. The graph still computes what it did: that is what the proofs say. Who computes what follows
from it; `shards` cuts out each device's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.operators.node_facts import operator_of_node
from graphopt.operators.operator_cost import WorkKind
from graphopt.partition.collectives import Operation
from graphopt.rewrite.build import RewriteRefused, build_patch, missing_operator
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import Match, find_matches
from graphopt.rewrite.simplify import RulesByRoot, Step, rules_by_root, undo_steps
from graphopt.rewrite.sites import Site

MAX_SHARDS = 8
"""Most devices that share an operator: rules for more take long to prove, and links within a machine end there."""
HEAVY_WORK = (WorkKind.CONVOLUTION, WorkKind.PRODUCT)
"""Work that is worth being split: what follows it is split with it."""
JOINS = {"Concat": Operation.ALL_GATHER, "Sum": Operation.ALL_REDUCE}
"""Collective operations, by the operators that stand for them in the graph."""


@dataclass(frozen=True)
class ShardedGraph:
    """A graph in which operators are computed in parts, by as many devices."""

    graph: Graph
    count: int
    owners: Mapping[int, int]
    """The device that computes a vertex; the others are computed by all, or are joins."""
    joins: Mapping[int, Operation]
    """The vertices that stand for collective operations, each with one input from each device."""
    rules: Mapping[str, int]
    """Number of applications of each rule."""

    @property
    def is_split(self) -> bool:
        return bool(self.joins)

    def vertices_of(self, device: int) -> Iterator[int]:
        """Yield what a device computes, in topological order; joins too."""
        for vertex in self.graph.topological_order():
            if not self.graph[vertex].is_internal and self.owners.get(vertex, device) == device:
                yield vertex

    @cached_property
    def levels(self) -> Mapping[int, int]:
        """The number of collective operations before a vertex, on the longest path; of a join without itself."""
        found: dict[int, int] = {}
        for vertex in self.graph.topological_order():
            sources = self.graph.sources(vertex)
            found[vertex] = max((found[source] + (source in self.joins) for source in sources), default=0)
        return found


def shard_graph(graph: Graph, count: int, gate: Gate | None = None) -> ShardedGraph:
    """Split a graph among devices, in a copy.

    Args:
        graph: with types, as `infer_graph` leaves it.
        count: number of devices; a rule for any is built and proved, and the proof kept.
        gate: decides which rules may be applied where; by default those that are proved.
    """
    if count < 2:
        return ShardedGraph(graph, count, {}, {}, {})
    return _Sharder(graph.copy(), count, gate or Gate()).run()


@dataclass(eq=False)
class _Sharder:
    graph: Graph
    count: int
    gate: Gate
    owners: dict[int, int] = field(default_factory=dict)
    joins: dict[int, Operation] = field(default_factory=dict)
    cuts: set[int] = field(default_factory=set)
    """The Splits of rules that were applied, which cut what all devices have; those of the model are not among them."""
    applied: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        from graphopt.rules import slicing, tensor_parallel

        self.blocks = self._usable(tensor_parallel.build_block_rules(self.count))
        self.operators = self._usable(tensor_parallel.build_operator_rules(self.count))
        self.passing = slicing.build_split_of_concat_rule(self.count)

    def _usable(self, rules: Iterable[Rule]) -> RulesByRoot:
        """Return the rules that the opsets of the graph can express."""
        return rules_by_root(rule for rule in rules if missing_operator(rule, self.graph.opsets) is None)

    def run(self) -> ShardedGraph:
        for vertex in self.graph.topological_order():
            self._split(vertex, self.blocks, is_block=True)
        for vertex in self.graph.topological_order():
            self._split(vertex, self.operators)
        owners = {vertex: owner for vertex, owner in self.owners.items() if vertex in self.graph}
        joins = {vertex: kind for vertex, kind in self.joins.items() if vertex in self.graph}
        for vertex, owner in owners.items():
            readers = (reader for reader in self.graph.readers(vertex) if reader not in joins)
            assert all(owners.get(reader) == owner for reader in readers), "a part is read by another device"
        return ShardedGraph(self.graph, self.count, owners, joins, dict(self.applied))

    def _split(self, vertex: int, rules: RulesByRoot, *, is_block: bool = False) -> None:
        """Compute a vertex in parts by the first rule that applies: one that takes over the parts of an operand, if
        there is any, else one that cuts weights."""
        if vertex not in self.graph or self.graph[vertex].is_internal or not self._is_whole(vertex):
            return
        node = self.graph[vertex]
        is_joined = any(value.vertex in self.joins for value in node.operands)
        for takes_over in (True, False) if is_joined else (False,):
            for rule in rules.get(node.op, ()):
                for match in find_matches(rule, self.graph, vertex):
                    if not all(map(self._is_whole, match.vertices)):
                        continue
                    if not (takes_over or is_block or self._is_heavy(match)):
                        continue
                    if self._is_allowed(match) and self._apply(match, takes_over=takes_over, is_block=is_block):
                        return

    def _is_whole(self, vertex: int) -> bool:
        return vertex not in self.owners and vertex not in self.joins

    def _is_heavy(self, match: Match) -> bool:
        return any(operator_of_node(self.graph[vertex]).cost.work in HEAVY_WORK for vertex in match.vertices)

    def _is_allowed(self, match: Match) -> bool:
        return self.gate.allows(Site.from_match(self.graph, match))

    def _apply(self, match: Match, *, takes_over: bool, is_block: bool) -> bool:
        """Apply a rule, and pass on the parts that its operands are in; undo it where operands stay that would have to
        be joined to be cut, or where it does not do what was asked."""
        try:
            patch = build_patch(self.graph, match)
        except RewriteRefused:
            return False
        new = patch.after.keys() - patch.before.keys()
        self.graph.apply(patch)
        steps = [Step(match.rule.name, self.graph, patch, is_rule=True)]
        join, splits = self._find_join(new), [vertex for vertex in new if self.graph[vertex].op == "Split"]
        steps += self._pass_parts_on(splits)
        left = [vertex for vertex in splits if vertex in self.graph]
        is_cut_again = any(source in self.joins for vertex in left for source in self.graph.sources(vertex))
        is_repeated = any(vertex in self.graph for vertex in match.vertices)
        is_wanted = is_block or (len(left) < len(splits) if takes_over else not left)
        if join is None or is_cut_again or is_repeated or not is_wanted:
            undo_steps(steps)
            return False
        self.joins[join] = JOINS[self.graph[join].op]
        for device, value in enumerate(self.graph[join].operands):
            self._give(value.vertex, device, new)
        self.cuts.update(left)
        self.applied[match.rule.name] += 1
        self._pass_parts_on([reader for reader in self.graph.readers(join) if reader in self.cuts])
        return True

    def _find_join(self, new: Set[int]) -> int | None:
        """Return the new vertex that joins the parts of all devices."""
        ends = [vertex for vertex in new if new.isdisjoint(self.graph.readers(vertex))]
        found = [vertex for vertex in ends if self.graph[vertex].op in JOINS]
        return found[0] if len(found) == 1 and len(self.graph[found[0]].inputs) == self.count else None

    def _give(self, vertex: int, device: int, new: Set[int]) -> None:
        """Let a device compute a new vertex, and the new ones that only lead to it."""
        node = self.graph[vertex]
        if vertex in new and self._is_whole(vertex) and not node.is_internal and node.op != "Split":
            self.owners[vertex] = device
            for value in node.operands:
                self._give(value.vertex, device, new)

    def _pass_parts_on(self, splits: Iterable[int]) -> list[Step]:
        """Let the parts of a value be read where it is joined and split again in the same way."""
        steps = []
        for vertex in splits:
            match = next(filter(self._is_allowed, find_matches(self.passing, self.graph, vertex)), None)
            if match is not None:
                patch = build_patch(self.graph, match)
                self.graph.apply(patch)
                steps.append(Step(self.passing.name, self.graph, patch, is_rule=True))
        return steps
