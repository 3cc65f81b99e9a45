"""A rule as two small graphs: what it matches, and what it puts there. `assets/drawing.js` draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, Var, is_scalar

MAX_LABEL = 40
"""Characters of a computed constant; what is cut off is in the algebra beside the picture."""


class Picture(NamedTuple):
    """A small graph."""

    boxes: tuple[tuple[str, str], ...]
    """Label and kind: `input`, `constant`, or `node` with what the rule does to it."""
    edges: tuple[tuple[int, int], ...]
    """Positions of the box that makes a value and of the one that reads it."""


def rule_pictures(rule: Rule) -> tuple[Picture, Picture]:
    """Return the pictures of both sides of a rule."""
    left, right = (dict.fromkeys(_tensor_terms(side)) for side in (rule.left, rule.right))
    return _picture(left, "removed", right), _picture(right, "new", left)


def _tensor_terms(sides: tuple[Term, ...]) -> Iterator[Term]:
    """Yield the terms that are values, operands first; constants that are computed when the rule is applied are one."""
    for side in sides:
        if isinstance(side, App):
            side = side.node
            if not _is_constant(side):
                yield from _tensor_terms(tuple(arg for arg in side.operands if _is_value(arg)))
        yield side


def _picture(terms: dict[Term, None], gone: str, others: dict[Term, None]) -> Picture:
    numbers = {term: number for number, term in enumerate(terms)}
    boxes, edges = [], []
    for term in terms:
        boxes.append((_label(term), _kind(term, "kept" if term in others else gone)))
        if isinstance(term, App) and not _is_constant(term):
            sources = (arg.node if isinstance(arg, App) else arg for arg in term.operands if _is_value(arg))
            edges += [(numbers[source], numbers[term]) for source in dict.fromkeys(sources)]
    return Picture(tuple(boxes), tuple(edges))


def _kind(term: Term, fate: str) -> str:
    if _is_constant(term):
        return "constant"
    return f"node {fate}" if isinstance(term, App) else "input"


def _label(term: Term) -> str:
    if isinstance(term, App) and not _is_constant(term):
        return term.op
    text = str(term)
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _is_value(term: Term) -> bool:
    """Return whether a term is a tensor; an attribute is none, a number among operands is one."""
    return isinstance(term, Lit) or not is_scalar(term)


def _is_constant(term: Term) -> bool:
    """Return whether a value is known when a model is compiled."""
    match term:
        case Var(kind=kind):
            return kind == "const"
        case Lit():
            return True
    return all(_is_constant(arg) for arg in term.operands if _is_value(arg))
