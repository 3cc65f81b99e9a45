"""Models with open sizes: one file is made for three sizes, and timed at each.

``python -m benchmarks open_sizes`` writes ``benchmarks/results/open-sizes.jsonl`` and ``open-sizes.md``. The sizes are
those of `[open]` in ``models.toml``; outcomes take turns with their originals, with one thread.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.environment import job, made
from benchmarks.models import OPEN
from benchmarks.report import circumstances, ratio_text, table
from benchmarks.results import Row, write_rows
from benchmarks.run import LIMIT, ExportFailedError, locate_source

SECONDS = 2.0
"""Limit of the timing at each size."""


def run(models: Sequence[str], search: float, path: Path) -> Path:
    """Optimize and time each model; the file and the page have it as soon as it is done."""
    rows: list[Row] = []
    conditions = made("graphopt", "onnx", "onnxruntime") | {"search": search, "seconds": SECONDS}
    for name in track(models, description="models"):
        rows.append({"model": name, **measured(name, OPEN[name], search), "made": conditions})
        write_rows(path, rows, markdown(rows))
    return path


def measured(name: str, sizes: Mapping[str, Sequence[int]], search: float) -> Row:
    """Return the milliseconds of a model at each size, and how many times as fast its outcome is, or the error."""
    try:
        source = locate_source(name)
    except ExportFailedError as error:
        return {"error": str(error)}
    where = ["--threads", "1", "--json", *(f"--dim={dim}={','.join(map(str, some))}" for dim, some in sizes.items())]
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "outcome.onnx")
        made_by = job(
            "graphopt", "optimize", source, target, "--fresh", "--seconds", str(search), *where, limit=LIMIT + search
        )
        found = made_by if "error" in made_by else job(
            "graphopt", "bench", source, target, "--seconds", str(SECONDS), *where, limit=LIMIT
        )  # fmt: skip
    if "error" in found:
        return {"error": found["error"].replace(f"{folder}/", "")}
    return {"cases": [_case(case["sizes"], *case["timings"]) for case in found["cases"]]}


def _case(sizes: Row, before: Row, after: Row) -> Row:
    return {"sizes": sizes, "ms": round(before["median"] * 1e3, 4), "timing": after["speedup"]}


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: a row a model, a column a size."""
    cells = [[row["model"].removesuffix(".open"), *map(_cell, row["cases"])] for row in rows if "cases" in row]
    lines = [
        "# Open sizes",
        "",
        "One file for three sizes, `graphopt optimize --dim NAME=a,b,c`, timed at each: the size, milliseconds of the",
        f"original, and how many times as fast the outcome runs (▲ faster, ▼ slower). {rows[0]['made']['search']:g}",
        "seconds of search, one thread, both under ORT_ENABLE_ALL.",
        "",
        *table(["model", "small", "medium", "large"], cells),
        "",
        *(f"- {row['model']}: {row['error']}" for row in rows if "error" in row),
        *circumstances(rows),
        "",
        "`python -m benchmarks open_sizes` makes this page.",
    ]
    return "\n".join(lines) + "\n"


def _cell(case: Row) -> str:
    sizes = json.dumps(case["sizes"]).strip("{}").replace('"', "")
    return f"{sizes}: {case['ms']:.2f} ms, {ratio_text(case['timing'])}"
