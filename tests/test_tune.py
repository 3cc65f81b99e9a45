"""From a simplified model to the fastest version: the search and the last word together."""

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from graphopt.base.errors import ModelError, UsageError
from graphopt.check.compare import compare
from graphopt.check.verdict import Verdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Patch
from graphopt.language.rule import Rule, op, tensor
from graphopt.operators.infer import infer_graph
from graphopt.pipeline import optimize
from graphopt.report.report import search_text
from graphopt.rewrite.fixpoint import Simplifier
from graphopt.rewrite.regions import digest
from graphopt.rewrite.variant import Variant
from graphopt.runtime.bench import prepared
from graphopt.runtime.cost import user_cache
from graphopt.runtime.measure import Samples, Speedup, interleaved
from graphopt.runtime.sessions import Setting
from graphopt.search import tune
from graphopt.search.choose import Version
from graphopt.search.explore import Exploration, explore
from graphopt.search.moves import Space, apply
from graphopt.search.race import Contest, Latency, Outcome, Pace, Times
from graphopt.search.sweep import Sweep, Sweeps
from graphopt.search.timing import Group, StopReason
from graphopt.search.tune import Tuned, Tuner, Tuning
from tests.test_search import Prices
from tests.text import parse

x = tensor("x")
DOUBLE_NEG = Rule("double_neg", op.Neg(op.Neg(x)), x)
DOUBLE_ABS = Rule("double_abs", op.Abs(op.Abs(x)), op.Abs(x))
DOUBLE = Rule("double_is_sum", x * 2.0, x + x)
GIVEN = parse("float[n,8] x", "a = Neg(x); b = Neg(a); c = Mul(b, 2.0); y = Exp(c)", outputs="float[n,8] y")
NEG_AND_ABS = parse(
    "float[n,8] x", "a = Neg(x); b = Neg(a); c = Abs(b); d = Abs(c); y = Exp(d)", outputs="float[n,8] y"
)
ONE_THREAD = Setting(threads=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))


def tuner(
    given: onnx.ModelProto = GIVEN,
    rules: Sequence[Rule] = (DOUBLE_NEG,),
    *,
    sweeps: Sweeps = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
    **wanted: Any,
) -> tuple[Tuner, onnx_io.Model, Tuned]:
    """A tuner, its model, and what it made of it."""
    model = onnx_io.load(given)
    infer_graph(model.graph)
    simplified = Variant(model.graph).then(lambda graph: Simplifier(rules, []).run(graph).steps)
    tuning = Tuning(**{"setting": ONE_THREAD, "seconds": 20.0, **wanted})
    found = Tuner(given, model, simplified, rules, [DOUBLE], [], lambda *_: True, tuning, sweeps=sweeps, clock=clock)
    tuned = found.tune()
    return found, replace(model, graph=tuned.variant.graph), tuned


def estimate(monkeypatch: pytest.MonkeyPatch, **prices: float) -> None:
    monkeypatch.setattr(Tuner, "_cost", lambda self: Prices(**prices))


def outcomes(monkeypatch: pytest.MonkeyPatch, simplified: float, searched: float = 1.0) -> None:
    """Let the versions be so fast: the simplified model, and what the search made of it, which is a sum."""

    def race(_contest: Contest, keys: Sequence[str], sessions: Sequence[float], *_: float) -> list[Outcome]:
        assert len(keys) == len(sessions)
        return [Outcome(known(each), known(each / sessions[0])) for each in sessions]

    monkeypatch.setattr(Contest, "pace", lambda *_: Pace(0.0, 0.0))
    monkeypatch.setattr(Contest, "opened", lambda _, model: searched if "Add" in model.graph.ops() else simplified)
    monkeypatch.setattr(Contest, "race", race)


def known(ratio: float) -> Speedup:
    return Speedup(ratio, ratio, ratio, ratio, rounds=9)


# -- by estimate -------------------------------------------------------------------------------------------------------


