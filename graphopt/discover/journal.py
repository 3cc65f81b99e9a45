"""What a run has been told so far, in a file: one that is killed goes on from there.

One answer a line, each on the disk before the next question counts as answered. A line that was cut off is left out; so
are answers of another source, for it may ask and prove otherwise.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from graphopt.base.errors import OutputError
from graphopt.rewrite import gate

log = logging.getLogger(__name__)


@cache
def get_source_digest() -> str:
    """Return what identifies the source that asks and answers."""
    digest = sha256(gate.prover_digest().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


class Journal(AbstractContextManager["Journal"]):
    """Answers by question."""

    def __init__(self, path: Path, *, keep: bool) -> None:
        """`keep` it when the run is done; one that was not done keeps it in any case.

        Raises:
            OutputError: it cannot be written.
        """
        self.path, self.keep = path, keep
        self.answers: dict[str, Mapping[str, Any]] = {}
        whole = self._read()
        try:
            self._file = path.open("ab")
            self._file.truncate(whole)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error
        if not whole:
            self._write({"source": get_source_digest()})

    def _read(self) -> int:
        """Take over the answers that the file has; return where the last whole line ends, 0 where none counts."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise OutputError(f"{self.path} cannot be read: {error.strerror}") from error
        end = 0
        for number, line in enumerate(lines):
            said = _parse_line(line)
            if said is None or (number == 0 and said != {"source": get_source_digest()}):
                break
            end += len(line)
            if number:
                self.answers[said["question"]] = said["answer"]
        if lines and not end:
            log.warning("%s is of another version of graphopt, and begun anew", self.path)
        elif self.answers:
            log.warning("%s: %d questions are answered already", self.path, len(self.answers), extra={"plain": True})
        return end

    def add(self, question: str, answer: Mapping[str, Any]) -> None:
        """Keep the answer to a question."""
        self.answers[question] = answer
        self._write({"question": question, "answer": answer})

    def _write(self, said: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(said, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None and not self.keep:
            with suppress(OSError):
                self.path.unlink()


def _parse_line(line: bytes) -> Any:
    """Return what a line says, None for one that is not whole."""
    try:
        said = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return (
        said
        if isinstance(said, dict) and (said.keys() == {"source"} or said.keys() == {"question", "answer"})
        else None
    )
