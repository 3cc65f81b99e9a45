"""The command line. Tables go to stdout, everything else to stderr; an error is one line and an exit code.

The counterexample of a rule that is wrong stands below the line. Imports little, so that `--help` is quick: each
command loads what it needs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer
from typer.core import TyperGroup

from graphopt.errors import (
    DifferenceError,
    GraphoptError,
    ModelError,
    NoSpeedupError,
    OutputError,
    ProofError,
    UsageError,
)
from graphopt.files import write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from graphopt.bench import Prepared
    from graphopt.choose import Timing
    from graphopt.inputs import Trial
    from graphopt.profile import Profile
    from graphopt.proof import Proof
    from graphopt.rule import Rule

# -- arguments and errors ----------------------------------------------------------------------------------------------

COMMANDS = ("optimize", "compare", "bench", "inspect", "verify", "rules", "demo")
_WORD = re.compile(r"[a-z][a-z0-9_]*(,[a-z][a-z0-9_]*)*,?")
_SHAPE = re.compile(r"(.+:)?[\w?-]*\d+[\w?-]*(,[\w?-]+)*")
LISTS = {
    "--skip": _WORD,
    "--only": _WORD,
    "--input-shape": _SHAPE,
    "--overwrite-input-shape": _SHAPE,
    "--dim": re.compile(r"[^=]+=\d+(,\d+)*"),
    "--input": re.compile(r".+:.+\.npy"),
}
"""Options that take several values after one flag, as users of other tools expect, and what a value looks like."""


class Commands(TyperGroup):
    """The commands; turns every failure into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in given
        try:
            given = _expanded(given)
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
            code = _failed(error)
        sys.exit(code if isinstance(code, int) else 0)


def _expanded(args: list[str]) -> list[str]:
    """The arguments in the form that the parser knows: a command first, and each value after a flag of its own."""
    args = args or ["--help"]
    first = args[0]
    if first not in (*COMMANDS, "--help", "--version"):
        if not first.startswith("-") and not _is_path(first):
            raise UsageError(f"there is no command '{first}'{did_you_mean(first, COMMANDS)}")
        args = ["optimize", *args]
    found: list[str] = []
    flag, value = "", None
    for arg in args:
        if arg.startswith("-"):
            flag, value = arg, LISTS.get(arg)
        elif value is not None and found[-1] != flag:
            if value.fullmatch(arg) and not _is_path(arg):
                found.append(flag)
            else:
                value = None
        found.append(arg)
    return found


def _is_path(text: str) -> bool:
    return text.endswith(".onnx") or Path(text).exists()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error: the known name that is nearest, or all of them if they are few."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there is {', '.join(names)}" if len(names) < 12 else ""


def _failed(error: BaseException) -> int:
    """Print the line for a failure and return its exit code."""
    text, code = _described(error)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"graphopt: {text}\n")
        sys.stderr.flush()
    if isinstance(error, OSError):
        _abandon_stdout()
    return code


def _described(error: BaseException) -> tuple[str, int]:
    match error:
        case ProofError():
            return f"error: {error}", error.exit_code  # a counterexample takes several lines
        case GraphoptError():
            return f"error: {_one_line(error)}", error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case SystemExit():
            return "terminated", int(error.code or 0)
        case OSError():
            return f"error: the output cannot be written: {error.strerror or error}", 1
        case MemoryError():
            return "error: not enough memory", 1
    if hasattr(error, "format_message"):  # a usage error of typer, whose class has moved between its versions
        return f"error: {_one_line(error.format_message())} (see graphopt --help)", 2
    where = f"{type(error).__name__}: {_one_line(error)}"
    return f"internal error: {where}; --debug shows where, and a report of it is welcome", 1


def _one_line(text: object) -> str:
    return "; ".join(line.strip().rstrip(".;") for line in str(text).splitlines() if line.strip())


