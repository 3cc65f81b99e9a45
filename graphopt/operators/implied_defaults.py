"""Defaults that the ONNX text states in words because they depend on other inputs: schemas do not have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from graphopt.ir.types import Shape

ImpliedNumbers: TypeAlias = "tuple[int, ...] | None"


@dataclass(frozen=True, slots=True)
class ImpliedDefault:
    """Value that an absent attribute or input stands for, by the sizes of an input, where these are known."""

    compute: Callable[[Shape], ImpliedNumbers]
    input_position: int = 0
    reads_elements: bool = False
    """True if the elements of the input decide, not its sizes."""
    overriding_attribute: str = ""
    """An attribute whose presence gives the absent value another meaning."""


def _spatial_sizes(weights: Shape) -> ImpliedNumbers:
    sizes = tuple(size for size in weights[2:] if isinstance(size, int))
    return sizes if len(sizes) == len(weights) - 2 else None


def _axes_of_size_one(shape: Shape) -> ImpliedNumbers:
    is_known = all(isinstance(size, int) for size in shape)
    return tuple(axis for axis, size in enumerate(shape) if size == 1) if is_known else None


def _all_axes(shape: Shape) -> tuple[int, ...]:
    return tuple(range(len(shape)))


KERNEL_OF_WEIGHTS = ImpliedDefault(_spatial_sizes, 1)
ONE_PER_SPATIAL_AXIS = ImpliedDefault(lambda image: (1,) * (len(image) - 2))
ZERO_PER_SPATIAL_AXIS = ImpliedDefault(lambda image: (0,) * (len(image) - 2))
NO_PADS = ImpliedDefault(lambda image: (0,) * (2 * (len(image) - 2)))
AXES_REVERSED = ImpliedDefault(lambda shape: tuple(reversed(range(len(shape)))))
ALL_AXES = ImpliedDefault(_all_axes)
REDUCED_AXES = ImpliedDefault(_all_axes, overriding_attribute="noop_with_empty_axes")
AXES_OF_SIZE_ONE = ImpliedDefault(_axes_of_size_one)
AXES_OF_STARTS = ImpliedDefault(_all_axes, 1, reads_elements=True)
STEPS_OF_STARTS = ImpliedDefault(lambda starts: (1,) * len(starts), 1, reads_elements=True)
