"""Kernels that cut off sums of 8-bit products, as ONNX Runtime has them for x86 processors without VNNI."""

from __future__ import annotations

from functools import cache

import pytest

from graphopt.runtime.saturation import BYTE_DTYPES, BYTE_PRODUCTS, SaturationProbe
from graphopt.runtime.session_setting import SessionSetting


@cache
def is_saturating() -> bool:
    """Return whether some product saturates on this processor."""
    saturation = SaturationProbe(SessionSetting())
    return any(
        saturation.is_saturating(op, types) for op in BYTE_PRODUCTS for types in (BYTE_DTYPES, BYTE_DTYPES[::-1])
    )


def skip_where_products_saturate() -> None:
    """Skip a test that runs a rewrite which is refused on this processor (`graphopt.runtime.saturation`)."""
    if is_saturating():
        pytest.skip("sums of 8-bit products saturate on this processor, where the rewrite is refused")
