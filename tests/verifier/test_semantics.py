"""Every denotation against `onnx.reference` and ONNX Runtime, on random small tensors over all that it claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphopt import ops
from graphopt.rule import attributes
from graphopt.term import App, Lit, Term, Var
from graphopt.verifier.instances import Undefined, Unsupported
from graphopt.verifier.movement import EVEN, REPEATS, ROUNDINGS
from graphopt.verifier.node import subsets
from graphopt.verifier.semantics import OPERATORS
from tests.verifier.concrete import Array, Evaluation, Known

FILTERED = [HealthCheck.filter_too_much]
CASES = 200
"""Per operator, drawn with fixed seeds."""
OPSET = min(ops.OPSET, 25)


@dataclass
class Case:
    """One node: arrays are inputs that vary, tuples and numbers are inputs that are known."""

    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def __post_init__(self) -> None:
        self.inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in self.inputs]


class Draw:
    """Random choices of one case."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.numpy = np.random.default_rng(random.getrandbits(32))

    def size(self, least: int = 1, most: int = 3) -> int:
        return self.random.randint(least, most)

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.size(least, most)))

    def any_shape(self) -> tuple[int, ...]:
        """With an empty axis at times: not for reductions, of which runtimes make different things then."""
        empty = self.random.random() < 0.05
        return tuple(0 if empty and not axis else size for axis, size in enumerate(self.shape()))

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self.numpy.uniform(low, high, shape).astype(np.float32)

    def spread(self, *shape: int) -> Array:
        """Neighbours have different signs: where more than one are normalized, their variance is not almost nothing."""
        odd = np.indices(shape).sum(0) % 2 == 1
        values = self.array(*shape, low=0.5)
        return np.where(odd, -values, values)

    def flag(self) -> int:
        return self.random.randint(0, 1)

    def axis(self, rank: int) -> int:
        return self.random.randrange(-rank, rank)

    def axes(self, rank: int, least: int = 0) -> tuple[int, ...]:
        chosen = self.random.sample(range(rank), self.random.randint(min(least, rank), rank))
        return tuple(a - rank if self.flag() else a for a in chosen)

    def some(self, **attrs: Any) -> dict[str, Any]:
        """Some of the attributes: the others keep their defaults."""
        return {name: value for name, value in attrs.items() if self.random.random() < 0.7}

    def choice(self, *options: Any) -> Any:
        return self.random.choice(options)


def unary(low: float = -2.0, high: float = 2.0, **attrs: tuple[float, float]) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        drawn = {name: d.random.uniform(*bounds) for name, bounds in attrs.items()}
        return Case([d.array(*d.any_shape(), low=low, high=high)], d.some(**drawn))

    return build


def shapes_that_broadcast(d: Draw, count: int) -> list[tuple[int, ...]]:
    full = d.any_shape()
    return [
        tuple(1 if d.random.random() < 0.3 else s for s in full)[d.size(0, len(full)) if i and d.flag() else 0 :]
        for i in range(count)
    ]


def broadcasting(count: int, low: float = -2.0, dtype: Any = np.float32) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        arrays = [d.array(*s, low=low) for s in shapes_that_broadcast(d, count)]
        return Case([(a > 0 if dtype is bool else np.round(a) if d.flag() else a).astype(dtype) for a in arrays])

    return build


def where(d: Draw) -> Case:
    c, x, y = shapes_that_broadcast(d, 3)
    return Case([d.array(*c) > 0, d.array(*x), d.array(*y)])


def clip(d: Draw) -> Case:
    low, high = np.float32(d.random.uniform(-2, 0)), np.float32(d.random.uniform(0, 2))
    return Case([d.array(*d.shape()), np.array(low) if d.flag() else None, np.array(high) if d.flag() else None])


def matmul(d: Draw) -> Case:
    k = d.size()
    batch = d.shape(0, 2)
    a = (*(1 if d.flag() else s for s in batch), d.size(), k)
    b = (*batch[d.size(0, len(batch)) :], k, d.size())
    a, b = (a[-1:] if d.random.random() < 0.15 else a), (b[-2:-1] if d.random.random() < 0.15 else b)
    return Case([d.array(*a), d.array(*b)])


