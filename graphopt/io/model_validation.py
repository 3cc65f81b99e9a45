"""Conditions that every legal model fulfils, checked on the message before anything reads it: one error names node
and field.

Further in, code may rely on it: texts are UTF-8, element types are known, and a node of an operator that the onnx
package knows has as many inputs and outputs, and attributes of the kinds, as its schema says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
)

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.io import opset_conversion
from graphopt.ir import schemas
from graphopt.ir.graph import CONSTANT
from graphopt.operators.proto_conversion import attribute_kind

MAX_OPSET = 2**31 - 1
"""Greatest opset that the onnx package can take."""


def validate_model(model: ModelProto) -> None:
    """Check a model.

    Raises:
        ModelError: something in it is not what ONNX says; names the node, and the field.
    """
    _check_texts(model)
    functions = function_names(model)
    _GraphValidator(_opset_imports(model), functions).check_graph(model.graph)
    _check_inputs(model.graph)
    _check_expansion_size(model)
    for function in model.functions:
        imports = _opset_imports(function)
        for node in function.node:
            _GraphValidator(imports, functions, f" of the function '{function.name}'").check_node(node)


def function_names(model: ModelProto) -> frozenset[tuple[str, str]]:
    """Return the local functions of a model, by domain and name."""
    return frozenset((schemas.normalize_domain(function.domain), function.name) for function in model.functions)


def proto_label(node: NodeProto) -> str:
    """Return what a node is called in errors."""
    return f"node {node.op_type} '{node.name or next(iter(node.output), '')}'"


def _opset_imports(proto: ModelProto | FunctionProto) -> Mapping[str, int]:
    found = {schemas.normalize_domain(entry.domain): entry.version for entry in proto.opset_import}
    for domain, version in found.items():
        if not 1 <= version <= MAX_OPSET:
            raise ModelError(f"there is no opset {version} of '{domain or 'ai.onnx'}'")
    return found


# -- texts -------------------------------------------------------------------------------------------------------------


@cache
def _text_fields(kind: Descriptor) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Return the fields of a kind of message that hold texts, and those that hold messages: the name, and whether it is
    a list; lists last."""
    fields = sorted(kind.fields, key=lambda each: each.is_repeated)
    texts = [(each.name, each.is_repeated) for each in fields if each.type == FieldDescriptor.TYPE_STRING]
    return texts, [(each.name, each.is_repeated) for each in fields if each.message_type is not None]


def _check_texts(message: Message, place: str = "the model") -> None:
    """Raise ModelError for the first text that is not UTF-8, which protobuf hands out as bytes."""
    texts, messages = _text_fields(message.DESCRIPTOR)
    for name, is_list in texts:
        value = getattr(message, name)
        for text in value if is_list else (value,):
            if isinstance(text, bytes):
                raise ModelError(f"'{name}' of {place} is not UTF-8: {text[:60]!r}")
    for name, is_list in messages:
        if is_list:
            for child in getattr(message, name):
                _check_texts(child, _child_place(place, child))
        elif message.HasField(name):
            _check_texts(getattr(message, name), place)


def _child_place(place: str, child: Message) -> str:
    match child:
        case NodeProto():
            return f"the {proto_label(child)}"
        case TensorProto():
            return f"the tensor '{child.name}'"
    return place


