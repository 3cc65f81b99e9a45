"""ONNX functions as terms: the meaning of an `onnx.FunctionProto` over holes for its inputs and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, numpy_helper

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import CONSTANT
from graphopt.language.terms import App, Lit, Term, Var, integer, integers, is_scalar, real, string, tensor
from graphopt.language.type_inference import NoInstance, TypeConstraints, signature_of

_HOLE_MAKERS = {
    AttributeProto.INT: integer,
    AttributeProto.INTS: integers,
    AttributeProto.FLOAT: real,
    AttributeProto.STRING: string,
}


class NotExpressibleError(Exception):
    """A part of a function that no term expresses."""


@dataclass(frozen=True)
class FunctionTerms:
    """A function that was read: one term for each output."""

    inputs: tuple[Var, ...]
    attributes: Mapping[str, Var]
    """The holes for the attributes that its nodes read, by their names."""
    outputs: tuple[Term, ...]


def read_function(proto: FunctionProto) -> FunctionTerms:
    """Return what a function computes.

    Raises:
        NotExpressibleError: it has a body, a type or a large tensor in it, or casts a number to a type that it is not
            used in.
    """
    inputs = tuple(map(tensor, proto.input))
    references = (attribute for node in proto.node for attribute in node.attribute if attribute.ref_attr_name)
    attributes = {
        each.ref_attr_name: _HOLE_MAKERS[each.type](each.ref_attr_name)
        for each in references
        if each.type in _HOLE_MAKERS
    }
    reader = _FunctionReader(attributes, {"": None, **{hole.name: hole for hole in inputs}})
    for node in proto.node:
        reader.read(node)
    outputs = tuple(map(reader.term, proto.output))
    reader.check_cast_types(proto.output, outputs)
    return FunctionTerms(inputs, reader.holes, outputs)


@dataclass(frozen=True)
class _FunctionReader:
    """Reads one function node by node; each name stands for a term."""

    holes: Mapping[str, Var]
    terms: dict[str, Term | None]
    cast_references: dict[str, Term] = field(default_factory=dict)
    """Terms whose type a number was cast to, by the name of the number."""
    cast_uses: list[tuple[str, App, int]] = field(default_factory=list)
    """The numbers that were cast, where they are used."""

    def term(self, name: str) -> Term:
        found = self.terms.get(name)
        if found is None:
            raise NotExpressibleError(f"nothing makes '{name}'")
        return found

    def read(self, node: NodeProto) -> None:
        op, domain = node.op_type, schemas.normalize_domain(node.domain)
        args = tuple(None if name == "" else self.term(name) for name in node.input)
        if op == CONSTANT and not domain:
            (attribute,) = node.attribute
            self.terms[node.output[0]] = (
                Lit(_constant_value(node)) if attribute.HasField("t") else self._attribute_term(op, attribute)
            )
        elif op == "CastLike" and not domain and args[0] is not None and is_scalar(args[0]):
            if node.input[0] in self.cast_references:
                raise NotExpressibleError(f"'{node.input[0]}' is a number that is cast twice")
            self.terms[node.output[0]] = args[0]  # a number of a term has the type of what it stands beside
            self.cast_references[node.output[0]] = self.term(node.input[1])
        else:
            attrs = tuple(sorted((attribute.name, self._attribute_term(op, attribute)) for attribute in node.attribute))
            for index, name in enumerate(node.output):
                self.terms[name] = App(op, args, attrs, domain, index, len(node.output))
            app = App(op, args, attrs, domain, 0, len(node.output))
            self.cast_uses.extend(
                (name, app, place) for place, name in enumerate(node.input) if name in self.cast_references
            )

    def check_cast_types(self, names: Iterable[str], outputs: tuple[Term, ...]) -> None:
        """Raise NotExpressibleError where a number is cast to another type than it has where it is used."""
        for name in names:
            if name in self.cast_references:
                raise NotExpressibleError(f"'{name}' is a number, which has no type of its own")
        if not self.cast_uses:
            return
        try:
            types = TypeConstraints((*outputs, *(app for _, app, _ in self.cast_uses)), {})
            for name, app, place in self.cast_uses:
                beside, like = (
                    (app.node, signature_of(app).input(place).variable),
                    types.slot(self.cast_references[name]),
                )
                if types.representative(beside) != types.representative(like) and not _is_dtype_independent(app, place):
                    raise NotExpressibleError(
                        f"'{name}' is a number cast to the type of {self.cast_references[name]},"
                        f" and {app.op} takes it in another"
                    )
        except NoInstance as error:
            raise NotExpressibleError(str(error)) from error

    def _attribute_term(self, op: str, attribute: AttributeProto) -> Term:
        name = attribute.ref_attr_name
        if name and name not in self.holes:
            raise NotExpressibleError(f"attribute '{name}' is no number, text or list of integers")
        return self.holes[name] if name else Lit(plain_attribute(attribute, f" of {op}"))


def _is_dtype_independent(app: App, place: int) -> bool:
    """Return whether an input is a small number of a type of its own, the same in all types: the exponent of a
    square."""
    operator, number = signature_of(app), app.inputs[place]
    formal = operator.input(place)
    others = [each.variable for each in (*operator.inputs, *operator.outputs) if each.name != formal.name]
    is_small = isinstance(number, Lit) and number.value in range(128)
    return is_small and formal.variable not in others and DType.BOOL not in formal.allowed


def plain_attribute(attribute: AttributeProto, of: str = "") -> Any:
    """Return an attribute that is a number, a text or a list; raises NotExpressibleError for any other."""
    value = schemas.attribute_value(attribute)
    if value is None or isinstance(value, bytes):
        raise NotExpressibleError(f"attribute '{attribute.name}'{of} is no number, text or list of numbers")
    if attribute.type == AttributeProto.FLOATS:
        return tuple(map(_shortest_decimal, attribute.floats))
    return _shortest_decimal(value) if isinstance(value, float) else value


def _shortest_decimal(value: float) -> float:
    """Return the shortest decimal that rounds to a number in single precision: 0.1 for 0.1f."""
    return float(str(np.float32(value)))


def _constant_value(node: NodeProto) -> Any:
    """Return the number or the list of numbers that a Constant holds."""
    array = numpy_helper.to_array(node.attribute[0].t)
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        what = f"a constant of {array.ndim} axes of {array.dtype}"
        raise NotExpressibleError(f"'{node.output[0]}' is {what}: a term has numbers and lists of numbers")
    # 0.1f is meant for 0.1, also where a CastLike makes it a double: so is a Python number written by onnxscript
    found = tuple(float(str(x)) if array.dtype.kind == "f" else int(x) for x in array.flat)
    return found if array.ndim else found[0]
