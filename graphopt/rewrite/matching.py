"""Matching: the places in a graph where a rule's left side occurs, exactly or not at all.

What a pattern does not say is not allowed: other attributes must have their defaults, other inputs be absent. Three
facts of operators are known here so that rules need not repeat them: operands of commutative operators may be swapped,
a constant operand of an elementwise operator may be spelt in any shape that broadcasts alike, and division by a
constant is multiplication by its reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, islice, permutations, product
from typing import Literal, TypeAlias

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import Attribute, Graph, Node, Value, attributes_equal
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape, TensorType
from graphopt.language.binding import (
    AxisSizes,
    Binding,
    ConstantBinding,
    DefaultBinding,
    broadcast_dims,
    evaluate_scalar,
    literal_value,
    resolve_axes,
    unify_axes,
)
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, is_pack, is_scalar, pack_holes
from graphopt.operators import node_facts
from graphopt.operators.declared_operators import satisfies_definition
from graphopt.operators.operator_classes import OperatorChoice, is_broadcasting, lookup_operator, operator_choices
from graphopt.operators.rule_families import RuleSpecialization, nonempty_packs, specialize_family
from graphopt.operators.rule_families import root_operators as named
from graphopt.rewrite import affine_indices
from graphopt.rewrite.constant_operands import (
    constant_tensor,
    floats_equal,
    has_reciprocals,
    is_number_constant,
    is_scalar_spelling,
    other_operand_shape,
    real_number,
)


@dataclass(frozen=True)
class Match:
    """A place where a rule applies: the values its left sides stand for, and what its holes and axes are bound to."""

    rule: Rule
    roots: tuple[Value, ...]
    holes: Mapping[str, Binding]
    axes: AxisSizes
    terms: Mapping[App, Value]
    """The value that each operator of the left side matched."""
    is_reordered: bool = False
    """Some operator has its inputs in another order than the rule writes, which floats may be rounded by."""

    @cached_property
    def vertices(self) -> frozenset[int]:
        return frozenset(value.vertex for value in self.terms.values())

    @property
    def bound_parts(self) -> int:
        """The number of operators that matched, and of holes that are bound."""
        return len({app.node for app in self.terms}) + len(self.holes)


MatchStep: TypeAlias = Literal[
    "operator",
    "outputs",
    "version",
    "same node",
    "further input",
    "attribute",
    "input",
    "inputs",
    "quotient",
    "other side",
    "constant",
    "spelling",
    "operand types",
    "conditions",
]
"""A step of matching a pattern, named for what it asks of a node; "inputs" is the quick look at their operators."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The step at which a pattern did not match, and how far it had matched before."""

    rule: Rule
    """The rule; of a family the rule with the operators that were met."""
    step: MatchStep
    state: PartialMatch
    """Partial match before the step; the term that failed is not in it."""
    pattern: Term | None = None
    """The term that failed; None for an absent input, and for what is asked of the whole match."""
    node: Node | None = None
    """The node of which an attribute or input was looked at."""
    value: Value | None = None
    """The value that the term was compared with; None where there is none."""
    attribute: str = ""
    """Name of the attribute that was looked at."""


MismatchListener: TypeAlias = Callable[[Mismatch], None]
"""Told of each step that fails while a pattern is matched."""


def find_matches(
    rule: Rule, graph: Graph, vertex: int | None = None, on_mismatch: MismatchListener | None = None
) -> Iterator[Match]:
    """Yield the matches of a rule: everywhere, or those in which one of its left sides ends at `vertex`.

    `on_mismatch` is told where and why there is none; quick looks, which reject most places without looking closely,
    are then left out.
    """
    matcher = Matcher(graph, rule, on_mismatch)
    if vertex is None:
        for candidate in sorted(set().union(*map(graph.vertices_with_op, root_operators_of(rule.left[0])))):
            yield from matcher.matches_of_side(0, candidate)
    else:
        yield from matcher.matches_ending_at(vertex)


def find_inner_matches(rule: Rule, graph: Graph, app: App) -> Iterator[PartialMatch]:
    """Yield where an operator of the left side of a rule matches, and all that it is applied to."""
    matcher = Matcher(graph, rule)
    for vertex in sorted(set().union(*map(graph.vertices_with_op, root_operators_of(app)))):
        yield from matcher.match_app(app, Value(vertex, app.output), PartialMatch({}, {}, {}))


