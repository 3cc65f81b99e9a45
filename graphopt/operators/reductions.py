"""Denotations of operators that run along axes: products of matrices, sums, greatest elements, softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations

from graphopt.base.integers import Formula, Size, disj, eq, fresh, ge, le, lt, negate, product
from graphopt.base.notes import noting
from graphopt.base.symbolic import Element, Index, Value, call, integer, lift
from graphopt.base.tensors import Tensor, boolean, folded, total, truth
from graphopt.base.types import DType
from graphopt.operators.broadcasting import broadcast, common_size, stretched
from graphopt.operators.cost import Cost
from graphopt.operators.implied import REDUCED_AXES
from graphopt.operators.node import Body, Node, OneOf, Reduction, Shape, Undefined, Unsupported
from graphopt.operators.opaque import opaque
from graphopt.operators.operator import Extremes, Operator, Reach, Reference, Rounding, Summation


def MatMul(node: Node) -> Tensor:
    """As numpy.matmul: a vector is a row or a column, leading axes broadcast."""
    return matrix_product(node, node.input(0), node.input(1))


def matrix_product(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two stacks of matrices."""
    if not a.rank or not b.rank:
        raise Undefined(f"{node.op} of a scalar")
    row, column = a.rank == 1, b.rank == 1
    inner, other = a.shape[-1], b.shape[-1 if column else -2]
    node.require(eq(inner, other), "the contracted axes have different sizes")
    batch = broadcast(node, [a.shape[:-2], b.shape[:-2]])
    shape = (*batch, *a.shape[-2:-1], *(() if column else b.shape[-1:]))

    def at(index: Index) -> Value:
        outer, rest = index[: len(batch)], index[len(batch) :]
        i = () if row else rest[:1]
        j = () if column else rest[-1:]

        def element(matrices: Tensor, place: Index) -> Value:
            return stretched(matrices, (*batch, *matrices.shape[-2:]), (*outer, *place))

        return total((inner,), lambda k: element(a, (*i, *k)) * element(b, (*k, *j)))

    return Tensor(shape, at)


