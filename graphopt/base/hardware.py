"""The processor and the accelerators of the machine: what was measured on one says nothing of another."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path


def usable_cores() -> int:
    """Return how many processors this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """Return the model of the processor with its instruction sets; a virtual machine may show fewer."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return (
            command_output("sysctl", "-n", "machdep.cpu.brand_string") or f"{platform.machine()} {platform.processor()}"
        )
    told = {name.strip(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return "; ".join(f"{name}: {told[name]}" for name in _CPUINFO_FIELDS if name in told) or platform.machine()


def instruction_set() -> str:
    """Return the vector instructions by which ONNX Runtime chooses kernels: `avx512`, `avx2`, `neon`; else empty."""
    known = processor().replace(";", " ").split()
    return next((name for name, flag in _VECTOR_FLAGS.items() if flag in known), "")


_VECTOR_FLAGS = {"avx512": "avx512f", "avx2": "avx2", "neon": "asimd"}


def processor_name() -> str:
    """Return the processor as its maker calls it: `AMD EPYC 9B14`."""
    named = [part.partition(": ")[2] for part in processor().split("; ") if part.startswith("model name: ")]
    return named[0] if named else processor().split("; ")[0]


_CPUINFO_FIELDS = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),  # ARM
)


@cache
def accelerators() -> str:
    """Return the machine's GPUs; where these are unknown, the machine's name stands for them."""
    return command_output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or platform.node()


def command_output(*command: str, seconds: float = 10) -> str:
    """Return what a command prints; nothing where there is none of that name, it fails or takes longer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
