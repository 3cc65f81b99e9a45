"""The command line. Tables go to stdout, everything else to stderr; an error is one line and an exit code.

The counterexample of a rule that is wrong stands below the line. Imports little, so that `--help` is quick: each
command loads what it needs.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer
from typer.core import TyperGroup

from graphopt.base import files, ort
from graphopt.base.errors import (
    DifferenceError,
    ModelError,
    NoSpeedupError,
    OutputError,
    UsageError,
)
from graphopt.base.limits import DEFAULT_SECONDS, RunLimits
from graphopt.base.session import current_session
from graphopt.cli import arguments, output_files
from graphopt.cli import option_types as opt
from graphopt.cli.discover_command import discover
from graphopt.cli.rule_commands import rules, verify
from graphopt.cli.terminal import Progress, console, one_line, print_text, report_failure, set_up_logging

if TYPE_CHECKING:
    from graphopt.report.report import Report
    from graphopt.runtime.bench import PreparedModels
    from graphopt.runtime.input_sizes import TrialInputs
    from graphopt.runtime.profile import Profile
    from graphopt.search.search_report import SearchTiming

log = logging.getLogger(__name__)


class Commands(TyperGroup):
    """The commands; turns every failure into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in given
        try:
            given = arguments.normalize_arguments(given)
            with warnings.catch_warnings():
                if not debug:
                    warnings.simplefilter("ignore")  # what libraries tell developers
                code = super().main(given, *rest, **{**options, "prog_name": "graphopt", "standalone_mode": False})
            if code == 130:  # typer's own answer to Ctrl-C, which says nothing
                raise KeyboardInterrupt
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            if debug:
                traceback.print_exc()
            code = report_failure(error)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # boxes cut off what is long
    pretty_exceptions_enable=False,
    help="Rewrite an ONNX model into an equal, faster one.",
    epilog="graphopt in.onnx out.onnx is short for graphopt optimize in.onnx out.onnx.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"graphopt {version('graphopt')}\n")
        raise typer.Exit


