"""How fast is a graph? Measured in ONNX Runtime against the graph that it is to replace, and kept.

That is done on the machine at hand, or on the workers of a cluster, whose device is not this machine's. Each worker
answers for the device that it has; so all have to have the same, and what it answers is kept as that device's.
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
from graphopt.base.engine import Dask
from graphopt.base.errors import UsageError
from graphopt.base.records import to_json
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.infer import infer_graph
from graphopt.rewrite.regions import digest
from graphopt.runtime.cost import NoTime, NotMeasurable, NotNow, decoded, key_of, user_cache
from graphopt.runtime.loading import as_model, loaded, made_up_feeds
from graphopt.runtime.machine import Machine, circumstances
from graphopt.runtime.measure import Schedule, Speedup, least_seconds, race
from graphopt.runtime.sessions import Setting
from graphopt.search.analytic import Analytic
from graphopt.search.policy import SearchPolicy

log = logging.getLogger(__name__)

COPIES = 2
"""Sessions of the graph itself in a race, by which the noise is known."""

SAME = Speedup(1.0, 1.0, 1.0, 1.0, rounds=0)
"""Of graphs that ONNX Runtime turns into one and the same."""
FAILED = Speedup(0.0, 0.0, 0.0, 0.0, rounds=0)
"""Of a graph that ONNX Runtime refuses: not faster."""


_Run = Callable[[], object]


class Racer(Protocol):
    """Lets graphs race with one that they are to replace, on some device."""

    @property
    def seed(self) -> int:
        """Of the inputs."""

    @property
    def policy(self) -> SearchPolicy:
        """How candidates are timed."""

    @property
    def circumstances(self) -> str:
        """What its times depend on beside the graphs and the inputs."""

    def turns(self, count: int) -> int:
        """Return how many sessions run one after the other where there are so many candidates."""

    def __call__(self, before: Graph, after: Sequence[Graph]) -> list[Speedup | None]:
        """Return how many times as fast as `before` each of the others is; None where there was no room for it."""


@dataclass(frozen=True)
class Race:
    """Races on the machine at hand; pickle knows it, so that others may hold them."""

    setting: Setting
    policy: SearchPolicy = SearchPolicy()
    seed: int = 0
    """Of the inputs."""

    @property
    def circumstances(self) -> str:
        return circumstances(self.setting)

    def turns(self, count: int) -> int:
        return count + COPIES

    def __call__(self, before: Graph, after: Sequence[Graph]) -> list[Speedup | None]:
        """Load all, then let them take turns. What becomes the same as `before` is not timed.

        None is what there was no room for.

        Raises:
            NotMeasurable: ONNX Runtime refuses `before`, or no inputs can be made up for it.
        """
        found: list[Speedup | None] = [SAME] * len(after)
        runs: dict[int, Callable[[], object]] = {}
        with files.scratch(NotNow) as folder:
            feeds = made_up_feeds(before, self.seed)
            own = loaded(before, folder / "before.onnx", feeds, self.setting, self.policy.timing)
            for place, graph in enumerate(after):
                try:
                    other = loaded(graph, folder / f"{place}.onnx", feeds, self.setting, self.policy.timing)
                except NotMeasurable as reason:
                    log.info("a candidate counts as slower: %s", reason)
                    found[place] = None if isinstance(reason, NotNow) else FAILED
                    continue
                if own.simplified is None or own.simplified != other.simplified:
                    runs[place] = other.run
            if runs:
                copy = loaded(before, folder / "copy.onnx", feeds, self.setting, self.policy.timing)
                for place, ratio in self._raced((own.run, copy.run), runs).items():
                    found[place] = ratio
        return found

    def _raced(self, own: tuple[_Run, _Run], runs: Mapping[int, _Run]) -> dict[int, Speedup]:
        """Time all briefly, for most are no faster; then those that may be the fastest, until one of them is."""
        policy = self.policy
        found = self._timed(own, runs, 0.0, policy.brief_rounds)
        sure = dict[int, Speedup]()
        while chosen := _chances(found, sure, policy):
            some = {place: runs[place] for place in chosen}
            sure |= self._timed(own, some, policy.pair_seconds * (len(chosen) + 1), policy.long_rounds)
        return found | sure

    def _timed(
        self, own: tuple[_Run, _Run], runs: Mapping[int, _Run], seconds: float, rounds: tuple[int, int]
    ) -> dict[int, Speedup]:
        """How many times as fast as `own`, of which there are two, each run is."""
        timing = self.policy.timing
        schedule = Schedule(seconds=seconds, rounds=rounds, width=timing.interval_width)
        found = race(*own, list(runs.values()), schedule, meter=self.setting.meter, policy=timing)
        return dict(zip(runs, found.speedups(), strict=True))


# -- on the workers of a cluster ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elsewhere:
    """The device of a cluster's workers, of which each times one candidate at once."""

    cluster: Dask
    race: Race
    circumstances: str
    machine: Machine

    @property
    def seed(self) -> int:
        return self.race.seed

    @property
    def policy(self) -> SearchPolicy:
        return self.race.policy

    @staticmethod
    def of(cluster: Dask, race: Race) -> Elsewhere:
        """Ask the workers of a cluster what they are.

        Raises:
            UsageError: there are none, or they are of several kinds, or do several things at once.
        """
        if any(threads > 1 for threads in cluster.threads().values()):
            raise UsageError("workers that do several things at once time nothing: dask worker --nthreads 1")
        told = sorted(set(cluster.everywhere(circumstances, race.setting)))
        if len(told) != 1:
            kinds = "".join(f"\n  {each}" for each in told)
            raise UsageError(f"--dask needs workers of one kind of device, and there are {len(told)}{kinds}")
        ((_, machine),) = cluster.each(_machine, [race])
        return Elsewhere(cluster, race, told[0], machine)

    def turns(self, count: int) -> int:
        """Return how many sessions run one after the other: each worker lets one candidate race at once."""
        return ceil(count / len(self.cluster.threads())) * (1 + COPIES)

    def __call__(self, before: Graph, after: Sequence[Graph]) -> list[Speedup | None]:
        """Return how many times as fast each of some graphs is; None where there was no room for it.

        Raises:
            NotMeasurable: ONNX Runtime refuses `before`, or no inputs can be made up for it.
        """
        own, *others = (onnx_io.to_proto(as_model(graph)).SerializeToString() for graph in (before, *after))
        found = dict(self.cluster.each(_raced, [(self.race, own, other) for other in others]))
        return [found[place] for place in range(len(others))]


