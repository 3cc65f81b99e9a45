"""The normal form of operators: inside, the newest spelling of a meaning; in files, that of the model's opset.

A schema version is raised to the newest where that changes nothing: read off the schemas (more types, a new attribute
with a default, a new optional input), or said by a table below (an attribute became an input, a default moved). In
doubt a node keeps its version, and then no rule touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import onnx
from onnx.defs import OpSchema

from graphopt.base.errors import ModelError
from graphopt.base.types import DType, Shape, TensorType, Type, divide
from graphopt.ir import ops
from graphopt.ir.edit import constant_node
from graphopt.ir.graph import Attribute, Graph, Node, Opaque, Patch, Scalar, Value
from graphopt.ir.tensor import Tensor, same_values
from graphopt.operators import protos


class Facts(Protocol):
    """What is asked about the graph that a node is in. A Graph is one."""

    @property
    def opsets(self) -> Mapping[str, int]: ...
    def constant(self, value: Value | None) -> Tensor | None: ...
    def tensor_type(self, value: Value | None) -> TensorType | None: ...
    def type(self, value: Value) -> Type | None: ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """A node as one schema version spells it. Inputs that are not in the graph are tensors."""

    op: str
    inputs: tuple[Value | Tensor | None, ...]
    attrs: Mapping[str, Attribute]
    outputs: tuple[bool, ...]
    """For each output, whether it is there."""


class Mismatch(Exception):
    """A spelling has no equal in the other schema version; says why."""


# -- the tables: what changes at a version, counted by the version that brought it -------------------------------------

Key: TypeAlias = tuple[str, int]


class Moved(NamedTuple):
    """An attribute that became an input."""

    attribute: str
    place: int
    kind: Literal["ints", "int", "one int", "float", "floats", "like data"]
    """The tensor: a list, a scalar or a list of one; `like data` is a scalar of the type of the first input."""


_REDUCE = [f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")]
MOVED: Mapping[Key, tuple[Moved, ...]] = {
    ("Reshape", 5): (Moved("shape", 1, "ints"),),
    ("Upsample", 9): (Moved("scales", 1, "floats"),),
    ("Slice", 10): (Moved("starts", 1, "ints"), Moved("ends", 2, "ints"), Moved("axes", 3, "ints")),
    ("TopK", 10): (Moved("k", 1, "one int"),),
    ("Clip", 11): (Moved("min", 1, "like data"), Moved("max", 2, "like data")),
    ("Pad", 11): (Moved("pads", 1, "ints"), Moved("value", 2, "like data")),
    ("Dropout", 12): (Moved("ratio", 1, "float"),),
    ("Split", 13): (Moved("split", 1, "ints"),),
    ("Squeeze", 13): (Moved("axes", 1, "ints"),),
    ("Unsqueeze", 13): (Moved("axes", 1, "ints"),),
    ("ReduceSum", 13): (Moved("axes", 1, "ints"),),
    **{(op, 18): (Moved("axes", 1, "ints"),) for op in _REDUCE},
    ("DFT", 20): (Moved("axis", 2, "int"),),
}

_BROADCASTING = ["Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"]
_CONSUMING = ["Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor"]
_CONSUMING += ["HardSigmoid", "InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu"]
_CONSUMING += ["Reciprocal", "Relu", "Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh"]
ANY: tuple[Attribute, ...] = ()
DROPPED: Mapping[Key, Mapping[str, tuple[Attribute, ...]]] = {
    **{(op, 6): {"consumed_inputs": ANY} for op in _CONSUMING},  # a hint to reuse memory
    ("Reshape", 5): {"consumed_inputs": ANY},
    **{(op, 7): {"broadcast": (0,), "axis": ANY} for op in _BROADCASTING},  # broadcast=1 aligns axes in its own way
    ("Gemm", 7): {"broadcast": ANY},
    ("BatchNormalization", 7): {"is_test": (1,)},
    ("Dropout", 7): {"is_test": (1,)},
    ("BatchNormalization", 9): {"spatial": (1,)},
}
"""Attributes that went away, and the values for which nothing changed by that; the first is written for old opsets."""

DEFAULTS: Mapping[Key, Mapping[str, Attribute]] = {
    ("Concat", 4): {"axis": 1},
    ("Selu", 6): {"alpha": float(np.float32(1.6732)), "gamma": float(np.float32(1.0507))},
    ("Softmax", 13): {"axis": 1},
    ("LogSoftmax", 13): {"axis": 1},
    ("Hardmax", 13): {"axis": 1},
    ("RoiAlign", 16): {"coordinate_transformation_mode": "output_half_pixel"},
    ("DFT", 20): {"axis": 1},
}
"""Attributes whose absence meant another value before."""

KEPT: Mapping[Key, str] = {
    ("Tile", 6): "one axis and a count became a list of repeats",
    ("PRelu", 7): "a slope of one axis belonged to the channels, whatever its place",
    ("LabelEncoder", 2): "it held one list of names",
    ("Pad", 2): "`pads` was called `paddings`",
    ("Clip", 6): "a limit that is absent was infinite",
    ("LpPool", 2): "`p` was a real number",
    ("GlobalLpPool", 2): "`p` was a real number",
    ("Split", 2): "the sizes were an input or an attribute",
    ("GRU", 3): "`direction` and `linear_before_reset` were fixed",
    ("Upsample", 7): "the two scales had names",
    ("GRU", 7): "`output_sequence` decided whether there is a first output",
    ("LSTM", 7): "`output_sequence` decided whether there is a first output",
    ("RNN", 7): "`output_sequence` decided whether there is a first output",
    ("Scan", 9): "had a batch axis",
    ("Resize", 11): "rounds coordinates differently when it shrinks",
    ("OneHot", 11): "negative indices meant `off_value`",
    ("NegativeLogLikelihoodLoss", 13): "the text on ignored labels changed",
    ("SoftmaxCrossEntropyLoss", 13): "the text on ignored labels changed",
    ("GridSample", 20): "the modes have other names",
    ("GroupNormalization", 21): "scale and bias were per group",
    ("Attention", 24): "the causal mask is aligned differently",
    ("Attention", 25): "a short mask is padded differently",
}
"""Versions that mean something else than the one before."""

OPAQUE = frozenset({"Dropout", "BatchNormalization"})
"""Old versions of these that cannot be raised are in training mode: not even their determinism is known."""


# -- conditions: a version means the same as the one before only if … --------------------------------------------------


def _dims(spelling: Spelling, facts: Facts, index: int = 0) -> Shape | None:
    value = spelling.inputs[index] if index < len(spelling.inputs) else None
    if isinstance(value, Tensor):
        return value.shape
    found = facts.tensor_type(value)
    return None if found is None else found.shape


def _over_last_axis(spelling: Spelling, facts: Facts) -> bool:
    """Softmax normalised over all axes from `axis` on; now over that one alone."""
    dims, axis = _dims(spelling, facts), spelling.attrs.get("axis", -1)
    if dims is None or not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
        return False
    return all(dim == 1 for dim in dims[axis % len(dims) + 1 :])


def _floors(spelling: Spelling, facts: Facts) -> bool:  # noqa: ARG001 - all conditions have one signature
    """With `ceil_mode`, windows that begin in the padding behind the data went away in opset 22."""
    return spelling.attrs.get("ceil_mode", 0) == 0


def _says_its_pads(spelling: Spelling, facts: Facts) -> bool:  # noqa: ARG001
    """Where padding is derived, its odd element went to the other end."""
    return "output_shape" not in spelling.attrs and spelling.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _no_mask(spelling: Spelling, facts: Facts) -> bool:  # noqa: ARG001
    """The mask had the type of the data."""
    return not any(spelling.outputs[1:])


def _averages(spelling: Spelling, facts: Facts) -> bool:  # noqa: ARG001
    """The sampling of the other mode was corrected."""
    return spelling.attrs.get("mode", "avg") == "avg"


def _not_to_float8(spelling: Spelling, facts: Facts) -> bool:
    """Infinities became the largest numbers of some 8-bit floats."""
    to = spelling.attrs.get("to")
    if spelling.op == "CastLike":
        found = facts.tensor_type(spelling.inputs[1]) if isinstance(spelling.inputs[1], Value) else None
        to = None if found is None else found.dtype
    return isinstance(to, int) and not DType(to).name.startswith("FLOAT8")


def _says_its_limits(spelling: Spelling, facts: Facts) -> bool:
    """An absent limit was that of float32, infinite in float16; now it is that of the type."""
    found = facts.tensor_type(spelling.inputs[0]) if isinstance(spelling.inputs[0], Value) else None
    both = len(spelling.inputs) == 3 and None not in spelling.inputs
    return both or (found is not None and found.dtype is DType.FLOAT)


Condition: TypeAlias = Callable[[Spelling, Facts], bool]
ONLY_IF: Mapping[Key, Condition] = {
    ("Dropout", 10): _no_mask,
    ("ConvTranspose", 11): _says_its_pads,
    ("Clip", 11): _says_its_limits,
    ("BatchNormalization", 14): _no_mask,  # more outputs mean training
    **{(op, 13): _over_last_axis for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("RoiAlign", 16): _averages,
    **{(op, 22): _floors for op in ("AveragePool", "MaxPool", "LpPool")},
    **{(op, 24): _not_to_float8 for op in ("Cast", "CastLike")},
}


def _tensor(value: Value | Tensor | None, facts: Facts) -> Tensor | None:
    return value if isinstance(value, Tensor) else facts.constant(value)


def _equal_sizes(spelling: Spelling, facts: Facts) -> bool:
    dims = [_dims(spelling, facts, index) for index in range(len(spelling.inputs))]
    return None not in dims and len(set(dims)) == 1


def _never(spelling: Spelling, facts: Facts) -> bool:  # noqa: ARG001
    return False


def _counts_from_the_front(spelling: Spelling, facts: Facts) -> bool:
    axes = [spelling.attrs.get("axis"), spelling.attrs.get("axes")]
    if spelling.op == "Slice" and len(spelling.inputs) > 3 and spelling.inputs[3] is not None:
        tensor = _tensor(spelling.inputs[3], facts)
        axes.append(-1 if tensor is None else tensor.ints())
    numbers = [number for axis in axes for number in (axis if isinstance(axis, tuple) else (axis,))]
    return all(not isinstance(number, int) or number >= 0 for number in numbers)


def _splits_evenly(spelling: Spelling, facts: Facts) -> bool:
    """Without sizes, an old Split makes equal parts; a new one may make the last one smaller."""
    parts, dims, axis = spelling.attrs.get("num_outputs"), _dims(spelling, facts), spelling.attrs.get("axis", 0)
    if not isinstance(parts, int) or not isinstance(axis, int):
        return parts is None
    return parts == len(spelling.outputs) and dims is not None and divide(dims[axis], parts) is not None


_NEGATIVE_AXES = ["ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "Hardmax", "LogSoftmax", "ReduceSum"]
_NEGATIVE_AXES += [*_REDUCE, "Slice", "Softmax", "Split", "Squeeze", "TopK", "Unsqueeze"]
LOWER_IF: Mapping[Key, Condition] = {
    **{(op, 7): _equal_sizes for op in _BROADCASTING},
    **{(op, 8): _equal_sizes for op in ("Max", "Min", "Mean", "Sum")},
    ("Gemm", 7): _never,  # the old way to broadcast a bias
    ("Split", 18): _splits_evenly,
}
"""What the newer version can do and the older cannot, where that is not in the schemas."""


# -- rewrites of single spellings --------------------------------------------------------------------------------------


Change: TypeAlias = Callable[[Spelling, Facts], Spelling]


def _with(spelling: Spelling, **attrs: Attribute) -> Spelling:
    return replace(spelling, attrs={**spelling.attrs, **attrs})


def _as_it_is(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001 - all changes have one signature
    return spelling


def _cast_to_number(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    to = spelling.attrs.get("to")
    if not isinstance(to, str) or to.upper() not in DType.__members__:
        raise Mismatch("`to` is no element type")
    return _with(spelling, to=int(DType[to.upper()]))


def _cast_to_name(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    to = spelling.attrs.get("to")
    assert isinstance(to, int), "`to` of a Cast"
    return _with(spelling, to=DType(to).name)


def _axis_from_the_front(spelling: Spelling, facts: Facts) -> Spelling:
    dims, axis = _dims(spelling, facts), spelling.attrs.get("axis", -1)
    assert dims is not None, "`_over_last_axis` was asked first"
    assert isinstance(axis, int), "`axis` of a Softmax"
    return _with(spelling, axis=axis % len(dims))


def _count_outputs(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    if len(spelling.inputs) > 1 and spelling.inputs[1] is not None:
        return spelling
    return _with(spelling, num_outputs=len(spelling.outputs))


def _forget_count(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    return replace(spelling, attrs={name: value for name, value in spelling.attrs.items() if name != "num_outputs"})


UPSAMPLE: Mapping[str, Attribute] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""What an Upsample does, said of a Resize."""


