"""Paired timing: runs take turns in one process, so that a disturbance hits all of them.

An absolute time means nothing on a machine that does other work, too; the ratio of two times of one round does. What
counts is the median of these ratios, with an interval that holds it whenever one looks, so that a timing may end when
it is narrow enough.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property


@dataclass(frozen=True)
class TimingPolicy:
    """Knobs of the timer, of `bench` and of races: they decide how runs are timed, and when two times differ."""

    noise: float = 0.01
    """Distance of a ratio from 1 up to which there is no difference. Rounds are independent of each other, but two
    sessions of one model differ: that which is opened second was 0.3 to 0.5 % faster in each of 60 races of 300 rounds,
    up to 0.6 %, so an interval has to lie farther from 1 than half of this."""
    confidence: float = 0.99
    """Probability that an interval holds the true median, at whatever round one looks."""
    futility_confidence: float = 0.8
    """The same for the interval that says of a candidate that it is no gain, and ends its rounds: a gain that is missed
    costs less than one that is none."""
    interval_width: float = 0.01
    """Width of an interval, as a part of the ratio in it, that more rounds need not narrow."""
    turn_seconds: float = 0.002
    """Least seconds of a turn: the switch to another session costs something, so short runs are repeated."""
    piece_seconds: float = 0.0005
    """Least seconds of the pieces of a turn that are timed: long enough for the clock, and short enough that other
    processes, which take a processor for a few milliseconds, do not interrupt each of them."""
    long_run_seconds: float = 0.005
    """Seconds of a run from which on it is not warmed up at each turn: caches are filled in a part of one."""
    warm_run_seconds: float = 0.1
    """Seconds of a first run from which on it has warmed up the session; of shorter ones two more are made."""
    calibration_seconds: float = 0.2
    """Seconds for each of the models by which a machine is calibrated."""
    calibration_rounds: tuple[int, int] = (7, 60)
    """Fewest and most rounds of these."""
    bench_rounds: tuple[int, int] = (11, 500)
    """Fewest and most rounds of `bench`."""
    busy_spread: float = 0.2
    """Distance between the quartiles of a model's times, or of ratios, as a part of the median, that only a busy
    machine causes: a tenth was seen of ratios on quiet ones, a third beside two busy loops."""
    profile_runs: int = 20
    """Runs of a profile: the clock of ONNX Runtime's profiler ticks in microseconds, so short kernels need many."""
    kernel_share_runs: int = 5
    """Runs from which the time share of heavy kernels is measured."""
    seconds_between_kernels: float = 1e-6
    """Seconds from the end of a kernel to the start of the next. A profile cannot tell: under it they are 6 to 10 µs,
    without it 0 to 3 µs were seen."""
    kernel_bias: float = 3e-6
    """Seconds by which a profile tells a kernel too long, if it takes that long: of a DenseNet with 960 kernels more
    whole runs gained 6.7 %, kernels 1 to 4 %."""
    profiler_seconds: float = 8e-6
    """Seconds that the profiler adds to a kernel, at most: of seven models they were 6 to 8 µs."""
    screening_runs: int = 2
    """Runs from which is told what kernels that differ gain: of a model of 170 ms a gain of 10.5 % was seen that is
    11 %, and gains of 0.2 to 5 % apart from it."""
    compared_bytes: int = 100_000_000
    """Bytes of a graph's weights up to which ONNX Runtime writes its optimized graph to a file, to be compared."""

    @property
    def least_visible_speedup(self) -> float:
        """The least speedup that a race can tell: more than two sessions of one model differ by."""
        return 1 + self.noise / 2


# -- what was found ----------------------------------------------------------------------------------------------------


