"""Every denotation against `onnx.reference`, on random small tensors over the attributes that it claims."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphopt import ops
from graphopt.term import App, Lit, Term
from graphopt.verifier.instances import Undefined, Unsupported
from graphopt.verifier.semantics import OPERATORS
from tests.verifier.concrete import Array, holes, outputs

CASES = 12
"""Per operator: what a test run can afford; the seeds are fixed."""
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

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    def size(self, least: int = 1, most: int = 3) -> int:
        return self.random.randint(least, most)

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.size(least, most)))

    def array(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Array:
        return self.numpy.uniform(low, high, shape).astype(np.float32)

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
        return Case([d.array(*d.shape(), low=low, high=high)], d.some(**drawn))

    return build


def shapes_that_broadcast(d: Draw, count: int) -> list[tuple[int, ...]]:
    full = d.shape()
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


def window(d: Draw, space: tuple[int, ...], kernel: tuple[int, ...], *, auto: bool = True) -> dict[str, Any]:
    rank = len(space)
    attrs = d.some(strides=[d.size() for _ in space], dilations=[d.size(1, 2) for _ in space])
    mode = d.choice("pads", "none", "VALID", "SAME_UPPER", "SAME_LOWER") if auto else "pads"
    if mode == "pads":
        attrs["pads"] = [d.size(0, max(kernel[i % rank] - 1, 0)) for i in range(2 * rank)]
    elif mode != "none":
        attrs["auto_pad"] = mode
        attrs.pop("dilations", None) if mode.startswith("SAME") else None
    return attrs


def conv(d: Draw) -> Case:
    space = tuple(d.size(3, 5) for _ in range(d.choice(1, 1, 2, 2, 3)))
    kernel = tuple(d.size(1, 2) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(d.size(1, 2), i * group, *space), d.array(o * group, i, *kernel)]
    inputs += [d.array(o * group)] if d.flag() else []
    return Case(inputs, {**window(d, space, kernel), **({"group": group} if group > 1 or d.flag() else {})})


def conv_transpose(d: Draw) -> Case:
    space = tuple(d.size(2, 3) for _ in range(d.choice(1, 2)))
    kernel = tuple(d.size(1, 3) for _ in space)
    group, i, o = d.choice(1, 1, 2), d.size(1, 2), d.size(1, 2)
    inputs = [d.array(1, i * group, *space), d.array(i * group, o, *kernel)]
    inputs += [d.array(o * group)] if d.flag() else []
    attrs = d.some(strides=[d.size(1, 2) for _ in space], dilations=[d.size(1, 2) for _ in space])
    if d.flag():
        attrs["pads"] = [d.size(0, 1) if kernel[i % len(space)] > 1 else 0 for i in range(2 * len(space))]
    return Case(inputs, {**attrs, "group": group})


def pool(*, average: bool, lp: bool = False) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        space = tuple(d.size(3, 5) for _ in range(d.choice(1, 2, 2)))
        kernel = tuple(d.size(1, 2) for _ in space)
        attrs = {**window(d, space, kernel), "kernel_shape": list(kernel)}
        attrs |= d.some(count_include_pad=d.flag()) if average else {}
        attrs |= {"p": d.size(1, 3)} if lp else {}
        if "auto_pad" not in attrs:
            attrs |= d.some(ceil_mode=d.flag())
        return Case([d.array(1, d.size(1, 2), *space)], attrs)

    return build


def global_pool(d: Draw) -> Case:
    return Case([d.array(d.size(), d.size(), *d.shape(1, 2))])


def reduce(low: float = -2.0) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.array(*d.shape(1), low=low)
        axes = d.axes(x.ndim, 1)
        return Case([x, axes] if d.random.random() < 0.8 else [x], d.some(keepdims=d.flag()))

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
    x = d.array(*d.shape(2))
    c = x.shape[1]
    parameters = [d.array(c), d.array(c), d.array(c), d.array(c, low=0.1)]
    return Case([x, *parameters], d.some(epsilon=0.01, momentum=0.5))


def layer_normalization(d: Draw) -> Case:
    x = d.array(*d.shape(1))
    axis = d.axis(x.ndim)
    tail = x.shape[axis:]
    return Case([x, d.array(*tail), *([d.array(*tail)] if d.flag() else [])], {"axis": axis, **d.some(epsilon=0.01)})


def rms_normalization(d: Draw) -> Case:
    x = d.array(*d.shape(1))
    axis = d.axis(x.ndim)
    return Case([x, d.array(*x.shape[axis:])], {"axis": axis, **d.some(epsilon=0.01)})


def instance_normalization(d: Draw) -> Case:
    x = d.array(d.size(), d.size(), *d.shape(1, 2))
    return Case([x, d.array(x.shape[1]), d.array(x.shape[1])], d.some(epsilon=0.01))


def transpose(d: Draw) -> Case:
    x = d.array(*d.shape())
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
    for i, n in enumerate(shape):
        if i < x.ndim and n == x.shape[i] and d.flag():
            shape[i] = 0
    return Case([x, tuple(shape)])


def flatten(d: Draw) -> Case:
    x = d.array(*d.shape())
    return Case([x], d.some(axis=d.random.randint(-x.ndim, x.ndim)) if x.ndim else {"axis": 0})


def squeeze(d: Draw) -> Case:
    x = d.array(*(d.choice(1, 1, 2) for _ in range(d.size(1, 4))))
    ones = [i for i, s in enumerate(x.shape) if s == 1]
    chosen = d.random.sample(ones, d.random.randint(0, len(ones)))
    return Case([x, tuple(a - x.ndim if d.flag() else a for a in chosen)])


def unsqueeze(d: Draw) -> Case:
    x = d.array(*d.shape(0, 3))
    rank = x.ndim + d.size(1, 2)
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
    axes = d.axes(x.ndim, 1)
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
    return Case([x, tuple(d.axis(n) for _ in range(d.size()))], {"axis": axis})


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
    equation = d.choice("ab,bc->ac", "ab->ba", "abc,cd->abd", "ab,ab->", "a,b->ab", "abc->b")
    sizes = {letter: d.size() for letter in "abcd"}
    terms = equation.partition("->")[0].split(",")
    return Case([d.array(*(sizes[letter] for letter in t)) for t in terms], {"equation": equation})


def arg(d: Draw) -> Case:
    x = np.round(d.array(*d.shape(1)))
    return Case([x], {"axis": d.axis(x.ndim), **d.some(keepdims=d.flag(), select_last_index=d.flag())})


def cast(d: Draw) -> Case:
    return Case([d.array(*d.shape()) * 3], {"to": d.choice(TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.INT32)})


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
    **{
        f: unary() for f in ("Neg", "Relu", "Sigmoid", "Softplus", "Softsign", "Mish", "HardSwish", "Exp", "Abs", "Erf")
    },
    **{f: unary() for f in ("Tanh", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh", "Floor", "Ceil", "Round")},
    **{f: unary() for f in ("Erf", "Sign", "IsNaN", "IsInf", "Identity", "Dropout", "Shape", "Size")},
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
}

UNTESTED = {
    "Mod": "only its name is known",
    "BitShift": "only its name is known",
    "BitwiseAnd": "only its name is known",
    "BitwiseOr": "only its name is known",
    "BitwiseXor": "only its name is known",
    "BitwiseNot": "only its name is known",
    "CastLike": "as Cast",
    "ConstantOfShape": "zeros",
}


def model(name: str, case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One node as a model, and what it is fed."""
    feeds, names, constants = {}, [], []
    for position, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{position}")
        if isinstance(value, np.ndarray):
            feeds[names[-1]] = value
        elif value is not None:
            constants.append(numpy_helper.from_array(np.array(value, np.int64), names[-1]))
    while names[-1] == "":
        names.pop()
    results = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(name, names, results, **case.attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    typed = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "one", inputs, typed, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)]), feeds


