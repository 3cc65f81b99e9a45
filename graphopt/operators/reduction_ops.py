"""Denotations of operators that run along axes: products of matrices, sums, greatest elements, softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import combinations
from operator import add

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Expr, Index, OpaqueElement, call_function, expr_of_factor, integer_value
from graphopt.expr.integers import (
    Formula,
    Size,
    disjunction,
    eq,
    fresh_symbol,
    ge,
    le,
    lt,
    negate,
    product,
    quotient,
)
from graphopt.expr.partial_calls import recording_partial_calls
from graphopt.expr.symbolic_tensors import SymbolicTensor, fold_over, sum_over, truth_condition, truth_value
from graphopt.operators.implied_defaults import REDUCED_AXES
from graphopt.operators.op_context import (
    ElementBody,
    OneOf,
    OpContext,
    ReductionFunction,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
)
from graphopt.operators.opaque_ops import opaque_output
from graphopt.operators.operator import (
    ExtremeOperands,
    MagnitudeEffect,
    Operator,
    ReferenceFidelity,
    RoundingEffect,
    SummationLength,
)
from graphopt.operators.operator_cost import OperatorCost
from graphopt.operators.shape_constraints import (
    broadcast_element,
    require_broadcast,
    require_common_shape,
    require_common_size,
)


def MatMul(node: OpContext) -> SymbolicTensor:
    """Multiply as numpy.matmul does: a vector is a row or a column, leading axes broadcast."""
    return matrix_product(node, node.input(0), node.input(1))


def matrix_product(node: OpContext, a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Return the product of two stacks of matrices."""
    if not a.rank or not b.rank:
        raise UndefinedOperatorError(f"{node.op} of a scalar")
    row, column = a.rank == 1, b.rank == 1
    inner, other = a.shape[-1], b.shape[-1 if column else -2]
    node.require(eq(inner, other), "the contracted axes have different sizes")
    batch = require_common_shape(node, [a.shape[:-2], b.shape[:-2]])
    shape = (*batch, *a.shape[-2:-1], *(() if column else b.shape[-1:]))

    def at(index: Index) -> Expr:
        outer, rest = index[: len(batch)], index[len(batch) :]
        i = () if row else rest[:1]
        j = () if column else rest[-1:]

        def element(matrices: SymbolicTensor, place: Index) -> Expr:
            return broadcast_element(matrices, (*batch, *matrices.shape[-2:]), (*outer, *place))

        return sum_over((inner,), lambda k: element(a, (*i, *k)) * element(b, (*k, *j)))

    return SymbolicTensor(shape, at)


def Gemm(node: OpContext) -> SymbolicTensor:
    """alpha · A' · B' + beta · C, where A' and B' may be transposed and C is broadcast."""
    a, b, c = node.input(0), node.input(1), node.optional_input(2)
    if a.rank != 2 or b.rank != 2:
        raise UndefinedOperatorError("Gemm of something else than matrices")
    alpha, beta = node.real("alpha"), node.real("beta")
    flipped_a, flipped_b = node.flag("transA"), node.flag("transB")
    (M, K) = a.shape[::-1] if flipped_a else a.shape
    (L, N) = b.shape[::-1] if flipped_b else b.shape
    node.require(eq(K, L), "the contracted axes have different sizes")
    if c is not None:
        require_broadcast(node, c.shape, (M, N), "C does not broadcast to the result")

    def at(index: Index) -> Expr:
        i, j = index
        dot = sum_over(
            (K,), lambda k: a.element((*k, i) if flipped_a else (i, *k)) * b.element((j, *k) if flipped_b else (*k, j))
        )
        return alpha * dot + (beta * broadcast_element(c, (M, N), index) if c is not None else 0)

    return SymbolicTensor((M, N), at)


def mean_over(extents: SymbolicShape, body: ElementBody) -> Expr:
    return sum_over(extents, body) / integer_value(product(extents))


def record_reduction_axes(node: OpContext, axes: Sequence[int]) -> None:
    """Record the axes of a reduction, however they are given: they identify it."""
    for name in ("axis", "input1", "noop_with_empty_axes"):
        node.read_values.pop(name, None)
    node.read_values["along"] = tuple(sorted(axes))


