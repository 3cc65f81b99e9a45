"""Measured cost of a graph: its race in ONNX Runtime against the graph that it is to replace, kept in a cache.

A result is kept as that of the device on which it was measured, so all workers of a cluster must have the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from graphopt.base.cache import Cache
from graphopt.base.executors import DaskCluster
from graphopt.base.records import to_json
from graphopt.ir.graph import Graph
from graphopt.rewrite.regions import graph_digest
from graphopt.runtime.cost_model import GraphPart, NoTimeToMeasureError, PredictedGain, cache_key, decode_cached
from graphopt.runtime.kernel_table import KernelTable
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import Speedup, min_timing_seconds
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.policy import SearchPolicy
from graphopt.search.racers import FAILED_SPEEDUP, CandidateRacer, ClusterRacer, LocalRacer


class MeasuredCost:
    """Costs as measured in ONNX Runtime, with all its optimizations, under one setting; they are kept in a cache.

    Measurements that a busy machine left open are not kept.

    Costs of one provider, processor, number of threads or version of ONNX Runtime are never used for another. The
    values of weights do not count: a measurement of one region stands for all that are equal but for these.
    """

    name = "measured"

    def __init__(
        self,
        race: CandidateRacer,
        *,
        machine: Machine,
        cache: Cache,
        kernels: KernelTable | None = None,
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the `kernels` that correct estimates, and the time by which measurements have to `end`: what would take
        longer is not begun."""
        self.race, self.cache, self.end, self.clock = race, cache, end, clock
        self._analytic = AnalyticCost(machine, kernels)
        self._circumstances = race.environment_key
        self.device = race.device
        self.is_steady = True
        self.slowdown = 1.0
        """Duration of the last race, as a multiple of what its turns alone take on an idle machine."""

    @staticmethod
    def on_this_machine(
        setting: SessionSetting,
        cache: Cache,
        policy: SearchPolicy = SearchPolicy(),
        seed: int = 0,
        *,
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> MeasuredCost:
        """Return the costs on the machine at hand, whose rates are in the cache or measured now."""
        machine = Machine.calibrate(setting, cache, policy.timing)
        kernels, race = KernelTable.load(setting, cache, machine), LocalRacer(setting, policy, seed)
        return MeasuredCost(race, machine=machine, cache=cache, kernels=kernels, end=end, clock=clock)

    @staticmethod
    @contextmanager
    def on_cluster(
        address: str,
        setting: SessionSetting,
        cache: Cache,
        policy: SearchPolicy = SearchPolicy(),
        seed: int = 0,
        *,
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[MeasuredCost]:
        """Give the costs on the devices of a cluster's workers, while connected to its scheduler.

        Raises:
            UsageError: as `ClusterRacer.connect` does.
        """
        with DaskCluster(address) as cluster:
            race = ClusterRacer.connect(cluster, LocalRacer(setting, policy, seed))
            yield MeasuredCost(race, machine=race.machine, cache=cache, end=end, clock=clock)

    def estimate_seconds(self, graph: Graph) -> float:
        """Return the estimate by the roofline and by kernels whose times are known."""
        return self._analytic.estimate_seconds(graph)

    def predict_gain(self, before: Graph, after: Graph, parts: Sequence[GraphPart] = ()) -> PredictedGain:
        """Return the gain by the same estimates."""
        return self._analytic.predict_gain(before, after, parts)

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        """Measure what the cache lacks; a graph that ONNX Runtime refuses has `FAILED_SPEEDUP`.

        A refusal is kept, too, unless memory, time or disk ran out: another time there may be enough.

        Raises:
            NotMeasurableError: ONNX Runtime refuses `before`, or no inputs can be made up for it, or there is no time.
        """
        own = graph_digest(before)
        coarse = _rounded_down(least_gain, self.race.policy.timing.noise)
        how = (self._circumstances, str(self.race.seed), repr(self.race.policy), str(coarse))
        keys = [cache_key("speedup", own, graph_digest(graph), *how) for graph in after]
        kept = self.cache.get(keys)
        found = {key: ratio for key in keys if (ratio := decode_cached(Speedup, kept.get(key))) is not None}
        missing = {key: graph for key, graph in zip(keys, after, strict=True) if key not in found}
        for batch in _memory_batches(before, missing, self.race.policy):
            some = self._affordable_batch(before, batch, is_all=not found)
            start = self.clock()
            fresh = dict(zip(some, self.race(before, list(some.values()), coarse), strict=True)) if some else {}
            if some:  # beside other processes, the next race will not be quicker
                seconds = self.clock() - start
                self.slowdown = max(1.0, self.slowdown * seconds / self._race_seconds(before, len(some)))
            known = {key: made for key, made in fresh.items() if made is not None}
            lasting = {key: to_json(made) for key, made in known.items() if made.is_steady(self.race.policy.timing)}
            self.is_steady &= len(lasting) == len(batch)
            self.cache.put(lasting)
            found |= known
        return [found.get(key, FAILED_SPEEDUP) for key in keys]

    def _affordable_batch(self, before: Graph, batch: Mapping[str, Graph], *, is_all: bool) -> Mapping[str, Graph]:
        """Return as many candidates as can take turns before the end.

        Raises:
            NoTimeToMeasureError: not one can, and there is no measurement of any other.
        """
        left = max(self.end - self.clock(), 0.0)
        able = sum(self._race_seconds(before, count) <= left for count in range(1, len(batch) + 1))
        if not able and is_all:
            self.is_steady = False
            raise NoTimeToMeasureError(
                f"to time it takes {self._race_seconds(before, 1):.1f} s, and {left:.1f} s are left"
            )
        return dict(islice(batch.items(), able))

    def _race_seconds(self, before: Graph, count: int) -> float:
        """Return the seconds that a race of `count` candidates with a graph takes, at least."""
        once, policy = self.estimate_seconds(before), self.race.policy
        turn = once + min_timing_seconds(once, policy.region_rounds[0], policy.timing)
        return self.race.sessions_in_turn(count) * turn * self.slowdown


def _rounded_down(least_gain: float, noise: float) -> float:
    """Return a gain in steps of powers of two, in which what is kept serves models that ask alike."""
    return 0.0 if least_gain < 2 * noise else noise * 2.0 ** math.floor(math.log2(least_gain / noise))


def _memory_batches(before: Graph, after: Mapping[str, Graph], policy: SearchPolicy) -> Iterator[dict[str, Graph]]:
    """Yield the candidates in batches that fit in memory."""
    size = max(graph.weight_bytes for graph in (before, *after.values()))
    number = max(1, min(policy.candidates_at_once, policy.loaded_bytes // max(size, 1)))
    keys = list(after)
    for start in range(0, len(keys), number):
        yield {key: after[key] for key in keys[start : start + number]}
