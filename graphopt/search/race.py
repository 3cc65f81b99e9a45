"""Races: whole versions of one model in ONNX Runtime, in turns with the original and a copy of it.

The copy tells the noise: of a version no more can be said than of two sessions of one and the same model. What was
timed on a quiet machine is kept, so that the same question has the same answer; what was timed on a busy one is not.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from graphopt.base.cache import Cache
from graphopt.base.errors import ModelError
from graphopt.base.records import to_json
from graphopt.io import onnx_io
from graphopt.runtime.bench import Prepared
from graphopt.runtime.cost import decoded, key_of
from graphopt.runtime.machine import circumstances
from graphopt.runtime.measure import (
    RaceTimes,
    Samples,
    Schedule,
    Speedup,
    Verdict,
    least_seconds,
    race,
    together,
)
from graphopt.runtime.oracle import FailedError
from graphopt.runtime.profile import kernels_digest, outside_heavy_kernels
from graphopt.runtime.samples import Feeds
from graphopt.runtime.sessions import runner
from graphopt.search.policy import SearchPolicy
from graphopt.search.stopping import Pace

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one run."""

    minimum: float
    median: float
    spread: float
    """The distance between the quartiles, as a part of the median."""

    def __post_init__(self) -> None:
        if not (0 <= self.minimum <= self.median < math.inf and 0 <= self.spread < math.inf):
            raise ValueError(f"no run takes that long: {self}")

    @staticmethod
    def of(samples: Samples) -> Times:
        return Times(samples.minimum, samples.median, samples.spread)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a run takes at some sizes of the open dims, in the original and in the result."""

    sizes: Mapping[str, int]
    before: Times
    after: Times
    speedup: Speedup


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a race says of one version of a model."""

    speedup: Speedup
    """Over the original, all sizes together."""
    gain: Speedup
    """Over the first version in the race, all sizes together."""
    latencies: tuple[Latency, ...] = ()

    @property
    def is_faster(self) -> bool:
        """By more than noise over the original, and slower at no size."""
        slower = any(latency.speedup.verdict is Verdict.SLOWER for latency in self.latencies)
        return self.speedup.verdict is Verdict.FASTER and not slower


@dataclass(frozen=True, slots=True)
class _Race:
    """What is kept of a race."""

    outcomes: tuple[Outcome, ...]


