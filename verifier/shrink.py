"""Makes an instance of a rule smaller and plainer, for as long as it shows what it is to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphopt.language.rule import Rule
from graphopt.verifier.concrete_instance import ConcreteInstance
from graphopt.verifier.instance_sampling import complete_instance

Array: TypeAlias = NDArray[Any]
Edit: TypeAlias = "Callable[[ConcreteInstance], ConcreteInstance | None]"
"""A plainer instance, perhaps none of the rule's; None where there is nothing to make plainer."""
T = TypeVar("T")

LARGE = 24
"""The elements of larger arrays are not looked at one by one."""
PLAINEST = (0.0, 1.0, -1.0, 2.0, -2.0, 3.0)
"""The numbers that are tried for an element, plainest first."""


def shrink(rule: Rule, start: ConcreteInstance, shown: Callable[[ConcreteInstance], T | None], steps: int) -> T | None:
    """Return what `shown` says of the plainest instance that `steps` edits reach; None if no edit led anywhere."""
    current, best, changed = start, None, True
    while changed:
        changed = False
        for edit in list(_edits(rule, current)):
            edited = edit(current)
            if edited is None:
                continue
            if steps == 0:
                return best
            steps -= 1
            smaller = complete_instance(rule, edited.dims, edited.values, attempts=1)
            found = None if smaller is None else shown(smaller)
            if smaller is not None and found is not None:
                current, best, changed = smaller, found, True
    return best


def _edits(rule: Rule, of: ConcreteInstance) -> Iterator[Edit]:
    for name, size in of.dims.items():
        if isinstance(size, int):
            yield from (partial(_resized, rule, name, 0, to) for to in _smaller_sizes(size))
        else:
            for axis in reversed(range(len(size))):
                yield partial(_without_axis, rule, name, axis)
                yield from (partial(_resized, rule, name, axis, to) for to in _smaller_sizes(size[axis]))
    for name, value in of.values.items():
        if isinstance(value, Mapping):
            yield from (partial(_without_attribute, name, key) for key in value)
        elif isinstance(value, tuple):
            yield from (partial(_lower, name, position) for position in range(len(value)))
    yield _in_single_precision
    for name, value in of.values.items():
        if isinstance(value, np.ndarray):
            yield partial(_round_array, name)
            places = range(value.size if value.size <= LARGE else 0)
            yield from (partial(_plainer, name, place, number) for place in places for number in PLAINEST)


def _smaller_sizes(size: int) -> list[int]:
    return [to for to in dict.fromkeys((1, 2, size - 1)) if 0 < to < size]


# -- sizes -------------------------------------------------------------------------------------------------------------


def _resized(rule: Rule, name: str, axis: int, to: int, of: ConcreteInstance) -> ConcreteInstance | None:
    """Make an axis shorter, in every array that has it."""
    size = of.dims[name]
    sizes = (size,) if isinstance(size, int) else size
    if axis >= len(sizes) or to >= sizes[axis]:
        return None
    values = _cut(rule, of, {name}, name, axis, lambda array, at: array.take(range(to), at))
    shorter = (*sizes[:axis], to, *sizes[axis + 1 :])
    return ConcreteInstance({**of.dims, name: to if isinstance(size, int) else shorter}, values)


def _without_axis(rule: Rule, name: str, axis: int, of: ConcreteInstance) -> ConcreteInstance | None:
    """Drop an axis of a pack, or of a tensor of any rank; lists with a number or two for each axis lose theirs."""
    size = of.dims[name]
    if isinstance(size, int) or axis >= len(size) or size[axis] == 0:  # of no elements there is none to keep
        return None

    def shorter(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: shorter(item) for key, item in value.items()}
        if isinstance(value, tuple) and len(value) in (len(size), 2 * len(size)):
            return tuple(item for position, item in enumerate(value) if position % len(size) != axis)
        return value

    values = _cut(rule, of, {name, f"1{name}"}, name, axis, lambda array, at: array.take(0, at))
    dims = {**of.dims, name: (*size[:axis], *size[axis + 1 :])}
    return ConcreteInstance(dims, {hole: shorter(value) for hole, value in values.items()})


def _cut(
    rule: Rule, of: ConcreteInstance, tokens: set[str], name: str, offset: int, cut: Callable[[Array, int], Array]
) -> dict[str, Any]:
    """Return the values, arrays cut at each axis that one of the tokens declares, in a pack at `offset`."""
    values = dict(of.values)
    for hole, value in of.values.items():
        if isinstance(value, np.ndarray):
            axes = rule.holes[hole].axes
            places = [offset] * (hole == name) if axes is None else _places(of, axes, tokens, offset)
            for place in reversed(places):
                value = np.asarray(cut(value, place))
            values[hole] = value
    return values


def _places(of: ConcreteInstance, axes: tuple[str, ...], tokens: set[str], offset: int) -> list[int]:
    places, position = [], 0
    for axis in axes:
        if axis in tokens:
            places.append(position + offset)
        sizes = of.dims.get(axis.removeprefix("1") if "*" in axis else axis, 1)
        position += len(sizes) if isinstance(sizes, tuple) else 1
    return places


# -- attributes and elements -------------------------------------------------------------------------------------------


def _without_attribute(name: str, key: str, of: ConcreteInstance) -> ConcreteInstance | None:
    rest = {other: item for other, item in of.values[name].items() if other != key}
    return _with(of, name, rest) if len(rest) < len(of.values[name]) else None


def _lower(name: str, position: int, of: ConcreteInstance) -> ConcreteInstance | None:
    """Bring a number of a list nearer to zero: a pad, a stride."""
    items = of.values[name]
    if position >= len(items) or items[position] <= 0:
        return None
    return _with(of, name, (*items[:position], items[position] - 1, *items[position + 1 :]))


def _in_single_precision(of: ConcreteInstance) -> ConcreteInstance | None:
    """All numbers as float32, the element type that people expect."""
    numbers = {n: v for n, v in of.values.items() if isinstance(v, np.ndarray) and v.dtype.kind != "b"}
    if all(value.dtype == np.float32 for value in numbers.values()):
        return None
    return ConcreteInstance(
        of.dims, {**of.values, **{name: value.astype(np.float32) for name, value in numbers.items()}}
    )


def _round_array(name: str, of: ConcreteInstance) -> ConcreteInstance | None:
    """Whole numbers."""
    value = of.values[name]
    rounded = np.asarray(np.rint(value.astype(np.float64)) + 0.0).astype(value.dtype)  # -0.0 is 0
    return None if np.array_equal(rounded, value) else _with(of, name, rounded)


def _plainer(name: str, place: int, number: float, of: ConcreteInstance) -> ConcreteInstance | None:
    """One element replaced by a plainer number."""
    value = of.values[name]
    if place >= value.size or _oddness(number) >= _oddness(float(value.flat[place])):
        return None
    if value.dtype.kind == "u" and number < 0:
        return None
    changed = value.copy()
    changed.flat[place] = number
    return _with(of, name, changed)


def _oddness(number: float) -> float:
    """How hard a number is to reckon with."""
    if number in PLAINEST:
        return PLAINEST.index(number)
    return 10 if number.is_integer() else 20


def _with(of: ConcreteInstance, name: str, value: Any) -> ConcreteInstance:
    return ConcreteInstance(of.dims, {**of.values, name: value})
