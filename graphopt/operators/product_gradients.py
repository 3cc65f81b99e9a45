"""Gradients of operators that sum products: matrices, convolutions, averages of windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from graphopt.language.gradient import Gradient, gradient, output_gradient
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
    string,
    tensor,
)
from graphopt.operators.structural_gradients import like, reshaped_like, zeros

dy = output_gradient()
x, w, a, b, c, bias = (tensor(name) for name in ("x", "w", "a", "b", "c", "bias"))

# -- matrices ----------------------------------------------------------------------------------------------------------


def _swapped(value: Term, of: Term) -> App:
    """Return matrices transposed, with the rank of a hole."""
    count = fn.rank(of)
    return op.Transpose(value, perm=fn.concat(fn.range(count - 2), count - 1, count - 2))


def _as_rows(value: Term, of: Term) -> App:
    """Return stacked matrices as one, with the rows of all."""
    sizes = fn.shape(of)
    return op.Reshape(value, fn.concat(fn.product(fn.slice(sizes, 0, fn.rank(of) - 1)), fn.item(sizes, -1)))


_rank_a, _rank_b = fn.rank(a), fn.rank(b)
_head = op.MatMul(a, b)
MATMUL = (
    gradient(  # weights: one product, whatever the batch
        _head,
        fn.lt(1, _rank_a),
        fn.eq(_rank_b, 2),
        a=dy @ op.Transpose(b, perm=(1, 0)),
        b=op.Transpose(_as_rows(a, a), perm=(1, 0)) @ _as_rows(dy, dy),
    ),
    gradient(_head, fn.lt(1, _rank_a), fn.lt(1, _rank_b), a=dy @ _swapped(b, b), b=_swapped(a, a) @ dy),
    gradient(_head, fn.eq(_rank_a, 1), fn.eq(_rank_b, 1), a=dy * b, b=dy * a),
    gradient(
        _head,
        fn.eq(_rank_a, 1),
        a=op.Squeeze(b @ op.Unsqueeze(dy, (-1,)), (-1,)),
        b=op.Unsqueeze(a, (-1,)) * op.Unsqueeze(dy, (-2,)),
    ),
    gradient(
        _head,
        fn.eq(_rank_b, 1),
        a=op.Unsqueeze(dy, (-1,)) * b,
        b=op.Squeeze(_swapped(a, a) @ op.Unsqueeze(dy, (-1,)), (-1,)),
    ),
)

_alpha, _beta, _trans_a, _trans_b = real("alpha"), real("beta"), integer("transA"), integer("transB")


def _gemm(*operands: Term) -> tuple[Gradient, ...]:
    """Return the gradients of a Gemm: of each factor one for either way in which it is turned."""

    def product(left: Term, right: Term, left_turned: TermLike, right_turned: TermLike) -> App:
        return op.Gemm(left, right, transA=left_turned, transB=right_turned, alpha=_alpha)

    added = {"c": dy * _beta} if len(operands) > 2 else {}
    head = op.Gemm(*operands, alpha=_alpha, beta=_beta, transA=_trans_a, transB=_trans_b)
    return (
        gradient(head, fn.eq(_trans_a, 0), a=product(dy, b, 0, 1 - _trans_b), **added),
        gradient(head, fn.eq(_trans_a, 1), a=product(b, dy, _trans_b, 1), **added),
        gradient(head, fn.eq(_trans_b, 0), b=product(a, dy, 1 - _trans_a, 0)),
        gradient(head, fn.eq(_trans_b, 1), b=product(dy, a, 1, _trans_a)),
    )


# -- convolutions ------------------------------------------------------------------------------------------------------

strides, pads, dilations, group = integers("strides"), integers("pads"), integers("dilations"), integer("group")
kernel, auto_pad = integers("kernel"), string("auto_pad")
_rank = fn.rank(x)
_spatial = _rank - 2


def _space(of: Term) -> App:
    """Return the sizes of the spatial axes of images."""
    return fn.slice(fn.shape(of), 2, fn.rank(of))


def _open_space(of: Term) -> App:
    """Return the sizes of the spatial axes of images, read when the model runs."""
    return op.Slice(op.Shape(of), (2,), fn.concat(fn.rank(of)))


def _extent(kernel: Term) -> App:
    """Return the number of elements that a dilated window spans."""
    return (kernel - 1) * dilations + 1


def _explicit(pads: Term, first: bool) -> App:
    return fn.slice(pads, 0, _spatial) if first else fn.slice(pads, _spatial, 2 * _spatial)


def _same_pads(kernel: Term, *, upper: bool) -> App:
    """Return the pads of `auto_pad`: as many as the output needs, the odd one behind (`SAME_UPPER`) or before."""
    total = fn.maximum((_space(dy) - 1) * strides + _extent(kernel) - _space(x), 0)
    less = fn.floordiv(total, 2)
    return fn.concat(less, total - less) if upper else fn.concat(total - less, less)


def _padding_modes(kernel: Term) -> Sequence[tuple[Term, Term, tuple[Term, ...]]]:
    """Return the ways to say pads: the attribute `auto_pad`, the pads in numbers, and a condition."""
    written = fn.any_of(fn.eq(auto_pad, "NOTSET"), fn.eq(auto_pad, "VALID"))
    same = ((mode, _same_pads(kernel, upper=mode == "SAME_UPPER")) for mode in ("SAME_UPPER", "SAME_LOWER"))
    return [(auto_pad, pads, (written,)), *((auto_pad, own, (fn.eq(auto_pad, mode),)) for mode, own in same)]


def _left_over(kernel: Term, first: Term, last: Term) -> App:
    """Return the number of elements behind the last window, those of the pads among them; negative where it lies beyond
    the pads."""
    return _space(x) + first + last - ((_space(dy) - 1) * strides + _extent(kernel))


def _scattered_windows(value: Term, weights: Term, kernel: Term, pads: Term, group: TermLike) -> App:
    """Return the adjoint of a convolution: each element is spread over the window that it was made of."""
    first, last = _explicit(pads, first=True), _explicit(pads, first=False)
    left_over = _left_over(kernel, first, last)
    return op.ConvTranspose(
        value,
        weights,
        strides=strides,
        dilations=dilations,
        group=group,
        pads=fn.concat(first, last + fn.maximum(-left_over, 0)),
        output_padding=fn.maximum(left_over, 0),
    )


def _cut_windows(value: Term, weights: Term, group: TermLike) -> App:
    """Return the adjoint of a convolution of images of any size: as many elements are made as strides can leave over,
    and those that the images do not have are cut off."""
    return op.Slice(
        op.ConvTranspose(
            value, weights, strides=strides, dilations=dilations, group=group, pads=pads, output_padding=strides - 1
        ),
        fn.repeat(0, _spatial),
        _open_space(x),
        fn.range(_spatial) + 2,
    )


_channels_first = fn.concat(1, 0, fn.range(_spatial) + 2)


def _conv_head(*biases: Term) -> App:
    """Return a convolution in one group, its pads in numbers."""
    return op.Conv(
        *(x, w, *biases),
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=1,
        kernel_shape=kernel,
        auto_pad="NOTSET",
    )


def _kernel_gradient(image: Term, upstream: Term, pads: Term, *, grouped: bool) -> App:
    """Return the gradient of filters, without what strides leave over behind them."""
    filters = _correlated(image, upstream, pads, grouped=grouped)
    return op.Slice(filters, fn.repeat(0, _spatial), kernel, fn.range(_spatial) + 2)


def _correlated(image: Term, upstream: Term, pads: Term, *, grouped: bool) -> App:
    """Return the image convolved with the output's gradient, channels as the batch."""
    turned: Term = op.Transpose(image, perm=_channels_first)
    if grouped:
        count, channels, space = fn.item(fn.shape(image), 0), fn.item(fn.shape(image), 1), _space(image)
        share = fn.floordiv(channels, group)
        parts = op.Reshape(image, fn.concat(count, group, share, space))
        by_channel = op.Transpose(parts, perm=fn.concat(2, 1, 0, fn.range(_spatial) + 3))
        turned = op.Reshape(by_channel, fn.concat(share, -1, space))
    correlated = op.Conv(
        turned,
        op.Transpose(upstream, perm=_channels_first),
        strides=dilations,
        dilations=strides,
        pads=pads,
        group=group if grouped else 1,
    )
    return op.Transpose(correlated, perm=_channels_first)


