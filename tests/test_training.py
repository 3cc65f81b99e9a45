"""`grad`: training steps are what optimizers say, models of every kind are differentiated, and bad input is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from typer.testing import CliRunner

import graphopt
from graphopt.autodiff.training_graph import UPDATES
from graphopt.base.session import current_session
from graphopt.cli import training_command
from graphopt.cli.main import app
from graphopt.ir.graph import Graph
from graphopt.language.definition import define
from graphopt.language.terms import Operators, op, tensor
from tests import zoo
from tests.text import parse

Array = NDArray[Any]
RNG = np.random.default_rng(5)
WEIGHTS: dict[str, Array] = {
    "w": RNG.standard_normal((4, 3)).astype(np.float32),
    "b": RNG.standard_normal(3).astype(np.float32),
}
LINEAR = parse("float[batch,4] x", "y = Gemm(x, w, b)", WEIGHTS, outputs="float[batch,3] y", opset=17)
X = RNG.standard_normal((5, 4)).astype(np.float32)
TARGET = RNG.standard_normal((5, 3)).astype(np.float32)


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def steps(made: graphopt.TrainingResult, count: int, feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    """What each of so many steps gives, each fed with the state that the one before left."""
    found: list[dict[str, Array]] = []
    state: dict[str, Array] = {}
    for _ in range(count):
        found.append(run(made.model, {**feeds, **state}))
        state = {name: found[-1][following] for name, following in made.states.items()}
    return found


# -- optimizers --------------------------------------------------------------------------------------------------------


def slopes(w: Array, b: Array) -> tuple[Array, Array]:
    """The gradients of the mean squared error of the linear model."""
    deviation = 2 * (X @ w + b - TARGET) / TARGET.size
    return X.T @ deviation, deviation.sum(axis=0)


def test_gradient_descent_goes_down_the_gradient() -> None:
    made = graphopt.grad(LINEAR, "mse")
    assert (made.loss, made.settings) == ("loss", ("learning_rate",))
    assert made.states == {"w": "w.next", "b": "b.next"}
    w, b = WEIGHTS["w"], WEIGHTS["b"]
    for found in steps(made, 3, {"x": X, "target": TARGET, "learning_rate": np.array(0.1, np.float32)}):
        np.testing.assert_allclose(found["loss"], np.mean((X @ w + b - TARGET) ** 2), rtol=1e-5)
        dw, db = slopes(w, b)
        np.testing.assert_allclose(found["w.gradient"], dw, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["b.gradient"], db, rtol=1e-4, atol=1e-6)
        w, b = w - 0.1 * dw, b - 0.1 * db
        np.testing.assert_allclose(found["w.next"], w, rtol=1e-5)


def test_momentum_adds_up() -> None:
    made = graphopt.grad(LINEAR, "mse", ["w"], "momentum")
    w: Array = WEIGHTS["w"]
    velocity: Array = np.zeros((4, 3))
    for found in steps(made, 3, {"x": X, "target": TARGET}):
        velocity = 0.9 * velocity + slopes(w, WEIGHTS["b"])[0]
        w = w - 0.01 * velocity
        np.testing.assert_allclose(found["w.next"], w, rtol=1e-5)


def test_adamw_is_what_its_paper_says() -> None:
    made = graphopt.grad(LINEAR, "mse", ["w"], "adamw")
    w: Array = WEIGHTS["w"]
    mean, square = np.zeros((4, 3)), np.zeros((4, 3))
    for step, found in enumerate(steps(made, 4, {"x": X, "target": TARGET}), 1):
        slope = slopes(w, WEIGHTS["b"])[0]
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        w = w * (1 - 1e-3 * 0.01) - 1e-3 * change
        np.testing.assert_allclose(found["w.next"], w, rtol=1e-4)


def test_the_state_of_a_weight_in_half_precision_is_in_single() -> None:
    """A square of 1e-5 is no number of half precision but 0, as the epsilon that guards against it."""
    halves = {name: value.astype(np.float16) for name, value in WEIGHTS.items()}
    model = parse("float16[batch,4] x", "y = Gemm(x, w, b)", halves, outputs="float16[batch,3] y", opset=17)
    made = graphopt.grad(model, "mse", update="adamw")
    assert {name: value.dtype for name, value in made.initial_state().items()} == {
        **dict.fromkeys(("w", "b"), np.float16),
        **dict.fromkeys(("step", "w.mean", "w.square", "b.mean", "b.square"), np.float32),
    }
    (found,) = steps(made, 1, {"x": X.astype(np.float16) * np.float16(0.01), "target": TARGET.astype(np.float16)})
    gradient = found["w.gradient"].astype(np.float32)
    np.testing.assert_allclose(found["w.square.next"], 0.001 * gradient**2, rtol=1e-3)
    assert found["w.next"].dtype == np.float16


def test_the_initial_state_is_that_of_the_model() -> None:
    state = graphopt.grad(LINEAR, "mse", update="momentum").initial_state()
    assert state.keys() == {"w", "b", "w.velocity", "b.velocity"}
    np.testing.assert_array_equal(state["w"], WEIGHTS["w"])
    assert not state["w.velocity"].any()


def test_cross_entropy_is_that_of_onnx() -> None:
    labels = np.array([0, 2, 1, 1, 0])
    found = run(graphopt.grad(LINEAR, "softmax_cross_entropy", update="none").model, {"x": X, "labels": labels})
    logits = X @ WEIGHTS["w"] + WEIGHTS["b"]
    likelihood = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["loss"], -np.log(likelihood[range(5), labels]).mean(), rtol=1e-5)
    slope = X.T @ (likelihood - np.eye(3)[labels]) / 5
    np.testing.assert_allclose(found["w.gradient"], slope, rtol=1e-3, atol=1e-6)


# -- whole models ------------------------------------------------------------------------------------------------------


def check_direction(model: onnx.ModelProto, loss: str, feeds: Mapping[str, Array]) -> None:
    """Compare the slope of the loss along a random direction of all parameters with that of a small step."""
    made = graphopt.grad(model, loss, update="none", check=False)
    rng = np.random.default_rng(3)
    values = {t.name: numpy_helper.to_array(t) for t in made.model.graph.initializer if t.name in made.gradients}
    gradients = run(made.model, feeds)
    length = np.sqrt(sum(float(np.square(gradients[name]).sum()) for name in made.gradients.values()))
    ways = {
        name: (gradients[f"{name}.gradient"] / length + rng.standard_normal(value.shape) * 1e-3).astype(np.float32)
        for name, value in values.items()
    }
    slope = sum(float((gradients[f"{name}.gradient"].astype(np.float64) * way).sum()) for name, way in ways.items())
    ends = []
    for step in (2e-3, -2e-3):
        moved = {name: (value + step * ways[name]).astype(np.float32) for name, value in values.items()}
        ends.append(float(run(made.model, {**feeds, **moved})[made.loss]))
    assert (ends[0] - ends[1]) / 4e-3 == pytest.approx(slope, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("bert-torchscript", "gpt2-dynamo", "llama-dynamo-opset23", "vit-torchscript-dynamic", "swin-dynamo"),
        *("mobilenetv3-torchscript", "efficientnet-dynamo", "resnet18-torchscript-bn"),
    ],
)
def test_exported_models_are_differentiated(name: str) -> None:
    model = zoo.load(name)
    output = model.graph.output[0].name
    feeds = zoo.inputs(model)
    shape = run(model, feeds)[output].shape
    target = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    check_direction(model, f"mse:{output}", {**feeds, "target": target})


def test_a_gradient_passes_through_a_choice_by_a_product() -> None:
    """Which is faster, and as right where what flows back is finite."""
    model = parse("float[2,3] x", "y = Relu(x); loss = ReduceSum<keepdims=0>(y)", outputs="float loss", opset=17)
    made = graphopt.grad(model, "loss", wrt=["x"], update="none")
    assert not any(node.op_type == "Where" for node in made.model.graph.node)
    x = np.array([[-1.0, 0.0, 2.0], [3.0, -4.0, 5.0]], np.float32)
    assert np.array_equal(run(made.model, {"x": x})[made.gradients["x"]], x > 0)


def test_where_a_derivative_may_be_infinite_a_choice_stays_a_choice() -> None:
    """The square root's derivative at 0 is infinite, and Relu lets nothing of it through."""
    body = "p = Relu(x); r = Sqrt(p); loss = ReduceSum<keepdims=0>(r)"
    made = graphopt.grad(parse("float[3] x", body, outputs="float loss", opset=17), "loss", wrt=["x"], update="none")
    found = run(made.model, {"x": np.array([-1.0, 4.0, -2.0], np.float32)})[made.gradients["x"]]
    assert found.tolist() == [0.0, 0.25, 0.0]


