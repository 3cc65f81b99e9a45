"""Where, when and of which software something is measured, and work in processes of its own."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphopt.base.ort import require_onnxruntime

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimddp", "sve")
"""The processor flags by which ONNX Runtime chooses kernels."""

_FOLDERS = ("graphopt", "rules", "verifier")
"""The sources that decide what graphopt makes of a model."""


def machine() -> str:
    """Return the kind of machine: processor with the flags that matter, cores, memory, system."""
    lines = _lines("/proc/cpuinfo")
    model = _entry(lines, "model name") or platform.processor() or platform.machine()
    known = (_entry(lines, "flags") or _entry(lines, "Features")).split()
    flags = ", ".join(flag for flag in _FLAGS if flag in known)
    memory = re.search(r"\d+", _entry(_lines("/proc/meminfo"), "MemTotal"))
    parts = [f"{model} ({flags})" if flags else model, f"{os.cpu_count()} cores"]
    parts += [f"{int(memory[0]) * 1024 / 1e9:.0f} GB"] if memory else []
    return ", ".join([*parts, platform.system()])


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []


def _entry(lines: Sequence[str], key: str) -> str:
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


def gpu() -> str:
    """Return the names of the graphics processors; empty where there is none."""
    return ", ".join(_said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())


def today() -> str:
    """Return the date, in UTC."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def installed(package: str) -> str:
    """Return the version of a package, empty if it is missing; several packages have ONNX Runtime, which is asked."""
    if package == "onnxruntime":
        return str(require_onnxruntime().__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def made(package: str = "graphopt") -> dict[str, Any]:
    """Return machine, date and versions for results of a package; for graphopt's also its revision."""
    packages = sorted({"onnx", "onnxruntime", package})
    versions = {each: version for each in packages if (version := installed(each))}
    own = revision() if package == "graphopt" else {}
    return {"machine": machine(), "date": today(), **own, "versions": versions}


def revision(root: Path = Path(__file__).parent.parent) -> dict[str, str]:
    """Return which graphopt this is: as git describes it, if there is git, and the digest of sources and proofs."""
    paths = {path.resolve() for folder in _FOLDERS for path in (root / folder).rglob("*.py")}
    hashed = hashlib.sha256()
    for path in [*sorted(paths), *sorted((root / "rules").glob("*.json*"))]:
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    commit = _said("git", "-C", str(root), "describe", "--tags", "--always")
    changed = _said("git", "-C", str(root), "status", "--porcelain", "--", *_FOLDERS)  # results are no sources
    described = {"graphopt": f"{commit}-dirty" if changed else commit} if commit else {}
    return {"sources": hashed.hexdigest()[:16], **described}


def _said(*command: str) -> str:
    """Return what a command prints; nothing if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def digest(path: Path) -> str:
    """Return a hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# -- processes ---------------------------------------------------------------------------------------------------------


def job(module: str, *arguments: str, limit: float, cache: str = "") -> dict[str, Any]:
    """Run a module in a process of its own, whose crash takes nothing along, and return the JSON that it prints.

    If there is none, the reason is under `error`. No process is left behind, on Ctrl-C neither: it would disturb
    timings. Another folder than the user's may be graphopt's cache.
    """
    command = [sys.executable, "-m", module, *arguments]
    variables = os.environ | ({"GRAPHOPT_CACHE": cache} if cache else {})
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit, env=variables, check=False
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
