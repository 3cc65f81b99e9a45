"""Versions of a model are timed in ONNX Runtime, and what was timed is kept."""

import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch
from graphopt.language.rule import Rule, op
from graphopt.operators.inference import infer_graph
from graphopt.pipeline import optimize
from graphopt.report.report import format_search
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.regions import graph_digest
from graphopt.rewrite.simplify import Simplifier
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.cost_model import PredictedGain, open_cost_cache
from graphopt.runtime.measure import RaceTimes, TimingSamples, time_interleaved
from graphopt.runtime.profile import ProfiledSession
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search import model_tuner, race_series
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.final_selection import FinalSelection
from graphopt.search.model_tuner import Tuner, TuningOptions
from graphopt.search.moves import SearchSpace, apply_solution
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import RaceOutcome, judge_race
from graphopt.search.race_series import LIKE_ORIGINAL, RaceSeries
from graphopt.search.stopping import ModelPace, StopReason, TimeBudget
from graphopt.search.sweep import Sweep, SweepRules, apply_sweep
from tests.test_search import Prices
from tests.test_tune import (
    BRANCHES,
    DOUBLE,
    DOUBLE_ABS,
    DOUBLE_NEG,
    GIVEN,
    NEG_AND_ABS,
    ONE_THREAD,
    estimate,
    known,
    outcomes,
    tuner,
    x,
)
from tests.text import parse
from tests.versions import needs

pytestmark = pytest.mark.usefixtures("own_cache")

# -- with ONNX Runtime -------------------------------------------------------------------------------------------------


POLICY = SearchPolicy()


def entered(digest: str = "") -> tuple[RaceSeries, onnx_io.LoadedModel]:
    """A contest between the given model and the simplified one."""
    model = onnx_io.load_model(GIVEN)
    infer_graph(model.graph)
    own = digest or graph_digest(model.graph)
    ready = prepare_models([GIVEN], ONE_THREAD, dims={"n": [2, 3]})
    Simplifier([DOUBLE_NEG], []).run(model.graph)
    return RaceSeries(ready, GIVEN, model, own, open_cost_cache(), TimeBudget(POLICY, math.inf)), model


FUNCTION = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
test (float[2] x) => (float[2] y) {{ y = local.f(x) }}
<domain: "local", opset_import: ["" : 18]> f (a) => (b) {{ b = {}(a) }}"""


SUBNORMAL = pytest.param(BRANCHES, 2.0, 1e-42, marks=needs("onnx", "1.23", "its parser reads no subnormal number"))


@pytest.mark.parametrize(("text", "one", "other"), [(FUNCTION, "Exp", "Sin"), SUBNORMAL])
def test_models_that_differ_in_a_function_or_a_branch_share_no_verdicts(text: str, one: object, other: object) -> None:
    digests = []
    for what in (one, other, one):
        given = onnx.parser.parse_model(text.format(what))
        model = onnx_io.load_model(given, inline_functions=False)
        infer_graph(model.graph)
        digests.append(race_series.model_digest(model))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    "long", [[np.arange(4000)], [np.zeros(2), np.arange(4000)], np.array([*map(str, range(4000))], object)]
)
def test_inputs_are_told_apart_by_all_that_is_in_them(long: Any) -> None:
    other = deepcopy(long)
    array = other[-1] if isinstance(other, list) else other
    array[2000] = 0
    assert race_series.feeds_digest({"x": long}) == race_series.feeds_digest({"x": deepcopy(long)})
    assert (
        race_series.feeds_digest({"x": long})
        != race_series.feeds_digest({"x": other})
        != race_series.feeds_digest({"y": other})
    )


@pytest.mark.slow
def test_versions_are_fed_types_that_numpy_does_not_have() -> None:
    given = parse("bfloat16[n,8] x", "a = Cast<to=1>(x); b = Neg(a); c = Neg(b); y = Exp(c)", outputs="float[n,8] y")
    _, model, tuned = tuner(given)
    assert model.graph.operator_counts() == {"Cast": 1, "Exp": 1}
    assert tuned.notes == ()
    assert tuned.timing is not None
    assert tuned.timing.speedup is not None


def racing(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[int]:
    """Let the original and versions take so many seconds; tells how many took turns each time."""
    raced: list[int] = []

    def timed(runs: Sequence[Callable[[], object]], *_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        raced.append(len(runs))
        return tuple(TimingSamples((each,) * 15) for each in seconds[: len(runs)])

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", timed)
    return raced


def test_what_was_timed_once_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    racing(monkeypatch, 1.0, 0.5)
    contest, model = entered()
    found = contest.time_models(["key"], [contest.open_session(model)], 0.0)
    assert found[0].speedup.median == 2
    assert [latency.sizes["n"] for latency in found[0].latencies] == [2, 3]
    again, _ = entered()
    assert again.recorded_outcomes(["key"]) == found
    assert again.recorded_outcomes(["other"]) is again.next_series().recorded_outcomes(["key"]) is None


def test_what_was_timed_on_a_busy_machine_binds_no_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are far apart, and say of no version that it is faster."""
    apart = [TimingSamples((1.0,) * 15), TimingSamples((1.0, 2.0, 0.5) * 5)]
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", lambda *_, **__: apart)
    contest, model = entered()
    (found,) = contest.time_models(["key"], [contest.open_session(model)], 0.0)
    assert not found.speedup.is_steady(POLICY.timing)
    contest.record_timeout(["key"])
    assert not open_cost_cache().path.exists()


