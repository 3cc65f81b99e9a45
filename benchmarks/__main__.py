"""``python -m benchmarks run | report | compare | scaling``: the commands that measure and show."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import outcomes, reason
from benchmarks.models import QUICK, SUITE
from benchmarks.tools import ALL, PLAIN, SEARCH
from graphopt.base.errors import ModelError, UsageError, did_you_mean
from graphopt.runtime.sessions import Setting

QUICK_TOOLS = ["OnnxSlim", "graphopt-simplify", "graphopt"]
QUICK_SEARCH = 4.0
QUICK_THREADS = [1]
QUICK_LIMIT = 30.0
"""Seconds after which a tool, a check or a process of a timing is given up, in a quick run."""

RESULTS = Path(__file__).parent / "results"


def _run(arguments: argparse.Namespace) -> None:
    from benchmarks.run import Plan, run

    quick: bool = arguments.quick
    models = _models(arguments.models or (QUICK if quick else SUITE))
    settings = _settings(arguments.provider, arguments.threads, quick)
    seconds = arguments.seconds or (0.7 if quick else 2.0)
    path = arguments.output or RESULTS / f"{arguments.provider.lower()}{'-quick' if quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    search = arguments.search_seconds or (QUICK_SEARCH if quick else SEARCH)
    named = _known(arguments.tools or (QUICK_TOOLS if quick else list(ALL)), ALL, "tool")
    tools = list(dict.fromkeys([PLAIN, *named]))  # in each run: without it nobody knows the noise
    limit = QUICK_LIMIT if quick else None
    plan = Plan(models, tools, settings, seconds, search, arguments.again, arguments.failed, limit, arguments.dask)
    done = run(plan, path)
    print(f"exports: {done.exports:.0f} s; measuring: {done.measuring:.0f} s")
    print(f"written: {path}; `python -m benchmarks report {path}` shows it")
    _say_failures(done.rows, plan.models, plan.tools)


def _models(names: Sequence[str]) -> list[str]:
    """The exports that are named, or all of the architectures that are."""
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


def _say_failures(rows: Mapping[str, Any], models: Sequence[str], tools: Sequence[str]) -> None:
    """How much failed of what was wanted.

    Raises:
        ModelError: all of it.
    """
    broken = {name: rows[name]["error"] for name in models if "error" in rows[name]}
    cells = [outcomes(rows[name].get("tools", {}).get(tool, {})) for name in models for tool in tools]
    wrong = [cell for found in cells for cell in found.values() if reason(cell)]
    first = next((f"{name}: {why}" for name, why in broken.items()), "")
    if len(broken) == len(models):
        raise ModelError(f"no model could be measured; {first}")
    if broken:
        print(f"{len(broken)} of {len(models)} models could not be measured; {first}")
    if wrong:
        print(f"{len(wrong)} outcomes failed or are wrong; the report says why, `run --failed` tries them again")


def _settings(provider: str, threads: Sequence[int] | None, quick: bool) -> list[Setting]:
    """What is measured: on a device one setting, for there the number of threads decides nothing.

    Raises:
        UsageError: the provider is missing, or threads do not fit.
    """
    if Setting(provider).is_cpu:
        return [Setting(provider, count) for count in threads or (QUICK_THREADS if quick else [1, 0])]
    if threads and len(threads) > 1:
        raise UsageError(f"--threads takes one number with --provider {provider}")
    return [Setting(provider, threads[0] if threads else 1)]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return seconds


def _threads(text: str) -> int:
    return _at_least(0, text)


def _size(text: str) -> int:
    return _at_least(1, text)


def _at_least(least: int, text: str) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least {least}")
    return number


def _report(arguments: argparse.Namespace) -> None:
    from benchmarks.report import report, update_readme

    results = arguments.results or _latest(readme=arguments.readme)
    _require(results)
    for path in report(results):
        print(f"written: {path}")
    if arguments.readme:
        print(f"written: {update_readme(results)}")


def _compare(arguments: argparse.Namespace) -> None:
    from benchmarks.report import compare

    _require(arguments.old)
    _require(arguments.new)
    compare(arguments.old, arguments.new)


def _latest(*, readme: bool) -> Path:
    """The result file that was written last; the README's is that of the CPU."""
    paths = [path for path in RESULTS.glob("*.json") if _is_result(path)]
    return RESULTS / "cpu.json" if readme or not paths else max(paths, key=lambda path: path.stat().st_mtime)


def _is_result(path: Path) -> bool:
    try:
        _require(path)
    except UsageError:
        return False
    return True


def _require(path: Path) -> None:
    """Raises UsageError if this is no result file."""
    from benchmarks.run import read

    read(path)


def _scaling(arguments: argparse.Namespace) -> None:
    from benchmarks.scaling import run

    print(f"written: {run(arguments.sizes, arguments.output or RESULTS / 'scaling.json')}")


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
        "--threads", nargs="+", type=_threads, help="0: one a core; 1 and 0 unless named, 1 with --quick or on a device"
    )
    run.add_argument("--seconds", type=_seconds, help="of timing, for each model, tool and number of threads; 2 (0.7)")
    run.add_argument("--search-seconds", type=_seconds, metavar="SECONDS", help="that graphopt may search; 60 (4)")
    run.add_argument("--output", type=Path, help="the result file; what it holds of the same circumstances is kept")
    run.add_argument("--again", action="store_true", help="measure also what the file holds of them")
    run.add_argument("--failed", action="store_true", help="measure also what failed when the file was made")
    run.add_argument("--dask", metavar="tcp://HOST:PORT", help="a Dask cluster of equal machines, a model each at once")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="make the tables and pictures of a result file")
    report.add_argument("results", nargs="?", type=Path, help="the one that was written last, unless named")
    report.add_argument("--readme", action="store_true", help="put the summary into the README, too")
    report.set_defaults(command=_report)
    compare = commands.add_parser("compare", help="what changed between two result files")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.set_defaults(command=_compare)
    scaling = commands.add_parser("scaling", help="seconds and memory against the number of nodes")
    scaling.add_argument("--sizes", nargs="+", type=_size, default=[100, 300, 1000, 3000, 10000, 30000])
    scaling.add_argument("--output", type=Path)
    scaling.set_defaults(command=_scaling)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """One command. What the user did wrong is one line, and the exit code 2; nothing measured is 1, and Ctrl-C 130."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        parsed.command(parsed)
    except UsageError as error:
        parser.exit(2, f"error: {error}\n")
    except ModelError as error:
        parser.exit(1, f"error: {error}\n")
    except KeyboardInterrupt:
        goes_on = "; without --again it goes on after the last model that is done" if parsed.command is _run else ""
        parser.exit(130, f"interrupted{goes_on}\n")


if __name__ == "__main__":
    main()
