"""Work in a process of its own: what crashes or hangs takes nothing along."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def job(module: str, *arguments: str, limit: float) -> dict[str, Any]:
    """What a module that is run prints as the last line of its output, JSON; or why there is none, under `error`."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": late(limit)}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": ended(done.returncode, done.stderr)}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def late(limit: float) -> str:
    """Why there is nothing of what was given up after `limit` seconds."""
    return f"not done after {limit:.0f} s"


def ended(code: int, said: str) -> str:
    """Why a process failed: the last line of what it said, unless a signal ended it."""
    lines = said.strip().splitlines()
    return lines[-1][:200] if lines and code > 0 else f"the process ended with code {code}"
