"""Terms and holes as plain data: what files of rules hold. Reading runs no code of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.language.terms import (
    App,
    Lit,
    Term,
    Var,
    attributes,
    const,
    integer,
    integers,
    real,
    string,
    tensor,
    tensors,
    term,
)


def hole_to_json(hole: Var) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": hole.kind}
    if hole.axes is not None:
        data["axes"] = " ".join(hole.axes)
    if hole.default is not None:
        data["default"] = hole.default
    return data


_HOLE_MAKERS = {"integer": integer, "integers": integers, "real": real, "string": string, "attributes": attributes}
_HOLE_MAKERS |= {"tensors": tensors}


def hole_from_json(name: str, data: Mapping[str, Any]) -> Var:
    """Return the hole that was declared.

    Raises:
        ValueError: it is of no kind, or says what holes of its kind do not have.
    """
    kind = data["kind"]
    if kind not in ("tensor", "const", *_HOLE_MAKERS):
        raise ValueError(f"hole '{name}' is of kind {kind!r}; there are tensor, const, {', '.join(_HOLE_MAKERS)}")
    check_keys(
        data, "kind", *(("axes",) if kind in ("tensor", "const") else ()), *(("default",) if kind == "const" else ())
    )
    axes, default = data.get("axes"), data.get("default")
    if not isinstance(axes, str | None):
        raise ValueError(f"the axes of hole '{name}' are {axes!r}, not a text like 'N C'")
    if isinstance(default, bool) or not isinstance(default, int | float | None):
        raise ValueError(f"the default of hole '{name}' is {default!r}, no number")
    if kind in _HOLE_MAKERS:
        return _HOLE_MAKERS[kind](name)
    return tensor(name, axes) if kind == "tensor" else const(name, axes, default=default)


def check_keys(data: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError for a key that is none of these: it may be misspelt, and mean something."""
    for key in data:
        if key not in keys:
            raise ValueError(f"'{key}' means nothing there; there are {', '.join(keys)}")


def checked_text(value: Any, what: str) -> str:
    """Return the text; raises ValueError for what is none that a file can hold."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {value!r}, no text")
    value.encode()
    return value


def term_to_json(term: Term | None) -> Any:
    match term:
        case None:
            return None
        case Var(name=name):
            return {"hole": name}
        case Lit(value=value):
            return list(value) if isinstance(value, tuple) else value
        case App():
            data: dict[str, Any] = {"op": term.op, "args": [term_to_json(arg) for arg in term.args]}
            if term.attrs:
                data["attrs"] = {name: term_to_json(value) for name, value in term.attrs}
            if term.domain:
                data["domain"] = term.domain
            if term.outputs > 1:
                data["output"] = [term.output, term.outputs]
            return data


def term_from_json(data: Any, known: Mapping[str, Var], level: int = 0) -> Any:
    if level > MAX_TERM_DEPTH:
        raise ValueError(f"a term in more than {MAX_TERM_DEPTH} others")
    match data:
        case None:
            return None
        case {"hole": name}:
            check_keys(data, "hole")
            if name not in known:
                raise ValueError(f"hole '{name}' is not declared in 'holes'")
            return known[name]
        case {"op": name, "args": list(args)}:
            check_keys(data, "op", "args", "attrs", "domain", "output")
            attrs = ((checked_text(key, "a name"), value) for key, value in sorted(data.get("attrs", {}).items()))
            named = tuple((key, term_from_json(_attribute_value(value, key), known, level + 1)) for key, value in attrs)
            terms = tuple(term_from_json(arg, known, level + 1) for arg in args)
            output, outputs = data.get("output", (0, 1))
            if not type(output) is type(outputs) is int:
                raise ValueError(f"output {output!r} of {outputs!r}: two whole numbers")
            return App(
                checked_text(name, "an operator"),
                terms,
                named,
                checked_text(data.get("domain", ""), "a domain"),
                output,
                outputs,
            )
        case str():
            return Lit(checked_text(data, "a text"))
        case bool() | int() | float():
            return Lit(data)
        case list():
            return term(tuple(data))
    raise ValueError(f"unexpected {data!r}")


def _attribute_value(value: Any, name: str) -> Any:
    """Return the value of an attribute; raises ValueError for none."""
    if value is None:
        raise ValueError(f"attribute {name} is null: leave it out")
    return value


MAX_TERM_DEPTH = 64
"""Deepest nesting of terms in a file of rules."""
