"""Races of a graph with others that may replace it, on this machine or on the workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from onnx import ModelProto

from graphopt.base import files
from graphopt.base.errors import UsageError
from graphopt.base.executors import DaskCluster
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from graphopt.runtime.cost_model import NotMeasurableError, TemporarilyNotMeasurableError, open_cost_cache
from graphopt.runtime.graph_sessions import LoadedGraph, load_graph, model_of_graph, random_feeds
from graphopt.runtime.machine import Machine, device_name, environment_key
from graphopt.runtime.measure import FastestRun, Speedup, TimingSamples, TimingSchedule, time_race
from graphopt.runtime.profile import ProfiledSession, with_kernels
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.policy import SearchPolicy

log = logging.getLogger(__name__)

SAME_SPEEDUP = Speedup(1.0, 1.0, 1.0, 1.0, rounds=0)
"""Speedup of graphs that ONNX Runtime turns into one and the same."""
FAILED_SPEEDUP = Speedup(0.0, 0.0, 0.0, 0.0, rounds=0)
"""Speedup of a graph that ONNX Runtime refuses: not faster."""


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

    @property
    def device(self) -> str:
        """Name of the device."""

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

    @property
    def device(self) -> str:
        return device_name(self.setting)

    def sessions_in_turn(self, count: int) -> int:
        return count + 1

    def __call__(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup | None]:
        """Load all, then let them take turns; one that ONNX Runtime turns into the same as `before` is not timed.

        None stands for one for which there was no room.

        Raises:
            NotMeasurableError: ONNX Runtime refuses `before`, or no inputs can be made up for it.
        """
        found: list[Speedup | None] = [SAME_SPEEDUP] * len(after)
        raced: dict[int, LoadedGraph] = {}
        with files.scratch_folder(TemporarilyNotMeasurableError) as folder, ExitStack() as profiles:
            feeds = random_feeds(before, self.seed)

            def load(graph: Graph, name: str, *, is_profiled: bool) -> LoadedGraph:
                path, timing = folder / f"{name}.onnx", self.policy.timing
                loaded = load_graph(graph, path, feeds, self.setting, timing, is_profiled=is_profiled)
                if loaded.profiled is not None:
                    profiles.callback(loaded.profiled.stop_profiling)
                return loaded

            own = load(before, "before", is_profiled=self.setting.is_cpu)
            is_profiled = own.profiled is not None and self._has_long_kernels(before, own)
            if own.profiled is not None and not is_profiled:
                profiles.close()
                own = load(before, "before", is_profiled=False)  # as candidates are: a profiled session is watched
            for place, graph in enumerate(after):
                try:
                    other = load(graph, str(place), is_profiled=is_profiled)
                except NotMeasurableError as reason:
                    log.debug("a candidate counts as slower: %s", reason)
                    found[place] = None if isinstance(reason, TemporarilyNotMeasurableError) else FAILED_SPEEDUP
                    continue
                if own.optimized_digest is None or own.optimized_digest != other.optimized_digest:
                    raced[place] = other
            if raced:
                for place, ratio in zip(raced, self._time(own, list(raced.values()), least_gain), strict=True):
                    found[place] = ratio
        return found

    def _has_long_kernels(self, graph: Graph, loaded: LoadedGraph) -> bool:
        """Return whether a profile tells the times of a graph's kernels well."""
        start = self.setting.timer()
        loaded.run()
        seconds = self.setting.timer() - start
        nodes = sum(graph.operator_counts().values())
        return seconds >= max(self.policy.profiled_region_seconds, self.policy.profiled_node_seconds * nodes)

    def _time(self, own: LoadedGraph, others: Sequence[LoadedGraph], least_gain: float) -> list[Speedup]:
        """Return the speedup of each graph over the first, by kernels where these are profiled."""
        policy, timing = self.policy, self.policy.timing
        count = len(others) + 1
        sessions = [each.profiled for each in (own, *others) if each.profiled is not None]
        runs, meter = [other.run for other in others], self.setting.timer
        if not sessions:
            fastest = FastestRun(timing, least_gain=least_gain)
            schedule = TimingSchedule(
                seconds=policy.pair_seconds * count, rounds=policy.region_rounds, open_runs=fastest
            )
            return time_race(own.run, runs, schedule, meter=meter, policy=timing).speedups()
        told = _UntilUndisturbed(sessions, policy.undisturbed_region_rounds)
        seconds, rounds = policy.profiled_pair_seconds * count, policy.profiled_region_rounds
        schedule = TimingSchedule(seconds=seconds, rounds=rounds, open_runs=told)
        turns = replace(timing, long_run_seconds=0.0)  # a round is a run
        times = time_race(own.run, runs, schedule, meter=meter, policy=turns)
        (times,) = with_kernels([times], sessions, [[each.runs for each in sessions]], skips_interrupted=True)
        found = zip(others, times.speedups(by_kernels_alone=True), times.without_kernels().speedups(), strict=True)
        return [whole if _is_hidden(own, other, told) else told for other, told, whole in found]


def _is_hidden(before: LoadedGraph, after: LoadedGraph, told: Speedup) -> bool:
    """Return whether two graphs differ in what a profile does not tell, such as the dilations of a convolution."""
    is_equal = told.is_by_kernels and told.low == told.high == 1
    return is_equal and (before.attributes_digest is None or before.attributes_digest != after.attributes_digest)


@dataclass(frozen=True)
class _UntilUndisturbed:
    """Goes on until each candidate had enough rounds in which nothing interrupted it or the region."""

    sessions: Sequence[ProfiledSession]
    """Sessions of the region and of each candidate."""
    rounds: int

    def __call__(self, found: Sequence[TimingSamples]) -> Collection[int]:
        """Return the candidates that need more rounds, and the region."""
        rounds = len(found[0].seconds)
        interrupted = [session.interrupted_runs(slice(-rounds, None)) for session in self.sessions]
        able = [
            place
            for place in range(1, len(found))
            if len(found[place].seconds) == rounds and rounds - len(interrupted[0] | interrupted[place]) < self.rounds
        ]
        return [0, *able] if able else []


# -- on the workers of a cluster ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterRacer:
    """Races on a cluster, whose workers each time one candidate at a time."""

    cluster: DaskCluster
    race: LocalRacer
    environment_key: str
    machine: Machine
    device: str

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
        return ClusterRacer(cluster, race, told[0], machine, cluster.run_on_workers(device_name, race.setting)[0])

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
