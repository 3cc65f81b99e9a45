"""Attention: heads of queries that share keys and values, and rows of which a mask lets nothing be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import graphopt
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.language import rule_library
from graphopt.operators import inference
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.sites import Site
from graphopt.rule import Rule, fn, op, real, tensor
from graphopt.rules.attention import FLAT, HEADS_IN_FRONT, KEYS_LAST, keys, queries, values
from tests import zoo
from tests.text import parse, run
from tests.versions import needs


def simplified(model: onnx.ModelProto, **sizes: int) -> onnx_io.LoadedModel:
    """The model as rules alone leave it, which computes the same."""
    after = onnx_io.load_model(graphopt.simplify(model)[0])
    assert compare_models(model, after, bindings=[sizes] if sizes else None).verdict is EqualityVerdict.EQUAL
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
    assert simplified(model).graph.operator_counts() == {"Reshape": 4, "Transpose": 1, "MatMul": 2, "Softmax": 1}


def test_so_they_are_behind_a_cache_of_any_length() -> None:
    """The cache has one token more than before, so there is something in it."""
    model = parse(
        "float[batch,6,1,8] q, float[batch,2,past,8] k, float[batch,2,1,8] new",
        "c = Concat<axis=2>(k, new); a = Unsqueeze(c, [2]); b = Expand(a, [1,2,3,1,1]); r = Reshape(b, [0,6,-1,8]); "
        "t = Transpose<perm=[0,1,3,2]>(r); s = MatMul(q, t); y = Softmax<axis=-1>(s)",
    )
    after = simplified(model, batch=2, past=7)
    assert "Expand" not in after.graph.operator_counts()
    assert compare_models(model, after, bindings=[{"batch": 1, "past": 0}]).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("queries", "repeated"),
    [
        pytest.param("batch, tokens, [-1], [8]", 0, id="neither is 0"),
        pytest.param("batch, tokens, [6], [8]", 1, id="both may be"),
    ],
)
def test_so_they_are_where_batch_and_tokens_are_open(queries: str, repeated: int) -> None:
    """An exporter's view of the queries says that there are tokens: beside a size of 0 none could be inferred."""
    model = parse(
        "float[batch,tokens,48] x, float[batch,2,past,8] k, float[batch,2,tokens,8] new",
        "batch = Shape<start=0, end=1>(x); tokens = Shape<start=1, end=2>(x); past = Shape<start=2, end=3>(k); "
        f"total = Add(past, tokens); heads = Concat<axis=0>({queries}); h = Reshape(x, heads); "
        "q = Transpose<perm=[0,2,1,3]>(h); c = Concat<axis=2>(k, new); a = Unsqueeze(c, [2]); "
        "b = Expand(a, [1,1,3,1,1]); joined = Concat<axis=0>(batch, [6], total, [8]); r = Reshape(b, joined); "
        "t = Transpose<perm=[0,1,3,2]>(r); y = MatMul(q, t)",
    )
    after = simplified(model, batch=2, past=7, tokens=3)
    assert after.graph.operator_counts().get("Expand", 0) == repeated
    sizes = {"batch": 1, "past": 0, "tokens": 4}
    assert compare_models(model, after, bindings=[sizes]).verdict is EqualityVerdict.EQUAL


def test_heads_that_are_repeated_as_a_whole_stay() -> None:
    """Heads 0, 1, 0, 1, 0, 1 share keys, not 0, 0, 0, 1, 1, 1: they do not lie side by side."""
    model = parse(
        "float[1,6,1,8] q, float[1,2,5,8] k",
        "a = Unsqueeze(k, [1]); b = Expand(a, [1,3,2,5,8]); r = Reshape(b, [1,6,5,8]); "
        "t = Transpose<perm=[0,1,3,2]>(r); y = MatMul(q, t)",
    )
    assert simplified(model).graph.operator_counts()["Expand"] == 1


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
    assert simplified(model).graph.operator_counts()["Expand"] == 1


def stack(shape: str, matrices: str, stacks: str) -> onnx.ModelProto:
    """Keys that torch makes one stack of several to transpose them."""
    body = f"s = Reshape(x, [{matrices}]); t = Transpose<perm=[0,2,1]>(s); y = Reshape(t, [{stacks}])"
    return parse(f"float[{shape}] x", body)


@pytest.mark.parametrize(("shape", "stacks"), [("a,3,4,5", "-1,3,5,4"), ("2,b,4,5", "2,-1,5,4")])
def test_a_stack_of_matrices_is_transposed_as_it_is(shape: str, stacks: str) -> None:
    assert simplified(stack(shape, "-1,4,5", stacks)).graph.operator_counts() == {"Transpose": 1}


