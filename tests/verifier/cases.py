"""Cases of each operator, drawn over all that its denotation claims, and what two evaluators of ONNX make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from graphopt.language.rule import attributes
from graphopt.language.terms import App, Lit, Term, Var
from graphopt.operators.movement_ops import ENDLESS_ENDS, REPEATING_MODES, ROUNDING_MODES, SIZE_PRESERVING_MODES
from graphopt.runtime.saturation import BYTE_PRODUCTS
from tests.saturating import is_saturating
from tests.verifier.concrete import Evaluation, Known
from tests.verifier.draw import Draw, conv, shapes_that_broadcast, window
from tests.verifier.evaluators import Array, Case, model, reference, runtime
from tests.verifier.moving import MOVING
from tests.verifier.quantized import QUANTIZED


def unary(low: float = -2.0, high: float = 2.0, **attrs: tuple[float, float]) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        drawn = {name: d.random.choice((0.25, 0.5, d.random.uniform(*bounds))) for name, bounds in attrs.items()}
        borders = [b for b in (0, 0.25, -0.25, 0.5, -0.5, 1, -1, 1.5) if low <= b <= high and b not in (low, high)]
        return Case([d.strewn(d.array(*d.any_shape(), low=low, high=high), borders)], d.some(**drawn))

    return build


def broadcasting(*counts: int, low: float = -2.0, dtype: Any = np.float32) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        arrays = [d.array(*s, low=low) for s in shapes_that_broadcast(d, d.choice(*counts))]
        return Case([(a > 0 if dtype is bool else np.round(a) if d.flag() else a).astype(dtype) for a in arrays])

    return build


def mod(d: Draw) -> Case:
    """Of floats what C makes of them; of integers either, none divided by 0."""
    x, y = (np.round(d.array(*s, low=1, high=9)) * d.choice(-1, 1) for s in shapes_that_broadcast(d, 2))
    to, fmod = d.choice((np.float32, 1), (np.int32, 0), (np.int64, 1), (np.int64, 0))
    return Case([x.astype(to), y.astype(to)], {"fmod": fmod} if fmod else d.some(fmod=0))


def bits(*counts: int, **attrs: Any) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        arrays = [d.numpy.integers(0, 8, s).astype(np.uint8) for s in shapes_that_broadcast(d, d.choice(*counts))]
        return Case(arrays, {name: d.choice(*options) for name, options in attrs.items()})

    return build


def where(d: Draw) -> Case:
    c, x, y = shapes_that_broadcast(d, 3)
    return Case([d.array(*c) > 0, d.special(*x), d.special(*y)])


def clip(d: Draw) -> Case:
    low, high = np.float32(d.random.uniform(-2, 1)), np.float32(d.random.uniform(-1, 2))
    return Case([d.array(*d.any_shape()), np.array(low) if d.flag() else None, np.array(high) if d.flag() else None])


def matmul(d: Draw) -> Case:
    k = d.extent()
    batch = tuple(d.extent() for _ in range(d.size(0, 3)))
    a = (*(1 if d.flag() else s for s in batch), d.extent(), k)
    b = (*batch[d.size(0, len(batch)) :], k, d.extent())
    a, b = (a[-1:] if d.random.random() < 0.15 else a), (b[-2:-1] if d.random.random() < 0.15 else b)
    return Case([d.array(*a), d.array(*b)])


def gemm(d: Draw) -> Case:
    m, k, n = d.extent(), d.extent(), d.extent()
    ta, tb = d.flag(), d.flag()
    c = d.choice(None, (), (n,), (1,), (1, n), (m, 1), (m, n))
    inputs = [d.array(*((k, m) if ta else (m, k))), d.array(*((n, k) if tb else (k, n)))]
    inputs += [] if c is None else [d.array(*c)]
    return Case(inputs, {"transA": ta, "transB": tb, **d.some(alpha=0.5, beta=-1.5)})


def conv_transpose(d: Draw) -> Case:
    space = tuple(d.choice(d.extent(), 2, 3) for _ in range(d.choice(1, 2)))
    kernel = tuple(d.size(1, 3) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(d.extent(1), i * group, *space), d.array(i * group, o, *kernel)]
    inputs += [d.array(o * group)] if d.flag() else []
    attrs = {**window(d, kernel), "group": group}
    attrs["strides"] = strides = [d.size(1, k) for k in kernel]
    if d.flag():
        attrs["output_padding"] = [d.size(0, s - 1) for s in strides]
    if "pads" not in attrs and d.flag():
        attrs["output_shape"] = [s * n + d.size(0, k - s) for s, n, k in zip(strides, space, kernel, strict=True)]
    return Case(inputs, attrs)


def pool(*, average: bool, lp: bool = False) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        space = tuple(d.size(3, 5) for _ in range(d.choice(1, 2, 2)))
        kernel = tuple(d.size(1, 3) for _ in space)
        attrs = {**window(d, kernel, pool=True), "kernel_shape": list(kernel), **d.some(ceil_mode=d.choice(0, 1, 1))}
        attrs |= d.some(count_include_pad=d.choice(0, 1, 1)) if average else {}
        attrs |= {"p": d.size(1, 3)} if lp else {}
        return Case([d.array(*pooled_axes(d), *space)], attrs)

    return build


def pooled_axes(d: Draw) -> tuple[int, int]:
    """Batch and channels, of which only the batch may be empty, or both."""
    batch = d.extent(2)
    return batch, d.size(1 if batch else 0, 2)


def global_pool(d: Draw) -> Case:
    return Case([d.array(*pooled_axes(d), *d.shape(1, 2))])


def global_lp_pool(d: Draw) -> Case:
    return Case(global_pool(d).inputs, d.some(p=d.size(1, 3)))


def reduce(low: float = -2.0) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.array(*d.shape(), low=low)
        axes = d.choice(None, (), *[d.axes(x.ndim, 1)] * 6)
        return Case([x, axes], d.some(keepdims=d.flag(), noop_with_empty_axes=d.flag()))

    return build


def along(name: str = "axis", **more: Any) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.array(*d.any_shape(1))
        drawn = {key: d.flag() for key in more}
        return Case([x], d.some(**{name: d.axis(x.ndim)}, **drawn))

    return build


def cumsum(d: Draw) -> Case:
    x = d.array(*d.any_shape(1))
    return Case([x, d.axis(x.ndim)], d.some(exclusive=d.flag(), reverse=d.flag()))


def dft(d: Draw) -> Case:
    x = d.array(*d.shape(1), d.size(1, 2))
    axis = d.random.randrange(x.ndim - 1)
    attrs = d.choice({}, {"inverse": 1}, {"inverse": 0, "onesided": 1} if x.shape[-1] == 1 else {"onesided": 0})
    return Case([x, None, axis - d.choice(0, x.ndim)] if axis != x.ndim - 2 or d.flag() else [x], attrs)


def batch_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(1, 3), *d.shape(0, 1))
    c = x.shape[1] if x.ndim > 1 else 1
    parameters = [d.array(c), d.array(c), d.array(c), d.array(c, low=0.1)]
    return Case([x, *parameters], d.some(epsilon=0.01, momentum=0.5, training_mode=0))


def layer_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    tails = (broadcasts_to(d, x.shape[axis:]) for _ in range(d.size(1, 2)))
    return Case([x, *(d.array(*tail) for tail in tails)], {"axis": axis, **d.some(epsilon=0.01, stash_type=1)})


def broadcasts_to(d: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, at times with sizes of 1 or without its first axes."""
    stretched = d.random.random() < 0.3
    return tuple(d.choice(1, s) for s in shape)[d.size(0, len(shape)) :] if stretched else shape


