"""Distance of two results of one output, over all tensors that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from graphopt.base.dtype import DType
from graphopt.ir.chunks import iter_chunks
from graphopt.runtime.sample_inputs import Array

DISTANCE_FACTOR = 4
"""A quantized model, as it is run, may be so many times as far from what is written as the original is; and what
becomes NaN by a small change of the original may do so in so many times as many places."""


@dataclass(frozen=True, slots=True)
class ResultDistance:
    """Distance of two results of one output."""

    absolute: float = 0.0
    mean: float = 0.0
    """The root of the mean square."""
    scale: float = 0.0
    """The largest finite magnitude in the first of them."""
    problem: str = ""
    """The difference in words, where no number says it."""
    mismatched_elements: float = 0.0
    """Number of elements that differ in kind, such as NaN; infinite where shapes or types differ."""
    dtype: str = ""
    is_exact: bool = True
    """Integers, bools, strings: no difference at all is allowed."""

    @property
    def is_same(self) -> bool:
        """True if no element is another number."""
        return not self.problem and not self.absolute

    def is_within(self, other: ResultDistance) -> bool:
        """Return whether these are at most as far apart as two others, and in the same way; a wrong type never is."""
        if bool(self.problem) != bool(other.problem) or "type" in self.problem:
            return False
        is_alike = (self.mismatched_elements < inf) == (
            other.mismatched_elements < inf
        ) and self.mismatched_elements <= DISTANCE_FACTOR * other.mismatched_elements
        if self.problem:  # of the other elements the mean is told
            return is_alike and self.mean <= DISTANCE_FACTOR * max(other.mean, 1e-6 * self.scale)
        return is_alike and self.absolute <= other.absolute and self.mean <= other.mean


def result_distance(before: Any, after: Any) -> ResultDistance:
    """Return how far two values of an output are apart, over all tensors that they hold."""
    left, right = list(iter_tensors(before)), list(iter_tensors(after))
    if [place for place, _ in left] != [place for place, _ in right]:
        return ResultDistance(inf, inf, problem=f"holds {len(right)} tensors, not {len(left)}", mismatched_elements=inf)
    gaps = [_array_distance(a, b) for (_, a), (_, b) in zip(left, right, strict=True)]
    return max(
        gaps, key=lambda gap: (bool(gap.problem), gap.absolute, gap.mismatched_elements), default=ResultDistance()
    )


def iter_tensors(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Array]]:
    """Yield the tensors in a value, which may be a sequence, a map, or absent."""
    match value:
        case None:
            return
        case list():
            for index, item in enumerate(value):
                yield from iter_tensors(item, (*place, index))
        case dict():
            for key in sorted(value):
                yield from iter_tensors(value[key], (*place, key))
        case _:
            yield place, np.asarray(value)


def _array_distance(before: Array, after: Array) -> ResultDistance:
    """Return how far two tensors are apart. Elements that are no finite numbers have to be the same."""
    dtype = DType.from_numpy(before.dtype)
    exact = not (dtype.is_float or before.dtype.kind == "c")
    if DType.from_numpy(after.dtype) is not dtype:
        return ResultDistance(
            inf, inf, problem=f"has the type {DType.from_numpy(after.dtype).name}, not {dtype.name}", dtype=dtype.name
        )
    if before.shape != after.shape:
        problem = f"has the shape {list(after.shape)}, not {list(before.shape)}"
        return ResultDistance(inf, inf, problem=problem, mismatched_elements=inf, dtype=dtype.name, is_exact=exact)
    if dtype is DType.STRING:
        wrong = int(np.sum(before != after))
        problem = f"{wrong} of {before.size} strings differ" if wrong else ""
        return ResultDistance(
            inf if wrong else 0.0, inf if wrong else 0.0, problem=problem, mismatched_elements=wrong, dtype=dtype.name
        )
    found = _DistanceAccumulator()
    chunks = (iter_chunks(np.ascontiguousarray(array), CHUNK_BYTES) for array in (before, after))
    for part, other in zip(*chunks, strict=True):  # in double precision they are larger
        if not found.add_if_equal(part, other):
            found.add(as_doubles(part), as_doubles(other))
    size, mean = found.size, found.mean
    if found.nonfinite_mismatches:
        problem = f"{found.nonfinite_mismatches} of {before.size} elements are NaN or infinite in one model only"
        return ResultDistance(inf, mean, size, problem, found.nonfinite_mismatches, dtype.name, exact)
    largest = found.largest
    if exact and not largest and not np.array_equal(before, after):
        largest = 1.0  # integers beyond 2^53
    return ResultDistance(largest, mean, size, dtype=dtype.name, is_exact=exact)


class _DistanceAccumulator:
    """Distance of two arrays, of which parts are seen one after the other."""

    def __init__(self) -> None:
        self.nonfinite_mismatches = self._count = 0
        self.largest = self.size = self._squares = 0.0

    def add_if_equal(self, a: Array, b: Array) -> bool:
        """Take two parts in that hold equal finite floats; return whether they do."""
        top = float(np.abs(a).max(initial=0)) if a.dtype.kind == "f" and np.array_equal(a, b) else inf
        if not isfinite(top):
            return False
        self.size, self._count = max(self.size, top), self._count + a.size
        return True

    def add(self, a: Array, b: Array) -> None:
        finite = np.isfinite(a)
        both = finite & np.isfinite(b)
        self.nonfinite_mismatches += int(np.sum(~np.where(finite, both, (a == b) | (np.isnan(a) & np.isnan(b)))))
        distance = np.abs(a[both] - b[both])
        self.largest = max(self.largest, float(distance.max(initial=0.0)))
        self.size = max(self.size, float(np.abs(a[finite]).max(initial=0.0)))
        with np.errstate(over="ignore"):  # that of squares beyond doubles is infinite
            self._squares += float(np.sum(distance**2))
        self._count += distance.size

    @property
    def mean(self) -> float:
        """The root of the mean of squares."""
        return sqrt(self._squares / self._count) if self._count else 0.0


CHUNK_BYTES = 1 << 20
"""Bytes of an array that are looked at together."""


def zero_signs_differ(before: Any, after: Any) -> bool:
    """Return whether a zero has another sign, in real tensors that have equal elements."""
    pairs = zip(iter_tensors(before), iter_tensors(after), strict=True)
    floats = [(as_doubles(a), as_doubles(b)) for (_, a), (_, b) in pairs if DType.from_numpy(a.dtype).is_float]
    return any(bool(np.any((a == 0) & (np.signbit(a) != np.signbit(b)))) for a, b in floats)


def as_doubles(array: Array) -> Array:
    """Return a tensor's elements in double precision, which holds all but texts and large integers."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def has_finite_element(value: Any) -> bool:
    """Return whether an output holds anything but floats that are infinite or NaN."""
    floats = [leaf for _, leaf in iter_tensors(value) if leaf.size and leaf.dtype.kind in "fV"]
    return not floats or any(bool(np.isfinite(leaf).any()) for leaf in floats)
