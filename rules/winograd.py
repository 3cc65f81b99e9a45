"""Convolutions by kernels of three rows, with fewer products: Winograd's minimal filtering along the height.

m rows of the result are sums of m + 2 products, in the place of 3 m; what is multiplied are sums of m + 2 rows of the
input, and of the rows of the kernel, which are known when the model is compiled (A. Lavin and S. Gray,
"Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, const, fn, integers, op, pointwise, tensor

# Axes: N batch, C input channels, M output channels, H W space, Q columns of the kernel, T groups of rows.
x, w, b = tensor("x", "N C H W"), const("w", "M C 3 Q"), const("b", "M", default=0)
pads = integers("pads")
top, left, bottom, right = (fn.item(pads, side) for side in range(4))
height, width = fn.size("H") + top + bottom - 2, fn.size("W") + left + right - fn.size("Q") + 1


class Filtering:
    """m rows at once: sums of rows of the input, and products with sums of rows of the kernel."""

    def __init__(self, m: int) -> None:
        self.m = m
        # They are `height` and `bottom` where the rules hold; said as a multiple of m, the solver does not look for it.
        self.height = fn.floordiv(height, m) * m
        self.bottom = self.height + 2 - fn.size("H") - top

    def rows(self, *taps: int) -> App:
        """Return, for each group of m rows, the sum of its m + 2 input rows with these factors."""
        kernel = op.Concat(*(_constant_tensor(tap, fn.sizes("C 1 1 1")) for tap in taps), axis=2)
        return op.Conv(x, kernel, strides=(self.m, 1), pads=fn.concat(top, 0, self.bottom, 0), group=fn.size("C"))

    def product(self, rows: App, factors: Sequence[float], bias: Term | None = None) -> App:
        """Return rows convolved with a row that is a weighted sum of the kernel's rows."""
        kernel = op.Split.split(3, w, (1, 1, 1), axis=2)
        weights = reduce(op.Add, (row * factor for row, factor in zip(kernel, factors, strict=True) if factor))
        return op.Conv(rows, weights, bias, pads=fn.concat(0, left, 0, right))

    def interleave(self, *results: Term) -> App:
        return interleave_rows(results, fn.concat(0, 0, self.height, width))


def _constant_tensor(number: float, sizes: Term) -> App:
    return op.Expand(float(number), sizes)


def interleave_rows(parts: Sequence[Term], shape: TermLike) -> App:
    """Return the rows of the parts in turns: the first row of each part, the second row of each, …"""
    return op.Reshape(op.Concat(*(op.Unsqueeze(part, (3,)) for part in parts), axis=3), shape)


def times(factor: float, value: Term) -> App:
    """Return a value times a number, computed by a convolution, so that it stays in the blocked layout."""
    return op.Conv(value, _constant_tensor(factor, fn.sizes("M 1 1 1")), group=fn.size("M"))


def in_twos() -> App:
    """Return two rows from four products, by the values of polynomials at 0, 1, -1 and infinity."""
    by = Filtering(2)
    minus = by.product(by.rows(0, -1, 1, 0), (-1 / 2, 1 / 2, -1 / 2))
    odd = by.product(by.rows(0, 1, 1, 0), (1 / 2, 1 / 2, 1 / 2), b) + minus
    even = times(-2, minus) + odd
    return by.interleave(
        by.product(by.rows(1, 0, -1, 0), (1, 0, 0)) + even,
        by.product(by.rows(0, 1, 0, -1), (0, 0, -1)) + odd,
    )


def in_fours() -> App:
    """Return four rows from six products, by the values at 0, 1, -1, 2, -2 and infinity."""
    by = Filtering(4)
    minus = by.product(by.rows(0, 4, -4, -1, 1, 0), (1 / 6, -1 / 6, 1 / 6))
    odd = by.product(by.rows(0, -4, -4, 1, 1, 0), (-1 / 6, -1 / 6, -1 / 6), b) + minus
    even = times(-2, minus) + odd
    minus = by.product(by.rows(0, 2, -1, -2, 1, 0), (-1 / 24, 1 / 12, -1 / 6))
    further = by.product(by.rows(0, -2, -1, 2, 1, 0), (1 / 24, 1 / 12, 1 / 6)) + minus
    further_even = times(-2, minus) + further
    return by.interleave(
        by.product(by.rows(4, 0, -5, 0, 1, 0), (1 / 4, 0, 0)) + (even + further_even),
        times(2, further) + odd,
        times(4, further_even) + even,
        by.product(by.rows(0, 4, 0, -5, 0, 1), (0, 0, 1)) + (times(8, further) + odd),
    )


def at_least(side: int, channels: int, filters: int) -> App:
    """Return the condition that an image is at least so large, and has at least so many channels before and after."""
    wanted = {"H": side, "W": side, "C": channels, "M": filters}
    return fn.all_of(*(fn.size(axis) >= least for axis, least in wanted.items()))


IN_FOURS = at_least(8, 96, 64), at_least(8, 64, 128), at_least(12, 96, 16), at_least(12, 48, 64), at_least(16, 48, 32)
IN_TWOS = at_least(6, 128, 128), at_least(10, 96, 64), at_least(14, 96, 32)
"""Conditions under which 3 × 3 convolutions gained a twentieth or more (benchmarks/results/by-hand.md).

On smaller images twice the weights take longer to read; with fewer channels sums of rows cost what products save.
"""

FILTERED = tuple(
    Rule(
        f"replace_conv_with_winograd_{name}",
        op.Conv(x, w, b, pads=pads),
        filtered(),
        when=(
            fn.is_in(fn.dtype(x), (int(DType.FLOAT),)),
            fn.eq(height % m, 0),
            fn.size("W") > 0,
        ),
        pays=fn.any_of(*gains),
        why=f"With a kernel of three rows, {m} rows are sums of {m + 2} products with one row, in place of {3 * m}.",
    )
    for name, filtered, m, gains in (("in_fours", in_fours, 4, IN_FOURS), ("in_twos", in_twos, 2, IN_TWOS))
)

f, shape = pointwise("f"), integers("shape")
taken_in = "A convolution takes in the activation behind it."
BEFORE = tuple(
    rule
    for count in (2, 4)
    for rows in ([tensor(f"y{i}", "N M T W") for i in range(count)],)
    for stacks in ([tensor(f"y{i}", "N M T 1 W") for i in range(count)],)
    for rule in (
        Rule(
            f"push_pointwise_above_{count}_joined_rows",
            f(op.Reshape(op.Concat(*stacks, axis=3), shape)),
            op.Reshape(op.Concat(*map(f, stacks), axis=3), shape),
            when=fn.eq(fn.length(shape), 4),
            why=taken_in,
        ),
        Rule(
            f"push_pointwise_above_{count}_unsqueezed_rows",
            op.Concat(*(f(op.Unsqueeze(row, (3,))) for row in rows), axis=3),
            op.Concat(*(op.Unsqueeze(f(row), (3,)) for row in rows), axis=3),
            why=taken_in,
        ),
    )
)

RULES: tuple[Rule, ...] = ()
TRADES = (*FILTERED, *BEFORE)
SWEEPS = {"convolutions with fewer products": TRADES}
