"""Values of a graph that may hold an infinity which the model means: -inf in a mask, the logarithm of 0, 1/0.

Masks also hold numbers near the largest of their type, and two of these make an infinity: they are found, too.

A rule that is proved for finite values alone is kept away from both. Overflows are not looked for, and neither are
infinities that a caller feeds, unless the model asks for them or takes them for a mask: any value might hold one. An
operator that adds up products (a convolution, a normalization) makes no use of an infinity: behind it none is meant,
unless a weight is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Flag
from functools import reduce
from math import inf
from operator import or_
from typing import Any
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import CAPTURE, INPUT, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.language.terms import App, Lit, Term
from graphopt.operators import declared_operators
from graphopt.operators.elementwise_ops import COMPARISONS
from graphopt.operators.node_operands import NodeOperands
from graphopt.operators.operator import MagnitudeEffect
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.sign_analysis import Sign, infer_sign
from graphopt.operators.symbolic_shapes import build_element_query


class Magnitude(Flag):
    """Distances from zero at which elements of a value may lie, beside moderate ones."""

    MODERATE = 0
    HUGE = 1
    """Near the largest number of the type, as in masks: the sum of two is an infinity."""
    INFINITE = 2


def _union(far: Iterable[Magnitude]) -> Magnitude:
    return reduce(or_, far, Magnitude.MODERATE)


HUGE_FRACTION = 0.25
"""Fraction of the largest number of a type above which a constant counts as huge."""

MAX_SIGN_DEPTH = 8
"""Operators that are followed to find the sign of a divisor."""

MAX_MASK_ELEMENTS = 1 << 24
"""Elements up to which a constant may be a mask."""

LOOPING_OPERATORS = ("Loop", "Scan")
"""Operators whose bodies read their own results in the next turn."""

MASKED_OPERATORS = ("Softmax", "LogSoftmax")
"""Operators whose inputs masks are added to."""


class MagnitudeAnalysis:
    """Magnitudes and signs in one graph. A vertex computes the same in every state of it, so each is visited once."""

    def __init__(self, graph: Graph) -> None:
        self._magnitudes: dict[int, Magnitude] = {}
        self._signs: dict[Value, tuple[int, Sign]] = {}
        """Known sign of a value, and the number of operators that were followed to find it."""
        self.observers = tuple(_find_observers(graph))
        """Vertices that tell infinities from other numbers, themselves or in a body."""
        self.observed = frozenset(_observed_vertices(graph, self.observers))

    def get_magnitude(self, graph: Graph, value: Value) -> Magnitude:
        """Return how far from zero the elements of a value may lie."""
        stack = [value.vertex]
        while stack:
            vertex = stack[-1]
            missing = [v for v in graph.sources(vertex) if v not in self._magnitudes and vertex not in self._magnitudes]
            if missing:
                stack += missing
                continue
            stack.pop()
            if vertex not in self._magnitudes:
                self._magnitudes[vertex] = self._vertex_magnitude(graph, vertex)
        return self._magnitudes[value.vertex] if _is_float_value(graph, value) else Magnitude.MODERATE

    def _vertex_magnitude(self, graph: Graph, vertex: int) -> Magnitude:
        given = Magnitude.HUGE if vertex in graph.possibly_huge else Magnitude.MODERATE
        if vertex in self.observed or vertex in graph.possibly_infinite:
            given |= Magnitude.INFINITE
        if vertex in self.observed and graph[vertex].op == INPUT and not graph.is_region:
            given |= Magnitude.HUGE  # a caller masks with either
        return given | self._node_magnitude(graph, graph[vertex])

    def _node_magnitude(self, graph: Graph, node: Node) -> Magnitude:
        """Return how far from zero the elements of a node may lie, given those that it reads."""
        if node.is_constant or node.is_internal:  # an input may have a default
            return Magnitude.MODERATE if node.data is None else _constant_magnitude(node.data)
        read = [self._operand_magnitude(graph, value) for value in node.operands]
        if schemas.is_defined_operator(node.op, node.domain):  # whatever it is called
            makes = any(map(_may_make_infinity, declared_operators.definition_terms(node)))
            return _union(read) | (Magnitude.INFINITE if makes else Magnitude.MODERATE)
        operator, bounds = lookup_operator(node.op, node.domain), read[1:]
        read += [_constant_magnitude(value) for value in node.attrs.values() if isinstance(value, Tensor)]
        made = (_get_analysis(body).get_magnitude(body, value) for body in node.bodies for value in body.outputs)
        highest = _union([*read, *made])
        if operator.has_poles and self._node_sign(graph, node, MAX_SIGN_DEPTH)[1]:
            return highest | Magnitude.INFINITE
        match operator.magnitude_effect:
            case MagnitudeEffect.BOUNDED:
                return Magnitude.MODERATE
            case MagnitudeEffect.CLAMPED:  # infinite bounds let infinities pass, and make none
                if Magnitude.INFINITE in _union(bounds):
                    return read[0] | (highest & Magnitude.HUGE)
                return Magnitude.HUGE if highest else Magnitude.MODERATE
            case MagnitudeEffect.MIXED:
                weights = [value for value in node.operands if graph[value.vertex].is_constant]
                return _union(self._operand_magnitude(graph, weight) for weight in weights) & Magnitude.INFINITE
            case reach:
                overflows = Magnitude.HUGE in highest and _overflows(graph, node, reach, read)
                return highest | (Magnitude.INFINITE if overflows else Magnitude.MODERATE)

    def _value_sign(self, graph: Graph, value: Value | None, depth: int) -> Sign:
        """Return the sign of a value's elements, as far as it is known."""
        if value is None or not depth:
            return Sign.UNKNOWN
        seen, found = self._signs.get(value, (0, Sign.UNKNOWN))
        if seen < depth:
            node = graph[value.vertex]
            operator = lookup_operator(node.op, node.domain)
            if node.is_constant:
                found = _constant_sign(node.data)
            elif operator.selects_elements:
                found = self._value_sign(graph, node.inputs[0], depth - 1)
            elif not (node.is_internal or value.output or self._may_cancel(graph, node, depth - 1)):
                found, _ = self._node_sign(graph, node, depth - 1)
            self._signs[value] = depth, found
        return found

    def _may_cancel(self, graph: Graph, node: Node, depth: int) -> bool:
        """Return whether a node sums up products of either sign, for all that is known of its operands; weights, which
        mostly have both, are asked last."""
        if not _sums_up_products(node):
            return False
        operands = sorted(node.operands, key=lambda value: graph[value.vertex].is_constant)
        return not all(self._value_sign(graph, value, depth) & Sign.NONNEGATIVE for value in operands)

    def _node_sign(self, graph: Graph, node: Node, depth: int) -> tuple[Sign, bool]:
        """Return the sign of a node's elements, as far as it is known, and whether they may be infinite."""
        question = build_element_query(NodeOperands(graph, node))
        if question is None:
            return Sign.UNKNOWN, True
        given = tuple(self._value_sign(graph, value, depth) for value in node.inputs)
        if _sums_up_products(node):  # a product of small numbers may vanish, so that constants alone are surely not 0
            given = tuple(
                sign if value is not None and graph[value.vertex].is_constant else sign & ~Sign.NONZERO
                for value, sign in zip(node.inputs, given, strict=True)
            )
        return infer_sign(question, given, tuple(map(node.inputs.index, node.inputs)))

    def _operand_magnitude(self, graph: Graph, value: Value) -> Magnitude:
        return self._magnitudes[value.vertex] if _is_float_value(graph, value) else Magnitude.MODERATE


