"""Types and known contents, node by node.

The base is the onnx package's own inference, with the node's own schema; `infer_shapes` adds sizes that are symbols and
`infer_contents` the values of small integer tensors. What a model declares is believed where inference knows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from onnx import TensorProto, TypeProto, checker, numpy_helper, shape_inference
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.expr.dims import DerivedAtom, Dim, DimAtom, SymbolicDim, UnknownAtom, count_from_one, lower_bound
from graphopt.ir import schemas
from graphopt.ir.edit import DraftGraph, needed_vertices
from graphopt.ir.graph import CAPTURE, Graph, Node, Patch, Value
from graphopt.ir.types import Shape, TensorType, Type
from graphopt.operators import declared_operators
from graphopt.operators.movement_ops import ENDLESS_ENDS
from graphopt.operators.node_operands import (
    MAX_SHAPE_ELEMENTS,
    NodeOperands,
    PartialShape,
    normalize_axis,
    static_sizes,
)
from graphopt.operators.operator_classes import is_broadcasting
from graphopt.operators.proto_conversion import node_to_proto, type_from_proto, type_to_proto
from graphopt.operators.symbolic_shapes import infer_contents, infer_shapes

log = logging.getLogger(__name__)

CEIL_MODE_POOLS = ("AveragePool", "LpPool", "MaxPool")
"""Operators of which schemas before opset 22 count windows that begin behind the data: ONNX Runtime never does."""

# -- one node ----------------------------------------------------------------------------------------------------------


def infer_node(graph: Graph, node: Node, *, strict: bool = False) -> Node:
    """Return the node with all that can be inferred of its outputs; the same object if that is nothing new.

    Its bodies are inferred first, in place, with what flows into them. Inference wins over what the node declares,
    except where it knows nothing; a model may declare sizes that were true of another batch size, as ONNX Runtime
    lets it.

    Raises:
        ModelError: the element type is not what the node declares; with `strict`, also a size that contradicts it,
            and a node that cannot be.
    """
    for body, patch in body_input_patches(graph, node):
        body.apply(patch)
    for body in node.bodies if _is_control_flow(node) else ():
        infer_graph(body)
    return node if node.is_internal else _infer_without_bodies(graph, node, strict)


def _infer_without_bodies(graph: Graph, node: Node, strict: bool = False) -> Node:
    """Do as `infer_node` does, but read the types of bodies as they are."""
    mark = _unknown_size_mark()
    inferred = _infer_output_types(graph, node, mark, strict)
    types = tuple(
        _merge_types(found, declared, mark, f"{_node_label(node)} output {i}", strict)
        for i, (found, declared) in enumerate(zip(inferred, node.types, strict=True))
    )
    known = _infer_node_contents(graph, node, types)
    if types == node.types and known == node.contents:
        return node
    return replace(node, types=types, contents=known)


def _node_label(node: Node) -> str:
    return f"node '{node.label}' ({node.op})"


def _infer_output_types(graph: Graph, node: Node, mark: int, strict: bool) -> list[Type | None]:
    if _is_control_flow(node):
        found = _CONTROL_FLOW_INFERENCE[node.op](graph, node)
        return [*found, *[None] * (len(node.names) - len(found))][: len(node.names)]
    if node.version and schemas.is_defined_operator(node.op, node.domain):
        return declared_operators.infer_declared_types(graph, node, infer_node)
    base = _infer_by_onnx(graph, node, strict)
    if base is None:
        return [None] * len(node.names)
    is_open = any(
        isinstance(type_, TensorType) and (type_.shape is None or any(_is_newer(size, mark) for size in type_.shape))
        for type_ in base
    )
    refined = infer_shapes(NodeOperands(graph, node)) if is_open else []
    return [_refine(own, more) for own, more in zip(base, [*refined, *[None] * len(base)], strict=False)]


def _refine(base: Type | None, shape: PartialShape | None) -> Type | None:
    """Return the type that the onnx package found, with sizes in the place of those it left open."""
    if not isinstance(base, TensorType) or shape is None:
        return base
    own: Sequence[Dim | None] = (None,) * len(shape) if base.shape is None else base.shape
    if len(own) != len(shape):
        return base
    sizes = [
        a if isinstance(a, int) or b is None or (isinstance(b, int) and b < 0) else b
        for a, b in zip(own, shape, strict=True)
    ]
    return TensorType(base.dtype, tuple(SymbolicDim.fresh() if size is None else size for size in sizes))


def _infer_by_onnx(graph: Graph, node: Node, strict: bool) -> list[Type | None] | None:
    """Return the types that the onnx package infers for the outputs; None if it rejects the node."""
    schema = schemas.schema_of(node)
    if node.op in CEIL_MODE_POOLS and not node.domain and node.attrs.get("ceil_mode"):
        schema = schemas.schema(node.op)
    if schema is None or node.has_bodies:
        return [None] * len(node.names)
    if node.op == "Squeeze" and len(node.inputs) > 1 and node.inputs[1] and graph.known_contents(node.inputs[1]) == ():
        return [TensorType(graph.dtype(value), None) for value in node.inputs[:1] if value]  # ONNX Runtime: of all axes
    if node.op == "NonZero" and graph.shape(node.inputs[0]) == ():  # ONNX: of no row, ONNX Runtime: of one
        return [TensorType(DType.INT64, (SymbolicDim.fresh(), SymbolicDim.fresh()))]
    if not schema.has_type_and_shape_inference_function:
        return [_type_from_schema(schema, graph, node, i) for i in range(len(node.names))]
    inputs = ["" if value is None else str(i) for i, value in enumerate(node.inputs)]
    outputs = [f"o{i}" if name else "" for i, name in enumerate(node.names)]
    present = [(name, value) for name, value in zip(inputs, node.inputs, strict=True) if value is not None]
    types = {name: _type_proto(graph.value_type(value)) for name, value in present}
    ends = graph.known_contents(node.inputs[2]) if node.op == "Slice" and len(node.inputs) > 4 else None
    is_misread = any(end in ENDLESS_ENDS for end in ends or ())  # by the onnx package, not by ONNX Runtime
    reads_data = not is_broadcasting(node.op, node.domain) and not is_misread
    data = {
        name: proto
        for name, value in present
        if reads_data and (proto := _small_tensor_proto(graph, value)) is not None
    }
    try:
        found = shape_inference.infer_node_outputs(schema, node_to_proto(node, inputs, outputs), types, data)
    except (shape_inference.InferenceError, checker.ValidationError, ValueError, RuntimeError) as error:
        if strict and all(graph.value_type(value) is not None for _, value in present):
            raise ModelError(f"{_node_label(node)} cannot be: {str(error).strip().splitlines()[0]}") from error
        log.debug("nothing is inferred of %s: %s", _node_label(node), error)
        return None
    sizes = {repr(size): size for _, value in present for size in symbolic_sizes(graph.value_type(value))}
    known = [type_from_proto(found[name], sizes) if name in found else None for name in outputs]
    return [_type_from_schema(schema, graph, node, i) if type_ is None else type_ for i, type_ in enumerate(known)]


def _type_from_schema(schema: OpSchema, graph: Graph, node: Node, output: int) -> Type | None:
    """Return the element type that a schema gives an output: the only one, or that of an input with the same
    variable."""
    if output >= len(schema.outputs):
        return None
    allowed, text = schema.outputs[output].types, schema.outputs[output].type_str
    if len(allowed) == 1 and next(iter(allowed)) in DTYPES_BY_TYPE_STRING:
        return TensorType(DTYPES_BY_TYPE_STRING[next(iter(allowed))])
    same = [value for formal, value in zip(schema.inputs, node.inputs, strict=False) if formal.type_str == text]
    types = [graph.tensor_type(value) for value in same]
    return next((TensorType(type_.dtype) for type_ in types if type_ is not None), None)


DTYPES_BY_TYPE_STRING = {f"tensor({dtype.name.lower()})": dtype for dtype in DType}


@lru_cache(4096)
def _type_proto(type_: Type | None) -> TypeProto:
    return type_to_proto(type_, repr)  # unlike its text, it is of this size only


def symbolic_sizes(type_: Type | None) -> Iterator[SymbolicDim]:
    """Yield the sizes of a type that are no numbers."""
    if isinstance(type_, TensorType) and type_.shape is not None:
        yield from (size for size in type_.shape if isinstance(size, SymbolicDim))


def _small_tensor_proto(graph: Graph, value: Value) -> TensorProto | None:
    """Return the values of a small tensor where inference may look at them: sizes, axes, pads, scales."""
    constant = graph.constant(value)
    if constant is not None:
        if constant.size > MAX_SHAPE_ELEMENTS or constant.dtype is DType.STRING or len(constant.shape) > 1:
            return None
        return numpy_helper.from_array(np.asarray(constant.numpy()).reshape(constant.shape))
    elements, type_ = static_sizes(graph.known_contents(value)), graph.tensor_type(value)
    if elements is None or type_ is None or type_.shape is None:
        return None
    shape = () if type_.shape == () else (len(elements),)
    return numpy_helper.from_array(np.array(elements, type_.dtype.numpy).reshape(shape))


def _unknown_size_mark() -> int:
    """Return a mark: unknown sizes made from now on have a greater number."""
    atom = SymbolicDim.fresh().atom
    assert isinstance(atom, UnknownAtom)
    return atom.serial


def _is_newer(dim: Dim, mark: int) -> bool:
    """Return whether an unknown size was made after the mark was taken, so that inference knows nothing of it."""
    atom = dim.atom if isinstance(dim, SymbolicDim) else None
    return isinstance(atom, UnknownAtom) and atom.serial > mark


def _merge_types(found: Type | None, declared: Type | None, mark: int, label: str, strict: bool) -> Type | None:
    if not isinstance(found, TensorType) or not isinstance(declared, TensorType):
        return declared if found is None or (not isinstance(found, TensorType) and declared is not None) else found
    if found.dtype != declared.dtype:
        raise ModelError(f"{label} is declared {declared}, but computes {found}")
    if found.shape is None or declared.shape is None:
        return found  # a shape that nothing confirms is not believed: rewrites would rest on it
    has_same_rank, pairs = len(found.shape) == len(declared.shape), list(zip(found.shape, declared.shape, strict=False))
    if strict and not (has_same_rank and all(not isinstance(a - b, int) or a == b for a, b in pairs)):
        raise ModelError(f"{label} is declared {declared}, but computes {found}")
    if not has_same_rank:
        return found
    return TensorType(found.dtype, tuple(own if _is_newer(size, mark) else size for size, own in pairs))


def _infer_node_contents(graph: Graph, node: Node, types: Sequence[Type | None]) -> tuple[tuple[Dim, ...] | None, ...]:
    """Return the elements of outputs of rank <= 1; () where none are known."""
    small = [
        t.dtype if isinstance(t, TensorType) and t.shape is not None and len(t.shape) <= 1 else None for t in types
    ]
    if not any(dtype is not None and (dtype.is_integer or dtype is DType.BOOL) for dtype in small):
        return ()
    found = infer_contents(NodeOperands(graph, node), small)
    sizes = [t.size if isinstance(t, TensorType) else None for t in types]
    consistent = [
        None if elements is None or (isinstance(size, int) and size != len(elements)) else elements
        for elements, size in zip(found, sizes, strict=True)
    ]
    return tuple(consistent) if any(elements is not None for elements in consistent) else ()


# -- whole graphs ------------------------------------------------------------------------------------------------------


def infer_graph(graph: Graph, *, strict: bool = False) -> None:
    """Infer every node, producers first, in place; bodies too, with what flows into them."""
    draft = DraftGraph(graph)
    for vertex in graph.topological_order():
        node = infer_node(draft, draft[vertex], strict=strict)
        if node is not graph[vertex]:
            draft.drafts[vertex] = node
    graph.apply(Patch({vertex: graph[vertex] for vertex in draft.drafts}, draft.drafts))
    graph.positive_sizes |= _positive_sizes(graph)


def build_inference_patch(graph: Graph) -> Patch | None:
    """Return a patch that infers again the nodes with incomplete types; None where nothing is new.

    Bodies are read as they are. A value that has become an output since takes the sizes that the file declares for it.
    """
    draft, outputs = DraftGraph(graph), dict(zip(graph.outputs, graph.output_types, strict=True))
    given = frozenset(
        atom
        for vertex in (*graph.inputs, *graph.vertices_with_op(CAPTURE))
        for type_ in graph[vertex].types
        for size in symbolic_sizes(type_)
        for atom in size.atoms
    )
    for vertex in graph.topological_order():
        node = draft[vertex]
        if node.is_internal or not _has_incomplete_output(node, given):
            continue
        types = tuple(_fill_from_declared(type_, outputs.get(Value(vertex, i))) for i, type_ in enumerate(node.types))
        known = _infer_without_bodies(draft, node if types == node.types else replace(node, types=types))
        if (known.types, known.contents) != (node.types, node.contents):
            draft.drafts[vertex] = known
    return Patch({vertex: graph[vertex] for vertex in draft.drafts}, draft.drafts) if draft.drafts else None


def _fill_from_declared(type_: Type | None, declared: Type | None) -> Type | None:
    """Return a type with its unknown sizes replaced by those that are declared for the output it has become."""
    if not isinstance(type_, TensorType) or not isinstance(declared, TensorType):
        return type_
    if type_.shape is None or declared.shape is None or len(type_.shape) != len(declared.shape):
        return type_
    pairs = zip(type_.shape, declared.shape, strict=True)
    return TensorType(type_.dtype, tuple(b if _has_unknown(a) and not _has_unknown(b) else a for a, b in pairs))


def _has_incomplete_output(node: Node, given: frozenset[DimAtom]) -> bool:
    """Return whether a size is unknown or merely declared, or the contents of a possible shape are unknown."""
    for index, type_ in enumerate(node.types):
        if type_ is None:
            return True
        if not isinstance(type_, TensorType):
            continue
        if type_.shape is None or not all(_is_derived_from(size, given) for size in type_.shape):
            return True
        if len(type_.shape) <= 1 and (type_.dtype.is_integer or type_.dtype is DType.BOOL):
            elements = node.contents[index] if node.contents else None
            if elements is None or any(map(_has_unknown, elements)):
                return True
    return False


def _is_derived_from(size: Dim, given: frozenset[DimAtom]) -> bool:
    """Return whether a size is made of given ones."""
    return not isinstance(size, SymbolicDim) or all(
        atom in given
        or (
            isinstance(atom, DerivedAtom) and _is_derived_from(atom.left, given) and _is_derived_from(atom.right, given)
        )
        for atom in size.atoms
    )


def _has_unknown(size: Dim) -> bool:
    return isinstance(size, SymbolicDim) and size.has_unknown


# -- bodies ------------------------------------------------------------------------------------------------------------


def body_input_patches(graph: Graph, node: Node) -> Iterator[tuple[Graph, Patch]]:
    """Yield the bodies of a node with patches for the new facts about their inputs and captures."""
    if not _is_control_flow(node):
        return
    inputs = _BODY_INPUT_INFERENCE[node.op](graph, node) if node.op in _BODY_INPUT_INFERENCE else []
    for body in node.bodies:
        known: dict[int, Node] = {}
        for vertex, type_ in zip(body.inputs, inputs, strict=False):
            own, label = body[vertex], f"input '{body[vertex].names[0]}' of a body"
            merged = _merge_types(type_, own.types[0], _unknown_size_mark(), label, strict=False)
            known[vertex] = replace(own, types=(merged,))
        for vertex in body.vertices_with_op(CAPTURE):
            own = body[vertex]
            if own.is_internal:
                value = node.captures[own.capture_index]
                elements, type_ = graph.known_contents(value), graph.value_type(value) or own.types[0]
                contents = () if elements is None or len(elements) > MAX_SHAPE_ELEMENTS else (elements,)
                known[vertex] = replace(own, types=(type_,), contents=contents)
        new = {v: own for v, own in known.items() if (own.types, own.contents) != (body[v].types, body[v].contents)}
        if new:
            yield body, Patch({vertex: body[vertex] for vertex in new}, new)


def _is_control_flow(node: Node) -> bool:
    """Return whether a node runs its bodies as ONNX says; a Scan once had batches."""
    return node.domain == "" and node.op in _CONTROL_FLOW_INFERENCE and node.version >= (9 if node.op == "Scan" else 1)


def _body_result_types(body: Graph) -> list[Type | None]:
    return [body.value_type(value) for value in body.outputs]


def _body_attribute(node: Node, name: str) -> Graph | None:
    found = node.attrs.get(name)
    return found if isinstance(found, Graph) else None


def _infer_if(_: Graph, node: Node) -> list[Type | None]:
    branches = [_body_attribute(node, name) for name in ("then_branch", "else_branch")]
    results = [_body_result_types(branch) for branch in branches if branch is not None]
    return [_join_types(a, b) for a, b in zip(*results, strict=False)] if len(results) == 2 else []


def _join_types(a: Type | None, b: Type | None) -> Type | None:
    """Return the common part of two types that a value may have."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype)
    return TensorType(
        a.dtype, tuple(x if x == y else SymbolicDim.fresh() for x, y in zip(a.shape, b.shape, strict=True))
    )


