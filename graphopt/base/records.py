"""Dataclasses as JSON, and back: one form for all that is printed, written to a report or kept in a cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

DECODE_ERRORS = (ValueError, TypeError, ArithmeticError, RecursionError)
"""Exceptions that `from_json` raises for a text that no record was turned into."""


def to_json(record: DataclassInstance, *, indent: int | None = None) -> str:
    """Return JSON that any reader takes: a number that is not finite is null."""
    return json.dumps(_with_finite_numbers(asdict(record)), indent=indent, ensure_ascii=False, allow_nan=False)


def _with_finite_numbers(data: Any) -> Any:
    match data:
        case float() if not math.isfinite(data):
            return None
        case dict():
            return {key: _with_finite_numbers(value) for key, value in data.items()}
        case list() | tuple():
            return [_with_finite_numbers(value) for value in data]
    return data


def from_json(kind: type[Record], text: str) -> Record:
    """Return the record that a text was made of. A null is infinity where a number is expected.

    Unknown fields are ignored, and fields with a default may be missing.

    Raises:
        Exception: one of `DECODE_ERRORS`, for a text that is no such record.
    """
    found: Record = _decode(kind, json.loads(text))
    return found


def _decode(kind: Any, data: Any) -> Any:
    """Return a value of a type: of a record, tuples, mappings, enums and plain values."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if type(data) in parts:
            return data
        return None if data is None else _decode(next(part for part in parts if part is not NoneType), data)
    if origin is tuple:
        return tuple(_decode(parts[0], item) for item in _decode_plain(list, data))
    if origin is not None:
        return {_decode(parts[0], key): _decode(parts[1], value) for key, value in _decode_plain(dict, data).items()}
    if is_dataclass(kind):
        made = cast("Callable[..., Any]", kind)
        types, fields = _field_types(made), _decode_plain(dict, data)
        return made(**{name: _decode(types[name], value) for name, value in fields.items() if name in types})
    if issubclass(kind, tuple):  # a NamedTuple
        return kind(
            *(
                _decode(of, item)
                for of, item in zip(_field_types(kind).values(), _decode_plain(list, data), strict=True)
            )
        )
    if issubclass(kind, Enum):
        return kind(data)
    return _decode_float(data) if kind is float else _decode_plain(kind, data)


@cache
def _field_types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _decode_float(data: Any) -> float:
    if data is None:
        return math.inf
    if isinstance(data, bool) or not isinstance(data, int | float) or math.isnan(data):
        raise ValueError(f"{data!r} is no number")
    return float(data)


def _decode_plain(kind: type, data: Any) -> Any:
    if type(data) is not kind:
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data
