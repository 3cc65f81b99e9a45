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
    cell, near = _CELLS[node.op], Value(vertex)
    inputs = dict(enumerate(node.inputs))
    x, recurrence = inputs[_X], inputs[_R]
    assert x is not None, "a recurrent operator reads a sequence"
    assert recurrence is not None, "a recurrent operator has weights"
    size = (graph.shape(recurrence) or ())[-1]
    assert isinstance(size, int), "is_scannable"
    bound = {f"i{i}": value for i, value in inputs.items() if value is not None}

    def own(position: int) -> Term:
        return op.Squeeze(op.Slice(tensor(f"i{position}"), (place,), (place + 1,), (0,)), (0,))

    dtype, width = graph.dtype(x), cell.gates * size
    zeros: Term = op.Cast(op.ConstantOfShape((width,)), to=dtype)
    input_bias, bias = _parts(own(_B), 2, width) if inputs.get(_B) is not None else (zeros, zeros)
    projected = tensor("i0") @ op.Transpose(own(_W), perm=(1, 0)) + input_bias
    batch = op.Slice(op.Shape(tensor("i0")), (1,), (2,))
    absent: Term = op.Cast(op.ConstantOfShape(op.Concat(batch, (size,), axis=0)), to=dtype)
    firsts = [own(_FIRST + i) if inputs.get(_FIRST + i) is not None else absent for i in range(len(cell.states))]
    made = add_values(graph, near, [projected, op.Transpose(own(_R), perm=(1, 0)), bias, *firsts], bound)
    scanned, weights, bias_value, *states = made
    body = Graph(graph.new_name(f"{node.op}/step"), opsets=graph.opsets, names=graph.names)
    builder = ScanBuilder(graph, near, body)
    holes = {name: builder.add_state(first) for name, first in zip(cell.states, states, strict=True)}
    shape = graph.shape(scanned)
    type_ = None if shape is None else TensorType(dtype, shape[1:])
    holes[_p.name] = builder.add_scanned(scanned, type_, is_reversed=is_reversed)
    holes[_r.name], holes[_b.name] = builder.add_capture(weights), builder.add_capture(bias_value)
    if _has(node, _PEEPHOLES):
        (peepholes,) = add_values(graph, near, [own(_PEEPHOLES)], bound)
        holes[_peep.name] = builder.add_capture(peepholes)
    nexts = cell.step(node, size)
    output = nexts[0]
    if inputs.get(_LENGTHS) is not None:
        (lasting,) = add_values(graph, near, [_LASTING], bound)
        type_ = TensorType(DType.BOOL, (graph.shape(lasting) or ())[1:])
        holes[_lasts.name] = builder.add_scanned(lasting, type_, is_reversed=is_reversed)
        kept = [tensor(name) for name in cell.states]
        nexts = tuple(op.Where(_lasts, new, old) for new, old in zip(nexts, kept, strict=True))
        output = op.Where(_lasts, output, 0)
    *states, result = add_values(body, holes[_p.name], [*nexts, output], holes)
    return builder.finish(states, [result], [int(is_reversed)])
