"""A model of the same structure with other weights: it has the first one's result or, where speed may depend on the
weights, what was chosen for the first is tried before any search."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.io import onnx_io
from graphopt.report.report import format_search, format_speed
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.search import model_tuner, search_cache
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.final_selection import FinalSelection
from graphopt.search.model_tuner import Tuner, TuningResult
from graphopt.search.race_series import RaceSeries
from graphopt.search.recipe_recording import record_recipe
from graphopt.search.search_cache import Choice, KnownResult
from graphopt.search.search_report import GroupKind
from graphopt.search.stopping import StopReason, TimeBudget
from graphopt.search.sweep_making import SweepMaker
from tests.test_tune import DOUBLE, estimate, outcomes, tuner
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")


TINY = 1e-35
"""A weight of which products may be denormal, so that a model with it is timed."""


def weighted(value: float) -> onnx.ModelProto:
    """A model in which a product by 2 may be a sum, with a weight."""
    weights = {"w": np.full((8, 8), value, np.float32)}
    return parse("float[n,8] x", "a = MatMul(x, w); b = Mul(a, 2.0); y = Exp(b)", weights, outputs="float[n,8] y")


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each search; the sum is half as fast again as the product."""
    found: list[float] = []

    def exploring(*args: Any, **more: Any) -> Exploration:
        found.append(more["seconds"])
        return explore_regions(*args, **more)

    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, simplified=1.0, searched=1.5)
    monkeypatch.setattr(SweepMaker, "_may_gain", lambda *_: True)
    monkeypatch.setattr(model_tuner, "explore_regions", exploring)
    return found


def tuned(value: float, **wanted: Any) -> tuple[onnx_io.LoadedModel, TuningResult]:
    """Tune a model whose result the check passes."""
    made, model, found = tuner(weighted(value), **wanted)
    made.keep_result(found)
    return model, found


@pytest.mark.parametrize("sweeps", [{}, {"sums": [DOUBLE]}])
@pytest.mark.parametrize("value", [3.0, TINY])
def test_what_was_chosen_for_a_sibling_is_taken_without_a_search(
    searched: list[float], sweeps: dict[str, list[Any]], value: float
) -> None:
    first = tuned(1.0, sweeps=sweeps)
    count = len(searched)
    second = tuned(value, sweeps=sweeps)
    assert len(searched) == count
    for model, result in (first, second):
        assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
        assert result.timing is not None
        assert result.timing.is_gain
        (group,) = result.timing.groups
        assert (group.rules, group.is_taken) == (("double_is_sum",), True)
    assert second[1].timing is not None
    assert (second[1].timing.stop == StopReason.KNOWN) is (value == TINY)


