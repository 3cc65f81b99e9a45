"""Rules in small models: branches that become one convolution, and trades that a search may make, one after another."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from graphopt.base import ort
from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.operators import inference
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.simplify import simplify_graph
from graphopt.rewrite.sites import Site
from graphopt.rules import RULES, TRADES
from tests.text import parse, run

BY_NAME = {rule.name: rule for rule in TRADES}


def drawn(**shapes: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Weights of these shapes; those whose names begin with `var` are positive."""
    rng = np.random.default_rng(0)
    return {
        name: rng.uniform(0.5 if name.startswith("var") else -1, 1, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def traded(model: ModelProto, *names: str) -> Counter[str]:
    """The operators left by these trades, each where it matches first, and then by the rules that always pay."""
    loaded = onnx_io.load_model(model)
    graph = loaded.graph
    inference.infer_graph(graph)
    for name in names:
        graph.apply(build_patch(graph, next(find_matches(BY_NAME[name], graph))))
    simplify_graph(graph, RULES, ())
    graph.check_invariants()
    found = compare_models(model, onnx_io.to_proto(loaded))
    assert found.verdict is EqualityVerdict.EQUAL, found
    return Counter(graph.operator_counts())


def matches(model: ModelProto, name: str) -> int:
    graph = onnx_io.load_model(model).graph
    inference.infer_graph(graph)
    return len(list(find_matches(BY_NAME[name], graph)))


# -- branches beside a convolution ---------------------------------------------------------------------------------

IMAGE = "float[N, 4, H, 6] x"
BN = drawn(scale=(4,), offset=(4,), mean=(4,), var=(4,))
DENSE = drawn(w=(4, 4, 3, 3), t=(4, 4, 3, 3), v=(4, 4, 1, 1), u=(4, 4, 3, 1), b=(4,), d=(4,))
DEPTHWISE = drawn(w=(4, 1, 3, 3), t=(4, 1, 3, 3), v=(4, 1, 1, 1), u=(4, 1, 3, 1), b=(4,), d=(4,))
GROUPED = drawn(w=(4, 2, 3, 3), t=(4, 2, 3, 3), v=(4, 2, 1, 1), u=(4, 2, 3, 1), b=(4,), d=(4,))
GROUPS = {"dense": (1, DENSE), "depthwise": (4, DEPTHWISE), "grouped": (2, GROUPED)}
NORMALIZED = ", scale, offset, mean, var"
BRANCHES = {
    "two convolutions": "a = Conv<pads=[1,1,1,1],G>(x, w, b); c = Conv<pads=[1,1,1,1],G>(x, t, d); y = Add(a, c)",
    "their difference": "a = Conv<pads=[1,1,1,1],G>(x, w, b); c = Conv<pads=[1,1,1,1],G>(x, t); y = Sub(a, c)",
    "a smaller kernel": "a = Conv<pads=[1,1,1,1],G>(x, w, b); c = Conv<G>(x, v, d); y = Add(c, a)",
    "less a smaller kernel": "a = Conv<pads=[1,1,1,1],G>(x, w); c = Conv<G>(x, v, d); y = Sub(c, a)",
    "a narrower kernel": "a = Conv<pads=[1,1,1,1],G>(x, w); c = Conv<pads=[1,0,1,0],G>(x, u, d); y = Add(a, c)",
    "strides": "a = Conv<pads=[1,1,1,1],strides=[2,1],G>(x, w); c = Conv<strides=[2,1],G>(x, v); y = Add(a, c)",
    "pads on one side": "a = Conv<pads=[0,0,2,2],G>(x, w); c = Conv<G>(x, v); y = Add(a, c)",
    "dilations": "a = Conv<pads=[2,2,2,2],dilations=[2,2],G>(x, w); c = Conv<G>(x, v, d); y = Add(a, c)",
    "the input": "a = Conv<pads=[1,1,1,1],G>(x, w, b); y = Add(x, a)",
    "less the input": "a = Conv<pads=[1,1,1,1],G>(x, w); y = Sub(a, x)",
    "the input less it": "a = Conv<pads=[2,2,2,2],dilations=[2,2],G>(x, w, b); y = Sub(x, a)",
    "a batch normalization": "a = Conv<pads=[1,1,1,1],G>(x, w); c = BatchNormalization(xBN); y = Add(a, c)",
    "a scaled input": "a = Conv<pads=[1,1,1,1],G>(x, w); c = Mul(x, s); y = Add(a, c)",
    "RepVGG in training": """a = Conv<pads=[1,1,1,1],G>(x, w); a1 = BatchNormalization(aBN); c = Conv<G>(x, v);
        c1 = BatchNormalization(cBN); e = BatchNormalization(xBN); f = Add(a1, c1); y = Add(f, e)""",
    "FastViT in training": """a = Conv<pads=[1,1,1,1],G>(x, w); a1 = BatchNormalization(aBN); c = Conv<G>(x, v);
        c1 = BatchNormalization(cBN); e = BatchNormalization(xBN); f = Add(a1, c1); g = Add(f, e);
        h = BatchNormalization(xBN); i = Sub(g, h); j = Mul(i, s); y = Add(x, j)""",
}


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("branches", BRANCHES)
def test_branches_become_one_convolution(branches: str, groups: str) -> None:
    group, weights = GROUPS[groups]
    body = BRANCHES[branches].replace("G>", f"group={group}>").replace("BN)", f"{NORMALIZED})")
    model = parse(IMAGE, body, weights | BN | drawn(s=(4, 1, 1)), outputs="float[N, 4, P, Q] y")
    assert traded(model) == {"Conv": 1}


def test_branches_along_a_line() -> None:
    body = "a = Conv<pads=[2,2]>(x, w, b); c = Conv(x, v); e = Add(a, c); y = Add(e, x)"
    model = parse("float[N, 3, L] x", body, drawn(w=(3, 3, 5), v=(3, 3, 1), b=(3,)), outputs="float[N, 3, L] y")
    assert traded(model) == {"Conv": 1}


APART = {
    "other strides": "a = Conv<pads=[1,1,1,1],strides=[2,1]>(x, w); c = Conv<strides=[3,1]>(x, v); y = Add(a, c)",
    "another input": "a = Conv<pads=[1,1,1,1]>(x, w); r = Relu(x); c = Conv(r, v); y = Add(a, c)",
    "a shifted kernel": "a = Conv<pads=[1,1,1,1]>(x, w); c = Conv<pads=[2,0,0,2]>(x, v); y = Add(a, c)",
    "pads on one side beside the input": "a = Conv<pads=[2,2,0,0]>(x, w); y = Add(a, x)",
    "a convolution that is read twice": "a = Conv<pads=[1,1,1,1]>(x, w); c = Add(a, x); y = Concat<axis=1>(a, c)",
    "a batch normalization in training": """a = Conv<pads=[1,1,1,1]>(x, w);
        c, m1, v1 = BatchNormalization<training_mode=1>(xBN); y = Add(a, c)""",
}


@pytest.mark.parametrize("branches", APART)
def test_what_is_not_one_convolution_stays(branches: str) -> None:
    body = APART[branches].replace("BN)", f"{NORMALIZED})")
    before = parse(IMAGE, body, DENSE | BN, outputs="float[N, R, P, Q] y")
    graph = onnx_io.load_model(before).graph
    inference.infer_graph(graph)
    ops = graph.operator_counts()
    simplify_graph(graph, RULES, ())
    assert graph.operator_counts() == ops


# -- one product after another -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "left"), [(8, {"MatMul": 1, "Add": 1}), (2, {"MatMul": 2, "Add": 2})], ids=["wide", "narrow"]
)
def test_products_become_one_where_that_is_no_more_work(inner: int, left: Mapping[str, int]) -> None:
    weights = drawn(w=(6, inner), c=(inner,), v=(inner, 6), d=(6,))
    body = "a = MatMul(x, w); a1 = Add(a, c); e = MatMul(a1, v); y = Add(e, d)"
    assert traded(parse("float[B, L, 6] x", body, weights, outputs="float[B, L, 6] y")) == left


@pytest.mark.parametrize(("channels", "count"), [(8, 1), (2, 2)], ids=["wide", "narrow"])
def test_a_pointwise_convolution_goes_into_the_one_before_where_that_is_no_more_work(channels: int, count: int) -> None:
    weights = drawn(w=(channels, 4, 3, 3), b=(channels,), v=(4, channels, 1, 1), d=(4,))
    body = "a = Conv<pads=[1,1,1,1],strides=[2,2]>(x, w, b); y = Conv(a, v, d)"
    assert traded(parse(IMAGE, body, weights, outputs="float[N, 4, P, Q] y")) == {"Conv": count}


# -- trades --------------------------------------------------------------------------------------------------------


def test_a_sum_goes_into_the_convolution_beside_it() -> None:
    weights = drawn(w=(4, 4, 3, 3), v=(4, 4, 1, 1))
    body = "a = Conv(x, v); r = Relu(a); c = Conv<pads=[1,1,1,1]>(r, w); y = Add(c, x)"
    model = parse(IMAGE, body, weights, outputs="float[N, 4, H, 6] y")
    assert traded(model, "absorb_add_into_conv") == {"Conv": 2, "Concat": 1, "Relu": 1}


FIRE = "a = Conv(x, v, b); a1 = Relu(a); c = Conv<pads=[1,1,1,1]>(x, w, d); c1 = Relu(c); y = Concat<axis=1>(a1, c1)"


def test_a_fire_module_becomes_one_convolution() -> None:
    model = parse(IMAGE, FIRE, DENSE, outputs="float[N, 8, H, 6] y")
    names = ("widen_conv_beside_larger_conv", "merge_2_parallel_convs", "merge_pointwise_of_split_2")
    assert traded(model, *names)["Conv"] == 1
    names = ("widen_conv_beside_larger_conv", "merge_pointwise_of_concat", "merge_concat_of_2_convs")
    assert traded(model, *names) == {"Conv": 1, "Relu": 1}


def test_convolutions_of_other_geometry_are_not_merged() -> None:
    assert matches(parse(IMAGE, FIRE, DENSE, outputs="float[N, 8, H, 6] y"), "merge_2_parallel_convs") == 0


QKV = """q = MatMul(x, wq); q1 = Add(q, b); k = MatMul(x, wk); k1 = Add(k, b); v = MatMul(x, wv); v1 = Add(v, b);
    a = Mul(q1, k1); y = Sub(a, v1)"""


def test_queries_keys_and_values_are_one_product_and_apart_again() -> None:
    model = parse("float[B, L, 6] x", QKV, drawn(wq=(6, 4), wk=(6, 4), wv=(6, 4), b=(4,)), outputs="float[B, L, 4] y")
    merged = traded(model, "merge_3_parallel_matmul_adds")
    assert merged == {"MatMul": 1, "Add": 1, "Split": 1, "Mul": 1, "Sub": 1}
    both = ("merge_3_parallel_matmul_adds", "split_matmul_add_of_split_3")
    assert traded(model, *both) == {"MatMul": 3, "Add": 3, "Mul": 1, "Sub": 1}


def test_parallel_gemms_are_merged() -> None:
    body = "a = Gemm<transB=1>(x, w, b); c = Gemm<transB=1>(x, v, d); e = Relu(a); y = Concat<axis=1>(e, c)"
    model = parse("float[N, 5] x", body, drawn(w=(3, 5), v=(4, 5), b=(3,), d=(4,)), outputs="float[N, 7] y")
    assert traded(model, "merge_2_parallel_transposed_gemms")["Gemm"] == 1


JOINED = "j = Concat<axis=1>(x, z); y = Conv<pads=[1,1,1,1]>(j, w, b)"


def test_a_convolution_of_joined_channels_is_a_sum_and_back() -> None:
    inputs = "float[N, 4, H, 6] x, float[N, 2, H, 6] z"
    model = parse(inputs, JOINED, drawn(w=(3, 6, 3, 3), b=(3,)), outputs="float[N, 3, H, 6] y")
    assert traded(model, "split_conv_of_concat_2") == {"Conv": 2, "Add": 1}
    both = ("split_conv_of_concat_2", "merge_sum_of_convs_of_two_inputs")
    assert traded(model, *both) == {"Conv": 1, "Concat": 1}


def test_groups_are_split_merged_and_filled_with_zeros() -> None:
    model = parse(IMAGE, "y = Conv<group=2>(x, w, b)", GROUPED, outputs="float[N, 4, P, Q] y")
    assert traded(model, "split_conv_of_2_groups") == {"Split": 1, "Conv": 2, "Concat": 1}
    assert traded(model, "split_conv_of_2_groups", "merge_convs_of_split_2_into_groups") == {"Conv": 1}
    assert traded(model, "replace_grouped_conv_with_dense_conv") == {"Conv": 1}


MIXED = """a, b, c = Split<axis=1>(x, sizes); d = Conv<group=2, pads=[1,1,1,1], strides=[2,2]>(a, w)
    e = Conv<group=3, pads=[2,2,2,2], strides=[2,2]>(b, v, bias); f = Conv<group=1, pads=[0,0,0,0], strides=[2,2]>(c, u)
    y = Concat<axis=1>(d, e, f)"""


def test_kernels_of_several_sizes_for_parts_of_the_channels_become_the_largest() -> None:
    """As in MixNet and CoAT; the middle one is the largest, and has a bias."""
    weights = drawn(w=(2, 1, 3, 3), v=(3, 1, 5, 5), u=(1, 1, 1, 1), bias=(3,)) | {"sizes": np.array([2, 3, 1])}
    model = parse("float[N, 6, H, 7] x", MIXED, weights, outputs="float[N, 6, P, 4] y")
    assert traded(model, "merge_depthwise_convs_of_split_3") == {"Conv": 1}


def test_convolutions_of_unequal_parts_become_one_of_the_whole() -> None:
    body = "a, b = Split<axis=1>(x, sizes); c = Conv(a, w); d = Conv(b, v, bias); y = Concat<axis=1>(c, d)"
    weights = drawn(w=(4, 2, 1, 1), v=(1, 3, 1, 1), bias=(1,)) | {"sizes": np.array([2, 3])}
    model = parse("float[N, 5, H, 6] x", body, weights, outputs="float[N, 5, H, 6] y")
    assert traded(model, "merge_convs_of_split_2_into_dense_conv") == {"Conv": 1}


def test_a_chain_along_a_line_becomes_one_in_the_plane() -> None:
    body = """a = Conv<pads=[1,1]>(x, w, b); a1 = LeakyRelu(a); c = Conv<pads=[1,1]>(a1, v); y = Tanh(c)"""
    model = parse("float[N, 3, L] x", body, drawn(w=(3, 3, 3), v=(3, 3, 3), b=(3,)), outputs="float[N, 3, L] y")
    twice = ("replace_conv1d_with_conv2d",) * 2
    apart = traded(model, *twice)
    assert (apart["Squeeze"], apart["Unsqueeze"]) == (2, 2)
    whole = traded(model, *twice, "hoist_squeeze_over_pointwise")
    assert whole == {"Unsqueeze": 1, "Conv": 2, "LeakyRelu": 1, "Squeeze": 1, "Tanh": 1}


def test_a_slope_for_each_channel_is_written_out() -> None:
    model = parse("float[N, 3, H, 5] x", "y = PRelu(x, s)", drawn(s=(3, 1, 1)), outputs="float[N, 3, H, 5] y")
    assert traded(model, "replace_prelu_with_clamps") == {"Relu": 1, "Clip": 1, "Mul": 1, "Add": 1}
    assert traded(model, "replace_prelu_with_relu") == {"Relu": 1, "Mul": 2, "Add": 1}
    of_columns = parse("float[N, 3, H, 5] x", "y = PRelu(x, s)", drawn(s=(5,)), outputs="float[N, 3, H, 5] y")
    assert matches(of_columns, "replace_prelu_with_relu") == 0
    assert traded(of_columns, "replace_prelu_with_clamps") == {"Relu": 1, "Clip": 1, "Mul": 1, "Add": 1}


@pytest.mark.parametrize("batch", ["2", "B"])
def test_tokens_become_one_matrix(batch: str) -> None:
    body = """a = MatMul(x, w); a1 = Add(a, b); e = Gelu(a1); f = MatMul(e, v); f1 = Add(f, d); g = Add(x, f1);
        y = LayerNormalization<axis=-1>(g, scale, shift)"""
    weights = drawn(w=(4, 6), b=(6,), v=(6, 4), d=(4,), scale=(4,), shift=(4,))
    model = parse(f"float[{batch}, 3, 4] x", body, weights, outputs=f"float[{batch}, 3, 4] y", opset=20)
    matrices = ("replace_matmul_add_with_gemm",) * 2
    assert traded(model, *matrices)["Reshape"] == 4
    flat = traded(model, *matrices, "hoist_reshape_over_pointwise", "flatten_binary", "flatten_layer_normalization")
    # two of the views are the same view of x, which only the passes see
    assert flat == {"Reshape": 3, "Gemm": 2, "Gelu": 1, "Add": 1, "LayerNormalization": 1}


@pytest.mark.parametrize("index", ["0", "-1"])
def test_only_the_token_that_is_wanted_is_computed(index: str) -> None:
    body = f"""a = MatMul(x, w); a1 = Add(a, b); e = LayerNormalization<axis=-1>(a1, scale, shift);
        y = Gather<axis=1>(e, {index})"""
    weights = drawn(w=(4, 4), b=(4,), scale=(4,), shift=(4,))
    model = parse("float[B, L, 4] x", body, weights, outputs="float[B, 4] y")
    loaded = onnx_io.load_model(model)
    inference.infer_graph(loaded.graph)
    first = "replace_gather_with_slice" if index == "0" else "replace_gather_of_last_with_slice"
    for name in (
        first,
        *(f"push_slice_above_{what}" for what in ("layer_normalization", "binary_by_column", "matmul")),
    ):
        loaded.graph.apply(build_patch(loaded.graph, next(find_matches(BY_NAME[name], loaded.graph))))
    order = [loaded.graph[v].op for v in loaded.graph.topological_order() if not loaded.graph[v].is_internal]
    assert order == ["Slice", "MatMul", "Add", "LayerNormalization", "Squeeze"]
    assert compare_models(model, onnx_io.to_proto(loaded)).verdict is EqualityVerdict.EQUAL


def test_columns_are_not_taken_before_the_product() -> None:
    body = "a = MatMul(x, w); y = Slice(a, [0], [2], [2])"
    model = parse("float[B, L, 4] x", body, drawn(w=(4, 4)), outputs="float[B, L, 2] y")
    assert matches(model, "push_slice_above_matmul") == 0


def test_products_of_three_are_taken_in_either_order() -> None:
    body = "a = MatMul(x, z); y = MatMul(a, t)"
    inputs = "float[B, 2, 8] x, float[B, 8, 3] z, float[B, 3, 5] t"
    model = parse(inputs, body, outputs="float[B, 2, 5] y")
    assert traded(model, "associate_matmul_to_the_right") == {"MatMul": 2}
    assert traded(model, "associate_matmul_to_the_right", "associate_matmul_to_the_left") == {"MatMul": 2}


def test_a_masked_row_gives_nothing_wherever_that_is_asked() -> None:
    body = """m = Where(mask, 0.0, z); s = Add(x, m); p = Softmax(s); n = IsNaN(p); g = Where(n, 0.0, p);
        w = MatMul(v, t); y = MatMul(g, w)"""
    inputs = "float[B, S, L] x, bool[B, S, L] mask, float[B, L, 4] v"
    weights = {**drawn(t=(4, 2)), "z": np.array(-np.inf, np.float32)}
    model = parse(inputs, body, weights, outputs="float[B, S, 2] y")
    assert traded(model, "push_nan_guard_below_matmul")["IsNaN"] == 1

    loaded = onnx_io.load_model(model)
    inference.infer_graph(loaded.graph)
    (match,) = find_matches(BY_NAME["push_nan_guard_below_matmul"], loaded.graph)
    assert Gate().allows(Site.from_match(loaded.graph, match))
    assert not Gate(keep_nonfinite=True).allows(Site.from_match(loaded.graph, match))
    loaded.graph.apply(build_patch(loaded.graph, match))
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 5), "v": (2, 5, 4)}
    feeds: dict[str, NDArray[Any]] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["mask"] = rng.random((2, 3, 5)) > 0.5
    feeds["mask"][0, 1] = False
    expected, found = run(model, feeds)["y"], run(onnx_io.to_proto(loaded), feeds)["y"]
    assert not expected[0, 1].any()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_guard_stays_before_values_that_may_be_infinite() -> None:
    body = "p = Softmax(x); n = IsNaN(p); g = Where(n, 0.0, p); w = Log(v); y = MatMul(g, w)"
    model = parse("float[3, 5] x, float[5, 2] v", body, outputs="float[3, 2] y")
    graph = onnx_io.load_model(model).graph
    inference.infer_graph(graph)
    (match,) = find_matches(BY_NAME["push_nan_guard_below_matmul"], graph)
    assert not Gate().allows(Site.from_match(graph, match))