MAX_KEYED_ELEMENTS = 64
"""Elements up to which the values of a constant count wherever a pattern is matched, as those of a single number do."""


class Matcher:
    """Matches patterns in one graph, and tells a listener, if there is one, why they do not match."""

    __slots__ = ("depth", "graph", "height", "instance", "is_local", "on_mismatch", "reads_weights", "rule")

    def __init__(self, graph: Graph, rule: Rule, on_mismatch: MismatchListener | None = None) -> None:
        self.graph, self.rule, self.on_mismatch = graph, rule, on_mismatch
        self.depth = pattern_depth(rule)
        self.instance = rule
        """The rule that is being matched: of a family that with the operators that were met."""
        self.is_local = True
        """True as long as nothing was looked at but the nodes near the last one, upwards."""
        self.height = 0
        """Number of nodes above the last one that were looked at, at most."""
        self.reads_weights = False
        """True if the values of a constant of more than `MAX_KEYED_ELEMENTS` floats may have been looked at."""

    def matches_ending_at(self, vertex: int) -> Iterator[Match]:
        """Yield the matches in which one of the left sides ends at a vertex."""
        for position, side in enumerate(self.rule.left):
            if self.graph[vertex].op in root_operators_of(side):
                yield from self.matches_of_side(position, vertex)

    def matches_of_side(self, position: int, vertex: int) -> Iterator[Match]:
        """Yield the matches in which the left side in this position ends at a vertex."""
        for each in self.instances(vertex, position):
            yield from self.matches_at(each, vertex, position)

    def instances(self, vertex: int, position: int) -> Iterator[Rule]:
        """Yield the rules of a family for the operators met in the places of its holes; another rule as it is.

        A listener is told of the holes at which the family itself does not match, where it has no rule for a place.
        """
        if not self.rule.is_family:
            yield self.rule
            return
        self.height, is_empty = self.depth + 1, True
        for found in _family_instances(self.graph, self.rule, self.rule.left[position], vertex):
            is_empty = False
            yield found
        if is_empty and self.on_mismatch is not None:
            yield self.rule

    def _fail(
        self,
        step: MatchStep,
        state: PartialMatch,
        pattern: Term | None = None,
        node: Node | None = None,
        value: Value | None = None,
        attribute: str = "",
    ) -> None:
        if self.on_mismatch is not None:
            self.on_mismatch(Mismatch(self.instance, step, state, pattern, node, value, attribute))

    def matches_at(self, rule: Rule, vertex: int, position: int) -> Iterator[Match]:
        """Yield the matches of a rule, or of one of the family, in which the left side in this position ends at a
        vertex."""
        self.instance, side = rule, rule.left[position]
        others = [other for index, other in enumerate(rule.left) if index != position]
        for state in self.match_app(side, Value(vertex, side.output), PartialMatch({}, {}, {})):
            self.is_local = self.is_local and not (others or rule.arange_conditions)
            self.reads_weights = self.reads_weights or bool(rule.property_conditions or rule.content_queries)
            for complete in self._match_other_sides(others, state):
                settled = self._resolve_constants(complete)
                if settled is None:
                    continue
                roots = tuple(settled.terms[side] for side in rule.left)
                match = Match(rule, roots, settled.holes, settled.axes, settled.terms, settled.is_reordered)
                if rule.canonical and not _is_spelled_alike(self.graph, match):
                    self._fail("spelling", settled)
                elif not _conditions_hold(rule, self.graph, match):
                    self._fail("conditions", settled)
                elif not _has_consistent_operand_types(self.graph, match):
                    self._fail("operand types", settled)
                else:
                    yield match

    def _match_other_sides(self, others: Sequence[App], state: PartialMatch) -> Iterator[PartialMatch]:
        """Match further left sides, found through a hole that they share with what is matched already."""
        if not others:
            yield state
            return
        taken = state.terms.values()
        candidates = [each for each in _candidate_roots(self.graph, others[0], state) if each not in taken]
        if self.on_mismatch is None:
            candidates = [each for each in candidates if _has_bound_numbers(self.graph, others[0], each.vertex, state)]
        if not candidates:
            self._fail("other side", state, others[0])
        for candidate in candidates:
            for found in self.match_app(others[0], candidate, state):
                yield from self._match_other_sides(others[1:], found)

    def match_app(self, app: App, value: Value, state: PartialMatch) -> Iterator[PartialMatch]:
        node = self.graph[value.vertex]
        self.height = max(self.height, self.depth - _term_depth(app) + 1)
        if node.op == "Div" and is_scaling(app):
            yield from self._match_quotient(app, value, state)
        if node.op != app.op or node.domain != app.domain or value.output != app.output:
            self._fail("operator", state, app, node, value)
            return
        failed = self._failed_step(app, node)
        if failed is not None:
            self._fail(failed, state, app, node, value)
            return
        if app in state.terms:
            if state.terms[app] == value:
                yield state
            else:
                self._fail("same node", state, app, node, value)
            return
        with_attributes = self._match_attributes(app, node, state)
        if with_attributes is None:
            return
        terms = {**state.terms, app: value}
        seen = PartialMatch(with_attributes.holes, state.axes, terms, state.pending, state.is_reordered)
        inputs = (*node.inputs[: len(app.inputs)], *(None,) * (len(app.inputs) - len(node.inputs)))
        for order, rounds_otherwise in _input_orders(app, inputs):
            pairs = tuple(zip(app.inputs, order, strict=True))
            bound = self._bind_implied(node, pairs, seen.with_reordering(rounds_otherwise))
            if bound is not None:
                yield from self._match_inputs(node, [pair for pair in pairs if not _is_absent_numbers(*pair)], bound)

    def _failed_step(self, app: App, node: Node) -> MatchStep | None:
        """Return what a node of the pattern's operator lacks, beside attributes; the last is a quick look at its inputs
        that rejects most nodes, of which a listener is to hear more."""
        extra_outputs = len(node.names) - app.outputs  # unread ones do not matter, unless the operator has any number
        if extra_outputs < 0 or (extra_outputs > 0 and _is_variadic(app.op, app.domain)):
            return "outputs"
        self.reads_weights = self.reads_weights or app.domain != ""  # a declaration may ask for what they are
        if not _has_rule_version(self.graph, app, node):
            return "version"
        if any(further is not None for further in node.inputs[len(app.inputs) :]):
            return "further input"
        if self.on_mismatch is None and not _producers_may_match(self.graph, app, node):
            return "inputs"
        return None

    def _match_quotient(self, app: App, value: Value, state: PartialMatch) -> Iterator[PartialMatch]:
        """Match a product with a number to a quotient, where the number is the reciprocal of the divisor."""
        node = self.graph[value.vertex]
        dividend, divisor = node.inputs
        tensor = constant_tensor(self.graph, divisor)
        if divisor is None or tensor is None or state.terms.get(app, value) != value:
            return
        if node.version != schemas.newest_version("Div", ""):
            return
        terms = {**state.terms, app: value}
        begun = PartialMatch(state.holes, state.axes, terms, state.pending, state.is_reordered)
        self.reads_weights = True
        for factor, other in permutations(app.operands):
            for found in self._match_input(node, other, dividend, begun) if _is_constant_pattern(factor) else ():
                complete = self._match_reciprocal(node, factor, divisor, found) if has_reciprocals(tensor) else None
                if complete is not None:
                    yield complete
                else:
                    self._fail("quotient", found, factor, node, divisor)

    def _match_reciprocal(self, node: Node, pattern: Term, divisor: Value, state: PartialMatch) -> PartialMatch | None:
        """Match a factor of a product to the reciprocal of a constant."""
        match pattern:
            case Var(kind="const"):
                found = self._match_const(node, pattern, divisor, state)
                return found and replace(
                    found, pending=(*found.pending[:-1], replace(found.pending[-1], is_reciprocal=True))
                )
            case Var(name=name, kind="real"):
                own = real_number(self.graph, node, divisor)
                return None if own is None else state.bind(name, 1 / own)
            case Lit() | App():
                number = pattern.value if isinstance(pattern, Lit) else literal_value(pattern)
                if (
                    isinstance(number, int | float)
                    and number != 0
                    and is_number_constant(self.graph, node, 1 / number, divisor)
                ):
                    return state
        return None

    def _bind_implied(
        self, node: Node, pairs: Sequence[tuple[Term | None, Value | None]], state: PartialMatch
    ) -> PartialMatch | None:
        """Bind the holes of absent inputs to the numbers that these stand for; None if an input is not the number that
        the pattern says, which rules out most nodes, and so comes first."""
        bound: PartialMatch | None = state
        for position, (pattern, value) in enumerate(pairs):
            if isinstance(pattern, Lit) and not self._is_number(node, pattern.value, value):
                if self.on_mismatch is None:  # which is told of it when the inputs before it match
                    return None
            elif bound is not None and isinstance(pattern, Var) and _is_absent_numbers(pattern, value):
                numbers = node_facts.get_implied_input(node, self.graph, position)
                implied = None if numbers is None else bound.bind(pattern.name, numbers)
                if implied is None:
                    self._fail("input", bound, pattern, node)
                bound = implied
        return bound

    def _match_inputs(
        self, node: Node, pairs: Sequence[tuple[Term | None, Value | None]], state: PartialMatch
    ) -> Iterator[PartialMatch]:
        if not pairs:
            yield state
            return
        (pattern, value), rest = pairs[0], pairs[1:]
        for found in self._match_input(node, pattern, value, state):
            yield from self._match_inputs(node, rest, found)

    def _match_input(
        self, node: Node, pattern: Term | None, value: Value | None, state: PartialMatch
    ) -> Iterator[PartialMatch]:
        if not isinstance(pattern, App) or pattern.domain == SCALAR:
            found = self._match_leaf(node, pattern, value, state)
            if found is not None:
                yield found
            else:
                self._fail("input", state, pattern, node, value)
        elif value is not None:
            yield from self.match_app(pattern, value, state)
        else:
            self._fail("input", state, pattern, node)

    def _match_leaf(
        self, node: Node, pattern: Term | None, value: Value | None, state: PartialMatch
    ) -> PartialMatch | None:
        match pattern:
            case None:
                return state if value is None else None
            case App():
                return state if self._is_number(node, literal_value(pattern), value) else None
            case Lit(value=number):
                return state if self._is_number(node, number, value) else None
            case Var(kind="tensor"):
                return None if value is None else self._match_tensor(pattern, value, state)
            case Var(kind="const"):
                return self._match_const(node, pattern, value, state)
            case Var():
                return self._match_elements(node, pattern, value, state)

    def _is_number(self, node: Node, number: object, value: Value | None) -> bool:
        if isinstance(number, tuple) and len(number) > MAX_KEYED_ELEMENTS:
            self.reads_weights = True
        return is_number_constant(self.graph, node, number, value)

    def _match_tensor(self, hole: Var, value: Value, state: PartialMatch) -> PartialMatch | None:
        bound = state.bind(hole.name, value)
        if bound is None or hole.axes is None or bound is state:
            return bound
        shape = self.graph.shape(value)
        axes = None if shape is None else unify_axes(hole.axes, shape, bound.axes)
        return None if axes is None else PartialMatch(bound.holes, axes, bound.terms, bound.pending, bound.is_reordered)

    def _match_const(self, node: Node, hole: Var, value: Value | None, state: PartialMatch) -> PartialMatch | None:
        tensor = constant_tensor(self.graph, value)
        if tensor is None and not (value is None and hole.default is not None):
            return None
        other = other_operand_shape(self.graph, node, value) if value is not None else None
        pairs = is_broadcasting(node.op, node.domain)
        made = node.types[0]
        dtype = made.dtype if isinstance(made, TensorType) else DType.UNDEFINED
        pending = _PendingConstant(hole, value, tensor, other, pairs, dtype)
        return PartialMatch(state.holes, state.axes, state.terms, (*state.pending, pending), state.is_reordered)

    def _match_elements(self, node: Node, hole: Var, value: Value | None, state: PartialMatch) -> PartialMatch | None:
        """Match a hole for numbers in the position of an input: a small constant, or integers known as sizes are."""
        if hole.kind == "real":
            number = real_number(self.graph, node, value)
            return None if number is None else state.bind(hole.name, number)
        tensor, shape = self.graph.constant(value), self.graph.shape(value)
        numbers = self.graph.known_contents(value) if tensor is None else tensor.int_values()
        if numbers is None or value is None or shape is None:
            return None
        if hole.kind == "integer":
            is_one = len(numbers) == 1 and is_scalar_spelling(self.graph, node, value, shape)
            return state.bind(hole.name, numbers[0]) if is_one else None
        return state.bind(hole.name, numbers) if hole.kind == "integers" and len(shape) == 1 else None

    def _match_attributes(self, app: App, node: Node, state: PartialMatch) -> PartialMatch | None:
        found = state
        named = {name for name, _ in app.attrs}
        for name, pattern in app.attrs:
            value = node_facts.get_attribute(node, self.graph, name)
            matched = None if value is None else _match_attribute(pattern, value, found)
            if matched is None:
                self._fail("attribute", found, pattern, node, attribute=name)
                return None
            found = matched
        others = {name: value for name, value in node.attrs.items() if name not in named}
        if app.attributes_hole is not None:
            bound = found.bind(app.attributes_hole.name, others)
            if bound is None:
                self._fail("attribute", found, app.attributes_hole, node)
            return bound
        for name, value in others.items():
            default = node_facts.get_default_attribute(node, self.graph, name)
            if default is None or not attributes_equal(default, value):
                self._fail("attribute", found, None, node, attribute=name)
                return None
        return found

    def _resolve_constants(self, state: PartialMatch) -> PartialMatch | None:
        """Bind the constants, once all axes are bound; those whose axes nothing else binds bind them first. Of
        these one that may broadcast comes last: its own shape need not be the declared one."""
        holes, axes = dict(state.holes), state.axes
        waiting = list(state.pending)
        while waiting:
            least = min(range(len(waiting)), key=lambda i: _openness(waiting[i], axes))
            constant = waiting.pop(least)
            settled, name = _resolve_constant(constant, axes), constant.hole.name
            if settled is None or (name in holes and not _bindings_equal(holes[name], settled[0])):
                seen = PartialMatch(holes, axes, state.terms, (constant, *waiting))
                self._fail("constant", seen, constant.hole, value=constant.value)
                return None
            bound, axes = settled
            holes[name] = bound
        return PartialMatch(holes, axes, state.terms, is_reordered=state.is_reordered)


