"""Demands of one run of a model on a device: seconds, bytes and messages, node by node in an order that can be cut.

For training, the nodes of a graph that `graphopt grad` made are told apart: the forward pass has the order, each node
of the backward pass stands at the place of the forward nodes that it belongs to, and so does each update of a
parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from graphopt.autodiff.training_graph import GRADIENT_SUFFIX, NEXT
from graphopt.ir.edit import with_ancestors
from graphopt.ir.graph import Graph, Patch, Value
from graphopt.partition.collectives import Operation
from graphopt.partition.cut import CuttableGraph
from graphopt.partition.sharding import ShardedGraph
from graphopt.search.buffer_plan import plan_buffers, sum_over_spans, value_bytes


@dataclass(frozen=True)
class Collective:
    """A collective operation on the way of a run."""

    operation: Operation
    nbytes: int
    """Bytes of the whole value."""


@dataclass(frozen=True)
class TrainingNames:
    """The names by which a graph that `graphopt grad` made is known."""

    parameters: tuple[str, ...]
    states: tuple[str, ...]
    """Inputs of the optimizer's state: updated, and no parameters."""


def training_names(graph: Graph) -> TrainingNames | None:
    """Return the parameters of a training graph; None for another graph."""
    inputs = {graph[vertex].names[0] for vertex in graph.inputs}
    outputs = set(graph.output_names)
    parameters = tuple(sorted(name for name in inputs if name + GRADIENT_SUFFIX in outputs and name + NEXT in outputs))
    states = tuple(sorted(name for name in inputs if name + NEXT in outputs and name not in parameters))
    return TrainingNames(parameters, states) if parameters else None


NodeSeconds = Callable[[Graph], Mapping[int, float]]
"""Seconds of each node of a graph with static sizes, on a device of speed 1."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Work of one run for each device of a group that computes a model together; places are those of forward nodes."""

    shards: int
    """Number of devices in the group."""
    forward: tuple[float, ...]
    """Seconds at each place, without collective operations."""
    backward: tuple[float, ...]
    update: tuple[float, ...]
    collectives: Mapping[int, Collective]
    """The operations that end at a place."""
    bytes_across: tuple[int, ...]
    """Bytes of the values that cross each cut, from 0 to the number of places; so large are the gradients on their way
    back, too."""
    possible_cuts: tuple[int, ...]
    weights: tuple[tuple[tuple[object, int], ...], ...]
    """The weights that are read at each place: what identifies them, and their bytes. Parameters count here, too."""
    trained: Mapping[object, tuple[int, int]]
    """Bytes of the gradient, and of the optimizer's state, by the weight that is trained."""
    live: tuple[int, ...]
    """Bytes of the values in memory at each place in inference, or of those that are at hand there in training."""
    saved: tuple[int, ...]
    """Bytes made at each place that the backward pass reads."""
    _totals: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def is_training(self) -> bool:
        return bool(self.trained)

    @cached_property
    def seconds(self) -> list[float]:
        """Seconds of all passes at each place."""
        return [sum(each) for each in zip(self.forward, self.backward, strict=True)]

    def model_state(self, start: int, end: int) -> tuple[int, int, int]:
        """Return the bytes of weights, gradients and optimizer state that some places need, each weight once."""
        if start not in self._totals:
            self._totals[start] = list(self._running_state(start))
        return self._totals[start][end - start]

    def _running_state(self, start: int) -> Iterable[tuple[int, int, int]]:
        seen, total = set[object](), (0, 0, 0)
        yield total
        for read in self.weights[start:]:
            for weight, nbytes in read:
                if weight not in seen:
                    seen.add(weight)
                    gradient, state = self.trained.get(weight, (0, 0))
                    total = (total[0] + nbytes, total[1] + gradient, total[2] + state)
            yield total

    def activations(self, start: int, end: int, in_flight: int) -> int:
        """Return the bytes of values that some places need, with so many runs between forward and backward pass."""
        return max(self.live[start:end], default=0) + in_flight * sum(self.saved[start:end])

    def collectives_between(self, start: int, end: int) -> list[Collective]:
        return [self.collectives[place] for place in range(start, end) if place in self.collectives]


