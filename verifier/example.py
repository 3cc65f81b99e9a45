"""One instance of a rule as two small ONNX models: what tests run, and how a counterexample is shown.

`instances` draws sizes, attributes and values that satisfy a rule; `instance` completes what a caller has fixed;
`models` writes the two sides. Knows neither what the operators compute nor how rules are matched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.defs import OpSchema

from graphopt.base.types import DType, TensorType
from graphopt.ir import ops
from graphopt.ir.graph import Node
from graphopt.ir.tensor import Tensor
from graphopt.language.rule import Rule
from graphopt.language.scalar import FACTS, PROPERTIES, PYTHON, Unknown, apply, has_property
from graphopt.language.schemas import Misfit, Operator, Place, Types, described
from graphopt.language.term import SCALAR, App, Lit, Term, Var, applications, holes, is_scalar, walk
from graphopt.operators.protos import node_to_proto, tensor_to_proto, type_from_proto, type_to_proto
from graphopt.verifier.scope import ANY, WITH_PROPERTY, Scope, random_array

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Mapping[str, "int | Shape"]
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Instance:
    """Everything that a rule leaves open, fixed.

    `dims`: the size of each named axis, the sizes of each pack (`"*b": (2, 3)`), the shape of each hole without axes.
    `values`: by hole, an attribute's value (a dict for `attributes`), or an array: the weights, and what is fed.
    None is an optional input that is absent.
    """

    dims: Sizes
    values: Mapping[str, Any]
    written: Mapping[str, Shape] = field(default_factory=dict)
    """Constants that the left model holds in another, broadcast-equivalent shape."""

    def feeds(self, rule: Rule) -> dict[str, Array]:
        """What both models read, by input name."""
        return {name: self.values[name] for name, hole in rule.holes.items() if hole.kind == "tensor"}

    def __str__(self) -> str:
        shown = [f"{name}={size}" for name, size in self.dims.items()]
        for name, value in self.values.items():
            text = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else value
            shown.append(f"{name}={text}")
        return ", ".join(shown)


def instances(
    rule: Rule, seed: int = 0, count: int = 10, attempts: int = 5_000, *, scope: Scope = ANY
) -> Iterator[Instance]:
    """Up to `count` instances, the same for the same seed; fewer where `attempts` draws did not give as many."""
    rng = random.Random(f"{rule.name}/{seed}")
    try:
        types = Types(rule.left, {}, scope.dtypes).obey(rule.conditions)
    except Misfit:
        return
    for _ in range(attempts):
        if count == 0:
            return
        try:
            yield _Draft(rule, rng, types.copy(), {}, {}, scope).finished()
            count -= 1
        except (Misfit, Unknown):
            continue


def instance(
    rule: Rule, dims: Sizes, values: Mapping[str, Any], seed: int = 0, attempts: int = 2_000
) -> Instance | None:
    """The instance with these sizes and values, the rest drawn; None where the draws found none."""
    rng = random.Random(seed)
    for _ in range(attempts):
        try:
            known = {name: DType.of(value.dtype) for name, value in values.items() if isinstance(value, np.ndarray)}
            return _Draft(rule, rng, Types(rule.left, known), dict(dims), dict(values)).finished()
        except (Misfit, Unknown):
            continue
    return None


# -- scalar terms --------------------------------------------------------------------------------------------------


def evaluate(term: Term, rule: Rule, instance: Instance) -> Any:
    """The value of a scalar term: an attribute of the right side, or a condition."""
    match term:
        case Lit(value=value):
            return value
        case Var(name=name):
            return instance.values[name]
        case App(op="size" | "sizes" as fact, args=(Lit(value=axes),)):
            sizes = _shape(str(axes).split(), instance.dims)
            return sizes[0] if fact == "size" else sizes
        case App(op="shape" | "rank" | "dtype" as fact, args=(Var(name=name),)):
            array = _array(rule, instance, name)
            return {"shape": array.shape, "rank": array.ndim, "dtype": DType.of(array.dtype)}[fact]
        case App(op=name, args=(Var() as hole,)) if name in PROPERTIES:
            return has_property(name, _array(rule, instance, hole.name))
    assert term.domain == SCALAR, f"{term} is not scalar"
    operands = [evaluate(arg, rule, instance) for arg in term.operands]
    return apply(term.op, PYTHON, *operands)


def satisfies(rule: Rule, instance: Instance) -> bool:
    """Whether every condition of the rule holds."""
    return all(evaluate(condition, rule, instance) for condition in rule.conditions)


def _array(rule: Rule, instance: Instance, name: str) -> Array:
    """The array of a hole in its declared shape; what an absent optional input stands for."""
    value = instance.values[name]
    if isinstance(value, np.ndarray):
        return value
    hole = rule.holes[name]
    assert hole.default is not None and hole.axes is not None, f"{name} has no value"
    dtypes = [value.dtype for value in instance.values.values() if isinstance(value, np.ndarray)]
    dtype = next((dtype for dtype in dtypes if dtype.kind not in "bi"), dtypes[0])
    return np.full(_shape(hole.axes, instance.dims), hole.default, dtype)


def _shape(axes: Iterable[str], dims: Sizes) -> Shape:
    """The sizes of axes; raises KeyError for a name without a size."""
    shape: list[int] = []
    for axis in axes:
        if axis.startswith("1*"):
            pack = dims[axis[1:]]
            assert isinstance(pack, tuple)
            shape += [1] * len(pack)
        else:
            size = int(axis) if axis.isdigit() else dims[axis]
            shape += size if isinstance(size, tuple) else (size,)
    return tuple(shape)


# -- drawing -------------------------------------------------------------------------------------------------------


class _Draft:
    """One draw. Left sides are visited operands first; whatever an operator leaves open is proposed to fit it."""

    def __init__(
        self,
        rule: Rule,
        rng: random.Random,
        types: Types,
        dims: dict[str, Any],
        values: dict[str, Any],
        scope: Scope = ANY,
    ) -> None:
        self.rule, self.rng, self.types, self.dims, self.values, self.scope = rule, rng, types, dims, values, scope
        self.rank = rng.choice(scope.ranks)  # of holes without axes
        self.base: Shape | None = None
        self.shapes: dict[Term, Shape | None] = {}
        self.bounds: dict[str, int] = {}  # holes that hold indices, and into how many elements
        self.positive: set[str] = set()  # holes whose elements must be greater than zero
        self.wanted = _wanted(rule)
        self.conditions = _on_attributes(rule)

    def finished(self) -> Instance:
        for side in self.rule.left:
            self.visit(side)
        for hole in self.rule.holes.values():
            if hole.kind in ("tensor", "const") and hole.name not in self.values:
                self.values[hole.name] = self._draw(hole)
        written = dict(self._written())
        drawn = Instance(self.dims, self.values, written)
        if not satisfies(self.rule, drawn):
            raise Misfit("the conditions do not hold")
        return drawn

    # sizes

    def size(self) -> int:
        return self.rng.choice(self.scope.sizes)

    def shape_of(self, hole: Var) -> Shape:
        """The shape of a hole; sizes that are still open are drawn."""
        if hole in self.shapes:
            return self.shapes[hole] or ()
        if isinstance(given := self.values.get(hole.name), np.ndarray):
            shape: Shape = given.shape
        elif hole.axes is None:
            shape = tuple(self.dims.get(hole.name) or self._base())
        else:
            shape = self._sizes(hole.axes)
        if hole.axes is None:
            self.dims[hole.name] = shape
        self.shapes[hole] = shape
        return shape

    def _sizes(self, axes: Iterable[str]) -> Shape:
        shape: list[int] = []
        for axis in axes:
            if axis == "_":
                shape.append(self.size())
                continue
            if not axis.isdigit() and axis.removeprefix("1") not in self.dims:
                self.dims[axis.removeprefix("1")] = self._pack() if "*" in axis else self.size()
            shape += _shape([axis], self.dims)
        return tuple(shape)

    def _pack(self) -> Shape:
        packs = [len(sizes) for sizes in self.dims.values() if isinstance(sizes, tuple)]
        rank = self.rng.choice(packs) if packs and self.rng.random() < 0.7 else self.rng.choice(self.scope.packs)
        return tuple(self.size() for _ in range(rank))

    def _base(self) -> Shape:
        """One shape for all holes without axes; now and then one that broadcasts to it."""
        if self.base is None:
            self.base = tuple(self.size() for _ in range(self.rank))
            return self.base
        base = self.base
        match self.rng.random():
            case chance if chance < 0.2:
                base = tuple(1 if self.rng.random() < 0.5 else size for size in base)[self.rng.randint(0, self.rank) :]
            case chance if chance < 0.4 and base:
                axis = self.rng.randrange(len(base))
                base = (*base[:axis], self.size(), *base[axis + 1 :])
        return base

    # operators

    def visit(self, term: Term) -> Shape | None:
        """The shape of a term, None where it depends on values."""
        if isinstance(term, Var):
            return self.shape_of(term)
        assert isinstance(term, App)
        if term not in self.shapes:
            self._apply(term)
        return self.shapes[term]

    def _apply(self, app: App) -> None:
        if app.op in ("Conv", "MatMul"):
            self._match_weights(app)
        self._size_what_is_read(app)
        tensors = {i: self.visit(arg) for i, arg in enumerate(app.inputs) if arg is not None and not is_scalar(arg)}
        operator = described(app)
        inputs = [tensors.get(i) for i in range(len(app.inputs))]
        context = _Context(app, operator, inputs, {}, self)
        for name, value in sorted(app.attrs, key=lambda attr: _ORDER.get(attr[0], 0)):
            context.attrs[name] = self._attribute(context, name, value)
        bundle = app.bundle
        if bundle is not None:
            given = self.values.setdefault(bundle.name, _bundle(context))
            context.attrs.update(given)
        for position, arg in enumerate(app.inputs):
            if isinstance(arg, Var) and is_scalar(arg):
                self._fill(context, operator.input(position).name, arg)
        self._hints(app, operator, inputs)
        if app.op in _WINDOWS:
            self.types.prefer((app.node, 0), DType.FLOAT)
        self._infer(context)
        if app.op in _DEFINED and not _DEFINED[app.op](context):
            raise Misfit(f"{app.op} is not defined for these sizes, though its shape can be inferred")

    def _size_what_is_read(self, app: App) -> None:
        """Draw the sizes that are named before a tensor that has them was visited."""
        said = chain((arg for arg in app.inputs if arg is not None), dict(app.attrs).values())
        for part in chain.from_iterable(map(walk, filter(is_scalar, said))):
            if isinstance(part, App) and part.op in ("size", "sizes") and isinstance(part.args[0], Lit):
                self._sizes(str(part.args[0].value).split())

    def _match_weights(self, app: App) -> None:
        """An axis of the weights that nothing has fixed yet is as long as the first operand has it, in one group."""
        operand, weights = app.operands[:2]
        shape = self.visit(operand)
        place, own = (1, 1) if app.op == "Conv" else (-2, -1)
        if shape and len(shape) > own and isinstance(weights, Var) and len(weights.axes or ()) > 1:
            axis = (weights.axes or ())[place]
            if axis.isidentifier() and axis != "_" and axis not in self.dims and self.rng.random() < 0.8:
                self.dims[axis] = shape[own]

    def _attribute(self, context: _Context, name: str, value: Term) -> Any:
        if isinstance(value, Var):
            self._fill(context, name, value)
        found = evaluate(value, self.rule, Instance(self.dims, self.values))
        if context.app.op == "Cast" and name == "to":
            self.types.restrict((context.app.node, 0), {DType(found)})
        return found

    def _fill(self, context: _Context, name: str, hole: Var) -> None:
        """Propose values for a hole until the conditions on what is known hold."""
        if hole.name in self.values:
            return
        for _ in range(8):
            self.values[hole.name] = self._proposed(context, name, hole)
            if self._fits(hole.name):
                return
        raise Misfit(f"no value for {hole.name} was found")

    def _proposed(self, context: _Context, name: str, hole: Var) -> Any:
        """A value that suits the operator; more often than not one that the conditions compare the hole with."""
        value = _propose(context, name, hole.kind)
        if hole.name not in self.wanted or self.rng.random() > 0.8:
            return value
        try:
            wanted = evaluate(self.rng.choice(self.wanted[hole.name]), self.rule, Instance(self.dims, self.values))
        except KeyError:  # it mentions what is not drawn yet
            return value
        return (wanted,) * len(value) if isinstance(value, tuple) and not isinstance(wanted, tuple) else wanted

    def _fits(self, name: str) -> bool:
        """Whether no condition that this hole makes decidable is violated."""
        known = Instance(self.dims, self.values)
        decidable = (c for c, names in self.conditions if name in names and names <= self.values.keys())
        return all(evaluate(condition, self.rule, known) for condition in decidable)

    def _hints(self, app: App, operator: Operator, inputs: list[Shape | None]) -> None:
        """What values make the operator defined: indices in range, a variance that is not negative."""
        for position, arg in enumerate(app.inputs):
            if not isinstance(arg, Var):
                continue
            if "indices" in operator.input(position).name:
                self.bounds[arg.name] = min(inputs[0] or (1,))
            if app.op == "BatchNormalization" and position == 4:
                self.positive.add(arg.name)

    def _infer(self, context: _Context) -> None:
        """The shapes of an operator's outputs, as the onnx package infers them."""
        app = context.app
        names, types, data = [], {}, {}
        for position, arg in enumerate(app.inputs):
            names.append("" if arg is None else f"i{position}")
            if arg is None:
                continue
            dtype = self.types.of((app.node, context.operator.input(position).variable), self.rng)
            if is_scalar(arg):
                value = evaluate(arg, self.rule, Instance(self.dims, self.values))
                array = _scalar_array(context, position, value, dtype)
                data[names[-1]] = tensor_to_proto(Tensor.of(array), names[-1])
                types[names[-1]] = type_to_proto(TensorType(dtype, array.shape))
            else:
                types[names[-1]] = type_to_proto(TensorType(dtype, context.inputs[position]))
        node = _node(app, context.attrs, names, [f"o{i}" for i in range(app.outputs)])
        try:
            found = onnx.shape_inference.infer_node_outputs(
                context.operator.schema, node, types, data, opset_imports=[onnx.OperatorSetIdProto(version=ops.OPSET)]
            )
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            raise Misfit(str(error)) from error
        for position in range(app.outputs):
            type_ = type_from_proto(found[f"o{position}"]) if f"o{position}" in found else None
            known = isinstance(type_, TensorType) and type_.is_static and type_.shape is not None
            output = App(app.op, app.args, app.attrs, app.domain, position, app.outputs)
            self.shapes[output] = tuple(map(int, type_.shape)) if known else None  # type: ignore[arg-type, union-attr]
            if known and min(self.shapes[output] or (1,)) < 0:
                raise Misfit("a size is negative")

    # values

    def _draw(self, hole: Var) -> Array | None:
        if hole.default is not None and self.rng.random() < 0.4:
            self._sizes(hole.axes or ())
            return None
        shape = self.shape_of(hole)
        dtype = self.types.of(("hole", hole.name), self.rng)
        rng = np.random.default_rng(self.rng.getrandbits(32))
        if hole.name in self.bounds:
            bound = max(self.bounds[hole.name], 1)
            return rng.integers(-bound, bound, shape).astype(dtype.numpy)
        array = random_array(rng, shape, dtype, plain=self.scope.plain)
        for name in self._properties(hole):
            array = WITH_PROPERTY[name](array)
        if hole.name in self.positive:
            array = np.abs(array) + np.asarray(1.0 if self.scope.plain else 0.1, array.dtype)
        if hole.kind == "const" and shape and self.rng.random() < 0.3:  # a constant that is written shorter
            array = self._uniform(hole, array)
        return np.asarray(array)

    def _properties(self, hole: Var) -> Iterator[str]:
        for condition in self.rule.conditions:
            for part in walk(condition):
                if isinstance(part, App) and part.op in WITH_PROPERTY and hole in part.args:
                    yield part.op

    def _uniform(self, hole: Var, array: Array) -> Array:
        """The same value along some axes, for constants that may be written in a shorter shape."""
        if not _is_operand(self.rule, hole):
            return array
        short = tuple(slice(0, 1) if self.rng.random() < 0.5 else slice(None) for _ in array.shape)
        return np.broadcast_to(array[short], array.shape).copy() if array.size else array

    def _written(self) -> Iterator[tuple[str, Shape]]:
        """Other shapes for the constants that stand beside an operand which they broadcast to."""
        for app in (app for side in self.rule.left for app in applications(side) if app.op in ops.ELEMENTWISE_BINARY):
            for this, other in zip(app.inputs, reversed(app.inputs), strict=True):
                if isinstance(this, Var) and this.kind == "const" and _is_operand(self.rule, this):
                    array, beside = self.values[this.name], self.shapes.get(other) if other is not None else None
                    if isinstance(array, np.ndarray) and beside is not None:
                        yield this.name, self._rewritten(array, len(beside))

    def _rewritten(self, array: Array, rank: int) -> Shape:
        """Sizes along which the values are equal become 1; leading ones come and go, up to a rank."""
        shape = [
            1 if size > 1 and np.array_equal(np.broadcast_to(array.take([0], axis), array.shape), array) else size
            for axis, size in enumerate(array.shape)
        ]
        while shape and shape[0] == 1 and self.rng.random() < 0.5:
            shape.pop(0)
        while len(shape) < rank and self.rng.random() < 0.5:
            shape.insert(0, 1)
        return tuple(shape)


