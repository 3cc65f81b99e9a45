"""Lines by room: `python -m tests.rooms` prints the table, and fails where a file is too long for a reader.

`python -m tests.rooms --write` puts the picture of the rooms into ARCHITECTURE.md; a test says when it is stale.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

CORE = ("base", "expr", "ir", "operators", "language", "rewrite")
"""What one reads to know the compiler."""

ORDER = (
    *(
        "base",
        "expr",
        "ir",
        "language",
        "rules",
        "operators",
        "verifier",
        "io",
        "rewrite",
        "autodiff",
        "runtime",
        "check",
        "search",
    ),
    *("partition", "report", "discover", "cli"),
)
"""The rooms as one reads them: each imports from those before it; rules and the verifier know the language alone."""

LONGEST = 900


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


# -- the picture in ARCHITECTURE.md ------------------------------------------------------------------------------------

PAGE = ROOT / "ARCHITECTURE.md"
DOORS = {"rule": "language", "term": "language"}
"""Modules that only hand on the names of a room."""
MARKS = "<!-- rooms -->", "<!-- /rooms -->"


def uses(room: str, paths: Iterable[Path]) -> set[str]:
    """Return the other rooms that the modules of a room import, without those two that are composed lazily."""
    found: set[str] = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {
                DOORS.get(name.split(".")[1], name.split(".")[1]) for name in names if name.startswith("graphopt.")
            }
    return (found & rooms().keys()) - {room, "rules", "verifier"}


def picture() -> str:
    """Return a table of the rooms: each with what it knows, the first words of its docstring, and what it imports."""
    order = [name for name in ORDER if name in rooms() and name != "above"]
    rows = ["| room | what it knows | imports |", "| --- | --- | --- |"]
    for name in order:
        door = ROOT / ("graphopt" if (ROOT / "graphopt" / name).is_dir() else "") / name / "__init__.py"
        about = (ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
        imports = sorted(uses(name, rooms()[name]), key=order.index)
        rows.append(f"| `{name}` | {' '.join(about.split())} | {', '.join(imports)} |")
    return "\n".join(rows)


def page() -> str:
    """Return ARCHITECTURE.md with the picture as it is now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{picture()}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def too_long() -> list[str]:
    """The files that are longer than they may be, one sentence each."""
    others = (path for folder in ("benchmarks", "tests") for path in sorted((ROOT / folder).rglob("*.py")))
    others = (path for path in others if ".cache" not in path.parts)  # packages that are unpacked for the benchmark
    paths = [*(path for found in rooms().values() for path in found), *others]
    return [
        f"{path.relative_to(ROOT).as_posix()} has {lines(path)} lines, more than {LONGEST}: it knows two things"
        for path in paths
        if lines(path) > LONGEST
    ]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    print("\n".join(table()))
    sys.exit("\n".join(too_long()) or 0)