def test_a_race_that_was_cut_short_binds_no_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graphopt.runtime.measure.time_interleaved", lambda runs, *_, **__: [TimingSamples((1.0,) * 3)] * len(runs)
    )
    contest, model = entered()
    assert contest.time_models(["key"], [contest.open_session(model)], 0.0)[0].speedup.rounds == 3
    assert contest.recorded_outcomes(["key"]) is None


def test_a_contest_that_the_runtime_times_has_all_that_was_asked_for() -> None:
    contest, model = entered()
    (found,) = contest.time_models(["key"], [contest.open_session(model)], 0.0)
    assert found.speedup.rounds == found.gain.rounds == 11


def test_how_long_a_run_takes_is_asked_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of runs that are short the fastest of a few counts, at each of two sizes; kernels tell in fewer rounds."""
    contest, _ = entered()
    monkeypatch.setattr(SessionSetting, "timer", property(lambda _: iter([0.0, 1.625 / 8]).__next__))
    times = [0.0, 0.25, 1.0, 1.125, 2.0, 2.25, 3.0, 4.0]
    contest.budget.clock = (time / 8 for time in times).__next__
    pace = contest.measure_pace()
    assert pace.is_profiled
    assert pace.racing_seconds == (1 + 3 + 8) * 0.125 / 8 + (1 + 1 + 8) / 8


def test_whether_the_simplified_model_runs_as_the_original_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a later run: both have to be opened for it."""
    answers = [True, False]
    monkeypatch.setattr(RaceSeries, "is_original", lambda *_: answers.pop())
    for _ in range(2):
        contest, _ = entered()
        given = onnx_io.load_model(GIVEN)
        infer_graph(given.graph)
        simplified = Candidate(given.graph).derive(lambda graph: Simplifier([DOUBLE_NEG], []).run(graph).steps)
        assert not contest.is_like_original(simplified)
    assert answers == [True]


def test_a_race_for_which_there_was_no_time_is_not_run_later() -> None:
    """A second run gives the answer of the first one, and as soon; one that takes longer may give another."""
    contest, model = entered()
    candidates = [Candidate(model.graph)]
    contest.budget = TimeBudget(POLICY, 1.0, lambda: 0.0, ModelPace(opening_seconds=1.0, racing_seconds=1.0))
    assert [found.outcome for found in contest.race(candidates, 1.0)] == [None]
    later, _ = entered()
    assert [found.outcome for found in later.race(candidates, 1.0)] == [None]
    longer, _ = entered(digest="of a run that takes longer")
    assert all(found.outcome is not None for found in longer.race(candidates, 1.0))


