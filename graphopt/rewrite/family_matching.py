"""What the holes of a family may stand for at a place in a graph: which operators, and how many tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice, product

from graphopt.ir import schemas
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, is_pack, pack_holes
from graphopt.operators.operator_classes import OperatorChoice, lookup_operator, operator_choices
from graphopt.operators.rule_families import nonempty_packs, specialize_family


def matching_instances(rule: Rule, graph: Graph, vertex: int, position: int) -> Iterator[Rule]:
    """Yield the rules of a family for what is met in the places of its holes; another rule as it is."""
    if not rule.is_family:
        yield rule
        return
    ways: list[list[tuple[str, OperatorChoice | int]]] = []
    for name, class_ in rule.operator_holes.items():
        known = operator_choices(class_)
        met = sorted(set(_operators_at_hole(graph, rule.left[position], vertex, name)))
        ways.append([(name, way) for operator in met for way in known.get(operator, ())])
    for counts in _pack_counts(graph, rule.left[position], vertex) if rule.pack_names else [{}]:
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
    """Yield the ways to make a number of so many parts, which may be 0."""
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
