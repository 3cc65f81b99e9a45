"""Sources of rules: entry points (the built-in library is one of them), `.py` and `.jsonl` files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from graphopt.base.errors import RuleError, UsageError, did_you_mean
from graphopt.base.limits import garbage_collection_paused
from graphopt.base.session import DEFAULT_SESSION
from graphopt.language.binding import literal_value
from graphopt.language.definition import declare
from graphopt.language.rule import Rule
from graphopt.language.terms import SCALAR, App, operator_applications, render_term

ENTRY_POINT_GROUP = "graphopt.rules"
"""The entry-point group: each entry is a module with `RULES`, a tuple of rules, and perhaps `TRADES`, `SWEEPS`,
`ALSO_ALONE`, `MEMORY_TRADES`, `TENSOR_PARALLEL` and `TARGET_DOMAINS`."""


RuleSource: TypeAlias = "str | os.PathLike[str] | Rule"
"""A file of rules, or a rule."""


@dataclass(frozen=True)
class RuleModule:
    """The rules of one module or file, by the lists in which they stand."""

    source: str
    rules: tuple[Rule, ...] = ()
    """Rules that are applied wherever they match."""
    trades: tuple[Rule, ...] = ()
    """Rules that pay in some models only: a search tries them."""
    sweeps: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    """Trades that pay together, by their purpose."""
    also_alone: tuple[Rule, ...] = ()
    """Trades of sweeps that may pay at single places, too: a search tries them there."""
    parts: tuple[Rule, ...] = ()
    """Trades of time for memory: a memory budget asks for them, a search for speed does not."""
    splits: tuple[Rule, ...] = ()
    """Trades that split operators among devices: a plan for several devices asks for them."""
    target_domains: tuple[str, ...] = ()
    """Domains of operators that its rules may write though this machine has no kernel for them."""


@dataclass(frozen=True)
class RuleLibrary:
    """Rules of several modules, in the order in which they are tried."""

    modules: tuple[RuleModule, ...] = ()

    @cached_property
    def all_rules(self) -> tuple[Rule, ...]:
        """All rules, trades last; the same rule twice counts once.

        Raises:
            RuleError: two different rules have one name.
        """
        always = [(rule, part.source) for part in self.modules for rule in part.rules]
        return _deduplicate([*always, *((rule, part.source) for part in self.modules for rule in part.trades)])

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        always = {rule.name for part in self.modules for rule in part.rules}
        return tuple(rule for rule in self.all_rules if rule.name in always)

    @cached_property
    def trades(self) -> tuple[Rule, ...]:
        return self.all_rules[len(self.rules) :]

    @cached_property
    def parts(self) -> tuple[Rule, ...]:
        """The trades of time for memory."""
        named = {rule.name for part in self.modules for rule in part.parts}
        return tuple(rule for rule in self.trades if rule.name in named)

    @cached_property
    def target_domains(self) -> frozenset[str]:
        """Domains of operators that rules may write though this machine has no kernel for them."""
        return frozenset(name for part in self.modules for name in part.target_domains)

    @cached_property
    def speed_trades(self) -> tuple[Rule, ...]:
        """The trades that a search for speed tries."""
        others = {rule.name for part in self.modules for rule in (*part.parts, *part.splits)}
        return tuple(rule for rule in self.trades if rule.name not in others)

    @cached_property
    def sweeps(self) -> dict[str, tuple[Rule, ...]]:
        return {name: rules for part in self.modules for name, rules in part.sweeps.items()}

    @cached_property
    def also_alone(self) -> frozenset[str]:
        """The names of the trades of sweeps that may pay at single places, too."""
        return frozenset(rule.name for part in self.modules for rule in part.also_alone)


def read_rules(sources: Iterable[RuleSource]) -> RuleLibrary:
    """Return the rules given, without the installed ones.

    Raises:
        RuleError: a file holds no rules or an ill-formed one.
        UsageError: a file is missing, or neither `.py` nor `.jsonl`.
    """
    return RuleLibrary(tuple(map(_read_source, sources)))


def load_library(given: RuleLibrary | None = None) -> RuleLibrary:
    """Return the rules given, and after them the installed ones."""
    return RuleLibrary((*(given.modules if given else ()), *_installed_modules()))


def load_rules(extra: Iterable[RuleSource] = (), *, trades: bool = False) -> tuple[Rule, ...]:
    """Return the rules given, then the installed ones; with `trades` also those that pay sometimes.

    Raises:
        RuleError: a file holds no rules or an ill-formed one, or two different rules have one name.
        UsageError: a file is missing, or neither `.py` nor `.jsonl`.
    """
    library = load_library(read_rules(extra))
    return library.all_rules if trades else library.rules


@cache
def _installed_modules() -> tuple[RuleModule, ...]:
    """Return the modules of the entry points, which define operators for all sessions: Python runs a module once."""
    with DEFAULT_SESSION.replace(), garbage_collection_paused():
        return tuple(
            _module_rules(entry.load(), entry.value) for entry in sorted(entry_points(group=ENTRY_POINT_GROUP))
        )


def _read_source(source: RuleSource) -> RuleModule:
    if isinstance(source, Rule):
        for definition in reversed(source.definitions):  # of another session, perhaps
            declare(definition)
        return RuleModule("what was given", (source,))
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"{path}: no such file of rules")
    _installed_modules()  # a file that defines one of its operators otherwise is told so, and not the library
    match path.suffix:
        case ".py":
            return _module_rules(_import_file(path), str(path))
        case ".jsonl":
            return RuleModule(str(path), *_read_jsonl(path))
    raise UsageError(f"{path}: rules are in a .py file with RULES, or a .jsonl file")


class _UncachedLoader(SourceFileLoader):
    """Loads a user's file without leaving a `__pycache__` beside it."""

    def set_data(self, path: str, data: object, *, _mode: int = 0) -> None:
        pass


