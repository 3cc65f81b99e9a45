"""Limits of one run of a model: a file from anywhere may never end, or want more memory than there is."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from graphopt.base.errors import ModelError, UsageError

MAX_TIMED_WEIGHT_BYTES = 1_500_000_000
"""Bytes of weights above which a model is not timed: ONNX Runtime takes no more than 2 GB that is not in a file."""

DEFAULT_SECONDS = 300.0
"""The longest run by default: the largest models that one optimizes on a computer take seconds."""

DEFAULT_MEMORY_SHARE = 0.9
"""The part of the memory that is free which a model may take by default."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of every run of a model that the caller makes."""

    seconds: float = DEFAULT_SECONDS
    gigabytes: float | None = None
    """Gigabytes of memory for the whole process; None for what there is."""

    def __post_init__(self) -> None:
        if not self.seconds > 0 or (self.gigabytes is not None and not self.gigabytes > 0):  # NaN is no limit
            raise UsageError("a limit of time or memory is more than 0")

    def memory_bytes(self) -> int:
        """Return the bytes that the process may take in all."""
        if self.gigabytes is not None:
            return int(min(self.gigabytes * 1e9, sys.maxsize))
        return resident_bytes() + int(DEFAULT_MEMORY_SHARE * psutil.virtual_memory().available)

    def check_memory(self, what: str) -> None:
        """Raise a LimitError if the process takes more than it was given; `what` says when.

        Without a given limit there is nothing to compare: what the process takes is no longer free.
        """
        if self.gigabytes is not None and (taken := resident_bytes()) > (room := self.memory_bytes()):
            raise LimitError(f"{what} takes {format_bytes(taken)}, and the limit is {format_bytes(room)}{MEMORY_HINT}")

    def check_allocation(self, nbytes: int, what: str) -> None:
        """Raise a LimitError for something that is larger than all that the process may take."""
        if nbytes > MIN_MEMORY_BYTES and nbytes > (room := self.memory_bytes()):
            raise LimitError(f"{what} takes {format_bytes(nbytes)}, and the limit is {format_bytes(room)}{MEMORY_HINT}")


class LimitError(ModelError):
    """A run takes too long, or too much memory."""


MIN_MEMORY_BYTES = 1 << 24
"""Bytes that are always there."""

TIME_HINT = " (--run-limit gives it longer)"
MEMORY_HINT = " (--memory-limit sets another)"


def resident_bytes() -> int:
    """Return the bytes of memory that the process takes."""
    return int(psutil.Process().memory_info().rss)


def format_bytes(nbytes: int) -> str:
    """Return a size as `1.5 GB`, `20 MB`, `2.5 KB`, `120 B`."""
    if nbytes < 1e5:
        return f"{nbytes / 1e3:.3g} KB" if nbytes >= 1e3 else f"{nbytes} B"
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.3g} MB"


def format_megabytes(nbytes: int) -> str:
    """Return a size as `1,520 MB`, `2.1 MB`: comparable in a table."""
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 1e7 else f"{nbytes / 1e6:.2g} MB"


GC_THRESHOLD = (100_000, 50, 50)
"""Thresholds of garbage collection: terms, proofs and graphs are not cyclic, and the default thresholds cost almost a
tenth of the time."""


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Collect no garbage meanwhile, where nearly all that is made lives on: to look for it is a fifth of the work."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


TRIM_THRESHOLD = 300_000_000
"""Bytes that a process may gather before what nothing uses is given back to the system."""


def return_freed_memory() -> None:
    """Give what is no longer used back to the system, where glibc would keep it."""
    gc.collect()
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "malloc_trim"):  # musl has none
        libc.malloc_trim(0)


class MemoryTrimmer:
    """Gives memory back after tasks that take much of it for a while, as proofs do: glibc keeps what z3 has freed."""

    def __init__(self) -> None:
        self._left = 0

    def __call__(self) -> None:
        """Give memory back, once enough has gathered."""
        if resident_bytes() > self._left + TRIM_THRESHOLD:
            return_freed_memory()
            self._left = resident_bytes()


trim_memory = MemoryTrimmer()
