"""`optimize`: a model is optimized and written, or all models of a folder, and a table says what was done."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base import files, ort
from graphopt.base.errors import NoSpeedupError, OutputError, UsageError
from graphopt.cli import output_files
from graphopt.cli.option_flags import FolderOptions, Printing, ResultOptions, takes_options
from graphopt.cli.terminal import Progress, console, one_line, print_json, print_text, set_up_logging
from graphopt.options import Options

if TYPE_CHECKING:
    from graphopt.folders import FolderResult
    from graphopt.report.report import Report

log = logging.getLogger(__name__)


@takes_options
def optimize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|FOLDER", help="The model, an .onnx file, or a folder.", show_default=False)
    ],
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUTPUT", help="Where the result goes; - is stdout.", show_default=False),
    ] = None,
    *,
    folder: FolderOptions,
    options: Options,
    wanted: ResultOptions,
    printing: Printing,
) -> None:
    """Rewrite a model into an equal one that runs faster, time and check it, and say what was done.

    Of a folder, every model is optimized, and model_graphopt.onnx stands beside model.onnx, or in the OUTPUT folder
    model.onnx takes its place.

    Rewrites that pay in some models only are tried by measuring, and versions of the model take turns with the
    original: the result is faster, or it is no slower and the report says "no gain".
    """
    set_up_logging(printing.verbose, printing.debug)
    if wanted.require_speedup is not None and options.recipe is not None:
        raise UsageError("--require-speedup excludes --recipe: nothing is timed")
    if wanted.require_speedup is not None and options.cost != "measured":
        raise UsageError("--require-speedup needs --cost measured: nothing else is timed")
    if wanted.require_speedup is not None and options.dask is not None:
        raise UsageError("--require-speedup excludes --dask: a cluster times parts of the model, not the whole")
    if output is not None and folder.output_path is not None:
        raise UsageError(f"the output is {output} and {folder.output_path}: name one")
    target = folder.output_path if output is None else Path(output)
    if Path(model).is_dir():
        _optimize_folder(Path(model), target, folder, options, wanted, printing)
        return
    files.check_readable(Path(model))
    if folder.total_seconds is not None:
        raise UsageError("--total-seconds is for the models of a folder: --seconds is for one")
    if target is None:
        raise UsageError(f"name the output: graphopt optimize {model} OUTPUT")
    output_files.check_outputs(Path(model), target, wanted, as_json=printing.as_json)
    optimize_model(model, target, options, wanted, printing)


def optimize_model(model: str, target: Path, options: Options, wanted: ResultOptions, printing: Printing) -> None:
    """Optimize a model, write the result and say what was done.

    Raises:
        NoSpeedupError: it is not as fast as is required, and was not written; the views of it were.
    """
    with Progress(enabled=not printing.quiet) as progress:
        progress("load", 0.0)
        if options.check or options.is_timed:
            ort.require_onnxruntime()  # now, not when the work is done
        from graphopt.pipeline import optimize

        result = optimize(model, **vars(replace(options, progress=progress)))
        try:
            if wanted.require_speedup is not None:
                result.report.require_speedup(wanted.require_speedup)
        except NoSpeedupError:
            output_files.write_views(result, wanted)
            raise
        if wanted.html is not None:
            result = output_files.with_profile(result, model, options, progress)
    before = files.file_identity(target)
    try:
        with Progress(enabled=not printing.quiet) as progress:
            progress("save", 0.0)
            result = output_files.save_result(result, target, wanted.external_data)
        with output_files.report_model_written_on_failure():
            output_files.write_views(result, wanted)
            _show(result.report, printing, stderr=files.is_stdout(target))
    except (KeyboardInterrupt, SystemExit) as error:
        if files.file_identity(target) == before:  # what is on the disk decides, at whatever instant the signal came
            raise
        raise OutputError(f"interrupted when {target} was written already; the report may be missing") from error


def _show(report: Report, printing: Printing, *, stderr: bool) -> None:
    for line in report.decisions():
        log.info("%s", line)
    if printing.as_json:
        print_json(report.to_json())
    elif not printing.quiet:
        report.print(console(stderr=stderr))
    found = report.comparison
    if found is not None and found.verdict != "equal":
        log.warning("the check is not complete: %s", one_line(found.reason))


def _optimize_folder(
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
        output_files.write_view(wanted.report, f"{result.to_json()}\n")
    _show_folder(result, printing)
    if not result.ok:
        raise typer.Exit(result.exit_code)


def _show_folder(result: FolderResult, printing: Printing) -> None:
    """Print the table or JSON; where there is no table, a line for each failure on stderr."""
    if printing.as_json:
        print_json(result.to_json())
    elif not printing.quiet:
        print_text(str(result))
        return
    for each in result.models:
        if each.error:
            sys.stderr.write(f"graphopt: error: {each.model}: {one_line(each.error)}\n")
