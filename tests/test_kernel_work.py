"""Kernels of ONNX Runtime and of OpenVINO in the same words, and the page that has them side by side."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import kernels
from benchmarks.kernel_work import Kernel, Kind, Shape, Work, kind_of, sum_by_work
from benchmarks.results import write_rows


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        ("Conv FusedConv QLinearConv Convolution", Kind.DENSE),
        ("ConvTranspose Deconvolution", Kind.TRANSPOSED),
        ("MatMul FusedGemm MatMulInteger DynamicQuantizeMatMul FullyConnected", Kind.PRODUCT),
        ("MultiHeadAttention Softmax QLinearSoftmax ScaledDotProductAttention", Kind.ATTENTION),
        ("LSTM RNNSeq", Kind.RECURRENT),
        ("SkipLayerNormalization InstanceNormalization MVN RMS", Kind.NORMALIZATION),
        ("Convert Cast Gelu Eltwise Subgraph QLinearAdd Where", Kind.ELEMENTWISE),
        ("MaxPool GlobalAveragePool ReduceMean Reduce Pooling", Kind.POOL),
        ("Transpose ReorderInput Reorder", Kind.LAYOUT),
        ("Concat Split Slice GatherND Pad Broadcast StridedSlice Unsqueeze", Kind.MOVEMENT),
        ("QuantizeLinear DequantizeLinear FakeQuantize", Kind.QUANTIZATION),
        ("RoPE RotaryEmbedding TopK Loop If", Kind.REST),
    ],
)
def test_operators_of_both_engines_are_of_a_kind_by_their_names(operators: str, kind: Kind) -> None:
    assert {operator: kind_of(operator) for operator in operators.split()} == dict.fromkeys(operators.split(), kind)


def conv(weights: Shape, image: Shape, output: Shape, **options: Any) -> Work:
    return Kernel("Conv", [image, weights], [output], weights, **options).work


@pytest.mark.parametrize(
    ("found", "kind", "size"),
    [
        (conv((64, 32, 3, 3), (1, 32, 9, 8), (1, 64, 9, 8)), "k×k convolutions", "3×3 convolution 32→64, 9×8"),
        (conv((8, 3, 3, 3), (2, 3, 9, 8), (2, 8, 9, 8)), "k×k convolutions", "3×3 convolution 3→16, 2 of 9×8"),
        (conv((64, 32, 1, 1), (2, 32, 9, 8), (2, 64, 9, 8)), "1×1 convolutions", "product 144×32×64"),
        (conv((32, 1, 5, 5), (1, 32, 9, 8), (1, 32, 9, 8), group=32), "depthwise 5×5", "5×5 depthwise 32, 9×8"),
        (
            conv((64, 16, 3, 3), (1, 32, 9, 8), (1, 64, 9, 8), group=2),
            "grouped convolutions",
            "3×3 convolution 32→64 in 2, 9×8",
        ),
        (
            conv((64, 32, 3, 3), (1, 9, 8, 32), (1, 9, 8, 64), is_channels_last=True),
            "k×k convolutions",
            "3×3 convolution 32→64, 9×8",
        ),
    ],
)
def test_a_convolution_is_told_by_its_window_channels_and_positions(found: Work, kind: str, size: str) -> None:
    assert found == Work(kind, size)


def test_a_convolution_with_channels_that_were_padded_has_the_same_size() -> None:
    given, padded = (conv((n, n, 3, 3), (1, n, 7, 7), (1, n, 7, 7)) for n in (200, 208))
    assert given == padded


def test_a_pointwise_convolution_can_be_put_beside_the_product_that_it_is() -> None:
    dense = Kernel("FullyConnected", [(1, 128, 384), (1536, 384)], [(1, 128, 1536)], (1536, 384)).work
    packed = Kernel("Gemm", [(128, 384)], [(128, 1536)], (384, 1536)).work
    pointwise = conv((1536, 384, 1, 1), (1, 384, 128, 1), (1, 1536, 128, 1))
    assert dense == packed == Work(Kind.PRODUCT, "product 128×384×1536")
    assert (pointwise.kind, pointwise.size) == (Kind.POINTWISE, dense.size)


def test_a_product_of_activations_counts_as_attention() -> None:
    scores = Kernel("FusedMatMul", [(1, 12, 128, 32), (1, 12, 32, 128)], [(1, 12, 128, 128)]).work
    turned = Kernel("MatMul", [(1, 12, 32, 128), (1, 12, 32, 128)], [(1, 12, 128, 128)]).work
    assert scores == turned == Work(Kind.ATTENTION, "12 products 128×32×128")
    fused = Kernel("Subgraph", [(1, 64, 32)] * 3, [(1, 64, 32)], parts=["node_MatMul_49", "node_Softmax_50"])
    assert fused.work.kind == Kind.ATTENTION
    assert Kernel("Subgraph", [(1, 64, 32)], [(1, 64, 32)], parts=["node_add_3"]).work.kind == Kind.ELEMENTWISE


def test_kernels_of_equal_work_are_added_up() -> None:
    one, other = Work("a", "small"), Work("a", "large")
    assert sum_by_work([(one, 0.5), (other, 2.0), (one, 0.25)]) == {one: (2, 0.75), other: (1, 2.0)}


def kernel(kind: str, size: str, us: float, count: int = 1) -> dict[str, Any]:
    return {"kind": kind, "size": size, "count": count, "us": us}


ROW = {
    "model": "net",
    "made": {"search": 30.0},
    "ms": {"onnxruntime": 3.0, "openvino": 2.5},
    "speedup": {"median": 1.2, "low": 1.15, "high": 1.25},
    "kernels": {
        "onnxruntime": [
            kernel("elementwise", "elementwise, 100 elements", 1500.0, 3),
            kernel("1×1 convolutions", "product 4×8×8", 900.0),
            kernel("k×k convolutions", "3×3 convolution 8→8, 4×4", 300.0),
        ],
        "openvino": [
            kernel("products with weights", "product 4×8×8", 1000.0),
            kernel("k×k convolutions", "3×3 convolution 8→8, 4×4", 200.0),
            kernel("elementwise", "elementwise, 100 elements", 100.0),
        ],
    },
}


def test_the_page_has_kinds_and_equal_work_side_by_side() -> None:
    page = kernels.markdown([ROW, {"model": "other", "error": "OpenVINO does not know it", "made": {"search": 30.0}}])
    assert "| net | 30 | 3.00 | 2.50 | 1.20 (1.15 to 1.25) |" in page
    assert "| elementwise | 1.50 | 0.10 | +1.40 |" in page
    assert "| products with weights | 0.00 | 1.00 | -1.00 |" in page
    assert "| all kernels | 2.70 | 1.30 | +1.40 |" in page
    assert "| elementwise, 100 elements | 3 | 1 | 1.50 | 0.10 | +1.40 |" in page
    assert "- other: OpenVINO does not know it" in page
    assert [size for size, _, _ in kernels.differences(ROW)] == [
        "elementwise, 100 elements",
        "3×3 convolution 8→8, 4×4",
    ]


def test_models_that_the_other_engine_runs_faster_are_looked_at(tmp_path: Path) -> None:
    def row(model: str, tool: str, **timing: float) -> dict[str, Any]:
        return {"model": model, "tool": tool, "setting": "cpu-1", "made": {}, **({"timing": timing} if timing else {})}

    rows = [row(model, "original") for model in ("slow", "fast", "even", "failed")]
    for model, own, other in (("slow", 1.0, 1.3), ("fast", 1.2, 1.1), ("even", 1.0, 1.005)):
        rows += [row(model, "graphopt", median=own), row(model, "openvino", median=other)]
    write_rows(tmp_path / "found.jsonl", [*rows, row("failed", "openvino")])
    assert kernels.slower_models(tmp_path / "found.jsonl") == ["slow"]


def test_a_kernel_of_onnx_runtime_has_what_its_node_says() -> None:
    node = onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"], domain="com.microsoft.nchwc", group=32)
    facts = {
        "op_name": "Conv",
        "input_type_shape": [{"float": [1, 32, 9, 8]}, {"float": [32, 1, 3, 3]}, {"float": [32]}],
        "output_type_shape": [{"float": [1, 32, 9, 8]}],
    }
    found = kernels.onnxruntime_kernel(facts, node, {"w": (32, 1, 3, 3), "b": (32,)})
    assert found.work == Work("depthwise 3×3", "3×3 depthwise 32, 9×8")
