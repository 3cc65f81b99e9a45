"""Paired timing of models in ONNX Runtime: sessions take turns in one process, so that what disturbs one disturbs all.

An absolute time means nothing on a machine that does other work too; the ratio of two times of one round does.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from graphopt.errors import UsageError
from graphopt.oracle import require_onnxruntime

NOISE = 0.02
"""Ratios nearer to 1 count as no difference: two sessions of one and the same model differ by up to this."""

CONFIDENCE = 0.95
TURN = 0.01
"""Seconds that a turn lasts at least: short runs are repeated, for the clock and the switch cost something too."""

LONG = 0.05
"""A run of this many seconds needs no warming up at each turn."""

_PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_INSTALL = {"CUDAExecutionProvider": 'pip install "graphopt[gpu]" in an environment without onnxruntime'}


class Verdict(StrEnum):
    """What a comparison of two timings says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"


@dataclass(frozen=True, slots=True)
class Setting:
    """How sessions are run: the provider as the user says it, and the number of threads (0: one a core)."""

    provider: str = "cpu"
    threads: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    """For the provider."""

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

    def open(self, model: str | bytes, *, optimize: bool = True) -> Any:
        """A session, with all of ONNX Runtime's optimizations or with none."""
        runtime = require_onnxruntime()
        name = self.provider_name
        if not self.is_cpu and hasattr(runtime, "preload_dlls"):
            runtime.preload_dlls()
        levels = runtime.GraphOptimizationLevel
        options = runtime.SessionOptions()
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        options.intra_op_num_threads = self.cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        session = runtime.InferenceSession(model, options, providers=[(name, dict(self.options))])
        if name not in session.get_providers():
            raise UsageError(f"{name} is installed but does not start: its libraries or its device are missing")
        return session


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runner(session: Any, feeds: Mapping[str, Any], setting: Setting) -> Callable[[], object]:
    """A call that runs the model once, to its end. On a device the inputs lie there, and outputs stay there."""
    if setting.is_cpu:
        return lambda: session.run(None, feeds)
    binding = session.io_binding()
    device = "cuda" if "CUDA" in setting.provider_name or "Tensorrt" in setting.provider_name else "cpu"
    runtime = require_onnxruntime()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(value, device, 0))
    for output in session.get_outputs():
        binding.bind_output(output.name, device)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


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
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Samples, ...]:
    """Time the runs in rounds in which each takes a turn, in an order that rotates.

    A turn repeats short runs for at least `TURN` seconds, after one that does not count: it fills the caches again and
    outlasts the threads of the session before, which spin for a while. It ends after `seconds`, or the most rounds,
    but not before the fewest.
    """
    repeats = [_repeats(run, clock) for run in runs]
    found: list[list[float]] = [[] for _ in runs]
    fewest, most = rounds
    start = clock()
    for number in range(most):
        for turn in range(len(runs)):
            which = (turn + number) % len(runs)
            found[which].append(_turn(runs[which], repeats[which], clock))
        if number + 1 >= fewest and clock() - start > seconds:
            break
    return tuple(Samples(tuple(samples)) for samples in found)


def _repeats(run: Callable[[], object], clock: Callable[[], float]) -> int:
    """How often a run is repeated in one turn. The first two runs, which grow the memory arena, do not count."""
    run()
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