def test_a_sibling_has_the_result_of_the_first_and_is_not_timed(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = tuned(1.0)
    monkeypatch.delattr(Tuner, "_open_contest")
    model, second = tuned(3.0)
    assert len(searched) == 1
    assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
    assert first.timing is not None
    assert second.timing == replace(first.timing, is_of_other_weights=True)
    assert "as the original, measured with other weights; " in format_speed(second.timing, is_changed=True)
    assert format_search(second.timing) == f"of a model with other weights: {format_search(first.timing)}"
    assert second.notes[-1].startswith("the speed was measured on a model that differs in its weights alone")


@pytest.mark.usefixtures("searched")
def test_a_recipe_tells_no_speed_that_was_measured_with_other_weights() -> None:
    told = []
    for value in (1.0, 3.0):
        made, _, found = tuner(weighted(value))
        made.keep_result(found)
        told.append(record_recipe(made, found, {}))
    assert told[0].speedup is not None
    assert told[1].speedup is None
    assert [len(each.finds) for each in told] == [1, 1]


@pytest.mark.parametrize("values", [(1.0, TINY), (TINY, 1.0)])
def test_a_sibling_is_timed_where_products_with_weights_may_be_denormal(
    searched: list[float], monkeypatch: pytest.MonkeyPatch, values: tuple[float, float]
) -> None:
    """Kernels are slow with such numbers, in one of the models alone."""
    tuned(values[0])
    outcomes(monkeypatch, simplified=1.0, searched=0.9)
    _, result = tuned(values[1])
    assert len(searched) == 2
    assert result.timing is not None
    assert not result.timing.is_of_other_weights


def test_a_model_that_was_searched_itself_takes_its_own_result(searched: list[float]) -> None:
    tuned(1.0)
    _, again = tuned(1.0)
    assert len(searched) == 1
    assert again.timing is not None
    assert again.timing.stop == StopReason.DONE


@pytest.mark.parametrize("sweeps", [{}, {"sums": [DOUBLE]}])
@pytest.mark.parametrize("value", [1.0, TINY])
def test_a_later_run_repeats_the_result_and_the_report_without_opening_the_model(
    searched: list[float], monkeypatch: pytest.MonkeyPatch, sweeps: dict[str, list[Any]], value: float
) -> None:
    """That of a sibling that was timed, too, which had what was chosen for the first model."""
    tuned(1.0, sweeps=sweeps)
    first, was = tuned(value, sweeps=sweeps)
    count = len(searched)
    monkeypatch.delattr(Tuner, "_open_contest")
    again, found = tuned(value, sweeps=sweeps)
    assert len(searched) == count
    assert again.graph.operator_counts() == first.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
    assert found.timing == was.timing
    assert found.notes[-1] == "an earlier run of this model came to this result; --fresh searches again"
    assert [*found.group_of.values()] == [*was.group_of.values()] == [0]


def test_a_later_run_repeats_that_nothing_was_gained(searched: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes(monkeypatch, simplified=1.0, searched=0.9)
    _, was = tuned(1.0)
    monkeypatch.delattr(Tuner, "_open_contest")
    again, found = tuned(1.0)
    assert len(searched) == 1
    assert again.graph.operator_counts() == {"MatMul": 1, "Mul": 1, "Exp": 1}
    assert found.timing == was.timing


def test_a_result_that_the_check_has_not_passed_is_not_repeated(searched: list[float]) -> None:
    tuner(weighted(1.0))
    _, _, again = tuner(weighted(1.0))
    assert searched
    assert not again.notes


def test_a_result_names_nodes_so_it_is_not_repeated_for_a_model_with_other_names(searched: list[float]) -> None:
    tuned(1.0)
    model = weighted(1.0)
    for node in model.graph.node:
        node.name = f"other_{node.op_type}"
    _, _, found = tuner(model)
    assert len(searched) == 1
    assert not found.notes


def test_ctrl_c_while_a_result_is_made_again_loses_nothing(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(1.0)
    apply, calls = Tuner._apply_choice, count()

    def interrupted(self: Tuner, choice: Choice) -> Any:
        if not next(calls):
            raise KeyboardInterrupt
        return apply(self, choice)

    monkeypatch.setattr(Tuner, "_apply_choice", interrupted)
    model, _ = tuned(1.0)
    assert len(searched) == 1
    assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}


def test_a_result_of_other_conditions_or_of_another_graph_is_not_repeated(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[float]()
    races = Tuner._open_contest

    def opening(self: Tuner, budget: TimeBudget) -> RaceSeries:
        opened.append(self.tuning.seconds)
        return races(self, budget)

    monkeypatch.setattr(Tuner, "_open_contest", opening)
    tuned(1.0, seconds=10.0)
    tuned(1.0, seconds=10.0)
    assert len(opened) == len(searched) == 1
    tuned(1.0, seconds=10.0, seed=1)
    tuned(1.0, seconds=20.0)
    tuned(1.0, seconds=10.0, inputs={"x": np.ones((4, 8), np.float32)})
    assert len(opened) == 4
    load = search_cache.load_known_result

    def changed(*given: Any) -> KnownResult | None:
        found = load(*given)
        return found and replace(found, candidate="another")

    monkeypatch.setattr(search_cache, "load_known_result", changed)
    model, _ = tuned(1.0, seconds=10.0)
    assert len(opened) == 5
    assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}


def test_a_result_that_a_busy_machine_left_open_is_not_repeated(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(1.0, seconds=10.0)
    monkeypatch.setattr(FinalSelection, "is_steady", False)
    tuned(1.0, seconds=20.0)
    assert len(searched) == 2
    monkeypatch.delattr(Tuner, "_open_contest")
    tuned(1.0, seconds=10.0)
    with pytest.raises(AttributeError, match="_open_contest"):
        tuned(1.0, seconds=20.0)


@pytest.mark.parametrize("sweeps", [{}, {"sums": [DOUBLE]}])
def test_after_a_refusal_of_the_check_what_was_chosen_is_tried_first(
    searched: list[float], sweeps: dict[str, list[Any]]
) -> None:
    """Here nothing of it is missing, so that no search is needed."""
    first, _ = tuned(1.0, sweeps=sweeps)
    count = len(searched)
    again, result = tuned(1.0, sweeps=sweeps, is_retry=True, seconds=15.0)
    assert len(searched) == count
    assert again.graph.operator_counts() == first.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
    assert result.timing is not None
    assert result.timing.stop == StopReason.RETRIED


def test_after_a_refusal_sweeps_are_taken_again_without_finds_in_what_was_refused(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(1.0, sweeps={"sums": [DOUBLE]})
    count = len(searched)
    monkeypatch.setattr(Choice, "fits", lambda *_: False)
    for is_retry in (True, False):
        model, _ = tuned(1.0 if is_retry else TINY, sweeps={"sums": [DOUBLE]}, is_retry=is_retry, seconds=15.0)
        assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
        assert len(searched) == count + (not is_retry)


def test_places_that_a_sibling_left_are_left_only_while_its_choice_is_tried(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not searched
    tuned(1.0, sweeps={"sums": [DOUBLE]})
    load = search_cache.load_choice

    def changed(*given: Any) -> Choice | None:
        found = load(*given)
        return found and replace(found, sweeps={"sums": ("another place",)})

    monkeypatch.setattr(search_cache, "load_choice", changed)
    outcomes(monkeypatch, simplified=1.0, searched=0.9)
    sibling, _, _ = tuner(weighted(TINY), sweeps={"sums": [DOUBLE]})
    assert sibling.sweep_maker.losing_places == {}


def test_a_later_run_of_a_model_times_the_sweeps_that_the_first_found_promising(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of kernels grows with each run, and might put others first."""
    first, _ = tuned(1.0, sweeps={"sums": [DOUBLE]})
    monkeypatch.setattr(SweepMaker, "_may_gain", lambda *_: False)
    again, _ = tuned(1.0, sweeps={"sums": [DOUBLE]})
    assert first.graph.operator_counts() == again.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
    assert len(searched) == 1


@pytest.mark.usefixtures("searched")
def test_a_later_run_makes_a_sweep_whose_rules_were_skipped_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as skipping:
        skipping.setattr(Tuner, "sweep_rules", lambda *_: [])
        tuned(1.0, sweeps={"sums": [DOUBLE]})
    _, result = tuned(1.0, sweeps={"sums": [DOUBLE]})
    assert result.timing is not None
    assert [(group.kind, group.rules) for group in result.timing.groups] == [(GroupKind.SWEEP, ("double_is_sum",))]


@pytest.mark.parametrize(("names", "regions"), [(frozenset(), 0), (frozenset({"double_is_sum"}), 1)])
def test_a_rule_of_a_sweep_that_may_pay_alone_is_tried_in_parts_too(
    searched: list[float], names: frozenset[str], regions: int
) -> None:
    assert not searched
    found, _, _ = tuner(weighted(1.0), sweeps={"sums": [DOUBLE]})
    assert len(replace(found, also_alone=names).search_space().trades) == regions


def test_where_the_choice_does_not_win_again_the_sibling_is_searched(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned(1.0)
    outcomes(monkeypatch, simplified=1.0, searched=0.9)
    model, result = tuned(TINY)
    assert len(searched) == 2
    assert model.graph.operator_counts() == {"MatMul": 1, "Mul": 1, "Exp": 1}
    assert result.timing is not None
    assert result.timing.stop == StopReason.DONE


def test_where_nothing_won_nothing_is_sought_in_the_sibling(
    searched: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes(monkeypatch, simplified=1.0, searched=0.9)
    tuned(1.0)
    model, result = tuned(TINY)
    assert len(searched) == 1
    assert model.graph.operator_counts() == {"MatMul": 1, "Mul": 1, "Exp": 1}
    assert result.timing is not None
    assert result.timing.stop == StopReason.KNOWN


def test_a_choice_among_other_sweeps_binds_no_sibling(searched: list[float]) -> None:
    tuned(1.0, sweeps={"sums": [DOUBLE]})
    tuned(3.0, sweeps={"sums of two": [DOUBLE]})
    assert len(searched) == 2


def test_a_search_with_less_time_binds_no_sibling(searched: list[float]) -> None:
    tuned(1.0, seconds=10.0)
    tuned(3.0, seconds=20.0)
    assert len(searched) == 2
    tuned(5.0, seconds=15.0)
    assert len(searched) == 2


def test_a_damaged_choice_is_no_choice(searched: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(1.0)
    cache = open_cost_cache()
    monkeypatch.setattr(type(cache), "get", lambda _, keys: dict.fromkeys(keys, '{"model": 1}'))
    model, _ = tuned(3.0)
    assert len(searched) == 2
    assert model.graph.operator_counts() == {"MatMul": 1, "Add": 1, "Exp": 1}
