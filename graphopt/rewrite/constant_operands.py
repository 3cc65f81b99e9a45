"""Constants beside operators in a graph, as patterns look at them: numbers, however they are spelt."""

from __future__ import annotations

from functools import partial
from math import copysign
from typing import Any

import numpy as np

from graphopt.base.dtype import DType
from graphopt.ir.graph import Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape
from graphopt.operators.operator import ResultDtypeSource
from graphopt.operators.operator_classes import is_broadcasting, lookup_operator


def constant_tensor(graph: Graph, value: Value | None) -> Tensor | None:
    """Return a constant, or the value of a ConstantOfShape of constants, which is as good and made only when needed."""
    tensor = graph.constant(value)
    node = None if value is None else graph[value.vertex]
    if tensor is not None or node is None or not is_filled_tensor(node):
        return tensor
    filling, shape = node.attrs.get("value"), graph.constant(node.inputs[0])
    sizes = None if shape is None else shape.int_values()
    if sizes is None:
        return None
    one = filling.numpy().reshape(()) if isinstance(filling, Tensor) else np.zeros((), np.float32)
    return Tensor(DType.from_numpy(one.dtype), sizes, lambda: np.broadcast_to(one, sizes))


def is_filled_tensor(node: Node) -> bool:
    """Return whether a node is a ConstantOfShape: all that it makes is one number."""
    return lookup_operator(node.op, node.domain).result_dtype_source is ResultDtypeSource.VALUE and node.version != 0


def has_reciprocals(tensor: Tensor) -> bool:
    """Return whether division by a constant may become multiplication: it has floats whose reciprocals are finite,
    too."""
    if not tensor.dtype.is_float:
        return False
    own = tensor.numpy()
    with np.errstate(all="ignore"):
        return bool(np.isfinite(own).all() and np.isfinite(np.reciprocal(own)).all())


def other_operand_shape(graph: Graph, node: Node, value: Value) -> Shape | None:
    """Return the shape of the operand beside `value` in a binary operator."""
    if len(node.inputs) != 2:
        return None
    return graph.shape(node.inputs[1] if node.inputs[0] == value else node.inputs[0])


def is_scalar_spelling(graph: Graph, node: Node, value: Value, shape: Shape) -> bool:
    """Return whether the axes of a single number are mere spelling: none of them is an axis of the result."""
    if not shape:
        return True
    if node.op == "Where" or is_broadcasting(node.op, node.domain):
        others = (other for other in node.inputs if other is not None and other != value)
        return any(_has_own_axes(graph, other, len(shape)) for other in others)
    return len(shape) == 1 and node.op != "Gather"


def _has_own_axes(graph: Graph, value: Value, count: int) -> bool:
    """Return whether a value has as many axes of its own; those of a single number may be mere spelling, too."""
    shape, constant, contents = graph.shape(value), graph.constant(value), graph.known_contents(value)
    is_number = (constant is not None and constant.size == 1) or (contents is not None and len(contents) == 1)
    return shape is not None and len(shape) >= count and not is_number


def real_number(graph: Graph, node: Node, value: Value | None) -> float | None:
    """Return the value of a constant with one float, None for a NaN."""
    tensor = graph.constant(value)
    if value is None or tensor is None or tensor.size != 1 or not tensor.dtype.is_float:
        return None
    number = float(tensor.numpy().ravel()[0])
    return number if number == number and is_scalar_spelling(graph, node, value, tensor.shape) else None


def is_number_constant(graph: Graph, node: Node, number: object, value: Value | None) -> bool:
    """Return whether a constant equals a number as rounded to its type, and does not broadcast what it is combined
    with.

    What a type has no number near to is not in the model, whatever was made of it there.
    """
    tensor = graph.constant(value)
    if value is None or tensor is None or not tensor.is_small:
        return False
    own = tensor.numpy().ravel()
    if isinstance(number, tuple):
        return tensor.shape == (len(number),) and all(map(partial(_equals_rounded, tensor.dtype), number, own))
    if tensor.size != 1 or not is_scalar_spelling(graph, node, value, tensor.shape):
        return False
    return _equals_rounded(tensor.dtype, number, own[0])


def _equals_rounded(dtype: DType, number: object, own: Any) -> bool:
    """Return whether a constant holds a number as rounded to its type."""
    if not isinstance(number, int | float):
        return False
    if not dtype.is_float:
        return float(number).is_integer() and bool(own == number)
    rounded = dtype.round_to_dtype(float(number))
    return rounded is not None and floats_equal(float(own), rounded)


def floats_equal(left: float, right: float) -> bool:
    """Return whether two floats are equal bit for bit: -0.0 is not 0.0."""
    return left == right and copysign(1, left) == copysign(1, right)