@app.callback()
def global_options(
    _version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Rewrite an ONNX model into an equal, faster one."""


@app.command(short_help="Rewrite a model into an equal one that runs faster.")
def optimize(
    model: opt.Model,
    output: opt.Output,
    skip: opt.Skip = None,
    only: opt.Only = None,
    rules: opt.Rules = None,
    unverified: opt.Unverified = False,
    exact: opt.Exact = False,
    keep_nonfinite: opt.KeepNonfinite = False,
    input_shape: opt.InputShapes = None,
    overwrite_input_shape: opt.OverwriteInputShapes = None,
    dim: opt.FixedDims = None,
    cost: opt.CostKind = opt.CostMode.MEASURED,
    dask: opt.DaskAddress = None,
    provider: opt.Provider = "cpu",
    provider_option: opt.ProviderOptions = None,
    threads: opt.Threads = 0,
    seconds: opt.Seconds = 60.0,
    fresh: opt.Fresh = False,
    require_speedup: opt.RequiredSpeedup = None,
    target_opset: opt.TargetOpset = None,
    target: opt.TargetKind = opt.Target.ONNX,
    custom_ops: opt.CustomOps = None,
    keep_functions: opt.KeepFunctions = False,
    external_data: opt.ExternalData = None,
    check: opt.Check = True,
    strict: opt.Strict = False,
    inputs: opt.Inputs = None,
    seed: opt.Seed = 0,
    run_limit: opt.RunLimit = DEFAULT_SECONDS,
    memory_limit: opt.MemoryLimit = None,
    report: opt.ReportPath = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Rewrite a model into an equal one that runs faster, time and check it, and say what was done.

    Rewrites that pay in some models only are tried by measuring, and versions of the model take turns with the
    original: the result is faster, or it is no slower and the report says "no gain".
    """
    set_up_logging(verbose, debug)
    path = Path(output)
    if require_speedup is not None and cost is not opt.CostMode.MEASURED:
        raise UsageError("--require-speedup needs --cost measured: nothing else is timed")
    if require_speedup is not None and dask is not None:
        raise UsageError("--require-speedup excludes --dask: a cluster times parts of the model, not the whole")
    files.check_readable(Path(model))
    output_files.check_outputs(Path(model), path, report, external_data, as_json=as_json)
    keywords = {
        "skip": arguments.parse_names(skip),
        "only": arguments.parse_names(only) if only else None,
        "rules": rules or (),
        "unverified": unverified,
        "exact": exact,
        "keep_nonfinite": keep_nonfinite,
        "check": check,
        "strict": strict,
        "input_shapes": arguments.parse_shapes([*(input_shape or ()), *(overwrite_input_shape or ())], model) or None,
        "dims": {name: sizes[0] if len(sizes) == 1 else sizes for name, sizes in arguments.parse_sizes(dim).items()}
        or None,
        "cost": str(cost),
        "dask": dask,
        "provider": provider,
        "provider_options": arguments.parse_options(provider_option),
        "threads": threads,
        "seconds": seconds,
        "fresh": fresh,
        "target_opset": arguments.parse_opset(target_opset),
        "target": str(target),
        "custom_ops": custom_ops or (),
        "inline_functions": not keep_functions,
        "seed": seed,
        "inputs": arguments.load_arrays(inputs) or None,
        "run_limit": run_limit,
        "memory_limit": memory_limit,
    }
    _optimize(model, path, keywords, external_data, report, require_speedup, as_json=as_json, quiet=quiet)


def _optimize(
    model: str,
    target: Path,
    keywords: Mapping[str, Any],
    external: bool | None = None,
    report_path: Path | None = None,
    required: float | None = None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    if keywords.get("check", True) or keywords.get("cost", "measured") == "measured":
        from graphopt.base.ort import require_onnxruntime

        require_onnxruntime()  # now, not when the work is done
    from graphopt.pipeline import optimize

    with Progress(enabled=not quiet) as progress:
        result = optimize(model, **keywords, progress=progress)
        try:
            if required is not None:
                _require(required, result.report.timing, model)
        except NoSpeedupError:
            output_files.write_report(result.report, report_path)
            raise
    before = files.file_identity(target)
    try:
        with Progress(enabled=not quiet) as progress:
            progress("save", 0.0)
            report = output_files.save_result(result, target, external)
        with output_files.report_model_written_on_failure():
            output_files.write_report(report, report_path)
            _show(report, as_json=as_json, quiet=quiet, stderr=files.is_stdout(target))
    except (KeyboardInterrupt, SystemExit) as error:
        if files.file_identity(target) == before:  # what is on the disk decides, at whatever instant the signal came
            raise
        raise OutputError(f"interrupted when {target} was written already; the report may be missing") from error


def _show(report: Report, *, as_json: bool, quiet: bool, stderr: bool) -> None:
    for line in report.decisions():
        log.info("%s", line)
    if as_json:
        sys.stdout.write(report.to_json() + "\n")
    elif not quiet:
        report.print(console(stderr=stderr))
    found = report.comparison
    if found is not None and found.verdict != "equal":
        sys.stderr.write(f"graphopt: warning: the check is not complete: {one_line(found.reason)}\n")


def _require(ratio: float, timing: SearchTiming | None, model: str) -> None:
    """Fail unless the result is so many times as fast, beyond noise."""
    if timing is None or timing.speedup is None:
        raise NoSpeedupError(f"{model}: no speedup was measured, {ratio:g} is required; no model was written")
    if not timing.is_gain or timing.speedup.median < ratio:
        found = f"{timing.speedup.median:.3f}{'' if timing.is_gain else ', no gain beyond noise'}"
        raise NoSpeedupError(f"{model}: the speedup is {found}; {ratio:g} is required, so no model was written")


@app.command(short_help="Say whether two models agree; exit code 3 if they do not.")
def compare(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="The model as it was.", show_default=False)],
    optimized: Annotated[str, typer.Argument(metavar="OPTIMIZED", help="What became of it.", show_default=False)],
    dim: opt.Dims = None,
    inputs: opt.Inputs = None,
    seed: opt.Seed = 0,
    exact: opt.SameBits = False,
    keep_nonfinite: opt.SameNonfinite = False,
    custom_ops: opt.CustomOps = None,
    run_limit: opt.RunLimit = DEFAULT_SECONDS,
    memory_limit: opt.MemoryLimit = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Run two models on the same inputs and say whether they agree; exit code 3 if they do not."""
    set_up_logging(verbose, debug)
    from graphopt.check import compare as comparing
    from graphopt.check.verdict import EqualityVerdict
    from graphopt.report.report import comparison_json, print_comparison

    dims = arguments.parse_dims(dim)
    with (
        Progress(enabled=not quiet) as progress,
        current_session().replace(limits=RunLimits(run_limit, memory_limit)),
        ort.registered_custom_ops(custom_ops or ()),
    ):
        found = comparing.compare_models(
            original,
            optimized,
            seeds=tuple(seed + number for number in comparing.DEFAULT_SEEDS),
            bindings=[dims] if dims else None,
            inputs=arguments.load_arrays(inputs) or None,
            exact=exact,
            keep_nonfinite=keep_nonfinite,
            progress=lambda done: progress("compare", done),
        )
    if as_json:
        sys.stdout.write(comparison_json(found) + "\n")
    elif not quiet:
        print_comparison(found, console())
    if found.verdict is EqualityVerdict.DIFFERENT:
        raise DifferenceError(f"{original} and {optimized} differ: {found.reason or found.worst}")
    if found.verdict is not EqualityVerdict.EQUAL:
        raise ModelError(f"{original} and {optimized} cannot be compared: {found.reason}")


@app.command(short_help="Time models in ONNX Runtime, each against the first.")
def bench(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="The models, .onnx files.", show_default=False)],
    provider: opt.Provider = "cpu",
    provider_option: opt.ProviderOptions = None,
    threads: opt.Threads = 0,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="For each model and size, at most: ends when the ratios are certain.", min=0
        ),
    ] = 2.0,
    dim: opt.Sizes = None,
    inputs: opt.Inputs = None,
    seed: opt.Seed = 0,
    custom_ops: opt.CustomOps = None,
    run_limit: opt.RunLimit = DEFAULT_SECONDS,
    memory_limit: opt.MemoryLimit = None,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Say for each model how long its operators take.")
    ] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
) -> None:
    """Time models in ONNX Runtime with all its optimizations, in turns, and say how each compares with the first.

    A speedup above 1 is faster. Between is where the true one lies, with a confidence of 95 %.
    """
    set_up_logging(verbose, debug)
    from graphopt.runtime.bench import prepare_models, time_models
    from graphopt.runtime.session_setting import SessionSetting

    setting = SessionSetting(provider, threads, arguments.parse_options(provider_option))
    with (
        Progress(enabled=not quiet) as progress,
        current_session().replace(limits=RunLimits(run_limit, memory_limit)),
        ort.registered_custom_ops(custom_ops or ()),
    ):
        progress("load", 0.0)
        ready = prepare_models(
            models, setting, dims=arguments.parse_sizes(dim), inputs=arguments.load_arrays(inputs), seed=seed
        )
        found = time_models(ready, seconds=seconds, progress=lambda done: progress("time", done))
        profiles = _profiles(ready, models, progress) if profile else None
    if as_json:
        _print_json(found.to_json(), profiles)
    elif not quiet:
        print_text("\n\n".join([str(found), *_texts(profiles or ())]))


_Profiles: TypeAlias = "list[tuple[TrialInputs, Profile]]"


def _profiles(ready: PreparedModels, models: Sequence[str], progress: Progress) -> _Profiles:
    """Each model at each set of sizes."""
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


@app.command(short_help="Print what is in a model.")
def inspect(
    model: opt.Model,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Run it, too, and say how long its operators take.")
    ] = False,
    rules: opt.Rules = None,
    provider: opt.Provider = "cpu",
    provider_option: opt.ProviderOptions = None,
    threads: opt.Threads = 0,
    dim: opt.Sizes = None,
    inputs: opt.Inputs = None,
    custom_ops: opt.CustomOps = None,
    run_limit: opt.RunLimit = DEFAULT_SECONDS,
    memory_limit: opt.MemoryLimit = None,
    as_json: opt.AsJson = False,
    debug: opt.Debug = False,
) -> None:
    """Print what is in a model: inputs, outputs, operators, weights, and what graphopt does not know.

    Operators that a file of `--rules` defines are known.
    """
    set_up_logging(verbose=False, debug=debug)
    from graphopt.io import onnx_io
    from graphopt.language import rule_library
    from graphopt.report.report import ModelInspection

    rule_library.read_rules(rules or ())
    found = ModelInspection.from_model(onnx_io.load_model(model, inline_functions=False))
    profiles = None
    if profile:
        from graphopt.runtime.bench import prepare_models
        from graphopt.runtime.session_setting import SessionSetting

        with (
            Progress(enabled=True) as progress,
            current_session().replace(limits=RunLimits(run_limit, memory_limit)),
            ort.registered_custom_ops(custom_ops or ()),
        ):
            progress("load", 0.0)
            setting = SessionSetting(provider, threads, arguments.parse_options(provider_option))
            ready = prepare_models(
                [model], setting, dims=arguments.parse_sizes(dim), inputs=arguments.load_arrays(inputs)
            )
            profiles = _profiles(ready, [model], progress)
    else:
        given = {
            "--provider": provider != "cpu",
            "--provider-option": provider_option,
            "--threads": threads,
            "--dim": dim,
            "--input": inputs,
            "--custom-ops": custom_ops,
            "--run-limit": run_limit != DEFAULT_SECONDS,
            "--memory-limit": memory_limit,
        }
        for name in filter(given.get, given):
            raise UsageError(f"{name} says how a model is run: that is for --profile")
    if as_json:
        _print_json(found.to_json(), profiles)
    else:
        found.print(console())
        for text in _texts(profiles or ()):
            print_text(f"\n{text}")


@app.command(short_help="Optimize models that need no download, one that gains and one that does not.")
def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this model; --list names them.", show_default=False)
    ] = None,
    output: Annotated[
        str | None, typer.Argument(metavar="[OUTPUT]", help="Where the result goes; by default a temporary folder.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", metavar="", help="Name the models.")] = False,
    debug: opt.Debug = False,
) -> None:
    """Optimize real models that need no download: made here or in the onnx package, with random weights.

    The first becomes faster; the second does not, and the report says so.
    """
    set_up_logging(verbose=False, debug=debug)
    from graphopt.cli import demo as demos

    if list_:
        print_text("\n".join(demos.demo_model_names()))
        return
    folder = Path(tempfile.mkdtemp(prefix="graphopt-"))
    for shown in [name] if name else demos.DESCRIPTIONS:
        source, target = folder / f"{shown}.onnx", Path(output or folder / f"{shown}-optimized.onnx")
        files.check_writable(target)
        source.write_bytes(demos.build_demo_model(shown).SerializeToString())
        print_text(f"{demos.DESCRIPTIONS.get(shown, shown)}\n$ graphopt optimize {source} {target}\n")
        _optimize(str(source), target, {"seconds": demos.SECONDS.get(shown, 11.0)}, as_json=False, quiet=False)
        print_text("")
    print_text("For a model of your own:\n$ graphopt optimize model.onnx fast.onnx")


app.command(short_help="Prove rules for all tensor sizes; exit code 3 if one is not proved.")(verify)
app.command(short_help="List the rules and passes, or print one in full.")(rules)
app.command(short_help="Find rules that no one wrote, and prove them.")(discover)


def main() -> None:
    """Run the console script. Signals that would end the process at once let it put away its temporary files first."""
    handled = []
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # `nohup` wants it ignored
            signal.signal(number, _exit_on_signal)
            handled.append(number)
    try:
        app()
    except KeyboardInterrupt:  # a second one, while the first was answered
        sys.exit(130)
    finally:  # nothing is left to put away, and to an exception Python would answer with a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _exit_on_signal(number: int, _: FrameType | None) -> NoReturn:
    """Exit with the signal's number, as a shell has it."""
    raise SystemExit(128 + number)
