"""Denotations of the normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.base.integers import disj, eq, ge, quotient
from graphopt.base.notes import in_case
from graphopt.base.symbolic import Index, Value, call, guarded
from graphopt.base.tensors import Tensor, total, truth
from graphopt.operators.broadcasting import exactly, fits, stretched
from graphopt.operators.node import Body, Node, OneOf, Shape, Undefined
from graphopt.operators.reductions import mean, over
from graphopt.operators.windows import spatial


def BatchNormalization(node: Node) -> Tensor:
    """(x - mean) / √(var + epsilon) · scale + B, per channel; in training there are more outputs, also of the text."""
    x, *parameters = (node.input(i) for i in range(5))
    epsilon = node.real("epsilon")
    node.real("momentum")
    if node.flag("training_mode"):
        raise Undefined("BatchNormalization in training without its running statistics")
    if x.rank < 1:
        raise Undefined("BatchNormalization of a scalar")
    for p in parameters:
        fits(node, p.shape, x.shape[1:2] or (1,), "not one number per channel")

    def at(index: Index) -> Value:
        c = index[1] if x.rank > 1 else 0
        scale, shift, average, variance = (p.at((c,)) for p in parameters)
        return (x.at(index) - average) / call("Sqrt", variance + epsilon) * scale + shift

    return Tensor(x.shape, at)


def standardized(x: Value, extents: Shape, others: Body, epsilon: Value) -> Value:
    """(x - mean) / √(variance + epsilon), both over the others."""
    average = mean(extents, others)
    variance = mean(extents, lambda k: (others(k) - average) * (others(k) - average))
    return (x - average) / call("Sqrt", variance + epsilon)


def LayerNormalization(node: Node) -> Tensor:
    """Standardized over the axes from `axis` on, times Scale plus B."""
    x, scale, b = node.input(0), node.input(1), node.optional(2)
    axis = node.axis("axis", x.rank)
    epsilon = node.real("epsilon")
    node.ignored("stash_type")
    _fits(node, [scale, b], x.shape)
    axes = tuple(range(axis, x.rank))
    _not_empty(node, x.shape[axis:])

    def at(index: Index) -> Value:
        scaled = standardized(*over(x, axes, index), epsilon) * stretched(scale, x.shape, index)
        return scaled + (stretched(b, x.shape, index) if b is not None else 0)

    return Tensor(x.shape, at)


def _fits(node: Node, tensors: Sequence[Tensor | None], shape: Shape) -> None:
    """Ask that the tensors broadcast to the shape and do not change it."""
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.rank > len(shape):
            raise Undefined(f"{node.op}: a parameter of higher rank than the input")
        for size, full in zip(tensor.shape[::-1], shape[::-1], strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "a parameter does not broadcast to the input")


def _not_empty(node: Node, sizes: Shape) -> None:
    """There is something to normalize: ONNX Runtime refuses to run else."""
    for size in sizes:
        node.require(ge(size, 1), "an axis to be normalized is not empty")


def RMSNormalization(node: Node) -> Tensor:
    """x / √(mean of squares from `axis` on + epsilon) · scale."""
    x, scale = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    epsilon = node.real("epsilon")
    node.ignored("stash_type")
    _fits(node, [scale], x.shape)
    axes = tuple(range(axis, x.rank))
    _not_empty(node, x.shape[axis:])

    def at(index: Index) -> Value:
        element, extents, others = over(x, axes, index)
        squares = mean(extents, lambda k: others(k) * others(k))
        return element / call("Sqrt", squares + epsilon) * stretched(scale, x.shape, index)

    return Tensor(x.shape, at)


def InstanceNormalization(node: Node) -> Tensor:
    """Standardized over space for each instance and channel, times scale plus B per channel."""
    x, scale, b = _per_channel(node)
    spatial(node, x)
    epsilon = node.real("epsilon")
    axes = tuple(range(2, x.rank))

    def at(index: Index) -> Value:
        c = (index[1],)
        return standardized(*over(x, axes, index), epsilon) * scale.at(c) + b.at(c)

    return Tensor(x.shape, at)


def GroupNormalization(node: Node) -> Tensor:
    """Standardized over space and a group of C / num_groups channels, times scale plus bias per channel."""
    x, scale, b = _per_channel(node)
    groups = node.integer("num_groups", least=1)
    epsilon = node.real("epsilon")
    node.ignored("stash_type")
    size = exactly(node, x.shape[1], groups, "the channels do not divide into groups")
    _not_empty(node, x.shape)

    def at(index: Index) -> Value:
        n, c = index[:2]
        first = quotient(c, size) * size

        def others(k: Index) -> Value:
            return x.at((n, first + k[0], *k[1:]))

        normal = standardized(x.at(index), (size, *x.shape[2:]), others, epsilon)
        return normal * scale.at((c,)) + b.at((c,))

    return Tensor(x.shape, at)


def _per_channel(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """Return an input, with a scale and a bias for each channel."""
    x, scale, b = (node.input(i) for i in range(3))
    for p in (scale, b):
        fits(node, p.shape, x.shape[1:2], "not one number per channel")
    return x, scale, b


def LpNormalization(node: Node) -> Tensor:
    """x divided by its p-norm along an axis; 0 where that is 0, as both runtimes have it."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    p = node.attribute("p", lambda: OneOf((1, 2)))
    if p not in (1, 2):
        raise Undefined(f"LpNormalization: p is 1 or 2, not {p}")

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        powers = total(extents, lambda k: call("Abs", others(k)) if p == 1 else others(k) * others(k))
        with in_case(is_something := truth(call("NotZero", powers))):
            return guarded(is_something, element / (powers if p == 1 else call("Sqrt", powers)))

    return Tensor(x.shape, at)
