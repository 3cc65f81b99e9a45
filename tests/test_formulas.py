"""Sizes that are formulas of others, as a mask behind a cache has them."""

from __future__ import annotations

import onnx
import pytest

import graphopt
from graphopt.base.errors import UsageError
from graphopt.expr import dim_formulas
from graphopt.runtime.bench import run_benchmark
from graphopt.runtime.session_setting import SessionSetting


@pytest.mark.parametrize(
    ("dim", "expected"),
    [("a + b", 3), ("a - b", 3), ("a - a + 2", 2), ("a // b", 3), ("a * b", 0), ("batch-size", 7)],
)
def test_a_dim_that_is_computed_has_the_size_that_its_formula_says(dim: str, expected: int) -> None:
    """What would be divided by 0 is left as it is."""
    assert dim_formulas.evaluate_dim(dim, {"a": 3, "b": 0, "batch-size": 7}) == expected


@pytest.mark.parametrize(
    ("dim", "left"),
    [
        ("past + seq", "3 + seq"),
        ("past + 1", 4),
        ("past - 5", 0),
        ("seq", "seq"),
        ("past", 3),
        ("past-key", "past-key"),
        ("0.5 * past", "0.5 * past"),
        ("+".join(["past"] * 3000), "+".join(["past"] * 3000)),
    ],
)
def test_where_some_names_have_sizes_the_rest_of_a_formula_is_left(dim: str, left: int | str) -> None:
    """What is written otherwise, or is too long to be read, is a mere name."""
    assert dim_formulas.substitute_dims(dim, {"past": 3}) == left


def cached(mask: str, *, result: str = "t") -> onnx.ModelProto:
    """A model whose third input and whose output have sizes that are formulas."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[batch,past] x, float[batch,seq] y, float[batch,all] m)'
        " => (float[batch,t] z) { a = Concat<axis = 1>(x, y) b = Neg(a) c = Neg(b) z = Mul(c, m) }"
    )
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = mask
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = result
    return model


def declared(value: onnx.ValueInfoProto) -> int | str:
    dim = value.type.tensor_type.shape.dim[1]
    return str(dim.dim_param) or int(dim.dim_value)


@pytest.mark.parametrize(
    ("dims", "mask"), [({"past": 3, "seq": 1}, 4), ({"past": 3}, "3 + seq"), ({"batch": 2}, "past + seq")]
)
def test_a_size_that_is_fixed_is_so_in_formulas(dims: dict[str, int], mask: int | str) -> None:
    """And the models are run at sizes that go together."""
    model = cached("past + seq", result="past + seq")
    result = graphopt.optimize(model, dims=dims, cost="none")
    assert (declared(result.model.graph.input[2]), declared(result.model.graph.output[0])) == (mask, mask)
    found = result.report.comparison
    assert found is not None
    assert found.reason == ""
    assert found.bindings
    run_benchmark([model, result.model], SessionSetting(threads=1), seconds=0.1)


def test_quotients_are_left() -> None:
    """Who wrote them does not say how they are rounded."""
    result = graphopt.optimize(cached("(past + seq) / 1"), dims={"past": 3, "seq": 1}, cost="none")
    assert declared(result.model.graph.input[2]) == "(past + seq) / 1"


@pytest.mark.parametrize(
    ("mask", "dims", "line"),
    [
        ("past + seq", {"past": 3, "seq": 1, "past + seq": 9}, r"size 'past \+ seq' is 4, not 9"),
        ("past - seq", {"past": 3, "seq": 3}, "size 'past - seq' would be less than 1"),
    ],
)
def test_formulas_that_say_something_else_are_refused(mask: str, dims: dict[str, int], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        graphopt.optimize(cached(mask), dims=dims, cost="none")