@pytest.mark.parametrize(
    ("kind", "softmax", "condition"),
    [
        ("float", "Softmax(scores)", "IsNaN(p)"),
        ("float", "Softmax<axis = 0>(scores)", "IsNaN(p)"),
        ("float", "Softmax(scores)", "Equal(greatest, lowest)"),
        ("double", "Softmax(scores)", "IsNaN(p)"),
    ],
)
def test_nothing_flows_back_to_masked_rows_of_attention(kind: str, softmax: str, condition: str) -> None:
    """A row whose scores are all hidden is NaN, and zeros are in its place: its gradient is zero."""
    code = getattr(TensorProto, kind.upper())
    body = f"""
        scores = Where(mask, x, lowest); greatest = ReduceMax<axes = [-1]>(scores); wide = Cast<to = {code}>(scores)
        s = {softmax.replace("scores", "wide")}; p = Cast<to = 1>(s); hidden = {condition}
        q = Where(hidden, zero, p); r = Mul(q, weights); y = ReduceSum<keepdims = 0>(r)"""
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    constants = {"lowest": np.array(-np.inf, np.float32), "zero": np.array(0, np.float32), "weights": weights}
    model = parse("float[3,3] x, bool[3,3] mask", body, constants, outputs="float y", opset=17)
    made = graphopt.grad(model, "y", ["x"], "none", check=False).model
    mask, axis = np.array([[True] * 3, [True] * 3, [False] * 3]), -1
    if "axis = 0" in softmax:
        mask, axis = mask.T, 0
    x = np.eye(3, dtype=np.float32)
    shares = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
    expected = np.where(mask, shares * (weights - (weights * shares).sum(axis, keepdims=True)), 0)
    np.testing.assert_allclose(run(made, {"x": x, "mask": mask})["x.gradient"], expected, rtol=1e-5, atol=1e-6)