def _abandon_stdout() -> None:
    """Make the interpreter's own last flush succeed where stdout is full or gone."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    from rich.console import Console

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no √ gets a question mark
    return Console(highlight=False, markup=False, soft_wrap=False)


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"graphopt: {'warning: ' * (record.levelno == logging.WARNING)}{super().format(record)}"


def _logging(verbose: bool, debug: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _names(values: Sequence[str] | None) -> list[str]:
    return [name for value in values or () for name in re.split(r"[,\s]+", value) if name]


def _pairs(values: Sequence[str] | None, separator: str, form: str) -> list[tuple[str, str]]:
    """`name:value` or `name=value`, split at the last separator; the name is empty where it is left out."""
    pairs = []
    for value in values or ():
        name, found, text = value.rpartition(separator)
        if not text or (not found and separator == "="):
            raise UsageError(f"'{value}' is not of the form {form}")
        pairs.append((name, text))
    return pairs


def _shapes(values: Sequence[str] | None, model: str) -> dict[str, tuple[int | str | None, ...]]:
    """`name:1,3,224,224`; a size may be a name, and `?` or -1 leaves it as it is."""
    form = "name:1,3,224,224"
    shapes: dict[str, tuple[int | str | None, ...]] = {}
    for name, text in _pairs(values, ":", form):
        sizes = [size.strip() for size in text.strip("[]").split(",")]
        if not all(re.fullmatch(r"-1|\?|\d+|[A-Za-z_]\w*", size) for size in sizes):
            raise UsageError(f"'{text}' is not of the form {form}: sizes are numbers, names, or ? for as it is")
        known = (None if size in ("?", "-1") else int(size) if size.isdecimal() else size for size in sizes)
        shapes[name or _only_input(model)] = tuple(known)
    return shapes


def _only_input(model: str) -> str:
    from graphopt import onnx_io

    graph = onnx_io.parse(Path(model)).graph
    weights = {tensor.name for tensor in graph.initializer}
    names: list[str] = [value.name for value in graph.input if value.name not in weights]
    if len(names) != 1:
        raise UsageError(
            f"{model} has {len(names)} inputs: say which, as in {names[0] if names else 'name'}:1,3,224,224"
        )
    return names[0]


def _dims(values: Sequence[str] | None) -> dict[str, int]:
    dims = {}
    for name, text in _pairs(values, "=", "batch=1"):
        if not text.isdecimal():
            raise UsageError(f"'{name}={text}' is not of the form batch=1: a size is a number")
        dims[name] = int(text)
    return dims


_SIZES = "batch=1 or seq=16,128"


def _sizes(values: Sequence[str] | None) -> dict[str, list[int]]:
    """`seq=16,128`: all sizes that are to be tried, in one value or several."""
    sizes: dict[str, list[int]] = {}
    for name, text in _pairs(values, "=", _SIZES):
        if not re.fullmatch(r"\d+(,\d+)*,?", text):
            raise UsageError(f"'{name}={text}' is not of the form {_SIZES}: sizes are numbers")
        sizes.setdefault(name, []).extend(int(size) for size in text.split(",") if size)
    return sizes


def _arrays(values: Sequence[str] | None) -> dict[str, Any]:
    import numpy as np

    arrays = {}
    for name, text in _pairs(values, ":", "name:file.npy"):
        if not name:
            raise UsageError(f"'{text}' is not of the form name:file.npy")
        try:
            arrays[name] = np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{text} holds no array for input '{name}': {error}") from error
    return arrays


def _opset(text: str | None) -> int | None:
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    if text != "latest":
        raise UsageError(f"'{text}' is no opset: give a number, or latest")
    from graphopt.example import OPSET

    return OPSET


def _check_writable(path: Path) -> None:
    """Fail before the work, not after it."""
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: {folder} is {'no folder' if folder.exists() else 'missing'}")
    if path.is_dir():
        raise OutputError(f"{path} cannot be written: it is a folder")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: {folder} is read-only")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress(AbstractContextManager["Progress"]):
    """A bar for each stage that takes over two seconds, if somebody is watching."""

    PATIENCE = 2.0

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled and sys.stderr.isatty()
        self.stage, self.done = "", 0.0
        self.bar: Bar | None = None
        self.timer: threading.Timer | None = None
        self.lock = threading.Lock()

    def __call__(self, stage: str, done: float) -> None:
        with self.lock:
            if stage != self.stage:
                logging.getLogger(__name__).info(stage)
                self._close()
                self.stage = stage
                self._wait()
            self.done = done
            if self.bar is not None:
                self.bar.update(self.bar.task_ids[0], completed=done)

    def _wait(self) -> None:
        if self.enabled:
            self.timer = threading.Timer(self.PATIENCE, self._open)
            self.timer.daemon = True
            self.timer.start()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self.lock:
            if self.timer is not threading.current_thread():
                return  # the stage has ended meanwhile
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.update(self.bar.add_task(self.stage, total=1.0), completed=self.done)
            self.bar.start()

    def _close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.bar is not None:
            self.bar.stop()
        self.bar = self.timer = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.enabled = False
            self._close()


# -- commands ----------------------------------------------------------------------------------------------------------

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # boxes cut off what is long
    pretty_exceptions_enable=False,
    help="Rewrite an ONNX model into an equal, faster one.",
    epilog="graphopt in.onnx out.onnx is short for graphopt optimize in.onnx out.onnx.",
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model, an .onnx file.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Print no table.")]
Verbose = Annotated[bool, typer.Option("--verbose", metavar="", help="Say on stderr what is being done.")]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Say more, and show where an error comes from.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Processor time for one rule.", min=0.1, show_default="10"),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the inputs that are made up for the check.")]
Rules = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="FILE", help="Further rules, in a .py or .jsonl file."),
]
Dims = Annotated[list[str] | None, typer.Option("--dim", metavar="batch=1", help="Give a dim of this name a size.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="name:FILE.npy", help="Check with this input, not a made-up one.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="seq=16,128", help="Sizes of an open dim; each is run. By default a usual one."),
]
RunInputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="name:FILE.npy", help="Run on this input, not a made-up one.")
]
Provider = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, or any name that ONNX Runtime knows.")]
ProviderOptions = Annotated[list[str] | None, typer.Option(metavar="key=value", help="An option of the provider.")]
Threads = Annotated[
    int, typer.Option(metavar="N", help="Of ONNX Runtime; 0 is one a core. None spins while it waits.", min=0)
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"graphopt {version('graphopt')}\n")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Rewrite an ONNX model into an equal, faster one."""