class TimingVerdict(StrEnum):
    """Outcome of a comparison of two timings."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


CLOCK_TICK = 1e-6
"""Seconds that ONNX Runtime's profiler tells apart: no run is shorter, though its kernels may be told to take none."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernels of some runs of a model, by kind: operator and shapes."""

    counts: Mapping[str, int]
    """Kernels of the kind in one run."""
    seconds: Mapping[str, Sequence[float]]
    """Seconds in all kernels of the kind, one number a run, as if all were disturbed as the less disturbed half is."""
    interrupted: frozenset[int] = frozenset()
    """Runs, by number, of which kernels tell nothing, as others had the processor for a while."""

    def saved_seconds(self, other: KernelTimes) -> list[float]:
        """Return the seconds that another model saves in each run, by the kernels of which it has more or fewer.

        Those of which both have as many count as equally fast: their noise, which is most of a run's, is left out.
        """
        kinds = [kind for kind in {*self.counts, *other.counts} if self.counts.get(kind) != other.counts.get(kind)]
        changes = [times for kind in kinds if (times := self.seconds.get(kind))]
        changes += [[-each for each in times] for kind in kinds if (times := other.seconds.get(kind))]
        runs = min((len(times) for found in (self, other) for times in found.seconds.values()), default=0)
        return [sum(times[run] for times in changes) for run in range(runs)]

    def lasting_count(self, least: float) -> int:
        """Return how many kernels of one run take at least so many seconds."""
        times = self.fastest_run().seconds
        return sum(count for kind, count in self.counts.items() if times.get(kind, (0.0,))[0] >= least * max(count, 1))

    @property
    def seconds_by_operator(self) -> Mapping[str, float]:
        """Seconds of the fastest run in all kernels of an operator, the longest first."""
        found: defaultdict[str, float] = defaultdict(float)
        for kind, (seconds,) in self.fastest_run().seconds.items():
            found[kind.partition(" ")[0]] += seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def fastest_run(self) -> KernelTimes:
        """Return one run, with the least seconds of each kind, for other processes can only slow one down."""
        return KernelTimes(self.counts, {kind: (min(times),) for kind, times in self.seconds.items()})

    def speedup_of(self, other: KernelTimes) -> float:
        """Return how many times as fast another model runs, by the kernels of which it has more or fewer."""
        own, others = self.fastest_run(), other.fastest_run()
        whole = sum(seconds for (seconds,) in own.seconds.values())
        saved = sum(own.saved_seconds(others))
        return max(whole, CLOCK_TICK) / max(whole - saved, CLOCK_TICK)


@dataclass(frozen=True)
class TimingSamples:
    """Seconds of one run, one number a round."""

    seconds: tuple[float, ...]
    kernels: KernelTimes | None = None
    """Times of the kernels in each of the rounds, where the runs were profiled."""

    @cached_property
    def minimum(self) -> float:
        return min(self.seconds)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def without_profiler(self, policy: TimingPolicy) -> TimingSamples:
        """Return profiled runs without what the profiler adds to each kernel: a version of more kernels is not to pay
        for it. What lies outside of kernels beyond that stays."""
        if self.kernels is None:
            return self
        count = sum(self.kernels.counts.values())
        inside = sum(seconds for (seconds,) in self.kernels.fastest_run().seconds.values())
        outside = self.minimum - inside - count * policy.seconds_between_kernels
        added = min(max(outside, 0.0), count * policy.profiler_seconds)
        return replace(self, seconds=tuple(each - added for each in self.seconds))

    @cached_property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True, slots=True)
class Speedup:
    """Ratio of two timings: how many times as fast as the first the second is. Above 1 is faster."""

    minimum: float
    """Ratio of the fastest runs: of equal sessions they were seen to differ by 9 %, so no verdict asks for it."""
    median: float
    """The median over the rounds of the ratio within the round."""
    low: float
    high: float
    """Upper end of the interval in which the true median lies, with a confidence of `confidence`."""
    rounds: int
    confidence: float = TimingPolicy.confidence
    noise: float = TimingPolicy.noise
    """Ratios nearer to 1 count as no difference."""
    spread: float = 0.0
    """The distance between the quartiles of the ratios, as a part of the median."""
    is_by_kernels: bool = False
    """True where kernels that both models run count as equally fast, so that of a copy the ratio is 1 in each round, or
    where these say the same as whole runs, which gain less."""
    is_of_one_look: bool = False
    """True where it is told when all rounds are known, and not after each of them, so that fewer rounds tell it."""

    def __post_init__(self) -> None:
        if not all(
            0 <= ratio < math.inf for ratio in (self.minimum, self.median, self.low, self.high, self.noise, self.spread)
        ):
            raise ValueError(f"nothing is that slow, or that fast: {self}")
        if self.low > self.high or self.rounds < 0 or not 0 < self.confidence < 1:
            raise ValueError(f"no timing ends with this: {self}")

    @property
    def verdict(self) -> TimingVerdict:
        """Faster or slower only where the median is beyond noise, and the whole interval beyond what two sessions of
        one model differ by."""
        if self.has_too_few_rounds:
            return TimingVerdict.SAME
        if self.median > 1 + self.noise and self.is_surely_faster:
            return TimingVerdict.FASTER
        if self.median < 1 / (1 + self.noise) and self.high < 1 / (1 + self.noise / 2):
            return TimingVerdict.SLOWER
        return TimingVerdict.SAME

    @property
    def is_surely_faster(self) -> bool:
        """True where the whole interval is above what two sessions of one model differ by: half of the noise."""
        return self.low > 1 + self.noise / 2

    @property
    def has_too_few_rounds(self) -> bool:
        """True where no interval of so many rounds holds the median with this confidence: under 11 for 99 %, or under 8
        in one look."""
        return 0 < self.rounds < min_rounds(self.confidence, is_sequential=not self.is_of_one_look)

    @property
    def is_decided(self) -> bool:
        """True where it is known whether there is a difference: it is told, or all of the interval is within noise."""
        return self.verdict is not TimingVerdict.SAME or (self.is_equal and not self.has_too_few_rounds)

    @property
    def is_equal(self) -> bool:
        """True where all of the interval is within noise of 1."""
        return 1 / (1 + self.noise) <= self.low and self.high <= 1 + self.noise

    def is_steady(self, policy: TimingPolicy) -> bool:
        """Return whether this may be relied on another time: if anything is open, time ran out, and the machine was not
        busy."""
        return self.is_decided or self.spread <= policy.busy_spread


