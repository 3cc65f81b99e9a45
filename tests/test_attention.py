"""Attention in which several heads of queries share keys and values: these are read where they lie, not copied."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.check.compare import compare
from graphopt.check.verdict import Verdict
from graphopt.io import onnx_io
from tests import zoo
from tests.text import parse


def simplified(model: onnx.ModelProto, **sizes: int) -> onnx_io.Model:
    """The model as rules alone leave it, which computes the same."""
    after = onnx_io.load(graphopt.simplify(model)[0])
    assert compare(model, after, bindings=[sizes] if sizes else None).verdict is Verdict.EQUAL
    return after


def step(*, batch: str = "1", tokens: str = "1", past: str, joined: str, times: str = "1,2,3,1,1") -> onnx.ModelProto:
    """Six heads of queries over a cache of two heads of keys and values, as transformers repeats these."""
    repeat = f"a{{0}} = Unsqueeze({{0}}, [2]); b{{0}} = Expand(a{{0}}, [{times}]); r{{0}} = Reshape(b{{0}}, [{joined}])"
    return parse(
        f"float[{batch},6,{tokens},8] q, float[{batch},2,{past},8] k, float[{batch},2,{past},8] v",
        f"{repeat.format('k')}; t = Transpose<perm=[0,1,3,2]>(rk); s = MatMul(q, t); p = Softmax<axis=-1>(s); "
        f"{repeat.format('v')}; y = MatMul(p, rv)",
    )


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(step(past="5", joined="1,6,5,8", times="1,2,3,5,8"), id="sizes that are written"),
        pytest.param(step(past="5", joined="0,6,-1,8"), id="a size that is inferred"),
        pytest.param(step(tokens="4", past="5", joined="1,6,5,8"), id="several tokens"),
    ],
)
def test_heads_that_share_keys_are_rows_of_one_product(model: onnx.ModelProto) -> None:
    assert simplified(model).graph.ops() == {"Reshape": 4, "Transpose": 1, "MatMul": 2, "Softmax": 1}


def test_so_they_are_behind_a_cache_of_any_length() -> None:
    """The cache has one token more than before, so there is something in it."""
    model = parse(
        "float[batch,6,1,8] q, float[batch,2,past,8] k, float[batch,2,1,8] new",
        "c = Concat<axis=2>(k, new); a = Unsqueeze(c, [2]); b = Expand(a, [1,2,3,1,1]); r = Reshape(b, [0,6,-1,8]); "
        "t = Transpose<perm=[0,1,3,2]>(r); s = MatMul(q, t); y = Softmax<axis=-1>(s)",
    )
    after = simplified(model, batch=2, past=7)
    assert "Expand" not in after.graph.ops()
    assert compare(model, after, bindings=[{"batch": 1, "past": 0}]).verdict is Verdict.EQUAL


def test_heads_that_are_repeated_as_a_whole_stay() -> None:
    """Heads 0, 1, 0, 1, 0, 1 share keys, not 0, 0, 0, 1, 1, 1: they do not lie side by side."""
    model = parse(
        "float[1,6,1,8] q, float[1,2,5,8] k",
        "a = Unsqueeze(k, [1]); b = Expand(a, [1,3,2,5,8]); r = Reshape(b, [1,6,5,8]); "
        "t = Transpose<perm=[0,1,3,2]>(r); y = MatMul(q, t)",
    )
    assert simplified(model).graph.ops()["Expand"] == 1


@pytest.mark.parametrize(
    ("inputs", "times", "joined", "heads"),
    [
        pytest.param("float[2,6,1,8] q, float[1,2,5,8] k", "2,2,3,5,8", "2,6,5,8", "2,6,1,8", id="the batch, too"),
        pytest.param("float[1,6,1,8] q, float[1,2,1,8] k", "1,2,3,5,8", "1,6,5,8", "1,6,1,8", id="the cache, too"),
        pytest.param("float[1,6,1,8] q, float[1,2,5,1] k", "1,2,3,5,8", "1,6,5,8", "1,6,1,8", id="the elements, too"),
        pytest.param("float[1,6,1,8] q, float[1,2,5,8] k", "1,2,3,5,8", "1,3,10,8", "1,3,2,8", id="other heads"),
    ],
)
def test_keys_that_are_repeated_otherwise_stay(inputs: str, times: str, joined: str, heads: str) -> None:
    model = parse(
        inputs,
        f"a = Unsqueeze(k, [2]); b = Expand(a, [{times}]); r = Reshape(b, [{joined}]); p = Reshape(q, [{heads}]); "
        "t = Transpose<perm=[0,1,3,2]>(r); y = MatMul(p, t)",
    )
    assert simplified(model).graph.ops()["Expand"] == 1


def stack(shape: str, matrices: str, stacks: str) -> onnx.ModelProto:
    """Keys that torch makes one stack of several to transpose them."""
    body = f"s = Reshape(x, [{matrices}]); t = Transpose<perm=[0,2,1]>(s); y = Reshape(t, [{stacks}])"
    return parse(f"float[{shape}] x", body)


@pytest.mark.parametrize(("shape", "stacks"), [("a,3,4,5", "-1,3,5,4"), ("2,b,4,5", "2,-1,5,4")])
def test_a_stack_of_matrices_is_transposed_as_it_is(shape: str, stacks: str) -> None:
    assert simplified(stack(shape, "-1,4,5", stacks)).graph.ops() == {"Transpose": 1}


def test_a_stack_of_matrices_that_may_be_empty_stays() -> None:
    """Of an empty one nobody knows the size that is to be inferred."""
    assert simplified(stack("2,3,n,5", "6,-1,5", "2,3,5,-1")).graph.ops() == {"Reshape": 2, "Transpose": 1}


@pytest.mark.parametrize("name", ["llama-dynamo", "llama-dynamo-raw", "llama-torchscript"])
def test_no_export_of_llama_copies_its_keys(name: str) -> None:
    model = zoo.load(name)
    assert "Expand" in {node.op_type for node in model.graph.node}
    assert "Expand" not in simplified(model).graph.ops()


def test_a_head_that_is_infinite_spoils_no_other() -> None:
    model, (q, k, v) = step(past="5", joined="1,6,5,8"), map(ones, (6, 2, 2), (1, 5, 5))
    k[0, 1] = np.inf
    after = simplified(model)
    assert "Expand" not in after.graph.ops()
    found = compare(model, after, inputs={"q": q, "k": k, "v": v}, exact=True, keep_nonfinite=True)
    assert found.verdict is Verdict.EQUAL


def ones(heads: int, rows: int) -> zoo.Array:
    return np.ones((1, heads, rows, 8), np.float32)
