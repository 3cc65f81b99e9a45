"""What constants hold, as rules are told by functions of them: what is known of it to the prover, which sees none.

`fn.nonzero_indices("C", w)` is some places below C, in ascending order: an element of w that lies at no such place is
0.

`fn.block_count("M C", w)` is a whole number G, at least 1, that divides the sizes M and C: an element of w at (m, c) is
0 unless m and c lie in blocks of the same number, m // (M / G) = c // (C / G). The prover does not know that there is
no greater such number, nor what the sides of blocks are multiples of.

`fn.unique_indices("C", w)` is some places below C, in ascending order, and `fn.inverse_indices("C", w)` a position in
that list for each place below C: w is the same at the place and at the one in that position, which is its own where it
is in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphopt.base.integers import Formula, Int, Size, conj, eq, ge, quotient, symbol
from graphopt.base.places import Places
from graphopt.base.symbolic import Index, integer
from graphopt.base.tensors import Tensor
from graphopt.base.types import DType
from graphopt.language.term import App, Lit
from graphopt.operators.node import Unsupported


@dataclass(frozen=True)
class Blocks:
    """Equal blocks on the diagonal of two axes."""

    extents: tuple[Size, ...]
    count: Int
    sides: tuple[Int, Int]

    def has(self, row: Size, column: Size) -> Formula:
        """Return the condition that a place lies in one of the blocks."""
        high, wide = self.sides
        return eq(quotient(row, high), quotient(column, wide))

    @property
    def facts(self) -> tuple[Formula, ...]:
        filled = (eq(extent, self.count * side) for extent, side in zip(self.extents, self.sides, strict=True))
        return ge(self.count, 1), *map(ge, self.sides), *filled


@dataclass(frozen=True)
class Listed:
    """A list of positions or places of which its length is known as a size, and each number as a function."""

    length: Size
    number: Callable[[Size], Int]

    @property
    def tensor(self) -> Tensor:
        return Tensor((self.length,), lambda index: integer(self.number(index[0])), DType.INT64)


class Told(NamedTuple):
    """What a function says of constants."""

    app: App
    of: Places | Blocks
    axes: Sequence[int] = ()
    """Along which axes of one of them."""

    @property
    def value(self) -> Listed | Int:
        """What the function gives."""
        if isinstance(self.of, Blocks):
            return self.of.count
        if self.app.op == "inverse_indices":
            return Listed(self.of.extent, self.of.alike)
        return Listed(self.of.count, self.of.nth)


def told(app: App, extents: tuple[Size, ...]) -> Told:
    """Return what a function says of constants with axes of these sizes."""
    name = "unique_indices" if app.op == "inverse_indices" else app.op
    said = f"{name}({', '.join(str(arg.value if isinstance(arg, Lit) else arg) for arg in app.args)})"
    if app.op == "block_count":
        return Told(app, Blocks(extents, symbol(said), (symbol(f"high({said})"), symbol(f"wide({said})"))))
    (extent,) = extents
    return Told(app, Places(symbol(said), extent, symbol(f"length({said})")))


def looked_up(index: Index, said: Iterable[Told]) -> tuple[Formula, Index]:
    """Return where a constant may be something else than 0, and at which index its element is read: of equal ones at
    that of the one that stands for them."""
    found, inside = list(index), []
    for each in said:
        if isinstance(each.of, Blocks) or each.app.op == "nonzero_indices":
            inside.append(each.of.has(*(index[axis] for axis in each.axes)))
        else:
            (axis,) = each.axes
            found[axis] = each.of.nth(each.of.alike(found[axis]))
    return conj(*inside), tuple(found)


def of_lists(name: str, args: Sequence[object]) -> Size:
    """Return what a scalar function tells of a list that constants say: how long it is, and nothing else."""
    if name == "length" and isinstance(args[0], Listed):
        return args[0].length
    raise Unsupported(f"{name} of places of which only the number is known")
