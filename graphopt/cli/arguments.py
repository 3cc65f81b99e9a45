"""Arguments as they are typed after `graphopt`, brought into the form that the parser knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from graphopt.base.errors import UsageError, did_you_mean

COMMANDS = ("optimize", "compare", "bench", "inspect", "verify", "rules", "discover", "demo")


def normalize_arguments(args: list[str], patterns: Mapping[str, str]) -> list[str]:
    """Return the arguments in the form that the parser knows: a command first, and each value after a flag of its own.

    `patterns` has the flags that several values may follow, and the regular expressions of these.
    """
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
            flag, value = arg, patterns.get(arg)
        elif value is not None and found[-1] != flag:
            if re.fullmatch(value, arg) and not _is_path(arg):
                found.append(flag)
            else:
                value = None
        found.append(arg)
    return found


def _is_path(text: str) -> bool:
    return text.endswith(".onnx") or Path(text).exists()
