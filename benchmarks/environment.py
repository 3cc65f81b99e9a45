"""Machine, date and software of a measurement, and work in processes of its own."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from graphopt.base.hardware import command_output, processor
from graphopt.base.ort import require_onnxruntime

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimddp", "sve")
"""The processor flags by which ONNX Runtime chooses kernels."""

_FOLDERS = ("graphopt", "rules", "verifier")
"""The sources that decide what graphopt makes of a model."""


def machine() -> str:
    """Return the kind of machine: processor with the flags that matter, cores, memory, system."""
    facts = dict(fact.split(": ", 1) for fact in processor().split("; ") if ": " in fact)
    model = facts.get("model name") or platform.processor() or platform.machine()
    known = facts.get("flags", facts.get("Features", "")).split()
    flags = ", ".join(flag for flag in _FLAGS if flag in known)
    memory = f"{psutil.virtual_memory().total / 1e9:.0f} GB"
    return ", ".join([f"{model} ({flags})" if flags else model, f"{os.cpu_count()} cores", memory, platform.system()])


def gpu() -> str:
    """Return the names of the graphics processors; empty where there is none."""
    return ", ".join(command_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", seconds=60).splitlines())


def installed(package: str) -> str:
    """Return the version of a package, empty if it is missing; several packages have ONNX Runtime, which is asked."""
    if package == "onnxruntime":
        return str(require_onnxruntime().__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def made(*packages: str) -> dict[str, Any]:
    """Return machine, date and versions of packages for a row of results; of graphopt also its revision."""
    versions = {package: version for package in sorted(packages) if (version := installed(package))}
    date = dt.datetime.now(dt.UTC).date().isoformat()
    own = revision() if "graphopt" in packages else {}
    return {"machine": machine(), "date": date, **own, "versions": versions}


def revision(root: Path = Path(__file__).parent.parent) -> dict[str, str]:
    """Return which graphopt this is: as git describes it, if there is git, and the digest of sources and proofs."""
    paths = {path.resolve() for folder in _FOLDERS for path in (root / folder).rglob("*.py")}
    hashed = hashlib.sha256()
    for path in [*sorted(paths), *sorted((root / "rules").glob("*.json*"))]:
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    commit = command_output("git", "-C", str(root), "describe", "--tags", "--always", seconds=60)
    status = ("git", "-C", str(root), "status", "--porcelain", "--", *_FOLDERS)  # results are no sources
    changed = command_output(*status, seconds=60)
    described = {"graphopt": f"{commit}-dirty" if changed else commit} if commit else {}
    return {"sources": hashed.hexdigest()[:16], **described}


def file_digest(path: Path) -> str:
    """Return a hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def job(module: str, *arguments: str, limit: float) -> dict[str, Any]:
    """Run a module as `run_for_json` does."""
    return run_for_json(["-m", module, *arguments], limit=limit)


def run_for_json(
    arguments: Sequence[str], *, limit: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run Python in a process of its own, whose crash takes nothing along, and return the JSON that it prints.

    If there is none, the reason is under `error`. No process is left behind, on Ctrl-C neither: it would disturb
    timings.

    Args:
        arguments: of Python.
        limit: seconds after which the process is ended.
        environment: variables of the process; those of this one unless given.
    """
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:.0f} s"}
    if done.returncode or not done.stdout.strip():
        lines = done.stderr.strip().splitlines()
        is_told = lines and done.returncode > 0  # else a signal ended it
        return {"error": lines[-1][:200] if is_told else f"the process ended with code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def one_line(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
