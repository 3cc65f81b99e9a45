"""`--target-opset auto`: a result in the model's opset, and one in the first opset that has all that rules write."""

import logging
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

import graphopt
from graphopt import Options, Result, opset_choice
from graphopt.base.errors import DifferenceError, ModelError, UsageError
from graphopt.io import onnx_io
from graphopt.rule import Rule, op, tensor
from graphopt.rules import TRADES
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.measure import Speedup, TimingSamples
from graphopt.search.explore import Exploration
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from graphopt.search.pair_race import race_two_models
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import Latency, RaceOutcome, TimeSummary
from graphopt.search.search_report import SearchTiming
from graphopt.search.stopping import StopReason
from tests.test_tune import ONE_THREAD
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")

POLICY = SearchPolicy()
BODY = "q = Mul(x, x); m = ReduceMean<axes = [-1]>(q); a = Add(m, e); r = Sqrt(a); d = Div(x, r); y = Mul(d, w)"
WEIGHTS = {"e": np.array(1e-5, np.float32), "w": np.ones(8, np.float32)}
NORM = parse("float[4, 8] x", BODY, WEIGHTS, outputs="float[4, 8] y", opset=17)
PLAIN = parse("float[4, 8] x", "a = Neg(x); b = Identity(a); y = Exp(b)", outputs="float[4, 8] y", opset=17)
FORGET_NORM = Rule("forget_norm", op.RMSNormalization(tensor("x"), tensor("w")), op.Mul(tensor("x"), tensor("w")))


def ratio(median: float) -> Speedup:
    return Speedup(median, median, median, median, rounds=30)


def timed(stop: StopReason = StopReason.DONE) -> SearchTiming:
    return SearchTiming("measured", "CPUExecutionProvider", 1, speedup=ratio(1.5), stop=stop)