def _import_file(path: Path) -> ModuleType:
    """Import a file of rules by its path. This runs its code."""
    place = sha256(str(path.resolve()).encode()).hexdigest()[:16]  # two files may have one stem
    loader = _UncachedLoader(f"graphopt_rules_{place}_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None, path
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        loader.exec_module(module)
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from error
    except Exception as error:
        unknown = re.search(r"Rule\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
        hint = did_you_mean(unknown[1], [each.name for each in fields(Rule)]) if unknown else ""
        raise RuleError(f"{path}: {type(error).__name__}: {error}{hint}") from error
    return module


def _module_rules(module: ModuleType, source: str) -> RuleModule:
    """Return the rules of a module: `RULES`, `TRADES` or both, and perhaps `SWEEPS`, `ALSO_ALONE`,
    `MEMORY_TRADES`, `TENSOR_PARALLEL` and `TARGET_DOMAINS`."""
    if not hasattr(module, "RULES") and not hasattr(module, "TRADES"):
        raise RuleError(f"{source}: no RULES = (…), a tuple of rules")
    sweeps = getattr(module, "SWEEPS", {})
    if not isinstance(sweeps, Mapping):
        raise RuleError(f"{source}: SWEEPS is no mapping from what they are for to tuples of rules")
    listed = {str(name): _check_rules(rules, source, f"SWEEPS['{name}']") for name, rules in sweeps.items()}
    rules, trades, alone, parts, splits = (
        _check_rules(getattr(module, name, ()), source, name)
        for name in ("RULES", "TRADES", "ALSO_ALONE", "MEMORY_TRADES", "TENSOR_PARALLEL")
    )
    domains = getattr(module, "TARGET_DOMAINS", ())
    if not isinstance(domains, tuple | list) or not all(isinstance(name, str) and name for name in domains):
        raise RuleError(f"{source}: TARGET_DOMAINS is no tuple of names of domains")
    return RuleModule(source, rules, trades, listed, alone, parts, splits, tuple(domains))


def _check_rules(rules: object, source: str, name: str) -> tuple[Rule, ...]:
    if not isinstance(rules, Iterable):
        raise RuleError(f"{source}: no {name} = (…), a tuple of rules")
    listed = tuple(rules)
    for rule in listed:
        if not isinstance(rule, Rule):
            raise RuleError(f"{source}: {name} holds {rule!r}, which is no Rule")
    return listed


def _read_jsonl(path: Path) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Return the rules of a file that has one a line, and those that it calls trades.

    A line may say what is known of its rule under "found"; that is for readers.
    """
    rules: tuple[list[Rule], list[Rule]] = [], []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            try:
                said = json.loads(line.decode(), object_pairs_hook=_without_duplicate_keys)
                about = said.pop("found", {}) if isinstance(said, dict) else {}
                is_trade = about.get("trade", False) if isinstance(about, dict) else None
                if not isinstance(is_trade, bool):
                    raise ValueError("what was 'found' is no object with a truth value as 'trade'")
                rules[is_trade].append(Rule.from_json(said))
            except (ValueError, RuleError) as error:  # of the text, or of a number with thousands of digits
                raise RuleError(f"{path}:{number}: {error}") from error
            except RecursionError as error:
                raise RuleError(f"{path}:{number}: the rule is nested too deeply") from error
    return tuple(rules[0]), tuple(rules[1])


def _without_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object from its pairs; raises ValueError for a repeated key, of which JSON would keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is said twice")
    return found


def _deduplicate(found: Sequence[tuple[Rule, str]]) -> tuple[Rule, ...]:
    """Return the rules in order; the same rule twice counts once, two rules of one name are an error."""
    known: dict[str, tuple[Rule, str]] = {}
    for rule, source in found:
        other, other_source = known.setdefault(rule.name, (rule, source))
        if other is not rule and other.digest != rule.digest:
            raise RuleError(f"two rules are called '{rule.name}': one in {other_source}, one in {source}")
    return tuple(rule for rule, _ in known.values())


def select_names(names: Sequence[str], skip: Iterable[str], only: Iterable[str] | None) -> frozenset[str]:
    """Return the names of rules and passes to use.

    Raises:
        UsageError: a name in `skip` or `only` is not among `names`; says what may have been meant.
    """
    for name in (*skip, *(only or ())):
        if name not in names:
            hint = did_you_mean(name, names) or "; `graphopt rules` lists them"
            raise UsageError(f"there is no rule or pass '{name}'{hint}")
    return frozenset(names if only is None else only) - frozenset(skip)


def notes_on_unmatchable_rules(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield a note for each rule that matches nothing, whatever the model."""
    for rule in rules:
        if asked := list(dict.fromkeys(map(render_term, _unmatchable_terms(rule)))):
            yield (
                f"rule {rule.name} never matches: {' and '.join(asked)} on its left side is known only where it has"
                " matched; write a hole for a number there, and in `when` what that equals"
            )


def _unmatchable_terms(rule: Rule) -> Iterator[App]:
    """Yield the terms of the left side that nothing equals: they ask for what only a match binds, as the size of an
    axis."""
    for side in rule.left:
        for app in operator_applications(side):
            for part in (*app.inputs, *(value for _, value in app.attrs)):
                if isinstance(part, App) and part.domain == SCALAR and literal_value(part) is None:
                    yield part