_ANALYSES: WeakKeyDictionary[Graph, MagnitudeAnalysis] = WeakKeyDictionary()


def may_have_magnitude(graph: Graph, values: Iterable[Value], far: Magnitude = Magnitude.INFINITE) -> bool:
    """Return whether one of the values may hold an infinity that the model means, or numbers of this magnitude."""
    known = _get_analysis(graph)
    return any(far in known.get_magnitude(graph, value) for value in values)


def is_finiteness_observed(graph: Graph, vertex: int) -> bool:
    """Return whether an observer reads the result of a vertex, or a value computed from it."""
    return vertex in _get_analysis(graph).observed


def _get_analysis(graph: Graph) -> MagnitudeAnalysis:
    if graph not in _ANALYSES:
        _ANALYSES[graph] = MagnitudeAnalysis(graph)
    return _ANALYSES[graph]


def mark_bodies(graph: Graph, vertex: int) -> list[Graph]:
    """Mark in the bodies of a node the magnitudes of values read from outside, and outputs whose finiteness is observed
    there; return the bodies to which that is new."""
    told = []
    node = graph[vertex]
    given = [value for value in node.inputs if value is not None]
    for body in node.bodies:
        before = _body_marks(body)
        inside = {
            v: node.captures[body[v].capture_index] for v in body.vertices_with_op(CAPTURE) if body[v].is_internal
        }
        marked = {
            far: frozenset(capture for capture, value in inside.items() if may_have_magnitude(graph, [value], far))
            | frozenset(body.inputs if may_have_magnitude(graph, given, far) else ())
            for far in (Magnitude.INFINITE, Magnitude.HUGE)
        }
        asked = frozenset(range(len(body.outputs)) if is_finiteness_observed(graph, vertex) else ())
        _set_body_marks(body, marked, asked)
        if node.op in LOOPING_OPERATORS:  # whose outputs are the inputs of the next turn
            turned = {
                far: frozenset(body.inputs if may_have_magnitude(body, body.outputs, far) else ()) for far in marked
            }
            _set_body_marks(body, {far: on | turned[far] for far, on in marked.items()}, asked)
        if _body_marks(body) != before:
            told.append(body)
    return told


