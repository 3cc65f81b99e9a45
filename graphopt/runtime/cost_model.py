"""Questions of a search to a cost model, and the cache of costs.

`analytic_cost` estimates and runs nothing, `measured_cost` runs ONNX Runtime.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from hashlib import sha256
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from graphopt.base.cache import Cache
from graphopt.base.files import cache_folder
from graphopt.base.records import DECODE_ERRORS, from_json
from graphopt.ir.graph import Graph
from graphopt.runtime.measure import Speedup

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)


class PredictedGain(NamedTuple):
    """Gain of a graph over another as it is estimated, in seconds."""

    whole: float
    """Time of the other."""
    saved: float
    error: float
    """Standard deviation of what is saved."""
    parts: tuple[PredictedGain, ...] = ()
    """The gains of the parts that were asked for, without copies between layouts."""

    def ratio(self, optimism: float = 0.0) -> float:
        """Return how many times as fast it is if so many standard deviations more are saved; infinite where that is
        all of the time."""
        left = self.whole - self.saved - optimism * self.error
        return self.whole / left if left > 0 else math.inf

    def expected_improvement(self, least: float, added_error: float = 0.0) -> float:
        """Return the part of the time that is expected to be saved beyond the `least` part, where less than that counts
        as nothing: the expected improvement of Jones, Schonlau and Welch, "Efficient global optimization" (1998).

        Args:
            least: part of the time.
            added_error: standard deviation of that part, beside the error of the kernels' times.
        """
        if not self.whole:
            return 0.0
        excess, error = self.saved / self.whole - least, math.hypot(self.error / self.whole, added_error)
        if not error:
            return max(excess, 0.0)
        usual = NormalDist()
        return excess * usual.cdf(excess / error) + error * usual.pdf(excess / error)


GraphPart: TypeAlias = tuple[Collection[int], Collection[int]]
"""A part of a graph and what became of it in another one: the vertices in both."""


class CostModel(Protocol):
    """Questions of a search. The graphs are small, and have static shapes where anything is to be run."""

    name: str
    is_steady: bool
    """False as soon as a measurement was too noisy to be kept, or could not be made just then."""
    device: str
    """Name of the device that is timed; empty if none is."""

    def estimate_seconds(self, graph: Graph) -> float:
        """Return an estimate of one run, without running anything; the same for the same graph."""

    def predict_gain(self, before: Graph, after: Graph, parts: Sequence[GraphPart] = ()) -> PredictedGain:
        """Return what a graph and parts of it gain over another of the same function, without running anything."""

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        """Return how many times as fast as `before` each of the others is; all have the same inputs and outputs.

        One that is probably faster by no more than the `least_gain`, a part of 1, need not be told from a slower one.

        Raises:
            NotMeasurableError: `before` cannot be timed.
        """


class NotMeasurableError(Exception):
    """A graph cannot be timed: ONNX Runtime refuses it, or no inputs can be made up for it."""


class TemporarilyNotMeasurableError(NotMeasurableError):
    """A graph cannot be timed at the moment, for want of memory, time or disk space; later it may be."""


class NoTimeToMeasureError(TemporarilyNotMeasurableError):
    """A graph cannot be timed in the time that is left."""


# -- what is kept ------------------------------------------------------------------------------------------------------


def open_cost_cache(*, fresh: bool = False) -> Cache:
    """Return the user's own cache, of all models; a `fresh` one knows nothing of earlier runs."""
    return Cache(cache_folder() / "costs.sqlite", fresh=fresh)


def cache_key(*parts: str) -> str:
    """Return the key of an entry, made of all that the entry depends on."""
    return sha256("\n".join(parts).encode()).hexdigest()


T = TypeVar("T", bound="DataclassInstance")


def decode_cached(kind: type[T], text: str | None) -> T | None:
    """Return an entry of the cache; None where there is none, or it is of another version or damaged."""
    try:
        return None if text is None else from_json(kind, text)
    except DECODE_ERRORS as error:
        log.debug("an entry of the cache is not used, for it is no %s: %s", kind.__name__, error)
        return None
