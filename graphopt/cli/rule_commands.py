"""The commands on rules: they are proved, listed, printed in full, and explained in a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base import ort
from graphopt.base.errors import ProofError, UsageError
from graphopt.cli.option_flags import JsonFormat, Printing, ProvingOptions, RuleFiles, takes_options
from graphopt.cli.page_commands import write_rule_page
from graphopt.cli.terminal import Progress, console, print_as_json, print_json, print_text, set_up_logging

if TYPE_CHECKING:
    from graphopt.language.definition import Definition
    from graphopt.language.rule import Rule
    from graphopt.language.rule_library import RuleLibrary, RuleSource


log = logging.getLogger(__name__)


@takes_options
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE|FILE", help="Names of rules; .py or .jsonl files.", show_default=False),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", metavar="", help="All installed rules.")] = False,
    write: Annotated[
        bool,
        typer.Option("--write", metavar="", help="With --all: write the ledger of the built-in rules, and their list."),
    ] = False,
    options: ProvingOptions,
    printing: Printing,
) -> None:
    """Prove rules for all tensor sizes, on all processors; exit code 3 if one is not proved.

    What a rule must fulfil is shown with Z3; where that fails, small models are run in search of a counterexample.
    Definitions of operators are put to the kernels that ONNX Runtime has of them, and what these say is printed.
    """
    set_up_logging(printing.verbose, printing.debug)
    if write and not everything:
        raise UsageError("--write writes the whole ledger: use it with --all")
    from graphopt.report.report import print_proofs
    from graphopt.rewrite.gate import PROOF_TIMEOUT, describe_kernel_agreement, kernel_contradiction
    from graphopt.rewrite.proving import prove_all

    rules, defined = _select_rules(what or (), everything)
    with Progress(enabled=not printing.quiet) as progress, ort.registered_custom_ops(options.custom_ops):
        proofs = prove_all(
            rules,
            cached=not options.fresh,
            timeout=options.timeout or PROOF_TIMEOUT,
            workers=options.workers,
            dask=options.dask,
            progress=lambda done: progress("prove", done),
        )
        heard = [f"{each}\n    {describe_kernel_agreement(each)}" for each in defined]
        used = {each for rule in rules for each in rule.definitions}
        said = kernel_contradiction([each for each in defined if each not in used])
    if write and not said:
        from graphopt.cli import catalogue

        catalogue.write_catalogue(proofs)
    if printing.as_json:
        print_as_json([proof.to_json() for proof in proofs])
    elif not printing.quiet:
        if proofs:
            print_proofs(proofs, console())
        if heard:
            print_text("\n" * bool(proofs) + "\n".join(heard))
        if said:
            print_text(f"\n{said}")
    failed = [proof.rule for proof in proofs if not proof.holds]
    if failed:
        more = [f"and {len(failed) - 5} more"] if len(failed) > 5 else []
        raise ProofError(f"{len(failed)} of {len(proofs)} rules not proved: {', '.join([*failed[:5], *more])}")
    if said:
        raise ProofError(said if printing.as_json or printing.quiet else said.splitlines()[0])


def _select_rules(what: Sequence[str], everything: bool) -> tuple[list[Rule], list[Definition]]:
    """Return the rules that were named or are in files that were named, and the definitions that were read with them.

    With `everything` they are all that are installed or given, and the definitions also those that no rule uses.
    """
    from graphopt.language import rule_library
    from graphopt.language.definition import iter_definitions

    files = list(filter(_is_file, what))
    given, own = _read_rules(files)
    before = frozenset(iter_definitions()).difference(own)
    known = {rule.name: rule for rule in rule_library.load_library(given).all_rules}
    names = dict.fromkeys([*(item for item in what if item not in files), *(rule.name for rule in given.all_rules)])
    rule_library.select_names(list(known), (), list(names))
    wanted = list(known.values()) if everything else [known[name] for name in names]
    used = before.union(*(rule.definitions for rule in wanted))
    defined = [each for each in iter_definitions() if each in own or (everything and each not in used)]
    if not wanted and not defined:
        raise UsageError("nothing to verify: name rules or files of rules, or use --all")
    return wanted, defined


def _read_rules(sources: Iterable[RuleSource]) -> tuple[RuleLibrary, list[Definition]]:
    """Return the rules of some files, and the definitions in these files, or of those shipped, that the rules use.

    Warn of rules that never match: to prove them is no use.
    """
    from graphopt.language import rule_library
    from graphopt.language.definition import iter_definitions

    rule_library.load_library()
    before = frozenset(iter_definitions())
    found = rule_library.read_rules(sources)
    for note in rule_library.notes_on_unmatchable_rules(found.all_rules):
        log.warning("%s", note)
    used = {each for rule in found.all_rules for each in rule.definitions}
    return found, [each for each in iter_definitions() if each not in before or each in used]


def _is_file(name: str) -> bool:
    return Path(name).suffix in (".py", ".jsonl")


@takes_options
def rules(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]", help="One rule in full, or the rules of a .py or .jsonl file.", show_default=False
        ),
    ] = None,
    *,
    further: RuleFiles,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with a picture of the rule.", show_default=False),
    ] = None,
    printing: JsonFormat,
) -> None:
    """List the rules and passes: name, proof, rewrite, and why it pays; of a file, its definitions of operators, too.

    One rule is printed as a file of rules declares it, and drawn. This proves nothing: `graphopt verify` does.
    """
    set_up_logging(verbose=False, debug=printing.debug)
    from graphopt.language import rule_library
    from graphopt.language.rule_source import definition_source, rewrite_source
    from graphopt.rewrite.passes import PASSES, Pass

    passes: Sequence[Pass]
    defined: list[Definition] = []
    if name is not None and _is_file(name):
        (all_rules, defined), passes, name = _read_rules([*further.rules, name]), (), None
    else:
        all_rules, passes = rule_library.load_library(rule_library.read_rules(further.rules)), PASSES
    found, trades = all_rules.all_rules, {rule.name for rule in all_rules.trades}
    known = {rule.name: rule.why for rule in found} | {pass_.name: pass_.why for pass_ in passes}
    rule_library.select_names(list(known), (), [name] if name else None)
    rule = next((rule for rule in found if rule.name == name), None)
    if html is not None and rule is None:
        named = f"'{name}' is a pass, which has no pattern to draw" if name else "name it"
        raise UsageError(f"--html is the page of one rule: {named}")
    if rule is not None:
        _show_rule(rule, html, as_json=printing.as_json)
        return
    rewrites, claims = {rule.name: rewrite_source(rule) for rule in found}, _proof_claims(found, trades)
    if printing.as_json:
        listed = [
            {"name": n, "proof": claims.get(n), "algebra": rewrites.get(n), "why": why}
            for n, why in known.items()
            if name in (None, n)
        ]
        listed += [
            {"name": each.name, "proof": None, "algebra": definition_source(each), "why": ""} for each in defined
        ]
        print_as_json(listed)
    elif name is not None:
        print_text(f"{name}  (a pass)\n    {known[name]}")
    else:
        lines = ((f"{n}  ({claims.get(n, 'a pass')})", rewrites.get(n), why) for n, why in known.items())
        shown = ["\n    ".join(filter(None, parts)) for parts in lines]
        shown += [f"{each.name}  (a definition)\n    {definition_source(each)}" for each in defined]
        print_text("\n\n".join(shown))


def _show_rule(rule: Rule, html: Path | None, *, as_json: bool) -> None:
    """Write the page of a rule, or print it in full, with its proof if that is known."""
    from graphopt.report.rule_drawing import rule_in_full
    from graphopt.rewrite import gate

    proof = gate.known_proof(rule)
    if html is not None:
        write_rule_page(html, rule, proof)
    elif as_json:
        print_json(json.dumps(rule.to_json() | {"proof": proof and proof.to_json()}, ensure_ascii=False))
    else:
        print_text(rule_in_full(rule, proof, console().width))


def _proof_claims(rules: Iterable[Rule], trades: Container[str]) -> Mapping[str, str]:
    """Return what is proved of each rule, by name; of trades, too, that they pay in some models only."""
    from graphopt.rewrite import gate

    claims = {rule.name: proof.claim_text if (proof := gate.known_proof(rule)) else "no proof yet" for rule in rules}
    return {name: f"{claim}; pays in some models only" if name in trades else claim for name, claim in claims.items()}
