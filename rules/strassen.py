"""Products with weights in fewer multiplications: Strassen's seven products of quarters, in the form of Winograd.

A product of matrices cut into halves both ways takes seven products of quarters in the place of eight, and fifteen sums
(V. Strassen, "Gaussian Elimination is not Optimal", Numerische Mathematik 13, 1969; S. Winograd's form of it is in
D. Knuth, "The Art of Computer Programming", volume 2, 4.6.4). Four of the sums are of weights, which are known when the
model is compiled; five are taken in by Gemm, which begins with what it adds to.
"""

from __future__ import annotations

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, const, fn, op, tensor
from graphopt.rules import code_motion

# Axes: M rows, K contracted, N columns.
x, w, b = tensor("x", "M K"), const("w", "K N"), const("b", "N", default=0)


def halves(value: Term, axis: int, size: Term) -> list[Term]:
    """Return the two halves of a value along an axis of an even size."""
    return [*op.Split.split(2, value, fn.repeat(size // 2, 2), axis=axis)]


def halves_of_even_rows() -> list[Term]:
    return halves(x, 0, fn.size("M"))


def halves_of_odd_rows() -> list[Term]:
    """Return the upper half, and the lower one with a row of zeros that it lacks."""
    count = fn.size("M") // 2
    above, below = op.Split.split(2, x, fn.concat(count + 1, count), axis=0)
    return [above, op.Pad(below, (0, 0, 1, 0))]


def drop_last_row(value: Term) -> App:
    return op.Slice(value, (0,), (-1,), (0,), (1,))


def quarters_of_weights() -> list[Term]:
    return [part for half in halves(w, 0, fn.size("K")) for part in halves(half, 1, fn.size("N"))]


def product_of_quarters(halves_of_rows: list[Term], bias: Term | None = None) -> tuple[App, App]:
    """Return the upper and the lower half of the product of x and w, with a bias."""
    a11, a12, a21, a22 = (part for half in halves_of_rows for part in halves(half, 1, fn.size("K")))
    w11, w12, w21, w22 = quarters_of_weights()
    left, right = (None, None) if bias is None else halves(bias, 0, fn.size("N"))
    lower = a21 + a22
    changed = lower - a11
    columns = w12 - w11
    changed_columns = w22 - columns
    first = op.Gemm(a11, w11, left)
    shared = op.Gemm(changed, changed_columns, first)
    of_lower = op.Gemm(lower, columns, None if left is None or right is None else right - left)
    below = op.Gemm(a11 - a21, w22 - w12, shared)
    upper_rows = op.Concat(op.Gemm(a12, w21, first), op.Gemm(a12 - changed, w22, shared + of_lower), axis=1)
    lower_rows = op.Concat(op.Gemm(a22, w21 - changed_columns, below), below + of_lower, axis=1)
    return upper_rows, lower_rows


def is_even(axis: str) -> Term:
    return fn.eq(fn.size(axis) % 2, 0)


def even_product(bias: Term | None = None) -> App:
    return op.Concat(*product_of_quarters(halves_of_even_rows(), bias), axis=0)


def odd_product(bias: Term | None = None) -> App:
    above, below = product_of_quarters(halves_of_odd_rows(), bias)
    return op.Concat(above, drop_last_row(below), axis=0)


third = tensor("t", "M N")
STRASSEN = tuple(
    Rule(
        f"replace_gemm{suffix}_of_{parity}_rows_with_strassen",
        op.Gemm(x, w, added),
        strassen,
        when=(fn.is_in(fn.dtype(x), (int(DType.FLOAT),)), is_even("K"), is_even("N"), fn.eq(fn.size("M") % 2, rest)),
        pays=fn.all_of(fn.size("M") >= 96, fn.size("K") >= 1024, fn.size("N") >= 768),
        why="Of quarters, seven products are enough in the place of eight.",
    )
    for parity, rest, product in (("even", 0, even_product), ("odd", 1, odd_product))
    for suffix, added, strassen in (("", b, product(b)), ("_add", third, product() + third))
)
"""Rules for even and odd numbers of rows. With fewer rows or columns, splitting and joining takes as long as a product
(benchmarks/results/by-hand.md)."""

RULES: tuple[Rule, ...] = ()
TRADES = STRASSEN
SWEEPS = {"products in fewer multiplications": (*code_motion.STACKS["stacks of matrices as one matrix"], *TRADES)}
