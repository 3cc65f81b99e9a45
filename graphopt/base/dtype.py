"""Element types of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from math import isfinite
from typing import Any

import ml_dtypes
import numpy as np


class DType(IntEnum):
    """Element types, spelled and numbered as in `onnx.TensorProto.DataType`."""

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @property
    def is_float(self) -> bool:
        """True for a real type with rounding; the complex types are not."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self in _INTEGERS

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy (or ml_dtypes) type of one element; sub-byte types are unpacked, one element a byte."""
        dtype: np.dtype[np.generic] = np.dtype(_NUMPY[self])
        return dtype

    @property
    def bits(self) -> int:
        """Bits of one element as ONNX stores it; strings have no fixed size and count 0."""
        return _BIT_WIDTHS.get(self) or (0 if self is DType.STRING else self.numpy.itemsize * 8)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number of an integer type."""
        if self.name.startswith("U"):
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    def round_to_dtype(self, number: float) -> float | None:
        """Return the number as a float type rounds it; None where it is beyond the type, or so small that digits are
        lost."""
        with np.errstate(over="ignore", under="ignore"):
            rounded = float(np.asarray(number, dtype=self.numpy))
        if number == rounded or not isfinite(number):
            return rounded
        epsilon = float(ml_dtypes.finfo(self.numpy).eps)  # type: ignore[no-untyped-call]
        return rounded if abs(rounded - number) <= epsilon * abs(number) else None

    @classmethod
    def from_type_text(cls, text: str) -> DType | None:
        """Return the type of `tensor(bfloat16)`, as schemas and ONNX Runtime write it; None for what is no tensor."""
        name = text.removeprefix("tensor(").removesuffix(")").upper()
        return cls.__members__.get(name) if text.startswith("tensor(") else None

    @classmethod
    def from_numpy(cls, dtype: np.dtype[np.generic]) -> DType:
        """Return the element type of a numpy array; object and text arrays are STRING."""
        return _FROM_NUMPY.get(dtype, cls.STRING)


_NUMPY: Mapping[DType, Any] = {
    DType.FLOAT: np.float32,
    DType.UINT8: np.uint8,
    DType.INT8: np.int8,
    DType.UINT16: np.uint16,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.STRING: np.object_,
    DType.BOOL: np.bool_,
    DType.FLOAT16: np.float16,
    DType.DOUBLE: np.float64,
    DType.UINT32: np.uint32,
    DType.UINT64: np.uint64,
    DType.COMPLEX64: np.complex64,
    DType.COMPLEX128: np.complex128,
    DType.BFLOAT16: ml_dtypes.bfloat16,
    DType.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    DType.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    DType.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    DType.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    DType.UINT4: ml_dtypes.uint4,
    DType.INT4: ml_dtypes.int4,
    DType.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    DType.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    DType.UINT2: ml_dtypes.uint2,
    DType.INT2: ml_dtypes.int2,
    DType.FLOAT6E2M3: ml_dtypes.float6_e2m3fn,
    DType.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}
_FROM_NUMPY = {np.dtype(scalar): dtype for dtype, scalar in _NUMPY.items()}
_BIT_WIDTHS = {DType.UINT4: 4, DType.INT4: 4, DType.FLOAT4E2M1: 4, DType.UINT2: 2, DType.INT2: 2}
_BIT_WIDTHS |= {DType.FLOAT6E2M3: 6, DType.FLOAT6E3M2: 6}
_FLOATS = {DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16} | {
    d for d in DType if d.name.startswith(("FLOAT4", "FLOAT6", "FLOAT8"))
}
_INTEGERS = {d for d in DType if d.name.startswith(("INT", "UINT"))}
MANTISSA_BITS: Mapping[DType, int] = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT: 24, DType.DOUBLE: 53}
"""Binary digits of the floats that models compute in."""
COMPUTE_DTYPES = tuple(
    d
    for d in DType
    if d in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16, DType.BOOL) or (d.is_integer and d.bits >= 8)
)
"""The types that models compute in. Of casts a proof speaks for these only: no strings, no numbers under 8 bits."""
