"""Definitions out of ONNX functions: `onnx.FunctionProto`, and what onnxscript decorates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import FunctionProto

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError, RuleError
from graphopt.io import onnx_io, opset_conversion
from graphopt.io.version_paths import upgrade_path
from graphopt.ir import schemas
from graphopt.ir.graph import CONSTANT, Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.language.definition import Definition, declare
from graphopt.language.function_terms import NotExpressibleError, plain_attribute, read_function
from graphopt.language.terms import App, Lit
from graphopt.operators.proto_conversion import attribute_to_proto, node_to_proto


def define_function(function: FunctionProto | Any) -> Definition:
    """Declare the operator that a function is, with the function's nodes as its meaning, and return the definition.

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
        return declare(_build_definition(proto))
    except (ModelError, NotExpressibleError) as error:
        raise RuleError(f"the function '{proto.domain}.{proto.name}': {error}") from error


NUMERIC_OPERATORS = {(CONSTANT, ""), ("CastLike", "")}
"""Operators that may be a number of a term, whatever their opset is."""


def _build_definition(proto: FunctionProto) -> Definition:
    found = read_function(upgrade_function(proto))
    for name in (*proto.attribute, *(attribute.name for attribute in proto.attribute_proto)):
        if name not in found.attributes:
            raise NotExpressibleError(
                f"attribute '{name}' is read by no node as a number, a list of integers or a text"
            )
    defaults = {attribute.name: Lit(plain_attribute(attribute)) for attribute in proto.attribute_proto}
    attrs = tuple(sorted(found.attributes.items()))
    head = App(proto.name, found.inputs, attrs, proto.domain, outputs=len(proto.output))
    return Definition(head, found.outputs, tuple(sorted(defaults.items())))


def upgrade_function(proto: FunctionProto) -> FunctionProto:
    """Return the function with its operators as the newest opset has them."""
    graph = onnx_io.function_as_model(proto).graph
    for vertex, node in [*graph.nodes()]:
        graph.apply(Patch({vertex: node}, {vertex: _upgrade_for_any_float(node, graph)}))
    result = FunctionProto(input=proto.input, output=proto.output)
    for node in map(graph.__getitem__, graph.topological_order()):
        if node.data is not None:
            made = result.node.add(op_type=CONSTANT, output=node.names)
            made.attribute.append(attribute_to_proto("value", node.data))
        elif not node.is_internal:
            if (node.op, node.domain) not in NUMERIC_OPERATORS:
                _check_expressible(node, graph)
            inputs = ["" if value is None else graph.value_name(value) for value in node.inputs]
            result.node.append(node_to_proto(node, inputs, node.names))
    return result


@dataclass(frozen=True)
class _UniformlyTypedFacts:
    """A graph in which tensors of unknown element type are taken to have a given one."""

    graph: Graph
    dtype: DType

    @property
    def opsets(self) -> Mapping[str, int]:
        return self.graph.opsets

    def constant(self, value: Value | None) -> Tensor | None:
        return self.graph.constant(value)

    def tensor_type(self, value: Value | None) -> TensorType | None:
        return self.graph.tensor_type(value) or TensorType(self.dtype)

    def value_type(self, value: Value) -> Type | None:
        return self.graph.value_type(value)


def _upgrade_for_any_float(node: Node, graph: Graph) -> Node:
    """Return a node in its newest spelling if that is the same for all float types: a limit of a Clip, for example,
    became a tensor of the type of its data, and a number in a term has that type anyway."""
    if not node.version or upgrade_path(node.op, node.domain, node.version).version == node.version:
        return node
    found = [
        opset_conversion.upgraded(node, graph, _UniformlyTypedFacts(graph, dtype))
        for dtype in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16)
    ]
    spellings = [(each.op, each.version, each.attrs, [value is None for value in each.inputs]) for each in found]
    return found[0] if spellings[1:] == spellings[:-1] else node


def _check_expressible(node: Node, graph: Graph) -> None:
    """Raise NotExpressibleError where an operator is unknown, or no rule can say what it means."""
    opset = graph.opsets.get(node.domain, 1)
    if not node.version:
        raise NotExpressibleError(f"nothing says what '{node.op}' of {node.domain or 'ONNX'} computes in opset {opset}")
    way = upgrade_path(node.op, node.domain, node.version)
    if node.version != way.version or way.reason:
        why = opset_conversion.reason_not_upgraded(node, graph)
        advice = "" if node.domain else f"; write it in opset {schemas.RULE_OPSET}"
        raise NotExpressibleError(
            f"{node.op} of opset {opset} is written in another way since, and cannot be read here: {why}{advice}"
        )
