"""Denotations of attention and rotary embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphopt.base.integers import (
    TRUE,
    Formula,
    Size,
    choice,
    conj,
    disj,
    eq,
    ge,
    le,
    lt,
    negate,
    quotient,
    remainder,
)
from graphopt.base.session import current
from graphopt.base.symbolic import Index, Value, call, guarded, integer, number
from graphopt.base.tensors import Tensor, bind, select, total, truth
from graphopt.base.types import DType
from graphopt.operators.broadcasting import exactly, fits, stretched
from graphopt.operators.elementwise import nonzero, positive
from graphopt.operators.movement import looked_up
from graphopt.operators.node import Body, Node, OneOf, Shape, Undefined, Unsupported, real
from graphopt.operators.opaque import opaque, softmax


def Attention(node: Node) -> tuple[Tensor, ...]:
    """softmax(scale · Q·Kᵀ + mask) · V for each head; several heads of Q in turn share one of K and V.

    Of the keys only those count that the mask and the window let be seen; where there is none, the result is 0.

    Where values may be infinite the softmax is the operator of that name. It makes NaN of a row of nothing but -inf,
    and of one with +inf or NaN; of that runtimes make NaN or 0, and of which they make 0 is not known.
    """
    q, k, v = _operands(node)
    flat = node.input(0).rank == 3
    (B, H, L, E), (_, G, S, _), F = q.shape, k.shape, v.shape[3]
    share = exactly(node, H, G, "the heads of Q do not divide among those of K and V")
    scale = _scale(node, E)
    cap = real(node.attribute("softcap", lambda: OneOf((0.0, node.unknown("softcap")))))
    node.require(negate(positive(-cap)), "runtimes differ on a cap below 0")
    node.ignored("softmax_precision")
    bias, seen = _mask(node, (B, H, L, S))

    def product_(index: Index) -> Value:
        b, h, i, j = index
        return scale * total((E,), lambda e: q.at((b, h, i, *e)) * k.at((b, quotient(h, share), j, *e)))

    def capped(index: Index) -> Value:
        return _capped(product_(index), cap)

    def score(index: Index) -> Value:
        return capped(index) + bias(index)

    def mixed(index: Index, weight: Body) -> Value:
        b, h, i, f = _split(index, F) if flat else index
        return total((S,), lambda j: weight((b, h, i, *j)) * v.at((b, quotient(h, share), *j, f)))

    weight = _weights(score, seen, S)
    y = Tensor((B, L, H * F) if flat else (B, H, L, F), lambda index: mixed(index, weight))
    if node.outputs == 1:
        node.ignored("qk_matmul_output_mode")
        outputs: tuple[Tensor, ...] = (y,)
    else:
        outputs = (y, k, v, Tensor((B, H, L, S), {0: product_, 1: capped, 3: weight}[_shown(node)]))
    if not node.is_exact:
        return outputs
    named, *others = (opaque(node, position, output) for position, output in enumerate(outputs))
    if current().arithmetic is None:
        return (named, *others)

    def among_infinities(index: Index) -> Value:
        row, (j,) = (_split(index, F) if flat else index)[:3], bind((S,))[0]
        if seen((*row, j)) != TRUE:
            return named.at(index)
        weights = softmax(node, Tensor((B, H, L, S), score))
        is_zero = conj(_is_nan(node, weights.at((*row, 0))), negate(_is_nan(node, named.at(index))))
        return guarded(negate(is_zero), mixed(index, weights.at))

    return (Tensor(y.shape, among_infinities), *others)


def _weights(score: Body, seen: Callable[[Index], Formula], keys: Size) -> Body:
    """exp(score) / Σ exp(score) over the keys that are seen."""

    def exp(index: Index) -> Value:
        return guarded(seen(index), call("Exp", score(index)))

    return lambda index: exp(index) / total((keys,), lambda j: exp((*index[:3], *j)))


def _shown(node: Node) -> int:
    """Return which scores are an output."""
    if node.outputs == 2:
        raise Undefined("Attention with K but not V as an output")
    shown = node.attribute("qk_matmul_output_mode", lambda: OneOf((0, 1, 3)))
    if shown not in (0, 1, 3):
        raise Unsupported("Attention that shows scores of what is not seen: they are infinite")
    return int(shown)


def _is_nan(node: Node, value: Value) -> Formula:
    return truth(call("IsNaN!", value, params=(node.dtype,)))


def _operands(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V by heads. The kernels of ONNX Runtime, which are for opsets 23 and 24, refuse what is empty."""
    names = ("q_num_heads", "kv_num_heads", "kv_num_heads")
    if len({node.input(i).rank for i in range(len(names))}) > 1:
        raise Undefined("Attention of different ranks")
    q, k, v = (_heads(node, i, name) for i, name in enumerate(names))
    (B, H, L, E), (_, G, S, _), F = q.shape, k.shape, v.shape[3]
    fits(node, (*k.shape, *v.shape), (B, G, S, E, B, G, S, F), "batch, heads, keys or their sizes differ")
    for size in (B, H, L, E, G, S, F):
        node.require(ge(size, 1), "an operand is empty")
    return q, k, v


def _scale(node: Node, size: Size) -> Value:
    """Return what the products are multiplied by: 1/√size unless it is given."""
    given = node.attribute("scale", lambda: OneOf((None, node.unknown("scale"))))
    if given is None:
        return 1 / call("Sqrt", integer(size))
    node.require(positive(real(given)), "Q and K are both scaled by its root: the scale is positive")
    return real(given)


