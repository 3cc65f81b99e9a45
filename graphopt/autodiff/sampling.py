"""GridSample written out: the four pixels around each place, and their shares."""

from __future__ import annotations

from itertools import product

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node
from graphopt.language.terms import App, Term, op, tensor

IMAGES, GRID = tensor("input_0"), tensor("input_1")
_ATTRIBUTES = ("mode", "padding_mode", "align_corners")
_LINEAR = ("linear", "bilinear")
"""Names of the mode, from opset 20 on and before."""


def interpolated_images(graph: Graph, node: Node) -> Term | None:
    """Return the result of a GridSample over its operands `IMAGES` and `GRID`; None of other than images, between whose
    pixels it interpolates linearly, or that go on in a mirror."""
    mode, padding, is_aligned = (schemas.attribute_or_default(node, name) for name in _ATTRIBUTES)
    images = None if node.inputs[0] is None else graph.shape(node.inputs[0])
    if images is None or len(images) != 4 or mode not in _LINEAR or padding == "reflection":
        return None
    x, y = (_Axis(i, is_aligned=bool(is_aligned), is_clipped=padding == "border") for i in (0, 1))
    channels = op.Slice(op.Shape(IMAGES), (0,), (2,))
    pixels, width = op.Reshape(IMAGES, (0, 0, -1)), op.Gather(op.Shape(IMAGES), 3)
    parts = []
    for lower, right in product((False, True), repeat=2):
        index = op.Reshape(y.place(behind=lower) * width + x.place(behind=right), (0, 1, -1))
        share = op.Reshape(op.CastLike(x.share(behind=right) * y.share(behind=lower), IMAGES), (0, 1, -1))
        parts.append(op.GatherElements(pixels, op.Expand(index, op.Concat(channels, (1,), axis=0)), axis=2) * share)
    return op.Reshape(op.Sum(*parts), op.Concat(channels, op.Slice(op.Shape(GRID), (1,), (3,)), axis=0))


class _Axis:
    """Where the grid takes images along one axis, counted in pixels."""

    def __init__(self, coordinate: int, *, is_aligned: bool, is_clipped: bool) -> None:
        said = op.Gather(GRID, coordinate, axis=-1)
        last = op.CastLike(op.Gather(op.Shape(IMAGES), 3 - coordinate) - 1, GRID)
        at = (said + 1) * (last * 0.5) if is_aligned else (said + 1) * ((last + 1) * 0.5) - 0.5
        self.last = last
        self.at: Term = op.Clip(at, op.CastLike(0.0, GRID), last) if is_clipped else at

    def place(self, *, behind: bool) -> App:
        """Return the number of the pixel before each place, or of that behind it, if there is such a pixel."""
        inside = op.Clip(self._pixel(behind=behind), op.CastLike(0.0, GRID), self.last)
        return op.Cast(inside, to=DType.INT64)

    def share(self, *, behind: bool) -> App:
        """Return the share that a pixel has, 0 where there is none."""
        pixel, part = self._pixel(behind=behind), self.at - op.Floor(self.at)
        is_there = op.Not(op.Or(pixel < 0, pixel > self.last))
        return (part if behind else 1 - part) * op.CastLike(is_there, GRID)

    def _pixel(self, *, behind: bool) -> Term:
        return op.Floor(self.at) + 1 if behind else op.Floor(self.at)
