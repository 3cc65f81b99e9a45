"""Operators that compute x -> x * factor + shift for each channel, which many families fold into weights.

No rules of its own. A subtraction of a constant becomes an addition first, and a division is matched as a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphopt.rule import App, Term, Var, const, fn, op, real


class Affine(NamedTuple):
    """An operator on each channel, and what becomes of the weights and bias of a linear operator that takes it in."""

    name: str
    what: str
    apply: Callable[[Term], Term]
    weights: Callable[[Term, Callable[[Term], Term]], Term]
    """Effect on weights, given how one number for each channel is spread over them."""
    bias: Callable[[Term], Term]
    """Effect on the bias of what stands before."""
    shift: Term | None = None
    """Result for zeros; None where that is zeros."""
    when: Callable[[Term], tuple[Term, ...]] = lambda x: ()
    """Conditions on the value beside which it stands."""

    def carry_bias(self, bias: Term, linear: Callable[[Term], Term]) -> Term:
        """Return the bias of a linear operator that takes in the operator before it."""
        return bias if self.shift is None else bias + linear(self.shift)


NOTHING = Affine("nothing", "the input itself", lambda x: x, lambda w, spread: w, lambda b: b)


def affine(channels: str, beside: str = "") -> tuple[Affine, Affine, Affine, Affine]:
    """Return a factor, a shift, a difference and a batch normalization, with constants along the axis `channels`.

    `beside` are axes of size 1 that the constants have behind it.
    """
    c = const("c", f"{channels} {beside}")
    each = op.Reshape(c, fn.sizes(channels)) if beside else c
    return (
        Affine("mul", "a factor", lambda x: x * c, lambda w, spread: w * spread(each), lambda b: b * each),
        Affine("add", "a shift", lambda x: x + c, lambda w, spread: w, lambda b: b + each, each),
        Affine("rsub", "a difference", lambda x: c - x, lambda w, spread: -w, lambda b: each - b, each),
        batch_normalization(channels).affine,
    )


class BatchNormalization(NamedTuple):
    """A batch normalization by constants: x -> x * factor + shift, with one number for each channel.

    It is one for inference: `training_mode_input` is not mentioned, so it has its default.
    """

    scale: Var
    offset: Var
    mean: Var
    variance: Var
    epsilon: Var
    momentum: Var
    """Means nothing in inference."""

    def apply(self, x: Term, scale: Term | None = None, offset: Term | None = None, mean: Term | None = None) -> App:
        """Return the normalization of a value, with these or other constants."""
        constants = (scale or self.scale, offset or self.offset, mean or self.mean, self.variance)
        return op.BatchNormalization(x, *constants, epsilon=self.epsilon, momentum=self.momentum)

    def same_type_conditions(self, x: Term) -> tuple[Term, ...]:
        """Return the conditions that its constants have the element type of the data, which the operator does not
        require."""
        return fn.eq(fn.dtype(self.scale), fn.dtype(x)), fn.eq(fn.dtype(self.mean), fn.dtype(x))

    @property
    def factor(self) -> App:
        return self.scale / op.Sqrt(self.variance + self.epsilon)

    @property
    def shift(self) -> App:
        return self.offset - self.mean * self.factor

    @property
    def affine(self) -> Affine:
        return Affine(
            "bn",
            "a batch normalization",
            self.apply,
            lambda w, spread: w * spread(self.factor),
            lambda b: (b - self.mean) * self.factor + self.offset,
            self.shift,
            self.same_type_conditions,
        )


def batch_normalization(channels: str, suffix: str = "") -> BatchNormalization:
    """Return a batch normalization whose channels are the axis of this name."""
    scale, offset, mean, variance = (const(f"{n}{suffix}", channels) for n in ("scale", "offset", "mean", "variance"))
    return BatchNormalization(scale, offset, mean, variance, real(f"epsilon{suffix}"), real(f"momentum{suffix}"))
