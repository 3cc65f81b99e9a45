"""Where rules come from: entry points (the built-in library is one of them), `.py` and `.jsonl` files."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from graphopt.errors import RuleError, UsageError, did_you_mean
from graphopt.rule import Rule

GROUP = "graphopt.rules"
"""The entry-point group: each entry is a module with `RULES`, a tuple of rules."""


Source: TypeAlias = "str | os.PathLike[str] | Rule"
"""A file of rules, or a rule."""


def load_rules(extra: Iterable[Source] = (), *, trades: bool = False) -> tuple[Rule, ...]:
    """The rules given, which are tried first, then the installed ones; with `trades` also those that pay sometimes.

    Raises:
        RuleError: a file holds no rules or an ill-formed one, or two different rules have one name.
        UsageError: a file is missing, or neither `.py` nor `.jsonl`.
    """
    installed = [(rule, source) for source, rules, others in _installed() for rule in (*rules, *others * trades)]
    return _distinct(_read(extra) + installed)


def load_sweeps() -> dict[str, tuple[Rule, ...]]:
    """What the installed modules call `SWEEPS`, which not all have: trades that pay together, by what they are for."""
    return {
        name: rules
        for entry in sorted(entry_points(group=GROUP))
        for name, rules in getattr(entry.load(), "SWEEPS", {}).items()
    }


def read_rules(sources: Iterable[Source]) -> tuple[Rule, ...]:
    """The rules given, without the installed ones. Raises what `load_rules` raises."""
    return _distinct(_read(sources))


def _read(sources: Iterable[Source]) -> list[tuple[Rule, str]]:
    found: list[tuple[Rule, str]] = []
    for source in sources:
        if isinstance(source, Rule):
            found.append((source, "what was given"))
        else:
            found += [(rule, str(source)) for rule in _from_file(Path(source))]
    return found


@cache
def _installed() -> tuple[tuple[str, tuple[Rule, ...], tuple[Rule, ...]], ...]:
    """The modules of the entry points: name, `RULES` and `TRADES`, which not all have."""
    modules = [(entry.value, entry.load()) for entry in sorted(entry_points(group=GROUP))]
    return tuple(
        (name, _rules_of(module, name), _rules_of(module, name, "TRADES") if hasattr(module, "TRADES") else ())
        for name, module in modules
    )


def _from_file(path: Path) -> tuple[Rule, ...]:
    if not path.is_file():
        raise UsageError(f"{path}: no such file of rules")
    match path.suffix:
        case ".py":
            return _rules_of(_run(path), str(path))
        case ".jsonl":
            return _read_lines(path)
    raise UsageError(f"{path}: rules are in a .py file with RULES, or a .jsonl file")


def _run(path: Path) -> ModuleType:
    """Import a file of rules by its path. This runs its code."""
    spec = importlib.util.spec_from_file_location(f"graphopt_rules_{path.stem}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from error
    except Exception as error:
        raise RuleError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _rules_of(module: ModuleType, source: str, name: str = "RULES") -> tuple[Rule, ...]:
    rules = getattr(module, name, None)
    if not isinstance(rules, Iterable):
        raise RuleError(f"{source}: no {name} = (…), a tuple of rules")
    listed = tuple(rules)
    for rule in listed:
        if not isinstance(rule, Rule):
            raise RuleError(f"{source}: {name} holds {rule!r}, which is no Rule")
    return listed


def _read_lines(path: Path) -> tuple[Rule, ...]:
    rules = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                rules.append(Rule.from_json(json.loads(line)))
            except (json.JSONDecodeError, RuleError) as error:
                raise RuleError(f"{path}:{number}: {error}") from error
    return tuple(rules)


def _distinct(found: Sequence[tuple[Rule, str]]) -> tuple[Rule, ...]:
    """The rules in order; the same rule twice counts once, two rules of one name are an error."""
    known: dict[str, tuple[Rule, str]] = {}
    for rule, source in found:
        other, other_source = known.setdefault(rule.name, (rule, source))
        if other is not rule and other.digest != rule.digest:
            raise RuleError(f"two rules are called '{rule.name}': one in {other_source}, one in {source}")
    return tuple(rule for rule, _ in known.values())


def select(names: Sequence[str], skip: Iterable[str], only: Iterable[str] | None) -> frozenset[str]:
    """The names of rules and passes to use.

    Raises:
        UsageError: a name in `skip` or `only` is not among `names`; says what may have been meant.
    """
    for name in (*skip, *(only or ())):
        if name not in names:
            hint = did_you_mean(name, names) or "; `graphopt rules` lists them"
            raise UsageError(f"there is no rule or pass '{name}'{hint}")
    return frozenset(names if only is None else only) - frozenset(skip)
