"""Defaults that the ONNX text states in words because they depend on other inputs: schemas do not have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.base.types import Shape

Numbers: TypeAlias = "tuple[int, ...] | None"


@dataclass(frozen=True, slots=True)
class Implied:
    """What an absent attribute or input stands for, by the sizes of an input, where these are known."""

    numbers: Callable[[Shape], Numbers]
    position: int = 0
    by_elements: bool = False
    """Whether the elements of the input say it, not its sizes."""
    unless: str = ""
    """An attribute that makes it mean something else."""


def _spatial_sizes(weights: Shape) -> Numbers:
    sizes = tuple(size for size in weights[2:] if isinstance(size, int))
    return sizes if len(sizes) == len(weights) - 2 else None


def _axes_of_one(shape: Shape) -> Numbers:
    is_known = all(isinstance(size, int) for size in shape)
    return tuple(axis for axis, size in enumerate(shape) if size == 1) if is_known else None


def _each(shape: Shape) -> tuple[int, ...]:
    return tuple(range(len(shape)))


KERNEL_OF_WEIGHTS = Implied(_spatial_sizes, 1)
ONE_PER_SPATIAL_AXIS = Implied(lambda image: (1,) * (len(image) - 2))
ZERO_PER_SPATIAL_AXIS = Implied(lambda image: (0,) * (len(image) - 2))
NO_PADS = Implied(lambda image: (0,) * (2 * (len(image) - 2)))
AXES_REVERSED = Implied(lambda shape: tuple(reversed(range(len(shape)))))
ALL_AXES = Implied(_each)
REDUCED_AXES = Implied(_each, unless="noop_with_empty_axes")
AXES_OF_SIZE_ONE = Implied(_axes_of_one)
AXES_OF_STARTS = Implied(_each, 1, by_elements=True)
STEPS_OF_STARTS = Implied(lambda starts: (1,) * len(starts), 1, by_elements=True)