def _loop_input_types(graph: Graph, node: Node) -> list[Type | None]:
    counters: list[Type | None] = [TensorType(DType.INT64), TensorType(DType.BOOL)]
    carried = _loop_carried_types(graph, node)  # their shapes may change from turn to turn
    return [*counters, *(TensorType(type_.dtype) if isinstance(type_, TensorType) else type_ for type_ in carried)]


def _infer_loop(graph: Graph, node: Node) -> list[Type | None]:
    body, carried = _body_attribute(node, "body"), _loop_carried_types(graph, node)
    results = [] if body is None else _body_result_types(body)[1:]
    states = [_join_types(a, b) for a, b in zip(carried, results, strict=False)]
    return [*states, *(_stack_type(type_, 0, SymbolicDim.fresh()) for type_ in results[len(carried) :])]


def _loop_carried_types(graph: Graph, node: Node) -> list[Type | None]:
    return [None if value is None else graph.value_type(value) for value in node.inputs[2:]]


def _stack_type(type_: Type | None, axis: int, count: Dim) -> Type | None:
    """Return the type of values stacked along a new axis."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    axis = normalize_axis(axis, len(type_.shape) + 1)
    return TensorType(type_.dtype, (*type_.shape[:axis], count, *type_.shape[axis:]))


def _scan_input_types(graph: Graph, node: Node) -> list[Type | None]:
    states, steps = _scan_state_and_slice_types(graph, node)
    return [*states, *(type_ for type_, _ in steps)]


def _infer_scan(graph: Graph, node: Node) -> list[Type | None]:
    body, (states, steps) = _body_attribute(node, "body"), _scan_state_and_slice_types(graph, node)
    outputs = [] if body is None else _body_result_types(body)[len(states) :]
    length = next((size for _, size in steps if size is not None), None)
    places = [*_scan_axes(node, "scan_output_axes"), *[0] * len(outputs)]
    stacked = [
        _stack_type(type_, axis, SymbolicDim.fresh() if length is None else length)
        for type_, axis in zip(outputs, places, strict=False)
    ]
    return [*states, *stacked]


def _scan_state_and_slice_types(
    graph: Graph, node: Node
) -> tuple[list[Type | None], list[tuple[Type | None, Dim | None]]]:
    """Return the types of a Scan's states; and of the slices of its other inputs, with their number."""
    count = node.attrs.get("num_scan_inputs")
    types = [None if value is None else graph.value_type(value) for value in node.inputs]
    states = len(types) - (count if isinstance(count, int) else 0)
    axes = [*_scan_axes(node, "scan_input_axes"), *[0] * len(types)]
    return types[:states], [_slice_type(type_, axis) for type_, axis in zip(types[states:], axes, strict=False)]


