"""What graphs cost: an estimate that ranks as ONNX Runtime does, and measurements that are kept."""

import logging
import platform
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from graphopt import cost, onnx_io
from graphopt.cache import Cache
from graphopt.cost import FAILED, SAME, Analytic, CostModel, Machine, Measured, NotMeasurable
from graphopt.errors import OutputError, UsageError
from graphopt.graph import Graph, Patch
from graphopt.infer import infer_graph
from graphopt.measure import Samples, Setting, Verdict
from tests.text import parse

IMAGE, OTHER = "float[1,32,28,28] x", "float[1,32,28,28] y"
SAME_SIZE = "<pads=[1,1,1,1]>"


def weight(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def graph(inputs: str, body: str, outputs: str = OTHER, *, opset: int = 20, **weights: Any) -> Graph:
    """A graph whose types are all known, from nodes in ONNX text."""
    found = onnx_io.load(parse(inputs, body, weights, outputs=outputs, opset=opset)).graph
    infer_graph(found)
    return found


def image(body: str, outputs: str = OTHER, **weights: Any) -> Graph:
    """A graph of an image with 32 channels."""
    return graph(IMAGE, body, outputs, **weights)


def ratio(before: Graph, after: Graph, machine: Machine | None = None) -> float:
    """How many times as fast the second is, by estimate."""
    (found,) = Analytic(machine).speedups(before, [after])
    assert (found.minimum, found.median, found.low, found.rounds) == (found.high, found.high, found.high, 0)
    return found.median


# -- the estimate ------------------------------------------------------------------------------------------------------


def test_a_convolution_with_nine_times_the_arithmetic_takes_that_much_longer() -> None:
    large = image(f"y = Conv{SAME_SIZE}(x, w)", w=weight(32, 32, 3, 3))
    small = image("y = Conv(x, w)", w=weight(32, 32, 1, 1))
    assert 7 < ratio(large, small) < 9


def test_small_operators_cost_a_launch_each() -> None:
    def chain(length: int) -> Graph:
        body = "; ".join(f"a{i + 1} = Neg(a{i})" for i in range(length))
        return graph("float[1] a0", body, f"float[1] a{length}")

    assert ratio(chain(40), chain(10)) == pytest.approx(4, rel=0.01)
    assert Analytic(Machine(launch_seconds=1e-3)).seconds(chain(10)) == pytest.approx(1e-2, rel=0.01)


def test_a_larger_kernel_for_the_sake_of_a_merge_pays_only_where_launches_are_dear() -> None:
    """TASO's "enlarge kernel": measured 0.79 on a CPU."""
    apart = image(
        f"a = Conv(x, u); b = Conv{SAME_SIZE}(x, w); y = Concat<axis = 1>(a, b)",
        "float[1,64,28,28] y",
        u=weight(32, 32, 1, 1),
        w=weight(32, 32, 3, 3),
    )
    merged = image(f"y = Conv{SAME_SIZE}(x, w)", "float[1,64,28,28] y", w=weight(64, 32, 3, 3))
    assert ratio(apart, merged) < 0.8
    assert ratio(apart, merged, Machine(flops_per_second=1e14, bytes_per_second=1e12, launch_seconds=1e-5)) > 1.5


def test_products_are_associated_where_that_saves_arithmetic() -> None:
    x, y, square = "float[64,512] x", "float[64,512] y", weight(512, 512)
    two = graph(x, "a = MatMul(x, u); y = MatMul(a, w)", y, u=square, w=square)
    one = graph(x, "y = MatMul(x, w)", y, w=square)
    assert ratio(two, one) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    ("taken_in", "weights"),
    [
        ("y = Relu(c)", {}),
        ("y = Clip(c, 0.0, 6.0)", {}),
        ("b = Mul(c, s); y = Relu(b)", {"s": weight(32, 1, 1)}),
        ("b = Add(c, s); y = Sigmoid(b)", {"s": weight(1, 32, 1, 1)}),
        ("y = BatchNormalization(c, p, p, p, p)", {"p": weight(32)}),
        ("y = HardSwish(c)", {}),
    ],
)
def test_what_a_convolution_takes_in_is_free(taken_in: str, weights: dict[str, Any]) -> None:
    kernel = weight(32, 32, 3, 3)
    alone = image(f"y = Conv{SAME_SIZE}(x, w)", w=kernel)
    followed = image(f"c = Conv{SAME_SIZE}(x, w); {taken_in}", w=kernel, **weights)
    assert ratio(alone, followed) == 1


