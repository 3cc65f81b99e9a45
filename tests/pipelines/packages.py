"""What a pipeline needs, and the examples of its page."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip where a module is missing; warnings of these packages are not graphopt's."""
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


IGNORE_WARNINGS = pytest.mark.filterwarnings("ignore")
"""The packages of others warn of each other, and of what they deprecate themselves."""


def example(page: str, word: str, language: str = "python") -> str:
    """Return the block of a page of the documentation that has a word in it."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found
