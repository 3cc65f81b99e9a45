"""From a simplified model to the fastest version: the search and the last word together."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from graphopt.base.errors import ModelError, UsageError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Node, Patch
from graphopt.language.rule import Rule, op, tensor
from graphopt.operators.inference import infer_graph
from graphopt.report.report import format_search
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Cause, Simplifier, Step
from graphopt.runtime.measure import Speedup, TimingPolicy
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search import model_tuner
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from graphopt.search.moves import Solution
from graphopt.search.race_outcomes import Latency, Measurement, RaceOutcome, TimeSummary
from graphopt.search.race_series import RaceSeries
from graphopt.search.search_report import (
    GroupKind,
    RewriteGroup,
    format_scope,
    group_indices,
    rejection_reason,
    sweep_groups,
)
from graphopt.search.stopping import ModelPace, StopReason
from graphopt.search.sweep import Sweep, SweepRules
from tests.test_search import Prices
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")

x = tensor("x")
DOUBLE_NEG = Rule("double_neg", op.Neg(op.Neg(x)), x)
DOUBLE_ABS = Rule("double_abs", op.Abs(op.Abs(x)), op.Abs(x))
DOUBLE = Rule("double_is_sum", x * 2.0, x + x)
GIVEN = parse("float[n,8] x", "a = Neg(x); b = Neg(a); c = Mul(b, 2.0); y = Exp(c)", outputs="float[n,8] y")
NEG_AND_ABS = parse(
    "float[n,8] x", "a = Neg(x); b = Neg(a); c = Abs(b); d = Abs(c); y = Exp(d)", outputs="float[n,8] y"
)
ONE_THREAD = SessionSetting(threads=1)


def tuner(
    given: onnx.ModelProto = GIVEN,
    rules: Sequence[Rule] = (DOUBLE_NEG,),
    *,
    sweeps: SweepRules = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
    **wanted: Any,
) -> tuple[Tuner, onnx_io.LoadedModel, TuningResult]:
    """A tuner, its model, and what it made of it."""
    model = onnx_io.load_model(given)
    infer_graph(model.graph)
    simplified = Candidate(model.graph).derive(lambda graph: Simplifier(rules, []).run(graph).steps)
    tuning = TuningOptions(**{"setting": ONE_THREAD, "seconds": 20.0, **wanted})
    found = Tuner(given, model, simplified, rules, [DOUBLE], [], lambda *_: True, tuning, sweeps=sweeps, clock=clock)
    tuned = found.tune()
    return found, replace(model, graph=tuned.candidate.graph), tuned


def causes(tuned: TuningResult) -> list[int | None]:
    """The index of the group of each step."""
    return [None if step.cause is None else tuned.group_of[step.cause] for step in tuned.candidate.steps]


def estimate(monkeypatch: pytest.MonkeyPatch, **prices: float) -> None:
    monkeypatch.setattr(Tuner, "_cost_model", lambda self, end=0.0: Prices(**prices))


def outcomes(monkeypatch: pytest.MonkeyPatch, simplified: float, searched: float = 1.0) -> None:
    """Let the versions be so fast: the simplified model, and what the search made of it, which is a sum."""

    def timed(_contest: RaceSeries, keys: Sequence[str], sessions: Sequence[Any], *_: float) -> list[RaceOutcome]:
        assert len(keys) == len(sessions)
        speeds = [each if isinstance(each, float) else 1.0 for each in sessions]  # else it is that of the original
        return [RaceOutcome(known(each), known(each / speeds[0])) for each in speeds]

    monkeypatch.setattr(RaceSeries, "measure_pace", lambda *_: ModelPace(0.0, 0.0))
    monkeypatch.setattr(
        RaceSeries, "open_session", lambda _, model: searched if "Add" in model.graph.operator_counts() else simplified
    )
    monkeypatch.setattr(RaceSeries, "time_models", timed)


def known(ratio: float) -> Speedup:
    return Speedup(ratio, ratio, ratio, ratio, rounds=15)


# -- by estimate -------------------------------------------------------------------------------------------------------


def test_by_estimate_all_that_it_speaks_for_is_taken_and_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(SessionSetting, "open", lambda *_, **__: pytest.fail("a session was opened"))
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.operator_counts() == {"Add": 1, "Exp": 1}
    assert [step.name for step in tuned.candidate.steps] == ["double_neg", "double_is_sum"]
    assert tuned.timing is not None
    assert not tuned.timing.is_gain
    (group,) = tuned.timing.groups
    assert (group.rules, group.parts, group.is_taken) == (("double_is_sum",), ("c … y",), True)
    assert group.alone is not None and group.is_estimate and group.together is None
    assert group.alone.median == pytest.approx(3 / 1.5)
    assert group.saved_seconds == pytest.approx(3 - 1.5)
    assert compare_models(GIVEN, model, bindings=[{"n": 1}, {"n": 5}]).verdict is EqualityVerdict.EQUAL


def test_a_find_that_no_copy_allows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(model_tuner, "apply_solution", lambda *_, **__: [])
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert [group.is_taken for group in tuned.timing.groups] == [False]
    assert causes(tuned) == [None]


def test_a_find_that_there_was_no_time_to_make_is_said_to_be_left_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def exploring(*args: Any, **more: Any) -> Exploration:
        found = explore_regions(*args, **more)
        now[0] += 21.0
        return found

    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(model_tuner, "explore_regions", exploring)
    _, model, tuned = tuner(cost="analytic", seconds=20.0, clock=lambda: now[0])
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert (tuned.timing.groups[0].is_taken, tuned.timing.stop) == (False, StopReason.TIME)


def test_what_an_estimate_speaks_against_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=1.5)
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert (tuned.timing.groups, tuned.timing.regions, tuned.timing.stop) == ((), 1, StopReason.DONE)


def test_what_is_swept_over_the_model_is_not_searched_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    model = onnx_io.load_model(GIVEN)
    infer_graph(model.graph)
    simplified = Candidate(model.graph).derive(lambda graph: Simplifier([DOUBLE_NEG], []).run(graph).steps)
    tuning = TuningOptions(cost="analytic", setting=ONE_THREAD)
    sweeps = {"sums": [DOUBLE]}
    rules = [DOUBLE_NEG]
    found = Tuner(GIVEN, model, simplified, rules, [DOUBLE], [], lambda *_: True, tuning, sweeps=sweeps).tune()
    assert found.timing is not None
    assert (found.timing.groups, found.timing.regions) == ((), 0)


def test_costs_are_taken_at_all_sizes_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, Sequence[int]]] = []

    def explore(*args: Any, **_: Any) -> Exploration:
        seen.extend(args[3])
        return Exploration((), StopReason.DONE)

    monkeypatch.setattr(model_tuner, "explore_regions", explore)
    tuner(cost="analytic", sizes={"n": [16, 128]})
    assert [tuple(shapes["x"]) for shapes in seen] == [(16, 8), (128, 8)]


def test_what_an_estimate_is_asked_for_has_to_fit_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are given say how large their open dims are, also where the others share them."""
    seen: list[Mapping[str, Sequence[int]]] = []

    def explore(*args: Any, **_: Any) -> Exploration:
        seen.extend(args[3])
        return Exploration((), StopReason.DONE)

    monkeypatch.setattr(model_tuner, "explore_regions", explore)
    given = parse("float[n,8] x, float[n,8] w", "y = Add(x, w)")
    tuner(given, cost="analytic", inputs={"x": np.ones((5, 8), np.float32)})
    assert [(tuple(shapes["x"]), tuple(shapes["w"])) for shapes in seen] == [((5, 8), (5, 8))]
    with pytest.raises(UsageError, match="there is no open dim 'm'; there is 'n'"):
        tuner(given, cost="analytic", sizes={"m": [1, 2]})
    with pytest.raises(UsageError, match="'n' cannot be 0"):
        tuner(given, cost="analytic", sizes={"n": [0, 2]})


