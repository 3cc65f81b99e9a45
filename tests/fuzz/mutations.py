"""Broken models: the test models of the onnx package with a few things changed, on the protobuf or the byte level.

A case is known by its number: the same number gives the same file.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx.backend.test
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

DATA = Path(onnx.backend.test.__file__).parent / "data"

Place: TypeAlias = "tuple[Message, FieldDescriptor]"
"""A field of a message somewhere in a model."""

# -- what is mutated ---------------------------------------------------------------------------------------------------


@cache
def pool() -> Sequence[tuple[str, bytes]]:
    """Small models by name, serialized: the node and model tests that the onnx package makes, and its stored ones."""
    from onnx.backend.test.case import model as models
    from onnx.backend.test.case import node as nodes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, while the package computes special values on purpose
        made = [*nodes.collect_testcases(), *models.collect_testcases()]
    found = [(case.name, case.model.SerializeToString()) for case in made if case.model is not None]
    stored = sorted(path for kind in ("simple", "pytorch-converted") for path in (DATA / kind).glob("*/model.onnx"))
    found += [(path.parent.name, path.read_bytes()) for path in stored]
    return sorted((name, data) for name, data in found if len(data) < 100_000)


LARGE_SHARE = 0.004
"""Of cases that are made of a real architecture: they take seconds."""


def _original(rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < LARGE_SHARE:
        path = rng.choice(sorted((DATA / "light").glob("*.onnx")))
        return path.stem, path.read_bytes()
    return rng.choice(pool())


# -- what is done to them ----------------------------------------------------------------------------------------------

INTEGERS = (0, 1, -1, 2, 3, 5, 8, 13, 100, 999, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))
BROKEN = "\x01no utf-8"
"""Stands for a text that is none, which a message does not take: see `_serialized`."""
TEXTS = ("", " ", "a\0b", "/", "../x", "ä", "x" * 5000, "If", "Loop", "Scan", "Cast", "Reshape", "axes", "to", BROKEN)


@dataclass(frozen=True)
class Case:
    """A file that may be no model, and what was done to make it."""

    number: int
    origin: str
    steps: tuple[str, ...]
    data: bytes

    def __str__(self) -> str:
        return f"case {self.number}, {self.origin}: {'; '.join(self.steps)}"


def case(number: int) -> Case:
    """The case of a number."""
    rng = random.Random(number)
    origin, data = _original(rng)
    if rng.random() < 0.1:
        steps, data = _damaged(data, rng)
        return Case(number, origin, steps, data)
    model = ModelProto.FromString(data)
    steps = tuple(_mutated(model, rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))))
    return Case(number, origin, steps, _serialized(model))


def _damaged(data: bytes, rng: random.Random) -> tuple[tuple[str, ...], bytes]:
    """Bits of the file turned over, or a part of it lost or doubled."""
    raw = bytearray(data)
    start = rng.randrange(len(raw))
    end = min(len(raw), start + rng.choice((1, 2, 8, 64)))
    match rng.randrange(4):
        case 0:
            del raw[start:end]
            return (f"bytes {start} to {end} lost",), bytes(raw)
        case 1:
            raw[start:start] = raw[start:end]
            return (f"bytes {start} to {end} doubled",), bytes(raw)
    flipped = [(rng.randrange(len(raw)), rng.randrange(8)) for _ in range(rng.choice((1, 1, 2, 8)))]
    for place, bit in flipped:
        raw[place] ^= 1 << bit
    return tuple(f"bit {bit} of byte {place}" for place, bit in flipped), bytes(raw)


def _serialized(model: ModelProto) -> bytes:
    data: bytes = model.SerializeToString()
    return data.replace(BROKEN.encode(), b"\xff" + BROKEN.encode()[1:])


def _mutated(model: ModelProto, rng: random.Random) -> str:
    """Do one thing to a model; says what."""
    places = list(_places(model))
    if not places:
        return "nothing left to change"
    described = [place for place in places if isinstance(place[0], NodeProto | AttributeProto | TensorProto)]
    message, field = rng.choice(described if described and rng.random() < 0.6 else places)
    act = rng.choice(_REPEATED if _is_repeated(field) else _SINGULAR)
    did = act(model, message, field, rng)
    return f"{message.DESCRIPTOR.name}.{field.name} {did}"


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _places(message: Message) -> Iterator[Place]:
    """Every field that is set, and of each message one that is not."""
    unset = [field for field in message.DESCRIPTOR.fields if field not in dict(message.ListFields())]
    for field, value in message.ListFields():
        yield message, field
        if field.message_type is not None:
            for child in value if _is_repeated(field) else [value]:
                yield from _places(child)
    if unset and not message.DESCRIPTOR.name.startswith("StringString"):
        yield message, unset[message.ByteSize() % len(unset)]


def _value(field: FieldDescriptor, model: ModelProto, rng: random.Random) -> Any:
    """A value that a field of no message can hold."""
    kinds = FieldDescriptor
    match field.cpp_type:
        case kinds.CPPTYPE_STRING if field.type == kinds.TYPE_BYTES:
            return rng.choice((b"", b"\0", b"\xff" * 7, b"x", bytes(rng.randrange(256) for _ in range(16))))
        case kinds.CPPTYPE_STRING:
            return rng.choice((*TEXTS, *_names(model), *_names(model)))
        case kinds.CPPTYPE_FLOAT | kinds.CPPTYPE_DOUBLE:
            return rng.choice(FLOATS)
        case kinds.CPPTYPE_ENUM:
            return rng.choice(field.enum_type.values).number
    bits = 32 if field.cpp_type in (kinds.CPPTYPE_INT32, kinds.CPPTYPE_UINT32) else 64
    number = rng.choice(INTEGERS)
    if field.cpp_type in (kinds.CPPTYPE_UINT32, kinds.CPPTYPE_UINT64):
        return number % 2**bits
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def _names(model: ModelProto) -> Sequence[str]:
    """The values and operators of a model's main graph."""
    nodes = model.graph.node
    found = {name for node in nodes for name in (*node.input, *node.output, node.op_type)}
    return sorted(found | {info.name for info in (*model.graph.input, *model.graph.output)})


