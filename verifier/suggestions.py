"""Conditions with which a rule is proved that is not proved without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

import numpy as np

from graphopt.language.rule import Rule
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import SCALAR_FUNCTIONS, UndecidedScalarError
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, fn, holes, walk_term
from graphopt.operators.operator_classes import lookup_operator
from graphopt.verifier.messages import PROVED_WITH_CONDITION, format_condition

MAX_MINIMIZED_SIZES = 8
"""The most sizes of which those are found that matter."""
NUMBER_TOLERANCE = 1e-3
"""Relative to a number, how far from it a decimal may lie that is meant for it."""
WELL_KNOWN: Mapping[str, float] = {
    "math.sqrt(2)": math.sqrt(2),
    "math.sqrt(1 / 2)": math.sqrt(1 / 2),
    "math.sqrt(2 / math.pi)": math.sqrt(2 / math.pi),
    "math.sqrt(math.pi / 2)": math.sqrt(math.pi / 2),
    "2 / math.sqrt(math.pi)": 2 / math.sqrt(math.pi),
    "math.sqrt(3)": math.sqrt(3),
    "math.sqrt(1 / 3)": math.sqrt(1 / 3),
    "math.pi": math.pi,
    "2 * math.pi": 2 * math.pi,
    "math.pi / 2": math.pi / 2,
    "1 / math.pi": 1 / math.pi,
    "math.e": math.e,
    "math.log(2)": math.log(2),
    "math.log(10)": math.log(10),
    "1 / math.log(2)": 1 / math.log(2),
    "1 / math.log(10)": 1 / math.log(10),
    "1 / 3": 1 / 3,
    "2 / 3": 2 / 3,
    "1 / 6": 1 / 6,
}
"""Numbers that are often written with fewer digits, by how Python computes them."""

Holds: TypeAlias = "Callable[[Rule], bool]"
"""Predicate that says if a rule is proved."""


def suggestion(rule: Rule, holds: Holds, *, empty: bool) -> str:
    """Return what to change in a rule for it to be proved: its numbers, or, if `empty`, conditions that sizes are at
    least 1. Empty if neither helps."""
    return suggest_exact_numbers(rule, holds) or (suggest_nonempty_axes(rule, holds) if empty else "")


# -- numbers -----------------------------------------------------------------------------------------------------------


def suggest_exact_numbers(rule: Rule, holds: Holds) -> str:
    """Return which numbers of a rule have to be written otherwise for it to be proved; empty if that does not help."""
    written = dict.fromkeys(chain.from_iterable(map(_numbers, (*rule.left, *rule.right))))
    meant = {part: found for part in written if (found := _find_intended_number(part)) is not None}
    if not meant:
        return ""
    other = {part: Lit(value) for part, (_, value) in meant.items()}
    left, right = (tuple(_substitute(side, other) for side in sides) for sides in (rule.left, rule.right))
    if left == right or not holds(replace(rule, lhs=left, rhs=right)):
        return ""
    return "\n".join(_about_number(part, *found) for part, found in meant.items())


def _numbers(term: Term) -> Iterator[Term]:
    """Yield the numbers with a point that are written, and those that are computed of written ones."""
    match term:
        case Lit(value=float()):
            yield term
        case App(domain=domain, op=op) if domain == SCALAR and op in SCALAR_FUNCTIONS and _value(term) is not None:
            yield term
        case App():
            yield from chain.from_iterable(_numbers(part) for part in (*term.operands, *(v for _, v in term.attrs)))


def _value(term: Term) -> float | None:
    """Return the number that is written, or computed of written ones in double precision; of others, as lists and what
    is whole, nothing."""
    if isinstance(term, Lit):
        return float(term.value) if isinstance(term.value, int | float) else None
    with suppress(UndecidedScalarError):
        found = None if any(isinstance(part, Var) for part in walk_term(term)) else ScalarAlgebra().evaluate(term)
        return found if isinstance(found, float) else None
    return None


def _find_intended_number(term: Term) -> tuple[str, float] | None:
    """Return the number, and how it is computed, of which another has not all digits, or is computed otherwise."""
    value = _value(term)
    if value is None:
        return None
    for spelling, exact in WELL_KNOWN.items():
        if abs(abs(value) - exact) <= NUMBER_TOLERANCE * exact and (abs(value) != exact or isinstance(term, App)):
            return (spelling, exact) if value > 0 else (f"-({spelling})", -exact)
    return None


def _substitute(term: Term, other: Mapping[Term, Term]) -> Term:
    if term in other:
        return other[term]
    if not isinstance(term, App):
        return term
    args = tuple(None if arg is None else _substitute(arg, other) for arg in term.args)
    return replace(term, args=args, attrs=tuple((name, _substitute(value, other)) for name, value in term.attrs))


def _about_number(term: Term, spelling: str, exact: float) -> str:
    value = _value(term)
    assert value is not None
    correction = f"{term} is not {spelling}: it is proved with {exact!r}"
    if value == exact:
        return f"{correction}, the nearest float, written out"
    if np.float32(value) == np.float32(exact):
        return f"{correction}, which is the same number in single precision, so that it matches there, too"
    return f"{correction}, which is another number in single precision, too: it does not match models with {value!r}"


# -- sizes -------------------------------------------------------------------------------------------------------------


def suggest_nonempty_axes(rule: Rule, holds: Holds) -> str:
    """Return the condition that makes a rule provable which holds wherever no axis is empty; empty for other rules."""
    sizes = [size for size in dict.fromkeys(_sizes(rule)) if fn.le(1, size) not in rule.conditions]
    if not sizes or not holds(_with_nonempty(rule, sizes)):
        return ""
    for size in list(sizes) if len(sizes) <= MAX_MINIMIZED_SIZES else ():
        fewer = [other for other in sizes if other is not size]
        if fewer and holds(_with_nonempty(rule, fewer)):
            sizes = fewer
    conditions = [format_condition(fn.le(1, size)) for size in _merge_named_axes(sizes)]
    listed, plural = " and ".join(f"`{condition}`" for condition in conditions), "s" if len(conditions) > 1 else ""
    return f"only an empty axis stands in the way: {PROVED_WITH_CONDITION}{plural} {listed}"


def _with_nonempty(rule: Rule, sizes: Sequence[Term]) -> Rule:
    """Return the rule for sizes of at least 1."""
    return replace(rule, when=(*rule.conditions, *(fn.le(1, size) for size in sizes)))


def _sizes(rule: Rule) -> Iterator[Term]:
    """Yield the sizes of which the left side speaks: of named axes, of tensors without, and of shapes that are asked
    for."""
    for side in rule.left:
        for hole in holes(side):
            if hole.kind in ("tensor", "const") and hole.axes is None:
                yield fn.shape(hole)
            yield from map(_size, filter(_may_be_empty, hole.axes or ()))
        for part in walk_term(side):
            match part:
                case App(op="size" | "sizes", args=(Lit(value=str(axes)),)) if part.domain == SCALAR:
                    yield from map(_size, filter(_may_be_empty, axes.split()))
                case App(domain=domain, op=name, inputs=inputs) if domain != SCALAR:
                    place = lookup_operator(name, domain).shape_input
                    asked = inputs[place] if place is not None and place < len(inputs) else None
                    if isinstance(asked, Var) and asked.kind == "integers":
                        yield asked


def _may_be_empty(axis: str) -> bool:
    """Return whether an axis, or one of a pack, has a name and may have no elements: those of `1*k` have one."""
    return axis.startswith("*") or axis[0].isalpha()


def _size(axis: str) -> Term:
    """Return the size of an axis, or the sizes of a pack of them."""
    return fn.sizes(axis) if "*" in axis else fn.size(axis)


def _merge_named_axes(sizes: Sequence[Term]) -> list[Term]:
    """Return the sizes with those of named axes in one list."""
    named = [app.args[0].value for app in sizes if isinstance(app, App) and isinstance(app.args[0], Lit)]
    if len(named) < 2:
        return list(sizes)
    others = [size for size in sizes if not (isinstance(size, App) and isinstance(size.args[0], Lit))]
    return [fn.sizes(" ".join(map(str, named))), *others]