def rms_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    return Case([x, d.array(*broadcasts_to(d, x.shape[axis:]))], {"axis": axis, **d.some(epsilon=0.01, stash_type=1)})


def instance_normalization(d: Draw) -> Case:
    x = d.spread(d.size(), d.size(), *d.shape(1, 2))
    # of one element ONNX Runtime makes x * s - x * s, which is rounding divided by the root of epsilon
    attrs = d.some(epsilon=0.01) if x[0, 0].size > 1 else {"epsilon": 0.01}
    return Case([x, d.array(x.shape[1]), d.array(x.shape[1])], attrs)


def group_normalization(d: Draw) -> Case:
    groups, space = d.size(1, 2), (d.size(1, 2) for _ in range(d.size(0, 2)))
    c = groups * d.size(1, 2)
    return Case(
        [d.spread(d.size(1, 2), c, *space), d.array(c), d.array(c)],
        {"num_groups": groups, **d.some(epsilon=0.01, stash_type=1)},
    )


def heads(d: Draw, batch: int, count: int, length: int, size: int, rank: int) -> Array:
    return d.array(batch, count, length, size) if rank == 4 else d.array(batch, length, count * size)


def attention(d: Draw) -> Case:
    rank, batch, shared = d.choice(3, 4), d.size(1, 2), d.size(1, 2)
    count, queries, keys, size, other = shared * d.size(1, 2), d.size(), d.size(), d.size(1, 2), d.size(1, 2)
    q, k, v = (
        heads(d, batch, *shape, rank) for shape in ((count, queries, size), (shared, keys, size), (shared, keys, other))
    )
    causal = d.flag()
    mask = [d.choice(1, batch), d.choice(1, count), queries][d.size(0, 3) :]
    bias = d.array(*mask, d.choice(keys, keys, d.size(1, keys)))
    attrs = {"is_causal": causal} | d.some(scale=d.random.uniform(0.1, 2), softcap=d.choice(0.0, 1.0, 1.5))
    attrs |= d.some(left_window_size=d.size(-1, 2), right_window_size=d.size(-1, 2)) if d.flag() else {}
    attrs |= {"q_num_heads": count, "kv_num_heads": shared} if rank == 3 else {}
    outputs = d.choice(1, 4)
    if outputs == 4:  # with a cap the reference shows capped products where raw ones are asked for
        attrs["qk_matmul_output_mode"] = d.choice(1, 3) if attrs.get("softcap") else d.choice(0, 1, 3)
    return Case([q, k, v, d.choice(None, bias, bias > -1)], attrs, outputs)


