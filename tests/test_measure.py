"""Statistics of paired timings, on clocks that are made up: nothing here depends on how fast the machine is."""

import itertools
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.errors import ModelError, UsageError
from graphopt.measure import Samples, Setting, Verdict, aligned, bound, interleaved, ms_text, runner, speedup
from tests.text import parse


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
    slow_at_first = clock.task(0.4, 0.4, 0.1)
    (samples,) = interleaved([slow_at_first], seconds=0, rounds=(3, 3), clock=clock)
    assert samples.seconds == pytest.approx((0.1, 0.1, 0.1))


def test_a_lengthy_run_is_warmed_up_by_one() -> None:
    clock = Clock()
    (samples,) = interleaved([clock.task(3.0, 2.0)], seconds=0, rounds=(3, 3), clock=clock)
    assert samples.seconds == pytest.approx((2.0, 2.0, 2.0))
    assert clock.now == pytest.approx(9.0)


def turns(rounds: int, seed: int) -> list[str]:
    """The order of three runs in each round."""
    clock = Clock()
    order: list[str] = []

    def run(name: str) -> Callable[[], None]:
        task = clock.task(1.0)

        def turn() -> None:
            order.append(name)
            task()

        return turn

    interleaved([run(name) for name in "abc"], seconds=0, rounds=(rounds, rounds), clock=clock, seed=seed)
    timed = "".join(order[3:])  # after a warm-up of each
    return [timed[place : place + 3] for place in range(0, len(timed), 3)]


def test_runs_take_turns_in_an_order_that_is_drawn_for_each_round() -> None:
    found = turns(600, seed=0)
    assert all(sorted(order) == ["a", "b", "c"] for order in found)
    pairs = Counter(itertools.pairwise("".join(found)))
    assert all(pairs[before, after] > 200 for before, after in itertools.permutations("abc", 2))
    assert turns(9, seed=0) == found[:9] != turns(9, seed=1)


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


def jittering(clock: Clock, seconds: float, noise: float, seed: int) -> Callable[[], None]:
    factors = 1 + noise * np.random.default_rng(seed).uniform(-1, 1, 10_000)
    return clock.task(*(seconds * factors).tolist())


def test_rounds_end_early_when_the_ratios_are_certain() -> None:
    clock = Clock()
    steady = [clock.task(1.1), clock.task(1.0)]
    (certain, _) = interleaved(steady, seconds=1e9, rounds=(7, 50), width=0.01, clock=clock)
    (all_, _) = interleaved(steady, seconds=1e9, rounds=(7, 50), clock=clock)
    assert (len(certain.seconds), len(all_.seconds)) == (7, 50)


def test_rounds_go_on_until_the_ratios_are_certain() -> None:
    clock = Clock()
    noisy_runs = [jittering(clock, 1.1, 0.1, 0), jittering(clock, 1.0, 0.1, 1)]
    some, other = interleaved(noisy_runs, seconds=1e9, rounds=(7, 400), width=0.03, clock=clock)
    found = speedup(some, other)
    assert 7 < found.rounds < 400
    assert found.high - found.low <= 0.03 * found.median
    assert found.low < 1.1 < found.high
    (few, _) = interleaved(noisy_runs, seconds=20, rounds=(7, 400), width=0.0001, clock=clock)
    assert len(few.seconds) == 10  # of two seconds and a bit each


def test_a_run_alone_ends_when_its_time_is_certain() -> None:
    clock = Clock()
    (steady,) = interleaved([clock.task(1.0)], seconds=1e9, rounds=(7, 50), width=0.01, clock=clock)
    (shaky,) = interleaved([jittering(clock, 1.0, 0.5, 0)], seconds=1e9, rounds=(7, 50), width=0.01, clock=clock)
    assert (len(steady.seconds), len(shaky.seconds)) == (7, 50)


def test_progress_is_told_in_parts_of_one() -> None:
    clock = Clock()
    told: list[float] = []
    interleaved([clock.task(1.0)], seconds=3.5, rounds=(2, 50), clock=clock, progress=told.append)
    assert told == pytest.approx([1 / 3.5, 2 / 3.5, 3 / 3.5, 1.0])


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


