"""Optimize every model with every tool, check the outcomes, time them against the original; rows of a result file.

Each tool runs in a process of its own, and so does each check: what crashes takes nothing along. Outcomes are timed by
``graphopt bench``, which interleaves the original and all outcomes, each under ORT_ENABLE_ALL, in an order drawn anew
for each round; its ratios are those of one round. That is done in several processes, for where a session's memory lies
can change its speed and stays as it is in one process. The tool `plain` is a copy of the original: what it shows is
noise. What a file already holds is kept if it was made under the same circumstances, so that a run that was interrupted
goes on where it was, and one after a change measures what the change concerns.

`processes` has the median of each process, and `median` is their geometric mean (in rows that were made before
2026-11-26, the median of all rounds). `low` and `high` are the widest of these medians and of the interval in which the
median lies with 95 % confidence: no confidence can be stated for so few processes. There is a verdict where the rounds
of each process say the same by themselves.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import tools
from benchmarks.environment import digest, gpu, job, made, one_line
from benchmarks.models import MODELS, export, exporters
from benchmarks.results import ORIGINAL, Results, Row, reason, values, write_rows
from benchmarks.tools import ALL, OWN, PLAIN, SEARCH, Task
from graphopt.base.errors import UsageError
from graphopt.base.executors import make_executor
from graphopt.runtime.measure import Speedup, TimingVerdict, geometric_mean_speedup
from graphopt.runtime.profile import is_heavy_kernel
from graphopt.runtime.session_setting import SessionSetting

LIMIT = 900.0
"""Seconds after which a check or a process of a timing is given up."""

PROCESSES = 3
"""Processes of each timing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured."""

    models: Sequence[str]
    tools: Sequence[str]
    settings: Sequence[SessionSetting]
    seconds: float
    """Limit of the timing of each model, tool and setting: it ends once the intervals are narrow."""
    search: float = SEARCH
    """Limit of the search for each model and setting, in seconds."""
    again: bool = False
    """Measure also what the file holds."""
    failed: bool = False
    """Measure again what failed: a time limit may have been the reason, or a machine."""
    limit: float | None = None
    """Seconds after which a tool, a check or a process of a timing is given up, instead of the two `LIMIT`."""
    dask: str | None = None
    """Scheduler of a cluster of equal machines, each of which measures one model at once."""


def name_of(setting: SessionSetting) -> str:
    """Return the name of a setting in result files, like `cpu-1`."""
    return f"{setting.provider}-{setting.threads or 'all'}"


def run(plan: Plan, path: Path) -> Results:
    """Fill the result file with what the plan asks for and the file lacks, or has of other circumstances.

    Raises:
        UsageError: the file was made on another machine, or is none; or a device or the exporters are missing.
    """
    columns = (TextColumn("{task.description:24}"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn())
    results = Results.read(path) if path.exists() else Results(())
    with make_executor(dask=plan.dask) as runs, Progress(*columns) as progress:
        ((_, here),) = runs.imap_unordered(_require_start, [plan.settings[0]])
        for machine in values(results.rows, "made", "machine"):
            if machine != here:
                raise UsageError(f"{path} is of another machine, {machine} and not {here}; name another with --output")
        bar = progress.add_task("models", total=len(plan.models))
        known = {name: Results(tuple(row for row in results.rows if row["model"] == name)) for name in plan.models}
        for place, rows in runs.imap_unordered(_measured, [(name, plan, known[name]) for name in plan.models]):
            results = _updated(results, rows)
            if len(machines := values(results.rows, "made", "machine")) > 1:
                raise UsageError(f"the workers are not alike, and one file is of one machine: {' and '.join(machines)}")
            write_rows(path, results.rows)
            progress.update(bar, advance=1, description=plan.models[place])
    return results


def _require_start(setting: SessionSetting) -> str:
    """Return the machine; raise UsageError if the provider does not start: no tool is to be blamed for that."""
    if not setting.is_cpu:
        value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
        setting.open(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10))
    return str(made("onnxruntime")["machine"])


def _updated(results: Results, rows: Sequence[Row]) -> Results:
    """Return results with rows added or replaced, in the order of the suite."""
    found = {(row["model"], row["tool"], row["setting"]): row for row in (*results.rows, *rows)}
    models, names = list(MODELS), [ORIGINAL, *ALL]
    order = sorted(found, key=lambda key: (models.index(key[0]), key[2], names.index(key[1])))
    return Results(tuple(found[key] for key in order))


# -- a model -----------------------------------------------------------------------------------------------------------


def _measured(task: tuple[str, Plan, Results]) -> list[Row]:
    name, plan, known = task
    with tempfile.TemporaryDirectory() as folder:
        return _Model(name, plan, known, Path(folder)).measure()


def is_current(row: Row, circumstances: Row) -> bool:
    """Return whether a row was made under the same circumstances, on whatever day and commit."""

    def deciding(some: Row) -> Row:
        return {key: value for key, value in some.items() if key not in ("date", "graphopt")}

    return deciding(row.get("made", {})) == deciding(circumstances)


Timings: TypeAlias = Mapping[str, Row]
"""Times of the original, under no name, and of outcomes, by tool; or why they cannot be timed."""


@dataclass(frozen=True, slots=True)
class _Model:
    """One model, of which some rows may be known."""

    name: str
    plan: Plan
    known: Results
    folder: Path
    """Folder of outcomes and of the outputs of the original, for as long as they are needed."""

    @property
    def limit(self) -> float:
        return self.plan.limit or LIMIT

    def measure(self) -> list[Row]:
        """Return the rows that are missing, or of other circumstances."""
        model = MODELS[self.name]
        facts: Row = {"family": model.architecture.family, "published": model.is_published}
        facts |= {"quantized": model.quantized, "exporters": exporters()}
        try:
            source = export(self.name)
        except ModuleNotFoundError as error:
            how = "pip install -e '.[cpu,bench]'"
            raise UsageError(f"{error.name} is missing, and models are exported with it: {how}") from error
        except Exception as error:  # an exporter that fails is a result
            failure = facts | {"error": f"export: {one_line(error)}"}
            made_at, names = self.circumstances(PLAIN, ""), map(name_of, self.plan.settings)
            return [self.row(ORIGINAL, setting, made_at, failure) for setting in names]
        facts |= tools.facts(source)
        return [row for setting in self.plan.settings for row in self.measure_in(setting, source, facts)]

    def row(self, tool: str, setting: str, circumstances: Row, found: Row) -> Row:
        return {"model": self.name, "tool": tool, "setting": setting, "made": circumstances, **found}

    def circumstances(self, tool: str, file: str) -> Row:
        """Return what the numbers of a tool depend on."""
        limits = {"seconds": self.plan.seconds} | ({"search": self.plan.search} if ALL[tool].searches else {})
        device = {} if self.plan.settings[0].is_cpu or not (found := gpu()) else {"gpu": found}
        return made(ALL[tool].package) | device | {"file": file} | limits

    def measure_in(self, setting: SessionSetting, source: Path, facts: Row) -> list[Row]:
        """Return the rows of one setting; each timing has its own copy of the original."""
        name, file = name_of(setting), digest(source)
        conditions = {
            tool: self.circumstances(tool, file) for tool in self.plan.tools if tools.applies(tool, facts["family"])
        }
        wanted = [
            tool for tool in conditions if self.is_wanted(self.known.get(self.name, tool, name), conditions[tool])
        ]
        if not wanted:
            return []
        if PLAIN in conditions:
            wanted = list(dict.fromkeys([PLAIN, *wanted]))
        original = self.row(ORIGINAL, name, self.circumstances(PLAIN, file), facts)
        said = self.job("reference", {"source": str(source), "folder": str(self.folder)})
        if said:
            return [original | said]
        outcomes = {tool: self.outcome(tool, setting, source, facts["family"]) for tool in wanted}
        timings = self.timings([tool for tool in wanted if not reason(outcomes[tool])], setting, source)
        if "error" in timings[""]:
            return [original | {"error": f"timing, {name}: {timings['']['error']}"}]
        profiles = self.profiles([tool for tool in OWN if "timing" in timings.get(tool, {})], setting, source)
        found = {tool: outcomes[tool] | timings.get(tool, {}) | profiles.get(tool, {}) for tool in wanted}
        rows = [self.row(tool, name, conditions[tool], found[tool]) for tool in wanted]
        return [original | timings[""] | profiles[""], *rows]

    def is_wanted(self, row: Row, circumstances: Row) -> bool:
        return self.plan.again or not is_current(row, circumstances) or (self.plan.failed and bool(reason(row)))

    def job(self, kind: str, arguments: Row) -> Row:
        return job("benchmarks.checks", kind, json.dumps(arguments), limit=self.limit)

    def target(self, tool: str, setting: SessionSetting) -> Path:
        return self.folder / f"{tool}-{name_of(setting)}.onnx"

    def outcome(self, tool: str, setting: SessionSetting, source: Path, family: str) -> Row:
        """Return what an outcome cost, how large it is, and how far it is from the original, or why there is none."""
        target = self.target(tool, setting)
        task = Task(tool, str(source), str(target), family, setting.provider, setting.threads, self.plan.search)
        found = tools.run(task, self.plan.limit or tools.LIMIT)
        if "error" not in found:
            try:
                found |= {"nodes": tools.count(onnx.load(target)), "bytes": target.stat().st_size}
                where = {"folder": str(self.folder), "provider": setting.provider, "threads": setting.threads}
                found |= self.job("check", {"source": str(source), "target": str(target), **where})
            except Exception as error:  # an outcome that is no model is the result
                found["error"] = f"no model: {one_line(error)}"
        return {key: self.placeless(value) if isinstance(value, str) else value for key, value in found.items()}

    def placeless(self, text: str) -> str:
        """Return a reason that is the same in the next run, whose folder has another name."""
        return text.replace(f"{self.folder}/", "")

    # -- timings -------------------------------------------------------------------------------------------------------

    def timings(self, timed: Sequence[str], setting: SessionSetting, source: Path) -> Timings:
        """Time the original and outcomes; an outcome that cannot be timed with the original alone has an error."""
        failed: dict[str, Row] = {}
        found = self.interleaved(timed, setting, source, self.plan.seconds, PROCESSES)
        if "error" in found[""] and "error" not in self.interleaved([], setting, source, 0.0, 1)[""]:
            for tool in timed:
                alone = self.interleaved([tool], setting, source, 0.0, 1)[""]
                if "error" in alone:
                    failed[tool] = {"error": self.placeless(f"timing: {alone['error']}")}
            left = [tool for tool in timed if tool not in failed]
            found = self.interleaved(left, setting, source, self.plan.seconds, PROCESSES)
        return {**found, **failed}

    def interleaved(
        self, timed: Sequence[str], setting: SessionSetting, source: Path, seconds: float, processes: int
    ) -> Timings:
        """Time the original and outcomes in some processes, one after the other."""
        parts = []
        for number in range(processes):
            names = random.Random(number).sample(timed, len(timed))
            paths = [str(source), *(str(self.target(name, setting)) for name in names)]
            found = self.bench(paths, setting, "--seconds", str(seconds / processes))
            if "error" in found:
                return {"": found}
            parts.append(dict(zip(["", *names], found["cases"][0]["timings"], strict=True)))
        spread = {name: statistics.median(part[name]["spread"] for part in parts) for name in parts[0]}
        timings: dict[str, Row] = {
            name: {"timing": pooled([part[name]["speedup"] for part in parts]) | {"spread": round(spread[name], 4)}}
            for name in timed
        }
        own = [part[""] for part in parts]
        timings[""] = {
            "minimum_ms": round(min(each["minimum"] for each in own) * 1e3, 4),
            "median_ms": round(statistics.median(each["median"] for each in own) * 1e3, 4),
            "spread": round(spread[""], 4),
        }
        return timings

    def bench(self, paths: Sequence[str], setting: SessionSetting, *options: str) -> Row:
        """Run `graphopt bench` in a process of its own."""
        where = ("--provider", setting.provider, "--threads", str(setting.threads), "--json")
        return job("graphopt", "bench", *paths, *where, *options, limit=self.limit)

    def profiles(self, timed: Sequence[str], setting: SessionSetting, source: Path) -> Timings:
        """Profile the original, whose headroom follows, and outcomes; on devices a kernel's time is not known."""
        found: dict[str, Row] = {"": {"headroom": None}}
        if setting.is_cpu:
            paths = [str(source), *(str(self.target(tool, setting)) for tool in timed)]
            listed = self.bench(paths, setting, "--seconds", "0", "--profile").get("profiles", [])
            for tool, profile in zip(["", *timed], listed, strict=bool(listed)):
                kernels = {row["operator"]: [row["count"], round(row["seconds"] * 1e3, 4)] for row in profile["rows"]}
                found[tool] = {"profile": kernels}
                heavy = sum(ms for operator, (_, ms) in kernels.items() if is_heavy_kernel(operator))
                if not tool:
                    whole = sum(ms for _, ms in kernels.values())
                    found[""]["headroom"] = round(whole / heavy, 3) if heavy else None
        return found


def pooled(parts: Sequence[Mapping[str, Any]]) -> Row:
    """Return the ratio of a timing, of what each of its processes found."""
    ratios = [Speedup(**{field.name: part[field.name] for field in fields(Speedup)}) for part in parts]
    medians, whole = [ratio.median for ratio in ratios], geometric_mean_speedup(ratios)
    whole = replace(whole, low=min(whole.low, *medians), high=max(whole.high, *medians))
    verdicts = {ratio.verdict for ratio in ratios}
    numbers = {name: round(getattr(whole, name), 4) for name in ("minimum", "median", "low", "high")}
    rounds = sum(ratio.rounds for ratio in ratios)
    verdict = verdicts.pop() if len(verdicts) == 1 else TimingVerdict.SAME
    return {**numbers, "processes": [round(each, 4) for each in medians], "rounds": rounds, "verdict": str(verdict)}
