"""Paired timing: runs take turns in one process, so that what disturbs one disturbs all.

An absolute time means nothing on a machine that does other work too; the ratio of two times of one round does. What
is left of the disturbance is seen where two copies of one model take turns, too: see `copy_noise`.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations


@dataclass(frozen=True)
class TimingPolicy:
    """How runs are timed, and when two times differ: the knobs of the timer, of `bench` and of races."""

    noise: float = 0.02
    """Distance of a ratio from 1 up to which there is no difference: two sessions of one model differ by as much."""
    quiet_noise: float = 0.04
    """Noise (as `copy_noise`) up to which the machine is quiet enough for a verdict that later runs rely on."""
    confidence: float = 0.95
    """Probability that an interval holds the true median."""
    interval_width: float = 0.01
    """Width of an interval, as a part of the ratio in it, that more rounds need not narrow."""
    turn_seconds: float = 0.01
    """Least seconds of a turn: the switch to another session costs something, so short runs are repeated."""
    piece_seconds: float = 0.0005
    """Least seconds of the pieces of a turn that are timed: long enough for the clock, and short enough that other
    processes, which take a processor for a few milliseconds, do not interrupt each of them."""
    long_run_seconds: float = 0.05
    """Seconds of a run from which on it is not warmed up at each turn."""
    warm_run_seconds: float = 0.5
    """Seconds of a first run from which on it has warmed up the session; of shorter ones two more are made."""
    calibration_seconds: float = 0.2
    """Seconds for each of the models by which a machine is calibrated."""
    calibration_rounds: tuple[int, int] = (7, 60)
    """Fewest and most rounds of these."""
    bench_rounds: tuple[int, int] = (7, 500)
    """Fewest and most rounds of `bench`."""
    busy_spread: float = 0.2
    """Distance between the quartiles of a model's times, as a part of the median, that only a busy machine causes."""
    profile_runs: int = 20
    """Runs of a profile: the clock of ONNX Runtime's profiler ticks in microseconds, so short kernels need many."""
    kernel_share_runs: int = 5
    """Runs from which the time share of heavy kernels is measured."""
    compared_bytes: int = 100_000_000
    """Bytes of a graph's weights up to which ONNX Runtime writes its optimized graph to a file, to be compared."""


# -- what was found ----------------------------------------------------------------------------------------------------


class TimingVerdict(StrEnum):
    """What a comparison of two timings says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


@dataclass(frozen=True)
class TimingSamples:
    """Seconds of one run, one number a round."""

    seconds: tuple[float, ...]

    @cached_property
    def minimum(self) -> float:
        return min(self.seconds)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @cached_property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast as the first the second is: above 1 is faster."""

    minimum: float
    """Ratio of the fastest runs."""
    median: float
    """The median over the rounds of the ratio within the round."""
    low: float
    high: float
    """Upper end of the interval in which the true median lies, with a confidence of `confidence`."""
    rounds: int
    confidence: float = TimingPolicy.confidence
    noise: float = TimingPolicy.noise
    """Ratios nearer to 1 count as no difference: as far as two copies of one model may be apart."""

    def __post_init__(self) -> None:
        if not all(0 <= ratio < math.inf for ratio in (self.minimum, self.median, self.low, self.high, self.noise)):
            raise ValueError(f"nothing is that slow, or that fast: {self}")
        if self.low > self.high or self.rounds < 0 or not 0 < self.confidence < 1:
            raise ValueError(f"no timing ends with this: {self}")

    @property
    def verdict(self) -> TimingVerdict:
        """Faster or slower only where the fastest runs, the medians and the interval say so, beyond noise."""
        if self.has_too_few_rounds:
            return TimingVerdict.SAME
        if min(self.minimum, self.median) > 1 + self.noise and self.low > 1:
            return TimingVerdict.FASTER
        if max(self.minimum, self.median) < 1 / (1 + self.noise) and self.high < 1:
            return TimingVerdict.SLOWER
        return TimingVerdict.SAME

    @property
    def has_too_few_rounds(self) -> bool:
        """True where no interval of so many rounds holds the median with this confidence: under 6 for 95 %."""
        return 0 < self.rounds < 1 - math.log2(1 - self.confidence)

    def is_steady(self, policy: TimingPolicy) -> bool:
        """Return whether the machine was quiet enough to rely on this another time."""
        return self.noise <= policy.quiet_noise


