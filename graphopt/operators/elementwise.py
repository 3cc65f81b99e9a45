"""Elementwise operators: what is known of each, and its function, over exact reals and as the exact model has it.

Part of the trusted base; tested with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from graphopt.base.integers import TRUE, Formula, conj, disj, negate
from graphopt.base.session import current
from graphopt.base.symbolic import Index, Piece, Value, by_cases, call, fold, number
from graphopt.base.tensors import Tensor, boolean, select, truth
from graphopt.base.types import DType
from graphopt.language.scalar import holds
from graphopt.operators.broadcasting import broadcast, stretched
from graphopt.operators.cost import ACTIVATION, IMAGE_ACTIVATION, NO_WORK, Cost, Fusion, Head, Layout, Work
from graphopt.operators.node import Node, Shape, Undefined, Unsupported, real
from graphopt.operators.operator import (
    FLOATS,
    Extremes,
    Numbers,
    Operator,
    Reach,
    Reference,
    ResultType,
    Rounding,
)
from graphopt.operators.proposals import choice

Function: TypeAlias = Callable[..., Value]
"""Of the elements at one index, None for absent inputs."""


def largest(*values: Value) -> Value:
    return by_cases(lambda *parts: fold("max", [Piece((), TRUE, v) for v in parts]), *values)


def least(*values: Value) -> Value:
    return by_cases(lambda *parts: fold("min", [Piece((), TRUE, v) for v in parts]), *values)


def sigmoid(x: Value) -> Value:
    return 1 / (1 + call("Exp", -x))


def positive(x: Value) -> Formula:
    return truth(call("Positive", x))


def nonzero(x: Value) -> Formula:
    return truth(call("NotZero", x))


def plain(function: Function) -> Callable[[Node], Function]:
    """Return an operator without attributes."""
    return lambda node: function


def Clip(_: Node) -> Function:
    """min(max(x, low), high); an absent bound does not bind."""

    def function(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
        x = x if low is None else largest(x, low)
        return x if high is None else least(x, high)

    return function


def Celu(node: Node) -> Function:
    """As the text says: the body of the schema says the same only where alpha is above 0."""
    alpha = node.real("alpha")
    return lambda x: largest(number(0), x) + least(number(0), alpha * (call("Exp", x / alpha) - 1))


def Gelu(node: Node) -> Function:
    """x·Φ(x), or the approximation with tanh."""
    if node.text("approximate", ("none", "tanh")) == "none":
        return lambda x: x * (1 + call("Erf", x / call("Sqrt", number(2)))) / 2
    root = real((2 / 3.141592653589793) ** 0.5)
    return lambda x: x * (1 + call("Tanh", root * (x + real(0.044715) * x * x * x))) / 2


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


def Cast(node: Node) -> Function:
    to = node.target()
    return cast(node, to)


def CastLike(node: Node) -> Function:
    return cast(node, node.input(1).dtype)


def cast(node: Node, to: DType) -> Function:
    """Return the number where a cast loses nothing; others are functions of the number.

    Out of range, a cast to integers wraps where it comes from integers, and is undefined where it comes from floats.
    A text depends on the type of the number: `1`, `1.0` and `True` differ, and 0.1 has more digits in double precision.
    """
    ways = [node.ignored(name) for name in ("saturate", "round_mode")]
    x = node.input(0)
    if holds(to, x.values):
        return lambda value: value
    if DType.STRING in (to, x.dtype):
        return lambda value: call("Cast", value, params=("text", x.dtype, to))
    if to is DType.BOOL:
        return lambda value: boolean(nonzero(value))
    kind = "rounded" if to.is_float else "truncated" if x.dtype.is_float else "wrapped"
    params = (kind, to.name, *(ways if to.bits == 8 and to.is_float else ()))  # elsewhere they mean nothing
    return lambda value: call("Cast", value, params=params)


CHOOSING = frozenset({"Max", "Min", "Clip", "Relu"})
"""Operators that give one of the numbers that they are given, exactly where these are integers: there is no NaN."""

COMPARISONS = {"Greater": ("Less", True), "GreaterOrEqual": ("LessOrEqual", True)}
COMPARISONS |= {op: (op, False) for op in ("Less", "LessOrEqual", "Equal", "IsNaN", "IsInf")}


def EXACT(node: Node) -> Function:
    """In the exact model: a named function, of which only what holds bit for bit is known."""
    params = (node.dtype, *node.types, *(node.used[name] for name in sorted(node.used)))
    name, swapped = COMPARISONS.get(node.op, (node.op, False))
    name = f"{name}~" if node.folded else f"{name}!"

    def is_nan(value: Value) -> Value:
        assert current().arithmetic is not None
        condition, told = current().arithmetic.telling(value)
        return boolean(conj(condition, truth(call(name, told, params=params))))

    if node.op == "IsNaN" and current().arithmetic is not None:
        return lambda value: by_cases(is_nan, value)

    def function(*values: Value | None) -> Value:
        present = tuple(v for v in values if v is not None)
        absent = tuple(v is None for v in values)
        args = present[::-1] if swapped else present
        result = call(name, *args, params=(*params, *(absent if any(absent) else ())))
        return boolean(truth(result)) if node.op in COMPARISONS else result

    return function


class Beside(Enum):
    """What an elementwise operator takes beside its first operand."""

    EQUALS = auto()
    """Tensors: all broadcast to one shape."""
    LESSER = auto()
    """Tensors that are to broadcast to the shape of the first, though kernels take others."""
    SCALARS = auto()
    TYPES = auto()
    """What is cast like: of it only the element type counts."""


@dataclass(frozen=True)
class Pointwise:
    """The denotation of an operator that computes each element from those of its inputs at that index."""

    of: Callable[[Node], Function]
    """What it computes, by its attributes and element types."""
    beside: Beside = Beside.EQUALS
    is_told: bool = False
    """Whether the function is exact as it stands: truth values, selection, and casts."""

    def __call__(self, node: Node) -> Tensor:
        first = 1 if self.beside is Beside.TYPES else node.count
        inputs = [node.optional(i) for i in range(first)]
        present = [tensor for tensor in inputs if tensor is not None]
        shape = self._shape(node, present)
        if node.op in ("Div", "Mod"):
            divisor = node.input(1)
            node.require_divisors(Tensor(shape, lambda index: stretched(divisor, shape, index)))
        function = self.of(node)
        compares_exactly = node.op in COMPARISONS and (node.dtype.is_integer or node.dtype is DType.BOOL)
        chooses_exactly = node.op in CHOOSING and node.dtype.is_integer
        if not (self.is_told or compares_exactly or chooses_exactly) and node.is_exact:
            function = EXACT(node)
        return _elementwise(inputs, shape, function)

    def _shape(self, node: Node, operands: Sequence[Tensor]) -> Shape:
        if self.beside is Beside.SCALARS and any(tensor.rank for tensor in operands[1:]):
            raise Undefined(f"{node.op}: a bound is no scalar")
        return broadcast(node, [tensor.shape for tensor in operands])


def unknown(node: Node) -> Tensor:
    """Return an operator of which only the class is known (`ops.CLASSES`): some function of elements, perhaps
    undefined; another one where it is computed in double precision when the rule is applied."""
    inputs = [node.input(i) for i in range(node.count)]
    shape = broadcast(node, [tensor.shape for tensor in inputs])
    types = tuple(tensor.dtype for tensor in inputs)
    params = node.folded, *types

    def function(*values: Value | None) -> Value:
        return call(f"any {node.op}", *(value for value in values if value is not None), params=params)

    def is_defined(*values: Value | None) -> Value:
        return call(f"where {node.op} is defined", *(value for value in values if value is not None), params=types)

    node.require_some(_elementwise(inputs, shape, is_defined).base)  # of which a view has all elements
    return _elementwise(inputs, shape, function)


def _elementwise(inputs: Sequence[Tensor | None], shape: Shape, function: Function) -> Tensor:
    """Return the tensor of a function of the elements of its inputs."""
    present = [tensor for tensor in inputs if tensor is not None]

    def applied(operands: Sequence[Tensor | None], shape: Shape, view_of: Tensor | None = None) -> Tensor:
        def at(index: Index) -> Value:
            return function(*(t and stretched(t, shape, index) for t in operands))

        return Tensor(shape, at, view_of=view_of)

    base = _common_base(present, shape)
    return applied(inputs, shape, None if base is None else applied([t and t.base for t in inputs], base))


def _common_base(operands: Sequence[Tensor], shape: Shape) -> Shape | None:
    """Return the shape of what all operands of this shape are views of; single numbers go with every shape."""
    whole = [t for t in operands if t.rank or t.view_of]
    bases = {t.base.shape for t in whole}
    same = len(bases) == 1 and all(t.shape == shape for t in whole)
    return next(iter(bases)) if same and any(t.view_of for t in whole) else None


plain_kernel = partial(Operator, reference=Reference.EVERYWHERE)
"""An operator whose kernel does with each element what its formula says, and rounds once if at all."""

choosing = partial(plain_kernel, rounding=Rounding.KEPT)
jumping = partial(plain_kernel, rounding=Rounding.JUMPS)

by_vector = partial(Operator, departs=FLOATS, minds_place=True)
"""An operator whose kernel computes several elements at once, and those at the end of a vector otherwise."""


def of_name(name: str) -> Pointwise:
    """Return an operator of which nothing is known but its name and the lemmas on it."""
    return Pointwise(lambda node: lambda *values: call(name, *values))


def logical(combine: Callable[..., Formula]) -> Pointwise:
    """Return an operator on truth values."""
    return Pointwise(plain(lambda *values: boolean(combine(*map(truth, values)))), is_told=True)


arithmetic = partial(plain_kernel, by_rows=True, spreads_nonfinite=True)
comparing = partial(jumping, extremes=Extremes.ALL, tells_nonfinite=True)
telling_apart = partial(jumping, extremes=Extremes.LOST, tells_nonfinite=True)
of_bits = partial(plain_kernel, extremes=Extremes.ALL)

ELEMENTWISE: Mapping[str, Operator] = {
    "Add": arithmetic(
        Pointwise(plain(lambda a, b: a + b)),
        commutes=True,
        adds_products=True,
        reach=Reach.ADDED,
        numbers=Numbers.ADDED,
        cost=Cost(
            head=Head.SUM,
            fusions={Head.CONVOLUTION: Fusion.ADDED_CHANNELS, Head.PRODUCT: Fusion.BIAS},
            layout=Layout.KEEPS_IF_ALIKE,
        ),
        extremes=Extremes.ALL,
    ),
    "Sub": arithmetic(
        Pointwise(plain(lambda a, b: a - b)),
        adds_products=True,
        reach=Reach.ADDED,
        numbers=Numbers.ADDED,
        weight=102,
        extremes=Extremes.ALL,
    ),
    "Mul": arithmetic(
        Pointwise(plain(lambda a, b: a * b)),
        commutes=True,
        adds_products=True,
        reach=Reach.MULTIPLIED,
        multiplies=1,
        numbers=Numbers.MULTIPLIED,
        cost=Cost(
            fusions={
                Head.CONVOLUTION: Fusion.SCALED_CHANNELS,
                Head.PRODUCT: Fusion.SCALE,
                Head.SIGMOID: Fusion.GATE,
            },
            layout=Layout.KEEPS_IF_ALIKE,
        ),
        extremes=Extremes.ALL,
    ),
    "Div": arithmetic(
        Pointwise(Div),
        adds_products=True,
        reach=Reach.GROWN,
        pole=1,
        numbers=Numbers.MULTIPLIED,
        weight=104,
        cost=Cost(fusions={Head.PRODUCT: Fusion.DIVISOR}),
        divides=True,
    ),
    "Sum": plain_kernel(
        Pointwise(plain(lambda *values: sum(values[1:], values[0]))),
        commutes=True,
        adds_products=True,
        reach=Reach.ADDED,
        numbers=Numbers.ADDED,
        weight=105,
        cost=Cost(layout=Layout.KEEPS_IF_ALIKE),
        extremes=Extremes.ALL,
    ),
    "Mean": Operator(
        Pointwise(plain(lambda *values: sum(values[1:], values[0]) / len(values))),
        commutes=True,
        adds_products=True,
        numbers=Numbers.ADDED,
    ),
    **{
        name: choosing(
            Pointwise(plain(function)),
            commutes=True,
            departs=FLOATS,  # of 0 and -0 it may give either
            numbers=Numbers.CHOSEN,
            tells_nonfinite=True,
            extremes=Extremes.ALL,
        )
        for name, function in (("Max", largest), ("Min", least))
    },
    "Neg": choosing(
        Pointwise(plain(lambda x: -x)),
        adds_products=True,
        by_rows=True,
        spreads_nonfinite=True,
        extremes=Extremes.ALL,
    ),
    "Reciprocal": arithmetic(
        Pointwise(plain(lambda x: 1 / x)),
        adds_products=True,
        pole=0,
        cost=Cost(40),
    ),
    "Relu": choosing(
        Pointwise(plain(lambda x: largest(x, number(0)))),
        weight=90,
        cost=Cost(fusions=ACTIVATION, layout=Layout.KEEPS),
        spreads_nonfinite=True,
        extremes=Extremes.ALL,
    ),
    "Sigmoid": by_vector(
        Pointwise(plain(sigmoid)),
        reach=Reach.BOUNDED,
        saturates=True,
        cost=Cost(30, head=Head.SIGMOID, fusions=ACTIVATION, layout=Layout.KEEPS),
    ),
    "HardSwish": by_vector(
        Pointwise(plain(lambda x: x * largest(number(0), least(number(1), x / 6 + real(0.5))))),
        cost=Cost(30, passes=2, fusions={Head.CONVOLUTION: Fusion.BLOCKED_ACTIVATION}, layout=Layout.KEEPS),
    ),
    "Celu": by_vector(Pointwise(Celu), saturates=True, cost=Cost(200)),
    "Gelu": by_vector(Pointwise(Gelu), saturates=True, cost=Cost(70, layout=Layout.KEEPS)),
    "Clip": choosing(
        Pointwise(Clip, Beside.SCALARS),
        reach=Reach.CLAMPED,
        reference=Reference.ON_INTEGERS,
        numbers=Numbers.CHOSEN,
        weight=95,
        cost=Cost(fusions=IMAGE_ACTIVATION),
        passes=True,
        tells_nonfinite=True,
        extremes=Extremes.ALL,
        proposals={"min": choice(-1.0, 0.0, 0.5, 3.0), "max": choice(6.0, 1.0, 0.5, -2.0)},
    ),
    "Identity": plain_kernel(
        Pointwise(plain(lambda x: x), is_told=True),
        is_exact=True,
        keeps=True,
        is_view=True,
        weight=10,
        cost=NO_WORK,
        extremes=Extremes.ALL,
    ),
    "Cast": plain_kernel(
        Pointwise(Cast, is_told=True),
        result_type=ResultType.TARGET,
        weight=60,
        passes=True,
        extremes=Extremes.ALL,
    ),
    "CastLike": Operator(
        Pointwise(CastLike, Beside.TYPES, is_told=True),
        result_type=ResultType.LIKE,
        passes=True,
        extremes=Extremes.ALL,
    ),
    "Where": plain_kernel(
        Pointwise(plain(lambda c, x, y: select(truth(c), x, y)), is_told=True),
        is_exact=True,
        departs=FLOATS,  # -0 becomes 0
        numbers=Numbers.CHOSEN,
        cost=Cost(150),
        tells_nonfinite=True,
        extremes=Extremes.ALL,
    ),
    "Mod": jumping(Pointwise(Mod), has_gaps=True, cost=Cost(700), divides=True),
    "BitShift": Operator(Pointwise(BitShift), extremes=Extremes.FIRST),
    "Pow": Operator(
        of_name("Pow"),
        reach=Reach.GROWN,
        pole=0,
        decides=1,
        multiplies=2,
        # of integers by way of double, which has 53 bits; by a scalar 2 or 3 it multiplies, and wraps around
        departs=frozenset({DType.INT32, DType.INT64, DType.UINT64}),
        weight=210,  # more than the two simple operators that it may stand for
        cost=Cost(700, work=Work.POWER),
        spreads_nonfinite=True,
        extremes=Extremes.ALL,
    ),
    "Erf": by_vector(of_name("Erf"), reach=Reach.BOUNDED, saturates=True, cost=Cost(60)),
    "Tanh": by_vector(
        of_name("Tanh"),
        reach=Reach.BOUNDED,
        saturates=True,
        cost=Cost(30, fusions=ACTIVATION, layout=Layout.KEEPS),
    ),
    **{name: by_vector(of_name(name), reach=Reach.BOUNDED, cost=Cost(200)) for name in ("Sin", "Cos")},
    "Exp": by_vector(of_name("Exp"), overflows=True, saturates=True, cost=Cost(30), spreads_nonfinite=True),
    "Log": by_vector(of_name("Log"), pole=0, cost=Cost(200), spreads_nonfinite=True),
    "Atanh": Operator(of_name("Atanh"), pole=0),
    "Sign": jumping(of_name("Sign"), reach=Reach.BOUNDED, extremes=Extremes.ALL),
    "Abs": choosing(of_name("Abs"), by_rows=True, spreads_nonfinite=True, extremes=Extremes.ALL),
    **{name: jumping(of_name(name), cost=Cost(40)) for name in ("Floor", "Ceil", "Round")},
    "Sqrt": arithmetic(of_name("Sqrt"), has_gaps=True, cost=Cost(40)),
    "BitwiseNot": of_bits(of_name("BitwiseNot")),
    **{name: of_bits(of_name(name), commutes=True) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **{name: Operator(of_name(name)) for name in ("Tan", "Atan", "Asinh")},
    **{name: Operator(of_name(name), has_gaps=True) for name in ("Asin", "Acos", "Acosh")},
    **{name: Operator(of_name(name), overflows=True) for name in ("Sinh", "Cosh")},
    "IsInf": telling_apart(Pointwise(IsInf)),
    "IsNaN": telling_apart(Pointwise(plain(lambda x: boolean(nonzero(call("IsNaN", x)))))),
    "Less": comparing(Pointwise(plain(lambda a, b: boolean(positive(b - a))))),
    "Greater": comparing(Pointwise(plain(lambda a, b: boolean(positive(a - b))))),
    "LessOrEqual": comparing(Pointwise(plain(lambda a, b: boolean(negate(positive(a - b)))))),
    "GreaterOrEqual": comparing(Pointwise(plain(lambda a, b: boolean(negate(positive(b - a)))))),
    "Equal": comparing(Pointwise(plain(lambda a, b: boolean(negate(nonzero(a - b))))), commutes=True),
    "And": choosing(logical(conj), commutes=True, extremes=Extremes.ALL),
    "Or": choosing(logical(disj), commutes=True, extremes=Extremes.ALL),
    "Xor": choosing(
        logical(lambda a, b: disj(conj(a, negate(b)), conj(negate(a), b))), commutes=True, extremes=Extremes.ALL
    ),
    "Not": choosing(logical(negate), weight=90, extremes=Extremes.ALL),
}
