"""The files of weights beside a model: their names, and when one may be removed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from graphopt.base import files
from graphopt.base.errors import OutputError
from graphopt.base.records import DECODE_ERRORS, from_json

MAX_MODEL_BYTES = 1 << 31
"""Bytes from which on a file is no model, so that nothing is looked for in it."""
CHUNK_BYTES = 1 << 24


def default_weight_path(target: Path) -> Path:
    """Return the file for the weights of a new model."""
    return target.with_name(f"{target.name}.data")


def check_weight_path(path: Path) -> None:
    """Raise OutputError where the name of the weights would be too long, or where they would be missed beside a
    link."""
    target = files.resolve_target(path)
    files.check_name(default_weight_path(target))
    if path.is_symlink() and target.parent != Path(os.path.realpath(path.parent)):
        raise OutputError(
            f"{path} cannot be written: it is a link to {target}, and its weights would be missed beside the link: "
            "give a file in another folder"
        )


def weight_path(target: Path, weights: BinaryIO) -> Path:
    """Return the file for these weights of a model: one that is not there yet, or has the same bytes.

    So a name means the same weights to all who read the model, now or before. The caller holds `folder_lock`.
    """
    for path in _candidate_names(target, weights):
        if not os.path.lexists(path) or _have_same_bytes(path, Path(weights.name)):
            return path
    raise OutputError(f"{target} cannot be written: there are other weights in the file that is named by the new ones")


def _candidate_names(target: Path, weights: BinaryIO) -> Iterator[Path]:
    first = default_weight_path(target)
    if first.exists() or not target.exists():  # else somebody may have read a model that means others by it
        yield first
    digest = _file_digest(weights.name)
    yield target.with_name(f"{target.name}.{digest[:12]}.data")
    yield target.with_name(f"{target.name}.{digest}.data")


def _file_digest(path: str) -> str:
    """Return the digest of a file, whose holes are not read."""
    from graphopt.operators import proto_conversion  # only now: --help loads no onnx

    digest = sha256()
    with FileIO(path) as file:
        for chunk in proto_conversion.file_chunks(file, 0, os.fstat(file.fileno()).st_size):
            digest.update(chunk)
    return digest.hexdigest()


def _have_same_bytes(one: Path, other: Path) -> bool:
    if one.is_symlink() or not one.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while chunk := left.read(CHUNK_BYTES):
            if chunk != right.read(CHUNK_BYTES):
                return False
    return True


def is_weight_path(path: Path, target: Path) -> bool:
    """Return whether graphopt may put weights of a model there: in its folder, under a name as they have."""
    target = files.resolve_target(target)
    is_there = os.path.realpath(path.parent) == os.path.realpath(target.parent)
    return is_there and _weight_name_pattern(target).fullmatch(path.name) is not None


def _weight_name_pattern(target: Path) -> re.Pattern[str]:
    """Return the pattern of names that graphopt gives to weights of a model."""
    return re.compile(rf"{re.escape(target.name)}(\.[0-9a-f]{{12}}|\.[0-9a-f]{{64}})?\.data")


@contextmanager
def replacing_weights(target: Path, kept: str, new: BinaryIO | None, parts: Iterable[BinaryIO]) -> Iterator[None]:
    """Let a model be replaced in the block; weights that are mentioned no longer are removed after it.

    Only files that the old model mentions, that have a name as graphopt gives to weights of that model, and that are no
    links are removed; where the block fails, the new weights instead. A file stays if any other in the folder has its
    name in it, even by chance. What is to go is noted first in a file beside the model, so that the next save can
    remove what a killed one has left. The caller holds `folder_lock`.

    Args:
        target: the model.
        kept: the name of the file that the new model has its weights in, empty where it has them itself.
        new: what becomes that file in the block; None where it is there already.
        parts: the files that take their places in the block.
    """
    for final in (target, default_weight_path(target)):  # parts that were killed since this save began mention weights
        files.remove_stale(final)
    abandoned, spared = _read_notes(target)
    going = {path.name: _identity_of(path.lstat()) for path in _mentioned_weights(target, {kept, *spared})}
    for note in abandoned.values():  # what the block is to keep is left, too, until it is done
        going |= {name: known for name, known in note.going.items() if name not in {*spared, *going}}
    if new is not None:
        going[kept] = _identity_of(os.fstat(new.fileno()))
    note = _CleanupNote(kept, going)
    unread = {Path(part.name).name for part in parts}
    path = target.with_name(f".{target.name}.{os.urandom(6).hex()}{NOTE_SUFFIX}")
    with files.locked_marker(path, json.dumps(asdict(note)).encode()) if going or kept else nullcontext():
        try:
            yield
            going.pop(kept, None)
            unread.add(target.name)
        finally:
            _remove_unmentioned(target, going, unread)
            for left in abandoned:
                with suppress(OSError):
                    left.unlink()


NOTE_SUFFIX = ".drop"
"""Suffix of notes; no longer than that of temporary files, for which there is room."""


@dataclass(frozen=True)
class _CleanupNote:
    """Note of what a process is about to do to the weights of a model."""

    kept: str
    going: dict[str, tuple[int, ...]]
    """Identities, by name, of the files that go where nothing mentions them: a file with another is not meant."""


def _read_notes(target: Path) -> tuple[dict[Path, _CleanupNote], set[str]]:
    """Return the notes of processes that are gone, and the files of weights that living ones need or will remove."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}{re.escape(NOTE_SUFFIX)}")
    abandoned: dict[Path, _CleanupNote] = {}
    spared: set[str] = set()
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in os.listdir(target.parent) if ours.fullmatch(name)]
    for path in map(target.with_name, names):
        note = _read_note(path, _weight_name_pattern(target))
        if note is not None and files.is_abandoned(path):
            abandoned[path] = note
        elif note is not None:
            spared |= {note.kept, *note.going}
    return abandoned, spared