def compute_speedup(
    before: TimingSamples,
    after: TimingSamples,
    policy: TimingPolicy = TimingPolicy(),
    *,
    confidence: float | None = None,
    by_kernels_alone: bool = False,
) -> Speedup:
    """Return how much faster `after` ran than `before`, from the rounds in which both took a turn.

    Where the kernels of both were timed, those that differ tell, with what is between kernels, but no more than the
    whole runs allow, unless it is to be told `by_kernels_alone`: what lies above their interval does not count. Where
    all does, or the median of the whole runs says slower and that of the kernels faster, the whole runs tell. The
    `confidence` of the interval is the policy's unless another is given.
    """
    sure = policy.confidence if confidence is None else confidence
    if before.kernels is not None and after.kernels is not None:
        before, after = (each.without_profiler(policy) for each in (before, after))
    minimum = before.minimum / after.minimum
    whole = [b / a for b, a in zip(before.seconds, after.seconds, strict=False)]
    if before.kernels is None or after.kernels is None:
        return _speedup_from_ratios(minimum, whole, sure, policy.noise)
    found = _speedup_from_ratios(minimum, whole, sure, policy.noise, is_of_one_look=True)
    usual, interrupted = before.median, before.kernels.interrupted | after.kernels.interrupted
    saved_in_runs = enumerate(before.kernels.saved_seconds(after.kernels))
    savings = [saved for run, saved in saved_in_runs if run not in interrupted]
    if not savings or (interrupted and len(savings) < min_rounds(sure, is_sequential=False)):
        return found  # neither has any kernel, or few runs are left
    fewer = sum(before.kernels.counts.values()) - sum(after.kernels.counts.values())
    fewer_lasting = before.kernels.lasting_count(policy.kernel_bias) - after.kernels.lasting_count(policy.kernel_bias)
    saved_between = fewer * policy.seconds_between_kernels - max(fewer_lasting, 0) * policy.kernel_bias
    by_kernels = [usual / max(usual - saved - saved_between, after.minimum / 2) for saved in savings]
    told = _speedup_from_ratios(minimum, by_kernels, sure, policy.noise, is_of_one_look=True)
    if by_kernels_alone:
        return replace(told, is_by_kernels=True)
    if found.high < told.low or found.median < 1 < told.median:
        return replace(found, is_by_kernels=found.verdict is told.verdict)
    median, high = min(told.median, found.high), min(told.high, found.high)
    return replace(told, median=median, high=high, is_by_kernels=True)


def _speedup_from_ratios(
    minimum: float, ratios: Sequence[float], confidence: float, noise: float, *, is_of_one_look: bool = False
) -> Speedup:
    """Return the speedup whose median and interval those of the ratios are, one ratio a round."""
    ordered, median, spread = sorted(ratios), statistics.median(ratios), TimingSamples(tuple(ratios)).spread
    low, high = median_interval(len(ordered), confidence, is_sequential=not is_of_one_look)
    bounds = ordered[low], ordered[high]
    return Speedup(minimum, median, *bounds, len(ordered), confidence, noise, spread, is_of_one_look=is_of_one_look)


