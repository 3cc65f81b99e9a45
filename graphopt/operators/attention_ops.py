"""Denotations of attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.expr.expressions import Expr, Index, call_function, constant, guard_expr, integer_value
from graphopt.expr.integers import (
    TRUE,
    Formula,
    Size,
    conjunction,
    disjunction,
    eq,
    ge,
    if_then_else,
    le,
    lt,
    negate,
    quotient,
    remainder,
)
from graphopt.expr.symbolic_tensors import SymbolicTensor, bind_indices, select_expr, sum_over, truth_condition
from graphopt.operators.elementwise_ops import is_nonzero, is_positive
from graphopt.operators.movement_ops import lookup_element
from graphopt.operators.op_context import (
    ElementBody,
    OneOf,
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    to_real,
)
from graphopt.operators.opaque_ops import opaque_output, opaque_softmax
from graphopt.operators.shape_constraints import broadcast_element, divide_exactly, require_broadcast, require_shape


def Attention(node: OpContext) -> tuple[SymbolicTensor, ...]:
    """softmax(scale · Q·Kᵀ + mask) · V for each head; several heads of Q in turn share one of K and V.

    Only keys count that both the mask and the window admit; where there are none, the result is 0. If values may be
    infinite, the softmax is the operator of that name: of a row of nothing but -inf, or with +inf or NaN, it makes NaN,
    where runtimes make NaN or 0, and it is not known which make 0.
    """
    q, k, v = _qkv_by_heads(node)
    flat = node.input(0).rank == 3
    (B, H, L, E), (_, G, S, _), F = q.shape, k.shape, v.shape[3]
    share = divide_exactly(node, H, G, "the heads of Q do not divide among those of K and V")
    scale = _scale(node, E)
    cap = to_real(node.attribute("softcap", lambda: OneOf((0.0, node.fresh_real("softcap")))))
    node.require(negate(is_positive(-cap)), "runtimes differ on a cap below 0")
    node.read_unmodeled_attribute("softmax_precision")
    bias, seen = _mask(node, (B, H, L, S))

    def product_(index: Index) -> Expr:
        b, h, i, j = index
        return scale * sum_over((E,), lambda e: q.element((b, h, i, *e)) * k.element((b, quotient(h, share), j, *e)))

    def capped(index: Index) -> Expr:
        return _soft_cap(product_(index), cap)

    def score(index: Index) -> Expr:
        return capped(index) + bias(index)

    def mixed(index: Index, weight: ElementBody) -> Expr:
        b, h, i, f = _split_heads(index, F) if flat else index
        return sum_over((S,), lambda j: weight((b, h, i, *j)) * v.element((b, quotient(h, share), *j, f)))

    weight = _softmax_weights(score, seen, S)
    y = SymbolicTensor((B, L, H * F) if flat else (B, H, L, F), lambda index: mixed(index, weight))
    if node.output_count == 1:
        node.read_unmodeled_attribute("qk_matmul_output_mode")
        outputs: tuple[SymbolicTensor, ...] = (y,)
    else:
        outputs = (y, k, v, SymbolicTensor((B, H, L, S), {0: product_, 1: capped, 3: weight}[_score_output_mode(node)]))
    if not node.is_exact:
        return outputs
    named, *others = (opaque_output(node, position, output) for position, output in enumerate(outputs))
    if current_session().arithmetic is None:
        return (named, *others)

    def among_infinities(index: Index) -> Expr:
        row, (j,) = (_split_heads(index, F) if flat else index)[:3], bind_indices((S,))[0]
        if seen((*row, j)) != TRUE:
            return named.element(index)
        weights = opaque_softmax(node, SymbolicTensor((B, H, L, S), score))
        is_zero = conjunction(_is_nan(node, weights.element((*row, 0))), negate(_is_nan(node, named.element(index))))
        return guard_expr(negate(is_zero), mixed(index, weights.element))

    return (SymbolicTensor(y.shape, among_infinities), *others)


def _softmax_weights(score: ElementBody, seen: Callable[[Index], Formula], keys: Size) -> ElementBody:
    """exp(score) / Σ exp(score) over the keys that are seen."""

    def exp(index: Index) -> Expr:
        return guard_expr(seen(index), call_function("Exp", score(index)))

    return lambda index: exp(index) / sum_over((keys,), lambda j: exp((*index[:3], *j)))


def _score_output_mode(node: OpContext) -> int:
    """Return which scores are an output."""
    if node.output_count == 2:
        raise UndefinedOperatorError("Attention with K but not V as an output")
    shown = node.attribute("qk_matmul_output_mode", lambda: OneOf((0, 1, 3)))
    if shown not in (0, 1, 3):
        raise UnsupportedOperatorError("Attention that shows scores of what is not seen: they are infinite")
    return int(shown)


def _is_nan(node: OpContext, value: Expr) -> Formula:
    return truth_condition(call_function("IsNaN!", value, params=(node.dtype,)))


def _qkv_by_heads(node: OpContext) -> tuple[SymbolicTensor, SymbolicTensor, SymbolicTensor]:
    """Return Q, K and V by heads. ONNX Runtime's kernels, which are for opsets 23 and 24, refuse empty ones."""
    names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    if len({node.input(i).rank for i in range(len(names))}) > 1:
        raise UndefinedOperatorError("Attention of different ranks")
    q, k, v = (_input_by_heads(node, i, name) for i, name in enumerate(names))
    (B, H, L, E), (_, G, S, _), F = q.shape, k.shape, v.shape[3]
    require_shape(node, (*k.shape, *v.shape), (B, G, S, E, B, G, S, F), "batch, heads, keys or their sizes differ")
    for size in (B, H, L, E, G, S, F):
        node.require(ge(size, 1), "an operand is empty")
    return q, k, v


