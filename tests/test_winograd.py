"""Convolutions with fewer products: Winograd's filtering of rows, all over a model."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.language.rule_library import load_library
from tests.test_sweep import swept
from tests.test_trades import drawn
from tests.text import parse

RULES = load_library().sweeps["convolutions with fewer products"]


def convolved(
    sizes: str,
    weights: tuple[int, ...],
    attributes: str = "pads=[1,1,1,1]",
    dtype: type[np.floating[Any]] = np.float32,
) -> onnx.ModelProto:
    """Return a convolution with a bias and a Relu; in either type its weights are numbers of single precision."""
    generator = np.random.default_rng(0)
    values = {"w": generator.standard_normal(weights), "b": generator.standard_normal(weights[0])}
    return parse(
        f"{'double' if dtype is np.float64 else 'float'}[{sizes}] x",
        f"a = Conv<{attributes}>(x, w, b); y = Relu(a)",
        {key: value.astype(np.float32).astype(dtype) for key, value in values.items()},
    )


@pytest.mark.parametrize(
    ("sizes", "weights", "attributes", "products"),
    [
        ("2,48,16,16", (32, 48, 3, 3), "pads=[1,1,1,1]", 6),
        ("batch,48,16,18", (32, 48, 3, 3), "pads=[1,0,1,2]", 6),
        ("1,96,12,13", (20, 96, 3, 1), "pads=[1,0,1,0]", 6),
        ("1,48,17,20", (32, 48, 3, 5), "pads=[0,0,1,1]", 6),
        ("1,128,6,7", (128, 128, 3, 3), "pads=[1,1,1,1]", 4),
        ("1,96,12,12", (64, 96, 3, 3), "pads=[0,0,0,0]", 4),
    ],
)
def test_rows_are_made_of_fewer_products(sizes: str, weights: tuple[int, ...], attributes: str, products: int) -> None:
    """Of four rows in six, and of two rows in four."""
    given = convolved(sizes, weights, attributes)
    model, made = swept(given, RULES)
    assert made is not None
    kernels = [model.graph.shape(node.inputs[1]) for _, node in model.graph.nodes() if node.op == "Conv"]
    assert kernels.count((weights[0], weights[1], 1, weights[3])) == products
    assert model.graph.operator_counts()["Relu"] == products - 2, "each convolution takes in its own"
    assert (
        compare_models(given, model, bindings=[{"batch": 3}] if "batch" in sizes else None).verdict
        is EqualityVerdict.EQUAL
    )


@pytest.mark.parametrize(
    ("activation", "arguments"), [("LeakyRelu<alpha=0.2>", "a"), ("Clip", "a, 0.0, 6.0"), ("HardSwish", "a")]
)
def test_other_activations_go_to_the_convolutions_too(activation: str, arguments: str) -> None:
    weights = drawn(w=(32, 48, 3, 3), b=(32,))
    given = parse("float[2,48,16,16] x", f"a = Conv<pads=[1,1,1,1]>(x, w, b); y = {activation}({arguments})", weights)
    model, made = swept(given, RULES)
    assert made is not None
    assert model.graph.operator_counts()[activation.partition("<")[0]] == 4
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("sizes", "weights", "attributes", "dtype"),
    [
        ("1,32,16,16", (32, 32, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,48,16,16", (31, 48, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,48,14,14", (48, 48, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,128,4,4", (128, 128, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,64,8,8", (64, 64, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,48,16,15", (32, 48, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,96,15,15", (96, 96, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,48,16,16", (48, 48, 3, 3), "pads=[1,1,1,1],strides=[2,2]", np.float32),
        ("1,48,16,16", (48, 48, 3, 3), "pads=[2,2,2,2],dilations=[2,2]", np.float32),
        ("1,96,16,16", (96, 48, 3, 3), "pads=[1,1,1,1],group=2", np.float32),
        ("1,48,height,16", (48, 48, 3, 3), "pads=[1,1,1,1]", np.float32),
        ("1,48,16,16", (48, 48, 3, 3), "pads=[1,1,1,1]", np.float64),
    ],
    ids=[
        *("few channels", "few made", "few for twos", "few pixels", "few pixels for the channels", "narrow"),
        *("odd", "strides", "dilations", "groups", "open height", "double"),
    ],
)
def test_where_it_does_not_pay_convolutions_are_left(
    sizes: str, weights: tuple[int, ...], attributes: str, dtype: type[np.floating[Any]]
) -> None:
    model, made = swept(convolved(sizes, weights, attributes, dtype), RULES)
    assert (made, model.graph.operator_counts()) == (None, {"Conv": 1, "Relu": 1})


@pytest.mark.parametrize(("pixels", "channels", "bits"), [(16, 64, 18), (6, 128, 20)], ids=["in fours", "in twos"])
def test_rounding_errors_stay_small(pixels: int, channels: int, bits: int) -> None:
    """Sums of rows are up to ten times as large as the rows: of 24 bits some are lost, not more than six."""
    sizes, weights = f"1,{channels},{pixels},{pixels}", (channels, channels, 3, 3)
    model, made = swept(convolved(sizes, weights), RULES)
    assert made is not None
    x = np.random.default_rng(0).standard_normal((1, channels, pixels, pixels)).astype(np.float32)
    exact = convolved(sizes, weights, dtype=np.float64)
    (wanted,) = ReferenceEvaluator(exact).run(None, {"x": x.astype(np.float64)})
    (got,) = onnxruntime.InferenceSession(onnx_io.to_proto(model).SerializeToString()).run(None, {"x": x})
    assert np.abs(got - wanted).max() < 2.0**-bits * np.abs(wanted).max()
