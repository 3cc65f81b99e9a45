"""Rules of families: what a hole for an operator may stand for, and the rule that a family is where it is known.

A family is proved from the facts of the class (`ops.CLASSES`), once. It is matched, built and drawn as one of its
particulars: the rule in which the operators are named. What the class does not promise is thereby asked of the operator
that is met: its version, its kernels, its element types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

from graphopt.ir import ops
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.rule import Rule
from graphopt.language.term import SCALAR, App, Term, attributes, const, operators_in


class Candidate(NamedTuple):
    """An operator that a hole may stand for, and where its operands go."""

    op: str
    inputs: tuple[int | str | None, ...]
    """An operand of the hole by its position, a scalar by its name, or nothing."""
    domain: str = ""
    has_attributes: bool = False

    def of(self, hole: str, operands: tuple[Term | None, ...]) -> App:
        """The operator on these operands, with holes for all that is its own; their names begin with the hole's."""
        args = (
            operands[each] if isinstance(each, int) else None if each is None else const(f"{hole}_{each}", "")
            for each in self.inputs
        )
        own = (attributes(f"{hole}_attributes"),) if self.has_attributes else ()
        return App(self.op, (*args, *own), (), self.domain)


_WAYS: Mapping[str, tuple[tuple[int | str | None, ...], ...]] = {
    "Clip": ((0,), (0, "low"), (0, None, "high"), (0, "low", "high")),
    "PRelu": ((0, "slope"),),
}
"""How operators stand for a function of one element whose inputs are not one tensor, or two either of which may be."""


@cache
def candidates(class_: str) -> Mapping[tuple[str, str], tuple[Candidate, ...]]:
    """The operators of a class, by name and domain, each with the ways in which it belongs to it."""
    pairs = sorted(ops.ELEMENTWISE_BINARY - {"PRelu"})  # it broadcasts to its first operand alone
    if class_ == ops.ANY_BINARY:
        return {(op, ""): _in_ways(op, _ways(op, 1)) for op in pairs}
    single = sorted(op for op in ops.POINTWISE - ops.ELEMENTWISE_BINARY - {"Identity", "Where"} if op not in _WAYS)
    ways = {**dict.fromkeys(single, ((0,),)), **_WAYS, **{op: _ways(op, "operand") for op in pairs}}
    return {(op, ""): _in_ways(op, ways[op]) for op in sorted(ways)}


def _ways(op: str, other: int | str) -> tuple[tuple[int | str | None, ...], ...]:
    """The orders of two operands that differ: those of operators that commute are tried when they are matched."""
    commutes = op in ops.COMMUTATIVE or op in ops.COMMUTATIVE_VARIADIC
    return ((0, other),) if commutes else ((0, other), (other, 0))


def _in_ways(op: str, ways: Iterable[tuple[int | str | None, ...]]) -> tuple[Candidate, ...]:
    schema = ops.schema(op)
    assert schema is not None, op
    return tuple(Candidate(op, inputs, "", bool(schema.attributes)) for inputs in ways)


Chosen: TypeAlias = "tuple[tuple[str, Candidate], ...]"
"""What the holes of a family stand for, by name."""


@dataclass(frozen=True)
class Particular(Rule):
    """A rule of a family in which the operators are named."""

    of_family: Rule | None = None
    chosen: Chosen = ()
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """It was checked as it was written."""

    @property
    def family(self) -> Rule:
        """The rule with the holes: what is proved, named and counted."""
        assert self.of_family is not None
        return self.of_family

    @cached_property
    def operators(self) -> Mapping[str, str]:
        """None is left open."""
        return {}

    @cached_property
    def same(self) -> tuple[tuple[App, ...], ...]:
        """The applications of each hole that is applied more than once: of operands of the same element types."""
        found = dict(self.chosen)
        groups: dict[str, dict[Term, None]] = {name: {} for name in found}
        for app in (app for side in self.family.left for app in operators_in(side)):
            groups[app.op][_named(app, found)] = None
        apps = (tuple(app for app in group if isinstance(app, App)) for group in groups.values())
        return tuple(group for group in apps if len(group) > 1)

    @property
    def label(self) -> str:
        """The name with the operators, as in `fuse_reshapes_around_pointwise[Relu]`."""
        return f"{self.name}[{','.join(way.op for _, way in self.chosen)}]"


@cache
def particular(rule: Rule, chosen: Chosen) -> Particular:
    """Return a family's rule for these operators."""
    found = dict(chosen)
    left, right = (tuple(_named(side, found) for side in sides) for sides in (rule.left, rule.right))
    made = definitions_of((*left, *right))
    return Particular(rule.name, left, right, rule.conditions, rule.why, rule, chosen, definitions=made)


def _named(term: Term, chosen: Mapping[str, Candidate]) -> Term:
    if not isinstance(term, App) or term.domain == SCALAR:
        return term
    args = tuple(None if arg is None else _named(arg, chosen) for arg in term.args)
    if term.domain in ops.CLASSES:
        return chosen[term.op].of(term.op, args)
    return App(term.op, args, term.attrs, term.domain, term.output, term.outputs)


def roots(app: App) -> frozenset[str]:
    """The names of the operators that a node may be for an application of a rule to match it."""
    return frozenset(op for op, _ in candidates(app.domain)) if app.domain in ops.CLASSES else frozenset((app.op,))


def some_particulars(rule: Rule, count: int = 4) -> tuple[Rule, ...]:
    """Return a few rules of a family, of operators that differ, to be drawn from; of another rule, itself."""
    if not rule.operators:
        return (rule,)
    ways = {
        name: [way for each in candidates(class_).values() for way in each] for name, class_ in rule.operators.items()
    }
    spread = [
        tuple(
            (name, ways[name][(len(ways[name]) * i // count + 7 * at) % len(ways[name])])
            for at, name in enumerate(ways)
        )
        for i in range(count)
    ]
    return tuple(particular(rule, chosen) for chosen in spread)
