"""Checks of rules and definitions as they are written; problems are told in the words of who wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import copysign, isnan
from typing import Any, TypeAlias

from onnx.defs import OpSchema

from graphopt.base.errors import did_you_mean
from graphopt.ir import schemas
from graphopt.language.scalar_functions import (
    BINDING_QUERIES,
    LIST_FUNCTIONS,
    PREDICATES,
    PROPERTIES,
    SCALAR_FUNCTIONS,
    TENSOR_PROPERTIES,
)
from graphopt.language.terms import (
    SCALAR,
    App,
    HoleKind,
    Lit,
    Term,
    Var,
    holes,
    is_content_query,
    is_index_list,
    is_pack,
    is_scalar,
    is_whole_number,
    operator_applications,
    operator_hole_applications,
    pack_holes,
    render_term,
    walk_term,
)

Terms: TypeAlias = tuple[Term, ...]

_RULE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ELEMENTWISE_FUNCTIONS = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "maximum", "minimum", "choose"})
"""Functions of numbers that take lists item by item."""


def rule_problems(name: str, sides: Terms, right: Terms, conditions: Terms) -> Iterator[str]:
    """Yield the problems of a rule, in the order in which they should be mended."""
    if not _RULE_NAME.fullmatch(name):
        yield f"the name must be snake_case, like 'fuse_bn_into_conv', not '{name}'"
    yield from non_terms((*sides, *right), "side")
    yield from non_terms(conditions, "condition")
    if len(sides) != len(right):
        yield f"{len(sides)} left sides and {len(right)} right sides; there must be as many"
    if not sides or not all(isinstance(side, App) and side.domain != SCALAR for side in sides):
        yield "a left side must be an operator: a bare hole would match everything"
    for side in right:
        if is_scalar(side):
            yield f"the right side '{render_term(side)}' is a number, and the left side a tensor"
    if sides == right:
        yield "left and right are the same"
    parts = (*sides, *right, *conditions)
    yield from inconsistent_holes(parts)
    yield from _unbound_names(sides, right, conditions)
    yield from _computed_in_pattern(sides)
    yield from _unused_defaults(sides)
    yield from _invalid_operator_holes(sides, right, conditions)
    yield from _misplaced_packs(sides, right, conditions)
    yield from _conflicting_attribute_holes(sides, right)
    for part in parts:
        yield from invalid_applications(part)
    yield from _misplaced_properties(sides, right, conditions)
    yield from _misplaced_index_lists(parts)
    yield from non_conditions(conditions)


def non_terms(parts: Iterable[object], what: str) -> Iterator[str]:
    """Yield parts that are no terms, in words."""
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


def non_conditions(conditions: tuple[Term, ...]) -> Iterator[str]:
    """Yield conditions that are numbers or tensors."""
    for condition in conditions:
        if not (
            isinstance(condition, App) and condition.domain == SCALAR and condition.op in {*PREDICATES, *PROPERTIES}
        ):
            what = "number" if is_scalar(condition) else "tensor"
            yield (
                f"the condition '{render_term(condition)}' is a {what}, neither true nor false; there are comparisons,"
                f' as in fn.size("C") > 4, and {", ".join(f"fn.{name}" for name in (*PREDICATES, *PROPERTIES))}'
            )


def _unrepresentable_numbers(part: Term) -> Iterator[str]:
    """Yield numbers that no model holds, or that equality confuses: -0.0 equals 0.0, and NaN not even itself."""
    for sub in walk_term(part):
        said = sub.value if isinstance(sub, Lit) else sub.default if isinstance(sub, Var) else None
        for number in said if isinstance(said, tuple) else (said,):
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                yield f"{number} has no place in the 64 bits of a model's whole numbers"
            if isinstance(number, float) and (isnan(number) or (number == 0 and copysign(1, number) < 0)):
                yield f"{number} cannot be said in a rule"


def property_applications(condition: Term) -> Iterator[App]:
    """Yield the properties of constants that a condition says, by itself or among others under `all_of`."""
    if isinstance(condition, App) and condition.op in PROPERTIES:
        yield condition
    elif isinstance(condition, App) and condition.op == "all_of":
        for part in condition.operands:
            yield from property_applications(part)


def _misplaced_properties(
    sides: tuple[Term, ...], right: tuple[Term, ...], conditions: tuple[Term, ...]
) -> Iterator[str]:
    """Yield properties that do not stand as assumptions: a term cannot compute with them."""
    said = dict.fromkeys(app for condition in conditions for app in property_applications(condition))
    for app in (sub for part in (*sides, *right, *conditions) for sub in walk_term(part)):
        if isinstance(app, App) and app.domain == SCALAR and app.op in PROPERTIES:
            if app not in said:
                yield f"'{render_term(app)}' can only be a condition in `when`, alone or under `all_of`"
            kinds = ("const", "tensor") if app.op in TENSOR_PROPERTIES else ("const",)
            if not (
                0 < len(app.args) <= len(PROPERTIES[app.op].parameters)
                and isinstance(app.args[0], Var)
                and app.args[0].kind in kinds
            ):
                yield f"'{render_term(app)}' is of no constant of the rule"
    yield from _invalid_arange_conditions([app for app in said if app.op == "is_arange"])


def _misplaced_index_lists(parts: Iterable[Term]) -> Iterator[str]:
    """Yield lists of indices outside the places in which the prover supports them."""
    for app in (sub for part in parts for sub in walk_term(part) if isinstance(sub, App)):
        if (app.op, app.domain) == ("length", SCALAR):
            continue
        elsewhere = [*app.inputs[:1], *app.inputs[2:]] if (app.op, app.domain) == ("Gather", "") else app.inputs
        for arg in (*elsewhere, *dict(app.attrs).values()):
            if arg is not None and is_index_list(arg):
                yield f"'{render_term(arg)}' can only be the indices of a Gather, or what fn.length counts"


def _invalid_arange_conditions(counts: Iterable[App]) -> Iterator[str]:
    """Yield tensors that are to count up to no sizes, or in two ways."""
    seen: dict[Term | None, App] = {}
    for app in counts:
        if not all(_is_list(sizes) and _has_no_fraction(sizes) for sizes in app.operands[1:]):
            example = 'fn.is_arange(i, fn.sizes("M N"))'
            yield f"'{render_term(app)}': its sizes are a list of whole numbers, as in {example}"
        if (other := seen.setdefault(app.args[0], app)) != app:
            yield f"'{app.args[0]}' counts in two ways: '{render_term(other)}' and '{render_term(app)}'"


def _is_list(number: Term) -> bool:
    """Return whether a scalar term is plainly a list; a number beside one is broadcast."""
    match number:
        case Lit(value=value):
            return isinstance(value, tuple)
        case Var(kind=kind):
            return kind == "integers"
        case App(op=name):
            return name in {"sizes", "shape", *LIST_FUNCTIONS} or (
                name in _ELEMENTWISE_FUNCTIONS and any(map(_is_list, number.operands))
            )


def _has_no_fraction(number: Term) -> bool:
    axes = {
        arg for app in walk_term(number) if isinstance(app, App) and app.op in BINDING_QUERIES for arg in app.operands
    }
    return all(
        part.op not in ("truediv", "sqrt") if isinstance(part, App) else part in axes or is_whole_number(part)
        for part in walk_term(number)
    )


def inconsistent_holes(parts: Iterable[Term]) -> Iterator[str]:
    """Yield holes of one name that differ, and names with a dot, as `rest.axis` is one of "the other attributes"."""
    seen: dict[str, Var] = {}
    for hole in (hole for part in parts for hole in holes(part)):
        if not hole.name.isidentifier():
            yield f"hole '{hole.name}' is to be named like a variable in Python, such as 'x' or 'first_axis'"
        if seen.setdefault(hole.name, hole) != hole:
            yield f"hole '{hole.name}' is declared in two ways"


def _unbound_names(sides: tuple[Term, ...], right: tuple[Term, ...], conditions: tuple[Term, ...]) -> Iterator[str]:
    bound = {hole.name for side in sides for hole in holes(side)}
    axes = {axis for side in sides for hole in holes(side) for axis in hole.axes or ()}
    asked = {
        name.removeprefix("1") for side in sides for name in _queried_sizes(side)
    }  # by a condition, they may be, too
    for names, parts in ((axes, right), (axes | asked, conditions)):
        for part in parts:
            for hole in holes(part):
                if hole.name not in bound:
                    yield f"hole '{hole.name}' is not bound by the left side"
            for name in _queried_sizes(part):
                if name.removeprefix("1") not in names and not name.isdigit():
                    yield f"axis '{name}' is not bound by the left side"


def _computed_in_pattern(sides: tuple[Term, ...]) -> Iterator[str]:
    """Yield numbers that the left side computes: they are compared before anything is bound."""
    for part in (part for side in sides for part in walk_term(side)):
        if isinstance(part, App) and part.domain == SCALAR and any(holes(part)):
            yield f"the left side cannot compute '{render_term(part)}' from what it is to bind: say it in `when`"


def _unused_defaults(sides: tuple[Term, ...]) -> Iterator[str]:
    """Yield defaults in vain: one is for an optional input, with the element type of the output, that may be absent."""
    defaults = {hole.name for side in sides for hole in holes(side) if hole.default is not None}
    for app in (app for side in sides for app in operator_applications(side)):
        schema = schemas.schema(app.op, app.domain)
        for position, arg in enumerate(app.inputs if schema else ()):
            if not isinstance(arg, Var) or not schema or not schemas.is_optional_input(app.op, app.domain, position):
                continue
            if schemas.is_defined_operator(app.op, app.domain):  # without the input it is what another definition says
                continue
            if schema.inputs[position].type_str == schema.outputs[0].type_str:
                defaults.discard(arg.name)
    for name in sorted(defaults):
        yield f"hole '{name}' has a default, but is no optional input of its operator's own element type"


def _invalid_operator_holes(sides: Terms, right: Terms, conditions: Terms) -> Iterator[str]:
    """Yield holes for operators that are something else too, are not bound by the left side, or take no tensor."""
    classes: dict[str, str] = {}
    bound = {app.op for side in sides for app in operator_hole_applications(side)}
    named = {hole.name for part in (*sides, *right, *conditions) for hole in holes(part)}
    for app in (app for side in (*sides, *right) for app in operator_hole_applications(side)):
        if not app.op.isidentifier():
            yield f"the hole '{app.op}' for an operator is to be named like a variable in Python, such as 'f'"
        if app.op in named or classes.setdefault(app.op, app.domain) != app.domain:
            yield f"hole '{app.op}' is declared in two ways"
        if mistaken := [name for name in sorted(named) if name.startswith(f"{app.op}_")]:
            yield f"hole '{mistaken[0]}' could be taken for one of what '{app.op}' has: call it otherwise"
        if app.op not in bound:
            yield f"hole '{app.op}' is not bound by the left side"
        tensors = app.operands[:1] if app.domain == schemas.ANY_REDUCTION else app.operands
        if any(map(is_scalar, tensors)) or None in app.inputs or app.attributes_hole is not None:
            text = render_term(app)
            yield f"'{text}': what '{app.op}' is applied to are tensors; other inputs and attributes are its own"


def _misplaced_packs(sides: Terms, right: Terms, conditions: Terms) -> Iterator[str]:
    """Yield holes for any number of tensors that are no operands of a Concat, by themselves or each in an operator."""
    named = {hole.name for part in (*sides, *right, *conditions) for hole in holes(part)}
    for part in (*sides, *right):
        for app in operator_applications(part):
            for arg in app.operands:
                if is_pack(arg) and not ((app.op, app.domain) == ("Concat", "") or app.domain == schemas.ANY_POINTWISE):
                    yield f"'{render_term(arg)}' stands for any number of tensors, which only a Concat takes"
        if is_pack(part):
            yield f"'{render_term(part)}' stands for any number of tensors: a side is one"
    yield from _invalid_pack_queries(sides, right, conditions)
    for pack in sorted({hole.name for part in (*sides, *right) for hole in pack_holes(part)}):
        if mistaken := [name for name in sorted(named) if name.startswith(f"{pack}_")]:
            yield f"hole '{mistaken[0]}' could be taken for one of '*{pack}': call it otherwise"


def _invalid_pack_queries(sides: Terms, right: Terms, conditions: Terms) -> Iterator[str]:
    """Yield numbers that differ between the tensors of a hole, and lengths of what is not joined."""
    joined = {
        pack for side in sides for app in operator_applications(side) if app.op == "Concat" for pack in pack_holes(app)
    }
    for app in (sub for part in (*sides, *right, *conditions) for sub in walk_term(part)):
        if not isinstance(app, App) or app.domain != SCALAR or app.op not in ("shape", "extent"):
            continue
        packs = set(pack_holes(app))
        if app.op == "shape" and packs:
            yield f"'{render_term(app)}': they differ in length; there is fn.extent({app.args[0]})"
        if app.op == "extent" and not packs & joined:
            yield f"'{render_term(app)}' is of no tensors that the left side joins"


def _queried_sizes(part: Term) -> Iterator[str]:
    for app in walk_term(part):
        if isinstance(app, App) and app.domain == SCALAR and app.op in ("size", "sizes"):
            for arg in app.args:
                if isinstance(arg, Lit) and isinstance(arg.value, str):
                    yield from arg.value.split()


def _conflicting_attribute_holes(sides: tuple[Term, ...], right: tuple[Term, ...]) -> Iterator[str]:
    """Yield bundles shared by operators with different defaults: an absent attribute must mean one thing."""
    named: dict[str, set[str]] = {}
    for app, bundle in _attribute_hole_applications(sides):
        named.setdefault(bundle.name, set()).update(dict(app.attrs))
    first: dict[str, App] = {}
    for app, bundle in _attribute_hole_applications((*sides, *right)):
        other = first.setdefault(bundle.name, app)
        if (app.op, app.domain) != (other.op, other.domain):
            known = named.get(bundle.name, set())
            differing = _bundle_defaults(app, known) ^ _bundle_defaults(other, known)
            if differing:
                names = ", ".join(sorted({name for name, *_ in differing}))
                yield f"'{bundle.name}' is given to {other.op} and {app.op}, which differ in {names}"


def _attribute_hole_applications(parts: Iterable[Term]) -> Iterator[tuple[App, Var]]:
    for part in parts:
        for app in walk_term(part):
            if isinstance(app, App) and app.attributes_hole is not None:
                yield app, app.attributes_hole


def _bundle_defaults(app: App, known: set[str]) -> set[tuple[Any, ...]]:
    """Return the attributes that a bundle may hold, with their values where absent."""
    schema = schemas.schema(app.op, app.domain)
    if schema is None:
        return {("attributes that are not known", app.op)}
    found = set[tuple[Any, ...]]()
    for name, attribute in schema.attributes.items():
        if name not in known and name not in dict(app.attrs):
            value = schemas.attribute_value(attribute.default_value)
            is_own = value is None and not attribute.required  # a default that the operator states in words
            found.add((name, attribute.type, attribute.required, app.op if is_own else value))
    return found


def invalid_applications(part: Term) -> Iterator[str]:
    """Yield problems with the names, arguments, attributes and numbers in a term."""
    yield from _unrepresentable_numbers(part)
    for app in (sub for sub in walk_term(part) if isinstance(sub, App)):
        if app.domain == SCALAR:
            yield from _invalid_scalar_calls(app)
        else:
            yield from _schema_violations(app)
        if not 0 <= app.output < app.outputs <= MAX_OUTPUTS:
            yield f"output {app.output} of {app.outputs} of {app.op}: they count from 0, and are {MAX_OUTPUTS} at most"
        if sum(isinstance(arg, Var) and arg.kind == "attributes" for arg in app.args) > 1:
            yield f"{app.op} has two holes for the other attributes"


def _invalid_scalar_calls(app: App) -> Iterator[str]:
    """Yield problems with the name or the arguments of a scalar function."""
    if is_content_query(app):
        yield from _invalid_content_queries(app)
    elif app.op in BINDING_QUERIES:
        example, about = BINDING_QUERIES[app.op]
        kind = Lit if example.startswith('"') else Var
        if len(app.args) != 1 or not isinstance(app.args[0], kind) or app.attrs:
            yield f"'{render_term(app)}': {app.op} is {about}, as in fn.{app.op}({example})"
    elif app.op in SCALAR_FUNCTIONS:
        taken = SCALAR_FUNCTIONS[app.op].parameters
        if app.attrs or ("*parts" not in taken and len(taken) != len(app.args)):
            yield f"'{render_term(app)}': it is called as fn.{app.op}({', '.join(taken)})"
    elif app.op not in PROPERTIES:
        known = sorted({*SCALAR_FUNCTIONS, *BINDING_QUERIES, *PROPERTIES})
        hint = did_you_mean(app.op, known) or f"; there are {', '.join(known)}"
        yield f"unknown scalar function '{app.op}'{hint}"


_CONTENT_QUERY_ARGUMENTS = {
    "nonzero_indices": (1, "the name of an axis", 'fn.nonzero_indices("C", w)'),
    "block_count": (2, "the names of two axes", 'fn.block_count("M C", w)'),
    "first_index": (1, "the name of an axis", 'fn.first_index("K", i)'),
    "unique_indices": (1, "the name of an axis", 'fn.unique_indices("C", w)'),
    "inverse_indices": (1, "the name of an axis", 'fn.inverse_indices("C", w)'),
}
"""Number of axes that a content query names first, and how each is called."""


def _invalid_content_queries(app: App) -> Iterator[str]:
    """Yield problems with queries of constants: they are along axes that each constant names once."""
    count, named, example = _CONTENT_QUERY_ARGUMENTS[app.op]
    axes, *constants = app.args or (None,)
    if constants and isinstance(constants[0], Lit) and app.op != "first_index":
        multiple = constants.pop(0)
        if not isinstance(multiple, Lit) or not isinstance(multiple.value, int) or multiple.value < 1:
            yield f"'{render_term(app)}': {multiple} is no number of which it can have a multiple"
    said = axes.value.split() if isinstance(axes, Lit) and isinstance(axes.value, str) else []
    if len({*said}) != count or len(said) != count or "_" in said or not all(map(str.isidentifier, said)):
        yield f"'{render_term(app)}': its first argument is {named}, as in {example}"
    elif not constants or app.attrs or not all(isinstance(of, Var) and of.kind == "const" for of in constants):
        yield f"'{render_term(app)}' is of no constants of the rule, as in {example}"
    elif app.op in ("block_count", "first_index") and len(constants) > 1:
        yield f"'{render_term(app)}' is of more than one constant, as is not {example}"
    else:
        for of, axis in product(constants, said):
            if not isinstance(of, Var) or (of.axes or ()).count(axis) != 1:
                yield f"'{render_term(app)}': '{of}' does not have one axis {axis}"


def _schema_violations(app: App) -> Iterator[str]:
    schema = schemas.schema(app.op, app.domain)
    if schema is None:
        yield _unknown_operator_message(app)
        return
    for name, value in app.attrs:
        if name in schema.attributes:
            yield from _attribute_kind_mismatch(app, name, value, schema.attributes[name])
        else:
            yield _unknown_attribute_message(schema, name)
    if not schema.min_input <= len(app.inputs) <= schema.max_input:
        yield f"{app.op} takes {schema.min_input} to {schema.max_input} inputs, not {len(app.inputs)}"
    if not schema.min_output <= app.outputs <= schema.max_output:
        yield f"{app.op} has {schema.min_output} to {schema.max_output} outputs, not {app.outputs}"
    for position, arg in enumerate(app.inputs):
        if isinstance(arg, Lit) and isinstance(arg.value, str):
            yield f"input {position} of {app.op} is the text {arg}: tensors hold numbers"
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if arg is None and formal.option == OpSchema.FormalParameterOption.Single:
            yield f"input {position} of {app.op} is not optional"


def _unknown_operator_message(app: App) -> str:
    """Say that there is no such operator, or how to define one that ONNX lacks."""
    hint = did_you_mean(app.op, schemas.operator_names(app.domain))
    if not app.domain:
        return f"unknown operator '{app.op}'{hint}"
    return (
        f"nothing says what '{app.domain}.{app.op}' computes{hint}; say it before the rule, as in"
        " define(Operators('my.domain').BiasGelu(x, b), op.Gelu(x + b))"
    )


MAX_OUTPUTS = 1000
"""Most outputs of an operator in a rule."""

_ATTRIBUTE_KINDS: Mapping[OpSchema.AttrType, tuple[HoleKind, type | tuple[type, ...]]] = {
    OpSchema.AttrType.INT: ("integer", int),
    OpSchema.AttrType.FLOAT: ("real", (int, float)),
    OpSchema.AttrType.STRING: ("string", str),
    OpSchema.AttrType.INTS: ("integers", tuple),
    OpSchema.AttrType.FLOATS: ("integers", tuple),  # no hole is a list of reals
}
"""Values that an attribute of a type may have: a hole of this kind, or a literal of this type."""


def _attribute_kind_mismatch(app: App, name: str, value: Term, attribute: OpSchema.Attribute) -> Iterator[str]:
    """Yield a problem with the value of a known attribute; scalar functions may give any kind."""
    if attribute.type not in _ATTRIBUTE_KINDS:
        return
    kind, literal = _ATTRIBUTE_KINDS[attribute.type]
    if isinstance(value, App):
        fits = value.domain == SCALAR
    else:
        fits = value.kind == kind if isinstance(value, Var) else isinstance(value.value, literal)
        if attribute.type is OpSchema.AttrType.INTS and isinstance(value, Lit):
            fits = fits and is_whole_number(value)
    if not fits:
        shown = f'{value.kind}("{value.name}")' if isinstance(value, Var) else render_term(value)
        yield f'{name} of {app.op} is an attribute: write {kind}("{name}"), not {shown}'


def _unknown_attribute_message(schema: OpSchema, name: str) -> str:
    """Say that an operator has no such attribute, or in which version it lost it, and what replaced it."""
    inputs = [parameter.name for parameter in schema.inputs]
    since = schemas.attribute_removed_in(schema.name, name) if not schema.domain else None
    problem = f"{schema.name} has no attribute '{name}'{f' since opset {since}' if since else ''}"
    if name in inputs:
        return f"{problem}: it is an input, op.{schema.name}({', '.join(inputs[: inputs.index(name) + 1])})"
    return f"{problem}; it has {', '.join(sorted(schema.attributes)) or 'none'}"
