"""A rule: two terms that compute the same, and when. Data that is matched, applied, proved, printed and shipped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import copysign, isnan
from typing import Any, cast

from onnx.defs import OpSchema

from graphopt.base.errors import RuleError, did_you_mean
from graphopt.ir import ops
from graphopt.language.scalar import FACTS, FUNCTIONS, PROPERTIES, TRUTHS
from graphopt.language.term import (
    SCALAR,
    App,
    Kind,
    Lit,
    Term,
    Var,
    applications,
    attributes,
    const,
    fn,
    holes,
    integer,
    integers,
    is_scalar,
    is_whole,
    microsoft,
    op,
    real,
    render,
    string,
    tensor,
    term,
    walk,
)

__all__ = [
    "Rule",
    "attributes",
    "const",
    "fn",
    "integer",
    "integers",
    "microsoft",
    "op",
    "real",
    "string",
    "tensor",
]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Rule:
    """`lhs` may be replaced by `rhs` wherever it matches and every condition in `when` holds.

    Both sides are one term, or tuples of equal length: a rule with several outputs. An operator of the right side
    whose inputs are all constant is evaluated when the rule is applied, not emitted.

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

    def __post_init__(self) -> None:
        for part in ("lhs", "rhs", "when"):
            if isinstance(terms := getattr(self, part), list):
                object.__setattr__(self, part, tuple(terms))
        if isinstance(self.when, tuple) and len(self.when) == 1:  # one condition has one spelling
            object.__setattr__(self, "when", self.when[0])
        for problem in _problems(self):
            raise RuleError(f"rule '{self.name}': {problem}")

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
        return _tuple(self.when)

    @cached_property
    def holes(self) -> Mapping[str, Var]:
        """Every hole by name."""
        return {hole.name: hole for side in (*self.left, *self.right, *self.conditions) for hole in holes(side)}

    @cached_property
    def forgets(self) -> bool:
        """True where a tensor of the left side does not occur on the right: what made it may die with the rewrite."""
        left, right = ({h.name for side in sides for h in holes(side)} for sides in (self.left, self.right))
        return any(self.holes[name].kind == "tensor" for name in left - right)

    @cached_property
    def minds_types(self) -> bool:
        """Whether what it computes may depend on element types: it casts, or asks for them."""
        parts = (part for side in (*self.left, *self.right, *self.conditions) for part in walk(side))
        return any(isinstance(part, App) and part.op in ("Cast", "CastLike", "dtype") for part in parts)

    @cached_property
    def digest(self) -> str:
        """Identifies what the rule says (not why): the key of its proof."""
        said = {key: value for key, value in self.to_json().items() if key != "why"}
        return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{_algebra(self.left)}  ->  {_algebra(self.right)}" + _where(self.conditions)

    def to_json(self) -> dict[str, Any]:
        """The rule as plain data; `Rule.from_json` is the inverse."""
        return {
            "name": self.name,
            "holes": {name: _hole_to_json(hole) for name, hole in sorted(self.holes.items())},
            "lhs": [_to_json(side) for side in self.left],
            "rhs": [_to_json(side) for side in self.right],
            "when": [_to_json(condition) for condition in self.conditions],
            "why": self.why,
        }

    @staticmethod
    def from_json(data: Any) -> Rule:
        """The rule that `to_json` wrote. Runs no code of the file's; raises RuleError for what is no rule."""
        if not isinstance(data, Mapping):
            raise RuleError(f"a rule is not in graphopt's JSON form: {str(data)[:40]} is no object")
        try:
            _only(data, "name", "holes", "lhs", "rhs", "when", "why")
            name, why = _text(data["name"], "the name"), _text(data.get("why", ""), "why")
            known = {hole: _hole_from_json(hole, said) for hole, said in data["holes"].items()}
            lhs, rhs, when = (tuple(_from_json(t, known) for t in data[key]) for key in ("lhs", "rhs", "when"))
        except KeyError as error:
            raise RuleError(f"{_called(data)} is not in graphopt's JSON form: {error} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise RuleError(f"{_called(data)} is not in graphopt's JSON form: {error}") from error
        rule = Rule(name, _one(lhs), _one(rhs), _one(when), why)
        for hole in known:
            if hole not in rule.holes:
                raise RuleError(f"{_called(data)} declares hole '{hole}' and does not use it")
        return rule


def _called(data: Mapping[str, Any]) -> str:
    """What a rule in a file is called, if it says so."""
    return f"rule '{data['name']}'" if isinstance(data.get("name"), str) else "a rule"


def _tuple(value: Term | tuple[Term, ...]) -> tuple[Term, ...]:
    return value if isinstance(value, tuple) else (value,)


def _one(terms: tuple[Term, ...]) -> Term | tuple[Term, ...]:
    return terms[0] if len(terms) == 1 else terms


# -- printing ------------------------------------------------------------------------------------------------------


def _algebra(sides: tuple[Term, ...]) -> str:
    return ", ".join(map(render, sides))


def _where(conditions: tuple[Term, ...]) -> str:
    return "  where " + " and ".join(map(render, conditions)) if conditions else ""


# -- checks --------------------------------------------------------------------------------------------------------


def _problems(rule: Rule) -> Iterator[str]:
    """What is wrong with a rule, in the order in which it should be mended."""
    if not _NAME.fullmatch(rule.name):
        yield f"the name must be snake_case, like 'fuse_bn_into_conv', not '{rule.name}'"
    sides, right = _tuple(rule.lhs), rule.right
    yield from _foreign((*sides, *right), "side")
    yield from _foreign(rule.conditions, "condition")
    if len(sides) != len(right):
        yield f"{len(sides)} left sides and {len(right)} right sides; there must be as many"
    if not sides or not all(isinstance(side, App) and side.domain != SCALAR for side in sides):
        yield "a left side must be an operator: a bare hole would match everything"
    for side in right:
        if is_scalar(side):
            yield f"the right side '{render(side)}' is a number, and the left side a tensor"
    if sides == right:
        yield "left and right are the same"
    yield from _misnamed(rule.holes)
    yield from _ambiguous([*sides, *right, *rule.conditions])
    yield from _unbound(sides, right, rule.conditions)
    yield from _computed_on_the_left(sides)
    yield from _unused_defaults(sides)
    yield from _mixed_bundles(sides, right)
    for side in (*sides, *right, *rule.conditions):
        yield from _misspelt(side)
        yield from _unspeakable(side)
    yield from _misplaced(sides, right, rule.conditions)
    yield from _undecidable(rule.conditions)


def _foreign(parts: Iterable[object], what: str) -> Iterator[str]:
    """What is no term at all."""
    for part in parts:
        if isinstance(part, bool):
            yield (
                f"a {what} is {part}: `==` and `!=` say at once whether two terms are the same;"
                " what a model must fulfil is written fn.eq(a, b), fn.ne(a, b), a < b, fn.is_one(c), …"
            )
        elif callable(part):
            yield (
                f"a {what} is a Python function: a rule holds no code, so that it can be proved;"
                ' conditions are terms like fn.size("C") > 4 and fn.is_float(fn.dtype(x))'
            )
        elif not isinstance(part, Var | Lit | App):
            yield f"a {what} is {part!r}, which is no term: neither an operator, op.Name(…), nor a hole"


def _undecidable(conditions: tuple[Term, ...]) -> Iterator[str]:
    """Conditions that are numbers or tensors."""
    for condition in conditions:
        if not (isinstance(condition, App) and condition.domain == SCALAR and condition.op in {*TRUTHS, *PROPERTIES}):
            what = "number" if is_scalar(condition) else "tensor"
            yield (
                f"the condition '{render(condition)}' is a {what}, neither true nor false; there are comparisons, as in"
                f' fn.size("C") > 4, and {", ".join(f"fn.{name}" for name in (*TRUTHS, *PROPERTIES))}'
            )


def _unspeakable(part: Term) -> Iterator[str]:
    """Numbers that no model holds, or that equality does not tell apart: -0.0 equals 0.0, and a NaN not even itself."""
    for sub in walk(part):
        said = sub.value if isinstance(sub, Lit) else sub.default if isinstance(sub, Var) else None
        for number in said if isinstance(said, tuple) else (said,):
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                yield f"{number} has no place in the 64 bits of a model's whole numbers"
            if isinstance(number, float) and (isnan(number) or (number == 0 and copysign(1, number) < 0)):
                yield f"{number} cannot be said in a rule"


def asserted(condition: Term) -> Iterator[App]:
    """The properties of constants that a condition says: on top, or together with others under `both`."""
    if isinstance(condition, App) and condition.op in PROPERTIES:
        yield condition
    elif isinstance(condition, App) and condition.op == "both":
        for part in condition.operands:
            yield from asserted(part)


def _misplaced(sides: tuple[Term, ...], right: tuple[Term, ...], conditions: tuple[Term, ...]) -> Iterator[str]:
    """A property is assumed in a proof; whether it holds is no number to compute with."""
    said = {app for condition in conditions for app in asserted(condition)}
    for app in (sub for part in (*sides, *right, *conditions) for sub in walk(part)):
        if isinstance(app, App) and app.domain == SCALAR and app.op in PROPERTIES:
            if app not in said:
                yield f"'{render(app)}' can only be a condition in `when`, alone or under `both`"
            if not (len(app.args) == 1 and isinstance(app.args[0], Var) and app.args[0].kind == "const"):
                yield f"'{render(app)}' is of no constant of the rule"


def _misnamed(names: Iterable[str]) -> Iterator[str]:
    """A name with a dot could be taken for one of "the other attributes" in a hole, as in `rest.axis`."""
    for name in names:
        if not name.isidentifier():
            yield f"hole '{name}' is to be named like a variable in Python, such as 'x' or 'first_axis'"


def _ambiguous(parts: Iterable[Term]) -> Iterator[str]:
    seen: dict[str, Var] = {}
    for part in parts:
        for hole in holes(part):
            if seen.setdefault(hole.name, hole) != hole:
                yield f"hole '{hole.name}' is declared in two ways"


def _unbound(sides: tuple[Term, ...], right: tuple[Term, ...], conditions: tuple[Term, ...]) -> Iterator[str]:
    bound = {hole.name for side in sides for hole in holes(side)}
    axes = {axis for side in sides for hole in holes(side) for axis in hole.axes or ()}
    for part in (*right, *conditions):
        for hole in holes(part):
            if hole.name not in bound:
                yield f"hole '{hole.name}' is not bound by the left side"
        for name in _sizes_read(part):
            if name.removeprefix("1") not in axes and not name.isdigit():
                yield f"axis '{name}' is not bound by the left side"


def _computed_on_the_left(sides: tuple[Term, ...]) -> Iterator[str]:
    """A number that is computed is compared when nothing is bound yet."""
    for part in (part for side in sides for part in walk(side)):
        if isinstance(part, App) and part.domain == SCALAR and any(holes(part)):
            yield f"the left side cannot compute '{render(part)}' from what it is to bind: say it in `when`"


def _unused_defaults(sides: tuple[Term, ...]) -> Iterator[str]:
    """A default is for an optional input, of the element type of the operator's output, that may be absent."""
    defaults = {hole.name for side in sides for hole in holes(side) if hole.default is not None}
    for app in (app for side in sides for app in applications(side)):
        schema = ops.schema(app.op, app.domain, ops.OPSET if not app.domain else 1)
        for position, arg in enumerate(app.inputs if schema else ()):
            if not isinstance(arg, Var) or not schema or not ops.is_optional(app.op, app.domain, position):
                continue
            if schema.inputs[position].type_str == schema.outputs[0].type_str:
                defaults.discard(arg.name)
    for name in sorted(defaults):
        yield f"hole '{name}' has a default, but is no optional input of its operator's own element type"


def _sizes_read(part: Term) -> Iterator[str]:
    for app in walk(part):
        if isinstance(app, App) and app.domain == SCALAR and app.op in ("size", "sizes"):
            for arg in app.args:
                if isinstance(arg, Lit) and isinstance(arg.value, str):
                    yield from arg.value.split()


def _mixed_bundles(sides: tuple[Term, ...], right: tuple[Term, ...]) -> Iterator[str]:
    """An attribute that is left out means one thing only where the operators of a bundle have the same defaults."""
    named: dict[str, set[str]] = {}
    for app, bundle in _with_bundle(sides):
        named.setdefault(bundle.name, set()).update(dict(app.attrs))
    first: dict[str, App] = {}
    for app, bundle in _with_bundle((*sides, *right)):
        other = first.setdefault(bundle.name, app)
        if (app.op, app.domain) != (other.op, other.domain):
            known = named.get(bundle.name, set())
            differing = _meanings(app, known) ^ _meanings(other, known)
            if differing:
                names = ", ".join(sorted({name for name, *_ in differing}))
                yield f"'{bundle.name}' is given to {other.op} and {app.op}, which differ in {names}"


def _with_bundle(parts: Iterable[Term]) -> Iterator[tuple[App, Var]]:
    for part in parts:
        for app in walk(part):
            if isinstance(app, App) and app.bundle is not None:
                yield app, app.bundle


def _meanings(app: App, known: set[str]) -> set[tuple[Any, ...]]:
    """The attributes that a bundle may hold, with what they are where absent."""
    schema = ops.schema(app.op, app.domain, ops.OPSET if not app.domain else 1)
    if schema is None:
        return {("attributes that are not known", app.op)}
    return {
        (name, attribute.type, attribute.required, _default(attribute, app.op))
        for name, attribute in schema.attributes.items()
        if name not in known and name not in dict(app.attrs)
    }


def _default(attribute: OpSchema.Attribute, operator: str) -> Any:
    """The value of an attribute that is absent; one that the schema does not state is the operator's own."""
    value = ops.attribute_value(attribute.default_value)
    return operator if value is None and not attribute.required else value


def _misspelt(part: Term) -> Iterator[str]:
    for app in (sub for sub in walk(part) if isinstance(sub, App)):
        if app.domain == SCALAR:
            yield from _against_table(app)
        elif app.domain == "" or ops.newest(app.op, app.domain):
            yield from _against_schema(app)
        if not 0 <= app.output < app.outputs <= MOST_OUTPUTS:
            yield f"output {app.output} of {app.outputs} of {app.op}: they count from 0, and are {MOST_OUTPUTS} at most"
        if sum(isinstance(arg, Var) and arg.kind == "attributes" for arg in app.args) > 1:
            yield f"{app.op} has two holes for the other attributes"


def _against_table(app: App) -> Iterator[str]:
    """What is wrong with the name or the arguments of a scalar function."""
    if app.op in FACTS:
        example, about = FACTS[app.op]
        kind = Lit if example.startswith('"') else Var
        if len(app.args) != 1 or not isinstance(app.args[0], kind) or app.attrs:
            yield f"'{render(app)}': {app.op} is {about}, as in fn.{app.op}({example})"
    elif app.op in FUNCTIONS:
        taken = FUNCTIONS[app.op].parameters
        if app.attrs or ("*parts" not in taken and len(taken) != len(app.args)):
            yield f"'{render(app)}': it is called as fn.{app.op}({', '.join(taken)})"
    elif app.op not in PROPERTIES:
        known = sorted({*FUNCTIONS, *FACTS, *PROPERTIES})
        hint = did_you_mean(app.op, known) or f"; there are {', '.join(known)}"
        yield f"unknown scalar function '{app.op}'{hint}"


def _against_schema(app: App) -> Iterator[str]:
    schema = ops.schema(app.op)
    if schema is None:
        yield f"unknown operator '{app.op}'{did_you_mean(app.op, ops.names())}"
        return
    for name, value in app.attrs:
        if name in schema.attributes:
            yield from _of_other_kind(app, name, value, schema.attributes[name])
        else:
            yield _no_attribute(schema, name)
    if not schema.min_input <= len(app.inputs) <= schema.max_input:
        yield f"{app.op} takes {schema.min_input} to {schema.max_input} inputs, not {len(app.inputs)}"
    if not schema.min_output <= app.outputs <= schema.max_output:
        yield f"{app.op} has {schema.min_output} to {schema.max_output} outputs, not {app.outputs}"
    for position, arg in enumerate(app.inputs):
        if isinstance(arg, Lit) and isinstance(arg.value, str):
            yield f"input {position} of {app.op} is the text {arg}: tensors hold numbers"
        if arg is None and _option(schema, position) == OpSchema.FormalParameterOption.Single:
            yield f"input {position} of {app.op} is not optional"


MOST_OUTPUTS = 1000
"""How many outputs an operator of a rule may have."""

_ATTRIBUTE_KINDS: Mapping[OpSchema.AttrType, tuple[Kind, type | tuple[type, ...]]] = {
    OpSchema.AttrType.INT: ("integer", int),
    OpSchema.AttrType.FLOAT: ("real", (int, float)),
    OpSchema.AttrType.STRING: ("string", str),
    OpSchema.AttrType.INTS: ("integers", tuple),
    OpSchema.AttrType.FLOATS: ("integers", tuple),  # no hole is a list of reals
}
"""What an attribute of a type may be: a hole of this kind, or a literal of this type."""


def _of_other_kind(app: App, name: str, value: Term, attribute: OpSchema.Attribute) -> Iterator[str]:
    """What is wrong with the value of an attribute that the operator has; scalar functions give any kind."""
    if attribute.type not in _ATTRIBUTE_KINDS:
        return
    kind, literal = _ATTRIBUTE_KINDS[attribute.type]
    if isinstance(value, App):
        fits = value.domain == SCALAR
    else:
        fits = value.kind == kind if isinstance(value, Var) else isinstance(value.value, literal)
        if attribute.type is OpSchema.AttrType.INTS and isinstance(value, Lit):
            fits = fits and is_whole(value)
    if not fits:
        shown = f'{value.kind}("{value.name}")' if isinstance(value, Var) else render(value)
        yield f'{name} of {app.op} is an attribute: write {kind}("{name}"), not {shown}'


def _no_attribute(schema: OpSchema, name: str) -> str:
    """That an operator has no such attribute; of one that it had, when it was given up, and for what."""
    inputs = [parameter.name for parameter in schema.inputs]
    since = ops.without_attribute(schema.name, name)
    problem = f"{schema.name} has no attribute '{name}'{f' since opset {since}' if since else ''}"
    if name in inputs:
        return f"{problem}: it is an input, op.{schema.name}({', '.join(inputs[: inputs.index(name) + 1])})"
    return f"{problem}; it has {', '.join(sorted(schema.attributes)) or 'none'}"


def _option(schema: OpSchema, position: int) -> OpSchema.FormalParameterOption:
    return schema.inputs[min(position, len(schema.inputs) - 1)].option


# -- JSON ----------------------------------------------------------------------------------------------------------


def _hole_to_json(hole: Var) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": hole.kind}
    if hole.axes is not None:
        data["axes"] = " ".join(hole.axes)
    if hole.default is not None:
        data["default"] = hole.default
    return data


_MAKERS = {"integer": integer, "integers": integers, "real": real, "string": string, "attributes": attributes}


def _hole_from_json(name: str, data: Mapping[str, Any]) -> Var:
    """The hole that was declared.

    Raises:
        ValueError: it is of no kind, or says what holes of its kind do not have.
    """
    kind = data["kind"]
    if kind not in ("tensor", "const", *_MAKERS):
        raise ValueError(f"hole '{name}' is of kind {kind!r}; there are tensor, const, {', '.join(_MAKERS)}")
    _only(data, "kind", *(("axes",) if kind in ("tensor", "const") else ()), *(("default",) if kind == "const" else ()))
    axes, default = data.get("axes"), data.get("default")
    if not isinstance(axes, str | None):
        raise ValueError(f"the axes of hole '{name}' are {axes!r}, not a text like 'N C'")
    if isinstance(default, bool) or not isinstance(default, int | float | None):
        raise ValueError(f"the default of hole '{name}' is {default!r}, no number")
    if kind in _MAKERS:
        return _MAKERS[kind](name)
    return tensor(name, axes) if kind == "tensor" else const(name, axes, default=default)


def _only(data: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError for a key that is none of these: it may be misspelt, and mean something."""
    for key in data:
        if key not in keys:
            raise ValueError(f"'{key}' means nothing there; there are {', '.join(keys)}")


def _text(value: Any, what: str) -> str:
    """The text; raises ValueError for what is none that a file can hold."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r}, no text")
    value.encode()
    return value


def _to_json(term: Term | None) -> Any:
    match term:
        case None:
            return None
        case Var(name=name):
            return {"hole": name}
        case Lit(value=value):
            return list(value) if isinstance(value, tuple) else value
        case App():
            data: dict[str, Any] = {"op": term.op, "args": [_to_json(arg) for arg in term.args]}
            if term.attrs:
                data["attrs"] = {name: _to_json(value) for name, value in term.attrs}
            if term.domain:
                data["domain"] = term.domain
            if term.outputs > 1:
                data["output"] = [term.output, term.outputs]
            return data


def _from_json(data: Any, known: Mapping[str, Var], level: int = 0) -> Any:
    if level > DEEPEST:
        raise ValueError(f"a term in more than {DEEPEST} others")
    match data:
        case None:
            return None
        case {"hole": name}:
            _only(data, "hole")
            if name not in known:
                raise ValueError(f"hole '{name}' is not declared in 'holes'")
            return known[name]
        case {"op": name, "args": list(args)}:
            _only(data, "op", "args", "attrs", "domain", "output")
            attrs = ((_text(key, "a name"), value) for key, value in sorted(data.get("attrs", {}).items()))
            named = tuple((key, _from_json(_said(value, key), known, level + 1)) for key, value in attrs)
            terms = tuple(_from_json(arg, known, level + 1) for arg in args)
            output, outputs = data.get("output", (0, 1))
            if not type(output) is type(outputs) is int:
                raise ValueError(f"output {output!r} of {outputs!r}: two whole numbers")
            return App(
                _text(name, "an operator"), terms, named, _text(data.get("domain", ""), "a domain"), output, outputs
            )
        case str():
            return Lit(_text(data, "a text"))
        case bool() | int() | float():
            return Lit(data)
        case list():
            return term(tuple(data))
    raise ValueError(f"unexpected {data!r}")


def _said(value: Any, name: str) -> Any:
    """The value of an attribute; raises ValueError for none."""
    if value is None:
        raise ValueError(f"attribute {name} is null: leave it out")
    return value


DEEPEST = 64
"""How many terms may lie in each other in a file of rules."""


def depth(rule: Rule) -> int:
    """How many operators lie between a root of the left side and its farthest leaf."""
    return max(_depth(side) for side in rule.left)


def _depth(term: Term) -> int:
    if not isinstance(term, App) or term.domain == SCALAR:
        return 0
    return 1 + max((_depth(arg) for arg in term.operands), default=0)
