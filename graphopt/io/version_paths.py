"""Paths from one version of an operator to another, in steps of which each goes up and down."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import onnx
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.io.version_tables import (
    CHANGED_DEFAULTS,
    CHANGES,
    DOWNGRADE_CONDITIONS,
    DROPPED_ATTRIBUTES,
    INCOMPATIBLE_VERSIONS,
    MOVED_ATTRIBUTES,
    REPLACED_OPERATORS,
    UPGRADE_CONDITIONS,
    GraphFacts,
    MovedAttribute,
    Spelling,
    SpellingMismatch,
    VersionKey,
    tensor_or_constant,
)
from graphopt.ir import schemas
from graphopt.ir.graph import Attribute, AttributeScalar, OpaqueAttribute, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import TensorType, Type
from graphopt.language.rule import Rule
from graphopt.language.terms import operator_applications
from graphopt.operators import proto_conversion

# -- one step from version to version ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VersionStep:
    """Two neighbouring schema versions of one operator that can mean the same, or one operator and its successor."""

    old: OpSchema
    new: OpSchema

    @cached_property
    def key(self) -> VersionKey:
        return (self.new.name, self.new.since_version)

    @cached_property
    def is_renaming(self) -> bool:
        return bool(self.old.name != self.new.name)

    @cached_property
    def _older_form(self) -> schemas.SchemaForm:
        return _form(self.old)

    @cached_property
    def _older_input_count(self) -> int:
        return len(self.old.inputs)

    @cached_property
    def _added_attributes(self) -> set[str]:
        return _form(self.new).kinds.keys() - self._older_form.kinds.keys()

    @property
    def is_upgrade_relevant(self) -> bool:
        """False where the newer version only has more types, and attributes or inputs that may be absent."""
        tables: tuple[Mapping[VersionKey, object], ...] = (
            MOVED_ATTRIBUTES,
            DROPPED_ATTRIBUTES,
            CHANGED_DEFAULTS,
            UPGRADE_CONDITIONS,
            CHANGES,
        )
        wider = all(
            before <= after for before, after in zip(_schema_types(self.old), _schema_types(self.new), strict=False)
        )
        return self.is_renaming or not wider or any(self.key in table for table in tables)

    @property
    def is_downgrade_relevant(self) -> bool:
        """False where the two take the same, too."""
        same = self.old.attributes.keys() == self.new.attributes.keys() and _schema_types(self.old) == _schema_types(
            self.new
        )
        options = [formal.option for formal in self.old.inputs] == [formal.option for formal in self.new.inputs]
        return self.is_upgrade_relevant or not same or not options or self.key in DOWNGRADE_CONDITIONS

    def upgrade(self, spelling: Spelling, facts: GraphFacts) -> Spelling:
        """Return the newer spelling of the same. Raises SpellingMismatch."""
        _check_spelling(self.old, spelling)
        if self.is_renaming:
            return REPLACED_OPERATORS[self.old.name, self.old.since_version][1](spelling, facts)
        attrs = dict(spelling.attrs)
        for name, allowed in DROPPED_ATTRIBUTES.get(self.key, {}).items():
            value = attrs.pop(name, _schema_default(self.old, name))
            if allowed and value not in allowed:
                raise SpellingMismatch(f"`{name}` is {value!r}")
        for name, value in CHANGED_DEFAULTS.get(self.key, {}).items():
            attrs.setdefault(name, value)
        inputs = list(spelling.inputs)
        for moved in MOVED_ATTRIBUTES.get(self.key, ()):
            if moved.attribute in attrs:
                inputs += [None] * (moved.place + 1 - len(inputs))
                inputs[moved.place] = _to_tensor(attrs.pop(moved.attribute), moved, spelling, facts)
        spelling = Spelling(spelling.op, tuple(inputs), attrs, spelling.outputs)
        if self.key in CHANGES:
            spelling = CHANGES[self.key][0](spelling, facts)
        condition = UPGRADE_CONDITIONS.get(self.key)
        if condition is not None and not condition.holds(spelling, facts):
            raise SpellingMismatch(f"in opset {self.key[1]} {condition.change}")
        _check_types(self.new, spelling, facts)
        return spelling

    def downgrade(self, spelling: Spelling, facts: GraphFacts) -> Spelling:
        """Return the older spelling of the same. Raises SpellingMismatch."""
        if self.is_renaming:
            return REPLACED_OPERATORS[self.old.name, self.old.since_version][2](spelling, facts)
        for condition in filter(None, (UPGRADE_CONDITIONS.get(self.key), DOWNGRADE_CONDITIONS.get(self.key))):
            if not condition.holds(spelling, facts):
                raise SpellingMismatch(f"in opset {self.key[1]} {condition.change}")
        if self.key in CHANGES:
            spelling = CHANGES[self.key][1](spelling, facts)
        inputs, attrs = list(spelling.inputs), dict(spelling.attrs)
        for moved in MOVED_ATTRIBUTES.get(self.key, ()):
            value = inputs[moved.place] if moved.place < len(inputs) else None
            if value is not None:
                attrs[moved.attribute] = _to_attribute(value, moved, facts)
                inputs[moved.place] = None
        while len(inputs) > self._older_input_count and inputs[-1] is None:
            inputs.pop()
        spelling = Spelling(spelling.op, tuple(inputs), self._older_attributes(attrs), spelling.outputs)
        _check_spelling(self.old, spelling)
        _check_types(self.old, spelling, facts)
        return spelling

    def _older_attributes(self, attrs: dict[str, Attribute]) -> dict[str, Attribute]:
        """Return the attributes without those that the newer version brought, with those that it dropped."""
        defaults = CHANGED_DEFAULTS.get(self.key, {})
        for name in self._added_attributes:
            value = attrs.pop(name, None)
            unchanged = defaults.get(name, _schema_default(self.new, name))
            if name in defaults and value is None:
                value = _schema_default(self.new, name)
            is_neutral = name == "dilations" and isinstance(value, tuple) and all(item == 1 for item in value)
            if value is not None and value != unchanged and not is_neutral:
                raise SpellingMismatch(f"`{name}` is new in opset {self.key[1]}")
        for name in defaults.keys() & self._older_form.kinds.keys():
            if name not in attrs:
                default = _schema_default(self.new, name)
                if default is None:
                    raise SpellingMismatch(f"`{name}` has another default in opset {self.key[1]}")
                attrs[name] = default
        for name, allowed in DROPPED_ATTRIBUTES.get(self.key, {}).items():
            if allowed and allowed[0] != _schema_default(self.old, name):
                attrs[name] = allowed[0]
        return attrs


def _check_spelling(schema: OpSchema, spelling: Spelling) -> None:
    """Raise SpellingMismatch unless inputs, outputs and attributes are those of the schema."""
    version, form = schema.since_version, _form(schema)
    if len(spelling.inputs) > form.inputs[1]:
        raise SpellingMismatch(f"opset {version} has no input {form.inputs[1]}")
    if len(spelling.outputs) > form.outputs[1]:
        raise SpellingMismatch(f"opset {version} has no output {form.outputs[1]}")
    for index in form.required_inputs:
        if index >= len(spelling.inputs) or spelling.inputs[index] is None:
            raise SpellingMismatch(f"opset {version} needs input {index}")
    names = spelling.attrs.keys()
    if unknown := names - form.kinds.keys():
        raise SpellingMismatch(f"opset {version} has no `{min(unknown)}`")
    for name in form.required_attributes - names:
        raise SpellingMismatch(f"opset {version} needs `{name}`")


def _form(schema: OpSchema) -> schemas.SchemaForm:
    form = schemas.schema_form(schema.name, schema.domain, schema.since_version)
    assert form is not None, schema.name
    return form


def _schema(op: str, domain: str, version: int) -> OpSchema:
    found = schemas.schema(op, domain, version)
    assert found is not None, (op, version)
    return found


@cache
def _schema_defaults(op: str, domain: str, version: int) -> Mapping[str, Attribute | None]:
    known = _schema(op, domain, version).attributes
    return {name: schemas.attribute_value(attribute.default_value) for name, attribute in known.items()}


def _schema_default(schema: OpSchema, name: str) -> Attribute | None:
    return _schema_defaults(schema.name, schema.domain, schema.since_version).get(name)


def _to_tensor(attribute: Attribute, moved: MovedAttribute, spelling: Spelling, facts: GraphFacts) -> Tensor:
    if isinstance(attribute, OpaqueAttribute):
        raise SpellingMismatch(f"`{moved.attribute}` is no plain value")
    dtype = DType.FLOAT if moved.kind.startswith("float") else DType.INT64
    if moved.kind == "like data":
        data = spelling.inputs[0]
        found = facts.tensor_type(data) if isinstance(data, Value) else None
        if found is None:
            raise SpellingMismatch("the type of its data is not known")
        dtype = found.dtype
    with np.errstate(over="ignore"):  # the limits of float32 are infinite in float16
        array = np.array(attribute, np.float64 if dtype.is_float else None).astype(dtype.numpy)
    return Tensor.from_array(array.reshape(1) if moved.kind == "one int" else array)


def _to_attribute(value: Value | Tensor, moved: MovedAttribute, facts: GraphFacts) -> Attribute:
    tensor = tensor_or_constant(value, facts)
    if tensor is None or not tensor.is_small:
        raise SpellingMismatch(f"`{moved.attribute}` is not constant")
    array = tensor.numpy()
    items: tuple[AttributeScalar, ...]
    if tensor.dtype.is_integer:
        items = tuple(int(item) for item in array.ravel())
    else:
        items = tuple(float(item) for item in array.ravel())
        if any(float(np.float32(item)) != item and item == item for item in items):
            raise SpellingMismatch(f"`{moved.attribute}` is more than a float32")
    if moved.kind in ("ints", "floats"):
        if not items:
            raise SpellingMismatch(f"`{moved.attribute}` is empty")
        return items
    if len(items) != 1:
        raise SpellingMismatch(f"`{moved.attribute}` is no single value")
    return float(items[0]) if moved.kind == "like data" and isinstance(items[0], int) else items[0]


@cache
def _type_texts(op: str, domain: str, version: int) -> tuple[frozenset[str], ...]:
    return tuple(frozenset(formal.types) for formal in _schema(op, domain, version).inputs)


def _schema_types(schema: OpSchema) -> tuple[frozenset[str], ...]:
    return _type_texts(schema.name, schema.domain, schema.since_version)


def _check_types(schema: OpSchema, spelling: Spelling, facts: GraphFacts) -> None:
    """Raise SpellingMismatch where an input has a type that the schema does not take."""
    allowed = _schema_types(schema)
    for index, value in enumerate(spelling.inputs):
        if value is None:
            continue
        text = schema_type_text(TensorType(value.dtype) if isinstance(value, Tensor) else facts.value_type(value))
        if text is not None and text not in allowed[min(index, len(allowed) - 1)]:
            raise SpellingMismatch(f"opset {schema.since_version} has no {schema.name} of {text}")


def schema_type_text(type_: Type | None) -> str | None:
    """Return a type as schemas write it; None for one that is not known, or that they do not have."""
    if isinstance(type_, TensorType):
        return f"tensor({type_.dtype.name.lower()})"
    return None if type_ is None else _proto_text(proto_conversion.type_to_proto(type_))


def _proto_text(proto: onnx.TypeProto) -> str | None:
    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_proto_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_proto_text(proto.optional_type.elem_type)})"
    return schema_type_text(proto_conversion.type_from_proto(proto)) if proto.HasField("tensor_type") else None


# -- ways from version to version --------------------------------------------------------------------------------------


@cache
def version_difference(op: str, domain: str, version: int) -> str | None:
    """Say why a schema version can never mean the same as the one before; None where it can, as `VersionStep` tells."""
    old, new = _schema(op, domain, version - 1), _schema(op, domain, version)
    key = (op, version)
    if key in INCOMPATIBLE_VERSIONS or new.deprecated:
        return INCOMPATIBLE_VERSIONS.get(key, "it was withdrawn")
    moved = {move.place for move in MOVED_ATTRIBUTES.get(key, ())}
    gone = {move.attribute for move in MOVED_ATTRIBUTES.get(key, ())} | DROPPED_ATTRIBUTES.get(key, {}).keys()
    optional, single = OpSchema.FormalParameterOption.Optional, OpSchema.FormalParameterOption.Single
    for before, after in zip(old.inputs, new.inputs, strict=False):
        if before.option != after.option and (before.option, after.option) != (single, optional):
            return f"the input {after.name} is another"
    if len(new.inputs) < len(old.inputs):
        return "it has fewer inputs"
    for index, formal in enumerate(new.inputs[len(old.inputs) :], len(old.inputs)):
        if formal.option != optional and index not in moved:
            return f"the input {formal.name} is required"
    if (
        key not in UPGRADE_CONDITIONS
        and [o.option for o in old.outputs] != [o.option for o in new.outputs][: len(old.outputs)]
    ):
        return "the outputs are others"
    for name in old.attributes.keys() | new.attributes.keys():
        complaint = _attribute_difference(old, new, name)
        if complaint and name not in gone and name not in CHANGED_DEFAULTS.get(key, {}) and key not in CHANGES:
            return complaint
    return None


def _attribute_difference(old: OpSchema, new: OpSchema, name: str) -> str | None:
    if name not in new.attributes:
        return f"`{name}` went away"
    after = new.attributes[name]
    if name not in old.attributes:
        return f"`{name}` is required" if after.required else None
    before = old.attributes[name]
    if before.type != after.type or (after.required and not before.required):
        return f"`{name}` is another"
    return None if _schema_default(old, name) == _schema_default(new, name) else f"the default of `{name}` is another"


@cache
def schema_versions(op: str, domain: str = "") -> tuple[int, ...]:
    """Return the schema versions of an operator up to the newest that rules are written for, oldest first."""
    found: list[int] = []
    latest = schemas.schema(op, domain, schemas.RULE_OPSET if domain == "" else NO_LIMIT)
    while latest is not None:
        found.append(latest.since_version)
        latest = schemas.schema(op, domain, latest.since_version - 1)
    return tuple(reversed(found))


def _version_step(op: str, domain: str, version: int) -> VersionStep:
    """Return the step to a version from the one before. Raises SpellingMismatch where there can be none."""
    complaint = version_difference(op, domain, version)
    if complaint:
        raise SpellingMismatch(f"in opset {version} {complaint}")
    return VersionStep(_schema(op, domain, version - 1), _schema(op, domain, version))


def _renaming_step(op: str, version: int) -> VersionStep:
    """Return the step from the last version of an operator to its successor."""
    (successor, since), _, _ = REPLACED_OPERATORS[op, version]
    return VersionStep(_schema(op, "", version), _schema(successor, "", since))


class VersionPath(NamedTuple):
    """The steps from one schema version to another, in order, and where they end. `reason` says why there is no way."""

    op: str
    version: int
    steps: tuple[VersionStep, ...] = ()
    reason: str = ""


NO_LIMIT = 1_000
"""No schema has so great a version."""


@cache
def upgrade_path(op: str, domain: str, version: int, limit: int = NO_LIMIT) -> VersionPath:
    """Return the path from a schema version to the newest, of those up to a limit."""
    steps: list[VersionStep] = []
    start = (op, version)
    try:
        while True:
            if domain == "" and (op, version) in REPLACED_OPERATORS and REPLACED_OPERATORS[op, version][0][1] <= limit:
                steps.append(_renaming_step(op, version))
                op, version = REPLACED_OPERATORS[op, version][0]
            newer = [other for other in schema_versions(op, domain) if version < other <= limit]
            if not newer:
                return VersionPath(op, version, tuple(step for step in steps if step.is_upgrade_relevant))
            steps.append(_version_step(op, domain, newer[0]))
            version = newer[0]
    except SpellingMismatch as mismatch:
        return VersionPath(*start, reason=str(mismatch))


def first_opset(rule: Rule) -> int:
    """Return the first opset that has all operators which a rule writes."""
    written = (app.op for side in rule.right for app in operator_applications(side) if not app.domain)
    return max((schema_versions(op)[0] for op in written), default=0)


def written_domains(rule: Rule) -> frozenset[str]:
    """Return the domains of the operators of the right side; holes for operators have none."""
    found = {app.domain for side in rule.right for app in operator_applications(side)}
    return frozenset(found - schemas.CLASS_SCHEMAS.keys())


MICROSOFT = "com.microsoft"
"""Domain of the operators that ONNX Runtime has beside the standard ones."""


def is_supported(rule: Rule, target: str, domains: Container[str] = ()) -> bool:
    """Return whether a target, `onnx` or `onnxruntime`, or what has some further domains, has all operators that a rule
    writes."""
    return target == "onnxruntime" or MICROSOFT in domains or MICROSOFT not in written_domains(rule)


@cache
def downgrade_path(op: str, domain: str, version: int, opset: int) -> VersionPath:
    """Return the path from a schema version to what an opset has for it."""
    start = (op, version)
    steps: list[VersionStep] = []
    try:
        if schemas.schema(op, domain, opset) is None:
            older = [
                key for key, (successor, _, _) in REPLACED_OPERATORS.items() if successor[0] == op and domain == ""
            ]
            for predecessor in older:
                steps += _downgrade_steps(op, domain, version, REPLACED_OPERATORS[predecessor][0][1])
                steps.append(_renaming_step(*predecessor))
                op, version = predecessor
        found = schemas.schema(op, domain, opset)
        if found is not None and found.deprecated:
            raise SpellingMismatch(f"{op} was withdrawn in opset {found.since_version}")
        if found is None:
            raise SpellingMismatch(f"{op} exists from opset {next(iter(schema_versions(op, domain)), '?')} on")
        if found.since_version > version:
            raise SpellingMismatch("it may have an old meaning, which a newer opset does not have")
        steps += _downgrade_steps(op, domain, version, found.since_version)
        return VersionPath(op, found.since_version, tuple(step for step in steps if step.is_downgrade_relevant))
    except SpellingMismatch as mismatch:
        return VersionPath(*start, reason=str(mismatch))


def _downgrade_steps(op: str, domain: str, version: int, target: int) -> Iterator[VersionStep]:
    for passed in reversed([other for other in schema_versions(op, domain) if target < other <= version]):
        yield _version_step(op, domain, passed)
