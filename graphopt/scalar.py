"""Scalar functions: what attributes and conditions of rules are computed with. A closed set, one table for all.

Each function is written against a `Logic`, which decides comparisons and choices: Python's for the matcher, Z3's for
the verifier. A list has a known length in both; its elements may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.types import Dim, DType, Sym

Scalar = Any  # an int, Sym, float, str or bool; in the verifier a Z3 expression
Scalars = Any  # a scalar or a tuple of scalars


class Unknown(Exception):
    """A comparison that cannot be decided: when matching, that means no."""


class Logic(Protocol):
    """How truth is represented: Python's booleans here, Z3's formulas in the verifier."""

    def eq(self, left: Scalar, right: Scalar) -> Any: ...
    def le(self, left: Scalar, right: Scalar) -> Any: ...
    def all(self, parts: Iterable[Any]) -> Any: ...
    def any(self, parts: Iterable[Any]) -> Any: ...
    def negate(self, part: Any) -> Any: ...
    def choose(self, condition: Any, then: Scalar, otherwise: Scalar) -> Scalar: ...


class PythonLogic:
    """Decides where the answer is the same for every value of the named sizes; raises `Unknown` otherwise."""

    def eq(self, left: Scalar, right: Scalar) -> bool:
        if left == right:
            return True
        if isinstance(left, Sym) or isinstance(right, Sym):
            difference = left - right
            if not isinstance(difference, Sym) or _sign(difference) or _sign(-difference):
                return False
            raise Unknown(f"whether {left} equals {right}")
        return False

    def le(self, left: Scalar, right: Scalar) -> bool:
        if not isinstance(left, Sym) and not isinstance(right, Sym):
            return bool(left <= right)
        if _not_negative(right - left):
            return True
        if _sign(left - right):
            return False
        raise Unknown(f"whether {left} <= {right}")

    def all(self, parts: Iterable[Any]) -> bool:
        return all(parts)

    def any(self, parts: Iterable[Any]) -> bool:
        return any(parts)

    def negate(self, part: Any) -> bool:
        return not part

    def choose(self, condition: Any, then: Scalar, otherwise: Scalar) -> Scalar:
        return then if condition else otherwise


PYTHON = PythonLogic()


def _not_negative(dim: Dim) -> bool:
    return all(coefficient >= 0 for _, coefficient in dim.terms) if isinstance(dim, Sym) else dim >= 0


def _sign(dim: Dim) -> bool:
    """Certainly greater than zero, names being non-negative."""
    return _not_negative(dim - 1)


def _each(function: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalars, Scalars], Scalars]:
    """Elementwise on two lists of one length, or a list and a number."""

    def lifted(left: Scalars, right: Scalars) -> Scalars:
        match isinstance(left, tuple), isinstance(right, tuple):
            case True, True:
                if len(left) != len(right):
                    raise Unknown(f"lists of {len(left)} and {len(right)} elements")
                return tuple(function(a, b) for a, b in zip(left, right, strict=True))
            case True, False:
                return tuple(function(a, right) for a in left)
            case False, True:
                return tuple(function(left, b) for b in right)
        return function(left, right)

    return lifted


def _equal(logic: Logic, left: Scalars, right: Scalars) -> Any:
    if isinstance(left, tuple) and isinstance(right, tuple) and len(left) != len(right):
        return logic.any(())
    return logic.all(_flat(_each(logic.eq)(left, right)))


def _flat(value: Scalars) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _larger(logic: Logic, left: Scalar, right: Scalar) -> Scalar:
    return logic.choose(logic.le(left, right), right, left)


def _item(sequence: Sequence[Scalar], index: int) -> Scalar:
    if not -len(sequence) <= index < len(sequence):
        raise Unknown(f"element {index} of a list of {len(sequence)}")
    return sequence[index]


def _is_permutation(value: Scalars) -> bool:
    return sorted(value) == list(range(len(value)))


def _normalized(logic: Logic, axes: Scalars, rank: int) -> Scalars:
    if isinstance(axes, tuple):
        return tuple(_normalized(logic, axis, rank) for axis in axes)
    return logic.choose(logic.le(0, axes), axes, axes + rank)


def _without(items: Sequence[Scalar], positions: Scalars) -> tuple[Scalar, ...]:
    dropped = {position % len(items) for position in _flat(positions)} if items else set()
    return tuple(item for position, item in enumerate(items) if position not in dropped)


def _inserted(items: Sequence[Scalar], positions: Scalars, value: Scalar) -> tuple[Scalar, ...]:
    """A list that has `value` at `positions` and the items elsewhere, in order."""
    where = {position % (len(items) + len(_flat(positions))) for position in _flat(positions)}
    rest = iter(items)
    return tuple(value if i in where else next(rest) for i in range(len(items) + len(where)))


FUNCTIONS: Mapping[str, Callable[..., Scalars]] = {
    # numbers, elementwise on lists
    "add": lambda logic, a, b: _each(lambda x, y: x + y)(a, b),
    "sub": lambda logic, a, b: _each(lambda x, y: x - y)(a, b),
    "mul": lambda logic, a, b: _each(lambda x, y: x * y)(a, b),
    "div": lambda logic, a, b: _each(lambda x, y: x // y)(a, b),
    "mod": lambda logic, a, b: _each(lambda x, y: x % y)(a, b),
    "divide": lambda logic, a, b: _each(lambda x, y: x / y)(a, b),
    "neg": lambda logic, a: _each(lambda x, y: y - x)(a, 0),
    "larger": lambda logic, a, b: _each(lambda x, y: _larger(logic, x, y))(a, b),
    "smaller": lambda logic, a, b: _each(lambda x, y: x + y - _larger(logic, x, y))(a, b),
    "sqrt": lambda logic, a: sqrt(a),
    # lists
    "join": lambda logic, *parts: tuple(item for part in parts for item in _flat(part)),
    "item": lambda logic, items, index: _item(items, index),
    "length": lambda logic, items: len(items),
    "part": lambda logic, items, start, stop: tuple(items[start:stop]),
    "repeat": lambda logic, value, count: (value,) * count,
    "total": lambda logic, items: reduce(lambda x, y: x + y, items, 0),
    "product": lambda logic, items: reduce(lambda x, y: x * y, items, 1),
    "without": lambda logic, items, positions: _without(items, positions),
    "inserted": lambda logic, items, positions, value: _inserted(items, positions, value),
    "compose": lambda logic, first, second: tuple(_item(first, i) for i in second),
    "inverse": lambda logic, perm: tuple(sorted(range(len(perm)), key=perm.__getitem__)),
    "is_identity": lambda logic, perm: _equal(logic, perm, tuple(range(len(perm)))),
    "normalized": _normalized,
    "sorted": lambda logic, items: tuple(sorted(items)),
    "among": lambda logic, value, items: logic.any(logic.eq(value, item) for item in items),
    # truth; on lists: for every element
    "eq": _equal,
    "ne": lambda logic, a, b: logic.negate(_equal(logic, a, b)),
    "le": lambda logic, a, b: logic.all(_flat(_each(logic.le)(a, b))),
    "lt": lambda logic, a, b: logic.all(_flat(_each(lambda x, y: logic.negate(logic.le(y, x)))(a, b))),
    "both": lambda logic, *parts: logic.all(parts),
    "either": lambda logic, *parts: logic.any(parts),
    "no": lambda logic, part: logic.negate(part),
    "choose": lambda logic, condition, a, b: logic.choose(condition, a, b),
    # element types: concrete in both worlds
    "is_float": lambda logic, dtype: DType(dtype).is_float,
    "is_integer": lambda logic, dtype: DType(dtype).is_integer,
    "holds": lambda logic, wide, narrow: holds(DType(wide), DType(narrow)),
}
"""name -> function(logic, *arguments). `size`, `shape`, `rank`, `dtype` and the properties of constants are not here:
the matcher reads them off the graph, the verifier off its symbolic tensors."""

FACTS = frozenset({"size", "sizes", "shape", "rank", "dtype"})
"""Functions of what a hole is bound to: `size("N")`, `sizes("*b N")`, `shape(x)`, `rank(x)`, `dtype(x)`."""

PROPERTIES: Mapping[str, Callable[[Logic, Scalar], Any]] = {
    "is_zero": lambda logic, x: logic.eq(x, 0),
    "is_one": lambda logic, x: logic.eq(x, 1),
    "is_positive": lambda logic, x: logic.negate(logic.le(x, 0)),
    "is_negative": lambda logic, x: logic.negate(logic.le(0, x)),
    "is_not_negative": lambda logic, x: logic.le(0, x),
}
"""Properties of a constant, as what holds for each of its elements: the matcher checks them all, the prover assumes
them. A tensor with a NaN or an infinity has none of them."""


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


def has_property(name: str, values: NDArray[Any]) -> bool:
    """Whether every element has the property `name` of `PROPERTIES`."""
    wide = values.astype(np.float64) if values.dtype.kind not in "iub" else values
    return bool(np.all(np.isfinite(wide))) and bool(np.all(PROPERTIES[name](NumpyLogic(), wide)))


_MANTISSA = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT: 24, DType.DOUBLE: 53}
_EXPONENT = {DType.FLOAT16: 5, DType.BFLOAT16: 8, DType.FLOAT: 8, DType.DOUBLE: 11}


def holds(wide: DType, narrow: DType) -> bool:
    """True where every value of `narrow` is a value of `wide`: a cast there and back changes nothing."""
    if wide == narrow:
        return True
    if narrow is DType.BOOL:
        return wide in _MANTISSA or wide.is_integer
    if wide in _MANTISSA and narrow in _MANTISSA:
        return _MANTISSA[wide] >= _MANTISSA[narrow] and _EXPONENT[wide] >= _EXPONENT[narrow]
    if not narrow.is_integer:
        return False
    signed = narrow.name.startswith("INT")
    magnitude = narrow.bits - signed
    if wide in _MANTISSA:
        return magnitude <= _MANTISSA[wide]
    if not wide.is_integer or (signed and not wide.name.startswith("INT")):
        return False
    return magnitude <= wide.bits - wide.name.startswith("INT")
