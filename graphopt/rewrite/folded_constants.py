"""Constants that a rewrite computes: floats in float64, rounded once, to the type in which the model keeps them.

Elementwise arithmetic on large weights is deferred: it is computed a few rows at a time when the result is stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.ir import spilled
from graphopt.ir.chunks import bitwise_equal, row_slabs
from graphopt.ir.graph import Node
from graphopt.ir.tensor import Tensor
from graphopt.language.terms import App
from graphopt.operators.node_evaluation import evaluate_node
from graphopt.operators.operator_classes import lookup_operator

CHUNK_BYTES = 1 << 22
"""Bytes of double-precision values that are computed together."""


class ReportedReason(str):
    """The reason of a refusal that the report gives elsewhere, so that no note repeats it."""

    __slots__ = ()


class RewriteRefused(Exception):
    """A match that cannot be rewritten here; says why, for the report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.is_reported = isinstance(reason, ReportedReason)


@dataclass(frozen=True, eq=False)
class DeferredArithmetic:
    """Arithmetic on floats that is yet to be computed, in float64."""

    node: Node
    operands: tuple[NDArray[Any] | DeferredArithmetic, ...]
    shape: tuple[int, ...]

    def parts(self) -> Iterator[tuple[Index, NDArray[Any]]]:
        """Yield the result in parts, each with its index."""
        for index in _row_indices(self.shape, np.dtype(np.float64).itemsize):
            yield index, self.compute_part(index)

    def parts_with_operands(self) -> Iterator[tuple[NDArray[Any], list[NDArray[Any]]]]:
        for index, made in self.parts():
            yield made, self.operand_parts(index)

    def compute(self) -> NDArray[Any]:
        return self.compute_part(())

    def compute_part(self, index: Index) -> NDArray[Any]:
        """Return a part of the result."""
        results = evaluate_node(self.node, self.operand_parts(index), float64=True)
        if results is None:
            raise RewriteRefused(f"{self.node.op} cannot be computed")
        return results[0]

    def operand_parts(self, index: Index) -> list[NDArray[Any]]:
        """Return the parts of the operands, which broadcast, that a part of the result is made of, in float64: numbers
        that a rule writes may be integers."""
        parts = []
        for operand in self.operands:
            own = index[max(0, len(self.shape) - len(operand.shape)) :]
            if own and operand.shape[len(own) - 1] != self.shape[len(index) - 1]:
                own = ()  # it is the same for all rows
            part = operand.compute_part(own) if isinstance(operand, DeferredArithmetic) else operand[own]
            parts.append(part.astype(np.float64, copy=False))
        return parts


Index: TypeAlias = tuple[slice, ...]
"""A part of an array: some of the rows along its first axis that has more than one."""


def _row_indices(shape: tuple[int, ...], itemsize: int) -> Iterator[Index]:
    axis = next((axis for axis, size in enumerate(shape) if size != 1), None)
    if axis is None or 0 in shape:
        yield ()
        return
    for part in row_slabs(shape[axis:], itemsize, CHUNK_BYTES):
        yield (*(slice(None) for _ in range(axis)), part)


@dataclass(frozen=True, slots=True)
class FoldedConstant:
    """A constant that was computed, in float64 or int64, or only moved, and the type `dtype` to store it in."""

    values: NDArray[Any] | DeferredArithmetic
    dtype: DType
    source_name: str
    """Name of a weight that it was computed from."""
    is_absent: bool = False
    """True if it stands for an optional input that is absent."""
    is_zero: bool = False
    """True if it was computed from an absent input, and is all zeros."""
    origin: Hashable = None
    """Key of what it was computed from, and how, the same only for equal constants; None if unknown."""

    @property
    def array(self) -> NDArray[Any]:
        """The values; if deferred, computed anew each time."""
        return self.values.compute() if isinstance(self.values, DeferredArithmetic) else self.values

    def parts(self) -> Iterator[tuple[Index, NDArray[Any]]]:
        """Yield the values in parts, each with its index."""
        if isinstance(self.values, DeferredArithmetic):
            yield from self.values.parts()
            return
        for index in _row_indices(self.values.shape, self.values.itemsize):
            yield index, self.values[index]

    @property
    def has_nonzeros(self) -> bool:
        """False if all values are zero."""
        return any(bool(part.any()) for _, part in self.parts())


T = TypeVar("T", bound="NDArray[Any] | Tensor")

MAX_REMEMBERED_BYTES = 1 << 29
"""Bytes of computed constants that a search remembers at once."""
ENTRY_BYTES = 1 << 10
"""Bytes of an entry beside its values: its origin."""
LOOKED_AT_ELEMENTS = 64
"""Elements at either end of a tensor that are looked at before all are compared."""


