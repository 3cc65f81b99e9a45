"""The command line. Tables go to stdout, everything else to stderr; an error is one line and an exit code.

The counterexample of a rule that is wrong stands below the line. Imports little, so that `--help` is quick: each
command loads what it needs.
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from graphopt.base import files, ort
from graphopt.base.errors import (
    NoSpeedupError,
    OutputError,
    UsageError,
)
from graphopt.cli import output_files
from graphopt.cli.discover_command import discover
from graphopt.cli.explain_command import explain
from graphopt.cli.measuring_commands import bench, compare, inspect
from graphopt.cli.option_flags import (
    Debug,
    Model,
    Printing,
    ResultOptions,
    normalize_arguments,
    takes_options,
)
from graphopt.cli.page_commands import report
from graphopt.cli.partition_command import partition
from graphopt.cli.plan_command import plan
from graphopt.cli.rule_commands import rules, verify
from graphopt.cli.terminal import Progress, console, one_line, print_text, report_failure, set_up_logging
from graphopt.cli.training_command import grad
from graphopt.options import Options

if TYPE_CHECKING:
    from graphopt.report.report import Report

log = logging.getLogger(__name__)


class Commands(TyperGroup):
    """The commands; turns every failure into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in given
        try:
            given = normalize_arguments(given)
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
@takes_options
def optimize(
    model: Model,
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Where the result goes; - is stdout.", show_default=False)
    ],
    options: Options,
    wanted: ResultOptions,
    printing: Printing,
) -> None:
    """Rewrite a model into an equal one that runs faster, time and check it, and say what was done.

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
    files.check_readable(Path(model))
    output_files.check_outputs(Path(model), Path(output), wanted, as_json=printing.as_json)
    _optimize(model, Path(output), options, wanted, printing)


def _optimize(model: str, target: Path, options: Options, wanted: ResultOptions, printing: Printing) -> None:
    with Progress(enabled=not printing.quiet) as progress:
        progress("load", 0.0)
        if options.check or options.is_timed:
            ort.require_onnxruntime()  # now, not when the work is done
        from graphopt.pipeline import optimize

        result = optimize(model, **vars(replace(options, progress=progress)))
        try:
            if wanted.require_speedup is not None:
                _require(wanted.require_speedup, result.report, model)
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
        sys.stdout.write(report.to_json() + "\n")
    elif not printing.quiet:
        report.print(console(stderr=stderr))
    found = report.comparison
    if found is not None and found.verdict != "equal":
        sys.stderr.write(f"graphopt: warning: the check is not complete: {one_line(found.reason)}\n")


def _require(ratio: float, report: Report, model: str) -> None:
    """Raise NoSpeedupError unless the result is so many times as fast, beyond noise."""
    timing = report.timing
    if timing is None or timing.speedup is None:
        raise NoSpeedupError(f"{model}: no speedup was measured, {ratio:g} is required; no model was written")
    if not timing.is_gain or timing.speedup.median < ratio:
        found = f"{timing.speedup.median:.3f}{'' if timing.is_gain else ', no gain beyond noise'}"
        raise NoSpeedupError(f"{model}: the speedup is {found}; {ratio:g} is required, so no model was written")


@app.command(short_help="Optimize models that need no download, one that gains and one that does not.")
@takes_options
def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this model; --list names them.", show_default=False)
    ] = None,
    output: Annotated[
        str | None, typer.Argument(metavar="[OUTPUT]", help="Where the result goes; by default a temporary folder.")
    ] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", metavar="", help="Name the models.")] = False,
    messages: Debug,
) -> None:
    """Optimize real models that need no download: made here or in the onnx package, with random weights.

    The first becomes faster; the second does not, and the report says so.
    """
    set_up_logging(verbose=False, debug=messages.debug)
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
        _optimize(str(source), target, Options(seconds=demos.SECONDS.get(shown, 11.0)), ResultOptions(), Printing())
        print_text("")
    print_text("For a model of your own:\n$ graphopt optimize model.onnx fast.onnx")


app.command(short_help="Say whether two models agree; exit code 3 if they do not.")(compare)
app.command(short_help="Time models in ONNX Runtime, each against the first.")(bench)
app.command(short_help="Print what is in a model.")(inspect)
app.command(short_help="Draw a report and its two models as an HTML page.")(report)
app.command(short_help="Say which rules are applied to a model, and why others are not.")(explain)
app.command(short_help="Make a training step of a model: loss, gradients and updates.")(grad)
app.command(short_help="Cut a model into stages that take the same time, for several devices.")(partition)
app.command(short_help="Compare ways to run a model on several devices.")(plan)
app.command(short_help="Prove rules for all tensor sizes; exit code 3 if one is not proved.")(verify)
app.command(short_help="List the rules and passes, or print one in full.")(rules)
app.command(short_help="Find rules that no one wrote, and prove them.")(discover)


def main() -> None:
    """Run the console script. Signals that would end the process at once let it remove its temporary files first."""
    handled = []
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # `nohup` wants it ignored
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # as a shell has it
            handled.append(number)
    try:
        app()
    except KeyboardInterrupt:  # a second one, while the first was answered
        sys.exit(130)
    finally:  # nothing is left to put away, and to an exception Python would answer with a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
