"""Race of two models, such as the results in two opsets, or for two providers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from graphopt.base.cache import Cache
from graphopt.base.errors import ModelError
from graphopt.io import onnx_io
from graphopt.rewrite.candidates import Candidate
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.cost_model import cache_key
from graphopt.runtime.oracle import RunnableModel
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.model_tuner import TuningOptions
from graphopt.search.race_outcomes import RaceOutcome
from graphopt.search.race_series import RaceSeries, model_digest
from graphopt.search.search_report import format_speedup
from graphopt.search.stopping import TimeBudget


def race_two_models(
    first: onnx_io.LoadedModel,
    second: onnx_io.LoadedModel,
    tuning: TuningOptions,
    limit: float,
    cache: Cache,
    clock: Callable[[], float] = time.monotonic,
    setting: SessionSetting | None = None,
) -> RaceOutcome:
    """Let two models take turns with a copy of the first, and return how fast the second is, or the outcome of an
    earlier run.

    Where it is faster, the outcome of a second race is returned, for one may be won by chance. The races take the
    seconds of the `tuning`, or longer where these are too few for the fewest rounds, up to the `limit`. The second runs
    under a `setting` of its own where one is given.

    Raises:
        ModelError: ONNX Runtime refuses one of them, or they would take longer, now or in an earlier run.
        UsageError: the provider does not start.
    """
    budget, also = TimeBudget(tuning.policy, limit, clock), [RunnableModel(second).outline]
    ready = prepare_models(
        [first], tuning.setting, dims=tuning.sizes, inputs=tuning.inputs, seed=tuning.seed, also=also
    )
    digest = cache_key("face", model_digest(first), model_digest(second), str(tuning.seconds))
    contest = RaceSeries(ready, first, second, digest, cache, budget, setting=setting)
    candidate = Candidate(second.graph)
    seconds = min(3 * tuning.policy.session_seconds, tuning.seconds / 2)
    found = _race_candidate(contest, candidate, seconds, races=2)
    if not found.is_faster:
        return found
    try:
        return _race_candidate(contest.next_series(), candidate, seconds, races=1)
    except ModelError as error:
        raise ModelError(
            f"it is {format_speedup(found.speedup)} as the other in one race, and in no second: {error}"
        ) from error


def _race_candidate(contest: RaceSeries, candidate: Candidate, seconds: float, races: int) -> RaceOutcome:
    """Return the outcome of races of a model with the original, which take part of the time that is left, or of an
    earlier run.

    Raises:
        ModelError: as `race_two_models` does.
    """
    keys, budget = [candidate.key], contest.budget
    outcomes = contest.recorded_outcomes(keys)
    if outcomes is None:
        if contest.had_timed_out(keys):
            raise ModelError("no time was left to time it, in an earlier run (--fresh tries again)")
        pace = budget.pace = contest.measure_pace()
        least = races * 3 * pace.racing_seconds + (races - 1) * 3 * pace.opening_seconds
        session, left = contest.open_session(contest.model), budget.remaining
        if least > left:
            contest.record_timeout(keys)
            what = "a race" if races == 1 else "two races"
            text = f"{what} would take {math.ceil(least)} s, and {math.floor(left)} s are left of the --seconds"
            raise ModelError(text)
        outcomes = contest.time_models(keys, [session], min(seconds, left / races), left / races)
    return outcomes[0]
