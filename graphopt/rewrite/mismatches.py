"""Reasons why a pattern does not match, in words: what the rule has in a place, and what the graph has there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from graphopt.base.dtype import DType
from graphopt.base.files import escape_unprintable
from graphopt.expr.dims import SymbolicDim
from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node, OpaqueAttribute, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape
from graphopt.language.binding import (
    ConstantBinding,
    DefaultBinding,
    evaluate_scalar,
    resolve_axes,
    unify_axes,
)
from graphopt.language.scalar_functions import BINDING_QUERIES, UndecidedScalarError
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, axis_arguments, is_pack, render_term, walk_term
from graphopt.operators import node_facts
from graphopt.operators.rule_families import RuleSpecialization
from graphopt.rewrite.constant_operands import constant_tensor, has_reciprocals
from graphopt.rewrite.matching import MatchStep, Mismatch


class PlaceNames:
    """Names of the nodes and values of a graph, as texts about it have them.

    It remembers what it named, so that texts can be compared that differ in names alone.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._operators: dict[str, str] = {}

    def node(self, vertex: int) -> str:
        """Return `Relu_12`, or `act (Relu)` where the name does not tell the operator; a node without a name is called
        by its output."""
        node = self.graph[vertex]
        return self._remember(label_node(node.name or node.names[0], node.op), node.op)

    def value(self, value: Value) -> str:
        """Return `the output of Relu_12`, `the input 'x'` or `the constant 'w'`."""
        node = self.graph[value.vertex]
        if not node.is_internal:
            place = "the output" if len(node.names) == 1 else f"output {value.output}"
            return f"{place} of {self.node(value.vertex)}"
        kind = "the constant" if node.is_constant else "the input" if node.is_graph_input else node.op
        return f"{kind} {self._remember(repr(self.graph.value_name(value)), node.op)}"

    def _remember(self, name: str, operator: str) -> str:
        self._operators[name] = operator
        return name

    def outline(self, text: str) -> str:
        """Return a text with operators in the places of the names in it."""
        names = sorted(self._operators, key=len, reverse=True)
        found = "|".join(map(re.escape, names))
        return re.sub(found, lambda name: self._operators[name[0]], text) if names else text


def label_node(name: str, op: str) -> str:
    """Return the name of a node, with its operator if the name does not tell it."""
    name = escape_unprintable(name)
    return name if op.casefold() in name.casefold() else f"{name} ({op})"


def article(noun: str) -> str:
    """Return `an` before a vowel, else `a`."""
    return "an" if noun[:1].casefold() in "aeiou" else "a"


def quote_term(term: Term) -> str:
    """Return a term in backquotes, as rules print it; of a long one the outermost operator."""
    text = render_term(term)
    return f"`{_render_outermost(term) if len(text) > _LONGEST_TERM and isinstance(term, App) else text}`"


_LONGEST_TERM = 60
"""Characters up to which a term is quoted in full."""
_MOST_SHOWN = 8
"""Numbers of a list, or elements of a constant, up to which they are shown."""


def format_bound(bound: object) -> str:
    """Return a number, list, size or attribute as rules write it."""
    match bound:
        case SymbolicDim():
            return "an unknown size" if bound.is_anonymous else str(bound)
        case float():
            return f"{bound:.7g}"
        case tuple() if len(bound) > _MOST_SHOWN:
            return f"[{', '.join(map(format_bound, bound[:3]))}, … {format_bound(bound[-1])}] ({len(bound)} numbers)"
        case tuple():
            return f"[{', '.join(map(format_bound, bound))}]"
        case bytes():
            return repr(bound.decode(errors="replace"))
        case Tensor():
            return f"a tensor of shape {format_bound(bound.shape)}"
        case Mapping():
            return ", ".join(f"{name}={format_bound(value)}" for name, value in bound.items()) or "none"
        case Graph() | OpaqueAttribute():
            return "what only the operator knows"
    return str(bound)