def test_a_race_under_the_profiler_is_told_by_the_kernels_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a copy none differs, so that it is as fast in each round."""
    raced = list[RaceTimes]()

    def judged(timed: Sequence[tuple[Mapping[str, int], RaceTimes]]) -> list[RaceOutcome]:
        raced.extend(times for _, times in timed)
        return judge_race(timed)

    monkeypatch.setattr(race_series, "judge_race", judged)
    contest, model = entered()
    contest.budget.pace = ModelPace(0.0, 0.0, 0.1, is_profiled=True)
    copy = onnx_io.load_model(GIVEN)
    infer_graph(copy.graph)
    sessions = [contest.open_session(each) for each in (copy, model)]
    _, found = contest.time_models(["copy", "key"], sessions, 0.0)
    assert found.speedup.rounds == found.gain.rounds == 8
    assert [latency.sizes["n"] for latency in found.latencies] == [2, 3]
    for times in raced:
        original, twin, other = (each.kernels for each in (times.original, *times.candidates))
        assert original and twin and other
        assert original.saved_seconds(twin) == [0.0] * 8
        assert original.counts != other.counts and len(original.saved_seconds(other)) == 8


@pytest.mark.parametrize(("run_seconds", "is_profiled"), [(0.1, True), (1e-4, False)])
def test_a_race_of_versions_with_many_kernels_more_is_not_profiled(run_seconds: float, *, is_profiled: bool) -> None:
    """Two kernels more, which a profile tells too long, are much of a short run, and nothing of a long one."""
    contest, model = entered()
    contest.budget.pace = ModelPace(0.0, 0.0, run_seconds, is_profiled=True)
    longer = onnx_io.load_model(GIVEN)
    infer_graph(longer.graph)
    (found,) = contest.race([Candidate(longer.graph)], 1.0)
    assert found.outcome is not None
    assert contest.is_profiled is is_profiled
    contest.race([Candidate(model.graph)], 1.0)
    assert contest.is_profiled


def test_a_profile_tells_a_gain_that_is_larger_than_what_it_hides() -> None:
    """Two kernels, of which a profile hides 6 µs, are 6 % of a run; where kernels tell a gain of 20 %, they may."""
    contest, _ = entered()
    contest.budget.pace = ModelPace(0.0, 1.0, 1e-4, is_profiled=True, unprofiled_racing_seconds=1.4)
    longer = onnx_io.load_model(GIVEN)
    infer_graph(longer.graph)
    candidate = Candidate(longer.graph)
    contest.race([candidate], 1.0)
    assert (contest.is_profiled, contest.budget.session_seconds) == (False, 1.4)
    contest.estimates[frozenset()] = 1.2
    contest.race([candidate], 1.0)
    assert (contest.is_profiled, contest.budget.session_seconds) == (True, 1.0)


@pytest.mark.parametrize(("seconds", "is_begun"), [(3.1, True), (2.9, False)])
def test_a_second_profiled_race_that_would_be_cut_short_is_not_begun(seconds: float, *, is_begun: bool) -> None:
    """Of the original, the simplified model and another: a session of each takes a second."""
    contest, _ = entered()
    contest.budget = TimeBudget(POLICY, seconds, lambda: 0.0, ModelPace(0.0, 1.0, 0.1, is_profiled=True))
    assert contest.next_series()._has_time_left_for(2) is is_begun


def test_a_race_whose_profile_has_no_room_is_told_by_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    contest, model = entered()
    contest.budget.pace = ModelPace(0.0, 0.0, 0.1, is_profiled=True)
    session = contest.open_session(model)
    monkeypatch.setattr(ProfiledSession, "end", lambda self: original_end(self)[:3])
    (found,) = contest.time_models(["key"], [session], 0.0)
    assert not found.speedup.is_by_kernels
    assert found.speedup.has_too_few_rounds


original_end = ProfiledSession.end


@pytest.mark.parametrize(("share", "times"), [(1.0, 1), (0.5, 2), (0.125, 8), (0.001, 20), (2.0, 1), (0.0, 1)])
def test_turns_take_longer_where_a_run_has_a_share_of_a_processor(
    share: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of short runs lasts ten milliseconds of the processor, whoever else wants it."""
    contest, _ = entered()
    monkeypatch.setattr(SessionSetting, "timer", property(lambda _: iter([0.0, share * 6e-9]).__next__))
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-9
        return now[0]

    contest.budget.clock = clock
    assert contest.measure_pace().racing_seconds == pytest.approx(2 * 11 * POLICY.timing.turn_seconds * times, rel=0.01)


