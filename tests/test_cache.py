"""What is kept between runs: it may be lost, and no run is lost for it."""

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graphopt.base.cache import Cache


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "costs.sqlite"


def test_entries_are_kept_and_replaced(path: Path) -> None:
    Cache(path).put({"a": "1", "b": "2"})
    Cache(path).put({"b": "3"})
    Cache(path).put({})
    assert Cache(path).get(["b", "a", "c", "a"]) == {"b": "3", "a": "1"}


def test_a_fresh_one_knows_nothing_of_others_and_keeps_what_it_is_given(path: Path) -> None:
    Cache(path).put({"a": "1", "b": "1"})
    fresh = Cache(path, fresh=True)
    assert fresh.get(["a", "b"]) == {}
    fresh.put({"a": "2"})
    assert fresh.get(["a", "b"]) == {"a": "2"}
    assert Cache(path).get(["a", "b"]) == {"a": "2", "b": "1"}


def test_there_may_be_many(path: Path) -> None:
    entries = {f"key {number}": str(number) for number in range(2000)}
    Cache(path).put(entries)
    assert Cache(path).get(entries) == entries


def test_the_oldest_go_first(path: Path) -> None:
    cache = Cache(path, most=10)
    for number in range(25):
        cache.put({str(number): "x"})
    assert list(Cache(path).get(map(str, range(25)))) == [str(number) for number in range(15, 25)]


@pytest.mark.slow
def test_two_processes_write_at_once(path: Path) -> None:
    code = """
import sys
from pathlib import Path
from graphopt.base.cache import Cache
for number in range(60):
    Cache(Path(sys.argv[1])).put({f"{sys.argv[2]} {number}": sys.argv[2], "both": sys.argv[2]})
"""
    command = [sys.executable, "-c", code, str(path)]
    writers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True) for name in "ab"]
    assert [writer.communicate(timeout=120)[1] for writer in writers] == ["", ""]
    expected = {f"{name} {number}": name for name in "ab" for number in range(60)}
    assert Cache(path).get(expected) == expected
    assert Cache(path).get(["both"])["both"] in ("a", "b")


@pytest.mark.parametrize("damage", ["garbage", "broken", "a schema of no letters", "another table"])
def test_a_damaged_file_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    Cache(path).put({f"key {number}": "x" * 100 for number in range(200)})
    journal = path.with_name(f"{path.name}-journal")
    match damage:
        case "garbage":
            path.write_text("this is no database\n" * 1000)
            journal.write_text("nor is this its journal")
        case "broken":
            path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 20_000)
        case "a schema of no letters":  # SQLite quotes it in its message, which Python cannot decode then
            path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CRE\xffTE TABLE"))
        case "another table":
            path.unlink()
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE kept (other)")
    cache = Cache(path)
    assert cache.get(["key 1"]) == {}
    cache.put({"a": "1"})
    assert Cache(path).get(["a"]) == {"a": "1"}
    assert path.with_name(f"{path.name}.damaged").exists()
    assert not journal.exists()
    assert caplog.text.count("is set aside, for it is damaged") == 1


@pytest.mark.parametrize(
    "change",
    [
        "value = CAST(x'ff80' AS TEXT)",
        "value = '3'",
        "value = 3",
        "value = x'32'",
        "digest = ''",
        "key = 'b', value = 'x'",
    ],
)
def test_an_entry_that_has_changed_is_not_believed(path: Path, caplog: pytest.LogCaptureFixture, change: str) -> None:
    Cache(path).put({"a": "2"})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE kept SET {change}")
    cache = Cache(path)
    assert cache.get(["a", "b"]) == {}
    cache.put({"a": "4"})
    assert Cache(path).get(["a"]) == {"a": "4"}
    assert caplog.text.count("is set aside, for it is damaged") == len(caplog.messages) == 1


@pytest.mark.slow
def test_no_byte_that_changes_makes_another_entry_or_an_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    entries = {f"key {number}": f"value {number}" for number in range(30)}
    Cache(path).put(entries)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        caplog.clear()
        cache = Cache(path)
        assert cache.get(entries).items() <= entries.items()
        cache.put({"new": "1"})
        assert cache.get([*entries, "new"]).items() <= (entries | {"new": "1"}).items()
        assert len(caplog.messages) <= 1


def test_a_file_that_another_process_has_begun_is_no_damage(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert Cache(path).get(["a"]) == {}
    assert path.exists()


def opened_with(monkeypatch: pytest.MonkeyPatch, mode: str, *pragmas: str) -> None:
    """From now on, files of SQLite are opened in a mode, with some statements first."""
    original = sqlite3.connect

    def connect(path: Path, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = original(f"{path.as_uri()}?mode={mode}", uri=True, **options)
        for pragma in pragmas:
            connection.execute(pragma)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.parametrize(
    ("mode", "pragma", "why"), [("ro", "", "readonly"), ("rw", "PRAGMA max_page_count = 1", "full")]
)
def test_where_nothing_can_be_kept_the_run_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str, pragma: str, why: str
) -> None:
    Cache(path).put({"a": "1"})
    opened_with(monkeypatch, mode, *([pragma] if pragma else []))
    cache = Cache(path)
    assert cache.get(["a"]) == {"a": "1"}
    cache.put({f"key {number}": "x" * 1000 for number in range(50)})
    cache.put({"b": "2"})
    assert cache.get(["a", "b", "key 7"]) == {"a": "1", "b": "2", "key 7": "x" * 1000}
    (warning,) = caplog.messages
    assert why in warning
    assert "is not kept" in warning
    assert Cache(path).get(["b"]) == {}


def test_each_of_many_models_meets_an_unusable_file_and_one_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for _ in range(3):
        Cache(tmp_path / "file" / "costs.sqlite").put({"a": "1"})
    (warning,) = caplog.messages
    assert "costs.sqlite cannot be used" in warning


def test_who_writes_for_too_long_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Cache(path).put({"a": "1"})
    monkeypatch.setattr("graphopt.base.cache.LOCK_TIMEOUT", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert Cache(path).get(["a"]) == {}
    assert "locked" in caplog.text
    assert Cache(path).get(["a"]) == {"a": "1"}
