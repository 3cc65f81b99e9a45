"""What the conditions of a rule say of its holes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from graphopt.expr.integers import Polynomial
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import MAX_AXIS_SIZE, PROPERTIES, PYTHON_LOGIC
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    fn,
    holes,
    is_content_query,
    operator_applications,
    walk_term,
)
from graphopt.verifier.choices import as_tuple


@cache
def properties_of(rule: Rule) -> Mapping[str, frozenset[str]]:
    """Return the properties of elements that the conditions say, by name."""
    found: dict[str, frozenset[str]] = {}
    for app in rule.property_conditions:
        of = app.args[0]
        assert isinstance(of, Var)  # checked when the rule was built
        if app.op != "is_arange":
            found[of.name] = found.get(of.name, frozenset()) | {app.op}
    return found


def are_consistent_properties(properties: Mapping[str, frozenset[str]]) -> bool:
    """Return whether each constant can have all of its properties at once."""
    return all(
        any(all(PROPERTIES[p](PYTHON_LOGIC, x) for p in names) for x in (0, 1, 2, -1, 0.5))
        for names in properties.values()
    )


def most_axes(rule: Rule) -> int:
    """Return how many axes the left side writes at most: by a permutation, or by new axes of a hole that has names for
    its own. Other lists, such as pads, say less of a rank."""
    return max((_axes_written(app) for side in rule.left for app in operator_applications(side)), default=0)


def _axes_written(app: App) -> int:
    match app:
        case App(op="Transpose", attrs=(("perm", Lit(value=tuple(perm))),)):
            return len(perm)
        case App(op="Unsqueeze", args=(Var(axes=tuple(own)), Lit(value=tuple(new)))) if not any("*" in a for a in own):
            return len(own) + len(new)
    return 0


@cache
def needs_int64_bound(rule: Rule) -> bool:
    parts = (part for side in (*rule.left, *rule.right, *rule.conditions) for part in walk_term(side))
    numbers = chain.from_iterable(as_tuple(part.value) for part in parts if isinstance(part, Lit))
    return any(isinstance(number, int) and abs(number) >= MAX_AXIS_SIZE for number in numbers)


def assume_nonempty_axes(rule: Rule) -> Rule:
    """Return the rule with one condition in the place of all: that no named axis is empty."""
    tokens = {token.removeprefix("1") for hole in rule.holes.values() for token in hole.axes or ()}
    named = sorted(token for token in tokens if token.isidentifier() and token != "_")
    return replace(rule, when=tuple(fn.le(1, fn.size(axis)) for axis in named))


@cache
def mentions_remainder(rule: Rule) -> bool:
    """Return whether a condition mentions a remainder."""
    return any(isinstance(part, App) and part.op == "mod" for said in rule.conditions for part in walk_term(said))


@cache
def format_unfulfilled(condition: Term) -> str:
    """Why a rule does not apply, in its words: asked for at each instance, printed at few."""
    return f"{condition} does not hold"


@cache
def is_number_condition(condition: Term) -> bool:
    """Return whether a condition is about numbers alone: it mentions no named size and no operator."""
    apps = [part for part in walk_term(condition) if isinstance(part, App)]
    said = ("size", "sizes", *PROPERTIES)
    return all(app.domain == SCALAR and app.op not in said and not is_content_query(app) for app in apps)


ROUNDING_FUNCTIONS = frozenset(
    {"add", "sub", "mul", "floordiv", "mod", "truediv", "neg", "sqrt", "sum", "product", "normalize_indices"}
)
"""The scalar functions that compute, and so round."""

COMPARISON_FUNCTIONS = frozenset({"eq", "ne", "le", "lt", "is_in", "maximum", "minimum", "sorted", "is_sorted"})
"""Scalar functions whose result jumps."""


@cache
def compares_rounded(scalar: App) -> bool:
    """Return whether a scalar function compares computed real numbers: exact in proofs, rounded to double when
    applied."""
    parts = (part for arg in scalar.operands for part in walk_term(arg) if isinstance(part, App))
    return scalar.op in COMPARISON_FUNCTIONS and any(
        part.domain == SCALAR and part.op in ROUNDING_FUNCTIONS for part in parts
    )


@cache
def referenced_names(scalar: Term) -> tuple[frozenset[str], frozenset[str]]:
    """Return the holes and the packs of axes that a scalar term mentions."""
    asked = (part for part in walk_term(scalar) if isinstance(part, App) and part.op in ("size", "sizes"))
    axes = " ".join(str(arg.value) for app in asked for arg in app.args if isinstance(arg, Lit)).split()
    packs = frozenset(axis.partition("*")[2] for axis in axes if "*" in axis)
    return frozenset(hole.name for hole in holes(scalar)), packs


def substitute_given(symbols: Any, said: Any) -> Any:
    """Return a value with symbols replaced by what a condition says that they equal."""
    if isinstance(symbols, Polynomial) and isinstance(said, int | Polynomial):
        return said
    if not isinstance(symbols, tuple) or not all(isinstance(symbol_, Polynomial) for symbol_ in symbols):
        return symbols
    if isinstance(said, int | Polynomial):
        return (said,) * len(symbols)
    return said if isinstance(said, tuple) and len(said) == len(symbols) else symbols
