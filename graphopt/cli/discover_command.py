"""The command that finds rules."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphopt.base import files, ort
from graphopt.base.errors import UsageError
from graphopt.cli.option_flags import DiscoveryOptions, Messages, takes_options
from graphopt.cli.terminal import Progress, console, set_up_logging

if TYPE_CHECKING:
    from graphopt.discover.gain_estimation import GainEstimator
    from graphopt.discover.library_lookup import LookupResult
    from graphopt.discover.run import DiscoveredRule, DiscoveryResult, Plan

log = logging.getLogger(__name__)


@takes_options
def discover(
    output: Annotated[
        Path,
        typer.Option("--output", metavar="FILE.jsonl", help="Where the rules go; - is stdout.", show_default=False),
    ],
    options: DiscoveryOptions,
    messages: Messages,
) -> None:
    """Find rules that no one wrote: small terms that compute the same, proved for all sizes.

    Terms of up to --size operators are told apart by their values on random tensors in a prime field. Of those that are
    equal and not derived from other rules the most general rule is sought that can be proved; nothing else is written.
    A run that was interrupted resumes where it ended.
    """
    set_up_logging(messages.verbose, messages.debug)
    if output.suffix != ".jsonl" and not files.is_stdout(output):
        raise UsageError(f"--output {output}: rules are written to a .jsonl file")
    if files.is_stdout(output) and options.journal is None:
        raise UsageError("--output - needs --journal FILE, which keeps the progress")
    files.check_writable(output)
    from graphopt.base.executors import make_executor
    from graphopt.discover.gain_estimation import GainEstimator, cost_model
    from graphopt.discover.library_lookup import LookupTask, read_graph, run_lookup
    from graphopt.discover.run import Journal, Plan, Run
    from graphopt.discover.worlds import resolve_operators
    from graphopt.language import rule_library as libraries
    from graphopt.operators.operator_classes import DISCOVERY_OPERATORS

    given = libraries.read_rules(options.rules)
    graphs = {name: read_graph(name) for name in map(str, options.models)}
    chosen = resolve_operators(options.ops) if options.ops else DISCOVERY_OPERATORS
    plan = Plan(
        options.size,
        chosen,
        options.seed,
        options.timeout or Plan.timeout,
        tuple(path.resolve() for path in options.rules),
    )
    path = options.journal or output.with_name(f"{output.name}.journal")
    with (
        Progress(enabled=not messages.quiet) as progress,
        ort.registered_custom_ops(options.custom_ops),
        make_executor(options.workers, options.dask) as runs,
        Journal(path, keep=options.journal is not None) as kept,
    ):
        outcome = Run(plan, runs, kept, progress, partial(_print_line, quiet=messages.quiet)).run()
        known = libraries.load_library(given) if options.library else given
        gains = GainEstimator(cost_model(options.cost), known, graphs) if options.cost != "none" else None
        lookups = [LookupTask(each.rule, plan.files, options.library) for each in outcome.rules if known.all_rules]
        answers: dict[int, LookupResult] = {}
        for place, answer in runs.imap_unordered(run_lookup, lookups):
            progress("look up in the library", len(answers) / len(lookups))
            answers[place] = answer
        lines = _lines(outcome, plan, answers, gains, progress, quiet=messages.quiet)
        files.write_text(output, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    if not messages.quiet:
        _show(outcome, lines, output)


def _print_line(line: object, *, quiet: bool) -> None:
    """Print a line about how it goes."""
    log.log(logging.INFO if quiet else logging.WARNING, "%s", line, extra={"plain": True})


def _lines(
    outcome: DiscoveryResult,
    plan: Plan,
    answers: Mapping[int, LookupResult],
    gains: GainEstimator | None,
    progress: Progress,
    *,
    quiet: bool,
) -> list[dict[str, Any]]:
    """Return the lines on rules that the library lacks, the most promising first."""
    lacking: list[DiscoveredRule] = []
    have = Counter[str]()
    for place, found in enumerate(outcome.rules):
        answer = answers.get(place)
        if answer is not None and answer.is_found:
            have[", ".join(answer.rules) or "the passes"] += 1
            log.info("%s: the library has it: %s", found.rule, ", ".join(answer.rules) or "the passes")
        else:
            lacking.append(found)
    if have:
        done = f"{have.total()} of {len(outcome.rules)} rules follow from the library"
        _print_line(f"{done} (--verbose says by which of its rules)", quiet=quiet)
    lines: list[dict[str, Any]] = []
    for number, found in enumerate(lacking):
        progress("ask what is gained", number / len(lacking))
        lines.append(_line(found, plan, gains))

    def gains_of(line: Mapping[str, Any]) -> tuple[float, float]:
        """Return the greatest gain in a model, and that on large tensors."""
        about = line["found"]
        places = about.get("models", {}).values()
        return max((place["gain"] or 0.0 for place in places), default=0.0), about["gain"] or 0.0

    return sorted(lines, key=gains_of, reverse=True)


def _line(found: DiscoveredRule, plan: Plan, gains: GainEstimator | None) -> dict[str, Any]:
    from graphopt.discover.generalization import measure_weight

    rule, proof = found.rule, found.proof
    places = {name: asdict(place) for name, place in gains.in_models(rule).items()} if gains else {}
    about = {
        "algebra": str(rule),
        "trade": len(rule.left) > 1
        or measure_weight(*rule.left) <= measure_weight(*rule.right),  # one for several: not always faster
        "proof": {"model": proof.model, "ranks": proof.coverage_text, "cases": proof.cases, "solver": proof.solver},
        "gain": gains and gains.on_large_tensors(rule),
        "cost": gains.cost.name if gains else "none",
        **({"models": places} if places else {}),
        "run": {"world": found.world, "size": plan.size, "ops": list(plan.operators), "seed": plan.seed},
    }
    return rule.to_json() | {"found": about}


def _show(outcome: DiscoveryResult, lines: Sequence[dict[str, Any]], output: Path) -> None:
    """Print what was found by stage, and the rules that gain most."""
    from rich.table import Table

    from graphopt.discover.equation_proving import EquationStatus

    to = console(stderr=files.is_stdout(output))
    table = Table(box=None, pad_edge=False)
    for name in ("world", "size", "terms", "values", "equal", "asked", "proved", "refuted", "open", "rules", "s"):
        table.add_column(name, no_wrap=True, justify="left" if name == "world" else "right")
    for stage in outcome.stages:
        proved = stage.fates[EquationStatus.PROVED]
        refuted = stage.fates[EquationStatus.REFUTED] + stage.fates[EquationStatus.ACCIDENT]
        counts = (stage.terms, stage.classes, stage.equal_count, stage.question_count, proved, refuted)
        row = [stage.world, str(stage.size), *(f"{count:,}" for count in counts)]
        table.add_row(*row, str(stage.question_count - proved - refuted), str(stage.rules), f"{stage.seconds:.1f}")
    to.print(table)
    best = "; those that gain most:\n" if lines else ""
    to.print(f"\n{len(lines)} rules written to {output}{best}")
    for line in lines[:5]:
        about = line["found"]
        to.print(f"  {about['gain'] or '?':>6}  {about['algebra']}", soft_wrap=True)