def application(name: str, case: Case, feeds: dict[str, Array]) -> App:
    """The node in the language of rules."""
    by_name = holes(feeds)
    args: list[Term | None] = []
    for position, value in enumerate(case.inputs):
        args.append(None if value is None else by_name.get(f"x{position}") or Lit(value))
    while args[-1] is None:
        args.pop()
    attrs = {k: Lit(tuple(v) if isinstance(v, list) else v) for k, v in case.attrs.items()}
    return App(name, tuple(args), tuple(sorted(attrs.items())), outputs=case.outputs)


def expected(name: str, case: Case) -> list[Array] | None:
    proto, feeds = model(name, case)
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, feeds)]
    except Exception:  # the reference has no implementation, or refuses the case
        return None


def onnxruntime_says(name: str, case: Case) -> list[Array]:
    import onnxruntime

    proto, feeds = model(name, case)
    proto.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


# Where `onnx.reference` departs from the text, ONNX Runtime is asked.
RUNTIME = {"GlobalMaxPool", "GlobalAveragePool", "MaxPool", "AveragePool", "LpPool", "Conv", "ConvTranspose", "Pad"}


def check(name: str, case: Case) -> bool:
    _, feeds = model(name, case)
    try:
        wanted = onnxruntime_says(name, case) if name in RUNTIME else expected(name, case)
    except Exception:  # what the runtime raises has no common base
        return False
    if wanted is None:
        return False
    found = outputs(application(name, case, feeds), feeds, case.outputs)
    for one, other in zip(wanted, found, strict=True):
        assert one.shape == other.shape, f"{name} {case}"
        np.testing.assert_allclose(other, one.astype(np.float64), rtol=2e-4, atol=2e-4, err_msg=f"{name} {case}")
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES_OF))
def test_it_is_what_the_operator_computes(name: str) -> None:
    checked = 0
    for seed in range(3 * CASES):
        try:
            checked += check(name, CASES_OF[name](Draw(seed)))
        except Unsupported:
            continue
        except Undefined as error:
            raise AssertionError(f"{name}, seed {seed}: {error}") from error
        if checked == CASES:
            return
    assert checked >= CASES // 2, f"only {checked} cases could be compared"


def test_every_operator_is_tested() -> None:
    assert set(OPERATORS) == set(CASES_OF) | set(UNTESTED)


@pytest.mark.parametrize("seed", range(30))
def test_gather_of_indices_that_are_not_known(seed: int) -> None:
    assert check("Gather", gather_tensor(Draw(seed)))