def test_by_estimate_all_that_it_speaks_for_is_taken_and_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(Setting, "open", lambda *_, **__: pytest.fail("a session was opened"))
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.ops() == {"Add": 1, "Exp": 1}
    assert [step.name for step in tuned.variant.history] == ["double_neg", "double_is_sum"]
    assert tuned.timing is not None
    assert not tuned.timing.is_gain
    (group,) = tuned.timing.groups
    assert (group.rules, group.copies, group.is_taken) == (("double_is_sum",), 1, True)
    assert group.speedup == pytest.approx(3 / 1.5)
    assert group.saved == pytest.approx(3 - 1.5)
    assert compare(GIVEN, model, bindings=[{"n": 1}, {"n": 5}]).verdict is Verdict.EQUAL


def test_a_find_that_no_copy_allows_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(tune, "apply", lambda *_, **__: [])
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert [(group.is_taken, group.rewrites) for group in tuned.timing.groups] == [(False, (1, 1))]


def test_a_find_that_there_was_no_time_to_make_is_said_to_be_left_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def exploring(*args: Any, **more: Any) -> Exploration:
        found = explore(*args, **more)
        now[0] += 21.0
        return found

    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr(tune, "explore", exploring)
    _, model, tuned = tuner(cost="analytic", seconds=20.0, clock=lambda: now[0])
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert (tuned.timing.groups[0].is_taken, tuned.timing.stop) == (False, StopReason.TIME)


def test_what_an_estimate_speaks_against_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=1.5)
    _, model, tuned = tuner(cost="analytic")
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert (tuned.timing.groups, tuned.timing.regions, tuned.timing.stop) == ((), 1, StopReason.DONE)


def test_what_is_swept_over_the_model_is_not_searched_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    model = onnx_io.load(GIVEN)
    infer_graph(model.graph)
    simplified = Variant(model.graph).then(lambda graph: Simplifier([DOUBLE_NEG], []).run(graph).steps)
    tuning = Tuning(cost="analytic", setting=ONE_THREAD)
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

    monkeypatch.setattr(tune, "explore", explore)
    tuner(cost="analytic", sizes={"n": [16, 128]})
    assert [tuple(shapes["x"]) for shapes in seen] == [(16, 8), (128, 8)]