def compute_speedup(
    before: TimingSamples, after: TimingSamples, noise: float | None = None, policy: TimingPolicy = TimingPolicy()
) -> Speedup:
    """Return how much faster `after` ran than `before`, from rounds in which both took a turn.

    Ratios within the `copy_noise` are no difference; unless it was measured, it is that of the policy.
    """
    ratios = sorted(b / a for b, a in zip(before.seconds, after.seconds, strict=True))
    low, high = _median_interval(len(ratios), policy.confidence)
    median = statistics.median(ratios)
    minimum, apart = before.minimum / after.minimum, policy.noise if noise is None else noise
    return Speedup(minimum, median, ratios[low], ratios[high], len(ratios), policy.confidence, apart)


def copy_noise(one: TimingSamples, copy: TimingSamples, policy: TimingPolicy = TimingPolicy()) -> float:
    """Return how far apart two copies of one model may be, which took turns: at least the noise of the policy."""
    ratio = compute_speedup(one, copy, policy=policy)
    return max(policy.noise, ratio.high - 1, 1 / ratio.low - 1)


def _median_interval(count: int, confidence: float) -> tuple[int, int]:
    """Return the places, in a sorted sample, between which the median lies: by order statistics, whatever the
    distribution.

    The sample's least and greatest where it is too small for the confidence (under 6 for 95 %).
    """
    tail, place = 0.5**count, 0
    while place < (count - 1) // 2 and tail + math.comb(count, place + 1) * 0.5**count <= (1 - confidence) / 2:
        place += 1
        tail += math.comb(count, place) * 0.5**count
    return place, count - 1 - place


def geometric_mean_speedup(ratios: Sequence[Speedup]) -> Speedup:
    """Speedups at several sizes as one: geometric means, each size counting the same.

    The bounds are those of the parts: the interval is wider than it would have to be.
    """
    if len(ratios) == 1:
        return ratios[0]
    parts = zip(*((ratio.minimum, ratio.median, ratio.low, ratio.high) for ratio in ratios), strict=True)
    minimum, median, low, high = (math.exp(statistics.fmean(math.log(max(r, 1e-9)) for r in part)) for part in parts)
    rounds = min((ratio.rounds for ratio in ratios if ratio.rounds), default=0)  # a verdict needs enough at each size
    largest = max(ratio.noise for ratio in ratios)
    return Speedup(minimum, median, low, high, rounds, ratios[0].confidence, largest)


# -- turns -------------------------------------------------------------------------------------------------------------

_TIMING_LOCK = threading.RLock()
"""Held while something is timed: two timings would disturb each other."""


@dataclass(frozen=True, kw_only=True)
class TimingSchedule:
    """When runs that take turns have done so often enough."""

    seconds: float
    """Seconds after which no further round begins."""
    rounds: tuple[int, int]
    """The fewest, whatever time they take, and the most."""
    interval_width: float | None = None
    """Width of the interval of each ratio to the first, or of the time of a run alone, as a part of it, that ends the
    timing. It is the width and not the verdict: to stop at the first clear one would favour chance."""
    noise: float = 0.0
    """Distance from 1 that ends the timing, too, where the whole interval of each pair lies within it: that favours
    only equality."""
    hard_limit: float = math.inf
    """Seconds, with what warms the runs up, after which no further round begins even before the fewest."""

    def progress(self, rounds: int, seconds: float) -> float:
        """Return the part that is done, from 0 to 1."""
        fewest, most = self.rounds
        return min(1.0, max(rounds / most, min(rounds / fewest, seconds / max(self.seconds, 1e-9))))

    def is_over(self, found: Sequence[Sequence[float]], seconds: float, policy: TimingPolicy) -> bool:
        """Return whether the rounds that there were are enough."""
        return len(found[0]) >= self.rounds[0] and (seconds > self.seconds or self._is_certain(found, policy))

    def _is_certain(self, found: Sequence[Sequence[float]], policy: TimingPolicy) -> bool:
        """Return whether more rounds would tell no more than these: all ratios to the first have narrow intervals, or
        those of any two are within the noise."""
        if self.interval_width is None:
            return False
        first, *others = all_ = [TimingSamples(tuple(samples)) for samples in found]
        rivals = others or [TimingSamples((1.0,) * len(first.seconds))]
        ratios = [compute_speedup(first, other, policy=policy) for other in rivals]
        if all(ratio.high - ratio.low <= self.interval_width * ratio.median for ratio in ratios):
            return True
        between = (compute_speedup(*pair, policy=policy) for pair in combinations(all_, 2))
        limit = 1 + self.noise
        return self.noise > 0 and all(ratio.high <= limit and ratio.low >= 1 / limit for ratio in between)


