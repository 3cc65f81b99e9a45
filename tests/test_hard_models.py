"""Legal models on which other tools go wrong come out right: each is optimized, and has to compute the same."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

import graphopt
from tests.text import parse, run

Arrays = Mapping[str, NDArray[Any]]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def optimized(model: ModelProto, feeds: Arrays, *, rtol: float = 1e-5) -> list[str]:
    """Optimize, hold the outputs against the original's, and return the operators that are left."""
    result = graphopt.optimize(model, cost="none")
    assert result.ok, result.report.comparison
    before, after = run(model, feeds), run(result.model, feeds)
    assert before.keys() == after.keys()
    for name, expected in before.items():
        assert after[name].dtype == expected.dtype
        np.testing.assert_allclose(
            after[name].astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=1e-6, err_msg=name
        )
    onnx.checker.check_model(result.model, full_check=True)
    return [node.op_type for node in result.model.graph.node]


def test_pad_with_zeros_is_not_the_padding_of_a_max_pool() -> None:
    model = parse(
        "float[1,1,4,4] x",
        "p = Pad(x, [0,0,1,1,0,0,1,1]); y = MaxPool<kernel_shape=[3,3]>(p)",
        outputs="float[1,1,4,4] y",
    )
    assert optimized(model, {"x": -np.ones((1, 1, 4, 4), np.float32)}) == ["Pad", "MaxPool"]


def test_a_vector_that_broadcasts_over_the_width_is_no_scale_per_channel() -> None:
    weights = {"w": normal(4, 4, 1, 1), "v": normal(4)}
    model = parse("float[1,4,4,4] x", "c = Conv(x, w); y = Mul(c, v)", weights, outputs="float[1,4,4,4] y")
    assert optimized(model, {"x": normal(1, 4, 4, 4)}) == ["Conv", "Mul"]


def test_two_random_operators_are_two() -> None:
    model = parse(
        "float[8] x",
        "a = RandomNormalLike(x); b = RandomNormalLike(x); y = Sub(a, b)",
        outputs="float[8] y",
    )
    result = graphopt.optimize(model, check=False, cost="none")
    assert [node.op_type for node in result.model.graph.node] == ["RandomNormalLike", "RandomNormalLike", "Sub"]
    assert np.abs(run(result.model, {"x": normal(8)})["y"]).max() > 0


def test_clips_with_disjoint_ranges() -> None:
    model = parse("float[5] x", "a = Clip(x, 0.0, 1.0); y = Clip(a, 2.0, 3.0)", outputs="float[5] y")
    optimized(model, {"x": np.array([-1, 0, 0.5, 2.5, 9], np.float32)})
    swapped = parse("float[5] x", "a = Clip(x, 2.0, 3.0); y = Clip(a, 0.0, 1.0)", outputs="float[5] y")
    optimized(swapped, {"x": np.array([-1, 0, 0.5, 2.5, 9], np.float32)})


def test_reshape_with_zero_copies_the_size_of_its_own_input() -> None:
    model = parse("float[2,3,4] x", "a = Reshape(x, [3,2,4]); y = Reshape(a, [0,-1])", outputs="float[3,8] y")
    assert optimized(model, {"x": normal(2, 3, 4)}) == ["Reshape"]
    allowed = parse("float[0,3] x", "y = Reshape<allowzero=1>(x, [3,0])", outputs="float[3,0] y")
    optimized(allowed, {"x": np.zeros((0, 3), np.float32)})


