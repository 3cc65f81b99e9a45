"""Everything graphopt raises on purpose, with the exit code that the command line gives it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class GraphoptError(Exception):
    """Base class: one line that names the file, node or rule, what was expected and what was found."""

    exit_code = 1


class ModelError(GraphoptError):
    """The model is not legal ONNX, or not readable, or contradicts itself."""


class UsageError(GraphoptError):
    """The caller asked for something that cannot be: unknown rule, wrong shape, missing package."""

    exit_code = 2


class RuleError(GraphoptError):
    """A rule is ill-formed; raised where the rule is written, naming the rule and the hole."""

    exit_code = 2


class ProofError(GraphoptError):
    """A rule is not proved; nothing was written."""

    exit_code = 3


class DifferenceError(GraphoptError):
    """The optimized model computes something else; nothing was written."""

    exit_code = 3


class NoSpeedupError(GraphoptError):
    """The result is not as much faster as was required; nothing was written."""

    exit_code = 4


class OutputError(GraphoptError):
    """The output could not be written; no partial file is left."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about a name that is not known: the one that is nearest; empty where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
