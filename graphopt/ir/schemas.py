"""Facts about operators that the schemas of the onnx package state; other facts are in the table of `operators/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from string import ascii_letters
from typing import Any, ParamSpec, TypeVar

import onnx
from onnx.defs import OpSchema

from graphopt.base.dtype import DType
from graphopt.base.session import current_session
from graphopt.ir.graph import IDENTITY, INPUT, Attribute, Node

RULE_OPSET = min(onnx.defs.onnx_opset_version(), 28)
"""The opset whose meanings of operators rules are written for, and proved for: a later onnx package changes none."""

MAX_LOADED_OPSET = min(RULE_OPSET, 26)
"""The newest opset that ONNX Runtime loads. Models with an operator that is newer are run by `onnx.reference`."""

NO_LIMIT = 2**31 - 1
"""Number by which the onnx package writes that there is no limit to inputs or outputs."""

ANY_POINTWISE, ANY_BINARY, ANY_REDUCTION = "any pointwise", "any binary", "any reduction"
"""The domains in which a rule's holes for operators are: an operator there may be any one of the class."""


def _elementwise_schema(domain: str, operands: str) -> OpSchema:
    """Return the schema of every elementwise operator: any element types, and no attributes that a rule could name."""
    variables = [f"T{operand}" for operand in operands]
    identity = onnx.defs.get_schema(IDENTITY, RULE_OPSET)
    every = [name for name in identity.type_constraints[0].allowed_type_strs if name.startswith("tensor(")]
    return OpSchema(
        *("operator", domain, 1),
        inputs=[OpSchema.FormalParameter(operand, f"T{operand}") for operand in operands],
        outputs=[OpSchema.FormalParameter("y", "U")],
        type_constraints=[(variable, every, "") for variable in (*variables, "U")],
    )


def _reduction_schema() -> OpSchema:
    """Return the schema of every reduction: that of the reduction with the most element types, which keeps them."""
    widest = onnx.defs.get_schema("ReduceMax", RULE_OPSET)
    types = [(each.type_param_str, each.allowed_type_strs, "") for each in widest.type_constraints]
    attributes = list(widest.attributes.values())
    return OpSchema(
        *("operator", ANY_REDUCTION, 1),
        inputs=list(widest.inputs),
        outputs=list(widest.outputs),
        type_constraints=types,
        attributes=attributes,
    )


CLASS_SCHEMAS: Mapping[str, OpSchema] = {
    ANY_POINTWISE: _elementwise_schema(ANY_POINTWISE, "x"),
    ANY_BINARY: _elementwise_schema(ANY_BINARY, "ab"),
    ANY_REDUCTION: _reduction_schema(),
}
"""The classes by domain.

To a proof, each element of the output of an operator on elements is a function of the elements of its operands in that
place, which broadcast. The function depends on the operator, its attributes, its other inputs, and the element types of
its operands, as does the element type of its output; it may be undefined anywhere. A reduction is a function of a whole
tensor, of the axes along which it runs, and of the place among the others.
"""


P = ParamSpec("P")
R = TypeVar("R")