def _body_marks(body: Graph) -> tuple[frozenset[int], ...]:
    return body.possibly_infinite, body.possibly_huge, body.finiteness_requested


def _set_body_marks(body: Graph, marked: Mapping[Magnitude, frozenset[int]], asked: frozenset[int]) -> None:
    told = marked[Magnitude.INFINITE], marked[Magnitude.HUGE], asked
    if told != _body_marks(body):
        body.possibly_infinite, body.possibly_huge, body.finiteness_requested = told
        invalidate_analysis(body)


def invalidate_analysis(graph: Graph) -> None:
    """Forget the analysis of a graph that has changed: a dropped observer no longer counts."""
    _ANALYSES.pop(graph, None)


def _may_make_infinity(part: Term) -> bool:
    """Return whether a part of a meaning is an infinity, or an operator that may make one: it divides, say, by more
    than a written number."""
    if isinstance(part, Lit):
        return isinstance(part.value, float) and abs(part.value) == inf
    if not isinstance(part, App) or not lookup_operator(part.op, part.domain).has_poles:
        return False
    return not any(
        isinstance(arg, Lit) and isinstance(arg.value, int | float) and arg.value > 0 for arg in part.args[1:]
    )


def _mask_vertex(graph: Graph, vertex: int) -> int | None:
    """Return the vertex that makes the mask of an operator that has one."""
    node = graph[vertex]
    place = lookup_operator(node.op, node.domain).mask_input
    value = node.inputs[place] if place is not None and place < len(node.inputs) else None
    return None if value is None else value.vertex


def _magnitude_effect(node: Node) -> MagnitudeEffect:
    return lookup_operator(node.op, node.domain).magnitude_effect


def _is_float_value(graph: Graph, value: Value) -> bool:
    dtype = graph.dtype(value)
    return dtype.is_float or dtype is DType.UNDEFINED


def _sums_up_products(node: Node) -> bool:
    """Return whether a node is a product of matrices, a convolution or their like."""
    operator = lookup_operator(node.op, node.domain)
    return operator.is_sum_of_products and operator.magnitude_effect is MagnitudeEffect.MIXED


_CONSTANT_SIGNS: WeakKeyDictionary[Tensor, Sign] = WeakKeyDictionary()


def _constant_sign(tensor: Tensor | None) -> Sign:
    """Return the sign of a constant, read once."""
    if tensor is None or not (tensor.dtype.is_float or tensor.dtype.is_integer) or tensor.size > MAX_MASK_ELEMENTS:
        return Sign.UNKNOWN
    known = _CONSTANT_SIGNS.get(tensor)
    if known is None:
        array = tensor.numpy()
        known = Sign.NONNEGATIVE if bool(np.all(array >= 0)) else Sign.UNKNOWN
        known |= Sign.NONZERO if bool(np.all(array != 0)) else Sign.UNKNOWN
        _CONSTANT_SIGNS[tensor] = known
    return known


_CONSTANT_MAGNITUDES: WeakKeyDictionary[Tensor, Magnitude] = WeakKeyDictionary()


def _constant_magnitude(tensor: Tensor) -> Magnitude:
    """Return the magnitude of a constant, read once. A tensor that is larger than any mask holds weights."""
    if not tensor.dtype.is_float or not 0 < tensor.size <= MAX_MASK_ELEMENTS:
        return Magnitude.MODERATE
    known = _CONSTANT_MAGNITUDES.get(tensor)
    if known is None:
        array = tensor.numpy()
        finite = array[np.isfinite(array)]  # NaN is as little a number as an infinity
        far = (
            Magnitude.HUGE
            if finite.size and is_huge(max(finite.max(), -finite.min()), tensor.dtype)
            else Magnitude.MODERATE
        )
        known = _CONSTANT_MAGNITUDES[tensor] = far if finite.size == array.size else far | Magnitude.INFINITE
    return known


