"""The element types of an operator's inputs and outputs, as its schema declares them, and a choice for a whole rule."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.ir import schemas
from graphopt.language.terms import SCALAR, App, Lit, Term, Var, operator_applications


class NoInstance(Exception):
    """A drawn instance is none of the rule, or the right side has no value there: draw again."""


COMMON_DTYPES = (DType.FLOAT,) * 6 + (DType.INT64,) * 3 + (DType.INT32, DType.DOUBLE, DType.BOOL, DType.UINT8)
"""Element types to draw from where one of these is possible."""
_DTYPE_BY_TYPE_NAME = {
    f"tensor({np.dtype(d.numpy).name})": d for d in DType if d not in (DType.UNDEFINED, DType.STRING)
}
_DTYPE_BY_TYPE_NAME |= {"tensor(float)": DType.FLOAT, "tensor(double)": DType.DOUBLE}
_ANY = frozenset(DType)
_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)


def schema_type_name(dtype: DType) -> str:
    """Return an element type as schemas spell it: `tensor(float)`."""
    return _TYPE_NAME_BY_DTYPE[dtype]


_TYPE_NAME_BY_DTYPE: Mapping[DType, str] = {dtype: name for name, dtype in _DTYPE_BY_TYPE_NAME.items()}

TypeSlot: TypeAlias = "tuple[App | str, str | int]"


class FormalParameter(NamedTuple):
    """An input or output as its schema declares it."""

    name: str
    variable: str
    """The type variable, equal for those that share it; one with a number for each of several that differ."""
    allowed: frozenset[DType]


class OperatorSignature(NamedTuple):
    """The parts of a schema that are read, once: the package's own objects are slow to look at."""

    schema: OpSchema
    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]
    attributes: Mapping[str, tuple[OpSchema.AttrType, bool]]
    """Their types, and whether they are required."""

    def input(self, position: int) -> FormalParameter:
        return _variadic_parameter(self.inputs, position)

    def output(self, position: int) -> FormalParameter:
        return _variadic_parameter(self.outputs, position)


def _variadic_parameter(formals: tuple[FormalParameter, ...], position: int) -> FormalParameter:
    formal = formals[min(position, len(formals) - 1)]
    return formal._replace(variable=f"{formal.variable}{position}") if formal.variable.endswith("#") else formal


def signature_of(app: App) -> OperatorSignature:
    return _read_signature(app.op, app.domain)


@schemas.memoized_by_schema
def _read_signature(op: str, domain: str) -> OperatorSignature:
    schema = schemas.schema(op, domain, 1 if domain else schemas.RULE_OPSET)
    if schema is None:
        raise NoInstance(f"no schema for {op}")
    allowed = {
        constraint.type_param_str: frozenset(
            _DTYPE_BY_TYPE_NAME[n] for n in constraint.allowed_type_strs if n in _DTYPE_BY_TYPE_NAME
        )
        for constraint in schema.type_constraints
    }

    def read(formal: OpSchema.FormalParameter) -> FormalParameter:
        several = formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
        fixed = (
            frozenset((_DTYPE_BY_TYPE_NAME[formal.type_str],))
            if formal.type_str in _DTYPE_BY_TYPE_NAME
            else frozenset[DType]()
        )
        types = allowed.get(formal.type_str, fixed)
        return FormalParameter(formal.name, f"{formal.type_str}{'#' if several else ''}", types)

    attributes = {name: (spec.type, spec.required) for name, spec in schema.attributes.items()}
    return OperatorSignature(schema, tuple(map(read, schema.inputs)), tuple(map(read, schema.outputs)), attributes)


class TypeConstraints:
    """The element types of a rule's sides: type variables that are unified, then chosen."""

    def __init__(
        self, sides: Iterable[Term], known: Mapping[str, DType], usual: Sequence[DType] = COMMON_DTYPES
    ) -> None:
        self._preferred = usual
        self._parent: dict[TypeSlot, TypeSlot] = {}
        self._allowed: dict[TypeSlot, frozenset[DType]] = {}
        for name, dtype in known.items():
            self.restrict(("hole", name), {dtype})
        for side in sides:
            for app in operator_applications(side):
                self._add_operator(app)

    def copy(self) -> TypeConstraints:
        """Return the same, to choose from anew."""
        other = TypeConstraints((), {}, self._preferred)
        other._parent, other._allowed = dict(self._parent), dict(self._allowed)
        return other

    def apply_conditions(self, conditions: Iterable[Term]) -> TypeConstraints:
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

    def _add_operator(self, app: App) -> None:
        operator = signature_of(app)
        for position, arg in enumerate(app.inputs):
            formal = operator.input(position)
            place = (app.node, formal.variable)
            self.restrict(place, formal.allowed)
            if isinstance(arg, Var) and arg.kind in ("tensor", "const"):
                self._unify(("hole", arg.name), place)
            elif isinstance(arg, App) and arg.domain != SCALAR:
                self._unify((arg.node, arg.output), place)
            elif _needs_floats(arg):
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

    def unify_applications(self, apps: Sequence[App]) -> None:
        """Have applications of one operator take the same element types, position by position."""
        slots = ([(app.node, signature_of(app).input(i).variable) for i in range(len(app.inputs))] for app in apps)
        for one, *others in zip(*slots, strict=True):
            for other in others:
                self._unify(one, other)

    def slot(self, side: Term) -> TypeSlot:
        """Return the place of a term's element type."""
        if isinstance(side, App):
            return side.node, side.output
        return "hole", side.name if isinstance(side, Var) else ""

    def representative(self, place: TypeSlot) -> TypeSlot:
        """Return what stands for all places of one element type."""
        while place in self._parent:
            place = self._parent[place]
        return place

    def _unify(self, one: TypeSlot, other: TypeSlot) -> None:
        one, other = self.representative(one), self.representative(other)
        if one != other:
            self._parent[one] = other
            self.restrict(other, self._allowed.pop(one, None))

    def restrict(self, place: TypeSlot, allowed: Iterable[DType] | None) -> None:
        if allowed is not None:
            place = self.representative(place)
            self._allowed[place] = self._allowed.get(place, _ANY) & frozenset(allowed)

    def allowed(self, place: TypeSlot) -> frozenset[DType]:
        """Return the element types that are possible at a place."""
        return self._allowed.get(self.representative(place), _ANY)

    def choose(self, place: TypeSlot, dtype: DType) -> None:
        """Choose this one, if it is possible."""
        if dtype in self._allowed.get(self.representative(place), ()):
            self.restrict(place, {dtype})

    def draw(self, place: TypeSlot, rng: random.Random | None = None) -> DType:
        """Return the element type of a place; chosen, and from then on fixed, where several are possible."""
        allowed = self._allowed.get(self.representative(place), frozenset((DType.FLOAT,)))
        usual = [dtype for dtype in self._preferred if dtype in allowed] or sorted(allowed)
        if not usual:
            raise NoInstance("no element type fits")
        chosen = rng.choice(usual) if rng else usual[0]
        self.restrict(place, {chosen})
        return chosen


def _needs_floats(number: Term | None) -> bool:
    """Return whether a number that a rule writes in the place of a tensor is no whole one."""
    match number:
        case Var(kind="real"):
            return True
        case Lit(value=float(value)):
            return abs(value) < 1e9 and not value.is_integer()
    return False
