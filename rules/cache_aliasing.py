"""Products whose rows would fall into the same sets of the cache: some columns of zeros put them apart.

A kernel of a product reads a dozen rows of its left operand at once. Where they lie apart by a multiple of 4096 bytes,
all are in one of the sets of the first cache, which holds eight to twelve lines: they evict each other (the "critical
stride" of A. Fog, "Optimizing software in C++", on cache organization). That explains why the product of [128, 3072]
and [3072, 768] takes a tenth longer than others (benchmarks/results/by-hand.md); no counter was read. Hidden layers of
such widths are usual, and in front of most of them are weights: 16 columns more of these cost half a percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, Var, const, fn, integers, op, tensor
from graphopt.rules.activation import GELU_AS_FUSED
from graphopt.rules.names import snake_case

LINE = 16
"""Elements of single precision in a line of the cache: columns that are added."""
PERIOD = 1024
"""Elements of single precision in 4096 bytes."""

# Axes: *b batch, M rows, K contracted, N columns.
rows, stack = tensor("x", "M K"), tensor("x", "*b M K")
w, b, bias = const("w", "K N"), const("b", "N", default=0), const("b", "N")
x, y, columns, factor = tensor("x"), tensor("y"), tensor("x", "*b K"), const("c", "")
pads, shape = integers("pads"), integers("shape")


def zeros_of(*sizes: Term | int) -> App:
    return op.Expand(0.0, fn.concat(*sizes))


def wider_weights() -> App:
    return op.Concat(w, zeros_of(fn.size("K"), LINE), axis=1)


def longer_bias(vector: Term) -> App:
    return op.Concat(vector, zeros_of(LINE), axis=0)


def pads_of_line(value: Term) -> App:
    """Return the pads of a value that add a line behind each row."""
    return fn.concat(fn.repeat(0, 2 * fn.rank(value) - 1), LINE)


def pad_rows(value: Term) -> App:
    return op.Pad(value, pads)


def is_single(value: Var) -> Term:
    return fn.is_in(fn.dtype(value), (int(DType.FLOAT),))


def padded(name: str, operand: Var, apply: Callable[[Term, Term], App]) -> Rule:
    """Return the rule that adds a line behind the rows of a product's left operand, and rows to the weights."""
    return Rule(
        f"pad_rows_of_{name}",
        apply(operand, w),
        apply(op.Pad(operand, pads_of_line(operand)), op.Concat(w, zeros_of(LINE, fn.size("N")), axis=0)),
        when=is_single(operand),
        pays=(fn.size("K") > 0, fn.eq(fn.size("K") % PERIOD, 0)),
        why="Rows that lie apart by another number of lines do not fall into the same sets of the cache.",
    )


PADDED = (
    padded("gemm", rows, lambda value, weights: op.Gemm(value, weights, b)),
    padded("gemm_add", rows, lambda value, weights: op.Gemm(value, weights, tensor("t", "M N"))),
    padded("matmul", stack, lambda value, weights: value @ weights),
)

ACTIVATIONS: Mapping[str, Callable[[Term], App]] = {
    **{snake_case(f.name): f for f in (op.Relu, op.Gelu, op.Tanh, op.HardSwish)},
    "gelu_tanh": lambda value: op.Gelu(value, approximate="tanh"),
    **{f"gelu{form}_written_out": written for form, written in GELU_AS_FUSED.items()},
    "silu": lambda value: value * op.Sigmoid(value),
    "quick_gelu": lambda value: value * op.Sigmoid(value * factor),
}
"""Activations of hidden layers that are 0 of 0."""

LIFTED_WHY = "What is in front of it makes the zeros at no cost, of columns of zeros among its weights."
LIFTED = (
    *(
        Rule(
            f"push_line_above_{name}",
            pad_rows(f(x)),
            f(pad_rows(x)),
            when=is_single(x),
            pays=fn.eq(pads, pads_of_line(x)),
            why=LIFTED_WHY,
        )
        for name, f in ACTIVATIONS.items()
    ),
    Rule(
        "push_line_above_mul",
        pad_rows(x * y),
        pad_rows(x) * pad_rows(y),
        when=(is_single(x), fn.eq(fn.shape(x), fn.shape(y))),
        pays=fn.eq(pads, pads_of_line(x)),
        why=LIFTED_WHY,
    ),
    Rule(
        "push_line_above_reshape",
        pad_rows(op.Reshape(columns, shape)),
        op.Reshape(
            op.Pad(columns, pads_of_line(columns)),
            fn.concat(fn.slice(shape, 0, fn.length(shape) - 1), fn.size("K") + LINE),
        ),
        when=(
            is_single(columns),
            fn.eq(pads, fn.concat(fn.repeat(0, 2 * fn.length(shape) - 1), LINE)),
            fn.eq(fn.item(shape, -1), fn.size("K")),
            fn.lt(0, shape),
            fn.size("K") > 0,
        ),
        why=LIFTED_WHY,
    ),
    *(
        Rule(
            f"push_line_into_{name}",
            pad_rows(apply(w, shift)),
            apply(wider_weights(), longer_bias(shift)),
            when=(is_single(operand), fn.eq(pads, pads_of_line(operand))),
            why=LIFTED_WHY,
        )
        for name, operand, shift, apply in (
            ("gemm", rows, b, lambda weights, shift: op.Gemm(rows, weights, shift)),
            ("matmul", stack, b, lambda weights, _: stack @ weights),
            ("matmul_add", stack, bias, lambda weights, shift: (stack @ weights) + shift),
        )
    ),
)

RULES: tuple[Rule, ...] = ()
TRADES = (*LIFTED, *PADDED)
SWEEPS = {"rows apart in the cache": TRADES}
