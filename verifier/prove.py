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

from graphopt.expr.expressions import (
    Binders,
    Call,
    Expr,
    FoldBranch,
    Index,
    OpaqueElement,
    TensorArgument,
    TensorElement,
    Term,
    split_cases,
)
from graphopt.expr.integers import (
    TRUE,
    Formula,
    Polynomial,
    Size,
    conjunction,
    eq,
    free_symbols,
    ge,
    in_range,
    isolated_interner,
    le,
    lt,
    negate,
    reset_fresh_names,
)
from graphopt.expr.partial_calls import PartialCall, recording_partial_calls
from graphopt.expr.substitution import Substitution
from graphopt.expr.symbolic_tensors import SymbolicTensor, as_integer, bind_indices
from graphopt.language.coverage import AnswerQuestion, ProofChoice, build_decision_tree, without_ranks
from graphopt.language.proof import Proof, ProofModel, Verdict
from graphopt.language.rule import Rule
from graphopt.language.terms import Lit, Var, operator_applications, walk_term
from graphopt.operators.indexing_ops import NEXT_PLACE
from graphopt.operators.op_context import MAX_RANK, UndefinedOperatorError, UnsupportedOperatorError
from graphopt.operators.operator_classes import depends_on_dtype, is_pointwise
from graphopt.operators.reduction_ops import ARG_FUNCTIONS as FIRST
from graphopt.operators.rule_families import merge_packs
from graphopt.verifier import counterexample, element_types, messages
from graphopt.verifier.bijections import binder_ranges, composites, find_radix_splits
from graphopt.verifier.choices import Choices, MatchAnswers, NoAdmissibleChoice
from graphopt.verifier.context import ProofContext, get_context
from graphopt.verifier.definedness import explain_unmasked_partial, find_undefined_call, is_not_zero
from graphopt.verifier.element_types import DTypeError, Typing
from graphopt.verifier.equality import Equality
from graphopt.verifier.expanded_rule import ExpandedRule, expand_definitions
from graphopt.verifier.extended_reals import ExtendedReals, InvalidForInfinities, use_extended_reals
from graphopt.verifier.kernel_conformance import describe_unrun_kernels, explain_nonfinite_deviation, find_contradiction
from graphopt.verifier.rounding import explain_unlicensed
from graphopt.verifier.rule_conditions import (
    are_consistent_properties,
    assume_nonempty_axes,
    mentions_remainder,
    most_axes,
    properties_of,
)
from graphopt.verifier.solver import OutOfTime, SolverSession, StepBudget, enumerate_assignments
from graphopt.verifier.suggestions import suggestion
from graphopt.verifier.symbolic_instance import ElementObligation, SymbolicInstance
from graphopt.verifier.symbolic_logic import to_formula
from graphopt.verifier.value_signs import SignAnalysis

POINTWISE_MAX_RANK = 1
"""Scalars and vectors are all ranks where operators are pointwise (`classes.is_pointwise`)."""
PLACES = frozenset({*FIRST.values(), *NEXT_PLACE.values()})
"""Functions that return the index of an element of a row."""
OUT_OF_TIME = "out of time"
SOLVER = f"z3 {z3.get_version_string()}"


@dataclass
class ProofAttempt:
    """What came of one model: how many instances were shown, or what failed."""

    cases: int = 0
    ranks: frozenset[int] = frozenset()
    is_reachable: bool = False
    """Some instance occurs, with no size 0."""
    failure: str = ""
    is_definite: bool = False
    """The failure is definite: ranks or types differ, whatever the sizes."""
    is_unshown: bool = False
    """The failure is an obligation that could not be shown."""
    paths: list[tuple[ProofChoice, ...]] = field(default_factory=list)
    """Choices at the instances that were shown, at all ranks."""
    vacuous_reasons: Counter[str] = field(default_factory=Counter)
    """Reasons why the left side does not occur, with their frequencies."""
    advice: Callable[[], Iterable[str]] = tuple
    """More about the failure, and what to try next."""
    failed_at: SymbolicInstance | None = None

    def break_cycles(self) -> None:
        """Forget the elements at which it failed, of which no one asks for more."""
        if self.failed_at is not None:
            self.failed_at.break_cycles()


