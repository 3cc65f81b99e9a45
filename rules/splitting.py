"""Operators computed in parts, one after the other, so that a run takes less memory: by rows, by heads, by examples.

Each rule computes one operator in parts that are joined again. Where the next operator is computed in the same parts,
these are passed on, and the whole is never in memory. The search for speed leaves these rules alone: a memory budget
asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, const, fn, integer, op, pointwise, tensor
from graphopt.rules.convolution import geometry

# Axes: *b batch, H heads, M rows, K contracted, N columns; N batch, C channels, W output channels, *s space, *k kernel.

COUNTS = (2, 3)
"""Numbers of parts. More are made by computing parts in parts."""

f = pointwise("f")


class Partition(NamedTuple):
    """An axis along which values are computed in parts."""

    name: str
    axes: str
    """The axes of a value; the first but `*b` is the one that is cut."""
    position: int
    """The place of that axis, counted from the back."""


ROWS, HEADS = Partition("rows", "*b M K", -2), Partition("heads", "*b H M K", -3)


def part_sizes(length: Term, count: int) -> App:
    """Return the sizes of the parts: equal ones, and what is left."""
    each = (length + (count - 1)) // count
    return fn.concat(*(each for _ in range(count - 1)), length - (count - 1) * each)


def is_divisible(length: Term, count: int) -> App:
    """Return the condition that no part is empty."""
    return fn.lt((count - 1) * ((length + (count - 1)) // count), length)


def parts_of(value: Term, axis: int, length: Term, count: int) -> Sequence[Term]:
    return op.Split.split(count, value, part_sizes(length, count), axis=axis)


def _build_rule(name: str, count: int, whole: App, parts: Sequence[Term], axis: int, *when: Term) -> Rule:
    return Rule(
        f"compute_{name}_in_{count}_parts",
        whole,
        op.Concat(*parts, axis=axis),
        when=when,
        why="Parts that are computed one after the other take less memory at a time.",
    )


def _row_rules(count: int) -> tuple[Rule, ...]:
    x, y, w, m = tensor("x", "*b M K"), tensor("y", "*b K N"), tensor("w", "K N"), fn.size("M")
    cut = parts_of(x, -2, m, count)
    return (
        _build_rule("matmul_by_rows", count, x @ y, [part @ y for part in cut], -2, is_divisible(m, count)),
        _build_rule("projection_by_rows", count, x @ w, [part @ w for part in cut], -2, is_divisible(m, count)),
    )


def build_head_rules(count: int) -> tuple[Rule, ...]:
    x, y, heads = tensor("x", "*b H M K"), tensor("y", "*b H K N"), fn.size("H")
    pairs = zip(parts_of(x, -3, heads, count), parts_of(y, -3, heads, count), strict=True)
    return (_build_rule("matmul_by_heads", count, x @ y, [a @ b for a, b in pairs], -3, is_divisible(heads, count)),)


SHARED = {ROWS: {"number": "", "row": "K"}, HEADS: {"number": "", "row": "K", "matrix": "M K", "head": "*b 1 M K"}}
"""Second operands of which each part reads all, by what they are."""
BINARY: Mapping[str, Callable[[Term, Term], App]] = {"add": op.Add, "mul": op.Mul}


def build_elementwise_rules(along: Partition, count: int) -> Iterator[Rule]:
    x, y = tensor("x", along.axes), tensor("y", along.axes)
    length = fn.size("H" if along is HEADS else "M")
    cut, cut_y = parts_of(x, along.position, length, count), parts_of(y, along.position, length, count)

    def named(name: str, whole: App, parts: Sequence[Term]) -> Rule:
        return _build_rule(f"{name}_by_{along.name}", count, whole, parts, along.position, is_divisible(length, count))

    yield named("pointwise", f(x), [f(part) for part in cut])
    yield named("softmax", op.Softmax(x, axis=-1), [op.Softmax(part, axis=-1) for part in cut])
    for name, g in BINARY.items():
        yield named(name, g(x, y), [g(a, b) for a, b in zip(cut, cut_y, strict=True)])
        for what, axes in SHARED[along].items():
            shared = tensor("y", axes)
            yield named(f"{name}_of_shared_{what}", g(x, shared), [g(part, shared) for part in cut])


def grouped_conv(value: Term, weight: Term, bias: Term | None, groups: Term | int) -> App:
    return op.Conv(value, weight, bias, group=groups, **geometry)


def _build_example_rule(count: int) -> Rule:
    x, w, b, group = tensor("x", "N C *s"), const("w", "W I *k"), const("b", "W", default=0), integer("group")
    n = fn.size("N")
    parts = [grouped_conv(part, w, b, group) for part in parts_of(x, 0, n, count)]
    return _build_rule("conv_by_examples", count, grouped_conv(x, w, b, group), parts, 0, is_divisible(n, count))


def build_channel_rule(count: int) -> Rule:
    """Return the rule that computes a convolution by output channels."""
    x, w, b = tensor("x", "N C *s"), const("w", "W I *k"), const("b", "W", default=0)
    out = fn.size("W")
    own = zip(parts_of(w, 0, out, count), parts_of(b, 0, out, count), strict=True)
    parts = [grouped_conv(x, weight, bias, 1) for weight, bias in own]
    return _build_rule("conv_by_channels", count, grouped_conv(x, w, b, 1), parts, 1, is_divisible(out, count))


TRADES: tuple[Rule, ...] = tuple(
    rule
    for count in COUNTS
    for rule in (
        *_row_rules(count),
        *build_head_rules(count),
        *build_elementwise_rules(ROWS, count),
        *build_elementwise_rules(HEADS, count),
        _build_example_rule(count),
        build_channel_rule(count),
    )
)