@pytest.mark.parametrize(
    "kept",
    [
        "y = Erf(c)",
        "y = Add(c, 3.0)",
        "y = Mul(c, r)",
        "r1 = Relu(c); y = Relu(r1)",
        "r1 = Relu(c); n = Neg(c); y = Add(r1, n)",  # the convolution is read twice
    ],
)
def test_what_it_does_not_take_in_is_not(kept: str) -> None:
    kernel = weight(32, 32, 3, 3)
    alone = image(f"y = Conv{SAME_SIZE}(x, w)", w=kernel)
    assert ratio(alone, image(f"c = Conv{SAME_SIZE}(x, w); {kept}", w=kernel, r=weight(28))) < 0.99


def test_a_residual_costs_little_behind_a_convolution() -> None:
    kernel = weight(32, 32, 3, 3)
    alone = image(f"y = Conv{SAME_SIZE}(x, w)", w=kernel)
    residual = image(f"c = Conv{SAME_SIZE}(x, w); a = Add(x, c); y = Relu(a)", w=kernel)
    assert 0.95 < ratio(alone, residual) < 1
    assert ratio(alone, residual, Machine(block=0)) < 0.95


def test_a_bias_and_an_activation_are_free_after_a_product() -> None:
    x, y = "float[64,64] x", "float[64,64] y"
    alone = graph(x, "y = MatMul(x, w)", y, w=weight(64, 64))
    followed = graph(x, "m = MatMul(x, w); a = Add(m, b); y = Relu(a)", y, w=weight(64, 64), b=weight(64))
    scaled = graph(x, "m = MatMul(x, w); y = Div(m, 8.0)", y, w=weight(64, 64))
    transposed = graph(x, "t = Transpose(x); y = MatMul(t, w)", y, w=weight(64, 64))
    assert [ratio(alone, other) for other in (followed, scaled, transposed)] == [1, 1, 1]
    assert ratio(alone, graph(x, "t = Transpose(x); m = MatMul(t, w); y = Mul(m, t)", y, w=weight(64, 64))) < 0.9


@pytest.mark.parametrize(
    ("slow", "quick", "least"),
    [
        pytest.param(
            graph("float[1,64,9] x", "y = Conv<pads = [1,1]>(x, w)", "float[1,64,9] y", w=weight(64, 64, 3)),
            graph("float[1,64,1,9] x", "y = Conv<pads = [0,1,0,1]>(x, w)", "float[1,64,1,9] y", w=weight(64, 64, 1, 3)),
            1.3,
            id="one axis of space",
        ),
        pytest.param(
            image(f"y = Conv{SAME_SIZE}(x, w)", w=weight(32, 32, 3, 3)[:, :30]),
            image(f"y = Conv{SAME_SIZE}(x, w)", w=weight(32, 32, 3, 3)),
            1.15,
            id="channels that are no multiple of four",
        ),
        pytest.param(
            image("y = Conv<pads = [1,1,1,1], group = 8>(x, w)", w=weight(32, 4, 3, 3)),
            image("y = Conv<pads = [1,1,1,1], group = 2>(x, w)", w=weight(32, 16, 3, 3)),
            1.2,
            id="groups narrower than the block",
        ),
        pytest.param(
            image("y = Conv<pads = [1,1,1,1], group = 32>(x, w)", "float[1,64,28,28] y", w=weight(64, 1, 3, 3)),
            image("y = Conv<pads = [1,1,1,1], group = 32>(x, w)", w=weight(32, 1, 3, 3)),
            6,
            id="depthwise with a multiplier",
        ),
    ],
)  # fmt: skip
def test_a_convolution_outside_of_the_blocked_layout_costs_more(slow: Graph, quick: Graph, least: float) -> None:
    machine = Machine(block=16)
    assert ratio(slow, quick, machine) > least
    assert ratio(slow, quick, replace(machine, block=0)) < least


