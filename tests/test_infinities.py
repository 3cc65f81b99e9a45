"""Rules that are proved for finite values alone stay away from infinities that a model means."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.base.errors import UsageError
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph, Value
from graphopt.operators import inference
from graphopt.operators.magnitude_analysis import Magnitude, mark_bodies, may_have_magnitude
from graphopt.rewrite.regions import extract_region
from graphopt.rule import Operators, define, op, tensor
from tests.text import parse, run

POLES = Operators("tests.poles")

LOWEST = float(np.finfo(np.float32).min)
Weights = Mapping[str, NDArray[Any]]


def scalar(number: float) -> NDArray[Any]:
    return np.array(number, np.float32)


def holder(body: str, weights: Weights, name: str = "y") -> tuple[Graph, Value]:
    """A graph, and the value of this name in it."""
    graph = onnx_io.load_model(
        parse("float[4] x, bool[4] c, float[N] t, float[N, M] u", body, dict(weights), outputs="y")
    ).graph
    inference.infer_graph(graph)
    return graph, next(Value(v, node.names.index(name)) for v, node in graph.vertices_and_nodes() if name in node.names)


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("y = Log(x)", {}),
        ("y = Reciprocal(x)", {}),
        ("y = Div(x, x)", {}),
        ("s = Softmax(x); y = Log(s)", {}),
        ("s = Sigmoid(x); y = Log(s)", {}),
        ("s = Softplus(x); y = Reciprocal(s)", {}),
        ("a = Abs(x); y = Div(x, a)", {}),
        ("r = Relu(x); y = Log(r)", {}),
        ("e = Exp(x); m = Sub(e, n); y = Div(x, m)", {"n": scalar(1)}),
        ("y = Pow(x, n)", {"n": scalar(-0.5)}),
        ("y = Add(x, m)", {"m": np.array([0, -np.inf, 0, 0], np.float32)}),
        ("y = Where(c, x, m)", {"m": np.array([0, -np.inf, np.nan, 0], np.float32)}),
        ("s = Where(c, x, m); y = Clip(s, m, n)", {"m": scalar(-np.inf), "n": scalar(6)}),
        ("y = Where(c, x, m)", {"m": scalar(-np.inf)}),
        ("w = Where(c, m, z); v = Where(c, z, m); y = Add(v, w)", {"m": scalar(LOWEST), "z": scalar(0)}),
        ("l = Log(x); r = Reshape(l, s); n = Neg(r); y = Max(n, z)", {"s": np.array([2, 2]), "z": scalar(0)}),
        ("y = Mul(x, x); i = IsInf(y); n = Not(i)", {}),
        ("y = MatMul(x, w)", {"w": np.full((4, 2), -np.inf, np.float32)}),
        ("q = Mul(x, x); p = MatMul(q, w); y = Log(p)", {"w": np.eye(4, dtype=np.float32)}),
        ("e = Exp(x); p = MatMul(e, w); y = Log(p)", {"w": np.ones((4, 2), np.float32)}),
        (
            "q = Mul(x, x); p = MatMul(q, w); e = Add(p, n); y = Log(e)",
            {"w": -np.eye(4, dtype=np.float32), "n": scalar(1)},
        ),
        ("p = MatMul(x, w); e = Add(p, n); y = Log(e)", {"w": np.eye(4, dtype=np.float32), "n": scalar(1)}),
        ("s = Shape(x); y = ConstantOfShape <value = float[1] {-inf}> (s)", {}),
        ("s = Shape(t); h = Div(s, 2); f = Cast<to=1>(h); y = Reciprocal(f)", {}),
        ("s = Shape(t); h = Mod(s, 5); f = Cast<to=1>(h); y = Div(x, f)", {}),
    ],
)
def test_a_value_may_hold_an_infinity(body: str, weights: Weights) -> None:
    graph, value = holder(body, weights)
    assert may_have_magnitude(graph, [value])


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        ("y = Exp(x)", {}),
        ("s = Shape(t); f = Cast<to=1>(s); y = Reciprocal(f)", {}),
        ("s = Size(u); f = Cast<to=1>(s); y = Div(x, f)", {}),
        ("y = Div(x, n)", {"n": scalar(8)}),
        ("y = Pow(x, n)", {"n": scalar(2)}),
        ("q = Mul(x, x); m = ReduceMean(q); e = Add(m, n); r = Sqrt(e); y = Div(x, r)", {"n": scalar(1e-5)}),
        ("e = Exp(x); s = ReduceSum(e); y = Div(e, s)", {}),
        ("a = Abs(x); e = Max(a, n); y = Log(e)", {"n": scalar(1e-12)}),
        ("s = Softplus(x); e = Add(s, n); y = Div(x, e)", {"n": scalar(1e-5)}),
        (
            "e = Exp(x); s = Slice(e, a, b); r = Reshape(s, b); y = Reciprocal(r)",
            {"a": np.array([0]), "b": np.array([2])},
        ),
        ("y = Div(x, n)", {"n": np.array([-1, 2, -3, 4], np.float32)}),
        (
            "q = Mul(x, x); p = MatMul(q, w); e = Add(p, n); y = Log(e)",
            {"w": np.eye(4, dtype=np.float32), "n": scalar(1)},
        ),
        ("y = Where(c, x, m)", {"m": scalar(-1e9)}),
        ("y = Clip(x, m, n)", {"m": scalar(-np.inf), "n": scalar(6)}),
        ("m = Where(c, x, n); y = Softmax(m)", {"n": scalar(-np.inf)}),
        ("l = Log(x); y = MatMul(l, w)", {"w": np.ones((4, 4), np.float32)}),
    ],
)
def test_a_value_holds_none(body: str, weights: Weights) -> None:
    graph, value = holder(body, weights)
    assert not may_have_magnitude(graph, [value])


@pytest.mark.parametrize(
    ("body", "number", "held"),
    [
        ("y = Where(c, x, n)", LOWEST, True),
        ("y = Where(c, x, n)", -np.inf, False),
        ("y = Where(c, x, n)", -1e9, False),
        ("b = Where(c, n, o); y = Where(c, x, b)", -np.inf, True),
        ("b = Where(c, o, x); m = Where(c, x, n); s = Add(x, m); p = Softmax(s); i = IsNaN(p); y = Add(b, m)",
         -np.inf, True),
        ("m = Where(c, x, n); s = Add(x, m); y = Softmax(s)", LOWEST, False),
        ("y = Clip(x, n, o)", -np.inf, True),
        ("i = IsNaN(x); y = Neg(x)", 0, True),
        ("p = MatMul(x, u); y = Neg(p); i = IsNaN(y)", 0, False),
    ],
)  # fmt: skip
def test_a_value_may_hold_the_least_number_of_its_type(body: str, number: float, held: bool) -> None:
    """What a caller feeds to a model that asks may be that, too."""
    graph, value = holder(body, {"n": scalar(number), "o": scalar(LOWEST)})
    assert may_have_magnitude(graph, [value], Magnitude.HUGE) == held


def test_a_part_that_is_cut_out_knows_of_the_least_number_outside() -> None:
    for number, far in ((LOWEST, Magnitude.HUGE), (-np.inf, Magnitude.INFINITE)):
        graph, value = holder("m = Where(c, z, n); y = Add(x, m)", {"n": scalar(number), "z": scalar(0)})
        region = extract_region(graph, [value.vertex])
        assert region is not None
        (made,) = region.graph.vertices_with_op("Add")
        assert [
            each
            for each in (Magnitude.HUGE, Magnitude.INFINITE)
            if may_have_magnitude(region.graph, [Value(made)], each)
        ] == [far]


def test_the_body_of_a_loop_knows_of_the_least_number_outside() -> None:
    body = "m = Where(c, z, n); y = If (f) <then_branch = t () => (float[4] a) { a = Neg(m) }, "
    body += "else_branch = e () => (float[4] b) { b = Identity(x) }>"
    graph = onnx_io.load_model(
        parse("float[4] x, bool[4] c, bool f", body, {"n": scalar(LOWEST), "z": scalar(0)})
    ).graph
    inference.infer_graph(graph)
    (branches,) = graph.vertices_with_op("If")
    mark_bodies(graph, branches)
    held = [may_have_magnitude(inner, inner.outputs, Magnitude.HUGE) for inner in graph[branches].bodies]
    assert held == [True, False]


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("r = Reciprocal(x); y = Max(r, n)", 0.75),
        ("r = Reciprocal(x); y = Min(r, n)", 0.75),
        ("r = Reciprocal(x); t = Max(r, n); i = IsInf(t); y = Where(i, n, t)", 0.75),
        ("l = Log(x); y = Pow(l, n)", -0.5),
        ("l = Log(x); y = Pow(l, n)", 0.5),
    ],
)
def test_an_infinity_stays_one(body: str, number: float) -> None:
    model = parse("float[4] x", body, {"n": scalar(number)}, outputs="float[4] y")
    feeds = {"x": np.array([0, 1, 2, -3], np.float32)}
    result = graphopt.optimize(model, cost="none")
    assert np.array_equal(run(result.model, feeds)["y"], run(model, feeds)["y"], equal_nan=True)


MASKS = [
    ("b = Min(mask, n); e = Equal(b, i); y = Where(e, z, x)", {"n": 1e4, "i": -np.inf, "z": 0}),
    ("b = Min(mask, n); e = Less(b, i); y = Where(e, z, x)", {"n": 1e4, "i": LOWEST / 2, "z": 0}),
    ("b = Min(mask, n); y = Add(b, x)", {"n": 1e4}),
    ("s = Add(x, mask); b = Min(s, n); y = Softmax(b)", {"n": 1e4}),
]


@pytest.mark.parametrize(("body", "numbers"), MASKS)
def test_an_infinity_that_the_caller_masks_with_stays_one(body: str, numbers: Mapping[str, float]) -> None:
    weights = {name: scalar(number) for name, number in numbers.items()}
    model = parse("float[4] x, float[4] mask", body, weights, outputs="float[4] y")
    feeds = {"x": np.array([0, 1, 2, -3], np.float32), "mask": np.full(4, -np.inf, np.float32)}
    result = graphopt.optimize(model, cost="none", check=False)
    assert np.array_equal(run(result.model, feeds)["y"], run(model, feeds)["y"], equal_nan=True)


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ("q = Max(x, n); i = IsNaN(q); y = Not(i)", True),
        ("q = Max(x, n); s = Softmax(q); i = IsNaN(s); y = Not(i)", True),
        ("q = Max(x, n); w = MatMul(p, q); i = IsNaN(w); y = Not(i)", False),
        ("q = Max(x, n); s = Softmax(q); w = MatMul(s, r); i = IsNaN(w); y = Not(i)", True),
    ],
)
def test_what_a_question_reads_may_hold_an_infinity(body: str, held: bool) -> None:
    weights = {"n": scalar(1), "p": np.ones((2, 4), np.float32), "r": np.ones((4, 2), np.float32)}
    graph, value = holder(body, weights, "q")
    assert may_have_magnitude(graph, [value]) == held


@pytest.mark.parametrize(
    ("body", "held"),
    [
        ("m = Min(added, n); y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q, m)", True),
        ("m = Cast<to=1>(ones); y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q, m)", False),
        ("m = Cast<to=1>(ones); y = Attention<q_num_heads=2, kv_num_heads=2>(q, q, q, m); i = IsNaN(y)", True),
        ("m = Neg(q); y = Attention<q_num_heads=2, kv_num_heads=2>(m, m, m); i = IsNaN(y)", False),
    ],
)
def test_a_mask_within_attention_may_hold_an_infinity(body: str, held: bool) -> None:
    head = "float[1,2,8] q, float[2,2] added, int64[2,2] ones"
    graph = onnx_io.load_model(parse(head, body, {"n": scalar(1)}, opset=23)).graph
    inference.infer_graph(graph)
    mask = next(Value(v) for v, node in graph.vertices_and_nodes() if "m" in node.names)
    assert may_have_magnitude(graph, [mask]) == held


def test_the_report_says_why_a_rule_was_left_out() -> None:
    model = parse("float[4] x", "r = Reciprocal(x); y = Max(r, n)", {"n": scalar(0.75)}, outputs="float[4] y")
    notes = graphopt.optimize(model, cost="none").report.notes
    why = "it is proved for finite values only, and one there may be infinite"
    assert f"rule replace_max_with_clip was not applied: {why}" in notes


def clamped() -> onnx.ModelProto:
    return parse("float[4] x", "y = Max(x, n)", {"n": scalar(0.75)}, outputs="float[4] y")


def test_finite_values_are_clamped() -> None:
    result = graphopt.optimize(clamped(), cost="none")
    assert [(r.name, r.proof) for r in result.report.rewrites] == [
        ("replace_max_with_clip", "proved, reassociates, finite")
    ]


def test_keep_nonfinite_leaves_out_what_is_proved_for_finite_values() -> None:
    result = graphopt.optimize(clamped(), keep_nonfinite=True, cost="none")
    assert [node.op_type for node in result.model.graph.node] == ["Max"]
    why = "it is proved for finite values only, and others are to be kept"
    assert result.report.notes == (f"rule replace_max_with_clip was not applied: {why}",)


def test_keep_nonfinite_and_unverified_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="keep_nonfinite and unverified exclude each other"):
        graphopt.optimize(clamped(), keep_nonfinite=True, unverified=True, cost="none")


def test_the_body_of_a_loop_knows_what_it_reads_from_outside() -> None:
    body = "r = Reciprocal(x); y = If (f) <then_branch = t () => (float[4] a) { a = Max(r, n) }, "
    body += "else_branch = e () => (float[4] b) { b = Identity(x) }>"
    model = parse("float[4] x, bool f", body, {"n": scalar(0.75)}, outputs="float[4] y")
    feeds = {"x": np.array([0, 1, 2, -3], np.float32), "f": np.array(True)}
    result = graphopt.optimize(model, cost="none")
    assert np.array_equal(run(result.model, feeds)["y"], run(model, feeds)["y"])


def test_the_default_of_an_input_is_looked_at() -> None:
    model = parse("float[4] x, bool[4] c, float m", "s = Where(c, m, x); y = Min(s, n)", {"n": scalar(6)})
    model.graph.initializer.append(onnx.numpy_helper.from_array(scalar(-np.inf), "m"))
    feeds = {"x": np.array([0, 1, 2, 30], np.float32), "c": np.array([True, False, True, False])}
    result = graphopt.optimize(model, cost="none", check=False)
    assert np.array_equal(run(result.model, feeds)["y"], run(model, feeds)["y"])


def test_what_the_body_of_a_loop_makes_it_reads_in_the_next_turn() -> None:
    body = "o = Constant<value = bool {1}>(); e, y = Loop (k, o, x) <body = b (int64 i, bool d, float[4] p) => "
    body += "(bool g, float[4] q, float[4] h) { g = Identity(d) h = Min(p, n) q = Where(c, m, h) }>"
    weights = {"n": scalar(6), "m": scalar(-np.inf), "k": np.array(2)}
    model = parse("float[4] x, bool[4] c", body, weights, outputs="float[T, 4] y")
    feeds = {"x": np.array([0, 1, 2, 30], np.float32), "c": np.array([True, False, True, False])}
    result = graphopt.optimize(model, cost="none", check=False)
    assert np.array_equal(run(result.model, feeds)["y"], run(model, feeds)["y"])


ASKED_IN_A_BRANCH = """m = MatMul(x, w); y = Min(m, n); z = If (f)
    <then_branch = t () => (bool[4] a) { a = IsInf(y) }, else_branch = e () => (bool[4] b) { b = IsNaN(y) }>"""
ASKED_OF_A_BRANCH = """y = If (f) <then_branch = t () => (float[4] a) { m = MatMul(x, w) a = Min(m, n) },
    else_branch = e () => (float[4] b) { b = MatMul(x, w) }>; z = IsInf(y)"""


@pytest.mark.parametrize("body", [ASKED_IN_A_BRANCH, ASKED_OF_A_BRANCH], ids=["in", "of"])
def test_a_question_reaches_into_branches_and_out_of_them(body: str) -> None:
    """The product overflows, and what it overflows to is asked for."""
    model = parse("float[4] x, bool f", body, {"w": np.full((4, 4), -3e38, np.float32), "n": scalar(6)}, outputs="z")
    feeds = {"x": np.array([9, 9, 9, 9], np.float32), "f": np.array(True)}
    result = graphopt.optimize(model, cost="none", check=False)
    assert np.array_equal(run(result.model, feeds)["z"], run(model, feeds)["z"])
    assert run(model, feeds)["z"].all()


def test_a_part_that_is_cut_out_is_asked_by_what_reads_it() -> None:
    body = "q = MatMul(x, w); y = Min(q, n); i = IsInf(y)"
    for ending, held in ((body, True), (body.replace("IsInf", "Sign"), False)):
        graph, product = holder(ending, {"w": np.ones((4, 4), np.float32), "n": scalar(6)}, "q")
        (reader,) = graph.vertices_with_op("Min")
        region = extract_region(graph, [product.vertex, reader])
        assert region is not None
        (made,) = region.graph.vertices_with_op("MatMul")
        assert may_have_magnitude(region.graph, [Value(made)]) == held


def test_a_declared_operator_has_the_poles_of_what_it_means() -> None:
    define(POLES.Inverse(tensor("x")), op.Reciprocal(tensor("x")))
    define(POLES.Softcap(tensor("x")), op.Tanh(tensor("x") / 30.0) * 30.0)
    for name, held in (("Inverse", True), ("Softcap", False)):
        model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18, "tests.poles" : 1]>
            g (float[4] x) => (float[4] y) {{ y = tests.poles.{name}(x) }}""")
        graph = onnx_io.load_model(model).graph
        inference.infer_graph(graph)
        assert may_have_magnitude(graph, graph.outputs) == held
