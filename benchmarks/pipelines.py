"""Models that are cut into stages: how even the stages are, and what a pipeline of processes serves of what they allow.

``python -m benchmarks pipelines`` writes ``benchmarks/results/pipelines.jsonl`` and ``pipelines.md``. Each stage has
one thread. Requests are streamed where there is a core for each stage, on a machine that does nothing else: what they
allow is one request in the time of the largest stage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.environment import job, made
from benchmarks.models import describe, locate
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows

MODELS = ("resnet50.dynamo", "bert-base.staged", "inception.staged")
GIVEN_UP = 900.0
"""Seconds after which a model is given up."""
REPEATS = 3
"""Streams of which the fastest counts, for other processes can only slow one down."""


def run(models: Sequence[str], stages: Sequence[int], seconds: float, path: Path) -> Path:
    """Cut each model into each number of stages; the file and the page have it as soon as it is done."""
    rows: list[Row] = []
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for model in models:
        file = locate(model)
        for count in stages:
            found = job("benchmarks.pipelines", str(file), str(count), str(seconds), limit=GIVEN_UP)
            known = {"model": model, "stages": count, "exporters": describe(model)["exporters"]}
            rows.append({**known, **found, "made": conditions})
            print(json.dumps(rows[-1]), flush=True)
            write_rows(path, rows, markdown(rows))
    return path


def work(path: str, stages: str, seconds: str) -> Row:
    """Return what is found out about one model in so many stages."""
    import graphopt
    from graphopt.base.hardware import usable_cores
    from graphopt.runtime.bench import make_up_inputs
    from graphopt.runtime.session_setting import parse_model

    with TemporaryDirectory() as folder:
        out, start = Path(folder) / "out", time.perf_counter()
        cut = graphopt.partition_model(path, out, int(stages), threads=1, seconds=float(seconds))
        found: Row = {
            "seconds": round(time.perf_counter() - start, 1),
            "times": [stage.seconds for stage in cut.stages],
            "whole": cut.whole_seconds,
            "imbalance": cut.imbalance,
            "bytes": [stage.bytes_out for stage in cut.stages[:-1]],
            "cores": usable_cores(),
        }
        if len(cut.stages) <= usable_cores():
            feeds = make_up_inputs(parse_model(path), {}, {})[0]
            with graphopt.Pipeline(out, "processes", threads=1) as pipeline:
                served = max(_throughput(pipeline, feeds, float(seconds) / REPEATS) for _ in range(REPEATS))
            found["served"], found["allowed"] = served, 1 / max(found["times"])
    return found


def _throughput(pipeline: Any, feeds: dict[str, np.ndarray[Any, Any]], seconds: float) -> float:
    """Return the answers a second of a stream, from the first answer on."""

    def requests() -> Iterator[dict[str, Any]]:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            yield feeds

    times = [time.perf_counter() for _ in pipeline.stream(requests())]
    return (len(times) - 1) / (times[-1] - times[0])


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: a table with a line for each model and number of stages."""
    head = (
        "model",
        "stages",
        "ms of each",
        "largest / mean",
        "KB across",
        "whole ms",
        "served / s",
        "of the allowed",
    )
    return "\n".join(
        [
            "# Pipelines",
            "",
            "Models cut into stages by `graphopt partition --threads 1`, and requests a second that processes serve,",
            "where there is a core for each stage; one request in the time of the largest stage is what is allowed.",
            "",
            *table(head, [_cells(row) for row in rows if "times" in row]),
            "",
            *(f"- {row['model']}, {row['stages']} stages: {row['error']}" for row in rows if "error" in row),
            *circumstances(rows),
            "",
            "`python -m benchmarks pipelines` makes this page.",
            "",
        ]
    )


def _cells(row: Row) -> list[str]:
    times = ", ".join(f"{each * 1e3:.1f}" for each in row["times"])
    across = ", ".join(f"{each / 1e3:.0f}" for each in row["bytes"])
    served = [f"{row['served']:.1f}", f"{row['served'] / row['allowed']:.2f}"] if "served" in row else ["", ""]
    whole = "" if row["whole"] is None else f"{row['whole'] * 1e3:.1f}"
    return [row["model"], str(row["stages"]), times, f"{row['imbalance']:.3f}", across, whole, *served]


if __name__ == "__main__":
    print(json.dumps(work(*sys.argv[1:])))
