"""Paired timing of models in ONNX Runtime: sessions take turns in one process, so that what disturbs one disturbs all.

An absolute time means nothing on a machine that does other work too; the ratio of two times of one round does.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from graphopt import onnx_io, samples
from graphopt.errors import ModelError, UsageError
from graphopt.inputs import Trial, accepted, common_inputs, fitted, sizes_text, wanted_sizes, with_sizes
from graphopt.oracle import FailedError, Runnable, interruptible, require_onnxruntime
from graphopt.samples import Array, Binding, Feeds
from graphopt.types import DType

Source: TypeAlias = "onnx_io.Source | bytes"
"""A model as `onnx_io.load` takes it, or as it lies in a file."""

NOISE = 0.02
"""Ratios nearer to 1 count as no difference: two sessions of one and the same model differ by up to this."""

CONFIDENCE = 0.95
TURN = 0.01
"""Seconds that a turn lasts at least: short runs are repeated, for the clock and the switch cost something too."""

LONG = 0.05
"""A run of this many seconds needs no warming up at each turn."""

BUSY = 0.2
"""A spread above this is the doing of the machine, not of the model."""

LENGTHY = 0.5
"""Seconds of a first run that warms up enough."""

WIDTH = 0.01
"""An interval that is narrower, as a part of the ratio in it, leaves no doubt that more rounds could remove."""

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_INSTALL = {"CUDAExecutionProvider": 'pip install "graphopt[gpu]" in an environment without onnxruntime'}


# -- sessions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """How sessions are run: the provider as the user says it, and the number of threads (0: one a core)."""

    provider: str = "cpu"
    threads: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    """For the provider."""
    spinning: bool = False
    """Threads keep their cores busy while they wait for work. ONNX Runtime does so by default; here sessions take
    turns, and the idle one would take the cores of the one that runs: four sessions of one model on two cores were
    seen to differ by 20 %, and took twice as long."""
    affinity: str = ""
    """The processors of each thread but the first, as ONNX Runtime writes them: `2;3` or `3,4;5,6`. Empty: any."""

    def __str__(self) -> str:
        many = f"{self.cores} thread{'s' * (self.cores != 1)}{'' if self.threads else ' (one a core)'}"
        given = "".join(f", {key}={value}" for key, value in self.options.items())
        waiting = f"{', spinning' * self.spinning}{f', pinned to {self.affinity}' if self.affinity else ''}"
        return f"{self.provider_name}{given}, {many}{waiting}"

    @property
    def provider_name(self) -> str:
        """As ONNX Runtime calls it.

        Raises:
            UsageError: this onnxruntime has no such provider; says which it has, and what to install.
        """
        name = _PROVIDERS.get(self.provider.lower(), self.provider)
        available = require_onnxruntime().get_available_providers()
        if name not in available:
            hint = f"; {_INSTALL[name]}" if name in _INSTALL else ""
            raise UsageError(f"this onnxruntime has no {name}, only {', '.join(available)}{hint}")
        return name

    @property
    def is_cpu(self) -> bool:
        return self.provider_name == "CPUExecutionProvider"

    @property
    def cores(self) -> int:
        """The threads that a session really gets."""
        return self.threads or _cores()

    @property
    def device(self) -> tuple[str, int]:
        """Where the provider wants its inputs to lie, as ONNX Runtime names memory."""
        on_gpu = "CUDA" in self.provider_name or "Tensorrt" in self.provider_name
        return ("cuda", int(self.options.get("device_id", 0))) if on_gpu else ("cpu", 0)

    def open(
        self,
        model: Source,
        *,
        optimize: bool = True,
        folder: str | os.PathLike[str] | None = None,
        configure: Callable[[Any], None] | None = None,
    ) -> Any:
        """A session, with all of ONNX Runtime's optimizations or with none.

        Args:
            model: a path (the only way for models over 2 GB), the bytes of a file, or a model in memory.
            optimize: ORT_ENABLE_ALL, else ORT_DISABLE_ALL.
            folder: where the external data of a model that is no path lies.
            configure: sets what else is wanted on the `SessionOptions`.

        Raises:
            UsageError: the provider is missing or does not start.
            ModelError: ONNX Runtime refuses the model.
        """
        runtime, name = require_onnxruntime(), self.provider_name
        if not self.is_cpu and hasattr(runtime, "preload_dlls"):
            runtime.preload_dlls()
        loadable, own_folder = _loadable(model)
        options = self._session_options(runtime, optimize, folder or own_folder)
        if configure is not None:
            configure(options)
        providers = [(name, dict(self.options))]
        try:
            session = runtime.InferenceSession(loadable, options, providers=providers, enable_fallback=0)
        except Exception as error:  # the classes that onnxruntime raises share no base
            raise ModelError(f"{called(model)} {FailedError('cannot be loaded', error)}") from error
        if name not in session.get_providers():
            raise UsageError(f"{name} is installed but does not start: its libraries or its device are missing")
        return session

    def _session_options(self, runtime: Any, optimize: bool, folder: str | os.PathLike[str] | None) -> Any:
        levels = runtime.GraphOptimizationLevel
        options = runtime.SessionOptions()
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads = self.cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spinning)))
        if self.affinity:
            options.add_session_config_entry("session.intra_op_thread_affinities", self.affinity)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        return options


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def called(model: Source, number: int | None = None) -> str:
    """What a model is called in tables and errors: its path, if it has one."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    return "the model" if number is None else f"model {number + 1}"