def measure_workload(sharded: ShardedGraph, node_seconds: NodeSeconds) -> Workload:
    """Return what a graph with static sizes asks of the first of the devices that compute it: none has larger parts."""
    graph = _device_graph(sharded, 0)
    whole = CuttableGraph(graph, graph)
    seconds = {**node_seconds(graph), **dict.fromkeys(sharded.joins, 0.0)}
    names = training_names(graph)
    if names is not None:
        return _TrainingWorkload(whole, seconds, names).build()
    order = whole.order
    buffers = ((each.nbytes, each.first, each.last) for each in plan_buffers(graph, order))
    return Workload(
        shards=sharded.count,
        forward=tuple(seconds.get(vertex, 0.0) for vertex in order),
        backward=(0.0,) * len(order),
        update=(0.0,) * len(order),
        collectives={
            place: Collective(sharded.joins[vertex], value_bytes(graph, Value(vertex)))
            for vertex, place in whole.place.items()
            if vertex in sharded.joins
        },
        bytes_across=tuple(whole.bytes_across),
        possible_cuts=tuple(whole.possible_cuts),
        weights=tuple(tuple(_constants(whole, vertex)) for vertex in order),
        trained={},
        live=tuple(sum_over_spans(buffers, len(order))),
        saved=(0,) * len(order),
    )


def _device_graph(sharded: ShardedGraph, device: int) -> Graph:
    """Return what one device computes: a join reads the device's own part alone."""
    if not sharded.is_split:
        return sharded.graph
    twin = sharded.graph.copy()
    after = {vertex: replace(twin[vertex], inputs=(twin[vertex].inputs[device],)) for vertex in sharded.joins}
    others = {vertex for vertex, owner in sharded.owners.items() if owner != device}
    twin.apply(Patch({vertex: twin[vertex] for vertex in (*after, *others)}, after))
    return twin


def _constants(whole: CuttableGraph, vertex: int) -> Iterable[tuple[object, int]]:
    for source in (vertex, *sorted(whole.sources_of([vertex]))):
        data = whole.graph[source].data
        if data is not None:
            yield source, data.nbytes


