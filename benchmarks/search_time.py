"""Seconds of a search by phase and by work, and what it gets done, beside an earlier revision if one is named.

``python -m benchmarks search_time MODEL.onnx... [--against CHECKOUT]`` writes ``benchmarks/results/search-time.jsonl``
and ``search-time.md``: for each model the seconds of each phase by what was done in them, and how many regions, graphs
and timings they brought. Each model is optimized in a process of its own, with one thread and without the check; an
earlier revision does the same right before.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import search_sampler
from benchmarks.environment import made, revision, run_for_json
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows
from benchmarks.search_sampler import OTHER, PHASES, WORK
from graphopt.search.stopping import StopReason

GIVEN_UP = 900.0
"""Seconds after which a model is given up."""
OWN = Path(__file__).parent.parent


def run(models: Sequence[str], seconds: float, against: Path | None, path: Path) -> Path:
    """Optimize each model; the file and the page have it as soon as it is done.

    Args:
        models: files.
        seconds: of each search.
        against: a checkout of another revision, to be compared with.
        path: the file of the results.
    """
    rows: list[Row] = []
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for model in models:
        for checkout in [OWN] if against is None else [against, OWN]:
            found = _sample(model, seconds, checkout)
            about = {"model": Path(model).stem, "limit": seconds, "earlier": checkout is not OWN}
            rows.append({**about, **found, "made": {**conditions, **revision(checkout)}})
            print(json.dumps(rows[-1]))
            write_rows(path, rows, markdown(rows))
    return path


def _sample(model: str, seconds: float, checkout: Path) -> dict[str, Any]:
    """Return where the seconds of a search go, by the graphopt of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = ["-P", search_sampler.__file__, str(Path(model).resolve()), str(seconds)]
    return run_for_json(command, limit=GIVEN_UP, environment=environment)


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: a table of phases, one of the work in them, and the throughput beside an earlier revision's."""
    own = [row for row in rows if not row["earlier"]]
    lines = [
        "# Seconds of a run by phase",
        "",
        f"One run a model with `--seconds {rows[0]['limit']:g}`, one thread, without the check: seconds by phase, and",
        "then by what was done in them, sampled from the stack.",
        "",
    ]
    for place, kinds in enumerate(((*PHASES, OTHER), (*WORK, OTHER))):
        head = ("model", "seconds", *kinds) if place else ("model", "speedup", "regions", "graphs", "timings", *kinds)
        lines += [*table(head, [_cells(row, place, kinds) for row in own if "parts" in row]), ""]
    lines += _throughput(rows)
    lines += [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    lines += [*circumstances(own), "", "`python -m benchmarks search_time MODEL...` makes this page."]
    return "\n".join(lines) + "\n"


def _cells(row: Row, place: int, kinds: Sequence[str]) -> list[str]:
    """Return the seconds of each kind, of the phases or of the work."""
    sums: Counter[str] = Counter()
    for part, seconds in row["parts"].items():
        sums[part.split(": ")[place]] += seconds
    first = (
        [f"{row['seconds']:g}"]
        if place
        else [_speedup(row), *(str(row.get(name, "")) for name in ("regions", "states", "trials"))]
    )
    return [row["model"], *first, *(f"{sums[kind]:.1f}" for kind in kinds)]


def _speedup(row: Row) -> str:
    return "" if row["speedup"] is None else f"{row['speedup']:.3f}"


def _throughput(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the graphs and timings per second of both revisions, for models that both could optimize; where the search
    left nothing to try, the seconds of the runs instead: one that looks at no graph twice counts fewer."""
    pairs = [
        (old, new)
        for old, new in pairwise(rows)
        if old["earlier"] and not new["earlier"] and "error" not in old and "error" not in new
    ]
    if not pairs:
        return
    earlier = pairs[0][0]["made"].get("graphopt", "another revision")
    whole = [(old, new) for old, new in pairs if new.get("stop") == StopReason.DONE]
    part = [pair for pair in pairs if pair not in whole]
    if part:
        yield f"Beside {earlier}: what a second of the run brought there and here."
        yield ""
        yield from _rates(part)
    if whole:
        yield f"Beside {earlier}: seconds of the runs in which the search left nothing to try here; there the time may"
        yield "have been up before."
        yield ""
        head = ("model", "speedup there", "here", "seconds there", "here", "ratio")
        seconds = [(new["model"], _speedup(old), _speedup(new), old["seconds"], new["seconds"]) for old, new in whole]
        yield from table(head, [[*map(str, line), f"{line[3] / line[4]:.1f}"] for line in seconds])
        yield ""
        ratio = statistics.geometric_mean(there / here for *_, there, here in seconds)
        yield f"- seconds: {ratio:.1f} times fewer in the geometric mean of these models"


def _rates(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    """Yield a table of graphs and timings per second, and their means."""
    head = ("model", "speedup there", "here", "graphs there", "here", "ratio", "timings there", "here", "ratio")
    ratios: dict[str, list[float]] = {"states": [], "trials": []}
    cells = []
    for old, new in pairs:
        line = [new["model"], _speedup(old), _speedup(new)]
        for what, found in ratios.items():
            there, here = (row.get(what, 0) / row["seconds"] for row in (old, new))
            line += [f"{there:.2f}", f"{here:.2f}", f"{here / there:.1f}" if there else ""]
            found += [here / there] if there and here else []
        cells.append(line)
    yield from table(head, cells)
    yield ""
    for what, found in zip(("graphs", "timings"), ratios.values(), strict=True):
        if found:
            yield (
                f"- {what}: {statistics.geometric_mean(found):.1f} times as many per second in the geometric mean of"
                f" the {len(found)} models in which both had some"
            )
    yield ""
