"""Which values of a graph may hold an infinity that the model means: -inf in a mask, the logarithm of 0, 1/0.

And which may hold numbers near the largest of their type, as masks do, too: two of them make an infinity.

A rule that is proved for finite values alone is kept away from them. Infinities that numbers overflow to are not
looked for, neither are those that a caller feeds, unless the model asks for them or takes them for a mask: any value
might hold one. What adds up products (a convolution, a normalization) makes no use of an infinity: behind it none is
meant, unless it is one of its weights.
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

from graphopt.base.types import DType, TensorType, Type
from graphopt.ir import ops
from graphopt.ir.graph import CAPTURE, INPUT, Graph, Node, Value
from graphopt.ir.tensor import Tensor
from graphopt.language.term import App, Lit, Term
from graphopt.operators import declared
from graphopt.operators.classes import entry
from graphopt.operators.elementwise import COMPARISONS
from graphopt.operators.known import question_of_elements
from graphopt.operators.operands import Operands
from graphopt.operators.operator import Reach
from graphopt.operators.signs import Sign, told


class Far(Flag):
    """How far from zero the elements of a value may lie; some of them in one way, and some in another."""

    ORDINARY = 0
    HUGE = 1
    """Near the largest number of the type, as in masks: the sum of two is an infinity."""
    INFINITE = 2


def _together(far: Iterable[Far]) -> Far:
    return reduce(or_, far, Far.ORDINARY)


HUGE_PART = 0.25
"""Of the largest number of a type, from which on a constant counts as huge."""

DEEPEST = 8
"""Operators that are looked through for the sign of what is divided by."""

LARGEST_MASK = 1 << 24
"""Elements up to which a constant is looked at."""

REPEATED = ("Loop", "Scan")
"""Operators whose bodies read what they have made."""

MASKED = ("Softmax", "LogSoftmax")
"""Operators that masks are added ahead of."""


class Infinities:
    """What is known of one graph. A vertex computes the same in every state of its graph: each is looked at once."""

    def __init__(self, graph: Graph) -> None:
        self._reach: dict[int, Far] = {}
        self._signs: dict[Value, tuple[int, Sign]] = {}
        """By value what is known of it, and how many operators were looked through for that."""
        self.questions = tuple(_questions(graph))
        """The operators that tell infinities from other numbers, those with such bodies too."""
        self.asked = frozenset(_asked(graph, self.questions))

    def reach(self, graph: Graph, value: Value) -> Far:
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
        return self._reach[value.vertex] if _is_float(graph, value) else Far.ORDINARY

    def _of(self, graph: Graph, vertex: int) -> Far:
        given = Far.HUGE if vertex in graph.huge else Far.ORDINARY
        if vertex in self.asked or vertex in graph.infinite:
            given |= Far.INFINITE
        if vertex in self.asked and graph[vertex].op == INPUT and not graph.is_region:
            given |= Far.HUGE  # a caller masks with either
        return given | self._made(graph, graph[vertex])

    def _made(self, graph: Graph, node: Node) -> Far:
        """How far the elements lie that a node holds or makes of what it reads."""
        if node.is_constant or node.is_internal:  # an input may have a default
            return Far.ORDINARY if node.data is None else _of_constant(node.data)
        read = [self._read(graph, value) for value in node.operands]
        if ops.is_declared(node.op, node.domain):  # whatever it is called
            makes = any(_is_infinite(part) or _has_pole(part) for part in declared.parts(node))
            return _together(read) | (Far.INFINITE if makes else Far.ORDINARY)
        operator, bounds = entry(node.op, node.domain), read[1:]
        read += [_of_constant(value) for value in node.attrs.values() if isinstance(value, Tensor)]
        highest = _together([*read, *map(_of_bodies, node.bodies)])
        if operator.has_poles and self._told(graph, node, DEEPEST)[1]:
            return highest | Far.INFINITE
        match operator.reach:
            case Reach.BOUNDED:
                return Far.ORDINARY
            case Reach.CLAMPED:  # by bounds that may be infinite: then they let infinities pass, and make none
                if Far.INFINITE in _together(bounds):
                    return read[0] | (highest & Far.HUGE)
                return Far.HUGE if highest else Far.ORDINARY
            case Reach.MIXED:
                weights = [value for value in node.operands if graph[value.vertex].is_constant]
                return _together(self._read(graph, weight) for weight in weights) & Far.INFINITE
            case reach:
                overflows = Far.HUGE in highest and _overflows(graph, node, reach, read)
                return highest | (Far.INFINITE if overflows else Far.ORDINARY)

    def _sign(self, graph: Graph, value: Value | None, depth: int) -> Sign:
        """Return what is known of the signs of a value's elements."""
        if value is None or not depth:
            return Sign.UNKNOWN
        seen, found = self._signs.get(value, (0, Sign.UNKNOWN))
        if seen < depth:
            node = graph[value.vertex]
            operator = entry(node.op, node.domain)
            is_mixed = operator.adds_products and operator.reach is Reach.MIXED  # with weights of either sign
            if node.is_constant:
                found = _sign_of_constant(graph, value)
            elif operator.keeps:
                found = self._sign(graph, node.inputs[0], depth - 1)
            elif not (node.is_internal or value.output or is_mixed):
                found, _ = self._told(graph, node, depth - 1)
            self._signs[value] = depth, found
        return found

    def _told(self, graph: Graph, node: Node, depth: int) -> tuple[Sign, bool]:
        """Return what is known of the signs of a node's elements, and whether they may be infinite."""
        question = question_of_elements(Operands(graph, node))
        if question is None:
            return Sign.UNKNOWN, True
        given = tuple(self._sign(graph, value, depth) for value in node.inputs)
        return told(question, given, tuple(map(node.inputs.index, node.inputs)))

    def _read(self, graph: Graph, value: Value) -> Far:
        return self._reach[value.vertex] if _is_float(graph, value) else Far.ORDINARY


