"""The integer program that decides which values to compute again: the least time, below a number of bytes.

It is that of Checkmate (Jain et al., 2020) for the order in which ONNX Runtime runs a graph, with two differences: a
value has one copy, which serves all that read it after its pause, and the order is cut into stages, in each of which
the largest sum counts. HiGHS solves it.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from graphopt.base.errors import UsageError
from graphopt.ir.graph import Value
from graphopt.search.policy import RecomputationPolicy
from graphopt.search.recomputation import Lifetime, Timeline

MEGABYTE = 1e6


def require_highspy() -> Any:
    """Return the module, imported only now."""
    try:
        import highspy
    except ImportError as error:
        raise UsageError(
            'recomputing values under a memory budget needs HiGHS: pip install "graphopt[remat]"'
        ) from error
    return highspy


@contextmanager
def _stdout_discarded() -> Iterator[None]:
    """Discard what libraries print past Python, for stdout may be the model."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@dataclass(frozen=True, slots=True)
class RecomputationPlan:
    """The values to compute again, and what that is estimated to bring."""

    values: frozenset[Value]
    before: float
    """Bytes of the values in memory at the peak."""
    after: float
    """The same when they are computed again."""
    is_reaching: bool
    """True if the peak is as low as it was to be."""


def plan_recomputation(
    timeline: Timeline, seconds: Mapping[int, float], share: float, limit: float
) -> RecomputationPlan:
    """Return what to compute again so that values take less memory at the peak, in the least time; where they cannot
    take as little, what makes them take the least.

    Args:
        timeline: when values lie in memory.
        seconds: estimated time of each node.
        share: part of the bytes at the peak that may be left, from 0 to 1.
        limit: seconds that the solver may take.

    Raises:
        UsageError: HiGHS is missing.
    """
    return _Program(timeline, seconds).solve(share, limit)


@dataclass
class _Rows:
    """Linear constraints `low <= sum of coefficients times variables <= high`, row after row."""

    starts: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Collection[tuple[int, float]], *, low: float = -np.inf, high: float = np.inf) -> None:
        self.starts.append(len(self.columns))
        self.columns += [column for column, _ in terms]
        self.coefficients += [coefficient for _, coefficient in terms]
        self.low.append(low)
        self.high.append(high)