@dataclass(frozen=True)
class ReductionDenotation:
    """A Reduce operator: `axes` is an input; none means all, or with `noop_with_empty_axes` none.

    The order of elements does not matter: all elements of a view are all elements of its base.
    """

    combine: ReductionFunction

    def __call__(self, node: OpContext) -> SymbolicTensor:
        x = node.input(0)
        keep = node.flag("keepdims")
        noop = node.flag("noop_with_empty_axes")
        axes = node.axes(1, x.rank) if node.has_input(1) else ()
        axes = axes if axes or noop else tuple(range(x.rank))
        record_reduction_axes(node, axes)
        kept = [i for i in range(x.rank) if i not in axes]
        shape = tuple(1 if i in axes else s for i, s in enumerate(x.shape) if keep or i not in axes)
        extents = tuple(x.shape[i] for i in axes)

        def whole(_: Index) -> Expr:
            return self.combine(x.base.shape, x.base.element)

        def at(index: Index) -> Expr:
            outer = dict(zip(kept, (index[i] for i in kept) if keep else index, strict=True))

            def element(k: Index) -> Expr:
                inner = dict(zip(axes, k, strict=True))
                return x.element(tuple(inner[i] if i in inner else outer[i] for i in range(x.rank)))

            return self.combine(extents, element)

        return SymbolicTensor(shape, at if kept else whole)


def unknown_reduction(node: OpContext) -> SymbolicTensor:
    """Return a reduction of which only the class is known (`schemas.CLASS_SCHEMAS`)."""

    def unseen(_: SymbolicShape, __: ElementBody) -> Expr:
        raise UnsupportedOperatorError("an element of any reduction")

    return opaque_output(node, 0, ReductionDenotation(unseen)(node))


reduction_op = partial(
    Operator,
    weight=130,
    operand_roles={1: "axes"},
    implied_defaults={1: REDUCED_AXES},
    summation_length=SummationLength.UNKNOWN,
)
"""An operator Reduce: its denotation is `ReductionDenotation`."""
summation_op = partial(reduction_op, magnitude_effect=MagnitudeEffect.AMPLIFIED, extreme_operands=ExtremeOperands.FIRST)
selection_reduction_op = partial(
    reduction_op,
    reference_fidelity=ReferenceFidelity.ON_INTEGERS,
    rounding_effect=RoundingEffect.PRESERVES,
    extreme_operands=ExtremeOperands.FIRST,
)

TERM_BY_TERM = OperatorCost(90)
"""Cost of a sum of functions of the elements, which ONNX Runtime computes one after the other."""

REDUCTION_OPERATORS: Mapping[str, Operator] = {
    "ReduceSum": summation_op(
        ReductionDenotation(sum_over), is_sum_of_products=True, reference_fidelity=ReferenceFidelity.ON_INTEGERS
    ),
    "ReduceMean": reduction_op(
        ReductionDenotation(mean_over), is_sum_of_products=True, extreme_operands=ExtremeOperands.FIRST
    ),
    "ReduceMax": selection_reduction_op(ReductionDenotation(lambda n, x: fold_over("max", n, x))),
    "ReduceMin": selection_reduction_op(ReductionDenotation(lambda n, x: fold_over("min", n, x))),
    "ReduceProd": summation_op(
        ReductionDenotation(lambda n, x: fold_over("prod", n, x)),
        reference_fidelity=ReferenceFidelity.ON_INTEGERS,
        factor_count=2,
    ),
    "ReduceSumSquare": summation_op(
        ReductionDenotation(lambda n, x: sum_over(n, lambda k: x(k) * x(k))), factor_count=2, cost=TERM_BY_TERM
    ),
    "ReduceL1": summation_op(
        ReductionDenotation(lambda n, x: sum_over(n, lambda k: call_function("Abs", x(k)))), cost=TERM_BY_TERM
    ),
    "ReduceL2": reduction_op(
        ReductionDenotation(lambda n, x: call_function("Sqrt", sum_over(n, lambda k: x(k) * x(k)))),
        magnitude_effect=MagnitudeEffect.AMPLIFIED,
        factor_count=2,
        cost=TERM_BY_TERM,
    ),
    "ReduceLogSum": reduction_op(
        ReductionDenotation(lambda n, x: call_function("Log", sum_over(n, x))), pole_operand=0
    ),
    "ReduceLogSumExp": reduction_op(
        ReductionDenotation(lambda n, x: call_function("Log", sum_over(n, lambda k: call_function("Exp", x(k)))))
    ),
}