def median_interval(count: int, confidence: float, *, is_sequential: bool = True) -> tuple[int, int]:
    """Return the places, in a sorted sample, between which the median lies, whatever the distribution.

    The confidence holds at all counts at once, so one may look after each round and stop when the interval is narrow
    enough: a place is excluded where the sign test's likelihood ratio, mixed evenly over all alternatives, exceeds what
    a fair coin ever reaches with this probability (Robbins, "Statistical methods related to the law of the iterated
    logarithm", 1970; Howard and Ramdas, "Sequential estimation of quantiles", 2022). Where one looks only once, which
    is not `is_sequential`, the sign test itself gives a narrower one. A sample that is too small for the confidence
    (for 99 % under 11, or under 8) gives its least and its greatest.
    """
    place = 0
    while place < (count - 1) // 2 and _excludes(count, place + 1, confidence, is_sequential=is_sequential):
        place += 1
    return place, count - 1 - place


@cache
def min_rounds(confidence: float, *, is_sequential: bool = True) -> int:
    """Return the fewest rounds of which an interval holds the median with this confidence."""
    return next(count for count in itertools.count(1) if _excludes(count, 0, confidence, is_sequential=is_sequential))


@cache
def _excludes(count: int, fewer: int, confidence: float, *, is_sequential: bool) -> bool:
    """Return whether a number is not the median, where so many ratios, `fewer` than half, are below it."""
    if not is_sequential:
        beyond = sum(math.comb(count, below) for below in range(fewer + 1))
        return math.log2(beyond) + 1 - count <= math.log2(1 - confidence)
    return count - math.log2((count + 1) * math.comb(count, fewer)) >= -math.log2(1 - confidence)


def geometric_mean_speedup(ratios: Sequence[Speedup]) -> Speedup:
    """Return speedups at several sizes as one: geometric means, each size counting the same.

    So are the bounds: the interval is wider than it would have to be.
    """
    if len(ratios) == 1:
        return ratios[0]
    parts = zip(*((ratio.minimum, ratio.median, ratio.low, ratio.high) for ratio in ratios), strict=True)
    minimum, median, low, high = (math.exp(statistics.fmean(math.log(max(r, 1e-9)) for r in part)) for part in parts)
    rounds = min((ratio.rounds for ratio in ratios if ratio.rounds), default=0)  # a verdict needs enough at each size
    return replace(
        Speedup(minimum, median, low, high, rounds, ratios[0].confidence, ratios[0].noise),
        spread=max(ratio.spread for ratio in ratios),
        is_by_kernels=all(ratio.is_by_kernels for ratio in ratios),
        is_of_one_look=all(ratio.is_of_one_look for ratio in ratios),
    )


# -- turns -------------------------------------------------------------------------------------------------------------

_TIMING_LOCK = threading.RLock()
"""Held while something is timed: two timings would disturb each other."""


@dataclass(frozen=True, kw_only=True)
class TimingSchedule:
    """End of a timing: when runs that take turns have done so often enough."""

    seconds: float
    """Seconds after which no further round begins."""
    rounds: tuple[int, int]
    """The fewest, whatever time they take, and the most."""
    open_runs: Callable[[Sequence[TimingSamples]], Collection[int]] | None = None
    """Returns the places of the runs of which more rounds may tell more, by the times of all; none ends the timing.
    None where all runs take all rounds."""
    hard_limit: float = math.inf
    """Seconds, with what warms the runs up, after which no further round begins even before the fewest."""

    def progress(self, rounds: int, seconds: float) -> float:
        """Return the part that is done, from 0 to 1."""
        fewest, most = self.rounds
        return min(1.0, max(rounds / most, min(rounds / fewest, seconds / max(self.seconds, 1e-9))))

    def next_runs(self, found: Sequence[Sequence[float]], seconds: float) -> Collection[int]:
        """Return the places of the runs that take another turn after so many seconds."""
        rounds = max(map(len, found))
        if rounds < self.rounds[0]:
            return range(len(found))
        if rounds >= self.rounds[1] or seconds > self.seconds:
            return ()
        if self.open_runs is None:
            return range(len(found))
        return self.open_runs([TimingSamples(tuple(samples)) for samples in found])