def test_what_an_estimate_is_asked_for_has_to_fit_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are given say how large their open dims are, also where the others share them."""
    seen: list[Mapping[str, Sequence[int]]] = []

    def explore(*args: Any, **_: Any) -> Exploration:
        seen.extend(args[3])
        return Exploration((), StopReason.DONE)

    monkeypatch.setattr(tune, "explore", explore)
    given = parse("float[n,8] x, float[n,8] w", "y = Add(x, w)")
    tuner(given, cost="analytic", inputs={"x": np.ones((5, 8), np.float32)})
    assert [(tuple(shapes["x"]), tuple(shapes["w"])) for shapes in seen] == [((5, 8), (5, 8))]
    with pytest.raises(UsageError, match="there is no open dim 'm'; there is 'n'"):
        tuner(given, cost="analytic", sizes={"m": [1, 2]})
    with pytest.raises(UsageError, match="'n' cannot be 0"):
        tuner(given, cost="analytic", sizes={"n": [0, 2]})


def test_an_unknown_cost_is_named() -> None:
    with pytest.raises(UsageError, match="there is no cost 'guessed'; there is measured, analytic, none"):
        Tuning(cost="guessed")


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_without_time_there_is_no_search(seconds: float) -> None:
    with pytest.raises(UsageError, match="a search needs more than"):
        Tuning(cost="analytic", seconds=seconds)
    assert Tuning(cost="none", seconds=seconds).cost == "none"


def test_a_provider_that_is_missing_is_named_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="no NoSuchProvider"):
        Tuning(setting=Setting("NoSuchProvider"))
    assert Tuning(cost="analytic", setting=Setting("NoSuchProvider")).setting.threads == 1


# -- by measurement ----------------------------------------------------------------------------------------------------


def test_a_find_that_is_faster_in_the_whole_model_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.5)
    _, model, tuned = tuner()
    assert model.graph.ops() == {"Add": 1, "Exp": 1}
    assert tuned.timing is not None
    assert tuned.timing.is_gain
    assert [(group.is_taken, group.rewrites) for group in tuned.timing.groups] == [(True, (1, 2))]


def test_a_find_that_is_slower_in_the_whole_model_is_dropped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 0.8)
    _, model, tuned = tuner()
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.timing is not None
    assert [(group.is_taken, group.rewrites) for group in tuned.timing.groups] == [(False, (1, 1))]
    assert tuned.notes == ()


def test_what_a_sweep_saves_is_measured() -> None:
    """Of two sizes it is the mean."""

    def version(seconds: Sequence[float], *sweeps: Sweep) -> Version:
        times = [Times(each, each, 0.0) for each in seconds]
        found = known(2 / sum(seconds))
        return Version(
            Variant(Graph()),
            sweeps,
            speedup=found,
            gain=found,
            latencies=tuple(Latency({"n": n}, time, time, found) for n, time in enumerate(times)),
        )

    made = version([0.25, 0.75], Sweep("all", ("a_rule",), Variant(Graph())))
    assert tune._swept(made, version([0.5, 1.5]), made) == Group(("a_rule",), 0, 2.0, True, (0, 0), 0.5)


def test_a_simplified_model_that_is_slower_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=2)
    outcomes(monkeypatch, 0.8, 0.8)
    _, model, tuned = tuner()
    assert model.graph.ops() == {"Neg": 2, "Mul": 1, "Exp": 1}
    assert tuned.variant.history == ()
    (note,) = tuned.notes
    assert note.startswith("the simplified model was slower in two races, 0.800 times as fast (0.800 to 0.800)")
    assert note.endswith("so the original is returned")


def refusing(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[Mapping[str, int]], bool]) -> None:
    """Let ONNX Runtime refuse versions with such operators."""
    opened = Contest.opened

    def opening(contest: Contest, model: onnx_io.Model) -> Any:
        if is_refused(model.graph.ops()):
            raise ModelError("no kernel")
        return opened(contest, model)

    monkeypatch.setattr(Contest, "opened", opening)


def test_a_simplified_model_that_the_runtime_refuses_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Add=2)
    refusing(monkeypatch, lambda ops: "Neg" not in ops)
    _, model, tuned = tuner()
    assert model.graph.ops() == {"Neg": 2, "Mul": 1, "Exp": 1}
    assert tuned.notes == ("the simplified model does not run: no kernel; so the original is returned",)


def test_a_simplified_model_for_which_there_was_no_room_is_kept_and_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ModelError("no room")

    estimate(monkeypatch, Add=2)
    monkeypatch.setattr(Contest, "race", failing)
    _, model, tuned = tuner(sweeps={"sums": [DOUBLE]})
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.notes == ("the simplified model was not timed: there was no time or no room",)
    assert tuned.timing is not None
    assert (tuned.timing.speedup, tuned.timing.simplified) == (None, None)
    assert [group.speedup for group in tuned.timing.groups] == [None]


def test_a_find_that_is_left_says_what_it_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.01)
    _, _, tuned = tuner()
    assert tuned.timing is not None
    gave = "the model with it is 1.010 times as fast (1.010 to 1.010) as without it"
    why = "what differs by 2% or less is not told from chance"
    assert [group.reason for group in tuned.timing.groups] == [f"{gave}; {why}"]


def test_what_the_runtime_refuses_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rules one makes what ONNX Runtime has no kernel for."""
    estimate(monkeypatch, Add=2)
    outcomes(monkeypatch, 1.0)
    refusing(monkeypatch, lambda ops: "Neg" not in ops)
    _, model, tuned = tuner(NEG_AND_ABS, [DOUBLE_NEG, DOUBLE_ABS])
    assert model.graph.ops() == {"Neg": 2, "Abs": 1, "Exp": 1}
    assert tuned.notes == ("left out, for the model with it does not run: double_neg (no kernel)",)


