"""What is typed after `graphopt`: brought into the form that the parser knows, and texts as values.

A text of another form is a UsageError that shows the right one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError, did_you_mean

COMMANDS = ("optimize", "compare", "bench", "inspect", "verify", "rules", "discover", "demo")
_WORD = re.compile(r"[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*,?")
_OPERATORS = re.compile(r"[\w.]+(,[\w.]+)*,?")
_SHAPE = re.compile(r"(.+:)?[\w?-]*\d+[\w?-]*(,[\w?-]+)*")
MULTI_VALUE_OPTIONS = {
    "--skip": _WORD,
    "--only": _WORD,
    "--ops": _OPERATORS,
    "--input-shape": _SHAPE,
    "--overwrite-input-shape": _SHAPE,
    "--dim": re.compile(r"[^=]+=\d+(,\d+)*"),
    "--input": re.compile(r".+:.+\.npy"),
}
"""Options that take several values after one flag, as users of other tools expect, and what a value looks like."""


def normalize_arguments(args: list[str]) -> list[str]:
    """Return the arguments in the form that the parser knows: a command first, and each value after a flag of its
    own."""
    args = args or ["--help"]
    first = args[0]
    if first not in (*COMMANDS, "--help", "--version"):
        if not first.startswith("-") and not _is_path(first):
            hint = did_you_mean(first, COMMANDS) or f"; there is {', '.join(COMMANDS)}"
            raise UsageError(f"there is no command '{first}'{hint}")
        args = ["optimize", *args]
    found: list[str] = []
    flag, value = "", None
    for arg in args:
        if arg.startswith("-"):
            flag, value = arg, MULTI_VALUE_OPTIONS.get(arg)
        elif value is not None and found[-1] != flag:
            if value.fullmatch(arg) and not _is_path(arg):
                found.append(flag)
            else:
                value = None
        found.append(arg)
    return found


def _is_path(text: str) -> bool:
    return text.endswith(".onnx") or Path(text).exists()


# -- values of options -------------------------------------------------------------------------------------------------


def parse_names(values: Sequence[str] | None) -> list[str]:
    """`a,b c`: names in one value or several."""
    return [name for value in values or () for name in re.split(r"[,\s]+", value) if name]


def parse_pairs(values: Sequence[str] | None, separator: str, form: str) -> list[tuple[str, str]]:
    """`name:value` or `name=value`, split at the last separator; the name is empty where it is left out."""
    found = []
    for value in values or ():
        name, split, text = value.rpartition(separator)
        if not text or (not split and separator == "="):
            raise UsageError(f"'{value}' is not of the form {form}")
        found.append((name, text))
    return found


def parse_shapes(values: Sequence[str] | None, model: str) -> dict[str, tuple[int | str | None, ...]]:
    """`name:1,3,224,224`; a size may be a name, and `?` or -1 leaves it as it is."""
    form = "name:1,3,224,224"
    found: dict[str, tuple[int | str | None, ...]] = {}
    for name, text in parse_pairs(values, ":", form):
        sizes = [size.strip() for size in text.strip("[]").split(",")]
        if not all(re.fullmatch(r"-1|\?|\d+|[A-Za-z_]\w*", size) for size in sizes):
            raise UsageError(f"'{text}' is not of the form {form}: sizes are numbers, names, or ? for as it is")
        known = (None if size in ("?", "-1") else int(size) if size.isdecimal() else size for size in sizes)
        found[name or _only_input(model)] = tuple(known)
    return found


def _only_input(model: str) -> str:
    from graphopt.io import onnx_io

    graph = onnx_io.parse_file(Path(model)).graph
    weights = {tensor.name for tensor in graph.initializer}
    found: list[str] = [value.name for value in graph.input if value.name not in weights]
    if len(found) != 1:
        raise UsageError(
            f"{model} has {len(found)} inputs: say which, as in {found[0] if found else 'name'}:1,3,224,224"
        )
    return found[0]


def parse_dims(values: Sequence[str] | None) -> dict[str, int]:
    """`batch=1`: one size for each dim."""
    found = {}
    for name, text in parse_pairs(values, "=", "batch=1"):
        if not text.isdecimal():
            raise UsageError(f"'{name}={text}' is not of the form batch=1: a size is a number")
        found[name] = int(text)
        if not found[name]:
            raise UsageError(f"'{name}={text}': a size is 1 or more")
    return found


def parse_options(values: Sequence[str] | None) -> dict[str, str]:
    """`key=value`: of a provider; split at the first `=`, for a value may have more of them."""
    found = {}
    for value in values or ():
        key, _, text = value.partition("=")
        if not key or not text:
            raise UsageError(f"'{value}' is not of the form key=value")
        found[key] = text
    return found


_SIZES = "batch=1 or seq=16,128"


def parse_sizes(values: Sequence[str] | None) -> dict[str, list[int]]:
    """`seq=16,128`: all sizes that are to be tried, in one value or several."""
    found: dict[str, list[int]] = {}
    for name, text in parse_pairs(values, "=", _SIZES):
        if not re.fullmatch(r"\d+(,\d+)*,?", text):
            raise UsageError(f"'{name}={text}' is not of the form {_SIZES}: sizes are numbers")
        found.setdefault(name, []).extend(int(size) for size in text.split(",") if size)
        if 0 in found[name]:
            raise UsageError(f"'{name}={text}': a size is 1 or more")
    return found


def load_arrays(values: Sequence[str] | None) -> dict[str, Any]:
    """`name:file.npy`: the array in the file."""
    import numpy as np

    found = {}
    for name, text in parse_pairs(values, ":", "name:file.npy"):
        if not name:
            raise UsageError(f"'{text}' is not of the form name:file.npy")
        try:
            found[name] = np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{text} holds no array for input '{name}': {error}") from error
    return found


def parse_opset(text: str | None) -> int | str | None:
    """Return a number, that of `latest`, the newest that ONNX Runtime is known to run, or `auto`."""
    if text is None or text == "auto":
        return text
    if text.isdecimal():
        return int(text)
    if text != "latest":
        raise UsageError(f"'{text}' is no opset: give a number, latest or auto")
    from graphopt.ir.schemas import MAX_LOADED_OPSET

    return MAX_LOADED_OPSET
