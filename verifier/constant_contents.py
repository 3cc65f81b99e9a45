"""What constants hold, as rules are told by functions of them: what is known of it to the prover, which sees none.

`fn.nonzero_indices("C", w)` is some places below C, in ascending order: an element of w that lies at no such place is
0.

`fn.block_count("M C", w)` is a whole number G, at least 1, that divides the sizes M and C: an element of w at (m, c) is
0 unless m and c lie in blocks of the same number, m // (M / G) = c // (C / G). The prover does not know that there is
no greater such number, nor what the sides of blocks are multiples of.

`fn.first_index("K", i)` is a whole number F: the element of i at k along that axis is F + k.

`fn.unique_indices("C", w)` is some places below C, in ascending order, and `fn.inverse_indices("C", w)` a position in
that list for each place below C: w is the same at the place and at the one in that position, which is its own where it
is in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Index, integer_value
from graphopt.expr.index_lists import IndexList
from graphopt.expr.integers import Formula, Polynomial, Size, conjunction, eq, ge, quotient, symbol
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.language.terms import App, Lit
from graphopt.operators.op_context import UnsupportedOperatorError


@dataclass(frozen=True)
class BlockDiagonal:
    """Equal blocks on the diagonal of two axes."""

    extents: tuple[Size, ...]
    count: Polynomial
    block_shape: tuple[Polynomial, Polynomial]

    def contains(self, row: Size, column: Size) -> Formula:
        """Return the condition that a place lies in one of the blocks."""
        high, wide = self.block_shape
        return eq(quotient(row, high), quotient(column, wide))

    @property
    def facts(self) -> tuple[Formula, ...]:
        filled = (eq(extent, self.count * side) for extent, side in zip(self.extents, self.block_shape, strict=True))
        return ge(self.count, 1), *map(ge, self.block_shape), *filled


@dataclass(frozen=True)
class SymbolicList:
    """A list of positions or places of which its length is known as a size, and each number as a function."""

    length: Size
    element_at: Callable[[Size], Polynomial]

    @property
    def tensor(self) -> SymbolicTensor:
        return SymbolicTensor((self.length,), lambda index: integer_value(self.element_at(index[0])), DType.INT64)


class ContentFact(NamedTuple):
    """What a function says of constants."""

    app: App
    structure: IndexList | BlockDiagonal
    axes: Sequence[int] = ()
    """Along which axes of one of them."""

    @property
    def value(self) -> SymbolicList | Polynomial:
        """What the function gives."""
        if isinstance(self.structure, BlockDiagonal):
            return self.structure.count
        if self.app.op == "inverse_indices":
            return SymbolicList(self.structure.extent, self.structure.representative)
        return SymbolicList(self.structure.count, self.structure.select)


def build_content_fact(app: App, extents: tuple[Size, ...]) -> ContentFact:
    """Return what a function says of constants with axes of these sizes."""
    said = _render_query("unique_indices" if app.op == "inverse_indices" else app.op, app)
    if app.op == "block_count":
        return ContentFact(
            app, BlockDiagonal(extents, symbol(said), (symbol(f"high({said})"), symbol(f"wide({said})")))
        )
    (extent,) = extents
    return ContentFact(app, IndexList(symbol(said), extent, symbol(f"length({said})")))


def first_index_symbol(app: App) -> Polynomial:
    """Return the number from which a constant counts along an axis."""
    return symbol(_render_query(app.op, app))


def _render_query(name: str, app: App) -> str:
    return f"{name}({', '.join(str(arg.value if isinstance(arg, Lit) else arg) for arg in app.args)})"


def resolve_constant_index(index: Index, said: Iterable[ContentFact]) -> tuple[Formula, Index]:
    """Return where a constant may be something else than 0, and at which index its element is read: of equal ones at
    that of the one that stands for them."""
    found, inside = list(index), []
    for each in said:
        if isinstance(each.structure, BlockDiagonal) or each.app.op == "nonzero_indices":
            inside.append(each.structure.contains(*(index[axis] for axis in each.axes)))
        else:
            (axis,) = each.axes
            found[axis] = each.structure.select(each.structure.representative(found[axis]))
    return conjunction(*inside), tuple(found)


def apply_to_symbolic_list(name: str, args: Sequence[object]) -> Size:
    """Return what a scalar function tells of a list that constants say: how long it is, and nothing else."""
    if name == "length" and isinstance(args[0], SymbolicList):
        return args[0].length
    raise UnsupportedOperatorError(f"{name} of places of which only the number is known")
