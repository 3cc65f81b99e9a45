"""Wrong rules on constants that count: from another number, along other axes, backwards, in the wrong order."""

from __future__ import annotations

from graphopt.language.rule import Rule, const, fn, op, tensor
from graphopt.language.terms import App, Term

x, rows = tensor("x", "N"), tensor("r", "P N")
i, j, places = const("i", "K"), const("j", "L"), const("p", "K L")
v, w = tensor("v", "K"), tensor("w", "L")
K, L, N = (fn.size(axis) for axis in "KLN")
of_i, of_j = fn.first_index("K", i), fn.first_index("L", j)
adjoin = (fn.le(0, of_i), fn.eq(of_j, of_i + K))


def write(value: Term, at: Term, what: Term) -> App:
    return op.ScatterElements(value, at, what)


def numbers(first: Term, length: Term) -> App:
    return op.Range(first, first + length, 1)


twice = write(write(x, i, v), j, w)

REFUTED = (
    Rule("counted_from_zero", op.Gather(x, i), op.Slice(x, (0,), fn.concat(K), (0,)), when=fn.le(0, of_i)),
    Rule("counted_from_the_end", op.Gather(x, i), op.Slice(x, fn.concat(of_i), fn.concat(of_i + K), (0,)),
         when=fn.lt(of_i, 3)),
    Rule("counted_backwards", op.Gather(x, i), op.Gather(x, op.Range(of_i, of_i - K, -1)), when=fn.le(K, of_i)),
    Rule("counted_by_twos", op.Gather(x, i), op.Slice(x, fn.concat(of_i), fn.concat(N), (0,), (2,)),
         when=fn.le(0, of_i)),
    Rule("counted_along_the_other_axis", op.Gather(x, places),
         op.Gather(x, op.Expand(numbers(fn.first_index("K", places), L), fn.sizes("K L"))), when=fn.eq(K, L)),
    Rule("counted_alike", (op.Gather(x, i), op.Gather(x, j)), (op.Gather(x, i), op.Gather(x, i)),
         when=fn.eq(of_i, of_j)),
    Rule("written_in_the_wrong_order", twice, write(x, numbers(of_i, K + L), op.Concat(w, v, axis=0)), when=adjoin),
    Rule("written_with_a_gap", twice, write(x, numbers(of_i, K + L), op.Concat(v, w, axis=0)),
         when=(fn.le(0, of_i), fn.eq(of_j, of_i + K + 1))),
    Rule("written_over_what_was_written", twice, write(x, i, v), when=fn.eq(of_i, of_j)),
    Rule("written_somewhere", write(x, i, v), v, when=fn.eq(K, N)),
    Rule("written_row", op.ScatterND(rows, const("i", "K 1"), tensor("u", "K N")), tensor("u", "K N"),
         when=fn.eq(fn.first_index("K", const("i", "K 1")), 0)),
)  # fmt: skip
UNPROVED = (
    Rule("written_where_nothing_is", twice, write(x, numbers(of_i, K + L), op.Concat(v, w, axis=0)), when=adjoin[1]),
)  # fmt: skip
