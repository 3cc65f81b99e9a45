"""Tools that a model goes to after graphopt, and the rewrites that would hide from them what they look for.

`neighbours.json` is data: `python -m benchmarks neighbours` finds it by running these tools on what graphopt makes of
the fixtures, with and without each rewrite.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("neighbours.json")

NEIGHBOURS = ("ort-transformers", "quantization")
"""ONNX Runtime's optimizer of transformers (`onnxruntime.transformers.optimizer`), and `onnxruntime.quantization`."""


def held_back_for(tools: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the rules and passes that are not applied before some of the `NEIGHBOURS`."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(dict.fromkeys(name for tool in tools for name in data[tool]["held_back"]))