# -- graphs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GraphValidator:
    """Checks graphs and nodes that import some opsets."""

    imports: Mapping[str, int]
    functions: frozenset[tuple[str, str]]
    place: str = ""
    """The end of a node's label."""

    def check_graph(self, graph: GraphProto) -> None:
        for info in (*graph.input, *graph.output, *graph.value_info):
            for type_ in _tensor_types(info.type):
                if type_.elem_type and type_.elem_type not in _KNOWN_DTYPES:  # it may be left out
                    raise ModelError(f"the value '{info.name}' has the unknown element type {type_.elem_type}")
        for tensor in graph.initializer:
            _check_tensor(tensor, f"tensor '{tensor.name}'")
        for node in graph.node:
            self.check_node(node)

    def check_node(self, node: NodeProto) -> None:
        domain = schemas.normalize_domain(node.domain)
        # a definition may be of some uses of an operator, and says nothing of others
        own = (domain, node.op_type) in self.functions or schemas.is_defined_operator(node.op_type, domain)
        version = 0 if own else opset_conversion.schema_version(node.op_type, domain, self.imports)
        form = (version and schemas.schema_form(node.op_type, domain, version)) or _UNKNOWN_OPERATOR
        names = set[str]()
        for attribute in node.attribute:
            if attribute.name in names:
                raise self.error(node, f"has the attribute '{attribute.name}' twice")
            names.add(attribute.name)
            self.check_attribute(node, attribute, form.kinds.get(attribute.name))
        if version:
            self.check_against_schema(node, form, names)

    def error(self, node: NodeProto, what: str) -> ModelError:
        return ModelError(f"{proto_label(node)}{self.place} {what}")

    def check_against_schema(self, node: NodeProto, form: schemas.SchemaForm, names: set[str]) -> None:
        """Raise ModelError for a node that is not as the schema of its operator says."""
        # Of a Constant ONNX Runtime takes a value_int also in the opsets before it was defined.
        is_told = node.op_type == CONSTANT and any("value" in name for name in names)
        for missing in form.required_attributes - names if not is_told else ():
            raise self.error(node, f"lacks the attribute '{missing}'")
        for what, values, (least, most) in (("input", node.input, form.inputs), ("output", node.output, form.outputs)):
            if not least <= len(values) <= most:
                bound = "" if least == most else "at least " if len(values) < least else "at most "
                wanted = least if len(values) < least else most
                raise self.error(node, f"has {len(values)} {what}s, not {bound}{wanted}")
        for index in form.required_inputs:
            if not node.input[index]:
                raise self.error(node, f"lacks its input {index}")
        parts = next((each.i for each in node.attribute if each.name == "num_outputs"), None)
        if parts not in (None, len(node.output)):  # the onnx package's inference ends the process
            raise self.error(node, f"has {len(node.output)} outputs, but its num_outputs is {parts}")

    def check_attribute(self, node: NodeProto, attribute: AttributeProto, wanted: int | None) -> None:
        kind = attribute_kind(attribute)
        if wanted is not None and kind not in (wanted, AttributeProto.UNDEFINED):
            kinds = AttributeProto.AttributeType
            raise self.error(
                node, f"has an attribute '{attribute.name}' of the kind {kinds.Name(kind)}, not {kinds.Name(wanted)}"
            )
        if attribute.ref_attr_name:
            return
        here = f"attribute '{attribute.name}' of {proto_label(node)}{self.place}"
        if (
            wanted is not None
            and attribute.name in DTYPE_ATTRIBUTES
            and kind == AttributeProto.INT
            and attribute.i not in _KNOWN_DTYPES
        ):
            raise ModelError(f"{here} is the unknown element type {attribute.i}")
        for tensor in _attribute_tensors(attribute, kind):
            _check_tensor(tensor, here)
        for body in _attribute_graphs(attribute, kind):
            self.check_graph(body)


