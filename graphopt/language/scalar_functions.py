"""Scalar functions: what attributes and conditions of rules are computed with. A closed set, one table for all.

Each function is written against a `Logic`, which decides comparisons and choices: Python's for the matcher, Z3's for
the verifier. A list has a known length in both; its elements may be symbols, which nothing but the Logic may look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from inspect import Parameter, signature
from itertools import pairwise
from math import prod, sqrt
from operator import floordiv, mod, truediv
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.base.dtype import MANTISSA_BITS, DType
from graphopt.expr.broadcasting import broadcast_shapes
from graphopt.expr.dims import Dim, SymbolicDim, is_nonnegative_dim

Scalar = Any  # an int, Sym, float, str or bool; in the verifier a Z3 expression
Scalars = Any  # a scalar or a tuple of scalars


class UndecidedScalarError(Exception):
    """A number that hangs on a comparison which cannot be decided: when matching, that means no."""


class InvalidScalarCallError(UndecidedScalarError):
    """A scalar function of what it is not made for: a list where it takes a number, or one argument too many."""


class Logic(Protocol):
    """Representation of truth: Python's booleans and None here, Z3's formulas in the verifier."""

    def eq(self, left: Scalar, right: Scalar) -> Any: ...
    def le(self, left: Scalar, right: Scalar) -> Any: ...
    def all(self, parts: Iterable[Any]) -> Any: ...
    def any(self, parts: Iterable[Any]) -> Any: ...
    def negate(self, part: Any) -> Any: ...
    def choose(self, condition: Any, then: Scalar, otherwise: Scalar) -> Scalar: ...
    def concrete_int(self, number: Scalar) -> int:
        """Return a number that counts or names a position, as Python's own; raises where it is a symbol."""
        ...


class PythonLogic:
    """Decides where the answer is the same for every value of the named sizes; None is "that cannot be known"."""

    def eq(self, left: Scalar, right: Scalar) -> bool | None:
        if left == right:
            return True
        if isinstance(left, SymbolicDim) or isinstance(right, SymbolicDim):
            difference = left - right
            if not isinstance(difference, SymbolicDim) or _is_positive(difference) or _is_positive(-difference):
                return False
            return None
        return False

    def le(self, left: Scalar, right: Scalar) -> bool | None:
        if not isinstance(left, SymbolicDim) and not isinstance(right, SymbolicDim):
            return bool(left <= right)
        if is_nonnegative_dim(right - left) or (isinstance(right, int) and right >= MAX_AXIS_SIZE):
            return True
        return False if _is_positive(left - right) else None

    def all(self, parts: Iterable[bool | None]) -> bool | None:
        answers = set(parts)
        return False if False in answers else None if None in answers else True

    def any(self, parts: Iterable[bool | None]) -> bool | None:
        answers = set(parts)
        return True if True in answers else None if None in answers else False

    def negate(self, part: bool | None) -> bool | None:
        return None if part is None else not part

    def choose(self, condition: bool | None, then: Scalar, otherwise: Scalar) -> Scalar:
        if condition is None and then != otherwise:
            raise UndecidedScalarError(f"whether it is {then} or {otherwise}")
        return then if condition else otherwise

    def concrete_int(self, number: Scalar) -> int:
        return _concrete_int(number)


MAX_AXIS_SIZE = 2**63 - 1
"""No axis is longer: sizes are 64-bit integers. As the end of a slice it means "to the end"."""
MAX_LIST_LENGTH = 1 << 16
"""A rule makes no longer list: lists are of axes, or have a few numbers for each."""
PYTHON_LOGIC = PythonLogic()


def _is_positive(dim: Dim) -> bool:
    """Certainly greater than zero, names being non-negative."""
    return is_nonnegative_dim(dim - 1)


def _elementwise(function: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalars, Scalars], Scalars]:
    """Elementwise on two lists of one length, or a list and a number."""

    def lifted(left: Scalars, right: Scalars) -> Scalars:
        match isinstance(left, tuple), isinstance(right, tuple):
            case True, True:
                if len(left) != len(right):
                    raise UndecidedScalarError(f"lists of {len(left)} and {len(right)} elements")
                return tuple(function(a, b) for a, b in zip(left, right, strict=True))
            case True, False:
                return tuple(function(a, right) for a in left)
            case False, True:
                return tuple(function(left, b) for b in right)
        return function(left, right)

    return lifted