@dataclass(frozen=True, slots=True)
class PreciseRatios:
    """Goes on until the ratio of each run to the first has a narrow interval, or the time of a run alone has."""

    policy: TimingPolicy

    def __call__(self, found: Sequence[TimingSamples]) -> Collection[int]:
        """Return the runs whose ratio is not known well enough, and the first."""
        first = found[0]
        if len(found) == 1:
            own = compute_speedup(first, TimingSamples((1.0,) * len(first.seconds)), self.policy)
            return [0] if self._is_wide(own) else []
        ratios = {place: compute_speedup(first, found[place], self.policy) for place in _running(found) if place}
        wide = [place for place, ratio in ratios.items() if self._is_wide(ratio)]
        return [0, *wide] if wide else []

    def _is_wide(self, ratio: Speedup) -> bool:
        return ratio.high - ratio.low > self.policy.interval_width * ratio.median


@dataclass(frozen=True, slots=True)
class FastestRun:
    """Goes on until it is known which run is the fastest, and whether it is faster than what it is to replace.

    Rounds go to what is undecided: a run takes no more of them when it is probably no gain, or slower than another one.
    """

    policy: TimingPolicy
    has_floor: bool = False
    """True where the second run is what the others are compared with, and is a candidate itself: the simplified model.
    Else it is the first."""
    tells_gains: bool = False
    """True where it is also to be known which of the others are gains, for they may be made together."""
    least_gain: float = 0.0
    """Gain, as a part of the time, below which nothing is gained: noise at least."""

    def __call__(self, found: Sequence[TimingSamples]) -> Collection[int]:
        """Return the rivals that may still win, and what they are compared with."""
        base, first_rival = (1, 2) if self.has_floor else (0, 1)
        able = [
            place
            for place in _running(found)
            if place >= first_rival and not self._is_probably_no_gain(found[base], found[place], self.least_gain)
        ]
        best = min(able, key=lambda place: found[place].median, default=base)
        able = [
            place
            for place in able
            if place == best
            or not self._is_probably_no_gain(found[best], found[place])
            or (self.tells_gains and not self._is_decided(found[base], found[place]))
        ]
        if able == [best] and self._is_decided(found[base], found[best]) and self._is_decided(found[0], found[best]):
            if self._is_faster(found[base], found[best]) and self._is_faster(found[0], found[best]):
                return []  # however fast the floor is
            able = []
        is_floor_open = self.has_floor and not self._is_decided(found[0], found[1])
        return [*range(first_rival), *able] if able or is_floor_open else []

    def _is_probably_no_gain(self, base: TimingSamples, rival: TimingSamples, least: float = 0.0) -> bool:
        """Return whether a run is probably faster than another by no more than that, or than noise."""
        probable = compute_speedup(base, rival, self.policy, confidence=self.policy.futility_confidence)
        return not probable.has_too_few_rounds and probable.high <= 1 + max(self.policy.noise, least)

    def _is_faster(self, before: TimingSamples, after: TimingSamples) -> bool:
        return compute_speedup(before, after, self.policy).verdict is TimingVerdict.FASTER

    def _is_decided(self, before: TimingSamples, after: TimingSamples) -> bool:
        """Return whether there is a difference, or probably none."""
        if compute_speedup(before, after, self.policy).is_decided:
            return True
        likely = replace(self.policy, noise=2 * self.policy.noise)
        probable = compute_speedup(before, after, likely, confidence=self.policy.futility_confidence)
        return probable.is_equal and not probable.has_too_few_rounds


@dataclass(frozen=True, slots=True)
class ClearDifference:
    """Goes on until each rival was faster in all rounds than what it is to replace, or slower, by more than a margin,
    and rounds agree to within the margin: kernels, which are looked at when all are run, need no more of them.

    That whole runs end a race does not make a gain of what is none: kernels tell it, and of a copy these are equal.
    """

    margin: float
    has_floor: bool
    """True where the second run is what the others are compared with, and no rival: the simplified model. Else it is
    the first."""

    def __call__(self, found: Sequence[TimingSamples]) -> Collection[int]:
        """Return all runs, or none."""
        is_beside_floor = self.has_floor and len(found) > 2
        base, *rivals = found[1:] if is_beside_floor else found
        verdicts = [self._clear_verdict(base, rival) for rival in rivals]
        has_end = TimingVerdict.SAME not in verdicts
        if is_beside_floor:  # if none wins, it is the floor that has to be told
            has_end &= TimingVerdict.FASTER in verdicts
        return () if has_end else range(len(found))

    def _clear_verdict(self, base: TimingSamples, rival: TimingSamples) -> TimingVerdict:
        ratios = [before / after for before, after in zip(base.seconds, rival.seconds, strict=True)]
        least, most, margin = min(ratios), max(ratios), 1 + self.margin
        if most >= margin * least:
            return TimingVerdict.SAME
        if least > margin:
            return TimingVerdict.FASTER
        return TimingVerdict.SLOWER if most * margin < 1 else TimingVerdict.SAME


