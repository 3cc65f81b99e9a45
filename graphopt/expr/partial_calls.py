"""Record of calls of partial functions, those without a float result for some arguments.

Over the real numbers x · 1/x is 1, and 0 · log(x) is 0: the normal form of a value does not show the calls behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from graphopt.base.session import current_session
from graphopt.expr.integers import TRUE, Atom, Formula, Size, conjunction

Binders: TypeAlias = "tuple[tuple[Atom, Size], ...]"
PartialCall: TypeAlias = "tuple[Any, Binders, Formula]"
"""A call of such a function (`expressions.Call`), the binders of the sums and folds around it, and its guard: over
nothing, or where the guard does not hold, the call is not made."""

PARTIAL_FUNCTIONS = frozenset({"Inverse", "Log", "Sqrt", "Pow", "Mod", "FMod", "Asin", "Acos", "Acosh", "Atanh"})
"""Functions that floats have for some real numbers only."""


def record_call(made: Any) -> None:
    """Note a call, if it is of such a function."""
    notes = current_session().partial_calls
    if notes.calls is not None and made.function in PARTIAL_FUNCTIONS:
        notes.calls.add((made, notes.binders, notes.guard))


@contextmanager
def recording_partial_calls() -> Iterator[set[PartialCall]]:
    """Give the set of calls that are noted within; they are noted nowhere else."""
    notes = current_session().partial_calls
    before, made = (notes.calls, notes.binders, notes.guard), set[PartialCall]()
    notes.calls, notes.binders, notes.guard = made, (), TRUE
    try:
        yield made
    finally:
        notes.calls, notes.binders, notes.guard = before


@contextmanager
def under_binders(binders: Binders) -> Iterator[None]:
    """Note calls within as made for all values of the binders."""
    notes = current_session().partial_calls
    before = notes.binders
    notes.binders = (*before, *binders)
    try:
        yield
    finally:
        notes.binders = before


@contextmanager
def under_guard(condition: Formula) -> Iterator[None]:
    """Note calls within as made only where a condition holds."""
    notes = current_session().partial_calls
    before = notes.guard
    notes.guard = condition if before is None else conjunction(before, condition)
    try:
        yield
    finally:
        notes.guard = before
