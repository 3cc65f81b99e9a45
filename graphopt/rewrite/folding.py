"""Folding: what does not depend on the values of inputs is computed once, when the model is compiled.

`fold_constants` evaluates nodes on constants; `fold_shapes` uses what inference knows of the elements of small integer
tensors. So the arithmetic on sizes that exporters leave behind goes, with symbolic sizes too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, lower_bound
from graphopt.ir import schemas, spilled
from graphopt.ir.edit import constant_node, needs_copy, replace_node, replace_values
from graphopt.ir.graph import Graph, Node, Patch, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape, TensorType, Type
from graphopt.operators.inference import reshape_target
from graphopt.operators.node_evaluation import NUMPY_VIEWS, evaluate_node, is_reference_exact
from graphopt.operators.node_operands import NodeOperands, normalize_axis, static_sizes
from graphopt.operators.operator_classes import lookup_operator

log = logging.getLogger(__name__)

MAX_FOLD_GROWTH = 1 << 20
"""Bytes by which folding one node may make the model larger: its results less the constants that only it read."""
MAX_TOTAL_GROWTH = 16 << 20
"""Bytes by which all foldings of one run of the pass may make the model larger."""
MAX_FOLDED_BYTES = 256 << 20
"""Bytes of inputs or results above which a node is left to the runtime, whatever it would free: they are held in
memory from then on."""


def fold_constants(graph: Graph, *, exact: bool = False) -> Iterator[Patch]:
    """Compute nodes whose inputs are all constant, in their own type, as ONNX Runtime would.

    Left alone: random operators, those without a denotation, bodies, quantized weights, and whatever would enlarge the
    model by more than `MAX_FOLD_GROWTH` per node or `MAX_TOTAL_GROWTH` in all; where `exact`, also what rounds more
    than once.
    """
    budget = MAX_TOTAL_GROWTH
    for vertex in graph.topological_order():
        if vertex not in graph or not _can_fold(graph, graph[vertex]):
            continue
        growth = _size_growth(graph, vertex)
        if growth is None or growth > min(MAX_FOLD_GROWTH, budget):
            continue
        results = _compute_outputs(graph, graph[vertex], exact)
        if results is not None:
            yield _replace_by_constants(graph, vertex, results)
            budget -= 0 if vertex in graph and not graph[vertex].is_constant else max(growth, 0)  # it may be refused


def _can_fold(graph: Graph, node: Node) -> bool:
    if node.is_internal or not node.inputs or node.captures or node.has_bodies:
        return False
    facts = lookup_operator(node.op, node.domain)
    if not facts.is_foldable or not (facts.is_denoted or schemas.is_defined_operator(node.op, node.domain)):
        return False
    values = node.inputs[:1] if _cast_for_cast_like(graph, node) else node.inputs
    return all(v is None or graph.constant(v) is not None for v in values) and schemas.is_deterministic(node)


def _cast_for_cast_like(graph: Graph, node: Node) -> Node | None:
    """Return the Cast that does the same as a CastLike, which reads only the type of its second input."""
    like = graph.tensor_type(node.inputs[1]) if node.op == "CastLike" and len(node.inputs) == 2 else None
    if like is None or node.domain != "":
        return None
    attrs = {**node.attrs, "to": int(like.dtype)}
    return replace(node, op="Cast", version=schemas.newest_version("Cast"), attrs=attrs, inputs=node.inputs[:1])


def _size_growth(graph: Graph, vertex: int) -> int | None:
    """Return the bytes that the model grows by when a node is folded; None if unknown, or not worth it."""
    node = graph[vertex]
    read = {value: tensor for value in node.inputs if value and (tensor := graph.constant(value)) is not None}
    sizes = [_nbytes(type_, name) for type_, name in zip(node.types, node.names, strict=True)]
    given = sum(tensor.nbytes for tensor in read.values())
    if any(size is None for size in sizes):
        # the size depends on data, as that of NonZero and Compress does, and is not much larger than the inputs
        return given if given <= MAX_FOLD_GROWTH else None
    made = sum(size for size in sizes if size is not None)
    own = (value for value in read if value not in graph.outputs and {*graph.readers(value.vertex)} <= {vertex})
    freed = sum(read[value].nbytes for value in own)  # no other node reads them
    return made - freed if max(made, given) <= MAX_FOLDED_BYTES else None


def _nbytes(type_: Type | None, name: str) -> int | None:
    if not name:
        return 0
    if not isinstance(type_, TensorType) or not isinstance(type_.size, int):
        return None
    return (type_.size * type_.dtype.bits + 7) // 8


def _compute_outputs(graph: Graph, node: Node, exact: bool) -> list[Tensor] | None:
    """Return the outputs of a node on its constants, None where they cannot be told or contradict its types."""
    node = _cast_for_cast_like(graph, node) or node
    constants = [graph.constant(value) for value in node.inputs]
    arrays = [None if tensor is None else tensor.numpy() for tensor in constants]
    results = None if exact and not is_reference_exact(node, arrays) else evaluate_node(node, arrays)
    if results is None or len(results) < sum(map(bool, node.names)):
        return None
    tensors = [_tensor_of_result(node, constants, array) for array in results]
    for tensor, type_, name in zip(tensors, node.types, node.names, strict=False):
        if name and not _matches_type(tensor, type_):
            log.debug("%s '%s' computes %s%s, not %s", node.op, node.name, tensor.dtype.name, tensor.shape, type_)
            return None
    return tensors


def _tensor_of_result(node: Node, constants: Sequence[Tensor | None], array: NDArray[Any]) -> Tensor:
    """Return what was computed as a constant: a large view is seen anew whenever it is read."""
    if node.op not in NUMPY_VIEWS or array.nbytes < spilled.SPILL_BYTES or None in constants:
        return spilled.spill(array)

    def read() -> NDArray[Any]:
        found = evaluate_node(node, [None if tensor is None else tensor.numpy() for tensor in constants])
        assert found is not None, f"{node.op} was computed before"
        return found[0]

    return Tensor(DType.from_numpy(array.dtype), array.shape, read)


def _matches_type(tensor: Tensor, type_: Type | None) -> bool:
    if type_ is None:
        return True
    if not isinstance(type_, TensorType) or type_.dtype != tensor.dtype:
        return False
    if type_.shape is None:
        return True
    same = len(type_.shape) == len(tensor.shape)
    return same and all(a == b for a, b in zip(type_.shape, tensor.shape, strict=True) if isinstance(a, int))


def _replace_by_constants(graph: Graph, vertex: int, tensors: Sequence[Tensor]) -> Patch:
    """Return the patch that puts constants in the place of a node's outputs; they keep their names."""
    node = graph[vertex]
    if len(node.names) == 1 and not node.is_internal:
        return replace_node(graph, vertex, constant_node(tensors[0], node.names[0]))
    mapping: dict[Value, Value] = {}
    new: dict[int, Node] = {}
    for index, (tensor, name) in enumerate(zip(tensors, node.names, strict=False)):
        if name:
            fresh = graph.new_vertex()
            new[fresh] = constant_node(tensor, graph.new_name(name) if node.is_internal else name)
            mapping[Value(vertex, index)] = Value(fresh)
    return replace_values(graph, mapping, new)


