"""Ranks, sizes, element types and values from which instances of rules are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.language.type_inference import COMMON_DTYPES

Shape: TypeAlias = tuple[int, ...]
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class SamplingScope:
    """Sets of ranks, sizes, element types and numbers to draw from; what is listed more often is drawn more often."""

    ranks: Shape = (0, 1, 1, 2, 2, 2, 3, 4)
    """Ranks of holes without axes."""
    packs: Shape = (0, 1, 1, 2, 2, 3)
    """Numbers of axes that a pack stands for."""
    sizes: Shape = (1, 1, 2, 2, 3, 3, 4, 4, 5, 6)
    dtypes: tuple[DType, ...] = COMMON_DTYPES
    numbers: Shape = (0, 1, 2, 3)
    """Elements of lists of whole numbers of which nothing else is known."""
    plain: bool = False
    """Values that a person can reckon with: whole and half numbers."""
    edges: bool = False
    """Values that a kernel may treat specially: 0, the least and the greatest, one number throughout or a few."""


ANY = SamplingScope()
PLAIN = SamplingScope(sizes=(1, 2, 2, 3), plain=True)
EMPTY_AXES = SamplingScope(sizes=(0, 0, 1, 1, 2), plain=True)
"""Empty tensors, and those of one element."""

EDGES = SamplingScope(sizes=(1, 2, 2, 3), edges=True)


def random_array(rng: np.random.Generator, shape: Shape, dtype: DType, *, plain: bool) -> Array:
    """Return random numbers: floats around zero, zero among them; integers without zero, as they may be divisors."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float and plain:
        few: Array = rng.integers(-3, 4, shape) * rng.choice((0.5, 1.0, 1.0))
        return few.astype(dtype.numpy)
    if dtype.is_float:
        array: Array = np.where(rng.random(shape) < 0.05, 0.0, rng.normal(0, 1.5, shape))
        return array.astype(dtype.numpy)
    low = 1 if dtype.name.startswith("U") else -6
    array = rng.integers(low, 7, shape)
    return np.where(array == 0, 1, array).astype(dtype.numpy)


def edge_array(rng: np.random.Generator, shape: Shape, dtype: DType) -> Array:
    """Return one to three of the numbers that a kernel may treat specially, repeated."""
    few = rng.choice(np.array(_special(dtype), dtype.numpy), rng.choice((1, 1, 2, 3)))
    return rng.choice(few, shape)


def _special(dtype: DType) -> tuple[float, ...]:
    """Return 0, 1, a number beside it (0.5 of floats, 2 of integers), and the least and the greatest number.

    Signed types have -1, too; of large types the ends are far from 0, but so that no sum of them is too large.
    """
    if dtype is DType.BOOL:
        return (0, 1)
    low, high = dtype.limits if dtype.is_integer and dtype.bits <= SMALL else (-FAR, FAR)
    if dtype.is_float:
        low, high = (-4, 4) if dtype.bits <= SMALL else (-10, 10)
    return tuple({0, 0.5 if dtype.is_float else 2, 1, max(low, -1), max(low, -FAR), high})


SMALL, FAR = 16, 1_000_000


def _negative(array: Array) -> Array:
    with np.errstate(over="ignore"):  # where there are none it is drawn again
        return np.asarray(-np.abs(array) - np.asarray(0.5, array.dtype))


WITH_PROPERTY: Mapping[str, Callable[[Array], Array]] = {
    "is_zero": np.zeros_like,
    "is_one": np.ones_like,
    "is_positive": lambda array: np.abs(array) + np.asarray(0.5, array.dtype),
    "is_negative": _negative,
    "is_nonnegative": np.abs,
    "is_scale": lambda array: np.abs(array) + np.asarray(0.25, array.dtype),
}
"""Functions that give an array a property of constants, by the property."""
