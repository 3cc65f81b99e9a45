"""How many nodes each tool leaves of the fixtures, whether the outcome computes the same, and how long it takes.

``python -m benchmarks.nodecounts [--tools TOOL ...] [--models NAME ...]`` runs the named columns and rows, or all, and
updates ``benchmarks/results/nodecounts.json`` and ``nodecounts.md``; what is not named keeps its last results.

- Counted are the nodes of the graph and of all bodies, after local functions have been inlined, except Constant: it
  computes nothing, and tools differ only in whether they write a number as a node or as an initializer.
- Each tool runs through its documented default call, in a process of its own for each model, on a model in memory.
  No tool checks its own result here: onnxsim's certificate, which it tries where z3 is installed, is off too.
- A time is the fastest of two to four calls, without loading and saving; the first, which imports, rarely is. A ratio
  compares it with OnnxSlim's, whose calls alternate with the tool's in the same run.
- Outcomes are compared with the original on ORT with all graph optimizations disabled, for several feeds and sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.progress import track

from benchmarks.tools import TOOLS, count, one_line
from tests import zoo

RESULTS = Path(__file__).parent / "results"
BASELINE = "OnnxSlim"
ROUNDS = 4
ENOUGH = 10.0
"""Seconds of calls after which a tool is not called again on the same model; the first also imports, so not counted."""

LIMIT = 300.0
"""Seconds after which a call is given up."""

TOLERANCE = 1e-4
"""Largest accepted difference, relative to the largest magnitude of the output (at least 1)."""

BINDINGS: tuple[Mapping[str, int], ...] = ({}, {"batch": 3, "sequence": 7, "height": 96})


def outputs(model: onnx.ModelProto, feeds: Iterable[Mapping[str, zoo.Array]]) -> list[dict[str, zoo.Array]]:
    """What the model computes from each feed, by output name; ORT repairs nothing and fuses nothing here."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = [output.name for output in session.get_outputs()]
    return [dict(zip(found, session.run(None, feed), strict=True)) for feed in feeds]


def difference(expected: Mapping[str, zoo.Array], actual: Mapping[str, zoo.Array]) -> float:
    """The largest difference between outputs, relative to the largest magnitude; other names or shapes are infinite."""
    if expected.keys() != actual.keys() or any(expected[name].shape != actual[name].shape for name in expected):
        return float("inf")
    pairs = [(expected[name].astype(np.float64), actual[name].astype(np.float64)) for name in expected]
    gaps = [float(np.abs(left - right).max() / max(1.0, np.abs(left).max())) for left, right in pairs]
    return float("inf") if any(np.isnan(gaps)) else max(gaps)


