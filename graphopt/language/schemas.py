"""The element types of an operator's inputs and outputs, as its schema declares them, and a choice for a whole rule."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.types import DType
from graphopt.ir import ops
from graphopt.language.term import SCALAR, App, Lit, Term, Var, applications


class Misfit(Exception):
    """What was drawn is no instance of the rule, or its right side says nothing there: draw again."""


USUAL = (DType.FLOAT,) * 6 + (DType.INT64,) * 3 + (DType.INT32, DType.DOUBLE, DType.BOOL, DType.UINT8)
"""From what an element type is drawn where one of these is possible."""
_TYPE_NAMES = {f"tensor({np.dtype(d.numpy).name})": d for d in DType if d not in (DType.UNDEFINED, DType.STRING)}
_TYPE_NAMES |= {"tensor(float)": DType.FLOAT, "tensor(double)": DType.DOUBLE}
_ANY = frozenset(DType)
_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


def type_text(dtype: DType) -> str:
    """Return an element type as schemas spell it: `tensor(float)`."""
    return _TYPE_TEXTS[dtype]


_TYPE_TEXTS: Mapping[DType, str] = {dtype: name for name, dtype in _TYPE_NAMES.items()}

Place: TypeAlias = "tuple[App | str, str | int]"


class Formal(NamedTuple):
    """An input or output as its schema declares it."""

    name: str
    variable: str
    """The type variable, equal for those that share it; one with a number for each of several that differ."""
    allowed: frozenset[DType]


class Operator(NamedTuple):
    """What is read off a schema, once: the package's own objects are slow to look at."""

    schema: OpSchema
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: Mapping[str, tuple[OpSchema.AttrType, bool]]
    """Their types, and whether they are required."""

    def input(self, position: int) -> Formal:
        return _numbered(self.inputs, position)

    def output(self, position: int) -> Formal:
        return _numbered(self.outputs, position)


def _numbered(formals: tuple[Formal, ...], position: int) -> Formal:
    formal = formals[min(position, len(formals) - 1)]
    return formal._replace(variable=f"{formal.variable}{position}") if formal.variable.endswith("#") else formal


def described(app: App) -> Operator:
    return _read_schema(app.op, app.domain)


@ops.reads_schemas
def _read_schema(op: str, domain: str) -> Operator:
    schema = ops.schema(op, domain, 1 if domain else ops.OPSET)
    if schema is None:
        raise Misfit(f"no schema for {op}")
    allowed = {
        constraint.type_param_str: frozenset(_TYPE_NAMES[n] for n in constraint.allowed_type_strs if n in _TYPE_NAMES)
        for constraint in schema.type_constraints
    }

    def read(formal: OpSchema.FormalParameter) -> Formal:
        several = formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
        fixed = frozenset((_TYPE_NAMES[formal.type_str],)) if formal.type_str in _TYPE_NAMES else frozenset[DType]()
        types = allowed.get(formal.type_str, fixed)
        return Formal(formal.name, f"{formal.type_str}{'#' if several else ''}", types)

    attributes = {name: (spec.type, spec.required) for name, spec in schema.attributes.items()}
    return Operator(schema, tuple(map(read, schema.inputs)), tuple(map(read, schema.outputs)), attributes)