def _is_spelled_alike(graph: Graph, match: Match) -> bool:
    """Return whether products are products, and no quotients: a canonical rule tells them apart."""
    return all(graph[value.vertex].op == app.op for app, value in match.terms.items())


def _has_consistent_operand_types(graph: Graph, match: Match) -> bool:
    """Return whether all occurrences of an operator hole have operands of equal element types."""
    for apps in match.rule.repeated_applications if isinstance(match.rule, RuleSpecialization) else ():
        nodes = (graph[match.terms[app].vertex] for app in apps)
        types = {tuple(graph.dtype(value) for value in node.operands) for node in nodes}
        if len(types) > 1 or any(DType.UNDEFINED in each for each in types):
            return False
    return True


def _candidate_roots(graph: Graph, side: App, state: PartialMatch) -> Iterator[Value]:
    """Yield values that the root of `side` may be, given that one of its holes is bound already."""
    operators = root_operators_of(side)
    for arg in side.operands:
        match arg:
            case Var(name=name) if isinstance(bound := state.holes.get(name), Value):
                sources = [bound]
            case App() if arg in state.terms:
                sources = [state.terms[arg]]
            case App(domain=domain) if domain != SCALAR:
                sources = list(_candidate_roots(graph, arg, state))
            case _:
                continue
        seen: set[int] = set()
        for source in sources:
            for reader in sorted(graph.readers(source.vertex)):
                if reader not in seen and graph[reader].op in operators:
                    seen.add(reader)
                    yield Value(reader, side.output)
        return


