"""Dense weights that are blocks on a diagonal become grouped convolutions and products, which multiply no zeros.

`fn.block_count` says how many blocks there are. The weights of the blocks are sums along an axis in which all numbers
but one are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, Var, attributes, const, fn, op, tensor
from graphopt.rules.convolution import BLOCK

# -- convolutions --------------------------------------------------------------------------------------------------
# Axes: N batch, I channels that are read, M that are made, *s space, *k kernel.

image, filters, bias = tensor("x", "N I *s"), const("w", "M I *k"), const("b", "M", default=0)
rest = attributes("rest")
why = "Filters that are zero for the channels of other groups are those of a grouped convolution."


def in_groups(name: str, group: App, *conditions: App) -> Rule:
    """Return the rule for a convolution whose filters are blocks on a diagonal."""
    of_each_group = fn.concat(fn.size("M"), group, fn.floordiv(fn.size("I"), group), fn.sizes("*k"))
    own = op.ReduceSum(op.Reshape(filters, of_each_group), (1,), keepdims=0)
    return Rule(
        name,
        op.Conv(image, filters, bias, rest, group=1),
        op.Conv(image, own, bias, rest, group=group),
        when=(fn.lt(1, group), *conditions),
        why=why,
    )


any_blocks = fn.block_count("M I", filters)
CONVS = (
    in_groups("group_conv_of_diagonal", any_blocks, fn.eq(any_blocks, fn.size("M")), fn.eq(any_blocks, fn.size("I"))),
    in_groups("group_conv_of_large_blocks", fn.block_count("M I", BLOCK, filters)),
)
IN_SMALL_BLOCKS = (in_groups("group_conv_of_small_blocks", any_blocks),)
"""Rules for blocks that ONNX Runtime does not convolve in its layout: of 16 channels it takes longer than without
groups."""

# -- products ------------------------------------------------------------------------------------------------------
# Axes: *b batch, M rows, K features that are read, P those that are made.


class WeightedProduct(NamedTuple):
    """A product with weights."""

    name: str
    x: Var
    weights: str
    """Their axes."""
    apply: Callable[[Term, Term], App]
    add_bias: Callable[[Term], Term]
    """Further effect on the result."""


rows, matrix, c = tensor("x", "*b M K"), tensor("x", "M K"), const("c", "P", default=0)
PRODUCTS = (
    WeightedProduct("matmul", rows, "K P", lambda x, w: x @ w, lambda y: y),
    WeightedProduct("gemm", matrix, "K P", lambda x, w: op.Gemm(x, w, c), lambda y: y + c),
    WeightedProduct("transposed_gemm", matrix, "P K", lambda x, w: op.Gemm(x, w, c, transB=1), lambda y: y + c),
)


def by_diagonal(this: WeightedProduct) -> Rule:
    """Return the rule for weights that are zero but on their diagonal."""
    w = const("w", this.weights)
    count = fn.block_count(this.weights, w)
    return Rule(
        f"replace_{this.name}_by_diagonal_with_mul",
        this.apply(this.x, w),
        this.add_bias(this.x * op.ReduceSum(w, (0,), keepdims=0)),
        when=(fn.eq(count, fn.size("K")), fn.eq(count, fn.size("P"))),
        why="A matrix that is zero but on its diagonal multiplies each feature by a number.",
    )


def build_batched_rule(this: WeightedProduct) -> Rule:
    """Return the rule for weights that are blocks on a diagonal."""
    w = const("w", this.weights)
    count = fn.block_count(this.weights, BLOCK, w)
    high, wide = (fn.floordiv(fn.size(axis), count) for axis in this.weights.split())
    read = this.weights.split().index("K")
    own = op.ReduceSum(op.Reshape(w, fn.concat(count, high, count, wide)), (2 * read,), keepdims=0)
    own = op.Transpose(own, perm=(0, 2, 1) if read else (1, 0, 2))
    x = op.Transpose(op.Reshape(this.x, fn.concat(-1, count, fn.floordiv(fn.size("K"), count))), perm=(1, 0, 2))
    shape = fn.sizes("*b M P" if this.x is rows else "M P")
    return Rule(
        f"split_{this.name}_by_blocks",
        this.apply(this.x, w),
        this.add_bias(op.Reshape(op.Transpose(x @ own, perm=(1, 0, 2)), shape, allowzero=1)),
        when=(fn.lt(1, count), fn.lt(0, high), fn.lt(0, wide)),
        why="A matrix of blocks on its diagonal multiplies as many parts of each row apart.",
    )


DIAGONAL, *DIAGONAL_AND_ADDED = map(by_diagonal, PRODUCTS)
BATCHED = tuple(map(build_batched_rule, PRODUCTS))

RULES = (*CONVS, DIAGONAL)
TRADES = (*IN_SMALL_BLOCKS, *DIAGONAL_AND_ADDED, *BATCHED)