def test_batch_normalization_in_training_mode_stays() -> None:
    weights = {"w": normal(4, 3, 1, 1), "s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4))}
    model = parse(
        "float[2,3,4,4] x",
        "c = Conv(x, w); y, rm, rv = BatchNormalization<training_mode=1>(c, s, b, m, v)",
        weights,
        outputs="float[2,4,4,4] y, float[4] rm, float[4] rv",
    )
    assert optimized(model, {"x": normal(2, 3, 4, 4)}, rtol=1e-4) == ["Conv", "BatchNormalization"]


def test_two_batch_norms_fold_into_one_shared_weight_each_in_its_own_way() -> None:
    weights = {"w": normal(3, 3, 3, 3)}
    for norm in "pq":
        weights |= {f"{norm}{name}": np.abs(normal(3)) for name in "sbmv"}
    body = """c = Conv(x, w); n = BatchNormalization(c, ps, pb, pm, pv);
    d = Conv(n, w); y = BatchNormalization(d, qs, qb, qm, qv)"""
    model = parse("float[1,3,6,6] x", body, weights, outputs="float[1,3,2,2] y")
    assert optimized(model, {"x": normal(1, 3, 6, 6)}, rtol=1e-4) == ["Conv", "Conv"]


def test_a_value_that_is_also_an_output_is_kept() -> None:
    weights = {"w": normal(3, 3, 1, 1), "s": normal(3), "b": normal(3), "m": normal(3), "v": np.abs(normal(3))}
    model = parse(
        "float[1,3,4,4] x",
        "c = Conv(x, w); y = BatchNormalization(c, s, b, m, v)",
        weights,
        outputs="float[1,3,4,4] c, float[1,3,4,4] y",
    )
    optimized(model, {"x": normal(1, 3, 4, 4)}, rtol=1e-4)


@pytest.mark.parametrize(
    "body",
    [
        "a = Slice(x, [-3], [-1], [1]); y = Slice(a, [0], [100], [1])",
        "a = Slice(x, [8], [-100], [1], [-2]); y = Slice(a, [1], [4], [1])",
        "a = Slice(x, [1], [9223372036854775807], [-1], [2]); y = Slice(a, [-2], [-1], [-1])",
        "a = Slice(x, [0], [2], [0]); y = Slice(a, [-1], [-9223372036854775807], [0], [-1])",
    ],
)
def test_slices_on_negative_axes_and_with_steps(body: str) -> None:
    optimized(parse("float[3,10] x", body, outputs="float[?,?] y"), {"x": normal(3, 10)})


def test_chains_of_integer_divisions_truncate_each_time() -> None:
    model = parse("int64[6] x", "a = Div(x, 3); b = Mul(a, 2); c = Div(b, 4); y = Mul(c, 4)", outputs="int64[6] y")
    optimized(model, {"x": np.array([-13, -7, -1, 5, 11, 100])})
    big = parse("int32[2] x", "a = Mul(x, k); y = Div(a, k)", {"k": np.array(1 << 20, np.int32)}, outputs="int32[2] y")
    assert optimized(big, {"x": np.array([1 << 12, 3], np.int32)}) == ["Mul", "Div"]


def test_an_if_whose_branches_capture_values() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (bool c, float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
            h = Identity(x)
            y = If (c) <
                then_branch = t () => (float[2,2] a) { i = Identity(h)  a = MatMul(i, w) },
                else_branch = e () => (float[2,2] b) { n = Neg(h)  b = Neg(n) }
            >
        }"""
    )
    for condition in (True, False):
        assert optimized(model, {"c": np.array(condition), "x": normal(2, 2)}) == ["If"]


def test_a_loop_that_captures_values() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (int64 n, float[2] x) => (float[2] y) {
            go = Constant <value = bool {1}> ()
            h = Identity (x)
            y = Loop (n, go, x) <
                body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {
                    d = Identity (c)
                    k = Identity (h)
                    t = Add (s, k)
                }
            >
        }"""
    )
    for count in (0, 3):
        assert optimized(model, {"n": np.array(count), "x": normal(2)}) == ["Loop"]


