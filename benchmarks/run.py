"""Optimize every model with every tool, check the outcomes, time them against the original; one result file.

Each tool runs in a process of its own, and so does each check: what crashes takes nothing along. A timing interleaves
the original and all outcomes, each under ORT_ENABLE_ALL, in an order drawn anew for each round; its ratios are those of
one round. It takes place in several processes, for where a session's memory lies can change its speed and stays as it
is in one process. The first column, `plain`, is a copy of the original: what it shows is noise. Most tools have one
outcome for all settings; one that searches by measuring optimizes for each setting, and its outcome is timed in that
one. What a file already holds is kept if it was made under the same circumstances, so a run that was interrupted goes
on where it was, and one after a change measures what the change concerns.

The file (JSON; what is in brackets may be missing)::

    {"machine": "processor (flags), 8 cores, 33 GB, Linux", ["gpu": "name, where a device is used",]
     "onnxruntime": "1.31.1", "provider": "cpu", "spinning": false, "date": "of the last measurement",
     "models": {name: row}}

    row: {"family": "ResNet", "opset": 20, "nodes": 122, "bytes": 1000, "model": "hash of the file",
          ["error": "why nothing is known: no export, the original fails, or no input moves its outputs",]
          ["insensitive": true,  # with that last error]
          "original": {column: {"made": made, "minimum_ms": 1.0, "median_ms": 1.1, "spread": 0.02,
                                "headroom": 1.2,  # null on devices}},
          "tools": {tool: cell}}  # of a tool that searches: {tool: {"settings": {column: cell}}}

    cell: {"made": made, "seconds": 1.2, "memory_mb": 120, "nodes": 100, "bytes": 900, "difference": 1e-7,
           ["error": "the tool or the outcome does not run",] ["wrong": "the outputs differ",]
           ["search": {"stop": "all of it was looked at", "regions": 4, "copies": 8, "states": 28, "trials": 12,
                       "timed": true, "notes": ["..."]},]
           "timings": {column: timing}}

    timing: {"minimum": 1.1, "median": 1.1, "low": 1.05, "high": 1.15, "processes": [1.09, 1.1, 1.12], "rounds": 180,
             "verdict": "faster", "spread": 0.02, "load": 1.0}

    made: {"date": "2026-11-22", "seconds": 2.0, "model": "hash of the file", "versions": {package: version},
           # of graphopt's columns also:
           ["graphopt": "v0.1.0-3-g61652aa", "sources": "hash of its sources and of its proofs",]
           ["search": 60.0]}

A column is a setting, like `cpu-1` or `cpu-all`. `median` is of the rounds of all processes, `processes` of each.
`low` and `high` are the widest of the medians of the single processes and of the interval in which the median of all
rounds lies with 95 % confidence: no confidence can be stated for so few processes. The verdict is `faster` or `slower`
only where fastest runs and median say so by more than graphopt.measure.NOISE, and the interval, that is each process,
in direction.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import tools as peers
from benchmarks.checks import TOLERANCE, difference, machine
from benchmarks.models import MODELS, export
from graphopt.measure import WIDTH, Setting, interleaved, runner, speedup
from graphopt.profile import profile
from graphopt.samples import NORMAL, sketch
from graphopt.samples import feeds as sample_feeds

KERNELS = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul")
"""What no rewrite of a graph makes faster, as ONNX Runtime's profile names it."""

SEEDS = (0, 1)
LIMIT = 900.0
"""Seconds after which a check or a timing is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    models: Sequence[str]
    tools: Sequence[str]
    settings: Sequence[Setting]
    seconds: float
    """Of timing for each model, tool and setting, at most: it ends once the intervals are narrow."""
    search: float = peers.SEARCH
    """Seconds that a tool may search for each model and setting."""
    again: bool = False
    """Measure also what the file holds."""

    @property
    def columns(self) -> list[str]:
        return [column(setting) for setting in self.settings]


def column(setting: Setting) -> str:
    """The name under which a setting's timings are kept, like `cpu-1`."""
    return f"{setting.provider}-{setting.threads or 'all'}"


def run(plan: Plan, path: Path) -> dict[str, Any]:
    """Fill the result file with what the plan asks for and the file lacks."""
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    _head(results, plan)
    rows: dict[str, Any] = results.setdefault("models", {})
    if plan.again:
        _forget(rows, plan)
    with _progress() as progress:
        task = progress.add_task("models", total=len(plan.models), what="")
        for name in plan.models:
            progress.update(task, what=name)
            rows[name] = measure(name, plan, rows.get(name, {}))
            results["models"] = rows = {known: rows[known] for known in MODELS if known in rows}
            _write(path, results)
            progress.advance(task)
    return results