def memoized_by_schema(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function work out each answer once, until an operator is defined."""

    @wraps(function)
    def remembering(*args: P.args, **keywords: P.kwargs) -> R:
        found: R = current_session().definitions.memos[function](*args, **keywords)
        return found

    return remembering


def is_defined_operator(op: str, domain: str) -> bool:
    """Return whether an operator is known by its declaration alone."""
    return domain != "" and current_session().definitions.schema((op, domain)) is not None


def schema(op: str, domain: str = "", opset: int = RULE_OPSET) -> OpSchema | None:
    """Return the schema in force at an opset, None for an operator that is neither declared nor in the onnx package."""
    if domain in CLASS_SCHEMAS:
        return CLASS_SCHEMAS[domain]
    if domain and (declared := current_session().definitions.schema((op, domain))) is not None:
        found: OpSchema = declared  # of all versions of its domain
        return found if opset else None
    return _onnx_schema(op, domain, opset)


@cache
def _onnx_schema(op: str, domain: str, opset: int) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None


@dataclass(frozen=True, slots=True)
class SchemaForm:
    """Demands of a schema on a node, read once: a schema makes new lists and dictionaries whenever it is asked."""

    inputs: tuple[int, int] = (0, NO_LIMIT)
    """The least and the greatest number."""
    outputs: tuple[int, int] = (0, NO_LIMIT)
    required_inputs: tuple[int, ...] = ()
    """The inputs that may not be left out."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Kinds of attributes, by name: members of `AttributeProto.AttributeType`."""
    required_attributes: frozenset[str] = frozenset()


@memoized_by_schema
def schema_form(op: str, domain: str = "", opset: int = RULE_OPSET) -> SchemaForm | None:
    """Return what the schema in force at an opset demands; None where there is no schema."""
    found = schema(op, domain, opset)
    if found is None:
        return None
    single = OpSchema.FormalParameterOption.Single
    attributes = found.attributes
    return SchemaForm(
        (found.min_input, found.max_input),
        (found.min_output, found.max_output),
        tuple(index for index, given in enumerate(found.inputs) if given.option == single),
        {name: int(each.type.value) for name, each in attributes.items()},  # type: ignore[attr-defined]
        frozenset(name for name, attribute in attributes.items() if attribute.required),
    )


@memoized_by_schema
def newest_version(op: str, domain: str = "") -> int:
    """Return the `since_version` of the newest schema: the meaning that rules are written for. 0 if there is none."""
    found = schema(op, domain, RULE_OPSET if domain == "" else 1_000)
    return found.since_version if found and not found.deprecated else 0


def operator_names(domain: str = "") -> frozenset[str]:
    """Return the operators of a domain."""
    shipped = (known.name for known in onnx.defs.get_all_schemas() if known.domain == domain)
    return frozenset(shipped).union(op for op, own in current_session().definitions if own == domain)


def attribute_removed_in(op: str, attribute: str) -> int | None:
    """Return the first opset in which an operator no longer has an attribute that it had; None if it never had it."""
    versions = (known for known in onnx.defs.get_all_schemas_with_history() if (known.name, known.domain) == (op, ""))
    has = {known.since_version: attribute in known.attributes for known in versions}
    last = max((version for version, had in has.items() if had), default=None)
    return None if last is None else min((version for version in has if version > last), default=None)


@memoized_by_schema
def is_optional_input(op: str, domain: str, position: int) -> bool:
    """Return whether an operator may lack an input."""
    found = schema(op, domain, RULE_OPSET if domain == "" else 1)
    if found is None or position >= len(found.inputs):
        return False
    return bool(found.inputs[position].option == OpSchema.FormalParameterOption.Optional)


@memoized_by_schema
def is_required_attribute(op: str, attribute: str, domain: str = "") -> bool:
    """Return whether an operator has to be given an attribute."""
    found = schema(op, domain)
    return found is not None and attribute in found.attributes and bool(found.attributes[attribute].required)


@memoized_by_schema
def _input_type(op: str, domain: str, position: int) -> tuple[str, frozenset[DType]]:
    """Return the type variable of an input, and the element types that it may be. A variadic one may have one for
    each."""
    found = schema(op, domain, RULE_OPSET if domain == "" else 1)
    if found is None or not found.inputs:
        return f"#{position}", frozenset()
    formal = found.inputs[min(position, len(found.inputs) - 1)]
    named = {c.type_param_str: c.allowed_type_strs for c in found.type_constraints}.get(formal.type_str)
    allowed = frozenset(filter(None, map(DType.from_type_text, named or [formal.type_str])))
    free = formal.option == OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
    return (f"{formal.type_str}#{position}" if free else str(formal.type_str)), allowed


_INDEX_DTYPES = frozenset({DType.INT32, DType.INT64})


def literal_dtype(
    op: str, domain: str, position: int, others: Sequence[DType | None], made: DType, *, whole: bool
) -> DType:
    """Return the element type of numbers that a rule writes as an input; UNDEFINED where nothing determines it.

    The schema may determine it: a fixed type, that of another input with the same type variable (`others`, by position,
    None for one without a type of its own), or that of the output (`made`, UNDEFINED where it is not known). Otherwise
    indices are 64-bit integers, and other numbers have the type of the first input if that is allowed, as an exponent
    does, but are not truth values because a truth value selects them; else they are 64-bit integers where whole, or
    floats.
    """
    name, allowed = _input_type(op, domain, position)
    if len(allowed) == 1:
        return next(iter(allowed))
    known = {other: d for other, d in enumerate(others) if d and other != position}
    found = schema(op, domain, RULE_OPSET if domain == "" else 1)
    likely = [
        *(dtype for other, dtype in known.items() if _input_type(op, domain, other)[0] == name),
        *([made] if found and found.outputs[0].type_str == name else []),
        *([first] if (first := known.get(0)) not in (None, DType.BOOL) and not allowed <= _INDEX_DTYPES else []),
        *([DType.INT64] if whole or DType.FLOAT not in allowed else [DType.FLOAT]),
    ]
    return next((dtype for dtype in likely if dtype in allowed), DType.UNDEFINED)


def schema_of(node: Node) -> OpSchema | None:
    """Return the schema that gives a node its meaning."""
    return schema(node.op, node.domain, node.version) if node.version else None


@memoized_by_schema
def is_random(op: str, domain: str = "", opset: int = RULE_OPSET) -> bool:
    """Return whether two equal nodes may give two results: every operator that takes a seed does.

    One that draws in training alone has an input for that, and is not meant.
    """
    found = schema(op, domain, opset)
    return found is not None and "seed" in found.attributes and _training_mode_index(found) is None


def training_mode_input(op: str) -> int | None:
    """Return the input that says whether an operator draws at random, as in training; None where none does."""
    found = schema(op)
    return None if found is None else _training_mode_index(found)


def _training_mode_index(found: OpSchema) -> int | None:
    return next((place for place, formal in enumerate(found.inputs) if formal.name == "training_mode"), None)


def is_deterministic(node: Node) -> bool:
    """Return True where the outputs are a function of the inputs: a known operator, not random, bodies included.

    Dropout in training mode is not: ORT draws the mask.
    """
    if node.is_internal:
        return node.op != INPUT
    found = schema_of(node)
    mode = None if found is None else _training_mode_index(found)
    is_training = mode is None or (mode < len(node.inputs) and node.inputs[mode] is not None)
    if node.version == 0 or (found is not None and "seed" in found.attributes and is_training):
        return False
    return all(is_deterministic(inner) for body in node.bodies for _, inner in body.nodes())


def attribute_or_default(node: Node, name: str) -> Attribute | None:
    """Return the value of an attribute as the node gives it, or the default of the schema; None where neither does.

    The equation of an Einsum comes in its canonical form: the letters that a model uses mean nothing.
    """
    value = node.attrs[name] if name in node.attrs else attribute_default(node, name)
    return canonical_equation(value) if name == "equation" and isinstance(value, str) else value


def attribute_default(node: Node, name: str) -> Attribute | None:
    """Return the value that the schema gives an absent attribute, None where it has none."""
    found = schema_of(node)
    if found is None or name not in found.attributes:
        return None
    proto = found.attributes[name].default_value
    return None if proto.type == onnx.AttributeProto.UNDEFINED else attribute_value(proto)


def canonical_equation(equation: str) -> str:
    """Return an Einsum equation without spaces, its letters named in the order in which they appear, its result written
    out.

    "b h i d, b h j d -> b h i j" is "abcd,abed->abce", and "ij,jk" is "ab,bc->ac".
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    letters = [letter for letter in operands if letter.isalpha()]
    if not arrow:
        result = "..." * ("..." in operands) + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    distinct = "".join(dict.fromkeys(letters))
    return f"{operands}->{result}".translate(str.maketrans(distinct, ascii_letters[: len(distinct)]))


def attribute_value(proto: onnx.AttributeProto) -> Attribute | None:
    """Return a plain attribute as Python data; None for one that holds tensors, graphs or types, or nothing."""
    kinds = onnx.AttributeProto
    match proto.type:
        case kinds.INT:
            return int(proto.i)
        case kinds.FLOAT:
            return float(proto.f)
        case kinds.STRING:
            return decode_string(proto.s)
        case kinds.INTS:
            return tuple(int(i) for i in proto.ints) or None
        case kinds.FLOATS:
            return tuple(float(f) for f in proto.floats) or None
        case kinds.STRINGS:
            return tuple(decode_string(s) for s in proto.strings) or None
    return None


@memoized_by_schema
def body_value_attributes(op: str) -> tuple[str, ...]:
    """Return the attributes whose values the body of the schema depends on: none where one body serves for all."""
    known: Any = schema(op)  # of which the package's type stubs do not say all
    return () if known.has_function else tuple(sorted(known.attributes))


def schema_function_body(
    op: str, inputs: Sequence[tuple[DType, int] | None], outputs: int, attrs: Mapping[str, int | float | str]
) -> onnx.FunctionProto | None:
    """Return an operator as a function of others: the body of its schema, or the one that it makes for a node.

    Inputs are given by their element types and ranks; a body that is made has as many outputs as the node.
    """
    known: Any = schema(op)
    if known.has_function:
        found: onnx.FunctionProto = known.function_body
        return found
    if not known.has_context_dependent_function:
        return None
    node = onnx.NodeProto(op_type=op, output=[f"output_{i}" for i in range(outputs)])
    node.input.extend("" if given is None else f"input_{i}" for i, given in enumerate(inputs))
    for name, value in attrs.items():
        _set_attribute(node.attribute.add(name=name), value)
    types = [onnx.TypeProto() for _ in inputs]
    for type_, given in zip(types, inputs, strict=True):
        if given is not None:
            type_.tensor_type.elem_type, rank = given
            type_.tensor_type.shape.dim.extend([onnx.TensorShapeProto.Dimension()] * rank)
    made = known.get_context_dependent_function(node.SerializeToString(), [t.SerializeToString() for t in types])
    if not made:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(made)
    del function.output[outputs:]
    return function


def _set_attribute(proto: onnx.AttributeProto, value: int | float | str) -> None:
    match value:
        case int():
            proto.type, proto.i = onnx.AttributeProto.INT, value
        case float():
            proto.type, proto.f = onnx.AttributeProto.FLOAT, value
        case str():
            proto.type, proto.s = onnx.AttributeProto.STRING, value.encode()


def normalize_domain(name: str) -> str:
    """Return the name of a domain; that of the ONNX operators has two."""
    return "" if name == "ai.onnx" else name


def decode_string(raw: bytes) -> str | bytes:
    """Return an ONNX string, which is bytes, as text where it is UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