def test_a_model_that_is_refused_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("no kernel")

    monkeypatch.setattr(Setting, "open", refuse)
    _, model, tuned = tuner()
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.notes == ("not timed: no kernel",)
    assert tuned.timing is None


def test_a_model_for_which_there_is_no_room_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory()._replace(available=79)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    weights = {"w": np.ones(2, np.float32)}
    given = parse("float[n,2] x", "a = Neg(x); b = Neg(a); y = Mul(b, w)", weights, outputs="float[n,2] y")
    _, model, tuned = tuner(given)
    assert model.graph.ops() == {"Mul": 1}
    assert tuned.notes == ("not timed: that takes 0.0 GB of memory, and 0.0 GB are free",)


def test_a_model_that_is_too_large_is_simplified_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.base.limits.LARGE", 0)
    assert tuner()[2].notes == ("not timed: 0.0 GB of weights are too much",)


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]> test (float[2] x, bool c) => (float[2] y) {{
    y = If(c) <
        then_branch = t () => (float[2] p) {{ v = Constant<value = float[2] {{1.0, {}}}>() p = Add(x, v) }},
        else_branch = e () => (float[2] q) {{ w = Constant<value = float[2] {{3.0, 4.0}}>() q = Sub(x, w) }}
    >
}}"""


def test_weights_in_branches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    given = onnx.parser.parse_model(BRANCHES.format(2.0))
    monkeypatch.setattr("graphopt.base.limits.LARGE", 2 * 8 - 1)
    assert tuner(given)[2].notes == ("not timed: 0.0 GB of weights are too much",)


# -- with ONNX Runtime -------------------------------------------------------------------------------------------------


def entered() -> tuple[Contest, onnx_io.Model]:
    """A contest between the given model and the simplified one."""
    model = onnx_io.load(GIVEN)
    infer_graph(model.graph)
    own = digest(model.graph)
    ready = prepared([GIVEN], ONE_THREAD, dims={"n": [2, 3]})
    Simplifier([DOUBLE_NEG], []).run(model.graph)
    return Contest(ready, GIVEN, own, user_cache()), model


FUNCTION = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
test (float[2] x) => (float[2] y) {{ y = local.f(x) }}
<domain: "local", opset_import: ["" : 18]> f (a) => (b) {{ b = {}(a) }}"""


@pytest.mark.parametrize(("text", "one", "other"), [(FUNCTION, "Exp", "Sin"), (BRANCHES, 2.0, 1e-42)])
def test_models_that_differ_in_a_function_or_a_branch_share_no_verdicts(text: str, one: object, other: object) -> None:
    digests = []
    for what in (one, other, one):
        given = onnx.parser.parse_model(text.format(what))
        model = onnx_io.load(given, inline_functions=False)
        infer_graph(model.graph)
        made = Tuner(given, model, Variant(model.graph), [], [], [], lambda *_: True, Tuning(setting=ONE_THREAD))
        digests.append(made._contest(prepared([given], ONE_THREAD)).digest)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.slow
def test_versions_are_fed_types_that_numpy_does_not_have() -> None:
    given = parse("bfloat16[n,8] x", "a = Cast<to=1>(x); b = Neg(a); c = Neg(b); y = Exp(c)", outputs="float[n,8] y")
    _, model, tuned = tuner(given)
    assert model.graph.ops() == {"Cast": 1, "Exp": 1}
    assert tuned.notes == ()
    assert tuned.timing is not None
    assert tuned.timing.speedup is not None


