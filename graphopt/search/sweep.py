"""Sweeps: rules that pay only together, and only everywhere, such as those that turn stacks of matrices into matrices.

A search looks at one part of a model at a time, and on a part their views cost as much as they bring. So each sweep is
made on the whole model, and timed as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.fixpoint import Step, TimeUp
from graphopt.rewrite.variant import Variant
from graphopt.search.moves import Move, Space, Stuck, advance, matches

log = logging.getLogger(__name__)

Sweeps = Mapping[str, Sequence[Rule]]
"""By what they are for: rules, those first which are to be applied first."""

ROUNDS = 40
"""After so many a sweep is given up: its rules undo each other, or what simplifies undoes them."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Rules that were applied wherever they match, and what came of it."""

    name: str
    rules: tuple[str, ...]
    """Those that matched somewhere."""
    result: Variant


def sweep(start: Variant, name: str, rules: Sequence[Rule], space: Space) -> Sweep | None:
    """Apply rules that trade wherever they match until none does; simplify after each.

    None where none matched, or there was no end or no time.
    """
    used: dict[str, None] = {}
    only = Space(rules, space.simplifier, space.allows)
    try:
        result = start.then(lambda graph: _swept(graph, only, used))
    except TimeUp:
        log.info("there is no time for the sweep '%s'", name)
        return None
    except _Endless:
        log.warning("the sweep '%s' did not come to an end and is left", name)
        return None
    return Sweep(name, tuple(used), result) if result is not start else None


class _Endless(Exception):
    """The rules of a sweep undo each other."""


def _swept(graph: Graph, space: Space, used: dict[str, None]) -> list[Step]:
    """Make the steps, in place; note the rules that were used."""
    done: list[Step] = []
    refused: set[Rule] = set()
    for _ in range(ROUNDS):
        found = matches(graph, space)
        rule = next((rule for rule in space.trades if rule in found and rule not in refused), None)
        if rule is None:
            return done
        try:
            done += advance(graph, Move(rule.name, tuple(match.roots for match in found[rule])), space).steps
            used[rule.name] = None
        except Stuck:
            refused.add(rule)
    raise _Endless
