"""Everything graphopt raises on purpose, with the exit code that the command line gives it."""

from __future__ import annotations

import re
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


class RecipeError(GraphoptError):
    """A part of a recipe does not fit the model; nothing was written."""

    exit_code = 3


class NoSpeedupError(GraphoptError):
    """The result is not as much faster as was required; nothing was written."""

    exit_code = 4


class MemoryBudgetError(GraphoptError):
    """A run takes more memory than the budget, whatever is done; nothing was written."""

    exit_code = 4


class StageError(GraphoptError):
    """A stage of a pipeline failed on a request, or its workers die; names the stage."""


class OutputError(GraphoptError):
    """The output could not be written; no partial file is left."""


# -- what may have been meant -----------------------------------------------------------------------------------------

_SYNONYMS = {
    "bn": r"batch_?norm(alization)?",
    "ln": r"layer_?norm(alization)?",
    "conv": r"convolution",
    "fuse": r"fusion|fused|fold|folding|merge|merged|combine",
    "eliminate": r"elimination|remove|delete|drop|prune|skip",
    "replace": r"convert|rewrite|change",
    "constant": r"const",
    "transpose": r"permute|permutation",
    "cuda": r"gpu|nvidia",
    "when": r"where|if|conditions?",
    "concat": r"concatenate|join",
    "length": r"len",
    "rank": r"ndim",
}
"""Words that mean the same in names of rules, operators, providers and scalar functions, here and elsewhere."""
_SYNONYM_PATTERN = re.compile("|".join(f"(?P<{word}>{others})s?(?![a-z])" for word, others in _SYNONYMS.items()))


def quoted_list(names: Iterable[str]) -> str:
    """Return names as a message has them: `'a', 'b'`."""
    return ", ".join(f"'{name}'" for name in names) or "none"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the names that may have been meant; empty where none may.

    Names that have all its words, or synonyms of these, come first, then the one that is nearest by letters.
    """
    asked, names = _words(name), list(known)
    alike = sorted((other for other in names if asked <= _words(other)), key=lambda other: len(_words(other)))
    alike = [other for other in alike if _words(other) == asked] or alike[:3]
    if not asked or not alike:
        lowered = {other.lower(): other for other in names}
        alike = [lowered[near] for near in get_close_matches(name.lower(), lowered, n=1)]
    shown = [f"'{other}'" for other in alike]
    return f"; did you mean {' or '.join(filter(None, [', '.join(shown[:-1]), shown[-1]]))}?" if shown else ""


def _words(name: str) -> frozenset[str]:
    """Return the words of a name in snake_case or CamelCase, each in one spelling."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    plain = _SYNONYM_PATTERN.sub(lambda found: str(found.lastgroup), snake)
    return frozenset(word.rstrip("s") for word in re.split(r"[^a-z0-9]+", plain)) - {"", "into", "of"}