def test_an_unknown_cost_is_named() -> None:
    with pytest.raises(UsageError, match="there is no cost 'guessed'; there is measured, analytic, none"):
        TuningOptions(cost="guessed")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_without_time_there_is_no_search(seconds: float) -> None:
    with pytest.raises(UsageError, match="a search needs more than"):
        TuningOptions(cost="analytic", seconds=seconds)
    assert TuningOptions(cost="none", seconds=seconds).cost == "none"


@pytest.mark.parametrize(("other", "left"), [(0.0, 10.0), (3.0, 7.0), (9.0, 5.0), (20.0, 5.0)])
def test_what_comes_before_and_after_the_search_is_in_the_users_seconds(other: float, left: float) -> None:
    """But half of them are for the search, however long the rest takes."""
    assert TuningOptions(cost="analytic", seconds=10.0, overhead_seconds=other).tuning_seconds == left


def test_a_provider_that_is_missing_is_named_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="no NoSuchProvider"):
        TuningOptions(setting=SessionSetting("NoSuchProvider"))
    assert TuningOptions(cost="analytic", setting=SessionSetting("NoSuchProvider")).setting.threads == 1


# -- by measurement ----------------------------------------------------------------------------------------------------


def test_a_find_that_is_faster_in_the_whole_model_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.5)
    _, model, tuned = tuner()
    assert model.graph.operator_counts() == {"Add": 1, "Exp": 1}
    assert tuned.timing is not None
    assert tuned.timing.is_gain
    assert [(group.is_taken, group.together) for group in tuned.timing.groups] == [(True, known(1.5))]
    assert causes(tuned) == [None, 0]


