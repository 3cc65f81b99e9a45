"""Terms added to a graph over values that are named, where no rule is matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt.ir.graph import Graph, Patch, Value
from graphopt.language.rule import Rule
from graphopt.language.terms import Term, op, tensor
from graphopt.rewrite.build import build_terms
from graphopt.rewrite.matching import Match

_SCALAR_RULE = Rule("sum_of_gradients", op.Identity(tensor("x")), tensor("x"))
"""The rule of a match in which nothing is matched: what is bound is said."""


def match_of_values(near: Value, **bound: Value) -> Match:
    """Return a match that binds tensor holes to values; new nodes are named after the value `near`."""
    return Match(_SCALAR_RULE, (near,), bound, {}, {})


def add_terms(graph: Graph, near: Value, terms: Sequence[Term], bound: Mapping[str, Value]) -> tuple[Value, ...]:
    """Add the nodes that compute terms over values, and return their results.

    Raises:
        RewriteRefused: one cannot be computed by nodes that the model's opset has.
    """
    values, nodes = build_terms(graph, match_of_values(near, **bound), terms)
    graph.apply(Patch({}, nodes))
    return values


def zeros_like(graph: Graph, value: Value) -> Value:
    """Add zeros of the shape and element type of a value."""
    zeros: Term = op.Cast(op.ConstantOfShape(op.Shape(tensor("x"))), to=graph.dtype(value))
    return add_terms(graph, value, [zeros], {"x": value})[0]