class Cost(StrEnum):
    """What the search asks."""

    MEASURED = "measured"
    ANALYTIC = "analytic"
    NONE = "none"


@app.command(short_help="Rewrite a model into an equal one that runs faster.")
def optimize(
    model: Model,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Where the result goes.", show_default=False)],
    skip: Annotated[list[str] | None, typer.Option(metavar="RULE...", help="Leave out these rules or passes.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="RULE...", help="Use nothing but these.")] = None,
    rules: Rules = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", metavar="", help="Apply rules that are not proved, too; the report says so.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", metavar="", help="Change no bit of the outputs; fewer rules can be used.")
    ] = False,
    input_shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="name:1,3,224,224",
            help="Fix the shape of an input; the name may be left out if there is one. Also --overwrite-input-shape.",
        ),
    ] = None,
    overwrite_input_shape: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="batch=1|seq=16,128",
            help="Fix a dim; with several sizes it stays open, and the search measures at each.",
        ),
    ] = None,
    cost: Annotated[
        Cost,
        typer.Option(
            metavar="KIND", help="measured; analytic: an estimate, nothing is run; none: no search, no timing."
        ),
    ] = Cost.MEASURED,
    provider: Provider = "cpu",
    provider_option: ProviderOptions = None,
    threads: Threads = 0,
    seconds: Annotated[
        float, typer.Option(metavar="N", help="For the search and the timing, at most.", min=0.0)
    ] = 60.0,
    require_speedup: Annotated[
        float | None,
        typer.Option(
            metavar="RATIO", help="Exit code 4, and no file, unless the result is this many times as fast.", min=0.0
        ),
    ] = None,
    target_opset: Annotated[
        str | None, typer.Option(metavar="N|latest", help="Opset of the result; by default the model's.")
    ] = None,
    keep_functions: Annotated[
        bool, typer.Option("--keep-functions", metavar="", help="Do not inline local functions.")
    ] = False,
    external_data: Annotated[
        bool | None,
        typer.Option(metavar="", help="Weights go to OUTPUT.data; by default only above 1.9 GB.", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", metavar="", help="Compare the result with the original.")
    ] = True,
    inputs: Inputs = None,
    seed: Seed = 0,
    report: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write all that was done as JSON.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Rewrite a model into an equal one that runs faster, time and check it, and say what was done.

    Rewrites that pay in some models only are tried by measuring, and versions of the model take turns with the
    original: the result is faster, or it is no slower and the report says "no gain".
    """
    _logging(verbose, debug)
    target = Path(output)
    if require_speedup is not None and cost is not Cost.MEASURED:
        raise UsageError("--require-speedup needs --cost measured: nothing else is timed")
    for path in (target, *([report] if report else [])):
        _check_writable(path)
    arguments = {
        "skip": _names(skip),
        "only": _names(only) if only else None,
        "rules": rules or (),
        "unverified": unverified,
        "exact": exact,
        "check": check,
        "input_shapes": _shapes([*(input_shape or ()), *(overwrite_input_shape or ())], model) or None,
        "dims": {name: sizes[0] if len(sizes) == 1 else sizes for name, sizes in _sizes(dim).items()} or None,
        "cost": str(cost),
        "provider": provider,
        "provider_options": dict(_pairs(provider_option, "=", "key=value")),
        "threads": threads,
        "seconds": seconds,
        "target_opset": _opset(target_opset),
        "inline_functions": not keep_functions,
        "seed": seed,
        "inputs": _arrays(inputs) or None,
    }
    _optimize(model, target, arguments, external_data, report, require_speedup, as_json=as_json, quiet=quiet)


def _optimize(
    model: str,
    target: Path,
    arguments: Mapping[str, Any],
    external: bool | None = None,
    report_path: Path | None = None,
    required: float | None = None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    if arguments.get("check", True) or arguments.get("cost", "measured") == "measured":
        from graphopt.oracle import require_onnxruntime

        require_onnxruntime()  # now, not when the work is done
    from graphopt.pipeline import optimize

    with Progress(enabled=not quiet) as progress:
        result = optimize(model, **arguments, progress=progress)
        found = result.report.comparison
        if found is not None and not found.legal:
            raise ModelError(f"{model}: {found.reason} (--no-check does without running it)")
        if required is not None:
            _require(required, result.report.timing, model)
        progress("save", 0.0)
        result.save(target, external=external)
    report = result.report.saved(target)
    if report_path is not None:
        with _writing(report_path):
            write_text(report_path, report.to_json() + "\n")
    if as_json:
        sys.stdout.write(report.to_json() + "\n")
    elif not quiet:
        report.print(_console())
    if found is not None and found.verdict != "equal":
        sys.stderr.write(f"graphopt: warning: the check is not complete: {_one_line(found.reason)}\n")


def _require(ratio: float, timing: Timing | None, model: str) -> None:
    """Fail unless the result is so many times as fast, beyond noise."""
    if timing is None or timing.speedup is None:
        raise NoSpeedupError(f"{model}: no speedup was measured, {ratio:g} is required; nothing was written")
    if not timing.is_gain or timing.speedup.median < ratio:
        found = f"{timing.speedup.median:.3f}{'' if timing.is_gain else ', no gain beyond noise'}"
        raise NoSpeedupError(f"{model}: the speedup is {found}; {ratio:g} is required, so nothing was written")


@app.command(short_help="Say whether two models agree; exit code 3 if they do not.")
def compare(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", show_default=False)],
    optimized: Annotated[str, typer.Argument(metavar="OPTIMIZED", show_default=False)],
    dim: Dims = None,
    inputs: Inputs = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Run two models on the same inputs and say whether they agree; exit code 3 if they do not."""
    _logging(verbose, debug)
    from graphopt import compare as comparing
    from graphopt.report import comparison_json, print_comparison

    dims = _dims(dim)
    with Progress(enabled=not quiet) as progress:
        found = comparing.compare(
            original,
            optimized,
            seeds=tuple(seed + number for number in comparing.SEEDS),
            bindings=[dims] if dims else None,
            inputs=_arrays(inputs) or None,
            progress=lambda done: progress("compare", done),
        )
    if as_json:
        sys.stdout.write(comparison_json(found) + "\n")
    elif not quiet:
        print_comparison(found, _console())
    if found.verdict is comparing.Verdict.DIFFERENT:
        raise DifferenceError(f"{original} and {optimized} differ: {found.reason or found.worst}")
    if found.verdict is not comparing.Verdict.EQUAL:
        raise ModelError(f"{original} and {optimized} cannot be compared: {found.reason}")


@app.command(short_help="Time models in ONNX Runtime, each against the first.")
def bench(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="The models, .onnx files.", show_default=False)],
    provider: Provider = "cpu",
    provider_option: ProviderOptions = None,
    threads: Threads = 0,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", help="For each model and size, at most: ends when the ratios are certain.", min=0),
    ] = 2.0,
    dim: Sizes = None,
    inputs: RunInputs = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the inputs that are made up.")] = 0,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Say for each model how long its operators take.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Time models in ONNX Runtime with all its optimizations, in turns, and say how each compares with the first.

    A speedup above 1 is faster. Between is where the true one lies, with a confidence of 95 %.
    """
    _logging(verbose, debug)
    from graphopt.bench import prepared, timed
    from graphopt.sessions import Setting

    setting = Setting(provider, threads, dict(_pairs(provider_option, "=", "key=value")))
    with Progress(enabled=not quiet) as progress:
        progress("load", 0.0)
        ready = prepared(models, setting, dims=_sizes(dim), inputs=_arrays(inputs), seed=seed)
        found = timed(ready, seconds=seconds, progress=lambda done: progress("time", done))
        profiles = _profiles(ready, models, progress) if profile else None
    if as_json:
        _print_json(found.to_json(), profiles)
    elif not quiet:
        _print("\n\n".join([str(found), *_texts(profiles or ())]))


_Profiles: TypeAlias = "list[tuple[Trial, Profile]]"


def _profiles(ready: Prepared, models: Sequence[str], progress: Progress) -> _Profiles:
    """Each model at each set of sizes."""
    from graphopt.profile import profile

    found: _Profiles = []
    for trial in ready.trials:
        for model in models:
            progress("profile", len(found) / (len(ready.trials) * len(models)))
            found.append((trial, profile(model, ready.setting, trial.feeds)))
    return found


def _print_json(text: str, profiles: Iterable[tuple[Trial, Profile]] | None) -> None:
    """What was found, with the profiles if there are any."""
    if profiles is not None:
        listed = [{"sizes": trial.sizes} | profile.to_json() for trial, profile in profiles]
        text = json.dumps(json.loads(text) | {"profiles": listed}, indent=2, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def _texts(profiles: Iterable[tuple[Trial, Profile]]) -> Iterator[str]:
    for trial, profile in profiles:
        yield f"{trial}\n{profile}" if trial.sizes else str(profile)


@app.command(short_help="Print what is in a model.")
def inspect(
    model: Model,
    profile: Annotated[
        bool, typer.Option("--profile", metavar="", help="Run it, too, and say how long its operators take.")
    ] = False,
    provider: Provider = "cpu",
    threads: Threads = 0,
    dim: Sizes = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Print what is in a model: inputs, outputs, operators, weights, and what graphopt does not know."""
    _logging(verbose=False, debug=debug)
    from graphopt import onnx_io
    from graphopt.report import Inspection

    found = Inspection.of(onnx_io.load(model, inline_functions=False))
    profiles = None
    if profile:
        from graphopt.bench import prepared
        from graphopt.sessions import Setting

        with Progress(enabled=True) as progress:
            progress("load", 0.0)
            ready = prepared([model], Setting(provider, threads), dims=_sizes(dim))
            profiles = _profiles(ready, [model], progress)
    elif dim or threads or provider != "cpu":
        raise UsageError("--dim, --threads and --provider say how a model is run: use them with --profile")
    if as_json:
        _print_json(found.to_json(), profiles)
    else:
        found.print(_console())
        for text in _texts(profiles or ()):
            _print(f"\n{text}")


