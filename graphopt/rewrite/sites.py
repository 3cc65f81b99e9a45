"""What the gate asks of the place where a rule matches: element types, infinities, and what a proof chose there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import Any

from graphopt.base.types import DType
from graphopt.ir.graph import Graph, Value
from graphopt.language.binding import Absent, Known
from graphopt.language.coverage import Answer, Label
from graphopt.language.rule import Rule
from graphopt.language.scalar import Unknown
from graphopt.language.term import Term, Var, applications, walk
from graphopt.operators.classes import entry
from graphopt.operators.families import Particular
from graphopt.operators.infinities import Far, is_huge, may_hold
from graphopt.rewrite.match import Match


def _unknown(question: str) -> Label:
    raise Unknown(question)


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a rule could be applied."""

    rule: Rule
    computed: frozenset[DType]
    """The element types in which the left side computes."""
    read: frozenset[DType]
    """The element types of what it reads."""
    may_be_infinite: Callable[[bool], bool] = lambda constants: False
    """Whether what it reads or has in between may hold an infinity that the model means; if so asked, its constants."""
    may_be_infinite_where_asked: Callable[[], bool] = lambda: False
    """Whether what the rule asks to be finite may hold an infinity that the model means."""
    may_be_the_least_where_masked: Callable[[], bool] = lambda: False
    """Whether a mask that one side alone has may hold the least number of its type, which the kernel takes for -inf."""
    reordered: bool = False
    """Whether operands that floats are rounded by stand in another order than in the rule."""
    divides: bool = False
    """Whether the rule multiplies by the reciprocal of what is divided by there, which floats are rounded by."""
    answer: Answer = _unknown
    """What there is in the place of the choices of a proof."""

    @staticmethod
    def of(graph: Graph, match: Match) -> Site:
        """Return the place of a match."""

        def may_be_infinite(constants: bool) -> bool:
            inside = [value for value in match.terms.values() if value not in match.roots]
            known = [bound.value for bound in match.holes.values() if isinstance(bound, Known)]
            numbers = (bound for bound in match.holes.values() if isinstance(bound, float))
            looked_at = known if constants else [*_read(match), *inside]
            return not all(map(isfinite, numbers)) or may_hold(graph, looked_at)

        finite = [app.args[0] for app in match.rule.asserted if app.op == "is_finite"]
        asked = [bound for hole in finite if isinstance(bound := match.holes[str(hole)], Value)]
        masked = [match.holes[hole] for hole in _masks(match.rule)]
        masks, written = _values(masked), [number for number in masked if isinstance(number, float)]
        has_huge = any(is_huge(number, graph.dtype(match.roots[0])) for number in written)
        read = frozenset(map(graph.dtype, _read(match)))
        return Site(
            match.rule,
            _computed(graph, match),
            read,
            may_be_infinite,
            lambda: may_hold(graph, asked),
            lambda: has_huge or may_hold(graph, masks, Far.HUGE),
            match.reordered,
            any(graph[value.vertex].op != app.op for app, value in match.terms.items()),
            lambda question: _answer(graph, match, question),
        )


def _masks(rule: Rule) -> Iterator[str]:
    """Yield the holes in what one side of a rule gives to operators as a mask, and the other side does not."""
    left, right = ({*_masks_of(sides)} for sides in (rule.left, rule.right))
    for mask in left ^ right:
        yield from (part.name for part in walk(mask) if isinstance(part, Var))


def _masks_of(sides: Iterable[Term]) -> Iterator[Term]:
    for app in chain.from_iterable(map(applications, sides)):
        place = entry(app.op, app.domain).mask
        mask = app.inputs[place] if place is not None and place < len(app.inputs) else None
        if mask is not None:
            yield mask


def _computed(graph: Graph, match: Match) -> frozenset[DType]:
    """Return the element types in which the left side of a match computes.

    A truth value inside it does not count: it is neither rounded nor does it wrap around.
    """
    inside = frozenset(map(graph.dtype, match.terms.values()))
    return inside - {DType.BOOL} | frozenset(map(graph.dtype, match.roots))


def _read(match: Match) -> list[Value]:
    """Return the tensors that the holes of a match are bound to."""
    return _values(match.holes.values())


def _values(bound: Iterable[object]) -> list[Value]:
    values = (each.value if isinstance(each, Known) else each for each in bound)
    return [value for value in values if isinstance(value, Value)]


def _answer(graph: Graph, match: Match, question: str) -> Label:
    """Return what a match has in the place of a choice (see `coverage.Choice`).

    Raises:
        Unknown: the model does not say.
    """
    kind, _, name = question.partition(" ")
    if kind == "pack":
        return _number(match.axes.get(f"#{name}"), question)
    if kind == "absent":
        return isinstance(match.holes[name], Absent)
    if isinstance(match.rule, Particular) and name in match.rule.family.packs:
        return len(_shape(graph, match.terms[match.rule.joined[name]], question))
    if kind == "rank":
        return len(_shape(graph, match.holes[name], question))
    if kind == "elements":
        return _number(next(iter(_shape(graph, match.holes[name], question)), None), question)
    value = match.holes[name] if name in match.holes else _of_bundle(match, name)
    if kind == "length":
        return _number(len(value) if isinstance(value, tuple) else None, question)
    if isinstance(value, int | float | str | tuple | None):
        return value
    raise Unknown(f"what {name} is")


def _number(found: object, question: str) -> int:
    if not isinstance(found, int):
        raise Unknown(f"the {question}")
    return found


def _shape(graph: Graph, bound: object, question: str) -> Sequence[object]:
    """Return the axes of the tensor of a hole, of which some may have no size that is known."""
    if isinstance(bound, Known | Absent):
        return bound.shape
    shape = graph.shape(bound) if isinstance(bound, Value) else None
    if shape is None:
        raise Unknown(f"the {question}")
    return shape


def _of_bundle(match: Match, name: str) -> Any:
    """Return the value of one of "the other attributes", None where the operator does not have it."""
    bundle, _, attribute = name.rpartition(".")
    others = match.holes[bundle]
    assert isinstance(others, dict)
    return others.get(attribute)
