"""Large computed tensors, kept in a file without a name, and mapped again whenever they are read.

So a run holds in memory only what it works on: neither the weights that it made, nor those that later rewrites replaced
and its history still knows.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from math import prod
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.ir.chunks import iter_chunks
from graphopt.ir.tensor import Tensor

SPILL_BYTES = 1 << 20
"""Bytes from which on a tensor is kept in a file."""


def spill(array: NDArray[Any]) -> Tensor:
    """Return a tensor that was computed; `array` must not be changed afterwards."""
    if array.nbytes < SPILL_BYTES or array.dtype.hasobject or is_memory_mapped(array):
        return Tensor.from_array(array)
    return spill_parts(DType.from_numpy(array.dtype), array.shape, lambda: iter_chunks(array))


def spill_parts(dtype: DType, shape: tuple[int, ...], parts: Callable[[], Iterable[NDArray[Any]]]) -> Tensor:
    """Return a tensor that is computed part by part, in the order of C; it stays in memory where there is no room for a
    file."""
    try:
        place = _allocate(dtype.numpy.itemsize * prod(shape))
        place.write(parts())
    except OSError:
        array = np.concatenate([part.reshape(-1) for part in parts()]).reshape(shape)
        return Tensor.from_array(array)
    return Tensor(dtype, shape, lambda: place.read(dtype.numpy).reshape(shape))


def is_memory_mapped(array: NDArray[Any]) -> bool:
    """Return whether the elements of an array lie in a file."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


class _MappedRegion(mmap.mmap):
    """A part of a file in memory; as long as an array shows it, nothing else is written there."""

    extent: _Extent


class _Extent:
    """A part of a file, which is free for others once no tensor or array shows it any more."""

    def __init__(self, file: _SpillFile, offset: int, length: int) -> None:
        self.file, self.offset, self.length = file, offset, length
        weakref.finalize(self, file.release, offset, length).atexit = False

    def write(self, parts: Iterable[NDArray[Any]]) -> None:
        offset = self.offset
        for part in parts:
            offset += self.file.write(part.reshape(-1).view(np.uint8), offset)
        assert offset == self.offset + self.length, f"{offset - self.offset} bytes were made of {self.length}"

    def read(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        shown = _MappedRegion(self.file.handle, self.length, access=mmap.ACCESS_READ, offset=self.offset)
        shown.extent = self
        return np.frombuffer(shown, dtype)


class _SpillFile:
    """A file without a name, whose parts are used again. It is gone with the last of them, or with the process."""

    def __init__(self) -> None:
        self._file = TemporaryFile(buffering=0, prefix="graphopt-")  # noqa: SIM115 - open as long as somebody has a part
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._free: dict[int, list[int]] = {}
        self._lock = threading.RLock()  # a part may be released while the lock is held

    @property
    def handle(self) -> int:
        return self._file.fileno()

    def allocate(self, length: int) -> _Extent:
        with self._lock:
            free = self._free.get(length)
            if free:
                return _Extent(self, free.pop(), length)
            offset = self._end
            self._end += -(-length // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            return _Extent(self, offset, length)

    def release(self, offset: int, length: int) -> None:
        with self._lock:
            self._free.setdefault(length, []).append(offset)

    def write(self, part: NDArray[np.uint8], offset: int) -> int:
        with self._lock:
            self._file.seek(offset)
            rest = part.data
            while rest.nbytes:
                rest = rest[self._file.write(rest) :]
        return part.nbytes


def _allocate(length: int) -> _Extent:
    """Return room in the file that the session writes to; a forked process writes to its own."""
    files, process = current_session().scratch, os.getpid()
    file = files[process]() if process in files else None
    if file is None:
        file = _SpillFile()
        files[process] = weakref.ref(file)
    return file.allocate(length)
