"""Statistics of paired timings, on clocks that are made up: nothing here depends on how fast the machine is."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphopt.errors import UsageError
from graphopt.measure import Samples, Setting, Verdict, interleaved, runner, speedup


class Clock:
    """Time that passes only while something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def task(self, *seconds: float) -> Callable[[], None]:
        """A run that takes these times in turn, the last one for ever."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def noisy(seconds: float, noise: float, seed: int, rounds: int = 31) -> Samples:
    times = seconds * (1 + noise * np.random.default_rng(seed).standard_normal(rounds).clip(-2, 2))
    return Samples(tuple(times.tolist()))


def test_warm_up_runs_do_not_count() -> None:
    clock = Clock()
    slow_at_first = clock.task(9.0, 9.0, 0.1)
    (samples,) = interleaved([slow_at_first], seconds=0, rounds=(3, 3), clock=clock)
    assert samples.seconds == pytest.approx((0.1, 0.1, 0.1))


def test_runs_take_turns_in_an_order_that_rotates() -> None:
    clock = Clock()
    order: list[str] = []

    def run(name: str) -> Callable[[], None]:
        task = clock.task(1.0)

        def turn() -> None:
            order.append(name)
            task()

        return turn

    interleaved([run(name) for name in "abc"], seconds=0, rounds=(3, 3), clock=clock)
    timed = "".join(order[9:])  # after two warm-ups and a try of each
    assert timed == "abcbcacab"


def test_short_runs_are_repeated() -> None:
    clock = Clock()
    calls = 0
    tick = clock.task(0.001)

    def run() -> None:
        nonlocal calls
        calls += 1
        tick()

    (samples,) = interleaved([run], seconds=0, rounds=(1, 1), clock=clock)
    assert samples.seconds == pytest.approx((0.001,))
    assert calls == 3 + 1 + 10  # a turn lasts ten milliseconds


def test_rounds_end_with_the_seconds_but_not_before_the_fewest() -> None:
    clock = Clock()
    (few,) = interleaved([clock.task(1.0)], seconds=0, rounds=(5, 50), clock=clock)
    (timed,) = interleaved([clock.task(1.0)], seconds=19.5, rounds=(5, 50), clock=clock)
    assert (len(few.seconds), len(timed.seconds)) == (5, 20)


def test_a_tenth_faster_is_faster_under_a_tenth_of_noise() -> None:
    found = speedup(noisy(1.1, 0.05, 0), noisy(1.0, 0.05, 1))
    assert found.verdict is Verdict.FASTER
    assert found.low < found.median < found.high


def test_the_other_way_round_is_slower() -> None:
    assert speedup(noisy(1.0, 0.05, 1), noisy(1.1, 0.05, 0)).verdict is Verdict.SLOWER


def test_a_difference_within_noise_is_none() -> None:
    assert speedup(noisy(1.01, 0.0, 0), noisy(1.0, 0.0, 1)).verdict is Verdict.SAME
    assert speedup(noisy(1.05, 0.3, 2), noisy(1.0, 0.3, 3)).verdict is Verdict.SAME


def test_equal_models_are_hardly_ever_called_faster() -> None:
    found = [speedup(noisy(1.0, 0.1, 2 * i), noisy(1.0, 0.1, 2 * i + 1)).verdict for i in range(200)]
    assert found.count(Verdict.SAME) >= 190


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    found = [speedup(noisy(1.2, 0.1, 2 * i), noisy(1.0, 0.1, 2 * i + 1)) for i in range(300)]
    assert sum(s.low <= 1.2 <= s.high for s in found) / len(found) > 0.93


def test_few_rounds_give_their_least_and_greatest() -> None:
    found = speedup(Samples((1.0, 1.1, 1.2)), Samples((1.0, 1.0, 1.0)))
    assert (found.low, found.high) == (1.0, 1.2)


def test_a_session_runs_with_its_feeds() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    setting = Setting()
    run = runner(setting.open(model.SerializeToString()), {"x": np.array([1, 2], np.float32)}, setting)
    np.testing.assert_array_equal(run(), [[-1, -2]])


def test_a_provider_that_is_missing_is_named_with_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"no CUDAExecutionProvider, only .*CPU.*graphopt\[gpu\]"):
        _ = Setting("cuda").provider_name
