"""Statistics of paired timings, on clocks that are made up: nothing here depends on how fast the machine is."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from graphopt.runtime.measure import (
    ClearDifference,
    FastestRun,
    KernelTimes,
    PreciseRatios,
    TimingPolicy,
    TimingSamples,
    TimingSchedule,
    TimingVerdict,
    compute_speedup,
    median_interval,
    min_rounds,
    time_interleaved,
)


class Clock:
    """Time that passes only while something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def task(self, *seconds: float) -> Callable[[], None]:
        """A run that takes these times in turn, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def noisy(seconds: float, noise: float, seed: int, rounds: int = 31) -> TimingSamples:
    times = seconds * (1 + noise * np.random.default_rng(seed).standard_normal(rounds).clip(-2, 2))
    return TimingSamples(tuple(times.tolist()))


def test_warm_up_runs_do_not_count() -> None:
    clock = Clock()
    slow_at_first = clock.task(0.08, 0.08, 0.02)
    (samples,) = time_interleaved([slow_at_first], TimingSchedule(seconds=0, rounds=(3, 3)), clock=clock)
    assert samples.seconds == pytest.approx((0.02, 0.02, 0.02))


def test_a_lengthy_run_is_warmed_up_by_one() -> None:
    clock = Clock()
    (samples,) = time_interleaved([clock.task(3.0, 2.0)], TimingSchedule(seconds=0, rounds=(3, 3)), clock=clock)
    assert samples.seconds == pytest.approx((2.0, 2.0, 2.0))
    assert clock.now == pytest.approx(9.0)


def turns(rounds: int, seed: int) -> list[str]:
    """The order of three runs in each round."""
    clock = Clock()
    order: list[str] = []

    def run(name: str) -> Callable[[], None]:
        task = clock.task(1.0)

        def turn() -> None:
            order.append(name)
            task()

        return turn

    time_interleaved(
        [run(name) for name in "abc"], TimingSchedule(seconds=0, rounds=(rounds, rounds)), clock=clock, seed=seed
    )
    timed = "".join(order[3:])  # after a warm-up of each
    return [timed[place : place + 3] for place in range(0, len(timed), 3)]


def test_runs_take_turns_in_an_order_that_is_drawn_for_each_round() -> None:
    found = turns(600, seed=0)
    assert all(sorted(order) == ["a", "b", "c"] for order in found)
    pairs = Counter(itertools.pairwise("".join(found)))
    assert all(pairs[before, after] > 200 for before, after in itertools.permutations("abc", 2))
    assert turns(9, seed=0) == found[:9] != turns(9, seed=1)


def test_a_turn_counts_the_fastest_piece() -> None:
    """Now and then another process takes the processor for four milliseconds."""
    clock = Clock()
    disturbed = clock.task(*[0.001, 0.001, 0.001, 0.005, 0.001] * 1000)
    (samples,) = time_interleaved([disturbed], TimingSchedule(seconds=0, rounds=(9, 9)), clock=clock)
    assert samples.seconds == pytest.approx((0.001,) * 9)


def test_very_short_runs_are_timed_in_pieces_of_many() -> None:
    clock = Clock()
    asked: list[float] = []

    def meter() -> float:
        asked.append(clock())
        return asked[-1]

    (samples,) = time_interleaved(
        [clock.task(0.00001)], TimingSchedule(seconds=0, rounds=(1, 1)), clock=clock, meter=meter
    )
    assert samples.seconds == pytest.approx((0.00001,))
    pieces = [end - start for start, end in itertools.pairwise(asked[-8:])][::2]  # of the turn's four pieces
    assert min(pieces) == pytest.approx(0.0005, rel=0.01)


def test_what_others_take_is_not_charged() -> None:
    """The clock goes on while another process runs, the meter does not."""
    clock, used = Clock(), Clock()

    def run() -> None:
        used.now += 0.1
        clock.now += 0.3

    (samples,) = time_interleaved([run], TimingSchedule(seconds=3.5, rounds=(1, 50)), clock=clock, meter=used)
    assert samples.seconds == pytest.approx((0.1,) * 12)


def test_a_limit_ends_the_rounds_before_the_fewest() -> None:
    """What warms a run up takes its time, too."""
    clock = Clock()
    (samples,) = time_interleaved(
        [clock.task(1.0)], TimingSchedule(seconds=0, rounds=(7, 50), hard_limit=2.5), clock=clock
    )
    assert len(samples.seconds) == 2


def test_of_few_rounds_there_is_no_verdict() -> None:
    first, second = TimingSamples((2.0,) * 10), TimingSamples((1.0,) * 10)
    assert compute_speedup(first, second).verdict is TimingVerdict.SAME
    assert compute_speedup(TimingSamples((2.0,) * 11), TimingSamples((1.0,) * 11)).verdict is TimingVerdict.FASTER


@pytest.mark.parametrize(("confidence", "most"), [(0.99, 0.01), (0.95, 0.05), (0.8, 0.2)])
def test_the_interval_holds_the_median_at_whatever_round_one_looks(confidence: float, most: float) -> None:
    """Of 400 series of 200 rounds as many leave it at any time as the confidence says, at most."""
    signs = np.random.default_rng(0).random((400, 200)) < 0.5
    below, rounds = signs.cumsum(axis=1), range(1, 201)
    places = [median_interval(count, confidence)[0] for count in rounds]
    able = [not compute_speedup(*sampled(count), confidence=confidence).has_too_few_rounds for count in rounds]
    left = ((np.minimum(below, np.array(rounds) - below) <= np.array(places)) & np.array(able)).any(axis=1)
    assert 0 < left.mean() <= most


def sampled(count: int) -> tuple[TimingSamples, TimingSamples]:
    return TimingSamples((1.0,) * count), TimingSamples((1.0,) * count)


def test_a_difference_within_noise_is_none_however_sure() -> None:
    first, second = TimingSamples((1.009,) * 99), TimingSamples((1.0,) * 99)
    assert compute_speedup(first, second).verdict is TimingVerdict.SAME
    assert compute_speedup(second, first).verdict is TimingVerdict.SAME
    assert compute_speedup(first, second).is_decided


@pytest.mark.parametrize(("least", "verdict"), [(1.004, TimingVerdict.SAME), (1.006, TimingVerdict.FASTER)])
def test_two_sessions_of_one_model_are_not_told_apart(least: float, verdict: TimingVerdict) -> None:
    """One is a little faster in each round, and the median of a few has strayed beyond noise."""
    first, second = TimingSamples((1.012,) * 10 + (least,) * 4), TimingSamples((1.0,) * 14)
    found = compute_speedup(first, second)
    assert (found.median, found.low, found.verdict) == (1.012, least, verdict)
    assert (compute_speedup(second, first).verdict is TimingVerdict.SLOWER) is (verdict is TimingVerdict.FASTER)


def precise(width: float) -> PreciseRatios:
    return PreciseRatios(replace(TimingPolicy(), interval_width=width))


def race_of(*seconds: float, noise: float = 0.05, has_floor: bool = False, seed: int = 0) -> list[TimingSamples]:
    """A race in which the runs take these times, and the first is what they are to replace."""
    clock = Clock()
    runs = [jittering(clock, each, noise, seed + place) for place, each in enumerate(seconds)]
    schedule = TimingSchedule(seconds=1e9, rounds=(5, 300), open_runs=FastestRun(TimingPolicy(), has_floor, has_floor))
    return [*time_interleaved(runs, schedule, clock=clock)]


def test_rounds_go_to_what_may_be_the_fastest() -> None:
    own, slower, gains, fastest = (len(samples.seconds) for samples in race_of(1.0, 1.1, 0.81, 0.8))
    assert slower < gains <= fastest == own < 100, "what is slower leaves first, and the race ends when one has won"


def test_a_race_of_equals_ends_without_a_winner() -> None:
    races = [race_of(1.0, 1.0, seed=seed) for seed in range(0, 40, 2)]
    verdicts = Counter(compute_speedup(own, other).verdict for own, other in races)
    assert verdicts[TimingVerdict.SAME] >= 19
    assert sum(len(own.seconds) for own, _ in races) < 20 * 200


def test_beside_a_floor_each_gain_is_told() -> None:
    _, floor, better, best = race_of(1.0, 1.0, 0.95, 0.9, has_floor=True)
    assert compute_speedup(floor, better).verdict is compute_speedup(floor, best).verdict is TimingVerdict.FASTER


def test_no_rounds_go_to_a_floor_that_is_beaten() -> None:
    """The floor is hardly faster than the original, which takes many rounds to tell."""
    races = [race_of(1.0, 0.985, 0.8, has_floor=True, seed=seed) for seed in range(10)]
    assert all(len(own.seconds) < 20 for own, *_ in races)
    assert all(compute_speedup(floor, best).verdict is TimingVerdict.FASTER for _, floor, best in races)


def test_short_runs_are_repeated() -> None:
    clock = Clock()
    calls = 0
    tick = clock.task(0.001)

    def run() -> None:
        nonlocal calls
        calls += 1
        tick()

    (samples,) = time_interleaved([run], TimingSchedule(seconds=0, rounds=(1, 1)), clock=clock)
    assert samples.seconds == pytest.approx((0.001,))
    assert calls == 3 + 1 + 2  # a turn lasts two milliseconds


def test_rounds_end_with_the_seconds_but_not_before_the_fewest() -> None:
    clock = Clock()
    (few,) = time_interleaved([clock.task(1.0)], TimingSchedule(seconds=0, rounds=(5, 50)), clock=clock)
    (timed,) = time_interleaved([clock.task(1.0)], TimingSchedule(seconds=19.5, rounds=(5, 50)), clock=clock)
    assert (len(few.seconds), len(timed.seconds)) == (5, 20)


def jittering(clock: Clock, seconds: float, noise: float, seed: int) -> Callable[[], None]:
    factors = 1 + noise * np.random.default_rng(seed).uniform(-1, 1, 10_000)
    return clock.task(*(seconds * factors).tolist())


def test_rounds_end_early_when_the_ratios_are_certain() -> None:
    clock = Clock()
    steady = [clock.task(1.1), clock.task(1.0)]
    (certain, _) = time_interleaved(
        steady, TimingSchedule(seconds=1e9, rounds=(7, 50), open_runs=precise(0.01)), clock=clock
    )
    (all_, _) = time_interleaved(steady, TimingSchedule(seconds=1e9, rounds=(7, 50)), clock=clock)
    assert (len(certain.seconds), len(all_.seconds)) == (7, 50)


@pytest.mark.parametrize(
    ("seconds", "noise", "rounds"),
    [
        ((1.0, 1.0, 0.9), 0.01, 8),
        ((1.0, 0.9), 0.01, 8),
        ((1.0, 1.0, 1.2), 0.01, 15),
        ((1.0, 1.0, 1.2, 0.9), 0.01, 8),
        ((1.0, 1.2), 0.01, 8),
        ((1.0, 1.0, 0.97), 0.01, 15),
        ((1.0, 0.9, 0.9), 0.01, 15),
        ((1.0, 0.9, 0.8, 0.89), 0.01, 15),
        ((1.0, 0.7), 0.1, 15),
    ],
)
def test_rounds_end_early_where_each_shows_a_difference_and_they_agree(
    seconds: tuple[float, ...], noise: float, rounds: int
) -> None:
    """Rivals are compared with the simplified model, which is the second run; without others it is itself the rival,
    and where none of them wins it has to be told."""
    clock = Clock()
    runs = [jittering(clock, each, noise, place) for place, each in enumerate(seconds)]
    clear = ClearDifference(0.05, has_floor=True)
    schedule = TimingSchedule(seconds=1e9, rounds=(8, 15), open_runs=clear)
    assert [len(each.seconds) for each in time_interleaved(runs, schedule, clock=clock)] == [rounds] * len(seconds)


@pytest.mark.parametrize(("rivals", "rounds"), [((0.99, 0.9), 15), ((0.99,), 15), ((0.9, 1.1), 8), ((0.9,), 8)])
def test_without_a_simplified_model_rivals_are_compared_with_the_original(
    rivals: tuple[float, ...], rounds: int
) -> None:
    clock = Clock()
    runs = [clock.task(each) for each in (1.0, *rivals)]
    schedule = TimingSchedule(seconds=1e9, rounds=(8, 15), open_runs=ClearDifference(0.05, has_floor=False))
    assert [len(each.seconds) for each in time_interleaved(runs, schedule, clock=clock)] == [rounds] * len(runs)


def test_rounds_go_on_until_the_ratios_are_certain() -> None:
    clock = Clock()
    noisy_runs = [jittering(clock, 1.1, 0.1, 0), jittering(clock, 1.0, 0.1, 1)]
    some, other = time_interleaved(
        noisy_runs, TimingSchedule(seconds=1e9, rounds=(11, 400), open_runs=precise(0.06)), clock=clock
    )
    found = compute_speedup(some, other)
    assert 11 < found.rounds < 400
    assert found.high - found.low <= 0.06 * found.median
    assert found.low < 1.1 < found.high
    (few, _) = time_interleaved(
        noisy_runs, TimingSchedule(seconds=20, rounds=(11, 400), open_runs=precise(0.0001)), clock=clock
    )
    assert len(few.seconds) == 11  # of two seconds and a bit each


@pytest.mark.parametrize(("seconds", "rounds"), [(1.1, 5), (1.0, 60), (0.99, 300), (0.9, 11)])
def test_rounds_go_on_only_where_a_gain_may_be_told(seconds: float, rounds: int) -> None:
    assert len(race_of(1.0, seconds, noise=0.02)[0].seconds) <= rounds


def test_a_run_alone_ends_when_its_time_is_certain() -> None:
    clock = Clock()
    (steady,) = time_interleaved(
        [clock.task(1.0)], TimingSchedule(seconds=1e9, rounds=(7, 50), open_runs=precise(0.01)), clock=clock
    )
    (shaky,) = time_interleaved(
        [jittering(clock, 1.0, 0.5, 0)],
        TimingSchedule(seconds=1e9, rounds=(7, 50), open_runs=precise(0.01)),
        clock=clock,
    )
    assert (len(steady.seconds), len(shaky.seconds)) == (7, 50)


def test_progress_is_told_in_parts_of_one() -> None:
    clock = Clock()
    told: list[float] = []
    time_interleaved([clock.task(1.0)], TimingSchedule(seconds=3.5, rounds=(2, 50)), clock=clock, progress=told.append)
    assert told == pytest.approx([1 / 3.5, 2 / 3.5, 3 / 3.5, 1.0])


def test_a_tenth_faster_is_faster_under_a_tenth_of_noise() -> None:
    found = compute_speedup(noisy(1.1, 0.05, 0), noisy(1.0, 0.05, 1))
    assert found.verdict is TimingVerdict.FASTER
    assert found.low < found.median < found.high


def test_the_other_way_round_is_slower() -> None:
    assert compute_speedup(noisy(1.0, 0.05, 1), noisy(1.1, 0.05, 0)).verdict is TimingVerdict.SLOWER


def test_a_difference_within_noise_is_none() -> None:
    assert compute_speedup(noisy(1.01, 0.0, 0), noisy(1.0, 0.0, 1)).verdict is TimingVerdict.SAME
    assert compute_speedup(noisy(1.05, 0.3, 2), noisy(1.0, 0.3, 3)).verdict is TimingVerdict.SAME


def test_equal_models_are_hardly_ever_called_faster() -> None:
    found = [compute_speedup(noisy(1.0, 0.1, 2 * i), noisy(1.0, 0.1, 2 * i + 1)).verdict for i in range(200)]
    assert found.count(TimingVerdict.SAME) >= 190


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    found = [compute_speedup(noisy(1.2, 0.1, 2 * i), noisy(1.0, 0.1, 2 * i + 1)) for i in range(300)]
    assert sum(s.low <= 1.2 <= s.high for s in found) / len(found) > 0.93


def test_few_rounds_give_their_least_and_greatest() -> None:
    found = compute_speedup(TimingSamples((1.0, 1.1, 1.2)), TimingSamples((1.0, 1.0, 1.0)))
    assert (found.low, found.high) == (1.0, 1.2)


def profiled(seconds: Sequence[float], counts: Mapping[str, int], **kernels: Sequence[float]) -> TimingSamples:
    """Runs of which the times of some kernels are known."""
    return TimingSamples(tuple(seconds), KernelTimes(counts, kernels))


def test_kernels_that_differ_tell_what_is_lost_in_the_noise_of_whole_runs() -> None:
    """A tenth of a run of ten seconds takes half as long, beside noise of three seconds."""
    noise = np.random.default_rng(0).uniform(-3, 3, (2, 12))
    before = profiled(10 + noise[0], {"Gemm": 9, "Add": 1}, Gemm=9 + noise[0], Add=[1.0] * 12)
    after = profiled(9.5 + noise[1], {"Gemm": 9, "Mul": 1}, Gemm=9 + noise[1], Mul=[0.5] * 12)
    whole = compute_speedup(replace(before, kernels=None), after)
    assert whole.verdict is TimingVerdict.SAME
    assert not whole.is_by_kernels
    found = compute_speedup(before, after)
    assert found.is_by_kernels
    assert found.low == found.median == found.high == pytest.approx(before.median / (before.median - 0.5))
    assert compute_speedup(before, before).median == compute_speedup(before, before).high == 1


def test_kernels_are_not_believed_where_whole_runs_contradict_them() -> None:
    before = profiled([10.0] * 12, {"Gemm": 1, "Add": 1}, Gemm=[9.0] * 12, Add=[1.0] * 12)
    after = profiled([11.0] * 12, {"Gemm": 1}, Gemm=[11.0] * 12)
    found = compute_speedup(before, after)
    assert not found.is_by_kernels
    assert found.verdict is TimingVerdict.SLOWER


@pytest.mark.parametrize(("usual", "median", "verdict"), [(9.9, 1.045, "faster"), (10.4, 10 / 10.4, "no difference")])
def test_of_what_kernels_tell_no_more_counts_than_whole_runs_allow(usual: float, median: float, verdict: str) -> None:
    """Kernels gain 4 to 6 %, whole runs, which noise has made slower, 4.5 % at most, and nothing where they are slower
    as a rule."""
    before = profiled([10.0] * 8, {"Add": 1}, Add=[1.0] * 8)
    rounds = [10 / 1.045, *[usual] * 7]
    after = profiled(rounds, {"Mul": 1}, Mul=[1 - 10 * (1 - 1 / ratio) for ratio in np.linspace(1.04, 1.06, 8)])
    found = compute_speedup(before, after)
    assert found.median == pytest.approx(median, rel=1e-4)
    assert found.high == pytest.approx(1.045, rel=1e-4)
    assert found.verdict == verdict


@pytest.mark.parametrize(("interrupted", "ratio"), [({0, 1}, 1.25), ({0, 1, 2, 3, 4}, 1.0)])
def test_runs_in_which_others_had_the_processor_tell_nothing_of_kernels(interrupted: set[int], ratio: float) -> None:
    """Where fewer than eight of twelve are left, whole runs tell, which is by processor time: here no difference."""
    before = profiled([10.0] * 12, {"Add": 1}, Add=[4.0] * 12)
    after = profiled([10.0] * 12, {"Mul": 1}, Mul=[9.0 if run in interrupted else 2.0 for run in range(12)])
    assert after.kernels is not None
    after = replace(after, kernels=replace(after.kernels, interrupted=frozenset(interrupted)))
    found = compute_speedup(before, after, by_kernels_alone=True)
    assert (found.low, found.median, found.high) == pytest.approx((ratio, ratio, ratio))
    assert found.is_by_kernels == (ratio > 1)


def test_kernels_that_vanish_are_not_saved_in_full() -> None:
    """A profile tells each three microseconds too long; those that take less, at most as long as they take."""
    before = profiled(
        [1e-2] * 8, {"Gemm": 1, "Add": 50, "Reshape": 9}, Gemm=[8e-3] * 8, Add=[1e-3] * 8, Reshape=[0.0] * 8
    )
    after = profiled([8.9e-3] * 8, {"Gemm": 1, "Reshape": 9}, Gemm=[8e-3] * 8, Reshape=[0.0] * 8)
    policy = TimingPolicy(profiler_seconds=0.0)
    saved = 1e-3 + 50 * (policy.seconds_between_kernels - policy.kernel_bias)
    assert compute_speedup(before, after, policy).median == pytest.approx(1e-2 / (1e-2 - saved))


@pytest.mark.parametrize(("seconds", "ratio"), [(9.0, 10 / 9.5), (9.6, 10 / 9.6)])
def test_where_kernels_and_whole_runs_say_that_a_model_is_faster_the_smaller_gain_counts(
    seconds: float, ratio: float
) -> None:
    """On a quiet machine the runs differ by less than what a profiler adds to them; eight of them tell a gain."""
    before = profiled([10.0] * 8, {"Gemm": 1, "Add": 1}, Gemm=[9.0] * 8, Add=[1.0] * 8)
    after = profiled([seconds] * 8, {"Gemm": 1, "Sum": 1}, Gemm=[9.0] * 8, Sum=[0.5] * 8)
    found = compute_speedup(before, after)
    assert found.median == pytest.approx(ratio, rel=1e-5)
    assert found.verdict is TimingVerdict.FASTER
    assert found.is_by_kernels


def test_fewer_kernels_save_what_is_between_them() -> None:
    before = profiled([9.22e-4] * 12, {"Gemm": 1, "Reshape": 21}, Gemm=[9e-4] * 12, Reshape=[0.0] * 12)
    after = profiled([9.02e-4] * 12, {"Gemm": 1, "Reshape": 1}, Gemm=[9e-4] * 12, Reshape=[0.0] * 12)
    assert compute_speedup(before, after).median == pytest.approx(922 / 902)


def test_what_the_profiler_adds_to_each_kernel_is_left_out() -> None:
    """Two kernels become ninety that take half of the time; the profiler adds eight microseconds to each."""
    before = profiled([2.018e-3] * 12, {"Gemm": 2}, Gemm=[2e-3] * 12)
    after = profiled([1.81e-3] * 12, {"Conv": 90}, Conv=[1e-3] * 12)
    found = compute_speedup(before, after)
    assert found.median == pytest.approx(2.002 / 1.09)
    assert found.is_by_kernels


def test_fewer_rounds_tell_something_where_one_looks_only_at_their_end() -> None:
    assert [min_rounds(0.99), min_rounds(0.99, is_sequential=False)] == [11, 8]
    assert [median_interval(40, 0.99), median_interval(40, 0.99, is_sequential=False)] == [(8, 31), (11, 28)]
    before = profiled([10.0] * 8, {"Add": 1}, Add=[1.0] * 8)
    after = profiled([9.5] * 8, {"Mul": 1}, Mul=[0.5] * 8)
    assert compute_speedup(before, after).verdict is TimingVerdict.FASTER
    assert compute_speedup(replace(before, kernels=None), after).has_too_few_rounds
