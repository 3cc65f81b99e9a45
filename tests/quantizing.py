"""Models quantized by onnxruntime.quantization, as its users do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from tests import zoo

SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    """A few feeds of a model, to see what ranges its values have."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._feeds: Iterator[dict[str, Any]] = iter([zoo.inputs(model, seed) for seed in range(2)])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def static(model: onnx.ModelProto, folder: Path, activations: QuantType, weights: QuantType) -> onnx.ModelProto:
    """The model with pairs of Q and DQ around all that can be in integers."""
    types = {"activation_type": activations, "weight_type": weights, "quant_format": QuantFormat.QDQ}
    return _quantized(model, folder, quantize_static, Feeds(model), **types)


def dynamic(model: onnx.ModelProto, folder: Path, weights: QuantType) -> onnx.ModelProto:
    """The model with its products in integers, of ranges that are found when it runs."""
    return _quantized(model, folder, quantize_dynamic, weight_type=weights)


def _quantized(model: onnx.ModelProto, folder: Path, quantize: Any, *args: Any, **kw: Any) -> onnx.ModelProto:
    onnx.save(model, folder / "floats.onnx")
    logging.disable(logging.WARNING)
    try:
        quantize(folder / "floats.onnx", folder / "integers.onnx", *args, **kw)
    finally:
        logging.disable(logging.NOTSET)
    return onnx.load(folder / "integers.onnx")
