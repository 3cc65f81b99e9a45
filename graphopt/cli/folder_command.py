"""`optimize` of a folder: every model in it, and one table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import typer

from graphopt.base import files, ort
from graphopt.base.errors import UsageError
from graphopt.cli.option_flags import FolderOptions, Printing, ResultOptions
from graphopt.cli.output_files import write_view
from graphopt.cli.terminal import Progress, print_text
from graphopt.options import Options


def optimize_models(
    folder: Path,
    output: Path | None,
    own: FolderOptions,
    options: Options,
    wanted: ResultOptions,
    printing: Printing,
) -> None:
    """Optimize all models of a folder and print the table; exit with the code of what went wrong with any.

    Raises:
        UsageError, OutputError: nothing was begun.
    """
    of_one = {"--html": wanted.html, "--model-explorer": wanted.model_explorer, "--save-recipe": wanted.save_recipe}
    for flag, value in of_one.items():
        if value is not None:
            raise UsageError(f"{flag} is of one model, and {folder} is a folder")
    if wanted.report is not None:
        files.check_writable(wanted.report, is_plain=False)
    if options.check or options.is_timed:
        ort.require_onnxruntime()  # now, not when the work is done
    from graphopt.folders import optimize_folder

    with Progress(enabled=not printing.quiet) as progress:
        result = optimize_folder(
            folder,
            output,
            total_seconds=own.total_seconds,
            require_speedup=wanted.require_speedup,
            external_data=wanted.external_data,
            **vars(replace(options, progress=progress)),
        )
    if wanted.report is not None:
        write_view(wanted.report, f"{result.to_json()}\n")
    if printing.as_json:
        sys.stdout.write(f"{result.to_json()}\n")
    elif not printing.quiet:
        print_text(str(result))
    if not result.ok:
        raise typer.Exit(result.exit_code)