def test_what_was_timed_in_a_hurry_binds_no_later_run() -> None:
    contest, model = entered()
    contest.budget.interrupt()
    contest.time_models(["key"], [contest.open_session(model)], 0.0)
    contest.record_timeout(["key"])
    second = contest.next_series()
    second.time_models(["key"], [second.open_session(model)], 0.0)
    assert not open_cost_cache().path.exists()


def test_a_second_race_is_run_in_sessions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    contest, model = entered()
    contest.time_models(["key"], [contest.open_session(model)], 0.0)
    opened: list[object] = []
    open_ = SessionSetting.open

    def opening(*args: Any, **more: Any) -> Any:
        opened.append(args[1])
        return open_(*args, **more)

    monkeypatch.setattr(SessionSetting, "open", opening)
    second, candidate = contest.next_series(), Candidate(model.graph)
    second.runs_like_original[candidate] = False
    for series, place in ((second, 1), (second.next_series(), 0)):  # in the third race the original is opened first
        opened.clear()
        assert all(found.outcome for found in series.race([candidate], 1.0))
        assert (len(opened), opened[place]) == (2, GIVEN)


def test_a_version_that_the_runtime_refuses_does_not_enter() -> None:
    contest, model = entered()
    (vertex,) = model.graph.vertices_with_op("Exp")
    node = model.graph[vertex]
    model.graph.apply(Patch({vertex: node}, {vertex: replace(node, op="Mystery", domain="own", version=0)}))
    with pytest.raises(ModelError, match="own"):
        contest.open_session(model)


@pytest.mark.parametrize(("message", "is_steady"), [("bad_alloc", False), ("invalid model", True)])
def test_a_version_for_which_memory_was_short_may_be_timed_another_time(
    monkeypatch: pytest.MonkeyPatch, message: str, *, is_steady: bool
) -> None:
    contest, model = entered()
    candidate = Candidate(model.graph)

    def refusing(*_: Any) -> Any:
        raise ModelError("the model cannot be loaded") from RuntimeError(message)

    monkeypatch.setattr(RaceSeries, "open_session", refusing)
    monkeypatch.setattr(RaceSeries, "is_like_original", lambda *_: False)
    (found,) = contest.race([candidate], 1.0)
    assert found.refusal
    assert contest.is_steady is is_steady


def timed(_: int) -> bool:
    """A process times, and keeps what it can."""
    contest, model = entered()
    found = contest.time_models(["key"], [contest.open_session(model)], 0.0)
    return contest.recorded_outcomes(["key"]) == found or not found[0].speedup.is_steady(POLICY.timing)


@pytest.mark.slow
def test_processes_may_share_a_cache() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(pool.map(timed, range(2)))


def searches(monkeypatch: pytest.MonkeyPatch, **prices: float) -> list[StopReason]:
    """How each search ended that was really made."""
    made: list[StopReason] = []

    def exploring(*args: Any, **more: Any) -> Exploration:
        exploration = explore_regions(*args, **more)
        made.append(exploration.stop)
        return exploration

    estimate(monkeypatch, **prices)
    outcomes(monkeypatch, 1.0, 1.5)
    monkeypatch.setattr(model_tuner, "explore_regions", exploring)
    return made


