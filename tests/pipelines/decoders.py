"""A small decoder with a cache, in the operators in which onnxruntime-genai's model builder writes Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS, KEY_HEADS, INNER, TOKENS, POSITIONS = 2, 64, 4, 2, 128, 100, 64
HEAD_WIDTH = WIDTH // HEADS


class _Builder:
    """Collects the nodes and weights of a decoder."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def node(self, op: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = f"/{outputs[0]}/{op}"
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def matmul(self, x: str, name: str, inner: int, outer: int) -> str:
        weight = self.rng.standard_normal((inner, outer)).astype(np.float32) / np.sqrt(np.float32(inner))
        return self.node("MatMul", [x, self.constant(f"{name}.weight", weight)], [name])

    def norm(self, x: str, skip: str, name: str) -> tuple[str, str]:
        """Return the normalized sum of two values, and the sum."""
        scale = self.constant(f"{name}.scale", self.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32))
        if not skip:
            return self.node("SimplifiedLayerNormalization", [x, scale], [name], epsilon=1e-5, axis=-1), x
        outputs = [name, "", "", f"{name}.sum"]
        self.node("SkipSimplifiedLayerNormalization", [x, skip, scale], outputs, "com.microsoft", epsilon=1e-5)
        return name, f"{name}.sum"

    def lengths(self) -> None:
        """Make the lengths that GroupQueryAttention reads of the mask of attention."""
        self.node("ReduceSum", ["attention_mask", self.constant("axes", [1])], ["sums"], keepdims=0)
        self.node("Sub", ["sums", self.constant("one", 1)], ["last"])
        self.node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], ["mask_shape"])
        self.node("Gather", ["mask_shape", "one"], ["total"])
        self.node("Cast", ["total"], ["total_length"], to=TensorProto.INT32)

    def layer(self, x: str, skip: str, at: str) -> tuple[str, str]:
        """Add a layer; return its residual and its last product, which the next norm adds."""
        normed, x = self.norm(x, skip, f"{at}.input_norm")
        sizes = {"q": WIDTH, "k": KEY_HEADS * HEAD_WIDTH, "v": KEY_HEADS * HEAD_WIDTH}
        parts = [self.matmul(normed, f"{at}.{part}", WIDTH, size) for part, size in sizes.items()]
        self.node(
            "GroupQueryAttention",
            [*parts, f"past.{at}.k", f"past.{at}.v", "seqlens_k", "total_length", "cos", "sin"],
            [f"{at}.attention", f"present.{at}.k", f"present.{at}.v"],
            "com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KEY_HEADS,
            do_rotary=1,
        )
        out = self.matmul(f"{at}.attention", f"{at}.o", WIDTH, WIDTH)
        normed, x = self.norm(x, out, f"{at}.post_norm")
        gate, up = (self.matmul(normed, f"{at}.{part}", WIDTH, INNER) for part in ("gate", "up"))
        self.node("Sigmoid", [gate], [f"{at}.sigmoid"])
        self.node("Mul", [gate, f"{at}.sigmoid"], [f"{at}.silu"])
        self.node("Mul", [f"{at}.silu", up], [f"{at}.gated"])
        return x, self.matmul(f"{at}.gated", f"{at}.down", INNER, WIDTH)


def decoder() -> onnx.ModelProto:
    """Two layers of a Llama with grouped queries and rotary embeddings inside of GroupQueryAttention."""
    builder = _Builder()
    builder.lengths()
    table = builder.rng.standard_normal((TOKENS, WIDTH)).astype(np.float32)
    angles = np.arange(POSITIONS)[:, None] / 10000 ** (np.arange(HEAD_WIDTH // 2) / (HEAD_WIDTH // 2))
    for name, values in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        builder.constant(name, values.astype(np.float32))
    x, skip = builder.node("Gather", [builder.constant("embedding", table), "input_ids"], ["embedded"]), ""
    for k in range(LAYERS):
        x, skip = builder.layer(x, skip, f"layer{k}")
    normed, _ = builder.norm(x, skip, "final_norm")
    builder.matmul(normed, "logits", WIDTH, TOKENS)
    caches = [f"layer{k}.{part}" for k in range(LAYERS) for part in "kv"]
    tokens = [("input_ids", ["batch", "sequence"]), ("attention_mask", ["batch", "total"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in tokens]
    inputs += [_cache(f"past.{name}", "past") for name in caches]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", TOKENS])
    outputs = [logits, *(_cache(f"present.{name}", "total") for name in caches)]
    graph = helper.make_graph(builder.nodes, "decoder", inputs, outputs, builder.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _cache(name: str, length: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", KEY_HEADS, length, HEAD_WIDTH])


def feeds(model: onnx.ModelProto, past: int, new: int) -> Mapping[str, Any]:
    """Inputs for `new` tokens behind `past` others."""
    rng = np.random.default_rng(past)
    found: dict[str, Any] = {
        "input_ids": rng.integers(0, TOKENS, (1, new)),
        "attention_mask": np.ones((1, past + new), np.int64),
    }
    for value in model.graph.input:
        if value.name.startswith("past."):
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            found[value.name] = rng.standard_normal((1, KEY_HEADS, past, HEAD_WIDTH)).astype(dtype)
    return found
