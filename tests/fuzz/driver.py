"""Runs cases in worker processes: a crash or a hang of one is an outcome, not the end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds that one case may take: a small model takes a tenth of one."""

STARTING = 300.0
"""Seconds for a worker to begin: the onnx package makes two thousand models."""

ALLOWED = ("optimized", "refused")


@dataclass
class Worker:
    """A process that optimizes one case after another, and is started again when it is lost."""

    folder: Path
    process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> dict[str, Any]:
        """What became of a case."""
        process = self.process or self._started()
        assert process.stdin is not None
        start = time.perf_counter()
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        found = self._answer(process)
        return {"number": number, "said": "", "seconds": time.perf_counter() - start} | found

    def _started(self) -> subprocess.Popen[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.worker", str(self.folder)]
        env = {**os.environ, "TMPDIR": str(self.folder), "GRAPHOPT_CACHE": str(self.folder / "cache")}
        with (self.folder / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
            )
        assert self._answer(self.process, STARTING).get("ready"), (self.folder / "errors").read_text()
        return self.process

    def _answer(self, process: subprocess.Popen[str], patience: float = PATIENCE) -> dict[str, Any]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], patience)
        line = process.stdout.readline() if ready else ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self.close()
        how = f"died with {process.returncode}" if ready else f"no end after {patience:g} s"
        return {"found": how, "said": (self.folder / "errors").read_text()[-2000:]}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                with suppress(OSError):
                    stream and stream.close()
            self.process = None


@dataclass
class Tally:
    """What became of the cases, and which of them are faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, Any]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, -1)

    def add(self, found: dict[str, Any]) -> None:
        self.counts[found["found"]] += 1
        self.slowest = max(self.slowest, (found["seconds"], found["number"]))
        if found["found"] not in ALLOWED:
            self.faults.append(found)


def fuzz(numbers: Iterable[int], seconds: float, folder: Path) -> Tally:
    """Run cases until the time is up."""
    tally, worker, end = Tally(), Worker(folder), time.monotonic() + seconds
    try:
        for number in numbers:
            tally.add(worker.run(number))
            if time.monotonic() > end:
                break
    finally:
        worker.close()
    return tally
