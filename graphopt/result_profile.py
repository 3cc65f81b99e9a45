"""Where the time of a result goes, and what some of its simplifications gain, by a few profiled runs: for the page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphopt.base import ort
from graphopt.base.session import current_session
from graphopt.options import AUTO, Options
from graphopt.pipeline import optimize
from graphopt.report.report import OperatorTimes, Report
from graphopt.result import Result
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.measure import TimingPolicy
from graphopt.runtime.profile import KernelTimes, time_kernels
from graphopt.runtime.sample_inputs import Feeds
from graphopt.runtime.session_setting import Source

PROFILE_RUNS = TimingPolicy.kernel_share_runs

MOST_RULES = 5
"""Rules whose gain is measured: those that took out the most nodes."""

GAIN_SECONDS = 30.0
"""Seconds after which no further rule is measured."""


def profile_result(model: Source, result: Result, options: Options) -> Report:
    """Return the report of a result that was timed, with the times of its operators and the gains of some rules.

    A rule's gain is that of the simplified model over the model simplified without the rule, by the kernels of which
    one has more than the other.

    Args:
        model: the original.
        result: what `optimize` made of it.
        options: those that it was made with.

    Raises:
        UsageError: a provider is missing, or sizes or inputs do not fit.
        ModelError: a model cannot be read, loaded, run or profiled.
    """
    timing, setting = result.report.timing, result.setting
    if timing is None or timing.speedup is None or timing.cost != "measured":
        return result.report
    first = options.for_provider(timing.original_provider).setting if timing.original_provider else setting
    with current_session().replace(limits=options.limits), ort.registered_custom_ops(options.custom_ops):
        models, inputs = [model, result.loaded], options.inputs
        ready = prepare_models(models, setting, dims=options.open_dims, inputs=inputs, seed=options.seed)
        feeds = ready.trials[0].feeds
        before, after = (
            time_kernels(each, by, feeds, PROFILE_RUNS).seconds_by_operator
            for each, by in ((model, first), (result.loaded, setting))
        )
        gains = dict(_kernel_gains(model, result, options, feeds))
    rules = {name: replace(text, kernel_gain=gains.get(name)) for name, text in result.report.rules.items()}
    return replace(result.report, operator_times=OperatorTimes(before, after, PROFILE_RUNS), rules=rules)


def _kernel_gains(model: Source, result: Result, options: Options, feeds: Feeds) -> Iterator[tuple[str, float]]:
    """Yield the names and gains of rules, until the time is up."""
    simple = _simplification_options(result, options)

    def kernels(skip: Sequence[str]) -> KernelTimes:
        made = optimize(model, **vars(replace(simple, skip=skip)))
        return time_kernels(made.loaded, result.setting, feeds, PROFILE_RUNS)

    removed = Counter[str]()
    for each in result.report.rewrites:
        removed[each.name] += len(each.removed) - len(each.added) if each.cause is None else 0
    names = [name for name, count in removed.most_common(MOST_RULES) if count > 0]
    end = time.monotonic() + GAIN_SECONDS
    whole = kernels(simple.skip) if names else None
    for name in names:
        if whole is None or time.monotonic() > end:
            return
        yield name, kernels([*simple.skip, name]).speedup_of(whole)


def _simplification_options(result: Result, options: Options) -> Options:
    """Return the options with which a model is only simplified, for the provider and in the opset of a result."""
    own = options.for_provider(result.setting.provider) if len(options.providers) > 1 else options
    opset = result.report.after.opsets.get("ai.onnx") if options.target_opset == AUTO else options.target_opset
    return replace(own, cost="none", dask=None, check=False, strict=False, target_opset=opset)
