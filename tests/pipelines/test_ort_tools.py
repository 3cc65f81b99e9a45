"""ONNX Runtime's own tools before and after graphopt: fusion of transformers, and quantization."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from benchmarks import neighbours, quantized
from graphopt.runtime.oracle import RunnableModel, check_loads_optimized
from tests import zoo
from tests.pipelines.decoders import decoder, feeds
from tests.pipelines.packages import IGNORE_WARNINGS, example, needs

pytestmark = IGNORE_WARNINGS
needs_fusion = needs("onnxruntime.transformers", "torch")
HIDDEN: Mapping[str, tuple[dict[str, int], dict[str, int] | None]] = {
    "classic-bert": ({"attention": 3}, {}),
    "gpt2-dynamo": ({"activation": 2}, None),
    "bert-eager-torchscript-dynamic-opset13": ({"attention": 2}, {}),
}
"""What ONNX Runtime's optimizer of transformers finds in fixtures, and after graphopt: None where it fails."""


def optimized(name: str, **options: Any) -> onnx.ModelProto:
    return graphopt.optimize(neighbours.fixture(name)[0], cost="none", check=False, **options).model


@needs_fusion
@pytest.mark.parametrize("name", HIDDEN)
def test_fusions_are_found_as_before(name: str) -> None:
    model, inputs = neighbours.fixture(name)
    (use,) = neighbours.uses(name, inputs)["ort-transformers"]
    search = neighbours.Search.begin(model, use)
    wanted, hidden = HIDDEN[name]
    assert search.plain.found.items() >= wanted.items()
    after = use.find(optimized(name), search.expected)
    assert after.error if hidden is None else not after.found.keys() & wanted.keys(), "--before is not needed: run"
    before = use.find(optimized(name, before="ort-transformers"), search.expected)
    assert search.plain.losses(before) == []
    assert before.nodes <= search.plain.nodes


@needs_fusion
def test_graphopt_goes_on_with_fused_operators(tmp_path: Path) -> None:
    onnx.save(zoo.restore(zoo.CLASSIC_BERT), tmp_path / "model.onnx")
    fused = neighbours.fuse(tmp_path / "model.onnx", *neighbours.model_type("classic-bert"))
    result = graphopt.optimize(fused, cost="none", target="onnxruntime")
    assert result.ok
    found, _ = neighbours.count_fusions(result.model)
    assert found["attention"] == 3
    assert result.report.after.nodes <= result.report.before.nodes


@needs_fusion
def test_what_was_fused_loads_with_optimizations_after_graphopt(tmp_path: Path) -> None:
    """The tool saves a value `gemm_input_shape`; graphopt uncovers a product for which ONNX Runtime makes another."""
    onnx.save(zoo.load("bert-dynamo"), tmp_path / "model.onnx")
    fused = neighbours.fuse(tmp_path / "model.onnx", *neighbours.model_type("bert-dynamo"))
    assert "gemm_input_shape" in {tensor.name for tensor in fused.graph.initializer}
    result = graphopt.optimize(fused, cost="none", target="onnxruntime")
    assert result.ok and not result.report.refused
    check_loads_optimized(RunnableModel(result.model))


@needs_fusion
def test_the_example_of_the_page_finds_all_attentions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(zoo.restore(zoo.CLASSIC_BERT), "model.onnx")
    exec(example("order-of-tools", "optimize_model"), {})
    found, _ = neighbours.count_fusions(onnx.load("fast.onnx"))
    assert found["attention"] == 3


@pytest.mark.parametrize("form", quantized.FORMS)
@pytest.mark.parametrize("name", ["mobilenetv3-torchscript-bn", "bert-dynamo", "gpt2-dynamo"])
def test_as_much_is_quantized_as_before(name: str, form: str) -> None:
    model, inputs = neighbours.fixture(name)
    use = next(each for each in neighbours.uses(name, inputs)["quantization"] if each.name.endswith(form))
    search = neighbours.Search.begin(model, use)
    assert search.plain.error == ""
    assert search.plain.losses(use.find(optimized(name, before="quantization"), search.expected)) == []


# -- decoders as onnxruntime-genai's builder writes them ---------------------------------------------------------------


def four_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights of 4 bits, as `MatMulNBitsQuantizer` makes them."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with neighbours.silence():
        quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


def half_precision(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in half precision, as `onnxruntime.transformers.float16` makes it."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    made: onnx.ModelProto = convert_float_to_float16(model, disable_shape_infer=True)
    return made


@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
@pytest.mark.parametrize(
    ("convert", "operator"),
    [
        pytest.param(lambda model: model, "GroupQueryAttention", id="float"),
        pytest.param(four_bits, "MatMulNBits", id="int4", marks=needs("onnx_ir")),
        pytest.param(half_precision, "GroupQueryAttention", id="half"),
    ],
)
def test_decoders_stay_or_gain(convert: Any, operator: str, target: str) -> None:
    model = convert(decoder())
    count = sum(node.op_type == operator for node in model.graph.node)
    assert count >= 2
    result = graphopt.optimize(model, cost="none", target=target, inputs=feeds(model, past=5, new=1))
    assert result.ok and result.report.comparison is not None
    assert result.report.comparison.verdict.name == "EQUAL"
    assert result.report.after.nodes <= result.report.before.nodes
    assert sum(node.op_type == operator for node in result.model.graph.node) == count
    for past, new in ((0, 7), (9, 1)):
        fed = feeds(model, past, new)
        for wanted, got in zip(*(neighbours.outputs_of(each, [fed])[0] for each in (model, result.model)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)
