"""What a search found, as a text that a cache keeps: the next run of the same takes it up where it would search again.

A search that its time has ended would go on where it left off, for what it measured is known by then, and find more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from graphopt.ir.graph import Graph, Value
from graphopt.language.rule import Rule
from graphopt.rewrite.regions import digest
from graphopt.runtime.cost import UNREADABLE, numbers
from graphopt.runtime.measure import Speedup
from graphopt.search.explore import Exploration, StopReason
from graphopt.search.moves import Move, Solution

_COUNTS = ("regions", "copies", "states", "trials")


def to_text(found: Exploration) -> str:
    """What was found, for `of_text` to read."""
    counts = {name: getattr(found, name) for name in _COUNTS}
    solutions = [_solution_to_json(solution) for solution in found.solutions]
    return json.dumps({"solutions": solutions, "stop": found.stop, "notes": found.notes, **counts})


def of_text(text: str | None, rules: Sequence[Rule]) -> Exploration | None:
    """What a text says that was found with these rules; None where it says nothing, or is of another make."""
    known = {rule.name: rule for rule in rules}
    try:
        data = json.loads(text or "{}")
        solutions = tuple(_solution(each, known) for each in data["solutions"])
        regions, copies, states, trials = (int(data[name]) for name in _COUNTS)
        notes = tuple(map(str, data["notes"]))
        return Exploration(solutions, StopReason(data["stop"]), regions, copies, states, trials, notes)
    except UNREADABLE:
        return None


def _solution_to_json(solution: Solution) -> dict[str, Any]:
    moves = [{"rule": move.rule.name, "sites": move.sites, "simplified": move.simplified} for move in solution.moves]
    return {
        "copies": solution.copies,
        "moves": moves,
        "speedup": asdict(solution.speedup),
        "weight": solution.weight,
        "result": solution.result,
    }


def _solution(data: Mapping[str, Any], rules: Mapping[str, Rule]) -> Solution:
    copies = tuple(tuple(map(int, copy)) for copy in data["copies"])
    moves = tuple(_move(move, rules) for move in data["moves"])
    return Solution(copies, moves, numbers(Speedup, data["speedup"]), float(data["weight"]), str(data["result"]))


def _move(data: Mapping[str, Any], rules: Mapping[str, Rule]) -> Move:
    sites = tuple(tuple(Value(int(vertex), int(output)) for vertex, output in site) for site in data["sites"])
    return Move(rules[data["rule"]], sites, bool(data["simplified"]))


def identity(graph: Graph) -> str:
    """Identifies a graph together with the numbers of its vertices, in which finds are told."""
    numbered = [(vertex, graph[vertex].op) for vertex in graph.topological()]
    return sha256(f"{digest(graph)} {numbered}".encode()).hexdigest()


def dependence(rules: Sequence[Rule]) -> str:
    """Identifies rules, and the source of the search and of all that it rests on: another might find something else."""
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