def _loadable(model: Source) -> tuple[str | bytes, Path | None]:
    """What a session is made of, and the folder of its external data if the model in memory states one."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model), None
    if isinstance(model, bytes):
        return model, None
    held = Runnable(model)
    try:
        return held.proto.SerializeToString(), held.folder
    except (EncodeError, ValueError) as error:
        raise ModelError("a model in memory cannot be over 2 GB: save it, and give the path") from error


def runner(session: Any, feeds: Mapping[str, Any], setting: Setting) -> Callable[..., object]:
    """A call that runs the model once, to its end, with `RunOptions` if they are given.

    On a device the inputs lie there, and outputs stay there.
    """
    values = [*session.get_inputs(), *session.get_outputs()]
    tensors = all(value.type.startswith("tensor(") and "string" not in value.type for value in values)
    if not tensors or (setting.is_cpu and all(_is_native(value.type) for value in values)):
        return lambda options=None: session.run(None, feeds, options)
    binding = bound(session, feeds, setting.device)

    def run(options: Any = None) -> None:
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()

    return run


def bound(session: Any, feeds: Mapping[str, Any], device: tuple[str, int]) -> Any:
    """The inputs, copied to a device, and the outputs, to be made there, as an `IOBinding`."""
    runtime, binding = require_onnxruntime(), session.io_binding()
    for name, value in feeds.items():
        array, dtype = np.ascontiguousarray(value), DType.of(np.asarray(value).dtype)
        if dtype.numpy.isbuiltin == 1:
            held = runtime.OrtValue.ortvalue_from_numpy(array, *device)
        else:  # ONNX Runtime knows numpy's own types only, and takes others from where numpy has them
            raw = array.view(f"u{dtype.numpy.itemsize}")
            held = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))
        binding.bind_ortvalue_input(name, held)
    for output in session.get_outputs():
        binding.bind_output(output.name, *device)
    binding.synchronize_inputs()
    return binding


def _is_native(text: str) -> bool:
    """Does numpy itself have the type that ONNX Runtime prints as `tensor(bfloat16)`?"""
    name = text.removeprefix("tensor(").removesuffix(")").upper()
    return name not in DType.__members__ or DType[name].numpy.isbuiltin == 1


# -- statistics --------------------------------------------------------------------------------------------------------


class Verdict(StrEnum):
    """What a comparison of two timings says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