class Types:
    """The element types of a rule's sides: type variables that are unified, then chosen."""

    def __init__(self, sides: Iterable[Term], known: Mapping[str, DType], usual: Sequence[DType] = USUAL) -> None:
        self._usual = usual
        self._parent: dict[Place, Place] = {}
        self._allowed: dict[Place, frozenset[DType]] = {}
        for name, dtype in known.items():
            self.restrict(("hole", name), {dtype})
        for side in sides:
            for app in applications(side):
                self._read(app)

    def copy(self) -> Types:
        """Return the same, to choose from anew."""
        other = Types((), {}, self._usual)
        other._parent, other._allowed = dict(self._parent), dict(self._allowed)
        return other

    def obey(self, conditions: Iterable[Term]) -> Types:
        """Restrict what conditions on single holes restrict, so that fewer draws are in vain."""
        for condition in conditions:
            match condition:
                case App(op="is_float", args=(App(op="dtype", args=(Var(name=name),)),)):
                    self.restrict(("hole", name), _FLOATS)
                case App(op="is_in", args=(App(op="dtype", args=(Var(name=name),)), Lit(value=tuple() as dtypes))):
                    self.restrict(("hole", name), (dtype for dtype in DType if dtype in dtypes))
                case App(
                    op="eq", args=(App(op="dtype", args=(Var(name=one),)), App(op="dtype", args=(Var(name=two),)))
                ):
                    self._unify(("hole", one), ("hole", two))
                case (
                    App(op="eq" | "ne", args=(App(op="dtype", args=(Var(name=name),)), Lit(value=number)))
                    | App(op="eq" | "ne", args=(Lit(value=number), App(op="dtype", args=(Var(name=name),))))
                ):
                    same = condition.op == "eq"
                    self.restrict(("hole", name), (dtype for dtype in DType if (dtype == number) == same))
        return self

    def _read(self, app: App) -> None:
        operator = described(app)
        for position, arg in enumerate(app.inputs):
            formal = operator.input(position)
            place = (app.node, formal.variable)
            self.restrict(place, formal.allowed)
            if isinstance(arg, Var) and arg.kind in ("tensor", "const"):
                self._unify(("hole", arg.name), place)
            elif isinstance(arg, App) and arg.domain != SCALAR:
                self._unify((arg.node, arg.output), place)
            elif (isinstance(arg, Var) and arg.kind == "real") or (isinstance(arg, Lit) and arg.value != _whole(arg)):
                self.restrict(place, _FLOATS)
        for position in range(app.outputs):
            formal = operator.output(position)
            self.restrict((app.node, formal.variable), formal.allowed)
            self._unify((app.node, position), (app.node, formal.variable))
        if app.op == "DequantizeLinear" and "output_dtype" not in dict(app.attrs):
            self._unify((app.node, "T2"), (app.node, "T3"))
        if app.op == "QuantizeLinear" and len(app.inputs) == 2 and "output_dtype" not in dict(app.attrs):
            self.restrict((app.node, "T3"), {DType.UINT8})
        match app.op, dict(app.attrs).get("to"):
            case "Cast", Lit(value=int(to)) if to in list(DType):
                self.restrict((app.node, 0), {DType(to)})

    def apply_alike(self, apps: Sequence[App]) -> None:
        """Have applications of one operator take the same element types, position by position."""
        for one, *others in zip(*map(_operand_places, apps), strict=True):
            for other in others:
                self._unify(one, other)

    def place(self, side: Term) -> Place:
        """Where the element type of a term is."""
        if isinstance(side, App):
            return side.node, side.output
        return "hole", side.name if isinstance(side, Var) else ""

    def root(self, place: Place) -> Place:
        """Return what stands for all places of one element type."""
        while place in self._parent:
            place = self._parent[place]
        return place

    def _unify(self, one: Place, other: Place) -> None:
        one, other = self.root(one), self.root(other)
        if one != other:
            self._parent[one] = other
            self.restrict(other, self._allowed.pop(one, None))

    def restrict(self, place: Place, allowed: Iterable[DType] | None) -> None:
        if allowed is not None:
            place = self.root(place)
            self._allowed[place] = self._allowed.get(place, _ANY) & frozenset(allowed)

    def allowed(self, place: Place) -> frozenset[DType]:
        """Return the element types that are possible at a place."""
        return self._allowed.get(self.root(place), _ANY)

    def prefer(self, place: Place, dtype: DType) -> None:
        """Choose this one, if it is possible."""
        if dtype in self._allowed.get(self.root(place), ()):
            self.restrict(place, {dtype})

    def of(self, place: Place, rng: random.Random | None = None) -> DType:
        """Return the element type of a place; chosen, and from then on fixed, where several are possible."""
        allowed = self._allowed.get(self.root(place), frozenset((DType.FLOAT,)))
        usual = [dtype for dtype in self._usual if dtype in allowed] or sorted(allowed)
        if not usual:
            raise Misfit("no element type fits")
        chosen = rng.choice(usual) if rng else usual[0]
        self.restrict(place, {chosen})
        return chosen


def _operand_places(app: App) -> list[Place]:
    return [(app.node, described(app).input(position).variable) for position in range(len(app.inputs))]


def _whole(literal: Lit) -> Any:
    value = literal.value
    return value if isinstance(value, str | tuple) else int(value) if abs(value) < 1e9 else value
