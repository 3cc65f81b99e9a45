"""The options of a run: each is declared once, for Python, the command line and the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from numbers import Integral
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.base import option_values as forms
from graphopt.base.errors import UsageError, did_you_mean
from graphopt.base.limits import DEFAULT_SECONDS, RunLimits
from graphopt.base.option_fields import document_options, option
from graphopt.neighbours import NEIGHBOURS, held_back_for

if TYPE_CHECKING:  # the command line reads this module for its help
    from graphopt.language.rule_library import RuleSource
    from graphopt.runtime.session_setting import SessionSetting
    from graphopt.search.recipe import Recipe

AUTO = "auto"
"""The opset in which the result is faster, or the provider with which it is."""
LATEST = "latest"
"""The newest opset that ONNX Runtime is known to run."""
TARGETS = ("onnx", "onnxruntime")
"""Runtimes by whose operators they have: any that runs ONNX, or ONNX Runtime."""
COSTS = ("measured", "analytic", "none")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for running a model: inputs, limits, custom operators."""

    inputs: Mapping[str, Any] | None = option(
        None,
        "Run on this input, not on a made-up one.",
        more="Arrays by the names of the inputs.",
        metavar="name:FILE.npy",
        flags=("--input",),
        form=forms.ARRAYS,
    )
    seed: int = option(0, "Seed of the random inputs.", metavar="N", minimum=0)
    custom_ops: Sequence[str | PathLike[str]] = option(
        (),
        "Library of custom operators, for ONNX Runtime to register.",
        more="What the model has of them is checked and timed; what rules of your own write of them must be what the "
        "rules say it is.",
        metavar="FILE",
        form=forms.PATHS,
    )
    run_limit: float = option(
        DEFAULT_SECONDS, "Longest time that one run of a model may take.", metavar="SECONDS", minimum=0.001
    )
    memory_limit: float | None = option(
        None,
        "Most memory that the whole process may take while a model runs.",
        more="It is looked at before a run, ten times a second and after it, so a peak in between is not seen. "
        "Without it only a single value is refused that is larger than what the process takes and nine tenths of what "
        "is free.",
        metavar="GB",
        type=float,
        minimum=0.001,
    )

    def __post_init__(self) -> None:
        given = self.custom_ops
        if isinstance(given, str | PathLike) or not all(isinstance(path, str | PathLike) for path in given):
            raise UsageError(f"custom_ops is a list of paths, not {given!r}")
        if self.seed < 0:
            raise UsageError(f"seed cannot be {self.seed}: it is 0 or more")

    @property
    def limits(self) -> RunLimits:
        return RunLimits(self.run_limit, self.memory_limit)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options for the device on which a model is to be fast."""

    provider: str | Sequence[str] = option(
        "cpu",
        "Execution provider: cpu, cuda, dml, openvino, rocm, tensorrt, or ONNX Runtime's name.",
        metavar="NAME",
    )
    provider_options: Mapping[str, str] | None = option(
        None,
        "An option of the provider.",
        metavar="key=value",
        flags=("--provider-option",),
        form=forms.SETTINGS,
    )
    threads: int = option(
        0, "Threads of ONNX Runtime, which sleep while they wait; 0: one a core.", metavar="N", minimum=0
    )

    @property
    def setting(self) -> SessionSetting:
        """Setting of the sessions that are timed.

        Raises:
            UsageError: the number of threads is negative, or there are several providers.
        """
        from graphopt.runtime.session_setting import SessionSetting

        if self.threads < 0:
            raise UsageError(f"threads cannot be {self.threads}: it is 0 or more")
        name, *others = self.providers
        if others:
            raise UsageError(f"only optimize takes several providers: not {', '.join(self.providers)}")
        given = self.provider_options or {}
        own = {rest if of == name else key: given[key] for key in given for of, rest in [_split_provider(key)]}
        return SessionSetting(name, self.threads, own)

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers by their short names; in the place of `auto` all that this onnxruntime has, the CPU's first."""
        from graphopt.runtime.session_setting import available_providers, short_provider_name

        found = forms.parse_names([self.provider]) if isinstance(self.provider, str) else self.provider
        if not found:
            raise UsageError("name a provider, such as cpu")
        meant = (available_providers() if name == AUTO else [short_provider_name(name)] for name in found)
        return tuple(dict.fromkeys(chain.from_iterable(meant)))


