"""Integers and formulas at all indices of a shape at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.expr.expressions import Binders
from graphopt.expr.index_lists import INDEX_LIST_KINDS
from graphopt.expr.integers import Atom, BooleanAtom, Formula, Size
from graphopt.expr.substitution import IntegerEvaluation


class UndefinedIndexError(Exception):
    """An index hangs on something that is not known."""


@dataclass(frozen=True)
class IndexGrid(IntegerEvaluation):
    """Each symbol is an array along an axis of its own, binders come in front."""

    shape: tuple[int, ...] = ()

    def with_binders(self, binders: Binders) -> Self:
        """Return a grid with one more axis for each binder: in front, in their order."""
        symbols, shape = dict(self.symbols), self.shape
        for atom, extent in reversed(binders):
            length = self.concrete_size(extent)
            symbols[atom] = np.arange(length).reshape(length, *(1,) * len(shape))
            shape = (length, *shape)
        return replace(self, shape=shape, symbols=symbols)

    def concrete_size(self, size: Size) -> int:
        found = self.integer(size)
        if np.ndim(found):
            raise UndefinedIndexError("a sum whose length hangs on an index")
        return max(int(found), 0)

    def pad_axes(self, numbers: Any) -> NDArray[Any]:
        """Return indices with as many axes as the grid has."""
        array = np.asarray(numbers)
        return array.reshape((1,) * (len(self.shape) - array.ndim) + array.shape)

    def atom(self, atom: Atom) -> Any:
        if atom.kind in INDEX_LIST_KINDS:
            raise UndefinedIndexError("what the contents of a constant say")
        if atom.kind == "symbol" and atom not in self.symbols:
            raise UndefinedIndexError(f"{atom} is not known")
        return super().atom(atom)

    def choose(self, condition: Formula, then: Size, otherwise: Size) -> Any:
        holds = self.holds(condition)
        if np.ndim(holds) == 0:  # a size, of numbers that know no overflow
            return self.integer(then if holds else otherwise)
        return np.where(holds, self.integer(then), self.integer(otherwise))

    def all_hold(self, parts: Iterable[Formula]) -> Any:
        return reduce(np.logical_and, map(self.holds, parts), np.True_)

    def any_holds(self, parts: Iterable[Formula]) -> Any:
        return reduce(np.logical_or, map(self.holds, parts), np.False_)

    def value_holds(self, atom: BooleanAtom) -> Any:
        raise UndefinedIndexError(f"{atom} hangs on values")
