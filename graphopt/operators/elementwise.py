"""Elementwise operators: the function of each, over exact reals and as what the exact model knows of it.

Part of the trusted base; tested with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from graphopt.base import symbolic
from graphopt.base.integers import TRUE, Formula, conj, disj, negate
from graphopt.base.symbolic import Piece, Value, boolean, by_cases, call, fold, number, select, truth
from graphopt.base.types import DType
from graphopt.language.scalar import holds
from graphopt.operators.node import Node, Undefined, Unsupported, real

Function: TypeAlias = Callable[..., Value]
"""Of the elements at one index, None for absent inputs."""


def largest(*values: Value) -> Value:
    return by_cases(lambda *parts: fold("max", [Piece((), TRUE, v) for v in parts]), *values)


def least(*values: Value) -> Value:
    return by_cases(lambda *parts: fold("min", [Piece((), TRUE, v) for v in parts]), *values)


def sigmoid(x: Value) -> Value:
    return 1 / (1 + call("Exp", -x))


def softplus(x: Value) -> Value:
    return call("Log", 1 + call("Exp", x))


def positive(x: Value) -> Formula:
    return truth(call("Positive", x))


def nonzero(x: Value) -> Formula:
    return truth(call("NotZero", x))


def plain(function: Function) -> Callable[[Node], Function]:
    """An operator without attributes."""
    return lambda node: function


def named(name: str) -> Callable[[Node], Function]:
    """An operator of which nothing is known but its name and the lemmas on it."""
    return lambda node: lambda *values: call(name, *values)


def Clip(node: Node) -> Function:
    """min(max(x, low), high); an absent bound does not bind. The bounds are scalars."""
    for position in (1, 2):
        bound = node.optional(position)
        if bound is not None and bound.rank != 0:
            raise Undefined("Clip: a bound is no scalar")

    def function(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
        x = x if low is None else largest(x, low)
        return x if high is None else least(x, high)

    return function


def LeakyRelu(node: Node) -> Function:
    alpha = node.real("alpha")
    return lambda x: select(positive(x), x, alpha * x)


def ThresholdedRelu(node: Node) -> Function:
    alpha = node.real("alpha")
    return lambda x: select(positive(x - alpha), x, number(0))


def Elu(node: Node) -> Function:
    alpha = node.real("alpha")
    return lambda x: select(positive(x), x, alpha * (call("Exp", x) - 1))


def Selu(node: Node) -> Function:
    alpha, gamma = node.real("alpha"), node.real("gamma")
    return lambda x: select(positive(x), gamma * x, gamma * (alpha * call("Exp", x) - alpha))


def Celu(node: Node) -> Function:
    alpha = node.real("alpha")
    return lambda x: largest(number(0), x) + least(number(0), alpha * (call("Exp", x / alpha) - 1))


def HardSigmoid(node: Node) -> Function:
    alpha, beta = node.real("alpha"), node.real("beta")
    return lambda x: largest(number(0), least(number(1), alpha * x + beta))


def Shrink(node: Node) -> Function:
    lambd, bias = node.real("lambd"), node.real("bias")
    return lambda x: select(positive(-lambd - x), x + bias, select(positive(x - lambd), x - bias, number(0)))


def Gelu(node: Node) -> Function:
    """x·Φ(x), or the approximation with tanh."""
    if node.text("approximate", ("none", "tanh")) == "none":
        return lambda x: x * (1 + call("Erf", x / call("Sqrt", number(2)))) / 2
    root = real((2 / 3.141592653589793) ** 0.5)
    return lambda x: x * (1 + call("Tanh", root * (x + real(0.044715) * x * x * x))) / 2


def Swish(node: Node) -> Function:
    alpha = node.real("alpha")
    return lambda x: x * sigmoid(alpha * x)


def Div(node: Node) -> Function:
    """Of integers, rounded towards 0."""
    return (lambda a, b: call("Quotient", a, b)) if node.dtype.is_integer else lambda a, b: a / b


def Mod(node: Node) -> Function:
    kind = node.flag("fmod")
    if node.dtype.is_float and not kind:
        raise Unsupported("Mod of floats without fmod, which opsets before 28 lack")
    return lambda a, b: call("FMod" if kind else "Mod", a, b)


def BitShift(node: Node) -> Function:
    direction = node.text("direction", ("LEFT", "RIGHT"))
    return lambda a, b: call(f"Shift{direction}", a, b)


def IsInf(node: Node) -> Function:
    signs = node.flag("detect_negative"), node.flag("detect_positive")
    return lambda x: boolean(nonzero(call("IsInf", x, params=signs)))


def logical(combine: Callable[..., Formula]) -> Callable[[Node], Function]:
    return lambda node: lambda *values: boolean(combine(*map(truth, values)))


def Cast(node: Node) -> Function:
    to = node.target()
    return cast(node, to)


def CastLike(node: Node) -> Function:
    return cast(node, node.input(1).dtype)


def cast(node: Node, to: DType) -> Function:
    """A cast that loses nothing leaves the number as it is; others are functions of the number.

    Out of range, a cast to integers wraps where it comes from integers, and is undefined where it comes from floats.
    """
    ways = [node.ignored(name) for name in ("saturate", "round_mode")]
    x = node.input(0)
    if holds(to, x.values):
        return lambda value: value
    if to is DType.BOOL:
        return lambda value: boolean(nonzero(value))
    kind = "rounded" if to.is_float else "truncated" if x.dtype.is_float else "wrapped"
    params = (kind, to.name, *(ways if to.bits == 8 and to.is_float else ()))  # elsewhere they mean nothing
    return lambda value: call("Cast", value, params=params)


ELEMENTWISE: Mapping[str, Callable[[Node], Function]] = {
    "Add": plain(lambda a, b: a + b),
    "Sub": plain(lambda a, b: a - b),
    "Mul": plain(lambda a, b: a * b),
    "Div": Div,
    "Sum": plain(lambda *values: sum(values[1:], values[0])),
    "Mean": plain(lambda *values: sum(values[1:], values[0]) / len(values)),
    "Max": plain(largest),
    "Min": plain(least),
    "Neg": plain(lambda x: -x),
    "Reciprocal": plain(lambda x: 1 / x),
    "Relu": plain(lambda x: largest(x, number(0))),
    "Sigmoid": plain(sigmoid),
    "Softplus": plain(softplus),
    "Softsign": plain(lambda x: x / (1 + call("Abs", x))),
    "Mish": plain(lambda x: x * call("Tanh", softplus(x))),
    "LeakyRelu": LeakyRelu,
    "ThresholdedRelu": ThresholdedRelu,
    "Elu": Elu,
    "Selu": Selu,
    "Celu": Celu,
    "PRelu": plain(lambda x, slope: select(positive(x), x, slope * x)),
    "HardSigmoid": HardSigmoid,
    "HardSwish": plain(lambda x: x * largest(number(0), least(number(1), x / 6 + real(0.5)))),
    "Shrink": Shrink,
    "Gelu": Gelu,
    "Swish": Swish,
    "Clip": Clip,
    "Cast": Cast,
    "CastLike": CastLike,
    "Where": plain(lambda c, x, y: select(truth(c), x, y)),
    "Mod": Mod,
    "BitShift": BitShift,
    "IsInf": IsInf,
    "Pow": named("Pow"),
    **{
        f: named(f)
        for f in (
            *("Exp", "Log", "Sqrt", "Abs", "Erf", "Tanh", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
            *("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "Sign"),
            *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
        )
    },
    "IsNaN": plain(lambda x: boolean(nonzero(call("IsNaN", x)))),
    "Less": plain(lambda a, b: boolean(positive(b - a))),
    "Greater": plain(lambda a, b: boolean(positive(a - b))),
    "LessOrEqual": plain(lambda a, b: boolean(negate(positive(a - b)))),
    "GreaterOrEqual": plain(lambda a, b: boolean(negate(positive(b - a)))),
    "Equal": plain(lambda a, b: boolean(negate(nonzero(a - b)))),
    "And": logical(conj),
    "Or": logical(disj),
    "Xor": logical(lambda a, b: disj(conj(a, negate(b)), conj(negate(a), b))),
    "Not": logical(negate),
}

LOGICAL = frozenset({"And", "Or", "Xor", "Not", "Where", "Cast", "CastLike"})
"""Their denotation is exact as it stands: truth values, selection, and casts."""

COMPARISONS = {"Greater": ("Less", True), "GreaterOrEqual": ("LessOrEqual", True)}
COMPARISONS |= {op: (op, False) for op in ("Less", "LessOrEqual", "Equal", "IsNaN", "IsInf")}


def EXACT(node: Node) -> Function:
    """In the exact model: a named function, of which only what holds bit for bit is known."""
    params = (node.dtype, *(node.used[name] for name in sorted(node.used)))
    name, swapped = COMPARISONS.get(node.op, (node.op, False))
    name = f"{name}~" if node.folded else f"{name}!"

    def is_nan(value: Value) -> Value:
        assert symbolic.arithmetic is not None
        condition, told = symbolic.arithmetic.telling(value)
        return boolean(conj(condition, truth(call(name, told, params=params))))

    if node.op == "IsNaN" and symbolic.arithmetic is not None:
        return lambda value: by_cases(is_nan, value)

    def function(*values: Value | None) -> Value:
        present = tuple(v for v in values if v is not None)
        absent = tuple(v is None for v in values)
        args = present[::-1] if swapped else present
        result = call(name, *args, params=(*params, *(absent if any(absent) else ())))
        return boolean(truth(result)) if node.op in COMPARISONS else result

    return function