class Contest:
    """A series of races under one setting, on the same inputs.

    Contests between the same models are told apart by their `heat`: a second one has new sessions of all, the original
    too, for a session may be fast or slow for as long as it lives.
    """

    def __init__(
        self,
        original: Prepared,
        source: onnx_io.Source,
        digest: str,
        cache: Cache,
        policy: SearchPolicy,
        heat: int = 1,
    ) -> None:
        """Take the `original` with its inputs, its source, and the digest of what a race depends on besides."""
        self.original, self.source, self.digest, self.cache, self.heat = original, source, digest, cache, heat
        self.policy = policy
        self.keeps = self.is_steady = True
        """Times that are taken in a hurry, or on a busy machine, are not to bind later runs."""
        fed = (text for trial in original.trials for text in (json.dumps(dict(trial.sizes)), fed_digest(trial.feeds)))
        self._known_by = ("race", digest, *fed, circumstances(original.setting), repr(policy), str(heat))

    def again(self) -> Contest:
        """Return the next contest between the same."""
        contest = Contest(self.original, self.source, self.digest, self.cache, self.policy, self.heat + 1)
        contest.keeps, contest.is_steady = self.keeps, self.is_steady
        return contest

    def pace(self, clock: Callable[[], float]) -> Pace:
        """Return the original's pace, from the copy of it.

        Turns last some time of the processor: beside other processes, of which each has its share, they take longer.

        Raises:
            ModelError: ONNX Runtime refuses to run it.
        """
        meter = self.original.setting.meter
        used, start = meter(), clock()
        _, copy = self._originals
        opening = clock() - start
        runs = [_briefly(self._runner(copy, trial.feeds), clock, self.policy) for trial in self.original.trials]
        used, passed = meter() - used, opening + sum(map(sum, runs))
        share = min(max(used / passed, self.policy.min_processor_share), 1.0) if used > 0 and passed > 0 else 1.0
        return Pace(opening, sum(raced_seconds(min(found) * share, self.policy) / share for found in runs))

    def is_original(self, model: onnx_io.Model) -> bool:
        """Return whether ONNX Runtime runs of a model what it runs of the original: then neither is faster.

        False where that cannot be seen, or the model is large: what is run has to be written to a file.
        """
        if model.graph.weight_bytes > self.policy.compared_bytes:
            return False
        try:
            one, other = (kernels_digest(source, self.original.setting) for source in (self.source, model))
        except ModelError as error:
            log.debug("what ONNX Runtime makes of the models is not compared: %s", error)
            return False
        return one == other

    def gainable(self, key: str, model: onnx_io.Model) -> float | None:
        """Return the part of a model's time in kernels that is outside of the heavy ones, at the size where it is
        largest; None where that is not known: on devices, a kernel's time is that of its launch.
        """
        setting, place = self.original.setting, self._key(["gainable", key])
        runs = self.policy.timing.kernel_share_runs
        known = _part(self.cache.get([place]).get(place))
        if known is None and setting.is_cpu:
            try:
                parts = (outside_heavy_kernels(model, setting, trial.feeds, runs) for trial in self.original.trials)
                known = max(0.0, *parts)  # a difference of sums, which are rounded
            except ModelError as error:
                log.debug("what can be gained at most is not known: %s", error)
            else:
                if self.keeps and self.is_steady:
                    self.cache.put({place: str(known)})
        return known

    @cached_property
    def _originals(self) -> tuple[Any, Any]:
        """Two sessions of the original; the first contest has one already."""
        opened = self.original.setting.open
        return self.original.sessions[0] if self.heat == 1 else opened(self.source), opened(self.source)

    def enter(self) -> None:
        """Open what the versions are timed against, if that was not done yet.

        Raises:
            ModelError: there is no room for it.
            UsageError: the provider does not start.
        """
        _ = self._originals

    def opened(self, model: onnx_io.Model) -> Any:
        """Return a session of a model as it is now, that has run on all inputs.

        Raises:
            ModelError: ONNX Runtime refuses it.
            UsageError: the provider does not start.
        """
        session = self.original.setting.open(model)
        for trial in self.original.trials:
            self._runner(session, trial.feeds)()
        return session

    def known(self, keys: Sequence[str]) -> list[Outcome] | None:
        """Return what an earlier race between the models with these digests said; None where there was none."""
        key = self._key(keys)
        found = decoded(_Race, self.cache.get([key]).get(key))
        if found is None:
            return None
        sizes = [dict(trial.sizes) for trial in self.original.trials]
        timed = [[dict(latency.sizes) for latency in outcome.latencies] for outcome in found.outcomes]
        if timed != [sizes] * len(keys):
            log.debug("an entry of the cache is not used, for it is of another race")
            return None
        return [*found.outcomes]

    def race(
        self, keys: Sequence[str], sessions: Sequence[Any], seconds: float, limit: float = math.inf
    ) -> list[Outcome]:
        """How fast models with these digests are, in `seconds` for all of them together.

        It takes longer where these are too few for the fewest rounds, up to the `limit`.

        Raises:
            ModelError: there is no room for the sessions of the original, or for all that run in turn.
            UsageError: the provider does not start.
        """
        timing, meter, count = self.policy.timing, self.original.setting.meter, len(self.original.trials)
        schedule = Schedule(
            seconds=seconds / count,
            rounds=self.policy.race_rounds,
            width=timing.interval_width,
            noise=timing.noise,
            limit=limit / count,
        )
        timed: list[tuple[Mapping[str, int], RaceTimes]] = []
        for trial in self.original.trials:
            own, copy, *rivals = (self._runner(session, trial.feeds) for session in (*self._originals, *sessions))
            timed.append((trial.sizes, race(own, copy, rivals, schedule, meter=meter, policy=timing)))
        outcomes = judged(timed)
        is_steady = all(outcome.speedup.is_steady(timing) for outcome in outcomes)
        self.is_steady &= is_steady
        is_whole = all(len(found.own.seconds) >= schedule.rounds[0] for _, found in timed)
        if self.keeps and is_steady and is_whole:
            self.cache.put({self._key(keys): to_json(_Race(tuple(outcomes)))})
        return outcomes

    def _key(self, keys: Sequence[str]) -> str:
        return key_of(*self._known_by, *keys)

    def _runner(self, session: Any, feeds: Feeds) -> Callable[[], object]:
        """Return a call that runs a session once. Only what ONNX Runtime does is caught: other errors are graphopt's
        own.

        Raises:
            ModelError: ONNX Runtime refuses the inputs; the call raises it where it refuses to run.
        """
        try:
            call = runner(session, feeds, self.original.setting)
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise _failed(error) from error

        def run() -> None:
            try:
                call()
            except Exception as error:
                raise _failed(error) from error

        return run

    # -- whether time was up -------------------------------------------------------------------------------------------

    def end(self, keys: Sequence[str]) -> None:
        """Remember that time was up when these models had raced: no later run is to try more of them."""
        if self.keeps and self.is_steady:
            self.cache.put({self._end(keys): ""})

    def has_ended(self, keys: Sequence[str]) -> bool:
        """Return whether time was up here once, in an earlier run or in this one."""
        return self.cache.get([self._end(keys)]).get(self._end(keys)) == ""

    def _end(self, keys: Sequence[str]) -> str:
        return key_of(*self._known_by, "end", *keys)


