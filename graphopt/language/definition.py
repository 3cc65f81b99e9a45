"""Operators that are declared by a term, which says what an operator computes that ONNX does not define.

A definition is read as a rule is: its inputs are holes, which may name axes, and its attributes are holes, too. An
operator may have several, for different inputs or attributes: at most one fits an application.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import networkx as nx
import numpy as np
from onnx import AttributeProto
from onnx.defs import OpSchema, has

from graphopt.base.dtype import COMPUTE_DTYPES
from graphopt.base.errors import RuleError
from graphopt.base.session import current_session
from graphopt.ir import schemas
from graphopt.language.binding import evaluate_scalar
from graphopt.language.rule_checks import (
    MAX_OUTPUTS,
    TermParts,
    inconsistent_holes,
    invalid_applications,
    non_conditions,
    non_terms,
)
from graphopt.language.scalar_functions import BINDING_QUERIES, PROPERTIES
from graphopt.language.serialization import check_keys, hole_from_json, hole_to_json, term_from_json, term_to_json
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    TermLike,
    Var,
    fn,
    holes,
    is_scalar,
    operator_applications,
    term,
    walk_term,
)
from graphopt.language.type_inference import NoInstance, TypeConstraints, schema_type_name


@dataclass(frozen=True)
class Definition:
    """The outputs of an operator, as terms over the holes that are its inputs and attributes.

    Raises:
        RuleError: the operator is one of ONNX, an input is no hole, a hole of the meaning is none of the operator's, …
    """

    head: App
    """The operator applied to holes; the first output if there are several."""
    body: tuple[Term, ...]
    """One term for each output."""
    defaults: tuple[tuple[str, Lit], ...] = ()
    """Values of absent attributes."""
    when: tuple[Term, ...] = ()
    """Further conditions under which the operator is defined."""

    def __post_init__(self) -> None:
        for problem in _definition_problems(self):
            raise RuleError(f"the definition of '{self.name}': {problem}")

    def __str__(self) -> str:
        return f"{self.head}  =  {', '.join(map(str, self.body))}"

    @property
    def name(self) -> str:
        """The operator, after its domain if it has one."""
        return f"{self.head.domain}.{self.head.op}".lstrip(".")

    @property
    def key(self) -> tuple[str, str]:
        return self.head.op, self.head.domain

    def instantiate(self, app: App) -> InstantiatedDefinition | None:
        """Return the meaning of an application; None if it has other inputs or attributes than these."""
        inputs = app.inputs
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        if [arg is None for arg in inputs] != [
            arg is None for arg in self.head.inputs
        ] or app.attributes_hole is not None:
            return None
        if app.outputs > self.head.outputs:
            return None
        bound = {hole.name: arg for hole, arg in zip(self.head.inputs, inputs, strict=True) if isinstance(hole, Var)}
        given = dict(self.defaults) | dict(app.attrs)
        if given.keys() != {name for name, _ in self.head.attrs}:
            return None
        for name, said in self.head.attrs:
            if isinstance(said, Var):
                bound[said.name] = given[name]
            elif not _attributes_equal(given[name], said):
                return None
        return InstantiatedDefinition(self, bound)

    @cached_property
    def canonical_form(self) -> tuple[object, ...]:
        """Key that is equal for definitions which differ in the names of holes and axes alone."""
        called = self._canonical_holes
        attrs = tuple((name, called[said.name] if isinstance(said, Var) else said) for name, said in self.head.attrs)
        absent = tuple(arg is None for arg in self.head.inputs)
        meaning = InstantiatedDefinition(self, called)
        return self.key, absent, attrs, self.defaults, meaning.outputs, frozenset(meaning.conditions)

    @cached_property
    def _canonical_holes(self) -> dict[str, Var]:
        """Holes with names by their places, by their own names."""
        inputs = ((f"input_{i}", hole) for i, hole in enumerate(self.head.inputs))
        return {
            hole.name: Var(place, hole.kind) for place, hole in (*inputs, *self.head.attrs) if isinstance(hole, Var)
        }

    def agrees_with(self, other: Definition) -> bool:
        """Return whether a definition with more outputs, or fewer, says the same of those that both have."""
        said, said_too = (InstantiatedDefinition(each, each._canonical_holes).outputs for each in (self, other))
        return len(said) != len(said_too) and all(one == two for one, two in zip(said, said_too, strict=False))

    @cached_property
    def axes(self) -> Mapping[str, Term]:
        """Sizes that the inputs name, as terms over them: N of `x` with `"*b N"` is the last of its shape."""
        found: dict[str, Term] = {}
        for token, size in self._axis_sizes():
            if not token.isdigit() and token != "_":
                found.setdefault(token, size)
        return found

    @cached_property
    def conditions(self) -> tuple[Term, ...]:
        """Conditions under which the operator is defined, and those in its meaning that are about its holes."""
        found: list[Term] = []
        for hole in self._inputs():
            if hole.axes is not None:
                packed = any("*" in token for token in hole.axes)
                count, rank = len(hole.axes) - packed, fn.rank(hole)
                found.append(fn.le(count, rank) if packed else fn.eq(rank, count))
        for token, size in self._axis_sizes():
            expected: Term | int = int(token) if token.isdigit() else self.axes.get(token, size)
            if expected != size:
                found.append(fn.eq(size, expected))
        inner = (instantiate_definition(app) for side in self.body for app in operator_applications(side))
        inherited = (part for meaning in inner if meaning is not None for part in meaning.conditions)
        return tuple(dict.fromkeys((*found, *self.when, *filter(is_about_holes, inherited))))

    def _inputs(self) -> Iterator[Var]:
        return (hole for hole in self.head.inputs if isinstance(hole, Var))

    def _axis_sizes(self) -> Iterator[tuple[str, App]]:
        """Yield each axis of the inputs with its size; a pack with all its sizes."""
        for hole in self._inputs():
            tokens, shape = hole.axes or (), fn.shape(hole)
            pack = next((i for i, token in enumerate(tokens) if "*" in token), len(tokens))
            for i, token in enumerate(tokens):
                if i == pack:
                    yield token, fn.slice(shape, i, fn.rank(hole) - (len(tokens) - 1 - i))
                else:
                    yield token, fn.item(shape, i if i < pack else i - len(tokens))

    def to_json(self) -> dict[str, Any]:
        """Return the definition as plain data; `Definition.from_json` is the inverse."""
        return {
            "define": term_to_json(self.head),
            "as": [term_to_json(side) for side in self.body],
            "holes": {hole.name: hole_to_json(hole) for hole in sorted(set(holes(self.head)), key=lambda h: h.name)},
            "defaults": {name: term_to_json(value) for name, value in self.defaults},
            "when": [term_to_json(condition) for condition in self.when],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Definition:
        """Return the definition that `to_json` wrote; raises KeyError, TypeError or ValueError for what is none."""
        check_keys(data, "define", "as", "holes", "defaults", "when")
        known = {name: hole_from_json(name, said) for name, said in data["holes"].items()}
        head, *meaning = (term_from_json(side, known) for side in (data["define"], *data["as"]))
        if unused := known.keys() - {hole.name for hole in holes(head)}:
            raise ValueError(f"hole '{min(unused)}' is none of the operator's")
        defaults = {name: term_from_json(value, known) for name, value in data.get("defaults", {}).items()}
        when = tuple(term_from_json(condition, known) for condition in data.get("when", ()))
        return Definition(head, tuple(meaning), tuple(sorted(defaults.items())), when)


@dataclass(frozen=True)
class InstantiatedDefinition:
    """One application of a defined operator, with the terms that its holes stand for."""

    definition: Definition
    binding: Mapping[str, Term | None]

    @property
    def outputs(self) -> tuple[Term, ...]:
        return tuple(self.substitute(side) for side in self.definition.body)

    @property
    def conditions(self) -> tuple[Term, ...]:
        """Conditions under which the operator is defined."""
        return tuple(self.substitute(condition) for condition in self.definition.conditions)

    def substitute(self, part: Term) -> Term:
        """Return a term of the definition with what its holes and axes stand for."""
        match part:
            case Var(name=name):
                found = self.binding[name]
                assert found is not None, name
                return found
            case App(op="size" | "sizes", args=(Lit(value=axes),)) if part.domain == SCALAR:
                sizes = [int(a) if a.isdigit() else self.substitute(self.definition.axes[a]) for a in str(axes).split()]
                return term(sizes[0]) if part.op == "size" else fn.concat(*sizes)
            case App():
                args = tuple(None if arg is None else self.substitute(arg) for arg in part.args)
                attrs = tuple((name, self.substitute(value)) for name, value in part.attrs)
                return App(part.op, args, attrs, part.domain, part.output, part.outputs)
        return part


def _attributes_equal(one: Term, other: Term) -> bool:
    """Return whether two attributes are equal as models keep them: real numbers in single precision."""
    match one, other:
        case Lit(value=float(first)), Lit(value=float(second)):
            return bool(np.float32(first) == np.float32(second))
    return one == other


def is_about_holes(condition: Term) -> bool:
    """Return whether a condition asks only for shapes and element types of holes, as those of a rule do."""
    asked = (part for part in walk_term(condition) if isinstance(part, App) and part.op in ("shape", "rank", "dtype"))
    return all(isinstance(part.args[0], Var) for part in asked)


# -- those of a session ------------------------------------------------------------------------------------------------


def define(
    head: App | tuple[App, ...],
    meaning: TermLike | tuple[TermLike, ...],
    when: Term | Sequence[Term] = (),
    **defaults: TermLike,
) -> Definition:
    """Say what an operator computes that ONNX does not define, and return the definition.

    `define(Operators("my.domain").ScaledAdd(x, y, scale=s), x + s * y, scale=1.0)`: the inputs are holes, `tensor(…)`,
    which may name axes; the attributes are holes for numbers or texts, or one value for which alone this is meant;
    keyword arguments are what absent attributes are. `when` says what else has to hold for it to be defined, in the
    words of a rule's conditions. For an operator with several outputs give tuples. From then on rules may match and
    write it in this session, and it is inferred and proved by its meaning.

    Raises:
        RuleError: it is no such definition, or another one is known of the same operator with the same inputs.
    """
    heads = head if isinstance(head, tuple) else (head,)
    first = next(iter(heads), None)
    if not isinstance(first, App) or heads != tuple(replace(first, output=i) for i in range(first.outputs)):
        raise RuleError(f"a definition is of an operator and all of its outputs, not of {', '.join(map(str, heads))}")
    sides = meaning if isinstance(meaning, tuple) else (meaning,)
    given: list[tuple[str, Lit]] = []
    for name, value in sorted((name, term(value)) for name, value in defaults.items()):
        if not isinstance(value, Lit):
            raise RuleError(f"the default of {name} is '{value}', no number, text or list of numbers")
        given.append((name, value))
    conditions = tuple(when) if isinstance(when, Sequence) else (when,)
    return declare(Definition(first, tuple(map(term, sides)), tuple(given), conditions))


def declare(definition: Definition) -> Definition:
    """Make a definition known in the session, and return it; the same one again, or in other names, changes nothing.

    Raises:
        RuleError: another one is known that fits some of the same applications, or that says other things of the
            operator's attributes; nothing is known of an operator in its meaning.
    """
    known: tuple[Definition, ...] = current_session().definitions.definitions_of(definition.key)
    for other in known:
        if other.canonical_form == definition.canonical_form:
            return other
    for other in known:
        for problem in _conflicts(definition, other):
            raise RuleError(f"'{definition}' {problem}: {other}")
    definitions_of(definition.body)
    both = (*known, definition)
    current_session().definitions.set(definition.key, both, _build_schema(both))
    return definition


def _conflicts(one: Definition, other: Definition) -> Iterator[str]:
    """Yield contradictions between two definitions of one operator."""
    for name, value in one.head.attrs:
        for beside in (said for own, said in other.head.attrs if own == name):
            if _attribute_type(value) is not _attribute_type(beside):
                yield f"takes another kind of '{name}' than what is known"
    for name, default in one.defaults:
        if (known := dict(other.defaults).get(name, default)) != default:
            yield f"has the default {default} of '{name}', which is {known} in what is known"
    absent, absent_too = ([arg is None for arg in each.head.inputs] for each in (one, other))
    if absent == absent_too and not one.agrees_with(other):
        shared = _common_attributes(one, other)
        if shared is not None and not (_excludes(one, shared) or _excludes(other, shared)):
            yield "is defined otherwise already (`when` may say for which attributes)"


def _common_attributes(one: Definition, other: Definition) -> Mapping[str, Lit] | None:
    """Return the attributes that are settled in the applications that both definitions fit; None where there are
    none."""
    settled: dict[str, Lit] = {}
    for definition, beside in ((one, other), (other, one)):
        for name, value in definition.head.attrs:
            absent = name not in dict(beside.head.attrs)
            for said in (value, dict(definition.defaults).get(name)) if absent else (value,):
                if said is None or (isinstance(said, Lit) and settled.setdefault(name, said) != said):
                    return None
    return settled


def _excludes(definition: Definition, settled: Mapping[str, Lit]) -> bool:
    """Return whether the conditions of a definition rule out applications with these attributes."""
    attrs = definition.head.attrs
    bound = {hole.name: settled[name].value for name, hole in attrs if isinstance(hole, Var) and name in settled}
    return any(
        evaluate_scalar(condition, bound, {}, None) is False
        for condition in definition.when
        if not any(isinstance(part, App) and part.op in BINDING_QUERIES for part in walk_term(condition))
        and bound.keys() >= {hole.name for hole in holes(condition)}
    )


def iter_definitions() -> Iterator[Definition]:
    """Yield all definitions that are known."""
    known = current_session().definitions
    return chain.from_iterable(map(known.definitions_of, known))


def instantiate_definition(app: App) -> InstantiatedDefinition | None:
    """Return what an application of a defined operator means; None where there is no definition of it.

    Of definitions that differ in how many outputs there are, the one that says no more than is asked.
    """
    found = (
        definition.instantiate(app) for definition in current_session().definitions.definitions_of((app.op, app.domain))
    )
    fitting = (meaning for meaning in found if meaning is not None)
    return min(fitting, key=lambda meaning: meaning.definition.head.outputs, default=None)


def definitions_of(sides: Iterable[Term]) -> tuple[Definition, ...]:
    """Return the definitions of the operators in some terms, and of those in their meanings, each once.

    Raises:
        RuleError: an operator is defined for other inputs or attributes than it has there.
    """
    found: dict[Definition, None] = {}
    waiting = [app for side in sides for app in operator_applications(side)]
    while waiting:
        app = waiting.pop(0)
        meaning = instantiate_definition(app) if schemas.is_defined_operator(app.op, app.domain) else None
        if meaning is not None and meaning.definition not in found:
            found[meaning.definition] = None
            waiting += [inner for side in meaning.definition.body for inner in operator_applications(side)]
        elif meaning is None and schemas.is_defined_operator(app.op, app.domain):
            known = "; ".join(map(str, current_session().definitions.definitions_of((app.op, app.domain))))
            raise RuleError(f"'{app}' has other inputs, outputs or attributes than what is defined: {known}")
    return tuple(found)


# -- checks ------------------------------------------------------------------------------------------------------------


def _definition_problems(definition: Definition) -> Iterator[str]:
    """Yield the problems of a definition, in the order in which they should be mended."""
    head, meaning = definition.head, definition.body
    yield from non_terms(definition.when, "condition")
    if head.domain in ("", "ai.onnx", SCALAR) or has(head.op, domain=head.domain) or head.output:
        yield "it is to be an operator of a domain of its own, Operators('my.domain').Name(x, …)"
    yield from _invalid_head_parts(head)
    yield from _unused_parts(definition)
    if len(meaning) != head.outputs or head.outputs > MAX_OUTPUTS:
        yield f"{head.outputs} outputs are {len(meaning)} terms"
    yield from inconsistent_holes(TermParts.of_each((head, *meaning, *definition.when)))
    yield from (f"'{side}' is a number, not a tensor" for side in meaning if is_scalar(side))
    yield from non_conditions(definition.when)
    yield from _unsatisfiable_parts(definition)
    for side in (*meaning, *definition.when):
        yield from invalid_applications(TermParts.of_each((side,)))
        for hole in holes(side):
            if hole not in set(holes(head)):
                yield f"hole '{hole.name}' is none of its inputs and attributes"
        for part in walk_term(side):
            yield from _unknown_axes(definition, part)


def _unused_parts(definition: Definition) -> Iterator[str]:
    """Yield inputs, attributes and defaults that change nothing."""
    for name, default in definition.defaults:
        if name not in dict(definition.head.attrs):
            yield f"{name} has a default and is none of its attributes"
            continue
        types = _attribute_type(default), _attribute_type(dict(definition.head.attrs)[name])
        if len(set(types)) > 1 and types != (OpSchema.AttrType.INT, OpSchema.AttrType.FLOAT):  # whole numbers are real
            yield f"{name} is an attribute of another kind than its default, {default}"
    for hole in set(holes(definition.head)).difference(*map(holes, definition.body)):
        also = "" if hole.kind == "tensor" else "; an attribute may be given the one value that is meant"
        yield f"'{hole.name}' is no part of what it computes{also}"


def _unsatisfiable_parts(definition: Definition) -> Iterator[str]:
    """Yield parts that are no function of the inputs, and conditions that no input fulfils."""
    for app in (app for side in definition.body for app in operator_applications(side)):
        if not app.domain and schemas.is_random(app.op):
            yield f"{app.op} is drawn anew each time: it is no function of the inputs"
    for part in (part for condition in definition.when for part in walk_term(condition)):
        if isinstance(part, App) and part.domain == SCALAR and part.op in PROPERTIES:
            yield f"'{part}' is of no constant: conditions ask for sizes, element types and attributes"


def _invalid_head_parts(head: App) -> Iterator[str]:
    """Yield inputs and attributes that no definition may have."""
    inputs = [arg for arg in head.inputs if arg is not None]
    if not all(isinstance(arg, Var) and arg.kind == "tensor" for arg in inputs) or len(set(inputs)) < len(inputs):
        yield "its inputs are holes, tensor('x'), of which each is another"
    if head.attributes_hole is not None or (head.inputs and head.inputs[-1] is None):
        yield "it names all of its attributes, and no absent input at the end"
    if any(token.startswith("1*") for arg in inputs if isinstance(arg, Var) for token in arg.axes or ()):
        yield "an input has as many axes of size 1 as a pack: name the pack, or nothing"
    for name, value in head.attrs:
        if not (isinstance(value, Lit) or (isinstance(value, Var) and value.kind in _ATTRIBUTE_TYPES)):
            yield f"{name} is a hole, such as real('{name}'), or one value"


def _unknown_axes(definition: Definition, part: Term) -> Iterator[str]:
    match part:
        case App(op="size" | "sizes", args=(Lit(value=axes),)) if part.domain == SCALAR:
            for axis in str(axes).split():
                if not axis.isdigit() and axis not in definition.axes:
                    yield f"axis '{axis}' is none of its inputs'"


# -- as a schema -------------------------------------------------------------------------------------------------------

_ATTRIBUTE_TYPES: Mapping[str, OpSchema.AttrType] = {
    "integer": OpSchema.AttrType.INT,
    "integers": OpSchema.AttrType.INTS,
    "real": OpSchema.AttrType.FLOAT,
    "string": OpSchema.AttrType.STRING,
}
_COMPUTE_DTYPES = frozenset(COMPUTE_DTYPES)
_OPTIONAL, _SINGLE = OpSchema.FormalParameterOption.Optional, OpSchema.FormalParameterOption.Single


def _build_schema(definitions: Sequence[Definition]) -> OpSchema:
    """Return what all definitions of an operator say together of its inputs, outputs and attributes.

    As of operators of ONNX, outputs behind the first may be left out.
    """
    head = definitions[0].head
    variables = _type_variables(definitions)
    most = max((definition.head.inputs for definition in definitions), key=len)
    inputs = []
    for position in range(len(most)):
        holes_ = [d.head.inputs[position] if position < len(d.head.inputs) else None for d in definitions]
        name = next((hole.name for hole in holes_ if isinstance(hole, Var)), f"absent_{position}")
        option = _OPTIONAL if None in holes_ else _SINGLE
        variable, _ = variables.get(("in", position), variables["out", 0])  # of an input that no definition has
        inputs.append(OpSchema.FormalParameter(name, variable, "", param_option=option))
    outputs = [
        OpSchema.FormalParameter(
            *(f"output_{position}", variables["out", position][0], ""), param_option=_OPTIONAL if position else _SINGLE
        )
        for position in range(max(definition.head.outputs for definition in definitions))
    ]
    constraints = [
        (name, sorted(map(schema_type_name, allowed)), "") for name, allowed in dict(variables.values()).items()
    ]
    return OpSchema(
        *(head.op, head.domain, 1, "\n".join(map(str, definitions))),
        inputs=inputs,
        outputs=outputs,
        type_constraints=constraints,
        attributes=list(_schema_attributes(definitions)),
    )


def _type_variables(definitions: Sequence[Definition]) -> Mapping[tuple[str, int], tuple[str, frozenset[Any]]]:
    """Return the type variable of each input and output, with the element types that it may be."""
    joined: nx.utils.UnionFind[tuple[str, int]] = nx.utils.UnionFind()
    allowed: dict[tuple[str, int], frozenset[Any]] = {}
    for definition in definitions:
        try:
            types = TypeConstraints(definition.body, {})
        except NoInstance as error:
            raise RuleError(f"the definition of '{definition.head.op}': {error}") from error
        given = enumerate(definition.head.inputs)
        places = {("in", i): types.slot(hole) for i, hole in given if hole is not None}
        places |= {("out", i): types.slot(side) for i, side in enumerate(definition.body)}
        roots: dict[Any, tuple[str, int]] = {}
        for formal, place in places.items():
            joined.union(formal, roots.setdefault(types.representative(place), formal))
            both = types.allowed(place) & _COMPUTE_DTYPES & allowed.get(formal, types.allowed(place))
            if not both:
                raise RuleError(f"the definition of '{definition.head.op}': no element types fit together")
            allowed[formal] = both
    names: dict[Any, str] = {}
    found = {}
    for formal in allowed:
        root = joined[formal]
        group = [allowed[other] for other in allowed if joined[other] == root]
        found[formal] = names.setdefault(root, f"T{len(names)}"), frozenset.intersection(*group)
    return found


def _schema_attributes(definitions: Sequence[Definition]) -> Iterator[OpSchema.Attribute]:
    defaults = {name: value for definition in definitions for name, value in definition.defaults}
    said = {name: value for definition in definitions for name, value in definition.head.attrs}
    for name, value in said.items():
        kind = _attribute_type(value)
        if name in defaults:
            yield OpSchema.Attribute(name, _attribute_default(name, kind, defaults[name].value), "")
        else:
            yield OpSchema.Attribute(name, kind, "", required=True)


def _attribute_type(value: Term) -> OpSchema.AttrType:
    """Return the type of an attribute that is a hole or one value in a definition."""
    match value:
        case Var(kind=kind):
            return _ATTRIBUTE_TYPES[kind]
        case Lit(value=str()):
            return OpSchema.AttrType.STRING
        case Lit(value=tuple(items)):
            return OpSchema.AttrType.INTS if all(isinstance(i, int) for i in items) else OpSchema.AttrType.FLOATS
        case Lit(value=int()):
            return OpSchema.AttrType.INT
    return OpSchema.AttrType.FLOAT


def _attribute_default(name: str, kind: OpSchema.AttrType, value: Any) -> AttributeProto:
    match kind:
        case OpSchema.AttrType.FLOAT:
            return AttributeProto(name=name, type=AttributeProto.FLOAT, f=float(value))
        case OpSchema.AttrType.INT:
            return AttributeProto(name=name, type=AttributeProto.INT, i=int(value))
        case OpSchema.AttrType.STRING:
            return AttributeProto(name=name, type=AttributeProto.STRING, s=str(value).encode())
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