def test_a_find_that_is_slower_in_the_whole_model_is_dropped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 0.8)
    _, model, tuned = tuner()
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    (group,) = tuned.timing.groups
    assert (group.is_taken, group.together, causes(tuned)) == (False, known(0.8), [None])
    why = "the model with it is slower than the original: 0.800 times as fast (0.800 to 0.800)"
    assert group.reason == why
    assert [(race.groups, race.speedup, race.gain) for race in tuned.timing.races] == [
        ((), known(1.0), known(1.0)),
        ((0,), known(0.8), known(0.8)),
        ((), known(1.0), known(1.0)),
    ]
    assert tuned.notes == ()


def measured(*causes: Cause | None, outcome: RaceOutcome | None = None, has_lost: bool = False) -> Measurement:
    """A candidate with a step for each cause, as it was measured."""
    graph = Graph()
    steps = tuple(Step("a_rule", graph, Patch({}, {}), is_rule=True, cause=cause) for cause in causes)
    return Measurement(Candidate(graph, steps), outcome, has_lost=has_lost)


def in_seconds(gain: float, *seconds: float) -> RaceOutcome:
    """What a race tells of a candidate that takes so long at some sizes."""
    times, ratio = [TimeSummary(each, each, 0.0) for each in seconds], known(gain)
    return RaceOutcome(ratio, ratio, tuple(Latency({"n": n}, time, time, ratio) for n, time in enumerate(times)))


def swept(*names: str, gain: float) -> Measurement:
    """A candidate with sweeps that runs in a second."""
    return measured(*(Sweep(name, (name,)) for name in names), outcome=in_seconds(gain, 1.0))


def groups(alone: Sequence[Measurement], best: Measurement, *raced: Measurement) -> list[RewriteGroup]:
    return list(sweep_groups(alone, measured(None, None), best, raced, TimingPolicy(), {}))


def test_what_a_sweep_saves_is_measured() -> None:
    """Of two sizes it is the mean."""
    made = measured(Sweep("all", ("a_rule",)), outcome=in_seconds(2.0, 0.25, 0.75))
    (found,) = groups([made], made)
    assert (found.kind, found.name, found.rules, found.is_taken) == (GroupKind.SWEEP, "all", ("a_rule",), True)
    assert (found.alone, found.together, found.saved_seconds) == (known(2.0), known(2.0), 0.5)


@pytest.mark.parametrize(
    ("estimate", "others", "why"),
    [
        (0.98, [], "no gain that a race would show"),
        (1.3, [], "no time was left to race it"),
        (1.3, ["other"], "what was taken won before it was raced"),
    ],
)
def test_a_sweep_that_only_kernels_tell_of_says_what_they_promise(estimate: float, others: list[str], why: str) -> None:
    best = swept(*others, gain=1.5)
    alone = [measured(Sweep("all", ("a_rule",)))]
    found, *_ = sweep_groups(
        alone, measured(None, None), best, [best], TimingPolicy(), {frozenset({"all"}): estimate, frozenset(): 2.0}
    )
    assert found.is_estimate
    assert found.alone is not None
    assert (found.alone.median, found.is_taken) == (estimate, False)
    said = f"by the kernels that differ the model is {estimate:.3f} times as fast with it as without"
    assert found.reason == f"{said}: {why}"


