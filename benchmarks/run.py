"""Optimize every model with every tool, check the outcomes, time them against the original; rows of a result file.

Each tool runs in a process of its own, and so does each check: what crashes takes nothing along. Outcomes are timed by
``graphopt bench``, which interleaves the original and all outcomes, each under ORT_ENABLE_ALL, in an order drawn anew
for each round; its ratios are those of one round. That is done in several processes, for where a session's memory lies
can change its speed and stays as it is in one process. The tool `plain` is a copy of the original: what it shows is
noise. What a file already holds is kept if it was made under the same circumstances, so that a run that was interrupted
goes on where it was, and one after a change measures what the change concerns.

Of outcomes with the same bytes one is checked and timed for all: those that are their original share the timing of
`plain`. Where a search ended by itself and what it found was timed, the same tool with more seconds is not run again.
OpenVINO runs the original, in turns with ONNX Runtime, in other processes.

`processes` has the median of each process, and `median` is their geometric mean (in rows that were made before
2026-11-26, the median of all rounds). `low` and `high` are the widest of these medians and of the interval in which the
median lies with its `confidence` (95 % in rows without one): none can be stated for so few processes. There is a
verdict where the rounds of each process say the same by themselves.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from rich.progress import track

from benchmarks import tools
from benchmarks.checks import SEEDS
from benchmarks.environment import file_digest, gpu, job, machine, made, one_line
from benchmarks.models import EXPORTS, SUITE, WHEELS, describe, draw_inputs, locate
from benchmarks.results import ORIGINAL, Results, Row, reason, values, write_rows
from benchmarks.tools import ALL, PLAIN, Task
from graphopt.base.errors import UsageError
from graphopt.runtime.measure import Speedup, TimingVerdict, geometric_mean_speedup
from graphopt.runtime.profile import is_heavy_kernel
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.stopping import StopReason

LIMIT = 900.0
"""Seconds, beside those for a search, after which a tool, a check or a process of a timing is given up."""

PROCESSES = 2
"""Processes of each timing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Measurements that a run makes."""

    models: Sequence[str]
    """Names of exports or of models of packages, or paths of files."""
    tools: Sequence[str]
    settings: Sequence[SessionSetting]
    seconds: float
    """Limit of the timing of each model, tool and setting: it ends once the intervals are narrow."""
    search: float = math.inf
    """Limit of each search, in seconds, of tools that would search longer."""
    again: bool = False
    """Measure also what the file holds."""
    limit: float = LIMIT

    def search_seconds(self, tool: str) -> float:
        """Return the limit of a tool's search; 0 for one that does not search."""
        return min(self.search, ALL[tool].search)

    def __str__(self) -> str:
        """Return what is to be measured, and an upper bound of the hours if no process takes unusually long."""
        each = sum(self.search_seconds(tool) + self.seconds + TOOL_SECONDS for tool in self.tools)
        hours = len(self.models) * len(self.settings) * each / 3600
        count = f"{len(self.models)} models, {len(self.tools)} tools, {len(self.settings)} settings"
        return f"{count}: at most {hours:.1f} hours, beside exports that the cache lacks"


TOOL_SECONDS = 8.0
"""Seconds that starting a tool, its check and its part of a timing take beside the limits, on models of 150 ms."""


def run(plan: Plan, path: Path) -> Results:
    """Fill the result file with what the plan asks for and the file lacks, or has of other circumstances.

    Raises:
        UsageError: the file was made on another machine, or is none; or a device or the exporters are missing.
    """
    results = Results.read(path) if path.exists() else Results(())
    _require_start(plan.settings[0])
    for other in values(results.rows, "made", "machine"):
        if other != machine():
            raise UsageError(f"{path} is of another machine, {other} and not {machine()}; name another with --output")
    for name in track(plan.models, description="models"):
        rows = [*results.rows, *measured(name, plan, results)]
        found = {(row["model"], row["tool"], row["setting"]): row for row in rows}
        models, names = list(dict.fromkeys([*SUITE, *EXPORTS, *WHEELS, *(key[0] for key in found)])), [ORIGINAL, *ALL]
        order = sorted(found, key=lambda key: (models.index(key[0]), key[2], names.index(key[1])))
        results = Results(tuple(found[key] for key in order))
        write_rows(path, results.rows)
    return results


