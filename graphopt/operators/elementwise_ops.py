"""Elementwise operators: the facts of each, and its function, over exact reals and in the exact model.

Part of the trusted base; tested with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeAlias

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.expr.expressions import Expr, FoldBranch, Index, apply_by_cases, call_function, constant, fold
from graphopt.expr.integers import TRUE, Formula, conjunction, disjunction, negate
from graphopt.expr.symbolic_tensors import SymbolicTensor, select_expr, truth_condition, truth_value
from graphopt.language.scalar_functions import can_represent
from graphopt.operators.attribute_proposals import propose_choice
from graphopt.operators.op_context import (
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    to_real,
)
from graphopt.operators.operator import (
    FLOAT_DTYPES,
    ConstantEffect,
    ExtremeOperands,
    MagnitudeEffect,
    Operator,
    ReferenceFidelity,
    ResultDtypeSource,
    RoundingEffect,
)
from graphopt.operators.operator_cost import (
    ACTIVATION_FUSIONS,
    IMAGE_ACTIVATION_FUSIONS,
    LAUNCH_COST,
    EpilogueFusion,
    FusionTarget,
    LayoutEffect,
    OperatorCost,
    WorkKind,
)
from graphopt.operators.shape_constraints import broadcast_element, require_common_shape

ElementFunction: TypeAlias = Callable[..., Expr]
"""Function of the elements at one index, None for absent inputs."""


def maximum(*values: Expr) -> Expr:
    return apply_by_cases(lambda *parts: fold("max", [FoldBranch((), TRUE, v) for v in parts]), *values)


def minimum(*values: Expr) -> Expr:
    return apply_by_cases(lambda *parts: fold("min", [FoldBranch((), TRUE, v) for v in parts]), *values)


def sigmoid(x: Expr) -> Expr:
    return 1 / (1 + call_function("Exp", -x))


def is_positive(x: Expr) -> Formula:
    return truth_condition(call_function("Positive", x))


def is_nonzero(x: Expr) -> Formula:
    return truth_condition(call_function("NotZero", x))


def without_attributes(function: ElementFunction) -> Callable[[OpContext], ElementFunction]:
    """Return an operator without attributes."""
    return lambda node: function


def Clip(_: OpContext) -> ElementFunction:
    """min(max(x, low), high); an absent bound does not bind."""

    def function(x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
        x = x if low is None else maximum(x, low)
        return x if high is None else minimum(x, high)

    return function


def Celu(node: OpContext) -> ElementFunction:
    """Compute the text's formula; the body in the schema agrees with it only for positive alpha."""
    alpha = node.real("alpha")
    return lambda x: maximum(constant(0), x) + minimum(constant(0), alpha * (call_function("Exp", x / alpha) - 1))


def Gelu(node: OpContext) -> ElementFunction:
    """x·Φ(x), or the approximation with tanh."""
    if node.text("approximate", ("none", "tanh")) == "none":
        return lambda x: x * (1 + call_function("Erf", x / call_function("Sqrt", constant(2)))) / 2
    root = to_real((2 / 3.141592653589793) ** 0.5)
    return lambda x: x * (1 + call_function("Tanh", root * (x + to_real(0.044715) * x * x * x))) / 2


def Div(node: OpContext) -> ElementFunction:
    """Division; the quotient of integers is rounded towards 0."""
    return (lambda a, b: call_function("Quotient", a, b)) if node.dtype.is_integer else lambda a, b: a / b


def Mod(node: OpContext) -> ElementFunction:
    kind = node.flag("fmod")
    if node.dtype.is_float and not kind:
        raise UnsupportedOperatorError("Mod of floats without fmod, which opsets before 28 lack")
    return lambda a, b: call_function("FMod" if kind else "Mod", a, b)


def BitShift(node: OpContext) -> ElementFunction:
    direction = node.text("direction", ("LEFT", "RIGHT"))
    return lambda a, b: call_function(f"Shift{direction}", a, b)


def IsInf(node: OpContext) -> ElementFunction:
    signs = node.flag("detect_negative"), node.flag("detect_positive")
    return lambda x: truth_value(is_nonzero(call_function("IsInf", x, params=signs)))