def test_what_is_done_after_the_simplification_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_update(graph: Graph) -> bool:
        values = dict(zip(graph.output_names, graph.outputs, strict=True))
        values["w.next"] = values["w.gradient"]
        graph.outputs = tuple(values.values())
        return True

    monkeypatch.setattr("graphopt.training.give_scalars_full_rank", no_update)
    with pytest.raises(graphopt.DifferenceError, match="the form for ONNX Runtime changes the result"):
        graphopt.grad(LINEAR, "mse")


def test_scalars_have_the_rank_of_filters_of_one_pixel() -> None:
    """Else ONNX Runtime multiplies them element by element."""
    weights = {"w": np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6, 1, 1)}
    model = parse(
        "float[2,6,4,4] x",
        "y = Conv(x, w); z = Mul(y, y); loss = ReduceMean<keepdims=0>(z)",
        outputs="float loss",
        weights=weights,
        opset=17,
    )
    made = graphopt.grad(model, "loss")
    shapes = {
        value.name: value.type.tensor_type.shape
        for value in onnx.shape_inference.infer_shapes(made.model).graph.value_info
    }
    reshaped = [node for node in made.model.graph.node if "learning_rate" in node.input]
    assert [node.op_type for node in reshaped] == ["Reshape"]
    assert [size.dim_value for size in shapes[reshaped[0].output[0]].dim] == [1, 1, 1, 1]
    x = np.linspace(0, 1, 192, dtype=np.float32).reshape(2, 6, 4, 4)
    found = run(made.model, {"x": x})
    gradient = found[made.gradients["w"]]
    assert np.allclose(found[made.states["w"]], weights["w"] - 0.01 * gradient)


