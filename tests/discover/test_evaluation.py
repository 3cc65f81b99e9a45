"""Operators are computed from their meanings, many tensors at once: as ONNX Runtime computes them."""

import numpy as np
import pytest

from graphopt.discover.batch_arithmetic import Field, Reals
from graphopt.discover.evaluation import Evaluator, UndefinedTerm
from graphopt.language.terms import App, Lit, Var, fn, op, tensor
from tests.verifier.evaluators import Case, model, runtime

x, y = tensor("x"), tensor("y")
OPERATORS: list[tuple[App, dict[str, tuple[int, ...]]]] = [
    (x + y, {"x": (2, 3), "y": (3,)}),
    (x / y, {"x": (2, 3), "y": (2, 1)}),
    (x @ y, {"x": (2, 3), "y": (3, 4)}),
    (op.Relu(x), {"x": (2, 3)}),
    (op.Gelu(x), {"x": (2, 3)}),
    (op.Softmax(x, axis=-1), {"x": (2, 3)}),
    (op.Transpose(x, perm=(1, 0)), {"x": (2, 3)}),
    (op.Concat(x, y, axis=1), {"x": (2, 3), "y": (2, 1)}),
    (op.ReduceSum(x, (-1,), keepdims=1), {"x": (2, 3)}),
    (op.ReduceMax(x, (0,), keepdims=0), {"x": (2, 3)}),
    (op.Conv(x, y, pads=(1, 1)), {"x": (2, 3, 5), "y": (4, 3, 3)}),
    (op.MaxPool(x, kernel_shape=(3,), pads=(1, 1)), {"x": (2, 3, 5)}),
    (op.AveragePool(x, kernel_shape=(2,), strides=(2,)), {"x": (2, 3, 5)}),
    (op.GlobalAveragePool(x), {"x": (2, 3, 5)}),
]


@pytest.mark.parametrize(("app", "shapes"), OPERATORS, ids=lambda value: value.op if isinstance(value, App) else "")
def test_real_values_are_those_of_onnx_runtime(app: App, shapes: dict[str, tuple[int, ...]]) -> None:
    batch = {name: Reals().draw_tensors((name,), (3, *shape)) for name, shape in shapes.items()}
    found = Evaluator(Reals()).value(app, batch, {})
    for member in range(3):
        inputs = [batch[arg.name][0, member].astype(np.float32) for arg in app.operands if isinstance(arg, Var)]
        numbers = [np.array(arg.value) for arg in app.operands if isinstance(arg, Lit)]
        values = {name: v.value for name, v in app.attrs if isinstance(v, Lit)}
        attrs = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        (wanted,) = runtime(*model(app.op, Case([*inputs, *numbers], attrs)))
        np.testing.assert_allclose(found[0, member], wanted, rtol=1e-4, atol=1e-5)


def test_sizes_that_an_operator_asks_for_are_given_by_name() -> None:
    evaluator = Evaluator(Field())
    part = op.Split.split(2, x, fn.sizes("A B"), axis=0)[1]
    assert evaluator.shape(part, {"x": (5, 2)}, {"A": 2, "B": 3}) == (3, 2)
    with pytest.raises(UndefinedTerm):
        evaluator.shape(part, {"x": (5, 2)}, {"A": 2, "B": 2})


def test_what_is_not_defined_has_no_values() -> None:
    with pytest.raises(UndefinedTerm, match="contracted axes"):
        Evaluator(Field()).shape(x @ y, {"x": (2, 3), "y": (2, 3)}, {})
