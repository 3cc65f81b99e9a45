"""The commands that measure: models are timed, one is looked into."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from graphopt.base.errors import UsageError
from graphopt.base.option_fields import changed_flags
from graphopt.cli.option_flags import (
    CheckOptions,
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
from graphopt.cli.page_commands import check_page, model_pair
from graphopt.cli.terminal import Progress, console, print_json, print_text, set_up_logging

if TYPE_CHECKING:
    from graphopt.runtime.bench import PreparedModels
    from graphopt.runtime.input_sizes import TrialInputs
    from graphopt.runtime.memory import MemoryReport
    from graphopt.runtime.profile import Profile


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
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", metavar="", help="Say for each model how much memory it takes, what for, and what lowers that."
        ),
    ] = False,
    page: PageOptions,
    printing: Printing,
) -> None:
    """Time models in ONNX Runtime with all its optimizations, in turns, and say how each compares with the first.

    A speedup above 1 is faster. Between is where the true one lies, with a confidence of 99 %. With --memory each model
    is run in processes of its own, too, with ONNX Runtime's defaults and with options that may take less memory.
    """
    set_up_logging(printing.verbose, printing.debug)
    from graphopt.runtime.bench import time_models

    check_page(page.html, *models)
    with Progress(enabled=not printing.quiet) as progress, running(options):
        ready = prepare(models, options, progress)
        found = time_models(ready, seconds=seconds, progress=lambda done: progress("time", done))
        profiles = _profiles(ready, models, progress) if profile or page.html is not None else None
        memories = _memory_reports(ready, models, progress) if memory else None
    shown = profiles if profile else None
    if printing.as_json:
        _print_json(found.to_json(), profiles=shown, memory=memories)
    elif not printing.quiet:
        print_text("\n\n".join([str(found), *_texts(shown or ()), *_texts(memories or ())]))
    if page.html is not None:
        from graphopt.report.model_pages import benchmark_page

        pair = model_pair(*models) if len(models) == 2 else None
        write_view(page.html, benchmark_page(found, [each for _, each in profiles or ()], pair))


def prepare(models: Sequence[str], options: MeasuringOptions | CheckOptions, progress: Progress) -> PreparedModels:
    """Load models, and make up inputs that all of them accept."""
    from graphopt.runtime.bench import prepare_models

    progress("load", 0.0)
    return prepare_models(models, options.setting, dims=options.dims, inputs=options.inputs, seed=options.seed)


_Profiles: TypeAlias = "list[tuple[TrialInputs, Profile]]"
_MemoryReports: TypeAlias = "list[tuple[TrialInputs, MemoryReport]]"


def _profiles(ready: PreparedModels, models: Sequence[str], progress: Progress) -> _Profiles:
    """Return the profile of each model at each set of sizes."""
    from graphopt.runtime.profile import profile_model

    runs = _iter_runs("profile", ready, models, progress)
    return [(trial, profile_model(model, ready.setting, trial.feeds)) for trial, model in runs]


def _memory_reports(ready: PreparedModels, models: Sequence[str], progress: Progress) -> _MemoryReports:
    """Return what memory each model takes at each set of sizes."""
    from graphopt.runtime.memory import measure_trial_memory

    runs = _iter_runs("memory", ready, models, progress)
    return [(trial, measure_trial_memory(model, ready.setting, trial)) for trial, model in runs]


def _iter_runs(
    stage: str, ready: PreparedModels, models: Sequence[str], progress: Progress
) -> Iterator[tuple[TrialInputs, str]]:
    """Yield each model at each set of sizes, and show the progress of the stage."""
    runs = list(product(ready.trials, models))
    for done, run in enumerate(runs):
        progress(stage, done / len(runs))
        yield run


def _print_json(text: str, **further: _Profiles | _MemoryReports | None) -> None:
    """Print what was found, with further measurements by name if there are any."""
    listed = {
        name: [{"sizes": trial.sizes} | measured.to_json() for trial, measured in found]
        for name, found in further.items()
        if found is not None
    }
    if listed:
        text = json.dumps(json.loads(text) | listed, indent=2, ensure_ascii=False)
    print_json(text)


def _texts(measured: Iterable[tuple[TrialInputs, Profile | MemoryReport]]) -> Iterator[str]:
    for trial, found in measured:
        yield f"{trial}\n{found}" if trial.sizes else str(found)


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
            profiles = _profiles(prepare([model], options, progress), [model], progress)
    if printing.as_json:
        _print_json(found.to_json(), profiles=profiles)
    else:
        found.print(console())
        for text in _texts(profiles or ()):
            print_text(f"\n{text}")
