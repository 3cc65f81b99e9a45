"""Processes of this Python that answer what they are asked over stdin and stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import BinaryIO


def child_command(code: str) -> list[str]:
    """Return the command of a process that runs some code, and finds modules where this one does."""
    entries: list[object] = [*sys.path]  # what is no text Python does not search
    path = json.dumps([entry for entry in entries if isinstance(entry, str)])
    return [sys.executable, "-P", "-c", f"import json, sys\nsys.path[:] = json.loads(sys.argv[1])\n{code}", path]


def open_answers(*, buffering: int = -1) -> BinaryIO:
    """Return stdout for the answers of a child alone: what libraries print goes to stderr. Ctrl-C is for its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=buffering)
    os.dup2(2, 1)
    return answers