def racing(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> list[int]:
    """Let the original, its copy and versions take so many seconds; tells how many took turns each time."""
    raced: list[int] = []

    def timed(runs: Sequence[Callable[[], object]], **_: Any) -> tuple[Samples, ...]:
        raced.append(len(runs))
        return tuple(Samples((each,) * 9) for each in seconds[: len(runs)])

    monkeypatch.setattr("graphopt.search.race.interleaved", timed)
    return raced


def test_what_was_timed_once_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    racing(monkeypatch, 1.0, 1.0, 0.5)
    contest, model = entered()
    found = contest.race(["key"], [contest.opened(model)], 0.0)
    assert found[0].speedup.median == 2
    assert [latency.sizes["n"] for latency in found[0].latencies] == [2, 3]
    again, _ = entered()
    assert again.known(["key"]) == found
    assert again.known(["other"]) is again.again().known(["key"]) is None


def test_what_was_timed_on_a_busy_machine_binds_no_later_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of the original takes a tenth longer."""
    racing(monkeypatch, 1.0, 1.1, 0.5)
    contest, model = entered()
    (found,) = contest.race(["key"], [contest.opened(model)], 0.0)
    assert found.speedup.noise == pytest.approx(0.1)
    contest.end(["key"])
    assert not user_cache().path.exists()


def test_a_contest_that_the_runtime_times_has_all_that_was_asked_for() -> None:
    contest, model = entered()
    (found,) = contest.race(["key"], [contest.opened(model)], 0.0)
    assert found.speedup.rounds == found.gain.rounds == 2 * 7


def test_how_long_a_run_takes_is_asked_of_a_few() -> None:
    """Of runs that are short the fastest of a few counts, at each of two sizes."""
    contest, _ = entered()
    times = [0.0, 3.0, 0.0, 0.25, 1.0, 1.125, 2.0, 2.25, 3.0, 4.0]
    assert contest.pace(iter(times).__next__) == Pace(3.0, 0.125 + 1.0)


def test_what_was_timed_in_a_hurry_binds_no_later_run() -> None:
    contest, model = entered()
    contest.keeps = False
    contest.race(["key"], [contest.opened(model)], 0.0)
    contest.end(["key"])
    second = contest.again()
    second.race(["key"], [second.opened(model)], 0.0)
    assert not user_cache().path.exists()


def test_a_second_race_is_run_in_sessions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    contest, model = entered()
    contest.race(["key"], [contest.opened(model)], 0.0)
    opened: list[object] = []
    open_ = Setting.open

    def opening(*args: Any, **more: Any) -> Any:
        opened.append(args[1])
        return open_(*args, **more)

    monkeypatch.setattr(Setting, "open", opening)
    second = contest.again()
    second.race(["key"], [second.opened(model)], 0.0)
    assert len(opened) == 3
    assert opened[1] is opened[2] is GIVEN


def test_a_version_that_the_runtime_refuses_does_not_enter() -> None:
    contest, model = entered()
    (vertex,) = model.graph.with_op("Exp")
    node = model.graph[vertex]
    model.graph.apply(Patch({vertex: node}, {vertex: replace(node, op="Mystery", domain="own", version=0)}))
    with pytest.raises(ModelError, match="own"):
        contest.opened(model)


def timed(_: int) -> bool:
    """A process times, and keeps what it can."""
    contest, model = entered()
    found = contest.race(["key"], [contest.opened(model)], 0.0)
    return contest.known(["key"]) == found or not found[0].speedup.is_steady


@pytest.mark.slow
def test_processes_may_share_a_cache() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(pool.map(timed, range(2)))


def searches(monkeypatch: pytest.MonkeyPatch, **prices: float) -> list[StopReason]:
    """How each search ended that was really made."""
    made: list[StopReason] = []

    def exploring(*args: Any, **more: Any) -> Exploration:
        exploration = explore(*args, **more)
        made.append(exploration.stop)
        return exploration

    estimate(monkeypatch, **prices)
    outcomes(monkeypatch, 1.0, 1.5)
    monkeypatch.setattr(tune, "explore", exploring)
    return made


def test_what_a_search_found_is_known_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    found = [tuner()[1:] for _ in range(2)]
    assert made == [StopReason.DONE]
    (first, told), (second, told_again) = found
    assert first.graph.ops() == second.graph.ops() == {"Add": 1, "Exp": 1}
    assert told.timing == told_again.timing


@pytest.mark.parametrize("other", [{"seconds": 0.6}, {"admits": "exact"}, {"seed": 1}, {"sizes": {"n": [3]}}])
def test_a_search_under_other_circumstances_is_another(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    tuner()
    tuner(**other)
    assert len(made) == 2


@pytest.mark.parametrize(
    "other", [{"seconds": 0.6}, {"seed": 1}, {"inputs": {"x": np.ones((1, 8), np.float32)}}, {"sizes": {"n": [1, 3]}}]
)
def test_a_race_under_other_circumstances_is_another(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]) -> None:
    """What is in the inputs may decide what a run costs; and a race in little time is not to bind one that has more."""
    raced = racing(monkeypatch, 1.0, 1.0, 1.0)
    monkeypatch.setattr(tune, "explore", lambda *_, **__: Exploration((), StopReason.DONE))
    tuner()
    tuner()
    before = len(raced)
    tuner(**other)
    assert len(raced) > before == 2


def test_where_time_was_up_it_is_up_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both rewrites it is slower. With one of them it would not be, but there is no time left to see that."""
    now, raced = [0.0], list[int]()

    def racing(runs: Sequence[Callable[[], object]], **_: Any) -> tuple[Samples, ...]:
        raced.append(len(runs))
        now[0] += 9.99
        return Samples((1.0,) * 9), Samples((1.0,) * 9), *[Samples((1.2,) * 9)] * (len(runs) - 2)

    monkeypatch.setattr(Contest, "pace", lambda *_: Pace(0.0, 0.01))
    monkeypatch.setattr("graphopt.search.race.interleaved", racing)
    monkeypatch.setattr(tune, "explore", lambda *_, **__: Exploration((), StopReason.DONE))
    for _ in range(2):
        _, model, tuned = tuner(NEG_AND_ABS, [DOUBLE_NEG, DOUBLE_ABS], clock=lambda: now[0])
        assert tuned.variant.history == ()
        assert model.graph.ops() == {"Neg": 2, "Abs": 2, "Exp": 1}
    assert raced == [3, 3]


@pytest.mark.parametrize("once", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("sweeps", [{}, {"sums": [DOUBLE]}])
def test_a_slow_model_is_searched_less_and_takes_no_more_time(
    monkeypatch: pytest.MonkeyPatch, once: float, sweeps: Sweeps
) -> None:
    """A run takes so long at each of two sizes, the search all that it gets, and nothing else takes any time."""
    now, searched = [0.0], list[float]()

    def run() -> None:
        now[0] += once

    def exploring(*args: Any, **more: Any) -> Exploration:
        searched.append(args[4].seconds)
        now[0] += searched[0]
        return explore(*args, **more)

    estimate(monkeypatch, Mul=2, Add=0.5)
    monkeypatch.setattr("graphopt.search.race.runner", lambda *_: run)
    monkeypatch.setattr(Setting, "meter", property(lambda _: lambda: now[0]))
    monkeypatch.setattr("graphopt.search.race.interleaved", partial(interleaved, clock=lambda: now[0]))
    monkeypatch.setattr(tune, "explore", exploring)
    _, _, tuned = tuner(sizes={"n": [1, 2]}, seconds=60.0, sweeps=sweeps, clock=lambda: now[0])
    assert tuned.timing is not None
    assert tuned.timing.speedup is not None
    assert now[0] < 60
    assert (searched[0] > 10) is (once < 0.2 or (once < 0.5 and not sweeps))


def test_a_model_that_is_too_slow_to_be_timed_twice_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contest, "pace", lambda *_: Pace(1.0, 2.0))
    _, model, tuned = tuner(seconds=60.0, clock=lambda: 0.0)
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}
    assert tuned.notes == ("not timed: two races would take 112 s, and 60 s are left of --seconds 60",)