def test_what_a_search_found_is_known_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    found = [tuner()[1:] for _ in range(2)]
    assert made == [StopReason.DONE]
    (first, told), (second, told_again) = found
    assert first.graph.operator_counts() == second.graph.operator_counts() == {"Add": 1, "Exp": 1}
    assert told.timing == told_again.timing


@pytest.mark.parametrize(
    "other", [{"seconds": 30.0}, {"admitted_rules_text": "exact"}, {"seed": 1}, {"sizes": {"n": [3]}}]
)
def test_a_search_under_other_circumstances_is_another(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    tuner()
    tuner(**other)
    assert len(made) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "other", [{"seconds": 30.0}, {"seed": 1}, {"inputs": {"x": np.ones((1, 8), np.float32)}}, {"sizes": {"n": [1, 3]}}]
)
def test_a_race_under_other_circumstances_is_another(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    """What is in the inputs may decide what a run costs; and a race in little time is not to bind one that has more."""
    raced = racing(monkeypatch, 1.0, 1.0, 1.0)
    monkeypatch.setattr(model_tuner, "explore_regions", lambda *_, **__: Exploration((), StopReason.DONE))
    tuner()
    tuner()
    before = len(raced)
    tuner(**other)
    assert len(raced) > before == 2


@pytest.mark.parametrize("is_starved", [False, True])
def test_where_time_was_up_it_is_up_in_the_next_run(monkeypatch: pytest.MonkeyPatch, *, is_starved: bool) -> None:
    """With both rewrites it is slower. With one of them it would not be, but there is no time left to see that. If that
    was because of other processes, the next run goes on."""
    now, raced = [0.0], list[int]()

    def racing(runs: Sequence[Callable[[], object]], *_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        raced.append(len(runs))
        now[0] += 9.99
        return TimingSamples((1.0,) * 15), *[TimingSamples((1.2,) * 15)] * (len(runs) - 1)

    monkeypatch.setattr(TimeBudget, "is_starved", is_starved)
    monkeypatch.setattr(RaceSeries, "measure_pace", lambda *_: ModelPace(0.0, 0.09))
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", racing)
    monkeypatch.setattr(model_tuner, "explore_regions", lambda *_, **__: Exploration((), StopReason.DONE))
    for _ in range(2):
        _, model, tuned = tuner(NEG_AND_ABS, [DOUBLE_NEG, DOUBLE_ABS], clock=lambda: now[0])
        assert tuned.candidate.steps == ()
        assert model.graph.operator_counts() == {"Neg": 2, "Abs": 2, "Exp": 1}
    assert raced[:2] == [2, 2]
    assert (len(raced) > 2) is is_starved


@pytest.mark.parametrize("once", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("sweeps", [{}, {"sums": [DOUBLE]}])
def test_a_slow_model_is_searched_less_and_takes_no_more_time(
    monkeypatch: pytest.MonkeyPatch, once: float, sweeps: SweepRules
) -> None:
    """A run takes so long at each of two sizes, the search all that it gets, and nothing else takes any time."""
    now, searched = [0.0], list[float]()

    def run() -> None:
        now[0] += once

    def exploring(*args: Any, **more: Any) -> Exploration:
        searched.append(more["seconds"])
        now[0] += searched[0]
        return explore_regions(*args, **more)

    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr("graphopt.search.race_series.make_runner", lambda *_: run)
    monkeypatch.setattr(SessionSetting, "timer", property(lambda _: lambda: now[0]))
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", partial(time_interleaved, clock=lambda: now[0]))
    monkeypatch.setattr(model_tuner, "explore_regions", exploring)
    policy = SearchPolicy(profiled_run_seconds=math.inf)
    _, _, tuned = tuner(sizes={"n": [1, 2]}, seconds=60.0, sweeps=sweeps, clock=lambda: now[0], policy=policy)
    assert tuned.timing is not None
    assert tuned.timing.speedup is not None
    assert now[0] < 60
    assert (max(searched, default=0.0) > 8) is (once < 0.5)


def test_a_model_that_is_too_slow_to_be_timed_twice_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaceSeries, "measure_pace", lambda *_: ModelPace(1.0, 18.0))
    _, model, tuned = tuner(seconds=60.0, clock=lambda: 0.0)
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}
    why = "not timed: two races would take 75 s, and 60 s are left of --seconds 60"
    assert tuned.notes == (why,)
    assert tuned.timing is not None and (tuned.timing.untimed, tuned.timing.stop) == (why, StopReason.UNTIMED)


def test_a_run_that_is_too_long_says_how_many_seconds_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object, limit: float) -> None:
        raise TimeoutError(f"a run takes more than {limit:g} s")

    monkeypatch.setattr("graphopt.runtime.bench.run_interruptibly", slow)
    _, _, tuned = tuner(seconds=60.0)
    needed = math.ceil(POLICY.profiled_sessions * (2 + POLICY.profiled_rounds[0]) * 12)
    assert tuned.notes == (f"not timed: a run takes more than 12 s, so --seconds {needed} at least are needed",)


