"""Where constants are zero, as `fn.live` and `fn.blocks` tell a rule: what is known to the prover, which sees none.

`fn.live("C", w)` is some places below C, in ascending order: an element of w that lies at no such place is 0.

`fn.blocks("M C", w)` is a whole number G, at least 1, that divides the sizes M and C: an element of w at (m, c) is 0
unless m and c lie in blocks of the same number, m // (M / G) = c // (C / G). That there is no greater such number, and
of what the sides of blocks are multiples, the prover does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.base.integers import Formula, Int, Size, eq, ge, quotient, symbol
from graphopt.base.places import Places
from graphopt.language.term import App, Lit


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


def zeros_of(app: App, extents: tuple[Size, ...]) -> Places | Blocks:
    """Return outside of what constants are zero, along axes of these sizes: how many places or blocks is not known."""
    said = f"{app.op}({', '.join(str(arg.value if isinstance(arg, Lit) else arg) for arg in app.args)})"
    if app.op == "live":
        (extent,) = extents
        return Places(symbol(said), extent, symbol(f"length({said})"))
    return Blocks(extents, symbol(said), (symbol(f"high({said})"), symbol(f"wide({said})")))