@dataclass(frozen=True, eq=False)
class _TrainingWorkload:
    """The passes of a training graph."""

    whole: CuttableGraph
    seconds: Mapping[int, float]
    names: TrainingNames

    @property
    def graph(self) -> Graph:
        return self.whole.graph

    @cached_property
    def outputs(self) -> Mapping[str, Value]:
        return dict(zip(self.graph.output_names, self.graph.outputs, strict=True))

    @cached_property
    def forward(self) -> list[int]:
        """The nodes of the forward pass: what the outputs need that are neither gradients nor next values."""
        updated = {*self.names.parameters, *self.names.states}
        ends = [
            value.vertex
            for name, value in self.outputs.items()
            if name.removesuffix(NEXT) not in updated and name.removesuffix(GRADIENT_SUFFIX) not in updated
        ]
        needed = with_ancestors(self.graph, ends)
        return [vertex for vertex in self.whole.order if vertex in needed]

    @cached_property
    def place(self) -> dict[int, int]:
        return {vertex: place for place, vertex in enumerate(self.forward)}

    @cached_property
    def parameters(self) -> dict[int, int]:
        """The place of the first node that reads each parameter, by its vertex."""
        names = {self.graph[vertex].names[0]: vertex for vertex in self.graph.inputs}
        found = {}
        for vertex in map(names.__getitem__, self.names.parameters):
            readers = (self.place[reader] for reader in self.graph.readers(vertex) if reader in self.place)
            found[vertex] = min(readers, default=0)
        return found

    @cached_property
    def gradients(self) -> dict[int, int]:
        """The place of the parameter, by the vertex that computes its gradient."""
        names = {vertex: self.graph[vertex].names[0] for vertex in self.parameters}
        return {self.outputs[names[v] + GRADIENT_SUFFIX].vertex: place for v, place in self.parameters.items()}

    @cached_property
    def update(self) -> dict[int, int]:
        """The place of each node of the update: that of the parameter which it is for, of the loss if it is for all."""
        order = [vertex for vertex in self.whole.order if vertex not in self.place and vertex not in self.backward]
        places = self.parameters | self.gradients
        for vertex in order:
            if before := [places[source] for source in self.graph.sources(vertex) if source in places]:
                places[vertex] = max(before)
        return {vertex: places[vertex] for vertex in order if vertex in places}

    @cached_property
    def backward(self) -> dict[int, int]:
        """The place of each node of the backward pass.

        It is that of the last node in the backward pass before it, unless all it leads to are gradients of parameters
        that are read later in the forward pass.
        """
        ends = self.gradients
        needed = with_ancestors(self.graph, ends) - self.place.keys()
        order = [vertex for vertex in self.whole.order if vertex in needed]
        last = len(self.forward) - 1
        leads_to: dict[int, int] = {}
        for vertex in reversed(order):
            after = (leads_to[reader] for reader in self.graph.readers(vertex) if reader in leads_to)
            leads_to[vertex] = min([*after, ends.get(vertex, last)])
        places = self.place | self.parameters
        for vertex in order:
            before = (places[source] for source in self.graph.sources(vertex) if source in places)
            places[vertex] = max(min(before, default=last), leads_to[vertex])
        return {vertex: places[vertex] for vertex in order}

    def build(self) -> Workload:
        graph, count = self.graph, len(self.forward)
        forward, backward, update = ([0.0] * count for _ in range(3))
        for vertex in self.whole.order:
            seconds = self.seconds.get(vertex, 0.0)
            if vertex in self.place:
                forward[self.place[vertex]] += seconds
            elif vertex in self.backward:
                backward[self.backward[vertex]] += seconds
            else:
                update[self.update.get(vertex, count - 1)] += seconds
        inner = self._forward_pass()
        weights: list[list[tuple[object, int]]] = [[*_constants(inner, vertex)] for vertex in self.forward]
        for vertex in self.parameters:
            for reader in graph.readers(vertex):
                if reader in self.place:
                    weights[self.place[reader]].append((vertex, value_bytes(graph, Value(vertex))))
        return Workload(
            shards=1,
            forward=tuple(forward),
            backward=tuple(backward),
            update=tuple(update),
            collectives={},
            bytes_across=tuple(inner.bytes_across),
            possible_cuts=tuple(inner.possible_cuts),
            weights=tuple(map(tuple, weights)),
            trained=self._trained(),
            live=tuple(self._bytes_at_hand()),
            saved=tuple(self._saved_bytes(vertex) for vertex in self.forward),
        )

    def _forward_pass(self) -> CuttableGraph:
        twin = self.graph.copy()
        kept = with_ancestors(twin, self.forward)
        gone = {vertex: twin[vertex] for vertex, _ in twin.nodes() if vertex not in kept}
        ends = tuple(value for value in twin.outputs if value.vertex in kept)
        twin.apply(Patch(gone, {}, (twin.outputs, ends)))
        return CuttableGraph(twin, twin)

    def _trained(self) -> dict[object, tuple[int, int]]:
        """Return the bytes of gradient and optimizer state of each parameter; both are told by their names."""
        graph = self.graph
        nbytes = {graph[v].names[0]: value_bytes(graph, Value(v)) for v in graph.inputs}
        found: dict[object, tuple[int, int]] = {}
        for vertex in self.parameters:
            name = graph[vertex].names[0]
            states = (nbytes[state] for state in self.names.states if state.rpartition(".")[0] == name)
            found[vertex] = nbytes[name], sum(states)
        return found

    def _saved_bytes(self, vertex: int) -> int:
        graph = self.graph
        read = {
            value
            for reader in graph.readers(vertex)
            if reader in self.backward
            for value in graph[reader].operands
            if value.vertex == vertex
        }
        return sum(value_bytes(graph, value) for value in read)

    def _bytes_at_hand(self) -> list[int]:
        """Return the most bytes that one node of the forward or backward pass reads and writes, at each place."""
        found = [0] * len(self.forward)
        for vertex, place in (self.place | self.backward).items():
            read = (each for each in self.graph[vertex].operands if not self.graph[each.vertex].is_internal)
            values = {*self.graph.values_of(vertex), *read}
            found[place] = max(found[place], sum(value_bytes(self.graph, value) for value in values))
        return found
