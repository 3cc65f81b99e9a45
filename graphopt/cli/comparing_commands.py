"""The commands on two models: are they equal, and is one fast enough?"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphopt.base.errors import DifferenceError, ModelError, NoSpeedupError
from graphopt.base.records import to_json
from graphopt.cli.measuring_commands import prepare
from graphopt.cli.option_flags import (
    CheckOptions,
    ComparisonOptions,
    Model,
    PageOptions,
    Printing,
    running,
    takes_options,
)
from graphopt.cli.output_files import write_view
from graphopt.cli.page_commands import check_page, model_pair
from graphopt.cli.terminal import Progress, console, print_json, set_up_logging

if TYPE_CHECKING:
    from graphopt.check.verdict import ModelComparison


@takes_options
def compare(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="The model as it was.", show_default=False)],
    optimized: Annotated[str, typer.Argument(metavar="OPTIMIZED", help="What became of it.", show_default=False)],
    options: ComparisonOptions,
    page: PageOptions,
    printing: Printing,
) -> None:
    """Run two models on the same inputs and say whether they agree; exit code 3 if they do not."""
    set_up_logging(printing.verbose, printing.debug)
    from graphopt.report.report import print_comparison

    check_page(page.html, original, optimized)
    with Progress(enabled=not printing.quiet) as progress, running(options):
        found = _compare(original, optimized, options, progress)
    if printing.as_json:
        print_json(to_json(found, indent=2))
    elif not printing.quiet:
        print_comparison(found, console())
    if page.html is not None:
        from graphopt.report.model_pages import comparison_page

        write_view(page.html, comparison_page(found, model_pair(original, optimized)))
    _require_equal(found, original, optimized)


def _compare(original: str, optimized: str, options: ComparisonOptions, progress: Progress) -> ModelComparison:
    """Return what comes of comparing two models at every choice of the sizes."""
    from graphopt.check import compare as comparing

    sizes = options.dims or {}
    bindings = [dict(zip(sizes, chosen, strict=True)) for chosen in itertools.product(*sizes.values())]
    return comparing.compare_models(
        original,
        optimized,
        seeds=range(options.seed, options.seed + max(len(comparing.DEFAULT_SEEDS), len(bindings))),
        bindings=bindings,
        inputs=options.inputs,
        exact=options.exact,
        keep_nonfinite=options.keep_nonfinite,
        progress=lambda done: progress("compare", done),
    )


def _require_equal(found: ModelComparison, original: str, optimized: str) -> None:
    """Raise DifferenceError where two models differ, ModelError where they could not be compared."""
    if found.verdict == "different":
        raise DifferenceError(f"{original} and {optimized} differ: {found.reason or found.worst}")
    if found.verdict != "equal":
        raise ModelError(f"{original} and {optimized} cannot be compared: {found.reason}")


@takes_options
def check(
    model: Model,
    *,
    against: Annotated[
        str, typer.Option(metavar="BASE", help="The model that it is to be equal to.", show_default=False)
    ],
    require_speedup: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO",
            help="Exit code 4 where the model is shown not to be so many times as fast; 1: where it is slower.",
            min=0,
        ),
    ] = None,
    options: CheckOptions,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="Of timing at most, for each of the two and each size.", min=0)
    ] = 5.0,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write all that was found as JSON.", show_default=False)
    ] = None,
    printing: Printing,
) -> None:
    """Compare a model with another and time the two: exit code 3 if they differ, 4 if the model is too slow.

    For continuous integration or a pre-commit hook. The report is written also where a model fails, but not where one
    cannot be read or run. Models that differ are not timed. A speedup is missed where its whole interval lies below
    what is required, so that noise fails no build.
    """
    set_up_logging(printing.verbose, printing.debug)
    from graphopt.report.model_check import ModelCheck
    from graphopt.runtime.bench import time_models

    check_page(report, model, against, name="the report")
    with Progress(enabled=not printing.quiet) as progress, running(options):
        found = ModelCheck(model, against, _compare(against, model, options, progress), require_speedup)
        if found.is_equal:
            ready = prepare([against, model], options, progress)
            timed = time_models(ready, seconds=seconds, progress=lambda done: progress("time", done))
            found = replace(found, benchmark=timed)
    if report is not None:
        write_view(report, f"{found.to_json()}\n")
    if printing.as_json:
        print_json(found.to_json())
    elif not printing.quiet:
        found.print(console())
    _require_equal(found.comparison, against, model)
    if reason := found.speedup_missed:
        raise NoSpeedupError(f"{model}: {reason}")
