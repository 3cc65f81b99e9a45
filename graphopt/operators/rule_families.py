"""Families of rules: what holes for operators, and for any number of tensors, may stand for.

A family is proved once, from the facts of the class (`schemas.CLASS_SCHEMAS`). It is matched, built and sampled as one
of its instances: the rule in which the operators are named. What the class does not promise is thereby checked for the
actual operator: its version, its kernels, its element types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

from graphopt.ir import schemas
from graphopt.language.definition import Definition, definitions_of
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import BINDING_QUERIES
from graphopt.language.terms import (
    SCALAR,
    App,
    Term,
    Var,
    fn,
    is_pack,
    operator_applications,
    operator_hole_applications,
    pack_holes,
    tensor,
    walk_term,
)
from graphopt.operators.operator_classes import OperatorChoice, operator_choices

FamilyChoices: TypeAlias = "tuple[tuple[str, OperatorChoice | int], ...]"
"""Choices for the holes of a family, by name: an operator, or a number of tensors."""


@dataclass(frozen=True)
class RuleSpecialization(Rule):
    """A rule of a family in which the operators are named."""

    parent_family: Rule | None = None
    choices: FamilyChoices = ()
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check nothing: the family was checked when it was written."""

    @property
    def generalized(self) -> Rule:
        """The rule with the holes, as it is proved, named and counted."""
        assert self.parent_family is not None
        return self.parent_family

    @cached_property
    def operator_holes(self) -> Mapping[str, str]:
        """Empty: none is left open."""
        return {}

    @cached_property
    def pack_names(self) -> frozenset[str]:
        """Empty: none is left open."""
        return frozenset()

    @cached_property
    def repeated_applications(self) -> tuple[tuple[App, ...], ...]:
        """Applications of each hole that occurs more than once: their operands have the same element types."""
        naming = _FamilySubstitution(self.generalized, self.choices)
        groups: dict[str, dict[App, None]] = {}
        for app in (app for side in self.generalized.left for app in operator_hole_applications(side)):
            for copy in naming.expand(app):
                if isinstance(copy, App):
                    groups.setdefault(app.op, {})[copy] = None
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @cached_property
    def pack_concats(self) -> Mapping[str, App]:
        """The Concat of the left side that has a hole for tensors among its operands, by the name of the hole."""
        naming = _FamilySubstitution(self.generalized, self.choices)
        wholes = {name: naming.substitute(app) for name, app in _pack_concats(self.generalized).items()}
        return {name: whole for name, whole in wholes.items() if isinstance(whole, App)}

    @cached_property
    def has_nonempty_concats(self) -> bool:
        """True if no Concat is left without operands, which ONNX does not have."""
        return all(
            app.inputs
            for side in (*self.left, *self.right)
            for app in operator_applications(side)
            if app.op == "Concat"
        )

    @property
    def unique_label(self) -> str:
        """The name with the choices, as in `fuse_reshapes_around_pointwise[f=Relu]`."""
        chosen = (f"{name}={way if isinstance(way, int) else way.op}" for name, way in self.choices)
        return f"{self.name}[{', '.join(chosen)}]"


@schemas.memoized_by_schema
def specialize_family(rule: Rule, chosen: FamilyChoices) -> RuleSpecialization:
    """Return a family's rule for these operators and numbers of tensors."""
    naming = _FamilySubstitution(rule, chosen)
    left, right, when = (tuple(map(naming.substitute, terms)) for terms in (rule.left, rule.right, rule.conditions))
    made = definitions_of((*left, *right))
    return RuleSpecialization(rule.name, left, right, when, rule.why, rule, chosen, definitions=made)


class _FamilySubstitution:
    """Puts operators and tensors in the places of the holes of a family."""

    def __init__(self, rule: Rule, chosen: FamilyChoices) -> None:
        self.concats = _pack_concats(rule)
        self.operators = {name: way for name, way in chosen if isinstance(way, OperatorChoice)}
        self.counts = {name: way for name, way in chosen if isinstance(way, int)}

    def expand(self, term: Term) -> tuple[Term, ...]:
        """Return the term as a list; a term for any number of tensors as so many terms."""
        if not is_pack(term):
            return (self.substitute(term),)
        (pack,) = pack_holes(term)
        return tuple(self.substitute(term, place) for place in range(self.counts[pack.name]))

    def substitute(self, term: Term, place: int = 0) -> Term:
        """Return the term; of a hole for tensors the one in a place, which for a number that is asked of it is the
        first."""
        if isinstance(term, Var):
            return tensor(f"{term.name}_{place}") if term.kind == "tensors" else term
        if not isinstance(term, App):
            return term
        if is_extent_query(term):
            (pack,) = pack_holes(term)
            lengths = (fn.item(fn.shape(part), _concat_axis(self.concats[pack.name])) for part in self.expand(pack))
            return fn.sum(fn.concat(0, *lengths))
        attrs = tuple((name, self.substitute(value)) for name, value in term.attrs)
        if term.domain in schemas.CLASS_SCHEMAS:
            operands = tuple(None if arg is None else self.substitute(arg, place) for arg in term.args)
            return self.operators[term.op].apply(term.op, operands, attrs)
        args: list[Term | None] = []
        for arg in term.args:
            args += [arg] if arg is None else [self.substitute(arg)] if term.domain == SCALAR else self.expand(arg)
        return App(term.op, tuple(args), attrs, term.domain, term.output, term.outputs)


