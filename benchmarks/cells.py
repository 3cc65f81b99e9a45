"""What a result file holds, by model, tool and setting; `benchmarks/run.py` says how such a file is laid out."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.tools import ALL, PLAIN

Row = Mapping[str, Any]


def digest(results: Row) -> str:
    """Of all that a result file holds: pictures are told by it which file they are of."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:16]


def columns(results: Row) -> list[str]:
    """The settings that were measured, like `cpu-1`."""
    return list(dict.fromkeys(c for row in results["models"].values() for c in row.get("original", {})))


def tools(results: Row) -> list[str]:
    """The tools that were run; a copy is the work of none."""
    names = [tool for tool in ALL if tool != PLAIN]
    return [tool for tool in names if any(tool in row.get("tools", {}) for row in results["models"].values())]


def cells(results: Row) -> Iterator[tuple[str, str, str, Row]]:
    """Model, tool, setting and cell of all outcomes; no setting where one outcome is for all."""
    for name, row in results["models"].items():
        for tool, cell in row.get("tools", {}).items():
            yield from ((name, tool, column, found) for column, found in outcomes(cell).items())


def made(results: Row, what: str) -> list[Any]:
    """The different values that the cells' notes on how they were made have for something, like `seconds`."""
    values = [cell["made"][what] for *_, cell in cells(results) if what in cell.get("made", {})]
    return sorted(set(values))


def versions(results: Row) -> dict[str, str]:
    """Of all packages that made a cell."""
    return _together(cell.get("made", {}).get("versions", {}) for *_, cell in cells(results))


def exporters(results: Row) -> dict[str, str]:
    """The versions of the packages that the models were exported with."""
    return _together(row.get("exporters", {}) for row in results["models"].values())


def _together(many: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """By package; several, parted by a stroke, where something was made anew with another."""
    found: dict[str, set[str]] = {}
    for versions_ in many:
        for package, version in versions_.items():
            found.setdefault(package, set()).add(version)
    return {package: "/".join(sorted(known)) for package, known in sorted(found.items())}


def outcomes(cell: Row) -> dict[str, dict[str, Any]]:
    """By setting, for a tool that optimizes for each; under no name that for all settings."""
    found: dict[str, dict[str, Any]] = cell.get("settings", {"": cell})
    return found


def outcome(row: Row, tool: str, column: str) -> Row:
    """What a tool made of a model for a setting; empty where it was not run."""
    found = outcomes(row.get("tools", {}).get(tool, {}))
    return found[""] if "" in found else found.get(column, {})


def timings(results: Row, tool: str, column: str) -> dict[str, Row]:
    """By model, where the tool's outcome is right and was timed."""
    cells = {name: outcome(row, tool, column) for name, row in results["models"].items()}
    return {
        name: cell["timings"][column]
        for name, cell in cells.items()
        if not reason(cell) and column in cell.get("timings", {})
    }


def unchanged(results: Row, column: str) -> list[Row]:
    """Timings of copies, and of outcomes that have the nodes and bytes of their original: what they show is noise."""
    found = []
    for tool in (PLAIN, *tools(results)):
        for name, timing in timings(results, tool, column).items():
            row = results["models"][name]
            cell = outcome(row, tool, column)
            if tool == PLAIN or (cell["nodes"], cell["bytes"]) == (row["nodes"], row["bytes"]):
                found.append(timing)
    return found


def holding(timed: Iterable[Row]) -> float:
    """The share of the intervals that hold 1; NaN of none."""
    held = [timing["low"] <= 1 <= timing["high"] for timing in timed]
    return statistics.fmean(held) if held else float("nan")


def reason(cell: Row) -> str:
    """Why an outcome is none; empty for one that is right."""
    why: str = cell.get("error") or cell.get("wrong", "")
    return why


def failures(results: Row) -> Iterator[tuple[str, str, str]]:
    """Model, tool and reason of all that went wrong."""
    for name, row in results["models"].items():
        if "error" in row:
            yield name, "", row["error"]
    for name, tool, column, cell in cells(results):
        if reason(cell):
            yield name, f"{tool} ({setting(column)})" if column else tool, reason(cell)


def setting(column: str) -> str:
    """A column as a reader is told of it: `CPU, 1 thread`."""
    provider, _, threads = column.partition("-")
    return f"{_NAMES.get(provider, provider.upper())}, " + ("1 thread" if threads == "1" else f"{threads} threads")


_NAMES = {"openvino": "OpenVINO", "tensorrt": "TensorRT"}
"""Providers that are not written in capitals."""


def geometric_mean(numbers: Iterable[float]) -> float:
    """NaN of nothing."""
    numbers = list(numbers)
    return statistics.geometric_mean(numbers) if numbers else float("nan")
