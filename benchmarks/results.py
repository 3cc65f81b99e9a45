"""Result files: JSON Lines, a row for each model, tool and setting; what is in brackets may be missing.

Each row says what was measured and how::

    {"model": "resnet50.dynamo", "tool": "graphopt", "setting": "cpu-1",
     "made": {"machine": "processor (flags), 8 cores, 33 GB, Linux", ["gpu": "name",] "date": "2026-11-22",
              "versions": {package: version}, "file": "hash of the model's file",
              ["graphopt": "v0.1.0-3-g61652aa", "sources": "hash of its sources and proofs",]
              "seconds": 2.0, ["search": 60.0]},  # limits of the timing and of the search

The row of an outcome goes on with::

     "seconds": 1.2, "memory_mb": 120, "nodes": 100, "bytes": 900,
     ["error": "why the tool or its outcome does not run",] ["wrong": "how the outputs differ",]
     ["search": {"stop": "all of it was looked at", "regions": 4, "copies": 8, "states": 28, "trials": 12,
                 "timed": true, "notes": ["..."]},]
     ["difference": 1e-7, "loading": 1.0,]
     ["timing": {"minimum": 1.1, "median": 1.1, "low": 1.05, "high": 1.15, "processes": [1.09, 1.1, 1.12],
                 "rounds": 180, "spread": 0.02, "verdict": "faster", ["confidence": 0.99, "noise": 0.01]}]}

and the row of the original, whose tool is `original`, with::

     "family": "ResNet", "quantized": "", "exporters": {package: version},
     ["package": "magika==1.0.3",]  # empty for a file that was given
     ["opset": 20, "nodes": 122, "bytes": 1000,] ["error": "no export, it does not run, or no input moves its outputs",]
     ["minimum_ms": 1.0, "median_ms": 1.1, "spread": 0.02, "headroom": 1.2,]}

Outcomes with the bytes of another one have its check and its timing. `openvino` is the original in another engine,
timed in turns with ONNX Runtime: there is no file, and its seconds are those of compiling.

A setting is a provider and the number of threads, like `cpu-1` or `cpu-all`. `headroom` is the time in all kernels as
a multiple of that in convolutions and matrix products; it is null on devices and where there are none of these.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.environment import one_line
from benchmarks.tools import ALL, PLAIN
from graphopt.base import files
from graphopt.base.errors import UsageError

Row: TypeAlias = dict[str, Any]

FOLDER = Path(__file__).parent / "results"
ORIGINAL = "original"

_NAMES = {"openvino": "OpenVINO", "tensorrt": "TensorRT"}
"""Providers that are not written in capitals."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is none.

    Raises:
        UsageError: the file holds something else.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error)}") from error
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], page: str = "") -> None:
    """Write rows, a line each, and the page beside them if there is one; the file of rows appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
    if page:
        path.with_suffix(".md").write_text(page, encoding="utf-8")


def digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a hash of rows, by which a picture tells of which results it is."""
    return hashlib.sha256(json.dumps([*rows], sort_keys=True).encode()).hexdigest()[:16]


def values(rows: Iterable[Row], *path: str) -> list[Any]:
    """Return the different values that the rows have at a path of keys, such as `made`, `machine`."""
    return sorted({value for row in rows if (value := _at(row, path)) is not None})


def versions(rows: Sequence[Row], *path: str) -> dict[str, str]:
    """Return the versions of each package in the rows; several are separated by a slash."""
    packages = {package for row in rows for package in _at(row, path) or ()}
    return {package: "/".join(values(rows, *path, package)) for package in sorted(packages)}


def _at(row: Row, path: Sequence[str]) -> Any:
    """Return the value at a path of keys; None where there is none."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


LIMITS_BEFORE = {"confidence": 0.95, "noise": 0.02}
"""Limits of the verdicts in rows that do not say them."""


@dataclass(frozen=True)
class Results:
    """Rows of a result file; the docstring of the module describes them."""

    rows: tuple[Row, ...]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results in a file.

        Raises:
            UsageError: there is no such file, or it is something else.
        """
        rows: list[Any] = read_rows(path)
        keys = {"model", "tool", "setting", "made"}
        if not rows or not all(isinstance(row, dict) and row.keys() >= keys for row in rows):
            what = "is not a result file of `python -m benchmarks run`" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}")
        return cls(tuple(rows))

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Row]:
        return {(row["model"], row["tool"], row["setting"]): row for row in self.rows}

    def limits(self, name: str) -> list[float]:
        """Return the `confidence` or the `noise` of verdicts, which may differ between rows."""
        return sorted({row["timing"].get(name, LIMITS_BEFORE[name]) for row in self.rows if "timing" in row})

    @cached_property
    def models(self) -> dict[str, Row]:
        """The rows of the originals, in their first setting."""
        found: dict[str, Row] = {}
        for row in self.rows:
            if row["tool"] == ORIGINAL:
                found.setdefault(row["model"], row)
        return found

    @cached_property
    def settings(self) -> list[str]:
        """Settings in which something was measured."""
        return list(dict.fromkeys(row["setting"] for row in self.rows))

    @cached_property
    def tools(self) -> list[str]:
        """Tools that were run, in the order of `ALL`; a copy is the work of none."""
        found = {row["tool"] for row in self.rows}
        return [tool for tool in ALL if tool in found and tool != PLAIN]

    def get(self, model: str, tool: str, setting: str) -> Row:
        """Return a row; empty if there is none."""
        return self._by_key.get((model, tool, setting), {})

    def outcomes(self, tool: str, setting: str) -> list[Row]:
        """Return the rows of a tool in a setting, in the order of the models."""
        return [row for model in self.models if (row := self.get(model, tool, setting))]

    def timings(self, tool: str, setting: str) -> dict[str, Row]:
        """Return the timings of a tool's outcomes that are right, by model."""
        return {row["model"]: row["timing"] for row in self.outcomes(tool, setting) if "timing" in row}

    def failures(self) -> Iterator[Row]:
        """Yield the rows with an error, or of a wrong outcome."""
        yield from (row for row in self.rows if reason(row) and row["tool"] in (ORIGINAL, *ALL))


def reason(row: Row) -> str:
    """Return what is wrong with an outcome or an original; empty if nothing is."""
    return str(row.get("error") or row.get("wrong", ""))


def setting_text(setting: str) -> str:
    """Return a setting as a reader is told of it: `CPU, 1 thread`."""
    provider, _, threads = setting.partition("-")
    return f"{_NAMES.get(provider, provider.upper())}, " + ("1 thread" if threads == "1" else f"{threads} threads")


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    numbers = list(numbers)
    return statistics.geometric_mean(numbers) if numbers else float("nan")