def _trimmed_filters(*biases: Term) -> Gradient:
    """Return the gradient of filters where strides leave elements over that lie in the pads: none is computed there."""
    first, last = _explicit(pads, first=True), _explicit(pads, first=False)
    left_over = _left_over(kernel, first, last)
    return gradient(
        _conv_head(*biases),
        fn.le(0, left_over),
        fn.le(left_over, last),
        w=_correlated(x, dy, fn.concat(first, last - left_over), grouped=False),
    )


def _pointwise_filters(image: Term) -> App:
    """Return the gradient of filters of one element: a product of matrices over all elements."""
    by_channel = op.Reshape(op.Transpose(dy, perm=_channels_first), fn.concat(fn.item(fn.shape(dy), 1), -1))
    channels_last = fn.concat(0, fn.range(_spatial) + 2, 1)
    by_element = op.Reshape(op.Transpose(image, perm=channels_last), fn.concat(-1, fn.item(fn.shape(x), 1)))
    return reshaped_like(by_channel @ by_element, w)


def _pointwise_conv(*biases: Term) -> tuple[Gradient, Gradient]:
    """Return the gradients of a convolution with windows of one element: products of matrices, over all elements, or
    over those that strides take."""
    head, of_one = _conv_head(*biases), (fn.eq(kernel, 1), fn.eq(pads, 0))
    taken = op.Slice(x, fn.repeat(0, _spatial), fn.repeat(2**31 - 1, _spatial), fn.range(_spatial) + 2, strides)
    return (
        gradient(
            head,
            *(*of_one, fn.eq(strides, 1)),
            x=op.Conv(dy, op.Transpose(w, perm=_channels_first)),
            w=_pointwise_filters(x),
            **_bias_gradient(biases),
        ),
        gradient(head, *of_one, w=_pointwise_filters(taken)),
    )


