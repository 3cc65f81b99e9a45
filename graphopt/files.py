"""Writing a file whole or not at all; where files of the user's are kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphopt.errors import OutputError


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename; a device or pipe takes the text as it comes.

    Two processes or threads may write the same file: one of the two texts will be in it.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Fail before the work, not after it.

    Raises:
        OutputError: the file cannot be written; says why.
    """
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: {folder} is {'no folder' if folder.exists() else 'missing'}")
    if path.is_dir():
        raise OutputError(f"{path} cannot be written: it is a folder")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: {folder} is read-only")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file where it cannot be written after all.

    Raises:
        OutputError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def cache_folder() -> Path:
    """Where what was once found out is kept; the variable `GRAPHOPT_CACHE` names another folder than the system's."""
    named = os.environ.get("GRAPHOPT_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("graphopt", appauthor=False)
