"""Denotations with numbers put in: what tests compare with `onnx.reference`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.rule import Rule
from graphopt.term import App, Var, op
from graphopt.types import DType
from graphopt.verifier.dtypes import Typing
from graphopt.verifier.instances import Choices, Instance
from graphopt.verifier.integers import Atom, Formula, truth_of, value_of
from graphopt.verifier.solver import Effort
from graphopt.verifier.symbolic import Binders, Call, Element, Factor, Fold, Number, Read, Tensor, Value

Array = NDArray[Any]


def _sign(x: float) -> float:
    return (x > 0) - (x < 0)


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "Inverse": lambda x: math.nan if x == 0 else 1 / x,
    "Exp": math.exp,
    "Log": lambda x: math.log(x) if x > 0 else math.nan,
    "Sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "Pow": lambda x, n: x**n if x >= 0 or float(n).is_integer() else math.nan,
    "Abs": abs,
    "Sign": _sign,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Round": round,
    "Erf": math.erf,
    "Acos": math.acos,
    "Asin": math.asin,
    "Atan": math.atan,
    **{
        f.capitalize(): getattr(math, f)
        for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
    },
    "NotZero": lambda x: float(x != 0),
    "Positive": lambda x: float(x > 0),
    "Mod": lambda a, b: a % b,
    "FMod": math.fmod,
    "IsNaN": lambda x: float(math.isnan(x)),
    "IsInf": lambda x: float(math.isinf(x)),
    "Cast": lambda x: float(math.trunc(x)),
}


class Numbers(dict[Any, Any]):
    """Symbols by their number, truth values of elements by what the elements are."""

    def __init__(self, known: Mapping[Atom, int], arrays: Mapping[str, Array]) -> None:
        super().__init__(known)
        self.arrays = arrays

    def __missing__(self, key: Any) -> Any:
        assert isinstance(key, Value), f"{key} is not known"
        return evaluate(key, self) != 0

    def and_(self, more: Mapping[Atom, int]) -> Numbers:
        return Numbers({**self, **more}, self.arrays)


def evaluate(value: Value, known: Numbers) -> float:
    """The number that a value is."""
    total = 0.0
    for term in value.terms:
        for inner in _bindings(term.binders, term.guard, known):
            part = float(term.coefficient)
            for factor in term.factors:
                part *= _factor(factor, inner)
            total += part
    return total


def _bindings(binders: Binders, guard: Formula, known: Numbers) -> list[Numbers]:
    extents = [range(value_of(extent, known)) for _, extent in binders]
    found = (known.and_(dict(zip((b for b, _ in binders), numbers, strict=True))) for numbers in product(*extents))
    return [inner for inner in found if truth_of(guard, inner)]


def _factor(factor: Factor, known: Numbers) -> float:
    match factor:
        case Read(tensor=name, index=index):
            where = tuple(value_of(i, known) for i in index)
            assert all(0 <= i < n for i, n in zip(where, known.arrays[name].shape, strict=True)), f"{factor} at {where}"
            return float(known.arrays[name][where])
        case Number(of=size):
            return float(value_of(size, known))
        case Call(function=name, args=args):
            return FUNCTIONS[name](*(evaluate(arg, known) for arg in args))
        case Fold(monoid=monoid, pieces=pieces):
            numbers = [evaluate(p.body, inner) for p in pieces for inner in _bindings(p.binders, p.guard, known)]
            return math.prod(numbers) if monoid == "prod" else (max if monoid == "max" else min)(numbers)
        case Element():
            return _element(factor, known)


def _element(factor: Element, known: Numbers) -> float:
    """Gather with indices that are not known, ArgMax and ArgMin."""
    (along, *others) = factor.operands
    assert along is not None
    n = value_of(along.shape[0], known)
    values = [evaluate(along.body, known.and_({along.index[0]: i})) for i in range(n)]
    if factor.operator == "Gather":
        (at,) = others
        assert at is not None
        return values[int(evaluate(at.body, known))]
    best = max(values) if factor.operator == "ArgMax" else min(values)
    found = [i for i, v in enumerate(values) if v == best]
    return float(found[-1] if factor.params[0] else found[0])


def outputs(app: App, arrays: Mapping[str, Array], count: int = 1) -> list[Array]:
    """What the denotation of one operator says of these arrays, element by element."""
    dtypes = {name: DType.of(array.dtype) for name, array in arrays.items()}
    rule = Rule("operator", app, op.Identity(op.Identity(app)))
    instance = Instance(rule, False, Choices(), Effort(), Typing(dtypes))
    for name, array in arrays.items():
        reader = instance._reader(name, dtypes[name])
        instance.holes[name] = Tensor(array.shape, reader, dtypes[name], dtypes[name])
    for _ in instance.choices.paths():
        return [_array(t, arrays) for t in instance.outputs(app.node)[:count]]
    raise AssertionError


def _array(tensor: Tensor, arrays: Mapping[str, Array]) -> Array:
    known = Numbers({}, arrays)
    shape = tuple(value_of(size, known) for size in tensor.shape)
    result = np.zeros(shape)
    for index in np.ndindex(*shape):
        result[index] = evaluate(tensor.at(index), known)
    return result


def holes(arrays: Mapping[str, Array]) -> dict[str, Var]:
    return {name: Var(name, "tensor") for name in arrays}
