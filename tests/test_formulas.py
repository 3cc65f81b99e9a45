"""Sizes that are formulas of others, as a mask behind a cache has them."""

from __future__ import annotations

import onnx
import pytest

import graphopt
from graphopt.base import formulas


@pytest.mark.parametrize(
    ("dim", "expected"),
    [("a + b", 3), ("a - b", 3), ("a - a + 2", 2), ("a // b", 3), ("a * b", 0), ("batch-size", 7)],
)
def test_a_dim_that_is_computed_has_the_size_that_its_formula_says(dim: str, expected: int) -> None:
    """What would be divided by 0 is left as it is."""
    assert formulas.size(dim, {"a": 3, "b": 0, "batch-size": 7}) == expected


@pytest.mark.parametrize(
    ("dim", "left"),
    [
        ("past + seq", "3 + seq"),
        ("past + 1", 4),
        ("past - 5", 0),
        ("seq", "seq"),
        ("past", 3),
        ("past-key", "past-key"),
    ],
)
def test_what_is_left_of_a_formula_is_a_number_or_one_of_the_other_names(dim: str, left: int | str) -> None:
    assert formulas.fixed(dim, {"past": 3}) == left


@pytest.mark.parametrize(
    ("dims", "mask"), [({"past": 3, "seq": 1}, 4), ({"past": 3}, "3 + seq"), ({"batch": 2}, "past + seq")]
)
def test_a_size_that_is_fixed_is_so_in_formulas(dims: dict[str, int], mask: int | str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[batch,past] x, float[batch,seq] y, float[batch,all] m)'
        " => (float[batch,t] z) { a = Concat<axis = 1>(x, y) b = Neg(a) c = Neg(b) z = Mul(c, m) }"
    )
    for value in (model.graph.input[2], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_param = "past + seq"
    result = graphopt.optimize(model, dims=dims, cost="none")
    assert result.report.comparison is not None
    assert "not complete" not in str(result.report)
    for value in (result.model.graph.input[2], result.model.graph.output[0]):
        dim = value.type.tensor_type.shape.dim[1]
        assert (dim.dim_value or dim.dim_param) == mask
