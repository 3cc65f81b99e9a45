"""Models that hold operators of ONNX Runtime: saved by it, or by its tools. They are taken apart where that pays."""

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime
import pytest

from graphopt.check.compare import compare_models
from graphopt.check.verdict import EqualityVerdict
from graphopt.io import onnx_io
from graphopt.language.proof import Verdict as Proved
from graphopt.language.rule_library import load_library, load_rules
from graphopt.rule import App, Rule, Term, define, microsoft, op, real, tensor
from graphopt.verifier.prove import prove
from tests.test_sweep import MATRICES, block, swept
from tests.test_trades import drawn
from tests.text import Arrays, parse

APART = "operators of ONNX Runtime taken apart"


def model(inputs: str, body: str, weights: Arrays, opset: int) -> onnx.ModelProto:
    """A model from text in which M stands for the domain of ONNX Runtime's operators."""
    given = parse(inputs, body.replace("M.", "com.microsoft."), weights, opset=opset)
    given.opset_import.add(domain="com.microsoft", version=1)
    return given


def saved(given: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model as ONNX Runtime saves it with its extended fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "saved.onnx")
    onnxruntime.InferenceSession(given.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "saved.onnx")


def domains(given: onnx.ModelProto) -> set[str]:
    return {node.domain for node in given.graph.node}


@pytest.mark.parametrize("sizes", ["2,5", "batch,5"])
def test_what_onnx_runtime_has_fused_is_as_good_as_what_it_has_not(sizes: str, tmp_path: Path) -> None:
    given = saved(block(sizes), tmp_path)
    assert {"SkipLayerNormalization"} < {node.op_type for node in given.graph.node}
    model, made = swept(given, load_library().sweeps[MATRICES], load_rules())
    plain, _ = swept(block(sizes), load_library().sweeps[MATRICES], load_rules())
    assert made is not None
    for graph in (model.graph, plain.graph):
        assert (
            graph.operator_counts().items()
            >= {"Gemm": 2, "Gelu": 2, "Add": 2, "LayerNormalization": 2, "Neg": 1}.items()
        )
    assert domains(onnx_io.to_proto(model)) == {""}
    assert compare_models(given, model).verdict is EqualityVerdict.EQUAL


GAMMA = {"g": (6,), "b": (6,), "c": (6,)}
FILTERS = {"w": (5, 3, 3, 3), "b": (5,)}
WINDOW = "kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,1], dilations=[1,1]"
TAKEN_APART: Mapping[str, tuple[str, str, Mapping[str, tuple[int, ...]]]] = {
    "skip": ("float[2,3,6] x, float[2,3,6] z", "y = M.SkipLayerNormalization(x, z, g, b)", GAMMA),
    "skip with a bias": ("float[2,3,6] x, float[2,3,6] z", "y = M.SkipLayerNormalization(x, z, g, b, c)", GAMMA),
    "skip, and the sum": (
        "float[2,3,6] x, float[2,3,6] z",
        'n, "", "", s = M.SkipLayerNormalization<epsilon=0.01>(x, z, g, b); y = Add(n, s)',
        GAMMA,
    ),
    "skip of RMS, and the sum": (
        "float[2,3,6] x, float[2,3,6] z",
        'n, "", "", s = M.SkipSimplifiedLayerNormalization(x, z, g, c); y = Add(n, s)',
        GAMMA,
    ),
    "bias": ("float[2,6] x", "y = M.BiasGelu(x, b)", GAMMA),
    "gelu": ("float[2,6] x", "y = M.Gelu(x)", {}),
    "tanh": ("float[2,6] x", "y = M.FastGelu(x)", {}),
    "tanh and bias": ("float[2,6] x", "y = M.FastGelu(x, b)", GAMMA),
    "quick": ("float[2,6] x", "y = M.QuickGelu(x)", {}),
    "product": ("float[2,3,4] x, float[2,4,5] z", "y = M.FusedMatMul<alpha=0.25>(x, z)", {}),
    "transposed": ("float[2,4,3] x, float[2,5,4] z", "y = M.FusedMatMul<transA=1, transB=1>(x, z)", {}),
    "gemm": (
        "float[2,3] x",
        "y = M.FusedGemm<activation='Tanh', transB=1, beta=0.5>(x, w, b)",
        {"w": (4, 3), "b": (4,)},
    ),
    "leaky": (
        "float[2,3] x",
        "y = M.FusedGemm<activation='LeakyRelu', activation_alpha=0.2>(x, w, b)",
        {"w": (3, 4), "b": (4,)},
    ),
    "conv": ("float[1,3,8,8] x", f"y = M.FusedConv<activation='Relu', {WINDOW}>(x, w, b)", FILTERS),
    "clip": (
        "float[1,3,8,8] x",
        f"y = M.FusedConv<activation='Clip', activation_params=[0.0, 6.0], {WINDOW}>(x, w, b)",
        FILTERS,
    ),
    "residual": (
        "float[1,3,8,8] x, float[1,5,4,8] z",
        f"y = M.FusedConv<activation='Relu', auto_pad='NOTSET', {WINDOW}>(x, w, b, z)",
        FILTERS,
    ),
}


