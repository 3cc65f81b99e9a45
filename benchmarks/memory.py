"""Memory of models in ONNX Runtime, as graphopt reports it and as the system does, and what a budget leaves of it.

``python -m benchmarks memory`` writes ``benchmarks/results/memory.jsonl`` and ``memory.md``. The models are those of
`[memory]` in ``models.toml``, which take much for their weights; the budget is a part of what a run takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

from benchmarks.environment import job, made
from benchmarks.models import MEMORY
from benchmarks.report import circumstances, table
from benchmarks.results import Row, read_rows, write_rows
from benchmarks.run import ExportFailedError, locate_source
from benchmarks.tools import peak_memory
from graphopt.base.errors import UsageError

LIMIT = 1800.0
"""Seconds after which a process is given up."""

RUNS = 5
"""Runs of a model in a process of which the system says what it takes."""

_SMALLEST_MODEL = '<ir_version: 8, opset_import: ["": 17]> one (float[1] x) => (float[1] y) {y = Neg(x)}'


def run(models: Sequence[str], part: float, path: Path) -> Path:
    """Measure each model, with a budget of a part of what it takes; the file and the page have it once it is done.

    The file keeps its rows of other models.

    Raises:
        UsageError: the file holds something else, or rows of another part.
    """
    rows = {row["model"]: row for row in read_rows(path)}
    if others := [str(row["made"]["part"]) for row in rows.values() if row["made"]["part"] != part]:
        raise UsageError(f"{path} has rows with --part {others[0]}: name another --output")
    conditions = made("graphopt", "onnx", "onnxruntime") | {"part": part}
    for name in models:
        rows[name] = {"model": name, **measured(name, part), "made": conditions}
        print(json.dumps(rows[name]), flush=True)
        known = [rows[each] for each in sorted(rows, key=[*MEMORY, *rows].index)]
        write_rows(path, known, markdown(known))
    return path


def measured(name: str, part: float) -> Row:
    """Return bytes that a model takes, reported and by the system, and what becomes of it with a budget."""
    try:
        source = locate_source(name)
    except ExportFailedError as error:
        return {"error": str(error)}
    reported = job("graphopt", "bench", source, "--memory", "--threads=1", "--seconds=0.2", "--json", limit=LIMIT)
    if "error" in reported:
        return {"error": reported["error"]}
    (found,) = reported["memory"]
    options = ("running", "time", "is_advised")
    variants = {each["options"]: {key: each[key] for key in options} for each in found["variants"]}
    for each in variants.values():
        each["running"] = each["running"]["peak"]
    taken = found["usual"]["running"]["peak"]
    row = {
        "weights": found["weights"],
        "loading": found["usual"]["loading"]["peak"],
        "running": taken,
        "system": _system_peak(source),
        "bound": {key: found["bound"][key] for key in ("node", "activations", "buffers")},
        "options": variants,
    }
    return row | {"budget": _with_budget(source, int(part * taken))}


def _with_budget(source: str, budget: int) -> Row:
    """Return what a run takes with a budget, or why that cannot be kept."""
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "small.onnx")
        asked = ("--memory-budget", str(budget), "--cost=none", "--threads=1", "--fresh", "--json")
        made_by = job("graphopt", "optimize", source, target, *asked, limit=LIMIT)
    if "error" in made_by:
        return {"bytes": budget, "error": made_by["error"].replace(f"{source}: ", "")}
    memory = made_by["memory"]
    kept = memory["lower"] or memory["usual"]
    told = {key: kept[key] for key in ("running", "time_ratio", "option_lines")}
    return {"bytes": budget, "parts": memory["parts"], "verdict": made_by["comparison"]["verdict"], **told}


def _system_peak(source: str) -> int:
    """Return what the system says that a process takes in which a model is loaded and run, above one with the smallest
    model."""
    with tempfile.TemporaryDirectory() as folder:
        smallest = Path(folder) / "smallest.onnx"
        onnx.save(parser.parse_model(_SMALLEST_MODEL), smallest)
        base, whole = (job("benchmarks.memory", path, limit=LIMIT) for path in (str(smallest), source))
    return int(whole["megabytes"] - base["megabytes"]) * 10**6


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: what each model takes, what options save, and what a budget leaves."""
    able = [row for row in rows if "error" not in row]
    part = rows[0]["made"]["part"]
    lines = [
        "# Memory",
        "",
        "Megabytes that a process takes in which ONNX Runtime loads and runs a model with one thread, above those of",
        "Python and ONNX Runtime: at most while it is loaded and run, as `graphopt bench --memory` reports them and as",
        f"the system does (its largest resident set after {RUNS} runs in a process of its own).",
        "",
        *table(["model", "weights", "loading", "running", "by the system", "ratio", "bound"], map(_usage, able)),
        "",
        "Running with other options of the session, and the ratio of times, in turns, where that saves memory:",
        "",
        *table(["model", *_option_names(able)], [_options(row, _option_names(able)) for row in able]),
        "",
        f"With `graphopt optimize --memory-budget`, asked for {part:g} of what running takes:",
        "",
        *table(["model", "budget", "running", "part", "time", "parts", "options of the session"], map(_budget, able)),
        "",
        *(f"{row['model']}: {row['error']}\n" for row in rows if "error" in row),
        *(f"{_name(row)}: {row['budget']['error']}\n" for row in able if "error" in row["budget"]),
        *circumstances(rows),
        "",
        "`python -m benchmarks memory` makes this page.",
    ]
    return "\n".join(lines) + "\n"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f}"


def _name(row: Row) -> str:
    return str(row["model"]).removesuffix(".memory")


def _usage(row: Row) -> list[str]:
    sizes = [_megabytes(row[key]) for key in ("weights", "loading", "running", "system")]
    return [_name(row), *sizes, f"{row['running'] / row['system']:.2f}", row["bound"]["node"]]


def _option_names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["options"]))


def _options(row: Row, names: Sequence[str]) -> list[str]:
    return [_name(row), *(_option(row["options"][name]) for name in names)]


def _option(found: dict[str, Any]) -> str:
    return _megabytes(found["running"]) + ("" if found["time"] is None else f" ({found['time']:.2f})")


def _budget(row: Row) -> list[str]:
    found = row["budget"]
    if "error" in found:
        return [_name(row), _megabytes(found["bytes"]), "not kept", "", "", "", ""]
    share, time = found["running"] / row["running"], found["time_ratio"]
    sizes = [_megabytes(found["bytes"]), _megabytes(found["running"]), f"{share:.2f}"]
    options = "; ".join(found["option_lines"]).replace("options.", "")
    return [_name(row), *sizes, "" if time is None else f"{time:.2f}", str(found["parts"]), options]


def _print_peak(path: str) -> None:
    """Load and run a model in ONNX Runtime alone, and print what the process has taken at most."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {value.name: rng.standard_normal(value.shape, np.float32) for value in session.get_inputs()}
    for _ in range(RUNS):
        session.run(None, feeds)
    print(json.dumps({"megabytes": peak_memory()}))


if __name__ == "__main__":
    _print_peak(sys.argv[1])
