"""One instance of a rule: sizes, attributes and values that satisfy it. Tests run it, counterexamples show it.

`instance_sampling` draws instances, `instance_models` writes one as two small models. None of them knows what the
operators compute, nor how rules are matched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.ir.tensor import Tensor
from graphopt.language.binding import evaluate_content_query
from graphopt.language.rule import Rule
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import UndecidedScalarError, expand_axes, has_property
from graphopt.language.terms import App, Term, Var

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Mapping[str, "int | Shape"]
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class ConcreteInstance:
    """Values for everything that a rule leaves open.

    `dims`: the size of each named axis, the sizes of each pack (`"*b": (2, 3)`), the shape of each hole without axes.
    `values`: by hole, the value of an attribute (a dict for `attributes`), or an array: the weights, and what is fed.
    None is an optional input that is absent.
    """

    dims: Sizes
    values: Mapping[str, Any]
    stored_shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Constants that the left model holds in another, broadcast-equivalent shape."""

    def feeds(self, rule: Rule) -> dict[str, Array]:
        """Return the inputs of both models by name; tensors that the rule knows to count are constants in the
        models."""
        read = (
            name for name, hole in rule.holes.items() if hole.kind == "tensor" and name not in rule.arange_conditions
        )
        return {name: self.values[name] for name in read}

    def __str__(self) -> str:
        shown = [f"{name}={size}" for name, size in self.dims.items()]
        for name, value in self.values.items():
            text = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else value
            shown.append(f"{name}={text}")
        return ", ".join(shown)


# -- scalar terms --------------------------------------------------------------------------------------------------


def evaluate_scalar_at(term: Term, rule: Rule, instance: ConcreteInstance) -> Any:
    """Return the value of a scalar term: an attribute of the right side, or a condition."""
    return _InstanceScalars(rule, instance).evaluate(term)


@dataclass(frozen=True)
class _InstanceScalars(ScalarAlgebra):
    """What an instance fixes."""

    rule: Rule
    instance: ConcreteInstance

    def hole(self, hole: Var) -> Any:
        return self.instance.values[hole.name]

    def sizes(self, axes: Sequence[str]) -> Shape:
        return axes_shape(axes, self.instance.dims)

    def shape(self, of: Term) -> Shape:
        if not isinstance(of, Var):  # the meaning of an operator in another
            raise UndecidedScalarError(f"the shape of {of} in an instance")
        return _shape(self.rule.holes[of.name], self.instance)

    def dtype(self, of: Term) -> DType:
        return DType.from_numpy(self._array(of).dtype)

    def contents(self, query: App) -> int | tuple[int, ...]:
        return evaluate_content_query(query, lambda hole: Tensor.from_array(self._array(hole)))

    def property_holds(self, app: App, more: Iterator[Any]) -> bool:
        return has_property(app.op, self._array(app.operands[0]), *more)

    def _array(self, of: Term) -> Array:
        if not isinstance(of, Var):
            raise UndecidedScalarError(f"the elements of {of} in an instance")
        return array_of(self.rule, self.instance, of.name)


def satisfies(rule: Rule, instance: ConcreteInstance) -> bool:
    """Return whether every condition of the rule holds."""
    return all(evaluate_scalar_at(condition, rule, instance) for condition in rule.conditions)


def _shape(hole: Var, instance: ConcreteInstance) -> Shape:
    """Return the shape of a hole whose array may be still to be drawn."""
    given = instance.values.get(hole.name)
    if isinstance(given, np.ndarray):
        return tuple(given.shape)
    if hole.axes is not None and "_" in hole.axes:
        raise UndecidedScalarError(f"a size of {hole} that has no name")
    shape = instance.dims[hole.name] if hole.axes is None else axes_shape(hole.axes, instance.dims)
    assert isinstance(shape, tuple), hole.name
    return shape


def array_of(rule: Rule, instance: ConcreteInstance, name: str) -> Array:
    """Return the array of a hole in its declared shape; of an absent optional input, its default."""
    value = instance.values[name]
    if isinstance(value, np.ndarray):
        return value
    hole = rule.holes[name]
    assert hole.default is not None and hole.axes is not None, f"{name} has no value"
    dtypes = [value.dtype for value in instance.values.values() if isinstance(value, np.ndarray)]
    dtype = next((dtype for dtype in dtypes if dtype.kind not in "bi"), dtypes[0])
    return np.full(axes_shape(hole.axes, instance.dims), hole.default, dtype)


def axes_shape(axes: Iterable[str], dims: Sizes) -> Shape:
    """Return the sizes of axes; raises KeyError for a name without a size."""
    return expand_axes(axes, dims.__getitem__)