def case(name: str, opset: int = 20) -> onnx.ModelProto:
    inputs, body, shapes = TAKEN_APART[name]
    return model(inputs, body.replace("'", '"'), drawn(**shapes), opset)


@pytest.mark.parametrize("name", TAKEN_APART)
def test_it_is_taken_apart(name: str) -> None:
    given = case(name)
    apart, made = swept(given, load_library().sweeps[APART])
    assert made is not None
    assert domains(onnx_io.to_proto(apart)) == {""}
    assert compare_models(given, apart).verdict is EqualityVerdict.EQUAL


@pytest.mark.parametrize(
    ("name", "opset", "operator"),
    [
        ("bias", 14, "Erf"),
        ("gelu", 14, "Erf"),
        ("tanh and bias", 14, "Tanh"),
        ("skip of RMS, and the sum", 23, "RMSNormalization"),
        ("skip of RMS, and the sum", 17, "Sqrt"),
    ],
)
def test_what_the_opset_lacks_is_written_out(name: str, opset: int, operator: str) -> None:
    given = case(name, opset)
    apart, made = swept(given, load_library().sweeps[APART])
    assert made is not None
    assert domains(onnx_io.to_proto(apart)) == {""} and apart.graph.operator_counts()[operator] == 1
    assert compare_models(given, apart).verdict is EqualityVerdict.EQUAL


def test_parameters_that_are_not_known_are_left() -> None:
    given = case("clip")
    (node,) = given.graph.node
    (params,) = (attribute for attribute in node.attribute if attribute.name == "activation_params")
    params.floats[1] = 5.0
    assert swept(given, load_library().sweeps[APART])[1] is None


v, w, s, t, g = tensor("v", "A N"), tensor("w", "N M"), tensor("s", "B S N"), tensor("t", "B S N"), tensor("g", "N")
eps = real("eps")
WRONG: dict[str, tuple[App, Term]] = {
    "no skip": (
        microsoft.SkipSimplifiedLayerNormalization(s, t, g, epsilon=eps),
        op.RMSNormalization(s + t * 0.5, g, axis=-1, epsilon=eps),
    ),
    "no alpha": (microsoft.FusedMatMul(v, w, alpha=0.5), v @ w),
    "no tanh": (microsoft.FusedGemm(v, w, g, activation="Tanh"), op.Gemm(v, w, g)),
    "another offset": (microsoft.BiasGelu(v, g), op.Gelu(v - g)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_definition_is_refused_by_the_kernel(name: str, forget: Callable[[str], None]) -> None:
    head, meaning = WRONG[name]
    forget(head.op)
    define(head, meaning)
    proof = prove(Rule("part_wrongly", head, meaning))
    assert proof.verdict is Proved.REFUTED
    assert f"com.microsoft.{head.op} is not what its definition says" in proof.counterexample
