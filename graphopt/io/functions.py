"""Definitions out of ONNX functions: `onnx.FunctionProto`, and what onnxscript decorates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import AttributeProto, FunctionProto

from graphopt.base.errors import ModelError, RuleError
from graphopt.io import onnx_io
from graphopt.io.ways import way_up
from graphopt.ir import ops
from graphopt.ir.graph import Attribute, Graph, Node, Opaque, Value
from graphopt.ir.tensor import Tensor
from graphopt.language.definition import Definition, declare
from graphopt.language.term import App, Lit, Term, Var, integer, integers, real, string, tensor

_HOLES = {
    AttributeProto.INT: integer,
    AttributeProto.INTS: integers,
    AttributeProto.FLOAT: real,
    AttributeProto.STRING: string,
}


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
        return declare(_Reader(proto, onnx_io.function_body(proto).graph).definition())
    except (ModelError, _Unreadable) as error:
        raise RuleError(f"the function '{proto.domain}.{proto.name}': {error}") from error


class _Unreadable(Exception):
    """What a term cannot say."""


class _Reader:
    """Reads one function node by node; each value stands for a term."""

    def __init__(self, proto: FunctionProto, graph: Graph) -> None:
        self.proto, self.graph = proto, graph
        self.holes = dict(self._attributes())
        self.inputs = {vertex: tensor(*graph[vertex].names) for vertex in graph.inputs}
        self.terms: dict[Value, Term] = {Value(vertex): hole for vertex, hole in self.inputs.items()}

    def definition(self) -> Definition:
        for vertex in self.graph.topological():
            self._read(vertex, self.graph[vertex])
        defaults = {attribute.name: Lit(_plain(attribute)) for attribute in self.proto.attribute_proto}
        attributes = tuple(sorted(self.holes.items()))
        count = len(self.proto.output)
        head = App(self.proto.name, tuple(self.inputs.values()), attributes, self.proto.domain, outputs=count)
        outputs = tuple(self.terms[value] for value in self.graph.outputs)
        return Definition(head, outputs, tuple(sorted(defaults.items())))

    def _attributes(self) -> Iterator[tuple[str, Var]]:
        """Yield the function's attributes, as holes of the kind that the nodes read them as."""
        kinds = {a.ref_attr_name: a.type for node in self.proto.node for a in node.attribute if a.ref_attr_name}
        for name in (*self.proto.attribute, *(attribute.name for attribute in self.proto.attribute_proto)):
            if kinds.get(name) not in _HOLES:
                raise _Unreadable(f"attribute '{name}' is read by no node as a number, a list of integers or a text")
            yield name, _HOLES[kinds[name]](name)

    def _read(self, vertex: int, node: Node) -> None:
        if node.data is not None:
            self.terms[Value(vertex)] = Lit(_elements(node.names[0], node.data))
        elif not node.is_internal:
            attrs = {name: self._attribute(node.op, name, value) for name, value in node.attrs.items()}
            for index, term in enumerate(self._made(node, attrs)):
                self.terms[Value(vertex, index)] = term

    def _made(self, node: Node, attrs: dict[str, Term]) -> Iterator[Term]:
        """Yield what a node makes, output by output."""
        args = tuple(None if value is None else self.terms[value] for value in node.inputs)
        if node.op == "Constant" and not node.domain:
            yield from attrs.values()
        elif node.op == "CastLike" and not node.domain and isinstance(args[0], Lit):
            yield args[0]  # a number of a term has the type of what it stands beside
        else:
            _demand_newest(node, self.graph.opsets.get(node.domain, 1))
            for index, _ in enumerate(node.names):
                yield App(node.op, args, tuple(sorted(attrs.items())), node.domain, index, len(node.names))

    def _attribute(self, op: str, name: str, value: Attribute) -> Term:
        match value:
            case int() | float() | str():
                return Lit(value)
            case tuple() if numbers := tuple(item for item in value if isinstance(item, int | float)):
                return Lit(numbers)
            case Opaque(proto=data) if given := AttributeProto.FromString(data).ref_attr_name:
                return self.holes[given]
        raise _Unreadable(f"attribute '{name}' of {op} is no number, text or list of numbers")


def _demand_newest(node: Node, opset: int) -> None:
    """Raise _Unreadable where an operator is unknown, or no rule can say what it means."""
    if not node.version:
        raise _Unreadable(f"nothing says what '{node.op}' of {node.domain or 'ONNX'} computes in opset {opset}")
    way = way_up(node.op, node.domain, node.version)
    if node.version != way.version or way.reason:
        why = f", and cannot be read here{f': {way.reason}' if way.reason else ''}"
        raise _Unreadable(f"{node.op} of opset {opset} is written in another way since{why}")


def _plain(attribute: AttributeProto) -> Any:
    value = ops.attribute_value(attribute)
    if value is None or isinstance(value, bytes):
        raise _Unreadable(f"attribute '{attribute.name}' is no number, text or list of numbers")
    return value


def _elements(name: str, constant: Tensor) -> Any:
    """Return the number or the list of numbers that a constant is."""
    array = constant.numpy()
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        what = f"a constant of {array.ndim} axes of {array.dtype}"
        raise _Unreadable(f"'{name}' is {what}: a term has numbers and lists of numbers")
    return array.item() if not array.ndim else tuple(array.tolist())
