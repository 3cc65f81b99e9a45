"""Element types, sizes and tensor types.

A size is an `int` or a `Sym`: a polynomial with integer coefficients over named sizes, so that `2*batch*seq` is
equal to itself however a model computes it. Sizes that nothing is known about get a name of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import count
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Dim: TypeAlias = "int | Sym"
Shape: TypeAlias = "tuple[Dim, ...]"


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
        """A real type with rounding; the complex types are not."""
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
        return _BITS.get(self) or (0 if self is DType.STRING else self.numpy.itemsize * 8)

    @classmethod
    def of(cls, dtype: np.dtype[np.generic]) -> DType:
        """The element type of a numpy array; object and text arrays are STRING."""
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
_BITS = {DType.UINT4: 4, DType.INT4: 4, DType.FLOAT4E2M1: 4, DType.UINT2: 2, DType.INT2: 2}
_BITS |= {DType.FLOAT6E2M3: 6, DType.FLOAT6E3M2: 6}
_FLOATS = {DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16} | {
    d for d in DType if d.name.startswith(("FLOAT4", "FLOAT6", "FLOAT8"))
}
_INTEGERS = {d for d in DType if d.name.startswith(("INT", "UINT"))}
COMMON = tuple(
    d
    for d in DType
    if d in (DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16, DType.BOOL) or (d.is_integer and d.bits >= 8)
)
"""The types that models compute in. Of casts a proof speaks for these only: no strings, no numbers under 8 bits."""


@dataclass(frozen=True, slots=True)
class Sym:
    """A size that is not a plain number: a sum of `coefficient × product of names`, in canonical order.

    Names stand for non-negative integers. Built by `Sym.of(name)` and arithmetic, which returns an `int` as soon as
    no name is left; a quotient or remainder that does not come out even, or a minimum, is a name of its own (whoever
    makes one sees to it that it is not negative).
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @staticmethod
    @cache
    def of(name: str) -> Sym:
        return Sym((((name,), 1),))

    @staticmethod
    def fresh() -> Sym:
        """A size that is equal to nothing but itself."""
        return Sym.of(f"{UNKNOWN}{next(_FRESH):06d}")  # of equal length: their order is that in which they were made

    @property
    def is_anonymous(self) -> bool:
        """True where a part of it was never named by the model: such a size is not written to files."""
        return any(name.startswith((UNKNOWN, MADE)) for names, _ in self.terms for name in names)

    def __add__(self, other: Dim) -> Dim:
        return _polynomial([*self.terms, *_terms(other)])

    def __mul__(self, other: Dim) -> Dim:
        return _polynomial([(tuple(sorted(a + b)), x * y) for a, x in self.terms for b, y in _terms(other)])

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __rsub__(self, other: Dim) -> Dim:
        return other + self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if (exact := divide(self, other)) is not None:
            return exact
        if isinstance(other, Sym) or other <= 0:
            return _made(self, "//", other)
        whole, rest = _split(self, other)
        return whole + (_made(rest, "//", other) if isinstance(rest, Sym) else 0)

    def __rfloordiv__(self, other: int) -> Dim:
        return _made(other, "//", self) if other else 0

    def __mod__(self, other: Dim) -> Dim:
        if divide(self, other) is not None:
            return 0
        if isinstance(other, Sym) or other <= 0:
            return _made(self, "%", other)
        rest = _split(self, other)[1]
        return _made(rest, "%", other) if isinstance(rest, Sym) else rest

    def __rmod__(self, other: int) -> Dim:
        return _made(other, "%", self) if other else 0

    def __str__(self) -> str:
        text = "+".join("*".join([*([str(c)] if c != 1 or not names else []), *names]) for names, c in self.terms)
        return text.replace("+-", "-")


UNKNOWN, MADE = "?", "("
"""What the names begin with that are made up here; no name that a model gives may, or it would mean something."""
_FRESH = count()
_MADE: dict[str, tuple[Dim, str, Dim]] = {}
"""What the names stand for that arithmetic has made: `(n//2)` -> n, "//", 2."""


def _made(left: Dim, operation: str, right: Dim) -> Sym:
    name, made = f"({_parenthesised(left)}{operation}{_parenthesised(right)})", (left, operation, right)
    while _MADE.setdefault(name, made) != made:  # a model that names a size "a*b" makes two sizes look alike
        name += "'"
    return Sym.of(name)