def _machine(race: Race) -> Machine:
    """Return the machine of the worker that is asked."""
    return Machine.calibrated(race.setting, user_cache(), race.policy.timing)


def _raced(task: tuple[Race, bytes, bytes]) -> Speedup | None:
    """Return what a worker's device makes of one candidate."""
    race, *sides = task
    before, after = map(_graph, sides)
    return race(before, [after])[0]


def _graph(data: bytes) -> Graph:
    graph = onnx_io.load(ModelProto.FromString(data)).graph
    infer_graph(graph)
    return graph


# -- the cost model ----------------------------------------------------------------------------------------------------


class Measured:
    """What ONNX Runtime takes, with all its optimizations, under one setting; asked twice, it looks into the cache.

    What was measured while two sessions of one graph differed is not kept, nor a search that had to leave things out.

    Costs of one provider, processor, number of threads or version of ONNX Runtime are never used for another. The
    values of weights do not count: those of one region stand for all that are alike.
    """

    name = "measured"

    def __init__(
        self,
        race: Racer,
        *,
        machine: Machine,
        cache: Cache,
        end: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise UsageError where the provider is missing; what cannot be timed before the `end` is not."""
        self.race, self.cache, self.end, self.clock = race, cache, end, clock
        self._analytic = Analytic(machine)
        self._circumstances = race.circumstances
        self.is_steady = True
        self.slowdown = 1.0
        """How many times as long the last race took as its turns alone should on a machine that does nothing else."""

    def seconds(self, graph: Graph) -> float:
        """Return the estimate by the roofline."""
        return self._analytic.seconds(graph)

    def speedups(self, before: Graph, after: Sequence[Graph]) -> list[Speedup]:
        """Measure what the cache lacks; one that ONNX Runtime refuses is `FAILED`.

        That is kept, too, unless memory, time or disk ran out: another time there may be enough. So it is with noise.

        Raises:
            NotMeasurable: ONNX Runtime refuses `before`, or no inputs can be made up for it, or there is no time.
        """
        own = digest(before)
        how = (self._circumstances, str(self.race.seed), repr(self.race.policy))
        keys = [key_of("speedup", own, digest(graph), *how) for graph in after]
        kept = self.cache.get(keys)
        found = {key: ratio for key in keys if (ratio := decoded(Speedup, kept.get(key))) is not None}
        missing = {key: graph for key, graph in zip(keys, after, strict=True) if key not in found}
        for batch in _batches(before, missing, self.race.policy):
            some = self._in_time(before, batch, is_all=not found)
            start = self.clock()
            fresh = dict(zip(some, self.race(before, list(some.values())), strict=True)) if some else {}
            self._note(before, len(some), self.clock() - start)
            known = {key: made for key, made in fresh.items() if made is not None}
            lasting = {key: to_json(made) for key, made in known.items() if made.is_steady(self.race.policy.timing)}
            self.is_steady &= len(lasting) == len(batch)
            self.cache.put(lasting)
            found |= known
        return [found.get(key, FAILED) for key in keys]

    def _in_time(self, before: Graph, batch: Mapping[str, Graph], *, is_all: bool) -> Mapping[str, Graph]:
        """Return as many as can take turns before the end, briefly and at length.

        Raises:
            NoTime: not one can, and nothing is known of any other.
        """
        left = max(self.end - self.clock(), 0.0)
        able = sum(self._takes(before, count) <= left for count in range(1, len(batch) + 1))
        if not able and is_all:
            self.is_steady = False
            raise NoTime(f"to time it takes {self._takes(before, 1):.1f} s, and {left:.1f} s are left")
        return dict(islice(batch.items(), able))

    def _takes(self, before: Graph, count: int) -> float:
        """Return the seconds in which so many candidates take turns with a graph, briefly and at length."""
        once, policy = self.seconds(before), self.race.policy
        fewest = (policy.brief_rounds[0], policy.long_rounds[0])
        turn = once + sum(least_seconds(once, rounds, policy.timing) for rounds in fewest)
        return self.race.turns(count) * turn * self.slowdown

    def _note(self, before: Graph, count: int, seconds: float) -> None:
        """Note how long a race took of so many: beside other processes, the next one will not be quicker."""
        if count:
            self.slowdown = max(1.0, self.slowdown * seconds / self._takes(before, count))


def _chances(brief: Mapping[int, Speedup], sure: Mapping[int, Speedup], policy: SearchPolicy) -> list[int]:
    """Return the best few by a brief timing that may beat all of which more is known, if that is faster beyond
    doubt."""
    least = max([1 + policy.timing.noise / 2, *(ratio.median for ratio in sure.values())])
    able = [place for place in brief if place not in sure and min(brief[place].median, brief[place].minimum) > least]
    best = sorted(able, key=lambda place: -brief[place].median)[: policy.candidates_at_length]
    return [place for place in able if place in best]


def _batches(before: Graph, after: Mapping[str, Graph], policy: SearchPolicy) -> Iterator[dict[str, Graph]]:
    """Yield as many at once as there is room for."""
    size = max(graph.weight_bytes for graph in (before, *after.values()))
    number = max(1, min(policy.candidates_at_once, policy.loaded_bytes // max(size, 1)))
    keys = list(after)
    for start in range(0, len(keys), number):
        yield {key: after[key] for key in keys[start : start + number]}
