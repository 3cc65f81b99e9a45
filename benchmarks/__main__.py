"""``python -m benchmarks run | report | compare | scaling``: the commands that measure and show."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks import comparison, report, scaling
from benchmarks.models import QUICK, SUITE
from benchmarks.results import FOLDER, ORIGINAL, Results, reason
from benchmarks.run import Plan, run
from benchmarks.tools import ALL, PLAIN, SEARCH
from graphopt.base.errors import ModelError, UsageError, did_you_mean
from graphopt.runtime.session_setting import SessionSetting

QUICK_TOOLS = ("OnnxSlim", "graphopt-simplify", "graphopt")
QUICK_SEARCH = 4.0
QUICK_LIMIT = 30.0
"""Seconds after which a tool, a check or a process of a timing is given up, in a quick run."""

Number = TypeVar("Number", int, float)


def _run(given: argparse.Namespace) -> None:
    quick: bool = given.quick
    named = _known(given.tools or (QUICK_TOOLS if quick else list(ALL)), ALL, "tool")
    plan = Plan(
        models=_models(given.models or (QUICK if quick else SUITE)),
        tools=list(dict.fromkeys([PLAIN, *named])),  # in each run: without it nobody knows the noise
        settings=_settings(given.provider, given.threads, quick),
        seconds=given.seconds or (0.7 if quick else 2.0),
        search=given.search_seconds or (QUICK_SEARCH if quick else SEARCH),
        again=given.again,
        failed=given.failed,
        limit=QUICK_LIMIT if quick else None,
        dask=given.dask,
    )
    path = given.output or FOLDER / f"{given.provider.lower()}{'-quick' if quick else ''}.jsonl"
    results = run(plan, path)
    print(f"written: {path}; `python -m benchmarks report {path}` shows it")
    _say_failures(results, plan)


def _models(names: Sequence[str]) -> list[str]:
    """Return the exports that are named, and all of the architectures that are."""
    architectures: dict[str, list[str]] = {}
    for name in SUITE:
        architectures.setdefault(name.split(".")[0], []).append(name)
    _known(names, {*SUITE, *architectures}, "model")
    return list(dict.fromkeys(export for name in names for export in architectures.get(name, [name])))


def _known(names: Sequence[str], known: Collection[str], what: str) -> Sequence[str]:
    for name in names:
        if name not in known:
            listed = f"; there are {', '.join(known)}" if len(known) < len(SUITE) else ""
            raise UsageError(f"there is no {what} '{name}'{did_you_mean(name, known) or listed}")
    return names


def _settings(provider: str, threads: Sequence[int] | None, quick: bool) -> list[SessionSetting]:
    """Return what is measured: one setting on a device, for there the number of threads decides nothing.

    Raises:
        UsageError: the provider is missing, or threads do not fit.
    """
    if SessionSetting(provider).is_cpu:
        return [SessionSetting(provider, count) for count in threads or ([1] if quick else [1, 0])]
    if threads and len(threads) > 1:
        raise UsageError(f"--threads takes one number with --provider {provider}")
    return [SessionSetting(provider, threads[0] if threads else 1)]


def _say_failures(results: Results, plan: Plan) -> None:
    """Say how much failed of what was wanted.

    Raises:
        ModelError: all of it.
    """
    rows = [row for row in results.failures() if row["model"] in plan.models]
    broken = {row["model"]: f"{row['model']}: {reason(row)}" for row in rows if row["tool"] == ORIGINAL}
    wrong = sum(row["tool"] in plan.tools for row in rows)
    if len(broken) == len(plan.models):
        raise ModelError(f"no model could be measured; {next(iter(broken.values()))}")
    if broken:
        first = next(iter(broken.values()))
        print(f"{len(broken)} of {len(plan.models)} models could not be measured; {first}")
    if wrong:
        print(f"{wrong} outcomes failed or are wrong; the report says why, `run --failed` tries them again")


def _report(given: argparse.Namespace) -> None:
    path = given.results or FOLDER / "cpu.jsonl"
    for written in [*report.report(path), *([report.update_readme(path)] if given.readme else [])]:
        print(f"written: {written}")


def _compare(given: argparse.Namespace) -> None:
    for line in comparison.compare(given.old, given.new):
        print(line)


def _scaling(given: argparse.Namespace) -> None:
    print(f"written: {scaling.run(given.sizes, given.output or FOLDER / 'scaling.jsonl')}")


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
    run = commands.add_parser("run", help="measure, and write a result file")
    run.add_argument(
        "--models", nargs="+", metavar="NAME", help="exports, or architectures; the whole suite unless named"
    )
    run.add_argument("--quick", action="store_true", help="a few models, briefly: before and after a change")
    run.add_argument("--tools", nargs="+", metavar="TOOL", help=", ".join(ALL))
    run.add_argument("--provider", default="cpu", help="cpu, cuda, or any name that ONNX Runtime knows")
    run.add_argument(
        "--threads", nargs="+", type=_above(-1, int), metavar="N",
        help="0: one a core; 1 and 0 unless named, 1 with --quick or on a device",
    )  # fmt: skip
    seconds = _above(0.0, float)
    run.add_argument("--seconds", type=seconds, help="of timing, for each model, tool and setting; 2 (0.7)")
    run.add_argument("--search-seconds", type=seconds, metavar="SECONDS", help="that graphopt may search; 60 (4)")
    run.add_argument("--output", type=Path, help="the result file; what it holds of the same circumstances is kept")
    run.add_argument("--again", action="store_true", help="measure also what the file holds of them")
    run.add_argument("--failed", action="store_true", help="measure also what failed when the file was made")
    run.add_argument("--dask", metavar="tcp://HOST:PORT", help="a Dask cluster of equal machines, a model each at once")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="make the page and the picture of a result file")
    report.add_argument("results", nargs="?", type=Path, help="that of the CPU unless named")
    report.add_argument("--readme", action="store_true", help="put the summary into the README, too")
    report.set_defaults(command=_report)
    compare = commands.add_parser("compare", help="what changed between two result files")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.set_defaults(command=_compare)
    scaling = commands.add_parser("scaling", help="seconds and memory against the number of nodes")
    scaling.add_argument("--sizes", nargs="+", type=_above(0, int), default=[100, 300, 1000, 3000, 10000, 30000])
    scaling.add_argument("--output", type=Path)
    scaling.set_defaults(command=_scaling)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a mistake of the user's is one line and the exit code 2, nothing measured is 1, Ctrl-C 130."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        given.command(given)
    except UsageError as error:
        parser.exit(2, f"error: {error}\n")
    except ModelError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted; `run` without --again goes on after the last model that is done\n")


if __name__ == "__main__":
    main()
