"""Operators in a graph that are replaced by what defines them: a definition, or the function body of a schema."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from graphopt.autodiff.recurrent import is_scannable, replace_by_scan
from graphopt.autodiff.sampling import interpolated_images
from graphopt.ir import schemas
from graphopt.ir.edit import replace_values
from graphopt.ir.graph import Graph, Node, Value
from graphopt.language.binding import Binding
from graphopt.language.function_terms import NotExpressibleError, read_function
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Term, Var, op, tensor
from graphopt.operators.declared_operators import instantiate_node_definition
from graphopt.operators.node_facts import get_attribute
from graphopt.rewrite.build import build_terms
from graphopt.rewrite.matching import Match


@dataclass(frozen=True)
class _Body:
    """The outputs of a node as terms, and what their holes are bound to."""

    outputs: tuple[Term, ...]
    bound: Mapping[str, Binding]


def is_decomposable(graph: Graph, node: Node) -> bool:
    """Return whether a node can be replaced by operators that define it."""
    return is_scannable(graph, node) or _body(graph, node) is not None


def decompose(graph: Graph, vertex: int) -> Mapping[Value, Value]:
    """Put the operators in the place of a node that define it, and return the values in the places of its outputs.

    Raises:
        RewriteRefused: they cannot be written in the model's opset.
    """
    node = graph[vertex]
    if is_scannable(graph, node):
        return replace_by_scan(graph, vertex)
    body = _body(graph, node)
    assert body is not None, node.op
    roots = tuple(Value(vertex, i) for i in range(len(node.names)))
    match = Match(_NOTHING, roots, body.bound, {}, {})
    values, nodes = build_terms(graph, match, body.outputs[: len(roots)])
    replaced = dict(zip(roots, values, strict=True))
    graph.apply(replace_values(graph, replaced, nodes))
    return replaced


_NOTHING = Rule("decomposition", op.Identity(tensor("x")), tensor("x"))


def _body(graph: Graph, node: Node) -> _Body | None:
    named = {f"input_{i}": value for i, value in enumerate(node.inputs) if value is not None}
    if schemas.is_defined_operator(node.op, node.domain):
        definition = instantiate_node_definition(node)
        return None if definition is None else _Body(definition.outputs, named)
    if node.domain or schemas.schema_of(node) is None:
        return None
    if node.op == "GridSample":
        images = interpolated_images(graph, node)
        return None if images is None else _Body((images,), named)
    return _schema_body(graph, node)


def _schema_body(graph: Graph, node: Node) -> _Body | None:
    types = [None if value is None else (graph.dtype(value), graph.shape(value)) for value in node.inputs]
    if any(type_ is not None and type_[1] is None for type_ in types):
        return None
    inputs = [None if type_ is None else (type_[0], len(type_[1] or ())) for type_ in types]
    attrs = {name: value for name, value in node.attrs.items() if isinstance(value, int | float | str)}
    function = schemas.schema_function_body(node.op, inputs, len(node.names), attrs)
    if function is None:
        return None
    try:
        read = read_function(function)
    except NotExpressibleError:
        return None
    bound: dict[str, Binding] = {
        hole.name: value for hole, value in zip(read.inputs, node.inputs, strict=False) if value is not None
    }
    absent = set[str]()
    for name in read.attributes:
        value = get_attribute(node, graph, name)
        if isinstance(value, int | float | str | tuple):
            bound[name] = value
        elif value is None:
            absent.add(name)
        else:
            return None
    return _Body(tuple(_without_attributes(side, absent) for side in read.outputs), bound)


def _without_attributes(part: Term, absent: Set[str]) -> Term:
    """Return a term without the attributes that stand for absent ones of the operator."""
    if not isinstance(part, App):
        return part
    args = tuple(None if arg is None else _without_attributes(arg, absent) for arg in part.args)
    given = [(name, value) for name, value in part.attrs if not (isinstance(value, Var) and value.name in absent)]
    attrs = tuple((name, _without_attributes(value, absent)) for name, value in given)
    return App(part.op, args, attrs, part.domain, part.output, part.outputs)
