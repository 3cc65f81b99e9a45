"""Weights that are blocks on a diagonal: convolutions in groups and products in parts, which multiply no zeros."""

from __future__ import annotations

from collections.abc import Iterable

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.ir.tensor import count_blocks
from tests.test_trades import matches, traded
from tests.text import parse

Array = NDArray[np.float32]
CONV = "y = Conv<pads=[1,1,1,1]>(x, w, b)"


def in_blocks(*shape: int, sides: Iterable[tuple[int, int]]) -> Array:
    """Draw an array with blocks of these sides along the diagonal of its first axes; some of its zeros are -0."""
    rng = np.random.default_rng(0)
    array, inside = rng.standard_normal(shape).astype(np.float32), np.zeros(shape[:2], bool)
    high = wide = 0
    for rows, columns in sides:
        inside[high : high + rows, wide : wide + columns] = True
        high, wide = high + rows, wide + columns
    array[~inside] *= np.float32(0)
    return array


def conv(w: Array, body: str = CONV, image: str = "2,{},6,6") -> onnx.ModelProto:
    b = np.random.default_rng(1).standard_normal(len(w)).astype(np.float32)
    return parse(f"float[{image.format(w.shape[1])}] x", body, {"w": w, "b": b} if "b)" in body else {"w": w})


def weights(model: onnx.ModelProto) -> tuple[int, ...]:
    """The shape of the weights that are left when a model is simplified, which computes the same."""
    simplified, _ = graphopt.simplify(model)
    assert compare_models(model, onnx_io.load_model(simplified)).verdict is EqualityVerdict.EQUAL
    (shape,) = (tuple(tensor.dims) for tensor in simplified.graph.initializer if tensor.name != "b")
    assert [node.op_type for node in simplified.graph.node] == ["Conv"], "weights are cut when it is compiled"
    return shape


