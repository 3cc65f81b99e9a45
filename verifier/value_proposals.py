"""Random values of attributes and lists for which operators are defined, by name; examples are drawn with them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from graphopt.language.type_inference import NoInstance
from graphopt.operators.attribute_proposals import (
    Proposal,
    ProposalContext,
    propose_axes,
    propose_choice,
    propose_per_axis,
    propose_per_spatial_axis,
)
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.window_ops import CONVOLUTION_OPERATORS, FILTER_OPERATORS
from graphopt.verifier.concrete_instance import Shape

ORDER = {"axis": -2, "group": -1, "kernel_shape": -1, "num_outputs": 1, "pads": 2}


def propose(context: ProposalContext, name: str, kind: str) -> Any:
    """Return a value for an attribute, or for an input that holds a list of integers or a number."""
    proposal = _proposal(context, name)
    value = proposal(context) if proposal else _by_kind(context, kind)
    if kind == "integer" and isinstance(value, tuple):
        return context.rng.choice(value) if value else 0
    if kind == "integers" and not isinstance(value, tuple):
        return (value,)
    return value


def _proposal(context: ProposalContext, name: str) -> Proposal | None:
    """Return the proposal for a name: that of the operator's entry, else the general one."""
    return lookup_operator(context.app.op, context.app.domain).proposals.get(name) or _PROPOSALS.get(name)


def _by_kind(context: ProposalContext, kind: str) -> Any:
    rng = context.rng
    match kind:
        case "integer":
            return rng.randint(-1, 3)
        case "integers":
            return tuple(rng.choice(context.draft.scope.numbers) for _ in range(rng.choice((1, context.rank))))
        case "real":
            return rng.choice((0.5, 1.0, 2.0, 0.25, -1.5, 3.0, 6.0, 0.0))
    return "NOTSET"


def _axis(context: ProposalContext) -> int:
    if context.rank == 0:
        return 0
    return context.rng.randrange(-context.rank, context.rank)


def _place_of_weights(context: ProposalContext) -> int:
    found = lookup_operator(context.app.op, context.app.domain).weights_input
    return 1 if found is None else found


def _group(context: ProposalContext) -> int:
    place = _place_of_weights(context)
    weights = context.inputs[place] if len(context.inputs) > place else None
    if not weights or len(weights) < 2 or context.rank < 2:
        raise NoInstance("no channels")
    channels = context.shape[1]
    if context.app.op in CONVOLUTION_OPERATORS:
        return channels // weights[1] if weights[1] else 1
    return context.rng.choice([group for group in range(1, channels + 1) if channels % group == 0] or [1])


def _kernel(context: ProposalContext) -> Shape:
    if context.app.op in FILTER_OPERATORS:
        return tuple((context.inputs[_place_of_weights(context)] or ())[2:])
    return propose_per_spatial_axis(1, 3)(context)


def _factors(context: ProposalContext) -> Shape:
    """Another shape with as many elements, with a -1 or a 0 now and then."""
    rng, rest = context.rng, prod(context.shape)
    sizes: list[int] = []
    for _ in range(rng.randint(0, 3)):
        sizes.append(rng.choice([n for n in range(1, rest + 1) if rest % n == 0] or [1]))
        rest //= sizes[-1] or 1
    if rest != 1 or rng.random() < 0.2:
        sizes.insert(rng.randint(0, len(sizes)), rest)
    if sizes and rng.random() < 0.4:
        sizes[rng.randrange(len(sizes))] = -1
    kept = [i < context.rank and size == context.shape[i] and rng.random() < 0.3 for i, size in enumerate(sizes)]
    return tuple(0 if keep else size for keep, size in zip(kept, sizes, strict=True))


def _split(context: ProposalContext) -> Shape:
    axis = context.attrs.get("axis", 0)
    if not -context.rank <= axis < context.rank:
        raise NoInstance("no such axis")
    parts, total = context.app.outputs, context.shape[axis]
    cuts = sorted(context.rng.randint(0, total) for _ in range(parts - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def _flag(context: ProposalContext) -> int:
    return context.rng.randint(0, 1)


def _cast(context: ProposalContext) -> int:
    return int(context.draft.types.draw((context.app.node, 0), context.rng))


_PROPOSALS: Mapping[str, Proposal] = {
    "axis": _axis,
    "axes": propose_axes,
    "perm": lambda context: tuple(context.rng.sample(range(context.rank), context.rank)),
    "pads": propose_per_spatial_axis(0, 2, times=2),
    "strides": propose_per_spatial_axis(1, 2),
    "dilations": propose_per_spatial_axis(1, 2),
    "kernel_shape": _kernel,
    "group": _group,
    "auto_pad": propose_choice("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "epsilon": propose_choice(2.0**-17, 2.0**-10, 0.125),  # in single precision, in which attributes are kept, too
    "alpha": propose_choice(0.5, 1.0, 0.25, 2.0),
    "beta": propose_choice(0.5, 1.0, 0.25, 2.0),
    "shape": _factors,
    "split": _split,
    "starts": propose_per_axis(0, 0, 1, 2, -1, -2),
    "ends": propose_per_axis(1, 2, 3, -1, 9, 2**31, 2**63 - 1),
    "steps": propose_per_axis(1, 1, 2),
    "repeats": lambda context: tuple(context.rng.randint(1, 3) for _ in context.shape),
    "to": _cast,
    "blocksize": propose_choice(1, 2),
    "approximate": propose_choice("none", "tanh"),
    **dict.fromkeys(("keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "largest", "sorted"), _flag),
    **dict.fromkeys(("exclusive", "reverse", "allowzero", "select_last_index", "noop_with_empty_axes"), _flag),
}


_NOT_PROPOSED = frozenset({"output_shape", "spatial_scale", "training_mode", "momentum", "stash_type", "storage_order"})
"""Attributes that are never drawn: rules mean their defaults, or other attributes determine them."""


def propose_bundle(context: ProposalContext) -> dict[str, Any]:
    """Return values for some of the attributes that a pattern does not mention."""
    chosen: dict[str, Any] = {}
    named = {name for name, _ in context.app.attrs}
    for name in sorted(context.signature.attributes, key=lambda name: (ORDER.get(name, 0), name)):
        _, required = context.signature.attributes[name]
        if name in named or name in _NOT_PROPOSED:
            continue
        if not required and name != "group" and context.rng.random() < 0.5:
            continue
        if name == "pads" and chosen.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        if _proposal(context, name):
            chosen[name] = propose(context, name, "")
    return chosen
