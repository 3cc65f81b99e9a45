"""Two small models that can be compared on their own: what a rewrite took out, and what it put in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.check.compare import DEFAULT_SEEDS, compare_models
from graphopt.check.verdict import EqualityVerdict, ModelComparison
from graphopt.expr.dims import SymbolicDim
from graphopt.io import onnx_io
from graphopt.ir.graph import CONSTANT, INPUT, INTERNAL_DOMAIN, Graph, Node, Patch, Value
from graphopt.ir.schemas import is_deterministic
from graphopt.ir.tensor import Tensor, tensors_equal
from graphopt.ir.types import TensorType, Type
from graphopt.operators.proto_conversion import ExternalData
from graphopt.runtime.graph_sessions import model_of_graph

CONTEXT_NODE_COUNTS = (0, 16, 128)
"""Numbers of nodes before a region that are taken in, tried in turn until the region is found equal."""
MAX_CONTEXT_BYTES = 64_000_000
"""Bytes of constants that may come in with them."""


def compare_region(
    graph: Graph,
    patch: Patch,
    *,
    any_values: bool,
    exact: bool = False,
    keep_nonfinite: bool = False,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    prepare: Callable[[onnx_io.LoadedModel], onnx_io.LoadedModel] = lambda model: model,
) -> ModelComparison:
    """Compare what a patch takes out with what it puts in, for models that cannot be run as a whole.

    If both are equal for all values at the border, they are equal. If they are not, such values may never occur, or
    readers may not mind, so the nodes that compute these values and those that read the results are taken in. A
    difference that remains counts if the rewrite is to hold for `any_values`, as a rule is; else nothing is known. Both
    models are run as `prepare` makes them.

    Raises:
        ModelError: the type of a value at the border is not known.
    """
    if all(_are_equal_constants(graph, patch, *pair) for pair in _replaced_values(patch, through_readers=False)):
        return ModelComparison(EqualityVerdict.EQUAL)  # models that hand over their weights would hold them many times
    found = ModelComparison(EqualityVerdict.SKIPPED)
    for context in CONTEXT_NODE_COUNTS:
        models = map(prepare, patch_models(graph, patch, context=context))
        found = compare_models(*models, seeds=seeds, exact=exact, keep_nonfinite=keep_nonfinite)
        if found.verdict is EqualityVerdict.EQUAL:
            return found
    if found.verdict is EqualityVerdict.DIFFERENT and not any_values:
        reason = f"differs on values that may not occur: {found.reason or found.worst}"
        return replace(found, verdict=EqualityVerdict.SKIPPED, outputs=(), reason=reason)
    return found


def _are_equal_constants(graph: Graph, patch: Patch, old: Value, new: Value) -> bool:
    """Return whether a value before a patch and one after it are constants that are equal bit for bit."""
    before = patch.before.get(old.vertex) or graph[old.vertex]
    after = patch.after.get(new.vertex) or patch.before.get(new.vertex) or graph[new.vertex]
    one, other = before.data if before.is_constant else None, after.data if after.is_constant else None
    return one is not None and other is not None and tensors_equal(one, other)


def patch_models(graph: Graph, patch: Patch, *, context: int = 0) -> tuple[onnx_io.LoadedModel, onnx_io.LoadedModel]:
    """Return what a patch takes out and what it puts in, as two models of the same inputs and outputs.

    `graph` may be as it was before the patch or as it is after it. Constants are read only here. The outputs are the
    values that the readers which stay read before and after. With `context`, both models begin with up to that many
    nodes that compute values at the border, and end with the results of the readers, if these can be run.

    Raises:
        ModelError: the type of a value at the border is not known.
    """
    pairs = _replaced_values(patch, through_readers=context > 0)
    wanted = [old for old, _ in pairs], [new for _, new in pairs]
    sides: list[Mapping[int, Node]] = [patch.before, patch.after]
    border = [
        value for nodes, values in zip(sides, wanted, strict=True) for value in _needed_vertices(nodes, values)[1]
    ]
    shared = _context_nodes(graph, (value for value in border if value.vertex in graph), context)
    sides = [{**shared, **nodes} for nodes in sides]
    needed = [_needed_vertices(nodes, values) for nodes, values in zip(sides, wanted, strict=True)]
    border = list(dict.fromkeys(value for _, values in needed for value in values))
    sources = {value.vertex: patch.before.get(value.vertex) or graph[value.vertex] for value in border}
    types = tuple((patch.before.get(old.vertex) or graph[old.vertex]).types[old.output] for old, _ in pairs)
    first, second = (
        _region_model(graph.opsets, [(vertex, nodes[vertex]) for vertex in vertices], border, sources, values, types)
        for nodes, (vertices, _), values in zip(sides, needed, wanted, strict=True)
    )
    return first, second


def _context_nodes(graph: Graph, border: Iterable[Value], limit: int) -> dict[int, Node]:
    """Return the nearest nodes that compute values at the border; those that compute sizes and indices come first."""
    found: dict[int, Node] = {}
    queue = [(_is_float(graph, value), 0, value) for value in border]
    heapify(queue)
    room = MAX_CONTEXT_BYTES
    while queue and len(found) < limit:
        _, distance, value = heappop(queue)
        node = graph[value.vertex]
        size = sum(constant.nbytes for operand in node.operands if (constant := graph.constant(operand)) is not None)
        if value.vertex in found or size > room or not _is_runnable(node):
            continue
        found[value.vertex], room = node, room - size
        for operand in node.operands:
            heappush(queue, (_is_float(graph, operand), distance + 1, operand))
    return found


def _is_float(graph: Graph, value: Value) -> bool:
    type_ = graph.tensor_type(value)
    return type_ is None or type_.dtype.is_float


def _replaced_values(patch: Patch, *, through_readers: bool) -> list[tuple[Value, Value]]:
    """Return pairs of values: those that the remaining nodes read before the patch and after it, or, with
    `through_readers`, those that they compute."""
    pairs = [] if patch.outputs is None else list(zip(*patch.outputs, strict=True))
    for vertex in patch.before.keys() & patch.after.keys():
        old, new = patch.before[vertex], patch.after[vertex]
        is_reader = old.is_same_operation(new) and len(old.captures) == len(new.captures) and not old.is_internal
        if not is_reader or (through_readers and _is_runnable(old)):
            pairs += [(value, value) for i, name in enumerate(old.names) if name for value in [Value(vertex, i)]]
        else:
            pairs += [(a, b) for a, b in zip(old.operands, new.operands, strict=True)]
    changed = patch.before.keys() | patch.after.keys()
    return [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1] or pair[0].vertex in changed]


def _is_runnable(node: Node) -> bool:
    return not node.is_internal and is_deterministic(node) and not node.has_bodies


def _needed_vertices(nodes: Mapping[int, Node], wanted: Sequence[Value]) -> tuple[list[int], list[Value]]:
    """Return the vertices among `nodes` that some values depend on, producers first, and the values from elsewhere."""
    order: dict[int, None] = {}
    border: dict[Value, None] = {}
    stack = [(value, False) for value in reversed(wanted)]
    while stack:
        value, done = stack.pop()
        if done:
            order[value.vertex] = None
        elif value.vertex not in nodes or nodes[value.vertex].is_graph_input:
            border[value] = None
        elif value.vertex not in order:
            stack.append((value, True))
            stack += [(operand, False) for operand in nodes[value.vertex].operands]
    return list(order), list(border)


def _in_memory(tensor: Tensor) -> Tensor:
    """Return the tensor with its values in memory: a region has no folder of its own."""
    return Tensor.from_array(tensor.numpy()) if isinstance(tensor.source, ExternalData) else tensor


def _region_model(
    opsets: Mapping[str, int],
    nodes: Sequence[tuple[int, Node]],
    border: Sequence[Value],
    sources: Mapping[int, Node],
    outputs: Sequence[Value],
    types: tuple[Type | None, ...],
) -> onnx_io.LoadedModel:
    """Return a model of its own that computes `outputs` from the values in `border`, which come from `sources`, by
    `nodes`."""
    region = Graph("region", opsets)
    known: dict[Value, Value] = {}
    for value in border:
        node = sources[value.vertex]
        type_ = node.types[value.output]
        constant = node.data if node.is_constant else _constant_size_vector(node, value.output)
        name = region.new_name(node.names[value.output])
        if constant is not None:
            data = _in_memory(constant)
            known[value] = Value(region.add(Node(CONSTANT, (), (name,), (type_,), domain=INTERNAL_DOMAIN, data=data)))
            continue
        if type_ is None or (isinstance(type_, TensorType) and type_.dtype is DType.UNDEFINED):
            raise ModelError(f"the type of '{name}' is not known")
        known[value] = Value(region.add(Node(INPUT, (), (name,), (_with_named_dims(type_),), domain=INTERNAL_DOMAIN)))
        region.inputs.append(known[value].vertex)
    for vertex, node in nodes:
        held = node if node.data is None else replace(node, data=_in_memory(node.data))
        place = region.add(held.with_inputs_replaced(known))
        known |= {Value(vertex, index): Value(place, index) for index in range(len(node.names))}
    region.outputs = tuple(known[value] for value in outputs)
    region.output_names = tuple(region.new_name(f"output_{index}") for index in range(len(outputs)))
    region.output_types = types
    return model_of_graph(region)


def _with_named_dims(type_: Type) -> Type:
    """Return a type whose open sizes, formulas among them, are names."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    names = (
        SymbolicDim.named(str(size).replace("?", "unknown_")) if isinstance(size, SymbolicDim) else size
        for size in type_.shape
    )
    return replace(type_, shape=tuple(names))


def _constant_size_vector(node: Node, output: int) -> Tensor | None:
    """Return a vector of sizes as a constant, where all of them are known: made-up sizes would fit nothing."""
    contents, type_ = node.contents[output] if node.contents else None, node.types[output]
    if contents is None or not isinstance(type_, TensorType) or not all(isinstance(size, int) for size in contents):
        return None
    array = np.array(contents, type_.dtype.numpy)
    return Tensor.from_array(array.reshape(()) if type_.shape == () else array)
