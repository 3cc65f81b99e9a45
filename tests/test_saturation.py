"""Where kernels add up products of 8-bit integers in 16 bits, no integers get a type with which sums are cut off."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import onnx
import pytest

from graphopt.base.dtype import DType
from graphopt.io import onnx_io
from graphopt.language.rule import Rule, op, tensor
from graphopt.language.rule_library import load_library
from graphopt.operators.inference import infer_graph
from graphopt.rewrite.simplify import simplify_graph
from graphopt.runtime.kernel_probe import KernelProbe
from graphopt.runtime.saturation import BYTE_PRODUCTS, TERM_COUNT, ByteDtypes, SaturationProbe
from graphopt.runtime.session_setting import SessionSetting
from tests.test_sweep import swept
from tests.text import Arrays, parse

BYTE, SIGNED = DType.UINT8, DType.INT8
SWEEPS = load_library().sweeps
GIVING_SIGNS = SWEEPS["integers for which there are kernels"]
TAKING_SIGNS = SWEEPS["integers without a sign between products"]


@pytest.fixture(params=[True, False], ids=["saturating", "exact"])
def saturates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A processor whose kernels cut off sums of unsigned times signed integers, and one whose kernels do not."""
    saturates = bool(request.param)
    monkeypatch.setattr(SaturationProbe, "_run_probe", lambda _, op, types: saturates and types == (BYTE, SIGNED))
    return saturates


def quantized(byte: type[np.generic]) -> Arrays:
    draw = np.random.default_rng(0).integers(0, 128, (4, 4))
    zero, scale = np.array(0, byte), np.array(0.5, np.float32)
    return {"w": draw.astype(byte), "f": draw.reshape(4, 4, 1, 1).astype(byte), "z": zero, "s": scale}


BETWEEN_FLOATS = """q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z); v = DequantizeLinear(w, s, z);
    y = MatMul(d, v)"""


def model(inputs: str, body: str, byte: type[np.generic], outputs: str = "y") -> onnx.ModelProto:
    return parse(inputs, body, quantized(byte), outputs=outputs)


MODELS: dict[str, tuple[tuple[Rule, ...], onnx.ModelProto]] = {
    "integers": (
        GIVING_SIGNS,
        model("uint8[2,4] x", "y = MatMulInteger(x, w, z, z)", np.uint8, "int32[2,4] y"),
    ),
    "images": (
        GIVING_SIGNS,
        model("uint8[1,4,3,3] x", "y = QLinearConv(x, s, z, f, s, z, s, z)", np.uint8, "uint8[1,4,3,3] y"),
    ),
    "weights between floats": (GIVING_SIGNS, model("float[2,4] x", BETWEEN_FLOATS, np.uint8)),
    "activations between floats": (GIVING_SIGNS, model("float[2,4] x", BETWEEN_FLOATS, np.int8)),
    "signed integers": (
        TAKING_SIGNS,
        model("int8[2,4] x", "y = QLinearMatMul(x, s, z, w, s, z, s, z)", np.int8, "int8[2,4] y"),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_types_are_changed_only_where_nothing_saturates(name: str, saturates: bool) -> None:
    rules, given = MODELS[name]
    _, sweep = swept(given, rules, refusal=KernelProbe().refusal)
    assert (sweep is None) is saturates


def test_floats_become_products_only_where_these_do_not_saturate(saturates: bool) -> None:
    """A rule that someone may write: exact for all integers, and proved so."""
    a, b = tensor("a", "M K"), tensor("b", "K N")
    floats = op.Cast(a, to=int(DType.DOUBLE)) @ op.Cast(b, to=int(DType.DOUBLE))
    rule = Rule("in_integers", floats, op.Cast(op.MatMulInteger(a, b), to=int(DType.DOUBLE)))
    body = "c = Cast<to=11>(x); d = Cast<to=11>(v); y = MatMul(c, d)"
    graph = onnx_io.load_model(parse("uint8[2,4] x, int8[4,2] v", body, outputs="double[2,2] y")).graph
    infer_graph(graph)
    simplify_graph(graph, [rule], [], refusal=KernelProbe().refusal)
    assert ("MatMulInteger" in graph.operator_counts()) is not saturates


class _Session:
    """Gives one number, whatever it is fed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def open(self, model: bytes, *, optimize: bool) -> _Session:
        onnx.checker.check_model(onnx.load_model_from_string(model))
        assert not optimize
        return self

    def run(self, _names: None, feeds: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
        assert {array.min() for array in feeds.values()} == {255, 127}
        return [np.array([[self.number]])]


@pytest.mark.parametrize(("number", "is_seen"), [(TERM_COUNT * 255 * 127, False), (TERM_COUNT // 2 * 32767, True)])
def test_a_sum_that_is_cut_off_is_seen(number: int, is_seen: bool) -> None:
    """Two products of 8-bit integers exceed 16 bits, and the kernel adds up pairs."""
    setting = cast(SessionSetting, _Session(number))
    assert SaturationProbe(setting).is_saturating("MatMulInteger", (BYTE, SIGNED)) is is_seen


@pytest.mark.parametrize("op_type", BYTE_PRODUCTS)
@pytest.mark.parametrize("types", [(BYTE, BYTE), (BYTE, SIGNED)], ids=str)
def test_every_product_can_be_asked(op_type: str, types: ByteDtypes) -> None:
    """Unsigned integers alone saturate nowhere; beside signed ones they do on some processors."""
    assert SaturationProbe(SessionSetting())._run_probe(op_type, types) in {False, types == (BYTE, SIGNED)}
