"""Scalars in the rank of the tensors that they meet, where ONNX Runtime is slow otherwise.

Between a tensor that ends in axes of one element, as 1 x 1 filters do, and a scalar of fewer axes, its elementwise
kernels go element by element: they take 2.1 ms for 204,800 numbers, and 27 us with a scalar of as many axes (version
1.32, one thread).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from graphopt.autodiff.building import add_values
from graphopt.ir.edit import replace_node
from graphopt.ir.graph import Graph, Node, Value
from graphopt.language.terms import op, tensor
from graphopt.operators.elementwise_ops import ExtraOperands
from graphopt.operators.operator_classes import extra_operands

LEAST_ELEMENTS = 32
"""Elements from which on this takes longer than a kernel's start."""


def give_scalars_full_rank(graph: Graph) -> bool:
    """Reshape the scalars that slow down elementwise operators of two operands, in place, each once for each rank;
    return whether there are any."""
    made: dict[tuple[Value, int], Value] = {}
    for vertex, node in list(graph.nodes()):
        position = _slow_scalar(graph, node)
        if position is None:
            continue
        (scalar, other), inputs = (node.inputs[position], node.inputs[1 - position]), list(node.inputs)
        assert scalar is not None and other is not None, "an elementwise operator has all operands"
        key = scalar, len(graph.shape(other) or ())
        if key not in made:
            (made[key],) = add_values(graph, scalar, [op.Reshape(tensor("s"), (1,) * key[1])], {"s": scalar})
        inputs[position] = made[key]
        graph.apply(replace_node(graph, vertex, replace(node, inputs=tuple(inputs))))
    return bool(made)


def _slow_scalar(graph: Graph, node: Node) -> int | None:
    """Return the position of the operand that is a scalar of fewer axes than the other, which ends in one element."""
    if extra_operands(node.op, node.domain) is not ExtraOperands.MULTIDIRECTIONAL or len(node.inputs) != 2:
        return None
    shapes = [graph.shape(value) for value in node.inputs if value is not None]
    for position, (scalar, other) in enumerate((shapes, shapes[::-1])):
        if scalar is None or other is None or len(scalar) >= len(other) or any(size != 1 for size in scalar):
            continue
        sizes = [size for size in other if isinstance(size, int)]
        if other[-1] == 1 and (len(sizes) < len(other) or prod(sizes) >= LEAST_ELEMENTS):
            return position
    return None