def test_a_weight_that_is_read_twice_gets_the_sum() -> None:
    model = parse("float[4,4] x", "a = MatMul(x, w); y = MatMul(a, w)", {"w": np.eye(4, dtype=np.float32)})
    made = graphopt.grad(model, "mse", update="none")
    x = RNG.standard_normal((4, 4)).astype(np.float32)
    found = run(made.model, {"x": x, "target": np.zeros((4, 4), np.float32)})
    np.testing.assert_allclose(found["w.gradient"], 4 * x.T @ x / 16, rtol=1e-4, atol=1e-5)


def test_a_bound_that_a_weight_determines_is_differentiated_and_a_padding_is_refused() -> None:
    """Neither is taken for a constant."""
    low = "low = ReduceMin<keepdims = 0>(w); "
    model = parse("float[batch,3] x", low + "y = Clip(x, low)", {"w": WEIGHTS["b"]}, outputs="float[batch,3] y")
    gradient = steps(graphopt.grad(model, "mse", check=False), 1, {"x": TARGET, "target": X[:, :3]})[0]["w.gradient"]
    lowest, slopes = WEIGHTS["b"].min(), np.zeros(3, np.float32)
    slopes[WEIGHTS["b"].argmin()] = (2 * (lowest - X[:, :3]) * (lowest > TARGET)).sum() / TARGET.size
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5)
    body = low + "y = Pad(x, pads, low)"
    model = parse("float[1,3] x", body, {"w": WEIGHTS["b"], "pads": np.ones(4, np.int64)}, outputs="float[3,5] y")
    with pytest.raises(graphopt.ModelError, match=r"Pad 'y': no .* input 'constant_value'.*the operator has none"):
        graphopt.grad(model, "mse")


def test_integers_and_constants_of_nodes_are_no_parameters() -> None:
    body = "c = Constant<value = float[3] {1.0, 2.0, 3.0}>(); i = Cast<to = 7>(w); f = Cast<to = 1>(i); z = Mul(f, c)"
    model = parse(
        "float[2,3] x",
        f"{body}; u = Add(x, z); y = Mul(u, v)",
        {"w": np.ones(3, np.float32), "v": np.ones(3, np.float32)},
        outputs="float[2,3] y",
    )
    assert set(graphopt.grad(model, "mse", update="none").gradients) == {"v"}


def test_initializers_that_are_inputs_too_are_parameters() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(LINEAR)
    for tensor_ in LINEAR.graph.initializer:
        model.graph.input.add().CopyFrom(
            onnx.helper.make_tensor_value_info(tensor_.name, tensor_.data_type, tensor_.dims)
        )
    assert graphopt.grad(model, "mse").states == {"w": "w.next", "b": "b.next"}


def test_operators_without_a_gradient_are_replaced_by_what_defines_them() -> None:
    model = parse(
        "float[2,3] x", "a = Mul(x, w); y = Mish(a)", {"w": np.ones(3, np.float32)}, outputs="float[2,3] y", opset=22
    )
    made = graphopt.grad(model, "mse", update="none").model
    assert "Mish" not in {node.op_type for node in made.graph.node}


def test_a_loss_that_the_model_computes_by_a_function_of_onnx() -> None:
    model = parse(
        "float[5,4] x, int64[5] labels",
        'z = MatMul(x, w); loss = SoftmaxCrossEntropyLoss<reduction = "mean">(z, labels)',
        {"w": WEIGHTS["w"]},
        outputs="float loss",
        opset=17,
    )
    made = graphopt.grad(model, "loss", update="none")
    labels = np.array([0, 2, 1, 1, 0])
    found = run(made.model, {"x": X, "labels": labels})
    likelihood = np.exp(X @ WEIGHTS["w"])
    likelihood /= likelihood.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[made.loss], -np.log(likelihood[range(5), labels]).mean(), rtol=1e-5)
    np.testing.assert_allclose(found["w.gradient"], X.T @ (likelihood - np.eye(3)[labels]) / 5, rtol=1e-3, atol=1e-6)


