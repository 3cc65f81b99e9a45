"""Nodes drawn at random, one operator at a time, into a model whose shapes are followed while it is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan, prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Size: TypeAlias = "int | str"
Array: TypeAlias = NDArray[Any]

FLOAT, DOUBLE, HALF = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
INT32, INT64, UINT8, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL
FLOATS, INTEGERS = (FLOAT, DOUBLE, HALF), (INT64, INT32, UINT8)

SIZES: Mapping[str, int] = {"batch": 2, "length": 5, "empty": 0}
"""What symbolic sizes are when a model is run."""
OTHER_SIZES: Mapping[str, int] = {"batch": 1, "length": 3, "empty": 2}

OPSETS = range(9, 25)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, inf, -inf, nan, 1e-40, 6e4, -3e38)
"""Constants that change the meaning of an operator beside them."""
TINY = (0.0, -0.0, 1e-40)
NONFINITE = (*TINY, inf, -inf, nan, 1e300)
"""Inputs of which some operators make something of their own; the last is the largest number of a type."""


@dataclass(frozen=True)
class Tensor:
    """A value of the model that is drawn: its name, element type and shape."""

    name: str
    dtype: int
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Model:
    """A drawn model, and inputs to run it on."""

    proto: onnx.ModelProto
    inputs: tuple[Tensor, ...]

    def feeds(self, seed: int, special: Sequence[float] = (), sizes: Mapping[str, int] = SIZES) -> dict[str, Array]:
        """Return inputs drawn anew; some elements of floats are `special` numbers, if there are any.

        Some integers are then the largest and the smallest.
        """
        rng = np.random.default_rng(seed)
        return {
            tensor.name: _values(rng, tensor.dtype, concrete(tensor.shape, sizes), special) for tensor in self.inputs
        }


def concrete(shape: Sequence[Size], sizes: Mapping[str, int] = SIZES) -> tuple[int, ...]:
    """A shape as it is when the model is run."""
    return tuple(size if isinstance(size, int) else sizes[size] for size in shape)


def _values(rng: np.random.Generator, dtype: int, shape: tuple[int, ...], special: Sequence[float] = ()) -> Array:
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    if dtype == BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in INTEGERS:
        low = 0 if dtype == UINT8 else -5
        values = rng.integers(low, 6, shape).astype(kind)
        extremes: Sequence[float] = (np.iinfo(kind).min, np.iinfo(kind).max)
    else:
        values = (rng.standard_normal(shape) * rng.choice([0.5, 3.0])).astype(kind)
        largest = float(np.finfo(kind).max)
        extremes = [min(number, largest) if isfinite(number) else number for number in special]
    if special:
        values = np.where(rng.random(shape) < 0.25, np.asarray(rng.choice(np.asarray(extremes, kind), shape)), values)
    return np.asarray(values, kind)


@dataclass
class Drawing:
    """A graph that is being drawn. Bodies are drawings of their own that see the values around them."""

    rng: random.Random
    opset: int
    names: list[int] = field(default_factory=lambda: [0])
    outer: Drawing | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def name(self, base: str) -> str:
        self.names[0] += 1
        return f"{base}_{self.names[0]}"

    # -- what there is to read -----------------------------------------------------------------------------------------

    def seen(self) -> list[Tensor]:
        """All values that a node may read, those of enclosing graphs too."""
        return [*(self.outer.seen() if self.outer else ()), *self.values]

    def pick(self, dtypes: Sequence[int], fits: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor:
        """A value of one of some types that fits, one of the latest more often than others. Raises NotHere."""
        found = [tensor for tensor in self.seen() if tensor.dtype in dtypes and fits(tensor)]
        if not found:
            raise NotHere
        return self.rng.choice(found[-4:] if self.rng.random() < 0.7 else found)

    # -- what is made --------------------------------------------------------------------------------------------------

    def node(
        self, op: str, inputs: Sequence[Tensor | None], *outputs: tuple[int, Sequence[Size]], **attrs: Any
    ) -> Tensor:
        """Add a node; returns its first output."""
        made = [Tensor(self.name(op.lower()), dtype, tuple(shape)) for dtype, shape in outputs]
        names = ["" if tensor is None else tensor.name for tensor in inputs]
        node = helper.make_node(op, names, [tensor.name for tensor in made], **attrs)
        if self.rng.random() < 0.5:
            node.name = self.name("n")
        self.nodes.append(node)
        self.values += made
        return made[0]

    def constant(self, array: Array) -> Tensor:
        """A constant, as an initializer or a node."""
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = Tensor(self.name("c"), dtype, array.shape)
        proto = numpy_helper.from_array(array, tensor.name)
        if self.rng.random() < 0.3:
            self.nodes.append(helper.make_node("Constant", [], [tensor.name], value=proto))
        else:
            self.weights.append(proto)
        return tensor

    def numbers(self, *numbers: int) -> Tensor:
        return self.constant(np.array(numbers, np.int64))

    def weight(self, dtype: int, shape: Sequence[int]) -> Tensor:
        """Random numbers, or a single number that operators treat in a way of its own."""
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        if self.rng.random() < 0.4:
            number = self.rng.choice(SPECIAL if dtype in FLOATS else (0, 1, 2, 3))
            with np.errstate(over="ignore"):
                return self.constant(np.full(shape, number, kind))
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        return self.constant(_values(rng, dtype, tuple(shape)))

    def beside(self, tensor: Tensor) -> Tensor:
        """A second operand that broadcasts with a value: another value, or a constant."""
        fits = [other for other in self.seen() if other.dtype == tensor.dtype and _broadcast(tensor.shape, other.shape)]
        if fits and self.rng.random() < 0.5:
            return self.rng.choice(fits)
        shape = [size if isinstance(size, int) and self.rng.random() < 0.5 else 1 for size in tensor.shape]
        return self.weight(tensor.dtype, shape[self.rng.randrange(len(shape) + 1) :])


class NotHere(Exception):
    """What is to be drawn needs a value that there is none of."""


def _broadcast(a: Sequence[Size], b: Sequence[Size]) -> tuple[Size, ...] | None:
    """The shape of an elementwise result; None where the two do not fit for all sizes."""
    rank = max(len(a), len(b))
    sizes: list[Size] = []
    for left, right in zip((*[1] * (rank - len(a)), *a), (*[1] * (rank - len(b)), *b), strict=True):
        if left != right and 1 not in (left, right):
            return None
        sizes.append(right if left == 1 else left)
    return tuple(sizes)


# -- operators ---------------------------------------------------------------------------------------------------------

UNARY: Mapping[str, int] = {
    **dict.fromkeys(("Relu", "Neg", "Abs", "Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Reciprocal", "Floor", "Ceil"), 9),
    **dict.fromkeys(("Erf", "Softplus", "Softsign", "Identity", "Sign", "Elu", "Selu", "LeakyRelu", "HardSigmoid"), 9),
    **dict.fromkeys(("Sin", "Cos", "Dropout"), 9),
    "ThresholdedRelu": 10,
    "Round": 11,
    "Celu": 12,
    "HardSwish": 14,
    "Mish": 18,
    "Gelu": 20,
}
"""Operators on floats that keep the shape, with the opset from which on they are there."""


def unary(d: Drawing) -> None:
    x = d.pick(FLOATS)
    d.node(d.rng.choice([op for op, since in UNARY.items() if since <= d.opset]), [x], (x.dtype, x.shape))


def unary_on_integers(d: Drawing) -> None:
    x = d.pick((INT64, INT32))
    d.node(d.rng.choice(["Neg", "Abs", "Identity", "Sign"]), [x], (x.dtype, x.shape))


def identity(d: Drawing) -> None:
    x = d.pick((*FLOATS, *INTEGERS, BOOL))
    d.node("Identity", [x], (x.dtype, x.shape))


def binary(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64, INT32))
    y, op = d.beside(x), d.rng.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean"])
    if x.dtype not in FLOATS and (op in ("Div", "Mean", "Sum", "Pow") or d.opset < 12):
        op = d.rng.choice(["Add", "Sub", "Mul"])
    x, y = (x, y) if d.rng.random() < 0.6 else (y, x)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    d.node(op, [x, y], (x.dtype, shape))


def quotient(d: Drawing) -> None:
    """Of integers, by a number that is not 0."""
    x = d.pick((INT64, INT32))
    kind = helper.tensor_dtype_to_np_dtype(x.dtype)
    by = d.constant(np.array(d.rng.choice([1, 2, 3, 7, -2]), kind))
    d.node("Mod" if d.opset >= 10 and d.rng.random() < 0.5 else "Div", [x, by], (x.dtype, x.shape))


def comparison(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64, INT32))
    y = d.beside(x)
    choices = ["Greater", "Less"] + ["Equal"] * (d.opset >= 11 or x.dtype not in FLOATS)
    choices += ["GreaterOrEqual", "LessOrEqual"] * (d.opset >= 12)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    d.node(d.rng.choice(choices), [x, y], (BOOL, shape))


def logic(d: Drawing) -> None:
    x = d.pick((BOOL,))
    y = d.beside(x)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    if d.rng.random() < 0.3:
        d.node("Not", [x], (BOOL, x.shape))
    else:
        d.node(d.rng.choice(["And", "Or", "Xor"]), [x, y], (BOOL, shape))


def where(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64))
    y = d.beside(x)
    shape = _broadcast(x.shape, y.shape)
    assert shape is not None
    if d.rng.random() < 0.3:
        condition = d.constant(np.full((1,) * d.rng.randrange(2), d.rng.random() < 0.5))
    else:
        condition = d.pick((BOOL,), lambda c: _broadcast(c.shape, shape) is not None)
    full = _broadcast(condition.shape, shape)
    assert full is not None
    d.node("Where", [condition, x, y], (x.dtype, full))


def clip(d: Drawing) -> None:
    x = d.pick(FLOATS if d.opset < 12 else (*FLOATS, INT64))
    if x.dtype in FLOATS and d.opset < 11:
        bounds = {name: d.rng.choice([-1.0, 0.0, 1.0, 6.0]) for name in ("min", "max") if d.rng.random() < 0.7}
        d.node("Clip", [x], (x.dtype, x.shape), **bounds)
        return
    kind = helper.tensor_dtype_to_np_dtype(x.dtype)
    low, high = (
        d.constant(np.array(d.rng.choice([-1, 0, 1, 6]), kind)) if d.rng.random() < 0.7 else None for _ in range(2)
    )
    d.node("Clip", [x, low, high], (x.dtype, x.shape))


def cast(d: Drawing) -> None:
    x = d.pick((*FLOATS, *INTEGERS, BOOL))
    targets = (*FLOATS, BOOL) if x.dtype in FLOATS else (*FLOATS, INT64, INT32, BOOL)
    to = d.rng.choice(targets)
    d.node("Cast", [x], (to, x.shape), to=to)


def transpose(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64), lambda x: x.rank > 0)
    perm = d.rng.sample(range(x.rank), x.rank)
    d.node("Transpose", [x], (x.dtype, [x.shape[axis] for axis in perm]), perm=perm)


def reshape(d: Drawing) -> None:
    """To a constant shape, or to one that is read off a value."""
    x = d.pick((*FLOATS, INT64), lambda x: x.rank > 0)
    if d.rng.random() < 0.3:
        other = d.pick((*FLOATS, *INTEGERS, BOOL), lambda t: sorted(map(str, t.shape)) == sorted(map(str, x.shape)))
        shape = d.node("Shape", [other], (INT64, [other.rank]))
        d.node("Reshape", [x, shape], (x.dtype, other.shape))
        return
    axis = d.rng.randrange(x.rank)
    if axis + 1 < x.rank and all(isinstance(size, int) for size in x.shape[axis : axis + 2]):
        merged = prod(concrete(x.shape[axis : axis + 2]))
        wanted: list[Size] = [*x.shape[:axis], merged, *x.shape[axis + 2 :]]
    else:
        wanted = [*x.shape[:axis], 1, *x.shape[axis:]]
    if 0 in x.shape or "empty" in x.shape:
        raise NotHere
    symbols = [size for size in wanted if isinstance(size, str)]
    if len(symbols) > 1:
        raise NotHere
    target = d.numbers(*(size if isinstance(size, int) else -1 for size in wanted))
    d.node("Reshape", [x, target], (x.dtype, wanted))


def flatten(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank > 0 and all(isinstance(size, int) for size in x.shape))
    axis = d.rng.randrange(x.rank + 1)
    sizes = concrete(x.shape)
    d.node("Flatten", [x], (x.dtype, [prod(sizes[:axis]), prod(sizes[axis:])]), axis=axis)


def unsqueeze(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64, BOOL), lambda x: x.rank < 4)
    axis = d.rng.randrange(x.rank + 1)
    shape = [*x.shape[:axis], 1, *x.shape[axis:]]
    if d.opset < 13:
        d.node("Unsqueeze", [x], (x.dtype, shape), axes=[axis])
    else:
        d.node("Unsqueeze", [x, d.numbers(axis)], (x.dtype, shape))


def squeeze(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64, BOOL), lambda x: 1 in x.shape)
    axis = d.rng.choice([axis for axis, size in enumerate(x.shape) if size == 1])
    shape = [*x.shape[:axis], *x.shape[axis + 1 :]]
    if d.opset < 13:
        d.node("Squeeze", [x], (x.dtype, shape), axes=[axis])
    else:
        d.node("Squeeze", [x, d.numbers(axis)], (x.dtype, shape))


def expand(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64))
    if d.rng.random() < 0.5:
        target = d.pick((*FLOATS, *INTEGERS, BOOL), lambda t: _broadcast(x.shape, t.shape) is not None)
        shape = _broadcast(x.shape, target.shape)
        assert shape is not None
        d.node("Expand", [x, d.node("Shape", [target], (INT64, [target.rank]))], (x.dtype, shape))
    else:
        leading = [d.rng.choice([1, 2])] * (x.rank < 4)
        target = d.numbers(*leading, *[1] * x.rank)
        d.node("Expand", [x, target], (x.dtype, [*leading, *x.shape]))


def tile(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank > 0 and all(isinstance(size, int) for size in x.shape))
    repeats = [d.rng.choice([1, 1, 2]) for _ in x.shape]
    d.node(
        "Tile", [x, d.numbers(*repeats)], (x.dtype, [a * b for a, b in zip(concrete(x.shape), repeats, strict=True)])
    )


def slice_(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64), lambda x: any(isinstance(size, int) and size > 0 for size in x.shape))
    axis = d.rng.choice([axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size > 0])
    size = x.shape[axis]
    assert isinstance(size, int)
    step = d.rng.choice([1, 1, 2, -1, -2]) if d.opset >= 10 else 1
    start = d.rng.choice([0, 1, size - 1, -1, -size, size + 3])
    end = d.rng.choice([size, 1, -1, 1 << 31, (1 << 63) - 1, (1 << 31) - 1, -size - 1, -(1 << 31)])
    taken = len(range(*slice(start, end, step).indices(size)))
    if step < 0 and end in ((1 << 63) - 1, (1 << 31) - 1):  # ONNX Runtime takes these as "to the end", backwards too
        taken = len(range(*slice(start, None, step).indices(size)))
    shape = [*x.shape[:axis], taken, *x.shape[axis + 1 :]]
    if d.opset < 10:
        d.node("Slice", [x], (x.dtype, shape), starts=[start], ends=[end], axes=[axis])
    else:
        ends = d.numbers(start), d.numbers(end), d.numbers(axis), d.numbers(step)
        d.node("Slice", [x, *ends], (x.dtype, shape))


def gather(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64), lambda x: any(isinstance(size, int) and size > 0 for size in x.shape))
    axis = d.rng.choice([axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size > 0])
    size = x.shape[axis]
    assert isinstance(size, int)
    low = -size if d.opset >= 11 else 0
    chosen = [d.rng.randrange(low, size) for _ in range(d.rng.randrange(1, 4))]
    indices = d.constant(np.array(chosen[0] if d.rng.random() < 0.4 else chosen, np.int64))
    d.node("Gather", [x, indices], (x.dtype, [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]), axis=axis)


def concat(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64), lambda x: any(isinstance(size, int) for size in x.shape))
    axis = d.rng.choice([axis for axis, size in enumerate(x.shape) if isinstance(size, int)])

    def fits(y: Tensor) -> bool:
        return (
            y.rank == x.rank
            and isinstance(y.shape[axis], int)
            and all(a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis)
        )

    parts = [x, *(d.pick((x.dtype,), fits) for _ in range(d.rng.randrange(0, 3)))]
    total = sum(part.shape[axis] for part in parts if isinstance(part.shape[axis], int))  # type: ignore[misc]
    d.node("Concat", parts, (x.dtype, [*x.shape[:axis], total, *x.shape[axis + 1 :]]), axis=axis)


def split(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: any(isinstance(size, int) and size % 2 == 0 and size for size in x.shape))
    axis = d.rng.choice([a for a, size in enumerate(x.shape) if isinstance(size, int) and size % 2 == 0 and size])
    size = x.shape[axis]
    assert isinstance(size, int)
    part = (x.dtype, [*x.shape[:axis], size // 2, *x.shape[axis + 1 :]])
    attrs = {"num_outputs": 2} if d.opset >= 18 else {}
    d.node("Split", [x], part, part, axis=axis, **attrs)


def pad(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank > 0 and all(isinstance(size, int) and size > 0 for size in x.shape))
    pads = [d.rng.choice([0, 0, 1]) for _ in range(2 * x.rank)]
    sizes = [size + pads[i] + pads[i + x.rank] for i, size in enumerate(concrete(x.shape))]
    if d.opset < 11:
        d.node("Pad", [x], (x.dtype, sizes), pads=pads)
    else:
        d.node("Pad", [x, d.numbers(*pads)], (x.dtype, sizes))


def reduce_(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank > 0)
    kind = d.rng.choice(["Sum", "Mean", "Max", "Min", "Prod", "L2", "L1", "SumSquare"])
    axes = sorted(d.rng.sample(range(x.rank), d.rng.randrange(1, x.rank + 1)))
    if kind in ("Max", "Min") and any(x.shape[axis] in (0, "empty") for axis in axes):
        raise NotHere
    keep = d.rng.random() < 0.5
    shape = [1 if a in axes else size for a, size in enumerate(x.shape) if keep or a not in axes]
    if d.opset < (13 if kind == "Sum" else 18):
        d.node(f"Reduce{kind}", [x], (x.dtype, shape), axes=axes, keepdims=int(keep))
    else:
        d.node(f"Reduce{kind}", [x, d.numbers(*axes)], (x.dtype, shape), keepdims=int(keep))


def arg_max(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: any(isinstance(size, int) and size > 0 for size in x.shape))
    axis = d.rng.choice([axis for axis, size in enumerate(x.shape) if isinstance(size, int) and size > 0])
    d.node("ArgMax", [x], (INT64, [*x.shape[:axis], *x.shape[axis + 1 :]]), axis=axis, keepdims=0)


def softmax(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank > 0)
    axis = x.rank - 1 if d.opset < 13 else d.rng.randrange(x.rank)
    d.node(d.rng.choice(["Softmax", "LogSoftmax"]), [x], (x.dtype, x.shape), axis=axis)


def matmul(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank >= 2 and isinstance(x.shape[-1], int))
    inner, wide = x.shape[-1], d.rng.choice([1, 3, 4])
    assert isinstance(inner, int)
    product = d.node("MatMul", [x, d.weight(x.dtype, (inner, wide))], (x.dtype, [*x.shape[:-1], wide]))
    if d.rng.random() < 0.5:
        d.node("Add", [product, d.weight(x.dtype, (wide,))], (x.dtype, product.shape))


def gemm(d: Drawing) -> None:
    x = d.pick(FLOATS, lambda x: x.rank == 2 and isinstance(x.shape[-1], int))
    inner, wide = x.shape[-1], d.rng.choice([1, 3, 4])
    assert isinstance(inner, int)
    turned = d.rng.random() < 0.5
    w = d.weight(x.dtype, (wide, inner) if turned else (inner, wide))
    bias = [d.weight(x.dtype, (wide,))] if d.opset < 11 or d.rng.random() < 0.6 else []
    attrs: dict[str, Any] = {"transB": 1} if turned else {}
    if d.rng.random() < 0.3:
        attrs["alpha"] = 0.5
    d.node("Gemm", [x, w, *bias], (x.dtype, [x.shape[0], wide]), **attrs)


def _is_image(x: Tensor) -> bool:
    return x.rank == 4 and all(isinstance(size, int) and size > 0 for size in x.shape[1:])


def convolution(d: Drawing) -> None:
    x = d.pick((FLOAT,), _is_image)
    channels, kernel, made = x.shape[1], d.rng.choice([1, 3]), d.rng.choice([1, 2, 4])
    assert isinstance(channels, int)
    bias = [d.weight(FLOAT, (made,))] if d.rng.random() < 0.5 else []
    w = d.weight(FLOAT, (made, channels, kernel, kernel))
    d.node("Conv", [x, w, *bias], (FLOAT, [x.shape[0], made, *x.shape[2:]]), pads=[kernel // 2] * 4)


def batch_normalization(d: Drawing) -> None:
    x = d.pick((FLOAT, DOUBLE), lambda x: x.rank >= 2 and isinstance(x.shape[1], int))
    channels = x.shape[1]
    assert isinstance(channels, int)
    variance = d.constant(np.full(channels, 0.5, helper.tensor_dtype_to_np_dtype(x.dtype)))
    three = [d.weight(x.dtype, (channels,)) for _ in range(3)]
    d.node("BatchNormalization", [x, *three, variance], (x.dtype, x.shape))


def layer_normalization(d: Drawing) -> None:
    x = d.pick((FLOAT, DOUBLE), lambda x: x.rank >= 1 and isinstance(x.shape[-1], int) and x.shape[-1] > 0)
    size = x.shape[-1]
    assert isinstance(size, int)
    if d.opset < 17:
        raise NotHere
    bias = [d.weight(x.dtype, (size,))] if d.rng.random() < 0.5 else []
    d.node("LayerNormalization", [x, d.weight(x.dtype, (size,)), *bias], (x.dtype, x.shape))


def quantized(d: Drawing) -> None:
    """What integers stand for, one or two operators on it, and both ways again by the same scale or another.

    Nothing that is quantized is NaN: what it becomes is not defined.
    """
    if d.opset < 13:
        raise NotHere
    x = d.pick((BOOL, INT64, INT32, UINT8))
    x = x if x.dtype == UINT8 else d.node("Cast", [x], (UINT8, x.shape), to=UINT8)
    scale, zero = _grid(d, np.uint8)
    y = d.node("DequantizeLinear", [x, scale, zero], (FLOAT, x.shape))
    for op in d.rng.choices(["Relu", "Neg", "Transpose", "Sigmoid"], k=d.rng.randrange(3)):
        y = d.node(op, [y], (FLOAT, y.shape[::-1] if op == "Transpose" else y.shape))
    kind = d.rng.choice([np.uint8, np.int8])
    if kind is np.int8 or d.rng.random() < 0.5:
        scale, zero = _grid(d, kind)
    q = d.node("QuantizeLinear", [y, scale, zero], (zero.dtype, y.shape))
    d.node("DequantizeLinear", [q, scale if d.rng.random() < 0.5 else _grid(d, kind)[0], zero], (FLOAT, y.shape))


def _grid(d: Drawing, kind: Any) -> tuple[Tensor, Tensor]:
    """A scale and a zero point."""
    scale, zero = d.rng.choice([1e-3, 0.5, 100.0, 300.0]), d.rng.choice([0, 3, 127])
    return d.constant(np.array(scale, np.float32)), d.constant(np.array(zero, kind))


def pool(d: Drawing) -> None:
    x = d.pick((FLOAT,), lambda x: _is_image(x) and all(isinstance(size, int) and size >= 2 for size in x.shape[2:]))
    height, width = concrete(x.shape[2:])
    if d.rng.random() < 0.3:
        d.node("GlobalAveragePool", [x], (FLOAT, [*x.shape[:2], 1, 1]))
    else:
        op = d.rng.choice(["MaxPool", "AveragePool"])
        d.node(op, [x], (FLOAT, [*x.shape[:2], height - 1, width - 1]), kernel_shape=[2, 2])


def sizes(d: Drawing) -> None:
    """Arithmetic on sizes, as exporters leave it behind."""
    x = d.pick((*FLOATS, *INTEGERS, BOOL), lambda x: x.rank > 0)
    shape = d.node("Shape", [x], (INT64, [x.rank]))
    index = d.constant(np.array(d.rng.randrange(x.rank), np.int64))
    size = d.node("Gather", [shape, index], (INT64, []))
    if d.rng.random() < 0.6:
        by = d.constant(np.array(d.rng.choice([1, 2, 3]), np.int64))
        d.node(d.rng.choice(["Mul", "Add", "Div", "Sub"]), [size, by], (INT64, []))


def filled(d: Drawing) -> None:
    x = d.pick((*FLOATS, INT64))
    value = numpy_helper.from_array(np.array([d.rng.choice(SPECIAL)], np.float32))
    shape = d.node("Shape", [x], (INT64, [x.rank]))
    d.node("ConstantOfShape", [shape], (FLOAT, x.shape), value=value)


def running_sum(d: Drawing) -> None:
    x = d.pick((FLOAT, DOUBLE, INT64), lambda x: x.rank > 0)
    if d.opset < 11:
        raise NotHere
    d.node("CumSum", [x, d.constant(np.array(d.rng.randrange(x.rank), np.int64))], (x.dtype, x.shape))


def repeated(d: Drawing) -> None:
    """A node that is there already, once more."""
    old = d.rng.choice(d.nodes) if d.nodes else None
    made = {tensor.name: tensor for tensor in d.values}
    if old is None or not old.output[0] or any(name not in made for name in old.output):
        raise NotHere
    twin = onnx.NodeProto()
    twin.CopyFrom(old)
    del twin.output[:]
    twin.name = ""
    for name in old.output:
        fresh = Tensor(d.name("again"), made[name].dtype, made[name].shape)
        twin.output.append(fresh.name)
        d.values.append(fresh)
    d.nodes.append(twin)