@dataclass(frozen=True)
class Samples:
    """Seconds of one run, one number a round."""

    seconds: tuple[float, ...]

    @cached_property
    def minimum(self) -> float:
        return min(self.seconds)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @cached_property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast as the first the second is: above 1 is faster."""

    minimum: float
    """By the fastest run of each."""
    median: float
    """The median over the rounds of the ratio within the round."""
    low: float
    high: float
    """Between these the true median lies, with a confidence of `confidence`."""
    rounds: int
    confidence: float = CONFIDENCE

    @property
    def verdict(self) -> Verdict:
        """Faster or slower only where the fastest runs, the medians and the interval say so, beyond noise."""
        if min(self.minimum, self.median) > 1 + NOISE and self.low > 1:
            return Verdict.FASTER
        if max(self.minimum, self.median) < 1 - NOISE and self.high < 1:
            return Verdict.SLOWER
        return Verdict.SAME


def speedup(before: Samples, after: Samples, confidence: float = CONFIDENCE) -> Speedup:
    """How much faster `after` ran than `before`, from rounds in which both took a turn."""
    ratios = sorted(b / a for b, a in zip(before.seconds, after.seconds, strict=True))
    low, high = _median_interval(len(ratios), confidence)
    median = statistics.median(ratios)
    return Speedup(before.minimum / after.minimum, median, ratios[low], ratios[high], len(ratios), confidence)


def _median_interval(count: int, confidence: float) -> tuple[int, int]:
    """The places, in a sorted sample, between which the median lies: by order statistics, whatever the distribution.

    The sample's least and greatest where it is too small for the confidence (under 6 for 95 %).
    """
    tail, place = 0.5**count, 0
    while place < (count - 1) // 2 and tail + math.comb(count, place + 1) * 0.5**count <= (1 - confidence) / 2:
        place += 1
        tail += math.comb(count, place) * 0.5**count
    return place, count - 1 - place


def interleaved(
    runs: Sequence[Callable[[], object]],
    *,
    seconds: float,
    rounds: tuple[int, int] = (7, 60),
    width: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[float], object] | None = None,
    seed: int = 0,
) -> tuple[Samples, ...]:
    """Time the runs in rounds in which each takes a turn, in an order that is drawn anew for each round.

    In an order that is fixed or rotates, each run would always follow the same one, and inherit its caches and clock.

    A turn repeats short runs for at least `TURN` seconds, after one that does not count: it fills the caches again and
    outlasts the threads of the session before, which spin for a while. It ends after `seconds`, or the most rounds,
    but not before the fewest; with `width` also as soon as the intervals are narrow.

    Args:
        runs: what is timed.
        seconds: after which no further round begins.
        rounds: the fewest and the most.
        width: of the interval of each ratio to the first, or of the time of a run alone, as a part of it. It is the
            width that ends the timing and not the verdict: to stop at the first clear one would favour chance.
        clock: seconds.
        progress: is told the part that is done, from 0 to 1.
        seed: of the orders.
    """
    repeats = [_repeats(run, clock) for run in runs]
    found: list[list[float]] = [[] for _ in runs]
    drawn = random.Random(seed)
    fewest, most = rounds
    start = clock()
    for number in range(1, most + 1):
        for which in drawn.sample(range(len(runs)), len(runs)):
            found[which].append(_turn(runs[which], repeats[which], clock))
        passed = clock() - start
        if progress is not None:
            progress(min(1.0, max(number / most, min(number / fewest, passed / max(seconds, 1e-9)))))
        if number >= fewest and (passed > seconds or _are_narrow(found, width)):
            break
    return tuple(Samples(tuple(samples)) for samples in found)


def _are_narrow(found: Sequence[Sequence[float]], width: float | None) -> bool:
    if width is None:
        return False
    first, *others = (Samples(tuple(samples)) for samples in found)
    ratios = [speedup(first, other) for other in others] or [speedup(first, Samples((1.0,) * len(first.seconds)))]
    return all(ratio.high - ratio.low <= width * ratio.median for ratio in ratios)


def _repeats(run: Callable[[], object], clock: Callable[[], float]) -> int:
    """How often a run is repeated in one turn. The first two runs, which grow the memory arena, do not count.

    A run that takes long is not held up by that, and one of it has to do.
    """
    start = clock()
    run()
    if clock() - start >= LENGTHY:
        return 0
    run()
    start = clock()
    run()
    once = clock() - start
    return max(1, math.ceil(TURN / max(once, 1e-7))) if once < LONG else 0


def _turn(run: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Seconds of one run."""
    if repeats:
        run()
    times = max(1, repeats)
    start = clock()
    for _ in range(times):
        run()
    return (clock() - start) / times


