"""Writes into a part of a tensor: ScatterElements and ScatterND at consecutive places.

So loops are exported that fill a result step by step (`out[:, t] = y`), and operators that change a slice in place
(`x[:, 1:] += y`), even where nothing but that slice is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphopt.rule import App, Rule, Term, TermLike, Var, const, fn, integer, integers, op, tensor

LONGEST = 2**63 - 1


class Write(NamedTuple):
    """An operator that writes at the places of a constant along one axis. Axes: N the axis, K the places on it, A and B
    those before it, *s those behind."""

    name: str
    places: str
    values: str
    axis: int
    apply: Callable[[Term, Term, Term], App]
    spread: Callable[[App, Term], App]
    """Makes the places of consecutive numbers and of how many there are."""
    when: tuple[Term, ...] = ()

    def tensor_with(self, name: str, length: str) -> Var:
        """Return the hole of a tensor that is so long along the axis."""
        return tensor(name, self.values.replace("K", length))

    def with_length(self, name: str, length: str) -> tuple[Var, Var]:
        """Return the holes of so many places and of what is written there."""
        return const(f"i{name}", self.places.replace("K", length)), self.tensor_with(f"v{name}", length)


axis = integer("axis")


def write_elements(position: int, before: str) -> Write:
    """Return ScatterElements along the axis behind some others."""
    axes = f"{before} K *s".strip()
    rank = fn.length(fn.sizes(axes))
    return Write(
        f"elements_along_axis_{position}",
        places=axes,
        values=axes,
        axis=position,
        apply=lambda value, places, values: op.ScatterElements(value, places, values, axis=axis),
        spread=lambda numbers, count: op.Expand(
            op.Reshape(numbers, fn.concat(count, fn.sizes("1*s")), allowzero=1),
            fn.concat(*map(fn.size, before.split()), count, fn.sizes("*s")),
        ),
        when=(fn.eq(fn.normalize_indices(axis, rank), position),),
    )


ELEMENTS = tuple(write_elements(position, before) for position, before in enumerate(("", "A", "A B")))
ROWS = Write("rows", "K 1", "K *s", 0, op.ScatterND, spread=lambda numbers, _: op.Unsqueeze(numbers, (1,)))


def build_fusion_rule(this: Write, *, name: str, is_ascending: bool) -> Rule:
    """Return the rule for two writes at adjoining places: the second behind the first, or before it."""
    x, (i, v), (j, w) = this.tensor_with("x", "N"), this.with_length("0", "K"), this.with_length("1", "L")
    first, second = fn.first_index("K", i), fn.first_index("L", j)
    count = fn.size("K") + fn.size("L")
    begin, adjoin, values = (
        (first, fn.eq(second, first + fn.size("K")), (v, w))
        if is_ascending
        else (second, fn.eq(first, second + fn.size("L")), (w, v))
    )
    return Rule(
        f"fuse_{name}_writes_of_{this.name}",
        this.apply(this.apply(x, i, v), j, w),
        this.apply(x, this.spread(op.Range(begin, begin + count, 1), count), op.Concat(*values, axis=this.axis)),
        when=(*this.when, fn.le(0, begin), adjoin, fn.le(1, fn.sizes(this.values.replace("K", "")))),
        why="Steps that write beside each other are one write of all that they wrote.",
    )


def build_elimination_rule(this: Write) -> Rule:
    i, v = this.with_length("", "K")
    x = this.tensor_with("x", "N")
    return Rule(
        f"eliminate_write_of_all_{this.name}",
        this.apply(x, i, v),
        v,
        when=(*this.when, fn.eq(fn.first_index("K", i), 0), fn.eq(fn.size("K"), fn.size("N"))),
        why="Of a tensor that is overwritten as a whole nothing is left.",
    )


# -- writes along another axis ---------------------------------------------------------------------------------------
# PyTorch's exporter writes a slice along any axis as rows of a transposed tensor.

x, to_front = tensor("x"), integers("to_front")
i, v = ROWS.with_length("", "K")
begin = fn.first_index("K", i)
along = fn.item(to_front, 0)
end, size = begin + fn.size("K"), fn.item(fn.shape(x), along)


def part(first: TermLike, last: TermLike) -> App:
    return op.Slice(x, fn.concat(first), fn.concat(last), fn.concat(along))


written = op.Transpose(v, perm=fn.inverse(to_front))
BESIDE: Mapping[str, tuple[tuple[App, ...], tuple[Term, ...]]] = {
    "first": ((written, part(end, LONGEST)), (fn.eq(begin, 0), fn.lt(end, size))),
    "inner": ((part(0, begin), written, part(end, LONGEST)), (fn.lt(0, begin), fn.lt(end, size))),
    "last": ((part(0, begin), written), (fn.lt(0, begin), fn.eq(end, size))),
}
SLICES = tuple(
    Rule(
        f"replace_write_of_{name}_slice_with_concat",
        op.ScatterND(op.Transpose(x, perm=to_front), i, v),
        op.Transpose(op.Concat(*parts, axis=along), perm=to_front),
        when=where,
        why="What is kept is copied once, in its order, and a slice that is read where it was written is known.",
    )
    for name, (parts, where) in BESIDE.items()
)

RULES: tuple[Rule, ...] = (
    *(
        rule
        for this in (*ELEMENTS, ROWS)
        for rule in (
            build_fusion_rule(this, name="ascending", is_ascending=True),
            build_fusion_rule(this, name="descending", is_ascending=False),
            build_elimination_rule(this),
        )
    ),
    *SLICES,
)
