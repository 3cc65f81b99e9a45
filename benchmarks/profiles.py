"""Where ONNX Runtime spends its time in models, as they are exported and as graphopt leaves them.

``python -m benchmarks.profiles [--models NAME ...]`` profiles the named exports, or one of each of the thirteen
families that were found to have the most headroom, and updates ``benchmarks/results/profiles.json`` and
``profiles.md``; what is not named keeps its last results.

- graphopt optimizes for one thread, through its documented call, in a process of its own, as in the benchmark of speed.
- The two models are profiled in turn, ROUNDS times; an operator has the median of its times. Profiling slows a run down
  by some percent, small kernels most: how much faster a model is, the benchmark of speed says.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from rich.progress import track

from benchmarks.checks import machine, today
from benchmarks.models import MODELS, SUITE, export
from benchmarks.report import table
from benchmarks.tools import Task, one_line, revision, run, versions
from graphopt.base.errors import ModelError
from graphopt.runtime.bench import prepared
from graphopt.runtime.profile import Row as OfOperator
from graphopt.runtime.profile import profile
from graphopt.runtime.sessions import Setting

RESULTS = Path(__file__).parent / "results"

ROUNDS = 3
SHOWN = 0.015
"""The page names an operator that has so much of the time of either model; the others are one row."""

FAMILIES = (
    *("edgenext", "segformer", "minilm-128", "ghostnet", "arcface", "fastvit", "efficientnet-b0", "convnext"),
    *("repvit", "unet", "shufflenetv2", "swin-tiny", "yolo"),
)
DEFAULT = tuple(f"{name}.dynamo" for name in FAMILIES)

Times: TypeAlias = Mapping[str, Mapping[str, float]]
"""Of each operator: how many times it runs (`count`) and for how long in all (`ms`), in one run of the model."""


def measure(name: str) -> dict[str, Any]:
    """The row of one export: the times of both models, or why there are none."""
    made = {"machine": machine(), "date": today(), **revision(), "versions": versions("graphopt")}
    try:
        original, optimized = map(typical, zip(*_rounds(name), strict=True))
    except Exception as error:  # whatever keeps a model from being exported or run is its result
        return {"made": made, "error": one_line(error)}
    return {"made": made, "original": original, "optimized": optimized}


def _rounds(name: str) -> Iterator[tuple[Times, Times]]:
    """Yield the times of the original and of what graphopt makes of it, once a round."""
    source, setting = export(name), Setting(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        told = run(Task("graphopt", str(source), str(target), MODELS[name].architecture.family, threads=1))
        if "error" in told:
            raise ModelError(told["error"])
        trial = prepared([source, target], setting).trials[0]
        for _ in range(ROUNDS):
            original, optimized = (profile(path, setting, trial.feeds).rows for path in (source, target))
            yield _by_operator(original), _by_operator(optimized)


def _by_operator(rows: Iterable[OfOperator]) -> Times:
    return {row.operator: {"count": row.count, "ms": row.seconds * 1e3} for row in rows}


def typical(taken: Sequence[Times]) -> Times:
    """The median time of each operator, longest first."""
    operators = {operator for times in taken for operator in times}
    found = {
        operator: {
            "count": max(times[operator]["count"] for times in taken if operator in times),
            "ms": round(median(times.get(operator, {"ms": 0.0})["ms"] for times in taken), 4),
        }
        for operator in sorted(operators)
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))


def update(results: dict[str, Any], names: Iterable[str]) -> Iterator[None]:
    """Measure the named rows into the results of earlier runs; yields after each row."""
    rows = results.get("models", {})
    for name in track(list(names), description="models"):
        rows[name] = measure(name)
        results["models"] = {name: rows[name] for name in SUITE if name in rows}
        yield


def markdown(results: Mapping[str, Any]) -> str:
    """The results as a page: a table for each model."""
    rows = results["models"]
    made = [row["made"] for row in rows.values()]
    used = {f"{package} {version}" for each in made for package, version in each["versions"].items()}
    lines = [
        "# Where the time is",
        "",
        "Made by `python -m benchmarks.profiles`; its docstring says what is measured and how. Milliseconds in the",
        "kernels of one run, one thread, before and after graphopt. The operators are those of ONNX Runtime's own",
        "optimized graph, which has fusions and reorders of its own.",
        "",
        f"- Machine: {', '.join(sorted({each['machine'] for each in made}))}",
        f"- Versions: {', '.join(sorted(used))}",
        f"- Measured: {', '.join(sorted({each['date'] for each in made}))}",
        "",
    ]
    for name, row in rows.items():
        lines += [f"## {name}", "", *(_shown(row) if "error" not in row else [f"✗ {row['error']}"]), ""]
    return "\n".join(lines)


def _shown(row: Mapping[str, Any]) -> list[str]:
    """A line an operator, a sum of those that have little, and of all."""
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
    arguments = parser.parse_args()
    path = RESULTS / "profiles.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for _ in update(results, arguments.models):
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(f"written: {path.name}, {path.with_suffix('.md').name}")


if __name__ == "__main__":
    main()