def _require_start(setting: SessionSetting) -> None:
    """Raise UsageError if the provider does not start: no tool is to be blamed for that."""
    if not setting.is_cpu:
        value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
        graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
        setting.open(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10))


# -- a model -----------------------------------------------------------------------------------------------------------


def is_current(row: Row, circumstances: Row) -> bool:
    """Return whether a row was made under the same circumstances, on whatever day and commit."""
    one, other = (
        {key: some[key] for key in some if key not in ("date", "graphopt")}
        for some in (row.get("made", {}), circumstances)
    )
    return one == other


Timings: TypeAlias = Mapping[str, Row]
"""Times of the original, under no name, and of outcomes, by tool; or why they cannot be timed."""


def measured(name: str, plan: Plan, known: Results) -> list[Row]:
    """Return the rows of a model that are missing, or of other circumstances."""
    facts, rows = describe(name), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        keep_inputs(name, Path(folder))
        for setting in plan.settings:
            run = _Run(name, plan, setting, known, Path(folder))
            try:
                source = locate(name)
                facts |= tools.facts(source)
            except ModuleNotFoundError as error:
                raise exporters_missing(error) from error
            except Exception as error:  # an exporter that fails is a result
                failure = {"error": f"{'export' if name in EXPORTS else 'the file'}: {one_line(error)}"}
                rows.append(run.row(ORIGINAL, run.circumstances(PLAIN, ""), facts | failure))
            else:
                rows += run.measure(source, facts)
    return rows


class ExportFailedError(Exception):
    """An exporter fails on a model, which is a result."""


def locate_source(name: str) -> str:
    """Return the path of the file of a model, which is exported first if need be.

    Raises:
        UsageError: the packages that export models are missing.
        ExportFailedError: they fail.
    """
    try:
        return str(locate(name))
    except ModuleNotFoundError as error:
        raise exporters_missing(error) from error
    except Exception as error:  # whatever an exporter raises
        raise ExportFailedError(f"export: {one_line(error)}") from error


def exporters_missing(error: ModuleNotFoundError) -> UsageError:
    """Return what a user is told without the packages that export models."""
    return UsageError(f"{error.name} is missing, and models are exported with it: pip install -e '.[cpu,bench]'")


def keep_inputs(name: str, folder: Path) -> None:
    """Write the inputs of a model of a package, which takes no others, where checks and timings find them."""
    for seed in SEEDS if name in WHEELS else ():
        (folder / f"inputs-{seed}").mkdir()
        for each, array in draw_inputs(WHEELS[name], seed).items():
            np.save(folder / f"inputs-{seed}" / f"{each}.npy", array)


