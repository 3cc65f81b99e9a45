"""Additions to a graph: terms over values that are named, where no rule is matched, and outputs of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphopt.ir.edit import replace_node
from graphopt.ir.graph import Graph, Patch, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import Term, op, tensor
from graphopt.operators.inference import infer_node
from graphopt.rewrite import build
from graphopt.rewrite.matching import Match

RewriteRefused = build.RewriteRefused
"""Terms that cannot be written here; says why."""

_SCALAR_RULE = Rule("sum_of_gradients", op.Identity(tensor("x")), tensor("x"))
"""The rule of a match in which nothing is matched: what is bound is said."""


def match_of_values(near: Value, **bound: Value) -> Match:
    """Return a match that binds tensor holes to values; new nodes are named after the value `near`."""
    return Match(_SCALAR_RULE, (near,), bound, {}, {})


def add_values(graph: Graph, near: Value, terms: Sequence[Term], bound: Mapping[str, Value]) -> tuple[Value, ...]:
    """Add the nodes that compute terms over values, and return their results; new nodes are named after `near`.

    Raises:
        RewriteRefused: one cannot be computed by nodes that the model's opset has.
    """
    return add_bound_terms(graph, match_of_values(near, **bound), terms)


def add_bound_terms(graph: Graph, match: Match, terms: Sequence[Term]) -> tuple[Value, ...]:
    """Add the nodes that compute terms over what a match is bound to, and return their results.

    Raises:
        RewriteRefused: one cannot be computed by nodes that the model's opset has.
    """
    values, nodes = build.build_terms(graph, match, terms)
    graph.apply(Patch({}, nodes))
    return values


def zeros_like(graph: Graph, value: Value) -> Value:
    """Add zeros of the shape and element type of a value."""
    zeros: Term = op.Cast(op.ConstantOfShape(op.Shape(tensor("x"))), to=graph.dtype(value))
    return add_values(graph, value, [zeros], {"x": value})[0]


def add_outputs(graph: Graph, vertex: int, count: int) -> None:
    """Name outputs that an operator may have, and that the model did not ask for."""
    node = graph[vertex]
    names = [name or graph.new_name(f"{node.names[0]}/output_{i}") for i, name in enumerate(node.names)]
    names += [graph.new_name(f"{node.names[0]}/output_{i}") for i in range(len(names), count)]
    types = (*node.types, *(None,) * (count - len(node.types)))
    named = replace(node, names=tuple(names), types=types, contents=())
    graph.apply(replace_node(graph, vertex, infer_node(graph, named)))
