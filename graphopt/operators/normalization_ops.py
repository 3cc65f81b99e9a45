"""Denotations of the normalizations."""

from __future__ import annotations

from graphopt.expr.expressions import Expr, Index, call_function, guard_expr, integer_value
from graphopt.expr.integers import Size, eq, ge, in_range, quotient, remainder
from graphopt.expr.partial_calls import under_guard
from graphopt.expr.symbolic_tensors import SymbolicTensor, sum_over, truth_condition
from graphopt.operators.elementwise_ops import is_positive
from graphopt.operators.op_context import ElementBody, OneOf, OpContext, SymbolicShape, UndefinedOperatorError
from graphopt.operators.reduction_ops import elements_along, mean_over
from graphopt.operators.shape_constraints import broadcast_element, divide_exactly, require_broadcast, require_shape
from graphopt.operators.window_ops import spatial_shape


def BatchNormalization(node: OpContext) -> SymbolicTensor:
    """(x - mean) / √(var + epsilon) · scale + B, per channel; in training there are more outputs, also of the text."""
    x, *parameters = (node.input(i) for i in range(5))
    epsilon = node.real("epsilon")
    node.real("momentum")
    if node.flag("training_mode"):
        raise UndefinedOperatorError("BatchNormalization in training without its running statistics")
    if x.rank < 1:
        raise UndefinedOperatorError("BatchNormalization of a scalar")
    for p in parameters:
        require_shape(node, p.shape, x.shape[1:2] or (1,), "not one number per channel")

    def at(index: Index) -> Expr:
        c = index[1] if x.rank > 1 else 0
        scale, shift, average, variance = (p.element((c,)) for p in parameters)
        return (x.element(index) - average) / call_function("Sqrt", variance + epsilon) * scale + shift

    return SymbolicTensor(x.shape, at)


def standardize(x: Expr, extents: SymbolicShape, others: ElementBody, epsilon: Expr) -> Expr:
    """(x - mean) / √(variance + epsilon), mean and variance over the other elements."""
    average = mean_over(extents, others)
    variance = mean_over(extents, lambda k: (others(k) - average) * (others(k) - average))
    return (x - average) / call_function("Sqrt", variance + epsilon)


def LayerNormalization(node: OpContext) -> SymbolicTensor:
    """Standardize over the axes from `axis` on; times Scale plus B."""
    x, scale, b = node.input(0), node.input(1), node.optional_input(2)
    axis = node.axis("axis", x.rank)
    epsilon = node.real("epsilon")
    node.read_unmodeled_attribute("stash_type")
    for tensor in (scale, b):
        if tensor is not None:
            require_broadcast(node, tensor.shape, x.shape, "a parameter does not broadcast to the input")
    axes = tuple(range(axis, x.rank))
    _require_nonempty(node, x.shape[axis:])

    def at(index: Index) -> Expr:
        scaled = standardize(*elements_along(x, axes, index), epsilon) * broadcast_element(scale, x.shape, index)
        return scaled + (broadcast_element(b, x.shape, index) if b is not None else 0)

    return SymbolicTensor(x.shape, at)


def _require_nonempty(node: OpContext, sizes: SymbolicShape) -> None:
    """Require elements to normalize, without which ONNX Runtime refuses to run."""
    for size in sizes:
        node.require(ge(size, 1), "an axis to be normalized is not empty")


def RMSNormalization(node: OpContext) -> SymbolicTensor:
    """x / √(mean of squares from `axis` on + epsilon) · scale."""
    x, scale = node.input(0), node.input(1)
    axis = node.axis("axis", x.rank)
    epsilon = node.real("epsilon")
    node.read_unmodeled_attribute("stash_type")
    require_broadcast(node, scale.shape, x.shape, "a parameter does not broadcast to the input")
    axes = tuple(range(axis, x.rank))
    _require_nonempty(node, x.shape[axis:])

    def at(index: Index) -> Expr:
        element, extents, others = elements_along(x, axes, index)
        squares = mean_over(extents, lambda k: others(k) * others(k))
        return element / call_function("Sqrt", squares + epsilon) * broadcast_element(scale, x.shape, index)

    return SymbolicTensor(x.shape, at)


