"""A model as a list of steps, read off a message in order to draw inputs for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper

from graphopt.base.dtype import DType
from graphopt.ir.graph import CONSTANT, IDENTITY
from graphopt.ir.schemas import normalize_domain
from graphopt.operators import proto_conversion
from graphopt.operators.operator import Operator
from graphopt.operators.operator_classes import lookup_operator


@dataclass(frozen=True, slots=True)
class FlatNode:
    """A node as seen from the main graph: function calls are replaced by what they do, bodies are laid out flat."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    node: NodeProto

    @property
    def domain(self) -> str:
        return normalize_domain(self.node.domain)

    @property
    def operator(self) -> Operator:
        """The facts of its operator."""
        return lookup_operator(self.op, self.domain)


@dataclass(frozen=True)
class ModelInput:
    """An input of a model as it is declared."""

    name: str
    kind: str
    """tensor, sequence or map; for the last two `dtype` and `shape` are those of an element."""
    dtype: DType
    shape: tuple[int | str, ...] | None
    has_default: bool = False
    keys: DType = DType.UNDEFINED
    """Key type of a map."""

    def __str__(self) -> str:
        text = str(self.dtype.name) + ("" if self.shape is None else f"[{','.join(map(str, self.shape))}]")
        return text if self.kind == "tensor" else f"{self.kind}({text})"


@dataclass(frozen=True)
class ModelSketch:
    """Facts of a model that are known without running it or reading its weights."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    nodes: tuple[FlatNode, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of constants and of values whose sizes the model declares as numbers."""
    types: Mapping[str, DType]
    """Element types of inputs, constants and values, where the model declares them."""
    weight_bytes: int = 0
    defaults: Mapping[str, TensorProto] = field(default_factory=dict)
    """The initializers that are inputs too."""
    boolean_constants: Mapping[str, bool] = field(default_factory=dict)
    """The constants that are one truth value each."""

    @property
    def required(self) -> tuple[ModelInput, ...]:
        return tuple(i for i in self.inputs if not i.has_default)

    @cached_property
    def readers(self) -> Mapping[str, list[tuple[FlatNode, int]]]:
        found: dict[str, list[tuple[FlatNode, int]]] = {}
        for step in self.nodes:
            for slot, name in enumerate(step.inputs):
                found.setdefault(name, []).append((step, slot))
        return found

    @cached_property
    def needed_values(self) -> frozenset[str]:
        """The values that some output depends on."""
        makers: dict[str, list[FlatNode]] = {}
        for step in self.nodes:
            for name in filter(None, step.outputs):
                makers.setdefault(name, []).append(step)
        found, stack = set(self.outputs), [*self.outputs]
        while stack:
            fresh = {name for step in makers.get(stack.pop(), ()) for name in step.inputs} - found
            found |= fresh
            stack += fresh
        return frozenset(found)

    @cached_property
    def producers(self) -> Mapping[str, FlatNode]:
        return {name: step for step in self.nodes for name in step.outputs if name}


def sketch_model(model: ModelProto) -> ModelSketch:
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    steps = tuple(_Flattener(model).graph(graph, {}))
    literals = {s.outputs[0]: a.t for s in steps for a in s.node.attribute if s.op == CONSTANT and a.HasField("t")}
    inputs = tuple(_model_input(value, value.name in constants) for value in graph.input)
    declared = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    declared |= {name: tensor.data_type for name, tensor in (literals | constants).items()}
    types = {name: _to_dtype(number) for name, number in declared.items()} | {
        given.name: given.dtype for given in inputs
    }
    defaults = {value.name: constants[value.name] for value in graph.input if value.name in constants}
    truths = {name: _boolean_value(tensor) for name, tensor in (literals | constants).items() if name not in defaults}
    dims = {value.name: _declared_dims(value.type.tensor_type) for value in (*graph.value_info, *graph.input)}
    static = {name: tuple(size for size in sizes or () if isinstance(size, int)) for name, sizes in dims.items()}
    return ModelSketch(
        inputs,
        tuple(value.name for value in graph.output),
        steps,
        {name: sizes for name, sizes in static.items() if sizes and sizes == dims[name]}
        | {name: tuple(tensor.dims) for name, tensor in (literals | constants).items()},
        {name: dtype for name, dtype in types.items() if dtype is not DType.UNDEFINED},
        sum(map(tensor_proto_bytes, (*constants.values(), *literals.values()))),
        defaults,
        {name: truth for name, truth in truths.items() if truth is not None},
    )


def _boolean_value(tensor: TensorProto) -> bool | None:
    """Return the single truth value that a tensor holds; None where it holds anything else."""
    if tensor.data_type != TensorProto.BOOL or prod(tensor.dims) != 1 or tensor.external_data:
        return None
    try:
        return bool(numpy_helper.to_array(tensor).all())
    except ValueError:  # it is damaged, which is said where the model is loaded
        return None


def tensor_proto_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's elements, wherever they lie."""
    dtype = _to_dtype(tensor.data_type)
    return prod(tensor.dims) * dtype.bits // 8 if dtype is not DType.UNDEFINED else 0


def _to_dtype(number: int) -> DType:
    return DType(number) if number in _KNOWN_DTYPES else DType.UNDEFINED


_KNOWN_DTYPES = frozenset(map(int, DType))


def _declared_dims(proto: TypeProto.Tensor) -> tuple[int | str, ...] | None:
    if not proto.HasField("shape"):
        return None
    return tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else proto_conversion.dim_name(d)
        for d in proto.shape.dim
    )


