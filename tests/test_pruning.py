"""Pruned networks: channels that are zero, that nobody reads, or that equal others, are not computed."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.tensor import first_equal, nonzero_mask
from tests.text import parse

Weights = dict[str, NDArray[np.float32]]

DEAD = [1, 4, 5, 6, 11, 18, 19]
"""Of 20 channels; 13 are alive, and three of these stay with them, for kernels compute 16 at once."""
SHAPES: dict[str, tuple[int, ...]] = {
    "w": (20, 3, 3, 3), "b": (20,), "d": (20, 1, 3, 3), "e": (20,), "v": (5, 20, 3, 3), "c": (5,),
    "left": (3, 20), "right": (20, 5), "left_t": (20, 3), "right_t": (5, 20),
}  # fmt: skip


def weights(*names: str, zeros: str = "", axis: int = 0) -> Weights:
    """Draw weights; those that are named, several by a plus, are zero at the dead places along an axis."""
    generator = np.random.default_rng(0)
    drawn = {name: generator.standard_normal(SHAPES[name]).astype(np.float32) for name in names}
    for name in filter(None, zeros.split("+")):
        np.moveaxis(drawn[name], axis if drawn[name].ndim > 1 else 0, 0)[DEAD] *= np.float32(0)  # some are -0
    return drawn


def repeated(*names: str, equal: str, axis: int = 0) -> Weights:
    """Draw weights; those that are named, several by a plus, are at the dead places what they are at two others."""
    drawn = weights(*names)
    for name in equal.split("+"):
        rows = np.moveaxis(drawn[name], axis if drawn[name].ndim > 1 else 0, 0)
        rows[[0, 2]] *= 1 + np.float32(rows.ndim > 1)
        rows[0].reshape(-1)[:1] = 0
        rows[DEAD] = rows[[0, 2, 0, 2, 0, 2, 2]]
        rows[DEAD[0]] *= np.where(rows[DEAD[0]] == 0, np.float32(-1), np.float32(1))  # -0 is 0
    return drawn


def sizes(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """The shapes of the weights that are left when a model is simplified, which computes the same."""
    simplified, _ = graphopt.simplify(model)
    assert compare_models(model, onnx_io.load_model(simplified)).verdict is EqualityVerdict.EQUAL
    assert "Gather" not in {node.op_type for node in simplified.graph.node}, "they are taken when it is compiled"
    return sorted(tuple(tensor.dims) for tensor in simplified.graph.initializer if tensor.dims)


CONVS = "a = Conv<pads=[1,1,1,1]>(x, w, b); r = {}; y = Conv<pads=[1,1,1,1]>(r, v, c)"


@pytest.mark.parametrize(
    "after",
    ["Identity(a)", "Relu(a)", "Clip(a, -1.0, 2.0)", "HardSwish(a)", "Sigmoid(a)", "MaxPool<kernel_shape=[2,2]>(a)"],
)
def test_channels_that_nobody_reads_are_not_made(after: str) -> None:
    model = parse("float[2,3,6,6] x", CONVS.format(after), weights("w", "b", "v", "c", zeros="v", axis=1))
    assert sizes(model) == [(5,), (5, 16, 3, 3), (16,), (16, 3, 3, 3)]


@pytest.mark.parametrize("after", ["Identity(a)", "Relu(a)", "Clip(a, 0.0, 6.0)", "Tanh(a)"])
def test_channels_that_are_zero_are_not_made(after: str) -> None:
    model = parse("float[2,3,6,6] x", CONVS.format(after), weights("w", "b", "v", "c", zeros="w+b"))
    assert sizes(model) == [(5,), (5, 16, 3, 3), (16,), (16, 3, 3, 3)]


@pytest.mark.parametrize(
    "after",
    ["Identity(a)", "Relu(a)", "Clip(a, 1.0, 2.0)", "HardSwish(a)", "Sigmoid(a)", "MaxPool<kernel_shape=[2,2]>(a)"],
)
def test_channels_that_are_equal_are_made_once(after: str) -> None:
    model = parse("float[N,3,6,6] x", CONVS.format(after), repeated("w", "b", "v", "c", equal="w+b"))
    assert sizes(model) == [(5,), (5, 16, 3, 3), (16,), (16, 3, 3, 3)]


@pytest.mark.parametrize("equal", ["w", "b", "v"])
def test_channels_that_are_equal_in_part_are_all_made(equal: str) -> None:
    drawn = repeated("w", "b", "v", "c", equal=equal, axis=int(equal == "v"))
    assert (20, 3, 3, 3) in sizes(parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), drawn))


def test_one_channel_is_made_of_those_that_are_all_equal() -> None:
    drawn = weights("w", "b", "v", "c")
    drawn["w"][:], drawn["b"][:] = drawn["w"][3], drawn["b"][3]
    assert (16, 3, 3, 3) in sizes(parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), drawn))


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_channels_are_equal_where_they_are_finite(what: float) -> None:
    """What is read once is multiplied by zeros for other channels, which an infinity would spoil."""
    for name in "bv":
        drawn = repeated("w", "b", "v", "c", equal="w+b")
        drawn[name][3:5] = what
        assert first_equal(drawn["b"], 0)[4] == (3 if name == "b" else 2)
        simplified, _ = graphopt.simplify(parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), drawn))
        assert (20, 3, 3, 3) in [tuple(tensor.dims) for tensor in simplified.graph.initializer]


@pytest.mark.parametrize(
    ("after", "zeros", "left"), [("Sigmoid(a)", "w+b", 16), ("Clip(a, 1.0, 6.0)", "w+b", 16), ("Relu(a)", "w", 20)]
)
def test_channels_that_are_something_count(after: str, zeros: str, left: int) -> None:
    """A sigmoid makes a half of zero, in all such channels the same; a filter of zeros with a bias makes that."""
    model = parse("float[2,3,6,6] x", CONVS.format(after), weights("w", "b", "v", "c", zeros=zeros))
    assert (left, 3, 3, 3) in sizes(model)


def test_where_no_block_is_saved_nothing_is_dropped() -> None:
    drawn = weights("w", "b", "v", "c")
    drawn["v"][:, DEAD[:3]] = 0
    simplified, _ = graphopt.simplify(parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), drawn))
    assert (20, 3, 3, 3) in [tuple(tensor.dims) for tensor in simplified.graph.initializer]


def test_a_bias_that_is_absent_is_zero() -> None:
    body = "a = Conv(x, w); r = Relu(a); y = Conv(r, v)"
    model = parse("float[2,3,6,6] x", body, weights("w", "v", zeros="w"))
    assert sizes(model) == [(5, 16, 3, 3), (16, 3, 3, 3)]


@pytest.mark.parametrize("zeros", ["v", "d+e"])
def test_a_depthwise_convolution_loses_them_too(zeros: str) -> None:
    body = "a = Conv(x, w, b); r = Relu(a); f = Conv<group=20>(r, d, e); s = Relu(f); y = Conv(s, v, c)"
    drawn = weights("w", "b", "d", "e", "v", "c", zeros=zeros, axis=1 if zeros == "v" else 0)
    model = parse("float[2,3,9,9] x", body, drawn)
    assert sizes(model) == [(5,), (5, 16, 3, 3), (16,), (16,), (16, 1, 3, 3), (16, 3, 3, 3)]


@pytest.mark.parametrize(("equal", "count"), [("w+b+d+e", 16), ("w+b", 20), ("d+e", 20)])
def test_a_depthwise_convolution_filters_equal_channels_once(equal: str, count: int) -> None:
    body = "a = Conv(x, w, b); r = Relu(a); f = Conv<group=20>(r, d, e); s = Relu(f); y = Conv(s, v, c)"
    model = parse("float[2,3,9,9] x", body, repeated("w", "b", "d", "e", "v", "c", equal=equal))
    assert sizes(model) == [(5,), (5, count, 3, 3), (count,), (count,), (count, 1, 3, 3), (count, 3, 3, 3)]


def test_features_that_are_gated_alike_are_made_once() -> None:
    body = (
        "g = MatMul(x, left); s = Sigmoid(g); f = Mul(g, s); a = MatMul(x, other); m = Mul(f, a); y = MatMul(m, right)"
    )
    drawn = repeated("left", "right", equal="left", axis=1)
    model = parse("float[2,6,3] x", body, drawn | {"other": drawn["left"][::-1].copy()})
    assert sizes(model) == [(3, 16), (3, 16), (16, 5)]
    model = parse("float[2,6,3] x", body, drawn | {"other": weights("left")["left"]})
    assert sizes(model) == [(3, 20), (3, 20), (20, 5)]


def test_features_that_are_gated_are_dropped() -> None:
    body = (
        "g = MatMul(x, left); s = Sigmoid(g); f = Mul(g, s); a = MatMul(x, other); m = Mul(f, a); y = MatMul(m, right)"
    )
    drawn = weights("left", "right", zeros="right") | {"other": weights("left", zeros="left", axis=1)["left"]}
    assert sizes(parse("float[2,6,3] x", body, drawn)) == [(3, 16), (3, 16), (16, 5)]
    drawn["right"] = weights("right")["right"]
    assert sizes(parse("float[2,6,3] x", body, drawn)) == [(3, 16), (3, 16), (16, 5)]


def test_what_is_dropped_behind_makes_more_unread_in_front() -> None:
    """The dead channels of the last convolution are all that others of the second make anything of."""
    drawn = weights("w", "b", "v", "c", zeros="v", axis=1)
    drawn["m"] = np.zeros((20, 20, 1, 1), np.float32)
    drawn["m"][DEAD, DEAD] = 1  # what is not dead there is zero, and what is dead not read
    drawn["m"][0, :3:2] = 1  # one of them beside the diagonal, or it would be a depthwise one
    body = "a = Conv<pads=[1,1,1,1]>(x, w, b); r = Relu(a); s = Conv(r, m); t = Relu(s); y = Conv(t, v, c)"
    assert (16, 16, 1, 1) in sizes(parse("float[2,3,6,6] x", body, drawn))


GELU = "h = Div(a, 1.4142135); t = Erf(h); k = Add(t, 1.0); m = Mul(a, k); r = Mul(m, 0.5)"


@pytest.mark.parametrize("after", ["r = Relu(a)", "s = Sigmoid(a); r = Mul(a, s)", GELU])
@pytest.mark.parametrize(
    ("body", "names", "dead"),
    [
        ("p = MatMul(x, left); a = Add(p, b); {}; y = MatMul(r, right)", ("left", "b", "right"), ("right", 0)),
        ("a = MatMul(x, left); {}; y = MatMul(r, right)", ("left", "right"), ("left", 1)),
        ("a = Gemm<transB=1>(x, left_t, b); {}; y = Gemm<transB=1>(r, right_t, c)",
         ("left_t", "b", "right_t", "c"), ("right_t", 1)),
    ],
)  # fmt: skip
def test_features_of_two_products_are_dropped(
    body: str, names: tuple[str, ...], dead: tuple[str, int], after: str
) -> None:
    zeros, axis = dead
    for rows in ("6", "2,6") if "MatMul" in body else ("6",):
        model = parse(f"float[{rows},3] x", body.format(after), weights(*names, zeros=zeros, axis=axis))
        assert all(20 not in shape for shape in sizes(model))


@pytest.mark.parametrize("after", ["r = Relu(a)", GELU])
@pytest.mark.parametrize(
    ("body", "names", "equal"),
    [
        ("p = MatMul(x, left); a = Add(p, b); {}; y = MatMul(r, right)", ("left", "b", "right"), "left+b"),
        ("a = MatMul(x, left); {}; y = MatMul(r, right)", ("left", "right"), "left"),
        ("a = Gemm(x, left, b); {}; y = Gemm(r, right, c)", ("left", "b", "right", "c"), "left+b"),
        ("a = Gemm<transB=1>(x, left_t, b); {}; y = Gemm<transB=1>(r, right_t, c)",
         ("left_t", "b", "right_t", "c"), "left_t+b"),
    ],
)  # fmt: skip
def test_features_of_two_products_that_are_equal_are_made_once(
    body: str, names: tuple[str, ...], equal: str, after: str
) -> None:
    for rows in ("6", "N,6", "N,T") if "MatMul" in body else ("N",):
        drawn = repeated(*names, equal=equal, axis=int("left_t" not in names))
        model = parse(f"float[{rows},3] x", body.format(after), drawn)
        assert all(20 not in shape for shape in sizes(model))


@pytest.mark.parametrize(
    "body",
    [
        "a = Conv(x, w, b); r = Relu(a); p = Conv(r, v, c); q = GlobalMaxPool(r); y = Flatten(p); z = Flatten(q)",
        "a = Conv(x, w, b); y = Conv<group=2>(a, halves)",
    ],
    ids=["read elsewhere", "in groups"],
)
def test_channels_that_something_else_may_read_stay(body: str) -> None:
    drawn = weights("w", "b", "v", "c", zeros="v", axis=1)
    drawn["halves"] = drawn["v"][:4, :10].copy()
    if "halves" not in body:
        del drawn["halves"]
    model = parse("float[2,3,6,6] x", body, drawn, outputs="y, z" if "z =" in body else "y")
    assert (20, 3, 3, 3) in sizes(model)


@pytest.mark.parametrize("spoil", [lambda v: v.fill(0), lambda v: v[:, DEAD].fill(np.nan)], ids=["all", "no number"])
def test_where_all_are_dead_or_some_are_no_numbers_nothing_is_dropped(spoil: Callable[..., None]) -> None:
    drawn = weights("w", "b", "v", "c")
    spoil(drawn["v"])
    simplified, _ = graphopt.simplify(parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), drawn))
    assert (20, 3, 3, 3) in [tuple(tensor.dims) for tensor in simplified.graph.initializer]


@pytest.mark.parametrize(("exact", "keep_nonfinite"), [(True, False), (False, True)])
def test_where_bits_or_infinities_are_to_stay_nothing_is_dropped(exact: bool, keep_nonfinite: bool) -> None:
    """An infinity times zero is NaN, and a sum of zeros may have another sign."""
    model = parse("float[2,3,6,6] x", CONVS.format("Relu(a)"), weights("w", "b", "v", "c", zeros="v", axis=1))
    done = graphopt.optimize(model, cost="none", exact=exact, keep_nonfinite=keep_nonfinite)
    assert (20, 3, 3, 3) in [tuple(tensor.dims) for tensor in done.model.graph.initializer]


def test_a_bias_that_is_written_with_more_axes_counts_as_it_is_declared() -> None:
    drawn = weights("left", "b", "right", zeros="left", axis=1)
    drawn["b"][DEAD] = 0
    drawn["b"] = drawn["b"].reshape(1, 1, 20)
    model = parse("float[2,6,3] x", "p = MatMul(x, left); a = Add(p, b); r = Relu(a); y = MatMul(r, right)", drawn)
    assert (3, 16) in sizes(model)


NUMBERS = (np.float16, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, ml_dtypes.int4, np.bool_)


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_where_an_array_is_filled(dtype: type[np.generic], axis: int) -> None:
    """Also behind the first elements, which tell of most weights."""
    rows = np.zeros((20, 12, 11), dtype)
    rows[3, 0, 0] = rows[5, 11, 10] = 1
    assert np.flatnonzero(nonzero_mask(np.moveaxis(rows, 0, axis), axis)).tolist() == [3, 5]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_which_place_of_an_array_is_the_first_of_equal_ones(dtype: type[np.generic], axis: int) -> None:
    """Also those that differ behind the first elements."""
    rows = (np.arange(20)[:, None, None] % 2 * np.ones((20, 12, 11))).astype(dtype)
    rows[[3, 8, 15], 11, 10] = np.array([0, 1, 0]).astype(dtype)
    found = first_equal(np.moveaxis(rows, 0, axis), axis)
    assert found.tolist() == [3 if i in (3, 15) else 8 if i == 8 else i % 2 for i in range(20)]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 2), (4,)])
def test_which_place_is_the_first_where_there_is_little(shape: tuple[int, ...]) -> None:
    assert first_equal(np.zeros(shape, np.float32), 0).tolist() == [0] * shape[0]