def describe_bindings(state_terms: Mapping[App, Value], holes: Mapping[str, Any], names: PlaceNames) -> dict[str, str]:
    """Return what the terms and holes of a pattern are bound to, outermost terms first.

    Terms within a term that is named are dots, unless two would read alike.
    """
    counts = Counter(_render_outermost(app) for app in state_terms)
    terms = {
        short if counts[short := _render_outermost(app)] == 1 else render_term(app): names.node(value.vertex)
        for app, value in state_terms.items()
    }
    return terms | {name: _describe_hole(bound, names) for name, bound in holes.items()}


def _render_outermost(app: App) -> str:
    """Return an operator on its holes and numbers, with dots for other operators: `Relu(… + b)`."""
    if app.domain == SCALAR:
        return render_term(app)
    args = (_ELLIPSIS if isinstance(arg, App) and arg.domain != SCALAR else arg for arg in app.args)
    return render_term(App(app.op, tuple(args), app.attrs, app.domain, app.output, app.outputs))


_ELLIPSIS = Var("…", "tensor")


def _describe_hole(bound: object, names: PlaceNames) -> str:
    match bound:
        case Value():
            return names.value(bound)
        case ConstantBinding():
            return f"{'1 / ' * bound.is_reciprocal}{names.value(bound.value)}"
        case DefaultBinding():
            return f"absent, and so {bound.default}"
    return format_bound(bound)


# -- mismatches --------------------------------------------------------------------------------------------------------


def describe_mismatch(found: Mismatch, names: PlaceNames) -> str:
    """Return the reason why a pattern did not match, with what the rule says and what the graph has."""
    return _DESCRIPTIONS[found.step](found, names)


def _describe_node_mismatch(found: Mismatch, names: PlaceNames) -> str:
    app, value, node = found.pattern, found.value, found.node
    assert isinstance(app, App) and value is not None and node is not None, found
    here, text = names.node(value.vertex), quote_term(app)
    match found.step:
        case "operator" if (node.op, node.domain) == (app.op, app.domain):
            return f"{text} is output {app.output} of its node, and {names.value(value)} is read"
        case "operator":
            kind = f"{app.domain.removeprefix('any ')} operator" if app.domain in schemas.CLASS_SCHEMAS else app.op
            return f"{text} is not {article(kind)} {kind}, it is {names.value(value)}"
        case "outputs":
            return f"{here} has {len(node.names)} outputs, and {text} has {app.outputs}"
        case "same node":
            return f"{text} is {names.value(found.state.terms[app])} already, and here {names.value(value)}"
        case "further input":
            if any(map(is_pack, app.operands)):
                return f"the operands of {here} cannot be shared out among those of {text}"
            further = next(each for each in node.inputs[len(app.inputs) :] if each is not None)
            return f"{here} has an input that {text} does not have: {names.value(further)}"
    if schemas.is_defined_operator(app.op, app.domain):
        return f"{here} has other shapes than the definition of {app.op} asks for"
    newest = schemas.newest_version(app.op, app.domain)
    known = f"means what {app.op} meant in opset {node.version}" if node.version else "is of no known schema"
    return f"{here} {known}, and rules are about {app.op} as of opset {newest}"


def _describe_attribute(found: Mismatch, names: PlaceNames) -> str:
    node, name, pattern, graph = found.node, found.attribute, found.pattern, names.graph
    assert node is not None, found
    here = _name_of(node, names)
    if isinstance(pattern, Var) and pattern.kind == "attributes":
        return f"{here} has other attributes than the node with the same {quote_term(pattern)} before"
    value = node_facts.get_attribute(node, graph, name)
    if value is None:
        return f"{here} has no `{name}`, which the rule names"
    said = f"`{name}` of {here} is {format_bound(value)}"
    match pattern:
        case None:
            default = node_facts.get_default_attribute(node, graph, name)
            usual = "" if default is None else f", {format_bound(default)}"
            return f"{said}, and the pattern does not name it, so it has to be the default{usual}"
        case Var(name=hole) if hole in found.state.holes:
            return f"{said}, and `{hole}` is {format_bound(found.state.holes[hole])} already"
        case Var(kind=kind):
            return f"{said}, which is not {_KINDS.get(kind, kind)}"
    return f"{said}, and the rule has {_format_literal(pattern)}"


