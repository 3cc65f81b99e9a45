"""Which functions that floats do not have everywhere are computed, whatever the result is made of in the end.

Over the real numbers x · 1/x is 1, and of 0 · log(x) nothing is left: a value does not say what it took to compute it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from graphopt.base.integers import TRUE, Atom, Formula, Size, conj
from graphopt.base.session import current

_Binders: TypeAlias = "tuple[tuple[Atom, Size], ...]"
Noted: TypeAlias = "tuple[Any, _Binders, Formula]"
"""A call of such a function (`symbolic.Call`), what the sums and folds around it run over, and the case that it is of:
over nothing, or in another case, it is not made."""

PARTIAL = frozenset({"Inverse", "Log", "Sqrt", "Pow", "Mod", "FMod", "Asin", "Acos", "Acosh", "Atanh"})
"""Functions that floats have for some real numbers only."""


def note(made: Any) -> None:
    """Note a call, if it is of such a function."""
    notes = current().notes
    if notes.made is not None and made.function in PARTIAL:
        notes.made.add((made, notes.around, notes.case))


@contextmanager
def noting() -> Iterator[set[Noted]]:
    """Return what is noted within, and nowhere else."""
    notes = current().notes
    before, made = (notes.made, notes.around, notes.case), set[Noted]()
    notes.made, notes.around, notes.case = made, (), TRUE
    try:
        yield made
    finally:
        notes.made, notes.around, notes.case = before


@contextmanager
def running_over(binders: _Binders) -> Iterator[None]:
    """Have what is computed within noted as computed for each of what the binders run over."""
    notes = current().notes
    before = notes.around
    notes.around = (*before, *binders)
    try:
        yield
    finally:
        notes.around = before


@contextmanager
def in_case(condition: Formula) -> Iterator[None]:
    """Have what is computed within noted as computed where a condition holds."""
    notes = current().notes
    before = notes.case
    notes.case = condition if before is None else conj(before, condition)
    try:
        yield
    finally:
        notes.case = before
