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


MAX_FORMULA_LENGTH = 200
"""Characters of a formula: a longer text is a mere name, lest it be nested deeper than Python reads."""


def parse_formula(dim: str) -> ast.expr | None:
    """Return a dim such as `past + 1` as a formula; None where it is a mere name, as `batch-size` is."""
    if len(dim) > MAX_FORMULA_LENGTH or not re.search(r"[+*/]|\s-\s|-\s*\d", dim):
        return None
    try:
        formula = ast.parse(dim.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    parts = [*ast.walk(formula)]
    are_whole = all(type(part.value) is int for part in parts if isinstance(part, ast.Constant))
    return formula if are_whole and all(isinstance(part, _FORMULA) for part in parts) else None


def formula_names(dim: str) -> list[str]:
    """Return the names that a dim is computed from: itself, unless it is a formula."""
    formula = parse_formula(dim)
    return [dim] if formula is None else [node.id for node in ast.walk(formula) if isinstance(node, ast.Name)]


def has_division(dim: str) -> bool:
    """Return whether a dim is a formula with a quotient, of which nobody says how it is rounded."""
    formula = parse_formula(dim)
    return formula is not None and any(isinstance(node, ast.Div | ast.FloorDiv) for node in ast.walk(formula))


def evaluate_dim(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim, given those of all names."""
    if isinstance(dim, int):
        return dim
    formula = None if dim in sizes else parse_formula(dim)
    return sizes[dim] if formula is None else max(_evaluate(formula, sizes), 0)


def substitute_dims(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """Return a dim where some names have sizes: a number if all have, else what is left of the formula."""
    if isinstance(dim, int) or dim in sizes:
        return evaluate_dim(dim, sizes)
    formula, own = parse_formula(dim), {*formula_names(dim)}
    if formula is None or not own & sizes.keys():
        return dim
    return evaluate_dim(dim, sizes) if own <= sizes.keys() else ast.unparse(_Substitution(sizes).visit(formula))


class _Substitution(ast.NodeTransformer):
    """Puts numbers in the places of names."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.sizes[node.id]) if node.id in self.sizes else node


def _evaluate(formula: ast.expr, sizes: Mapping[str, int]) -> int:
    match formula:
        case ast.Name(name):
            return sizes[name]
        case ast.UnaryOp(ast.USub(), operand):
            return -_evaluate(operand, sizes)
        case ast.BinOp(left, kind, right):
            divides = isinstance(kind, ast.FloorDiv | ast.Div)
            return _ARITHMETIC[type(kind)](_evaluate(left, sizes), _evaluate(right, sizes) or int(divides))
        case ast.Constant(int(number)):
            return number
    raise AssertionError(f"{ast.dump(formula)} is in no formula")