def Gemm(node: Node) -> Tensor:
    """alpha · A' · B' + beta · C, where A' and B' may be transposed and C is broadcast."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2 or (c is not None and c.rank > 2):
        raise Undefined("Gemm of something else than matrices")
    alpha, beta = node.real("alpha"), node.real("beta")
    flipped_a, flipped_b = node.flag("transA"), node.flag("transB")
    (M, K) = a.shape[::-1] if flipped_a else a.shape
    (L, N) = b.shape[::-1] if flipped_b else b.shape
    node.require(eq(K, L), "the contracted axes have different sizes")
    if c is not None:
        for size, full in zip(c.shape[::-1], (N, M), strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "C does not broadcast to the result")

    def at(index: Index) -> Value:
        i, j = index
        dot = total((K,), lambda k: a.at((*k, i) if flipped_a else (i, *k)) * b.at((j, *k) if flipped_b else (*k, j)))
        return alpha * dot + (beta * stretched(c, (M, N), index) if c is not None else 0)

    return Tensor((M, N), at)


def mean(extents: Shape, body: Body) -> Value:
    return total(extents, body) / integer(product(extents))


def along(node: Node, axes: Sequence[int]) -> None:
    """Name the axes that a reduction runs along, however they are given: it is known by them."""
    for name in ("axis", "input1", "noop_with_empty_axes"):
        node.used.pop(name, None)
    node.used["along"] = tuple(sorted(axes))


@dataclass(frozen=True)
class Reducing:
    """A Reduce operator: `axes` is an input; none means all, or with `noop_with_empty_axes` none.

    In which order elements are taken does not matter: all elements of a view are all of what it is a view of.
    """

    combine: Reduction

    def __call__(self, node: Node) -> Tensor:
        x = node.input(0)
        keep = node.flag("keepdims")
        noop = node.flag("noop_with_empty_axes")
        axes = node.axes(1, x.rank) if node.has(1) else ()
        axes = axes if axes or noop else tuple(range(x.rank))
        along(node, axes)
        kept = [i for i in range(x.rank) if i not in axes]
        shape = tuple(1 if i in axes else s for i, s in enumerate(x.shape) if keep or i not in axes)
        extents = tuple(x.shape[i] for i in axes)

        def whole(_: Index) -> Value:
            return self.combine(x.base.shape, x.base.at)

        def at(index: Index) -> Value:
            outer = dict(zip(kept, (index[i] for i in kept) if keep else index, strict=True))

            def element(k: Index) -> Value:
                inner = dict(zip(axes, k, strict=True))
                return x.at(tuple(inner[i] if i in inner else outer[i] for i in range(x.rank)))

            return self.combine(extents, element)

        return Tensor(shape, at if kept else whole)


def any_reduction(node: Node) -> Tensor:
    """Return a reduction of which only the class is known (`ops.CLASSES`)."""

    def unseen(_: Shape, __: Body) -> Value:
        raise Unsupported("an element of any reduction")

    return opaque(node, 0, Reducing(unseen)(node))


reducing = partial(
    Operator,
    weight=130,
    roles={1: "axes"},
    implied={1: REDUCED_AXES},
    summation=Summation.UNKNOWN,
)
"""An operator Reduce: its denotation is `Reducing`."""
summing = partial(reducing, reach=Reach.GROWN, extremes=Extremes.FIRST)
choosing = partial(reducing, reference=Reference.ON_INTEGERS, rounding=Rounding.KEPT, extremes=Extremes.FIRST)

REDUCTIONS: Mapping[str, Operator] = {
    "ReduceSum": summing(Reducing(total), adds_products=True, reference=Reference.ON_INTEGERS),
    "ReduceMean": reducing(Reducing(mean), adds_products=True, extremes=Extremes.FIRST),
    "ReduceMax": choosing(Reducing(lambda n, x: folded("max", n, x))),
    "ReduceMin": choosing(Reducing(lambda n, x: folded("min", n, x))),
    "ReduceProd": summing(Reducing(lambda n, x: folded("prod", n, x)), reference=Reference.ON_INTEGERS, multiplies=2),
    "ReduceSumSquare": summing(Reducing(lambda n, x: total(n, lambda k: x(k) * x(k))), multiplies=2, cost=Cost(60)),
    "ReduceL1": summing(Reducing(lambda n, x: total(n, lambda k: call("Abs", x(k))))),
    "ReduceL2": reducing(
        Reducing(lambda n, x: call("Sqrt", total(n, lambda k: x(k) * x(k)))),
        reach=Reach.GROWN,
        multiplies=2,
        cost=Cost(60),
    ),
    "ReduceLogSum": reducing(Reducing(lambda n, x: call("Log", total(n, x))), pole=0),
    "ReduceLogSumExp": reducing(Reducing(lambda n, x: call("Log", total(n, lambda k: call("Exp", x(k)))))),
}


def CumSum(node: Node) -> Tensor:
    """Return the sum of what precedes along an axis, itself included unless `exclusive`; backwards if `reverse`."""
    x = node.input(0)
    axis = node.counted(node.numbers(1, lambda: OneOf(range(-x.rank, x.rank))), x.rank)
    exclusive, backwards = node.flag("exclusive"), node.flag("reverse")

    def at(index: Index) -> Value:
        def counts(k: Index) -> Formula:
            before, after = (index[axis], k[0]) if backwards else (k[0], index[axis])
            return lt(before, after) if exclusive else le(before, after)

        _, extents, others = over(x, (axis,), index)
        summed = total(extents, others, counts)
        number = _number(x)
        if number is None:
            return summed
        before = extents[0] - 1 - index[axis] if backwards else index[axis]
        return number * integer(before if exclusive else before + 1)

    return Tensor(x.shape, at)


def _number(x: Tensor) -> Value | None:
    """Return the number that all elements of a tensor are, where that is plain."""
    with noting():  # nothing: what is computed of them is noted where they are read
        value = x.at(tuple(fresh("i") for _ in x.shape))
    return None if value.constant is None else value


def counts_exactly(node: Node) -> bool:
    """Return whether a CumSum adds nothing but ones or zeros, in integers which hold any size."""
    number = _number(node.input(0)) if node.dtype in (DType.INT64, DType.UINT64) else None
    return number is not None and number.constant in (0, 1)


def over(x: Tensor, axes: Sequence[int], index: Index) -> tuple[Value, Shape, Body]:
    """Return the element at an index, and those that differ from it in some axes only: how many, and which."""

    def at(k: Index) -> Value:
        inner = dict(zip(axes, k, strict=True))
        return x.at(tuple(inner.get(i, j) for i, j in enumerate(index)))

    return x.at(index), tuple(x.shape[a] for a in axes), at


def Softmax(node: Node) -> Tensor:
    """exp(x) / Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        return call("Exp", element) / total(extents, lambda k: call("Exp", others(k)))

    return Tensor(x.shape, at)


