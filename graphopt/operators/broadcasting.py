"""Shapes that fit each other, and what many operators ask of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from graphopt.base.integers import Size, choice, disj, eq, quotient, remainder
from graphopt.base.symbolic import Index, Tensor, Value, call
from graphopt.base.types import DType
from graphopt.operators.elementwise import COMPARISONS, EXACT, LOGICAL, Function
from graphopt.operators.node import Denotation, Node, Shape, Undefined


def broadcast(node: Node, shapes: Sequence[Shape]) -> Shape:
    """https://github.com/onnx/onnx/blob/main/docs/Broadcasting.md: axes from the right, equal or one of them 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(reduce(lambda a, b: common_size(node, a, b), sizes) for sizes in zip(*padded, strict=True))


def common_size(node: Node, a: Size, b: Size) -> Size:
    node.require(disj(eq(a, b), eq(a, 1), eq(b, 1)), "the sizes of an axis differ and none is 1")
    if b == 1:
        return a
    return b if isinstance(b, int) else node.shared(a, b)


def stretched(tensor: Tensor, shape: Shape, index: Index) -> Value:
    """The element of a tensor that is broadcast to a shape."""
    own = index[len(index) - tensor.rank :]
    sizes = zip(own, tensor.shape, shape[len(shape) - tensor.rank :], strict=True)
    return tensor.at(tuple(i if size == full else choice(eq(size, 1), 0, i) for i, size, full in sizes))


def fits(node: Node, shape: Shape, wanted: Shape, reason: str) -> None:
    """The shape has to be the one that is wanted."""
    if len(shape) != len(wanted):
        raise Undefined(f"{node.op}: {reason}")
    for size, own in zip(shape, wanted, strict=True):
        node.require(eq(size, own), reason)


def exactly(node: Node, dividend: Size, divisor: Size, reason: str) -> Size:
    """The quotient of a division that has to come out even."""
    node.require(eq(remainder(dividend, divisor)), reason)
    return quotient(dividend, divisor)


def pointwise(of: Callable[[Node], Function]) -> Denotation:
    """An operator that computes each element from those of its inputs at that index, by the function that `of` says."""

    def elementwise(node: Node) -> Tensor:
        count = 1 if node.op == "CastLike" else node.count  # of what it is cast like only the type counts
        inputs = [node.optional(i) for i in range(count)]
        present = [tensor for tensor in inputs if tensor is not None]
        shape = broadcast(node, [tensor.shape for tensor in present])
        if node.op in ("Div", "Mod"):
            divisor = node.input(1)
            node.require_divisors(Tensor(shape, lambda index: stretched(divisor, shape, index)))
        function = of(node)
        compares_exactly = node.op in COMPARISONS and (node.dtype.is_integer or node.dtype is DType.BOOL)
        if node.op not in LOGICAL and not compares_exactly and node.is_exact:
            function = EXACT(node)
        return _elementwise(inputs, shape, function)

    return elementwise


def unknown(node: Node) -> Tensor:
    """An operator of which only the class is known (`ops.CLASSES`): some function of elements, perhaps undefined."""
    inputs = [node.input(i) for i in range(node.count)]
    shape = broadcast(node, [tensor.shape for tensor in inputs])
    params = tuple(tensor.dtype for tensor in inputs)

    def function(*values: Value | None) -> Value:
        return call(f"any {node.op}", *(value for value in values if value is not None), params=params)

    def is_defined(*values: Value | None) -> Value:
        return call(f"where {node.op} is defined", *(value for value in values if value is not None), params=params)

    node.require_some(_elementwise(inputs, shape, is_defined).base)  # of which a view has all elements
    return _elementwise(inputs, shape, function)


def _elementwise(inputs: Sequence[Tensor | None], shape: Shape, function: Function) -> Tensor:
    """The tensor of a function of the elements of its inputs."""
    present = [tensor for tensor in inputs if tensor is not None]

    def applied(operands: Sequence[Tensor | None], shape: Shape, view_of: Tensor | None = None) -> Tensor:
        def at(index: Index) -> Value:
            return function(*(t and stretched(t, shape, index) for t in operands))

        return Tensor(shape, at, view_of=view_of)

    base = _common_base(present, shape)
    return applied(inputs, shape, None if base is None else applied([t and t.base for t in inputs], base))


def _common_base(operands: Sequence[Tensor], shape: Shape) -> Shape | None:
    """The shape of what all operands of this shape are views of; single numbers go with every shape."""
    whole = [t for t in operands if t.rank or t.view_of]
    bases = {t.base.shape for t in whole}
    same = len(bases) == 1 and all(t.shape == shape for t in whole)
    return next(iter(bases)) if same and any(t.view_of for t in whole) else None