def test_an_operator_of_ones_own_is_differentiated_by_its_definition() -> None:
    with current_session().child():
        x, y = tensor("x"), tensor("y")
        define(Operators("my.domain").ScaledTanh(x, y), op.Tanh(x) * y)
        model = parse(
            "float[2,3] x", "y = my.domain.ScaledTanh(x, w)", {"w": np.full(3, 2.0, np.float32)}, outputs="float[2,3] y"
        )
        model.opset_import.add(domain="my.domain", version=1)
        made = graphopt.grad(model, "mse", ["w", "x"], "none").model
    assert {node.domain for node in made.graph.node} == {""}
    x0 = RNG.standard_normal((2, 3)).astype(np.float32)
    found = run(made, {"x": x0, "target": np.zeros((2, 3), np.float32)})
    slope = 2 * (2 * np.tanh(x0)) / 6
    np.testing.assert_allclose(found["w.gradient"], (slope * np.tanh(x0)).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found["x.gradient"], slope * 2 * (1 - np.tanh(x0) ** 2), rtol=1e-4, atol=1e-6)


def test_running_statistics_follow_in_training_mode() -> None:
    weights = {name: np.ones(2, np.float32) for name in "sbmv"}
    model = parse(
        "float[4,2,3] x",
        "y, rm, rv = BatchNormalization<training_mode = 1, momentum = 0.5>(x, s, b, m, v)",
        weights,
        outputs="float[4,2,3] y",
        opset=17,
    )
    made = graphopt.grad(model, "mse")
    assert made.states == {"s": "s.next", "b": "b.next", "m": "m.next", "v": "v.next"}
    x = RNG.standard_normal((4, 2, 3)).astype(np.float32)
    found = steps(made, 2, {"x": x, "target": x})
    mean = x.mean(axis=(0, 2))
    np.testing.assert_allclose(found[0]["m.next"], 0.5 + 0.5 * mean, rtol=1e-4)
    np.testing.assert_allclose(found[1]["m.next"], 0.25 + 0.75 * mean, rtol=1e-4)


def test_batch_normalization_in_training_mode_has_its_gradient_in_single_precision() -> None:
    """Kernels that write over what they read, or read it late, show in ONNX Runtime alone."""
    weights = {name: RNG.uniform(0.5, 1.5, 3).astype(np.float32) for name in "sbmv"}
    body = "y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)"
    made = graphopt.grad(parse("float[4,3,2] x", body, weights, outputs="float[4,3,2] y", opset=17), "mse", ["x", "s"])
    x, target = RNG.standard_normal((2, 4, 3, 2)).astype(np.float32)
    (found,) = steps(made, 1, {"x": x, "target": target})
    scale, bias = (weights[name].reshape(3, 1).astype(np.float64) for name in "sb")
    inverse = 1 / np.sqrt(x.var(axis=(0, 2), keepdims=True, dtype=np.float64) + 1e-5)
    normalized = (x - x.mean(axis=(0, 2), keepdims=True, dtype=np.float64)) * inverse
    upstream = (normalized * scale + bias - target) * (2 / x.size)
    shift, share = (part.mean(axis=(0, 2), keepdims=True) for part in (upstream, upstream * normalized))
    expected = scale * inverse * (upstream - shift - normalized * share)
    np.testing.assert_allclose(found["x.gradient"], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["s.gradient"], (upstream * normalized).sum(axis=(0, 2)), rtol=1e-4, atol=1e-6)


