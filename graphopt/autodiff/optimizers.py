"""Optimizers as data: the next value of a parameter, and of its state, as terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphopt.language.terms import Term, Var, op, tensor

PARAMETER, GRADIENT = tensor("parameter"), tensor("gradient")
STEP = tensor("step")
"""The number of steps that were made, this one included."""
RATE, MOMENTUM, BETA1, BETA2, EPSILON, DECAY = (
    tensor(name) for name in ("learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay")
)
VELOCITY, MEAN, SQUARE = tensor("velocity"), tensor("mean"), tensor("square")


@dataclass(frozen=True)
class Optimizer:
    """A rule by which parameters are updated, once per step."""

    parameter: Term
    """The next value of a parameter, over what is known and the next values of its state."""
    state: Mapping[Var, Term] = field(default_factory=dict)
    """The next value of each tensor that is kept for a parameter, which begins as zeros."""
    settings: Mapping[Var, float] = field(default_factory=dict)
    """The numbers that a run may set, with their defaults."""
    counts_steps: bool = False


_next_velocity = VELOCITY * MOMENTUM + GRADIENT
_next_mean = MEAN * BETA1 + GRADIENT * (1 - BETA1)
_next_square = SQUARE * BETA2 + GRADIENT * GRADIENT * (1 - BETA2)
_unbiased_mean = _next_mean / (1 - op.Pow(BETA1, STEP))
_unbiased_square = _next_square / (1 - op.Pow(BETA2, STEP))

OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(PARAMETER - GRADIENT * RATE, settings={RATE: 0.01}),
    "momentum": Optimizer(
        PARAMETER - _next_velocity * RATE, {VELOCITY: _next_velocity}, settings={RATE: 0.01, MOMENTUM: 0.9}
    ),
    "adamw": Optimizer(
        PARAMETER * (1 - RATE * DECAY) - _unbiased_mean / (op.Sqrt(_unbiased_square) + EPSILON) * RATE,
        {MEAN: _next_mean, SQUARE: _next_square},
        settings={RATE: 1e-3, BETA1: 0.9, BETA2: 0.999, EPSILON: 1e-8, DECAY: 0.01},
        counts_steps=True,
    ),
}
"""Optimizers by name: gradient descent, the same with momentum as PyTorch has it, and Adam with decoupled weight decay
(Loshchilov and Hutter, 2019), with PyTorch's defaults where it has some."""