@pytest.mark.parametrize(
    ("shape", "side", "left"),
    [
        ((32, 32), (16, 16), (32, 16)),
        ((64, 32), (32, 16), (64, 16)),
        ((64, 64), (16, 16), (64, 16)),
        ((64, 64), (8, 8), (64, 16)),  # smaller ones are not convolved in blocks
        ((64, 64), (1, 1), (64, 1)),
        ((24, 24), (1, 1), (24, 1)),
        ((24, 24), (12, 12), (24, 24)),
        ((24, 12), (2, 1), (24, 12)),
        ((1, 1), (1, 1), (1, 1)),
        ((32, 32), (32, 32), (32, 32)),
    ],
)
def test_a_convolution_with_blocks_is_one_with_groups(
    shape: tuple[int, int], side: tuple[int, int], left: tuple[int, int]
) -> None:
    w = in_blocks(*shape, 3, 3, sides=[side] * (shape[0] // side[0]))
    assert weights(conv(w)) == (*left, 3, 3)


@pytest.mark.parametrize("sides", [[(24, 8), (8, 24)], [(20, 16), (12, 16)], [(8, 8), (16, 16), (8, 8)]])
def test_blocks_of_unequal_sides_are_not_groups(sides: list[tuple[int, int]]) -> None:
    assert weights(conv(in_blocks(32, 32, 3, 3, sides=sides))) == (32, 32, 3, 3)


def test_blocks_on_the_other_diagonal_are_not_groups() -> None:
    w = in_blocks(32, 32, 3, 3, sides=[(16, 16)] * 2)[:, ::-1]
    assert weights(conv(np.ascontiguousarray(w))) == (32, 32, 3, 3)


@pytest.mark.parametrize(
    ("body", "image", "kernel"),
    [
        ("y = Conv<strides=[2,1],dilations=[2,3],pads=[0,1,2,3]>(x, w, b)", "2,{},9,9", (3, 3)),
        ("y = Conv<auto_pad=\"SAME_UPPER\",strides=[2,2]>(x, w)", "2,{},7,6", (3, 3)),
        ("y = Conv<dilations=[2]>(x, w, b)", "N,{},9", (3,)),
        ("y = Conv<pads=[1,0,0,0,1,1]>(x, w)", "N,{},L,4,5", (2, 2, 3)),
    ],
)  # fmt: skip
def test_pads_strides_and_dilations_stay(body: str, image: str, kernel: tuple[int, ...]) -> None:
    w = in_blocks(32, 32, *kernel, sides=[(16, 16)] * 2)
    assert weights(conv(w, body, image)) == (32, 16, *kernel)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_what_is_no_number_counts(what: float) -> None:
    inside, outside = (in_blocks(32, 32, 3, 3, sides=[(16, 16)] * 2) for _ in range(2))
    inside[3, 2, 0, 1], outside[3, 20, 0, 1] = what, what
    assert [count_blocks(w, 0, 1, 16) for w in (inside, outside)] == [2, 1]
    for w in (inside, outside):  # proofs over the reals are for weights that are finite
        simplified, _ = graphopt.simplify(conv(w))
        assert (32, 32, 3, 3) in [tuple(tensor.dims) for tensor in simplified.graph.initializer]


@pytest.mark.parametrize(("exact", "keep_nonfinite"), [(True, False), (False, True)])
def test_where_bits_or_infinities_are_to_stay_there_are_no_groups(exact: bool, keep_nonfinite: bool) -> None:
    """An infinity times zero is NaN, and a sum of zeros may have another sign."""
    model = conv(in_blocks(32, 32, 3, 3, sides=[(16, 16)] * 2))
    done = graphopt.optimize(model, cost="none", exact=exact, keep_nonfinite=keep_nonfinite)
    assert (32, 32, 3, 3) in [tuple(tensor.dims) for tensor in done.model.graph.initializer]


def test_small_blocks_are_a_trade() -> None:
    model = conv(in_blocks(24, 24, 3, 3, sides=[(12, 12)] * 2))
    assert traded(model, "group_conv_of_small_blocks") == {"Conv": 1}
    assert not matches(conv(in_blocks(24, 24, 3, 3, sides=[(24, 24)])), "group_conv_of_small_blocks")


PRODUCTS = {
    "matmul": ("y = MatMul(x, w)", False),
    "gemm": ("y = Gemm(x, w, c)", False),
    "transposed_gemm": ("y = Gemm<transB=1>(x, w, c)", True),
}


def product(kind: str, w: Array, rows: str) -> onnx.ModelProto:
    body, is_transposed = PRODUCTS[kind]
    c = {"c": np.arange(w.shape[1], dtype=np.float32)} if "c)" in body else {}
    return parse(f"float[{rows},{len(w)}] x", body, {"w": w.T.copy() if is_transposed else w, **c})


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        *((kind, rows) for kind in PRODUCTS for rows in ("7", "N")),
        *(("matmul", stack) for stack in ("2,5", "N,T", "N,3,T")),
    ],
)
def test_a_product_with_blocks_is_made_part_by_part(kind: str, rows: str) -> None:
    model = product(kind, in_blocks(96, 48, sides=[(32, 16)] * 3), rows)
    found = traded(model, f"split_{kind}_by_blocks")
    assert found["MatMul"] == 1 and found["Transpose"] == 2 and found["Gemm"] == 0 and found["Add"] == ("gemm" in kind)
    assert not matches(product(kind, in_blocks(32, 48, sides=[(20, 16), (12, 32)]), rows), f"split_{kind}_by_blocks")


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_with_a_diagonal_is_one_of_elements(kind: str) -> None:
    model = product(kind, in_blocks(20, 20, sides=[(1, 1)] * 20), "N")
    if kind != "matmul":  # two operators are a trade
        assert traded(model, f"replace_{kind}_by_diagonal_with_mul") == {"Mul": 1, "Add": 1}
        return
    simplified, _ = graphopt.simplify(model)
    assert compare_models(model, onnx_io.load_model(simplified)).verdict is EqualityVerdict.EQUAL
    assert [node.op_type for node in simplified.graph.node] == ["Mul"]


def by_hand(array: NDArray[np.generic], multiple: int) -> int:
    """As `count_blocks` says, looked at element by element."""
    height, width = array.shape[:2]
    for count in range(min(height, width), 1, -1):
        if height % (count * multiple) == 0 and width % (count * multiple) == 0:
            rows, columns = np.nonzero(array.reshape(height, width, -1).astype(np.float64).any(axis=2))
            if np.array_equal(rows * count // height, columns * count // width):
                return count
    return 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize("seed", range(40))
def test_blocks_are_those_that_are_looked_for_element_by_element(seed: int, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(seed)
    count, multiple = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    high, wide = (int(side) for side in rng.integers(1, 7, 2))
    array = (rng.random((count * high, count * wide, *[2] * (seed % 3))) < rng.choice((0.2, 0.9))).astype(dtype)
    inside = np.arange(count * high)[:, None] // high == np.arange(count * wide) // wide
    array[~inside] = 0
    if seed % 5 == 0:
        array[rng.integers(count * high), rng.integers(count * wide)] = 1
    assert count_blocks(array, 0, 1, multiple) == by_hand(array, multiple)
    assert count_blocks(np.moveaxis(array, 0, -1), -1, 0, multiple) == by_hand(array, multiple)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (4, 4, 0), (1, 1), (3, 2)])
def test_where_there_are_no_blocks(shape: tuple[int, ...]) -> None:
    assert count_blocks(np.zeros(shape, np.float32), 0, 1, 1) == 1
