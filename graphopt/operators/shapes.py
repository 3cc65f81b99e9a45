"""Shapes of outputs where sizes are symbols: what `onnx.shape_inference`, which knows only numbers, leaves open.

One function per operator, in the table `SHAPES`; each returns what it can tell of the shape of each output. Names
stand for any size, 0 included, and a claim holds wherever the node is defined. Two things are taken for undefined,
as in ONNX's own inference: a window longer than its padded axis; and a symbolic element of Reshape's target that is 0
(which Reshape reads as "copy"), where the element counts agree, so that it can concern only an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import TypeAlias

from graphopt.base.sizes import Dim, divide, least, lower_bound, minimum_of, product
from graphopt.base.types import DType, Shape
from graphopt.ir import ops
from graphopt.ir.graph import Attribute, Graph, Node

Open: TypeAlias = "tuple[Dim | None, ...]"
"""A shape with sizes that are not known."""


@dataclass(frozen=True, slots=True)
class Operands:
    """A node and what is known of the values it reads."""

    graph: Graph
    node: Node

    def __len__(self) -> int:
        return len(self.node.inputs)

    def present(self, index: int) -> bool:
        return index < len(self) and self.node.inputs[index] is not None

    def dtype(self, index: int) -> DType | None:
        found = self.graph.tensor_type(self.node.inputs[index]) if index < len(self) else None
        return None if found is None else found.dtype

    def shape(self, index: int) -> Shape | None:
        found = self.graph.tensor_type(self.node.inputs[index]) if index < len(self) else None
        return None if found is None else found.shape

    def contents(self, index: int) -> tuple[Dim, ...] | None:
        """The elements of an integer or boolean tensor of rank <= 1."""
        value = self.node.inputs[index] if index < len(self) else None
        constant = self.graph.constant(value)
        if constant is not None and constant.dtype is DType.BOOL and len(constant.shape) <= 1 and constant.is_small:
            return tuple(int(element) for element in constant.numpy().ravel())
        return self.graph.known_contents(value)

    def ints(self, index: int) -> tuple[int, ...] | None:
        """The elements where they are plain numbers."""
        return plain(self.contents(index))

    def optional_ints(self, index: int, default: Sequence[int]) -> tuple[int, ...] | None:
        """The elements of an input that may be absent."""
        return self.ints(index) if self.present(index) else tuple(default)

    def attribute(self, name: str) -> Attribute | None:
        return ops.attribute(self.node, self.graph, name)

    def integer(self, name: str, default: int = 0) -> int:
        found = self.attribute(name)
        return found if isinstance(found, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        found = self.attribute(name)
        return tuple(i for i in found if isinstance(i, int)) if isinstance(found, tuple) else None


def plain(elements: Iterable[Dim | None] | None) -> tuple[int, ...] | None:
    """The sizes if all are plain numbers."""
    elements = None if elements is None else tuple(elements)
    if elements is None or not all(isinstance(element, int) for element in elements):
        return None
    return tuple(element for element in elements if isinstance(element, int))


def broadcast_size(a: Dim | None, b: Dim | None) -> Dim | None:
    """The size of an axis that two operands share, None where it depends on which of them is 1."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    for one, other in ((a, b), (b, a)):
        if one is not None and (lower_bound(one) or 0) >= 2:
            return one
        if one == 0:
            return 0
        parts = minimum_of(other)
        if parts and one in parts and (lower_bound(parts[one == parts[0]]) or 0) >= 1:
            return one  # n with min(n, c), c >= 1: equal; or n > c, which goes together only for c = 1
    return None


def broadcast(shapes: Sequence[Open]) -> Open:
    """The shape of an elementwise operator's result."""
    result: Open = ()
    for shape in shapes:
        pairs = zip_longest(reversed(result), reversed(shape), fillvalue=1)
        result = tuple(reversed([broadcast_size(a, b) for a, b in pairs]))
    return result