class Runs:
    """The searches that a run made, none of which was made in earnest: the opset and the seconds of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gain: float = 1.5) -> None:
        self.asked: list[tuple[int, float]] = []
        self.stops: dict[int, StopReason | type[KeyboardInterrupt] | None] = {}
        self.gain: float | type[KeyboardInterrupt] = gain
        self.raced = 0

        def tune(tuner: Tuner) -> TuningResult:
            return self._tune(tuner)

        monkeypatch.setattr(Tuner, "tune", tune)
        monkeypatch.setattr(opset_choice, "race_two_models", self._face)

    def _tune(self, tuner: Tuner) -> TuningResult:
        opset = tuner.model.graph.opsets[""]
        self.asked.append((opset, tuner.tuning.seconds))
        stop = self.stops.get(opset, StopReason.DONE)
        if stop is KeyboardInterrupt:
            raise KeyboardInterrupt
        return TuningResult(
            tuner.simplified, timed(stop) if isinstance(stop, StopReason) else None, (f"{opset}", "both")
        )

    def _face(self, *_: Any, **__: Any) -> RaceOutcome:
        self.raced += 1
        if not isinstance(self.gain, float):
            raise KeyboardInterrupt
        return RaceOutcome(ratio(self.gain), ratio(self.gain))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def auto(model: Any = NORM, **options: Any) -> Result:
    return graphopt.optimize(model, target_opset="auto", seconds=10, threads=1, **options)


def opset(result: Result) -> int:
    return result.report.after.opsets["ai.onnx"]


@pytest.mark.parametrize(("gain", "expected"), [(1.5, 23), (1.0, 17)])
def test_the_opset_is_raised_where_that_is_measured_to_be_faster(runs: Runs, gain: float, expected: int) -> None:
    runs.gain = gain
    result = auto()
    assert result.ok and opset(result) == expected
    assert ("RMSNormalization" in result.report.after.ops) == (expected == 23)
    taken = "" if expected == 23 else "not "
    said = f"opset 23 was {taken}taken: it is {gain:.3f} times as fast ({gain:.3f} to {gain:.3f}) as opset 17"
    assert result.report.notes[-1] == said
    assert runs.asked == [(17, 4.5), (23, 4.5)]


def test_what_is_slower_at_some_size_is_not_faster() -> None:
    latencies = tuple(Latency({}, TimeSummary(1, 1, 0), TimeSummary(1, 1, 0), ratio(gain)) for gain in (3.0, 0.8))
    assert RaceOutcome(ratio(1.5), ratio(1.5), latencies[:1]).is_faster
    assert not RaceOutcome(ratio(1.5), ratio(1.5), latencies).is_faster


def test_auto_needs_a_machine_to_measure_on() -> None:
    with pytest.raises(UsageError, match="auto needs cost measured"):
        Options(target_opset="auto", cost="none")


# -- whether it is tried -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "only"), [(23, None), (17, ["eliminate_identity"])])
def test_all_the_time_is_for_the_models_opset_where_no_rule_writes_what_is_newer(
    runs: Runs, own: int, only: list[str] | None
) -> None:
    body = "a = Neg(x); b = Identity(a); y = Exp(b)"
    result = auto(parse("float[4, 8] x", body, outputs="float[4, 8] y", opset=own), only=only)
    assert runs.asked == [(own, 10)]
    assert result.report.notes[-1] == f"no other opset was tried: opset {own} has all that rules write here"


def test_no_other_opset_is_tried_for_rules_that_are_not_admitted(runs: Runs) -> None:
    """None that writes what came with a newer opset is exact."""
    assert auto(exact=True).report.notes[-1] == "no other opset was tried: opset 17 has all that rules write here"
    assert runs.asked == [(17, 10)]


def test_all_the_time_is_for_the_models_opset_where_half_of_it_is_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> NoReturn:
        raise TimeoutError("a run takes too long")

    monkeypatch.setattr("graphopt.runtime.bench.run_interruptibly", slow)
    needed = math.ceil(POLICY.profiled_sessions * (2 + POLICY.profiled_rounds[0]) * POLICY.first_run_share * 10)
    *_, slowness, opset = auto().report.notes
    said = re.fullmatch(r"not timed: a run takes too long, so --seconds (\d+) at least are needed", slowness)
    assert said and 0 <= int(said[1]) - needed <= 1, "beside them is what loading and the check take"
    assert opset == "opset 23 was not tried: half of --seconds is too little to time anything"


def test_no_other_opset_is_tried_where_nothing_can_be_timed(runs: Runs) -> None:
    runs.stops[17] = None
    assert auto().report.notes[-1] == "opset 23 was not tried: nothing was timed in opset 17"
    assert runs.asked == [(17, 4.5)]


def test_what_was_not_timed_is_not_taken(runs: Runs) -> None:
    runs.stops[23] = None
    assert auto().report.notes[-1] == "opset 23 was not taken: nothing was timed there"
    assert runs.raced == 0


@pytest.mark.parametrize(
    ("stop", "said"),
    [(StopReason.DONE, "pays there"), (StopReason.TIME, "was found there before the search ended")],
)
def test_two_results_of_the_same_rewrites_do_not_race(runs: Runs, stop: StopReason, said: str) -> None:
    runs.stops[23] = stop
    assert auto(PLAIN).report.notes[-1] == f"opset 23 was not taken: no other rewrite {said}"
    assert runs.raced == 0


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_an_interrupt_in_the_models_opset_leaves_the_other_out(runs: Runs) -> None:
    runs.stops[17] = StopReason.INTERRUPTED
    result = auto()
    assert opset(result) == 17 and runs.asked == [(17, 4.5)]
    assert result.report.notes[-1] == "opset 23 was not tried: it was interrupted"


@pytest.mark.parametrize("when", [StopReason.INTERRUPTED, KeyboardInterrupt, "race"])
def test_an_interrupt_in_the_other_opset_keeps_what_was_made_in_the_models(runs: Runs, when: Any) -> None:
    if when == "race":
        runs.gain = KeyboardInterrupt
    else:
        runs.stops[23] = when
    result = auto()
    assert opset(result) == 17 and result.ok
    assert result.report.notes[-1] == "opset 23 was not taken: it was interrupted"


def test_an_interrupt_in_the_last_race_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search before it has come to its end."""
    left = [1]

    def interleaved(runs: list[Callable[[], object]], *_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        if left:
            left.pop()
            raise KeyboardInterrupt
        return tuple(TimingSamples((1.0,) * 15) for _ in runs)

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    monkeypatch.setattr(Tuner, "_cached_exploration", lambda *_: Exploration((), StopReason.DONE))
    result = auto()
    assert result.report.timing is not None and result.report.timing.stop == StopReason.INTERRUPTED
    assert result.report.notes[-1] == "opset 23 was not tried: it was interrupted"


# -- what is reported --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gain", [1.5, 1.0])
def test_the_report_has_the_notes_and_the_seconds_of_both(runs: Runs, gain: float) -> None:
    runs.gain = gain
    report = auto().report
    taken, left = (23, 17) if gain == 1.5 else (17, 23)
    assert report.notes.count("both") == 1
    assert f"{taken}" in report.notes and f"{left} (in opset {left})" in report.notes
    assert {"simplify", "convert", "search", "check"} <= report.seconds.keys()


def test_a_rewrite_that_was_left_out_in_the_other_opset_is_told(runs: Runs) -> None:
    runs.gain = 1.0
    (note,) = (note for note in auto(rules=[FORGET_NORM], unverified=True).report.notes if "left out" in note)
    assert note.startswith("the rule 'forget_norm' was left out") and note.endswith("(in opset 23)")


@pytest.mark.usefixtures("runs")
def test_a_difference_in_the_other_opset_is_an_error_with_strict() -> None:
    with pytest.raises(DifferenceError, match="made by the rule 'forget_norm'"):
        auto(rules=[FORGET_NORM], unverified=True, strict=True)


@pytest.mark.usefixtures("runs")
def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    (rule,) = (rule for rule in TRADES if rule.name == "fuse_microsoft_rotary_embedding")
    with caplog.at_level(logging.WARNING):
        auto(rules=[replace(rule, name="own")], unverified=True)
    assert [record.getMessage() for record in caplog.records] == [
        "own: not used, as only --target onnxruntime has ONNX Runtime's own operators"
    ]


# -- the race ----------------------------------------------------------------------------------------------------------


def models() -> tuple[onnx_io.LoadedModel, onnx_io.LoadedModel]:
    longer = parse("float[4, 8] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[4, 8] y")
    return onnx_io.load_model(longer), onnx_io.load_model(parse("float[4, 8] x", "y = Exp(x)", outputs="float[4, 8] y"))


def raced(
    limit: float = 60.0,
    seconds: float = 0.01,
    *,
    fresh: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> RaceOutcome:
    tuning = TuningOptions(setting=ONE_THREAD, seconds=seconds)
    return race_two_models(*models(), tuning, limit, open_cost_cache(fresh=fresh), clock)


def test_two_models_take_turns() -> None:
    found = raced()
    assert found.speedup.rounds >= 11 and len(found.latencies) == 1


def test_what_was_raced_once_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    def interleaved(runs: list[Callable[[], object]], *_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        turns.append(len(runs))
        return tuple(TimingSamples((seconds,) * 15) for seconds in (1.0, 0.5))

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    assert raced() == raced()
    assert turns == [2, 2], "what won a race has to win a second one"
    assert raced(fresh=True).is_faster
    assert turns == [2, 2, 2, 2]


@pytest.mark.parametrize(("second", "faster"), [(0.5, True), (0.995, False), (1.0, False), (1.5, False)])
def test_what_wins_one_race_alone_is_not_faster(
    monkeypatch: pytest.MonkeyPatch, second: float, *, faster: bool
) -> None:
    told = [second, 0.5]

    def interleaved(*_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        return tuple(TimingSamples((seconds,) * 15) for seconds in (1.0, told.pop()))

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    assert raced().is_faster is faster


def test_what_wins_a_race_and_has_no_time_for_a_second_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def interleaved(*_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        now[0] += 60.0
        return tuple(TimingSamples((seconds,) * 15) for seconds in (1.0, 0.5))

    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    with pytest.raises(ModelError, match=r"it is 2.000 times as fast .* in one race, and in no second: a race would"):
        raced(clock=lambda: now[0])


def test_a_race_for_which_no_time_is_left_is_not_made_by_later_runs_either() -> None:
    with pytest.raises(ModelError, match="two races would take 1 s, and 0 s are left of the --seconds"):
        raced(limit=0.0)
    with pytest.raises(ModelError, match=r"no time was left to time it, in an earlier run \(--fresh tries again\)"):
        raced()
    assert raced(fresh=True).speedup.rounds >= 7
