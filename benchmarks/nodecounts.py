"""How many nodes each tool leaves of the fixtures, and whether the outcome computes the same.

``python -m benchmarks.nodecounts [--tools TOOL ...] [--models NAME ...]`` runs the named columns and rows, or all, and
updates ``benchmarks/results/nodecounts.json`` and ``nodecounts.md``; what is not named keeps its last results.

- Counted are the nodes of the graph and of all bodies, after local functions have been inlined, except Constant: it
  computes nothing, and tools differ only in whether they write a number as a node or as an initializer.
- Each tool runs as in the benchmark of speed: through its documented call, in a process of its own for each model.
- Outcomes are compared with the original on ORT with all graph optimizations disabled, for several feeds and sizes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from rich.progress import track

from benchmarks.checks import TOLERANCE, difference, machine, today
from benchmarks.report import table
from benchmarks.tools import TOOLS, Task, count, one_line, run
from graphopt.runtime.sessions import Setting
from tests import zoo

RESULTS = Path(__file__).parent / "results"

BINDINGS: tuple[Mapping[str, int], ...] = ({}, {"batch": 3, "sequence": 7, "height": 96})


def outputs(model: onnx.ModelProto, feeds: Iterable[Mapping[str, zoo.Array]]) -> list[dict[str, zoo.Array]]:
    """What the model computes from each feed, by output name; ORT repairs nothing and fuses nothing here."""
    session = Setting().open(model, optimize=False)
    found = [output.name for output in session.get_outputs()]
    return [dict(zip(found, session.run(None, feed), strict=True)) for feed in feeds]


def measure(name: str, tools: Iterable[str]) -> dict[str, Any]:
    """The row of one fixture: its own number of nodes and what each tool makes of it."""
    model = zoo.load(name)
    feeds = [zoo.inputs(model, seed, bindings) for seed, bindings in enumerate(BINDINGS)]
    expected = outputs(model, feeds)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "original.onnx"
        onnx.save(model, source)
        cells = {tool: _cell(tool, source, feeds, expected) for tool in tools}
    return {"nodes": count(model), "tools": cells}


def _cell(
    tool: str, source: Path, feeds: Iterable[Mapping[str, zoo.Array]], expected: Sequence[Mapping[str, zoo.Array]]
) -> dict[str, Any]:
    """Nodes and difference of one outcome, or the reason for its absence."""
    target = source.with_name(f"{tool}.onnx")
    ran = run(Task(tool, str(source), str(target)))
    if "error" in ran:
        return {"error": ran["error"]}
    cell: dict[str, Any] = {}
    try:
        model = onnx.load(target)
        cell["nodes"] = count(model)
        actual = outputs(model, feeds)
    except Exception as error:  # whatever stops the outcome from running is its result
        return cell | {"wrong": f"does not run: {one_line(error)}"}
    gap = max(difference(left, right) for left, right in zip(expected, actual, strict=True))
    return cell | ({"difference": gap} if gap <= TOLERANCE else {"wrong": f"outputs differ by {gap:.2g}"})


def update(results: dict[str, Any], names: Iterable[str], tools: list[str]) -> Iterator[None]:
    """Measure the named rows and columns into the results of earlier runs; yields after each row."""
    packages = ["onnx", "onnxruntime", *(TOOLS[tool].package for tool in tools)]
    versions = {package: importlib.metadata.version(package) for package in packages}
    results |= {"machine": machine(), "versions": results.get("versions", {}) | versions}
    results["dates"] = results.get("dates", {}) | dict.fromkeys(tools, today())
    rows = results.get("models", {})
    for name in track(list(names), description="models"):
        row = measure(name, tools)
        row["tools"] = rows.get(name, {}).get("tools", {}) | row["tools"]
        rows[name] = row
        results["models"] = {name: rows[name] for name in zoo.names() if name in rows}
        yield


def markdown(results: Mapping[str, Any]) -> str:
    """The results as a page: counts, and what went wrong."""
    rows = results["models"]
    tools = [tool for tool in TOOLS if any(tool in row["tools"] for row in rows.values())]
    head = [
        "# Nodes left by each tool",
        "",
        "Made by `python -m benchmarks.nodecounts`; its docstring says what is counted and how.",
        "",
        f"- Machine: {results['machine']}",
        "- Versions: " + ", ".join(f"{package} {version}" for package, version in sorted(results["versions"].items())),
        "- Measured: " + ", ".join(f"{tool} {results['dates'][tool]}" for tool in tools),
        "",
        "**Bold**: fewest nodes of all correct outcomes. ✗: fails, does not run or computes something else, see below.",
        "",
    ]
    counts = [[name, str(row["nodes"]), *_count_cells(row, tools)] for name, row in rows.items()]
    counts.append(["sum", str(sum(row["nodes"] for row in rows.values())), *_sums(rows.values(), tools)])
    wrongs = [
        f"- {name}, {tool}: {row['tools'][tool].get('error') or row['tools'][tool]['wrong']}"
        for name, row in rows.items()
        for tool in tools
        if not _right(row["tools"].get(tool, {"difference": 0}))
    ]
    return "\n".join(
        [
            *head,
            *table(["model", "original", *tools], counts),
            "",
            "## Failures and wrong outputs",
            "",
            *(wrongs or ["None."]),
            "",
        ]
    )


def _right(cell: Mapping[str, Any]) -> bool:
    return "difference" in cell


def _count_cells(row: Mapping[str, Any], tools: Iterable[str]) -> list[str]:
    cells = [row["tools"].get(tool, {}) for tool in tools]
    fewest = min((cell["nodes"] for cell in cells if _right(cell)), default=None)
    return [_count_cell(cell, fewest) for cell in cells]


def _count_cell(cell: Mapping[str, Any], fewest: int | None) -> str:
    if not cell:
        return ""
    if not _right(cell):
        return f"✗ {cell.get('nodes', '')}".strip()
    return f"**{cell['nodes']}**" if cell["nodes"] == fewest else str(cell["nodes"])


def _sums(rows: Iterable[Mapping[str, Any]], tools: Iterable[str]) -> list[str]:
    """The sum of each complete column; a failure counts as the original, which is what its user is left with."""
    rows = list(rows)
    sums = []
    for tool in tools:
        cells = [(row["nodes"], row["tools"].get(tool, {})) for row in rows]
        total = sum(cell["nodes"] if _right(cell) else original for original, cell in cells)
        sums.append(str(total) if all(cell for _, cell in cells) else "")
    return sums


def main() -> None:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="columns to measure")
    parser.add_argument("--models", nargs="+", choices=zoo.names(), default=zoo.names(), help="rows to measure")
    arguments = parser.parse_args()
    path = RESULTS / "nodecounts.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for _ in update(results, arguments.models, arguments.tools):
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(f"written: {path.name}, {path.with_suffix('.md').name}")


if __name__ == "__main__":
    main()
