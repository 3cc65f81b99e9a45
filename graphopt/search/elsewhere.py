"""Parts of models timed on the workers of a cluster, whose device is not this machine's.

Each worker answers for the device that it has; so all have to have the same, and what it answers is kept as that
device's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from onnx import ModelProto

from graphopt.base.engine import Dask
from graphopt.base.errors import UsageError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.infer import infer_graph
from graphopt.runtime.cost import user_cache
from graphopt.runtime.loading import as_model
from graphopt.runtime.machine import Machine, circumstances
from graphopt.runtime.measure import Speedup
from graphopt.search.measured import COPIES, Race
from graphopt.search.policy import SearchPolicy


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