def test_sweeps_that_gain_alone_and_not_beside_others_are_left() -> None:
    """Of three that gain two were taken, the later one first; the third gains beside them no more."""
    first, second, third = (Sweep(name, (name,)) for name in ("first", "second", "third"))
    best = measured(None, *[second] * 4, *[first] * 3, outcome=in_seconds(1.8, 1.0))
    all_three = measured(second, first, third, outcome=in_seconds(1.7, 1.0))
    found = groups([swept(name, gain=1.5) for name in ("first", "second", "third")], best, best, all_three)
    assert [group.is_taken for group in found] == [True, True, False]
    assert [group.together for group in found] == [known(1.8), known(1.8), known(1.7)]
    assert "beside what was taken no gain was shown" in found[2].reason


def test_sweeps_that_were_made_together_alone_have_groups_of_their_own() -> None:
    """None was made by itself."""
    whole = measured(Sweep("first", ("a",)), Sweep("second", ("b",)), outcome=in_seconds(1.25, 1.0))
    found = groups([], whole, whole)
    assert [(group.name, group.alone, group.together) for group in found] == [
        ("first", None, known(1.25)),
        ("second", None, known(1.25)),
    ]


def test_steps_know_the_group_of_the_sweep_or_find_that_they_were_made_for() -> None:
    """Beside another, a sweep may have used other rules: it is the same by its name."""
    first, second = Sweep("first", ("a",)), Sweep("second", ("b",))
    again, find = Sweep("second", ("c",)), Solution(((1,),), (), known(1.5), 1.0, "")
    made = measured(None, first, again, find).candidate
    assert group_indices([first, second], [find], [made]) == {first: 0, again: 1, find: 2}


@pytest.mark.parametrize(
    ("names", "scope"),
    [
        (["/layer.0/attention/MatMul", "/layer.0/attention/Add", "/layer.0/Mul"], "/layer.0"),
        (["/layer.0/MatMul"], "/layer.0"),
        (["/a/MatMul", "/b/Add"], "/a/MatMul … /b/Add"),
        (["node_matmul_1", "node_add_2"], "node_matmul_1 … node_add_2"),
        (["Conv_0"], "Conv_0"),
    ],
)
def test_a_part_is_called_by_the_scope_of_its_nodes(names: list[str], scope: str) -> None:
    assert format_scope([Node("Relu", (), (f"of {name}",), (None,), name=name) for name in names]) == scope


@pytest.mark.parametrize(
    ("has_lost", "is_faster", "why"),
    [
        (True, False, "and when it raced again it was no faster"),
        (False, True, "another was faster"),
        (False, False, "no time was left for a second race"),
    ],
)
def test_what_won_a_race_and_was_left_says_why(*, has_lost: bool, is_faster: bool, why: str) -> None:
    made = measured(outcome=in_seconds(1.2, 1.0), has_lost=has_lost)
    said = "the model with it is 1.200 times as fast (1.200 to 1.200) as without"
    assert rejection_reason([made], TimingPolicy(), is_faster=is_faster) == f"{said}; {why}"


@pytest.mark.parametrize("is_taken", [True, False])
def test_sweeps_that_were_timed_together_alone_say_what_all_of_them_gave(*, is_taken: bool) -> None:
    alone = [measured(Sweep(name, (name,))) for name in ("first", "second")]
    whole, first = swept("first", "second", gain=1.25 if is_taken else 0.9), measured(None, None)
    found = groups(alone, whole if is_taken else first, first, whole)
    why = "the model with it and 1 other is slower than the original: 0.900 times as fast (0.900 to 0.900)"
    assert [(group.name, group.alone, group.together, group.saved_seconds) for group in found] == [
        ("first", None, whole.gain, None),
        ("second", None, whole.gain, None),
    ]
    assert {(group.is_taken, group.reason) for group in found} == {(is_taken, "" if is_taken else why)}


def test_a_loss_at_one_size_is_told_with_that_size() -> None:
    at_sizes = tuple(
        replace(one, speedup=known(gain)) for one, gain in zip(in_seconds(1, 1, 1).latencies, (2, 0.8), strict=True)
    )
    made = measured(Sweep("all", ("a_rule",)), outcome=RaceOutcome(known(1.3), known(1.3), at_sizes))
    assert rejection_reason([made], TimingPolicy(), is_faster=False) == (
        "the model with it is slower than the original: 0.800 times as fast (0.800 to 0.800), at n=1"
    )


