"""Optimize every model with every tool, check the outcomes, time them against the original; one result file.

Each tool runs in a process of its own, and so does each check and each timing: what crashes takes nothing along. A
timing interleaves the original and all outcomes in one process, each under ORT_ENABLE_ALL; its ratios are those of one
round. What a file already holds is not measured again, so a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import tools as peers
from benchmarks.models import MODELS, export
from benchmarks.nodecounts import TOLERANCE, difference, machine
from graphopt.measure import Setting, interleaved, runner, speedup
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
    """Of timing for each model, tool and setting."""

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
    with _progress() as progress:
        task = progress.add_task("models", total=len(plan.models), what="")
        for name in plan.models:
            progress.update(task, what=name)
            rows[name] = measure(name, plan, rows.get(name, {}))
            results["models"] = rows = {known: rows[known] for known in MODELS if known in rows}
            _write(path, results)
            progress.advance(task)
    return results


def _head(results: dict[str, Any], plan: Plan) -> None:
    """Where, when and with what. A file of another machine or of other versions is not added to."""
    head = {"machine": machine(), "versions": peers.versions(plan.tools)}
    for key, value in head.items():
        known = results.setdefault(key, value)
        if known != value and key == "machine":
            raise SystemExit(f"the result file is of another machine: {known}; name another with --output")
    results["versions"] |= head["versions"]
    results["date"] = dt.datetime.now(dt.UTC).date().isoformat()


def _progress() -> Progress:
    return Progress(TextColumn("{task.completed}/{task.total}"), BarColumn(), TimeElapsedColumn(),
                    TextColumn("{task.fields[what]}"))  # fmt: skip


def _write(path: Path, results: Mapping[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


def measure(name: str, plan: Plan, known: dict[str, Any]) -> dict[str, Any]:
    """The row of one model, what is known of it completed."""
    try:
        source = export(name)
    except Exception as error:  # an exporter that fails is a result of the row
        return known | {"error": f"export: {peers.one_line(error)}"}
    row = {"family": MODELS[name].architecture.family} | known
    row |= _facts(source)
    cells: dict[str, Any] = row.setdefault("tools", {})
    with tempfile.TemporaryDirectory() as folder:
        outcomes = {}
        for tool in _missing(cells, plan, row["family"]):
            target = Path(folder) / f"{tool}.onnx"
            cells[tool] = optimized(tool, source, target, row["family"])
            if "difference" in cells[tool]:
                outcomes[tool] = target
        for setting in plan.settings:
            _time(row, cells, source, outcomes, setting, plan.seconds)
    return row


def _missing(cells: Mapping[str, Any], plan: Plan, family: str) -> list[str]:
    """The tools with something left to measure: what failed or is wrong is not tried again."""
    return [
        tool
        for tool in plan.tools
        if peers.applies(tool, family)
        and not ("error" in cells.get(tool, {}) or "wrong" in cells.get(tool, {}))
        and not set(plan.columns) <= cells.get(tool, {}).get("timings", {}).keys()
    ]


def _facts(path: Path) -> dict[str, Any]:
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return {"opset": opset, "nodes": peers.count(model), "bytes": path.stat().st_size}


def optimized(tool: str, source: Path, target: Path, family: str) -> dict[str, Any]:
    """One tool's outcome: what it cost, how large it is, and how far it is from the original, or why there is none."""
    cell = peers.run(tool, source, target, family)
    if "error" in cell:
        return cell
    cell |= {"nodes": peers.count(onnx.load(target)), "bytes": target.stat().st_size}
    return cell | _job("check", {"source": str(source), "target": str(target)})


def _time(
    row: dict[str, Any],
    cells: dict[str, Any],
    source: Path,
    outcomes: Mapping[str, Path],
    setting: Setting,
    seconds: float,
) -> None:
    """Timings of the original and all outcomes in one setting."""
    todo = {tool: str(path) for tool, path in outcomes.items() if column(setting) not in cells[tool].get("timings", {})}
    if not todo and column(setting) in row.get("original", {}):
        return
    job = {
        "source": str(source),
        "outcomes": todo,
        "provider": setting.provider,
        "threads": setting.threads,
        "seconds": seconds * (1 + len(todo)),
    }
    found = _job("time", job)
    if "error" in found:
        row["error"] = f"timing, {column(setting)}: {found['error']}"
        return
    row.setdefault("original", {})[column(setting)] = found["original"]
    for tool, timing in found["outcomes"].items():
        cells[tool].setdefault("timings", {})[column(setting)] = timing


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
    samples = dict(zip(paths, interleaved(runs, seconds=job["seconds"]), strict=True))
    loads = _loads(paths, setting)
    original = samples[""]
    outcomes = {}
    for tool in job["outcomes"]:
        found = speedup(original, samples[tool])
        outcomes[tool] = {
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
    return {"original": seconds | whole, "outcomes": outcomes}


def _loads(paths: Mapping[str, str], setting: Setting) -> dict[str, float]:
    """Seconds to make a session: the least of three, in turns."""
    runs = [lambda path=path: setting.open(path) for path in paths.values()]
    return {tool: s.minimum for tool, s in zip(paths, interleaved(runs, seconds=0, rounds=(3, 3)), strict=True)}


def _headroom(source: str, setting: Setting, feeds: Mapping[str, Any]) -> float:
    """ONNX Runtime's time in all kernels over its time in those of Conv, Gemm and MatMul, of the original."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = setting.cores
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = onnxruntime.InferenceSession(source, options, providers=[setting.provider_name])
        for _ in range(5):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    kernels = kernels[len(kernels) // 5 :]  # the first run warms up
    all_ = sum(event["dur"] for event in kernels)
    heavy = sum(event["dur"] for event in kernels if event["args"]["op_name"] in KERNELS)
    return round(all_ / heavy, 3) if heavy else float(np.inf)


def main(arguments: Iterable[str]) -> None:
    """A job, given as JSON; its result is the last line of the output."""
    kind, job = arguments
    found = {"check": check, "time": timed}[kind](json.loads(job))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