def test_leaving_the_blocked_layout_and_coming_back_costs_two_copies() -> None:
    kernel = weight(32, 32, 1, 1)
    inside = image("a = Conv(x, w); b = Relu(a); c = Sigmoid(b); y = Conv(c, w)", w=kernel)
    outside = image("a = Conv(x, w); b = Relu(a); c = Erf(b); y = Conv(c, w)", w=kernel)
    layouts = Analytic().seconds(outside) - Analytic().seconds(inside)
    plain = Analytic(Machine(block=0))
    kernels = plain.seconds(image("y = Erf(x)")) - plain.seconds(image("y = Sigmoid(x)"))
    copied = 4 * 32 * 28 * 28 * 2
    assert layouts - kernels == pytest.approx(2 * (copied / Machine().bytes_per_second + Machine().launch_seconds))


def test_a_sum_before_a_normalization_is_fused_into_something_slow() -> None:
    tokens = "float[1,128,384] x, float[1,128,384] z"
    fused = graph(tokens, "a = Add(x, z); y = LayerNormalization(a, g)", "float[1,128,384] y", g=weight(384))
    apart = graph(
        tokens,
        "a = Add(x, z); r = Reshape(a, [128,384]); n = LayerNormalization(r, g); y = Reshape(n, [1,128,384])",
        "float[1,128,384] y",
        g=weight(384),
    )
    assert ratio(fused, apart) > 2
    assert ratio(fused, apart, Machine(block=0)) < 1


def test_what_is_constant_is_folded() -> None:
    folded = image("a = Exp(w); b = Mul(a, a); s = Shape(x); y = Conv(x, b)", w=weight(32, 32, 1, 1))
    assert ratio(folded, image("y = Conv(x, w)", w=weight(32, 32, 1, 1))) == 1


def test_a_view_costs_a_launch_and_a_transposition_copies() -> None:
    seconds, launch = Analytic().seconds, Machine().launch_seconds
    view = seconds(image("y = Reshape(x, [1,28,28,32])", "float[1,28,28,32] y"))
    moved = seconds(image("y = Transpose<perm = [0,2,3,1]>(x)", "float[1,28,28,32] y"))
    in_name = seconds(graph("float[1,28,1,32] x", "y = Transpose<perm = [2,1,0,3]>(x)", "float[1,28,1,32] y"))
    assert view == in_name == launch
    assert moved > 5 * launch


@pytest.mark.parametrize(
    ("slow", "quick"),
    [
        ("p = Softplus(x); t = Tanh(p); y = Mul(x, t)", "e = Exp(x); n = Mul(e, e); q = Div(n, n); y = Mul(x, q)"),
        ("y = Pow(x, 0.5)", "y = Sqrt(x)"),
        ("y = Pow(x, 1.7)", "y = Pow(x, 2.0)"),
        (f"y = Conv{SAME_SIZE}(x, w)", "a = AveragePool<kernel_shape = [3,3], pads = [1,1,1,1]>(x); y = Conv(a, u)"),
        ('y = Einsum<equation = "nchw,oc->nohw">(x, v)', "y = Conv(x, u)"),
        (f"y = ConvTranspose{SAME_SIZE}(x, w)", f"y = Conv{SAME_SIZE}(x, w)"),
    ],
)
def test_kernels_that_are_slow_are_known_to_be(slow: str, quick: str) -> None:
    weights: dict[str, Any] = {"u": weight(32, 32, 1, 1), "w": weight(32, 32, 3, 3), "v": weight(32, 32)}
    assert ratio(image(slow, **weights), image(quick, **weights)) > 1.2


def test_attention_grows_with_the_square_of_the_length() -> None:
    def attention(length: int) -> Graph:
        return graph(f"float[1,8,{length},64] x", "y = Attention(x, x, x)", f"float[1,8,{length},64] y", opset=23)

    assert ratio(attention(512), attention(256)) == pytest.approx(4, rel=0.05)


