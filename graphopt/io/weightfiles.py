"""The files of weights beside a model: what they are called, and when one may go."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from graphopt.base import files
from graphopt.base.errors import OutputError

LARGEST_MODEL = 1 << 31
"""Bytes from which on a file is no model, so that nothing is looked for in it."""
CHUNK = 1 << 24


def plain(target: Path) -> Path:
    """Where the weights of a new model go."""
    return target.with_name(f"{target.name}.data")


def check(path: Path) -> None:
    """Raise OutputError where weights beside a model would have too long a name, or be missed: it is a link
    elsewhere."""
    target = files.real(path)
    files.check_name(plain(target))
    if path.is_symlink() and target.parent != Path(os.path.realpath(path.parent)):
        raise OutputError(
            f"{path} cannot be written: it is a link to {target}, and its weights would be missed beside the link: "
            "give a file in another folder"
        )


def place(target: Path, weights: BinaryIO) -> Path:
    """Where these weights of a model go: a file that is not there yet, or has the same bytes.

    So a name means the same weights to all who read the model, now or before. Its folder is to be `exclusive`.
    """
    for path in _names(target, weights):
        if not os.path.lexists(path) or _have_same_bytes(path, Path(weights.name)):
            return path
    raise OutputError(f"{target} cannot be written: there are other weights in the file that is named by the new ones")


def _names(target: Path, weights: BinaryIO) -> Iterator[Path]:
    first = plain(target)
    if first.exists() or not target.exists():  # else somebody may have read a model that means others by it
        yield first
    digest = _digest(weights.name)
    yield target.with_name(f"{target.name}.{digest[:12]}.data")
    yield target.with_name(f"{target.name}.{digest}.data")


def _digest(path: str) -> str:
    """Return the digest of a file, whose holes are not read."""
    from graphopt.operators import protos  # only now: --help loads no onnx

    digest = sha256()
    with FileIO(path) as file:
        for chunk in protos.chunks(file, 0, os.fstat(file.fileno()).st_size):
            digest.update(chunk)
    return digest.hexdigest()


def _have_same_bytes(one: Path, other: Path) -> bool:
    if one.is_symlink() or not one.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while chunk := left.read(CHUNK):
            if chunk != right.read(CHUNK):
                return False
    return True


def is_beside(path: Path, target: Path) -> bool:
    """Return whether a path is where graphopt puts weights of a model: in its folder, with a name as they have."""
    target = files.real(target)
    is_there = os.path.realpath(path.parent) == os.path.realpath(target.parent)
    return is_there and _ours(target).fullmatch(path.name) is not None


def _ours(target: Path) -> re.Pattern[str]:
    """Names as graphopt gives to weights of a model."""
    return re.compile(rf"{re.escape(target.name)}(\.[0-9a-f]{{12}}|\.[0-9a-f]{{64}})?\.data")


def superseded(target: Path, kept: str) -> list[Path]:
    """Return the files that held the weights of a model which is about to be replaced, and that nothing mentions
    besides.

    Only those that have a name as graphopt gives to weights of that model, and are no links. Whatever other file of
    the folder has the name in it, even by chance, keeps the file. The folder is to be `exclusive`.
    """
    ours = _ours(target)
    if not target.is_file():
        return []
    with os.scandir(target.parent) as entries:
        plain_files = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    owned = {name for name in plain_files if ours.fullmatch(name)}
    found = [name for name in sorted(owned - {kept}) if _mentions(target, name)]
    others = [target.with_name(name) for name in plain_files - owned - {target.name}]
    return [target.with_name(name) for name in found if not any(_mentions(other, name) for other in others)]


def _mentions(path: Path, name: str) -> bool:
    """Return whether a name is in a file; taken for granted of one that cannot be read."""
    sought = name.encode()
    try:
        if path.stat().st_size >= LARGEST_MODEL:
            return False
        with path.open("rb") as file:
            end = b""
            while chunk := file.read(CHUNK):
                if sought in end + chunk:
                    return True
                end = chunk[-len(sought) :]
    except OSError:
        return True
    return False


def remove(paths: Iterable[Path]) -> None:
    """Remove what is superseded; what cannot be removed is in nobody's way."""
    for path in paths:
        with suppress(OSError):
            path.unlink()
