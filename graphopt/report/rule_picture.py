"""A rule as two small graphs: what it matches, and what it puts there. `assets/drawing.js` draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeGuard

from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, is_scalar
from graphopt.rewrite.build import is_constant_term

MAX_LABEL = 28
"""Characters of a computed constant; what is cut off is in the algebra beside the picture."""


IsNode: TypeAlias = "Callable[[Term], TypeGuard[App]]"
"""Predicate that says which terms of a side are nodes of the model."""


class Picture(NamedTuple):
    """A small graph."""

    boxes: tuple[tuple[str, str], ...]
    """Label and kind: `input`, `constant`, or `node` with what the rule does to it."""
    edges: tuple[tuple[int, int], ...]
    """Positions of the box that makes a value and of the one that reads it."""


def rule_pictures(rule: Rule) -> tuple[Picture, Picture]:
    """Return the pictures of both sides of a rule; what the right side computes from constants alone is one box."""
    left = dict.fromkeys(_values(rule.left, _is_node))
    right = dict.fromkeys(_values(rule.right, _is_computed_node))
    before = _picture(left, _is_node, lambda term: "kept" if term in right else "removed")
    return before, _picture(right, _is_computed_node, lambda term: "kept" if term in left else "new")


def _is_node(term: Term) -> TypeGuard[App]:
    return isinstance(term, App)


def _is_computed_node(term: Term) -> TypeGuard[App]:
    """Return whether a term is computed whenever the model runs."""
    return isinstance(term, App) and not is_constant_term(term)


def _values(terms: Iterable[Term], is_node: IsNode) -> Iterator[Term]:
    """Yield the terms that are tensors, operands first."""
    for term in terms:
        value = term.node if isinstance(term, App) else term
        if is_node(value):
            yield from _values(_operands(value), is_node)
        yield value


def _picture(values: Mapping[Term, None], is_node: IsNode, fate: Callable[[Term], str]) -> Picture:
    numbers = {value: number for number, value in enumerate(values)}
    boxes, edges = [], []
    for value, number in numbers.items():
        if is_node(value):
            boxes.append((value.op, f"node {fate(value)}"))
            edges += [(numbers[operand], number) for operand in _operands(value)]
        else:
            boxes.append((_short(str(value)), "constant" if is_constant_term(value) else "input"))
    return Picture(tuple(boxes), tuple(edges))


def _operands(node: App) -> list[Term]:
    """Return the tensors that a node reads, each once; a number among operands is one, an attribute is none."""
    tensors = (arg for arg in node.operands if isinstance(arg, Lit) or not is_scalar(arg))
    return list(dict.fromkeys(arg.node if isinstance(arg, App) else arg for arg in tensors))


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
