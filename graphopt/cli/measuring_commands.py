"""The commands that measure: two models are compared, models are timed, one is looked into; and the pages on them."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from graphopt.base import files
from graphopt.base.errors import DifferenceError, ModelError, UsageError
from graphopt.base.option_fields import changed_flags
from graphopt.base.records import DECODE_ERRORS
from graphopt.cli.option_flags import (
    ComparisonOptions,
    Debug,
    JsonFormat,
    MeasuringOptions,
    Model,
    PageOptions,
    Printing,
    RuleFiles,
    running,
    takes_options,
)
from graphopt.cli.output_files import write_view
from graphopt.cli.terminal import Progress, console, print_text, set_up_logging

if TYPE_CHECKING:
    from graphopt.report.page import ModelPair
    from graphopt.runtime.bench import PreparedModels
    from graphopt.runtime.input_sizes import TrialInputs
    from graphopt.runtime.profile import Profile


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
    from graphopt.check import compare as comparing
    from graphopt.check.verdict import EqualityVerdict
    from graphopt.report.report import comparison_json, print_comparison

    _check_page(page.html, original, optimized)
    sizes = options.dims or {}
    bindings = [dict(zip(sizes, chosen, strict=True)) for chosen in itertools.product(*sizes.values())]
    with Progress(enabled=not printing.quiet) as progress, running(options):
        found = comparing.compare_models(
            original,
            optimized,
            seeds=range(options.seed, options.seed + max(len(comparing.DEFAULT_SEEDS), len(bindings))),
            bindings=bindings,
            inputs=options.inputs,
            exact=options.exact,
            keep_nonfinite=options.keep_nonfinite,
            progress=lambda done: progress("compare", done),
        )
    if printing.as_json:
        sys.stdout.write(comparison_json(found) + "\n")
    elif not printing.quiet:
        print_comparison(found, console())
    if page.html is not None:
        from graphopt.report.page import comparison_page

        write_view(page.html, comparison_page(found, _model_pair(original, optimized)))
    if found.verdict is EqualityVerdict.DIFFERENT:
        raise DifferenceError(f"{original} and {optimized} differ: {found.reason or found.worst}")
    if found.verdict is not EqualityVerdict.EQUAL:
        raise ModelError(f"{original} and {optimized} cannot be compared: {found.reason}")


@takes_options
def bench(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="The models, .onnx files.", show_default=False)],
    *,
    options: MeasuringOptions,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="For each model and size, at most: ends when the ratios are certain.", min=0
        ),
    ] = 2.0,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Say for each model how long its operators take.")
    ] = False,
    page: PageOptions,
    printing: Printing,
) -> None:
    """Time models in ONNX Runtime with all its optimizations, in turns, and say how each compares with the first.

    A speedup above 1 is faster. Between is where the true one lies, with a confidence of 99 %.
    """
    set_up_logging(printing.verbose, printing.debug)
    from graphopt.runtime.bench import time_models

    _check_page(page.html, *models)
    with Progress(enabled=not printing.quiet) as progress, running(options):
        ready = _prepare(models, options, progress)
        found = time_models(ready, seconds=seconds, progress=lambda done: progress("time", done))
        profiles = _profiles(ready, models, progress) if profile or page.html is not None else None
    shown = profiles if profile else None
    if printing.as_json:
        _print_json(found.to_json(), shown)
    elif not printing.quiet:
        print_text("\n\n".join([str(found), *_texts(shown or ())]))
    if page.html is not None:
        from graphopt.report.page import benchmark_page

        pair = _model_pair(*models) if len(models) == 2 else None
        write_view(page.html, benchmark_page(found, [each for _, each in profiles or ()], pair))


def _check_page(page: Path | None, *models: str) -> None:
    """Fail before the work where a page cannot be written, or would overwrite a model."""
    if page is not None:
        files.check_writable(page, is_plain=False)
        for model in models:
            if not files.is_stdout(page) and files.is_same_file(page, Path(model)):
                raise UsageError(f"{page} is a model: the page needs another name")


def _model_pair(before: str, after: str) -> ModelPair:
    """Return two models for a page."""
    from graphopt.io import onnx_io
    from graphopt.report.page import ModelPair

    return ModelPair.from_models(*(onnx_io.load_model(model) for model in (before, after)))


@takes_options
def report(
    report: Annotated[str, typer.Argument(metavar="REPORT", help="What --report wrote.", show_default=False)],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model as it was.", show_default=False)],
    result: Annotated[str, typer.Argument(metavar="RESULT", help="What became of it.", show_default=False)],
    *,
    page: PageOptions,
    messages: Debug,
) -> None:
    """Draw a report and its two models as a page, by default beside the report.

    Nothing is run: what `optimize --report` wrote and the two models say all.
    """
    set_up_logging(verbose=False, debug=messages.debug)
    target = page.html or Path(report).with_suffix(".html")
    _check_page(target, report, model, result)
    for path in (report, model, result):
        files.check_readable(Path(path))
    from graphopt.report.page import report_page
    from graphopt.report.report import Report

    try:
        found = Report.from_json(Path(report).read_text(encoding="utf-8"))
    except DECODE_ERRORS as error:
        raise ModelError(f"{report} is no report that this version reads: {error}") from error
    pair = _model_pair(model, result)
    if problem := pair.mismatch(found):
        raise ModelError(problem)
    write_view(target, report_page(found, pair.before, pair.after))
    if not files.is_stdout(target):
        print_text(str(target))


def _prepare(models: Sequence[str], options: MeasuringOptions, progress: Progress) -> PreparedModels:
    """Load models, and make up inputs that all of them accept."""
    from graphopt.runtime.bench import prepare_models

    progress("load", 0.0)
    return prepare_models(models, options.setting, dims=options.dims, inputs=options.inputs, seed=options.seed)


_Profiles: TypeAlias = "list[tuple[TrialInputs, Profile]]"


def _profiles(ready: PreparedModels, models: Sequence[str], progress: Progress) -> _Profiles:
    """Return the profile of each model at each set of sizes."""
    from graphopt.runtime.profile import profile_model

    found: _Profiles = []
    for trial in ready.trials:
        for model in models:
            progress("profile", len(found) / (len(ready.trials) * len(models)))
            found.append((trial, profile_model(model, ready.setting, trial.feeds)))
    return found


def _print_json(text: str, profiles: Iterable[tuple[TrialInputs, Profile]] | None) -> None:
    """Print what was found, with the profiles if there are any."""
    if profiles is not None:
        listed = [{"sizes": trial.sizes} | profile.to_json() for trial, profile in profiles]
        text = json.dumps(json.loads(text) | {"profiles": listed}, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def _texts(profiles: Iterable[tuple[TrialInputs, Profile]]) -> Iterator[str]:
    for trial, profile in profiles:
        yield f"{trial}\n{profile}" if trial.sizes else str(profile)


@takes_options
def inspect(
    model: Model,
    further: RuleFiles,
    *,
    options: MeasuringOptions,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Run it, too, and say how long its operators take.")
    ] = False,
    printing: JsonFormat,
) -> None:
    """Print what is in a model: inputs, outputs, operators, weights, and what graphopt does not know.

    Operators that a file of `--rules` defines are known.
    """
    set_up_logging(verbose=False, debug=printing.debug)
    if not profile and (flags := changed_flags(options)):
        raise UsageError(f"{flags[0]} says how a model is run: that is for --profile")
    from graphopt.io import onnx_io
    from graphopt.language import rule_library
    from graphopt.report.report import ModelInspection

    rule_library.read_rules(further.rules)
    found = ModelInspection.from_model(onnx_io.load_model(model, inline_functions=False))
    profiles = None
    if profile:
        with Progress(enabled=True) as progress, running(options):
            profiles = _profiles(_prepare([model], options, progress), [model], progress)
    if printing.as_json:
        _print_json(found.to_json(), profiles)
    else:
        found.print(console())
        for text in _texts(profiles or ()):
            print_text(f"\n{text}")