_KNOWN: WeakKeyDictionary[Graph, Infinities] = WeakKeyDictionary()


def may_hold(graph: Graph, values: Iterable[Value], far: Far = Far.INFINITE) -> bool:
    """Return whether one of the values may hold an infinity that the model means, or a number that lies so far."""
    known = _known(graph)
    return any(far in known.reach(graph, value) for value in values)


def is_asked(graph: Graph, vertex: int) -> bool:
    """Return whether a question reads what a vertex makes, or what is made of it."""
    return vertex in _known(graph).asked


def _known(graph: Graph) -> Infinities:
    if graph not in _KNOWN:
        _KNOWN[graph] = Infinities(graph)
    return _KNOWN[graph]


def mark_bodies(graph: Graph, vertex: int) -> list[Graph]:
    """Tell the bodies of a node how far the values may lie that they read from outside, and whether it is asked outside
    of what they make; return those to which any of it is new."""
    told = []
    node = graph[vertex]
    given = [value for value in node.inputs if value is not None]
    for body in node.bodies:
        before = _marks(body)
        inside = {v: node.captures[body[v].capture] for v in body.with_op(CAPTURE) if body[v].is_internal}
        marked = {
            far: frozenset(capture for capture, value in inside.items() if may_hold(graph, [value], far))
            | frozenset(body.inputs if may_hold(graph, given, far) else ())
            for far in (Far.INFINITE, Far.HUGE)
        }
        asked = frozenset(range(len(body.outputs)) if is_asked(graph, vertex) else ())
        _mark(body, marked, asked)
        if node.op in REPEATED:  # whose outputs are the inputs of the next turn
            turned = {far: frozenset(body.inputs if may_hold(body, body.outputs, far) else ()) for far in marked}
            _mark(body, {far: on | turned[far] for far, on in marked.items()}, asked)
        if _marks(body) != before:
            told.append(body)
    return told


def _marks(body: Graph) -> tuple[frozenset[int], ...]:
    return body.infinite, body.huge, body.asked


def _mark(body: Graph, marked: Mapping[Far, frozenset[int]], asked: frozenset[int]) -> None:
    told = marked[Far.INFINITE], marked[Far.HUGE], asked
    if told != _marks(body):
        body.infinite, body.huge, body.asked = told
        reconsider(body)


def reconsider(graph: Graph) -> None:
    """Ask anew of a graph that has changed: a question that is gone asks for nothing, as in a model that lacks it."""
    _KNOWN.pop(graph, None)


def _is_infinite(part: Term) -> bool:
    return isinstance(part, Lit) and isinstance(part.value, float) and abs(part.value) == inf


def _has_pole(part: Term) -> bool:
    """Return whether an operator of a meaning may make infinities: it divides, say, by more than a written number."""
    if not isinstance(part, App) or not entry(part.op, part.domain).has_poles:
        return False
    return not any(
        isinstance(arg, Lit) and isinstance(arg.value, int | float) and arg.value > 0 for arg in part.args[1:]
    )


def _mask_of(graph: Graph, vertex: int) -> int | None:
    """Return what makes the mask of an operator that has one."""
    node = graph[vertex]
    place = entry(node.op, node.domain).mask
    value = node.inputs[place] if place is not None and place < len(node.inputs) else None
    return None if value is None else value.vertex


def _reach(node: Node) -> Reach:
    return entry(node.op, node.domain).reach


def _is_float(graph: Graph, value: Value) -> bool:
    dtype = graph.dtype(value)
    return dtype.is_float or dtype is DType.UNDEFINED


def _of_bodies(body: Graph) -> Far:
    return _together(_known(body).reach(body, value) for value in body.outputs)


_LARGEST: WeakKeyDictionary[Tensor, Far] = WeakKeyDictionary()