def test_the_guard_stays_before_constants_that_are_infinite() -> None:
    body = "p = Softmax(x); n = IsNaN(p); g = Where(n, 0.0, p); y = MatMul(g, v)"
    for largest, count in ((1.0, 1), (np.inf, 0)):
        v = np.array([[1.0, 2.0], [3.0, largest]], np.float32)
        model = parse("float[3, 2] x", body, {"v": v}, outputs="float[3, 2] y")
        assert matches(model, "push_nan_guard_below_matmul") == count


def test_attention_is_written_in_an_opset_that_has_a_kernel_for_it() -> None:
    head = "float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v"
    body = (
        "a = Transpose<perm = [0,2,1,3]>(q); b = Transpose<perm = [0,2,3,1]>(k); c = Transpose<perm = [0,2,1,3]>(v);"
        "s = MatMul(a, b); p = Softmax(s); o = MatMul(p, c); y = Transpose<perm = [0,2,1,3]>(o)"
    )
    loaded = onnx_io.load_model(parse(head, body, outputs="float[1,2,3,4] y", opset=23))
    inference.infer_graph(loaded.graph)
    (fuse,) = (rule for rule in TRADES if rule.name == "fuse_attention")
    (match,) = find_matches(fuse, loaded.graph)
    loaded.graph.apply(build_patch(loaded.graph, match))
    model = onnx_io.to_proto(loaded)
    assert [node.op_type for node in model.graph.node].count("Attention") == 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ones = np.ones((1, 2, 3, 4), np.float32)
    np.testing.assert_allclose(session.run(None, dict.fromkeys("qkv", ones))[0], ones, rtol=1e-6)


