"""How far an outcome is from its original, and where and when that was found."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from graphopt.base.ort import require_onnxruntime

Outputs: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""What a model computes, by the name of the output."""

TOLERANCE = 1e-4
"""Largest accepted `difference` on the CPU."""

DEVICE_TOLERANCE = 2e-2
"""The same on devices: CUDA multiplies in TF32, of which each number has an error of up to 5e-4."""

FLOOR = 0.1
"""The scale of a difference is at least this part of the largest magnitude: with TOLERANCE, 1e-5 of it is rounding."""

INSENSITIVE = 10 * TOLERANCE * FLOOR
"""Outputs that move by a smaller part of their magnitude, from input to input, cannot show a wrong outcome."""

_TINY = 1e-30
"""In the place of a scale of zero."""

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimddp", "sve")
"""Of a processor, those by which ONNX Runtime chooses kernels."""


def difference(expected: Outputs, actual: Outputs, movement: Mapping[str, float] | None = None) -> float:
    """The largest difference between outputs, relative to how far they move; other names or shapes are infinite.

    Without a movement the difference is relative to the largest magnitude, at least 1.
    """
    if expected.keys() != actual.keys() or any(expected[name].shape != actual[name].shape for name in expected):
        return float("inf")
    gaps = [0.0]
    for name, wanted in expected.items():
        left, right = wanted.astype(np.float64), actual[name].astype(np.float64)
        magnitude = _magnitude(left)
        scale = max(1.0, magnitude) if movement is None else max(movement[name], FLOOR * magnitude, _TINY)
        gap = float(np.abs(left - right).max(initial=0.0))
        gaps.append(gap / scale)
    return float("inf") if any(np.isnan(gaps)) else max(gaps)


def movement(outputs: Sequence[Outputs]) -> dict[str, float]:
    """How far each output moves between inputs: the standard deviation of the difference, of the pair most apart."""
    return {
        name: max((_deviation(left[name], right[name]) for left, right in combinations(outputs, 2)), default=0.0)
        for name in outputs[0]
    }


def is_insensitive(outputs: Sequence[Outputs]) -> bool:
    """Whether no output moves beyond rounding from input to input."""
    moved = movement(outputs)
    return all(
        moved[name] <= INSENSITIVE * max(_magnitude(found[name].astype(np.float64)) for found in outputs)
        for name in moved
    )


def _magnitude(values: np.ndarray[Any, Any]) -> float:
    return float(np.abs(values).max(initial=0.0))


def _deviation(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Root of the mean square of the difference; outputs of two shapes have moved by their magnitude."""
    if left.shape != right.shape:
        return max(_magnitude(left.astype(np.float64)), _magnitude(right.astype(np.float64)))
    gap = left.astype(np.float64) - right.astype(np.float64)
    return float(np.sqrt(np.mean(gap**2))) if gap.size else 0.0


def machine() -> str:
    """The kind of machine: processor with the flags that matter, cores, memory, system."""
    lines = _lines("/proc/cpuinfo")
    model = _entry(lines, "model name") or platform.processor() or platform.machine()
    known = (_entry(lines, "flags") or _entry(lines, "Features")).split()
    flags = ", ".join(flag for flag in _FLAGS if flag in known)
    memory = re.search(r"\d+", _entry(_lines("/proc/meminfo"), "MemTotal"))
    parts = [f"{model} ({flags})" if flags else model, f"{os.cpu_count()} cores"]
    parts += [f"{int(memory[0]) * 1024 / 1e9:.0f} GB"] if memory else []
    return ", ".join([*parts, platform.system()])


def installed(package: str) -> str:
    """The version of a package, empty where it is missing; of ONNX Runtime, which has several, what it says itself."""
    if package == "onnxruntime":
        return str(require_onnxruntime().__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def today() -> str:
    """The date, in UTC."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def gpu() -> str:
    """The names of the graphics processors, as their driver says them; empty where there is none."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return ""
    return ", ".join(done.stdout.split("\n")).strip(", ") if done.returncode == 0 else ""


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def _entry(lines: Sequence[str], key: str) -> str:
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
