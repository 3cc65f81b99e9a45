"""The command line. Tables go to stdout, everything else to stderr; an error is one line and an exit code.

The counterexample of a rule that is wrong stands below the line. Imports little, so that `--help` is quick: each
command loads what it needs.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from graphopt.base import files
from graphopt.cli.comparing_commands import check, compare
from graphopt.cli.discover_command import discover
from graphopt.cli.explain_command import explain
from graphopt.cli.measuring_commands import bench, inspect
from graphopt.cli.optimize_command import optimize, optimize_model
from graphopt.cli.option_flags import (
    Debug,
    Printing,
    ResultOptions,
    normalize_arguments,
    takes_options,
)
from graphopt.cli.page_commands import report
from graphopt.cli.partition_command import partition
from graphopt.cli.plan_command import plan
from graphopt.cli.rule_commands import rules, verify
from graphopt.cli.terminal import print_text, report_failure, set_up_logging
from graphopt.cli.training_command import grad
from graphopt.options import Options


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


app.command(short_help="Rewrite a model into an equal one that runs faster.")(optimize)


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
        optimize_model(
            str(source), target, Options(seconds=demos.SECONDS.get(shown, 11.0)), ResultOptions(), Printing()
        )
        print_text("")
    print_text("For a model of your own:\n$ graphopt optimize model.onnx fast.onnx")


app.command(short_help="Compare and time two models; exit code 3 if they differ, 4 if one is too slow.")(check)
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
