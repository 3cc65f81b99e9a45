"""Times by operator, and gains of some simplifications, of a result: measured for the page alone."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from graphopt.base import ort
from graphopt.base.errors import ModelError
from graphopt.base.session import current_session
from graphopt.options import AUTO, Options
from graphopt.pipeline import optimize
from graphopt.report.report import OperatorTimes, Report
from graphopt.result import Result
from graphopt.runtime.bench import prepare_models, run_benchmark
from graphopt.runtime.measure import Speedup, TimingPolicy
from graphopt.runtime.profile import time_kernels_in_turns
from graphopt.runtime.session_setting import Source

log = logging.getLogger(__name__)

PROFILE_RUNS = TimingPolicy.kernel_share_runs

MOST_RULES = 5
"""Rules whose gain is measured: those that took out the most nodes."""

RACE_SECONDS = 1.5
"""Seconds of a race with the model without a rule, for each of both."""

GAIN_SECONDS = 30.0
"""Seconds after which no further rule is measured."""


def profile_result(model: Source, result: Result, options: Options) -> Report:
    """Return the report of a result that was timed, with the times of its operators and the gains of some rules.

    Args:
        model: the original.
        result: what `optimize` made of it.
        options: those that it was made with.

    Raises:
        UsageError: a provider is missing, or sizes or inputs do not fit.
        ModelError: the original or the result cannot be read, loaded, run or profiled.
    """
    timing, setting = result.report.timing, result.setting
    if timing is None or timing.speedup is None or timing.cost != "measured":
        return result.report
    first = options.for_provider(timing.original_provider).setting if timing.original_provider else setting
    with current_session().replace(limits=options.limits), ort.registered_custom_ops(options.custom_ops):
        models, inputs = [model, result.loaded], options.inputs
        ready = prepare_models(models, setting, dims=options.open_dims, inputs=inputs, seed=options.seed)
        profiled = [(model, first), (result.loaded, setting)]
        times = time_kernels_in_turns(profiled, ready.trials[0].feeds, PROFILE_RUNS)
        before, after = (each.seconds_by_operator for each in times)
        losses = dict(_losses_without(model, result, options))
    rules = {name: replace(text, speed_without=losses.get(name)) for name, text in result.report.rules.items()}
    return replace(result.report, operator_times=OperatorTimes(before, after, PROFILE_RUNS), rules=rules)


def _losses_without(model: Source, result: Result, options: Options) -> Iterator[tuple[str, Speedup]]:
    """Yield rules, and the speed of the model simplified without each relative to the simplified one."""
    removed = Counter[str]()
    for each in result.report.rewrites:
        removed[each.name] += len(each.removed) - len(each.added) if each.cause is None else 0
    names = [name for name, count in removed.most_common(MOST_RULES) if count > 0]
    simple, end = _simplification_options(result, options), time.monotonic() + GAIN_SECONDS
    whole = optimize(model, **vars(simple)).loaded if names else None
    for name in names:
        if whole is None or time.monotonic() > end:
            return
        without = optimize(model, **vars(replace(simple, skip=(*simple.skip, name)))).loaded
        try:
            found = run_benchmark(
                [whole, without],
                result.setting,
                dims=options.open_dims,
                inputs=options.inputs,
                seconds=RACE_SECONDS,
                seed=options.seed,
            )
        except ModelError as error:
            log.info("what %s gains is not known: %s", name, error)
            continue
        (ratio,) = filter(None, found.overall_speedups)
        yield name, ratio


def _simplification_options(result: Result, options: Options) -> Options:
    """Return the options with which a model is only simplified, for the provider and in the opset of a result."""
    own = options.for_provider(result.setting.provider) if len(options.providers) > 1 else options
    opset = result.report.after.opsets.get("ai.onnx") if options.target_opset == AUTO else options.target_opset
    return replace(
        own, cost="none", dask=None, check=False, strict=False, target_opset=opset, recipe=None, progress=None
    )