def _scale(node: OpContext, size: Size) -> Expr:
    """Return the factor of the products: 1/√size unless it is given."""
    given = node.attribute("scale", lambda: OneOf((None, node.fresh_real("scale"))))
    if given is None:
        return 1 / call_function("Sqrt", integer_value(size))
    node.require(is_positive(to_real(given)), "Q and K are both scaled by its root: the scale is positive")
    return to_real(given)


def _soft_cap(score: Expr, cap: Expr) -> Expr:
    """Return a score between -cap and cap; 0 is no cap, and divides nothing."""
    return score if cap.constant == 0 else select_expr(is_nonzero(cap), cap * call_function("Tanh", score / cap), score)


def _input_by_heads(node: OpContext, position: int, name: str) -> SymbolicTensor:
    """Return batch, heads, sequence, head size of an input of rank 4, or of rank 3 with all heads in the last axis."""
    x = node.input(position)
    if x.rank == 4:
        if node.op == "Attention":
            node.require_absent_beside(name, "an axis of heads")
        else:
            node.read_unmodeled_attribute(name)
        return x
    if x.rank != 3:
        raise UndefinedOperatorError(f"{node.op}: ranks")
    heads = node.integer(name, least=1)
    size = divide_exactly(node, x.shape[2], heads, "the last axis does not divide into heads")
    return SymbolicTensor((x.shape[0], heads, x.shape[1], size), lambda i: x.element((i[0], i[2], i[1] * size + i[3])))


def _split_heads(index: Index, size: Size) -> Index:
    """Return the same index with the head apart: (batch, sequence, all heads) as (batch, head, sequence, in the
    head)."""
    b, i, d = index
    return b, quotient(d, size), i, remainder(d, size)


