"""The rules that the tests write: all that a test module holds under a name, alone or in a collection of them.

Those that ship are not among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from graphopt.language.rule import Rule
from tests.verifier.mutants import LIBRARY

TESTS = Path(__file__).parent.parent
DEPTH = 4
"""How far collections are looked into."""


@cache
def rules_of_tests() -> tuple[Rule, ...]:
    """Return each rule once, those that are to be refused among them, in the order of the modules."""
    modules = sorted(path.relative_to(TESTS.parent) for path in TESTS.rglob("test_*.py"))
    named = (import_module(".".join(path.with_suffix("").parts)) for path in modules)
    found = (rule for module in named for value in vars(module).values() for rule in _rules(value, DEPTH))
    shipped = {rule.digest for rule in LIBRARY}
    return tuple({rule.digest: rule for rule in found if rule.digest not in shipped}.values())


def _rules(value: Any, depth: int) -> Iterator[Rule]:
    if isinstance(value, Rule):
        yield value
    elif depth and isinstance(value, tuple | list | frozenset | Mapping):
        inside: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for part in inside:
            yield from _rules(part, depth - 1)