# -- sizes -------------------------------------------------------------------------------------------------------------


def fold_shapes(graph: Graph) -> Iterator[Patch]:
    """Replace arithmetic on sizes by its result.

    Values that are known numbers become constants. Of two values that hold the same sizes one is enough. Targets of
    Reshape and Expand with symbolic sizes become constants where 0 ("copy"), -1 ("the rest") and 1 ("as it is") say
    exactly the same, for sizes of 0 too.
    """
    for vertex in reversed(graph.topological_order()):
        if vertex in graph and _has_known_outputs(graph, vertex):
            yield _replace_by_known_contents(graph, vertex)
    for vertex in graph.topological_order():
        patch = _replace_symbolic_sizes(graph, vertex) if vertex in graph else None
        if patch is not None:
            yield patch
    yield from _merge_equal_sizes(graph)


def _has_known_outputs(graph: Graph, vertex: int) -> bool:
    """Return whether all outputs of a node that is no constant are known numbers."""
    node = graph[vertex]
    if node.is_constant or not node.contents:
        return False
    is_read = graph.fan_out(vertex) > 0 or any(value.vertex == vertex for value in graph.outputs)
    return is_read and all(
        elements is not None and all(isinstance(element, int) for element in elements) and isinstance(type_, TensorType)
        for elements, type_ in zip(node.contents, node.types, strict=True)
    )