def test_a_rule_that_is_only_swept_makes_no_other_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    for swept in ([], [Rule("sine", op.Sin(x), op.Cos(x))], [Rule("cosine", op.Cos(x), op.Sin(x))]):
        model = onnx_io.load_model(GIVEN)
        infer_graph(model.graph)
        trades, tuning = [DOUBLE, *swept], TuningOptions(setting=ONE_THREAD, seconds=20.0)
        start, sweeps = Candidate(model.graph), {"waves": swept}
        Tuner(GIVEN, model, start, [], trades, [], lambda *_: True, tuning, sweeps=sweeps).tune()
    assert len(made) == 1


def test_a_search_that_was_interrupted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    made, speedups = searches(monkeypatch, Mul=2, Add=0.5), Prices.measure_speedups
    monkeypatch.setattr(Prices, "measure_speedups", interrupt)
    tuner()
    monkeypatch.setattr(Prices, "measure_speedups", speedups)
    tuner()
    assert made == [StopReason.INTERRUPTED, StopReason.DONE]


def test_an_interrupt_while_the_machine_is_timed_leaves_the_search_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    outcomes(monkeypatch, 1.5)
    monkeypatch.setattr("graphopt.runtime.machine.Machine.calibrate", interrupt)
    _, model, tuned = tuner()
    assert tuned.timing is not None
    assert tuned.timing.stop == StopReason.INTERRUPTED
    assert model.graph.operator_counts() == {"Mul": 1, "Exp": 1}


def test_an_interrupt_while_optimized_graphs_are_compared_ends_the_run_with_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked again, and nothing further is tried."""
    asked: list[object] = []

    def interrupted(_: RaceSeries, model: object) -> bool:
        asked.append(model)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return False

    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.5)
    monkeypatch.setattr(RaceSeries, "is_original", interrupted)
    _, _, tuned = tuner()
    assert len(asked) >= 2
    assert tuned.timing is not None and tuned.timing.stop == StopReason.INTERRUPTED


def test_a_simplified_model_that_runs_like_the_original_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told of the original is told of it, and the other candidate's gain is over that."""
    raced = racing(monkeypatch, 1.0, 0.5)
    contest, model = entered()
    same, faster = contest.time_models(["same", "faster"], [LIKE_ORIGINAL, contest.open_session(model)], 0.0)
    assert raced == [2, 2], "at each of two sizes"
    assert (same.speedup.median, faster.speedup.median, faster.gain.median) == (1.0, 2.0, 2.0)


def test_an_interrupt_while_sweeps_are_made_keeps_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(start: Candidate, name: str, *rest: Any) -> Candidate | None:
        if name == "second":
            raise KeyboardInterrupt
        return apply_sweep(start, name, *rest)

    outcomes(monkeypatch, 1.0, 1.5)
    monkeypatch.setattr("graphopt.search.sweep_making.apply_sweep", interrupted)
    _, model, tuned = tuner(sweeps={"sums": [DOUBLE], "second": [DOUBLE]})
    assert tuned.timing is not None
    assert (tuned.timing.stop, model.graph.operator_counts()) == (StopReason.INTERRUPTED, {"Add": 1, "Exp": 1})