@pytest.mark.parametrize(("name", "opset"), [("fuse_rotary_embedding", 23), ("fuse_microsoft_rotary_embedding", 17)])
def test_positions_are_turned_into_heads_by_one_kernel_at_any_size(name: str, opset: int) -> None:
    body = (
        "z = Concat<axis = -1>(f, f); c = Cos(z); s = Sin(z); one = Constant<value_ints = [1]>();"
        "cu = Unsqueeze(c, one); su = Unsqueeze(s, one); half = Constant<value_ints = [2, 2]>();"
        "low, high = Split<axis = 3>(x, half); minus = Neg(high); turned = Concat<axis = -1>(minus, low);"
        "a = Mul(x, cu); b = Mul(turned, su); y = Add(a, b)"
    )
    head = "float[batch,2,seq,4] x, float[1,seq,2] f"
    model = parse(head, body, outputs="float[batch,2,seq,4] y", opset=opset)
    loaded = onnx_io.load_model(model)
    inference.infer_graph(loaded.graph)
    (fuse,) = (rule for rule in TRADES if rule.name == name)
    (match,) = find_matches(fuse, loaded.graph)
    loaded.graph.apply(build_patch(loaded.graph, match))
    result = onnx_io.to_proto(loaded)
    assert [node.op_type for node in result.graph.node].count("RotaryEmbedding") == 1
    rng = np.random.default_rng(0)
    for batch, seq in ((1, 1), (3, 5), (0, 2)):
        feeds = {"x": rng.normal(size=(batch, 2, seq, 4)), "f": rng.normal(size=(1, seq, 2)) * 9}
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        (before,), (after,) = (
            ort.make_cpu_session(each.SerializeToString()).run(None, feeds) for each in (model, result)
        )
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


