"""Gathers at indices that count, and conditions that always hold."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.expr.dims import SymbolicDim
from graphopt.io import onnx_io
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.affine_indices import AffineIndices
from graphopt.rewrite.passes import PASSES
from graphopt.rewrite.simplify import simplify_graph
from graphopt.rules import layout, slicing
from tests.text import UNDEFINED, Arrays, parse, printed, run

N, S = SymbolicDim.named("N"), SymbolicDim.named("S")

SIZES = "s = Shape(x); n = Gather(s, 0); m = Gather(s, 1)"
VMAP = f"""{SIZES}; i = Range(0, n, 1); a = Unsqueeze(i, [1,2,3]); j = Range(0, m, 1); b = Unsqueeze(j, [0,1,2]);
    w = Max(a, b); t = Shape(w); c = Expand(a, t); d = Unsqueeze(c, [4]); e = Expand(b, t); f = Unsqueeze(e, [4]);
    g = Concat<axis=-1>(d, f); y = GatherND(x, g)"""
FLAT = f"""{SIZES}; i = Range(0, n, 1); a = Unsqueeze(i, [1,2,3]); j = Range(0, m, 1); b = Unsqueeze(j, [0,1,2]);
    c = Mul(a, m); d = Add(b, c); e = Flatten<axis=2>(x); f = Gather(e, d); r = Reshape(f, [-1]); t = Shape(d);
    y = Reshape(r, t)"""


def optimized(model: onnx.ModelProto) -> onnx_io.LoadedModel:
    """The model after the passes and the rules on views."""
    loaded = onnx_io.load_model(model)
    infer_graph(loaded.graph)
    simplify_graph(loaded.graph, [*slicing.RULES, *layout.RULES], PASSES)
    return loaded


def after(model: onnx.ModelProto) -> list[str]:
    return printed(optimized(model).graph)


@pytest.mark.parametrize("body", [VMAP, FLAT], ids=["dynamo", "TorchScript"])
def test_the_mask_of_attention_as_exported_is_a_view(body: str) -> None:
    model = parse("float[N,M] x", body, outputs="float[A,B,C,D] y")
    assert after(model) == ["y = Unsqueeze(x, [1, 2])", "return y"]


def test_constant_indices_that_count_are_a_view() -> None:
    rows, _, columns = np.meshgrid(np.arange(2), [0], np.arange(3), indexing="ij")
    indices = np.stack([rows, columns], -1)
    model = parse("float[2,3] x", "y = GatherND(x, i)", {"i": indices})
    assert after(model) == ["y = Unsqueeze(x, [1])", "return y"]


@pytest.mark.parametrize(
    "indices",
    [
        np.array([[0, 1, 2], [3, 4, 4]]),
        np.array([[1, 2, 3], [4, 5, 0]]),
        np.array([[0, 1], [2, 3]]),
        np.array([[0, 3], [1, 4], [2, 5]]),
        np.array([-6, -5, -4, -3, -2, -1]),
    ],
    ids=["one twice", "rotated", "not all", "transposed", "from the end"],
)
def test_other_indices_stay(indices: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
    model = parse("float[6] x", "y = Gather(x, i)", {"i": indices})
    assert after(model)[0].startswith("y = Gather(")


def test_coordinates_that_only_add_up_to_a_count_stay() -> None:
    """(1 + i, j - 3) is at 3·(1 + i) + j - 3 = 3·i + j, but reads row 1 + i: -3 is the first column."""
    model = parse(
        "float[3,3] x",
        """i = Range(0, 2, 1); a = Unsqueeze(i, [1,2]); b = Add(a, 1); p = Expand(b, [2,3,1]);
        j = Range(-3, 0, 1); q = Unsqueeze(j, [0,2]); r = Expand(q, [2,3,1]); g = Concat<axis=2>(p, r);
        y = GatherND(x, g)""",
        outputs="float[2,3] y",
    )
    assert "GatherND" in "".join(after(model))


def test_a_condition_that_always_holds_goes_with_the_size_it_lent() -> None:
    model = parse(
        "float[N,4,S,S] x, bool[N,1,1,S] mask",
        """s = Shape(x); n = Gather(s, 2); i = Range(0, n, 1); j = Unsqueeze(i, [0,1,3]); g = GreaterOrEqual(j, 0);
        a = And(g, mask); w = Where(a, 0.0, -1.0); y = Add(x, w)""",
        outputs="float[N,4,S,S] y",
    )
    assert after(model) == ["w = Where(mask, 0.0, -1.0)", "y = Add(x, w)", "return y"]


def test_a_condition_stays_where_its_size_shows() -> None:
    model = parse("bool[N,1] x, bool[1,2] t", "y = And(x, c)", {"c": np.ones((1, 3), bool)}, outputs="bool[N,3] y")
    assert after(model)[0].startswith("y = And(")


def test_an_index_has_to_be_less_than_a_size_that_is_known() -> None:
    assert AffineIndices((N, 1, S), 0, (1, 0, 0)).is_within(N)
    assert AffineIndices((N, 1, S), 2, (0, 0, 1)).is_within(S + 2)
    assert not AffineIndices((N,), 0, (1,)).is_within(S)
    assert not AffineIndices((N,), 1, (1,)).is_within(N)
    assert not AffineIndices((N,), 0, (-1,)).is_within(N)


def test_sizes_count_like_numbers() -> None:
    assert AffineIndices((N, 1, S), 0, (S, 7, 1)).is_arange
    assert not AffineIndices((N, S), 0, (N, 1)).is_arange
    assert not AffineIndices((N, S), 1, (S, 1)).is_arange


MOVES = st.sampled_from(["Unsqueeze({0}, [0])", "Unsqueeze({0}, [1])", "Add({0}, 1)", "Sub({0}, 1)", "Mul({0}, 2)"])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_gathers_at_computed_indices_compute_what_they_did(data: st.DataObject) -> None:
    lines = [f"v0 = Range({data.draw(st.integers(-1, 1))}, {data.draw(st.integers(1, 4))}, 1)"]
    lines.append(f"w0 = Range(0, {data.draw(st.integers(1, 4))}, {data.draw(st.integers(1, 2))})")
    lines.append(f"u0 = Mul(w0, {data.draw(st.integers(1, 4))})")
    lines.append("u1 = Unsqueeze(u0, [1])")
    current = "v0"
    for step in range(data.draw(st.integers(0, 3))):
        lines.append(f"v{step + 1} = " + data.draw(MOVES).format(current))
        current = f"v{step + 1}"
    index = data.draw(st.sampled_from([current, "z"]))
    lines.append(f"z = Add(u1, {current})")
    lines.append(f"g = Gather<axis={data.draw(st.integers(0, 1))}>(x, {index})")
    lines.append("y = Reshape(g, [-1])")
    rows = data.draw(st.integers(1, 8))
    model = parse(f"float[{rows},{data.draw(st.integers(1, 8))}] x", ";".join(lines), outputs="float[Y] y")
    assert_same(model)


def assert_same(model: onnx.ModelProto) -> None:
    (shape,) = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input]
    feeds: Arrays = {"x": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
    try:
        expected = run(model, feeds)
    except UNDEFINED:
        return
    result = run(onnx_io.to_proto(optimized(model)), feeds)
    np.testing.assert_array_equal(result["y"], expected["y"])
