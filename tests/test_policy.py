"""What a search decides by is one value that is passed on, and when it stops is in one place."""

import ast
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest

import graphopt
from graphopt.rewrite.regions import BlockSizes
from graphopt.runtime.cost_model import NoTimeToMeasureError, NotMeasurableError, TemporarilyNotMeasurableError
from graphopt.runtime.measure import TimingPolicy
from graphopt.search.policy import RecomputationPolicy, SearchPolicy
from graphopt.search.stopping import ModelPace, RegionStop, SearchStop, StopReason, TimeBudget
from tests.test_search import DETOUR, LONG_WAY, Prices, found

HOME = Path(graphopt.__file__).parent
POLICY = SearchPolicy()
DECIDING = [*(HOME / "search").glob("*.py"), *(HOME / "runtime" / name for name in ("measure.py", "bench.py"))]
STRUCTURAL = {"CLOCK_TICK", "MEGABYTE", "ORIGINAL_SESSIONS", "RECIPE_VERSION"}
"""Numbers that follow from how a race is built or what a clock tells, or name a form: to change them is wrong."""


def constants(path: Path) -> Iterator[str]:
    """Yield the names in a module that stand for numbers."""
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                yield from [name] * isinstance(value, int | float)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=[ast.Constant(value=value), *_])):
                yield from [name] * isinstance(value, int | float)


@pytest.mark.parametrize("path", DECIDING, ids=lambda path: path.stem)
def test_no_number_that_a_search_decides_by_is_a_constant_of_a_module(path: Path) -> None:
    costs = {"ASSUMED_SIZE", "_DEPTHWISE_SLOWDOWN", "_SCATTERED_SLOWDOWN"}  # what things cost is no policy
    known = {*costs, "MAX_KNOWN_NODES"} if path.stem == "analytic_cost" else STRUCTURAL
    assert set(constants(path)) <= known


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (SearchPolicy, "search/policy.py"),
        (RecomputationPolicy, "search/policy.py"),
        (TimingPolicy, "runtime/measure.py"),
        (BlockSizes, "rewrite/regions.py"),
    ],
)
def test_each_field_of_a_policy_says_what_it_is(kind: type, path: str) -> None:
    classes = (node for node in ast.parse((HOME / path).read_text()).body if isinstance(node, ast.ClassDef))
    (body,) = (node.body for node in classes if node.name == kind.__name__)
    said = {
        first.target.id
        for first, second in pairwise(body)
        if isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name) and isinstance(second, ast.Expr)
    }
    assert said == {field.name for field in fields(kind)}


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_another_policy_is_another_search() -> None:
    prices = Prices(Mul=2, Add=4, Sub=0.2, Neg=0.2)
    assert found(DETOUR, LONG_WAY, prices)[1].solutions
    assert not found(DETOUR, LONG_WAY, prices, SearchPolicy(states=2))[1].solutions


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_first_race_leaves_the_time_of_a_second(count: int) -> None:
    """Of a session each: two of the original, the simplified model and the best of the others."""
    budget = TimeBudget(POLICY, 60.0, lambda: 0.0, ModelPace(0.5, 1.5))
    second = 2 + min(count, 2)
    assert budget.seconds_until(budget.race_end(count, is_first=True)) <= 60 - 2.0 * second
    assert budget.race_end(count, is_first=False) == budget.deadline == 60


def test_a_profile_opens_a_session_for_each_size() -> None:
    """Of two models at three sizes: six sessions, and three runs at each size; a race and a second one are left."""
    needed = 2 * (3 * 0.5 + 3 * 0.1) + (3 + POLICY.confirming_sessions) * (0.5 + 1.5)
    for seconds, is_time in ((needed + 0.01, True), (needed - 0.01, False)):
        budget = TimeBudget(POLICY, seconds, lambda: 0.0, ModelPace(0.5, 1.5, 0.1, 3))
        assert budget.is_time_to_profile(2) == is_time


def test_after_an_interrupt_nothing_is_begun_and_nothing_is_cut() -> None:
    budget = TimeBudget(POLICY, 60.0, lambda: 0.0, ModelPace(0.5, 1.5))
    assert not budget.is_over(budget.reserved_seconds) and budget.is_over(61)
    budget.interrupt()
    assert budget.is_over() and budget.remaining == math.inf
    assert budget.race_seconds(3, share=0.5) == 0


