"""Gradients of operators that move elements, reduce along axes, or normalize."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphopt.base.dtype import DType
from graphopt.language.gradient import ZERO, Gradient, gradient, output_gradient
from graphopt.language.terms import (
    App,
    OperatorBuilder,
    Term,
    TermLike,
    attributes,
    fn,
    integer,
    integers,
    op,
    real,
    tensor,
)

dy = output_gradient()
x, scale, bias, indices, updates = (tensor(name) for name in ("x", "scale", "bias", "indices", "updates"))
axes, axis, perm = integers("axes"), integer("axis"), integers("perm")
epsilon = real("epsilon")
rest = attributes("rest")
rank = fn.rank(x)


def like(value: Term, model: Term) -> App:
    """Return a tensor repeated to the shape of another."""
    return op.Expand(value, op.Shape(model))


def reshaped_like(value: Term, model: Term) -> App:
    """Return the elements of a tensor in the shape of another."""
    return op.Reshape(value, op.Shape(model))


def zeros(shape: Term, model: Term) -> App:
    """Return zeros of the element type of another tensor."""
    return op.Cast(op.ConstantOfShape(shape), to=fn.dtype(model))


# -- views and movements -----------------------------------------------------------------------------------------------


def _gather_rows(scattered: Callable[[Term, Term, Term], App]) -> App:
    """Return the gradient of a Gather, whose rows are added up where they were taken: the axis comes first and goes
    back."""
    count, place = fn.rank(indices), fn.normalize_indices(axis, rank)
    others = fn.delete(fn.range(rank), place)
    first = fn.concat(place, others)
    picked = fn.range(count) + place
    rows = op.Transpose(dy, perm=fn.concat(picked, fn.delete(fn.range(fn.rank(dy)), picked)))
    table = zeros(op.Shape(op.Transpose(x, perm=first)), x)
    return op.Transpose(scattered(table, indices, rows), perm=fn.inverse(first))


def _scatter_rows(table: Term, indices: Term, rows: Term) -> App:
    return op.ScatterND(table, op.Cast(op.Unsqueeze(indices, (-1,)), to=DType.INT64), rows, reduction="add")


def _multiply_one_hot(table: Term, indices: Term, rows: Term) -> App:
    """Return the sum of the rows of each index by a product of matrices: opsets before 16 cannot add up in place."""
    length = op.Gather(op.Shape(table), 0)
    chosen = op.Cast(
        op.OneHot(op.Reshape(indices, (-1,)), length, op.Cast((0, 1), to=DType.FLOAT), axis=0), to=fn.dtype(x)
    )
    flat = op.Reshape(rows, op.Concat(op.Shape(op.Reshape(indices, (-1,))), (-1,), axis=0))
    return reshaped_like(chosen @ flat, table)


def _repeated(dims: int) -> Gradient:
    """Return the gradient of a Tile of so many axes: the sum over the copies."""
    repeats = integers("repeats")
    split = [part for i in range(dims) for part in (fn.item(repeats, i), fn.item(fn.shape(x), i))]
    copies = tuple(range(0, 2 * dims, 2))
    return gradient(
        op.Tile(x, repeats),
        fn.eq(rank, dims),
        x=op.ReduceSum(op.Reshape(dy, fn.concat(*split)), copies, keepdims=0),
    )


_shuffled = fn.concat(0, 1, 3, 5, 2, 4)


def _columns_first(blocksize: Term) -> App:
    """Return the gradient of a DepthToSpace in the mode CRD, from which it takes each block back into channels."""
    sizes = fn.shape(x)
    height, width = fn.item(sizes, 2), fn.item(sizes, 3)
    channels = fn.floordiv(fn.item(sizes, 1), blocksize * blocksize)
    blocks = op.Reshape(dy, fn.concat(-1, channels, height, blocksize, width, blocksize))
    return reshaped_like(op.Transpose(blocks, perm=_shuffled), x)


_blocksize, _mode = integer("blocksize"), "DCR"
_taken = op.GatherElements(x, indices, axis=axis)
_lengths = tensor("lengths")
MOVEMENT_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    "Reshape": (gradient(op.Reshape(x, tensor("shape"), rest), x=reshaped_like(dy, x)),),
    "Flatten": (gradient(op.Flatten(x, rest), x=reshaped_like(dy, x)),),
    "Squeeze": (gradient(op.Squeeze(x, integers("axes")), x=reshaped_like(dy, x)),),
    "Unsqueeze": (gradient(op.Unsqueeze(x, integers("axes")), x=reshaped_like(dy, x)),),
    "Transpose": (gradient(op.Transpose(x, perm=perm), x=op.Transpose(dy, perm=fn.inverse(perm))),),
    "Expand": (gradient(op.Expand(x, tensor("shape")), x=dy),),
    "Tile": tuple(map(_repeated, range(1, 7))),
    "Gather": (
        gradient(op.Gather(x, indices, axis=axis), x=_gather_rows(_scatter_rows)),
        gradient(op.Gather(x, indices, axis=axis), x=_gather_rows(_multiply_one_hot)),
    ),
    "GatherElements": (
        gradient(_taken, x=op.ScatterElements(zeros(op.Shape(x), x), indices, dy, axis=axis, reduction="add")),
    ),
    "GatherND": (
        gradient(
            op.GatherND(x, indices, batch_dims=0),
            x=op.ScatterND(zeros(op.Shape(x), x), indices, dy, reduction="add"),
        ),
    ),
    "ScatterElements": (
        gradient(
            op.ScatterElements(x, indices, updates, axis=axis, reduction="none"),
            x=op.ScatterElements(dy, indices, zeros(op.Shape(updates), x), axis=axis),
            updates=op.GatherElements(dy, indices, axis=axis),
        ),
        gradient(
            op.ScatterElements(x, indices, updates, axis=axis, reduction="add"),
            x=dy,
            updates=op.GatherElements(dy, indices, axis=axis),
        ),
    ),
    "ScatterND": (
        gradient(
            op.ScatterND(x, indices, updates, reduction="none"),
            x=op.ScatterND(dy, indices, zeros(op.Shape(updates), x)),
            updates=op.GatherND(dy, indices),
        ),
        gradient(op.ScatterND(x, indices, updates, reduction="add"), x=dy, updates=op.GatherND(dy, indices)),
    ),
    "DepthToSpace": (
        gradient(op.DepthToSpace(x, blocksize=_blocksize, mode=_mode), x=op.SpaceToDepth(dy, blocksize=_blocksize)),
        gradient(op.DepthToSpace(x, blocksize=_blocksize, mode="CRD"), x=_columns_first(_blocksize)),
    ),
    "SpaceToDepth": (
        gradient(op.SpaceToDepth(x, blocksize=_blocksize), x=op.DepthToSpace(dy, blocksize=_blocksize, mode=_mode)),
    ),
    "Trilu": (
        gradient(op.Trilu(x, rest), x=op.Trilu(dy, rest)),
        gradient(op.Trilu(x, tensor("k"), rest), x=op.Trilu(dy, tensor("k"), rest)),
    ),
    "ReverseSequence": (gradient(op.ReverseSequence(x, _lengths, rest), x=op.ReverseSequence(dy, _lengths, rest)),),
    "CumSum": (
        gradient(
            op.CumSum(x, tensor("along"), exclusive=integer("exclusive"), reverse=integer("reverse")),
            x=op.CumSum(dy, tensor("along"), exclusive=integer("exclusive"), reverse=1 - integer("reverse")),
        ),
    ),
}


SHAPE_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    name: (gradient(OperatorBuilder(name)(x, rest), x=ZERO),)
    for name in ("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Hardmax")
}
"""Gradients of operators that read the shape of their input, draw by it, or choose: nothing flows back."""


def concatenation_gradient(count: int) -> tuple[Gradient, ...]:
    """Return the gradient of a Concat of `count` operands: each gets its own part, which is cut by numbers or, where
    sizes are open, by the shapes of the operands."""
    operands = tuple(tensor(f"x_{i}") for i in range(count))
    place = fn.normalize_indices(axis, fn.rank(dy))
    terms: dict[str, Term] = {}
    start: TermLike = 0
    for hole in operands:
        end = fn.add(start, fn.item(fn.shape(hole), place))
        terms[hole.name] = op.Slice(dy, fn.concat(start), fn.concat(end), fn.concat(axis))
        start = end
    lengths = (op.Gather(op.Shape(hole), fn.concat(axis)) for hole in operands)
    parts = op.Split.split(count, dy, op.Concat(*lengths, axis=0), axis=axis)
    head = op.Concat(*operands, axis=axis)
    return (
        gradient(head, **terms),
        gradient(head, **{hole.name: part for hole, part in zip(operands, parts, strict=True)}),
    )


def split_gradient(count: int) -> tuple[Gradient, ...]:
    """Return the gradient of a Split into `count` parts: they are joined again."""
    joined = op.Concat(*map(output_gradient, range(count)), axis=axis)
    heads = (
        op.Split.split(count, x, tensor("lengths"), axis=axis),
        op.Split.split(count, x, rest, axis=axis),
    )
    return tuple(gradient(head, x=joined) for head, *_ in heads)


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduction(name: str, gradient_of: Callable[[Term, Term], Term], *when: Term) -> tuple[Gradient, ...]:
    """Return the gradient of a reduction, given as a function of its result and of `dy`, both with the axes kept."""

    def with_axes_kept(keepdims: int) -> Gradient:
        head = OperatorBuilder(name)(x, axes, keepdims=keepdims)
        kept, upstream = (head, dy) if keepdims else (op.Unsqueeze(head, axes), op.Unsqueeze(dy, axes))
        return gradient(head, *when, x=gradient_of(kept, upstream))

    return with_axes_kept(1), with_axes_kept(0)


_reduced_count = fn.product(fn.compose(fn.shape(x), fn.normalize_indices(axes, rank)))


def _share_gradient(_: Term, upstream: Term) -> Term:
    """Return the gradient of a mean of a known number of elements."""
    return like(upstream * fn.truediv(1, _reduced_count), x)


def _mean_gradient(mean: Term, upstream: Term) -> Term:
    count = op.Cast(op.Div(op.Size(x), op.Size(mean)), to=fn.dtype(x))
    return like(upstream / count, x)


def _extremum_gradient(extremum: Term, upstream: Term) -> Term:
    """Return the gradient of a maximum or minimum; equal elements share it."""
    chosen = op.Cast(op.Equal(x, extremum), to=fn.dtype(x))
    return chosen * (upstream / op.ReduceSum(chosen, axes, keepdims=1))


def _product_gradient(_: Term, upstream: Term) -> Term:
    """Return the gradient of a product: the product of the other elements, of which one may be 0."""
    is_zero = op.Equal(x, 0)
    zeros_among = op.Cast(is_zero, to=fn.dtype(x))
    zeros_elsewhere = op.ReduceSum(zeros_among, axes, keepdims=1) - zeros_among
    factors = op.Where(is_zero, 1, x)
    others = op.ReduceProd(factors, axes, keepdims=1) / factors
    return op.Where(zeros_elsewhere > 0, 0, upstream * others)


_softmax, _log_softmax = op.Softmax(x, axis=axis), op.LogSoftmax(x, axis=axis)


def _along_axis(value: Term) -> App:
    return op.ReduceSum(value, fn.concat(axis), keepdims=1)


_values = op.TopK.split(2, x, tensor("k"), rest, axis=axis)
REDUCTION_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    "ReduceSum": _reduction("ReduceSum", lambda kept, upstream: like(upstream, x)),
    "ReduceMean": (
        *_reduction("ReduceMean", _share_gradient, fn.lt(0, _reduced_count)),
        *_reduction("ReduceMean", _mean_gradient),
    ),
    "ReduceMax": _reduction("ReduceMax", _extremum_gradient),
    "ReduceMin": _reduction("ReduceMin", _extremum_gradient),
    "ReduceProd": _reduction("ReduceProd", _product_gradient),
    "ReduceL1": _reduction("ReduceL1", lambda kept, upstream: upstream * op.Sign(x)),
    "ReduceL2": _reduction("ReduceL2", lambda kept, upstream: x * (upstream / op.Where(op.Equal(kept, 0), 1, kept))),
    "ReduceSumSquare": _reduction("ReduceSumSquare", lambda kept, upstream: x * (upstream * 2)),
    "ReduceLogSum": _reduction("ReduceLogSum", lambda kept, upstream: like(upstream * op.Exp(-kept), x)),
    "ReduceLogSumExp": _reduction("ReduceLogSumExp", lambda kept, upstream: upstream * op.Exp(x - kept)),
    "Softmax": (gradient(_softmax, x=_softmax * (dy - _along_axis(dy * _softmax))),),
    "LogSoftmax": (gradient(_log_softmax, x=dy - op.Exp(_log_softmax) * _along_axis(dy)),),
    "TopK": (gradient(_values[0], x=op.ScatterElements(zeros(op.Shape(x), x), _values[1], dy, axis=axis)),),
}


# -- normalizations ----------------------------------------------------------------------------------------------------


def _mean(value: Term, along: Term) -> App:
    return op.ReduceMean(value, along, keepdims=1)


def _normalized(along: Term, factor: Term, *, is_centered: bool = True) -> tuple[Term, Term]:
    """Return the normalized tensor, and the gradient of `x` where `factor * normalized` has the gradient `dy`."""
    centered: Term = x - _mean(x, along) if is_centered else x
    inverse = op.Reciprocal(op.Sqrt(_mean(centered * centered, along) + epsilon))
    normalized = centered * inverse
    inner = dy * factor
    spread = inner - normalized * _mean(inner * normalized, along)
    return normalized, inverse * (spread - _mean(inner, along) if is_centered else spread)


def _per_channel(value: Term) -> App:
    """Return one number for each channel beside images."""
    return op.Reshape(value, fn.concat(-1, fn.repeat(1, rank - 2)))


def _channel_sums(value: Term, along: Term) -> App:
    return op.ReduceSum(value, along, keepdims=0)


_trailing = fn.add(fn.range(rank - fn.normalize_indices(axis, rank)), fn.normalize_indices(axis, rank))
_layer, _layer_input = _normalized(_trailing, scale)
_layer_head = {"axis": axis, "epsilon": epsilon}
_rms, _rms_input = _normalized(_trailing, scale, is_centered=False)
_spatial, _all_but_channels = fn.range(rank - 2) + 2, fn.delete(fn.range(rank), 1)
_instance, _instance_input = _normalized(_spatial, _per_channel(scale))
_running_mean, _running_variance = tensor("mean"), tensor("variance")
_ones, _zeros = (op.Expand(op.Cast(each, to=fn.dtype(scale)), op.Shape(scale)) for each in (1.0, 0.0))


def _by_channel(value: Term, factor: Term, mean: Term, variance: Term) -> App:
    """Return `factor * (value - mean) / sqrt(variance + epsilon)`, in one pass over the images."""
    statistics = (op.Cast(each, to=fn.dtype(_running_variance)) for each in (mean, variance))
    return op.BatchNormalization(value, op.Cast(factor, to=fn.dtype(scale)), _zeros, *statistics, epsilon=epsilon)


def _channel_means(value: Term) -> App:
    return op.ReduceMean(value, _all_but_channels, keepdims=0)


_centered = x - _mean(x, _all_but_channels)
_batch_variance = _channel_means(_centered * _centered)
_batch = _by_channel(_centered, _ones, _zeros, _batch_variance)
_batch_share = _channel_means(dy * _batch)
_batch_input = _by_channel(dy, scale, _channel_means(dy), _batch_variance) - _by_channel(
    _batch, scale * op.Cast(_batch_share, to=fn.dtype(scale)), _zeros, _batch_variance
)
_channel_size = op.Cast(op.Div(op.Size(x), op.Size(scale)), to=fn.dtype(x))


def _by_norm(order: int, reduction: OperatorBuilder, slope: Callable[[Term], Term]) -> Gradient:
    """Return the gradient of the division by a norm, given the slope of the norm over the normalized elements."""
    head = op.LpNormalization(x, axis=axis, p=order)
    norm = reduction(x, fn.concat(axis), keepdims=1)
    inner = dy - slope(head) * _along_axis(dy * head)
    return gradient(head, x=inner / op.Where(op.Equal(norm, 0), 1, norm))


_window, _alpha, _beta, _offset = integer("size"), real("alpha"), real("beta"), real("bias")
_half_window = fn.floordiv(_window - 1, 2)


def _mean_over_channels(value: Term, before: Term, behind: Term) -> App:
    """Return the mean over the channels around each, of which those that there are not count as 0."""
    sizes = fn.shape(x)
    column = op.Reshape(value, fn.concat(fn.item(sizes, 0), 1, fn.item(sizes, 1), -1))
    window: Mapping[str, TermLike] = {
        "kernel_shape": fn.concat(_window, 1),
        "pads": fn.concat(before, 0, behind, 0),
        "count_include_pad": 1,
    }
    return reshaped_like(op.AveragePool(column, **window), x)


def _response_normalization() -> Gradient:
    """Return the gradient of an LRN: that of a power, and what each element adds to the means of its neighbours."""
    behind = _window - 1 - _half_window
    scale = _mean_over_channels(x * x, _half_window, behind) * _alpha + _offset
    power = op.Pow(scale, -_beta)
    spread = _mean_over_channels(dy * x * power / scale, behind, _half_window)
    head = op.LRN(x, size=_window, alpha=_alpha, beta=_beta, bias=_offset)
    return gradient(head, x=dy * power - x * spread * (_alpha * _beta * 2))


NORMALIZATION_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    "LRN": (_response_normalization(),),
    "LpNormalization": (
        _by_norm(1, op.ReduceL1, lambda _: op.Sign(x)),
        _by_norm(2, op.ReduceL2, lambda normalized: normalized),
    ),
    "LayerNormalization": (
        gradient(op.LayerNormalization(x, scale, rest, **_layer_head), x=_layer_input, scale=dy * _layer),
        gradient(
            op.LayerNormalization(x, scale, bias, rest, **_layer_head), x=_layer_input, scale=dy * _layer, bias=dy
        ),
    ),
    "RMSNormalization": (gradient(op.RMSNormalization(x, scale, rest, **_layer_head), x=_rms_input, scale=dy * _rms),),
    "InstanceNormalization": (
        gradient(
            op.InstanceNormalization(x, scale, bias, epsilon=epsilon),
            x=_instance_input,
            scale=_channel_sums(dy * _instance, _all_but_channels),
            bias=_channel_sums(dy, _all_but_channels),
        ),
    ),
    "BatchNormalization": (
        gradient(
            op.BatchNormalization(
                x, scale, bias, _running_mean, _running_variance, rest, epsilon=epsilon, training_mode=0
            ),
            x=_by_channel(dy, scale, _zeros, _running_variance),
            scale=_channel_sums(dy * _by_channel(x, _ones, _running_mean, _running_variance), _all_but_channels),
            bias=_channel_sums(dy, _all_but_channels),
        ),
        gradient(
            op.BatchNormalization(
                x, scale, bias, _running_mean, _running_variance, rest, epsilon=epsilon, training_mode=1
            ),
            x=_batch_input,
            scale=_batch_share * _channel_size,
            bias=_channel_means(dy) * _channel_size,
            mean=ZERO,
            variance=ZERO,
        ),
    ),
}

# -- dropout -----------------------------------------------------------------------------------------------------------

_ratio, _training = tensor("ratio"), tensor("training")


def _in_training(ratio: Term | None) -> Gradient:
    """Return the gradient of a Dropout that may be in training mode: what was kept, as much larger as it was made."""
    kept, mask = op.Dropout.split(2, x, ratio, _training, rest)
    dropped = op.Cast(0.5 if ratio is None else ratio, to=fn.dtype(x)) * op.Cast(_training, to=fn.dtype(x))
    return gradient(kept, x=op.Where(mask, dy / (1 - dropped), 0))


DROPOUT = (
    gradient(op.Dropout(x, rest), x=dy),
    gradient(op.Dropout(x, _ratio, rest), x=dy),
    _in_training(_ratio),
    _in_training(None),
)