def _wanted(rule: Rule) -> dict[str, list[Term]]:
    """The numbers, texts and shapes that conditions compare attributes with."""
    wanted: dict[str, list[Term]] = {}
    for part in (part for condition in rule.conditions for part in walk(condition)):
        match part:
            case App(op="eq" | "le", args=(Var(name=name), Lit() as value) | (Lit() as value, Var(name=name))):
                wanted.setdefault(name, []).append(value)
            case App(op="eq", args=(Var(name=name), App() as value)):
                wanted.setdefault(name, []).append(value)
    return wanted


def _on_attributes(rule: Rule) -> list[tuple[Term, frozenset[str]]]:
    """The conditions on nothing but attributes and numbers, with the holes that each mentions."""
    return [
        (condition, frozenset(hole.name for hole in holes(condition)))
        for condition in rule.conditions
        if not any(isinstance(part, App) and part.op in {*FACTS, *PROPERTIES} for part in walk(condition))
    ]


def _is_operand(rule: Rule, hole: Var) -> bool:
    """True for a constant with axes that the left side reads only as operand of elementwise binary operators."""
    readers = [app for side in rule.left for app in applications(side) if hole in app.args]
    return hole.axes is not None and all(app.op in ops.ELEMENTWISE_BINARY for app in readers)


