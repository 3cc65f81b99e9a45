"""Distance of outputs with one provider from those with another: the check runs models on the CPU alone."""

from __future__ import annotations

from graphopt.base.errors import ModelError
from graphopt.check.compare import MIN_COMPARED_MAGNITUDE
from graphopt.check.result_distance import result_distance
from graphopt.check.tolerance import output_tolerances
from graphopt.io import onnx_io
from graphopt.runtime.bench import PreparedModels
from graphopt.runtime.model_sketch import sketch_model
from graphopt.runtime.oracle import RunFailedError, RunnableModel, run_session
from graphopt.runtime.session_setting import SessionSetting


def describe_difference(
    original: onnx_io.LoadedModel, ready: PreparedModels, model: onnx_io.LoadedModel, setting: SessionSetting
) -> str:
    """Return in words how far the outputs of a model under a setting are from those of the original, which is ready to
    run under its own, and whether that is more than rounding: a provider may compute in lower precision.

    Raises:
        ModelError: one of them does not run.
    """
    sessions = ready.sessions[0], setting.open(model)
    try:
        outputs = [[run_session(session, trial.feeds) for session in sessions] for trial in ready.trials]
    except RunFailedError as error:
        raise ModelError(f"the model {error}") from error
    tolerances = output_tolerances(sketch_model(RunnableModel(original).outline))
    gaps = [
        (name, result_distance(*values)) for pair in outputs for name, *values in zip(tolerances, *pair, strict=True)
    ]
    if problems := [f"'{name}' {gap.problem}" for name, gap in gaps if gap.problem]:
        return f"with {setting.provider} the output {problems[0]}"
    distances = [(gap.absolute / max(gap.scale, MIN_COMPARED_MAGNITUDE), tolerances[name][0]) for name, gap in gaps]
    relative, allowed = max(distances, key=lambda distance: distance[0] / distance[1])
    far = "" if relative <= allowed else f", more than the {allowed:.1g} of rounding: it may compute in lower precision"
    there = f"from the original's with {ready.setting.provider}"
    return f"with {setting.provider} outputs differ {there} by up to {relative:.1g} of the largest{far}"
