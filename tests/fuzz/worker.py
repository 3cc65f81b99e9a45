"""Optimizes broken models, one after the other, in a process that may be lost: `python -m tests.fuzz.worker FOLDER`.

Reads numbers of cases from stdin, and writes what became of each as a line of JSON.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import typer.main

from tests.fuzz.mutations import case, pool

ROOM = 8 << 30
"""Bytes of addresses that the process may have: what takes all memory fails here, not the machine."""

BUDGET = 1 << 30
"""Bytes that one small model may take."""


def outcome(source: Path, output: Path, number: int) -> tuple[str, str]:
    """What the command line makes of a file: "optimized", "refused", or a fault; and what it said."""
    cost = "analytic" if number % 8 == 7 else "none"
    options = ["--target-opset", "latest"] if number % 16 == 5 else ["--keep-functions"] if number % 16 == 3 else []
    output.unlink(missing_ok=True)
    try:
        code, lines = said_of(
            ["optimize", source, output, "--cost", cost, "--seconds", "2", "--run-limit", "5", *options]
        )
    except BaseException:  # a fault like any other
        return "traceback", traceback.format_exc()
    return judged(code, lines, output.exists()), "\n".join(lines)


def said_of(arguments: Iterable[object]) -> tuple[object, list[str]]:
    """The exit code of a command, and its errors, line by line, without warnings."""
    from graphopt.cli.main import app

    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        try:
            app([*map(str, arguments), "--quiet"])
            code: object = 0
        except SystemExit as end:
            code = end.code
    return code, [line for line in said.getvalue().splitlines() if not line.startswith("graphopt: warning:")]


def judged(code: object, lines: list[str], written: bool) -> str:
    """Whether a run ended as it should."""
    if code == 0:
        return "optimized" if written and not lines else "success without a file, or with an error"
    if code not in (1, 2):  # 2: it can be run only on inputs that are given
        return f"exit code {code}"
    if written:
        return "an error, and a file all the same"
    if len(lines) != 1 or not lines[0].startswith("graphopt: error: "):
        return "more or less than one line"
    return "no reason" if "not enough memory" in lines[0] else "refused"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _tell(data: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def main() -> None:
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    source, output = folder / "model.onnx", folder / "out.onnx"
    pool()
    typer.main.get_group = cache(typer.main.get_group)  # else all commands are made anew for each case
    _tell({"ready": True})
    for line in sys.stdin:
        number = int(line)
        source.write_bytes(case(number).data)
        before, start = peak(), time.perf_counter()
        found, said = outcome(source, output, number)
        if peak() - before > BUDGET:
            found = "takes too much memory"
        data = {"number": number, "found": found, "said": said, "seconds": time.perf_counter() - start}
        _tell(data)


if __name__ == "__main__":
    main()
