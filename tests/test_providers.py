"""`--provider a,b`: results for several providers, each raced in sessions of its own provider."""

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

import graphopt
from graphopt import Options, Result, opset_choice, provider_choice
from graphopt.base.errors import DifferenceError, ModelError, UsageError
from graphopt.base.session import current_session
from graphopt.check.provider_difference import describe_difference
from graphopt.io import onnx_io
from graphopt.report.report import Report
from graphopt.runtime import session_setting
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.measure import TimingSamples
from graphopt.runtime.session_setting import SessionSetting, available_providers, common_timer
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from graphopt.search.pair_race import race_two_models
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.race_series import min_race_seconds
from graphopt.search.search_report import SearchTiming
from graphopt.search.stopping import StopReason
from tests.test_faster_opset import FORGET_NORM, NORM, ratio
from tests.text import parse

MODEL = parse("float[4, 8] x", "a = Neg(x); b = Identity(a); y = Exp(b)", outputs="float[4, 8] y", opset=17)
BARE = parse("float[4, 8] x", "y = Exp(x)", outputs="float[4, 8] y", opset=17)


SECONDS_NEEDED = re.compile(r"--seconds (\d+) at least are needed")

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _more_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the CPU's provider further names, under which it is another."""
    for name in ("fast", "slow"):
        monkeypatch.setitem(session_setting._PROVIDER_NAMES, name, "CPUExecutionProvider")


