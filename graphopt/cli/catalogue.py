"""Texts about rules: the lists of functions and rules in `rules/README.md`, and their number in the README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from graphopt.base.files import naming_write_errors, write_text
from graphopt.language.proof import Proof, ProofLedger
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import (
    BINDING_QUERIES,
    LIST_FUNCTIONS,
    NUMBER_FUNCTIONS,
    PREDICATES,
    PROPERTIES,
    ScalarFunction,
)
from graphopt.report.report import format_proof_counts
from graphopt.rewrite import gate
from graphopt.rewrite.proving import write_ledger


def rules_folder() -> Path:
    """Return the folder of the built-in rules."""
    return gate.ledger_path().parent


def write_catalogue(proofs: Iterable[Proof]) -> None:
    """Write the ledger of the built-in rules, which holds no other proofs, and the texts that list its content.

    Raises:
        OutputError: one of them cannot be written.
    """
    with naming_write_errors(rules_folder()):
        built_in = {rule.digest for rules in _families().values() for rule in rules}
        ledger = write_ledger(proof for proof in proofs if proof.digest in built_in)
        guide, readme = rules_folder() / "README.md", rules_folder().resolve().parent / "README.md"
        write_text(guide, update_guide(guide.read_text(encoding="utf-8"), ledger))
        if readme.is_file():  # an installed package has none
            write_text(readme, update_rule_count(readme.read_text(encoding="utf-8"), ledger))


def update_guide(guide: str, ledger: ProofLedger) -> str:
    """Return the guide with its lists as they are now."""
    parts = {"functions": _function_lines(), "catalogue": _lines(ledger)}
    for name, lines in parts.items():
        marks = f"<!-- {name} -->\n", f"<!-- end of the {name} -->"
        assert all(guide.count(mark) == 1 for mark in marks), f"the guide has lost the marks of the {name}"
        before, (_, after) = guide.split(marks[0], maxsplit=1)[0], guide.split(marks[1])
        guide = "\n".join([before + marks[0], *lines, marks[1] + after])
    return guide


def update_rule_count(readme: str, ledger: ProofLedger) -> str:
    """Return the README with the number of rules as it is now."""
    return re.sub(r"(?<=The ledger holds )\d+ rules[^.]*", format_proof_counts(ledger), readme)


# -- functions ---------------------------------------------------------------------------------------------------------


def _function_lines() -> Iterator[str]:
    yield from _function_table("facts", {f"{name}({taken})": about for name, (taken, about) in BINDING_QUERIES.items()})
    yield from _function_table("numbers, elementwise on lists", _calls(NUMBER_FUNCTIONS))
    yield from _function_table("lists", _calls(LIST_FUNCTIONS))
    yield from _function_table("conditions", _calls(PREDICATES))
    of_constants = {f"{name}({', '.join(('c', *f.parameters[1:]))})": f.description for name, f in PROPERTIES.items()}
    yield from _function_table("properties of constants", of_constants)


def _calls(functions: Mapping[str, ScalarFunction]) -> dict[str, str]:
    return {f"{name}({', '.join(found.parameters)})": found.description for name, found in functions.items()}


def _function_table(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    yield from (f"| {title} | |", "| --- | --- |")
    yield from (f"| `fn.{call}` | {about} |" for call, about in rows.items())
    yield ""


# -- rules -------------------------------------------------------------------------------------------------------------


def _families() -> dict[ModuleType, tuple[Rule, ...]]:
    """Return the modules of built-in rules, in the order of their names."""
    from graphopt import rules

    modules = [module for _, module in sorted(vars(rules).items()) if isinstance(module, ModuleType)]
    found = {module: (*getattr(module, "RULES", ()), *getattr(module, "TRADES", ())) for module in modules}
    return {module: listed for module, listed in found.items() if listed}


def _lines(ledger: ProofLedger) -> Iterator[str]:
    yield f"{format_proof_counts(ledger)}."
    for module, rules in _families().items():
        title = module.__name__.rpartition(".")[2].replace("_", " ").capitalize()
        yield from ("", f"### {title}", "", str(module.__doc__).strip().partition("\n\n")[0].replace("\n", " "), "")
        yield "| rule | algebra | why | model | ranks | cases |"
        yield "| --- | --- | --- | --- | --- | ---: |"
        yield from (_row(rule, ledger.get(rule.digest)) for rule in rules)


def _row(rule: Rule, proof: Proof | None) -> str:
    if proof is None or not proof.holds:
        shown = f"| {proof.verdict if proof else 'no proof yet'} | | |"
    else:
        shown = f"| {proof.model} | {proof.coverage_text} | {proof.cases} |"
    algebra = re.sub(r"  (?=->  |where |for any )", " ", str(rule)).replace("->  ", "-> ").replace("|", "\\|")
    return f"| {rule.name} | `{algebra}` | {rule.why} {shown}"
