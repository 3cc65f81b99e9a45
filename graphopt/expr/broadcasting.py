"""Broadcasting, of numbers and symbols alike: axes from the right, of which sizes are equal or one of them is 1.

https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import TypeVar

AnySize = TypeVar("AnySize")


def broadcast_shapes(
    shapes: Sequence[Sequence[AnySize]], join: Callable[[AnySize, AnySize], AnySize]
) -> tuple[AnySize, ...]:
    """Return the shape of an elementwise result; `join` is asked where two sizes do not plainly fit."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(reduce(partial(broadcast_sizes, join), sizes) for sizes in zip(*padded, strict=True))


def broadcast_sizes(join: Callable[[AnySize, AnySize], AnySize], a: AnySize, b: AnySize) -> AnySize:
    """Return the size of an axis that two operands share."""
    if a == b or b == 1:
        return a
    return b if a == 1 else join(a, b)
