"""What a run of `graphopt discover` took, and what it would take on more workers: read from the journal that it kept.

`graphopt discover --size 3 --output found.jsonl --journal run.journal`, then
`python -m benchmarks.discovery run.journal [--plot sizes.png --stages stages.txt]`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
from collections.abc import Sequence
from pathlib import Path

from graphopt.discover.run import AT_ONCE

WORKERS = (1, 2, 4, 8, 16, 32, 64)
_STAGE = re.compile(
    r"(\w+), (\d) operators?: ([\d,]+) terms, ([\d,]+) values, .*?([\d,]+) asked: .*; ([\d,]+) rules, ([\d.]+) s"
)


def seconds(journal: Path) -> list[float]:
    """Return what each question took, in the order in which they were answered."""
    said = (json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()[1:])
    return [float(each["answer"]["seconds"]) for each in said]


def replayed(tasks: Sequence[float], workers: int, at_once: int = AT_ONCE) -> float:
    """Return the seconds that tasks take on some workers, which get the next one as soon as they are free.

    So many are asked together; the next ones wait for their answers.
    """
    total = 0.0
    for start in range(0, len(tasks), at_once):
        free = [0.0] * workers
        for task in tasks[start : start + at_once]:
            heapq.heapreplace(free, free[0] + task)
        total += max(free)
    return total


def table(tasks: Sequence[float]) -> str:
    """Return how much faster more workers are, and how much where the number asked together grows with them."""
    alone = sum(tasks)
    lines = [
        "| workers | seconds | times as fast | with 4 questions a worker asked together |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for workers in WORKERS:
        took, wider = replayed(tasks, workers), replayed(tasks, workers, max(AT_ONCE, 4 * workers))
        lines.append(f"| {workers} | {took:.1f} | {alone / took:.1f} | {alone / wider:.1f} |")
    return "\n".join(lines)


def plot(stages: str, target: Path) -> None:
    """Draw candidates, survivors and seconds by size, from the lines that a run tells for each stage."""
    import matplotlib.pyplot as plt

    found: dict[int, list[float]] = {}
    for match in _STAGE.finditer(stages):
        numbers = [float(text.replace(",", "")) for text in match.groups()[2:]]
        found[int(match[2])] = [a + b for a, b in zip(found.get(int(match[2]), [0.0] * 5), numbers, strict=True)]
    sizes = sorted(found)
    figure, axes = plt.subplots(figsize=(7, 4))
    for position, name in enumerate(("terms", "different values", "questions", "rules", "seconds")):
        axes.plot(sizes, [found[size][position] for size in sizes], marker="o", label=name)
    axes.set(yscale="log", xlabel="operators", xticks=sizes)
    axes.legend()
    figure.savefig(target, dpi=150, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--stages", type=Path, help="what the run said on stderr")
    parser.add_argument("--plot", type=Path, help="where to draw what the stages say")
    given = parser.parse_args()
    tasks = seconds(given.journal)
    print(f"{len(tasks)} questions, {sum(tasks):.1f} s, the longest {max(tasks):.1f} s\n")
    print(table(tasks))
    if given.stages and given.plot:
        plot(given.stages.read_text(encoding="utf-8"), given.plot)


if __name__ == "__main__":
    main()