def test_a_recurrent_operator_multiplies_at_each_step() -> None:
    def recurrent(steps: int) -> Graph:
        body = "y = LSTM<hidden_size = 64>(x, w, r)"
        weights: dict[str, Any] = {"w": weight(1, 256, 64), "r": weight(1, 256, 64)}
        return graph(f"float[{steps},1,64] x", body, f"float[{steps},1,1,64] y", **weights)

    assert ratio(recurrent(200), recurrent(100)) == pytest.approx(2, rel=0.05)


def test_sizes_that_are_not_known_are_assumed() -> None:
    opened = graph("float[n,32] x", "y = MatMul(x, w)", "float[n,32] y", w=weight(32, 32))
    fixed = graph(f"float[{cost.ASSUMED},32] x", "y = MatMul(x, w)", f"float[{cost.ASSUMED},32] y", w=weight(32, 32))
    assert ratio(opened, fixed) == 1


@pytest.mark.parametrize(
    ("inputs", "body", "outputs"),
    [
        ("float[n,m] x", "a = NonZero(x); y = Cast<to = 1>(a)", "float[2,k] y"),
        ("seq(float[4]) x", "a = SequenceLength(x); y = Identity(a)", "int64 y"),
        ("string[4] x", "y = Identity(x)", "string[4] y"),
    ],
)
def test_strange_types_cost_something(inputs: str, body: str, outputs: str) -> None:
    assert 0 < Analytic().seconds(graph(inputs, body, outputs)) < 1


def test_of_the_branches_the_dearest_counts() -> None:
    def either(first: str, second: str) -> Graph:
        branches = f"then_branch = g () => (float[999] a) {{a = {first}(x)}}"
        branches += f", else_branch = h () => (float[999] b) {{b = {second}(x)}}"
        return graph("bool c, float[999] x", f"y = If<{branches}>(c)", "float[999] y")

    assert ratio(either("Neg", "Softplus"), either("Softplus", "Neg")) == 1
    assert ratio(either("Neg", "Softplus"), either("Neg", "Neg")) > 2


BLOCK = Machine(1e30, 1e30, 1.0, 16 if "avx512" in cost.processor() else 8)
"""This machine, if nothing but launches took time."""


def optimized(made: Graph, folder: Path) -> list[str]:
    """The operators that are left when ONNX Runtime has loaded a graph, without the copies at its border."""
    shell = onnx.ModelProto(ir_version=10, opset_import=[onnx.helper.make_opsetid("", made.opsets[""])])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    proto = onnx_io.to_proto(onnx_io.Model(made, shell))
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath).graph
    border = {value.name for value in (*graph.input, *graph.output)}
    inner = [node for node in graph.node if not node.op_type.startswith("Reorder") or border.isdisjoint(_names(node))]
    return [node.op_type for node in inner]


@pytest.mark.parametrize(
    "body",
    [
        "m = MatMul(x, w); a = Add(m, p); y = Relu(a)",
        "m = MatMul(x, w); a = Add(p, m); y = Erf(a)",
        "m = MatMul(x, w); y = Div(m, 8.0)",
        "m = MatMul(x, w); y = Add(m, x)",
        "t = Transpose(x); y = MatMul(w, t)",
        "g = Gemm(x, w, p); y = Tanh(g)",
        "g = Gemm(x, w, p); y = Gelu(g)",
        "s = Sigmoid(x); y = Mul(s, x)",
        "s = Sigmoid(x); y = Mul(s, p)",
        "t = Transpose(w); e = Exp(t); m = MatMul(e, x); y = Add(m, w)",
    ],
)
def test_so_it_does_for_products(body: str, tmp_path: Path) -> None:
    made = graph("float[32,32] x", body, "float[32,32] y", w=weight(32, 32), p=weight(32))
    assert len(optimized(made, tmp_path)) == Analytic(BLOCK).seconds(made)


def _names(node: onnx.NodeProto) -> list[str]:
    return [*node.input, *node.output]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="other processors have other layouts")
