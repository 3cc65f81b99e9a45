"""Races of a graph with others that may replace it, on this machine or on the workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from graphopt.runtime.graph_sessions import load_graph, model_of_graph, random_feeds
from graphopt.runtime.machine import Machine, device_name, environment_key
from graphopt.runtime.measure import FastestRun, Speedup, TimingSchedule, time_race
from graphopt.runtime.session_setting import SessionSetting
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
        runs: dict[int, Callable[[], object]] = {}
        with files.scratch_folder(TemporarilyNotMeasurableError) as folder:
            feeds = random_feeds(before, self.seed)
            own = load_graph(before, folder / "before.onnx", feeds, self.setting, self.policy.timing)
            for place, graph in enumerate(after):
                try:
                    other = load_graph(graph, folder / f"{place}.onnx", feeds, self.setting, self.policy.timing)
                except NotMeasurableError as reason:
                    log.debug("a candidate counts as slower: %s", reason)
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