def Cast(node: OpContext) -> ElementFunction:
    to = node.cast_target()
    return cast_function(node, to)


def CastLike(node: OpContext) -> ElementFunction:
    return cast_function(node, node.input(1).dtype)


def cast_function(node: OpContext, to: DType) -> ElementFunction:
    """Return the number itself where a cast loses nothing; other casts are functions of the number.

    Out of range, a cast to integers wraps where it comes from integers, and is undefined where it comes from floats.
    A text depends on the type of the number: `1`, `1.0` and `True` differ, and 0.1 has more digits in double precision.
    """
    ways = [node.read_unmodeled_attribute(name) for name in ("saturate", "round_mode")]
    x = node.input(0)
    if can_represent(to, x.value_dtype):
        return lambda value: value
    if DType.STRING in (to, x.dtype):
        return lambda value: call_function("Cast", value, params=("text", x.dtype, to))
    if to is DType.BOOL:
        return lambda value: truth_value(is_nonzero(value))
    kind = "rounded" if to.is_float else "truncated" if x.dtype.is_float else "wrapped"
    params = (kind, to.name, *(ways if to.bits == 8 and to.is_float else ()))  # elsewhere they mean nothing
    return lambda value: call_function("Cast", value, params=params)


SELECTING_OPERATORS = frozenset({"Max", "Min", "Clip", "Relu"})
"""Operators that return one of their operands: exactly for integers, which have no NaN."""

COMPARISONS = {"Greater": ("Less", True), "GreaterOrEqual": ("LessOrEqual", True)}
COMPARISONS |= {op: (op, False) for op in ("Less", "LessOrEqual", "Equal", "IsNaN", "IsInf")}


def exact_function(node: OpContext) -> ElementFunction:
    """Return a function for the exact model: a named one, of which only bit-for-bit facts are known."""
    params = (node.dtype, *node.operand_dtypes, *(node.read_values[name] for name in sorted(node.read_values)))
    name, swapped = COMPARISONS.get(node.op, (node.op, False))
    name = f"{name}~" if node.is_constant_folded else f"{name}!"

    def is_nan(value: Expr) -> Expr:
        assert current_session().arithmetic is not None
        condition, told = current_session().arithmetic.nan_condition(value)
        return truth_value(conjunction(condition, truth_condition(call_function(name, told, params=params))))

    if node.op == "IsNaN" and current_session().arithmetic is not None:
        return lambda value: apply_by_cases(is_nan, value)

    def function(*values: Expr | None) -> Expr:
        present = tuple(v for v in values if v is not None)
        absent = tuple(v is None for v in values)
        args = present[::-1] if swapped else present
        result = call_function(name, *args, params=(*params, *(absent if any(absent) else ())))
        return truth_value(truth_condition(result)) if node.op in COMPARISONS else result

    return function


class ExtraOperands(Enum):
    """Operands that an elementwise operator takes beside its first."""

    MULTIDIRECTIONAL = auto()
    """Tensors: all broadcast to one shape."""
    UNIDIRECTIONAL = auto()
    """Tensors that are to broadcast to the shape of the first, though kernels take others."""
    SCALARS = auto()
    DTYPE_ONLY = auto()
    """The operand that is cast like: only its element type counts."""


