"""The console script: `python -m graphopt` is `graphopt`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl-C is heard from the first moment on: to load what it needs takes a second."""

    def end_at_once(_: int, __: FrameType | None) -> None:  # nothing has been done
        if sys.stderr is not None:
            os.write(2, b"graphopt: interrupted\n")
        os._exit(130)

    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:  # not where a shell runs it in the background
        signal.signal(signal.SIGINT, end_at_once)
    _open_closed_streams()
    from graphopt.base.limits import GC_THRESHOLD

    gc.set_threshold(*GC_THRESHOLD)
    from graphopt.cli import main as cli

    signal.signal(signal.SIGINT, heard)
    cli.main()


def _open_closed_streams() -> None:
    """Give standard streams that were closed to nobody: else the next file that is opened would take their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


if __name__ == "__main__":
    main()
