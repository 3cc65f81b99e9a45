"""A rule: two terms that compute the same, and when. Data that is matched, applied, proved, printed and shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any, cast

from graphopt.base.errors import RuleError
from graphopt.language.definition import Definition, declare, define, definitions_of
from graphopt.language.rule_checks import property_applications, rule_problems
from graphopt.language.serialization import (
    check_keys,
    checked_text,
    hole_from_json,
    hole_to_json,
    term_from_json,
    term_to_json,
)
from graphopt.language.terms import (
    App,
    Lit,
    Operators,
    Term,
    TermLike,
    Var,
    attributes,
    binary,
    const,
    fn,
    holes,
    integer,
    integers,
    is_content_query,
    microsoft,
    op,
    operator_hole_applications,
    pack_holes,
    pointwise,
    real,
    reduction,
    render_term,
    string,
    tensor,
    tensors,
    walk_term,
)

__all__ = [
    "App",
    "Lit",
    "Operators",
    "Rule",
    "Term",
    "TermLike",
    "Var",
    "attributes",
    "binary",
    "const",
    "define",
    "fn",
    "integer",
    "integers",
    "microsoft",
    "op",
    "pointwise",
    "real",
    "reduction",
    "string",
    "tensor",
    "tensors",
]


@dataclass(frozen=True)
class Rule:
    """`lhs` may be replaced by `rhs` wherever it matches and every condition in `when` and `pays` holds.

    What is true without a condition, which says only where the rewrite gains something, belongs to `pays`: a match has
    to fulfil it as well, but no proof rests on it. Both sides are one term, or tuples of equal length: a rule with
    several outputs. An operator of the right side whose inputs are all constant is evaluated when the rule is applied,
    not emitted. A rule that is `canonical` writes the form that runtimes recognize: among the rules that are always
    applied, it is applied to each value once, also where nothing gets smaller by it.

    Raises:
        RuleError: what is no term, a hole of the right side that the left does not bind, one name declared two ways, an
            unknown operator, attribute or function, an attribute of another kind, a condition that is neither true nor
            false, left equal to right, a name that is not snake_case, "the other attributes" of operators that differ
            in them.
    """

    name: str
    lhs: Term | tuple[Term, ...]
    rhs: Term | tuple[Term, ...]
    when: Term | tuple[Term, ...] = ()
    why: str = ""
    pays: Term | tuple[Term, ...] = field(default=(), kw_only=True)
    canonical: bool = field(default=False, kw_only=True)
    definitions: tuple[Definition, ...] = field(init=False, repr=False)
    """Definitions of its operators that ONNX does not define."""

    def __post_init__(self) -> None:
        for part in ("lhs", "rhs", "when", "pays"):
            if isinstance(terms := getattr(self, part), list):
                object.__setattr__(self, part, tuple(terms))
        for part in ("when", "pays"):
            only = _unwrap_single(_as_tuple(getattr(self, part)))  # one condition has one spelling
            object.__setattr__(self, part, only)
        for problem in rule_problems(self.name, _as_tuple(self.lhs), self.right, self.conditions):
            raise RuleError(f"rule '{self.name}': {problem}")
        try:
            object.__setattr__(self, "definitions", definitions_of((*self.left, *self.right)))
        except RuleError as error:
            raise RuleError(f"rule '{self.name}': {error}") from error

    def __hash__(self) -> int:
        """Return the hash of the name, which few rules share: rules are keys of much that is remembered."""
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make the rule when it is unpickled: another process must be told the meanings of its
        operators."""
        said = (self.name, self.lhs, self.rhs, self.when, self.why)
        return _rule_from_parts, (self.definitions[::-1], self.pays, self.canonical, *said)

    @cached_property
    def left(self) -> tuple[App, ...]:
        """The left sides, always as a tuple."""
        return cast("tuple[App, ...]", _as_tuple(self.lhs))  # checked when built

    @cached_property
    def right(self) -> tuple[Term, ...]:
        """The right sides, always as a tuple."""
        return _as_tuple(self.rhs)

    @cached_property
    def conditions(self) -> tuple[Term, ...]:
        """Conditions that a match has to fulfil."""
        return (*_as_tuple(self.when), *_as_tuple(self.pays))

    @cached_property
    def without_profitability(self) -> Rule:
        """The rule wherever it is true, whether it pays or not, as it is proved."""
        return self if self.pays == () else replace(self, pays=())

    @cached_property
    def holes(self) -> Mapping[str, Var]:
        """Every hole by name."""
        return {hole.name: hole for side in (*self.left, *self.right, *self.conditions) for hole in holes(side)}

    @cached_property
    def operator_holes(self) -> Mapping[str, str]:
        """Every hole for an operator by name, with its class."""
        return {app.op: app.domain for side in (*self.left, *self.right) for app in operator_hole_applications(side)}

    @cached_property
    def pack_names(self) -> frozenset[str]:
        """The names of the holes for any number of tensors."""
        return frozenset(hole.name for side in (*self.left, *self.right) for hole in pack_holes(side))

    @cached_property
    def property_conditions(self) -> tuple[App, ...]:
        """Properties of constants and tensors among the conditions."""
        return tuple(chain.from_iterable(map(property_applications, self.conditions)))

    @cached_property
    def arange_conditions(self) -> Mapping[str, App]:
        """Conditions that the elements of a hole count up, by its name."""
        return {str(app.args[0]): app for app in self.property_conditions if app.op == "is_arange"}

    @cached_property
    def content_queries(self) -> tuple[App, ...]:
        """Questions that it asks of the contents of constants: where they are zero, or equal."""
        parts = (part for side in (*self.left, *self.right, *self.conditions) for part in walk_term(side))
        return tuple(dict.fromkeys(part for part in parts if is_content_query(part)))

    @property
    def is_family(self) -> bool:
        """True if it is drawn, matched and built as its specializations (`rule_families.py`)."""
        return bool(self.operator_holes or self.pack_names)

    @property
    def generalized(self) -> Rule:
        """The rule itself; for a specialization, the rule with holes that it came from."""
        return self

    @property
    def unique_label(self) -> str:
        """Text that tells it from all other rules."""
        return self.name

    @cached_property
    def drops_inputs(self) -> bool:
        """True if a tensor of the left side does not occur on the right: the nodes that make it may die."""
        left, right = ({h.name for side in sides for h in holes(side)} for sides in (self.left, self.right))
        return any(self.holes[name].kind in ("tensor", "tensors") for name in left - right)

    @property
    def all_terms(self) -> tuple[Term, ...]:
        """All terms that it says: its sides and conditions."""
        return (*self.left, *self.right, *self.conditions)

    @cached_property
    def digest(self) -> str:
        """Digest of what the rule says, without its reason and when it is applied: the key of its proof."""
        said = {key: value for key, value in self.to_json().items() if key not in ("why", "canonical")}
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        said = _format_conditions("where", _as_tuple(self.when)) + _format_conditions(
            "paying where", _as_tuple(self.pays)
        )
        said += "  in the canonical form" * self.canonical
        classes = {name: domain.removeprefix("any ") for name, domain in self.operator_holes.items()}
        operators = "".join(f"  for any {class_} {name}" for name, class_ in classes.items())
        return f"{_format_sides(self.left)}  ->  {_format_sides(self.right)}{said}{operators}"

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain data; `Rule.from_json` is the inverse."""
        return {
            "name": self.name,
            "holes": {name: hole_to_json(hole) for name, hole in sorted(self.holes.items())},
            "lhs": [term_to_json(side) for side in self.left],
            "rhs": [term_to_json(side) for side in self.right],
            "when": [term_to_json(condition) for condition in _as_tuple(self.when)],
            "why": self.why,
            **({} if self.pays == () else {"pays": [term_to_json(condition) for condition in _as_tuple(self.pays)]}),
            **({"canonical": True} if self.canonical else {}),
            **({"definitions": [each.to_json() for each in self.definitions]} if self.definitions else {}),
        }

    @staticmethod
    def from_json(data: Any) -> Rule:
        """Return the rule that `to_json` wrote. Runs no code of the file's; raises RuleError for what is no rule."""
        if not isinstance(data, Mapping):
            raise RuleError(f"a rule is not in graphopt's JSON form: {str(data)[:40]} is no object")
        try:
            check_keys(data, "name", "holes", "lhs", "rhs", "when", "why", "pays", "canonical", "definitions")
            for said in reversed(data.get("definitions", ())):  # what others are made of comes last
                declare(Definition.from_json(said))
            name, why = checked_text(data["name"], "the name"), checked_text(data.get("why", ""), "why")
            known = {hole: hole_from_json(hole, said) for hole, said in data["holes"].items()}
            lhs, rhs, when = (tuple(term_from_json(t, known) for t in data[key]) for key in ("lhs", "rhs", "when"))
            pays = tuple(term_from_json(t, known) for t in data.get("pays", ()))
            canonical = data.get("canonical", False)
            if not isinstance(canonical, bool):
                raise TypeError(f"'canonical' is {canonical!r}, neither true nor false")
        except KeyError as error:
            raise RuleError(f"{_name_in_json(data)} is not in graphopt's JSON form: {error} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise RuleError(f"{_name_in_json(data)} is not in graphopt's JSON form: {error}") from error
        sides = (_unwrap_single(lhs), _unwrap_single(rhs))
        rule = Rule(name, *sides, _unwrap_single(when), why, pays=_unwrap_single(pays), canonical=canonical)
        for hole in known:
            if hole not in rule.holes:
                raise RuleError(f"{_name_in_json(data)} declares hole '{hole}' and does not use it")
        return rule


def _rule_from_parts(
    definitions: tuple[Definition, ...], pays: Term | tuple[Term, ...], canonical: bool, *said: Any
) -> Rule:
    """Return the rule, after declaring its operators, the innermost first."""
    for definition in definitions:
        declare(definition)
    return Rule(*said, pays=pays, canonical=canonical)


def _name_in_json(data: Mapping[str, Any]) -> str:
    """Return the name of a rule in a file, if it says one."""
    return f"rule '{data['name']}'" if isinstance(data.get("name"), str) else "a rule"


def _as_tuple(value: Term | tuple[Term, ...]) -> tuple[Term, ...]:
    return value if isinstance(value, tuple) else (value,)


def _unwrap_single(terms: tuple[Term, ...]) -> Term | tuple[Term, ...]:
    return terms[0] if len(terms) == 1 else terms


# -- printing ------------------------------------------------------------------------------------------------------


def _format_sides(sides: tuple[Term, ...]) -> str:
    return ", ".join(map(render_term, sides))


def _format_conditions(word: str, conditions: tuple[Term, ...]) -> str:
    return f"  {word} {' and '.join(map(render_term, conditions))}" if conditions else ""
