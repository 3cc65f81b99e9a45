"""Conditions with which a rule is proved that is not proved without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from graphopt.language.rule import Rule
from graphopt.language.term import App, Lit, Term, Var, applications, fn, holes
from graphopt.verifier.words import FOUND, spelled

SHAPES = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1}
"""Operators that take a shape, and at which input."""
MOST = 8
"""Of more sizes than these it is not asked which of them matter."""


def without_empty_axes(rule: Rule, holds: Callable[[Rule], bool]) -> str:
    """Return with what condition a rule holds that holds wherever no axis is empty; nothing for other rules."""
    sizes = [size for size in dict.fromkeys(_sizes(rule)) if fn.le(1, size) not in rule.conditions]
    if not sizes or not holds(_where_some(rule, sizes)):
        return ""
    for size in list(sizes) if len(sizes) <= MOST else ():
        fewer = [other for other in sizes if other is not size]
        if fewer and holds(_where_some(rule, fewer)):
            sizes = fewer
    conditions = [spelled(fn.le(1, size)) for size in _together(sizes)]
    said, more = " and ".join(f"`{condition}`" for condition in conditions), "s" if len(conditions) > 1 else ""
    return f"only an empty axis stands in the way: {FOUND}{more} {said}"


def _where_some(rule: Rule, sizes: Sequence[Term]) -> Rule:
    """Return the rule for sizes of at least 1."""
    return replace(rule, when=(*rule.conditions, *(fn.le(1, size) for size in sizes)))


def _sizes(rule: Rule) -> Iterator[Term]:
    """Yield the sizes of which the left side speaks: of named axes, of tensors without, and of shapes that are asked
    for."""
    for side in rule.left:
        for hole in holes(side):
            if hole.kind in ("tensor", "const") and hole.axes is None:
                yield fn.shape(hole)
            for axis in hole.axes or ():
                if "*" in axis:
                    yield fn.sizes(f"*{axis.partition('*')[2]}")
                elif axis != "_" and not axis.isdigit():
                    yield fn.size(axis)
        for app in applications(side):
            place = SHAPES.get(app.op, len(app.inputs)) if not app.domain else len(app.inputs)
            asked = app.inputs[place] if place < len(app.inputs) else None
            if isinstance(asked, Var) and asked.kind == "integers":
                yield asked


def _together(sizes: Sequence[Term]) -> list[Term]:
    """Return the sizes with those of named axes in one list."""
    named = [app.args[0].value for app in sizes if isinstance(app, App) and isinstance(app.args[0], Lit)]
    if len(named) < 2:
        return list(sizes)
    others = [size for size in sizes if not (isinstance(size, App) and isinstance(size.args[0], Lit))]
    return [fn.sizes(" ".join(map(str, named))), *others]