class Runs:
    """The searches and races of a run, none of which was made in earnest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, float]] = []
        self.raced: list[tuple[str, str]] = []
        self.fails: dict[str, BaseException] = {}
        """Providers with which the search, or in a race the other one, fails."""
        self.stops: dict[str, StopReason | None] = {}
        self.is_of_other_weights = False
        """True where the results are those of a model with other weights."""
        self.pace = {"cpu": 1.0, "fast": 0.5, "slow": 2.0}
        self.lost_race: BaseException | None = None

        def tune(tuner: Tuner) -> TuningResult:
            return self._tune(tuner)

        monkeypatch.setattr(Tuner, "tune", tune)
        monkeypatch.setattr(opset_choice, "race_two_models", self._race)

    def _tune(self, tuner: Tuner) -> TuningResult:
        name = tuner.tuning.setting.provider
        self.asked.append((name, round(tuner.tuning.seconds, 3)))
        if name in self.fails:
            raise self.fails[name]
        stop = self.stops.get(name, StopReason.DONE)
        timing = SearchTiming("measured", "CPUExecutionProvider", 1, speedup=ratio(1.2), stop=stop) if stop else None
        if timing is not None:
            timing = replace(timing, is_of_other_weights=self.is_of_other_weights)
        return TuningResult(tuner.simplified, timing, (f"of {name}", "both"))

    def _race(self, *given: Any, setting: SessionSetting) -> RaceOutcome:
        tuning = given[2]
        self.raced.append((tuning.setting.provider, setting.provider))
        if self.lost_race is not None:
            raise self.lost_race
        speedup = ratio(self.pace[tuning.setting.provider] / self.pace[setting.provider])
        return RaceOutcome(speedup, speedup)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


def optimized(provider: Any, model: Any = MODEL, **options: Any) -> Result:
    return graphopt.optimize(model, provider=provider, seconds=10, threads=1, **options)


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["cpu,fast", ["cpu", "fast"], ("cpu", "fast")])
def test_the_fastest_provider_is_taken(runs: Runs, provider: Any) -> None:
    result = optimized(provider)
    timing, notes = result.report.timing, result.report.notes
    assert result.ok and result.setting.provider == "fast" and timing is not None
    assert runs.asked == [("cpu", 4.0), ("fast", 4.0)]
    assert runs.raced == [("cpu", "fast")] * 2, "the results, then the result and the original"
    assert timing.speedup == ratio(2.0) and timing.original_provider == "CPUExecutionProvider"
    assert notes[-1] == "fast was taken: it is 2.000 times as fast (2.000 to 2.000) as cpu"
    assert "with fast it is 1.200 times as fast (1.200 to 1.200) as the original" in notes
    assert "with fast outputs differ from the original's with cpu by up to 0 of the largest" in notes
    assert notes.count("both") == 1 and "of cpu (with cpu)" in notes and "of fast" in notes


def test_a_race_between_providers_is_of_the_model_itself(runs: Runs) -> None:
    """The searches had repeated what was measured with other weights."""
    runs.is_of_other_weights = True
    timing, notes = (report := optimized("cpu,fast").report).timing, report.notes
    assert timing is not None
    assert timing.speedup == ratio(2.0)
    assert not timing.is_of_other_weights
    said = "with fast it is 1.200 times as fast (1.200 to 1.200) as the original, measured with other weights"
    assert said in notes


def test_the_first_provider_is_kept_where_no_other_is_faster(runs: Runs) -> None:
    result = optimized("cpu,slow")
    assert result.setting.provider == "cpu" and runs.raced == [("cpu", "slow")]
    assert result.report.timing is not None and result.report.timing.original_provider == ""
    assert result.report.notes[-1] == "slow was not taken: it is 0.500 times as fast (0.500 to 0.500) as cpu"


def test_winners_race_on(runs: Runs) -> None:
    result = optimized("slow,cpu,fast")
    assert result.setting.provider == "fast"
    assert runs.raced == [("slow", "cpu"), ("slow", "cpu"), ("cpu", "fast"), ("slow", "fast")]
    assert result.report.timing is not None and result.report.timing.speedup == ratio(4.0)


def test_the_original_does_not_race_twice(runs: Runs) -> None:
    """Where nothing was rewritten for the first provider, its result is the original."""
    assert optimized("cpu,fast", BARE).report.timing is not None
    assert runs.raced == [("cpu", "fast")]


def test_one_provider_is_as_ever(runs: Runs) -> None:
    result = optimized("fast")
    assert runs.asked == [("fast", 10)] and not runs.raced
    assert result.report.session_code == "" and result.setting == SessionSetting("fast", 1)


# -- providers that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UsageError("it does not start"), ModelError("it does not start")])
def test_a_provider_that_fails_is_left_out(runs: Runs, error: Exception) -> None:
    runs.fails["fast"] = error
    result = optimized("fast,cpu,slow")
    assert result.setting.provider == "cpu" and runs.raced == [("cpu", "slow")]
    assert "provider fast was left out: it does not start" in result.report.notes


def test_a_provider_that_is_missing_is_left_out(runs: Runs) -> None:
    (note,) = (note for note in optimized("cpu,cuda").report.notes if "cuda" in note)
    assert note.startswith("provider cuda was left out: this onnxruntime has no CUDAExecutionProvider, only ")
    assert runs.asked == [("cpu", 10)] and not runs.raced, "all the time is for what is there"


@pytest.mark.parametrize("error", [UsageError("it does not start"), ModelError("libcudart.so is missing")])
def test_a_provider_that_does_not_start_takes_no_time(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As with onnxruntime-gpu on a machine without a GPU."""

    def start(setting: SessionSetting) -> None:
        if setting.provider == "slow":
            raise error

    monkeypatch.setattr(SessionSetting, "check_starts", start)
    result = optimized("slow,cpu,fast")
    assert runs.asked == [("cpu", 4.0), ("fast", 4.0)] and result.setting.provider == "fast"
    assert f"provider slow was left out: {error}" in result.report.notes


def test_where_all_fail_the_first_says_why(runs: Runs) -> None:
    runs.fails |= {"fast": ModelError("one"), "cpu": UsageError("two")}
    for providers in ("fast,cpu", "fast,cpu,cuda"):
        with pytest.raises(ModelError, match="one"):
            optimized(providers)


def test_a_provider_with_which_nothing_is_timed_does_not_race(runs: Runs) -> None:
    runs.stops["fast"] = None
    assert optimized("cpu,fast").setting.provider == "cpu"
    assert not runs.raced


def test_where_nothing_is_timed_the_first_is_kept(runs: Runs) -> None:
    runs.stops |= {"fast": None, "cpu": None}
    result = optimized("fast,cpu")
    assert result.setting.provider == "fast" and result.report.timing is None
    assert "provider cpu was left out: nothing was timed with it" in result.report.notes


@pytest.mark.parametrize("error", [ModelError("no time was left"), UsageError("it does not start")])
def test_a_race_that_cannot_be_run_leaves_the_first(runs: Runs, error: Exception) -> None:
    runs.lost_race = error
    assert optimized("cpu,fast").report.notes[-1] == f"fast was not taken: {error}"


