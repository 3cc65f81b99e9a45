"""Rules of families: what holes for operators and for any number of tensors may stand for, and the rule that that is.

A family is proved from the facts of the class (`ops.CLASSES`), once. It is matched, built and drawn as one of its
particulars: the rule in which the operators are named. What the class does not promise is thereby asked of the operator
that is met: its version, its kernels, its element types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

from graphopt.ir import ops
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.rule import Rule
from graphopt.language.scalar import FACTS
from graphopt.language.term import (
    SCALAR,
    App,
    Term,
    Var,
    applications,
    fn,
    is_pack,
    operators_in,
    packs_in,
    tensor,
    walk,
)
from graphopt.operators.classes import Candidate, candidates

Chosen: TypeAlias = "tuple[tuple[str, Candidate | int], ...]"
"""What the holes of a family stand for, by name: an operator, or so many tensors."""


@dataclass(frozen=True)
class Particular(Rule):
    """A rule of a family in which the operators are named."""

    of_family: Rule | None = None
    chosen: Chosen = ()
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check nothing: that was done as the rule was written."""

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
    def packs(self) -> frozenset[str]:
        """None is left open."""
        return frozenset()

    @cached_property
    def same(self) -> tuple[tuple[App, ...], ...]:
        """The applications of each hole that is applied more than once: of operands of the same element types."""
        naming = _Naming(self.family, self.chosen)
        groups: dict[str, dict[App, None]] = {}
        for app in (app for side in self.family.left for app in operators_in(side)):
            for copy in naming.copies(app):
                if isinstance(copy, App):
                    groups.setdefault(app.op, {})[copy] = None
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @cached_property
    def joined(self) -> Mapping[str, App]:
        """The Concat of the left side that has a hole for tensors among its operands, by the name of the hole."""
        naming = _Naming(self.family, self.chosen)
        wholes = {name: naming.one(app) for name, app in _concats(self.family).items()}
        return {name: whole for name, whole in wholes.items() if isinstance(whole, App)}

    @cached_property
    def is_complete(self) -> bool:
        """Whether no Concat is left without operands, which ONNX does not have."""
        return all(app.inputs for side in (*self.left, *self.right) for app in applications(side) if app.op == "Concat")

    @property
    def label(self) -> str:
        """The name with what was chosen, as in `fuse_reshapes_around_pointwise[f=Relu]`."""
        chosen = (f"{name}={way if isinstance(way, int) else way.op}" for name, way in self.chosen)
        return f"{self.name}[{', '.join(chosen)}]"


@ops.reads_schemas
def particular(rule: Rule, chosen: Chosen) -> Particular:
    """Return a family's rule for these operators and numbers of tensors."""
    naming = _Naming(rule, chosen)
    left, right, when = (tuple(map(naming.one, terms)) for terms in (rule.left, rule.right, rule.conditions))
    made = definitions_of((*left, *right))
    return Particular(rule.name, left, right, when, rule.why, rule, chosen, definitions=made)


class _Naming:
    """Puts operators and tensors in the places of the holes of a family."""

    def __init__(self, rule: Rule, chosen: Chosen) -> None:
        self.concats = _concats(rule)
        self.operators = {name: way for name, way in chosen if isinstance(way, Candidate)}
        self.counts = {name: way for name, way in chosen if isinstance(way, int)}

    def copies(self, term: Term) -> tuple[Term, ...]:
        """Return the term, or of one that stands for any number of tensors, as many."""
        if not is_pack(term):
            return (self.one(term),)
        (pack,) = packs_in(term)
        return tuple(self.one(term, place) for place in range(self.counts[pack.name]))

    def one(self, term: Term, place: int = 0) -> Term:
        """Return the term; of a hole for tensors the one in a place, which for a number that is asked of it is the
        first."""
        if isinstance(term, Var):
            return tensor(f"{term.name}_{place}") if term.kind == "tensors" else term
        if not isinstance(term, App):
            return term
        if is_extent(term):
            (pack,) = packs_in(term)
            lengths = (fn.item(fn.shape(part), _axis(self.concats[pack.name])) for part in self.copies(pack))
            return fn.sum(fn.concat(0, *lengths))
        attrs = tuple((name, self.one(value)) for name, value in term.attrs)
        if term.domain in ops.CLASSES:
            operands = tuple(None if arg is None else self.one(arg, place) for arg in term.args)
            return self.operators[term.op].of(term.op, operands, attrs)
        args: list[Term | None] = []
        for arg in term.args:
            args += [arg] if arg is None else [self.one(arg)] if term.domain == SCALAR else self.copies(arg)
        return App(term.op, tuple(args), attrs, term.domain, term.output, term.outputs)