def _model_input(value: onnx.ValueInfoProto, has_default: bool) -> ModelInput:
    proto, kind, keys = value.type, "tensor", DType.UNDEFINED
    while proto.WhichOneof("value") != "tensor_type":
        match proto.WhichOneof("value"):
            case "optional_type":
                proto = proto.optional_type.elem_type
            case "sequence_type":
                proto, kind = proto.sequence_type.elem_type, "sequence"
            case "map_type":
                keys = _to_dtype(proto.map_type.key_type)
                proto, kind = proto.map_type.value_type, "map"
            case _:
                return ModelInput(value.name, "unknown", DType.UNDEFINED, None, has_default)
    shape = _declared_dims(proto.tensor_type)
    if shape is not None:
        shape = tuple(d if d != "" else f"{value.name}.{axis}" for axis, d in enumerate(shape))
    return ModelInput(value.name, kind, _to_dtype(proto.tensor_type.elem_type), shape, has_default, keys)


class _Flattener:
    """Lists the steps of a model; names within a call of a function get a prefix of their own."""

    def __init__(self, model: ModelProto) -> None:
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.calls = 0

    def graph(self, graph: GraphProto, scope: Mapping[str, str], prefix: str = "") -> Iterator[FlatNode]:
        for node in graph.node:
            yield from self.node(node, scope, prefix)

    def node(self, node: NodeProto, scope: Mapping[str, str], prefix: str) -> Iterator[FlatNode]:
        def outer(name: str) -> str:
            return scope.get(name, prefix + name) if name else ""

        inputs, outputs = tuple(map(outer, node.input)), tuple(map(outer, node.output))
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None and prefix.count("/") < 32:  # functions that call themselves are not legal
            self.calls += 1
            inside = dict(zip(function.input, inputs, strict=False)) | dict(zip(function.output, outputs, strict=False))
            for inner in function.node:
                yield from self.node(inner, inside, f"{prefix}{self.calls}/")
            return
        yield FlatNode(node.op_type, inputs, outputs, node)
        first = 1 if node.op_type == "Loop" else 0  # its body also gives the condition
        for body in _node_bodies(node):
            yield from _alias_nodes(inputs, (outer(value.name) for value in body.input))
            yield from self.graph(body, scope, prefix)
            made = tuple(outer(value.name) for value in body.output)
            repeated = made if node.op_type in ("Loop", "Scan") else ()  # each turn may read all that the last one made
            yield from _alias_nodes(made[first:], outputs, also=repeated)


def _alias_nodes(sources: Iterable[str], targets: Iterable[str], also: Sequence[str] = ()) -> Iterator[FlatNode]:
    """Yield nodes for what enters and leaves a body, the same value under two names, and for what else it depends
    on."""
    return (FlatNode(IDENTITY, (a, *also), (b,), NodeProto()) for a, b in zip(sources, targets, strict=False))


def iter_operators(model: ModelProto) -> Iterator[str]:
    """Yield the operator of each node of a model, of its bodies and of its functions."""
    for node in chain(model.graph.node, *(function.node for function in model.functions)):
        yield from _node_operators(node)


def may_trap_on_division(outline: ModelProto) -> bool:
    """Return whether a model may divide integers by 0, or the least of them by -1: that has no result in their type,
    and ONNX Runtime ends the process.

    It may wherever the divisor is not a constant without 0 and -1.
    """
    if not any(lookup_operator(name).divides_integers for name in iter_operators(outline)):
        return False
    if not outline.functions and not _graph_may_trap_on_division(outline.graph, {}, {}):
        return False
    try:
        inlined = onnx.inliner.inline_local_functions(outline) if outline.functions else outline
        typed = onnx.shape_inference.infer_shapes(inlined)
    except Exception:  # whatever is wrong with it: nothing is known of its types
        return True
    return _graph_may_trap_on_division(typed.graph, {}, {})


def _graph_may_trap_on_division(
    graph: GraphProto, types: Mapping[str, int], constants: Mapping[str, TensorProto]
) -> bool:
    declared = chain(graph.input, graph.value_info, graph.output)
    types = {**types, **{value.name: value.type.tensor_type.elem_type for value in declared}}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    overridden = {value.name for value in graph.input}
    constants = {**constants, **{t.name: t for t in graph.initializer if t.name not in overridden}}
    for node in graph.node:
        if node.op_type == CONSTANT:
            constants |= {name: a.t for a in node.attribute if a.name == "value" for name in node.output}
        if lookup_operator(node.op_type, normalize_domain(node.domain)).divides_integers:
            is_float = any(types.get(name) and _to_dtype(types[name]).is_float for name in node.input)
            if not is_float and not _is_safe_divisor(constants.get(node.input[-1])):
                return True
        if any(_graph_may_trap_on_division(body, types, constants) for body in _node_bodies(node)):
            return True
    return False


def _is_safe_divisor(divisor: TensorProto | None) -> bool:
    """Return whether a divisor is known to hold neither 0 nor -1."""
    if divisor is None or divisor.data_location == TensorProto.EXTERNAL:
        return False
    try:
        return not bool(np.isin(numpy_helper.to_array(divisor), (0, -1)).any())
    except ValueError:  # its elements were left out
        return False


def _node_operators(node: NodeProto) -> Iterator[str]:
    yield node.op_type
    for inner in chain.from_iterable(body.node for body in _node_bodies(node)):
        yield from _node_operators(inner)


def _node_bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