# -- models on the same inputs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """Models that are ready to run on the same inputs."""

    names: tuple[str, ...]
    setting: Setting
    seed: int
    """Of the inputs that were made up."""
    sessions: tuple[Any, ...]
    trials: tuple[Trial, ...]
    """One for each set of sizes."""


def prepared(
    models: Sequence[Source],
    setting: Setting,
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
    also: Sequence[Source] = (),
    limit: float | None = None,
) -> Prepared:
    """Load models and make inputs up that all of them accept; arguments and errors are those of `bench`.

    The inputs fit `also` some models that are not loaded, as far as their declarations tell. A run that takes longer
    than the `limit`, in seconds, is an error.
    """
    if not models:
        raise UsageError("there is nothing to time: name a model")
    names = tuple(called(model, number if len(models) > 1 else None) for number, model in enumerate(models))
    sketches = [samples.sketch(parsed(model)) for model in (*models, *also)]
    common = common_inputs((*names, *map(called, also)), sketches, frozenset(inputs or ()))
    given, own = fitted(common, inputs or {})
    bindings = wanted_sizes(common, dims or {}, own)
    sessions = tuple(setting.open(model) for model in models)

    def made(sizes: Binding) -> Feeds:
        return samples.feeds(common, sizes, seed=seed, style=samples.NORMAL, given=given)

    def refusal(feeds: Feeds, number: int = 0) -> str:
        reason = _refusal(sessions[number], feeds, setting, limit)
        return f"{names[number]} {reason}" if reason else ""

    trials = tuple(accepted(common, binding, made, refusal) for binding in bindings)
    for number, trial in itertools.product(range(1, len(names)), trials):
        if reason := refusal(trial.feeds, number):
            raise ModelError(f"{reason}{with_sizes(trial.sizes)}")
    return Prepared(names, setting, seed, sessions, trials)


def parsed(model: Source) -> ModelProto:
    """The message, without its external data. Raises ModelError."""
    if not isinstance(model, bytes):
        return Runnable(model).proto
    try:
        proto: ModelProto = ModelProto.FromString(model)
        return proto
    except DecodeError as error:
        raise ModelError("these bytes are not an ONNX model, or it is cut short") from error


def _refusal(session: Any, feeds: Feeds, setting: Setting, limit: float | None) -> str:
    """Why a model does not run on these inputs, if it does not."""
    try:
        interruptible(runner(session, feeds, setting), limit)
    except TimeoutError as error:
        raise ModelError(f"{error} (limited by the seconds that timing may take)") from error
    except Exception as error:  # the classes that onnxruntime raises share no base
        return str(FailedError("cannot be run", error))
    return ""


