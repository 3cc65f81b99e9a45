"""Models split among devices by rules: shards and their collective operations together give what the whole does."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from graphopt.base.errors import UsageError
from graphopt.io import onnx_io
from graphopt.io.onnx_io import load_typed_model
from graphopt.partition.collectives import Operation
from graphopt.partition.sharding import shard_graph
from graphopt.partition.shards import Shards, shard_model
from tests import zoo
from tests.graphs import weight
from tests.text import parse

B, S, E, H = 2, 5, 16, 4


def session(model: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def run_shards(shards: Shards, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run each device's models with what it has itself; only the joins bring values of several devices together."""
    known: list[dict[str, Any]] = [dict(feeds) for _ in range(shards.count)]
    for segment in shards.segments:
        for device, model in enumerate(segment.models):
            if model.graph.outputs:
                opened = session(onnx_io.to_proto(model))
                given = {item.name: known[device][item.name] for item in opened.get_inputs()}
                names = [item.name for item in opened.get_outputs()]
                known[device].update(zip(names, opened.run(names, given), strict=True))
        for join in segment.joins:
            parts = [known[device][name] for device, name in enumerate(join.parts)]
            is_sum = join.operation is Operation.ALL_REDUCE
            result = np.sum(parts, axis=0) if is_sum else np.concatenate(parts, axis=join.axis)
            for values in known:
                values[join.result] = result.astype(parts[0].dtype)
    for values in known[1:]:
        for name in shards.outputs.values():
            np.testing.assert_array_equal(values[name], known[0][name])
    return {name: known[0][value] for name, value in shards.outputs.items()}


def check(model: onnx.ModelProto, count: int, feeds: Mapping[str, Any] | None = None) -> Shards:
    """Split a model, and compare what the shards give with what it gives itself."""
    feeds = zoo.inputs(model) if feeds is None else feeds
    shards = shard_model(load_typed_model(model), count)
    own = session(model)
    right = dict(zip([item.name for item in own.get_outputs()], own.run(None, dict(feeds)), strict=True))
    found = run_shards(shards, feeds)
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(value).max()))
    return shards


def joins(shards: Shards) -> Counter[Operation]:
    return Counter(join.operation for segment in shards.segments for join in segment.joins)


def mlp(activation: str) -> onnx.ModelProto:
    weights = {"w": weight(E, 4 * E), "b": weight(4 * E), "v": weight(4 * E, E), "c": weight(E)}
    body = f"h = MatMul(x, w); i = Add(h, b); {activation}; o = MatMul(a, v); y = Add(o, c)"
    return parse(f"float[{B},{S},{E}] x", body, weights, outputs=f"float[{B},{S},{E}] y", opset=20)


ERF_GELU = (
    "k = Constant<value_float=1.4142135>(); d = Div(i, k); e = Erf(d); n = Constant<value_float=1.0>(); p = Add(e, n);"
    " m = Mul(i, p); half = Constant<value_float=0.5>(); a = Mul(m, half)"
)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("activation", ["a = Relu(i)", "a = Gelu(i)", ERF_GELU], ids=["relu", "gelu", "erf"])
def test_an_mlp_needs_one_all_reduce(activation: str, count: int) -> None:
    shards = check(mlp(activation), count)
    assert joins(shards) == {Operation.ALL_REDUCE: 1}
    assert len(shards.segments) == 2
    weights = [model.graph.weight_bytes for model in shards.segments[0].models]
    assert sum(weights) <= 4 * (8 * E * E + 4 * E) + count * 32, "each device has its part of the weights"


def test_a_gated_mlp_needs_one_all_reduce() -> None:
    weights = {"w": weight(E, 4 * E), "u": weight(E, 4 * E), "v": weight(4 * E, E)}
    body = "h = MatMul(x, w); s = Sigmoid(h); g = Mul(h, s); i = MatMul(x, u); a = Mul(g, i); y = MatMul(a, v)"
    model = parse(f"float[{B},{S},{E}] x", body, weights, outputs=f"float[{B},{S},{E}] y", opset=20)
    shards = check(model, 2)
    assert joins(shards) == {Operation.ALL_REDUCE: 1}
    assert shards.rules == {"shard_swish_gated_mlp_in_2_parts": 1}


def test_a_split_of_the_model_is_none_between_devices() -> None:
    """Both halves of a gated unit are read by one operator, whoever has computed them."""
    weights = {"w": weight(E, 2 * E), "v": weight(E, E), "half": np.array([E, E])}
    body = "h = MatMul(x, w); a, b = Split<axis=-1>(h, half); s = Sigmoid(b); g = Mul(a, s); y = MatMul(g, v)"
    check(parse(f"float[{B},{S},{E}] x", body, weights, outputs=f"float[{B},{S},{E}] y", opset=17), 2)
    body = "h = MatMul(x, w); r = Relu(h); a, b = Split<axis=-1>(r, half); s = Sigmoid(b); y = Mul(a, s)"
    check(parse(f"float[{B},{S},{E}] x", body, weights, outputs=f"float[{B},{S},{E}] y", opset=17), 2)


