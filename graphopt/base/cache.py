"""A cache of findings that were expensive: texts under keys, in one SQLite file of the user's.

Several processes may use the file at once. A cache is a convenience: whatever is wrong with it costs a warning, never
the run.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

MAX_ENTRIES = 200_000
"""Entries that are kept, the newest: some fifty megabytes."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait while other processes write."""

_CORRUPTION_CODES = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}
)
"""SQLite's error codes for a file that is no database, is broken, or has another table than this module's."""

_KEYS_PER_QUERY = 500
"""Keys in one question: SQLite has a limit."""

_CREATE = (
    "CREATE TABLE IF NOT EXISTS kept"
    " (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, value TEXT NOT NULL, digest TEXT NOT NULL)"
)

T = TypeVar("T")


class Cache:
    """Texts by key, in a file and in memory: what a process has put in it knows, even where nothing can be kept.

    The file is opened for each question and closed again, so that no handle outlives a fork; and it keeps SQLite's
    ordinary journal, for a write-ahead log works on no network drive.
    """

    def __init__(self, path: Path, most: int = MAX_ENTRIES, *, fresh: bool = False) -> None:
        """Keep texts in a file. A `fresh` cache keeps them, too, but answers only with what was put into it."""
        self.path, self.most, self.fresh = path, most, fresh
        self._known: dict[str, str] = {}
        self._is_disabled = self._has_quarantined = False

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the entries of those keys that have one."""
        wanted = list(dict.fromkeys(keys))
        missing = [key for key in wanted if key not in self._known]
        if missing and not self.fresh and os.path.exists(self.path):  # False also where that may not be asked
            self._known |= self._with_database(lambda connection: _select(connection, missing)) or {}
        return {key: self._known[key] for key in wanted if key in self._known}

    def put(self, entries: Mapping[str, str]) -> None:
        """Keep entries in the place of those that their keys had."""
        self._known |= entries
        if entries:
            self._with_database(lambda connection: self._insert(connection, entries))

    def _insert(self, connection: sqlite3.Connection, entries: Mapping[str, str]) -> None:
        rows = [(key, value, _digest(key, value)) for key, value in entries.items()]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE)
        connection.executemany("INSERT OR REPLACE INTO kept (key, value, digest) VALUES (?, ?, ?)", rows)
        connection.execute("DELETE FROM kept WHERE id <= (SELECT max(id) FROM kept) - ?", (self.most,))
        connection.execute("COMMIT")

    def _with_database(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Work on the file, or on a new one if it is damaged; None where that cannot be."""
        while not self._is_disabled:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with closing(sqlite3.connect(self.path, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
                    connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
                    return work(connection)
            except (OSError, sqlite3.Error, UnicodeDecodeError, _CorruptEntryError) as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # the rest says where
                # SQLite may say that a file is broken in a message that quotes bytes that are no text
                is_damaged = isinstance(error, _CorruptEntryError | UnicodeDecodeError) or code in _CORRUPTION_CODES
                if is_damaged and not self._has_quarantined:
                    self._quarantine(error)
                else:
                    self._disable(error)
        return None

    def _quarantine(self, damage: Exception) -> None:
        """Put the file out of the way. Its journal goes first: SQLite would play it back into the new file."""
        self._has_quarantined = True
        log.warning("%s is set aside, for it is damaged: %s", self.path, damage)
        try:
            self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))
        except FileNotFoundError:
            pass  # another process was quicker
        except OSError as error:
            self._disable(error)

    def _disable(self, error: Exception) -> None:
        self._is_disabled = True
        _warn_unusable(self.path, str(error.strerror or error) if isinstance(error, OSError) else str(error))


@functools.cache
def _warn_unusable(path: Path, reason: str) -> None:
    """Say that a file cannot be used: once, however many models a process optimizes."""
    advice = "GRAPHOPT_CACHE names another folder"
    log.warning("%s cannot be used, so what is found out in this run is not kept: %s; %s", path, reason, advice)


class _CorruptEntryError(Exception):
    """An entry is not what was put there."""


def _digest(key: str, value: str) -> str:
    """Return the digest that tells an entry from one of which a byte was changed: SQLite itself does not look."""
    return sha256(f"{key}\0{value}".encode()).hexdigest()


def _select(connection: sqlite3.Connection, keys: list[str]) -> dict[str, str]:
    """Return the entries of those keys that have one."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'kept'").fetchone():
        return {}  # another process has begun the file, and not yet its table
    found: dict[str, str] = {}
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        some = keys[start : start + _KEYS_PER_QUERY]
        places = ", ".join("?" * len(some))
        for key, value, digest in connection.execute(
            f"SELECT key, value, digest FROM kept WHERE key IN ({places})", some
        ):
            if digest != _digest(key, value):
                raise _CorruptEntryError(f"the entry '{key}' has changed")
            if isinstance(value, str):
                found[key] = value
            else:  # whoever wrote it did not use this module
                log.debug("the entry '%s' of the cache is not used: it is no text", key)
    return found
