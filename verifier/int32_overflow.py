"""Instances at which 32-bit accumulators of kernels overflow: along a long axis, with extreme bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import onnx

from graphopt.base.dtype import DType
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import Var
from graphopt.language.type_inference import NoInstance
from graphopt.verifier.concrete_instance import Array, ConcreteInstance, Shape, Sizes, axes_shape
from graphopt.verifier.instance_models import build_models
from graphopt.verifier.instance_sampling import complete_instance, sample_instances
from graphopt.verifier.sampling_scope import PLAIN

OVERFLOW_LENGTH = 140_000
"""The length of an axis along which products of bytes, with a sign or without, add up to more than 32 bits hold."""
LARGEST = 2_000_000
"""The most elements that a tensor has."""
BYTES = replace(PLAIN, dtypes=(DType.FLOAT, DType.UINT8, DType.INT8))
MAX_INSTANCES, ATTEMPTS = 60, 400
"""The most instances of bytes that are looked at, and the most draws that these may take."""


def sample_overflow_instances(rule: Rule) -> Iterator[ConcreteInstance]:
    """Yield instances of a rule that reads bytes: one for each named axis that can be long, each pair of them, and each
    choice of element types."""
    seen = set[tuple[str, ...]]()
    for drawn in sample_instances(rule, seed=1, count=MAX_INSTANCES, attempts=ATTEMPTS, scope=BYTES):
        types = tuple(value.dtype.name for value in drawn.values.values() if _is_of_bytes(value))
        if types in seen or not types:
            continue
        seen.add(types)
        axes = [axis for axis, size in drawn.dims.items() if isinstance(size, int)]
        longer = (_lengthen_axes(rule, drawn, some) for some in (*combinations(axes, 1), *combinations(axes, 2)))
        yield from filter(None, longer)


def has_overflow_axis(drawn: ConcreteInstance) -> bool:
    return OVERFLOW_LENGTH in drawn.dims.values()


def _is_of_bytes(value: Any) -> bool:
    return isinstance(value, np.ndarray) and DType.from_numpy(value.dtype) in (DType.UINT8, DType.INT8)


def _lengthen_axes(rule: Rule, drawn: ConcreteInstance, axes: Iterable[str]) -> ConcreteInstance | None:
    """Return the instance with some axes long; None where the left side is not defined there, or too large."""
    dims = {**drawn.dims, **dict.fromkeys(axes, OVERFLOW_LENGTH)}
    arrays = {name: value for name, value in drawn.values.items() if isinstance(value, np.ndarray)}
    shapes = {name: _shape(rule.holes[name], value, dims) for name, value in arrays.items()}
    if any(prod(shape) > LARGEST for shape in shapes.values()):
        return None
    found = complete_instance(
        rule, dims, {**drawn.values} | {n: _resized(arrays[n], shapes[n]) for n in arrays}, attempts=1
    )
    return found and _reject_large(rule, replace(found, stored_shapes={}))


def _reject_large(rule: Rule, drawn: ConcreteInstance) -> ConcreteInstance | None:
    """Return an instance if neither side makes a tensor that is too large of it."""
    try:
        sides = [onnx.shape_inference.infer_shapes(side) for side in build_models(rule, drawn)]
    except (NoInstance, UndecidedScalarError):  # the right side says nothing there
        return None
    shapes = (
        value.type.tensor_type.shape.dim for side in sides for value in (*side.graph.value_info, *side.graph.output)
    )
    return drawn if all(prod(dim.dim_value for dim in dims) <= LARGEST for dims in shapes) else None


def _shape(hole: Var, value: Array, dims: Sizes) -> Shape:
    return value.shape if hole.axes is None or "_" in hole.axes else axes_shape(hole.axes, dims)


def _resized(value: Array, shape: Shape) -> Array:
    """Return an array of another size: of bytes, as far as they can be from their zero point, which is a single one.

    Floats are not 0: what is scaled by them would be.
    """
    if not _is_of_bytes(value):
        return np.resize(np.where(value == 0, np.ones_like(value), value), shape)
    limits = np.iinfo(value.dtype)
    far, near = (limits.min, limits.max) if limits.min else (limits.max, limits.min)
    return np.full(shape, far if shape else near, value.dtype)
