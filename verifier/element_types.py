"""Element types: which ones the left side of a rule may have, and whether the right side then has the same.

They are read off the schemas of the onnx package. Values are proved equal for one choice of types, types for all
choices.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.dtype import COMPUTE_DTYPES, DType
from graphopt.ir import schemas
from graphopt.language.proof import ProofModel
from graphopt.language.rule import Rule
from graphopt.language.scalar_evaluation import ScalarAlgebra
from graphopt.language.scalar_functions import UndecidedScalarError, can_represent
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    is_literal_only,
    is_scalar,
    is_whole_number,
    operator_applications,
    walk_term,
)
from graphopt.operators.operator import ResultDtypeSource
from graphopt.operators.operator_classes import depends_on_dtype, is_casting, lookup_operator, mentions_quantization
from graphopt.verifier.expanded_rule import ExpandedRule

MAX_CHOICES = 5_000

DTypesByHole: TypeAlias = Mapping[str, DType]
_NAMES = {f"tensor({np.dtype(d.numpy).name})": d for d in COMPUTE_DTYPES}
_NAMES |= {"tensor(float)": DType.FLOAT, "tensor(double)": DType.DOUBLE}


class DTypeError(Exception):
    """An operator does not take inputs of these element types."""


@schemas.memoized_by_schema
def _schema(app: App) -> OpSchema:
    schema = schemas.schema(app.op, app.domain, schemas.RULE_OPSET if not app.domain else 1)
    if schema is None:
        raise DTypeError(f"no schema of {app.op}")
    return schema


@schemas.memoized_by_schema
def _allowed(operator: str, domain: str, type_str: str) -> frozenset[DType]:
    schema = schemas.schema(operator, domain, schemas.RULE_OPSET if not domain else 1)
    assert schema is not None
    names = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == type_str), [type_str])
    return frozenset(_NAMES[name] for name in names if name in _NAMES)


def _type_variable(app: App, position: int) -> str:
    """Return the type variable of an input; of a variadic one whose types may differ, one for each position."""
    formal = _schema(app).inputs[min(position, len(_schema(app).inputs) - 1)]
    free = formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
    return f"{formal.type_str}#{position}" if free else str(formal.type_str)


def accepts_other_types(app: App, position: int, others: Iterable[int]) -> bool:
    """Return whether an input may be of several element types, whatever the types of some others are."""
    name = _type_variable(app, position)
    return name not in {_type_variable(app, other) for other in others} and len(_allowed(app.op, app.domain, name)) > 1


def infer_output_types(
    app: App, inputs: Iterable[DType | None], to: Any = None, made: DType | None = None
) -> tuple[DType, ...]:
    """Return the element types of the outputs, UNDEFINED where not known; raises DTypeError.

    None among the inputs is a number of the rule. On the left side (`made` is None) it fits everywhere; on the right
    it has the type that it is written in, for which `made` says the type of the output if that is known.
    """
    types = list(inputs)
    if made is not None:
        types = [
            d if arg is None or not is_scalar(arg) else hint
            for arg, d, hint in zip(app.inputs, types, infer_literal_types(app, types, made), strict=True)
        ]
    bound: dict[str, DType] = {}
    unknown = set()
    for position, dtype in enumerate(types):
        if dtype is None:
            continue
        name = _type_variable(app, position)
        if dtype is DType.UNDEFINED:
            unknown.add(name)
            continue
        if bound.setdefault(name, dtype) != dtype:
            raise DTypeError(f"{app.op} of {bound[name].name} and {dtype.name}")
        if dtype not in _allowed(app.op, app.domain, name.partition("#")[0]):
            raise DTypeError(f"{app.op} of {dtype.name}, which there is not")
    for position, arg in enumerate(app.inputs):
        if made is None and _is_list(arg) and (name := _type_variable(app, position)) not in unknown:
            bound.setdefault(name, DType.INT64)
    return tuple(_output(app, position, bound, to) for position in range(app.outputs))


@schemas.memoized_by_schema
def infer_left_output_types(app: App, inputs: tuple[DType | None, ...], to: DType | None) -> tuple[DType, ...]:
    """Do as `infer_output_types` for the left side; remembered, for each instance asks."""
    return infer_output_types(app, inputs, to)


def infer_literal_types(app: App, inputs: Sequence[DType | None], made: DType) -> list[DType]:
    """Return the element types in which the right side writes inputs that are numbers; raises DTypeError."""
    others = [None if arg is None or is_literal_only(arg) else own for arg, own in zip(app.inputs, inputs, strict=True)]
    found = []
    for position, arg in enumerate(app.inputs):
        own = DType.UNDEFINED
        if arg is not None and is_literal_only(arg):
            own = schemas.literal_dtype(app.op, app.domain, position, others, made, whole=is_whole_number(arg))
            if own is DType.UNDEFINED and DType.UNDEFINED not in others:
                raise DTypeError(f"{app.op} of {arg}, whose element type nothing says")
        found.append(own)
    return found


def has_explicit_type(app: App) -> bool:
    """Return whether the element type of the output is given by an attribute or class, not by the inputs."""
    return app.domain in schemas.CLASS_SCHEMAS or _result_type(app) is ResultDtypeSource.TARGET


def _result_type(app: App) -> ResultDtypeSource:
    return lookup_operator(app.op, app.domain).result_dtype_source


def _output(app: App, position: int, bound: Mapping[str, DType], to: Any) -> DType:
    if has_explicit_type(app):
        return DType(to)
    match _result_type(app):
        case ResultDtypeSource.LIKE:
            return bound["T2"]
        case ResultDtypeSource.DTYPE:
            return _of_eye(app, bound.get("T1", DType.UNDEFINED))
        case ResultDtypeSource.VALUE if "value" not in dict(app.attrs) and app.attributes_hole is None:
            return DType.FLOAT
        case ResultDtypeSource.QUANTIZED | ResultDtypeSource.DEQUANTIZED:
            return _of_quantized(app, bound)
    formal = _schema(app).outputs[min(position, len(_schema(app).outputs) - 1)]
    if formal.type_str in bound and not formal.type_str.startswith("tensor("):
        return bound[formal.type_str]
    allowed = _allowed(app.op, app.domain, formal.type_str)
    return next(iter(allowed)) if len(allowed) == 1 else DType.UNDEFINED


def _is_list(arg: Term | None) -> bool:
    """Return whether it is a list of the left side: that is of 64-bit integers."""
    match arg:
        case Lit(value=tuple()) | Var(kind="integers"):
            return True
    return False


def _of_eye(app: App, like: DType) -> DType:
    """Return the type that `dtype` says, that of the input without it; not known where a hole may say it."""
    match dict(app.attrs).get("dtype"):
        case Lit(value=int(value)) if value in list(DType):
            return DType(value)
        case None if app.attributes_hole is None:
            return like
    return DType.UNDEFINED


def _of_quantized(app: App, bound: Mapping[str, DType]) -> DType:
    """Return the type that `output_dtype` says; else that of the zero point, or of the scale; not known where a hole
    says it.

    Without any, a tensor is quantized to 8 bits without a sign.
    """
    match dict(app.attrs).get("output_dtype"):
        case Lit(value=int(value)) if value:
            return DType(value)
        case None | Lit():
            if _result_type(app) is ResultDtypeSource.DEQUANTIZED:
                return bound.get("T2", DType.UNDEFINED)
            return bound.get("T3", DType.UNDEFINED if app.attributes_hole is not None else DType.UINT8)
    return DType.UNDEFINED


@dataclass
class Typing:
    """The element types of one choice: by hole, with the targets of casts by hole."""

    types: dict[str, DType]
    targets: dict[str, DType] = field(default_factory=dict)
    right_side_types: dict[App, tuple[DType, ...]] = field(default_factory=dict)
    """The element types of the operators of the right side, numbers in the types in which it writes them."""
    operands: dict[str, tuple[DType | None, ...]] = field(default_factory=dict)
    """Element types that a hole for an operator is applied to, by hole, wherever that is."""

    def type_of(self, part: Term, made: DType | None = None) -> DType | None:
        """Return the element type of a term; on the right side `made` is the one that it is to have, if that is
        known."""
        match part:
            case Var(kind="tensor" | "const", name=name):
                return self.types.get(name)
            case App(domain=domain) if domain != SCALAR:
                return self._outputs(part.node, made)[part.output]
        return None

    def _outputs(self, app: App, made: DType | None) -> tuple[DType, ...]:
        to = self.target(app) if has_explicit_type(app) else None
        if app.domain in schemas.CLASS_SCHEMAS:
            self._check_same_operand_types(app)
        if made is None:
            inputs = [None if a is None or is_scalar(a) else self.type_of(a) for a in app.inputs]
            return infer_output_types(app, inputs, to)
        tensors = [None if a is None or is_literal_only(a) else self.type_of(a, DType.UNDEFINED) for a in app.inputs]
        pairs = zip(app.inputs, tensors, infer_literal_types(app, tensors, made), strict=True)
        inputs = [
            self.type_of(a, hint) if a is not None and is_literal_only(a) and not is_scalar(a) else d
            for a, d, hint in pairs
        ]
        self.right_side_types[app] = infer_output_types(app, inputs, to, made)
        return self.right_side_types[app]

    def _check_same_operand_types(self, app: App) -> None:
        """Ask that a hole is applied to operands of the same types everywhere; raises DTypeError."""
        types = tuple(None if arg is None else self.type_of(arg) for arg in app.inputs)
        if self.operands.setdefault(app.op, types) != types:
            raise DTypeError(f"{app} is of other element types than {app.op} elsewhere")

    def target(self, cast: App) -> DType:
        """Return the element type that a cast is to, or that an operator of a class makes."""
        if cast.domain in schemas.CLASS_SCHEMAS:
            return self.targets[cast.op]
        to = dict(cast.attrs).get("to")
        match to:
            case None if cast.attributes_hole is not None and f"{cast.attributes_hole.name}.to" in self.targets:
                return self.targets[f"{cast.attributes_hole.name}.to"]
            case Var(name=name) if name in self.targets:
                return self.targets[name]
            case Lit(value=int(value)) if value in list(DType):
                return DType(value)
            case App(op="dtype"):
                found = self.type_of(to.operands[0])
                assert found is not None
                return found
        raise DTypeError(f"a cast to {to}, which is no type or is computed")

    def admits(self, condition: Term) -> bool:
        """Return False if a condition on element types is violated; conditions on anything else are ignored."""
        try:
            return bool(_TypeScalars(self).evaluate(condition))
        except _NotOnTypes:
            return True
        except UndecidedScalarError:  # nor does it match
            return False


class _NotOnTypes(Exception):
    """A condition on sizes or attributes."""


@dataclass(frozen=True)
class _TypeScalars(ScalarAlgebra):
    """What a choice of element types says, and nothing else."""

    typing: Typing
    unknown = _NotOnTypes

    def hole(self, hole: Var) -> Any:
        return self.typing.targets[hole.name] if hole.name in self.typing.targets else super().hole(hole)

    def dtype(self, of: Term) -> DType | None:
        return self.typing.type_of(of)


def enumerate_typings(rule: Rule) -> list[Typing]:
    """Return all choices of element types for which the left side is well-typed and the conditions on types hold."""
    groups = list(_groups(rule).values())
    casts = sorted({name for side in rule.left for name in _cast_holes(side)})
    options = [[d for d in COMPUTE_DTYPES if d in allowed] for _, allowed in groups]
    found = []
    for chosen in _limit_choices(product(*options, *(COMPUTE_DTYPES for _ in casts))):
        types = {name: d for (names, _), d in zip(groups, chosen, strict=False) for name in names}
        made = {name: types.pop(name) for name in rule.operator_holes}
        typing = Typing(types, made | dict(zip(casts, chosen[len(groups) :], strict=True)))
        if _well_typed(typing, rule.left) and all(map(typing.admits, rule.conditions)):
            found.append(typing)
    return found


def _limit_choices(choices: Iterable[tuple[DType, ...]]) -> Iterator[tuple[DType, ...]]:
    for count, chosen in enumerate(choices):
        if count == MAX_CHOICES:
            raise DTypeError("too many choices of element types")
        yield chosen


def _well_typed(typing: Typing, sides: Iterable[Term]) -> bool:
    try:
        return all(typing.type_of(side) is not None for side in sides)
    except DTypeError:
        return False


def _cast_holes(side: Term) -> Iterator[str]:
    """Yield the holes that hold the target of a cast."""
    for app in operator_applications(side):
        to = dict(app.attrs).get("to")
        is_cast = _result_type(app) is ResultDtypeSource.TARGET
        if is_cast and isinstance(to, Var):
            yield to.name
        if is_cast and to is None and app.attributes_hole is not None:
            yield f"{app.attributes_hole.name}.to"


def typing_equivalence_key(rule: Rule, typing: Typing) -> Hashable:
    """Return what a proof can tell of a choice of element types: with two of a kind its steps are the same but for
    names.

    That is which of the types, those that the rule writes and that operators make of whatever among them, are floats,
    integers or truth values, which are the same, and which hold all values of which; where something is quantized their
    ranges and precision count, too.
    """
    types = [*typing.types.values(), *typing.targets.values(), *_written_types(rule), *_fixed_output_types(rule)]
    if mentions_quantization(rule) or _depends_on_type_numbers(rule):
        return tuple(types)
    kinds = tuple((dtype.is_float, dtype.is_integer, dtype is DType.BOOL) for dtype in types)
    return kinds, tuple((one == other, can_represent(one, other)) for one, other in product(types, repeat=2))


def licensed_typings(rule: Rule, model: ProofModel, typings: Sequence[Typing]) -> Sequence[Typing]:
    """Return the choices of element types of which a proof in a model speaks: where types matter, those in which all
    that the left side computes are floats, whatever it reads; EXACT speaks of all."""
    if model is ProofModel.EXACT or not depends_on_dtype(rule):
        return typings
    return [typing for typing in typings if _computes_floats(rule, typing)]


def _computes_floats(rule: Rule, typing: Typing) -> bool:
    """Return whether all that the left side computes are floats; truth values inside it count as little as sizes and
    places."""
    apps = {app for side in rule.left for app in operator_applications(side) if not _is_size_or_position(app)}
    inside, results = ({typing.type_of(app) for app in some} for some in (apps - {*rule.left}, apps & {*rule.left}))
    return all(dtype is not None and dtype.is_float for dtype in inside - {DType.BOOL} | results)


def _is_size_or_position(term: Term | None) -> bool:
    """Return whether it is a size, or where something lies along an axis, which no arithmetic makes; wherever it was
    moved to."""
    if not isinstance(term, App):
        return False
    facts = lookup_operator(term.op, term.domain)
    return term.output in facts.index_outputs or (facts.selects_elements and _is_size_or_position(term.inputs[0]))


TYPE_PREDICATES = frozenset({"eq", "ne", "is_float", "is_integer", "can_represent"})
"""Functions to whose answers the number of an element type matters not."""


@cache
def _depends_on_type_numbers(rule: Rule) -> bool:
    """Return whether a rule does more with an element type than to ask what it is: its number is one of an enumeration,
    and where types are ordered by it, all differ."""
    casts = {name for side in rule.left for name in _cast_holes(side)}
    said = [*rule.conditions, *(part for side in (*rule.left, *rule.right) for part in walk_term(side))]
    apps = {part for term in said for part in walk_term(term) if isinstance(part, App)}
    return any(_uses_type_number(app, casts) for app in apps)


def _uses_type_number(app: App, casts: Collection[str]) -> bool:
    attributes = [value for name, value in app.attrs if name not in ("to", "dtype")]
    if not any(_is_type(operand, casts) for operand in (*app.operands, *attributes)):
        return False
    beside = all(_is_type(operand, casts) or isinstance(operand, Lit) for operand in app.operands)
    return app.domain != SCALAR or app.op not in TYPE_PREDICATES or not beside


def _is_type(term: Term, casts: Collection[str]) -> bool:
    return (isinstance(term, App) and term.op == "dtype") or (isinstance(term, Var) and term.name in casts)


@cache
def _written_types(rule: Rule) -> tuple[DType, ...]:
    """Return the element types that a rule writes: targets, and what types are compared with beside something else.

    A condition on types alone holds for each choice, unless it is one that the right side promises.
    """
    sides = [part for side in (*rule.left, *rule.right) for part in walk_term(side) if isinstance(part, App)]
    said = [value for app in sides for name, value in app.attrs if name in ("to", "dtype")]
    said += [part for part in sides if part.domain == SCALAR and _mentions_types(part)]
    casts = {name for side in rule.left for name in _cast_holes(side)}
    said += [part for part in rule.conditions if _mentions_types(part) and not _is_type_condition(part, casts)]
    said += [part for part in rule.obligations if _mentions_types(part)] if isinstance(rule, ExpandedRule) else []
    values = (part.value for term in said for part in walk_term(term) if isinstance(part, Lit))
    numbers = {n for value in values for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, int)}
    return tuple(dtype for dtype in COMPUTE_DTYPES if int(dtype) in numbers)


@cache
def _fixed_output_types(rule: Rule) -> tuple[DType, ...]:
    """Return the element types that operators of a rule make of operands of any type."""
    types = set[DType]()
    for app in (app for side in (*rule.left, *rule.right) for app in operator_applications(side)):
        allowed = (
            ()
            if has_explicit_type(app)
            else [_allowed(app.op, app.domain, str(f.type_str)) for f in _schema(app).outputs]
        )
        types |= {dtype for choices in allowed if len(choices) == 1 for dtype in choices}
        types |= {DType.FLOAT} if _result_type(app) is ResultDtypeSource.VALUE else set()
    return tuple(sorted(types))


def _mentions_types(term: Term) -> bool:
    """Return whether a scalar term may be about element types."""
    return any(isinstance(part, Var) or (isinstance(part, App) and part.op == "dtype") for part in walk_term(term))


def _is_type_condition(term: Term, casts: Collection[str]) -> bool:
    """Return whether it is about the element types of holes and the targets of casts, and nothing else."""
    match term:
        case App(op="dtype") | Lit():
            return True
        case Var(name=name):
            return name in casts
        case App():
            return all(_is_type_condition(part, casts) for part in term.operands)


class _TypeUnifier:
    """Type variables, some of them the same, each with the element types that it may have."""

    def __init__(self) -> None:
        self._parent: dict[Any, Any] = {}
        self._allowed: dict[Any, frozenset[DType]] = {}

    def root(self, place: Any) -> Any:
        while place in self._parent:
            place = self._parent[place]
        return place

    def allowed(self, place: Any) -> frozenset[DType]:
        return self._allowed.get(self.root(place), frozenset(COMPUTE_DTYPES))

    def restrict(self, place: Any, to: frozenset[DType]) -> None:
        self._allowed[self.root(place)] = self.allowed(place) & to

    def unify(self, one: Any, other: Any) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            both = self.allowed(one) & self.allowed(other)
            self._parent[one] = other
            self.restrict(other, both)

    def add_constraints(self, app: App) -> None:
        """Read what the schema of an operator says; a hole for one has the same types wherever it is applied."""
        owner = (app.domain, app.op) if app.domain in schemas.CLASS_SCHEMAS else app.node
        for position, arg in enumerate(app.inputs):
            if isinstance(arg, Var | App) and not is_scalar(arg):
                name = _type_variable(app, position)
                self.restrict((owner, name), _allowed(app.op, app.domain, name.partition("#")[0]))
                self.unify(("hole", arg.name) if isinstance(arg, Var) else (arg.node, arg.output), (owner, name))
        for position in range(0 if is_casting(app) else app.outputs):
            formal = _schema(app).outputs[min(position, len(_schema(app).outputs) - 1)]
            self.unify((app.node, position), (owner, str(formal.type_str)))


def _groups(rule: Rule) -> dict[Any, tuple[list[str], frozenset[DType]]]:
    """Return the holes of the left side by type variable: those of a group have one element type, from a set.

    A hole for an operator has that of what it makes.
    """
    unified = _TypeUnifier()
    for side in rule.left:
        for app in operator_applications(side):
            unified.add_constraints(app)
    result: dict[Any, tuple[list[str], frozenset[DType]]] = {}
    for hole in rule.holes.values():
        if hole.kind in ("tensor", "const"):
            place = ("hole", hole.name)
            result.setdefault(unified.root(place), ([], unified.allowed(place)))[0].append(hole.name)
    for name, class_ in rule.operator_holes.items():
        made = unified.root(((class_, name), schemas.CLASS_SCHEMAS[class_].outputs[0].type_str))
        result.setdefault(made, ([], unified.allowed(made)))[0].append(name)
    return result


def find_type_disagreement(rule: Rule, choices: Iterable[Typing]) -> str | None:
    """Return a choice of types for which the right side is ill-typed, or is not known to have the type of the left.

    When the right side is built its numbers take the type that `schemas.literal_dtype` says.
    """
    for typing in choices:
        try:
            for left, right in zip(rule.left, rule.right, strict=True):
                one = typing.type_of(left)
                other = typing.type_of(right, one or DType.UNDEFINED)
                if other is DType.UNDEFINED:
                    return f"{_format_typing(typing)}: the element type on the right is not known"
                if other is not None and one != other:
                    before = "a type that is not known" if not one else one.name
                    return f"{_format_typing(typing)}: {before} becomes {other.name}"
        except DTypeError as error:
            return f"{_format_typing(typing)}: on the right {error}"
    return None


def _format_typing(typing: Typing) -> str:
    return ", ".join(f"{name} of {d.name}" for name, d in {**typing.types, **typing.targets}.items())
