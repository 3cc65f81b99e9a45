"""Types of values: tensors of an element type and a shape, and others that are only carried."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, dim_product

Shape: TypeAlias = "tuple[Dim, ...]"


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
        return None if self.shape is None else dim_product(self.shape)

    @property
    def static_dims_product(self) -> int:
        """Number of elements where an open size is 1; 1 where the rank is unknown."""
        return prod(size for size in self.shape or () if isinstance(size, int))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{'?' if self.shape is None else ','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A sequence, map, optional or sparse type: a serialized `onnx.TypeProto` that is carried, never looked into."""

    proto: bytes


Type: TypeAlias = TensorType | OpaqueType