_WINDOW_ELEMENTS = 2**24
"""The most elements that a kernel may copy from the windows of all images at once."""
_LARGE_SHARE = 4
"""Elements of filters over those of images from which it pays to pass over filters once, for all images."""


def _volumes(*biases: Term) -> tuple[Gradient, Gradient]:
    """Return the gradients of a convolution by one of a volume, of which ONNX Runtime makes one product of matrices.

    Of a convolution of images it makes a product for each image. For the gradient of the filters, channels are the
    third axis and images the channels, so that the filters come out in their layout; for that of the images, images are
    the third axis.
    """
    first, last = _explicit(pads, first=True), _explicit(pads, first=False)
    left_over, windows = _left_over(kernel, first, last), fn.product(_space(dy)) * fn.item(fn.shape(dy), 0)
    alone, third = fn.concat(0), fn.concat(2)
    correlated = op.Conv(
        op.Unsqueeze(x, alone),
        op.Unsqueeze(op.Transpose(dy, perm=_channels_first), third),
        strides=fn.concat(1, dilations),
        dilations=fn.concat(1, strides),
        pads=fn.concat(0, first, 0, last - left_over),
    )
    scattered = op.ConvTranspose(
        op.Unsqueeze(op.Transpose(dy, perm=_channels_first), alone),
        op.Unsqueeze(w, third),
        strides=fn.concat(1, strides),
        dilations=fn.concat(1, dilations),
        pads=fn.concat(0, first, 0, last + fn.maximum(-left_over, 0)),
        output_padding=fn.concat(0, fn.maximum(left_over, 0)),
    )
    return (
        gradient(
            _conv_head(*biases),
            *(fn.le(_spatial, 2), fn.le(0, left_over), fn.le(left_over, last)),
            fn.le(windows * fn.product(fn.slice(fn.shape(w), 1, _rank)), _WINDOW_ELEMENTS),
            w=op.Squeeze(correlated, alone),
        ),
        gradient(
            _conv_head(*biases),
            *(fn.le(_spatial, 2), fn.lt(1, fn.item(fn.shape(x), 0))),
            fn.le((fn.product(fn.shape(x)) + fn.product(fn.shape(dy))) * _LARGE_SHARE, fn.product(fn.shape(w))),
            x=op.Transpose(op.Squeeze(scattered, alone), perm=_channels_first),
        ),
    )


def _bias_gradient(biases: Sequence[Term]) -> Mapping[str, Term]:
    return {"bias": op.ReduceSum(dy, fn.delete(fn.range(_rank), 1), keepdims=0)} if biases else {}


def _conv(*biases: Term, grouped: bool) -> tuple[Gradient, ...]:
    groups = group if grouped else 1

    def head(mode: Term) -> App:
        taken = {"strides": strides, "dilations": dilations, "pads": pads, "kernel_shape": kernel, "auto_pad": mode}
        return op.Conv(x, w, *biases, group=groups, **taken)

    (written, _, when), *_ = modes = _padding_modes(kernel)
    return (
        *(
            gradient(
                head(mode),
                *when,
                x=_scattered_windows(dy, w, kernel, explicit, groups),
                w=_kernel_gradient(x, dy, explicit, grouped=grouped),
                **_bias_gradient(biases),
            )
            for mode, explicit, when in modes
        ),
        gradient(head(written), *when, x=_cut_windows(dy, w, groups)),
    )