def InstanceNormalization(node: OpContext) -> SymbolicTensor:
    """Standardize over space, for each instance and channel; times scale plus B per channel."""
    x, scale, b = _channel_operands(node)
    spatial_shape(node, x)
    epsilon = node.real("epsilon")
    axes = tuple(range(2, x.rank))

    def at(index: Index) -> Expr:
        c = (index[1],)
        return standardize(*elements_along(x, axes, index), epsilon) * scale.element(c) + b.element(c)

    return SymbolicTensor(x.shape, at)


def GroupNormalization(node: OpContext) -> SymbolicTensor:
    """Standardize over space and a group of C / num_groups channels; times scale plus bias per channel."""
    x, scale, b = _channel_operands(node)
    groups = node.integer("num_groups", least=1)
    epsilon = node.real("epsilon")
    node.read_unmodeled_attribute("stash_type")
    size = divide_exactly(node, x.shape[1], groups, "the channels do not divide into groups")
    _require_nonempty(node, x.shape)

    def at(index: Index) -> Expr:
        n, c = index[:2]
        first = quotient(c, size) * size

        def others(k: Index) -> Expr:
            return x.element((n, first + k[0], *k[1:]))

        normal = standardize(x.element(index), (size, *x.shape[2:]), others, epsilon)
        return normal * scale.element((c,)) + b.element((c,))

    return SymbolicTensor(x.shape, at)


def _channel_operands(node: OpContext) -> tuple[SymbolicTensor, SymbolicTensor, SymbolicTensor]:
    """Return an input, with a scale and a bias for each channel."""
    x, scale, b = (node.input(i) for i in range(3))
    for p in (scale, b):
        require_shape(node, p.shape, x.shape[1:2], "not one number per channel")
    return x, scale, b


def LpNormalization(node: OpContext) -> SymbolicTensor:
    """Divide x by its p-norm along an axis; 0 where that is 0, as in both runtimes."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    p = node.attribute("p", lambda: OneOf((1, 2)))
    if p not in (1, 2):
        raise UndefinedOperatorError(f"LpNormalization: p is 1 or 2, not {p}")

    def at(index: Index) -> Expr:
        element, extents, others = elements_along(x, (axis,), index)
        powers = sum_over(extents, lambda k: call_function("Abs", others(k)) if p == 1 else others(k) * others(k))
        with under_guard(is_something := truth_condition(call_function("NotZero", powers))):
            return guard_expr(is_something, element / (powers if p == 1 else call_function("Sqrt", powers)))

    return SymbolicTensor(x.shape, at)


def LRN(node: OpContext) -> SymbolicTensor:
    """x / (bias + alpha / size · the sum of squares over so many channels, of which this is in the middle)^beta.

    Runtimes take images alone, an odd number of channels, and positive numbers.
    """
    x = node.input(0)
    if x.rank != 4:
        raise UndefinedOperatorError(f"LRN of rank {x.rank}")
    alpha, beta, bias = (node.real(name) for name in ("alpha", "beta", "bias"))
    for name, value in (("alpha", alpha), ("beta", beta)):
        node.require(is_positive(value), f"{name} is positive")
    size = node.integer("size", least=1)
    node.require(eq(remainder(size, 2), 1), "the number of channels is odd")

    def at(index: Index) -> Expr:
        n, c, *place = index

        def channel(k: Index) -> Size:
            return c + k[0] - quotient(size, 2)

        def square(k: Index) -> Expr:
            element = x.element((n, channel(k), *place))
            return element * element

        squares = sum_over((size,), square, lambda k: in_range(channel(k), x.shape[1]))
        return x.element(index) / call_function("Pow", bias + alpha / integer_value(size) * squares, beta)

    return SymbolicTensor(x.shape, at)