# -- what users see ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """One model at one set of sizes."""

    model: str
    samples: Samples
    speedup: Speedup | None
    """Against the first model; None for that one itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """All models at one set of sizes."""

    sizes: Binding
    """Of the open dims."""
    chosen: frozenset[str]
    """The dims whose size was not given."""
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Every model against the first."""

    models: tuple[str, ...]
    setting: Setting
    seed: int
    """Of the inputs that were made up."""
    cases: tuple[Case, ...]

    @property
    def together(self) -> tuple[Speedup | None, ...]:
        """Of each model the ratio over all sizes, as a geometric mean; None for the first."""
        columns = zip(*(case.timings for case in self.cases), strict=True)
        ratios = ([timing.speedup for timing in column if timing.speedup] for column in columns)
        return tuple(together(found) if found else None for found in ratios)

    def __str__(self) -> str:
        runtime = require_onnxruntime()
        lines = [f"onnxruntime {runtime.__version__}, {self.setting}, seed {self.seed}"]
        for case in self.cases:
            lines += ["", *([sizes_text(case.sizes, case.chosen)] if case.sizes else []), _case_table(case)]
        if len(self.cases) > 1 and len(self.models) > 1:
            rows = [(name, *_ratio_texts(ratio)) for name, ratio in zip(self.models, self.together, strict=True)]
            head = ("model", "speedup", "between", "verdict")
            lines += ["", "all sizes, as a geometric mean", aligned([head, *rows], left=(0, 3))]
        spread = max(timing.samples.spread for case in self.cases for timing in case.timings)
        if spread > BUSY:
            lines += [
                "",
                f"runs of one model differ by {spread:.0%}: the machine is busy, and small gains are not seen",
            ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """What was measured, where, and every number of it; times are in seconds, a speedup above 1 is faster."""
        where = {"onnxruntime": require_onnxruntime().__version__, "provider": self.setting.provider_name}
        setting = asdict(self.setting) | {"provider": where["provider"], "threads": self.setting.cores}
        data = {
            "onnxruntime": where["onnxruntime"],
            "setting": setting,
            "seed": self.seed,
            "models": self.models,
            "cases": [_case_json(case) for case in self.cases],
            "together": [_speedup_json(ratio) for ratio in self.together],
        }
        return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def bench(
    models: Sequence[Source],
    setting: Setting,
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seconds: float = 2.0,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
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

    Raises:
        UsageError: provider, sizes or inputs do not fit, or the models take different inputs.
        ModelError: a model cannot be read, loaded or run.
    """
    return timed(prepared(models, setting, dims=dims, inputs=inputs, seed=seed), seconds=seconds, progress=progress)


def timed(ready: Prepared, *, seconds: float = 2.0, progress: Callable[[float], object] | None = None) -> Benchmark:
    """Time what is ready to run; arguments are those of `bench`."""
    cases = []
    for number, trial in enumerate(ready.trials):
        runs = [runner(session, trial.feeds, ready.setting) for session in ready.sessions]

        def advance(done: float, before: int = number) -> None:
            if progress is not None:
                progress((before + done) / len(ready.trials))

        found = interleaved(runs, seconds=seconds * len(runs), rounds=_ROUNDS, width=WIDTH, progress=advance)
        ratios = [None, *(speedup(found[0], other) for other in found[1:])]
        cases.append(Case(trial.sizes, trial.chosen, tuple(map(Timing, ready.names, found, ratios))))
    return Benchmark(ready.names, ready.setting, ready.seed, tuple(cases))


_ROUNDS = (7, 500)


def together(ratios: Sequence[Speedup]) -> Speedup:
    """Speedups at several sizes as one: geometric means, each size counting the same.

    The bounds are those of the parts: the interval is wider than it would have to be.
    """
    if len(ratios) == 1:
        return ratios[0]
    parts = zip(*((ratio.minimum, ratio.median, ratio.low, ratio.high) for ratio in ratios), strict=True)
    minimum, median, low, high = (math.exp(statistics.fmean(math.log(max(r, 1e-9)) for r in part)) for part in parts)
    return Speedup(minimum, median, low, high, sum(ratio.rounds for ratio in ratios), ratios[0].confidence)


def _case_table(case: Case) -> str:
    alone = len(case.timings) == 1
    head = ("model", "minimum ms", "median ms", "spread", "rounds", "speedup", "between", "verdict")
    rows = [head]
    for timing in case.timings:
        times = timing.samples
        numbers = (ms_text(times.minimum), ms_text(times.median), f"{times.spread:.1%}", str(len(times.seconds)))
        rows.append((timing.model, *numbers, *_ratio_texts(timing.speedup)))
    return aligned([row[:5] if alone else row for row in rows], left=(0, 7))


def _ratio_texts(ratio: Speedup | None) -> tuple[str, str, str]:
    if ratio is None:
        return "", "", ""
    return f"{ratio.median:.3f}", f"{ratio.low:.3f}–{ratio.high:.3f}", str(ratio.verdict)


def ms_text(seconds: float) -> str:
    """Milliseconds to four digits: `0.01234`, `12.34`."""
    value = seconds * 1e3
    return f"{value:.{max(0, 3 - math.floor(math.log10(value)))}f}" if value > 0 else "0"


def aligned(rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,)) -> str:
    """A table as text; the columns named are flush left, the others right."""
    listed = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column in left else text.rjust(widths[column])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(row)).rstrip() for row in listed)


def _case_json(case: Case) -> dict[str, Any]:
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
