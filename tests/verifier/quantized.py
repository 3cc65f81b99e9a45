"""Cases of quantized operators: of a whole tensor and by axis, with and without zero points, at ties and out of range.

Scales are powers of two, so that halves are halves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.verifier.draw import Draw, conv
from tests.verifier.evaluators import Array, Case

QUANTA = (np.uint8, np.int8, np.uint16, np.int16)
BYTES = QUANTA[:2]


def integers(d: Draw, shape: tuple[int, ...], dtype: Any, most: int = 1000) -> Array:
    limits = np.iinfo(dtype)
    return d.numpy.integers(max(limits.min, -most), min(limits.max, most) + 1, shape).astype(dtype)


def scale(d: Draw, shape: tuple[int, ...]) -> Array:
    return (2.0 ** d.numpy.integers(-3, 2, shape)).astype(np.float32)


def parameters(d: Draw, shape: tuple[int, ...], zeros: Any) -> tuple[list[Array], dict[str, Any]]:
    """A scale and perhaps a zero point, of the whole or along an axis."""
    axis = d.axis(len(shape)) if shape else 0
    own: tuple[int, ...] = d.choice((), (1,), (shape[axis],)) if shape else ()
    needed = len(own) and (own[0] > 1 or len(shape) == 1)
    attrs = {"axis": axis} if needed else d.some(axis=axis) if shape else {}
    return [scale(d, own), *([integers(d, own, zeros, 20)] if zeros is not None else [])], attrs


def quantize(d: Draw) -> Case:
    shape = d.shape()
    dtype = d.choice(None, *QUANTA)
    given, attrs = parameters(d, shape, dtype)
    x = d.choice(np.round(d.array(*shape, low=-40, high=40) * 8) / 8, d.array(*shape, low=-5000, high=5000))
    return Case([x.astype(np.float32), *given], attrs)


def dequantize(d: Draw) -> Case:
    shape = d.shape()
    dtype = d.choice(*QUANTA, np.int32)
    given, attrs = parameters(d, shape, None if d.flag() else dtype)
    most = d.choice(1000, 2**31)  # less a zero point these wrap around
    return Case([integers(d, shape, dtype, most), *given], attrs)


def dynamic(d: Draw) -> Case:
    x = d.array(*d.shape())
    x.flat[0] += 0.5  # nothing is known of zeros alone
    return Case([x], outputs=3)


def matrices(d: Draw) -> tuple[Array, Array]:
    k, batch = d.size(), d.shape(0, 2)
    a, b = d.choice(*BYTES), d.choice(*BYTES)
    return integers(d, (*batch, d.size(), k), a), integers(d, (*d.choice((), batch), k, d.size()), b)


MANY = 33_100
"""So many products of the greatest bytes wrap around in 32 bits."""


def matmul_integer(d: Draw) -> Case:
    a, b = matrices(d)
    if d.random.random() < 0.03:
        a, b = np.full((1, MANY), 255, np.uint8), np.full((MANY, 2), 255, np.uint8)
    zeros = [integers(d, (), a.dtype, 20), integers(d, d.choice((), (1,), b.shape[-1:]), b.dtype, 20)]
    return Case([a, b, *zeros[: d.size(0, 2)]])


def qlinear_matmul(d: Draw) -> Case:
    a, b = matrices(d)
    own = d.choice((), (1,), b.shape[-1:])
    one = [a, scale(d, ()), integers(d, (), a.dtype, 20)]
    return Case([*one, b, scale(d, own), integers(d, own, b.dtype, 20), *result(d, a.dtype)])


def result(d: Draw, dtype: Any) -> list[Array]:
    return [scale(d, ()) * np.float32(16), integers(d, (), dtype, 20)]


def images(d: Draw) -> tuple[Case, list[Array]]:
    case = conv(d)
    types = (np.uint8, d.choice(*BYTES))
    return case, [integers(d, x.shape, dtype) for x, dtype in zip(case.inputs[:2], types, strict=True)]


def conv_integer(d: Draw) -> Case:
    case, (x, w) = images(d)
    zeros = [integers(d, (), x.dtype, 20), integers(d, d.choice((), w.shape[:1]), w.dtype, 20)]
    return Case([x, w, *zeros[: d.size(0, 2)]], case.attrs)


def qlinear_conv(d: Draw) -> Case:
    case, (x, w) = images(d)
    own = d.choice((), w.shape[:1])
    zero = integers(d, (), w.dtype, 20)
    inputs = [x, scale(d, ()), integers(d, (), x.dtype, 20), w, scale(d, own), np.full(own, zero), *result(d, x.dtype)]
    return Case(inputs + [integers(d, w.shape[:1], np.int32) for _ in case.inputs[2:]], case.attrs)


QUANTIZED: Mapping[str, Callable[[Draw], Case]] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}