def _mask(node: OpContext, shape: SymbolicShape) -> tuple[ElementBody, Callable[[Index], Formula]]:
    """Return the bias of each score, and the keys a query sees: those of the mask, in the window, not after itself.

    Windows came with version 25 of the operator: onnx 1.22, which lacks it, says no default of theirs.
    """
    mask = node.optional_input(3)
    causal = node.flag("is_causal")
    left, right = (
        node.attribute(f"{side}_window_size", lambda: OneOf((-1, node.fresh_nonnegative("window"))), -1)
        for side in ("left", "right")
    )
    for bound in (left, right):
        node.require(ge(bound, -1), "a window reaches no less than nothing")
    if mask is not None:
        if not mask.rank:
            raise UndefinedOperatorError("Attention: the mask is a scalar")
        for size, full in zip(mask.shape[-2:-1], shape[-2:-1], strict=False):  # its kernels stretch none
            node.require(eq(size, full), "the mask has not a row for each query")
        require_broadcast(node, mask.shape[:-2], shape[:-2], "the mask does not broadcast to the scores")
        node.require(le(mask.shape[-1], shape[-1]), "the mask is longer than there are keys")
    truths = mask is not None and mask.dtype is DType.BOOL

    def element(index: Index) -> Expr:
        assert mask is not None
        leading = replace(mask, shape=(*mask.shape[:-1], shape[-1]))  # a last axis that is shorter is not stretched
        return broadcast_element(leading, shape, index)

    def seen(index: Index) -> Formula:
        i, j = index[2:]
        return conjunction(
            TRUE if mask is None or node.is_known_equal(mask.shape[-1], shape[-1]) else lt(j, mask.shape[-1]),
            truth_condition(element(index)) if truths else TRUE,
            le(j, i) if causal else TRUE,
            disjunction(eq(left, -1), le(i, j + left)),
            disjunction(eq(right, -1), le(j, i + right)),
        )

    return lambda index: constant(0) if mask is None or truths else element(index), seen


def RotaryEmbedding(node: OpContext) -> SymbolicTensor:
    """Rotate pairs of elements (a, b) of each head: (cos·a - sin·b, sin·a + cos·b); the other elements stay.

    The pairs of the first `rotary_embedding_dim` elements are halves apart, or if `interleaved` neighbours. The angles
    are given for each position of the sequence, or looked up in the caches by `position_ids`.
    """
    original = node.input(0)
    x = _input_by_heads(node, 0, "num_heads")
    B, _, S, E = x.shape
    turned = node.integer("rotary_embedding_dim", least=0)
    turned = if_then_else(eq(turned), E, turned)
    neighbours = node.flag("interleaved")
    node.require(le(turned, E), "more elements are turned than there are")
    half = divide_exactly(node, turned, 2, "an odd number of elements")
    ids = node.optional_input(3)
    caches = node.input(1), node.input(2)
    positions = (B, S) if ids is None else caches[0].shape[:1]
    for table in caches:
        require_shape(node, table.shape, (*positions, half), "the caches do not fit")
    if ids is not None:
        require_shape(node, ids.shape, (B, S), "not one position per element of the sequences")
        node.require_indices(ids, caches[0].shape[0], from_end=False)

    def angle(cache: SymbolicTensor, b: Size, s: Size, pair: Size) -> Expr:
        if ids is None:
            return cache.element((b, s, pair))
        return lookup_element(cache.shape[0], lambda k: cache.element((*k, pair)), ids.element((b, s)))

    def at(index: Index) -> Expr:
        b, h, s, d = index if original.rank == 4 else _split_heads(index, E)
        pair = quotient(d, 2) if neighbours else if_then_else(lt(d, half), d, d - half)
        first = eq(remainder(d, 2)) if neighbours else lt(d, half)
        step = 1 if neighbours else half
        cos, sin = (angle(cache, b, s, pair) for cache in caches)
        real_part = cos * x.element((b, h, s, d)) - sin * x.element((b, h, s, d + step))
        imaginary = sin * x.element((b, h, s, d - step)) + cos * x.element((b, h, s, d))
        return select_expr(lt(d, turned), select_expr(first, real_part, imaginary), x.element((b, h, s, d)))

    return SymbolicTensor(original.shape, at)
