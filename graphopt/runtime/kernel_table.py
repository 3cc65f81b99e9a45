"""Times of kernels that ONNX Runtime's profiler has told, and what they say of kernels of other sizes.

A row is a kernel by what it does and its sizes, and its time as a multiple of a roofline. Rows of this machine are kept
in the cache; `kernel_times.json` has those of a benchmark by instruction set, which serve where there are none nearer.
What is predicted is told with its uncertainty, and is never evidence: it orders what is timed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, inf, log, prod, sqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphopt.base.cache import Cache
from graphopt.base.hardware import instruction_set
from graphopt.base.records import to_json
from graphopt.operators.operator_classes import lookup_kernel
from graphopt.operators.operator_cost import WorkKind
from graphopt.runtime.cost_model import cache_key, decode_cached
from graphopt.runtime.machine import Machine, environment_key
from graphopt.runtime.measure import KernelTimes
from graphopt.runtime.profile import KernelKind
from graphopt.runtime.session_setting import SessionSetting

DATA = Path(__file__).with_name("kernel_times.json")
"""Rows of a benchmark, by instruction set: of each kind of kernel its sizes and the factor on the roofline."""
MAX_ROWS = 2000
"""Rows of one environment that are kept, the newest."""
LEAST_SECONDS, MOST_SECONDS = 1e-5, 1.5e-3
"""Seconds of the shortest and the longest kernel that is a row: of shorter ones the profiler tells its own time, too,
and longer ones are interrupted in each run on a busy machine."""
BLOCK = 16
"""Channels of a convolution in the blocked layout count in multiples of this, as ONNX Runtime pads them."""

PLAUSIBLE_ERROR = 0.05
"""Largest relative error of a row: what was interrupted in most of its runs tells nothing."""

NEIGHBOURS = 5
"""Rows that a prediction rests on, at most."""
REACH = 0.8
"""Distance, in natural logarithms of sizes, at which a row counts 0.6 times as much as one of equal sizes."""
PRIOR_WEIGHT = 0.05
"""Weight of the roofline's own estimate, where a row of equal sizes has 1."""
PRIOR_ERROR = 0.7
"""Standard deviation of that estimate, in natural logarithms of seconds."""
NEAREST_ERROR = 0.1
"""The same of a row of equal sizes."""
SHIPPED_DISTANCE = 0.3
"""Distance by which a row of another machine is farther than one of this."""

Shape: TypeAlias = Sequence[int]


class KernelWork(NamedTuple):
    """Work of a kernel in single precision."""

    kind: str
    """The operator, or how it multiplies. Kernels of one kind have as many sizes."""
    sizes: tuple[int, ...]
    flops: float
    nbytes: float
    """Bytes read and written."""

    def roofline_seconds(self, machine: Machine) -> float:
        """Return the seconds that it takes at the rates of a machine."""
        busy = max(self.flops / machine.flops_per_second, self.nbytes / machine.bytes_per_second)
        return busy + machine.launch_seconds


class PredictedTime(NamedTuple):
    """Time of a kernel."""

    seconds: float
    error: float
    """Standard deviation of the natural logarithm of the seconds."""


def describe_kernel(
    op: str, reads: Sequence[Shape], writes: Shape, *, is_blocked: bool = False, has_weights: bool = False
) -> KernelWork | None:
    """Return the work of a kernel that writes single precision; None where its shapes say too little of it,
    as of a Transpose, or of a Softmax, whose axis they do not tell.

    Args:
        op: the operator, as in a model or as ONNX Runtime's optimized graph names it.
        reads: shapes of the inputs; ONNX Runtime does not tell those of weights that it has packed.
        writes: shape of the first output.
        is_blocked: whether a convolution runs in the layout that blocks channels.
        has_weights: whether the second operand of a product is constant.
    """
    written, work = prod(writes), lookup_kernel(op).cost.work
    if work in (WorkKind.NOTHING, WorkKind.TRANSPOSITION, WorkKind.SOFTMAX):
        return None
    if not reads or not written or not all(map(prod, reads)):
        return None
    nbytes = 4.0 * (written + sum(map(prod, reads)))
    if work is WorkKind.PRODUCT:
        return _describe_product(reads[0], writes, has_weights=has_weights)
    if work is WorkKind.CONVOLUTION:
        is_told = len(reads) > 1 and len(reads[1]) == len(writes) > 2
        return _describe_convolution(reads[0], reads[1], writes, nbytes, is_blocked=is_blocked) if is_told else None
    sizes = (written, sum(map(prod, reads)), (reads[0] or (1,))[-1], (writes or (1,))[-1])
    return KernelWork(op, sizes, 0.0, nbytes)