@dataclass(frozen=True, slots=True)
class _Run:
    """One model in one setting, of which some rows may be known."""

    model: str
    plan: Plan
    setting: SessionSetting
    known: Results
    folder: Path
    """Folder of outcomes and of the outputs of the original, for as long as they are needed."""

    @property
    def inputs(self) -> Path:
        """The folder of inputs to optimize for and to time, if there are any that are not made up."""
        return self.folder / f"inputs-{SEEDS[0]}"

    def row(self, tool: str, circumstances: Row, found: Row) -> Row:
        return {"model": self.model, "tool": tool, "setting": name_of(self.setting), "made": circumstances, **found}

    def circumstances(self, tool: str, file: str) -> Row:
        """Return the circumstances on which the numbers of a tool depend."""
        limits = {"seconds": self.plan.seconds}
        limits |= {"search": self.plan.search_seconds(tool)} if ALL[tool].search else {}
        device = {} if self.setting.is_cpu or not (found := gpu()) else {"gpu": found}
        return made("onnx", "onnxruntime", ALL[tool].package) | device | {"file": file} | limits

    def measure(self, source: Path, facts: Row) -> list[Row]:
        """Return the rows; each timing has its own copy of the original."""
        file = file_digest(source)
        conditions = {tool: self.circumstances(tool, file) for tool in self.plan.tools}
        wanted = [tool for tool in self.plan.tools if self.is_wanted(tool, conditions[tool])]
        if not wanted:
            return []
        wanted = [tool for tool in self.plan.tools if tool in wanted or tool == PLAIN]
        original = self.row(ORIGINAL, self.circumstances(PLAIN, file), facts)
        if failure := self.check("reference", {"source": str(source), "folder": str(self.folder)}):
            return [original | failure]
        outcomes = self.outcomes([tool for tool in wanted if not ALL[tool].is_engine], source)
        twins = self.twins([tool for tool in outcomes if not reason(outcomes[tool])])
        timings = self.timings([*dict.fromkeys(twins.values())], source)
        if "error" in timings[""]:
            return [original | {"error": f"timing, {name_of(self.setting)}: {timings['']['error']}"}]
        found = {tool: outcome | timings.get(twins.get(tool, tool), {}) for tool, outcome in outcomes.items()}
        found |= {tool: self.engine(source) for tool in wanted if ALL[tool].is_engine}
        rows = [self.row(tool, conditions[tool], found[tool]) for tool in wanted]
        return [original | timings[""] | self.headroom(source), *rows]

    def is_wanted(self, tool: str, circumstances: Row) -> bool:
        known = self.known.get(self.model, tool, name_of(self.setting))
        return self.plan.again or not is_current(known, circumstances)

    def check(self, kind: str, arguments: Row) -> Row:
        return job("benchmarks.checks", kind, json.dumps(arguments), limit=self.plan.limit)

    def target(self, tool: str) -> Path:
        return self.folder / f"{tool}-{name_of(self.setting)}.onnx"

    def outcomes(self, tools: Sequence[str], source: Path) -> dict[str, Row]:
        """Return what each outcome cost, how large it is, and how far it is from the original, or why there is none."""
        found: dict[str, Row] = {}
        for tool in tools:
            found[tool] = self.finished(tool, found) or self.outcome(tool, source)
        twins = self.twins([tool for tool in found if not reason(found[tool])])
        where: Row = {"provider": self.setting.provider, "threads": self.setting.threads, "folder": str(self.folder)}
        checks = {
            tool: self.check("check", {"source": str(source), "target": str(self.target(tool))} | where)
            for tool in dict.fromkeys(twins.values())
        }
        found |= {tool: found[tool] | checks[twin] for tool, twin in twins.items()}
        return {tool: self.placeless(row) for tool, row in found.items()}

    def finished(self, tool: str, known: Mapping[str, Row]) -> Row:
        """Return the outcome of the same search with fewer seconds if that ended by itself and was timed; empty if none
        was: with more, what was left untimed may be shown to pay."""
        for other, row in known.items():
            search = row.get("search", {})
            ended = search.get("stop") in (StopReason.DONE, StopReason.BOUND) and search.get("timed")
            if ended and ALL[other].call is ALL[tool].call and ALL[other].search < ALL[tool].search:
                shutil.copyfile(self.target(other), self.target(tool))
                return row
        return {}

    def outcome(self, tool: str, source: Path) -> Row:
        """Return what an outcome cost, and how large it is, or why there is none."""
        where: Row = {"provider": self.setting.provider, "threads": self.setting.threads}
        target, seconds = self.target(tool), self.plan.search_seconds(tool)
        task = Task(tool, str(source), str(target), str(self.inputs), seconds=seconds, **where)
        found = tools.run(task, self.plan.limit)
        if "error" not in found:
            try:
                found |= {"nodes": tools.count(onnx.load(target)), "bytes": target.stat().st_size}
            except Exception as error:  # an outcome that is no model is the result
                found["error"] = f"no model: {one_line(error)}"
        return found

    def twins(self, named: Sequence[str]) -> dict[str, str]:
        """Return, for each tool, the first of them whose outcome has the same bytes."""
        first: dict[str, str] = {}
        return {tool: first.setdefault(file_digest(self.target(tool)), tool) for tool in named}

    def engine(self, source: Path) -> Row:
        """Return how another engine runs the original, timed in several processes."""
        seconds = self.plan.seconds / PROCESSES
        task = {"source": str(source), "folder": str(self.folder), "threads": self.setting.threads, "seconds": seconds}
        parts = [job("benchmarks.engine", json.dumps(task), limit=self.plan.limit) for _ in range(PROCESSES)]
        if failure := next((part for part in parts if reason(part)), None):
            return self.placeless(failure)
        speedups = [part.pop("speedup") for part in parts]
        return parts[0] | {"timing": pooled(speedups)}

    def placeless(self, row: Row) -> Row:
        """Return a row with reasons that are the same in the next run, whose folder has another name."""
        return {
            key: value.replace(f"{self.folder}/", "") if isinstance(value, str) else value for key, value in row.items()
        }

    # -- timings -------------------------------------------------------------------------------------------------------

    def timings(self, timed: Sequence[str], source: Path) -> Timings:
        """Time the original and outcomes; an outcome that cannot be timed with the original alone has an error."""
        failed: dict[str, Row] = {}
        found = self.interleaved(timed, source, self.plan.seconds, PROCESSES)
        if "error" in found[""] and "error" not in self.interleaved([], source, 0.0, 1)[""]:
            for tool in timed:
                if error := self.interleaved([tool], source, 0.0, 1)[""].get("error"):
                    failed[tool] = self.placeless({"error": f"timing: {error}"})
            left = [tool for tool in timed if tool not in failed]
            found = self.interleaved(left, source, self.plan.seconds, PROCESSES)
        return {**found, **failed}

    def interleaved(self, timed: Sequence[str], source: Path, seconds: float, processes: int) -> Timings:
        """Time the original and outcomes in some processes, one after the other."""
        parts = []
        for number in range(processes):
            names = ["", *random.Random(number).sample(timed, len(timed))]
            found = self.bench(names, source, "--seconds", str(seconds / processes))
            if "error" in found:
                return {"": found}
            parts.append(dict(zip(names, found["cases"][0]["timings"], strict=True)))
        spread = {name: round(statistics.median(part[name]["spread"] for part in parts), 4) for name in parts[0]}
        minimum = min(part[""]["minimum"] for part in parts) * 1e3
        median = statistics.median(part[""]["median"] for part in parts) * 1e3
        own = {"minimum_ms": round(minimum, 4), "median_ms": round(median, 4), "spread": spread[""]}
        ratios = {name: pooled([part[name]["speedup"] for part in parts]) for name in timed}
        return {"": own, **{name: {"timing": ratio | {"spread": spread[name]}} for name, ratio in ratios.items()}}

    def bench(self, names: Sequence[str], source: Path, *options: str) -> Row:
        """Run `graphopt bench` on outcomes, or the original, which has no name, in a process of its own."""
        paths = [str(self.target(name) if name else source) for name in names]
        where = ("--provider", self.setting.provider, "--threads", str(self.setting.threads), "--json")
        given = [f"--input={path.stem}:{path}" for path in self.inputs.glob("*.npy")]
        return job("graphopt", "bench", *paths, *where, *given, *options, limit=self.plan.limit)

    def headroom(self, source: Path) -> Row:
        """Return the time in all kernels of the original, as a multiple of that in the heavy ones, if it is known."""
        profiles = (
            self.bench([""], source, "--seconds", "0", "--profile").get("profiles") if self.setting.is_cpu else None
        )
        kernels = {row["operator"]: row["seconds"] for row in profiles[0]["rows"]} if profiles else {}
        heavy = sum(seconds for operator, seconds in kernels.items() if is_heavy_kernel(operator))
        return {"headroom": round(sum(kernels.values()) / heavy, 3) if heavy else None}


def name_of(setting: SessionSetting) -> str:
    """Return the name of a setting in result files, like `cpu-1`."""
    return f"{setting.provider}-{setting.threads or 'all'}"


def pooled(parts: Sequence[Mapping[str, Any]]) -> Row:
    """Return the ratio of a timing, of what each of its processes found."""
    ratios = [Speedup(**{field.name: part[field.name] for field in fields(Speedup)}) for part in parts]
    medians, whole = [ratio.median for ratio in ratios], geometric_mean_speedup(ratios)
    whole = replace(whole, low=min(whole.low, *medians), high=max(whole.high, *medians))
    verdicts = {ratio.verdict for ratio in ratios}
    numbers = {name: round(getattr(whole, name), 4) for name in ("minimum", "median", "low", "high")}
    rounds = sum(ratio.rounds for ratio in ratios)
    verdict = verdicts.pop() if len(verdicts) == 1 else TimingVerdict.SAME
    found = {**numbers, "confidence": whole.confidence, "noise": whole.noise, "rounds": rounds, "verdict": str(verdict)}
    return {**found, "processes": [round(each, 4) for each in medians]}
