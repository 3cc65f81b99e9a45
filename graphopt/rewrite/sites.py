"""Sites of rules: the element types, infinities and choices of a proof that the gate asks for where a rule matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

from graphopt.base.dtype import DType
from graphopt.ir.graph import Graph, Value
from graphopt.ir.schemas import memoized_by_schema
from graphopt.language.binding import ConstantBinding, DefaultBinding
from graphopt.language.coverage import AnswerQuestion, Label
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import UndecidedScalarError
from graphopt.language.terms import Term, Var, operator_applications, walk_term
from graphopt.operators.magnitude_analysis import Magnitude, is_huge, may_have_magnitude
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.rule_families import RuleSpecialization
from graphopt.rewrite.matching import Match


def _unknown_answer(question: str) -> Label:
    raise UndecidedScalarError(question)


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a rule could be applied."""

    rule: Rule
    computed_dtypes: frozenset[DType]
    """The element types in which the left side computes."""
    read_dtypes: frozenset[DType]
    """The element types of what it reads."""
    may_be_infinite: Callable[[bool], bool] = lambda constants: False
    """True if a value that it reads or computes in between may hold an infinity that the model means; given True, only
    constants are asked."""
    finiteness_may_fail: Callable[[], bool] = lambda: False
    """True if a value that the rule requires to be finite may hold an infinity that the model means."""
    mask_may_be_lowest: Callable[[], bool] = lambda: False
    """True if a mask that one side alone has may hold the least number of its type, which the kernel takes for -inf."""
    is_reordered: bool = False
    """True if operands whose order affects rounding stand in another order than in the rule."""
    uses_reciprocal: bool = False
    """True if the rule multiplies by the reciprocal of a divisor, which rounds differently."""
    answer: AnswerQuestion = _unknown_answer
    """Answers to the choices of a proof."""

    @staticmethod
    def from_match(graph: Graph, match: Match) -> Site:
        """Return the place of a match."""

        def may_be_infinite(constants: bool) -> bool:
            between = [value for value in match.terms.values() if value not in match.roots]
            known = [bound.value for bound in match.holes.values() if isinstance(bound, ConstantBinding)]
            numbers = (bound for bound in match.holes.values() if isinstance(bound, float))
            looked_at = known if constants else [*_read_values(match), *between]
            return not all(map(isfinite, numbers)) or may_have_magnitude(graph, looked_at)

        finite = [app.args[0] for app in match.rule.property_conditions if app.op == "is_finite"]
        asked = [bound for hole in finite if isinstance(bound := match.holes[str(hole)], Value)]
        masked = [match.holes[name] for name in _one_sided_masks(match.rule)]
        masks, written = _bound_values(masked), [number for number in masked if isinstance(number, float)]
        has_huge = any(is_huge(number, graph.dtype(match.roots[0])) for number in written)
        inside = frozenset(map(graph.dtype, match.terms.values())) - {DType.BOOL}  # truth values neither round nor wrap
        return Site(
            match.rule,
            inside | frozenset(map(graph.dtype, match.roots)),
            frozenset(map(graph.dtype, _read_values(match))),
            may_be_infinite,
            lambda: may_have_magnitude(graph, asked),
            lambda: has_huge or may_have_magnitude(graph, masks, Magnitude.HUGE),
            match.is_reordered,
            any(graph[value.vertex].op != app.op for app, value in match.terms.items()),
            lambda question: _answer_question(graph, match, question),
        )


@memoized_by_schema
def _one_sided_masks(rule: Rule) -> tuple[str, ...]:
    """Return the holes in masks that one side of a rule alone has."""
    one_sided = {*_mask_operands(rule.left)} ^ {*_mask_operands(rule.right)}
    return tuple(part.name for mask in one_sided for part in walk_term(mask) if isinstance(part, Var))


def _mask_operands(sides: Iterable[Term]) -> Iterator[Term]:
    """Yield what a side of a rule gives to operators as a mask."""
    for app in chain.from_iterable(map(operator_applications, sides)):
        place = lookup_operator(app.op, app.domain).mask_input
        mask = app.inputs[place] if place is not None and place < len(app.inputs) else None
        if mask is not None:
            yield mask


def _read_values(match: Match) -> list[Value]:
    """Return the tensors that the holes of a match are bound to."""
    return _bound_values(match.holes.values())


def _bound_values(bound: Iterable[object]) -> list[Value]:
    values = (each.value if isinstance(each, ConstantBinding) else each for each in bound)
    return [value for value in values if isinstance(value, Value)]


def _answer_question(graph: Graph, match: Match, question: str) -> Label:
    """Return the choice of a proof that a match stands for (see `coverage.ProofChoice`).

    Raises:
        UndecidedScalarError: the model does not say.
    """
    kind, _, name = question.partition(" ")
    if kind == "pack":
        return _answer_number(match.axes.get(f"#{name}"), question)
    if kind == "absent":
        return isinstance(match.holes[name], DefaultBinding)
    if isinstance(match.rule, RuleSpecialization) and name in match.rule.generalized.pack_names:
        return len(_hole_shape(graph, match.terms[match.rule.pack_concats[name]], question))
    if kind == "rank":
        return len(_hole_shape(graph, match.holes[name], question))
    if kind == "elements":
        return _answer_number(next(iter(_hole_shape(graph, match.holes[name], question)), None), question)
    if name in match.holes:
        value: Any = match.holes[name]
    else:  # one of "the other attributes", None where the operator does not have it
        bundle, _, attribute = name.rpartition(".")
        others = match.holes[bundle]
        assert isinstance(others, dict)
        value = others.get(attribute)
    if kind == "length":
        return _answer_number(len(value) if isinstance(value, tuple) else None, question)
    if isinstance(value, int | float | str | tuple | None):
        return value
    raise UndecidedScalarError(f"what {name} is")


def _answer_number(found: object, question: str) -> int:
    if not isinstance(found, int):
        raise UndecidedScalarError(f"the {question}")
    return found


def _hole_shape(graph: Graph, bound: object, question: str) -> Sequence[object]:
    """Return the axes of a hole's tensor, some of which may have no known size."""
    if isinstance(bound, ConstantBinding | DefaultBinding):
        return bound.shape
    shape = graph.shape(bound) if isinstance(bound, Value) else None
    if shape is None:
        raise UndecidedScalarError(f"the {question}")
    return shape
