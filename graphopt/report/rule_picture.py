"""A rule as two small graphs: what it matches, and what it puts there. `assets/drawing.js` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from graphopt.language.rule import Rule
from graphopt.language.terms import App, Lit, Term, is_scalar
from graphopt.rewrite.build import is_constant_term

MAX_LABEL = 40
"""Characters of a computed constant; what is cut off is in the algebra beside the picture."""


class Picture(NamedTuple):
    """A small graph."""

    boxes: tuple[tuple[str, str], ...]
    """Label and kind: `input`, `constant`, or `node` with what the rule does to it."""
    edges: tuple[tuple[int, int], ...]
    """Positions of the box that makes a value and of the one that reads it."""


def rule_pictures(rule: Rule) -> tuple[Picture, Picture]:
    """Return the pictures of both sides of a rule; what the right side computes from constants alone is one box."""
    left, right = (
        dict.fromkeys(_tensor_terms(side, folds)) for side, folds in ((rule.left, False), (rule.right, True))
    )
    return _picture(left, "removed", right), _picture(right, "new", left)


def _tensor_terms(terms: Iterable[Term], folds: bool) -> Iterator[Term]:
    """Yield the terms that are values, operands first."""
    for term in terms:
        if isinstance(term, App):
            term = term.node
            if not (folds and is_constant_term(term)):
                yield from _tensor_terms(filter(_is_value, term.operands), folds)
        yield term


def _picture(terms: dict[Term, None], gone: str, others: dict[Term, None]) -> Picture:
    numbers = {term: number for number, term in enumerate(terms)}
    boxes, edges = [], []
    for term in terms:
        sources = [arg.node if isinstance(arg, App) else arg for arg in getattr(term, "operands", ()) if _is_value(arg)]
        inner = [numbers[source] for source in dict.fromkeys(sources) if source in numbers]
        edges += [(number, numbers[term]) for number in inner]
        if isinstance(term, App) and inner:
            boxes.append((term.op, "node kept" if term in others else f"node {gone}"))
        else:
            boxes.append((_short(str(term)), "constant" if is_constant_term(term) else "input"))
    return Picture(tuple(boxes), tuple(edges))


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _is_value(term: Term) -> bool:
    """Return whether a term is a tensor; an attribute is none, a number among operands is one."""
    return isinstance(term, Lit) or not is_scalar(term)