def _pack_concats(rule: Rule) -> Mapping[str, App]:
    """Return the Concat of the left side in which the tensors of a hole are joined, by the name of the hole."""
    concats = (app for side in rule.left for app in operator_applications(side) if app.op == "Concat")
    return {pack.name: app for app in concats for arg in app.operands if is_pack(arg) for pack in pack_holes(arg)}


def _concat_axis(concat: App) -> Term:
    """Return the axis along which a Concat joins."""
    return dict(concat.attrs)["axis"]


def is_extent_query(term: Term) -> bool:
    """Return whether a term asks for the joint length of any number of tensors."""
    return isinstance(term, App) and (term.op, term.domain) == ("extent", SCALAR)


@cache
def nonempty_packs(rule: Rule) -> frozenset[str]:
    """Return the holes for tensors that may not stand for none, as something is asked of each tensor."""
    parts = (part for condition in rule.conditions for part in walk_term(condition))
    facts = (
        part for part in parts if isinstance(part, App) and part.op in BINDING_QUERIES and not is_extent_query(part)
    )
    return frozenset(pack.name for fact in facts for pack in pack_holes(fact))


@dataclass(frozen=True)
class MergedPackRule(Rule):
    """A rule in which a tensor of any size stands for each hole for any number of tensors.

    It is proved in the place of the rule. A Concat is a function of its operands once they are joined: none of them
    make a tensor of size 0, and an operator on elements applies to the whole as to each part. So what holds for one
    tensor of any size holds for any number, if they are joined along one axis wherever they occur.
    """

    merged_packs: frozenset[str] = frozenset()
    """Names of these tensors."""
    definitions: tuple[Definition, ...] = field(default=(), kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check nothing: the rule was checked when it was written."""


def merge_packs(rule: Rule) -> Rule:
    """Return the rule with one tensor for any number of them; the rule itself if it has no such hole."""
    if not rule.pack_names or rule.definitions:
        return rule
    concats = _pack_concats(rule)
    left, right, when = (
        tuple(_merge_packs_in_term(term, concats) for term in terms)
        for terms in (rule.left, rule.right, rule.conditions)
    )
    return MergedPackRule(rule.name, left, right, when, rule.why, rule.pack_names)


def _merge_packs_in_term(term: Term, concats: Mapping[str, App]) -> Term:
    if isinstance(term, Var):
        return tensor(term.name) if term.kind == "tensors" else term
    if not isinstance(term, App):
        return term
    args = tuple(None if arg is None else _merge_packs_in_term(arg, concats) for arg in term.args)
    attrs = tuple((name, _merge_packs_in_term(value, concats)) for name, value in term.attrs)
    if is_extent_query(term):
        (pack,) = pack_holes(term)
        return fn.item(fn.shape(*args), _concat_axis(concats[pack.name]))
    return App(term.op, args, attrs, term.domain, term.output, term.outputs)


def root_operators(app: App) -> frozenset[str]:
    """Return the names of operators that a node may have for an application in a rule to match it."""
    return (
        frozenset(op for op, _ in operator_choices(app.domain))
        if app.domain in schemas.CLASS_SCHEMAS
        else frozenset((app.op,))
    )


def sample_specializations(rule: Rule, count: int = 4) -> tuple[Rule, ...]:
    """Return a few rules of a family, with different operators and numbers of tensors; for another rule, itself.

    The operators are ONNX's own: a verdict does not depend on operators declared in the process.
    """
    if not rule.is_family:
        return (rule,)
    ways: dict[str, Sequence[OperatorChoice | int]] = {
        name: [way for (_, domain), each in operator_choices(class_).items() if not domain for way in each]
        for name, class_ in rule.operator_holes.items()
    }
    for name in sorted(rule.pack_names):
        ways[name] = (2, 3, 1, 4) if name in nonempty_packs(rule) or len(rule.pack_names) == 1 else (1, 2, 0, 3)
    spread = [
        tuple(
            (name, ways[name][(len(ways[name]) * i // count + 7 * at) % len(ways[name])])
            for at, name in enumerate(ways)
        )
        for i in range(count)
    ]
    return tuple(specialize_family(rule, chosen) for chosen in spread)
