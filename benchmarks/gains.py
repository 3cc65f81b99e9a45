"""What found rules gain in models that the library has simplified: in the fixtures of the tests, or in files.

`python -m benchmarks.gains found.jsonl [--model FILE.onnx] [--cost measured] [--workers N | --dask tcp://…]` tries each
rule on the parts of each model in which it matches, and writes `benchmarks/results/found-gains.md`: that which is there
is of both files in `tests/discover/found`, and of what `graphopt discover --size 2` wrote; measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphopt.base import files
from graphopt.base.engine import engine
from graphopt.discover.gains import Gains, Place, cost_model
from graphopt.discover.library import read
from graphopt.language import library
from tests import zoo

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Task:
    """A model in which rules are tried: a fixture's name, or a file."""

    model: str
    rules: tuple[Path, ...]
    cost: str


def tried(task: Task) -> dict[str, Place]:
    """Return what each rule does in the model, of those that match somewhere."""
    rules = library.read(task.rules).everything
    graph = read(zoo.load(task.model) if task.model in zoo.names() else task.model)
    gains = Gains(cost_model(task.cost), library.load(), {task.model: graph})
    found = ((rule, gains.in_models(rule)[task.model]) for rule in rules)
    return {str(rule): place for rule, place in found if place.matches}


def table(found: Mapping[str, Mapping[str, Place]], rules: Sequence[Path], count: int, cost: str) -> str:
    """Return what rules gain in each model in which they gain something, those that gain most first."""
    rows = [
        (place.gain or 0.0, rule, model, place) for model, places in found.items() for rule, place in places.items()
    ]
    matching, met, gaining = ({row[1] for row in rows}, {row[2] for row in rows}, {row[1] for row in rows if row[0]})
    lines = [
        "# What found rules gain beside the library",
        "",
        f"{count} rules of {', '.join(path.name for path in rules)}; {len(found)} models, simplified by the library.",
        f"{len(matching)} of the rules match in {len(met)} of them; {len(gaining)} gain something in a part; {cost}.",
        "",
        "| times as fast, of the part | rule | model | matches |",
        "| ---: | --- | --- | ---: |",
        *(
            f"| {gain:.3f} | `{rule}` | {model} | {place.matches} |"
            for gain, rule, model, place in sorted(rows, key=lambda row: (-row[0], row[1:3]))
            if gain
        ),
    ]
    return "\n".join([*lines, ""])


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", type=Path, nargs="+", help="files of rules, as `graphopt discover` writes them")
    parser.add_argument("--model", action="append", help="a file; by default the fixtures of the tests")
    parser.add_argument("--cost", choices=["analytic", "measured"], default="analytic")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dask", help="the scheduler of a cluster: its workers time the parts")
    parser.add_argument("--output", type=Path, default=RESULTS / "found-gains.md")
    asked = parser.parse_args(given)
    rules = tuple(path.resolve() for path in asked.rules)
    tasks = [Task(model, rules, asked.cost) for model in asked.model or zoo.names()]
    with engine(asked.workers, asked.dask) as runs:
        found = {tasks[place].model: places for place, places in runs.each(tried, tasks)}
    said = table(dict(sorted(found.items())), rules, len(library.read(rules).everything), asked.cost)
    files.write_text(asked.output, said)
    print(said)


if __name__ == "__main__":
    main()