def _has_bound_numbers(graph: Graph, side: App, vertex: int, state: PartialMatch) -> bool:
    """Return whether a node reads the lists of numbers that holes are bound to: a quick look, which tells the one slice
    of a value that adjoins another from hundreds."""
    return lookup_operator(side.op, side.domain).is_commutative or all(
        graph.known_contents(value) == state.holes[arg.name]
        for arg, value in zip(side.inputs, graph[vertex].inputs, strict=False)
        if isinstance(arg, Var) and arg.kind == "integers" and value is not None and arg.name in state.holes
    )


@dataclass(frozen=True, slots=True)
class PartialMatch:
    """Bindings after some steps of a match. It is never changed: each step makes a new one."""

    holes: Mapping[str, Binding]
    axes: AxisSizes
    terms: Mapping[App, Value]
    pending: tuple[_PendingConstant, ...] = ()
    """Constants in a declared shape, looked at when all axes are bound."""
    is_reordered: bool = False

    def bind(self, name: str, bound: Binding) -> PartialMatch | None:
        if name in self.holes:
            return self if _bindings_equal(self.holes[name], bound) else None
        return PartialMatch({**self.holes, name: bound}, self.axes, self.terms, self.pending, self.is_reordered)

    @property
    def bound_parts(self) -> int:
        """The number of operators that matched, and of holes that are bound."""
        waiting = {constant.hole.name for constant in self.pending}
        return len({app.node for app in self.terms}) + len(self.holes.keys() | waiting)

    def with_reordering(self, reordered: bool) -> PartialMatch:
        """Return the same match, reordered if it was or this step is."""
        return replace(self, is_reordered=True) if reordered else self


