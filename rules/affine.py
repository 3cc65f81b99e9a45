"""The elementwise operators that scale or shift by a constant: what the families fold into weights, said once.

No rules of its own. A linear operator that is scaled or shifted is the same operator with other weights and another
bias; each entry says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphopt.rule import const, fn, op, real
from graphopt.term import App, Term, Var


class Affine(NamedTuple):
    """`apply(y, c)`; `weights(w, c)` and `bias(b, c)` are what gives it at once, where y = w·x + b."""

    name: str
    what: str
    apply: Callable[[Term, Term], App]
    weights: Callable[[Term, Term], Term]
    bias: Callable[[Term, Term], Term]
    when: Callable[[Var], tuple[Term, ...]] = lambda c: ()


SCALINGS = (
    Affine("mul", "a factor", op.Mul, op.Mul, op.Mul),
    Affine("div", "a divisor", op.Div, op.Div, op.Div, lambda c: (fn.is_not_zero(c),)),
)
SHIFTS = (
    Affine("add", "a shift", op.Add, lambda w, c: w, op.Add),
    Affine("sub", "a shift", op.Sub, lambda w, c: w, op.Sub),
    Affine("rsub", "the difference from a constant", lambda y, c: c - y, lambda w, c: -w, lambda b, c: c - b),
)
AFFINE = (*SCALINGS, *SHIFTS)


class Normalization(NamedTuple):
    """A batch normalization by constants: x -> x * factor + shift, with one number for each channel.

    It is one of inference: `training_mode` is not mentioned, so it has its default.
    """

    scale: Var
    offset: Var
    mean: Var
    variance: Var
    epsilon: Var
    momentum: Var
    """Means nothing in inference."""

    def apply(self, x: Term, scale: Term | None = None, offset: Term | None = None, mean: Term | None = None) -> App:
        """This normalization, or one with other numbers."""
        constants = (scale or self.scale, offset or self.offset, mean or self.mean, self.variance)
        return op.BatchNormalization(x, *constants, epsilon=self.epsilon, momentum=self.momentum)

    def uniform(self, x: Term) -> tuple[Term, ...]:
        """Its constants have the type of the data, which the operator does not ask for."""
        return fn.eq(fn.dtype(self.scale), fn.dtype(x)), fn.eq(fn.dtype(self.mean), fn.dtype(x))

    @property
    def factor(self) -> App:
        return self.scale / op.Sqrt(self.variance + self.epsilon)

    @property
    def shift(self) -> App:
        return self.offset - self.mean * self.factor


def normalization(channels: str, suffix: str = "") -> Normalization:
    """A batch normalization whose channels are the axis of this name."""
    scale, offset, mean, variance = (const(f"{n}{suffix}", channels) for n in ("scale", "offset", "mean", "variance"))
    return Normalization(scale, offset, mean, variance, real(f"epsilon{suffix}"), real(f"momentum{suffix}"))