def _name_of(node: Node, names: PlaceNames) -> str:
    """Return the name of a node that is one of the graph's."""
    return names.node(next(vertex for vertex in names.graph.vertices_with_op(node.op) if names.graph[vertex] is node))


_KINDS = {
    "integer": "a whole number",
    "integers": "a list of whole numbers",
    "real": "a number",
    "string": "a text",
    "attributes": "attributes",
}


def _format_literal(pattern: Term) -> str:
    """Return a number that a rule has, worked out if it is an expression."""
    if isinstance(pattern, Lit):
        return format_bound(pattern.value)
    try:
        return f"{format_bound(evaluate_scalar(pattern, {}, {}, None))}, which is {quote_term(pattern)}"
    except UndecidedScalarError:
        return quote_term(pattern)


def _describe_input(found: Mismatch, names: PlaceNames) -> str:
    node, value, pattern = found.node, found.value, found.pattern
    assert node is not None, found
    if pattern is None:
        assert value is not None, found
        return f"{_name_of(node, names)} has an input that the pattern leaves out: {names.value(value)}"
    if value is None:
        return f"{_name_of(node, names)} has no input in the place of {quote_term(pattern)}"
    match pattern:
        case Var(kind="tensor"):
            return _describe_tensor(pattern, value, found, names)
        case Var(kind="const"):
            return f"{quote_term(pattern)} is not a constant, it is {names.value(value)}"
        case Var():
            return _describe_number_hole(pattern, value, found, names)
    wanted = _format_literal(pattern)
    if names.graph.constant(value) is None:
        return f"{wanted} is asked for, and {names.value(value)} is not a constant"
    return f"{names.value(value)} is {_format_contents(value, names)}, and the rule has {wanted}"


def _describe_tensor(hole: Var, value: Value, found: Mismatch, names: PlaceNames) -> str:
    bound, here = found.state.holes.get(hole.name, value), names.value(value)
    if bound != value:
        return f"`{hole.name}` is {_describe_hole(bound, names)} already, and here {here}"
    shape = names.graph.shape(value)
    if shape is None:
        return f"{here} has an unknown shape, and `{hole.name}` has the axes {_format_axes(hole)}"
    return _describe_axes(hole, value, shape, found, names)


def _format_axes(hole: Var) -> str:
    return f"[{' '.join(hole.axes or ())}]"


def _describe_number_hole(hole: Var, value: Value, found: Mismatch, names: PlaceNames) -> str:
    here, graph = names.value(value), names.graph
    if graph.constant(value) is None and graph.known_contents(value) is None:
        return f"`{hole.name}` is not a constant, it is {here}"
    if hole.name in found.state.holes:
        known = format_bound(found.state.holes[hole.name])
        return f"`{hole.name}` is {known} already, and here {_format_contents(value, names)}"
    return f"{here} is {_format_contents(value, names)}, which is not {_KINDS.get(hole.kind, hole.kind)}"


def _format_contents(value: Value, names: PlaceNames) -> str:
    """Return the number or list that a value is known to hold, or its shape where it is large."""
    tensor, contents = names.graph.constant(value), names.graph.known_contents(value)
    if tensor is None:
        return format_bound(contents)
    if not tensor.is_small or tensor.size > _MOST_SHOWN:
        return f"of shape {format_bound(tensor.shape)}"
    numbers = [float(number) if tensor.dtype.is_float else number for number in tensor.numpy().ravel()]
    shown = f"{numbers[0]:g}" if tensor.size == 1 and tensor.dtype.is_float else format_bound(tuple(numbers))
    return shown if tensor.size == 1 and not tensor.shape else f"{shown} of shape {format_bound(tensor.shape)}"


