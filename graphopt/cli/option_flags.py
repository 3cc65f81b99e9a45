"""Command-line options, made of the dataclasses that declare them, and the arguments that are typed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from graphopt.base import option_values as forms
from graphopt.base import ort
from graphopt.base.errors import UsageError, did_you_mean
from graphopt.base.option_fields import Option, flags_of, iter_options, option, same_option
from graphopt.base.session import current_session
from graphopt.options import COSTS, DeviceOptions, Options, RunOptions


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn the fields of the dataclasses among a command's parameters into options.

    Typer sees a function of the fields; the command gets the dataclasses, filled with the values that were typed.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    flat: list[inspect.Parameter] = []
    for each in parameters:
        kind = groups.get(each.name)
        flat += [each] if kind is None else [_parameter(field, said) for field, said in _shell_options(kind)]

    @wraps(command)
    def command_of_fields(**typed: Any) -> None:
        own = {each.name: typed[each.name] for each in parameters if each.name not in groups}
        command(**own, **{name: kind(**_read_values(kind, typed)) for name, kind in groups.items()})

    vars(command_of_fields)["__signature__"] = inspect.Signature(flat)
    command_of_fields.__annotations__ = {each.name: each.annotation for each in flat}
    return command_of_fields


def _shell_options(kind: Any) -> list[tuple[Field[Any], Option]]:
    return [(field, said) for field, said in iter_options(kind) if said.in_shell]


def _read_values(kind: Any, typed: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a dataclass; those that were not typed keep their defaults."""
    return {
        field.name: typed[field.name] if said.form is None else said.form.parse(typed[field.name])
        for field, said in _shell_options(kind)
        if typed[field.name] not in (None, [])
    }


def _parameter(field: Field[Any], said: Option) -> inspect.Parameter:
    """Return the parameter from which typer makes an option."""
    default, kind = field.default, said.type or type(field.default)
    if said.choices:
        kind = Literal[said.choices]
    if said.form is not None:
        default, kind = None, list[str]
    is_switch = kind is bool
    flags = flags_of(field.name, said)
    declared = typer.Option(
        *flags,
        help=said.help,
        metavar="" if is_switch else said.metavar,
        min=said.minimum,
        max=said.maximum,
        show_default=said.shown_default,
    )
    annotation = Annotated[kind if default is not None else kind | None, declared]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# -- options of several commands ---------------------------------------------------------------------------------------

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model, an .onnx file.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class Debug:
    """Option for tracing errors."""

    debug: bool = option(False, "Say more, and show where an error comes from.")


@dataclass(frozen=True, kw_only=True)
class Messages(Debug):
    """Options for how much is printed."""

    quiet: bool = option(False, "Print no table.")
    verbose: bool = option(False, "Say on stderr what is done and decided.")


@dataclass(frozen=True, kw_only=True)
class JsonFormat(Debug):
    """Option for the form of the output."""

    as_json: bool = option(False, "Print JSON instead of a table.", flags=("--json",))


@dataclass(frozen=True, kw_only=True)
class Printing(JsonFormat, Messages):
    """Options for the output: how much, and in which form."""


