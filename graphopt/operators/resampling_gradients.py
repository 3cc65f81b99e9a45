"""Gradients of operators that read each element from places of their own: resized and padded images, and slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from graphopt.base.dtype import DType
from graphopt.language.gradient import Gradient, gradient, output_gradient
from graphopt.language.terms import App, Term, TermLike, fn, integer, integers, op, real, string, tensor
from graphopt.operators.structural_gradients import axes, rank, reshaped_like, zeros

dy = output_gradient()
x = tensor("x")

# -- resized images ----------------------------------------------------------------------------------------------------

_coordinates, _rounding = string("coordinates"), string("rounding")
_HALF_PIXELS = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
_repeats_elements = fn.any_of(
    fn.all_of(fn.eq(_coordinates, "asymmetric"), fn.eq(_rounding, "floor")),
    *(
        fn.all_of(fn.eq(_coordinates, coordinates), fn.eq(_rounding, rounding))
        for coordinates in _HALF_PIXELS
        for rounding in ("round_prefer_floor", "round_prefer_ceil")
    ),
)
"""True for the modes in which an image that is a whole number of times as large has each element so often."""


def _block_sums(dims: int, *sizes: TermLike | None) -> Gradient:
    """Return the gradient of a Resize that repeats each element a whole number of times: the sum over its copies."""
    ratio = fn.floordiv(fn.shape(dy), fn.shape(x))
    split = [part for i in range(dims) for part in (fn.item(fn.shape(x), i), fn.item(ratio, i))]
    head = op.Resize(
        *(x, None, *sizes),
        mode="nearest",
        coordinate_transformation_mode=_coordinates,
        nearest_mode=_rounding,
        cubic_coeff_a=real("cubic"),
    )
    return gradient(
        head,
        fn.eq(rank, dims),
        fn.eq(fn.shape(dy), fn.shape(x) * ratio),
        _repeats_elements,
        x=op.ReduceSum(op.Reshape(dy, fn.concat(*split)), tuple(range(1, 2 * dims, 2)), keepdims=0),
    )


_WHOLE_SCALES = tuple(
    (1.0, 1.0, *factors)
    for count in (1, 2, 3)
    for factors in product((1.0, 2.0, 3.0, 4.0, 8.0), repeat=count)
    if count < 3 or len(set(factors)) == 1
)
"""Scales of images, in numbers: 2.1 may give the sizes that 2 gives, and repeats other elements."""

_ROI = tensor("roi")
_SCALES, _SIZES = tensor("scales"), tensor("sizes")
_SAMPLING: Mapping[str, Term] = {
    "mode": string("mode"),
    "coordinate_transformation_mode": _coordinates,
    "nearest_mode": _rounding,
    "cubic_coeff_a": real("cubic"),
    "exclude_outside": integer("exclude"),
    "antialias": integer("antialias"),
}


def _shares(axis: int, *, by_scales: bool) -> App:
    """Return how much of each input element each output element is made of along an axis: a resized unit matrix.

    Its rows are images of one line. ONNX Runtime copies an image of which no axis changes its size, whatever the scales
    are: so the line is doubled where `x` is no copy.
    """
    size = op.Gather(op.Shape(x), (axis,))
    unit = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0)))
    if by_scales:
        rows = op.Reshape(unit, op.Concat(size, (1, 1), size, axis=0))
        is_changed = op.Cast(op.Not(op.Equal(op.Shape(dy), op.Shape(x))), to=DType.FLOAT)
        lines = op.ReduceMax(is_changed, (0,), keepdims=1) + 1.0
        own = op.Slice(_SCALES, (axis,), (axis + 1,), (0,))
        resized = op.Resize(rows, None, op.Concat((1.0, 1.0), lines, own, axis=0), **_SAMPLING)
        resized = op.Squeeze(op.Slice(resized, (0,), (1,), (2,)), (1, 2))
    else:
        new = op.Gather(op.Shape(dy), (axis,))
        resized = op.Resize(unit, None, None, op.Concat(size, new, axis=0), **_SAMPLING)
    return op.Cast(resized, to=fn.dtype(x))


def _multiplied_along(value: Term, shares: Term, axis: int, dims: int) -> App:
    """Return a tensor of `dims` axes whose elements along one are replaced by the sums that a matrix says."""
    if axis == dims - 1:
        return value @ op.Transpose(shares, perm=(1, 0))
    if axis == dims - 2:
        return shares @ value
    swapped = (*range(axis), *range(axis + 1, dims), axis)
    back = (*range(axis), dims - 1, *range(axis, dims - 1))
    return op.Transpose(op.Transpose(value, perm=swapped) @ op.Transpose(shares, perm=(1, 0)), perm=back)


def _resized(dims: int) -> Iterator[Gradient]:
    """Yield the gradients of a Resize, which is linear, of one axis after the other: products of `dy` and the shares
    along each; of those of space alone where a batch and its channels are known to keep their sizes."""
    kept = [fn.eq(fn.item(fn.shape(x), axis), fn.item(fn.shape(dy), axis)) for axis in range(min(2, dims - 1))]
    for first, when in ((len(kept), kept), (0, [])):
        for operands in ((None, _SCALES), (_ROI, _SCALES), (None, None, _SIZES), (_ROI, None, _SIZES)):
            spread: Term = dy
            for axis in reversed(range(first, dims)):
                spread = _multiplied_along(spread, _shares(axis, by_scales=len(operands) == 2), axis, dims)
            yield gradient(
                op.Resize(x, *operands, extrapolation_value=real("beyond"), **_SAMPLING),
                fn.eq(fn.rank(x), dims),
                fn.ne(_coordinates, "tf_crop_and_resize"),
                *when,
                x=spread,
            )


RESIZE = (
    *(_block_sums(dims, None, _SIZES) for dims in (3, 4, 5)),
    *(_block_sums(len(scales), scales) for scales in _WHOLE_SCALES),
    *(each for dims in (2, 3, 4, 5) for each in _resized(dims)),
)

# -- slices, and elements at places ------------------------------------------------------------------------------------

_start, _end, _step = integers("starts"), integers("ends"), integers("steps")


def _by_axis(numbers: Term) -> App:
    """Return one number for each axis of `x`: those of the axes that a Slice names, and 0 for the others."""
    return fn.scatter(numbers, axes, rank)


_axis_sizes = fn.compose(fn.shape(x), fn.normalize_indices(axes, rank))
_first = fn.minimum(fn.maximum(fn.normalize_indices(_start, _axis_sizes), 0), _axis_sizes)
_before = _by_axis(_first)
_single_axis = fn.item(fn.normalize_indices(axes, rank), 0)
_to_front = fn.concat(_single_axis, fn.delete(fn.range(rank), _single_axis))
_strided = fn.item(_first, 0) + fn.range(fn.item(fn.shape(dy), _single_axis)) * fn.item(_step, 0)
_permuted_zeros = op.Transpose(zeros(op.Shape(x), x), perm=_to_front)

_slice = op.Slice(x, _start, _end, axes, _step)
_NUMBERED_SLICES = (
    gradient(
        _slice,
        fn.eq(_step, 1),
        x=op.Pad(dy, fn.concat(_before, fn.shape(x) - _before - fn.shape(dy))),
    ),
    gradient(  # every so many elements of one axis
        _slice,
        fn.eq(fn.length(_step), 1),
        fn.lt(0, _step),
        x=op.Transpose(
            op.ScatterND(
                _permuted_zeros,
                op.Unsqueeze(_strided, (-1,)),
                op.Transpose(dy, perm=_to_front),
            ),
            perm=fn.inverse(_to_front),
        ),
    ),
)

_PLACES = reshaped_like(op.Range(0, op.Size(x), 1), x)
"""The places of the elements of `x`, counted through."""


def _put_back(places: Term, **reduction: TermLike) -> App:
    """Return zeros like `x` with the elements of `dy` at the places that these were read from."""
    flat_zeros, flat = zeros(op.Reshape(op.Size(x), (1,)), x), (-1,)
    return reshaped_like(op.ScatterElements(flat_zeros, op.Reshape(places, flat), op.Reshape(dy, flat), **reduction), x)


_starts, _ends = tensor("starts"), tensor("ends")


def _consecutive() -> Gradient:
    """Return the gradient of a Slice without gaps, of axes of any size, from numbers that are known when the model
    runs: zeros before and behind."""
    start, length = op.Cast(_starts, to=DType.INT64), op.Gather(op.Shape(x), axes)
    first = op.Min(op.Max(op.Where(op.Less(start, 0), start + length, start), 0), length)
    before = op.ScatterElements(op.Shape(x) * 0, fn.normalize_indices(axes, rank), first)
    return gradient(
        op.Slice(x, _starts, _ends, axes, _step),
        fn.eq(_step, 1),
        x=op.Pad(dy, op.Concat(before, op.Shape(x) - before - op.Shape(dy), axis=0)),
    )


def _any_slice(*operands: Term) -> Gradient:
    return gradient(op.Slice(x, _starts, _ends, *operands), x=_put_back(op.Slice(_PLACES, _starts, _ends, *operands)))


SLICE = (
    *_NUMBERED_SLICES,
    _consecutive(),
    _any_slice(),
    _any_slice(tensor("axes")),
    _any_slice(tensor("axes"), tensor("steps")),
)

_pads, _padding, _mode = integers("pads"), tensor("value"), string("mode")
_half = fn.floordiv(fn.length(_pads), 2)


def _cropped(value: Term | None) -> Sequence[Gradient]:
    """Return the gradient of a Pad with a constant: what was added is cut off."""
    head, first = op.Pad(x, _pads, value, axes, mode="constant"), fn.slice(_pads, 0, _half)
    return (
        gradient(head, fn.le(0, _pads), x=op.Slice(dy, first, first + _axis_sizes, axes)),
        gradient(head, fn.le(0, _pads), x=op.Slice(dy, first, op.Gather(op.Shape(x), axes) + first, axes)),
    )


_any_pads = tensor("pads")


def _pad(value: Term | None, *axes: Term) -> tuple[Gradient, Gradient]:
    """Return the gradients of a Pad: with a constant the reverse Pad, else each element gets what was copied of it."""
    return (
        gradient(op.Pad(x, _any_pads, value, *axes, mode="constant"), x=op.Pad(dy, op.Neg(_any_pads), None, *axes)),
        gradient(
            op.Pad(x, _any_pads, value, *axes, mode=_mode),
            fn.ne(_mode, "constant"),
            x=_put_back(op.Pad(_PLACES, _any_pads, None, *axes, mode=_mode), reduction="add"),
        ),
    )


_values = (None, _padding)
PAD = (
    *(each for value in _values for each in _cropped(value)),
    *(each for value in _values for axes in ((), (tensor("axes"),)) for each in _pad(value, *axes)),
)

_kept = tensor("kept")
COMPRESS = (
    gradient(op.Compress(x, _kept), x=_put_back(op.Compress(_PLACES, _kept))),
    gradient(
        op.Compress(x, _kept, axis=integer("axis")), x=_put_back(op.Compress(_PLACES, _kept, axis=integer("axis")))
    ),
)
# -- grids and spectra -------------------------------------------------------------------------------------------------

_theta, _grid_size, _aligned = tensor("theta"), tensor("size"), integer("aligned")


def _affine_grid() -> Gradient:
    """Return the gradient of an AffineGrid: the products of `dy` and the grid that is neither turned nor moved."""
    dims = fn.item(fn.shape(_theta), 1)
    unit = op.Expand(op.EyeLike(op.ConstantOfShape(fn.concat(dims, dims + 1))), op.Shape(_theta))
    grid = op.AffineGrid(op.Cast(unit, to=fn.dtype(_theta)), _grid_size, align_corners=_aligned)
    flat = fn.concat(0, -1, dims)
    upstream = op.Transpose(op.Reshape(dy, flat), perm=(0, 2, 1))
    moved = op.ReduceSum(upstream, (-1,), keepdims=1)
    head = op.AffineGrid(_theta, _grid_size, align_corners=_aligned)
    return gradient(head, theta=op.Concat(upstream @ op.Reshape(grid, flat), moved, axis=-1))


_along = tensor("along")


def _spectrum(*operands: Term | None, axis: TermLike) -> Iterator[Gradient]:
    """Yield the gradients of a DFT, which has as many elements as its input unless it gives half of those of real
    numbers: the DFT the other way, without its division by their number."""
    length = op.Gather(op.Shape(x), axis)
    count = op.Cast(length, to=fn.dtype(x))
    forward = op.DFT(x, *operands, inverse=0, onesided=integer("onesided"))
    there = op.DFT(dy, length, *operands[1:], inverse=1) * count
    back = op.DFT(dy, *operands, inverse=0) / count
    for head, both in ((forward, there), (op.DFT(x, *operands, inverse=1, onesided=0), back)):
        yield gradient(head, fn.eq(fn.item(fn.shape(x), -1), 1), x=op.Slice(both, (0,), (1,), (-1,)))
        yield gradient(head, fn.eq(fn.item(fn.shape(x), -1), 2), x=both)


RESAMPLING_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    "Slice": SLICE,
    "Pad": PAD,
    "Resize": RESIZE,
    "Compress": COMPRESS,
    "AffineGrid": (_affine_grid(),),
    "DFT": (*_spectrum(axis=-2), *_spectrum(None, _along, axis=_along)),
}
