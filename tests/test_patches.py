"""Images that are cut into patches in front of a convolution, which cuts them itself by its strides."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from tests.text import Arrays, parse


def weights(*shape: int) -> Arrays:
    generator = np.random.default_rng(0)
    return {"w": generator.standard_normal(shape).astype(np.float32), "b": np.arange(shape[0], dtype=np.float32)}


def operators(model: onnx.ModelProto) -> dict[str, int]:
    """The operators that are left when a model is simplified, which computes the same."""
    simplified, _ = graphopt.simplify(model)
    after = onnx_io.load_model(simplified)
    assert compare_models(model, after).verdict is EqualityVerdict.EQUAL
    return dict(after.graph.operator_counts())


def focus(*corners: tuple[int, int]) -> str:
    """Every second pixel of every second row, as torch exports it: one Slice for each axis."""
    end = 2**63 - 1
    slices = (
        f"r{n} = Slice(x, [{row}], [{end}], [2], [2]); p{n} = Slice(r{n}, [{column}], [{end}], [3], [2])"
        for n, (row, column) in enumerate(corners)
    )
    return "; ".join([*slices, "f = Concat<axis=1>(p0, p1, p2, p3); y = Conv<pads=[1,1,1,1]>(f, w, b)"])


@pytest.mark.parametrize("corners", [((0, 0), (0, 1), (1, 0), (1, 1)), ((0, 0), (1, 0), (0, 1), (1, 1))])
@pytest.mark.parametrize("size", ["2,3,8,12", "batch,3,10,6"])
def test_focus_is_a_convolution_with_strides(corners: tuple[tuple[int, int], ...], size: str) -> None:
    assert operators(parse(f"float[{size}] x", focus(*corners), weights(5, 12, 3, 3))) == {"Conv": 1}


def test_focus_of_open_sizes_too() -> None:
    """Odd ones have no such corners that could be joined."""
    model = parse("float[2,3,h,w] x", focus((0, 0), (1, 0), (0, 1), (1, 1)), weights(5, 12, 3, 3))
    simplified, _ = graphopt.simplify(model)
    after = onnx_io.load_model(simplified)
    assert after.graph.operator_counts() == {"Conv": 1}
    assert compare_models(model, after, bindings=[{"h": 6, "w": 10}]).verdict is EqualityVerdict.EQUAL


def test_other_corners_stay() -> None:
    body = focus((0, 0), (0, 1), (0, 1), (1, 1))
    assert operators(parse("float[2,3,8,12] x", body, weights(5, 12, 3, 3)))["Concat"] == 1


def test_patches_are_convolved_where_they_lie() -> None:
    body = "s = SpaceToDepth<blocksize=2>(x); y = Conv<pads=[1,0,1,2], strides=[2,1]>(s, w, b)"
    assert operators(parse("float[2,3,8,12] x", body, weights(5, 12, 3, 3))) == {"Conv": 1}


@pytest.mark.parametrize(("size", "channels"), [(2, 12), (4, 48)])
@pytest.mark.parametrize("batch", ["2", "batch"])
def test_unshuffled_pixels_are_convolved_where_they_lie(size: int, channels: int, batch: str) -> None:
    """As torch writes PixelUnshuffle."""
    body = (
        f"c = Reshape(x, [-1, 3, {8 // size}, {size}, {16 // size}, {size}]); t = Transpose<perm=[0,1,3,5,2,4]>(c); "
        f"u = Reshape(t, [0, {channels}, {8 // size}, {16 // size}]); y = Conv<pads=[1,0,1,2], strides=[2,1]>(u, w, b)"
    )
    assert operators(parse(f"float[{batch},3,8,16] x", body, weights(5, channels, 3, 3))) == {"Conv": 1}


@pytest.mark.parametrize(
    ("cut", "perm", "conv"),
    [("2,2", "0,1,3,5,2,4", "group=2"), ("2,2", "0,1,5,3,2,4", ""), ("2,4", "0,1,3,5,2,4", "")],
    ids=["in groups", "in another order", "not square"],
)
def test_pixels_that_are_unshuffled_otherwise_stay(cut: str, perm: str, conv: str) -> None:
    high, wide = map(int, cut.split(","))
    rows, columns, channels = 8 // high, 16 // wide, 4 * high * wide
    body = (
        f"c = Reshape(x, [2, 4, {rows}, {high}, {columns}, {wide}]); t = Transpose<perm=[{perm}]>(c); "
        f"u = Reshape(t, [2, {channels}, {rows}, {columns}]); y = Conv<{conv or 'group=1'}>(u, w, b)"
    )
    given = weights(6, channels // (2 if conv else 1), 3, 3)
    assert operators(parse("float[2,4,8,16] x", body, given))["Transpose"] == 1


@pytest.mark.parametrize("dilated", ["dilations=[2,2]", "group=2"])
def test_other_convolutions_of_patches_stay(dilated: str) -> None:
    body = f"s = SpaceToDepth<blocksize=2>(x); y = Conv<{dilated}>(s, w, b)"
    given = weights(6, 12 if "group" not in dilated else 6, 3, 3)
    assert operators(parse("float[2,3,12,12] x", body, given)) == {"SpaceToDepth": 1, "Conv": 1}