@pytest.mark.parametrize(
    "body",
    [
        "a = Conv(x, w); b = Relu(a); y = Conv(b, w)",
        "a = Conv(x, w); b = LeakyRelu(a); y = Conv(b, w)",
        "a = Conv(x, w); b = Clip(a, 0.0, 6.0); y = Conv(b, w)",
        "a = Conv(x, w); b = HardSwish(a); y = Conv(b, w)",
        "a = Conv(x, w); b = Erf(a); y = Conv(b, w)",
        "a = Conv(x, w); b = Sigmoid(a); c = Mul(a, b); y = Conv(c, w)",
        "a = Conv(x, w); b = MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>(a); y = Conv(b, w)",
        "a = Conv(x, w); b = Add(a, s); c = Relu(b); y = Conv(c, w)",
        "a = Conv(x, w); b = Mul(a, s); y = BatchNormalization(b, p, p, p, v)",
        "a = Conv(x, w); b = Conv(a, w); c = Add(a, b); d = Relu(c); y = Conv(d, w)",
        "a = Conv(x, w); b = Conv(a, w); c = Sub(a, b); y = Conv(c, w)",
        "a = Conv(x, w); b = Conv(a, w); c = Concat<axis = 1>(a, b); y = Conv(c, two)",
        "a = Conv(x, w); b = Conv(x, few); c = Concat<axis = 1>(a, b); y = Conv(c, odd)",
        "a = Conv<group = 32>(x, deep); y = Conv(a, w)",
        "a = Conv<group = 8>(x, narrow); y = Conv(a, w)",
    ],
)
def test_the_estimate_launches_what_onnx_runtime_leaves(body: str, tmp_path: Path) -> None:
    """Also the copies between layouts, wherever a constant rule can tell."""
    shapes = {"w": (32, 32), "two": (32, 64), "few": (12, 32), "odd": (32, 44), "deep": (32, 1), "narrow": (32, 4)}
    weights: dict[str, Any] = {name: weight(*shape, 1, 1) for name, shape in shapes.items()}
    made = image(body, s=weight(32, 1, 1), p=weight(32), v=weight(32) ** 2, **weights)
    assert len(optimized(made, tmp_path)) == Analytic(BLOCK).seconds(made)


# -- the measurement ---------------------------------------------------------------------------------------------------