def _read_note(path: Path, ours: re.Pattern[str]) -> _CleanupNote | None:
    """Return a note, an empty one where its process was killed before it wrote it; None where the file is no note."""
    if path.is_symlink():
        return None
    try:
        text = path.read_bytes()
        note = from_json(_CleanupNote, text.decode()) if text else _CleanupNote("", {})
    except (OSError, *DECODE_ERRORS):
        return None
    return note if all(map(ours.fullmatch, note.going)) else None


def _identity_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mentioned_weights(target: Path, spared: Container[str]) -> list[Path]:
    """Return the files of weights that a model mentions and graphopt has named, but those that are `spared`."""
    if not target.is_file():
        return []
    found = [
        name
        for name in _plain_files(target.parent)
        if _weight_name_pattern(target).fullmatch(name) and name not in spared
    ]
    return [target.with_name(name) for name in found if _mentions(target, name)]


def _plain_files(folder: Path) -> list[str]:
    """Return the names of the files of a folder that are no links, in order."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))


def _remove_unmentioned(target: Path, going: Mapping[str, tuple[int, ...]], unread: Container[str]) -> None:
    """Remove those files of weights that may go and that no other file of the folder mentions; one that cannot be
    removed stays."""
    ours = _weight_name_pattern(target)
    with suppress(OSError):
        there = _plain_files(target.parent) if going else []
        weights = [
            name for name in there if name in going and _identity_of(target.with_name(name).lstat()) == going[name]
        ]
        others = [name for name in there if not (ours.fullmatch(name) or name.endswith(NOTE_SUFFIX) or name in unread)]
        for name in weights:
            if not any(_mentions(target.with_name(other), name) for other in others):
                target.with_name(name).unlink()


def _mentions(path: Path, name: str) -> bool:
    """Return whether a name is in a file; True for a file that cannot be read."""
    sought = name.encode()
    try:
        if path.stat().st_size >= MAX_MODEL_BYTES:
            return False
        with path.open("rb") as file:
            end = b""
            while chunk := file.read(CHUNK_BYTES):
                if sought in end + chunk:
                    return True
                end = chunk[-len(sought) :]
    except OSError:
        return True
    return False
