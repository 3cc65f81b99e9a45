"""The search for rewrites that pay in some models only, with costs and clocks that are made up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from graphopt.base.cache import Cache
from graphopt.base.dtype import DType
from graphopt.base.errors import ModelError
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.build import RewriteRefused
from graphopt.rewrite.matching import Match
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.regions import cut_into_blocks
from graphopt.rewrite.simplify import DeadlineExceededError, Simplifier
from graphopt.rewrite.sites import Site
from graphopt.rules import MEMORY_TRADES, RULES, TENSOR_PARALLEL, TRADES
from graphopt.runtime.cost_model import (
    CostModel,
    GraphPart,
    NoTimeToMeasureError,
    NotMeasurableError,
    PredictedGain,
    TemporarilyNotMeasurableError,
)
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import Speedup
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import Exploration, explore_regions
from graphopt.search.measured_cost import MeasuredCost
from graphopt.search.moves import SearchSpace, Solution, apply_solution
from graphopt.search.policy import SearchPolicy
from graphopt.search.racers import LocalRacer
from graphopt.search.stopping import StopReason
from tests.text import parse, printed

x, c, d = tensor("x"), const("c", "N"), const("d", "N")
rows = tensor("x", "*b N")

DOUBLE = Rule("double_is_sum", x * 2.0, x + x)
SUM_IS_DIFFERENCE = Rule("sum_is_difference", x + x, x - op.Neg(x))
SCALES = Rule("scale_once", (rows * c) * d, rows * (c * d))


class Prices:
    """So many seconds for each operator; counts how often it is asked."""

    name = "prices"
    is_steady = True
    device = ""

    def __init__(self, error: float = inf, **prices: float) -> None:
        """Take the standard deviation of what is saved, and the prices."""
        self.prices, self.error = prices, error
        self.asked = self.measured = 0

    def estimate_seconds(self, graph: Graph) -> float:
        self.asked += 1
        return sum(self.price(graph, vertex) for vertex, _ in graph.nodes())

    def predict_gain(self, before: Graph, after: Graph, _parts: Sequence[GraphPart] = ()) -> PredictedGain:
        known, other = map(self.estimate_seconds, (before, after))
        return PredictedGain(known, known - other, self.error)

    def price(self, graph: Graph, vertex: int) -> float:
        return self.prices.get(graph[vertex].op, 1.0)

    def measure_speedups(self, before: Graph, after: Sequence[Graph], _least_gain: float = 0.0) -> list[Speedup]:
        self.measured += len(after)
        ratios = [self.estimate_seconds(before) / self.estimate_seconds(graph) for graph in after]
        return [Speedup(ratio, ratio, ratio, ratio, rounds=0) for ratio in ratios]


def space(*trades: Rule, rules: Sequence[Rule] = (), allows: Callable[..., bool] = lambda *_: True) -> SearchSpace:
    return SearchSpace(trades, Simplifier(rules, []), allows)


SPEED_TRADES = [rule for rule in TRADES if rule not in (*MEMORY_TRADES, *TENSOR_PARALLEL)]
LIBRARY = SearchSpace(SPEED_TRADES, Simplifier(RULES, PASSES), lambda *_: True)


def weight(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def load(model: onnx.ModelProto, *, simplified: bool = False) -> onnx_io.LoadedModel:
    found = onnx_io.load_model(model)
    infer_graph(found.graph)
    if simplified:
        LIBRARY.simplifier.run(found.graph)
    return found


def layers(count: int, layer: str, **weights: Any) -> onnx.ModelProto:
    """Equal layers, one after the other; `{i}` is the number of one, and `{j}` that of the next."""
    body = "; ".join(layer.format(i=i, j=i + 1) for i in range(count))
    return parse("float[2,4] x0", body, weights, outputs=f"float[2,4] x{count}")


LAYER = (
    "p{i} = Exp(x{i}); q{i} = Neg(p{i}); r{i} = Mul(q{i}, 2.0); s{i} = Abs(r{i}); t{i} = Sin(s{i});"
    "x{j} = Add(t{i}, x{i})"
)


def found(
    model: onnx.ModelProto, where: SearchSpace, cost: CostModel, policy: SearchPolicy = SearchPolicy(), **more: Any
) -> tuple[onnx_io.LoadedModel, Exploration]:
    loaded = load(model)
    return loaded, explore_regions(loaded.graph, where, cost, policy=policy, **more)


def done(model: onnx_io.LoadedModel, exploration: Exploration, where: SearchSpace) -> Graph:
    """The graph with all solutions carried out."""
    for solution in exploration.solutions:
        apply_solution(model.graph, solution, where)
        model.graph.check_invariants()
    return model.graph


def told(solution: Solution) -> list[tuple[str, int, bool]]:
    return [(move.rule, len(move.sites), move.simplified) for move in solution.moves]


# -- what is found -----------------------------------------------------------------------------------------------------


def residual(activation: str, channels: int = 8, side: int = 14) -> onnx.ModelProto:
    """A block of a ResNet: two convolutions after each other, and beside them a pointwise one."""
    n, image = channels, f"float[1,{channels},{side},{side}]"
    body = f"""a = Conv<pads=[1,1,1,1]>(x, u, e); p = {activation}(a); c = Conv<pads=[1,1,1,1]>(p, v, f)
    b = Conv(x, w, g); q = {activation}(b); s = Add(c, q); y = Relu(s)"""
    weights = {"u": weight(n, n, 3, 3), "v": weight(n, n, 3, 3, seed=1), "w": weight(n, n, 1, 1, seed=2)}
    weights |= {name: weight(n, seed=number) for number, name in enumerate("efg", 3)}
    return parse(f"{image} x", body, weights, outputs=f"{image} y")


LAUNCHES = Machine(launch_seconds=1e-3)
"""Where they are dear."""
TO_TWO_CONVOLUTIONS = {"widen_conv_beside_larger_conv", "absorb_add_into_conv"}


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["Identity", "Relu"])
def test_where_launches_are_dear_a_residual_block_becomes_two_convolutions(activation: str) -> None:
    """TASO's example, of rules that each cost or bring little: enlarge a kernel, merge two branches, absorb a sum."""
    given = residual(activation)
    model = load(given, simplified=True)
    exploration = explore_regions(model.graph, LIBRARY, AnalyticCost(LAUNCHES))
    (solution,) = exploration.solutions
    assert {*solution.rules} > TO_TWO_CONVOLUTIONS
    assert solution.speedup.median > 1.4
    assert done(model, exploration, LIBRARY).operator_counts() == {"Conv": 2, "Relu": 2 if activation == "Relu" else 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.slow
def test_where_arithmetic_is_dear_the_block_stays() -> None:
    exploration = explore_regions(load(residual("Relu"), simplified=True).graph, LIBRARY, AnalyticCost())
    assert exploration.solutions == ()
    assert exploration.stop is StopReason.DONE
    assert (exploration.regions, exploration.copies) == (1, 1)


class Watched(MeasuredCost):
    """Remembers the operators of what it was asked for."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.asked: list[Mapping[str, int]] = []

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        self.asked += [graph.operator_counts() for graph in after]
        return super().measure_speedups(before, after, least_gain)


@pytest.mark.slow
def test_as_it_is_measured_the_block_stays(tmp_path: Path) -> None:
    """The estimate is in favour of two convolutions, so they are tried; but on a CPU they take almost twice as long."""
    race = LocalRacer(SessionSetting(threads=1), SearchPolicy(pair_seconds=0.1))
    cost = Watched(race, machine=LAUNCHES, cache=Cache(tmp_path / "costs.sqlite"))
    exploration = explore_regions(load(residual("Relu", 64, 28), simplified=True).graph, LIBRARY, cost)
    assert {"Conv": 2, "Relu": 1} in cost.asked
    assert TO_TWO_CONVOLUTIONS.isdisjoint(rule for solution in exploration.solutions for rule in solution.rules)


DETOUR = parse("float[4] x", "a = Exp(x); b = Mul(a, 2.0); y = Abs(b)", outputs="float[4] y")
LONG_WAY = space(DOUBLE, SUM_IS_DIFFERENCE)


def test_a_step_that_costs_is_made_for_one_that_pays() -> None:
    model, exploration = found(DETOUR, LONG_WAY, Prices(Mul=2, Add=4, Sub=0.2, Neg=0.2))
    (solution,) = exploration.solutions
    assert solution.rules == ("double_is_sum", "sum_is_difference")
    assert solution.speedup.median == pytest.approx(4 / 2.4)
    assert done(model, exploration, LONG_WAY).operator_counts() == {"Exp": 1, "Neg": 1, "Sub": 1, "Abs": 1}
    assert compare_models(DETOUR, model).verdict is EqualityVerdict.EQUAL


def test_a_step_that_costs_too_much_is_not_made() -> None:
    cost = Prices(Mul=2, Add=4, Sub=0.2, Neg=0.2)
    _, exploration = found(DETOUR, LONG_WAY, cost, SearchPolicy(slack=1.4))
    assert exploration.solutions == ()


def test_what_pays_by_less_than_can_be_measured_is_left() -> None:
    _, exploration = found(DETOUR, LONG_WAY, Prices(Exp=100, Mul=2, Add=1))
    assert exploration.solutions == ()
    assert exploration.trials > 0


@pytest.mark.parametrize(("error", "price", "is_measured"), [(0.0, 9.0, False), (10.0, 9.0, True), (0.0, 1.1, True)])
def test_what_is_surely_no_gain_is_not_measured(*, error: float, price: float, is_measured: bool) -> None:
    """A loss of 8 in 203 is sure where times are, and a loss of 0.1 is not: fusions are not foreseen."""
    _, exploration = found(DETOUR, space(DOUBLE), Prices(error, Exp=101, Abs=101, Mul=1, Add=price))
    assert bool(exploration.trials) is is_measured


def test_of_many_steps_that_cost_little_each_goes_on_with_the_one_before() -> None:
    """Else the search would try every set of them: here 2^8."""
    body = "; ".join(f"p{i} = Mul(x, 2.0); q{i} = Exp(p{i})" for i in range(8))
    joined = "; ".join(f"r{i + 1} = Max(r{i}, q{i + 1})" for i in range(7)).replace("r0", "q0")
    model = parse("float[4] x", f"{body}; {joined}", outputs="float[4] r7")
    cost = Prices(Add=1.01)
    _, exploration = found(model, space(DOUBLE), cost)
    assert exploration.solutions == ()
    assert exploration.states <= 2 + 8 + 8


def test_two_runs_find_the_same() -> None:
    outcomes = []
    for _ in range(2):
        model, exploration = found(layers(2, LAYER), LONG_WAY, Prices(Mul=2, Add=4, Sub=0.2, Neg=0.2))
        outcomes.append(([told(s) for s in exploration.solutions], printed(done(model, exploration, LONG_WAY))))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0]


# -- copies ------------------------------------------------------------------------------------------------------------


def test_equal_parts_are_solved_once_and_all_changed() -> None:
    asked = []
    for count in (2, 24):
        cost, where = Prices(Mul=2, Add=0.5), space(DOUBLE)
        model, exploration = found(given := layers(count, LAYER), where, cost)
        asked.append((cost.asked, cost.measured, exploration.states))
        (solution,) = exploration.solutions
        assert (exploration.regions, exploration.copies, len(solution.copies)) == (1, count, count)
        assert solution.estimated_seconds == pytest.approx(count * (5.0 + 1.5))
        assert done(model, exploration, where).operator_counts()["Add"] == 2 * count
        assert compare_models(given, model).verdict is EqualityVerdict.EQUAL
    assert asked[0] == asked[1]


def test_what_saves_most_in_all_comes_first() -> None:
    body = "a = Mul(x, 2.0); b = Sin(a); c = Sin(b); d = Sin(c); e = Sin(d); f = Sin(e);"
    body += "g = Mul(f, 2.0); h = Cos(g); i = Cos(h); j = Mul(i, 2.0); k = Cos(j); y = Cos(k)"
    given = parse("float[4] x", body)
    _, exploration = found(given, space(DOUBLE), Prices(Mul=2, Add=0.5))
    assert [solution.saved_seconds for solution in exploration.solutions] == pytest.approx([3.0, 1.5])


PAIR = (
    "p{i} = Relu(x{i}); q{i} = Mul(p{i}, c{i}); r{i} = Mul(q{i}, d{i}); s{i} = Relu(r{i}); t{i} = Sin(s{i});"
    "x{j} = Cos(t{i})"
)


def scaled(*factors: Mapping[str, Any]) -> onnx.ModelProto:
    weights = {f"{name}{i}": value for i, each in enumerate(factors) for name, value in each.items()}
    return layers(len(factors), PAIR, **weights)


PLAIN = {"c": np.array([1, 2, 3, 4], np.float32), "d": np.array([5, 6, 7, 8], np.float32)}


HUGE = {name: np.full(4, 3e38, np.float32) for name in "cd"}
"""Their product is infinite, so they cannot be multiplied when the model is compiled."""


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_copy_whose_weights_do_not_allow_it_does_not_keep_the_others_from_it(place: int) -> None:
    factors = [PLAIN, PLAIN, PLAIN]
    factors[place] = HUGE
    where = space(SCALES)
    model, exploration = found(given := scaled(*factors), where, Prices())
    (solution,) = exploration.solutions
    assert (exploration.copies, len(solution.copies)) == (3, 2)
    assert solution.estimated_seconds == pytest.approx(2 * 6)
    assert done(model, exploration, where).operator_counts()["Mul"] == 1 + 1 + 2
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_what_all_copies_refuse_is_not_tried_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one refuses it for its weights, another may not; but mostly all refuse it, for their shapes."""
    tried: list[Rule] = []

    def build(_: Graph, match: Match, *_more: object) -> None:
        tried.append(match.rule)
        raise RewriteRefused("for its shape")

    monkeypatch.setattr("graphopt.search.moves.build_patch", build)
    _, exploration = found(layers(24, LAYER), space(DOUBLE), Prices())
    assert (exploration.copies, exploration.solutions) == (24, ())
    assert tried == [DOUBLE] * 4


def test_a_rule_that_does_not_even_match_in_the_first_copy_is_tried_in_the_others() -> None:
    positive = Rule("scale_once_if_positive", (rows * c) * d, rows * (c * d), when=fn.is_positive(d))
    negative = PLAIN | {"d": np.array([-5, 6, 7, 8], np.float32)}
    model, exploration = found(given := scaled(negative, PLAIN), where := space(positive), Prices())
    assert [len(solution.copies) for solution in exploration.solutions] == [1]
    assert done(model, exploration, where).operator_counts()["Mul"] == 2 + 1
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_of_a_rule_everywhere_what_weights_refuse_at_one_place_is_left_out_in_each_copy() -> None:
    """In the first copy one of two products is refused; the second takes both."""
    layer = (
        "p{i} = Relu(x{i}); q{i} = Mul(p{i}, c{i}); r{i} = Mul(q{i}, d{i}); s{i} = Relu(r{i});"
        "t{i} = Mul(s{i}, e{i}); x{j} = Mul(t{i}, f{i})"
    )
    factors = {f"{name}{i}": PLAIN["c"] for i in range(2) for name in "cdef"}
    factors |= {"e0": HUGE["c"], "f0": HUGE["d"]}
    model, exploration = found(given := layers(2, layer, **factors), where := space(SCALES), Prices())
    assert done(model, exploration, where).operator_counts()["Mul"] == 3 + 2
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_copy_that_would_become_another_graph_is_solved_by_itself() -> None:
    scaled_relu = op.Relu(rows) * c
    tidy = Rule("relu_of_scaled_relu", op.Relu(scaled_relu), scaled_relu, when=fn.is_positive(c))
    where = space(SCALES, rules=[tidy])
    negative = PLAIN | {"d": np.array([-5, 6, 7, 8], np.float32)}
    model, exploration = found(given := scaled(PLAIN, negative), where, Prices())
    assert [len(solution.copies) for solution in exploration.solutions] == [1, 1]
    assert done(model, exploration, where).operator_counts() == {"Relu": 1 + 2, "Mul": 1 + 1, "Sin": 2, "Cos": 2}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_copy_that_does_not_allow_a_solution_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """A part that was changed before may have another neighbour now."""
    where = space(SCALES)
    model, exploration = found(given := scaled(PLAIN, HUGE), where, Prices())
    (solution,) = exploration.solutions
    huge = next(vertices for vertices in map(tuple, cut_into_blocks(model.graph)) if vertices != solution.copies[0])
    with caplog.at_level("DEBUG"):
        apply_solution(model.graph, replace(solution, copies=(huge, *solution.copies)), where)
    assert model.graph.operator_counts()["Mul"] == 2 + 1
    assert "scale_once cannot be done in a copy" in caplog.text
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


# -- sizes -------------------------------------------------------------------------------------------------------------


class BySize(Prices):
    """An Add is dear to start, a Mul to go on with."""

    def price(self, graph: Graph, vertex: int) -> float:
        type_ = graph.tensor_type(next(graph[vertex].operands))
        assert type_ is not None and type_.shape is not None
        elements = prod(size for size in type_.shape if isinstance(size, int))
        assert type_.is_static, "costs are taken at numbers"
        start, each = {"Add": (self.prices["start"], 1.0), "Mul": (0.0, 4.0)}.get(graph[vertex].op, (0.0, 0.0))
        return start + each * elements


OPEN = parse("float[n] x", "a = Exp(x); b = Mul(a, 2.0); y = Abs(b)", outputs="float[n] y")


@pytest.mark.parametrize(("start", "is_taken"), [(100.0, True), (1000.0, False)])
def test_several_sizes_count_the_same(start: float, is_taken: bool) -> None:
    """At 128 the sum takes 128 + start instead of 512, at 16 it takes 16 + start instead of 64: the mean decides."""
    where, shapes = space(DOUBLE), [{"x": [128]}, {"x": [16]}]
    model, exploration = found(OPEN, where, BySize(start=start), shapes=shapes)
    assert bool(exploration.solutions) is is_taken
    assert exploration.states == 2
    ops = done(model, exploration, where).operator_counts()
    assert ("Add" in ops) is is_taken
    sizes = [{"n": size} for size in (1, 7, 128)]
    assert compare_models(OPEN, model, bindings=sizes).verdict is EqualityVerdict.EQUAL


def test_parts_into_which_sizes_flow_that_depend_on_the_data_are_left() -> None:
    before = "a = Sin(x); b = Sin(a); c = Sin(b); d = Sin(c); e = Sin(d); f = Compress<axis=0>(e, k)"
    body = f"{before}; g = Cos(f); h = Cos(g); i = Mul(h, 2.0); y = Cos(i)"
    given = parse("float[4] x, bool[4] k", body, outputs="float[?] y")
    _, exploration = found(given, space(DOUBLE), Prices(Mul=2))
    assert (exploration.regions, exploration.solutions) == (0, ())


# -- limits ------------------------------------------------------------------------------------------------------------


SINES = "a = Mul(x, 2.0); b = Sin(a); c = Sin(b); d = Sin(c); e = Sin(d); f = Sin(e)"
COSINES = "g = Mul(f, 2.0); h = Cos(g); i = Cos(h); j = Cos(i); k = Cos(j); y = Cos(k)"
TWO_PARTS = parse("float[4] x", f"{SINES}; {COSINES}")


class Events(Prices):
    """Something happens when the cost of a graph with some operators is asked."""

    def __init__(self, ops: str, happens: Callable[[], None], **prices: float) -> None:
        super().__init__(Mul=2, Add=0.5, Sin=1.1, **prices)
        self.ops, self.happens = {*ops.split()}, happens

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        if any(self.ops <= graph.operator_counts().keys() for graph in after):
            self.happens()
        return super().measure_speedups(before, after, least_gain)


def fail(error: BaseException) -> Callable[[], None]:
    def raise_() -> None:
        raise error

    return raise_


def test_both_parts_are_solved_where_nothing_happens() -> None:
    model, exploration = found(TWO_PARTS, where := space(DOUBLE), Prices(Mul=2, Add=0.5))
    assert (exploration.regions, len(exploration.solutions), exploration.stop) == (2, 2, StopReason.DONE)
    assert done(model, exploration, where).operator_counts() == {"Add": 2, "Sin": 5, "Cos": 5}
    assert compare_models(TWO_PARTS, model).verdict is EqualityVerdict.EQUAL


def test_a_search_ends_with_its_time_and_keeps_what_it_has_found() -> None:
    now = [0.0]

    def hour() -> None:
        now[0] += 3600.0

    cost = Events("Sin", hour)
    model, exploration = found(TWO_PARTS, where := space(DOUBLE), cost, seconds=60, clock=lambda: now[0])
    assert exploration.stop is StopReason.TIME
    assert len(exploration.solutions) == 1
    assert done(model, exploration, where).operator_counts() == {"Add": 1, "Mul": 1, "Sin": 5, "Cos": 5}


class Slow(Prices):
    """A measurement takes ten seconds. What is measured may differ from what is estimated."""

    def __init__(self, measured: Prices | None = None, **prices: float) -> None:
        super().__init__(**prices)
        self.truth = measured or Prices(**prices)
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def measure_speedups(self, before: Graph, after: Sequence[Graph], least_gain: float = 0.0) -> list[Speedup]:
        self.now += 10.0 * len(after)
        return self.truth.measure_speedups(before, after, least_gain)


def test_time_that_a_part_leaves_is_given_to_those_that_need_more() -> None:
    """The first part needs most of the time, and weighs but half: its share alone would not do."""
    body = SINES.replace("f = Sin(e)", "f = Mul(e, 2.0)").replace("c = Sin(b)", "c = Mul(b, 2.0)")
    model = parse("float[4] x", f"{body}; {COSINES}")
    one = SearchPolicy(states_per_round=1, measured_per_round=1)
    cost = Slow(Mul=2, Add=0.5, Sin=1.1)
    _, at_leisure = found(model, where := space(DOUBLE), cost, one, clock=cost.clock)
    seconds = cost.now + 1
    cost.now = 0.0
    _, exploration = found(model, where, cost, one, seconds=seconds, clock=cost.clock)
    assert exploration.stop is StopReason.DONE
    assert list(map(told, exploration.solutions)) == list(map(told, at_leisure.solutions))
    assert [len(solution.moves[0].sites) for solution in exploration.solutions] == [3, 1]


@pytest.mark.parametrize("product", [9.5, 3.0])
def test_all_parts_are_tried_before_one_is_gone_on_with(product: float) -> None:
    """The dear part has three things to try, whether they pay or not."""
    dear = "a = Div(x, 4.0); b = Sin(a); c = Div(b, 4.0); d = Sin(c); e = Sin(d); f = Sin(e)"
    model = parse("float[4] x", f"{dear}; {COSINES}")
    quarter = Rule("quarter_is_product", x / 4.0, x * 0.25)
    cost = Slow(Div=9, Mul=product, Add=0.1)
    policy = SearchPolicy(states_per_round=1, measured_per_round=1)
    _, exploration = found(model, space(quarter, DOUBLE), cost, policy, seconds=17, clock=cost.clock)
    rules = {solution.rules for solution in exploration.solutions}
    assert rules == {("double_is_sum",)} | ({("quarter_is_product",)} if product < 9 else set())
    assert exploration.stop is StopReason.TIME


def test_where_there_is_time_the_less_promising_is_measured_too() -> None:
    """The estimate prefers the sum, which turns out to be slow."""
    fourth = Rule("double_is_difference", x * 2.0, x - op.Neg(x))
    cost = Slow(Prices(Mul=2, Add=3, Sub=0.5, Neg=0.5), Mul=2, Add=1.5, Sub=0.9, Neg=0.9)
    _, exploration = found(
        DETOUR, space(DOUBLE, fourth), cost, SearchPolicy(measured_per_round=1), seconds=60, clock=cost.clock
    )
    assert [solution.rules for solution in exploration.solutions] == [("double_is_difference",)]


@pytest.mark.parametrize("calls", [0, 5, 20])
def test_where_time_runs_out_in_the_middle_of_a_step_the_search_ends(calls: int) -> None:
    """The clock that ends the search is looked at by turns; that of the simplifier all the time."""
    left = iter(range(calls))

    def check() -> None:
        if next(left, None) is None:
            raise DeadlineExceededError

    where = SearchSpace([DOUBLE], Simplifier([], [], check=check), lambda *_: True)
    model, exploration = found(TWO_PARTS, where, Prices(Mul=2), seconds=60)
    assert exploration.stop is StopReason.TIME
    assert exploration.solutions == ()
    model.graph.check_invariants()


def test_a_find_for_which_time_runs_out_is_carried_over_to_no_copy() -> None:
    model, exploration = found(TWO_PARTS, space(DOUBLE), Prices(Mul=2, Add=0.5))
    before = dict(model.graph.vertices_and_nodes())
    late = SearchSpace([DOUBLE], Simplifier([], [], check=fail(DeadlineExceededError())), lambda *_: True)
    with pytest.raises(DeadlineExceededError):
        apply_solution(model.graph, exploration.solutions[0], late)
    assert dict(model.graph.vertices_and_nodes()) == before


def test_no_time_is_no_search() -> None:
    _, exploration = found(TWO_PARTS, space(DOUBLE), Prices(Mul=2), seconds=0)
    assert (exploration.stop, exploration.solutions) == (StopReason.TIME, ())


def test_an_interrupted_search_keeps_what_it_has_found() -> None:
    _, exploration = found(TWO_PARTS, space(DOUBLE), Events("Cos", fail(KeyboardInterrupt())))
    assert (exploration.stop, len(exploration.solutions)) == (StopReason.INTERRUPTED, 1)


@pytest.mark.parametrize(
    ("error", "stop", "said"),
    [(KeyboardInterrupt(), "INTERRUPTED", []), (NoTimeToMeasureError("late"), "TIME", ["not searched further: late"])],
)
def test_of_a_part_that_is_cut_the_best_graph_is_kept(error: BaseException, stop: str, said: list[str]) -> None:
    given = parse("float[4] x", "a = Mul(x, 2.0); y = Sin(a)")
    _, exploration = found(
        given, LONG_WAY, Events("Sub", fail(error), Sub=0.1, Neg=0.1), SearchPolicy(states_per_round=1)
    )
    assert exploration.stop.name == stop
    assert [solution.rules for solution in exploration.solutions] == [("double_is_sum",)]
    assert list(exploration.notes) == [f"a part of 2 nodes was {text}" for text in said]


@pytest.mark.parametrize(
    ("kind", "stop"),
    [(NotMeasurableError, "DONE"), (TemporarilyNotMeasurableError, "ROOM"), (NoTimeToMeasureError, "TIME")],
)
def test_a_part_that_cannot_be_measured_is_left_and_named(kind: type[Exception], stop: str) -> None:
    model, exploration = found(TWO_PARTS, where := space(DOUBLE), Events("Sin", fail(kind("no kernel"))))
    assert exploration.notes == ("a part of 6 nodes was left as it is: no kernel",)
    assert (exploration.stop.name, exploration.is_steady) == (stop, kind is NotMeasurableError)
    assert done(model, exploration, where).operator_counts() == {"Add": 1, "Mul": 1, "Sin": 5, "Cos": 5}


def test_no_more_graphs_are_looked_at_than_allowed() -> None:
    _, exploration = found(residual("Relu"), LIBRARY, AnalyticCost(), SearchPolicy(states=20))
    assert exploration.states <= 20


def test_progress_is_told() -> None:
    heard: list[tuple[str, float]] = []
    found(TWO_PARTS, space(DOUBLE), Prices(), progress=lambda stage, part: heard.append((stage, part)))
    assert [stage for stage, _ in heard] == ["search", "search"]
    assert [part for _, part in heard] == pytest.approx([0.0, 0.5], abs=1e-6)


# -- what there is to search -------------------------------------------------------------------------------------------


def test_rules_that_are_not_admitted_are_not_used() -> None:
    asked: list[tuple[str, frozenset[DType], frozenset[DType]]] = []

    def allows(site: Site) -> bool:
        asked.append((site.rule.name, site.computed_dtypes, site.read_dtypes))
        return site.rule is not DOUBLE

    _, exploration = found(DETOUR, space(DOUBLE, SUM_IS_DIFFERENCE, allows=allows), Prices(Mul=2, Add=0.1))
    assert exploration == Exploration((), StopReason.DONE)
    assert asked == [("double_is_sum", frozenset({DType.FLOAT}), frozenset({DType.FLOAT}))]


@pytest.mark.parametrize("body", ["", "y = Exp(x)"])
def test_where_no_rule_matches_nothing_is_asked(body: str) -> None:
    cost = Prices()
    _, exploration = found(parse("float[4] x", body, outputs="float[4] y" if body else "float[4] x"), LIBRARY, cost)
    assert exploration == Exploration((), StopReason.DONE)
    assert cost.asked == 0


def test_parts_around_a_body_are_searched() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> test (float[4] x, bool c) => (float[4] y) {
        two = Constant<value_float = 2.0>()
        a = Mul(x, two)
        b = If(c) <then_branch = t () => (float[4] p) { p = Exp(a) }, else_branch = e () => (float[4] q) { q = Abs(a) }>
        y = Mul(b, two)
    }"""
    given = onnx.parser.parse_model(text)
    model, exploration = found(given, where := space(DOUBLE), Prices(Mul=2, Add=0.5))
    assert (exploration.regions, exploration.copies) == (1, 2)
    assert done(model, exploration, where).operator_counts() == {"Add": 2, "If": 1}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


def test_a_move_that_cannot_be_keeps_nothing_from_what_others_lead_to() -> None:
    class Choosy(Prices):
        def seconds(self, graph: Graph) -> float:
            if "Sub" in graph.operator_counts():
                raise ModelError("these sizes contradict the model")
            return super().estimate_seconds(graph)

    model = parse("float[4] x", "a = Mul(x,2.0); b = Add(x,x); y = Max(a,b)")
    where = space(DOUBLE, SUM_IS_DIFFERENCE)
    loaded, exploration = found(model, where, Choosy(Mul=9.0))
    assert "Mul" not in done(loaded, exploration, where).operator_counts()