def judged(timed: Sequence[tuple[Mapping[str, int], RaceTimes]]) -> list[Outcome]:
    """Return what a race of the original and of some versions says of each version, from its times at each set of
    sizes."""
    latencies: list[list[Latency]] = []
    gains: list[list[Speedup]] = []
    for sizes, times in timed:
        own, pairs = Times.of(times.own), zip(times.rivals, times.speedups(), strict=True)
        latencies.append([Latency(dict(sizes), own, Times.of(after), ratio) for after, ratio in pairs])
        gains.append(times.speedups(over=times.rivals[0]))
    columns = zip(zip(*latencies, strict=True), zip(*gains, strict=True), strict=True)
    return [Outcome(together([each.speedup for each in found]), together(gain), found) for found, gain in columns]


def _briefly(run: Callable[[], object], clock: Callable[[], float], policy: SearchPolicy) -> list[float]:
    """Return the seconds of a few runs, or of the first if that takes long."""
    found: list[float] = []
    while len(found) < policy.pace_runs and sum(found) < policy.timing.warm_run_seconds:
        start = clock()
        run()
        found.append(clock() - start)
    return found


def _part(text: str | None) -> float | None:
    """Return the part of a whole that a text of the cache says; None where it says none."""
    try:
        part = None if text is None else float(text)
    except ValueError:
        part = math.nan
    if part is None or 0 <= part <= 1:
        return part
    log.debug("an entry of the cache is not used, for it is no part of a whole")
    return None


def raced_seconds(once: float, policy: SearchPolicy) -> float:
    """Return what a session that takes `once` for a run takes in the shortest race, and to run once before."""
    return once + least_seconds(once, policy.race_rounds[0], policy.timing)


def fed_digest(feeds: Feeds) -> str:
    """Identify inputs: what is in them may decide what a run costs."""
    said = sha256()
    for name, value in feeds.items():
        said.update(name.encode())
        for array in value if isinstance(value, list) else [value]:
            plain = isinstance(array, np.ndarray) and not array.dtype.hasobject
            said.update(f" {array.dtype.name} {array.shape}".encode() if plain else b"")
            said.update(np.ascontiguousarray(array).tobytes() if plain else repr(np.array(array).tolist()).encode())
    return said.hexdigest()


def _failed(error: Exception) -> ModelError:
    return ModelError(f"the model {FailedError('cannot be run', error)}")