def test_a_run_that_is_too_long_says_how_many_seconds_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object, limit: float) -> None:
        raise TimeoutError(f"a run takes more than {limit:g} s")

    monkeypatch.setattr("graphopt.runtime.bench.interruptible", slow)
    _, _, tuned = tuner(seconds=60.0)
    needed = math.ceil(tune.RUNS * 12)
    assert tuned.notes == (f"not timed: a run takes more than 12 s, so --seconds {needed} at least are needed",)


def test_a_rule_that_is_only_swept_makes_no_other_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = searches(monkeypatch, Mul=2, Add=0.5)
    for swept in ([], [Rule("sine", op.Sin(x), op.Cos(x))], [Rule("cosine", op.Cos(x), op.Sin(x))]):
        model = onnx_io.load(GIVEN)
        infer_graph(model.graph)
        trades, tuning = [DOUBLE, *swept], Tuning(setting=ONE_THREAD, seconds=20.0)
        start, sweeps = Variant(model.graph), {"waves": swept}
        Tuner(GIVEN, model, start, [], trades, [], lambda *_: True, tuning, sweeps=sweeps).tune()
    assert len(made) == 1


def test_a_search_that_was_interrupted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    made, speedups = searches(monkeypatch, Mul=2, Add=0.5), Prices.speedups
    monkeypatch.setattr(Prices, "speedups", interrupt)
    tuner()
    monkeypatch.setattr(Prices, "speedups", speedups)
    tuner()
    assert made == [StopReason.INTERRUPTED, StopReason.DONE]


