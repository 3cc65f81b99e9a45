"""The commands that measure: ``python -m benchmarks run``, ``open_sizes``, ``report``, ``compare`` and others."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import (
    calibration,
    comparison,
    kernel_times,
    kernels,
    memory,
    neighbours,
    open_sizes,
    pipelines,
    report,
    scaling,
    search_time,
    tool_orders,
    training,
)
from benchmarks.models import EXPORTS, HELD_OUT, LOOKED_AT, MEMORY, OPEN, QUICK, SUITE, WHEELS
from benchmarks.results import FOLDER, ORIGINAL, Row, reason
from benchmarks.run import LIMIT, Plan, run
from benchmarks.tools import ALL, PLAIN
from graphopt.base.errors import ModelError, UsageError, did_you_mean
from graphopt.neighbours import DATA
from graphopt.runtime.session_setting import SessionSetting

QUICK_TOOLS = ("OnnxSlim", "graphopt-simplify", "graphopt")
QUICK_SEARCH = 4.0
QUICK_LIMIT = 30.0
"""Seconds after which a tool, a check or a process of a timing is given up, in a quick run."""

Number = TypeVar("Number", int, float)


def _run(given: argparse.Namespace) -> Iterator[str]:
    quick: bool = given.quick
    settings = _settings(given.provider, given.threads)
    able = [tool for tool in ALL if settings[0].is_cpu or not ALL[tool].is_engine]
    named = _known(given.tools or (QUICK_TOOLS if quick else able), able, "tool")
    plan = Plan(
        models=_models(given.models or (QUICK if quick else SUITE)),
        tools=list(dict.fromkeys([PLAIN, *named])),  # in each run: without it nobody knows the noise
        settings=settings,
        seconds=given.seconds or (0.7 if quick else 2.0),
        search=given.search_seconds or (QUICK_SEARCH if quick else math.inf),
        again=given.again,
        limit=QUICK_LIMIT if quick else LIMIT,
    )
    is_suite = {*SUITE} >= {*plan.models}
    name = f"{given.provider.lower()}{'-quick' if quick else ''}{'' if is_suite else '-others'}"
    path = given.output or FOLDER / f"{name}.jsonl"
    yield str(plan)
    results = run(plan, path)
    yield f"written: {path}; `python -m benchmarks report {path}` shows it"
    yield from _failures([row for row in results.failures() if row["model"] in plan.models], plan)


def _models(names: Collection[str]) -> list[str]:
    """Return the exports that are named, all of the architectures that are, those that are held out, and files."""
    architectures: dict[str, list[str]] = {"held-out": [*HELD_OUT], "looked-at": [*LOOKED_AT]}
    for name in (*EXPORTS, *WHEELS):
        architectures.setdefault(name.split(".")[0], []).append(name)
    _known([name for name in names if not name.endswith(".onnx")], {*EXPORTS, *WHEELS, *architectures}, "model")
    return list(dict.fromkeys(export for name in names for export in architectures.get(name, [name])))


def _known(names: Collection[str], known: Collection[str], what: str) -> Collection[str]:
    for name in names:
        if name not in known:
            listed = f"; there are {', '.join(known)}" if len(known) <= len(ALL) else ""
            raise UsageError(f"there is no {what} '{name}'{did_you_mean(name, known) or listed}")
    return names


def _settings(provider: str, threads: Sequence[int] | None) -> list[SessionSetting]:
    """Return what is measured: one setting on a device, for there the number of threads decides nothing.

    Raises:
        UsageError: the provider is missing, or threads do not fit.
    """
    if SessionSetting(provider).is_cpu:
        return [SessionSetting(provider, count) for count in threads or [1]]
    if threads and len(threads) > 1:
        raise UsageError(f"--threads takes one number with --provider {provider}")
    return [SessionSetting(provider, threads[0] if threads else 1)]


def _failures(failures: Sequence[Row], plan: Plan) -> Iterator[str]:
    """Yield how much failed of what was wanted.

    Raises:
        ModelError: all of it.
    """
    broken = {row["model"]: reason(row) for row in failures if row["tool"] == ORIGINAL}
    first = next((f"{name}: {why}" for name, why in broken.items()), "")
    if len(broken) == len(plan.models):
        raise ModelError(f"no model could be measured; {first}")
    if broken:
        yield f"{len(broken)} of {len(plan.models)} models could not be measured; {first}"
    if wrong := sum(row["tool"] in plan.tools for row in failures):
        yield f"{wrong} outcomes failed or are wrong; the report says why"


def _report(given: argparse.Namespace) -> Iterator[str]:
    for written in [*report.report(given.results), *([report.update_readme(given.results)] if given.readme else [])]:
        yield f"written: {written}"


def _neighbours(given: argparse.Namespace) -> Iterator[str]:
    fixtures = neighbours.fixtures()
    yield from neighbours.run([*_known(given.models or fixtures, fixtures, "fixture")], given.output)


COMMANDS: Mapping[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "run": _run,
    "report": _report,
    "compare": lambda given: comparison.compare(given.old, given.new),
    "open_sizes": lambda given: [
        f"written: {open_sizes.run(given.models or [*OPEN], given.search_seconds, given.output)}"
    ],
    "training": lambda given: [
        f"written: {training.run(given.networks, given.steps, given.output, budgets=not given.no_budgets)}"
    ],
    "scaling": lambda given: [f"written: {scaling.run(given.sizes, given.output)}"],
    "memory": lambda given: [f"written: {memory.run(given.models or [*MEMORY], given.part, given.output)}"],
    "calibration": lambda given: [
        f"written: {calibration.run(given.models, given.loops, given.decisions, given.output)}"
    ],
    "kernels": lambda given: [
        f"written: {kernels.run(_models(given.models or kernels.slower_models()), given.search_seconds, given.output)}"
    ],
    "neighbours": _neighbours,
    "tool_orders": lambda given: [
        f"written: {tool_orders.run(given.models or [*tool_orders.SMALL], given.search_seconds, given.output)}"
    ],
    "pipelines": lambda given: [f"written: {pipelines.run(given.models, given.stages, given.seconds, given.output)}"],
    "kernel_times": lambda given: [f"written: {kernel_times.run(given.models, given.held_out, given.output)}"],
    "search_time": lambda given: [
        f"written: {search_time.run(given.models, given.search_seconds, given.against, given.output)}"
    ],
}
"""Commands, each of which gives the lines to print."""


def _above(least: Number, convert: Callable[[str], Number]) -> Callable[[str], Number]:
    """Return what converts an argument to a number above another."""

    def converted(text: str) -> Number:
        number = convert(text)
        if not least < number < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not a number above {least:g}")
        return number

    return converted


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)
    seconds = _above(0.0, float)

    def add(name: str, text: str, output: Path | None = None) -> Callable[..., object]:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=COMMANDS[name])
        if name not in ("report", "compare"):
            command.add_argument("--output", type=Path, default=output, help="the result file; it keeps its other rows")
        return command.add_argument

    option = add("run", "measure, and write a result file")
    text = "exports, architectures, held-out, looked-at, models of packages, .onnx files; else the suite"
    option("--models", nargs="+", metavar="NAME", help=text)
    option("--quick", action="store_true", help="a few models, briefly: before and after a change")
    option("--tools", nargs="+", metavar="TOOL", help=", ".join(ALL))
    option("--provider", default="cpu", help="cpu, cuda, or any name that ONNX Runtime knows")
    text = "0: one a core; 1 unless named"
    option("--threads", nargs="+", type=_above(-1, int), metavar="N", help=text)
    option("--seconds", type=seconds, help="of timing, for each model, tool and setting; 2 (0.7)")
    option("--search-seconds", type=seconds, metavar="SECONDS", help="that a search may take at most (4)")
    option("--again", action="store_true", help="measure also what the file holds of the same circumstances")
    option = add("open_sizes", "one file for several sizes, timed at each", FOLDER / "open-sizes.jsonl")
    option("--models", nargs="+", metavar="NAME", choices=OPEN, help=", ".join(OPEN))
    option("--search-seconds", type=seconds, metavar="SECONDS", default=60.0, help="that graphopt may search; 60")
    option = add("report", "make the page and the picture of a result file")
    option("results", nargs="?", type=Path, default=FOLDER / "cpu.jsonl", help="that of the CPU unless named")
    option("--readme", action="store_true", help="put the summary into the README, too")
    option = add("compare", "what changed between two result files")
    option("old", type=Path)
    option("new", type=Path)
    option = add("scaling", "seconds and memory against the number of nodes", FOLDER / "scaling.jsonl")
    option("--sizes", nargs="+", type=_above(0, int), default=[100, 300, 1000, 3000, 10000, 30000])
    option = add("memory", "what models take, and what a budget leaves of it", FOLDER / "memory.jsonl")
    option("--models", nargs="+", metavar="NAME", choices=MEMORY, help=", ".join(MEMORY))
    option("--part", type=_above(0.0, float), default=0.6, help="of what a run takes that a budget leaves; 0.6")
    option = add("training", "steps of training, in turns with eager PyTorch's", FOLDER / "training.jsonl")
    named = ", ".join(training.NETWORKS)
    option("--networks", nargs="+", metavar="NAME", choices=training.NETWORKS, default=[*training.NETWORKS], help=named)
    option("--steps", type=_above(2, int), default=60, help="of each network; 60")
    option("--no-budgets", action="store_true", help="make no step for a memory budget")
    option = add("calibration", "error rates of decisions between a model and its copy", FOLDER / "calibration.jsonl")
    option("models", nargs="+", metavar="MODEL.onnx")
    option("--decisions", type=_above(1, int), default=200, help="of each kind; half as many with a planted gain")
    option("--loops", nargs="+", type=_above(-1, int), default=[0, 2], help="busy loops that compute beside")
    option = add("kernels", "time by kernel, beside OpenVINO's own runtime", FOLDER / "kernels.jsonl")
    text = "as of `run`; else those that OpenVINO ran faster than graphopt's outcome in benchmarks/results/cpu.jsonl"
    option("--models", nargs="+", metavar="NAME", help=text)
    option("--search-seconds", type=seconds, metavar="SECONDS", default=30.0, help="that graphopt may search; 30")
    option = add("kernel_times", "times of kernels, which graphopt ships", FOLDER / "kernel-times.jsonl")
    option("models", nargs="+", metavar="MODEL.onnx", help="whose kernels are shipped")
    option("--held-out", nargs="+", metavar="MODEL.onnx", default=[], help="whose kernels are predicted by those")
    option = add("pipelines", "models cut into stages, and the throughput of processes", FOLDER / "pipelines.jsonl")
    option("--models", nargs="+", metavar="NAME", default=[*pipelines.MODELS], help=", ".join(pipelines.MODELS))
    option("--stages", nargs="+", type=_above(1, int), metavar="N", default=[2, 4], help="2 and 4 unless named")
    option("--seconds", type=seconds, default=30.0, help="of timing stages, and of a stream of requests; 30")
    option = add("neighbours", "rewrites that hide something from ONNX Runtime's own tools", DATA)
    option("--models", nargs="+", metavar="FIXTURE", help="fixtures of the tests; else all")
    orders = [*tool_orders.SMALL, *tool_orders.LARGE]
    option = add("tool_orders", "graphopt before and after ONNX Runtime's own tools", FOLDER / "tool-orders.jsonl")
    option("--models", nargs="+", metavar="NAME", choices=orders, help=", ".join(orders))
    option(
        "--search-seconds", type=float, metavar="SECONDS", default=30.0, help="that graphopt may search; 30, 0: none"
    )
    option = add("search_time", "seconds of a run, by phase and by kind of work", FOLDER / "search-time.jsonl")
    option("models", nargs="+", metavar="MODEL.onnx")
    option("--search-seconds", type=seconds, metavar="SECONDS", default=30.0, help="that graphopt may search; 30")
    option("--against", type=Path, metavar="CHECKOUT", help="a checkout of another revision, that does the same")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a mistake of the user's is one line and the exit code 2, nothing measured is 1, Ctrl-C 130."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        for line in given.command(given):
            print(line)
    except UsageError as error:
        parser.exit(2, f"error: {error}\n")
    except ModelError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted; `run` without --again goes on after the last model that is done\n")


if __name__ == "__main__":
    main()
