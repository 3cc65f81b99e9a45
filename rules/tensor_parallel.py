"""Operators computed in parts that run on several devices at once: by columns, by heads, by channels, and as sums.

A Concat on the right side is an all-gather, a Sum an all-reduce. Where the next operator is computed in the same parts,
`eliminate_split_of_concat_*` passes them on, and nothing is sent. No search applies these rules: a plan for several
devices asks for them, and for those of `splitting` that compute attention by heads and convolutions by channels.

The splits of transformers are those of Megatron-LM (Shoeybi et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphopt.rule import App, Rule, Term, Var, const, fn, integer, integers, op, pointwise, real, tensor
from graphopt.rules import splitting
from graphopt.rules.splitting import (
    BINARY,
    HEADS,
    build_channel_rule,
    build_elementwise_rules,
    build_head_rules,
    grouped_conv,
    is_divisible,
    parts_of,
)

# Axes: *b batch, M rows, K contracted, N columns; B batch, S sequence, H heads, D elements of a head, E = H * D;
# N examples, C channels, W output channels, *s space, *k kernel.

COUNTS = (2,)
"""Numbers of devices in the library; rules for others are built, and proved, when they are wanted."""

f = pointwise("f")


def _joined(name: str, count: int, whole: App, parts: Sequence[Term], axis: int, *when: Term) -> Rule:
    return Rule(
        f"shard_{name}_in_{count}_parts",
        whole,
        op.Concat(*parts, axis=axis),
        when=when,
        why="Each device computes a part of the result, with a part of the weights.",
    )


def _summed(name: str, count: int, whole: App, parts: Sequence[Term], *when: Term) -> Rule:
    return Rule(
        f"shard_{name}_in_{count}_parts",
        whole,
        op.Sum(*parts),
        when=when,
        why="Each device computes a summand of the result, with a part of the weights.",
    )


# -- products ----------------------------------------------------------------------------------------------------------


def _product_rules(count: int) -> Iterator[Rule]:
    x, w = tensor("x", "*b M K"), const("w", "K N")
    k, n = fn.size("K"), fn.size("N")
    is_float = fn.is_float(fn.dtype(x))
    yield _joined(
        "matmul_by_columns", count, x @ w, [x @ v for v in parts_of(w, 1, n, count)], -1, is_divisible(n, count)
    )
    pairs = zip(parts_of(x, -1, k, count), parts_of(w, 0, k, count), strict=True)
    yield _summed(
        "matmul_by_rows_of_weights", count, x @ w, [p @ v for p, v in pairs], is_divisible(k, count), is_float
    )
    for transposed in (0, 1):
        yield from _gemm_rules(count, transposed)


def _gemm_rules(count: int, transposed: int) -> Iterator[Rule]:
    x, w = tensor("x", "M K"), const("w", "N K" if transposed else "K N")
    b, alpha, beta = const("b", "N", default=0), real("alpha"), real("beta")
    k, n = fn.size("K"), fn.size("N")

    def gemm(value: Term, weights: Term, bias: Term | None) -> App:
        return op.Gemm(value, weights, bias, alpha=alpha, beta=beta, transB=transposed)

    name = "transposed_gemm" if transposed else "gemm"
    columns = zip(parts_of(w, 1 - transposed, n, count), parts_of(b, 0, n, count), strict=True)
    yield _joined(
        f"{name}_by_columns", count, gemm(x, w, b), [gemm(x, v, c) for v, c in columns], -1, is_divisible(n, count)
    )
    rows = zip(parts_of(x, 1, k, count), parts_of(w, transposed, k, count), strict=True)
    yield _summed(
        f"{name}_by_rows_of_weights",
        count,
        gemm(x, w, b),
        [gemm(part, v, None if i else b) for i, (part, v) in enumerate(rows)],
        is_divisible(k, count),
        fn.is_float(fn.dtype(x)),
    )


# -- elementwise operators on columns ----------------------------------------------------------------------------------


def _column_rules(count: int) -> Iterator[Rule]:
    x, y, bias, number = tensor("x", "*b M N"), tensor("y", "*b M N"), tensor("y", "N"), tensor("y", "")
    n = fn.size("N")
    cut = parts_of(x, -1, n, count)
    pairs = list(zip(cut, parts_of(y, -1, n, count), strict=True))
    biased = list(zip(cut, parts_of(bias, 0, n, count), strict=True))

    def joined(name: str, whole: App, parts: Sequence[Term]) -> Rule:
        return _joined(f"{name}_by_columns", count, whole, parts, -1, is_divisible(n, count))

    yield joined("pointwise", f(x), [f(part) for part in cut])
    for name, g in BINARY.items():
        yield joined(name, g(x, y), [g(a, b) for a, b in pairs])
        yield joined(f"{name}_of_vector", g(x, bias), [g(a, b) for a, b in biased])
        yield joined(f"{name}_of_number", g(x, number), [g(part, number) for part in cut])


# -- the two layers of an MLP ------------------------------------------------------------------------------------------


ACTIVATIONS: Mapping[str, Callable[[Term], App]] = {
    "relu": op.Relu,
    "gelu": lambda x: op.Gelu(x, approximate="none"),
    "tanh_gelu": lambda x: op.Gelu(x, approximate="tanh"),
}
"""Activations of MLPs by name. One that is written out is split operator by operator."""


def _mlp_rules(count: int) -> Iterator[Rule]:
    """Columns of the first weights, the activation, rows of the second: one sum in the end, and nothing between."""
    x, w, u, v = tensor("x", "*b M K"), const("w", "K N"), const("u", "K N"), const("v", "N L")
    b, n = const("b", "N"), fn.size("N")
    first, gates, second = (parts_of(each, axis, n, count) for each, axis in ((w, 1), (u, 1), (v, 0)))
    biases = parts_of(b, 0, n, count)

    def swish(value: Term) -> Term:
        return value * op.Sigmoid(value)

    def mlp(name: str, whole: Term, hidden: Sequence[Term]) -> Rule:
        parts = [part @ rows for part, rows in zip(hidden, second, strict=True)]
        return _summed(name, count, whole @ v, parts, is_divisible(n, count), fn.is_float(fn.dtype(x)))

    for name, act in ACTIVATIONS.items():
        yield mlp(f"{name}_mlp", act(x @ w), [act(x @ a) for a in first])
        biased = [act(x @ a + c) for a, c in zip(first, biases, strict=True)]
        yield mlp(f"{name}_mlp_with_bias", act(x @ w + b), biased)
    yield mlp(
        "swish_gated_mlp", swish(x @ w) * (x @ u), [swish(x @ a) * (x @ g) for a, g in zip(first, gates, strict=True)]
    )


# -- attention ---------------------------------------------------------------------------------------------------------

TRANSPOSITIONS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "heads_to_front": ("B S H D", (0, 2, 1, 3)),
    "heads_to_front_transposed": ("B S H D", (0, 2, 3, 1)),
    "heads_to_back": ("B H S D", (0, 2, 1, 3)),
    "heads": ("B H S D", (0, 1, 3, 2)),
}
"""Transpositions around attention, by name: the axes of the operand, and their order."""


def _attention_rules(count: int) -> Iterator[Rule]:
    heads = fn.size("H")
    for name, (axes, perm) in TRANSPOSITIONS.items():
        x, axis = tensor("x", axes), axes.split().index("H")
        parts = [op.Transpose(part, perm=perm) for part in parts_of(x, axis, heads, count)]
        whole = op.Transpose(x, perm=perm)
        yield _joined(f"transpose_of_{name}", count, whole, parts, perm.index(axis), is_divisible(heads, count))
    scores = tensor("x", "B H M N")
    parts = [part + MASK for part in parts_of(scores, 1, heads, count)]
    chosen, number = tensor("c", "B H M N"), tensor("y", "")
    guarded = [
        op.Where(*each)
        for each in zip(
            parts_of(chosen, 1, heads, count), [number] * count, parts_of(scores, 1, heads, count), strict=True
        )
    ]
    yield _joined("where_by_heads", count, op.Where(chosen, number, scores), guarded, 1, is_divisible(heads, count))
    yield _joined("add_of_mask_by_heads", count, scores + MASK, parts, 1, is_divisible(heads, count))
    yield from _head_view_rules(count)


MASK = tensor("mask", "P 1 R N")
"""A mask that all heads share; examples and rows may share it, too."""


def _whole_attention_rules(count: int) -> Iterator[Rule]:
    q, k, v = tensor("q", "B H M K"), tensor("k", "B H K N"), tensor("v", "B H N L")
    factor, heads = tensor("factor", ""), fn.size("H")
    triples = list(zip(*(parts_of(each, 1, heads, count) for each in (q, k, v)), strict=True))

    def attention(name: str, scores: Callable[[Term, Term], Term]) -> Rule:
        whole, *parts = (op.Softmax(scores(a, b), axis=-1) @ c for a, b, c in ((q, k, v), *triples))
        return _joined(name, count, whole, parts, 1, is_divisible(heads, count), fn.is_float(fn.dtype(q)))

    yield attention("attention", lambda a, b: (a @ b) * factor)
    yield attention("masked_attention", lambda a, b: (a @ b) * factor + MASK)


def _head_view_rules(count: int) -> Iterator[Rule]:
    """Columns are whole heads where the number of heads is a multiple of the number of parts."""
    x, shape, columns = tensor("x", "B S E"), integers("shape"), fn.size("E")

    def split(name: str, heads: Term, size: Term, *when: Term) -> Rule:
        parts = [op.Reshape(part, fn.concat(0, 0, heads // count, size)) for part in parts_of(x, -1, columns, count)]
        is_split = fn.is_noop_reshape(shape, fn.concat(fn.sizes("B S"), heads, size))
        return _joined(name, count, op.Reshape(x, shape), parts, 2, is_split, *when, fn.eq(heads % count, 0))

    heads, size = fn.item(shape, 2), fn.item(shape, 3)
    yield split("split_into_heads", heads, columns // heads, heads > 0, fn.eq(columns % heads, 0), columns > 0)
    is_there = fn.ne(heads, 0)
    yield split(
        "split_into_head_size", columns // size, size, size > 0, fn.eq(columns % size, 0), is_there, columns > 0
    )
    y, heads, size = tensor("x", "B S H D"), fn.size("H"), fn.size("D")
    merged = [op.Reshape(part, fn.concat(0, 0, (heads // count) * size)) for part in parts_of(y, 2, heads, count)]
    yield _joined(
        "merge_of_heads",
        count,
        op.Reshape(y, shape),
        merged,
        2,
        fn.is_noop_reshape(shape, fn.concat(fn.sizes("B S"), heads * size)),
        fn.ne(fn.item(shape, 2), 0),
        fn.eq(heads % count, 0),
        size > 0,
    )


# -- convolutions ------------------------------------------------------------------------------------------------------


def _conv_rules(count: int) -> Iterator[Rule]:
    x, w, b, group = tensor("x", "N C *s"), const("w", "W I *k"), const("b", "W", default=0), integer("group")
    dense, c, out = const("w", "W C *k"), fn.size("C"), fn.size("W")

    yield build_channel_rule(count)
    pairs = zip(parts_of(x, 1, c, count), parts_of(dense, 1, c, count), strict=True)
    yield _summed(
        "conv_by_input_channels",
        count,
        grouped_conv(x, dense, b, 1),
        [grouped_conv(part, weight, None if i else b, 1) for i, (part, weight) in enumerate(pairs)],
        is_divisible(c, count),
    )
    triples = zip(parts_of(x, 1, c, count), parts_of(w, 0, out, count), parts_of(b, 0, out, count), strict=True)
    yield _joined(
        "conv_by_groups",
        count,
        grouped_conv(x, w, b, group),
        [grouped_conv(*each, group // count) for each in triples],
        1,
        group > 1,
        fn.eq(group % count, 0),
    )


WINDOW = {name: integers(name) for name in ("kernel_shape", "strides", "pads")}
POOLS: Mapping[str, Callable[[Term], App]] = {
    "max_pool": lambda x: op.MaxPool(x, **WINDOW),
    "average_pool": lambda x: op.AveragePool(x, **WINDOW),
    "global_average_pool": op.GlobalAveragePool,
}
"""Operators on each channel of an image."""


def _channel_rules(count: int) -> Iterator[Rule]:
    x, y, number, c = tensor("x", "N C *s"), tensor("y", "N C *s"), tensor("y", ""), fn.size("C")
    cut = parts_of(x, 1, c, count)

    def joined(name: str, whole: App, parts: Sequence[Term]) -> Rule:
        return _joined(f"{name}_by_channels", count, whole, parts, 1, is_divisible(c, count))

    yield joined("pointwise", f(x), [f(part) for part in cut])
    for name, g in BINARY.items():
        pairs = zip(cut, parts_of(y, 1, c, count), strict=True)
        yield joined(name, g(x, y), [g(a, b) for a, b in pairs])
        yield joined(f"{name}_of_number", g(x, number), [g(part, number) for part in cut])
    for name, pool in POOLS.items():
        yield joined(name, pool(x), [pool(part) for part in cut])
    statistics: Sequence[Var] = [const(name, "C") for name in ("scale", "bias", "mean", "var")]
    own = zip(*(parts_of(each, 0, c, count) for each in statistics), strict=True)
    eps = real("epsilon")
    whole = op.BatchNormalization(x, *statistics, epsilon=eps)
    yield joined(
        "batch_normalization",
        whole,
        [op.BatchNormalization(p, *each, epsilon=eps) for p, each in zip(cut, own, strict=True)],
    )


def build_block_rules(count: int) -> tuple[Rule, ...]:
    """Return the rules that split several operators at once among so many devices."""
    return (*_mlp_rules(count), *_whole_attention_rules(count))


def build_operator_rules(count: int) -> tuple[Rule, ...]:
    """Return the rules that split one operator among so many devices."""
    return (
        *_product_rules(count),
        *_column_rules(count),
        *_attention_rules(count),
        *build_head_rules(count),
        *build_elementwise_rules(HEADS, count),
        *_conv_rules(count),
        *_channel_rules(count),
    )


_elsewhere = {rule.name for rule in splitting.TRADES}
TRADES: tuple[Rule, ...] = tuple(
    rule
    for count in COUNTS
    for rule in (*build_block_rules(count), *build_operator_rules(count))
    if rule.name not in _elsewhere
)