@pytest.mark.parametrize(
    ("error", "is_waiting", "reason"),
    [
        (None, False, StopReason.DONE),
        (None, True, StopReason.TIME),
        (NotMeasurableError(), False, StopReason.DONE),
        (TemporarilyNotMeasurableError(), False, StopReason.ROOM),
        (NoTimeToMeasureError(), False, StopReason.TIME),
    ],
)
def test_a_search_says_why_it_stopped(
    error: NotMeasurableError | None, *, is_waiting: bool, reason: StopReason
) -> None:
    stop = SearchStop(POLICY, 10.0, lambda: 0.0)
    if error is not None:
        stop.record_refusal(error)
    assert stop.reason(is_waiting=is_waiting) is reason
    stop.is_interrupted = True
    assert stop.reason(is_waiting=is_waiting) is StopReason.INTERRUPTED


def test_a_small_part_has_its_turn_too() -> None:
    stop = SearchStop(replace(POLICY, min_turn_share=0.1), 10.0, lambda: 0.0)
    assert [stop.turn_end(share) for share in (0.001, 0.5, 1.0)] == [1.0, 5.0, 10.0]


def test_a_part_is_left_after_rounds_that_bring_nothing() -> None:
    stop = RegionStop(replace(POLICY, max_idle_rounds=2))
    rounds = [(False, True), (True, True), (False, True), (False, True)]
    assert [stop.is_done(is_better=better, is_left=left) for better, left in rounds] == [False, False, False, True]
    assert RegionStop(POLICY).is_done(is_better=True, is_left=False)


@pytest.mark.parametrize(("seconds", "versions"), [(9.2, 2), (9.0, 1), (7.0, 0)])
def test_several_versions_race_only_where_there_is_ample_time(seconds: float, versions: int) -> None:
    """A session takes a second; two races of two versions are estimated to take seven."""
    budget = TimeBudget(SearchPolicy(), seconds, lambda: 0.0, ModelPace(0.0, 1.0))
    assert [count for count in (1, 2, 3) if budget.has_ample_time(count)] == [*range(1, versions + 1)]


@pytest.mark.parametrize(
    ("seconds", "is_profiled", "end"),
    [(40.0, False, 0.6 * 34), (40.0, True, 0.6 * 37), (6.0, False, 0.0), (6.0, True, 0.6 * 3), (3.0, True, 0.0)],
)
def test_single_sweeps_are_profiled_in_a_part_of_what_races_leave(
    seconds: float, end: float, *, is_profiled: bool
) -> None:
    """Two races of three sessions each, or one that is profiled."""
    budget = TimeBudget(SearchPolicy(), seconds, lambda: 0.0, ModelPace(0.0, 1.0, is_profiled=is_profiled))
    assert budget.screening_end == pytest.approx(end)


def test_the_search_leaves_the_time_of_two_races_or_of_one_that_is_profiled() -> None:
    budget = TimeBudget(SearchPolicy(), 60.0, lambda: 0.0, ModelPace(0.5, 1.5))
    assert budget.final_race_start == 60 - (4 + 3) * 2.0
    budget.pace = replace(budget.pace, is_profiled=True)
    assert budget.final_race_start == 60 - 4 * 2.0
    budget.is_swept = True
    assert budget.final_race_start == 60 - 5 * 2.0


def test_where_the_simplified_model_runs_as_the_original_its_turns_are_saved() -> None:
    budget = TimeBudget(SearchPolicy(), 60.0, lambda: 0.0, ModelPace(0.5, 1.5))
    costs = budget.race_cost(1), budget.confirmation_seconds, budget.reserved_seconds
    budget.is_like_original = True
    assert (budget.race_cost(1), budget.confirmation_seconds, budget.reserved_seconds) == (4.0, 4.0, costs[2] - 4.0)
    assert costs[:2] == (6.0, 6.0)
    assert budget.race_end(2, is_first=True) == 30, "two sessions in each race"
    assert budget.race_end(1, is_first=True) == 30, "the simplified model alone takes its turns"


def test_one_profiled_race_is_enough_to_time_a_model() -> None:
    budget = TimeBudget(SearchPolicy(), 60.0, lambda: 0.0, ModelPace(0.5, 1.5))
    assert budget.min_seconds == 3 * 0.5 + 4 * 1.5
    budget.pace = replace(budget.pace, is_profiled=True)
    assert budget.min_seconds == 2 * (0.5 + 1.5)


@pytest.mark.parametrize(("opening", "is_cheap"), [(0.3, True), (0.5, False)])
def test_models_are_compared_where_that_takes_less_than_a_session_of_a_race(opening: float, *, is_cheap: bool) -> None:
    """Two are opened and written, which takes as long as to open four."""
    budget = TimeBudget(SearchPolicy(), 60.0, lambda: 0.0, ModelPace(opening, 1.5))
    assert budget.is_comparison_cheap is is_cheap
