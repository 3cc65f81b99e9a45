"""The rules and their proofs as a list to read, kept between two marks in `rules/README.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from graphopt import gate
from graphopt.files import write_text
from graphopt.proof import Ledger, Proof
from graphopt.proving import write_ledger
from graphopt.report import proof_counts
from graphopt.rule import Rule

_BETWEEN = re.compile(r"(?<=<!-- catalogue -->\n).*(?=<!-- end of the catalogue -->)", re.DOTALL)


def folder() -> Path:
    """Where the built-in rules lie."""
    return gate.ledger_path().parent


def write(proofs: Iterable[Proof]) -> None:
    """Write the ledger of the built-in rules and their list. Proofs of other rules have no place there."""
    built_in = {rule.digest for rules in _families().values() for rule in rules}
    ledger = write_ledger(proof for proof in proofs if proof.digest in built_in)
    page = folder() / "README.md"
    write_text(page, updated(page.read_text(encoding="utf-8"), ledger))


def updated(page: str, ledger: Ledger) -> str:
    """The page with the list as it is now."""
    assert _BETWEEN.search(page), "the page has lost the marks of the catalogue"
    return _BETWEEN.sub(lambda _: "\n" + "\n".join(_lines(ledger)) + "\n", page)


def _families() -> dict[ModuleType, tuple[Rule, ...]]:
    """The modules of built-in rules, in the order of their names."""
    from graphopt import rules

    modules = [module for _, module in sorted(vars(rules).items()) if isinstance(module, ModuleType)]
    return {m: (*getattr(m, "RULES", ()), *getattr(m, "TRADES", ())) for m in modules if hasattr(m, "RULES")}


def _lines(ledger: Ledger) -> Iterator[str]:
    yield f"{proof_counts(ledger)}."
    for module, rules in _families().items():
        title = module.__name__.rpartition(".")[2].capitalize()
        yield from ("", f"### {title}", "", str(module.__doc__).strip().partition("\n\n")[0].replace("\n", " "), "")
        yield "| rule | algebra | why | model | ranks | cases |"
        yield "| --- | --- | --- | --- | --- | ---: |"
        yield from (_row(rule, ledger.get(rule.digest)) for rule in rules)


def _row(rule: Rule, proof: Proof | None) -> str:
    if proof is None or not proof.holds:
        shown = f"| {proof.verdict if proof else 'no proof yet'} | | |"
    else:
        shown = f"| {proof.model} | {proof.ranks} | {proof.cases} |"
    algebra = re.sub(r"  (?=->  |where )", " ", str(rule)).replace("->  ", "-> ").replace("|", "\\|")
    return f"| {rule.name} | `{algebra}` | {rule.why} {shown}"
