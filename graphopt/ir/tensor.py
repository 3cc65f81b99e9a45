"""Constant tensors: their values are read only when somebody asks for them.

Knows nothing of protobuf: `onnx_io` makes tensors whose `source` it can copy straight through when it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.base.types import DType

SMALL = 1024
"""Elements up to which a tensor's values are kept in memory once read, and looked at freely by rules and passes."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A constant: element type, shape and a way to its values. Compared by identity; see `same_values`."""

    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]] = field(repr=False)
    source: object = field(default=None, repr=False)
    """Where the bytes lie, for whoever made the tensor; None for one that was computed."""
    _filled: dict[int, NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False)
    _firsts: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)
    _blocks: dict[tuple[int, ...], int] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def of(array: NDArray[Any]) -> Tensor:
        """Return a tensor that was computed: `array` is kept, and must not be changed afterwards."""
        return Tensor(DType.of(array.dtype), array.shape, lambda: array)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements as ONNX stores them (sub-byte types are packed); 0 for strings."""
        return (self.size * self.dtype.bits + 7) // 8

    @property
    def is_small(self) -> bool:
        return self.size <= SMALL

    def numpy(self) -> NDArray[Any]:
        """Return the values; read anew each time unless the tensor is small."""
        return self._small if self.is_small else self.read()

    @cached_property
    def _small(self) -> NDArray[Any]:
        return self.read()

    def filled(self, axis: int) -> NDArray[np.bool_]:
        """Return for each place along an axis whether an element there is not 0; looked at once."""
        if axis not in self._filled:
            self._filled[axis] = filled(self.numpy(), axis)
        return self._filled[axis]

    def firsts(self, axis: int) -> NDArray[np.int64]:
        """Return for each place along an axis the first at which the elements are equal; looked at once."""
        if axis not in self._firsts:
            self._firsts[axis] = firsts(self.numpy(), axis)
        return self._firsts[axis]

    def blocks(self, rows: int, columns: int, multiple: int) -> int:
        """Return how many blocks hold all that is not 0; looked at once."""
        key = (rows, columns, multiple)
        if key not in self._blocks:
            self._blocks[key] = blocks(self.numpy(), *key)
        return self._blocks[key]

    def ints(self) -> tuple[int, ...] | None:
        """Return the values of a small integer tensor, flattened; None for any other."""
        if not self.dtype.is_integer or not self.is_small:
            return None
        return self._ints

    @cached_property
    def _ints(self) -> tuple[int, ...]:
        return tuple(int(value) for value in self.numpy().ravel())


def filled(array: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """Return for each place along an axis whether an element there is not 0."""
    rows = np.moveaxis(array, axis, 0)
    others = tuple(range(1, array.ndim))
    found = np.asarray(np.any(rows[(slice(None), *(slice(0, 8) for _ in others))] != 0, axis=others))
    if not found.all():  # most weights are not pruned: the first few elements tell
        zeros = np.flatnonzero(~found)
        found[zeros] = np.any(rows[zeros] != 0, axis=others)
    return found


def firsts(array: NDArray[Any], axis: int) -> NDArray[np.int64]:
    """Return for each place along an axis the first at which the elements are equal, bit for bit but for -0."""
    rows = np.moveaxis(array, axis, 0)
    found = _firsts(rows[(slice(None), *(slice(0, 8) for _ in range(1, array.ndim)))])
    many = np.flatnonzero(np.bincount(found, minlength=1)[found] > 1) if found.size else found
    if many.size:  # most channels differ from all others: the first few elements tell
        found = np.arange(len(rows))
        found[many] = many[_firsts(rows[many])]
    return found


def _firsts(rows: NDArray[Any]) -> NDArray[np.int64]:
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), i) for i, row in enumerate(rows + rows.dtype.type(0))], np.int64)


def blocks(array: NDArray[Any], rows: int, columns: int, multiple: int) -> int:
    """Return the greatest number of equal blocks on the diagonal of two axes outside of which every element is 0.

    Each side of a block is a multiple of a number; 1 where there are no such blocks, and of an array without elements.
    """
    table = np.moveaxis(array, (rows, columns), (0, 1))
    height, width = table.shape[:2]
    if not array.size or np.any(table[0, -1] != 0) or np.any(table[-1, 0] != 0):
        return 1  # most weights are dense: a corner tells
    filled = np.any(table != 0, axis=tuple(range(2, array.ndim)))
    own = np.flatnonzero(filled.any(axis=1))
    first, last = filled[own].argmax(axis=1), width - 1 - filled[own, ::-1].argmax(axis=1)
    for count in range(gcd(height, width), 1, -1):
        high, wide = height // count, width // count
        if height % count or width % count or high % multiple or wide % multiple:
            continue
        if np.array_equal(first // wide, own // high) and np.array_equal(last // wide, own // high):
            return count
    return 1


def same_values(a: Tensor, b: Tensor) -> bool:
    """Bit for bit the same tensor: -0.0 differs from 0.0, a NaN equals a NaN of the same bits."""
    if a is b:
        return True
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    left, right = a.numpy(), b.numpy()
    if a.dtype is DType.STRING:
        return bool(np.array_equal(left, right))
    a_bytes, b_bytes = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (left, right))
    starts = range(0, a_bytes.size, _CHUNK)  # a copy of what lies in a file may be larger than memory
    return all(np.array_equal(a_bytes[start : start + _CHUNK], b_bytes[start : start + _CHUNK]) for start in starts)


_CHUNK = 1 << 22
"""Bytes that are compared at a time."""


def peaks(array: NDArray[Any]) -> Iterator[float]:
    """Yield the largest magnitude of a list, or of each channel along each axis."""
    for axis in range(max(array.ndim, 1) if array.size else 0):
        others = tuple(other for other in range(array.ndim) if other != axis or array.ndim == 1)
        yield from map(float, np.unique(np.abs(array).max(others)))
