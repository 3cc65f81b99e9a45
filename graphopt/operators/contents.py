"""What small integer and boolean tensors of rank 0 and 1 hold: the arithmetic on sizes that exporters leave behind.

One function per operator, in the table `CONTENTS`; each returns the elements of each output as numbers and symbols,
or None where one of them is not known. Truth values are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import prod
from typing import TypeAlias

from graphopt.base.sizes import Dim, divide, least, lower_bound, product
from graphopt.base.types import DType
from graphopt.ir.tensor import Tensor
from graphopt.operators.shapes import Operands, plain, slice_range

Elements: TypeAlias = tuple[Dim, ...]

LIMIT = 256
"""Longer tensors are not shapes, and are left alone."""

SIZE_TYPES = frozenset({DType.INT32, DType.INT64})
"""Element types in which a symbolic size can be kept: no size exceeds them."""


def contents(operands: Operands, dtypes: Sequence[DType | None]) -> list[Elements | None]:
    """The elements of each output, whose element types are given; None for each that is not known."""
    function = CONTENTS.get(operands.node.op)
    found = function(operands) if function and operands.node.domain == "" else None
    found = [None] * len(dtypes) if found is None else found
    return [_fitting(elements, dtype) for elements, dtype in zip(found, dtypes, strict=False)]


def _fitting(elements: Sequence[Dim | None] | None, dtype: DType | None) -> Elements | None:
    """The elements if all are known and the element type holds them without wrapping around."""
    if elements is None or dtype is None or len(elements) > LIMIT or not (dtype.is_integer or dtype is DType.BOOL):
        return None
    known = tuple(element for element in elements if element is not None)
    if len(known) < len(elements):
        return None
    low, high = _range_of(dtype)
    fits = all(low <= e <= high if isinstance(e, int) else dtype in SIZE_TYPES for e in known)
    return known if fits else None


def _range_of(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    if dtype.name.startswith("U"):
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def truth(element: Dim) -> int | None:
    """Whether a size is not 0, None where that depends on what its names stand for."""
    if isinstance(element, int):
        return int(element != 0)
    return 1 if (lower_bound(element) or 0) >= 1 or (lower_bound(-element) or 0) >= 1 else None


def _shape(k: Operands) -> list[Elements] | None:
    shape, end = k.shape(0), k.attribute("end")
    if shape is None:
        return None
    return [shape[k.integer("start") : end if isinstance(end, int) else None]]


def _size(k: Operands) -> list[Elements] | None:
    shape = k.shape(0)
    return None if shape is None else [(product(shape),)]


def _same(k: Operands) -> list[Elements | None]:
    return [k.contents(0)]


def _cast(k: Operands) -> list[list[Dim | None]] | None:
    elements, target = k.contents(0), k.integer("to")
    if elements is None:
        return None
    return [[truth(element) if target == DType.BOOL else element for element in elements]]


def _gather(k: Operands) -> list[Elements] | None:
    data, indices, shape = k.contents(0), k.ints(1), k.shape(0)
    if data is None or indices is None or shape is None or len(shape) != 1:
        return None
    if any(not -len(data) <= index < len(data) for index in indices):
        return None
    return [tuple(data[index] for index in indices)]


def _slice(k: Operands) -> list[Elements] | None:
    data, starts, ends = k.contents(0), k.ints(1), k.ints(2)
    steps = k.optional_ints(4, (1,))
    if data is None or starts is None or ends is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(steps) == 1 or steps[0] == 0:
        return None
    return [tuple(data[index] for index in slice_range(len(data), starts[0], ends[0], steps[0]))]


def _split(k: Operands) -> list[Elements] | None:
    data, count = k.contents(0), len(k.node.names)
    if data is None:
        return None
    chunk = -(-len(data) // count)
    sizes = k.optional_ints(1, [min(chunk, max(len(data) - i * chunk, 0)) for i in range(count)])
    if sizes is None or sum(sizes) != len(data) or len(sizes) != count:
        return None
    starts = [sum(sizes[:i]) for i in range(count)]
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _concat(k: Operands) -> list[Elements] | None:
    parts = [k.contents(index) for index in range(len(k))]
    known = [part for part in parts if part is not None]
    return [tuple(element for part in known for element in part)] if len(known) == len(parts) else None


def _spread(parts: Sequence[Elements | None]) -> list[tuple[Dim, ...]] | None:
    """Operands of rank 0 and 1 element by element, those of one element repeated."""
    known = [part for part in parts if part is not None]
    lengths = {len(part) for part in known} - {1}
    if len(known) < len(parts) or len(lengths) > 1:
        return None
    length = lengths.pop() if lengths else 1
    return list(zip(*(part * length if len(part) == 1 else part for part in known), strict=True))


def _elementwise(function: Callable[..., Dim | None]) -> Callable[[Operands], list[list[Dim | None]] | None]:
    def apply(k: Operands) -> list[list[Dim | None]] | None:
        rows = _spread([k.contents(index) for index in range(len(k))])
        return None if rows is None else [[function(*row) for row in rows]]

    return apply


def _folded(function: Callable[[Dim, Dim], Dim | None]) -> Callable[..., Dim | None]:
    def fold(*row: Dim) -> Dim | None:
        return reduce(lambda a, b: None if a is None else function(a, b), row[1:], _maybe(row[0]))

    return fold


def _maybe(dim: Dim) -> Dim | None:
    return dim


def quotient(a: Dim, b: Dim) -> Dim | None:
    """Integer division as ONNX Runtime does it: towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    exact = divide(a, b)
    return a // b if exact is None and _not_negative(a, b) and b != 0 else exact