def _concats(rule: Rule) -> Mapping[str, App]:
    """Return the Concat of the left side in which the tensors of a hole are joined, by the name of the hole."""
    concats = (app for side in rule.left for app in applications(side) if app.op == "Concat")
    return {pack.name: app for app in concats for arg in app.operands if is_pack(arg) for pack in packs_in(arg)}


def _axis(concat: App) -> Term:
    """Return the axis along which a Concat joins."""
    return dict(concat.attrs)["axis"]


def is_extent(term: Term) -> bool:
    """Return whether a term asks how long any number of tensors are together."""
    return isinstance(term, App) and (term.op, term.domain) == ("extent", SCALAR)


@cache
def asked_of_one(rule: Rule) -> frozenset[str]:
    """Return the holes for tensors of which something is asked that each of them has: there has to be one."""
    parts = (part for condition in rule.conditions for part in walk(condition))
    facts = (part for part in parts if isinstance(part, App) and part.op in FACTS and not is_extent(part))
    return frozenset(pack.name for fact in facts for pack in packs_in(fact))


@dataclass(frozen=True)
class Joined(Rule):
    """A rule in which one tensor, of any size, stands for each of those that are any number of them.

    It is proved in the place of the rule. A Concat is a function of what its operands are when they are joined: that of
    none is a tensor of size 0, and an operator on elements is applied to the whole as to each part. So what holds for
    one tensor of any size holds for any number, if each is joined along one axis wherever it occurs.
    """

    whole: frozenset[str] = frozenset()
    """The names of these tensors."""
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check nothing: that was done as the rule was written."""


def joined(rule: Rule) -> Rule:
    """Return the rule with one tensor for any number of them, itself where it says no such number."""
    if not rule.packs or rule.definitions:
        return rule
    concats = _concats(rule)
    left, right, when = (
        tuple(_whole(term, concats) for term in terms) for terms in (rule.left, rule.right, rule.conditions)
    )
    return Joined(rule.name, left, right, when, rule.why, rule.packs)


def _whole(term: Term, concats: Mapping[str, App]) -> Term:
    if isinstance(term, Var):
        return tensor(term.name) if term.kind == "tensors" else term
    if not isinstance(term, App):
        return term
    args = tuple(None if arg is None else _whole(arg, concats) for arg in term.args)
    attrs = tuple((name, _whole(value, concats)) for name, value in term.attrs)
    if is_extent(term):
        (pack,) = packs_in(term)
        return fn.item(fn.shape(*args), _axis(concats[pack.name]))
    return App(term.op, args, attrs, term.domain, term.output, term.outputs)


def roots(app: App) -> frozenset[str]:
    """Return the names of the operators that a node may be for an application of a rule to match it."""
    return frozenset(op for op, _ in candidates(app.domain)) if app.domain in ops.CLASSES else frozenset((app.op,))


def some_particulars(rule: Rule, count: int = 4) -> tuple[Rule, ...]:
    """Return a few rules of a family, of operators and numbers that differ, to draw from; of another rule, itself.

    The operators are ONNX's own: a verdict does not depend on what else was declared in the process.
    """
    if not rule.is_family:
        return (rule,)
    ways: dict[str, Sequence[Candidate | int]] = {
        name: [way for (_, domain), each in candidates(class_).items() if not domain for way in each]
        for name, class_ in rule.operators.items()
    }
    for name in sorted(rule.packs):
        ways[name] = (2, 3, 1, 4) if name in asked_of_one(rule) or len(rule.packs) == 1 else (1, 2, 0, 3)
    spread = [
        tuple(
            (name, ways[name][(len(ways[name]) * i // count + 7 * at) % len(ways[name])])
            for at, name in enumerate(ways)
        )
        for i in range(count)
    ]
    return tuple(particular(rule, chosen) for chosen in spread)