def is_huge(number: float, dtype: DType) -> bool:
    """Return whether a number is near the largest of a float type."""
    return abs(float(number)) > HUGE_FRACTION * float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


def _holds_for_all_elements(graph: Graph, value: Value, of_each: Callable[[NDArray[Any]], NDArray[Any]]) -> bool:
    """Return whether a value is a constant, and a predicate holds for all its elements."""
    tensor = graph.constant(value)
    if tensor is None or not tensor.is_small or not (tensor.dtype.is_float or tensor.dtype.is_integer):
        return False
    return bool(np.all(of_each(tensor.numpy().astype(np.float64))))


def _overflows(graph: Graph, node: Node, reach: MagnitudeEffect, read: Sequence[Magnitude]) -> bool:
    """Return whether huge numbers become infinite: two that are added, one that is multiplied, or cast to a smaller
    type."""
    match reach:
        case MagnitudeEffect.SUMMED:
            return sum(Magnitude.HUGE in far for far in read) > 1
        case MagnitudeEffect.MULTIPLIED:
            return not any(_holds_for_all_elements(graph, value, lambda x: abs(x) <= 1) for value in node.operands)
    narrows = 0 < _float_bits(node.types[0]) < max(_float_bits(graph.value_type(value)) for value in node.operands)
    return reach is MagnitudeEffect.AMPLIFIED or narrows


def _float_bits(type_: Type | None) -> int:
    return type_.dtype.bits if isinstance(type_, TensorType) and type_.dtype.is_float else 0


# -- where infinities are asked for ------------------------------------------------------------------------------------


def _observed_vertices(graph: Graph, questions: Iterable[int]) -> Iterator[int]:
    """Yield the vertices that an observer depends on, and the inputs that are masks."""
    told = [graph.outputs[place].vertex for place in sorted(graph.finiteness_requested)]
    yield from told
    stack = [*questions, *told]
    seen = set(stack)
    while stack:
        vertex = stack.pop()
        # behind a product, at most a row of attention weights is asked whether it is NaN
        mixes = _magnitude_effect(graph[vertex]) is MagnitudeEffect.MIXED
        for source in graph.sources(vertex):
            is_read = not mixes or graph[source].op in MASKED_OPERATORS or source == _mask_vertex(graph, vertex)
            if source in seen or graph[source].is_constant or not is_read:
                continue
            seen.add(source)
            yield source
            stack.append(source)
    if not graph.is_region:  # of its inputs it is known outside
        yield from _mask_inputs(graph)


def _find_observers(graph: Graph) -> Iterator[int]:
    """Yield the vertices that tell infinities from other numbers."""
    for op in COMPARISONS:
        for vertex in sorted(graph.vertices_with_op(op)):
            constants = [graph.constant(value) for value in graph[vertex].inputs]
            is_extreme = any(
                tensor is not None and _constant_magnitude(tensor) != Magnitude.MODERATE for tensor in constants
            )
            if is_extreme or len(constants) == 1:
                yield vertex
    for vertex, node in graph.nodes():
        if any(_get_analysis(body).observers for body in node.bodies):
            yield vertex  # it may ask of what it captures


def _mask_inputs(graph: Graph) -> Iterator[int]:
    """Yield the float inputs that are named masks, or added to the input of a Softmax, in an Attention too; factors are
    no masks."""
    for vertex in graph.inputs:
        is_factor = any(graph[reader].op in ("Mul", "Sub") for reader in graph.readers(vertex))
        if "mask" in graph[vertex].names[0].lower() and _is_float_value(graph, Value(vertex)) and not is_factor:
            yield vertex
    stack = [(vertex, False) for op in MASKED_OPERATORS for vertex in sorted(graph.vertices_with_op(op))]
    masks = (_mask_vertex(graph, vertex) for vertex in sorted(graph.vertices_with_op("Attention")))
    stack += [(mask, True) for mask in masks if mask is not None]
    seen = set(stack)
    while stack:
        vertex, is_added = stack.pop()
        if vertex in graph.inputs and is_added and _is_float_value(graph, Value(vertex)):
            yield vertex
        is_added |= graph[vertex].op in ("Add", "Sum")
        for source in graph.sources(vertex):
            if (source, is_added) not in seen and _magnitude_effect(graph[source]) not in (
                MagnitudeEffect.MIXED,
                MagnitudeEffect.BOUNDED,
            ):
                seen.add((source, is_added))
                stack.append((source, is_added))
