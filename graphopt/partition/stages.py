"""Stages of a model: parts of its graph as graphs of their own, between two cuts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphopt.io.onnx_io import LoadedModel
from graphopt.ir.graph import INPUT, INTERNAL_DOMAIN, Graph, Node, Value
from graphopt.partition.cut import CuttableGraph


@dataclass(frozen=True, eq=False)
class ModelStage:
    """The nodes between two cuts as a graph; values keep the names that they have in the model."""

    start: int
    end: int
    graph: Graph
    """Its inputs are those of the model and what earlier stages make; its outputs, what others read and outputs of the
    model."""
    received: tuple[Value, ...]
    """The values of the whole graph that earlier stages make."""
    sent: tuple[Value, ...]
    """The values of the whole graph that later stages read."""
    weight_bytes: int

    def model(self, whole: LoadedModel) -> LoadedModel:
        """Return it as a model, with all that the file of the whole says beside its graph."""
        return replace(whole, graph=self.graph)


def extract_stage(whole: CuttableGraph, start: int, end: int) -> ModelStage:
    """Return the nodes from one cut to another as a stage.

    The first one also has the inputs that nothing reads, and outputs that no node makes or that weights alone decide.
    """
    source, own = whole.graph, whole.order[start:end]
    outputs = [
        (value, name, type_)
        for value, name, type_ in zip(source.outputs, source.output_names, source.output_types, strict=True)
        if start <= whole.place.get(value.vertex, 0) < end
    ]
    apart = [value.vertex for value, _, _ in outputs if value.vertex not in whole.place]
    inside = {*own, *apart} | whole.sources_of([*own, *apart])
    read = {value for vertex in inside for value in source[vertex].operands} | {value for value, _, _ in outputs}
    received = [value for value in whole.values_across(start) if value in read]
    sent = [value for value in whole.values_across(end) if start <= whole.place[value.vertex]]
    graph = Graph(
        source.name, source.opsets, doc=source.doc, metadata=source.metadata, names={*source.names},
        unknown_fields=source.unknown_fields, positive_sizes=source.positive_sizes,
    )  # fmt: skip
    known: dict[Value, Value] = {}
    for vertex in source.inputs:
        if Value(vertex) in read or (start == 0 and not source.has_uses(Value(vertex))):
            known[Value(vertex)] = add_input(graph, source[vertex])
    for value in received:
        name, type_ = source.value_name(value), source.value_type(value)
        known[value] = add_input(graph, Node(INPUT, (), (name,), (type_,), domain=INTERNAL_DOMAIN))
    for vertex in sorted(inside - {value.vertex for value in known}, key=whole.rank.__getitem__):
        assert all(value in known for value in source[vertex].operands), source[vertex].label
        place = graph.add(source[vertex].with_inputs_replaced(known))
        known |= zip(source.values_of(vertex), graph.values_of(place), strict=True)
    names = {name for _, name, _ in outputs}
    crossing = ((value, source.value_name(value), source.value_type(value)) for value in sent)
    returned = [*(each for each in crossing if each[1] not in names), *outputs]
    graph.outputs = tuple(known[value] for value, _, _ in returned)
    graph.output_names = tuple(name for _, name, _ in returned)
    graph.output_types = tuple(type_ for _, _, type_ in returned)
    return ModelStage(start, end, graph, tuple(received), tuple(sent), whole.weight_bytes([*own, *apart]))


def add_input(graph: Graph, node: Node) -> Value:
    """Add an input to a graph that is being built."""
    vertex = graph.add(node)
    graph.inputs.append(vertex)
    return Value(vertex)


def extract_stages(whole: CuttableGraph, cuts: Sequence[int]) -> list[ModelStage]:
    """Return the stages between the cuts, which are given without the ends of the graph."""
    ends = [0, *cuts, len(whole)]
    return [extract_stage(whole, start, end) for start, end in itertools.pairwise(ends)]