def _describe_divisor(found: Mismatch, names: PlaceNames) -> str:
    assert found.value is not None and found.pattern is not None, found
    tensor, here = constant_tensor(names.graph, found.value), names.value(found.value)
    if tensor is None or not has_reciprocals(tensor):
        return f"{here} divides, and has no finite reciprocals to multiply by"
    return f"{here} divides, and 1 / {_format_contents(found.value, names)} is not {quote_term(found.pattern)}"


# -- axes --------------------------------------------------------------------------------------------------------------


def _describe_axes(hole: Var, value: Value, shape: Shape, found: Mismatch, names: PlaceNames) -> str:
    """Return the first axis whose size is bound otherwise, with both sizes; the shapes if it is none of these."""
    bound, here = found.state.axes, names.value(value)
    for token, sizes in _axis_parts(hole.axes or (), shape):
        unified = unify_axes((token,), sizes, bound)
        if unified is None and token in bound:
            size = format_bound(sizes if "*" in token else sizes[0])
            known = f"{format_bound(bound[token])}{_axis_source(token, found)}"
            return f"`{token}` = {size} in `{hole.name}`, {here}, and {known}"
        if unified is None:
            break
        bound = unified
    return f"{here} has shape {format_bound(shape)}, and `{hole.name}` has the axes {_format_axes(hole)}"


