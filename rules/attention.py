"""Attention as exporters write it out, put together again: the operator needs no transposes around it."""

from collections.abc import Callable, Mapping, Sequence

from graphopt.base.dtype import DType
from graphopt.rule import (
    App,
    Rule,
    Term,
    TermLike,
    Var,
    attributes,
    const,
    define,
    fn,
    integer,
    integers,
    microsoft,
    op,
    real,
    tensor,
)

HEADS_IN_FRONT, KEYS_LAST = (0, 2, 1, 3), (0, 2, 3, 1)
"""Transpositions of (batch, sequence, heads, head size), for queries and values, and for keys."""

# -- what ONNX Runtime's own operator computes ---------------------------------------------------------------------

q, k, v = tensor("q", "B S E"), tensor("k", "B L E"), tensor("v", "B L F")
bias, count, factor = tensor("bias", "P Q S L"), integer("num_heads"), real("scale")


def _split_heads(x: Term, axis: str, perm: tuple[int, ...]) -> App:
    """Return the last axis as heads, in front of the sequence."""
    return op.Transpose(op.Reshape(x, fn.concat(0, 0, count, fn.size(axis) // count)), perm=perm)


def _attention(factor: TermLike, mask: Callable[[App], App]) -> App:
    scores = (_split_heads(q, "E", HEADS_IN_FRONT) @ _split_heads(k, "E", KEYS_LAST)) * factor
    seen = op.Softmax(mask(scores), axis=-1) @ _split_heads(v, "F", HEADS_IN_FRONT)
    return op.Reshape(op.Transpose(seen, perm=HEADS_IN_FRONT), fn.concat(0, 0, fn.size("F")))


_DIVIDES = (count > 0, fn.eq(fn.size("E") % count, 0), fn.eq(fn.size("F") % count, 0))
_BROADCASTS = (
    fn.any_of(fn.eq(fn.size("P"), 1), fn.eq(fn.size("P"), fn.size("B"))),
    fn.any_of(fn.eq(fn.size("Q"), 1), fn.eq(fn.size("Q"), count)),
)
_USUAL = 1 / fn.sqrt(fn.size("E") // count)
"""The factor that 0 stands for."""

define(
    microsoft.MultiHeadAttention(q, k, v, num_heads=count, scale=0.0),
    _attention(_USUAL, lambda scores: scores),
    when=(*_DIVIDES, fn.size("E") > 0),
    scale=0.0,
)
define(
    microsoft.MultiHeadAttention(q, k, v, num_heads=count, scale=factor),
    _attention(factor, lambda scores: scores),
    when=(*_DIVIDES, factor > 0),
)
define(
    microsoft.MultiHeadAttention(q, k, v, None, None, bias, num_heads=count, scale=0.0),
    _attention(_USUAL, lambda scores: scores + bias),
    when=(*_DIVIDES, *_BROADCASTS, fn.size("E") > 0),
    scale=0.0,
)
define(
    microsoft.MultiHeadAttention(q, k, v, None, None, bias, num_heads=count, scale=factor),
    _attention(factor, lambda scores: scores + bias),
    when=(*_DIVIDES, *_BROADCASTS, factor > 0),
)

# -- rules ---------------------------------------------------------------------------------------------------------

queries, keys, values = tensor("q", "B S H D"), tensor("k", "B L H D"), tensor("v", "B L H V")
scale, mask, row = real("scale"), tensor("mask", "P Q S L"), tensor("mask", "P Q 1 L")
MASKS: Mapping[str, tuple[Var, App | Var]] = {
    "masked": (mask, mask),
    "padded": (row, op.Expand(row, fn.sizes("P Q S L"))),
}
"""Masks that are added to the scores, with a row for each query: kernels stretch no such axis."""
SIZED = {"attention": "B S L H D V", "multi_head_attention": "H D V"}
"""The axes that are not to be empty: the kernel of the standard operator refuses all empty tensors."""
SCALES = (scale > 0, fn.ne(fn.dtype(queries), DType.DOUBLE))
"""A factor becomes an attribute, which is kept in single precision."""
FITS = (
    fn.any_of(fn.eq(fn.size("P"), 1), fn.eq(fn.size("P"), fn.size("B"))),
    fn.any_of(fn.eq(fn.size("Q"), 1), fn.eq(fn.size("Q"), fn.size("H"))),
)


def _merge_heads(x: Term, axis: str) -> App:
    """Return the heads side by side in one axis."""
    return op.Reshape(x, fn.concat(0, 0, fn.size("H") * fn.size(axis)))


FLAT = (_merge_heads(queries, "D"), _merge_heads(keys, "D"), _merge_heads(values, "V"))


def _standard(added: tuple[Term, ...], factor: TermLike) -> App:
    return op.Attention(*FLAT, *added, q_num_heads=fn.size("H"), kv_num_heads=fn.size("H"), scale=factor)


def _microsoft(added: tuple[Term, ...], factor: TermLike) -> App:
    places = (None, None, *added) if added else ()
    return microsoft.MultiHeadAttention(*FLAT, *places, num_heads=fn.size("H"), scale=factor)


OPERATORS = {"attention": _standard, "multi_head_attention": _microsoft}
"""Attention operators by name, given a mask or none and the factor of the scores."""


def _guard_nan(value: Term) -> App:
    """Return a value with 0 in the place of NaN, which is what a softmax makes of a row that is masked as a whole."""
    return op.Where(op.IsNaN(value), 0.0, value)


def _build_fusion_rule(name: str, kind: str, *, scaled: bool, guarded: bool = False) -> Rule:
    scores = op.Transpose(queries, perm=HEADS_IN_FRONT) @ op.Transpose(keys, perm=KEYS_LAST)
    scores = scores * scale if scaled else scores
    added, given = MASKS.get(kind, (None, None))
    weights = op.Softmax(scores if added is None else scores + added, axis=-1)
    result = OPERATORS[name](() if given is None else (given,), scale if scaled else 1.0)
    sizes = tuple(fn.size(axis) > 0 for axis in SIZED[name].split())
    left = op.Transpose(weights @ op.Transpose(values, perm=HEADS_IN_FRONT), perm=HEADS_IN_FRONT)
    right = op.Reshape(result, fn.concat(0, 0, fn.sizes("H V")))
    finite = (fn.is_finite(values),) if guarded else ()
    return Rule(
        "_".join(filter(None, ("fuse", "guarded" * guarded, "scaled" * scaled, kind, name))),
        _guard_nan(left) if guarded else left,
        _guard_nan(right) if guarded else right,
        when=(*sizes, *(FITS if kind else ()), *(SCALES if scaled else ()), *finite),
        why="Of a row that is NaN the kernel makes NaN or 0, and the guard 0 of both."
        if guarded
        else "One kernel reads the heads where they lie, and keeps the scores in the cache.",
    )


# -- queries, keys and values that are one product -----------------------------------------------------------------

tokens, packed, packed_bias, packed_shape = tensor("x", "B S E"), const("w", "E P"), const("b", "P"), integers("shape")
heads_of_each = fn.item(packed_shape, 3)
of_each = fn.size("P") // (3 * heads_of_each)
apart = fn.concat(0, 0, heads_of_each, of_each)


def build_unpacking_rule(value: App, parts: Sequence[Term], *, name: str) -> Rule:
    """Return a rule that makes queries, keys and values each by a product, with the heads where they are read."""
    return Rule(
        name,
        op.Split.split(3, op.Transpose(op.Reshape(value, packed_shape), perm=(2, 0, 3, 1, 4)), (1, 1, 1), axis=0),
        tuple(op.Unsqueeze(op.Transpose(op.Reshape(part, apart), perm=HEADS_IN_FRONT), (0,)) for part in parts),
        when=(
            fn.is_noop_reshape(packed_shape, fn.concat(fn.sizes("B S"), 3, heads_of_each, of_each)),
            fn.eq(fn.item(packed_shape, 2), 3),
            heads_of_each > 0,
            fn.ne(fn.item(packed_shape, 4), 0),
            fn.size("P") > 0,
            fn.eq(fn.size("P") % (3 * heads_of_each), 0),
        ),
        why="To take queries, keys and values apart, and then each along its heads, copies them twice.",
    )


def thirds(value: Term, axis: int) -> Sequence[App]:
    third = fn.size("P") // 3
    return op.Split.split(3, value, fn.concat(third, third, third), axis=axis)


UNPACKED = (
    build_unpacking_rule(
        tokens @ packed + packed_bias,
        [tokens @ w + b for w, b in zip(thirds(packed, 1), thirds(packed_bias, 0), strict=True)],
        name="project_heads_apart",
    ),
    build_unpacking_rule(
        tokens @ packed, [tokens @ w for w in thirds(packed, 1)], name="project_heads_apart_without_bias"
    ),
)

# -- keys and values that several heads share ------------------------------------------------------------------------
# Axes: B batch, H heads of queries, G heads of keys and values, M rows, K contracted, N columns.

left, shared, swapped = tensor("x", "B H M K"), tensor("y", "B G K N"), tensor("y", "B G N K")
wide, merged = integers("wide"), integers("merged")
times = fn.size("H") // fn.size("G")
"""Number of consecutive heads that share keys and values."""


def _build_shared_heads_rule(name: str, operand: Var, axes: str, view: Callable[[Term], Term]) -> Rule:
    """Return the rule for a product with what was repeated, looked at in some way."""
    given, result = fn.sizes(axes), fn.sizes(f"B H {axes}")
    repeated = op.Reshape(op.Expand(op.Unsqueeze(operand, (2,)), wide), merged)
    rows = op.Reshape(left, fn.concat(0, fn.size("G"), times * fn.size("M"), 0))
    return Rule(
        name,
        left @ view(repeated),
        op.Reshape(rows @ view(operand), fn.concat(0, fn.sizes("H M"), 0)),
        when=(
            fn.eq(fn.broadcast(fn.concat(fn.sizes("B G 1"), given), wide), fn.concat(fn.sizes("B G"), times, given)),
            fn.is_noop_reshape(merged, result),
            fn.not_(fn.is_in(0, fn.slice(merged, 1, 4))),
            fn.eq(fn.size("H") % fn.size("G"), 0),
            fn.lt(0, fn.sizes("G H")),
        ),
        why="Heads that share keys or values are rows of one product, which reads these once and copies nothing.",
    )


SHARED_HEADS = (
    _build_shared_heads_rule("fuse_repeated_heads_into_matmul", shared, "K N", lambda y: y),
    _build_shared_heads_rule(
        "fuse_repeated_transposed_heads_into_matmul",
        swapped,
        "N K",
        lambda y: op.Transpose(y, perm=(0, 1, 3, 2)),
    ),
)

# -- rows of which nothing is seen ---------------------------------------------------------------------------------

scores, seen, heads = tensor("x", "*b M K"), tensor("v", "*b K N"), tensor("x", "B H S D")


# -- masks that underflow ------------------------------------------------------------------------------------------
# Shifted windows (Swin) are masked by adding -100. exp(-100) is a subnormal number, of which a processor computes the
# exponential and each product some 30 times as slowly. Times exp(40) it is none, and what is divided by is, too.

windows, between, added = tensor("x", "B W H M K"), integers("target"), const("mask", "1 W 1 M K")
held = tensor("v", "A H K N")
WIDE = (int(DType.FLOAT), int(DType.DOUBLE))
masked = op.Reshape(windows + added, between, attributes("view"))
lifted = op.Exp(masked - (op.ReduceMax(masked, (-1,), keepdims=1) - 40.0))
LIFTED = (
    Rule(
        "lift_masked_weights",
        op.Softmax(masked, axis=-1) @ held,
        (lifted @ held) / op.ReduceSum(lifted, (-1,), keepdims=1),
        when=(fn.size("K") > 0, fn.is_in(fn.dtype(windows), WIDE)),
        why="Larger weights are no subnormal numbers, and their sum may divide the products, which are fewer.",
    ),
)


# -- positions that are turned into queries and keys -----------------------------------------------------------------

turned, angles = tensor("x", "B H S D"), tensor("angles", "P S E")
positions, cosines, sines = tensor("position_ids", "B S"), tensor("cos_cache", "M E"), tensor("sin_cache", "M E")
along, joined, doubled, parts = integer("along"), integer("joined"), integer("doubled"), integers("parts")
in_pairs = fn.eq(fn.size("D"), 2 * fn.size("E"))

define(
    microsoft.RotaryEmbedding(turned, positions, cosines, sines),
    op.RotaryEmbedding(turned, cosines, sines, positions),
    when=(in_pairs, fn.le(fn.size("S"), fn.size("M"))),
)


def _double_angles(function: Callable[[Term], App]) -> App:
    """Return what heads are multiplied by: of each angle, for both halves."""
    return op.Unsqueeze(function(op.Concat(angles, angles, axis=doubled)), (1,))


def _build_rotary_rule(name: str, embedding: App, *conditions: Term) -> Rule:
    low, high = op.Split.split(2, turned, parts, axis=along)
    return Rule(
        name,
        turned * _double_angles(op.Cos) + op.Concat(op.Neg(high), low, axis=joined) * _double_angles(op.Sin),
        embedding,
        when=(
            fn.eq(fn.normalize_indices(along, 4), 3),
            fn.eq(fn.normalize_indices(joined, 4), 3),
            fn.eq(fn.normalize_indices(doubled, 3), 2),
            fn.eq(parts, fn.sizes("E E")),
            in_pairs,
            fn.size("E") > 0,
            fn.ne(fn.dtype(turned), DType.DOUBLE),
            *conditions,
        ),
        why="One kernel turns each pair of elements, by half of the angles.",
    )


SHARED = fn.eq(fn.size("P"), 1)
"""The positions are the same in all of the batch."""
OWN = fn.all_of(fn.eq(fn.size("P"), fn.size("B")), fn.lt(0, fn.sizes("B S")))
"""Each sequence has positions of its own."""
ROTARY = (
    _build_rotary_rule(
        "fuse_rotary_embedding",
        op.RotaryEmbedding(turned, *(op.Expand(each(angles), fn.sizes("B S E")) for each in (op.Cos, op.Sin))),
        fn.any_of(SHARED, fn.eq(fn.size("P"), fn.size("B"))),
    ),
    _build_rotary_rule(
        "fuse_microsoft_rotary_embedding",
        microsoft.RotaryEmbedding(
            turned,
            op.Expand(op.Range(0, fn.size("S"), 1), fn.sizes("B S")),
            *(op.Squeeze(each(angles), (0,)) for each in (op.Cos, op.Sin)),
        ),
        SHARED,
    ),
    _build_rotary_rule(
        "fuse_microsoft_rotary_embedding_of_batch",
        microsoft.RotaryEmbedding(
            turned,
            op.Reshape(op.Range(0, fn.size("B") * fn.size("S"), 1), fn.sizes("B S")),
            *(op.Reshape(each(angles), fn.concat(-1, fn.size("E"))) for each in (op.Cos, op.Sin)),
        ),
        OWN,
    ),
)

guard_above, guard_below = (
    _guard_nan(op.Softmax(scores, axis=-1)) @ seen,
    _guard_nan(op.Softmax(scores, axis=-1) @ seen),
)
RULES = (
    *SHARED_HEADS,
    Rule(
        "push_nan_guard_below_narrower_matmul",
        guard_above,
        guard_below,
        when=(fn.is_finite(seen), fn.size("N") < fn.size("K")),
        why="A row of weights is NaN as a whole or not at all: its products, which are fewer, tell as well.",
    ),
)
TRADES = (
    *ROTARY,
    *LIFTED,
    *UNPACKED,
    *(
        _build_fusion_rule(name, kind, scaled=scaled)
        for name in OPERATORS
        for kind in ("", *MASKS)
        for scaled in (False, True)
    ),
    *(
        _build_fusion_rule("attention", kind, scaled=scaled, guarded=True)
        for kind in ("", *MASKS)
        for scaled in (False, True)
    ),
    Rule(
        "push_nan_guard_below_matmul",
        guard_above,
        guard_below,
        when=fn.is_finite(seen),
        why="A row of weights is NaN as a whole or not at all, and so are its products.",
    ),
    Rule(
        "push_nan_guard_below_transpose",
        op.Transpose(_guard_nan(heads), perm=HEADS_IN_FRONT),
        _guard_nan(op.Transpose(heads, perm=HEADS_IN_FRONT)),
        why="What is left is attention without a guard, which one kernel computes.",
    ),
)
SWEEPS = {
    "positions turned into queries and keys": ROTARY,
    "masks that underflow": LIFTED,
    "queries, keys and values apart": UNPACKED,
}
