"""Operators that are not looked into: functions of whole tensors, of which no more is known than that."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphopt.base.integers import eq, ge
from graphopt.base.symbolic import Element, Index, Value, lift
from graphopt.base.tensors import Tensor
from graphopt.ir import ops
from graphopt.operators.broadcasting import fits
from graphopt.operators.node import Denotation, Node, Shape, Undefined, Unsupported


def opaque(node: Node, position: int, output: Tensor) -> Tensor:
    """Return an output that is equal for equal operands, with their shapes, by which kernels block, and their element
    types, and for equal attributes.

    Numbers that the denotation read are among `used`; others are operands like tensors. Whether a reduction keeps its
    axes does not change its numbers.
    """
    used = dict(node.used)
    kept = used.get("along", ()) if used.pop("keepdims", 0) else ()
    types = (("types", node.types),) if node.types else ()
    params = (position, node.folded, node.dtype, *types, *sorted(used.items()))
    operands = []
    for i in range(node.count):
        tensor = None if i in node.read else node.optional(i)
        operands.append(None if tensor is None else tensor.whole())
    whole = tuple(operands)

    def at(index: Index) -> Value:
        place = tuple(i for axis, i in enumerate(index) if axis not in kept)
        return lift(Element(f"any {node.op}" if node.domain in ops.CLASSES else node.op, params, whole, place))

    return Tensor(output.shape, at, output.dtype)


def softmax(node: Node, scores: Tensor) -> Tensor:
    """Return what the operator of that name makes of the last axis, for a node that does so inside of it."""
    params, whole = (0, node.folded, node.dtype, ("axis", -1)), (scores.whole(),)
    return Tensor(scores.shape, lambda index: lift(Element("Softmax", params, whole, index)))


def of_shape(node: Node, position: int, shape: Shape) -> Tensor:
    """Return an output of which only the shape is known."""

    def unseen(_: Index) -> Value:
        raise Unsupported(f"an element of {node.op}")

    return opaque(node, position, Tensor(shape, unseen))


GATES: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def recurrent(node: Node) -> tuple[Tensor, ...]:
    """Return the shapes of a recurrent network: all its states, the last one, and of an LSTM its last cell.

    ONNX Runtime knows no other layout than 0, and wants to be told the hidden size.
    """
    gates = GATES[node.op]
    x, w, r = (node.input(i) for i in range(3))
    directions = DIRECTIONS[node.text("direction", tuple(DIRECTIONS))]
    for name in ("activations", "activation_alpha", "activation_beta", "clip", "input_forget", "linear_before_reset"):
        node.ignored(name)
    if node.flag("layout"):
        raise Undefined(f"{node.op} with layout 1")
    if x.rank != 3 or r.rank != 3:
        raise Undefined(f"{node.op} of other ranks than 3")
    (length, batch, features), hidden = x.shape, r.shape[2]
    asked = node.attribute("hidden_size", lambda: hidden)
    if asked is None:
        raise Undefined(f"{node.op} without hidden_size")
    node.require(eq(asked, hidden), "hidden_size is not that of the weights")
    for size in (length, batch, features, hidden):
        node.require(ge(size, 1), "an axis is empty")
    state = (directions, batch, hidden)
    fits(node, w.shape, (directions, hidden * gates, features), "the weights are not those of the input")
    fits(node, r.shape, (directions, hidden * gates, hidden), "the weights are not those of the states")
    shapes = ((directions, hidden * (2 * gates)), (batch,), state, state, (directions, hidden * 3))
    for position, shape in enumerate(shapes, start=3):
        given = node.optional(position)
        if given is not None:
            fits(node, given.shape, shape, f"input {position} has another shape")
    lengths = node.optional(4)
    if lengths is not None:
        node.require_indices(lengths, length + 1, from_end=False)
    outputs = ((length, directions, batch, hidden), state, state)
    return tuple(map(partial(of_shape, node), range(node.outputs), outputs))


RECURRENT: Mapping[str, Denotation] = dict.fromkeys(GATES, recurrent)
