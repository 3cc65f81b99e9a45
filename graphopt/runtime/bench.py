"""Benchmarks: models are fed the same and timed in turns; the results are a table, and JSON."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from graphopt.base.errors import ModelError, UsageError
from graphopt.base.limits import LimitError
from graphopt.base.ort import require_onnxruntime
from graphopt.runtime import model_sketch, sample_inputs
from graphopt.runtime.input_sizes import (
    TrialInputs,
    common_sketch,
    find_accepted_inputs,
    fit_inputs,
    format_run_sizes,
    format_sizes,
    requested_sizes,
    usual_sizes,
)
from graphopt.runtime.measure import (
    PreciseRatios,
    Speedup,
    TimingPolicy,
    TimingSamples,
    TimingSchedule,
    geometric_mean_speedup,
    time_race,
)
from graphopt.runtime.oracle import RunFailedError, RunnableModel, check_survives, run_interruptibly
from graphopt.runtime.sample_inputs import Array, Binding, Feeds
from graphopt.runtime.session_setting import SessionSetting, Source, make_runner, model_label, parse_model

# -- models that are fed the same --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class PreparedModels:
    """Models that are ready to run on the same inputs."""

    names: tuple[str, ...]
    setting: SessionSetting
    seed: int
    """Seed of the random inputs."""
    sessions: tuple[Any, ...]
    trials: tuple[TrialInputs, ...]
    """One for each set of sizes."""
    opening_seconds: float = 0.0
    """Seconds in which a session of the first model was opened."""


def prepare_models(
    models: Sequence[Source],
    setting: SessionSetting,
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
    also: Sequence[Source] = (),
    limit: float | None = None,
) -> PreparedModels:
    """Load models and make up inputs that all of them accept; arguments and errors are those of `run_benchmark`.

    The inputs also fit the models of `also`, which are not loaded, as far as their declarations tell. Each set of sizes
    has an equal share of the `limit`, in seconds, and a run that takes longer is an error.
    """
    if not models:
        raise UsageError("there is nothing to time: name a model")
    names = tuple(model_label(model, number if len(models) > 1 else None) for number, model in enumerate(models))
    sketches = [model_sketch.sketch_model(parse_model(model)) for model in (*models, *also)]
    common = common_sketch((*names, *map(model_label, also)), sketches, frozenset(inputs or ()))
    given, own = fit_inputs(common, inputs or {})
    bindings = requested_sizes(common, dims or {}, own)
    cases = [(binding, chosen) for binding in bindings for chosen in usual_sizes(common, binding)]
    start = time.perf_counter()
    first = setting.open(models[0])
    opening = time.perf_counter() - start
    sessions = (first, *(setting.open(model) for model in models[1:]))
    tried = [RunnableModel(parse_model(model) if isinstance(model, bytes) else model) for model in models]
    share = None if limit is None else limit / len(cases)

    def made(sizes: Binding) -> Feeds:
        return sample_inputs.make_usual_feeds(common, sizes, seed=seed, given=given)

    def refusal(feeds: Feeds, number: int = 0) -> str:
        try:
            check_survives(tried[number], feeds)
            reason = _run_refusal(sessions[number], feeds, setting, share)
        except RunFailedError as error:
            reason = str(error)
        except LimitError as error:
            raise LimitError(f"{names[number]}: {error}") from error
        return f"{names[number]} {reason}" if reason else ""

    accepted = (find_accepted_inputs(common, *sizes, made, refusal) for sizes in cases)
    trials = tuple({frozenset(trial.sizes.items()): trial for trial in accepted}.values())  # two may end at the same
    for number, trial in itertools.product(range(1, len(names)), trials):
        if reason := refusal(trial.feeds, number):
            raise ModelError(f"{reason}{format_run_sizes(trial.sizes)}")
    return PreparedModels(names, setting, seed, sessions, trials, opening)


def make_up_inputs(
    model: onnx.ModelProto,
    dims: Mapping[str, int | Sequence[int]],
    inputs: Mapping[str, Array],
    refusal: Callable[[Feeds], str] = lambda feeds: "",
) -> list[Feeds]:
    """Return inputs at each set of sizes, the usual ones where none is given, for a model that is not run.

    What `refusal` says against some, others are tried for, if their sizes are guessed.

    Raises:
        UsageError: the model has no such dim or input, or they do not fit.
        ModelError: all are refused.
    """
    sketch = model_sketch.sketch_model(model)
    given, own = fit_inputs(sketch, inputs)
    bindings = requested_sizes(sketch, dims, own)
    cases = [(binding, chosen) for binding in bindings for chosen in usual_sizes(sketch, binding)]

    def made(sizes: Binding) -> Feeds:
        return sample_inputs.make_usual_feeds(sketch, sizes, seed=0, given=given)

    return [find_accepted_inputs(sketch, *sizes, made, refusal).feeds for sizes in cases]


class TooSlowError(ModelError):
    """A run takes longer than the caller of `prepare_models` has time for."""


def _run_refusal(session: Any, feeds: Feeds, setting: SessionSetting, limit: float | None) -> str:
    """Say why a model does not run on these inputs; nothing where it does."""
    try:
        run_interruptibly(make_runner(session, feeds, setting), limit)
    except TimeoutError as error:
        raise TooSlowError(str(error)) from error
    except LimitError:
        raise
    except Exception as error:  # the classes that onnxruntime raises share no base
        return str(RunFailedError("cannot be run", error))
    return ""


# -- their times -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """One model at one set of sizes."""

    model: str
    samples: TimingSamples
    speedup: Speedup | None
    """Against the first model; None for that one itself."""


@dataclass(frozen=True, slots=True)
class BenchmarkCase:
    """All models at one set of sizes."""

    sizes: Binding
    """Sizes of the open dims."""
    chosen: frozenset[str]
    """The dims whose size was not given."""
    timings: tuple[ModelTiming, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Every model against the first."""

    models: tuple[str, ...]
    setting: SessionSetting
    seed: int
    """Seed of the random inputs."""
    cases: tuple[BenchmarkCase, ...]
    policy: TimingPolicy = TimingPolicy()

    @property
    def overall_speedups(self) -> tuple[Speedup | None, ...]:
        """The ratio of each model over all sizes, as a geometric mean; None for the first."""
        columns = zip(*(case.timings for case in self.cases), strict=True)
        ratios = ([timing.speedup for timing in column if timing.speedup] for column in columns)
        return tuple(geometric_mean_speedup(found) if found else None for found in ratios)

    def __str__(self) -> str:
        runtime = require_onnxruntime()
        lines = [f"onnxruntime {runtime.__version__}, {self.setting}, seed {self.seed}"]
        for case in self.cases:
            lines += ["", *([format_sizes(case.sizes, case.chosen)] if case.sizes else []), _format_case(case)]
        if len(self.cases) > 1 and len(self.models) > 1:
            rows = [(name, *ratio_cells(ratio)) for name, ratio in zip(self.models, self.overall_speedups, strict=True)]
            head = ("model", "speedup", "between", "verdict")
            lines += ["", "all sizes, as a geometric mean", format_table([head, *rows], left=(0, 3))]
        spread = max(timing.samples.spread for case in self.cases for timing in case.timings)
        if spread > self.policy.busy_spread:
            lines += [
                "",
                f"runs of one model differ by {spread:.0%}: the machine is busy, and small gains are not seen",
            ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return every number that was measured, and where; times are in seconds, a speedup above 1 is faster."""
        where = {"onnxruntime": require_onnxruntime().__version__, "provider": self.setting.provider_name}
        setting = asdict(self.setting) | {"provider": where["provider"], "threads": self.setting.thread_count}
        data = {
            "onnxruntime": where["onnxruntime"],
            "setting": setting,
            "seed": self.seed,
            "models": self.models,
            "cases": [_case_json(case) for case in self.cases],
            "together": [_speedup_json(ratio) for ratio in self.overall_speedups],
        }
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def run_benchmark(
    models: Sequence[Source],
    setting: SessionSetting,
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seconds: float = 2.0,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
    policy: TimingPolicy = TimingPolicy(),
) -> Benchmark:
    """Time models against the first of them, interleaved in this process, on the same inputs.

    Args:
        models: paths, or models in memory.
        setting: provider and threads.
        dims: sizes for open dims, by name; of several sizes each is measured. What is left open gets a usual size.
        inputs: arrays for inputs, by name; the others are made up.
        seconds: of timing at most, for each model and set of sizes; it ends earlier when the ratios are certain.
        seed: of the inputs that are made up.
        progress: is told the part that is done, from 0 to 1.
        policy: how it is timed.

    Raises:
        UsageError: provider, sizes or inputs do not fit, or the models take different inputs.
        ModelError: a model cannot be read, loaded or run.
    """
    ready = prepare_models(models, setting, dims=dims, inputs=inputs, seed=seed)
    return time_models(ready, seconds=seconds, progress=progress, policy=policy)


def time_models(
    ready: PreparedModels,
    *,
    seconds: float = 2.0,
    progress: Callable[[float], object] | None = None,
    policy: TimingPolicy = TimingPolicy(),
) -> Benchmark:
    """Time prepared models; arguments are those of `run_benchmark`."""
    cases, count = [], len(ready.sessions)
    for number, trial in enumerate(ready.trials):
        own, *rivals = (make_runner(session, trial.feeds, ready.setting) for session in ready.sessions)

        def advance(done: float, before: int = number) -> None:
            if progress is not None:
                progress((before + done) / len(ready.trials))

        schedule = TimingSchedule(seconds=seconds * count, rounds=policy.bench_rounds, open_runs=PreciseRatios(policy))
        meter = ready.setting.timer
        found = time_race(own, rivals, schedule, meter=meter, progress=advance, policy=policy)
        timings = zip(ready.names, (found.original, *found.candidates), (None, *found.speedups()), strict=True)
        cases.append(
            BenchmarkCase(trial.sizes, trial.defaulted_dims, tuple(ModelTiming(*timing) for timing in timings))
        )
    return Benchmark(ready.names, ready.setting, ready.seed, tuple(cases), policy)


# -- as text and as JSON -----------------------------------------------------------------------------------------------


def _format_case(case: BenchmarkCase) -> str:
    alone = len(case.timings) == 1
    head = ("model", "minimum ms", "median ms", "spread", "rounds", "speedup", "between", "verdict")
    rows = [head]
    for timing in case.timings:
        times = timing.samples
        numbers = (format_ms(times.minimum), format_ms(times.median), f"{times.spread:.1%}", str(len(times.seconds)))
        rows.append((timing.model, *numbers, *ratio_cells(timing.speedup)))
    return format_table([row[:5] if alone else row for row in rows], left=(0, 7))


def ratio_cells(ratio: Speedup | None) -> tuple[str, str, str]:
    """Return the cells of a table on a speedup: its median, its interval and the verdict; empty if there is none."""
    if ratio is None:
        return "", "", ""
    return f"{ratio.median:.3f}", f"{ratio.low:.3f}–{ratio.high:.3f}", str(ratio.verdict)


def _case_json(case: BenchmarkCase) -> dict[str, Any]:
    timings = [
        {
            "model": timing.model,
            "minimum": timing.samples.minimum,
            "median": timing.samples.median,
            "spread": timing.samples.spread,
            "seconds": timing.samples.seconds,
            "speedup": _speedup_json(timing.speedup),
        }
        for timing in case.timings
    ]
    return {"sizes": dict(case.sizes), "chosen": sorted(case.chosen), "timings": timings}


def _speedup_json(ratio: Speedup | None) -> dict[str, Any] | None:
    return None if ratio is None else asdict(ratio) | {"verdict": ratio.verdict}


# -- tables ------------------------------------------------------------------------------------------------------------


def format_ms(seconds: float) -> str:
    """Return milliseconds to four digits: `0.01234`, `12.34`."""
    value = seconds * 1e3
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def format_table(rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,)) -> str:
    """Return a table as text; the columns named are flush left, the others right."""
    listed = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column in left else text.rjust(widths[column])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(row)).rstrip() for row in listed)