class Timer:
    """In the place of `interleaved`: the second run is twice as fast as the first, the third three times."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        """How many runs took turns, each time."""

    def __call__(self, runs: Sequence[Callable[[], object]], *, seconds: float) -> tuple[Samples, ...]:
        assert seconds > 0
        self.asked.append(len(runs))
        return tuple(Samples((1 / place,) * 7) for place in range(1, len(runs) + 1))


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    made = Timer()
    monkeypatch.setattr(cost, "interleaved", made)
    return made


def measured(path: Path, setting: Setting | None = None, *, seconds: float = 0.4) -> Measured:
    return Measured(setting or Setting(), machine=Machine(), cache=Cache(path), seconds=seconds)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "costs.sqlite"


def vector(body: str) -> Graph:
    return graph("float[64] x", body, "float[64] y")


EXP, SINE, ROOT = vector("y = Exp(x)"), vector("y = Sin(x)"), vector("y = Sqrt(x)")
REFUSED = vector("a = Exp(x); y = Reshape(a, [3,3])")


def test_both_are_cost_models(path: Path) -> None:
    models: tuple[CostModel, ...] = (Analytic(), measured(path))
    assert [model.name for model in models] == ["analytic", "measured"]
    assert models[0].seconds(SINE) == models[1].seconds(SINE) > models[0].seconds(ROOT) > 0


@pytest.mark.slow
def test_graphs_that_cost_the_same_are_measured_as_such(path: Path) -> None:
    inputs, outputs = "float[128,128] x, float[128] z", "float[128,128] y"
    before, after = (graph(inputs, f"a = {body}; y = Tanh(a)", outputs) for body in ("Mul(x, z)", "Mul(z, x)"))
    (found,) = measured(path, seconds=0.1).speedups(before, [after])
    assert found.rounds >= 7
    assert 0 < found.low <= found.median <= found.high
    assert found.minimum > 0


def test_candidates_are_timed_together_and_each_once(path: Path, timer: Timer) -> None:
    found = measured(path).speedups(EXP, [SINE, ROOT, SINE])
    assert [speedup.median for speedup in found] == [2, 3, 2]
    assert timer.asked == [3]
    assert measured(path).speedups(EXP, []) == []


def test_with_a_warm_cache_nothing_is_run_and_the_answers_are_the_same(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = [SINE, REFUSED, ROOT, EXP]
    found = measured(path).speedups(EXP, candidates)
    monkeypatch.delattr(Setting, "open")
    assert measured(path).speedups(EXP, candidates) == found
    assert timer.asked == [3]


def test_only_what_the_cache_lacks_is_measured(path: Path, timer: Timer) -> None:
    measured(path).speedups(EXP, [SINE])
    measured(path).speedups(EXP, [SINE, ROOT])
    measured(path).speedups(ROOT, [SINE])
    assert timer.asked == [2, 2, 2]


@pytest.mark.parametrize(
    "other", [Setting("AzureExecutionProvider"), Setting(threads=2), Setting(spinning=not Setting().spinning)]
)
def test_under_another_setting_it_is_measured_anew(path: Path, timer: Timer, other: Setting) -> None:
    """The Azure provider comes with every onnxruntime, and leaves all to the CPU."""
    measured(path).speedups(EXP, [SINE])
    measured(path, other).speedups(EXP, [SINE])
    assert timer.asked == [2, 2]


@pytest.mark.parametrize(
    ("module", "name", "other"),
    [
        ("graphopt.cost", "processor", lambda: "another"),
        ("graphopt.cost", "FORMAT", 0),
        ("onnxruntime", "__version__", "0"),
    ],
)
def test_on_another_machine_or_version_it_is_measured_anew(
    path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch, module: str, name: str, other: object
) -> None:
    measured(path).speedups(EXP, [SINE])
    monkeypatch.setattr(sys.modules[module], name, other)
    measured(path).speedups(EXP, [SINE])
    assert timer.asked == [2, 2]


@pytest.mark.parametrize("text", ["", "[]", '{"median": 1}'])
def test_an_entry_that_makes_no_sense_is_measured_anew(path: Path, timer: Timer, text: str) -> None:
    measured(path).speedups(EXP, [SINE])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE entries SET value = ?", (text,))
    assert measured(path).speedups(EXP, [SINE])[0].median == 2
    assert timer.asked == [2, 2]


def test_what_onnx_runtime_makes_the_same_is_not_timed(path: Path, timer: Timer) -> None:
    kernel, normal = weight(32, 32, 3, 3), weight(32)
    apart = image(f"c = Conv{SAME_SIZE}(x, w); y = BatchNormalization(c, p, p, p, q)", w=kernel, p=normal, q=normal**2)
    folded = image(f"y = Conv{SAME_SIZE}(x, w, p)", w=kernel, p=normal)
    assert measured(path).speedups(apart, [folded]) == [SAME]
    assert SAME.verdict is Verdict.SAME
    assert timer.asked == []


@pytest.mark.usefixtures("timer")
def test_a_candidate_that_onnx_runtime_refuses_is_slower(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "graphopt.cost")
    (vertex,) = EXP.with_op("Exp")
    custom, nonsense = EXP.copy(), EXP.copy()
    custom.apply(Patch({vertex: custom[vertex]}, {vertex: replace(custom[vertex], domain="my", version=0)}))
    nonsense.apply(Patch({vertex: nonsense[vertex]}, {vertex: replace(nonsense[vertex], op="Nonsense")}))
    found = measured(path).speedups(EXP, [REFUSED, SINE, custom, nonsense])
    assert found[0] == found[2] == found[3] == FAILED
    assert FAILED.verdict is Verdict.SLOWER
    assert found[1].median == 2
    assert "the graph cannot be run" in caplog.text
    assert "the graph cannot be loaded" in caplog.text
    assert "Nonsense 'y' cannot be written" in caplog.text


def test_a_graph_that_cannot_be_run_cannot_be_a_base(path: Path, timer: Timer) -> None:
    with pytest.raises(NotMeasurable, match=r"the graph cannot be run: .*Reshape"):
        measured(path).speedups(REFUSED, [EXP])
    assert timer.asked == []


@pytest.mark.parametrize(
    ("raised", "seen"), [(KeyboardInterrupt, KeyboardInterrupt), (MemoryError("out of memory"), NotMeasurable)]
)
def test_what_ends_a_timing_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, seen: type[BaseException]
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(cost, "interleaved", ended)
    with pytest.raises(seen):
        measured(path).speedups(EXP, [SINE])
    assert not path.exists()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutputError("0.onnx cannot be written: no space left on device")

    monkeypatch.setattr(onnx_io, "save", full)


@pytest.mark.usefixtures("timer", "full_disk")
def test_a_full_disk_is_no_fault_of_a_candidate(path: Path) -> None:
    with pytest.raises(NotMeasurable, match="no space"):
        measured(path).speedups(EXP, [SINE])
    assert not path.exists()


def test_a_provider_that_is_missing_is_an_error_at_once(path: Path) -> None:
    with pytest.raises(UsageError, match="no CUDAExecutionProvider"):
        measured(path, Setting("cuda"))


@pytest.mark.usefixtures("timer")
def test_sessions_are_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Any]] = []
    original = Setting.open

    def opening(self: Setting, *arguments: Any, **options: Any) -> Any:
        session = original(self, *arguments, **options)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(Setting, "open", opening)
    measured(path).speedups(EXP, [SINE, REFUSED])
    assert [reference() for reference in opened] == [None] * 3


def test_large_weights_are_not_all_in_memory_at_once(path: Path, timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ROOM", 4 * 32 * 32)
    candidates = [image(f"a = Conv(x, w); y = {op}(a)", w=weight(32, 32, 1, 1)) for op in ("Exp", "Sin", "Cos")]
    found = measured(path).speedups(image("y = Conv(x, w)", w=weight(32, 32, 1, 1)), candidates)
    assert [speedup.median for speedup in found] == [2, 2, 2]
    assert timer.asked == [2, 2, 2]


@pytest.mark.usefixtures("timer")
def test_weights_in_files_of_their_own_come_along(path: Path, tmp_path: Path) -> None:
    model = parse(IMAGE, "a = Conv(x, w); y = Exp(a)", {"w": weight(32, 32, 1, 1)}, outputs=OTHER)
    onnx_io.save(onnx_io.load(model), tmp_path / "model.onnx", external=True)
    lying = onnx_io.load(tmp_path / "model.onnx").graph
    infer_graph(lying)
    assert measured(path).speedups(lying, [image("y = Conv(x, w)", w=weight(32, 32, 1, 1))])[0].median == 2


@pytest.mark.usefixtures("timer")
def test_inputs_are_what_their_readers_take(path: Path) -> None:
    inputs, outputs = "int64[9] tokens, bool[9,16] mask", "float[9,16] y"
    body = "e = Gather(table, tokens); a = Where(mask, e, z); y = {}(a)"
    weights: dict[str, Any] = {"table": weight(3, 16), "z": np.zeros((), np.float32)}
    before, after = (graph(inputs, body.format(op), outputs, **weights) for op in ("Exp", "Sin"))
    assert measured(path).speedups(before, [after])[0].median == 2


# -- the machine -------------------------------------------------------------------------------------------------------


def test_the_machine_is_timed_once(path: Path, timer: Timer) -> None:
    """All that the clock says is a second a run."""
    found = Machine.calibrated(Setting(), Cache(path))
    assert found == Machine(2 * 512**3, 12 << 20, 1 / 256, found.block)
    assert found.block in (8, 16)
    assert timer.asked == [1, 1, 1]
    assert Machine.calibrated(Setting(), Cache(path)) == found
    assert timer.asked == [1, 1, 1]
    Machine.calibrated(Setting(threads=2), Cache(path))
    assert len(timer.asked) == 6


@pytest.mark.usefixtures("timer", "full_disk")
def test_a_machine_that_cannot_be_timed_is_taken_for_an_ordinary_one(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Machine.calibrated(Setting(), Cache(path)) == Machine()
    assert "an ordinary one is assumed: 0.onnx cannot be written" in caplog.text
    assert not path.exists()


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_entries_are_kept_and_replaced(path: Path) -> None:
    Cache(path).put({"a": "1", "b": "2"})
    Cache(path).put({"b": "3"})
    Cache(path).put({})
    assert Cache(path).get(["b", "a", "c", "a"]) == {"b": "3", "a": "1"}


def test_there_may_be_many(path: Path) -> None:
    entries = {f"key {number}": str(number) for number in range(2000)}
    Cache(path).put(entries)
    assert Cache(path).get(entries) == entries


def test_the_oldest_go_first(path: Path) -> None:
    cache = Cache(path, most=10)
    for number in range(25):
        cache.put({str(number): "x"})
    assert list(Cache(path).get(map(str, range(25)))) == [str(number) for number in range(15, 25)]


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))
    assert cost.user_cache().path == tmp_path / "costs.sqlite"
    monkeypatch.delenv("GRAPHOPT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert "graphopt" in cost.user_cache().path.parts


@pytest.mark.slow
def test_two_processes_write_at_once(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from graphopt.cache import Cache
for number in range(60):
    Cache(Path(sys.argv[1])).put({f"{sys.argv[2]} {number}": sys.argv[2], "both": sys.argv[2]})
"""
    command = [sys.executable, "-c", code, str(path)]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in "ab"]
    assert [writer.communicate(timeout=120)[1] for writer in writers] == ["", ""]
    expected = {f"{name} {number}": name for name in "ab" for number in range(60)}
    assert Cache(path).get(expected) == expected
    assert Cache(path).get(["both"])["both"] in ("a", "b")


