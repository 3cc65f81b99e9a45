"""Whole exports on inputs that tests rarely give: rows that may see nothing, and one element that is no number."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import graphopt
from tests import zoo


def session(model: onnx.ModelProto) -> Any:
    """The kernels that compute what is written: no fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def masks(rows: int, columns: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Everything, some, one row with nothing, nothing at all, and only the last column."""
    everything = np.ones((rows, columns), np.int64)
    yield everything
    yield rng.integers(0, 2, (rows, columns))
    yield everything * np.array([[0], *[[1]] * (rows - 1)])
    yield everything * 0
    yield np.eye(1, columns, columns - 1, dtype=np.int64) * everything


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("bert-dynamo", "onnx"),
        ("bert-dynamo", 23),
        ("bert-torchscript", 23),
        ("gpt2-dynamo", 23),
        ("bert-dynamo-dynamic", "onnxruntime"),
        ("bert-torchscript", "onnxruntime"),
        ("bert-eager-torchscript-dynamic-opset13", "onnxruntime"),
        ("gpt2-dynamo", "onnxruntime"),
        ("gpt2-torchscript-dynamic", "onnx"),
        ("llama-dynamo-dynamic", "onnx"),
        ("llama-dynamo-opset23", "onnx"),
        ("llama-torchscript", "onnxruntime"),
    ],
)
def test_rows_that_see_nothing_give_what_they_gave(name: str, target: str | int) -> None:
    """By a set of operators, or by an opset that has Attention."""
    model, options = zoo.load(name), {"target": target} if isinstance(target, str) else {"target_opset": target}
    result = graphopt.optimize(model, cost="analytic", seconds=2, check=False, **options)
    assert result.report.rewrites
    before, after = session(model), session(result.model)
    rng = np.random.default_rng(0)
    for rows, columns in [(2, 16)] if "dynamic" not in name else [(2, 16), (1, 1), (3, 7)]:
        for mask in masks(rows, columns, rng):
            ids = rng.integers(0, 9, (rows, columns))
            zeros = np.zeros_like(ids)
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": zeros}
            feeds = {each.name: given[each.name] for each in before.get_inputs()}
            for expected, found in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18-torchscript-bn", "mobilenetv3-dynamo", "vit-dynamo", "swin-torchscript"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_with_keep_nonfinite_what_is_no_number_stays_where_it_was(name: str, odd: float) -> None:
    model = zoo.load(name)
    result = graphopt.optimize(model, cost="analytic", seconds=2, keep_nonfinite=True, check=False)
    assert result.report.rewrites
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    x[1, 1, 30, 31] = odd
    (expected,), (found,) = (session(each).run(None, {"x": x}) for each in (model, result.model))
    assert np.isfinite(expected[0]).all() and not np.isfinite(expected[1]).all()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5, equal_nan=True)