@dataclass(frozen=True)
class ElementwiseDenotation:
    """The denotation of an operator that computes each element from those of its inputs at that index."""

    element_function: Callable[[OpContext], ElementFunction]
    """Function of elements that it computes, by its attributes and element types."""
    extra_operands: ExtraOperands = ExtraOperands.MULTIDIRECTIONAL
    is_exact_function: bool = False
    """True if the function is exact as it stands: truth values, selection, and casts."""

    def __call__(self, node: OpContext) -> SymbolicTensor:
        first = 1 if self.extra_operands is ExtraOperands.DTYPE_ONLY else node.input_count
        inputs = [node.optional_input(i) for i in range(first)]
        present = [tensor for tensor in inputs if tensor is not None]
        if self.extra_operands is ExtraOperands.SCALARS and any(tensor.rank for tensor in present[1:]):
            raise UndefinedOperatorError(f"{node.op}: a bound is no scalar")
        shape = require_common_shape(node, [tensor.shape for tensor in present])
        if node.op in ("Div", "Mod"):
            divisor = node.input(1)
            node.require_divisors(SymbolicTensor(shape, lambda index: broadcast_element(divisor, shape, index)))
        function = self.element_function(node)
        compares_exactly = node.op in COMPARISONS and (node.dtype.is_integer or node.dtype is DType.BOOL)
        chooses_exactly = node.op in SELECTING_OPERATORS and node.dtype.is_integer
        if not (self.is_exact_function or compares_exactly or chooses_exactly) and node.is_exact:
            function = exact_function(node)
        return _map_elements(inputs, shape, function)


def unknown_elementwise(node: OpContext) -> SymbolicTensor:
    """Return an operator of which only the class is known (`schemas.CLASS_SCHEMAS`): some function of elements, perhaps
    undefined, and another one where the rule computes it in double precision when it is applied."""
    inputs = [node.input(i) for i in range(node.input_count)]
    shape = require_common_shape(node, [tensor.shape for tensor in inputs])
    types = tuple(tensor.dtype for tensor in inputs)
    params = node.is_constant_folded, *types

    def function(*values: Expr | None) -> Expr:
        return call_function(f"any {node.op}", *(value for value in values if value is not None), params=params)

    def is_defined(*values: Expr | None) -> Expr:
        return call_function(
            f"where {node.op} is defined", *(value for value in values if value is not None), params=types
        )

    node.require_opaque(_map_elements(inputs, shape, is_defined).base)  # of which a view has all elements
    return _map_elements(inputs, shape, function)


def _map_elements(
    inputs: Sequence[SymbolicTensor | None], shape: SymbolicShape, function: ElementFunction
) -> SymbolicTensor:
    """Return the tensor of a function of the elements of its inputs."""
    present = [tensor for tensor in inputs if tensor is not None]

    def applied(
        operands: Sequence[SymbolicTensor | None], shape: SymbolicShape, view_of: SymbolicTensor | None = None
    ) -> SymbolicTensor:
        def at(index: Index) -> Expr:
            return function(*(t and broadcast_element(t, shape, index) for t in operands))

        return SymbolicTensor(shape, at, view_of=view_of)

    base = _common_base_shape(present, shape)
    return applied(inputs, shape, None if base is None else applied([t and t.base for t in inputs], base))


def _common_base_shape(operands: Sequence[SymbolicTensor], shape: SymbolicShape) -> SymbolicShape | None:
    """Return the shape of the tensor of which all operands of this shape are views; single numbers fit any."""
    whole = [t for t in operands if t.rank or t.view_of]
    bases = {t.base.shape for t in whole}
    same = len(bases) == 1 and all(t.shape == shape for t in whole)
    return next(iter(bases)) if same and any(t.view_of for t in whole) else None


correctly_rounded_op = partial(Operator, reference_fidelity=ReferenceFidelity.EVERYWHERE)
"""Return an operator whose kernel computes its formula for each element, and rounds at most once."""

nonrounding_op = partial(correctly_rounded_op, rounding_effect=RoundingEffect.PRESERVES)
discontinuous_op = partial(correctly_rounded_op, rounding_effect=RoundingEffect.DISCONTINUOUS)

vectorized_op = partial(Operator, deviating_dtypes=FLOAT_DTYPES, is_position_sensitive=True)
"""Return an operator whose kernel computes elements at the end of a vector in another way than within."""


def named_function(name: str) -> ElementwiseDenotation:
    """Return an operator of which nothing is known but its name and the lemmas on it."""
    return ElementwiseDenotation(lambda node: lambda *values: call_function(name, *values))


def logical_function(combine: Callable[..., Formula]) -> ElementwiseDenotation:
    """Return an operator on truth values."""
    return ElementwiseDenotation(
        without_attributes(lambda *values: truth_value(combine(*map(truth_condition, values)))), is_exact_function=True
    )