def remainder(a: Dim, b: Dim, *, like_c: bool = False) -> Dim | None:
    """Mod: with the sign of the divisor, or of the dividend as in C."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        return abs(a) % abs(b) * (-1 if a < 0 else 1) if like_c else a % b
    if divide(a, b) is not None:
        return 0
    return a % b if _not_negative(a, b) and b != 0 else None


def _mod(k: Operands) -> list[list[Dim | None]] | None:
    rows = _spread([k.contents(0), k.contents(1)])
    return None if rows is None else [[remainder(*row, like_c=bool(k.integer("fmod"))) for row in rows]]


def _not_negative(*sizes: Dim) -> bool:
    return all((lower_bound(size) or 0) >= 0 and lower_bound(size) is not None for size in sizes)


def minimum(a: Dim, b: Dim) -> Dim | None:
    found = least(a, b)
    return found if found in (a, b) or _not_negative(a, b) else None


def maximum(a: Dim, b: Dim) -> Dim | None:
    smaller = minimum(a, b)
    return None if smaller is None else a + b - smaller


def equal(a: Dim, b: Dim) -> int | None:
    different = truth(a - b)
    return None if different is None else 1 - different


def less(a: Dim, b: Dim) -> int | None:
    if (lower_bound(b - a) or 0) >= 1:
        return 1
    return 0 if _not_negative(a - b) else None


def less_or_equal(a: Dim, b: Dim) -> int | None:
    greater = less(b, a)
    return None if greater is None else 1 - greater


def choice(condition: Dim, then: Dim, otherwise: Dim) -> Dim | None:
    decided = truth(condition)
    if decided is None:
        return then if then == otherwise else None
    return then if decided else otherwise


def _absolute(a: Dim) -> Dim | None:
    return a if _not_negative(a) else -a if _not_negative(-a) else None


def _range(k: Operands) -> list[Elements] | None:
    bounds = [k.ints(index) for index in range(3)]
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    start, limit, step = (bound[0] for bound in bounds if bound)
    return None if step == 0 or abs(limit - start) > LIMIT * abs(step) else [tuple(range(start, limit, step))]


def _reduction(function: Callable[[Elements], Dim | None]) -> Callable[[Operands], list[Sequence[Dim | None]] | None]:
    def apply(k: Operands) -> list[Sequence[Dim | None]] | None:
        elements, axes, shape = k.contents(0), k.optional_ints(1, k.integers("axes") or ()), k.shape(0)
        if elements is None or axes is None or shape is None:
            return None
        if shape == () or (not axes and k.integer("noop_with_empty_axes")):
            return [elements]
        return [(function(elements),)]

    return apply


def _extreme(function: Callable[[Dim, Dim], Dim | None]) -> Callable[[Elements], Dim | None]:
    def apply(elements: Elements) -> Dim | None:
        return _folded(function)(*elements) if elements else None

    return apply


def _total(elements: Elements) -> Dim:
    total: Dim = 0
    for element in elements:
        total = element + total
    return total


def _repeated(k: Operands) -> list[Elements] | None:
    """Expand and Tile of one element or more to a known length."""
    elements, target = k.contents(0), k.ints(1)
    if elements is None or target is None or len(target) > 1:
        return None
    count = prod(target)
    if k.node.op == "Expand":
        if len(elements) != 1:
            return [elements] if count in (1, len(elements)) else None
        return [elements * count] if 0 <= count <= LIMIT else None
    return [elements * count] if 0 <= count * len(elements) <= LIMIT else None


def _constant_of_shape(k: Operands) -> list[Elements] | None:
    shape, value = k.ints(0), k.node.attrs.get("value")
    if shape is None or len(shape) > 1 or not isinstance(value, Tensor) or prod(shape) > LIMIT:
        return None
    fill = value.ints()
    return None if fill is None else [fill * prod(shape)]


def _as_int(value: bool) -> int:
    return int(value)


def _logic(function: Callable[..., bool]) -> Callable[[Operands], list[list[Dim | None]] | None]:
    return _elementwise(
        lambda *row: None if (known := plain(row)) is None else _as_int(function(*(bool(k) for k in known)))
    )


CONTENTS: Mapping[str, Callable[[Operands], Sequence[Sequence[Dim | None] | None] | None]] = {
    **dict.fromkeys(("Identity", "Squeeze", "Unsqueeze", "Reshape", "Transpose"), _same),
    "Abs": _elementwise(_absolute),
    "Add": _elementwise(lambda a, b: a + b),
    "And": _logic(lambda a, b: a and b),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _elementwise(quotient),
    "Equal": _elementwise(equal),
    "Expand": _repeated,
    "Gather": _gather,
    "Greater": _elementwise(lambda a, b: less(b, a)),
    "GreaterOrEqual": _elementwise(lambda a, b: less_or_equal(b, a)),
    "Less": _elementwise(less),
    "LessOrEqual": _elementwise(less_or_equal),
    "Max": _elementwise(_folded(maximum)),
    "Min": _elementwise(_folded(minimum)),
    "Mod": _mod,
    "Mul": _elementwise(lambda a, b: a * b),
    "Neg": _elementwise(lambda a: -a),
    "Not": _logic(lambda a: not a),
    "Or": _logic(lambda a, b: a or b),
    "Range": _range,
    "ReduceMax": _reduction(_extreme(maximum)),
    "ReduceMin": _reduction(_extreme(minimum)),
    "ReduceProd": _reduction(product),
    "ReduceSum": _reduction(_total),
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Split": _split,
    "Sub": _elementwise(lambda a, b: a - b),
    "Sum": _elementwise(_folded(lambda a, b: a + b)),
    "Tile": _repeated,
    "Where": _elementwise(choice),
    "Xor": _logic(lambda a, b: a != b),
}