@isolated_interner()
def prove(rule: Rule, *, timeout: float = 5.0, refute: bool = True) -> Proof:
    """Return the proof of a rule, or the verdict that there is none. `timeout` is in seconds, each so many steps
    (`StepBudget`).

    What is not proved is tried on small models if it is to be refuted: a difference there, or a left side that no sizes
    fit where the right side runs, makes it REFUTED. Else what may help is looked for. Operators that are declared by
    terms are proved as these, but in no exact model: their kernels may round in ways of their own. A declaration that
    its kernel contradicts makes it REFUTED, too.
    """
    start, claim = time.thread_time(), rule.without_profitability
    plain = expand_definitions(merge_packs(claim))
    verdict, model, outcome = _verdict(plain, timeout)
    if verdict is Verdict.PROVED:
        example = find_contradiction(rule.definitions)
        outcome.failure = describe_unrun_kernels(rule.definitions)
    else:
        example = counterexample.find_counterexample(claim if claim.is_family else plain) if refute else None
        if refute and example is None and verdict is Verdict.VACUOUS:
            found, shown_in, _ = _verdict(assume_nonempty_axes(plain), timeout)
            example = counterexample.find_ill_shaped(plain) if found is Verdict.VACUOUS and shown_in else None
    verdict = Verdict.REFUTED if example is not None else verdict
    hint = ""
    if outcome.is_unshown and refute:
        empty = example is None or example.has_empty_axis
        hint = suggestion(plain, lambda other: _verdict(other, timeout / 2)[0] is Verdict.PROVED, empty=empty)
    if verdict is Verdict.UNKNOWN and refute:
        outcome.failure = "\n".join([outcome.failure, *messages.with_hint(outcome.advice(), hint)])
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
        build_decision_tree(outcome.paths) if verdict is Verdict.PROVED else [],
        any(plain.holes[name].kind == "tensor" for name in properties_of(plain)),
        hint if verdict is Verdict.REFUTED else "",
    )


@isolated_interner()
def find_unproved_at(rule: Rule, model: ProofModel, answer: AnswerQuestion, *, timeout: float = 5.0) -> str:
    """Return what is not shown, in the model in which a rule is proved, at the one instance of a match; nothing if all
    is."""
    rule, effort = (
        expand_definitions(merge_packs(rule.without_profitability)),
        SolverSession(budget=StepBudget(timeout)),
    )

    def met() -> Iterator[SymbolicInstance]:
        reset_fresh_names()
        typings = element_types.enumerate_typings(rule)
        first = _primary_typing(element_types.licensed_typings(rule, model, typings) or typings)
        yield _instance(rule, model, MatchAnswers(answer), effort, first, MAX_RANK, typings)

    outcome = _prove_in_model(rule, model, met(), effort.budget)
    return outcome.failure or ("" if outcome.cases else "the left side is not defined there")


def _verdict(rule: Rule, timeout: float) -> tuple[Verdict, ProofModel | None, ProofAttempt]:
    try:
        choices = element_types.enumerate_typings(rule)
    except DTypeError as error:
        return Verdict.UNKNOWN, None, ProofAttempt(failure=str(error))
    if not choices:
        return Verdict.VACUOUS, None, ProofAttempt(failure=messages.explain_untypable(rule))
    wrong = element_types.find_type_disagreement(rule, choices)
    if wrong is not None:
        return (
            Verdict.UNKNOWN,
            None,
            ProofAttempt(failure=wrong, is_definite=True, advice=partial(messages.about_types, rule, choices)),
        )
    outcome, budget = ProofAttempt(failure=messages.WRAPS), StepBudget(timeout)
    effort = SolverSession(budget=budget)
    for model in _models(rule, choices):
        effort.contexts.clear()  # what one model shows of values is no other's; what follows of integers is
        outcome.break_cycles()
        outcome = _prove_in_model(rule, model, enumerate_instances(rule, model, choices, effort), budget)
        if not outcome.failure and not outcome.is_reachable:
            outcome.failure = messages.explain_vacuous(outcome.vacuous_reasons)
            return Verdict.VACUOUS, model, outcome
        outcome.failure = outcome.failure or _forbidden(rule, model, choices)
        if not outcome.failure:
            effort.contexts.clear()  # which all know of the effort
            return Verdict.PROVED, model, outcome
        if budget.is_spent:
            break
    return Verdict.UNKNOWN, None, outcome


