"""Output to the terminal: text to stdout; errors, warnings and progress to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from graphopt.base.errors import GraphoptError, ProofError
from graphopt.base.files import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

# -- errors ------------------------------------------------------------------------------------------------------------


def report_failure(error: BaseException) -> int:
    """Print the line for a failure and return its exit code."""
    if isinstance(error, typer.Abort) and isinstance(error.__cause__, EOFError):
        error = error.__cause__  # typer takes it for Ctrl-D at a prompt; graphopt has none
    text, code = _describe_failure(error)
    if text:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"graphopt: {escape_unprintable(text, keep=chr(10))}\n")
            sys.stderr.flush()
    if isinstance(error, OSError) or code == GONE:  # stdout is full or gone: the interpreter's last flush is to succeed
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


GONE = 141
"""Exit code where whoever read the output has read enough: that of a process that ends by SIGPIPE, in a shell."""


def _describe_failure(error: BaseException) -> tuple[str, int]:
    match error:
        case ProofError():
            return f"error: {error}", error.exit_code  # a counterexample takes several lines
        case GraphoptError():
            return f"error: {one_line(error)}", error.exit_code
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", 130
        case SystemExit(code=1):  # typer's answer to a reader that has gone
            return "", GONE
        case SystemExit():
            return "terminated", int(error.code or 0)
        case BrokenPipeError():
            return "", GONE
        case OSError():
            return f"error: the output cannot be written: {error.strerror or error}", 1
        case MemoryError():
            return "error: not enough memory", 1
    if hasattr(error, "format_message"):  # a usage error of typer, whose class has moved between its versions
        return f"error: {one_line(error.format_message())} (see graphopt --help)", 2
    where = f"{type(error).__name__}: {one_line(error)}"
    return f"internal error: {where}; --debug shows where, and a report of it is welcome", 1


def one_line(text: object) -> str:
    """Return the lines of a text in a row, with semicolons between them."""
    return "; ".join(line.strip().rstrip(".;") for line in str(text).splitlines() if line.strip())


# -- text --------------------------------------------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """Return the console on which tables are printed: stdout, unless that is for the model."""
    from graphopt.report.safe_console import SafeConsole

    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal that has no √ gets a question mark
    return SafeConsole(highlight=False, markup=False, soft_wrap=False, stderr=stderr)


def print_text(text: str) -> None:
    """Print to stdout, and break no lines."""
    console().print(text, soft_wrap=True)


def print_json(text: str) -> None:
    """Print JSON to stdout, as it is."""
    console().file.write(f"{text}\n")


def print_as_json(data: object) -> None:
    """Print plain data to stdout, as JSON."""
    print_json(json.dumps(data, indent=2, ensure_ascii=False))


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        is_warning = record.levelno == logging.WARNING and not hasattr(record, "plain")
        text = escape_unprintable(super().format(record), keep="\n")
        return f"graphopt: {'warning: ' * is_warning}{text}"


def set_up_logging(verbose: bool, debug: bool) -> None:
    """Send warnings to stderr, and what is being done, too, if that is wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress(AbstractContextManager["Progress"]):
    """Progress of long work: a bar for each stage that takes over two seconds, or a line where nobody is watching.

    With `--verbose` each stage has its line, too.
    """

    PATIENCE = 2.0

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled and sys.stderr.isatty()
        self.prints_lines = enabled and not sys.stderr.isatty()
        self.stage, self.done, self.since = "", 0.0, 0.0
        self.bar: Bar | None = None
        self.timer: threading.Timer | None = None
        self.lock = threading.Lock()

    def __call__(self, stage: str, done: float) -> None:
        with self.lock:
            if stage != self.stage:
                self._close()
                self._print_stage()
                self.stage, self.since = stage, time.monotonic()
                if self.enabled:
                    self.timer = threading.Timer(self.PATIENCE, self._open)
                    self.timer.daemon = True
                    self.timer.start()
            self.done = done
            if self.bar is not None:
                self.bar.update(self.bar.task_ids[0], completed=done)

    def _print_stage(self) -> None:
        """Print the line of a stage that is done."""
        if self.stage:
            seconds = time.monotonic() - self.since
            level = logging.WARNING if self.prints_lines and seconds >= self.PATIENCE else logging.INFO
            logging.getLogger(__name__).log(level, "%s, %.1f s", self.stage, seconds, extra={"plain": True})

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self.lock:
            if self.timer is not threading.current_thread():
                return  # the stage has ended meanwhile
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar.update(self.bar.add_task(self.stage, total=1.0), completed=self.done)
            self.bar.start()

    def _close(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.bar is not None:
            self.bar.stop()
        self.bar = self.timer = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.enabled = False
            self._close()
            if error is None:
                self._print_stage()
