"""Timing and profiling models in ONNX Runtime: tiny ones, for how fast they are is not the matter."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from graphopt.base.errors import ModelError, UsageError
from graphopt.runtime.bench import (
    Benchmark,
    BenchmarkCase,
    ModelTiming,
    format_ms,
    format_table,
    prepare_models,
    run_benchmark,
)
from graphopt.runtime.measure import KernelTimes, Speedup, TimingSamples, TimingVerdict
from graphopt.runtime.profile import (
    ProfiledSession,
    graph_operators,
    kernels_digest,
    light_kernel_share,
    optimized_graph,
    profile_model,
    time_kernels,
    time_kernels_in_turns,
    times_by_operator,
    undisturbed_sums,
)
from graphopt.runtime.session_setting import SessionSetting
from tests.commands import run
from tests.text import parse

WEIGHTS = {"w": np.eye(8, dtype=np.float32)}
INPUTS, OUTPUTS = "float[batch,seq,8] x", "float[batch,seq,8] y"


def saved(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, path)
    return path


@pytest.fixture
def short(tmp_path: Path) -> Path:
    return saved(tmp_path / "short.onnx", parse(INPUTS, "y = MatMul(x, w)", WEIGHTS, outputs=OUTPUTS))


@pytest.fixture
def long(tmp_path: Path) -> Path:
    body = "a = MatMul(x, w); b = Add(a, a); y = Sub(b, a)"
    return saved(tmp_path / "long.onnx", parse(INPUTS, body, WEIGHTS, outputs=OUTPUTS))


@pytest.fixture
def image() -> onnx.ModelProto:
    """A convolution that ONNX Runtime fuses, and for which it changes the layout."""
    weights = {"w": np.ones((16, 3, 3, 3), np.float32)}
    return parse("float[1,3,16,16] x", "c = Conv(x, w); y = Relu(c)", weights, outputs="float[1,16,14,14] y")


# -- from Python -------------------------------------------------------------------------------------------------------


def test_sizes_share_the_limit_of_a_run(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr("graphopt.runtime.bench.run_interruptibly", lambda _, limit: limits.append(limit))
    prepare_models([short], SessionSetting(), dims={"batch": [1, 2], "seq": [4, 8]}, limit=2.0)
    assert limits == [0.5] * 4


def test_models_are_timed_against_the_first(long: Path, short: Path) -> None:
    found = run_benchmark([long, short, long], SessionSetting(), dims={"batch": 1, "seq": 4}, seconds=0.0)
    (case,) = found.cases
    assert case.sizes == {"batch": 1, "seq": 4}
    assert [timing.model for timing in case.timings] == [str(long), str(short), str(long)]
    assert case.timings[0].speedup is None
    for timing in case.timings[1:]:
        assert timing.speedup is not None
        assert timing.speedup.rounds == len(timing.samples.seconds) == 11
        assert timing.speedup.low <= timing.speedup.median <= timing.speedup.high


def test_every_choice_of_the_sizes_is_measured(long: Path, short: Path) -> None:
    told: list[float] = []
    found = run_benchmark(
        [long, short], SessionSetting(), dims={"seq": [2, 3], "batch": [1, 4]}, seconds=0.0, progress=told.append
    )
    sizes = [dict(case.sizes) for case in found.cases]
    assert sizes == [{"seq": seq, "batch": batch} for seq in (2, 3) for batch in (1, 4)]
    assert told == sorted(told)
    assert told[-1] == 1.0


def ratio(median: float) -> Speedup:
    return Speedup(median, median, 0.99 * median, 1.01 * median, 15)


def test_sizes_together_are_a_geometric_mean() -> None:
    first = ModelTiming("a", TimingSamples((1.0,)), None)
    ratios = {1: ratio(2.0), 2: ratio(4.5)}
    cases = (
        BenchmarkCase({"n": n}, frozenset(), (first, ModelTiming("b", TimingSamples((1.0,)), r)))
        for n, r in ratios.items()
    )
    none, second = Benchmark(("a", "b"), SessionSetting(), 0, tuple(cases)).overall_speedups
    assert none is None
    assert second is not None
    assert [second.minimum, second.median, second.low, second.high] == pytest.approx([3.0, 3.0, 2.97, 3.03])
    assert second.rounds == 15
    assert second.verdict is TimingVerdict.FASTER


def test_a_size_that_one_model_fixes_holds_for_all(long: Path) -> None:
    fixed = parse("float[batch,3,8] x", "y = MatMul(x, w)", WEIGHTS, outputs="float[batch,3,8] y")
    (case,) = run_benchmark([long, fixed], SessionSetting(), seconds=0.0).cases
    assert case.sizes == {"batch": 1}
    assert case.chosen == {"batch"}
    (trial,) = prepare_models([long, fixed], SessionSetting()).trials
    assert trial.feeds["x"].shape == (1, 3, 8)


def test_weights_that_are_inputs_too_may_differ(short: Path) -> None:
    """Before IR version 4 all weights were inputs; one model may have folded its own."""
    old = onnx.load(short)
    old.ir_version = 3
    old.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 8]))
    folded = onnx.ModelProto.FromString(old.SerializeToString())
    folded.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 4), np.float32), "w"))
    folded.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 4
    folded.graph.output[0].type.tensor_type.shape.dim[2].dim_value = 4
    (trial,) = prepare_models([old, folded], SessionSetting()).trials
    assert list(trial.feeds) == ["x"]


def test_a_busy_machine_is_told() -> None:
    def found(*seconds: float) -> str:
        return str(
            Benchmark(
                ("a",),
                SessionSetting(),
                0,
                (BenchmarkCase({}, frozenset(), (ModelTiming("a", TimingSamples(seconds), None),)),),
            )
        )

    assert found(1.0, 1.2, 1.6, 2.0).endswith("the machine is busy, and small gains are not seen")
    assert "busy" not in found(1.0, 1.01, 1.02)


def test_sizes_that_a_model_refuses_are_guessed_again() -> None:
    weights = {"w": np.ones((64, 8), np.float32)}
    model = parse("float[batch,seq,hidden] x", "y = MatMul(x, w)", weights, outputs="float[batch,seq,8] y")
    (trial,) = prepare_models([model], SessionSetting()).trials
    assert trial.sizes["hidden"] == 64
    with pytest.raises(ModelError, match=r"the model cannot be run: .*with hidden=9, batch=1, seq=128.*--dim gives"):
        prepare_models([model], SessionSetting(), dims={"hidden": 9})


def test_sizes_that_are_too_long_are_halved() -> None:
    """There are 50 positions, as in a small transformer."""
    weights = {"table": np.zeros((50, 4), np.float32)}
    body = "s = Shape(ids); n = Gather(s, 1); y = Gather(table, n)"
    model = parse("int64[batch,seq] ids", body, weights, outputs="float[4] y")
    (trial,) = prepare_models([model], SessionSetting()).trials
    assert dict(trial.sizes) == {"batch": 1, "seq": 32}


def test_a_decoder_is_timed_at_a_token_and_at_a_prompt() -> None:
    """The mask is as long as what is in the cache and what is new, or the sum would not be defined."""
    model = parse(
        "int64[1,s1] ids, float[1,2,s2,4] past_key, float[1,2,s1,4] key, float[1,1,1,s3] attention_mask",
        "k = Concat<axis=2>(past_key, key); t = Transpose<perm=[0,1,3,2]>(k); y = Add(t, attention_mask)",
    )
    token, prompt = prepare_models([model], SessionSetting()).trials
    assert dict(token.sizes) == {"s1": 1, "s2": 256, "s3": 257}
    assert dict(prompt.sizes) == {"s1": 128, "s2": 0, "s3": 128}
    assert token.defaulted_dims == {"s1", "s2", "s3"}


@pytest.mark.parametrize(
    ("most", "lengths"),
    [
        pytest.param(257, [(1, 256), (128, 0)], id="as usual"),
        pytest.param(200, [(1, 128), (128, 0)], id="half"),
        pytest.param(100, [(1, 64), (64, 0)], id="a quarter"),
        pytest.param(10, [(1, 1)], id="none of them"),
    ],
)
def test_a_cache_that_is_too_long_is_halved_and_the_mask_fits(most: int, lengths: list[tuple[int, int]]) -> None:
    """Positions of so many tokens are known; no cache is half of none."""
    model = parse(
        "int64[1,s1] ids, float[1,2,s2,4] past_key, float[1,2,s1,4] key, float[1,1,1,s3] attention_mask",
        "k = Concat<axis=2>(past_key, key); t = Transpose<perm=[0,1,3,2]>(k); m = Add(t, attention_mask); "
        "n = Shape<start=2, end=3>(k); last = Sub(n, [1]); p = Gather(table, last); y = Add(m, p)",
        {"table": np.zeros(most, np.float32)},
    )
    found = [dict(trial.sizes) for trial in prepare_models([model], SessionSetting(threads=1)).trials]
    assert found == [{"s1": new, "s2": past, "s3": past + new} for new, past in lengths]


def test_given_inputs_are_used_and_give_the_sizes(short: Path) -> None:
    given = np.ones((2, 5, 8))
    (trial,) = prepare_models([short], SessionSetting(), inputs={"x": given}).trials
    assert dict(trial.sizes) == {"batch": 2, "seq": 5}
    assert trial.defaulted_dims == frozenset()
    assert trial.feeds["x"].dtype == np.float32


def test_made_up_inputs_depend_on_the_seed_alone(short: Path) -> None:
    first, again, other = (
        prepare_models([short], SessionSetting(), seed=seed).trials[0].feeds["x"] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_model_over_2_gb_is_timed_and_its_weights_are_not_copied(tmp_path: Path) -> None:
    rows = 600_000
    model = parse("int64[n] ids", "y = Gather(table, ids)", outputs="float[n,1024] y")
    table = model.graph.initializer.add(name="table", data_type=1, dims=[rows, 1024])
    table.data_location = onnx.TensorProto.EXTERNAL
    table.external_data.add(key="location", value="table.bin")
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(rows * 4096)  # a hole, which takes no space
    path = saved(tmp_path / "large.onnx", model)
    (case,) = run_benchmark([path], SessionSetting(), seconds=0.0).cases
    assert len(case.timings[0].samples.seconds) == 11


def test_tables_are_aligned() -> None:
    assert format_table([("a", "b", "c"), ("long", "1", "x")], left=(0, 2)) == "a     b  c\nlong  1  x"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0"), (1.23456e-6, "0.001235"), (0.0123456, "12.35"), (12.3456, "12346")]
)
def test_milliseconds_have_four_digits(seconds: float, text: str) -> None:
    assert format_ms(seconds) == text


# -- profiles ----------------------------------------------------------------------------------------------------------


def profiled(model: Any, **inputs: Any) -> Any:
    (trial,) = prepare_models([model], SessionSetting(), inputs=inputs).trials
    return profile_model(model, SessionSetting(), trial.feeds)


def test_a_profile_names_operators_and_sums_to_about_the_whole() -> None:
    weights = {"w": np.eye(256, dtype=np.float32)}
    body = "a = MatMul(x, w); b = Softmax(a); c = MatMul(b, w); y = Erf(c)"
    found = profiled(parse("float[512,256] x", body, weights, outputs="float[512,256] y"))
    assert {row.operator: row.count for row in found.rows} == {"MatMul": 2, "Softmax": 1, "Erf": 1}
    assert found.rows[0].operator == "MatMul"
    assert [row.seconds for row in found.rows] == sorted((row.seconds for row in found.rows), reverse=True)
    assert sum(row.share for row in found.rows) == pytest.approx(1)
    assert 0.5 < found.kernel_seconds / found.seconds <= 1.01
    assert found.runs == 20


@pytest.mark.parametrize(
    ("x", "weight", "outside"),
    [("float[1,256,28,28] x", (256, 256, 3, 3), 0.0), ("float[1,64,512] x", (64, 64, 3), 1.0)],
)
def test_convolutions_of_images_are_heavy_and_those_of_signals_are_not(
    x: str, weight: tuple[int, ...], outside: float
) -> None:
    model = parse(x, "y = Conv(x, w)", {"w": np.ones(weight, np.float32)})
    (trial,) = prepare_models([model], SessionSetting(threads=1)).trials
    times = time_kernels(model, SessionSetting(threads=1), trial.feeds, 5)
    assert light_kernel_share(times) == pytest.approx(outside, abs=0.1)


def test_what_kernels_that_both_run_take_is_no_difference() -> None:
    """However the times of these differ, which is noise; what one of them runs more often counts."""
    before = KernelTimes({"Gemm": 2, "Softmax": 1, "Add": 2}, {"Gemm": [6.0], "Softmax": [2.0], "Add": [2.0]})
    noisy = KernelTimes(before.counts, {"Gemm": [9.0], "Softmax": [1.0], "Add": [2.0]})
    assert before.speedup_of(noisy) == 1.0
    after = KernelTimes({"Gemm": 2, "Softmax": 1, "Add": 1, "Mul": 1}, {"Gemm": [9.0], "Softmax": [2.0], "Add": [1.0]})
    assert before.speedup_of(after) == pytest.approx(10 / 9)
    assert after.speedup_of(before) == pytest.approx(12 / 13)


@pytest.mark.parametrize("after", [KernelTimes({}, {}), KernelTimes({"Add": 1}, {"Add": [0.0]})])
def test_kernels_that_are_told_to_take_no_time_are_only_very_fast(after: KernelTimes) -> None:
    """The profiler counts microseconds: nothing is infinitely fast."""
    before = KernelTimes({"Gemm": 1}, {"Gemm": [2e-3]})
    assert before.speedup_of(after) == pytest.approx(2000)
    assert after.speedup_of(before) == pytest.approx(1 / 2000)
    assert after.speedup_of(after) == 1.0


def test_kernels_are_told_apart_by_their_shapes() -> None:
    weights = {"w": np.eye(64, dtype=np.float32), "v": np.ones((64, 8), np.float32)}
    body = "a = MatMul(x, w); b = Softmax(a); c = MatMul(b, w); y = MatMul(c, v)"
    model = parse("float[32,64] x", body, weights, outputs="float[32,8] y")
    (trial,) = prepare_models([model], SessionSetting(threads=1)).trials
    found = time_kernels(model, SessionSetting(threads=1), trial.feeds, runs=2)
    assert sorted(found.counts.values()) == [1, 1, 2]
    assert found.counts.keys() == found.seconds.keys()
    assert all(len(runs) == 2 and min(runs) >= 0 for runs in found.seconds.values())


def test_kernels_of_several_models_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, run = list[ProfiledSession](), ProfiledSession.run

    def noted(session: ProfiledSession, *args: Any) -> Any:
        turns.append(session)
        return run(session, *args)

    monkeypatch.setattr(ProfiledSession, "run", noted)
    exp, sin = (parse("float[4] x", f"y = {op}(x)") for op in ("Exp", "Sin"))
    setting = SessionSetting(threads=1)
    found = time_kernels_in_turns([(exp, setting), (sin, setting)], {"x": np.ones(4, np.float32)}, runs=2)
    assert [[*each.seconds_by_operator] for each in found] == [["Exp"], ["Sin"]]
    assert turns[:2] * 3 == turns and turns[0] is not turns[1]


def test_a_profile_shows_what_onnxruntime_fused(image: onnx.ModelProto) -> None:
    found = profiled(image)
    assert found.before == {"Conv": 1, "Relu": 1}
    assert "Relu" not in found.after
    assert found.node_count == sum(found.after.values())
    assert found.reorder_count == sum(count for op, count in found.after.items() if "Reorder" in op)
    text = str(found)
    assert re.search(r"^operator +count +ms +share$", text, re.MULTILINE)
    assert re.search(r"^Conv +1 +\d", text, re.MULTILINE)
    assert re.search(r"^Relu +1 +0$", text, re.MULTILINE)
    assert f"ONNX Runtime runs {found.node_count} node" in text


def kernel(operator: str, start: int, duration: int) -> dict[str, Any]:
    return {"ts": start, "dur": duration, "args": {"op_name": operator}}


def test_the_time_of_a_loop_is_without_that_of_its_body() -> None:
    in_loop = [kernel("MatMul", 15, 20), kernel("MatMul", 40, 30), kernel("If", 40, 30)]  # inner kernels end first
    run = [*in_loop, kernel("Loop", 10, 70), kernel("Conv", 80, 10)]
    again = [event | {"ts": event["ts"] + 90} for event in run]
    found = times_by_operator([*run, *again], runs=2)
    assert [(row.operator, row.count, round(row.seconds * 1e6)) for row in found] == [
        ("MatMul", 2, 50),
        ("Loop", 1, 20),
        ("Conv", 1, 10),
        ("If", 1, 0),
    ]
    assert [row.share for row in found] == pytest.approx([5 / 8, 2 / 8, 1 / 8, 0])


def test_a_loop_runs_its_body_several_times() -> None:
    weights = {"w": np.eye(256, dtype=np.float32), "n": np.array(3), "go": np.array(True)}
    body = "b (int64 i, bool k, float[256,256] a) => (bool k, float[256,256] c) { c = MatMul(a, w) }"
    loop = parse("float[256,256] x", f"y = Loop(n, go, x) <body = {body}>", weights, outputs="float[256,256] y")
    found = profiled(loop)
    assert {row.operator: row.count for row in found.rows} == {"Loop": 1, "MatMul": 3}
    assert found.kernel_seconds <= 1.01 * found.seconds
    assert found.before == {"Loop": 1, "MatMul": 1}


def test_the_optimized_graph_is_whole(image: onnx.ModelProto) -> None:
    found = optimized_graph(image, SessionSetting())
    assert "Relu" not in list(graph_operators(found.graph))
    weights = [numpy_helper.to_array(tensor) for tensor in found.graph.initializer]
    assert sum(float(array.sum()) for array in weights) == 16 * 3 * 3 * 3


@pytest.mark.usefixtures("half_written")
@pytest.mark.parametrize("asked", [profile_model, optimized_graph])
def test_what_onnxruntime_wrote_by_half_cannot_be_read(image: onnx.ModelProto, asked: Callable[..., object]) -> None:
    (trial,) = prepare_models([image], SessionSetting()).trials
    arguments = (trial.feeds,) if asked is profile_model else ()
    with pytest.raises(ModelError, match="cannot be read"):
        asked(image, SessionSetting(), *arguments)


def test_models_of_which_the_same_is_run_have_one_digest() -> None:
    """Names do not count, nor what is folded; sizes do, also those that are inputs."""
    one, other = (parse("float[2] x", body) for body in ("y = Add(x, x)", "a = Identity(x); y = Add(a, x)"))
    small, large = (parse("float[1] x", f"y = Expand(x, [{size}])") for size in (2, 2000))
    found = [kernels_digest(model, SessionSetting()) for model in (one, other, small, large)]
    assert found[0] == found[1] and len(set(found)) == 3


def test_a_weight_that_may_be_overridden_is_run_as_others_are() -> None:
    """In models of IR version 3 all weights are inputs, too."""
    plain = parse("float[2] x", "y = Add(x, w)", {"w": np.ones(2, np.float32)})
    given = onnx.ModelProto.FromString(plain.SerializeToString())
    given.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    assert kernels_digest(plain, SessionSetting()) == kernels_digest(given, SessionSetting())


# -- from a shell ------------------------------------------------------------------------------------------------------


def test_bench(long: Path, short: Path) -> None:
    done = run("bench", long, short, "--dim", "seq=4", "--seconds", 0, "--threads", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"onnxruntime \S+, CPUExecutionProvider, 1 thread, seed 0", lines[0])
    assert lines[2] == "seq=4, batch=1 (chosen here: batch)"
    assert lines[3].split("  ")[0] == "model"
    assert re.match(rf"{re.escape(str(long))} +[\d.]+ +[\d.]+ +[\d.]+% +11$", lines[4])
    ratios = r"[\d.]+ +[\d.]+–[\d.]+  (faster|slower|no difference)$"
    assert re.match(rf"{re.escape(str(short))} +[\d.]+ +[\d.]+ +[\d.]+% +11 +{ratios}", lines[5])


def test_bench_of_one_model_gives_its_own_times(long: Path) -> None:
    done = run("bench", long, "--seconds", 0, "--threads", 1, "--seed", 3)
    assert done.exit_code == 0
    assert "1 thread, seed 3\n" in done.stdout
    assert "speedup" not in done.stdout


def test_bench_at_several_sizes(long: Path, short: Path) -> None:
    done = run("bench", long, short, "--dim", "seq=4,8", "batch=1", "--dim", "seq=2", "--seconds", 0, "--threads", 1)
    assert done.exit_code == 0, done.stderr
    assert re.findall(r"^seq=\d, batch=1$", done.stdout, re.MULTILINE) == [f"seq={n}, batch=1" for n in (4, 8, 2)]
    assert "all sizes, as a geometric mean\n" in done.stdout


def test_bench_as_json(long: Path, short: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 2, 8), np.float32))
    given = f"x:{tmp_path / 'x.npy'}"
    done = run("bench", long, short, "--json", "--profile", "--input", given, "--seconds", 0, "--threads", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert data["setting"]["provider"] == "CPUExecutionProvider"
    assert data["setting"]["threads"] == 1
    (case,) = data["cases"]
    assert case["sizes"] == {"batch": 1, "seq": 2}
    assert case["chosen"] == []
    first, second = case["timings"]
    assert first["speedup"] is None
    assert first["minimum"] == min(first["seconds"])
    assert second["speedup"]["verdict"] in list(TimingVerdict)
    assert data["together"][1]["median"] == pytest.approx(second["speedup"]["median"])
    assert [one["model"] for one in data["profiles"]] == [str(long), str(short)]
    assert data["profiles"][1]["rows"][0]["operator"] == "MatMul"


def test_bench_with_profiles(long: Path) -> None:
    done = run("bench", long, "--dim", "seq=4,8", "--profile", "--seconds", 0, "--threads", 1)
    assert done.exit_code == 0
    assert len(re.findall(r"^operator +count +ms +share$", done.stdout, re.MULTILINE)) == 2
    assert re.search(r"^Sub +1 +\d", done.stdout, re.MULTILINE)


def test_inspect_with_a_profile(long: Path) -> None:
    done = run("inspect", long, "--profile", "--dim", "seq=4", "--threads", 1)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"^weights +64 parameters", done.stdout, re.MULTILINE)
    assert "seq=4, batch=1 (chosen here: batch)\n" in done.stdout
    assert re.search(r"^MatMul +1 +[\d.]+ +[\d.]+%$", done.stdout, re.MULTILINE)
    data = json.loads(run("inspect", long, "--profile", "--threads", 1, "--json").stdout)
    assert data["model"]["ops"]["MatMul"] == 1
    assert {row["operator"] for row in data["profiles"][0]["rows"]} == {"MatMul", "Add", "Sub"}


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ("long.onnx --provider tpu", 2, "this onnxruntime has no tpu, only .*CPUExecutionProvider"),
        ("long.onnx --provider-option x", 2, "'x' is not of the form key=value"),
        ("long.onnx --dim sq=3", 2, "there is no open dim 'sq'; did you mean 'seq'?"),
        ("long.onnx --dim heads=3", 2, "there is no open dim 'heads'; there is 'batch', 'seq'"),
        ("long.onnx --dim seq=0", 2, "'seq=0': a size is 1 or more"),
        ("long.onnx --dim seq=many", 2, "'seq=many' is not of the form batch=1 or seq=16,128: sizes are numbers"),
        ("long.onnx --input x:rows.npy", 2, "input 'x' is FLOAT[batch,seq,8], the given values are float32[3, 7]"),
        ("long.onnx --input z:rows.npy", 2, "there is no input 'z'; there is 'x'"),
        ("long.onnx --input x:good.npy --dim seq=3", 2, "'seq' is 2 in the inputs that are given"),
        ("long.onnx other.onnx", 2, "the inputs differ: long.onnx has 'x', other.onnx has not"),
        ("other.onnx long.onnx", 2, "the inputs differ: other.onnx has 'z', long.onnx has not"),
        ("long.onnx two.onnx", 2, "the inputs differ: two.onnx has 'z', long.onnx has not"),
        ("long.onnx double.onnx", 2, "'x' is FLOAT[batch,seq,8] in long.onnx and DOUBLE[4] in double.onnx"),
        ("long.onnx text.onnx", 1, "text.onnx is a text file, not an ONNX model"),
        ("nothing.onnx", 1, "nothing.onnx does not exist"),
        ("custom.onnx", 1, "custom.onnx cannot be loaded: .*Magic"),
        ("refusing.onnx --dim n=3", 1, "refusing.onnx cannot be run: .*(with n=3)"),
        ("endless.onnx --run-limit 0.2", 1, "endless.onnx: a run takes more than 0.2 s (--run-limit gives it longer)"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    long: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, code: int, complaint: str
) -> None:
    folder = long.parent
    monkeypatch.chdir(folder)
    np.save("rows.npy", np.zeros((3, 7), np.float32))
    np.save("good.npy", np.zeros((1, 2, 8), np.float32))
    Path("text.onnx").write_text("hello")
    saved(folder / "other.onnx", parse("float[4] z", "y = Neg(z)"))
    saved(folder / "two.onnx", parse(f"{INPUTS}, float[4] z", "y = Add(x, 1.0)", outputs=OUTPUTS))
    saved(folder / "double.onnx", parse("double[4] x", "y = Neg(x)", outputs="double[4] y"))
    saved(folder / "refusing.onnx", parse("float[n] x", "y = Reshape(x, [2, -1])", outputs="float[2,m] y"))
    body = "b (int64 i, bool k, float[4] a) => (bool k, float[4] c) { c = Neg(a) }"
    weights = {"n": np.array(2**40), "go": np.array(True)}
    saved(folder / "endless.onnx", parse("float[4] x", f"y = Loop(n, go, x) <body = {body}>", weights))
    custom = parse("float[4] x", "y = Magic(x)")
    custom.graph.node[0].domain = "acme"
    custom.opset_import.add(domain="acme", version=1)
    saved(folder / "custom.onnx", custom)
    done = run("bench", *arguments.split(), "--threads", 1)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    pattern = re.escape(complaint).replace(r"\.\*", ".*")
    assert re.search(pattern, done.stderr), done.stderr


def test_inspect_with_a_profile_runs_what_is_given(long: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2, 8), np.float32))
    option = ("--provider-option", "arena_extend_strategy=kNextPowerOfTwo")
    done = run("inspect", long, "--profile", "--input", f"x:{tmp_path / 'x.npy'}", *option, "--threads", 1)
    assert done.exit_code == 0, done.stderr
    assert "batch=3, seq=2\n" in done.stdout


HOW_TO_RUN = (
    *("--dim seq=4", "--seed 7", "--threads 1", "--provider cuda", "--provider-option a=b"),
    *("--custom-ops a.so", "--run-limit 5", "--memory-limit 5"),
)


@pytest.mark.parametrize("option", HOW_TO_RUN)
def test_how_to_run_needs_a_profile(long: Path, option: str) -> None:
    done = run("inspect", long, *option.split())
    assert done.exit_code == 2
    assert f"{option.split(maxsplit=1)[0]} says how a model is run: that is for --profile" in done.stderr


def test_no_model_is_no_benchmark() -> None:
    with pytest.raises(UsageError, match="there is nothing to time"):
        run_benchmark([], SessionSetting())


@pytest.mark.parametrize(("threads", "interrupted"), [(1, {1, 3}), (2, set())])
def test_a_run_is_interrupted_if_the_clock_passes_without_the_processor(
    monkeypatch: pytest.MonkeyPatch, threads: int, interrupted: set[int]
) -> None:
    """With several threads that is nothing: they wait for each other."""
    model = parse("float[4] x", "y = Exp(x)", outputs="float[4] y")
    session = ProfiledSession(model, SessionSetting(threads=threads))
    waits, now = iter([0.0, 0.5, 1e-5, 0.02]), {"wall": 0.0, "processor": 0.0}
    run = session._session.run

    def running(*args: Any) -> Any:
        """Take a second of the processor, and wait for it."""
        now["processor"] += 1.0
        now["wall"] += 1.0 + next(waits)
        return run(*args)

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=running, end_profiling=session._session.end_profiling))
    monkeypatch.setattr("time.perf_counter", lambda: now["wall"])
    monkeypatch.setattr("time.thread_time", lambda: now["processor"])
    for _ in range(4):
        session.run(None, {"x": np.zeros(4, np.float32)})
    session.stop_profiling()
    assert session.runs == 4
    assert session.interrupted_runs(slice(0, None)) == interrupted
    assert session.interrupted_runs(slice(-2, None)) == {number - 2 for number in interrupted if number >= 2}


def test_kernels_count_as_if_all_were_disturbed_as_the_better_half_is() -> None:
    quiet = [100, 100, 200]
    assert undisturbed_sums([quiet, [100, 180, 200], [150, 100, 200]]) == [400, 400, 400]
    assert undisturbed_sums([quiet, [110, 110, 300]]) == pytest.approx([400, 440])


def test_kernels_that_always_take_longer_count_as_what_they_take() -> None:
    half_is_slow = [[100, 200, 100, 200]] * 3
    assert undisturbed_sums(half_is_slow) == [600, 600, 600]


@pytest.mark.parametrize(
    ("runs", "sums"),
    [
        ([[100], [180]], [100, 180]),  # a single kernel tells what it took
        ([[1, 2, 1], [2, 2, 9]], [4, 13]),  # a tick more or less would be seen
        ([[100, 100], [100, 100, 100]], [200, 300]),  # as in a Loop
        ([[], []], [0, 0]),
    ],
)
def test_other_kernels_are_summed_up(runs: list[list[float]], sums: list[float]) -> None:
    assert undisturbed_sums(runs) == sums
