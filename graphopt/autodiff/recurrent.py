"""LSTM, GRU and RNN, replaced by Scans over their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphopt.autodiff.building import add_values
from graphopt.autodiff.scan import ScanBuilder
from graphopt.base.dtype import DType
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import Graph, Node, Value
from graphopt.ir.types import TensorType
from graphopt.language.terms import App, OperatorBuilder, Term, op, tensor

_p, _h, _c, _r, _b, _peep = (tensor(name) for name in ("p", "h", "c", "r", "b", "peep"))
"""The inputs of a step times their weights, the hidden and the cell state, the recurrent weights and bias, and the
peepholes: the weights by which the cell state counts in the gates."""


@dataclass(frozen=True)
class _Cell:
    """One step of a recurrent operator."""

    gates: int
    activations: tuple[str, ...]
    step: Callable[[Node, int], tuple[Term, ...]]
    """The next states, of a node and its hidden size."""
    states: tuple[str, ...] = (_h.name,)


def _parts(value: Term, count: int, size: int) -> tuple[App, ...]:
    return op.Split.split(count, value, (size,) * count, axis=-1)


def _lstm(node: Node, size: int) -> tuple[Term, ...]:
    i, o, f, c = _parts(_p + (_h @ _r + _b), 4, size)
    if not _has(node, _PEEPHOLES):
        cell = op.Sigmoid(f) * _c + op.Sigmoid(i) * op.Tanh(c)
        return op.Sigmoid(o) * op.Tanh(cell), cell
    to_i, to_o, to_f = _parts(_peep, 3, size)
    cell = op.Sigmoid(f + to_f * _c) * _c + op.Sigmoid(i + to_i * _c) * op.Tanh(c)
    return op.Sigmoid(o + to_o * cell) * op.Tanh(cell), cell


def _gru(node: Node, size: int) -> tuple[Term, ...]:
    z, r, n = _parts(_p, 3, size)
    if node.attrs.get("linear_before_reset"):
        hidden_z, hidden_r, hidden_n = _parts(_h @ _r + _b, 3, size)
        update, reset = op.Sigmoid(z + hidden_z), op.Sigmoid(r + hidden_r)
        new = op.Tanh(n + reset * hidden_n)
    else:
        weights, (b_z, b_r, b_n) = _parts(_r, 3, size), _parts(_b, 3, size)
        update, reset = op.Sigmoid(z + (_h @ weights[0] + b_z)), op.Sigmoid(r + (_h @ weights[1] + b_r))
        new = op.Tanh(n + ((reset * _h) @ weights[2] + b_n))
    return ((1 - update) * new + update * _h,)


def _rnn(node: Node, _: int) -> tuple[Term, ...]:
    activations = node.attrs.get("activations", (b"Tanh",))
    assert isinstance(activations, tuple), "activations are a list"
    return (OperatorBuilder(_text(activations[0]))(_p + (_h @ _r + _b)),)


def _has(node: Node, position: int) -> bool:
    return position < len(node.inputs) and node.inputs[position] is not None


def _text(said: object) -> str:
    return said.decode() if isinstance(said, bytes) else str(said)


_CELLS: Mapping[str, _Cell] = {
    "LSTM": _Cell(4, ("Sigmoid", "Tanh", "Tanh"), _lstm, (_h.name, _c.name)),
    "GRU": _Cell(3, ("Sigmoid", "Tanh"), _gru),
    "RNN": _Cell(1, ("Tanh",), _rnn),
}
_X, _W, _R, _B, _LENGTHS, _FIRST, _PEEPHOLES = 0, 1, 2, 3, 4, 5, 7
_steps = op.Range(0, op.Gather(op.Shape(tensor(f"i{_X}")), 0), 1)
_lasts = tensor("lasts")
_LASTING = op.Less(op.Unsqueeze(_steps, (1, 2)), op.Unsqueeze(op.Cast(tensor(f"i{_LENGTHS}"), to=DType.INT64), (0, 2)))
"""Steps at which each sequence still goes on; one that has ended keeps its state, from either end."""


def is_scannable(graph: Graph, node: Node) -> bool:
    """Return whether a recurrent operator can be replaced by a Scan: its gates are computed as by default and
    without limits."""
    cell = _CELLS.get(node.op)
    if cell is None or node.domain or any(node.attrs.get(name) for name in ("layout", "input_forget", "clip")):
        return False
    recurrence = node.inputs[_R]
    count = 2 if node.attrs.get("direction") in ("bidirectional", b"bidirectional") else 1
    said = node.attrs.get("activations")
    activations = tuple(map(_text, said)) if isinstance(said, tuple) else cell.activations * count
    known = {cell.activations * count} | ({("Relu",) * count} if node.op == "RNN" else set())
    weights = None if recurrence is None else graph.shape(recurrence)
    return activations in known and weights is not None and isinstance(weights[-1], int)


def replace_by_scan(graph: Graph, vertex: int) -> Mapping[Value, Value]:
    """Put a Scan for each direction in the place of a recurrent operator, and return the values in the places of its
    outputs.

    Raises:
        RewriteRefused: it cannot be written in the model's opset.
    """
    node = graph[vertex]
    direction = _text(node.attrs.get("direction", "forward"))
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    runs = [_scan(graph, vertex, place, is_reversed=back) for place, back in enumerate(backwards)]
    joined: dict[Value, Value] = {}
    for output, name in enumerate(node.names):
        if name:
            last, axis = (output - 1, 0) if output else (-1, 1)
            holes = [tensor(f"d{i}") for i in range(len(runs))]
            parts = [op.Unsqueeze(hole, (axis,)) for hole in holes]
            term: Term = op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
            bound = {hole.name: run[last] for hole, run in zip(holes, runs, strict=True)}
            (joined[Value(vertex, output)],) = add_values(graph, Value(vertex), [term], bound)
    graph.apply(replace_values(graph, joined))
    return joined


def _scan(graph: Graph, vertex: int, place: int, *, is_reversed: bool) -> Sequence[Value]:
    """Add the Scan of one direction and return its last states and the hidden states after each step."""
    node = graph[vertex]
    cell, near, size = _CELLS[node.op], Value(vertex), _hidden_size(graph, node)
    inputs = {f"i{i}": value for i, value in enumerate(node.inputs) if value is not None}
    scanned, weights, bias, *states = add_values(graph, near, _terms_before_steps(graph, node, place), inputs)
    body = Graph(graph.new_name(f"{node.op}/step"), opsets=graph.opsets, names=graph.names)
    builder = ScanBuilder(graph, near, body)
    holes = {name: builder.add_state(first) for name, first in zip(cell.states, states, strict=True)}
    type_ = graph.tensor_type(scanned)
    step_type = None if type_ is None or type_.shape is None else TensorType(type_.dtype, type_.shape[1:])
    holes[_p.name] = builder.add_scanned(scanned, step_type, is_reversed=is_reversed)
    holes[_r.name], holes[_b.name] = builder.add_capture(weights), builder.add_capture(bias)
    if _has(node, _PEEPHOLES):
        (peepholes,) = add_values(graph, near, [_part_of_direction(_PEEPHOLES, place)], inputs)
        holes[_peep.name] = builder.add_capture(peepholes)
    nexts = cell.step(node, size)
    output = nexts[0]
    if _has(node, _LENGTHS):
        (lasting,) = add_values(graph, near, [_LASTING], inputs)
        step_type = TensorType(DType.BOOL, (graph.shape(lasting) or ())[1:])
        holes[_lasts.name] = builder.add_scanned(lasting, step_type, is_reversed=is_reversed)
        kept = [tensor(name) for name in cell.states]
        nexts = tuple(op.Where(_lasts, new, old) for new, old in zip(nexts, kept, strict=True))
        output = op.Where(_lasts, output, 0)
    *states, result = add_values(body, holes[_p.name], [*nexts, output], holes)
    return builder.finish(states, [result], [int(is_reversed)])


def _terms_before_steps(graph: Graph, node: Node, place: int) -> list[Term]:
    """Return what is computed once for all steps of a direction: the inputs times their weights, the recurrent weights
    and bias, and the first states."""
    x, cell, size = node.inputs[_X], _CELLS[node.op], _hidden_size(graph, node)
    assert x is not None, "a recurrent operator reads a sequence"
    dtype, width = graph.dtype(x), cell.gates * size
    zeros: Term = op.Cast(op.ConstantOfShape((width,)), to=dtype)
    both_biases = _part_of_direction(_B, place)
    input_bias, bias = _parts(both_biases, 2, width) if _has(node, _B) else (zeros, zeros)
    weights, recurrence = (op.Transpose(_part_of_direction(position, place), perm=(1, 0)) for position in (_W, _R))
    batch = op.Slice(op.Shape(tensor(f"i{_X}")), (1,), (2,))
    absent: Term = op.Cast(op.ConstantOfShape(op.Concat(batch, (size,), axis=0)), to=dtype)
    firsts = (
        _part_of_direction(position, place) if _has(node, position) else absent
        for position in range(_FIRST, _FIRST + len(cell.states))
    )
    return [tensor(f"i{_X}") @ weights + input_bias, recurrence, bias, *firsts]


def _part_of_direction(position: int, place: int) -> Term:
    """Return the part of an input that is for the direction in this place."""
    return op.Squeeze(op.Slice(tensor(f"i{position}"), (place,), (place + 1,), (0,)), (0,))


def _hidden_size(graph: Graph, node: Node) -> int:
    recurrence = node.inputs[_R]
    assert recurrence is not None, "a recurrent operator has weights"
    size = (graph.shape(recurrence) or ())[-1]
    assert isinstance(size, int), "is_scannable"
    return size
