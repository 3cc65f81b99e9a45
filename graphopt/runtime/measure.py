"""Paired timing: runs take turns in one process, so that what disturbs one disturbs all.

An absolute time means nothing on a machine that does other work too; the ratio of two times of one round does. What
is left of the disturbance is seen where two copies of one model take turns, too: see `noise`.
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

NOISE = 0.02
"""Ratios nearer to 1 count as no difference: two sessions of one and the same model differ by up to this."""

QUIET = 0.04
"""Where two copies of one model may differ by more, the machine is too busy for a verdict that is to be kept."""

CONFIDENCE = 0.95
TURN = 0.01
"""Seconds that a turn lasts at least, for the switch costs something: short runs are repeated."""

FEWEST = 6
"""Rounds that say anything: of fewer no interval holds the median with that confidence."""

SLICE = 0.0005
"""Seconds of the shortest piece of a turn that is timed: long enough for the clock, and short enough that some piece of
a turn is not interrupted by other processes, which take a processor for a few milliseconds."""

LONG = 0.05
"""A run of this many seconds needs no warming up at each turn."""

LENGTHY = 0.5
"""Seconds of a first run that warms up enough."""

WIDTH = 0.01
"""An interval that is narrower, as a part of the ratio in it, leaves no doubt that more rounds could remove."""

# -- what was found ----------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What a comparison of two timings says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


@dataclass(frozen=True)
class Samples:
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
    """By the fastest run of each."""
    median: float
    """The median over the rounds of the ratio within the round."""
    low: float
    high: float
    """Between these the true median lies, with a confidence of `confidence`."""
    rounds: int
    confidence: float = CONFIDENCE
    noise: float = NOISE
    """Ratios nearer to 1 count as no difference: as far as two copies of one model may be apart."""

    def __post_init__(self) -> None:
        if not all(0 <= ratio < math.inf for ratio in (self.minimum, self.median, self.low, self.high, self.noise)):
            raise ValueError(f"nothing is that slow, or that fast: {self}")
        if self.low > self.high or self.rounds < 0 or not 0 < self.confidence < 1:
            raise ValueError(f"no timing ends with this: {self}")

    @property
    def verdict(self) -> Verdict:
        """Faster or slower only where the fastest runs, the medians and the interval say so, beyond noise."""
        if 0 < self.rounds < FEWEST:
            return Verdict.SAME
        if min(self.minimum, self.median) > 1 + self.noise and self.low > 1:
            return Verdict.FASTER
        if max(self.minimum, self.median) < 1 / (1 + self.noise) and self.high < 1:
            return Verdict.SLOWER
        return Verdict.SAME

    @property
    def is_steady(self) -> bool:
        """Whether the machine was quiet enough to rely on this another time."""
        return self.noise <= QUIET


def speedup(before: Samples, after: Samples, confidence: float = CONFIDENCE, noise: float = NOISE) -> Speedup:
    """How much faster `after` ran than `before`, from rounds in which both took a turn."""
    ratios = sorted(b / a for b, a in zip(before.seconds, after.seconds, strict=True))
    low, high = _median_interval(len(ratios), confidence)
    median = statistics.median(ratios)
    return Speedup(before.minimum / after.minimum, median, ratios[low], ratios[high], len(ratios), confidence, noise)


def noise(one: Samples, copy: Samples) -> float:
    """How far apart two copies of one model may be, which took turns: at least `NOISE`."""
    ratio = speedup(one, copy)
    return max(NOISE, ratio.high - 1, 1 / ratio.low - 1)


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


def together(ratios: Sequence[Speedup]) -> Speedup:
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

_ALONE = threading.RLock()
"""Held while something is timed: two timings would disturb each other."""


def interleaved(
    runs: Sequence[Callable[[], object]],
    *,
    seconds: float,
    rounds: tuple[int, int] = (7, 60),
    width: float | None = None,
    noise: float = 0.0,
    limit: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
    meter: Callable[[], float] | None = None,
    progress: Callable[[float], object] | None = None,
    seed: int = 0,
) -> tuple[Samples, ...]:
    """Time the runs in rounds in which each takes a turn, in an order that is drawn anew for each round.

    One thread times at a time.

    In an order that is fixed or rotates, each run would always follow the same one, and inherit its caches and clock.

    A turn repeats short runs for at least `TURN` seconds and counts the fastest, for other processes can only slow a
    run down. One run before that does not count: it fills the caches again and outlasts the threads of the session
    before, which spin for a while. Timing ends after `seconds`, or the most rounds, but not before the fewest; with
    `width` also as soon as each interval is narrow, or those of all pairs lie within the `noise`.

    Args:
        runs: what is timed.
        seconds: after which no further round begins.
        rounds: the fewest and the most.
        width: of the interval of each ratio to the first, or of the time of a run alone, as a part of it. It is the
            width that ends the timing and not the verdict: to stop at the first clear one would favour chance.
        noise: so far from 1 a ratio counts as no difference. To stop where the whole interval does favours only that.
        limit: seconds, with what warms the runs up, after which no further round begins even before the fewest.
        clock: seconds that pass.
        meter: seconds that a run is charged; those that pass unless another is given.
        progress: is told the part that is done, from 0 to 1.
        seed: of the orders.
    """
    meter = meter or clock
    with _ALONE:
        began = clock()
        turns = [_Turn.of(run, meter) for run in runs]
        found: list[list[float]] = [[] for _ in runs]
        drawn = random.Random(seed)
        fewest, most = rounds
        start = clock()
        for number in range(1, most + 1):
            for which in drawn.sample(range(len(runs)), len(runs)):
                found[which].append(turns[which].seconds(meter))
            passed = clock() - start
            if progress is not None:
                progress(min(1.0, max(number / most, min(number / fewest, passed / max(seconds, 1e-9)))))
            if clock() - began > limit or (number >= fewest and (passed > seconds or _are_told(found, width, noise))):
                break
    return tuple(Samples(tuple(samples)) for samples in found)


def _are_told(found: Sequence[Sequence[float]], width: float | None, noise: float) -> bool:
    """Return whether more rounds would tell no more than these: all ratios to the first have narrow intervals, or those
    of any two are within the noise."""
    if width is None:
        return False
    first, *others = all_ = [Samples(tuple(samples)) for samples in found]
    ratios = [speedup(first, other) for other in others] or [speedup(first, Samples((1.0,) * len(first.seconds)))]
    if all(ratio.high - ratio.low <= width * ratio.median for ratio in ratios):
        return True
    between = (speedup(*pair) for pair in combinations(all_, 2))
    return noise > 0 and all(ratio.high <= 1 + noise and ratio.low >= 1 / (1 + noise) for ratio in between)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a run does when it is its turn: some pieces that are timed, each of some runs."""

    run: Callable[[], object]
    warms_up: bool
    pieces: int = 1
    repeats: int = 1

    @staticmethod
    def of(run: Callable[[], object], meter: Callable[[], float]) -> _Turn:
        """Made for how long a run takes. The first two, which grow the memory arena, do not count.

        A run that takes long is not held up by that, and one of it has to do.
        """
        once = _metered(run, meter)
        if once < LENGTHY:
            run()
            once = max(_metered(run, meter), 1e-7)
        if once >= LONG:
            return _Turn(run, warms_up=False)
        repeats = math.ceil(SLICE / once)
        return _Turn(run, True, math.ceil(TURN / (once * repeats)), repeats)

    def seconds(self, meter: Callable[[], float]) -> float:
        """Seconds of one run, in the fastest piece."""
        if self.warms_up:
            self.run()
        return min(_metered(self.run, meter, self.repeats) for _ in range(self.pieces))


def least_seconds(once: float, rounds: int) -> float:
    """Return what a run that takes `once` needs in so many rounds, with what warms it up."""
    warming = once if once >= LENGTHY else 3 * once
    return warming + rounds * (once if once >= LONG else once + max(once, TURN))


def _metered(run: Callable[[], object], meter: Callable[[], float], times: int = 1) -> float:
    """Seconds of one run, the mean of so many in a row."""
    start = meter()
    for _ in range(times):
        run()
    return (meter() - start) / times
