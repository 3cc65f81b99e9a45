"""One stage in ONNX Runtime: what it takes of the values of a request, what it makes, and the identity of its file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from graphopt.io import onnx_io


def stage_feeds(session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that a session takes, also in the place of defaults."""
    taken = (*session.get_inputs(), *session.get_overridable_initializers())
    return {each.name: values[each.name] for each in taken if each.name in values}


def run_stage(session: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a session, by name, on those of the values that it takes."""
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, stage_feeds(session, values)), strict=True))


def stage_files(path: Path) -> list[Path]:
    """Return the file of a stage, and that of its weights if they lie in one of their own."""
    return [path, *sorted(onnx_io.data_files(path) & {*path.parent.iterdir()})]


def stage_digest(path: Path) -> str:
    """Return the SHA-256 of a stage, and of its weights behind it if they lie in a file of their own."""
    digest = sha256()
    for file in stage_files(path):
        with file.open("rb") as opened:
            file_digest(opened, lambda: digest)
    return digest.hexdigest()
