"""Large arrays, little by little: what a strided view holds is looked at, compared and written without a copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 24
"""Bytes of a large array that are in memory at once."""


def pieces(array: NDArray[Any], limit: int = PIECE) -> Iterator[NDArray[Any]]:
    """Yield the elements of an array in the order of C, flat and contiguous, in pieces of up to `limit` bytes."""
    if array.nbytes <= limit:
        yield contiguous(array).reshape(-1)
    elif array.flags.c_contiguous:
        flat, count = array.reshape(-1), max(8, limit // array.itemsize // 8 * 8)  # whole bytes of sub-byte types
        for start in range(0, flat.size, count):
            yield flat[start : start + count]
    elif array[0].nbytes > limit:
        for row in array:
            yield from pieces(row, limit)
    else:
        for rows in slabs(array.shape, array.itemsize, limit):
            yield contiguous(array[rows]).reshape(-1)


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the order of C, itself if it is; one that is transposed, a few columns at a time."""
    if array.flags.c_contiguous or array.ndim < 2 or abs(array.strides[-1]) <= array.itemsize:
        return np.ascontiguousarray(array)
    made = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[-1], COLUMNS):
        made[..., start : start + COLUMNS] = array[..., start : start + COLUMNS]
    return made


COLUMNS = 16
"""So many lines of the processor's cache are read along at once: that is ten times as fast as row after row."""


def slabs(shape: tuple[int, ...], itemsize: int, limit: int = PIECE) -> Iterator[slice]:
    """Yield parts of the first axis, each of as many rows as `limit` bytes hold, or of one."""
    count = max(1, limit // max(1, itemsize * prod(shape[1:])))
    for start in range(0, shape[0], count):
        yield slice(start, min(start + count, shape[0]))


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays of one type and shape are the same, bit for bit."""
    if one.flags.c_contiguous != other.flags.c_contiguous and one.nbytes > PIECE:
        rows = slabs(one.shape, one.itemsize)
        return all(same_bits(contiguous(one[part]), contiguous(other[part])) for part in rows)
    pairs = zip(pieces(one), pieces(other), strict=True)
    return all(np.array_equal(left.view(np.uint8), right.view(np.uint8)) for left, right in pairs)