def test_a_simplified_model_that_is_slower_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=2)
    outcomes(monkeypatch, 0.8, 0.8)
    _, model, tuned = tuner()
    assert model.graph.operator_counts() == {"Neg": 2, "Mul": 1, "Exp": 1}
    assert tuned.candidate.steps == ()
    (note,) = tuned.notes
    assert note.startswith("the simplified model was slower in two races, 0.800 times as fast (0.800 to 0.800)")
    assert note.endswith("so the original is returned")


def refusing(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[Mapping[str, int]], bool]) -> None:
    """Let ONNX Runtime refuse versions with such operators."""
    opened = RaceSeries.open_session

    def opening(contest: RaceSeries, model: onnx_io.LoadedModel) -> Any:
        if is_refused(model.graph.operator_counts()):
            raise ModelError("no kernel")
        return opened(contest, model)

    monkeypatch.setattr(RaceSeries, "open_session", opening)


def test_a_simplified_model_that_the_runtime_refuses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=2)
    refusing(monkeypatch, lambda ops: "Neg" not in ops)
    _, model, tuned = tuner()
    assert model.graph.operator_counts() == {"Neg": 2, "Mul": 1, "Exp": 1}
    assert tuned.notes == ("the simplified model does not run: no kernel; so the original is returned",)


def test_a_simplified_model_for_which_there_was_no_room_is_kept_and_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ModelError("no room")

    estimate(monkeypatch, Add=2)
    monkeypatch.setattr(RaceSeries, "time_models", failing)
    _, model, tuned = tuner(sweeps={"sums": [DOUBLE]})
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.notes == ("the simplified model was not timed: there was no time or no room",)
    assert tuned.timing is not None
    assert (tuned.timing.speedup, tuned.timing.simplified) == (None, None)
    assert [group.alone for group in tuned.timing.groups] == [None]


def test_a_find_that_is_left_says_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.01)
    _, _, tuned = tuner()
    assert tuned.timing is not None
    gave = "the model with it is 1.010 times as fast (1.010 to 1.010) as without"
    why = "differences of 1% or less are within the noise"
    assert [group.reason for group in tuned.timing.groups] == [f"{gave}; {why}"]


def test_what_the_runtime_refuses_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rules one makes what ONNX Runtime has no kernel for."""
    estimate(monkeypatch, Add=2)
    outcomes(monkeypatch, 1.0)
    refusing(monkeypatch, lambda ops: "Neg" not in ops)
    _, model, tuned = tuner(NEG_AND_ABS, [DOUBLE_NEG, DOUBLE_ABS])
    assert model.graph.operator_counts() == {"Neg": 2, "Abs": 1, "Exp": 1}
    assert tuned.notes == ("left out, for the model with it does not run: double_neg (no kernel)",)


def test_a_model_that_is_refused_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("no kernel")

    monkeypatch.setattr(SessionSetting, "open", refuse)
    _, model, tuned = tuner()
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    assert tuned.notes == ("not timed: no kernel",)
    assert tuned.timing is not None and not tuned.timing.could_be_timed
    assert format_search(tuned.timing) == "none: not timed: no kernel"


def test_a_model_for_which_there_is_no_room_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory()._replace(available=79)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    weights = {"w": np.ones(2, np.float32)}
    given = parse("float[n,2] x", "a = Neg(x); b = Neg(a); y = Mul(b, w)", weights, outputs="float[n,2] y")
    _, model, tuned = tuner(given)
    assert model.graph.operator_counts() == {"Mul": 1}
    assert tuned.notes == ("not timed: that takes 0.0 GB of memory, and 0.0 GB are free",)


def test_a_model_that_is_too_large_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.base.limits.MAX_TIMED_WEIGHT_BYTES", 0)
    assert tuner()[2].notes == ("not timed: 0.0 GB of weights are too much",)


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]> test (float[2] x, bool c) => (float[2] y) {{
    y = If(c) <
        then_branch = t () => (float[2] p) {{ v = Constant<value = float[2] {{1.0, {}}}>() p = Add(x, v) }},
        else_branch = e () => (float[2] q) {{ w = Constant<value = float[2] {{3.0, 4.0}}>() q = Sub(x, w) }}
    >
}}"""


def test_weights_in_branches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    given = onnx.parser.parse_model(BRANCHES.format(2.0))
    monkeypatch.setattr("graphopt.base.limits.MAX_TIMED_WEIGHT_BYTES", 2 * 8 - 1)
    assert tuner(given)[2].notes == ("not timed: 0.0 GB of weights are too much",)