@dataclass(frozen=True, kw_only=True)
class RuleFiles:
    """Rules beside those that are installed."""

    rules: Sequence[Path] = option((), "Further rules, in a .py or .jsonl file.", metavar="FILE", form=forms.PATHS)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of open dims."""

    dims: Mapping[str, Sequence[int]] | None = option(
        None,
        "Sizes of an open dim; each is run. By default a usual one.",
        metavar="seq=16,128",
        flags=("--dim",),
        form=forms.SIZES,
    )


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions(Sizes, DeviceOptions, RunOptions):
    """Options for measuring models."""


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Sizes, RunOptions):
    """Options for comparing models."""

    exact: bool = option(False, "Allow no rounding: every bit is to be the same.")
    keep_nonfinite: bool = option(False, "Compare what is made of infinities and NaN, too.")


@dataclass(frozen=True, kw_only=True)
class CheckOptions(ComparisonOptions, DeviceOptions):
    """Options for comparing two models and timing them."""


@dataclass(frozen=True, kw_only=True)
class ExplanationOptions(DeviceOptions, RunOptions):
    """Options for explaining what is applied to a model: those of `optimize` that decide about it."""

    at: str | None = option(
        None, "Only places with this node, named by itself or by what it makes.", metavar="NODE", type=str
    )
    report: Path | None = option(
        None, "A report of optimize --report, for what its search measured.", metavar="FILE.json", type=Path
    )
    slower: bool = option(
        False,
        "Race versions without some of what is always applied, to see what loses time.",
        more="The races take the `--seconds`.",
    )
    seconds: float = option(60.0, "About how long the races of --slower may take.", metavar="SECONDS", minimum=0.0)
    fresh: bool = same_option(Options, "fresh")
    rules: Sequence[Path] = same_option(Options, "rules")
    skip: Sequence[str] = same_option(Options, "skip")
    only: Sequence[str] | None = same_option(Options, "only")
    exact: bool = same_option(Options, "exact")
    keep_nonfinite: bool = same_option(Options, "keep_nonfinite")
    unverified: bool = same_option(Options, "unverified")
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = same_option(Options, "input_shapes")
    dims: Mapping[str, int | Sequence[int]] | None = same_option(Options, "dims")
    target_opset: int | str | None = same_option(Options, "target_opset")
    target: str = same_option(Options, "target")
    target_domains: Sequence[str] = same_option(Options, "target_domains")
    inline_functions: bool = same_option(Options, "inline_functions")

    def to_options(self) -> Options:
        """Return the options of the run that is explained."""
        own = {"at", "report", "slower"}
        return Options(**{name: value for name, value in vars(self).items() if name not in own})


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """Options for the files that `optimize` writes."""

    require_speedup: float | None = option(
        None,
        "Exit code 4, and no model, unless the result is this many times as fast.",
        metavar="RATIO",
        type=float,
        minimum=0.0,
    )
    external_data: bool | None = option(
        None,
        "Weights go to OUTPUT.data, or OUTPUT.<digest>.data to replace others; by default only above 1.9 GB.",
        flags=("--external-data/--no-external-data",),
        type=bool,
        shown_default=False,
    )
    report: Path | None = option(
        None,
        "Write all that was done as JSON.",
        more="Its fields: `before`, `after`, `rewrites`, `timing` (with its `speedup`), `comparison`, `notes`, "
        "`seconds`, `source`, `session_code`, `versions`, `schema_version`. `graphopt.report_schema()` describes them.",
        metavar="FILE.json",
        type=Path,
    )
    html: Path | None = option(
        None,
        "Write a page: both graphs, each rewrite with its rule, and where the time goes.",
        more="One file that loads nothing. To say where the time goes, original and result are profiled, which takes "
        "some more runs.",
        metavar="FILE.html",
        type=Path,
    )
    model_explorer: Path | None = option(
        None,
        "Write both graphs for Model Explorer, as JSON.",
        more="`model-explorer FILE.json` shows them, with what was removed, new and rewired among their attributes.",
        metavar="FILE.json",
        type=Path,
    )
    save_recipe: Path | None = option(
        None, "Write what the search decided, for --recipe.", metavar="FILE.json", type=Path
    )


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Options for optimizing all models of a folder, and for where results go."""

    output_path: Path | None = option(
        None,
        "Where the result goes, as OUTPUT; of a folder a new folder, with all of its files.",
        metavar="PATH",
        flags=("--output",),
        type=Path,
    )
    total_seconds: float | None = option(
        None,
        "Of a folder: about how long all models may take; --seconds is for each.",
        metavar="SECONDS",
        type=float,
        minimum=0.001,
    )


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Option for a page on what was found."""

    html: Path | None = option(None, "Write a page: both graphs, and what was found.", metavar="FILE.html", type=Path)


@dataclass(frozen=True, kw_only=True)
class ProverOptions:
    """Options for the processes that prove rules."""

    dask: str | None = option(
        None, "Scheduler of a Dask cluster; needs graphopt[dask].", metavar="tcp://HOST:PORT", type=str
    )
    custom_ops: Sequence[Path] = option(
        (), "Library of custom operators, for ONNX Runtime to register.", metavar="FILE", form=forms.PATHS
    )


@dataclass(frozen=True, kw_only=True)
class ProvingOptions(ProverOptions):
    """Options for proving rules with `verify`."""

    fresh: bool = option(
        True,
        "Prove again, or look up what was proved before.",
        flags=("--fresh/--cached",),
    )
    timeout: float | None = option(
        None, "For one rule; counted in steps.", metavar="SECONDS", type=float, minimum=0.1, shown_default="10"
    )
    workers: int | None = option(
        None, "Processes; by default one a core.", metavar="N", type=int, minimum=1, maximum=1024
    )


@dataclass(frozen=True, kw_only=True)
class DiscoveryOptions(RuleFiles, ProverOptions):
    """Options for finding rules with `discover`."""

    size: int = option(2, "Operators of a term, at most.", metavar="N", minimum=1, maximum=6)
    ops: Sequence[str] = option(
        (),
        "Operators to use, or classes of them such as arithmetic, movement.",
        metavar="OP...",
        form=forms.OPERATORS,
    )
    library: bool = option(
        True, "Leave out what the installed rules do already, or not.", flags=("--library/--no-library",)
    )
    models: Sequence[Path] = option(
        (),
        "Say what the rules gain in this model.",
        metavar="FILE.onnx",
        flags=("--model",),
        form=forms.PATHS,
    )
    cost: str = option(
        "analytic",
        "measured; analytic: an estimate, nothing is run; none: no gains are asked for.",
        metavar="KIND",
        choices=COSTS,
    )
    journal: Path | None = option(
        None,
        "What was settled so far; by default OUTPUT.journal, removed in the end.",
        metavar="FILE",
        type=Path,
    )
    seed: int = option(0, "Seed of the random tensors.", metavar="N", minimum=0)
    timeout: float | None = option(
        None, "For one proof; counted in steps.", metavar="SECONDS", type=float, minimum=0.1, shown_default="2"
    )
    workers: int = option(1, "Processes.", metavar="N", minimum=1, maximum=1024)


GROUPS = (Options, ResultOptions, CheckOptions, MeasuringOptions, DiscoveryOptions, ExplanationOptions)


@contextmanager
def running(options: RunOptions) -> Iterator[None]:
    """Run models within the limits and with the libraries of custom operators that are asked for."""
    with current_session().replace(limits=options.limits), ort.registered_custom_ops(options.custom_ops):
        yield


# -- arguments ---------------------------------------------------------------------------------------------------------

COMMANDS = (
    *("optimize", "check", "compare", "bench", "inspect", "report", "explain", "grad", "partition", "plan"),
    *("verify", "rules", "discover", "demo"),
)


def normalize_arguments(args: list[str]) -> list[str]:
    """Return the arguments as the parser knows them: a command first, and each value after a flag of its own."""
    args = args or ["--help"]
    first = args[0]
    if first not in (*COMMANDS, "--help", "--version"):
        if not first.startswith("-") and not _is_path(first):
            hint = did_you_mean(first, COMMANDS) or f"; there is {', '.join(COMMANDS)}"
            raise UsageError(f"there is no command '{first}'{hint}")
        args = ["optimize", *args]
    patterns, found = _value_patterns(), list[str]()
    flag, value = "", None
    for arg in args:
        if arg.startswith("-"):
            flag, value = arg, patterns.get(arg)
        elif value is not None and found[-1] != flag:
            if re.fullmatch(value, arg) and not _is_path(arg):
                found.append(flag)
            else:
                value = None
        found.append(arg)
    return found


def _is_path(text: str) -> bool:
    return text.endswith(".onnx") or Path(text).exists()


def _value_patterns() -> dict[str, str]:
    """Return the flags that several values may follow, as users of other tools expect, with the patterns of such
    values."""
    return {
        flag: said.form.pattern
        for kind in GROUPS
        for field, said in iter_options(kind)
        if said.form is not None and said.form.pattern
        for flag in flags_of(field.name, said)
    }
