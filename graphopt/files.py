"""Writing a file whole or not at all; where files of the user's are kept."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


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


def cache_folder() -> Path:
    """Where what was once found out is kept; the variable `GRAPHOPT_CACHE` names another folder than the system's."""
    named = os.environ.get("GRAPHOPT_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    return user_cache_path("graphopt", appauthor=False)