def LogSoftmax(node: Node) -> Tensor:
    """x - log Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Value:
        element, extents, others = over(x, (axis,), index)
        return element - call("Log", total(extents, lambda k: call("Exp", others(k))))

    return Tensor(x.shape, at)


PLACES = {"ArgMax": "place of the greatest", "ArgMin": "place of the least"}


def ArgMax(node: Node) -> Tensor:
    """Where along an axis the greatest (least) element is: a function of what lies along the axis."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    keep, last = node.flag("keepdims"), node.flag("select_last_index")
    along(node, (axis,))
    shape = tuple(1 if i == axis else s for i, s in enumerate(x.shape) if keep or i != axis)
    node.require(ge(x.shape[axis], 1), "the axis is not empty")

    def at(index: Index) -> Value:
        return _place(PLACES[node.op], last, x, axis, index[:axis], index[axis + 1 :] if keep else index[axis:])

    return Tensor(shape, at)


def _place(which: str, last: int, x: Tensor, axis: int, before: Index, after: Index) -> Value:
    """Return the place along an axis, the first one of several or the last."""
    along = Tensor((x.shape[axis],), lambda k: x.at((*before, *k, *after))).whole()
    return lift(Element(which, (int(last),), (along,), ()))


def Hardmax(node: Node) -> Tensor:
    """1 where along an axis the first of the greatest elements is, 0 elsewhere."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Value:
        place = _place(PLACES["ArgMax"], 0, x, axis, index[:axis], index[axis + 1 :])
        return boolean(negate(truth(call("NotZero", place - integer(index[axis])))))

    return Tensor(x.shape, at)


def _letters(node: Node) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand, and of the result."""
    equation = str(node.attribute("equation", lambda: "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not "".join(terms).isalpha():
        raise Unsupported(f"Einsum of {equation}")
    if not arrow:
        result = "".join(letter for letter in sorted(set("".join(terms))) if left.count(letter) == 1)
    if len(set(result)) < len(result) or not set(result) <= set(left):
        raise Undefined(f"Einsum of {equation}: a letter of the result is one of an operand, and once")
    return terms, result


def Einsum(node: Node) -> Tensor:
    """Σ over the letters that are not in the result, of the product of the operands; no ellipsis."""
    terms, result = _letters(node)
    operands = [node.input(i) for i in range(node.count)]
    if [len(letters) for letters in terms] != [operand.rank for operand in operands]:
        raise Undefined("Einsum: an operand of another rank")
    sizes: dict[str, Size] = {}
    for letters, operand in zip(terms, operands, strict=True):
        for letter, size in zip(letters, operand.shape, strict=True):
            sizes[letter] = common_size(node, sizes.get(letter, size), size)
        for one, other in combinations(range(len(letters)), 2):
            if letters[one] == letters[other]:
                node.require(eq(operand.shape[one], operand.shape[other]), "a diagonal of different sizes")
    summed = [letter for letter in sizes if letter not in result]

    def at(index: Index) -> Value:
        def term(k: Index) -> Value:
            where = dict(zip((*result, *summed), (*index, *k), strict=True))
            factors = (
                stretched(operand, tuple(sizes[letter] for letter in t), tuple(where[letter] for letter in t))
                for t, operand in zip(terms, operands, strict=True)
            )
            return reduce(lambda a, b: a * b, factors)

        return total(tuple(sizes[letter] for letter in summed), term)

    return Tensor(tuple(sizes[letter] for letter in result), at)