def _split(dividend: Sym, divisor: int) -> tuple[Dim, Dim]:
    """A multiple of the divisor taken out, so that what is left has coefficients from 0 to below the divisor."""
    whole = _polynomial((names, coefficient // divisor) for names, coefficient in dividend.terms)
    rest = _polynomial((names, coefficient % divisor) for names, coefficient in dividend.terms)
    return whole, rest


def _parenthesised(dim: Dim) -> str:
    return f"({dim})" if isinstance(dim, Sym) and len(dim.terms) > 1 else str(dim)


def _terms(dim: Dim) -> tuple[tuple[tuple[str, ...], int], ...]:
    return dim.terms if isinstance(dim, Sym) else (((), int(dim)),)


def _polynomial(terms: Iterable[tuple[tuple[str, ...], int]]) -> Dim:
    total: dict[tuple[str, ...], int] = {}
    for names, coefficient in terms:
        total[names] = total.get(names, 0) + coefficient
    kept = tuple(sorted(((n, c) for n, c in total.items() if c), key=lambda t: (-len(t[0]), t[0])))
    if not kept or kept == (((), kept[0][1]),):
        return kept[0][1] if kept else 0
    return Sym(kept)


def divide(dividend: Dim, divisor: Dim) -> Dim | None:
    """The quotient where it comes out even for every value of the names, by a one-term divisor; else None."""
    parts = _terms(divisor)
    if len(parts) != 1 or parts[0][1] == 0:
        return 1 if dividend == divisor and isinstance(divisor, Sym) else None
    ((names, coefficient),) = parts
    quotient: list[tuple[tuple[str, ...], int]] = []
    for own, number in _terms(dividend):
        rest = list(own)
        for name in names:
            if name not in rest:
                return None
            rest.remove(name)
        if number % coefficient:
            return None
        quotient.append((tuple(rest), number // coefficient))
    return _polynomial(quotient)


@cache
def lower_bound(dim: Dim) -> int | None:
    """A number that the size never falls below, whatever the names stand for; None where none can be told."""
    if not isinstance(dim, Sym):
        return dim
    rising = {name for names, coefficient in dim.terms if coefficient > 0 for name in names}
    falling = {name for names, coefficient in dim.terms if coefficient < 0 for name in names}
    if not falling:
        return sum(coefficient for names, coefficient in dim.terms if not names)
    name = min((name for name in falling - rising if name in _MADE), default=None)
    bounds = [lower_bound(_replaced(dim, name, larger)) for larger in _upper_bounds(name)] if name else []
    return max((bound for bound in bounds if bound is not None), default=None)


def _upper_bounds(name: str) -> tuple[Dim, ...]:
    """Sizes that what arithmetic made never exceeds."""
    left, operation, right = _MADE[name]
    if operation == " min ":
        return left, right
    if isinstance(right, Sym) or right <= 0:
        return ()
    return (left,) if operation == "//" else (left, right - 1)


def _replaced(dim: Sym, name: str, by: Dim) -> Dim:
    """The size with a name replaced where it is a factor of a term, not inside of other names."""
    total: Dim = 0
    for names, coefficient in dim.terms:
        total = product([by if own == name else Sym.of(own) for own in names]) * coefficient + total
    return total


def least(a: Dim, b: Dim) -> Dim:
    """The smaller of two sizes, a name of its own where that depends on what the names stand for."""
    for one, other in ((a, b), (b, a)):
        gap = lower_bound(other - one)
        if gap is not None and gap >= 0:
            return one
    first, second = sorted((a, b), key=str)
    return _made(first, " min ", second)


def minimum_of(dim: Dim | None) -> tuple[Dim, Dim] | None:
    """The two sizes of which this one is the least, as `least` made it; else None."""
    if not isinstance(dim, Sym) or len(dim.terms) != 1 or dim.terms[0][1] != 1 or len(dim.terms[0][0]) != 1:
        return None
    left, operation, right = _MADE.get(dim.terms[0][0][0], (0, "", 0))
    return (left, right) if operation == " min " else None


def substitute(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """The size with names replaced, also inside of quotients, remainders and minima."""
    if not isinstance(dim, Sym):
        return dim
    total: Dim = 0
    for names, coefficient in dim.terms:
        total = product([_substituted(name, sizes) for name in names]) * coefficient + total
    return total


def _substituted(name: str, sizes: Mapping[str, Dim]) -> Dim:
    if name in sizes:
        return sizes[name]
    if name not in _MADE:
        return Sym.of(name)
    left, operation, right = _MADE[name]
    left, right = substitute(left, sizes), substitute(right, sizes)
    if operation == "//":
        return left // right
    return left % right if operation == "%" else least(left, right)


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a shape."""
    result: Dim = 1
    for dim in dims:
        result = dim * result
    return result


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: element type and shape; `shape` is None where not even the rank is known."""

    dtype: DType
    shape: Shape | None = None

    @property
    def is_static(self) -> bool:
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def size(self) -> Dim | None:
        """Number of elements, None where the rank is unknown."""
        return None if self.shape is None else product(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{'?' if self.shape is None else ','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A sequence, map, optional or sparse type: a serialized `onnx.TypeProto` that is carried, never looked into."""

    proto: bytes


Type: TypeAlias = TensorType | OpaqueType
