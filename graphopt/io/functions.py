"""Definitions out of ONNX functions: `onnx.FunctionProto`, and what onnxscript decorates."""

from __future__ import annotations

from typing import Any

from onnx import FunctionProto

from graphopt.base.errors import ModelError, RuleError
from graphopt.io import onnx_io
from graphopt.io.ways import way_up
from graphopt.ir.graph import Node
from graphopt.language.definition import Definition, declare
from graphopt.language.functions import Unreadable, plain, read
from graphopt.language.term import App, Lit
from graphopt.operators.protos import attribute_to_proto, node_to_proto


def define_function(function: FunctionProto | Any) -> Definition:
    """Declare the operator that a function is, with its nodes as the meaning, and return the definition.

    Operators of older opsets are read as the newest has them.

    Args:
        function: an `onnx.FunctionProto`, or what onnxscript makes of a decorated Python function.

    Raises:
        RuleError: it is no function, an operator in it means something that the newest opset cannot say, it has a
            body, a type or a large tensor in it, it names an attribute that no node reads, or it is defined otherwise
            already.
    """
    if not isinstance(function, FunctionProto) and not hasattr(function, "to_function_proto"):
        raise RuleError(f"{function!r} is no ONNX function: neither a FunctionProto nor one of onnxscript")
    proto = function if isinstance(function, FunctionProto) else function.to_function_proto()
    try:
        return declare(_definition(proto))
    except (ModelError, Unreadable) as error:
        raise RuleError(f"the function '{proto.domain}.{proto.name}': {error}") from error


WRITTEN = {("Constant", ""), ("CastLike", "")}
"""Operators that may be a number of a term, whatever their opset is."""


def _definition(proto: FunctionProto) -> Definition:
    found = read(newest(proto))
    for name in (*proto.attribute, *(attribute.name for attribute in proto.attribute_proto)):
        if name not in found.attributes:
            raise Unreadable(f"attribute '{name}' is read by no node as a number, a list of integers or a text")
    defaults = {attribute.name: Lit(plain(attribute)) for attribute in proto.attribute_proto}
    attrs = tuple(sorted(found.attributes.items()))
    head = App(proto.name, found.inputs, attrs, proto.domain, outputs=len(proto.output))
    return Definition(head, found.outputs, tuple(sorted(defaults.items())))


def newest(proto: FunctionProto) -> FunctionProto:
    """Return the function with its operators as the newest opset has them."""
    graph = onnx_io.function_body(proto).graph
    result = FunctionProto(input=proto.input, output=proto.output)
    for node in map(graph.__getitem__, graph.topological()):
        if node.data is not None:
            made = result.node.add(op_type="Constant", output=node.names)
            made.attribute.append(attribute_to_proto("value", node.data))
        elif not node.is_internal:
            if (node.op, node.domain) not in WRITTEN:
                _demand_newest(node, graph.opsets.get(node.domain, 1))
            inputs = ["" if value is None else graph.value_name(value) for value in node.inputs]
            result.node.append(node_to_proto(node, inputs, node.names))
    return result


def _demand_newest(node: Node, opset: int) -> None:
    """Raise Unreadable where an operator is unknown, or no rule can say what it means."""
    if not node.version:
        raise Unreadable(f"nothing says what '{node.op}' of {node.domain or 'ONNX'} computes in opset {opset}")
    way = way_up(node.op, node.domain, node.version)
    if node.version != way.version or way.reason:
        why = f", and cannot be read here{f': {way.reason}' if way.reason else ''}"
        raise Unreadable(f"{node.op} of opset {opset} is written in another way since{why}")
