"""Images computed in tiles of rows, one after the other, so that a run takes less memory.

A convolution is computed in tiles, each from the rows that its windows see, which overlap. Then the operators that
make those rows are computed for them alone, a Slice after the other, so that none of their results is in memory as a
whole. The rows that two tiles see are computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphopt.rule import App, Rule, Term, TermLike, const, fn, integer, integers, op, pointwise, tensor
from graphopt.rules.splitting import BINARY, COUNTS

# Axes: N batch, C channels, H height, W width; M output channels, K rows of the kernel, L its columns.

x, y, u = tensor("x", "N C H W"), tensor("y", "N C H W"), tensor("u", "N D H W")
starts, ends, pads, dilations = integers("starts"), integers("ends"), integers("pads"), integers("dilations")
H = fn.size("H")
top, left, bottom, right = (fn.item(pads, i) for i in range(4))
STRIDES = {1: "", 2: "strided_"}
"""Words for strides in the names of rules."""
f = pointwise("f")
WHY_TILES = "Tiles of rows that are computed one after the other take less memory at a time."
WHY_ROWS = "Rows that alone are read take less memory than the whole."


def _slice(value: Term, begin: TermLike, end: Term) -> App:
    """Return the rows of an image from one on and before another."""
    return op.Slice(value, fn.concat(begin), fn.concat(end), (2,), (1,))


def _rows(value: Term) -> App:
    """Return the rows of an image that a part of it reads."""
    return op.Slice(value, starts, ends, (2,), (1,))


@dataclass(frozen=True)
class _Window:
    """An operator whose rows are windows over the padded rows of x."""

    name: str
    stride: int
    kernel: Term
    """Rows of the kernel."""
    build: Callable[[Term, TermLike], App]
    """Return the operator on an image, with pads."""
    counts: Sequence[int] = COUNTS
    """Numbers of tiles."""

    @property
    def reach(self) -> App:
        """The number of rows between the first and the last that a window sees."""
        return (self.kernel - 1) * fn.item(dilations, 0)

    @property
    def length(self) -> App:
        """The number of rows of the result."""
        return (H + top + bottom - self.reach - 1) // self.stride + 1

    def first_seen(self, begin: TermLike) -> App:
        """Return the row of x that the rows of the result from one on see first; below 0 in the padding."""
        return begin * self.stride - top

    def end_seen(self, end: Term) -> App:
        """Return the row of x behind the last one that the rows of the result before one see."""
        return (end - 1) * self.stride - top + self.reach + 1

    def part(self, begin: TermLike, end: Term) -> App:
        """Return some rows of the result, computed from what they see."""
        first, last = self.first_seen(begin), self.end_seen(end)
        seen = _slice(x, fn.maximum(first, 0), fn.minimum(last, H))
        return self.build(seen, fn.concat(fn.maximum(0 - first, 0), left, fn.maximum(last - H, 0), right))

    def sees_something(self, begin: TermLike, end: Term) -> tuple[App, ...]:
        """Return the conditions that some rows of the result see some of x, not padding alone."""
        return fn.lt(self.first_seen(begin), H), fn.lt(0, self.end_seen(end))

    def rules(self) -> Iterator[Rule]:
        """Yield the rules that compute it in tiles, and the one that computes some rows alone."""
        whole = self.build(x, pads)
        for count in self.counts:
            each = (self.length + (count - 1)) // count
            tiles = list(pairwise([*(i * each for i in range(count)), self.length]))
            yield Rule(
                f"compute_{self.name}_by_tiles_in_{count}_parts",
                whole,
                op.Concat(*(self.part(*tile) for tile in tiles), axis=2),
                when=(
                    fn.le(0, pads),
                    fn.lt(0, each),
                    fn.lt((count - 1) * each, self.length),
                    *(condition for tile in tiles for condition in self.sees_something(*tile)),
                ),
                why=WHY_TILES,
            )
        begin, end = fn.item(starts, 0), fn.minimum(fn.item(ends, 0), self.length)
        yield Rule(
            f"compute_rows_of_{self.name}",
            _rows(whole),
            self.part(begin, end),
            when=(
                fn.le(0, pads),
                fn.le(0, starts),
                fn.lt(starts, ends),
                fn.lt(begin, self.length),
                *self.sees_something(begin, end),
            ),
            why=WHY_ROWS,
        )


def _windows() -> Iterator[_Window]:
    w, b, group, kernel = const("w", "M I K L"), const("b", "M", default=0), integer("group"), integers("kernel")
    for stride, what in STRIDES.items():
        strides = (stride, stride)

        def conv(value: Term, around: TermLike, strides: tuple[int, int] = strides) -> App:
            return op.Conv(value, w, b, group=group, strides=strides, pads=around, dilations=dilations)

        def pool(value: Term, around: TermLike, strides: tuple[int, int] = strides) -> App:
            return op.MaxPool(value, kernel_shape=kernel, strides=strides, pads=around, dilations=dilations)

        yield _Window(f"{what}conv", stride, fn.size("K"), conv)
        if stride > 1:
            yield _Window(f"{what}max_pool", stride, fn.item(kernel, 0), pool, (2,))


def _tiled_sum(name: str, count: int) -> Rule:
    """Return the rule that computes an operator on two images in tiles: residual blocks end in one."""
    g, each = BINARY[name], (H + (count - 1)) // count
    cuts = [*(i * each for i in range(count)), H]
    return Rule(
        f"compute_{name}_by_tiles_in_{count}_parts",
        g(x, y),
        op.Concat(*(g(_slice(x, *tile), _slice(y, *tile)) for tile in pairwise(cuts)), axis=2),
        when=fn.lt((count - 1) * each, H),
        why=WHY_TILES,
    )


TRADES: tuple[Rule, ...] = (
    *(rule for window in _windows() for rule in window.rules()),
    *(_tiled_sum(name, count) for name in BINARY for count in COUNTS),
    Rule("compute_rows_of_pointwise", _rows(f(x)), f(_rows(x)), why=WHY_ROWS),
    *(
        Rule(f"compute_rows_of_{name}", _rows(g(x, y)), g(_rows(x), _rows(y)), why=WHY_ROWS)
        for name, g in BINARY.items()
    ),
    Rule("compute_rows_of_concat", _rows(op.Concat(x, u, axis=1)), op.Concat(_rows(x), _rows(u), axis=1), why=WHY_ROWS),
)
