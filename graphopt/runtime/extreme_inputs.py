"""Extreme integers to try a model with: what adds up many of them wraps around there, and at random ones hardly ever.

An input is given extremes only where all that it reaches bears them. Indices and sizes stay what they are, and so does
what is divided by: integers that are divided by 0 end the process.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import numpy as np

from graphopt.base.dtype import DType
from graphopt.operators.operator import ExtremeOperands, ResultDtypeSource
from graphopt.runtime.model_sketch import FlatNode, ModelInput, ModelSketch
from graphopt.runtime.sample_inputs import ALTERNATING, GREATEST, LEAST, Array, Feeds, infer_role

_FLOAT_MAGNITUDE = 0xFFFF
"""Magnitude of extremes that are made into floats: these must bear their squares, and sums of those."""


def extreme_feeds(model: ModelSketch, feeds: Feeds, given: Container[str]) -> dict[str, Feeds]:
    """Return the same inputs with the least integers, with the greatest, and with both in turns, by the kind of values.

    Nothing where no input may be given any but those that are `given`.
    """
    known = {name: ends for name, ends in input_integer_limits(model).items() if name not in given}
    return (
        {kind: feeds | _fill_extremes(feeds, known, kind) for kind in (LEAST, GREATEST, ALTERNATING)} if known else {}
    )


def input_integer_limits(model: ModelSketch) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest integer that inputs may be given, by those that may be given extremes."""
    tensors = (item for item in model.required if item.kind == "tensor")
    return {item.name: found for item in tensors if (found := _input_limits(model, item)) is not None}


def _fill_extremes(feeds: Feeds, known: Mapping[str, tuple[int, int]], kind: str) -> dict[str, Array]:
    return {
        name: _extreme_array(feeds[name], *ends, kind, place % 2) for place, (name, ends) in enumerate(known.items())
    }


def _extreme_array(like: Array, least: int, greatest: int, kind: str, first: int) -> Array:
    if kind == ALTERNATING:  # two factors of a product begin with another one
        ends = np.array([least, greatest], like.dtype)
        return ends[(np.arange(like.size) + first) % 2].reshape(like.shape)
    return np.full(like.shape, least if kind == LEAST else greatest, like.dtype)


def _input_limits(model: ModelSketch, given: ModelInput) -> tuple[int, int] | None:
    """Return the least and the greatest integer that an input may be given; None where it is given no extremes."""
    dtype = given.dtype
    if not dtype.is_integer or dtype.bits < 8 or infer_role(model, given).name:
        return None
    in_floats = False
    for step, slot, is_integer in _reached_steps(model, given.name):
        if is_integer and step.operator.divides_integers:
            return None
        if dtype.bits > 8 and not _tolerates_extremes(step, slot, is_integer):  # all of 8 bits are drawn at random, too
            return None
        in_floats |= not is_integer or step.operator.result_dtype_source is ResultDtypeSource.DEQUANTIZED
    low, high = dtype.limits
    return (max(low, -_FLOAT_MAGNITUDE - 1), min(high, _FLOAT_MAGNITUDE)) if in_floats else (low, high)


def _reached_steps(model: ModelSketch, name: str) -> Iterator[tuple[FlatNode, int, bool]]:
    """Yield all steps that an input reaches, with the operand that it is, or is part of, and if that is of integers."""
    stack = [(name, True)]
    seen = set(stack)
    while stack:
        read, is_integer = stack.pop()
        for step, slot in model.readers.get(read, ()):
            yield step, slot, is_integer
            if step.operator.extreme_operands is ExtremeOperands.ABSORBED:
                continue
            fresh = {(made, _makes_integers(model, step, made, is_integer)) for made in step.outputs} - seen
            seen |= fresh
            stack += fresh


def _makes_integers(model: ModelSketch, step: FlatNode, made: str, reads_integers: bool) -> bool:
    """Return whether what a step makes is of integers: where no type is declared, as what it reads."""
    declared = model.types.get(made)
    if declared is not None:
        return not declared.is_float
    match step.operator.result_dtype_source:
        case ResultDtypeSource.TARGET:
            return not DType(next(a.i for a in step.node.attribute if a.name == "to")).is_float
        case ResultDtypeSource.QUANTIZED:
            return True
        case ResultDtypeSource.DEQUANTIZED:
            return False
    return reads_integers


def _tolerates_extremes(step: FlatNode, slot: int, is_integer: bool) -> bool:
    """Return whether a step makes something of any operand, and as large a tensor."""
    facts = step.operator
    if slot in facts.operand_roles or step.domain:
        return False
    if is_integer:
        is_first = facts.extreme_operands is ExtremeOperands.FIRST and slot == 0
        return is_first or facts.extreme_operands in (ExtremeOperands.ALL, ExtremeOperands.ABSORBED)
    makes_integers = facts.is_casting and not _is_float_cast(step)
    return not makes_integers and facts.extreme_operands is not ExtremeOperands.NOT_EVEN_FLOATS


def _is_float_cast(step: FlatNode) -> bool:
    return any(a.name == "to" and DType(a.i).is_float for a in step.node.attribute)
