"""Operators replaced by what they are defined to be, for a machine that has no kernel of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from graphopt.base.errors import ModelError
from graphopt.base.session import current_session
from graphopt.io import opset_conversion
from graphopt.ir.graph import Graph, Patch
from graphopt.language.definition import Definition
from graphopt.language.rule import Rule
from graphopt.language.terms import operator_applications
from graphopt.rewrite.build import RewriteRefused, build_patch, describe_missing_operator
from graphopt.rewrite.matching import find_matches

OperatorKey: TypeAlias = tuple[str, str]
"""An operator and its domain."""


def replace_by_definitions(graph: Graph, operators: Collection[OperatorKey]) -> Graph:
    """Return a copy of a graph, its bodies included, in which some operators are replaced by their definitions.

    So are those of the same domains that occur in these definitions.

    Raises:
        ModelError: an application has no definition, or one that the model's opset cannot express.
    """
    copied, replaced = graph.copy(), _with_operators_of_definitions(operators)
    for inner in copied.graphs():
        while (vertex := _first_vertex(inner, replaced)) is not None:
            inner.apply(_expansion(inner, vertex))
    return copied


def _with_operators_of_definitions(operators: Collection[OperatorKey]) -> frozenset[OperatorKey]:
    """Return operators, and those of the same domains that they are defined by."""
    domains = {domain for _, domain in operators}
    found, waiting = set(operators), [*operators]
    while waiting:
        for definition in current_session().definitions.definitions_of(waiting.pop()):
            inner = {(app.op, app.domain) for side in definition.body for app in operator_applications(side)}
            fresh = {key for key in inner - found if key[1] in domains}
            found |= fresh
            waiting += fresh
    return frozenset(found)


def _first_vertex(graph: Graph, operators: Collection[OperatorKey]) -> int | None:
    return next((vertex for vertex, node in graph.nodes() if (node.op, node.domain) in operators), None)


def _expansion(graph: Graph, vertex: int) -> Patch:
    """Return the patch that puts its definition in the place of a node. Raises ModelError where it has none."""
    node, reasons = graph[vertex], list[str]()
    for definition in current_session().definitions.definitions_of((node.op, node.domain)):
        rule = _expansion_rule(definition)
        if missing := describe_missing_operator(rule, graph.opsets):
            reasons.append(f"its definition needs {missing}")
            continue
        for match in find_matches(rule, graph, vertex):
            try:
                return build_patch(graph, match)
            except RewriteRefused as refused:
                reasons.append(str(refused))
    why = "; ".join(dict.fromkeys(reasons)) or f"no definition of {node.domain}.{node.op} fits it"
    raise ModelError(f"{opset_conversion.node_label(node)} cannot be replaced by its definition: {why}")


def _expansion_rule(definition: Definition) -> Rule:
    """Return the rule that an operator may be replaced by its definition."""
    head = definition.head
    meaning = definition.instantiate(head)
    assert meaning is not None, f"{head} is what {definition} is of"
    sides = tuple(replace(head, output=index) for index in range(head.outputs))
    return Rule("expand_definition", sides, meaning.outputs, when=definition.when)
