"""Values of options as they are written in a shell: `batch=1,4`, `x:1,3,224,224`, `a,b`.

A text of another form is a UsageError that shows the right one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError
from graphopt.base.option_fields import TextForm


def parse_names(texts: Sequence[str]) -> list[str]:
    """Read `a,b c`: names in one text or several."""
    return [name for text in texts for name in re.split(r"[,\s]+", text) if name]


def _parse_pairs(texts: Sequence[str], separator: str, form: str) -> list[tuple[str, str]]:
    """Read `name:value` or `name=value`, split at the last separator; the name is empty where it is left out."""
    found = []
    for text in texts:
        name, split, value = text.rpartition(separator)
        if not value or (not split and separator == "="):
            raise UsageError(f"'{text}' is not of the form {form}")
        found.append((name, value))
    return found


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int | str | None, ...]]:
    """Read `name:1,3,224,224`; a size may be a name, and `?` or -1 leaves it as it is. No name means the only input."""
    form = "name:1,3,224,224"
    found: dict[str, tuple[int | str | None, ...]] = {}
    for name, text in _parse_pairs(texts, ":", form):
        sizes = [size.strip() for size in text.strip("[]").split(",")]
        if not all(re.fullmatch(r"-1|\?|\d+|[A-Za-z_]\w*", size) for size in sizes):
            raise UsageError(f"'{text}' is not of the form {form}: sizes are numbers, names, or ? for as it is")
        found[name] = tuple(None if size in ("?", "-1") else int(size) if size.isdecimal() else size for size in sizes)
    return found


def parse_sizes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Read `seq=16,128`: all sizes that are to be tried, in one text or several."""
    form = "batch=1 or seq=16,128"
    found: dict[str, list[int]] = {}
    for name, text in _parse_pairs(texts, "=", form):
        if not re.fullmatch(r"\d+(,\d+)*,?", text):
            raise UsageError(f"'{name}={text}' is not of the form {form}: sizes are numbers")
        found.setdefault(name, []).extend(int(size) for size in text.split(",") if size)
        if 0 in found[name]:
            raise UsageError(f"'{name}={text}': a size is 1 or more")
    return found


def _parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Read `key=value`, split at the first `=`, for a value may have more of them."""
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise UsageError(f"'{text}' is not of the form key=value")
        found[key] = value
    return found


SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(text: str | int) -> int:
    """Read a size as `100MB`, `1.5 GiB`, or a number of bytes; raises UsageError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(text).strip())
    if found is None or found[2].upper() not in SIZE_UNITS or float(found[1]) <= 0:
        raise UsageError(f"'{text}' is no size of memory: write 120MB, 1.5GB, or a number of bytes")
    return int(float(found[1]) * SIZE_UNITS[found[2].upper()])


def _load_arrays(texts: Sequence[str]) -> dict[str, Any]:
    """Read `name:file.npy`: the array in the file."""
    import numpy as np

    found = {}
    for name, path in _parse_pairs(texts, ":", "name:file.npy"):
        if not name:
            raise UsageError(f"'{path}' is not of the form name:file.npy")
        try:
            found[name] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} holds no array for input '{name}': {error}") from error
    return found


NAMES = TextForm(parse_names, r"[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*,?")
TOOLS = TextForm(parse_names, r"[a-z][a-z-]*(,[a-z][a-z-]*)*,?")
OPERATORS = TextForm(parse_names, r"[\w.]+(,[\w.]+)*,?")
SHAPES = TextForm(parse_shapes, r"(.+:)?[\w?-]*\d+[\w?-]*(,[\w?-]+)*")
DIMS = TextForm(
    lambda texts: {name: sizes[0] if len(sizes) == 1 else sizes for name, sizes in parse_sizes(texts).items()},
    r"[^=]+=\d+(,\d+)*",
)
SIZES = TextForm(parse_sizes, DIMS.pattern)
ARRAYS = TextForm(_load_arrays, r".+:.+\.npy")
SETTINGS = TextForm(_parse_settings)
PATHS = TextForm(lambda texts: list(map(Path, texts)))
TEXTS = TextForm(list)
TENSORS = TextForm(parse_names)