class Worker:
    """A process that runs one tool on one model as often as it is asked to."""

    def __init__(self, tool: str, source: Path, target: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.nodecounts", "--worker", tool, str(source), str(target)]
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.seconds: list[float] = []
        self.error = ""

    def run(self) -> None:
        """One timed call, or the reason why there is none; after a failure, or long calls, nothing more is asked."""
        if self.error or sum(self.seconds[1:]) > ENOUGH:
            return
        limit = threading.Timer(LIMIT, self.process.kill)
        limit.start()
        with contextlib.suppress(BrokenPipeError):
            print("run", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline() if self.process.stdout else ""
        late = not limit.is_alive()
        limit.cancel()
        match json.loads(answer or "{}"):
            case {"seconds": float(seconds)}:
                self.seconds.append(seconds)
            case {"error": str(error)}:
                self.error = error
            case _:
                code = self.process.wait()
                self.error = f"no answer within {LIMIT:.0f} s" if late else f"the process ended with code {code}"

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def work(tool: str, source: Path, target: Path) -> None:
    """The worker's side: for each line of input one call and one line of JSON; all other output is discarded."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    data = source.read_bytes()
    for _ in sys.stdin:
        print(json.dumps(_work_once(tool, data, target)), file=answers)


def _work_once(tool: str, data: bytes, target: Path) -> dict[str, Any]:
    model = onnx.load_model_from_string(data)
    start = time.perf_counter()
    try:
        result = TOOLS[tool].call(model)
        seconds = time.perf_counter() - start
        if not isinstance(result, onnx.ModelProto):
            return {"error": f"returned {type(result).__name__} instead of a model"}
        target.write_bytes(result.SerializeToString())
    except Exception as error:  # whatever a tool raises is its result
        return {"error": one_line(error)}
    return {"seconds": seconds}


def measure(name: str, tools: Iterable[str]) -> dict[str, Any]:
    """The row of one fixture: its own number of nodes and what each tool makes of it."""
    model = zoo.load(name)
    feeds = [zoo.inputs(model, seed, bindings) for seed, bindings in enumerate(BINDINGS)]
    expected = outputs(model, feeds)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "original.onnx"
        onnx.save(model, source)
        with _workers({*tools, BASELINE}, source) as workers:
            for _ in range(ROUNDS):
                for worker in workers.values():
                    worker.run()
        cells = {
            tool: _cell(workers[tool], workers[BASELINE], source.with_name(f"{tool}.onnx"), feeds, expected)
            for tool in tools
        }
    return {"nodes": count(model), "tools": cells}


@contextlib.contextmanager
def _workers(tools: Iterable[str], source: Path) -> Iterator[dict[str, Worker]]:
    workers = {tool: Worker(tool, source, source.with_name(f"{tool}.onnx")) for tool in tools}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def _cell(
    worker: Worker,
    baseline: Worker,
    target: Path,
    feeds: Iterable[Mapping[str, zoo.Array]],
    expected: list[dict[str, zoo.Array]],
) -> dict[str, Any]:
    """Nodes, seconds and difference of one outcome, or the reason for its absence."""
    if worker.error:
        return {"error": worker.error}
    seconds = min(worker.seconds)
    cell: dict[str, Any] = {"seconds": round(seconds, 4)}
    if not baseline.error:
        cell["ratio"] = round(seconds / min(baseline.seconds), 3)
    try:
        model = onnx.load(target)
        cell["nodes"] = count(model)
        actual = outputs(model, feeds)
    except Exception as error:  # whatever stops the outcome from running is its result
        return cell | {"wrong": f"does not run: {one_line(error)}"}
    gap = max(difference(left, right) for left, right in zip(expected, actual, strict=True))
    return cell | ({"difference": gap} if gap <= TOLERANCE else {"wrong": f"outputs differ by {gap:.2g}"})


def machine() -> str:
    """The kind of machine: processor, cores, system."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def update(results: dict[str, Any], names: Iterable[str], tools: list[str]) -> Iterator[None]:
    """Measure the named rows and columns into the results of earlier runs; yields after each row."""
    packages = ["onnx", "onnxruntime", *(TOOLS[tool].package for tool in tools)]
    versions = {package: importlib.metadata.version(package) for package in packages}
    results |= {"machine": machine(), "versions": results.get("versions", {}) | versions}
    today = dt.datetime.now(dt.UTC).date().isoformat()
    results["dates"] = results.get("dates", {}) | dict.fromkeys(tools, today)
    rows = results.get("models", {})
    for name in track(list(names), description="models"):
        row = measure(name, tools)
        row["tools"] = rows.get(name, {}).get("tools", {}) | row["tools"]
        rows[name] = row
        results["models"] = {name: rows[name] for name in zoo.names() if name in rows}
        yield


def markdown(results: Mapping[str, Any]) -> str:
    """The results as a page: counts, times, and what went wrong."""
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
    times = [[name, *(_time_cell(row["tools"].get(tool, {})) for tool in tools)] for name, row in rows.items()]
    wrongs = [
        f"- {name}, {tool}: {row['tools'][tool].get('error') or row['tools'][tool]['wrong']}"
        for name, row in rows.items()
        for tool in tools
        if not _right(row["tools"].get(tool, {"difference": 0}))
    ]
    return "\n".join(
        [
            *head,
            *_table(["model", "original", *tools], counts),
            "",
            "## Failures and wrong outputs",
            "",
            *(wrongs or ["None."]),
            "",
            "## Seconds, and in brackets as a multiple of OnnxSlim's",
            "",
            "Columns may come from different runs on a machine that did other work too: compare the brackets.",
            "",
            *_table(["model", *tools], times),
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


def _time_cell(cell: Mapping[str, Any]) -> str:
    if "seconds" not in cell:
        return "✗" if cell else ""
    ratio = f" ({cell['ratio']:.2f})" if "ratio" in cell else ""
    return f"{cell['seconds']:.3f}{ratio}"


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def main() -> None:
    """Measure and write both files, or serve as a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="columns to measure")
    parser.add_argument("--models", nargs="+", choices=zoo.names(), default=zoo.names(), help="rows to measure")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        tool, source, target = arguments.worker
        work(tool, Path(source), Path(target))
        return
    path = RESULTS / "nodecounts.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    for _ in update(results, arguments.models, arguments.tools):
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")
    print(f"written: {path.name}, {path.with_suffix('.md').name}")


if __name__ == "__main__":
    main()