def _conv_transpose(*biases: Term, grouped: bool) -> Gradient:
    """Return the gradient of a ConvTranspose: the convolution whose adjoint it is."""
    taken: dict[str, TermLike] = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": group if grouped else 1,
    }
    beyond = integers("beyond")
    return gradient(
        op.ConvTranspose(x, w, *biases, kernel_shape=kernel, auto_pad="NOTSET", output_padding=beyond, **taken),
        fn.lt(beyond, strides),
        x=op.Conv(dy, w, **taken),
        w=_kernel_gradient(dy, x, pads, grouped=grouped),
        **_bias_gradient(biases),
    )


# -- windows -----------------------------------------------------------------------------------------------------------


_window_ones = op.Expand(op.Cast(1.0, to=fn.dtype(x)), fn.concat(1, 1, kernel))


def _pool_head(name: str, mode: Term, **attrs: TermLike) -> App:
    windows = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    return OperatorBuilder(name)(x, auto_pad=mode, ceil_mode=integer("ceil"), **windows, **attrs)


def _spreads(mode: Term, explicit: Term) -> Sequence[Callable[[Term], App]]:
    """Return functions that add up over each element of `x` what each window has, channel by channel: for images whose
    size is known, and for any, if pads are in numbers."""

    def spread(scattered: Callable[[Term], Term], value: Term) -> App:
        one_channel = op.Reshape(value, fn.concat(-1, 1, _space(dy)))
        return reshaped_like(scattered(one_channel), x)

    fixed = partial(_scattered_windows, weights=_window_ones, kernel=kernel, pads=explicit, group=1)
    any_size = [partial(_cut_windows, weights=_window_ones, group=1)] if mode == auto_pad else []
    return [partial(spread, scattered) for scattered in (fixed, *any_size)]


def _average_pool(mode: Term, explicit: Term, when: tuple[Term, ...]) -> Sequence[Gradient]:
    """Return the gradients of averages of windows: where all have as many elements, and where some reach over the edge;
    of images whose size is known, or of any."""
    is_counted = integer("counted")
    head = _pool_head("AveragePool", mode, count_include_pad=is_counted)
    first, last = _explicit(explicit, first=True), _explicit(explicit, first=False)

    def counts(image: Term, first: Term, last: Term) -> App:
        """Return how many elements of an image of ones each window covers, of which the last may end behind it."""
        pads = fn.concat(first, last + strides - 1)
        counted = op.Conv(image, _window_ones, strides=strides, dilations=dilations, pads=pads)
        return op.Slice(counted, fn.repeat(0, _spatial), _open_space(dy), fn.range(_spatial) + 2)

    is_alike = fn.all_of(fn.eq(integer("ceil"), 0), fn.any_of(fn.eq(is_counted, 1), fn.eq(explicit, 0)))
    image, none = op.Expand(op.Cast(1.0, to=fn.dtype(x)), fn.concat(1, 1, _space(x))), fn.repeat(0, _spatial)
    padded = op.Pad(image, fn.concat(0, 0, first, 0, 0, last), op.Cast(1.0, to=fn.dtype(x)))
    shares = (
        (dy * fn.truediv(1, fn.product(kernel)), is_alike),
        (dy / counts(padded, none, none), fn.eq(is_counted, 1)),
        (dy / counts(image, first, last), fn.eq(is_counted, 0)),
    )
    return [
        gradient(head, *when, condition, x=spread(share))
        for spread in _spreads(mode, explicit)
        for share, condition in shares
    ]


_order = integer("order")


def _norm_slopes(head: App, spread: Callable[[Term], Term]) -> Term:
    """Return the gradient of the norms of windows, given what adds up over them: 0 for a window of zeros."""

    def power(value: Term) -> App:
        return op.Pow(value, op.Cast(_order - 1, to=fn.dtype(x)))

    upstream = op.Where(op.Equal(head, 0), 0, dy / power(head))
    return op.Sign(x) * power(op.Abs(x)) * spread(upstream)