@document_options
@dataclass(frozen=True, kw_only=True)
class Options(DeviceOptions, RunOptions):
    """Options for optimizing a model.

    Raises:
        UsageError: two options exclude each other, or one has a value that it cannot have.
    """

    provider: str | Sequence[str] = option(
        "cpu",
        "Execution provider: cpu, cuda, dml, openvino, rocm, tensorrt, or ONNX Runtime's name; of several the fastest.",
        more="With `cpu,openvino` (in Python also a list) the model is optimized for each, the results race, and the "
        "report says with which to open a session. The speedup is over the original with the first. `auto`: all that "
        "this onnxruntime has.",
        metavar="NAME,...|auto",
    )
    provider_options: Mapping[str, str] | None = option(
        None,
        "An option of the provider; of several providers `openvino:key=value`.",
        metavar="key=value",
        flags=("--provider-option",),
        form=forms.SETTINGS,
    )
    skip: Sequence[str] = option(
        (),
        "Leave out these rules or passes.",
        more="`graphopt rules` lists them.",
        metavar="RULE...",
        form=forms.NAMES,
    )
    only: Sequence[str] | None = option(None, "Use only these rules and passes.", metavar="RULE...", form=forms.NAMES)
    before: str | Sequence[str] = option(
        (),
        "Leave what a tool looks for that comes after graphopt: ort-transformers, quantization.",
        more="Rewrites are held back after which `onnxruntime.transformers.optimizer` finds fewer fusions, or "
        "`onnxruntime.quantization` quantizes less. The other way round, graphopt last, needs no such option: see "
        "[the order of tools](order-of-tools.md).",
        metavar="TOOL,...",
        form=forms.TOOLS,
    )
    rules: Sequence[RuleSource] = option(
        (),
        "Further rules, in a .py or .jsonl file; they are proved first.",
        more="In Python also `graphopt.Rule` objects.",
        metavar="FILE",
        form=forms.PATHS,
    )
    unverified: bool = option(
        False,
        "Apply rules that are not proved, too; the report says where.",
        more="Not with `exact` or `keep_nonfinite`.",
    )
    exact: bool = option(
        False,
        "Change no bit of the outputs; fewer rules can be used.",
        more="Half precision is left alone where ONNX Runtime computes some of it in single precision. What is "
        "computed from weights alone is not folded in front of kernels that pack constants, because with constants "
        "they round differently.",
    )
    keep_nonfinite: bool = option(
        False,
        "Keep infinities and NaN where they are; fewer rules can be used.",
        more="Rules that are proved for finite values only are not used.",
    )
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = option(
        None,
        "Fix the shape of an input; the name may be left out if there is one.",
        more="A number fixes a size, a name gives it that name, and `?` (None in Python) leaves it as it is.",
        metavar="name:1,3,224,224",
        flags=("--input-shape", "--overwrite-input-shape"),
        form=forms.SHAPES,
    )
    dims: Mapping[str, int | Sequence[int]] | None = option(
        None,
        "Fix a dim; with several sizes it stays open, and the search measures at each.",
        more="The result is slower at none of them. A dim that is not given is measured at a usual size.",
        metavar="batch=1|seq=16,128",
        flags=("--dim",),
        form=forms.DIMS,
    )
    cost: str = option(
        "measured",
        "measured; analytic: an estimate, nothing is run; none: no search, no timing.",
        metavar="KIND",
        choices=COSTS,
    )
    dask: str | None = option(
        None,
        "Scheduler of a Dask cluster that times the parts of the model; needs graphopt[dask].",
        more="Its workers have the device that the model is for (workers of one kind, `--nthreads 1`). The result as a "
        "whole is not timed.",
        metavar="tcp://HOST:PORT",
        type=str,
    )
    seconds: float = option(
        60.0,
        "About how long the run may take; at least half of it is for search and timing.",
        metavar="SECONDS",
        minimum=0.0,
    )
    fresh: bool = option(False, "Time again, or look up what was timed before.", flags=("--fresh/--cached",))
    target_opset: int | str | None = option(
        None,
        "Opset of the result: by default the model's; auto: a newer one if faster.",
        more="`latest` is the newest that ONNX Runtime is known to run, or the newest before it that can say what the "
        "model computes; a note says why. `auto` gives nearly half of the time to the "
        "first opset that has all operators which rules write (23: Attention, RMSNormalization, RotaryEmbedding), and "
        "takes it where it is measured to be faster. With the check, an opset in which ONNX Runtime lacks a kernel "
        "that it has in the model's is an error.",
        metavar="N|latest|auto",
        type=str,
    )
    target: str = option(
        "onnx",
        "onnx: standard operators; onnxruntime: its own, too.",
        more="These are of the domain `com.microsoft`. Domains of your own are written by your own rules in any case "
        "where this machine has kernels for them, and else with `target_domains`.",
        metavar="KIND",
        choices=TARGETS,
    )
    target_domains: Sequence[str] = option(
        (),
        "Write operators of this domain though this machine has no kernel for them.",
        more="For another runtime: plugins of TensorRT, an NPU. The check runs their definitions (`define(…)`) in "
        "their places, and nothing is timed where there are any. A file of rules may say it as `TARGET_DOMAINS = (…)`.",
        metavar="DOMAIN",
        flags=("--target-domain",),
        form=forms.NAMES,
    )
    inline_functions: bool = option(
        True,
        "Inline local functions, or keep them.",
        flags=("--inline-functions/--keep-functions",),
    )
    check: bool = option(
        True,
        "Compare the result with the original.",
        more="A rewrite that makes a difference is left out, with a warning and a note in the report, and all is done "
        "again without it.",
        flags=("--check/--no-check",),
    )
    strict: bool = option(
        False,
        "Fail where the outputs differ, or a recipe does not fit, rather than leave something out.",
        more="A model that cannot be run is a warning in any case.",
    )
    recipe: Recipe | str | PathLike[str] | None = option(
        None,
        "Do what a recipe says, of --save-recipe; nothing is searched or timed.",
        more="Its decisions are made where this model is like the one for which it was made; what is left is listed. "
        "In Python also `Result.recipe` of an earlier run.",
        metavar="FILE.json",
        type=Path,
    )
    memory_budget: int | str | None = option(
        None,
        "Most memory that a run may take, weights included; exit code 4 where that cannot be kept.",
        more="It is measured in a process of its own, above what Python and ONNX Runtime take themselves. Where no "
        "option of the session brings it about, products, softmaxes and convolutions are computed in parts; the report "
        "says which option is needed. For the CPU only.",
        metavar="SIZE",
        type=str,
    )
    progress: Callable[[str, float], None] | None = option(
        None, "Called with the stage and how much of it is done, 0 to 1.", in_shell=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dask is not None and self.cost != "measured":
            raise UsageError(f"a Dask cluster times parts of the model, and cost {self.cost} times nothing")
        if isinstance(self.target_opset, str) and not self.target_opset.isdecimal():
            if self.target_opset not in (AUTO, LATEST):
                raise UsageError(f"'{self.target_opset}' is no opset: give a number, {LATEST} or {AUTO}")
            if self.target_opset == AUTO and (self.cost != "measured" or self.dask is not None):
                raise UsageError(f"which opset is faster is measured here: {AUTO} needs cost measured, and no cluster")
        self._check_providers()
        self._check_memory_budget()
        self._check_target_domains()
        self._check_neighbours()
        if self.strict and not self.check and self.recipe is None:
            raise UsageError("strict needs the check: without it no difference is found")
        if self.recipe is not None and self.dask is not None:
            raise UsageError("a recipe says what to do: there is nothing for a cluster to time")
        if self.target not in TARGETS:
            hint = did_you_mean(self.target, TARGETS)
            raise UsageError(f"there is no target '{self.target}', only {' and '.join(TARGETS)}{hint}")
        if self.threads < 0:
            raise UsageError(f"threads cannot be {self.threads}: it is 0 or more")

    def _check_target_domains(self) -> None:
        """Raise UsageError where the target domains are no list of domains of their own."""
        if isinstance(self.target_domains, str) or not all(self.target_domains):
            raise UsageError(f"target_domains is a list of names of domains, not {self.target_domains!r}")
        if "ai.onnx" in self.target_domains:
            raise UsageError("ai.onnx is the domain of ONNX itself, whose operators are written in any case")

    def _check_neighbours(self) -> None:
        """Raise UsageError where a tool that comes after graphopt is not known."""
        for name in self.neighbours:
            if name not in NEIGHBOURS:
                hint = did_you_mean(name, NEIGHBOURS)
                raise UsageError(f"nothing is known of a tool '{name}', only of {' and '.join(NEIGHBOURS)}{hint}")

    def _check_memory_budget(self) -> None:
        """Raise UsageError where a memory budget is no size, or cannot be measured."""
        if self.memory_budget is None:
            return
        forms.parse_bytes(self.memory_budget)
        if self.cost == "analytic" or self.dask is not None:
            raise UsageError("a memory budget is measured here: that needs cost measured or none, and no cluster")
        if len(self.providers) > 1 or not self.setting.is_cpu:
            raise UsageError("a memory budget is kept on the CPU only: leave out the provider")

    @property
    def memory_budget_bytes(self) -> int | None:
        """The memory budget in bytes; None where there is none."""
        return None if self.memory_budget is None else forms.parse_bytes(self.memory_budget)

    def _check_providers(self) -> None:
        """Raise UsageError where several providers are given and cannot be timed, or an option is of none of them."""
        if self.provider == "cpu" or len(self.providers) == 1:
            return
        if self.cost != "measured" or self.dask is not None:
            raise UsageError("which provider is faster is measured here: several need cost measured, and no cluster")
        for key in self.provider_options or {}:
            if _split_provider(key)[0] not in self.providers:
                hint = f"write {self.providers[-1]}:{key}" if ":" not in key else "it is not among them"
                raise UsageError(f"of which of {', '.join(self.providers)} is the option '{key}'? {hint}")

    def for_provider(self, name: str) -> Options:
        """Return the options for one of several providers, with its share of the provider's options."""
        given = self.provider_options or {}
        own = {key: value for key, value in given.items() if _split_provider(key)[0] == name}
        return replace(self, provider=name, provider_options=own)

    @property
    def report_progress(self) -> Callable[[str, float], None]:
        """The function to call with the progress; one that does nothing if there is none."""
        return self.progress or (lambda stage, done: None)

    @property
    def opset(self) -> int | None:
        """Opset to which the model is to be converted; None if it stays in its own."""
        if self.target_opset == LATEST:
            from graphopt.ir.schemas import MAX_LOADED_OPSET

            return MAX_LOADED_OPSET
        return None if self.target_opset in (None, AUTO) else int(self.target_opset)

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The tools that come after graphopt."""
        return tuple(forms.parse_names([self.before]) if isinstance(self.before, str) else self.before)

    @property
    def held_back(self) -> tuple[str, ...]:
        """Rules and passes that are left out for the tools that come after graphopt."""
        return held_back_for(self.neighbours)

    @property
    def is_timed(self) -> bool:
        """True where models are timed on this machine."""
        return self.cost == "measured" and self.dask is None and self.recipe is None

    @property
    def rule_choice(self) -> dict[str, str]:
        """The options that choose the rules, as a shell spells them, where they are not the usual ones."""
        chosen = {"--skip": ",".join(self.skip), "--only": ",".join(self.only or ())}
        chosen |= {"--target-domain": ",".join(self.target_domains)}
        chosen |= {"--before": ",".join(self.neighbours)}
        chosen |= {"--target": self.target} if self.target != TARGETS[0] else {}
        switches = {"--exact": self.exact, "--keep-nonfinite": self.keep_nonfinite, "--unverified": self.unverified}
        given = {flag: value for flag, value in chosen.items() if value}
        return given | {flag: "" for flag, is_on in switches.items() if is_on}

    @property
    def admitted_rules_text(self) -> str:
        """The admitted rules, in words: a search among others may find something else."""
        which = "exact" if self.exact else "unverified" if self.unverified else "proved"
        return f"{which}, nonfinite kept" if self.keep_nonfinite else which

    @property
    def fixed_shapes(self) -> dict[str, list[int | str | None]]:
        """Shapes of inputs that are fixed for good."""
        return {
            name: [size if size is None or isinstance(size, str) else _checked_size(name, size) for size in shape]
            for name, shape in (self.input_shapes or {}).items()
        }

    @property
    def fixed_dims(self) -> dict[str, int]:
        """Sizes that are fixed for good."""
        return {name: int(size) for name, size in (self.dims or {}).items() if isinstance(size, int | Integral)}

    @property
    def open_dims(self) -> dict[str, Sequence[int]]:
        """Sizes at which dims that stay open are measured."""
        return {name: sizes for name, sizes in (self.dims or {}).items() if not isinstance(sizes, int | Integral)}


def refuse_unknown_options(function: str, keywords: Iterable[str]) -> None:
    """Raise TypeError where a function is given a keyword that is no field of `Options`."""
    names = [field.name for field in fields(Options)]
    for name in keywords:
        if name not in names:
            raise TypeError(f"{function}() has no option '{name}'{did_you_mean(name, names)}")


def _split_provider(key: str) -> tuple[str, str]:
    """Return the provider that the name of an option says it is for, by its short name, and the rest; else neither."""
    from graphopt.runtime.session_setting import short_provider_name

    provider, colon, rest = key.partition(":")
    return (short_provider_name(provider), rest) if colon else ("", key)


def _checked_size(name: str, size: object) -> int:
    """Return a whole number, be it NumPy's; raises UsageError for another."""
    try:
        return index(size)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"the shape of input '{name}' has {size!r} in it, which is no size") from None