# -- proposals -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Context:
    """An operator whose tensor operands are known, for proposing the rest."""

    app: App
    operator: Operator
    inputs: list[Shape | None]
    attrs: dict[str, Any]
    draft: _Draft

    @property
    def rng(self) -> random.Random:
        return self.draft.rng

    @property
    def shape(self) -> Shape:
        """Of the first input."""
        return (self.inputs[0] if self.inputs else None) or ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def spatial(self) -> int:
        return max(self.rank - 2, 0)


_CONVS = ("Conv", "ConvTranspose")
_WINDOWS = (*_CONVS, "MaxPool", "AveragePool", "LpPool")
"""Run in FLOAT: ORT has kernels for little else, and `onnx.reference` is slow, and errs on grouped ConvTranspose."""
_ORDER = {"axis": -2, "group": -1, "kernel_shape": -1, "num_outputs": 1, "pads": 2}


def _propose(context: _Context, name: str, kind: str) -> Any:
    """A value for an attribute, or for an input that holds a list of integers or a number."""
    if (context.app.op, name) in _SPECIAL:
        value = _SPECIAL[context.app.op, name](context)
    elif name in _PROPOSALS:
        value = _PROPOSALS[name](context)
    else:
        value = _by_kind(context, kind)
    if kind == "integer" and isinstance(value, tuple):
        return context.rng.choice(value) if value else 0
    if kind == "integers" and not isinstance(value, tuple):
        return (value,)
    return value


