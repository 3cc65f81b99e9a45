"""Large arrays in chunks: a strided view is read, compared and written without a copy of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 24
"""Bytes of a large array that are in memory at once."""


def iter_chunks(array: NDArray[Any], limit: int = CHUNK_BYTES) -> Iterator[NDArray[Any]]:
    """Yield the elements of an array in the order of C, flat and contiguous, in pieces of up to `limit` bytes."""
    if array.nbytes <= limit:
        yield as_contiguous(array).reshape(-1)
    elif array.flags.c_contiguous:
        flat, count = array.reshape(-1), max(8, limit // array.itemsize // 8 * 8)  # whole bytes of sub-byte types
        for start in range(0, flat.size, count):
            yield flat[start : start + count]
    elif array[0].nbytes > limit:
        for row in array:
            yield from iter_chunks(row, limit)
    else:
        for rows in row_slabs(array.shape, array.itemsize, limit):
            yield as_contiguous(array[rows]).reshape(-1)


def as_contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the order of C, itself if it is that already; a transposed one is copied a few columns at a
    time."""
    if array.flags.c_contiguous or array.ndim < 2 or abs(array.strides[-1]) <= array.itemsize:
        return np.ascontiguousarray(array)
    made = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[-1], CACHE_LINES):
        made[..., start : start + CACHE_LINES] = array[..., start : start + CACHE_LINES]
    return made


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, which is in the order of C, or a copy that begins at a cache line."""
    if array.ctypes.data % ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


ALIGNMENT = 64
"""Bytes to which ONNX Runtime aligns tensors of its own."""
CACHE_LINES = 16
"""Cache lines that are read along at once: ten times as fast as row after row."""


def row_slabs(shape: tuple[int, ...], itemsize: int, limit: int = CHUNK_BYTES) -> Iterator[slice]:
    """Yield parts of the first axis, each of as many rows as `limit` bytes hold, or of one."""
    count = max(1, limit // max(1, itemsize * prod(shape[1:])))
    for start in range(0, shape[0], count):
        yield slice(start, min(start + count, shape[0]))


def bitwise_equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays of one type and shape are the same, bit for bit."""
    if one.flags.c_contiguous != other.flags.c_contiguous and one.nbytes > CHUNK_BYTES:
        rows = row_slabs(one.shape, one.itemsize)
        return all(bitwise_equal(as_contiguous(one[part]), as_contiguous(other[part])) for part in rows)
    pairs = zip(iter_chunks(one), iter_chunks(other), strict=True)
    return all(np.array_equal(left.view(np.uint8), right.view(np.uint8)) for left, right in pairs)