# -- products and convolutions that are added up, or follow each other -------------------------------------------------

ADAPTED = {"w": (8, 6), "c": (6,), "u": (8, 2), "v": (2, 6)}
FILTERS = {"w": (6, 4, 3, 3), "b": (6,), "u": (2, 4, 3, 3), "v": (6, 2, 1, 1)}


@pytest.mark.parametrize("shape", ["batch, 5, 8", "batch, 8"])
def test_an_adapter_of_low_rank_goes_into_the_weights(shape: str) -> None:
    body = """h = MatMul(x, w); base = Add(h, c); narrow = MatMul(x, u); wide = MatMul(narrow, v);
    scaled = Mul(wide, two); y = Add(base, scaled)"""
    weights = {**drawn(**ADAPTED), "two": np.array(2.0, np.float32)}
    left = traded(parse(f"float[{shape}] x", body, weights=weights))
    assert left == ({"MatMul": 1, "Add": 1} if "5" in shape else {"Gemm": 1})


def test_an_adapter_of_low_rank_goes_into_the_weights_of_a_convolution() -> None:
    body = """base = Conv<pads=[1,1,1,1]>(x, w, b); narrow = Conv<pads=[1,1,1,1]>(x, u); wide = Conv(narrow, v);
    y = Add(base, wide)"""
    assert traded(parse(IMAGE, body, weights=drawn(**FILTERS))) == {"Conv": 1}


