"""The JSON schema of reports, made from the dataclasses: `python -m tests.report_schema` writes it."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from graphopt.report.report import SCHEMA_VERSION, Report

FILE = Path(__file__).parent.parent / "graphopt" / "report" / "report.schema.json"

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # what is not finite is written as null
}


def report_schema() -> Schema:
    """Return the schema of what `Report.to_json` writes."""
    kinds: dict[str, Schema] = {}
    _add_record(Report, kinds)
    top = kinds.pop(Report.__name__)
    top["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of graphopt",
        **top,
        "$defs": dict(sorted(kinds.items())),
    }


def text() -> str:
    """Return the schema as its file has it."""
    return json.dumps(report_schema(), indent=2, ensure_ascii=False) + "\n"


def _add_record(kind: type, kinds: dict[str, Schema]) -> None:
    """Add the schema of a dataclass, and of those that its fields are made of."""
    if kind.__name__ in kinds:
        return
    types, said, made = get_type_hints(kind), _field_docs(kind), Schema()
    kinds[kind.__name__] = made
    described = {name: {"description": text} for name, text in said.items()}
    properties = {
        each.name: described.get(each.name, {}) | _type_schema(types[each.name], kinds) for each in fields(kind)
    }
    made |= {
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def _type_schema(kind: Any, kinds: dict[str, Schema]) -> Schema:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (of,) = (part for part in parts if part is not NoneType)
        found = _type_schema(of, kinds)
        return found if found == _PLAIN[float] else {"anyOf": [found, {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _type_schema(parts[0], kinds)}
    if origin is not None:
        return {"type": "object", "additionalProperties": _type_schema(parts[1], kinds)}
    if is_dataclass(kind):
        assert isinstance(kind, type)
        _add_record(kind, kinds)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [each.value for each in kind]}
    return dict(_PLAIN[kind])


def _field_docs(kind: type) -> dict[str, str]:
    """Return the texts that stand below the fields of a dataclass, by name."""
    (declared,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef)
    found = {}
    for statement, after in zip(declared.body, declared.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = re.sub(r"\bNone\b", "null", " ".join(said.split()))
    return found


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
