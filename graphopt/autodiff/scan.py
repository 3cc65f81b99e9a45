"""Scans: built from terms, and differentiated by Scans that run the other way."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from graphopt.autodiff.building import add_values, zeros_like
from graphopt.base.errors import ModelError
from graphopt.ir import schemas
from graphopt.ir.edit import replace_node
from graphopt.ir.graph import CAPTURE, INPUT, INTERNAL_DOMAIN, Attribute, Graph, Node, Patch, Value
from graphopt.ir.types import Type
from graphopt.language.terms import Term, op, tensor
from graphopt.operators.inference import infer_node

SCAN = "Scan"
_INPUT_DIRECTIONS, _OUTPUT_DIRECTIONS = "scan_input_directions", "scan_output_directions"
_X: Term = tensor("x")

BodyGradients: TypeAlias = Callable[[Graph, Mapping[Value, Value], Sequence[Value]], Mapping[Value, Value]]
"""Function that adds the gradients of values to a body, given those of what the values lead to."""


@dataclass
class ScanBuilder:
    """A Scan under construction in a graph: pairs of what goes in and the value that stands for it in the body."""

    graph: Graph
    near: Value
    body: Graph
    captures: tuple[Value, ...] = ()
    states: list[Value] = field(default_factory=list)
    scanned: list[Value] = field(default_factory=list)
    directions: list[int] = field(default_factory=list)
    """1 for each scanned input that is read from its end."""
    state_inputs: list[int] = field(default_factory=list)
    """Vertices of the body's inputs for states; those for slices follow them."""
    slice_inputs: list[int] = field(default_factory=list)

    def add_state(self, first: Value) -> Value:
        """Return the state in the body that has a value of the graph before the first step."""
        made = self._add_input(first, self.graph.value_type(first))
        self.states.append(first)
        self.state_inputs.append(made.vertex)
        return made

    def add_scanned(self, value: Value, type_: Type | None, *, is_reversed: bool, own: int | None = None) -> Value:
        """Return the slice in the body, of a type, of a value that is read step by step; `own` is the vertex of an
        input that the body has already."""
        made = self._add_input(value, type_) if own is None else Value(own)
        self.scanned.append(value)
        self.directions.append(int(is_reversed))
        self.slice_inputs.append(made.vertex)
        return made

    def _add_input(self, value: Value, type_: Type | None) -> Value:
        name = self.body.new_name(f"{self.graph.value_name(value)}/step")
        return Value(self.body.add(Node(INPUT, (), (name,), (type_,), domain=INTERNAL_DOMAIN)))

    def add_capture(self, value: Value) -> Value:
        """Return the value in the body that stands for one of the graph, the same in all steps."""
        names = (self.body.new_name(f"{self.graph.value_name(value)}/captured"),)
        node = Node(CAPTURE, (), names, (self.graph.value_type(value),), {"index": len(self.captures)}, INTERNAL_DOMAIN)
        self.captures += (value,)
        return Value(self.body.add(node))

    def finish(self, states: Sequence[Value], outputs: Sequence[Value], directions: Sequence[int]) -> Sequence[Value]:
        """Add the Scan, given the next states and the outputs of a step, and return its results."""
        graph, body = self.graph, self.body
        body.inputs = [*self.state_inputs, *self.slice_inputs]
        _set_results(body, [*states, *outputs])
        attrs: dict[str, Attribute] = {
            "body": body,
            "num_scan_inputs": len(self.scanned),
            _INPUT_DIRECTIONS: tuple(self.directions),
        }
        if outputs:
            attrs[_OUTPUT_DIRECTIONS] = tuple(directions)
        count = len(body.outputs)
        names = tuple(graph.new_name(f"{graph.value_name(self.near)}/{SCAN}") for _ in range(count))
        version = schemas.newest_version(SCAN, "")
        inputs = (*self.states, *self.scanned)
        node = Node(SCAN, inputs, names, (None,) * count, attrs, version=version, captures=self.captures)
        vertex = graph.new_vertex()
        graph.apply(Patch({}, {vertex: infer_node(graph, node)}))
        return [Value(vertex, i) for i in range(count)]


def _set_results(body: Graph, results: Sequence[Value]) -> None:
    """Set the results of a body, each by a node of its own, as one value may be several of them."""
    body.outputs = tuple(add_values(body, value, [op.Identity(_X)], {"x": value})[0] for value in results)
    body.output_names = tuple(body.value_name(value) for value in body.outputs)
    body.output_types = tuple(body.value_type(value) for value in body.outputs)


