"""The lowest versions that pyproject.toml allows: `python -m tests.lowest_versions` prints them as constraints for pip.

With them `pip install -c constraints.txt -e ".[test]"` installs just these versions, as `.ci/run` does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def constraints(project: dict[str, Any]) -> list[str]:
    """Return a pin to the lower bound of each requirement of the project and of the tests.

    Raises:
        ValueError: a requirement is not a name and a lower bound alone.
    """
    extras, own = project["optional-dependencies"], re.compile(rf"{project['name']}\[([\w,]+)\]")
    required, waiting = [*project["dependencies"]], ["test"]
    while waiting:
        for line in extras[waiting.pop()]:
            if named := own.fullmatch(line):
                waiting += named[1].split(",")
            else:
                required.append(line)
    return sorted(set(map(pin, required)))


def pin(requirement: str) -> str:
    """Return the requirement of the lower bound itself."""
    found = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement} is not a name and a lower bound")
    return f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    with (ROOT / "pyproject.toml").open("rb") as file:
        sys.stdout.writelines(f"{line}\n" for line in constraints(tomllib.load(file)["project"]))
