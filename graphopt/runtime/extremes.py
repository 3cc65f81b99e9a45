"""Extreme integers to try a model with: what adds up many of them wraps around there, and at random ones hardly ever.

An input is given extremes only where all that it reaches bears them. Indices and sizes stay what they are, and so does
what is divided by: integers that are divided by 0 end the process.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import numpy as np

from graphopt.base.types import DType
from graphopt.operators.operator import Extremes, ResultType
from graphopt.runtime.samples import ALTERNATING, GREATEST, LEAST, Array, Feeds, role
from graphopt.runtime.steps import Input, Sketch, Step

_IN_FLOATS = 0xFFFF
"""How far from 0 extremes are where floats are made of them: these are to bear their squares, and sums of those."""


def extremes(model: Sketch, feeds: Feeds, given: Container[str]) -> dict[str, Feeds]:
    """Return the same inputs with the least integers, with the greatest, and with both in turns, by the kind of values.

    Nothing where no input may be given any but those that are `given`.
    """
    known = {name: ends for name, ends in limits(model).items() if name not in given}
    return {kind: feeds | _filled(feeds, known, kind) for kind in (LEAST, GREATEST, ALTERNATING)} if known else {}


def limits(model: Sketch) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest integer that inputs may be given, by those that may be given extremes."""
    tensors = (item for item in model.required if item.kind == "tensor")
    return {item.name: found for item in tensors if (found := _limits(model, item)) is not None}


def _filled(feeds: Feeds, known: Mapping[str, tuple[int, int]], kind: str) -> dict[str, Array]:
    return {name: _array(feeds[name], *ends, kind, place % 2) for place, (name, ends) in enumerate(known.items())}


def _array(like: Array, least: int, greatest: int, kind: str, first: int) -> Array:
    if kind == ALTERNATING:  # two factors of a product begin with another one
        ends = np.array([least, greatest], like.dtype)
        return ends[(np.arange(like.size) + first) % 2].reshape(like.shape)
    return np.full(like.shape, least if kind == LEAST else greatest, like.dtype)


def _limits(model: Sketch, given: Input) -> tuple[int, int] | None:
    """Return the least and the greatest integer that an input may be given; None where it is given no extremes."""
    dtype = given.dtype
    if not dtype.is_integer or dtype.bits < 8 or role(model, given).name:
        return None
    in_floats = False
    for step, slot, is_integer in _reached(model, given.name):
        if is_integer and step.facts.divides:
            return None
        if dtype.bits > 8 and not _bears(step, slot, is_integer):  # all of 8 bits are drawn at random, too
            return None
        in_floats |= not is_integer or step.facts.result_type is ResultType.DEQUANTIZED
    low, high = dtype.limits
    return (max(low, -_IN_FLOATS - 1), min(high, _IN_FLOATS)) if in_floats else (low, high)


def _reached(model: Sketch, name: str) -> Iterator[tuple[Step, int, bool]]:
    """Yield all steps that an input reaches, with the operand that it is, or is part of, and if that is of integers."""
    stack = [(name, True)]
    seen = set(stack)
    while stack:
        read, is_integer = stack.pop()
        for step, slot in model.readers.get(read, ()):
            yield step, slot, is_integer
            if step.facts.extremes is Extremes.LOST:
                continue
            fresh = {(made, _is_integer(model, step, made, is_integer)) for made in step.outputs} - seen
            seen |= fresh
            stack += fresh


def _is_integer(model: Sketch, step: Step, made: str, reads_integers: bool) -> bool:
    """Return whether what a step makes is of integers: where no type is declared, as what it reads."""
    declared = model.types.get(made)
    if declared is not None:
        return not declared.is_float
    match step.facts.result_type:
        case ResultType.TARGET:
            return not DType(next(a.i for a in step.node.attribute if a.name == "to")).is_float
        case ResultType.QUANTIZED:
            return True
        case ResultType.DEQUANTIZED:
            return False
    return reads_integers


def _bears(step: Step, slot: int, is_integer: bool) -> bool:
    """Return whether a step makes something of any operand, and as large a tensor."""
    facts = step.facts
    if slot in facts.roles or step.domain:
        return False
    if is_integer:
        is_first = facts.extremes is Extremes.FIRST and slot == 0
        return is_first or facts.extremes in (Extremes.ALL, Extremes.LOST)
    makes_integers = facts.casts and not _is_float_cast(step)
    return not makes_integers and facts.extremes is not Extremes.NOT_EVEN_FLOATS


def _is_float_cast(step: Step) -> bool:
    return any(a.name == "to" and DType(a.i).is_float for a in step.node.attribute)
