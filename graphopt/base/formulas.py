"""Sizes that models write as formulas of others, as exporters do behind a cache: `past + 1`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}
_FORMULA = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.USub, ast.expr_context, *_ARITHMETIC)


def parsed(dim: str) -> ast.expr | None:
    """Return a dim such as `past + 1` as a formula; None where it is a mere name, as `batch-size` is."""
    if not re.search(r"[+*/]|\s-\s|-\s*\d", dim):
        return None
    try:
        formula = ast.parse(dim.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return formula if all(isinstance(node, _FORMULA) for node in ast.walk(formula)) else None


def names(dim: str) -> list[str]:
    """Return the names that a dim is computed from: itself, unless it is a formula."""
    formula = parsed(dim)
    return [dim] if formula is None else [node.id for node in ast.walk(formula) if isinstance(node, ast.Name)]


def size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim, given those of all names."""
    if isinstance(dim, int):
        return dim
    formula = None if dim in sizes else parsed(dim)
    return sizes[dim] if formula is None else max(_value(formula, sizes), 0)


def fixed(dim: str, sizes: Mapping[str, int]) -> int | str:
    """Return a dim where some names have sizes: a number if all have, else what is left of the formula."""
    if sizes.keys() >= {*names(dim)}:
        return size(dim, sizes)
    formula = parsed(dim)
    return dim if formula is None else ast.unparse(_Fixing(sizes).visit(formula))


@dataclass
class _Fixing(ast.NodeTransformer):
    sizes: Mapping[str, int]

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
    return 1
