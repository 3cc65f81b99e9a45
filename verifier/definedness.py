"""Where functions of real numbers have no value in floats: 1/0, roots and logarithms of negative numbers.

Over the reals x · x / x is x, and 0 · log(x) is 0; floats have NaN at x = 0. So what the right side computes has to be
defined by itself, or computed by the left side, too, whatever becomes of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from graphopt.base.integers import TRUE, Formula, Size, alone, conj, ge, inside, symbol
from graphopt.base.notes import Noted
from graphopt.base.rebuilding import Substitution, rebuild_formula
from graphopt.base.symbolic import Binders, Call, Value, only_factor
from graphopt.language.rule import Rule
from graphopt.language.term import App, Term, applications
from graphopt.operators.classes import entry
from graphopt.verifier.bijections import ranges
from graphopt.verifier.context import Context
from graphopt.verifier.equality import Equality
from graphopt.verifier.signs import Signs


def undefined(
    before: Collection[Noted], after: Collection[Noted], binders: Binders, known: Context, equality: Equality
) -> str:
    """Return the function of a call of the right side that may have no value where those of the left have; nothing if
    none."""
    computed = set(map(_computed, before))
    new = set(map(_computed, after)) - computed
    here = known.knowing(ranges(binders)) if new else known
    return next((made.call.function for made in new if not _holds_there(made, computed, equality, here)), "")


class _Computed(NamedTuple):
    """A call, the extents around it that may be empty, and the case in which it is made."""

    call: Call
    over: frozenset[Size]
    case: Formula


def _computed(noted: Noted) -> _Computed:
    """Return what was noted, with what the sums around it run over named by its place: the same on both sides."""
    call, around, case = noted
    inner = [(binder, extent) for binder, extent in around if binder in call.symbols | case.symbols]
    change = Substitution({binder: symbol(f"bound {place}") for place, (binder, _) in enumerate(inner)})
    rebuilt = call.rebuild(change) if inner else call
    renamed = only_factor(rebuilt) if isinstance(rebuilt, Value) else rebuilt
    ranges_ = (inside(alone(binder), extent) for binder, extent in inner)
    if isinstance(renamed, Call):  # else it was simplified, and nothing is an excuse for what was not renamed
        call, case = renamed, rebuild_formula(conj(case, *ranges_), change)
    return _Computed(call, _extents(around), case)


def _extents(around: Binders) -> frozenset[Size]:
    """Return what of that which a call is computed for may be nothing."""
    return frozenset(extent for _, extent in around if not isinstance(extent, int) or extent < 1)


def _holds_there(made: _Computed, computed: Collection[_Computed], equality: Equality, known: Context) -> bool:
    """Return whether a call has a value wherever there is something to compute it for, and its case is met.

    A sum of nothing computes nothing: where the left side divides in each of its summands, the right side may divide
    the sum if there are any. Nor is what the left side computes in another case an excuse.
    """
    there = known.knowing(made.case, *(ge(extent, 1) for extent in made.over))
    return (
        _is_defined(made.call, equality.signs, there)
        or any(
            all(extent in made.over or there.proves(ge(extent, 1)) for extent in other.over)
            and there.proves(other.case)
            and _are_equal(made.call, other.call, equality, there)
            for other in computed
        )
        or not there.possible
    )


def unmasked(rule: Rule) -> str:
    """Return a partial operator of the right side whose missing values the left side covers by a Where, and which the
    right side has outside of any such Where; or nothing.

    Where it has no value the left side has one all the same, and what it computes is no excuse.
    """
    left, right = (
        {app for app in chain(*map(applications, side)) if app.op == "Where"} for side in (rule.left, rule.right)
    )
    if not any(_is_partial(part) for mask in left for part in applications(mask)):
        return ""
    bare = set(_outside(rule.right, left & right)) - set(_outside(rule.left, left))
    found = min((part.op for part in bare), default="")
    return found and f"{found} has no value at some numbers, which the left side covers by a Where that is gone there"


def _outside(terms: Iterable[Term | None], masks: Collection[App]) -> Iterator[App]:
    """Yield the partial operators in terms, but for those in these masks."""
    for term in terms:
        if isinstance(term, App) and term not in masks:
            if _is_partial(term):
                yield term
            yield from _outside(term.args, masks)


def _is_partial(app: App) -> bool:
    return entry(app.op, app.domain).is_partial


def _are_equal(one: Call, other: Call, equality: Equality, known: Context) -> bool:
    return (one.function, one.params, len(one.args)) == (other.function, other.params, len(other.args)) and all(
        equality.equal(a, b, known) for a, b in zip(one.args, other.args, strict=True)
    )


def _is_defined(made: Call, signs: Signs, known: Context) -> bool:
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


def is_not_zero(value: Value, signs: Signs, known: Context) -> bool:
    """Return whether a value is not 0 by itself: a number, or a product of factors none of which is."""
    if value.constant is not None:
        return bool(value.constant)
    single = len(value.terms) == 1 and not value.terms[0].binders and value.terms[0].guard == TRUE
    if single and all(signs.not_zero(factor, known) for factor in value.terms[0].factors):
        return True
    return signs.all_positive(value, known)


def _is_not_negative(value: Value, signs: Signs, known: Context) -> bool:
    return all(t.coefficient > 0 and all(signs.not_negative(f, known) for f in t.factors) for t in value.terms)
