"""The original in OpenVINO's own runtime: ``python -m benchmarks.engine`` times it in turns with ONNX Runtime.

Both run in one process and are charged its processor time where they have one thread, wherever they compute, else the
seconds that pass. OpenVINO is asked for single precision, as ONNX Runtime keeps to it, and for one stream, the latency
of one request at a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx

from benchmarks.checks import QUANTA, SEEDS, difference, feeds, movement
from benchmarks.environment import one_line
from benchmarks.tools import peak_memory
from graphopt.runtime.measure import PreciseRatios, TimingPolicy, TimingSchedule, compute_speedup, time_interleaved
from graphopt.runtime.session_setting import SessionSetting

TOLERANCE = 1e-2
"""Largest accepted difference, beside what ONNX Runtime's own optimization takes a quantized model: kernels that differ
throughout round otherwise than those of one runtime."""


OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
"""Properties with which OpenVINO compiles a model, beside the number of threads."""


def compiled(source: str, threads: int) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what runs a model in OpenVINO."""
    import openvino

    options = OPTIONS | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    request = openvino.Core().compile_model(source, "CPU", options).create_infer_request()
    names = [output.name for output in onnx.load(source, load_external_data=False).graph.output]

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        request.infer(inputs, share_inputs=True, share_outputs=True)
        return {name: request.get_output_tensor(place).data for place, name in enumerate(names)}

    return run


def measure(source: str, folder: str, threads: int, seconds: float) -> dict[str, Any]:
    """Return the ratio of ONNX Runtime's time to OpenVINO's, what compiling cost, and how far the outputs are apart."""
    start = time.perf_counter()
    try:
        theirs = compiled(source, threads)
    except Exception as error:  # a model that it does not know is its result
        return {"error": f"OpenVINO: {one_line(error)}"}
    loading = time.perf_counter() - start
    session = SessionSetting(threads=threads).open(source)
    names = [output.name for output in session.get_outputs()]
    drawn = [feeds(source, folder, seed) for seed in SEEDS]
    try:
        found = [{name: np.array(value) for name, value in theirs(inputs).items()} for inputs in drawn]
    except Exception as error:  # so is one that it cannot run
        return {"error": f"OpenVINO: {one_line(error)}"}
    plain = SessionSetting(threads=threads).open(source, optimize=False)
    expected, own = (
        [dict(zip(names, each.run(None, inputs), strict=True)) for inputs in drawn] for each in (plain, session)
    )
    moved = movement(expected)
    gap, allowed = (max(difference(*pair, moved) for pair in zip(expected, some, strict=True)) for some in (found, own))
    if not gap <= TOLERANCE + (QUANTA * allowed if QUANTA * allowed < 1 else 0.0):
        return {"wrong": f"outputs differ by {gap:.2g} of how far they move"}
    runs = [lambda: session.run(None, drawn[0]), lambda: theirs(drawn[0])]
    policy = TimingPolicy()
    schedule = TimingSchedule(seconds=seconds, rounds=policy.bench_rounds, open_runs=PreciseRatios(policy))
    meter = time.process_time if threads == 1 else time.perf_counter
    before, after = time_interleaved(runs, schedule, meter=meter, policy=policy)
    ratio = compute_speedup(before, after, policy)
    speedup = asdict(ratio) | {"verdict": str(ratio.verdict)}
    return {"seconds": round(loading, 2), "memory_mb": peak_memory(), "difference": gap, "speedup": speedup}


if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a runtime prints is not what is told
    with stdout:
        json.dump(measure(**json.loads(sys.argv[1])), stdout)
