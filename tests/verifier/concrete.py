"""Denotations with numbers put in: what tests compare with `onnx.reference` and ONNX Runtime.

An element is denoted once, at an index of symbols as in a proof, and then computed at all indices at once: each symbol
is an array along an axis of its own, what is summed over comes in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, reduce
from typing import Any, Self

import numpy as np

from graphopt.base.dtype import DType
from graphopt.base.session import Interner, current_session
from graphopt.discover.batch_arithmetic import REAL_FUNCTIONS
from graphopt.expr.expr_evaluation import Accumulation, Branches, ExprAlgebra
from graphopt.expr.expressions import OpaqueElement, TensorArgument, TensorElement
from graphopt.expr.index_grid import IndexGrid
from graphopt.expr.integers import Atom, BooleanAtom, Comparison, Formula, Polynomial, Size, eq, fresh_symbol, negate
from graphopt.expr.substitution import single_symbol
from graphopt.expr.symbolic_tensors import SymbolicTensor, bind_indices
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import MAX_AXIS_SIZE
from graphopt.language.terms import App, Var, op
from graphopt.operators.op_context import UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.semantics import denote
from graphopt.verifier.choices import Choices
from graphopt.verifier.element_types import Typing
from graphopt.verifier.rule_node import RuleNode
from graphopt.verifier.solver import SolverSession, enumerate_assignments
from graphopt.verifier.symbolic_instance import SymbolicInstance
from tests.verifier.evaluators import Array, Case, model, reference, runtime


def shares(place: Array, element: Array, own: Array, size: Array, mode: str, where: str, rounding: str) -> Array:
    """Return how much of elements a Resize along one axis puts at places: what it makes of each element alone."""
    if 0 in np.broadcast_shapes(np.shape(place), np.shape(element)):
        return np.zeros(())
    attrs = {"mode": mode, "coordinate_transformation_mode": where}
    attrs |= {"nearest_mode": rounding} if rounding else {}
    table = _shares(int(np.ravel(own)[0]), int(np.ravel(size)[0]), **attrs)
    return np.asarray(table[np.asarray(place, int), np.asarray(element, int)], np.float64)


@cache
def _shares(own: int, size: int, **attrs: Any) -> Array:
    """Return what a Resize makes of the rows of a unit matrix, enlarged along the first axis."""
    (table,) = computed("Resize", [np.eye(own, dtype=np.float32), None, None, np.array([size, own])], attrs)
    return table


def twiddle(made: Array, read: Array, k: Array, n: Array, length: Array, inverse: bool) -> Array:
    """Return what the part of a number that is read adds to the part of a Fourier coefficient that is made."""
    length = np.maximum(length, 1)
    factor = np.exp((2j if inverse else -2j) * np.pi * k * n / length) * np.where(read == 1, 1j, 1)
    return np.asarray(np.where(made == 1, factor.imag, factor.real) / (length if inverse else 1))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **REAL_FUNCTIONS,
    "NotZero": lambda x: x != 0,
    "Positive": lambda x: x > 0,
    "Mod": np.mod,
    "FMod": np.fmod,
    "IsNaN": np.isnan,
    "IsInf": lambda x, negative, positive: np.isinf(x) & np.where(x < 0, negative, positive),
    "Infinity": float,
    "size of a Range": lambda start, limit, delta, _: np.maximum(np.ceil((limit - start) / delta), 0),
    "resized": lambda size, scale: np.floor(np.float32(size) * np.float32(scale)),
    "share": shares,
    "twiddle": twiddle,
    "Steps": lambda x, scale, *types: np.round(of_type(x, types[0]) / of_type(scale, types[1])).astype(np.float64),
    "Scaled": lambda integer, scale, *types: (of_type(integer, types[0]) * of_type(scale, types[0])).astype(np.float64),
    "Requantized": lambda total, *scales_and_types: requantized(total, *scales_and_types[:3]),
    "Least": lambda dtype: np.float64((np.finfo if dtype.is_float else np.iinfo)(dtype.numpy).min),
    "Wrapped": lambda x, to: wrapped(np.asarray(x), to.numpy),
    "Cast": lambda x, kind, to: CASTS[kind](np.asarray(x), DType[to].numpy),
}


def of_type(x: Array, dtype: DType) -> Array:
    return np.asarray(x).astype(dtype.numpy)


def requantized(total: Array, one: Array, other: Array, step: Array) -> Array:
    return np.round(total * (np.float32(one) * np.float32(other) / np.float32(step)))


def rounded(x: Array, to: np.dtype[Any]) -> Array:
    return x.astype(to).astype(np.float64)


def truncated(x: Array, to: np.dtype[Any]) -> Array:
    """NaN where the number is out of range: what a cast gives there is not defined."""
    limits, whole = np.iinfo(to), np.trunc(x)
    return np.where((whole < limits.min) | (whole > limits.max), np.nan, whole)


def wrapped(x: Array, to: np.dtype[Any]) -> Array:
    """NaN where the number is not whole: integers alone wrap."""
    limits = np.iinfo(to)
    span = float(limits.max) - float(limits.min) + 1
    return np.where(x == np.trunc(x), np.mod(x - float(limits.min), span) + float(limits.min), np.nan)


CASTS: Mapping[str, Callable[[Array, np.dtype[Any]], Array]] = {
    "rounded": rounded,
    "truncated": truncated,
    "wrapped": wrapped,
}
START = {"sum": 0.0, "max": -np.inf, "min": np.inf, "prod": 1.0}
MONOIDS: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@dataclass(frozen=True)
class Grid(IndexGrid, ExprAlgebra[Any]):
    """Indices of some shape: what symbols are at each of them, and at which of them something is asked."""

    arrays: Mapping[str, Array] = field(default_factory=dict)
    asked: Any = True
    node: RuleNode | None = None
    """The operator that is not looked into, in the exact model."""

    def where(self, guard: Formula) -> Self:
        return replace(self, asked=self.asked & self.holds(guard))

    def all_hold(self, parts: Iterable[Formula]) -> Any:
        """Elements are asked for only where what is said of indices holds."""
        found = np.True_
        for part in sorted(parts, key=lambda part: not isinstance(part, Comparison)):
            found = found & replace(self, asked=self.asked & found).holds(part)
        return found

    def any_holds(self, parts: Iterable[Formula]) -> Any:
        return ~self.all_hold(map(negate, parts))

    def value_holds(self, atom: BooleanAtom) -> Any:
        return (self.value(atom.subject) != 0) == atom.holds

    def linear_combination(self, parts: Sequence[tuple[Fraction, Any]]) -> Any:
        return sum((float(coefficient) * part for coefficient, part in parts), 0.0)

    def product(self, factors: Sequence[Any]) -> Any:
        return reduce(np.multiply, factors, 1.0)

    def accumulate(self, monoid: Accumulation, branches: Branches[Self, Any]) -> Any:
        combine, start = MONOIDS[monoid], START[monoid]
        found = start
        for binders, guard, body in branches:
            inner = self.with_binders(binders).where(guard)
            parts = np.broadcast_to(np.where(inner.asked, body(inner), start), inner.shape)
            found = combine(found, combine.reduce(parts, axis=tuple(range(len(binders))), initial=start))
        return found

    def call(self, function: str, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
        if function.endswith(("!", "~")):
            return self._named(function, args, params)
        return FUNCTIONS[function](*args, *params)

    def read(self, element: TensorElement) -> Any:
        """An element, which exists wherever it is asked for."""
        array, index = self.arrays[element.tensor], [self.integer(i) for i in element.index]
        for i, n in zip(index, array.shape, strict=True):
            beyond = np.broadcast_to(self.asked & ((i < 0) | (i >= n)), self.shape)
            assert not beyond.any(), f"{element} outside of {array.shape}"
        if 0 in array.shape:
            return np.zeros(())
        return array[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))].astype(np.float64)

    def opaque(self, element: OpaqueElement) -> Any:
        """Gather with indices that are not known, ArgMax, ArgMin and TopK: functions of what lies along an axis."""
        if self.node is not None and element.operator == self.node.op and len(element.params) > 1:
            return self._opaque(self.node, element)
        (along, *others) = element.operands
        assert along is not None
        inner = self.with_binders(tuple(zip(along.index, along.shape, strict=True)))
        values = np.broadcast_to(inner.value(along.body), inner.shape)
        if element.operator == "Gather":
            (at,) = others
            assert at is not None
            where = np.broadcast_to(self.value(at.body), self.shape).astype(int)
            return np.take_along_axis(values, where[None], 0)[0]
        if element.operator.startswith("next"):
            order = np.argsort(-values if element.operator.endswith("greatest") else values, 0, kind="stable")
            return np.take_along_axis(order, np.broadcast_to(self.integer(element.index[0]), self.shape)[None], 0)[0]
        best = np.argmax if element.operator == "place of the greatest" else np.argmin
        return len(values) - 1 - best(values[::-1], 0) if element.params[0] else best(values, 0)

    def _named(self, name: str, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """A function of the exact model: the operator of this name, with the attributes that tell it from others."""
        assert self.node is not None and name[-1] == "!", "nothing here is folded"
        dtype, *values = params[0], *params[1 + len(self.node.operand_dtypes) :]
        attrs = self._given(dict(zip(sorted(self.node.read_values), values, strict=False)))
        absent = iter(values[len(attrs) :] or [False] * len(args))
        rest = iter(np.broadcast_arrays(*args))
        arrays = [None if gone else next(rest).astype(dtype.numpy) for gone in absent]
        if name == "Clip!":  # whose bounds are scalars
            shape = np.broadcast_shapes(*map(np.shape, args))
            places = [[None if a is None else a.ravel()[i] for a in arrays] for i in range(math.prod(shape))]
            return np.array([computed("Clip", p, attrs)[0] for p in places], float).reshape(shape)
        return computed(name[:-1], arrays, attrs)[0].astype(np.float64)

    def _opaque(self, node: RuleNode, element: OpaqueElement) -> Any:
        """An element of what an operator makes of whole tensors, with the attributes that tell it from others."""
        position, folded, dtype, *used = element.params
        assert (folded, dtype) == (node.is_constant_folded, node.dtype)
        attrs, arrays = {name: value for name, value in used if name != "types"}, list[Array | None]()
        for place, operand in enumerate(element.operands):
            outer = replace(
                self, shape=(), asked=True, symbols={a: v for a, v in self.symbols.items() if np.ndim(v) == 0}
            )
            own = node.input(place).dtype if operand is not None else DType.UNDEFINED
            own = DType.INT64 if own is DType.UNDEFINED else own  # of a number of the rule
            arrays.append(None if operand is None else outer.whole(operand).astype(own.numpy))
        for key in [key for key in attrs if key.removeprefix("input").isdigit()]:
            arrays[int(key.removeprefix("input"))] = np.array(self._plain(attrs.pop(key)), np.int64)
        if "along" in attrs:
            axes = attrs.pop("along")
            attrs["keepdims"] = 0
            if node.op.startswith("Reduce"):
                arrays, attrs["noop_with_empty_axes"] = [arrays[0], np.array(axes, np.int64)], 1
            else:
                (attrs["axis"],) = axes
        result = computed(node.op, arrays, self._given(attrs), node.app.outputs)[position]
        at = tuple(np.broadcast_to(self.integer(i), self.shape) for i in element.index)
        return result[at].astype(np.float64)

    def whole(self, operand: TensorArgument) -> Array:
        """All elements of an operand."""
        shape = tuple(int(self.integer(size)) for size in operand.shape)
        symbols = dict(zip(operand.index, np.indices(shape, sparse=True), strict=True))
        inner = replace(self, shape=shape, symbols={**self.symbols, **symbols})
        return np.array(np.broadcast_to(inner.value(operand.body), shape))

    def _given(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: self._plain(value) for key, value in attrs.items() if value is not None}
        if given.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in given:
            given.pop("pads", None)  # which then say nothing, and must not be there
        return given

    def _plain(self, value: Any) -> Any:
        """An attribute with numbers put in."""
        if isinstance(value, tuple):
            return [self._plain(item) for item in value]
        return int(self.integer(value)) if isinstance(value, Polynomial | int) else value


def computed(name: str, arrays: Sequence[Array | None], attrs: Mapping[str, Any], outputs: int = 1) -> list[Array]:
    """The outputs of one operator by ONNX Runtime, or by the reference evaluator where that lacks it."""
    inputs = list(arrays)
    while inputs[-1] is None:
        inputs.pop()
    proto, feeds = model(name, Case(inputs, dict(attrs), outputs))
    try:
        return runtime(proto, feeds)
    except Exception:  # what it raises where it has no kernel has no common base
        return reference(proto, feeds)


class Known:
    """Numbers that are given to a denotation as symbols, as a proof does, and what they stand for."""

    def __init__(self) -> None:
        current_session().interner = Interner()
        self.symbols: dict[Atom, int] = {}
        self.holes: dict[str, Any] = {}

    def symbol(self, number: int) -> Size:
        new = fresh_symbol("n")
        self.symbols[single_symbol(new)] = number
        return new

    def hole(self, value: Any) -> Var:
        """A hole bound to a number, or to a list of them."""
        name = f"hole{len(self.holes)}"
        self.holes[name] = tuple(map(self.symbol, value)) if isinstance(value, tuple) else self.symbol(value)
        return Var(name, "integers" if isinstance(value, tuple) else "integer")


@dataclass
class Evaluation:
    """One operator on arrays; of those named in `axes` the sizes are symbols."""

    app: App
    arrays: Mapping[str, Array]
    known: Known = field(default_factory=Known)
    axes: frozenset[str] = frozenset()
    exact: bool = False

    def __post_init__(self) -> None:
        self.sizes = {
            name: tuple(map(self.known.symbol, array.shape)) if name in self.axes else array.shape
            for name, array in self.arrays.items()
        }

    def node(self, choices: Choices) -> RuleNode:
        """The operator as its denotation sees it."""
        dtypes = {name: DType.from_numpy(array.dtype) for name, array in self.arrays.items()}
        typing, numbers = Typing(dtypes), dict(self.known.holes)
        instance = SymbolicInstance(
            ANY, self.exact, choices, SolverSession(), typing, bindings=numbers, typings=(typing,)
        )
        for name, dtype in dtypes.items():
            instance.bindings[name] = SymbolicTensor(self.sizes[name], instance._reader(name, dtype), dtype, dtype)
        return RuleNode(instance, self.app)

    def run(self) -> tuple[list[Array], Mapping[str, Any]]:
        """What the denotation says of these arrays, and the attributes that it asked for."""
        node = self.node(Choices())
        tensors = denote(node)
        for element, unknown in node.instance.integers.items():
            with np.errstate(all="ignore"):
                number = Grid(arrays=self.arrays, symbols=self.known.symbols).value(element)
            if not np.isfinite(number):
                raise UndefinedOperatorError(f"{element} is no number")
            self.known.symbols[single_symbol(unknown)] = min(int(number), MAX_AXIS_SIZE)
        if node.instance.reshape_sizes:
            self.known.symbols.update(self._answers(node.instance))
        grid = Grid(arrays=self.arrays, symbols=self.known.symbols, node=node)
        with np.errstate(all="ignore"):
            for fact in node.instance.facts:
                if not grid.holds(fact):
                    raise UndefinedOperatorError(f"not {fact}")
            for elements in node.instance.assumed_elements:
                values, size = _array(elements.tensor, grid), grid.integer(elements.index_bound or 0)
                least = -size if elements.allows_negative else 0
                wrong = values == 0 if elements.index_bound is None else (values < least) | (values >= size)
                if wrong.any():
                    raise UndefinedOperatorError(elements.reason)
            return [_array(tensor, grid) for tensor in tensors], node.read_values

    def _answers(self, instance: SymbolicInstance) -> Mapping[Atom, int]:
        """The sizes that a Reshape answers: what it says of them has one solution."""
        unknown = [single_symbol(size) for size in instance.reshape_sizes.values()]
        numbers = (eq(Polynomial({(atom,): 1}), number) for atom, number in self.known.symbols.items())
        for found in enumerate_assignments([*instance.facts, *numbers], instance.effort, unknown):
            return found
        raise UndefinedOperatorError("no size fits")

    def claims(self) -> Iterator[Mapping[str, Any]]:
        """The attributes for which there is a denotation, of all that it proposes where they are left open."""
        choices = Choices()
        for _ in choices.paths():
            node = self.node(choices)
            try:
                for tensor in denote(node):
                    tensor.element(bind_indices(tensor.shape, "i")[0])
            except (UndefinedOperatorError, UnsupportedOperatorError):
                continue
            yield node.read_values


ANY = Rule("any", op.Neg(Var("x", "tensor")), op.Sub(0.0, Var("x", "tensor")))


def _array(tensor: SymbolicTensor, grid: Grid) -> Array:
    """All elements of a tensor."""
    shape = tuple(int(grid.integer(size)) for size in tensor.shape)
    index, _ = bind_indices(tensor.shape, "i")
    symbols = dict(zip(map(single_symbol, index), np.indices(shape, sparse=True), strict=True))
    inner = replace(grid, shape=shape, symbols={**grid.symbols, **symbols})
    return np.array(np.broadcast_to(inner.value(tensor.element(index)), shape))