arithmetic_op = partial(correctly_rounded_op, is_row_wise=True, propagates_nonfinite=True)
comparison_op = partial(discontinuous_op, extreme_operands=ExtremeOperands.ALL, observes_nonfinite=True)
classification_op = partial(discontinuous_op, extreme_operands=ExtremeOperands.ABSORBED, observes_nonfinite=True)
bitwise_op = partial(correctly_rounded_op, extreme_operands=ExtremeOperands.ALL)

ELEMENTWISE_OPERATORS: Mapping[str, Operator] = {
    "Add": arithmetic_op(
        ElementwiseDenotation(without_attributes(lambda a, b: a + b)),
        is_commutative=True,
        is_sum_of_products=True,
        magnitude_effect=MagnitudeEffect.SUMMED,
        constant_effect=ConstantEffect.ADDED,
        cost=OperatorCost(
            fusion_target=FusionTarget.SUM,
            fusions={
                FusionTarget.CONVOLUTION: EpilogueFusion.ADDED_CHANNELS,
                FusionTarget.PRODUCT: EpilogueFusion.BIAS,
            },
            layout_effect=LayoutEffect.KEEPS_IF_SAME_SHAPE,
        ),
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Sub": arithmetic_op(
        ElementwiseDenotation(without_attributes(lambda a, b: a - b)),
        is_sum_of_products=True,
        magnitude_effect=MagnitudeEffect.SUMMED,
        constant_effect=ConstantEffect.ADDED,
        weight=102,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Mul": arithmetic_op(
        ElementwiseDenotation(without_attributes(lambda a, b: a * b)),
        is_commutative=True,
        is_sum_of_products=True,
        magnitude_effect=MagnitudeEffect.MULTIPLIED,
        factor_count=1,
        constant_effect=ConstantEffect.MULTIPLIED,
        cost=OperatorCost(
            fusions={
                FusionTarget.CONVOLUTION: EpilogueFusion.SCALED_CHANNELS,
                FusionTarget.PRODUCT: EpilogueFusion.SCALE,
                FusionTarget.SIGMOID: EpilogueFusion.GATE,
            },
            layout_effect=LayoutEffect.KEEPS_IF_SAME_SHAPE,
        ),
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Div": arithmetic_op(
        ElementwiseDenotation(Div),
        is_sum_of_products=True,
        magnitude_effect=MagnitudeEffect.AMPLIFIED,
        pole_operand=1,
        constant_effect=ConstantEffect.MULTIPLIED,
        weight=104,
        cost=OperatorCost(fusions={FusionTarget.PRODUCT: EpilogueFusion.DIVISOR}),
        divides_integers=True,
    ),
    "Sum": correctly_rounded_op(
        ElementwiseDenotation(without_attributes(lambda *values: sum(values[1:], values[0]))),
        is_commutative=True,
        is_sum_of_products=True,
        magnitude_effect=MagnitudeEffect.SUMMED,
        constant_effect=ConstantEffect.ADDED,
        weight=105,
        cost=OperatorCost(layout_effect=LayoutEffect.KEEPS_IF_SAME_SHAPE),
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Mean": Operator(
        ElementwiseDenotation(without_attributes(lambda *values: sum(values[1:], values[0]) / len(values))),
        is_commutative=True,
        is_sum_of_products=True,
        constant_effect=ConstantEffect.ADDED,
    ),
    **{
        name: nonrounding_op(
            ElementwiseDenotation(without_attributes(function)),
            is_commutative=True,
            deviating_dtypes=FLOAT_DTYPES,  # of 0 and -0 it may give either
            constant_effect=ConstantEffect.SELECTED,
            observes_nonfinite=True,
            extreme_operands=ExtremeOperands.ALL,
        )
        for name, function in (("Max", maximum), ("Min", minimum))
    },
    "Neg": nonrounding_op(
        ElementwiseDenotation(without_attributes(lambda x: -x)),
        is_sum_of_products=True,
        is_row_wise=True,
        propagates_nonfinite=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Reciprocal": arithmetic_op(
        ElementwiseDenotation(without_attributes(lambda x: 1 / x)),
        is_sum_of_products=True,
        pole_operand=0,
        cost=OperatorCost(40),
    ),
    "Relu": nonrounding_op(
        ElementwiseDenotation(without_attributes(lambda x: maximum(x, constant(0)))),
        weight=90,
        cost=OperatorCost(fusions=ACTIVATION_FUSIONS, layout_effect=LayoutEffect.KEEPS),
        propagates_nonfinite=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Sigmoid": vectorized_op(
        ElementwiseDenotation(without_attributes(sigmoid)),
        magnitude_effect=MagnitudeEffect.BOUNDED,
        is_saturating=True,
        cost=OperatorCost(
            30, fusion_target=FusionTarget.SIGMOID, fusions=ACTIVATION_FUSIONS, layout_effect=LayoutEffect.KEEPS
        ),
    ),
    "HardSwish": vectorized_op(
        ElementwiseDenotation(
            without_attributes(lambda x: x * maximum(constant(0), minimum(constant(1), x / 6 + to_real(0.5))))
        ),
        cost=OperatorCost(
            30,
            passes=2,
            fusions={FusionTarget.CONVOLUTION: EpilogueFusion.BLOCKED_ACTIVATION},
            layout_effect=LayoutEffect.KEEPS,
        ),
    ),
    "Celu": vectorized_op(ElementwiseDenotation(Celu), is_saturating=True, cost=OperatorCost(200)),
    "Gelu": vectorized_op(
        ElementwiseDenotation(Gelu), is_saturating=True, cost=OperatorCost(70, layout_effect=LayoutEffect.KEEPS)
    ),
    "Clip": nonrounding_op(
        ElementwiseDenotation(Clip, ExtraOperands.SCALARS),
        magnitude_effect=MagnitudeEffect.CLAMPED,
        reference_fidelity=ReferenceFidelity.ON_INTEGERS,
        constant_effect=ConstantEffect.SELECTED,
        weight=95,
        cost=OperatorCost(fusions=IMAGE_ACTIVATION_FUSIONS),
        is_value_preserving=True,
        observes_nonfinite=True,
        extreme_operands=ExtremeOperands.ALL,
        proposals={"min": propose_choice(-1.0, 0.0, 0.5, 3.0), "max": propose_choice(6.0, 1.0, 0.5, -2.0)},
    ),
    "Identity": correctly_rounded_op(
        ElementwiseDenotation(without_attributes(lambda x: x), is_exact_function=True),
        is_exact=True,
        selects_elements=True,
        is_view=True,
        weight=10,
        cost=LAUNCH_COST,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Cast": correctly_rounded_op(
        ElementwiseDenotation(Cast, is_exact_function=True),
        result_dtype_source=ResultDtypeSource.TARGET,
        weight=60,
        is_value_preserving=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "CastLike": Operator(
        ElementwiseDenotation(CastLike, ExtraOperands.DTYPE_ONLY, is_exact_function=True),
        result_dtype_source=ResultDtypeSource.LIKE,
        is_value_preserving=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Where": correctly_rounded_op(
        ElementwiseDenotation(
            without_attributes(lambda c, x, y: select_expr(truth_condition(c), x, y)), is_exact_function=True
        ),
        is_exact=True,
        deviating_dtypes=FLOAT_DTYPES,  # -0 becomes 0
        constant_effect=ConstantEffect.SELECTED,
        cost=OperatorCost(150),
        observes_nonfinite=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Mod": discontinuous_op(
        ElementwiseDenotation(Mod), may_produce_nan=True, cost=OperatorCost(700), divides_integers=True
    ),
    "BitShift": Operator(ElementwiseDenotation(BitShift), extreme_operands=ExtremeOperands.FIRST),
    "Pow": Operator(
        named_function("Pow"),
        magnitude_effect=MagnitudeEffect.AMPLIFIED,
        pole_operand=0,
        deciding_operand=1,
        factor_count=2,
        # of integers by way of double, which has 53 bits; by a scalar 2 or 3 it multiplies, and wraps around
        deviating_dtypes=frozenset({DType.INT32, DType.INT64, DType.UINT64}),
        weight=210,  # more than the two simple operators that it may stand for
        cost=OperatorCost(700, work=WorkKind.POWER),
        propagates_nonfinite=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Erf": vectorized_op(
        named_function("Erf"), magnitude_effect=MagnitudeEffect.BOUNDED, is_saturating=True, cost=OperatorCost(60)
    ),
    "Tanh": vectorized_op(
        named_function("Tanh"),
        magnitude_effect=MagnitudeEffect.BOUNDED,
        is_saturating=True,
        cost=OperatorCost(30, fusions=ACTIVATION_FUSIONS, layout_effect=LayoutEffect.KEEPS),
    ),
    **{
        name: vectorized_op(named_function(name), magnitude_effect=MagnitudeEffect.BOUNDED, cost=OperatorCost(200))
        for name in ("Sin", "Cos")
    },
    "Exp": vectorized_op(
        named_function("Exp"),
        overflows_early=True,
        is_saturating=True,
        cost=OperatorCost(30),
        propagates_nonfinite=True,
    ),
    "Log": vectorized_op(named_function("Log"), pole_operand=0, cost=OperatorCost(200), propagates_nonfinite=True),
    "Atanh": Operator(named_function("Atanh"), pole_operand=0),
    "Sign": discontinuous_op(
        named_function("Sign"), magnitude_effect=MagnitudeEffect.BOUNDED, extreme_operands=ExtremeOperands.ALL
    ),
    "Abs": nonrounding_op(
        named_function("Abs"), is_row_wise=True, propagates_nonfinite=True, extreme_operands=ExtremeOperands.ALL
    ),
    **{name: discontinuous_op(named_function(name), cost=OperatorCost(40)) for name in ("Floor", "Ceil", "Round")},
    "Sqrt": arithmetic_op(named_function("Sqrt"), may_produce_nan=True, cost=OperatorCost(40)),
    "BitwiseNot": bitwise_op(named_function("BitwiseNot")),
    **{
        name: bitwise_op(named_function(name), is_commutative=True)
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    **{name: Operator(named_function(name)) for name in ("Tan", "Atan", "Asinh")},
    **{name: Operator(named_function(name), may_produce_nan=True) for name in ("Asin", "Acos", "Acosh")},
    **{name: Operator(named_function(name), overflows_early=True) for name in ("Sinh", "Cosh")},
    "IsInf": classification_op(ElementwiseDenotation(IsInf)),
    "IsNaN": classification_op(
        ElementwiseDenotation(without_attributes(lambda x: truth_value(is_nonzero(call_function("IsNaN", x)))))
    ),
    "Less": comparison_op(ElementwiseDenotation(without_attributes(lambda a, b: truth_value(is_positive(b - a))))),
    "Greater": comparison_op(ElementwiseDenotation(without_attributes(lambda a, b: truth_value(is_positive(a - b))))),
    "LessOrEqual": comparison_op(
        ElementwiseDenotation(without_attributes(lambda a, b: truth_value(negate(is_positive(a - b)))))
    ),
    "GreaterOrEqual": comparison_op(
        ElementwiseDenotation(without_attributes(lambda a, b: truth_value(negate(is_positive(b - a)))))
    ),
    "Equal": comparison_op(
        ElementwiseDenotation(without_attributes(lambda a, b: truth_value(negate(is_nonzero(a - b))))),
        is_commutative=True,
    ),
    "And": nonrounding_op(logical_function(conjunction), is_commutative=True, extreme_operands=ExtremeOperands.ALL),
    "Or": nonrounding_op(logical_function(disjunction), is_commutative=True, extreme_operands=ExtremeOperands.ALL),
    "Xor": nonrounding_op(
        logical_function(lambda a, b: disjunction(conjunction(a, negate(b)), conjunction(negate(a), b))),
        is_commutative=True,
        extreme_operands=ExtremeOperands.ALL,
    ),
    "Not": nonrounding_op(logical_function(negate), weight=90, extreme_operands=ExtremeOperands.ALL),
}
