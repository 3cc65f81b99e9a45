"""A recipe: the decisions of a search, as data that are kept beside a model and applied without timing.

Decisions are named by digests of the rules and of the parts of the model, so that they hold for other exports of it;
names are for messages. `recipe_replay` makes recipes and follows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError
from graphopt.base.records import DECODE_ERRORS, from_json, to_json
from graphopt.ir.graph import Value
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.runtime.measure import Speedup

RECIPE_VERSION = 2
"""Version of the form of recipes: another one is not read."""


@dataclass(frozen=True, slots=True)
class RecipeRule:
    """A rule that decisions use, or a pass."""

    name: str
    digest: str = ""
    """Digest of what the rule says; empty for a pass, which is known by its name."""
    proof: str = ""
    """Claim of the rule's proof, such as `proved, exact`; the recipe's `verifier` made it."""


@dataclass(frozen=True, slots=True)
class RecipeMove:
    """A rule at some places of a part of the model."""

    rule: int
    """Index among the recipe's rules."""
    sites: tuple[tuple[Value, ...], ...]
    """The roots of each match, as values of the part."""
    matches: tuple[str, ...]
    """Digest of the nodes that the rule matches, for each site."""
    is_simplified: bool
    """True where the part is simplified after it."""


@dataclass(frozen=True, slots=True)
class RecipeFind:
    """Moves in parts of the model that are equal."""

    block: str
    """Digest of the part as it was."""
    blocks: int
    """Number of such parts in the model."""
    places: tuple[int, ...]
    """Numbers, among these, of the parts in which the moves were made, in the order in which that was done."""
    moves: tuple[RecipeMove, ...]
    result: str
    """Digest of what each part becomes."""
    alone: Speedup
    """Speedup of each part by itself, on the recipe's machine."""
    saved_seconds: float
    """Estimated seconds of a run that it saves in all parts."""


@dataclass(frozen=True, slots=True)
class RecipeSweep:
    """Rules wherever they match."""

    name: str
    rules: tuple[int, ...]
    """Indices of all its rules, in the order in which they are applied."""
    used: tuple[int, ...]
    """Indices of the rules that matched somewhere."""
    matches: Mapping[str, int]
    """Number of places that its rules matched before it was made, by the digest of the nodes that they match."""
    alone: Speedup | None = None
    """Speedup of the model with it alone over the simplified model, on the recipe's machine; None where not timed."""
    saved_seconds: float | None = None
    """Seconds of a run that it saves by itself, on the recipe's machine."""
    losing_places: tuple[str, ...] = ()
    """Digests of the nodes at places that it leaves, for there it costs more than it saves."""


@dataclass(frozen=True, slots=True)
class RecipeMachine:
    """The machine whose timings decided."""

    device: str
    """Processor or accelerator; empty where nothing was timed."""
    provider: str
    threads: int
    cost: str
    """Source of the costs: `measured`, `analytic`, or `none` for no search."""
    versions: Mapping[str, str]

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return ", ".join(filter(None, [self.device, self.provider, threads]))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Decisions on a model, and their places. The simplifications are not in it: they are made again."""

    machine: RecipeMachine
    verifier: str
    """Digest of the source that makes proofs."""
    rules: tuple[RecipeRule, ...] = ()
    """The rules and passes that decisions use."""
    opset: int | None = None
    """Opset that was asked for or found to be faster; None for that of the model."""
    provider: str = ""
    """Provider that was found to be the fastest of several; empty where only one was asked for."""
    faster_original: str = ""
    """Digest of the simplified model, where the original was faster than all that was made of it; else empty."""
    undone: tuple[int, ...] = ()
    """Indices of the rules and passes that simplifications do without, as they made the model slower."""
    sweeps: tuple[RecipeSweep, ...] = ()
    finds: tuple[RecipeFind, ...] = ()
    is_simplified_again: bool = False
    """True where all is simplified once more in the end."""
    refused: tuple[RefusedRewrite, ...] = ()
    """Rewrites that the check refused: they are not made again."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options that chose the rules, where they were not the usual ones."""
    speedup: Speedup | None = None
    """Speedup of the result over the original, on the machine; None where it was not timed."""
    recipe_version: int = RECIPE_VERSION

    def __post_init__(self) -> None:
        used = [*self.undone, *(index for sweep in self.sweeps for index in (*sweep.rules, *sweep.used))]
        used += [move.rule for find in self.finds for move in find.moves]
        if not all(0 <= index < len(self.rules) for index in used):
            raise ValueError("it uses a rule that it does not list")
        if not all(find.moves and all(0 <= place < find.blocks for place in find.places) for find in self.finds):
            raise ValueError("a find of it has no moves, or is made in a part that it does not count")
        if not all(len(move.sites) == len(move.matches) > 0 for find in self.finds for move in find.moves):
            raise ValueError("a move of it does not say what it matches")

    def to_json(self) -> str:
        return to_json(self, indent=1)

    @staticmethod
    def from_json(text: str) -> Recipe:
        """Return the recipe that `to_json` wrote.

        Raises:
            ValueError: it is none, or one of another form; says why.
        """
        try:
            data: Any = json.loads(text)
        except DECODE_ERRORS as error:
            raise ValueError(f"it is no JSON: {error}") from error
        number = data.get("recipe_version") if isinstance(data, dict) else None
        if number is None:
            raise ValueError("it has no recipe_version")
        if number != RECIPE_VERSION:
            raise ValueError(f"its form is {number}, and this version of graphopt reads form {RECIPE_VERSION}")
        try:
            return from_json(Recipe, text)
        except DECODE_ERRORS as error:
            raise ValueError(f"it is damaged: {error}") from error


def load_recipe(source: Recipe | str | PathLike[str]) -> Recipe:
    """Return the recipe in a file, or the recipe itself.

    Raises:
        UsageError: there is no such file, or it holds no recipe.
    """
    if isinstance(source, Recipe):
        return source
    try:
        return Recipe.from_json(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is no recipe of graphopt: it is no text") from error
    except ValueError as error:
        raise UsageError(f"{source} is no recipe of graphopt: {error}") from error
