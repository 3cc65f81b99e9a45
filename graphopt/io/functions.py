"""Definitions out of ONNX functions: `onnx.FunctionProto`, and what onnxscript decorates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, numpy_helper

from graphopt.base.errors import RuleError
from graphopt.io import opsets
from graphopt.io.legal import domain_of
from graphopt.io.ways import way_up
from graphopt.ir import ops
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

    Args:
        function: an `onnx.FunctionProto`, or what onnxscript makes of a decorated Python function.

    Raises:
        RuleError: it is no function, it has a body, a type or a large tensor in it, it names an attribute that no node
            reads, or it is defined otherwise already.
    """
    if not isinstance(function, FunctionProto) and not hasattr(function, "to_function_proto"):
        raise RuleError(f"{function!r} is no ONNX function: neither a FunctionProto nor one of onnxscript")
    proto = function if isinstance(function, FunctionProto) else function.to_function_proto()
    try:
        return declare(_Reader(proto).definition())
    except _Unreadable as error:
        raise RuleError(f"the function '{proto.domain}.{proto.name}': {error}") from error


class _Unreadable(Exception):
    """What a term cannot say."""


class _Reader:
    """Reads one function node by node; each name stands for a term."""

    def __init__(self, proto: FunctionProto) -> None:
        self.proto = proto
        self.opsets = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
        self.holes = dict(self._attributes())
        self.terms: dict[str, Term | None] = {"": None, **{name: tensor(name) for name in proto.input}}

    def definition(self) -> Definition:
        for node in self.proto.node:
            self._read(node)
        defaults = {attribute.name: Lit(_plain(attribute)) for attribute in self.proto.attribute_proto}
        head = App(
            self.proto.name,
            tuple(self.terms[name] for name in self.proto.input),
            tuple(sorted(self.holes.items())),
            self.proto.domain,
            outputs=len(self.proto.output),
        )
        outputs = tuple(self._term(name) for name in self.proto.output)
        return Definition(head, outputs, tuple(sorted(defaults.items())))

    def _attributes(self) -> Iterator[tuple[str, Var]]:
        """Yield the function's attributes, as holes of the kind that the nodes read them as."""
        kinds = {a.ref_attr_name: a.type for node in self.proto.node for a in node.attribute if a.ref_attr_name}
        for name in (*self.proto.attribute, *(attribute.name for attribute in self.proto.attribute_proto)):
            if kinds.get(name) not in _HOLES:
                raise _Unreadable(f"attribute '{name}' is read by no node as a number, a list of integers or a text")
            yield name, _HOLES[kinds[name]](name)

    def _term(self, name: str) -> Term:
        found = self.terms.get(name)
        if found is None:
            raise _Unreadable(f"nothing makes '{name}'")
        return found

    def _read(self, node: NodeProto) -> None:
        domain = domain_of(node.domain)
        if node.op_type == "Constant" and not domain:
            (attribute,) = node.attribute
            self.terms[node.output[0]] = self._attribute(attribute) if attribute.ref_attr_name else Lit(_constant(node))
            return
        args = tuple(None if name == "" else self._term(name) for name in node.input)
        attrs = tuple(sorted((attribute.name, self._attribute(attribute)) for attribute in node.attribute))
        self._demand_same(node.op_type, domain)
        count = len(node.output)
        for index, name in enumerate(node.output):
            self.terms[name] = App(node.op_type, args, attrs, domain, index, count)

    def _demand_same(self, op: str, domain: str) -> None:
        """Raise _Unreadable where an operator is unknown, or rules write its newest version in another way."""
        opset = self.opsets.get(domain, 1)
        version = opsets.version(op, domain, {domain: opset})
        if not version:
            raise _Unreadable(f"nothing says what '{op}' of {domain or 'ONNX'} computes in opset {opset}")
        way = way_up(op, domain, version)
        if way.reason or way.steps:
            raise _Unreadable(f"{op} of opset {opset} is written in another way since: write it in opset {ops.OPSET}")

    def _attribute(self, attribute: AttributeProto) -> Term:
        return self.holes[attribute.ref_attr_name] if attribute.ref_attr_name else Lit(_plain(attribute))


def _plain(attribute: AttributeProto) -> Any:
    value = ops.attribute_value(attribute)
    if value is None or isinstance(value, bytes):
        raise _Unreadable(f"attribute '{attribute.name}' is no number, text or list of numbers")
    return value


def _constant(node: NodeProto) -> Any:
    """Return the number or the list of numbers that a Constant is."""
    (attribute,) = node.attribute
    if attribute.type != AttributeProto.TENSOR:
        return _plain(attribute)
    array = numpy_helper.to_array(attribute.t)
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        what = f"a constant of {array.ndim} axes of {array.dtype}"
        raise _Unreadable(f"'{node.output[0]}' is {what}: a term has numbers and lists of numbers")
    return array.item() if not array.ndim else tuple(array.tolist())