class FoldedValues:
    """Constants that were computed, by their origin: those asked for least recently are forgotten."""

    def __init__(self, max_bytes: int = MAX_REMEMBERED_BYTES) -> None:
        """Remember constants of `max_bytes` at once, at most: with 0, none."""
        self.max_bytes = max_bytes
        self._found: OrderedDict[Hashable, NDArray[Any] | Tensor] = OrderedDict()
        self._bytes = 0
        self._alike: dict[Hashable, WeakSet[Tensor]] = {}
        """Tensors that are in use, no two of them equal, by what a look at them tells."""
        self._shared: WeakKeyDictionary[Tensor, ReferenceType[Tensor]] = WeakKeyDictionary()
        """The equal tensor that is in use instead of each."""

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()
        self._alike.clear()
        self._shared.clear()
        self._bytes = 0

    def shared(self, tensor: Tensor) -> Tensor:
        """Return the tensor that was given first of those that are equal bit for bit, as long as it is in use.

        Rules that undo each other so come back to the weights that they began with, and what was computed of those is
        remembered.
        """
        known = self._shared.get(tensor)
        first = None if known is None else known()
        if first is None:
            first = self._first_equal(tensor) if self.max_bytes and tensor.dtype is not DType.STRING else tensor
            self._shared[tensor] = ref(first)
        return first

    def _first_equal(self, tensor: Tensor) -> Tensor:
        array = tensor.numpy()
        first, last = array.flat[:LOOKED_AT_ELEMENTS], array.flat[max(0, array.size - LOOKED_AT_ELEMENTS) :]
        alike = self._alike.setdefault((tensor.dtype, tensor.shape, first.tobytes(), last.tobytes()), WeakSet())
        found = next((other for other in alike if bitwise_equal(other.numpy(), array)), None)
        if found is None:
            alike.add(tensor)
        return tensor if found is None else found

    def get(self, origin: Hashable, compute: Callable[[], T]) -> T:
        """Return the values of an origin, computed unless they are remembered; always, if there is none.

        Raises:
            RewriteRefused: they cannot be computed.
        """
        if origin is None:
            return compute()
        known = self._found.get(origin)
        if known is not None:
            self._found.move_to_end(origin)
            return known  # type: ignore[return-value]
        made = compute()
        if (added := made.nbytes + ENTRY_BYTES) > self.max_bytes:
            return made
        self._found[origin] = made
        self._bytes += added
        while self._bytes > self.max_bytes:
            _, dropped = self._found.popitem(last=False)
            self._bytes -= dropped.nbytes + ENTRY_BYTES
        return made


def defer_arithmetic(node: Node, operands: Sequence[FoldedConstant | None]) -> DeferredArithmetic | None:
    """Return deferred arithmetic on large floats; None for what is computed at once."""
    present = [operand for operand in operands if operand is not None]
    if not lookup_operator(node.op, node.domain).is_row_wise or len(present) != len(operands):
        return None
    if not all(operand.dtype.is_float for operand in present):
        return None
    try:
        shape = np.broadcast_shapes(*(operand.values.shape for operand in present))
    except ValueError:
        return None
    is_large = prod(shape) * np.dtype(np.float64).itemsize >= spilled.SPILL_BYTES
    return DeferredArithmetic(node, tuple(operand.values for operand in present), shape) if is_large else None


MAX_FOLD_MULTIPLICATIONS = 1 << 36
"""Most multiplications in a product of constants: two matrices of 4096 by 4096, a few seconds on one core."""


def compute_term(app: App, node: Node, constants: Sequence[FoldedConstant | None], *, moves: bool) -> NDArray[Any]:
    """Return the output of an operator of a rule on constants, at once; `moves` where it only moves elements.

    Raises:
        RewriteRefused: it cannot be computed, or would take too long; or it is a sum that cancels.
    """
    arrays = [None if constant is None else _as_computed(constant, moves) for constant in constants]
    if _multiplication_count(app.op, arrays) > MAX_FOLD_MULTIPLICATIONS:
        raise RewriteRefused(f"{app} takes too long to compute")
    results = evaluate_node(node, arrays, float64=not moves, as_runtime=False)
    if results is None:
        raise RewriteRefused(f"{app} cannot be computed")
    if app.op in ("Add", "Sub"):
        check_cancellation(app, [(results[app.output], arrays)])
    return results[app.output]


def _as_computed(constant: FoldedConstant, moves: bool) -> NDArray[Any]:
    """Return the values to compute with: floats in float64, unless they are only moved; all others as they are."""
    if not constant.dtype.is_float:
        return to_stored_tensor(constant).numpy()
    return constant.array if moves else constant.array.astype(np.float64, copy=False)


