"""Measured cost of a graph: its race in ONNX Runtime against the graph that it is to replace, kept in a cache.

Graphs race on this machine, or on the workers of a cluster that have another device. A result is kept as that of the
worker's device, so all workers must have the same.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Protocol

from onnx import ModelProto

from graphopt.base import files
from graphopt.base.cache import Cache
from graphopt.base.errors import UsageError
from graphopt.base.executors import DaskCluster
from graphopt.base.records import to_json
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.regions import graph_digest
from graphopt.runtime.cost_model import (
    NoTimeToMeasureError,
    NotMeasurableError,
    TemporarilyNotMeasurableError,
    cache_key,
    decode_cached,
    open_cost_cache,
)
from graphopt.runtime.graph_sessions import load_graph, model_of_graph, random_feeds
from graphopt.runtime.machine import Machine, environment_key
from graphopt.runtime.measure import FastestRun, Speedup, TimingSchedule, min_timing_seconds, time_race
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.policy import SearchPolicy

log = logging.getLogger(__name__)

SAME_SPEEDUP = Speedup(1.0, 1.0, 1.0, 1.0, rounds=0)
"""Speedup of graphs that ONNX Runtime turns into one and the same."""
FAILED_SPEEDUP = Speedup(0.0, 0.0, 0.0, 0.0, rounds=0)
"""Speedup of a graph that ONNX Runtime refuses: not faster."""


_RunCall = Callable[[], object]


class CandidateRacer(Protocol):
    """Lets graphs race with the one that they are to replace, on some device."""

    @property
    def seed(self) -> int:
        """Seed of the inputs."""

    @property
    def policy(self) -> SearchPolicy:
        """Policy by which candidates are timed."""

    @property
    def environment_key(self) -> str:
        """Key of all that times depend on beside the graphs and the inputs."""

    def sessions_in_turn(self, count: int) -> int:
        """Return how many sessions run one after the other in a race of `count` candidates."""

    def __call__(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup | None]:
        """Return the speedup of each of the others over `before`; None where there was no room for it."""


@dataclass(frozen=True)
class LocalRacer:
    """Races on the machine that calls it; it can be pickled, so a cluster's workers may be that."""

    setting: SessionSetting
    policy: SearchPolicy = SearchPolicy()
    seed: int = 0
    """Seed of the inputs."""

    @property
    def environment_key(self) -> str:
        return environment_key(self.setting)

    def sessions_in_turn(self, count: int) -> int:
        return count + 1

    def __call__(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup | None]:
        """Load all, then let them take turns; one that ONNX Runtime turns into the same as `before` is not timed.

        None stands for one for which there was no room.

        Raises:
            NotMeasurableError: ONNX Runtime refuses `before`, or no inputs can be made up for it.
        """
        found: list[Speedup | None] = [SAME_SPEEDUP] * len(after)
        runs: dict[int, Callable[[], object]] = {}
        with files.scratch_folder(TemporarilyNotMeasurableError) as folder:
            feeds = random_feeds(before, self.seed)
            own = load_graph(before, folder / "before.onnx", feeds, self.setting, self.policy.timing)
            for place, graph in enumerate(after):
                try:
                    other = load_graph(graph, folder / f"{place}.onnx", feeds, self.setting, self.policy.timing)
                except NotMeasurableError as reason:
                    log.info("a candidate counts as slower: %s", reason)
                    found[place] = None if isinstance(reason, TemporarilyNotMeasurableError) else FAILED_SPEEDUP
                    continue
                if own.optimized_digest is None or own.optimized_digest != other.optimized_digest:
                    runs[place] = other.run
            if runs:
                for place, ratio in zip(runs, self._time(own.run, list(runs.values()), least_gain), strict=True):
                    found[place] = ratio
        return found

    def _time(self, own: _RunCall, runs: Sequence[_RunCall], least_gain: float) -> list[Speedup]:
        """Return the speedup of each run over the graph's own; most rounds go to the fastest."""
        policy, timing = self.policy, self.policy.timing
        schedule = TimingSchedule(
            seconds=policy.pair_seconds * (len(runs) + 1),
            rounds=policy.region_rounds,
            open_runs=FastestRun(timing, least_gain=least_gain),
        )
        return time_race(own, runs, schedule, meter=self.setting.timer, policy=timing).speedups()


# -- on the workers of a cluster ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterRacer:
    """Races on a cluster, whose workers each time one candidate at a time."""

    cluster: DaskCluster
    race: LocalRacer
    environment_key: str
    machine: Machine

    @property
    def seed(self) -> int:
        return self.race.seed

    @property
    def policy(self) -> SearchPolicy:
        return self.race.policy

    @staticmethod
    def connect(cluster: DaskCluster, race: LocalRacer) -> ClusterRacer:
        """Ask the workers of a cluster for their device.

        Raises:
            UsageError: there are no workers, or they have several kinds of devices or run several tasks at once.
        """
        if any(threads > 1 for threads in cluster.worker_threads().values()):
            raise UsageError("workers that do several things at once time nothing: dask worker --nthreads 1")
        told = sorted(set(cluster.run_on_workers(environment_key, race.setting)))
        if len(told) != 1:
            kinds = "".join(f"\n  {each}" for each in told)
            raise UsageError(f"--dask needs workers of one kind of device, and there are {len(told)}{kinds}")
        ((_, machine),) = cluster.imap_unordered(_worker_machine, [race])
        return ClusterRacer(cluster, race, told[0], machine)

    def sessions_in_turn(self, count: int) -> int:
        """Return how many sessions run one after the other: each worker lets one candidate race at a time."""
        return ceil(count / len(self.cluster.worker_threads())) * 2

    def __call__(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup | None]:
        """Return the speedup of each of some graphs over `before`; None where there was no room for it.

        Raises:
            NotMeasurableError: ONNX Runtime refuses `before`, or no inputs can be made up for it.
        """
        own, *others = (onnx_io.to_proto(model_of_graph(graph)).SerializeToString() for graph in (before, *after))
        found = dict(
            self.cluster.imap_unordered(_race_on_worker, [(self.race, own, other, least_gain) for other in others])
        )
        return [found[place] for place in range(len(others))]


def _worker_machine(race: LocalRacer) -> Machine:
    """Return the machine of the worker that is asked."""
    return Machine.calibrate(race.setting, open_cost_cache(), race.policy.timing)


def _race_on_worker(task: tuple[LocalRacer, bytes, bytes, float]) -> Speedup | None:
    """Return what a worker's device makes of one candidate."""
    race, before, after, least_gain = task
    return race(_parse_graph(before), [_parse_graph(after)], least_gain)[0]


def _parse_graph(data: bytes) -> Graph:
    graph = onnx_io.load_model(ModelProto.FromString(data)).graph
    infer_graph(graph)
    return graph


# -- the cost model ----------------------------------------------------------------------------------------------------


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
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the time by which measurements have to `end`: what would take longer is not begun."""
        self.race, self.cache, self.end, self.clock = race, cache, end, clock
        self._analytic = AnalyticCost(machine)
        self._circumstances = race.environment_key
        self.is_steady = True
        self.slowdown = 1.0
        """Duration of the last race, as a multiple of what its turns alone take on an idle machine."""

    def estimate_seconds(self, graph: Graph) -> float:
        """Return the estimate by the roofline."""
        return self._analytic.estimate_seconds(graph)

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