def _by_kind(context: _Context, kind: str) -> Any:
    rng = context.rng
    match kind:
        case "integer":
            return rng.randint(-1, 3)
        case "integers":
            return tuple(rng.choice(context.draft.scope.numbers) for _ in range(rng.choice((1, context.rank))))
        case "real":
            return rng.choice((0.5, 1.0, 2.0, 0.25, -1.5, 3.0, 6.0, 0.0))
    return "NOTSET"


def _axes(context: _Context) -> Shape:
    least = 0 if context.rng.random() < 0.1 else min(1, context.rank)
    chosen = context.rng.sample(range(context.rank), context.rng.randint(least, context.rank))
    return tuple(axis - context.rank if context.rng.random() < 0.3 else axis for axis in chosen)


def _axis(context: _Context) -> int:
    if context.rank == 0:
        return 0
    return context.rng.randrange(-context.rank, context.rank)


def _many(low: int, high: int, times: int = 1) -> Callable[[_Context], Shape]:
    return lambda context: tuple(context.rng.randint(low, high) for _ in range(times * context.spatial))


def _group(context: _Context) -> int:
    weights = context.inputs[1] if len(context.inputs) > 1 else None
    if not weights or len(weights) < 2 or context.rank < 2:
        raise Misfit("no channels")
    channels = context.shape[1]
    if context.app.op == "Conv":
        return channels // weights[1] if weights[1] else 1
    return context.rng.choice([group for group in range(1, channels + 1) if channels % group == 0] or [1])


