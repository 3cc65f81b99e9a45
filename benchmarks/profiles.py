"""Where ONNX Runtime spends its time in models, as they are exported and as graphopt leaves them.

``python -m benchmarks.profiles [--models NAME ...]`` measures the named exports, or one of each of the thirteen
families that were found to have the most headroom, as the benchmark of speed does it with one thread, into
``benchmarks/results/profiles.jsonl``, and shows the profiles in ``profiles.md``. Profiling slows a run down by some
percent, small kernels most: how much faster a model is, the benchmark of speed says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.models import SUITE
from benchmarks.report import circumstances, table
from benchmarks.results import FOLDER, ORIGINAL, Results, reason
from benchmarks.run import Plan, run
from benchmarks.tools import PLAIN
from graphopt.runtime.session_setting import SessionSetting

SHOWN = 0.015
"""Least share of the time of either model that an operator has to be named; the others are one row."""

FAMILIES = (
    *("edgenext", "segformer", "minilm-128", "ghostnet", "arcface", "fastvit", "efficientnet-b0", "convnext"),
    *("repvit", "unet", "shufflenetv2", "swin-tiny", "yolo"),
)
DEFAULT = tuple(f"{name}.dynamo" for name in FAMILIES)

Profile: TypeAlias = Mapping[str, Sequence[float]]
"""Runs of the kernels of each operator in one run of the model, and their milliseconds in all."""


def markdown(results: Results) -> str:
    """Return the results as a page: a table for each model."""
    lines = [
        "# Where the time is",
        "",
        "Made by `python -m benchmarks.profiles`; its docstring says what is measured and how. Milliseconds in the",
        "kernels of one run, one thread, before and after graphopt. The operators are those of ONNX Runtime's own",
        "optimized graph, which has fusions and reorders of its own.",
        "",
        *circumstances(results.rows),
        "",
    ]
    for name in results.models:
        rows = [results.get(name, tool, "cpu-1") for tool in (ORIGINAL, "graphopt")]
        errors = [f"✗ {reason(row) or 'no profile'}" for row in rows if "profile" not in row]
        lines += [f"## {name}", "", *(errors[:1] or _shown(rows[0]["profile"], rows[1]["profile"])), ""]
    return "\n".join(lines)


def _shown(*sides: Profile) -> list[str]:
    """Return a line an operator, a sum of those that have little, and of all."""
    totals = [sum(ms for _, ms in profile.values()) for profile in sides]
    share = {
        operator: [profile.get(operator, (0, 0.0))[1] / total for profile, total in zip(sides, totals, strict=True)]
        for operator in dict.fromkeys([*sides[0], *sides[1]])
    }
    named = sorted((operator for operator in share if max(share[operator]) >= SHOWN), key=lambda each: -share[each][1])
    groups = {operator: [operator] for operator in named}
    groups |= {"others": [operator for operator in share if operator not in named], "all": [*share]}
    cells = (
        [label, *(cell for side, total in zip(sides, totals, strict=True) for cell in _cells(side, operators, total))]
        for label, operators in groups.items()
        if operators
    )
    return table(["operator", "nodes", "ms", "share", "nodes, after", "ms, after", "share, after"], cells)


def _cells(profile: Profile, operators: Iterable[str], total: float) -> list[str]:
    some = [profile[operator] for operator in operators if operator in profile]
    count, ms = sum(count for count, _ in some), sum(ms for _, ms in some)
    return [f"{count:g}", f"{ms:.2f}", f"{ms / total:.0%}"] if some else ["", "", ""]


def main() -> None:
    """Measure and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SUITE, default=DEFAULT, metavar="NAME", help="rows to measure")
    plan = Plan(parser.parse_args().models, [PLAIN, "graphopt"], [SessionSetting(threads=1)], seconds=2.0)
    path = FOLDER / "profiles.jsonl"
    path.with_suffix(".md").write_text(markdown(run(plan, path)), encoding="utf-8")
    print(f"written: {path}, {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