def _scan_axes(node: Node, name: str) -> tuple[int, ...]:
    found = node.attrs.get(name)
    return tuple(axis for axis in found if isinstance(axis, int)) if isinstance(found, tuple) else ()


def _slice_type(type_: Type | None, axis: int) -> tuple[Type | None, Dim | None]:
    """Return the type of a slice along an axis, and the axis's size."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_, None
    axis = normalize_axis(axis, len(type_.shape))
    return TensorType(type_.dtype, (*type_.shape[:axis], *type_.shape[axis + 1 :])), type_.shape[axis]


_BODY_INPUT_INFERENCE = {"Loop": _loop_input_types, "Scan": _scan_input_types}
_CONTROL_FLOW_INFERENCE = {"If": _infer_if, "Loop": _infer_loop, "Scan": _infer_scan}


# -- targets of Reshape ------------------------------------------------------------------------------------------------


def _positive_sizes(graph: Graph) -> frozenset[str]:
    """Return the names of sizes that are not 0, as a Reshape that an output depends on infers another, a -1, beside
    them."""
    reshapes = graph.vertices_with_op("Reshape")
    needed = reshapes & needed_vertices(graph) if reshapes else reshapes
    return frozenset(name for vertex in needed for name in _sizes_beside_inferred(NodeOperands(graph, graph[vertex])))


def _sizes_beside_inferred(reshape: NodeOperands) -> Iterator[str]:
    """Yield the names that the sizes beside a -1 are products of; a 0 would be that of the input's own axis.

    Quotients and the like have no names, but texts, which a model may name a size by.
    """
    target, shape = reshape.contents(1), reshape.shape(0)
    if target is None or shape is None or -1 not in target:
        return
    is_literal = bool(reshape.int_attribute("allowzero"))
    for axis, size in enumerate(target):
        is_own = is_literal or (axis < len(shape) and shape[axis] == size)
        if is_own and isinstance(size, SymbolicDim) and len(size.terms) == 1:
            yield from (str(atom) for atom in size.atoms if not isinstance(atom, DerivedAtom))


def reshape_target(
    target: Sequence[Dim], shape: Shape | None, result: Shape | None, positive: Collection[str] = ()
) -> list[int] | None:
    """Return a constant target for a Reshape that reads 0 as "copy", equal to a symbolic one wherever that is defined.

    A size equal to that of the input's axis is copied. One other may be the rest, but only if no other size can be
    0: then Reshape could not tell it. `positive` names sizes that are none.
    """
    elements: list[int] = []
    for i, size in enumerate(target):
        known = result[i] if size == -1 and result is not None and i < len(result) else size
        if isinstance(known, int):
            elements.append(known)
        elif shape is not None and i < len(shape) and shape[i] == known:
            elements.append(0)
        else:
            elements.append(-1)
    if elements.count(-1) > 1:
        return None
    given = -1 in target  # then another size of 0 is an error already
    if -1 in elements and not given:
        others = [size for size, element in zip(target, elements, strict=True) if element != -1]
        if not all((lower_bound(count_from_one(size, positive)) or 0) >= 1 for size in others):
            return None
    return elements
