"""``python -m benchmarks run | report | compare | scaling``: the commands that measure and show."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.models import QUICK, SUITE
from benchmarks.tools import ALL, SEARCH
from graphopt.measure import Setting

QUICK_TOOLS = ["OnnxSlim", "graphopt-simplify", "graphopt"]
QUICK_SEARCH = 4.0
QUICK_THREADS = [1]
RESULTS = Path(__file__).parent / "results"


def _run(arguments: argparse.Namespace) -> None:
    from benchmarks.run import Plan, run

    models = arguments.models or (QUICK if arguments.quick else SUITE)
    threads = arguments.threads or (QUICK_THREADS if arguments.quick else [1, 0])
    settings = [Setting(arguments.provider, count) for count in threads]
    for setting in settings:
        setting.provider_name  # noqa: B018  # a provider that is missing is said before anything is exported
    seconds = arguments.seconds or (0.7 if arguments.quick else 2.0)
    path = arguments.output or RESULTS / f"{arguments.provider}{'-quick' if arguments.quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    search = arguments.search_seconds or (QUICK_SEARCH if arguments.quick else SEARCH)
    tools = arguments.tools or (QUICK_TOOLS if arguments.quick else list(ALL))
    run(Plan(models, tools, settings, seconds, search, arguments.again), path)
    print(f"written: {path}")


def _report(arguments: argparse.Namespace) -> None:
    from benchmarks.report import report, update_readme

    results = arguments.results or RESULTS / "cpu.json"
    for path in report(results):
        print(f"written: {path}")
    if arguments.readme:
        print(f"written: {update_readme(results)}")


def _compare(arguments: argparse.Namespace) -> None:
    from benchmarks.report import compare

    compare(arguments.old, arguments.new)


def _scaling(arguments: argparse.Namespace) -> None:
    from benchmarks.scaling import run

    print(f"written: {run(arguments.sizes, arguments.output or RESULTS / 'scaling.json')}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="measure, and write a result file")
    run.add_argument("--models", nargs="+", choices=SUITE, metavar="NAME", help="the whole suite unless named")
    run.add_argument("--quick", action="store_true", help="a few models, briefly: before and after a change")
    run.add_argument("--tools", nargs="+", choices=ALL, metavar="TOOL", help=", ".join(ALL))
    run.add_argument("--provider", default="cpu", help="cpu, cuda, or any name that ONNX Runtime knows")
    run.add_argument("--threads", nargs="+", type=int, help="0 is one a core; 1 and 0 unless named, with --quick 1")
    run.add_argument("--seconds", type=float, help="of timing, for each model, tool and number of threads; 2 (0.7)")
    run.add_argument("--search-seconds", type=float, metavar="SECONDS", help="that graphopt may search; 60 (4)")
    run.add_argument("--output", type=Path, help="the result file; what it holds is not measured again")
    run.add_argument("--again", action="store_true", help="measure also what the file holds of them")
    run.set_defaults(command=_run)
    report = commands.add_parser("report", help="make the tables and pictures of a result file")
    report.add_argument("results", nargs="?", type=Path, help="benchmarks/results/cpu.json unless named")
    report.add_argument("--readme", action="store_true", help="put the summary into the README, too")
    report.set_defaults(command=_report)
    compare = commands.add_parser("compare", help="what changed between two result files")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.set_defaults(command=_compare)
    scaling = commands.add_parser("scaling", help="seconds and memory against the number of nodes")
    scaling.add_argument("--sizes", nargs="+", type=int, default=[100, 300, 1000, 3000, 10000, 30000])
    scaling.add_argument("--output", type=Path)
    scaling.set_defaults(command=_scaling)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """One command."""
    parsed = _parser().parse_args(arguments)
    parsed.command(parsed)


if __name__ == "__main__":
    main()
