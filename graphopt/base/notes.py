"""Which functions that floats do not have everywhere are computed, whatever the result is made of in the end.

Over the real numbers x · 1/x is 1, and of 0 · log(x) nothing is left: a value does not say what it took to compute it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from graphopt.base.integers import TRUE, Atom, Formula, Size, conj

_Binders: TypeAlias = "tuple[tuple[Atom, Size], ...]"
Noted: TypeAlias = "tuple[Any, _Binders, Formula]"
"""A call of such a function (`symbolic.Call`), what the sums and folds around it run over, and the case that it is of:
over nothing, or in another case, it is not made."""

PARTIAL = frozenset({"Inverse", "Log", "Sqrt", "Pow", "Mod", "FMod", "Asin", "Acos", "Acosh", "Atanh"})
"""Functions that floats have for some real numbers only."""


class _Notes:
    """Where calls of such functions are noted, if anywhere."""

    made: set[Noted] | None = None
    around: _Binders = ()
    case: Formula = TRUE


def note(made: Any) -> None:
    """Note a call, if it is of such a function."""
    if _Notes.made is not None and made.function in PARTIAL:
        _Notes.made.add((made, _Notes.around, _Notes.case))


@contextmanager
def noting() -> Iterator[set[Noted]]:
    """Return what is noted within, and nowhere else."""
    before, made = (_Notes.made, _Notes.around, _Notes.case), set[Noted]()
    _Notes.made, _Notes.around, _Notes.case = made, (), TRUE
    try:
        yield made
    finally:
        _Notes.made, _Notes.around, _Notes.case = before


@contextmanager
def running_over(binders: _Binders) -> Iterator[None]:
    """Have what is computed within noted as computed for each of what the binders run over."""
    before = _Notes.around
    _Notes.around = (*before, *binders)
    try:
        yield
    finally:
        _Notes.around = before


@contextmanager
def in_case(condition: Formula) -> Iterator[None]:
    """Have what is computed within noted as computed where a condition holds."""
    before = _Notes.case
    _Notes.case = conj(before, condition)
    try:
        yield
    finally:
        _Notes.case = before
