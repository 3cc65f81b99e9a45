"""The named lemmas: what the prover knows of real functions beyond their names. Each is true of all real arguments.

A lemma rewrites a call to a normal form and answers None where it has nothing to say. Tests try each on numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from math import inf, isqrt
from typing import Any, TypeAlias

from graphopt.base.integers import TRUE
from graphopt.base.symbolic import ZERO, Call, Factor, Fold, Piece, Value, call, fold, inverse, lift, number
from graphopt.base.types import MANTISSA, DType

Lemma = Callable[..., "Value | None"]
TypedLemma: TypeAlias = Callable[..., "Value | None"]
"""Of the parameters of a function, and its arguments."""


def _one(value: Value) -> Factor | None:
    """Return the single factor that a value is."""
    if len(value.terms) != 1:
        return None
    (term,) = value.terms
    plain = term.coefficient == 1 and not term.binders and len(term.factors) == 1
    return term.factors[0] if plain else None


def _is(factor: Factor | None, function: str) -> bool:
    return isinstance(factor, Call) and factor.function == function


def _negative(value: Value) -> bool:
    return bool(value.terms) and all(term.coefficient < 0 for term in value.terms)


def exp(x: Value) -> Value | None:
    """exp(0) = 1, exp(a + b) = exp(a)·exp(b), exp(-a) = 1/exp(a)."""
    if not x.terms:
        return number(1)
    if len(x.terms) > 1:
        result = number(1)
        for term in x.terms:
            result = result * call("Exp", Value((term,)))
        return result
    (term,) = x.terms
    return inverse(call("Exp", -x)) if term.coefficient < 0 else None


def log(x: Value) -> Value | None:
    """log(1) = 0, log(exp(a)·b) = a + log(b), log(1/a) = -log(a): both sides are real for the same arguments.

    A sum has the factors that do not depend on what it runs over; where it is empty both sides are minus infinity.
    """
    if len(x.terms) != 1:
        return None
    (term,) = x.terms
    bound = {binder for binder, _ in term.binders}
    total, kept = ZERO, []
    for factor in term.factors:
        inner = _one(factor.args[0]) if isinstance(factor, Call) and factor.function == "Inverse" else factor
        if isinstance(inner, Call) and inner.function == "Exp" and not inner.symbols & bound:
            total = total + (inner.args[0] if inner is factor else -inner.args[0])
        else:
            kept.append(factor)
    rest = Value((replace(term, factors=tuple(kept)),))
    alone = _one(rest)
    if isinstance(alone, Call) and alone.function == "Inverse":
        return total - call("Log", alone.args[0])
    if not total.terms:
        return ZERO if rest.constant == 1 else None
    return total + call("Log", rest)


def sqrt(x: Value) -> Value | None:
    """Return the root of a number that is a square, or of a fraction over one: √(p/q) = √(p·q) / q."""
    c = x.constant
    if c is None or c < 0:
        return None
    top, bottom = c.numerator * c.denominator, c.denominator
    if isqrt(top) ** 2 == top:
        return number(Fraction(isqrt(top), bottom))
    return None if bottom == 1 else call("Sqrt", number(top)) * Fraction(1, bottom)


def power(x: Value, n: Value) -> Value | None:
    """Small whole exponents are products, 1/2 is a root."""
    c = n.constant
    if c is None or abs(c) > 4:
        return None
    if c < 0:
        return inverse(call("Pow", x, -c))
    if c == Fraction(1, 2):
        return call("Sqrt", x)
    if c.denominator != 1:
        return None
    result = number(1)
    for _ in range(int(c)):
        result = result * x
    return result


def absolute(x: Value) -> Value | None:
    """Apply |-a| = |a|, |c·a| = |c|·|a|, |a·b| = |a|·|b|, ||a|| = |a|, and |exp(a)|, |√a| are themselves."""
    if x.constant is not None:
        return number(abs(x.constant))
    if _negative(x):
        return call("Abs", -x)
    if len(x.terms) != 1 or x.terms[0].binders:
        return None
    (term,) = x.terms
    if term.coefficient == 1 and len(term.factors) == 1:
        return x if any(_is(term.factors[0], f) for f in ("Abs", "Exp", "Sqrt")) else None
    result = number(term.coefficient)
    for factor in term.factors:
        result = result * call("Abs", lift(factor))
    return result


def odd(function: str) -> Lemma:
    """f(0) = 0, f(-a) = -f(a)."""

    def lemma(x: Value) -> Value | None:
        if not x.terms:
            return ZERO
        return -call(function, -x) if _negative(x) else None

    return lemma


def even(function: str, at_zero: int) -> Lemma:
    """f(-a) = f(a), and a known number at 0."""

    def lemma(x: Value) -> Value | None:
        if not x.terms:
            return number(at_zero)
        return call(function, -x) if _negative(x) else None

    return lemma


def whole(x: Value) -> Value | None:
    """Drop the rounding of what is whole already."""
    if x.constant is not None and x.constant.denominator == 1:
        return x
    return x if any(_is(_one(x), f) for f in ("Floor", "Ceil", "Round")) else None


def not_zero(x: Value) -> Value | None:
    """Of a number it is known; a factor that is a number does not matter."""
    if x.constant is not None:
        return number(int(x.constant != 0))
    x = _ordered(x)
    return _scaled("NotZero", x, abs(x.terms[0].coefficient) if not _negative(x) else x.terms[0].coefficient)


def positive(x: Value) -> Value | None:
    """Of a number it is known; a positive factor does not matter; exp(a) is positive."""
    if x.constant is not None:
        return number(int(x.constant > 0))
    return number(1) if _is(_one(x), "Exp") else _scaled("Positive", x, abs(x.terms[0].coefficient))


def sign(x: Value) -> Value | None:
    """sign(0) = 0, sign(-a) = -sign(a), sign(sign(a)) = sign(a)."""
    return x if _is(_one(x), "Sign") else odd("Sign")(x)


def _ordered(x: Value) -> Value:
    """Return the terms in one order, so that equal conditions are equal objects."""
    return Value(tuple(sorted(x.terms, key=str)))


def _scaled(function: str, x: Value, factor: Fraction) -> Value | None:
    return call(function, x * (1 / factor)) if len(x.terms) == 1 and factor != 1 else None


LEMMAS: Mapping[str, Lemma] = {
    "Exp": exp,
    "Log": log,
    "Sqrt": sqrt,
    "Pow": power,
    "Abs": absolute,
    "NotZero": not_zero,
    "Positive": positive,
    **dict.fromkeys(("Floor", "Ceil", "Round"), whole),
    "Sign": sign,
    **{f: odd(f) for f in ("Erf", "Tanh", "Sin", "Tan", "Asin", "Atan", "Sinh", "Asinh", "Atanh")},
    "Cos": even("Cos", 1),
    "Cosh": even("Cosh", 1),
}


# -- quantization ------------------------------------------------------------------------------------------------------


Limits: TypeAlias = "tuple[Fraction | float, Fraction | float]"
ANYTHING: Limits = (-inf, inf)


def bounds(x: Value) -> Limits | None:
    """Return the least and the greatest number that a sum of integers of known types may be.

    What is added to the least or greatest of some numbers may as well be added to each: so what is quantized, which is
    kept within a type with its zero point, is of that type.
    """
    for term in x.terms:
        chosen = _one(Value((term,))) if term.guard == TRUE else None
        if isinstance(chosen, Fold) and chosen.monoid != "prod":
            # not by a difference: what may be infinite does not cancel
            return _bounds_of_choice(chosen, Value(tuple(other for other in x.terms if other is not term)))
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


def _bounds_of_choice(chosen: Fold, more: Value) -> Limits:
    """Return the bounds of the least or the greatest of some numbers, and more. Of those that are there under a
    condition, or many times, nothing is known."""
    lows, highs = zip(
        *(
            (not piece.binders and piece.guard == TRUE and bounds(piece.body + more)) or ANYTHING
            for piece in chosen.pieces
        ),
        strict=True,
    )
    choose = min if chosen.monoid == "min" else max
    return choose(lows), choose(highs)


def fits(x: Value, dtype: DType) -> bool:
    """Return whether a sum of integers is known to be a number of an integer type."""
    found = bounds(x)
    return found is not None and dtype.is_integer and dtype.limits[0] <= found[0] and found[1] <= dtype.limits[1]


def _is_usual(scale: Value) -> bool:
    return _is(_one(scale), "Scale")


def steps(types: tuple[DType, DType], x: Value, scale: Value) -> Value | None:
    """How many steps of a scale x is, rounded: what so many steps make is so many, and greater numbers are no fewer.

    Integers come back from floats while both roundings together are less than half a step.
    """
    factor = _one(x)
    if not _is_usual(scale):
        return None
    if not x.terms:
        return ZERO
    if isinstance(factor, Fold) and factor.monoid != "prod":
        counted = (replace(p, body=call("Steps", p.body, scale, params=types)) for p in factor.pieces)
        return fold(factor.monoid, counted)
    if not isinstance(factor, Call):
        return None
    if factor.function == "Scaled" and factor.args[1] == scale and {*factor.params} == {*types} and len({*types}) == 1:
        found, mantissa = bounds(factor.args[0]), MANTISSA.get(types[0], 0)
        return factor.args[0] if found and 4 * max(-found[0], found[1]) + 1 < 2**mantissa else None
    if factor.function == "Relu!":
        return call("Steps", fold("max", [Piece((), TRUE, v) for v in (factor.args[0], ZERO)]), scale, params=types)
    return None


def _is_of_scale(factor: Factor | None) -> bool:
    """Return whether it is some steps of a usual scale, which is a finite number."""
    return isinstance(factor, Call) and factor.function == "Scaled" and _is_usual(factor.args[1])


def integers(operation: Callable[[Value, Value], Value]) -> TypedLemma:
    """Take a sum or difference of integers that stays within their type for that of numbers."""

    def lemma(params: tuple[Any, ...], a: Value, b: Value) -> Value | None:
        found = operation(a, b)
        return found if len(params) == 1 and isinstance(params[0], DType) and fits(found, params[0]) else None

    return lemma


def cast(params: tuple[Any, ...], x: Value) -> Value | None:
    """Take an integer that the other type holds for itself."""
    return x if params[0] == "wrapped" and fits(x, DType[params[1]]) else None


def wrapped(params: tuple[Any, ...], x: Value) -> Value | None:
    """Take an integer that the type holds for itself, as what has wrapped around already is."""
    return x if fits(x, params[0]) else None


TYPED_LEMMAS: Mapping[str, TypedLemma] = {
    "Steps": steps,
    "Cast": cast,
    "Wrapped": wrapped,
    **{f"Add{sign}": integers(lambda a, b: a + b) for sign in "!~"},
    **{f"Sub{sign}": integers(lambda a, b: a - b) for sign in "!~"},
}
"""What hangs on element types, which are among the parameters."""

# -- the exact model -----------------------------------------------------------------------------------------------


def neutral(second: int) -> Lemma:
    """f(a, second) is a, bit for bit."""
    return lambda a, b: a if b.constant == second else None


def idempotent(function: str) -> Lemma:
    """f(f(a)) is f(a), and f(0) is 0."""
    return lambda a: a if not a.terms or _is(_one(a), f"{function}!") else None


def involution(function: str) -> Lemma:
    """f(f(a)) is a."""

    def lemma(a: Value) -> Value | None:
        inner = _one(a)
        return inner.args[0] if isinstance(inner, Call) and inner.function == f"{function}!" else None

    return lemma


EXACT_LEMMAS: Mapping[str, Lemma] = {
    "Mul!": lambda a, b: a if b.constant == 1 else b if a.constant == 1 else None,
    "Div!": neutral(1),
    "Sub!": neutral(0),
    "IsNaN!": lambda a: ZERO if _is_of_scale(_one(a)) else None,
    "Pow!": neutral(1),
    **{f"{f}!": idempotent(f) for f in ("Relu", "Abs", "Floor", "Ceil", "Round", "Sign")},
    **{f"{f}!": involution(f) for f in ("Neg", "BitwiseNot")},
    **{f"{f}!": (lambda *args: args[0] if len(set(args)) == 1 else None) for f in ("Max", "Min")},
}
"""What holds bit for bit, for every element type: x + 0 is not x where x is -0."""
