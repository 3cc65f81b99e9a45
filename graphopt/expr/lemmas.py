"""Named lemmas on real functions, of which the prover knows nothing else. Each is true of all real arguments.

A lemma rewrites a call to a normal form and answers None where it has nothing to say. Tests try each on numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import inf, isqrt
from typing import Any, TypeAlias

from graphopt.base.dtype import MANTISSA_BITS, DType
from graphopt.base.session import current_session
from graphopt.expr.expressions import (
    ZERO,
    Call,
    Expr,
    Factor,
    Fold,
    FoldBranch,
    call_function,
    constant,
    expr_of_factor,
    fold,
    reciprocal,
    single_factor,
)
from graphopt.expr.integers import TRUE

Lemma = Callable[..., "Expr | None"]
TypedLemma: TypeAlias = Callable[..., "Expr | None"]
"""A lemma on the parameters of a function, and its arguments."""


def _factor_ignoring_guard(value: Expr) -> Factor | None:
    """Return the single factor that a value is, whatever its guard; None where it is no such."""
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and len(term.factors) == 1
    return term.factors[0] if plain else None


def _is_call_of(factor: Factor | None, function: str) -> bool:
    return isinstance(factor, Call) and factor.function == function


def _is_negative(value: Expr) -> bool:
    return bool(value.terms) and all(term.coefficient < 0 for term in value.terms)


def exp(x: Expr) -> Expr | None:
    """exp(0) = 1, exp(a + b) = exp(a)·exp(b), exp(-a) = 1/exp(a), exp(max(a, b)) = max(exp(a), exp(b))."""
    if not x.terms:
        return constant(1)
    if len(x.terms) > 1:
        result = constant(1)
        for term in x.terms:
            result = result * call_function("Exp", Expr((term,)))
        return result
    (term,) = x.terms
    if term.coefficient < 0:
        return reciprocal(call_function("Exp", -x))
    chosen = single_factor(x)
    if not isinstance(chosen, Fold) or chosen.monoid == "prod" or not all(b.is_unconditional for b in chosen.branches):
        return None
    return fold(chosen.monoid, (replace(b, body=call_function("Exp", b.body)) for b in chosen.branches))


def log(x: Expr) -> Expr | None:
    """log(1) = 0, log(exp(a)·b) = a + log(b), log(1/a) = -log(a): both sides are real for the same arguments.

    A sum has the factors that do not depend on what it runs over; where it is empty both sides are minus infinity.
    """
    if len(x.terms) != 1:
        return _softplus(x)
    (term,) = x.terms
    bound = {binder for binder, _ in term.binders}
    total, kept = ZERO, []
    for factor in term.factors:
        inner = (
            _factor_ignoring_guard(factor.args[0])
            if isinstance(factor, Call) and factor.function == "Inverse"
            else factor
        )
        if isinstance(inner, Call) and inner.function == "Exp" and not inner.free_symbols & bound:
            total = total + (inner.args[0] if inner is factor else -inner.args[0])
        else:
            kept.append(factor)
    rest = Expr((replace(term, factors=tuple(kept)),))
    alone = _factor_ignoring_guard(rest)
    if isinstance(alone, Call) and alone.function == "Inverse":
        return total - call_function("Log", alone.args[0])
    if not total.terms:
        return ZERO if rest.constant == 1 else None
    return total + call_function("Log", rest)


def _softplus(x: Expr) -> Expr | None:
    """log(1 + exp(-a)) = log(1 + exp(a)) - a, log(1 + exp(|a|)) = log(1 + exp(a)) + (|a| - a) / 2 of finite a."""
    alone = single_factor(x - constant(1))
    if current_session().arithmetic is not None or not isinstance(alone, Call):
        return None
    match alone.function, tuple(map(single_factor, alone.args)):
        case "Inverse", (Call("Exp", (a,)),):
            return call_function("Log", constant(1) + call_function("Exp", a)) - a
        case "Exp", (Call("Abs", (a,)) as magnitude,):
            more = (expr_of_factor(magnitude) - a) * Fraction(1, 2)
            return call_function("Log", constant(1) + call_function("Exp", a)) + more
    return None


def sqrt(x: Expr) -> Expr | None:
    """Return the root of a number that is a square, or of a fraction over one: √(p/q) = √(p·q) / q."""
    c = x.constant
    if c is None or c < 0:
        return None
    top, bottom = c.numerator * c.denominator, c.denominator
    if isqrt(top) ** 2 == top:
        return constant(Fraction(isqrt(top), bottom))
    return None if bottom == 1 else call_function("Sqrt", constant(top)) * Fraction(1, bottom)


def power(x: Expr, n: Expr) -> Expr | None:
    """Small whole exponents are products, 1/2 is a root, 3/4 a root times its own root: both need a number that is not
    negative."""
    c = n.constant
    if c is None or abs(c) > 4:
        return None
    if c < 0:
        return reciprocal(call_function("Pow", x, -c))
    if c == Fraction(1, 2):
        return call_function("Sqrt", x)
    if c == Fraction(3, 4):
        root = call_function("Sqrt", x)
        return root * call_function("Sqrt", root)
    if c.denominator != 1:
        return None
    result = constant(1)
    for _ in range(int(c)):
        result = result * x
    return result


def absolute(x: Expr) -> Expr | None:
    """Apply |-a| = |a|, |c·a| = |c|·|a|, |a·b| = |a|·|b|, ||a|| = |a|, and |exp(a)|, |√a| are themselves."""
    if x.constant is not None:
        return constant(abs(x.constant))
    if _is_negative(x):
        return call_function("Abs", -x)
    if len(x.terms) != 1 or x.terms[0].binders:
        return None
    (term,) = x.terms
    if term.coefficient == 1 and len(term.factors) == 1:
        return x if any(_is_call_of(term.factors[0], f) for f in ("Abs", "Exp", "Sqrt")) else None
    result = constant(term.coefficient)
    for factor in term.factors:
        result = result * call_function("Abs", expr_of_factor(factor))
    return result


def odd(function: str) -> Lemma:
    """f(0) = 0, f(-a) = -f(a)."""

    def lemma(x: Expr) -> Expr | None:
        if not x.terms:
            return ZERO
        return -call_function(function, -x) if _is_negative(x) else None

    return lemma


def tanh(x: Expr) -> Expr | None:
    """tanh(0) = 0, tanh(-a) = -tanh(a), and tanh(log(1 + exp(a))) = (1 - s²) / (1 + s²), where s = 1 / (1 + exp(a))."""
    inner = _factor_ignoring_guard(x)
    if isinstance(inner, Call) and inner.function == "Log" and x.terms[0].guard == TRUE:
        (argument,) = inner.args
        alone = argument - constant(1)
        if _is_call_of(_factor_ignoring_guard(alone), "Exp") and alone.terms[0].guard == TRUE:
            square = reciprocal(argument) * reciprocal(argument)
            return (constant(1) - square) * reciprocal(constant(1) + square)
    return odd("Tanh")(x)


def even(function: str, at_zero: int) -> Lemma:
    """f(-a) = f(a), and a known number at 0."""

    def lemma(x: Expr) -> Expr | None:
        if not x.terms:
            return constant(at_zero)
        return call_function(function, -x) if _is_negative(x) else None

    return lemma


def drop_redundant_rounding(x: Expr) -> Expr | None:
    """Drop the rounding of a whole number."""
    if x.constant is not None and x.constant.denominator == 1:
        return x
    return x if any(_is_call_of(_factor_ignoring_guard(x), f) for f in ("Floor", "Ceil", "Round")) else None


def nonzero(x: Expr) -> Expr | None:
    """Evaluate it for a number; else drop a factor that is a number."""
    if x.constant is not None:
        return constant(int(x.constant != 0))
    x = _sort_terms(x)
    return _without_scale("NotZero", x, abs(x.terms[0].coefficient) if not _is_negative(x) else x.terms[0].coefficient)


def positive(x: Expr) -> Expr | None:
    """Evaluate it for a number; else drop a positive factor. exp(a) is positive."""
    if x.constant is not None:
        return constant(int(x.constant > 0))
    return (
        constant(1)
        if _is_call_of(_factor_ignoring_guard(x), "Exp")
        else _without_scale("Positive", x, abs(x.terms[0].coefficient))
    )


def sign(x: Expr) -> Expr | None:
    """sign(0) = 0, sign(-a) = -sign(a), sign(sign(a)) = sign(a)."""
    return x if _is_call_of(_factor_ignoring_guard(x), "Sign") else odd("Sign")(x)


def _sort_terms(x: Expr) -> Expr:
    """Return the terms in one order, so that equal conditions are equal objects."""
    return Expr(tuple(sorted(x.terms, key=str)))


def _without_scale(function: str, x: Expr, factor: Fraction) -> Expr | None:
    return call_function(function, x * (1 / factor)) if len(x.terms) == 1 and factor != 1 else None


LEMMAS: Mapping[str, Lemma] = {
    "Exp": exp,
    "Log": log,
    "Sqrt": sqrt,
    "Pow": power,
    "Abs": absolute,
    "NotZero": nonzero,
    "Positive": positive,
    **dict.fromkeys(("Floor", "Ceil", "Round"), drop_redundant_rounding),
    "Sign": sign,
    "Tanh": tanh,
    **{f: odd(f) for f in ("Erf", "Sin", "Tan", "Asin", "Atan", "Sinh", "Asinh", "Atanh")},
    "Cos": even("Cos", 1),
    "Cosh": even("Cosh", 1),
}


# -- quantization ------------------------------------------------------------------------------------------------------


Bounds: TypeAlias = "tuple[Fraction | float, Fraction | float]"
UNBOUNDED: Bounds = (-inf, inf)


def integer_bounds(x: Expr) -> Bounds | None:
    """Return the least and the greatest number that a sum of integers of known types may be.

    What is added to the least or greatest of some numbers may as well be added to each: so what is quantized, which is
    kept within a type with its zero point, is of that type.
    """
    for term in x.terms:
        chosen = _factor_ignoring_guard(Expr((term,))) if term.guard == TRUE else None
        if isinstance(chosen, Fold) and chosen.monoid != "prod":
            # not by a difference: what may be infinite does not cancel
            return _bounds_of_choice(chosen, Expr(tuple(other for other in x.terms if other is not term)))
    low = high = Fraction(0)
    for term in x.terms:
        limits: tuple[int, int] = (1, 1)
        match term.factors:
            case (Call("OfType" | "Wrapped", _, (DType() as dtype,)),):
                limits = dtype.limits
            case (_, *_):
                return None
        if term.binders or term.guard != TRUE or term.coefficient.denominator != 1:
            return None
        ends = sorted(term.coefficient * limit for limit in limits)
        low, high = low + ends[0], high + ends[1]
    return low, high


def _bounds_of_choice(chosen: Fold, more: Expr) -> Bounds:
    """Return bounds of the least or greatest of some numbers plus a rest; None where one has a condition or binders."""
    lows, highs = zip(
        *(
            (not piece.binders and piece.guard == TRUE and integer_bounds(piece.body + more)) or UNBOUNDED
            for piece in chosen.branches
        ),
        strict=True,
    )
    choose = min if chosen.monoid == "min" else max
    return choose(lows), choose(highs)


def fits_dtype(x: Expr, dtype: DType) -> bool:
    """Return whether a sum of integers is known to be a number of an integer type."""
    found = integer_bounds(x)
    return found is not None and dtype.is_integer and dtype.limits[0] <= found[0] and found[1] <= dtype.limits[1]


def _is_normal_scale(scale: Expr) -> bool:
    return _is_call_of(_factor_ignoring_guard(scale), "Scale")


def quantization_steps(types: tuple[DType, DType], x: Expr, scale: Expr) -> Expr | None:
    """Return x in rounded steps of a scale: steps times the scale are as many steps, and the order is kept.

    Integers come back from floats while both roundings together are less than half a step.
    """
    factor = _factor_ignoring_guard(x)
    if not _is_normal_scale(scale):
        return None
    if not x.terms:
        return ZERO
    if isinstance(factor, Fold) and factor.monoid != "prod":
        counted = (replace(p, body=call_function("Steps", p.body, scale, params=types)) for p in factor.branches)
        return fold(factor.monoid, counted)
    if not isinstance(factor, Call):
        return None
    if factor.function == "Scaled" and factor.args[1] == scale and {*factor.params} == {*types} and len({*types}) == 1:
        found, mantissa = integer_bounds(factor.args[0]), MANTISSA_BITS.get(types[0], 0)
        return factor.args[0] if found and 4 * max(-found[0], found[1]) + 1 < 2**mantissa else None
    if factor.function == "Relu!":
        return call_function(
            "Steps", fold("max", [FoldBranch((), TRUE, v) for v in (factor.args[0], ZERO)]), scale, params=types
        )
    return None


def _is_multiple_of_scale(factor: Factor | None) -> bool:
    """Return whether it is some steps of a usual scale, which is a finite number."""
    return isinstance(factor, Call) and factor.function == "Scaled" and _is_normal_scale(factor.args[1])


def within_integer_range(operation: Callable[[Expr, Expr], Expr]) -> TypedLemma:
    """Take a sum or difference of integers that stays within their type for that of numbers."""

    def lemma(params: tuple[Any, ...], a: Expr, b: Expr) -> Expr | None:
        found = operation(a, b)
        return found if len(params) == 1 and isinstance(params[0], DType) and fits_dtype(found, params[0]) else None

    return lemma


def cast_integer(params: tuple[Any, ...], x: Expr) -> Expr | None:
    """Take an integer that the other type holds for itself."""
    return x if params[0] == "wrapped" and fits_dtype(x, DType[params[1]]) else None


def wrap_integer(params: tuple[Any, ...], x: Expr) -> Expr | None:
    """Take an integer that the type holds for itself, as what has wrapped around already is."""
    return x if fits_dtype(x, params[0]) else None


TYPED_LEMMAS: Mapping[str, TypedLemma] = {
    "Steps": quantization_steps,
    "Cast": cast_integer,
    "Wrapped": wrap_integer,
    **{f"Add{sign}": within_integer_range(lambda a, b: a + b) for sign in "!~"},
    **{f"Sub{sign}": within_integer_range(lambda a, b: a - b) for sign in "!~"},
}
"""Lemmas that depend on element types, which are among the parameters."""

# -- the exact model -----------------------------------------------------------------------------------------------


def neutral_element(second: int) -> Lemma:
    """f(a, second) is a, bit for bit."""
    return lambda a, b: a if b.constant == second else None


def idempotent(function: str) -> Lemma:
    """f(f(a)) is f(a), and f(0) is 0."""
    return lambda a: a if not a.terms or _is_call_of(_factor_ignoring_guard(a), f"{function}!") else None


def involution(function: str) -> Lemma:
    """f(f(a)) is a."""

    def lemma(a: Expr) -> Expr | None:
        inner = _factor_ignoring_guard(a)
        return inner.args[0] if isinstance(inner, Call) and inner.function == f"{function}!" else None

    return lemma


EXACT_LEMMAS: Mapping[str, Lemma] = {
    "Mul!": lambda a, b: a if b.constant == 1 else b if a.constant == 1 else None,
    "Div!": neutral_element(1),
    "Sub!": neutral_element(0),
    "IsNaN!": lambda a: ZERO if _is_multiple_of_scale(_factor_ignoring_guard(a)) else None,
    "Pow!": neutral_element(1),
    **{f"{f}!": idempotent(f) for f in ("Relu", "Abs", "Floor", "Ceil", "Round", "Sign")},
    **{f"{f}!": involution(f) for f in ("Neg", "BitwiseNot")},
    **{f"{f}!": (lambda *args: args[0] if len(set(args)) == 1 else None) for f in ("Max", "Min")},
}
"""Lemmas that hold bit for bit, for every element type: x + 0 is not x where x is -0."""