def _windows_fit(context: _Context) -> bool:
    """Whether there is an output at all: the kernel, dilated, lies inside the padded input at least once."""
    kernel = context.attrs["kernel_shape"] if "kernel_shape" in context.attrs else (context.inputs[1] or ())[2:]
    pads = context.attrs.get("pads", (0,) * 2 * context.spatial)
    dilations = context.attrs.get("dilations", (1,) * context.spatial)
    if not len(kernel) == len(dilations) == context.spatial or len(pads) != 2 * context.spatial:
        return False
    if context.attrs.get("auto_pad", "NOTSET").startswith("SAME"):
        return all(dilation == 1 for dilation in dilations)  # ORT refuses others
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    padded = [pads[i] + pads[i + context.spatial] for i in range(context.spatial)]
    if context.app.op == "ConvTranspose":
        return all(pad < span for pad, span in zip(padded, spans, strict=True))
    if context.app.op not in _CONVS and any(pad >= kernel[i % context.spatial] for i, pad in enumerate(pads)):
        return False  # ORT refuses it
    return all(span <= size + pad for span, size, pad in zip(spans, context.shape[2:], padded, strict=True))


def _channels_fit(context: _Context) -> bool:
    weights, group = context.inputs[1], context.attrs.get("group", 1)
    if weights is None or context.rank < 3 or len(weights) != context.rank or 0 in weights or group < 1:
        return False
    channels, outputs = weights[1] * group, weights[0]
    if context.app.op == "ConvTranspose":
        channels, outputs = outputs, channels
    bias = context.inputs[2] if len(context.inputs) > 2 else None
    return context.shape[1] == channels and weights[0] % group == 0 and bias in (None, (outputs,))