def _multiplication_count(op: str, arrays: Sequence[NDArray[Any] | None]) -> int:
    """Return the multiplications in a product of constants; 0 where time is proportional to what is read or written."""
    if op != "MatMul" or len(arrays) != 2:
        return 0
    left, right = arrays
    assert left is not None
    assert right is not None
    columns = right.shape[-1] if right.ndim > 1 else 1
    rows = left.shape[-2] if left.ndim > 1 else 1
    return max(left.size * columns, right.size * rows)


# -- what is stored ----------------------------------------------------------------------------------------------------


def to_stored_tensor(folded: FoldedConstant) -> Tensor:
    """Return the values in the type in which the model keeps them.

    Raises:
        RewriteRefused: a finite number would become infinite, another one zero, or a number that is no float another
            one; or all are so small that digits are lost.
    """
    dtype, values = folded.dtype, folded.values
    if isinstance(values, np.ndarray) and values.dtype == dtype.numpy:
        return spilled.spill(values if values.nbytes >= spilled.SPILL_BYTES else np.array(values, order="C"))
    if prod(values.shape) * dtype.numpy.itemsize >= spilled.SPILL_BYTES:
        return spilled.spill_parts(dtype, values.shape, lambda: _rounded_parts(folded))
    return Tensor.from_array(
        np.concatenate([part.reshape(-1) for part in _rounded_parts(folded)]).reshape(values.shape)
    )


def _rounded_parts(folded: FoldedConstant) -> Iterator[NDArray[Any]]:
    """Yield the values in parts, as they are stored. Raises RewriteRefused, at the latest after the last."""
    dtype, peaks = folded.dtype, _MagnitudeTracker(folded.values.shape)
    for index, part in folded.parts():
        with np.errstate(all="ignore"):
            array = np.array(part, dtype.numpy, order="C")
        if dtype.is_float and _overflows(array, part):
            raise RewriteRefused(f"{folded.source_name} would overflow {dtype.name}")
        if dtype.is_float and np.count_nonzero(array) != np.count_nonzero(part):
            raise RewriteRefused(f"{folded.source_name} would underflow {dtype.name}")
        if not dtype.is_float and not np.array_equal(array, part):
            raise RewriteRefused(f"{folded.source_name} does not fit {dtype.name}")
        if dtype.is_float and dtype.bits <= 16:
            peaks.update(index, part)
        yield array
    if any(dtype.round_to_dtype(peak) is None for peak in peaks.magnitudes):
        raise RewriteRefused(f"{folded.source_name} would lose digits as {dtype.name}")


def _overflows(stored: NDArray[Any], computed: NDArray[Any]) -> bool:
    """Return whether a finite number became infinite where it was stored."""
    finite = np.isfinite(stored)
    return not finite.all() and bool(np.any(~finite & np.isfinite(computed.astype(np.float64, copy=False))))


class _MagnitudeTracker:
    """The largest magnitude of a list, or of each channel along each axis, over the parts seen so far."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._magnitudes = [np.zeros(size) for size in (shape if len(shape) > 1 else (1,))]

    def update(self, index: Index, part: NDArray[Any]) -> None:
        magnitudes = np.abs(part)
        for axis, found in enumerate(self._magnitudes if part.size else ()):
            others = tuple(other for other in range(part.ndim) if other != axis or part.ndim == 1)
            own = index[-1] if len(self._magnitudes) > 1 and axis == len(index) - 1 else slice(None)
            found[own] = np.maximum(found[own], magnitudes.max(others))

    @property
    def magnitudes(self) -> Iterator[float]:
        for found in self._magnitudes:
            yield from set(found.tolist())


LARGE_ADDEND = 2.0**20
"""Magnitude of a number beside which a summand loses its fractional digits in single precision."""


def has_cancellation(made: NDArray[Any], terms: Sequence[NDArray[Any] | None]) -> bool:
    """Return whether a sum of large floats cancels to a thousandth of them or less, at any place."""
    floats = [term for term in terms if term is not None and term.dtype.kind == "f"]
    if len(floats) < 2:
        return False
    largest = np.maximum(*map(np.abs, floats))
    return bool(np.any((largest > LARGE_ADDEND) & np.isfinite(largest) & (np.abs(made) < largest / 1024)))


def check_cancellation(app: App, parts: Iterable[tuple[NDArray[Any], Sequence[NDArray[Any] | None]]]) -> None:
    """Refuse a sum of large numbers that nearly cancel, at any place."""
    if any(has_cancellation(made, terms) for made, terms in parts):
        raise RewriteRefused(f"{app} is little of two large numbers: to add one and take it away again rounds")