def _forbidden(rule: Rule, model: ProofModel, choices: Sequence[Typing]) -> str:
    """Return why a rule may not be applied for all that was shown: what rounding or kernels make of it."""
    if model is ProofModel.EXACT:
        return ""
    forbidden = explain_unlicensed(rule, choices)
    return forbidden or (
        explain_unmasked_partial(rule) if model is ProofModel.REAL else explain_nonfinite_deviation(rule.definitions)
    )


def _models(rule: Rule, typings: Sequence[Typing]) -> Sequence[ProofModel]:
    """Return the models in which a rule is tried, of those that speak of some choice of element types.

    What is defined by a term has a kernel that rounds in its own way. What an operator of which only the class is known
    makes of a number that is rounded otherwise is not known: its operands have to be the same, bit for bit.
    """
    if rule.operator_holes:
        return (ProofModel.EXACT,)
    said = (ProofModel.EXTENDED, ProofModel.REAL) if rule.definitions else tuple(ProofModel)
    return [model for model in said if element_types.licensed_typings(rule, model, typings)]


def _prove_in_model(
    rule: Rule, model: ProofModel, instances: Iterable[SymbolicInstance], budget: StepBudget
) -> ProofAttempt:
    """Return some instances in one model."""
    outcome, instance, first = ProofAttempt(), None, None
    try:
        with _arithmetic(rule, model):
            for instance in instances:
                first = first or _primary_typing(instance.typings)
                ranks = _obligations(instance)
                outcome.is_reachable = outcome.is_reachable or (not instance.vacuous_reason and _reachable(instance))
                if ranks is not None:
                    outcome.cases += 1
                    if instance.typing is first:
                        path = instance.choices.path
                        outcome.paths.append(without_ranks(path) if is_pointwise(rule) else tuple(path))
                    outcome.ranks |= ranks
                if not outcome.is_reachable:
                    outcome.vacuous_reasons[instance.vacuous_reason] += 1
                instance.break_cycles()
    except OutOfTime:
        where = "" if instance is None else f", {messages.describe_instance(instance)}"
        outcome.failure = f"{OUT_OF_TIME} after {outcome.cases} cases{where}"
        outcome.advice = partial(messages.about_time, budget.seconds)
    except UnsupportedOperatorError as error:
        outcome.failure = f"unsupported: {error}"
        outcome.advice = partial(messages.about_operators, str(error))
    except InvalidForInfinities as error:
        outcome.failure = str(error)
    except ObligationFailed as error:
        outcome.failure, outcome.advice, outcome.is_unshown = str(error), error.advice, True
        outcome.failed_at = instance
    return outcome


def _arithmetic(rule: Rule, model: ProofModel) -> AbstractContextManager[None]:
    """Return what products and quotients are in a model.

    Raises:
        InvalidForInfinities: the rule writes an infinity, of which the extended model knows nothing.
    """
    if model is not ProofModel.EXTENDED:
        return nullcontext()
    numbers = (part.value for side in (*rule.left, *rule.right) for part in walk_term(side) if isinstance(part, Lit))
    if any(isinstance(number, float) and not isfinite(number) for number in numbers):
        raise InvalidForInfinities("an infinity is written")
    properties = properties_of(rule)
    tensors = (name for name, hole in rule.holes.items() if hole.kind == "tensor")
    infinite = frozenset(name for name in tensors if "is_finite" not in properties.get(name, ()))
    return use_extended_reals(ExtendedReals(infinite, properties, _variances(rule)))


def _variances(rule: Rule) -> frozenset[str]:
    """Return what the left side normalizes by: the holes for variances, and what is added to them."""
    norms = [app for side in rule.left for app in operator_applications(side) if app.op == "BatchNormalization"]
    named = {part.name for app in norms for part in app.inputs[4:] if isinstance(part, Var)}
    return frozenset(named | {f"{app.op}.epsilon" for app in norms})


