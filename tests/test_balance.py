"""Cuts by numbers alone: even, narrow, and moved by what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.partition.balance import (
    GOAL,
    MAX_POSITIONS,
    SLACK,
    Cuts,
    CutSpace,
    MeasuredCuts,
    NoCutsError,
    balance,
    choose_cuts,
    thin_positions,
)


def space(
    nbytes: Sequence[int], speeds: Sequence[float], fits: Callable[[int, int, int], bool] = lambda *_: True
) -> CutSpace:
    """All cuts between nodes, across which so many bytes go."""
    count = len(nbytes) + 1
    return CutSpace(node_count=count, positions=range(1, count), bytes_across=[0, *nbytes, 0], speeds=speeds, fits=fits)


def times(cuts: Cuts, seconds: Sequence[float]) -> list[float]:
    ends = [0, *cuts, len(seconds)]
    return [sum(seconds[start:end]) for start, end in pairwise(ends)]


def test_the_narrowest_of_even_cuts_is_chosen() -> None:
    nbytes = [9] * 99
    nbytes[51], nbytes[80] = 4, 1  # one at 52:48, and one that is narrower and uneven
    assert choose_cuts(space(nbytes, [1, 1]), [1.0] * 100) == (52,)
    assert choose_cuts(space(nbytes, [4, 1]), [1.0] * 100) == (81,)


def test_a_slow_link_is_a_stage_of_its_own() -> None:
    wide, seconds = space([100, 100, 1, 100], [1, 1]), [1.0, 1.0, 1.0, 0.5, 0.5]
    assert choose_cuts(wide, seconds) == (2,)
    assert choose_cuts(replace(wide, seconds_to_send=lambda nbytes: nbytes / 10), seconds) == (3,)


def test_devices_without_room_are_passed_over() -> None:
    narrow = space([1, 1, 1], [1, 1], lambda stage, start, end: end - start <= (1, 3)[stage])
    assert choose_cuts(narrow, [1.0, 1.0, 1.0, 1.0]) == (1,)
    with pytest.raises(NoCutsError):
        choose_cuts(space([1, 1, 1], [1, 1], lambda stage, start, end: end - start <= 1), [1.0] * 4)


@settings(deadline=None)  # what else the machine does is no failure
@given(st.lists(st.floats(0.1, 10.0), min_size=6, max_size=14), st.integers(2, 4))
def test_no_cuts_are_more_even_beyond_what_narrow_ones_may_cost(seconds: list[float], stages: int) -> None:
    found = choose_cuts(space([1] * (len(seconds) - 1), [1.0] * stages), seconds)
    assert len(found) == stages - 1 and list(found) == sorted({*found}) and found[0] > 0 and found[-1] < len(seconds)
    longest = max(times(found, seconds))
    limit = max(SLACK * sum(seconds) / stages, 1.02 * least_longest(seconds, stages))
    assert longest <= limit * (1 + 1e-9)


def least_longest(seconds: Sequence[float], stages: int) -> float:
    """The time of the largest stage at best, by trying all."""
    if stages == 1:
        return sum(seconds)
    options = range(1, len(seconds) - stages + 2)
    return min(max(sum(seconds[:cut]), least_longest(seconds[cut:], stages - 1)) for cut in options)


def test_wrong_estimates_are_corrected_by_measuring() -> None:
    true = [1.0] * 40 + [5.0] * 20 + [0.2] * 40
    asked: list[Cuts] = []

    def measure(cuts: Cuts) -> list[float]:
        asked.append(cuts)
        return times(cuts, true)

    found = balance(space([1] * 99, [1.0] * 4), [1.0] * 100, measure, lambda: True)
    assert found.imbalance([1.0] * 4) <= GOAL, found
    assert len(asked) == len({*asked}) <= 20, "nothing is measured twice"
    assert found.seconds == tuple(times(found.cuts, true))


def test_one_measurement_is_made_also_without_time() -> None:
    asked: list[Cuts] = []

    def measure(cuts: Cuts) -> list[float]:
        asked.append(cuts)
        return [1.0, 3.0]

    found = balance(space([1] * 9, [1, 1]), [1.0] * 10, measure, lambda: False)
    assert asked == [found.cuts] and found.imbalance([1, 1]) == 1.5


def test_it_ends_where_no_move_helps() -> None:
    found = balance(space([1, 1], [1, 1]), [1.0] * 3, lambda cuts: times(cuts, [1.0, 9.0, 1.0]), lambda: True)
    assert found.imbalance([1, 1]) == pytest.approx(10 / 5.5)


def test_imbalance_is_that_of_the_devices() -> None:
    assert MeasuredCuts((5,), (4.0, 1.0)).imbalance([4.0, 1.0]) == 1.0
    assert MeasuredCuts((5,), (1.0, 1.0)).imbalance([4.0, 1.0]) == 2.5


def test_of_many_positions_the_narrowest_stay() -> None:
    nbytes = [5] * 10_001
    nbytes[4321] = 1
    kept = thin_positions(range(1, 10_000), nbytes, [1.0] * 10_000, 2)
    assert len(kept) <= MAX_POSITIONS and 4321 in kept
    assert thin_positions([3, 5], nbytes, [1.0] * 10_000, 2) == [3, 5]
    assert thin_positions(range(1, 1000), nbytes, [1.0] + [0.0] * 9_999, 9) == range(1, 1000), (
        "in one stretch are too few"
    )
