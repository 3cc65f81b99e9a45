"""Values that are computed again where they are read late, so that they do not lie in memory in between.

A value that nodes read soon after it was made, and others much later, as the backward part of a training step reads
what the forward part made, need not be kept if it can be computed again from what is kept. Which values those are is
decided by an integer program (`recomputation_program`); here its data are read off a graph, and its answer is written
into it.

ONNX Runtime runs nodes depth first and merges equal ones, so a second copy of a node would be merged with the first, or
run as early. Hence it reads its operand through a Reshape whose target waits for the node that runs just before the
late reader: a view, of the same sizes, at the cost of a few nodes on one element.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from graphopt.autodiff.building import match_of_values
from graphopt.base.dtype import DType
from graphopt.ir.edit import remove_unread
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.schemas import is_deterministic
from graphopt.language.terms import Term, op, tensor
from graphopt.operators.operator_classes import lookup_operator
from graphopt.rewrite.build import build_terms
from graphopt.search.buffer_plan import execution_order, read_places, sum_over_spans, value_bytes, view_owners
from graphopt.search.policy import RecomputationPolicy


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Time in which a value lies in memory: places in the order of execution."""

    value: Value
    nbytes: int
    made: int
    pause: int
    """The last place at which it is read before the longest time in which it is not."""
    resume: int | None
    """The place at which it is read again; None where it is not."""
    last: int
    """The last place at which it is read."""
    is_recomputable: bool
    """True if one node makes it alone, from operands, and always the same."""
    operands: tuple[Value, ...]
    """The values that the node reads, as they are or as views, of those that have lifetimes."""


@dataclass(frozen=True)
class Timeline:
    """The values of a graph over the order in which its nodes run, those that are large apart from the others."""

    graph: Graph
    """The graph with numbers for sizes."""
    policy: RecomputationPolicy = field(default_factory=RecomputationPolicy)

    @cached_property
    def order(self) -> Sequence[int]:
        return execution_order(self.graph)

    @cached_property
    def places(self) -> Mapping[int, int]:
        return {vertex: place for place, vertex in enumerate(self.order)}

    @cached_property
    def owners(self) -> Mapping[Value, Value]:
        """The values that views look at."""
        return view_owners(self.graph, self.order)

    @cached_property
    def reads(self) -> Mapping[Value, Sequence[int]]:
        """The places at which each value is read, as `read_places` has them."""
        return read_places(self.graph, self.order, self.owners)

    @cached_property
    def spans(self) -> Mapping[Value, tuple[int, int, int]]:
        """The bytes of each value that nodes make, and the first and last place at which it lies in memory."""
        return {
            value: (value_bytes(self.graph, value), place, self.reads.get(value, [place])[-1])
            for place, vertex in enumerate(self.order)
            for value in self.graph.values_of(vertex)
            if value not in self.owners
        }

    def live_bytes(self, without: Collection[Value] = ()) -> list[int]:
        """Return the bytes of values in memory at each place, some of them left out."""
        spans = (span for value, span in self.spans.items() if value not in without)
        return sum_over_spans(spans, len(self.order))

    @cached_property
    def lifetimes(self) -> Mapping[Value, Lifetime]:
        """The lifetimes of values that are large enough to matter, in the order in which they are made."""
        least = self.policy.least_share * max(self.live_bytes(), default=0)
        large = {value for value, (nbytes, _, _) in self.spans.items() if nbytes > least}
        return {value: self._lifetime(value, large) for value in self.spans if value in large}

    def _lifetime(self, value: Value, large: Collection[Value]) -> Lifetime:
        nbytes, made, last = self.spans[value]
        pauses = list(pairwise([made, *self.reads.get(value, ())]))
        pause, resume = max(pauses, key=lambda pair: pair[1] - pair[0], default=(made, made))
        is_kept = last == len(self.order)
        node = self.graph[value.vertex]
        operands = (self.owners.get(each, each) for each in node.operands)
        is_idle = resume - pause >= self.policy.least_pause
        return Lifetime(
            value,
            nbytes,
            made,
            pause if is_idle else last,
            resume if is_idle else None,
            last,
            not is_kept and _is_recomputable(node),
            tuple(dict.fromkeys(each for each in operands if each in large)),
        )

    def anchor(self, place: int) -> Value | None:
        """Return a value that is made shortly before a place, and not much earlier in any order: the one of the nodes
        before it that depends on the longest chain of others."""
        nodes = reversed(self.order[max(0, place - self.policy.anchor_window) : place])
        fit = [vertex for vertex in nodes if self._may_be_waited_for(Value(vertex))]
        return Value(max(fit, key=self._depths.__getitem__)) if fit else None

    def _may_be_waited_for(self, value: Value) -> bool:
        type_ = self.graph.tensor_type(value)
        return type_ is not None and type_.dtype in (DType.FLOAT, DType.DOUBLE) and type_.is_static and type_.size != 0

    @cached_property
    def _depths(self) -> Mapping[int, int]:
        return chain_lengths(self.graph, self.order)


def _is_recomputable(node: Node) -> bool:
    return len(node.names) == 1 and not node.captures and any(node.operands) and is_deterministic(node)


# -- order -------------------------------------------------------------------------------------------------------------


def visit_shallow_outputs_first(graph: Graph) -> None:
    """Put the nodes that nothing reads at the end of the file, in place, the one that depends on the longest chain of
    others first.

    ONNX Runtime begins with the last of them and goes back, depth first. So the loss is computed before any gradient,
    and a weight is updated as soon as its gradient is known, instead of after all gradients.
    """
    depths = chain_lengths(graph, graph.topological_order())
    last = [vertex for vertex, _ in graph.nodes() if not graph.fan_out(vertex)]
    for vertex in sorted(last, key=lambda vertex: (-depths[vertex], vertex)):
        node, moved = graph[vertex], graph.new_vertex()
        outputs = tuple(Value(moved, each.output) if each.vertex == vertex else each for each in graph.outputs)
        graph.apply(Patch({vertex: node}, {moved: node}, (graph.outputs, outputs)))


