"""Finding where a rule's left side occurs in a graph: exactly, or not at all.

What is not said by a pattern is not allowed: other attributes must have their defaults, other inputs be absent. Three
facts of operators are known here so that rules need not repeat them: operands of commutative operators may be
swapped, a constant operand of an elementwise operator may be spelt in any shape that broadcasts alike, and to divide
by a constant is to multiply by its reciprocal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.types import DType, Shape, TensorType
from graphopt.ir import ops
from graphopt.ir.graph import Attribute, Graph, Node, Value, same_attribute
from graphopt.ir.tensor import Tensor
from graphopt.language.binding import Absent, Axes, Bound, Known, broadcast, evaluate, sizes_of, unify
from graphopt.language.rule import Rule
from graphopt.language.scalar import Unknown
from graphopt.language.term import SCALAR, App, Lit, Term, Var, is_scalar
from graphopt.operators import facts
from graphopt.operators.classes import broadcasts, entry
from graphopt.operators.declared import is_as_defined
from graphopt.operators.families import Particular
from graphopt.operators.families import roots as named
from graphopt.rewrite import grids
from graphopt.rewrite.constants import (
    has_reciprocals,
    is_number,
    is_spelling,
    known_tensor,
    other_operand,
    real_number,
    same_float,
)
from graphopt.rewrite.met import particulars_met


@dataclass(frozen=True)
class Match:
    """Where a rule applies: the values its left sides stand for, and what its holes and axes are bound to."""

    rule: Rule
    roots: tuple[Value, ...]
    holes: Mapping[str, Bound]
    axes: Axes
    terms: Mapping[App, Value]
    """The value that each operator of the left side matched."""
    reordered: bool = False
    """Some operator has its inputs in another order than the rule writes, which floats may be rounded by."""

    @property
    def vertices(self) -> frozenset[int]:
        return frozenset(value.vertex for value in self.terms.values())


def find(rule: Rule, graph: Graph, vertex: int | None = None) -> Iterator[Match]:
    """Yield the matches of a rule: everywhere, or those in which one of its left sides ends at `vertex`."""
    if vertex is None:
        for candidate in sorted(set().union(*map(graph.with_op, roots(rule.left[0])))):
            for each in particulars_met(rule, graph, candidate, 0):
                yield from _anchored(each, graph, candidate, 0)
        return
    for position, side in enumerate(rule.left):
        if graph[vertex].op in roots(side):
            for each in particulars_met(rule, graph, vertex, position):
                yield from _anchored(each, graph, vertex, position)


def _anchored(rule: Rule, graph: Graph, vertex: int, position: int) -> Iterator[Match]:
    side = rule.left[position]
    others = [other for index, other in enumerate(rule.left) if index != position]
    for state in _match_app(graph, side, Value(vertex, side.output), _State({}, {}, {})):
        for complete in _match_others(graph, others, state):
            settled = _settled(complete)
            match = settled and _finish(rule, settled)
            if match and _holds(rule, graph, match) and _are_of_equal_types(graph, match):
                yield match


def _are_of_equal_types(graph: Graph, match: Match) -> bool:
    """Return whether the operator that a hole stands for has operands of the same element types wherever it occurs."""
    for apps in match.rule.same if isinstance(match.rule, Particular) else ():
        nodes = (graph[match.terms[app].vertex] for app in apps)
        types = {tuple(graph.dtype(value) for value in node.operands) for node in nodes}
        if len(types) > 1 or any(DType.UNDEFINED in each for each in types):
            return False
    return True


def _match_others(graph: Graph, others: Sequence[App], state: _State) -> Iterator[_State]:
    """Match further left sides, found through a hole that they share with what is matched already."""
    if not others:
        yield state
        return
    for candidate in _candidates(graph, others[0], state):
        if candidate not in state.terms.values():
            for found in _match_app(graph, others[0], candidate, state):
                yield from _match_others(graph, others[1:], found)


def _candidates(graph: Graph, side: App, state: _State) -> Iterator[Value]:
    """Values that the root of `side` may be, given that one of its holes is bound already."""
    for arg in side.operands:
        match arg:
            case Var(name=name) if isinstance(bound := state.holes.get(name), Value):
                sources = [bound]
            case App() if arg in state.terms:
                sources = [state.terms[arg]]
            case App(domain=domain) if domain != SCALAR:
                sources = list(_candidates(graph, arg, state))
            case _:
                continue
        seen: set[int] = set()
        for source in sources:
            for reader in sorted(graph.readers(source.vertex)):
                if reader not in seen and graph[reader].op in roots(side):
                    seen.add(reader)
                    yield Value(reader, side.output)
        return


@dataclass(frozen=True, slots=True)
class _State:
    """A partial match. Never changed: a step makes a new one."""

    holes: Mapping[str, Bound]
    axes: Axes
    terms: Mapping[App, Value]
    pending: tuple[_Constant, ...] = ()
    """Constants in a declared shape, looked at when all axes are bound."""
    reordered: bool = False

    def bind(self, name: str, bound: Bound) -> _State | None:
        if name in self.holes:
            return self if _same(self.holes[name], bound) else None
        return _State({**self.holes, name: bound}, self.axes, self.terms, self.pending, self.reordered)

    def after(self, reordered: bool) -> _State:
        """Return the same, once inputs were matched in some order."""
        return replace(self, reordered=True) if reordered else self


@dataclass(frozen=True, slots=True)
class _Constant:
    hole: Var
    value: Value | None
    tensor: Tensor | None
    other: Shape | None
    """Shape of the other operand where this one may broadcast to it, else None."""
    broadcasts: bool
    dtype: DType
    """Of the reader's output: that of an input that is absent."""
    is_inverted: bool = False
    """Whether the rule has the reciprocal in its place."""


