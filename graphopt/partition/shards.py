"""Each device's share of a model that is computed by several at once: models, and what they exchange between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graphopt.base.errors import UsageError
from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.graph import INPUT, INTERNAL_DOMAIN, Graph, Node, Value
from graphopt.partition.collectives import Join
from graphopt.partition.sharding import ShardedGraph, shard_graph
from graphopt.partition.simplification import simplify_before_split
from graphopt.partition.stages import add_input
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.regions import is_extractable


@dataclass(frozen=True)
class Segment:
    """Models that the devices run between two steps of communication."""

    models: tuple[LoadedModel, ...]
    """The model of each device; it reads inputs of the whole and what earlier segments and joins have left."""
    joins: tuple[Join, ...]
    """The operations that follow."""


@dataclass(frozen=True)
class Shards:
    """A model as devices compute it together: segment after segment, the joins of each before the next."""

    count: int
    segments: tuple[Segment, ...]
    outputs: Mapping[str, str]
    """The value that is an output of the whole, by the output's name."""
    rules: Mapping[str, int]
    """Number of applications of each rule."""

    @property
    def weight_bytes(self) -> list[int]:
        """The bytes of weights in the models of each device."""
        models = zip(*(segment.models for segment in self.segments), strict=True)
        return [sum(model.graph.weight_bytes for model in own) for own in models]


def shard_model(model: LoadedModel, count: int) -> Shards:
    """Split a model among devices.

    Args:
        model: with types, as `infer_graph` leaves its graph.
        count: number of devices, 2 or more.

    Raises:
        UsageError: no rule splits any of its operators, or it has a node that draws random numbers or reads values from
            within a body, or an output that does not depend on the inputs.
    """
    gate = Gate()
    sharded = shard_graph(simplify_before_split(model.graph, gate), count, gate)
    if not sharded.is_split:
        raise UsageError(f"no operator of the model is split by a proved rule among {count} devices")
    for _, node in sharded.graph.nodes():
        if not is_extractable(node):
            raise UsageError(f"node '{node.label}' ({node.op}) cannot be computed by several devices at once")
    for name, value in zip(sharded.graph.output_names, sharded.graph.outputs, strict=True):
        if sharded.graph[value.vertex].is_constant:
            raise UsageError(f"output '{name}' does not depend on the inputs, so no device computes it")
    return _ShardCutter(model, sharded).cut()


@dataclass(frozen=True)
class _ShardCutter:
    model: LoadedModel
    sharded: ShardedGraph

    def cut(self) -> Shards:
        graph, levels = self.sharded.graph, self.sharded.levels
        last = max(levels.values(), default=0)
        segments = tuple(
            Segment(
                tuple(self._model(device, level) for device in range(self.sharded.count)),
                tuple(self._join(vertex) for vertex in self.sharded.joins if levels[vertex] == level),
            )
            for level in range(last + 1)
        )
        names = map(graph.value_name, graph.outputs)
        return Shards(
            self.sharded.count, segments, dict(zip(graph.output_names, names, strict=True)), self.sharded.rules
        )

    def _join(self, vertex: int) -> Join:
        graph, node = self.sharded.graph, self.sharded.graph[vertex]
        axis = node.attrs.get("axis", 0)
        assert isinstance(axis, int)
        parts = tuple(map(graph.value_name, node.operands))
        return Join(self.sharded.joins[vertex], parts, graph.value_name(Value(vertex)), axis)

    def _model(self, device: int, level: int) -> LoadedModel:
        """Return what a device computes after so many joins."""
        graph, sharded = self.sharded.graph, self.sharded
        own = [v for v in sharded.vertices_of(device) if sharded.levels[v] == level and v not in sharded.joins]
        segment = Graph(f"{graph.name}_{level}_{device}", graph.opsets)
        known: dict[Value, Value] = {}
        for vertex in own:
            for value in graph[vertex].operands:
                if value not in known:
                    known[value] = self._add_border(segment, value)
            place = segment.add(graph[vertex].with_inputs_replaced(known))
            known |= zip(graph.values_of(vertex), segment.values_of(place), strict=True)
        read = list(dict.fromkeys(value for vertex in own for value in self._read_later(vertex, device)))
        segment.outputs = tuple(known[value] for value in read)
        segment.output_names = tuple(map(graph.value_name, read))
        segment.output_types = tuple(map(graph.value_type, read))
        return replace(self.model, graph=segment)

    def _add_border(self, segment: Graph, value: Value) -> Value:
        """Return what stands for a value from outside: the constant that it is, or an input, with its default if the
        model has one."""
        graph, node = self.sharded.graph, self.sharded.graph[value.vertex]
        if node.is_constant:
            return Value(segment.add(node))
        if value.vertex not in graph.inputs:
            node = Node(INPUT, (), (graph.value_name(value),), (graph.value_type(value),), domain=INTERNAL_DOMAIN)
        return add_input(segment, node)

    def _read_later(self, vertex: int, device: int) -> Iterator[Value]:
        """Yield the values of a vertex that the device needs after its segment: for a join, or later segments, or as
        outputs of the whole."""
        graph, sharded = self.sharded.graph, self.sharded
        for value in graph.values_of(vertex):
            later = (
                reader in sharded.joins or sharded.levels[reader] > sharded.levels[vertex]
                for reader in graph.readers(vertex)
                if value in graph[reader].operands and sharded.owners.get(reader, device) == device
            )
            if graph.is_output(value) or any(later):
                yield value
