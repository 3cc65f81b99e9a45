"""Quantized models: nothing is turned back into floats, and integers become those that ONNX Runtime computes with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from benchmarks.quantized import dynamic, static
from graphopt.base.dtype import DType
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.language.rule_library import load_library, load_rules
from tests import zoo
from tests.saturating import skip_where_products_saturate
from tests.test_sweep import swept
from tests.text import Arrays, parse, run

INTEGERS = load_library().sweeps["integers for which there are kernels"]
SIGNLESS = load_library().sweeps["integers without a sign between products"]


def network() -> onnx.ModelProto:
    """Two convolutions, a sum and a product of matrices."""
    draw = np.random.default_rng(3)
    shapes = {"v": (4, 3, 3, 3), "w": (4, 4, 1, 1), "m": (4, 5)}
    return parse(
        "float[1,3,6,6] x",
        "a = Conv(x, v); b = Relu(a); c = Conv(b, w); d = Add(c, b); e = GlobalAveragePool(d);"
        " f = Flatten(e); y = MatMul(f, m)",
        {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
    )


def stored(folder: Path) -> Path:
    """The network as a file."""
    onnx.save(network(), folder / "model.onnx")
    return folder / "model.onnx"


def types(graph: Graph, op: str, position: int) -> set[DType]:
    """The element types of an input of an operator, wherever it stands."""
    found = (graph.tensor_type(node.inputs[position]) for _, node in graph.nodes() if node.op == op)
    return {type_.dtype for type_ in found if type_ is not None}


def simplified(given: onnx.ModelProto) -> dict[str, int]:
    """The operators that are left."""
    return dict(onnx_io.load_model(graphopt.simplify(given)[0]).graph.operator_counts())


def assert_bits(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    feeds = zoo.inputs(one)
    before, after = run(one, feeds), run(other, feeds)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


def test_activations_lose_their_sign(tmp_path: Path) -> None:
    """ONNX Runtime has no kernels on x86 for two integers with a sign: it would compute in floats."""
    given = static(stored(tmp_path), zoo.inputs(network()))
    model, made = swept(given, INTEGERS, load_rules())
    assert made is not None
    assert types(model.graph, "QuantizeLinear", 2) == {DType.UINT8}
    assert types(model.graph, "DequantizeLinear", 0) == {DType.UINT8, DType.INT8}, "that of weights stays"
    assert_bits(given, onnx_io.to_proto(model))


def test_weights_get_a_sign(tmp_path: Path) -> None:
    given = static(stored(tmp_path), zoo.inputs(network()), "QUInt8", "QUInt8")
    model, made = swept(given, INTEGERS, load_rules())
    assert made is not None
    assert types(model.graph, "DequantizeLinear", 0) == {DType.UINT8, DType.INT8}
    assert model.graph.operator_counts() == onnx_io.load_model(given).graph.operator_counts()
    assert_bits(given, onnx_io.to_proto(model))


def test_all_weights_between_operators_on_integers_get_a_sign(tmp_path: Path) -> None:
    """Those behind ONNX Runtime's own, too: of these it is known of what type their integers are."""
    skip_where_products_saturate()
    given = static(stored(tmp_path), zoo.inputs(network()), "QUInt8", "QUInt8", "QOperator")
    model, made = swept(given, INTEGERS, load_rules())
    assert made is not None
    assert {"QLinearAdd", "QLinearGlobalAveragePool"} < {node.op for _, node in model.graph.nodes()}
    assert types(model.graph, "QLinearConv", 3) == types(model.graph, "QLinearMatMul", 3) == {DType.INT8}
    assert_bits(given, onnx_io.to_proto(model))


def test_products_of_integers_are_computed_without_a_sign(tmp_path: Path) -> None:
    """All of them; what one puts on and the next takes off is not done."""
    skip_where_products_saturate()
    given = static(stored(tmp_path), zoo.inputs(network()), operators="QOperator")
    model, made = swept(given, SIGNLESS, load_rules())
    assert made is not None
    assert types(model.graph, "QLinearConv", 0) == types(model.graph, "QLinearMatMul", 0) == {DType.UINT8}
    assert types(model.graph, "QLinearAdd", 0) == {DType.INT8}, "it is no product"
    assert types(model.graph, "QuantizeLinear", 2) == types(model.graph, "DequantizeLinear", 2) == {DType.UINT8}
    between = 2  # before the sum; the mean is of integers with a sign
    assert model.graph.operator_counts()["Sub"] == between
    assert_bits(given, onnx_io.to_proto(model))


def test_weights_of_dynamic_products_get_a_sign(tmp_path: Path) -> None:
    given = dynamic(stored(tmp_path), {})
    model, made = swept(given, INTEGERS)
    assert made is not None
    assert types(model.graph, "MatMulInteger", 1) == types(model.graph, "ConvInteger", 1) == {DType.INT8}
    assert_bits(given, onnx_io.to_proto(model))


SYMMETRIC = """v = DequantizeLinear<axis=0>(w, t, n); s = QuantizeLinear(x, z, k); d = DequantizeLinear(s, z, k);
    a = Conv(d, v); r = Relu(a); q = QuantizeLinear(r, z, k); e = DequantizeLinear(q, z, k); y = Conv(e, v)"""