@app.command(short_help="Prove rules for all tensor sizes; exit code 3 if one is not proved.")
def verify(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE|FILE", help="Names of rules; .py or .jsonl files.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", metavar="", help="All installed rules.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh/--cached", metavar="", help="Prove again, or look up what was proved before.")
    ] = True,
    write: Annotated[
        bool,
        typer.Option("--write", metavar="", help="With --all: write the ledger of the built-in rules, and their list."),
    ] = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
) -> None:
    """Prove rules for all tensor sizes, on all processors; exit code 3 if one is not proved.

    What a rule must fulfil is shown with Z3; where that fails, small models are run in search of a counterexample.
    """
    _logging(verbose, debug)
    if write and not everything:
        raise UsageError("--write writes the whole ledger: use it with --all")
    from graphopt.gate import TIMEOUT
    from graphopt.proving import prove_all
    from graphopt.report import print_proofs

    rules = _wanted(what or (), everything)
    with Progress(enabled=not quiet) as progress:
        proofs = prove_all(
            rules, cached=not fresh, timeout=timeout or TIMEOUT, progress=lambda done: progress("prove", done)
        )
    if write:
        from graphopt import catalogue

        with _writing(catalogue.folder()):
            catalogue.write(proofs)
    if as_json:
        _print(json.dumps([proof.to_json() for proof in proofs], indent=2, ensure_ascii=False))
    elif not quiet:
        print_proofs(proofs, _console())
    failed = [proof.rule for proof in proofs if not proof.holds]
    if failed:
        more = [f"and {len(failed) - 5} more"] if len(failed) > 5 else []
        raise ProofError(f"{len(failed)} of {len(proofs)} rules not proved: {', '.join([*failed[:5], *more])}")


