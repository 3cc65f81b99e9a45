"""Proposals of attributes and lists for which an operator is defined, for the drawing of examples.

Entries of operators name their own; those by the name of an attribute, whatever the operator, are in the verifier.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from graphopt.language.terms import App, Lit, Term, Var, is_scalar
from graphopt.language.type_inference import NoInstance, OperatorSignature, TypeConstraints

StaticShape: TypeAlias = tuple[int, ...]


class NumberScope(Protocol):
    """Ranges from which whole numbers are drawn of which nothing else is known."""

    @property
    def numbers(self) -> StaticShape: ...


class DraftInstance(Protocol):
    """The part of an example that is drawn already."""

    rng: random.Random
    types: TypeConstraints
    values: dict[str, Any]
    shapes: dict[Term, StaticShape | None]

    @property
    def scope(self) -> NumberScope: ...


@dataclass(frozen=True)
class ProposalContext:
    """An operator whose tensor operands are known, for proposing the rest."""

    app: App
    signature: OperatorSignature
    inputs: list[StaticShape | None]
    attrs: dict[str, Any]
    draft: DraftInstance

    @property
    def rng(self) -> random.Random:
        return self.draft.rng

    @property
    def shape(self) -> StaticShape:
        """Shape of the first input."""
        return (self.inputs[0] if self.inputs else None) or ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def spatial_rank(self) -> int:
        return max(self.rank - 2, 0)


Proposal: TypeAlias = "Callable[[ProposalContext], Any]"


def propose_per_spatial_axis(low: int, high: int, times: int = 1) -> Callable[[ProposalContext], StaticShape]:
    return lambda context: tuple(context.rng.randint(low, high) for _ in range(times * context.spatial_rank))


def propose_axes(context: ProposalContext) -> StaticShape:
    least = 0 if context.rng.random() < 0.1 else min(1, context.rank)
    chosen = context.rng.sample(range(context.rank), context.rng.randint(least, context.rank))
    return tuple(axis - context.rank if context.rng.random() < 0.3 else axis for axis in chosen)


def propose_per_axis(*choices: int, times: int = 1) -> Callable[[ProposalContext], StaticShape]:
    """Return one number for each axis that a slice or pad names, or for all of them."""

    def proposed(context: ProposalContext) -> StaticShape:
        axes = context.app.inputs[3] if len(context.app.inputs) > 3 else None
        count = context.rank
        if isinstance(axes, Var) and is_scalar(axes):
            count = len(context.draft.values.setdefault(axes.name, propose_axes(context)))
        elif isinstance(axes, Lit):
            count = len(axes.value) if isinstance(axes.value, tuple) else 1
        return tuple(context.rng.choice(choices) for _ in range(times * count))

    return proposed


def propose_choice(*options: Any) -> Proposal:
    return lambda context: context.rng.choice(options)


def propose_expanded_shape(context: ProposalContext) -> StaticShape:
    rng = context.rng
    sizes = [size if size != 1 else rng.choice((1, 2, 3)) for size in context.shape]
    sizes = [1 if rng.random() < 0.2 else size for size in sizes]
    return tuple([rng.choice((1, 2))] * rng.choice((0, 0, 1)) + sizes)


def propose_resize_shape(context: ProposalContext) -> StaticShape:
    """Return sizes for a Resize: images are enlarged, for which all modes have kernels."""
    return (
        *context.shape[:2],
        *(size * context.rng.choice((1, 2)) + context.rng.choice((0, 1)) for size in context.shape[2:]),
    )


def propose_unsqueeze_axes(context: ProposalContext) -> StaticShape:
    count = context.rng.choice((1, 1, 2, 3))
    return tuple(context.rng.sample(range(context.rank + count), count))


def propose_squeeze_axes(context: ProposalContext) -> StaticShape:
    ones = [axis for axis, size in enumerate(context.shape) if size == 1]
    if not ones:
        raise NoInstance("nothing to squeeze")
    return tuple(context.rng.sample(ones, context.rng.randint(1, len(ones))))


def propose_flatten_axis(context: ProposalContext) -> int:
    """Return an axis before which a Flatten splits a shape; or the end of the shape."""
    return context.rng.randint(-context.rank, context.rank)
