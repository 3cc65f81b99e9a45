"""What the prover knows of the contents of constants: what the functions of a rule say of them, and nothing else.

`fn.nonzero_indices("C", w)` is a list of indices below C in ascending order: the elements of w at all others are 0.

`fn.block_count("M C", w)` is an integer G, at least 1, that divides the sizes M and C: an element of w at (m, c) is 0
unless m and c lie in blocks of the same number, m // (M / G) = c // (C / G). The prover does not know that G is the
greatest such integer, nor of what the sides of the blocks are multiples.

`fn.first_index("K", i)` is an integer F, negative or not: the element of i at k along that axis is F + k.

`fn.unique_indices("C", w)` is a list of indices below C in ascending order, and `fn.inverse_indices("C", w)` gives a
position in this list for each index below C: w is the same at an index and at the listed index in its position. An
index that is listed has its own position.
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
    """A list of indices: its length is a size, and its elements are given by a function."""

    length: Size
    element_at: Callable[[Size], Polynomial]

    @property
    def tensor(self) -> SymbolicTensor:
        return SymbolicTensor((self.length,), lambda index: integer_value(self.element_at(index[0])), DType.INT64)


class ContentFact(NamedTuple):
    """What a function of constants, such as `nonzero_indices`, says of their contents."""

    app: App
    structure: IndexList | BlockDiagonal
    axes: Sequence[int] = ()
    """The axes of a constant that the function is about, by position."""

    @property
    def value(self) -> SymbolicList | Polynomial:
        """The value of the function."""
        if isinstance(self.structure, BlockDiagonal):
            return self.structure.count
        if self.app.op == "inverse_indices":
            return SymbolicList(self.structure.extent, self.structure.representative)
        return SymbolicList(self.structure.count, self.structure.select)


def build_content_fact(app: App, extents: tuple[Size, ...]) -> ContentFact:
    """Return what a function says of constants whose axes have these sizes."""
    said = _render_query("unique_indices" if app.op == "inverse_indices" else app.op, app)
    if app.op == "block_count":
        return ContentFact(
            app, BlockDiagonal(extents, symbol(said), (symbol(f"high({said})"), symbol(f"wide({said})")))
        )
    (extent,) = extents
    return ContentFact(app, IndexList(symbol(said), extent, symbol(f"length({said})")))


def first_index_symbol(app: App) -> Polynomial:
    """Return the symbol for the first of the consecutive integers that a constant holds along an axis."""
    return symbol(_render_query(app.op, app))


def _render_query(name: str, app: App) -> str:
    return f"{name}({', '.join(str(arg.value if isinstance(arg, Lit) else arg) for arg in app.args)})"


def resolve_constant_index(index: Index, said: Iterable[ContentFact]) -> tuple[Formula, Index]:
    """Return the condition under which an element of a constant may be nonzero, and the index at which it is read: of
    equal elements, that of their representative."""
    found, inside = list(index), []
    for each in said:
        if isinstance(each.structure, BlockDiagonal) or each.app.op == "nonzero_indices":
            inside.append(each.structure.contains(*(index[axis] for axis in each.axes)))
        else:
            (axis,) = each.axes
            found[axis] = each.structure.select(each.structure.representative(found[axis]))
    return conjunction(*inside), tuple(found)


def apply_to_symbolic_list(name: str, args: Sequence[object]) -> Size:
    """Return the value of a scalar function of a list of indices, of which only the length is known.

    Raises:
        UnsupportedOperatorError: the function asks for more than the length.
    """
    if name == "length" and isinstance(args[0], SymbolicList):
        return args[0].length
    raise UnsupportedOperatorError(f"{name} of places of which only the number is known")