def _equal(logic: Logic, a: Scalars, b: Scalars) -> Any:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) != len(b):
        return logic.any(())
    return logic.all(_as_tuple(_elementwise(logic.eq)(a, b)))


def _as_tuple(value: Scalars) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _maximum(logic: Logic, left: Scalar, right: Scalar) -> Scalar:
    return logic.choose(logic.le(left, right), right, left)


def _minimum(logic: Logic, left: Scalar, right: Scalar) -> Scalar:
    """Chosen, for `left + right - larger` loses the smaller number where the other is large."""
    return logic.choose(logic.le(left, right), left, right)


def _partial(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """Make a function of numbers undecided where it has no value, as a division by zero has none."""

    def partial(*numbers: Scalar) -> Scalar:
        try:
            return function(*numbers)
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            raise UndecidedScalarError(f"{error}, of {', '.join(map(str, numbers))}") from error

    return partial


def _concrete_int(number: Scalar) -> int:
    """Any whole number that is no symbol.

    Raises:
        UndecidedScalarError: it is a symbol, or lies between whole numbers.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise UndecidedScalarError(f"which number {number} is")
    return number


def _concrete_ints(logic: Logic, numbers: Scalars) -> tuple[int, ...]:
    return tuple(map(logic.concrete_int, _as_tuple(numbers)))


def _list_length(logic: Logic, count: Scalar) -> int:
    """Return the length that a list is to have.

    Raises:
        UndecidedScalarError: longer than any.
    """
    length = logic.concrete_int(count)
    if length > MAX_LIST_LENGTH:
        raise UndecidedScalarError(f"a list of {length} numbers")
    return length


def _item(logic: Logic, items: Sequence[Scalar], index: Scalar) -> Scalar:
    place = logic.concrete_int(index)
    if not -len(items) <= place < len(items):
        raise UndecidedScalarError(f"element {place} of a list of {len(items)}")
    return items[place]


def _sorted(logic: Logic, items: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """By exchanging neighbours, so that the Logic decides each comparison."""
    result = list(items)
    for end in range(len(result) - 1, 0, -1):
        for i in range(end):
            one, other = result[i], result[i + 1]
            result[i], result[i + 1] = _minimum(logic, one, other), _maximum(logic, one, other)
    return tuple(result)


def _normalize_indices(logic: Logic, positions: Scalars, length: Scalars) -> Scalars:
    """Positions counted from the start: negative ones are counted from the end of `length` elements."""
    return _elementwise(lambda p, n: logic.choose(logic.le(0, p), p, p + n))(positions, length)


def _broadcast(logic: Logic, left: Sequence[Scalar], right: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return the shape of an elementwise operator's result, for two shapes that fit."""
    return broadcast_shapes((left, right), partial(join_sizes, logic))


def join_sizes(logic: Logic, a: Scalar, b: Scalar) -> Scalar:
    """Return the size of an axis that two operands share, for sizes that fit: a number that is not 1 is it."""
    for size in (a, b):
        if isinstance(size, int):
            return size
    return logic.choose(logic.eq(a, 1), b, a)


def _is_noop_reshape(logic: Logic, request: Sequence[Scalar], shape: Sequence[Scalar]) -> Any:
    """Return whether a Reshape (with allowzero=0) of a tensor of this shape to `request` leaves the shape as it is."""
    if len(request) != len(shape):
        return logic.any(())
    pairs = zip(request, shape, strict=True)
    return logic.all(logic.any([logic.eq(r, 0), logic.eq(r, -1), logic.eq(r, size)]) for r, size in pairs)


def _zeros_subset(logic: Logic, items: Sequence[Scalar], others: Sequence[Scalar]) -> Any:
    """Return whether `others` has a zero wherever `items` has one."""
    padded = (*others, *(1,) * (len(items) - len(others)))
    pairs = zip(items, padded, strict=False)
    return logic.all(logic.any([logic.negate(logic.eq(a, 0)), logic.eq(b, 0)]) for a, b in pairs)


def _list_positions(logic: Logic, positions: Scalars, length: int) -> list[int]:
    """Positions counted from the start of a list.

    Raises:
        UndecidedScalarError: one lies outside of the list.
    """
    places = _concrete_ints(logic, positions)
    if not all(-length <= place < length for place in places):
        raise UndecidedScalarError(f"places {places} of a list of {length}")
    return [place % length for place in places]


def _delete(logic: Logic, items: Sequence[Scalar], positions: Scalars) -> tuple[Scalar, ...]:
    dropped = _list_positions(logic, positions, len(items))
    return tuple(item for position, item in enumerate(items) if position not in dropped)


def _insert(logic: Logic, items: Sequence[Scalar], positions: Scalars, value: Scalar) -> tuple[Scalar, ...]:
    """Return a list that has `value` at `positions` and the items elsewhere, in order."""
    longer = len(items) + len(_as_tuple(positions))
    where = _list_positions(logic, positions, longer)
    if len(set(where)) < len(where):
        raise UndecidedScalarError(f"two numbers in one of the places {where}")
    rest = iter(items)
    return tuple(value if i in where else next(rest) for i in range(longer))


def _scatter(logic: Logic, items: Sequence[Scalar], positions: Scalars, length: Scalar) -> tuple[Scalar, ...]:
    """Return a list of `length` numbers that has the items at `positions` and 0 elsewhere."""
    count = _list_length(logic, length)
    where = dict(zip(_list_positions(logic, positions, count), items, strict=True))
    return tuple(where.get(i, 0) for i in range(count))


def _inverse(logic: Logic, perm: Sequence[Scalar]) -> tuple[int, ...]:
    """Return the inverse of a permutation; for other lists, the positions in the order of their numbers."""
    return tuple(sorted(range(len(perm)), key=_concrete_ints(logic, perm).__getitem__))


@dataclass(frozen=True)
class ScalarFunction:
    """A scalar function, and its line in the guide."""

    compute: Callable[..., Scalars]
    description: str

    def __call__(self, logic: Logic, *arguments: Scalars) -> Scalars:
        return self.compute(logic, *arguments)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Parameters as a rule passes them, without the logic: names, `*parts` for any number."""
        taken = list(signature(self.compute).parameters.values())[1:]
        return tuple(str(parameter.replace(annotation=Parameter.empty)) for parameter in taken)


NUMBER_FUNCTIONS: Mapping[str, ScalarFunction] = {
    "add": ScalarFunction(lambda logic, a, b: _elementwise(lambda x, y: x + y)(a, b), "`a + b`"),
    "sub": ScalarFunction(lambda logic, a, b: _elementwise(lambda x, y: x - y)(a, b), "`a - b`"),
    "mul": ScalarFunction(lambda logic, a, b: _elementwise(lambda x, y: x * y)(a, b), "`a * b`"),
    "floordiv": ScalarFunction(
        lambda logic, a, b: _elementwise(_partial(floordiv))(a, b), "`a // b`: the quotient, rounded down"
    ),
    "mod": ScalarFunction(lambda logic, a, b: _elementwise(_partial(mod))(a, b), "`a % b`: the remainder of that"),
    "truediv": ScalarFunction(lambda logic, a, b: _elementwise(_partial(truediv))(a, b), "`a / b`, not rounded"),
    "neg": ScalarFunction(lambda logic, a: _elementwise(lambda x, y: y - x)(a, 0), "`-a`"),
    "maximum": ScalarFunction(
        lambda logic, a, b: _elementwise(lambda x, y: _maximum(logic, x, y))(a, b), "the larger of the two"
    ),
    "minimum": ScalarFunction(
        lambda logic, a, b: _elementwise(lambda x, y: _minimum(logic, x, y))(a, b), "the smaller of the two"
    ),
    "sqrt": ScalarFunction(lambda logic, a: _partial(sqrt)(a), "the square root"),
    "choose": ScalarFunction(
        lambda logic, condition, a, b: logic.choose(condition, a, b), "`a` where the condition holds, else `b`"
    ),
    "item": ScalarFunction(_item, "one element of a list; -1 is the last"),
    "length": ScalarFunction(lambda logic, items: len(items), "how many elements a list has"),
    "sum": ScalarFunction(lambda logic, items: reduce(lambda x, y: x + y, items, 0), "the sum of a list"),
    "product": ScalarFunction(lambda logic, items: reduce(lambda x, y: x * y, items, 1), "the product of a list"),
}
"""Functions that give numbers. Arithmetic is elementwise on two lists of one length, or a list and a number."""

LIST_FUNCTIONS: Mapping[str, ScalarFunction] = {
    "concat": ScalarFunction(
        lambda logic, *parts: tuple(item for part in parts for item in _as_tuple(part)), "numbers and lists in a row"
    ),
    "slice": ScalarFunction(
        lambda logic, items, start, stop: tuple(items[logic.concrete_int(start) : logic.concrete_int(stop)]),
        "the elements from `start` to `stop`",
    ),
    "repeat": ScalarFunction(
        lambda logic, value, count: (value,) * _list_length(logic, count), "`count` times the same number"
    ),
    "range": ScalarFunction(lambda logic, count: tuple(range(_list_length(logic, count))), "0, 1, … below `count`"),
    "delete": ScalarFunction(_delete, "a list without the elements at `positions`"),
    "insert": ScalarFunction(
        _insert,
        "a list that has `value` at `positions` and the items elsewhere, in order",
    ),
    "scatter": ScalarFunction(
        _scatter,
        "a list of `length` numbers that has the items at `positions` and 0 elsewhere",
    ),
    "sorted": ScalarFunction(_sorted, "the elements, smallest first"),
    "compose": ScalarFunction(
        lambda logic, first, second: tuple(_item(logic, first, i) for i in second),
        "the permutation `first`, then `second`",
    ),
    "inverse": ScalarFunction(
        _inverse,
        "the permutation that undoes `perm`",
    ),
    "normalize_indices": ScalarFunction(
        _normalize_indices, "positions counted from the start of `length` elements, negative ones too"
    ),
    "broadcast": ScalarFunction(_broadcast, "the shape of an elementwise operator's result, for two shapes that fit"),
}
"""Functions that give lists."""

PREDICATES: Mapping[str, ScalarFunction] = {
    "eq": ScalarFunction(_equal, "equal; of lists, everywhere"),
    "ne": ScalarFunction(lambda logic, a, b: logic.negate(_equal(logic, a, b)), "not `eq`"),
    "le": ScalarFunction(
        lambda logic, a, b: logic.all(_as_tuple(_elementwise(logic.le)(a, b))), "`a <= b`; of lists, everywhere"
    ),
    "lt": ScalarFunction(
        lambda logic, a, b: logic.all(_as_tuple(_elementwise(lambda x, y: logic.negate(logic.le(y, x)))(a, b))),
        "`a < b`; of lists, everywhere",
    ),
    "all_of": ScalarFunction(lambda logic, *parts: logic.all(parts), "all of the conditions hold"),
    "any_of": ScalarFunction(lambda logic, *parts: logic.any(parts), "one of the conditions holds, or several"),
    "not_": ScalarFunction(lambda logic, part: logic.negate(part), "the condition does not hold"),
    "is_in": ScalarFunction(
        lambda logic, value, items: logic.any(logic.eq(value, item) for item in items), "a list has the number"
    ),
    "is_identity": ScalarFunction(
        lambda logic, perm: _equal(logic, perm, tuple(range(len(perm)))), "the permutation moves nothing"
    ),
    "is_sorted": ScalarFunction(
        lambda logic, items: logic.all(logic.le(a, b) for a, b in pairwise(items)), "the smallest is first, and so on"
    ),
    "is_noop_reshape": ScalarFunction(
        _is_noop_reshape, "a Reshape of a tensor of this shape to `request` leaves the shape as it is"
    ),
    "zeros_subset": ScalarFunction(_zeros_subset, "`others` has a zero wherever `items` has one"),
    "is_float": ScalarFunction(lambda logic, dtype: DType(dtype).is_float, "a floating-point type"),
    "is_integer": ScalarFunction(lambda logic, dtype: DType(dtype).is_integer, "an integer type"),
    "can_represent": ScalarFunction(
        lambda logic, wide, narrow: can_represent(DType(wide), DType(narrow)),
        "every value of `narrow` is one of `wide`",
    ),
}
"""Functions that are conditions. Element types are concrete for matcher and verifier."""

SCALAR_FUNCTIONS: Mapping[str, ScalarFunction] = {**NUMBER_FUNCTIONS, **LIST_FUNCTIONS, **PREDICATES}
"""name -> function(logic, *arguments). `size`, `shape`, `rank`, `dtype` and the properties of constants are not here:
the matcher reads them off the graph, the verifier off its symbolic tensors."""


def apply_scalar_function(name: str, logic: Logic, *arguments: Scalars) -> Scalars:
    """Return what a scalar function gives for these arguments.

    Raises:
        UndecidedScalarError: that cannot be known, or there is no such value.
        InvalidScalarCallError: it is no function of such arguments.
    """
    try:
        return SCALAR_FUNCTIONS[name](logic, *arguments)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InvalidScalarCallError(f"{name}: {error}") from error


def expand_axes(axes: Iterable[str], size_of: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return the sizes of axes: a pack `*b` has several, and `1*b` as many axes of size 1."""
    shape: list[Any] = []
    for axis in axes:
        found: Any = int(axis) if axis.isdigit() else size_of(axis.removeprefix("1"))
        shape += (1,) * len(found) if axis.startswith("1*") else _as_tuple(found)
    return tuple(shape)


BINDING_QUERIES: Mapping[str, tuple[str, str]] = {
    "size": ('"N"', "the size of an axis"),
    "sizes": ('"*b N 1"', "a list of sizes: of axes, of all those of a pack, or 1"),
    "shape": ("x", "all sizes of a tensor"),
    "rank": ("x", "how many axes a tensor has"),
    "dtype": ("x", "the element type of a tensor"),
    "extent": ("xs", "how long any number of tensors are when they are joined"),
    "nonzero_indices": (
        '"C", 16, w, …',
        "the places along an axis where a constant, or one of several, is not 0; with others to a multiple of 16",
    ),
    "block_count": (
        '"M C", 16, w',
        "how many equal blocks on the diagonal of two axes hold all that is not 0, their sides multiples of 16; else 1",
    ),
    "first_index": (
        '"K", i',
        "the first of the consecutive whole numbers that a constant holds along an axis, alike along all others",
    ),
    "unique_indices": (
        '"C", 16, w, …',
        "the first of all places along an axis where constants are equal; with others to a multiple of 16",
    ),
    "inverse_indices": (
        '"C", 16, w, …',
        "for each place along an axis the position in `unique_indices` of one where constants are equal",
    ),
}
"""Functions of what a hole or an axis is bound to: an example of what each takes, and what it gives."""

PROPERTIES: Mapping[str, ScalarFunction] = {
    "is_zero": ScalarFunction(lambda logic, x: logic.eq(x, 0), "every element is 0"),
    "is_nonzero": ScalarFunction(lambda logic, x: logic.negate(logic.eq(x, 0)), "no element is 0"),
    "is_one": ScalarFunction(lambda logic, x: logic.eq(x, 1), "every element is 1"),
    "is_positive": ScalarFunction(lambda logic, x: logic.negate(logic.le(x, 0)), "every element is above 0"),
    "is_negative": ScalarFunction(lambda logic, x: logic.negate(logic.le(0, x)), "every element is below 0"),
    "is_nonnegative": ScalarFunction(lambda logic, x: logic.le(0, x), "every element is 0 or above"),
    "is_scale": ScalarFunction(
        lambda logic, x: logic.all((logic.le(2.0**-100, x), logic.le(x, 128))),
        "every element is at least 2⁻¹⁰⁰ and at most 128, as the scales of quantized models are",
    ),
    "is_finite": ScalarFunction(
        lambda logic, _: logic.all(()), "no element is an infinity or NaN; of a tensor: none is meant"
    ),
    "is_arange": ScalarFunction(
        lambda logic, x, sizes=None: logic.eq(x, arange_array(np.shape(x), sizes)),
        "the elements are 0, 1, 2, … in their order; with `sizes`: those along the last axis are the places in a tensor"
        " of these sizes, in their order",
    ),
}
"""Properties of a constant, as what holds for each of its elements: the matcher checks them all, the prover assumes
them. A tensor with a NaN, an infinity or a negative zero has none of them: what is proved bit for bit of an element
that is 0 is proved of 0.0, and x - -0.0 is not x where x is -0.0. Finite is a negative zero, too."""

TENSOR_PROPERTIES = frozenset({"is_finite", "is_arange"})
"""Properties that a tensor which is computed may have, too: the gate knows where a model means infinities, the matcher
which indices count."""


def arange_array(shape: tuple[int, ...], sizes: tuple[int, ...] | None) -> NDArray[Any]:
    """Return the array of a shape that counts.

    Raises:
        UndecidedScalarError: there is none, for it has not as many places as there are sizes for.
    """
    if sizes is None:
        return np.arange(prod(shape)).reshape(shape)
    if (prod(shape[:-1]), *shape[-1:]) != (prod(sizes), len(sizes)) or min(sizes, default=0) < 0:
        raise UndecidedScalarError(f"the places in a tensor of sizes {sizes} as an array of shape {shape}")
    return np.indices(sizes).reshape(len(sizes), prod(sizes)).T.reshape(shape)


class NumpyLogic:
    """Truth about each element of an array."""

    def eq(self, left: Scalar, right: Scalar) -> Any:
        return np.equal(left, right)

    def le(self, left: Scalar, right: Scalar) -> Any:
        return np.less_equal(left, right)

    def all(self, parts: Iterable[Any]) -> Any:
        return reduce(np.logical_and, parts, np.True_)

    def any(self, parts: Iterable[Any]) -> Any:
        return reduce(np.logical_or, parts, np.False_)

    def negate(self, part: Any) -> Any:
        return np.logical_not(part)

    def choose(self, condition: Any, then: Scalar, otherwise: Scalar) -> Scalar:
        return np.where(condition, then, otherwise)

    def concrete_int(self, number: Scalar) -> int:
        return _concrete_int(number)


def has_property(name: str, values: NDArray[Any], *more: Any) -> bool:
    """Return whether every element has the property `name` of `PROPERTIES`."""
    wide = values.astype(np.float64) if values.dtype.kind not in "iub" else values
    plain = np.isfinite(wide)
    if name != "is_finite":
        plain = plain & ~(np.equal(wide, 0) & np.signbit(wide))
    return bool(np.all(plain)) and bool(np.all(PROPERTIES[name](NumpyLogic(), wide, *more)))


_EXPONENT_BITS = {DType.FLOAT16: 5, DType.BFLOAT16: 8, DType.FLOAT: 8, DType.DOUBLE: 11}


def can_represent(wide: DType, narrow: DType) -> bool:
    """Return True where every value of `narrow` is a value of `wide`: a cast there and back changes nothing."""
    if wide == narrow:
        return True
    if narrow is DType.BOOL:
        return wide in MANTISSA_BITS or wide.is_integer
    if wide in MANTISSA_BITS and narrow in MANTISSA_BITS:
        return MANTISSA_BITS[wide] >= MANTISSA_BITS[narrow] and _EXPONENT_BITS[wide] >= _EXPONENT_BITS[narrow]
    if not narrow.is_integer:
        return False
    signed = narrow.name.startswith("INT")
    magnitude = narrow.bits - signed
    if wide in MANTISSA_BITS:
        return magnitude <= MANTISSA_BITS[wide]
    if not wide.is_integer or (signed and not wide.name.startswith("INT")):
        return False
    return magnitude <= wide.bits - wide.name.startswith("INT")