def _third_broadcasts(context: _Context) -> bool:
    """Whether Gemm's third operand broadcasts to the result."""
    shape, target = context.inputs[2] if len(context.inputs) > 2 else (), context.draft.shapes[context.app]
    if shape is None or target is None or len(shape) > len(target):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def _blocks_divide(context: _Context) -> bool:
    block = context.attrs["blocksize"]
    if context.app.op == "DepthToSpace":
        return bool(context.shape[1] % block**2 == 0)
    return all(size % block == 0 for size in context.shape[2:])


_DEFINED: Mapping[str, Callable[[_Context], bool]] = {
    **dict.fromkeys(_WINDOWS, _windows_fit),
    **dict.fromkeys(_CONVS, lambda context: _channels_fit(context) and _windows_fit(context)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks_divide),
    "Gemm": _third_broadcasts,
}
"""What the inference of shapes lets pass, though the operator is not defined for it."""


def _kernel(context: _Context) -> Shape:
    if context.app.op in _CONVS:
        return tuple((context.inputs[1] or ())[2:])
    return _many(1, 3)(context)


def _factors(context: _Context) -> Shape:
    """Another shape with as many elements, with a -1 or a 0 now and then."""
    rng, rest = context.rng, prod(context.shape)
    sizes: list[int] = []
    for _ in range(rng.randint(0, 3)):
        sizes.append(rng.choice([n for n in range(1, rest + 1) if rest % n == 0] or [1]))
        rest //= sizes[-1] or 1
    if rest != 1 or rng.random() < 0.2:
        sizes.insert(rng.randint(0, len(sizes)), rest)
    if sizes and rng.random() < 0.4:
        sizes[rng.randrange(len(sizes))] = -1
    kept = [i < context.rank and size == context.shape[i] and rng.random() < 0.3 for i, size in enumerate(sizes)]
    return tuple(0 if keep else size for keep, size in zip(kept, sizes, strict=True))


def _expanded(context: _Context) -> Shape:
    rng = context.rng
    sizes = [size if size != 1 else rng.choice((1, 2, 3)) for size in context.shape]
    sizes = [1 if rng.random() < 0.2 else size for size in sizes]
    return tuple([rng.choice((1, 2))] * rng.choice((0, 0, 1)) + sizes)


def _unsqueezed(context: _Context) -> Shape:
    count = context.rng.choice((1, 1, 2, 3))
    return tuple(context.rng.sample(range(context.rank + count), count))


def _squeezed(context: _Context) -> Shape:
    ones = [axis for axis, size in enumerate(context.shape) if size == 1]
    if not ones:
        raise Misfit("nothing to squeeze")
    return tuple(context.rng.sample(ones, context.rng.randint(1, len(ones))))


def _split(context: _Context) -> Shape:
    axis = context.attrs.get("axis", 0)
    if not -context.rank <= axis < context.rank:
        raise Misfit("no such axis")
    parts, total = context.app.outputs, context.shape[axis]
    cuts = sorted(context.rng.randint(0, total) for _ in range(parts - 1))
    return tuple(b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True))


def _per_axis(*choices: int, times: int = 1) -> Callable[[_Context], Shape]:
    """One number for each axis that a slice or pad names, or for all of them."""

    def proposed(context: _Context) -> Shape:
        axes = context.app.inputs[3] if len(context.app.inputs) > 3 else None
        count = context.rank
        if isinstance(axes, Var) and is_scalar(axes):
            count = len(context.draft.values.setdefault(axes.name, _axes(context)))
        elif isinstance(axes, Lit):
            count = len(axes.value) if isinstance(axes.value, tuple) else 1
        return tuple(context.rng.choice(choices) for _ in range(times * count))

    return proposed


def _flag(context: _Context) -> int:
    return context.rng.randint(0, 1)


def _choice(*options: Any) -> Callable[[_Context], Any]:
    return lambda context: context.rng.choice(options)


def _cast(context: _Context) -> int:
    return int(context.draft.types.of((context.app.node, 0), context.rng))


