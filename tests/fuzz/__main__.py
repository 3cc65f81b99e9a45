"""`python -m tests.fuzz NUMBER…` runs single cases again and keeps their files; `--seconds S --start N` runs many."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

from tests.fuzz.driver import Worker, fuzz
from tests.fuzz.mutations import case


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    if given.numbers:
        worker = Worker(folder)
        for number in given.numbers:
            found = worker.run(number)
            path = folder / f"{number}.onnx"
            path.write_bytes(case(number).data)
            _say(f"{case(number)}\n  {found['found']} in {found['seconds']:.1f} s: {found['said']}\n  {path}")
        worker.close()
        return
    tally = fuzz(itertools.count(given.start), given.seconds, folder)
    for fault in tally.faults:
        _say(f"{case(fault['number'])}\n  {fault['found']}: {fault['said']}")
    _say(f"{dict(tally.counts)}, slowest: {tally.slowest}")


main()