def _axis_parts(tokens: tuple[str, ...], shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield each declared axis with its size, and a pack with its sizes; nothing where the ranks do not fit."""
    packed, start = len(shape) - sum("*" not in token for token in tokens), 0
    if packed < 0 or (packed > 0 and not any("*" in token for token in tokens)):
        return
    for token in tokens:
        count = packed if "*" in token else 1
        yield token, shape[start : start + count]
        start += count


def _axis_source(axis: str, found: Mismatch) -> str:
    """Return which hole that is bound has an axis of this name."""
    holes = (part for app in found.state.terms for part in walk_term(app) if isinstance(part, Var))
    named = (hole.name for hole in holes if hole.name in found.state.holes and axis in (hole.axes or ()))
    return next((f" in `{name}`" for name in named), "")


def _describe_constant(found: Mismatch, names: PlaceNames) -> str:
    hole, value, state = found.pattern, found.value, found.state
    assert isinstance(hole, Var), found
    if value is None:
        return f"`{hole.name}` is absent, and stands for {hole.default} of a shape {_format_axes(hole)} that is unknown"
    here, tensor = names.value(value), constant_tensor(names.graph, value)
    assert tensor is not None, found
    if hole.name in state.holes:
        return f"`{hole.name}` is {_describe_hole(state.holes[hole.name], names)} already, and here {here}"
    declared = resolve_axes(hole.axes or (), state.axes)
    if declared is not None and any(isinstance(size, SymbolicDim) for size in declared):
        wanted = f"{_format_axes(hole)} = {format_bound(declared)}"
        return f"{here} has shape {format_bound(tensor.shape)}, and `{hole.name}` has {wanted}"
    return _describe_axes(hole, value, tensor.shape, found, names)


def _describe_missing_side(found: Mismatch, names: PlaceNames) -> str:
    assert found.pattern is not None, found
    roots = ", ".join(names.node(value.vertex) for value in found.state.terms.values())
    return f"there is no {quote_term(found.pattern)} beside {roots} that reads the same"


# -- conditions --------------------------------------------------------------------------------------------------------


def _describe_conditions(found: Mismatch, names: PlaceNames) -> str:
    """Return the first condition that does not hold, with the values of its parts."""
    rule, state = found.rule, found.state
    for condition in rule.conditions:
        for part in _conjuncts(condition):
            try:
                said = evaluate_scalar(part, state.holes, state.axes, names.graph)
                why = "cannot be known" if said is None else "is false"
            except UndecidedScalarError as unknown:
                said, why = None, f"cannot be known ({unknown})"
            if not said:
                values = "; ".join(_condition_values(part, found, names))
                return f"the condition {quote_condition(part)} {why}{': ' * bool(values)}{values}"
    counts = next(iter(rule.arange_conditions.values()), None)
    return f"the condition {quote_term(counts)} is not known to hold" if counts else "a condition does not hold"


def _conjuncts(condition: Term) -> Iterator[Term]:
    if isinstance(condition, App) and condition.domain == SCALAR and condition.op == "all_of":
        for part in condition.operands:
            yield from _conjuncts(part)
    else:
        yield condition


def quote_condition(condition: Term) -> str:
    """Return a condition in backquotes, with a number on the right of a comparison."""
    match condition:
        case App(op="lt" | "le" as op, domain=domain, args=(Lit() as number, Var() | App() as other)) if (
            domain == SCALAR
        ):
            return f"`{render_term(other)} {'>' if op == 'lt' else '>='} {number}`"
    return quote_term(condition)


def _condition_values(condition: Term, found: Mismatch, names: PlaceNames) -> Iterable[str]:
    """Return the sizes, numbers and facts of tensors that a condition is about, as `C = 3`."""
    state, values = found.state, dict[str, str]()
    for part in walk_term(condition):
        match part:
            case App(op="size" | "sizes", domain=domain) if domain == SCALAR:
                for axis in axis_arguments(part):
                    if axis in state.axes:
                        values[axis] = format_bound(state.axes[axis])
            case App(op=op, domain=domain) if domain == SCALAR and op in BINDING_QUERIES:
                values |= _query_value(part, found, names)
            case Var(kind="tensor" | "const"):
                values.setdefault(part.name, _describe_hole(state.holes.get(part.name), names))
            case Var():
                values[part.name] = format_bound(state.holes.get(part.name))
    return [f"{name} = {value}" for name, value in values.items()]


def _query_value(query: App, found: Mismatch, names: PlaceNames) -> dict[str, str]:
    """Return a fact of a tensor, such as its element type; nothing where it is unknown."""
    try:
        value = evaluate_scalar(query, found.state.holes, found.state.axes, names.graph)
    except UndecidedScalarError:
        return {}
    shown = DType(value).name.lower() if query.op == "dtype" else format_bound(value)
    return {render_term(query): shown}


# -- the whole match ---------------------------------------------------------------------------------------------------


def _describe_spelling(found: Mismatch, names: PlaceNames) -> str:
    """Return which node is a quotient, where a canonical rule tells products from quotients."""
    terms = found.state.terms.items()
    app, value = next((app, value) for app, value in terms if names.graph[value.vertex].op != app.op)
    here, asked = names.node(value.vertex), f"{article(app.op)} {app.op}"
    return f"{here} is no {app.op}, and a canonical rule asks for {asked}, {quote_term(app)}, in that spelling"


def _describe_operand_types(found: Mismatch, names: PlaceNames) -> str:
    """Return which nodes of one operator hole have operands of unlike, or unknown, element types."""
    assert isinstance(found.rule, RuleSpecialization), found
    for apps in found.rule.repeated_applications:
        vertices = [found.state.terms[app].vertex for app in apps]
        types = {vertex: [names.graph.dtype(value) for value in names.graph[vertex].operands] for vertex in vertices}
        unknown = next((vertex for vertex in vertices if DType.UNDEFINED in types[vertex]), None)
        if unknown is not None:
            return f"the element types of what {names.node(unknown)} reads are unknown"
        first = vertices[0]
        for vertex in vertices[1:]:
            if types[vertex] != types[first]:
                one, other = (
                    f"{names.node(node)} reads {' and '.join(dtype.name.lower() for dtype in types[node])}"
                    for node in (first, vertex)
                )
                return f"{one}, and {other}: an operator hole reads the same element types everywhere"
    raise AssertionError(f"operands are alike: {found}")


_DESCRIPTIONS: Mapping[MatchStep, Callable[[Mismatch, PlaceNames], str]] = {
    **dict.fromkeys(("operator", "outputs", "version", "same node", "further input"), _describe_node_mismatch),
    "attribute": _describe_attribute,
    "input": _describe_input,
    "quotient": _describe_divisor,
    "other side": _describe_missing_side,
    "constant": _describe_constant,
    "conditions": _describe_conditions,
    "spelling": _describe_spelling,
    "operand types": _describe_operand_types,
}