def _wanted(what: Sequence[str], everything: bool) -> list[Rule]:
    """The rules that were named, all rules of the files that were named, or all that are installed and given."""
    from graphopt.library import load_rules, read_rules

    files = [item for item in what if Path(item).suffix in (".py", ".jsonl")]
    given = read_rules(files)
    known = {rule.name: rule for rule in load_rules(given, trades=True)}
    names = dict.fromkeys([*(item for item in what if item not in files), *(rule.name for rule in given)])
    for name in names:
        if name not in known:
            raise UsageError(f"there is no rule '{name}'{did_you_mean(name, known) or _LISTED}")
    if not everything and not names:
        raise UsageError("nothing to verify: name rules or files of rules, or use --all")
    return list(known.values()) if everything else [known[name] for name in names]


@app.command(short_help="List the rules and passes, or print one in full.")
def rules(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One rule in full.", show_default=False)] = None,
    rules: Rules = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the rules and passes: name, proof, algebra, and why it pays. Proves nothing: `graphopt verify` does."""
    _logging(verbose=False, debug=debug)
    from graphopt import gate
    from graphopt.library import load_rules, read_rules
    from graphopt.passes import PASSES

    given = read_rules(rules or ())
    found, applied = load_rules(given, trades=True), {rule.name for rule in load_rules(given)}
    known = {rule.name: rule.why for rule in found} | {pass_.name: pass_.why for pass_ in PASSES}
    if name is not None and name not in known:
        raise UsageError(f"there is no rule or pass '{name}'{did_you_mean(name, known) or _LISTED}")
    algebra = {rule.name: str(rule) for rule in found}
    rule = next((rule for rule in found if rule.name == name), None)
    if rule is not None:
        proof = gate.known(rule)
        data = rule.to_json() | {"proof": proof and proof.to_json()}
        _print(json.dumps(data, ensure_ascii=False) if as_json else _in_full(rule, proof))
        return
    claims = {rule.name: proof.claim if (proof := gate.known(rule)) else "no proof yet" for rule in found}
    claims |= {name: f"{claim}; pays in some models only" for name, claim in claims.items() if name not in applied}
    if as_json:
        listed = [
            {"name": n, "proof": claims.get(n), "algebra": algebra.get(n), "why": why}
            for n, why in known.items()
            if name in (None, n)
        ]
        _print(json.dumps(listed, indent=2, ensure_ascii=False))
    elif name is not None:
        _print(f"{name}  (a pass)\n    {known[name]}")
    else:
        lines = ((f"{n}  ({claims.get(n, 'a pass')})", algebra.get(n), why) for n, why in known.items())
        _print("\n\n".join("\n    ".join(filter(None, parts)) for parts in lines))


_LISTED = "; `graphopt rules` lists them"


def _print(text: str) -> None:
    _console().print(text, soft_wrap=True)


def _in_full(rule: Rule, proof: Proof | None) -> str:
    """All that a rule says, and what is known of its proof."""
    kinds = {"tensor": "any value", "const": "a constant", "attributes": "all other attributes"}
    lines = [rule.name, f"    {rule.why}", ""]
    lines += [f"    {part}" for part in re.split(r"  (?=->  |where )", str(rule))]
    lines.append("")
    for hole in rule.holes.values():
        axes = "" if hole.axes is None else f" [{' '.join(hole.axes)}]"
        default = "" if hole.default is None else f", {hole.default} where it is absent"
        lines.append(f"    {hole}  {kinds.get(hole.kind, hole.kind)}{axes}{default}")
    shown = "no proof yet; `graphopt verify` makes one" if proof is None else str(proof)
    return "\n".join([*lines, "", f"    {shown}", f"    digest {rule.digest}"])


@app.command(short_help="Optimize a real model that comes with the onnx package.")
def demo(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which model; --list names them.")] = "resnet50",
    output: Annotated[
        str | None, typer.Argument(metavar="[OUTPUT]", help="Where the result goes; by default a temporary folder.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", metavar="", help="Name the models.")] = False,
    debug: Debug = False,
) -> None:
    """Optimize a real model that comes with the onnx package."""
    _logging(verbose=False, debug=debug)
    from graphopt import demo as demos

    models = demos.models()
    if list_:
        _print("\n".join(models))
        return
    if name not in models:
        raise UsageError(f"there is no model '{name}'{did_you_mean(name, models)}")
    folder = Path(tempfile.mkdtemp(prefix="graphopt-"))
    target = Path(output or folder / f"{name}-optimized.onnx")
    _check_writable(target)
    source = folder / f"{name}.onnx"
    source.write_bytes(demos.with_weights(models[name]).SerializeToString())
    sys.stderr.write(f"graphopt optimize {source} {target}\n\n")
    _optimize(str(source), target, {"seconds": 20.0}, as_json=False, quiet=False)


def main() -> None:
    """The console script. Signals that would end the process at once let it put away its temporary files first."""
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # `nohup` wants it ignored
            signal.signal(number, _terminated)
    try:
        app()
    finally:  # nothing is left to interrupt, and Python would answer with a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    """The signal's number, as a shell has it."""
    raise SystemExit(128 + number)
