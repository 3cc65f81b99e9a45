"""Which sweeps are taken, in contests whose outcome is made up."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from graphopt.rewrite.candidates import Candidate
from graphopt.runtime.measure import Speedup
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.stopping import ModelPace, TimeBudget
from tests.test_choose import BOTH, POLICY, TIDY, TRADES, Case, Made, Ops, sure


def test_the_fastest_sweep_is_where_the_search_begins() -> None:
    case = Case(lambda ops: 1.5 if "Div" not in ops else 1.2 if "Sub" not in ops else 1.0)
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.rules for made in swept.sweeps] == [("quarter_is_product",)], "both together are no faster"
    assert case.changed == BOTH | {"quarter_is_product"}
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    swept = case.swept("quarter_is_product")
    best = case.choose(case.solutions[1:], swept.candidate)
    assert (best.sweeps, best.solutions) == (swept.sweeps, case.solutions[1:])
    assert case.changed == {rule.name for rule in (*TIDY, *TRADES)}


def test_sweeps_that_gain_are_made_one_after_the_other() -> None:
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product", "difference_is_sum"]
    assert case.changed == BOTH | {"difference_is_sum", "quarter_is_product"}


@pytest.mark.parametrize("interrupted", [False, True], ids=["in the race", "while they are made"])
def test_after_ctrl_c_sweeps_are_not_made_together(*, interrupted: bool) -> None:
    """And what was timed is not lost."""
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    if not interrupted:
        case.contest.budget.interrupt()
    swept = case.swept("difference_is_sum", "quarter_is_product", interrupted=interrupted)
    assert [made.name for made in swept.sweeps] == ["quarter_is_product"]
    assert len(case.contest.raced) == 3
    assert case.contest.budget.is_interrupted


def small(ops: Ops, sum_: float, product: float) -> float:
    """Two gains, one of which may be so small that one race cannot tell it."""
    return (product if "Div" not in ops else 1.0) * (sum_ if "Sub" not in ops else 1.0)


@pytest.mark.parametrize(
    ("sum_", "product", "expected"),
    [
        (1.008, 1.006, ["difference_is_sum", "quarter_is_product"]),
        (1.008, 1.001, []),
        (1.008, 0.99, []),
        (1.012, 1.1, ["quarter_is_product", "difference_is_sum"]),
        (1.001, 1.1, ["quarter_is_product"]),
    ],
)
def test_gains_too_small_for_a_race_are_told_together(sum_: float, product: float, expected: list[str]) -> None:
    case = Case(partial(small, sum_=sum_, product=product))
    assert [made.name for made in case.swept("difference_is_sum", "quarter_is_product").sweeps] == expected


def test_sweeps_do_not_count_as_tries() -> None:
    """What follows is tried as without them: the second of the finalists, where the first loses the second race."""

    def speed(ops: Ops, added: float) -> float:
        return (
            (1.5 if "Div" not in ops else 1.0)
            * (1.2 if "Sub" not in ops else 1.0)
            * (added if ops.get("Add", 0) > 1 else 1.0)
        )

    case = Case(partial(speed, added=1.1), partial(speed, added=0.3))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    best = case.choose(case.solutions[2:], swept.candidate)
    assert (best.sweeps, best.solutions) == (swept.sweeps, ())


def test_sweeps_that_are_in_the_way_of_others_are_left() -> None:
    """All of them are no faster than the best; with one of the others it is."""

    def speed(ops: Ops) -> float:
        others = ("Sub" not in ops, ops.get("Add", 0) > ("Sub" not in ops))
        if "Div" in ops:
            return 1.0 + 0.3 * others[0] + 0.2 * others[1]
        return 1.4 if others[0] else 1.8 if others[1] else 1.5

    case = Case(speed)
    swept = case.swept("difference_is_sum", "quarter_is_product", "double_is_sum")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product", "double_is_sum"]


@pytest.mark.parametrize(
    ("div", "seconds", "expected", "raced"),
    [(1.5, 15.0, 2, 2), (1.5, 6.1, 2, 2), (0.5, 7.0, 1, 5), (0.5, 6.9, 1, 4), (0.5, 5.9, 0, 0)],
)
def test_without_time_for_each_sweep_all_are_tried_together_first(
    div: float, seconds: float, expected: int, raced: int
) -> None:
    """Each by itself only where that is no gain, and only as many as leave time for a second race."""
    case = Case(lambda ops: (div if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, seconds, lambda: 0.0, ModelPace(0.0, 1.0, 100.0))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == ["difference_is_sum", "quarter_is_product"][:expected]
    assert len(case.contest.raced) == raced


@pytest.mark.parametrize(
    ("both", "expected"),
    [(1.8, ["quarter_is_product", "difference_is_sum"]), (1.4, ["quarter_is_product"])],
)
def test_without_time_for_a_race_of_each_those_that_promise_a_gain_are_combined(
    both: float, expected: list[str]
) -> None:
    """If that promises more than the best; what the kernels call slower is left. Nothing races until the choice."""

    def speed(ops: Ops) -> float:
        gain = {(True, False): 1.2, (False, True): 1.5, (True, True): both}.get(("Sub" not in ops, "Div" not in ops), 1)
        return gain * (0.5 if "Mul" not in ops else 1.0)

    case = Case(speed)
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product", "double_is_sum")
    assert ([made.name for made in swept.sweeps], case.contest.raced) == (expected, [])


def test_sweeps_that_kernels_tell_below_noise_do_not_race() -> None:
    case = Case(lambda ops: (1.004 if "Div" not in ops else 1.0) * (0.999 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert (swept.sweeps, case.contest.raced) == ((), [])


def test_where_all_together_promise_no_more_they_are_added_one_by_one() -> None:
    """One of three is in the way of another."""

    def speed(ops: Ops) -> float:
        is_sum, is_product = "Sub" not in ops, "Div" not in ops
        is_doubled = ops.get("Add", 0) > is_sum
        return (1.2 if is_sum else 1.0) * (1.5 if is_product else 1.0) * (0.6 if is_product else 1.1) ** is_doubled

    case = Case(speed)
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product", "double_is_sum")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product", "difference_is_sum"]


def test_where_a_promise_does_not_come_true_the_other_sweeps_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels said of one that it gains most and of both together that they gain less."""
    promised = {(False, True): 1.5, (True, False): 1.2, (True, True): 1.3}

    def estimate(contest: Made, candidate: Candidate, floor: Candidate) -> float:  # noqa: ARG001
        ops = candidate.graph.operator_counts()
        return promised["Sub" not in ops, "Div" not in ops]

    monkeypatch.setattr(Made, "estimate_gain", estimate)
    case = Case(lambda ops: 1.3 if "Sub" not in ops else 1.0)
    case.contest.budget = TimeBudget(POLICY, 300.0, lambda: 0.0, ModelPace(0.0, 2.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product"]
    best = case.choose([], swept.candidate)
    assert ([made.name for made in best.sweeps], best.is_faster) == (["difference_is_sum"], True)


@pytest.mark.parametrize(("once", "is_raced"), [(0.1, True), (2.0, False)])
def test_where_a_race_of_all_takes_long_kernels_tell_what_gains_though_there_is_time(
    once: float, is_raced: bool
) -> None:
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, 300.0, lambda: 0.0, ModelPace(0.0, once, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert sorted(made.name for made in swept.sweeps) == ["difference_is_sum", "quarter_is_product"]
    assert bool(case.contest.raced) is is_raced


@pytest.mark.parametrize(("at", "taken"), [(1, []), (2, ["difference_is_sum"]), (3, ["quarter_is_product"])])
def test_after_ctrl_c_in_a_profile_what_promises_most_until_then_is_left(
    monkeypatch: pytest.MonkeyPatch, at: int, taken: list[str]
) -> None:
    asked: list[Candidate] = []
    estimate = Made.estimate_gain

    def interrupted(contest: Made, candidate: Candidate, floor: Candidate) -> float:
        asked.append(candidate)
        if len(asked) == at:
            raise KeyboardInterrupt
        return estimate(contest, candidate, floor)

    monkeypatch.setattr(Made, "estimate_gain", interrupted)
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == taken
    assert case.contest.budget.is_interrupted and not case.contest.raced


def test_a_sweep_that_cannot_be_profiled_is_left_and_the_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = Made.estimate_gain

    def refused(contest: Made, candidate: Candidate, floor: Candidate) -> float | None:
        return None if "Sub" not in candidate.graph.operator_counts() else estimate(contest, candidate, floor)

    monkeypatch.setattr(Made, "estimate_gain", refused)
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert ([made.name for made in swept.sweeps], case.contest.raced) == (["quarter_is_product"], [])


def test_a_sweep_for_whose_profile_there_was_no_time_has_none_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is more time then, for the others' profiles are known: it would choose otherwise."""
    late: set[tuple[str, ...]] = set()
    now, pace = [0.0], [10.5, 0.0]
    estimate = Made.estimate_gain

    def slow(contest: Made, candidate: Candidate, floor: Candidate) -> float:
        now[0] += pace[0]
        return estimate(contest, candidate, floor)

    monkeypatch.setattr(Made, "estimate_gain", slow)
    monkeypatch.setattr(Made, "record_timeout", lambda _, keys: late.add(tuple(keys)))
    monkeypatch.setattr(Made, "had_timed_out", lambda _, keys: tuple(keys) in late)
    while pace:
        now[0] = 0.0
        case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
        case.contest.budget = TimeBudget(POLICY, 14.0, lambda: now[0], ModelPace(0.0, 1.0, run_seconds=0.1))
        swept = case.swept("difference_is_sum", "quarter_is_product")
        assert [made.name for made in swept.sweeps] == ["difference_is_sum"]
        pace.pop(0)


def test_without_an_estimate_from_kernels_all_sweeps_race_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on devices, where a kernel's time is that of its launch."""
    monkeypatch.setattr(Made, "estimate_gain", lambda *_: None)
    case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
    case.contest.budget = TimeBudget(POLICY, 14.0, lambda: 0.0, ModelPace(0.0, 1.0, run_seconds=0.1))
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert (len(swept.sweeps), len(case.contest.raced)) == (2, 2)


def test_where_there_was_time_for_a_race_of_each_sweep_there_is_in_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where there was none there is none, however fast the machine is then."""
    for first, second, raced in ((60.0, 15.0, 6), (15.0, 60.0, 2)):
        kept, races, ended = dict[str, list[RaceOutcome]](), list[int](), set[str]()

        def known(_: Made, keys: Sequence[str], kept: dict[str, list[RaceOutcome]] = kept) -> list[RaceOutcome] | None:
            return kept.get(str(keys))

        def end(_: Made, keys: Sequence[str], ended: set[str] = ended) -> None:
            ended.add(str(keys))

        def has_ended(_: Made, keys: Sequence[str], ended: set[str] = ended) -> bool:
            return str(keys) in ended

        monkeypatch.setattr(Made, "cached_outcomes", known)
        monkeypatch.setattr(Made, "record_timeout", end)
        monkeypatch.setattr(Made, "had_timed_out", has_ended)
        for seconds in (first, second):
            case = Case(lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0))
            race = case.contest.time_models

            def racing(keys: Sequence[str], *more: Any, race: Any = race, kept: Any = kept) -> list[RaceOutcome]:
                kept[str(keys)] = race(keys, *more)
                return list(kept[str(keys)])

            case.contest.time_models = racing  # type: ignore[method-assign, assignment]
            case.contest.budget = TimeBudget(POLICY, seconds, lambda: 0.0, ModelPace(0.0, 1.0, 100.0))
            swept = case.swept("difference_is_sum", "quarter_is_product")
            assert len(swept.sweeps) == 2
            races.append(len(case.contest.raced))
        assert races == [raced, 0]


def test_what_a_race_of_sweeps_told_is_not_asked_again() -> None:
    """All that is left to do is the second race, also where others took part in the first."""
    for names in (["quarter_is_product"], ["difference_is_sum", "quarter_is_product"]):
        case = Case(lambda ops: 1.5 if "Div" not in ops else 1.0)
        swept = case.swept(*names)
        assert case.choose([], swept.candidate).steps == swept.steps
        assert [heat for _, heat in case.contest.raced] == [1] * (1 + len(names)) + [2, 2]


def test_what_raced_with_a_version_that_does_not_open_is_known_without_it() -> None:
    case = Case(lambda ops: None if "Sub" not in ops else 1.5 if "Div" not in ops else 1.0)
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product"]
    case.choose([], swept.candidate)
    assert [heat for _, heat in case.contest.raced] == [1, 1, 2, 2]


def test_one_of_several_sweeps_may_win_where_all_of_them_lose_the_second_race() -> None:
    case = Case(
        lambda ops: (1.5 if "Div" not in ops else 1.0) * (1.2 if "Sub" not in ops else 1.0),
        lambda ops: (0.7 if "Sub" not in ops else 1.4) if "Div" not in ops else 1.0,
    )
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert len(swept.sweeps) == 2
    best = case.choose([], swept.candidate)
    assert [made.name for made in best.sweeps] == ["quarter_is_product"]
    assert best.speedup == sure(1.4)


def test_a_sweep_that_adds_nothing_beside_the_best_is_not_made() -> None:
    """The larger median of two that are not told apart is chance."""
    both = Speedup(minimum=1.5, median=1.51, low=1.49, high=1.53, rounds=15)
    case = Case(
        lambda ops: (both if "Sub" not in ops else 1.5) if "Div" not in ops else 1.2 if "Sub" not in ops else 1.0
    )
    swept = case.swept("difference_is_sum", "quarter_is_product")
    assert [made.name for made in swept.sweeps] == ["quarter_is_product"]


@pytest.mark.parametrize("speed", [0.9, 1.0])
def test_a_sweep_that_brings_nothing_is_undone(speed: float) -> None:
    case = Case(lambda ops: speed if "Div" not in ops else 1.1)
    assert case.swept("quarter_is_product").candidate is case.first
    assert case.changed == BOTH