def test_dropout_in_training_mode_passes_back_what_it_kept() -> None:
    weights = {"w": np.ones(64, np.float32), "ratio": np.array(0.5, np.float32), "mode": np.array(True)}
    model = parse(
        "float[64] x", "a = Mul(x, w); y = Dropout<seed = 1>(a, ratio, mode)", weights, outputs="float[64] y", opset=17
    )
    made = graphopt.grad(model, "mse", ["w"], "none", check=False).model
    x = np.ones(64, np.float32)
    found = run(made, {"x": x, "target": np.zeros(64, np.float32)})
    np.testing.assert_allclose(found["w.gradient"], 2 * found["y"] * 2 / 64, rtol=1e-5)
    assert 0 < np.count_nonzero(found["y"]) < 64


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "wrt", "update", "reason"),
    [
        ("softmax", None, "sgd", "there is no loss 'softmax', nor an output of that name"),
        ("mse:z", None, "sgd", "the model has no output 'z'"),
        ("y", None, "sgd", "the loss 'y' is FLOAT[batch,3]: a loss is one floating-point number"),
        ("mse", ["v"], "sgd", "no weight or floating-point input is called 'v'"),
        ("mse", None, "adam", "there is no update 'adam'; did you mean 'adamw'?"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(loss: str, wrt: list[str] | None, update: str, reason: str) -> None:
    with pytest.raises(graphopt.GraphoptError, match=re.escape(reason)):
        graphopt.grad(LINEAR, loss, wrt, update)


def test_an_operator_that_cannot_be_differentiated_is_named() -> None:
    model = parse("float[2,2] x", "a = MatMul(x, w); y = Det(a)", {"w": np.eye(2, dtype=np.float32)}, outputs="float y")
    reason = "Det 'y': no gradient with respect to its input 'X', on which the loss depends: the operator has none"
    with pytest.raises(graphopt.ModelError, match=re.escape(reason)):
        graphopt.grad(model, "y")


def test_a_weight_that_a_body_reads_is_no_silent_constant() -> None:
    branch = "t () => (float[2] {}) {{ {} }}"
    then, otherwise = branch.format("p", "p = Mul(a, w)"), branch.format("q", "q = Identity(a)")
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]> g (float[2] x, bool c) => (float[2] y) {{
            a = Mul(x, w)
            y = If<then_branch = {then}, else_branch = {otherwise}>(c)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    with pytest.raises(graphopt.ModelError, match=r"If 'y': no gradient.*what its bodies read.*the operator has none"):
        graphopt.grad(model, "mse")


def test_a_gradient_that_needs_a_newer_opset_says_so() -> None:
    body = "c = Conv(x, w); y = MaxPool<kernel_shape = [3, 3], strides = [1, 1]>(c)"
    model = parse(
        "float[1,1,6,6] x", body, {"w": np.ones((1, 1, 1, 1), np.float32)}, outputs="float[1,1,4,4] y", opset=13
    )
    with pytest.raises(graphopt.ModelError, match=r"MaxPool 'y': no gradient.*ScatterElements"):
        graphopt.grad(model, "mse")


def test_older_opsets_are_refused() -> None:
    model = parse("float[2,4] x", "y = MatMul(x, w)", {"w": WEIGHTS["w"]}, outputs="float[2,3] y", opset=12)
    with pytest.raises(graphopt.ModelError, match="the model has opset 12; gradients need 13 or newer"):
        graphopt.grad(model, "mse")


def test_the_callers_model_stays_as_it_was() -> None:
    before = LINEAR.SerializeToString()
    graphopt.grad(LINEAR, "mse")
    assert LINEAR.SerializeToString() == before


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_writes_a_legal_model(tmp_path: Path) -> None:
    onnx.save(LINEAR, tmp_path / "model.onnx")
    source, target = str(tmp_path / "model.onnx"), str(tmp_path / "train.onnx")
    done = CliRunner().invoke(app, ["grad", source, target, "--loss", "mse", "--update", "adamw", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["loss"] == "loss"
    assert said["states"]["w.square"] == "w.square.next"
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    assert {output.name for output in model.graph.output} >= {"loss", "w.gradient", "b.next"}
    assert model.opset_import[0].version == 17


def test_nothing_is_written_where_it_fails(tmp_path: Path) -> None:
    onnx.save(LINEAR, tmp_path / "model.onnx")
    target = tmp_path / "train.onnx"
    done = CliRunner().invoke(app, ["grad", str(tmp_path / "model.onnx"), str(target), "--loss", "y"])
    assert (done.exit_code, target.exists()) == (1, False)
    assert len(done.stderr.splitlines()) == 1


def test_the_shell_knows_all_updates() -> None:
    assert training_command.UPDATES == UPDATES
