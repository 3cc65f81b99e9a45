"""Opaque operators: functions of whole tensors, of which no more is known."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from graphopt.expr.expressions import Expr, Index, OpaqueElement, expr_of_factor
from graphopt.expr.integers import eq, ge
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.ir import schemas
from graphopt.operators.op_context import (
    Denotation,
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
)
from graphopt.operators.shape_constraints import require_shape


def opaque_output(node: OpContext, position: int, output: SymbolicTensor) -> SymbolicTensor:
    """Return an output that is equal for equal operands, shapes, element types and attributes.

    Shapes count because kernels block by them. Numbers that the denotation read are among `used`; others are operands
    like tensors. Whether a reduction keeps its axes does not change its numbers.
    """
    used = dict(node.read_values)
    kept = used.get("along", ()) if used.pop("keepdims", 0) else ()
    types = (("types", node.operand_dtypes),) if node.operand_dtypes else ()
    params = (position, node.is_constant_folded, node.dtype, *types, *sorted(used.items()))
    operands = []
    for i in range(node.input_count):
        tensor = None if i in node.inputs_read_as_numbers else node.optional_input(i)
        operands.append(None if tensor is None else tensor.as_argument())
    whole = tuple(operands)

    def at(index: Index) -> Expr:
        place = tuple(i for axis, i in enumerate(index) if axis not in kept)
        return expr_of_factor(
            OpaqueElement(f"any {node.op}" if node.domain in schemas.CLASS_SCHEMAS else node.op, params, whole, place)
        )

    return SymbolicTensor(output.shape, at, output.dtype)


def opaque_softmax(node: OpContext, scores: SymbolicTensor) -> SymbolicTensor:
    """Return the softmax over the last axis, as the operator of that name, for a node that contains one."""
    params, whole = (0, node.is_constant_folded, node.dtype, ("axis", -1)), (scores.as_argument(),)
    return SymbolicTensor(scores.shape, lambda index: expr_of_factor(OpaqueElement("Softmax", params, whole, index)))


def output_of_shape(node: OpContext, position: int, shape: SymbolicShape) -> SymbolicTensor:
    """Return an output of which only the shape is known."""

    def unseen(_: Index) -> Expr:
        raise UnsupportedOperatorError(f"an element of {node.op}")

    return opaque_output(node, position, SymbolicTensor(shape, unseen))


GATE_COUNTS: Mapping[str, int] = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTION_COUNTS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def opaque_recurrent(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """Return the outputs of a recurrent network: all its states, the last one, and the last cell of an LSTM.

    ONNX Runtime supports layout 0 only, and requires the hidden size.
    """
    gates = GATE_COUNTS[node.op]
    x, w, r = (node.input(i) for i in range(3))
    directions = DIRECTION_COUNTS[node.text("direction", tuple(DIRECTION_COUNTS))]
    for name in ("activations", "activation_alpha", "activation_beta", "clip", "input_forget", "linear_before_reset"):
        node.read_unmodeled_attribute(name)
    if node.flag("layout"):
        raise UndefinedOperatorError(f"{node.op} with layout 1")
    if x.rank != 3 or r.rank != 3:
        raise UndefinedOperatorError(f"{node.op} of other ranks than 3")
    (length, batch, features), hidden = x.shape, r.shape[2]
    asked = node.attribute("hidden_size", lambda: hidden)
    if asked is None:
        raise UndefinedOperatorError(f"{node.op} without hidden_size")
    node.require(eq(asked, hidden), "hidden_size is not that of the weights")
    for size in (length, batch, features, hidden):
        node.require(ge(size, 1), "an axis is empty")
    state = (directions, batch, hidden)
    require_shape(node, w.shape, (directions, hidden * gates, features), "the weights are not those of the input")
    require_shape(node, r.shape, (directions, hidden * gates, hidden), "the weights are not those of the states")
    shapes = ((directions, hidden * (2 * gates)), (batch,), state, state, (directions, hidden * 3))
    for position, shape in enumerate(shapes, start=3):
        given = node.optional_input(position)
        if given is not None:
            require_shape(node, given.shape, shape, f"input {position} has another shape")
    lengths = node.optional_input(4)
    if lengths is not None:
        node.require_indices(lengths, length + 1, from_end=False)
    outputs = ((length, directions, batch, hidden), state, state)
    return tuple(map(partial(output_of_shape, node), range(node.output_count), outputs))


RECURRENT_DENOTATIONS: Mapping[str, Denotation] = dict.fromkeys(GATE_COUNTS, opaque_recurrent)
