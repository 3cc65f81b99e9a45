"""What was found out at some expense and is worth keeping: texts under keys, in one SQLite file of the user's.

Several processes may use the file at once. A cache is a convenience: whatever is wrong with it costs a warning, never
the run.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

MOST = 200_000
"""Entries that are kept, the newest: some fifty megabytes."""

PATIENCE = 10.0
"""Seconds to wait while other processes write."""

TRIES = 3
"""Files that are tried, the damaged ones among them, before a cache is given up."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""How SQLite says that a file is no database, or broken, or that its table is another than this module's."""

_AT_ONCE = 500
"""Keys in one question: SQLite has a limit."""

Found = TypeVar("Found")


class Cache:
    """Texts by key, in a file and in memory: what a process has put in it knows, even where nothing can be kept.

    The file is opened for each question and closed again, so that no handle outlives a fork; and it keeps SQLite's
    ordinary journal, for a write-ahead log works on no network drive.
    """

    def __init__(self, path: Path, most: int = MOST, *, fresh: bool = False) -> None:
        """A `fresh` one asks the file for nothing: it knows what was put into it, and keeps that as any other."""
        self.path, self.most, self.fresh = path, most, fresh
        self._known: dict[str, str] = {}
        self._given_up = False

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """The entries of those keys that have one."""
        wanted = list(dict.fromkeys(keys))
        missing = [key for key in wanted if key not in self._known]
        if missing and not self.fresh and os.path.exists(self.path):  # False also where that may not be asked
            nothing: dict[str, str] = {}
            self._known |= self._with_file(lambda connection: _selected(connection, missing), nothing)
        return {key: self._known[key] for key in wanted if key in self._known}

    def put(self, entries: Mapping[str, str]) -> None:
        """Keep entries in the place of those that their keys had."""
        self._known |= entries
        if entries:
            self._with_file(lambda connection: self._insert(connection, entries), None)

    def _insert(self, connection: sqlite3.Connection, entries: Mapping[str, str]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL)"
        )
        connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", entries.items())
        connection.execute("DELETE FROM entries WHERE id <= (SELECT max(id) FROM entries) - ?", (self.most,))
        connection.execute("COMMIT")

    def _with_file(self, work: Callable[[sqlite3.Connection], Found], otherwise: Found) -> Found:
        """Work on the file, or on a new one if it is damaged; `otherwise` where that cannot be."""
        tries = 0 if self._given_up else TRIES
        for left in reversed(range(tries)):
            identity = None
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                identity = _identity(self.path)
                with closing(sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)) as connection:
                    connection.text_factory = _text
                    return work(connection)
            except (OSError, sqlite3.Error) as error:
                if not (left and identity and _is_damage(error) and self._set_aside(identity, error)):
                    self._give_up(error)
                    break
        return otherwise

    def _set_aside(self, identity: tuple[int, int], error: Exception) -> bool:
        """Put a damaged file out of the way, unless another process was quicker; False where that cannot be.

        Its journal goes first: SQLite would play it back into the new file.
        """
        try:
            if _identity(self.path) == identity:
                log.warning("%s is set aside, for it is damaged: %s", self.path, error)
                self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
                self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _give_up(self, error: Exception) -> None:
        self._given_up = True
        log.warning("%s cannot be used, so what is found out in this run is not kept: %s", self.path, error)


def _selected(connection: sqlite3.Connection, keys: list[str]) -> dict[str, str]:
    """Another process may have begun the file, and not yet its table."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
        return {}
    found: dict[str, str] = {}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        places = ", ".join("?" * len(some))
        found |= connection.execute(f"SELECT key, value FROM entries WHERE key IN ({places})", some).fetchall()
    return found


def _text(data: bytes) -> str:
    """An entry that is no text is as good as any other that makes no sense; an error would close the file for good."""
    return data.decode(errors="replace")


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from another that takes its name; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & 0xFF in _DAMAGED  # the rest of an extended code says where it was seen