def gemm(d: Draw) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    ta, tb = d.flag(), d.flag()
    c = d.choice(None, (), (n,), (1,), (1, n), (m, 1), (m, n))
    inputs = [d.array(*((k, m) if ta else (m, k))), d.array(*((n, k) if tb else (k, n)))]
    inputs += [] if c is None else [d.array(*c)]
    return Case(inputs, {"transA": ta, "transB": tb, **d.some(alpha=0.5, beta=-1.5)})


def window(d: Draw, kernel: tuple[int, ...], *, pool: bool = False) -> dict[str, Any]:
    rank = len(kernel)
    attrs = d.some(strides=[d.size() for _ in kernel], dilations=[d.size(1, 2) for _ in kernel])
    mode = d.choice("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")
    if mode == "NOTSET":
        attrs["pads"] = [d.size(0, max(kernel[i % rank] - 1, 0)) for i in range(2 * rank)]
    if mode.startswith("SAME") and pool:
        attrs.pop("dilations", None)  # ONNX Runtime departs from the text: it takes them for 1
        attrs["strides"] = [d.size(1, k + 1) for k in kernel]
    return {**attrs, "auto_pad": mode} if mode and (mode != "NOTSET" or d.flag()) else attrs


def conv(d: Draw) -> Case:
    space = tuple(d.size(3, 5) for _ in range(d.choice(1, 1, 2, 2, 3)))
    kernel = tuple(d.size(1, 2) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(d.size(1, 2), i * group, *space), d.array(o * group, i, *kernel)]
    inputs += [d.array(o * group)] if d.flag() else []
    return Case(inputs, {**window(d, kernel), **({"group": group} if group > 1 or d.flag() else {})})


def conv_transpose(d: Draw) -> Case:
    space = tuple(d.size(2, 3) for _ in range(d.choice(1, 2)))
    kernel = tuple(d.size(1, 3) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(1, i * group, *space), d.array(i * group, o, *kernel)]
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
        kernel = tuple(d.size(1, 2) for _ in space)
        attrs = {**window(d, kernel, pool=True), "kernel_shape": list(kernel), **d.some(ceil_mode=d.flag())}
        attrs |= d.some(count_include_pad=d.flag()) if average else {}
        attrs |= {"p": d.size(1, 3)} if lp else {}
        return Case([d.array(1, d.size(1, 2), *space)], attrs)

    return build


def global_pool(d: Draw) -> Case:
    return Case([d.array(d.size(), d.size(), *d.shape(1, 2))])


def reduce(low: float = -2.0) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.array(*d.shape(1), low=low)
        axes = d.choice(None, (), *[d.axes(x.ndim, 1)] * 6)
        return Case([x, axes], d.some(keepdims=d.flag(), noop_with_empty_axes=d.flag()))

    return build


def along(name: str = "axis", **more: Any) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.array(*d.shape(1))
        drawn = {key: d.flag() for key in more}
        return Case([x], d.some(**{name: d.axis(x.ndim)}, **drawn))

    return build


def cumsum(d: Draw) -> Case:
    x = d.array(*d.shape(1))
    return Case([x, d.axis(x.ndim)], d.some(exclusive=d.flag(), reverse=d.flag()))


def batch_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(2, 3), *d.shape(0, 1))
    c = x.shape[1]
    parameters = [d.array(c), d.array(c), d.array(c), d.array(c, low=0.1)]
    return Case([x, *parameters], d.some(epsilon=0.01, momentum=0.5, training_mode=d.flag()))


def layer_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    tail = x.shape[axis:]
    return Case([x, d.array(*tail), *([d.array(*tail)] if d.flag() else [])], {"axis": axis, **d.some(epsilon=0.01)})


def rms_normalization(d: Draw) -> Case:
    x = d.spread(*d.shape(1, 3))
    axis = d.axis(x.ndim)
    return Case([x, d.array(*x.shape[axis:])], {"axis": axis, **d.some(epsilon=0.01)})


