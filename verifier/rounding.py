"""Where floats depart from real arithmetic, so that a rule which holds for all real numbers is not licensed for them.

Rounding errors are taken to be small. They are not where a value is rounded before a discontinuous function (for x =
31, x / 7 · 7 is a little less than 31, and its floor 30), where a number in the rule is so large that what is added to
it is lost, and where a computed number is kept in single precision although the model computes in double.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, product
from math import inf, isfinite, prod

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import can_represent
from graphopt.language.terms import (
    App,
    Lit,
    LiteralValue,
    Term,
    Var,
    holes,
    is_scalar,
    operator_applications,
    walk_term,
)
from graphopt.operators.operator import ConstantEffect, MagnitudeEffect, RoundingEffect
from graphopt.operators.operator_classes import is_casting, lookup_operator
from graphopt.verifier.element_types import DTypeError, Typing
from graphopt.verifier.expanded_rule import ExpandedRule

MAX_SUMMAND = 2.0**10
"""The largest number that a rule may add to a value: single precision keeps four digits of the value then."""
LARGEST = 2.0**20
"""The largest number that a rule may write for floats, and one over the smallest."""

MAGNITUDE_FUNCTIONS = frozenset({"Pow", "pow", "Exp", "exp", "Add", "add", "Sub", "sub"})
"""Operators and functions that make of numbers what is larger than their product, or smaller."""

MAX_EXPONENT_SHIFT = 40.0
"""The largest number, of either sign, that a rule may write into an exponent: of the 38 digits that single precision
has for a magnitude exp(40) leaves 21, and exp(-40) is as far from the least normal number."""


def explain_unlicensed(rule: Rule, typings: Sequence[Typing]) -> str:
    """Return why equality over the real numbers does not license a rule for floats; an empty text where it does."""
    causes = (_jumps, _overflows, _saturates, _numbers, _narrower, _kept_in_single)
    return next(chain.from_iterable(cause(rule, typings) for cause in causes), "")


# -- jumps -------------------------------------------------------------------------------------------------------------


def _jumps(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Jumps whose operand was rounded, and which the other side does not have word for word."""
    left, right = (dict.fromkeys(_rounded_jumps(sides, typings)) for sides in (rule.left, rule.right))
    if rule.definitions:  # a kernel that is declared by a term rounds in a way of its own
        left, right = {**left, **right}, {}
    for app in (*(app for app in left if app not in right), *(app for app in right if app not in left or _folds(app))):
        reason = "its operand is the same over the real numbers only"
        demand = "it has to be computed in the same way on both sides, not rounded otherwise"
        if all(_is_lossless(part, typings) for part in _rounded_ahead(app)):
            reason = "its operand is cast to another element type"
            demand = "it has to be computed in the same types on both sides"
        yield f"{app.op} jumps, and {reason}: {demand}; found {app}"


def _rounded_jumps(sides: Sequence[Term], typings: Sequence[Typing]) -> Iterator[App]:
    """Yield the jumps in some terms before which something is rounded."""
    for side in sides:
        for app in operator_applications(side):
            inside = _rounding(app) is RoundingEffect.SELECTS_INDEX and app is not side
            if (inside or _is_jump(app, typings)) and any(_rounded_ahead(app)):
                yield app


def _rounded_ahead(app: App) -> Iterator[App]:
    """Yield what rounds in the operands that decide where an operator jumps."""
    operands = (
        operand for operand in app.inputs[lookup_operator(app.op, app.domain).deciding_operand :] if operand is not None
    )
    yield from (part for operand in operands for part in operator_applications(operand) if _rounds(part))


def _is_jump(app: App, typings: Sequence[Typing]) -> bool:
    """Return whether an operator jumps, on floats, in some choice of element types."""
    if is_casting(app):
        return any(not _is_float(typing.type_of(app)) and _reads_floats(app, typing) for typing in typings)
    if app.op == "IsNaN" and _is_of_softmax(app.inputs[0]) and not _may_fail_by_rounding(app):
        return False  # what such a row reads makes it NaN, not how it is rounded
    if app.op == "Resize":
        return any(
            part is not None and not is_scalar(part)
            for part in app.inputs[lookup_operator(app.op).deciding_operand : 3]
        )
    if app.op == "Range":
        return any(
            _is_float(typing.type_of(part)) for typing in typings for part in app.operands if not is_scalar(part)
        )
    jumps = (
        _rounding(app) is RoundingEffect.DISCONTINUOUS or app.op == "Pow"
    )  # of negative numbers there are whole powers only
    return jumps and any(_reads_floats(app, typing) for typing in typings)