def _replace_by_known_contents(graph: Graph, vertex: int) -> Patch:
    node = graph[vertex]
    tensors = []
    for elements, type_ in zip(node.contents, node.types, strict=True):
        assert elements is not None
        assert isinstance(type_, TensorType)
        array = np.array([int(str(element)) for element in elements], type_.dtype.numpy)
        tensors.append(Tensor.from_array(array.reshape(() if type_.shape == () else (-1,))))
    return _replace_by_constants(graph, vertex, tensors)


def _merge_equal_sizes(graph: Graph) -> Iterator[Patch]:
    """Have values with the same sizes, in the same type, read where the first of them is computed."""
    first: dict[tuple[object, ...], Value] = {}
    for vertex in graph.topological_order():  # readers of a later value come after it, so this cannot make a cycle
        if vertex not in graph:
            continue
        node = graph[vertex]
        for index, elements in enumerate(node.contents):
            type_ = node.types[index]
            if not elements or not isinstance(type_, TensorType) or type_.shape is None:
                continue
            value = Value(vertex, index)
            key = (elements, type_.dtype, len(type_.shape))
            earlier = first.get(key)
            if earlier is None or earlier.vertex not in graph:
                first[key] = value
            elif graph.has_uses(value) and not needs_copy(graph, value, earlier):
                yield replace_values(graph, {value: earlier})


def _replace_symbolic_sizes(graph: Graph, vertex: int) -> Patch | None:
    node = graph[vertex]
    if node.domain != "" or not node.version or len(node.inputs) < 2:
        return None
    match node.op:
        case "Reshape":
            return _fold_reshape(graph, vertex)
        case "Expand":
            return _fold_expand(graph, vertex)
        case "Slice":
            return _fold_slice_bounds(graph, vertex)
    return None


def _with_constant_input(graph: Graph, vertex: int, index: int, elements: Iterable[int], base: str) -> Patch:
    """Return the patch that gives a node a constant list of integers as an input."""
    return _with_constant_inputs(graph, vertex, {index: list(elements)}, {index: base})


def _with_constant_inputs(graph: Graph, vertex: int, inputs: dict[int, list[int]], bases: dict[int, str]) -> Patch:
    node = graph[vertex]
    values, new = list(node.inputs), {}
    for index, elements in inputs.items():
        array: NDArray[np.int64] = np.array(elements, np.int64)
        fresh = graph.new_vertex()
        new[fresh] = constant_node(Tensor.from_array(array), graph.new_name(f"{node.names[0]}/{bases[index]}"))
        values[index] = Value(fresh)
    return replace_values(graph, {}, {vertex: replace(node, inputs=tuple(values)), **new})


def _fold_reshape(graph: Graph, vertex: int) -> Patch | None:
    node = graph[vertex]
    k = NodeOperands(graph, node)
    target, shape, result = k.contents(1), k.shape(0), graph.shape(Value(vertex))
    if target is None or len(node.inputs) != 2:
        return None
    allowzero = bool(k.int_attribute("allowzero"))
    if allowzero and 0 in target:
        return None
    if graph.constant(node.inputs[1]) is not None:
        elements = None if allowzero else _resolve_copied_sizes(target, shape)
        elements = elements or _use_copied_sizes(target, shape, result)
        if allowzero and elements is None:  # it says nothing: rules ask for a Reshape without it
            elements = [size for size in target if isinstance(size, int)]
    else:
        elements = reshape_target(target, shape, result, graph.positive_sizes)
    if elements is None:
        return None
    patch = _with_constant_input(graph, vertex, 1, elements, "shape")
    if not allowzero:
        return patch
    attrs = {name: value for name, value in node.attrs.items() if name != "allowzero"}
    return replace(patch, after={**patch.after, vertex: replace(patch.after[vertex], attrs=attrs)})