def time_interleaved(
    runs: Sequence[Callable[[], object]],
    schedule: TimingSchedule,
    *,
    clock: Callable[[], float] = time.perf_counter,
    meter: Callable[[], float] | None = None,
    progress: Callable[[float], object] | None = None,
    seed: int = 0,
    policy: TimingPolicy = TimingPolicy(),
) -> tuple[TimingSamples, ...]:
    """Time the runs in rounds in which each takes a turn, in an order that is drawn anew for each round.

    One thread times at a time.

    In an order that is fixed or rotates, each run would always follow the same one, and inherit its caches and clock.

    A turn repeats short runs for the seconds of a turn and counts the fastest, for other processes can only slow a run
    down. One run before that does not count: it fills the caches again and outlasts the threads of the session before,
    which spin for a while.

    Args:
        runs: what is timed.
        schedule: when the timing ends.
        clock: seconds that pass.
        meter: seconds that a run is charged; those that pass unless another is given.
        progress: is told the part that is done, from 0 to 1.
        seed: of the orders.
        policy: how long turns are, and what ratios tell.
    """
    meter = meter or clock
    with _TIMING_LOCK:
        began = clock()
        turns = [_Turn.for_run(run, meter, policy) for run in runs]
        found: list[list[float]] = [[] for _ in runs]
        drawn = random.Random(seed)
        start = clock()
        for number in range(1, schedule.rounds[1] + 1):
            for which in drawn.sample(range(len(runs)), len(runs)):
                found[which].append(turns[which].seconds(meter))
            passed = clock() - start
            if progress is not None:
                progress(schedule.progress(number, passed))
            if clock() - began > schedule.hard_limit or schedule.is_over(found, passed, policy):
                break
    return tuple(TimingSamples(tuple(samples)) for samples in found)


@dataclass(frozen=True)
class RaceTimes:
    """The times of runs that took turns with two sessions of one model, which tell the noise."""

    original: TimingSamples
    copy: TimingSamples | None
    """Times of the second session; None where there was none."""
    candidates: tuple[TimingSamples, ...]
    policy: TimingPolicy = TimingPolicy()

    @cached_property
    def noise(self) -> float:
        """How far apart the two sessions may be."""
        return self.policy.noise if self.copy is None else copy_noise(self.original, self.copy, self.policy)

    def speedups(self, over: TimingSamples | None = None) -> list[Speedup]:
        """Return how much faster each rival ran than the model, or than another rival."""
        before = self.original if over is None else over
        return [compute_speedup(before, after, self.noise, self.policy) for after in self.candidates]


def time_race(
    own: Callable[[], object],
    copy: Callable[[], object] | None,
    rivals: Sequence[Callable[[], object]],
    schedule: TimingSchedule,
    *,
    meter: Callable[[], float],
    policy: TimingPolicy,
    progress: Callable[[float], object] | None = None,
) -> RaceTimes:
    """Let rivals take turns with a model and a copy of it, as far as there is one: all timing that compares is this."""
    copies = [] if copy is None else [copy]
    found = time_interleaved([own, *copies, *rivals], schedule, meter=meter, progress=progress, policy=policy)
    others = found[1 + len(copies) :]
    return RaceTimes(found[0], found[1] if copies else None, others, policy)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a run does when it is its turn: some pieces that are timed, each of some runs."""

    run: Callable[[], object]
    warms_up: bool
    pieces: int = 1
    repeats: int = 1

    @staticmethod
    def for_run(run: Callable[[], object], meter: Callable[[], float], policy: TimingPolicy) -> _Turn:
        """Made for how long a run takes. The first two, which grow the memory arena, do not count.

        A run that takes long is not held up by that, and one of it has to do.
        """
        once = _seconds_per_run(run, meter)
        if once < policy.warm_run_seconds:
            run()
            once = max(_seconds_per_run(run, meter), 1e-7)
        if once >= policy.long_run_seconds:
            return _Turn(run, warms_up=False)
        repeats = math.ceil(policy.piece_seconds / once)
        return _Turn(run, True, math.ceil(policy.turn_seconds / (once * repeats)), repeats)

    def seconds(self, meter: Callable[[], float]) -> float:
        """Seconds of one run, in the fastest piece."""
        if self.warms_up:
            self.run()
        return min(_seconds_per_run(self.run, meter, self.repeats) for _ in range(self.pieces))


def min_timing_seconds(once: float, rounds: int, policy: TimingPolicy) -> float:
    """Return what a run that takes `once` needs in so many rounds, with what warms it up."""
    warming = once if once >= policy.warm_run_seconds else 3 * once
    return warming + rounds * (once if once >= policy.long_run_seconds else once + max(once, policy.turn_seconds))


def _seconds_per_run(run: Callable[[], object], meter: Callable[[], float], times: int = 1) -> float:
    """Seconds of one run, the mean of so many in a row."""
    start = meter()
    for _ in range(times):
        run()
    return (meter() - start) / times