def rotary_embedding(d: Draw) -> Case:
    rank, batch, count, length, size = d.choice(3, 4), d.size(1, 2), d.size(1, 2), d.size(), 2 * d.size()
    turned = d.choice(0, 2 * d.size(1, size // 2))
    caches = (d.size(3, 4),) if (looked_up := d.flag()) else (batch, length)
    inputs = [heads(d, batch, count, length, size, rank), *(d.array(*caches, (turned or size) // 2) for _ in "cs")]
    inputs += [d.numpy.integers(0, 3, (batch, length))] if looked_up else []
    attrs = {"num_heads": count} if rank == 3 or turned else {}
    return Case(
        inputs, {**attrs, **d.some(interleaved=d.flag()), **({"rotary_embedding_dim": turned} if turned else {})}
    )


def resize(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3))
    where, rounding = d.choice(*SIZE_PRESERVING_MODES), d.choice(*ROUNDING_MODES)
    mode = d.choice(*["nearest"] * 4, "linear", "cubic", "cubic")
    axes = d.axes(x.ndim, 1)
    repeats = mode == "nearest" and (where, rounding) in REPEATING_MODES
    factors = tuple(d.size() if repeats else 1 for _ in axes)
    between = mode == "linear" and where in ("asymmetric", "half_pixel")
    if x.ndim > 1 and (between or (mode == "nearest" and (where, rounding) == ("asymmetric", "floor"))) and d.flag():
        scales = [d.choice(1, 2) if between else d.choice(1, 1.5, 2.5) for _ in x.shape]
        larger = tuple(int(n * scale) + d.choice(0, 1, 2) for n, scale in zip(x.shape, scales, strict=True))
        return Case(
            [x, None, None, larger] if between and d.flag() else [x, None, np.array(scales, np.float32)],
            {"coordinate_transformation_mode": where, "nearest_mode": rounding, "mode": mode},
        )
    attrs = {"coordinate_transformation_mode": where, "nearest_mode": rounding, "mode": mode}
    given = attrs | ({"axes": list(axes)} if axes != tuple(range(x.ndim)) or d.flag() else {})
    if d.flag():
        return Case([x, None, tuple(map(float, factors))], given)
    return Case([x, None, None, tuple(f * x.shape[a] for f, a in zip(factors, axes, strict=True))], given)


def arg(d: Draw) -> Case:
    x = np.round(d.array(*d.shape(1)))
    return Case([x], {"axis": d.axis(x.ndim), **d.some(keepdims=d.flag(), select_last_index=d.flag())})


CAST = (np.float32, np.float64, np.float16, np.bool_, np.int32, np.int64, np.uint8)


def castable(d: Draw) -> Array:
    """Floats that the integers hold, for there a cast is not defined; integers that wrap."""
    x = d.strewn(d.array(*d.any_shape()) * 3, (0, 0.5, -0.5, 1))
    whole = d.strewn(np.round(x).astype(np.int64), (2**31, 2**32 + 1, -(2**31) - 1, 255, 256, -1))
    drawn: Array = d.choice(x, x > 0, x.astype(np.float64), whole, whole.astype(np.int32))
    return drawn


def cast(d: Draw) -> Case:
    x, to = castable(d), d.choice(*CAST)
    return Case(
        [abs(x) if to is np.uint8 and x.dtype.kind == "f" else x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))}
    )


def cast_like(d: Draw) -> Case:
    case = cast(d)
    to = helper.tensor_dtype_to_np_dtype(case.attrs["to"])
    return Case([*case.inputs, d.array().astype(to)])


def shape_of(d: Draw) -> Case:
    x = d.array(*d.any_shape())
    borders = range(-x.ndim - 1, x.ndim + 2)
    return Case([x], d.some(start=d.choice(*borders), end=d.choice(*borders)))


def dropout(d: Draw) -> Case:
    """Where nothing is dropped."""
    switches = d.choice((), (0.5,), (0.5, False), (0.0, True), (None, False))
    return Case([d.special(*d.any_shape()), *switches], d.some(seed=1), d.size(1, 2))


def is_infinite(d: Draw) -> Case:
    x = d.special(*d.any_shape())
    return Case([x], d.some(detect_negative=d.flag(), detect_positive=d.flag()))


def response_normalization(d: Draw) -> Case:
    drawn = d.some(alpha=d.random.uniform(0.1, 2), beta=d.choice(0.75, 0.5, 0.3, 2.0), bias=d.random.uniform(0.5, 2))
    return Case([d.array(d.extent(), d.size(0, 6), d.extent(), d.extent())], {"size": d.choice(1, 3, 3, 5), **drawn})


def mean_variance_normalization(d: Draw) -> Case:
    """More than one element is normalized: what is made of 0 / 0 is rounding."""
    if d.flag():
        return Case([d.spread(*d.shape(3, 3), d.size(2))])
    x = d.spread(*(d.size(2) for _ in d.shape(1)))
    return Case([x], {"axes": list(d.axes(x.ndim, 1))})


def sampling_window(d: Draw) -> Case:
    size = d.size(2, 6)
    return Case([d.choice(size, np.array(size, np.int64))], d.some(periodic=d.flag(), output_datatype=d.choice(1, 11)))


def loss(d: Draw) -> Case:
    """The label that is ignored may be that of no class; not all are."""
    classes, shape = d.size(2, 4), (d.size(), *d.shape(0, 2))
    labels = np.array(d.numpy.integers(0, classes, shape))
    attrs = d.some(reduction=d.choice("mean", "sum", "none"))
    if d.flag():
        attrs["ignore_index"] = ignored = d.choice(-1, -100, classes, 0)
        labels = np.where(d.numpy.random(shape) < 0.3, ignored, labels)
        labels.flat[0] = 1
    weights = [d.array(classes, low=0.2)] if d.flag() else []
    return Case([d.array(shape[0], classes, *shape[1:]), labels, *weights], attrs)


def entropy(d: Draw) -> Case:
    return replace(loss(d), outputs=d.size(1, 2))


def swiglu(d: Draw) -> Case:
    shape = d.any_shape()
    return Case([d.array(*shape), d.array(*shape)], d.some(alpha=d.random.uniform(0.5, 2)))


def lp_normalization(d: Draw) -> Case:
    x = d.array(*d.shape(1), low=0.1)
    return Case([x], d.some(axis=d.axis(x.ndim), p=d.size(1, 2)))


def some_range(d: Draw) -> Case:
    dtype = d.choice(int, int, np.int64, np.int32, np.float32, np.float64)
    delta = d.choice(-3, -2, -1, 1, 2, 3) * (0.5 if dtype(0.5) else 1)
    start = d.random.randint(-5, 5)
    numbers = [start, start + d.random.randint(-3, 4) * delta + d.random.randint(-1, 1), delta]
    if dtype is int:
        return Case([n if d.random.random() < 0.8 else np.array(n, np.int64) for n in numbers])
    return Case([np.array(n, dtype) for n in numbers])


def hardmax(d: Draw) -> Case:
    x = np.round(d.array(*d.shape(1)))
    return Case([x], d.some(axis=d.axis(x.ndim)))


def recurrent(gates: int) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        direction = d.choice("forward", "reverse", "bidirectional")
        length, batch, features, hidden, n = d.size(), d.size(), d.size(), d.size(), 1 + (direction == "bidirectional")
        x, state = d.array(length, batch, features), (n, batch, hidden)
        weights = [d.array(n, gates * hidden, features), d.array(n, gates * hidden, hidden)]
        bias = d.choice(None, d.array(n, 2 * gates * hidden))
        lengths = d.choice(None, d.numpy.integers(1, length + 1, (batch,)).astype(np.int32))
        first = d.choice(None, d.array(*state))
        more = [d.choice(None, d.array(*state)), d.choice(None, d.array(n, 3 * hidden))] if gates == 4 else []
        attrs = {"hidden_size": hidden} | ({"direction": direction} if direction != "forward" or d.flag() else {})
        attrs |= d.choice({}, {"clip": 0.5}, {"linear_before_reset": 1} if gates == 3 else {})
        return Case([x, *weights, bias, lengths, first, *more], attrs, 3 if gates == 4 else 2)

    return build


CASES_OF: dict[str, Callable[[Draw], Case]] = {
    **MOVING,
    **QUANTIZED,
    **{f: broadcasting(2) for f in ("Add", "Sub", "Mul", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")},
    **{f: broadcasting(1, 2, 3) for f in ("Sum", "Mean", "Max", "Min")},
    **{f: broadcasting(2, dtype=bool) for f in ("And", "Or", "Xor")},
    "Div": broadcasting(2, low=0.6),
    "Pow": broadcasting(2, low=0.6),
    "PRelu": broadcasting(2),
    "Not": lambda d: Case([d.array(*d.shape()) > 0]),
    "Where": where,
    "Clip": clip,
    "Cast": cast,
    "CastLike": cast_like,
    "Mod": mod,
    "BitShift": bits(2, direction=("LEFT", "RIGHT")),
    **{f"Bitwise{f}": bits(2) for f in ("And", "Or", "Xor")},
    "BitwiseNot": bits(1),
    "IsInf": is_infinite,
    **{f: unary() for f in ("Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Mish", "Exp", "Abs", "Erf")},
    **{f: unary() for f in ("Tanh", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Floor", "Ceil", "Round")},
    **{f: unary() for f in ("Erf", "Sign", "Size")},
    **{f: lambda d: Case([d.special(*d.any_shape())]) for f in ("IsNaN", "Identity")},
    "Shape": shape_of,
    "Dropout": dropout,
    "ConstantOfShape": lambda d: Case([d.any_shape()]),
    **{f: unary(0.2) for f in ("Log", "Sqrt", "Reciprocal")},
    **{f: unary(-0.9, 0.9) for f in ("Asin", "Acos", "Atanh")},
    "Acosh": unary(1.1, 3.0),
    "HardSwish": unary(-5, 5),
    "LeakyRelu": unary(alpha=(-1, 1)),
    "ThresholdedRelu": unary(alpha=(-1.5, 1.5)),
    "Elu": unary(alpha=(-2, 2)),
    "Celu": unary(alpha=(-2, 2)),
    "Selu": unary(alpha=(-2, 2), gamma=(-2, 2)),
    "HardSigmoid": unary(alpha=(-1, 1), beta=(-1, 1)),
    "Shrink": unary(lambd=(-1, 1), bias=(-1, 1)),
    "Swish": unary(alpha=(-2, 2)),
    "Gelu": lambda d: Case([d.array(*d.shape())], d.some(approximate=d.choice("none", "tanh"))),
    "MatMul": matmul,
    "Gemm": gemm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool(average=False),
    "AveragePool": pool(average=True),
    "LpPool": pool(average=False, lp=True),
    "GlobalMaxPool": global_pool,
    "GlobalAveragePool": global_pool,
    "GlobalLpPool": global_lp_pool,
    "Hardmax": hardmax,
    "Range": some_range,
    "LSTM": recurrent(4),
    "GRU": recurrent(3),
    "RNN": recurrent(1),
    **{f"Reduce{f}": reduce() for f in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp")},
    "ReduceLogSum": reduce(0.2),
    "CumSum": cumsum,
    "DFT": dft,
    "ArgMax": arg,
    "ArgMin": arg,
    "Softmax": along(),
    "LogSoftmax": along(),
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    "InstanceNormalization": instance_normalization,
    "GroupNormalization": group_normalization,
    "LpNormalization": lp_normalization,
    "LRN": response_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "NegativeLogLikelihoodLoss": loss,
    "SoftmaxCrossEntropyLoss": entropy,
    **{f"{name}Window": sampling_window for name in ("Blackman", "Hamming", "Hann")},
    "SwiGLU": swiglu,
    "Resize": resize,
    "Attention": attention,
    "RotaryEmbedding": rotary_embedding,
}

SYMBOLS = frozenset(
    (
        *("strides", "dilations", "pads", "kernel_shape", "output_padding", "output_shape", "group", "num_groups"),
        *("blocksize", "size", "k", "num_heads", "q_num_heads", "kv_num_heads", "rotary_embedding_dim"),
        *("left_window_size", "right_window_size"),
    )
)
"""Attributes that may be symbols in a proof."""
SYMBOLIC_INPUTS = {
    "Expand": {1},
    "Tile": {1},
    "Pad": {1},
    "Slice": {1, 2, 4},
    "Split": {1},
    "Gather": {1},
    "Trilu": {1},
    "TopK": {1},
    "OneHot": {1},
    "Range": {0, 1, 2},
}
SYMBOLIC_INPUTS |= {"Reshape": {1}}
KNOWN_SHAPES = {**SYMBOLIC_INPUTS, "GatherND": {1}, "ScatterND": {1}}
"""Inputs whose length says how many axes there are."""
SIGNED = ("Slice", "Gather", "Pad", "Trilu", "EyeLike", "Reshape", "Range")
"""Operators to which negative numbers are numbers like others."""


def application(name: str, case: Case, known: Known, chosen: Callable[[], object]) -> App:
    """The node in the language of rules; some of the numbers that may be symbols in a proof are symbols."""

    def number(value: Any, *, symbol: bool) -> Term:
        value = tuple(value) if isinstance(value, list) else value
        least = min(value, default=0) if isinstance(value, tuple) else value
        return known.hole(value) if symbol and chosen() and (least >= 0 or name in SIGNED) else Lit(value)

    args: list[Term | None] = []
    for position, value in enumerate(case.inputs):
        if value is None or isinstance(value, np.ndarray):
            args.append(None if value is None else Var(f"x{position}", "tensor"))
        else:
            args.append(number(value, symbol=position in SYMBOLIC_INPUTS.get(name, ())))
    while args and args[-1] is None:
        args.pop()
    attrs = {key: number(value, symbol=key in SYMBOLS) for key, value in case.attrs.items()}
    return App(name, tuple(args), tuple(sorted(attrs.items())), outputs=case.outputs)


_OF_A_BODY = ("output_datatype", "ignore_index")
"""Attributes of which the schema makes a body for one value."""


def opened(app: App) -> App:
    """The node with its attributes left open, but for those that say what else it is."""
    fixed = tuple((key, value) for key, value in app.attrs if key in ("to", "equation", *_OF_A_BODY))
    return replace(app, args=(*app.args, attributes("rest")), attrs=fixed)


def is_mode(value: Any) -> bool:
    return value is None or isinstance(value, int | float | str)


def as_it_runs(name: str, case: Case) -> Case:
    """The case with the numbers that may be symbols in tensors, which only say them when the model runs."""
    places = SYMBOLIC_INPUTS.get(name, ())
    inputs = (
        np.array(value, np.int64) if i in places and isinstance(value, tuple | int) else value
        for i, value in enumerate(case.inputs)
    )
    return Case(list(inputs), case.attrs, case.outputs)


DEPARTS: Mapping[str, frozenset[str]] = {
    # the order of what is not to be sorted, indices that are no whole numbers, the lengths of sequences,
    # dilations without pads, ceil_mode and SAME of pools, the rank of a global one, groups of a transposed convolution
    # and of a quantized one, halves beside an odd zero point, channels beyond as many as there are images
    "reference": frozenset(
        {"MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "ConvTranspose", "TopK", "OneHot", "LSTM", "GRU", "RNN"}
        | {"QLinearConv", "QLinearMatMul", "LRN"}
    ),
    "runtime": frozenset(),
}
"""Who does not say what the text says."""


def _may_saturate(name: str, case: Case) -> bool:
    """Whether two products of unsigned and signed integers may exceed 16 bits, where this processor adds up pairs."""
    if name not in BYTE_PRODUCTS or not is_saturating():
        return False
    factors = [case.inputs[place] for place in (0, 3 if name.startswith("QLinear") else 1)]
    greatest = [int(np.abs(factor.astype(np.int64)).max(initial=0)) for factor in factors]
    return factors[0].dtype != factors[1].dtype and 2 * greatest[0] * greatest[1] > np.iinfo(np.int16).max


def departs(who: str, name: str, case: Case) -> bool:
    """Whether it does not say what the denotation says on purpose."""
    endless = name == "Slice" and who == "reference" and set(case.inputs[2]) & set(ENDLESS_ENDS)
    mirrored = name == "Pad" and who == "reference" and case.attrs.get("mode") == "reflect"  # further than there is
    nothing = name == "Shape" and who == "reference" and case.attrs.get("end", 0) < -np.ndim(case.inputs[0])
    plain = name == "ConvInteger" and who == "reference" and np.ndim(case.inputs[0]) != 4  # zero points of filters
    ignoring = "ignore_index" in case.attrs and who == "reference" and case.attrs.get("reduction", "mean") == "mean"
    narrow = who == "runtime" and _may_saturate(name, case)
    willing = name == "Resize" and who == "reference" and case.attrs.get("mode", "nearest") != "nearest"  # on any axes
    return bool(ignoring or endless or mirrored or nothing or plain or narrow or willing) or name in DEPARTS[who]


def answers(name: str, case: Case) -> dict[str, list[Array]]:
    """What the two say of a case, where they follow the text and have an answer."""
    proto, feeds = model(name, case)
    found = {}
    for run in (reference, runtime):
        if not departs(run.__name__, name, case):
            try:
                found[run.__name__] = run(proto, feeds)
            except (
                Exception
            ):  # no implementation or kernel, or one that refuses the case: what is raised has no common base
                continue
    return found


def free_sizes(name: str, case: Case) -> frozenset[str]:
    """The inputs whose sizes may be symbols."""
    if name == "Resize":  # whose sizes have to be multiples
        return frozenset()
    lists = KNOWN_SHAPES.get(name, ())
    return frozenset(f"x{i}" for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray) and i not in lists)


def evaluation(name: str, case: Case, *, symbols: bool, exact: bool = False) -> Evaluation:
    """The case with all that may be symbols in a proof as such, or as numbers."""
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    known = Known()
    app = application(name, case, known, lambda: symbols)
    return Evaluation(app, feeds, known, frozenset(feeds if symbols else ()), exact)
