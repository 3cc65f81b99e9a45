"""Losses as data: a number over an output of the model and what it should have been."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphopt.base.dtype import DType
from graphopt.language.terms import Term, fn, op, tensor

OUTPUT, TARGET = tensor("output"), tensor("target")


@dataclass(frozen=True)
class Loss:
    """A loss between an output and an input that it adds to the model."""

    target: str
    """Name of the new input."""
    value: Term
    """The loss, a number."""
    is_classification: bool = False
    """True if the target is the index of a class along the second axis, not a tensor as the output is."""


_deviation = OUTPUT - TARGET
_chosen = op.Cast(
    op.OneHot(TARGET, fn.item(fn.shape(OUTPUT), 1), op.Cast((0, 1), to=DType.FLOAT), axis=1), to=fn.dtype(OUTPUT)
)
_likelihood = op.ReduceSum(op.LogSoftmax(OUTPUT, axis=1) * _chosen, (1,), keepdims=0)

LOSSES: Mapping[str, Loss] = {
    "softmax_cross_entropy": Loss("labels", -op.ReduceMean(_likelihood, keepdims=0), is_classification=True),
    "mse": Loss("target", op.ReduceMean(_deviation * _deviation, keepdims=0)),
}
"""Losses by name: the mean of what ONNX's SoftmaxCrossEntropyLoss computes, and the mean squared error."""