def _same(left: Bound, right: Bound) -> bool:
    """Two occurrences of one hole: the same value, equal numbers, equal attributes."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same_attribute(left[key], right[key]) for key in left)
    if isinstance(left, Value | Known | Absent) or isinstance(right, Value | Known | Absent):
        return left == right
    return not isinstance(left, Mapping) and not isinstance(right, Mapping) and same_attribute(left, right)


# -- operators and their inputs ------------------------------------------------------------------------------------


def _match_app(graph: Graph, app: App, value: Value, state: _State) -> Iterator[_State]:
    node = graph[value.vertex]
    if node.op == "Div" and scales(app):
        yield from _match_quotient(graph, app, value, state)
    if node.op != app.op or node.domain != app.domain or value.output != app.output:
        return
    if not _means_the_same(graph, app, node) or not _producers_fit(graph, app, node) or not _outputs_fit(app, node):
        return
    if app in state.terms:
        if state.terms[app] == value:
            yield state
        return
    inputs = (*node.inputs, *(None,) * (len(app.inputs) - len(node.inputs)))
    if any(extra is not None for extra in inputs[len(app.inputs) :]):
        return
    with_attributes = _match_attributes(graph, app, node, state)
    if with_attributes is None:
        return
    terms = {**state.terms, app: value}
    seen = _State(with_attributes.holes, state.axes, terms, state.pending, state.reordered)
    for order in _orders(app, inputs[: len(app.inputs)]):
        pairs = tuple(zip(app.inputs, order, strict=True))
        bound = _bind_implied(graph, node, pairs, seen.after(_rounds_otherwise(app.op, order, inputs)))
        if bound is not None:
            yield from _match_inputs(graph, node, [pair for pair in pairs if not _is_implied(*pair)], bound)


def _match_quotient(graph: Graph, app: App, value: Value, state: _State) -> Iterator[_State]:
    """Match a product with a number to a quotient: the number is the reciprocal of the divisor."""
    node = graph[value.vertex]
    dividend, divisor = node.inputs
    tensor = known_tensor(graph, divisor)
    if divisor is None or tensor is None or state.terms.get(app, value) != value:
        return
    if node.version != ops.newest("Div", ""):
        return
    terms = {**state.terms, app: value}
    begun = _State(state.holes, state.axes, terms, state.pending, state.reordered)
    for factor, other in permutations(app.operands):
        for found in _match_input(graph, node, other, dividend, begun) if _is_numbers(factor) else ():
            complete = _match_reciprocal(graph, node, factor, divisor, found) if has_reciprocals(tensor) else None
            if complete is not None:
                yield complete


def _match_reciprocal(graph: Graph, node: Node, pattern: Term, divisor: Value, state: _State) -> _State | None:
    """Match what a product multiplies by to the reciprocal of a constant."""
    match pattern:
        case Var(kind="const"):
            found = _match_const(graph, node, pattern, divisor, state)
            return found and replace(found, pending=(*found.pending[:-1], replace(found.pending[-1], is_inverted=True)))
        case Var(name=name, kind="real"):
            own = real_number(graph, node, divisor)
            return None if own is None else state.bind(name, 1 / own)
        case Lit() | App():
            number = pattern.value if isinstance(pattern, Lit) else _number(pattern)
            if isinstance(number, int | float) and number != 0 and is_number(graph, node, 1 / number, divisor):
                return state
    return None


def _means_the_same(graph: Graph, app: App, node: Node) -> bool:
    """Return whether a node means what rules are written for: its version, or the shapes that its declaration asks
    for."""
    if ops.is_declared(node.op, node.domain):
        return node.version > 0 and is_as_defined(graph, node)
    return node.version == ops.newest(app.op, app.domain)


def _producers_fit(graph: Graph, app: App, node: Node) -> bool:
    """Look quickly at what makes the inputs, which tells most patterns that do not match."""
    if entry(app.op, app.domain).commutes:
        return makers(graph, node).issuperset(producers(app))
    return all(
        value is not None and matched_as(graph[value.vertex].op) == matched_as(arg.op)
        for arg, value in zip(app.inputs, node.inputs, strict=False)
        if isinstance(arg, App) and arg.domain != SCALAR
    )


@ops.reads_schemas
def roots(app: App) -> frozenset[str]:
    """Return the operators that a node may be for a pattern to match it."""
    return named(app) | {"Div"} if scales(app) else named(app)


@cache
def scales(app: App) -> bool:
    """Return whether a pattern multiplies something by a number or constant, so that a quotient may match it, too."""
    return (app.op, app.domain) == ("Mul", "") and sum(map(_is_numbers, app.operands)) == 1


def _is_numbers(pattern: Term) -> bool:
    """Return whether a pattern is a constant: a hole for one, or what the rule itself says."""
    return is_scalar(pattern) or (isinstance(pattern, Var) and pattern.kind == "const")


def matched_as(op: str) -> str:
    """Return the operator among those of patterns that may match a node: a quotient may be a product."""
    return "Mul" if op == "Div" else op


@cache
def producers(app: App) -> frozenset[str]:
    """Return the kinds of operators that make the inputs of what a pattern matches, as far as it says."""
    known = (arg for arg in app.inputs if isinstance(arg, App) and arg.domain not in (SCALAR, *ops.CLASSES))
    return frozenset(_told_apart(arg.op for arg in known))


def makers(graph: Graph, node: Node) -> set[str]:
    """Return the kinds of operators that make the inputs of a node, to be compared with those of a pattern."""
    return _told_apart(graph[value.vertex].op for value in node.operands)


def _told_apart(operators: Iterable[str]) -> set[str]:
    """Return kinds of operators; that of two inputs is there twice, so that a pattern of two products needs both."""
    kinds: set[str] = set()
    for kind in map(matched_as, operators):
        kinds.add(kind if kind not in kinds else f"{kind} twice")
    return kinds


def _is_implied(pattern: Term | None, value: Value | None) -> bool:
    """Return whether an optional input of numbers is absent."""
    return value is None and isinstance(pattern, Var) and pattern.kind == "integers"


def _bind_implied(
    graph: Graph, node: Node, pairs: Sequence[tuple[Term | None, Value | None]], state: _State
) -> _State | None:
    """Bind the holes of absent inputs to the numbers that these stand for."""
    bound: _State | None = state
    for position, (pattern, value) in enumerate(pairs):
        if bound is not None and isinstance(pattern, Var) and _is_implied(pattern, value):
            numbers = facts.implied_input(node, graph, position)
            bound = None if numbers is None else bound.bind(pattern.name, numbers)
    return bound


def _outputs_fit(app: App, node: Node) -> bool:
    """Return whether a node with a variable number of outputs has as many as the pattern; others may have unread
    ones."""
    count = len(node.names)
    return count == app.outputs or (count > app.outputs and not _is_variadic(app.op, app.domain))


@ops.reads_schemas
def _is_variadic(op: str, domain: str) -> bool:
    schema = ops.schema(op, domain)
    return schema is not None and bool(schema.outputs) and bool(schema.outputs[-1].option == _VARIADIC)


_VARIADIC = OpSchema.FormalParameterOption.Variadic


def _orders(app: App, inputs: tuple[Value | None, ...]) -> Iterator[tuple[Value | None, ...]]:
    """Yield the inputs in every order that means the same."""
    if 1 < len(inputs) <= 3 and entry(app.op, app.domain).commutes:
        yield from dict.fromkeys(permutations(inputs))
    else:
        yield inputs


def _rounds_otherwise(op: str, order: tuple[Value | None, ...], inputs: tuple[Value | None, ...]) -> bool:
    """Return whether another order of inputs may give another float."""
    return order != inputs[: len(order)] and (len(order) > 2 or not entry(op).commutes_exactly)


def _match_inputs(
    graph: Graph, node: Node, pairs: Sequence[tuple[Term | None, Value | None]], state: _State
) -> Iterator[_State]:
    if not pairs:
        yield state
        return
    (pattern, value), rest = pairs[0], pairs[1:]
    for found in _match_input(graph, node, pattern, value, state):
        yield from _match_inputs(graph, node, rest, found)


def _match_input(
    graph: Graph, node: Node, pattern: Term | None, value: Value | None, state: _State
) -> Iterator[_State]:
    if isinstance(pattern, App) and pattern.domain != SCALAR:
        if value is not None:
            yield from _match_app(graph, pattern, value, state)
        return
    found = _match_leaf(graph, node, pattern, value, state)
    if found is not None:
        yield found


def _match_leaf(graph: Graph, node: Node, pattern: Term | None, value: Value | None, state: _State) -> _State | None:
    match pattern:
        case None:
            return state if value is None else None
        case App():
            return state if is_number(graph, node, _number(pattern), value) else None
        case Lit(value=number):
            return state if is_number(graph, node, number, value) else None
        case Var(kind="tensor"):
            return None if value is None else _match_tensor(graph, pattern, value, state)
        case Var(kind="const"):
            return _match_const(graph, node, pattern, value, state)
        case Var():
            return _match_elements(graph, node, pattern, value, state)


def _number(term: App) -> object:
    """Return what is computed in the rule, such as sqrt(2); None, which nothing equals, where that has no value."""
    try:
        return evaluate(term, {}, {}, None)
    except Unknown:
        return None


def _match_tensor(graph: Graph, hole: Var, value: Value, state: _State) -> _State | None:
    bound = state.bind(hole.name, value)
    if bound is None or hole.axes is None or bound is state:
        return bound
    shape = graph.shape(value)
    axes = None if shape is None else unify(hole.axes, shape, bound.axes)
    return None if axes is None else _State(bound.holes, axes, bound.terms, bound.pending, bound.reordered)


def _match_const(graph: Graph, node: Node, hole: Var, value: Value | None, state: _State) -> _State | None:
    tensor = known_tensor(graph, value)
    if tensor is None and not (value is None and hole.default is not None):
        return None
    other = other_operand(graph, node, value) if value is not None else None
    pairs = broadcasts(node.op, node.domain)
    made = node.types[0]
    dtype = made.dtype if isinstance(made, TensorType) else DType.UNDEFINED
    pending = _Constant(hole, value, tensor, other, pairs, dtype)
    return _State(state.holes, state.axes, state.terms, (*state.pending, pending), state.reordered)


def _match_elements(graph: Graph, node: Node, hole: Var, value: Value | None, state: _State) -> _State | None:
    """Match a hole for numbers in the position of an input: a small constant, or integers that are known as sizes
    are."""
    if hole.kind == "real":
        number = real_number(graph, node, value)
        return None if number is None else state.bind(hole.name, number)
    tensor, shape = graph.constant(value), graph.shape(value)
    numbers = graph.known_contents(value) if tensor is None else tensor.ints()
    if numbers is None or value is None or shape is None:
        return None
    if hole.kind == "integer":
        is_one = len(numbers) == 1 and is_spelling(graph, node, value, shape)
        return state.bind(hole.name, numbers[0]) if is_one else None
    return state.bind(hole.name, numbers) if hole.kind == "integers" and len(shape) == 1 else None


# -- attributes ----------------------------------------------------------------------------------------------------


def _match_attributes(graph: Graph, app: App, node: Node, state: _State) -> _State | None:
    found: _State | None = state
    named = {name for name, _ in app.attrs}
    for name, pattern in app.attrs:
        value = facts.attribute(node, graph, name)
        found = None if value is None or found is None else _match_attribute(pattern, value, found)
        if found is None:
            return None
    others = {name: value for name, value in node.attrs.items() if name not in named}
    if app.bundle is not None:
        return found.bind(app.bundle.name, others) if found else None
    for name, value in others.items():
        default = facts.default(node, graph, name)
        if default is None or not same_attribute(default, value):
            return None
    return found


def _match_attribute(pattern: Term, value: Attribute, state: _State) -> _State | None:
    match pattern:
        case Var(name=name, kind=kind):
            return state.bind(name, value) if _of_kind(kind, value) else None
        case Lit(value=number):
            return state if _attribute_equals(value, number) else None
        case App():
            return state if _attribute_equals(value, _number(pattern)) else None


def _attribute_equals(value: Attribute, number: object) -> bool:
    """ONNX attributes are float32, and lists have the type that they were written with."""
    if isinstance(value, float) and isinstance(number, int | float):
        return same_float(float(np.float32(value)), float(np.float32(number)))
    return value == number


def _of_kind(kind: str, value: Attribute) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int)
        case "integers":
            return isinstance(value, tuple) and all(isinstance(item, int) for item in value)
        case "real":
            return isinstance(value, float)
        case "string":
            return isinstance(value, str)
    return False


# -- axes ----------------------------------------------------------------------------------------------------------


def _settled(state: _State) -> _State | None:
    """Decide the constants, now that all axes are bound. Those whose axes nothing else binds bind them first."""
    holes, axes = dict(state.holes), state.axes
    waiting = list(state.pending)
    while waiting:
        index = next((i for i, constant in enumerate(waiting) if _declared(constant, axes) is not None), 0)
        constant = waiting.pop(index)
        settled = _settle(constant, axes)
        if settled is None:
            return None
        bound, axes = settled
        if constant.hole.name in holes and not _same(holes[constant.hole.name], bound):
            return None
        holes[constant.hole.name] = bound
    return _State(holes, axes, state.terms, reordered=state.reordered)


def _declared(constant: _Constant, axes: Axes) -> Shape | None:
    return None if constant.hole.axes is None else sizes_of(constant.hole.axes, axes)


def _settle(constant: _Constant, axes: Axes) -> tuple[Bound, Axes] | None:
    declared = _declared(constant, axes)
    if constant.tensor is None or constant.value is None:
        if declared is None or not _all_ints(declared) or constant.hole.default is None:
            return None
        if constant.dtype is DType.UNDEFINED:
            return None
        return Absent(constant.hole.default, _ints(declared), constant.dtype), axes
    own = constant.tensor.shape
    known = Known(constant.value, constant.tensor, own, constant.is_inverted)
    if constant.hole.axes is None or own == declared:
        return known, axes
    if declared is not None:
        if not constant.broadcasts or not _all_ints(declared) or not _broadcasts(own, _ints(declared), constant.other):
            return None
        return replace(known, shape=_ints(declared)), axes
    unified = unify(constant.hole.axes, own, axes)
    return None if unified is None else (known, unified)


def _all_ints(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)


def _ints(shape: Shape) -> tuple[int, ...]:
    return tuple(int(size) for size in shape if isinstance(size, int))


def _broadcasts(own: tuple[int, ...], declared: tuple[int, ...], other: Shape | None) -> bool:
    """Return whether a constant of shape `own` beside an operand of shape `other` acts like one of the declared
    shape."""
    if other is None:
        return False
    extra = len(own) - len(declared)
    if extra > 0 and any(size != 1 for size in own[:extra]):
        return False
    trimmed = own[max(extra, 0) :]
    if broadcast(trimmed, declared) != declared:
        return False
    return broadcast(own, other) is not None and broadcast(own, other) == broadcast(declared, other)


# -- the end of a match --------------------------------------------------------------------------------------------


def _finish(rule: Rule, state: _State) -> Match:
    roots = tuple(state.terms[side] for side in rule.left)
    return Match(rule, roots, state.holes, state.axes, state.terms, state.reordered)


def _holds(rule: Rule, graph: Graph, match: Match) -> bool:
    try:
        said = all(evaluate(condition, match.holes, match.axes, graph) for condition in rule.conditions)
        return said and all(_counts(graph, match, app) for app in rule.counting.values())
    except Unknown:
        return False


def _counts(graph: Graph, match: Match, counts: App) -> bool:
    """Return whether a tensor that a rule wants to count does, where it is no constant, of which that is known."""
    value = match.holes[str(counts.args[0])]
    if not isinstance(value, Value):
        return True
    sizes = (evaluate(arg, match.holes, match.axes, graph) for arg in counts.operands[1:])
    return graph.constant(value) is not None or grids.counts(graph, value, *sizes)