def test_bound_outputs_of_several_types_are_those_of_a_plain_run() -> None:
    body = "a = Add(x, x); b = Cast<to=10>(x); c = Cast<to=7>(x); d = Less(x, y); e = Transpose(y)"
    outputs = "float[2,3] a, float16[2,3] b, int64[2,3] c, bool[2,3] d, float[3,2] e"
    model = parse("float[2,3] x, float[2,3] y", body, outputs=outputs)
    session = Setting().open(model)
    values = np.random.default_rng(0).normal(0, 9, (3, 2, 2)).astype(np.float32)
    feeds = {"x": values[..., 0].T, "y": values[..., 1].T}  # neither lies in the order of its axes
    binding = bound(session, feeds, Setting().device)
    session.run_with_iobinding(binding)
    expected = session.run(None, feeds)
    for found, wanted in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_types_that_numpy_lacks_are_run() -> None:
    model = parse("bfloat16[3] x", "a = Cast<to=1>(x); y = Neg(a)", outputs="float[3] y, bfloat16[3] x2")
    model.graph.node.append(helper.make_node("Identity", ["x"], ["x2"]))
    feeds = {"x": np.array([1, -2, 0.5], ml_dtypes.bfloat16)}
    session = Setting().open(model)
    assert runner(session, feeds, Setting())() is None
    binding = bound(session, feeds, ("cpu", 0))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), [-1, 2, -0.5])


def test_what_is_no_tensor_is_run() -> None:
    body = "s = SequenceConstruct(x, x); y = SequenceInsert(s, x)"
    model = parse("float[2] x", body, outputs="seq(float[2]) y")
    session = Setting().open(model)
    (found,) = session.run(None, {"x": np.ones(2, np.float32)})
    assert len(found) == 3
    run = runner(session, {"x": np.ones(2, np.float32)}, Setting())
    np.testing.assert_array_equal(run(), [found])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model with its weight in a file of its own."""
    model = parse("float[2] x", "y = Add(x, w)", outputs="float[2] y")
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], np.float32), "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


@pytest.mark.parametrize("form", ["text", "path", "bytes", "message"])
def test_a_session_is_made_of_a_path_bytes_or_a_message(outside: Path, form: str) -> None:
    message = onnx.load(outside, load_external_data=False)
    sources = {"text": str(outside), "path": outside, "bytes": outside.read_bytes(), "message": message}
    folder = None if form in ("text", "path") else outside.parent
    session = Setting().open(sources[form], folder=folder)
    (found,) = session.run(None, {"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(found, [3, 4])


def test_threads_spinning_and_affinity_are_set() -> None:
    seen: list[Any] = []
    model = parse("float[2] x", "y = Neg(x)", outputs="float[2] y")
    setting = Setting(threads=2, spinning=True, affinity="1")
    setting.open(model, configure=seen.append)
    Setting().open(model, configure=seen.append)
    entries = [options.get_session_config_entry("session.intra_op.allow_spinning") for options in seen]
    assert entries == ["1", "0"]
    assert [options.intra_op_num_threads for options in seen] == [2, 1]
    assert seen[0].get_session_config_entry("session.intra_op_thread_affinities") == "1"


def test_a_setting_says_what_it_is() -> None:
    assert str(Setting(threads=2)) == "CPUExecutionProvider, 2 threads"
    assert (
        str(Setting(threads=2, spinning=True, affinity="1")) == "CPUExecutionProvider, 2 threads, spinning, pinned to 1"
    )
    assert str(Setting(options={"a": "1"})) == "CPUExecutionProvider, a=1, 1 thread"
    assert re.fullmatch(r"CPUExecutionProvider, \d+ threads? \(one a core\)", str(Setting(threads=0)))


def test_what_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"^.*text\.onnx cannot be loaded: .*$"):
        Setting().open(path)
    with pytest.raises(ModelError, match=r"^the model cannot be loaded: .*$"):
        Setting().open(b"hello")


def test_tables_are_aligned() -> None:
    assert aligned([("a", "b", "c"), ("long", "1", "x")], left=(0, 2)) == "a     b  c\nlong  1  x"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0"), (1.23456e-6, "0.001235"), (0.0123456, "12.35"), (12.3456, "12346")]
)
def test_milliseconds_have_four_digits(seconds: float, text: str) -> None:
    assert ms_text(seconds) == text


def test_a_provider_that_is_missing_is_named_with_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"no CUDAExecutionProvider, only .*CPU.*graphopt\[gpu\]"):
        _ = Setting("cuda").provider_name
