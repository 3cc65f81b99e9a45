"""Where the time of two models goes: both are profiled on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphopt.report.report import OperatorTimes
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.measure import TimingPolicy
from graphopt.runtime.profile import time_kernels
from graphopt.runtime.sample_inputs import Array
from graphopt.runtime.session_setting import SessionSetting, Source


def profile_operators(
    models: tuple[Source, Source],
    settings: tuple[SessionSetting, SessionSetting],
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
    runs: int = TimingPolicy.kernel_share_runs,
) -> OperatorTimes:
    """Run an original and its result under ONNX Runtime's profiler, at the first of the sizes.

    Args:
        models: the original and the result.
        settings: provider and threads of each.
        dims: sizes for open dims, by name.
        inputs: arrays for inputs, by name; the others are made up.
        seed: of the inputs that are made up.
        runs: of each model; the least seconds count.

    Raises:
        UsageError: a provider is missing, or sizes or inputs do not fit.
        ModelError: a model cannot be read, loaded, run or profiled.
    """
    feeds = prepare_models(models, settings[1], dims=dims, inputs=inputs, seed=seed).trials[0].feeds
    before, after = (
        time_kernels(model, setting, feeds, runs).seconds_by_operator
        for model, setting in zip(models, settings, strict=True)
    )
    return OperatorTimes(before, after, runs)