def test_a_stack_of_matrices_that_may_be_empty_stays() -> None:
    """Of an empty one nobody knows the size that is to be inferred."""
    assert simplified(stack("2,3,n,5", "6,-1,5", "2,3,5,-1")).graph.operator_counts() == {"Reshape": 2, "Transpose": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-dynamo", "llama-dynamo-raw", "llama-torchscript"])
def test_no_export_of_llama_copies_its_keys(name: str) -> None:
    model = zoo.load(name)
    assert "Expand" in {node.op_type for node in model.graph.node}
    assert "Expand" not in simplified(model).graph.operator_counts()


def test_a_head_that_is_infinite_spoils_no_other() -> None:
    model, (q, k, v) = step(past="5", joined="1,6,5,8"), map(ones, (6, 2, 2), (1, 5, 5))
    k[0, 1] = np.inf
    after = simplified(model)
    assert "Expand" not in after.graph.operator_counts()
    found = compare_models(model, after, inputs={"q": q, "k": k, "v": v}, exact=True, keep_nonfinite=True)
    assert found.verdict is EqualityVerdict.EQUAL


def ones(heads: int, rows: int) -> zoo.Array:
    return np.ones((1, heads, rows, 8), np.float32)


# -- rows of which nothing is seen -------------------------------------------------------------------------------------

LOWEST = float(np.finfo(np.float32).min)
KERNELS, FUNCTIONS = (23, 24), (25, 26)
"""Opsets in which ONNX Runtime has a kernel of Attention, and in which it inlines the function."""


def attended(opset: int, masks: Sequence[float], scores: Sequence[float]) -> tuple[Any, Any]:
    """Rows with one number all over the mask, and one that is added to all scores but the first, which is 1 more.

    What Attention makes of them, and what the weights are that Softmax makes.
    """
    rows = len(masks)
    query = np.ones((1, rows, 2), np.float32)
    query[0, :, 1] = scores
    keys, values = np.array([[[1, 1], [0, 1], [0, 1]]], np.float32), np.eye(3, dtype=np.float32)[None]
    mask = np.broadcast_to(np.array(masks, np.float32)[:, None], (rows, 3)).copy()
    feeds: dict[str, NDArray[Any]] = {"q": query, "k": keys, "v": values, "m": mask}
    inputs = f"float[1,{rows},2] q, float[1,3,2] k, float[1,3,3] v, float[{rows},3] m"
    attention = "y = Attention<q_num_heads=1, kv_num_heads=1, scale=1.0>(q, k, v, m)"
    plain = "t = Transpose<perm=[0,2,1]>(k); s = MatMul(q, t); r = Add(s, m); y = Softmax(r)"
    return tuple(run(parse(inputs, body, opset=opset), feeds)["y"][0] for body in (attention, plain))


@pytest.mark.parametrize("opset", [*KERNELS, *FUNCTIONS])
def test_of_rows_that_are_nan_attention_makes_nan_or_nothing(opset: int) -> None:
    """This is what proofs say of it where values may be infinite; all else is the softmax."""
    far = [np.inf, -np.inf, np.nan, 0.0, -1e4, -1e38]
    found, weights = attended(opset, *zip(*((mask, score) for mask in far for score in far), strict=True))
    odd = np.isnan(weights)
    assert odd.any() and (odd.all(axis=1) == odd.any(axis=1)).all()
    assert (np.isnan(found[odd]) | (found[odd] == 0)).all()
    np.testing.assert_allclose(found[~odd], weights[~odd], atol=1e-6)


@pytest.mark.parametrize("opset", KERNELS)
def test_the_kernel_of_attention_takes_the_least_number_in_a_mask_for_minus_infinity(opset: int) -> None:
    """Of such a row it makes nothing, where Softmax has equal weights; and so it does where scores are no numbers."""
    masks = [LOWEST, float(np.nextafter(np.float32(LOWEST), np.float32(0))), -np.inf, -np.inf, LOWEST, LOWEST]
    found, weights = attended(opset, masks, [0, 0, 0, np.inf, np.nan, -np.inf])
    np.testing.assert_allclose(weights[:2], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(found, [[0] * 3, weights[1], *[[0] * 3] * 4], rtol=1e-6)


@needs("onnxruntime", "1.32", "it treats these opsets as the others")
@pytest.mark.parametrize("opset", FUNCTIONS)
def test_the_function_of_attention_does_not(opset: int) -> None:
    found, weights = attended(opset, [LOWEST], [0])
    np.testing.assert_allclose(found, weights, rtol=1e-6)


def heads(masked: float, *, guarded: bool) -> onnx.ModelProto:
    """Attention of two heads as it is exported, with a mask of truth values."""
    guard = "n = IsNaN(p); g = Where(n, zero, p); o = MatMul(g, w)" if guarded else "o = MatMul(p, w)"
    return parse(
        "float[1,16,2,64] q, float[1,16,2,64] k, float[1,16,2,64] v, bool[1,1,16,16] seen",
        "t = Transpose<perm=[0,2,1,3]>(q); u = Transpose<perm=[0,2,3,1]>(k); w = Transpose<perm=[0,2,1,3]>(v); "
        f"m = Where(seen, zero, low); s = MatMul(t, u); r = Add(s, m); p = Softmax<axis=-1>(r); {guard}; "
        "y = Transpose<perm=[0,2,1,3]>(o)",
        {"zero": np.array(0, np.float32), "low": np.array(masked, np.float32)},
        outputs="float[1,16,2,64] y",
        opset=23,
    )


def given(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """What each row sees is drawn; the first sees nothing."""
    drawn: dict[str, NDArray[Any]] = {name: rng.standard_normal((1, 16, 2, 64)).astype(np.float32) for name in "qkv"}
    seen = rng.integers(0, 2, (1, 1, 16, 16)).astype(bool)
    seen[0, 0, 0] = False
    return drawn | {"seen": seen}


@pytest.mark.parametrize(("masked", "written"), [(-1e4, True), (LOWEST, False), (-np.inf, False)])
def test_attention_is_written_where_no_mask_has_the_least_number(masked: float, written: bool) -> None:
    model, feeds = heads(masked, guarded=False), given(np.random.default_rng(0))
    result = graphopt.optimize(model, cost="analytic", seconds=5)
    assert ("Attention" in {node.op_type for node in result.model.graph.node}) == written
    expected, found = run(model, feeds)["y"], run(result.model, feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_no_attention_is_written_where_a_number_of_its_mask_is_the_least() -> None:
    """A number that a rule binds is asked of as a tensor is."""
    low, seen = real("low"), tensor("seen", "1 1 S L")
    masked = op.Where(seen, 0.0, low)
    scores = op.Transpose(queries, perm=HEADS_IN_FRONT) @ op.Transpose(keys, perm=KEYS_LAST)
    weights = op.Softmax(scores + masked, axis=-1) @ op.Transpose(values, perm=HEADS_IN_FRONT)
    attention = op.Attention(*FLAT, masked, q_num_heads=fn.size("H"), kv_num_heads=fn.size("H"), scale=1.0)
    made = op.Reshape(attention, fn.concat(0, 0, fn.sizes("H V")))
    sizes = tuple(fn.size(axis) > 0 for axis in "BSLHDV")
    rule = Rule("masked_by_a_number", op.Transpose(weights, perm=HEADS_IN_FRONT), made, when=sizes)
    allowed = []
    for number in (-1e4, LOWEST):
        loaded = onnx_io.load_model(heads(number, guarded=False))
        inference.infer_graph(loaded.graph)
        (match,) = find_matches(rule, loaded.graph)
        allowed.append(Gate().allows(Site.from_match(loaded.graph, match)))
    assert allowed == [True, False]


GUARDS = ("push_nan_guard_below_matmul", "push_nan_guard_below_transpose", "fuse_guarded_masked_attention")
BY_NAME = {rule.name: rule for rule in rule_library.load_library().all_rules}


def fused(model: onnx.ModelProto, gate: Gate) -> onnx.ModelProto:
    """The model with the guard moved below what is to be attention, and that written, as far as it is allowed."""
    loaded = onnx_io.load_model(model)
    inference.infer_graph(loaded.graph)
    for name in GUARDS:
        for match in find_matches(BY_NAME[name], loaded.graph):
            if gate.allows(Site.from_match(loaded.graph, match)):
                loaded.graph.apply(build_patch(loaded.graph, match))
    return onnx_io.to_proto(loaded)


def odd(rng: np.random.Generator, feeds: dict[str, NDArray[Any]]) -> None:
    """Put infinities and NaN among the queries and keys."""
    for name in "qk":
        places = rng.integers(0, feeds[name].size, 2)
        feeds[name].reshape(-1)[places] = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), 2)


@pytest.mark.parametrize("masked", [-np.inf, -1e4])
def test_attention_behind_a_guard_keeps_every_row(masked: float) -> None:
    model = heads(masked, guarded=True)
    after = fused(model, Gate())
    ops = [node.op_type for node in after.graph.node]
    assert "Softmax" not in ops and ops.count("Attention") == ops.count("IsNaN") == 1
    rng = np.random.default_rng(0)
    for run_ in range(20):
        feeds = given(rng)
        if run_:
            odd(rng, feeds)
        expected, found = run(model, feeds)["y"], run(after, feeds)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        if np.isinf(masked):
            assert not expected[0, 0].any()


@pytest.mark.parametrize(
    ("masked", "gate"),
    [
        pytest.param(LOWEST, Gate(), id="the least number"),
        pytest.param(-np.inf, Gate(keep_nonfinite=True), id="keep what is not finite"),
    ],
)
def test_elsewhere_the_softmax_behind_a_guard_stays(masked: float, gate: Gate) -> None:
    ops = [node.op_type for node in fused(heads(masked, guarded=True), gate).graph.node]
    assert "Attention" not in ops and "Softmax" in ops


@pytest.mark.slow
@pytest.mark.parametrize(("name", "written"), [("bert-torchscript", 2), ("bert-dynamo", 0)])
def test_an_export_with_guards_in_an_opset_that_has_attention(name: str, written: int) -> None:
    """TorchScript masks with -inf, dynamo with the least number, which the kernel would take for it."""
    result = graphopt.optimize(zoo.load(name), cost="analytic", seconds=300, target_opset=23)
    assert [node.op_type for node in result.model.graph.node].count("Attention") == written
    assert compare_models(zoo.load(name), result.model).verdict is EqualityVerdict.EQUAL