@pytest.mark.parametrize(
    ("op", "head", "weights"), [("Conv", IMAGE, FILTERS), ("MatMul", "float[batch, 5, 8] x", ADAPTED)]
)
def test_an_adapter_stays_beside_what_others_read(op: str, head: str, weights: Mapping[str, tuple[int, ...]]) -> None:
    """The full product would be computed twice."""
    body = f"base = {op}(x, w); narrow = {op}(x, u); wide = {op}(narrow, v); y = Add(base, wide); z = Relu(base)"
    assert traded(parse(head, body, drawn(**weights), outputs="y, z")) == {op: 3, "Add": 1, "Relu": 1}


@pytest.mark.parametrize(
    ("channels", "bias", "pads", "count"),
    [(16, "", 1, 1), (16, ", b", 0, 1), (16, ", b", 1, 2), (2, "", 1, 2), (2, ", b", 0, 2)],
)
def test_mixed_channels_are_convolved_at_once(channels: int, bias: str, pads: int, count: int) -> None:
    """A shift of the pixels is not one of the zeros around them, and behind a bottleneck there is less to do."""
    weights = drawn(v=(channels, 4, 1, 1), b=(channels,), w=(8, channels, 3, 3))
    body = f"mixed = Conv(x, v{bias}); y = Conv<pads={[pads] * 4}>(mixed, w)"
    assert traded(parse(IMAGE, body, weights=weights)) == {"Conv": count}
