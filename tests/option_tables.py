"""The table of options in docs/command-line.md: `python -m tests.option_tables` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphopt.base.option_fields import flags_of, iter_options
from graphopt.cli.option_flags import FolderOptions, ResultOptions
from graphopt.options import Options

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"
MARKS = "<!-- options -->", "<!-- /options -->"


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield how an option is given in a shell and in Python, and what it means."""
    for kind in (Options, ResultOptions, FolderOptions):
        for field, said in iter_options(kind):
            flags = [f"`{flag}{f' {said.metavar}' if said.metavar else ''}`" for flag in flags_of(field.name, said)]
            python = f"`{field.name}={field.default!r}`" if kind is Options else ""
            yield ", ".join(flags) if said.in_shell else "", python, " ".join(filter(None, (said.help, said.more)))


def table() -> str:
    lines = [("in a shell", "in Python, with its default", "what it means"), ("---", "---", "---"), *rows()]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in escaped)


def page() -> str:
    """Return docs/command-line.md with the table as it is now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