def _running(found: Sequence[TimingSamples]) -> list[int]:
    """Return the places of the runs that took part in the last round: a run that has left does not come back."""
    rounds = max(len(samples.seconds) for samples in found)
    return [place for place, samples in enumerate(found) if len(samples.seconds) == rounds]


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

    In an order that is fixed or rotates, each run would always follow the same one, and inherit its caches and clock.
    One thread times at a time.

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
        policy: how long turns are.

    Returns:
        The times of each run, one a round, from the first round on: of those that left early there are fewer.
    """
    meter = meter or clock
    with _TIMING_LOCK:
        began = clock()
        turns = [_Turn.for_run(run, meter, policy) for run in runs]
        found: list[list[float]] = [[] for _ in runs]
        drawn = random.Random(seed)
        start = clock()
        able: Collection[int] = range(len(runs))
        while able:
            for which in drawn.sample(list(able), len(able)):
                found[which].append(turns[which].seconds(meter))
            passed = clock() - start
            if progress is not None:
                progress(schedule.progress(max(map(len, found)), passed))
            able = () if clock() - began > schedule.hard_limit else schedule.next_runs(found, passed)
    return tuple(TimingSamples(tuple(samples)) for samples in found)


@dataclass(frozen=True)
class RaceTimes:
    """The times of runs that took turns with a model."""

    original: TimingSamples
    candidates: tuple[TimingSamples, ...]
    policy: TimingPolicy = TimingPolicy()

    def speedups(self, over: TimingSamples | None = None, *, by_kernels_alone: bool = False) -> list[Speedup]:
        """Return how much faster each rival ran than the model, or than another rival."""
        before = self.original if over is None else over
        return [
            compute_speedup(before, after, self.policy, by_kernels_alone=by_kernels_alone) for after in self.candidates
        ]

    def without_kernels(self) -> RaceTimes:
        """Return the same without the times of kernels."""
        first, *others = (replace(samples, kernels=None) for samples in (self.original, *self.candidates))
        return replace(self, original=first, candidates=tuple(others))


def time_race(
    own: Callable[[], object],
    rivals: Sequence[Callable[[], object]],
    schedule: TimingSchedule,
    *,
    meter: Callable[[], float],
    policy: TimingPolicy,
    progress: Callable[[float], object] | None = None,
) -> RaceTimes:
    """Let rivals take turns with a model; every timing that compares goes through here."""
    first, *others = time_interleaved([own, *rivals], schedule, meter=meter, progress=progress, policy=policy)
    return RaceTimes(first, tuple(others), policy)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a run: some pieces that are timed, each of some repeats."""

    run: Callable[[], object]
    warms_up: bool
    pieces: int = 1
    repeats: int = 1

    @staticmethod
    def for_run(run: Callable[[], object], meter: Callable[[], float], policy: TimingPolicy) -> _Turn:
        """Return turns that suit how long a run takes. The first two runs, which grow the memory arena, do not count.

        A turn of a run that takes long is a single one, without a warm-up.
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
        """Return the seconds of one run, in the fastest piece."""
        if self.warms_up:
            self.run()
        return min(_seconds_per_run(self.run, meter, self.repeats) for _ in range(self.pieces))


def min_timing_seconds(once: float, rounds: int, policy: TimingPolicy) -> float:
    """Return the seconds that a run which takes `once` needs for so many rounds, warm-up included."""
    warming = once if once >= policy.warm_run_seconds else 3 * once
    return warming + rounds * (once if once >= policy.long_run_seconds else once + max(once, policy.turn_seconds))


def _seconds_per_run(run: Callable[[], object], meter: Callable[[], float], times: int = 1) -> float:
    """Return the seconds of one run, the mean of so many in a row."""
    start = meter()
    for _ in range(times):
        run()
    return (meter() - start) / times
