"""Sizes that models write as formulas of others, as exporters do behind a cache: `past + 1`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_FORMULA = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.USub, ast.expr_context, *_ARITHMETIC)


LONGEST = 200
"""Characters of a formula: a longer text is a mere name, lest it be nested deeper than Python reads."""


def parsed(dim: str) -> ast.expr | None:
    """Return a dim such as `past + 1` as a formula; None where it is a mere name, as `batch-size` is."""
    if len(dim) > LONGEST or not re.search(r"[+*/]|\s-\s|-\s*\d", dim):
        return None
    try:
        formula = ast.parse(dim.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    parts = [*ast.walk(formula)]
    are_whole = all(type(part.value) is int for part in parts if isinstance(part, ast.Constant))
    return formula if are_whole and all(isinstance(part, _FORMULA) for part in parts) else None


def names(dim: str) -> list[str]:
    """Return the names that a dim is computed from: itself, unless it is a formula."""
    formula = parsed(dim)
    return [dim] if formula is None else [node.id for node in ast.walk(formula) if isinstance(node, ast.Name)]


def divides(dim: str) -> bool:
    """Return whether a dim is a formula with a quotient, of which nobody says how it is rounded."""
    formula = parsed(dim)
    return formula is not None and any(isinstance(node, ast.Div | ast.FloorDiv) for node in ast.walk(formula))


def size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim, given those of all names."""
    if isinstance(dim, int):
        return dim
    formula = None if dim in sizes else parsed(dim)
    return sizes[dim] if formula is None else max(_value(formula, sizes), 0)


def fixed(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """Return a dim where some names have sizes: a number if all have, else what is left of the formula."""
    if isinstance(dim, int) or dim in sizes:
        return size(dim, sizes)
    formula, own = parsed(dim), {*names(dim)}
    if formula is None or not own & sizes.keys():
        return dim
    return size(dim, sizes) if own <= sizes.keys() else ast.unparse(_Fixing(sizes).visit(formula))


class _Fixing(ast.NodeTransformer):
    """Puts numbers in the places of names."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.sizes[node.id]) if node.id in self.sizes else node


def _value(formula: ast.expr, sizes: Mapping[str, int]) -> int:
    match formula:
        case ast.Name(name):
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, sizes)
        case ast.BinOp(left, kind, right):
            divides = isinstance(kind, ast.FloorDiv | ast.Div)
            return _ARITHMETIC[type(kind)](_value(left, sizes), _value(right, sizes) or int(divides))
        case ast.Constant(int(number)):
            return number
    raise AssertionError(f"{ast.dump(formula)} is in no formula")
