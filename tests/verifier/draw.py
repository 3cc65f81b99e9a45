"""Random choices of which cases are made, and the windows of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from tests.verifier.evaluators import Array, Case


class Draw:
    """Random choices of one case."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.numpy = np.random.default_rng(random.getrandbits(32))

    def size(self, least: int = 1, most: int = 3) -> int:
        return self.random.randint(least, most)

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.size(least, most)))

    def extent(self, most: int = 3) -> int:
        """The size of an axis that may be empty."""
        return 0 if self.random.random() < 0.06 else self.size(1, most)

    def any_shape(self, least: int = 0) -> tuple[int, ...]:
        """With an empty axis at times: not for reductions, of which runtimes make different things then."""
        return tuple(self.extent() for _ in range(self.size(least, 4)))

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self.numpy.uniform(low, high, shape).astype(np.float32)

    def spread(self, *shape: int) -> Array:
        """Neighbours have different signs: where more than one are normalized, their variance is not almost nothing."""
        odd = np.indices(shape).sum(0) % 2 == 1
        values = self.array(*shape, low=0.5)
        return np.where(odd, -values, values)

    def strewn(self, values: Array, among: Sequence[float]) -> Array:
        """The values, of which some are taken from a few: where a function has its borders, or what is no number."""
        chosen = self.numpy.choice(np.array(among or [0], values.dtype), values.shape)
        return np.where(self.numpy.random(values.shape) < 0.2, chosen, values) if among else values

    def special(self, *shape: int) -> Array:
        """Infinities and NaN among the values: what is moved arrives as it was."""
        return self.strewn(self.array(*shape), (np.inf, -np.inf, np.nan, 0.0))

    def flag(self) -> int:
        return self.random.randint(0, 1)

    def axis(self, rank: int) -> int:
        return self.random.randrange(-rank, rank)

    def axes(self, rank: int, least: int = 0) -> tuple[int, ...]:
        chosen = self.random.sample(range(rank), self.random.randint(min(least, rank), rank))
        return tuple(a - rank if self.flag() else a for a in chosen)

    def some(self, **attrs: Any) -> dict[str, Any]:
        """Some of the attributes: the others keep their defaults."""
        return {name: value for name, value in attrs.items() if self.random.random() < 0.7}

    def choice(self, *options: Any) -> Any:
        return self.random.choice(options)


def window(d: Draw, kernel: tuple[int, ...], *, pool: bool = False, wider: int = 0) -> dict[str, Any]:
    """How a kernel walks; the pads are shorter than it, or up to so much `wider`."""
    rank = len(kernel)
    attrs = d.some(strides=[d.size() for _ in kernel], dilations=[d.size(1, 2 if k < 3 else 1) for k in kernel])
    mode = d.choice("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode == "NOTSET" or (pool and mode and d.random.random() < 0.2):  # beside another mode they mean nothing
        attrs["pads"] = [d.size(0, kernel[i % rank] - 1 + wider) for i in range(2 * rank)]
    if mode.startswith("SAME") and pool:
        attrs.pop("dilations", None)  # ONNX Runtime takes them for 1
        attrs["strides"] = [d.size(1, k + 1) for k in kernel]
    return {**attrs, "auto_pad": mode} if mode and (mode != "NOTSET" or d.flag()) else attrs


def conv(d: Draw) -> Case:
    space = tuple(d.size(3, 6) for _ in range(d.choice(1, 1, 2, 2, 3)))
    kernel = tuple(d.size(1, 3) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(d.extent(2), i * group, *space), d.array(o * group, i, *kernel)]
    inputs += [d.array(o * group)] if d.flag() else []
    attrs = window(d, kernel, wider=d.choice(0, 2))
    if attrs.get("auto_pad", "").startswith("SAME"):
        attrs.pop("dilations", None)  # ONNX Runtime refuses them
    return Case(inputs, {**attrs, **({"group": group} if group > 1 or d.flag() else {})})


def shapes_that_broadcast(d: Draw, count: int) -> list[tuple[int, ...]]:
    full = d.any_shape()
    return [
        tuple(1 if d.random.random() < 0.3 else s for s in full)[d.size(0, len(full)) if i and d.flag() else 0 :]
        for i in range(count)
    ]