Act: TypeAlias = Callable[[ModelProto, Message, FieldDescriptor, random.Random], str]


def _clear(_: ModelProto, message: Message, field: FieldDescriptor, __: random.Random) -> str:
    message.ClearField(field.name)
    return "cleared"


def _set(model: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    if field.message_type is not None:
        donor = _donor(field, rng)
        if donor is None:
            getattr(message, field.name).SetInParent()
            return "made empty"
        getattr(message, field.name).CopyFrom(donor)
        return "taken from another model"
    value = _value(field, model, rng)
    setattr(message, field.name, value)
    return f"= {value!r:.40}"


def _donor(field: FieldDescriptor, rng: random.Random) -> Message | None:
    """A message of the same kind, of another model."""
    for _ in range(5):
        model = ModelProto.FromString(rng.choice(pool())[1])
        found = [
            child
            for message, other in _places(model)
            if other.message_type is field.message_type
            for child in (getattr(message, other.name) if _is_repeated(other) else [getattr(message, other.name)])
        ]
        if found:
            chosen: Message = rng.choice(found)
            return chosen
    return None


def _element(model: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    """One element is another."""
    values = getattr(message, field.name)
    if field.message_type is not None or not values:
        return _add(model, message, field, rng)
    index, value = rng.randrange(len(values)), _value(field, model, rng)
    values[index] = value
    return f"[{index}] = {value!r:.40}"


def _add(model: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    values = getattr(message, field.name)
    if field.message_type is not None:
        donor = _donor(field, rng)
        values.add() if donor is None else values.append(donor)
        return "with one more, of another model"
    value = _value(field, model, rng)
    values.append(value)
    return f"+ {value!r:.40}"


def _remove(_: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    values = getattr(message, field.name)
    if not values:
        return "left empty"
    index = rng.randrange(len(values))
    del values[index]
    return f"without [{index}]"


def _double(model: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    values = getattr(message, field.name)
    if not values:
        return _add(model, message, field, rng)
    index = rng.randrange(len(values))
    values.append(values[index])
    return f"[{index}] doubled"


def _shuffle(_: ModelProto, message: Message, field: FieldDescriptor, rng: random.Random) -> str:
    values = list(getattr(message, field.name))
    rng.shuffle(values)
    message.ClearField(field.name)
    getattr(message, field.name).extend(values)
    return "in another order"


_SINGULAR: Sequence[Act] = (_set, _set, _set, _clear)
_REPEATED: Sequence[Act] = (_element, _element, _element, _add, _remove, _remove, _double, _shuffle, _clear)

Files: TypeAlias = Mapping[str, bytes]