def test_quantized_weights_stay_quantized() -> None:
    weights: Arrays = {
        "q": RNG.integers(-128, 128, (4, 3, 1, 1)).astype(np.int8),
        "scale": np.array(0.02, np.float32),
        "zero": np.array(0, np.int8),
    }
    body = """a = QuantizeLinear(x, scale, zero); d = DequantizeLinear(a, scale, zero);
    w = DequantizeLinear(q, scale, zero); y = Conv(d, w)"""
    model = parse("float[1,3,4,4] x", body, weights, outputs="float[1,4,4,4] y")
    left = optimized(model, {"x": normal(1, 3, 4, 4)})
    assert sorted(left) == ["Conv", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weights_in_half_precision_are_folded_in_their_own_type(dtype: Any) -> None:
    kind = TensorProto.FLOAT16 if dtype is np.float16 else TensorProto.BFLOAT16
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Mul", ["m", "s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, [2, 3])],
        [helper.make_tensor_value_info("y", kind, [2, 4])],
        [
            numpy_helper.from_array(normal(3, 4).astype(dtype), "w"),
            numpy_helper.from_array(normal(4).astype(dtype), "s"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    result = graphopt.optimize(model, cost="none")
    assert result.report.comparison is not None
    assert [node.op_type for node in result.model.graph.node] == ["MatMul"]
    (weight,) = result.model.graph.initializer
    assert weight.data_type == kind


def test_tensors_with_no_elements() -> None:
    weights = {"w": np.zeros((3, 0), np.float32), "s": np.zeros(0, np.float32), "e": np.zeros((0, 3), np.float32)}
    model = parse(
        "float[2,3] x",
        "a = MatMul(x, w); b = Mul(a, s); c = Concat<axis=1>(x, b); y = Concat<axis=0>(c, e)",
        weights,
        outputs="float[2,3] y",
    )
    optimized(model, {"x": normal(2, 3)})
    reduced = parse("float[0,3] x", "a = ReduceSum<keepdims=0>(x, [0]); y = Identity(a)", outputs="float[3] y")
    assert optimized(reduced, {"x": np.zeros((0, 3), np.float32)}) == ["ReduceSum"]


def test_zero_times_infinity_stays_not_a_number() -> None:
    model = parse("float[2] x", "a = Mul(x, 0.0); y = Add(a, 1.0)", outputs="float[2] y")
    left = graphopt.optimize(model, cost="none").model
    assert np.isnan(run(left, {"x": np.array([np.inf, 1], np.float32)})["y"][0])


@pytest.mark.parametrize("op", ["Concat", "ArgMax", "ArgMin", "Gather"])
def test_negative_axes_in_models_from_before_they_were_allowed(op: str) -> None:
    inputs = {"Concat": "x, x", "Gather": "x, [0]"}.get(op, "x")
    model = parse(
        "float[2,3,1] x", f"y = {op}<axis=-1>({inputs})", outputs=f"{'int64' if 'Arg' in op else 'float'}[?,?,?] y"
    )
    model.opset_import[0].version = 9
    assert graphopt.optimize(model, cost="none").ok


def test_a_declared_shape_that_nothing_confirms_is_not_believed() -> None:
    model = parse("float x", "h = Relu(x); y = Reshape(h, [1,6])", outputs="float[1,6] y")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 6]))
    left = graphopt.optimize(model, check=False, cost="none").model
    assert run(left, {"x": normal(2, 3)})["y"].shape == (1, 6)


def test_divisors_whose_product_vanishes_stay_apart() -> None:
    model = parse(
        "float[2] x", "a = Div(x, t); y = Div(a, t)", {"t": np.array(1e-30, np.float32)}, outputs="float[2] y"
    )
    assert optimized(model, {"x": np.zeros(2, np.float32)}) == ["Div", "Div"]


def test_a_bound_that_is_no_number_is_no_bound() -> None:
    model = parse(
        "float[2] x", "a = Max(x, n); y = Max(a, 1.0)", {"n": np.array(np.nan, np.float32)}, outputs="float[2] y"
    )
    result = graphopt.optimize(model, cost="none")
    assert np.isnan(run(result.model, {"x": normal(2)})["y"]).all()


def test_a_slice_of_an_axis_that_is_not_there_is_left_alone() -> None:
    """ONNX Runtime refuses it when it runs."""
    model = parse("float[4] x", "y = Slice(x, [0], [2], [5])", outputs="float[n] y")
    result = graphopt.optimize(model, check=False, cost="none")
    assert [node.op_type for node in result.model.graph.node] == ["Slice"]