def normalised(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


# -- one function per operator, in alphabetical order ------------------------------------------------------------------


def _elementwise(k: Operands) -> list[Open] | None:
    shapes = [k.shape(index) for index in range(len(k))]
    known = [shape for shape in shapes if shape is not None]
    return [broadcast(known)] if len(known) == len(shapes) else None


def _concat(k: Operands) -> list[Open] | None:
    shapes = [k.shape(index) for index in range(len(k))]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    axis = normalised(k.integer("axis"), len(known[0]))
    total: Dim = 0
    for shape in known:
        total = shape[axis] + total
    return [tuple(total if i == axis else None for i in range(len(known[0])))]


def _constant_of_shape(k: Operands) -> list[Open] | None:
    shape = k.contents(0)
    return None if shape is None else [shape]


def window(size: Dim, kernel: int, stride: int, before: int, after: int) -> Dim:
    """Positions of a dilated kernel on a padded axis."""
    return (size + (before + after - kernel + stride)) // stride


def _sliding(k: Operands) -> list[Open] | None:
    """Conv and the pools."""
    shape, kernel = k.shape(0), k.integers("kernel_shape")
    if shape is None or kernel is None or k.integer("ceil_mode"):
        return None
    spatial, count = shape[2:], len(kernel)
    strides, dilations = k.integers("strides") or (1,) * count, k.integers("dilations") or (1,) * count
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    match k.attribute("auto_pad"):
        case "NOTSET" | None:
            pads = k.integers("pads") or (0,) * (2 * count)
        case "VALID":
            pads = (0,) * (2 * count)
        case _:  # SAME_UPPER, SAME_LOWER
            sizes = [(size + stride - 1) // stride for size, stride in zip(spatial, strides, strict=True)]
            return [(None, None, *sizes)] * len(k.node.names)
    sides = zip(spatial, extents, strides, pads[:count], pads[count:], strict=True)
    return [(None, None, *(window(*side) for side in sides))] * len(k.node.names)


def _conv_transpose(k: Operands) -> list[Open] | None:
    shape, kernel = k.shape(0), k.integers("kernel_shape")
    if shape is None or kernel is None or k.integers("output_shape") or k.attribute("auto_pad") not in ("NOTSET", None):
        return None
    count = len(kernel)
    strides, dilations = k.integers("strides") or (1,) * count, k.integers("dilations") or (1,) * count
    extra, pads = k.integers("output_padding") or (0,) * count, k.integers("pads") or (0,) * (2 * count)
    sizes = [
        (size - 1) * stride + (extent - 1) * dilation + 1 + more - before - after
        for size, stride, extent, dilation, more, before, after in zip(
            shape[2:], strides, kernel, dilations, extra, pads[:count], pads[count:], strict=True
        )
    ]
    return [(None, None, *sizes)]


def _depth_to_space(k: Operands) -> list[Open] | None:
    shape, block = k.shape(0), k.integer("blocksize")
    if shape is None or len(shape) != 4 or block <= 0:
        return None
    N, C, H, W = shape
    return [(N, C // (block * block), H * block, W * block)]


def _space_to_depth(k: Operands) -> list[Open] | None:
    shape, block = k.shape(0), k.integer("blocksize")
    if shape is None or len(shape) != 4 or block <= 0:
        return None
    N, C, H, W = shape
    return [(N, C * (block * block), H // block, W // block)]


def _expand(k: Operands) -> list[Open] | None:
    shape, target = k.shape(0), k.contents(1)
    return None if shape is None or target is None else [broadcast([shape, target])]


def _flatten(k: Operands) -> list[Open] | None:
    shape = k.shape(0)
    if shape is None:
        return None
    axis = normalised(k.integer("axis", 1), len(shape))
    return [(product(shape[:axis]), product(shape[axis:]))]


def _pad(k: Operands) -> list[Open] | None:
    shape, pads = k.shape(0), k.contents(1)
    if shape is None or pads is None:
        return None
    axes = k.optional_ints(3, range(len(shape)))
    if axes is None or len(pads) != 2 * len(axes):
        return None
    sizes: list[Dim] = list(shape)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        sizes[axis] = sizes[axis] + before + after
    return [tuple(sizes)]


def _range(k: Operands) -> list[Open] | None:
    start, limit, step = k.contents(0), k.contents(1), k.ints(2)
    if start is None or limit is None or not step or step[0] <= 0:
        return None
    distance = limit[0] - start[0]
    if lower_bound(distance) is None:
        if lower_bound(start[0]) is None or lower_bound(limit[0]) is None:
            return None
        distance = limit[0] - least(limit[0], start[0])
    return [((distance + (step[0] - 1)) // step[0],)] if (lower_bound(distance) or 0) >= 0 else None


def _reshape(k: Operands) -> list[Open] | None:
    shape, target = k.shape(0), k.contents(1)
    if target is None:
        return None
    sizes: list[Dim | None] = list(target)
    if not k.integer("allowzero"):
        copied = [shape[i] if shape is not None and i < len(shape) else None for i in range(len(target))]
        sizes = [copied[i] if size == 0 else size for i, size in enumerate(sizes)]
    if -1 in target and shape is not None:
        rest = [size for size in sizes if size != -1]
        known = [size for size in rest if size is not None]
        sizes[target.index(-1)] = _remaining(shape, known) if len(known) == len(rest) else None
    sizes = [None if size == -1 else size for size in sizes]
    if shape is not None and _same_count(shape, sizes):
        return [tuple(sizes)]
    as_it_stands = [size == -1 or _never_copies(k, i, target) for i, size in enumerate(target)]
    certain = [all(as_it_stands) if size == -1 else as_it_stands[i] for i, size in enumerate(target)]
    return [tuple(size if sure else None for size, sure in zip(sizes, certain, strict=True))]


def _remaining(shape: Shape, others: Sequence[Dim]) -> Dim | None:
    """What -1 stands for: the element count divided by the other sizes, which are not 0 or the node is undefined."""
    dividend, divisor = list(shape), []
    for size in others:
        if size in dividend:
            dividend.remove(size)
        else:
            divisor.append(size)
    whole, part = product(dividend), product(divisor)
    return None if part == 0 or lower_bound(part) is None else whole // part


def _same_count(shape: Shape, sizes: Sequence[Dim | None]) -> bool:
    known = [size for size in sizes if size is not None]
    return len(known) == len(sizes) and product(known) == product(shape)


def _never_copies(k: Operands, index: int, target: Sequence[Dim]) -> bool:
    """Whether an element of Reshape's target is a size as it stands, and neither "copy" nor "the rest"."""
    size, shape = target[index], k.shape(0)
    if isinstance(size, int):
        return True
    if (lower_bound(size) or 0) >= 1:
        return True
    if lower_bound(size) is None:
        return False
    return bool(k.integer("allowzero")) or (
        shape is not None and index < len(shape) and divide(shape[index], size) is not None
    )


def _resize(k: Operands) -> list[Open] | None:
    shape = k.shape(0)
    if shape is None or k.attribute("keep_aspect_ratio_policy") not in ("stretch", None):
        return None
    scales, sizes = (1, None) if k.node.op == "Upsample" else (2, 3)
    axes = k.integers("axes") or tuple(range(len(shape)))
    result: list[Dim | None] = list(shape)
    if sizes is not None and k.present(sizes):
        wanted: Sequence[Dim | None] | None = k.contents(sizes)
    else:
        constant = k.graph.constant(k.node.inputs[scales]) if k.present(scales) else None
        if constant is None or not constant.is_small or k.attribute("coordinate_transformation_mode") == _CROP:
            return None
        wanted = [
            _scaled(shape[axis], float(scale)) for axis, scale in zip(axes, constant.numpy().ravel(), strict=False)
        ]
    if wanted is None or len(wanted) != len(axes):
        return None
    for axis, size in zip(axes, wanted, strict=True):
        result[axis] = size
    return [tuple(result)]


_CROP = "tf_crop_and_resize"


def _scaled(size: Dim, scale: float) -> Dim | None:
    """floor(size × scale) for a scale that floating point holds exactly."""
    ratio = Fraction(scale)
    return size * ratio.numerator // ratio.denominator if ratio > 0 and ratio.denominator <= 64 else None


def slice_range(size: int, start: int, end: int, step: int) -> range:
    """The indices that Slice takes of an axis; unlike in Python, a start before the first one is the first one.

    As in ONNX Runtime, an end in `ENDLESS` is beyond the axis in either direction.
    """
    end = -size - 1 if step < 0 and end in ENDLESS else end
    start, end = normalised(start, size), normalised(end, size)
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def slice_size(size: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """How many indices Slice takes of an axis; None where that cannot be told."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(slice_range(size, start, end, step))
    if step < 0:
        backwards = start == -1 and isinstance(end, int) and (end <= -_ENDLESS or end in ENDLESS)
        return (size + (-step - 1)) // -step if backwards else None
    first, last = _clamped(start, size), _clamped(end, size)
    if first is None or last is None:
        return None
    return (last - least(last, first) + (step - 1)) // step


ENDLESS = (2**31 - 1, 2**63 - 1)
"""Ends of Slice that ONNX Runtime takes for "to the end" also where it goes backwards, against the ONNX text."""
_ENDLESS = 2**31 - 1
"""What exporters write for "to the end", or more: no axis is that long."""


def _clamped(index: Dim, size: Dim) -> Dim | None:
    """An index of Slice, counted from the front and kept within the axis."""
    if isinstance(index, int) and abs(index) >= _ENDLESS:
        return size if index > 0 else 0
    bound = lower_bound(index)
    if bound is not None and bound >= 0:
        return least(index, size)
    if (lower_bound(-index) or 0) >= 1:
        return size - least(size, -index)
    return None


def slices(k: Operands) -> list[tuple[int, Dim, Dim, int]] | None:
    """Axis, start, end and step of every axis that a Slice names; None where they are not known."""
    shape, starts, ends = k.shape(0), k.contents(1), k.contents(2)
    if shape is None or starts is None or ends is None:
        return None
    axes = k.optional_ints(3, range(len(starts)))
    steps = k.optional_ints(4, (1,) * len(starts))
    if axes is None or steps is None or not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):  # a node that cannot be
        return None
    return [(normalised(a, len(shape)), s, e, t) for a, s, e, t in zip(axes, starts, ends, steps, strict=True)]


def _slice(k: Operands) -> list[Open] | None:
    shape, parts = k.shape(0), slices(k)
    if shape is None:
        return None
    if parts is None:  # the axes that are not touched keep their size
        axes = k.optional_ints(3, range(len(shape)))
        touched = None if axes is None else {normalised(axis, len(shape)) for axis in axes}
        return None if touched is None else [tuple(None if i in touched else size for i, size in enumerate(shape))]
    result: list[Dim | None] = list(shape)
    for axis, start, end, step in parts:
        result[axis] = slice_size(shape[axis], start, end, step)
    return [tuple(result)]


def _split(k: Operands) -> list[Open] | None:
    shape = k.shape(0)
    if shape is None:
        return None
    axis, count = normalised(k.integer("axis"), len(shape)), len(k.node.names)
    sizes: Sequence[Dim | None] | None = k.contents(1) if k.present(1) else None
    if not k.present(1):
        even = divide(shape[axis], count)
        chunk = even if even is not None else (shape[axis] + (count - 1)) // count
        sizes = [chunk] * count if even is not None else [chunk, *[None] * (count - 1)]
    if sizes is None or len(sizes) != count:
        return None
    return [tuple(size if i == axis else own for i, own in enumerate(shape)) for size in sizes]


def _tile(k: Operands) -> list[Open] | None:
    shape, repeats = k.shape(0), k.contents(1)
    if shape is None or repeats is None or len(shape) != len(repeats):
        return None
    return [tuple(size * repeat for size, repeat in zip(shape, repeats, strict=True))]


def _top_k(k: Operands) -> list[Open] | None:
    shape, count = k.shape(0), k.contents(1)
    if shape is None or count is None:
        return None
    axis = normalised(k.integer("axis", -1), len(shape))
    return [tuple(count[0] if i == axis else size for i, size in enumerate(shape))] * 2


def _matmul(k: Operands) -> list[Open] | None:
    left, right = k.shape(0), k.shape(1)
    if left is None or right is None or min(len(left), len(right)) < 2:
        return None
    return [(*broadcast([left[:-2], right[:-2]]), left[-2], right[-1])]


SHAPES: Mapping[str, Callable[[Operands], list[Open] | None]] = {
    **dict.fromkeys(ops.ELEMENTWISE_BINARY - {"PRelu"}, _elementwise),
    **dict.fromkeys(("Where", "Sum", "Max", "Min", "Mean"), _elementwise),
    **dict.fromkeys(("Conv", "MaxPool", "AveragePool", "LpPool"), _sliding),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "MatMul": _matmul,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Tile": _tile,
    "TopK": _top_k,
    "Upsample": _resize,
}
