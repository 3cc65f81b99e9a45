"""Bindings of the holes of a rule, and the values of its terms under a binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import DType
from graphopt.expr.broadcasting import broadcast_shapes
from graphopt.expr.dims import Dim, SymbolicDim, count_from_one
from graphopt.ir.graph import Attribute, Graph, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape, TensorType
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import (
    PYTHON_LOGIC,
    TENSOR_PROPERTIES,
    PythonLogic,
    Scalar,
    UndecidedScalarError,
    apply_scalar_function,
    expand_axes,
    has_property,
)
from graphopt.language.terms import App, Term, Var, axis_arguments, axis_position, multiple_argument, queried_constants


@dataclass(frozen=True, slots=True)
class ConstantBinding:
    """Binding of a `const` hole: a constant of the graph, seen in the shape that the rule declares."""

    value: Value
    tensor: Tensor
    shape: tuple[int, ...]
    is_reciprocal: bool = False
    """True if it stands for the reciprocal of the constant: the rule multiplies where the graph divides."""

    @property
    def is_as_stored(self) -> bool:
        """True if the constant can be used as it is in the graph."""
        return self.shape == self.tensor.shape and not self.is_reciprocal

    def stored_values(self) -> np.ndarray[Any, Any]:
        """Return the values in the shape of the constant; reciprocals as precisely as they are computed with."""
        own = self.tensor.numpy()
        return np.reciprocal(own.astype(np.float64)) if self.is_reciprocal else own

    def array(self) -> np.ndarray[Any, Any]:
        """Return the values in the declared shape."""
        own = self.stored_values()
        squeezed = own.reshape(own.shape[max(0, own.ndim - len(self.shape)) :])
        return np.broadcast_to(squeezed, self.shape)


@dataclass(frozen=True, slots=True)
class DefaultBinding:
    """Binding of a `const` hole with a default where the optional input is absent."""

    default: float
    shape: tuple[int, ...]
    dtype: DType
    """Element type of the operator's output."""

    def array(self) -> np.ndarray[Any, Any]:
        """Return the default at every place, as precisely as it is computed with."""
        return np.full(self.shape, self.default, np.float64 if self.dtype.is_float else self.dtype.numpy)


ScalarBinding: TypeAlias = "Attribute | Dim | Shape"
Binding: TypeAlias = "Value | ConstantBinding | DefaultBinding | ScalarBinding | Mapping[str, Attribute]"
AxisSizes: TypeAlias = "Mapping[str, Dim | Shape]"


def unify_axes(tokens: tuple[str, ...], shape: Shape, axes: AxisSizes) -> AxisSizes | None:
    """Bind axis names to the sizes of a shape; None where a name is bound to another size already.

    The pack of ones `1*k` also binds how long `*k` is, under the name `#k`.
    """
    pack = next((i for i, token in enumerate(tokens) if "*" in token), None)
    if len(shape) != len(tokens) if pack is None else len(shape) < len(tokens) - 1:
        return None
    bound = dict(axes)
    if pack is not None:
        stop = len(shape) - (len(tokens) - pack - 1)
        if not _unify_pack(tokens[pack], shape[pack:stop], bound):
            return None
        tokens, shape = tokens[:pack] + tokens[pack + 1 :], shape[:pack] + shape[stop:]
    for token, size in zip(tokens, shape, strict=True):
        expected = int(token) if token.isdigit() else bound.setdefault(token, size) if token != "_" else size
        if expected != size:
            return None
    return bound


def _unify_pack(token: str, sizes: Shape, bound: dict[str, Dim | Shape]) -> bool:
    name = token.split("*")[1]
    if bound.setdefault(f"#{name}", len(sizes)) != len(sizes):
        return False
    if token.startswith("1*"):
        return all(size == 1 for size in sizes)
    return bound.setdefault(f"*{name}", sizes) == sizes


def resolve_axes(tokens: Sequence[str], axes: AxisSizes) -> Shape | None:
    """Return the shape that axis names stand for; None where one is not bound."""
    try:
        ones = [["1"] * cast("int", axes[f"#{token[2:]}"]) if token.startswith("1*") else [token] for token in tokens]
        return expand_axes(chain.from_iterable(ones), axes.__getitem__)
    except KeyError:
        return None


def broadcast_dims(left: Shape, right: Shape) -> Shape | None:
    """Return the shape of an elementwise result; None where it cannot be known that the two fit."""
    shapes: list[tuple[Dim | None, ...]] = [left, right]
    found = tuple(size for size in broadcast_shapes(shapes, lambda a, b: None) if size is not None)
    return found if len(found) == max(len(left), len(right)) else None


def evaluate_scalar(term: Term, bound: Mapping[str, Binding], axes: AxisSizes, graph: Graph | None) -> Any:
    """Return the value of a scalar term: a number, text, list or truth value, in which sizes may be symbolic.

    Raises:
        UndecidedScalarError: it cannot be known; when matching, that means no.
    """
    return _BoundScalars(bound, axes, graph).evaluate(term)


@dataclass(frozen=True)
class PositiveSizesLogic(PythonLogic):
    """Decides where the answer is the same for every value of the named sizes, of which some are not 0."""

    positive: frozenset[str]

    def eq(self, left: Scalar, right: Scalar) -> bool | None:
        return super().eq(self._count_from_one(left), self._count_from_one(right))

    def le(self, left: Scalar, right: Scalar) -> bool | None:
        return super().le(self._count_from_one(left), self._count_from_one(right))

    def _count_from_one(self, number: Scalar) -> Scalar:
        return count_from_one(number, self.positive) if isinstance(number, SymbolicDim) else number