def chain_lengths(graph: Graph, order: Sequence[int]) -> Mapping[int, int]:
    """Return for each vertex the length of the longest chain of nodes that it depends on, itself included."""
    found: dict[int, int] = {}
    for vertex in order:
        found[vertex] = 1 + max((found.get(source, 0) for source in graph.sources(vertex)), default=0)
    return found


# -- the answer --------------------------------------------------------------------------------------------------------


@dataclass
class Recomputer:
    """Writes copies of nodes into a graph, for those that read a value after its pause."""

    graph: Graph
    timeline: Timeline
    """Lifetimes in the graph as it was, with numbers for sizes; the vertices are the same."""
    chosen: Collection[Value]
    """The values to compute again."""

    def __post_init__(self) -> None:
        self._copies: dict[Value, Value] = {}
        self._waiting: dict[tuple[int, Value], Value] = {}
        self._zeros: dict[int, Value | None] = {}

    def run(self) -> None:
        """Compute the chosen values again, in place."""
        for lifetime in self._lifetimes:
            place = self._starts.get(lifetime.value)
            if place is not None:
                self._copies[lifetime.value] = self._copy(lifetime, place)
        for vertex in self.timeline.order:
            if not lookup_operator(self.graph[vertex].op, self.graph[vertex].domain).is_view:
                self._redirect(vertex)
        unread = remove_unread(self.graph)
        if unread is not None:
            self.graph.apply(unread)
        visit_shallow_outputs_first(self.graph)

    @property
    def _lifetimes(self) -> Iterator[Lifetime]:
        return (each for value, each in self.timeline.lifetimes.items() if value in self.chosen)

    @cached_property
    def _starts(self) -> Mapping[Value, int]:
        """The place before which each copy runs: that of the first that reads it, a node or another copy."""
        starts: dict[Value, int] = {}
        for lifetime in reversed(list(self._lifetimes)):
            if lifetime.resume is not None:
                starts[lifetime.value] = min(lifetime.resume, starts.get(lifetime.value, lifetime.resume))
            place = starts.get(lifetime.value)
            if place is None:
                continue
            for operand in lifetime.operands:
                if self._reads_copy(operand, place):
                    starts[operand] = min(place, starts.get(operand, place))
        return starts

    def _reads_copy(self, owner: Value, place: int) -> bool:
        """Return whether what runs at a place reads the copy of a value."""
        return owner in self.chosen and place > self.timeline.lifetimes[owner].pause

    def _copy(self, lifetime: Lifetime, place: int) -> Value:
        node = self.graph[lifetime.value.vertex]
        owners = [self.timeline.owners.get(value, value) for value in node.operands]
        mapping = {value: self._value_at(value, place) for value in node.operands}
        if not any(self._reads_copy(each, place) and self._starts[each] == place for each in owners):
            awaited = next(value for value in node.operands if not self.graph[value.vertex].is_constant)
            mapping[awaited] = self._wait(mapping[awaited], place)
        return self._add_copy(node.with_inputs_replaced(mapping))

    def _add_copy(self, node: Node) -> Value:
        names = tuple(self.graph.new_name(f"{name}/again") for name in node.names)
        name = self.graph.new_name(f"{node.name}/again") if node.name else ""
        return Value(self.graph.add(replace(node, names=names, name=name)))

    def _value_at(self, value: Value, place: int) -> Value:
        """Return what a node at a place reads of a value: its copy, or the same view of the copy."""
        owner = self.timeline.owners.get(value, value)
        if not self._reads_copy(owner, place):
            return value
        if value not in self._copies:
            node = self.graph[value.vertex]
            assert node.inputs[0] is not None, "a view is of something"
            self._copies[value] = self._add_copy(
                node.with_inputs_replaced({node.inputs[0]: self._value_at(node.inputs[0], place)})
            )
        return self._copies[value]

    def _redirect(self, vertex: int) -> None:
        node, place = self.graph[vertex], self.timeline.places[vertex]
        mapping = {value: self._value_at(value, place) for value in node.operands}
        if any(old != new for old, new in mapping.items()):
            self.graph.apply(Patch({vertex: node}, {vertex: node.with_inputs_replaced(mapping)}))

    def _wait(self, value: Value, place: int) -> Value:
        """Return a view of a value that is there only when what runs just before a place has run."""
        if place not in self._zeros:
            anchor = self.timeline.anchor(place)
            self._zeros[place] = None if anchor is None else self._zero_after(anchor)
        zero = self._zeros[place]
        if zero is None:
            return value
        if (place, value) not in self._waiting:
            target = op.Shape(tensor("x")) + tensor("zero")
            self._waiting[place, value] = self._build(op.Reshape(tensor("x"), target), value, x=value, zero=zero)
        return self._waiting[place, value]

    def _zero_after(self, anchor: Value) -> Value:
        """Return the integer 0, computed of one element of a value, whatever that is."""
        first = op.Slice(op.Reshape(tensor("x"), (-1,)), (0,), (1,), (0,))
        return self._build(op.Cast(op.Less(first, first), to=DType.INT64), anchor, x=anchor)

    def _build(self, term: Term, near: Value, **bound: Value) -> Value:
        (value,), nodes = build_terms(self.graph, match_of_values(near, **bound), (term,))
        self.graph.apply(Patch({}, nodes))
        return value
