"""Which values of a graph may hold an infinity that the model means: -inf in a mask, the logarithm of 0, 1/0.

A rule that is proved for finite values alone is kept away from them. Infinities that numbers overflow to are not
looked for, neither are those that a caller feeds, unless the model asks for them or takes them for a mask: any value
might hold one. What adds up products (a convolution, a normalization) makes no use of an infinity: behind it none is
meant, unless it is one of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from math import inf
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from graphopt.base.types import DType, TensorType, Type
from graphopt.ir import ops
from graphopt.ir.graph import CAPTURE, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.operators import declared

Array: TypeAlias = NDArray[Any]


class Reach(IntEnum):
    """How far from zero the elements of a value may lie."""

    ORDINARY = 0
    HUGE = 1
    """Near the largest number of the type, as in masks: the sum of two is an infinity."""
    INFINITE = 2


HUGE_PART = 0.25
"""Of the largest number of a type, from which on a constant counts as huge."""

MIXING = frozenset(
    {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN", "DeformConv", "DFT"}
    | {"AveragePool", "GlobalAveragePool", "LpPool", "GlobalLpPool", "LRN"}
    | {f"{kind}Normalization" for kind in ("Batch", "Group", "Instance", "Layer", "Lp", "MeanVariance", "RMS")}
)
"""Operators that add up many products: what an infinity makes of them is NaN, or an infinity everywhere."""

BOUNDED = frozenset({"Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Softmax", "HardSigmoid", "Softsign", "Sign", "Hardmax"})
"""Operators whose result is finite whatever they are given (or NaN)."""

GROWING = frozenset({"ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "CumSum", "Pow", "Div"})
"""Further operators that make an infinity of huge numbers."""

LARGEST_MASK = 1 << 24
"""Elements up to which a constant is looked at."""

QUESTIONS = ("IsInf", "IsNaN")
"""Operators of which the model says itself that what they read may hold infinities."""

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
"""Operators that say so where they compare with an infinite or huge constant."""

MASKED = ("Softmax", "LogSoftmax")
"""Operators that masks are added ahead of."""


class Infinities:
    """What is known of one graph. A vertex computes the same in every state of its graph: each is looked at once."""

    def __init__(self, graph: Graph) -> None:
        self._reach: dict[int, Reach] = {}
        self._asked = frozenset(_asked(graph))

    def reach(self, graph: Graph, value: Value) -> Reach:
        """How far from zero the elements of a value may lie."""
        stack = [value.vertex]
        while stack:
            vertex = stack[-1]
            missing = [v for v in graph.sources(vertex) if v not in self._reach and vertex not in self._reach]
            if missing:
                stack += missing
                continue
            stack.pop()
            if vertex not in self._reach:
                self._reach[vertex] = self._of(graph, vertex)
        return self._reach[value.vertex] if _is_float(graph, value) else Reach.ORDINARY

    def _of(self, graph: Graph, vertex: int) -> Reach:
        node = graph[vertex]
        if vertex in self._asked or vertex in graph.infinite:
            return Reach.INFINITE
        if node.is_constant:
            return Reach.ORDINARY if node.data is None else _of_constant(node.data)
        if node.is_internal:
            return Reach.ORDINARY
        if ops.is_declared(node.op, node.domain):  # whatever it is called
            read = [self._read(graph, value) for value in node.operands]
            return Reach.INFINITE if declared.writes_infinity(node) else max([Reach.ORDINARY, *read])
        if node.op in BOUNDED:
            return Reach.ORDINARY
        if node.op in MIXING:
            weights = [value for value in node.operands if graph[value.vertex].is_constant]
            infinite = any(self._read(graph, weight) is Reach.INFINITE for weight in weights)
            return Reach.INFINITE if infinite else Reach.ORDINARY
        read = [self._read(graph, value) for value in _elements(node)]
        read += [_of_constant(value) for value in node.attrs.values() if isinstance(value, Tensor)]
        highest = max(read, default=Reach.ORDINARY)
        if node.op in SOURCES and SOURCES[node.op](graph, node):
            return Reach.INFINITE
        if node.op == "Clip":
            return min(highest, Reach.HUGE)
        if highest is Reach.HUGE and _overflows(graph, node, read):
            return Reach.INFINITE
        return max(highest, *map(_of_bodies, node.bodies), Reach.ORDINARY)

    def _read(self, graph: Graph, value: Value) -> Reach:
        return self._reach[value.vertex] if _is_float(graph, value) else Reach.ORDINARY


_KNOWN: WeakKeyDictionary[Graph, Infinities] = WeakKeyDictionary()


def may_hold(graph: Graph, values: Iterable[Value]) -> bool:
    """Whether one of the values may hold an infinity that the model means."""
    if graph not in _KNOWN:
        _KNOWN[graph] = Infinities(graph)
    known = _KNOWN[graph]
    return any(known.reach(graph, value) is Reach.INFINITE for value in values)


def mark_bodies(graph: Graph, node: Node) -> None:
    """Tell the bodies of a node which of the values that they read from outside may hold an infinity."""
    for body in node.bodies:
        inside = {v: node.captures[_index(body[v])] for v in body.with_op(CAPTURE) if body[v].is_internal}
        given = [value for value in node.inputs if value is not None]
        marked = {vertex for vertex, value in inside.items() if may_hold(graph, [value])}
        marked |= set(body.inputs) if may_hold(graph, given) else set()
        if marked != body.infinite:
            body.infinite = frozenset(marked)
            reconsider(body)


def reconsider(graph: Graph) -> None:
    """Ask anew of a graph that has changed: a question that is gone asks for nothing, as in a model that lacks it."""
    _KNOWN.pop(graph, None)


def _index(node: Node) -> int:
    index = node.attrs["index"]
    assert isinstance(index, int)
    return index


def _elements(node: Node) -> Iterator[Value]:
    """The inputs that elements of the result come from: not a condition, nor shapes and indices."""
    inputs = node.inputs[1:] if node.op == "Where" else node.inputs
    yield from (value for value in inputs if value is not None)
    yield from node.captures


def _is_float(graph: Graph, value: Value) -> bool:
    dtype = graph.dtype(value)
    return dtype.is_float or dtype is DType.UNDEFINED


def _of_bodies(body: Graph) -> Reach:
    return Reach.INFINITE if may_hold(body, body.outputs) else Reach.ORDINARY


_LARGEST: WeakKeyDictionary[Tensor, Reach] = WeakKeyDictionary()


def _of_constant(tensor: Tensor) -> Reach:
    """How far the elements of a constant reach; each is read once. What is larger than any mask is weights."""
    if not tensor.dtype.is_float or not 0 < tensor.size <= LARGEST_MASK:
        return Reach.ORDINARY
    if tensor not in _LARGEST:
        array = tensor.numpy()
        greatest = float(max(array.max(), -array.min()))  # NaN is no number to compare, nor to be lost
        is_huge = greatest > HUGE_PART * float(ml_dtypes.finfo(array.dtype).max)  # type: ignore[no-untyped-call]
        _LARGEST[tensor] = Reach.INFINITE if greatest == inf else Reach.HUGE if is_huge else Reach.ORDINARY
    return _LARGEST[tensor]


def _overflows(graph: Graph, node: Node, read: Sequence[Reach]) -> bool:
    """Whether huge numbers become infinite: two of them added up, one multiplied, or put into a smaller type."""
    match node.op:
        case "Cast" | "CastLike":
            return _bits(node.types[0]) < max(_bits(graph.type(value)) for value in node.operands)
        case "Add" | "Sub" | "Sum":
            return read.count(Reach.HUGE) > 1
        case "Mul":
            return not any(_is_known(graph, value, lambda x: abs(x) <= 1) for value in node.operands)
    return node.op in GROWING


def _bits(type_: Type | None) -> int:
    return type_.dtype.bits if isinstance(type_, TensorType) and type_.dtype.is_float else 0


# -- where infinities arise --------------------------------------------------------------------------------------------


def _is_known(graph: Graph, value: Value | None, holds: Callable[[Array], Array]) -> bool:
    """Whether a value is a constant of whose elements, all of them, something holds."""
    tensor = graph.constant(value)
    if tensor is None or not tensor.is_small or not (tensor.dtype.is_float or tensor.dtype.is_integer):
        return False
    return bool(np.all(holds(tensor.numpy().astype(np.float64))))


def _is_positive(graph: Graph, value: Value | None, depth: int = 8) -> bool:
    """Whether the elements are known to be greater than 0: a number is added to what is not negative."""
    if value is None or not depth:
        return False
    node, below = graph[value.vertex], depth - 1
    if node.is_constant:
        return _is_known(graph, value, lambda x: x > 0)
    if node.domain:
        return False
    match node.op:
        case "Exp" | "Shape" | "Size":
            return True
        case "Add" | "Sum":
            parts = [(_is_positive(graph, v, below), _is_not_negative(graph, v, below)) for v in node.inputs]
            return any(positive for positive, _ in parts) and all(any(part) for part in parts)
        case "Max" | "Clip":
            bounds = node.inputs if node.op == "Max" else node.inputs[1:2]
            return any(_is_positive(graph, v, below) for v in bounds)
        case "Mul" | "Div" | "Pow":
            return all(_is_positive(graph, v, below) for v in node.inputs[: 1 if node.op == "Pow" else 2])
    return node.op in KEEP_SIGN and _is_positive(graph, node.inputs[0], below)


def _is_not_negative(graph: Graph, value: Value | None, depth: int) -> bool:
    """Whether no element is known to be below 0."""
    if value is None or not depth:
        return False
    node, below = graph[value.vertex], depth - 1
    if node.is_constant:
        return _is_known(graph, value, lambda x: x >= 0)
    if node.domain:
        return False
    match node.op:
        case "Pow":
            return _is_known(graph, node.inputs[1], lambda x: x % 2 == 0) or _is_positive(graph, value, depth)
        case "Mul":
            return node.inputs[0] == node.inputs[1] or all(_is_not_negative(graph, v, below) for v in node.inputs)
        case "Add" | "Div":
            return all(_is_not_negative(graph, v, below) for v in node.inputs)
    if node.op in KEEP_SIGN:
        return _is_not_negative(graph, node.inputs[0], below)
    return node.op in NOT_NEGATIVE or _is_positive(graph, value, depth)


KEEP_SIGN = frozenset(
    {"Sqrt", "Reciprocal", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "AveragePool"}
    | {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Slice", "Gather", "Cast", "Flatten"}
)
NOT_NEGATIVE = frozenset({"Abs", "Relu", "Sigmoid", "Softmax", "Softplus", "HardSigmoid", "ReduceL1", "ReduceL2"})
NOT_NEGATIVE |= {"ReduceSumSquare"}


def _divides_by_zero(graph: Graph, node: Node) -> bool:
    divisor = node.inputs[1 if node.op == "Div" else 0]
    return not _is_known(graph, divisor, lambda x: x != 0) and not _is_positive(graph, divisor)


def _takes_logarithm_of_zero(graph: Graph, node: Node) -> bool:
    return not _is_positive(graph, node.inputs[0])


def _raises_zero(graph: Graph, node: Node) -> bool:
    """A power of 0 is infinite where the exponent may be negative."""
    return not _is_known(graph, node.inputs[1], lambda x: x >= 0) and not _is_positive(graph, node.inputs[0])


SOURCES: Mapping[str, Callable[[Graph, Node], bool]] = {
    "Div": _divides_by_zero,
    "Reciprocal": _divides_by_zero,
    "Log": _takes_logarithm_of_zero,
    "ReduceLogSum": _takes_logarithm_of_zero,
    "Pow": _raises_zero,
    "Atanh": lambda graph, node: True,
}
"""Operators that make infinities of ordinary numbers, and whether a node of them may."""


def _asked(graph: Graph) -> Iterator[int]:
    """What a question reads, back to where it comes from, and the inputs that are masks."""
    stack = list(_questions(graph))
    seen = set(stack)
    while stack:
        vertex = stack.pop()
        mixes = graph[vertex].op in MIXING  # then what is asked is whether a row of weights is NaN, if anything
        for source in graph.sources(vertex):
            if source in seen or graph[source].is_constant or (mixes and graph[source].op not in MASKED):
                continue
            seen.add(source)
            yield source
            stack.append(source)
    if not graph.is_region:  # of its inputs it is known outside
        yield from _masks(graph)


def _questions(graph: Graph) -> Iterator[int]:
    """The operators that tell infinities from other numbers."""
    for op in QUESTIONS:
        yield from sorted(graph.with_op(op))
    for op in COMPARISONS:
        for vertex in sorted(graph.with_op(op)):
            constants = (graph.constant(value) for value in graph[vertex].inputs)
            if any(tensor is not None and _of_constant(tensor) is not Reach.ORDINARY for tensor in constants):
                yield vertex


def _masks(graph: Graph) -> Iterator[int]:
    """The float inputs that are called a mask, or added to what a Softmax reads; one that is a factor is 0 or 1."""
    for vertex in graph.inputs:
        is_factor = any(graph[reader].op in ("Mul", "Sub") for reader in graph.readers(vertex))
        if "mask" in graph[vertex].names[0].lower() and _is_float(graph, Value(vertex)) and not is_factor:
            yield vertex
    stack = [(vertex, False) for op in MASKED for vertex in sorted(graph.with_op(op))]
    seen = set(stack)
    while stack:
        vertex, is_added = stack.pop()
        if vertex in graph.inputs and is_added and _is_float(graph, Value(vertex)):
            yield vertex
        is_added |= graph[vertex].op in ("Add", "Sum")
        for source in graph.sources(vertex):
            if (source, is_added) not in seen and graph[source].op not in MIXING | BOUNDED:
                seen.add((source, is_added))
                stack.append((source, is_added))