def test_a_sweep_by_the_same_rules_as_one_before_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    raced, race_sweeps = list[str](), FinalSelection.race_sweeps

    def recorded(self: FinalSelection, first: Any, sweeps: Sequence[Candidate], again: Any) -> Any:
        raced.extend(cause.name for made in sweeps for cause in made.causes if isinstance(cause, Sweep))
        return race_sweeps(self, first, sweeps, again)

    outcomes(monkeypatch, 1.5, 1.5)
    monkeypatch.setattr(FinalSelection, "race_sweeps", recorded)
    tuner(sweeps={"sums": [DOUBLE], "with what matches nowhere": [DOUBLE, Rule("sine", op.Sin(x), op.Cos(x))]})
    assert raced == ["sums"]


@pytest.mark.parametrize(("share", "is_timed"), [(0.003, False), (0.004, True)])
def test_a_sweep_that_replaces_too_little_is_not_timed(
    share: float, monkeypatch: pytest.MonkeyPatch, *, is_timed: bool
) -> None:
    """It might gain three times the share that the estimate gives it, and that is to be more than noise."""
    outcomes(monkeypatch, 1.5, 1.5)
    monkeypatch.setattr(AnalyticCost, "replaced_share", lambda *_: share)
    _, _, tuned = tuner(sweeps={"sums": [DOUBLE]})
    assert tuned.timing is not None
    assert bool(tuned.timing.groups) is is_timed


