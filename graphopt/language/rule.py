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
from graphopt.language.serial import hole_from_json, hole_to_json, only, term_from_json, term_to_json, text
from graphopt.language.term import (
    SCALAR,
    App,
    Operators,
    Term,
    Var,
    attributes,
    binary,
    const,
    fn,
    holes,
    integer,
    integers,
    microsoft,
    op,
    operators_in,
    packs_in,
    pointwise,
    real,
    reduction,
    render,
    string,
    tells_contents,
    tensor,
    tensors,
    walk,
)
from graphopt.language.wellformed import asserted, problems

__all__ = [
    "Operators",
    "Rule",
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
    not emitted.

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
    definitions: tuple[Definition, ...] = field(init=False, repr=False)
    """What its operators compute that ONNX does not define."""

    def __post_init__(self) -> None:
        for part in ("lhs", "rhs", "when", "pays"):
            if isinstance(terms := getattr(self, part), list):
                object.__setattr__(self, part, tuple(terms))
        for part in ("when", "pays"):
            object.__setattr__(self, part, _one(_tuple(getattr(self, part))))  # one condition has one spelling
        for problem in problems(self.name, _tuple(self.lhs), self.right, self.conditions):
            raise RuleError(f"rule '{self.name}': {problem}")
        try:
            object.__setattr__(self, "definitions", definitions_of((*self.left, *self.right)))
        except RuleError as error:
            raise RuleError(f"rule '{self.name}': {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again where it is unpickled: another process has to be told what its operators are."""
        said = (self.name, self.lhs, self.rhs, self.when, self.why)
        return _made_again, (self.definitions[::-1], self.pays, *said)

    @cached_property
    def left(self) -> tuple[App, ...]:
        """The left sides, always as a tuple."""
        return cast("tuple[App, ...]", _tuple(self.lhs))  # checked when built

    @cached_property
    def right(self) -> tuple[Term, ...]:
        """The right sides, always as a tuple."""
        return _tuple(self.rhs)

    @cached_property
    def conditions(self) -> tuple[Term, ...]:
        """What a match has to fulfil."""
        return (*_tuple(self.when), *_tuple(self.pays))

    @cached_property
    def claim(self) -> Rule:
        """The rule wherever it is true, whether it pays or not: what is proved of it."""
        return self if self.pays == () else replace(self, pays=())

    @cached_property
    def holes(self) -> Mapping[str, Var]:
        """Every hole by name."""
        return {hole.name: hole for side in (*self.left, *self.right, *self.conditions) for hole in holes(side)}

    @cached_property
    def operators(self) -> Mapping[str, str]:
        """Every hole for an operator by name, with its class."""
        return {app.op: app.domain for side in (*self.left, *self.right) for app in operators_in(side)}

    @cached_property
    def packs(self) -> frozenset[str]:
        """The names of the holes for any number of tensors."""
        return frozenset(hole.name for side in (*self.left, *self.right) for hole in packs_in(side))

    @cached_property
    def asserted(self) -> tuple[App, ...]:
        """The properties of constants and tensors that the conditions say."""
        return tuple(chain.from_iterable(map(asserted, self.conditions)))

    @cached_property
    def counting(self) -> Mapping[str, App]:
        """What the conditions say of the holes whose elements count, by name."""
        return {str(app.args[0]): app for app in self.asserted if app.op == "is_arange"}

    @cached_property
    def contents(self) -> tuple[App, ...]:
        """What it asks of the contents of constants: where they are zero, or equal."""
        parts = (part for side in (*self.left, *self.right, *self.conditions) for part in walk(side))
        return tuple(dict.fromkeys(part for part in parts if tells_contents(part)))

    @property
    def is_family(self) -> bool:
        """Whether it is drawn, matched and built as its particulars (`families.py`)."""
        return bool(self.operators or self.packs)

    @property
    def family(self) -> Rule:
        """The rule itself; of one whose operators are named in the place of holes, that with the holes."""
        return self

    @property
    def label(self) -> str:
        """What tells it from all other rules."""
        return self.name

    @cached_property
    def forgets(self) -> bool:
        """True where a tensor of the left side does not occur on the right: what made it may die with the rewrite."""
        left, right = ({h.name for side in sides for h in holes(side)} for sides in (self.left, self.right))
        return any(self.holes[name].kind in ("tensor", "tensors") for name in left - right)

    @property
    def said(self) -> tuple[Term, ...]:
        """All terms that it says: its sides and conditions."""
        return (*self.left, *self.right, *self.conditions)

    @cached_property
    def digest(self) -> str:
        """Identifies what the rule says (not why): the key of its proof."""
        said = {key: value for key, value in self.to_json().items() if key != "why"}
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        said = _where("where", _tuple(self.when)) + _where("paying where", _tuple(self.pays))
        return f"{_algebra(self.left)}  ->  {_algebra(self.right)}{said}{_for_any(self.operators)}"

    def to_json(self) -> dict[str, Any]:
        """Return the rule as plain data; `Rule.from_json` is the inverse."""
        return {
            "name": self.name,
            "holes": {name: hole_to_json(hole) for name, hole in sorted(self.holes.items())},
            "lhs": [term_to_json(side) for side in self.left],
            "rhs": [term_to_json(side) for side in self.right],
            "when": [term_to_json(condition) for condition in _tuple(self.when)],
            "why": self.why,
            **({} if self.pays == () else {"pays": [term_to_json(condition) for condition in _tuple(self.pays)]}),
            **({"definitions": [each.to_json() for each in self.definitions]} if self.definitions else {}),
        }

    @staticmethod
    def from_json(data: Any) -> Rule:
        """Return the rule that `to_json` wrote. Runs no code of the file's; raises RuleError for what is no rule."""
        if not isinstance(data, Mapping):
            raise RuleError(f"a rule is not in graphopt's JSON form: {str(data)[:40]} is no object")
        try:
            only(data, "name", "holes", "lhs", "rhs", "when", "why", "pays", "definitions")
            for said in reversed(data.get("definitions", ())):  # what others are made of comes last
                declare(Definition.from_json(said))
            name, why = text(data["name"], "the name"), text(data.get("why", ""), "why")
            known = {hole: hole_from_json(hole, said) for hole, said in data["holes"].items()}
            lhs, rhs, when = (tuple(term_from_json(t, known) for t in data[key]) for key in ("lhs", "rhs", "when"))
            pays = tuple(term_from_json(t, known) for t in data.get("pays", ()))
        except KeyError as error:
            raise RuleError(f"{_called(data)} is not in graphopt's JSON form: {error} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise RuleError(f"{_called(data)} is not in graphopt's JSON form: {error}") from error
        rule = Rule(name, _one(lhs), _one(rhs), _one(when), why, pays=_one(pays))
        for hole in known:
            if hole not in rule.holes:
                raise RuleError(f"{_called(data)} declares hole '{hole}' and does not use it")
        return rule


def _made_again(definitions: tuple[Definition, ...], pays: Term | tuple[Term, ...], *said: Any) -> Rule:
    """Return the rule, once what its operators compute is known, that of what others are made of first."""
    for definition in definitions:
        declare(definition)
    return Rule(*said, pays=pays)


def _called(data: Mapping[str, Any]) -> str:
    """Return what a rule in a file is called, if it says so."""
    return f"rule '{data['name']}'" if isinstance(data.get("name"), str) else "a rule"


def _tuple(value: Term | tuple[Term, ...]) -> tuple[Term, ...]:
    return value if isinstance(value, tuple) else (value,)


def _one(terms: tuple[Term, ...]) -> Term | tuple[Term, ...]:
    return terms[0] if len(terms) == 1 else terms


# -- printing ------------------------------------------------------------------------------------------------------


def _algebra(sides: tuple[Term, ...]) -> str:
    return ", ".join(map(render, sides))


def _where(word: str, conditions: tuple[Term, ...]) -> str:
    return f"  {word} {' and '.join(map(render, conditions))}" if conditions else ""


def _for_any(operators: Mapping[str, str]) -> str:
    classes = {name: domain.removeprefix("any ") for name, domain in operators.items()}
    return "".join(f"  for any {class_} {name}" for name, class_ in classes.items())


def depth(rule: Rule) -> int:
    """How many operators lie between a root of the left side and its farthest leaf."""
    return max(_depth(side) for side in rule.left)


def _depth(term: Term) -> int:
    if not isinstance(term, App) or term.domain == SCALAR:
        return 0
    return 1 + max((_depth(arg) for arg in term.operands), default=0)
