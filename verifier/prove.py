"""Proves a rule, or says why not: the obligations at every instance, in the exact, the extended and the real model.

Assuming that the left side is defined and the conditions hold: the right side is defined, ranks, sizes and element
types agree, every element agrees, and some instance is reachable. Whatever is not shown is not proved.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import isfinite

import z3

from graphopt.base.integers import (
    TRUE,
    Formula,
    Int,
    Size,
    conj,
    eq,
    fresh_integers,
    ge,
    inside,
    le,
    lt,
    negate,
    restart,
    symbols,
)
from graphopt.base.notes import Noted, noting
from graphopt.base.rebuilding import Substitution
from graphopt.base.symbolic import Binders, Call, Element, Index, Piece, Read, Term, Value, Whole, cases
from graphopt.base.tensors import Tensor, as_size, bind
from graphopt.language.coverage import Answer, Choice, of_any_rank, tree_of
from graphopt.language.proof import Model, Proof, Verdict
from graphopt.language.rule import Rule
from graphopt.language.term import Lit, Var, applications, walk
from graphopt.operators.classes import is_pointwise, minds_types
from graphopt.operators.families import joined
from graphopt.operators.node import MAX_RANK, Undefined, Unsupported
from graphopt.operators.placing import NEXT
from graphopt.operators.reductions import PLACES as FIRST
from graphopt.verifier import counterexample, dtypes, words
from graphopt.verifier.bijections import composites, cuts, ranges
from graphopt.verifier.choices import Choices, Met, NothingLeft
from graphopt.verifier.context import Context, context
from graphopt.verifier.declared import contradicted, spoils_infinities, unasked
from graphopt.verifier.definedness import is_not_zero, undefined, unmasked
from graphopt.verifier.dtypes import Mistyped, Typing
from graphopt.verifier.equality import Equality
from graphopt.verifier.extended import Extended, NotExtended, extended
from graphopt.verifier.instances import Elements, Instance
from graphopt.verifier.logic import truth_value
from graphopt.verifier.meant import Meant, meant
from graphopt.verifier.rounding import unlicensed
from graphopt.verifier.said import consistent, most_axes, properties_of, speaks_of_multiples, unless_empty
from graphopt.verifier.signs import Signs
from graphopt.verifier.solver import Budget, Effort, OutOfTime, models
from graphopt.verifier.suggestions import suggestion

VECTORS = 1
"""Scalars and vectors are all ranks where operators are pointwise (`classes.is_pointwise`)."""
PLACES = frozenset({*FIRST.values(), *NEXT.values()})
"""What an operator that says where an element is makes of a row: an index of it."""
OUT_OF_TIME = "out of time"
SOLVER = f"z3 {z3.get_version_string()}"


@dataclass
class Outcome:
    """What came of one model: how many instances were shown, or what failed."""

    cases: int = 0
    ranks: frozenset[int] = frozenset()
    reached: bool = False
    """Some instance occurs, with no size 0."""
    failure: str = ""
    wrong: bool = False
    """The failure is definite: ranks or types differ, whatever the sizes."""
    unshown: bool = False
    """The failure is an obligation that could not be shown."""
    paths: list[tuple[Choice, ...]] = field(default_factory=list)
    """What was chosen at the instances that were shown, at all ranks."""
    unmet: Counter[str] = field(default_factory=Counter)
    """Why the left side does not occur, by how often."""
    advice: Callable[[], Iterable[str]] = tuple
    """More about the failure, and what to try next."""
    failed_at: Instance | None = None

    def break_cycles(self) -> None:
        """Forget the elements at which it failed, of which no one asks for more."""
        if self.failed_at is not None:
            self.failed_at.break_cycles()


@fresh_integers()
def prove(rule: Rule, *, timeout: float = 5.0, refute: bool = True) -> Proof:
    """Return the proof of a rule, or the verdict that there is none. `timeout` is in seconds, each so many steps
    (`Budget`).

    What is not proved is tried on small models if it is to be refuted: a difference there, or a left side that no sizes
    fit where the right side runs, makes it REFUTED. Else what may help is looked for. Operators that are declared by
    terms are proved as these, but in no exact model: their kernels may round in ways of their own. A declaration that
    its kernel contradicts makes it REFUTED, too.
    """
    start, claim = time.thread_time(), rule.claim
    plain = meant(joined(claim))
    verdict, model, outcome = _verdict(plain, timeout)
    if verdict is Verdict.PROVED:
        example = contradicted(rule.definitions)
        outcome.failure = unasked(rule.definitions)
    else:
        example = counterexample.find(claim if claim.is_family else plain) if refute else None
        if refute and example is None and verdict is Verdict.VACUOUS:
            found, shown_in, _ = _verdict(unless_empty(plain), timeout)
            example = counterexample.ill_shaped(plain) if found is Verdict.VACUOUS and shown_in else None
    verdict = Verdict.REFUTED if example is not None else verdict
    hint = ""
    if outcome.unshown and refute:
        empty = example is None or example.has_empty_axis
        hint = suggestion(plain, lambda other: _verdict(other, timeout / 2)[0] is Verdict.PROVED, empty=empty)
    if verdict is Verdict.UNKNOWN and refute:
        outcome.failure = "\n".join([outcome.failure, *words.with_hint(outcome.advice(), hint)])
    ranks = f"{min(outcome.ranks)}–{max(outcome.ranks)}" if outcome.ranks else ""
    ranks = "all" if ranks and is_pointwise(plain) else ranks
    seconds = round(time.thread_time() - start, 3)
    return Proof(
        rule.name,
        rule.digest,
        verdict,
        model,
        ranks,
        outcome.cases,
        seconds,
        SOLVER,
        "" if example is None else str(example),
        outcome.failure,
        tree_of(outcome.paths) if verdict is Verdict.PROVED else [],
        any(plain.holes[name].kind == "tensor" for name in properties_of(plain)),
        hint if verdict is Verdict.REFUTED else "",
    )


@fresh_integers()
def unproved_at(rule: Rule, model: Model, answer: Answer, *, timeout: float = 5.0) -> str:
    """Return what is not shown, in the model in which a rule is proved, at the one instance of a match; nothing if all
    is."""
    rule, effort = meant(joined(rule.claim)), Effort(budget=Budget(timeout))

    def met() -> Iterator[Instance]:
        restart()
        typings = dtypes.typings(rule)
        first = _first(dtypes.spoken_of(rule, model, typings) or typings)
        yield _instance(rule, model, Met(answer), effort, first, MAX_RANK, typings)

    outcome = _try(rule, model, met(), effort.budget)
    return outcome.failure or ("" if outcome.cases else "the left side is not defined there")


def _verdict(rule: Rule, timeout: float) -> tuple[Verdict, Model | None, Outcome]:
    try:
        choices = dtypes.typings(rule)
    except Mistyped as error:
        return Verdict.UNKNOWN, None, Outcome(failure=str(error))
    if not choices:
        return Verdict.VACUOUS, None, Outcome(failure=words.untypable(rule))
    wrong = dtypes.disagreement(rule, choices)
    if wrong is not None:
        return (
            Verdict.UNKNOWN,
            None,
            Outcome(failure=wrong, wrong=True, advice=partial(words.about_types, rule, choices)),
        )
    outcome, budget = Outcome(failure=words.WRAPS), Budget(timeout)
    effort = Effort(budget=budget)
    for model in _models(rule, choices):
        effort.contexts.clear()  # what one model shows of values is no other's; what follows of integers is
        outcome.break_cycles()
        outcome = _try(rule, model, instances(rule, model, choices, effort), budget)
        if not outcome.failure and not outcome.reached:
            outcome.failure = words.nowhere(outcome.unmet)
            return Verdict.VACUOUS, model, outcome
        outcome.failure = outcome.failure or _forbidden(rule, model, choices)
        if not outcome.failure:
            effort.contexts.clear()  # which all know of the effort
            return Verdict.PROVED, model, outcome
        if budget.is_spent:
            break
    return Verdict.UNKNOWN, None, outcome


def _forbidden(rule: Rule, model: Model, choices: Sequence[Typing]) -> str:
    """Return why a rule may not be applied for all that was shown: what rounding or kernels make of it."""
    if model is Model.EXACT:
        return ""
    forbidden = unlicensed(rule, choices)
    return forbidden or (unmasked(rule) if model is Model.REAL else spoils_infinities(rule.definitions))


def _models(rule: Rule, typings: Sequence[Typing]) -> Sequence[Model]:
    """Return the models in which a rule is tried, of those that speak of some choice of element types.

    What is defined by a term has a kernel that rounds in its own way. What an operator of which only the class is known
    makes of a number that is rounded otherwise is not known: its operands have to be the same, bit for bit.
    """
    if rule.operators:
        return (Model.EXACT,)
    said = (Model.EXTENDED, Model.REAL) if rule.definitions else tuple(Model)
    return [model for model in said if dtypes.spoken_of(rule, model, typings)]


def _try(rule: Rule, model: Model, instances: Iterable[Instance], budget: Budget) -> Outcome:
    """Return some instances in one model."""
    outcome, instance, first = Outcome(), None, None
    try:
        with _arithmetic(rule, model):
            for instance in instances:
                first = first or _first(instance.typings)
                ranks = _obligations(instance)
                outcome.reached = outcome.reached or (not instance.unmet and _reachable(instance))
                if ranks is not None:
                    outcome.cases += 1
                    if instance.typing is first:
                        path = instance.choices.path
                        outcome.paths.append(of_any_rank(path) if is_pointwise(rule) else tuple(path))
                    outcome.ranks |= ranks
                if not outcome.reached:
                    outcome.unmet[instance.unmet] += 1
                instance.break_cycles()
    except OutOfTime:
        where = "" if instance is None else f", {words.place(instance)}"
        outcome.failure = f"{OUT_OF_TIME} after {outcome.cases} cases{where}"
        outcome.advice = partial(words.about_time, budget.seconds)
    except Unsupported as error:
        outcome.failure = f"unsupported: {error}"
        outcome.advice = partial(words.about_operators, str(error))
    except NotExtended as error:
        outcome.failure = str(error)
    except Failed as error:
        outcome.failure, outcome.advice, outcome.unshown = str(error), error.advice, True
        outcome.failed_at = instance
    return outcome


def _arithmetic(rule: Rule, model: Model) -> AbstractContextManager[None]:
    """Return what products and quotients are in a model.

    Raises:
        NotExtended: the rule writes an infinity, of which the extended model knows nothing.
    """
    if model is not Model.EXTENDED:
        return nullcontext()
    numbers = (part.value for side in (*rule.left, *rule.right) for part in walk(side) if isinstance(part, Lit))
    if any(isinstance(number, float) and not isfinite(number) for number in numbers):
        raise NotExtended("an infinity is written")
    properties = properties_of(rule)
    tensors = (name for name, hole in rule.holes.items() if hole.kind == "tensor")
    infinite = frozenset(name for name in tensors if "is_finite" not in properties.get(name, ()))
    return extended(Extended(infinite, properties, _variances(rule)))


def _variances(rule: Rule) -> frozenset[str]:
    """Return what the left side normalizes by: the holes for variances, and what is added to them."""
    norms = [app for side in rule.left for app in applications(side) if app.op == "BatchNormalization"]
    named = {part.name for app in norms for part in app.inputs[4:] if isinstance(part, Var)}
    return frozenset(named | {f"{app.op}.epsilon" for app in norms})


class Failed(Exception):
    """An obligation that could not be shown at an instance; `advice` says more of it."""

    def __init__(self, instance: Instance, reason: str, advice: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(f"{words.place(instance)}: {reason}")
        self.advice = advice


def instances(rule: Rule, model: Model, typings: Sequence[Typing], effort: Effort) -> Iterator[Instance]:
    """All ranks and attributes for one choice of element types; where types matter, for one of each `kind_of` them."""
    licensed = dtypes.spoken_of(rule, model, typings)
    first = _first(licensed)
    others = licensed if minds_types(rule) else []
    most = VECTORS if is_pointwise(rule) else max(MAX_RANK, most_axes(rule))
    yield from _at(rule, model, effort, first, most, typings)
    kinds = {dtypes.kind_of(rule, first)}
    for typing in others:
        kind = dtypes.kind_of(rule, typing)
        if kind not in kinds:
            kinds.add(kind)
            yield from _at(rule, model, effort, typing, most, typings)


def _at(
    rule: Rule, model: Model, effort: Effort, typing: Typing, bound: int, typings: Sequence[Typing]
) -> Iterator[Instance]:
    """All ranks up to a bound and all attributes, for one choice of element types."""
    choices = Choices()
    for position, _ in enumerate(choices.paths()):
        effort.budget.instances += 1
        if position % 16 == 0 and effort.budget.is_spent:  # to read the clock takes as long as an instance
            raise OutOfTime
        restart()
        yield _instance(rule, model, choices, effort, typing, bound, typings)


def _first(typings: Sequence[Typing]) -> Typing:
    """Return the choice of element types with which all ranks are tried: of floats, if there is one."""
    floats = (t for t in typings if all(d.is_float or d.name in ("BOOL", "INT64") for d in t.types.values()))
    return next(floats, typings[0])


def _instance(
    rule: Rule, model: Model, choices: Choices, effort: Effort, typing: Typing, bound: int, typings: Sequence[Typing]
) -> Instance:
    exact, extended_ = model is Model.EXACT, model is Model.EXTENDED
    return Instance(rule, exact, choices, effort, typing, bound, typings=typings, extended=extended_)


def _obligations(instance: Instance) -> frozenset[int] | None:
    """Show all obligations of one instance: the ranks that it speaks of, None where the left side does not occur."""
    rule = instance.rule
    left = _left(instance)
    if left is None:
        return None
    if speaks_of_multiples(rule):  # elsewhere quotients that have names only make what is known longer
        instance.facts += instance.known.multiples()
    known = instance.known
    instance.assuming = False
    try:
        with noting() as built:
            right = [instance.tensor(side) for side in rule.right]
        instance.built[1].update(built)
        for condition in rule.promised if isinstance(rule, Meant) else ():
            instance.require(truth_value(instance.scalar(condition)), f"{condition}, as its definition asks")
    except Undefined as error:
        raise Failed(instance, f"on the right, {error}") from error
    known = _sizes_known(left, right, known)
    for demand, reason in instance.demands:
        if not known.proves(demand):
            asked = words.Wording(instance)(known.simplify_formula(demand))
            raise Failed(instance, f"not shown on the right: {reason}", partial(iter, [f"to be shown: {asked}"]))
    known = known.knowing(*(demand for demand, _ in instance.demands))
    for elements in instance.wanted_elements:
        if not _follows(elements, instance, known):
            advice = partial(words.about_classes, rule)
            raise Failed(instance, f"not shown on the right: {elements.reason}", advice)
    for position, (one, other) in enumerate(zip(left, right, strict=True)):
        name = f"output {position + 1} of {len(left)}: " if len(left) > 1 else ""
        _agree(instance, name, one, other, known)
    return frozenset(t.rank for t in (*left, *instance.hole_tensors()))


def _left(instance: Instance) -> list[Tensor] | None:
    """Return the tensors of the left side with all that is assumed; None, and why, where it does not occur."""
    try:
        with noting() as built:
            left = [instance.tensor(side) for side in instance.rule.left]
        instance.built[0].update(built)
        instance.assume_absences()
        for said in instance.rule.contents:  # how many places or blocks there may be is known on both sides
            instance.scalar(said)
        before = instance.known
        instance.assume_conditions()
    except NothingLeft:
        instance.unmet = f"no value that is tried fulfils {', '.join(map(str, instance.rule.conditions))}"
        return None
    except Undefined as error:
        instance.unmet = str(error)
        return None
    if not instance.known.possible:
        instance.unmet = words.contradiction(instance, before)
    elif not consistent(instance.properties):
        instance.unmet = f"no constant is all of these: {words.properties(instance)}"
    return None if instance.unmet else left


def _sizes_known(left: Sequence[Tensor], right: Sequence[Tensor], known: Context) -> Context:
    """Which sizes agree, as far as it is shown: so that what is computed from them is known to be equal."""
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one.shape, other.shape, strict=False):
            if a != b and known.proves(same := eq(a, b)):
                known = known.knowing(same)
    return known


def _follows(wanted: Elements, instance: Instance, known: Context) -> bool:
    """Return whether each element is what the right side asks for: plainly, or as one of which the left side says
    it."""
    index, binders = bind([known.simplify(size) for size in wanted.of.shape], "i")
    equality = Equality(Signs(instance.properties))

    def settled(body: Value, of: Binders) -> Value:
        return Value((*equality.settle(body, known.knowing(ranges(of))),))

    if any(_are_the_same(wanted, elements, index, binders, equality, known) for elements in instance.known_elements):
        return True
    said = [
        [Piece(inner, condition, settled(body, inner)) for condition, (body,) in cases(elements.of.at(at))]
        for elements in instance.known_elements
        if _is_as_strict(elements, wanted)
        and (wanted.below is None or known.proves(le(_below(elements), wanted.below)))
        for at, inner in [bind([known.simplify(size) for size in elements.of.shape], "j")]
    ]
    for condition, (body,) in cases(wanted.of.at(index)):
        piece = _without_spare(_of_row(Piece(binders, condition, settled(body, binders))))
        piece = replace(piece, guard=conj(piece.guard, *_within(piece.body, instance)))
        here = known.knowing(ranges(piece.binders), piece.guard)
        if not here.possible or _is_plainly(piece.body, wanted, equality, here):
            continue
        if not any(equality.covered([piece], others, known) for others in [*said, [*chain.from_iterable(said)]]):
            return False
    return True


def _are_the_same(
    wanted: Elements, said: Elements, index: Index, binders: Binders, equality: Equality, known: Context
) -> bool:
    """Return whether the left side says the same of the elements of a tensor of the same shape, place by place."""
    if not _is_as_strict(said, wanted) or said.of.rank != wanted.of.rank:
        return False
    pairs = [*zip(said.of.shape, wanted.of.shape, strict=True), (said.below or 0, wanted.below or 0)]
    if not all(known.proves(eq(one, other)) for one, other in pairs):
        return False
    return equality.equal(wanted.of.at(index), said.of.at(index), known.knowing(ranges(binders)))


def _is_as_strict(said: Elements, wanted: Elements) -> bool:
    """Return whether both speak of indices or of divisors, and if negative indices are refused, then by what is said,
    too."""
    return (said.below is None) == (wanted.below is None) and said.from_end <= wanted.from_end


def _below(elements: Elements) -> Size:
    assert elements.below is not None
    return elements.below


def _of_row(piece: Piece) -> Piece:
    """Make what is looked up in a row an element of it."""
    match piece.body.terms:
        case (Term(coefficient=1, factors=(Element("Gather", (), (Whole() as row, Whole())),)) as term,):
            if term.guard == TRUE and not term.binders:
                inner = tuple(zip(row.index, row.shape, strict=True))
                return _of_row(Piece((*piece.binders, *inner), piece.guard, row.body))
    return piece


def _within(value: Value, instance: Instance) -> Iterator[Formula]:
    """Yield that what is read of a tensor is one of its elements: denotations read no others where they are defined."""
    for factor in value.terms[0].factors if len(value.terms) == 1 else ():
        for argument in factor.args if isinstance(factor, Call) else ():
            for term in argument.terms:
                for read in term.factors if not term.binders and term.guard == TRUE else ():
                    tensor = instance.holes.get(read.tensor) if isinstance(read, Read) else None
                    if isinstance(tensor, Tensor) and isinstance(read, Read):
                        yield from (inside(i, size) for i, size in zip(read.index, tensor.shape, strict=True))


def _without_spare(piece: Piece) -> Piece:
    """Return the piece without the binders on which nothing in it depends: what then is asked of no element is asked,
    too."""
    used = piece.guard.symbols.union(piece.body.symbols, *(symbols(extent) for _, extent in piece.binders))
    return replace(piece, binders=tuple(pair for pair in piece.binders if pair[0] in used))


def _is_plainly(value: Value, wanted: Elements, equality: Equality, known: Context) -> bool:
    """Return whether a value is such an index, or such a divisor, by itself."""
    if wanted.below is None:
        return is_not_zero(value, equality.signs, known)
    number, least = as_size(value), -1 * wanted.below if wanted.from_end else 0
    if number is not None:
        return known.proves(conj(ge(number, least), lt(number, wanted.below)))
    match value.terms:
        case (Term(1, (Element(operator, operands=(Whole() as row, *_)),), (), guard),):
            return guard == TRUE and operator in PLACES and known.proves(eq(row.shape[0], wanted.below))
    return False


def _reachable(instance: Instance) -> bool:
    """Return whether some sizes, all at least 1 that may be, satisfy what is assumed; what is not known counts as
    no."""
    sizes = (s for t in instance.hole_tensors() for s in t.shape if isinstance(s, Int))
    facts = [*instance.facts, *(ge(size, 1) for size in sizes)]
    plainly = context(facts, instance.effort).witness is not None
    found = plainly or next(models(facts, instance.effort, ()), None) is not None
    if not found:
        instance.unmet = words.only_empty(instance)
    return found


def _agree(instance: Instance, name: str, left: Tensor, right: Tensor, known: Context, cases: int = 3) -> None:
    """Rank, sizes and elements; where that is not shown at once, by cases of how the shapes are computed."""
    instance.settled = known
    failure, advice = _disagreement(instance, left, right, known)
    if not failure or not known.possible:
        return
    condition = next(_undecided((*left.shape, *right.shape), known), None) if cases else None
    if condition is None:
        raise Failed(instance, f"{name}{failure}", advice)
    for side in (condition, negate(condition)):
        _agree(instance, name, left, right, known.knowing(side), cases - 1)


def _undecided(shape: Iterable[Size], known: Context) -> Iterator[Formula]:
    """Yield the conditions on which sizes depend."""
    for size in map(known.simplify, shape):
        if isinstance(size, Int):
            yield from (atom.args[0] for atom in size.atoms if atom.kind == "choice")


def _disagreement(
    instance: Instance, left: Tensor, right: Tensor, known: Context
) -> tuple[str, Callable[[], Iterable[str]]]:
    """Return what is not shown to agree, and more about it; nothing if all is."""
    if left.rank != right.rank:
        return f"rank {left.rank} becomes {right.rank}", tuple
    for axis, (a, b) in enumerate(zip(left.shape, right.shape, strict=True)):
        if not known.proves(eq(a, b)):
            wording = words.Wording(instance)
            one, other = map(wording, map(known.simplify, (a, b)))
            return f"size of axis {axis}: {one} is not shown to be {other}", partial(words.about_sizes, one, other)
    index, binders = bind([known.simplify(s) for s in left.shape], "i")
    if failure := _difference(instance, left, right, index, binders, known):
        wording = words.Wording(instance)
        place = f" at [{wording(*index)}]" if index else ""
        return f"elements{place} {failure}", partial(_advice, instance, wording, left, right, index, binders)
    return "", tuple


def _difference(instance: Instance, left: Tensor, right: Tensor, index: Index, binders: Binders, known: Context) -> str:
    """Why not every element agrees, or is computed where the left one is; nothing if all are.

    Instances often come to the same question, which is then asked once.
    """
    instance.plainly, instance.compared = True, False
    one, other, new = _elements(left, right, index)
    instance.plainly = False
    if instance.compared and one != other:
        one, other, new = _elements(left, right, index)
    equality = Equality(Signs(instance.properties))
    before, after = ({*built, *made} for built, made in zip(instance.built, new, strict=True))
    is_real = not (instance.exact or instance.extended)
    if is_real and (function := undefined(before, after, binders, known, equality)):
        taken = "1 / x" if function == "Inverse" else function
        return f"are made with {taken} of what the left side does not, which may have no value"
    if one == other:  # the same expressions
        return ""
    question = (one, other, binders)
    if question not in known.agreed:
        known.agreed[question] = _values_agree(*question, known, equality)
    return "" if known.agreed[question] else "are not shown to be equal"


def _elements(left: Tensor, right: Tensor, index: Index) -> tuple[Value, Value, tuple[set[Noted], set[Noted]]]:
    """Return the elements of two tensors, and which functions that are not defined everywhere they are computed by."""
    with noting() as before:
        one = left.at(index)
    with noting() as after:
        other = right.at(index)
    return one, other, (before, after)


def _advice(
    instance: Instance, wording: words.Wording, left: Tensor, right: Tensor, index: Index, binders: Binders
) -> Iterator[str]:
    """Yield the two elements that are not shown to be equal, and a condition with which the rule is proved."""
    one, other = left.at(index), right.at(index)
    yield from words.about_elements(wording, one, other, instance.rule)

    def equal(properties: Mapping[str, frozenset[str]], fact: Formula) -> bool:
        with suppress(OutOfTime):
            known = context([*instance.facts, fact], Effort(budget=instance.effort.budget))
            return _values_agree(one, other, binders, known, Equality(Signs(properties)))
        return False

    rule, seconds = instance.rule, instance.effort.budget.seconds
    for condition in list(words.helpful(instance, equal)):
        more = replace(rule, when=(*rule.conditions, condition))
        if _verdict(more, seconds)[0] is Verdict.PROVED:
            yield f"{words.FOUND} `{words.spelled(condition)}`"
            return
    in_types = words.differ_in_types_only(wording, one, other, rule)
    yield words.CAST_ALIKE if in_types else words.UNDER_A_CONDITION


def _values_agree(
    left: Value, right: Value, binders: Binders, known: Context, equality: Equality, cuts_left: int = 12
) -> bool:
    """Return whether two values agree. An output index that is cut by // or % is taken apart: i = a·B + b, of a few a
    each by itself."""
    here = known.knowing(ranges(binders))
    settled = Value((*equality.settle(left, here), *equality.settle(right, here)))
    cut = next(cuts(composites(settled), binders), None)
    if cut is None:
        return equality.equal(left, right, here) or not here.possible
    others = tuple(pair for pair in binders if pair[0] != cut.binder)
    changes = ((Substitution({cut.binder: size}), (*others, *parts)) for size, parts in cut.ways())
    return cuts_left > 0 and all(
        _values_agree(left.rebuild(change), right.rebuild(change), inner, known, equality, cuts_left - 1)
        for change, inner in changes
    )
