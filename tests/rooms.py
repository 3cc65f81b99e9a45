"""Lines by room: `python -m tests.rooms` prints the table, and fails where a file is too long for a reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

CORE = ("base", "ir", "operators", "language", "rewrite")
"""What one reads to know the compiler."""

LONGEST = 600


def rooms() -> dict[str, list[Path]]:
    """The files of each room; what stands above the rooms is `above`."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "graphopt").rglob("*.py")):
        parts = path.relative_to(ROOT / "graphopt").parts
        if parts[0] not in ("rules", "verifier"):
            found.setdefault(parts[0] if len(parts) > 1 else "above", []).append(path)
    for name in ("rules", "verifier"):
        found[name] = sorted((ROOT / name).glob("*.py"))
    return found


def lines(path: Path) -> int:
    """Code, comments and blanks."""
    return len(path.read_text(encoding="utf-8").splitlines())


def table() -> Iterator[str]:
    """Room by room: its lines, its files, the longest of them."""
    counts = {room: {path: lines(path) for path in paths} for room, paths in rooms().items()}
    yield f"{'room':<12}{'lines':>8}{'files':>8}   longest"
    for room, files in counts.items():
        longest = max(files, key=lambda path: files[path])
        yield f"{room:<12}{sum(files.values()):>8}{len(files):>8}   {longest.name} {files[longest]}"
    totals = {room: sum(files.values()) for room, files in counts.items()}
    yield ""
    yield f"{'the core':<12}{sum(totals[room] for room in CORE):>8}   {' '.join(CORE)}"
    compiler = sum(count for room, count in totals.items() if room not in ("rules", "verifier"))
    yield f"{'graphopt':<12}{compiler:>8}   without rules and verifier"


def too_long() -> list[str]:
    """The files that are longer than they may be, one sentence each."""
    others = (path for folder in ("benchmarks", "tests") for path in sorted((ROOT / folder).rglob("*.py")))
    paths = [*(path for found in rooms().values() for path in found), *others]
    return [
        f"{path.relative_to(ROOT).as_posix()} has {lines(path)} lines, more than {LONGEST}: it knows two things"
        for path in paths
        if lines(path) > LONGEST
    ]


if __name__ == "__main__":
    print("\n".join(table()))
    sys.exit("\n".join(too_long()) or 0)