def _upsample_to_resize(spelling: Spelling, facts: Facts) -> Spelling:
    data, scales = spelling.inputs
    if not _enlarges(scales, facts):
        raise Mismatch("its scales are not known")
    return replace(spelling, op="Resize", inputs=(data, None, scales), attrs={**spelling.attrs, **UPSAMPLE})


def _resize_to_upsample(spelling: Spelling, facts: Facts) -> Spelling:
    attrs = dict(spelling.attrs)
    if any(attrs.pop(name, None) != value for name, value in UPSAMPLE.items()) or attrs.keys() - {"mode"}:
        raise Mismatch("Upsample has no such coordinates")
    data, _, scales, *_ = (*spelling.inputs, None, None)
    if len(spelling.inputs) != 3 or attrs.get("mode") == "cubic" or not _enlarges(scales, facts):
        raise Mismatch("Upsample takes scales that are known, and enlarges")
    return replace(spelling, op="Upsample", inputs=(data, scales), attrs=attrs)


def _enlarges(scales: Value | Tensor | None, facts: Facts) -> bool:
    factors = _tensor(scales, facts)
    return factors is not None and bool((factors.numpy() >= 1).all())


def _scatter_to_elements(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    return replace(spelling, op="ScatterElements")


def _elements_to_scatter(spelling: Spelling, facts: Facts) -> Spelling:  # noqa: ARG001
    return replace(spelling, op="Scatter")


CHANGED: Mapping[Key, tuple[Change, Change]] = {
    ("Cast", 6): (_cast_to_number, _cast_to_name),
    **{(op, 13): (_as_it_is, _axis_from_the_front) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("Split", 18): (_count_outputs, _forget_count),
}
"""What no table above says, up and down."""

RENAMED: Mapping[Key, tuple[Key, Change, Change]] = {
    ("Upsample", 9): (("Resize", 13), _upsample_to_resize, _resize_to_upsample),
    ("Scatter", 9): (("ScatterElements", 11), _scatter_to_elements, _elements_to_scatter),
}
"""Operators that another replaced: the last version of the one, the first of the other that can mean the same."""


# -- one step from version to version ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Two neighbouring schema versions of one operator that can mean the same, or one operator and its successor."""

    old: OpSchema
    new: OpSchema

    @property
    def key(self) -> Key:
        return (self.new.name, self.new.since_version)

    @property
    def renames(self) -> bool:
        return bool(self.old.name != self.new.name)

    @property
    def matters_up(self) -> bool:
        """False where the newer version only has more types, and attributes or inputs that may be absent."""
        tables: tuple[Mapping[Key, object], ...] = (MOVED, DROPPED, DEFAULTS, ONLY_IF, CHANGED)
        wider = all(before <= after for before, after in zip(_types_of(self.old), _types_of(self.new), strict=False))
        return self.renames or not wider or any(self.key in table for table in tables)

    @property
    def matters_down(self) -> bool:
        """False where the two are alike also in what they take."""
        same = self.old.attributes.keys() == self.new.attributes.keys() and _types_of(self.old) == _types_of(self.new)
        options = [formal.option for formal in self.old.inputs] == [formal.option for formal in self.new.inputs]
        return self.matters_up or not same or not options or self.key in LOWER_IF

    def up(self, spelling: Spelling, facts: Facts) -> Spelling:
        """The newer spelling of the same. Raises Mismatch."""
        _check_spelling(self.old, spelling)
        if self.renames:
            return RENAMED[self.old.name, self.old.since_version][1](spelling, facts)
        attrs = dict(spelling.attrs)
        for name, allowed in DROPPED.get(self.key, {}).items():
            value = attrs.pop(name, _default(self.old, name))
            if allowed and value not in allowed:
                raise Mismatch(f"`{name}` is {value!r}")
        for name, value in DEFAULTS.get(self.key, {}).items():
            attrs.setdefault(name, value)
        inputs = list(spelling.inputs)
        for moved in MOVED.get(self.key, ()):
            if moved.attribute in attrs:
                inputs += [None] * (moved.place + 1 - len(inputs))
                inputs[moved.place] = _to_tensor(attrs.pop(moved.attribute), moved, spelling, facts)
        spelling = Spelling(spelling.op, tuple(inputs), attrs, spelling.outputs)
        if self.key in CHANGED:
            spelling = CHANGED[self.key][0](spelling, facts)
        if self.key in ONLY_IF and not ONLY_IF[self.key](spelling, facts):
            raise Mismatch(f"opset {self.key[1]} changed what it means here")
        _check_types(self.new, spelling, facts)
        return spelling

    def down(self, spelling: Spelling, facts: Facts) -> Spelling:
        """The older spelling of the same. Raises Mismatch."""
        if self.renames:
            return RENAMED[self.old.name, self.old.since_version][2](spelling, facts)
        for table in (ONLY_IF, LOWER_IF):
            if self.key in table and not table[self.key](spelling, facts):
                raise Mismatch(f"it relies on what opset {self.key[1]} brought")
        if self.key in CHANGED:
            spelling = CHANGED[self.key][1](spelling, facts)
        inputs, attrs = list(spelling.inputs), dict(spelling.attrs)
        for moved in MOVED.get(self.key, ()):
            value = inputs[moved.place] if moved.place < len(inputs) else None
            if value is not None:
                attrs[moved.attribute] = _to_attribute(value, moved, facts)
                inputs[moved.place] = None
        while len(inputs) > len(self.old.inputs) and inputs[-1] is None:
            inputs.pop()
        spelling = Spelling(spelling.op, tuple(inputs), self._older(attrs), spelling.outputs)
        _check_spelling(self.old, spelling)
        _check_types(self.old, spelling, facts)
        return spelling

    def _older(self, attrs: dict[str, Attribute]) -> dict[str, Attribute]:
        """Attributes without those that the newer version brought, with those that it dropped."""
        defaults = DEFAULTS.get(self.key, {})
        for name in self.new.attributes.keys() - self.old.attributes.keys():
            value = attrs.pop(name, None)
            unchanged = defaults.get(name, _default(self.new, name))
            if name in defaults and value is None:
                value = _default(self.new, name)
            if value is not None and value != unchanged and not (name == "dilations" and _are_ones(value)):
                raise Mismatch(f"`{name}` is new in opset {self.key[1]}")
        for name in defaults.keys() & self.old.attributes.keys():
            if name not in attrs:
                default = _default(self.new, name)
                if default is None:
                    raise Mismatch(f"`{name}` has another default in opset {self.key[1]}")
                attrs[name] = default
        for name, allowed in DROPPED.get(self.key, {}).items():
            if allowed and allowed[0] != _default(self.old, name):
                attrs[name] = allowed[0]
        return attrs


def _check_spelling(schema: OpSchema, spelling: Spelling) -> None:
    """Inputs, outputs and attributes must be those of the schema."""
    version, formals = schema.since_version, schema.inputs
    variadic = OpSchema.FormalParameterOption.Variadic
    if len(spelling.inputs) > len(formals) and not (formals and formals[-1].option == variadic):
        raise Mismatch(f"opset {version} has no input {len(formals)}")
    if len(spelling.outputs) > len(schema.outputs) and schema.outputs[-1].option != variadic:
        raise Mismatch(f"opset {version} has no output {len(schema.outputs)}")
    for index, formal in enumerate(formals):
        absent = index >= len(spelling.inputs) or spelling.inputs[index] is None
        if absent and formal.option == OpSchema.FormalParameterOption.Single:
            raise Mismatch(f"opset {version} needs input {index}")
    names, known = spelling.attrs.keys(), _defaults(schema.name, schema.domain, version).keys()
    if names - known:
        raise Mismatch(f"opset {version} has no `{min(names - known)}`")
    for name in known - names:
        if schema.attributes[name].required:
            raise Mismatch(f"opset {version} needs `{name}`")


@cache
def _defaults(op: str, domain: str, version: int) -> Mapping[str, Attribute | None]:
    found = ops.schema(op, domain, version)
    assert found is not None, (op, version)
    return {name: ops.attribute_value(attribute.default_value) for name, attribute in found.attributes.items()}


def _default(schema: OpSchema, name: str) -> Attribute | None:
    return _defaults(schema.name, schema.domain, schema.since_version).get(name)


def _are_ones(value: Attribute) -> bool:
    return isinstance(value, tuple) and all(item == 1 for item in value)


def _to_tensor(attribute: Attribute, moved: Moved, spelling: Spelling, facts: Facts) -> Tensor:
    if isinstance(attribute, Opaque):
        raise Mismatch(f"`{moved.attribute}` is no plain value")
    dtype = DType.FLOAT if moved.kind.startswith("float") else DType.INT64
    if moved.kind == "like data":
        data = spelling.inputs[0]
        found = facts.tensor_type(data) if isinstance(data, Value) else None
        if found is None:
            raise Mismatch("the type of its data is not known")
        dtype = found.dtype
    with np.errstate(over="ignore"):  # the limits of float32 are infinite in float16
        array = np.array(attribute, np.float64 if dtype.is_float else None).astype(dtype.numpy)
    return Tensor.of(array.reshape(1) if moved.kind == "one int" else array)


def _to_attribute(value: Value | Tensor, moved: Moved, facts: Facts) -> Attribute:
    tensor = _tensor(value, facts)
    if tensor is None or not tensor.is_small:
        raise Mismatch(f"`{moved.attribute}` is not constant")
    array = tensor.numpy()
    items: tuple[Scalar, ...]
    if tensor.dtype.is_integer:
        items = tuple(int(item) for item in array.ravel())
    else:
        items = tuple(float(item) for item in array.ravel())
        if any(float(np.float32(item)) != item and item == item for item in items):
            raise Mismatch(f"`{moved.attribute}` is more than a float32")
    if moved.kind in ("ints", "floats"):
        if not items:
            raise Mismatch(f"`{moved.attribute}` is empty")
        return items
    if len(items) != 1:
        raise Mismatch(f"`{moved.attribute}` is no single value")
    return float(items[0]) if moved.kind == "like data" and isinstance(items[0], int) else items[0]


@cache
def _types(op: str, domain: str, version: int) -> tuple[frozenset[str], ...]:
    found = ops.schema(op, domain, version)
    assert found is not None, (op, version)
    return tuple(frozenset(formal.types) for formal in found.inputs)


def _check_types(schema: OpSchema, spelling: Spelling, facts: Facts) -> None:
    """An input of a known type must have one that the schema takes."""
    allowed = _types(schema.name, schema.domain, schema.since_version)
    for index, value in enumerate(spelling.inputs):
        if value is None:
            continue
        text = type_text(TensorType(value.dtype) if isinstance(value, Tensor) else facts.type(value))
        if text is not None and text not in allowed[min(index, len(allowed) - 1)]:
            raise Mismatch(f"opset {schema.since_version} has no {schema.name} of {text}")


def type_text(type_: Type | None) -> str | None:
    """A type as schemas write it; None for one that is not known, or that they do not have."""
    if isinstance(type_, TensorType):
        return f"tensor({type_.dtype.name.lower()})"
    return None if type_ is None else _proto_text(protos.type_to_proto(type_))


def _proto_text(proto: onnx.TypeProto) -> str | None:
    match proto.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_proto_text(proto.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_proto_text(proto.optional_type.elem_type)})"
    return type_text(protos.type_from_proto(proto)) if proto.HasField("tensor_type") else None


# -- ways from version to version --------------------------------------------------------------------------------------


@cache
def difference(op: str, domain: str, version: int) -> str | None:
    """Why a schema version can never mean the same as the one before; None where it can, says `Step` when."""
    old, new = ops.schema(op, domain, version - 1), ops.schema(op, domain, version)
    assert old is not None, (op, version)
    assert new is not None, (op, version)
    key = (op, version)
    if key in KEPT or new.deprecated:
        return KEPT.get(key, "it was withdrawn")
    moved = {move.place for move in MOVED.get(key, ())}
    gone = {move.attribute for move in MOVED.get(key, ())} | DROPPED.get(key, {}).keys()
    optional, single = OpSchema.FormalParameterOption.Optional, OpSchema.FormalParameterOption.Single
    for before, after in zip(old.inputs, new.inputs, strict=False):
        if before.option != after.option and (before.option, after.option) != (single, optional):
            return f"the input {after.name} is another"
    if len(new.inputs) < len(old.inputs):
        return "it has fewer inputs"
    for index, formal in enumerate(new.inputs[len(old.inputs) :], len(old.inputs)):
        if formal.option != optional and index not in moved:
            return f"the input {formal.name} is required"
    if key not in ONLY_IF and [o.option for o in old.outputs] != [o.option for o in new.outputs][: len(old.outputs)]:
        return "the outputs are others"
    for name in old.attributes.keys() | new.attributes.keys():
        complaint = _attribute_difference(old, new, name)
        if complaint and name not in gone and name not in DEFAULTS.get(key, {}) and key not in CHANGED:
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
    return None if _default(old, name) == _default(new, name) else f"the default of `{name}` is another"


@cache
def versions(op: str, domain: str = "") -> tuple[int, ...]:
    """All schema versions of an operator up to the newest that rules are written for, oldest first."""
    found: list[int] = []
    latest = ops.schema(op, domain, ops.OPSET if domain == "" else 1_000)
    while latest is not None:
        found.append(latest.since_version)
        latest = ops.schema(op, domain, latest.since_version - 1)
    return tuple(reversed(found))


def _step(op: str, domain: str, version: int) -> Step:
    """The step to a version from the one before. Raises Mismatch where there can be none."""
    complaint = difference(op, domain, version)
    if complaint:
        raise Mismatch(f"in opset {version} {complaint}")
    old, new = ops.schema(op, domain, version - 1), ops.schema(op, domain, version)
    assert old is not None, (op, version)
    assert new is not None, (op, version)
    return Step(old, new)


def _renaming(op: str, version: int) -> Step:
    """The step from the last version of an operator to its successor."""
    (successor, since), _, _ = RENAMED[op, version]
    old, new = ops.schema(op, "", version), ops.schema(successor, "", since)
    assert old is not None, op
    assert new is not None, successor
    return Step(old, new)


class Way(NamedTuple):
    """The steps from one schema version to another, in order, and where they end. `reason` if there is no way."""

    op: str
    version: int
    steps: tuple[Step, ...] = ()
    reason: str = ""


@cache
def way_up(op: str, domain: str, version: int) -> Way:
    """From a schema version to the newest."""
    steps: list[Step] = []
    start = (op, version)
    try:
        while True:
            if domain == "" and (op, version) in RENAMED:
                steps.append(_renaming(op, version))
                op, version = RENAMED[op, version][0]
            newer = [other for other in versions(op, domain) if other > version]
            if not newer:
                return Way(op, version, tuple(step for step in steps if step.matters_up))
            steps.append(_step(op, domain, newer[0]))
            version = newer[0]
    except Mismatch as mismatch:
        return Way(*start, reason=str(mismatch))


@cache
def way_down(op: str, domain: str, version: int, opset: int) -> Way:
    """From a schema version to what an opset has for it."""
    start = (op, version)
    steps: list[Step] = []
    try:
        if ops.schema(op, domain, opset) is None:
            older = [key for key, (successor, _, _) in RENAMED.items() if successor[0] == op and domain == ""]
            for predecessor in older:
                steps += _steps_down(op, domain, version, RENAMED[predecessor][0][1])
                steps.append(_renaming(*predecessor))
                op, version = predecessor
        found = ops.schema(op, domain, opset)
        if found is None or found.deprecated:
            raise Mismatch(f"{op} exists from opset {next(iter(versions(op, domain)), '?')} on")
        if found.since_version > version:
            raise Mismatch("it has an old meaning, which a newer opset does not have")
        steps += _steps_down(op, domain, version, found.since_version)
        return Way(op, found.since_version, tuple(step for step in steps if step.matters_down))
    except Mismatch as mismatch:
        return Way(*start, reason=str(mismatch))


def _steps_down(op: str, domain: str, version: int, target: int) -> Iterator[Step]:
    for passed in reversed([other for other in versions(op, domain) if target < other <= version]):
        yield _step(op, domain, passed)


def _types_of(schema: OpSchema) -> tuple[frozenset[str], ...]:
    return _types(schema.name, schema.domain, schema.since_version)


# -- nodes -------------------------------------------------------------------------------------------------------------


def version(op: str, domain: str, opsets: Mapping[str, int]) -> int:
    """The `since_version` of the schema that gives an operator its meaning; 0 where none is known."""
    if opsets.get(domain, 0) > _newest_opset(domain):
        return 0  # nobody here knows whether it still means the same
    found = ops.schema(op, domain, opsets.get(domain, 0))
    return found.since_version if found and not found.deprecated else 0


@cache
def _newest_opset(domain: str) -> int:
    """The last opset that the installed onnx package describes."""
    if domain == "":
        return onnx.defs.onnx_opset_version()
    found = [s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
    return max(found, default=0)


class _Declared:
    """A graph as it is read: a shape that is declared within it is not believed, for inference may not confirm it."""

    def __init__(self, graph: Graph, *, is_main: bool) -> None:
        self.graph, self.is_main, self.opsets, self.constant = graph, is_main, graph.opsets, graph.constant

    def tensor_type(self, value: Value | None) -> TensorType | None:
        found = None if value is None else self.type(value)
        return found if isinstance(found, TensorType) else None

    def type(self, value: Value) -> Type | None:
        found, node = self.graph.type(value), self.graph[value.vertex]
        is_sure = node.is_constant or (self.is_main and node.is_given)
        return TensorType(found.dtype) if isinstance(found, TensorType) and not is_sure else found


def raise_declared(graph: Graph) -> None:
    """Raise the nodes of a graph and of its bodies for which that rests on no shape that is to be inferred."""
    for inner in [*graph.graphs()]:
        _raise(inner, _Declared(inner, is_main=inner is graph))


def raise_nodes(graph: Graph) -> None:
    """Raise every node of a graph and of its bodies, as far as their types are known by now."""
    for inner in [*graph.graphs()]:
        _raise(inner, inner)


def _raise(graph: Graph, facts: Facts) -> None:
    after = {}
    for vertex, node in [*graph.nodes()]:
        newer = raised(node, graph, facts)
        if newer is not node:
            after[vertex] = newer
    graph.apply(Patch({vertex: graph[vertex] for vertex in after}, after))


def raised(node: Node, graph: Graph, facts: Facts) -> Node:
    """The node in the newest spelling of its operator; itself where the facts do not show that it means the same.

    Attributes that became inputs are added to the graph as constants. `extra` keeps how the node was spelled.
    """
    if not node.version:
        return node
    way = way_up(node.op, node.domain, node.version)
    if way.version == node.version and not way.reason:
        return node
    spelling = _spelling(node)
    try:
        if way.reason:
            raise Mismatch(way.reason)
        for step in way.steps:
            spelling = step.up(spelling, facts)
    except Mismatch:
        return replace(node, version=0) if node.op in OPAQUE else node
    if not way.steps:
        return replace(node, version=way.version)
    base = next(filter(None, node.names), node.op)
    inputs = tuple(_in_graph(value, graph, base) for value in spelling.inputs)
    return replace(
        node, op=way.op, inputs=inputs, attrs=spelling.attrs, version=way.version, extra=_with_old_spelling(node)
    )


def _spelling(node: Node) -> Spelling:
    return Spelling(node.op, node.inputs, node.attrs, tuple(map(bool, node.names)))


def _in_graph(value: Value | Tensor | None, graph: Graph, base: str) -> Value | None:
    if isinstance(value, Tensor):
        return Value(graph.add(constant_node(value, graph.new_name(f"{base}_const"))))
    return value


def _with_old_spelling(node: Node) -> bytes:
    """The node's `extra` with its attributes, and as many nameless inputs as it has."""
    extra = onnx.NodeProto()
    extra.ParseFromString(node.extra)
    if not extra.attribute:
        extra.attribute.extend(protos.attribute_to_proto(name, value) for name, value in node.attrs.items())
    del extra.input[:]
    extra.input.extend([""] * len(node.inputs))
    return bytes(extra.SerializeToString())


def lowered(node: Node, facts: Facts) -> Node:
    """The node as the model's own opset spells it: as it was loaded, unless it was changed since.

    Raises:
        ModelError: the opset cannot express it.
    """
    opset = facts.opsets.get(node.domain, 0)
    if not node.version:
        return _as_loaded(node, node, facts)
    way = way_down(node.op, node.domain, node.version, opset)
    if not way.reason and not way.steps and not node.extra:
        return node
    spelling, reason = _spelling(node), way.reason
    try:
        for step in way.steps:
            spelling = step.down(spelling, facts)
    except Mismatch as mismatch:
        reason = str(mismatch)
    if not reason:
        older = replace(node, op=way.op, inputs=_values(spelling.inputs), attrs=spelling.attrs, version=way.version)
        return _as_loaded(node, older, facts)
    known = ops.schema(node.op, node.domain, opset)
    if node.extra and known is not None:
        count = len(_parsed(node.extra).input)
        older = replace(node, inputs=node.inputs[:count], version=known.since_version)
        found = _as_loaded(node, older, facts)
        if found is not older:
            return found
    label = node.name or next(filter(None, node.names), "")
    raise ModelError(f"{node.op} '{label}' cannot be written in opset {opset}: {reason}")


def why_not(node: Node, facts: Facts) -> str | None:
    """Why a new node cannot be written in the model's opset; None where it can.

    Negative axes came with opset 11. ONNX Runtime takes them in older models too, so such a model is carried, but no
    such node is made.
    """
    early = facts.opsets.get(node.domain, 0) < 11 and node.domain == ""
    if early and node.op in _NEGATIVE_AXES and not _counts_from_the_front(_spelling(node), facts):
        return f"{node.op} takes no negative axes before opset 11"
    try:
        lowered(node, facts)
    except ModelError as error:
        return str(error)
    return None


def emittable(op: str, domain: str, opsets: Mapping[str, int]) -> bool:
    """Whether the newest meaning of an operator can be expressed at all; `why_not` tells of a single node."""
    newest = ops.newest(op, domain)
    return bool(newest and domain in opsets and not way_down(op, domain, newest, opsets[domain]).reason)


def _values(inputs: tuple[Value | Tensor | None, ...]) -> tuple[Value | None, ...]:
    assert not any(isinstance(value, Tensor) for value in inputs), "lowering makes no tensors"
    return tuple(value for value in inputs if not isinstance(value, Tensor))


def _parsed(extra: bytes) -> onnx.NodeProto:
    proto = onnx.NodeProto()
    proto.ParseFromString(extra)
    return proto


def _as_loaded(node: Node, older: Node, facts: Facts) -> Node:
    """`older`, with the attributes that the node was loaded with if these still say the same as the node."""
    extra = _parsed(node.extra) if node.extra else None
    if extra is None or not (extra.attribute or extra.input):
        return older
    old = {proto.name: protos.attribute_from_proto(proto) for proto in extra.attribute}
    inputs = older.inputs[: len(extra.input)]
    inputs += (None,) * (len(extra.input) - len(inputs))
    spelling = Spelling(older.op, inputs, old, tuple(map(bool, node.names)))
    try:
        for step in way_up(older.op, older.domain, older.version).steps if older.version else ():
            spelling = step.up(spelling, facts)
    except Mismatch:
        return older
    if not _is_spelled(node, spelling, facts):
        return older
    attrs = {proto.name: Opaque(proto.SerializeToString()) for proto in extra.attribute}
    return replace(older, inputs=inputs, attrs=attrs)


def _is_spelled(node: Node, spelling: Spelling, facts: Facts) -> bool:
    """Whether the node is this spelling, a tensor being as good as a constant with its values."""
    inputs, attrs = _trimmed(node.inputs), spelling.attrs
    if node.attrs.keys() != attrs.keys() or len(inputs) != len(_trimmed(spelling.inputs)):
        return False
    for value, spelled in zip(inputs, spelling.inputs, strict=False):
        tensor = _tensor(value, facts)
        if value != spelled and not (isinstance(spelled, Tensor) and tensor and same_values(tensor, spelled)):
            return False
    return all(_same_attribute(value, attrs[name]) for name, value in node.attrs.items())


def _trimmed(inputs: tuple[Value | Tensor | None, ...]) -> tuple[Value | Tensor | None, ...]:
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


def _same_attribute(a: Attribute, b: Attribute) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_values(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    return type(a) is type(b) and a == b
