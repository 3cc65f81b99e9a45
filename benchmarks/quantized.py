"""Quantized forms of models, as onnxruntime.quantization makes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from numpy.typing import NDArray

Feeds: TypeAlias = Mapping[str, NDArray[Any]]


def quantize(path: Path, form: str, feeds: Feeds) -> None:
    """Put a quantized form of a model in its place; `feeds` show what ranges its values have."""
    logging.disable(logging.WARNING)  # it is said of each model that it was not preprocessed
    try:
        onnx.save(FORMS[form](path, feeds), path)
    finally:
        logging.disable(logging.NOTSET)


def static(
    path: Path,
    feeds: Feeds,
    activations: str = "QInt8",
    weights: str = "QInt8",
    operators: str = "QDQ",
    **options: Any,
) -> onnx.ModelProto:
    """Return what `quantize_static` makes; by default activations and weights are integers with a sign."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = [dict(feeds)]

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return self._left.pop() if self._left else None

    types = {"activation_type": QuantType[activations], "weight_type": QuantType[weights]}
    quantize_static(path, path, Reader(), quant_format=QuantFormat[operators], **types, **options)
    return onnx.load(path)


def dynamic(path: Path, _feeds: Feeds) -> onnx.ModelProto:
    """Return what `quantize_dynamic` makes with weights that have no sign."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(path, path, weight_type=QuantType.QUInt8)
    return onnx.load(path)


FORMS: Mapping[str, Callable[[Path, Feeds], onnx.ModelProto]] = {"static": static, "dynamic": dynamic}
