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

    row: {"family": "ResNet", "published": false, "quantized": "" or how, "opset": 20, "nodes": 122, "bytes": 1000,
          "model": "hash of the file", "exporters": {package: version},
          ["error": "why nothing is known: no export, the original fails, or no input moves its outputs",]
          ["insensitive": true,  # with that last error]
          "original": {column: {"made": made, "minimum_ms": 1.0, "median_ms": 1.1, "spread": 0.02,
                                "headroom": 1.2}},
          "tools": {tool: cell}}  # of a tool that searches: {tool: {"settings": {column: cell}}}

    cell: {"made": made, "seconds": 1.2, "memory_mb": 120, "nodes": 100, "bytes": 900, "difference": 1e-7,
           ["error": "the tool or the outcome does not run",] ["wrong": "the outputs differ",]
           ["search": {"stop": "all of it was looked at", "regions": 4, "copies": 8, "states": 28, "trials": 12,
                       "timed": true, "notes": ["..."]},]
           "timings": {column: timing}}

    timing: {"minimum": 1.1, "median": 1.1, "low": 1.05, "high": 1.15, "processes": [1.09, 1.1, 1.12], "rounds": 180,
             "verdict": "faster", "spread": 0.02, "loading": 1.0}

    made: {"date": "2026-11-22", "seconds": 2.0, "model": "hash of the file", "versions": {package: version},
           # of graphopt's columns also:
           ["graphopt": "v0.1.0-3-g61652aa", "sources": "hash of its sources and of its proofs",]
           ["search": 60.0]}

A column is a setting, like `cpu-1` or `cpu-all`. `headroom` is null on devices, and where no kernel is a heavy one.
`median` is of the rounds of all processes, `processes` of each. `low` and `high` are the widest of the medians of the
single processes and of the interval in which the median of all rounds lies with 95 % confidence: no confidence can be
stated for so few processes. `loading` is the processor time of making a session, of all threads, as a multiple of the
original's. The verdict is `faster` or `slower` only where the fastest runs, the median of all and that of each
process say so, each by more than graphopt.runtime.measure.TimingPolicy.noise, and the interval does not hold 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import onnx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import jobs
from benchmarks import tools as peers
from benchmarks.cells import outcomes as outcomes_of
from benchmarks.cells import reason
from benchmarks.checks import gpu, machine, today
from benchmarks.models import MODELS, export, exporters
from graphopt.base.engine import engine
from graphopt.base.errors import UsageError
from graphopt.base.ort import require_onnxruntime
from graphopt.runtime.measure import Samples, Speedup, Verdict, speedup
from graphopt.runtime.sessions import Setting

LIMIT = 900.0
"""Seconds after which a check or a process of a timing is given up."""

PROCESSES = 3
"""In which each timing takes place."""

Made: TypeAlias = dict[str, Any]
"""When and under which circumstances something was measured."""


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
    failed: bool = False
    """Of what it holds, measure again what failed: a time limit may have been the reason, or a machine."""
    limit: float | None = None
    """Seconds after which a tool, a check or a process of a timing is given up; those of this module and of `tools`."""
    dask: str | None = None
    """The scheduler of a cluster of equal machines, each of which measures one model at once."""

    @property
    def job_limit(self) -> float:
        return self.limit or LIMIT

    @property
    def tool_limit(self) -> float:
        return self.limit or peers.LIMIT


@dataclass(frozen=True, slots=True)
class Done:
    """What a run took, in seconds, and the rows of the result file by then."""

    exports: float
    measuring: float
    rows: Mapping[str, Any]


def column(setting: Setting) -> str:
    """The name under which a setting's timings are kept, like `cpu-1`."""
    return f"{setting.provider}-{setting.threads or 'all'}"


def run(plan: Plan, path: Path) -> Done:
    """Fill the result file with what the plan asks for and the file lacks, or has of other circumstances.

    Raises:
        UsageError: the file was made elsewhere or otherwise, or is none; or a device or the exporters are missing.
    """
    with engine(dask=plan.dask) as runs, _progress() as progress:
        ((_, head),) = runs.each(_ready, [plan])
        results = _known(path, head) if path.exists() else {**head, "date": today(), "models": {}}
        rows: dict[str, Any] = results["models"]
        _forget(rows, plan)
        start = time.perf_counter()
        here = () if plan.dask else progress.track(plan.models, description="exports")  # else each exports for itself
        sources = {name: _exported(name) for name in here}
        exported = time.perf_counter()
        tasks = [_Task(name, sources.get(name), plan, rows.get(name, {})) for name in plan.models]
        task = progress.add_task("models", total=len(tasks))
        for place, (machine_, row) in runs.each(_measured, tasks):
            if machine_ != head:
                raise UsageError(f"the workers are not alike, and one file is of one machine: {machine_} and {head}")
            if row != tasks[place].known:
                results["date"] = today()
            rows[tasks[place].name] = row
            results["models"] = rows = {known: rows[known] for known in MODELS if known in rows}
            _write(path, results)
            progress.update(task, advance=1, description=tasks[place].name)
    return Done(exported - start, time.perf_counter() - exported, rows)


@dataclass(frozen=True, slots=True)
class _Task:
    """A model that is measured somewhere."""

    name: str
    source: Path | str | None
    """Its file, or why there is none; None where it is to be exported."""
    plan: Plan
    known: dict[str, Any]
    """What the result file holds of it."""


def _ready(plan: Plan) -> dict[str, Any]:
    """Where and how a run takes place; raise UsageError where it cannot."""
    _require_start(plan.settings[0])
    return _head(plan)


def _measured(task: _Task) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where a model was measured, and its row."""
    source = _exported(task.name) if task.source is None else task.source
    return _head(task.plan), measure(task.name, source, task.plan, deepcopy(task.known))


def _head(plan: Plan) -> dict[str, Any]:
    """Where and how, for all that the file holds."""
    (provider,) = {setting.provider for setting in plan.settings}
    device = {} if plan.settings[0].is_cpu or not (found := gpu()) else {"gpu": found}
    return {
        "machine": machine(),
        **device,
        "onnxruntime": require_onnxruntime().__version__,
        "provider": provider,
        "spinning": any(setting.spinning for setting in plan.settings),
    }


def read(path: Path) -> dict[str, Any]:
    """A result file.

    Raises:
        UsageError: there is none, or it is something else.
    """
    try:
        results: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {peers.one_line(error)}") from error
    if not isinstance(results, dict) or not results.keys() >= _HEAD or not _are_rows(results["models"]):
        raise UsageError(f"{path} is not a result file of `python -m benchmarks run`")
    return results


_HEAD = {"machine", "onnxruntime", "provider", "spinning", "date", "models"}
"""What each result file has."""


def _are_rows(models: Any) -> bool:
    """Whether these are rows of models; what is in their cells is not looked at."""
    return isinstance(models, dict) and all(isinstance(row, dict) and "family" in row for row in models.values())


def _known(path: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """What a file holds. One that was made elsewhere or otherwise is not added to."""
    results = read(path)
    for key in head:
        if results.get(key) != head[key]:
            raise UsageError(
                f"{path} has another {key}, {results.get(key)} and not {head[key]}; name another with --output"
            )
    return results


def _forget(rows: Mapping[str, Any], plan: Plan) -> None:
    """What the file holds of the models, tools and settings that are named and is to be measured again."""
    wanted = {"", *map(column, plan.settings)}
    for name in plan.models:
        found = rows.get(name, {}).get("tools", {})
        for tool in found.keys() & set(plan.tools):
            for setting, cell in outcomes_of(found[tool]).items():
                if setting in wanted and (plan.again or (plan.failed and reason(cell))):
                    cell.clear()


def _require_start(setting: Setting) -> None:
    """Raises UsageError where a provider is installed and does not start: no tool is to be blamed for it."""
    if not setting.is_cpu:
        value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
        opset = onnx.helper.make_opsetid("", 18)
        setting.open(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10))


def _exported(name: str) -> Path | str:
    """The file, or why there is none."""
    try:
        return export(name)
    except ModuleNotFoundError as error:
        way_out = "pip install -e '.[cpu,bench]'"
        raise UsageError(f"{error.name} is missing, and models are exported with it: {way_out}") from error
    except Exception as error:  # an exporter that fails is a result of the row
        return f"export: {peers.one_line(error)}"


def _progress() -> Progress:
    return Progress(TextColumn("{task.description:24}"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())


def _write(path: Path, results: Mapping[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


# -- what numbers depend on --------------------------------------------------------------------------------------------


def circumstances(tool: str, plan: Plan, model: str) -> Made:
    """What a tool's numbers depend on, but for the machine; `model` is the hash of the file."""
    made: Made = {"date": today(), "seconds": plan.seconds, "model": model, "versions": peers.versions(tool)}
    if peers.ALL[tool].package == "graphopt":
        made |= peers.revision()
    return made | ({"search": plan.search} if tool in peers.TUNED else {})


def is_current(cell: Mapping[str, Any], made: Made) -> bool:
    """Whether what is known was made under the same circumstances, on whatever day and commit."""

    def deciding(some: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in some.items() if key not in ("date", "graphopt")}

    return deciding(cell.get("made", {})) == deciding(made)


def digest(path: Path) -> str:
    """Of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# -- a row -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool makes of a model."""

    tool: str
    path: Path
    settings: Sequence[Setting]
    """In which it is timed."""
    cell: dict[str, Any]
    """What is known of it."""
    made: Made
    """The circumstances now."""

    @property
    def has_failed(self) -> bool:
        return "error" in self.cell or "wrong" in self.cell

    def lacks(self, setting: Setting) -> bool:
        """Whether it can be timed in a setting, and was not."""
        return not self.has_failed and setting in self.settings and column(setting) not in self.cell.get("timings", {})


def measure(name: str, source: Path | str, plan: Plan, known: Mapping[str, Any]) -> dict[str, Any]:
    """The row of one model, what is known of it completed; `source` is its file, or why there is none."""
    row = {"family": MODELS[name].architecture.family, **known}
    if isinstance(source, str):
        return row | {"error": source}
    row.pop("error", None)
    row.pop("insensitive", None)
    row |= {"published": MODELS[name].is_published, "quantized": MODELS[name].quantized, **_facts(source)}
    with tempfile.TemporaryDirectory() as folder:
        found = list(outcomes(row, plan, Path(folder)))
        wanted = [outcome for outcome in found if any(map(outcome.lacks, outcome.settings))]
        original = circumstances(peers.PLAIN, plan, row["model"])
        _drop_stale(row, plan, original)
        if not wanted and all(column(setting) in row["original"] for setting in plan.settings):
            return row
        wanted += _with_noise(found, wanted, plan)
        said = _job("reference", {"source": str(source), "folder": folder}, plan.job_limit)
        if said:
            return row | said
        for outcome in wanted:
            cell = _placeless(optimized(outcome, source, row["family"], plan), folder)
            for why in ("error", "wrong"):  # of an earlier run
                outcome.cell.pop(why, None)
            outcome.cell.update({"made": outcome.made, **cell})
        for setting in plan.settings:
            _time(row, [some for some in wanted if some.lacks(setting)], source, setting, plan, original)
    return row


def _with_noise(found: Sequence[Outcome], wanted: Sequence[Outcome], plan: Plan) -> list[Outcome]:
    """The copy of the original, if it is not wanted itself: each timing has its own, and what is known of it goes."""
    plain = [outcome for outcome in found if outcome.tool == peers.PLAIN and outcome not in wanted]
    for outcome in plain:
        for setting in plan.settings:
            if any(other.lacks(setting) for other in wanted):
                outcome.cell["timings"].pop(column(setting), None)
    return plain


def _drop_stale(row: dict[str, Any], plan: Plan, made: Made) -> None:
    """Times of the original that were taken under other circumstances."""
    timed = row.setdefault("original", {})
    for name in map(column, plan.settings):
        if not is_current(timed.get(name, {}), made):
            timed.pop(name, None)


def outcomes(row: dict[str, Any], plan: Plan, folder: Path) -> Iterator[Outcome]:
    """Of each tool that applies: one for all settings, or one for each if it searches; the row has their cells.

    A cell that was made under other circumstances is emptied.
    """
    cells = row.setdefault("tools", {})
    for tool in plan.tools:
        if not peers.applies(tool, row["family"]):
            continue
        made = circumstances(tool, plan, row["model"])
        if tool not in peers.TUNED:
            cell = cells[tool] = _fresh(cells.get(tool, {}), made)
            yield Outcome(tool, folder / f"{tool}.onnx", plan.settings, cell, made)
            continue
        parts = cells.setdefault(tool, {"settings": {}})["settings"]
        for setting in plan.settings:
            cell = parts[column(setting)] = _fresh(parts.get(column(setting), {}), made)
            yield Outcome(tool, folder / f"{tool}-{column(setting)}.onnx", (setting,), cell, made)


def _fresh(cell: dict[str, Any], made: Made) -> dict[str, Any]:
    return cell if is_current(cell, made) else {}


def _facts(path: Path) -> dict[str, Any]:
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    size = {"nodes": peers.count(model), "bytes": path.stat().st_size}
    return {"opset": opset, **size, "model": digest(path), "exporters": exporters()}


def optimized(outcome: Outcome, source: Path, family: str, plan: Plan) -> dict[str, Any]:
    """What an outcome cost, how large it is, and how far it is from the original, or why there is none."""
    setting = outcome.settings[0]  # those that have several do not ask for it
    paths = str(source), str(outcome.path)
    task = peers.Task(outcome.tool, *paths, family, setting.provider, setting.threads, plan.search)
    cell = peers.run(task, plan.tool_limit)
    if "error" in cell:
        return cell
    try:
        cell |= {"nodes": peers.count(onnx.load(outcome.path)), "bytes": outcome.path.stat().st_size}
    except Exception as error:  # an outcome that is no model is the result
        return cell | {"error": f"no model: {peers.one_line(error)}"}
    job = {"source": paths[0], "target": paths[1], "folder": str(outcome.path.parent)}
    return cell | _job("check", job | _where(setting), plan.job_limit)


def _placeless(cell: dict[str, Any], folder: str) -> dict[str, Any]:
    """With reasons that are the same in the next run, whose folder has another name."""
    return {key: value.replace(f"{folder}/", "") if isinstance(value, str) else value for key, value in cell.items()}


def _where(setting: Setting) -> dict[str, Any]:
    """A setting in a job."""
    return {"provider": setting.provider, "threads": setting.threads}


# -- timings -----------------------------------------------------------------------------------------------------------


def _time(row: dict[str, Any], todo: Sequence[Outcome], source: Path, setting: Setting, plan: Plan, made: Made) -> None:
    """Timings of the original and of outcomes in one setting; what cannot be timed with the original alone is out."""
    if not todo and column(setting) in row["original"]:
        return
    found = _timed(todo, source, setting, plan)
    brief = replace(plan, seconds=0.0)
    if "error" in found and todo and "error" not in _timed([], source, setting, brief, processes=1):
        for outcome in todo:
            alone = _timed([outcome], source, setting, brief, processes=1)
            if "error" in alone:
                outcome.cell.update(_placeless({"error": f"timing: {alone['error']}"}, str(outcome.path.parent)))
        todo = [outcome for outcome in todo if not outcome.has_failed]
        found = _timed(todo, source, setting, plan)
    if "error" in found:
        row["error"] = f"timing, {column(setting)}: {found['error']}"
        return
    row["original"][column(setting)] = {"made": made, **found["original"]}
    for outcome in todo:
        outcome.cell.setdefault("timings", {})[column(setting)] = found["outcomes"][outcome.tool]


def _timed(
    todo: Sequence[Outcome], source: Path, setting: Setting, plan: Plan, processes: int = PROCESSES
) -> dict[str, Any]:
    """The original and outcomes, interleaved in several processes one after the other, or an error."""
    paths = {outcome.tool: str(outcome.path) for outcome in todo}
    job = {"source": str(source), "outcomes": paths, "seconds": plan.seconds * (1 + len(todo)) / processes}
    parts = []
    for number in range(processes):
        parts.append(_job("time", {**job, **_where(setting), "number": number}, plan.job_limit))
        if "error" in parts[-1]:
            return parts[-1]
    return pooled(parts)


def pooled(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of a timing, of what each of its processes found."""
    names = parts[0]["samples"]
    samples = {tool: [Samples(tuple(part["samples"][tool])) for part in parts] for tool in names}
    original = _joined(samples[""])
    timings = {}
    for tool in names.keys() - {""}:
        medians = [speedup(*pair).median for pair in zip(samples[""], samples[tool], strict=True)]
        own = speedup(original, _joined(samples[tool]))
        bounds = min(own.low, *medians), max(own.high, *medians)
        timings[tool] = {
            "minimum": round(own.minimum, 4),
            "median": round(own.median, 4),
            "low": round(bounds[0], 4),
            "high": round(bounds[1], 4),
            "processes": [round(ratio, 4) for ratio in medians],
            "rounds": own.rounds,
            "verdict": str(_verdict(own, medians, bounds)),
            "spread": round(_joined(samples[tool]).spread, 4),
            "loading": round(median(part["loads"][tool] / part["loads"][""] for part in parts), 3),
        }
    seconds = {"minimum_ms": round(original.minimum * 1e3, 4), "median_ms": round(original.median * 1e3, 4)}
    whole = {"spread": round(original.spread, 4), "headroom": parts[0]["headroom"]}
    return {"original": seconds | whole, "outcomes": timings}


def _verdict(own: Speedup, medians: Sequence[float], bounds: tuple[float, float]) -> Verdict:
    """What all rounds together and each process say, if that is the same."""
    said = {Speedup(own.minimum, ratio, *bounds, own.rounds).verdict for ratio in (own.median, *medians)}
    return said.pop() if len(said) == 1 else Verdict.SAME


def _joined(samples: Iterable[Samples]) -> Samples:
    return Samples(tuple(second for part in samples for second in part.seconds))


def _job(kind: str, job: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """A check or a part of a timing in a process of its own."""
    return jobs.job("benchmarks.trials", kind, json.dumps(job), limit=limit)