@dataclass
class _Program:
    timeline: Timeline
    seconds: Mapping[int, float]
    rows: _Rows = field(default_factory=_Rows)
    usage: list[defaultdict[int, float]] = field(default_factory=list)
    """Megabytes in each stage by variable, beside what lies there in any case."""
    columns: int = 0

    @property
    def policy(self) -> RecomputationPolicy:
        return self.timeline.policy

    @cached_property
    def lifetimes(self) -> Mapping[Value, Lifetime]:
        return self.timeline.lifetimes

    @cached_property
    def readers(self) -> Mapping[Value, Sequence[Lifetime]]:
        """The values whose copies may read the copy of a value, or what is kept of it."""
        found: dict[Value, list[Lifetime]] = {value: [] for value in self.lifetimes}
        for lifetime in self.lifetimes.values():
            for operand in lifetime.operands if lifetime.is_recomputable else ():
                found[operand].append(lifetime)
        return found

    @cached_property
    def needed(self) -> Mapping[Value, int | None]:
        """The last place at which a copy of each value has to be there for the first time; None where none reads it."""
        found: dict[Value, int | None] = {}
        for value, lifetime in reversed([*self.lifetimes.items()]):
            places = [place for each in self.readers[value] if (place := found[each.value]) is not None]
            late = max(places, default=None)
            found[value] = lifetime.resume if lifetime.resume is not None else late
        return found

    @cached_property
    def bounds(self) -> Sequence[int]:
        """The places at which stages begin."""
        points = {0}
        for lifetime in self.lifetimes.values():
            points |= {lifetime.pause + 1, lifetime.last + 1}
            points |= {lifetime.resume} if lifetime.resume is not None else set()
        ordered = sorted(point for point in points if point < len(self.timeline.order))
        step = max(1, -(-len(ordered) // self.policy.stages))
        return ordered[::step]

    def stage(self, place: int) -> int:
        return bisect_right(self.bounds, place) - 1

    @cached_property
    def fixed(self) -> Sequence[float]:
        """Megabytes in each stage of what lies there in any case; `usage` says what copies add, and what they save."""
        small = self.timeline.live_bytes(without=self.lifetimes)
        ends = (*self.bounds[1:], len(self.timeline.order))
        found = [max(small[begin:end]) / MEGABYTE for begin, end in zip(self.bounds, ends, strict=True)]
        for lifetime in self.lifetimes.values():
            for stage in range(self.stage(lifetime.made), self.stage(lifetime.last) + 1):
                found[stage] += lifetime.nbytes / MEGABYTE
        return found

    def solve(self, share: float, limit: float) -> RecomputationPlan:
        highspy = require_highspy()
        lifetimes = list(self.lifetimes.values())
        chosen = {lifetime.value: place for place, lifetime in enumerate(lifetimes)}
        self.columns, self.usage = len(lifetimes), [defaultdict(float) for _ in self.bounds]
        made = {lifetime.value: self._made(lifetime, chosen[lifetime.value]) for lifetime in lifetimes}
        for lifetime in lifetimes:
            self._constrain(lifetime, chosen, made)
        above = self.columns
        before = max(self.fixed, default=0.0)
        target = share * before
        for fixed, usage in zip(self.fixed, self.usage, strict=True):
            self.rows.add([*usage.items(), (above, -1.0)], high=target - fixed)
        prices = [self.seconds.get(each.value.vertex, 0.0) * 1e6 + 1e-3 for each in lifetimes]
        total_price, total = sum(prices), sum(each.nbytes for each in lifetimes) / MEGABYTE
        costs = np.zeros(above + 1)
        costs[: len(prices)] = prices
        costs[above] = self.policy.unreachable_penalty * total_price / max(total, 1e-9)
        upper = np.ones(above + 1)
        upper[: len(lifetimes)] = [self._may_be_copied(each) for each in lifetimes]
        upper[above] = np.inf
        found = self._run(highspy, costs, upper, len(lifetimes), limit)
        values = frozenset(each.value for each, share in zip(lifetimes, found, strict=False) if share > 0.5)
        over = found[above] if found else before - target
        return RecomputationPlan(values, before * MEGABYTE, (target + over) * MEGABYTE, over < 1e-3)

    def _may_be_copied(self, lifetime: Lifetime) -> bool:
        return lifetime.is_recomputable and self.needed[lifetime.value] is not None

    def _made(self, lifetime: Lifetime, column: int) -> Mapping[int, int]:
        """Return the variable of each stage that says whether the copy of a value has been made by then.

        From the stage in which the value is read again on, it is the one that says whether there is a copy.
        """
        if not self._may_be_copied(lifetime):
            return {}
        earliest = self._earliest[lifetime.value]
        last = max(lifetime.last, self.needed[lifetime.value] or 0)
        resumed = self.stage(lifetime.resume) if lifetime.resume is not None else len(self.bounds)
        found: dict[int, int] = {}
        for stage in range(self.stage(earliest), self.stage(last) + 1):
            if stage >= resumed:
                found[stage] = column
            else:
                found[stage] = self.columns
                self.columns += 1
            self.usage[stage][found[stage]] += lifetime.nbytes / MEGABYTE
        for stage in range(self.stage(lifetime.pause + 1), self.stage(lifetime.last) + 1):
            if self.bounds[stage] > lifetime.pause:  # what was made first is gone
                self.usage[stage][column] -= lifetime.nbytes / MEGABYTE
        return found

    @cached_property
    def _earliest(self) -> Mapping[Value, int]:
        """The first place at which a copy of each value may be needed."""
        found: dict[Value, int] = {}
        for value, lifetime in reversed([*self.lifetimes.items()]):
            places = [found[each.value] for each in self.readers[value] if self._reads_late(each, lifetime)]
            own = [] if lifetime.resume is None else [lifetime.resume]
            found[value] = max(min([*own, *places], default=lifetime.last), lifetime.pause)
        return found

    def _reads_late(self, reader: Lifetime, lifetime: Lifetime) -> bool:
        """Return whether the copy of one value runs when another has its pause or is read no more."""
        place = self.needed[reader.value]
        return place is not None and place > lifetime.pause

    def _constrain(
        self, lifetime: Lifetime, chosen: Mapping[Value, int], made: Mapping[Value, Mapping[int, int]]
    ) -> None:
        """Constrain a copy to be there as soon as another reads it, and to stay, and what is not copied to be kept."""
        own, variables = chosen[lifetime.value], made[lifetime.value]
        for stage, variable in variables.items():
            if variable != own and stage - 1 in variables:
                self.rows.add([(variable, 1.0), (variables[stage - 1], -1.0)], low=0.0)
            if variable != own:
                self.rows.add([(variable, 1.0), (own, -1.0)], high=0.0)
        kept: dict[int, int] = {}
        for reader in self.readers[lifetime.value]:
            place = self.needed[reader.value]
            if place is None or not self._may_be_copied(reader) or place <= lifetime.pause:
                continue
            other = chosen[reader.value]
            for stage, variable in variables.items():
                if variable != own and stage in made[reader.value]:
                    self.rows.add([(variable, 1.0), (made[reader.value][stage], -1.0), (own, -1.0)], low=-1.0)
            for stage in range(self.stage(lifetime.last) + 1, self.stage(place) + 1):
                if stage not in kept:
                    kept[stage] = self.columns
                    self.columns += 1
                    self.usage[stage][kept[stage]] += lifetime.nbytes / MEGABYTE
                self.rows.add([(kept[stage], 1.0), (other, -1.0), (own, 1.0)], low=0.0)

    def _run(self, highspy: Any, costs: Any, upper: Any, binaries: int, limit: float) -> Sequence[float]:
        """Return the values of the variables; none where the solver finds nothing in time."""
        with _stdout_discarded():  # it prints its version when it is made
            solver = highspy.Highs()
        rows, count = self.rows, len(costs)
        for name, value in (
            ("output_flag", False),
            ("time_limit", limit),
            ("mip_rel_gap", self.policy.gap),
            ("threads", 1),
        ):
            solver.setOptionValue(name, value)
        solver.addVars(count, np.zeros(count), upper)
        solver.changeColsCost(count, np.arange(count, dtype=np.int32), costs)
        kinds = np.full(binaries, int(highspy.HighsVarType.kInteger), np.uint8)
        solver.changeColsIntegrality(binaries, np.arange(binaries, dtype=np.int32), kinds)
        solver.addRows(
            *(len(rows.low), np.array(rows.low), np.array(rows.high), len(rows.columns)),
            *(np.array(rows.starts, np.int32), np.array(rows.columns, np.int32), np.array(rows.coefficients)),
        )
        solver.run()
        return list(solver.getSolution().col_value) if solver.getInfo().primal_solution_status == 2 else []