def _capped(score: Value, cap: Value) -> Value:
    """Return a score between -cap and cap; 0 is no cap, and divides nothing."""
    return score if cap.constant == 0 else select(nonzero(cap), cap * call("Tanh", score / cap), score)


def _heads(node: Node, position: int, name: str) -> Tensor:
    """Batch, heads, sequence, head size: an input of rank 4, or of rank 3 where the last axis holds all heads."""
    x = node.input(position)
    if x.rank == 4:
        if node.op == "Attention":
            node.not_beside(name, "an axis of heads")
        else:
            node.ignored(name)
        return x
    if x.rank != 3:
        raise Undefined(f"{node.op}: ranks")
    heads = node.integer(name, least=1)
    size = exactly(node, x.shape[2], heads, "the last axis does not divide into heads")
    return Tensor((x.shape[0], heads, x.shape[1], size), lambda i: x.at((i[0], i[2], i[1] * size + i[3])))


def _split(index: Index, size: Size) -> Index:
    """Return the same index with the head apart: (batch, sequence, all heads) as (batch, head, sequence, within the
    head)."""
    b, i, d = index
    return b, quotient(d, size), i, remainder(d, size)


def _mask(node: Node, shape: Shape) -> tuple[Body, Callable[[Index], Formula]]:
    """Return what is added to each score, and which keys a query sees: those of the mask, of the window, not after
    itself."""
    mask = node.optional(3)
    causal = node.flag("is_causal")
    left, right = (
        node.attribute(f"{side}_window_size", lambda: OneOf((-1, node.natural("window")))) for side in ("left", "right")
    )
    for bound in (left, right):
        node.require(ge(bound, -1), "a window reaches no less than nothing")
    if mask is not None:
        if not 1 <= mask.rank <= 4:
            raise Undefined("Attention: the mask has another rank")
        for size, full in zip(mask.shape[-2:-1], shape[-2:-1], strict=False):  # its kernels stretch none
            node.require(eq(size, full), "the mask has not a row for each query")
        for size, full in zip(mask.shape[-3::-1], shape[-3::-1], strict=False):
            node.require(disj(eq(size, full), eq(size, 1)), "the mask does not broadcast to the scores")
        node.require(le(mask.shape[-1], shape[-1]), "the mask is longer than there are keys")
    truths = mask is not None and mask.dtype is DType.BOOL

    def element(index: Index) -> Value:
        assert mask is not None
        leading = replace(mask, shape=(*mask.shape[:-1], shape[-1]))  # a last axis that is shorter is not stretched
        return stretched(leading, shape, index)

    def seen(index: Index) -> Formula:
        i, j = index[2:]
        return conj(
            TRUE if mask is None or node.same(mask.shape[-1], shape[-1]) else lt(j, mask.shape[-1]),
            truth(element(index)) if truths else TRUE,
            le(j, i) if causal else TRUE,
            disj(eq(left, -1), le(i, j + left)),
            disj(eq(right, -1), le(j, i + right)),
        )

    return lambda index: number(0) if mask is None or truths else element(index), seen


def RotaryEmbedding(node: Node) -> Tensor:
    """Pairs of elements (a, b) of each head are turned: (cos·a - sin·b, sin·a + cos·b); what is left over stays.

    The pairs of the first `rotary_embedding_dim` elements are halves apart, or if `interleaved` neighbours. The angles
    are given for each position of the sequence, or looked up in the caches by `position_ids`.
    """
    original = node.input(0)
    x = _heads(node, 0, "num_heads")
    B, _, S, E = x.shape
    turned = node.integer("rotary_embedding_dim", least=0)
    turned = choice(eq(turned), E, turned)
    neighbours = node.flag("interleaved")
    node.require(le(turned, E), "more elements are turned than there are")
    half = exactly(node, turned, 2, "an odd number of elements")
    ids = node.optional(3)
    caches = node.input(1), node.input(2)
    positions = (B, S) if ids is None else caches[0].shape[:1]
    for table in caches:
        fits(node, table.shape, (*positions, half), "the caches do not fit")
    if ids is not None:
        fits(node, ids.shape, (B, S), "not one position per element of the sequences")
        node.require_indices(ids, caches[0].shape[0], from_end=False)

    def angle(cache: Tensor, b: Size, s: Size, pair: Size) -> Value:
        if ids is None:
            return cache.at((b, s, pair))
        return looked_up(cache.shape[0], lambda k: cache.at((*k, pair)), ids.at((b, s)))

    def at(index: Index) -> Value:
        b, h, s, d = index if original.rank == 4 else _split(index, E)
        pair = quotient(d, 2) if neighbours else choice(lt(d, half), d, d - half)
        first = eq(remainder(d, 2)) if neighbours else lt(d, half)
        step = 1 if neighbours else half
        cos, sin = (angle(cache, b, s, pair) for cache in caches)
        real_part = cos * x.at((b, h, s, d)) - sin * x.at((b, h, s, d + step))
        imaginary = sin * x.at((b, h, s, d - step)) + cos * x.at((b, h, s, d))
        return select(lt(d, turned), select(first, real_part, imaginary), x.at((b, h, s, d)))

    return Tensor(original.shape, at)