@dataclass(frozen=True, slots=True)
class _PendingConstant:
    hole: Var
    value: Value | None
    tensor: Tensor | None
    other_shape: Shape | None
    """Shape of the other operand where this one may broadcast to it, else None."""
    may_broadcast: bool
    dtype: DType
    """Element type of the reader's output, which an absent input has, too."""
    is_reciprocal: bool = False
    """True if the rule has its reciprocal in this place."""


def _bindings_equal(left: Binding, right: Binding) -> bool:
    """Return whether two occurrences of a hole agree: the same value, equal numbers, equal attributes."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(attributes_equal(left[key], right[key]) for key in left)
    if isinstance(left, Value | ConstantBinding | DefaultBinding) or isinstance(
        right, Value | ConstantBinding | DefaultBinding
    ):
        return left == right
    return not isinstance(left, Mapping) and not isinstance(right, Mapping) and attributes_equal(left, right)


# -- operators and their inputs ------------------------------------------------------------------------------------


def _has_rule_version(graph: Graph, app: App, node: Node) -> bool:
    """Return whether a node means what rules are written for: its version, or the shapes that its declaration asks
    for."""
    if schemas.is_defined_operator(node.op, node.domain):
        return node.version > 0 and satisfies_definition(graph, node)
    return node.version == schemas.newest_version(app.op, app.domain)


def _producers_may_match(graph: Graph, app: App, node: Node) -> bool:
    """Return whether the operators that make the inputs may match: a quick look that rejects most nodes."""
    if lookup_operator(app.op, app.domain).is_commutative:
        return node_producer_kinds(graph, node).issuperset(producer_kinds(app))
    return all(
        value is not None and pattern_operator(graph[value.vertex].op) == pattern_operator(arg.op)
        for arg, value in zip(app.inputs, node.inputs, strict=False)
        if isinstance(arg, App) and arg.domain != SCALAR
    )


@schemas.memoized_by_schema
def root_operators_of(app: App) -> frozenset[str]:
    """Return the operators of nodes that a pattern may match."""
    return named(app) | {"Div"} if is_scaling(app) else named(app)


@cache
def pattern_depth(rule: Rule) -> int:
    """Return the greatest number of operators from a root of the left side to a leaf, both counted."""
    return max(map(_term_depth, rule.left))


@cache
def _term_depth(app: App) -> int:
    inner = (arg for arg in app.operands if isinstance(arg, App) and arg.domain != SCALAR)
    return 1 + max(map(_term_depth, inner), default=0)


@cache
def is_scaling(app: App) -> bool:
    """Return whether a pattern multiplies something by a number or constant, so that a quotient may match it, too."""
    return (app.op, app.domain) == ("Mul", "") and sum(map(_is_constant_pattern, app.operands)) == 1


def _is_constant_pattern(pattern: Term) -> bool:
    """Return whether a pattern is a constant: a hole for one, or a number that the rule writes."""
    return is_scalar(pattern) or (isinstance(pattern, Var) and pattern.kind == "const")


def pattern_operator(op: str) -> str:
    """Return the operator of a pattern as nodes are compared with it: a quotient may be a product."""
    return "Mul" if op == "Div" else op


@cache
def producer_kinds(app: App) -> frozenset[str]:
    """Return the kinds of operators that make the inputs of what a pattern matches, as far as the pattern says."""
    known = (arg for arg in app.inputs if isinstance(arg, App) and arg.domain not in (SCALAR, *schemas.CLASS_SCHEMAS))
    return frozenset(_distinguish_repeats(arg.op for arg in known))


def node_producer_kinds(graph: Graph, node: Node) -> set[str]:
    """Return the kinds of operators that make the inputs of a node, to be compared with those of a pattern."""
    return _distinguish_repeats(graph[value.vertex].op for value in node.operands)


def _distinguish_repeats(operators: Iterable[str]) -> set[str]:
    """Return kinds of operators, with a repeated one told apart: a pattern of two products needs both."""
    kinds: set[str] = set()
    for kind in map(pattern_operator, operators):
        kinds.add(kind if kind not in kinds else f"{kind} twice")
    return kinds


def _is_absent_numbers(pattern: Term | None, value: Value | None) -> bool:
    """Return whether an optional input of numbers is absent."""
    return value is None and isinstance(pattern, Var) and pattern.kind == "integers"


def _input_orders(app: App, inputs: tuple[Value | None, ...]) -> Iterator[tuple[tuple[Value | None, ...], bool]]:
    """Yield the inputs in every order that means the same, and whether floats may be rounded otherwise in it."""
    operator = lookup_operator(app.op, app.domain)
    if not (1 < len(inputs) <= 3 and operator.is_commutative):
        yield inputs, False
        return
    for order in dict.fromkeys(permutations(inputs)):
        yield order, order != inputs and (len(order) > 2 or not operator.is_exactly_commutative)


@schemas.memoized_by_schema
def _is_variadic(op: str, domain: str) -> bool:
    schema = schemas.schema(op, domain)
    return schema is not None and bool(schema.outputs) and bool(schema.outputs[-1].option == _VARIADIC)


_VARIADIC = OpSchema.FormalParameterOption.Variadic


# -- attributes ----------------------------------------------------------------------------------------------------


def _match_attribute(pattern: Term, value: Attribute, state: PartialMatch) -> PartialMatch | None:
    match pattern:
        case Var(name=name, kind=kind):
            return state.bind(name, value) if _is_of_kind(kind, value) else None
        case Lit(value=number):
            return state if _attribute_equals(value, number) else None
        case App():
            return state if _attribute_equals(value, literal_value(pattern)) else None


def _attribute_equals(value: Attribute, number: object) -> bool:
    """Return whether an attribute equals a number: ONNX attributes are float32, and lists have a type."""
    if isinstance(value, float) and isinstance(number, int | float):
        return floats_equal(float(np.float32(value)), float(np.float32(number)))
    return value == number


def _is_of_kind(kind: str, value: Attribute) -> bool:
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


def _declared_shape(constant: _PendingConstant, axes: AxisSizes) -> Shape | None:
    return None if constant.hole.axes is None else resolve_axes(constant.hole.axes, axes)


def _openness(constant: _PendingConstant, axes: AxisSizes) -> tuple[bool, bool]:
    """Return a key that orders constants by how little is known of their axes."""
    return _declared_shape(constant, axes) is None, constant.may_broadcast


def _resolve_constant(constant: _PendingConstant, axes: AxisSizes) -> tuple[Binding, AxisSizes] | None:
    declared = _declared_shape(constant, axes)
    if constant.tensor is None or constant.value is None:
        if declared is None or not _is_static(declared) or constant.hole.default is None:
            return None
        if constant.dtype is DType.UNDEFINED:
            return None
        return DefaultBinding(constant.hole.default, _static_shape(declared), constant.dtype), axes
    own = constant.tensor.shape
    known = ConstantBinding(constant.value, constant.tensor, own, constant.is_reciprocal)
    if constant.hole.axes is None or own == declared:
        return known, axes
    if declared is not None:
        if (
            not constant.may_broadcast
            or not _is_static(declared)
            or not _acts_like_declared(own, _static_shape(declared), constant.other_shape)
        ):
            return None
        return replace(known, shape=_static_shape(declared)), axes
    unified = unify_axes(constant.hole.axes, own, axes)
    return None if unified is None else (known, unified)


def _is_static(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)


def _static_shape(shape: Shape) -> tuple[int, ...]:
    return tuple(int(size) for size in shape if isinstance(size, int))


def _acts_like_declared(own: tuple[int, ...], declared: tuple[int, ...], other: Shape | None) -> bool:
    """Return whether a constant of shape `own` beside an operand of shape `other` acts like one of the declared
    shape."""
    if other is None:
        return False
    extra = len(own) - len(declared)
    if extra > 0 and any(size != 1 for size in own[:extra]):
        return False
    trimmed = own[max(extra, 0) :]
    if broadcast_dims(trimmed, declared) != declared:
        return False
    return broadcast_dims(own, other) is not None and broadcast_dims(own, other) == broadcast_dims(declared, other)


# -- the end of a match --------------------------------------------------------------------------------------------


def _conditions_hold(rule: Rule, graph: Graph, match: Match) -> bool:
    try:
        said = all(evaluate_scalar(condition, match.holes, match.axes, graph) for condition in rule.conditions)
        return said and all(_is_arange_match(graph, match, app) for app in rule.arange_conditions.values())
    except UndecidedScalarError:
        return False


def _is_arange_match(graph: Graph, match: Match, counts: App) -> bool:
    """Return whether a tensor counts where a rule wants it to; constants are checked with the conditions."""
    value = match.holes[str(counts.args[0])]
    if not isinstance(value, Value):
        return True
    sizes = (evaluate_scalar(arg, match.holes, match.axes, graph) for arg in counts.operands[1:])
    return graph.constant(value) is not None or affine_indices.is_known_arange(graph, value, *sizes)


# -- rules with holes for operators and for any number of tensors ------------------------------------------------------


def _family_instances(graph: Graph, rule: Rule, side: App, vertex: int) -> Iterator[Rule]:
    """Yield the rules of a family for the operators and numbers of tensors that are met where a side ends."""
    ways: list[list[tuple[str, OperatorChoice | int]]] = []
    for name, class_ in rule.operator_holes.items():
        known = operator_choices(class_)
        met = sorted(set(_operators_at_hole(graph, side, vertex, name)))
        ways.append([(name, way) for operator in met for way in known.get(operator, ())])
    for counts in _pack_counts(graph, side, vertex) if rule.pack_names else [{}]:
        if counts.keys() == rule.pack_names and all(counts[name] for name in nonempty_packs(rule)):
            for chosen in product(*ways):
                found = specialize_family(rule, (*chosen, *sorted(counts.items())))
                if found.has_nonempty_concats:
                    yield found


MAX_CONCAT_OPERANDS = 100
"""Most operands of a Concat for which any number of them is matched."""


def _pack_counts(graph: Graph, app: App, vertex: int) -> Iterator[Mapping[str, int]]:
    """Yield the numbers of tensors that holes may stand for in a pattern that ends at a vertex."""
    node = graph[vertex]
    if app.domain in schemas.CLASS_SCHEMAS:
        pairs = [(arg, value) for arg in app.inputs for value in node.inputs]
        found = [_pack_counts(graph, arg, value.vertex) for arg, value in pairs if isinstance(arg, App) and value]
        yield from chain.from_iterable(found)
        return
    if (node.op, node.domain) != (app.op, app.domain) or len(node.inputs) > MAX_CONCAT_OPERANDS:
        return
    names = [pack.name for arg in app.inputs if arg and is_pack(arg) for pack in pack_holes(arg)]
    for numbers in _compositions(len(node.inputs) - len(app.inputs) + len(names), len(names)):
        known, places = dict(zip(names, numbers, strict=True)), iter(node.inputs)
        inner = []
        for arg in app.inputs:
            taken = list(islice(places, known[next(pack_holes(arg)).name] if arg and is_pack(arg) else 1))
            if isinstance(arg, App) and arg.domain != SCALAR and not is_pack(arg):
                inner.append([] if taken in ([], [None]) else list(_pack_counts(graph, arg, taken[0].vertex)))  # type: ignore[union-attr]
        for several in product(*inner):
            yield {name: number for part in (known, *several) for name, number in part.items()}


def _compositions(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write a number as a sum of so many parts, which may be 0."""
    if parts <= 1:
        yield from [(count,)] if parts and count >= 0 else [()] if not parts else []
        return
    for first in range(count + 1):
        yield from ((first, *rest) for rest in _compositions(count - first, parts - 1))


def _operators_at_hole(graph: Graph, app: App, vertex: int, hole: str) -> Iterator[tuple[str, str]]:
    """Yield the operators of the nodes that may be in the place of a hole of a pattern that ends at a vertex."""
    node, is_hole = graph[vertex], app.domain in schemas.CLASS_SCHEMAS
    if is_hole and app.op == hole:
        yield node.op, node.domain
        return
    if not is_hole and (node.op, node.domain) != (app.op, app.domain):
        return
    in_any_order = is_hole or lookup_operator(app.op, app.domain).is_commutative
    for position, arg in enumerate(app.inputs):
        if isinstance(arg, App) and arg.domain != SCALAR:
            inputs = node.inputs if in_any_order else node.inputs[position : position + 1]
            for value in inputs:
                if value is not None:
                    yield from _operators_at_hole(graph, arg, value.vertex, hole)
