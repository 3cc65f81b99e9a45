"""What a run of the pipeline is asked: one option a field, with what it means and its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import index
from os import PathLike
from typing import Any

import numpy as np

from graphopt.base.errors import UsageError, did_you_mean
from graphopt.base.limits import DEFAULT_SECONDS, RunLimits
from graphopt.language import rule_library
from graphopt.language.rule import Rule
from graphopt.language.terms import operator_applications
from graphopt.runtime.session_setting import SessionSetting

MICROSOFT = "com.microsoft"
AUTO = "auto"
"""The opset in which the result is faster."""
TARGETS = ("onnx", "onnxruntime")
"""Runtimes by whose operators they have: any that runs ONNX, or ONNX Runtime."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is to be optimized.

    Attributes:
        skip: names of rules and passes to leave out; `graphopt rules` lists them.
        only: names of the only rules and passes to use.
        rules: further rules, or `.py` and `.jsonl` files of them; they are proved first.
        unverified: apply rules that are not proved, too; the report says where. Not with `exact` or
            `keep_nonfinite`.
        exact: change no bit of the outputs: use only rules and passes that round nothing otherwise, and none in
            half precision where ONNX Runtime computes some of it in single precision. What is computed from
            weights alone is not folded in front of kernels that pack constants, and round otherwise with them.
        keep_nonfinite: keep infinities and NaN where they are: use no rule that is proved for finite values
            only.
        check: run the original and the result on random inputs and compare. A rewrite that made a difference is
            left out, with a warning and a note in the report, and all is done again without it.
        strict: raise an error where the check finds a difference, rather than leave a rewrite out. A model that cannot
            be run is none: the report says so.
        input_shapes: shapes of inputs to fix for good: a number fixes a size, a name calls it so, None leaves it.
        dims: sizes of named dims to fix for good. A dim with several sizes stays open and is measured at each;
            what is not said is measured at a usual size.
        target_opset: the opset of the result; by default that of the model. With the check, it is an error
            where ONNX Runtime has a kernel for a node in the model's opset, and none in this. "auto" tries the first
            opset that has all operators which rules write, too, and takes what is made there if it is measured to be
            faster than what is made in the model's.
        target: whose operators may be written: "onnx", the standard set, or "onnxruntime", its own (`com.microsoft`),
            too. Domains of your own are written by your own rules in any case.
        custom_ops: shared libraries of custom operators, which every session of ONNX Runtime registers: what the model
            has of them is checked and timed, and what your own rules write of them has to be what they say it is.
        inline_functions: put the bodies of model-local functions in the place of their calls.
        cost: what the search asks: "measured", or "analytic", an estimate for which nothing is run, or "none":
            no search and no timing.
        dask: the scheduler of a Dask cluster whose workers have the device that the model is for, tcp://host:8786: they
            time the parts of the model; the result as a whole is not timed.
        provider: the execution provider of ONNX Runtime to measure with: cpu, cuda, dml, openvino, rocm, tensorrt, or
            the name that ONNX Runtime has.
        provider_options: options of the provider, by name.
        threads: of ONNX Runtime, to measure with; 0 is one a core.
        seconds: for the search and the timing, about, at most.
        fresh: time again what earlier runs have timed, for all of that is kept.
        seed: of the inputs that check and timing make up.
        inputs: arrays by input, for check and timing.
        run_limit: the most seconds that one run of a model may take; 300 by default.
        memory_limit: the most gigabytes that the process may take in all to run a model. It is looked at before a run,
            ten times a second, and after it: a peak in between is not seen. By default only single values are refused
            that are larger than what the process takes and nine tenths of what is free.
        progress: told the stage and how much of it is done, 0 to 1.

    Raises:
        UsageError: two options exclude each other, or one has a value that it cannot have.
    """

    skip: Sequence[str] = ()
    only: Sequence[str] | None = None
    rules: Sequence[rule_library.RuleSource] = ()
    unverified: bool = False
    exact: bool = False
    keep_nonfinite: bool = False
    check: bool = True
    strict: bool = False
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None
    dims: Mapping[str, int | Sequence[int]] | None = None
    target_opset: int | str | None = None
    target: str = "onnx"
    custom_ops: Sequence[str | PathLike[str]] = ()
    inline_functions: bool = True
    cost: str = "measured"
    dask: str | None = None
    provider: str = "cpu"
    provider_options: Mapping[str, str] | None = None
    threads: int = 0
    seconds: float = 60.0
    fresh: bool = False
    seed: int = 0
    inputs: Mapping[str, Any] | None = None
    run_limit: float = DEFAULT_SECONDS
    memory_limit: float | None = None
    progress: Callable[[str, float], None] | None = None

    def __post_init__(self) -> None:
        if self.dask is not None and self.cost != "measured":
            raise UsageError(f"a Dask cluster times parts of the model, and cost {self.cost} times nothing")
        if isinstance(self.target_opset, str) and self.target_opset != AUTO:
            raise UsageError(f"'{self.target_opset}' is no opset: give a number, or {AUTO}")
        if self.target_opset == AUTO and (self.cost != "measured" or self.dask is not None):
            raise UsageError(f"which opset is faster is measured here: {AUTO} needs cost measured, and no cluster")
        if self.strict and not self.check:
            raise UsageError("strict needs the check: without it no difference is found")
        if self.target not in TARGETS:
            hint = did_you_mean(self.target, TARGETS)
            raise UsageError(f"there is no target '{self.target}', only {' and '.join(TARGETS)}{hint}")
        given = self.custom_ops
        if isinstance(given, str | PathLike) or not all(isinstance(path, str | PathLike) for path in given):
            raise UsageError(f"custom_ops is a list of paths, not {given!r}")
        for name, number in (("seed", self.seed), ("threads", self.threads)):
            if number < 0:
                raise UsageError(f"{name} cannot be {number}: it is 0 or more")

    @property
    def report_progress(self) -> Callable[[str, float], None]:
        """Whom to tell of the progress, or nobody."""
        return self.progress or (lambda stage, done: None)

    @property
    def setting(self) -> SessionSetting:
        """Of the sessions of ONNX Runtime that are timed."""
        return SessionSetting(self.provider, self.threads, self.provider_options or {})

    @property
    def limits(self) -> RunLimits:
        return RunLimits(self.run_limit, self.memory_limit)

    @property
    def opset(self) -> int | None:
        """The opset to which the model is to be converted, None where it stays in its own."""
        return None if isinstance(self.target_opset, str) else self.target_opset

    @property
    def admitted_rules_text(self) -> str:
        """Which rules are admitted, in words: a search among others may find something else."""
        which = "exact" if self.exact else "unverified" if self.unverified else "proved"
        return f"{which}, nonfinite kept" if self.keep_nonfinite else which

    def supports(self, rule: Rule) -> bool:
        """Return whether the target has all operators that a rule writes."""
        return self.target == "onnxruntime" or MICROSOFT not in _written_domains(rule)

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
        return {name: int(size) for name, size in (self.dims or {}).items() if isinstance(size, int | np.integer)}

    @property
    def open_dims(self) -> dict[str, Sequence[int]]:
        """The sizes at which dims that stay open are measured."""
        return {name: sizes for name, sizes in (self.dims or {}).items() if not isinstance(sizes, int | np.integer)}


def _checked_size(name: str, size: object) -> int:
    """Return a whole number, be it NumPy's; raises UsageError for another."""
    try:
        return index(size)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"the shape of input '{name}' has {size!r} in it, which is no size") from None


@cache
def _written_domains(rule: Rule) -> frozenset[str]:
    """Return the domains of the operators that a rule writes."""
    return frozenset(app.domain for side in rule.right for app in operator_applications(side))