def symmetric() -> onnx.ModelProto:
    """As quantization-aware training for TensorRT leaves it: integers with a sign, none of them a zero point."""
    draw = np.random.default_rng(5)
    weights: Arrays = {
        "w": draw.integers(-127, 128, (3, 3, 1, 1)).astype(np.int8),
        "t": draw.uniform(0.01, 0.02, 3).astype(np.float32),
        "n": np.zeros(3, np.int8),
        "k": np.array(0, np.int8),
        "z": np.array(0.25, np.float32),
    }
    return parse("float[1,3,5,5] x", SYMMETRIC, weights)


def test_a_relu_goes_behind_what_quantizes() -> None:
    """So that a convolution is quantized at once, and can be computed in integers."""
    given = symmetric()
    model, made = swept(given, INTEGERS, load_rules())
    assert made is not None and "move_relu_behind_quantize" in made.rules
    (behind,) = (node.inputs[0] for _, node in model.graph.nodes() if node.op == "Clip")
    assert behind is not None and model.graph[behind.vertex].op == "QuantizeLinear"
    assert "Relu" not in model.graph.operator_counts()
    assert_bits(given, onnx_io.to_proto(model))


def test_a_guard_against_nan_goes_where_integers_are_dequantized() -> None:
    body = """p = Softmax(x); q = QuantizeLinear(p, s, z); d = DequantizeLinear(q, s, z);
        n = IsNaN(d); g = Where(n, 0.0, d); y = MatMul(g, g)"""
    given = parse("float[3,3] x", body, {"s": np.array(0.01, np.float32), "z": np.array(0, np.uint8)})
    assert simplified(given) == {"Softmax": 1, "QuantizeLinear": 1, "DequantizeLinear": 1, "MatMul": 1}


def test_what_is_quantized_twice_by_one_scale_is_quantized_once() -> None:
    body = """q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z); r = QuantizeLinear(d, s, z);
        y = DequantizeLinear(r, t, z)"""
    constants: Arrays = {
        "s": np.array(0.01, np.float32),
        "t": np.array(0.02, np.float32),
        "z": np.array(3, np.int8),
    }
    assert simplified(parse("float[3,3] x", body.format(scale="t"), constants)) == {
        "QuantizeLinear": 1,
        "DequantizeLinear": 1,
    }


@pytest.mark.parametrize("scale", [0.0, -0.01, 1e38, np.inf, np.nan])
def test_scales_with_which_integers_do_not_come_back_are_left(scale: float) -> None:
    body = "d = DequantizeLinear(x, s, z); y = QuantizeLinear(d, s, z)"
    given = parse("int8[3,3] x", body, {"s": np.array(scale, np.float32), "z": np.array(3, np.int8)})
    assert simplified(given) == {"QuantizeLinear": 1, "DequantizeLinear": 1}


def steps(body: str, zero: int = 0) -> onnx.ModelProto:
    constants: Arrays = {"s": np.array(1e-4, np.float32), "z": np.array(zero, np.int16), "k": np.array(0, np.int16)}
    body += "; q = QuantizeLinear(a, s, z); y = DequantizeLinear(q, s, k)"
    return parse("float[100,100] x", body, constants, opset=21)


def test_a_number_on_the_edge_of_a_step_may_go_either_way() -> None:
    """As the original's own do where its inputs change by as little; all numbers may not."""
    given = steps("b = Mul(x, 0.3); a = Mul(b, 0.7)")
    once, shifted = (
        compare_models(given, steps("a = Mul(x, 0.21)")),
        compare_models(given, steps("a = Mul(x, 0.21)", zero=1)),
    )
    (edge,) = once.outputs
    assert once.verdict is EqualityVerdict.EQUAL
    assert edge.absolute == pytest.approx(1e-4, rel=1e-3) and "moves as far if inputs" in edge.why
    assert shifted.verdict is EqualityVerdict.DIFFERENT


def test_what_kernels_for_integers_cannot_hold_is_seen() -> None:
    """A scale of 0 leaves no room for a bias in 32 bits: equal as it is written, and lost as ONNX Runtime runs it."""
    draw = np.random.default_rng(0)
    scale, factor = np.array([0.01, 0.02, 0.03, 0.04], np.float32), np.array([1, 2, 0, 0.5], np.float32)
    weights: Arrays = {
        "w": draw.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8), "s": scale, "o": np.zeros(4, np.int8),
        "k": scale * factor, "f": factor.reshape(4, 1, 1), "b": np.array([0, 0, 5, 0], np.float32),
        "c": np.array([0, 0, 5, 0], np.float32).reshape(4, 1, 1),
        "u": np.array(0.02, np.float32), "z": np.array(128, np.uint8), "v": np.array(0.5, np.float32),
    }  # fmt: skip
    read = "q = QuantizeLinear(x, u, z); d = DequantizeLinear(q, u, z);"
    written = "r = QuantizeLinear(a, v, z); y = DequantizeLinear(r, v, z)"
    bodies = (
        "e = DequantizeLinear<axis=0>(w, s, o); g = Conv(d, e); h = Mul(g, f); a = Add(h, c);",
        "e = DequantizeLinear<axis=0>(w, k, o); a = Conv(d, e, b);",
    )
    one, other = (parse("float[1,3,8,8] x", read + body + written, weights) for body in bodies)
    found = compare_models(one, other)
    assert found.verdict is EqualityVerdict.DIFFERENT
    assert "as ONNX Runtime runs it with its optimizations on" in str(found.outputs[0])
    assert compare_models(one, one).verdict is compare_models(other, other).verdict is EqualityVerdict.EQUAL
