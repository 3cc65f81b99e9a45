"""Rows of a Softmax that are masked as a whole: they are NaN, and the model puts numbers in their place.

Where all scores of a row are minus infinity, as those of a padded token, Softmax makes NaN of it. What exporters write
for attention with a mask, and the definition of Attention in ONNX, put zeros there. Nothing flows back to such a row,
but its gradient is a product with the row, and so would be NaN.
"""

from __future__ import annotations

from graphopt.autodiff.building import add_values
from graphopt.ir.graph import Graph, Node, Value
from graphopt.language.terms import op, tensor
from graphopt.operators.node_operands import normalize_axis


def with_masked_rows_replaced(graph: Graph, value: Value) -> Value:
    """Return what is read of a Softmax whose masked rows one Where replaces, which may be added to the graph; any other
    value as it is.

    The gradient of a Softmax may be computed of either: nothing flows back to the rows that were replaced.
    """
    softmax = graph[value.vertex]
    axis = softmax.attrs.get("axis", -1)
    if not _is(softmax, "Softmax") or not isinstance(axis, int):
        return value
    chosen = _replacement(graph, value, axis)
    if chosen is None:
        return value
    if graph.dtype(chosen) == graph.dtype(value):
        return chosen
    condition = graph[chosen.vertex].inputs[0]
    assert condition is not None, "a Where has a condition"
    bound = {"is_masked": condition, "x": value}
    return add_values(graph, value, [op.Where(tensor("is_masked"), 0, tensor("x"))], bound)[0]


def _replacement(graph: Graph, value: Value, axis: int) -> Value | None:
    """Return the result of the only Where that reads a value, as it is or in another type, if it replaces rows of it
    along an axis, or what is NaN."""
    if graph.is_output(value):
        return None
    readers = [vertex for vertex in graph.readers(value.vertex) if not _is(graph[vertex], "IsNaN")]
    if len(readers) != 1:
        return None
    reader, result = graph[readers[0]], Value(readers[0])
    if _is(reader, "Cast"):
        return _replacement(graph, result, axis)
    is_choice = _is(reader, "Where") and reader.inputs[2] == value and graph.shape(result) == graph.shape(value)
    return result if is_choice and _names_rows(graph, reader.inputs[0], value, axis) else None


def _names_rows(graph: Graph, condition: Value | None, value: Value, axis: int) -> bool:
    """Return whether a condition holds of whole rows of a value along an axis, or of what is NaN in it."""
    assert condition is not None, "a Where has a condition"
    asked, shape, selected = graph[condition.vertex], graph.shape(value), graph.shape(condition)
    if _is(asked, "IsNaN"):
        return asked.inputs == (value,)
    if shape is None or selected is None:
        return False
    place = normalize_axis(axis, len(shape)) - len(shape)
    return -place > len(selected) or selected[place] == 1


def _is(node: Node, op: str) -> bool:
    return node.op == op and not node.domain