def _of_constant(tensor: Tensor) -> Far:
    """How far the elements of a constant reach; each is read once. What is larger than any mask is weights."""
    if not tensor.dtype.is_float or not 0 < tensor.size <= LARGEST_MASK:
        return Far.ORDINARY
    if tensor not in _LARGEST:
        array = tensor.numpy()
        finite = array[np.isfinite(array)]  # NaN is as little a number as an infinity
        far = Far.HUGE if finite.size and is_huge(max(finite.max(), -finite.min()), tensor.dtype) else Far.ORDINARY
        _LARGEST[tensor] = far if finite.size == array.size else far | Far.INFINITE
    return _LARGEST[tensor]


def is_huge(number: float, dtype: DType) -> bool:
    """Return whether a number is near the largest of a type of floats."""
    return abs(float(number)) > HUGE_PART * float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


def _holds(graph: Graph, value: Value, of_each: Callable[[NDArray[Any]], NDArray[Any]]) -> bool:
    """Return whether a value is a constant of whose elements, all of them, something holds."""
    tensor = graph.constant(value)
    if tensor is None or not tensor.is_small or not (tensor.dtype.is_float or tensor.dtype.is_integer):
        return False
    return bool(np.all(of_each(tensor.numpy().astype(np.float64))))


def _sign_of_constant(graph: Graph, value: Value) -> Sign:
    not_negative = Sign.NOT_NEGATIVE if _holds(graph, value, lambda x: x >= 0) else Sign.UNKNOWN
    return not_negative | (Sign.NOT_ZERO if _holds(graph, value, lambda x: x != 0) else Sign.UNKNOWN)


def _overflows(graph: Graph, node: Node, reach: Reach, read: Sequence[Far]) -> bool:
    """Return whether huge numbers become infinite: two of them added up, one multiplied, or put into a smaller type."""
    match reach:
        case Reach.ADDED:
            return sum(Far.HUGE in far for far in read) > 1
        case Reach.MULTIPLIED:
            return not any(_holds(graph, value, lambda x: abs(x) <= 1) for value in node.operands)
    narrows = 0 < _bits(node.types[0]) < max(_bits(graph.type(value)) for value in node.operands)
    return reach is Reach.GROWN or narrows


def _bits(type_: Type | None) -> int:
    return type_.dtype.bits if isinstance(type_, TensorType) and type_.dtype.is_float else 0


# -- where infinities are asked for ------------------------------------------------------------------------------------


def _asked(graph: Graph, questions: Iterable[int]) -> Iterator[int]:
    """Yield what a question reads, back to where it comes from, and the inputs that are masks."""
    told = [graph.outputs[place].vertex for place in sorted(graph.asked)]
    yield from told
    stack = [*questions, *told]
    seen = set(stack)
    while stack:
        vertex = stack.pop()
        mixes = _reach(graph[vertex]) is Reach.MIXED  # then a row of weights is asked whether it is NaN, if anything
        for source in graph.sources(vertex):
            is_read = not mixes or graph[source].op in MASKED or source == _mask_of(graph, vertex)
            if source in seen or graph[source].is_constant or not is_read:
                continue
            seen.add(source)
            yield source
            stack.append(source)
    if not graph.is_region:  # of its inputs it is known outside
        yield from _masks(graph)


def _questions(graph: Graph) -> Iterator[int]:
    """Yield the operators that tell infinities from other numbers."""
    for op in COMPARISONS:
        for vertex in sorted(graph.with_op(op)):
            constants = [graph.constant(value) for value in graph[vertex].inputs]
            is_extreme = any(tensor is not None and _of_constant(tensor) != Far.ORDINARY for tensor in constants)
            if is_extreme or len(constants) == 1:
                yield vertex
    for vertex, node in graph.nodes():
        if any(_known(body).questions for body in node.bodies):
            yield vertex  # it may ask of what it captures


def _masks(graph: Graph) -> Iterator[int]:
    """Yield the float inputs that are called a mask, or added to what a Softmax reads, be it within an Attention; one
    that is a factor is 0 or 1."""
    for vertex in graph.inputs:
        is_factor = any(graph[reader].op in ("Mul", "Sub") for reader in graph.readers(vertex))
        if "mask" in graph[vertex].names[0].lower() and _is_float(graph, Value(vertex)) and not is_factor:
            yield vertex
    stack = [(vertex, False) for op in MASKED for vertex in sorted(graph.with_op(op))]
    masks = (_mask_of(graph, vertex) for vertex in sorted(graph.with_op("Attention")))
    stack += [(mask, True) for mask in masks if mask is not None]
    seen = set(stack)
    while stack:
        vertex, is_added = stack.pop()
        if vertex in graph.inputs and is_added and _is_float(graph, Value(vertex)):
            yield vertex
        is_added |= graph[vertex].op in ("Add", "Sum")
        for source in graph.sources(vertex):
            if (source, is_added) not in seen and _reach(graph[source]) not in (Reach.MIXED, Reach.BOUNDED):
                seen.add((source, is_added))
                stack.append((source, is_added))