def scan_gradients(
    graph: Graph, vertex: int, upstream: Mapping[int, Value], active: Container[Value], differentiate: BodyGradients
) -> Iterator[tuple[Value, Value]]:
    """Yield the values that a Scan reads and their gradients, as another Scan computes them from the last step back.

    The Scan comes to hand out the states before each step. A step back computes the step again, and what flows back
    through it; the gradients of what all steps read add up in states.

    Args:
        upstream: the gradients of its outputs, by position, as far as there are any.
        active: the values with respect to which gradients are wanted.
    """
    count = _count_states(graph[vertex])
    _hand_out_states(graph, vertex, count)
    node = graph[vertex]
    body, outputs = _body(node), len(node.names) - 2 * count
    inputs = [value for value in node.inputs if value is not None]
    assert len(inputs) == len(node.inputs), "a Scan reads all of its inputs"
    back = _renamed_copy(body)
    results, states, slices = back.outputs, back.inputs[:count], back.inputs[count:]
    back.outputs, back.output_names, back.output_types = (), (), ()
    builder = ScanBuilder(graph, Value(vertex), back, node.captures)

    def gradient_of(output: int) -> Value:
        return upstream[output] if output in upstream else zeros_like(graph, Value(vertex, output))

    floats = [i for i in range(count) if _is_float(back, Value(states[i]))]
    seeds = [(results[i], builder.add_state(gradient_of(i))) for i in floats]
    captured = _differentiable_captures(back, node.captures, active)
    sums = {index: builder.add_state(zeros_like(graph, node.captures[index])) for index in captured}
    for i, own in enumerate(states):
        builder.add_scanned(Value(vertex, count + outputs + i), None, is_reversed=True, own=own)
    directions = _directions(node, _INPUT_DIRECTIONS, len(slices))
    for own, value, direction in zip(slices, inputs[count:], directions, strict=True):
        builder.add_scanned(value, None, is_reversed=not direction, own=own)
    for i, direction in enumerate(_directions(node, _OUTPUT_DIRECTIONS, outputs + count)[:outputs]):
        result = results[count + i]
        if _is_float(back, result):
            made = builder.add_scanned(gradient_of(count + i), back.value_type(result), is_reversed=not direction)
            seeds.append((result, made))
    wanted = [i for i, value in enumerate(inputs[count:]) if value in active and _is_float(back, Value(slices[i]))]
    values = [*(Value(states[i]) for i in floats), *captured.values(), *(Value(slices[i]) for i in wanted)]
    found = differentiate(back, _summed(back, seeds), values)

    def step(value: Value) -> Value:
        return found[value] if value in found else zeros_like(back, value)

    nexts = [step(Value(states[i])) for i in floats]
    for index, value in captured.items():
        terms = {"a": sums[index], "b": step(value)}
        nexts += add_values(back, value, [tensor("a") + tensor("b")], terms)
    gradients = [step(Value(slices[i])) for i in wanted]
    computed = builder.finish(nexts, gradients, [1 - directions[i] for i in wanted])
    read = (
        *(inputs[i] for i in floats),
        *(node.captures[i] for i in captured),
        *(inputs[count + i] for i in wanted),
    )
    yield from (pair for pair in zip(read, computed, strict=True) if pair[0] in active)


def _differentiable_captures(body: Graph, captures: Sequence[Value], active: Container[Value]) -> Mapping[int, Value]:
    """Return the values of a body that stand for captures of which gradients are wanted, by the index of these."""
    values = (Value(vertex) for vertex in sorted(body.vertices_with_op(CAPTURE)) if body[vertex].is_internal)
    by_index = {body[value.vertex].capture_index: value for value in values if _is_float(body, value)}
    return {index: value for index, value in by_index.items() if captures[index] in active}


def _summed(body: Graph, seeds: Sequence[tuple[Value, Value]]) -> Mapping[Value, Value]:
    """Return the gradient of each result, which may be a state and an output, too."""
    found: dict[Value, Value] = {}
    for result, seed in seeds:
        if result in found:
            (seed,) = add_values(body, seed, [tensor("a") + tensor("b")], {"a": found[result], "b": seed})
        found[result] = seed
    return found


def _is_float(graph: Graph, value: Value) -> bool:
    return graph.tensor_type(value) is not None and graph.dtype(value).is_float


def _body(node: Node) -> Graph:
    body = node.attrs["body"]
    assert isinstance(body, Graph), "a Scan has a body"
    return body


def _count_states(node: Node) -> int:
    """Return how many states a Scan has, whose steps are along first axes.

    Raises:
        ModelError: they are along others.
    """
    for name in ("scan_input_axes", "scan_output_axes"):
        axes = node.attrs.get(name)
        if isinstance(axes, tuple) and any(axes):
            raise ModelError(f"Scan '{node.label}' has no gradient: its steps are not along first axes ({name})")
    scanned = node.attrs["num_scan_inputs"]
    assert isinstance(scanned, int), "a Scan says how many inputs it reads step by step"
    return len(node.inputs) - scanned


def _directions(node: Node, name: str, count: int) -> tuple[int, ...]:
    said = node.attrs.get(name)
    return tuple(int(each == 1) for each in said) if isinstance(said, tuple) else (0,) * count


def _hand_out_states(graph: Graph, vertex: int, count: int) -> None:
    """Make a Scan hand out the states before each step, in the order of the steps."""
    node = graph[vertex]
    body, outputs = _body(node), len(node.names) - count
    directions = (*_directions(node, _OUTPUT_DIRECTIONS, outputs), *(0,) * count)
    copies = [add_values(body, Value(own), [op.Identity(_X)], {"x": Value(own)})[0] for own in body.inputs[:count]]
    body.outputs += tuple(copies)
    body.output_names += tuple(map(body.value_name, copies))
    body.output_types += tuple(map(body.value_type, copies))
    names = [graph.new_name(f"{node.names[0] or SCAN}/before") for _ in range(count)]
    attrs = {name: value for name, value in node.attrs.items() if name != "scan_output_axes"}
    longer = replace(
        node,
        names=(*(name or graph.new_name(f"{SCAN}/unread") for name in node.names), *names),
        types=(*node.types, *(None,) * count),
        attrs={**attrs, _OUTPUT_DIRECTIONS: directions},
        contents=(),
    )
    graph.apply(replace_node(graph, vertex, infer_node(graph, longer)))


def _renamed_copy(body: Graph) -> Graph:
    """Return a copy of a body whose values have names of their own."""
    copy = body.copy()
    before = dict(copy.vertices_and_nodes())
    after = {
        vertex: replace(
            node,
            names=tuple(name and copy.new_name(name) for name in node.names),
            name=node.name and copy.new_name(node.name),
        )
        for vertex, node in before.items()
    }
    copy.apply(Patch(before, after))
    return copy