def _is_of_softmax(term: Term | None) -> bool:
    """Return whether elements are weights of a softmax, or products of matrices with them, wherever these were moved
    to."""
    if not isinstance(term, App) or term.domain:
        return False
    if lookup_operator(term.op).selects_elements:
        return _is_of_softmax(term.inputs[0])
    factors = term.inputs if term.op == "MatMul" else (term,)
    return term.op == "Attention" or any(isinstance(part, App) and part.op == "Softmax" for part in factors)


def _may_fail_by_rounding(app: App) -> bool:
    """Return whether something is rounded ahead of an operator that has no value at some numbers, as a root is."""
    partial = (part for part in operator_applications(app) if lookup_operator(part.op, part.domain).is_partial)
    return any(_rounds(inner) for part in partial for arg in part.operands for inner in operator_applications(arg))


def _reads_floats(app: App, typing: Typing) -> bool:
    return any(part is not None and not is_scalar(part) and _is_float(typing.type_of(part)) for part in app.inputs)


def _is_float(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_float


def _rounding(app: App) -> RoundingEffect:
    facts = lookup_operator(app.op, app.domain)
    is_place = facts.rounding_effect is RoundingEffect.PRESERVES and app.output in facts.index_outputs
    return RoundingEffect.SELECTS_INDEX if is_place else facts.rounding_effect


def _rounds(app: App) -> bool:
    return lookup_operator(app.op, app.domain).is_rounding


def _folds(app: App) -> bool:
    """Return whether it is computed when the rule is applied, in double precision: then it is not what ran before."""
    return not any(isinstance(part, Var) and part.kind == "tensor" for part in walk_term(app))


def _overflows(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Exponentials of what the left side takes none of: softmax is exp(x) / Σ exp(x), but is computed otherwise."""
    for left, right in zip(rule.left, rule.right, strict=True):
        known = {*operator_applications(left)}
        for app in (
            app
            for app in operator_applications(right)
            if app not in known and lookup_operator(app.op, app.domain).overflows_early
        ):
            if _is_at_most_one(app):
                continue
            peak = _peak(app, typings)
            if peak is None or not _is_used_as_softmax(app, peak, rule.right):
                yield f"{app.op} overflows at moderate numbers, and the left side does not compute {app}"
        for app in (
            app
            for app in operator_applications(right)
            if app not in known and lookup_operator(app.op, app.domain).factor_count
        ):
            if _exponentials(app, typings) > max(1, *(_exponentials(arg, typings) for arg in app.operands)):
                yield f"products of exponentials overflow at moderate numbers, and the left side does not compute {app}"


def _exponentials(term: Term, typings: Sequence[Typing]) -> float:
    """Return how many exponentials are multiplied with each other, at most, that are not those of a softmax."""
    if not isinstance(term, App) or is_scalar(term):
        return 0
    inside = [_exponentials(arg, typings) for arg in term.operands]
    facts = lookup_operator(term.op, term.domain)
    if facts.overflows_early:
        return 0 if _is_at_most_one(term) or _peak(term, typings) is not None else 1
    if facts.factor_count:
        return sum(inside) if facts.factor_count == 1 else facts.factor_count * max(inside)
    if facts.magnitude_effect is MagnitudeEffect.BOUNDED:
        return 0
    return max(inside, default=0)


def _is_at_most_one(app: App) -> bool:
    """Return whether it is the exponential of what is 0 or less, in floats, too."""
    if app.op != "Exp" or any(part.domain for part in operator_applications(app)):
        return False
    match app.inputs:
        case (App(op="Neg", inputs=(App(op="Abs"),)),):
            return True
        case (App(op="Clip", inputs=(_, None, Lit(int() | float() as bound))),):
            return bound <= 0
    return False


def _saturates(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Yield poles, and places, of what has become one number: 1 / Sigmoid(-x) is 1 + exp(x), but not of floats."""
    for left, right in zip(rule.left, rule.right, strict=True):
        old, new = {*operator_applications(left)}, {*operator_applications(right)}
        for app in (app for app in operator_applications(right) if app not in old):
            yield from _check_new_poles(app, old, typings)
        for app in (
            app
            for app in operator_applications(left)
            if app not in new and _rounding(app) is RoundingEffect.SELECTS_INDEX
        ):
            yield from _ties_broken(app, new, typings)


def _check_new_poles(app: App, known: Container[App], typings: Sequence[Typing]) -> Iterator[str]:
    """Say why a new pole or place may be one of floats only; the largest of exp(x - max(x)) is 1 whatever x is."""
    first = 0 if _rounding(app) is RoundingEffect.SELECTS_INDEX else lookup_operator(app.op, app.domain).pole_operand
    deciding = () if first is None else app.inputs[first:]
    if app.op in _POLES_AT_ZERO:
        deciding = tuple(each for each in deciding if not _exceeds_one(each))
    inside = [part for operand in deciding if operand is not None for part in operator_applications(operand)]
    if any(lookup_operator(part.op, part.domain).is_saturating and _peak(part, typings) is None for part in inside):
        yield f"{app.op} tells apart what saturates, and the left side does not compute {app}"
    rounded = (part for part in inside if _rounds(part) and not _is_lossless(part, typings))
    if _rounding(app) is RoundingEffect.SELECTS_INDEX and any(part not in known for part in rounded):
        yield f"{app.op} tells apart what is rounded, and the left side does not compute {app}"


_POLES_AT_ZERO = ("Div", "Reciprocal", "Log")


def _exceeds_one(term: Term | None) -> bool:
    """Return whether floats are 1 or more, of which a quotient or logarithm is no pole: such a number plus a square or
    an exponential."""
    match term:
        case App(op="Add", inputs=(Lit(int() | float() as number), more) | (more, Lit(int() | float() as number))):
            is_square = isinstance(more, App) and more.op == "Mul" and len({*more.inputs}) == 1
            return number >= 1 and (is_square or (isinstance(more, App) and more.op == "Exp"))
    return False


def _ties_broken(app: App, new: Container[App], typings: Sequence[Typing]) -> Iterator[str]:
    """Yield why the left side may find a place among numbers that have become equal, which the right side tells apart:
    where exp(x) is 0 throughout, the first."""
    operand = _below_softmax(app.inputs[0]) if app.op == "ArgMax" else app.inputs[0]
    for part in (part for part in operator_applications(operand) if part not in new) if operand is not None else ():
        if lookup_operator(part.op, part.domain).is_saturating:
            yield f"{app.op} gives the first of what saturates to one number, and the right side tells it apart: {app}"
        if _rounds(part) and not _is_lossless(part, typings):
            yield f"{app.op} gives the first of what is rounded to one number, and the right side tells it apart: {app}"


def _below_softmax(term: Term | None) -> Term | None:
    """Return what a softmax is of, wherever its weights were moved to, all of them; another term as it is.

    The greatest number of a row makes the greatest weight, but one that lies an ulp or two of 1 below may make the
    same: of [1e-10, 2e-10] the left side takes the first, the right side the second. This is accepted: of two elements
    that are equal but for rounding the place of either is right. In a part of a row all weights may be 0.
    """
    inner = term
    while (
        isinstance(inner, App) and not inner.domain and (lookup_operator(inner.op).is_view or inner.op == "Transpose")
    ):
        inner = inner.inputs[0]
    return inner.inputs[0] if isinstance(inner, App) and inner.op in ("Softmax", "LogSoftmax") else term


def _is_lossless(app: App, typings: Sequence[Typing]) -> bool:
    """Return whether it is a cast to a type that holds all that is cast, in each choice of element types."""
    pairs = ((_output_type(app, typing), typing.type_of(app.operands[0])) for typing in typings if is_casting(app))
    return is_casting(app) and all(wide and narrow and can_represent(wide, narrow) for wide, narrow in pairs)


def _peak(weights: App, typings: Sequence[Typing]) -> App | None:
    """Return max(x) of exp(x - max(x)) or exp(x - (max(x) - c)); None of another term, and where c is too large.

    In half precision sums of such numbers overflow, too.
    """
    lift: LiteralValue = 0
    match weights:
        case App(op="Exp", inputs=(App(op="Sub", inputs=(value, App(op="ReduceMax") as peak)) as exponent,)):
            pass
        case App(
            op="Exp",
            inputs=(
                App(
                    op="Sub", inputs=(value, App(op="Sub", inputs=(App(op="ReduceMax") as peak, Lit(value=lift))))
                ) as exponent,
            ),
        ):
            pass
        case _:
            return None
    keeps_axes = peak.attributes_hole is None and dict(peak.attrs).get("keepdims", Lit(1)) == Lit(
        1
    )  # else it is another row's
    is_small = isinstance(lift, int | float) and abs(lift) <= MAX_EXPONENT_SHIFT
    is_half = any(typing.type_of(exponent) is DType.FLOAT16 for typing in typings)
    return peak if peak.inputs[0] == value and keeps_axes and is_small and not is_half else None


def _is_used_as_softmax(weights: App, peak: App, right: Sequence[Term]) -> bool:
    """Return whether nothing is done with weights but that they, or products of matrices with them, are divided by
    their sums: those along the axes of the largest, which vanish nowhere."""
    apps = {app for side in right for app in operator_applications(side)}
    sums = {app for app in apps if app.op == "ReduceSum" and app.inputs == (weights, *peak.inputs[1:])}
    products = {app for app in apps if app.op == "MatMul" and app.inputs[0] == weights}
    divided = {
        app for app in apps if app.op == "Div" and app.inputs[0] in {weights, *products} and app.inputs[1] in sums
    }
    made = {weights, *products, *sums}
    doubled = any(weights in walk_term(factor) for app in products for factor in app.operands[1:])
    readers = {app for app in apps if not made.isdisjoint(app.inputs)}
    return readers <= {*products, *sums, *divided} and made.isdisjoint(right) and not doubled


# -- numbers -----------------------------------------------------------------------------------------------------------


def _numbers(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Numbers of the rule that single precision does not bear, alone or multiplied with each other."""
    sides = (*rule.left, *rule.right)
    for value in (value for side in sides for value in _floats(walk_term(side)) if _is_extreme(value)):
        yield f"the number {value:g} is too large or too small to compute with in single precision"
    for app in (app for side in sides for app in operator_applications(side) if _computes_floats(app, typings)):
        if _amplification(app) > LARGEST:
            yield f"the numbers of {app} are together too large or too small to compute with in single precision"
        if _is_sum(app) and not (_is_exact(app, sides, typings) or _is_rounded_once(app, sides, typings)):
            yield from _check_absorption(app)
    for left, right in zip(rule.left, rule.right, strict=True):
        known = {*operator_applications(left)}
        for app in (
            app for app in operator_applications(right) if _is_sum(app) and app not in known and not _folds(app)
        ):
            if any(arg is not None and _is_of_model(arg) for arg in app.inputs):
                yield f"{app} adds a number of the model, however large, which the left side does not"


def _is_sum(app: App) -> bool:
    return lookup_operator(app.op, app.domain).constant_effect in (ConstantEffect.ADDED, ConstantEffect.BOTH)


def _check_absorption(app: App) -> Iterator[str]:
    """Yield the summands beside which others are lost."""
    own = _own_amplification(app) if lookup_operator(app.op).constant_effect is ConstantEffect.BOTH else 1.0
    beside = max([own, *map(_amplification, app.operands)])
    if beside > MAX_SUMMAND:
        yield f"of the summands of {app} one is so much larger that the others are lost in rounding"
    for value in (value for value in _numbers_of(app) if abs(value) * beside > MAX_SUMMAND):
        yield f"the number {value:g} is so large that what is added to it is lost in rounding"


def _exact_up_to(term: Term, typings: Sequence[Typing]) -> float:
    """Return the largest number that a term may be which is computed of truth values and whole numbers, without
    rounding; of another, infinity."""
    if isinstance(term, Lit):
        return abs(term.value) if isinstance(term.value, int | float) and term.value % 1 == 0 else inf
    if not isinstance(term, App) or not all(_is_wide(term, typing) for typing in typings):
        return inf
    if term.op == "Cast":
        (of,) = term.inputs
        return 1.0 if of is not None and all(typing.type_of(of) is DType.BOOL for typing in typings) else inf
    if lookup_operator(term.op, term.domain).selects_elements and term.inputs[0] is not None:
        return _exact_up_to(term.inputs[0], typings)
    if term.op not in ("Add", "Sub", "Mul", "Neg", "Where"):
        return inf
    parts = term.inputs[1:] if term.op == "Where" else term.inputs
    largest = [inf if part is None else _exact_up_to(part, typings) for part in parts]
    found = prod(largest) if term.op == "Mul" else max(largest) if term.op in ("Neg", "Where") else sum(largest)
    return found if found <= LARGEST else inf


def _is_exact(app: App, sides: Sequence[Term], typings: Sequence[Typing]) -> bool:
    """Return whether a sum is computed without rounding, and read by no other operators than by sums, of which each is
    looked at: what adds up many of its elements may lose others beside them."""
    return isfinite(_exact_up_to(app, typings)) and _is_read_in_sums(app, sides)


def _is_read_in_sums(app: App, sides: Sequence[Term]) -> bool:
    readers = (reader for reader in _readers(app, sides) if not _is_sum(reader))
    return all(
        (_passes(app, reader) or reader.op in ("Mul", "Neg")) and _is_read_in_sums(reader, sides) for reader in readers
    )


def _is_wide(app: App, typing: Typing) -> bool:
    written = typing.right_side_types.get(app.node)
    return (written[app.output] if written else typing.type_of(app)) in (DType.FLOAT, DType.DOUBLE)


def _is_rounded_once(app: App, sides: Sequence[Term], typings: Sequence[Typing]) -> bool:
    """Return whether a sum is a result of a rule, from which nothing is subtracted again, and every large operand in it
    is a number or a choice of numbers."""
    if app.op not in ("Add", "Sub") or not _is_result(app, sides):
        return False
    parts = [part for part in app.inputs if part is not None and not isfinite(_exact_up_to(part, typings))]
    return all(not is_scalar(part) and _amplification(part) <= MAX_SUMMAND for part in parts)


def _is_result(app: App, sides: Sequence[Term]) -> bool:
    """Return whether what an operator makes is only moved, or chosen, before it is a result."""
    readers = _readers(app, sides)
    return all(_passes(app, reader) for reader in readers) and all(_is_result(reader, sides) for reader in readers)


def _readers(app: App, sides: Sequence[Term]) -> list[App]:
    return [other for side in sides for other in operator_applications(side) if app in other.inputs]


def _passes(app: App, reader: App) -> bool:
    """Return whether an operator only moves, or chooses, what another makes."""
    return lookup_operator(reader.op).selects_elements or (reader.op == "Where" and app is not reader.inputs[0])


def _is_of_model(term: Term) -> bool:
    """Return whether it is made of attributes that are real numbers, and of nothing else that the model says."""
    holes = [part for part in walk_term(term) if isinstance(part, Var)]
    return bool(holes) and all(hole.kind == "real" for hole in holes)


def _computes_floats(app: App, typings: Sequence[Typing]) -> bool:
    """Return whether it makes floats, in some choice of element types, of floats beside each other."""
    is_arithmetic = lookup_operator(app.op, app.domain).constant_effect in (
        ConstantEffect.ADDED,
        ConstantEffect.MULTIPLIED,
        ConstantEffect.BOTH,
    )
    return is_arithmetic and any(_is_float(typing.type_of(app)) for typing in typings)


def _amplification(term: Term) -> float:
    """Return by how much numbers of the rule enlarge a term, or make it smaller, at most."""
    if not isinstance(term, App) or is_scalar(term):
        return 1.0
    inner = max(map(_amplification, term.operands), default=1.0)
    if term.op in ("Add", "Sub"):
        return max([inner, *(number for number in map(abs, _numbers_of(term)) if number > MAX_SUMMAND)])
    return _own_amplification(term) * inner


def _own_amplification(app: App) -> float:
    numbers = [abs(value) for value in _numbers_of(app) if value]
    effect = lookup_operator(app.op, app.domain).constant_effect
    if effect in (ConstantEffect.MULTIPLIED, ConstantEffect.BOTH):
        return prod(max(number, 1 / number) for number in numbers)
    return max([1.0, *numbers]) if effect is ConstantEffect.SELECTED else 1.0


def _numbers_of(app: App) -> list[float]:
    """Return the finite numbers among the operands of an operator: of what is computed of numbers alone, a bound."""
    scalars = lookup_operator(app.op, app.domain).scalar_attributes
    operands = [*app.inputs, *(value for name, value in app.attrs if name in scalars)]
    return [_bound(arg) for arg in operands if arg is not None and not any(isinstance(p, Var) for p in walk_term(arg))]


def _bound(written: Term) -> float:
    """Return a number, or for what is computed of numbers one that is as large at least, or as small."""
    parts = [*walk_term(written)]
    values = [part.value for part in parts if isinstance(part, Lit)]
    is_of_numbers = all(isinstance(value, int | float) for value in values)
    if is_of_numbers and any(isinstance(part, App) and part.op in MAGNITUDE_FUNCTIONS for part in parts):
        return inf
    numbers = [float(value) for value in values if isinstance(value, int | float) and isfinite(value)]
    if isinstance(written, Lit):
        return numbers[0] if numbers else 0.0
    return prod(max(abs(number), 1 / abs(number)) for number in numbers if number)


def _floats(terms: Iterable[Term | None]) -> Iterator[float]:
    """Yield the numbers with a decimal point among some terms."""
    yield from (term.value for term in terms if isinstance(term, Lit) and isinstance(term.value, float))


def _is_extreme(value: float) -> bool:
    return isfinite(value) and value != 0 and not 1 / LARGEST <= abs(value) <= LARGEST


def _narrower(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Yield where the right side rounds to fewer digits than what it replaces: a model widens for a reason."""
    for typing, (left, right) in product(typings, zip(rule.left, rule.right, strict=True)):
        old, new = ({app for app in operator_applications(side) if _rounds(app)} for side in (left, right))
        kept, made = (_fewest_digits(apps, typing) for apps in (old - new, new - old))
        if kept is not None and made is not None and made.bits < kept.bits:
            yield f"the right side computes in {made.name}, where the left side does so in {kept.name}"


def _fewest_digits(apps: Iterable[App], typing: Typing) -> DType | None:
    """Return the narrowest type of floats in which something is computed."""
    types = [
        dtype
        for app in apps
        if not is_casting(app) and (dtype := _output_type(app, typing)) is not None and dtype.is_float
    ]
    return min(types, key=lambda dtype: dtype.bits, default=None)


def _output_type(app: App, typing: Typing) -> DType | None:
    try:
        return typing.type_of(app)
    except DTypeError:  # by its schema a defined operator takes fewer element types than what it means
        return None


# -- attributes --------------------------------------------------------------------------------------------------------


def _kept_in_single(rule: Rule, typings: Sequence[Typing]) -> Iterator[str]:
    """Attributes of the right side that are single precision, where what they stand for need not be."""
    left, right = rule.original_sides if isinstance(rule, ExpandedRule) else (rule.left, rule.right)
    given = {value for side in left for app in operator_applications(side) for _, value in app.attrs}
    for app in (app for side in right for app in operator_applications(side)):
        for name, value in app.attrs:
            if not _is_float_attribute(app, name) or value in given or _is_single(value):
                continue
            in_double = (typing for typing in typings if _output_type(app, typing) is DType.DOUBLE)
            if (typing := next(in_double, None)) is not None:
                kept = f"the attribute {name} of {app.op} is kept in single precision"
                yield f"{kept}: too little where it is in double{_remedy(app, typing)}"


def _remedy(app: App, typing: Typing) -> str:
    """Return the condition that excludes an application in double precision; empty where no hole has its type."""
    doubles = (hole.name for hole in holes(app) if typing.types.get(hole.name) is DType.DOUBLE)
    name = next(doubles, "")
    return f"; `when=fn.ne(fn.dtype({name}), {int(DType.DOUBLE)})` excludes that" if name else ""


def _is_float_attribute(app: App, name: str) -> bool:
    schema = schemas.schema(app.op, app.domain)
    attribute: OpSchema.Attribute | None = None if schema is None else schema.attributes.get(name)
    return attribute is not None and attribute.type == OpSchema.AttrType.FLOAT


def _is_single(value: Term) -> bool:
    """Return whether it is a number that single precision holds."""
    number = value.value if isinstance(value, Lit) else None
    return isinstance(number, int | float) and float(np.float32(number)) == number