def test_an_interrupt_while_the_machine_is_timed_leaves_the_search_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    outcomes(monkeypatch, 1.5)
    monkeypatch.setattr("graphopt.runtime.machine.Machine.calibrated", interrupt)
    _, model, tuned = tuner()
    assert tuned.timing is not None
    assert tuned.timing.stop == StopReason.INTERRUPTED
    assert model.graph.ops() == {"Mul": 1, "Exp": 1}


def test_a_find_that_is_no_longer_admitted_is_not_made() -> None:
    """It was remembered, and its rule is not proved any more."""
    model = onnx_io.load(parse("float[8] x", "a = Mul(x, 2.0); y = Exp(a)"))
    infer_graph(model.graph)
    proved = Space([DOUBLE], Simplifier([], []), lambda *_: True)
    (solution,) = explore(model.graph, proved, Prices(Mul=2, Add=0.5)).solutions
    assert apply(model.graph, solution, replace(proved, allows=lambda *_: False)) == []
    assert len(apply(model.graph, solution, proved)) == 1


@pytest.mark.parametrize(("share", "stop"), [(0.004, StopReason.BOUND), (0.3, StopReason.DONE)])
def test_where_nearly_all_time_is_in_heavy_kernels_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch, share: float, stop: StopReason
) -> None:
    estimate(monkeypatch, Mul=2, Add=0.5)
    outcomes(monkeypatch, 1.0, 1.5)
    monkeypatch.setattr("graphopt.search.race.outside_heavy_kernels", lambda *_: share)
    _, _, tuned = tuner(sizes={"n": [4, 16]})
    assert tuned.timing is not None and (tuned.timing.stop, tuned.timing.gainable) == (stop, share)
    assert bool(tuned.timing.states) is (stop is StopReason.DONE)
    assert ("0.4% of the time" in search_text(tuned.timing)) is (stop is StopReason.BOUND)


@pytest.mark.slow
def test_where_there_are_rules_of_ones_own_they_are_tried_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.search.race.outside_heavy_kernels", lambda *_: 0.0)
    stops = [optimize(GIVEN, rules=own, seconds=2, dims={"n": 4}).report.timing for own in ([], [DOUBLE_ABS])]
    assert [timing is not None and timing.stop == StopReason.BOUND for timing in stops] == [True, False]


@pytest.mark.slow
def test_a_model_is_tuned_with_onnx_runtime() -> None:
    """Whatever is faster here: the result computes the same, and a second run gives the same."""
    results = []
    for _ in range(2):
        _, model, tuned = tuner(sizes={"n": [4, 16]})
        assert compare(GIVEN, model, bindings=[{"n": 1}, {"n": 5}]).verdict is Verdict.EQUAL
        assert tuned.timing is not None
        assert tuned.timing.cost == "measured"
        results.append((model.graph.ops(), tuned.timing.speedup))
    assert results[0] == results[1]