def CumSum(node: OpContext) -> SymbolicTensor:
    """Return the sum of all elements up to each along an axis, that one included unless `exclusive`; backwards if
    `reverse`."""
    x = node.input(0)
    axis = node.normalize_axis(node.numbers(1, lambda: OneOf(range(-x.rank, x.rank))), x.rank)
    exclusive, backwards = node.flag("exclusive"), node.flag("reverse")

    def at(index: Index) -> Expr:
        def counts(k: Index) -> Formula:
            before, after = (index[axis], k[0]) if backwards else (k[0], index[axis])
            return lt(before, after) if exclusive else le(before, after)

        _, extents, others = elements_along(x, (axis,), index)
        summed = sum_over(extents, others, counts)
        number = _fill_value(x)
        if number is None:
            return summed
        before = extents[0] - 1 - index[axis] if backwards else index[axis]
        return number * integer_value(before if exclusive else before + 1)

    return SymbolicTensor(x.shape, at)


def DFT(node: OpContext) -> SymbolicTensor:
    """Y[k, d] = Σ over n, c of X[n, c] · twiddle(d, c, k, n, N) along an axis of N elements, beside the last, which has
    the real part and, unless it is 0, the imaginary part.

    The twiddle factors are the parts of exp(∓2πi·k·n/N), divided by N if `inverse`; they are not looked into. With
    `onesided` the first N // 2 + 1 elements, of real numbers. No other length than N is denoted.
    """
    x = node.input(0)
    if node.has_input(1):
        raise UnsupportedOperatorError("DFT of another length")
    if x.rank < 2:
        raise UndefinedOperatorError("DFT without an axis for parts")
    last = x.rank - 1
    axis = node.normalize_axis(
        node.numbers(2, lambda: OneOf(range(-x.rank, x.rank))) if node.has_input(2) else -2, x.rank
    )
    if axis == last:
        raise UndefinedOperatorError("DFT along the parts of numbers")
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    if inverse and onesided:
        raise UnsupportedOperatorError("DFT of one side to real numbers")
    length, parts = x.shape[axis], x.shape[last]
    node.require(ge(length, 1), "the axis is not empty")
    node.require(eq(parts, 1) if onesided else disjunction(eq(parts, 1), eq(parts, 2)), "numbers have one part or two")
    shape = [*x.shape[:last], 2]
    shape[axis] = quotient(length, 2) + 1 if onesided else length

    def at(index: Index) -> Expr:
        _, _, others = elements_along(x, (axis, last), index)

        def term(place: Index) -> Expr:
            n, part = place
            numbers = map(integer_value, (index[last], part, index[axis], n, length))
            return call_function("twiddle", *numbers, params=(inverse,)) * others(place)

        if isinstance(parts, int):
            return sum_over((length,), lambda n: reduce(add, (term((*n, part)) for part in range(parts))))
        return sum_over((length, parts), term)

    return SymbolicTensor(tuple(shape), at)


def _fill_value(x: SymbolicTensor) -> Expr | None:
    """Return the number that all elements of a tensor plainly are, if any."""
    with recording_partial_calls():  # nothing: what is computed of them is noted where they are read
        value = x.element(tuple(fresh_symbol("i") for _ in x.shape))
    return None if value.constant is None else value


def is_exact_cumsum(node: OpContext) -> bool:
    """Return whether a CumSum adds only ones or zeros, in integers that hold any size."""
    number = _fill_value(node.input(0)) if node.dtype in (DType.INT64, DType.UINT64) else None
    return number is not None and number.constant in (0, 1)


def elements_along(x: SymbolicTensor, axes: Sequence[int], index: Index) -> tuple[Expr, SymbolicShape, ElementBody]:
    """Return the element at an index; and the shape and elements of those that differ from it along some axes only."""

    def at(k: Index) -> Expr:
        inner = dict(zip(axes, k, strict=True))
        return x.element(tuple(inner.get(i, j) for i, j in enumerate(index)))

    return x.element(index), tuple(x.shape[a] for a in axes), at


