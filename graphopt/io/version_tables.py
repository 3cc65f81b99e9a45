"""Tables of the changes in the spelling of an operator from version to version; `version_paths` follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from graphopt.base.dtype import DType
from graphopt.expr.dims import Dim, SymbolicDim, divide_dim
from graphopt.ir.graph import Attribute, Value
from graphopt.ir.tensor import Tensor
from graphopt.ir.types import Shape, TensorType, Type


class GraphFacts(Protocol):
    """Facts that are asked of the graph that a node is in. A Graph is one."""

    @property
    def opsets(self) -> Mapping[str, int]: ...
    def constant(self, value: Value | None) -> Tensor | None: ...
    def tensor_type(self, value: Value | None) -> TensorType | None: ...
    def value_type(self, value: Value) -> Type | None: ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """A node as one schema version spells it. Inputs that are not in the graph are tensors."""

    op: str
    inputs: tuple[Value | Tensor | None, ...]
    attrs: Mapping[str, Attribute]
    outputs: tuple[bool, ...]
    """Presence of each output."""


class SpellingMismatch(Exception):
    """A spelling has no equal in the other schema version; says why."""


# -- what changes at a version, counted by the version that brought it -------------------------------------------------


VersionKey: TypeAlias = tuple[str, int]


class MovedAttribute(NamedTuple):
    """An attribute that became an input."""

    attribute: str
    place: int
    kind: Literal["ints", "int", "one int", "float", "floats", "like data"]
    """The tensor: a list, a scalar or a list of one; `like data` is a scalar of the type of the first input."""


_REDUCE = [f"Reduce{name}" for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")]
MOVED_ATTRIBUTES: Mapping[VersionKey, tuple[MovedAttribute, ...]] = {
    ("Reshape", 5): (MovedAttribute("shape", 1, "ints"),),
    ("Upsample", 9): (MovedAttribute("scales", 1, "floats"),),
    ("Slice", 10): (
        MovedAttribute("starts", 1, "ints"),
        MovedAttribute("ends", 2, "ints"),
        MovedAttribute("axes", 3, "ints"),
    ),
    ("TopK", 10): (MovedAttribute("k", 1, "one int"),),
    ("Clip", 11): (MovedAttribute("min", 1, "like data"), MovedAttribute("max", 2, "like data")),
    ("Pad", 11): (MovedAttribute("pads", 1, "ints"), MovedAttribute("value", 2, "like data")),
    ("Dropout", 12): (MovedAttribute("ratio", 1, "float"),),
    ("Split", 13): (MovedAttribute("split", 1, "ints"),),
    ("Squeeze", 13): (MovedAttribute("axes", 1, "ints"),),
    ("Unsqueeze", 13): (MovedAttribute("axes", 1, "ints"),),
    ("ReduceSum", 13): (MovedAttribute("axes", 1, "ints"),),
    **{(op, 18): (MovedAttribute("axes", 1, "ints"),) for op in _REDUCE},
    ("DFT", 20): (MovedAttribute("axis", 2, "int"),),
}


_BROADCASTING_OPERATORS = ["Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"]
_CONSUMING_OPERATORS = (
    *("Abs", "Add", "BatchNormalization", "Ceil", "Clip", "Div", "Dropout", "Elu", "Exp", "Floor", "HardSigmoid"),
    *("InstanceNormalization", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mul", "Neg", "PRelu", "Reciprocal", "Relu"),
    *("Selu", "Sigmoid", "Sqrt", "Sub", "Sum", "Tanh"),
)

ANY_VALUE: tuple[Attribute, ...] = ()
DROPPED_ATTRIBUTES: Mapping[VersionKey, Mapping[str, tuple[Attribute, ...]]] = {
    **{(op, 6): {"consumed_inputs": ANY_VALUE} for op in _CONSUMING_OPERATORS},  # a hint to reuse memory
    ("Reshape", 5): {"consumed_inputs": ANY_VALUE},
    **{
        (op, 7): {"broadcast": (0,), "axis": ANY_VALUE} for op in _BROADCASTING_OPERATORS
    },  # broadcast=1 aligns axes in its own way
    ("Gemm", 7): {"broadcast": ANY_VALUE},
    ("BatchNormalization", 7): {"is_test": (1,)},
    ("Dropout", 7): {"is_test": (1,)},
    ("BatchNormalization", 9): {"spatial": (1,)},
}
"""Attributes that went away, and the values for which nothing changed by that; the first is written for old opsets."""


CHANGED_DEFAULTS: Mapping[VersionKey, Mapping[str, Attribute]] = {
    ("Concat", 4): {"axis": 1},
    ("Selu", 6): {"alpha": float(np.float32(1.6732)), "gamma": float(np.float32(1.0507))},
    ("Softmax", 13): {"axis": 1},
    ("LogSoftmax", 13): {"axis": 1},
    ("Hardmax", 13): {"axis": 1},
    ("RoiAlign", 16): {"coordinate_transformation_mode": "output_half_pixel"},
    ("DFT", 20): {"axis": 1},
}
"""Attributes whose absence meant another value before."""


INCOMPATIBLE_VERSIONS: Mapping[VersionKey, str] = {
    ("Tile", 6): "one axis and a count became a list of repeats",
    ("PRelu", 7): "a slope of one axis no longer belongs to the channels, whatever its place",
    ("LabelEncoder", 2): "two lists replaced its one list of names",
    ("Pad", 2): "`paddings` became `pads`",
    ("Clip", 6): "an absent limit is no longer infinite",
    ("LpPool", 2): "`p` became a whole number",
    ("GlobalLpPool", 2): "`p` became a whole number",
    ("Split", 2): "the sizes are no longer an input or an attribute, but an attribute alone",
    ("GRU", 3): "`direction` and `linear_before_reset` are no longer fixed",
    ("Upsample", 7): "two scales with names became one list",
    ("GRU", 7): "`output_sequence` no longer decides whether there is a first output",
    ("LSTM", 7): "`output_sequence` no longer decides whether there is a first output",
    ("RNN", 7): "`output_sequence` no longer decides whether there is a first output",
    ("Scan", 9): "the batch axis went away",
    ("Resize", 11): "coordinates are rounded differently where it shrinks",
    ("OneHot", 11): "negative indices no longer mean `off_value`",
    ("NegativeLogLikelihoodLoss", 13): "the text on ignored labels changed",
    ("SoftmaxCrossEntropyLoss", 13): "the text on ignored labels changed",
    ("GridSample", 20): "the modes got other names",
    ("GroupNormalization", 21): "scale and bias are per channel, no longer per group",
}
"""Versions that mean something else than the one before, and what changed in them."""


OPAQUE_OPERATORS = frozenset({"Dropout", "BatchNormalization"})
"""Old versions of these that cannot be raised are in training mode: not even their determinism is known."""

# -- conditions: a version means the same as the one before only if … --------------------------------------------------


def _dims(spelling: Spelling, facts: GraphFacts, index: int = 0) -> Shape | None:
    value = spelling.inputs[index] if index < len(spelling.inputs) else None
    if isinstance(value, Tensor):
        return value.shape
    found = facts.tensor_type(value)
    return None if found is None else found.shape


def _is_over_last_axis(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether a Softmax, which ran over all axes from `axis` on, means the same along that one alone."""
    dims, axis = _dims(spelling, facts), spelling.attrs.get("axis", -1)
    if axis == -1:
        return True
    if dims is None:
        raise SpellingMismatch("the number of its axes is not known")
    if not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
        raise SpellingMismatch(f"its axis {axis!r} is none of {len(dims)}")
    return all(dim == 1 for dim in dims[axis % len(dims) + 1 :])