def instance_normalization(d: Draw) -> Case:
    x = d.spread(d.size(), d.size(), *d.shape(1, 2))
    # of one element ONNX Runtime makes x * s - x * s, which is rounding divided by the root of epsilon
    attrs = d.some(epsilon=0.01) if x[0, 0].size > 1 else {"epsilon": 0.01}
    return Case([x, d.array(x.shape[1]), d.array(x.shape[1])], attrs)


def group_normalization(d: Draw) -> Case:
    groups, space = d.size(1, 2), (d.size(1, 2) for _ in range(d.size(0, 2)))
    c = groups * d.size(1, 2)
    return Case(
        [d.spread(d.size(1, 2), c, *space), d.array(c), d.array(c)], {"num_groups": groups, **d.some(epsilon=0.01)}
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
    mask = [d.choice(1, batch), d.choice(1, count), queries if causal else d.choice(1, queries)][d.size(0, 3) :]
    bias = d.array(*mask, d.choice(keys, keys, d.size(1, keys)))  # causal, the reference takes one row for one query
    attrs = {"is_causal": causal} | d.some(scale=d.random.uniform(0.1, 2), softcap=d.choice(0.0, 1.5))
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
    where, rounding = d.choice(*EVEN), d.choice(*ROUNDINGS)
    mode = d.choice(*["nearest"] * 4, "linear", "cubic", "cubic")
    axes = d.axes(x.ndim, 1)
    repeats = mode == "nearest" and (where, rounding) in REPEATS
    factors = tuple(d.size() if repeats else 1 for _ in axes)
    attrs = {"coordinate_transformation_mode": where, "nearest_mode": rounding, "mode": mode}
    given = attrs | ({"axes": list(axes)} if axes != tuple(range(x.ndim)) or d.flag() else {})
    if d.flag():
        return Case([x, None, tuple(map(float, factors))], given)
    return Case([x, None, None, tuple(f * x.shape[a] for f, a in zip(factors, axes, strict=True))], given)


def transpose(d: Draw) -> Case:
    x = d.array(*d.any_shape())
    perm = d.random.sample(range(x.ndim), x.ndim)
    return Case([x], {"perm": perm} if perm and d.random.random() < 0.8 else {})


def reshape(d: Draw) -> Case:
    x = d.array(*(d.choice(1, 2, 2, 4) for _ in range(d.size(1, 4))))
    size = x.size
    shape: list[int] = []
    while size > 1 or len(shape) < d.size(1, 2):
        part = d.choice(*(n for n in (1, 2, 4, size) if size % n == 0))
        shape.append(part)
        size //= part
    if d.flag():
        shape[d.random.randrange(len(shape))] = -1
    literal = d.flag()
    for i, n in enumerate(shape):
        if i < x.ndim and n == x.shape[i] and d.flag() and not literal:
            shape[i] = 0
    return Case([x, tuple(shape)], {"allowzero": 1} if literal else d.some(allowzero=0))


def flatten(d: Draw) -> Case:
    x = d.array(*d.shape())
    return Case([x], d.some(axis=d.random.randint(-x.ndim, x.ndim)) if x.ndim else {"axis": 0})


def squeeze(d: Draw) -> Case:
    x = d.array(*(d.choice(1, 1, 2) for _ in range(d.size(0, 3))), 1)
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    chosen = d.random.sample(ones, d.random.randint(1, len(ones)))
    return Case([x, tuple(a - x.ndim if d.flag() else a for a in chosen)])


def unsqueeze(d: Draw) -> Case:
    x = d.array(*d.shape(0, 3))
    rank = x.ndim + d.size(0, 3)
    chosen = d.random.sample(range(rank), rank - x.ndim)
    return Case([x, tuple(a - rank if d.flag() else a for a in chosen)])


def concat(d: Draw) -> Case:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    parts = []
    for _ in range(d.size(1, 3)):
        own = list(shape)
        own[axis] = d.size()
        parts.append(d.array(*own))
    return Case(parts, {"axis": axis})


def split(d: Draw) -> Case:
    x = d.array(*(d.size(2, 4) for _ in range(d.size(1, 3))))
    axis, count = d.axis(x.ndim), d.size(1, 2)
    if d.flag():
        first = d.size(0, x.shape[axis])
        lengths = (first, x.shape[axis] - first)[:count] if count == 2 else (x.shape[axis],)
        return Case([x, lengths], {"axis": axis}, outputs=len(lengths))
    return Case([x], {"axis": axis, "num_outputs": count}, outputs=count)


def slice_(d: Draw) -> Case:
    x = d.array(*(d.size(1, 4) for _ in range(d.size(1, 3))))
    axes = d.axes(x.ndim)
    # not before the first element: there the reference leaves the text, which clamps, and ONNX Runtime
    starts = tuple(d.random.randint(-x.shape[axis], 6) for axis in axes)
    ends = tuple(d.random.choice((-9, -3, -2, -1, 0, 1, 2, 3, 2**40, -(2**40))) for _ in axes)
    steps = tuple(d.choice(-2, -1, 1, 1, 2, 3) for _ in axes)
    return Case([x, starts, ends, axes, steps])


def gather(d: Draw) -> Case:
    x = d.array(*d.shape(1))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    if d.flag():
        return Case([x, d.axis(n)], {"axis": axis})
    return Case([x, tuple(d.axis(n) for _ in range(d.size(0)))], {"axis": axis})


def gather_tensor(d: Draw) -> Case:
    x = d.array(*d.shape(1))
    axis = d.axis(x.ndim)
    return Case([x, d.numpy.integers(0, x.shape[axis], d.shape(0, 2))], {"axis": axis})


def expand(d: Draw) -> Case:
    one, other = shapes_that_broadcast(d, 2)
    return Case([d.array(*one), other])


def tile(d: Draw) -> Case:
    x = d.array(*d.shape(1, 3))
    return Case([x, tuple(d.size(0, 3) for _ in range(x.ndim))])


def pad(d: Draw) -> Case:
    x = d.array(*(d.size(2, 4) for _ in range(d.size(1, 3))))
    mode = d.choice("constant", "constant", "edge", "reflect", "wrap")
    axes = d.axes(x.ndim, 1) if d.flag() else tuple(range(x.ndim))
    least = -1 if mode == "constant" else 0
    pads = tuple(d.size(least, 1) for _ in range(2 * len(axes)))
    given = axes if len(axes) < x.ndim or d.flag() else None
    if given is None:
        pads = tuple(d.size(least, 1) for _ in range(2 * x.ndim))
    value = np.array(np.float32(0.5)) if mode == "constant" and d.flag() else None
    return Case([x, pads, value, given], {"mode": mode})


def depth_to_space(d: Draw) -> Case:
    b = d.size(1, 2)
    x = d.array(1, d.size(1, 2) * b * b, d.size(), d.size())
    return Case([x], {"blocksize": b, **d.some(mode=d.choice("DCR", "CRD"))})


def space_to_depth(d: Draw) -> Case:
    b = d.size(1, 2)
    return Case([d.array(1, d.size(1, 2), d.size() * b, d.size() * b)], {"blocksize": b})


def trilu(d: Draw) -> Case:
    x = d.array(*d.shape(2))
    return Case([x, d.random.randint(-3, 3)] if d.flag() else [x], d.some(upper=d.flag()))


def eye_like(d: Draw) -> Case:
    return Case([d.array(d.size(), d.size())], d.some(k=d.random.randint(-2, 2)))


def einsum(d: Draw) -> Case:
    sizes = {letter: d.size() for letter in "abcd"}
    terms = ["".join(d.random.choices("abcd", k=d.size())) for _ in range(d.size(1, 3))]
    letters = sorted(set("".join(terms)))
    result = "".join(d.random.sample(letters, d.size(0, len(letters))))
    shapes = ([1 if d.random.random() < 0.1 else sizes[letter] for letter in t] for t in terms)
    return Case([d.array(*shape) for shape in shapes], {"equation": ",".join(terms) + d.choice("->" + result, "")})


def arg(d: Draw) -> Case:
    x = np.round(d.array(*d.shape(1)))
    return Case([x], {"axis": d.axis(x.ndim), **d.some(keepdims=d.flag(), select_last_index=d.flag())})


def cast(d: Draw) -> Case:
    x = d.array(*d.shape()) * 3
    types = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.INT32)
    return Case([d.choice(x, x > 0, x.astype(np.int32))], {"to": d.choice(*types)})