def _resolve_copied_sizes(target: Sequence[Dim], shape: Shape | None) -> list[int] | None:
    """Return a constant target in which each "copy" of a known size is that number, None where there is none."""
    sizes = shape or ()
    copied = [i for i, size in enumerate(target) if size == 0 and i < len(sizes) and sizes[i] != 0]
    if not any(isinstance(sizes[i], int) for i in copied):
        return None
    return list(
        static_sizes([sizes[i] if i in copied and isinstance(sizes[i], int) else s for i, s in enumerate(target)]) or ()
    )


def _use_copied_sizes(target: Sequence[Dim], shape: Shape | None, result: Shape | None) -> list[int] | None:
    """Return a constant target with "copy" in the place of "the rest", if that is the size of the input's axis."""
    elements = static_sizes(target)
    if elements is None or -1 not in elements or shape is None or result is None:
        return None
    rest = elements.index(-1)
    if rest >= min(len(shape), len(result)) or isinstance(shape[rest], int) or shape[rest] != result[rest]:
        return None
    return [*elements[:rest], 0, *elements[rest + 1 :]]


def _fold_expand(graph: Graph, vertex: int) -> Patch | None:
    k = NodeOperands(graph, graph[vertex])
    shape, target = k.shape(0), k.contents(1)
    if shape is None or target is None:
        return None
    elements: list[int] = []
    for size, own in reversed(list(zip_longest(reversed(target), reversed(shape)))):
        if size is None:
            continue
        if isinstance(size, int) and size != own:
            elements.append(size)
        elif size == own:
            elements.append(1)
        else:
            return None
    if graph.constant(graph[vertex].inputs[1]) is not None:
        return None
    return _with_constant_input(graph, vertex, 1, elements, "shape")


SLICE_END = np.iinfo(np.int64).max
"""An end of Slice beyond any axis."""


def _fold_slice_bounds(graph: Graph, vertex: int) -> Patch | None:
    """Make bounds constant that are not, where each is a number or lies beyond the axis."""
    k = NodeOperands(graph, graph[vertex])
    shape, parts = k.shape(0), _slice_ranges(k)
    if shape is None or parts is None:
        return None
    if k.dtype(1) is not DType.INT64:
        return None
    if all(graph.constant(value) is not None for value in k.node.inputs[1:3]):
        return _normalize_slice_bounds(graph, vertex, k, parts)
    starts = [start for _, start, _, _ in parts if isinstance(start, int)]
    ends = [_slice_end(shape[a], end) for a, _, end, step in parts if step > 0 or isinstance(end, int)]
    known = [end for end in ends if end is not None]
    if not len(starts) == len(known) == len(parts):
        return None
    return _with_constant_inputs(graph, vertex, {1: starts, 2: known}, {1: "starts", 2: "ends"})


def _slice_ranges(k: NodeOperands) -> list[tuple[int, Dim, Dim, int]] | None:
    """Return axis, start, end and step of every axis that a Slice names; None where they are not known."""
    shape, starts, ends = k.shape(0), k.contents(1), k.contents(2)
    if shape is None or starts is None or ends is None:
        return None
    axes = k.optional_int_contents(3, range(len(starts)))
    steps = k.optional_int_contents(4, (1,) * len(starts))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):  # a node that cannot be
        return None
    return [(normalize_axis(a, len(shape)), s, e, t) for a, s, e, t in zip(axes, starts, ends, steps, strict=True)]


def _normalize_slice_bounds(
    graph: Graph, vertex: int, k: NodeOperands, parts: Sequence[tuple[int, Dim, Dim, int]]
) -> Patch | None:
    """Count constant bounds on axes of known size from the front, so that adjoining slices can be recognized."""
    shape, bounds = k.shape(0), []
    for axis, start, end, step in parts:
        size = shape[axis] if shape is not None else None
        if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int) or step < 1:
            return None
        bounds.append(slice(start, end, step).indices(size))
    starts, ends = [start for start, _, _ in bounds], [end for _, end, _ in bounds]
    if (tuple(starts), tuple(ends)) == (k.int_contents(1), k.int_contents(2)):
        return None
    return _with_constant_inputs(graph, vertex, {1: starts, 2: ends}, {1: "starts", 2: "ends"})


def _slice_end(size: Dim, end: Dim) -> int | None:
    if isinstance(end, int):
        return end
    beyond = lower_bound(end - size)
    return SLICE_END if beyond is not None and beyond >= 0 else None
