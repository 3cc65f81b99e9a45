"""One instance of a rule as two small ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import IDENTITY, Node
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, Var, is_scalar, operator_applications
from graphopt.language.type_inference import NoInstance, TypeConstraints, signature_of
from graphopt.operators.attribute_proposals import ProposalContext
from graphopt.operators.operator import ResultDtypeSource
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.proto_conversion import node_to_proto, tensor_to_proto, type_to_proto
from graphopt.verifier.concrete_instance import Array, ConcreteInstance, Shape, array_of, evaluate_scalar_at


def build_models(rule: Rule, instance: ConcreteInstance) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the two sides as models with the same inputs and outputs; constants are initializers.

    Raises:
        NoInstance, UndecidedScalarError: an attribute or number of the right side has no value at this instance, or a
            size would be negative.
    """
    left = _Writer(rule, instance, rule.left)
    return left.model(), _Writer(rule, instance, rule.right, beside=left).model()


class _Writer:
    """One side of a rule as a graph; equal terms are one node."""

    def __init__(
        self, rule: Rule, instance: ConcreteInstance, sides: tuple[Term, ...], *, beside: _Writer | None = None
    ) -> None:
        """`beside` the left side the right one is written: numbers are of the type of what they replace."""
        self.rule, self.instance, self.sides, self.as_written = rule, instance, sides, beside is None
        arrays = {name: v for name, v in instance.values.items() if isinstance(v, np.ndarray)}
        self.types = TypeConstraints(sides, {name: DType.from_numpy(array.dtype) for name, array in arrays.items()})
        if beside is not None:
            self._type_numbers(beside.types.draw(self.types.slot(beside.sides[0])))
        self.graph = onnx.GraphProto(name=f"{rule.name}_{'right' if beside else 'left'}")
        self.names: dict[Term, str] = {}

    def _type_numbers(self, dtype: DType) -> None:
        """Give the numbers that are written this type, where no operand says another."""
        for app in (app for side in self.sides for app in operator_applications(side)):
            for position, arg in enumerate(app.inputs):
                if isinstance(arg, Lit):
                    self.types.choose((app.node, signature_of(app).input(position).variable), dtype)

    def model(self) -> onnx.ModelProto:
        for name, array in self.instance.feeds(self.rule).items():
            type_ = type_to_proto(TensorType(DType.from_numpy(array.dtype), array.shape))
            self.graph.input.append(onnx.ValueInfoProto(name=name, type=type_))
        for position, side in enumerate(self.sides):
            name, place = self._named(f"out{position}"), self.types.slot(side)
            self._add(App(IDENTITY, ()), {}, [self._value(side)], [name])
            output = onnx.ValueInfoProto(name=name, type=type_to_proto(TensorType(self.types.draw(place))))
            self.graph.output.append(output)
        model = onnx.ModelProto(ir_version=10, graph=self.graph, opset_import=self._opsets(), producer_name="graphopt")
        return _with_shapes(model)  # an output has to state its rank

    def _opsets(self) -> list[onnx.OperatorSetIdProto]:
        domains = {app.domain for side in self.sides for app in operator_applications(side)} - {""}
        used = [app for side in self.sides for app in operator_applications(side) if not app.domain]
        known = all(schemas.schema(app.op, "", schemas.MAX_LOADED_OPSET) for app in used)
        opset = schemas.MAX_LOADED_OPSET if known else schemas.RULE_OPSET
        return [onnx.OperatorSetIdProto(domain=d, version=opset if not d else 1) for d in ("", *sorted(domains))]

    def _value(self, term: Term) -> str:
        """Return the name of a value, written first if need be."""
        match term:
            case Var(name=name, kind="tensor") if name not in self.rule.arange_conditions:
                return name
            case Var(name=name):
                array = array_of(self.rule, self.instance, name)
                if self.as_written and name in self.instance.stored_shapes:
                    array = _reduced(array, self.instance.stored_shapes[name])
                return self._constant(name, array)
            case App():
                if term not in self.names:
                    self._write(term)
                return self.names[term]
        raise AssertionError(f"{term} stands for no tensor")

    def _write(self, app: App) -> None:
        context = ProposalContext(app, signature_of(app), [], {}, None)  # type: ignore[arg-type]  # nothing is proposed here
        attrs: dict[str, Any] = dict(self.instance.values[app.attributes_hole.name]) if app.attributes_hole else {}
        attrs |= {name: evaluate_scalar_at(value, self.rule, self.instance) for name, value in app.attrs}
        if attrs.get("auto_pad", "NOTSET") != "NOTSET":
            attrs.pop("pads", None)  # the two exclude each other
        if lookup_operator(app.op, app.domain).result_dtype_source is ResultDtypeSource.TARGET:
            if "to" not in attrs:
                raise NoInstance("a cast to nothing")
            self.types.restrict((app.node, 0), {DType(attrs["to"])})
        inputs = [self._input(context, position, arg) for position, arg in enumerate(app.inputs)]
        while inputs and not inputs[-1]:
            inputs.pop()
        outputs = [App(app.op, app.args, app.attrs, app.domain, i, app.outputs) for i in range(app.outputs)]
        for output in outputs:
            self.names[output] = self._named(f"v{len(self.names)}")
        self._add(app, attrs, inputs, [self.names[output] for output in outputs])

    def _input(self, context: ProposalContext, position: int, arg: Term | None) -> str:
        if arg is None or (self.as_written and isinstance(arg, Var) and self.instance.values[arg.name] is None):
            return ""
        if not is_scalar(arg):
            return self._value(arg)
        dtype = self.types.draw((context.app.node, context.signature.input(position).variable))
        array = scalar_array(context, position, evaluate_scalar_at(arg, self.rule, self.instance), dtype)
        return self._constant(self._named(f"c{len(self.graph.initializer)}"), array)

    def _named(self, name: str) -> str:
        """Return a name that no hole has."""
        return self._named(f"{name}_") if name in self.rule.holes else name

    def _constant(self, name: str, array: Array) -> str:
        if all(present.name != name for present in self.graph.initializer):
            self.graph.initializer.append(tensor_to_proto(Tensor.from_array(array), name))
        return name

    def _add(self, app: App, attrs: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> None:
        self.graph.node.append(node_proto(app, attrs, inputs, outputs))


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the shapes that onnx infers.

    Raises:
        NoInstance: a Slice reads what has an axis of negative size, as a Pad may make it; onnx would end the process.
    """
    for position, node in enumerate(model.graph.node):
        if node.op_type == "Slice":
            before = onnx.ModelProto()
            before.CopyFrom(model)
            del before.graph.node[position:], before.graph.output[:]
            values = onnx.shape_inference.infer_shapes(before).graph.value_info
            if any(dim.dim_value < 0 for value in values for dim in value.type.tensor_type.shape.dim):
                raise NoInstance("a size is negative")
    return onnx.shape_inference.infer_shapes(model)


def _reduced(array: Array, shape: Shape) -> Array:
    """Return the array in a shape that broadcasts to its own."""
    while len(shape) > array.ndim:
        array = array[np.newaxis]
    for _ in range(array.ndim - len(shape)):
        array = array[0]
    for axis, size in enumerate(shape):
        array = array.take(range(size), axis)
    return array


_LISTS = frozenset({"axes", "shape", "starts", "ends", "steps", "pads", "repeats", "split", "K", "sizes", "scales"})
"""Inputs that have rank 1 also where one number is meant."""


def scalar_array(context: ProposalContext, position: int, value: Any, dtype: DType) -> Array:
    """Return the number or list in an input position as a tensor.

    Raises:
        NoInstance: the element type does not hold it.
    """
    try:
        array = np.asarray(value, dtype.numpy)
    except (OverflowError, ValueError) as error:
        raise NoInstance(str(error)) from error
    if dtype.is_float and any(dtype.round_to_dtype(float(number)) is None for number in np.atleast_1d(value)):
        raise NoInstance(f"{dtype.name} does not hold {value}, so that no model has it there, nor a rewrite")
    formal = context.signature.input(position).name
    return array.reshape(-1) if formal in _LISTS else array


def node_proto(app: App, attrs: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    try:
        typed = {name: _typed(signature_of(app).attributes[name][0], value) for name, value in attrs.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise NoInstance(f"{app.op}: {error}") from error
    return node_to_proto(Node(app.op, (), (), (), typed, app.domain), inputs, outputs)


def _typed(kind: OpSchema.AttrType, value: Any) -> Any:
    match kind:
        case OpSchema.AttrType.FLOAT:
            return float(value)
        case OpSchema.AttrType.FLOATS:
            return tuple(map(float, value))
        case OpSchema.AttrType.INT:
            return int(value)
        case OpSchema.AttrType.INTS:
            return tuple(map(int, value))
    return value