def attention(mask: str = "") -> onnx.ModelProto:
    weights: dict[str, Any] = {name: weight(E, E) for name in ("wq", "wk", "wv", "wo")}
    weights |= {"bq": weight(E), "heads": np.array([0, 0, H, E // H]), "flat": np.array([0, 0, E])}
    weights |= {"scale": np.float32(0.5), "m": np.where(np.eye(S), 0, -9).astype(np.float32)[None, None]}
    body = (
        "q0 = MatMul(x, wq); q1 = Add(q0, bq); q2 = Reshape(q1, heads); q = Transpose<perm=[0,2,1,3]>(q2);"
        "k0 = MatMul(x, wk); k2 = Reshape(k0, heads); k = Transpose<perm=[0,2,3,1]>(k2);"
        "v0 = MatMul(x, wv); v2 = Reshape(v0, heads); v = Transpose<perm=[0,2,1,3]>(v2);"
        f"s = MatMul(q, k); t = Mul(s, scale); {mask} p = Softmax<axis=-1>({'u' if mask else 't'}); a = MatMul(p, v);"
        "b = Transpose<perm=[0,2,1,3]>(a); c = Reshape(b, flat); y = MatMul(c, wo)"
    )
    return parse(f"float[{B},{S},{E}] x", body, weights, outputs=f"float[{B},{S},{E}] y", opset=20)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mask", ["", "u = Add(t, m);"], ids=["plain", "masked"])
def test_attention_is_split_by_heads_and_needs_one_all_reduce(mask: str, count: int) -> None:
    shards = check(attention(mask), count)
    assert joins(shards) == {Operation.ALL_REDUCE: 1}
    first = shards.segments[0].models[0].graph
    assert not first.operator_counts().get("Split"), "queries, keys and values are projected by heads"


def test_heads_that_do_not_divide_stay_together() -> None:
    shards = check(attention(), 3)
    assert joins(shards)[Operation.ALL_GATHER] > 0


def conv_net() -> onnx.ModelProto:
    weights = {
        "w": weight(8, 3, 3, 3),
        "b": weight(8),
        "d": weight(8, 1, 3, 3),
        "v": weight(6, 8, 1, 1),
        "c": weight(6),
    }
    weights |= {"u": weight(5, 6, 3, 3), "g": weight(5, 4)}
    body = (
        "a = Conv<pads=[1,1,1,1]>(x, w, b); r = Relu(a); e = Conv<group=8,pads=[1,1,1,1]>(r, d); s = Relu(e);"
        "p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(s); f = Conv(p, v, c); h = Relu(f); i = Conv(h, u);"
        "j = GlobalAveragePool(i); k = Flatten(j); y = Gemm(k, g)"
    )
    return parse("float[2,3,16,16] x", body, weights, outputs="float[2,4] y", opset=20)


@pytest.mark.parametrize("count", [2, 4])
def test_convolutions_are_split_by_output_channels_then_by_input_channels(count: int) -> None:
    shards = check(conv_net(), count)
    assert joins(shards)[Operation.ALL_REDUCE] == 1, "one for three convolutions"
    assert f"shard_conv_by_groups_in_{count}_parts" in shards.rules


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["bert-torchscript", "vit-torchscript", "llama-torchscript", "resnet18-torchscript", "mobilenetv3-dynamo"]
)
def test_exports_are_split(name: str) -> None:
    shards = check(zoo.load(name), 2)
    assert joins(shards)[Operation.ALL_REDUCE] > 0


def test_one_device_and_what_no_rule_splits_stay_whole() -> None:
    model = load_typed_model(parse("float[4] x", "y = Relu(x)", {}, outputs="float[4] y", opset=20))
    assert not shard_graph(model.graph, 1).is_split
    with pytest.raises(UsageError, match="no operator of the model is split by a proved rule among 2 devices"):
        shard_model(model, 2)


def test_random_numbers_are_drawn_by_one_device_only() -> None:
    weights = {"w": weight(E, E), "v": weight(E, E)}
    body = "r = RandomNormalLike(x); s = Add(x, r); h = MatMul(s, w); y = MatMul(h, v)"
    model = load_typed_model(parse(f"float[2,{E}] x", body, weights, outputs=f"float[2,{E}] y", opset=20))
    with pytest.raises(UsageError, match=r"\(RandomNormalLike\) cannot be computed by several devices at once"):
        shard_model(model, 2)