@pytest.mark.parametrize(("saved", "error", "first"), [(0.1, 0.0, "sums"), (-0.1, 0.0, "others"), (-0.1, 0.2, "sums")])
def test_sweeps_that_promise_most_by_known_kernels_are_timed_first(
    saved: float, error: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is uncertain is worth a look; what is predicted to lose is timed all the same."""
    outcomes(monkeypatch, 1.5, 1.5)
    estimate(monkeypatch)

    def predicted(_: Prices, __: Graph, after: Graph, *_parts: object) -> PredictedGain:
        return PredictedGain(1.0, saved, error) if "Add" in after.operator_counts() else PredictedGain(1.0, 0.0, 0.0)

    monkeypatch.setattr(Prices, "predict_gain", predicted)
    found, _, _ = tuner()
    other = Rule("sine", op.Exp(x), op.Sin(x))  # which is wrong: only its name is looked at
    tuned = replace(found, trades=[DOUBLE, other], sweeps={"others": [other], "sums": [DOUBLE]}).tune()
    assert tuned.timing is not None
    assert {group.name for group in tuned.timing.groups} == {"sums", "others"}
    assert tuned.timing.groups[0].name == first


def test_a_find_that_is_no_longer_admitted_is_not_made() -> None:
    """It was remembered, and its rule is not proved any more."""
    model = onnx_io.load_model(parse("float[8] x", "a = Mul(x, 2.0); y = Exp(a)"))
    infer_graph(model.graph)
    proved = SearchSpace([DOUBLE], Simplifier([], []), lambda *_: True)
    (solution,) = explore_regions(model.graph, proved, Prices(Mul=2, Add=0.5)).solutions
    assert apply_solution(model.graph, solution, replace(proved, allows=lambda *_: False)) == []
    assert len(apply_solution(model.graph, solution, proved)) == 1


@pytest.mark.parametrize(("share", "stop"), [(0.004, StopReason.BOUND), (0.3, StopReason.DONE)])
def test_where_nearly_all_time_is_in_heavy_kernels_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, share: float, stop: StopReason
) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.5)
    monkeypatch.setattr("graphopt.search.race_series.light_kernel_share", lambda *_: share)
    _, _, tuned = tuner(sizes={"n": [4, 16]})
    assert tuned.timing is not None and (tuned.timing.stop, tuned.timing.gainable) == (stop, share)
    assert bool(tuned.timing.states) is (stop is StopReason.DONE)
    assert ("0.4% of the time" in format_search(tuned.timing)) is (stop is StopReason.BOUND)


@pytest.mark.parametrize(("swept", "stop"), [(1.5, StopReason.DONE), (1.0, StopReason.BOUND)])
def test_sweeps_are_timed_also_where_nearly_all_time_is_in_heavy_kernels(
    monkeypatch: pytest.MonkeyPatch, swept: float, stop: StopReason
) -> None:
    """Where one gains, what it made of the model is searched; else nothing is, and the last race is brief."""
    raced: list[float] = []

    def race(
        _contest: RaceSeries, keys: Sequence[str], sessions: Sequence[float], seconds: float, _: float
    ) -> list[RaceOutcome]:
        raced.append(seconds / (len(keys) + 2))
        return [RaceOutcome(known(each), known(each / sessions[0])) for each in sessions]

    estimate(monkeypatch)
    outcomes(monkeypatch, 1.1, 1.1 * swept)
    monkeypatch.setattr(RaceSeries, "time_models", race)
    monkeypatch.setattr("graphopt.search.race_series.light_kernel_share", lambda *_: 0.004)
    _, model, tuned = tuner(sweeps={"sums": [DOUBLE]})
    assert tuned.timing is not None and tuned.timing.stop == stop
    assert [group.is_taken for group in tuned.timing.groups] == [swept > 1]
    assert ("Add" in model.graph.operator_counts()) is (swept > 1)
    assert (raced[-1] <= POLICY.brief_session_seconds) is (stop is StopReason.BOUND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "body", "weights", "output", "is_bound"),
    [
        ("float[256,8] a, float[8,256] b, float[256,8] c", "t = MatMul(a, b); y = MatMul(t, c)", {}, "[256,8]", False),
        ("float[1,64,64] x", "t = MatMul(x, w); y = Slice(t, s, e, o)", {"w": (64, 512)}, "[1,1,512]", False),
        ("float[256,256] x", "t = MatMul(x, w); y = MatMul(t, w)", {"w": (256, 256)}, "[256,256]", True),
    ],
    ids=["products in another order", "a product of which a part is read", "products"],
)
def test_what_an_estimate_speaks_for_is_tried_though_all_time_is_in_products(
    monkeypatch: pytest.MonkeyPatch, inputs: str, body: str, weights: dict[str, Any], output: str, is_bound: bool
) -> None:
    monkeypatch.setattr("graphopt.search.race_series.light_kernel_share", lambda *_: 0.0)
    numbers = {"s": np.array([-1]), "e": np.array([1 << 20]), "o": np.array([1])}
    values = {name: np.ones(shape, np.float32) for name, shape in weights.items()}
    values |= {name: number for name, number in numbers.items() if f" {name}," in body or f" {name})" in body}
    model = parse(inputs, body, values, outputs=f"float{output} y")
    timing = optimize(model, threads=1, seconds=20, check=False).report.timing
    assert timing is not None and (timing.stop == StopReason.BOUND) is is_bound


@pytest.mark.slow
def test_where_there_are_rules_of_ones_own_they_are_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.search.race_series.light_kernel_share", lambda *_: 0.0)
    stops = [optimize(GIVEN, rules=own, seconds=2, dims={"n": 4}).report.timing for own in ([], [DOUBLE_ABS])]
    assert [timing is not None and timing.stop == StopReason.BOUND for timing in stops] == [True, False]


@pytest.mark.slow
def test_a_model_is_tuned_with_onnx_runtime() -> None:
    """Whatever is faster here: the result computes the same, and a second run gives the same."""
    results = []
    for _ in range(2):
        _, model, tuned = tuner(sizes={"n": [4, 16]})
        assert compare_models(GIVEN, model, bindings=[{"n": 1}, {"n": 5}]).verdict is EqualityVerdict.EQUAL
        assert tuned.timing is not None
        assert tuned.timing.cost == "measured"
        results.append((model.graph.operator_counts(), tuned.timing.speedup))
    assert results[0] == results[1]
