"""Two tiers of tests: plain `pytest` runs the quick one; `pytest -m slow` runs the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def sampled(cases: Iterable[Any], every: int, ids: Callable[[Any], str] | None = None) -> list[ParameterSet]:
    """Return the cases of a large family: of so many one is quick, and the others are slow."""
    return [
        pytest.param(case, id=ids and ids(case), marks=pytest.mark.slow if number % every else ())
        for number, case in enumerate(cases)
    ]