def test_the_limits_of_a_run_hold_where_outputs_are_compared(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def described(*_: object) -> str:
        limits.append(current_session().limits.seconds)
        return "they are alike"

    monkeypatch.setattr(provider_choice, "describe_difference", described)
    result = optimized("cpu,fast", run_limit=12.0)
    assert limits == [12.0] and "they are alike" in result.report.notes and len(runs.raced) == 2


def test_a_difference_with_another_provider_is_an_error_with_strict(runs: Runs) -> None:
    runs.fails["fast"] = DifferenceError("they differ")
    assert "provider fast was left out: they differ" in optimized("cpu,fast").report.notes
    with pytest.raises(DifferenceError, match="they differ"):
        optimized("cpu,fast", strict=True)


def test_given_rules_are_read_for_each(runs: Runs) -> None:
    notes = optimized("cpu,fast", NORM, rules=[FORGET_NORM], unverified=True, target_opset=23).report.notes
    assert any("left out" in note for note in notes) and len(runs.raced) == 2


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_was_made(runs: Runs) -> None:
    runs.fails["fast"] = KeyboardInterrupt()
    result = optimized("cpu,fast,slow")
    assert result.setting.provider == "cpu" and [name for name, _ in runs.asked] == ["cpu", "fast"]
    assert "provider fast was left out: it was interrupted" in result.report.notes


def test_an_interrupt_of_the_first_search_ends_the_run_with_it(runs: Runs) -> None:
    runs.stops["cpu"] = StopReason.INTERRUPTED
    assert optimized("cpu,fast").report.notes[-1] == "after cpu no provider was tried: it was interrupted"
    assert len(runs.asked) == 1
    runs.stops = {"fast": StopReason.INTERRUPTED}
    assert not any("no provider was tried" in note for note in optimized("cpu,fast").report.notes)


def test_an_interrupt_of_a_race_keeps_the_first(runs: Runs) -> None:
    runs.lost_race = KeyboardInterrupt()
    assert optimized("cpu,fast,slow").report.notes[-1] == "fast was not taken: it was interrupted"


# -- options -----------------------------------------------------------------------------------------------------------


def test_auto_is_all_that_this_onnxruntime_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's is first, and one that runs models elsewhere is not among them."""
    monkeypatch.undo()
    has = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "Azure", "CPU")]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: has)
    assert available_providers() == Options(provider="auto").providers == ("cpu", "tensorrt", "cuda")
    assert Options(provider="cuda,auto").providers == ("cuda", "cpu", "tensorrt")


def test_a_provider_has_its_own_options() -> None:
    options = Options(provider="cpu,openvino", provider_options={"openvino:precision": "FP32"})
    assert options.for_provider("openvino").setting == SessionSetting("openvino", 0, {"precision": "FP32"})
    assert options.for_provider("cpu").setting == SessionSetting("cpu", 0)
    assert Options(provider="cuda", provider_options={"a": "b", "cuda:c": "d"}).setting.options == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"provider_options": {"a": "b"}}, "of which of cpu, fast is the option 'a'.* write fast:a"),
        ({"provider_options": {"cuda:a": "b"}}, "the option 'cuda:a'. it is not among them"),
        ({"cost": "none"}, "several need cost measured"),
        ({"dask": "tcp://a:1"}, "several need cost measured, and no cluster"),
        ({"provider": ""}, "name a provider"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**{"provider": "cpu,fast"} | options)


@pytest.mark.parametrize(
    ("providers", "options", "share"),
    [("cpu", {}, 1.0), ("cpu,fast", {}, 0.4), ("cpu,fast", {"target_opset": "auto"}, 0.4)],
)
def test_the_seconds_that_are_needed_are_those_of_all_providers(
    monkeypatch: pytest.MonkeyPatch, providers: str, options: Any, share: float
) -> None:
    def slow(*_: object) -> NoReturn:
        raise TimeoutError("a run takes too long")

    monkeypatch.setattr("graphopt.runtime.bench.run_interruptibly", slow)
    policy = SearchPolicy()
    once = policy.first_run_share * 10 * share
    least = policy.profiled_sessions * min_race_seconds(once, policy, is_profiled=True)
    said = next(filter(None, map(SECONDS_NEEDED.search, optimized(providers, **options).report.notes)))
    assert 0 <= int(said[1]) - math.ceil(least / share) <= 1, "beside them is what loading and the check take"


