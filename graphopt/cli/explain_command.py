"""The command that explains which rules are applied to a model, and why others are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from graphopt.base import files
from graphopt.cli.option_flags import ExplanationOptions, Model, Printing, takes_options
from graphopt.cli.terminal import Progress, print_json, print_text, set_up_logging


@takes_options
def explain(
    model: Model,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RULE...]", help="Rules to explain; by default all.", show_default=False),
    ] = None,
    *,
    options: ExplanationOptions,
    printing: Printing,
) -> None:
    """Say which rules are applied to a model when it is simplified, and where others almost are.

    Of each near miss: how far the pattern matches, to which nodes its terms are bound, and what fails first. Nothing is
    written, and nothing timed without `--slower`.
    """
    set_up_logging(printing.verbose, printing.debug)
    files.check_readable(Path(model))
    from graphopt.explanation import explain
    from graphopt.report.report import load_report

    measured = None if options.report is None else load_report(options.report)
    with Progress(enabled=not printing.quiet) as progress:
        run = replace(options.to_options(), progress=progress)
        found = explain(model, *(names or ()), at=options.at, options=run, report=measured, slower=options.slower)
    if printing.as_json:
        print_json(found.to_json())
    elif not printing.quiet:
        print_text(str(found))