class ObligationFailed(Exception):
    """An obligation that could not be shown at an instance; `advice` says more of it."""

    def __init__(self, instance: SymbolicInstance, reason: str, advice: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(f"{messages.describe_instance(instance)}: {reason}")
        self.advice = advice


def enumerate_instances(
    rule: Rule, model: ProofModel, typings: Sequence[Typing], effort: SolverSession
) -> Iterator[SymbolicInstance]:
    """Yield instances of all ranks and attributes; where types matter, for one of each `typing_equivalence_key`."""
    licensed = element_types.licensed_typings(rule, model, typings)
    first = _primary_typing(licensed)
    others = licensed if depends_on_dtype(rule) else []
    most = POINTWISE_MAX_RANK if is_pointwise(rule) else max(MAX_RANK, most_axes(rule))
    yield from _enumerate_for_typing(rule, model, effort, first, most, typings)
    kinds = {element_types.typing_equivalence_key(rule, first)}
    for typing in others:
        kind = element_types.typing_equivalence_key(rule, typing)
        if kind not in kinds:
            kinds.add(kind)
            yield from _enumerate_for_typing(rule, model, effort, typing, most, typings)


def _enumerate_for_typing(
    rule: Rule, model: ProofModel, effort: SolverSession, typing: Typing, bound: int, typings: Sequence[Typing]
) -> Iterator[SymbolicInstance]:
    """All ranks up to a bound and all attributes, for one choice of element types."""
    choices = Choices()
    for position, _ in enumerate(choices.paths()):
        effort.budget.instances += 1
        if position % 16 == 0 and effort.budget.is_spent:  # to read the clock takes as long as an instance
            raise OutOfTime
        reset_fresh_names()
        yield _instance(rule, model, choices, effort, typing, bound, typings)


def _primary_typing(typings: Sequence[Typing]) -> Typing:
    """Return the choice of element types with which all ranks are tried: of floats, if there is one."""
    floats = (t for t in typings if all(d.is_float or d.name in ("BOOL", "INT64") for d in t.types.values()))
    return next(floats, typings[0])


def _instance(
    rule: Rule,
    model: ProofModel,
    choices: Choices,
    effort: SolverSession,
    typing: Typing,
    bound: int,
    typings: Sequence[Typing],
) -> SymbolicInstance:
    exact, extended_ = model is ProofModel.EXACT, model is ProofModel.EXTENDED
    return SymbolicInstance(rule, exact, choices, effort, typing, bound, typings=typings, extended=extended_)


def _obligations(instance: SymbolicInstance) -> frozenset[int] | None:
    """Show all obligations of one instance: the ranks that it speaks of, None where the left side does not occur."""
    rule = instance.rule
    left = _left(instance)
    if left is None:
        return None
    if mentions_remainder(rule):  # elsewhere quotients that have names only make what is known longer
        instance.facts += instance.context.multiple_equations()
    known = instance.context
    instance.assuming = False
    try:
        with recording_partial_calls() as built:
            right = [instance.tensor(side) for side in rule.right]
        instance.partial_calls[1].update(built)
        for condition in rule.obligations if isinstance(rule, ExpandedRule) else ():
            instance.require(to_formula(instance.scalar(condition)), f"{condition}, as its definition asks")
    except UndefinedOperatorError as error:
        raise ObligationFailed(instance, f"on the right, {error}") from error
    known = _learn_equal_sizes(left, right, known)
    for demand, reason in instance.obligations:
        if not known.proves(demand):
            asked = messages.Wording(instance)(known.simplify_formula(demand))
            raise ObligationFailed(
                instance, f"not shown on the right: {reason}", partial(iter, [f"to be shown: {asked}"])
            )
    known = known.assuming(*(demand for demand, _ in instance.obligations))
    for elements in instance.element_obligations:
        if not _follows(elements, instance, known):
            advice = partial(messages.about_classes, rule)
            raise ObligationFailed(instance, f"not shown on the right: {elements.reason}", advice)
    for position, (one, other) in enumerate(zip(left, right, strict=True)):
        name = f"output {position + 1} of {len(left)}: " if len(left) > 1 else ""
        _agree(instance, name, one, other, known)
    return frozenset(t.rank for t in (*left, *instance.hole_tensors()))


def _left(instance: SymbolicInstance) -> list[SymbolicTensor] | None:
    """Return the tensors of the left side with all that is assumed; None, and why, where it does not occur."""
    try:
        with recording_partial_calls() as built:
            left = [instance.tensor(side) for side in instance.rule.left]
        instance.partial_calls[0].update(built)
        instance.assume_absences()
        for said in instance.rule.content_queries:  # how many places or blocks there may be is known on both sides
            instance.scalar(said)
        before = instance.context
        instance.assume_conditions()
    except NoAdmissibleChoice:
        instance.vacuous_reason = f"no value that is tried fulfils {', '.join(map(str, instance.rule.conditions))}"
        return None
    except UndefinedOperatorError as error:
        instance.vacuous_reason = str(error)
        return None
    if not instance.context.possible:
        instance.vacuous_reason = messages.explain_contradiction(instance, before)
    elif not are_consistent_properties(instance.properties):
        instance.vacuous_reason = f"no constant is all of these: {messages.format_properties(instance)}"
    return None if instance.vacuous_reason else left


def _learn_equal_sizes(
    left: Sequence[SymbolicTensor], right: Sequence[SymbolicTensor], known: ProofContext
) -> ProofContext:
    """Which sizes agree, as far as it is shown: so that what is computed from them is known to be equal."""
    for one, other in zip(left, right, strict=True):
        for a, b in zip(one.shape, other.shape, strict=False):
            if a != b and known.proves(same := eq(a, b)):
                known = known.assuming(same)
    return known


def _follows(wanted: ElementObligation, instance: SymbolicInstance, known: ProofContext) -> bool:
    """Return whether each element is what the right side asks for: plainly, or as one of which the left side says
    it."""
    index, binders = bind_indices([known.simplify(size) for size in wanted.tensor.shape], "i")
    equality = Equality(SignAnalysis(instance.properties))

    def settled(body: Expr, of: Binders) -> Expr:
        return Expr((*equality.normalize(body, known.assuming(binder_ranges(of))),))

    if any(
        _is_same_obligation(wanted, elements, index, binders, equality, known) for elements in instance.assumed_elements
    ):
        return True
    said = [
        [
            FoldBranch(inner, condition, settled(body, inner))
            for condition, (body,) in split_cases(elements.tensor.element(at))
        ]
        for elements in instance.assumed_elements
        if _is_as_strict(elements, wanted)
        and (wanted.index_bound is None or known.proves(le(_below(elements), wanted.index_bound)))
        for at, inner in [bind_indices([known.simplify(size) for size in elements.tensor.shape], "j")]
    ]
    for condition, (body,) in split_cases(wanted.tensor.element(index)):
        piece = _drop_unused_binders(_unwrap_gather(FoldBranch(binders, condition, settled(body, binders))))
        piece = replace(piece, guard=conjunction(piece.guard, *_read_bounds(piece.body, instance)))
        here = known.assuming(binder_ranges(piece.binders), piece.guard)
        if not here.possible or _holds_by_itself(piece.body, wanted, equality, here):
            continue
        if not any(equality.proves_covered([piece], others, known) for others in [*said, [*chain.from_iterable(said)]]):
            return False
    return True


def _is_same_obligation(
    wanted: ElementObligation,
    said: ElementObligation,
    index: Index,
    binders: Binders,
    equality: Equality,
    known: ProofContext,
) -> bool:
    """Return whether the left side says the same of the elements of a tensor of the same shape, place by place."""
    if not _is_as_strict(said, wanted) or said.tensor.rank != wanted.tensor.rank:
        return False
    pairs = [
        *zip(said.tensor.shape, wanted.tensor.shape, strict=True),
        (said.index_bound or 0, wanted.index_bound or 0),
    ]
    if not all(known.proves(eq(one, other)) for one, other in pairs):
        return False
    return equality.proves_equal(
        wanted.tensor.element(index), said.tensor.element(index), known.assuming(binder_ranges(binders))
    )


def _is_as_strict(said: ElementObligation, wanted: ElementObligation) -> bool:
    """Return whether both speak of indices or of divisors, and if negative indices are refused, then by what is said,
    too."""
    return (said.index_bound is None) == (wanted.index_bound is None) and said.allows_negative <= wanted.allows_negative


def _below(elements: ElementObligation) -> Size:
    assert elements.index_bound is not None
    return elements.index_bound


def _unwrap_gather(piece: FoldBranch) -> FoldBranch:
    """Make what is looked up in a row an element of it."""
    match piece.body.terms:
        case (
            Term(
                coefficient=1, factors=(OpaqueElement("Gather", (), (TensorArgument() as row, TensorArgument())),)
            ) as term,
        ):
            if term.guard == TRUE and not term.binders:
                inner = tuple(zip(row.index, row.shape, strict=True))
                return _unwrap_gather(FoldBranch((*piece.binders, *inner), piece.guard, row.body))
    return piece


def _read_bounds(value: Expr, instance: SymbolicInstance) -> Iterator[Formula]:
    """Yield that what is read of a tensor is one of its elements: denotations read no others where they are defined."""
    for factor in value.terms[0].factors if len(value.terms) == 1 else ():
        for argument in factor.args if isinstance(factor, Call) else ():
            for term in argument.terms:
                for read in term.factors if not term.binders and term.guard == TRUE else ():
                    tensor = instance.bindings.get(read.tensor) if isinstance(read, TensorElement) else None
                    if isinstance(tensor, SymbolicTensor) and isinstance(read, TensorElement):
                        yield from (in_range(i, size) for i, size in zip(read.index, tensor.shape, strict=True))


def _drop_unused_binders(piece: FoldBranch) -> FoldBranch:
    """Return the piece without the binders on which nothing in it depends: what then is asked of no element is asked,
    too."""
    used = piece.guard.free_symbols.union(
        piece.body.free_symbols, *(free_symbols(extent) for _, extent in piece.binders)
    )
    return replace(piece, binders=tuple(pair for pair in piece.binders if pair[0] in used))


def _holds_by_itself(value: Expr, wanted: ElementObligation, equality: Equality, known: ProofContext) -> bool:
    """Return whether a value is such an index, or such a divisor, by itself."""
    if wanted.index_bound is None:
        return is_not_zero(value, equality.signs, known)
    number, least = as_integer(value), -1 * wanted.index_bound if wanted.allows_negative else 0
    if number is not None:
        return known.proves(conjunction(ge(number, least), lt(number, wanted.index_bound)))
    match value.terms:
        case (Term(1, (OpaqueElement(operator, operands=(TensorArgument() as row, *_)),), (), guard),):
            return guard == TRUE and operator in PLACES and known.proves(eq(row.shape[0], wanted.index_bound))
    return False


def _reachable(instance: SymbolicInstance) -> bool:
    """Return whether some sizes, all at least 1 that may be, satisfy what is assumed; what is not known counts as
    no."""
    sizes = (s for t in instance.hole_tensors() for s in t.shape if isinstance(s, Polynomial))
    facts = [*instance.facts, *(ge(size, 1) for size in sizes)]
    plainly = get_context(facts, instance.effort).witness is not None
    found = plainly or next(enumerate_assignments(facts, instance.effort, ()), None) is not None
    if not found:
        instance.vacuous_reason = messages.explain_only_empty(instance)
    return found


def _agree(
    instance: SymbolicInstance,
    name: str,
    left: SymbolicTensor,
    right: SymbolicTensor,
    known: ProofContext,
    cases: int = 3,
) -> None:
    """Rank, sizes and elements; where that is not shown at once, by cases of how the shapes are computed."""
    instance.comparison_context = known
    failure, advice = _disagreement(instance, left, right, known)
    if not failure or not known.possible:
        return
    condition = next(_undecided((*left.shape, *right.shape), known), None) if cases else None
    if condition is None:
        raise ObligationFailed(instance, f"{name}{failure}", advice)
    for side in (condition, negate(condition)):
        _agree(instance, name, left, right, known.assuming(side), cases - 1)


def _undecided(shape: Iterable[Size], known: ProofContext) -> Iterator[Formula]:
    """Yield the conditions on which sizes depend."""
    for size in map(known.simplify, shape):
        if isinstance(size, Polynomial):
            yield from (atom.args[0] for atom in size.atoms if atom.kind == "choice")


def _disagreement(
    instance: SymbolicInstance, left: SymbolicTensor, right: SymbolicTensor, known: ProofContext
) -> tuple[str, Callable[[], Iterable[str]]]:
    """Return what is not shown to agree, and more about it; nothing if all is."""
    if left.rank != right.rank:
        return f"rank {left.rank} becomes {right.rank}", tuple
    for axis, (a, b) in enumerate(zip(left.shape, right.shape, strict=True)):
        if not known.proves(eq(a, b)):
            wording = messages.Wording(instance)
            one, other = map(wording, map(known.simplify, (a, b)))
            return f"size of axis {axis}: {one} is not shown to be {other}", partial(messages.about_sizes, one, other)
    index, binders = bind_indices([known.simplify(s) for s in left.shape], "i")
    if failure := _difference(instance, left, right, index, binders, known):
        wording = messages.Wording(instance)
        place = f" at [{wording(*index)}]" if index else ""
        return f"elements{place} {failure}", partial(_advice, instance, wording, left, right, index, binders)
    return "", tuple


def _difference(
    instance: SymbolicInstance,
    left: SymbolicTensor,
    right: SymbolicTensor,
    index: Index,
    binders: Binders,
    known: ProofContext,
) -> str:
    """Why not every element agrees, or is computed where the left one is; nothing if all are.

    Instances often come to the same question, which is then asked once.
    """
    instance.compares_syntactically, instance.has_unequal_comparison = True, False
    one, other, new = _elements(left, right, index)
    instance.compares_syntactically = False
    if instance.has_unequal_comparison and one != other:
        one, other, new = _elements(left, right, index)
    equality = Equality(SignAnalysis(instance.properties))
    before, after = ({*built, *made} for built, made in zip(instance.partial_calls, new, strict=True))
    is_real = not (instance.exact or instance.extended)
    if is_real and (function := find_undefined_call(before, after, binders, known, equality)):
        taken = "1 / x" if function == "Inverse" else function
        return f"are made with {taken} of what the left side does not, which may have no value"
    if one == other:  # the same expressions
        return ""
    question = (one, other, binders)
    if question not in known.tensor_equalities:
        known.tensor_equalities[question] = _values_agree(*question, known, equality)
    return "" if known.tensor_equalities[question] else "are not shown to be equal"


def _elements(
    left: SymbolicTensor, right: SymbolicTensor, index: Index
) -> tuple[Expr, Expr, tuple[set[PartialCall], set[PartialCall]]]:
    """Return the elements of two tensors, and which functions that are not defined everywhere they are computed by."""
    with recording_partial_calls() as before:
        one = left.element(index)
    with recording_partial_calls() as after:
        other = right.element(index)
    return one, other, (before, after)


def _advice(
    instance: SymbolicInstance,
    wording: messages.Wording,
    left: SymbolicTensor,
    right: SymbolicTensor,
    index: Index,
    binders: Binders,
) -> Iterator[str]:
    """Yield the two elements that are not shown to be equal, and a condition with which the rule is proved."""
    one, other = left.element(index), right.element(index)
    yield from messages.about_elements(wording, one, other, instance.rule)

    def equal(properties: Mapping[str, frozenset[str]], fact: Formula) -> bool:
        with suppress(OutOfTime):
            known = get_context([*instance.facts, fact], SolverSession(budget=instance.effort.budget))
            return _values_agree(one, other, binders, known, Equality(SignAnalysis(properties)))
        return False

    rule, seconds = instance.rule, instance.effort.budget.seconds
    for condition in list(messages.find_helpful_conditions(instance, equal)):
        more = replace(rule, when=(*rule.conditions, condition))
        if _verdict(more, seconds)[0] is Verdict.PROVED:
            yield f"{messages.PROVED_WITH_CONDITION} `{messages.format_condition(condition)}`"
            return
    in_types = messages.differ_in_types_only(wording, one, other, rule)
    yield messages.CAST_ALIKE if in_types else messages.UNDER_A_CONDITION


def _values_agree(
    left: Expr, right: Expr, binders: Binders, known: ProofContext, equality: Equality, cuts_left: int = 12
) -> bool:
    """Return whether two values agree. An output index that is cut by // or % is taken apart: i = a·B + b, of a few a
    each by itself."""
    here = known.assuming(binder_ranges(binders))
    settled = Expr((*equality.normalize(left, here), *equality.normalize(right, here)))
    cut = next(find_radix_splits(composites(settled), binders), None)
    if cut is None:
        return equality.proves_equal(left, right, here) or not here.possible
    others = tuple(pair for pair in binders if pair[0] != cut.binder)
    changes = ((Substitution({cut.binder: size}), (*others, *parts)) for size, parts in cut.expansions())
    return cuts_left > 0 and all(
        _values_agree(left.replace_atoms(change), right.replace_atoms(change), inner, known, equality, cuts_left - 1)
        for change, inner in changes
    )