def _forget(rows: Mapping[str, Any], plan: Plan) -> None:
    """What the file holds of the models and tools that are named."""
    for name in plan.models:
        for tool in plan.tools:
            rows.get(name, {}).get("tools", {}).pop(tool, None)


def _head(results: dict[str, Any], plan: Plan) -> None:
    """Where, when, how and with what. A file that was made elsewhere or otherwise is not added to."""
    head: dict[str, Any] = {"machine": machine(), "spinning": any(setting.spinning for setting in plan.settings)}
    if not peers.TUNED.keys().isdisjoint(plan.tools):
        head["search"] = {"seconds": plan.search, "cache": "no times of earlier runs"}
    for key, value in head.items():
        known = results.setdefault(key, value)
        if known != value:
            raise SystemExit(f"the result file has another {key}, {known} and not {value}; name another with --output")
    results["versions"] = results.get("versions", {}) | peers.versions(plan.tools)
    results["date"] = dt.datetime.now(dt.UTC).date().isoformat()


def _progress() -> Progress:
    return Progress(TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeElapsedColumn(),
                    TextColumn("{task.fields[what]}"))  # fmt: skip


def _write(path: Path, results: Mapping[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool makes of a model."""

    tool: str
    path: Path
    settings: Sequence[Setting]
    """In which it is timed."""
    cell: dict[str, Any]
    """What is known of it."""

    @property
    def has_failed(self) -> bool:
        return "error" in self.cell or "wrong" in self.cell

    def lacks(self, setting: Setting) -> bool:
        """Whether it can be timed in a setting, and was not."""
        return not self.has_failed and setting in self.settings and column(setting) not in self.cell.get("timings", {})


def measure(name: str, plan: Plan, known: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one model, what is known of it completed."""
    row = {"family": MODELS[name].architecture.family, **known}
    row.pop("error", None)
    try:
        source = export(name)
    except Exception as error:  # an exporter that fails is a result of the row
        return row | {"error": f"export: {peers.one_line(error)}"}
    row |= _facts(source)
    with tempfile.TemporaryDirectory() as folder:
        wanted = [found for found in outcomes(row, plan, Path(folder)) if any(map(found.lacks, found.settings))]
        for outcome in wanted:
            outcome.cell.update(optimized(outcome, source, row["family"], plan.search))
        for setting in plan.settings:
            _time(row, [found for found in wanted if found.lacks(setting)], source, setting, plan.seconds)
    return row


def outcomes(row: dict[str, Any], plan: Plan, folder: Path) -> Iterator[Outcome]:
    """Of each tool that applies: one for all settings, or one for each if it searches; the row has their cells."""
    cells = row.setdefault("tools", {})
    for tool in plan.tools:
        if not peers.applies(tool, row["family"]):
            continue
        if tool not in peers.TUNED:
            yield Outcome(tool, folder / f"{tool}.onnx", plan.settings, cells.setdefault(tool, {}))
            continue
        if "settings" not in cells.get(tool, {}):  # one outcome for all settings is none of a search
            cells[tool] = {"settings": {}}
        for setting in plan.settings:
            cell = cells[tool]["settings"].setdefault(column(setting), {})
            yield Outcome(tool, folder / f"{tool}-{column(setting)}.onnx", (setting,), cell)


def _facts(path: Path) -> dict[str, Any]:
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return {"opset": opset, "nodes": peers.count(model), "bytes": path.stat().st_size}


def optimized(outcome: Outcome, source: Path, family: str, search: float) -> dict[str, Any]:
    """What an outcome cost, how large it is, and how far it is from the original, or why there is none."""
    setting = outcome.settings[0]  # those that have several do not ask for it
    cell = peers.run(
        peers.Task(outcome.tool, str(source), str(outcome.path), family, setting.provider, setting.threads, search)
    )
    if "error" in cell:
        return cell
    cell |= {"nodes": peers.count(onnx.load(outcome.path)), "bytes": outcome.path.stat().st_size}
    return cell | _job("check", {"source": str(source), "target": str(outcome.path)})


def _time(row: dict[str, Any], todo: Sequence[Outcome], source: Path, setting: Setting, seconds: float) -> None:
    """Timings of the original and of outcomes in one setting."""
    if not todo and column(setting) in row.get("original", {}):
        return
    job = {
        "source": str(source),
        "outcomes": {outcome.tool: str(outcome.path) for outcome in todo},
        "provider": setting.provider,
        "threads": setting.threads,
        "seconds": seconds * (1 + len(todo)),
    }
    found = _job("time", job)
    if "error" in found:
        row["error"] = f"timing, {column(setting)}: {found['error']}"
        return
    row.setdefault("original", {})[column(setting)] = found["original"]
    for outcome in todo:
        outcome.cell.setdefault("timings", {})[column(setting)] = found["outcomes"][outcome.tool]


def _job(kind: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """A check or a timing in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.run", kind, json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {LIMIT:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    said = done.stderr.strip().splitlines()
    return {"error": said[-1][:200] if said and done.returncode > 0 else f"process ended with code {done.returncode}"}


# -- in the process of a job -------------------------------------------------------------------------------------------


def _feeds(source: str, seed: int) -> dict[str, Any]:
    """Ordinary values: normal numbers, token ids in range, masks with something in every row."""
    return sample_feeds(sketch(onnx.load(source)), {}, seed=seed, style=NORMAL)


def check(job: Mapping[str, Any]) -> dict[str, Any]:
    """The largest difference of the outcome, as ORT optimizes it, from the original as it stands."""
    reference = Setting().open(job["source"], optimize=False)
    names = [output.name for output in reference.get_outputs()]
    try:
        session = Setting().open(job["target"])
        if [output.name for output in session.get_outputs()] != names:
            return {"wrong": "the outputs have other names"}
        gaps = [_gap(reference, session, names, _feeds(job["source"], seed)) for seed in SEEDS]
    except Exception as error:  # whatever stops the outcome from running is its result
        return {"wrong": f"does not run: {peers.one_line(error)}"}
    gap = max(gaps)
    return {"difference": gap} if gap <= TOLERANCE else {"wrong": f"outputs differ by {gap:.2g}"}


def _gap(reference: Any, session: Any, names: list[str], feeds: Mapping[str, Any]) -> float:
    expected, actual = (dict(zip(names, s.run(None, feeds), strict=True)) for s in (reference, session))
    return difference(expected, actual)


def timed(job: Mapping[str, Any]) -> dict[str, Any]:
    """The original and the outcomes, interleaved."""
    setting = Setting(job["provider"], job["threads"])
    feeds = _feeds(job["source"], SEEDS[0])
    paths = {"": job["source"], **job["outcomes"]}
    sessions = {tool: setting.open(path) for tool, path in paths.items()}
    runs = [runner(session, feeds, setting) for session in sessions.values()]
    samples = dict(zip(paths, interleaved(runs, seconds=job["seconds"], width=WIDTH), strict=True))
    loads = _loads(paths, setting)
    original = samples[""]
    timings = {}
    for tool in job["outcomes"]:
        found = speedup(original, samples[tool])
        timings[tool] = {
            "minimum": round(found.minimum, 4),
            "median": round(found.median, 4),
            "low": round(found.low, 4),
            "high": round(found.high, 4),
            "rounds": found.rounds,
            "verdict": str(found.verdict),
            "spread": round(samples[tool].spread, 4),
            "load": round(loads[tool] / loads[""], 3),
        }
    seconds = {"minimum_ms": round(original.minimum * 1e3, 4), "median_ms": round(original.median * 1e3, 4)}
    whole = {"spread": round(original.spread, 4), "headroom": _headroom(job["source"], setting, feeds)}
    return {"original": seconds | whole, "outcomes": timings}


def _loads(paths: Mapping[str, str], setting: Setting) -> dict[str, float]:
    """Seconds to make a session: the least of three, in turns."""
    runs = [lambda path=path: setting.open(path) for path in paths.values()]
    return {tool: s.minimum for tool, s in zip(paths, interleaved(runs, seconds=0, rounds=(3, 3)), strict=True)}


def _headroom(source: str, setting: Setting, feeds: Mapping[str, Any]) -> float:
    """ONNX Runtime's time in all kernels over its time in those of Conv, Gemm and MatMul, of the original."""
    found = profile(source, setting, feeds)
    heavy = sum(row.seconds for row in found.rows if row.operator in KERNELS)
    return round(found.kernels / heavy, 3) if heavy else float(np.inf)


def main(arguments: Iterable[str]) -> None:
    """A job, given as JSON; its result is the last line of the output."""
    kind, job = arguments
    found = {"check": check, "time": timed}[kind](json.loads(job))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