def _norm_pool(mode: Term, explicit: Term, when: tuple[Term, ...]) -> Sequence[Gradient]:
    """Return the gradients of the norms of windows, of images whose size is known, or of any."""
    head = _pool_head("LpPool", mode, p=_order)
    return [gradient(head, *when, x=_norm_slopes(head, spread)) for spread in _spreads(mode, explicit)]


_maxima, _places = op.MaxPool.split(2, x, attributes("rest"), storage_order=0)
_flat_places, _flat_dy = op.Reshape(_places, (-1,)), op.Reshape(dy, (-1,))
_flat_zeros = zeros(op.Reshape(op.Size(x), (1,)), x)
_windows, _window_places = op.MaxPool.split(
    2, x, attributes("rest"), storage_order=0, kernel_shape=kernel, strides=strides, dilations=dilations
)
MAX_POOL = (
    gradient(  # no element is in two windows
        _windows,
        fn.le(kernel, strides),
        fn.eq(dilations, 1),
        x=reshaped_like(op.ScatterElements(_flat_zeros, op.Reshape(_window_places, (-1,)), _flat_dy), x),
    ),
    gradient(
        _maxima,
        x=reshaped_like(op.ScatterElements(_flat_zeros, _flat_places, _flat_dy, reduction="add"), x),
    ),
)

_global_norms = op.GlobalLpPool(x, p=_order)
_pooled = op.GlobalMaxPool(x)
_is_maximum = op.Cast(op.Equal(x, _pooled), to=fn.dtype(x))
PRODUCT_GRADIENTS: Mapping[str, tuple[Gradient, ...]] = {
    "MatMul": MATMUL,
    "Gemm": (*_gemm(a, b), *_gemm(a, b, c)),
    "Conv": (
        *(each for of in (_pointwise_conv, _volumes) for biases in ((), (bias,)) for each in of(*biases)),
        *(_trimmed_filters(*biases) for biases in ((), (bias,))),
        *(each for grouped in (False, True) for biases in ((), (bias,)) for each in _conv(*biases, grouped=grouped)),
    ),
    "ConvTranspose": tuple(
        _conv_transpose(*biases, grouped=grouped) for grouped in (False, True) for biases in ((), (bias,))
    ),
    "AveragePool": tuple(each for mode in _padding_modes(kernel) for each in _average_pool(*mode)),
    "GlobalAveragePool": (
        gradient(
            op.GlobalAveragePool(x),
            fn.lt(0, fn.product(_space(x))),
            x=like(dy * fn.truediv(1, fn.product(_space(x))), x),
        ),
        gradient(
            op.GlobalAveragePool(x),
            x=op.Expand(
                dy / op.Cast(op.Div(op.Size(x), op.Size(op.GlobalAveragePool(x))), to=fn.dtype(x)), op.Shape(x)
            ),
        ),
    ),
    "LpPool": tuple(each for mode in _padding_modes(kernel) for each in _norm_pool(*mode)),
    "GlobalLpPool": (gradient(_global_norms, x=_norm_slopes(_global_norms, lambda value: value)),),
    "GlobalMaxPool": (
        gradient(
            _pooled,
            x=_is_maximum * (dy / op.ReduceSum(_is_maximum, fn.range(_spatial) + 2, keepdims=1)),
        ),
    ),
    "MaxPool": MAX_POOL,
}


def einsum_gradient(equation: str) -> tuple[Gradient, ...]:
    """Return the gradient of an Einsum, given by its canonical equation: the Einsum of the output's gradient and the
    other operands.

    Along an axis that only one operand has and that is summed over, its gradient is repeated. There is none for an
    equation with an ellipsis, or a letter twice in one operand.
    """
    given, _, result = equation.partition("->")
    letters = given.split(",")
    is_plain = all(len(set(part)) == len(part) and "." not in part for part in letters)
    if not is_plain:
        return ()
    operands = tuple(tensor(f"x_{i}") for i in range(len(letters)))
    terms: dict[str, Term] = {}
    for place, (hole, own) in enumerate(zip(operands, letters, strict=True)):
        others = [part for i, part in enumerate(letters) if i != place]
        shared = set(result).union(*others)
        factors = [other for i, other in enumerate(operands) if i != place]
        kept = "".join(letter for letter in own if letter in shared)
        summed = tuple(axis for axis, letter in enumerate(own) if letter not in shared)
        part = op.Einsum(dy, *factors, equation=f"{','.join([result, *others])}->{kept}")
        terms[hole.name] = like(op.Unsqueeze(part, summed), hole) if summed else part
    return (gradient(op.Einsum(*operands, equation=equation), **terms),)
