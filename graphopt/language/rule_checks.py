"""Checks of rules and definitions as they are written; problems are told in the words of who wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import copysign, isnan
from typing import Any, TypeAlias

from onnx import AttributeProto

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
    pack_holes,
    render_term,
    walk_term,
)

Terms: TypeAlias = tuple[Term, ...]

_RULE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ELEMENTWISE_FUNCTIONS = frozenset({"add", "sub", "mul", "floordiv", "mod", "neg", "maximum", "minimum", "choose"})
"""Functions of numbers that take lists item by item."""


class TermParts:
    """The terms in a term, an object that occurs often once: what many terms share is checked once.

    Equal objects stay apart, for -0.0 equals 0.0, and 1 equals True. All lists are in the order of `walk_term`.
    """

    __slots__ = ("applications", "calls", "holes", "leaves", "operators")

    def __init__(self, term: Term, seen: set[int]) -> None:
        """Take the terms in a term that were not `seen`, by identity; these are more from then on."""
        self.leaves: list[Var | Lit] = []
        self.holes: list[Var] = []
        self.applications: list[App] = []
        self.calls: list[App] = []
        """Applications of scalar functions."""
        self.operators: list[App] = []
        waiting: list[Term | None] = [term]
        while waiting:
            part = waiting.pop()
            if part is None or id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, App):
                self.applications.append(part)
                (self.calls if part.domain == SCALAR else self.operators).append(part)
                waiting += [value for _, value in reversed(part.attrs)]
                waiting += reversed(part.args)
            elif isinstance(part, Var):
                self.leaves.append(part)
                self.holes.append(part)
            elif isinstance(part, Lit):
                self.leaves.append(part)

    @classmethod
    def of_each(cls, terms: Terms) -> tuple[TermParts, ...]:
        """Return the parts of each term that those before it do not have."""
        seen = set[int]()
        return tuple([cls(term, seen) for term in terms])


Parts: TypeAlias = Sequence[TermParts]


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
    left, made, asked = map(TermParts.of_each, (sides, right, conditions))
    parts = (*left, *made, *asked)
    yield from inconsistent_holes(parts)
    yield from _unbound_names(left, made, asked)
    yield from _computed_in_pattern(left)
    yield from _unused_defaults(left)
    yield from _invalid_operator_holes(left, made, parts)
    yield from _misplaced_packs(sides, right, parts)
    yield from _conflicting_attribute_holes(left, made)
    yield from invalid_applications(parts)
    yield from _misplaced_properties(parts, conditions)
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


def _unrepresentable_numbers(leaves: Iterable[Var | Lit]) -> Iterator[str]:
    """Yield numbers that no model holds, or that equality confuses: -0.0 equals 0.0, and NaN not even itself."""
    for leaf in leaves:
        said = leaf.value if isinstance(leaf, Lit) else leaf.default
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


def _misplaced_properties(parts: Parts, conditions: Terms) -> Iterator[str]:
    """Yield properties that do not stand as assumptions: a term cannot compute with them."""
    said = dict.fromkeys(app for condition in conditions for app in property_applications(condition))
    for app in chain.from_iterable(part.calls for part in parts):
        if app.op in PROPERTIES:
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


def _misplaced_index_lists(parts: Parts) -> Iterator[str]:
    """Yield lists of indices outside the places in which the prover supports them."""
    if not any(is_index_list(call) for part in parts for call in part.calls):
        return
    for app in chain.from_iterable(part.applications for part in parts):
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


def inconsistent_holes(parts: Parts) -> Iterator[str]:
    """Yield holes of one name that differ, and names with a dot, as `rest.axis` is one of "the other attributes"."""
    seen: dict[str, Var] = {}
    for hole in chain.from_iterable(part.holes for part in parts):
        if not hole.name.isidentifier():
            yield f"hole '{hole.name}' is to be named like a variable in Python, such as 'x' or 'first_axis'"
        if seen.setdefault(hole.name, hole) != hole:
            yield f"hole '{hole.name}' is declared in two ways"


def _unbound_names(sides: Parts, right: Parts, conditions: Parts) -> Iterator[str]:
    bound = {hole.name for side in sides for hole in side.holes}
    axes = {axis for side in sides for hole in side.holes for axis in hole.axes or ()}
    asked = {
        name.removeprefix("1") for side in sides for name in _queried_sizes(side)
    }  # by a condition, they may be, too
    for names, parts in ((axes, right), (axes | asked, conditions)):
        for part in parts:
            for hole in part.holes:
                if hole.name not in bound:
                    yield f"hole '{hole.name}' is not bound by the left side"
            for name in _queried_sizes(part):
                if name.removeprefix("1") not in names and not name.isdigit():
                    yield f"axis '{name}' is not bound by the left side"


def _computed_in_pattern(sides: Parts) -> Iterator[str]:
    """Yield numbers that the left side computes: they are compared before anything is bound."""
    for call in chain.from_iterable(side.calls for side in sides):
        if any(holes(call)):
            yield f"the left side cannot compute '{render_term(call)}' from what it is to bind: say it in `when`"


def _unused_defaults(sides: Parts) -> Iterator[str]:
    """Yield defaults in vain: one is for an optional input, with the element type of the output, that may be absent."""
    defaults = {hole.name for side in sides for hole in side.holes if hole.default is not None}
    for app in chain.from_iterable(side.operators for side in sides if defaults):
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


def _invalid_operator_holes(sides: Parts, right: Parts, parts: Parts) -> Iterator[str]:
    """Yield holes for operators that are something else too, are not bound by the left side, or take no tensor."""
    applied, applied_right = (
        [app for side in which for app in side.operators if app.domain in schemas.CLASS_SCHEMAS]
        for which in (sides, right)
    )
    classes: dict[str, str] = {}
    bound = {app.op for app in applied}
    named = {hole.name for part in parts for hole in part.holes}
    for app in (*applied, *applied_right):
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


def _misplaced_packs(sides: Terms, right: Terms, parts: Parts) -> Iterator[str]:
    """Yield holes for any number of tensors that are no operands of a Concat, by themselves or each in an operator."""
    packs = {hole.name for part in parts for hole in part.holes if hole.kind == "tensors"}
    for part in (*sides, *right) if packs else ():
        for app in operator_applications(part):
            for arg in app.operands:
                if is_pack(arg) and not ((app.op, app.domain) == ("Concat", "") or app.domain == schemas.ANY_POINTWISE):
                    yield f"'{render_term(arg)}' stands for any number of tensors, which only a Concat takes"
        if is_pack(part):
            yield f"'{render_term(part)}' stands for any number of tensors: a side is one"
    yield from _invalid_pack_queries(sides, parts)
    named = {hole.name for part in parts for hole in part.holes}
    for pack in sorted(packs):
        if mistaken := [name for name in sorted(named) if name.startswith(f"{pack}_")]:
            yield f"hole '{mistaken[0]}' could be taken for one of '*{pack}': call it otherwise"


def _invalid_pack_queries(sides: Terms, parts: Parts) -> Iterator[str]:
    """Yield numbers that differ between the tensors of a hole, and lengths of what is not joined."""
    queries = [call for part in parts for call in part.calls if call.op in ("shape", "extent")]
    joined = {
        pack
        for side in (sides if queries else ())
        for app in operator_applications(side)
        if app.op == "Concat"
        for pack in pack_holes(app)
    }
    for app in queries:
        packs = set(pack_holes(app))
        if app.op == "shape" and packs:
            yield f"'{render_term(app)}': they differ in length; there is fn.extent({app.args[0]})"
        if app.op == "extent" and not packs & joined:
            yield f"'{render_term(app)}' is of no tensors that the left side joins"


def _queried_sizes(part: TermParts) -> Iterator[str]:
    for app in part.calls:
        if app.op in ("size", "sizes"):
            for arg in app.args:
                if isinstance(arg, Lit) and isinstance(arg.value, str):
                    yield from arg.value.split()


def _conflicting_attribute_holes(sides: Parts, right: Parts) -> Iterator[str]:
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


def _attribute_hole_applications(parts: Iterable[TermParts]) -> Iterator[tuple[App, Var]]:
    for app in chain.from_iterable(part.applications for part in parts):
        if app.attributes_hole is not None:
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


def invalid_applications(parts: Parts) -> Iterator[str]:
    """Yield problems with the names, arguments, attributes and numbers in terms."""
    for part in parts:
        yield from _unrepresentable_numbers(part.leaves)
        for app in part.applications:
            yield from _invalid_scalar_calls(app) if app.domain == SCALAR else _schema_violations(app)
            if not 0 <= app.output < app.outputs <= MAX_OUTPUTS:
                counting = f"they count from 0, and are {MAX_OUTPUTS} at most"
                yield f"output {app.output} of {app.outputs} of {app.op}: {counting}"
            if app.attributes_hole is not None and len(app.args) - len(app.inputs) > 1:
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
    form = schemas.schema_form(app.op, app.domain)
    if form is None:
        yield _unknown_operator_message(app)
        return
    for name, value in app.attrs:
        if name in form.kinds:
            yield from _attribute_kind_mismatch(app, name, value, form.kinds[name])
        else:
            yield _unknown_attribute_message(app, name)
    least, most = form.inputs
    if not least <= len(app.inputs) <= most:
        yield f"{app.op} takes {least} to {most} inputs, not {len(app.inputs)}"
    least, most = form.outputs
    if not least <= app.outputs <= most:
        yield f"{app.op} has {least} to {most} outputs, not {app.outputs}"
    for position, arg in enumerate(app.inputs):
        if isinstance(arg, Lit) and isinstance(arg.value, str):
            yield f"input {position} of {app.op} is the text {arg}: tensors hold numbers"
        if arg is None and position in form.required_inputs:
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

_ATTRIBUTE_KINDS: Mapping[int, tuple[HoleKind, type | tuple[type, ...]]] = {
    AttributeProto.INT: ("integer", int),
    AttributeProto.FLOAT: ("real", (int, float)),
    AttributeProto.STRING: ("string", str),
    AttributeProto.INTS: ("integers", tuple),
    AttributeProto.FLOATS: ("integers", tuple),  # no hole is a list of reals
}
"""Values that an attribute of a type may have: a hole of this kind, or a literal of this type."""


def _attribute_kind_mismatch(app: App, name: str, value: Term, type_: int) -> Iterator[str]:
    """Yield a problem with the value of a known attribute; scalar functions may give any kind."""
    if type_ not in _ATTRIBUTE_KINDS:
        return
    kind, literal = _ATTRIBUTE_KINDS[type_]
    if isinstance(value, App):
        fits = value.domain == SCALAR
    else:
        fits = value.kind == kind if isinstance(value, Var) else isinstance(value.value, literal)
        if type_ == AttributeProto.INTS and isinstance(value, Lit):
            fits = fits and is_whole_number(value)
    if not fits:
        shown = f'{value.kind}("{value.name}")' if isinstance(value, Var) else render_term(value)
        yield f'{name} of {app.op} is an attribute: write {kind}("{name}"), not {shown}'


def _unknown_attribute_message(app: App, name: str) -> str:
    """Say that an operator has no such attribute, or in which version it lost it, and what replaced it."""
    schema = schemas.schema(app.op, app.domain)
    assert schema is not None, app.op
    inputs = [parameter.name for parameter in schema.inputs]
    since = schemas.attribute_removed_in(schema.name, name) if not schema.domain else None
    problem = f"{schema.name} has no attribute '{name}'{f' since opset {since}' if since else ''}"
    if name in inputs:
        return f"{problem}: it is an input, op.{schema.name}({', '.join(inputs[: inputs.index(name) + 1])})"
    return f"{problem}; it has {', '.join(sorted(schema.attributes)) or 'none'}"
