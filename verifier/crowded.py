"""Instances at which what kernels add up in 32 bits wraps around: a long axis, and bytes at the ends of their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import onnx

from graphopt.base.types import DType
from graphopt.language.rule import Rule
from graphopt.language.scalar import Unknown
from graphopt.language.schemas import Misfit
from graphopt.language.term import Var
from graphopt.verifier.drawing import instance, instances
from graphopt.verifier.example import Array, Instance, Shape, Sizes, shape_of
from graphopt.verifier.scope import PLAIN
from graphopt.verifier.writing import models

MANY = 140_000
"""The length of an axis along which products of bytes, with a sign or without, add up to more than 32 bits hold."""
LARGEST = 2_000_000
"""The most elements that a tensor has."""
BYTES = replace(PLAIN, dtypes=(DType.FLOAT, DType.UINT8, DType.INT8))
DRAWN, ATTEMPTS = 60, 400
"""The most instances of bytes that are looked at, and the most draws that these may take."""


def crowded(rule: Rule) -> Iterator[Instance]:
    """Yield an instance for each axis, or pair of them, that has a name and can be long, with each choice of element
    types, if a rule reads bytes."""
    seen = set[tuple[str, ...]]()
    for drawn in instances(rule, seed=1, count=DRAWN, attempts=ATTEMPTS, scope=BYTES):
        types = tuple(value.dtype.name for value in drawn.values.values() if _is_of_bytes(value))
        if types in seen or not types:
            continue
        seen.add(types)
        axes = [axis for axis, size in drawn.dims.items() if isinstance(size, int)]
        longer = (_longer(rule, drawn, some) for some in (*combinations(axes, 1), *combinations(axes, 2)))
        yield from filter(None, longer)


def is_crowded(drawn: Instance) -> bool:
    return MANY in drawn.dims.values()


def _is_of_bytes(value: Any) -> bool:
    return isinstance(value, np.ndarray) and DType.of(value.dtype) in (DType.UINT8, DType.INT8)


def _longer(rule: Rule, drawn: Instance, axes: Iterable[str]) -> Instance | None:
    """Return the instance with some axes long; None where the left side is not defined there, or too large."""
    dims = {**drawn.dims, **dict.fromkeys(axes, MANY)}
    arrays = {name: value for name, value in drawn.values.items() if isinstance(value, np.ndarray)}
    shapes = {name: _shape(rule.holes[name], value, dims) for name, value in arrays.items()}
    if any(prod(shape) > LARGEST for shape in shapes.values()):
        return None
    found = instance(rule, dims, {**drawn.values} | {n: _resized(arrays[n], shapes[n]) for n in arrays}, attempts=1)
    return found and _small(rule, replace(found, written={}))


def _small(rule: Rule, drawn: Instance) -> Instance | None:
    """Return an instance if neither side makes a tensor that is too large of it."""
    try:
        sides = [onnx.shape_inference.infer_shapes(side) for side in models(rule, drawn)]
    except (Misfit, Unknown):  # the right side says nothing there
        return None
    shapes = (
        value.type.tensor_type.shape.dim for side in sides for value in (*side.graph.value_info, *side.graph.output)
    )
    return drawn if all(prod(dim.dim_value for dim in dims) <= LARGEST for dims in shapes) else None


def _shape(hole: Var, value: Array, dims: Sizes) -> Shape:
    return value.shape if hole.axes is None or "_" in hole.axes else shape_of(hole.axes, dims)


def _resized(value: Array, shape: Shape) -> Array:
    """Return an array of another size: of bytes, as far as they can be from their zero point, which is a single one.

    Floats are not 0: what is scaled by them would be.
    """
    if not _is_of_bytes(value):
        return np.resize(np.where(value == 0, np.ones_like(value), value), shape)
    limits = np.iinfo(value.dtype)
    far, near = (limits.min, limits.max) if limits.min else (limits.max, limits.min)
    return np.full(shape, far if shape else near, value.dtype)