def _attribute_tensors(attribute: AttributeProto, kind: int) -> Iterable[TensorProto]:
    match kind:
        case AttributeProto.TENSOR:
            return (attribute.t,)
        case AttributeProto.SPARSE_TENSOR:
            return (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
    return tuple(attribute.tensors)


def _attribute_graphs(attribute: AttributeProto, kind: int) -> Iterable[GraphProto]:
    return (attribute.g,) if kind == AttributeProto.GRAPH else attribute.graphs


DTYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes that name an element type, in all operators that have one of that name."""

_KNOWN_DTYPES = frozenset(int(dtype) for dtype in DType) - {0}


_UNKNOWN_OPERATOR = schemas.SchemaForm()


# -- local functions ---------------------------------------------------------------------------------------------------

MAX_EXPANDED_NODES = 1_000_000
"""Nodes that the local functions of a model may stand for: they are put in the place of their calls."""

FunctionKey: TypeAlias = tuple[str, str, str]


def _check_expansion_size(model: ModelProto) -> None:
    """Raise ModelError for functions that call themselves, or that stand for too many nodes to be inlined."""
    if not model.functions:
        return
    functions = {function_key(each.domain, each.name, each.overload): each for each in model.functions}
    nodes = {key: [*all_nodes(function.node)] for key, function in functions.items()}
    calls = {
        key: [called for node in found if (called := called_function(node)) in functions]
        for key, found in nodes.items()
    }
    counts: dict[FunctionKey, int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            counts[key] = len(nodes[key]) + sum(counts[called] for called in calls[key])
    except CycleError as error:
        raise ModelError(f"the function '{error.args[1][0][1]}' calls itself") from error
    found = sum(1 + counts.get(called_function(node), 0) for node in all_nodes(model.graph.node))
    if found > MAX_EXPANDED_NODES:
        raise ModelError(
            f"the model's local functions stand for {found:,} nodes, more than can be inlined ({MAX_EXPANDED_NODES:,})"
        )


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, and those in their bodies."""
    stack = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        stack += (iter(body.node) for body in reversed([*body_protos(node)]))


def called_function(node: NodeProto) -> FunctionKey:
    """Return the key of the function that a node calls, if it is one."""
    return function_key(node.domain, node.op_type, node.overload)


def function_key(domain: str, name: str, overload: str) -> FunctionKey:
    """Return the key that tells a function from others: its domain, name and overload."""
    return schemas.normalize_domain(domain), name, overload


def body_protos(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among the attributes of a node."""
    for attribute in node.attribute:
        yield from _attribute_graphs(attribute, attribute_kind(attribute))


# -- tensors and types -------------------------------------------------------------------------------------------------


def _check_tensor(proto: TensorProto, here: str) -> None:
    """Raise ModelError for a tensor of an unknown type, or of sizes that cannot be."""
    if proto.data_type not in _KNOWN_DTYPES:
        raise ModelError(f"{here} has the unknown element type {proto.data_type}")
    if any(size < 0 for size in proto.dims):
        raise ModelError(f"{here} has a negative size: {list(proto.dims)}")


def _tensor_types(proto: TypeProto) -> Iterator[TypeProto.Tensor | TypeProto.SparseTensor]:
    """Yield the types of tensors that a type is made of."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            yield proto.tensor_type
        case "sparse_tensor_type":
            yield proto.sparse_tensor_type
        case "sequence_type":
            yield from _tensor_types(proto.sequence_type.elem_type)
        case "optional_type":
            yield from _tensor_types(proto.optional_type.elem_type)
        case "map_type":
            yield from _tensor_types(proto.map_type.value_type)


def _check_inputs(graph: GraphProto) -> None:
    """Raise ModelError for an input without a type, or an initializer that is declared as something else."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for info in graph.input:
        if info.name in weights:
            _check_initializer_declaration(info, weights[info.name])
        elif not all(tensor.elem_type for tensor in _tensor_types(info.type)) or not info.type.WhichOneof("value"):
            raise ModelError(f"the input '{info.name}' states no element type")


def _check_initializer_declaration(info: ValueInfoProto, tensor: TensorProto) -> None:
    declared = info.type.tensor_type
    here = f"the initializer '{info.name}'"
    if declared.elem_type and declared.elem_type != tensor.data_type:
        names = DType(tensor.data_type).name, DType(declared.elem_type).name
        raise ModelError(f"{here} is of type {names[0]}, but declared {names[1]} as an input")
    sizes = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in declared.shape.dim]
    fits = len(sizes) == len(tensor.dims) and all(
        isinstance(size, str) or size in (own, -1) for size, own in zip(sizes, tensor.dims, strict=True)
    )
    if declared.HasField("shape") and not fits:
        raise ModelError(f"{here} has the sizes {list(tensor.dims)}, but is declared {sizes} as an input")
