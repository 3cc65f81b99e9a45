"""Open dims of the check are 1, too, all of them and some: kernels for one row are others than those for several."""

import pytest

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from tests.text import parse


@pytest.mark.parametrize(
    ("inputs", "least"),
    [
        ("float[N] x", [{"N": 1}]),
        ("float[4] x", []),
        ("float[a,b,c] x", [{"a": 1, "b": 1, "c": 1}, {"a": 3, "b": 1, "c": 160}]),
        ("float[b,past] x, float[b,seq] y, float[b,total] z", [{"b": 1, "past": 1, "seq": 1, "total": 2}]),
        ("float[2,N] x, float[M,2] y", [{"M": 1, "N": 1}, {"M": 3, "N": 1}]),
        ("float x, float[N,N] y", [{"N": 1}]),
    ],
)
def test_open_dims_are_1_together_and_apart(inputs: str, least: list[dict[str, int]]) -> None:
    made = parse(inputs, "r = Neg(x)", outputs="r")
    found = compare_models(made, made).bindings
    assert all(binding in found for binding in least) and bool(found) == bool(least)


def test_a_model_that_refuses_sizes_of_1_is_run_at_others() -> None:
    made = parse("float[b,3,h,w] x", "y = MaxPool<kernel_shape=[3,3]>(x)", outputs="float[b,3,i,j] y")
    found = compare_models(made, made)
    assert found.verdict is EqualityVerdict.EQUAL and {"b": 1, "h": 1, "w": 1} not in found.bindings


def test_a_difference_at_one_row_alone_is_found() -> None:
    body = "h = Shape(x); p = ReduceProd<keepdims=0>(h); q = Equal(p, {}); n = Neg(x); y = Where(q, n, x)"
    one, other = (parse("float[b,s] x", body.format(count), outputs="float[b,s] y") for count in (1, -1))
    found = compare_models(one, other)
    assert found.verdict is EqualityVerdict.DIFFERENT and "b=1, s=1" in str(found)


def test_sizes_that_are_given_stay() -> None:
    made = parse("float[b,s] x", "y = Neg(x)", outputs="float[b,s] y")
    found = compare_models(made, made, bindings=[{"b": 5}], seeds=(0,))
    assert found.bindings == ({"b": 5, "s": 8}, {"b": 5, "s": 1})
    assert len(compare_models(made, made, bindings=[{"b": 5, "s": 3}]).bindings) == 1