def cast_like(d: Draw) -> Case:
    x = d.array(*d.shape()) * 3
    like = d.array().astype(d.choice(np.float32, np.float64, np.float16, np.bool_, np.int32))
    return Case([d.choice(x, x > 0, x.astype(np.int32)), like])


def is_infinite(d: Draw) -> Case:
    x = d.array(*d.shape())
    return Case([np.where(abs(x) > 1, x * np.inf, x)], d.some(detect_negative=d.flag(), detect_positive=d.flag()))


def lp_normalization(d: Draw) -> Case:
    x = d.array(*d.shape(1), low=0.1)
    return Case([x], d.some(axis=d.axis(x.ndim), p=d.size(1, 2)))


CASES_OF: dict[str, Callable[[Draw], Case]] = {
    **{f: broadcasting(2) for f in ("Add", "Sub", "Mul", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")},
    **{f: broadcasting(3) for f in ("Sum", "Mean", "Max", "Min")},
    **{f: broadcasting(2, dtype=bool) for f in ("And", "Or", "Xor")},
    "Div": broadcasting(2, low=0.6),
    "Pow": broadcasting(2, low=0.6),
    "PRelu": broadcasting(2),
    "Not": lambda d: Case([d.array(*d.shape()) > 0]),
    "Where": where,
    "Clip": clip,
    "Cast": cast,
    "CastLike": cast_like,
    "IsInf": is_infinite,
    **{
        f: unary() for f in ("Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Mish", "HardSwish", "Exp", "Abs", "Erf")
    },
    **{f: unary() for f in ("Tanh", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Floor", "Ceil", "Round")},
    **{f: unary() for f in ("Erf", "Sign", "IsNaN", "Identity", "Dropout", "Shape", "Size")},
    **{f: unary(0.2) for f in ("Log", "Sqrt", "Reciprocal")},
    **{f: unary(-0.9, 0.9) for f in ("Asin", "Acos", "Atanh")},
    "Acosh": unary(1.1, 3.0),
    "LeakyRelu": unary(alpha=(0, 1)),
    "ThresholdedRelu": unary(alpha=(0, 1)),
    "Elu": unary(alpha=(0, 2)),
    "Celu": unary(alpha=(0.5, 2)),
    "Selu": unary(alpha=(0, 2), gamma=(1, 2)),
    "HardSigmoid": unary(alpha=(0, 1), beta=(0, 1)),
    "Shrink": unary(lambd=(0, 1), bias=(-1, 1)),
    "Swish": unary(alpha=(0.5, 2)),
    "Gelu": lambda d: Case([d.array(*d.shape())], d.some(approximate=d.choice("none", "tanh"))),
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool(average=False),
    "AveragePool": pool(average=True),
    "LpPool": pool(average=False, lp=True),
    "GlobalMaxPool": global_pool,
    "GlobalAveragePool": global_pool,
    **{f"Reduce{f}": reduce() for f in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSumExp")},
    "ReduceLogSum": reduce(0.2),
    "CumSum": cumsum,
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
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": trilu,
    "EyeLike": eye_like,
    "Resize": resize,
    "Attention": attention,
    "RotaryEmbedding": rotary_embedding,
}

UNTESTED = {
    **dict.fromkeys(
        ("Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), "only its name is known"
    ),
    "ConstantOfShape": "zeros",
}

SYMBOLS = frozenset(
    (
        *("strides", "dilations", "pads", "kernel_shape", "output_padding", "output_shape", "group", "num_groups"),
        *("blocksize", "k", "num_heads", "q_num_heads", "kv_num_heads", "rotary_embedding_dim"),
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
}
SYMBOLIC_INPUTS |= {"Reshape": {1}}
SIGNED = ("Slice", "Gather", "Pad", "Trilu", "EyeLike")
"""Operators to which negative numbers are numbers like others."""


def model(name: str, case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One node as a model, and what it is fed."""
    feeds, names, constants = {}, [], []
    for position, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{position}")
        if isinstance(value, np.ndarray):
            feeds[names[-1]] = value
        elif value is not None:
            whole = all(isinstance(v, int) for v in np.ravel(np.array(value, object)))
            constants.append(numpy_helper.from_array(np.array(value, np.int64 if whole else np.float32), names[-1]))
    while names[-1] == "":
        names.pop()
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(name, names, results, **case.attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    typed = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "one", inputs, typed, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), feeds


def application(name: str, case: Case, known: Known, d: Draw) -> App:
    """The node in the language of rules; some of the numbers that may be symbols in a proof are symbols."""

    def number(value: Any, *, symbol: bool) -> Term:
        value = tuple(value) if isinstance(value, list) else value
        least = min(value, default=0) if isinstance(value, tuple) else value
        return known.hole(value) if symbol and d.flag() and (least >= 0 or name in SIGNED) else Lit(value)

    args: list[Term | None] = []
    for position, value in enumerate(case.inputs):
        if value is None or isinstance(value, np.ndarray):
            args.append(None if value is None else Var(f"x{position}", "tensor"))
        else:
            args.append(number(value, symbol=position in SYMBOLIC_INPUTS.get(name, ())))
    while args[-1] is None:
        args.pop()
    attrs = {key: number(value, symbol=key in SYMBOLS) for key, value in case.attrs.items()}
    return App(name, tuple(args), tuple(sorted(attrs.items())), outputs=case.outputs)


def reference(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, dict(feeds))]


def runtime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


DEPARTS: Mapping[str, frozenset[str]] = {
    # dilations without pads, ceil_mode and SAME of pools, the rank of a global one, groups of a transposed convolution
    "reference": frozenset({"MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "ConvTranspose"}),
    "runtime": frozenset(),
}
"""Who does not say what the text says."""


def answers(name: str, case: Case) -> dict[str, list[Array]]:
    """What the two say of a case, where they follow the text and have an answer."""
    proto, feeds = model(name, case)
    found = {}
    for run in (reference, runtime):
        if name not in DEPARTS[run.__name__]:
            try:
                found[run.__name__] = run(proto, feeds)
            except (
                Exception
            ):  # no implementation or kernel, or one that refuses the case: what is raised has no common base
                continue
    return found


def check(name: str, d: Draw, draw: Callable[[Draw], Case] | None = None) -> tuple[Evaluation, Mapping[str, Any]]:
    """Compares one case; gives back the operator with open attributes, and the attributes that it was asked for."""
    case = (draw or CASES_OF[name])(d)
    wanted = answers(name, case)
    assume(wanted)
    feeds = {f"x{i}": value for i, value in enumerate(case.inputs) if isinstance(value, np.ndarray)}
    known = Known()
    app = application(name, case, known, d)
    free = frozenset(feeds) if name != "Resize" else frozenset()  # its sizes have to be multiples
    found, used = Evaluation(app, feeds, known, frozenset(n for n in free if d.flag())).run()
    for who, arrays in wanted.items():
        for one, other in zip(arrays, found, strict=False):
            shown = f"{name} {case}: {app}, not as {who}"
            assert one.shape == other.shape, shown
            np.testing.assert_allclose(other, one.astype(np.float64), rtol=1e-5, atol=1e-5, err_msg=shown)
    fixed = tuple((key, value) for key, value in app.attrs if key in ("to", "equation"))
    open_ = App(name, (*app.args, attributes("rest")), fixed, outputs=app.outputs)
    return Evaluation(open_, feeds, known, free), used


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES_OF))
def test_it_is_what_the_operator_computes(name: str) -> None:
    """Where attributes are left open, what is drawn is proposed, and all combinations of modes proposed are drawn."""
    drawn: list[Mapping[str, Any]] = []
    claimed: list[Mapping[str, Any]] = []

    @settings(max_examples=CASES, derandomize=True, database=None, deadline=None)
    @given(st.randoms(use_true_random=True))
    def compare(random: Random) -> None:
        open_, used = check(name, Draw(random))
        drawn.append(used)
        if not claimed or random.random() < 0.04:
            claims = list(open_.claims())
            if "axes" in used and used["axes"] not in (None, *subsets(open_.arrays["x0"].ndim)):
                return  # in an order that is not tried, in which the sizes may fit no other axes
            assert any(all(is_mode(c[k]) <= (c[k] == v) for k, v in used.items() if k != "axes") for c in claims), used
            claimed.extend(claims)

    compare()
    modes = {key for used in claimed for key in used if key not in PLACES and all(is_mode(c.get(key)) for c in claimed)}
    proposed, seen = ({tuple(used.get(key) for key in modes) for used in of} for of in (claimed, drawn))
    assert claimed and proposed <= seen, f"{modes}: {proposed - seen} was not drawn"


REFUSE = (
    *("Add", "Where", "PRelu", "MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "DepthToSpace", "SpaceToDepth"),
    *("BatchNormalization", "LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization"),
    *("Attention", "RotaryEmbedding", "Reshape", "Squeeze", "Expand", "Concat", "Split", "Gather", "Pad", "Resize"),
)
"""Operators that do not take every size or number."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSE)
def test_what_is_refused_is_not_denoted(name: str) -> None:
    """Cases in which one size or number is changed, and then ONNX Runtime, where it has a kernel, refuses them."""
    refused = list[Case]()

    @settings(max_examples=CASES // 5, derandomize=True, database=None, deadline=None, suppress_health_check=FILTERED)
    @given(st.randoms(use_true_random=True))
    def refuse(random: Random) -> None:
        d, known = Draw(random), Known()
        case = CASES_OF[name](d)
        before, changed = answers(name, case), spoilt(case, d)
        assume(before and ("runtime" if "runtime" in before else "reference") not in answers(name, changed))
        refused.append(changed)
        feeds = {f"x{i}": value for i, value in enumerate(changed.inputs) if isinstance(value, np.ndarray)}
        app = application(name, changed, known, d)
        note(f"{name} {changed}: {app}")
        evaluation = Evaluation(app, feeds, known, frozenset(feeds))
        with pytest.raises((Undefined, Unsupported)):
            evaluation.run()

    refuse()
    assert len(refused) > CASES // 20


def spoilt(case: Case, d: Draw) -> Case:
    """The case with an axis of an input longer, or with other numbers in a list or an attribute."""
    inputs, attrs = list(case.inputs), dict(case.attrs)
    numbers = [key for key, value in attrs.items() if key in SYMBOLS and value != []]
    if numbers and d.random.random() < 0.3:
        key = d.choice(*numbers)
        attrs[key] = list(moved(attrs[key], d)) if isinstance(attrs[key], list) else attrs[key] + d.choice(-1, 1, 4)
        return Case(inputs, attrs, case.outputs)
    position = d.random.choice([i for i, value in enumerate(inputs) if np.size(value) and np.ndim(value)] or [0])
    value = inputs[position]
    if isinstance(value, np.ndarray) and value.ndim:
        longer = d.random.randrange(value.ndim)
        inputs[position] = np.pad(value, [(0, int(axis == longer)) for axis in range(value.ndim)])
    elif isinstance(value, tuple) and value:
        inputs[position] = moved(value, d)
    return Case(inputs, attrs, case.outputs)


def moved(numbers: Sequence[int], d: Draw) -> tuple[int, ...]:
    """One of the numbers larger or smaller, or some taken from one and given to the next."""
    new, place, change = list(numbers), d.random.randrange(len(numbers)), d.choice(-3, -1, 1, 4)
    new[place] += change
    if place and d.flag():
        new[place - 1] -= change
    return tuple(new)


PLACES = ("axis", "axes", "perm", "start", "end", "p", "equation", "to", "input1", "keep_aspect_ratio_policy")
"""Attributes whose values are not modes: there are as many as axes, or they are numbers and texts."""


def is_mode(value: Any) -> bool:
    return value is None or isinstance(value, int | str)


def test_every_operator_is_tested() -> None:
    assert set(OPERATORS) == set(CASES_OF) | set(UNTESTED)


@settings(max_examples=CASES, derandomize=True, database=None, deadline=None)
@given(st.randoms(use_true_random=True))
def test_gather_of_indices_that_are_not_known(random: Random) -> None:
    check("Gather", Draw(random), gather_tensor)
