"""Constant tensors: their values are read only when somebody asks for them.

Knows nothing of protobuf: `onnx_io` makes tensors whose `source` it can copy straight through when it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, prod
from typing import Any
from weakref import ReferenceType

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.ir.chunks import aligned, as_contiguous, bitwise_equal

MAX_CACHED_ELEMENTS = 1024
"""Elements up to which a tensor's values are kept in memory once read, and looked at freely by rules and passes."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A constant: element type, shape and a way to its values. Compared by identity; see `tensors_equal`."""

    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]] = field(repr=False)
    source: object = field(default=None, repr=False)
    """Place of the bytes, for whoever made the tensor; None for one that was computed."""
    _nonzero_masks: dict[int, NDArray[np.bool_]] = field(default_factory=dict, init=False, repr=False)
    _first_equal: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)
    _block_counts: dict[tuple[int, ...], int] = field(default_factory=dict, init=False, repr=False)
    _aligned: list[ReferenceType[NDArray[Any]]] = field(default_factory=list, init=False, repr=False)
    """The array that was given last, if any was."""

    @staticmethod
    def from_array(array: NDArray[Any]) -> Tensor:
        """Return a tensor that was computed: `array` is kept, and must not be changed afterwards."""
        return Tensor(DType.from_numpy(array.dtype), array.shape, lambda: array)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements as ONNX stores them (sub-byte types are packed); 0 for strings."""
        return (self.size * self.dtype.bits + 7) // 8

    @property
    def is_small(self) -> bool:
        return self.size <= MAX_CACHED_ELEMENTS

    def numpy(self) -> NDArray[Any]:
        """Return the values; read anew each time unless the tensor is small."""
        return self._small if self.is_small else self.read()

    def aligned_array(self) -> NDArray[Any]:
        """Return the values in the order of C, aligned as kernels want them: one array as long as somebody holds it."""
        array = self._aligned[0]() if self._aligned else None
        if array is None:
            array = aligned(as_contiguous(self.numpy()))
            self._aligned[:] = [ReferenceType(array)]
        return array

    @cached_property
    def _small(self) -> NDArray[Any]:
        return self.read()

    def nonzero_mask(self, axis: int) -> NDArray[np.bool_]:
        """Return for each place along an axis whether an element there is not 0; computed once."""
        if axis not in self._nonzero_masks:
            self._nonzero_masks[axis] = nonzero_mask(self.numpy(), axis)
        return self._nonzero_masks[axis]

    def first_equal(self, axis: int) -> NDArray[np.int64]:
        """Return for each place along an axis the first at which the elements are equal; computed once."""
        if axis not in self._first_equal:
            self._first_equal[axis] = first_equal(self.numpy(), axis)
        return self._first_equal[axis]

    def block_count(self, rows: int, columns: int, multiple: int) -> int:
        """Return the number of blocks that hold all that is not 0; computed once."""
        key = (rows, columns, multiple)
        if key not in self._block_counts:
            self._block_counts[key] = count_blocks(self.numpy(), *key)
        return self._block_counts[key]

    def int_values(self) -> tuple[int, ...] | None:
        """Return the values of a small integer tensor, flattened; None for any other."""
        if not self.dtype.is_integer or not self.is_small:
            return None
        return self._ints

    @cached_property
    def _ints(self) -> tuple[int, ...]:
        return tuple(int(value) for value in self.numpy().ravel())


def nonzero_mask(array: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """Return for each place along an axis whether an element there is not 0."""
    rows = np.moveaxis(array, axis, 0)
    others = tuple(range(1, array.ndim))
    found = np.asarray(np.any(rows[(slice(None), *(slice(0, 8) for _ in others))] != 0, axis=others))
    if not found.all():  # most weights are not pruned: the first few elements tell
        zeros = np.flatnonzero(~found)
        found[zeros] = np.any(rows[zeros] != 0, axis=others)
    return found


def first_equal(array: NDArray[Any], axis: int) -> NDArray[np.int64]:
    """Return for each place along an axis the first at which the elements are equal, bit for bit but for -0."""
    rows = np.moveaxis(array, axis, 0)
    found = _first_equal_rows(rows[(slice(None), *(slice(0, 8) for _ in range(1, array.ndim)))])
    many = np.flatnonzero(np.bincount(found, minlength=1)[found] > 1) if found.size else found
    if many.size:  # most channels differ from all others: the first few elements tell
        found = np.arange(len(rows))
        found[many] = many[_first_equal_rows(rows[many])]
    return found


def _first_equal_rows(rows: NDArray[Any]) -> NDArray[np.int64]:
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), i) for i, row in enumerate(rows + rows.dtype.type(0))], np.int64)


def count_blocks(array: NDArray[Any], rows: int, columns: int, multiple: int) -> int:
    """Return the greatest number of equal blocks on the diagonal of two axes outside of which every element is 0.

    Each side of a block is a `multiple`. The number is 1 where there are no such blocks, or no elements.
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


def tensors_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same bit for bit: -0.0 differs from 0.0, a NaN equals one of the same bits."""
    if a is b:
        return True
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    left, right = a.numpy(), b.numpy()
    return bool(np.array_equal(left, right)) if a.dtype is DType.STRING else bitwise_equal(left, right)
