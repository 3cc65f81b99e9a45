"""Where ONNX Runtime spends its time in models, as they are exported and as graphopt leaves them.

``python -m benchmarks.profiles [--models NAME ...]`` profiles the named exports, or one of each of the thirteen
families that were found to have the most headroom, and updates ``benchmarks/results/profiles.jsonl`` and
``profiles.md``; what is not named keeps its last results.

- graphopt optimizes for one thread, through its documented call, in a process of its own, as in the benchmark of speed.
- ``graphopt bench --profile`` profiles the two models, ROUNDS times; an operator has the median of its times. Profiling
  slows a run down by some percent, small kernels most: how much faster a model is, the benchmark of speed says.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeAlias

from rich.progress import track

from benchmarks.environment import job, made, one_line
from benchmarks.models import MODELS, SUITE, export
from benchmarks.report import circumstances, table
from benchmarks.results import FOLDER, Row, read_rows, write_rows
from benchmarks.tools import LIMIT, Task, run

ROUNDS = 3
SHOWN = 0.015
"""Least share of the time of either model that an operator has to be named; the others are one row."""

FAMILIES = (
    *("edgenext", "segformer", "minilm-128", "ghostnet", "arcface", "fastvit", "efficientnet-b0", "convnext"),
    *("repvit", "unet", "shufflenetv2", "swin-tiny", "yolo"),
)
DEFAULT = tuple(f"{name}.dynamo" for name in FAMILIES)

Times: TypeAlias = Mapping[str, Mapping[str, float]]
"""How many times each operator runs (`count`) and for how long in all (`ms`), in one run of the model."""


def measure(name: str) -> Row:
    """Return the row of one export: the times of both models, or why there are none."""
    row: Row = {"model": name, "made": made()}
    try:
        source = export(name)
    except Exception as error:  # whatever keeps a model from being exported is its result
        return row | {"error": one_line(error)}
    with tempfile.TemporaryDirectory() as folder:
        paths = str(source), str(Path(folder) / "optimized.onnx")
        found = run(Task("graphopt", *paths, MODELS[name].architecture.family, threads=1))
        rounds: list[tuple[Times, Times]] = []
        while "error" not in found and len(rounds) < ROUNDS:
            options = ("--threads", "1", "--seconds", "0", "--profile", "--json")
            found = job("graphopt", "bench", *paths, *options, limit=LIMIT)
            original, optimized = (_by_operator(each["rows"]) for each in found.get("profiles", ({"rows": []},) * 2))
            rounds.append((original, optimized))
    if "error" in found:
        return row | {"error": found["error"]}
    return row | dict(zip(("original", "optimized"), map(typical, zip(*rounds, strict=True)), strict=True))


def _by_operator(rows: Iterable[Row]) -> Times:
    return {row["operator"]: {"count": row["count"], "ms": row["seconds"] * 1e3} for row in rows}


def typical(taken: Sequence[Times]) -> Times:
    """Return the median time of each operator, longest first."""
    operators = {operator for times in taken for operator in times}
    found = {
        operator: {
            "count": max(times[operator]["count"] for times in taken if operator in times),
            "ms": round(median(times.get(operator, {"ms": 0.0})["ms"] for times in taken), 4),
        }
        for operator in sorted(operators)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))


def markdown(rows: Sequence[Row]) -> str:
    """Return the results as a page: a table for each model."""
    lines = [
        "# Where the time is",
        "",
        "Made by `python -m benchmarks.profiles`; its docstring says what is measured and how. Milliseconds in the",
        "kernels of one run, one thread, before and after graphopt. The operators are those of ONNX Runtime's own",
        "optimized graph, which has fusions and reorders of its own.",
        "",
        *circumstances(rows),
        "",
    ]
    for row in rows:
        lines += [f"## {row['model']}", "", *([f"✗ {row['error']}"] if "error" in row else _shown(row)), ""]
    return "\n".join(lines)


def _shown(row: Row) -> list[str]:
    """Return a line an operator, a sum of those that have little, and of all."""
    sides: tuple[Times, Times] = (row["original"], row["optimized"])
    totals = [sum(each["ms"] for each in times.values()) for times in sides]
    share = {
        operator: [times.get(operator, {"ms": 0.0})["ms"] / total for times, total in zip(sides, totals, strict=True)]
        for operator in {**sides[0], **sides[1]}
    }
    named = sorted((operator for operator in share if max(share[operator]) >= SHOWN), key=lambda each: -share[each][1])
    groups = {operator: [operator] for operator in named}
    groups |= {"others": [operator for operator in share if operator not in named], "all": [*share]}
    cells = (
        [label, *(cell for times, total in zip(sides, totals, strict=True) for cell in _cells(times, operators, total))]
        for label, operators in groups.items()
        if operators
    )
    return table(["operator", "nodes", "ms", "share", "nodes, after", "ms, after", "share, after"], cells)


def _cells(times: Times, operators: Iterable[str], total: float) -> list[str]:
    some = [times[operator] for operator in operators if operator in times]
    if not some:
        return ["", "", ""]
    spent = sum(each["ms"] for each in some)
    return [f"{sum(each['count'] for each in some):g}", f"{spent:.2f}", f"{spent / total:.0%}"]


def main() -> None:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SUITE, default=DEFAULT, metavar="NAME", help="rows to measure")
    path = FOLDER / "profiles.jsonl"
    for name in track(parser.parse_args().models, description="models"):
        rows = [row for row in read_rows(path) if row["model"] != name] + [measure(name)]
        rows.sort(key=lambda row: SUITE.index(row["model"]))
        write_rows(path, rows)
        path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    print(f"written: {path}, {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