def Softmax(node: OpContext) -> SymbolicTensor:
    """exp(x) / Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Expr:
        element, extents, others = elements_along(x, (axis,), index)
        return call_function("Exp", element) / sum_over(extents, lambda k: call_function("Exp", others(k)))

    return SymbolicTensor(x.shape, at)


def LogSoftmax(node: OpContext) -> SymbolicTensor:
    """x - log Σ exp(x) along `axis`."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Expr:
        element, extents, others = elements_along(x, (axis,), index)
        return element - call_function("Log", sum_over(extents, lambda k: call_function("Exp", others(k))))

    return SymbolicTensor(x.shape, at)


ARG_FUNCTIONS = {"ArgMax": "place of the greatest", "ArgMin": "place of the least"}


def ArgMax(node: OpContext) -> SymbolicTensor:
    """Position of the greatest (least) element along an axis: a function of the elements along it."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)
    keep, last = node.flag("keepdims"), node.flag("select_last_index")
    record_reduction_axes(node, (axis,))
    shape = tuple(1 if i == axis else s for i, s in enumerate(x.shape) if keep or i != axis)
    node.require(ge(x.shape[axis], 1), "the axis is not empty")

    def at(index: Index) -> Expr:
        return _arg_place(
            ARG_FUNCTIONS[node.op], last, x, axis, index[:axis], index[axis + 1 :] if keep else index[axis:]
        )

    return SymbolicTensor(shape, at)


def _arg_place(which: str, last: int, x: SymbolicTensor, axis: int, before: Index, after: Index) -> Expr:
    """Return the position along an axis, the first of several or the last."""
    along = SymbolicTensor((x.shape[axis],), lambda k: x.element((*before, *k, *after))).as_argument()
    return expr_of_factor(OpaqueElement(which, (int(last),), (along,), ()))


def Hardmax(node: OpContext) -> SymbolicTensor:
    """1 where along an axis the first of the greatest elements is, 0 elsewhere."""
    x = node.input(0)
    axis = node.axis("axis", x.rank)

    def at(index: Index) -> Expr:
        place = _arg_place(ARG_FUNCTIONS["ArgMax"], 0, x, axis, index[:axis], index[axis + 1 :])
        return truth_value(negate(truth_condition(call_function("NotZero", place - integer_value(index[axis])))))

    return SymbolicTensor(x.shape, at)


def _parse_subscripts(node: OpContext) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand, and of the result."""
    equation = str(node.attribute("equation", lambda: "")).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not "".join(terms).isalpha():
        raise UnsupportedOperatorError(f"Einsum of {equation}")
    if not arrow:
        result = "".join(letter for letter in sorted(set("".join(terms))) if left.count(letter) == 1)
    if len(set(result)) < len(result) or not set(result) <= set(left):
        raise UndefinedOperatorError(f"Einsum of {equation}: a letter of the result is one of an operand, and once")
    return terms, result


def Einsum(node: OpContext) -> SymbolicTensor:
    """Σ over the letters that are not in the result, of the product of the operands; no ellipsis."""
    terms, result = _parse_subscripts(node)
    operands = [node.input(i) for i in range(node.input_count)]
    if [len(letters) for letters in terms] != [operand.rank for operand in operands]:
        raise UndefinedOperatorError("Einsum: an operand of another rank")
    sizes: dict[str, Size] = {}
    for letters, operand in zip(terms, operands, strict=True):
        for letter, size in zip(letters, operand.shape, strict=True):
            sizes[letter] = require_common_size(node, sizes.get(letter, size), size)
        for one, other in combinations(range(len(letters)), 2):
            if letters[one] == letters[other]:
                node.require(eq(operand.shape[one], operand.shape[other]), "a diagonal of different sizes")
    summed = [letter for letter in sizes if letter not in result]

    def at(index: Index) -> Expr:
        def term(k: Index) -> Expr:
            where = dict(zip((*result, *summed), (*index, *k), strict=True))
            factors = (
                broadcast_element(operand, tuple(sizes[letter] for letter in t), tuple(where[letter] for letter in t))
                for t, operand in zip(terms, operands, strict=True)
            )
            return reduce(lambda a, b: a * b, factors)

        return sum_over(tuple(sizes[letter] for letter in summed), term)

    return SymbolicTensor(tuple(sizes[letter] for letter in result), at)
