"""Which version wins on a machine that is busy: races whose times are made up, judged as those that are measured."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import numpy as np
import pytest

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule, op, tensor
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.candidates import Candidate
from graphopt.rewrite.simplify import Simplifier, Step
from graphopt.runtime.measure import RaceTimes, TimingPolicy, TimingSamples, TimingVerdict
from graphopt.search.final_selection import FinalSelection
from graphopt.search.policy import SearchPolicy
from graphopt.search.race_outcomes import Measurement, RaceOutcome, judge_race
from graphopt.search.race_series import RaceSeries
from graphopt.search.stopping import TimeBudget
from tests.text import parse

ROUNDS = 40
Noise = Callable[[np.random.Generator], np.ndarray]


def quiet(random: np.random.Generator) -> np.ndarray:
    return 1 + 0.005 * np.abs(random.standard_normal(ROUNDS))


def busy(random: np.random.Generator) -> np.ndarray:
    """Two loops beside it: some rounds are not disturbed, most take up to three times as long."""
    return 1 + 0.01 * np.abs(random.standard_normal(ROUNDS)) + random.exponential(0.4, ROUNDS)


def biased(random: np.random.Generator) -> np.ndarray:
    """Each session is fast or slow for as long as it lives."""
    return quiet(random) * random.uniform(0.995, 1.005)


class Noisy(RaceSeries):
    """A contest of versions that take so many seconds by their operators, under noise."""

    def __init__(self, seconds: Callable[[dict[str, int]], float], noise: Noise, random: np.random.Generator) -> None:
        self.seconds, self.noise, self.random, self.heat = seconds, noise, random, 1
        self.budget, self.told, self.refusals, self.estimates = TimeBudget(SearchPolicy(), inf), {}, {}, {}

    def next_series(self) -> RaceSeries:
        self.told = {}
        return self

    def open_original(self) -> None:
        """There is room."""

    def cached_outcomes(self, keys: Sequence[str]) -> None:
        """Nothing."""

    def is_like_original(self, candidate: Candidate) -> bool:  # noqa: ARG002
        return False

    def had_timed_out(self, keys: Sequence[str]) -> bool:  # noqa: ARG002
        return False

    def open_session(self, model: onnx_io.LoadedModel) -> float:
        return self.seconds(dict(model.graph.operator_counts()))

    def time_models(self, keys: Sequence[str], sessions: Sequence[float], *limits: float) -> list[RaceOutcome]:  # noqa: ARG002
        times = [seconds * self.noise(self.random) for seconds in (1.0, *sessions)]
        own, *rivals = (TimingSamples(tuple(each.tolist())) for each in times)
        return judge_race([({}, RaceTimes(own, tuple(rivals)))])


x = tensor("x")
TIDY = (Rule("double_neg", op.Neg(op.Neg(x)), x), Rule("double_abs", op.Abs(op.Abs(x)), op.Abs(x)))


def chosen(seconds: Callable[[dict[str, int]], float], noise: Noise, seed: int) -> Measurement:
    """The candidate for a model that two rules simplify, where it takes so many seconds."""
    model = onnx_io.load_model(parse("float[4] x", "a = Neg(x); b = Neg(a); c = Abs(b); d = Abs(c); y = Exp(d)"))
    infer_graph(model.graph)

    def simplify(graph: Graph, names: frozenset[str] | None) -> Sequence[Step]:
        rules = [rule for rule in TIDY if names is None or rule.name in names]
        return Simplifier(rules, []).run(graph).steps

    contest = Noisy(seconds, noise, np.random.default_rng(seed))
    contest.model, first = model, Candidate(model.graph).derive(partial(simplify, names=None))
    return FinalSelection(contest, lambda *_: [], simplify).choose(first, first, [])


@pytest.mark.parametrize("noise", [quiet, busy, biased])
@pytest.mark.parametrize("seconds", [1.0, 0.98])
def test_whatever_the_noise_the_simplified_model_stays(noise: Noise, seconds: float) -> None:
    kept = [chosen(lambda _: seconds, noise, seed).steps for seed in range(60)]
    assert all(len(steps) == 2 for steps in kept)


def test_on_a_quiet_machine_it_stays_if_it_is_slower_by_no_more_than_noise() -> None:
    assert all(len(chosen(lambda _: 1.005, quiet, seed).steps) == 2 for seed in range(60))


@pytest.mark.parametrize("noise", [quiet, busy, biased])
def test_equal_models_are_not_called_faster(noise: Noise) -> None:
    assert sum(chosen(lambda _: 1.0, noise, seed).is_faster for seed in range(60)) <= 1


def test_on_a_quiet_machine_a_rewrite_that_costs_a_tenth_is_taken_back_alone() -> None:
    found = [chosen(lambda ops: 1.0 if ops.get("Abs") == 2 else 1.1, quiet, seed) for seed in range(20)]
    assert all([step.name for step in version.steps] == ["double_neg"] for version in found)


def test_on_a_busy_machine_nothing_is_taken_back_that_is_not_seen() -> None:
    found = [chosen(lambda ops: 1.0 if ops.get("Abs") == 2 else 1.1, busy, seed) for seed in range(20)]
    assert all(len(version.steps) == 2 for version in found)


def raced(noise: Noise, *seconds: float, seed: int = 0) -> list[RaceOutcome]:
    return Noisy(lambda _: 1.0, noise, np.random.default_rng(seed)).time_models([], seconds)


def test_what_a_busy_machine_leaves_open_is_not_relied_on() -> None:
    policy = TimingPolicy()
    assert all(outcome.speedup.is_steady(policy) for seed in range(20) for outcome in raced(quiet, 1.0, seed=seed))
    assert not any(outcome.speedup.is_steady(policy) for seed in range(20) for outcome in raced(busy, 1.0, seed=seed))


def test_what_is_twice_as_fast_is_seen_on_a_busy_machine_too() -> None:
    (found,) = raced(busy, 0.4)
    assert found.speedup.verdict is TimingVerdict.FASTER


def test_a_gain_is_over_the_first_version_in_the_race() -> None:
    floor, other = raced(quiet, 0.8, 0.5)
    assert (floor.gain.median, floor.gain.verdict) == (1.0, TimingVerdict.SAME)
    assert other.gain.median == pytest.approx(1.6, rel=0.02)
    assert other.speedup.median == pytest.approx(2.0, rel=0.02)