def test_other_commands_take_one() -> None:
    with pytest.raises(UsageError, match="only optimize takes several providers: not cpu, fast"):
        _ = Options(provider="cpu,fast").setting


@pytest.mark.parametrize("given", ["cpu,CPUExecutionProvider", "CPU,cpu", ["CPUExecutionProvider"]])
def test_one_provider_by_two_names_is_one(runs: Runs, given: Any) -> None:
    assert optimized(given).setting.provider == "cpu"
    assert runs.asked == [("cpu", 10)]


def test_an_option_may_name_its_provider_as_onnxruntime_does() -> None:
    given = {"OpenVINOExecutionProvider:precision": "FP32"}
    options = Options(provider="cpu,OpenVINO", provider_options=given).for_provider("openvino")
    assert options.setting == SessionSetting("openvino", 0, {"precision": "FP32"})


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runs")
def test_the_report_says_how_to_open_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    report = optimized("cpu,fast").report
    report.print()
    text = capsys.readouterr().out
    assert ") as the original with CPUExecutionProvider" in " ".join(text.split())
    assert text.rstrip().endswith(report.session_code)
    assert Report.from_json(report.to_json()).session_code == report.session_code


@pytest.mark.usefixtures("runs")
def test_the_code_opens_the_result(tmp_path: Any) -> None:
    result = optimized("cpu,fast")
    result.save(tmp_path / "fast.onnx")
    made: dict[str, Any] = {}
    exec(result.session_code(tmp_path / "fast.onnx"), made)
    assert made["session"].get_providers() == ["CPUExecutionProvider"]
    assert made["options"].intra_op_num_threads == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = Neg(x)", "by up to 0 of the largest"),
        (
            "m = Mul(x, k); y = Neg(m)",
            r"by up to 0.001 of the largest, more than the \de-06 of rounding: it may compute in",
        ),
        ("s = Sqrt(x); y = Neg(s)", "the output .y. "),
    ],
)
def test_lower_precision_is_told(body: str, said: str) -> None:
    cpu = SessionSetting("cpu", 1)
    weights = {"k": np.array(1.001, np.float32)} if "k" in body else {}
    original = onnx_io.load_model(parse("float[4, 8] x", "y = Neg(x)", outputs="float[4, 8] y"))
    other = onnx_io.load_model(parse("float[4, 8] x", body, weights, outputs="float[4, 8] y"))
    found = describe_difference(original, prepare_models([original], cpu), other, SessionSetting("fast", 1))
    assert found.startswith("with fast ") and re.search(said, found)


def test_sessions_of_two_providers_are_timed_by_the_wall() -> None:
    one = SessionSetting("cpu", 1)
    assert common_timer(one, SessionSetting("cpu", 1)) is one.timer
    assert common_timer(one, SessionSetting("openvino", 1)) is time.perf_counter


def test_results_take_turns_in_sessions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wins is timed a second time, with its own setting."""
    opened: list[str] = []
    open_plainly = SessionSetting.open

    def opening(setting: SessionSetting, model: Any, **options: Any) -> Any:
        opened.append(setting.provider)
        return open_plainly(setting, model, **options)

    def interleaved(runs: list[Callable[[], object]], *_: Any, **__: Any) -> tuple[TimingSamples, ...]:
        assert len(runs) == 2
        return TimingSamples((1.0,) * 15), TimingSamples((0.5,) * 15)

    monkeypatch.setattr(SessionSetting, "open", opening)
    monkeypatch.setattr("graphopt.runtime.measure.time_interleaved", interleaved)
    loaded = onnx_io.load_model(MODEL)
    tuning = TuningOptions(setting=SessionSetting("cpu", 1), seconds=0.01)
    cache = open_cost_cache(fresh=True)
    found = race_two_models(loaded, loaded, tuning, 60.0, cache, setting=SessionSetting("fast", 1))
    assert found.is_faster and opened == ["cpu", "fast"] * 2
