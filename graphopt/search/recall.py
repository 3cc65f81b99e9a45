"""What a search found, in a cache: the next run of the same takes it up where it would search again.

A search that its time has ended would go on where it left off, for what it measured is known by then, and find more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from graphopt.ir.graph import Graph
from graphopt.language.rule import Rule
from graphopt.rewrite.regions import digest
from graphopt.runtime.cost import decoded
from graphopt.search.explore import Exploration


def of_text(text: str | None, rules: Sequence[Rule]) -> Exploration | None:
    """Return what a text says that was found with these rules; None where it says nothing, or is of another make."""
    found, known = decoded(Exploration, text), {rule.name for rule in rules}
    if found is None or not all(known.issuperset(solution.rules) for solution in found.solutions):
        return None
    return found


def identity(graph: Graph) -> str:
    """Identify a graph together with the numbers of its vertices, in which finds are told."""
    numbered = [(vertex, graph[vertex].op) for vertex in graph.topological()]
    return sha256(f"{digest(graph)} {numbered}".encode()).hexdigest()


def dependence(rules: Sequence[Rule]) -> str:
    """Identify rules, and the source of the search and of all that it rests on: another might find something else."""
    said = sha256(_source().encode())
    for rule in rules:
        said.update(rule.digest.encode())
    return said.hexdigest()


HOME = Path(__file__).parent.parent
"""Where the compiler lies."""


@cache
def _source() -> str:
    said = sha256()
    for path in sorted(HOME.glob("*/*.py")):
        said.update(str(path.relative_to(HOME)).encode() + b"\0" + path.read_bytes())
    return said.hexdigest()