def _describe_product(left: Shape, writes: Shape, *, has_weights: bool) -> KernelWork | None:
    if min(len(left), len(writes)) < 2:
        return None
    *batch, rows, columns = writes
    depth = left[-2] if left[-1] == rows != left[-2] else left[-1]
    if has_weights:
        rows, batch = prod(writes[:-1]), []
    count = prod(batch)
    nbytes = 4.0 * count * (rows * depth + depth * columns + rows * columns)
    kind = "product with weights" if has_weights else "product"
    return KernelWork(kind, (count, rows, depth, columns), 2.0 * count * rows * depth * columns, nbytes)


def _describe_convolution(read: Shape, weights: Shape, writes: Shape, nbytes: float, *, is_blocked: bool) -> KernelWork:
    made, depth, *window = weights
    group = max(1, read[1] // depth)
    kind = "dense" if group == 1 else "depthwise" if depth == 1 else "grouped"
    layout = "blocked" if is_blocked else "plain"
    positions = writes[0] * prod(writes[2:])
    made = -(-made // BLOCK) * BLOCK if is_blocked else made
    stride = max(1, round(prod(read[2:]) / prod(writes[2:])))
    sizes = (positions, depth, made, prod(window), stride, group)
    flops = 2.0 * positions * made * depth * prod(window)
    return KernelWork(f"{layout} {kind} {len(window)}-d convolution", sizes, flops, nbytes)


def _work_of(text: str) -> KernelWork | None:
    """Return the work of a kernel of a profile; None where that is not in single precision, or not told."""
    kernel = KernelKind.parse(text)
    if not kernel.outputs or kernel.outputs[0][0] != "float":
        return None
    reads = [shape for _, shape in kernel.inputs]
    has_weights = not any(len(shape) > 1 for shape in reads[1:])
    is_blocked = kernel.is_blocked
    return describe_kernel(kernel.operator, reads, kernel.outputs[0][1], is_blocked=is_blocked, has_weights=has_weights)


# -- rows of this machine ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel whose time was told."""

    work: KernelWork
    seconds: float
    error: float
    """Relative distance of the median run from the fastest, over the root of their number."""

    @property
    def is_sound(self) -> bool:
        """False of what a cache may hold and no kernel takes."""
        work, is_timed = self.work, LEAST_SECONDS <= self.seconds <= MOST_SECONDS
        return is_timed and all(size > 0 for size in work.sizes) and 0 <= work.flops < inf and 0 < work.nbytes < inf


@dataclass(frozen=True, slots=True)
class _KeptRows:
    rows: tuple[KernelRow, ...]


def kernel_rows(found: Iterable[KernelTimes]) -> list[KernelRow]:
    """Return the rows that profiles tell; of equal kernels that with the least error."""
    rows: dict[tuple[str, tuple[int, ...]], KernelRow] = {}
    for times in found:
        for text, seconds in times.seconds.items():
            count, work = times.counts.get(text, 0), _work_of(text)
            if work is None or not count or not LEAST_SECONDS <= min(seconds) / count <= MOST_SECONDS:
                continue
            error = log(median(seconds) / min(seconds)) / sqrt(len(seconds)) if len(seconds) > 1 else inf
            if error <= PLAUSIBLE_ERROR:
                _keep_better(rows, KernelRow(work, min(seconds) / count, error))
    return list(rows.values())


def _keep_better(rows: dict[tuple[str, tuple[int, ...]], KernelRow], row: KernelRow) -> None:
    """Put a row, as the newest, in the place of one of equal sizes and a larger error."""
    key = row.work.kind, row.work.sizes
    known = rows.pop(key, row)
    rows[key] = row if row.error <= known.error else known


def record_kernels(found: Iterable[KernelTimes], setting: SessionSetting, cache: Cache) -> None:
    """Keep the rows that profiles under a setting tell."""
    if not setting.is_cpu:  # elsewhere a kernel's time is that of its launch
        return
    rows = {(row.work.kind, row.work.sizes): row for row in _kept_rows(setting, cache)}
    for row in kernel_rows(found):
        _keep_better(rows, row)
    cache.put({_rows_key(setting): to_json(_KeptRows((*rows.values(),)[-MAX_ROWS:]))})


def _kept_rows(setting: SessionSetting, cache: Cache) -> list[KernelRow]:
    key = _rows_key(setting)
    kept = decode_cached(_KeptRows, cache.get([key]).get(key))
    return [] if kept is None else [row for row in kept.rows if row.is_sound]


def _rows_key(setting: SessionSetting) -> str:
    return cache_key("kernels", environment_key(setting))


# -- rows of the benchmark ---------------------------------------------------------------------------------------------


@cache
def _shipped_factors() -> Mapping[str, Mapping[str, Sequence[Sequence[float]]]]:
    """Return of each instruction set and kind the sizes and factors."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


# -- what they say -----------------------------------------------------------------------------------------------------


class _KindRows:
    """Rows of one kind."""

    def __init__(self) -> None:
        self.logs: list[list[float]] = []
        self.factors: list[float] = []
        self.penalties: list[float] = []

    def add(self, sizes: Iterable[float], factor: float, penalty: float) -> None:
        self.logs.append([log(size) for size in sizes])
        self.factors.append(log(factor))
        self.penalties.append(penalty)

    def predict(self, sizes: Sequence[int], prior: float) -> tuple[float, float]:
        """Return the logarithm of the factor, and its standard deviation; the `prior` is that of the estimate."""
        away = np.linalg.norm(np.array(self.logs) - np.log(sizes), axis=1) + np.array(self.penalties)
        nearest = np.argsort(away, kind="stable")[:NEIGHBOURS]
        weights = np.append(np.exp(-((away[nearest] / REACH) ** 2) / 2), PRIOR_WEIGHT)
        factors = np.append(np.array(self.factors)[nearest], prior)
        weights /= weights.sum()
        mean = float(weights @ factors)
        spread = float(weights @ (factors - mean) ** 2)
        trust = 1 - float(weights[-1])
        return mean, sqrt(spread + trust * NEAREST_ERROR**2 + (1 - trust) * PRIOR_ERROR**2)


class KernelTable:
    """Predicts times of kernels on a machine by the nearest rows of their kind."""

    def __init__(
        self,
        machine: Machine,
        rows: Iterable[KernelRow] = (),
        shipped: Mapping[str, Sequence[Sequence[float]]] | None = None,
    ) -> None:
        """Take rows of this machine, and `shipped` ones of others: of each kind sizes and the factor."""
        self.machine = machine
        self._kinds: defaultdict[tuple[str, int], _KindRows] = defaultdict(_KindRows)
        self._told: dict[tuple[KernelWork, float], PredictedTime] = {}
        own = {(row.work.kind, row.work.sizes): row for row in rows}
        for row in own.values():
            kind, sizes = row.work.kind, row.work.sizes
            self._kinds[kind, len(sizes)].add(sizes, row.seconds / row.work.roofline_seconds(machine), 0.0)
        for kind, others in (shipped or {}).items():
            for *numbers, factor in others:
                if (kind, tuple(numbers)) not in own:
                    self._kinds[kind, len(numbers)].add(numbers, factor, SHIPPED_DISTANCE)

    @staticmethod
    def load(setting: SessionSetting, cache: Cache, machine: Machine) -> KernelTable:
        """Return the table of this machine: its rows in the cache, and with one thread those that are shipped."""
        shipped = _shipped_factors().get(instruction_set()) if setting.is_cpu and setting.thread_count == 1 else None
        return KernelTable(machine, _kept_rows(setting, cache), shipped)

    def predict(self, work: KernelWork | None, estimate: float) -> PredictedTime:
        """Return the time of a kernel that is estimated to take so many seconds without rows."""
        rows = None if work is None else self._kinds.get((work.kind, len(work.sizes)))
        if work is None or rows is None or estimate <= 0:
            return PredictedTime(estimate, PRIOR_ERROR)
        asked = work, estimate
        if asked not in self._told:
            roofline = work.roofline_seconds(self.machine)
            factor, error = rows.predict(work.sizes, log(estimate / roofline))
            self._told[asked] = PredictedTime(roofline * exp(factor), error)
        return self._told[asked]