@pytest.mark.parametrize("damage", ["garbage", "broken", "another table"])
def test_a_damaged_file_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    Cache(path).put({f"key {number}": "x" * 100 for number in range(200)})
    journal = path.with_name(f"{path.name}-journal")
    match damage:
        case "garbage":
            path.write_text("this is no database\n" * 1000)
            journal.write_text("nor is this its journal")
        case "broken":
            path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 20_000)
        case "another table":
            path.unlink()
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE entries (other)")
    cache = Cache(path)
    assert cache.get(["key 1"]) == {}
    cache.put({"a": "1"})
    assert Cache(path).get(["a"]) == {"a": "1"}
    assert path.with_name(f"{path.name}.damaged").exists()
    assert not journal.exists()
    assert caplog.text.count("is set aside, for it is damaged") == 1


def test_a_file_that_another_process_has_begun_is_no_damage(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert Cache(path).get(["a"]) == {}
    assert path.exists()


def opened_with(monkeypatch: pytest.MonkeyPatch, mode: str, *pragmas: str) -> None:
    """From now on, files of SQLite are opened in a mode, with some statements first."""
    original = sqlite3.connect

    def connect(path: Path, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = original(f"{path.as_uri()}?mode={mode}", uri=True, **options)
        for pragma in pragmas:
            connection.execute(pragma)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.parametrize(
    ("mode", "pragma", "why"), [("ro", "", "readonly"), ("rw", "PRAGMA max_page_count = 1", "full")]
)
def test_where_nothing_can_be_kept_the_run_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str, pragma: str, why: str
) -> None:
    Cache(path).put({"a": "1"})
    opened_with(monkeypatch, mode, *([pragma] if pragma else []))
    cache = Cache(path)
    assert cache.get(["a"]) == {"a": "1"}
    cache.put({f"key {number}": "x" * 1000 for number in range(50)})
    cache.put({"b": "2"})
    assert cache.get(["a", "b", "key 7"]) == {"a": "1", "b": "2", "key 7": "x" * 1000}
    (warning,) = caplog.messages
    assert why in warning
    assert "is not kept" in warning
    assert Cache(path).get(["b"]) == {}


def test_where_there_can_be_no_folder_the_run_goes_on(
    tmp_path: Path, timer: Timer, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = measured(tmp_path / "file" / "costs.sqlite")
    assert model.speedups(EXP, [SINE]) == model.speedups(EXP, [SINE])
    assert timer.asked == [2]
    assert len(caplog.messages) == 1


def test_who_writes_for_too_long_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Cache(path).put({"a": "1"})
    monkeypatch.setattr("graphopt.cache.PATIENCE", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert Cache(path).get(["a"]) == {}
    assert "locked" in caplog.text
    assert Cache(path).get(["a"]) == {"a": "1"}
