"""Where functions of real numbers have no value in floats: 1/0, roots and logarithms of negative numbers.

Over the reals x · x / x is x, and 0 · log(x) is 0; floats have NaN at x = 0. So what the right side computes has to be
defined by itself, or computed by the left side, too, whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from graphopt.expr.expressions import Binders, Call, Expr, single_factor
from graphopt.expr.integers import TRUE, Formula, Size, conjunction, ge, in_range, polynomial_of_atom, symbol
from graphopt.expr.partial_calls import PartialCall
from graphopt.expr.substitution import Substitution, replace_in_formula
from graphopt.language.rule import Rule
from graphopt.language.terms import App, Term, operator_applications
from graphopt.operators.operator_classes import lookup_operator
from graphopt.verifier.bijections import binder_ranges
from graphopt.verifier.context import ProofContext
from graphopt.verifier.equality import Equality
from graphopt.verifier.value_signs import SignAnalysis


def find_undefined_call(
    before: Collection[PartialCall],
    after: Collection[PartialCall],
    binders: Binders,
    known: ProofContext,
    equality: Equality,
) -> str:
    """Return the function of a call of the right side that may have no value where those of the left have; nothing if
    none."""
    computed = set(map(_canonical_call, before))
    new = set(map(_canonical_call, after)) - computed
    here = known.assuming(binder_ranges(binders)) if new else known
    return next(
        (made.call.function for made in new if not _is_defined_wherever_computed(made, computed, equality, here)), ""
    )


class _ComputedCall(NamedTuple):
    """A call, the extents around it that may be empty, and the case in which it is made."""

    call: Call
    extents: frozenset[Size]
    case: Formula


def _canonical_call(noted: PartialCall) -> _ComputedCall:
    """Return what was noted, with what the sums around it run over named by its place: the same on both sides."""
    call, around, case = noted
    inner = [(binder, extent) for binder, extent in around if binder in call.free_symbols | case.free_symbols]
    change = Substitution({binder: symbol(f"bound {place}") for place, (binder, _) in enumerate(inner)})
    rebuilt = call.replace_atoms(change) if inner else call
    renamed = single_factor(rebuilt) if isinstance(rebuilt, Expr) else rebuilt
    ranges_ = (in_range(polynomial_of_atom(binder), extent) for binder, extent in inner)
    if isinstance(renamed, Call):  # else it was simplified, and nothing is an excuse for what was not renamed
        call, case = renamed, replace_in_formula(conjunction(case, *ranges_), change)
    return _ComputedCall(call, _extents(around), case)


def _extents(around: Binders) -> frozenset[Size]:
    """Return what of that which a call is computed for may be nothing."""
    return frozenset(extent for _, extent in around if not isinstance(extent, int) or extent < 1)


def _is_defined_wherever_computed(
    made: _ComputedCall, computed: Collection[_ComputedCall], equality: Equality, known: ProofContext
) -> bool:
    """Return whether a call has a value wherever there is something to compute it for, and its case is met.

    A sum of nothing computes nothing: where the left side divides in each of its summands, the right side may divide
    the sum if there are any. Nor is what the left side computes in another case an excuse.
    """
    there = known.assuming(made.case, *(ge(extent, 1) for extent in made.extents))
    return (
        _is_defined(made.call, equality.signs, there)
        or any(
            all(extent in made.extents or there.proves(ge(extent, 1)) for extent in other.extents)
            and there.proves(other.case)
            and _are_equal(made.call, other.call, equality, there)
            for other in computed
        )
        or not there.possible
    )


def explain_unmasked_partial(rule: Rule) -> str:
    """Return a partial operator of the right side whose missing values the left side covers by a Where, and which the
    right side has outside of any such Where; or nothing.

    Where it has no value the left side has one all the same, and what it computes is no excuse.
    """
    left, right = (
        {app for app in chain(*map(operator_applications, side)) if app.op == "Where"}
        for side in (rule.left, rule.right)
    )
    if not any(_is_partial(part) for mask in left for part in operator_applications(mask)):
        return ""
    bare = set(_partial_operators_outside(rule.right, left & right)) - set(_partial_operators_outside(rule.left, left))
    found = min((part.op for part in bare), default="")
    return found and f"{found} has no value at some numbers, which the left side covers by a Where that is gone there"


def _partial_operators_outside(terms: Iterable[Term | None], masks: Collection[App]) -> Iterator[App]:
    """Yield the partial operators in terms, but for those in these masks."""
    for term in terms:
        if isinstance(term, App) and term not in masks:
            if _is_partial(term):
                yield term
            yield from _partial_operators_outside(term.args, masks)


def _is_partial(app: App) -> bool:
    return lookup_operator(app.op, app.domain).is_partial


def _are_equal(one: Call, other: Call, equality: Equality, known: ProofContext) -> bool:
    return (one.function, one.params, len(one.args)) == (other.function, other.params, len(other.args)) and all(
        equality.proves_equal(a, b, known) for a, b in zip(one.args, other.args, strict=True)
    )


def _is_defined(made: Call, signs: SignAnalysis, known: ProofContext) -> bool:
    """Return whether a call has a value whatever the tensors hold."""
    match made.function, made.args:
        case ("Inverse", (divisor,)) | ("Mod" | "FMod", (_, divisor)):
            return is_not_zero(divisor, signs, known)
        case "Log", (value,):
            return signs.all_positive(value, known)
        case "Sqrt", (value,):
            return _is_not_negative(value, signs, known)
        case "Pow", (base, exponent):
            c = exponent.constant
            return c is not None and c >= 0 and (c.denominator == 1 or _is_not_negative(base, signs, known))
    return False


def is_not_zero(value: Expr, signs: SignAnalysis, known: ProofContext) -> bool:
    """Return whether a value is plainly not 0: it is a number, or a product of factors that are not."""
    if value.constant is not None:
        return bool(value.constant)
    single = len(value.terms) == 1 and not value.terms[0].binders and value.terms[0].guard == TRUE
    if single and all(signs.is_nonzero(factor, known) for factor in value.terms[0].factors):
        return True
    return signs.all_positive(value, known)


def _is_not_negative(value: Expr, signs: SignAnalysis, known: ProofContext) -> bool:
    return all(t.coefficient > 0 and all(signs.is_nonnegative(f, known) for f in t.factors) for t in value.terms)