@dataclass(frozen=True)
class _BoundScalars(ScalarAlgebra):
    """Bindings of holes and axes in a graph."""

    bound: Mapping[str, Binding]
    axes: AxisSizes
    graph: Graph | None

    def hole(self, hole: Var) -> Any:
        return self.bound[hole.name]

    def sizes(self, axes: Sequence[str]) -> Shape:
        found = resolve_axes(axes, self.axes)
        return super().sizes(axes) if found is None else found

    def shape(self, of: Term) -> Shape:
        found = self._type(of).shape
        return super().shape(of) if found is None else found

    def dtype(self, of: Term) -> int:
        return int(self._type(of).dtype)

    def _type(self, of: Term) -> TensorType:
        assert self.graph is not None, f"{of} has a type in a graph"
        if not isinstance(of, Var):
            raise UndecidedScalarError(f"the type of {of}")
        return _bound_type(self.bound[of.name], self.graph)

    def contents(self, query: App) -> int | tuple[int, ...]:
        return evaluate_content_query(query, lambda hole: _bound_tensor(self.bound[hole.name]))

    def apply(self, app: App, arguments: Sequence[Any]) -> Any:
        positive = None if self.graph is None else self.graph.positive_sizes
        logic = PositiveSizesLogic(positive) if positive else PYTHON_LOGIC
        return apply_scalar_function(app.op, logic, *arguments)

    def property_holds(self, app: App, more: Iterator[Any]) -> bool:
        name, (hole, *_) = app.op, app.args
        match self.bound[hole.name] if isinstance(hole, Var) else None:
            case ConstantBinding() | DefaultBinding() as bound if name == "is_arange":  # in the shape that is declared
                return has_property(name, bound.array(), *more)
            case ConstantBinding(tensor=tensor) as bound:
                return tensor.dtype.numpy.kind != "O" and has_property(name, bound.stored_values(), *more)
            case DefaultBinding(default=default):
                return has_property(name, np.asarray(default, np.float64))
            case Value() as bound if name in TENSOR_PROPERTIES:
                constant = None if self.graph is None else self.graph.constant(bound)
                # of what is computed the gate and the matcher ask what the model says
                return constant is None or has_property(name, constant.numpy(), *more)
        raise UndecidedScalarError(f"{name} of what is no constant")


def evaluate_content_query(term: App, tensor_of: Callable[[Var], Tensor]) -> int | tuple[int, ...]:
    """Return what a function of the contents of constants gives."""
    holes, said = queried_constants(term), axis_arguments(term)
    along = [(tensor_of(hole), [axis_position(axis, hole.axes or ()) for axis in said]) for hole in holes]
    multiple = multiple_argument(term)
    if term.op == "block_count":
        ((tensor, (rows, columns)),) = along
        return tensor.block_count(rows, columns, multiple)
    if term.op == "first_index":
        ((tensor, (axis,)),) = along
        return _first_index(term, tensor, axis)
    if term.op == "nonzero_indices":
        live = np.logical_or.reduce([tensor.nonzero_mask(*axes) for tensor, axes in along])
        return tuple(map(int, np.flatnonzero(_pad_to_multiple(live, multiple))))
    seen: dict[tuple[int, ...], int] = {}
    classes = zip(*(tensor.first_equal(*axes).tolist() for tensor, axes in along), strict=True)
    first = np.array([seen.setdefault(each, place) for place, each in enumerate(classes)], np.int64)
    listed = _pad_to_multiple(first == np.arange(len(first)), multiple)
    position = np.cumsum(listed) - 1
    found = np.flatnonzero(listed) if term.op == "unique_indices" else np.where(listed, position, position[first])
    return tuple(map(int, found))


def _first_index(term: App, tensor: Tensor, axis: int) -> int:
    """Return the first of the numbers that a constant counts through along an axis.

    Raises:
        UndecidedScalarError: it does not count there, alike along all other axes, or is empty.
    """
    rows = np.moveaxis(tensor.numpy(), axis, -1)
    if not rows.size or not tensor.dtype.is_integer:
        raise UndecidedScalarError(f"{term} of what holds no whole number")
    first = int(rows.flat[0])
    if not np.array_equal(rows, np.broadcast_to(np.arange(first, first + rows.shape[-1]), rows.shape)):
        raise UndecidedScalarError(f"{term} of numbers that are not consecutive")
    return first


def _pad_to_multiple(chosen: NDArray[np.bool_], multiple: int) -> NDArray[np.bool_]:
    """Return what is chosen, and the first others as well, as many as a multiple lacks."""
    return chosen | (np.cumsum(~chosen) <= -int(np.count_nonzero(chosen)) % multiple)


def _bound_tensor(bound: Binding) -> Tensor:
    """Return what a constant holds, in the shape that the rule declares.

    Raises:
        UndecidedScalarError: it is none, or one of texts.
    """
    if isinstance(bound, ConstantBinding) and bound.is_as_stored and bound.tensor.dtype.numpy.kind != "O":
        return bound.tensor
    if isinstance(bound, ConstantBinding | DefaultBinding) and (array := bound.array()).dtype.kind != "O":
        return Tensor.from_array(array)
    raise UndecidedScalarError("the contents of what is no constant")


def _bound_type(bound: Binding, graph: Graph) -> TensorType:
    match bound:
        case Value():
            found = graph.tensor_type(bound)
        case ConstantBinding():
            found = TensorType(bound.tensor.dtype, bound.shape)
        case DefaultBinding():
            found = TensorType(bound.dtype, bound.shape)
        case _:
            found = None
    if found is None:
        raise UndecidedScalarError("a type that is not known")
    return found


def literal_value(term: App) -> object:
    """Return the value of a term that the rule computes, such as sqrt(2); None, which equals nothing, if it has none:
    then it asks for what only a match binds."""
    try:
        return evaluate_scalar(term, {}, {}, None)
    except UndecidedScalarError:
        return None
