"""Outcomes of races: for each candidate its times, and its ratios to the original and to the simplified model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Step
from graphopt.runtime.measure import (
    RaceTimes,
    Speedup,
    TimingSamples,
    TimingVerdict,
    geometric_mean_speedup,
    min_rounds,
)
from graphopt.search.moves import Solution
from graphopt.search.sweep import Sweep


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Seconds of one run."""

    minimum: float
    median: float
    spread: float
    """The distance between the quartiles, as a part of the median."""

    def __post_init__(self) -> None:
        if not (0 <= self.minimum <= self.median < math.inf and 0 <= self.spread < math.inf):
            raise ValueError(f"no run takes that long: {self}")

    @staticmethod
    def from_samples(samples: TimingSamples) -> TimeSummary:
        return TimeSummary(samples.minimum, samples.median, samples.spread)


@dataclass(frozen=True, slots=True)
class Latency:
    """Duration of a run at some sizes of the open dims, in the original and in the result."""

    sizes: Mapping[str, int]
    before: TimeSummary
    after: TimeSummary
    speedup: Speedup


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A speedup that is a loss, over all sizes of the open dims or at some of them."""

    speedup: Speedup
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """Outcome of a race for one candidate."""

    speedup: Speedup
    """Speedup over the original, all sizes together."""
    gain: Speedup
    """Speedup over the first candidate in the race, all sizes together."""
    latencies: tuple[Latency, ...] = ()

    @property
    def slowdown(self) -> Slowdown | None:
        """Slowdown beyond noise, over all sizes or at one: gains at others do not make up for that; None without."""
        at_sizes = [Slowdown(latency.speedup, latency.sizes) for latency in self.latencies]
        found = (each for each in (Slowdown(self.speedup), *at_sizes) if each.speedup.verdict is TimingVerdict.SLOWER)
        return next(found, None)

    @property
    def is_slower(self) -> bool:
        """True if slower by more than noise, at some size."""
        return self.slowdown is not None

    @property
    def is_faster(self) -> bool:
        """True if faster than the original by more than noise, and slower at no size."""
        return self.speedup.verdict is TimingVerdict.FASTER and not self.is_slower


def judge_race(timed: Sequence[tuple[Mapping[str, int], RaceTimes]]) -> list[RaceOutcome]:
    """Return the outcome for each candidate of a race with the original, from its times at each set of sizes."""
    latencies: list[list[Latency]] = []
    gains: list[list[Speedup]] = []
    for sizes, times in timed:
        own, pairs = TimeSummary.from_samples(times.original), zip(times.candidates, times.speedups(), strict=True)
        latencies.append([Latency(dict(sizes), own, TimeSummary.from_samples(after), ratio) for after, ratio in pairs])
        gains.append(times.speedups(over=times.candidates[0]))
    columns = zip(zip(*latencies, strict=True), zip(*gains, strict=True), strict=True)
    return [
        RaceOutcome(geometric_mean_speedup([each.speedup for each in found]), geometric_mean_speedup(gain), found)
        for found, gain in columns
    ]


@dataclass(frozen=True)
class Measurement:
    """A candidate, and the outcome of a race for it."""

    candidate: Candidate
    outcome: RaceOutcome | None = None
    """Outcome of the race; None if untimed."""
    refusal: str = ""
    """Reason why it cannot be timed: ONNX Runtime refuses it, or there was no room."""
    has_floor: bool = True
    """False where the simplified model does not run, over which gains are told."""
    is_original: bool = False
    """True where ONNX Runtime runs of it what it runs of the original, so that there is nothing to time."""
    has_lost: bool = False
    """True where it won a race and not the second."""
    is_unconfirmed: bool = False
    """True where no time or room was left for a second race; it may be taken for a gain all the same."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps from the original to the candidate."""
        return self.candidate.steps

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps that the candidate was made by, in their order."""
        return tuple(cause for cause in self.candidate.causes if isinstance(cause, Sweep))

    @property
    def sweep_names(self) -> frozenset[str]:
        """The names of these sweeps."""
        return frozenset(sweep.name for sweep in self.sweeps)

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """The finds of the search that the candidate was made by, in their order."""
        return tuple(cause for cause in self.candidate.causes if isinstance(cause, Solution))

    @property
    def speedup(self) -> Speedup | None:
        """Speedup over the original; None if untimed."""
        return None if self.outcome is None else self.outcome.speedup

    @property
    def gain(self) -> Speedup | None:
        """Speedup over the first candidate in the same race, which is the simplified model; None if untimed."""
        return None if self.outcome is None or not self.has_floor else self.outcome.gain

    @property
    def latencies(self) -> tuple[Latency, ...]:
        return self.outcome.latencies if self.outcome else ()

    @property
    def is_faster(self) -> bool:
        """True if faster by more than noise, and slower at no size; the original is not, whatever is measured."""
        return bool(self.steps) and self.outcome is not None and self.outcome.is_faster

    @property
    def is_slower(self) -> bool:
        """True if slower by more than noise, at some size."""
        return self.outcome is not None and self.outcome.is_slower

    @property
    def needs_no_second_race(self) -> bool:
        """True if after more than the fewest rounds the whole interval of one race lies beyond noise, over the original
        and the simplified model.

        Of 1189 races of a model with its copy, beside other load, one called the copy so clearly faster, after the
        fewest rounds; by its kernels a copy is never faster.
        """
        ratios = [ratio for ratio in (self.speedup, self.gain if self.candidate.causes else None) if ratio is not None]
        return self.is_faster and all(
            ratio.low > 1 + ratio.noise and (ratio.is_by_kernels or ratio.rounds > min_rounds(ratio.confidence))
            for ratio in ratios
        )

    def beats(self, floor: Measurement) -> bool:
        """Return whether it is shown to be faster than the simplified model was in the same race.

        A gain over the original need only be faster beyond doubt, not beyond noise, if the simplified model is no gain.
        """
        if self.gain is None or self.is_slower:
            return False
        is_sure = self.is_faster and not floor.is_faster and self.gain.is_surely_faster
        return self.gain.verdict is TimingVerdict.FASTER or is_sure