_PROPOSALS: Mapping[str, Callable[[_Context], Any]] = {
    "axis": _axis,
    "axes": _axes,
    "perm": lambda context: tuple(context.rng.sample(range(context.rank), context.rank)),
    "pads": _many(0, 2, times=2),
    "strides": _many(1, 2),
    "dilations": _many(1, 2),
    "kernel_shape": _kernel,
    "group": _group,
    "auto_pad": _choice("NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
    "epsilon": _choice(1e-5, 1e-3, 0.1),
    "alpha": _choice(0.5, 1.0, 0.25, 2.0),
    "beta": _choice(0.5, 1.0, 0.25, 2.0),
    "shape": _factors,
    "split": _split,
    "starts": _per_axis(0, 0, 1, 2, -1, -2),
    "ends": _per_axis(1, 2, 3, -1, 9, 2**31, 2**63 - 1),
    "steps": _per_axis(1, 1, 2),
    "repeats": lambda context: tuple(context.rng.randint(1, 3) for _ in context.shape),
    "to": _cast,
    "blocksize": _choice(1, 2),
    "approximate": _choice("none", "tanh"),
    **dict.fromkeys(("keepdims", "transA", "transB", "ceil_mode", "count_include_pad", "largest", "sorted"), _flag),
    **dict.fromkeys(("exclusive", "reverse", "allowzero", "select_last_index", "noop_with_empty_axes"), _flag),
}
_SPECIAL: Mapping[tuple[str, str], Callable[[_Context], Any]] = {
    ("Pad", "pads"): _per_axis(0, 0, 1, 2, -1, times=2),
    ("Pad", "mode"): _choice("constant", "reflect", "edge"),
    ("Expand", "shape"): _expanded,
    ("Unsqueeze", "axes"): _unsqueezed,
    ("Squeeze", "axes"): _squeezed,
    ("Flatten", "axis"): lambda context: context.rng.randint(-context.rank, context.rank),
    ("ConvTranspose", "output_padding"): _many(0, 0),
    ("ConvTranspose", "auto_pad"): _choice("NOTSET", "VALID"),  # what SAME means differs between runtimes
    ("Clip", "min"): _choice(-1.0, 0.0, 0.5, 3.0),
    ("Clip", "max"): _choice(6.0, 1.0, 0.5, -2.0),
}
_NOT_PROPOSED = frozenset({"output_shape", "spatial_scale", "training_mode", "momentum", "stash_type", "storage_order"})
"""Attributes that a bundle leaves out: their defaults are what rules mean, or they stand for other attributes."""


def _bundle(context: _Context) -> dict[str, Any]:
    """Values for some of the attributes that a pattern does not mention."""
    chosen: dict[str, Any] = {}
    named = {name for name, _ in context.app.attrs}
    for name in sorted(context.operator.attributes, key=lambda name: (_ORDER.get(name, 0), name)):
        _, required = context.operator.attributes[name]
        if name in named or name in _NOT_PROPOSED:
            continue
        if not required and name != "group" and context.rng.random() < 0.5:
            continue
        if name == "pads" and chosen.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        if name in _PROPOSALS or (context.app.op, name) in _SPECIAL:
            chosen[name] = _propose(context, name, "")
    return chosen


# -- models --------------------------------------------------------------------------------------------------------


def models(rule: Rule, instance: Instance) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two sides as models with the same inputs and outputs; constants are initializers.

    Raises:
        Misfit, Unknown: an attribute or number of the right side has no value at this instance.
    """
    left = _Writer(rule, instance, rule.left)
    return left.model(), _Writer(rule, instance, rule.right, beside=left).model()


class _Writer:
    """One side of a rule as a graph; equal terms are one node."""

    def __init__(
        self, rule: Rule, instance: Instance, sides: tuple[Term, ...], *, beside: _Writer | None = None
    ) -> None:
        """`beside` the left side the right one is written: numbers are of the type of what they replace."""
        self.rule, self.instance, self.sides, self.as_written = rule, instance, sides, beside is None
        arrays = {name: v for name, v in instance.values.items() if isinstance(v, np.ndarray)}
        self.types = Types(sides, {name: DType.of(array.dtype) for name, array in arrays.items()})
        if beside is not None:
            self._type_numbers(beside.types.of(self._place(beside.sides[0])))
        self.graph = onnx.GraphProto(name=f"{rule.name}_{'right' if beside else 'left'}")
        self.names: dict[Term, str] = {}

    def _type_numbers(self, dtype: DType) -> None:
        """Give the numbers that are written this type, where no operand says another."""
        for app in (app for side in self.sides for app in applications(side)):
            for position, arg in enumerate(app.inputs):
                if isinstance(arg, Lit):
                    self.types.prefer((app.node, described(app).input(position).variable), dtype)

    def model(self) -> onnx.ModelProto:
        for name, array in self.instance.feeds(self.rule).items():
            type_ = type_to_proto(TensorType(DType.of(array.dtype), array.shape))
            self.graph.input.append(onnx.ValueInfoProto(name=name, type=type_))
        for position, side in enumerate(self.sides):
            name, place = f"out{position}", self._place(side)
            self._add(App("Identity", ()), {}, [self._value(side)], [name])
            output = onnx.ValueInfoProto(name=name, type=type_to_proto(TensorType(self.types.of(place))))
            self.graph.output.append(output)
        model = onnx.ModelProto(ir_version=10, graph=self.graph, opset_import=self._opsets(), producer_name="graphopt")
        return onnx.shape_inference.infer_shapes(model)  # an output has to state its rank

    def _opsets(self) -> list[onnx.OperatorSetIdProto]:
        domains = {app.domain for side in self.sides for app in applications(side)} - {""}
        used = [app for side in self.sides for app in applications(side) if not app.domain]
        known = all(ops.schema(app.op, "", ops.LOADED) for app in used)
        opset = ops.LOADED if known else ops.OPSET
        return [onnx.OperatorSetIdProto(domain=d, version=opset if not d else 1) for d in ("", *sorted(domains))]

    @staticmethod
    def _place(side: Term) -> Place:
        if isinstance(side, App):
            return side.node, side.output
        return "hole", side.name if isinstance(side, Var) else ""

    def _value(self, term: Term) -> str:
        """The name of a value, written first if need be."""
        match term:
            case Var(name=name, kind="tensor"):
                return name
            case Var(name=name):
                array = _array(self.rule, self.instance, name)
                if self.as_written and name in self.instance.written:
                    array = _reduced(array, self.instance.written[name])
                return self._constant(name, array)
            case App():
                if term not in self.names:
                    self._write(term)
                return self.names[term]
        raise AssertionError(f"{term} stands for no tensor")

    def _write(self, app: App) -> None:
        context = _Context(app, described(app), [], {}, None)  # type: ignore[arg-type]  # nothing is proposed here
        attrs: dict[str, Any] = dict(self.instance.values[app.bundle.name]) if app.bundle else {}
        attrs |= {name: evaluate(value, self.rule, self.instance) for name, value in app.attrs}
        if attrs.get("auto_pad", "NOTSET") != "NOTSET":
            attrs.pop("pads", None)  # the two exclude each other
        if app.op == "Cast":
            if "to" not in attrs:
                raise Misfit("a cast to nothing")
            self.types.restrict((app.node, 0), {DType(attrs["to"])})
        inputs = [self._input(context, position, arg) for position, arg in enumerate(app.inputs)]
        while inputs and not inputs[-1]:
            inputs.pop()
        outputs = [App(app.op, app.args, app.attrs, app.domain, i, app.outputs) for i in range(app.outputs)]
        for output in outputs:
            self.names[output] = f"v{len(self.names)}"
        self._add(app, attrs, inputs, [self.names[output] for output in outputs])

    def _input(self, context: _Context, position: int, arg: Term | None) -> str:
        if arg is None or (self.as_written and isinstance(arg, Var) and self.instance.values[arg.name] is None):
            return ""
        if not is_scalar(arg):
            return self._value(arg)
        dtype = self.types.of((context.app.node, context.operator.input(position).variable))
        array = _scalar_array(context, position, evaluate(arg, self.rule, self.instance), dtype)
        return self._constant(f"c{len(self.graph.initializer)}", array)

    def _constant(self, name: str, array: Array) -> str:
        if all(present.name != name for present in self.graph.initializer):
            self.graph.initializer.append(tensor_to_proto(Tensor.of(array), name))
        return name

    def _add(self, app: App, attrs: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> None:
        self.graph.node.append(_node(app, attrs, inputs, outputs))


def _reduced(array: Array, shape: Shape) -> Array:
    """The array in a shape that broadcasts to its own."""
    while len(shape) > array.ndim:
        array = array[np.newaxis]
    for _ in range(array.ndim - len(shape)):
        array = array[0]
    for axis, size in enumerate(shape):
        array = array.take(range(size), axis)
    return array


_LISTS = frozenset({"axes", "shape", "starts", "ends", "steps", "pads", "repeats", "split", "K", "sizes", "scales"})
"""Inputs that have rank 1 also where one number is meant."""


def _scalar_array(context: _Context, position: int, value: Any, dtype: DType) -> Array:
    """What a number or list in an input position is as a tensor."""
    try:
        array = np.asarray(value, dtype.numpy)
    except (OverflowError, ValueError) as error:
        raise Misfit(str(error)) from error
    formal = context.operator.input(position).name
    return array.reshape(-1) if formal in _LISTS else array


def _node(app: App, attrs: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    try:
        typed = {name: _typed(described(app).attributes[name][0], value) for name, value in attrs.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise Misfit(f"{app.op}: {error}") from error
    return node_to_proto(Node(app.op, (), (), (), typed, app.domain), inputs, outputs)


def _typed(kind: OpSchema.AttrType, value: Any) -> Any:
    match kind:
        case OpSchema.AttrType.FLOAT:
            return float(value)
        case OpSchema.AttrType.FLOATS:
            return tuple(map(float, value))
        case OpSchema.AttrType.INT:
            return int(value)
        case OpSchema.AttrType.INTS:
            return tuple(map(int, value))
    return value
