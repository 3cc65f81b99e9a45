"""What the time is for is a second race; on one alone only what leaves no doubt is taken, or returned as a gain."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from graphopt.io.onnx_io import LoadedModel
from graphopt.runtime.measure import Speedup, TimingPolicy, TimingVerdict
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.search_report import race_notes, rejection_reason, untimed_reason
from graphopt.search.stopping import ModelPace, TimeBudget
from tests.test_choose import BOTH, POLICY, Case, Made, Ops, Speed

SESSION = 1.0
"""Seconds of a session in the shortest race, as it was at the beginning."""


class Timed(Made):
    """A contest on a clock that is the test's; what is timed for too few rounds looks as it happens to."""

    def __init__(self, model: LoadedModel, speed: Speed, second: Speed | None, seconds: float, slowdown: float) -> None:
        super().__init__(model, speed, second)
        self.clock, self.slowdown = [0.0], slowdown
        """How many times as long all takes by now as at the beginning."""
        self.budget = TimeBudget(POLICY, seconds, lambda: self.now, ModelPace(0.0, SESSION))

    @property
    def now(self) -> float:
        return self.clock[0]

    def spend(self, seconds: float) -> None:
        self.clock[0] += seconds

    def time_models(self, keys: Sequence[str], sessions: Sequence[Speedup], *seconds: float) -> list[RaceOutcome]:
        once = (len(sessions) + 1) * self.slowdown * SESSION / 11
        wanted, limit = seconds
        rounds = int(min(max(11, wanted // once), limit // once))
        self.spend(max(rounds, 1) * once)
        found = super().time_models(keys, sessions)
        seen = [replace(outcome.speedup, rounds=rounds) for outcome in found]
        if rounds < 11:
            seen = [Speedup(0.64, 0.64, 0.64, 0.64, rounds=rounds) for _ in found]
        return [
            replace(outcome, speedup=ratio, gain=replace(outcome.gain, rounds=rounds))
            for outcome, ratio in zip(found, seen, strict=True)
        ]


def case(speed: Speed, second: Speed | None = None, *, seconds: float = 60.0, slowdown: float = 1.0) -> Case:
    """A case whose races take time."""
    made = Case(speed, second)
    made.contest = made.chooser.contest = Timed(made.model, speed, second, seconds, slowdown)
    return made


def found(ops: Ops, gain: float = 1.3) -> float:
    return gain if "Div" not in ops else 1.0


# -- there is time for the second race ---------------------------------------------------------------------------------


@pytest.mark.parametrize("slowdown", [1.0, 1.5, 2.0, 4.0, 5.0])
@pytest.mark.parametrize("seconds", [60.0, 90.0])
def test_a_plain_gain_is_confirmed_where_all_takes_longer_than_at_first(slowdown: float, seconds: float) -> None:
    """A session takes five seconds by then: three versions race with the original, and two of them again."""
    made = case(found, seconds=seconds, slowdown=slowdown)
    assert made.choose().solutions
    assert made.best.is_faster
    assert made.contest.raced[-1] == (1.3, 2)
    assert isinstance(made.contest, Timed)
    assert made.contest.now <= seconds


@pytest.mark.parametrize("seconds", [9.5, 11.0, 20.0, 40.0])
def test_a_plain_gain_is_confirmed_in_little_time(seconds: float) -> None:
    assert case(found, seconds=seconds).choose().is_faster


def test_a_plain_gain_of_a_sweep_is_confirmed() -> None:
    made = case(found, seconds=25.0)
    swept = made.swept("quarter_is_product")
    assert made.choose([], swept.candidate).sweeps
    assert made.best.is_faster


@pytest.mark.parametrize("seconds", [6.0, 6.5])
def test_where_not_all_versions_can_race_the_one_with_most_does(seconds: float) -> None:
    made = case(found, seconds=seconds)
    base = made.chooser.with_solutions(made.first, made.solutions[:1])
    assert made.choose(made.solutions[1:], base).is_faster
    assert [*made.best.candidate.causes] == [*made.solutions]
    assert [heat for _, heat in made.contest.raced] == [1, 1, 2, 2]


@pytest.mark.parametrize("seconds", [4.2, 5.0])
def test_where_time_is_left_for_two_races_of_the_simplified_model_alone_that_is_timed(seconds: float) -> None:
    made = case(lambda _: 1.3, seconds=seconds)
    assert made.choose().is_faster
    assert (made.best.solutions, made.changed) == ((), BOTH)
    assert [heat for _, heat in made.contest.raced] == [1, 2]


# -- there is none -----------------------------------------------------------------------------------------------------


def without_a_second(made: Case) -> Case:
    """Let the time be up after the first race."""
    contest, timed = made.contest, made.contest.time_models
    assert isinstance(contest, Timed)

    def timing(*args: object) -> list[RaceOutcome]:
        outcomes = timed(*args)  # type: ignore[arg-type]
        contest.spend(1000.0)
        return outcomes

    contest.time_models = timing  # type: ignore[method-assign, assignment]
    return made


def doubtful(median: float) -> Speedup:
    """A gain of which the interval begins within noise."""
    return Speedup(median, median, 1.007, median, 15)


def test_a_find_that_won_one_race_beyond_doubt_is_taken_and_that_is_told() -> None:
    made = without_a_second(case(found))
    best = made.choose()
    assert best.solutions
    assert best.is_faster
    assert list(race_notes(made.chooser.measurement_of(made.first), best)) == [
        "the gain is of one race: no time or memory was left for a second"
    ]


def test_a_find_that_may_have_been_lucky_is_not_taken_on_one_race_and_that_is_told() -> None:
    made = without_a_second(case(lambda ops: doubtful(1.3) if "Div" not in ops else 1.0))
    assert (made.choose().solutions, made.changed) == ((), BOTH)
    with_it = [found for found in made.chooser.measurements if found.solutions]
    assert rejection_reason(with_it, TimingPolicy(), is_faster=False).endswith("no time was left for a second race")


def test_a_simplified_model_that_won_one_race_beyond_doubt_is_a_gain() -> None:
    made = without_a_second(case(lambda _: 1.3))
    assert made.choose([]).steps == made.first.steps
    assert made.best.is_faster


def test_a_simplified_model_that_may_have_been_lucky_is_kept_and_no_gain() -> None:
    made = without_a_second(case(lambda _: doubtful(1.3)))
    assert made.choose([]).steps == made.first.steps
    assert made.best.speedup is None
    assert untimed_reason(made.chooser.measurement_of(made.first), made.best).startswith(
        "1.300 times as fast (1.007 to 1.300) as the original in one"
    )


@pytest.mark.parametrize("speed", [0.64, 0.9, 0.97])
def test_a_simplified_model_that_was_slower_in_one_race_is_not_returned(speed: float) -> None:
    made = without_a_second(case(lambda _: speed))
    best = made.choose([])
    assert (best.steps, best.speedup) == ((), None)
    assert dict(best.candidate.graph.vertices_and_nodes()) == made.original
    (note,) = race_notes(made.chooser.measurement_of(made.first), best)
    assert note == (
        f"the simplified model was slower in one race, and no time was left for a second, {speed:.3f} times as fast"
        f" ({speed:.3f} to {speed:.3f}) as the original; so the original is returned"
    )


@pytest.mark.parametrize(("first", "second"), [(0.64, 1.05), (1.05, 0.64)])
def test_a_simplified_model_that_is_slower_in_two_races_together_is_not_returned(first: float, second: float) -> None:
    assert case(lambda _: first, lambda _: second).choose([]).steps == ()


@pytest.mark.parametrize(("first", "second"), [(0.9, 1.5), (1.5, 0.9), (0.97, 1.1)])
def test_races_that_contradict_each_other_show_no_gain(first: float, second: float) -> None:
    best = case(lambda _: first, lambda _: second).choose([])
    assert best.steps
    assert not best.is_faster


@pytest.mark.parametrize("limit", [1.5, 4.0, 5.5])
def test_a_race_of_too_few_rounds_tells_nothing(limit: float) -> None:
    """What it measured would be 0.64 times as fast."""
    made = case(lambda _: 1.3, seconds=limit)
    best = made.choose([])
    assert best.steps == made.first.steps
    assert best.speedup is None or best.is_faster


def test_what_is_no_gain_over_the_original_in_one_race_is_none() -> None:
    """Twice the find is faster than the simplified model, and once faster than the original."""
    speeds = {1: (0.97, 1.01), 2: (0.97, 1.2)}
    first, second = (lambda ops, pair=pair: pair["Div" not in ops] for pair in speeds.values())
    best = case(first, second).choose()
    assert best.solutions
    assert best.speedup is not None
    assert (best.speedup.median, best.speedup.verdict) == (1.01, TimingVerdict.SAME)


# -- whatever is measured ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_sweep", [False, True])
@pytest.mark.parametrize(("gain", "taken"), [(1.0, False), (1.004, False), (1.007, True), (1.02, True)])
def test_a_find_is_taken_that_makes_a_gain_of_none(gain: float, *, taken: bool, as_sweep: bool) -> None:
    """Of the simplified model nothing is known, with the find it is faster than the original."""
    floor = 1 + 0.9 * TimingPolicy().noise
    made = Case(lambda ops: floor * gain if "Div" not in ops else floor)
    best = made.choose([], made.swept("quarter_is_product").candidate) if as_sweep else made.choose(made.solutions[:1])
    assert bool(best.sweeps or best.solutions) is taken
    if not taken:
        assert (best.steps, made.changed) == (made.first.steps, BOTH)


def drawn(seed: int) -> Callable[[Ops], Speedup]:
    """Speeds as they come on a machine on which nothing can be told."""
    rng = random.Random(seed)

    def speed(_: Ops) -> Speedup:
        median, width = rng.lognormvariate(0, 0.3), rng.choice([1.02, 1.1, 1.3])
        return Speedup(median * rng.uniform(0.9, 1.1), median, median / width, median * width, 15)

    return speed


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_measured_nothing_slower_is_returned_and_no_gain_on_one_race(seed: int) -> None:
    """It is the original, the simplified model as a whole, or one with finds that won twice."""
    made = case(drawn(seed), drawn(seed + 1000), seconds=random.Random(seed).uniform(3.0, 40.0))
    best = made.choose()
    assert not best.is_slower
    if best.is_faster or best.solutions:
        candidate = best.candidate
        again = [found for found in made.chooser.measurements if found.candidate is candidate and found.speedup]
        assert len(again) >= 2
        if best.is_faster:
            assert sum(found.is_faster for found in again) >= 2
        if best.solutions:
            assert all(found.gain is not None for found in again[-2:])
    simplified = {step.name for step in best.steps} >= {step.name for step in made.first.steps}
    assert simplified or not best.solutions


def test_a_profiled_race_takes_the_time_of_a_second_where_there_is_none_for_it() -> None:
    """A race of two and the original takes three sessions, the second one of one and the original as many."""

    def ends(seconds: float, *, is_profiled: bool) -> float:
        budget = TimeBudget(POLICY, seconds, lambda: 0.0, ModelPace(0.0, SESSION, is_profiled=is_profiled))
        assert budget.has_one_race(2) is (budget.race_end(2, is_first=True) == seconds)
        return budget.race_end(2, is_first=True)

    assert ends(7.0, is_profiled=True) == 7.0
    assert ends(7.0, is_profiled=False) == 3.5
    assert ends(10.0, is_profiled=True) == ends(10.0, is_profiled=False) == 5.0


def test_kernels_need_no_second_race() -> None:
    """Of a copy they never tell a gain, however few rounds there are."""
    made = case(found)
    (first, *_) = made.contest.race([made.first], 1.0)
    assert first.outcome is not None
    for ratio, is_enough in (
        (Speedup(1.2, 1.2, 1.1, 1.3, 8, is_by_kernels=True, is_of_one_look=True), True),
        (Speedup(1.2, 1.2, 1.1, 1.3, 11), False),
    ):
        assert (
            replace(first, outcome=replace(first.outcome, speedup=ratio, latencies=())).needs_no_second_race
            is is_enough
        )