def _has_no_mask(spelling: Spelling, _: GraphFacts) -> bool:
    """Return whether there is no mask; the type of a mask changed."""
    return not any(spelling.outputs[1:])


def _is_not_to_float8(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether a Cast is to another type than 8-bit floats, in which infinities became the largest numbers."""
    to = spelling.attrs.get("to")
    if spelling.op == "CastLike":
        found = facts.tensor_type(spelling.inputs[1]) if isinstance(spelling.inputs[1], Value) else None
        to = None if found is None else found.dtype
    if not isinstance(to, int):
        raise SpellingMismatch("the type that it casts to is not known")
    return not DType(to).name.startswith("FLOAT8")


def _states_limits(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether no limit is absent: an absent one was that of float32, and is now that of the type. For half
    precision see `_limit_halves`."""
    both = len(spelling.inputs) == 3 and None not in spelling.inputs
    return both or _data_type(spelling, facts) in (DType.FLOAT, DType.FLOAT16)


def _data_type(spelling: Spelling, facts: GraphFacts) -> DType | None:
    data = spelling.inputs[0]
    found = facts.tensor_type(data) if isinstance(data, Value) else None
    return None if found is None else found.dtype


def is_plain_attention(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether an Attention is the same in opset 23 and in the newest: its mask is as wide as there are keys.

    From opset 24 on a mask hides the keys for which it is too short, before it broadcasts where it has one column.

    Raises:
        SpellingMismatch: that is not known; or it has its scores as an output, which ONNX Runtime writes in its own
            way.
    """
    keys, mask, past = (_dims(spelling, facts, index) for index in (1, MASK_INPUT, MASK_INPUT + 1))
    if len(spelling.outputs) > 3 and spelling.outputs[3]:
        raise SpellingMismatch(
            "its scores, the fourth output, are -inf where ONNX Runtime's kernel says the least number"
        )
    _, _, _, has_mask, has_past, *_ = (*(value is not None for value in spelling.inputs), *(False,) * 5)
    if not has_mask:
        return True
    if keys is None or len(keys) < 3 or mask is None or (has_past and (past is None or len(past) < 3)):
        raise SpellingMismatch("the sizes of its keys and its mask are not known")
    count = keys[-2] + (past[-2] if past is not None else 0)
    if mask[-1:] != (count,):
        columns, rows = _format_size(mask[-1]) if mask else "no", _format_size(count)
        raise SpellingMismatch(f"its mask has {columns} columns where there are {rows} keys")
    return True


def _format_size(size: Dim) -> str:
    """Return a size as messages have it: names that inference made up mean nothing to a reader."""
    return "an unknown number of" if isinstance(size, SymbolicDim) and size.has_unknown else str(size)


def _begins_no_window_in_padding(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether no window of a pool begins in the padding behind the data, as `ceil_mode` allowed.

    Whatever the size, none does where the padding and a stride are no longer than the window.
    """
    if spelling.attrs.get("ceil_mode", 0) == 0:
        return True
    if spelling.attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return False

    def numbers(name: str, default: tuple[int, ...]) -> Sequence[int]:
        given = spelling.attrs.get(name, default)
        return [number for number in given if isinstance(number, int)] if isinstance(given, tuple) else default

    kernel, dims = numbers("kernel_shape", ()), _dims(spelling, facts)
    count = len(kernel)
    ones, pads = (1,) * count, numbers("pads", (0,) * 2 * count)
    strides, dilations = numbers("strides", ones), numbers("dilations", ones)
    sizes = dims[2:] if dims is not None else (None,) * count
    if {len(sizes), len(strides), len(dilations), len(pads) / 2} != {count}:
        return False  # the model is not legal
    for size, window, stride, dilation, before, behind in zip(
        sizes, kernel, strides, dilations, pads[:count], pads[count:], strict=True
    ):
        span = (window - 1) * dilation + 1
        if behind + stride <= span:
            continue
        if not isinstance(size, int):
            return False
        last = -(-(size + before + behind - span) // stride)
        if last * stride >= size + before:
            return False
    return True


MASK_INPUT = 3
"""The input of an Attention that is its mask; past keys are the next."""


SpellingCondition: TypeAlias = Callable[[Spelling, GraphFacts], bool]


class VersionCondition(NamedTuple):
    """A condition under which a version means the same as the one before."""

    holds: SpellingCondition
    change: str
    """Change of what does not fulfil it, as messages say it after "in opset 22"."""


UPGRADE_CONDITIONS: Mapping[VersionKey, VersionCondition] = {
    ("Dropout", 10): VersionCondition(_has_no_mask, "the mask became one of truth values"),
    ("ConvTranspose", 11): VersionCondition(
        lambda spelling, _: (
            "output_shape" not in spelling.attrs and spelling.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        ),
        "the odd element of padding that is derived went to the other end",
    ),
    ("Clip", 11): VersionCondition(_states_limits, "an absent limit became that of the element type"),
    ("BatchNormalization", 14): VersionCondition(_has_no_mask, "the outputs for training became others"),
    **{
        (op, 13): VersionCondition(
            _is_over_last_axis, "it came to run along `axis` alone, not over all axes from there"
        )
        for op in ("Softmax", "LogSoftmax", "Hardmax")
    },
    ("RoiAlign", 16): VersionCondition(
        lambda spelling, _: spelling.attrs.get("mode", "avg") == "avg", "the sampling of the mode `max` was corrected"
    ),
    **{
        (op, 22): VersionCondition(
            _begins_no_window_in_padding,
            "windows that `ceil_mode` begins in the padding behind the data went away",
        )
        for op in ("AveragePool", "MaxPool", "LpPool")
    },
    **{
        (op, 24): VersionCondition(_is_not_to_float8, "infinities became the largest numbers of an 8-bit float")
        for op in ("Cast", "CastLike")
    },
    **{
        ("Attention", version): VersionCondition(
            is_plain_attention, "a mask that is too short came to hide the keys behind it"
        )
        for version in (24, 25)
    },
}


def tensor_or_constant(value: Value | Tensor | None, facts: GraphFacts) -> Tensor | None:
    return value if isinstance(value, Tensor) else facts.constant(value)


def _equal_sizes(spelling: Spelling, facts: GraphFacts) -> bool:
    dims = [_dims(spelling, facts, index) for index in range(len(spelling.inputs))]
    return None not in dims and len(set(dims)) == 1


def has_nonnegative_axis(spelling: Spelling, facts: GraphFacts) -> bool:
    axes = [spelling.attrs.get("axis"), spelling.attrs.get("axes")]
    if spelling.op == "Slice" and len(spelling.inputs) > 3 and spelling.inputs[3] is not None:
        tensor = tensor_or_constant(spelling.inputs[3], facts)
        axes.append(-1 if tensor is None else tensor.int_values())
    numbers = [number for axis in axes for number in (axis if isinstance(axis, tuple) else (axis,))]
    return all(not isinstance(number, int) or number >= 0 for number in numbers)


def _splits_evenly(spelling: Spelling, facts: GraphFacts) -> bool:
    """Return whether a Split without sizes makes equal parts, as an old one does; a new one's last may be smaller."""
    parts, dims, axis = spelling.attrs.get("num_outputs"), _dims(spelling, facts), spelling.attrs.get("axis", 0)
    if not isinstance(parts, int) or not isinstance(axis, int):
        return parts is None
    return parts == len(spelling.outputs) and dims is not None and divide_dim(dims[axis], parts) is not None


NEGATIVE_AXES = (
    *("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Gather", "Hardmax", "LogSoftmax", "ReduceSum", *_REDUCE),
    *("Slice", "Softmax", "Split", "Squeeze", "TopK", "Unsqueeze"),
)


DOWNGRADE_CONDITIONS: Mapping[VersionKey, VersionCondition] = {
    **{
        (op, version): VersionCondition(_equal_sizes, "operands of different shapes came to broadcast")
        for version, ops in ((7, _BROADCASTING_OPERATORS), (8, ("Max", "Min", "Mean", "Sum")))
        for op in ops
    },
    ("Gemm", 7): VersionCondition(lambda spelling, _: False, "the bias came to broadcast"),
    ("Split", 18): VersionCondition(_splits_evenly, "the last part may be smaller than the others"),
    **{
        (op, 11): VersionCondition(has_nonnegative_axis, "negative axes came")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
    },
}
"""Conditions of downgrades: abilities of the newer version that the schemas do not state."""

# -- rewrites of single spellings --------------------------------------------------------------------------------------


SpellingChange: TypeAlias = Callable[[Spelling, GraphFacts], Spelling]


def _with_attributes(spelling: Spelling, **attrs: Attribute | None) -> Spelling:
    """Return the spelling with some attributes set; one that is None is dropped."""
    given = {**spelling.attrs, **attrs}
    return replace(spelling, attrs={name: value for name, value in given.items() if value is not None})


def _cast_to_number(spelling: Spelling, _: GraphFacts) -> Spelling:
    to = spelling.attrs.get("to")
    if not isinstance(to, str) or to.upper() not in DType.__members__:
        raise SpellingMismatch("`to` is no element type")
    return _with_attributes(spelling, to=int(DType[to.upper()]))


def _cast_to_name(spelling: Spelling, _: GraphFacts) -> Spelling:
    to = spelling.attrs.get("to")
    assert isinstance(to, int), "`to` of a Cast"
    return _with_attributes(spelling, to=DType(to).name)


def _axis_from_the_front(spelling: Spelling, facts: GraphFacts) -> Spelling:
    dims, axis = _dims(spelling, facts), spelling.attrs.get("axis", -1)
    if dims is None:  # it is -1, for `_is_over_last_axis` was asked first
        return spelling
    assert isinstance(axis, int), "`axis` of a Softmax"
    return _with_attributes(spelling, axis=axis % len(dims))


def _count_outputs(spelling: Spelling, _: GraphFacts) -> Spelling:
    if len(spelling.inputs) > 1 and spelling.inputs[1] is not None:
        return spelling
    return _with_attributes(spelling, num_outputs=len(spelling.outputs))


def _limit_halves(spelling: Spelling, facts: GraphFacts) -> Spelling:
    """Write infinities as the absent limits of half precision: before opset 12, ONNX Runtime clips it in single."""
    limits = (*spelling.inputs[1:], None, None)[:2]
    dtype = _data_type(spelling, facts)
    if None not in limits or dtype not in (DType.FLOAT16, None):
        return spelling
    if dtype is None:
        raise SpellingMismatch("the type of its data is not known")
    low, high = (
        Tensor.from_array(np.array(infinity, np.float16)) if limit is None else limit
        for limit, infinity in zip(limits, (-inf, inf), strict=True)
    )
    return replace(spelling, inputs=(spelling.inputs[0], low, high))


def _unlimit_halves(spelling: Spelling, facts: GraphFacts) -> Spelling:
    if _data_type(spelling, facts) is not DType.FLOAT16:
        return spelling
    limits = (*spelling.inputs[1:], None, None)[:2]
    if None in limits:
        raise SpellingMismatch("in opset 12 an absent limit became the largest number")
    known = [tensor_or_constant(limit, facts) for limit in limits]
    is_infinite = [
        tensor is not None and tensor.size == 1 and bool((tensor.numpy() == infinity).all())
        for tensor, infinity in zip(known, (-inf, inf), strict=True)
    ]
    kept = [None if infinite else limit for limit, infinite in zip(limits, is_infinite, strict=True)]
    while kept and kept[-1] is None:
        kept.pop()
    return replace(spelling, inputs=(spelling.inputs[0], *kept))


UPSAMPLE_AS_RESIZE: Mapping[str, Attribute] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""Attributes of the Resize that an Upsample is."""


def _upsample_to_resize(spelling: Spelling, facts: GraphFacts) -> Spelling:
    data, scales = spelling.inputs
    if not _enlarges(scales, facts):
        raise SpellingMismatch("its scales are not known")
    return replace(spelling, op="Resize", inputs=(data, None, scales), attrs={**spelling.attrs, **UPSAMPLE_AS_RESIZE})


def _resize_to_upsample(spelling: Spelling, facts: GraphFacts) -> Spelling:
    attrs = dict(spelling.attrs)
    if any(attrs.pop(name, None) != value for name, value in UPSAMPLE_AS_RESIZE.items()) or attrs.keys() - {"mode"}:
        raise SpellingMismatch("Upsample has no such coordinates")
    data, _, scales, *_ = (*spelling.inputs, None, None)
    if len(spelling.inputs) != 3 or attrs.get("mode") == "cubic" or not _enlarges(scales, facts):
        raise SpellingMismatch("Upsample takes scales that are known, and enlarges")
    return replace(spelling, op="Upsample", inputs=(data, scales), attrs=attrs)


def _enlarges(scales: Value | Tensor | None, facts: GraphFacts) -> bool:
    factors = tensor_or_constant(scales, facts)
    return factors is not None and bool((factors.numpy() >= 1).all())


CHANGES: Mapping[VersionKey, tuple[SpellingChange, SpellingChange]] = {
    ("Cast", 6): (_cast_to_number, _cast_to_name),
    **{(op, 13): (lambda spelling, _: spelling, _axis_from_the_front) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("Clip", 12): (_limit_halves, _unlimit_halves),
    ("Split", 18): (_count_outputs, lambda spelling, _: _with_attributes(spelling, num_outputs=None)),
}
"""Changes that no table above states, up and down."""


REPLACED_OPERATORS: Mapping[VersionKey, tuple[VersionKey, SpellingChange, SpellingChange]] = {
    ("Upsample", 9): (("Resize", 13), _upsample_to_resize, _resize_to_upsample),
    ("Scatter", 9): (
        ("ScatterElements", 11),
        lambda spelling, _: replace(spelling, op="ScatterElements"),
        lambda spelling, _: replace(spelling, op="Scatter"),
    ),
}
"""Operators that another replaced: the last version of the one, the first of the other that can mean the same."""
